"""Checks the laws of the envelope's codec: round trips, agreement with Google's, no surprises.

The one law of decoding: any bytes give a message or a PeerError, and what is accepted here is
accepted by Google's parser too, with the same meaning.
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import PeerError
from regraft.model.message import (
    MAPPING_FIELDS,
    PRIORITY_DEFAULT,
    SCALAR_FIELDS,
    VALUE_FIELDS,
    Compression,
    DeliveryMode,
    Message,
    Timestamp,
    Value,
    decode_envelope,
    encode_envelope,
)
from regraft.model.varint import read_fields

LAW = settings(derandomize=True, deadline=None, max_examples=120)

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = TEXT.filter(bool)
VALUES = (
    st.booleans()
    | INT64
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=20)
    | INT64.map(Timestamp)
)
MAPPINGS = st.dictionaries(NAMES, VALUES, max_size=4)
# A varint field above all known numbers; its bytes are what a newer publisher could send.
UNKNOWN = st.sampled_from([b"", b"\xf8\x01\x07", b"\xfa\x01\x02hi\xf8\x01\x00"])
MESSAGES = st.builds(
    Message,
    topic=NAMES,
    body=st.binary(max_size=50),
    attributes=MAPPINGS,
    id=st.none() | UINT64,
    sender=TEXT,
    to=TEXT,
    type=UINT32,
    type_name=TEXT,
    timestamp_us=st.none() | INT64,
    references=st.none() | UINT64,
    workflow=st.binary(max_size=9),
    sequence=st.none() | UINT64,
    priority=st.integers(0, 9),
    expiration_us=st.none() | INT64,
    delivery_mode=st.sampled_from(DeliveryMode),
    content_type=TEXT,
    reply_to=TEXT,
    correlation=TEXT,
    context=MAPPINGS,
    override_rules=st.binary(max_size=9),
    report_delivery_error=st.booleans(),
    include_original=st.booleans(),
    logging_method=UINT32,
    compression=st.sampled_from(Compression),
    where=TEXT,
    unknown=UNKNOWN,
)

Google = Callable[[str], Any]


def typed(mapping: Mapping[str, Value]) -> list[tuple[str, type, str]]:
    """A mapping in its order, with types: 1, 1.0 and True are different values here."""
    return [(name, type(value), repr(value)) for name, value in mapping.items()]


def to_google(message: Message, google: Google) -> Any:
    """The same message as an object of Google's library."""
    envelope = google("Envelope")()
    for row in SCALAR_FIELDS:
        value = getattr(message, row.name)
        if value is not None and not (row.name == "priority" and value == PRIORITY_DEFAULT):
            setattr(envelope, row.schema_name, value)
    kinds = {row.type: row.schema_name for row in VALUE_FIELDS}
    for field in MAPPING_FIELDS.values():
        for name, value in getattr(message, field).items():
            plain = value.us if isinstance(value, Timestamp) else value
            getattr(envelope, field).add(**{"name": name, kinds[type(value)]: plain})
    if message.unknown:
        envelope.MergeFromString(message.unknown)
    return envelope


def same_meaning(message: Message, envelope: Any) -> bool:
    """Whether Google's object says what the message says, unknown fields aside."""
    for row in SCALAR_FIELDS:
        value = getattr(message, row.name)
        if row.absent is None or row.name == "priority":
            present = envelope.HasField(row.schema_name)
            theirs = getattr(envelope, row.schema_name) if present else row.absent
        else:
            theirs = getattr(envelope, row.schema_name)
        if theirs != value:
            return False
    return all(
        same_attributes(getattr(message, field), getattr(envelope, field))
        for field in MAPPING_FIELDS.values()
    )


def same_attributes(mapping: Mapping[str, Value], theirs: Any) -> bool:
    kinds = {row.schema_name: row.type for row in VALUE_FIELDS}
    found: dict[str, Value] = {}
    for attribute in theirs:
        kind = attribute.WhichOneof("value")
        found[attribute.name] = kinds[kind](getattr(attribute, kind))
    return typed(found) == typed(mapping)


