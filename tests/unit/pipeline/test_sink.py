"""What becomes of a batch is told."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from pyspark.sql.types import StringType, StructField, StructType

from regraft.errors import LocalError
from regraft.pipeline import sink
from regraft.wire import bulk


@pytest.mark.parametrize("refused", [0, 3])
def test_messages_that_the_node_refuses_fail_the_query(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    asked: list[Any] = []

    class Link:
        def __init__(self, url: str | None) -> None:
            self.url = url

        def __enter__(self) -> Link:
            return self

        def __exit__(self, *error: object) -> None:
            asked.append(self.url)

        def commit(self, parts: bulk.Parts) -> bulk.Committed:
            asked.append(parts)
            return bulk.Committed(7, False, refused)

    monkeypatch.setattr(sink, "Link", Link)
    writer = sink.Writer(StructType([StructField("topic", StringType())]), {"url": "here"})
    staged = sink.Staged("q", 5, 0, "a", 100, 10)
    if refused:
        with pytest.raises(LocalError, match="3 messages of batch 5 were not published"):
            writer.commit([staged, None])
    else:
        writer.commit([staged, None])
    assert asked == [bulk.Parts("q", 5, [(0, "a", 100, 10)]), "here"]
