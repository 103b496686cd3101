"""Filters of an application in a network of processes, of which only some know them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from regraft import Client, connect
from tests.integration.network.cluster import Cluster, Node, free_ports
from tests.integration.network.filter_plugin import LongWords

MODULE = "tests.integration.network.filter_plugin"
ROOT = Path(__file__).parents[3]
BODIES = ["a", "bb", "ccc", "dd dddd", "e", "ffffff", "gg"]
PATIENCE_S = 30


async def interested(url: str, count: int) -> None:
    """Wait until a node was told so many interests by its neighbours."""
    async with await connect(url) as client:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                links = (await client.inspect("topology"))["links"]
                if sum(link["received"] for link in links) >= count:
                    return
                await asyncio.sleep(0.05)


async def texts(client: Client, letters: int, count: int) -> list[str]:
    subscription = next(iter(client._subscriptions.values()))
    return [(await subscription.next(PATIENCE_S)).text() for _ in range(count)]


def test_one_node_knows_the_filter_and_the_other_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ports = free_ports(3)
    seeds = f"127.0.0.1:{ports[0]}"
    # They stand in a row: knowing - ignorant - knowing.
    knows = ["--filters", MODULE]
    nodes = [
        Node(tmp_path, "first", ports[0], arguments=knows),
        Node(tmp_path, "middle", ports[1], arguments=["--parent", seeds]),
        Node(
            tmp_path,
            "last",
            ports[2],
            arguments=[*knows[:1], f"{MODULE}:LongWords", "--parent", f"127.0.0.1:{ports[1]}"],
        ),
    ]
    with Cluster(nodes) as cluster:
        asyncio.run(_talk(cluster))
        for name, expected in (("first", "long-words"), ("middle", "no filters")):
            shown = subprocess.run(
                [sys.executable, "-m", "regraft", "inspect", "filters", "-u", cluster[name].url],
                capture_output=True,
                text=True,
                check=True,
            )
            assert expected in shown.stdout


async def _talk(cluster: Cluster) -> None:
    await cluster.all_there()
    await cluster.one_tree()
    clients = {}
    for name, letters in (("first", 3), ("middle", 4), ("last", 2)):
        client = clients[name] = await connect(cluster[name].url)
        await client.subscribe("words/#", filter=LongWords(letters))
    await interested(cluster["first"].url, 1)
    await interested(cluster["last"].url, 1)
    await interested(cluster["middle"].url, 2)
    for name, client in clients.items():
        for body in BODIES:
            await client.publish(f"words/{name}", body)
    for name, letters in (("first", 3), ("middle", 4), ("last", 2)):
        wanted = sorted(
            body for body in BODIES if any(len(word) >= letters for word in body.split())
        )
        assert sorted(await texts(clients[name], letters, 3 * len(wanted))) == sorted(3 * wanted)
    async with asyncio.timeout(PATIENCE_S):  # nothing else comes
        for client in clients.values():
            await client.flush()
            assert client.pending() == 0
    rows = {name: (await clients[name].inspect("filters"))["rows"] for name in clients}
    assert rows["middle"] == []
    for name in ("first", "last"):
        (row,) = rows[name]
        assert row["evaluated"] > 0 and row["failed"] == 0
    (mine,) = clients["middle"]._subscriptions.values()
    assert mine.passed_by > 0  # type: ignore[attr-defined]
    (mine,) = clients["first"]._subscriptions.values()
    assert mine.passed_by == 0  # type: ignore[attr-defined]
    for client in clients.values():
        await client.close()


def test_a_node_that_cannot_have_a_filter_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "regraft", "serve", "-p", "0", "--data", str(tmp_path)]
    done = subprocess.run(
        [*command, "--filters", "no_such_module"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "filters: no_such_module cannot be had: ModuleNotFoundError" in done.stderr
