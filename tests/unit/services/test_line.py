"""Lines: how what came at once is dealt with."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from regraft.client.spinning import spin_of
from regraft.errors import LocalError
from regraft.kernels.outbox import Outbox
from regraft.services import Peer
from regraft.services.line import HALVED, HALVED_BYTES, PEER_ID
from regraft.services.trunk import SPIN_US
from regraft.testing import Bus, virtual_time
from regraft.wire import native


def frames(first: int, count: int) -> bytes:
    """Messages for a peer, as its node sends them; the topic says which it is."""
    outbox = Outbox(1 << 20, 1)
    for k in range(first, first + count):
        outbox.put(b"m/%03d" % k, b"x", None, 0, False, b"")
    return native.encode(native.Transfer(count, (PEER_ID,))) + outbox.take()


class Listener(Peer):
    """Notes what it is given, and in which turn of the loop."""

    def __init__(self, bus: Bus) -> None:
        super().__init__("node:1", connector=bus.connector)
        self.turn = 0
        self.heard: list[tuple[int, int]] = []

    def take_request(self, line: Any, message: Any, head: Any, subscriptions: Any) -> None:
        self.heard.append((self.turn, int(message.topic[2:])))

    async def next_turn(self) -> None:
        self.turn += 1
        await asyncio.sleep(0)


@virtual_time
async def test_much_is_dealt_with_in_two_turns_and_in_order() -> None:
    async with Bus() as bus, Listener(bus) as peer:
        line = peer.lines[0]
        link = line._latest
        assert link is not None
        line._received(link, frames(0, HALVED // 2))
        assert len(peer.heard) == HALVED // 2  # little is not
        much = frames(HALVED // 2, 2 * HALVED)
        line._received(link, much[:-40])
        line._received(link, much[-40:])  # cut anywhere
        line._received(link, frames(5 * HALVED // 2, 1))  # little, but it has to wait
        first = len(peer.heard)
        assert HALVED < first < 2 * HALVED
        await peer.next_turn()
        assert [k for _, k in peer.heard] == list(range(5 * HALVED // 2 + 1))
        assert {turn for turn, _ in peer.heard} == {0, 1}


@virtual_time
async def test_what_waits_for_its_turn_is_not_in_the_buffer_that_is_read_into() -> None:
    async with Bus() as bus, Listener(bus) as peer:
        line = peer.lines[0]
        link = line._latest
        assert link is not None
        line._received(link, frames(0, 2))
        buffer = bytearray(frames(2, 2 * HALVED))
        line._received(link, memoryview(buffer))
        buffer[:] = bytes(len(buffer))
        assert 2 < len(peer.heard) < 2 * HALVED
        rest = bytearray(frames(2 * HALVED + 2, 3))
        line._received(link, memoryview(rest))
        rest[:] = bytes(len(rest))
        await peer.next_turn()
        assert [k for _, k in peer.heard] == list(range(2 * HALVED + 5))


@virtual_time
async def test_more_than_answers_are_is_dealt_with_at_once() -> None:
    async with Bus() as bus, Listener(bus) as peer:
        line = peer.lines[0]
        link = line._latest
        assert link is not None
        line._received(link, frames(0, 2))
        much = frames(2, HALVED_BYTES // 20)
        assert len(much) > HALVED_BYTES
        line._received(link, much)
        assert len(peer.heard) == HALVED_BYTES // 20 + 2


@virtual_time
async def test_what_came_before_a_connection_was_lost_is_not_lost() -> None:
    async with Bus() as bus, Listener(bus) as peer:
        line = peer.lines[0]
        link = line._latest
        assert link is not None
        line._received(link, frames(0, 2))
        line._received(link, frames(2, 2 * HALVED))
        assert len(peer.heard) < 2 * HALVED
        line._lost(link, None)
        assert [k for _, k in peer.heard] == list(range(2 * HALVED + 2))
        await peer.next_turn()
        assert len(peer.heard) == 2 * HALVED + 2


@virtual_time
async def test_half_of_what_an_old_connection_brought_does_not_come_over_a_new_one() -> None:
    async with Bus() as bus, Listener(bus) as peer:
        line = peer.lines[0]
        old = line._latest
        assert old is not None
        line._received(old, frames(0, 2))
        line._received(old, frames(2, 2 * HALVED))
        before = len(peer.heard)
        await line._connect_to((await line._addresses())[0])
        assert line._latest is not old
        await peer.next_turn()
        assert len(peer.heard) in (before, 2 * HALVED + 2)  # all of it, or nothing more


def test_all_lines_of_a_loop_look_for_more_together_and_the_loop_can_go() -> None:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        assert spin_of(loop, 0) is None
        spin = spin_of(loop, 50)
        assert spin is not None and spin is spin_of(loop, 50)
        assert spin is not spin_of(loop, 60)
        spin.read()
        assert spin.active
        async with asyncio.timeout(5):
            while spin.active:
                await asyncio.sleep(0)
        return weakref.ref(loop)

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None


@virtual_time
async def test_peers_look_for_more_unless_they_are_told_not_to() -> None:
    async with Bus() as bus:
        loop = asyncio.get_running_loop()
        for options, expected in (({}, spin_of(loop, SPIN_US)), ({"spin_us": 0}, None)):
            async with Peer("node:1", connector=bus.connector, **options) as peer:
                assert peer.lines[0]._spin is expected
        with pytest.raises(LocalError, match="spin_us"):
            Peer("node:1", spin_us=-1)
