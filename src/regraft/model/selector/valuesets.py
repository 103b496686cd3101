"""Sets of the values that a name may have: what a condition on one name comes down to.

Rules:

- Values fall into kinds: NULL, NaN, booleans, numbers, strings, bytes, timestamps. Unlike kinds
  never meet, so a set is one part for each kind.
- Every kind is in order, and every value of it has a next one: of a number the next 64-bit integer
  or double, whichever is less; of strings and bytes the same with a NUL; of a timestamp the next
  microsecond. So every range is from `low` on, up to but without `high`, and a part is its *cuts*:
  the values in order at which one goes into the set or out of it again. The last way out is left
  out where the set goes on to the end. One set has one form, and no two numbers or strings are
  thought to have others between them that do not exist.
- The strings of a set may have to fit shapes too (`shapes`).
- The names of headers have only the values that messages have there: `universe`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from regraft.model.message import PRIORITY_MAX, DeliveryMode, Timestamp, Value
from regraft.model.selector import shapes as strings
from regraft.model.selector.ast import INT_MAX, INT_MIN
from regraft.model.selector.shapes import Shapes

Cuts: TypeAlias = tuple[Any, ...]  # values of one kind


class Kind(IntEnum):
    """What is compared with one another, NULL and NaN for themselves."""

    NULL = 0
    NAN = 1
    BOOL = 2
    NUMBER = 3
    STRING = 4
    BYTES = 5
    TIMESTAMP = 6


_KINDS = tuple(Kind)
LOWEST: tuple[Any, ...] = (0, 0, False, -math.inf, "", b"", INT_MIN)


def key_of(value: Value) -> tuple[Kind, Any]:
    """The kind of a value that is not NaN, and what its kind is ordered by."""
    if isinstance(value, bool):  # before int, of which bool is a kind
        return Kind.BOOL, value
    if isinstance(value, int | float):
        return Kind.NUMBER, value
    if isinstance(value, str):
        return Kind.STRING, value
    if isinstance(value, bytes):
        return Kind.BYTES, value
    assert isinstance(value, Timestamp)
    return Kind.TIMESTAMP, value.us


def after(kind: Kind, key: Any) -> Any:
    """The next value of a kind; None after the last."""
    match kind:
        case Kind.NULL | Kind.NAN:
            return None
        case Kind.BOOL:
            return None if key else True
        case Kind.NUMBER:
            return after_number(key)
        case Kind.STRING:
            return key + "\0"
        case Kind.BYTES:
            return key + b"\0"
        case Kind.TIMESTAMP:
            return key + 1


def after_number(number: int | float) -> int | float | None:
    """The next number; None after infinity."""
    if number == math.inf:
        return None
    double = float(number)
    if double <= number:  # an integer is rounded up, or it is not and the next double is above
        double = math.nextafter(double, math.inf)
    whole = math.floor(number) + 1 if number >= INT_MIN else INT_MIN
    return min(double, whole) if whole <= INT_MAX else double


# ------------------------------------------------------------------------ cuts


def pairs(cuts: Cuts) -> Iterator[tuple[Any, Any]]:
    """Ranges: where they begin and what is no longer in them, None for the end."""
    for index in range(0, len(cuts), 2):
        yield cuts[index], cuts[index + 1] if index + 1 < len(cuts) else None


def points_of(kind: Kind, cuts: Cuts) -> list[Any] | None:
    """The values of a part, if each stands alone."""
    found = []
    for low, high in pairs(cuts):
        if after(kind, low) != high:
            return None
        found.append(low)
    return found


def cuts_within(inner: Cuts, outer: Cuts) -> bool:
    """Whether every value of one part is in the other."""
    if len(inner) == 2 and len(outer) == 2:  # one range in another, the usual case
        return bool(outer[0] <= inner[0] and inner[1] <= outer[1])
    for low, high in pairs(inner):
        index = bisect_right(outer, low)
        if index % 2 == 0:
            return False
        if index < len(outer) and (high is None or outer[index] < high):
            return False
    return True


def cuts_meet(one: Cuts, other: Cuts) -> Cuts:
    """What is in both."""
    if not one or not other or one == other:
        return other if one else one
    found: list[Any] = []
    for cut in sorted({*one, *other}):
        inside = bisect_right(one, cut) % 2 == 1 and bisect_right(other, cut) % 2 == 1
        if inside != (len(found) % 2 == 1):
            found.append(cut)
    return tuple(found)


def cuts_join(many: Iterable[Cuts]) -> Cuts:
    """What is in any."""
    steps: dict[Any, int] = {}  # at a cut, into how many more one goes than out of others
    for cuts in many:
        for index, cut in enumerate(cuts):
            steps[cut] = steps.get(cut, 0) + (-1 if index % 2 else 1)
    found: list[Any] = []
    depth = 0
    for cut in sorted(steps):
        depth += steps[cut]
        if (depth > 0) != (len(found) % 2 == 1):
            found.append(cut)
    return tuple(found)


def cuts_but(kind: Kind, cuts: Cuts) -> Cuts:
    """What is in a kind but not in a part of it."""
    lowest = LOWEST[kind]
    return cuts[1:] if cuts and cuts[0] == lowest else (lowest, *cuts)


def _whole(cuts: Cuts) -> Cuts:
    """The same integers, with integers as cuts."""
    found: list[Any] = []
    for cut in cuts:
        whole = cut if isinstance(cut, float) and math.isinf(cut) else math.ceil(cut)
        if found and found[-1] == whole:
            found.pop()
        else:
            found.append(whole)
    return tuple(found)


# ------------------------------------------------------------------------ sets


@dataclass(frozen=True, slots=True)
class ValueSet:
    """Values that a name may have."""

    parts: tuple[Cuts, ...]  # one for each kind
    shapes: Shapes = frozenset()  # of its strings
    kinds: tuple[Kind, ...] = field(init=False, repr=False, compare=False)  # that have values

    def __post_init__(self) -> None:
        found = tuple([kind for kind, cuts in zip(_KINDS, self.parts, strict=True) if cuts])
        object.__setattr__(self, "kinds", found)


_EMPTY: tuple[Cuts, ...] = ((),) * len(Kind)
NOTHING = ValueSet(_EMPTY)
ANYTHING = ValueSet(tuple((lowest,) for lowest in LOWEST))


def part(kind: Kind, cuts: Cuts, shapes: Shapes = frozenset()) -> ValueSet:
    """Values of one kind."""
    return ValueSet((*_EMPTY[:kind], cuts, *_EMPTY[kind + 1 :]), shapes)


NULL = part(Kind.NULL, (0,))
NOT_NULL = ValueSet(((), *ANYTHING.parts[1:]))


def comparison(operator: str, value: Value) -> ValueSet:
    """What compares so with a literal: true."""
    kind, key = key_of(value)
    lowest, following = LOWEST[kind], after(kind, key)
    upper: Cuts = () if following is None else (following,)
    if operator in ("=", "<>"):
        point = (key, *upper)
        return part(kind, point if operator == "=" else cuts_but(kind, point))
    if kind is Kind.BOOL:
        return NOTHING
    match operator:
        case ">":
            return part(kind, upper)
        case ">=":
            return part(kind, (key,))
        case "<":
            return part(kind, (lowest, key) if key != lowest else ())
        case _:
            return part(kind, (lowest, *upper))


def any_of(values: Iterable[Value]) -> ValueSet:
    """What equals one of some literals."""
    cuts: dict[Kind, set[Any]] = {}
    for kind, key in set(map(key_of, values)):
        # A cut out of one point and into the next is none.
        both = {key, after(kind, key)} - {None}
        cuts[kind] = cuts.get(kind, set()) ^ both
    return ValueSet(tuple(tuple(sorted(cuts.get(kind, ()))) for kind in Kind))


def known_but(found: ValueSet) -> ValueSet:
    """All but NULL and a set without shapes: where a test is false that is true in the set."""
    parts = [cuts_but(kind, found.parts[kind]) for kind in Kind]
    return ValueSet(((), *parts[1:]))


def meet(one: ValueSet, other: ValueSet) -> ValueSet:
    """What is in both sets; `NOTHING` if that is found out."""
    parts = list(_EMPTY)
    for kind in one.kinds:
        parts[kind] = cuts_meet(one.parts[kind], other.parts[kind])
    return _made(parts, one.shapes | other.shapes)


def _made(parts: list[Cuts], shapes: Shapes) -> ValueSet:
    parts[Kind.STRING], shapes = strings.trimmed(parts[Kind.STRING], shapes)
    return ValueSet(tuple(parts), shapes)


def joined(many: Iterable[ValueSet]) -> list[ValueSet]:
    """What is in any, in as few sets as it takes: those with unlike shapes stay apart."""
    groups: dict[Shapes, list[ValueSet]] = {}
    for one in many:
        groups.setdefault(one.shapes, []).append(one)
    plain = groups.get(frozenset(), [])
    if len(groups) > 1 and not any(one.parts[Kind.STRING] for one in plain):
        groups.pop(frozenset(), None)  # has no strings that a shape could forbid
        next(iter(groups.values())).extend(plain)
    return [
        ValueSet(tuple(cuts_join(one.parts[kind] for one in group) for kind in Kind), shapes)
        for shapes, group in groups.items()
    ]


def within(inner: ValueSet, outer: ValueSet) -> bool:
    """Whether all of one set is in the other; False if that is not proven."""
    for kind in inner.kinds:
        mine, others = inner.parts[kind], outer.parts[kind]
        if not cuts_within(mine, others):
            if kind is not Kind.STRING or not inner.shapes:
                return False
            left = cuts_meet(mine, cuts_but(Kind.STRING, others))
            if strings.find(left, inner.shapes) is not None:
                return False
    if not outer.shapes or outer.shapes == inner.shapes:
        return True
    cuts = inner.parts[Kind.STRING]
    return not cuts or all(strings.implied(cuts, inner.shapes, one) for one in outer.shapes)


# --------------------------------------------------------------------- headers

_SOME_STRING = ("\0",)  # all but the empty one
_UNIVERSES = {
    "$topic": part(Kind.STRING, _SOME_STRING),
    "$type": ValueSet((*_EMPTY[:3], (0, 1 << 32), _SOME_STRING, (), ())),
    "$priority": part(Kind.NUMBER, (0, PRIORITY_MAX + 1)),
    "$timestamp": ValueSet((*NULL.parts[:6], (INT_MIN,))),
    "$expiration": ValueSet((*NULL.parts[:6], (INT_MIN,))),
    "$correlation": ValueSet((*NULL.parts[:4], _SOME_STRING, (), ())),
    "$reply_to": ValueSet((*NULL.parts[:4], _SOME_STRING, (), ())),
    "$from": ValueSet((*NULL.parts[:4], _SOME_STRING, (), ())),
    "$size": part(Kind.NUMBER, (0,)),
    "$delivery_mode": any_of(mode.name for mode in DeliveryMode),
    "$redelivered": any_of([False]),
}
_WHOLE = ("$type", "$priority", "$size")  # their numbers are integers


def universe(name: str) -> ValueSet:
    """All values that a name can have; it is given as it is written in a selector."""
    return _UNIVERSES.get(name, ANYTHING)


def of_name(name: str, found: ValueSet) -> ValueSet:
    """What of a set a name can have."""
    if name in _WHOLE:
        parts = list(found.parts)
        parts[Kind.NUMBER] = _whole(parts[Kind.NUMBER])
        found = ValueSet(tuple(parts), found.shapes)
    possible = universe(name)
    return found if possible is ANYTHING and not found.shapes else meet(found, possible)
