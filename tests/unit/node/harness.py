"""A node without a world: clients whose sockets are byte strings, and a clock that is told.

`World` performs effects as a driver would. A client that does not read has room for `room` bytes;
what goes beyond that is unsent until it reads. A `KeepingWorld` has a journal, on a disk that says
that something is persisted when it is told to.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from regraft.journal.journal import Journal
from regraft.journal.recovery import SegmentView, recover
from regraft.journal.requests import Persist, PrepareSegment, PunchHole, ReadJournal, RemoveSegment
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import Message
from regraft.node.effect import Close, Effect, Hold, Note, Refuse, Stopped, WakeAt, Write
from regraft.node.event import (
    Closed,
    DiskFailed,
    Event,
    Now,
    Opened,
    Received,
    Stop,
    Tick,
    Unsent,
)
from regraft.node.node import Node, allow
from regraft.node.router import Authorize
from regraft.node.storage import Retained
from regraft.simulate.disk import Disk
from regraft.wire import native

HEARTBEAT_MS = 10_000
WALL_US = 1_700_000_000_000_000


class Delivered(NamedTuple):
    """A message as a client got it."""

    subscriptions: tuple[int, ...]
    frame: bytes
    sequence: int = 0
    attempts: int = 0

    @property
    def text(self) -> str:
        """Its body."""
        body: bytes = native.decode(7, self.frame[12:]).body
        return body.decode()


class Client:
    """One connection, seen from its far end."""

    def __init__(self, world: World, key: int) -> None:
        self.world = world
        self.key = key
        self.room = 1 << 62  # what its socket takes while it does not read
        self.unsent = bytearray()
        self.arrived = bytearray()
        self.parsed = 0
        self.held = False
        self.closed = ""
        self.news: list[Any] = []
        self.delivered: list[Delivered] = []

    def send(self, *parts: bytes | native.Control | Message) -> None:
        """Send bytes or messages, all in one read of the node."""
        self.world.step(Received(self.key, memoryview(self.encoded(*parts))))

    @staticmethod
    def encoded(*parts: bytes | native.Control | Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else native.encode(part) for part in parts)

    def read(self, size: int = 1 << 62) -> None:
        """Read up to `size` bytes of what is unsent."""
        self.arrived += self.unsent[:size]
        del self.unsent[:size]
        if not self.closed:
            self.world.step(Unsent(self.key, len(self.unsent)))

    def stop_reading(self, room: int = 0) -> None:
        self.room = room

    def clog(self) -> None:
        """Stop reading while a reply is under way, so that the node knows of it."""
        self.stop_reading()
        self.send(native.Heartbeat(1))
        assert self.unsent

    def start_reading(self) -> None:
        self.room = 1 << 62
        while self.unsent:
            self.read()

    def leave(self) -> None:
        """The connection breaks."""
        self.closed = self.closed or "left"
        self.world.step(Closed(self.key, "left"))

    def take(self) -> list[Any]:
        """What came since the last call: control messages and deliveries, in order."""
        self._parse()
        news, self.news = self.news, []
        return news

    def bodies(self) -> list[bytes]:
        """The bodies of all messages so far."""
        self._parse()
        return [native.decode(7, delivered.frame[12:]).body for delivered in self.delivered]

    def _parse(self) -> None:
        """Whole frames only; a transfer header without all its messages waits for them."""
        data = bytes(self.arrived)
        at = self.parsed
        while frame := native.read_frame(data, at, 1 << 30):
            kind, flags, payload, end = frame
            assert flags == 0
            assert kind != native.Kind.MESSAGE, "a message without a transfer header"
            message = native.decode(kind, payload)
            if isinstance(message, native.Transfer):
                found = self._run(data, end, message)
                if found is None:
                    break
                run, end = found
                self.news += run
                self.delivered += run
            else:
                self.news.append(message)
            self.parsed = at = end

    @staticmethod
    def _run(data: bytes, at: int, transfer: native.Transfer) -> tuple[list[Delivered], int] | None:
        assert transfer.count > 0
        run = []
        sequence = transfer.first_sequence
        for number in range(transfer.count):
            frame = native.read_frame(data, at, 1 << 30)
            if frame is None:
                return None
            assert frame[0] == native.Kind.MESSAGE, "something stands within a run"
            place = sequence + number if sequence else 0
            whom = transfer.subscriptions
            run.append(Delivered(whom, data[at : frame[3]], place, transfer.delivery_count))
            at = frame[3]
        return run, at


class World:
    """One node and its clients."""

    def __init__(self, authorize: Authorize = allow, **limits: int) -> None:
        self.limits = Limits(**limits)
        identity = Identity(bytes(range(16)), "test", 1)
        self.node = Node(identity, self.limits, HEARTBEAT_MS, Random(7), authorize)
        self.ns = 1_000_000_000
        self.clients: dict[int, Client] = {}
        self.wake_ns: int | None = None
        self.notes: list[Note] = []
        self.refusing = False
        self.stopped = 0

    @property
    def now(self) -> Now:
        return Now(self.ns, WALL_US + self.ns // 1000)

    def step(self, *events: Event) -> None:
        """Step the node, and again with what its effects lead to and what it does at once."""
        self.step_once(*events)
        while self.wake_ns is not None and self.wake_ns <= self.ns:
            self.wake_ns = None
            self.step_once(Tick())

    def step_once(self, *events: Event) -> None:
        """The same without what it goes on with by itself."""
        following: Sequence[Event] = events
        while following:
            answers: list[Event] = []
            for effect in self.node.step(following, self.now):
                self.perform(effect, answers)
            following = answers

    def perform(self, effect: Effect, answers: list[Event]) -> None:
        match effect:
            case Write():
                self.write(effect, answers)
            case Close(key, reason):
                client = self.clients[key]
                if not client.closed:
                    client.closed = reason
                    client.arrived += client.unsent  # its last words are flushed
                    client.unsent.clear()
                    answers.append(Closed(key, reason))
            case Hold(key, held):
                assert self.clients[key].held != held, "a hold that changes nothing"
                self.clients[key].held = held
            case WakeAt(ns):
                self.wake_ns = ns
            case Note():
                self.notes.append(effect)
            case Refuse():
                self.refusing = True
            case Stopped():
                self.stopped += 1

    def write(self, effect: Write, answers: list[Event]) -> None:
        client = self.clients[effect.connection]
        assert not client.closed, "a write after the end"
        data = b"".join(effect.pieces)
        assert data, "an empty write"
        if client.unsent:
            sent = 0
        else:
            sent = min(len(data), client.room)
            client.room -= sent if client.room < 1 << 61 else 0
        client.arrived += data[:sent]
        client.unsent += data[sent:]
        if client.unsent or effect.report:
            answers.append(Unsent(client.key, len(client.unsent)))

    def open(self) -> Client:
        """A connection that has not said anything."""
        key = len(self.clients)
        client = self.clients[key] = Client(self, key)
        self.step(Opened(key, f"peer-{key}"))
        return client

    def connect(self, name: str = "", **hello: Any) -> Client:
        """A client behind its handshake."""
        client = self.open()
        client.send(native.PREFACE, native.Hello(1, 1, client_id=name, **hello))
        (welcome,) = client.take()
        assert isinstance(welcome, native.Welcome)
        return client

    def subscriber(self, *patterns: str, **hello: Any) -> Client:
        """A client with subscriptions 1, 2, 3 and so on."""
        client = self.connect(**hello)
        client.send(*(native.Subscribe(k, form) for k, form in enumerate(patterns, 1)))
        assert client.take() == [native.Subscribed(k + 1) for k in range(len(patterns))]
        return client

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick whenever the node asked for one."""
        target = self.ns + ms * 1_000_000
        while self.wake_ns is not None and self.wake_ns <= target:
            self.ns = max(self.ns, self.wake_ns)
            self.wake_ns = None
            self.step(Tick())
        self.ns = target

    def stop(self) -> None:
        self.step(Stop("the test is over"))

    @property
    def counters(self) -> dict[str, Any]:
        return self.node.snapshot()

    def check_sums(self) -> None:
        """Every delivery was written, waits, or is counted with a reason."""
        counters = self.counters
        written = 0
        waiting = 0
        for client in self.clients.values():
            whole = Client(self, -1)
            whole.arrived = client.arrived + client.unsent
            written += len(whole.bodies())
        for connection in self.node._connections.values():
            if connection.session is not None:
                waiting += connection.session.delivery.backlog.messages
        dropped = sum(counters["dropped"].values())
        assert counters["deliveries"] == written + waiting + dropped

    def check_empty(self) -> None:
        """All clients are gone, and the node kept nothing of them."""
        counters = self.counters
        for name in ("connections", "sessions", "subscriptions", "queued_bytes"):
            assert counters[name] == 0, name
        node = self.node
        assert not node._outflow._waiters
        assert not node._outflow._stalled
        assert node._outflow.publishers == 0
        assert not node._router._outlets
        assert not node._router._principals
        assert not node._router._held
        assert node._router.index.count == 0


