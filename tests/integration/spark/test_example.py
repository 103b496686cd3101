"""The example, its notebook, and the commands: what the pages say works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.quick_java import java_options
from spark.serving import Served, orders

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from regraft.pipeline import session

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
RUN_S = 300.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "node")
    served.kill()
    config = served.config.read_text()
    # The example calls streams by their topics, and the pages publish below `large`.
    for topic in ("ticks/#", "averages/#", "large/#"):
        config = f'[[streams]]\nname = "{topic}"\ntopic = "{topic}"\n' + config
    served.config.write_text(config)
    served.start()
    yield served
    served.kill()


def rows(node: Served) -> int:
    return node.next("averages/#") - 1


def test_the_example_runs_and_goes_on_where_it_was(node: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "regraft", "pipeline", "run", "--master", "local[2]"]
    quick = f"spark.driver.extraJavaOptions={java_options()}"
    command += ["--conf", "spark.ui.enabled=false", "--conf", quick]
    command += [str(EXAMPLES / "ticker_pipeline.py")]
    command += ["--url", node.url, "--checkpoint", str(tmp_path / "checkpoint"), "--publish", "600"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RUN_S)
    assert said.returncode == 0, said.stderr[-3000:]
    assert "averages: batch 0, 600 rows" in said.stderr
    assert "1 queries" in said.stderr and "600 rows in" in said.stderr
    assert 6 < rows(node) < 16  # three sectors, five minutes, but for the windows still open


def test_the_notebook(spark: Any, node: Served, tmp_path: Path, capsys: Any) -> None:
    """Its cells are one program."""
    cells = json.loads((EXAMPLES / "ticker_pipeline.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGRAFT_URL", node.url)
        patch.setenv("REGRAFT_EXAMPLES", str(EXAMPLES))
        patch.setenv("REGRAFT_CHECKPOINT", str(tmp_path / "checkpoint"))
        patch.setattr(sys, "path", [*sys.path])
        exec(compile("\n".join(code), "notebook", "exec"), {"__name__": "__main__"})
    assert rows(node) > 3
    assert "|ticks/" in capsys.readouterr().out


def program(page: str) -> str:
    """The blocks of a page that are about Spark."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return "\n".join(block for block in blocks if "pipeline" in block or "writeStream" in block)


def test_the_pages(spark: Any, node: Served, tmp_path: Path) -> None:
    """What they say about Spark is one program each, and the second publishes what is large."""
    node.publish(orders(0, 10))
    node.publish([("orders/eu", b"x", {"price": 150, "symbol": "ACME"}),
                  ("orders/eu", b"y", {"price": 50, "symbol": "ACME"})])  # fmt: skip
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program("README.md"), "README.md", "exec"), names)
    assert names["orders"].isStreaming
    code = program("docs/howto/spark.md").replace("checkpoints/large", str(tmp_path / "large"))
    url = (
        f'format("regraft").option("url", "{node.url}")'  # Java runs: a variable would be too late
    )
    code = code.replace('format("regraft")', url)
    assert str(tmp_path) in code
    try:
        exec(compile(code, "spark.md", "exec"), names)
        names["query"].processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
    assert node.next("large/#") - 1 == 1


def test_settings_reach_a_session_that_runs(spark: Any) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    settings = {"spark.sql.shuffle.partitions": 3, "spark.driver.memory": "9g"}  # one is too late
    assert session("other", config=settings) is spark
    try:
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_the_doctor_is_content(node: Served) -> None:
    command = [sys.executable, "-m", "regraft", "pipeline", "doctor", "-u", node.url]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RUN_S)
    assert said.returncode == 0, said.stdout
    assert "MISSING" not in said.stdout
