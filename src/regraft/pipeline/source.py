"""Streams of a node as tables of Spark: `format("regraft")`, for batches and for streams.

Rules:

- An offset of Spark is the journal's id, and for each stream the first sequence that is not read:
  `{"journal": "...", "streams": {"orders": {"0": 42}}}`. Offsets of another journal are refused.
- Sequences that were reported are persisted; so they mean the same after any crash.
- A range was read when the node has looked at each of its sequences, however many rows matched.
- What is gone through retention is an error, or with failOnDataLoss=false a warning.
- Conditions that Spark pushes down are evaluated by the node, as well as by Spark again; those on
  stream, partition and sequence only decide what is read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from regraft.errors import LocalError
from regraft.model.message import Timestamp
from regraft.model.selector import ast, text_of
from regraft.pipeline.link import Link, is_lost
from regraft.pipeline.options import EARLIEST, LATEST, Bounds, Options, both, refuse
from regraft.pipeline.rows import arrow_schema, wanted_columns
from regraft.pipeline.workers import settle
from regraft.wire import bulk

log = logging.getLogger("regraft.pipeline")

Offset = dict[str, Any]
Ends = dict[str, int]  # a sequence for each stream

# Columns whose conditions a node can evaluate, and what a selector calls them.
SELECTED = {
    "topic": "$topic",
    "priority": "$priority",
    "sender": "$from",
    "correlation": "$correlation",
    "reply_to": "$reply_to",
    "size": "$size",
    "delivery_mode": "$delivery_mode",
}
COMPARED = {EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<"}
COMPARED[LessThanOrEqual] = "<="


@dataclass
class Range(InputPartition):
    """Some messages of one stream: from `low` on, and below `high`."""

    journal: str
    stream: str
    low: int
    high: int

    def __post_init__(self) -> None:
        super().__init__((self.stream, self.low, self.high))


@dataclass(frozen=True)
class Known:
    """The streams that are to be read, as they are now."""

    journal: str
    first: Ends
    next: Ends


class Table:
    """What batches and streams have in common: where rows come from, and which columns."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self.options = options
        self.columns = wanted_columns(schema)
        self.schema = schema

    def known(self) -> Known:
        """Ask the node; LocalError if a stream that was named is not there."""
        settle()
        with Link(self.options.url) as link:
            rows = link.streams()
        streams = [row for row in rows.streams if self.options.wants(row.name)]
        missing = sorted(set(self.options.names) - {row.name for row in streams})
        if missing:
            there = ", ".join(sorted(row.name for row in rows.streams)) or "it has none"
            raise LocalError(
                "unknown-stream",
                f"the node has no stream {', '.join(missing)}; it has: {there}. [[streams]] in "
                "its configuration, or `regraft serve --retain TOPIC`, says which topics are kept",
            )
        return Known(
            rows.journal,
            {row.name: row.first for row in streams},
            {row.name: row.next for row in streams},
        )

    def bound(self, bounds: Bounds, known: Known, stream: str) -> int:
        """The sequence that a bound stands for."""
        time_us = bounds.time_us or bounds.times_us.get(stream, 0)
        if time_us:
            return self.at_time(known, stream, time_us, bounds.or_latest)
        if bounds.journal and bounds.journal != known.journal:
            raise other_journal(bounds.journal, known.journal)
        value = bounds.streams.get(stream, bounds.everywhere)
        if value == EARLIEST:
            return known.first[stream]
        if value == LATEST:
            return known.next[stream]
        if value > known.next[stream]:
            raise refuse(
                f"stream {stream!r} has no sequence {value} yet; the next is {known.next[stream]}"
            )
        return max(value, 1)

    def at_time(self, known: Known, stream: str, time_us: int, or_latest: bool) -> int:
        """The first sequence that the node took at this moment or later."""
        request = bulk.Read(
            known.journal,
            stream,
            [("sequence", "bigint")],
            end=known.next[stream],
            since_us=time_us,
            rows=1,
        )
        with Link(self.options.url) as link:
            for batch in link.read(request, pa.schema([("sequence", pa.int64())])):
                return int(batch.column(0)[0].as_py())
        if not or_latest:
            raise refuse(
                f"stream {stream!r} has nothing as young as {time_us // 1000} ms; with "
                "startingOffsetsByTimestampStrategy=latest it would begin with what comes"
            )
        return known.next[stream]

    def kept_from(self, known: Known, stream: str, low: int) -> int:
        """Where reading begins if it should begin at `low`."""
        first = known.first[stream]
        if low >= first:
            return low
        self.lost(
            f"stream {stream!r} is kept from sequence {first} on; {low} to {first - 1} is gone"
        )
        return first

    def lost(self, text: str) -> None:
        """Data is gone: that is an error, or a warning."""
        if self.options.fail_on_data_loss:
            raise LocalError(
                "position-expired",
                f"{text}. Begin anew with another checkpoint, or set failOnDataLoss=false to go on "
                "without it; keep_s and keep_bytes of [[streams]] say how long a node keeps it",
            )
        log.warning("%s; failOnDataLoss is false, so it goes on without it", text)

    def ranges(self, known: Known, low: Ends, high: Ends) -> list[Range]:
        """What to read, in pieces of about the same size."""
        total = sum(max(0, high[stream] - low[stream]) for stream in high)
        piece = min(self.options.max_per_partition, -(-total // self.options.min_partitions))
        found = []
        for stream in sorted(high):
            count = high[stream] - low[stream]
            pieces = -(-count // piece) if count > 0 else 0
            edges = [low[stream] + count * k // pieces for k in range(pieces + 1)] if pieces else []
            for start, end in pairwise(edges):
                found.append(Range(known.journal, stream, start, end))
        return found

    def rows(self, part: Range, selector: str) -> Iterator[pa.RecordBatch]:
        """Read a range, and see that nothing of it is missing."""
        settle()
        schema = arrow_schema(self.schema)
        low = part.low
        while low < part.high:
            request = bulk.Read(
                part.journal,
                part.stream,
                self.columns,
                start=low,
                end=part.high,
                selector=selector,
            )
            try:
                with Link(self.options.url) as link:
                    yield from link.read(request, schema)
                    scanned = link.scanned
            except LocalError as error:
                if not is_lost(error):
                    raise
                self.lost(error.text)
                low = self._later(part.stream, low)
                continue
            missing = part.high - low - scanned.scanned
            if missing or scanned.next != part.high:
                self.lost(
                    f"{missing} messages of {part.stream!r} between {low} and {part.high} are not "
                    "where they should be"
                )
            return

    def _later(self, stream: str, low: int) -> int:
        with Link(self.options.url) as link:
            for row in link.streams().streams:
                if row.name == stream and row.first > low:
                    return row.first
        raise LocalError("position-expired", f"stream {stream!r} cannot be read from {low} on")


def other_journal(old: str, new: str) -> LocalError:
    """Offsets do not belong to this node."""
    return LocalError(
        "other-journal",
        f"these offsets are of journal {old}, and this node has {new}: it is another node, or its "
        "data folder was replaced. Point option url to the old one, or begin with a new checkpoint",
    )


# -------------------------------------------------------------------------------- batches


class Batch(DataSourceReader):
    """`spark.read`."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self.table = Table(schema, options)
        self.selector = options.selector
        self.streams: set[str] | None = None
        self.partition_zero = True
        self.low = 1
        self.high = 1 << 62
        self.since_us = 0

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges, as of now."""
        table = self.table
        known = table.known()
        low, high = {}, {}
        for stream in known.next:
            if not self.partition_zero or (self.streams is not None and stream not in self.streams):
                continue
            start = table.bound(table.options.starting, known, stream)
            end = table.bound(table.options.ending, known, stream)
            if self.since_us:
                start = max(start, table.at_time(known, stream, self.since_us, True))
            start, end = max(start, self.low), min(end, self.high)
            if start < end:
                low[stream], high[stream] = table.kept_from(known, stream, start), end
        return table.ranges(known, low, high) or [Range(known.journal, "", 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, Range)
        yield from self.table.rows(partition, self.selector)


class PushingBatch(Batch):
    """The same with conditions that Spark pushes down; they need a setting of the session."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what a node can evaluate; what is left for Spark comes back."""
        for one in filters:
            if not self._narrows(one):
                text = self._selects(one)
                if text:
                    self.selector = both(self.selector, text)
                yield one

    def _narrows(self, one: Filter) -> bool:
        """Whether a condition is met by reading less."""
        column, value = _asked(one)
        if column == "stream" and isinstance(one, EqualTo | In):
            names = {str(item) for item in ((value,) if isinstance(one, EqualTo) else value or ())}
            self.streams = names if self.streams is None else self.streams & names
            return True
        if type(value) is not int:
            if column == "timestamp" and isinstance(one, GreaterThan | GreaterThanOrEqual):
                self._since(value)
            return False
        if column == "partition" and isinstance(one, EqualTo):
            self.partition_zero = self.partition_zero and value == 0
            return True
        if column != "sequence" or type(one) not in COMPARED:
            return False
        if not isinstance(one, LessThan | LessThanOrEqual):
            self.low = max(self.low, value + isinstance(one, GreaterThan))
        if not isinstance(one, GreaterThan | GreaterThanOrEqual):
            self.high = min(self.high, value + (not isinstance(one, LessThan)))
        return True

    def _since(self, value: object) -> None:
        if isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            self.since_us = max(self.since_us, Timestamp.from_datetime(moment).us)

    def _selects(self, one: Filter) -> str:
        """The condition as a selector; empty if it cannot be said. Spark asks again itself."""
        column, value = _asked(one)
        name = SELECTED.get(column)
        if name is None:
            return ""
        if isinstance(one, In):
            items = [_literal(item) for item in value or ()]
            return f"{name} IN ({', '.join(items)})" if items and all(items) else ""
        literal = _literal(value)
        if isinstance(one, StringStartsWith):
            return f"STARTS_WITH({name}, {literal})" if isinstance(value, str) else ""
        symbol = COMPARED.get(type(one))
        return f"{name} {symbol} {literal}" if symbol and literal else ""


def _asked(one: Filter) -> tuple[str, Any]:
    """The column that a condition is about, and the value in it."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else "", getattr(one, "value", None)


def _literal(value: Any) -> str:
    """A value as a selector writes it; empty if it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return text_of(ast.Literal(value))


# -------------------------------------------------------------------------------- streams


class Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self.table = Table(schema, options)
        self.target: Known | None = None

    def initialOffset(self) -> Offset:
        """Where a new query begins."""
        known = self.table.known()
        starting = self.table.options.starting
        ends = {stream: self.table.bound(starting, known, stream) for stream in known.next}
        return offset(known.journal, ends)

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a micro-batch may have."""
        most = self.table.options.max_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that is read."""
        self.target = self.table.known()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next micro-batch ends."""
        known = self.target or self.table.known()
        begun = ends_of(start, known.journal)
        for stream in begun.keys() - known.next.keys():
            self.table.lost(f"stream {stream!r} is not there any more")
        low = {stream: begun.get(stream, known.first[stream]) for stream in known.next}
        for stream, sequence in low.items():
            if sequence > known.next[stream]:
                raise LocalError(
                    "other-journal",
                    f"stream {stream!r} was read up to {sequence}, and the node has less: its data "
                    "folder is an older copy. Begin with a new checkpoint",
                )
        ahead = {stream: known.next[stream] - low[stream] for stream in low}
        if isinstance(limit, ReadMaxRows):
            ahead = share(ahead, limit.max_rows)
        return offset(known.journal, {stream: low[stream] + ahead[stream] for stream in low})

    def reportLatestOffset(self) -> Offset:
        """How far the streams go: what progress shows, and lag is made of."""
        known = self.table.known()
        return offset(known.journal, known.next)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of a micro-batch."""
        known = self.table.known()
        begun, high = ends_of(start, known.journal), ends_of(end, known.journal)
        for stream in high.keys() - known.next.keys():
            self.table.lost(f"stream {stream!r} is not there any more")
            del high[stream]
        low = {
            stream: min(
                self.table.kept_from(known, stream, begun[stream])
                if stream in begun
                else known.first[stream],
                high[stream],
            )
            for stream in high
        }
        return self.table.ranges(known, low, high)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, Range)
        yield from self.table.rows(partition, self.table.options.selector)

    def commit(self, end: Offset) -> None:
        """Nobody but the checkpoint needs to know."""

    def stop(self) -> None:
        """There is nothing open."""


def offset(journal: str, ends: Ends) -> Offset:
    """An offset of Spark. Its text is compared, so that keys stand in order."""
    streams = {stream: {"0": ends[stream]} for stream in sorted(ends)}
    return {"journal": journal, "streams": streams}


def ends_of(value: Offset | str, journal: str) -> Ends:
    """The sequences that an offset says; LocalError if they are of another journal."""
    found = json.loads(value) if isinstance(value, str) else value
    try:
        old, streams = found["journal"], found["streams"]
        ends = {stream: int(parts["0"]) for stream, parts in streams.items()}
    except (KeyError, TypeError, ValueError):
        raise refuse(f"{value!r} is no offset of this source") from None
    if journal and old != journal:
        raise other_journal(old, journal)
    return ends


def share(ahead: Ends, most: int) -> Ends:
    """Parts of what is ahead, `most` in all, in proportion to how much it is for each stream."""
    total = sum(ahead.values())
    if total <= most:
        return ahead
    shares = {stream: count * most // total for stream, count in ahead.items()}
    left = most - sum(shares.values())
    for stream in sorted(ahead):
        if left and shares[stream] < ahead[stream]:
            shares[stream] += 1
            left -= 1
    return shares
