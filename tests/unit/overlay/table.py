"""One overlay at a table: the test is everybody else."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from regraft.overlay.actions import Action, Send
from regraft.overlay.lstree import LSTree
from regraft.overlay.messages import Accept, Answer, Ask, Beacon, Candidate, Status
from regraft.overlay.options import MS, Options

A = TypeVar("A", bound=Action)
ME = 50  # so that there are smaller and larger ids


def node(number: int) -> bytes:
    return bytes([number]) * 16


def address(number: int) -> str:
    return f"n{number}:1"


class Table:
    """An overlay, the time, and what it wanted done."""

    def __init__(self, bugs: frozenset[str] = frozenset(), **options: Any) -> None:
        self.now_ns = 1_000_000_000
        self.tree = LSTree(node(ME), 1, address(ME), Options(**options), Random(1), bugs)
        self.tree.start(self.now_ns)
        self.actions: list[Action] = []
        self.key = 0
        self.nodes: dict[int, bytes] = {}
        self.look()

    def look(self) -> None:
        self.actions += self.tree.take()

    def seen(self, kind: type[A]) -> list[A]:
        """The actions of a kind since the last `clear`."""
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, key: int, kind: type[Any]) -> list[Any]:
        """The messages of a kind to one connection since the last `clear`."""
        return [
            send.message
            for send in self.seen(Send)
            if send.key == key and isinstance(send.message, kind)
        ]

    def clear(self) -> None:
        self.actions = []

    def connect(self, number: int, dialled: bool = False, life: int = 1) -> int:
        self.key += 1
        self.nodes[self.key] = node(number)
        self.tree.connected(self.key, node(number), life, address(number), dialled, self.now_ns)
        self.look()
        return self.key

    def close(self, key: int) -> None:
        self.tree.disconnected(key, self.now_ns)
        self.look()

    def get(self, key: int, message: Any) -> None:
        self.tree.receive(key, message, self.now_ns)
        self.look()

    def after(self, ms: float) -> None:
        """Time passes; ticks come when they are wanted."""
        until_ns = self.now_ns + int(ms * MS)
        while (next_ns := self.tree.next_ns) is not None and next_ns <= until_ns:
            self.now_ns = max(next_ns, self.now_ns)
            self.tree.tick(self.now_ns)
            self.look()
        self.now_ns = until_ns

    def ask(self, key: int, number: int, request: int = 1, **fields: Any) -> None:
        """Somebody asks by a connection."""
        ask = Ask(node(number), request, 0, False, b"", address(number))
        self.get(key, ask._replace(**fields))

    def asked(self, key: int) -> Ask:
        """The last request that the overlay sent by a connection."""
        ask: Ask = self.said(key, Ask)[-1]
        return ask

    def refuse(self, key: int, reason: int, *candidates: Any) -> None:
        ask = self.asked(key)
        self.get(key, Answer(ask.asker, ask.number, False, reason, 0, candidates))

    def child(self, number: int) -> int:
        """A child of the overlay."""
        key = self.connect(number)
        self.ask(key, number)
        assert self.said(key, Accept)
        return key

    def child_below(self, number: int) -> int:
        """A child of the overlay, which has a parent that grants it."""
        key = self.connect(number)
        self.ask(key, number)
        up = self.tree.snapshot()["links"][0]["key"]
        self.get(up, Answer(node(number), 1, True, 0, 1, ()))
        assert self.said(key, Accept)
        self.clear()
        return key

    def echo(self, key: int) -> None:
        """The other end answers the last beacon that came as a frame."""
        beacon = self.said(key, Beacon)[-1]
        self.get(key, Beacon(self.nodes[key], 1, 0, beacon.number, 0))

    def attached(self, number: int, *above: int) -> int:
        """The overlay gets a parent, with ancestors above that."""
        self.tree.attach(address(number), self.now_ns)
        self.look()
        key = self.connect(number, dialled=True)
        self.get(key, Accept(self.asked(key).number, node((number, *above)[-1]), len(above)))
        assert self.tree.parent == node(number)
        self.tell(key, number, *above)
        self.clear()
        return key

    def tell(self, key: int, number: int, *above: int, others: tuple[int, ...] = ()) -> None:
        """What a parent says of its place."""
        hops = len(above)
        self.get(
            key,
            Status(
                node((number, *above)[-1]),
                hops,
                1,
                tuple(Candidate(node(n), address(n), hops - 1 - i) for i, n in enumerate(above)),
                tuple(Candidate(node(n), address(n), hops + 1) for n in others),
            ),
        )
