"""Everything that leaves a node: replies, deliveries, credit, and what happens to the slow.

A subscriber that keeps up gets its bytes straight from the lane. One that does not gets a backlog;
when that is full, those who publish to it get no more credit until it has room again; and when it
makes no progress at all it is *stalled* and holds up nobody any more: its policy decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from regraft.errors import WorldError
from regraft.kernels.outlet import Outlet
from regraft.limits import CHUNK_BYTES, Limits
from regraft.node.connection import CLOSING, OPEN, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Close, Effect, Hold, Note, Write
from regraft.node.event import Now
from regraft.session.backlog import Taken
from regraft.session.session import DISCONNECT, UNLIMITED, Delivery
from regraft.wire import native

ALL = -1  # in `blocked_on`: not one subscriber is full, but the node's whole memory for them
DISK = -2  # and: so much is on its way to the disk
INWARD = -3  # the key of an outlet: what other nodes say to this one about messages
WINDOW_BYTES_MIN = 16 * 1024  # however many publishers share
MESSAGE_BYTES_MIN = native.HEADER_BYTES + 3  # a topic of one letter


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
        self._enough = 4 * limits.write_bytes
        self._batch_bytes = limits.frame_bytes + CHUNK_BYTES
        self._batch_messages = 1 + CHUNK_BYTES // MESSAGE_BYTES_MIN
        self._waiters: dict[int, set[int]] = {}  # publishers by the subscriber they wait for
        self._stalled: set[int] = set()  # subscribers whose messages are dropped
        self.publishers = 0
        self.queued = 0  # bytes in all backlogs
        self.dropped: dict[str, int] = {}  # deliveries that were not made, by reason
        self.inward: list[bytes] = []  # frames for this node itself

    # ------------------------------------------------------------ frames of our own

    def send(self, c: Connection, message: native.Control, now: Now) -> None:
        """Send a control frame at once, before what waits."""
        self.send_all(c, [message], now)

    def send_all(self, c: Connection, messages: Sequence[native.Control], now: Now) -> None:
        """Send control frames in one write, before what waits."""
        self._write(c, list(map(native.encode, messages)), now)

    def send_encoded(self, c: Connection, frames: Sequence[bytes], now: Now) -> None:
        """The same, of frames that are encoded already."""
        self._write(c, list(frames), now)

    def send_in_place(self, c: Connection, message: native.Control, now: Now) -> None:
        """Send a control frame behind what waits."""
        self.send_encoded_in_place(c, native.encode(message), now)

    def send_encoded_in_place(self, c: Connection, frame: bytes, now: Now) -> None:
        """The same, of a frame that is encoded already."""
        if c.session is not None and c.session.delivery.backlog:
            c.session.delivery.backlog.put_control(frame)
        else:
            self.send_encoded(c, [frame], now)

    def _write(
        self, c: Connection, pieces: list[bytes | memoryview], now: Now, report: bool = False
    ) -> None:
        if not c.lost:
            c.spoke_ns = now.ns
            self._effects.append(Write(c.key, pieces, report))

    def flush(self, c: Connection, now: Now) -> None:
        """Write all that waits and that the credit allows, though the connection may be slow."""
        if c.session is not None and c.session.delivery.backlog:
            taken = self._take(c.session.delivery, UNLIMITED, now)
            if taken.pieces:
                self._write(c, taken.pieces, now)

    def close(self, c: Connection, reason: str, now: Now) -> None:
        """End a connection; what waits for it is dropped, and nobody waits for it any more."""
        c.state = CLOSING
        self._effects.append(Close(c.key, reason))
        self._abandon(c, now)

    # ------------------------------------------------------------------ deliveries

    def deliver(
        self, dirty: list[Outlet], publisher: Connection | None, last: bool, now: Now
    ) -> None:
        """Pass on what was gathered for these outlets from this publisher, if it is still there."""
        for outlet in dirty:
            c = self._connections.get(outlet.key)
            if outlet.key == INWARD:
                self.inward.append(b"".join(outlet.gather(False)))
                continue
            if c is None or c.state is CLOSING or c.lost:  # it left while they were on their way
                self._count_dropped(outlet.messages, "disconnected")
                outlet.gather(True)
                continue
            assert c.session is not None, "a route leads to a connection without a session"
            delivery = c.session.delivery
            if outlet.slow:
                runs, outlet.waiting = outlet.waiting, []
                outlet.gather(True)
                self._keep(c, delivery, runs, publisher, now)
            else:
                delivery.sent(outlet.messages, outlet.size)
                self._write(c, outlet.gather(last), now)
                if delivery.near_credit(self._batch_messages, self._batch_bytes):
                    outlet.slow = True

    def idle(self, c: Connection) -> bool:
        """Whether a connection has nothing to write but what it is given now."""
        assert c.session is not None
        delivery = c.session.delivery
        return not c.unsent and not delivery.awaited and not delivery.backlog

    def hand_out(
        self,
        c: Connection,
        pieces: list[bytes | memoryview],
        messages: int,
        size: int,
        now: Now,
    ) -> None:
        """Write deliveries that were read from the journal to a connection that is idle."""
        assert c.session is not None
        delivery = c.session.delivery
        delivery.sent(messages, size)
        delivery.awaited = True
        self._write(c, pieces, now, report=True)
        if self.near_credit(delivery):
            c.outlet.slow = True

    def near_credit(self, delivery: Delivery) -> bool:
        """Whether one batch of the lane could go beyond what the subscriber allows."""
        return delivery.near_credit(self._batch_messages, self._batch_bytes)

    def _keep(
        self,
        c: Connection,
        delivery: Delivery,
        runs: list[tuple[bytes, int, bytes, int, int]],
        publisher: Connection | None,
        now: Now,
    ) -> None:
        if not delivery.backlog:
            delivery.progress_ns = now.ns
        before = delivery.backlog.size
        dropped = delivery.keep(runs)
        self.queued += delivery.backlog.size - before
        self._count_dropped(dropped, "stalled")
        self.pump(c, now)
        if not delivery.stalled and delivery.backlog.full:
            self.block(publisher, c.key)
        if self.queued >= self._limits.queue_bytes_total:
            self._reclaim()
        if self.queued >= self._limits.queue_bytes_total:
            self.block(publisher, ALL)

    def pump(self, c: Connection, now: Now) -> None:
        """Write the next part of a backlog, if the connection and the credit allow it."""
        if c.session is None or c.state is CLOSING or c.lost:
            return
        delivery = c.session.delivery
        backlog = delivery.backlog
        if backlog and not c.unsent and not delivery.awaited:
            taken = self._take(delivery, self._enough, now)
            if taken.pieces:
                delivery.awaited = True
                self._write(c, taken.pieces, now, report=True)
            if backlog.low and (taken.messages or not delivery.stalled):
                self._recovered(c, delivery, now)
            self._release_all(now)
        self._watch(c, delivery)
        c.outlet.slow = (
            bool(backlog) or c.unsent > 0 or delivery.stalled or self.near_credit(delivery)
        )

    def _take(self, delivery: Delivery, enough: int, now: Now) -> Taken:
        backlog = delivery.backlog
        before, expired = backlog.size, backlog.expired
        taken = delivery.take(enough, now.wall_us)
        self.queued += backlog.size - before
        self._count_dropped(backlog.expired - expired, "expired")
        return taken

    def _recovered(self, c: Connection, delivery: Delivery, now: Now) -> None:
        """There is room again: let publishers go on, and tell the subscriber what it missed."""
        delivery.stalled = False
        self._stalled.discard(c.key)
        if delivery.dropped_messages:
            report = native.Dropped(delivery.dropped_messages, delivery.dropped_bytes, "stalled")
            delivery.dropped_messages = delivery.dropped_bytes = 0
            self.send_in_place(c, report, now)
        self.release(c.key, now)

    def unsent(self, c: Connection, size: int, now: Now) -> None:
        """The driver says what it has not written yet."""
        progress = size < c.unsent or size == 0
        if c.held and size < c.unsent:  # it reads, and more than that could not be heard of it
            c.heard_ns = now.ns
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
        """A subscriber allows more."""
        assert c.session is not None
        if c.session.delivery.allow(message.messages, message.bytes):
            c.session.delivery.progress_ns = now.ns
        self.pump(c, now)

    # -------------------------------------------------------- the slow and the fast

    def _watch(self, c: Connection, delivery: Delivery) -> None:
        """See to it that somebody looks whether this subscriber makes progress."""
        if delivery.backlog and not delivery.stalled and not delivery.watched:
            delivery.watched = True
            at_ns = delivery.progress_ns + self._limits.stall_ms * 1_000_000
            self._deadlines.add(at_ns, "stall", c.key)

    def stall(self, c: Connection, now: Now) -> WorldError | None:
        """Has this subscriber made no progress for too long? An error if that is its end."""
        assert c.session is not None
        delivery = c.session.delivery
        delivery.watched = False
        if not delivery.backlog or delivery.stalled:
            return None
        if now.ns - delivery.progress_ns < self._limits.stall_ms * 1_000_000:
            self._watch(c, delivery)
            return None
        if delivery.policy == DISCONNECT:
            return WorldError(
                "stalled",
                f"no progress for {self._limits.stall_ms} ms with {delivery.backlog.messages} "
                "messages waiting; read faster, or ask for another policy",
            )
        before = delivery.backlog.size
        dropped = delivery.stall()
        self.queued += delivery.backlog.size - before
        self._count_dropped(dropped, "stalled")
        self._stalled.add(c.key)
        self._effects.append(Note("warning", f"{c.who} is stalled; messages for it are dropped"))
        self.release(c.key, now)
        if ALL in self._waiters:
            self._reclaim()
            self._release_all(now)
        return None

    def _reclaim(self) -> None:
        """Memory is short: what waits for the stalled must not stop those who move."""
        for key in self._stalled:
            session = self._connections[key].session
            assert session is not None
            self._give_up(session.delivery, "stalled")

    def discard(self, c: Connection) -> None:
        """What waits was passed on another way: it is not lost."""
        assert c.session is not None
        backlog = c.session.delivery.backlog
        self.queued -= backlog.size
        backlog.drop_all()

    def _give_up(self, delivery: Delivery, reason: str) -> None:
        self.queued -= delivery.backlog.size
        self._count_dropped(delivery.give_up(), reason)

    def _count_dropped(self, messages: int, reason: str) -> None:
        if messages:
            self.dropped[reason] = self.dropped.get(reason, 0) + messages

    def block(self, publisher: Connection | None, subscriber: int) -> None:
        """Give a publisher no more credit until this subscriber has room."""
        if publisher is None:
            return
        if publisher.blocked_on is None:
            publisher.blocked_on = set()
        publisher.blocked_on.add(subscriber)
        self._waiters.setdefault(subscriber, set()).add(publisher.key)

    def release(self, subscriber: int, now: Now) -> None:
        """There is room again: let those go on who waited for it."""
        for key in self._waiters.pop(subscriber, ()):
            publisher = self._connections.get(key)
            if publisher is not None and publisher.blocked_on is not None:
                publisher.blocked_on.discard(subscriber)
                self.grant(publisher, now)

    def _release_all(self, now: Now) -> None:
        if ALL in self._waiters and self.queued <= self._limits.queue_bytes_total // 2:
            self.release(ALL, now)

    def grant(self, c: Connection, now: Now) -> None:
        """Give a publisher more credit, unless it must wait for somebody."""
        if not c.blocked_on and c.state is OPEN:
            limits = self._limits
            share = limits.windows_bytes_total // max(1, self.publishers)
            messages = limits.window_messages
            ahead = min(limits.window_bytes, max(WINDOW_BYTES_MIN, share))
            if c.node:
                messages, ahead = limits.link_window_messages, limits.link_window_bytes
            if c.window.extend(c.source.messages, c.source.size, messages, ahead):
                self.send(c, native.Credit(c.window.messages, c.window.size), now)
        self.update_hold(c)

    def update_hold(self, c: Connection) -> None:
        """Read from a connection unless it is over its credit, is ahead, or reads no replies."""
        if c.state is not OPEN:
            return
        overdrawn = bool(c.blocked_on) and c.window.exhausted(c.source.messages, c.source.size)
        unread = c.unsent
        if c.session is not None:
            unread += c.session.delivery.backlog.control_size
        held = overdrawn or unread > self._unread_max or bool(c.untaken)
        if held != c.held:
            c.held = held
            self._effects.append(Hold(c.key, held))

    def forget(self, c: Connection, now: Now) -> None:
        """A connection is gone, and what waited for it."""
        if c.source.messages:
            self.publishers -= 1
        for subscriber in c.blocked_on or ():
            waiters = self._waiters.get(subscriber, set())
            waiters.discard(c.key)
            if not waiters:
                self._waiters.pop(subscriber, None)
        c.blocked_on = None
        self._abandon(c, now)

    def _abandon(self, c: Connection, now: Now) -> None:
        if c.session is not None:
            self._give_up(c.session.delivery, c.ending)
        self._stalled.discard(c.key)
        self.release(c.key, now)
        self._release_all(now)
