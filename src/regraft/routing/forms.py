"""The form of a filter, as it is compared, from its texts.

Rules:

- `form_of_filter` gives what `Interest` comes to for the same pattern and the parsed selector; a
  test holds the two together. Most selectors are plain comparisons joined by AND. Those are read
  without a tree, which takes a small part of the time, and nodes compare very many.
- A selector that cannot be read is left out: its filter stands for all that its pattern takes. That
  is too much, never too little.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from regraft.errors import LocalError
from regraft.kernels.reader import read_conjunction
from regraft.limits import PATTERNS_CACHED
from regraft.model.selector import Selector, valuesets
from regraft.model.selector.ast import Name, NameKind, TopicMatch
from regraft.model.selector.cover import Form, form_of, in_order
from regraft.model.selector.printer import text_of
from regraft.model.selector.shapes import prefix_cuts
from regraft.model.selector.valuesets import (
    LOWEST,
    NOT_NULL,
    NOTHING,
    NULL,
    Kind,
    ValueSet,
    after_number,
)
from regraft.model.topic_cover import levels_of
from regraft.routing.covering import Interest

# What the reader says of a condition: where its name is looked up, and its relation.
_KINDS = {10: NameKind.ATTRIBUTE, 19: NameKind.CONTEXT}
_RELATIONS = ("=", "<>", "<", "<=", ">", ">=")
_BELOW, _UP_TO, _ABOVE, _FROM, _IN, _IS_NULL, _IS_NOT_NULL = range(2, 9)

_NUMBERS = (LOWEST[Kind.NUMBER], None)  # without bounds

_SETS_CACHED = 4096


def form_of_filter(pattern: str, exact: bool, selector: str) -> tuple[Form, bool]:
    """The form of a filter, and whether its selector was read."""
    topic = _topic(pattern, exact)
    if not selector:
        return topic, True
    read = read_conjunction(selector)
    if read is None or not all(condition[0] in _KINDS for condition in read[1]):
        try:
            return Interest(pattern, exact, Selector.parse(selector)).form, True
        except LocalError:
            return topic, False
    sets = _sets(read[1])
    if sets is None or not topic:
        return (), True
    return (in_order({**topic[0].sets, **sets}),), True


def with_user_filter(form: Form, user: Any) -> Form:
    """The form of a filter together with one that an application brought."""
    return tuple([replace(conjunct, user=user) for conjunct in form])


@lru_cache(PATTERNS_CACHED)
def _topic(pattern: str, exact: bool) -> Form:
    return form_of(TopicMatch(levels_of(pattern, exact).text))


@lru_cache(_SETS_CACHED)
def _name(where: int, name: bytes) -> str:
    return text_of(Name(_KINDS[where], name.decode()))


def _sets(conditions: list[tuple[int, bytes, int, Any]]) -> dict[str, ValueSet] | None:
    """What each name must be; None if that is impossible."""
    found: dict[str, ValueSet] = {}
    bounds: dict[str, tuple[Any, Any]] = {}  # of numbers: from the one, below the other
    for where, raw, relation, value in conditions:
        name = _name(where, raw)
        if _BELOW <= relation <= _FROM and type(value) in (int, float):
            low, high = bounds.get(name, _NUMBERS)
            bound = after_number(value) if relation in (_UP_TO, _ABOVE) else value
            if relation in (_ABOVE, _FROM):
                low = max(low, bound)
            else:
                high = bound if high is None else min(high, bound)
            bounds[name] = low, high
            continue
        one = (
            valuesets.any_of(value)
            if relation == _IN
            else _set(relation, value, type(value).__name__)
        )
        found[name] = valuesets.meet(found[name], one) if name in found else one
    for name, (low, high) in bounds.items():
        if high is not None and high <= low:
            return None
        one = valuesets.part(Kind.NUMBER, (low,) if high is None else (low, high))
        found[name] = valuesets.meet(found[name], one) if name in found else one
    return None if NOTHING in found.values() else found


@lru_cache(_SETS_CACHED)
def _set(relation: int, value: Any, of: str) -> ValueSet:
    """The values that a condition is true for; the type tells 1 from TRUE."""
    if relation < len(_RELATIONS):
        return valuesets.comparison(_RELATIONS[relation], value)
    if relation in (_IS_NULL, _IS_NOT_NULL):
        return NULL if relation == _IS_NULL else NOT_NULL
    return valuesets.part(Kind.STRING, prefix_cuts(value.decode()))
