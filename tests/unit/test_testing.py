"""The bus for an application's own tests: what outlives its node, and what its disk does."""

from __future__ import annotations

import asyncio
import errno

import pytest

from regraft.errors import DiskError
from regraft.limits import Limits
from regraft.testing import Bus, virtual_time


@virtual_time
async def test_a_mailbox_outlives_the_node() -> None:
    async with Bus() as bus:
        client = await bus.connect(client_id="reader")
        await client.subscribe_durably("orders", "orders/#")
        await client.close()
        publisher = await bus.connect()
        assert await publisher.publish("orders/1", "first", persistent=True, confirm=True) == 1
        bus.kill()
        bus.start()
        assert await publisher.publish("orders/2", "second", persistent=True, confirm=True) == 1
        bus.power_off()
        bus.start()
        orders = await (await bus.connect()).subscribe_durably("orders", "orders/#")
        assert orders.waiting_at_start == 2
        assert [(await orders.next(5)).text() for _ in range(2)] == ["first", "second"]


@virtual_time
async def test_a_stream_is_replayed_after_a_stop() -> None:
    async with Bus(streams={"news": "news/#"}) as bus:
        publisher = await bus.connect()
        for text in ("one", "two", "three"):
            await publisher.publish("news/eu", text, persistent=True, confirm=True)
        await publisher.close()
        bus.stop()
        bus.start()
        replay = await (await bus.connect()).replay(stream="news", sequence=2)
        assert [(await replay.next(5)).text() for _ in range(2)] == ["two", "three"]


@virtual_time
async def test_a_failing_disk() -> None:
    async with Bus(limits=Limits(), streams={"all": "#"}) as bus:
        client = await bus.connect()
        await client.publish("a", "kept", persistent=True, confirm=True)
        bus.disk.fail("sync", bus.disk.counts["sync"] + 1, errno.EIO)
        with pytest.raises(DiskError, match="not known to be safe"):
            await client.publish("a", "lost, perhaps", persistent=True, confirm=True, timeout=5)
        with pytest.raises(DiskError, match="disk failed"):
            await client.publish("a", "refused", persistent=True, confirm=True, timeout=5)
        live = await client.subscribe("b")
        await client.publish("b", "still delivered")
        assert (await live.next(5)).text() == "still delivered"
        bus.power_off()
        bus.start()
        await asyncio.sleep(1)
        await client.publish("a", "kept, too", persistent=True, confirm=True)
        replay = await client.replay(stream="all", sequence=1)
        texts = [(await replay.next(5)).text() for _ in range(2)]
        assert texts[0] == "kept" and texts[1] in ("kept, too", "lost, perhaps")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_not_confirmed_is_sent_again(seed: int) -> None:
    @virtual_time
    async def told() -> None:
        async with Bus(seed, streams={"all": "#"}) as bus:
            client = await bus.connect()
            for number in range(50):
                await client.publish("a", str(number), persistent=True)
            bus.power_off()
            bus.start()
            await asyncio.sleep(1)
            await client.flush(10)
            replay = await client.replay(stream="all", sequence=1)
            texts = [(await replay.next(5)).text() for _ in range(50)]
            assert texts == [str(number) for number in range(50)]

    told()
