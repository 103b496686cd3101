"""Where garbage is looked for in a worker of Spark."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from pyspark.sql.types import StringType, StructField, StructType

import regraft
from regraft.pipeline import sink, source, workers
from regraft.pipeline.options import Options


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One more each time that all there is is left out from then on."""
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(True))
    monkeypatch.setattr(workers, "_modules", 0)
    monkeypatch.setenv(workers.REUSED, "1")
    return calls


def test_only_in_a_worker(frozen: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(workers.REUSED)
    workers.settle()
    assert not frozen


def test_again_when_more_was_imported(frozen: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        workers.settle()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "one_more", ModuleType("one_more"))
    for _ in range(3):
        workers.settle()
    assert len(frozen) == 2


def test_the_sink_does_it(frozen: list[bool]) -> None:
    schema = StructType([StructField("topic", StringType())])
    writer = sink.Writer(schema, {"url": "127.0.0.1:1"})
    with pytest.raises(regraft.RegraftError, match="no node answers"):
        writer.stage(iter(()), "s", 0)
    assert frozen


def test_the_source_does_it(frozen: list[bool]) -> None:
    schema = StructType([StructField("topic", StringType())])
    table = source.Table(schema, Options.read({"url": "127.0.0.1:1", "subscribe": "x"}))
    with pytest.raises(regraft.RegraftError, match="no node answers"):
        table.known()
    assert len(frozen) == 1
    workers._modules = 0
    with pytest.raises(regraft.RegraftError, match="no node answers"):
        next(table.rows(source.Range("j", "x", 1, 2), ""))
    assert len(frozen) == 2
