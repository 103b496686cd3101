"""Which condition is true whenever another is, and which can be true of the same message.

Rules:

- A condition becomes a *form*: the ways in which it can be true, each a *conjunct*. A conjunct says
  for some names in which set their values are (`valuesets`), and names tests that must be true or
  false and of which nothing more is known: arithmetic, distances, names compared with names.
- NOT goes inward by the rules of three-valued logic: NOT a is true where a is false, which is not
  everywhere where it is not true. OR is a set again where only one name differs.
- The form means exactly what the condition means. Where it would have more than `CONJUNCTS_MAX`
  conjuncts or `SHAPES_MAX` shapes, terms of AND, or the whole OR, are taken for such a test of
  which nothing is known.
- `covers` is never true wrongly, `overlaps` never false wrongly. What asks only for names and
  literals is compared exactly: comparisons, BETWEEN, IN, IS NULL, STARTS_WITH, LIKE, TOPIC, and
  AND and NOT of them; for `covers` as far as the covering side has one conjunct, as OR of one
  name has too. "Exactly" is as far as `shapes` decides.
- A test of which nothing is known covers only itself; a REGEXP covers single strings, too. A filter
  that an application brought says itself what it covers.
- Of several conjuncts each must be covered by a single one of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from regraft.model.selector import valuesets
from regraft.model.selector.ast import (
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
    Node,
    Not,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
    children,
    names,
    walk,
)
from regraft.model.selector.evaluate import evaluate
from regraft.model.selector.patterns import like_items
from regraft.model.selector.printer import text_of
from regraft.model.selector.shapes import Shape, ShapeKind, prefix_cuts, topic_cuts
from regraft.model.selector.valuesets import (
    ANYTHING,
    NOT_NULL,
    NOTHING,
    NULL,
    Kind,
    ValueSet,
    any_of,
    comparison,
    known_but,
    of_name,
    part,
    universe,
)
from regraft.model.topic_cover import levels_of

CONJUNCTS_MAX = 32  # of one form
SHAPES_MAX = 8  # of one form, but patterns that a topic must fit, which are quickly compared

TOPIC_NAME = "$topic"


@dataclass(frozen=True, slots=True)
class Conjunct:
    """One way in which a condition can be true."""

    sets: dict[str, ValueSet] = field(default_factory=dict)  # by name; none is empty or all
    tests: frozenset[tuple[str, bool]] = frozenset()  # texts, and what they must be
    user: Any = None  # a filter that an application brought: it has `covers`, for another or None

    def __hash__(self) -> int:
        return hash((frozenset(self.sets.items()), self.tests, self.user))


Form: TypeAlias = tuple[Conjunct, ...]  # none: never true

_ANYWAY = Conjunct()
_ALWAYS: list[Conjunct] = [_ANYWAY]


def covers(a: Condition, b: Condition) -> bool:
    """Whether every message that makes b true makes a true; False if that is not proven."""
    return form_covers(form_of(a), form_of(b))


def overlaps(a: Condition, b: Condition) -> bool:
    """Whether some message may make both true; False only if that is impossible."""
    return form_overlaps(form_of(a), form_of(b))


def form_of(condition: Condition) -> Form:
    """The form of a canonical condition, for many comparisons."""
    return tuple([in_order(one.sets, one.tests) for one in _ways(condition, True)])


def form_covers(a: Form, b: Form) -> bool:
    """`covers`, of forms."""
    if len(a) == 1 and len(b) == 1:  # the usual case
        return conjunct_covers(a[0], b[0])
    return all(any(conjunct_covers(one, other) for one in a) for other in b)


def form_overlaps(a: Form, b: Form) -> bool:
    """`overlaps`, of forms."""
    return any(_meet(one, other) is not None for one in a for other in b)


def conjunct_covers(a: Conjunct, b: Conjunct, besides: str = "") -> bool:
    """Whether b has all that a asks for, of a name perhaps that is known already."""
    mine, others = a.sets, b.sets
    if len(mine) > len(others) or not a.tests <= b.tests:
        return False
    for name, wanted in mine.items():
        found = others.get(name)
        if found is None:  # then it can be anything, and what is wanted is not anything
            return False
        if found is not wanted and name != besides and not valuesets.within(found, wanted):
            return False
    return a.user is None or bool(a.user.covers(b.user))


def in_order(
    sets: dict[str, ValueSet], tests: frozenset[tuple[str, bool]] = frozenset()
) -> Conjunct:
    """A conjunct, with what is quickly compared in front."""

    def slowness(name: str) -> tuple[int, int, str]:
        found = sets[name]
        return len(found.shapes), sum([len(cuts) for cuts in found.parts]), name

    return Conjunct({name: sets[name] for name in sorted(sets, key=slowness)}, tests)


# ----------------------------------------------------------------------- forms


def _ways(tree: Condition, truth: bool) -> list[Conjunct]:
    """How a condition can be true, or how it can be false."""
    match tree:
        case Literal(value):
            return _ALWAYS if (value is True) is truth else []
        case Not(term):
            return _ways(term, not truth)
        case And(terms):
            return _all_of(terms, truth) if truth else _any_of(tree, terms, truth)
        case Or(terms):
            return _any_of(tree, terms, truth) if truth else _all_of(terms, truth)
        case Between(operand, low, high):
            parts = Comparison(">=", operand, low), Comparison("<=", operand, high)
            return _ways(And(parts), truth)
        case _:
            return _atom(tree, truth)


def _all_of(terms: Iterable[Condition], truth: bool) -> list[Conjunct]:
    found = _ALWAYS
    left: set[tuple[str, bool]] = set()
    # The short ones first: they make the most of what is allowed.
    for term, ways in sorted([(t, _ways(t, truth)) for t in terms], key=lambda pair: len(pair[1])):
        shapes = _shapes(found) * len(ways) + _shapes(ways) * len(found)
        if len(found) * len(ways) > CONJUNCTS_MAX or shapes > SHAPES_MAX:
            left.add((text_of(term), truth))
            continue
        met = [_meet(one, other) for one in found for other in ways]
        found = [conjunct for conjunct in met if conjunct is not None]
        if len(ways) > 1:
            found = _merged(found)
    if not left:
        return found
    unknown = Conjunct(tests=frozenset(left))
    return [both for one in found if (both := _meet(one, unknown)) is not None]


def _any_of(tree: Condition, terms: Iterable[Condition], truth: bool) -> list[Conjunct]:
    found = _merged([conjunct for term in terms for conjunct in _ways(term, truth)])
    if len(found) > CONJUNCTS_MAX or _shapes(found) > SHAPES_MAX:
        return [_unknown(tree, truth)]
    return found


def _shapes(conjuncts: Iterable[Conjunct]) -> int:
    """How many shapes there are that take long to compare."""
    return sum(
        not (sign and shape.kind is ShapeKind.TOPIC)
        for conjunct in conjuncts
        for found in conjunct.sets.values()
        for shape, sign in found.shapes
    )


def _unknown(tree: Condition, truth: bool) -> Conjunct:
    return Conjunct(tests=frozenset({(text_of(tree), truth)}))


def _meet(one: Conjunct, other: Conjunct) -> Conjunct | None:
    """Both; None if that is impossible."""
    tests = one.tests | other.tests
    if tests and any((text, not truth) in tests for text, truth in tests):
        return None
    sets = dict(one.sets)
    for name, found in other.sets.items():
        if name in sets:
            found = valuesets.meet(sets[name], found)
            if found == NOTHING:
                return None
        sets[name] = found
    return Conjunct(sets, tests)


def _merged(conjuncts: list[Conjunct]) -> list[Conjunct]:
    """The same in fewer: those that differ in one name become one, the covered ones none."""
    if len(conjuncts) < 2:
        return conjuncts
    for name in sorted({name for conjunct in conjuncts for name in conjunct.sets}):
        conjuncts = _merged_on(name, conjuncts)
    # Shapes take long to compare, and there may still be many.
    if len(conjuncts) > CONJUNCTS_MAX or _shapes(conjuncts):
        return conjuncts
    kept: list[Conjunct] = []
    for conjunct in conjuncts:
        if not any(conjunct_covers(other, conjunct) for other in kept):
            kept = [other for other in kept if not conjunct_covers(conjunct, other)]
            kept.append(conjunct)
    return kept


def _merged_on(name: str, conjuncts: list[Conjunct]) -> list[Conjunct]:
    """With one conjunct for those that are the same but for the set of a name."""
    found: list[Conjunct] = []
    alike: dict[Conjunct, list[Conjunct]] = {}  # by what they are without the name
    for conjunct in conjuncts:
        if name not in conjunct.sets:
            found.append(conjunct)
            continue
        others = {other: kept for other, kept in conjunct.sets.items() if other != name}
        alike.setdefault(Conjunct(others, conjunct.tests), []).append(conjunct)
    for rest, group in alike.items():
        if len(group) == 1:
            found += group
        else:
            sets = valuesets.joined(conjunct.sets[name] for conjunct in group)
            found += [_with(rest, name, one) for one in sets]
    return found


def _with(rest: Conjunct, name: str, found: ValueSet) -> Conjunct:
    possible = universe(name)
    if found == possible or (found.shapes and valuesets.within(possible, found)):
        return rest
    return Conjunct({**rest.sets, name: found}, rest.tests)


# ----------------------------------------------------------------------- atoms


def _atom(atom: Condition, truth: bool) -> list[Conjunct]:
    match atom:
        case Comparison(operator, Name() as name, Literal(value)):
            return _cut(name, comparison(operator, value), truth)
        case In(Name() as name, items):
            return _cut(name, any_of(item.value for item in items), truth)
        case StartsWith(Name() as name, prefix):
            return _cut(name, part(Kind.STRING, prefix_cuts(prefix)), truth)
        case IsNull(name):
            return _of(text_of(name), NULL if truth else NOT_NULL)
        case TopicMatch(pattern):
            return _topic(pattern, truth)
        case Like(Name() as name, pattern, escape):
            shape = Shape(ShapeKind.LIKE, pattern, escape)
            return _shaped(text_of(name), shape, prefix_cuts(_like_prefix(pattern, escape)), truth)
        case Regexp(Name() as name, pattern):
            return _shaped(text_of(name), Shape(ShapeKind.REGEXP, pattern), ("",), truth)
        case _:
            return _opaque(atom, truth)


def _of(name: str, found: ValueSet) -> list[Conjunct]:
    found = of_name(name, found)
    return [] if found == NOTHING else [_with(_ANYWAY, name, found)]


def _cut(name: Name, true: ValueSet, truth: bool) -> list[Conjunct]:
    return _of(text_of(name), true if truth else known_but(true))


def _shaped(name: str, shape: Shape, cuts: tuple[str, ...], truth: bool) -> list[Conjunct]:
    """A shape, which only strings within some cuts fit."""
    shapes = frozenset({(shape, truth)})
    if truth:
        return _of(name, part(Kind.STRING, cuts, shapes))
    return _of(name, ValueSet(NOT_NULL.parts, shapes))


def _like_prefix(pattern: str, escape: str | None) -> str:
    prefix = ""
    for item in like_items(pattern, escape):
        if not isinstance(item, str):
            break
        prefix += item
    return prefix


def _topic(pattern: str, truth: bool) -> list[Conjunct]:
    levels = levels_of(pattern, exact=True)
    cuts, exact = topic_cuts(levels)
    if exact:
        true = part(Kind.STRING, cuts)
        return _of(TOPIC_NAME, true if truth else known_but(true))
    shape = Shape(ShapeKind.TOPIC, levels.text)
    if truth:  # some topics fit, not all, and all are in its cuts: there is nothing to find out
        return [Conjunct({TOPIC_NAME: part(Kind.STRING, cuts, frozenset({(shape, True)}))})]
    return _shaped(TOPIC_NAME, shape, cuts, truth)


def _opaque(atom: Condition, truth: bool) -> list[Conjunct]:
    """A test that has a value only where those of its names are of the right kind."""
    if not names(atom) and not any(isinstance(node, Distance) for node, _ in walk(atom)):
        return _ALWAYS if evaluate(atom, lambda _: None) is truth else []
    found = [_unknown(atom, truth)]
    for child in children(atom):
        for name, wanted in _needs(child, NOT_NULL):
            found = [
                both
                for one in found
                for other in _of(text_of(name), wanted)
                if (both := _meet(one, other)) is not None
            ]
    return found


_NUMBER = ValueSet(((), *ANYTHING.parts[1:2], (), *ANYTHING.parts[3:4], (), (), ()))


def _needs(node: Node, wanted: ValueSet) -> Iterable[tuple[Name, ValueSet]]:
    """What the names of an operand must be, so that it is not NULL."""
    match node:
        case Name():
            yield node, wanted
        case Arithmetic() | Negate():
            for child in children(node):
                yield from _needs(child, _NUMBER)
        case Distance(points):
            for child, bound in zip(points, (90, 180, 90, 180), strict=True):
                degrees = valuesets.meet(comparison(">=", -bound), comparison("<=", bound))
                yield from _needs(child, degrees)
        case _:
            return
