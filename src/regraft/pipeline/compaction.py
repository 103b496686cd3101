"""From many small files to few large ones, in a root that any reader of Parquet can use.

Rules:

- `data/` has only files that were compacted; a name there appears when the file is whole. Files are
  added. Only where a day has many small ones, or all are to be written anew, some are replaced: the
  old ones go first, so that a reader that asks no manifest may miss rows for a moment, and never
  sees one twice.
- A file is written by one task, in the order of the journal, from files of one area and day. Where
  Arrow knows the file system, the task copies columns with it; elsewhere Spark copies rows.
- Retention removes whole days.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from regraft.errors import LocalError
from regraft.pipeline.archive import Archive, schema_of, writing
from regraft.pipeline.jobs import Progress, Say, silent
from regraft.pipeline.manifest import DATA, STAGED, File, joined

GROUP_ROWS = 250_000  # of a row group
FILE_ROWS = 10_000_000  # of a file, about
SMALL_ROWS = 1_000_000  # a file with less is worth being joined with others
SMALL_FILES = 8  # so many of them
LEVEL = 3  # of zstd
WAVE = 4  # files that each processor writes between two reports


@dataclass
class Compacted:
    """What a run has done."""

    rows: int = 0
    before: int = 0
    after: int = 0
    size: int = 0
    seconds: float = 0.0
    expired_rows: int = 0
    expired_days: list[str] = field(default_factory=list)


class Order(msgspec.Struct):
    """What one task does: some files of an area and day become one."""

    root: str
    sources: list[str]
    target: str
    columns: dict[str, str]
    rows: int


def compact(
    archive: Archive, everything: bool = False, by_rows: bool | None = None, say: Say = silent
) -> Compacted:
    """Compact what is staged; with `everything`, write all files anew, with today's columns."""
    archive.recover()
    groups = chosen(archive.state.files, everything)
    done = Compacted()
    progress = Progress("compact", sum(f.rows for group in groups for f in group), "rows", say)
    if not groups:
        return done
    name = f"{archive.state.version + 1:010d}"
    added, moves = [], []
    orders = []
    for number, group in enumerate(groups):
        first = group[0]
        folder = f"{DATA}/area={quote(first.area, safe='')}/day={first.day}"
        hidden = f"{folder}/.{uuid.uuid4().hex}.parquet"
        final = f"{folder}/{name}-{number:05d}.parquet"
        sources = [file.path for file in group]
        rows = sum(file.rows for file in group)
        orders.append(Order(archive.store.root, sources, hidden, archive.state.columns, rows))
        added.append(
            File(final, first.area, first.day, rows, 0, min(f.first_us for f in group),
                 max(f.last_us for f in group), joined([p for f in group for p in f.parts]))
        )  # fmt: skip
        moves.append((hidden, final))
    if by_rows is None:
        by_rows = not arrow_knows(archive.store.root)
    results = _by_spark(archive, orders) if by_rows else _by_arrow(archive, orders)
    for target, rows, size in results:
        number = next(n for n, order in enumerate(orders) if order.target == target)
        if rows != added[number].rows:
            raise LocalError(
                "bad-configuration",
                f"{added[number].rows} rows of {added[number].path} were to be written, and {rows} "
                "were: nothing is changed",
            )
        added[number].size = size
        done.rows += rows
        progress.step(rows)
    state = archive.state.changed()
    gone = {file.path for group in groups for file in group}
    state.files = [file for file in state.files if file.path not in gone] + added
    state.settling.move = moves
    state.settling.remove = sorted(_folders(gone, {file.path for file in state.files}))
    state.compacted_days = sorted({*state.compacted_days, *(file.day for file in added)})
    archive.manifest.commit(state, "compacted")
    archive.manifest.settle()
    done.before, done.after = len(gone), len(added)
    done.size = sum(file.size for file in added)
    done.seconds = progress.seconds
    return done


