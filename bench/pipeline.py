"""Spark and a node: how fast streams are read and written, and what live deliveries notice of it.

    python -m bench.pipeline [--quick] [--rows N] [--rounds N] [--parts sink,latency]

Everything runs on one machine, Spark with two threads (`local[2]`) and at a lower priority than the
node, as if it were elsewhere. The same rows are read from the node, and from Parquet and JSON files
that Spark made of them. What counts is the best of all rounds: what disturbs makes it slower; what
that one took of processors stands beside it.
`one batch, repeated` is a source that does nothing: no source written in Python gets more of Spark.
`first` is what a job finds that begins with a new Java and reads once.

Live deliveries are measured three times while Spark reads: from the node, with the two on different
processors, as if Spark were elsewhere; the same on the same processors, of which Spark only gets
what is left; and there again, while Spark reads files and has nothing to do with the node.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import regraft
from bench import report
from bench.servers import Neighbours, free_ports
from regraft.kernels.outbox import Outbox
from regraft.pipeline.link import Link
from regraft.wire import bulk

SCHEMA = (
    "sequence bigint, timestamp timestamp, topic string, symbol string, price double, body binary"
)
FULL, QUICK = 3_000_000, 400_000
NICENESS = 5
THREADS = 2  # of Spark
PER_TRIGGER = 500_000
PROBE_S = 6.0
WARM = 3  # reads before latency is measured, so that Java compiles no more
PARTS = ("batches", "streams", "sink", "first", "latency")
BATCH_ROWS = 100_000  # staged at a time, to fill the node


def serve(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "regraft", "serve", "-p", str(port), "--data", str(folder)]
    for stream in ("ticks/#", "out/#"):
        command += ["--retain", stream]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    for _ in range(400):
        with contextlib.suppress(regraft.RegraftError), Link(f"127.0.0.1:{port}"):
            return process
        time.sleep(0.05)
    raise SystemExit("the node does not start")


def fill(url: str, rows: int) -> None:
    """Publish rows, as a sink would."""
    for batch, start in enumerate(range(0, rows, BATCH_ROWS)):
        outbox = Outbox(1 << 20, batch)
        outbox.persistent = True
        outbox.sequence = batch << 32
        with Link(url) as link:
            link.stage(bulk.Stage("fill", batch, 0, "a"))
            for n in range(start, min(rows, start + BATCH_ROWS)):
                attributes = {"price": (n % 1000) / 4, "symbol": f"k{n % 97}"}
                body = b'{"n":%d,"sev":"WARN"}' % n
                outbox.put(b"ticks/%d" % (n % 13), body, attributes, 0, True, b"")
                if outbox.used > 1 << 18:
                    outbox.runs.clear()
                    link.send(outbox.take())
            link.send(outbox.take())
            done = link.staged()
        with Link(url) as link:
            link.commit(bulk.Parts("fill", batch, [(0, "a", done.size, done.messages)]))


def begin() -> Any:
    """A session."""
    from regraft.pipeline import session

    config = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": THREADS,
        "spark.sql.session.timeZone": "UTC",
    }
    return session("bench", f"local[{THREADS}]", config)


def read(spark: Any, url: str, schema: str = SCHEMA) -> Any:
    reader = spark.read.format("regraft").option("url", url)
    reader = reader.option("subscribe", "ticks/#").option("minPartitions", THREADS)
    return (reader.schema(schema) if schema else reader).load()


class Bench:
    """A node with rows, and a session."""

    def __init__(self, url: str, place: Path, rows: int, node: int) -> None:
        from pyspark import cloudpickle

        from bench import repeated

        os.nice(NICENESS)
        self.url, self.place, self.rows = url, place, rows
        self.spark = begin()
        cloudpickle.register_pickle_by_value(repeated)  # workers do not have it
        self.spark.dataSource.register(repeated.Repeated)
        self.trials = 0
        self.best: dict[str, float] = {}
        java = psutil.Process(self.spark.sparkContext._gateway.proc.pid)
        self.processes = java, psutil.Process(node)
        self.took: dict[str, tuple[float, ...]] = {}

    def read(self, schema: str = SCHEMA) -> Any:
        return read(self.spark, self.url, schema)

    def time(self, name: str, job: Callable[[], object], rows: int = 0) -> None:
        before, began = self.spent(), time.perf_counter()
        job()
        speed = (rows or self.rows) / (time.perf_counter() - began)
        self.note(name, speed, *(b - a for a, b in zip(before, self.spent(), strict=True)))

    def note(self, name: str, speed: float, *took: float) -> None:
        if speed > self.best.get(name, 0.0):
            self.best[name] = speed
            self.took[name] = took
        print(f"  {name}: {speed / 1e6:.2f} M rows/s", file=sys.stderr, flush=True)

    def spent(self) -> tuple[float, float, float]:
        """Seconds of processors up to now: Java, its workers, the node and what is beside it."""
        java, node = self.processes
        workers = sum(map(seconds, java.children(recursive=True)))
        return seconds(java), workers, sum(map(seconds, (node, *node.children(recursive=True))))

    def folder(self, name: str) -> str:
        self.trials += 1
        return str(self.place / f"{name}-{self.trials}")

    def files(self) -> None:
        """The same rows as files."""
        self.read().write.parquet(str(self.place / "parquet"))
        text = self.read().selectExpr("* except (body)", "cast(body AS string) AS body")
        text.write.json(str(self.place / "json"))

    def batches(self) -> None:
        spark = self.spark
        schema = self.read().schema
        sources = {
            "regraft": self.read(),
            "parquet": spark.read.schema(schema).parquet(str(self.place / "parquet")),
            "json": spark.read.schema(SCHEMA.replace("binary", "string")).json(
                str(self.place / "json")
            ),
        }
        for name, frame in sources.items():
            self.time(f"{name} -> noop", lambda f=frame: noop(f))
            self.time(
                f"{name} -> aggregate",
                lambda f=frame: (
                    f.groupBy("symbol").agg({"price": "avg", "sequence": "max"}).collect()
                ),
            )
            self.time(
                f"{name} -> parquet", lambda f=frame: f.write.parquet(self.folder("parquet-out"))
            )
        self.time("one batch, repeated -> noop", lambda: noop(self.repeated()))
        self.time("regraft, with the map -> noop", lambda: noop(self.read("")))
        self.time("regraft, a selector -> noop", lambda: noop(self.selected()))

    def repeated(self) -> Any:
        reader = self.spark.read.format("repeated").option("schema", SCHEMA)
        return reader.option("rows", self.rows).option("parts", 2 * THREADS).load()

    def selected(self) -> Any:
        reader = self.spark.read.format("regraft").option("url", self.url)
        reader = reader.option("subscribe", "ticks/#").option("minPartitions", THREADS)
        return reader.option("selector", "price > 200 AND symbol = 'k5'").schema(SCHEMA).load()

    def streams(self) -> None:
        reader = self.spark.readStream.format("regraft").option("url", self.url)
        reader = reader.option("subscribe", "ticks/#").option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", PER_TRIGGER).option("minPartitions", THREADS)
        frame = reader.schema(SCHEMA).load()
        self.time("stream -> noop", lambda: self.run(frame.writeStream.format("noop")))
        self.time(
            "stream -> parquet",
            lambda: self.run(
                frame.writeStream.format("parquet").option("path", self.folder("stream-out"))
            ),
        )
        rate = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", PER_TRIGGER)
        batches = max(1, self.rows // PER_TRIGGER)
        query = rate.load().writeStream.format("noop")
        self.time("rate source -> noop", lambda: self.some(query, batches), batches * PER_TRIGGER)

    def run(self, writer: Any) -> None:
        writer = writer.option("checkpointLocation", self.folder("checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def some(self, writer: Any, batches: int) -> None:
        query = writer.option("checkpointLocation", self.folder("checkpoint")).start()
        while len(query.recentProgress) < batches:
            time.sleep(0.01)
        query.stop()

    def sink(self) -> None:
        rows = self.rows // 2
        frame = self.spark.range(0, rows, 1, 2).selectExpr(
            "concat('out/', id % 13) AS topic", "concat('body ', id) AS body", "id AS n",
            "id / 4 AS price",
        )  # fmt: skip
        self.time("sink", lambda: self.write(frame), rows)

    def first(self) -> None:
        """The first read of a job, once from each; only the read is timed."""
        for name, where in (("regraft", self.url), ("parquet", str(self.place / "parquet"))):
            command = [sys.executable, "-m", "bench.pipeline", "--first", name, where]
            said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
            self.note(f"{name} -> noop, the first read", self.rows / float(said.split()[-1]))

    def write(self, frame: Any) -> None:
        frame.write.format("regraft").option("url", self.url).mode("append").save()


def first(name: str, where: str) -> None:
    """Read once with a new Java, and say how many seconds that took."""
    os.nice(NICENESS)
    spark = begin()
    began = time.perf_counter()
    noop(read(spark, where) if name == "regraft" else spark.read.schema(SCHEMA).parquet(where))
    took = time.perf_counter() - began
    end_java(spark)
    print(took)


def end_java(spark: Any) -> None:
    """So that what it used is ours, and not that of others."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


