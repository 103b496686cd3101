"""The normal form of a selector: an OR of ANDs, for those who want to find it rather than ask it.

Rules:

- A selector matches when it is *true*. So the form speaks of two truths: an atom must be true, or
  an atom must be false. With NOT moved down to the atoms nothing else is left: NOT a is true when a
  is false; a AND b is false when a is false or b is; unknown is neither.
- It has at most as many ANDs as the caller allows. A part that would make more of them stays
  whole, as if it were an atom.
- It says the same as the selector: the selector is true for a message when and only when in one of
  the ANDs every atom has the truth that it must have.
"""

from __future__ import annotations

from typing import TypeAlias

from regraft.model.selector.ast import And, Condition, Literal, Not, Or

Wanted: TypeAlias = tuple[Condition, bool]  # an atom and the truth that it must have


def normal_form(tree: Condition, ands_max: int) -> list[tuple[Wanted, ...]]:
    """The ANDs, of which one must hold. None: it never does. An empty one: it always does."""
    return _when(tree, True, ands_max)


def _when(tree: Condition, truth: bool, ands_max: int) -> list[tuple[Wanted, ...]]:
    match tree:
        case Literal(value):
            return [()] if value is truth else []
        case Not(term):
            return _when(term, not truth, ands_max)
        case And(terms) | Or(terms):
            if isinstance(tree, And) is truth:
                return _all_of(terms, truth, ands_max)
            found = [ands for term in terms for ands in _when(term, truth, ands_max)]
            return found if len(found) <= ands_max else [((tree, truth),)]
        case _:
            return [((tree, truth),)]


def _all_of(terms: tuple[Condition, ...], truth: bool, ands_max: int) -> list[tuple[Wanted, ...]]:
    result: list[tuple[Wanted, ...]] = [()]
    for term in terms:
        found = _when(term, truth, ands_max)
        if len(result) * len(found) > ands_max:
            found = [((term, truth),)]
        result = [(*left, *right) for left in result for right in found]
    return result
