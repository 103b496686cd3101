"""The source on real Spark: rows are the messages, whatever is asked for and whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark.serving import Served, orders

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import regraft
from pyspark_regraft import DefaultSource
from regraft.model.message import Timestamp
from regraft.pipeline import column
from regraft.pipeline.lag import LagListener, lag_of
from regraft.pipeline.rows import untyped

COUNT = 3000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("node"))
    served.publish(orders(0, COUNT))
    yield served
    served.kill()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A node for a test that publishes, or counts what others might publish."""
    served = Served(tmp_path / "own")
    served.publish(orders(0, COUNT))
    yield served
    served.kill()


def read(spark: Any, node: Served, schema: str = "", **options: str) -> Any:
    reader = spark.read.format("regraft").options(**{"url": node.url, "subscribe": "orders"})
    reader = reader.options(**options)
    return (reader.schema(schema) if schema else reader).load()


def numbers(frame: Any) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


NS = "n bigint, sequence bigint, topic string, symbol string, timestamp timestamp"


def test_rows_are_the_messages(spark: Any, own: Served) -> None:
    values = {
        "bool": True, "int": -(2**63), "float": 1.5, "string": "grüß", "bytes": b"\x00\xff",
        "time": Timestamp(1_700_000_000_123_456),
    }  # fmt: skip
    with regraft.connect_blocking(own.url) as client:
        headers = {"priority": 7, "correlation": "c", "type_name": "Tick"}
        client.publish(
            "ticks/a",
            b"body",
            attributes=values,
            persistent=True,
            confirm=True,
            content_type="text/x",
            **headers,
        )
    frame = spark.read.format("regraft").option("url", own.url).option("subscribe", "ticks")
    (row,) = frame.option("includeHeaders", "true").load().collect()
    assert (row.stream, row.partition, row.sequence, row.topic) == ("ticks", 0, 1, "ticks/a")
    assert bytes(row.body) == b"body"
    assert {name: untyped(value) for name, value in row.attributes.items()} == values
    assert (row.priority, row.correlation, row.type_name) == (7, "c", "Tick")
    assert (row.content_type, row.delivery_mode, row.size) == ("text/x", "PERSISTENT", 4)
    assert (row.reply_to, row.sender, row.context) == (None, None, {})
    assert abs(row.timestamp.timestamp() - time.time()) < 3600
    (few,) = frame.load().collect()
    assert few == row[: len(few)]


def test_ranges_and_pieces(spark: Any, node: Served) -> None:
    assert numbers(read(spark, node, NS)) == list(range(COUNT))
    some = read(spark, node, NS, startingOffsets='{"orders": {"0": 101}}',
                endingOffsets='{"orders": 201}', minPartitions="4")  # fmt: skip
    assert numbers(some) == list(range(100, 200))
    assert some.rdd.getNumPartitions() == 4
    assert read(spark, node, NS, startingOffsets="latest").count() == 0
    assert read(spark, node, NS, maxRecordsPerPartition="1000").rdd.getNumPartitions() == 3


def test_moments(spark: Any, node: Served) -> None:
    begun = node.next("copies")
    node.publish([("copies/x", b"", {"n": 1})])
    time.sleep(0.05)
    moment = int(time.time() * 1000)
    time.sleep(0.05)
    node.publish([("copies/x", b"", {"n": 2}), ("copies/x", b"", {"n": 3})])
    wanted = {"subscribe": "copies"}
    later = read(spark, node, NS, **wanted, startingTimestamp=str(moment))
    assert numbers(later) == [2, 3]
    earlier = read(spark, node, NS, **wanted, endingTimestamp=str(moment),
                   startingOffsets=json.dumps({"copies": begun}))  # fmt: skip
    assert numbers(earlier) == [1]
    future = str(moment + 3_600_000)
    with pytest.raises(Exception, match="nothing as young as"):
        read(spark, node, NS, **wanted, startingTimestamp=future).count()
    waiting = read(spark, node, NS, **wanted, startingOffsetsByTimestampStrategy="latest",
                   startingOffsetsByTimestamp=json.dumps({"copies": int(future)}))  # fmt: skip
    assert waiting.count() == 0


