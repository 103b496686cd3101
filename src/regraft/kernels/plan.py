"""From the text of a selector to what the match index holds.

A `Plan` has the canonical text, and for each AND of the normal form a list of terms:

    (RANGE, where, name, class, low, high)     low <= x <= high; low is NaN: there is nothing
    (TEXT, where, name, class, text)           a string or bytes, equal
    (PREFIX, key, where, name, text)
    (AMONG, key, where, name, ((class, value or text), ...))
    (TEST, key, test, wanted, price, where, name, class, piece, at_start)

`key` tells predicates apart. Ranges are doubles, and exact: a bound below 2^53 in size decides
every integer and every float as the reference does, since what is larger is rounded to something
that is still at least 2^53. A larger bound gives a range that is a little too wide, and a test.

What is not a plain comparison is a test of the reference's meaning (`selection`), with a range or a
piece beside it wherever something follows from it: that a name is there, that a string contains
a text, that a point lies in a box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from regraft.kernels.reader import read_conjunction
from regraft.kernels.selection import compile_condition
from regraft.model.message import Timestamp, Value
from regraft.model.selector import Selector, bounds, required
from regraft.model.selector.ast import (
    Comparison,
    Condition,
    Distance,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    NameKind,
    Operand,
    Regexp,
    StartsWith,
    TopicMatch,
    names,
)
from regraft.model.selector.evaluate import EARTH_RADIUS_M
from regraft.model.selector.normal import normal_form
from regraft.model.selector.printer import text_of

Term: TypeAlias = tuple[Any, ...]

RANGE, TEXT, PREFIX, AMONG, TEST = 0, 1, 3, 4, 5
ANY, BOOL, NUMBER, STRING, BYTES, TIMESTAMP = range(6)
ATTRIBUTE, CONTEXT = 10, 19
# Headers that have dimensions; the first ones are never NULL.
HEADERS = {
    **{"topic": 1, "priority": 2, "size": 3, "type": 4},
    **{"from": 5, "correlation": 6, "reply_to": 7},
}
NEVER_NULL = 4

ANDS_MAX = 16  # of a normal form
TERMS_MAX = 48  # of one AND; what exceeds it is one test
EXACT = float(1 << 53)
RELATIONS = ("=", "<>", "<", "<=", ">", ">=")
OPEN = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Plan:
    """A selector, ready for the index."""

    text: str  # canonical
    conjunctions: list[list[Term]]  # an empty list: never; an empty conjunction: always

    @property
    def cost(self) -> int:
        """About how many comparisons its predicates are worth, for one event."""
        return sum(
            term[4] if term[0] == TEST else 1
            for terms in self.conjunctions
            for term in terms
            if term[0] >= PREFIX
        )


def is_plain(plan: Plan) -> bool:
    """Whether a `Sweep` can match it: nothing but values of attributes and of the topic."""
    return all(
        term[0] in (RANGE, TEXT, AMONG)
        and (term[2] if term[0] == AMONG else term[1]) in (ATTRIBUTE, HEADERS["topic"])
        for terms in plan.conjunctions
        for term in terms
    )


def plan_of(text: str, bytes_max: int | None = None) -> Plan:
    """The plan of a selector's text; `LocalError("bad-selector")` if it is none."""
    if bytes_max is None or len(text) * 4 <= bytes_max:
        simple = read_conjunction(text)
        if simple is not None:
            plain, parts = simple
            if len(parts) <= TERMS_MAX // 2:
                return Plan(plain, _conjunction(parts))
    selector = Selector.parse(text) if bytes_max is None else Selector.parse(text, bytes_max)
    return plan_for(selector)


def plan_for(selector: Selector) -> Plan:
    """The plan of a selector that was parsed."""
    ands = normal_form(selector.ast, ANDS_MAX)
    found = []
    for wanted in ands:
        parts = [_terms(atom, truth) for atom, truth in wanted]
        if None not in parts:
            found.append([term for part in parts if part for term in part])
    if any(len(terms) > TERMS_MAX for terms in found):
        found = [[_test(selector.ast, True)]]
    return Plan(selector.text, found)


# ------------------------------------------------------------------------- plain comparisons


