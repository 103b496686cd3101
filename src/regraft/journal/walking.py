"""Walking over the records of segments, in order, and finding records that stand alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal.format import INDEX_EVERY, Bytes, Extent, Record, Spot, Start, damaged
from regraft.journal.rows import decode_chunk
from regraft.journal.state import State
from regraft.kernels.records import BAD, FOUND, ZERO, Walk

LOW_BITS = 0xFFFF


class SegmentView(NamedTuple):
    """The file of a segment: its name, how long it was made, and what it holds."""

    first: int
    size: int
    view: Any  # bytes-like; a memory map in production


class Later(NamedTuple):
    """A valid record behind a place that has none."""

    position: int
    persisted: int  # all before it was persisted when this was written
    epoch: int


class Entry(NamedTuple):
    """A record that the INDEX of the open segment has to know: `Recorder.reindex`."""

    stream: int
    offset: int
    sequence: int
    messages: int
    time_us: int


@dataclass(slots=True)
class _Held:
    """What a segment holds of one stream, as far as it was walked."""

    first: int
    first_us: int
    entries: list[tuple[int, int]] = field(default_factory=list)
    spot: int = -INDEX_EVERY  # the offset of the last entry
    last_record: tuple[int, int, int, int] = (0, 0, 0, 0)  # offset, sequence, count, time


class Contents:
    """What one segment holds, by stream: the same as its INDEX will say."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def add(self, places: list[Spot], offset: int, messages: int, time_us: int) -> None:
        """A MESSAGES record stands at `offset`."""
        for stream, sequence in places:
            held = self._held.get(stream)
            if held is None:
                held = self._held[stream] = _Held(sequence, time_us)
            if offset - held.spot >= INDEX_EVERY:
                held.entries.append((offset, sequence))
                held.spot = offset
            held.last_record = (offset, sequence, messages, time_us)

    def entries(self) -> Iterator[Entry]:
        """What `reindex` must be told. Of the entries in the middle only the place matters."""
        for stream, held in self._held.items():
            for offset, sequence in held.entries:
                yield Entry(stream, offset, sequence, 1, held.first_us)
            yield Entry(stream, *held.last_record)

    def extents(self) -> dict[int, Extent]:
        """The same as an INDEX would give it."""
        found = {}
        for stream, held in sorted(self._held.items()):
            _, sequence, count, last_us = held.last_record
            entries = format.encode_entries(held.entries)
            last = sequence + count - 1
            found[stream] = Extent(stream, held.first, last, held.first_us, last_us, entries)
        return found


class _Snapshot:
    """Gathers the chunks of a snapshot as they come by."""

    def __init__(self) -> None:
        self.position = 0
        self.size = 0
        self._chunks: list[Bytes] = []
        self._parts = 0

    @property
    def complete(self) -> bool:
        """All of it has been seen."""
        return 0 < self._parts == len(self._chunks)

    def add(self, record: Record) -> None:
        """One more chunk; the first one begins anew."""
        part, parts, _ = decode_chunk(record.payload)
        if part and not self._parts:
            return  # its beginning lies in a segment that is gone
        if part == 0:
            self.position, self.size, self._chunks, self._parts = record.position, 0, [], parts
        if part != len(self._chunks) or parts != self._parts:
            raise damaged(f"the snapshot before {record.position} is not complete")
        self._chunks.append(record.payload)
        self.size += record.next - record.position

    def state(self) -> State:
        """What it says."""
        return State.restore(self._chunks)


def read_start(segment: SegmentView) -> Start | None:
    """What the START record of a segment says, if it has a valid one."""
    walk = Walk()
    if walk.step(segment.view, 0, segment.first, 0) != FOUND or walk.kind != format.START:
        return None
    return format.decode_start(segment.view[walk.payload_at : walk.end])


def records(segment: SegmentView, epoch: int = 0) -> Iterator[Record]:
    """The records of one segment, up to the first place that holds none. INDEX is the last."""
    walk = Walk()
    view = segment.view
    at = 0
    while walk.step(view, at, segment.first, epoch) == FOUND:
        epoch = walk.epoch
        yield _record(walk, view, segment.first)
        if walk.kind == format.INDEX:
            return
        at = walk.next