def test_topics_and_selector_are_evaluated_by_the_node(spark: Any, node: Served) -> None:
    frame = read(spark, node, NS, topics="orders/eu, orders/us", selector="symbol = 'S3'")
    wanted = [n for n in range(COUNT) if n % 11 == 3 and n % 3 < 2]
    assert numbers(frame) == wanted


def test_a_selector_is_the_same_in_the_node_and_as_a_column(spark: Any, node: Served) -> None:
    source = Random(11)
    whole = read(spark, node, includeHeaders="true").cache()
    for _ in range(8):
        text = source.choice(
            [
                f"price > {source.randrange(250)} AND symbol = 'S{source.randrange(11)}'",
                f"NOT (symbol = 'S{source.randrange(11)}') OR missing > 5",
                f"TOPIC('orders/+') AND n BETWEEN {source.randrange(99)} AND 700 AND $size > 2",
                f"symbol LIKE '%{source.randrange(10)}' OR price / 4 < {source.randrange(20)}",
            ]
        )
        mine = {row.sequence for row in whole.where(column(text)).select("sequence").collect()}
        theirs = read(spark, node, "sequence bigint", selector=text)
        assert {row.sequence for row in theirs.collect()} == mine
    whole.unpersist()


def test_conditions_are_pushed_down(spark: Any, node: Served) -> None:
    plain = read(spark, node, NS, pushdown="false").cache()
    for text in (
        "sequence >= 100 AND sequence < 130",
        "sequence > 5 AND sequence <= 9 AND topic = 'orders/eu'",
        "sequence = 17",
        "topic IN ('orders/eu', 'orders/asia') AND symbol = 'S2'",
        "topic LIKE 'orders/e%' AND n < 100",
        "timestamp > timestamp'2001-01-01' AND n < 5",
        "timestamp > timestamp'2100-01-01'",
        "sequence > 10 OR n = 3",
        "sequence IS NULL",
    ):
        # A new frame for each: Spark keeps with a frame what its source was told.
        frame = read(spark, node, NS, pushdown="true", minPartitions="3")
        assert numbers(frame.where(text)) == numbers(plain.where(text)), text
    plain.unpersist()
    narrow = read(spark, node, NS, pushdown="true", maxRecordsPerPartition="1000")
    assert narrow.where("sequence >= 100 AND sequence < 130").rdd.getNumPartitions() == 1
    for text, count in (
        ("stream = 'none'", 0),
        ("stream = 'orders' AND partition = 0 AND priority = 4", COUNT),
        ("partition = 1", 0),
    ):
        headers = read(spark, node, includeHeaders="true", pushdown="true")
        assert headers.where(text).count() >= count
        assert (headers.where(text).count() > 0) is (count > 0)


def test_sql(spark: Any, node: Served) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING regraft "
        f"OPTIONS (url '{node.url}', subscribe 'orders')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, max(sequence) AS last FROM orders").collect()
    assert (row.n, row.last) == (COUNT, COUNT)


# -------------------------------------------------------------------------------- streams


def stream(spark: Any, node: Served, **options: str) -> Any:
    given = {"url": node.url, "subscribe": "orders", "startingOffsets": "earliest"} | options
    return spark.readStream.format("regraft").options(**given).schema(NS).load()


