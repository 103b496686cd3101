"""A copy of a queue in transactions, while client and node are killed: output equals input, once.

REGRAFT_COPY_KILLS says how many times something is killed (10 if it is not set): ten times while
all is copied to another queue, then from there to the next.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from test_reconnect import MortalNode

from regraft import Client, RegraftError
from regraft import connect as connect_to

MESSAGES = 100_000
AT_ONCE = 750
PER_COPY = 10
KILLS = int(os.environ.get("REGRAFT_COPY_KILLS", "10"))
SEED = int(os.environ.get("REGRAFT_COPY_SEED", "1"))

# The one who copies, as a process of its own.
COPIER = """
import asyncio, sys, regraft
target, at_once, source, sink = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

async def connected():
    while True:
        try:
            return await regraft.connect(target, reconnect_delay_max=0.1, client_id="copier")
        except regraft.WorldError:  # the node is being started again
            await asyncio.sleep(0.05)

async def copy(client, queue):
    async with client.transaction(timeout=60) as tx:
        for count in range(at_once):
            try:
                message = await queue.next(timeout=0.5 if count else 5)
            except regraft.WorldError as error:
                if error.code.name != "timed-out":
                    raise
                break
            await tx.publish(sink, message.content)
            await message.accept()
        else:
            count = at_once
    return count

async def copy_all(client):
    async with client.queue(source, in_flight=2 * at_once) as queue:
        while True:
            try:
                copied = await copy(client, queue)
            except regraft.RegraftError as error:  # it was rolled back: it comes again
                if error.code.name not in ("rolled-back", "not-waiting", "connection-lost"):
                    raise
                print("again", error, flush=True)
                continue
            print("copied", copied, flush=True)

async def main():
    async with await connected() as client:
        while True:
            try:
                await copy_all(client)
            except regraft.WorldError as error:  # the node died when it was asked for the queue
                if error.code.name != "connection-lost":
                    raise
                print("again", error, flush=True)

asyncio.run(main())
"""


class Copier:
    """The process, which copies from one queue to another."""

    def __init__(self, node: MortalNode, log: Path) -> None:
        self._node = node
        self._log = log
        self._queues = ("", "")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, source: str = "", sink: str = "") -> None:
        self._queues = (source, sink) if source else self._queues
        address = f"127.0.0.1:{self._node.port}"
        with self._log.open("ab") as log:
            command = [sys.executable, "-c", COPIER, address, str(AT_ONCE), *self._queues]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def connect(node: MortalNode, **more: Any) -> Coroutine[Any, Any, Client]:
    return connect_to(f"127.0.0.1:{node.port}", **{"reconnect_delay_max": 0.1, **more})


async def waiting(client: Client, name: str) -> int:
    answer = await client.command("queue-show", name=name)
    found: int = answer["queue"]["waiting"]
    return found


async def reached(node: MortalNode, name: str, count: int) -> None:
    """Wait until so many are in a queue, whatever happens to the node."""
    while True:
        with suppress(RegraftError):
            async with await connect(node) as client:
                while await waiting(client, name) < count:
                    await asyncio.sleep(0.02)
                return
        await asyncio.sleep(0.05)


async def copy(node: MortalNode, copier: Copier, number: int, kills: int) -> None:
    """Copy all from one queue to the next, with so many kills, and see what came of it."""
    chance = random.Random(SEED + number)
    source, sink = f"queue-{number}", f"queue-{number + 1}"
    await ready(node)
    async with await connect(node) as client:
        await client.create_queue(sink)
    copier.start(source, sink)
    for kill in range(kills):
        await reached(node, sink, kill * MESSAGES // (kills + 1))
        await asyncio.sleep(chance.uniform(0, 0.2))
        if chance.random() < 0.5:
            copier.kill()
            copier.start()
        else:
            node.kill()
            node.start()
    await reached(node, sink, MESSAGES)
    await check(node, source, sink)
    copier.kill()


async def check(node: MortalNode, source: str, sink: str) -> None:
    async with await connect(node) as client:
        found = [int(message.content) async for message in client.browse(sink)]
        assert len(found) == MESSAGES, "something is missing, or is there twice"
        assert set(found) == set(range(MESSAGES))
        assert await waiting(client, source) == 0 and await waiting(client, sink) == MESSAGES


async def ready(node: MortalNode) -> None:
    """Wait until a node answers that was just started."""
    while True:
        with suppress(RegraftError):
            await (await connect(node)).close()
            return
        await asyncio.sleep(0.1)


async def story(node: MortalNode, copier: Copier) -> None:
    await ready(node)
    async with await connect(node) as client:
        await client.create_queue("queue-0")
        numbers = [b"%d" % n for n in range(MESSAGES)]
        await client.publish_many("queue-0", numbers, persistent=True, confirm=True)
    for number in range(-(-KILLS // PER_COPY)):
        await copy(node, copier, number, min(PER_COPY, KILLS - number * PER_COPY))


def test_a_copy_in_transactions(tmp_path: Path) -> None:
    node = MortalNode(tmp_path)
    copier = Copier(node, tmp_path / "copier")
    try:
        asyncio.run(asyncio.wait_for(story(node, copier), 300 + 30 * KILLS))
    finally:
        copier.end()
        node.end()
