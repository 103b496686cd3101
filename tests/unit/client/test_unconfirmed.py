"""Persistent messages: kept until a node confirms them, and sent again until then."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from regraft import Client, DiskError, LocalError, RegraftError, WorldError
from regraft.client.unconfirmed import Unconfirmed
from regraft.errors import LocalError as Refusal
from regraft.limits import MIB, Limits
from regraft.model.message import DeliveryMode, Message
from regraft.testing import Bus, virtual_time
from regraft.wire import native

ORDERS = {"orders": "orders/#"}  # what the node retains


# ------------------------------------------------------------------------- the memory


def frames(*sequences: int) -> bytes:
    """What was written: persistent messages with these sequences, 0 for one that is not."""
    parts = []
    for sequence in sequences:
        message = Message("t", b"%d" % sequence)
        if sequence:
            persistent = DeliveryMode.PERSISTENT
            message = Message("t", b"", sequence=sequence, delivery_mode=persistent)
        parts.append(native.encode(message))
    return b"".join(parts)


def sequences(unconfirmed: Unconfirmed) -> list[int]:
    return [sequence for _, sequence in unconfirmed.again()]


def in_loop(test: Callable[[asyncio.AbstractEventLoop], Any]) -> None:
    async def run() -> None:
        test(asyncio.get_running_loop())

    asyncio.run(run())


def test_what_is_not_confirmed_is_sent_again_and_nothing_else() -> None:
    kept = Unconfirmed()
    assert not kept
    kept.written(frames(1, 0, 2) + native.encode(native.Heartbeat()), 2)
    kept.written(frames(3, 4, 0), 4)
    assert kept and kept.size > 0
    kept.confirmed(1, 1, 7)
    kept.refused(3, 1, Refusal("mailbox-full", "full"))
    found = kept.again()
    assert [sequence for _, sequence in found] == [2, 4]
    assert [frame for frame, _ in found] == [frames(2), frames(4)]
    assert kept.size == 0 and kept


def test_what_is_confirmed_is_forgotten_chunk_by_chunk() -> None:
    kept = Unconfirmed()
    kept.written(frames(1, 2), 2)
    kept.written(frames(3), 3)
    kept.confirmed(1, 2, 0)
    assert kept.size == len(frames(3)) and sequences(kept) == [3]
    kept.written(frames(3), 3)
    kept.confirmed(3, 1, 0)
    assert (kept.size, bool(kept), kept.safe) == (0, False, 3)


def test_sequences_begin_where_the_node_says_and_never_go_back() -> None:
    kept = Unconfirmed()
    kept.begin(41)
    assert (kept.safe, kept.last) == (41, 41)
    kept.written(frames(42), 42)
    kept.begin(99)  # something is unconfirmed: its sequence stays
    assert (kept.safe, kept.last) == (41, 42)
    kept.confirmed(42, 1, 0)
    kept.begin(7)
    assert kept.last == 42


def test_who_waits_learns_the_takers_of_the_last() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        kept = Unconfirmed()
        kept.written(frames(1, 2, 3), 3)
        one, all_three = kept.wait(1, 1, loop), kept.wait(1, 3, loop)
        kept.confirmed(1, 2, 5)
        assert one.done() and not all_three.done()
        kept.confirmed(3, 1, 9)
        assert all_three.result() == 9
        assert one.result() == 5
        assert kept.wait(1, 3, loop).done()

    in_loop(test)


def test_a_refusal_is_told_at_once_to_those_it_is_about() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        kept = Unconfirmed()
        kept.written(frames(1, 2, 3), 3)
        waiting = [kept.wait(n, n, loop) for n in (1, 2, 3)]
        error = Refusal("mailbox-full", "full")
        assert kept.refused(2, 1, error)
        assert [future.done() for future in waiting] == [False, True, False]
        assert waiting[1].exception() is error and kept.safe == 0
        kept.confirmed(1, 1, 1)
        assert waiting[0].result() == 1 and kept.safe == 2
        assert not waiting[2].done()
        assert not kept.refused(9, 1, error)

    in_loop(test)


def test_who_asks_later_still_learns_of_a_refusal() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        kept = Unconfirmed()
        kept.written(frames(1, 2, 3), 3)
        error = Refusal("mailbox-full", "full")
        kept.refused(1, 2, error)
        kept.confirmed(3, 1, 1)
        assert kept.wait(1, 3, loop).exception() is error
        assert kept.wait(3, 3, loop).result() == 0

    in_loop(test)


def test_when_nothing_will_be_confirmed_everybody_is_told() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        kept = Unconfirmed()
        kept.written(frames(1), 1)
        future = kept.wait(1, 1, loop)
        kept.fail(LocalError("closed", "over"))
        assert isinstance(future.exception(), LocalError)

    in_loop(test)


# ------------------------------------------------------------------------- with a node


async def stored(bus: Bus, count: int) -> list[str]:
    """What the stream holds: `count` messages, and no more."""
    reader = await bus.connect()
    replay = await reader.replay("orders/#")
    texts = [(await replay.next(5)).text() for _ in range(count)]
    await asyncio.sleep(5)
    assert replay.pending() == 0
    await reader.close()
    return texts


@virtual_time
async def test_a_confirmed_message_survives_the_power() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        assert await client.publish("orders/eu", "one", persistent=True, confirm=True) == 1
        assert await client.publish("elsewhere", "two", persistent=True, confirm=True) == 0
        assert await client.publish("orders/eu", "gone", confirm=True) == 0
        bus.power_off()
        bus.start()
        assert await stored(bus, 1) == ["one"]


@virtual_time
async def test_takers_are_streams_mailboxes_and_sessions() -> None:
    async with Bus(streams=ORDERS) as bus:
        client, other = await bus.connect(), await bus.connect()
        await other.subscribe_durably("billing", "orders")
        live = await other.subscribe("orders")
        assert await client.publish("orders/eu", "x", persistent=True, confirm=True) == 3
        assert (await live.next(1)).text() == "x"


@virtual_time
async def test_what_is_published_while_the_node_is_away_is_stored_once() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        await client.publish("orders/eu", "before", persistent=True, confirm=True)
        bus.kill()
        await asyncio.sleep(1)
        waiting = asyncio.create_task(
            client.publish("orders/eu", "meanwhile", persistent=True, confirm=True)
        )
        await asyncio.sleep(10)
        assert not waiting.done()
        bus.start()
        assert await waiting == 1
        assert await stored(bus, 2) == ["before", "meanwhile"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("power", [False, True])
def test_what_is_in_flight_when_the_node_ends_is_stored_once_and_in_order(
    seed: int, power: bool
) -> None:
    @virtual_time
    async def story() -> None:
        async with Bus(streams=ORDERS, seed=seed) as bus:
            client = await bus.connect()
            tasks = []
            for n in range(60):
                published = client.publish("orders/eu", str(n), persistent=True, confirm=True)
                tasks.append(asyncio.create_task(published))
                await asyncio.sleep(0.0003)
                if n % 20 == 10:
                    bus.power_off() if power else bus.kill()
                    if n == 10:
                        await client.publish("orders/eu", "now", persistent=True)
                    await asyncio.sleep(seed * 0.01)
                    bus.start()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            await client.flush(10)
            wanted = [str(n) for n in range(60)]
            wanted.insert(11, "now")
            assert await stored(bus, 61) == wanted

    story()


@pytest.mark.parametrize("steps", range(8))
def test_what_was_not_even_written_when_the_connection_broke_is_not_lost(steps: int) -> None:
    @virtual_time
    async def story() -> None:
        async with Bus(streams=ORDERS) as bus:
            client = await bus.connect()
            client._transport.abort()
            for _ in range(steps):  # of the loop, until the client has forgotten the connection
                await asyncio.sleep(0)
            for n in range(3):
                await client.publish("orders", str(n), persistent=True)
            assert await client.publish("orders", "3", persistent=True, confirm=True, timeout=9) < 2
            assert await stored(bus, 4) == ["0", "1", "2", "3"]

    story()


@virtual_time
async def test_many_are_confirmed_as_one_over_a_reconnection() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        bodies = [b"%d" % n for n in range(5000)]
        task = asyncio.create_task(
            client.publish_many("orders/eu", bodies, persistent=True, confirm=True)
        )
        await asyncio.sleep(0.002)
        bus.kill()
        await asyncio.sleep(1)
        bus.start()
        assert await asyncio.wait_for(task, 60) == 5000
        assert await stored(bus, 5000) == [body.decode() for body in bodies]


@virtual_time
async def test_a_new_process_with_the_same_id_goes_on_counting() -> None:
    async with Bus(streams=ORDERS) as bus:
        for n in range(3):
            client = await bus.connect(client_id="till-7")
            await client.publish("orders", str(n), persistent=True, confirm=True)
            await client.close()
        assert await stored(bus, 3) == ["0", "1", "2"]
        assert (await (await bus.connect()).inspect("journal"))["repeated"] == 0


@virtual_time
async def test_a_full_mailbox_refuses_and_the_publisher_is_told() -> None:
    limits = Limits(segment_bytes=2 * MIB, mailbox_messages=100)
    async with Bus(limits=limits) as bus:
        client, other = await bus.connect(), await bus.connect()
        billing = await other.subscribe_durably("billing", "orders", manual=True)
        refused: list[str] = []
        client.on_refused(lambda error, messages: refused.append(error.code.name))
        with pytest.raises(RegraftError) as caught:
            for n in range(1000):
                await client.publish("orders", str(n), persistent=True, confirm=True)
        assert caught.value.code.name == "mailbox-full"
        with pytest.raises(RegraftError, match="mailbox"):
            await client.publish_many("orders", [b"x"] * 3, persistent=True, confirm=True)
        assert set(refused) == {"mailbox-full"}
        assert await client.publish("elsewhere", "", persistent=True, confirm=True) == 0
        for _ in range(100):
            (await billing.next(5)).settle()
        await billing.settled()
        assert await client.publish("orders", "again", persistent=True, confirm=True) == 1


@virtual_time
async def test_a_failed_sync_is_never_confirmed_and_the_publisher_is_told() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        await client.publish("orders", "safe", persistent=True, confirm=True)
        bus.disk.fail("sync", bus.disk.counts["sync"] + 1, errno.EIO)
        for body, why in (("in doubt", "not known to be safe"), ("refused", "disk")):
            with pytest.raises(DiskError, match=why) as caught:
                await client.publish("orders", body, persistent=True, confirm=True, timeout=5)
            assert caught.value.code.name == "journal-failed"
        live = await client.subscribe("news")
        await client.publish("news", "goes on", confirm=True)
        assert (await live.next(5)).text() == "goes on"
        bus.power_off()
        bus.start()
        await asyncio.sleep(5)
        assert await client.publish("orders", "again", persistent=True, confirm=True) == 1
        replay = await client.replay("orders/#")
        texts = [(await replay.next(5)).text()]
        while texts[-1] != "again":
            texts.append((await replay.next(5)).text())
        assert texts in (["safe", "again"], ["safe", "in doubt", "again"])


@virtual_time
async def test_a_client_that_is_closed_waits_for_the_last_confirmations() -> None:
    async with Bus(streams=ORDERS) as bus:
        async with bus.client() as client:
            for n in range(100):
                await client.publish("orders", str(n), persistent=True)
        bus.power_off()
        bus.start()
        assert await stored(bus, 100) == [str(n) for n in range(100)]


@virtual_time
async def test_closing_without_a_node_tells_those_who_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        task = asyncio.create_task(client.publish("orders", "", persistent=True, confirm=True))
        await asyncio.sleep(0)
        bus.kill()
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(LocalError, match="closed"):
            await task
        assert "persistent messages that may be lost" in caplog.text


@virtual_time
async def test_what_is_unconfirmed_is_bounded() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect(unconfirmed_bytes=1000)
        bus.disk.fail("sync", bus.disk.counts["sync"] + 1, errno.ENOSPC, forever=True)
        with pytest.raises(WorldError, match=r"confirmed too little within 2 s"):
            for _ in range(100):
                await client.publish("orders", bytes(100), persistent=True, timeout=2)
                await asyncio.sleep(0.001)
        bus.disk.mend()
        await asyncio.sleep(5)
        await client.publish("orders", b"", persistent=True, confirm=True, timeout=5)


@virtual_time
async def test_a_node_without_a_journal_says_so() -> None:
    async with Bus(journal=False) as bus:
        client = await bus.connect()
        with pytest.raises(LocalError) as caught:
            await client.publish("orders", "", persistent=True, confirm=True)
        assert caught.value.code.name == "not-supported"
        for subscribe in (subscribe_durably, replay):
            with pytest.raises(LocalError, match="keeps no journal"):
                await subscribe(client)


async def subscribe_durably(client: Client) -> Any:
    return await client.subscribe_durably("billing", "orders")


async def replay(client: Client) -> Any:
    return await client.replay("orders")
