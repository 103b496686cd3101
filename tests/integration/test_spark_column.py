"""Selectors as Spark columns are what the reference says: on the vectors, and on generated ones.

Both ways in which Spark evaluates an expression are tried, compiled and interpreted, once with
`spark.sql.ansi.enabled` and once without. Java's sine and C's may differ in the last digit: where a
DISTANCE that is a little longer or shorter would change the result, it is counted, not compared.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from regraft.limits import PATTERN_TEXT_MAX
from regraft.model.message import DeliveryMode, Message, Timestamp, Value
from regraft.model.selector import Selector, Truth, ast, text_of
from regraft.model.selector.words import HEADERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "spark-selectors.md"
VECTORS = json.loads((ROOT / "tests" / "vectors" / "selectors.json").read_text(encoding="utf-8"))
COLUMNS_AT_ONCE = 50
# 10000 take a while, and REGRAFT_SPARK_MEMORY=8g
SELECTORS = int(os.environ.get("REGRAFT_SELECTORS", "1500"))
BAND = 1e-6  # by how much, relatively, a generated distance must not decide


pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

# What these need may be missing.
from pyspark.sql.types import LongType, StructField, StructType  # noqa: E402

from regraft.pipeline.rows import SCHEMA, row_of  # noqa: E402
from regraft.pipeline.selecting import column_of  # noqa: E402

MODES = {
    "ansi, compiled": ("true", "CODEGEN_ONLY"),
    "not ansi, interpreted": ("false", "NO_CODEGEN"),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, spark: Any) -> Iterator[str]:
    ansi, factory = MODES[request.param]
    wanted = {
        "spark.sql.ansi.enabled": ansi,
        "spark.sql.codegen.factoryMode": factory,
        "spark.sql.codegen.wholeStage": "false",  # it has the same code, but is slow to compile
    }
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield request.param
    for name in wanted:
        spark.conf.unset(name)


# ------------------------------------------------------------------------ comparing


def frame_of(spark: Any, messages: Sequence[Message]) -> Any:
    schema = StructType([StructField("index", LongType()), *SCHEMA.fields])
    rows = [(index, *row_of(message)) for index, message in enumerate(messages)]
    return spark.createDataFrame(rows, schema).coalesce(1).cache()


class Comparison:
    """Selectors and messages, each to be evaluated with each, by Spark and by the reference."""

    def __init__(
        self,
        spark: Any,
        selectors: Sequence[Selector],
        messages: Sequence[Message],
        band: float = BAND,
    ) -> None:
        self.selectors = selectors
        self.messages = messages
        self.columns = [column_of(one).alias(f"c{at}") for at, one in enumerate(selectors)]
        self.frame = frame_of(spark, messages)
        self.expected: dict[tuple[int, int], Truth] = {}
        self.left_out = 0
        for at, selector in enumerate(selectors):
            truths = list(map(selector.evaluate, messages))
            firm = [True] * len(messages)
            if any(isinstance(node, ast.Distance) for node, _ in ast.walk(selector.ast)):
                firm = are_firm(selector, messages, truths, band)
            self.left_out += firm.count(False)
            self.expected |= {(at, index): truths[index] for index, yes in enumerate(firm) if yes}

    def said(self) -> Iterator[tuple[int, int, Truth]]:
        """The index of a selector, that of a message, and what Spark says."""

        def asked(start: int) -> list[Any]:
            chosen = self.columns[start : start + COLUMNS_AT_ONCE]
            return self.frame.select("index", *chosen).collect()  # type: ignore[no-any-return]

        starts = range(0, len(self.columns), COLUMNS_AT_ONCE)
        with ThreadPoolExecutor(2) as pool:  # Spark plans a query with one thread
            for start, rows in zip(starts, pool.map(asked, starts), strict=True):
                for index, *truths in rows:
                    for offset, truth in enumerate(truths):
                        yield start + offset, index, truth

    def check(self) -> str:
        """Compare all pairs; a line that says how many."""
        compared: Counter[Truth] = Counter()
        wrong = []
        for at, index, truth in self.said():
            if (at, index) in self.expected:
                compared[truth] += 1
                if truth is not self.expected[at, index]:
                    wrong.append((self.selectors[at].text, self.messages[index], truth))
        assert wrong == []
        assert compared.total() == len(self.expected)
        # Otherwise nothing much was compared.
        assert min(compared[truth] for truth in (True, False, None)) > len(self.expected) // 20
        assert self.left_out < len(self.expected) // 100
        return f"{compared.total()} pairs compared, {self.left_out} left out"


def are_firm(
    selector: Selector, messages: Sequence[Message], truths: Sequence[Truth], band: float
) -> list[bool]:
    """For each message whether it is the same with distances that are a little different."""
    module = sys.modules["regraft.model.selector.evaluate"]  # the package has a function so called
    plain = module.distance
    firm = [True] * len(messages)
    for factor in (1 - band, 1 + band):
        with pytest.MonkeyPatch.context() as patch:

            def other(*degrees: Value | None, factor: float = factor) -> float | None:
                metres = plain(*degrees)
                return None if metres is None else metres * factor

            patch.setattr(module, "distance", other)
            for index, message in enumerate(messages):
                firm[index] &= selector.evaluate(message) is truths[index]
    return firm


# --------------------------------------------------------------------------- vectors

READ: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "string": str, "bytes": bytes.fromhex,
    "timestamp": Timestamp,
}  # fmt: skip
RESULTS = {"true": True, "false": False, "unknown": None}


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


@pytest.fixture(scope="module")
def vectors(spark: Any) -> Comparison:
    """All selectors of the vectors with all of their messages."""
    rows = [vector for vector in VECTORS["vectors"] if "result" in vector]
    selectors: dict[Selector, None] = {}
    messages: dict[str, Message] = {}
    for row in rows:
        selector = Selector.parse(row["selector"])
        message = message_of(row["message"])
        assert selector.evaluate(message) is RESULTS[row["result"]]
        selectors[selector] = None
        messages[json.dumps(row["message"], sort_keys=True)] = message
    print(f"{len(rows)} vectors: {len(selectors)} selectors with {len(messages)} messages")
    # They were written so that a metre does not matter.
    return Comparison(spark, list(selectors), list(messages.values()), band=1e-9)


@pytest.mark.usefixtures("mode")
def test_the_vectors(vectors: Comparison) -> None:
    print(vectors.check())


# ------------------------------------------------------------------------- generated

NUMBERS = (0, 1, -1, 5, 7, 48, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.5, 5.0, -2.5,
           48.1, 2.0**53, 2.0**63, -(2.0**63), 1e300, -1e300, 5e-324, 9.3e18, -9.3e18)  # fmt: skip
TEXTS = ("", "a", "b", "ab", "a\nb", "\n", "grüß", "GRÜSS", "\U0001f600", "a\U0001f600b", "a%b",
         "a_b", "\\", "error 42", "Error: 7", "x-1", "k\u212a", "\u2028", "a/b", "12-34",
         )  # fmt: skip
OTHERS = (True, False, Timestamp(0), Timestamp(5), Timestamp(-(2**62)), b"", b"a", b"\x80")
TOPICS = ("a", "t", "a/b", "a/b/c", "/", "$bus/a", "grüß/\U0001f600")
LIKES = ("'%'", "'a%'", "'%b'", "'a_b'", "'_'", "'%_%'", "'a!%%' ESCAPE '!'", "'%\\%'", "'%a%b%'",
         "'__%'", "'a\n_'", "'%!_%' ESCAPE '!'", "'%r%2'", f"'%{'a_' * 150}'")  # fmt: skip
REGEXES = (
    *("a", "^a", "b$", "^a.b$", "(?s)^a.b$", "[0-9]+", "^[a-z]+ [0-9]{1,3}$", "(?i)ERROR", "^$"),
    *(r"\berror\b", r"^\w+$", r"\D-\D|^\d+-\d+$", "^(error|Error:) ?[0-9]", "[^a]", "\U0001f600"),
    *("(?i)k+$", r"\S\s\S", "a.*b", "(a|b)+", r"\pL\pN?", "[[:alpha:]]", "(?i)ü", "(?m)^b"),
    *("^a{1,200}$", "^(a|b){1,300}$"),  # large ones are unknown for shorter strings
)
PATTERNS = ("#", "a", "a/#", "+", "+/b", "a/+/#", "$bus/#", "+/+", "/", "grüß/+")
NAMES = ("a", "b", "c", "text", "lat", "lon", "ctx.a", "ctx.text", "missing", '"a b"')
NUMERIC = ("a", "b", "lat", "lon", "ctx.a", "$priority", "$size", "$type")


def text(value: Value) -> str:
    return text_of(ast.Literal(value))


def literal(random: Random) -> str:
    value = random.choice((*NUMBERS, *random.choices(TEXTS, k=8), *OTHERS))
    # What is before the year 1 cannot be written.
    return text(Timestamp(0) if value == Timestamp(-(2**62)) else value)


def name(random: Random) -> str:
    return random.choice((*NAMES, *NAMES, *(f"${header}" for header in HEADERS)))


def number(random: Random, depth: int = 0) -> str:
    shape = random.randrange(10 if depth < 2 else 6)
    if shape < 4:
        return random.choice(NUMERIC)
    if shape < 6:
        return text(random.choice(NUMBERS))
    if shape < 8:
        symbol = random.choice("+-*/")
        return f"({number(random, depth + 1)} {symbol} {number(random, depth + 1)})"
    return f"-({number(random, depth + 1)})" if shape == 8 else distance(random)


def distance(random: Random) -> str:
    there = random.choice(("48.137, 11.575", "0, 0", "-90, 180", "a, b", "lat, 11.5"))
    return f"DISTANCE(lat, lon, {there})"


def simple(random: Random) -> str:
    """A condition without AND, OR and NOT."""
    symbol = random.choice(("=", "<>", "<", "<=", ">", ">="))
    match random.randrange(12):
        case 0:
            return f"{name(random)} {symbol} {literal(random)}"
        case 1:
            return f"{name(random)} {symbol} {name(random)}"
        case 2:
            return f"{number(random)} {symbol} {number(random)}"
        case 3:
            return f"{distance(random)} {symbol} {random.choice((0, 1e3, 5e5, 1.5e7, 'a'))}"
        case 4:
            return f"{number(random)} BETWEEN {number(random)} AND {literal(random)}"
        case 5:
            items = (literal(random) for _ in range(random.choice((1, 3, 15))))
            return f"{name(random)} IN ({', '.join(items)})"
        case 6:
            return f"{name(random)} IS NULL"
        case 7:
            operand = random.choice(("text", "text", "a", "$from", "$type"))
            return f"{operand} LIKE {random.choice(LIKES)}"
        case 8:
            operand = random.choice(("text", "text", "ctx.text", "$topic"))
            return f"{operand} REGEXP '{random.choice(REGEXES)}'"
        case 9:
            return f"STARTS_WITH({name(random)}, {text(random.choice(TEXTS))})"
        case 10:
            return f"TOPIC('{random.choice(PATTERNS)}')"
    return random.choice(("a", "b", "c", "$redelivered"))


def condition(random: Random, depth: int = 0) -> str:
    shape = random.randrange(10)
    if shape < 6 or depth == 2:
        return simple(random)
    if shape == 6:
        return f"NOT ({condition(random, depth + 1)})"
    terms = [f"({condition(random, depth + 1)})" for _ in range(random.randint(2, 3))]
    return random.choice((" AND ", " OR ")).join(terms)


def message(random: Random) -> Message:
    pool = (*NUMBERS, *NUMBERS, *TEXTS, *OTHERS, *OTHERS, math.nan, math.inf, -math.inf)
    long = ("a" * PATTERN_TEXT_MAX, "a" * PATTERN_TEXT_MAX + "b", "é" * (PATTERN_TEXT_MAX // 2 + 1))

    def some(*names: str) -> dict[str, Value]:
        return {one: random.choice(pool) for one in names if random.random() < 0.8}

    attributes = some("a", "b", "c", "a b")
    attributes["text"] = random.choice((*TEXTS, *TEXTS, *long))
    if random.random() < 0.8:
        attributes["lat"] = random.choice((48, 48.2, -90, 90.0, 0, 91, -12.25, math.nan, "0"))
        attributes["lon"] = random.choice((11, 11.6, -180, 180.0, 0, -181, 77.5, True))
    return Message(
        random.choice(TOPICS),
        bytes(random.choice((0, 1, 5))),
        attributes,
        sender=random.choice(("", "a", "grüß")),
        type=random.choice((0, 1, 2**32 - 1)),
        type_name=random.choice(("", "a", "b")),
        timestamp_us=random.choice((None, 0, 5, -(2**62))),
        priority=random.choice((0, 4, 5)),
        expiration_us=random.choice((None, 0, 2**62)),
        delivery_mode=random.choice(list(DeliveryMode)),
        reply_to=random.choice(("", "a")),
        correlation=random.choice(("", "a", "b")),
        context=some("a", "text"),
    )


@pytest.fixture(scope="module")
def generated(spark: Any) -> Comparison:
    random = Random(20261116)
    selectors: dict[Selector, None] = {}
    while len(selectors) < SELECTORS:
        selectors[Selector.parse(condition(random))] = None
    return Comparison(spark, list(selectors), [message(random) for _ in range(400)])


@pytest.mark.usefixtures("mode")
def test_generated_selectors_and_messages(generated: Comparison) -> None:
    asked = sum("truth(" in str(column) for column in generated.columns)
    print(f"{generated.check()}; {asked} selectors ask the reference")
    assert 0.05 * SELECTORS < asked < 0.25 * SELECTORS


# --------------------------------------------------------------------------- numbers


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Comparison:
    """Each number with each: where ints and floats meet, few values are awkward."""
    near = (2**53 - 1, 2**63 - 1024, 2.0**63 - 1024, -(2**53) - 1, 4.5, -0.5, math.nan, math.inf)
    pool = (*NUMBERS, *near, -math.inf, None)
    messages = [
        Message("t", attributes={k: v for k, v in (("a", a), ("b", b)) if v is not None})
        for a in pool
        for b in pool
    ]
    symbols = ("=", "<>", "<", "<=", ">", ">=")
    texts = [f"a {symbol} b" for symbol in symbols]
    texts += [f"a {one} b {symbol} 5" for one in "+-*/" for symbol in ("=", "<", ">=")]
    texts += [f"a + b {symbol} a * b" for symbol in symbols]
    # Spark must not work these out in another order, in which something else overflows.
    most = 2**63 - 1
    texts += [f"a {one} {two} {one} (a {one} b) <= 48" for one in "+*" for two in (-1, most)]
    texts += [f"a + {most} + (b + -{most}) = a + b", "(a * b) * (a * -1) <= 48"]
    literals = ("5", "4.5", "9007199254740993", "9223372036854775807", "9.3e18", "-9.3e18")
    texts += [f"a {symbol} {one}" for symbol in symbols for one in literals]
    return Comparison(spark, [Selector.parse(text) for text in texts], messages)


@pytest.mark.usefixtures("mode")
def test_all_numbers_with_each_other(numbers: Comparison) -> None:
    print(numbers.check())


# ---------------------------------------------------------------------- at the limits


def longest(unit: str) -> Selector:
    """A selector of many parts, joined by what is in turn AND and OR."""
    terms = [f"({unit.format(2 * i)} OR {unit.format(2 * i + 1)})" for i in range(145)]
    return Selector.parse(" AND ".join(terms))


def nested(inner: str, outer: str, times: int) -> str:
    for _ in range(times):
        inner = outer.format(inner)
    return inner


def test_selectors_at_the_limits(spark: Any) -> None:
    """They are neither too much for Spark's recursion nor for its compiler."""
    selectors = [
        longest("a<>{}"),
        Selector.parse(f"a IN ({', '.join(map(str, range(1000)))})"),
        Selector.parse(f"b IN ({', '.join(f'{i}.5' for i in range(999))}, 0)"),
        Selector.parse(f"text IN ({', '.join(text(f'a{i}') for i in range(700))})"),
        Selector.parse(nested("a = 1", "(b = 1 OR NOT ({}))", 15)),
        Selector.parse("a" + " + a" * 7 + " > 1"),
        Selector.parse("a" + " + b" * 45 + " > 1"),
        Selector.parse("a" + " / b" * 45 + " = 0"),
        Selector.parse("a / b / a > 0"),
        Selector.parse(nested("a", "DISTANCE({}, 0, a, 1)", 40) + " > 0"),
        Selector.parse(nested("1.5", "DISTANCE({}, 0, 1, 1)", 40) + " > 0"),
        Selector.parse(f"text LIKE '{'a_' * 99}%'"),
        Selector.parse(f"text LIKE '{'a%' * 99}%'"),
        Selector.parse(f"text LIKE '{'a_' * 1500}%'"),
        Selector.parse("text REGEXP '^a{1,180}' OR text LIKE 'a%a'"),
        Selector.parse("text REGEXP '" + "|".join(f"^a{i}[0-9]$" for i in range(25)) + "'"),
    ]
    sizes = (198, 4096, 4097, 8192, PATTERN_TEXT_MAX, PATTERN_TEXT_MAX + 1)
    texts = ("a1", "a699", *("a" * size for size in sizes))
    values = (1, 301, 2.5, -0.0, math.nan, 2**63 - 1)
    messages = [
        Message("t", attributes={"a": value, "b": value, "text": one})
        for value in values
        for one in texts
    ]
    print(Comparison(spark, selectors, [*messages, Message("t")]).check())


