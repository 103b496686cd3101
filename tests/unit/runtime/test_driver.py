"""The driver: what a mistake in the node leads to, who waits for the disk, and what can wait."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Sequence
from typing import cast

import pytest

from regraft.journal.requests import Persist, Piece
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.node.effect import Effect, WakeAt, Write
from regraft.node.event import Event, Now, Persisted, Received, Tick
from regraft.node.node import Node
from regraft.runtime.clock import JUMP_US, Clock
from regraft.runtime.disk import Disk
from regraft.runtime.driver import CALM_TURNS, LATE_TURNS, QUIET_BYTES, Driver, Peer


def test_a_node_that_makes_a_mistake_is_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(Identity(bytes(16), "n", 1), Limits(), 10_000, random.Random(1))

    async def main() -> bool:
        driver = Driver(node, Clock(), asyncio.get_running_loop())
        host, port = driver.listen("127.0.0.1", 0)
        monkeypatch.setattr(node, "_take_in", lambda *_: 1 / 0)
        with socket.create_connection((host, port)) as client:
            client.sendall(b"REGRAFT\n")
            async with asyncio.timeout(5):
                await driver.stopped.wait()
        driver.shut()
        return driver.failed

    with caplog.at_level(logging.CRITICAL):
        assert asyncio.run(main())
    assert "made a mistake" in caplog.text and "ZeroDivisionError" in caplog.text


class Recording:
    """A node that has everything persisted which it reads, and the disk for it."""

    def __init__(self) -> None:
        self.waited: list[bool] = []  # by the node itself, or it went on meanwhile

    def step(self, events: Sequence[Event], now: Now) -> list[Effect]:
        piece = Piece(0, 0, b"x")
        return [Persist((piece,), 100) for event in events if isinstance(event, Received)]

    def persist_now(self, request: Persist) -> Persisted:
        self.waited.append(True)
        return Persisted()

    def perform(self, request: Persist) -> None:
        self.waited.append(False)


@pytest.mark.parametrize(("clients", "waits"), [(1, True), (2, True), (3, False), (20, False)])
def test_a_node_waits_for_the_disk_itself_only_if_nobody_else_has_to(
    clients: int, waits: bool
) -> None:
    async def main() -> list[bool]:
        node = Recording()
        driver = Driver(cast(Node, node), Clock(), asyncio.get_running_loop())
        driver.disk = cast(Disk, node)
        pairs = [socket.socketpair() for _ in range(clients)]
        peers = [Peer(key, here) for key, (here, _) in enumerate(pairs)]
        for turn in range(60):
            pairs[turn % clients][1].sendall(b"x")
            driver._readable(peers[turn % clients])
        for here, there in pairs:
            here.close(), there.close()
        return node.waited

    waited = asyncio.run(main())
    assert len(waited) == 60
    assert set(waited[20:]) == {waits}


def test_what_the_kernel_does_not_take_is_copied_if_it_may_change() -> None:
    fixed, passing = bytes(range(256)) * 4096, bytearray(b"y" * 1_000_000)
    pieces = [b"head", memoryview(passing)[:500_000], memoryview(fixed)[9:], memoryview(passing)]
    sent = b"".join(pieces)

    async def main() -> tuple[bytes, list[object]]:
        here, there = socket.socketpair()
        here.setblocking(False)
        driver = Driver(cast(Node, Recording()), Clock(), asyncio.get_running_loop())
        driver._peers[1] = peer = Peer(1, here)
        driver._write(Write(1, pieces), [])
        assert 0 < peer.unsent_size < len(sent)
        left = peer.unsent_size
        driver._write(Write(1, [b"tail"]), [])
        passing[:] = bytes(len(passing))
        assert peer.unsent_size == left + len(b"tail") == sum(map(len, peer.unsent))
        kept = [memoryview(piece).obj for piece in peer.unsent]
        got = b""
        while len(got) < len(sent) + len(b"tail"):
            got += await asyncio.to_thread(there.recv, 1 << 20)
        driver.shut()
        there.close()
        return got, kept

    got, kept = asyncio.run(main())
    assert got == sent + b"tail"
    assert any(obj is fixed for obj in kept)


@pytest.mark.parametrize(
    ("ns", "delay_s"),
    [(-5, 0.0), (0, 0.0), (1, 0.001), (400_000, 0.001), (1_000_000, 0.001), (1_000_001, 0.002)],
)
def test_a_node_is_not_woken_too_early(ns: int, delay_s: float) -> None:
    delays: list[float] = []

    class Loop:
        call_soon = None  # wanted by what looks for more, which does not here

        def call_later(self, delay_s: float, *_: object) -> None:
            delays.append(delay_s)

    driver = Driver(
        cast(Node, Recording()),
        Clock(lambda: 7_000_000_123, lambda: 0),
        cast(asyncio.AbstractEventLoop, Loop()),
    )
    driver._wake_at(WakeAt(7_000_000_123 + ns), [])
    assert delays == [delay_s]


class Unfinished(Recording):
    """A node that wants to go on at once when something is persisted, and counts when it may."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.ticks = 0

    def step(self, events: Sequence[Event], now: Now) -> list[Effect]:
        self.ticks += sum(isinstance(event, Tick) for event in events)
        piece = Piece(0, 0, bytes(self.size))
        wanted: dict[type[Event], Effect] = {
            Received: Persist((piece,), 2 * self.size),
            Persisted: WakeAt(now.ns),
        }
        return [wanted[type(event)] for event in events if type(event) in wanted]


