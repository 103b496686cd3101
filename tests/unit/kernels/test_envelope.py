"""The scan of an envelope against its slow reference: the same verdict on any bytes."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from regraft import kernels
from regraft.errors import PeerError
from regraft.kernels import envelope
from regraft.kernels.envelope import FAULTS, examine, unexpired
from regraft.model.message import (
    Compression,
    DeliveryMode,
    Message,
    Timestamp,
    Value,
    decode_envelope,
    encode_envelope,
)
from regraft.model.varint import Malformed, read_fields, write_varint
from regraft.wire import native

TWIN = kernels.load_interpreted()["envelope"]

TEXTS = ["", "a", "é", "a/b/c", "\U0001f600", "x" * 200, "\u0800", "\0", "\ud7ff\ue000"]
NUMBERS = [0, 1, 127, 128, 300, 2**31, 2**32 - 1]
LONG_NUMBERS = [*NUMBERS, 2**32, 2**63, 2**64 - 1]


def field(number: int, wire: int, content: bytes) -> bytes:
    """One field as it stands on the wire; what has a length gets it."""
    length = write_varint(len(content)) if wire == 2 else b""
    return write_varint(number << 3 | wire) + length + content


TOPIC = field(9, 2, b"a")


def attribute(*fields: bytes, number: int = 10) -> bytes:
    return field(number, 2, b"".join(fields))


def a_value(choice: random.Random) -> Value:
    values: list[Value] = [
        choice.random() < 0.5,
        choice.choice([-(2**63), -1, 0, 5, 2**63 - 1]),
        choice.random(),
        choice.choice(TEXTS),
        choice.randbytes(choice.randrange(5)),
        Timestamp(choice.choice([-5, 0, 10**15])),
    ]
    return choice.choice(values)


def a_mapping(choice: random.Random) -> dict[str, Value]:
    names = [name for name in TEXTS if name and choice.random() < 0.3]
    return {name: a_value(choice) for name in names}


def a_message(choice: random.Random) -> Message:
    """Any message: each field is absent as often as not."""

    def perhaps(value: Any, otherwise: Any) -> Any:
        return value if choice.random() < 0.4 else otherwise

    return Message(
        topic=choice.choice([text for text in TEXTS if text]),
        body=perhaps(choice.randbytes(choice.randrange(200)), b""),
        attributes=perhaps(a_mapping(choice), {}),
        id=perhaps(choice.getrandbits(64), None),
        sender=perhaps(choice.choice(TEXTS), ""),
        to=perhaps(choice.choice(TEXTS), ""),
        type=perhaps(choice.choice(NUMBERS), 0),
        timestamp_us=perhaps(choice.choice([-1, 0, 10**15]), None),
        references=perhaps(choice.getrandbits(64), None),
        workflow=perhaps(choice.randbytes(3), b""),
        sequence=perhaps(choice.choice(LONG_NUMBERS), None),
        priority=choice.randrange(10),
        expiration_us=perhaps(choice.choice([-(2**63), -1, 0, 1, 10**15]), None),
        delivery_mode=perhaps(DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT),
        content_type=perhaps(choice.choice(TEXTS), ""),
        reply_to=perhaps(choice.choice(TEXTS), ""),
        correlation=perhaps(choice.choice(TEXTS), ""),
        type_name=perhaps(choice.choice(TEXTS), ""),
        context=perhaps(a_mapping(choice), {}),
        override_rules=perhaps(choice.randbytes(2), b""),
        report_delivery_error=perhaps(True, False),
        include_original=perhaps(True, False),
        logging_method=perhaps(choice.choice(NUMBERS), 0),
        compression=perhaps(Compression.GZIP, Compression.NONE),
        where=perhaps(choice.choice(TEXTS), ""),
        unknown=perhaps(field(99, 0, b"\x07") + field(2**29 - 1, 2, b"hi"), b""),
    )


def mutated(choice: random.Random, data: bytes) -> bytes:
    """A few small accidents, to bytes or to whole fields."""
    work = bytearray(data)
    for _ in range(choice.randint(1, 3)):
        at = choice.randrange(len(work) + 1)
        match choice.randrange(6):
            case 0:
                work[at : at + 1] = choice.randbytes(1)
            case 1:
                del work[at : at + choice.randint(1, 3)]
            case 2:
                work[at:at] = work[at : at + choice.randint(1, 9)]
            case 3:
                work[at : at + 1] = choice.choice([b"\x80\x00", b"\xff\xff", b"\x00", b"\xed\xa0"])
            case 4:
                fields = [data[raw.start : raw.end] for raw in read_fields(data)]
                work += choice.choice(fields)
            case _:
                content = choice.randbytes(choice.randrange(4))
                work += field(choice.randint(1, 30), choice.choice([0, 1, 2, 2, 5]), content)
    return bytes(work)


def cases(seed: int, count: int) -> Iterator[bytes]:
    choice = random.Random(seed)
    data = b""
    for index in range(count):
        if index % 5 == 0:
            data = encode_envelope(a_message(choice))
            yield data
        else:
            yield mutated(choice, data)


def expected(data: bytes) -> tuple[bytes, bytes, int, int] | None:
    """What the reference says: topic, body, expiration, special; None if it refuses."""
    try:
        message = decode_envelope(data)
    except PeerError:
        return None
    special = int(message.delivery_mode) | (2 if message.to or message.override_rules else 0)
    special |= 8 if message.where else 0
    return (
        message.topic.encode(),
        message.body,
        message.expiration_us or 0,
        special,
    )


def test_the_scan_agrees_with_the_reference() -> None:
    accepted = refused = 0
    for data in cases(1, 8_000):
        fault, *found = examine(data)
        reference = expected(data)
        assert (fault == 0) == (reference is not None), (fault, data.hex())
        if reference is None:
            refused += 1
        else:
            assert tuple(found) == reference, data.hex()
            accepted += 1
    assert accepted > 2_000 and refused > 2_000


def test_random_bytes_get_the_verdict_of_the_reference() -> None:
    choice = random.Random(2)
    for _ in range(10_000):
        data = choice.choice([b"", TOPIC]) + choice.randbytes(choice.randrange(20))
        assert (examine(data)[0] == 0) == (expected(data) is not None), data.hex()


def test_compiled_equals_interpreted() -> None:
    faults = set()
    for data in cases(3, 4_000):
        found = examine(data)
        assert TWIN.examine(data) == found, data.hex()
        faults.add(found[0])
    assert len(faults) > 8


def test_every_cut_gets_the_verdict_of_the_reference() -> None:
    for data in cases(4, 40):
        for size in range(len(data)):
            assert (examine(data[:size])[0] == 0) == (expected(data[:size]) is not None)


def names(count: int, number: int = 10) -> bytes:
    return b"".join(
        attribute(field(1, 2, str(k).encode()), field(2, 0, b"\1"), number=number)
        for k in range(count)
    )


NAME = field(1, 2, b"n")
YES = field(2, 0, b"\1")
EXAMPLES = {
    "cut varint": (1, TOPIC + b"\x20\x80"),
    "cut bytes": (1, TOPIC + b"\x2a\x05ab"),
    "cut fixed": (1, TOPIC + b"\x09\0\0\0"),
    "eleven bytes": (2, TOPIC + field(11, 0, b"\xff" * 10 + b"\x01")),
    "above 64 bits": (2, TOPIC + field(11, 0, b"\xff" * 9 + b"\x02")),
    "long tag": (2, b"\xca\x80\x80\x80\x80\x00\x01a"),
    "long length": (2, b"\x4a\x81\x80\x80\x80\x80\x00a"),
    "type above 32 bits": (2, TOPIC + field(4, 0, write_varint(2**32))),
    "logging method above 32 bits": (2, TOPIC + field(23, 0, write_varint(2**32))),
    "field zero": (3, TOPIC + b"\x00\x01"),
    "field zero, long": (3, TOPIC + b"\x80\x00\x01"),
    "group": (4, TOPIC + b"\x2b\x2c"),
    "wire type six": (4, TOPIC + b"\x2e"),
    "body as a number": (5, TOPIC + field(5, 0, b"\x01")),
    "attribute with a wrong type": (5, TOPIC + attribute(NAME, field(2, 2, b"x"))),
    "two bodies": (6, TOPIC + field(5, 2, b"") + field(5, 2, b"")),
    "two names": (6, TOPIC + attribute(NAME, NAME, YES)),
    "surrogate": (7, field(9, 2, b"\xed\xa0\x80")),
    "long form of a slash": (7, field(9, 2, b"\xc0\xaf")),
    "beyond the last character": (7, TOPIC + field(2, 2, b"\xf4\x90\x80\x80")),
    "cut character": (7, TOPIC + field(18, 2, b"\xe2\x82")),
    "name that is no text": (7, TOPIC + attribute(field(1, 2, b"\xff"), YES)),
    "value that is no text": (7, TOPIC + attribute(NAME, field(5, 2, b"\xff"))),
    "no name": (8, TOPIC + attribute(YES)),
    "empty name": (8, TOPIC + attribute(field(1, 2, b""), YES)),
    "long name": (8, TOPIC + attribute(field(1, 2, b"n" * 256), YES)),
    "no value": (9, TOPIC + attribute(NAME)),
    "two values": (9, TOPIC + attribute(NAME, YES, field(3, 0, b"\1"))),
    "same name": (10, TOPIC + attribute(NAME, YES) + attribute(NAME, YES)),
    "too many": (11, TOPIC + names(257)),
    "no topic": (12, field(5, 2, b"x")),
    "empty topic": (12, field(9, 2, b"")),
    "nothing": (12, b""),
    "long topic": (12, field(9, 2, b"t" * 1025)),
    "priority ten": (13, TOPIC + field(12, 0, b"\x0a")),
    "delivery mode two": (13, TOPIC + field(14, 0, b"\x02")),
    "compression two": (13, TOPIC + field(24, 0, b"\x02")),
    "bool two": (13, TOPIC + field(21, 0, b"\x02")),
    "attribute's bool two": (13, TOPIC + attribute(NAME, field(2, 0, b"\x02"))),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_fault_has_its_number(name: str) -> None:
    fault, data = EXAMPLES[name]
    for module in (envelope, TWIN):
        assert module.examine(data) == (fault, b"", b"", 0, 0)
    assert expected(data) is None


def test_every_fault_has_an_example_and_a_sentence() -> None:
    assert {fault for fault, _ in EXAMPLES.values()} == set(range(1, len(FAULTS)))


FINE = {
    "longest topic": field(9, 2, b"t" * 1024),
    "as many attributes as allowed": TOPIC + names(256) + names(256, 19),
    "same name in attributes and context": TOPIC + names(1) + names(1, 19),
    "long spelling of a number": TOPIC + field(12, 0, b"\x84\x80\x80\x00"),
    "long spelling of a tag": b"\xca\x80\x80\x00\x01a",
    "unknown field twice": TOPIC + field(30, 0, b"\1") * 2,
    "unknown field of an attribute": TOPIC + attribute(NAME, YES, field(9, 5, b"abcd")),
    "longest name": TOPIC + attribute(field(1, 2, b"n" * 255), YES),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_allowed_is_not_refused(name: str) -> None:
    data = FINE[name]
    for module in (envelope, TWIN):
        assert module.examine(data)[0] == 0
    assert expected(data) is not None


def test_what_needs_the_control_lane_is_marked() -> None:
    for module in (envelope, TWIN):
        assert module.examine(TOPIC)[4] == 0
        assert module.examine(TOPIC + field(14, 0, b"\1"))[4] == 1
        assert module.examine(TOPIC + field(3, 2, b"c"))[4] == 2
        assert module.examine(TOPIC + field(20, 2, b"r"))[4] == 2
        assert module.examine(TOPIC + field(14, 0, b"\1") + field(3, 2, b"c"))[4] == 3


def test_an_empty_direct_address_is_none() -> None:
    for module in (envelope, TWIN):
        assert module.examine(TOPIC + field(3, 2, b"") + field(20, 2, b""))[4] == 0


def test_expirations_before_1970_are_not_taken_for_none() -> None:
    for module in (envelope, TWIN):
        assert module.examine(TOPIC)[3] == 0
        assert module.examine(TOPIC + field(13, 1, b"\xff" * 8))[3] == -1


def test_unexpired_keeps_what_is_left_and_says_when_the_next_expires() -> None:
    moments = [0, 50, 100, -5, 101, 700, None]  # 0 is never
    frames = [native.encode(Message("t", b"x", expiration_us=moment)) for moment in moments]
    left = frames[0] + frames[4] + frames[5] + frames[6]
    for function in (unexpired, TWIN.unexpired):
        assert function(b"".join(frames), 100) == (left, 4, 3, 101)
        assert function(left, 800) == (frames[0] + frames[6], 2, 2, 0)
        assert function(b"", 5) == (b"", 0, 0, 0)


@pytest.mark.parametrize("kernel", [envelope, TWIN])
def test_numbers_one_behind_the_other(kernel: Any) -> None:
    numbers = [*LONG_NUMBERS, 5] * 3
    data = b"".join(map(write_varint, numbers))
    assert kernel.read_varints(data) == numbers
    assert kernel.read_varints(b"") == []
    assert kernel.read_varints(b"\x80\x00") == [0]
    for wrong in (data + b"\x80", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00"):
        assert kernel.read_varints(wrong) is None


def fields_or_none(data: bytes) -> list[tuple[int, int, int | bytes]] | None:
    try:
        return [raw[:3] for raw in read_fields(data)]
    except Malformed:
        return None


@pytest.mark.parametrize("kernel", [envelope, TWIN])
def test_fields_as_the_reference_reads_them(kernel: Any) -> None:
    choice = random.Random(3)
    known = [field(11, 0, write_varint(number)) for number in LONG_NUMBERS]
    known += [field(2, 2, b"x" * size) for size in (0, 1, 127, 128)]
    known += [field(3, 1, b"12345678"), field(2**29 - 1, 5, b"1234")]
    whole = 0
    for _ in range(3000):
        data = bytearray(b"".join(choice.choices(known, k=choice.randrange(5))))
        for _ in range(choice.randrange(3)):
            if data:
                data[choice.randrange(len(data))] = choice.randrange(256)
        cut = bytes(data[: choice.randrange(len(data) + 1)] if choice.random() < 0.3 else data)
        expected = fields_or_none(cut)
        assert kernel.fields_of(cut) == expected
        whole += expected is not None
    assert 1000 < whole < 2900


@pytest.mark.parametrize("kernel", [envelope, TWIN])
def test_text_is_checked_at_every_place(kernel: Any) -> None:
    parts = ("ä", "€", "😀", "\udc80", "\udcc3", "\udced\udca0\udc80")
    for part in (text.encode(errors="surrogateescape") for text in parts):
        for length in range(20):
            for at in range(length + 1):
                text = b"a" * at + part + b"b" * (length - at)
                fine = text.decode(errors="replace").encode() == text
                assert kernel.examine(field(9, 2, text))[0] == (0 if fine else 7)