def is_whole(chain: list[SegmentView], at: tuple[int, int], end: int, epoch: int) -> bool:
    """Whether valid records lead from a place, a segment's number and an offset, to a position.

    A group of records counts if they do. What is skipped behind it was persisted long ago.
    """
    walk = Walk()
    number, offset = at
    while number < len(chain):
        here = chain[number]
        if here.first + offset >= end:
            return True
        status = walk.step(here.view, offset, here.first, epoch)
        if status == FOUND and walk.kind != format.INDEX:
            offset = walk.next
            continue
        if status != FOUND:
            trailer = here.view[here.size - format.TRAILER_BYTES : here.size]
            if status != ZERO or format.decode_trailer(trailer) != 0:
                return False
        number, offset = number + 1, 0
        if number < len(chain) and chain[number].first != here.first + here.size:
            return False
    return False


def contents_of(segment: SegmentView) -> dict[int, Extent]:
    """What a closed segment holds, by its INDEX, or else as far as its records can be read."""
    index = format.decode_trailer(segment.view[segment.size - format.TRAILER_BYTES : segment.size])
    walk = Walk()
    if index and walk.step(segment.view, index - segment.first, segment.first, 0) == FOUND:
        return format.decode_index(segment.view[walk.payload_at : walk.end])
    contents = Contents()
    for record in records(segment):
        if record.kind == format.INDEX:
            return format.decode_index(record.payload)
        if record.kind == format.MESSAGES:
            offset = record.position - segment.first
            contents.add(format.places(record.meta), offset, record.messages, record.time_us)
    return contents.extents()


def later_records(segment: SegmentView, offset: int, epoch: int) -> Iterator[Later]:
    """Valid records at `offset` or behind it, wherever they begin, of this epoch or later."""
    walk = Walk()
    view, first = segment.view, segment.first
    done = offset
    for at in _likely(view, first, format.padded(offset)):
        if at >= done and walk.step(view, at, first, epoch) == FOUND:
            done = walk.next
            yield Later(walk.position, walk.position - walk.unsynced, walk.epoch)


def _likely(view: memoryview, first: int, offset: int) -> Iterator[int]:
    """Places from which eight bytes on the own position stands.

    The upper bytes of a position are the same for 64 KiB, and finding those takes no time.
    """
    while offset + format.HEADER_BYTES <= len(view):
        position = first + offset
        block = (position | LOW_BITS) + 1 - position
        words = bytes(view[offset + 8 : offset + 8 + block])
        upper = (position >> 16).to_bytes(6, "little")
        at = words.find(upper, 2) if words.count(0) < len(words) else -1
        while at >= 0:
            word = (at - 2) & ~7
            if words[word : word + 8] == (position + word).to_bytes(8, "little"):
                yield offset + word
            at = words.find(upper, word + 10)
        offset += block


def _record(walk: Walk, view: memoryview, first: int) -> Record:
    return Record(
        walk.kind,
        walk.position,
        first + walk.next,
        walk.time_us,
        walk.epoch,
        walk.count,
        walk.publisher,
        view[walk.meta_at : walk.payload_at],
        view[walk.payload_at : walk.end],
        walk.priority,
    )


