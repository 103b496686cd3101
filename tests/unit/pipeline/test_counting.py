"""What was written is read back: rows are counted in the files, and damage is seen."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from regraft.pipeline.counting import DAY_US, area_in, day_in, described
from regraft.pipeline.manifest import File, Part, Place, joined
from regraft.pipeline.store import Entry, Store

TOPICS = ["a/x", "a/x/1", "a/y", "b", "/c"]
COUNT = 2000


class Folder:
    """What `described` asks of a store."""

    def __init__(self, path: Path) -> None:
        self.top = path
        self.root = f"file://{path}"

    def list(self, name: str = "") -> list[Entry]:
        return [
            Entry(path.name, path.is_dir(), path.stat().st_size)
            for path in sorted((self.top / name).iterdir())
        ]


def files_of(root: Path) -> list[File]:
    return described(cast(Any, None), cast(Store, Folder(root)), "staged", 2)


def rows_of(source: random.Random, first: int) -> list[dict[str, Any]]:
    return [
        {
            "journal": source.choice("jk"), "stream": source.choice(["s", "t"]),
            "sequence": first + n, "timestamp": source.randrange(20_770, 20_773) * DAY_US + n,
            "topic": source.choice(TOPICS), "id": n,
        }
        for n in range(COUNT)
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([
        ("journal", pa.string()), ("stream", pa.string()), ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")), ("topic", pa.string()), ("id", pa.int64()),
    ])  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(
        table, path, row_group_size=300, compression="none", write_page_checksum=True
    )  # so that rows of a stream, area and day are in several row groups


def wanted(root: Path, path: Path, rows: list[dict[str, Any]]) -> File:
    places: dict[tuple[str, str], int] = {}
    for row in rows:
        key = area_in(row["topic"], 2), day_in(row["timestamp"] // DAY_US)
        places[key] = places.get(key, 0) + 1
    moments = [row["timestamp"] for row in rows]
    parts = [Part(r["journal"], r["stream"], 1, r["sequence"], r["sequence"] + 1) for r in rows]
    return File(
        path.relative_to(root).as_posix(), "", "", len(rows), path.stat().st_size, min(moments),
        max(moments), joined(parts), [Place(*key, n) for key, n in sorted(places.items())],
    )  # fmt: skip


def test_files_are_what_is_in_them(tmp_path: Path) -> None:
    source = random.Random(1)
    made = {}
    for number, name in enumerate(("one/0.parquet", "one/1.parquet", "two/area=x y/2.parquet")):
        path = tmp_path / "staged" / name
        rows = rows_of(source, 1 + number * COUNT)
        write(path, rows)
        made[path] = rows
    write(tmp_path / "staged/one/.hidden.parquet", rows_of(source, 1))
    write(tmp_path / "staged/two/empty.parquet", [])
    (tmp_path / "staged/one/_SUCCESS").touch()
    found = files_of(tmp_path)
    assert found == sorted(
        (wanted(tmp_path, path, rows) for path, rows in made.items()), key=lambda file: file.order
    )


def test_a_damaged_page_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "staged/0.parquet"
    write(path, rows_of(random.Random(2), 1))
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)  # the sequences
    data = bytearray(path.read_bytes())
    data[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"CRC|checksum"):
        files_of(tmp_path)
