"""Columns of streams against the obvious: each message decoded, and a list of its values."""

from __future__ import annotations

import math
import random
import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from regraft import kernels
from regraft.kernels import columns, records, selection
from regraft.model.message import Compression, DeliveryMode, Message, Timestamp, Value
from regraft.model.selector import Selector
from regraft.pipeline.rows import arrow_schema, table_schema, typed, wanted_columns
from regraft.wire import arrow, bulk, native

TWINS = kernels.load_interpreted()
MODULES = {
    "in use": SimpleNamespace(columns=columns, records=records, selection=selection),
    "interpreted": SimpleNamespace(**TWINS),
}
SEGMENT = 1 << 18
FIRST = 3 * SEGMENT
EVER = 1 << 62
FOUND, ZERO, SHORT, BAD, CLOSED = range(5)
NUMBER, OTHER = 7, 9
ALL = table_schema(headers=True)
VALUES: list[Value] = [
    *(True, False, 0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, math.inf, "", "text", "grüß\U0001f600"),
    *(b"", b"\x00\xff", Timestamp(0), Timestamp(-5)),
]


@pytest.fixture(params=list(MODULES))
def module(request: pytest.FixtureRequest) -> SimpleNamespace:
    return MODULES[request.param]


def some(source: random.Random, most: int) -> dict[str, Value]:
    names = source.sample(["price", "symbol", "n", "grüß", "x" * 255, "a b"], k=most)
    return {name: source.choice(VALUES) for name in names}


def message(source: random.Random) -> Message:
    made = Message(
        source.choice(["stocks/a", "stocks/b/c", "grüß"]),
        source.randbytes(source.choice((0, 1, 40))),
        some(source, source.randrange(5)),
        id=source.choice((None, 5, 2**64 - 1)),
        sender=source.choice(("", "me")),
        type=source.choice((0, 7, 2**32 - 1)),
        type_name=source.choice(("", "Tick")),
        timestamp_us=source.choice((None, 0, -5, 1_700_000_000_000_000)),
        references=source.choice((None, 9)),
        workflow=source.choice((b"", b"\x01" * 16)),
        sequence=source.choice((None, 3)),
        priority=source.choice((0, 4, 9)),
        expiration_us=source.choice((None, 2**62)),
        deliver_at_us=source.choice((None, 0, 2**61)),
        delivery_mode=source.choice(list(DeliveryMode)),
        content_type=source.choice(("", "text/plain")),
        reply_to=source.choice(("", "back")),
        correlation=source.choice(("", "c")),
        context=some(source, source.randrange(3)),
        report_delivery_error=source.choice((False, True)),
        include_original=source.choice((False, True)),
        logging_method=source.choice((0, 3)),
    )
    return made.with_gzip() if source.random() < 0.2 else made


def expected(one: Message, sequence: int, time_us: int) -> dict[str, Any]:
    """The row of a message, said without the kernel."""

    def mapping(entries: Any) -> list[tuple[str, Any]]:
        names = ("bool", "int", "float", "string", "bytes", "timestamp_us")
        return [
            (name, dict(zip(names, typed(value), strict=True))) for name, value in entries.items()
        ]

    def signed(value: int | None) -> int | None:
        return None if value is None else struct.unpack("<q", struct.pack("<Q", value))[0]

    return {
        "stream": "ticks",
        "partition": 0,
        "sequence": sequence,
        "timestamp": time_us,
        "topic": one.topic,
        "body": one.content(),
        "attributes": mapping(one.attributes),
        "context": mapping(one.context),
        "id": signed(one.id),
        "sender": one.sender or None,
        "to": None,
        "type": one.type,
        "type_name": one.type_name or None,
        "timestamp_us": one.timestamp_us,
        "references": signed(one.references),
        "workflow": one.workflow or None,
        "publisher_sequence": one.sequence,
        "priority": one.priority,
        "expiration_us": one.expiration_us,
        "deliver_at_us": one.deliver_at_us,
        "delivery_mode": one.delivery_mode.name,
        "content_type": one.content_type or None,
        "reply_to": one.reply_to or None,
        "correlation": one.correlation or None,
        "report_delivery_error": one.report_delivery_error,
        "include_original": one.include_original,
        "logging_method": one.logging_method,
        "compression": int(one.compression),
        "size": len(one.body),
    }


class Story:
    """A segment with records of two streams, and the messages of one of them."""

    def __init__(self, module: SimpleNamespace, seed: int, count: int = 60) -> None:
        self.module = module
        source = random.Random(seed)
        recorder = module.records.Recorder(SEGMENT)
        recorder.start_payload = b"{}"
        recorder.open(FIRST, FIRST, 1, 0)
        own, other = recorder.add_stream(NUMBER, 100), recorder.add_stream(OTHER, 1)
        self.messages: list[tuple[int, int, Message]] = []  # sequence, time, message
        while len(self.messages) < count:
            run = [message(source) for _ in range(source.randrange(1, 5))]
            frames = b"".join(map(native.encode, run))
            slots = source.choice(([own], [other], [own, other]))
            time_us = 1_000 * (len(self.messages) + 1)
            recorder.append_frames(frames, len(run), 0, slots, time_us)
            if own in slots:
                for one in run:
                    self.messages.append((100 + len(self.messages), time_us, one))
            if source.random() < 0.2:
                recorder.append(3, b"{}", time_us)
        ((_, _, self.data),) = recorder.take()

    @property
    def end(self) -> int:
        return 100 + len(self.messages)

    def table(self, schema: Any = ALL, selector: str = "", rows: int = 1000) -> Any:
        test = (
            self.module.selection.compile_selector(Selector.parse(selector)) if selector else None
        )

        def inflate(body: bytes) -> bytes | None:
            return Message("t", body, compression=Compression.GZIP).content()

        specs = bulk.specs(wanted_columns(schema))
        made = self.module.columns.Table(NUMBER, specs, b"ticks", test, rows, 1 << 20, inflate)
        made.next_sequence = 100
        return made

    def rows(self, table: Any, until: int = EVER, step: int = 1 << 30) -> list[dict[str, Any]]:
        """All rows, read in pieces of `step` bytes, as Arrow's library reads them."""
        schema = arrow_schema(ALL)
        found: list[dict[str, Any]] = []
        at, have = 0, step
        while at < len(self.data) and table.next_sequence < until:
            table.base = at
            done = table.fill(self.data[at : at + have], 0, have, FIRST, until)
            if done < 0:
                assert -1 - done > have
                have = -1 - done
                continue
            assert table.status in (FOUND, SHORT)
            found += as_rows(table, schema)
            at, have = at + done, step
        return found