def _conjunction(parts: list[tuple[int, bytes, int, Any]]) -> list[list[Term]]:
    """The same from the terms of `read_conjunction`."""
    terms: list[Term] = []
    for where, name, relation, value in parts:
        if relation < 6:
            more = _compared(where, name, relation, value)
        elif relation == 6:
            more = _among(where, name, value)
        elif relation == 9:
            more = [(PREFIX, b"%d^%b^%b" % (where, name, value), where, name, value)]
        else:
            more = _null(where, name, relation == 7)
        if more is None:
            return []
        terms += more
    return [terms]


def _compared(where: int, name: bytes, relation: int, value: Value) -> list[Term] | None:
    """A name compared with a literal: terms, or None if it is never true."""
    kind = type(value)
    if kind is str:
        if relation == 0:
            return [(TEXT, where, name, STRING, value.encode())]  # type: ignore[union-attr]
        return [_compared_test(where, name, relation, value, STRING)]
    if kind is bool:
        if relation > 1:
            return None
        x = float(value != (relation == 1))
        return [(RANGE, where, name, BOOL, x, x)]
    if kind is bytes:
        if relation == 0:
            return [(TEXT, where, name, BYTES, value)]
        return [_compared_test(where, name, relation, value, BYTES)]
    sort = TIMESTAMP if kind is Timestamp else NUMBER
    number: int | float = value.us if isinstance(value, Timestamp) else value  # type: ignore
    exact = -EXACT < number < EXACT
    low, high = OPEN
    x = float(number) + 0.0  # no -0.0
    if relation == 0 or relation >= 4:
        low = math.nextafter(x, math.inf) if relation == 4 and exact else x
    if relation == 0 or 2 <= relation <= 3:
        high = math.nextafter(x, -math.inf) if relation == 2 and exact else x
    terms: list[Term] = [(RANGE, where, name, sort, low, high)]
    if relation == 1 or not exact:
        terms.append(_compared_test(where, name, relation, value, sort))
    return terms


def _compared_test(where: int, name: bytes, relation: int, value: Value, sort: int) -> Term:
    return _test(Comparison(RELATIONS[relation], _name(where, name), Literal(value)), True, sort)


def _among(where: int, name: bytes, values: tuple[Value, ...]) -> list[Term]:
    """IN, with literals only."""
    items: list[tuple[int, Any]] = []
    for value in values:
        kind = type(value)
        if kind is str:
            items.append((STRING, value.encode()))  # type: ignore[union-attr]
        elif kind is bytes:
            items.append((BYTES, value))
        elif kind is bool:
            items.append((BOOL, float(value)))  # type: ignore[arg-type]
        else:
            number = value.us if isinstance(value, Timestamp) else value
            if not -EXACT < number < EXACT:  # type: ignore[operator]
                literals = tuple(Literal(value) for value in values)
                return [_test(In(_name(where, name), literals), True)]
            sort = TIMESTAMP if kind is Timestamp else NUMBER
            items.append((sort, float(number) + 0.0))
    return [(AMONG, b"%d@%b@%b" % (where, name, repr(items).encode()), where, name, items)]


def _null(where: int, name: bytes, absent: bool) -> list[Term] | None:
    """IS NULL, or IS NOT NULL."""
    if where <= NEVER_NULL:
        return None if absent else []
    low = math.nan if absent else -math.inf
    return [(RANGE, where, name, ANY, low, math.inf)]


def _name(where: int, name: bytes) -> Name:
    if where == ATTRIBUTE:
        return Name(NameKind.ATTRIBUTE, name.decode())
    if where == CONTEXT:
        return Name(NameKind.CONTEXT, name.decode())
    return Name(NameKind.HEADER, next(key for key, code in HEADERS.items() if code == where))


# ------------------------------------------------------------------------- any atom


