"""Sets of sequences: what was settled out of order.

One bit for each sequence, in pages: who settles every other message of ten million needs little
more than a megabyte for it, and no list of ten million ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from regraft.journal.format import Range

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
FULL = (1 << PAGE) - 1


class Ranges:
    """A set of sequences, seen as ranges that do not touch. Both ends belong to a range."""

    __slots__ = ("_lowest", "_pages", "count", "highest")

    def __init__(self, pairs: Iterable[Range] = ()) -> None:
        self._pages: dict[int, int] = {}  # the bits of each page that has any
        self._lowest = 0  # there is no page below this one
        self.count = 0  # sequences in it
        self.highest = 0  # the last of them; 0 if there is none
        for first, last in pairs:
            self.add(first, last)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[Range]:
        return self.within(self._lowest << PAGE_BITS, self.highest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    def __contains__(self, sequence: int) -> bool:
        return bool(self._pages.get(sequence >> PAGE_BITS, 0) >> (sequence & PAGE - 1) & 1)

    def add(self, first: int, last: int) -> list[Range]:
        """Put a range in; the parts of it that were not there before."""
        pages = self._pages
        if first == last:  # as nearly always
            page, bit = first >> PAGE_BITS, 1 << (first & PAGE - 1)
            bits = pages.get(page, 0)
            if bits & bit:
                return []
            pages[page] = bits | bit
            self.count += 1
            self.highest = max(self.highest, first)
            self._lowest = min(self._lowest, page)
            return [(first, first)]
        new = self.gaps(first, last)
        for page in range(first >> PAGE_BITS, (last >> PAGE_BITS) + 1):
            pages[page] = pages.get(page, 0) | _mask(page, first, last)
        self.count += sum(b - a + 1 for a, b in new)
        self.highest = max(self.highest, last)
        self._lowest = min(self._lowest, first >> PAGE_BITS)
        return new

    def remove(self, first: int, last: int) -> None:
        """Take a range out."""
        pages = self._pages
        for page in range(first >> PAGE_BITS, (last >> PAGE_BITS) + 1):
            before = pages.get(page, 0)
            after = before & ~_mask(page, first, last)
            self.count -= (before ^ after).bit_count()
            if after:
                pages[page] = after
            elif before:
                del pages[page]
        if self.highest <= last:
            page = max(pages, default=0)
            self.highest = (page << PAGE_BITS) + pages[page].bit_length() - 1 if pages else 0

    def cut(self, floor: int) -> int:
        """Remove what is below `floor`, and a range that begins there; the floor behind it."""
        if self.count and floor in self:
            floor = next(self.within(floor, self.highest))[1] + 1
        low = self._lowest << PAGE_BITS
        if self.count and low < floor:
            self.remove(low, floor - 1)
        self._lowest = floor >> PAGE_BITS
        return floor

    def within(self, first: int, last: int) -> Iterator[Range]:
        """Its ranges between two sequences, in order, cut off there."""
        start = end = -1  # of a range that may go on
        for page in self._between(first, last):
            base = page << PAGE_BITS
            bits = self._pages[page] & _mask(page, first, last)
            if start >= 0 and not (bits & 1 and end + 1 == base):
                yield start, end
                start = -1
            while bits:
                low = (bits & -bits).bit_length() - 1
                run = _ones(bits >> low)
                if start < 0 or low:
                    if start >= 0:
                        yield start, end
                    start = base + low
                end = base + low + run - 1
                bits = bits >> (low + run) << (low + run)
        if start >= 0:
            yield start, end

    def gaps(self, first: int, last: int) -> list[Range]:
        """The parts of a range that are not in here."""
        found: list[Range] = []
        at = first
        for start, end in self.within(first, last):
            if at < start:
                found.append((at, start - 1))
            at = end + 1
        if at <= last:
            found.append((at, last))
        return found

    def window(self, first: int, last: int) -> bytes:
        """A bit for each sequence of a range, the first one first; no zeros at the end."""
        bits = 0
        for page in range(first >> PAGE_BITS, (last >> PAGE_BITS) + 1):
            mine = self._pages.get(page)
            if mine:
                shift = (page << PAGE_BITS) - first
                bits |= mine << shift if shift >= 0 else mine >> -shift
        bits &= (1 << (last - first + 1)) - 1
        return bits.to_bytes((bits.bit_length() + 7) // 8, "little")

    def bits(self) -> Iterator[tuple[int, bytes]]:
        """All of it, page by page, to be kept."""
        for page in sorted(self._pages):
            bits = self._pages[page]
            yield page, bits.to_bytes((bits.bit_length() + 7) // 8, "little")

    def add_bits(self, page: int, data: bytes) -> None:
        """Put a page in that was kept."""
        bits = int.from_bytes(data, "little") & FULL
        base = page << PAGE_BITS
        self.count += (bits & ~self._pages.get(page, 0)).bit_count()
        if bits:
            self._pages[page] = self._pages.get(page, 0) | bits
            self.highest = max(self.highest, base + bits.bit_length() - 1)
            self._lowest = min(self._lowest, page)

    def _between(self, first: int, last: int) -> Iterable[int]:
        low, high = first >> PAGE_BITS, last >> PAGE_BITS
        if high - low < len(self._pages):
            return [page for page in range(low, high + 1) if page in self._pages]
        return sorted(page for page in self._pages if low <= page <= high)


def _mask(page: int, first: int, last: int) -> int:
    """The bits of a page that lie in a range."""
    base = page << PAGE_BITS
    low = max(first - base, 0)
    high = min(last - base, PAGE - 1)
    if high < low:
        return 0
    return FULL if high - low == PAGE - 1 else ((1 << (high - low + 1)) - 1) << low


def _ones(bits: int) -> int:
    """How many ones stand at the low end."""
    return (~bits & (bits + 1)).bit_length() - 1
