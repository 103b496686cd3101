"""Checks trees, refusals with their places, and the limits of selectors."""

import time

import pytest

from regraft.errors import LocalError
from regraft.limits import (
    NAME_BYTES_MAX,
    SELECTOR_COST_MAX,
    SELECTOR_DEPTH_MAX,
    SELECTOR_IN_MAX,
    SELECTOR_NODES_MAX,
)
from regraft.model.message import Timestamp
from regraft.model.selector import Condition, Literal, Name, NameKind, Selector, cost, parse
from regraft.model.selector.ast import (
    FALSE,
    TRUE,
    And,
    Arithmetic,
    Between,
    Comparison,
    Distance,
    In,
    IsNull,
    Like,
    Negate,
    Not,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)

A, B, C = (Name(NameKind.ATTRIBUTE, name) for name in "abc")
ONE, TWO = Literal(1), Literal(2)
A1, B2 = Comparison("=", A, ONE), Comparison("=", B, TWO)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1", A1),
        ("a", Comparison("=", A, TRUE)),
        ("FALSE", FALSE),
        ("a != 1", Comparison("<>", A, ONE)),
        ("1 >= a", Comparison(">=", ONE, A)),
        ("a = 1 AND b = 2 AND a = 1", And((A1, B2, A1))),
        ("a = 1 OR b = 2 AND a = 1", Or((A1, And((B2, A1))))),
        ("(a = 1 AND b = 2) AND a = 1", And((And((A1, B2)), A1))),
        ("NOT a = 1 AND b = 2", And((Not(A1), B2))),
        ("NOT (a = 1 AND b = 2)", Not(And((A1, B2)))),
        ("a = 1 OR NOT b = 2 AND a = 1", Or((A1, And((Not(B2), A1))))),
        ("a BETWEEN 1 AND b AND a = 1", And((Between(A, ONE, B), A1))),
        ("a NOT BETWEEN 1 AND 2", Not(Between(A, ONE, TWO))),
        ("a NOT IN (1, 'x')", Not(In(A, (ONE, Literal("x"))))),
        ("a LIKE 'x%' ESCAPE '!'", Like(A, "x%", "!")),
        ("a NOT LIKE 'x%'", Not(Like(A, "x%"))),
        ("a REGEXP 'x'", Regexp(A, "x")),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("STARTS_WITH(a, 'x')", StartsWith(A, "x")),
        ("TOPIC('x/#')", TopicMatch("x/#")),
        ("DISTANCE(a, b, 1, 2) < c", Comparison("<", Distance((A, B, ONE, TWO)), C)),
        ("a - b - c = 1", Comparison("=", Arithmetic("-", Arithmetic("-", A, B), C), ONE)),
        ("a + b * c = 1", Comparison("=", Arithmetic("+", A, Arithmetic("*", B, C)), ONE)),
        ("-a * b = 1", Comparison("=", Arithmetic("*", Negate(A), B), ONE)),
        ("- 2 = a", Comparison("=", Literal(-2), A)),
        ("-(2) = a", Comparison("=", Negate(TWO), A)),
        ("a = 1.0", Comparison("=", A, Literal(1.0))),
        ("a = X'0a'", Comparison("=", A, Literal(b"\n"))),
        ("a = TIMESTAMP '1970-01-01T00:00:01Z'", Comparison("=", A, Literal(Timestamp(10**6)))),
        ("ctx.a IS NULL", IsNull(Name(NameKind.CONTEXT, "a"))),
        ("JMSType IS NULL", IsNull(Name(NameKind.HEADER, "type"))),
        ('"JMSType" IS NULL', IsNull(Name(NameKind.ATTRIBUTE, "JMSType"))),
    ],
)
def test_a_tree(text: str, tree: Condition) -> None:
    assert parse(text) == tree
    assert hash(parse(text)) == hash(tree)


def refused(text: str, bytes_max: int = 8192) -> str:
    with pytest.raises(LocalError) as caught:
        Selector.parse(text, bytes_max)
    assert caught.value.code.name == "bad-selector"
    return caught.value.text


def test_a_refusal_shows_the_text_around_it() -> None:
    assert refused("price > 100 AND AND region = 'EU' AND amount < 5") == (
        "at column 17: found `AND`, expected a value or a condition; "
        "near `price > 100 AND AND region = 'EU' AN…`"
    )
    long = refused("a = 1 AND " * 10 + "b IN (x, y) AND c = 3 AND d = 4")
    assert long.startswith("at column 107: found `x`, expected a value: a number, ")
    assert long.endswith("; near `…AND a = 1 AND b IN (x, y) AND c = 3 AND …`")
    assert "found `'" + "x" * 29 + "…`" in refused("a = 1 '" + "x" * 500 + "'")
    assert "near `a =\\n@`" in refused("a =\n@")


def test_the_length_is_limited() -> None:
    assert Selector.parse("a = 1", 5)
    assert refused("a = 10", 5) == "the selector has 6 bytes; limit selector_bytes is 5"
    assert "has 10 bytes" in refused("a = 'éé'", 9)
    assert "8193 bytes" in refused(" " * 8188 + "a = 1")


