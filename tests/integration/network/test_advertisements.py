"""Routing by advertisements over several processes: what is wanted comes, and what is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from network.cluster import Cluster, Node, free_ports, inner_of
from regraft import Client, LocalError, ReceivedMessage, WorldError, connect

STORY_S = 180.0
PATIENCE_S = 60.0


def cluster(folder: Path, count: int, *more: str) -> Cluster:
    ports = free_ports(count)
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports[:2])
    how = ["--join", seeds, "--advertisements", "on", *more]
    return Cluster(
        Node(folder, f"n{number}", port, arguments=how) for number, port in enumerate(ports, 1)
    )


def tell(cluster: Cluster, story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(STORY_S):
            await cluster.all_there()
            await cluster.one_tree()
            await story(cluster)

    with cluster:
        asyncio.run(whole())


async def shell(node: Node, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "regraft", *arguments, "--url", node.url]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode or 0, out.decode(), err.decode()


async def received_filters(cluster: Cluster) -> int:
    """What all nodes hold for their neighbours."""
    found = 0
    for node in cluster.nodes:
        topology = await node.topology()
        found += sum(link["received"] for link in topology["links"])
    return found


def test_subscriptions_go_where_publishers_are(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        clients = {node.name: await connect(node.url) for node in cluster.nodes}
        heard = {
            name: await client.subscribe("stocks/#", where="price > 10")
            for name, client in clients.items()
        }
        own = await received_filters(cluster)  # the nodes' own topics
        publisher = clients["n3"]
        with pytest.raises(LocalError) as refused:
            await publisher.publish("stocks/acme", confirm=True)
        assert refused.value.code.name == "not-advertised"
        async with await publisher.advertise("stocks/acme", "price > 0") as offer:
            assert offer.wanted
            # The first message comes to everybody: that is what the answer means.
            await publisher.publish("stocks/acme", "first", attributes={"price": 11})
            for subscription in heard.values():
                assert (await subscription.next(PATIENCE_S)).text() == "first"
            assert await received_filters(cluster) == own + len(cluster.nodes) - 1
        while await received_filters(cluster) > own:
            await asyncio.sleep(0.05)
        code, _, error = await shell(cluster["n4"], "pub", "stocks/acme", "shell", "-s", "price=12")
        assert (code, error) == (0, "")
        for subscription in heard.values():
            assert (await subscription.next(PATIENCE_S)).text() == "shell"
            await subscription.unsubscribe()
        code, out, _ = await shell(cluster["n5"], "advertise", "stocks/#", "--once")
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while out != "unwanted\n" and asyncio.get_running_loop().time() < deadline:
            code, out, _ = await shell(cluster["n5"], "advertise", "stocks/#", "--once")
        assert (code, out) == (1, "unwanted\n")
        code, _, error = await shell(cluster["n5"], "pub", "stocks/x", "y", "--if-wanted")
        assert code == 1 and "nobody wants" in error
        for client in clients.values():
            await client.close()

    tell(cluster(tmp_path, 5), story)


def test_questions_groups_mailboxes_and_later_messages_find_their_way(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        one, two, three = [await connect(node.url) for node in cluster.nodes]

        async def reply(message: ReceivedMessage) -> None:
            await message.reply(message.text() + "!")

        for client in (two, three):
            await client.subscribe("asked", replies=True, callback=reply)
        await one.advertise("asked", exact=True)
        found = await (await one.ask("asked", "you", timeout=PATIENCE_S)).all()
        assert found.complete and [reply.text() for reply in found] == ["you!", "you!"]

        members = [await two.subscribe("work/#", group="g") for _ in range(2)]
        await one.advertise("work")
        for n in range(10):
            await one.publish("work/x", str(n))
        got: list[str] = []

        async def take(member: object) -> None:
            async for message in member:  # type: ignore[attr-defined]
                got.append(message.text())

        tasks = [asyncio.create_task(take(member)) for member in members]
        while len(got) < 10:
            await asyncio.sleep(0.02)
        assert sorted(got, key=int) == [str(n) for n in range(10)]
        for task in tasks:
            task.cancel()

        # A mailbox at another node, and no live subscriber: custody, and it counts as wanted.
        box = await two.subscribe_durably("box", "letters/#", manual=True)
        await box.unsubscribe()
        offer = await one.advertise("letters")
        await offer.wait_wanted(timeout=PATIENCE_S)
        await one.publish("letters/a", "kept", persistent=True, confirm=True)
        box = await two.subscribe_durably("box", "letters/#")
        assert (await box.next(PATIENCE_S)).text() == "kept"

        # What a node publishes itself, later, when its publisher is long gone.
        heard = await three.subscribe("later")
        async with await one.advertise("later"):
            await one.publish("later", "in a while", delay=1.5)
            await one.flush(PATIENCE_S)
        await one.close()
        assert (await heard.next(PATIENCE_S)).text() == "in a while"
        for client in (two, three):
            await client.close()

    tell(cluster(tmp_path, 3), story)


def test_a_wanted_offer_stays_wanted_when_an_inner_node_dies(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        topologies = await cluster.one_tree()
        victim = inner_of(topologies)
        alive = [name for name in cluster.names if name != victim]
        clients: dict[str, Client] = {name: await connect(cluster[name].url) for name in alive}
        heard = {name: await clients[name].subscribe("a/#") for name in alive[1:]}
        publisher = clients[alive[0]]
        offer = await publisher.advertise("a")
        changes: list[bool] = []
        offer.on_change(changes.append)
        cluster[victim].kill()
        missing = set(heard)
        number = 0
        while missing:
            number += 1
            await publisher.publish("a/x", str(number))
            for name in list(missing):
                with suppress(WorldError):  # not there yet
                    await heard[name].next(0.05)
                    missing.discard(name)
        await asyncio.sleep(4)  # longer than anything waits after a loss
        assert offer.wanted and changes in ([], [False, True])
        await publisher.publish("a/x", "last")
        for subscription in heard.values():
            while (await subscription.next(PATIENCE_S)).text() != "last":
                pass
        for client in clients.values():
            await client.close()

    tell(cluster(tmp_path, 5), story)


def test_nodes_that_do_not_agree_refuse_each_other(tmp_path: Path) -> None:
    ports = free_ports(2)
    join = ["--join", f"127.0.0.1:{ports[0]}"]
    nodes = [
        Node(tmp_path, "on", ports[0], arguments=["--advertisements", "on"]),
        Node(tmp_path, "off", ports[1], arguments=join),
    ]

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while "network-differs" not in nodes[0].log.read_text():
                await asyncio.sleep(0.05)
        assert "all nodes of a network must agree" in nodes[0].log.read_text()
        assert not (await nodes[1].topology())["links"]

    with Cluster(nodes) as both:
        asyncio.run(both.all_there())
        asyncio.run(story())
