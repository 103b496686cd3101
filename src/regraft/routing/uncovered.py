"""The index and the reduction for neighbours that are told everything: nothing covers anything.

They stand in for `CoverIndex` and `Reduction` where covering is off. Each number is a group.
"""

from __future__ import annotations

from collections.abc import Collection

from regraft.model.selector.cover import Form
from regraft.routing.reduction import Change

_NONE: frozenset[int] = frozenset()


class PlainIndex:
    """Numbers, each for itself."""

    comparisons = 0

    def add_form(self, number: int, form: Form) -> None:
        """Nothing has to be known of it."""

    def remove(self, number: int) -> None:
        """Nothing was known of it."""

    def group_of(self, number: int) -> int:
        """Itself."""
        return number

    def members(self, group: int) -> Collection[int]:
        """Itself."""
        return (group,)


class Unreduced:
    """Numbers, all of them shown."""

    def __init__(self, numbers: set[int] | None = None) -> None:
        self._numbers: set[int] = set() if numbers is None else numbers

    @property
    def groups(self) -> Collection[int]:
        """All that are here."""
        return self._numbers

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def stands_for(self, group: int) -> int | None:
        """Itself, if it is here."""
        return group if group in self._numbers else None

    def add(self, number: int) -> Change:
        """Take in a number."""
        self._numbers.add(number)
        return Change(frozenset((number,)), _NONE)

    def remove(self, number: int) -> Change:
        """Let a number go."""
        self._numbers.remove(number)
        return Change(_NONE, frozenset((number,)))

    def copy(self) -> Unreduced:
        """Another one with the same numbers."""
        return Unreduced(self._numbers.copy())
