"""The interests that are left when those are taken away that others cover.

A routing table tells a neighbour what everybody else wants, reduced: one `CoverIndex` for all, and
for each neighbour a `Reduction` with the numbers of everybody else.

Rules:

- `shown` has the numbers that no other number of the reduction covers. Of interests that cover each
  other the smallest number stands for all.
- A number is added to the index, then to the reductions; it is removed from the reductions, then
  from the index. In between the index must not change, so that it searches once for all of them.
- Inside is a forest of groups: what is covered stands below something that covers it, as close as
  is known. So a group that goes away concerns only those right below it. That the forest has no
  rings is seen to, and not taken from `covers`: where that does not see that a covers c, though a
  covers b and b covers c, nothing must get lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

from regraft.routing.covering import CoverIndex

_TRIED = 16  # groups among which the closest is looked for
_DEEP = 32  # levels that are counted to find it


_NONE: frozenset[int] = frozenset()


class Change(NamedTuple):
    """What happened to the numbers that are shown."""

    shown: frozenset[int]
    hidden: frozenset[int]  # gone or covered


class Reduction:
    """Some numbers of an index, those that are covered hidden."""

    def __init__(self, index: CoverIndex) -> None:
        self._index = index
        self._members: dict[int, tuple[int, ...]] = {}  # of a group, those that are in here
        self._parent: dict[int, int] = {}
        self._children: dict[int, dict[int, None]] = {}
        self._shared: set[int] = set()  # groups whose children a copy has, too
        self._stands: dict[int, int] = {}  # for a group that is not covered, the number shown

    @property
    def shown(self) -> set[int]:
        """The numbers that stand for all."""
        return set(self._stands.values())

    @property
    def groups(self) -> Collection[int]:
        """The groups of the numbers that stand for all."""
        return self._stands.keys()

    def __contains__(self, number: int) -> bool:
        members = self._members.get(self._index.group_of(number))
        return members is not None and number in members

    def stands_for(self, group: int) -> int | None:
        """The number that is shown for a group; None if it is covered, or not here."""
        return self._stands.get(group)

    def copy(self) -> Reduction:
        """Another one with the same numbers."""
        made = Reduction(self._index)
        made._members = self._members.copy()
        made._parent = self._parent.copy()
        made._children = self._children.copy()
        self._shared = set(self._children)
        made._shared = self._shared.copy()
        made._stands = self._stands.copy()
        return made

    def add(self, number: int) -> Change:
        """Take in a number of the index."""
        group = self._index.group_of(number)
        members = self._members.get(group)
        if members is not None:
            place = bisect_left(members, number)
            self._members[group] = (*members[:place], number, *members[place:])
            return self._settled([group])
        self._members[group] = (number,)
        if not self._index.above(group) and not self._index.below(group):  # as it often is
            self._stands[group] = number
            return Change(frozenset((number,)), _NONE)
        closest = self._closest_above(group)
        if closest is not None:
            self._put(group, closest)
        moved = [
            other
            for other in self._index.below(group)
            if other in self._members and self._parent.get(other) == closest
        ]
        for other in moved:
            self._put(other, group)
        return self._settled([group, *moved])

    def remove(self, number: int) -> Change:
        """Let a number go that is still in the index."""
        group = self._index.group_of(number)
        members = self._members[group]
        if len(members) > 1:
            self._members[group] = tuple([one for one in members if one != number])
            return self._settled([group])
        del self._members[group]
        above = self._parent.get(group)
        children = list(self._children.get(group, ()))
        self._put(group, None)
        for child in children:
            self._put(child, above)
        if above is not None:
            return self._settled([group])
        for child in children:
            self._put(child, self._closest_above(child))
        return self._settled([group, *children])

    def _closest_above(self, group: int) -> int | None:
        """A group in here that covers one: the deepest of some, and none that stands below it."""
        tried = islice((g for g in self._index.above(group) if g in self._members), _TRIED)
        for other in sorted(tried, key=self._depth, reverse=True):
            if not self._stands_below(other, group):
                return other
        return None

    def _depth(self, group: int) -> int:
        """How many stand above a group; of very many, that they are many."""
        depth = 0
        while depth < _DEEP and group in self._parent:
            depth, group = depth + 1, self._parent[group]
        return depth

    def _stands_below(self, group: int, other: int) -> bool:
        if other not in self._children:
            return False
        while group != other and group in self._parent:
            group = self._parent[group]
        return group == other

    def _put(self, group: int, above: int | None) -> None:
        """Stand a group below another, or below none."""
        old = self._parent.pop(group, None)
        if old is not None:
            children = self._own(old)
            del children[group]
            if not children:
                del self._children[old]
        if above is not None:
            self._parent[group] = above
            self._own(above)[group] = None

    def _own(self, group: int) -> dict[int, None]:
        """The children of a group, to be changed: no copy notices it."""
        children = self._children.get(group)
        if children is None:
            self._shared.discard(group)
            children = self._children[group] = {}
        elif group in self._shared:
            self._shared.remove(group)
            children = self._children[group] = children.copy()
        return children

    def _settled(self, groups: Iterable[int]) -> Change:
        """What has changed for groups."""
        shown, hidden = set(), set()
        for group in groups:
            stood = self._stands.pop(group, None)
            if group in self._members and group not in self._parent:
                stands = self._stands[group] = self._members[group][0]
                if stands == stood:
                    continue
                shown.add(stands)
            if stood is not None:
                hidden.add(stood)
        return Change(frozenset(shown), frozenset(hidden))
