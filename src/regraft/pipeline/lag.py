"""How far behind a query is: what Spark's progress says of the source, as numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


def lag_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """For each stream that a query reads, how many messages are there that it has not read."""
    found: dict[str, int] = {}
    for source in progress.get("sources", ()):
        ends, latest = (_streams(source.get(key)) for key in ("endOffset", "latestOffset"))
        for stream, end in ends.items():
            if stream in latest:
                found[stream] = max(0, latest[stream] - end)
    return found


def _streams(offset: Any) -> dict[str, int]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, Mapping) or "journal" not in offset:
        return {}  # of another source
    return {stream: int(parts["0"]) for stream, parts in offset["streams"].items()}


class LagListener(StreamingQueryListener):
    """Calls `report(query, progress, lag)` after each micro-batch, in a thread of Spark.

    `spark.streams.addListener(LagListener(print))` begins it.
    """

    def __init__(self, report: Callable[[str, dict[str, Any], dict[str, int]], object]) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query began."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch was done."""
        progress = json.loads(event.progress.json)
        name = progress.get("name") or str(progress["id"])[:8]
        self._report(name, progress, lag_of(progress))

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query ended."""