def chosen(files: list[File], everything: bool = False) -> list[list[File]]:
    """Files that become one, each group of one area and day, in order."""
    places: dict[tuple[str, str], list[File]] = {}
    for file in files:
        places.setdefault((file.area, file.day), []).append(file)
    groups = []
    for _, there in sorted(places.items()):
        small = [file for file in there if not file.is_staged and file.rows < SMALL_ROWS]
        take = there if everything else [file for file in there if file.is_staged]
        if not everything and take and len(small) >= SMALL_FILES - 1:
            take = [*take, *small]
        group: list[File] = []
        for file in sorted(take, key=lambda file: file.order):
            if group and sum(f.rows for f in group) + file.rows > FILE_ROWS:
                groups.append(group)
                group = []
            group.append(file)
        if group:
            groups.append(group)
    return groups


def _folders(gone: set[str], kept: set[str]) -> set[str]:
    """What to remove: files, or whole batches of which nothing is left."""
    batches = {path.split("/")[1] for path in kept if path.startswith(f"{STAGED}/")}
    found = set()
    for path in gone:
        top, second = path.split("/")[:2]
        found.add(f"{top}/{second}" if top == STAGED and second not in batches else path)
    return found


# -------------------------------------------------------------------------------- by Arrow


def arrow_knows(root: str) -> bool:
    """Whether Arrow can read and write there."""
    try:
        filesystem(root)
    except (pa.ArrowException, OSError, NotImplementedError):
        return False
    return True


def filesystem(root: str) -> tuple[Any, str]:
    """Arrow's file system for a root, and the path in it."""
    from pyarrow import fs

    if root.startswith("file:"):  # as it is: a path may have any characters
        return fs.LocalFileSystem(), "/" + root.removeprefix("file:").lstrip("/")
    found: tuple[Any, str] = fs.FileSystem.from_uri(root.replace("s3a://", "s3://"))
    return found


def _by_arrow(archive: Archive, orders: list[Order]) -> Iterator[tuple[str, int, int]]:
    context = archive.spark.sparkContext
    some = WAVE * context.defaultParallelism
    for start in range(0, len(orders), some):  # so that there is progress to tell
        texts = [msgspec.json.encode(order).decode() for order in orders[start : start + some]]
        yield from context.parallelize(texts, len(texts)).map(_work).collect()


def _work(text: str) -> tuple[str, int, int]:
    """In a task."""
    order = msgspec.json.decode(text, type=Order)
    rows, size = join_files(order)
    return order.target, rows, size


def join_files(order: Order) -> tuple[int, int]:
    """Make one file of several, column by column; its rows and bytes."""
    import pyarrow.parquet as pq

    files, top = filesystem(order.root)
    target = f"{top}/{order.target}"
    files.create_dir(target.rpartition("/")[0], recursive=True)
    schema = arrow_schema_of(order.columns)
    blooms = {"id": {"ndv": min(order.rows, GROUP_ROWS), "fpp": 0.01}}
    rows = 0
    with pq.ParquetWriter(
        target, schema, filesystem=files, compression="zstd", compression_level=LEVEL,
        bloom_filter_options=blooms, coerce_timestamps="us", store_schema=False,
    ) as writer:  # fmt: skip
        waiting: list[Any] = []
        count = 0
        for name in order.sources:
            with files.open_input_file(f"{top}/{name}") as source:
                for group in _groups(source):
                    waiting.append(conformed(group, schema, order.columns))
                    count += group.num_rows
                    if count >= GROUP_ROWS:
                        writer.write_table(pa.concat_tables(waiting), GROUP_ROWS)
                        rows += count
                        waiting, count = [], 0
        if waiting:
            writer.write_table(pa.concat_tables(waiting), GROUP_ROWS)
            rows += count
        writer.add_key_value_metadata(schema.metadata)
    return rows, files.get_file_info(target).size


def _groups(source: Any) -> Iterator[Any]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source)
    for number in range(file.num_row_groups):
        yield file.read_row_group(number)


