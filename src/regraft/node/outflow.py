"""Everything that leaves a node: replies, deliveries, credit, and what happens to the slow.

A subscriber that keeps up gets its bytes straight from the lane. One that does not gets a backlog;
when that is full, those who publish to it get no more credit until it has room again; and when it
makes no progress at all it is *stalled* and holds up nobody any more: its policy decides.
"""

from __future__ import annotations

from regraft.errors import WorldError
from regraft.kernels.lane import Outlet
from regraft.limits import Limits
from regraft.node.connection import Connection, State
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Close, Effect, Hold, Note, Write
from regraft.node.event import Now
from regraft.session.session import DISCONNECT, Delivery
from regraft.wire import native

ALL = 0  # in `blocked_on`: not one subscriber is full, but the node's whole memory for them
BATCH_BYTES = 512 * 1024  # more than one read can bring,
BATCH_MESSAGES = BATCH_BYTES // 16  # each message having at least a header and a topic


class Outflow:
    """Writes to connections, within bounds."""

    def __init__(
        self,
        connections: dict[int, Connection],
        effects: list[Effect],
        deadlines: Deadlines,
        limits: Limits,
    ) -> None:
        self._connections = connections
        self._effects = effects
        self._deadlines = deadlines
        self._limits = limits
        self._unread_max = limits.frame_bytes + 4 * limits.write_bytes
        self._waiters: dict[int, set[int]] = {}  # publishers by the subscriber they wait for
        self.publishers = 0
        self.queued = 0  # bytes in all backlogs
        self.dropped: dict[str, int] = {}  # messages by reason
        self.expired = 0  # while they waited

    # ------------------------------------------------------------ frames of our own

    def send(self, c: Connection, message: native.Control, now: Now) -> None:
        """Send a control frame at once, before what waits."""
        self._write(c, [native.encode(message)], now)

    def send_in_place(self, c: Connection, message: native.Control, now: Now) -> None:
        """Send a control frame behind what waits."""
        if c.session is not None and c.session.delivery.backlog:
            c.session.delivery.backlog.put_control(native.encode(message))
        else:
            self.send(c, message, now)

    def _write(
        self, c: Connection, pieces: list[bytes | memoryview], now: Now, report: bool = False
    ) -> None:
        c.spoke_ns = now.ns
        self._effects.append(Write(c.key, pieces, report))

    def close(self, c: Connection, reason: str, flush: bool = True) -> None:
        """End a connection."""
        c.state = State.CLOSING
        self._effects.append(Close(c.key, reason, flush))

    # ------------------------------------------------------------------ deliveries

    def deliver(self, dirty: list[Outlet], publisher: Connection, last: bool, now: Now) -> None:
        """Pass on what the lane has gathered for these outlets from this publisher."""
        for outlet in dirty:
            c = self._connections[outlet.key]
            assert c.session is not None, "a route leads to a connection without a session"
            delivery = c.session.delivery
            if outlet.slow:
                runs, outlet.waiting = outlet.waiting, []
                outlet.gather(True)
                self._keep(c, delivery, runs, publisher, now)
            else:
                delivery.sent(outlet.messages, outlet.size)
                self._write(c, outlet.gather(last), now)
                if delivery.near_credit(BATCH_MESSAGES, BATCH_BYTES):
                    outlet.slow = True

    def _keep(
        self,
        c: Connection,
        delivery: Delivery,
        runs: list[tuple[bytes, int, bytes, int]],
        publisher: Connection,
        now: Now,
    ) -> None:
        if not delivery.backlog and not delivery.stalled:
            delivery.progress_ns = now.ns
            self._deadlines.add(now.ns + self._limits.stall_ms * 1_000_000, "stall", c.key)
        before = delivery.backlog.size
        dropped = delivery.keep(runs)
        self.queued += delivery.backlog.size - before
        self._count_dropped(dropped, "stalled")
        self.pump(c, now)
        if not delivery.stalled and delivery.backlog.full:
            self._block(publisher, c.key)
        if self.queued >= self._limits.queue_bytes_total:
            self._block(publisher, ALL)

    def pump(self, c: Connection, now: Now) -> None:
        """Write the next part of a backlog, if the connection and the credit allow it."""
        if c.session is None or c.state is State.CLOSING:
            return
        delivery = c.session.delivery
        backlog = delivery.backlog
        if backlog and not c.unsent and not delivery.awaited:
            before, expired = backlog.size, backlog.expired
            taken = delivery.take(self._limits.write_bytes, now.wall_us)
            self.queued += backlog.size - before
            self.expired += backlog.expired - expired
            if taken.pieces:
                delivery.awaited = True
                self._write(c, taken.pieces, now, report=True)
            if backlog.low:
                self._recovered(c, delivery, now)
        c.outlet.slow = (
            bool(backlog)
            or c.unsent > 0
            or delivery.stalled
            or delivery.near_credit(BATCH_MESSAGES, BATCH_BYTES)
        )

    def _recovered(self, c: Connection, delivery: Delivery, now: Now) -> None:
        """There is room again: let publishers go on, and tell the subscriber what it missed."""
        delivery.stalled = False
        if delivery.dropped_messages:
            report = native.Dropped(delivery.dropped_messages, delivery.dropped_bytes, "stalled")
            delivery.dropped_messages = delivery.dropped_bytes = 0
            self.send_in_place(c, report, now)
        self._release(c.key, now)
        if self.queued <= self._limits.queue_bytes_total // 2:
            self._release(ALL, now)

    def unsent(self, c: Connection, size: int, now: Now) -> None:
        """The driver says what it has not written yet."""
        progress = size < c.unsent or size == 0
        c.unsent = size
        if c.session is not None:
            delivery = c.session.delivery
            if size == 0:
                delivery.awaited = False
            if progress:
                delivery.progress_ns = now.ns
            self.pump(c, now)
        self.update_hold(c)

    def credit(self, c: Connection, message: native.Credit, now: Now) -> None:
        """A subscriber allows more. Credit only grows."""
        assert c.session is not None
        delivery = c.session.delivery
        if message.messages > delivery.credit_messages or message.bytes > delivery.credit_bytes:
            delivery.progress_ns = now.ns
        delivery.credit_messages = max(delivery.credit_messages, message.messages)
        delivery.credit_bytes = max(delivery.credit_bytes, message.bytes)
        self.pump(c, now)

    # -------------------------------------------------------- the slow and the fast

    def stall(self, c: Connection, now: Now) -> None:
        """Has this subscriber made no progress for too long?"""
        if c.session is None or c.state is State.CLOSING:
            return
        delivery = c.session.delivery
        limit_ns = self._limits.stall_ms * 1_000_000
        if not delivery.backlog or delivery.stalled:
            return
        if now.ns - delivery.progress_ns < limit_ns:
            self._deadlines.add(delivery.progress_ns + limit_ns, "stall", c.key)
            return
        if delivery.policy == DISCONNECT:
            c.ending = "stalled"
            error = WorldError(
                "stalled",
                f"no progress for {self._limits.stall_ms} ms with {delivery.backlog.messages} "
                "messages waiting; read faster, or ask for another policy",
            )
            self._effects.append(Note("warning", f"{c.who} is stalled and is disconnected"))
            self.send(c, native.Error.of(error), now)
            self.close(c, "stalled")
            return
        before = delivery.backlog.size
        dropped = delivery.stall()
        self.queued += delivery.backlog.size - before
        self._count_dropped(dropped, "stalled")
        self._effects.append(Note("warning", f"{c.who} is stalled; messages for it are dropped"))
        self._release(c.key, now)

    def _count_dropped(self, messages: int, reason: str) -> None:
        if messages:
            self.dropped[reason] = self.dropped.get(reason, 0) + messages

    def _block(self, publisher: Connection, subscriber: int) -> None:
        if publisher.blocked_on is None:
            publisher.blocked_on = set()
        publisher.blocked_on.add(subscriber)
        self._waiters.setdefault(subscriber, set()).add(publisher.key)

    def _release(self, subscriber: int, now: Now) -> None:
        for key in self._waiters.pop(subscriber, ()):
            publisher = self._connections.get(key)
            if publisher is not None and publisher.blocked_on is not None:
                publisher.blocked_on.discard(subscriber)
                self.grant(publisher, now)

    def grant(self, c: Connection, now: Now) -> None:
        """Give a publisher more credit, unless it must wait for somebody."""
        if not c.blocked_on and c.state is State.OPEN:
            limits = self._limits
            share = limits.windows_bytes_total // max(1, self.publishers)
            ahead = max(16_384, min(limits.window_bytes, share))
            if c.window.extend(c.source.messages, c.source.size, limits.window_messages, ahead):
                self.send(c, native.Credit(c.window.messages, c.window.size), now)
        self.update_hold(c)

    def update_hold(self, c: Connection) -> None:
        """Read from a connection unless it is over its credit or does not read our replies."""
        if c.state is not State.OPEN:
            return
        overdrawn = bool(c.blocked_on) and c.window.exhausted(c.source.messages, c.source.size)
        held = overdrawn or c.unsent > self._unread_max
        if held != c.held:
            c.held = held
            self._effects.append(Hold(c.key, held))

    def forget(self, c: Connection, now: Now) -> None:
        """A connection is gone, and what waited for it."""
        if c.session is not None:
            backlog = c.session.delivery.backlog
            self.queued -= backlog.size
            self._count_dropped(backlog.messages, c.ending)
        if c.source.messages:
            self.publishers -= 1
        for subscriber in c.blocked_on or ():
            self._waiters.get(subscriber, set()).discard(c.key)
        self._release(c.key, now)
