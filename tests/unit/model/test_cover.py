"""Checks covering and overlapping of conditions against what messages say."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_selector_laws import conditions, messages

from regraft.model.message import DeliveryMode, Message, Timestamp, Value
from regraft.model.selector import Condition, Selector, canonical, evaluate, values_of
from regraft.model.selector.ast import INT_MAX, INT_MIN, And, Not, Or
from regraft.model.selector.cover import covers, form_covers, form_of, form_overlaps, overlaps
from regraft.model.selector.literals import value_text
from regraft.model.selector.shapes import Shape, ShapeKind, find, prefix_cuts
from regraft.model.selector.valuesets import Kind, after
from regraft.model.topic_cover import pattern_covers, pattern_overlaps
from regraft.model.topics import matches

RELATIONS = ("=", "<>", "<", "<=", ">", ">=")
NUMBERS = (-1, 0, 1, 5, 5.5, 6, 2**53, 2**53 + 1, 2.0**53 + 2, INT_MAX, INT_MIN, 2.0**63, 1e300)
STRINGS = ("", "a", "ab", "abc", "b", "\U0010ffff", "\ud7ff", "é")
ALWAYS = (True, False, math.nan, math.inf, -math.inf, -0.0, "", "x", b"", b"x", Timestamp(-1))
OTHERS: tuple[Value, ...] = (True, False, b"", b"a", b"a\0", Timestamp(0), Timestamp(7))

Truths = int  # one bit for each message of a list


def truths(tree: Condition, told: Sequence[Message]) -> Truths:
    return sum(
        1 << place
        for place, message in enumerate(told)
        if evaluate(tree, values_of(message)) is True
    )


def numbers_around(number: float) -> Iterable[Value]:
    yield number
    double = float(number)
    yield from (double, math.nextafter(double, math.inf), math.nextafter(double, -math.inf))
    yield from (n for n in (int(number) - 1, int(number) + 1) if INT_MIN <= n <= INT_MAX)


def strings_around(text: str) -> Iterable[Value]:
    yield from (text, text + "\0", text + "\0\0", text + "a", text + "\U0010ffff")
    if text:
        last = ord(text[-1])
        if last:
            yield from (text[:-1] + chr(last - 1), text[:-1] + chr(last - 1) + "z")
        if last < 0x10FFFF:
            yield text[:-1] + chr(last + 1)
        yield text[:-1]


def values_around(literals: Iterable[Value]) -> list[Value]:
    """All values that could make a difference to tests with these literals."""
    found: dict[tuple[type, str], Value] = {}
    for literal in (*literals, *ALWAYS):
        near: Iterable[Value] = (literal,)
        if isinstance(literal, str):
            near = strings_around(literal)
        elif isinstance(literal, bytes):
            near = (literal, literal + b"\0", literal + b"\0\0", literal + b"\xff")
        elif isinstance(literal, Timestamp):
            near = (Timestamp(literal.us + step) for step in (-1, 0, 1))
        elif not isinstance(literal, bool) and math.isfinite(literal):
            near = numbers_around(literal)
        for value in near:
            found[type(value), repr(value)] = value
    return list(found.values())


def attribute_messages(names: str, values: Sequence[Value]) -> list[Message]:
    """Every combination of values, and of the lack of one."""
    return [
        Message("t", attributes={n: v for n, v in zip(names, combination, strict=True) if v != "-"})
        for combination in product([*values, "-"], repeat=len(names))
    ]


def simple_test(random: Random, name: str, literals: Sequence[Value]) -> str:
    """A test of a name with literals."""

    def some() -> str:
        return value_text(random.choice(literals))

    shape = random.randrange(10)
    if shape < 5:
        return f"{name} {random.choice(RELATIONS)} {some()}"
    if shape == 5:
        return f"{name} BETWEEN {some()} AND {some()}"
    if shape == 6:
        return f"{name} IN ({', '.join(some() for _ in range(random.randint(1, 4)))})"
    if shape == 7:
        return f"{name} IS {random.choice(('NOT ', ''))}NULL"
    strings = [literal for literal in literals if isinstance(literal, str)] or [""]
    return f"STARTS_WITH({name}, {value_text(random.choice(strings))})"


def conjunction(random: Random, tests: Sequence[Callable[[], str]], negated: float = 0) -> str:
    terms = [random.choice(tests)() for _ in range(random.randint(1, 3))]
    return " AND ".join(f"NOT ({t})" if random.random() < negated else t for t in terms)


def disagreements(texts: Iterable[str], told: Sequence[Message], exact: bool) -> list[str]:
    """The pairs of which the answers are wrong; of not `exact` ones only unsafe answers are."""
    known = []
    for text in dict.fromkeys(texts):
        tree = Selector.parse(text).ast
        known.append((text, form_of(tree), truths(tree, told)))
    found = []
    for (text_a, a, true_a), (text_b, b, true_b) in product(known, repeat=2):
        covered, both = true_b & ~true_a == 0, true_a & true_b != 0
        answer, overlap = form_covers(a, b), form_overlaps(a, b)
        if (answer and not covered) or (both and not overlap):
            found.append(f"unsafe: {text_a} | {text_b} | {answer=} {overlap=}")
        if exact and (answer != covered or overlap != both):
            found.append(f"incomplete: {text_a} | {text_b} | {answer=} {overlap=}")
    return found


# ------------------------------------------------------- exact for conjunctions


@pytest.mark.parametrize(
    "literals", [NUMBERS, STRINGS, (*OTHERS, 0, 1, "a"), (5, 5.5, "a", "ab", True, b"a")]
)
def test_tests_of_one_name_are_compared_exactly(literals: tuple[Value, ...]) -> None:
    random = Random(6)
    told = attribute_messages("a", values_around(literals))
    tests = [lambda: simple_test(random, "a", literals)]
    texts = [conjunction(random, tests, negated=0.3) for _ in range(80)]
    assert disagreements(texts, told, exact=True) == []


def test_alternatives_of_one_name_are_compared_exactly() -> None:
    random = Random(7)
    literals = (0, 1, 5, 5.5, "a", "ab", True)
    told = attribute_messages("a", values_around(literals))
    tests = [lambda: simple_test(random, "a", literals)]
    texts = [
        " OR ".join(conjunction(random, tests, negated=0.3) for _ in range(random.randint(2, 3)))
        for _ in range(70)
    ]
    assert disagreements(texts, told, exact=True) == []


def test_conjunctions_of_two_names_are_compared_exactly() -> None:
    random = Random(8)
    literals = (1, 2, "a", True)
    values = (0, 1, 1.5, 2, 3, math.nan, "", "a", "a\0", "b", True, False, b"")
    told = attribute_messages("ab", values)
    tests = [lambda: simple_test(random, random.choice("ab"), literals)]
    texts = [conjunction(random, tests, negated=0.2) for _ in range(70)]
    assert disagreements(texts, told, exact=True) == []


LEVELS = ("a", "b", "", "$a", "c")
ALL_TOPICS = ["/".join(t) for n in (1, 2, 3, 4) for t in product(LEVELS, repeat=n) if t != ("",)]
PATTERNS = ("#", "a", "+", "a/#", "a/+", "+/b", "a/+/#", "+/+", "+/a/#", "$a/#", "$a/+", "+/+/b")


def test_tests_of_the_topic_are_compared_exactly() -> None:
    random = Random(9)
    literals = ("a", "a/b", "b", "$a/b", "a/", "ab")
    near = [str(value) for text in literals for value in strings_around(text)]
    shallow = [topic for topic in ALL_TOPICS if topic.count("/") < 2]
    told = [
        Message(topic + rest)
        for topic in dict.fromkeys((*shallow, *near, "!", "a!", "a0", "a0/b", "$", "$b"))
        for rest in ("", "/a", "/b", "/x", "/x/b", "/a/b", "/x/x")
        if topic + rest
    ]
    tests = [
        lambda: simple_test(random, "$topic", literals),
        lambda: f"TOPIC('{random.choice(PATTERNS)}')",
        lambda: f"TOPIC('{random.choice(PATTERNS)}')",
    ]
    texts = [conjunction(random, tests, negated=0.25) for _ in range(55)]
    assert disagreements(texts, told, exact=True) == []


def test_likes_are_compared_exactly() -> None:
    random = Random(10)
    short = ["".join(t) for n in range(7) for t in product("abc", repeat=n)]
    # Patterns do not look at strings that are this long.
    long = [head + middle * 20_000 for head in short[:13] for middle in "abc"]
    told = attribute_messages("a", [*short, *long])
    pieces = ("a", "b", "%", "_", "%")
    tests = [
        lambda: f"a LIKE '{''.join(random.choice(pieces) for _ in range(random.randint(2, 4)))}'",
        lambda: f"STARTS_WITH(a, '{random.choice('ab')}')",
    ]
    texts = [conjunction(random, tests) for _ in range(45)]
    assert disagreements(texts, told, exact=True) == []
    # What is told does not show every difference between these.
    tests += [lambda: f"a {random.choice(RELATIONS)} '{random.choice(('a', 'ab', 'b'))}'"]
    mixed = [conjunction(random, tests, negated=0.3) for _ in range(25)]
    assert disagreements(mixed, told[::3], exact=False) == []


def header_messages() -> list[Message]:
    return [
        Message("t", bytes(size), priority=priority, type=number, type_name=name, sender=sender,
                expiration_us=moment, delivery_mode=mode)
        for size, priority, (number, name), sender, moment, mode in product(
            (0, 1, 2), (0, 4, 5, 9), ((0, ""), (1, ""), (0, "x")), ("", "s"), (None, 5),
            DeliveryMode,
        )
    ]  # fmt: skip


HEADER_TESTS = (
    "$size >= 0", "$size > 0.5", "$size >= 1", "$size = 1", "$size BETWEEN 0.5 AND 1.5",
    "$size < 2",
    "$priority IS NOT NULL", "$priority BETWEEN 0 AND 9", "$priority > 4", "$priority >= 4.5",
    "$priority > 4 AND $priority < 5", "$priority IN (4, 5)", "$priority = 'x'",
    "NOT $priority > 4",
    "$delivery_mode IN ('PERSISTENT', 'NON_PERSISTENT')", "$delivery_mode = 'PERSISTENT'",
    "$delivery_mode <> 'NON_PERSISTENT'", "$redelivered = FALSE", "$redelivered = TRUE",
    "$from IS NULL", "NOT ($from <> 's')", "$from <> ''", "$from = ''", "$from IS NOT NULL",
    "$type IS NULL", "$type = 0", "$type < 1", "$type <> 'x'", "NOT ($type = 0)", "$type >= 0",
    "$expiration IS NULL", "$expiration > 1", "$topic <> ''", "$topic IS NULL", "TRUE", "FALSE",
)  # fmt: skip


def test_it_is_known_what_headers_can_be() -> None:
    told = header_messages()
    unsafe = disagreements(HEADER_TESTS, told, exact=False)
    assert unsafe == []
    # Where one name is all that is asked, the messages above show every difference.
    whole = [text for text in HEADER_TESTS if text.startswith("$priority") or "$size" in text]
    pairs = [d for d in disagreements(whole, told, exact=True) if d.startswith("incomplete")]
    assert pairs == []
    for text in ("$size >= 0", "$priority BETWEEN 0 AND 9", "$redelivered = FALSE", "$topic <> ''"):
        assert covers(Selector.parse(text).ast, Selector.parse("TRUE").ast), text
    for text in ("$priority > 4 AND $priority < 5", "$redelivered = TRUE", "$from = ''"):
        assert not overlaps(Selector.parse(text).ast, Selector.parse("TRUE").ast), text


# --------------------------------------------------------- sound for all others

TERMS = (
    "a + 1 > b", "a * 2 = 4", "a > b", "NOT (a > b)", "-a < 1", "a LIKE '%b'", "a LIKE 'a_%'",
    "a REGEXP 'b'", "NOT (a REGEXP 'b')", "DISTANCE(a, b, 1, 1) < 1000", "1 / 0 = 1", "1 / 2 = 0",
    "a IS NULL", "b IS NOT NULL", "a = b", "$topic LIKE 'a/%'", "TOPIC('a/+')", "a IN (1, 'ab')",
    "b >= 1", "b < 2", "a = 'ab'", "a = TRUE", "STARTS_WITH(a, 'a')", "a / b > 0",
)  # fmt: skip


def nested(random: Random, depth: int = 0) -> str:
    if depth > 2 or random.random() < 0.35:
        return random.choice(TERMS)
    if random.random() < 0.25:
        return f"NOT ({nested(random, depth + 1)})"
    terms = [f"({nested(random, depth + 1)})" for _ in range(random.randint(2, 3))]
    return random.choice((" AND ", " OR ")).join(terms)


def test_no_answer_is_unsafe() -> None:
    random = Random(11)
    values: tuple[Value, ...] = (0, 1, 2, 1.5, math.nan, "a", "ab", "b", True, 91, -1)
    told = [
        Message(topic, attributes=message.attributes)
        for message in attribute_messages("ab", values)
        for topic in ("a/b", "x")
    ]
    texts = [*TERMS, *(nested(random) for _ in range(50))]
    assert disagreements(texts, told, exact=False) == []


@settings(max_examples=25)
@given(conditions, conditions, st.lists(messages(), min_size=1, max_size=4))
def test_no_answer_is_unsafe_for_made_up_trees(
    one: Condition, other: Condition, told: list[Message]
) -> None:
    a, b = canonical(one), canonical(other)
    for wide, narrow in ((a, b), (a, canonical(And((a, b)))), (canonical(Or((a, b))), b)):
        covered, overlap = covers(wide, narrow), overlaps(wide, narrow)
        for message in told:
            values = values_of(message)
            if evaluate(narrow, values) is True:
                assert not covered or evaluate(wide, values) is True
                assert overlap or evaluate(wide, values) is not True


@settings(max_examples=25)
@given(conditions, conditions)
def test_a_condition_covers_itself_and_its_conjunctions(one: Condition, other: Condition) -> None:
    a = canonical(one)
    assert covers(a, a)
    assert covers(a, canonical(And((one, other))))
    assert overlaps(a, a) or not overlaps(a, canonical(Or((one, Not(one)))))


# ----------------------------------------------------------------------- cases

COVERING = [
    ("TRUE", "a > 1"),
    ("a > 1", "FALSE"),
    ("a > 5", "a > 5 AND b = 1"),
    ("a >= 5", "a > 5"),
    ("a > 9007199254740992", "a >= 9007199254740993"),
    ("a < 9007199254740994.0", "a <= 9007199254740993"),
    ("a BETWEEN 1 AND 9", "a IN (1, 9)"),
    ("a IN (1, 2, 3)", "a = 1 OR a = 3"),
    ("a = 1 OR a = 2 OR b = 3", "a IN (1, 2)"),
    ("a IS NOT NULL", "a > 5"),
    ("a IS NOT NULL", "NOT (a > 5)"),
    ("a IS NOT NULL", "a + 1 > b"),
    ("NOT (a = 'x')", "a > 5"),
    ("NOT (a > 5)", "a <= 5"),
    ("NOT (a > 5)", "a = 'x'"),
    ("a <> 1", "a > 1"),
    ("STARTS_WITH(a, 'ab')", "a LIKE 'abc%x'"),
    ("STARTS_WITH(a, 'ab')", "a >= 'ab' AND a < 'ac'"),
    ("a LIKE '%b%'", "a LIKE '%abc'"),
    ("a REGEXP 'b'", "a REGEXP 'b' AND c = 1"),
    ("a REGEXP 'b'", "a IN ('abc', 'b')"),
    ("a + 1 > b", "a + 1 > b AND c > 2"),
    ("a IS NOT NULL OR c = 1", "a REGEXP 'b'"),
    ("TOPIC('a/+')", "$topic = 'a/b'"),
    ("TOPIC('+/b')", "TOPIC('a/+') AND $topic LIKE '%/b'"),
    ("STARTS_WITH($topic, 'a/')", "TOPIC('a/+/c')"),
    ("$topic = 'a/b'", "TOPIC('a/+') AND TOPIC('+/b')"),
    ("a > 1 AND (b = 1 OR c = 1)", "a > 2 AND b = 1"),
    ("a > 5 OR a <= 5 OR b = 1", "a = 3"),
]  # fmt: skip
NOT_COVERING = [
    ("a <= 5", "NOT (a > 5)"),  # a string is not above 5
    ("a <> 1", "NOT (a = 1)"),
    ("a >= 6", "a > 5"),
    ("a > 5", "a IS NOT NULL"),
    ("a <> 1", "b = 1"),
    ("a REGEXP 'b'", "a REGEXP 'bb'"),  # it is so, but not seen
    ("TOPIC('#')", "TOPIC('$a/#')"),
    ("a > 1 OR NOT (a > 1)", "TRUE"),
]
DISJOINT = [
    ("a > 5", "a < 5"),
    ("a = 1", "a = '1'"),
    ("a = 1", "a IS NULL"),
    ("a > 9007199254740992", "a < 9007199254740993"),
    ("a > 0", "a < 5e-324"),
    ("a > 'a'", "a < 'ab' AND NOT (a >= 'a')"),
    ("STARTS_WITH(a, 'b')", "a LIKE 'a%b'"),
    ("a LIKE 'a%'", "NOT (a LIKE '%')"),
    ("a REGEXP 'b' AND b = 1", "NOT (a REGEXP 'b')"),
    ("a REGEXP 'b'", "a IN ('a', 'c')"),
    ("a > b", "NOT (a > b)"),
    ("a + 1 > 5", "a = 'x'"),
    ("DISTANCE(a, b, 0, 0) < 5", "a > 90"),
    ("TOPIC('a/+')", "TOPIC('+/b/#') AND $topic < 'a'"),
    ("TOPIC('+/b')", "TOPIC('$a/#')"),
    ("a = 1 / 0", "TRUE AND a = 1 / 0 AND a IS NULL"),
    ("1 / 0 = 1", "TRUE"),
]


@pytest.mark.parametrize(("wide", "narrow"), COVERING)
def test_covering(wide: str, narrow: str) -> None:
    assert covers(Selector.parse(wide).ast, Selector.parse(narrow).ast)


@pytest.mark.parametrize(("one", "other"), NOT_COVERING)
def test_not_covering(one: str, other: str) -> None:
    assert not covers(Selector.parse(one).ast, Selector.parse(other).ast)


@pytest.mark.parametrize(("one", "other"), DISJOINT)
def test_disjoint(one: str, other: str) -> None:
    assert not overlaps(Selector.parse(one).ast, Selector.parse(other).ast)
    assert not overlaps(Selector.parse(other).ast, Selector.parse(one).ast)


def test_what_has_too_many_alternatives_covers_itself_and_more_of_itself() -> None:
    large = " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(12))
    tree = Selector.parse(large).ast
    assert len(form_of(tree)) <= 32
    assert covers(tree, tree)
    assert covers(tree, Selector.parse(f"{large} AND c = 1").ast)
    assert not covers(tree, Selector.parse("c = 1").ast)
    assert overlaps(tree, Selector.parse("c = 1").ast)
    many = Selector.parse(" OR ".join(f"a{n} = 1 AND b = {n}" for n in range(100))).ast
    assert covers(many, many)


def test_many_alternatives_of_one_name_are_one_set() -> None:
    wide = Selector.parse(" OR ".join(f"a = {n}" for n in range(300))).ast
    narrow = Selector.parse(f"a IN ({', '.join(str(n) for n in range(0, 300, 3))})").ast
    assert covers(wide, narrow) and not covers(narrow, wide)
    assert len(form_of(wide)) == 1


def test_a_walk_that_takes_too_long_says_so() -> None:
    shapes = [Shape(ShapeKind.LIKE, f"%a{'_' * n}b%") for n in (12, 13)]
    asked = frozenset({(shapes[0], True), (shapes[1], False), (Shape(ShapeKind.LIKE, "%c"), False)})
    assert find(prefix_cuts("c"), asked) is not None
    a, b = (Selector.parse(f"x LIKE '{shape.pattern}'").ast for shape in shapes)
    assert covers(a, a) and overlaps(a, b) and not covers(a, b)


@pytest.mark.parametrize("number", [0, -1, 2**53, 2**53 + 1, INT_MAX, INT_MIN, 5e-324, -1e300, 0.5])
def test_nothing_is_between_a_number_and_the_next(number: float) -> None:
    following = after(Kind.NUMBER, number)
    assert following > number
    near = [n for n in numbers_around(number) if isinstance(n, int | float)]
    assert not [n for n in near if number < n < following]
    assert math.isinf(following) or not math.isnan(float(following))


# ---------------------------------------------------------------- topic patterns


def test_patterns_are_compared_exactly() -> None:
    names = ("a", "b", "+", "$a", "")
    patterns = ["", "#"]
    for count in (1, 2, 3):
        for levels in product(names, repeat=count):
            patterns += ["/".join(levels), "/".join((*levels, "#"))]
    random = Random(12)
    forms = [(p, e) for p in dict.fromkeys(patterns) for e in (True, False)]
    taken = {
        (pattern, exact): {t for t in ALL_TOPICS if matches(pattern, t, exact)}
        for pattern, exact in random.sample(forms, 130)
    }
    for (a, a_exact), (b, b_exact) in product(taken, repeat=2):
        wide, narrow = taken[a, a_exact], taken[b, b_exact]
        case = (a, a_exact, b, b_exact)
        assert pattern_covers(a, b, a_exact, b_exact) is (narrow <= wide), case
        assert pattern_overlaps(a, b, a_exact, b_exact) is bool(narrow & wide), case