@LAW
@given(MESSAGES)
def test_what_is_encoded_comes_back(message: Message) -> None:
    data = encode_envelope(message)
    found = decode_envelope(data)
    assert found == message
    assert typed(found.attributes) == typed(message.attributes)
    assert typed(found.context) == typed(message.context)
    assert encode_envelope(found) == data


@LAW
@given(MESSAGES)
def test_google_reads_what_is_encoded_here(google: Google, message: Message) -> None:
    parsed = google("Envelope").FromString(encode_envelope(message))
    assert same_meaning(message, parsed)
    assert parsed == to_google(message, google)


@LAW
@given(MESSAGES)
def test_what_google_writes_is_read_here(google: Google, message: Message) -> None:
    found = decode_envelope(to_google(message, google).SerializeToString())
    assert found == message
    assert typed(found.attributes) == typed(message.attributes)


def test_not_a_number_is_a_number() -> None:
    data = encode_envelope(Message("a", attributes={"x": math.nan}))
    value = decode_envelope(data).attributes["x"]
    assert isinstance(value, float) and math.isnan(value)


# ------------------------------------------------------------------------ fuzz


def samples() -> list[bytes]:
    rich = Message(
        "a/b",
        b"body",
        {"b": True, "i": -5, "f": 1.5, "s": "é", "y": b"\xff", "t": Timestamp(9)},
        id=1,
        sender="s",
        type=300,
        timestamp_us=5,
        sequence=2**63,
        priority=1,
        context={"c": "d"},
        report_delivery_error=True,
        compression=Compression.GZIP,
        unknown=b"\xf8\x01\x07",
    )
    return [encode_envelope(rich), encode_envelope(Message("t", b"x", {"n": 1}))]


def mutated(choice: random.Random, data: bytes) -> bytes:
    """A few small accidents: bytes changed, lost, doubled, or whole fields moved."""
    work = bytearray(data)
    for _ in range(choice.randint(1, 4)):
        at = choice.randrange(len(work) + 1)
        match choice.randrange(5):
            case 0:
                work[at : at + 1] = choice.randbytes(1)
            case 1:
                del work[at : at + choice.randint(1, 4)]
            case 2:
                work[at:at] = work[at : at + choice.randint(1, 9)]
            case 3:
                work[at : at + 1] = choice.choice([b"\x80\x00", b"\xff\xff", b"\x00", b"\x0b"])
            case _:
                fields = [data[raw.start : raw.end] for raw in read_fields(data)]
                work += choice.choice(fields)
    return bytes(work)


def judge(data: bytes, google: Google) -> bool:
    """Hold the law for these bytes; whether they were accepted."""
    try:
        message = decode_envelope(data)
    except PeerError as error:
        assert error.code.name == "malformed-envelope"
        return False
    assert same_meaning(message, google("Envelope").FromString(data))
    again = decode_envelope(encode_envelope(message))
    assert repr(again) == repr(message)  # by text, so that not-a-number equals itself
    return True


def test_random_bytes_give_a_message_or_a_peer_error(google: Google) -> None:
    choice = random.Random(1)
    for _ in range(5_000):
        judge(choice.randbytes(choice.randrange(40)), google)
        judge(b"\x4a\x01a" + choice.randbytes(choice.randrange(12)), google)


def test_damaged_envelopes_give_a_message_or_a_peer_error(google: Google) -> None:
    choice = random.Random(2)
    accepted = sum(judge(mutated(choice, choice.choice(samples())), google) for _ in range(4_000))
    assert 100 < accepted < 3_900  # the accidents are neither all fatal nor all harmless


def test_every_cut_gives_a_message_or_a_peer_error(google: Google) -> None:
    for data in samples():
        for size in range(len(data)):
            judge(data[:size], google)
