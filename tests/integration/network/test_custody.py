"""Nodes killed and started again in any order, while clients publish what must not be lost.

REGRAFT_CUSTODY_S=600 makes it ten minutes.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from network.cluster import Cluster
from regraft import Client, RegraftError, connect

NODES = 9
LASTING_S = float(os.environ.get("REGRAFT_CUSTODY_S", "60"))
AWAY_MAX = 3  # nodes at the same time
SETTLE_S = 240.0  # until everything is where it belongs, on a machine that has much else to do
PUBLISHERS = ("n1", "n3", "n5", "n8", "n9")
MAILBOXES = {"n2": ("all", "t/#"), "n4": ("odd", "t/odd"), "n7": ("same", "t/#"), "n8": ("x", "t")}
PATIENCE_S = 60.0


@dataclass
class Publisher:
    """Publishes one message after the other at one node, each until it is confirmed."""

    node: str
    confirmed: list[bytes] = field(default_factory=list)
    topics: dict[bytes, str] = field(default_factory=dict)

    async def run(self, client: Client, over: asyncio.Event) -> None:
        number = 0
        while not over.is_set():
            topic = ("t/even", "t/odd")[number % 2]
            body = b"%s %d" % (self.node.encode(), number)
            self.topics[body] = topic
            await client.publish(topic, body, persistent=True, confirm=True)
            self.confirmed.append(body)
            number += 1
            await asyncio.sleep(0.002)


async def disturb(cluster: Cluster, until: float, random: Random) -> int:
    """Kill nodes and start them again, in any order; how many were."""
    killed = 0
    away: dict[str, float] = {}
    while time.monotonic() < until:
        for name, back in list(away.items()):
            if time.monotonic() >= back:
                cluster[name].start()
                del away[name]
        if len(away) < AWAY_MAX and random.random() < 0.5:
            name = random.choice([one for one in cluster.names if one not in away])
            cluster[name].kill()
            killed += 1
            away[name] = time.monotonic() + random.choice((0.0, 0.5, 3.0))
        await asyncio.sleep(random.uniform(0.05, 0.8))
    for name in away:
        cluster[name].start()
    return killed


async def drained(cluster: Cluster) -> None:
    """Wait until no node has anything that another one should."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        waiting: dict[tuple[str, str], int] = {}
        for node in cluster.nodes:
            try:
                async with await connect(node.url, reconnect=False, connect_timeout=5.0) as client:
                    rows = (await client.inspect("custody"))["rows"]
            except RegraftError as error:
                waiting[node.name, str(error)] = 1
                continue
            known = {row["node"]: row for row in rows}
            for home in MAILBOXES:
                if home != node.name:
                    row = known.get(home, {})
                    if row.get("waiting", 1) or not row["interests"]:
                        waiting[node.name, home] = row.get("waiting", -1)
        if not waiting:
            return
        assert time.monotonic() < deadline, f"{waiting}\n{cluster.logs()}"
        await asyncio.sleep(0.5)


async def held(cluster: Cluster, home: str, mailbox: str, pattern: str) -> list[bytes]:
    """All that a mailbox has."""
    found: list[bytes] = []
    async with await connect(cluster[home].url) as client:
        durable = await client.subscribe_durably(mailbox, pattern, timeout=PATIENCE_S)
        for _ in range(durable.waiting_at_start):
            message = await durable.next(PATIENCE_S)
            found.append(bytes(message.body))
    return found


async def story(cluster: Cluster) -> None:
    await cluster.all_there()
    await cluster.one_tree(within=PATIENCE_S)
    for home, (mailbox, pattern) in MAILBOXES.items():
        async with await connect(cluster[home].url) as client:
            await client.subscribe_durably(mailbox, pattern, timeout=PATIENCE_S)
    await drained(cluster)  # and everybody knows of the mailboxes
    publishers = [Publisher(name) for name in PUBLISHERS]
    over = asyncio.Event()
    clients = [
        await connect(cluster[one.node].url, client_id=f"publisher-{one.node}")
        for one in publishers
    ]
    pairs = zip(publishers, clients, strict=True)
    tasks = [asyncio.create_task(one.run(client, over)) for one, client in pairs]
    killed = await disturb(cluster, time.monotonic() + LASTING_S, Random(7))
    over.set()
    await asyncio.wait_for(asyncio.gather(*tasks), SETTLE_S)
    for client in clients:
        await client.close()
    await cluster.all_there()
    await drained(cluster)
    count = sum(len(one.confirmed) for one in publishers)
    print(f"{killed} kills, {count} messages confirmed")
    assert killed >= LASTING_S / 10 and count > 100
    for home, (mailbox, pattern) in MAILBOXES.items():
        found = await held(cluster, home, mailbox, pattern)
        for one in publishers:
            wanted = [
                body
                for body in one.confirmed
                if pattern in ("t/#", "t") or one.topics[body] == pattern
            ]
            mine = [body for body in found if body.split()[0] == one.node.encode()]
            assert mine == wanted, f"{mailbox} of {home} differs for {one.node}"


def test_every_mailbox_ends_with_exactly_what_was_confirmed(tmp_path: Path) -> None:
    with Cluster.on_loopback(tmp_path, NODES) as cluster:
        asyncio.run(story(cluster))
