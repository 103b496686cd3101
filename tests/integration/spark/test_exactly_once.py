"""Exactly once, with drivers and executors that are killed: rows out are messages in, none twice.

REGRAFT_DRIVER_KILLS=100 kills that many drivers.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest

from regraft.pipeline.link import Link
from regraft.wire import bulk
from spark.drivers import Driver
from spark.serving import Served, orders

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

KILLS = int(os.environ.get("REGRAFT_DRIVER_KILLS", "5"))
COUNT = 20_000
PER_BATCH = COUNT // (20 * KILLS)  # so few that no driver comes to the end
JOB = Path(__file__).with_name("job.py")


def copied(node: Served) -> list[int]:
    """What stands in the other stream."""
    schema = pa.schema([("n", pa.int64())])
    with Link(node.url) as link:
        request = bulk.Read("", "copies", [("n", "bigint")], start=1, end=node.next("copies"))
        return sorted(row["n"] for batch in link.read(request, schema) for row in batch.to_pylist())


def test_drivers_that_are_killed_at_any_moment(tmp_path: Path) -> None:
    source = random.Random(20261116)
    node = Served(tmp_path / "node")
    checkpoint = tmp_path / "checkpoint"
    drivers: list[Driver] = []

    def prepare(rows: int) -> None:
        drivers.append(Driver(node, checkpoint, "local[2]", str(rows), job=JOB))

    try:
        node.publish(orders(0, COUNT))
        prepare(PER_BATCH)
        for left in reversed(range(KILLS)):
            driver = drivers[0]
            driver.begin()
            prepare(PER_BATCH if left else COUNT)  # Java starts meanwhile
            assert driver.wait_for("started")
            if source.random() < 0.7:
                assert driver.wait_for("batch")
            time.sleep(source.uniform(0, 1.5))
            drivers.pop(0).kill()
        before = len(copied(node))
        (last,) = drivers
        last.begin()
        last.end()
        drivers.clear()
        rows = copied(node)
        print(f"{KILLS} drivers killed, {before} rows before the last one, {len(rows)} in the end")
        assert rows == list(range(COUNT))
        assert 0 < before < COUNT  # or no driver was killed in the middle
    finally:
        for driver in drivers:
            driver.kill()
        node.kill()


def executors(driver: Driver) -> list[int]:
    """The executors of a driver: those Java processes of its session that say so."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                if os.getsid(int(path.name)) == driver.popen.pid and any(
                    b"CoarseGrainedExecutorBackend" in word for word in words
                ):
                    found.append(int(path.name))
            except OSError:
                continue
    return sorted(found)


def test_an_executor_that_is_lost(tmp_path: Path) -> None:
    node = Served(tmp_path / "node")
    try:
        node.publish(orders(0, COUNT))
        cluster = "local-cluster[2,1,768]"
        driver = Driver(node, tmp_path / "checkpoint", cluster, str(COUNT // 8), job=JOB)
        driver.begin()
        assert driver.wait_for("batch")
        alive = [
            pid for pid in executors(driver) if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(alive) >= 2
        os.kill(alive[-1], signal.SIGKILL)
        driver.end()
        assert copied(node) == list(range(COUNT))
    finally:
        node.kill()
