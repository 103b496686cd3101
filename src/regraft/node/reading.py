"""Reading a stream of the journal: from memory if one keeps up, from the disk if one does not.

A *reading* has a place in the journal and goes on from there. Nothing waits for it: it looks at
what was just persisted in the journal's tail, or has the disk read a chunk, and the next one ahead
of time. Whoever reads is called again when there is something to look at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from regraft.journal.journal import Journal
from regraft.journal.requests import ReadJournal
from regraft.journal.streams import Stream
from regraft.kernels.records import FOUND, SHORT, ZERO
from regraft.kernels.replay import CLOSED, LATER, Reader, whole_until
from regraft.node.effect import Effect
from regraft.node.event import JournalRead, Now

READ_BYTES = 1 << 20  # of a segment, at a time;
SPARSE_BYTES = 16 * 1024  # if it is known that there are only a
FEW = 16  # messages before the next one that is far,
FAR_BYTES = 512 * 1024  # which is so far: to walk over less takes less time than to look again;
CROWDED_BYTES = 64 * 1024  # and while all readings together hold more than
HELD_BYTES = 256 << 20  # this
FOREVER = 1 << 62  # a sequence that is never reached
AWAY = 0  # a ticket: nothing is being read; those of readings are below, of others above it
NOWHERE = -1  # a position: not found yet
NOTHING = (0, b"")  # a place and its bytes


class Found(NamedTuple):
    """What is in memory from a reading's place on: segment, offset in it, bytes."""

    first: int
    offset: int
    view: memoryview


@dataclass(slots=True, eq=False)
class Reading:
    """How far one reader of a stream is."""

    stream: Stream
    reader: Reader
    next_sequence: int
    go_on: Callable[[Now], None]  # there may be something to look at
    fail: Callable[[str, Now], None]  # what should be there cannot be read
    position: int = NOWHERE  # in the journal, of the record to go on with
    from_us: int = 0  # not what is older
    ahead_allowed: bool = True
    ticket: int = AWAY  # of the read that is under way
    chunk: tuple[int, bytes] = NOTHING  # position and bytes that were read last
    ahead_ticket: int = AWAY  # of the read that is under way for what stands behind them,
    ahead_at: int = 0  # its position
    ahead_size: int = 0
    ahead: tuple[int, bytes] = NOTHING  # and what it brought
    need: int = 0  # bytes of the record at hand, if it did not fit
    sparse: bool = False  # what follows is others', for long
    idle: bool = False  # it has read all that is persisted,
    within: bool = False  # but for the beginning of a record, or it went back since
    past_end: bool = False  # what follows is too new for it
    over: bool = False

    def jump(self, sequence: int) -> None:
        """Go on with another message; it has to be found first, unless it stands further on."""
        if sequence < self.next_sequence:
            self.lose()
        self.next_sequence = sequence

    def lose(self) -> None:
        """Its place has to be found anew."""
        self.position = NOWHERE
        self.within = True


