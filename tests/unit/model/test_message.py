"""Checks messages and every rule of the envelope's reference codec, each by its own bytes."""

import gzip
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from regraft.errors import LocalError, PeerError
from regraft.model.message import (
    Compression,
    DeliveryMode,
    Message,
    Timestamp,
    decode_envelope,
    encode_envelope,
)

TOPIC = "4a0161"  # field 9, "a"


def decoded(text: str) -> Message:
    return decode_envelope(bytes.fromhex(text))


def test_the_smallest_message() -> None:
    message = Message("a")
    assert encode_envelope(message).hex() == TOPIC
    assert decoded(TOPIC) == message
    assert message.priority == 4
    assert message.id is None


def test_a_message_does_not_change() -> None:
    message = Message("a", attributes={"x": 1})
    with pytest.raises(FrozenInstanceError):
        message.topic = "b"  # type: ignore[misc]
    assert hash(message) == hash(Message("a", attributes={"x": 1}))


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (Message("a", priority=0), "6000"),
        (Message("a", priority=9), "6009"),
        (Message("a", sequence=0), "5800"),
        (Message("a", expiration_us=0), "69" + "00" * 8),
        (Message("a", expiration_us=-1), "69" + "ff" * 8),
        (Message("a", delivery_mode=DeliveryMode.PERSISTENT), "7001"),
        (Message("a", attributes={"b": False}), "52050a01621000"),
        (Message("a", attributes={"b": -1}), "52050a01621801"),
        (Message("a", attributes={"b": 0.0}), "520c0a016221" + "00" * 8),
        (Message("a", attributes={"b": ""}), "52050a01622a00"),
        (Message("a", attributes={"b": b""}), "52050a01623200"),
        (Message("a", attributes={"b": Timestamp(1)}), "520c0a016239" + "01" + "00" * 7),
        (Message("a", context={"b": True}), "9a01050a01621001"),
        (Message("a", where="x"), "d2010178"),
        (Message("a", unknown=bytes.fromhex("f80101")), "f80101"),
    ],
)
def test_these_bytes_follow_the_topic(message: Message, written: str) -> None:
    assert encode_envelope(message).hex() == TOPIC + written
    assert decoded(TOPIC + written) == message


def test_absent_is_not_zero_where_none_is_the_default() -> None:
    message = decoded("09" + "00" * 8 + "31" + "00" * 8 + "39" + "00" * 8 + TOPIC + "5800")
    zeros = (message.id, message.timestamp_us, message.references, message.sequence)
    assert zeros == (0, 0, 0, 0)
    assert decoded(TOPIC).sequence is None


def test_a_written_zero_is_read_where_absent_is_zero() -> None:
    assert decoded("2000" + TOPIC + "7000" + "a80100" + "1200") == Message("a")


def test_unknown_fields_keep_their_order_and_end_up_last() -> None:
    message = decoded("f80101" + TOPIC + "fd0101020304" + "f80102" + "2a0162")
    assert message.body == b"b"
    assert message.unknown.hex() == "f80101" + "fd0101020304" + "f80102"
    assert encode_envelope(message).hex() == "2a0162" + TOPIC + message.unknown.hex()


def test_unknown_fields_of_an_attribute_are_passed_over() -> None:
    assert decoded(TOPIC + "52070a016210014001").attributes == {"b": True}


def test_limits_are_reached() -> None:
    attributes = {f"n{i}".ljust(255, "x"): i for i in range(256)}
    message = Message("t" * 1024, attributes=attributes, context=attributes)
    assert decode_envelope(encode_envelope(message)) == message