# ------------------------------------------------------------------------ data frames


def test_columns_with_other_names(spark: Any) -> None:
    frame = spark.createDataFrame(
        [(row_of(Message("t", attributes={"a": 1}, context={"b": 2}, type_name="x")),)],
        StructType([StructField("message", SCHEMA)]),
    )
    selector = Selector.parse("a = 1 AND ctx.b = 2 AND $topic = 't' AND $type = 'x'")
    column = column_of(
        selector,
        attributes="message.attributes",
        context="message.context",
        headers={name: f"message.{name}" for name in SCHEMA.names},
    )
    assert frame.where(column).count() == 1


def test_what_is_asked_of_a_header_alone_is_pushed_down_to_files(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [Message("a/b", priority=priority) for priority in range(10)]
    path = str(tmp_path / "messages")
    frame_of(spark, messages).write.parquet(path)
    frame = spark.read.parquet(path)
    chosen = frame.where(
        column_of(Selector.parse("$priority > 3 AND $topic = 'a/b' AND $size < 9.5"))
    )
    assert chosen.count() == 6
    chosen.explain()
    pushed = re.findall(r"PushedFilters: \[(.*)\]", capsys.readouterr().out)[0]
    for part in ("GreaterThan(priority,3)", "EqualTo(topic,a/b)", "LessThan(size,10)"):
        assert part in pushed


def test_the_page_about_it(spark: Any) -> None:
    """The blocks of the page are one program, which says what it prints."""
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)
    program = "\n".join(body for language, body in blocks if language == "python")
    expected = "".join(body for language, body in blocks if language == "text")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == expected
