"""Expressions as text. That Spark understands them, integration/test_spark_column.py shows."""

from __future__ import annotations

import operator

import pytest

from regraft.pipeline.sql import FALSE, Sql, call, joined, lit, named, when

A, B = Sql("a"), Sql("b")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (5, "5L"),
        (-(2**63), "-9223372036854775808L"),
        (-0.0, "-0.0D"),
        (1e300, "1e+300D"),
        (b"\x80'", "X'8027'"),
        ("a/b c", "'a/b c'"),
        ("", "''"),
    ],
)
def test_literals(value: bool | int | float | str | bytes, text: str) -> None:
    assert lit(value).text == text


@pytest.mark.parametrize(
    "value", ["it's", "\\", "a\nb", "grüß", "'; DROP TABLE t; --", "${x}", '"']
)
def test_strings_that_could_mean_more_are_bytes(value: str) -> None:
    assert lit(value).text == f"decode(X'{value.encode().hex()}', 'UTF-8')"


def test_names_of_columns_and_fields() -> None:
    assert named("topic").text == "`topic`"
    assert named("message.topic").text == "`message`.`topic`"
    assert named("m.`a.b`.c").text == "`m`.`a.b`.`c`"
    assert named("m").item("it's").field("a`b").text == "`m`[decode(X'69742773', 'UTF-8')].`a``b`"


def test_operators_are_functions() -> None:
    assert (A & ~B).text == "`and`(a, `not`(b))"
    assert A.compare("<", 5).text == "`<`(a, 5L)"
    assert A.compare("<>", B).text == "`not`(`=`(a, b))"
    assert ((A + B) * 2.0 - A / B).text == "`-`(`*`(`+`(a, b), 2.0D), `/`(a, b))"
    assert A.is_in(["x", "y"]).text == "`in`(a, 'x', 'y')"
    assert when(A, B).text == "`if`(a, b, NULL)"
    assert when(A, B, FALSE).text == "`if`(a, b, false)"
    assert call("abs", A.cast("double")).text == "`abs`(CAST(a AS double))"


def test_many_are_joined_two_by_two() -> None:
    parts = [Sql(name) for name in "abcde"]
    assert joined(operator.or_, parts, FALSE).text == "`or`(`or`(`or`(a, b), `or`(c, d)), e)"
    assert joined(operator.or_, [], FALSE) is FALSE
