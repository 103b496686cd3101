"""Durable subscriptions and replays: what comes again, what does not, and where they go on."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from regraft import Client, Durable, LocalError, ReceivedMessage, RegraftError, WorldError
from regraft.client.link import Done, Link
from regraft.testing import Bus, virtual_time
from regraft.wire import native

ORDERS = {"orders": "orders/#"}  # what the node retains


async def publish(client: Client, *texts: object, topic: str = "orders") -> None:
    for text in texts:
        await client.publish(topic, str(text), persistent=True)
    await client.flush(10)


async def take(subscription: Any, count: int) -> list[str]:
    return [(await subscription.next(5)).text() for _ in range(count)]


async def nothing_comes(subscription: Any) -> None:
    with pytest.raises(WorldError, match="no message"):
        await subscription.next(timeout=5)


# ---------------------------------------------------------------------------- settling


@virtual_time
async def test_messages_wait_while_nobody_reads() -> None:
    async with Bus() as bus:
        reader, publisher = await bus.connect(), await bus.connect()
        async with await reader.subscribe_durably("billing", "orders") as billing:
            assert (billing.name, billing.waiting_at_start) == ("billing", 0)
        await reader.close()
        await publish(publisher, 1, 2, 3)
        await publish(publisher, "elsewhere", topic="news")
        await publisher.publish("orders", "not persistent", confirm=True)
        bus.power_off()
        bus.start()
        again = await bus.connect()
        billing = await again.subscribe_durably("billing", "orders")
        assert billing.waiting_at_start == 3
        assert await take(billing, 3) == ["1", "2", "3"]
        await nothing_comes(billing)


@virtual_time
async def test_asking_for_the_next_settles_the_last() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders")
        await publish(client, 1, 2, 3)
        assert await take(billing, 2) == ["1", "2"]
        assert billing.unsettled() == 1
        await client.close()  # without a word about 2
        second = await (await bus.connect()).subscribe_durably("billing", "orders")
        assert second.waiting_at_start == 2
        messages = [await second.next(5) for _ in range(2)]
        assert [(m.text(), m.sequence, m.redelivered) for m in messages] == [
            ("2", 2, True),
            ("3", 3, True),  # it had arrived, and was not taken
        ]


@virtual_time
async def test_leaving_without_an_error_settles_the_last() -> None:
    async with Bus() as bus:
        await (await bus.connect()).subscribe_durably("a", "orders")
        await (await bus.connect()).subscribe_durably("b", "orders")
        await publish(await bus.connect(), 1, 2, 3)
        for client in bus._clients:
            await client.close()
        async with bus.client() as client, await client.subscribe_durably("a", "orders") as one:
            assert await take(one, 1) == ["1"]
        async with bus.client() as client:
            other = await client.subscribe_durably("b", "orders")
            assert await take(other, 1) == ["1"]
        for name in ("a", "b"):
            durable = await (await bus.connect()).subscribe_durably(name, "orders")
            assert await take(durable, 1) == ["2"]


@virtual_time
async def test_leaving_with_an_error_settles_nothing() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await client.subscribe_durably("billing", "orders")
        await publish(client, 1, 2)
        await client.close()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                async with bus.client() as client:
                    async for message in await client.subscribe_durably("billing", "orders"):
                        assert message.text() == "1"
                        print(1 / 0)
            with pytest.raises(ZeroDivisionError):
                async with (
                    bus.client() as client,
                    await client.subscribe_durably("billing", "orders") as billing,
                ):
                    assert await take(billing, 1) == ["1"]
                    print(1 / 0)


@virtual_time
async def test_settled_one_by_one_out_of_order_and_up_to_one() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        await publish(client, *range(1, 11))
        messages = [await billing.next(5) for _ in range(10)]
        assert billing.unsettled() == 10
        messages[1].settle()
        messages[1].settle()  # a second time it means nothing
        billing.settle(messages[7], messages[8])
        billing.settle_through(messages[4])
        await billing.settled()
        assert billing.unsettled() == 3
        bus.power_off()
        bus.start()
        await client.close()
        second = await (await bus.connect()).subscribe_durably("billing", "orders")
        assert second.waiting_at_start == 3
        assert await take(second, 3) == ["6", "7", "10"]


@virtual_time
async def test_batches_are_settled_by_the_next_batch() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", in_flight=10)
        await publish(client, *range(100))
        got: list[str] = []
        async for batch in billing.batches():
            assert len(batch) <= 10
            got += [message.text() for message in batch]
            if len(got) == 100:
                break
        assert got == [str(n) for n in range(100)]
        assert billing.unsettled() <= 10


@virtual_time
async def test_no_more_than_in_flight_are_delivered_before_some_are_settled() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True, in_flight=3)
        await publish(client, *range(10))
        first = [await billing.next(5) for _ in range(3)]
        await nothing_comes(billing)
        first[1].settle()
        assert await take(billing, 1) == ["3"]
        await nothing_comes(billing)


@virtual_time
async def test_a_settlement_is_confirmed_to_the_subscription_it_is_of() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        one = await client.subscribe_durably("one", "orders", manual=True)
        other = await client.subscribe_durably("other", "orders", manual=True)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        other._token = 1
        other._waiters.append((1, future))  # it waits for its own
        (await asyncio.gather(publish(client, 1), one.next(5)))[1].settle()
        await one.settled()
        assert not future.done()
        future.cancel()
    link = Link(native.Hello(version_min=1, version_max=1), 1)
    assert list(link.receive(native.encode(native.Settled(7, 9)))) == [Done(7, 9)]


@virtual_time
async def test_a_mailbox_that_is_removed_is_gone() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders")
        await publish(client, 1, 2)
        bus.kill()
        await asyncio.sleep(1)
        removal = asyncio.create_task(billing.remove())
        await asyncio.sleep(1)
        assert not removal.done()  # nobody is there to do it
        bus.start()
        await removal
        assert (await client.inspect("journal"))["mailboxes"] == 0
        again = await client.subscribe_durably("billing", "news")  # another pattern, too
        assert again.waiting_at_start == 0


@virtual_time
async def test_a_removal_that_nobody_answers_is_an_error() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders")
        bus.kill()
        await asyncio.sleep(1)
        with pytest.raises(WorldError, match="no connection"):
            await billing.remove()


@virtual_time
async def test_what_is_not_persistent_is_delivered_too_but_only_now() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        await client.publish("orders", "now", confirm=True)
        message = await billing.next(5)
        assert (message.text(), message.sequence, message.redelivered) == ("now", 0, False)
        message.settle()  # which does nothing
        assert billing.unsettled() == 0


@virtual_time
async def test_refusals_of_mailboxes() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        with pytest.raises(LocalError, match="needs a name"):
            await client.subscribe_durably("", "orders")
        await client.subscribe_durably("billing", "orders", where="a > 1 and b = 2")
        with pytest.raises(LocalError) as caught:
            await other.subscribe_durably("billing", "orders", where="a > 1 AND b = 2")
        assert caught.value.code.name == "mailbox-in-use"
        with pytest.raises(LocalError) as caught:
            await other.subscribe_durably("billing", "news")
        assert caught.value.code.name == "mailbox-differs"
        await client.close()
        await other.subscribe_durably("billing", "orders", where="(a > 1) AND b = 2")


# ---------------------------------------------------------------------------- callbacks


@virtual_time
async def test_a_callback_settles_what_it_returns_from(caplog: pytest.LogCaptureFixture) -> None:
    async with Bus() as bus:
        client = await bus.connect()
        seen: list[str] = []

        async def work(message: ReceivedMessage) -> None:
            seen.append(message.text())
            if message.text() == "2":
                raise ValueError("it cannot be done")
            if message.text() == "5":
                await asyncio.sleep(1000)

        await client.subscribe_durably("billing", "orders", callback=work)
        await publish(client, *range(1, 7))
        await asyncio.sleep(5)
        assert seen == ["1", "2", "3", "4", "5"]
        assert "failed on" in caplog.text
        await client._close(True)  # in the middle of 5
        second = await (await bus.connect()).subscribe_durably("billing", "orders")
        assert await take(second, 3) == ["2", "5", "6"]


# -------------------------------------------------------------------------- reconnection


@virtual_time
async def test_settled_messages_do_not_come_again_and_others_do_marked() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        await publish(client, *range(1, 6))
        for _ in range(3):
            (await billing.next(5)).settle()
        await billing.settled()
        await client.close()
        second = await (await bus.connect()).subscribe_durably("billing", "orders", manual=True)
        messages = [await second.next(5) for _ in range(2)]
        assert [(m.text(), m.redelivered) for m in messages] == [("4", True), ("5", True)]
        await publish(await bus.connect(), 6)
        assert not (await second.next(5)).redelivered


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_an_application_sees_each_message_once(seed: int, power: bool, manual: bool) -> None:
    @virtual_time
    async def story() -> None:
        async with Bus(seed=seed) as bus:
            reader, publisher = await bus.connect(), await bus.connect()
            billing = await reader.subscribe_durably(
                "billing", "orders", manual=manual, in_flight=7 + seed
            )
            seen: list[str] = []
            held: list[ReceivedMessage] = []

            async def read() -> None:
                async for message in billing:
                    seen.append(message.text())
                    held.append(message)
                    if manual and len(held) > 4:
                        held.pop(seed % 4).settle()
                    await asyncio.sleep(0.001 * (len(seen) % 3))

            reading = asyncio.create_task(read())
            for n in range(120):
                await publisher.publish("orders", str(n), persistent=True)
                await asyncio.sleep(0.0005)
                if n % 30 == 15:
                    bus.power_off() if power else bus.kill()
                    await asyncio.sleep(0.02 * seed)
                    bus.start()
            await asyncio.sleep(10)
            assert seen == [str(n) for n in range(120)]
            if manual:
                await asyncio.sleep(1)
                assert billing.unsettled() == len(held)
            reading.cancel()

    story()


@virtual_time
async def test_what_was_passed_over_comes_after_a_reconnection() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        for n in range(1, 7):
            await client.publish("orders", str(n), attributes={"n": n}, persistent=True)
        await client.flush(10)
        third = await billing.next(5, where="n = 3")
        fifth = await billing.next(5, where="n = 5")
        fifth.settle()
        await billing.settled()
        for _ in range(3):
            bus.kill()
            bus.start()
            await asyncio.sleep(5)
        assert await take(billing, 4) == ["1", "2", "4", "6"]
        await nothing_comes(billing)
        third.settle()
        await billing.settled()
        assert billing.unsettled() == 4


@virtual_time
async def test_what_was_settled_and_not_heard_of_is_settled_again() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        await publish(client, 1, 2, 3)
        first, second, _ = [await billing.next(5) for _ in range(3)]
        bus.kill()
        await asyncio.sleep(1)
        first.settle()  # to nobody
        with pytest.raises(WorldError, match="comes again"):
            second.settle()
            waiting = asyncio.create_task(billing.settled(60))
            await asyncio.sleep(1)
            bus.start()
            await waiting
        await asyncio.sleep(5)
        await billing.settled()
        await client.close()
        again = await (await bus.connect()).subscribe_durably("billing", "orders")
        assert again.waiting_at_start == 1


@virtual_time
async def test_in_another_journal_all_is_new() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        replay = await client.replay("orders")
        await publish(client, "a", "b")
        assert await take(billing, 2) == await take(replay, 2) == ["a", "b"]
        bus.kill()
        bus._node().disk = bus._world.disk()
        bus.start()
        await asyncio.sleep(5)
        await publish(client, "c")
        assert await take(billing, 1) == await take(replay, 1) == ["c"]
        assert billing.unsettled() == 1


@virtual_time
async def test_in_a_mailbox_that_was_made_again_all_is_new() -> None:
    async with Bus() as bus:
        client = await bus.connect(reconnect_delay=20.0, reconnect_delay_max=20.0)
        billing = await client.subscribe_durably("billing", "orders", manual=True)
        await publish(client, "a", "b", "c")
        assert await take(billing, 3) == ["a", "b", "c"]
        bus.kill()
        bus.start()
        other = await bus.connect()
        await (await other.subscribe_durably("billing", "orders")).remove()
        await asyncio.sleep(30)
        await publish(client, "d", "e")
        assert await take(billing, 2) == ["d", "e"]
        assert billing.unsettled() == 2


@virtual_time
async def test_another_reader_that_took_the_mailbox_ends_the_subscription() -> None:
    async with Bus() as bus:
        client = await bus.connect(reconnect_delay=20.0, reconnect_delay_max=20.0)
        billing = await client.subscribe_durably("billing", "orders")
        bus.kill()
        bus.start()
        await (await bus.connect()).subscribe_durably("billing", "orders")
        with pytest.raises(LocalError) as caught:
            await billing.next(30)
        assert caught.value.code.name == "mailbox-in-use"


@virtual_time
async def test_when_the_disk_fails_who_settles_is_told_and_deliveries_go_on() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        billing = await client.subscribe_durably("billing", "orders", manual=True, in_flight=1)
        await publish(client, 1, 2, 3, 4)
        bus.disk.fail("sync", bus.disk.counts["sync"] + 1, errno.EIO, forever=True)
        for number in range(1, 5):
            message = await billing.next(5)
            assert message.text() == str(number)
            message.settle()
            with pytest.raises(RegraftError) as caught:
                await billing.settled(5)  # before that was known to be in vain, or after it
            assert caught.value.code.name == "journal-failed"
        with pytest.raises(WorldError, match="no message"):
            await billing.next(5)
        bus.power_off()
        bus.start()
        await asyncio.sleep(5)  # what comes again was settled by the application: so it is now
        await billing.settled(5)
        assert billing.pending() == 0 and await waiting_in(bus, "billing") == 0


async def waiting_in(bus: Bus, name: str) -> int:
    rows = (await (await bus.connect()).inspect("journal"))["rows"]
    (waiting,) = [row["waiting"] for row in rows if row["name"] == name]
    return int(waiting)


# ------------------------------------------------------------------------------- replay


async def replayed(client: Client, count: int, **how: Any) -> Sequence[str]:
    replay = await client.replay("orders/#", **how)
    texts = await take(replay, count)
    await asyncio.sleep(2)
    assert replay.pending() == 0
    await replay.unsubscribe()
    return texts


@virtual_time
async def test_a_stream_is_read_from_a_place_a_time_and_by_content() -> None:
    async with Bus(streams={**ORDERS, "news": "news/#"}) as bus:
        client = await bus.connect()
        for n in range(1, 7):
            topic = f"orders/{'eu' if n % 2 else 'us'}"
            attributes = {"n": n}
            await client.publish(
                topic, str(n), attributes=attributes, persistent=True, confirm=True
            )
            await asyncio.sleep(100)
        assert await replayed(client, 6) == ["1", "2", "3", "4", "5", "6"]
        assert await replayed(client, 2, sequence=5) == ["5", "6"]
        assert await replayed(client, 2, where="n > 4", stream="orders") == ["5", "6"]
        start = bus._world.now().wall_us / 1e6
        assert await replayed(client, 2, since=start - 220) == ["5", "6"]
        europe = await client.replay("orders/eu", exact=True)
        assert await take(europe, 3) == ["1", "3", "5"]
        assert europe.position == 5
        await client.publish("orders/eu", "new", persistent=True)
        assert await take(europe, 1) == ["new"]
        with pytest.raises(LocalError) as caught:
            await client.replay("weather")
        assert caught.value.code.name == "unknown-stream"


@virtual_time
async def test_a_replay_ends_where_it_was_told_to() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        for n in range(1, 7):
            await client.publish(
                "orders/eu", str(n), attributes={"n": n}, persistent=True, confirm=True
            )
            await asyncio.sleep(100)
        now = bus._world.now().wall_us / 1e6

        async def all_of(**how: Any) -> list[str]:
            async with asyncio.timeout(20):
                return [one.text() async for one in await client.replay("orders/#", **how)]

        assert await all_of(until=now) == ["1", "2", "3", "4", "5", "6"]
        assert await all_of(until=now - 220, where="n > 2") == ["3", "4"]
        assert await all_of(sequence=2, until_sequence=4) == ["2", "3", "4"]
        assert await all_of(until=now, where="n > 10") == []
        got: list[str] = []
        replay = await client.replay(
            "orders/#", until_sequence=8, callback=lambda one: got.append(one.text())
        )
        bus.kill()
        bus.start()
        await asyncio.sleep(5)
        await publish(client, 7, 8, 9, topic="orders/eu")
        await asyncio.sleep(5)
        assert got == ["1", "2", "3", "4", "5", "6", "7", "8"]
        with pytest.raises(LocalError, match="has ended"):
            await replay.next(5)
        await replay.unsubscribe()
        for wrong in ({"until": -1.0}, {"until_sequence": -1}):
            with pytest.raises(LocalError, match="a replay ends after 1970"):
                await client.replay("orders/#", **wrong)


@virtual_time
async def test_a_replay_goes_on_behind_what_has_arrived() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        await publish(client, *range(1, 6), topic="orders/eu")
        replay = await client.replay("orders/#")
        assert await take(replay, 3) == ["1", "2", "3"]
        bus.kill()
        bus.start()
        await asyncio.sleep(5)
        await publish(client, 6, topic="orders/eu")
        assert await take(replay, 3) == ["4", "5", "6"]
        await nothing_comes(replay)


@virtual_time
async def test_a_paced_replay_takes_the_time_it_took() -> None:
    async with Bus(streams=ORDERS) as bus:
        client = await bus.connect()
        for n in range(4):
            await client.publish("orders/eu", str(n), persistent=True, confirm=True)
            await asyncio.sleep(60)
        clock = asyncio.get_running_loop()
        replay = await client.replay("orders/#", paced=True)
        times = []
        for _ in range(4):
            await replay.next(100)
            times.append(clock.time())
        gaps = [round(b - a) for a, b in itertools.pairwise(times)]
        assert gaps == [60, 60, 60]


def test_the_names_are_public() -> None:
    import regraft

    assert regraft.Durable is Durable
    assert {"Durable", "Replay", "BlockingDurable"} <= set(regraft.__all__)
