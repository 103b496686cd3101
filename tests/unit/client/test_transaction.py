"""Checks transactions as applications use them, with a real node in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from regraft import Client, LocalError, RegraftError, WorldError
from regraft.limits import Limits
from regraft.testing import Bus, virtual_time


async def texts(client: Client, name: str) -> list[str]:
    """What waits in a queue."""
    return [message.text() async for message in client.browse(name)]


async def filled(client: Client, *bodies: str) -> None:
    await client.create_queue("in")
    await client.create_queue("out")
    for body in bodies:
        await client.publish("in", body, persistent=True, confirm=True)


@virtual_time
async def test_all_of_it_counts_when_the_context_is_left() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        await filled(other, "a", "b")
        live = await other.subscribe("out")
        async with client.queue("in") as queue:
            async with client.transaction() as tx:
                for _ in range(2):
                    message = await queue.next(timeout=10)
                    await client.publish("out", message.text().upper(), persistent=True)
                    await message.accept()
                await asyncio.sleep(5)
                assert await texts(other, "out") == [] and live.pending() == 0
                assert len(await texts(other, "in")) == 2
            assert tx.is_over
            assert await texts(other, "out") == ["A", "B"]
            assert await texts(other, "in") == []
            assert queue.unsettled() == 0
        assert (await live.next(timeout=1)).text() == "A"


@virtual_time
async def test_nothing_of_it_counts_after_an_error() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client, "a")
        queue = client.queue("in")
        with pytest.raises(RuntimeError):
            async with client.transaction():
                message = await queue.next(timeout=10)
                await message.accept()
                await client.publish("out", "A", persistent=True)
                raise RuntimeError("no")
        again = await queue.next(timeout=10)
        assert (again.text(), again.attempts) == ("a", 1)
        await again.accept(confirm=True)
        assert await texts(client, "out") == [] and await texts(client, "in") == []


@pytest.mark.parametrize("auto", [False, True])
@virtual_time
async def test_what_was_taken_and_not_accepted_comes_again_after_an_error(auto: bool) -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client, "a", "b")
        queue = client.queue("in", auto=auto)
        before = await queue.next(timeout=10)  # not in it: the application still has it
        with pytest.raises(RuntimeError):
            async with client.transaction():
                if auto:
                    await queue.next_batch(timeout=10)
                else:
                    async for _ in queue:
                        raise RuntimeError("no")
                raise RuntimeError("no")
        again = await queue.next(timeout=10)
        if not auto:
            assert (before.text(), again.text(), again.attempts) == ("a", "b", 1)
            assert queue.unsettled() == 2
            await before.accept()
            await again.accept(confirm=True)
            assert await texts(client, "in") == []
        else:  # with the next one it was done with the first one, but that was rolled back
            assert {again.text(), (await queue.next(timeout=10)).text()} == {"a", "b"}


@virtual_time
async def test_rolled_back_on_purpose() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client, "a")
        queue = client.queue("in")
        async with client.transaction() as tx:
            message = await queue.next(timeout=10)
            await message.accept()
            await tx.publish("out", "x" * 100_000)
            await tx.rollback()
            with pytest.raises(LocalError, match="over"):
                await tx.publish("out", "y")
            with pytest.raises(LocalError, match="over"):
                await tx.commit()
            await client.publish("out", "z", persistent=True)  # behind it, and by itself
        assert (await queue.next(timeout=10)).text() == "a"
        await client.flush()
        assert await texts(client, "out") == ["z"]


@virtual_time
async def test_large_ones_go_in_parts() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client)
        bodies = [f"{n}:" + "x" * 900_000 for n in range(5)] + [str(n) for n in range(3000)]
        async with client.transaction() as tx:
            assert await tx.publish_many("out", bodies) == len(bodies)
        assert await texts(client, "out") == bodies
        async with client.transaction() as tx:
            count = await client.publish_many("out", ["1", "2"], persistent=True)
            assert count == 2 and await tx.commit() == 2


@virtual_time
async def test_limits_and_refusals() -> None:
    async with Bus(limits=Limits(transaction_messages=10, transaction_ms=5000)) as bus:
        client = await bus.connect()
        await filled(client, "a")
        queue = client.queue("in")
        message = await queue.next(timeout=10)
        with pytest.raises(LocalError, match="transaction_messages"):
            async with client.transaction() as tx:
                await message.accept()
                await tx.publish_many("out", ["x"] * 11)
        message = await queue.next(timeout=10)
        with pytest.raises(WorldError, match="transaction_ms"):
            async with client.transaction() as tx:
                await message.accept()
                await tx.publish("out", "x" * 70_000)
                await asyncio.sleep(6)
        message = await queue.next(timeout=10)
        async with client.transaction() as tx:
            with pytest.raises(LocalError, match="not-supported"):
                await message.reject("no")
            with pytest.raises(LocalError, match="not-supported"):
                await message.release()
            with pytest.raises(LocalError, match="confirm"):
                await client.publish("out", "x", persistent=True, confirm=True)
            with pytest.raises(LocalError, match="bad-topic"):
                await tx.publish("a/+", "x")
            with pytest.raises(LocalError, match="within"):
                async with client.transaction():
                    pass
            await message.accept()
        assert await texts(client, "in") == [] and await texts(client, "out") == []


@virtual_time
async def test_durable_subscriptions_without_manual_settlement() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client)
        durable = await client.subscribe_durably("d", "t")
        for body in "abc":
            await client.publish("t", body, persistent=True, confirm=True)
        async with client.transaction() as tx:
            message = await durable.next(timeout=10)
            await tx.publish("out", message.text())
            message = await durable.next(timeout=10)  # with that, it is done with the first
            await tx.publish("out", message.text())
            durable.settle(message)
        assert await texts(client, "d") == ["c"]
        assert await texts(client, "out") == ["a", "b"]


@virtual_time
async def test_passing_messages() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        live = await (await bus.connect()).subscribe("p")
        async with client.transaction() as tx:
            await client.publish("p", "1")
            await tx.publish("p", "2", persistent=False)
            await asyncio.sleep(1)
            assert live.pending() == 0
        assert [(await live.next(timeout=1)).text() for _ in range(2)] == ["1", "2"]


@virtual_time
async def test_queues_are_made_and_removed() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await client.create_queue("old")
        async with client.transaction() as tx:
            await tx.create_queue("jobs", "work/#", max_deliveries=3)
            await tx.create_mailbox("log", "work/#", where="n > 1")
            await tx.remove_queue("old")
            await tx.publish("work/a", "1", attributes={"n": 1})
            await tx.publish("work/a", "2", attributes={"n": 2}, priority=9)
        assert {row["name"] for row in await client.queues()} == {"jobs", "log"}
        assert await texts(client, "jobs") == ["1", "2"]
        assert await texts(client, "log") == ["2"]


@virtual_time
async def test_tasks_that_are_begun_in_it_belong_to_it() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client)
        outside = asyncio.Event()

        async def elsewhere() -> None:
            await outside.wait()
            await client.publish("out", "by itself", persistent=True, confirm=True)

        task = asyncio.ensure_future(elsewhere())
        async with client.transaction():
            outside.set()
            await asyncio.gather(*(client.publish("out", n, persistent=True) for n in "12"))
            await task
            assert await texts(client, "out") == ["by itself"]
        assert sorted(await texts(client, "out")) == ["1", "2", "by itself"]


@virtual_time
async def test_two_clients_in_one_context() -> None:
    async with Bus() as bus:
        one, two = await bus.connect(), await bus.connect()
        await filled(one)
        with pytest.raises(LocalError, match="on one node"):
            async with one.transaction(), two.transaction():
                raise AssertionError
        async with one.transaction():
            await one.publish("out", "1", persistent=True)
            await two.publish("out", "2", persistent=True, confirm=True)
            assert await texts(two, "out") == ["2"]
        assert await texts(one, "out") == ["2", "1"]


# ----------------------------------------------------------------- connections are lost


@virtual_time
async def test_lost_before_the_commit() -> None:
    async with Bus() as bus:
        client = await bus.connect(client_id="me")
        await filled(client, "a")
        queue = client.queue("in")
        with pytest.raises(WorldError, match="rolled-back"):
            async with client.transaction() as tx:
                message = await queue.next(timeout=10)
                await message.accept()
                await tx.publish("out", "A")
                bus.kill()
                await asyncio.sleep(1)
                bus.start()
                await asyncio.sleep(5)
        assert (await queue.next(timeout=10)).text() == "a"
        assert await texts(client, "out") == []


@pytest.mark.parametrize("taken", ["before", "meanwhile", "after"])
@virtual_time
async def test_what_is_in_the_hands_of_who_hears_that_it_was_lost_comes_again(taken: str) -> None:
    """It was taken before the connection was lost, or behind that, and cannot be accepted."""
    async with Bus() as bus:
        client = await bus.connect(client_id="me")
        await filled(client, "a")
        queue = await client.queue("in").open()
        with pytest.raises(WorldError, match="rolled-back"):
            async with client.transaction():
                message = None if taken == "after" else await queue.next(timeout=10)
                bus.kill()
                await asyncio.sleep(1)
                bus.start()
                if message is None or taken == "before":  # and has come again by now
                    await asyncio.sleep(5)
                message = message or await queue.next(timeout=10)
                while client._link is None:
                    await asyncio.sleep(0.001)
                await message.accept()
        again = await queue.next(timeout=10)
        assert again.text() == "a"
        await again.accept(confirm=True)
        assert await texts(client, "in") == [] and queue.pending() == 0


@pytest.mark.parametrize("when", ["before", "after"])
@virtual_time
async def test_the_answer_is_lost(when: str) -> None:
    """The node dies just before or after it has the commit on its disk."""
    async with Bus() as bus:
        client = await bus.connect(client_id="me")
        await filled(client, "a")
        queue = client.queue("in")
        message = await queue.next(timeout=10)
        original = client._decide
        deaths = 0

        async def dies(question: Any, timeout: Any) -> Any:
            nonlocal deaths
            if deaths:
                return await original(question, timeout)
            deaths += 1
            if when == "after":
                await original(question, timeout)
            bus.kill()
            asyncio.get_running_loop().call_later(1, bus.start)
            await asyncio.sleep(0.5)
            raise WorldError("connection-lost", "in flight")

        client._decide = dies  # type: ignore[method-assign]
        try:
            async with client.transaction() as tx:
                await message.accept()
                await tx.publish("out", "A")
            done = True
        except WorldError as error:
            assert error.code.name == "rolled-back"
            done = False
        assert done == (when == "after") and deaths == 1
        assert await texts(client, "out") == (["A"] if done else [])
        if not done:
            assert (await queue.next(timeout=10)).text() == "a"
        else:
            assert await texts(client, "in") == []


@virtual_time
async def test_a_client_that_dies_leaves_nothing() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(reconnect=False), await bus.connect()
        await filled(other, "a")
        queue = client.queue("in")
        with pytest.raises(WorldError, match="rolled-back"):
            async with client.transaction() as tx:
                message = await queue.next(timeout=10)
                await message.accept()
                await tx.publish("out", "x" * 100_000)
                client._transport.close()
                await asyncio.sleep(1)
        assert (await other.queue("in").next(timeout=60)).text() == "a"
        assert await texts(other, "out") == []


@virtual_time
async def test_nobody_knows() -> None:
    async with Bus() as bus:
        client = await bus.connect(client_id="me")
        await filled(client)
        with pytest.raises(WorldError, match="in-doubt"):
            async with client.transaction(timeout=3) as tx:
                await tx.publish("out", "A")
                original = client._decide

                async def dies(question: Any, timeout: Any) -> Any:
                    bus.kill()
                    return await original(question, timeout)

                client._decide = dies  # type: ignore[method-assign]
        client._decide = original  # type: ignore[method-assign]
        bus.start()
        assert await texts(client, "out") == []


# ----------------------------------------------------------------------- two phases


@virtual_time
async def test_prepared_and_committed() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client, "a")
        queue = client.queue("in")
        async with client.transaction() as tx:
            message = await queue.next(timeout=10)
            await message.accept()
            await tx.publish("out", "A")
            await tx.prepare("order-7")
            (row,) = await client.in_doubt()
            assert row["gid"] == "order-7" and row["settles"] == 1
            with pytest.raises(LocalError, match="prepared"):
                await tx.publish("out", "B")
            assert await client.outcome("order-7") == "prepared"
        assert await client.in_doubt() == []
        assert await client.outcome("order-7") == "committed"
        assert await client.outcome("order-8") == "unknown"
        assert await texts(client, "out") == ["A"] and await texts(client, "in") == []


@pytest.mark.parametrize("commit", [True, False])
@virtual_time
async def test_left_in_doubt_and_decided_by_another(commit: bool) -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client, "a")
        queue = client.queue("in")
        with pytest.raises(RuntimeError):
            async with client.transaction() as tx:
                message = await queue.next(timeout=10)
                await message.accept()
                await tx.publish("out", "A")
                await tx.prepare("order-7")
                raise RuntimeError("the database does not answer")
        await client.close()
        bus.power_off()
        bus.start()
        other = await bus.connect()
        assert await other.decide("order-7", commit) == ("committed" if commit else "rolled_back")
        assert await other.decide("order-7", not commit) == (
            "committed" if commit else "rolled_back"
        )
        assert await texts(other, "out") == (["A"] if commit else [])
        assert await texts(other, "in") == ([] if commit else ["a"])
        with pytest.raises(LocalError, match="unknown-transaction"):
            await other.decide("order-8", True)


@virtual_time
async def test_two_phases_over_a_restart_of_the_node() -> None:
    async with Bus() as bus:
        client = await bus.connect(client_id="me")
        await filled(client, "a")
        queue = client.queue("in")
        async with client.transaction() as tx:
            message = await queue.next(timeout=10)
            await message.accept()
            await tx.publish("out", "A")
            await tx.prepare("order-7")
            bus.power_off()
            asyncio.get_running_loop().call_later(2, bus.start)
        assert await texts(client, "out") == ["A"] and await texts(client, "in") == []
        async with client.transaction() as tx:
            await tx.publish("out", "B")
            await tx.prepare("order-8")
            await tx.rollback()
        assert await texts(client, "out") == ["A"]


@virtual_time
async def test_what_cannot_be_prepared() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await filled(client, "a")
        queue = client.queue("in")
        message = await queue.next(timeout=10)
        with pytest.raises(RegraftError, match="printable"):
            async with client.transaction() as tx:
                await message.accept()
                await tx.prepare("a\nb")
        assert (await queue.next(timeout=10)).text() == "a"
