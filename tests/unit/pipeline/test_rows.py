"""Checks the rows of messages; Java is not needed for it."""

import math

import pytest

from regraft.model.message import DeliveryMode, Message, Timestamp, Value

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'regraft[spark]'")

from regraft.pipeline.rows import SCHEMA, VALUE, row_of, typed, untyped

VALUES: list[Value] = [
    *(True, False, 0, -1, 2**63 - 1, 0.0, 1.5, math.inf, "", "a", b"", b"\x80", Timestamp(0)),
    Timestamp(-(2**63)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_keeps_its_type(value: Value) -> None:
    row = typed(value)
    assert len(row) == len(VALUE.names)
    assert sum(field is not None for field in row) == 1
    back = untyped(row)
    assert back == value and type(back) is type(value)


def test_no_value_is_null_and_binary_may_be_a_bytearray() -> None:
    assert untyped(None) is None
    assert untyped((None,) * 6) is None
    assert untyped((None, None, None, None, bytearray(b"a"), None)) == b"a"


def test_the_row_of_a_message() -> None:
    message = Message(
        "t",
        b"body",
        {"a": 1},
        sender="me",
        type=7,
        type_name="order",
        timestamp_us=5,
        priority=9,
        expiration_us=6,
        delivery_mode=DeliveryMode.PERSISTENT,
        reply_to="r",
        correlation="c",
        context={"b": "x"},
    )
    assert dict(zip(SCHEMA.names, row_of(message), strict=True)) == {
        "topic": "t",
        "type": 7,
        "type_name": "order",
        "priority": 9,
        "timestamp_us": 5,
        "expiration_us": 6,
        "correlation": "c",
        "reply_to": "r",
        "sender": "me",
        "size": 4,
        "delivery_mode": "PERSISTENT",
        "attributes": {"a": typed(1)},
        "context": {"b": typed("x")},
    }


def test_what_a_selector_takes_for_null_is_null() -> None:
    row = dict(zip(SCHEMA.names, row_of(Message("t")), strict=True))
    absent = {name for name, value in row.items() if value is None}
    optional = {"type_name", "timestamp_us", "expiration_us", "correlation", "reply_to", "sender"}
    assert absent == optional
