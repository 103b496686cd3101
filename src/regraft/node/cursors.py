"""Subscribers that read a stream again: replays, and looks into a mailbox.

A *cursor* reads on as fast as its subscriber takes it. Nothing waits for it in memory. One that has
an end is over when it has reached it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from regraft.journal import format
from regraft.journal.streams import Mailbox
from regraft.kernels.records import FOUND, Walk
from regraft.limits import Limits
from regraft.node.connection import CLOSING, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.event import Now
from regraft.node.outflow import Outflow
from regraft.node.reading import FOREVER, Found, Reading, Readings

SKIPPED = 8192  # sequences of a mailbox that are looked at, at a time
LOOK_NS = 60_000_000_000  # how often a clock is looked at again that may be set meanwhile


@dataclass(slots=True)
class Cursor:
    """How far one subscription of a stream is."""

    key: int  # of its connection
    id: int  # of the subscription, there
    ids: bytes  # the same, as transfer headers have it
    reading: Reading
    until: int = FOREVER  # it ends before this sequence,
    until_us: int = 0  # and before what is of then or later; 0: it does not
    look_ns: int = 0  # when the clock is looked at next
    stands: bool = False  # its subscriber was told so
    paced: bool = False
    pace_us: int = 0  # by how much the past is behind the present


@dataclass(slots=True)
class Cursors:
    """All cursors of a node."""

    readings: Readings
    outflow: Outflow
    connections: dict[int, Connection]
    deadlines: Deadlines
    limits: Limits
    finish: Callable[[Cursor, Now], None]  # it has reached its end
    held: dict[int, dict[int, Cursor]] = field(default_factory=dict)  # by connection and id
    walk: Walk = field(default_factory=Walk)

    def add(self, cursor: Cursor) -> None:
        """One more; it reads once it stands."""
        self.held.setdefault(cursor.key, {})[cursor.id] = cursor

    def get(self, key: int, id: int) -> Cursor | None:
        """The cursor of a subscription, if it has one."""
        return self.held.get(key, {}).get(id)

    def count(self, key: int) -> int:
        """How many a connection has."""
        return len(self.held.get(key, ()))

    def remove(self, key: int, id: int) -> Cursor | None:
        """Read no more."""
        mine = self.held.get(key)
        cursor = mine.pop(id, None) if mine else None
        if mine is not None and not mine:
            del self.held[key]
        if cursor is not None:
            self.readings.end(cursor.reading)
            cursor.stands = False
        return cursor

    def resume(self, key: int, now: Now) -> None:
        """A connection may have room again."""
        c = self.connections.get(key)
        for cursor in list(self.held.get(key, {}).values()):
            if c is None or c.session is None or not self.outflow.idle(c):
                break
            self.pull(cursor, now)

    def pull(self, cursor: Cursor, now: Now) -> None:
        """Read on and deliver, as long as there is something, and room for it."""
        c = self.connections.get(cursor.key)
        if c is None or c.state is CLOSING or c.session is None:
            return
        while cursor.stands and self.outflow.idle(c):
            if self._is_done(cursor, now):
                self.finish(cursor, now)
                return
            found = self.readings.look(cursor.reading, now)
            if found is None:
                if cursor.reading.idle and isinstance(cursor.reading.stream, Mailbox):
                    self.finish(cursor, now)  # the last ones were settled meanwhile
                return
            if cursor.paced:
                found = found._replace(view=found.view[: self._due(cursor, found, now)])
                if not found.view:
                    return
            if not self._fill(c, cursor, found, now):
                return

    def _is_done(self, cursor: Cursor, now: Now) -> bool:
        """Whether one that ends has come to its end.

        If that is a moment, and nothing came since, there is nobody to say so but the clock.
        """
        reading = cursor.reading
        if reading.past_end or reading.next_sequence >= cursor.until:
            return True
        if not cursor.until_us or not self.readings.has_read_all(reading):
            return False
        early_us = cursor.until_us - now.wall_us
        if early_us > 0 and now.ns >= cursor.look_ns:
            cursor.look_ns = now.ns + min(early_us * 1000, LOOK_NS)
            self.deadlines.add(cursor.look_ns, "pace", cursor.key)
        return early_us <= 0

    def _fill(self, c: Connection, cursor: Cursor, found: Found, now: Now) -> bool:
        """Deliver what was found; whether to go on."""
        assert c.session is not None
        delivery = c.session.delivery
        messages = delivery.credit_messages - delivery.sent_messages
        size = min(delivery.credit_bytes - delivery.sent_bytes, self.limits.write_bytes)
        if messages <= 0 or size <= 0:
            return False
        reading = cursor.reading
        until = cursor.until
        stream = reading.stream
        if isinstance(stream, Mailbox):
            at = reading.next_sequence = max(reading.next_sequence, stream.floor)
            until = min(until, at + SKIPPED)
            reading.reader.skip = list(stream.settled.within(at, until - 1))
        if not self.readings.fill(reading, found, until, messages, size, cursor.ids, now):
            return False
        reader = reading.reader
        if reader.messages:
            self.outflow.hand_out(c, reader.out(), reader.messages, reader.size, now)
            mine = self.held[cursor.key]
            mine[cursor.id] = mine.pop(cursor.id)  # the others have their turn first
            return False  # until it is known to be written
        return True

    def _due(self, cursor: Cursor, found: Found, now: Now) -> int:
        """How many bytes of it it is time for: the records of other streams, or one of its own.

        That comes as long after the first one as it did when it was published.
        """
        walk = self.walk
        first, offset, view = found
        walk.base = offset
        if walk.step(view, 0, first, 0) != FOUND:
            return len(view)
        reading = cursor.reading
        if walk.kind != format.MESSAGES or walk.time_us < reading.from_us:
            return walk.next
        if not any(
            number == reading.stream.number and sequence + walk.count > reading.next_sequence
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