def test_the_canonical_text_keeps_the_same_limit() -> None:
    text = "abc BETWEEN 1 AND 5"
    canonical = "abc <= 5 AND abc >= 1"
    assert Selector.parse(text, len(canonical)).text == canonical
    reason = refused(text, len(canonical) - 1)
    assert reason == "the selector has 21 bytes in its canonical form; limit selector_bytes is 20"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 4000 + "a",
        "(" * 4000 + "a" + ")" * 4000,
        "NOT " * 2000 + "a",
        "-" * 4000 + "a = 1",
        "-(" * 2000 + "a",
        "a = " + "1 + " * 1000 + "1",
        "a = " + "(" * 90 + "1 + " * 60 + "1" + ") - a - a - a" * 90,
        "a = " + "DISTANCE(" * 500,
        "a = 1 AND (b = 2 OR (" * 200,
        "NOT " * SELECTOR_DEPTH_MAX + "a",
    ],
)
def test_the_depth_is_limited(text: str) -> None:
    reason = refused(text)
    assert reason == "the selector is nested too deeply; limit SELECTOR_DEPTH_MAX is 50"


def nested(depth: int) -> str:
    """AND and OR in one another; the comparison and what it compares are two more levels."""
    text = "a = 0"
    for level in range(depth - 2):
        text = f"a = {level + 1} {'OR' if level % 2 else 'AND'} NOT ({text})"
    return text


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99 + "a" + ")" * 99,
        "NOT " * (SELECTOR_DEPTH_MAX - 2) + "a",
        nested(SELECTOR_DEPTH_MAX // 2),
        "a = " + "1 + " * (SELECTOR_DEPTH_MAX - 2) + "a",
        "a = " + "-(" * (SELECTOR_DEPTH_MAX - 2) + "a" + ")" * (SELECTOR_DEPTH_MAX - 2),
        "a = " + "b - (" * (SELECTOR_DEPTH_MAX - 2) + "a" + ")" * (SELECTOR_DEPTH_MAX - 2),
    ],
)
def test_what_is_just_deep_enough_is_taken_in_canonical_form_too(text: str) -> None:
    selector = Selector.parse(text)
    assert Selector.parse(selector.text) == selector


def test_the_number_of_nodes_is_limited() -> None:
    def tests(count: int) -> str:
        return " OR ".join(f"a={number}" for number in range(count))

    fits = (SELECTOR_NODES_MAX - 1) // 3  # a comparison is three nodes
    assert Selector.parse(tests(fits))
    reason = refused(tests(fits + 1))
    assert reason == "the selector has 1027 parts; limit SELECTOR_NODES_MAX is 1024"
    # What is the same becomes one, and does not count.
    assert Selector.parse(" OR ".join(["a=1"] * 900)).text == "a = 1"


def test_the_values_of_in_are_limited() -> None:
    def one_of(count: int) -> str:
        return f"a IN ({','.join(map(str, range(count)))})"

    assert len(Selector.parse(one_of(SELECTOR_IN_MAX)).names) == 1
    reason = refused(one_of(SELECTOR_IN_MAX + 1))
    assert reason.endswith("IN has more than 1000 values, limit SELECTOR_IN_MAX")


def test_the_length_of_a_name_is_limited() -> None:
    assert Selector.parse("a" * NAME_BYTES_MAX + " = 1")
    for name in ("a" * (NAME_BYTES_MAX + 1), '"' + "é" * 128 + '"', "ctx." + "a" * 256):
        assert "limit NAME_BYTES_MAX" in refused(f"{name} = 1")


def test_the_cost_is_limited() -> None:
    searches = [f"a REGEXP '\\pL{number}'" for number in range(9)]
    assert Selector.parse(" OR ".join(searches[:8]))
    reason = refused(" OR ".join(searches))
    assert f"limit SELECTOR_COST_MAX is {SELECTOR_COST_MAX}" in reason


def test_costs_are_ordered_as_the_work_is() -> None:
    ordered = [
        "TRUE",
        "a = 1",
        "a IN (1, 2, 3)",
        "a LIKE '%x%'",
        "DISTANCE(a, b, 1, 2) < 3",
        "a REGEXP '[a-z]{50}x'",
        "a REGEXP '\\pL'",
    ]
    costs = [cost(parse(text)) for text in ordered]
    assert costs == sorted(set(costs))
    assert cost(parse(f"a IN ({','.join(map(str, range(1000)))})")) < 20


@pytest.mark.parametrize(
    "text",
    [
        "a AND " * 1300 + "a",
        "a='x" + "''" * 4000 + "'",
        "a LIKE '" + "%_" * 4000 + "'",
        " OR ".join(f"b{number}=a{number}" for number in range(300)),
        "a REGEXP '" + "(" * 3900 + ")" * 3900 + "'",
        "a REGEXP '((((a{30}){30}){30}){30})'",
        "a REGEXP '(" + "a?" * 3900 + ")'",
    ],
)
def test_a_long_text_takes_no_long_time(text: str) -> None:
    started = time.process_time()
    try:
        Selector.parse(text)
    except LocalError as error:
        assert error.code.name == "bad-selector"
    assert time.process_time() - started < 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, -(2**63) - 1])
def test_what_cannot_be_a_literal(value: float) -> None:
    with pytest.raises(LocalError) as caught:
        Literal(value)
    assert caught.value.code.name == "bad-selector"