class KeepingWorld(World):
    """One whose node has a journal. What the disk is asked to persist waits for `persist`."""

    def __init__(
        self,
        streams: Sequence[Retained] = (),
        disk: Disk | None = None,
        ns: int = 1_000_000_000,
        in_doubt_s: int = 0,
        **limits: int,
    ) -> None:
        small = {"segment_bytes": 65_536, "frame_bytes": 16_384, "control_frame_bytes": 16_384}
        super().__init__(**(small | limits))
        self.ns = ns
        self.disk = disk or Disk(Random(1))
        self.streams = streams
        self.asked: Persist | None = None
        found = [SegmentView(*segment) for segment in self.disk.open_segments()]
        wall_us = self.now.wall_us
        recovered = recover(found, self.limits.segment_bytes, "00" * 16, wall_us)
        self.journal = Journal(recovered, self.limits, wall_us)
        self.in_doubt_s = in_doubt_s
        self.node.keep(self.journal, streams, self.now, in_doubt_s=in_doubt_s)
        answers: list[Event] = []
        for effect in self.node.step([], self.now):
            self.perform(effect, answers)
        self.step(*answers)
        self.persist()

    def perform(self, effect: Effect, answers: list[Event]) -> None:
        match effect:
            case Persist():
                assert self.asked is None, "a second batch before the first is done"
                self.asked = effect
            case PrepareSegment() | RemoveSegment() | ReadJournal() | PunchHole():
                answers += self.disk.perform(effect)
            case _:
                super().perform(effect, answers)

    def persist(self, batches: int = 100) -> None:
        """Persist what is asked for, and what is asked for then."""
        while self.asked is not None and batches:
            asked, self.asked = self.asked, None
            batches -= 1
            self.step(*self.disk.perform(asked))

    def fail(self, number: int = errno.EIO, what: str = "sync") -> None:
        """What is asked for fails."""
        assert self.asked is not None
        self.asked = None
        self.step(DiskFailed(what, number, f"cannot {what} it: {errno.errorcode[number]}"))

    def again(self, power: bool = False, **limits: int) -> KeepingWorld:
        """Another node on what is left when this one has died."""
        left = self.disk.power_off() if power else self.disk.crash()
        return KeepingWorld(self.streams, left, self.ns + 1_000_000, self.in_doubt_s, **limits)

    def check_empty(self) -> None:
        """Nothing of them waits for the disk, or reads it."""
        storage = self.node._storage
        assert storage is not None
        assert not storage._publishers
        assert not storage._waiting
        assert not storage.keeper.waiting
        mailroom = storage.mailroom
        assert not (mailroom.cursors.held or mailroom.boxes.members or storage.readings.reading)
        assert not any(box.members for box in mailroom.boxes.boxes.values())

    def reader(self, name: str, pattern: str = "#", **more: Any) -> Client:
        """A client that reads a mailbox, as its subscription 1."""
        hello = {key: more.pop(key) for key in list(more) if key in native.Hello.__slots__}
        client = self.connect(hello.pop("client_id", ""), **hello)
        client.send(native.Subscribe(1, pattern, durable=name, **more))
        self.persist()
        return client


def publication(body: bytes | str | int, topic: str = "t", **more: Any) -> Message:
    """A message to publish."""
    content = body if isinstance(body, bytes) else str(body).encode()
    return Message(topic, content, **more)
