"""What a selector says of a message: true, false or unknown. The slow, obvious reference.

Rules:

- `None` is NULL where a value is meant and *unknown* where a truth is meant.
- A comparison with NULL is unknown. Otherwise unlike types compare false, whatever the operator,
  `<>` too. So does NaN with everything, and the order of booleans.
- Int and float are one type, compared exactly. Strings are ordered by code point, bytes by byte.
- BETWEEN is `>=` and `<=`; IN is `=` to any; LIKE, REGEXP and STARTS_WITH are false for what is
  not a string, unknown for NULL.
- LIKE and REGEXP are unknown for a string of more than PATTERN_TEXT_MAX bytes of UTF-8, so that no
  search takes long. For a large regular expression it is less: bytes times instructions stay within
  REGEX_STEPS_MAX. A LIKE with nothing to search for, only `%` at its end, has no bound.
- Arithmetic takes numbers; int with int gives int, any float makes it float. NULL, other types,
  results beyond 64 bits and division by zero, be it 0 or 0.0, give NULL.
- DISTANCE takes degrees: latitudes from -90 to 90, longitudes from -180 to 180; else it is NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeAlias

from regraft.model import topics
from regraft.model.message import Value
from regraft.model.selector import patterns
from regraft.model.selector.ast import (
    INT_MAX,
    INT_MIN,
    TOPIC,
    And,
    Arithmetic,
    Between,
    Comparison,
    Condition,
    Distance,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Negate,
    Not,
    Operand,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)

Truth: TypeAlias = bool | None
Values: TypeAlias = Callable[[Name], Value | None]

EARTH_RADIUS_M = 6_371_008.8


class Type(Enum):
    """What can be compared with one another."""

    BOOL = "bool"
    NUMBER = "number"
    STRING = "string"
    BYTES = "bytes"
    TIMESTAMP = "timestamp"


def type_of(value: Value) -> Type:
    """The type of a value, as comparisons see it."""
    if isinstance(value, bool):  # before int, of which bool is a kind
        return Type.BOOL
    if isinstance(value, int | float):
        return Type.NUMBER
    if isinstance(value, str):
        return Type.STRING
    if isinstance(value, bytes):
        return Type.BYTES
    return Type.TIMESTAMP


# ------------------------------------------------------------------ conditions


def evaluate(tree: Condition, values: Values) -> Truth:
    """The truth of a condition, with the values that the names have."""
    match tree:
        case Literal():
            return tree.value is True
        case And(terms):
            return conjunction(evaluate(term, values) for term in terms)
        case Or(terms):
            return negation(conjunction(negation(evaluate(term, values)) for term in terms))
        case Not(term):
            return negation(evaluate(term, values))
        case Comparison(symbol, left, right):
            return compare(symbol, value_of(left, values), value_of(right, values))
        case Between(operand, low, high):
            value = value_of(operand, values)
            above = compare(">=", value, value_of(low, values))
            below = compare("<=", value, value_of(high, values))
            return conjunction((above, below))
        case In(operand, items):
            value = value_of(operand, values)
            return None if value is None else any(compare("=", value, i.value) for i in items)
        case IsNull(name):
            return values(name) is None
        case TopicMatch(pattern):
            return _of_string(values(TOPIC), lambda text: topics.matches(pattern, text, exact=True))
        case Like(operand, pattern, escape):
            value = value_of(operand, values)
            if _is_longer(value, patterns.like_text_max(pattern, escape)):
                return None
            return _of_string(value, lambda text: patterns.like(pattern, escape, text))
        case Regexp(operand, pattern):
            value = value_of(operand, values)
            if _is_longer(value, patterns.regex_text_max(pattern)):
                return None
            return _of_string(value, lambda text: patterns.regex_found(pattern, text))
        case StartsWith(operand, prefix):
            return _of_string(value_of(operand, values), lambda text: text.startswith(prefix))


def negation(truth: Truth) -> Truth:
    """NOT: unknown stays unknown."""
    return None if truth is None else not truth


def conjunction(truths: Iterable[Truth]) -> Truth:
    """AND: false if any is false, else unknown if any is unknown."""
    found = list(truths)
    if False in found:
        return False
    return None if None in found else True


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compare(symbol: str, left: Value | None, right: Value | None) -> Truth:
    """The truth of a comparison."""
    if left is None or right is None:
        return None
    if type_of(left) is not type_of(right) or _is_nan(left) or _is_nan(right):
        return False
    if isinstance(left, bool) and symbol not in ("=", "<>"):
        return False
    return _OPERATORS[symbol](left, right)  # Python compares an int with a float exactly


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _of_string(value: Value | None, test: Callable[[str], bool]) -> Truth:
    if value is None:
        return None
    return isinstance(value, str) and test(value)


def _is_longer(value: Value | None, bytes_max: int | None) -> bool:
    return isinstance(value, str) and patterns.is_longer(value, bytes_max)


# -------------------------------------------------------------------- operands


def value_of(operand: Operand, values: Values) -> Value | None:
    """The value of an operand; None is NULL."""
    match operand:
        case Literal(value):
            return value
        case Name():
            return values(operand)
        case Negate(inner):
            number = _number(value_of(inner, values))
            return None if number is None else _in_range(-number)
        case Arithmetic(symbol, left, right):
            return arithmetic(symbol, value_of(left, values), value_of(right, values))
        case Distance(points):
            return distance(*(value_of(point, values) for point in points))


def _number(value: Value | None) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return _in_range(value)


def _in_range(number: int | float) -> int | float | None:
    return number if isinstance(number, float) or INT_MIN <= number <= INT_MAX else None


def arithmetic(symbol: str, left: Value | None, right: Value | None) -> int | float | None:
    """The result of + - * or /, or NULL."""
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return None
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    match symbol:
        case "+":
            return _in_range(a + b)
        case "-":
            return _in_range(a - b)
        case "*":
            return _in_range(a * b)
        case _:
            return None if b == 0 else _in_range(_quotient(a, b))


def _quotient(a: int | float, b: int | float) -> int | float:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def distance(*degrees: Value | None) -> float | None:
    """Metres between two points, each of latitude and longitude, by the haversine formula."""
    checked: list[float] = []
    for value, bound in zip(degrees, (90, 180, 90, 180), strict=True):
        number = _number(value)
        if number is None or not -bound <= number <= bound:  # NaN is not within anything
            return None
        checked.append(math.radians(number))
    latitude, longitude, latitude2, longitude2 = checked
    across = math.sin((latitude2 - latitude) / 2)
    along = math.sin((longitude2 - longitude) / 2)
    # Products, not powers: a power's last digit depends on who computes it.
    half_chord = across * across + math.cos(latitude) * math.cos(latitude2) * (along * along)
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, half_chord)))
