"""Transactions a second: take so many messages from a queue and publish as many, all or nothing.

    python -m bench.transactions [--quick] [--only regraft] [--rounds 3]

Each takes messages of 100 bytes from a queue and puts them behind the others there, in units of 1,
10 and 1,000, one unit after the other, each safe on disk before the next begins: Regraft in
transactions; RabbitMQ by publishing, waiting for all confirmations, and acknowledging then, which
is no transaction but the best that is usual; PostgreSQL with a table as a queue (SKIP LOCKED).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import journal_node, report
from bench.durable_servers import RABBITMQ, rabbitmq, remark, scratch, started
from bench.report import Goal
from bench.servers import REGRAFT, ROOT, AbsentError, Neighbours, Server, free_ports

POSTGRES = "postgresql"
OPERATIONS = (1, 10, 1000)
BODY = b"x" * 100
WAITING = 4000  # messages in the queue
WARM_SECONDS = 0.5

Unit = Callable[[int], Awaitable[None]]  # does one of so many operations


# ------------------------------------------------------------------------------ regraft


@contextlib.asynccontextmanager
async def regraft_unit(server: Server) -> Any:
    import regraft

    async with await regraft.connect(f"127.0.0.1:{server.port}") as client:
        await client.create_queue("bench")
        await client.purge("bench")
        await client.publish_many("bench", [BODY] * WAITING, persistent=True, confirm=True)
        async with client.queue("bench", in_flight=WAITING) as queue:

            async def unit(operations: int) -> None:
                async with client.transaction() as tx:
                    for _ in range(operations):
                        message = await queue.next()
                        await tx.publish("bench", message.content)
                        await message.accept()

            yield unit


# ----------------------------------------------------------------------------- RabbitMQ


@contextlib.asynccontextmanager
async def rabbitmq_unit(server: Server) -> Any:
    if find_spec("pika") is None:
        raise AbsentError("pika is not installed (pip install pika)")
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection

    loop = asyncio.get_running_loop()

    def asked(call: Callable[..., Any], *args: Any, **more: Any) -> asyncio.Future[Any]:
        """The answer to a call that wants a callback."""
        future = loop.create_future()
        name = more.pop("as_", "callback")
        call(*args, **more, **{name: lambda *got: future.done() or future.set_result(got)})
        return future

    opened = loop.create_future()
    parameters = pika.ConnectionParameters("127.0.0.1", server.port)
    connection = AsyncioConnection(parameters, on_open_callback=opened.set_result)
    await opened
    (channel,) = await asked(connection.channel, as_="on_open_callback")
    await asked(channel.queue_declare, "bench", durable=True)
    await asked(channel.queue_purge, "bench")
    published = confirmed = 0
    news = asyncio.Event()

    def confirm(frame: Any) -> None:
        nonlocal confirmed
        confirmed = max(confirmed, frame.method.delivery_tag)
        news.set()

    persistent = pika.BasicProperties(delivery_mode=2)

    async def publish(bodies: list[bytes]) -> None:
        nonlocal published
        for body in bodies:
            channel.basic_publish("", "bench", body, persistent)
        published += len(bodies)
        while confirmed < published:
            news.clear()
            await news.wait()

    channel.confirm_delivery(confirm)
    await publish([BODY] * WAITING)
    arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    await asked(channel.basic_qos, prefetch_count=WAITING)
    channel.basic_consume(
        "bench", lambda _, method, __, body: arrived.put_nowait((method.delivery_tag, body))
    )

    async def unit(operations: int) -> None:
        got = [await arrived.get() for _ in range(operations)]
        await publish([body for _, body in got])
        channel.basic_ack(got[-1][0], multiple=True)

    yield unit
    connection.close()
    await asyncio.sleep(0.1)


# --------------------------------------------------------------------------- PostgreSQL


def postgres_programs() -> Path:
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if found is None and not folders:
        raise AbsentError("postgresql is not installed (apt-get install postgresql)")
    return folders[-1] if folders else Path(str(found)).parent


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Server]:
    """A server of its own, as it comes: every commit is synced."""
    programs = postgres_programs()
    if find_spec("psycopg") is None:
        raise AbsentError("psycopg is not installed (pip install 'psycopg[binary]')")
    (port,) = free_ports(1)
    data = folder / "data"
    data.mkdir(parents=True)
    front: list[str] = []
    if os.geteuid() == 0:  # it does not run as root
        shutil.chown(data, "postgres", "postgres")
        front = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        for parent in data.parents:
            with contextlib.suppress(OSError):
                parent.chmod(parent.stat().st_mode | 0o011)
    init = [*front, str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
    made = subprocess.run(init, capture_output=True, text=True, check=False)
    if made.returncode:
        raise AbsentError(f"initdb failed: {made.stderr[-200:]}")
    line = [*front, str(programs / "postgres"), "-D", str(data), f"-p{port}", "-h127.0.0.1", "-k"]
    with started(POSTGRES, [*line, ""], port, folder / "server") as server:
        yield server


TAKE = """
DELETE FROM queue WHERE id IN
    (SELECT id FROM queue ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %s) RETURNING body
