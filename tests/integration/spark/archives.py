"""What a journal holds and what an archive holds, as rows that can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from regraft.pipeline.archive import bodies
from regraft.pipeline.link import Link
from regraft.pipeline.rows import arrow_schema, table_schema
from regraft.wire import bulk
from spark.serving import Served

OWN = ("partition", "journal", "json", "area", "day")  # of only one of the two
NEW = ("sequence", "timestamp", "id", "publisher_sequence", "sender", "stream")  # after a replay


def in_journal(node: Served, *streams: str) -> list[dict[str, Any]]:
    """All messages, as the node has them."""
    found = []
    columns = [(name, header.type) for name, header in bulk.HEADERS.items()]
    for stream in sorted(streams):
        with Link(node.url) as link:
            request = bulk.Read("", stream, columns, start=1, end=node.next(stream))
            for batch in link.read(request, arrow_schema(table_schema(True))):
                found += batch.to_pylist()
    return without(found, OWN)


def in_archive(root: Path, **columns: str) -> list[dict[str, Any]]:
    """All messages, as a reader of Parquet sees them that knows nothing of the archive."""
    table = ds.dataset(root / "data", partitioning="hive").to_table()
    rows = table.to_pylist()
    for row, body in zip(rows, bodies(table), strict=True):
        row["body"] = body
    rows.sort(key=lambda row: (row["stream"], row["sequence"]))
    return without(rows, (*OWN, *columns))


def without(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in sorted(row) if name not in names} for row in rows]
