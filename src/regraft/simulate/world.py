"""A world: its clock, its brokers, and the connections between brokers and clients."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from regraft.journal.journal import Journal
from regraft.journal.recovery import SegmentView, recover
from regraft.journal.requests import (
    Persist,
    PrepareSegment,
    PunchHole,
    ReadJournal,
    RemoveSegment,
    Request,
)
from regraft.journal.retention import KEEP, Retention
from regraft.kernels.frame import count_messages
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.node.effect import (
    Close,
    Connect,
    Effect,
    Hold,
    Note,
    Refuse,
    SendDatagram,
    Stopped,
    WakeAt,
    Write,
)
from regraft.node.event import Closed, Event, Now, Opened, Received, Stop, Tick, Unsent
from regraft.node.node import Node
from regraft.node.storage import Retained
from regraft.simulate.disk import Disk

START_US = 1_767_225_600_000_000  # 2026-01-01: when every world begins
DELAY_NS = 100_000  # of a byte from one end to the other
TICKS_MAX = 1000  # of one node within a millisecond


class Line(Protocol):
    """A connection as the room sees it that performs a node's effects."""

    def write(self, data: bytes, report: bool) -> list[Event]:
        """Take what the node writes; what the driver has to say of it."""

    def hold(self, held: bool) -> None:
        """The node wants no bytes, or wants them again."""

    def finish(self, reason: str, flush: bool) -> list[Event]:
        """The node ends the connection."""

    def resume(self) -> None:
        """The node is awake again, and takes what has arrived."""


class Wires(Protocol):
    """What connects brokers with one another: `regraft.simulate.network`."""

    def connect(self, broker: Broker, effect: Connect) -> None:
        """Open a connection for a broker."""

    def cast(self, broker: Broker, effect: SendDatagram) -> None:
        """Send a datagram for it."""


class Pipe:
    """A client's end of a connection: what it sends arrives later, cut anywhere.

    It reads as long as `reading` is true, and then takes all that has arrived. What the node
    writes and the client does not read fills a buffer of `capacity` bytes, as a socket would.
    """

    def __init__(self, broker: Broker, key: int, capacity: int) -> None:
        self._broker = broker
        self._world = broker.world
        self.key = key
        self.capacity = capacity
        self.received = bytearray()
        self.messages = 0  # that the node has written
        self.closed = ""  # the reason, once it is
        self.on_data: Callable[[bytes], None] | None = None
        self.on_close: Callable[[str], None] | None = None
        self._reading = True
        self._in_flight = bytearray()  # written by the node, not read by the client
        self._unsent = bytearray()  # not even taken by the pipe
        self._outgoing = bytearray()
        self._arriving = False
        self._held = False
        self._closing = ""

    # ---------------------------------------------------------------- client's side

    def send(self, data: bytes) -> None:
        """Send bytes to the node."""
        if not self.closed:
            self._outgoing += data
            self._schedule_arrival()

    def close(self) -> None:
        """Hang up."""
        self._end("closed by the client")

    @property
    def reading(self) -> bool:
        """Whether the client takes what arrives."""
        return self._reading

    @reading.setter
    def reading(self, reading: bool) -> None:
        self._reading = reading
        if reading:
            self._world.after(0, self._drain)

    # ---------------------------------------------------------------- node's side

    def write(self, data: bytes, report: bool) -> list[Event]:
        """Take what the node writes, as far as there is room; what the driver has to say of it."""
        if self.closed or self._closing:
            return []
        self.messages += count_messages(data)[0]
        self._unsent += data
        self._move()
        self._world.after(DELAY_NS, self._drain)
        if self._unsent or report:
            return [Unsent(self.key, len(self._unsent))]
        return []

    def hold(self, held: bool) -> None:
        """The node wants no bytes, or wants them again."""
        self._held = held
        self._schedule_arrival()

    def finish(self, reason: str, flush: bool) -> list[Event]:
        """The node ends the connection."""
        if flush and self._unsent and not self.closed:
            self._closing = reason
            self._world.after(2_000_000_000, lambda: self._end(reason))
        else:
            self._world.after(DELAY_NS, lambda: self._end(reason))
        return []

    def resume(self) -> None:
        """The node is awake again, and takes what has arrived."""
        self._schedule_arrival()

    def _move(self) -> None:
        room = self.capacity - len(self._in_flight)
        if room > 0 and self._unsent:
            self._in_flight += self._unsent[:room]
            del self._unsent[:room]

    def _drain(self) -> None:
        """The client reads what is in flight; that makes room."""
        if not self._reading or self.closed or not self._in_flight:
            return
        data = bytes(self._in_flight)
        self._in_flight.clear()
        self._world.trace("read", self.key, data)
        if self.on_data is None:
            self.received += data
        else:
            self.on_data(data)
        if not self._unsent:
            return
        self._move()
        self._world.after(DELAY_NS, self._drain)
        self._broker.step([Unsent(self.key, len(self._unsent))])
        if self._closing and not self._unsent:
            self._world.after(DELAY_NS, lambda: self._end(self._closing))

    def _schedule_arrival(self) -> None:
        if self._outgoing and not self._arriving and not self._held and not self.closed:
            self._arriving = True
            self._world.after(DELAY_NS, self._arrive)

    def _arrive(self) -> None:
        """A piece of what the client sent reaches the node."""
        self._arriving = False
        if self._held or self.closed or self._broker.paused:
            return
        size = self._world.cut(len(self._outgoing))
        data = bytes(self._outgoing[:size])
        del self._outgoing[:size]
        self._broker.step([Received(self.key, memoryview(data))])
        self._schedule_arrival()

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self._drain()
        self.closed = reason
        self._broker.gone(self.key, reason)
        if self.on_close is not None:
            self.on_close(reason)