def arrow_schema_of(columns: dict[str, str]) -> pa.Schema:
    """The columns of a file. Spark finds its own types in what is written beside the schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    spark: StructType = schema_of(columns)
    schema = to_arrow_schema(
        StructType([f for f in spark.fields if f.name != "json"]), timezone="UTC"
    )
    variant = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    schema = schema.insert(spark.names.index("json"), pa.field("json", variant))
    return schema.with_metadata({"org.apache.spark.sql.parquet.row.metadata": spark.json()})


def conformed(table: Any, schema: pa.Schema, columns: dict[str, str]) -> Any:
    """A table with exactly these columns; attributes that became columns later are filled in."""
    import pyarrow.compute as pc

    found = []
    for wanted in schema:
        if wanted.name not in table.column_names:
            empty = pa.nulls(table.num_rows, wanted.type)
            if wanted.name in columns:
                empty = _looked_up(table.column("attributes"), wanted, columns[wanted.name])
            found.append(empty)
            continue
        column = table.column(wanted.name)
        if wanted.name == "json":  # whatever stands around the two parts
            column = column.combine_chunks()
            column = getattr(column, "storage", column)
            parts = [pc.struct_field(column, "value"), pc.struct_field(column, "metadata")]
            column = pa.StructArray.from_arrays(
                parts, fields=list(wanted.type), mask=column.is_null()
            )
        found.append(column.cast(wanted.type))
    return pa.Table.from_arrays(found, schema=schema)


def _looked_up(attributes: Any, wanted: pa.Field, kind: str) -> Any:
    """An attribute as a column."""
    import pyarrow.compute as pc

    fields = {"boolean": "bool", "bigint": "int", "double": "float", "string": "string",
              "binary": "bytes", "timestamp": "timestamp_us"}  # fmt: skip
    entry = pc.map_lookup(attributes, wanted.name, "first")
    value = pc.struct_field(entry, fields[kind])
    if kind == "double":  # takes ints, too, as the source does
        value = pc.coalesce(value, pc.struct_field(entry, "int").cast(pa.float64(), safe=False))
    return value.cast(wanted.type)


# -------------------------------------------------------------------------------- by Spark


def _by_spark(archive: Archive, orders: list[Order]) -> Iterator[tuple[str, int, int]]:
    """The same where only Spark can write: a job for each file."""
    with writing(archive.spark):
        for order in orders:
            yield _one_by_spark(archive, order)


def _one_by_spark(archive: Archive, order: Order) -> tuple[str, int, int]:
    store, spark = archive.store, archive.spark
    paths = [store.path(name) for name in order.sources]
    folder = f"{STAGED}/{uuid.uuid4().hex}"
    options = {
        "compression": "zstd",
        "parquet.bloom.filter.enabled#id": "true",
        "parquet.bloom.filter.expected.ndv#id": str(order.rows),
    }
    frame = spark.read.schema(archive.schema).parquet(*paths).repartition(1)
    frame = frame.sortWithinPartitions("journal", "stream", "sequence")
    frame.write.options(**options).parquet(store.path(folder))
    rows = spark.read.schema("sequence bigint").parquet(store.path(folder)).count()
    (made,) = [entry for entry in store.list(folder) if entry.name.endswith(".parquet")]
    store.move(f"{folder}/{made.name}", order.target)
    store.remove(folder)
    return order.target, rows, made.size


# ------------------------------------------------------------------------------- retention


def expire(archive: Archive, keep_days: int, today: date | None = None) -> Compacted:
    """Remove the days that are older than so many days."""
    if keep_days < 1:
        raise LocalError("bad-configuration", f"an archive keeps 1 day at least, not {keep_days}")
    archive.recover()
    now = today or datetime.now(UTC).date()
    oldest = (now - timedelta(days=keep_days)).isoformat()
    old = [file for file in archive.state.files if file.day < oldest]
    done = Compacted(expired_rows=sum(file.rows for file in old))
    done.expired_days = sorted({file.day for file in old})
    if not old:
        return done
    state = archive.state.changed()
    gone = {file.path for file in old}
    state.files = [file for file in state.files if file.path not in gone]
    for part in (part for file in old for part in file.parts):
        held = state.held(part.journal, part.stream)
        assert held is not None
        held.expired += part.rows
    state.settling.move = []
    state.settling.remove = sorted(_folders(gone, {file.path for file in state.files}))
    archive.manifest.commit(state, "expired")
    archive.manifest.settle()
    return done
