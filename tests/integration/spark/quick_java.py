"""A Java in which Spark starts in half the time: its classes are laid out once, and then mapped.

The file with them belongs to one Java and one Spark, and stays in `build/`. Java ignores a file
that does not fit; where none can be made, tests are only slower.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import pyspark

from regraft.pipeline.java import find_java

BUILD = Path(__file__).parents[3] / "build"
PLAIN = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
MAKE_S = 300.0


@cache
def java_options() -> str:
    """Options of a Java that is to start fast rather than to run fast."""
    file = _file()
    BUILD.mkdir(exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not file.exists():
            _make(file)
    quiet = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
    return f"{PLAIN} -XX:SharedArchiveFile={file} {quiet}" if file.exists() else PLAIN


def _file() -> Path:
    home = find_java()
    known = (str(home), _said(home), pyspark.__version__, pyspark.__file__)
    return BUILD / f"spark-{sha256(repr(known).encode()).hexdigest()[:16]}.jsa"


def _said(home: Path | None) -> str:
    java = [str(home / "bin" / "java") if home else "java", "-version"]
    return subprocess.run(java, capture_output=True, text=True, timeout=MAKE_S).stderr


def _make(file: Path) -> None:
    new = file.with_suffix(".new")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run([sys.executable, __file__, str(new)], env=environ, timeout=MAKE_S,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    if new.exists():
        new.replace(file)


def main(new: str) -> None:
    """Use what tests use, so that Java has loaded it when it ends."""
    from pyspark import SparkContext
    from pyspark.sql import functions as F

    from regraft.pipeline import session

    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"{PLAIN} -XX:ArchiveClassesAtExit={new}",
    }
    spark = session("classes", "local[2]", settings)
    with tempfile.TemporaryDirectory() as place:
        frame = spark.range(1_000).withColumn("json", F.expr("""try_parse_json('{"a": 1}')"""))
        frame = frame.withColumn("body", F.to_json("json").cast("binary"))
        frame.write.option("compression", "zstd").parquet(f"{place}/a")
        spark.read.parquet(f"{place}/a").groupBy(F.col("id") % 3).agg(F.max("id")).collect()
        spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
        stream = spark.readStream.schema(frame.schema).parquet(f"{place}/a").select("id")
        output = stream.writeStream.option("checkpointLocation", f"{place}/c")
        output.trigger(availableNow=True).format("parquet").start(f"{place}/b").awaitTermination()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()
    java.wait(MAKE_S)  # it writes the file when it ends


if __name__ == "__main__":
    main(*sys.argv[1:])
