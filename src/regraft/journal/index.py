"""Finding the place from which to read: by sequence or by time, through the INDEX of segments.

The INDEX of a closed segment is read from the disk when somebody asks for what lies in it, and kept
for a while. So an answer may be None, *not yet*: then something was asked of the disk, and whoever
wants the answer asks again once that has arrived. Asking again is cheap, and nothing is remembered
about who asks.

An answer is never too late, but may be too early: readers pass over what they do not want. What
cannot be read makes an answer earlier, not an error; whoever reads there will find the damage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal.format import HEADER_BYTES, INDEX_EVERY, TRAILER_BYTES, Bytes, Extent
from regraft.journal.segments import Segments, Tail
from regraft.journal.state import State
from regraft.journal.streams import Stream
from regraft.kernels.records import FOUND, Recorder, Walk

READ_BYTES = 128 * 1024  # of an INDEX, at first
PROBES_MAX = 4096  # times of single records that are remembered
WINDOW_BYTES = INDEX_EVERY + HEADER_BYTES

Extents = dict[int, Extent]
Ask = Callable[[int, int, int, Callable[[bytes, str], None]], None]


class Place(NamedTuple):
    """Where to begin reading: a record begins there."""

    first: int  # of the segment
    offset: int


class Footers:
    """What the INDEX of closed segments says, as far as it was asked for; within bounds."""

    def __init__(self, segments: Segments, ask: Ask, bytes_max: int) -> None:
        self.unreadable = 0
        self.size = 0
        self._segments = segments
        self._ask = ask
        self._bytes_max = bytes_max
        # What it says, the bytes it has, its offset; the longest unused first.
        self._known: dict[int, tuple[Extents, int, int]] = {}
        self._coming: set[int] = set()

    def get(self, first: int) -> Extents | None:
        """What a segment holds. None: not yet. Empty: it cannot be known."""
        known = self._known.pop(first, None)
        if known is not None:
            self._known[first] = known
            return known[0]
        segment = self._segments.find(first)
        if segment is None:
            return {}
        if first not in self._coming:
            self._coming.add(first)
            offset = segment[1] - TRAILER_BYTES
            self._ask(first, offset, TRAILER_BYTES, lambda data, _: self._trailer(first, data))
        return None

    def end(self, first: int) -> int:
        """The offset of the INDEX that `get` has given, behind all other records; or 0."""
        known = self._known.get(first)
        return 0 if known is None else known[2]

    def put(self, first: int, extents: Extents, size: int, offset: int) -> None:
        """A segment was closed, with an INDEX of this size there."""
        self._keep(first, extents, size, offset)

    def forget(self, first: int) -> None:
        """A segment is gone."""
        known = self._known.pop(first, None)
        if known is not None:
            self.size -= known[1]

    def _trailer(self, first: int, data: bytes) -> None:
        index = format.decode_trailer(data)
        segment = self._segments.find(first)
        if segment is None or not index or not first < index < first + segment[1]:
            self._give_up(first)
            return
        offset = index - first
        rest = segment[1] - TRAILER_BYTES - offset
        self._read(first, offset, min(rest, READ_BYTES))

    def _read(self, first: int, offset: int, size: int) -> None:
        self._ask(first, offset, size, lambda data, _: self._index(first, offset, size, data))

    def _index(self, first: int, offset: int, size: int, data: bytes) -> None:
        header = format.decode_header(data, first + offset)
        if header is not None and header.length > size == len(data):
            self._read(first, offset, header.length)
            return
        walk = Walk()
        walk.base = offset
        try:
            if walk.step(data, 0, first, 0) != FOUND or walk.kind != format.INDEX:
                raise format.damaged(f"segment {first:016x} has no valid INDEX")
            payload = data[walk.payload_at : walk.end]
            self._keep(first, format.decode_index(payload), len(payload), offset)
        except DiskError:
            self._give_up(first)

    def _give_up(self, first: int) -> None:
        self.unreadable += 1
        self._keep(first, {}, 0, 0)

    def _keep(self, first: int, extents: Extents, size: int, offset: int) -> None:
        self._coming.discard(first)
        self.forget(first)
        self._known[first] = extents, size, offset
        self.size += size
        while self.size > self._bytes_max and len(self._known) > 1:
            self.forget(next(iter(self._known)))


class Places:
    """Knows where in the journal a stream has got to, at a sequence or at a time."""

    def __init__(
        self,
        state: State,
        segments: Segments,
        recorder: Recorder,
        tail: Tail,
        ask: Ask,
        cache_bytes: int,
    ) -> None:
        self.footers = Footers(segments, ask, cache_bytes)
        self._state = state
        self._segments = segments
        self._recorder = recorder
        self._tail = tail
        self._ask = ask
        self._open: tuple[int, Extents] = (-1, {})  # of the open segment, at some position
        self._windows: dict[int, list[tuple[int, int]] | None] = {}  # None: it is coming

    def locate(self, number: int, sequence: int) -> Place | None:
        """Where to begin reading a stream from a sequence on; None: not yet."""
        stream = self._state.streams[number]
        if sequence > stream.indexed or not stream.marks:
            return self._in_open(number, sequence)
        mark = stream.marks[max(stream.mark_at(sequence), 0)]
        if sequence <= mark.sequence:
            return Place(mark.first, mark.offset)
        first: int | None = mark.first
        while first is not None and first != self._segments.open:
            extents = self.footers.get(first)
            if extents is None:
                return None
            if not extents:
                return Place(first, mark.offset if first == mark.first else 0)
            extent = extents.get(number)
            if extent is not None and extent.last >= sequence:
                return Place(first, extent.entry(extent.before(sequence))[0])
            first = self._segments.following(first)
        return self._in_open(number, sequence)

    def locate_time(self, number: int, time_us: int) -> Place | None:
        """Where to begin reading a stream from this time on; None: not yet."""
        stream = self._state.streams[number]
        at = bisect_left(stream.marks, time_us, key=lambda mark: mark.last_us)
        if at < len(stream.marks):
            mark = stream.marks[at]
            if time_us <= mark.time_us:
                return Place(mark.first, mark.offset)
            return self._time_in_closed(stream, at, time_us)
        extent = self._open_extents().get(number)
        if self._recorder.first == self._segments.open and (
            extent is None or extent.last_us < time_us
        ):
            return Place(self._recorder.first, self._recorder.position - self._recorder.first)
        if extent is None or time_us <= extent.first_us:
            return self._in_open(number, stream.indexed + 1)
        return self._time_within(self._recorder.first, extent, time_us)

    def about(self, number: int, sequence: int) -> int:
        """When a message was recorded, or one shortly before it (µs): what memory says; 0: nothing.

        Of what is long gone from memory, it is the time of the first one in its segment.
        """
        stream = self._state.streams[number]
        if sequence <= stream.indexed and stream.marks:
            mark = stream.marks[max(stream.mark_at(sequence), 0)]
            return mark.time_us
        first, offset = self._in_open(number, sequence)
        found = self._tail.find(first + offset)
        headers = _headers(found.view[:WINDOW_BYTES], first, offset) if found is not None else []
        if headers:
            return headers[0][0]
        extent = self._open_extents().get(number)
        return extent.first_us if extent is not None else 0

    def _time_in_closed(self, stream: Stream, at: int, time_us: int) -> Place | None:
        mark = stream.marks[at]
        first: int | None = mark.first
        while first is not None and first != self._segments.open:
            extents = self.footers.get(first)
            if extents is None:
                return None
            if not extents:
                return Place(first, mark.offset if first == mark.first else 0)
            extent = extents.get(stream.number)
            if extent is not None and extent.last_us >= time_us:
                return self._time_within(first, extent, time_us)
            first = self._segments.following(first)
        return self._in_open(stream.number, stream.indexed + 1)

    def _time_within(self, first: int, extent: Extent, time_us: int) -> Place | None:
        """The first record of that time or later behind the last entry that is before it."""
        low, high = 0, extent.spots  # the entry `low` is before it, `high` is not
        offset = extent.entry(0)[0]
        if extent.first_us >= time_us:
            return Place(first, offset)
        while high - low > 1:
            middle = (low + high) // 2
            window = self._window(first, extent.entry(middle)[0])
            if window is None:
                return None
            if not window or window[0][0] >= time_us:
                high = middle
            else:
                low = middle
        window = self._window(first, extent.entry(low)[0])
        if window is None:
            return None
        for record_us, at in window:
            if record_us >= time_us:
                return Place(first, at)
        return Place(first, extent.entry(high if high < extent.spots else low)[0])

    def _window(self, first: int, offset: int) -> list[tuple[int, int]] | None:
        """Time and offset of the records that begin here and soon behind; None: not yet.

        No record of the same stream stands behind them without an entry of its own.
        """
        position = first + offset
        if position in self._windows:
            return self._windows[position]
        found = self._tail.find(position)
        if found is not None and len(found.view) >= WINDOW_BYTES:
            return _headers(found.view[:WINDOW_BYTES], first, offset)
        if len(self._windows) >= PROBES_MAX:
            self._windows = {at: None for at, window in self._windows.items() if window is None}
        self._windows[position] = None

        def arrived(data: bytes, error: str) -> None:
            self._windows[position] = _headers(data, first, offset)

        self._ask(first, offset, WINDOW_BYTES, arrived)
        return None

    def _in_open(self, number: int, sequence: int) -> Place:
        extent = self._open_extents().get(number)
        if extent is None or sequence < extent.first:
            # It may lie in bytes that are between two segments, in memory.
            return Place(self._segments.open, 0)
        return Place(self._recorder.first, extent.entry(extent.before(sequence))[0])

    def _open_extents(self) -> Extents:
        """What the segment that is being written holds."""
        position = self._recorder.position
        if self._open[0] != position:
            self._open = position, format.decode_index(self._recorder.contents())
        return self._open[1]


def _headers(data: Bytes, first: int, offset: int) -> list[tuple[int, int]]:
    """Time and offset of each record that begins in `data`, as far as their headers make sense."""
    found: list[tuple[int, int]] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = format.decode_header(memoryview(data)[at:], first + offset + at)
        if header is None:
            break
        found.append((header.time_us, offset + at))
        at += format.padded(header.length)
    return found
