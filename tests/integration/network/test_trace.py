"""Traces over several processes: in the client, in the shell, and with a node that dies."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from network.cluster import Cluster, leaf_of
from regraft import Client, connect, connect_blocking

NODES = 4
STORY_S = 180.0
PATIENCE_S = 30.0


def tell(cluster: Cluster, story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(STORY_S):
            await cluster.all_there()
            await cluster.one_tree()
            await story(cluster)

    with cluster:
        asyncio.run(whole())


async def shell(url: str, *words: str) -> tuple[int, str, str]:
    """What `regraft trace` says."""
    command = [sys.executable, "-m", "regraft", "trace", *words, "-u", url]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    done = await asyncio.to_thread(run)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


async def settled(asker: Client, topic: str, names: set[str]) -> None:
    """Wait until a message would come to all of them, and nothing is repaired any more."""
    while True:
        found = await asker.who(topic, attributes={"n": 9})
        if found.complete and {row["client"] for row in found.receivers} == names:
            return
        await asyncio.sleep(0.1)


def test_a_message_is_followed_and_explained_at_all_nodes(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        clients = []
        for node in cluster.nodes:
            client = await connect(node.url, client_id=f"at-{node.name}", reconnect=False)
            clients.append((client, await client.subscribe("orders/#", where="n > 5")))
        picky = await connect(cluster.nodes[-1].url, client_id="picky")
        await picky.subscribe("orders/eu", where="n > 100")
        home = cluster.nodes[0].url
        asker = await connect(home)
        names = {f"at-{node.name}" for node in cluster.nodes}
        await settled(asker, "orders/eu", names)

        # Without publishing anything.
        found = await asker.who("orders/eu", attributes={"n": 9})
        assert len(found.reports) == NODES and not found.missing
        assert {row["at"] for row in found.receivers} == set(cluster.names)
        assert all(heard.pending() == 0 for _, heard in clients)

        # Published and followed, behind what came before it.
        await asker.publish("orders/eu", "first", attributes={"n": 9})
        traced = await asker.trace("orders/eu", "second", attributes={"n": 9})
        assert {row["client"] for row in traced.receivers} == names
        for _, heard in clients:
            texts = [(await heard.next(PATIENCE_S)).text() for _ in range(2)]
            assert texts == ["first", "second"]

        # Why somebody at another node does not get it.
        why = await asker.why("orders/eu", client="picky", attributes={"n": 9})
        assert not why.gets and why.subject[0]["at"] == cluster.nodes[-1].name
        assert why.subject[0]["culprits"][0]["values"] == {"n": "9 (number)"}
        assert (await asker.why("orders/eu", client="picky", attributes={"n": 101})).gets

        # How its subscription travelled.
        (travelled,) = await asker.trace_subscription(client="picky")
        assert len(travelled.reports) == NODES and travelled.complete
        told = [
            row["reason"]
            for report in travelled.reports
            if report["node"] == travelled.home
            for row in report["told"]
        ]
        assert told and set(told) == {"covered"}

        def block() -> None:
            with connect_blocking(home) as client:
                assert len(client.who("orders/x", attributes={"n": 6}).receivers) == NODES
                assert not client.why("orders/eu", client="picky", attributes={"n": 1}).gets
                assert client.trace("nobody/here").receivers == []
                assert len(client.trace_subscription(client="picky")) == 1

        await asyncio.to_thread(block)
        await in_the_shell(home, names)
        for client, _ in clients:
            await client.close()
        await picky.close()
        await asker.close()

    tell(Cluster.on_loopback(tmp_path, NODES), story)


async def in_the_shell(url: str, names: set[str]) -> None:
    code, out, err = await shell(url, "who", "orders/eu", "--set", "n=9")
    assert code == 0 and f"{NODES} receivers at {NODES} nodes" in err
    assert all(f"-> {name}  subscription 1 to orders where n > 5" in out for name in names)
    assert "by filter orders where n > 5" in out
    code, out, err = await shell(url, "publish", "orders/eu", "x", "--set", "n=9", "--json")
    assert code == 0 and json.loads(out)["complete"] and len(json.loads(out)["reports"]) == NODES
    code, out, err = await shell(url, "why", "orders/eu", "-s", "n=9", "--client", "picky")
    assert code == 1 and "n > 100 is false: n is 9 (number)" in out
    code, out, err = await shell(url, "why", "orders/eu", "-s", "n=900", "--client", "picky")
    assert code == 0 and "gets it" in out
    code, out, err = await shell(url, "subscription", "--client", "picky")
    assert code == 0 and "takes all of this and more: orders where n > 5" in out
    code, out, err = await shell(url, "why", "orders/eu", "--client", "nobody")
    assert code == 1 and "client nobody has no subscription anywhere" in out
    code, out, err = await shell(url, "why", "orders/eu")
    assert code == 2 and "--client ID, or --durable NAME" in err


def test_a_node_that_says_nothing_is_named(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        topologies = await cluster.one_tree()
        victim = leaf_of(topologies)
        home = next(name for name in cluster.names if name != victim)
        clients = [
            await connect(node.url, client_id=f"at-{node.name}", reconnect=False)
            for node in cluster.nodes
        ]
        for client in clients:
            await client.subscribe("a")
        asker = await connect(cluster[home].url)
        await settled(asker, "a", {f"at-{name}" for name in cluster.names})
        cluster[victim].signal(signal.SIGSTOP)  # it hangs: it is asked, and cannot answer
        try:
            found = await asker.who("a", timeout=1.0)
            assert not found.complete and found.missing == [victim]
            code, _, err = await shell(cluster[home].url, "who", "a", "-t", "0.5")
            assert code == 1
            assert "incomplete" in err
        finally:
            cluster[victim].signal(signal.SIGCONT)
        for client in (*clients, asker):
            await client.close()

    tell(Cluster.on_loopback(tmp_path, 3), story)
