"""A stock ticker through Spark: enriched, joined with a table, windowed, and published back.

    regraft serve --retain 'ticks/#' --retain 'averages/#'      # in another terminal
    regraft pipeline run examples/ticker_pipeline.py --publish 2000
    regraft sub 'averages/#' --stream 'averages/#' --from start

Run again, it goes on where it was: the checkpoint knows. Ticks are made up; --publish 0 takes
those that are there.
"""

from __future__ import annotations

import argparse
import random
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import regraft
from regraft.model.message import Timestamp
from regraft.pipeline import column, session

SECTORS = [("ACME", "tools"), ("HOOLI", "software"), ("STARK", "tools"), ("UMBR", "health")]
TICK = "symbol string, price double, quantity bigint, at timestamp"
BEGIN = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)


def publish_ticks(url: str | None, count: int) -> None:
    """Make up a morning at the exchange: about two ticks a second."""
    source = random.Random(7)
    with regraft.connect_blocking(url) as client:
        for n in range(count):
            symbol = source.choice(SECTORS)[0]
            attributes = {
                "symbol": symbol,
                "price": round(source.uniform(20, 220), 2),
                "quantity": source.randrange(1, 500),
                "at": Timestamp.from_datetime(BEGIN + timedelta(seconds=n / 2)),
            }
            last = n == count - 1
            client.publish(f"ticks/{symbol}", attributes=attributes, persistent=True, confirm=last)


def averages(spark: SparkSession, url: str | None) -> DataFrame:
    """The average price per sector and minute, of trades that are not small change."""
    reader = spark.readStream.format("regraft").option("subscribe", "ticks/#")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100_000)
    if url:
        reader = reader.option("url", url)
    ticks = reader.schema(f"topic string, attributes {MAP}, {TICK}").load()
    sectors = spark.createDataFrame(SECTORS, "symbol string, sector string")
    minutes = (
        ticks.where(column("quantity > 10 AND symbol IS NOT NULL"))  # as a node would decide it
        .withColumn("value", F.col("price") * F.col("quantity"))
        .withWatermark("at", "30 seconds")
        .join(sectors, "symbol")
        .groupBy(F.window("at", "1 minute").alias("minute"), "sector")
        .agg(
            F.round(F.sum("value") / F.sum("quantity"), 2).alias("average"),
            F.count("*").alias("trades"),
        )
    )
    return minutes.select(
        F.concat(F.lit("averages/"), "sector").alias("topic"),
        F.to_json(F.struct("average", "trades")).alias("body"),
        "sector",
        "average",
        "trades",
        F.col("minute.start").alias("minute"),
    )


MAP = (
    "map<string,struct<bool:boolean,int:bigint,float:double,string:string,bytes:binary,"
    "timestamp_us:bigint>>"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="where the node is")
    parser.add_argument("--publish", type=int, default=0, help="ticks to make up first")
    parser.add_argument("--checkpoint", default="build/ticker-checkpoint")
    options = parser.parse_args()
    if options.publish:
        publish_ticks(options.url, options.publish)
    spark = session("ticker", config={"spark.sql.shuffle.partitions": 2})
    writer = (
        averages(spark, options.url)
        .writeStream.format("regraft")
        .queryName("averages")
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
    )
    query = (writer.option("url", options.url) if options.url else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