class Broker:
    """One node of a world, and the room that performs its effects.

    One with a disk has a journal there. When it has ended, `disk` is what it left: a new broker on
    it goes on. A disk that halts by itself, as a test may plan, ends its broker by `on_halt`.

    One that is paused (SIGSTOP) does nothing, and its machine takes connections and bytes for it,
    as far as sockets have room. What happens meanwhile it learns when it goes on.
    """

    def __init__(self, world: World, node: Node, disk: Disk | None = None) -> None:
        self.world = world
        self.node = node
        self.disk = disk
        self.address = ""  # in a network, where others reach it
        self.wires: Wires | None = None
        self.findings: list[str] = []  # of the recovery
        self.notes: list[Note] = []
        self.accepting = True
        self.stopped = False
        self.paused = False
        self.missed: list[Event] = []  # while it was paused
        self.on_write: Callable[[int, bytes], None] | None = None  # connection and bytes
        self.on_disk: Callable[[Event], None] | None = None  # what the disk reports
        self.on_halt: Callable[[], None] = self.kill
        self.on_step: Callable[[Sequence[Event], Sequence[Effect]], None] | None = None
        self.lines: dict[int, Line] = {}
        self._last_key = 0
        self._wake_ns = -1
        self._ticks = (0, 0)  # the millisecond, and how many in it

    def connect(self, capacity: int = 65_536) -> Pipe:
        """Open a connection to it."""
        pipe = Pipe(self, self.new_key(), capacity)
        if not self.accepting:
            pipe.closed = "refused"
            return pipe
        self.lines[pipe.key] = pipe
        self.step([Opened(pipe.key, f"simulated-{pipe.key}")])
        return pipe

    def new_key(self) -> int:
        """A number for a connection, never used before."""
        self._last_key += 1
        return self._last_key

    def stop(self, reason: str = "asked to") -> None:
        """Ask it to end, as SIGTERM does."""
        self.step([Stop(reason)])

    def kill(self) -> None:
        """End it at once: nobody is told, connections break. All that was written stays."""
        self._end()
        if self.disk is not None:
            self.disk = self.disk.crash()

    def power_off(self) -> None:
        """The same, and the machine with it: of what was not synced anything may be lost."""
        self._end()
        if self.disk is not None:
            self.disk = self.disk.power_off()

    def go_dark(self) -> None:
        """Its machine loses power: nobody is told and nothing breaks, it is silent for good."""
        self.accepting = False
        self.stopped = True
        self.lines.clear()
        if self.disk is not None:
            self.disk = self.disk.power_off()

    def _end(self) -> None:
        self.accepting = False
        self.stopped = True
        for line in list(self.lines.values()):
            line.finish("broken", flush=False)

    def pause(self) -> None:
        """Stop it for a while, as SIGSTOP does."""
        self.paused = True

    def resume(self) -> None:
        """Let it go on: it finds that time has passed, and what has come."""
        if not self.paused:
            return
        self.paused = False
        missed, self.missed = self.missed, []
        late = 0 <= self._wake_ns <= self.world.ns
        if late:
            self._wake_ns = -1
        first = self.world.random.random() < 0.5  # which of them it looks at first
        self.step([Tick()] if late and first else [])
        for event in missed:
            self.step([event])
        self.step([Tick()] if late and not first else [])
        for line in list(self.lines.values()):
            line.resume()

    def begin(self) -> None:
        """Do what the node wants done before anything has happened."""
        self.step(self._perform([]))

    def step(self, events: list[Event]) -> None:
        """Step the node and perform what it wants, until nothing more comes of it at once."""
        if self.stopped:
            return
        if self.paused:
            self.missed += events
            return
        while events and not self.stopped:
            events = self._perform(events)
        if self.stopped and self.disk is not None and not self.disk.halted:
            self.disk = self.disk.crash()  # it ended by itself; nobody waits for what is under way

    def _perform(self, events: list[Event]) -> list[Event]:
        answers: list[Event] = []
        effects = self.node.step(events, self.world.now())
        for effect in effects:
            more = PERFORM[type(effect)](self, effect)
            if more:
                answers += more
        if self.on_step is not None:
            self.on_step(events, effects)
        return answers

    def gone(self, key: int, reason: str) -> None:
        """A connection has ended."""
        if self.lines.pop(key, None) is not None:
            self.step([Closed(key, reason)])

    def _write(self, effect: Write) -> list[Event]:
        line = self.lines.get(effect.connection)
        if line is None:
            return []
        data = b"".join(effect.pieces)
        if self.on_write is not None:
            self.on_write(effect.connection, data)
        return line.write(data, effect.report)

    def _journal(self, request: Request) -> None:
        assert self.disk is not None, "a node without a journal wants something done"
        self.disk.submit(request, self._after_disk, self._disk_reports)

    def _after_disk(self, delay_ns: int, action: Callable[[], None]) -> None:
        disk = self.disk

        def act() -> None:
            action()
            if disk is not None and disk.halted and not self.stopped:
                self.on_halt()

        self.world.after(delay_ns, act)

    def _disk_reports(self, event: Event) -> None:
        if not self.stopped:
            if self.on_disk is not None:
                self.on_disk(event)
            self.step([event])

    def _close(self, effect: Close) -> list[Event]:
        line = self.lines.get(effect.connection)
        return [] if line is None else line.finish(effect.reason, effect.flush)

    def _hold(self, effect: Hold) -> None:
        line = self.lines.get(effect.connection)
        if line is not None:
            line.hold(effect.held)

    def _connect(self, effect: Connect) -> None:
        assert self.wires is not None, "a node that is in no network wants a connection"
        self.wires.connect(self, effect)

    def _cast(self, effect: SendDatagram) -> None:
        assert self.wires is not None, "a node that is in no network sends a datagram"
        self.wires.cast(self, effect)

    def _wake_at(self, effect: WakeAt) -> None:
        self._wake_ns = effect.ns
        self.world.after(effect.ns - self.world.ns, lambda: self._tick(effect.ns))

    def _tick(self, ns: int) -> None:
        if ns == self._wake_ns and not self.paused:  # it was not replaced meanwhile
            self._wake_ns = -1
            ms = ns // 1_000_000
            self._ticks = (ms, self._ticks[1] + 1 if self._ticks[0] == ms else 0)
            if self._ticks[1] > TICKS_MAX:
                raise RuntimeError(f"{self.address} wakes up all the time, and does not wait")
            self.step([Tick()])

    def _note(self, effect: Note) -> None:
        self.notes.append(effect)

    def _refuse(self, effect: Refuse) -> None:
        self.accepting = False

    def _stopped(self, effect: Stopped) -> None:
        self._end()  # the process is over, and the system closes what it left open


