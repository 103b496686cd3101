"""What a member of a mailbox has in its hands: delivered, and not settled."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class Held(NamedTuple):
    """How messages were delivered."""

    attempts: int  # before this one
    priority: int
    lease_ns: int  # until when; 0: as long as the member is there


Piece = tuple[int, int, Held]  # first, last


class Tally:
    """How many messages are in some hands."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Hand:
    """Runs of sequences, in order; each was delivered in one go."""

    __slots__ = ("_firsts", "_helds", "_lasts", "_tally", "count")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally  # of all members
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._helds: list[Held] = []
        self.count = 0

    def __iter__(self) -> Iterator[Piece]:
        return zip(self._firsts, self._lasts, self._helds, strict=True)

    def add(self, first: int, last: int, held: Held) -> None:
        """These were delivered."""
        at = len(self._firsts)
        if at and self._firsts[-1] > first:
            at = bisect_left(self._firsts, first)
        self._firsts.insert(at, first)
        self._lasts.insert(at, last)
        self._helds.insert(at, held)
        self._counted(last - first + 1)

    def _counted(self, more: int) -> None:
        self.count += more
        self._tally.count += more

    def overlap(self, first: int, last: int) -> list[Piece]:
        """What of a range is in it."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        return [
            (max(first, a), min(last, b), held)
            for a, b, held in zip(
                self._firsts[low:high], self._lasts[low:high], self._helds[low:high], strict=True
            )
        ]

    def take(self, first: int, last: int) -> list[Piece]:
        """The same, and it is in it no more."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high:
            return []
        if high - low == 1 and first <= self._firsts[low] and self._lasts[low] <= last:
            self._counted(self._firsts[low] - self._lasts[low] - 1)
            return [(self._firsts.pop(low), self._lasts.pop(low), self._helds.pop(low))]
        taken = self.overlap(first, last)
        rest: list[Piece] = []
        if self._firsts[low] < first:
            rest.append((self._firsts[low], first - 1, self._helds[low]))
        if self._lasts[high - 1] > last:
            rest.append((last + 1, self._lasts[high - 1], self._helds[high - 1]))
        self._firsts[low:high] = [piece[0] for piece in rest]
        self._lasts[low:high] = [piece[1] for piece in rest]
        self._helds[low:high] = [piece[2] for piece in rest]
        self._counted(-sum(b - a + 1 for a, b, _ in taken))
        return taken

    def take_all(self) -> list[Piece]:
        """All of it."""
        taken = list(self)
        self._counted(-self.count)
        self._firsts, self._lasts, self._helds = [], [], []
        return taken

    def overdue(self, now_ns: int) -> list[Piece]:
        """Take what was held for too long."""
        late = [(a, b) for a, b, held in self if 0 < held.lease_ns <= now_ns]
        return [piece for a, b in late for piece in self.take(a, b)]
