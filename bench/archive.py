"""The archive: how fast streams become Parquet files, and how fast one finds something in them.

    python -m bench.archive [--quick] [--rows N] [--folder FOLDER]

A node holds the messages; Spark runs beside it with two threads (`local[2]`). Messages have a topic
of 13, two attributes and a JSON body. They are archived in batches, compacted, searched by a
selector and by id, and counted: all of them must be there, once. The folder goes away with the run;
10 million messages need about 4 GB there.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from bench import report
from bench.pipeline import end_java, serve
from bench.servers import Neighbours, free_ports
from regraft.pipeline import column, session
from regraft.pipeline.archive import Archive, verify
from regraft.pipeline.compaction import compact
from regraft.pipeline.link import Link
from regraft.pipeline.sink import Writer
from regraft.wire import bulk

FULL, QUICK = 10_000_000, 300_000
BATCH = 2_000_000
FILLED = 100_000  # messages that the node gets at a time
SELECTOR = "price > 200 AND symbol = 'k5'"
SAMPLE = 20_000
SEARCHES = 3
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def processor_s() -> float:
    """What this process and all that it started have used so far: Java, workers, the node."""
    used = 0.0
    me = psutil.Process()
    for one in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def seconds(job: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = job()
    return time.perf_counter() - began, result


def fill(url: str, rows: int) -> None:
    """Publish messages as a sink would, each with an id of its own."""
    schema = StructType([
        StructField("topic", StringType()), StructField("body", StringType()),
        StructField("price", DoubleType()), StructField("symbol", StringType()),
    ])  # fmt: skip
    writer = Writer(schema, {})
    for batch, start in enumerate(range(0, rows, FILLED)):
        numbers = range(start, min(rows, start + FILLED))
        columns = [
            pa.array([f"ticks/{n % 13}" for n in numbers]),
            pa.array([f'{{"n":{n},"sev":"WARN"}}' for n in numbers]),
            pa.array([n % 1000 / 4 for n in numbers]),
            pa.array([f"k{n % 97}" for n in numbers]),
        ]
        some = pa.RecordBatch.from_arrays(columns, names=schema.names)
        with Link(url) as link:
            link.stage(bulk.Stage("fill", batch, 0, "a"))
            for frames in writer.frames(iter([some]), 1 << 20, batch << 40, batch):
                link.send(frames)
            done = link.staged()
        with Link(url) as link:
            link.commit(bulk.Parts("fill", batch, [(0, "a", done.size, done.messages)]))


def json_bytes(archive: Archive, rows: int) -> float:
    """How long all messages would be as lines of JSON, from a sample of them."""
    wanted = ("sequence", "timestamp_us", "topic", "id", "attributes", "json")
    frame = archive.frame(archive.files()[:1]).select(*wanted).limit(SAMPLE)
    lines = frame.select(F.to_json(F.struct("*")).alias("line")).agg(
        F.sum(F.octet_length("line") + 1), F.count("*")
    )
    size, count = lines.collect()[0]
    return size / max(count, 1) * rows


class Searches:
    """Looking for something in an archive."""

    def __init__(self, archive: Archive, rows: int) -> None:
        self.archive, self.rows = archive, rows

    def selector(self) -> tuple[float, int]:
        found = [
            seconds(lambda: self.archive.frame().where(column(SELECTOR)).count())
            for _ in range(SEARCHES)
        ]
        return self.rows / min(one for one, _ in found), found[0][1]

    def ids(self) -> float:
        """Three messages, each from another place; the middle one of their times."""
        taken = []
        for number in range(SEARCHES):
            files = self.archive.files()
            file = files[number * (len(files) - 1) // max(1, SEARCHES - 1)]
            row = self.archive.frame([file]).select("id", "sequence").limit(1).collect()[0]
            took, found = seconds(
                lambda row=row: self.archive.frame().where(F.col("id") == row.id).collect()
            )
            assert [one.sequence for one in found] == [row.sequence], (row, found)
            taken.append(took)
        return statistics.median(taken)


def measure(place: Path, rows: int) -> dict[str, float]:
    (port,) = free_ports(1)
    url = f"127.0.0.1:{port}"
    node = serve(place / "node", port)
    try:
        fill(url, rows)
        say("the node is filled")
        spark = session("bench", "local[2]", SETTINGS)
        archive = Archive.open(spark, str(place / "warm"), make=True)
        archive.take(url, "ticks/#", batch_rows=max(rows // 20, 1), say=say, most=1)
        archive = Archive.open(spark, str(place / "archive"), make=True)
        used = [processor_s()]
        done = archive.take(url, "ticks/#", batch_rows=min(BATCH, max(1, rows // 2)), say=say)
        used.append(processor_s())
    finally:
        node.terminate()
        node.wait(30)
    used.append(processor_s())
    compacted = compact(archive, say=say)
    used.append(processor_s())
    assert done.rows == compacted.rows == rows, (done.rows, compacted.rows, rows)
    search = Searches(archive, rows)
    scan, matched = search.selector()
    used.append(processor_s())
    lookup = search.ids()
    proof_s, proofs = seconds(lambda: verify(archive))
    assert all(proof.well for proof in proofs), proofs
    size = sum(file.size for file in archive.state.files)
    found = {
        "archived, M/s": rows / done.seconds / 1e6,
        "processor time of that, us a message": (used[1] - used[0]) / rows * 1e6,
        "compacted, M/s": rows / compacted.seconds / 1e6,
        "processor time of it, us a message": (used[3] - used[2]) / rows * 1e6,
        "selector scan, M rows/s": scan / 1e6,
        "processor time of one, us a row": (used[4] - used[3]) / SEARCHES / rows * 1e6,
        "found by the selector": matched,
        "one id, s": lookup,
        "proved, M rows/s": rows / proof_s / 1e6,
        "bytes a message": size / rows,
        "bytes of its JSON line": json_bytes(archive, rows) / rows,
        "files": len(archive.state.files),
    }
    end_java(spark)
    return found


def judge(found: dict[str, float], rows: int) -> Iterator[report.Goal]:
    share = found["bytes a message"] / found["bytes of its JSON line"]
    one_id = report.below(f"one id in {rows:,}", 2, "s", found["one id, s"])
    goals = (
        report.at_least("archived", 0.25, "M events/s", found["archived, M/s"]),
        report.at_least("compacted", 0.5, "M events/s", found["compacted, M/s"]),
        report.at_least("selector scan", 2, "M rows/s", found["selector scan, M rows/s"]),
        one_id if rows <= FULL else report.told(one_id),  # the goal is about ten million
        report.below("size beside JSON lines", 1, "of it", share),
    )
    # Of few messages one sees how long a job of Spark takes to begin, and little else.
    yield from goals if rows >= FULL else map(report.told, goals)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--folder", help="where to make a folder; default: the system's")
    options = parser.parse_args(argv)
    rows = options.rows or (QUICK if options.quick else FULL)
    place = Path(tempfile.mkdtemp(prefix="regraft-bench-", dir=options.folder))
    neighbours = Neighbours()
    try:
        found = measure(place, rows)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    table = [(name, f"{value:,.2f}") for name, value in found.items()]
    print(report.table((f"{rows:,} messages", ""), table, words=1))
    return report.finish("archive", list(judge(found, rows)), neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