PERFORM: dict[type[Effect], Callable[[Broker, Any], list[Event] | None]] = {
    Write: Broker._write,
    Close: Broker._close,
    Hold: Broker._hold,
    WakeAt: Broker._wake_at,
    Connect: Broker._connect,
    SendDatagram: Broker._cast,
    Note: Broker._note,
    Refuse: Broker._refuse,
    Stopped: Broker._stopped,
    Persist: Broker._journal,
    PrepareSegment: Broker._journal,
    RemoveSegment: Broker._journal,
    ReadJournal: Broker._journal,
    PunchHole: Broker._journal,
}


class World:
    """Virtual time, and whatever happens in it."""

    def __init__(self, seed: int = 0, cutting: bool = True) -> None:
        self.random = Random(seed)
        self.ns = 0
        self._cutting = cutting  # bytes arrive cut at random places, not as they were sent
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._hash = hashlib.sha256()

    def now(self) -> Now:
        """Both clocks."""
        return Now(self.ns, START_US + self.ns // 1000)

    def broker(
        self,
        name: str = "node",
        limits: Limits | None = None,
        heartbeat_ms: int = 10_000,
        disk: Disk | None = None,
        streams: Sequence[Retained] = (),
        retention: Mapping[str, Retention] | None = None,
        confirm_early: bool = False,
        identity: Identity | None = None,
        random: Random | None = None,
        when_away: str = "refuse",
    ) -> Broker:
        """A new node; with a disk it recovers what that holds, as a node of the real world does.

        DiskError if it must not go on with that. `streams` are the topics that it retains, all of
        them unless `retention` says less. `confirm_early` is a bug. One that is started again has
        the identity it had, with a higher incarnation.
        """
        limits = limits or Limits()
        identity = identity or Identity(self.random.randbytes(16), name, 1)
        node = Node(identity, limits, heartbeat_ms, random or self.random)
        broker = Broker(self, node, disk)
        if disk is not None:
            kept = retention or {}
            found = [SegmentView(*segment) for segment in disk.open_segments()]
            now = self.now()
            new_id = self.random.randbytes(16).hex()
            recovered = recover(found, limits.segment_bytes, new_id, now.wall_us)
            for first in recovered.leftovers:
                disk.perform(RemoveSegment(first))
            broker.findings = recovered.findings
            journal = Journal(recovered, limits, now.wall_us, lambda name: kept.get(name, KEEP))
            node.keep(journal, streams, now, confirm_early, when_away)
            broker.begin()
        return broker

    def disk(self, capacity: int | None = None) -> Disk:
        """A new, empty disk."""
        return Disk(Random(self.random.getrandbits(64)), capacity)

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do it then."""
        self._count += 1
        heapq.heappush(self._queue, (self.ns + max(0, delay_ns), self._count, action))

    def advance(self, ms: float) -> None:
        """Let time pass, and all that happens in it."""
        self.advance_to(self.ns + int(ms * 1_000_000))

    def advance_to(self, end_ns: int) -> None:
        """The same, to a moment that is not in the past."""
        while self._queue and self._queue[0][0] <= end_ns:
            self.ns, _, action = heapq.heappop(self._queue)
            action()
        self.ns = end_ns

    @property
    def next_ns(self) -> int | None:
        """When the next thing happens, if anything does."""
        return self._queue[0][0] if self._queue else None

    def cut(self, size: int) -> int:
        """How much of `size` bytes arrives at once."""
        if not self._cutting or size <= 1:
            return size
        if self.random.random() < 0.3:
            return self.random.randint(1, min(size, 40))
        return self.random.randint(1, size)

    def trace(self, what: str, key: int, data: bytes) -> None:
        """Add to the story."""
        head = f"{self.ns} {what} {key} {len(data)} ".encode()
        self._hash.update(head + data)

    @property
    def trace_hash(self) -> str:
        """The story so far, in one word."""
        return self._hash.hexdigest()
