"""Checks the frames of the native protocol, its errors, and that its classes fit the schema."""

from collections.abc import Callable
from typing import Any

import pytest

from regraft.errors import (
    CODES,
    DiskError,
    LocalError,
    PeerError,
    RegraftError,
    WorldError,
)
from regraft.kernels.checksum import crc32c
from regraft.model.message import Message
from regraft.wire import native, protobuf
from regraft.wire.native import (
    CLASSES,
    FLAG_CONTROL,
    HEADER_BYTES,
    KINDS,
    Error,
    Kind,
    decode,
    encode,
    frame,
    read_frame,
)

LIMIT = 1000


def test_the_bytes_of_a_frame() -> None:
    data = frame(Kind.HEARTBEAT, b"\x08\x01", FLAG_CONTROL)
    assert data[:6].hex() == "0a0000000a01"
    assert data[6:8] == (crc32c(data[:6]) & 0xFFFF).to_bytes(2, "little")
    assert data[8:12] == crc32c(b"\x08\x01").to_bytes(4, "little")
    assert data[12:] == b"\x08\x01"
    assert HEADER_BYTES == 12


def test_frames_are_read_one_after_the_other() -> None:
    data = b"??" + frame(Kind.BYE, b"") + frame(Kind.CREDIT, b"\x08\x05", FLAG_CONTROL) + b"\x01"
    assert read_frame(data, 2, LIMIT) == (Kind.BYE, 0, b"", 14)
    assert read_frame(memoryview(data), 14, LIMIT) == (Kind.CREDIT, 1, b"\x08\x05", 28)
    assert read_frame(data, 28, LIMIT) is None
    assert read_frame(data, 29, LIMIT) is None


def test_a_frame_is_incomplete_until_its_last_byte() -> None:
    data = encode(native.Subscribe(1, "a/b"))
    for size in range(len(data)):
        assert read_frame(data[:size], 0, LIMIT) is None
    assert read_frame(data, 0, len(data)) is not None


def test_every_damaged_bit_is_noticed() -> None:
    data = encode(native.Subscribe(1, "a/b"))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerError) as caught:
            read_frame(bytes(damaged), 0, LIMIT)
        assert caught.value.code.name == "bad-checksum"


def header(length: int, kind: int = Kind.BYE, flags: int = 0) -> bytes:
    """A header whose check fits, whatever it says."""
    head = length.to_bytes(4, "little") + bytes([kind, flags])
    return head + (crc32c(head) & 0xFFFF).to_bytes(2, "little") + bytes(4)


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (header(0), "malformed-frame", "length 0"),
        (header(7), "malformed-frame", "length 7"),
        (header(LIMIT - 3), "frame-too-large", "1001 bytes; the limit is 1000"),
        (header(2**32 - 1), "frame-too-large", "4294967299 bytes"),
        (header(8, kind=0), "malformed-frame", "kind 0"),
        (header(8, kind=99), "malformed-frame", "kind 99"),
        (header(8, flags=2), "malformed-frame", "flags 0x02"),
        (header(8, flags=0x81), "malformed-frame", "flags 0x81"),
    ],
)
def test_headers_that_are_refused(data: bytes, code: str, reason: str) -> None:
    with pytest.raises(PeerError, match=reason) as caught:
        read_frame(data, 0, LIMIT)
    assert caught.value.code.name == code


def test_a_frame_as_long_as_the_limit_is_taken() -> None:
    data = frame(Kind.MESSAGE, bytes(LIMIT - HEADER_BYTES))
    assert len(data) == LIMIT
    assert read_frame(data, 0, LIMIT) is not None


def test_the_table_has_every_kind() -> None:
    assert set(CLASSES) == set(Kind)
    assert {KINDS[cls] for cls in CLASSES.values()} == set(Kind)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind != Kind.MESSAGE])
def test_an_empty_control_message_comes_back(kind: Kind) -> None:
    message = CLASSES[kind]()
    assert encode(message) == frame(kind, b"")
    assert decode(kind, b"") == message


def test_messages_are_framed_too() -> None:
    message = Message("a/b", b"x")
    found = read_frame(encode(message), 0, LIMIT)
    assert found is not None and decode(found[0], found[2]) == message


