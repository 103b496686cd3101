"""100,000 selectors against a million archived messages, beside a join of Spark.

    python -m bench.backtest [--quick] [--events N] [--selectors N] [--no-join]

Four of five selectors ask for a symbol of 1,000, a band of prices and a quantity, the fifth for one
of 20 regions and a narrow band. What counts is the rate at which messages of the archive are
read and matched on two processors once each worker has built its index, which is told beside it:
the best of all rounds. The join is what one would write in Spark: equality on the symbol or region,
and the rest as a condition. Counts are compared with the reference on a sample.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from bench import report
from bench.archive import SETTINGS, say
from bench.pipeline import end_java
from bench.servers import Neighbours
from regraft.kernels.matching import Index
from regraft.kernels.plan import plan_of
from regraft.model.message import Message
from regraft.model.selector import Selector
from regraft.pipeline import session
from regraft.pipeline.archive import Archive
from regraft.pipeline.backtest import Matcher, Result, Work, backtest
from regraft.pipeline.dividing import arrow_schema_of
from regraft.pipeline.manifest import File, Held, Part
from regraft.pipeline.rows import untyped

EVENTS, SELECTORS = 1_000_000, 100_000
QUICK = (200_000, 20_000)
FILES = 4
GROUP = 125_000
JOINED = 100_000  # messages of the join
BEGIN_US = 1_794_800_000_000_000
FEW = (1_000, 1_000)  # messages and selectors of the sample
ROUNDS = 3


def selector(source: random.Random, number: int) -> tuple[Any, ...]:
    """What one asks for: symbol, region, prices from and to, quantity."""
    low = source.uniform(0, 1000)
    if number % 5:
        wide = source.uniform(1, 250)
        return f"S{source.randrange(1000)}", None, low, low + wide, source.randrange(1000)
    wide = source.uniform(0.1, 1.9)
    return None, f"R{source.randrange(20)}", low, low + wide, source.randrange(1000)


def text_of(one: tuple[Any, ...]) -> str:
    symbol, region, low, high, quantity = one
    anchor = f"symbol = '{symbol}'" if symbol else f"region = '{region}'"
    return f"{anchor} AND price BETWEEN {low!r} AND {high!r} AND quantity >= {quantity}"


def attributes_of(source: random.Random, count: int) -> pa.Array:
    """A column of maps."""
    schema = arrow_schema_of({})
    ordinals = pa.array([k for _ in range(count) for k in range(4)], pa.int32())
    keys = pa.array(["symbol", "region", "price", "quantity"]).take(ordinals)
    texts: list[str | None] = []
    floats: list[float | None] = []
    ints: list[int | None] = []
    for _ in range(count):
        texts += (f"S{source.randrange(1000)}", f"R{source.randrange(20)}", None, None)
        floats += (None, None, source.uniform(0, 1000), None)
        ints += (None, None, None, source.randrange(1000))
    kinds = schema.field("attributes").type.item_type
    none = {one.name: pa.nulls(4 * count, one.type) for one in kinds}
    filled = {
        "string": pa.array(texts),
        "float": pa.array(floats),
        "int": pa.array(ints, pa.int64()),
    }
    values = pa.StructArray.from_arrays(
        [{**none, **filled}[one.name] for one in kinds], fields=list(kinds)
    )
    offsets = pa.array(range(0, 4 * count + 1, 4), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, values)


def table_of(attributes: pa.Array, first: int) -> pa.Table:
    """Rows of an archive."""
    schema = arrow_schema_of({})
    count = len(attributes)
    numbers = range(first, first + count)
    columns: dict[str, Any] = {
        "journal": pa.array(["bench"] * count),
        "stream": pa.array(["ticks"] * count),
        "sequence": pa.array(numbers, pa.int64()),
        "timestamp": pa.array([BEGIN_US + 1000 * n for n in numbers], pa.timestamp("us", "UTC")),
        "topic": pa.array([f"ticks/{n % 13}" for n in numbers]),
        "attributes": attributes,
        "id": pa.array(numbers, pa.int64()),
    }
    found = [
        columns[one.name].cast(one.type) if one.name in columns else pa.nulls(count, one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(found, schema=schema)


def fill(archive: Archive, place: Path, events: int) -> pa.Table:
    """Write an archive as compaction would; its first rows."""
    source = random.Random(20261116)
    state = archive.state.changed()
    each = -(-events // FILES)
    attributes = attributes_of(source, each)  # the same in all files: it takes long to make them
    first = None
    for number in range(FILES):
        low, high = 1 + number * each, 1 + min(events, (number + 1) * each)
        table = table_of(attributes.slice(0, high - low), low)
        first = table if first is None else first
        path = f"data/area=ticks/day=2026-11-16/{number}.parquet"
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / path, compression="zstd", row_group_size=GROUP)
        part = Part("bench", "ticks", high - low, low, high)
        state.files.append(
            File(path, "ticks", "2026-11-16", high - low, 0, BEGIN_US + 1000 * low,
                 BEGIN_US + 1000 * (high - 1), [part])
        )  # fmt: skip
    state.streams = [Held("bench", "ticks", 1, events + 1)]
    archive.manifest.commit(state, "bench")
    assert first is not None
    return first


def join(archive: Archive, wanted: list[tuple[Any, ...]], messages: int) -> tuple[float, int]:
    """The same with what Spark has: messages/s, and matches."""
    spark = archive.spark
    rows = [(n, *one) for n, one in enumerate(wanted)]
    schema = "n int, symbol string, region string, low double, high double, least bigint"
    filters = F.broadcast(spark.createDataFrame(rows, schema).cache())
    filters.count()
    ticks = archive.frame(archive.files()[:1]).where(F.col("sequence") <= messages)
    ticks = ticks.selectExpr(
        "attributes['symbol'].string AS symbol", "attributes['region'].string AS region",
        "attributes['price'].float AS price", "attributes['quantity'].int AS quantity",
    )  # fmt: skip
    rest = "price >= low AND price <= high AND quantity >= least"
    began = time.perf_counter()
    found = 0
    for name in ("symbol", "region"):
        some = filters.where(F.col(name).isNotNull())
        both = ticks.join(some.select(name, "low", "high", "least"), name).where(rest)
        found += both.count()
    return messages / (time.perf_counter() - began), found


def sample(table: pa.Table, texts: list[str]) -> tuple[list[int], list[int]]:
    """Counts of some messages and selectors, by the index and by the reference."""
    messages, count = FEW
    some = texts[:: max(1, len(texts) // count)]
    selectors = [Selector.parse(text) for text in some]
    numbers = {plan_of(text).text: 0 for text in texts}
    for number, text in enumerate(numbers):
        numbers[text] = number
    index = Index()
    for text in numbers:
        index.add(plan_of(text))
    work = Work("", 0, 1, 1, len(numbers), len(numbers), 0, [])
    matcher = Matcher(work, (index, Index()))
    (batch,) = table.slice(0, messages).select(["timestamp", "topic", "attributes"]).to_batches()
    matcher.take(batch, bytes(4 * messages))
    counts = memoryview(matcher.counted(0, 0)).cast("i").tolist()
    wanted = [0] * len(some)
    for row in batch.to_pylist():
        values = {name: untyped(tuple(value.values())) for name, value in row["attributes"]}
        attributes = {name: value for name, value in values.items() if value is not None}
        message = Message(topic=row["topic"], attributes=attributes)
        for number, one in enumerate(selectors):
            wanted[number] += bool(one.matches(message))
    got = [counts[numbers[plan_of(text).text]] for text in some]
    return got, wanted


def judge(speed: float, joined: float | None, same: bool, whole: bool) -> Iterator[report.Goal]:
    goal = report.at_least("messages against all selectors", 1, "M/s", speed / 1e6)
    yield goal if whole else report.told(goal)
    times = speed / joined if joined else None
    yield report.at_least("beside a join", 1, "times its messages/s", times)
    yield report.Goal("counts are those of the reference", "= all", float(same), same)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--selectors", type=int, default=0)
    parser.add_argument("--no-join", action="store_true")
    options = parser.parse_args(argv)
    events = options.events or (QUICK[0] if options.quick else EVENTS)
    count = options.selectors or (QUICK[1] if options.quick else SELECTORS)
    place = Path(tempfile.mkdtemp(prefix="regraft-bench-"))
    neighbours = Neighbours()
    source = random.Random(7)
    wanted = [selector(source, n) for n in range(count)]
    texts = [text_of(one) for one in wanted]
    joined: tuple[float, int] | None = None
    try:
        spark = session("bench", "local[2]", SETTINGS)
        archive = Archive.open(spark, str(place), make=True)
        first = fill(archive, place, events)
        say("the archive is filled")
        results: list[Result] = []
        for _ in range(ROUNDS):
            results.append(backtest(archive, texts, say=say))
        if not options.no_join:
            joined = join(archive, wanted, min(JOINED, first.num_rows))
        end_java(spark)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    got, should = sample(first, texts)
    same = got == should
    speeds = [result.events / result.scan_s for result in results if result.build_s == 0]
    speed = max(speeds, default=0.0)
    last = results[-1]
    rows = [
        ("with the index to build", f"{results[0].events / results[0].scan_s / 1e6:.2f} M/s"),
        ("index built in", f"{results[0].build_s:.1f} s"),
        ("messages, best round", f"{speed / 1e6:.2f} M/s"),
        ("matches a message", f"{last.all_matches / last.events:.2f}"),
        ("never matching", f"{len(last.never):,}"),
        ("processor time a message", f"{last.run_s / last.events * 1e6:.2f} us"),
        ("the sample, matches", f"{sum(got):,}"),
    ]
    if joined:
        rows.append(("a join of Spark", f"{joined[0] / 1e6:.3f} M/s"))
    print(report.table((f"{events:,} messages, {count:,} selectors", ""), rows, words=1))
    goals = judge(speed, joined and joined[0], same, events >= EVENTS and count >= SELECTORS)
    return report.finish("backtest", list(goals), neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
