"""Compaction without Spark: rows of staged files go to files of one area and day."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from regraft.pipeline import dividing
from regraft.pipeline.counting import DAY_US, area_in, day_in
from regraft.pipeline.dividing import Order, arrow_schema_of, divide_files, divided
from regraft.pipeline.manifest import File, Part, Place, joined

TOPICS = ("a/x", "a/x/1", "a/y", "b", "/b/c", "//d", "per%cent=x y/z")
DAYS = (20_000, 20_001, 20_003)
COUNT = 600


def table(start: int, count: int, source: random.Random, stream: str = "s") -> Any:
    schema = arrow_schema_of({})
    columns: dict[str, Any] = {one.name: pa.nulls(count, one.type) for one in schema}
    sequences = range(start, start + count)
    moments = [source.choice(DAYS) * DAY_US + n for n in sequences]
    columns["journal"] = pa.array(["j"] * count)
    columns["stream"] = pa.array([stream] * count)
    columns["sequence"] = pa.array(sequences, pa.int64())
    columns["timestamp"] = pa.array(moments, pa.timestamp("us", "UTC"))
    columns["topic"] = pa.array([source.choice(TOPICS) for _ in sequences])
    columns["id"] = pa.array([n * 7 for n in sequences], schema.field("id").type)
    return pa.Table.from_pydict(columns, schema=schema)


def rows_of(some: Any) -> list[tuple[str, int, str, int]]:
    picked = some.select(["stream", "sequence", "topic", "id"]).to_pydict()
    return list(zip(*picked.values(), strict=True))


def place_of(row: Any, levels: int = 2) -> tuple[str, str]:
    return area_in(row["topic"], levels), row["timestamp"].date().isoformat()


def staged(root: Path, tables: list[Any]) -> Order:
    names = []
    places: dict[tuple[str, str], int] = {}
    for number, one in enumerate(tables):
        (root / "staged").mkdir(parents=True, exist_ok=True)
        pq.write_table(one, root / "staged" / f"{number}.parquet", row_group_size=100)
        names.append(f"staged/{number}.parquet")
        for row in one.to_pylist():
            places[place_of(row)] = places.get(place_of(row), 0) + 1
    held = [Place(area, day, rows) for (area, day), rows in places.items()]
    return Order(f"file://{root}", names, "x", {}, 2, held)


@pytest.mark.parametrize(
    ("topic", "levels", "area"),
    [("a/b/c", 2, "a/b"), ("a", 2, "a"), ("a/b/c", 1, "a"), ("/b", 1, "/"), ("/b", 2, "/b"),
     ("a//c", 2, "a/"), ("a/b", 16, "a/b")],
)  # fmt: skip
def test_areas(topic: str, levels: int, area: str) -> None:
    assert area_in(topic, levels) == area
    assert day_in(0) == "1970-01-01" and day_in(20_773) == "2026-11-16"


def test_rows_of_each_area_and_day_stay_in_order() -> None:
    source = table(1, COUNT, random.Random(1))
    found = dict(divided(source, 2))
    wanted: dict[tuple[str, str], list[Any]] = {}
    for row, whole in zip(rows_of(source), source.to_pylist(), strict=True):
        wanted.setdefault(place_of(whole), []).append(row)
    assert {key: rows_of(some) for key, some in found.items()} == wanted
    assert len(found) == 6 * len(DAYS)  # a/x and a/x/1 are one
    (only,) = divided(source.slice(0, 1), 2)
    assert rows_of(only[1]) == rows_of(source)[:1]


def check(root: Path, made: list[File], tables: list[Any]) -> None:
    """Every row is there once, where it belongs, and in order; files are what is told of them."""
    found = []
    for file in made:
        path = root / file.path
        one = pq.ParquetFile(path).read()
        assert {place_of(row) for row in one.to_pylist()} == {(file.area, file.day)}
        assert (file.rows, file.size) == (one.num_rows, path.stat().st_size)
        moments = one["timestamp"].cast(pa.int64()).to_pylist()
        assert (file.first_us, file.last_us) == (min(moments), max(moments))
        assert rows_of(one) == sorted(rows_of(one))
        parts = [Part("j", stream, 1, n, n + 1) for stream, n, _, _ in rows_of(one)]
        assert file.parts == joined(parts)
        found += rows_of(one)
    assert sorted(found) == sorted(row for one in tables for row in rows_of(one))
    names = {path.relative_to(root).as_posix() for path in (root / "data").rglob("*.parquet")}
    assert names == {file.path for file in made}


def test_files_of_one_area_and_day(tmp_path: Path) -> None:
    source = random.Random(2)
    tables = [table(1, COUNT, source), table(COUNT + 1, COUNT, source), table(1, 50, source, "t")]
    made = divide_files(staged(tmp_path, tables))
    check(tmp_path, made, tables)
    assert len(made) == len({(file.area, file.day) for file in made}) == 6 * len(DAYS)


@pytest.mark.parametrize(("waiting", "opened"), [(20_000, 100), (20_000, 2), (0, 1)])
def test_a_task_holds_little_and_opens_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, opened: int
) -> None:
    monkeypatch.setattr(dividing, "GROUP_ROWS", 100)
    monkeypatch.setattr(dividing, "WAITING_BYTES", waiting)
    monkeypatch.setattr(dividing, "OPEN_FILES", opened)
    most = [0, 0]
    true = dividing.Outputs.put

    def put(self: Any, key: Any, some: Any) -> None:
        true(self, key, some)
        growing = self.growing.values()
        most[0] = max(most[0], sum(one.size for one in growing))
        most[1] = max(most[1], sum(one.writer is not None for one in growing))
        assert self.size == sum(one.size for one in growing)

    monkeypatch.setattr(dividing.Outputs, "put", put)
    source = random.Random(3)
    tables = [table(1 + n * COUNT, COUNT, source) for n in range(2)]
    made = divide_files(staged(tmp_path, tables))
    check(tmp_path, made, tables)
    assert most[0] <= waiting and 0 < most[1] <= opened
    places = len({(file.area, file.day) for file in made})
    assert (len(made) > places) is (opened < 100)