def test_a_kind_that_does_not_exist_is_not_decoded() -> None:
    with pytest.raises(PeerError, match="kind 99"):
        decode(99, b"")


@pytest.mark.parametrize("cls", [*CLASSES.values(), native.Feature])
def test_the_classes_mirror_the_schema(google: Callable[[str], Any], cls: type[Any]) -> None:
    if cls in (Message, native.Bye):  # compared elsewhere; has no fields
        return
    theirs = {field.number: field.name for field in google(cls.__name__).DESCRIPTOR.fields}
    assert {number: name for number, (name, _) in protobuf.table(cls).items()} == theirs


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", CODES)
def test_every_error_survives_the_wire(name: str) -> None:
    sent = Error.of(PeerError(name, "do this"), subscription=3, ordinal=4, count=5)
    assert (sent.code, sent.name, sent.fatal) == (CODES[name].number, name, CODES[name].fatal)
    assert (sent.subscription, sent.ordinal, sent.count) == (3, 4, 5)
    received = decode(Kind.ERROR, protobuf.encode(sent))
    assert received == sent
    raised = received.exception()
    assert raised.code is CODES[name]
    assert raised.text == "do this"


@pytest.mark.parametrize(
    ("name", "blame"),
    [
        ("malformed-frame", PeerError),
        ("protocol-violation", PeerError),
        ("unsupported-version", PeerError),
        ("unknown-protocol", PeerError),
        ("heartbeat-lost", WorldError),
        ("taken-over", WorldError),
        ("shutting-down", WorldError),
        ("too-many-connections", WorldError),
        ("bad-topic", LocalError),
        ("bad-selector", LocalError),
        ("not-authorized", LocalError),
        ("timed-out", WorldError),
        ("data-folder-damaged", DiskError),
        ("bad-message", LocalError),
    ],
)
def test_whom_the_receiver_blames(name: str, blame: type[RegraftError]) -> None:
    assert type(Error(CODES[name].number).exception()) is blame


def test_an_error_without_a_text_says_what_its_code_means() -> None:
    assert Error(12).exception().text == "the node is being stopped"


def test_an_unknown_error_keeps_its_text() -> None:
    raised = Error(9999, "too-purple", "paint it").exception()
    assert isinstance(raised, PeerError)
    assert raised.code.name == "protocol-violation"
    assert "paint it" in raised.text and "9999 'too-purple'" in raised.text


def test_an_error_can_be_sent_whatever_its_text_holds() -> None:
    sent = Error.of(LocalError("bad-topic", "\ud800" + "é" * 100_000))
    assert len(encode(sent)) < 8_192
    assert decode(Kind.ERROR, protobuf.encode(sent)) == sent


@pytest.mark.parametrize(
    "confirmed",
    [
        native.Confirmed(),
        native.Confirmed(ordinal=5),
        native.Confirmed(5, 2, 1),
        native.Confirmed(2**64 - 1, 2**64 - 1, 2**32 - 1),
        native.Confirmed(5, 2, 1, True),
        native.Confirmed(5, 2, 0),
        native.Confirmed(7, 0, 3),
    ],
)
def test_what_a_publisher_reads_of_a_confirmation(confirmed: native.Confirmed) -> None:
    payload = native.encode(confirmed)[native.HEADER_BYTES :]
    read = native.read_confirmed(payload)
    assert read == (confirmed.ordinal, confirmed.count, confirmed.takers)
    unknown = payload + b"\x80\x01\x05"
    assert native.read_confirmed(unknown) == read


@pytest.mark.parametrize(
    "payload",
    [
        b"\x08",
        b"\x08\x05\x08\x05",
        b"\x0d\x00\x00\x00\x00",
        b"\x08\x05\x10\x02\x18\xff\xff\xff\xff\x1f",
        b"\x08\x05\x10\x02\x18\x01\x20\x02",
    ],
)
def test_a_confirmation_that_is_none(payload: bytes) -> None:
    with pytest.raises(PeerError) as whole:
        native.decode(native.Kind.CONFIRMED, payload)
    with pytest.raises(PeerError) as read:
        native.read_confirmed(payload)
    assert str(read.value) == str(whole.value)
