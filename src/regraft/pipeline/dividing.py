"""Rows of some files to others, each of one area and day, column by column: what a task does.

Rules:

- Rows stay in the order in which the sources have them.
- A task holds a bounded number of bytes, and of open files. Where that is not enough, row groups
  are smaller, and an area and day gets several files.
- What is told of a file that was made is counted in what was written to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from regraft.pipeline.archive import schema_of
from regraft.pipeline.counting import DAY_US, area_in, day_in
from regraft.pipeline.manifest import DATA, File, Part, Place, joined
from regraft.pipeline.store import filesystem

GROUP_ROWS = 250_000  # of a row group
WAITING_BYTES = 256 << 20  # of columns that a task holds
OPEN_FILES = 100  # of a task
LEVEL = 3  # of zstd
Key = tuple[str, str]  # an area and a day
IN_MAP = {"boolean": "bool", "bigint": "int", "double": "float", "string": "string",
          "binary": "bytes", "timestamp": "timestamp_us"}  # fmt: skip


class Order(msgspec.Struct):
    """What one task does: some files become one for each area and day."""

    root: str
    sources: list[str]
    name: str  # of what is written, until the manifest knows it
    columns: dict[str, str]
    levels: int
    places: list[Place]  # what the sources hold


def place_of(area: str, day: str) -> str:
    """The folder of an area and day."""
    return f"{DATA}/area={quote(area, safe='')}/day={day}"


# --------------------------------------------------------------------------------- divide


def work(text: str) -> str:
    """An order, and the files that were made."""
    order = msgspec.json.decode(text, type=Order)
    return msgspec.json.encode(divide_files(order)).decode()


def divide_files(order: Order) -> list[File]:
    """Write the rows of some files to one for each area and day."""
    import pyarrow.parquet as pq

    outputs = Outputs(order)
    for name in order.sources:
        with outputs.system.open_input_file(f"{outputs.top}/{name}") as source:
            for batch in pq.ParquetFile(source).iter_batches(GROUP_ROWS):
                table = pa.Table.from_batches([batch])
                table = conformed(table, outputs.schema, order.columns)
                for key, some in divided(table, order.levels):
                    outputs.put(key, some)
    return outputs.finish()


def divided(table: Any, levels: int) -> Iterator[tuple[Key, Any]]:
    """The rows of each area and day."""
    import pyarrow.compute as pc

    topics = table.column("topic").combine_chunks().dictionary_encode()
    begun = [area_in(topic, levels) for topic in topics.dictionary.to_pylist()]
    areas = sorted(set(begun))
    numbers = {area: number for number, area in enumerate(areas)}
    of_topic = pa.array([numbers[area] for area in begun], pa.int64())
    days = pc.divide(table.column("timestamp").combine_chunks().cast(pa.int64()), DAY_US)
    keys = pc.add(pc.multiply(days, len(areas)), of_topic.take(topics.indices))
    order = pc.sort_indices(keys)  # rows with the same key stay in order
    runs = pc.run_end_encode(keys.take(order))
    start = 0
    for key, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        day, area = divmod(key, len(areas))
        # A copy, since a part of a table would keep all of it in memory while it waits.
        some = table.take(order.slice(start, end - start)) if len(runs.values) > 1 else table
        yield (areas[area], day_in(day)), some
        start = end


class Output:
    """A file as it grows, and what waits to be written to it."""

    def __init__(self, key: Key, path: str) -> None:
        self.file = File(path, *key, 0, 0, 1 << 62, 0, [])
        self.writer: Any = None
        self.waiting: list[Any] = []
        self.rows = self.size = 0  # of what waits

    def put(self, table: Any) -> None:
        """Take rows."""
        self.waiting.append(table)
        self.rows += table.num_rows
        self.size += table.nbytes

    def write(self) -> None:
        """Write what waits, and note what it is."""
        import pyarrow.compute as pc

        table = pa.concat_tables(self.waiting)
        self.waiting, self.rows, self.size = [], 0, 0
        self.writer.write_table(table, GROUP_ROWS)
        file = self.file
        file.rows += table.num_rows
        moments = pc.min_max(table.column("timestamp").cast(pa.int64())).as_py()
        file.first_us = min(file.first_us, moments["min"])
        file.last_us = max(file.last_us, moments["max"])
        counted = table.group_by(["journal", "stream"], use_threads=False).aggregate(
            [("sequence", "count"), ("sequence", "min"), ("sequence", "max")]
        )
        for row in counted.to_pylist():
            part = Part(row["journal"], row["stream"], row["sequence_count"], row["sequence_min"],
                        row["sequence_max"] + 1)  # fmt: skip
            file.parts = joined([*file.parts, part])


class Outputs:
    """The files that a task makes."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.system, self.top = filesystem(order.root)
        self.schema = arrow_schema_of(order.columns)
        self.rows = {(place.area, place.day): place.rows for place in order.places}
        self.growing: dict[Key, Output] = {}
        self.made: list[File] = []
        self.begun = 0
        self.size = 0  # of what waits

    def put(self, key: Key, table: Any) -> None:
        """Take rows of one area and day."""
        output = self.growing.get(key)
        if output is None:
            path = f"{place_of(*key)}/.{self.order.name}-{self.begun}.parquet"
            output = self.growing[key] = Output(key, path)
            self.begun += 1
        self.size -= output.size
        output.put(table)
        self.size += output.size
        if output.rows >= GROUP_ROWS:
            self._write(output)
        while self.size > WAITING_BYTES:
            self._write(max(self.growing.values(), key=lambda one: one.size))

    def finish(self) -> list[File]:
        """All files, as they are in the end."""
        while self.growing:
            self._close(next(iter(self.growing.values())))
        return self.made

    def _write(self, output: Output) -> None:
        if output.writer is None:
            opened = [one for one in self.growing.values() if one.writer is not None]
            if len(opened) >= OPEN_FILES:
                self._close(opened[0])
            output.writer = self._writer(output.file)
        self.size -= output.size
        output.write()

    def _writer(self, file: File) -> Any:
        import pyarrow.parquet as pq

        target = f"{self.top}/{file.path}"
        self.system.create_dir(target.rpartition("/")[0], recursive=True)
        rows = self.rows.get((file.area, file.day), GROUP_ROWS)
        blooms = {"id": {"ndv": min(rows, GROUP_ROWS), "fpp": 0.01}}
        return pq.ParquetWriter(
            target, self.schema, filesystem=self.system, compression="zstd",
            compression_level=LEVEL, bloom_filter_options=blooms, coerce_timestamps="us",
            store_schema=False,
        )  # fmt: skip

    def _close(self, output: Output) -> None:
        if output.waiting:
            self._write(output)
        output.writer.add_key_value_metadata(self.schema.metadata)
        output.writer.close()
        file = output.file
        file.size = self.system.get_file_info(f"{self.top}/{file.path}").size
        self.made.append(file)
        del self.growing[file.area, file.day]


# ------------------------------------------------------------------------------- columns


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

    entry = pc.map_lookup(attributes, wanted.name, "first")
    value = pc.struct_field(entry, IN_MAP[kind])
    if kind == "double":  # takes ints, too, as the source does
        value = pc.coalesce(value, pc.struct_field(entry, "int").cast(pa.float64(), safe=False))
    return value.cast(wanted.type)
