"""The sink on real Spark: a row is a message, once, whatever fails in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark.serving import Served, orders

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

import regraft
from pyspark_regraft import DefaultSource
from regraft.model.message import Timestamp
from regraft.pipeline.rows import untyped
from regraft.pipeline.sink import StreamSink

COUNT = 2000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("node"))
    served.publish(orders(0, COUNT))
    yield served
    served.kill()


def read(spark: Any, node: Served, stream: str, **options: str) -> Any:
    given = {"url": node.url, "subscribe": stream, "includeHeaders": "true"} | options
    return spark.read.format("regraft").options(**given).load()


def numbers(spark: Any, node: Served, stream: str) -> list[int]:
    rows = read(spark, node, stream).select("attributes.n.int").collect()
    return sorted(row[0] for row in rows)


def test_columns_become_what_they_are_called(spark: Any, node: Served) -> None:
    moment = datetime(2026, 11, 16, 12, 30, 0, 123456, tzinfo=UTC)
    rows = [
        ("ticks/a", "text", 9, "c-1", True, 2**40, 1.5, "x", b"\xff", moment),
        ("ticks/b", None, None, None, None, None, None, None, None, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "topic string, body string, priority int, correlation string, yes boolean, big bigint, "
        "real float, word string, raw binary, at timestamp",
    )
    before = node.next("ticks")  # another test writes there, too
    frame.coalesce(1).write.format("regraft").option("url", node.url).mode("append").save()
    rows = read(spark, node, "ticks").where(f"sequence >= {before}")
    first, second = rows.orderBy("sequence").collect()
    assert (first.topic, bytes(first.body), first.priority) == ("ticks/a", b"text", 9)
    assert (first.correlation, first.delivery_mode) == ("c-1", "PERSISTENT")
    attributes = {name: untyped(value) for name, value in first.attributes.items()}
    assert attributes == {
        "yes": True, "big": 2**40, "real": 1.5, "word": "x", "raw": b"\xff",
        "at": Timestamp.from_datetime(moment),
    }  # fmt: skip
    assert (second.topic, bytes(second.body), second.attributes) == ("ticks/b", b"", {})
    assert second.priority == 4


def test_what_was_read_can_be_written_as_it_is(spark: Any, node: Served) -> None:
    before = node.next("ticks")
    frame = read(spark, node, "orders").where("sequence <= 50")
    moved = frame.withColumn("topic", F.concat(F.lit("ticks/"), "topic"))
    moved.write.format("regraft").option("url", node.url).mode("append").save()
    fields = ("body", "attributes", "priority", "content_type", "id", "timestamp_us")
    old = frame.select(*fields).collect()
    new = read(spark, node, "ticks").where(f"sequence >= {before}").select(*fields).collect()

    def known(rows: list[Any]) -> set[tuple[Any, ...]]:
        return {
            (bytes(row.body), str(sorted(row.attributes.items())), row.priority, row.timestamp_us)
            for row in rows
        }

    assert known(new) == known(old)
    assert len(new) == 50
    assert len({row.id for row in new}) == 50


def copy(spark: Any, node: Served, place: Path, format: str = "regraft", **options: str) -> Any:
    given = {"url": node.url, "subscribe": "orders", "startingOffsets": "earliest"}
    frame = spark.readStream.format("regraft").options(**(given | options)).load()
    return (
        frame.select(F.lit("copies/x").alias("topic"), "body", "attributes")
        .writeStream.format(format)
        .option("url", node.url)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


class CrashingSink(StreamSink):
    """Dies once between the node's commit and Spark's, as a driver might."""

    mark = ""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        mark = self.mark + str(batchId)
        if batchId in (1, 2) and not os.path.exists(mark):
            with open(mark, "w"):
                raise RuntimeError("the driver dies here")


class CrashingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        sink = CrashingSink(schema, {k: v for k, v in self.options.items() if k != "mark"})
        sink.mark = self.options["mark"]
        return sink


def test_a_crash_between_the_commit_of_the_node_and_that_of_spark(
    spark: Any, node: Served, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(CrashingSource)
    begun = node.next("copies")
    failures = 0
    while True:
        given = {"url": node.url, "subscribe": "orders", "startingOffsets": "earliest"}
        reader = spark.readStream.format("regraft").options(**given)
        frame = reader.option("maxOffsetsPerTrigger", "500").load()
        query = (
            frame.select(F.lit("copies/x").alias("topic"), "body", "attributes")
            .writeStream.format("crashing")
            .option("url", node.url)
            .option("mark", str(tmp_path / "mark"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            break
        except Exception as error:
            assert "the driver dies here" in str(error)
            failures += 1
            assert failures < 10
    assert failures == 2
    assert node.next("copies") - begun == COUNT
    assert numbers(spark, node, "copies") == list(range(COUNT))
    node.wait_until_nothing_is_staged()


def test_a_node_that_is_killed_while_a_query_runs(spark: Any, tmp_path: Path) -> None:
    node = Served(tmp_path / "node")
    try:
        node.publish(orders(0, COUNT))
        failures = 0
        for _ in range(8):
            query = copy(spark, node, tmp_path, maxOffsetsPerTrigger="250")
            if failures < 2:  # in the middle, wherever that is
                while not query.recentProgress and query.isActive:
                    query.awaitTermination(0.05)
                node.restart()
            try:
                query.awaitTermination()
                break
            except Exception:
                failures += 1
        assert numbers(spark, node, "copies") == list(range(COUNT))
        print(f"{failures} failures of the query, {COUNT} rows, none twice")
    finally:
        node.kill()


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"topic": None}, {}, "a message needs a topic"),
        ({"topic": "a/#"}, {}, "only a pattern may"),
        ({"list": [1]}, {}, "which no attribute can be"),
        ({"value": "x"}, {}, "one body"),
        ({}, {"topik": "x"}, "no option 'topik'"),
        ({}, {"topic": "a/+"}, "only a pattern may"),
        ({}, {"publisher": "a b"}, "letters, digits"),
        ({}, {"url": "127.0.0.1:1"}, "no node answers"),
    ],
)
def test_what_cannot_be_written_says_why(
    node: Served, change: dict[str, Any], options: dict[str, str], text: str
) -> None:
    """What Spark calls, without Spark: it hands the text on."""
    columns: dict[str, Any] = {"topic": "copies/x", "body": "b", "id": 1} | change
    columns = {name: [value] for name, value in columns.items() if value is not None}
    batch = pa.record_batch(columns)
    before = node.next("copies")
    with pytest.raises(regraft.RegraftError) as caught:
        source = DefaultSource({"url": node.url} | options)
        source.writer(from_arrow_schema(batch.schema), False).write(iter([batch]))
    assert text in str(caught.value)
    assert node.next("copies") == before


def test_what_cannot_be_written_fails_the_job(spark: Any, node: Served) -> None:
    frame = spark.range(3).select(F.lit("a/#").alias("topic"))
    with pytest.raises(Exception, match="only a pattern may"):
        frame.write.format("regraft").option("url", node.url).mode("append").save()


def test_what_is_published_cannot_be_overwritten(spark: Any, node: Served) -> None:
    frame = spark.range(3).select(F.lit("copies/x").alias("topic"))
    with pytest.raises(Exception, match="append"):
        frame.write.format("regraft").option("url", node.url).mode("overwrite").save()
