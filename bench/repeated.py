"""A source of Spark that hands over the same rows again and again.

It does next to nothing: what Spark reads of it in a second is the most that it takes from a source
written in Python, for these columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from regraft.pipeline.workers import settle

ROWS = 4096  # of a batch, as a node sends them


class Repeated(DataSource):
    """`format("repeated")`, with the options `schema`, `rows` and `parts`."""

    @classmethod
    def name(cls) -> str:
        return "repeated"

    def schema(self) -> str:
        return str(self.options["schema"])

    def reader(self, schema: object) -> DataSourceReader:
        return Repeating(int(self.options["rows"]), int(self.options["parts"]))


class Repeating(DataSourceReader):
    def __init__(self, rows: int, parts: int) -> None:
        self.rows, self.parts = rows, parts

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        left = self.rows // self.parts
        batch = made(min(left, ROWS))
        while left:
            some = min(left, batch.num_rows)
            yield batch.slice(0, some)
            left -= some


def made(rows: int) -> pa.RecordBatch:
    """Rows like those that the node has."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    columns = {
        "sequence": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([moment] * rows, pa.timestamp("us", tz="UTC")),
        "topic": pa.array([f"ticks/{n % 13}" for n in range(rows)]),
        "symbol": pa.array([f"k{n % 97}" for n in range(rows)]),
        "price": pa.array([(n % 1000) / 4 for n in range(rows)]),
        "body": pa.array([b'{"n":%d,"sev":"WARN"}' % n for n in range(rows)]),
    }
    return pa.RecordBatch.from_pydict(columns)
