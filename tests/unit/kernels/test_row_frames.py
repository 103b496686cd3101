"""Frames made of columns are those that an outbox makes of the same rows, byte for byte."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

from pyspark.sql.types import (  # noqa: E402
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from regraft import kernels  # noqa: E402
from regraft.errors import LocalError  # noqa: E402
from regraft.kernels import rows  # noqa: E402
from regraft.pipeline import sink  # noqa: E402
from regraft.pipeline.rows import VALUE, arrow_schema, typed  # noqa: E402

MODULES = {"in use": rows, "interpreted": kernels.load_interpreted()["rows"]}
LIMIT = 1 << 20


@pytest.fixture(params=list(MODULES))
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = MODULES[request.param]
    for name in ("Cells", "Entries", "Rows"):
        monkeypatch.setattr(sink, name, getattr(found, name))
    return found


TEXTS = ("", "a", "grüß", "x" * 127, "y" * 128, "\U0001f600" * 90)
INTS = (0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31))
LONGS = (*INTS, 2**63 - 1, -(2**63), 2**53)
REALS = (0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324, -2.25)
MOMENT = datetime(2026, 11, 16, 12, 30, 0, 123456, tzinfo=UTC)

PLAIN: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "yes": (BooleanType(), (True, False)),
    "small": (IntegerType(), INTS),
    "wide": (LongType(), LONGS),
    "real": (DoubleType(), REALS),
    "half": (FloatType(), REALS[:5]),
    "word": (StringType(), TEXTS),
    "raw": (BinaryType(), (b"", b"\x00\xff", b"z" * 300)),
    "at": (TimestampType(), (MOMENT, datetime(1901, 1, 1, tzinfo=UTC))),
    "n" * 255: (LongType(), (5,)),
}
OTHERS: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "topic": (StringType(), ("t", "a/b", "grüß/\U0001f600", "l/" * 100 + "l")),
    "body": (BinaryType(), (b"", b"body", b"z" * 200)),
    "timestamp_us": (LongType(), (0, 1, 2**40, -5)),
}


def some(source: Random, values: tuple[Any, ...], nulls: float) -> Any:
    return None if source.random() < nulls else source.choice(values)


def entries(source: Random) -> Any:
    if source.random() < 0.2:
        return None
    values = [source.choice((True, -7, 2.5, "word", b"raw")) for _ in range(source.randrange(5))]
    names = [field.name for field in VALUE.fields]
    found: list[Any] = [(f"k{at}", dict(zip(names, typed(v), strict=True))) for at, v in
                        enumerate(values)]  # fmt: skip
    if found and source.random() < 0.2:
        found[0] = (found[0][0], None)  # no value at all
    return found


def table(source: Random, names: list[str], count: int, with_map: bool) -> tuple[StructType, Any]:
    known = {**OTHERS, **PLAIN}
    schema = StructType([StructField(name, known[name][0]) for name in names])
    nulls = source.choice((0.0, 0.3))
    columns = {
        name: [some(source, known[name][1], 0 if name == "topic" else nulls) for _ in range(count)]
        for name in names
    }
    if with_map:
        schema.add("attributes", MapType(StringType(), VALUE))
        columns["attributes"] = [entries(source) for _ in range(count)]
    arrow = arrow_schema(schema)
    arrays = [pa.array(columns[field.name], type=field.type) for field in arrow]
    return schema, pa.RecordBatch.from_arrays(arrays, schema=arrow)


def both(schema: StructType, batches: list[Any], **options: str) -> tuple[bytes, bytes]:
    """The frames without an object per row, and those of an outbox."""
    writer = sink.Writer(schema, options)
    assert writer.layout.is_plain
    fast = b"".join(writer.frames(iter(batches), LIMIT, 77, 3))
    writer.layout.is_plain = False
    return fast, b"".join(writer.frames(iter(batches), LIMIT, 77, 3))


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("seed", range(20))
def test_they_are_what_an_outbox_makes(seed: int) -> None:
    source = Random(seed)
    plain = source.sample(sorted(PLAIN), source.randrange(len(PLAIN) + 1))
    names = ["topic", *source.sample(["body", "timestamp_us"], source.randrange(3)), *plain]
    source.shuffle(names)
    schema, batch = table(source, names, 60, with_map=not plain)
    cut = source.randrange(60)
    parts = [batch.slice(0, cut), batch.slice(cut)]  # a slice begins somewhere in its buffers
    fast, slow = both(schema, parts)
    assert fast == slow
    assert len(fast) > 60 * 12


@pytest.mark.usefixtures("module")
def test_one_topic_for_all() -> None:
    schema, batch = table(Random(1), ["body", "wide"], 10, with_map=False)
    fast, slow = both(schema, [batch], topic="a/b")
    assert fast == slow
    assert fast.count(b"a/b") == 10


@pytest.mark.usefixtures("module")
def test_what_cannot_be_a_message() -> None:
    schema = StructType([StructField("topic", StringType()), StructField("body", StringType())])
    writer = sink.Writer(schema, {})
    for topic in (None, ""):
        batch = pa.record_batch({"topic": ["t", topic], "body": ["a", "b"]})
        with pytest.raises(LocalError, match="row 1 of a batch has no topic"):
            list(writer.frames(iter([batch]), LIMIT, 0, 0))
    batch = pa.record_batch({"topic": ["t"], "body": ["a" * 1000]})
    with pytest.raises(LocalError, match="limit frame_bytes"):
        list(writer.frames(iter([batch]), 500, 0, 0))


@pytest.mark.usefixtures("module")
def test_maps_that_no_message_can_have() -> None:
    schema = StructType([StructField("attributes", MapType(StringType(), VALUE))])
    arrow = arrow_schema(schema)
    writer = sink.Writer(schema, {"topic": "t"})
    value = dict(zip([field.name for field in VALUE.fields], typed(1), strict=True))
    for names, text in ((["x" * 256], "1 to 255 bytes"), ([""], "1 to 255 bytes"),
                        ([f"n{i}" for i in range(257)], "256 attributes")):  # fmt: skip
        made = pa.array([[(name, value) for name in names]], type=arrow.field(0).type)
        batch = pa.RecordBatch.from_arrays([made], schema=arrow)
        with pytest.raises(LocalError, match=text):
            list(writer.frames(iter([batch]), LIMIT, 0, 0))
