"""What an archive decides without Spark: manifests, what is compacted, slices, progress."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from pyspark.sql.types import StringType, StructField, StructType

from regraft.commands.pipeline_jobs import JOBS, moment, reason
from regraft.errors import DiskError, LocalError
from regraft.pipeline.archive import check_columns, schema_of
from regraft.pipeline.backtest import pairs_of, read_selectors
from regraft.pipeline.compaction import SMALL_FILES, SPLIT_ROWS, chosen
from regraft.pipeline.dividing import arrow_schema_of, conformed
from regraft.pipeline.jobs import Progress, spell_bytes, spell_seconds
from regraft.pipeline.manifest import FORMAT, File, Held, Manifest, Part, Place, State, joined
from regraft.pipeline.reports import archive_report
from regraft.pipeline.sink import BatchSink
from regraft.pipeline.slices import Slice, may_hold
from regraft.pipeline.store import Entry, Store, whole


class Folder:
    """A store that is a folder, without Java."""

    def __init__(self, path: Path) -> None:
        self.top = path
        self.root = str(path)

    def path(self, name: str = "") -> str:
        return f"{self.root}/{name}"

    def there(self, name: str = "") -> bool:
        return (self.top / name).exists()

    def list(self, name: str = "") -> list[Entry]:
        place = self.top / name
        paths = sorted(place.iterdir()) if place.exists() else []
        return [Entry(path.name, path.is_dir(), 0) for path in paths]

    def read(self, name: str) -> bytes:
        return (self.top / name).read_bytes()

    def make(self, name: str, data: bytes) -> bool:
        if self.there(name):
            return False
        (self.top / name).parent.mkdir(parents=True, exist_ok=True)
        (self.top / name).write_bytes(data)
        return True

    def move(self, old: str, new: str) -> bool:
        (self.top / old).rename(self.top / new)
        return True

    def remove(self, name: str) -> None:
        path = self.top / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def open_folder(path: Path, **options: Any) -> Manifest:
    return Manifest.open(cast(Store, Folder(path)), **options)


def file(path: str, rows: int = 10, area: str = "a", day: str = "2026-11-16", low: int = 1) -> File:
    part = Part("j", "s", rows, low, low + rows)
    return File(path, area, day, rows, 100, 0, 1, [part])


def test_versions_follow_one_another(tmp_path: Path) -> None:
    first = open_folder(tmp_path, make=True)
    assert first.state.version == 1 and first.state.levels == 2
    second = open_folder(tmp_path)
    state = first.state.changed()
    state.files.append(file("data/x"))
    first.commit(state, "test")
    assert open_folder(tmp_path).state.rows == 10
    with pytest.raises(LocalError, match="somebody else writes"):
        second.commit(second.state.changed(), "late")
    assert open_folder(tmp_path).state.what == "test"
    for _ in range(30):
        first.commit(first.state.changed(), "more")
    assert len(first.versions()) == 20 and first.versions()[-1] == 32


def test_a_damaged_or_newer_manifest_is_told(tmp_path: Path) -> None:
    open_folder(tmp_path, make=True)
    path = tmp_path / "manifest" / "0000000001.json"
    text = path.read_text()
    path.write_text(text[:-5])
    with pytest.raises(DiskError, match="is damaged"):
        open_folder(tmp_path)
    path.write_text(text.replace(f'"format":{FORMAT}', '"format":9'))
    with pytest.raises(DiskError, match="has format 9"):
        open_folder(tmp_path)


def test_what_a_killed_writer_left_is_settled(tmp_path: Path) -> None:
    manifest = open_folder(tmp_path, make=True)
    folder = tmp_path / "data" / "area=a" / "day=2026-11-16"
    folder.mkdir(parents=True)
    for name in (".new", "old", ".half"):
        (folder / name).write_text(name)
    for name in ("batch-1", "batch-2"):
        (tmp_path / "staged" / name).mkdir(parents=True)
    state = manifest.state.changed()
    inner = "data/area=a/day=2026-11-16"
    state.files = [file(f"{inner}/new"), file("staged/batch-2/area=a/day=2026-11-16/x")]
    state.settling.move = [(f"{inner}/.new", f"{inner}/new")]
    state.settling.remove = [f"{inner}/old", "staged/batch-1"]
    manifest.commit(state, "compacted")
    for _ in range(2):  # as often as one likes
        again = open_folder(tmp_path)
        again.settle()
        again.clean()
    assert sorted(path.name for path in folder.iterdir()) == ["new"]
    assert [path.name for path in (tmp_path / "staged").iterdir()] == ["batch-2"]


def test_what_is_held() -> None:
    held = Held("j", "s", 1, 101, [(11, 21)], expired=5)
    assert held.rows == 85
    parts = joined([Part("j", "s", 3, 5, 9), Part("j", "s", 2, 1, 4), Part("j", "t", 1, 1, 2)])
    assert parts == [Part("j", "s", 5, 1, 9), Part("j", "t", 1, 1, 2)]
    assert State().held("j", "s") is None


def paths(groups: list[list[File]]) -> list[list[str]]:
    return [[one.path for one in group] for group in groups]


def test_what_is_compacted() -> None:
    staged = [file(f"staged/b{n}/f", low=10 * n + 1, area=area) for n, area in ((2, "x"), (1, "y"))]
    large = file("data/a/d/large", 5_000_000)
    assert paths(chosen([*staged, large], 2)) == [["staged/b1/f", "staged/b2/f"]]
    assert chosen([large], 2) == []
    assert len(chosen([large], 2, everything=True)) == 1
    small = [file(f"data/a/d/{n}", low=100 * n) for n in range(SMALL_FILES)]
    assert chosen(small[1:], 2) == []
    assert [len(group) for group in chosen([*small, *staged], 2)] == [2, SMALL_FILES]
    apart = [file(f"data/{n}", area="xyz"[n // 4], low=n) for n in range(12)]
    assert chosen(apart, 2) == []  # few in each place
    assert [len(group) for group in chosen(apart, 2, everything=True)] == [4, 4, 4]
    huge = [file(f"data/{n}", 6_000_000, low=n) for n in range(3)]
    assert [len(group) for group in chosen(huge, 2, everything=True)] == [1, 1, 1]


def test_how_tasks_share_what_is_staged() -> None:
    staged = [file(f"staged/{n}", 500_000, low=n * 500_000) for n in range(20)]
    for processors, counts in ((1, [10, 10]), (2, [10, 10]), (4, [5] * 4), (100, [2] * 10)):
        groups = chosen(staged, processors)
        assert [len(group) for group in groups] == counts
        assert [one for group in groups for one in group] == staged  # all, in order
    assert [len(group) for group in chosen(staged[:3], 8)] == [3]  # no task for little
    one = file("staged/one", 3 * SPLIT_ROWS)
    assert chosen([one], 2) == [[one]]


def test_files_of_several_areas_and_days(tmp_path: Path) -> None:
    mixed = file("staged/b/f", 10, area="", day="")
    mixed.places = [Place("a/x", "2026-11-15", 4), Place("b/y", "2026-11-16", 6)]
    state = State(files=[mixed, file("data/f", 5, area="a/x")])
    assert state.areas == {"a/x", "b/y"} and state.days == {"2026-11-15", "2026-11-16"}
    report = archive_report("x", state, {})
    assert report.charts[0].rows == {"a/x": [4.0, 5.0], "b/y": [0.0, 6.0]}
    (sizes,) = report.charts[1].rows.values()
    assert sizes == pytest.approx([0.4e-4, 1.6e-4])
    manifest = open_folder(tmp_path, make=True)
    manifest.commit(state, "test")
    assert open_folder(tmp_path).state.files == state.files


def test_an_archive_of_the_first_format(tmp_path: Path) -> None:
    """Staged files were of one area and day then."""
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "0000000007.json").write_text(
        """{"format":1,"version":7,"levels":2,"columns":{},"streams":[{"journal":"j","stream":"s",
        "low":1,"high":11,"lost":[],"expired":0}],"files":[{"path":
        "staged/0000000007-ab/area=a%2Fx/day=2026-11-16/f.parquet","area":"a/x","day":"2026-11-16",
        "rows":10,"size":100,"first_us":5,"last_us":6,"parts":[{"journal":"j","stream":"s",
        "rows":10,"low":1,"high":11}]}],"settling":{"move":[],"remove":[]},"compacted_days":[],
        "late_rows":0,"at":1.0,"what":"archived"}"""
    )
    manifest = open_folder(tmp_path)
    (one,) = manifest.state.files
    assert one.is_staged and one.held == [Place("a/x", "2026-11-16", 10)]
    manifest.commit(manifest.state.changed(), "test")
    assert open_folder(tmp_path).state.format == FORMAT


def test_columns_that_come_later_are_filled_in() -> None:
    schema = arrow_schema_of({"price": "double", "n": "bigint", "name": "string"})
    old = arrow_schema_of({})
    kinds = old.field("attributes").type.item_type
    none = dict.fromkeys(kinds.field(k).name for k in range(kinds.num_fields))
    maps = [
        [("price", {**none, "float": 1.5}), ("n", {**none, "int": 7})],
        [("price", {**none, "int": 2}), ("n", {**none, "string": "7"}),
         ("name", {**none, "string": "x"})],
        None,
    ]  # fmt: skip
    columns = [
        pa.array(maps, one.type) if one.name == "attributes" else pa.nulls(3, one.type)
        for one in old
    ]
    table = conformed(pa.Table.from_arrays(columns, schema=old), schema, {
        "price": "double", "n": "bigint", "name": "string"})  # fmt: skip
    assert table["price"].to_pylist() == [1.5, 2.0, None]
    assert table["n"].to_pylist() == [7, None, None]
    assert table["name"].to_pylist() == [None, "x", None]
    assert table.schema == schema


def test_wrong_columns_are_told() -> None:
    assert check_columns({"price": "double"}, {"n": "bigint"}) == {"n": "bigint", "price": "double"}
    for columns, text in (
        ({"topic": "string"}, "column of every archive"),
        ({"area": "string"}, "column of every archive"),
        ({"price": "decimal"}, "there are boolean"),
        ({"n": "string"}, "stays one"),
    ):
        with pytest.raises(LocalError, match=text):
            check_columns(columns, {"n": "bigint"})
    assert schema_of({"price": "double"}).names[-1] == "price"


@pytest.mark.parametrize(
    ("pattern", "area", "may"),
    [
        ("orders/#", "orders/eu", True), ("orders/eu/new", "orders/eu", True),
        ("orders/+", "orders/eu", True), ("orders/us", "orders/eu", False),
        ("#", "orders/eu", True), ("ticks", "orders/eu", False), ("orders", "orders/eu", True),
        ("anything", "/", True),
    ],
)  # fmt: skip
def test_which_folders_may_hold_a_topic(pattern: str, area: str, may: bool) -> None:
    assert may_hold(pattern, area) is may


def test_slices() -> None:
    assert Slice("a/#, b", "x > 1").text == "(TOPIC('a/#') OR TOPIC('b')) AND (x > 1)"
    with pytest.raises(LocalError):
        Slice("a/#/b")
    with pytest.raises(LocalError, match="ends before"):
        Slice(since_us=5, until_us=5)


def test_progress_tells_the_time_left() -> None:
    lines: list[str] = []
    progress = Progress("archive", 1_000, say=lines.append)
    progress.began -= 10  # ten seconds ago
    progress.step(400)
    progress.step(600)
    assert "400 of 1,000 messages (40 %), 40/s, 15 s left" in lines[0]
    assert "left" not in lines[1]
    assert Progress("x").left() is None
    assert (spell_seconds(5), spell_seconds(600), spell_seconds(9000)) == ("5 s", "10 min", "2.5 h")
    assert (spell_bytes(999), spell_bytes(1_234_567)) == ("999 bytes", "1.2 MB")


def test_selectors_of_a_file() -> None:
    assert read_selectors("a = 1\n\n  -- no\nb > 2  \n") == ["a = 1", "b > 2"]
    with pytest.raises(LocalError, match="mine, line 2: "):
        read_selectors("a = 1\nb >\n", "mine")
    with pytest.raises(LocalError, match="no selector"):
        read_selectors("-- nothing\n")


def test_pairs() -> None:
    found = pairs_of([(0, 1), (0, 2), (0, 3), (1, 1), (2, 1), (2, 2)], 100).to_pylist()
    assert {one["pair"]: one["count"] for one in found} == {102: 2, 103: 1, 203: 1}
    assert pairs_of([], 100).num_rows == 0


def test_places() -> None:
    assert whole("s3a://bucket/x/") == "s3a://bucket/x"
    assert whole("/tmp/a b%").endswith("file:///tmp/a b%")
    with pytest.raises(LocalError, match="say where"):
        whole(" ")


def test_a_batch_that_is_known_by_its_name() -> None:
    schema = StructType([StructField("topic", StringType())])
    sink = BatchSink(schema, {"once": "nightly/42"}, False)
    assert (sink.sink, sink.batch) == ("nightly", 42)
    assert BatchSink(schema, {}, False).batch == 0
    for wrong in ("nightly", "nightly/x", "a b/1", "/1"):
        with pytest.raises(LocalError, match="option once"):
            BatchSink(schema, {"once": wrong}, False)


@pytest.mark.parametrize("command", JOBS, ids=lambda one: str(one.name))
def test_all_jobs_have_one_shape(command: Any) -> None:
    params = command.make_context(command.name, ["root"]).params
    assert {"master", "settings", "report", "as_data", "quiet", "root"} <= params.keys()


def test_moments_of_a_slice() -> None:
    assert moment(None) == 0
    assert moment("2026-11-16T00:00+00:00") == 1_794_787_200_000_000
    for wrong in ("#5", "start", "noon"):
        with pytest.raises(LocalError):
            moment(wrong)


def test_the_line_that_says_what_was_wrong() -> None:
    text = "[PYTHON]\nTraceback:\nregraft.errors.LocalError: no stream x [unknown]\n\tat java"
    assert reason(RuntimeError(text)) == "no stream x [unknown]"
    assert reason(RuntimeError("something\nelse")) == "something"