def as_rows(table: Any, schema: pa.Schema) -> list[dict[str, Any]]:
    pieces = arrow.record_batch(*table.take())
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(b"".join(pieces)), schema)
    batch.validate(full=True)
    at = schema.names.index("timestamp") if "timestamp" in schema.names else -1
    if at >= 0:
        batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step", [1 << 30, 200])
def test_every_header_and_attribute(module: SimpleNamespace, seed: int, step: int) -> None:
    story = Story(module, seed)
    table = story.table()
    assert story.rows(table, step=step) == [
        expected(one, sequence, time_us) for sequence, time_us, one in story.messages
    ]
    assert table.scanned == len(story.messages)
    assert table.next_sequence == story.end


def test_a_range_and_small_batches(module: SimpleNamespace) -> None:
    story = Story(module, 5)
    table = story.table(rows=3)
    table.next_sequence = 110
    rows = []
    at = 0
    while table.next_sequence < 141:
        at = table.fill(story.data, at, len(story.data), FIRST, 141)
        assert table.rows <= 3
        rows += as_rows(table, arrow_schema(ALL))
    assert [row["sequence"] for row in rows] == list(range(110, 141))
    assert table.scanned == 31


def test_what_matches_is_given_and_all_is_scanned(module: SimpleNamespace) -> None:
    story = Story(module, 6, 200)
    text = "TOPIC('stocks/#') AND $priority > 3"
    selector = Selector.parse(text)
    table = story.table(selector=text)
    wanted = [sequence for sequence, _, one in story.messages if selector.matches(one)]
    assert 20 < len(wanted) < 180
    assert [row["sequence"] for row in story.rows(table)] == wanted
    assert table.scanned == len(story.messages)


def test_attributes_as_columns(module: SimpleNamespace) -> None:
    story = Story(module, 7, 300)
    kinds = {"boolean": bool, "bigint": int, "double": float, "string": str, "binary": bytes}
    for kind, python in kinds.items():
        specs = bulk.specs([("n", kind)])
        table = module.columns.Table(NUMBER, specs, b"", None, 1000, 1 << 20, bytes)
        table.next_sequence = 100
        table.fill(story.data, 0, len(story.data), FIRST, EVER)
        arrow_type = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
        schema = pa.schema([("n", arrow_type.get(python, pa.binary()))])
        found = [row["n"] for row in as_rows(table, schema)]
        wanted: list[Any] = []
        for _, _, one in story.messages:
            value = one.attributes.get("n")
            if kind == "double" and type(value) is int:
                value = float(value)
            wanted.append(value if type(value) is python else None)
        assert found == wanted
        assert any(value is not None for value in found)


def test_older_records_are_passed_over(module: SimpleNamespace) -> None:
    story = Story(module, 8)
    since = story.messages[30][1]
    table = story.table(rows=1)
    table.next_sequence = 1
    table.since_us = since
    table.fill(story.data, 0, len(story.data), FIRST, EVER)
    (row,) = as_rows(table, arrow_schema(ALL))
    assert row["sequence"] == min(s for s, time_us, _ in story.messages if time_us >= since)


def test_what_is_missing_shows(module: SimpleNamespace) -> None:
    story = Story(module, 9)
    table = story.table()
    table.next_sequence = 90  # ten that are not there any more
    story.rows(table)
    assert table.next_sequence - 90 == table.scanned + 10


def test_damage_is_noticed_wherever_it_is(module: SimpleNamespace) -> None:
    story = Story(module, 10, 12)
    source = random.Random(1)
    for _ in range(150):
        data = bytearray(story.data)
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        table = story.table()
        at = table.fill(bytes(data), 0, len(data), FIRST, EVER)
        rows = as_rows(table, arrow_schema(ALL))
        # What stands between records to align them is nothing that could be damaged.
        whole = len(rows) == len(story.rows(story.table()))
        assert at < 0 or table.status in (BAD, SHORT, ZERO) or at < len(data) or whole
        for row in rows:
            _, time_us, one = story.messages[row["sequence"] - 100]
            assert row == expected(one, row["sequence"], time_us)


def test_a_body_that_cannot_be_inflated_is_null(module: SimpleNamespace) -> None:
    recorder = module.records.Recorder(SEGMENT)
    recorder.open(0, 0, 1, 0)
    slot = recorder.add_stream(NUMBER, 1)
    bad = native.encode(Message("t", b"no gzip", compression=Compression.GZIP))
    recorder.append_frames(bad, 1, 0, [slot], 1)
    specs = bulk.specs([("body", "binary")])
    table = module.columns.Table(NUMBER, specs, b"", None, 10, 1 << 20, lambda body: None)
    table.next_sequence = 1
    ((_, _, data),) = recorder.take()
    table.fill(data, 0, len(data), 0, EVER)
    assert as_rows(table, pa.schema([("body", pa.binary())])) == [{"body": None}]
