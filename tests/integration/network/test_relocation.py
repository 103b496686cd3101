"""A reader goes from node to node with its mailbox, while nodes are killed and others publish.

REGRAFT_RELOCATION_S=300 makes it five minutes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from network.cluster import Cluster
from regraft import Client, RegraftError, connect

LASTING_S = float(os.environ.get("REGRAFT_RELOCATION_S", "20"))
PATIENCE_S = 60.0
SETTLE_S = 180.0
QUIET_S = 8.0  # without a message, when all is well: there is none
EXPECTED = {
    *("timed-out", "connection-lost", "unreachable", "mailbox-moved", "mailbox-in-use"),
    *("closed", "shutting-down", "unknown-mailbox"),
}


@dataclass
class Reader:
    """Reads a mailbox wherever it is told to, and settles what it got."""

    done: set[bytes] = field(default_factory=set)  # it was told that this is settled
    got: list[bytes] = field(default_factory=list)
    stays: int = 0

    async def stay(self, url: str, most: int, timeout: float) -> int:
        """Read up to `most` messages at a node; how many there were."""
        count = 0
        try:
            async with await connect(url, reconnect=False, connect_timeout=5.0) as client:
                box = await client.subscribe_durably(
                    "box", "t/#", manual=True, in_flight=50, move=True, timeout=20.0
                )
                self.stays += 1
                while count < most:
                    message = await box.next(timeout)
                    body = bytes(message.body)
                    assert body not in self.done, f"{body!r} came again, and was settled"
                    self.got.append(body)
                    count += 1
                    await box.accept(message, confirm=True)
                    self.done.add(body)
        except RegraftError as error:
            if error.code.name not in EXPECTED:
                raise
        return count


async def publish(client: Client, node: str, over: asyncio.Event) -> list[bytes]:
    """Publish one message after the other, each until it is confirmed."""
    confirmed: list[bytes] = []
    while not over.is_set():
        body = b"%s %d" % (node.encode(), len(confirmed))
        await client.publish("t/x", body, persistent=True, confirm=True)
        confirmed.append(body)
        await asyncio.sleep(0.01)
    return confirmed


async def wander(cluster: Cluster, reader: Reader, random: Random) -> int:
    """Go from node to node, some of which die on the way; how many did."""
    until, killed = time.monotonic() + LASTING_S, 0
    while time.monotonic() < until:
        to = random.choice(cluster.names)
        stay = asyncio.create_task(reader.stay(cluster[to].url, random.randint(1, 200), 2.0))
        if random.random() < 0.7:
            await asyncio.sleep(random.choice((0.01, 0.05, 0.2, 0.5)))
            name = random.choice(cluster.names)
            cluster[name].kill()
            killed += 1
            await asyncio.sleep(random.choice((0.0, 0.3, 1.0)))
            cluster[name].start()
        await stay
    return killed


async def story(cluster: Cluster) -> None:
    await cluster.all_there()
    await cluster.one_tree(within=PATIENCE_S)
    async with await connect(cluster["n1"].url) as client:
        await client.subscribe_durably("box", "t/#", timeout=PATIENCE_S)
    await asyncio.sleep(1.0)  # until all know of it
    over, reader = asyncio.Event(), Reader()
    clients = [await connect(node.url, client_id=f"from-{node.name}") for node in cluster.nodes]
    named = zip(clients, cluster.names, strict=True)
    tasks = [asyncio.create_task(publish(client, name, over)) for client, name in named]
    killed = await wander(cluster, reader, Random(11))
    over.set()
    published = await asyncio.wait_for(asyncio.gather(*tasks), SETTLE_S)
    for client in clients:
        await client.close()
    await cluster.all_there()
    wanted = {body for some in published for body in some}
    deadline = time.monotonic() + SETTLE_S
    while not wanted <= set(reader.got) or await reader.stay(cluster["n3"].url, 1, QUIET_S):
        missing = sorted(wanted - set(reader.got))
        assert time.monotonic() < deadline, f"{missing[:5]} are missing\n{cluster.logs()}"
        await reader.stay(cluster["n3"].url, 100_000, QUIET_S)
    print(f"{killed} kills, {reader.stays} stays, {len(wanted)} messages confirmed")
    assert killed >= 3 and reader.stays >= 3 and len(wanted) > 100
    for some in published:
        mine = [body for body in dict.fromkeys(reader.got) if body in set(some)]
        assert mine == some, "the messages of a publisher came out of order"


def test_a_reader_gets_exactly_what_was_confirmed_wherever_it_goes(tmp_path: Path) -> None:
    with Cluster.on_loopback(tmp_path, 3) as cluster:
        asyncio.run(story(cluster))


def regraft(cluster: Cluster, node: str, *words: str) -> str:
    command = [sys.executable, "-m", "regraft", *words, "--url", cluster[node].url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def ready(cluster: Cluster) -> None:
    await cluster.all_there()
    await cluster.one_tree(within=PATIENCE_S)


def test_in_the_shell(tmp_path: Path) -> None:
    with Cluster.on_loopback(tmp_path, 2) as cluster:
        asyncio.run(ready(cluster))
        regraft(cluster, "n1", "sub", "t/x", "--durable", "box", "--count", "0")
        for body in ("one", "two", "three"):
            regraft(cluster, "n1", "pub", "t/x", body, "--persistent")
        read = ("sub", "t/x", "--durable", "box", "--body", "--timeout", "20", "--count")
        assert regraft(cluster, "n1", *read, "1") == "one\n"
        assert regraft(cluster, "n2", *read, "1", "--move") == "two\n"
        assert "to n2" in regraft(cluster, "n1", "queue", "list")
        assert "box" in regraft(cluster, "n1", "custody", "list")
        assert regraft(cluster, "n1", "queue", "move", "box") == "box comes from node n2\n"
        assert regraft(cluster, "n1", *read, "1") == "three\n"
