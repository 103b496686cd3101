"""How often filters match very many messages: a run of frames against the match index.

A message counts in a *slot*, which is the part of time that the caller puts it into. Of every
so-manieth message the filters are kept as well, so that one can see which of them match together.
There is no Python object per message.
"""

from __future__ import annotations

from regraft.kernels.matching import Index

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from array import array

    from regraft.kernels.arrays import Ints, pointer
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import HEADER, u32

    def as_bytes(numbers: Ints, count: int) -> bytes:
        """Numbers as memory has them."""
        return array("i", numbers.a[:count]).tobytes()


class Tally:
    """Matches by slot and filter. `every` is 0, or which messages are kept with their filters."""

    def __init__(self, index: Index, filters: int, slots: int, every: int) -> None:
        self.index = index
        self.filters = filters
        self.slots = slots
        self.every = every
        self.seen = 0
        self.matches = 0
        self.scan = Scan()
        self.patterns = Ints()
        self.counts = Ints()
        self.counts.reserve(filters * slots)
        self.kept_rows = Ints()
        self.kept_filters = Ints()

    def run(self, frames: bytes, slots: bytes) -> int:
        """Count frames; `slots` has four bytes for each. How many frames there were."""
        p = pointer(frames)
        slot = pointer(slots)
        rows = len(slots) // 4
        end = len(frames)
        at = 0
        row = 0
        while at < end and row < rows:
            size = u32(p, at) + 4
            self.one(p, at + HEADER, at + size, u32(slot, 4 * row))
            at += size
            row += 1
        return row

    def one(self, p: bytes, start: int, end: int, slot: int) -> bool:
        """Count one envelope."""
        index = self.index
        scan = self.scan
        fault = scan.scan(p, start, end)
        assert fault == 0, fault
        assert slot < self.slots, slot
        keep = self.every > 0 and self.seen % self.every == 0
        base = slot * self.filters
        n = index.topics.match(p, scan.topic_at, scan.topic_end)
        found = index.topics.hits
        patterns = self.patterns
        patterns.n = 0
        for k in range(n):
            number = found.a[k]
            if index.by_pattern.a[number]:
                self.count(base, index.by_pattern.a[number] - 1, keep)
            if index.searched.a[number]:
                patterns.push(number)
        if index.searched_anywhere or patterns.n:
            index.find(scan, p, start, end, patterns, 0)
            for k in range(index.hits.n):
                self.count(base, index.hits.a[k], keep)
        self.seen += 1
        return True

    def count(self, base: int, filter: int, keep: bool) -> bool:
        """One match."""
        self.counts.a[base + filter] += 1
        self.matches += 1
        if keep:
            self.kept_rows.push(self.seen // self.every)
            self.kept_filters.push(filter)
        return True

    def counted(self) -> bytes:
        """All counts, four bytes each, slot by slot."""
        return as_bytes(self.counts, self.filters * self.slots)

    def kept(self) -> tuple[bytes, bytes]:
        """The messages that were kept, by number, and beside each the filter that matched."""
        n = self.kept_rows.n
        return as_bytes(self.kept_rows, n), as_bytes(self.kept_filters, n)
