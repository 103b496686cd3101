"""Expressions of Spark SQL, put together as text.

A `Column` is made by calls into Java, one per operator: a hundred for a selector, and milliseconds.
Text is free, and handed over at once. Spark understands both alike.

Rules:

- Operators are called as functions are: "`<`(a, b)". So none has to know of another's precedence;
  and Spark's parser takes a hundred times as long for brackets in brackets, since what follows one
  might be a row, a query or a lambda as well.
- Literals mean the same whatever the session is set to: numbers say their type, and strings with
  anything in them that could be an escape are written as their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import Column

_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/$#+*()<>=-]*")
_PART = re.compile(r"`(?:[^`]|``)*`|[^.`]+")  # of a column's name


@dataclass(frozen=True, slots=True, eq=False)
class Sql:
    """An expression."""

    text: str

    def __and__(self, other: Sql) -> Sql:
        return call("and", self, other)

    def __or__(self, other: Sql) -> Sql:
        return call("or", self, other)

    def __invert__(self) -> Sql:
        return call("not", self)

    def __add__(self, other: Operand) -> Sql:
        return call("+", self, other)

    def __sub__(self, other: Operand) -> Sql:
        return call("-", self, other)

    def __mul__(self, other: Operand) -> Sql:
        return call("*", self, other)

    def __truediv__(self, other: Operand) -> Sql:
        return call("/", self, other)

    def compare(self, symbol: str, other: Operand) -> Sql:
        """One of = <> < <= > >=."""
        if symbol == "<>":  # which is not the name of a function
            return ~call("=", self, other)
        return call(symbol, self, other)

    def divided_whole(self, other: Sql) -> Sql:
        """An int divided by another, rounded towards zero."""
        return call("div", self, other)

    def finds(self, regex: str) -> Sql:
        """Whether a string has a regular expression of Java somewhere."""
        return call("rlike", self, lit(regex))

    def is_null(self) -> Sql:
        return call("isnull", self)

    def is_not_null(self) -> Sql:
        return call("isnotnull", self)

    def cast(self, kind: str) -> Sql:
        return Sql(f"CAST({self.text} AS {kind})")

    def item(self, key: str) -> Sql:
        """What a map has for a key."""
        return Sql(f"{self.text}[{lit(key).text}]")

    def field(self, name: str) -> Sql:
        """A field of a struct."""
        return Sql(f"{self.text}.{_quoted(name)}")

    def is_in(self, values: Sequence[Scalar]) -> Sql:
        return call("in", self, *map(lit, values))

    def column(self) -> Column:
        """For a data frame."""
        from pyspark.sql import functions

        return functions.expr(self.text)


Scalar: TypeAlias = bool | int | float | str | bytes
Operand: TypeAlias = Sql | int | float
Part = TypeVar("Part")
NULL = Sql("NULL")
TRUE = Sql("true")
FALSE = Sql("false")


def lit(value: Scalar) -> Sql:
    """A value, of the type of attributes: every int has 64 bits, every float is a double."""
    match value:
        case bool():  # before int, of which bool is a kind
            return TRUE if value else FALSE
        case int():
            return Sql(f"{value}L")
        case float():
            return Sql(f"{value!r}D")
        case bytes():
            return Sql(f"X'{value.hex()}'")
    if _PLAIN.fullmatch(value):
        return Sql(f"'{value}'")
    return Sql(f"decode(X'{value.encode().hex()}', 'UTF-8')")


def named(name: str) -> Sql:
    """A column, called as `functions.col` would call it: `message.topic`."""
    parts = _PART.findall(name)
    return Sql(".".join(part if part[0] == "`" else _quoted(part) for part in parts))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def call(function: str, *arguments: Operand) -> Sql:
    """A function or an operator of Spark."""
    texts = (one.text if isinstance(one, Sql) else lit(one).text for one in arguments)
    return Sql(f"{_quoted(function)}({', '.join(texts)})")


def when(condition: Sql, value: Sql, otherwise: Sql | None = None) -> Sql:
    """The value where a condition is true, else another or NULL."""
    return call("if", condition, value, NULL if otherwise is None else otherwise)


def joined(join: Callable[[Part, Part], Part], parts: Sequence[Part], none: Part) -> Part:
    """Parts joined two by two, so that the depth of the whole stays small."""
    while len(parts) > 1:
        pairs = [parts[index : index + 2] for index in range(0, len(parts), 2)]
        parts = [reduce(join, pair) for pair in pairs]
    return parts[0] if parts else none
