"""Subscribers that read the journal: mailboxes and replays.

A *cursor* has a place in the journal and reads on from there as fast as its subscriber takes it.
Nothing waits for it in memory: one that keeps up reads what was just persisted from the journal's
tail; one that does not reads the disk, when its subscriber has room, and one chunk ahead of it.
A mailbox marks what may have been delivered before, skips what is settled, and settles what has
expired.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from regraft.journal import format
from regraft.journal.journal import Journal
from regraft.journal.requests import ReadJournal
from regraft.journal.streams import Mailbox, Stream
from regraft.kernels.records import FOUND, SHORT, ZERO, Walk, whole_until
from regraft.kernels.replay import CLOSED, LATER, Reader
from regraft.limits import Limits
from regraft.node.connection import CLOSING, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect
from regraft.node.event import JournalRead, Now
from regraft.node.outflow import Outflow

READ_BYTES = 1 << 20  # of a segment, at a time
FOREVER = 1 << 62  # a sequence that is never reached
AWAY = 0  # a ticket: nothing is being read; those of cursors are below, of others above it
NOWHERE = -1  # a position: not found yet
LOOK_NS = 60_000_000_000  # how often a clock is looked at again that may be set meanwhile
NOTHING = (0, b"")  # a place and its bytes


@dataclass(slots=True)
class Cursor:
    """How far one subscription of the journal is."""

    key: int  # of its connection
    id: int  # of the subscription, there
    ids: bytes  # the same, as transfer headers have it
    stream: Stream
    reader: Reader
    next_sequence: int
    position: int = NOWHERE  # in the journal, of the record to go on with
    from_us: int = 0  # of a replay: not what is older,
    until: int = field(default_factory=lambda: FOREVER)  # not this sequence, and none behind it,
    until_us: int = 0  # and not what is of then or later; 0: without end
    done: bool = False  # it has come there
    look_ns: int = 0  # when the clock is looked at next
    in_flight: int = 0  # of a mailbox: how many its subscriber may have unsettled,
    held: int = 0  # and has,
    window: int = 0  # how far it may get ahead of what is settled for good,
    bound: int = 0  # and the sequence up to which that is
    ticket: int = AWAY  # of the read that is under way
    chunk: tuple[int, bytes] = NOTHING  # position and bytes that were read last
    ahead_ticket: int = AWAY  # of the read that is under way for what stands behind them,
    ahead_at: int = 0  # its position
    ahead_size: int = 0
    ahead: tuple[int, bytes] = NOTHING  # and what it brought
    want: int = field(default_factory=lambda: READ_BYTES)
    stands: bool = False  # its subscriber was told so
    paced: bool = False
    pace_us: int = 0  # by how much the past is behind the present

    @property
    def mailbox(self) -> Mailbox | None:
        """What it settles, if it is one of those."""
        return self.stream if isinstance(self.stream, Mailbox) else None

    @property
    def room(self) -> int:
        """How many messages it may get now."""
        if self.mailbox is None:
            return FOREVER
        return self.in_flight - self.held if self.next_sequence <= self.bound else 0


@dataclass(slots=True)
class Cursors:
    """All cursors of a node."""

    journal: Journal
    outflow: Outflow
    connections: dict[int, Connection]
    effects: list[Effect]
    deadlines: Deadlines
    limits: Limits
    settle: Callable[[Cursor, Mailbox, list[tuple[int, int]], Now], object]
    give_up: Callable[[Cursor, str, Now], None]
    finish: Callable[[Cursor, Now], None]
    held: dict[int, dict[int, Cursor]] = field(default_factory=dict)  # by connection and id
    replays: dict[int, int] = field(default_factory=dict)  # by connection: those without a mailbox
    reading: dict[int, Cursor] = field(default_factory=dict)  # by ticket
    lost: set[int] = field(default_factory=set)  # connections with cursors to be located
    idle: set[int] = field(default_factory=set)  # connections with cursors that have read all
    last_ticket: int = 0
    walk: Walk = field(default_factory=Walk)

    def add(self, cursor: Cursor) -> None:
        """One more; it reads once it stands."""
        mailbox = cursor.mailbox
        if mailbox is not None:
            cursor.reader.skip = list(mailbox.settled)
        else:
            self.replays[cursor.key] = self.replays.get(cursor.key, 0) + 1
        self.held.setdefault(cursor.key, {})[cursor.id] = cursor

    def get(self, key: int, id: int) -> Cursor | None:
        """The cursor of a subscription, if it has one."""
        return self.held.get(key, {}).get(id)

    def remove(self, key: int, id: int) -> Cursor | None:
        """Read no more."""
        mine = self.held.get(key)
        cursor = mine.pop(id, None) if mine else None
        if mine is not None and not mine:
            del self.held[key]
            self.idle.discard(key)
        if cursor is not None:
            if cursor.mailbox is None:
                self.replays[key] -= 1
                if not self.replays[key]:
                    del self.replays[key]
            self.reading.pop(cursor.ticket, None)
            self.reading.pop(cursor.ahead_ticket, None)
            cursor.stands = False
        return cursor

    def wake(self, now: Now) -> None:
        """More was persisted: those who had read all go on."""
        waiting, self.idle = self.idle, set()
        for key in waiting:
            self.resume(key, now)

    def resume(self, key: int, now: Now) -> None:
        """A connection may have room again."""
        for cursor in list(self.held.get(key, {}).values()):
            self.pull(cursor, now)

    # ------------------------------------------------------------------------ reading

    def pull(self, cursor: Cursor, now: Now) -> None:
        """Read on and deliver, as long as there is something, and room for it."""
        c = self.connections.get(cursor.key)
        if c is None or c.state is CLOSING or c.session is None:
            return
        while cursor.stands and cursor.ticket == AWAY and self.outflow.idle(c):
            if self._is_done(cursor, now):
                self.finish(cursor, now)
                return
            if self._has_read_all(cursor):
                self.idle.add(cursor.key)
                return
            if cursor.position == NOWHERE and not self._locate(cursor):
                self.lost.add(cursor.key)
                return
            if cursor.position >= self.journal.persisted_position:
                self.idle.add(cursor.key)
                return
            found = self._bytes_at(cursor)
            if found is None:
                if not self._is_coming(cursor):
                    self._read(cursor, now)
                return
            first, offset, view = found
            if cursor.paced:
                view = view[: self._due(cursor, first, offset, view, now)]
                if not view:
                    return
            if not self._fill(c, cursor, first, offset, view, now):
                return

    def _is_done(self, cursor: Cursor, now: Now) -> bool:
        """Whether a replay that ends has come to its end.

        If that is a moment, and nothing came since, there is nobody to say so but the clock.
        """
        if cursor.done or cursor.next_sequence >= cursor.until:
            return True
        if not cursor.until_us or not self._has_read_all(cursor):
            return False
        early_us = cursor.until_us - now.wall_us
        if early_us > 0 and now.ns >= cursor.look_ns:
            cursor.look_ns = now.ns + min(early_us * 1000, LOOK_NS)
            self.deadlines.add(cursor.look_ns, "pace", cursor.key)
        return early_us <= 0

    def _has_read_all(self, cursor: Cursor) -> bool:
        """Whether nothing of its stream is to come; then it need not look at what others got."""
        if self.journal.recorder.next_sequence(cursor.stream.slot) > cursor.next_sequence:
            return False
        if cursor.position != NOWHERE:
            cursor.position = max(cursor.position, self.journal.persisted_position)
        return True

    def _locate(self, cursor: Cursor) -> bool:
        """Find where to begin; False: the disk has to be asked first."""
        if cursor.from_us:
            place = self.journal.locate_time(cursor.stream.number, cursor.from_us)
        else:
            place = self.journal.locate(cursor.stream.number, cursor.next_sequence)
        if place is None:
            return False
        cursor.position = place.first + place.offset
        return True

    def found(self, now: Now) -> None:
        """The journal knows more: try again to locate those who are lost."""
        lost, self.lost = self.lost, set()
        for key in lost:
            self.resume(key, now)

    def _bytes_at(self, cursor: Cursor) -> tuple[int, int, memoryview] | None:
        """What is in memory from the cursor's place on: segment, offset in it, bytes."""
        position = cursor.position = self.journal.forward(cursor.position)
        found = self.journal.tail.find(position)
        if found is not None:
            self._hold(cursor, NOTHING)
            return found.first, found.offset, found.view
        if not _holds(cursor.chunk, position):
            if not _holds(cursor.ahead, position):
                return None
            self._hold(cursor, cursor.ahead)
        base, data = cursor.chunk
        segment = self.journal.segments.find(position)
        if segment is None:
            return None
        end = min(base + len(data), self.journal.persisted_position)
        return segment[0], position - segment[0], memoryview(data)[position - base : end - base]

    def _hold(self, cursor: Cursor, chunk: tuple[int, bytes]) -> None:
        """Go on with these bytes; what was read ahead of others is of no use any more."""
        cursor.chunk = chunk
        cursor.ahead = NOTHING
        cursor.reader.distrust()

    def _read(self, cursor: Cursor, now: Now) -> None:
        """Ask the disk for what is persisted by now; what stands behind it may change."""
        segment = self.journal.segments.find(cursor.position)
        if segment is None:
            self.give_up(cursor, f"position {cursor.position} is not there", now)
            return
        self._hold(cursor, (cursor.position, b""))
        cursor.ticket, _ = self._ask(cursor, segment, cursor.position, cursor.want)

    def _ask(
        self, cursor: Cursor, segment: tuple[int, int], position: int, most: int
    ) -> tuple[int, int]:
        """Have some of a segment read; the ticket, and how much it will be."""
        first, size = segment
        size = min(size, self.journal.persisted_position - first)
        self.last_ticket -= 1
        self.reading[self.last_ticket] = cursor
        length = min(most, size - (position - first))
        self.effects.append(ReadJournal(self.last_ticket, first, position - first, length))
        return self.last_ticket, length

    def _read_ahead(self, cursor: Cursor) -> None:
        """Ask the disk for the next bytes while a subscriber still takes these.

        Not before it has taken half of them: one that is stuck holds no more than it must.
        """
        base, data = cursor.chunk
        at = cursor.position - base
        if cursor.ahead_ticket != AWAY or cursor.ahead[1] or cursor.paced:
            return
        if not len(data) // 2 <= at < len(data):
            return
        at = whole_until(data, at, cursor.position)
        position = base + at
        if at < 0 or position >= self.journal.persisted_position:
            return
        segment = self.journal.segments.find(position)
        if segment is None or segment[0] > base or self.journal.tail.find(position) is not None:
            return
        cursor.ahead_at = position
        cursor.ahead_ticket, cursor.ahead_size = self._ask(cursor, segment, position, READ_BYTES)

    def _is_coming(self, cursor: Cursor) -> bool:
        """Whether what a cursor needs now is being read ahead."""
        start = cursor.ahead_at
        return cursor.ahead_ticket != AWAY and start <= cursor.position < start + cursor.ahead_size

    def arrived(self, event: JournalRead, now: Now) -> bool:
        """Bytes that a cursor asked for; whether one did."""
        cursor = self.reading.pop(event.ticket, None)
        if cursor is None:
            return False
        if event.ticket == cursor.ahead_ticket:
            cursor.ahead_ticket = AWAY
            if event.data and not event.error:  # else it is read again, and then it counts
                cursor.ahead = (cursor.ahead_at, event.data)
            self.pull(cursor, now)
            return True
        cursor.ticket = AWAY
        cursor.chunk = (cursor.chunk[0], event.data)
        gone = self.journal.forward(cursor.position) > cursor.position  # dropped meanwhile
        if (event.error or not event.data) and not gone:
            at = f"nothing is at position {cursor.position}"
            self.give_up(cursor, event.error or at, now)
        else:
            self.pull(cursor, now)
        return True

    def _fill(
        self, c: Connection, cursor: Cursor, first: int, offset: int, view: memoryview, now: Now
    ) -> bool:
        """Deliver what stands in `view`; whether to go on."""
        messages, size = self._bounds(c, cursor)
        if messages <= 0 or size <= 0:
            return False
        reader = cursor.reader
        mailbox = cursor.mailbox
        until = cursor.until
        reader.delivery_count = 0
        if mailbox is not None:
            until = cursor.bound + 1
            if cursor.next_sequence <= mailbox.delivered:
                until = min(until, mailbox.delivered + 1)
                reader.delivery_count = 1
        before, expired = cursor.next_sequence, reader.expired
        reader.base = offset
        at = reader.fill(
            view, 0, len(view), first, before, until, messages, size, cursor.ids, now.wall_us
        )
        if at < 0:  # the record at hand does not end in these bytes
            return self._need_more(cursor, -1 - at, len(view), now)
        cursor.position = first + offset + at
        cursor.next_sequence = reader.next_sequence
        if at == 0 and reader.status == FOUND and reader.next_sequence == before:
            cursor.next_sequence = until  # the record begins behind it: what lay between is gone
        closed = reader.status == CLOSED
        if reader.status == ZERO:  # what is left of one that was closed without an INDEX
            closed = first != self.journal.recorder.first
        if closed:
            self._next_segment(cursor, first)
        cursor.done = reader.status == LATER
        damaged = not closed and reader.status not in (FOUND, SHORT, LATER)
        if mailbox is not None and not damaged:
            damaged = not self._settle_missing(cursor, mailbox, before, expired, now)
            mailbox.delivered = max(mailbox.delivered, cursor.next_sequence - 1)
        if damaged:
            self.give_up(cursor, f"the record at position {cursor.position} is damaged", now)
            return False
        self._read_ahead(cursor)
        if reader.messages:
            cursor.held += reader.messages
            self.outflow.hand_out(c, reader.out(), reader.messages, reader.size, now)
            mine = self.held[cursor.key]
            mine[cursor.id] = mine.pop(cursor.id)  # the others have their turn first
            return False  # until it is known to be written
        return True

    def _bounds(self, c: Connection, cursor: Cursor) -> tuple[int, int]:
        assert c.session is not None
        delivery = c.session.delivery
        messages = min(delivery.credit_messages - delivery.sent_messages, cursor.room)
        size = min(delivery.credit_bytes - delivery.sent_bytes, self.limits.write_bytes)
        return messages, size

    def _need_more(self, cursor: Cursor, need: int, had: int, now: Now) -> bool:
        if cursor.position + need > self.journal.persisted_position:
            self.idle.add(cursor.key)
            return False
        if need <= had:
            self.give_up(cursor, f"the record at position {cursor.position} is damaged", now)
            return False
        cursor.want = max(READ_BYTES, need)
        cursor.chunk = NOTHING
        if _holds(cursor.ahead, cursor.position):
            return True
        if not self._is_coming(cursor):
            self._read(cursor, now)
        return False

    def _next_segment(self, cursor: Cursor, first: int) -> None:
        """Go on in the next segment that has anything for the cursor."""
        segments = self.journal.segments
        segment = segments.find(first)
        position = first + segment[1] if segment else segments.oldest
        marks = cursor.stream.marks
        k = bisect_left(marks, position, key=lambda mark: mark.first)
        if k and marks[k - 1].last >= cursor.next_sequence:
            cursor.position = position  # one mark may stand for several segments
        elif k < len(marks):
            cursor.position = marks[k].first
        else:
            cursor.position = max(position, segments.open)

    def _settle_missing(
        self, cursor: Cursor, mailbox: Mailbox, before: int, expired: int, now: Now
    ) -> bool:
        """What was passed over without being settled had expired: nobody will ever settle it.

        False if more was passed over than that: it is not where it should be.
        """
        gone: list[tuple[int, int]] = []
        at = before
        for first, count in [*cursor.reader.runs, (cursor.next_sequence, 0)]:
            if first > at:
                gone += mailbox.settled.gaps(max(at, mailbox.floor), first - 1)
            at = first + count
        missing = sum(last - first + 1 for first, last in gone)
        if missing != cursor.reader.expired - expired:
            return False
        if gone:
            self.settle(cursor, mailbox, gone, now)
        return True

    # -------------------------------------------------------------------- pace, failure

    def _due(self, cursor: Cursor, first: int, offset: int, view: memoryview, now: Now) -> int:
        """How many bytes of `view` it is time for: the records of other streams, or one of its own.

        That comes as long after the first one as it did when it was published.
        """
        walk = self.walk
        walk.base = offset
        if walk.step(view, 0, first, 0) != FOUND:
            return len(view)
        if walk.kind != format.MESSAGES or walk.time_us < cursor.from_us:
            return walk.next
        if not any(
            number == cursor.stream.number and sequence + walk.count > cursor.next_sequence
            for number, sequence in format.places(view[walk.meta_at : walk.payload_at])
        ):
            return walk.next
        if not cursor.pace_us:
            cursor.pace_us = now.wall_us - walk.time_us
        early_us = walk.time_us + cursor.pace_us - now.wall_us
        if early_us <= 0:
            return walk.next
        self.deadlines.add(now.ns + early_us * 1000, "pace", cursor.key)
        return 0


def _holds(chunk: tuple[int, bytes], position: int) -> bool:
    base, data = chunk
    return base <= position < base + len(data)
