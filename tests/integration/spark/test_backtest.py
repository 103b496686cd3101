"""Backtests: counts are those of the reference, however messages are read and encoded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from regraft.errors import LocalError
from regraft.model.message import Message, Timestamp
from regraft.model.selector import Selector
from regraft.pipeline.archive import Archive
from regraft.pipeline.backtest import Result, backtest
from regraft.pipeline.compaction import compact
from regraft.pipeline.rows import typed
from regraft.pipeline.sink import _MAP
from regraft.pipeline.slices import Slice
from spark.archives import in_journal
from spark.quick_java import java_options
from spark.serving import Served, orders

pytestmark = pytest.mark.xdist_group("backtest")  # one worker makes the archive
COUNT = 900
ALL = COUNT + 3
RUN_S = 300.0
COMMANDS = Path(__file__).with_name("commands_job.py")
SELECTORS = [
    "price > 100",
    "price > 100 AND symbol = 'S1'",
    "symbol = 'S1' AND price > 100",  # the same
    "symbol IN ('S1', 'S2', 'S3')",
    "n BETWEEN 100 AND 200 OR symbol LIKE '%7'",
    "TOPIC('orders/+') AND NOT TOPIC('orders/eu')",
    "nothing = 1",
]
HEADERS = ["$priority >= 7", "$size > 5 AND n > 0", "$correlation = 'c'", "ctx.tenant = 'acme'"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: Any) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("backtest") / "node")
    served.publish(orders(0, COUNT))
    ticks: list[Any] = [("ticks/x", b"1234567", {"n": 5}), ("ticks/y", b"", {"n": 0})]
    served.publish(ticks, priority=8, correlation="c")
    yield served
    served.kill()


@pytest.fixture(scope="module")
def root(spark: Any, node: Served, tmp_path_factory: Any) -> Path:
    row = ("ticks/z", {"tenant": typed("acme")})  # only a sink says a context
    frame = spark.createDataFrame([row], f"topic string, context {_MAP}")
    frame.write.format("regraft").option("url", node.url).mode("append").save()
    root = Path(tmp_path_factory.mktemp("backtested") / "archive")
    archive = Archive.open(spark, str(root), make=True)
    archive.take(node.url, batch_rows=COUNT // 2)
    compact(archive)
    return root


def messages(node: Served) -> list[Message]:
    found = []
    for row in in_journal(node, "orders", "ticks"):
        maps: dict[str, dict[str, Any]] = {"attributes": {}, "context": {}}
        for kind, values in maps.items():
            for name, value in row[kind] or ():
                (one,) = ((k, v) for k, v in value.items() if v is not None)
                values[name] = Timestamp(one[1]) if one[0] == "timestamp_us" else one[1]
        found.append(
            Message(row["topic"], row["body"], priority=row["priority"],
                    correlation=row["correlation"] or "", **maps)
        )  # fmt: skip
    return found


def counted(result: Result) -> list[int]:
    return [result.matches(n) for n in range(len(result.selectors))]


def reference(node: Served, texts: list[str], only: str = "") -> list[int]:
    every = messages(node)
    if only:
        every = [one for one in every if Selector.parse(only).matches(one)]
    return [sum(bool(Selector.parse(text).matches(one)) for one in every) for text in texts]


def test_counts_are_those_of_the_reference(spark: Any, root: Path, node: Served) -> None:
    archive = Archive.open(spark, str(root))
    lines: list[str] = []
    result = backtest(archive, SELECTORS, say=lines.append)
    assert counted(result) == reference(node, SELECTORS)
    assert result.events == ALL
    assert "7 selectors, 6 of them different" in lines[0]
    assert result.never == [6]
    assert result.filter_of[1] == result.filter_of[2]
    assert sum(result.over_time(0).values()) == result.matches(0)
    both = next(n for a, b, n in result.pairs if (a, b) == (0, 1))
    assert both == result.matches(1)  # of a sample that is everything
    everything = SELECTORS + HEADERS
    assert counted(backtest(archive, everything)) == reference(node, everything)


def test_of_a_slice(spark: Any, root: Path, node: Served) -> None:
    archive = Archive.open(spark, str(root))
    result = backtest(archive, SELECTORS, Slice("orders/eu", "n > 50"))
    only = "TOPIC('orders/eu') AND n > 50"
    assert counted(result) == reference(node, SELECTORS, only)
    assert result.events == reference(node, [only])[0]
    middle = sorted(row["timestamp"] for row in in_journal(node, "orders"))[COUNT // 2]
    moment = Timestamp.from_datetime(middle).us
    early = backtest(archive, SELECTORS, Slice(until_us=moment))
    late = backtest(archive, SELECTORS, Slice(since_us=moment))
    assert early.events + late.events == ALL
    assert [a + b for a, b in zip(counted(early), counted(late), strict=True)] == reference(
        node, SELECTORS
    )


def test_where_only_spark_can_read(spark: Any, root: Path, node: Served) -> None:
    pytest.importorskip("pandas", reason="mapInArrow needs pandas")
    archive = Archive.open(spark, str(root))
    result = backtest(archive, SELECTORS + HEADERS, by_spark=True)
    assert counted(result) == reference(node, SELECTORS + HEADERS)


def test_wrong_input_is_told(spark: Any, root: Path) -> None:
    archive = Archive.open(spark, str(root))
    with pytest.raises(LocalError, match="1 to 1,000,000 selectors"):
        backtest(archive, [])
    with pytest.raises(LocalError, match="too many"):
        backtest(archive, SELECTORS, slot_s=0.0001)
    with pytest.raises(LocalError, match="ends before it begins"):
        Slice(since_us=2, until_us=1)
    with pytest.raises(LocalError):
        Slice(selector="price >")


def regraft(place: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """What the shell says: exit codes, output, and errors. One process runs all, and Java once."""
    conf = ["--master", "local[2]", "--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    (place / "commands").write_text(json.dumps([["pipeline", *one, *conf] for one in commands]))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    job = [sys.executable, str(COMMANDS), str(place)]
    ran = subprocess.run(job, env=environ, capture_output=True, text=True, timeout=RUN_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [
        (code, *((place / f"{n}.{kind}").read_text() for kind in ("out", "err")))
        for n, code in enumerate(json.loads(ran.stdout.splitlines()[-1]))
    ]


def test_the_commands(node: Served, tmp_path: Path) -> None:
    """As a user runs them: all of them, on one archive, and their exit codes."""
    history = str(tmp_path / "history")
    (tmp_path / "selectors.txt").write_text("-- mine\n" + "\n".join(SELECTORS) + "\n")
    report = tmp_path / "out"
    archived, tested, verified, wrong = regraft(
        tmp_path,
        ["archive", history, "-u", node.url, "--column", "price=double", "--json"],
        ["backtest", history, "-f", str(tmp_path / "selectors.txt"), "--report", str(report)],
        ["verify", history, "--json"],
        ["verify", str(tmp_path)],
    )
    code, out, err = archived
    assert code == 0, err[-2000:]
    assert json.loads(out)["archived now"] == ALL
    assert f"archive: {ALL} of {ALL} messages (100 %)" in err
    code, out, err = tested
    assert code == 0, err[-2000:]
    assert "Never matching: 1\n  nothing = 1" in out
    table = pq.read_table(report / "selectors.parquet")
    assert table["matches"].to_pylist() == reference(node, SELECTORS)
    assert (report / "over-time.png").read_bytes()[:4] == b"\x89PNG"
    assert "Most expensive" in (report / "report.html").read_text()
    code, out, err = verified
    assert code == 0, err[-2000:]
    assert sum(one["rows"] for one in json.loads(out)) == ALL
    code, _, err = wrong
    assert code == 2
    assert "is no archive" in err and "Traceback" not in err
