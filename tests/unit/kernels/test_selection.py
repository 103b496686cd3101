"""Selectors on the lane mean what the reference says: on the vectors, and on generated ones."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import matching, plan
from regraft.kernels import selection as compiled
from regraft.limits import PATTERN_TEXT_MAX, PATTERNS_CACHED
from regraft.model import topics
from regraft.model.message import DeliveryMode, Message, Timestamp, Value, encode_envelope
from regraft.model.selector import (
    Condition,
    Literal,
    Name,
    NameKind,
    Selector,
    evaluate,
    patterns,
    text_of,
    values_of,
)
from regraft.model.selector.ast import (
    Arithmetic,
    Between,
    Comparison,
    Distance,
    In,
    IsNull,
    Like,
    Negate,
    Not,
    Regexp,
    StartsWith,
    TopicMatch,
)
from regraft.model.selector.evaluate import arithmetic, distance
from regraft.model.selector.patterns import regex_text_max
from regraft.model.selector.words import HEADERS

FILE = Path(__file__).parents[2] / "vectors" / "selectors.json"
VECTORS = [v for v in json.loads(FILE.read_text())["vectors"] if "result" in v]
READ: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "string": str, "bytes": bytes.fromhex,
    "timestamp": Timestamp,
}  # fmt: skip
NUMBERS = (0, 1, -1, 5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.5, 5.0, 2.0**53, 1e300,
           -1e300, 9.3e18, -9.3e18)  # fmt: skip
OTHERS = ("", "a", "b", "ab", "grüß", "\U0001f600", True, False, Timestamp(0), Timestamp(5), b"a")
NAMES = ("a", "b", "c", "ctx.a", "ctx.b", "missing", *(f"${name}" for name in HEADERS))
LIKE_PIECES = ["a", "gr", "ü", "ß", "%", "%", "_", "_"]
EXPRESSIONS = ("a", "^a", "b$", "^gr..$", "a|b", "(?i)A", "", "[^a]", "^.$", "rü", "(ab)+$")
TOPICS = ("a/#", "#", "+", "a/+", "+/b", "$a", "$a/#", "a//b", "+/+/#", "/")
TESTS = (Comparison, Between, In, Like, Regexp, StartsWith, IsNull, TopicMatch)


@pytest.fixture(scope="module", params=["as installed", "interpreted"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "interpreted":
        return kernels.load_interpreted()["selection"]
    return compiled


def mapping_of(typed: dict[str, dict[str, Any]]) -> dict[str, Value]:
    return {
        name: READ[kind](value)
        for name, described in typed.items()
        for kind, value in described.items()
    }


def message_of(described: dict[str, Any]) -> Message:
    fields = {"topic": "t", **described}
    for noun in ("attributes", "context"):
        fields[noun] = mapping_of(fields.get(noun, {}))
    if "body" in fields:
        fields["body"] = bytes.fromhex(fields["body"])
    if "delivery_mode" in fields:
        fields["delivery_mode"] = DeliveryMode[fields["delivery_mode"]]
    return Message(**fields)


def test_the_vectors(kernel: ModuleType) -> None:
    wrong = []
    for vector in VECTORS:
        message = message_of(vector["message"])
        test = kernel.compile_selector(Selector.parse(vector["selector"]))
        expected = {"true": True, "false": False, "unknown": None}[vector["result"]]
        if kernel.examine_selector(test, encode_envelope(message)) is not expected:
            wrong.append(vector)
    assert wrong == []


def literal(random: Random) -> str:
    return text_of(Literal(random.choice(NUMBERS + OTHERS)))


def operand(random: Random, depth: int = 0) -> str:
    """A name, a literal, or something that is calculated."""
    shape = random.randrange(10 if depth < 3 else 6)
    if shape <= 3:
        return random.choice(NAMES)
    if shape <= 5:
        return literal(random)
    if shape <= 7:
        left, right = (operand(random, depth + 1) for _ in range(2))
        return f"({left} {random.choice('+-*/')} {right})"
    if shape == 8:
        return f"-({operand(random, depth + 1)})"
    points = (random.choice(("a", "b", "1.5", "-90", operand(random, 3))) for _ in range(4))
    return f"DISTANCE({', '.join(points)})"


def condition(random: Random) -> str:
    """One condition, without AND, OR and NOT."""
    subject = random.choice(NAMES) if random.random() < 0.6 else operand(random)
    shape = random.randrange(12)
    if shape <= 2:
        relation = random.choice(("=", "<>", "<", "<=", ">", ">="))
        other = literal(random) if random.random() < 0.4 else operand(random)
        return f"{subject} {relation} {other}"
    if shape == 3:
        low = random.choice(("-1", "0.5", "''", operand(random)))
        high = random.choice(("5", "1e18", "'h'", operand(random)))
        return f"{subject} BETWEEN {low} AND {high}"
    if shape <= 5:
        items = ", ".join(literal(random) for _ in range(random.randint(1, 9)))
        return f"{subject} IN ({items})"
    if shape == 6:
        return f"{random.choice(NAMES)} IS NULL"
    if shape == 7:
        return f"STARTS_WITH({subject}, '{random.choice(('', 'a', 'gr'))}')"
    if shape <= 9:
        escape = random.choice(("", " ESCAPE 'b'"))
        pieces = LIKE_PIECES if not escape else [*LIKE_PIECES, "bb", "b%", "b_"]
        pattern = "".join(random.choice(pieces) for _ in range(random.randrange(5)))
        return f"{subject} LIKE '{pattern}'{escape}"
    if shape == 10:
        return f"{subject} REGEXP '{random.choice(EXPRESSIONS)}'"
    return random.choice(("TRUE", *(f"TOPIC('{pattern}')" for pattern in TOPICS)))


def text(random: Random, depth: int = 0) -> str:
    shape = random.randrange(6 if depth < 3 else 3)
    if shape <= 2:
        return condition(random)
    if shape == 3:
        return f"NOT ({text(random, depth + 1)})"
    joint = random.choice((" AND ", " OR "))
    terms = [f"({text(random, depth + 1)})" for _ in range(random.randint(2, 3))]
    return joint.join(terms)


def message(random: Random) -> Message:
    def some() -> dict[str, Value]:
        pool = (*NUMBERS, *OTHERS, float("nan"), float("inf"), float("-inf"))
        return {name: random.choice(pool) for name in "abc" if random.random() < 0.7}

    def perhaps(*values: Any) -> Any:
        return random.choice(values)

    return Message(
        random.choice(("a", "t", "a/b", "a//b", "b/a/a", "$a", "/", "grüß/a")),
        bytes(random.choice((0, 1, 5))),
        some(),
        priority=random.choice((0, 4, 5)),
        context=some(),
        type=perhaps(0, 1, 5),
        type_name=perhaps("", "a"),
        sender=perhaps("", "a", "grüß"),
        reply_to=perhaps("", "a/b"),
        correlation=perhaps("", "ab"),
        timestamp_us=perhaps(None, 0, 5, -1),
        expiration_us=perhaps(None, 0, 5),
        delivery_mode=perhaps(*DeliveryMode),
    )


def test_generated_selectors_and_messages(kernel: ModuleType) -> None:
    random = Random(20261115)
    seen: Counter[tuple[str, bool | None]] = Counter()
    for _ in range(1500 if kernel is compiled else 600):
        selector = Selector.parse(text(random))
        both = kernel.compile_selector(selector), kernel.compile_condition(selector.written)
        for _ in range(4):
            one = message(random)
            expected = selector.evaluate(one)
            envelope = encode_envelope(one)
            for test in both:
                got = kernel.examine_selector(test, envelope)
                assert got is expected, (selector.text, one)
            if isinstance(selector.written, TESTS):
                seen[type(selector.written).__name__, expected] += 1
    # Each kind of condition was true, false and unknown, as far as it can be.
    possible = {(kind.__name__, truth) for kind in TESTS for truth in (True, False, None)}
    assert possible - seen.keys() == {("IsNull", None), ("TopicMatch", None)}


def about(kernel: ModuleType, condition: Condition, **attributes: Value) -> bool | None:
    """What both say of a message with these attributes, if they say the same."""
    one = Message("t", attributes=attributes)
    got = kernel.examine_selector(kernel.compile_condition(condition), encode_envelope(one))
    assert got is evaluate(condition, values_of(one)), (condition, attributes)
    return bool(got) if got is not None else None


A, B, C = (Name(NameKind.ATTRIBUTE, name) for name in "abc")


def test_arithmetic_is_exact(kernel: ModuleType) -> None:
    numbers = (*NUMBERS, -5, 2, -2, 2**31, -(2**31), 3037000499, 3037000500, -3037000500, 2**62)
    for left, right in product(numbers, numbers):
        for symbol in "+-*/":
            result = arithmetic(symbol, left, right)
            same = Comparison("=", Arithmetic(symbol, A, B), C)
            if result is None:
                assert about(kernel, same, a=left, b=right, c=0) is None
            else:
                truth = about(kernel, same, a=left, b=right, c=result)
                assert truth is (result == result)  # no infinity here is its own difference
    for number in numbers:
        smallest = number == -(2**63)
        opposite = Comparison("=", Negate(A), C)
        truth = about(kernel, opposite, a=number, c=0 if smallest else -number)
        assert truth is (None if smallest else True)


def test_distances_are_the_same_to_the_last_digit(kernel: ModuleType) -> None:
    random = Random(7)
    where = Distance((A, B, Literal(52.52), Literal(13.405)))
    points = [(random.uniform(-90, 90), random.uniform(-180, 180)) for _ in range(300)]
    points += [(90, 180), (-90, -180), (52.52, 13.405), (-52.52, -166.595)]
    for latitude, longitude in points:
        metres = distance(latitude, longitude, 52.52, 13.405)
        assert metres is not None
        same = Comparison("=", where, C)
        assert about(kernel, same, a=latitude, b=longitude, c=metres) is True
    for value in (90.1, -91, math.nan, math.inf, True, "1", 2**62):
        assert about(kernel, Comparison(">=", where, Literal(0)), a=value, b=0) is None


def test_like_on_all_short_texts(kernel: ModuleType) -> None:
    random = Random(3)
    texts = ["".join(chars) for n in range(4) for chars in product("a\xe9\U0001f600", repeat=n)]
    patterns = ["".join(items) for n in range(5) for items in product("a\xe9%_", repeat=n)]
    for pattern in patterns:
        condition = Like(A, pattern)
        for one in random.sample(texts, len(texts) if kernel is compiled else 3):
            about(kernel, condition, a=one)


def test_like_with_many_states(kernel: ModuleType) -> None:
    random = Random(4)
    found: Counter[bool | None] = Counter()
    for _ in range(400 if kernel is compiled else 60):
        size = random.choice((30, 62, 63, 64, 65, 127, 128, 129, 300))
        items = random.choices(["a", "b", "\xe9", "_", "%"], (6, 2, 1, 3, 1), k=size)
        fills = {"_": lambda: random.choice("ab\u20ac"), "%": lambda: "ab" * random.randrange(3)}
        one = "".join(fills.get(item, lambda item=item: item)() for item in items)
        if random.random() < 0.5:  # change it a little
            at = random.randrange(len(one))
            one = one[:at] + random.choice(("", "a", "\xe9")) + one[at + random.randrange(2) :]
        found[about(kernel, Like(A, "".join(items)), a=one)] += 1
    assert found[True] > 10 and found[False] > 10


def test_topic_patterns(kernel: ModuleType) -> None:
    levels = ("", "a", "b", "ab")
    names = ["/".join(parts) for n in (1, 2, 3) for parts in product(levels, repeat=n)]
    names = [name for name in names if name] + ["$a", "$a/b", "a/$b"]
    patterns = [*names, "#", "+", "$a/#", "$+", "$a/+"]
    patterns += [f"{name}/{end}" for name in names for end in ("#", "+", "+/#", "+/a")]
    patterns += [f"+/{name}" for name in names]
    random = Random(5)
    for pattern in patterns:
        test = kernel.compile_condition(TopicMatch(pattern))
        for name in random.sample(names, 25 if kernel is compiled else 4):
            got = kernel.examine_selector(test, encode_envelope(Message(name)))
            assert got is topics.matches(pattern, name, exact=True), (pattern, name)


def test_in_finds_its_values_among_many(kernel: ModuleType) -> None:
    values: list[Value] = [*NUMBERS, *OTHERS, *range(100, 200, 3), *map(str, range(50))]
    Random(6).shuffle(values)
    condition = In(A, tuple(map(Literal, values)))
    for value in values:
        assert about(kernel, condition, a=value) is True
    for value in (math.nan, math.inf, 101, 101.5, "x", b"b", Timestamp(7), 2.0**63):
        assert about(kernel, condition, a=value) is False
    assert about(kernel, In(A, (Literal(1), Literal(2))), a=True) is False
    assert about(kernel, condition) is None


def test_long_strings_are_not_searched(kernel: ModuleType) -> None:
    long = "x" * PATTERN_TEXT_MAX
    wide = "\u20ac" * (PATTERN_TEXT_MAX // 3)  # one byte less than the limit
    for condition in (Like(A, "%x"), Like(A, "_%"), Regexp(A, "x|."), Not(Regexp(A, "y"))):
        assert about(kernel, condition, a=long) is True
        assert about(kernel, condition, a=long + "x") is None
    assert about(kernel, Like(A, "%_"), a=wide) is True
    assert about(kernel, Regexp(A, "^."), a=wide + "x") is True
    assert about(kernel, Regexp(A, "^."), a=wide + "xx") is None
    # Where nothing is searched for there is no limit: a canonical selector has STARTS_WITH.
    for pattern in ("x%", "x%%", "%"):
        assert about(kernel, Like(A, pattern), a=long + "x") is True
    assert about(kernel, Like(A, long), a=long + "x") is False
    # A large expression has a lower one.
    large = "[xy]{300}"
    assert regex_text_max(large) == PATTERN_TEXT_MAX // 2
    assert about(kernel, Regexp(A, large), a=long[: PATTERN_TEXT_MAX // 2]) is True
    assert about(kernel, Regexp(A, large), a=long[: PATTERN_TEXT_MAX // 2 + 1]) is None
    assert about(kernel, Regexp(A, large), a=5) is False


def test_a_test_has_its_own_regular_expression(kernel: ModuleType) -> None:
    count = 3 * PATTERNS_CACHED
    tests = [kernel.compile_condition(Regexp(A, f"^(x|{k})$")) for k in range(count)]
    before = patterns._regex.cache_info()
    envelope = encode_envelope(Message("t", attributes={"a": "7"}))
    assert [kernel.examine_selector(test, envelope) for test in tests].count(True) == 1
    assert patterns._regex.cache_info() == before
    gone = weakref.ref(tests[0].search)
    del tests[0]
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("form", ["as installed", "interpreted"])
def test_what_the_message_before_had_is_forgotten(form: str) -> None:
    modules: dict[str, ModuleType] = {"matching": matching, "plan": plan}
    if form == "interpreted":
        modules = kernels.load_interpreted()
    index = modules["matching"].Index()  # one scan for all messages
    headers = ("timestamp", "expiration", "correlation", "reply_to", "from")
    texts = ["$type = 7", "$type = 'x'", *(f"${name} IS NOT NULL" for name in headers)]
    numbers = [index.add(modules["plan"].plan_of(each)) for each in texts]
    full = Message(
        "t", type=7, timestamp_us=1, expiration_us=2, correlation="c", reply_to="r", sender="s"
    )
    named = Message("t", type_name="x", sender="s")
    found = [
        sorted(numbers.index(number) for number in index.match(encode_envelope(one)))
        for one in (full, Message("t"), named, Message("t"), full)
    ]
    assert found == [[0, 2, 3, 4, 5, 6], [], [1, 6], [], [0, 2, 3, 4, 5, 6]]
