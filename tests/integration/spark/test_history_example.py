"""The notebook about history, and the project for Spark Declarative Pipelines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

import pyspark

from spark.quick_java import java_options
from spark.serving import Served

EXAMPLES = Path(__file__).parents[3] / "examples"
RUN_S = 400.0
NEEDED = ("grpc_status", "pandas", "yaml", "zstandard")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    """Its streams are called by their topics, as those of `regraft serve --retain`."""
    served = Served(tmp_path / "node")
    served.kill()
    topics = ("orders/#", "again/#")
    served.config.write_text(
        "\n".join(f'[[streams]]\nname = "{one}"\ntopic = "{one}"\n' for one in topics)
    )
    served.start()
    yield served
    served.kill()


def test_the_notebook(spark: Any, node: Served, tmp_path: Path, capsys: Any) -> None:
    """Its cells are one program."""
    cells = json.loads((EXAMPLES / "history.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGRAFT_URL", node.url)
        patch.setenv("REGRAFT_ARCHIVE", str(tmp_path / "history"))
        exec(compile("\n".join(code), "notebook", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "orders/# 1000 rows: well" in said
    assert "never: [\"symbol = 'S99'\"]" in said
    assert node.next("again/#") - 1 == sum(n / 4 > 200 for n in range(0, 1_000, 2))


def test_bronze_silver_gold(node: Served, tmp_path: Path) -> None:
    """Two runs: the second takes what has come since."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"pip install 'pyspark[pipelines]': {', '.join(missing)} not installed")
    project = tmp_path / "medallion"
    (project / "transformations").mkdir(parents=True)
    for path in (EXAMPLES / "medallion").rglob("*.*"):
        (project / path.relative_to(EXAMPLES / "medallion")).write_text(
            path.read_text().replace("file:///tmp/regraft-medallion", f"file://{tmp_path}/storage")
        )

    def run(count: int) -> None:
        node.publish(
            (f"orders/{'eu' if n % 2 else 'us'}", b"{}", {"symbol": "A", "price": 2.0})
            for n in range(count)
        )
        script = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
        command = [str(script), "run", "--conf", "spark.sql.catalogImplementation=hive"]
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path), "REGRAFT_URL": node.url,
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": java_options(),
        }  # fmt: skip
        said = subprocess.run(command, env=environ, cwd=project, capture_output=True, text=True,
                              timeout=RUN_S)  # fmt: skip
        assert "Run is COMPLETED" in said.stdout + said.stderr, said.stderr[-3000:]

    run(10)
    run(6)
    import pyarrow.parquet as pq

    (gold,) = (path for path in project.rglob("gold") if path.is_dir())
    assert sum(pq.read_table(gold)["orders"].to_pylist()) == 16