class Walker:
    """Goes from a segment's START to the first place that holds no valid record.

    It is *anchored* once it has a state: the one given, or that of a snapshot on the way. Without
    one, records are only looked at.
    """

    def __init__(self, chain: list[SegmentView], state: State | None, anchor: int = 0) -> None:
        self.state = state
        self.epoch = 0
        self.time_us = 0
        self.segment = 0  # the number of the segment it is in,
        self.offset = 0  # and the place in it that it has reached
        self.status = ZERO  # what the last step found there
        self.contents = Contents()  # of that segment
        self.fault = ""  # a valid record that makes no sense stands there
        self.findings: list[str] = []
        self.snapshot = 0
        self.snapshot_bytes = 0
        self.records = 0
        self.messages = 0
        self._chain = chain
        self.anchor = anchor
        self._walk = Walk()
        self._gathered = _Snapshot()
        # Segments that were closed while there was no state: first, and what is in it.
        self._closed: list[tuple[int, dict[int, Extent]]] = []

    @property
    def position(self) -> int:
        """Where it has got to."""
        return self._chain[self.segment].first + self.offset

    def run(self, segment: int) -> None:
        """Walk from this segment on."""
        self.segment = segment
        before = self._chain[segment - 1] if segment else None
        if self.state is None and before and sum(before[:2]) == self._chain[segment].first:
            # If the snapshot did not fit into that one any more, it does not know what it holds.
            self._closed.append((before.first, contents_of(before)))
        while self._through():
            here = self._chain[self.segment]
            following = self.segment + 1
            self.contents = Contents()
            if (
                following == len(self._chain)
                or self._chain[following].first != here.first + here.size
            ):
                self.offset = here.size
                return
            self.segment, self.offset = following, 0

    def _through(self) -> bool:
        """Walk over one segment; whether it was closed, so that the next one follows."""
        here = self._chain[self.segment]
        walk = self._walk
        while True:
            self.status = walk.step(here.view, self.offset, here.first, self.epoch)
            if self.status != FOUND:
                return self.status == ZERO and self._closed_without_index(here)
            kind = walk.kind
            if kind == format.INDEX and not self._ends(here, walk.position):
                return False
            try:
                if kind == format.TRANSACTION and not self._counts(here):
                    self.status = BAD
                    return False
                if kind == format.MESSAGES:
                    self._take_messages(here.view)
                else:
                    self._take(_record(walk, here.view, here.first))
            except DiskError as error:
                if error.code.name != "journal-damaged":
                    raise
                self.fault = error.text
                return False
            self.epoch, self.time_us = walk.epoch, walk.time_us
            self.offset = walk.next
            self.records += 1
            if kind == format.INDEX:
                return True

    def _counts(self, here: SegmentView) -> bool:
        """Whether all records are there of the group that begins here."""
        walk = self._walk
        end, _ = format.decode_group(here.view[walk.payload_at : walk.end])
        place = self.segment, walk.next
        return end >= here.first + walk.next and is_whole(self._chain, place, end, walk.epoch)

    def _ends(self, here: SegmentView, index: int) -> bool:
        """Whether a segment with an INDEX there was closed. If a segment follows, it was."""
        trailer = here.view[here.size - format.TRAILER_BYTES : here.size]
        if format.decode_trailer(trailer) == index:
            return True
        if not self._followed(here):
            return False
        self.findings.append(f"segment {here.first:016x} has no valid trailer")
        return True

    def _closed_without_index(self, here: SegmentView) -> bool:
        """Whether a segment was closed although there was no room for an INDEX."""
        trailer = here.view[here.size - format.TRAILER_BYTES : here.size]
        if format.decode_trailer(trailer) != 0 or not self._followed(here):
            return False
        self._close(here.first, self.contents.extents())
        return True

    def _followed(self, here: SegmentView) -> bool:
        following = self.segment + 1
        if following == len(self._chain):
            return False
        there = self._chain[following]
        if there.first != here.first + here.size:
            return False
        walk = Walk()
        found = walk.step(there.view, 0, there.first, self.epoch) == FOUND
        return found and walk.kind == format.START

    def _take_messages(self, view: memoryview) -> None:
        """Take in the record just found, as most of them are."""
        walk = self._walk
        self._check_place(False)
        payload_at = walk.payload_at
        places, settled = format.split_places(view[walk.meta_at : payload_at])
        messages = walk.count
        self.messages += messages
        self.contents.add(places, self.offset, messages, walk.time_us)
        if self.state is None:
            return
        end, position = walk.end, walk.position
        self.state.apply_messages(position, places, messages, end - payload_at, walk.priority)
        for number, sequence in settled:
            self.state.apply_settled(number, [(sequence, sequence)])
        if walk.publisher:
            frames = view[payload_at:end]
            self.state.apply_published(position, walk.publisher, frames, walk.time_us)

    def _check_place(self, start: bool) -> None:
        if start != (self.offset == 0):
            raise damaged(f"position {self.position} has a START where none belongs, or lacks it")

    def _take(self, record: Record) -> None:
        """Take in a record of any other kind."""
        kind = record.kind
        self._check_place(kind == format.START)
        if kind == format.START:
            self._check_start(record)
        elif kind == format.INDEX:
            self._close(self._chain[self.segment].first, format.decode_index(record.payload))
        elif kind == format.SNAPSHOT:
            if record.position >= self.anchor:
                self._gather(record)
        elif self.state is not None:
            self.state.apply(record)

    def _check_start(self, record: Record) -> None:
        start = format.decode_start(record.payload)
        if self.state is not None and start.journal_id != self.state.journal_id:
            raise damaged(f"segment {record.position:016x} is of another journal")

    def _close(self, first: int, extents: dict[int, Extent]) -> None:
        if self.state is not None:
            self.state.apply_index(first, extents)
        else:
            self._closed.append((first, extents))

    def _gather(self, record: Record) -> None:
        """A chunk of a snapshot; the last one anchors a walk that had no state."""
        gathered = self._gathered
        gathered.add(record)
        if not gathered.complete:
            return
        if self.state is None:
            self.state = gathered.state()
            for first, extents in self._closed:
                self.state.apply_index(first, self.state.unknown(extents))
        self.snapshot, self.snapshot_bytes = gathered.position, gathered.size