def _terms(atom: Condition, truth: bool) -> list[Term] | None:
    """What follows from an atom that must have this truth; None if it never has."""
    if truth:
        match atom:
            case Comparison(operator, Name() as name, Literal(value)) if _where(name):
                return _compared(*_key(name), RELATIONS.index(operator), value)
            case In(Name() as name, items) if _where(name):
                return _among(*_key(name), tuple(item.value for item in items))
            case StartsWith(Name() as name, prefix) if _where(name):
                where, raw = _key(name)
                text = prefix.encode()
                return [(PREFIX, b"%d^%b^%b" % (where, raw, text), where, raw, text)]
            case Comparison("<" | "<=", Distance() as distance, Literal(value)):
                return [*_box(distance, value), *_present(atom), _test(atom, True)]
            case Like(Name() as name, pattern, escape) if _where(name):
                prefix = required.like_prefix(pattern, escape)
                piece = prefix or required.like_required(pattern, escape)
                return [_test(atom, True, STRING, piece, bool(prefix))]
            case Regexp(Name() as name, pattern) if _where(name):
                prefix = required.anchored_prefix(pattern)
                piece = prefix or required.required_text(pattern)
                return [_test(atom, True, STRING, piece, bool(prefix))]
            case TopicMatch(pattern):
                start = pattern.partition("+")[0].partition("#")[0].removesuffix("/")
                return [_test(atom, True, STRING, start, True)]
    match atom:
        case IsNull(name) if _where(name):
            return _null(*_key(name), truth)
        case IsNull() | TopicMatch():
            return [_test(atom, truth)]
        case Comparison() | In() | StartsWith() | Like() | Regexp():
            return [*_present(atom), _test(atom, truth)]
        case _:
            return [_test(atom, truth)]  # a part that was too large to take apart


def _where(name: Name) -> int:
    """Where the index looks a name up; 0 if it does not."""
    match name.kind:
        case NameKind.ATTRIBUTE:
            return ATTRIBUTE
        case NameKind.CONTEXT:
            return CONTEXT
        case NameKind.HEADER:
            return HEADERS.get(name.name, 0)


def _key(name: Name) -> tuple[int, bytes]:
    where = _where(name)
    return where, name.name.encode() if where >= ATTRIBUTE else b""


def _present(atom: Condition) -> list[Term]:
    """Every operand is there: otherwise the atom would be unknown."""
    found = sorted(names(atom), key=lambda name: (name.kind.value, name.name))
    return [(RANGE, *_key(name), ANY, *OPEN) for name in found if _where(name) >= ATTRIBUTE]


def _test(
    atom: Condition, truth: bool, sort: int = ANY, piece: str = "", at_start: bool = False
) -> Term:
    """An atom as a test. If it is about one name only, it cannot hold unless that is there."""
    where, raw = 0, b""
    match atom:
        case Comparison(_, Name() as name, Literal()) | In(Name() as name):
            where, raw = _key(name)
        case Like(Name() as name) | Regexp(Name() as name) | StartsWith(Name() as name):
            where, raw = _key(name)
        case TopicMatch() if sort == STRING:
            where = HEADERS["topic"]
    key = b"%d?%b" % (truth, text_of(atom).encode())
    test = compile_condition(atom)
    if 0 < where < ATTRIBUTE and sort == ANY:
        where = 0
    price = bounds.cost(atom)
    return (TEST, key, test, int(truth), price, where, raw, sort, piece.encode(), at_start)


# ------------------------------------------------------------------------- distance

_SLACK = 1e-9  # of the sphere, for rounding: far more than it takes


def _box(distance: Distance, value: Value) -> list[Term]:
    """Ranges around a circle: DISTANCE(a, b, latitude, longitude) < value, literals on one side."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    points = distance.points
    for (here, there), (across, along) in (
        (points[:2], points[2:]),
        (points[2:], points[:2]),
    ):
        centre = _degrees(here, 90), _degrees(there, 180)
        if None not in centre:
            return _ranges(across, along, centre[0], centre[1], value)  # type: ignore[arg-type]
    return []


def _degrees(operand: Operand, bound: int) -> float | None:
    if isinstance(operand, Literal) and type(operand.value) in (int, float):
        number = float(operand.value)  # type: ignore[arg-type]
        return number if -bound <= number <= bound else None
    return None


def _ranges(
    across: Operand, along: Operand, latitude: float, longitude: float, metres: float
) -> list[Term]:
    angle = max(metres, 0.0) / EARTH_RADIUS_M * (1 + _SLACK) + _SLACK
    if angle >= math.pi / 2:
        return []
    terms: list[Term] = []
    degrees = math.degrees(angle)
    low, high = latitude - degrees, latitude + degrees
    if isinstance(across, Name) and _where(across) >= ATTRIBUTE:
        terms.append((RANGE, *_key(across), NUMBER, low, high))
    if low > -90 and high < 90 and isinstance(along, Name) and _where(along) >= ATTRIBUTE:
        width = math.degrees(math.asin(math.sin(angle) / math.cos(math.radians(latitude))))
        width = width * (1 + _SLACK) + _SLACK
        if longitude - width > -180 and longitude + width < 180:  # else it is at both ends
            terms.append((RANGE, *_key(along), NUMBER, longitude - width, longitude + width))
    return terms