REFUSED = [
    ("", "there is no topic"),
    ("2a0161", "there is no topic"),
    ("4a00", "there is no topic"),
    ("4a8108" + "61" * 1025, "1025 bytes; the limit is 1024"),
    (TOPIC + TOPIC, "topic stands there twice"),
    (TOPIC + "2a002a00", "body stands there twice"),
    (TOPIC + "20002000", "type stands there twice"),
    ("4a01ff", "field topic: the string is not UTF-8"),
    (TOPIC + "1201ff", "field from: the string is not UTF-8"),
    ("4801", "field topic: wire type 0"),
    (TOPIC + "0801", "field id: wire type 0"),
    (TOPIC + "2d00000000", "field body: wire type 5"),
    (TOPIC + "5001", "attribute has wire type 0"),
    (TOPIC + "c301c401", "field 24: wire type 3"),
    (TOPIC + "d301d401", "field 26: wire type 3"),
    (TOPIC + "cc01", "field 25: wire type 4"),
    (TOPIC + "0001", "field number 0"),
    (TOPIC + "2080", "field 4: a varint is cut off"),
    (TOPIC + "58" + "80" * 10 + "00", "field 11: a varint does not fit 64 bits"),
    (TOPIC + "58" + "ff" * 9 + "02", "field 11: a varint does not fit 64 bits"),
    (TOPIC + "208080808010", "field type: 4294967296"),
    (TOPIC + "b8018080808010", "field logging_method: 4294967296"),
    (TOPIC + "a80102", "report_delivery_error: a bool"),
    (TOPIC + "7002", "2 is no DeliveryMode"),
    (TOPIC + "c00102", "2 is no Compression"),
    (TOPIC + "600a", "priority 10 is above 9"),
    (TOPIC + "52021001", "an attribute has no name"),
    (TOPIC + "52040a001001", "an attribute has no name"),
    (TOPIC + "52030a0161", "attribute 'a' has no value"),
    (TOPIC + "52070a016140014001", "attribute 'a' has no value"),
    (TOPIC + "52070a016110011001", "an attribute has two values"),
    (TOPIC + "52070a016110011802", "an attribute has two values"),
    (TOPIC + "52080a01610a01611001", "an attribute has two names"),
    (TOPIC + "52050a01611002", "Attribute.bool_value: a bool"),
    (TOPIC + "52060a01612a01ff", "Attribute.string_value: the string"),
    (TOPIC + "52050a01ff1001", "Attribute.name: the string"),
    (TOPIC + "520408011001", "Attribute.name: wire type 0"),
    (TOPIC + "52050a01611d01", "the value is cut off"),
    (TOPIC + "52050a01611b1c", "field 3: wire type 3"),
    (TOPIC + "52050a01611001" * 2, "attribute 'a' stands there twice"),
    (TOPIC + "9a01050a01611001" * 2, "attribute 'a' stands there twice"),
    (TOPIC + "5285020a8002" + "61" * 256 + "1001", "a name has 256 bytes"),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED)
def test_envelopes_that_are_refused(data: str, reason: str) -> None:
    with pytest.raises(PeerError, match=reason) as caught:
        decoded(data)
    assert caught.value.code.name == "malformed-envelope"
    assert "Envelope" in caught.value.text


def test_the_same_name_may_stand_in_attributes_and_in_context() -> None:
    message = decoded(TOPIC + "52050a01611001" + "9a01050a01611802")
    assert (message.attributes, message.context) == ({"a": True}, {"a": 1})


@pytest.mark.parametrize("field", ["attributes", "context"])
def test_too_many_attributes(field: str) -> None:
    mapping = {f"n{i}": i for i in range(257)}
    with pytest.raises(LocalError, match="257 entries; the limit is 256"):
        encode_envelope(Message("a", **{field: mapping}))  # type: ignore[arg-type]
    tag = {"attributes": "52", "context": "9a01"}[field]
    names = [f"{number:03}".encode().hex() for number in range(257)]
    entries = [f"{tag}070a03{name}1001" for name in names]
    assert len(getattr(decoded(TOPIC + "".join(entries[:256])), field)) == 256
    with pytest.raises(PeerError, match="257 entries"):
        decoded(TOPIC + "".join(entries))


