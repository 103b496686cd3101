"""Giving space back out of the middle of segments that a slow mailbox keeps.

A stretch of records that nobody needs becomes one SKIP record: its header is written over the
header of the first of them, and the rest of the stretch is punched out of the file.

    1. CONTROL HoleMade is appended and persisted: where the stretch is. Without it nobody would
       know, later, that a record that still seems to stand in the stretch is not to be overwritten.
    2. The header is written and persisted. It lies in one sector, so it is there or it is not, and
       the walk goes on behind the stretch either way.
    3. The hole is punched.

After a restart it begins with 2 for the holes that are known.

What is needed is found without reading records. A stream has an entry in the INDEX for a record
unless it stands less than INDEX_EVERY bytes behind the last one that has. So what a stream needs
lies within INDEX_EVERY bytes behind its entries, and every entry of any stream is a place where a
record begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from regraft.journal import format
from regraft.journal.format import HEADER_BYTES, INDEX_EVERY, SECTOR_BYTES, Extent
from regraft.journal.index import Ask, Footers
from regraft.journal.requests import Piece, PunchHole
from regraft.journal.segments import Segments
from regraft.journal.state import State
from regraft.journal.streams import Mailbox
from regraft.kernels.records import FOUND, Walk

GAIN_BYTES = 64 * 1024  # less is not worth a write
PAGE_BYTES = 4096
PASS_US = 60_000_000  # from one look at all segments to the next
HOLES_MAX = 256  # of one segment
# Nothing is skipped if those who walk would not find the way behind it.
POSSIBLE = Walk().step(format.encode_skip(0, PAGE_BYTES, 0, 0), 0, 0, 0) == FOUND

Stretch = tuple[int, int]  # offsets: where it begins, and where what follows begins


class Skip(NamedTuple):
    """A stretch on its way to become a SKIP record."""

    first: int
    offset: int
    size: int
    data: bytes
    after: int  # the position that must be persisted before it is written


def needed_entries(extent: Extent, mailbox: Mailbox) -> Iterator[int]:
    """The numbers of the entries behind which a mailbox has something unsettled."""
    first = max(extent.first, mailbox.floor)
    for low, high in mailbox.settled.gaps(first, extent.last):
        yield from range(extent.before(low), extent.before(high) + 1)


def dead_stretches(
    extents: Iterable[Extent], end: int, needed: Callable[[Extent], Iterable[int]]
) -> list[Stretch]:
    """What lies between two entries, or the last one and `end`, and is needed by nobody."""
    starts: set[int] = set()
    spots: set[int] = set()
    for extent in extents:
        spots.update(offset for offset, _ in extent.all())
        starts.update(extent.entry(number)[0] for number in needed(extent))
    places = [*sorted(spots), end]
    found: list[Stretch] = []
    free = places[0]
    for start in sorted(starts):
        if start > free:
            found.append((free, start))
        behind = bisect_left(places, start + INDEX_EVERY)
        free = max(free, places[min(behind, len(places) - 1)])
    if free < end:
        found.append((free, end))
    return found


def punched_part(offset: int, size: int) -> tuple[int, int]:
    """What of a stretch is punched: (offset, size), whole pages behind the header."""
    start = -(-(offset + HEADER_BYTES) // PAGE_BYTES) * PAGE_BYTES
    return start, max((offset + size) // PAGE_BYTES * PAGE_BYTES - start, 0)


class Compaction:
    """Looks at one segment after the other, one in a tick, and says what is to be overwritten."""

    def __init__(self, state: State, segments: Segments, footers: Footers, ask: Ask) -> None:
        self.punched = 0  # bytes given back, of segments that are still there
        self._state = state
        self._segments = segments
        self._footers = footers
        self._ask = ask
        self._cursor = -1  # the segment looked at last
        self._rest_until_us = 0
        self._waiting = 0  # headers that are being read
        self._skips: list[Skip] = []
        self._writing: list[Skip] = []
        self._done: dict[int, list[tuple[int, int]]] = {}  # segment -> (offset, size) punched

    # ------------------------------------------------------------------ step by step

    def look(self, below: int, held_from: Callable[[int], int], now_us: int) -> None:
        """Look at the next segment that ends at `below` or before."""
        if self._waiting or self._skips or self._writing or now_us < self._rest_until_us:
            return
        if not POSSIBLE:
            return
        first = self._segments.following(self._cursor)
        segment = self._segments.find(first) if first is not None else None
        if segment is None or sum(segment) > below:
            self._cursor = -1
            self._rest_until_us = now_us + PASS_US
            return
        extents = self._footers.get(segment[0])
        if extents is None:
            return  # not yet
        self._cursor = segment[0]
        end = self._footers.end(segment[0])
        if extents and end:
            self._plan(segment, extents.values(), end, held_from)

    def _plan(
        self,
        segment: tuple[int, int],
        extents: Iterable[Extent],
        end: int,
        held_from: Callable[[int], int],
    ) -> None:
        first, size = segment

        def needed(extent: Extent) -> Iterable[int]:
            stream = self._state.streams.get(extent.stream)
            if stream is None:
                return ()
            if isinstance(stream, Mailbox):
                return needed_entries(extent, stream)
            return () if held_from(extent.stream) >= first + size else range(extent.spots)

        spots = sorted({offset for extent in extents for offset, _ in extent.all()})
        holes = self._state.holes.get(first, [])
        for start, stop in dead_stretches(extents, end, needed):
            offset = _beginning(start, stop, spots, holes)
            if offset is None or len(holes) >= HOLES_MAX:
                continue
            gain = punched_part(offset, stop - offset)[1] - self._punched_in(first, offset, stop)
            if gain >= GAIN_BYTES:
                self._read_header(first, offset, stop - offset)

    def _punched_in(self, first: int, start: int, stop: int) -> int:
        done = self._done.get(first, [])
        return sum(punched_part(*hole)[1] for hole in done if start <= hole[0] < stop)

    def _read_header(self, first: int, offset: int, size: int) -> None:
        """The SKIP takes time and epoch from the record in whose place it stands."""
        self._waiting += 1

        def arrived(data: bytes, error: str) -> None:
            self._waiting -= 1
            header = format.decode_header(data, first + offset)
            if header is not None:
                skip = format.encode_skip(first + offset, size, header.time_us, header.epoch)
                self._skips.append(Skip(first, offset, size, skip, -1))

        self._ask(first, offset, HEADER_BYTES, arrived)

    def announce(self, append: Callable[[format.HoleMade], int]) -> None:
        """Append what must be known before anything is overwritten; `append` says up to where."""
        for at, skip in enumerate(self._skips):
            if skip.after < 0:
                made = format.HoleMade(skip.first, skip.offset, skip.size)
                self._skips[at] = skip._replace(after=append(made))

    def ready(self, persisted: int) -> bool:
        """Whether something waits to be overwritten."""
        return any(0 <= skip.after <= persisted for skip in self._skips)

    def overwrites(self, persisted: int) -> list[Piece]:
        """What is to be persisted along with the next batch, and in front of it."""
        if not self._skips:
            self._writing = []
            return []
        self._writing = [skip for skip in self._skips if 0 <= skip.after <= persisted]
        self._skips = [skip for skip in self._skips if skip not in self._writing]
        return [Piece(skip.first, skip.offset, skip.data) for skip in self._writing]

    def overwritten(self) -> list[PunchHole]:
        """That batch is persisted: what can be punched now."""
        holes = []
        for skip in self._writing:
            done = self._done.setdefault(skip.first, [])
            end = skip.offset + skip.size
            self.punched -= self._punched_in(skip.first, skip.offset, end)
            done[:] = [hole for hole in done if not skip.offset <= hole[0] < end]
            done.append((skip.offset, skip.size))
            offset, size = punched_part(skip.offset, skip.size)
            self.punched += size
            holes.append(PunchHole(skip.first, offset, size))
        self._writing = []
        return holes

    # --------------------------------------------------------------------- questions

    def touches(self, first: int) -> bool:
        """Whether something of a segment is being overwritten just now."""
        return any(skip.first == first for skip in self._writing)

    def forget(self, first: int) -> None:
        """A segment is gone."""
        self.punched -= sum(punched_part(*hole)[1] for hole in self._done.pop(first, []))
        self._skips = [skip for skip in self._skips if skip.first != first]

    def behind_hole(self, position: int) -> int:
        """The same position; or, inside of a stretch that is dead, the one behind it."""
        segment = self._segments.find(position)
        if segment is None:
            return position
        holes = self._state.holes.get(segment[0])
        if not holes:
            return position
        offset = position - segment[0]
        at = bisect_right(holes, offset, key=lambda hole: hole[0]) - 1
        if at >= 0 and holes[at][0] < offset < sum(holes[at]):
            return segment[0] + sum(holes[at])
        return position


def _beginning(start: int, stop: int, spots: list[int], holes: list[tuple[int, int]]) -> int | None:
    """Where in a dead stretch a SKIP can begin: its header must lie within one sector.

    Inside of a hole no record begins any more, whatever stands there: the hole has to grow.
    """
    at = bisect_left(spots, start)
    while at < len(spots) and spots[at] < stop:
        offset = spots[at]
        for hole, size in holes:
            if hole <= offset < hole + size:
                offset = hole
        if offset % SECTOR_BYTES <= SECTOR_BYTES - HEADER_BYTES:
            return offset
        at += 1
    return None