@dataclass(slots=True)
class Readings:
    """All readings of a node."""

    journal: Journal
    effects: list[Effect]
    reading: dict[int, Reading] = field(default_factory=dict)  # by ticket
    lost: dict[Reading, None] = field(default_factory=dict)  # to be located
    idle: dict[int, dict[Reading, None]] = field(default_factory=dict)  # by stream: have read all
    held: int = 0  # bytes that were read and are not done with, all in all
    last_ticket: int = 0

    def end(self, reading: Reading) -> None:
        """Read no more."""
        reading.over = True
        self._keep(reading, NOTHING, NOTHING)
        self.reading.pop(reading.ticket, None)
        self.reading.pop(reading.ahead_ticket, None)
        self.lost.pop(reading, None)
        self._rouse(reading)

    def wake(self, touched: Iterable[tuple[Stream, int]], now: Now) -> None:
        """More of these streams was persisted, from a position on: who had read all goes on there.

        What lies between is not for them: nobody walks over what others got meanwhile.
        """
        for stream, position in touched:
            for reading in self.idle.pop(stream.number, ()):
                reading.idle = False
                if not reading.within:
                    reading.position = max(reading.position, position)
                reading.go_on(now)

    def _rest(self, reading: Reading, within: bool = False) -> None:
        reading.idle = True
        reading.within = within
        self._keep(reading, NOTHING, NOTHING)  # what comes next is not in there
        self.idle.setdefault(reading.stream.number, {})[reading] = None

    def _rouse(self, reading: Reading) -> None:
        if reading.idle:
            reading.idle = False
            mine = self.idle.get(reading.stream.number, {})
            mine.pop(reading, None)
            if not mine:
                self.idle.pop(reading.stream.number, None)

    # ------------------------------------------------------------------------ looking

    def look(self, reading: Reading, now: Now) -> Found | None:
        """What is to be read next. None: nothing is there yet, and `go_on` comes when it is.

        `reading.idle` says whether that is because all was read.
        """
        if reading.over or reading.ticket != AWAY or reading.idle or reading in self.lost:
            return None
        if self.has_read_all(reading):
            self._rest(reading)
            return None
        self._leap(reading)
        if reading.position == NOWHERE and not self._locate(reading):
            self.lost[reading] = None
            return None
        if reading.position >= self.journal.persisted_position:
            self._rest(reading)
            return None
        found = self._bytes_at(reading)
        if found is None and not self._is_coming(reading):
            self._read(reading, now)
        return found

    def _leap(self, reading: Reading) -> None:
        """Pass over what others got, if it is known where the next message is."""
        if reading.from_us and reading.position == NOWHERE:
            return
        slot, sequence = reading.stream.slot, reading.next_sequence
        place = self.journal.recorder.recent(slot, sequence)
        near = self.journal.recorder.far(slot, sequence, FAR_BYTES) - sequence
        reading.sparse = place >= 0 and near <= FEW
        reading.position = max(reading.position, place)

    def let_go(self, reading: Reading) -> None:
        """Its subscriber takes no more now: if many hold much, it does not keep what was read."""
        if self.held > HELD_BYTES and reading.ticket == AWAY:
            self._keep(reading, NOTHING, NOTHING)

    def rests(self, reading: Reading) -> bool:
        """Whether there is nothing to be read; `go_on` comes when there is."""
        if not reading.idle and reading.ticket == AWAY and self.has_read_all(reading):
            self._rest(reading)
        return reading.idle

    def has_read_all(self, reading: Reading) -> bool:
        """Whether nothing of its stream is to come; then it need not look at what others got."""
        if self.journal.recorder.next_sequence(reading.stream.slot) > reading.next_sequence:
            return False
        if reading.position != NOWHERE:
            reading.position = max(reading.position, self.journal.persisted_position)
        return True

    def _locate(self, reading: Reading) -> bool:
        """Find where to begin; False: the disk has to be asked first."""
        if reading.from_us:
            place = self.journal.locate_time(reading.stream.number, reading.from_us)
        else:
            place = self.journal.locate(reading.stream.number, reading.next_sequence)
        if place is None:
            return False
        reading.position = place.first + place.offset
        return True

    def found(self, now: Now) -> None:
        """The journal knows more: try again to locate those who are lost."""
        lost, self.lost = self.lost, {}
        for reading in lost:
            reading.go_on(now)

    def _bytes_at(self, reading: Reading) -> Found | None:
        position = reading.position = self.journal.forward(reading.position)
        found = self.journal.tail.find(position)
        if found is not None:
            self._hold(reading, NOTHING, sure=True)
            return Found(found.first, found.offset, found.view)
        if not _holds(reading.chunk, position):
            if not _holds(reading.ahead, position):
                return None
            self._hold(reading, reading.ahead)
        base, data = reading.chunk
        segment = self.journal.segments.find(position)
        if segment is None:
            return None
        end = min(base + len(data), self.journal.persisted_position)
        view = memoryview(data)[position - base : end - base]
        return Found(segment[0], position - segment[0], view)

    def _hold(self, reading: Reading, chunk: tuple[int, bytes], sure: bool = False) -> None:
        """Go on with these bytes; what was read ahead of others is of no use any more."""
        self._keep(reading, chunk, NOTHING)
        reading.reader.distrust(sure)

    def _keep(self, reading: Reading, chunk: tuple[int, bytes], ahead: tuple[int, bytes]) -> None:
        self.held += len(chunk[1]) + len(ahead[1]) - len(reading.chunk[1]) - len(reading.ahead[1])
        reading.chunk, reading.ahead = chunk, ahead

    def _read(self, reading: Reading, now: Now) -> None:
        """Ask the disk for what is persisted by now; what stands behind it may change."""
        segment = self.journal.segments.find(reading.position)
        if segment is None:
            reading.fail(f"position {reading.position} is not there", now)
            return
        self._hold(reading, (reading.position, b""))
        most = SPARSE_BYTES if reading.sparse else READ_BYTES
        if self.held > HELD_BYTES:
            most = min(most, CROWDED_BYTES)
        reading.ticket, _ = self._ask(reading, segment, reading.position, max(most, reading.need))

    def _ask(
        self, reading: Reading, segment: tuple[int, int], position: int, most: int
    ) -> tuple[int, int]:
        """Have some of a segment read; the ticket, and how much it will be."""
        first, size = segment
        size = min(size, self.journal.persisted_position - first)
        self.last_ticket -= 1
        self.reading[self.last_ticket] = reading
        length = min(most, size - (position - first))
        self.effects.append(ReadJournal(self.last_ticket, first, position - first, length))
        return self.last_ticket, length

    def read_ahead(self, reading: Reading) -> None:
        """Ask the disk for the next bytes while a subscriber still takes these.

        Not before it has taken half of them: one that is stuck holds no more than it must.
        """
        base, data = reading.chunk
        at = reading.position - base
        if reading.ahead_ticket != AWAY or reading.ahead[1] or not reading.ahead_allowed:
            return
        if reading.sparse or self.held > HELD_BYTES:
            return
        if not len(data) // 2 <= at < len(data):
            return
        at = whole_until(data, at, reading.position)
        position = base + at
        if at < 0 or position >= self.journal.persisted_position:
            return
        segment = self.journal.segments.find(position)
        if segment is None or segment[0] > base or self.journal.tail.find(position) is not None:
            return
        reading.ahead_at = position
        reading.ahead_ticket, reading.ahead_size = self._ask(reading, segment, position, READ_BYTES)

    def _is_coming(self, reading: Reading) -> bool:
        """Whether what a reading needs now is being read ahead."""
        start = reading.ahead_at
        if reading.ahead_ticket == AWAY:
            return False
        return start <= reading.position < start + reading.ahead_size

    def arrived(self, event: JournalRead, now: Now) -> bool:
        """Bytes that a reading asked for; whether one did."""
        reading = self.reading.pop(event.ticket, None)
        if reading is None:
            return False
        if event.ticket == reading.ahead_ticket:
            reading.ahead_ticket = AWAY
            if event.data and not event.error:  # else it is read again, and then it counts
                self._keep(reading, reading.chunk, (reading.ahead_at, event.data))
            reading.go_on(now)
            return True
        reading.ticket = AWAY
        self._keep(reading, (reading.chunk[0], event.data), reading.ahead)
        gone = self.journal.forward(reading.position) > reading.position  # dropped meanwhile
        if (event.error or not event.data) and not gone:
            at = f"nothing is at position {reading.position}"
            reading.fail(event.error or at, now)
        else:
            reading.go_on(now)
        return True

    # ------------------------------------------------------------------------- taking

    def fill(
        self,
        reading: Reading,
        found: Found,
        until: int,
        messages: int,
        size: int,
        ids: bytes,
        now: Now,
    ) -> bool:
        """Take what is wanted of what was found, up to but not with `until`; whether to go on.

        What was taken is in the reader.
        """
        first, offset, view = found
        reader = reading.reader
        reader.base = offset
        slot = reading.stream.slot
        until = min(until, self.journal.recorder.far(slot, reading.next_sequence, FAR_BYTES))
        at = reader.fill(
            view,
            0,
            len(view),
            first,
            reading.next_sequence,
            until,
            messages,
            size,
            ids,
            now.wall_us,
        )
        if at < 0:  # the record at hand does not end in these bytes
            return self._need_more(reading, -1 - at, len(view), now)
        reading.position = first + offset + at
        reading.next_sequence = reader.next_sequence
        reading.need = 0
        closed = reader.status == CLOSED
        if reader.status == ZERO:  # what is left of one that was closed without an INDEX
            closed = first != self.journal.recorder.first
        reading.past_end = reader.status == LATER
        if closed:
            self._next_segment(reading, first)
        elif reader.status not in (FOUND, SHORT, LATER):
            reading.fail(f"the record at position {reading.position} is damaged", now)
            return False
        self.read_ahead(reading)
        return True

    def _need_more(self, reading: Reading, need: int, had: int, now: Now) -> bool:
        if reading.position + need > self.journal.persisted_position:
            self._rest(reading, within=True)
            return False
        if need <= had:
            reading.fail(f"the record at position {reading.position} is damaged", now)
            return False
        reading.need = need
        self._keep(reading, NOTHING, reading.ahead)
        if _holds(reading.ahead, reading.position):
            return True
        if not self._is_coming(reading):
            self._read(reading, now)
        return False

    def _next_segment(self, reading: Reading, first: int) -> None:
        """Go on in the next segment that has anything for the reading."""
        segments = self.journal.segments
        segment = segments.find(first)
        position = first + segment[1] if segment else segments.oldest
        marks = reading.stream.marks
        k = bisect_left(marks, position, key=lambda mark: mark.first)
        if k and marks[k - 1].last >= reading.next_sequence:
            reading.position = position  # one mark may stand for several segments
        elif k < len(marks):
            reading.position = marks[k].first
        else:
            reading.position = max(position, segments.open)


def _holds(chunk: tuple[int, bytes], position: int) -> bool:
    base, data = chunk
    return base <= position < base + len(data)
