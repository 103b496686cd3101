"""The archive: what any reader finds in it is what the journal holds, message by message."""

from __future__ import annotations

import datetime
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

import regraft
from regraft.errors import DiskError, LocalError
from regraft.model.message import Timestamp
from regraft.pipeline import column
from regraft.pipeline.archive import Archive, verify, writing
from regraft.pipeline.backtest import backtest
from regraft.pipeline.compaction import compact, expire
from regraft.pipeline.counting import described
from regraft.pipeline.link import Link
from regraft.pipeline.manifest import FOLDER
from regraft.pipeline.replay import replay
from regraft.pipeline.slices import Slice
from regraft.pipeline.source import Known, Table
from spark.archives import NEW, in_archive, in_journal, without
from spark.drivers import Driver
from spark.serving import PATIENCE_S, Served, orders

pytestmark = pytest.mark.xdist_group("archive")  # one worker makes one, and uses it for all
COUNT = 1_500
KILLS = 5
JOB = Path(__file__).with_name("archive_job.py")
ODD: list[tuple[str, Any, dict[str, Any]]] = [
    ("ticks/a", b'{"a":1,"b":"y"}', {"flag": True}),  # a Variant gives it back exactly
    ("ticks/a", b'{"b": 1, "a": [1.50, "x", null, 1e3]}', {"data": b"\x00\xff"}),  # this not
    ("ticks/b", b'{"a":1,"a":2}', {"when": Timestamp(1_700_000_000_000_001)}),
    ("ticks/b", b'"text"', {"large": 2**62, "small": -1, "real": -0.0}),
    ("ticks/b", b"007", {"empty": ""}),
    ("ticks/b", b'{"open":', {}),
    ("ticks/b", b"\xff\x00 no text", {}),
    ("ticks/b", b"", {}),
    ("ticks", b"\xef\xbb\xbf{}", {}),
    ("ticks/c/d/e", "grün ☃".encode(), {"größe": "ß"}),
    ("ticks/per%cent=x y", b"[]", {}),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: Any) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("archive") / "node")
    served.publish(orders(0, COUNT))
    served.publish(ODD, priority=7, correlation="c-1", reply_to="answers", content_type="x/y")
    with regraft.connect_blocking(served.url) as client:
        client.publish("ticks/a", {"n": 1}, persistent=True, confirm=True, ttl=3600, delay=0.1)
    deadline = time.monotonic() + PATIENCE_S
    while served.next("ticks") < len(ODD) + 2:  # the delayed one comes a little later
        assert time.monotonic() < deadline, "a message is missing"
        time.sleep(0.05)
    yield served
    served.kill()


@pytest.fixture(scope="module")
def staged(spark: Any, node: Served, tmp_path_factory: Any) -> Path:
    """An archive of the node, of which all is staged."""
    root = Path(tmp_path_factory.mktemp("staged") / "with space")
    archive = Archive.open(spark, str(root), make=True)
    lines: list[str] = []
    done = archive.take(node.url, batch_rows=COUNT // 2, say=lines.append)
    assert done.rows == COUNT + len(ODD) + 1 and done.batches == 3
    assert " left" in lines[0] and "(100 %)" in lines[-1]
    assert archive.take(node.url).rows == 0
    assert done.files == len(archive.state.files) and not (root / "data").exists()
    return root


@pytest.fixture(scope="module")
def made(spark: Any, staged: Path, tmp_path_factory: Any) -> Path:
    """The same, compacted."""
    root = Path(shutil.copytree(staged, tmp_path_factory.mktemp("archived") / "with space"))
    archive = Archive.open(spark, str(root))
    compact(archive)
    assert not any(file.is_staged for file in archive.state.files)
    assert Archive.open(spark, str(root)).recover() == 0  # nothing was left undone
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(made, tmp_path / "archive"))


def test_any_reader_finds_what_the_journal_holds(made: Path, node: Served) -> None:
    assert in_archive(made) == in_journal(node, "orders", "ticks")
    files = list((made / "data").rglob("*.parquet"))
    assert len(files) == 3 + 5  # a file for each area, as all came on one day
    group = pq.ParquetFile(files[0]).metadata.row_group(0)
    chunks = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}