def wrong(**changes: Any) -> Message:
    return Message(**{"topic": "a", **changes})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (wrong(topic=""), "there is no topic"),
        (wrong(topic="t" * 1025), "1025 bytes"),
        (wrong(topic="\ud800"), "topic: .* UTF-8"),
        (wrong(topic=None), "topic: a string is needed"),
        (wrong(body="text"), "body: bytes are needed, not str"),
        (wrong(type=2**32), "type: 4294967296 is not between"),
        (wrong(type=False), "type: a whole number"),
        (wrong(id=-1), "id: -1 is not between"),
        (wrong(sequence=2**64), "sequence: "),
        (wrong(timestamp_us=2**63), "timestamp_us: "),
        (wrong(priority=10), "priority 10 is above 9"),
        (wrong(priority=-1), "priority: -1"),
        (wrong(priority=None), "priority: a whole number"),
        (wrong(delivery_mode=2), "2 is no DeliveryMode"),
        (wrong(include_original=1), "include_original: True or False"),
        (wrong(attributes={"": 1}), "attributes: a name is empty"),
        (wrong(attributes={"x" * 256: 1}), "a name has 256 bytes"),
        (wrong(attributes={"\ud800": 1}), "attributes: .*UTF-8"),
        (wrong(attributes={1: 1}), "attributes: a string is needed"),
        (wrong(attributes={"a": 2**63}), "attribute 'a': .* not between"),
        (wrong(attributes={"a": -(2**63) - 1}), "attribute 'a': .* not between"),
        (wrong(attributes={"a": Timestamp(2**63)}), "attribute 'a': .* not between"),
        (wrong(attributes={"a": "\ud800"}), "attribute 'a': .*UTF-8"),
        (wrong(attributes={"a": None}), "attribute 'a' has a value of type NoneType"),
        (wrong(context={"a": []}), "context: attribute 'a' has a value of type list"),
        (wrong(unknown=b"\x4a\x00"), "field 9 is known"),
        (wrong(unknown=b"\x52\x00"), "field 10 is known"),
        (wrong(unknown=b"\xd3\x01"), "unknown: field 26: wire type 3"),
        (wrong(unknown=b"\xd0"), "unknown: a varint is cut off"),
    ],
)
def test_messages_that_cannot_be_encoded(message: Message, reason: str) -> None:
    with pytest.raises(LocalError, match=reason) as caught:
        encode_envelope(message)
    assert caught.value.code.name == "bad-message"


# ------------------------------------------------------------------ timestamps


def test_timestamps_and_datetimes() -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC)
    assert Timestamp.from_datetime(moment).to_datetime() == moment
    assert Timestamp.from_datetime(datetime(1970, 1, 1, tzinfo=UTC)) == Timestamp(0)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5)))
    assert Timestamp.from_datetime(elsewhere) == Timestamp.from_datetime(moment)
    assert Timestamp(-1).to_datetime() == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert Timestamp(1) < Timestamp(2)


def test_moments_that_cannot_be_converted() -> None:
    with pytest.raises(LocalError, match="no time zone"):
        Timestamp.from_datetime(datetime(2024, 1, 1))
    with pytest.raises(LocalError, match="outside the years"):
        Timestamp(2**63 - 1).to_datetime()


# ------------------------------------------------------------------------ gzip


def test_a_body_is_compressed_and_inflated() -> None:
    plain = Message("a", b"hello " * 1000)
    packed = plain.with_gzip()
    assert packed.compression is Compression.GZIP
    assert len(packed.body) < 100
    assert gzip.decompress(packed.body) == plain.body
    assert packed.content() == plain.content() == plain.body
    assert packed.with_gzip() is packed
    assert decode_envelope(encode_envelope(packed)).content() == plain.body
    assert Message("a").with_gzip().content() == b""


def test_inflation_is_bounded() -> None:
    bomb = Message("a", bytes(1_000_000)).with_gzip()
    assert len(bomb.content(1_000_000)) == 1_000_000
    with pytest.raises(PeerError, match="more than 999999 bytes") as caught:
        bomb.content(999_999)
    assert caught.value.code.name == "limit-exceeded"
    with pytest.raises(PeerError, match="more than 0 bytes"):
        bomb.content(0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "cut off"),
        (b"not gzip at all", "is not gzip"),
        (gzip.compress(b"hello", mtime=0)[:-1], "cut off"),
        (gzip.compress(b"hello", mtime=0)[:-8] + bytes(8), "is not gzip"),
        (gzip.compress(b"hello", mtime=0) + b"x", "something follows"),
        (gzip.compress(b"hello", mtime=0) + gzip.compress(b"more", mtime=0), "something follows"),
    ],
)
def test_bodies_that_cannot_be_inflated(body: bytes, reason: str) -> None:
    with pytest.raises(PeerError, match=reason):
        Message("a", body, compression=Compression.GZIP).content()
