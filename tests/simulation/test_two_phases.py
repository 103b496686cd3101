"""Crashes at every point of the two-phase protocol: each ends as its coordinator decided.

A coordinator takes orders from a queue, and has a database that can do two phases as well. It dies,
or the node does (with its power), or both, at any moment; then it is started again, and does what
such a program does: what its database has committed is committed at the node, all else is rolled
back. In the end node and database must agree, and every order must have been dealt with once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from regraft import Client, RegraftError
from regraft.testing import Bus, run

ORDERS = ["a", "b", "c"]
POINTS = 45


@dataclass
class Database:
    """The other party: what it has committed, it has committed."""

    committed: list[str] = field(default_factory=list)
    log: set[str] = field(default_factory=set)  # the decisions


async def deal(client: Client, database: Database, pause: float) -> None:
    """Deal with all orders, each with one transaction over both."""
    queue = client.queue("orders")
    life = len(database.log)
    while len(database.committed) < len(ORDERS):
        async with client.transaction(timeout=60) as tx:
            order = await queue.next(timeout=30)
            await asyncio.sleep(pause)
            await order.accept()
            await tx.publish("bills", order.text())
            life += 1
            gid = f"{order.text()}-{client.client_id}-{life}"
            await tx.prepare(gid)
            await asyncio.sleep(pause)
            database.committed.append(order.text())  # one step: rows and decision
            database.log.add(gid)
            await asyncio.sleep(pause)
    await queue.close()


async def clear_up(client: Client, database: Database) -> None:
    """Decide what is in doubt, as the database did."""
    for row in await client.in_doubt():
        await client.decide(row["gid"], row["gid"] in database.log)


async def story(what: str, when: float, seed: int) -> float:
    """Tell it with a crash of `what` after so many seconds; how long it took."""
    loop = asyncio.get_running_loop()
    async with Bus(seed) as bus:
        started = await bus.connect()
        await started.create_queue("orders")
        await started.create_queue("bills")
        for order in ORDERS:
            await started.publish("orders", order, persistent=True, confirm=True)
        database = Database()
        began = loop.time()
        client = await bus.connect(client_id="coordinator-1")
        work = asyncio.ensure_future(deal(client, database, 0.01))
        if what:
            await asyncio.wait([work], timeout=when)
        if "node" in what:
            bus.power_off()
            loop.call_later(1.0, bus.start)
        if "client" in what:
            work.cancel()
            die(client)
        with suppress(RegraftError, asyncio.CancelledError):  # it is started again
            await asyncio.wait_for(work, 120)
        die(client)
        took = loop.time() - began
        again = await connected(bus, "coordinator-2")
        await clear_up(again, database)
        await deal(again, database, 0.0)
        await check(again, database)
        return took


def die(client: Client) -> None:
    """End it without a word to anybody."""
    assert client._keeper is not None
    client._keeper.cancel()
    transport, client._transport, client._link = client._transport, None, None
    if transport is not None:
        transport.close()


async def connected(bus: Bus, name: str) -> Client:
    for _ in range(100):
        try:
            return await bus.connect(client_id=name)
        except RegraftError:
            await asyncio.sleep(0.1)
    raise AssertionError("the node does not come back")


async def check(client: Client, database: Database) -> None:
    bills = [message.text() async for message in client.browse("bills")]
    left = [message.text() async for message in client.browse("orders")]
    assert sorted(bills) == sorted(database.committed) == ORDERS, (bills, database)
    assert left == [] and await client.in_doubt() == []


def test_without_a_crash() -> None:
    assert run(story("", 0, 0)) > 0


@pytest.mark.parametrize("what", ["node", "client", "node and client"])
def test_a_crash_at_every_point(what: str) -> None:
    whole = run(story("", 0, 0))
    for point in range(POINTS):
        run(story(what, whole * point / POINTS, point))
