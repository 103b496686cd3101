"""Questions and contexts over several processes, and a node killed while replies are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from network.cluster import Cluster, inner_of
from regraft import Client, ReceivedMessage, connect, connect_blocking

NODES = 5
EACH = 4  # repliers at each node
STORY_S = 180.0
PATIENCE_S = 60.0


def tell(cluster: Cluster, story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(STORY_S):
            await cluster.all_there()
            await cluster.one_tree()
            await story(cluster)

    with cluster:
        asyncio.run(whole())


async def settled(asker: Client, repliers: int) -> None:
    """Wait until a question reaches all of them, and nothing is repaired any more."""
    while True:
        found = await (await asker.ask("ready", timeout=5)).all()
        if found.complete and len(found) == repliers:
            return
        await asyncio.sleep(0.1)


async def replier(url: str, name: str, gate: asyncio.Event, asked: set[str]) -> Client:
    client = await connect(url, client_id=name, reconnect=False)

    async def reply(message: ReceivedMessage) -> None:
        asked.add(name)
        if message.topic == "slow" and name.endswith("-3"):
            await gate.wait()
        await message.reply(name)

    for topic in ("ready", "slow"):
        await client.subscribe(topic, replies=True, callback=reply)
    return client


def test_an_inner_node_is_killed_while_replies_are_under_way(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        topologies = await cluster.one_tree()
        victim = inner_of(topologies)
        gate = asyncio.Event()
        asked: set[str] = set()
        names = [f"{node.name}-{n}" for node in cluster.nodes for n in range(EACH)]
        clients = {
            name: await replier(cluster[name.split("-")[0]].url, name, gate, asked)
            for name in names
        }
        home = next(name for name in cluster.names if name != victim)
        asker = await connect(cluster[home].url)
        await settled(asker, len(names))

        # Nobody dies: all come, and it is known that they are all.
        replies = await asker.ask("slow", timeout=PATIENCE_S)
        first = [(await replies.next(PATIENCE_S)).text() for _ in range(NODES * (EACH - 1))]
        assert not replies.complete and replies.more
        assert replies.expected == len(names)
        gate.set()
        found = await replies.all(PATIENCE_S)
        assert sorted([*first, *(reply.text() for reply in found)]) == sorted(names)
        assert found.complete

        # One dies while some have not replied: never complete, and it ends at once.
        gate.clear()
        asked.clear()
        replies = await asker.ask("slow", timeout=600)
        first = [(await replies.next(PATIENCE_S)).text() for _ in range(NODES * (EACH - 1))]
        cluster[victim].kill()
        gate.set()
        found = await replies.all(PATIENCE_S)
        got = [*first, *(reply.text() for reply in found)]
        assert len(got) == len(set(got)) and set(got) <= asked
        assert not found.complete and found.reason
        assert f"{victim}-3" not in got

        # The tree repairs itself, and all who are left reply again.
        rest = [name for name in names if not name.startswith(f"{victim}-")]
        await cluster.one_tree([name for name in cluster.names if name != victim])
        async with asyncio.timeout(PATIENCE_S):
            await settled(asker, len(rest))
        for client in (asker, *clients.values()):
            await client.close()

    tell(Cluster.on_loopback(tmp_path, NODES), story)


def test_contexts_and_the_blocking_client_over_several_nodes(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await asyncio.to_thread(block, cluster)

    def block(cluster: Cluster) -> None:
        first, last = cluster.nodes[0].url, cluster.nodes[-1].url
        with (
            connect_blocking(first) as shop,
            connect_blocking(last) as near,
            connect_blocking(last) as far,
        ):
            near.set_context({"floor": 1})
            far.set_context({"floor": 2})
            for client in (near, far):
                client.on("who", replies=True)(lambda m: m.reply(m.text()))
                client.subscribe("offers")
            while len(shop.ask("who", timeout=5).all()) < 2:
                pass  # until it is known there
            assert len(shop.ask("who", where="ctx.floor = 2", timeout=PATIENCE_S).all()) == 1
            shop.publish("offers", "cake", where="ctx.floor = 1")
            assert near.next(timeout=PATIENCE_S).text() == "cake"
            far.set_context({"floor": 1})
            near.set_context({})
            shop.publish("offers", "tea", where="ctx.floor = 1")
            assert far.next(timeout=PATIENCE_S).text() == "tea"
            assert near.pending() == 0
            with shop.ask("who", "me?", where="ctx.floor = 1", timeout=PATIENCE_S) as replies:
                assert [reply.text() for reply in replies] == ["me?"]
                assert (replies.complete, replies.expected, replies.more) == (True, 1, False)
            questions = shop.subscribe("late", replies=True)
            replies = shop.ask("late", timeout=PATIENCE_S)
            questions.next(PATIENCE_S).reply("from another thread")
            assert replies.next(PATIENCE_S).text() == "from another thread"

    tell(Cluster.on_loopback(tmp_path, 3), story)
