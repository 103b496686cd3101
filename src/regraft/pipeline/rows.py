"""Messages as rows of a data frame.

Rules:

- A column is called as the field of `Message` is, `size` is the length of the body. What a selector
  takes for NULL is NULL: an empty correlation, reply-to, sender or name of a type.
- A value of an attribute is a struct with one field per type, of which exactly one is not NULL. So
  types stay apart, and nothing is converted: an int keeps its 64 bits, a timestamp is microseconds
  since 1970 UTC as a bigint, whatever time zone Spark is set to.
- Rows are for messages that can be sent. Whether one can is not checked here, but where it is sent
  or received.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from regraft.errors import LocalError
from regraft.model.message import Message, Timestamp, Value
from regraft.wire.bulk import ATTRIBUTES, HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

VALUE = StructType(
    [
        StructField("bool", BooleanType()),
        StructField("int", LongType()),
        StructField("float", DoubleType()),
        StructField("string", StringType()),
        StructField("bytes", BinaryType()),
        StructField("timestamp_us", LongType()),
    ]
)

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("type", LongType()),  # 32 bits without sign
        StructField("type_name", StringType()),
        StructField("priority", IntegerType()),
        StructField("timestamp_us", LongType()),
        StructField("expiration_us", LongType()),
        StructField("correlation", StringType()),
        StructField("reply_to", StringType()),
        StructField("sender", StringType()),
        StructField("size", LongType()),
        StructField("delivery_mode", StringType()),
        StructField("attributes", MapType(StringType(), VALUE)),
        StructField("context", MapType(StringType(), VALUE)),
    ]
)


def row_of(message: Message) -> tuple[Any, ...]:
    """The row of a message, in the order of `SCHEMA`."""
    return (
        message.topic,
        message.type,
        message.type_name or None,
        message.priority,
        message.timestamp_us,
        message.expiration_us,
        message.correlation or None,
        message.reply_to or None,
        message.sender or None,
        len(message.body),
        message.delivery_mode.name,
        _entries(message.attributes),
        _entries(message.context),
    )


def _entries(mapping: Mapping[str, Value]) -> dict[str, tuple[Any, ...]]:
    return {name: typed(value) for name, value in mapping.items()}


def typed(value: Value) -> tuple[Any, ...]:
    """A value as a struct `VALUE`."""
    match value:
        case bool():  # before int, of which bool is a kind
            return (value, None, None, None, None, None)
        case int():
            return (None, value, None, None, None, None)
        case float():
            return (None, None, value, None, None, None)
        case str():
            return (None, None, None, value, None, None)
        case bytes():
            return (None, None, None, None, value, None)
        case Timestamp(us):
            return (None, None, None, None, None, us)


def untyped(row: tuple[Any, ...] | None) -> Value | None:
    """The value of such a struct; None is NULL."""
    if row is None:
        return None
    *plain, us = row
    if us is not None:
        return Timestamp(us)
    for value in plain:
        if value is not None:
            # Spark gives binary as a bytearray.
            return bytes(value) if isinstance(value, bytearray) else value
    return None


# ------------------------------------------------------------------- columns of a stream

_MAP = MapType(StringType(), VALUE)
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "map": _MAP,
}
_FEW = ("stream", "partition", "sequence", "timestamp", "topic", "body", "attributes")


def table_schema(headers: bool) -> StructType:
    """The columns of a stream: the few that are wanted most, or all headers, too."""
    names = HEADERS if headers else _FEW
    return StructType([StructField(name, _TYPES[HEADERS[name].type]) for name in names])


def wanted_columns(schema: StructType) -> list[tuple[str, str]]:
    """The columns of a schema as a node is asked for them: headers, and attributes by name."""
    found = []
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        header = HEADERS.get(name)
        if header is not None and field.dataType != _TYPES[header.type]:
            text = f"column {name!r} is a header of type {_TYPES[header.type].simpleString()}"
            raise LocalError("bad-message", f"{text}, and cannot be read as {kind}")
        if header is None and kind not in ATTRIBUTES:
            raise LocalError(
                "bad-message",
                f"column {name!r} is no header, so it is an attribute, and that can be read as "
                f"{', '.join(ATTRIBUTES)}; not as {kind}",
            )
        found.append((name, kind if header is None else header.type))
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """The same schema for Arrow, exactly as Spark wants it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
