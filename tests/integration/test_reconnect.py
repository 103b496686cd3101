"""A node that dies again and again under load: what its clients see of it."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from regraft import Client, Disconnection, Options, Subscription, WorldError, connect

DEATHS = 50
BACK_S = 15.0  # for clients to be back and messages to flow, on a busy machine
CALL_S = 30.0  # for any call to end
PLAIN = 40  # messages between two that are to be confirmed
TOPIC = "numbers/all"


class MortalNode:
    """A real node process on one port, killed without warning and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}
        command = [sys.executable, "-m", "regraft", "serve", "-p", str(self.port)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data", str(self._folder / "data")],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the node ended by itself: " + self.words()
        self._process.kill()
        self._process.wait()

    def words(self) -> str:
        return (self._folder / "log").read_text()[-2000:]

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MortalNode]:
    one = MortalNode(tmp_path)
    yield one
    one.end()


class Load:
    """Publishes 1, 2, 3, ... and keeps account of what is known of their fate."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.number = 0  # the last that was given to the client, or is being given
        self.settled = 0  # up to here each was confirmed, or reported as unconfirmed
        self.confirmed = 0  # confirmations that came
        self.lost = 0  # confirmations that will never come
        self.disconnections: list[Disconnection] = []
        self._waits = False  # for a confirmation
        self._stop = False
        client.on_disconnect(self._disconnected)

    async def run(self) -> None:
        while not self._stop:
            for _ in range(PLAIN):
                await self._publish()
            try:
                self._waits = True
                await self._publish(confirm=True)
                self.settled = self.number
                self.confirmed += 1
            except WorldError as error:
                assert error.code.name == "connection-lost", error
                assert "in flight" in error.text
                self.lost += 1
                self._check_account()
            finally:
                self._waits = False

    def stop(self) -> None:
        self._stop = True

    async def _publish(self, confirm: bool = False) -> None:
        self.number += 1
        body = self.number.to_bytes(8, "big")
        await self.client.publish(TOPIC, body, confirm=confirm, timeout=CALL_S)

    def _disconnected(self, event: Disconnection) -> None:
        self.disconnections.append(event)
        self.settled += event.unconfirmed
        if not self._waits:  # else a confirmation may have come that is not yet known here
            self._check_account()

    def _check_account(self) -> None:
        """Every message was confirmed or reported, but perhaps one that waits for a connection."""
        assert self.number - 1 <= self.settled <= self.number


class Receipts:
    """Takes numbers, and sees that they only ever grow."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self.last = 0
        self.count = 0
        self.offences: list[tuple[int, int]] = []
        self.disconnections: list[Disconnection] = []
        self.reconnections = 0
        self._subscription = subscription
        client.on_disconnect(self.disconnections.append)
        client.on_reconnect(self._reconnected)

    async def run(self) -> None:
        async for message in self._subscription:
            number = int.from_bytes(message.body, "big")
            if number <= self.last:
                self.offences.append((self.last, number))
            self.last = number
            self.count += 1

    def _reconnected(self) -> None:
        self.reconnections += 1


async def until_flowing(load: Load, receipts: Receipts, task: asyncio.Task[None]) -> None:
    """Return when something that is published from now on has arrived."""
    goal = load.number + 1
    async with asyncio.timeout(BACK_S):
        while receipts.last < goal:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)


async def live_through(node: MortalNode, deaths: int) -> tuple[Load, Receipts]:
    """Load, and a node that dies at any moment of it."""
    chance = random.Random(7)
    target = f"127.0.0.1:{node.port}"
    patience = Options(connect_timeout=BACK_S, reconnect_delay_max=0.1)
    async with Client(target, patience) as one, Client(target, patience) as two:
        receipts = Receipts(two, await two.subscribe("numbers/#"))
        load = Load(one)
        tasks = [asyncio.create_task(each.run()) for each in (load, receipts)]
        for _ in range(deaths):
            await until_flowing(load, receipts, tasks[0])
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            node.kill()
            node.start()
        await until_flowing(load, receipts, tasks[0])
        load.stop()
        await asyncio.wait_for(tasks[0], CALL_S)
        await one.flush(timeout=CALL_S)
        async with asyncio.timeout(BACK_S):
            while receipts.last < load.number:
                await asyncio.sleep(0.01)
        await two.unsubscribe_all()
        await asyncio.wait_for(tasks[1], CALL_S)
    return load, receipts


async def first_connection(node: MortalNode) -> None:
    """A first connection is not retried, so wait until there is something to connect to."""
    async with asyncio.timeout(BACK_S):
        while True:
            try:
                await (await connect(f"127.0.0.1:{node.port}")).close()
                return
            except WorldError:
                await asyncio.sleep(0.05)


@pytest.mark.slow
def test_clients_outlive_fifty_deaths_of_their_node(node: MortalNode) -> None:
    async def story() -> tuple[Load, Receipts]:
        await first_connection(node)
        return await live_through(node, DEATHS)

    load, receipts = asyncio.run(story())

    # In order and at most once, over all connections together.
    assert not receipts.offences
    assert receipts.last == load.number
    assert 0 < receipts.count <= load.number

    # Each death was told, once, with what was in flight; and everybody came back.
    for disconnections in (load.disconnections, receipts.disconnections):
        deaths = [each for each in disconnections if each.will_reconnect]
        assert Counter(each.error.code.name for each in deaths) == {"connection-lost": DEATHS}
    assert receipts.reconnections == DEATHS
    assert load.confirmed > 0 and load.lost > 0
    assert load.lost <= DEATHS
    assert sum(each.unconfirmed for each in load.disconnections) >= load.lost
    assert all(each.unconfirmed == 0 for each in receipts.disconnections)
