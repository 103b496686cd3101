"""Sets of sequences as ranges: what was settled out of order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from regraft.journal.format import Range


class Ranges:
    """Ranges that neither touch nor overlap, in order. Both ends belong to a range."""

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self, pairs: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0  # sequences in all of them
        for first, last in pairs:
            self.add(first, last)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._ends, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._starts, sequence) - 1
        return at >= 0 and sequence <= self._ends[at]

    @property
    def highest(self) -> int:
        """The last sequence of all; 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    def touches(self, first: int, last: int) -> bool:
        """Whether adding it would not make another range."""
        at = bisect_left(self._ends, first - 1)
        return at < len(self._starts) and self._starts[at] <= last + 1

    def add(self, first: int, last: int) -> list[Range]:
        """Put a range in; the parts of it that were not there before."""
        low = bisect_left(self._ends, first - 1)  # the first that it touches or overlaps
        high = bisect_right(self._starts, last + 1)  # behind the last such
        new: list[Range] = []
        at = first
        for start, end in zip(self._starts[low:high], self._ends[low:high], strict=True):
            if at < start:
                new.append((at, min(start - 1, last)))
            at = max(at, end + 1)
        if at <= last:
            new.append((at, last))
        if low < high:
            first = min(first, self._starts[low])
            last = max(last, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [last]
        self.count += sum(b - a + 1 for a, b in new)
        return new

    def cut(self, floor: int) -> int:
        """Remove what is below `floor`, and a range that begins there; the floor behind it."""
        at = bisect_right(self._starts, floor)
        for start, end in zip(self._starts[:at], self._ends[:at], strict=True):
            self.count -= end - start + 1
        if at and self._ends[at - 1] >= floor:
            floor = self._ends[at - 1] + 1
        del self._starts[:at], self._ends[:at]
        return floor

    def gaps(self, first: int, last: int) -> list[Range]:
        """The parts of a range that are not in here."""
        found: list[Range] = []
        at = first
        low = bisect_left(self._ends, first)
        for start, end in zip(self._starts[low:], self._ends[low:], strict=True):
            if start > last:
                break
            if at < start:
                found.append((at, start - 1))
            at = end + 1
        if at <= last:
            found.append((at, last))
        return found
