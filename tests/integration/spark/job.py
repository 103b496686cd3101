"""A driver of its own: copies one stream to another, until all of it is copied or it is killed.

python job.py URL CHECKPOINT MASTER ROWS_PER_BATCH

It says "ready" when Java runs, and begins when it is told a line.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from regraft.pipeline import session
from spark.quick_java import java_options

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.driver.extraJavaOptions": java_options(),
    "spark.executor.extraJavaOptions": java_options(),
}


def main(url: str, checkpoint: str, master: str, rows: str) -> None:
    spark = session("job", master, SETTINGS)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    frame = (
        spark.readStream.format("regraft")
        .option("url", url)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .option("minPartitions", "2")
        .load()
    )
    query = (
        frame.select(F.lit("copies/x").alias("topic"), "body", "attributes")
        .writeStream.format("regraft")
        .option("url", url)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    seen = 0
    while query.isActive:
        query.awaitTermination(0.05)
        if len(query.recentProgress) != seen:
            seen = len(query.recentProgress)
            print(f"batch {seen}", flush=True)
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
