"""The worked examples of two phases: with SQLite, and with PostgreSQL where there is one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_reconnect import MortalNode

from regraft import LocalError, RegraftError, connect, connect_blocking

ROOT = Path(__file__).parents[2]
ORDERS = [{"item": item, "amount": n} for n, item in enumerate(["tea", "milk", "bread"], 1)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MortalNode]:
    one = MortalNode(tmp_path)
    try:
        asyncio.run(ready(one))
        yield one
    finally:
        one.end()


def address(node: MortalNode) -> str:
    return f"127.0.0.1:{node.port}"


async def ready(node: MortalNode) -> None:
    """Wait until a node answers that was just started."""
    async with asyncio.timeout(60):
        while True:
            with suppress(RegraftError):
                await (await connect(address(node))).close()
                return
            await asyncio.sleep(0.1)


async def place_orders(node: MortalNode) -> None:
    async with await connect(address(node)) as client:
        await client.create_queue("orders")
        for order in ORDERS:
            await client.publish("orders", json.dumps(order), persistent=True, confirm=True)


async def bills(node: MortalNode) -> list[str]:
    async with await connect(address(node)) as client:
        assert await client.in_doubt() == []
        assert [message async for message in client.browse("orders")] == []
        return [message.text() async for message in client.browse("bills")]


# Runs an example up to a line of it, and dies there without a word.
DIES = """
import os, runpy, sys
script, where, target = sys.argv[1:]
source = open(script).read()
assert source.count(where) == 1, where
source = source.replace(where, "__import__('os')._exit(9); " + where)
sys.argv = [script, target]
exec(compile(source, script, "exec"), {"__name__": "__main__"})
"""


def run(node: MortalNode, script: str, target: str, dies_at: str = "") -> str:
    path = str(ROOT / "examples" / script)
    command = [path, target] if not dies_at else ["-c", DIES, path, dies_at, target]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "REGRAFT_URL": address(node)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (9 if dies_at else 0), done.stderr
    return done.stdout


def crashes(
    node: MortalNode, script: str, target: str, points: list[str], rows: Callable[[], list[Any]]
) -> None:
    """Let it die at each of these places in turn, with the node or without; then finish."""
    asyncio.run(place_orders(node))
    for number, point in enumerate(points):
        run(node, script, target, dies_at=point)
        if number % 2:
            node.kill()
            node.start()
            asyncio.run(ready(node))
    run(node, script, target)
    wanted = sorted((order["item"], order["amount"]) for order in ORDERS)
    assert sorted(rows()) == wanted
    assert sorted(asyncio.run(bills(node))) == sorted(f"{n} of {item}" for item, n in wanted)


def test_sqlite(node: MortalNode, tmp_path: Path) -> None:
    target = str(tmp_path / "orders.db")
    points = [
        "await tx.prepare(gid)",
        'database.execute("BEGIN")',
        'database.execute("COMMIT")',
        'database.execute("DELETE FROM decided',
    ]
    crashes(
        node,
        "orders_sqlite.py",
        target,
        points,
        lambda: sqlite3.connect(target).execute("SELECT item, amount FROM orders").fetchall(),
    )


def test_without_asyncio(node: MortalNode) -> None:
    with connect_blocking(address(node)) as client:
        client.create_queue("in")
        client.create_queue("out")
        client.publish("in", "a", persistent=True, confirm=True)
        queue = client.queue("in")
        with pytest.raises(ValueError), client.transaction() as tx:
            queue.next(timeout=30).accept()
            tx.publish("out", "lost")
            raise ValueError
        with client.transaction() as tx:
            message = queue.next(timeout=30)
            with pytest.raises(LocalError, match="not-supported"):
                message.reject("no")
            message.accept()
            client.publish("out", message.text(), persistent=True)
            tx.prepare("g")
            assert [row["gid"] for row in client.in_doubt()] == ["g"]
        assert client.outcome("g") == "committed" and client.decide("g", True) == "committed"
        assert [one.text() for one in client.browse("out")] == ["a"]
        assert [one.text() for one in client.browse("in")] == []


def what_is_missing() -> str:
    """Why PostgreSQL cannot be tried here; empty if it can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'psycopg[binary]'"
    if not programs():
        return "there is no PostgreSQL: apt-get install postgresql"
    return ""


def programs() -> Path | None:
    """Where initdb and postgres are."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """A server of its own, that may prepare transactions."""
    if missing := what_is_missing():
        assert not os.environ.get("REGRAFT_REQUIRE_FAULTS"), missing
        print(missing)
        pytest.skip(missing)
    folder = programs()
    assert folder is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    data = tmp_path / "postgres"
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # it does not run as root
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        for parent in (tmp_path, *tmp_path.parents):
            if parent.stat().st_mode & 0o001 == 0 and parent.owner() == "root":
                parent.chmod(parent.stat().st_mode | 0o011)
        as_user = {"user": "postgres", "group": "postgres", "cwd": data}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [folder / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"],
        check=True,
        **quiet,
        **as_user,
    )
    settings = [f"-p{port}", "-h127.0.0.1", "-k", "", "-cmax_prepared_transactions=10"]
    server = subprocess.Popen([folder / "postgres", "-D", data, *settings], **quiet, **as_user)
    try:
        target = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        wait_for(target)
        yield target
    finally:
        server.terminate()
        server.wait()


def wait_for(target: str) -> None:
    import time

    import psycopg

    for _ in range(600):
        try:
            psycopg.connect(target).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("PostgreSQL does not start")


def test_postgres(node: MortalNode, postgres: str) -> None:
    import psycopg

    def rows() -> list[Any]:
        with psycopg.connect(postgres) as database:
            assert database.execute("SELECT gid FROM pg_prepared_xacts").fetchall() == []
            return database.execute("SELECT item, amount FROM orders").fetchall()

    points = [
        "await tx.prepare(gid)",
        'database.execute("BEGIN")',
        "database.execute(f\"PREPARE TRANSACTION '{gid}'\")",
        "database.execute(f\"COMMIT PREPARED '{gid}'\")",
        'database.execute("DELETE FROM decided',
    ]
    crashes(node, "orders_postgres.py", postgres, points, rows)