def to_files(frame: Any, place: Path, **trigger: Any) -> Any:
    return (
        frame.writeStream.format("parquet")
        .option("path", str(place / "rows"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def test_a_stream_goes_on_where_it_was(spark: Any, own: Served, tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, int]]] = []
    listener = LagListener(lambda _, progress, lag: seen.append((progress["numInputRows"], lag)))
    spark.streams.addListener(listener)
    try:
        query = to_files(stream(spark, own, maxOffsetsPerTrigger="1000"), tmp_path)
        query.awaitTermination()
        rows = [progress["numInputRows"] for progress in query.recentProgress]
        assert [count for count in rows if count] == [1000, 1000, 1000]
        assert lag_of(query.recentProgress[0])["orders"] > 0
        own.publish(orders(COUNT, 50))
        to_files(stream(spark, own), tmp_path).awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(20_000)
        assert any(count == 1000 and lag["orders"] >= 2000 for count, lag in seen)
    finally:
        spark.streams.removeListener(listener)
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert numbers(found) == list(range(COUNT + 50))
    assert found.select("sequence").distinct().count() == COUNT + 50


def test_streams_that_come_later_are_read_from_their_beginning(
    spark: Any, own: Served, tmp_path: Path
) -> None:
    def read_on() -> dict[str, int]:
        reader = spark.readStream.format("regraft").option("url", own.url)
        reader = reader.option("subscribePattern", "orders|late").schema("stream string")
        to_files(reader.option("startingOffsets", "earliest").load(), tmp_path).awaitTermination()
        found = spark.read.parquet(str(tmp_path / "rows")).groupBy("stream").count().collect()
        return {row["stream"]: row["count"] for row in found}

    there = own.next("orders") - 1
    assert read_on() == {"orders": there}
    with regraft.connect_blocking(own.url) as client:
        client.create_topic("late", retain=True)
        for body in (b"1", b"2", b"3"):
            client.publish("late", body, persistent=True, confirm=True)
    assert read_on() == {"orders": there, "late": 3}


def test_a_watermark_and_a_window(spark: Any, node: Served, tmp_path: Path) -> None:
    frame = stream(spark, node).withWatermark("timestamp", "10 seconds")
    counts = frame.groupBy(F.window("timestamp", "1 hour"), "symbol").count()
    query = (
        counts.writeStream.format("memory")
        .queryName("windows")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    total = spark.table("windows").agg(F.sum("count").alias("n")).collect()[0].n
    assert total >= COUNT


# --------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "nothing"}, "the node has no stream nothing; it has: copies, orders"),
        ({"subscribePattern": "("}, "one of them"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"kafka.bootstrap.servers": "x"}, "here it is url"),
        ({"startingOffsets": "soon"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"orders": 99999999}'}, "has no sequence 99999999 yet"),
        ({"endingOffsets": "earliest"}, "earliest, latest, or JSON"),
        ({"selector": "price >"}, "found the end"),
        ({"topics": "a/#/b"}, "#"),
        ({"minPartitions": "0"}, "whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"url": "127.0.0.1:1"}, "no node answers"),
        ({"url": "no host"}, "is not an address"),
    ],
)
def test_wrong_options_say_what_to_do(node: Served, options: dict[str, str], text: str) -> None:
    """What Spark calls, without Spark: it hands the text on."""
    given = {"url": node.url, "subscribe": "orders"} | options
    with pytest.raises(regraft.RegraftError) as caught:
        source = DefaultSource(given)
        reader = source.reader(source.schema())
        for part in reader.partitions():
            list(reader.read(part))
    assert text in str(caught.value)


def test_a_schema_that_cannot_be(spark: Any, node: Served) -> None:
    for schema, text in (
        ("sequence string", "header of type bigint"),
        ("price decimal(10,2)", "it is an attribute, and that can be read as"),
        ("attributes map<string,string>", "cannot be read as map<string,string>"),
    ):
        with pytest.raises(regraft.RegraftError, match=text):
            DefaultSource({"subscribe": "orders"}).reader(StructType.fromDDL(schema))
    with pytest.raises(Exception, match=text):
        read(spark, node, schema).count()


def test_columns_that_cannot_be_null(spark: Any, node: Served) -> None:
    surely = read(spark, node, "n bigint, sequence bigint NOT NULL, topic string NOT NULL")
    assert [field.nullable for field in surely.schema] == [True, False, False]
    plain = read(spark, node, "n bigint, sequence bigint, topic string")
    assert sorted(surely.collect()) == sorted(plain.collect())
    with pytest.raises(Exception, match=r"(?i)null"):  # and not a number that nobody sent
        read(spark, node, "missing bigint NOT NULL").collect()


def test_after_a_task_workers_do_not_look_for_garbage_in_modules(spark: Any, node: Served) -> None:
    url = node.url

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        """Read in a worker, once; what is not looked for in, and what a second time adds."""
        import gc

        import pyarrow as pa

        from pyspark_regraft import DefaultSource
        from regraft.pipeline import workers

        list(batches)
        gc.unfreeze()
        workers._modules = 0
        source = DefaultSource({"url": url, "subscribe": "orders"})
        reader = source.reader(source.schema())
        (part,) = reader.partitions()
        found = []
        for _ in range(2):
            rows = sum(batch.num_rows for batch in reader.read(part))
            found.append((rows, gc.get_freeze_count()))
        columns = [pa.array(column) for column in zip(*found, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, ["rows", "frozen"])

    first, second = spark.range(0, 1, 1, 1).mapInArrow(work, "rows bigint, frozen bigint").collect()
    assert first.rows == second.rows == COUNT
    assert first.frozen > 10_000
    assert second.frozen == first.frozen


WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"subscribe": "nothing"}, NS, "the node has no stream nothing"),
    ({"endingOffsets": "latest"}, NS, "a stream has no end"),
    ({"url": "127.0.0.1:1"}, NS, "no node answers"),
    ({}, NS.replace("sequence bigint", "sequence string"), "header of type bigint"),
]


