"""Real nodes: transactions come to another node as a whole; what waits for one is shown."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from network.cluster import Cluster, Node, free_ports
from regraft import Client, RegraftError, connect

PATIENCE_S = 120.0
WHOLE = 200  # messages of a transaction,
BYTES = 5_000  # each, so that all of it is as large as the window
KILLS = 6


def two(folder: Path, *arguments: str) -> Cluster:
    ports = free_ports(2)
    join = ["--join", ",".join(f"127.0.0.1:{port}" for port in ports)]
    more = [*join, *arguments]
    return Cluster(
        Node(folder, f"n{number}", port, arguments=more)
        for number, port in enumerate(ports, start=1)
    )


async def known(url: str, home: str) -> None:
    """Until a node knows that another one has a mailbox."""
    deadline = time.monotonic() + PATIENCE_S
    async with await connect(url) as client:
        while time.monotonic() < deadline:
            rows = (await client.inspect("custody"))["rows"]
            if any(row["node"] == home and row["interests"] for row in rows):
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"{home} is not known")


async def transact(client: Client, over: asyncio.Event) -> int:
    """Publish transactions, one after the other; how many."""
    serial = 0
    while not over.is_set():
        async with client.transaction(timeout=PATIENCE_S) as tx:
            for n in range(WHOLE):
                await tx.publish("t", b"%d %d " % (serial, n) + b"." * BYTES)
        serial += 1
    return serial


async def whole(cluster: Cluster) -> None:
    await cluster.all_there()
    await cluster.one_tree()
    async with await connect(cluster["n2"].url) as client:
        await client.subscribe_durably("box", "t")
    await known(cluster["n1"].url, "n2")
    over = asyncio.Event()
    async with await connect(cluster["n1"].url) as client:
        task = asyncio.create_task(transact(client, over))
        for kill in range(KILLS):
            await asyncio.sleep(0.7 + 0.13 * kill)
            cluster["n2"].kill()
            cluster["n2"].start()
            await waiting_is_whole(cluster["n2"].url)
        over.set()
        count = await task
        deadline = time.monotonic() + PATIENCE_S
        while any(row.get("waiting", 1) for row in (await client.inspect("custody"))["rows"]):
            assert time.monotonic() < deadline, cluster.logs()
            await asyncio.sleep(0.2)
    async with await connect(cluster["n2"].url) as client:
        durable = await client.subscribe_durably("box", "t")
        found = [
            bytes((await durable.next(PATIENCE_S)).body).split()[:2] for _ in range(count * WHOLE)
        ]
    wanted = [[b"%d" % serial, b"%d" % n] for serial in range(count) for n in range(WHOLE)]
    assert found == wanted and count >= 2


async def waiting_is_whole(url: str) -> None:
    """Whatever a mailbox has when its node was killed, it has whole transactions."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with await connect(url, reconnect=False, connect_timeout=2.0) as client:
                rows = (await client.inspect("journal"))["rows"]
            break
        except RegraftError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    (row,) = [row for row in rows if row["name"] == "box"]
    assert row["waiting"] % WHOLE == 0, row


def test_a_transaction_is_whole_at_a_node_that_is_killed(tmp_path: Path) -> None:
    with two(tmp_path) as cluster:
        asyncio.run(whole(cluster))


# ------------------------------------------------------------------- who is away for long


def shell(*arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "REGRAFT_URL"}
    command = [sys.executable, "-m", "regraft", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


async def away(cluster: Cluster) -> None:
    url = cluster["n1"].url
    await cluster.all_there()
    await cluster.one_tree()
    async with await connect(cluster["n2"].url) as client:
        await client.subscribe_durably("box", "t")
    await known(url, "n2")
    cluster["n2"].kill()
    kept = 0
    async with await connect(url) as client:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await client.publish("t", b"." * 1000, persistent=True, confirm=True)
            except RegraftError as error:
                assert error.code.name == "mailbox-full", error
                break
            kept += 1
            assert time.monotonic() < deadline, "nothing was refused"
            await asyncio.sleep(0.01)
        assert await client.publish("u", b"for nobody", persistent=True, confirm=True) == 0
    shown: dict[str, Any] = json.loads(shell("custody", "list", "--json", "--url", url))
    (row,) = shown["rows"]
    assert (row["node"], row["waiting"], row["refused"]) == ("n2", kept, True), row
    assert row["bytes"] >= 50_000 and kept >= 40
    assert "n2" in shell("custody", "list", "--url", url)
    for words in ("regraft custody forget", "n2 are refused"):  # it looks once a second
        while words not in cluster["n1"].log.read_text():
            assert time.monotonic() < deadline, f"the log does not say: {words}"
            await asyncio.sleep(0.05)
    said = shell("custody", "forget", "n2", "--url", url)
    assert said.startswith("forgot node n2")
    assert json.loads(shell("custody", "list", "--json", "--url", url))["rows"] == []
    async with await connect(url) as client:
        await client.publish("t", b"taken again", persistent=True, confirm=True)


def test_what_waits_for_a_node_that_is_away_is_bounded_and_shown(tmp_path: Path) -> None:
    with two(tmp_path, "--limit", "home_bytes=50000") as cluster:
        asyncio.run(away(cluster))
