"""Rows as messages: `df.write.format("regraft")` and `df.writeStream.format("regraft")`.

Rules:

- A row is a message. Its topic is column `topic`, or option `topic`; its body is column `body` (or
  `value`, as in Kafka); columns called as headers are headers; the map `attributes` is what the
  source gives; every other column is an attribute of its name. NULL is what is not there.
- Messages of a partition are staged at the node; nobody sees them. When all partitions are staged,
  the driver commits the batch, and the node publishes all of it.
- Exactly once: a batch is known by the query and its number, and a message by query and partition
  (its publisher) and by batch and row (its sequence). What is committed again is only answered.
- For `df.write` this holds for each call, and with option `once` (a name and a number that grows)
  for all calls with the same one.
- An attempt stages under a name of its own, and an abort drops what was staged under it, never what
  was committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from regraft.client.payload import HEADERS, encode_headers
from regraft.errors import LocalError
from regraft.kernels.outbox import Outbox
from regraft.kernels.rows import (
    ATTRIBUTES_MAX,
    BOOL,
    BYTES,
    FLOAT,
    INT,
    NAME_BYTES_MAX,
    STRING,
    TIME,
    Cells,
    Entries,
    Rows,
)
from regraft.model.message import Compression, Timestamp, Value
from regraft.model.topics import check_topic
from regraft.pipeline.link import Link
from regraft.pipeline.options import refuse, url_of
from regraft.pipeline.rows import VALUE
from regraft.pipeline.workers import settle
from regraft.wire import bulk

KNOWN = ("url", "topic", "publisher", "once")
SPARKS = ("checkpointlocation", "queryname", "path", "truncate")  # options that Spark adds
SEND_BYTES = 256 * 1024
ROW_BITS = 32  # of a sequence; the batch has the rest

# What the source gives and a message does not take along.
PASSED_OVER = frozenset(
    ("stream", "partition", "sequence", "timestamp", "size", "delivery_mode", "publisher_sequence")
)
NAMED = frozenset(("topic", "body", "value", "attributes", "context", "timestamp_us", "id"))
PLAIN: Mapping[str, Callable[[Any], Value]] = {
    "boolean": bool,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    "string": str,
    "binary": bytes,
    "timestamp": Timestamp.from_datetime,
}
KINDS = {
    "boolean": BOOL,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), INT),
    **dict.fromkeys(("float", "double"), FLOAT),
    "string": STRING,
    "binary": BYTES,
    "timestamp": TIME,
}
IN_MAPS = (BOOL, INT, FLOAT, STRING, BYTES, TIME)  # as in `VALUE`
_MAP = f"map<string,{VALUE.simpleString()}>"


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    sink: str
    batch: int
    part: int
    attempt: str
    size: int
    messages: int


class Layout:
    """What becomes of each column; LocalError if one cannot become anything."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        given = {key.lower(): value for key, value in options.items()}
        for key in given:
            if key not in KNOWN and key not in SPARKS:
                raise refuse(
                    f"the sink has no option {key!r}; it has url, topic, publisher and once"
                )
        self.url = url_of(given)
        self.publisher = given.get("publisher", "")
        self.topic = given.get("topic", "")
        self.once = given.get("once", "")
        names = [field.name for field in schema.fields]
        self.kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        if self.topic:
            check_topic(self.topic)
        elif "topic" not in names:
            raise refuse("a message needs a topic: a column `topic`, or option topic")
        if "body" in names and "value" in names:
            raise refuse("a message has one body: column `body` or column `value`, not both")
        self.body = "body" if "body" in names else "value" if "value" in names else ""
        if self.body and self.kinds[self.body] not in ("string", "binary"):
            text = f"column {self.body!r} is a {self.kinds[self.body]}"
            raise refuse(f"{text}; a body is a string or binary: use to_json(...), for example")
        self.maps = [name for name in names if name in ("attributes", "context")]
        for name in self.maps:
            if self.kinds[name] != _MAP:
                raise refuse(f"column {name!r} is a {self.kinds[name]}, and should be a {_MAP}")
        named = HEADERS.keys() - {"message_id"}  # a row's id is made of query, partition and row
        self.headers = [name for name in names if name in named - PASSED_OVER]
        self.plain = [name for name in names if name not in NAMED | named | PASSED_OVER]
        for name in self.plain:
            if self.kinds[name] not in PLAIN:
                raise refuse(
                    f"column {name!r} is a {self.kinds[name]}, which no attribute can be: cast it "
                    f"to one of {', '.join(PLAIN)}, put it into the body with to_json, or drop it"
                )
        if self.publisher and not bulk.SINK.fullmatch(self.publisher):
            raise refuse("option publisher has 1 to 64 letters, digits, - or _")

        # Without these, no row has to become Python objects.
        self.is_plain = (
            not self.headers
            and "context" not in self.maps
            and not (self.maps and self.plain)
            and len(self.plain) <= ATTRIBUTES_MAX
            and all(0 < len(name.encode()) <= NAME_BYTES_MAX for name in self.plain)
        )

    def put_columns(self, box: Rows, batch: pa.RecordBatch) -> None:
        """Put the rows of a batch into a box, as frames, without a Python object for each."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        done = box.put(
            0,
            batch.num_rows,
            self.topic.encode(),
            None if self.topic else cells_of(columns["topic"], STRING),
            cells_of(columns[self.body], STRING) if self.body else None,
            cells_of(columns["timestamp_us"], INT) if "timestamp_us" in columns else None,
            [cells_of(columns[name], KINDS[self.kinds[name]], name) for name in self.plain],
            entries_of(columns["attributes"]) if self.maps else None,
        )
        if done < batch.num_rows:
            raise LocalError("bad-topic", f"row {done} of a batch has no topic")

    def put(self, outbox: Outbox, batch: pa.RecordBatch) -> None:
        """Put the rows of a batch into an outbox, as frames."""
        rows = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        topics = columns["topic"].to_pylist() if not self.topic else [self.topic] * rows
        encoded = {topic: (topic or "").encode() for topic in set(topics)}
        bodies = _bodies(columns[self.body]) if self.body else [b""] * rows
        values = [_plain(columns[name], self.kinds[name]) for name in self.plain]
        attributes: Iterator[dict[str, Value] | None] = _dicts(self.plain, values, rows)
        if "attributes" in self.maps:
            attributes = _joined(columns["attributes"].to_pylist(), attributes)
        rest = self._rest(columns, rows)
        times = columns["timestamp_us"].to_pylist() if "timestamp_us" in columns else None
        put = outbox.put
        for row, (topic, body, own, more) in enumerate(
            zip(topics, bodies, attributes, rest, strict=True)
        ):
            if not topic:
                raise LocalError("bad-topic", f"row {row} of a batch has no topic")
            put(encoded[topic], body, own, (times[row] or 0) if times else 0, True, more)

    def _rest(self, columns: Mapping[str, Any], rows: int) -> Iterator[bytes]:
        """Header fields of each row, and the context, encoded."""
        if not self.headers and "context" not in self.maps:
            yield from (b"" for _ in range(rows))
            return
        lists = [columns[name].to_pylist() for name in self.headers]
        contexts = columns["context"].to_pylist() if "context" in self.maps else [None] * rows
        scratch = Outbox(1 << 24, 0)
        for row in range(rows):
            given = {name: values[row] for name, values in zip(self.headers, lists, strict=True)}
            if given.get("compression") is not None:
                given["compression"] = Compression.NONE  # the source has inflated it
            given.pop("delivery_mode", None)
            yield encode_headers(given) + _context(scratch, contexts[row])


_ARROW = {BOOL: pa.bool_(), FLOAT: pa.float64()}
_ARROW |= dict.fromkeys((INT, TIME), pa.int64())
_ARROW |= dict.fromkeys((STRING, BYTES), pa.binary())


def _views(column: Any) -> list[memoryview | None]:
    return [None if one is None else memoryview(one).cast("B") for one in column.buffers()]


def cells_of(column: Any, kind: int, name: str = "") -> Cells:
    """A column for the kernel, which reads it where it is."""
    column = column.cast(_ARROW[kind])
    views = _views(column)
    offsets = views[1] if len(views) > 2 else None
    return Cells(kind, column.offset, views[0], offsets, views[-1], name.encode())


def entries_of(column: Any) -> Entries:
    """A column of maps, the same way."""
    valid, offsets = _views(column)[:2]
    items = column.items
    return Entries(
        Cells(STRING, column.offset, valid, offsets, None),
        cells_of(column.keys, STRING),
        Cells(BOOL, items.offset, _views(items)[0], None, None),
        [cells_of(items.field(at), kind) for at, kind in enumerate(IN_MAPS)],
    )


def _bodies(column: Any) -> list[bytes]:
    """Bodies as bytes, without a Python object in between."""
    return [body or b"" for body in column.cast(pa.binary()).to_pylist()]


def _plain(column: Any, kind: str) -> list[Any]:
    if kind == "timestamp":
        micros = column.cast(pa.int64()).to_pylist()
        return [None if us is None else Timestamp(us) for us in micros]
    if kind == "float":
        column = column.cast(pa.float64())
    values: list[Any] = column.to_pylist()
    return values


def _dicts(
    names: list[str], values: list[list[Any]], rows: int
) -> Iterator[dict[str, Value] | None]:
    """Attributes of each row; what is NULL is not there."""
    if not names:
        yield from (None for _ in range(rows))
    elif not any(None in column for column in values):
        for row in zip(*values, strict=True):
            yield dict(zip(names, row, strict=True))
    else:
        for row in zip(*values, strict=True):
            pairs = zip(names, row, strict=True)
            yield {name: value for name, value in pairs if value is not None}


def _joined(
    maps: list[Any], others: Iterator[dict[str, Value] | None]
) -> Iterator[dict[str, Value] | None]:
    """Attributes from the map, and those of columns, which count if both are there."""
    for entries, own in zip(maps, others, strict=True):
        yield {**_untyped(entries), **(own or {})}


def _untyped(entries: Any) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in entries or ():
        us = value.pop("timestamp_us") if value is not None else None
        if us is not None:
            found[name] = Timestamp(us)
            continue
        for one in (value or {}).values():
            if one is not None:
                found[name] = one
                break
    return found


def _context(scratch: Outbox, entries: Any) -> bytes:
    """The context as an envelope has it: attributes, in another field."""
    parts = []
    for name, value in _untyped(entries).items():
        scratch.put(b"t", b"", {name: value}, 0, False, b"")
        frame = scratch.take()
        at = frame.index(b"\x4a\x01t") + 3
        parts.append(b"\x9a\x01" + frame[at + 1 :])
    return b"".join(parts)


class Writer:
    """What both kinds of sink do in a task, and at its end in the driver."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self.layout = Layout(schema, options)

    def stage(self, batches: Iterator[pa.RecordBatch], sink: str, batch: int) -> Staged:
        """Stage the rows of one partition."""
        settle()
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        attempt = uuid.uuid4().hex
        with Link(self.layout.url) as link:
            link.stage(bulk.Stage(sink, batch, part, attempt))
            seed = uuid.uuid5(uuid.NAMESPACE_OID, f"{sink}/{batch}/{part}").int >> 65
            for frames in self.frames(batches, link.welcome.frame_bytes_max, seed, batch):
                link.send(frames)
            done = link.staged()
        return Staged(sink, batch, part, attempt, done.size, done.messages)

    def frames(
        self, batches: Iterator[pa.RecordBatch], frame_bytes_max: int, seed: int, batch: int
    ) -> Iterator[bytes]:
        """Rows as frames; a row has the same id each time, because the seed is the same."""
        sequence = batch << ROW_BITS
        if self.layout.is_plain:
            box = Rows(frame_bytes_max, seed, sequence)
            for some in batches:
                self.layout.put_columns(box, some)
                if box.used >= SEND_BYTES:
                    yield box.take()
            yield box.take()
            return
        outbox = Outbox(frame_bytes_max, seed)
        outbox.persistent = True
        outbox.sequence = sequence
        for some in batches:
            self.layout.put(outbox, some)
            outbox.runs.clear()
            if outbox.used >= SEND_BYTES:
                yield outbox.take()
        yield outbox.take()

    def commit(self, messages: list[Any]) -> None:
        """Have the node publish what all tasks have staged."""
        parts = self._parts(messages)
        if parts is None:
            return
        with Link(self.layout.url) as link:
            refused = link.commit(parts).refused
        if refused:
            raise LocalError(
                "not-authorized",
                f"{refused} messages of batch {parts.batch} were not published, and will not be: "
                "the node does not take them from this principal; all others are",
            )

    def abort(self, messages: list[Any]) -> None:
        """Drop what some tasks have staged."""
        parts = self._parts(messages)
        if parts is not None:
            with Link(self.layout.url) as link:
                link.abort(parts)

    def _parts(self, messages: list[Any]) -> bulk.Parts | None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return None
        rows = [(one.part, one.attempt, one.size, one.messages) for one in staged]
        return bulk.Parts(staged[0].sink, staged[0].batch, rows)


class BatchSink(DataSourceArrowWriter):
    """`df.write`: one batch."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise refuse("what is published cannot be overwritten: use mode('append')")
        self.writer = Writer(schema, options)
        self.sink = f"{self.writer.layout.publisher or 'batch'}-{uuid.uuid4().hex[:16]}"
        self.batch = 0
        once = self.writer.layout.once
        if once:
            self.sink, _, number = once.rpartition("/")
            if not bulk.SINK.fullmatch(self.sink) or not number.isdigit():
                raise refuse("option once is a name and a number that grows, as in nightly/42")
            self.batch = int(number)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        return self.writer.stage(iterator, self.sink, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are done."""
        self.writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when one of them failed."""
        self.writer.abort(messages)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: a batch for each micro-batch."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self.writer = Writer(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task. A query is known by its checkpoint, so it has the same id after a restart."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or batch is None:
            raise LocalError("not-supported", "Spark does not say which query and batch this is")
        publisher = self.writer.layout.publisher
        sink = f"{publisher[:27]}-{query}" if publisher else query
        return self.writer.stage(iterator, sink, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when all tasks are done."""
        self.writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver. A batch that was committed stays so: Spark may call this behind it."""
        self.writer.abort(messages)