def turns_until_it_goes_on(reads: int, size: int = 1) -> int:
    """How many turns of the loop that takes, while in some of them something more is read."""

    async def main() -> int:
        node = Unfinished(size)
        driver = Driver(cast(Node, node), Clock(), asyncio.get_running_loop())
        driver.disk = cast(Disk, node)
        driver._reads_then = 0  # it has persisted something before
        here, there = socket.socketpair()
        peer = Peer(1, here)
        for turn in range(LAST_TURN):
            if turn <= reads:
                there.sendall(b"x")
                driver._readable(peer)
                if not node.waited[-1]:
                    driver.report([Persisted()])
            await asyncio.sleep(0)
            if node.ticks:
                break
        here.close(), there.close()
        return turn

    return asyncio.run(main())


LAST_TURN = 100


def test_who_was_just_answered_may_publish_again_before_the_rest_is_done() -> None:
    for reads in range(3):
        assert turns_until_it_goes_on(reads) == reads + CALM_TURNS


def test_the_rest_is_done_however_much_is_published() -> None:
    assert turns_until_it_goes_on(LAST_TURN) <= LATE_TURNS


def test_nothing_waits_where_nobody_was_answered_at_once() -> None:
    assert turns_until_it_goes_on(0, QUIET_BYTES + 1) <= 1


def test_the_clock_follows_drift_at_once_and_jumps_slowly() -> None:
    at = {"ns": 0, "wall_ns": 1_000_000_000_000}
    clock = Clock(lambda: at["ns"], lambda: at["wall_ns"])

    def later(seconds: float, wall_seconds: float) -> int:
        """Let both clocks run; how far the told time moved, in µs."""
        before = clock.now().wall_us
        at["ns"] += int(seconds * 1e9)
        at["wall_ns"] += int(wall_seconds * 1e9)
        return clock.now().wall_us - before

    assert later(1, 1.0001) == 1_000_100  # drift
    hour = 3600
    moved = later(10, 10 + hour)
    assert 10_000_000 < moved <= 10_500_000  # a jump: by a twentieth of the ten seconds
    assert later(10, 10) <= 10_500_000
    moved = later(10, 10 - hour)  # somebody set it back: the rest is drift again
    assert 9_000_000 <= moved < 10_000_000 + JUMP_US
