"""A driver that archives and compacts in small steps, and says where it is: URL ROOT ROWS.

It says "ready" when Java runs, and begins when it is told a line.
"""

from __future__ import annotations

import sys

from regraft.pipeline import session
from regraft.pipeline.archive import Archive
from regraft.pipeline.compaction import compact
from spark.quick_java import java_options

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": java_options(),
}


def main(url: str, root: str, rows: str) -> None:
    spark = session("archive", "local[2]", SETTINGS)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    print("started", flush=True)
    archive = Archive.open(spark, root, make=True)
    archive.recover()
    number = 0
    while archive.take(url, batch_rows=int(rows), most=1).rows:
        number += 1
        print(f"batch {number}", flush=True)
        if number % 2 == 0:
            compact(archive)
            print(f"batch {number}, compacted", flush=True)
    compact(archive)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
