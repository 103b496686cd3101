"""What is really in files that were written: they are read back, and their rows counted.

Rules:

- Rows are counted by journal, stream, area and day. Nothing is taken from what the writer said, nor
  from what a file says of itself.
- Where Arrow knows the file system, this process reads with it: only five columns, and beside
  whatever Spark does meanwhile; the checksums of their pages are compared. Elsewhere Spark does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from regraft.pipeline.manifest import File, Part, Place, joined
from regraft.pipeline.store import Store, arrow_knows, filesystem

DAY_US = 86_400_000_000
FEW = ("journal", "stream", "sequence", "timestamp", "topic")
ROWS = 131_072  # at a time


class Seen(NamedTuple):
    """Rows of one stream, area and day."""

    journal: str
    stream: str
    area: str
    day: int  # since 1970
    rows: int
    low: int
    last: int
    first_us: int
    last_us: int


def described(
    spark: SparkSession, store: Store, folder: str, levels: int, by_spark: bool | None = None
) -> list[File]:
    """The files below a folder, with what is really in them; empty ones are left out."""
    if by_spark is None:
        by_spark = not arrow_knows(store.root)
    if by_spark:
        files = _by_spark(spark, store, folder, levels)
    else:
        every = ((path, size, list(seen(store.root, path, levels)))
                 for path, size in _below(store, folder))  # fmt: skip
        files = [_file(path, size, rows) for path, size, rows in every if rows]
    return sorted(files, key=lambda file: file.order)


def _below(store: Store, folder: str) -> Iterator[tuple[str, int]]:
    """The files that Spark would read, and how large they are."""
    for entry in store.list(folder):
        if not entry.name.startswith((".", "_")):
            path = f"{folder}/{entry.name}"
            if entry.is_folder:
                yield from _below(store, path)
            else:
                yield path, entry.size


def seen(root: str, path: str, levels: int) -> Iterator[Seen]:
    """Read a file back; rows that belong together may come in several parts."""
    import pyarrow.parquet as pq

    system, top = filesystem(root)
    with system.open_input_file(f"{top}/{path}") as source:
        file = pq.ParquetFile(source, page_checksum_verification=True,
                              read_dictionary=["journal", "stream", "topic"])  # fmt: skip
        for group in range(file.num_row_groups):  # each has dictionaries of its own
            for batch in file.iter_batches(ROWS, [group], list(FEW), use_threads=False):
                yield from _seen(batch, levels)


def _seen(batch: Any, levels: int) -> Iterator[Seen]:
    import pyarrow as pa
    import pyarrow.compute as pc

    topics = batch.column("topic")
    begun = [area_in(topic, levels) for topic in topics.dictionary.to_pylist()]
    areas = sorted(set(begun))
    numbers = {area: number for number, area in enumerate(areas)}
    of_topic = pa.array([numbers[area] for area in begun], pa.int32())
    micros = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns = {
        "journal": batch.column("journal").indices, "stream": batch.column("stream").indices,
        "area": of_topic.take(topics.indices), "day": pc.divide(micros, DAY_US),
        "sequence": batch.column("sequence"), "us": micros,
    }  # fmt: skip
    found = pa.table(columns).group_by(["journal", "stream", "area", "day"], use_threads=False)
    told = ["sequence_count", "sequence_min", "sequence_max", "us_min", "us_max"]
    journals = batch.column("journal").dictionary.to_pylist()
    streams = batch.column("stream").dictionary.to_pylist()
    for row in found.aggregate([tuple(name.split("_")) for name in told]).to_pylist():
        yield Seen(journals[row["journal"]], streams[row["stream"]], areas[row["area"]],
                   row["day"], *(row[name] for name in told))  # fmt: skip


def _by_spark(spark: SparkSession, store: Store, folder: str, levels: int) -> list[File]:
    few = "journal string, stream string, sequence bigint, timestamp timestamp, topic string"
    frame = spark.read.schema(few).option("recursiveFileLookup", "true").parquet(store.path(folder))
    rows = (
        frame.groupBy(
            "journal",
            "stream",
            F.substring_index("topic", "/", levels).alias("area"),
            F.expr(f"unix_micros(timestamp) div {DAY_US}").alias("day"),  # as a number: faster
            F.col("_metadata.file_path").alias("path"),
            F.col("_metadata.file_size").alias("size"),
        )
        .agg(
            F.count("*").alias("rows"),
            F.min("sequence").alias("low"),
            F.max("sequence").alias("last"),
            F.unix_micros(F.min("timestamp")).alias("first_us"),
            F.unix_micros(F.max("timestamp")).alias("last_us"),
        )
        .collect()
    )
    found: dict[tuple[str, int], list[Seen]] = {}
    for row in rows:
        path = unquote(row.path)
        one = Seen(*(row[name] for name in Seen._fields))._replace(area=row.area or "/")
        found.setdefault((path[path.index(f"/{folder}/") + 1 :], row["size"]), []).append(one)
    return [_file(path, size, some) for (path, size), some in found.items()]


def _file(path: str, size: int, rows: list[Seen]) -> File:
    """A file of which one knows what is in it of each stream, area and day."""
    places: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row.area, day_in(row.day))
        places[key] = places.get(key, 0) + row.rows
    parts = [Part(row.journal, row.stream, row.rows, row.low, row.last + 1) for row in rows]
    return File(
        path, "", "", sum(row.rows for row in rows), size, min(row.first_us for row in rows),
        max(row.last_us for row in rows), joined(parts),
        [Place(area, day, count) for (area, day), count in sorted(places.items())],
    )  # fmt: skip


def area_in(topic: str, levels: int) -> str:
    """The beginning of a topic."""
    return "/".join(topic.split("/")[:levels]) or "/"


def day_in(days: int) -> str:
    """The day that is so many days after the first of 1970."""
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