def seconds(process: psutil.Process) -> float:
    """What a process has used of processors; nothing if it is gone."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --------------------------------------------------------------------------- latency


async def probe(url: str, seconds: float) -> None:
    """Round trips through the node, one every two milliseconds: p50 and p99 in µs."""
    taken = []
    async with await regraft.connect(url) as client, await client.subscribe("ping") as mine:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter_ns()
            await client.publish("ping", b"x")
            await mine.next(timeout=10)
            taken.append((time.perf_counter_ns() - began) / 1000)
            await asyncio.sleep(0.002)
    taken.sort()
    print(report.percentile(taken, 0.5), report.percentile(taken, 0.99))


def probed(url: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.pipeline", "--probe", url, str(seconds)]

    def first() -> None:
        os.nice(-NICENESS) if os.geteuid() == 0 else None  # as the node, not as Spark

    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=first)


def threads_of(process: psutil.Process) -> list[int]:
    """The threads of a process, and of those that it has begun."""
    found = []
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found += [thread.id for thread in one.threads()]
    return found


def pin(threads: list[int], processors: set[int]) -> None:
    for thread in threads:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, processors)


def idle(threads: list[int]) -> None:
    """Let them run only where nothing else wants to.

    At a low priority alone they would keep their processor for milliseconds.
    """
    for thread in threads:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


class Trips:
    """Round trips through the node: p50 and p99, in microseconds, when nothing else is done, and
    while Spark does something."""

    def __init__(self, bench: Bench, node: int) -> None:
        self.bench, self.node = bench, psutil.Process(node)
        self.spark = psutil.Process(bench.spark.sparkContext._gateway.proc.pid)
        self.found: dict[str, tuple[float, float]] = {}

    def measure(self) -> None:
        every = os.sched_getaffinity(0)
        files = self.bench.spark.read.parquet(self._files())
        for _ in range(WARM):
            noop(self.bench.read())
        own, others = {min(every)}, every - {min(every)}
        if others:
            self._divide(own, others)
            self._trial("apart, quiet", None, own)
            self._trial("apart, Spark reads the node", self.bench.read, own)
            self._divide(every, every)
        self._trial("together, quiet", None, every)
        idle(threads_of(self.spark))
        self._trial("together, Spark reads the node", self.bench.read, every)
        self._trial("together, Spark reads files", lambda: files, every)

    def _files(self) -> str:
        place = self.bench.place / "parquet"
        if not place.exists():
            self.bench.read().write.parquet(str(place))
        return str(place)

    def _divide(self, own: set[int], others: set[int]) -> None:
        """The node has some processors, and what is beside it; Spark has the others."""
        pin(threads_of(self.node), own)
        pin(threads_of(self.spark), others)
        pin(threads_of_this(), others)

    def _trial(self, name: str, frame: Callable[[], Any] | None, processors: set[int]) -> None:
        process = probed(self.bench.url, PROBE_S)
        pin(threads_of(psutil.Process(process.pid)), processors)
        while frame is not None and process.poll() is None:
            noop(frame())
        out, _ = process.communicate()
        p50, p99 = map(float, out.split())
        self.found[name] = p50, p99

    def times(self, where: str) -> float | None:
        """How many times the p99 is that of the quiet."""
        quiet = self.found.get(f"{where}, quiet")
        busy = self.found.get(f"{where}, Spark reads the node")
        return busy[1] / quiet[1] if quiet and busy else None


def threads_of_this() -> list[int]:
    return [thread.id for thread in psutil.Process().threads()]


# ------------------------------------------------------------------------------ result


def judge(best: dict[str, float], trips: Trips | None) -> Iterator[report.Goal]:
    millions = {name: speed / 1e6 for name, speed in best.items()}
    for name, bound in (
        ("regraft -> noop", 1.5),
        ("stream -> noop", 0.6),
        ("stream -> parquet", 0.25),
        ("sink", 0.5),
    ):
        yield report.at_least(name, bound, "M rows/s", millions.get(name))
    for name, source, job, judged in (
        ("regraft beside parquet, a job's first read", "regraft", "noop, the first read", True),
        ("regraft beside parquet, Java warm", "regraft", "noop", True),
        ("a source that does nothing beside parquet", "one batch, repeated", "noop", False),
        ("regraft beside parquet, into an aggregate", "regraft", "aggregate", False),
        ("regraft beside parquet, into files", "regraft", "parquet", False),
    ):
        parquet = best.get(f"parquet -> {job}")
        share = best[f"{source} -> {job}"] / parquet if parquet else None
        goal = report.at_least(name, 0.7, "of its rows/s", share)
        yield goal if judged else report.told(goal)
    name = "p99 of live deliveries while Spark reads"
    yield report.below(f"{name} elsewhere", 2, "times", trips and trips.times("apart"))
    yield report.below(f"{name} here", 2, "times", trips and trips.times("together"))


def main(argv: list[str]) -> int:
    if argv[:1] == ["--probe"]:
        asyncio.run(probe(argv[1], float(argv[2])))
        return 0
    if argv[:1] == ["--first"]:
        first(*argv[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"there are {', '.join(PARTS)}")
    rows = options.rows or (QUICK if options.quick else FULL)
    rounds = options.rounds or (1 if options.quick else 3)
    place = Path(tempfile.mkdtemp(prefix="regraft-bench-"))
    (port,) = free_ports(1)
    process = serve(place / "data", port)
    neighbours = Neighbours()
    trips = None
    try:
        fill(f"127.0.0.1:{port}", rows)
        bench = Bench(f"127.0.0.1:{port}", place, rows, process.pid)
        noop(bench.read())  # Java warms up
        if {"batches", "first"} & set(parts):
            bench.files()
        for number in range(rounds):
            print(f"round {number + 1}", file=sys.stderr, flush=True)
            for part in PARTS[:-1]:
                if part in parts:
                    getattr(bench, part)()
        if "latency" in parts:
            trips = Trips(bench, process.pid)
            trips.measure()
        end_java(bench.spark)
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(place, ignore_errors=True)
    head = ("what", "M rows/s", "Java, s", "workers, s", "node, s")
    table = []
    for name, speed in bench.best.items():
        took = [f"{seconds:.2f}" for seconds in bench.took[name]] or [""] * 3
        table.append((name, f"{speed / 1e6:.2f}", *took))
    print(report.table(head, table))
    if trips is not None:
        lines = [(name, f"{p50:.0f}", f"{p99:.0f}") for name, (p50, p99) in trips.found.items()]
        print()
        print(report.table(("round trips", "p50, us", "p99, us"), lines))
    goals = judge(bench.best, trips)
    # Of few rows one sees how long a job of Spark takes to begin, and little else.
    goals = list(goals if rows >= FULL else map(report.told, goals))
    return report.finish("pipeline", goals, neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