def test_duckdb_finds_it_too(made: Path, node: Served) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    rows = duckdb.sql(
        f"SELECT stream, sequence, topic, id FROM read_parquet('{made}/data/**/*.parquet', "
        "hive_partitioning = true) ORDER BY stream, sequence"
    ).fetchall()
    wanted = [(row["stream"], row["sequence"], row["topic"], row["id"])
              for row in in_journal(node, "orders", "ticks")]  # fmt: skip
    assert rows == wanted


def test_spark_finds_it_by_selector_and_id(spark: Any, made: Path, node: Served) -> None:
    archive = Archive.open(spark, str(made))
    frame = archive.frame()
    found = frame.where(column("price > 100 AND symbol = 'S1'")).count()
    wanted = [a for _, _, a in orders(0, COUNT) if a["price"] > 100 and a["symbol"] == "S1"]
    assert found == len(wanted) > 0
    one = in_journal(node, "orders")[COUNT // 2]
    (row,) = frame.where(f"id = {one['id']}").collect()
    assert row.sequence == one["sequence"]
    (json,) = frame.where("topic = 'ticks/a' AND json:b::string = 'y'").collect()
    assert json.body is None
    plain = spark.read.parquet(str(made / "data"))  # nothing but the folder
    assert plain.where("json:b::string = 'y'").count() == 1
    assert {row.area for row in plain.select("area").distinct().collect()} == {
        "orders/eu", "orders/us", "orders/asia", "ticks/a", "ticks/b", "ticks", "ticks/c",
        "ticks/per%cent=x y",
    }  # fmt: skip


ALL = COUNT + len(ODD) + 1


def test_what_is_staged_is_found_too(spark: Any, staged: Path, node: Served) -> None:
    archive = Archive.open(spark, str(staged))
    assert archive.state.rows == ALL and len(archive.state.areas) == 3 + 5
    assert all(file.is_staged for file in archive.state.files)
    assert all(proof.well for proof in verify(archive))
    frame = archive.frame()
    journal = in_journal(node, "orders", "ticks")
    one = journal[COUNT // 2]
    (row,) = frame.where(f"id = {one['id']}").collect()
    assert (row.sequence, row.topic, row.area) == (one["sequence"], one["topic"], one["topic"])
    wanted = Slice(topics="orders/us", selector="price > 100")
    assert 0 < len(wanted.files(archive)) < len(archive.state.files)
    found = [row.sequence for row in wanted.frame(archive).select("sequence").collect()]
    orders_us = [a["n"] + 1 for topic, _, a in orders(0, COUNT)
                 if topic == "orders/us" and a["price"] > 100]  # fmt: skip
    assert sorted(found) == orders_us
    middle = Timestamp.from_datetime(one["timestamp"]).us
    early, late = (len(archive.frame(None, *times).select("id").collect())
                   for times in ((0, middle), (middle, 0)))  # fmt: skip
    assert early + late == ALL and early and late
    counts = backtest(archive, ["price > 100"], Slice(topics="orders/us"))
    assert counts.matches(0) == len(orders_us)


def test_archives_of_the_first_format(
    spark: Any, staged: Path, node: Served, tmp_path: Path
) -> None:
    """Staged files were of one area and day, in folders of these."""
    root = Path(shutil.copytree(staged, tmp_path / "archive"))
    archive = Archive.open(spark, str(root))
    folder = "staged/0000000099-00000000"
    with writing(spark):
        archive.frame().write.partitionBy("area", "day").parquet(str(root / folder))
    state = archive.state.changed()
    state.format, state.version = 1, archive.state.version + 1
    state.files = described(spark, archive.store, folder, 2)
    for file in state.files:
        (place,) = file.held
        file.area, file.day, file.places = place.area, place.day, []
    old = msgspec.to_builtins(state)
    for one in old["files"]:
        del one["places"]
    (root / FOLDER / f"{state.version:010d}.json").write_bytes(msgspec.json.encode(old))
    archive = Archive.open(spark, str(root))
    archive.recover()  # what no manifest names goes
    assert [path.name for path in (root / "staged").iterdir()] == [folder.split("/")[1]]
    assert len(archive.state.files) >= 3 + 5 and all(proof.well for proof in verify(archive))
    assert Slice(topics="orders/us").frame(archive).count() == COUNT // 3
    compact(archive)
    assert all(proof.well for proof in verify(archive))
    assert in_archive(root) == in_journal(node, "orders", "ticks")


def test_retention_of_staged_files_with_several_days(
    spark: Any, staged: Path, tmp_path: Path
) -> None:
    """Half of the rows become older; they go, and the others stay."""
    root = Path(shutil.copytree(staged, tmp_path / "archive"))
    archive = Archive.open(spark, str(root))
    days = datetime.timedelta(days=10)
    old = 0
    for file in archive.state.files:
        path = root / file.path
        rows = pq.ParquetFile(path).read()
        moments = [
            at - days if n % 2 == 0 else at for n, at in enumerate(rows["timestamp"].to_pylist())
        ]
        at = rows.column_names.index("timestamp")
        rows = rows.set_column(at, "timestamp", pa.array(moments, rows.schema.field(at).type))
        pq.write_table(rows, path)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        old += -(-len(moments) // 2)
    state = archive.state.changed()
    state.files = described(spark, archive.store, "staged", 2)
    archive.manifest.commit(state, "test")
    today = datetime.datetime.now(datetime.UTC).date()
    gone = expire(archive, 5, today)
    assert gone.expired_rows == old and archive.state.rows == ALL - old
    assert len(gone.expired_days) == 1 == len(archive.state.days)
    assert all(proof.well for proof in verify(archive))
    assert len(list((root / "data").rglob("*.parquet"))) == len(archive.state.files)
    assert expire(archive, 5, today).expired_rows == 0


def test_compaction_that_loses_something_is_told(spark: Any, staged: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(staged, tmp_path / "archive"))
    archive = Archive.open(spark, str(root))
    path = root / archive.state.files[0].path
    pq.write_table(pq.ParquetFile(path).read().slice(1), path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    version = archive.state.version
    for by_rows in (False, True):
        with pytest.raises(DiskError, match="nothing is changed"):
            compact(archive, by_rows=by_rows)
    assert Archive.open(spark, str(root)).state.version == version
    assert not list((root / "data").rglob("[!.]*.parquet"))


def test_late_data_columns_and_retention(spark: Any, root: Path, node: Served) -> None:
    """More comes for a day that was compacted; an attribute becomes a column; days go."""
    more = Served(root.parent / "other")
    try:
        more.publish(orders(0, 40))
        archive = Archive.open(spark, str(root))
        archive.add_columns({"price": "double", "symbol": "string"})
        done = archive.take(more.url)
        assert done.rows == 40 and done.late == 40
        assert compact(archive, by_rows=True).rows == 40  # as on a file system only Spark knows
        assert all(proof.well for proof in verify(archive))
        rows = archive.frame().groupBy("journal").agg({"price": "count", "*": "count"}).collect()
        assert sorted((row[1], row[2]) for row in rows) == [(0, COUNT + len(ODD) + 1), (40, 40)]
        assert compact(archive, everything=True).rows == ALL + 40
        rows = archive.frame().groupBy("journal").agg({"price": "count"}).collect()
        assert sorted(row[1] for row in rows) == [40, COUNT]
        assert all(proof.well for proof in verify(archive))
        old = without(in_archive(root, price="", symbol=""), ("timestamp",))
        new = without(in_journal(node, "orders", "ticks") + in_journal(more, "orders"),
                      ("timestamp",))  # fmt: skip
        assert sorted(map(repr, old)) == sorted(map(repr, new))
        with pytest.raises(LocalError, match="stays one"):
            archive.add_columns({"price": "string"})
        today = datetime.datetime.now(datetime.UTC).date()
        assert expire(archive, 2, today).expired_rows == 0
        gone = expire(archive, 2, today + datetime.timedelta(days=3))
        assert gone.expired_rows == ALL + 40
        assert all(proof.well for proof in verify(archive))
        assert not list((root / "data").rglob("*.parquet"))
        # What was removed does not come again; another test makes another stream.
        assert archive.take(node.url, "orders,ticks").rows == 0
    finally:
        more.kill()


LATER = {
    "flag": "boolean", "large": "bigint", "n": "double", "symbol": "string", "data": "binary",
    "when": "timestamp",
}  # fmt: skip


def test_columns_that_come_later_are_filled_in(spark: Any, root: Path, tmp_path: Path) -> None:
    """However files are written anew."""
    found = []
    for by_rows in (False, True):
        archive = Archive.open(spark, str(shutil.copytree(root, tmp_path / f"rows {by_rows}")))
        archive.add_columns(LATER)
        assert compact(archive, everything=True, by_rows=by_rows).rows == ALL
        rows = archive.frame().select("sequence", *LATER).orderBy("stream", "sequence").collect()
        found.append([row.asDict() for row in rows])
    assert found[0] == found[1]
    counts = {name: sum(row[name] is not None for row in found[0]) for name in LATER}
    assert counts == {"flag": 1, "large": 1, "n": COUNT, "symbol": COUNT, "data": 1, "when": 1}
    assert [row["n"] for row in found[0][:3]] == [0.0, 1.0, 2.0]  # ints, too, as the source does
    moments = {row["when"] for row in found[0]} - {None}
    assert moments == {datetime.datetime(2023, 11, 14, 22, 13, 20, 1)}


def since(known: Known, answers: list[int]) -> Known:
    """What a node said when it still kept more."""
    return replace(known, first=known.first | {"orders": answers.pop()}) if answers else known


def test_what_the_node_dropped_is_told(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Served(tmp_path / "node", keep_bytes=100_000, segment_bytes=65_536, frame_bytes=16_384,
                  control_frame_bytes=16_384)  # fmt: skip
    try:
        node.publish(orders(0, 100))
        archive = Archive.open(spark, str(tmp_path / "archive"), make=True)
        archive.take(node.url)
        node.publish(orders(100, 8_000))
        deadline = time.monotonic() + PATIENCE_S
        while len(list((node.data / "journal").glob("*.seg"))) > 8:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with Link(node.url) as link:
            first = next(one.first for one in link.streams().streams if one.name == "orders")
        with pytest.raises(LocalError, match=r"101 to .* is gone"):
            archive.take(node.url)
        # As if the node had dropped it between the question and the reading, which may happen.
        true, answers = Table.known, [101]
        monkeypatch.setattr(Table, "known", lambda table: since(true(table), answers))
        with pytest.raises(LocalError, match=r"101 to .* is gone"):
            archive.take(node.url)
        answers.append(101)
        done = archive.take(node.url, allow_loss=True)
        assert done.lost >= first - 101 and not answers
        proof = next(proof for proof in verify(archive) if proof.stream == "orders")
        assert proof.well and proof.rows == proof.high - proof.low - done.lost
    finally:
        node.kill()


def test_damage_is_found(spark: Any, root: Path) -> None:
    archive = Archive.open(spark, str(root))
    file = next(file for file in archive.state.files if file.area == "orders/eu")
    path = root / file.path
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.slice(1), path)
    (root / file.path).with_name(f".{path.name}.crc").unlink(missing_ok=True)
    wrong = [proof for proof in verify(archive) if not proof.well]
    assert [(proof.stream, proof.wanted - proof.rows) for proof in wrong] == [("orders", 1)]


def test_replaying_an_hour_gives_the_same_rows(spark: Any, made: Path, tmp_path: Path) -> None:
    empty = Served(tmp_path / "node")
    try:
        archive = Archive.open(spark, str(made))
        hour = Slice(since_us=time.time_ns() // 1000 - 3_600_000_000)
        done = replay(archive, hour, empty.url, name="hour")
        assert done.rows == archive.state.rows
        again = replay(archive, hour, empty.url, name="hour")  # done is done
        assert again.rows == 0 and again.known == done.steps
        shutil.rmtree(made / "replays" / "hour")  # even if nobody remembers but the node
        replay(archive, hour, empty.url, name="hour")
        other = Archive.open(spark, str(tmp_path / "again"), make=True)
        assert other.take(empty.url).rows == archive.state.rows
        compact(other)
        old = sorted(map(repr, without(in_archive(made), NEW)))
        new = sorted(map(repr, without(in_archive(tmp_path / "again"), NEW)))
        assert old == new
        first, second = (in_archive(one) for one in (made, tmp_path / "again"))
        for stream in ("orders", "ticks"):  # in the old order
            bodies = [
                [r["body"] for r in rows if r["stream"] == stream] for rows in (first, second)
            ]
            assert bodies[0] == bodies[1]
    finally:
        empty.kill()
        shutil.rmtree(made / "replays", ignore_errors=True)


def test_a_slice_to_another_topic_at_the_old_pace(spark: Any, root: Path, node: Served) -> None:
    archive = Archive.open(spark, str(root))
    waits: list[float] = []
    before = node.next("copies")
    wanted = Slice(topics="orders/eu", selector="symbol = 'S1'")
    done = replay(archive, wanted, node.url, to="copies/{topic}/x", pace=0.001, step_s=1,
                  sleep=waits.append)  # fmt: skip
    count = sum(topic == "orders/eu" and values["symbol"] == "S1"
                for topic, _, values in orders(0, COUNT))  # fmt: skip
    assert done.rows == count == node.next("copies") - before
    assert {row["topic"] for row in in_journal(node, "copies")} == {"copies/orders/eu/x"}
    with pytest.raises(LocalError, match="another --name"):
        replay(archive, Slice(topics="orders/us"), node.url, name=done.name)


WRONG = [
    ({"levels": 0}, "levels are 1 to 16"),
    ({"levels": 3}, "not for 3"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_wrong_input_is_told(spark: Any, made: Path, options: Any, text: str) -> None:
    with pytest.raises(LocalError, match=text):
        Archive.open(spark, str(made), **options)


def test_what_is_no_archive(spark: Any, made: Path, node: Served, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LocalError, match="is no archive, and not empty"):
        Archive.open(spark, str(tmp_path), make=True)
    with pytest.raises(LocalError, match="begins one"):
        Archive.open(spark, str(tmp_path / "nothing"))
    with pytest.raises(LocalError, match="Spark knows no way"):
        Archive.open(spark, "nosuch://place/archive")
    archive = Archive.open(spark, str(made))
    with pytest.raises(LocalError, match="no stream nowhere"):
        archive.take(node.url, "nowhere")
    other = Archive.open(spark, str(made))
    archive.manifest.commit(archive.state.changed(), "test")
    with pytest.raises(LocalError, match="somebody else writes"):
        other.manifest.commit(other.state.changed(), "test")
    assert (made / FOLDER).is_dir()


@pytest.mark.xdist_group("killed")  # needs nothing of that
def test_drivers_that_are_killed_at_any_moment(tmp_path: Path) -> None:
    source = random.Random(20261116)
    node = Served(tmp_path / "node")
    root = tmp_path / "archive"
    drivers: list[Driver] = []

    def prepare(rows: int) -> None:
        drivers.append(Driver(node, root, str(rows), job=JOB))

    try:
        node.publish(orders(0, COUNT))
        node.publish(ODD)
        prepare(COUNT // 12)
        for left in reversed(range(KILLS)):
            drivers[0].begin()
            prepare(COUNT // 12 if left else COUNT)  # Java starts meanwhile
            assert drivers[0].wait_for("started")
            if source.random() < 0.8:
                drivers[0].wait_for("batch")
            time.sleep(source.uniform(0, 1.5))
            drivers.pop(0).kill()
        (last,) = drivers
        last.begin()
        last.end()
        drivers.clear()
        assert in_archive(root) == in_journal(node, "orders", "ticks")
        assert not list((root / "staged").iterdir())
        names = [path.name for path in (root / "data").rglob("*.parquet")]
        assert not [name for name in names if name.startswith(".")]
    finally:
        for driver in drivers:
            driver.kill()
        node.kill()