def test_a_query_that_was_started_wrongly_goes_on_when_it_is_put_right(
    spark: Any, tmp_path: Path
) -> None:
    node = Served(tmp_path / "node")
    try:
        node.publish(orders(0, 20))
        to_files(stream(spark, node), tmp_path).awaitTermination()
        node.publish(orders(20, 20))
        for options, schema, text in WRONG:
            given = {"url": node.url, "subscribe": "orders"} | options
            with pytest.raises(Exception) as caught:
                reader = spark.readStream.format("regraft").options(**given).schema(schema)
                to_files(reader.load(), tmp_path).awaitTermination()
            assert text in str(caught.value)
        to_files(stream(spark, node), tmp_path).awaitTermination()
        assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(40))
    finally:
        node.kill()


def test_what_retention_took(spark: Any, tmp_path: Path) -> None:
    """A query that is too late fails, and says how to go on; with failOnDataLoss=false it does."""
    node = Served(tmp_path / "node", keep_bytes=100_000, segment_bytes=65_536, frame_bytes=16_384,
                  control_frame_bytes=16_384)  # fmt: skip
    try:
        node.publish(orders(0, 500))
        to_files(stream(spark, node), tmp_path).awaitTermination()
        node.publish(orders(500, 8000))
        deadline = time.monotonic() + 30
        while len(list((node.data / "journal").glob("*.seg"))) > 8:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        query = to_files(stream(spark, node), tmp_path)
        with pytest.raises(Exception, match="failOnDataLoss=false"):
            query.awaitTermination()
        to_files(stream(spark, node, failOnDataLoss="false"), tmp_path).awaitTermination()
        found = numbers(spark.read.parquet(str(tmp_path / "rows")))
        assert len(found) == len(set(found))
        assert found[:500] == list(range(500))
        assert 0 < len(found) - 500 < 8000
        assert found[-1] == 8499
    finally:
        node.kill()


def test_another_journal_is_not_mistaken_for_the_old_one(spark: Any, tmp_path: Path) -> None:
    node = Served(tmp_path / "node")
    try:
        node.publish(orders(0, 20))
        to_files(stream(spark, node), tmp_path).awaitTermination()
        node.kill()
        node.data.rename(tmp_path / "old")
        node.start()
        node.publish(orders(0, 30))
        query = to_files(stream(spark, node), tmp_path)
        with pytest.raises(Exception, match="begin with a new checkpoint"):
            query.awaitTermination()
        node.kill()
        node.data.rename(tmp_path / "new")
        (tmp_path / "old").rename(node.data)
        node.start()
        node.publish(orders(20, 5))
        to_files(stream(spark, node), tmp_path).awaitTermination()  # the checkpoint is as it was
        assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(25))
    finally:
        node.kill()


def test_a_node_that_is_away_fails_the_query_and_not_its_checkpoint(
    spark: Any, tmp_path: Path
) -> None:
    node = Served(tmp_path / "node")
    try:
        node.publish(orders(0, 20))
        to_files(stream(spark, node), tmp_path).awaitTermination()
        node.kill()
        with pytest.raises(Exception, match="no node answers"):
            to_files(stream(spark, node), tmp_path).awaitTermination()
        node.start()
        node.publish(orders(20, 20))
        to_files(stream(spark, node), tmp_path).awaitTermination()
        assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(40))
    finally:
        node.kill()
