"""Advertisements and whether they are wanted: clients and a real node in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from regraft import LocalError, WorldError
from regraft.limits import Limits
from regraft.node.network import Joining
from regraft.testing import Bus, virtual_time


@virtual_time
async def test_a_publisher_learns_whether_somebody_is_interested() -> None:
    async with Bus() as bus:
        publisher, subscriber = await bus.connect(), await bus.connect()
        async with await publisher.advertise("stocks/#", "price > 0") as offer:
            assert not offer.wanted
            told: list[bool] = []
            offer.on_change(told.append)
            waiting = asyncio.create_task(offer.wait_wanted())
            for pattern, where in (("news", ""), ("stocks", "price < 0"), ("stocks/x", "")):
                assert not waiting.done()
                one = await subscriber.subscribe(pattern, where=where)
                await asyncio.sleep(0.01)
            await waiting
            assert offer.wanted and told == [True]
            other = await subscriber.subscribe("#")
            await one.unsubscribe()
            await asyncio.sleep(0.01)
            assert offer.wanted
            await other.unsubscribe()
            await offer.wait_wanted(False, timeout=5)
            assert told == [True, False]
        await asyncio.sleep(0.01)
        assert bus.snapshot()["offers"] == 0


@virtual_time
async def test_whoever_keeps_or_shares_something_wants_it() -> None:
    async with Bus(streams={"kept": "kept/#"}) as bus:
        publisher, other = await bus.connect(), await bus.connect()

        async def wanted(topic: str) -> bool:
            async with await publisher.advertise(topic) as offer:
                return offer.wanted

        assert await wanted("kept/x") and not await wanted("other/x")
        mailbox = await other.subscribe_durably("box", "letters/#")
        await mailbox.unsubscribe()
        assert await wanted("letters/a")
        async with await other.subscribe("shared/#", group="g"):
            assert await wanted("shared/x")
        async with await other.subscribe("asked", replies=True):
            assert await wanted("asked")
        assert not await wanted("shared/x") and not await wanted("asked")
        await publisher.subscribe("mine")
        assert await wanted("mine")


@virtual_time
async def test_very_many_interests_are_looked_through_by_and_by() -> None:
    async with Bus() as bus:
        publisher, subscriber = await bus.connect(), await bus.connect()
        for n in range(1500):
            await subscriber.subscribe(f"many/{n}")
        last = await subscriber.subscribe("few/x")
        offers = [await publisher.advertise(topic) for topic in ("few", "none", "many/7")]
        assert [offer.wanted for offer in offers] == [True, False, True]
        await last.unsubscribe()
        await offers[0].wait_wanted(False, timeout=5)
        assert [offer.wanted for offer in offers] == [False, False, True]


@virtual_time
async def test_changes_are_told_until_it_is_closed() -> None:
    async with Bus() as bus:
        publisher, subscriber = await bus.connect(), await bus.connect()
        offer = await publisher.advertise("a")
        seen: list[bool] = []

        async def watch() -> None:
            async for wanted in offer.changes():
                seen.append(wanted)

        watching = asyncio.create_task(watch())
        one = await subscriber.subscribe("a")
        await asyncio.sleep(0.01)
        await one.unsubscribe()
        await asyncio.sleep(0.01)
        await offer.close()
        await asyncio.wait_for(watching, 5)
        assert seen == [False, True, False]
        with pytest.raises(LocalError, match="closed"):
            await offer.wait_wanted()


@virtual_time
async def test_it_holds_over_a_reconnection() -> None:
    async with Bus() as bus:
        publisher = await bus.connect(reconnect_delay=0.01)
        offer = await publisher.advertise("a")
        assert not offer.wanted
        bus.kill()
        bus.start()
        subscriber = await bus.connect()
        await subscriber.subscribe("a")
        await offer.wait_wanted(timeout=30)
        assert bus.snapshot()["offers"] == 1


@virtual_time
async def test_what_cannot_be_advertised_is_refused() -> None:
    async with Bus(limits=Limits(offers_per_session=2, offers=3)) as bus:
        one, two = await bus.connect(), await bus.connect()
        for pattern, where, why in (
            ("a/#/b", "", "bad-pattern"),
            ("$sys", "", "bad-pattern"),
            ("a", "x >", "bad-selector"),
        ):
            with pytest.raises(LocalError) as refused:
                await one.advertise(pattern, where)
            assert refused.value.code.name == why
        await one.advertise("a")
        await one.advertise("b")
        with pytest.raises(LocalError, match="offers_per_session"):
            await one.advertise("c")
        await two.advertise("c")
        with pytest.raises(LocalError, match="limit offers"):
            await two.advertise("d")
        with pytest.raises(WorldError, match="within"):
            await (await bus.connect()).advertise("x", timeout=1e-9)
        await one.close()
        await asyncio.sleep(0.1)
        assert bus.snapshot()["offers"] == 1


class Routed(Bus):
    """A node whose network routes by advertisements."""

    def start(self) -> None:
        super().start()
        joining = Joining("here:1", advertisements=True, standing=("free/#",))
        self._node().node.join(joining, self._world.now())


@virtual_time
async def test_what_is_not_advertised_is_refused_where_it_has_to_be() -> None:
    async with Routed() as bus:
        publisher, subscriber = await bus.connect(), await bus.connect()
        assert publisher.must_advertise
        everything = await subscriber.subscribe("#")

        async def refused(topic: str, **more: object) -> None:
            with pytest.raises(LocalError) as error:
                await publisher.publish(topic, b"x", confirm=True, **more)  # type: ignore[arg-type]
            assert error.value.code.name == "not-advertised"

        await refused("a/x")
        await refused("a/x", persistent=True)
        asked = await publisher.ask("a/x", timeout=5)
        with pytest.raises(LocalError, match="advertise"):
            await asked.next()
        with pytest.raises(LocalError, match="not advertised"):
            async with publisher.transaction() as unit:
                await unit.publish("a/x", b"x")
        async with await publisher.advertise("a/#"):
            await publisher.publish("a/x", b"1", confirm=True)
            await publisher.publish("a/x", b"2", confirm=True, persistent=True)
            async with publisher.transaction() as unit:
                await unit.publish("a/x", b"3")
            await refused("b")
        await refused("a/x")
        await publisher.publish("free/x", b"4", confirm=True)
        got = [(await everything.next(timeout=5)).text() for _ in range(4)]
        assert sorted(got) == ["1", "2", "3", "4"]


@virtual_time
async def test_a_message_must_be_as_it_was_advertised() -> None:
    async with Routed() as bus:
        publisher = await bus.connect()
        await publisher.advertise("a", "price > 0")
        await publisher.publish("a", b"", attributes={"price": 1}, confirm=True)
        for price in (-1, None):
            with pytest.raises(LocalError, match="not as advertised"):
                given = {} if price is None else {"price": price}
                await publisher.publish("a", b"", attributes=given)
        with pytest.raises(LocalError, match="not as advertised"):
            await publisher.publish_many("a", [b"1"], attributes={"price": 0})
        with pytest.raises(LocalError, match="not as advertised"):
            async with publisher.transaction() as unit:
                await unit.publish("a", b"", attributes={"price": 0})
        with pytest.raises(LocalError, match="not as advertised"):
            await publisher.ask("a", attributes={"price": 0})
        await publisher.advertise("a", "urgent = TRUE")
        await publisher.publish("a", b"", attributes={"urgent": True}, confirm=True)


@virtual_time
async def test_what_was_unconfirmed_is_published_again_after_it_was_advertised_again() -> None:
    async with Routed() as bus:
        publisher = await bus.connect(reconnect_delay=0.01)
        mailbox = await publisher.subscribe_durably("box", "a")
        await mailbox.unsubscribe()
        await publisher.advertise("a")
        sent = asyncio.create_task(publisher.publish("a", b"x", persistent=True, confirm=True))
        await asyncio.sleep(0)
        bus.kill()
        bus.start()
        assert await asyncio.wait_for(sent, 60) == 1


def test_programs_without_asyncio(tmp_path: Path) -> None:
    """The blocking front is a thin one: its calls lead to the same places."""
    from regraft.client.offers import BlockingOffer, Offer

    ours = {name for name in vars(BlockingOffer) if not name.startswith("_")}
    theirs = {name for name in vars(Offer) if not name.startswith("_")}
    assert ours == theirs - {"demand", "end"}
