"""A few nodes with disks that can be killed and started again, and clients at them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from regraft.kernels.inbox import Inbox
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import DeliveryMode, Message
from regraft.node.effect import Note
from regraft.node.network import Joining
from regraft.node.storage import Retained
from regraft.overlay.options import Options
from regraft.simulate.disk import Disk
from regraft.simulate.guest import Guest
from regraft.simulate.network import Network
from regraft.simulate.world import Broker, World
from regraft.wire import native, peers

LIMITS = Limits(
    segment_bytes=65_536, frame_bytes=8192, control_frame_bytes=8192, selector_bytes=1024
)


class Reader:
    """A client that reads mailboxes, and settles what it has if it is told to."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.pipe = broker.connect(1 << 20)
        self.pipe.on_data = self._received
        self._inbox = Inbox(1 << 26, native.read_transfer)
        self.got: list[Any] = []
        self.controls: list[Any] = []
        self._sequences: dict[int, list[int]] = {}
        hello = native.Hello(version_min=1, version_max=1, client_id=name, passive=True)
        self.pipe.send(native.PREFACE + native.encode(hello))

    def read(self, id: int, mailbox: str, pattern: str, selector: str = "", **how: Any) -> None:
        self.pipe.send(
            native.encode(native.Subscribe(id, pattern, selector, durable=mailbox, **how))
        )

    def remove(self, id: int) -> None:
        self.pipe.send(native.encode(native.Unsubscribe(id, True)))

    def settle(self, id: int, outcome: native.Outcome = native.Outcome.ACCEPT) -> None:
        """Be done with all that came."""
        sequences = self._sequences.pop(id, [])
        ranges = tuple(number for one in sequences for number in (one, one))
        if ranges:
            self.pipe.send(native.encode(native.Settle(id, ranges, 1, outcome=outcome)))

    def command(self, what: str, **arguments: Any) -> None:
        import json

        self.pipe.send(native.encode(peers.Command(1, what, json.dumps(arguments).encode())))

    def _received(self, data: bytes) -> None:
        for key, content, _ in self._inbox.feed(data):
            if isinstance(key, tuple):
                for message in content:
                    self.got.append(message)
                    for id in message.subscriptions:
                        self._sequences.setdefault(id, []).append(message.sequence)
            else:
                self.controls.append(native.decode(key, content))

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in self.got]


class Few:
    """Nodes 0, 1, 2 ... that all join by the first."""

    def __init__(
        self,
        count: int,
        limits: Limits = LIMITS,
        retained: Sequence[int] = (),
        diskless: Sequence[int] = (),
        when_away: str = "refuse",
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self.world = World(1)
        self.network = Network(self.world, 1)
        self.limits, self.when_away, self.bugs = limits, when_away, bugs
        self.retained = retained
        self.disks: list[Disk | None] = [
            None if number in diskless else Disk(Random(f"disk {number}"))
            for number in range(count)
        ]
        self.lives = [0] * count
        self.notes: list[str] = []
        self.nodes: list[Broker] = []
        for number in range(count):
            self.nodes.append(self._make(number))
        self.world.advance(3000)

    def _make(self, number: int) -> Broker:
        self.lives[number] += 1
        name = f"node-{number}"
        identity = Identity(bytes([number + 1]) * 16, name, self.lives[number])
        streams = [Retained("all", "#")] if number in self.retained else []
        broker = self.world.broker(
            name,
            self.limits,
            10_000,
            self.disks[number],
            streams,
            identity=identity,
            when_away=self.when_away,
        )
        self.network.add(broker, f"{name}:7447")
        seeds = tuple(f"node-{other}:7447" for other in range(len(self.disks)) if other != number)
        options = Options(seeds=seeds, search_ms=1000, hold_down_ms=300, hold_down_ms_max=1000)
        joining = Joining(f"{name}:7447", options, bugs=self.bugs)
        broker.node.join(joining, self.world.now())
        broker.begin()
        broker.on_step = lambda events, effects: self.notes.extend(
            f"{name}: {one.text}" for one in effects if isinstance(one, Note)
        )
        return broker

    def kill(self, number: int, power: bool = False) -> None:
        if power:
            self.network.power_off(self.nodes[number])
        else:
            self.nodes[number].kill()
        self.disks[number] = self.nodes[number].disk

    def start(self, number: int, ms: float = 3000) -> None:
        self.nodes[number] = self._make(number)
        self.world.advance(ms)

    def reader(self, number: int, name: str = "reader") -> Reader:
        found = Reader(name, self.nodes[number])
        self.world.advance(50)
        return found

    def guest(self, number: int, name: str = "ann") -> Guest:
        found = Guest(name, self.nodes[number])
        self.world.advance(50)
        return found

    def custody(self, number: int) -> dict[str, Any]:
        return self.nodes[number].node.report("custody", 100)

    def row(self, number: int, other: int) -> dict[str, Any]:
        rows = self.custody(number)["rows"]
        return next(row for row in rows if row["node"] == f"node-{other}")

    def waiting(self, number: int, mailbox: str) -> int:
        rows = self.nodes[number].node.report("journal", 100)["rows"]
        return int(next(row["waiting"] for row in rows if row["name"] == mailbox))


def letter(topic: str, body: bytes, **more: Any) -> Message:
    return Message(topic, body, delivery_mode=DeliveryMode.PERSISTENT, **more)
