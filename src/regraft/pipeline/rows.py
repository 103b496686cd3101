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
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from regraft.model.message import Message, Timestamp, Value

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
