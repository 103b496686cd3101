"""Bronze and silver: messages as they came, and orders with types.

A flow takes columns with `select`, never `withColumn`: with that, Spark 4.3 loses sight of which
table a flow reads, and new rows come one run late.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(comment="messages as they came, with their place in the journal")
def bronze() -> DataFrame:
    """Everything of the stream `orders/#`, each message once."""
    reader = spark.readStream.format("regraft").option("subscribe", "orders/#")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "500000")
    return reader.schema(
        "stream string, sequence bigint, timestamp timestamp, topic string, body binary, "
        "symbol string, price double, quantity bigint"
    ).load()


@dp.table(comment="orders that have a price")
def silver() -> DataFrame:
    """Typed, with the body as a Variant where it is JSON."""
    return (
        spark.readStream.table("bronze")
        .select(
            "sequence",
            "timestamp",
            F.element_at(F.split("topic", "/"), 2).alias("region"),
            "symbol",
            "price",
            F.coalesce("quantity", F.lit(1)).alias("quantity"),
            F.expr("try_parse_json(CAST(body AS STRING))").alias("details"),
        )
        .where("price IS NOT NULL AND symbol IS NOT NULL")
    )