"""
PUT = "INSERT INTO queue (body) SELECT unnest(%s::bytea[])"


@contextlib.asynccontextmanager
async def postgres_unit(server: Server) -> Any:
    import psycopg

    target = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    for _ in range(100):
        try:
            database = psycopg.connect(target)
            break
        except psycopg.OperationalError:
            await asyncio.sleep(0.1)
    database.execute("CREATE TABLE IF NOT EXISTS queue (id bigserial PRIMARY KEY, body bytea)")
    database.execute("TRUNCATE queue")
    database.execute(PUT, [[BODY] * WAITING])
    database.commit()

    async def unit(operations: int) -> None:
        rows = database.execute(TAKE, [operations]).fetchall()
        assert len(rows) == operations
        database.execute(PUT, [[row[0] for row in rows]])
        database.commit()

    yield unit
    database.close()


# ---------------------------------------------------------------------------- measuring

WAYS: dict[str, tuple[Callable[[Path], Any], Callable[[Server], Any]]] = {
    REGRAFT: (journal_node.node, regraft_unit),
    RABBITMQ: (rabbitmq, rabbitmq_unit),
    POSTGRES: (postgres, postgres_unit),
}


@dataclass
class Results:
    """Transactions a second, by operations and way, one for each round."""

    rates: dict[tuple[int, str], list[float | None]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


async def measure(
    open_unit: Callable[[Server], Any], server: Server, seconds: float
) -> list[float]:
    """How many units a second, for each size."""
    found = []
    async with open_unit(server) as unit:
        for operations in OPERATIONS:
            until = time.perf_counter() + WARM_SECONDS
            while time.perf_counter() < until:
                await unit(operations)
            began = time.perf_counter()
            done = 0
            while time.perf_counter() < began + seconds:
                await unit(operations)
                done += 1
            found.append(done / (time.perf_counter() - began))
    return found


def run_round(
    folder: Path, names: list[str], seconds: float, results: Results, number: int
) -> None:
    for name in names:
        if name in results.absent:
            continue
        start, open_unit = WAYS[name]
        rates: list[float | None] = [None] * len(OPERATIONS)
        try:
            with start(folder / f"{name}-{number}") as server:
                rates = [*asyncio.run(measure(open_unit, server, seconds))]
        except AbsentError as error:
            results.absent[name] = str(error)
        except Exception as error:  # the others go on
            results.faults.append(f"round {number}, {name}: {type(error).__name__}: {error}")
        for operations, rate in zip(OPERATIONS, rates, strict=True):
            results.rates.setdefault((operations, name), []).append(rate)


def ratios(results: Results, operations: int, other: str) -> list[float]:
    ours = results.rates.get((operations, REGRAFT), [])
    theirs = results.rates.get((operations, other), [])
    return report.ratios(ours, theirs) if len(ours) == len(theirs) else []


def show(results: Results, names: list[str]) -> None:
    rows = []
    for operations in OPERATIONS:
        for name in names:
            found = [rate for rate in results.rates.get((operations, name), []) if rate]
            middle = report.median(found)
            rows.append(
                [
                    f"{operations:,}",
                    name,
                    report.spread(found, 0),
                    "-" if middle is None else f"{middle * operations:,.0f}",
                    "" if name == REGRAFT else report.spread(ratios(results, operations, name)),
                ]
            )
    head = ["operations", "way", "transactions/s (range)", "messages/s", "regraft is x"]
    print(report.table(head, rows))


def goals(results: Results, names: list[str]) -> list[Goal]:
    found = []
    for other in (RABBITMQ, POSTGRES):
        for operations in OPERATIONS:
            name = f"{operations} operations, x {other}"
            ratio = report.median(ratios(results, operations, other)) if other in names else None
            goal = report.at_least(name, 1, "x", ratio)
            broken = any(REGRAFT in fault for fault in results.faults)
            found.append(report.missed(goal) if broken else goal)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", default="", help="ways whose names have this in them")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on a real disk")
    given = parser.parse_args()
    rounds = given.rounds or (1 if given.quick else 3)
    names = [name for name in WAYS if given.only in name]
    results = Results()
    neighbours = Neighbours()
    with scratch(given.folder) as folder:
        notes = remark(folder)
        for number in range(1, rounds + 1):
            run_round(folder, names, 2.0 if given.quick else 5.0, results, number)
    show(results, names)
    notes += [f"{name} is absent: {why}" for name, why in results.absent.items()]
    notes += results.faults
    notes += neighbours.remark()
    return report.finish("transactions", goals(results, names), notes)


if __name__ == "__main__":
    sys.exit(main())
