"""Selectors as columns of Spark: true, false or NULL for each row, which is *unknown*.

Rules:

- The column is for each message what `Selector.evaluate` is, with `spark.sql.ansi.enabled` and
  without: nothing is left to Spark's conversions, and nothing fails at run time. One exception:
  Java's sine and C's may differ in the last digit, and so may a DISTANCE.
- An operand has a column for each type that it may have, which is NULL unless it has that type. A
  comparison takes the first of these that is not NULL on both sides; if there is none, it is false,
  and NULL where an operand has no type at all.
- Spark would compare an int with a float as floats, and takes NaN for the greatest float, equal to
  itself. So ints meet floats as ints, and NaN is made NULL before it is compared.
- What has no such column is asked of the reference, row by row in Python: a REGEXP that Java cannot
  search in linear time, a LIKE of very many pieces, arithmetic whose column would be too large.
- AND and OR are trees of small depth, as Spark walks its expressions by recursion.
- All is text (`Sql`) until it is whole, or meets what is asked of the reference, which has no text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from regraft.model.message import Timestamp, Value
from regraft.model.selector import Selector, ast, evaluate, patterns
from regraft.model.selector.ast import (
    FLIPPED,
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
    NameKind,
    Negate,
    Not,
    Operand,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)
from regraft.model.selector.evaluate import EARTH_RADIUS_M
from regraft.pipeline.java_regex import like_regex, search_regex, topic_regex
from regraft.pipeline.rows import VALUE, untyped
from regraft.pipeline.sql import FALSE, NULL, TRUE, Sql, call, joined, lit, named, when

WEIGHT_MAX = 120  # of arithmetic in a condition: about how often its column looks something up

KINDS = tuple(VALUE.names)
# For each header field its column, and its type.
_HEADERS = {
    "topic": ("topic", "string"),
    "priority": ("priority", "int"),
    "timestamp": ("timestamp_us", "timestamp_us"),
    "expiration": ("expiration_us", "timestamp_us"),
    "correlation": ("correlation", "string"),
    "reply_to": ("reply_to", "string"),
    "from": ("sender", "string"),
    "size": ("size", "int"),
    "delivery_mode": ("delivery_mode", "string"),
}
Truth: TypeAlias = Sql | Column  # of a condition
_TWO_63 = 2.0**63


def column_of(
    selector: Selector,
    *,
    attributes: str = "attributes",
    context: str = "context",
    headers: Mapping[str, str] | None = None,
) -> Column:
    """The column that a selector is, for a data frame with the columns of `SCHEMA`.

    `attributes` and `context` are the names of its maps; `headers` says what other columns are
    called if they are not called as in `SCHEMA`, such as `{"topic": "message.topic"}`. Only columns
    that the selector asks for need to be there.
    """
    return _column(_Compiler(attributes, context, headers or {}).condition(selector.ast))


# ------------------------------------------------------------------------ operands


@dataclass(frozen=True, slots=True)
class _Value:
    """An operand, by the types that it may have."""

    kinds: tuple[str, ...]
    column: Callable[[str], Sql]  # of a kind; NULL unless the operand is of it
    present: Sql | None  # whether it is not NULL; None where it never can be
    literal: Value | None = None


@dataclass(frozen=True, slots=True)
class _Number:
    """An operand of arithmetic. If it has neither column, it is no number."""

    whole: Sql | None  # the int; NULL unless it is one
    real: Sql | None  # the float; NULL unless it is one
    is_real: Sql | None  # whether there is a float in it, where there may be

    def double(self) -> Sql | None:
        """The number as a float, whichever it is."""
        if self.whole is None:
            return self.real
        rounded = self.whole.cast("double")
        return rounded if self.real is None else call("coalesce", self.real, rounded)


_NOTHING = _Number(None, None, None)


def _kind_of(value: Value) -> str:
    match value:
        case bool():  # before int, of which bool is a kind
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "string"
        case bytes():
            return "bytes"
        case Timestamp():
            return "timestamp_us"


def _plain(value: Value) -> bool | int | float | str | bytes:
    return value.us if isinstance(value, Timestamp) else value


def _constant(value: Value) -> _Value:
    kind = _kind_of(value)
    return _Value((kind,), lambda _: lit(_plain(value)), None, value)


def _calculated(number: _Number) -> _Value:
    columns = {"int": number.whole, "float": number.real}
    found = {kind: column for kind, column in columns.items() if column is not None}
    present = [column.is_not_null() for column in found.values()]
    return _Value(tuple(found), found.__getitem__, joined(operator.or_, present, FALSE))


def _arithmetic(symbol: str, left: _Number, right: _Number) -> _Number:
    if left is _NOTHING or right is _NOTHING:
        return _NOTHING
    whole = real = is_real = None
    if left.whole is not None and right.whole is not None:
        whole = _whole_result(symbol, left.whole, right.whole)
    reals = [number.is_real for number in (left, right) if number.is_real is not None]
    one, other = left.double(), right.double()
    if reals and one is not None and other is not None:
        real = _real_result(symbol, one, other)
        is_real = joined(operator.or_, reals, FALSE)
        if whole is not None:
            real = when(is_real, real)
    return _Number(whole, real, is_real)


def _whole_result(symbol: str, left: Sql, right: Sql) -> Sql:
    match symbol:
        case "+":
            return _in_order("try_add", left, right)
        case "-":
            return call("try_subtract", left, right)
        case "*":
            return _in_order("try_multiply", left, right)
    # There is no "try" for this division; its operands are made NULL where it would fail.
    fits = ~(left.compare("=", INT_MIN) & right.compare("=", -1))
    return when(fits, left).divided_whole(when(right.compare("<>", 0), right))


def _in_order(function: str, *operands: Sql) -> Sql:
    """A sum or a product of ints.

    Spark puts sums of sums, and products of products, into another order where there is a literal
    among them. Then something else overflows, or nothing does. It does not look behind `|`.
    """
    nested = f"`{function}`("
    return call(function, *(call("|", o, 0) if o.text.startswith(nested) else o for o in operands))


def _real_result(symbol: str, left: Sql, right: Sql) -> Sql:
    match symbol:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    return call("try_divide", left, right)


def _negated(number: _Number) -> _Number:
    whole, real = number.whole, number.real
    return _Number(
        None if whole is None else call("try_subtract", 0, whole),
        None if real is None else call("negative", real),
        number.is_real,
    )


def _distance(points: Sequence[_Number]) -> _Number:
    doubles = [point.double() for point in points]
    degrees = [double for double in doubles if double is not None]
    if len(degrees) < len(doubles):
        return _NOTHING
    bounds = (90, 180, 90, 180)
    within = [
        call("abs", one).compare("<=", bound) for one, bound in zip(degrees, bounds, strict=True)
    ]
    latitude, longitude, latitude2, longitude2 = (one * (math.pi / 180.0) for one in degrees)
    across = call("pow", call("sin", (latitude2 - latitude) / 2), 2.0)
    along = call("pow", call("sin", (longitude2 - longitude) / 2), 2.0)
    half_chord = across + call("cos", latitude) * call("cos", latitude2) * along
    # Beyond 1 by a last digit, the arc sine is not a number.
    angle = call("nanvl", call("asin", call("sqrt", half_chord)), math.pi / 2)
    metres = when(joined(operator.and_, within, TRUE), angle * (2 * EARTH_RADIUS_M))
    return _Number(None, metres, TRUE)


# ---------------------------------------------------------------------- conditions


def _unless_null(values: Iterable[_Value]) -> Sql:
    """False, or NULL where one of the values is NULL."""
    present = [value.present for value in values if value.present is not None]
    if not present:
        return FALSE
    return when(joined(operator.and_, present, TRUE), FALSE)


def _comparable(value: _Value, kind: str) -> Sql:
    column = value.column(kind)
    return call("nanvl", column, NULL.cast("double")) if kind == "float" else column


def _compare(symbol: str, left: _Value, right: _Value) -> Sql:
    if left.literal is not None and right.literal is None:
        symbol, left, right = FLIPPED[symbol], right, left
    if right.literal is not None:
        found = _against_literal(symbol, left, right.literal)
        may_be_nan = "float" in left.kinds
    else:
        found = _against_value(symbol, left, right)
        may_be_nan = "float" in left.kinds + right.kinds
    # With one type on each side it is NULL only where an operand is: then it may stay a plain
    # condition on a column, which Spark can push down to files.
    if found and len(left.kinds) == len(right.kinds) == 1 and not may_be_nan:
        return found[0]
    return call("coalesce", *found, _unless_null((left, right)))


def _against_literal(symbol: str, left: _Value, literal: Value) -> list[Sql]:
    kind = _kind_of(literal)
    if isinstance(literal, int | float) and not isinstance(literal, bool):
        found = []
        if "int" in left.kinds:
            found.append(_whole_against(symbol, left.column("int"), literal))
        if "float" in left.kinds:
            # NaN is neither equal to nor less than a literal, for Spark too.
            nan = symbol not in ("=", "<", "<=")
            real = _comparable(left, "float") if nan else left.column("float")
            found.append(_real_against(symbol, real, literal))
        return found
    if kind not in left.kinds or (kind == "bool" and symbol not in ("=", "<>")):
        return []
    return [left.column(kind).compare(symbol, lit(_plain(literal)))]


def _known(truth: bool, column: Sql) -> Sql:
    """A truth that does not depend on the value, NULL if there is none."""
    return when(column.is_not_null(), lit(truth))


def _whole_against(symbol: str, column: Sql, number: int | float) -> Sql:
    if symbol in ("=", "<>"):
        if number != math.floor(number) or not INT_MIN <= number <= INT_MAX:
            return _known(symbol == "<>", column)
        bound = int(number)
    else:
        bound = math.ceil(number) if symbol in ("<", ">=") else math.floor(number)
        if bound > INT_MAX:
            return _known(symbol in ("<", "<="), column)
        if bound < INT_MIN:
            return _known(symbol in (">", ">="), column)
    return column.compare(symbol, bound)


def _real_against(symbol: str, column: Sql, number: int | float) -> Sql:
    nearest = float(number)
    if (
        nearest != number
    ):  # an int between two floats; which side of it a float is on, this one says
        if symbol in ("=", "<>"):
            return _known(symbol == "<>", column)
        above = nearest > number
        symbol = {"<": "<", ">": ">="}[symbol[0]] if above else {"<": "<=", ">": ">"}[symbol[0]]
    return column.compare(symbol, nearest)


def _against_value(symbol: str, left: _Value, right: _Value) -> list[Sql]:
    found = [
        _comparable(left, kind).compare(symbol, _comparable(right, kind))
        for kind in KINDS
        if kind in left.kinds and kind in right.kinds
        if kind != "bool" or symbol in ("=", "<>")
    ]
    for one, other, said in ((left, right, symbol), (right, left, FLIPPED[symbol])):
        if "int" in one.kinds and "float" in other.kinds:
            found.append(_mixed(said, one.column("int"), _comparable(other, "float")))
    return found


def _mixed(symbol: str, whole: Sql, real: Sql) -> Sql:
    """An int compared with a float, exactly. NULL may stand for false."""
    # Rounding to an int fails beyond 64 bits, so it is not done there.
    large, negative = real.compare(">=", _TWO_63), real.compare("<", -_TWO_63)
    small = when(~(negative | large), real)
    ceiling, floor = call("ceil", small), call("floor", small)
    match symbol:
        case "<":
            truth = large | whole.compare("<", ceiling)
        case "<=":
            truth = large | whole.compare("<=", floor)
        case ">":
            truth = negative | whole.compare(">", floor)
        case ">=":
            truth = negative | whole.compare(">=", ceiling)
        case "=":
            # Where they are equal as floats, the float is whole, and the int was perhaps rounded.
            truth = whole.cast("double").compare("=", real) & whole.compare("=", floor)
        case _:
            unequal = whole.cast("double").compare("<>", real) | whole.compare("<>", floor)
            truth = large | unequal
    return when(whole.is_not_null(), truth)


def _in(value: _Value, items: Iterable[Literal]) -> Sql:
    wanted: dict[str, list[Any]] = {}
    for literal in (item.value for item in items):
        if isinstance(literal, bool) or not isinstance(literal, int | float):
            wanted.setdefault(_kind_of(literal), []).append(_plain(literal))
            continue
        if literal == math.floor(literal) and INT_MIN <= literal <= INT_MAX:
            wanted.setdefault("int", []).append(int(literal))
        if literal == float(literal):
            wanted.setdefault("float", []).append(float(literal) + 0.0)  # -0.0 becomes 0.0
    found = []
    for kind in value.kinds:
        if kind in wanted:
            column = value.column(kind)
            if kind == "float" and 0.0 in wanted[kind]:
                # Among more than a few values Spark looks for the same bits.
                column = when(column.compare("=", 0.0), lit(0.0), column)
            found.append(column.is_in(wanted[kind]))
    return call("coalesce", *found, _unless_null((value,)))


def _of_string(value: _Value, test: Callable[[Sql], Sql]) -> Sql:
    if "string" not in value.kinds:
        return _unless_null((value,))
    text = value.column("string")
    if len(value.kinds) == 1 or value.present is None:
        return test(text)
    return when(text.is_not_null(), test(text), when(value.present, FALSE))


def _found(text: Sql, regex: str, bytes_max: int | None) -> Sql:
    """Whether a pattern is found in a string, unknown for one that is too long."""
    found = text.finds(regex)
    if bytes_max is None:
        return found
    return when(call("octet_length", text).compare("<=", bytes_max), found)


def _asked(node: Like | Regexp, value: _Value) -> Truth:
    """What the reference says of a string."""
    if "string" not in value.kinds:
        return _unless_null((value,))
    anything = replace(node, operand=TOPIC)  # whose value is given, whatever it is called

    def truth(string: str | None) -> bool | None:
        return evaluate(anything, lambda _: string)

    text = value.column("string")
    said = _udf(truth)(text.column())
    if len(value.kinds) == 1 or value.present is None:
        return said
    is_string = F.when(text.is_not_null().column(), said)
    return is_string.when(value.present.column(), F.lit(False))


def _udf(function: Callable[..., bool | None]) -> Callable[..., Column]:
    # Without Arrow, which would have to be installed.
    return F.udf(function, BooleanType(), useArrow=False)


def _column(truth: Truth) -> Column:
    return truth.column() if isinstance(truth, Sql) else truth


def _joined(join: Callable[[Any, Any], Any], truths: Sequence[Truth], none: Sql) -> Truth:
    texts = [truth for truth in truths if isinstance(truth, Sql)]
    if len(texts) == len(truths):
        return joined(join, texts, none)
    return joined(join, list(map(_column, truths)), none.column())


_DEEP = (Arithmetic, Negate, Distance)


def _weight(operand: Operand) -> tuple[int, int]:
    """How often the columns of a number look something up: as an int, and as a float."""
    match operand:
        case Literal() | Name():
            return 1, 2
        case Negate(inner):
            return _weight(inner)
        case Arithmetic(symbol, left, right):
            (whole, double), (whole2, double2) = _weight(left), _weight(right)
            result = 2 * whole + 3 * whole2 if symbol == "/" else whole + whole2
            return result, double + double2 + result + whole + whole2
        case Distance(points):
            return 0, 3 * sum(_weight(point)[1] for point in points)


def _is_too_large(node: Condition) -> bool:
    operands = [part for part in ast.children(node) if isinstance(part, _DEEP)]
    return sum(sum(_weight(operand)) for operand in operands) > WEIGHT_MAX


class _Compiler:
    """Makes columns of conditions, for a data frame whose columns have these names."""

    def __init__(self, attributes: str, context: str, headers: Mapping[str, str]) -> None:
        self._maps = {NameKind.ATTRIBUTE: attributes, NameKind.CONTEXT: context}
        self._headers = headers
        self._names: dict[Name, _Value] = {}

    def condition(self, node: Condition) -> Truth:
        match node:
            case Literal(value):
                return lit(value is True)
            case And(terms):
                return _joined(operator.and_, list(map(self.condition, terms)), TRUE)
            case Or(terms):
                return _joined(operator.or_, list(map(self.condition, terms)), FALSE)
            case Not(term):
                return ~self.condition(term)
            case IsNull(name):
                present = self._name(name).present
                return FALSE if present is None else ~present
        return self._by_reference(node) if _is_too_large(node) else self._test(node)

    def _test(self, node: Condition) -> Truth:
        match node:
            case Comparison(symbol, left, right):
                return _compare(symbol, self._value(left), self._value(right))
            case Between(operand, low, high):
                value = self._value(operand)
                above = _compare(">=", value, self._value(low))
                return above & _compare("<=", value, self._value(high))
            case In(operand, items):
                return _in(self._value(operand), items)
            case TopicMatch(pattern):
                return _of_string(self._name(TOPIC), lambda text: text.finds(topic_regex(pattern)))
            case StartsWith(operand, prefix):
                return _of_string(
                    self._value(operand), lambda text: call("startswith", text, lit(prefix))
                )
            case Like(operand, pattern, escape):
                regex = like_regex(patterns.like_items(pattern, escape))
                bytes_max = patterns.like_text_max(pattern, escape)
            case Regexp(operand, pattern):
                regex = search_regex(pattern)
                bytes_max = patterns.regex_text_max(pattern)
            case _:
                raise AssertionError(f"{type(node).__name__} is not a test")
        value = self._value(operand)
        if regex is None:
            return _asked(node, value)
        return _of_string(value, lambda text: _found(text, regex, bytes_max))

    # ---------------------------------------------------------------- operands

    def _value(self, operand: Operand) -> _Value:
        match operand:
            case Literal(value):
                return _constant(value)
            case Name():
                return self._name(operand)
            case _:
                return _calculated(self._number(operand))

    def _number(self, operand: Operand) -> _Number:
        match operand:
            case Negate(inner):
                return _negated(self._number(inner))
            case Arithmetic(symbol, left, right):
                return _arithmetic(symbol, self._number(left), self._number(right))
            case Distance(points):
                return _distance([self._number(point) for point in points])
        value = self._value(operand)
        whole = value.column("int") if "int" in value.kinds else None
        real = value.column("float") if "float" in value.kinds else None
        if whole is None and real is None:
            return _NOTHING
        return _Number(whole, real, None if real is None else real.is_not_null())

    def _name(self, name: Name) -> _Value:
        if name not in self._names:
            self._names[name] = self._looked_up(name)
        return self._names[name]

    def _looked_up(self, name: Name) -> _Value:
        if name.kind is NameKind.HEADER:
            return self._header(name.name)
        entry = self._entry(name)
        return _Value(KINDS, entry.field, entry.is_not_null())

    def _entry(self, name: Name) -> Sql:
        return named(self._maps[name.kind]).item(name.name)

    def _header(self, header: str) -> _Value:
        if header == "redelivered":
            return _constant(False)  # as it is no matter of the message
        if header == "type":
            number, text = self._column("type"), self._column("type_name")
            columns = {"string": text, "int": when(text.is_null(), number.cast("bigint"))}
            present = text.is_not_null() | number.is_not_null()
            return _Value(("string", "int"), columns.__getitem__, present)
        name, kind = _HEADERS[header]
        column = self._column(name)
        typed = column.cast("bigint") if kind == "int" else column
        return _Value((kind,), lambda _: typed, column.is_not_null())

    def _column(self, name: str) -> Sql:
        return named(self._headers.get(name, name))

    # ------------------------------------------------------------- the reference

    def _by_reference(self, node: Condition) -> Column:
        names = sorted(ast.names(node), key=lambda name: (name.kind.value, name.name))

        def truth(*rows: Any) -> bool | None:
            values = dict(zip(names, map(untyped, rows), strict=True))
            return evaluate(node, values.__getitem__)

        return _udf(truth)(*(self._packed(name).column() for name in names))

    def _packed(self, name: Name) -> Sql:
        if name.kind is not NameKind.HEADER:
            return self._entry(name)
        value = self._name(name)
        fields: list[Sql] = []
        for field in VALUE.fields:
            column = value.column(field.name) if field.name in value.kinds else NULL
            fields += (lit(field.name), column.cast(field.dataType.simpleString()))
        return call("named_struct", *fields)
