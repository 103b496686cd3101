"""A message, and the slow, obvious reference of how it becomes an envelope and back.

Rules:

- A message does not change. Its two mappings are plain dicts, in the order of the bytes; nobody
  writes to them once the message exists.
- `encode_envelope` gives bytes that `decode_envelope` takes, and the same message comes back. What
  cannot be encoded is a `LocalError("bad-message")`.
- `decode_envelope` gives a message or `PeerError("malformed-envelope")`, and nothing else. It is
  strict: a topic; singular fields at most once; attribute names present and unique, with exactly
  one value each; numbers, sizes and counts within their limits.
- For the fields whose Python default is None (and for the priority) absent is not zero; for all
  others it is, and zero is not written.
- Unknown fields of the envelope are kept in their order and written last. Those inside an attribute
  are not kept; a node loses neither, as it passes on the bytes that it received.
- Whether the topic may be published to is another question: `topics.check_topic`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, TypeAlias

from regraft.errors import LocalError, PeerError
from regraft.limits import ATTRIBUTES_MAX, NAME_BYTES_MAX, TOPIC_BYTES_MAX, Limits
from regraft.model import varint
from regraft.model.messagetype import decode_value
from regraft.model.varint import LEN, Malformed, Raw, Scalar, read_fields

PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9

_INFLATED_BYTES_MAX = Limits().inflated_bytes
_GZIP_WBITS = 16 + zlib.MAX_WBITS  # a gzip header and trailer, not those of zlib
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeliveryMode(IntEnum):
    """What a crash may do to a message."""

    NON_PERSISTENT = 0
    PERSISTENT = 1


class Compression(IntEnum):
    """What was done to a body before it was sent."""

    NONE = 0
    GZIP = 1


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A moment as the value of an attribute: microseconds since 1970 UTC."""

    us: int

    @classmethod
    def from_datetime(cls, moment: datetime) -> Timestamp:
        """The moment of a datetime that says its time zone."""
        if moment.tzinfo is None:
            raise LocalError("bad-message", f"{moment!r} has no time zone; give it one")
        return cls((moment - _EPOCH) // timedelta(microseconds=1))

    def to_datetime(self) -> datetime:
        """The same moment as a datetime in UTC; it must lie in the years 1 to 9999."""
        try:
            return _EPOCH + timedelta(microseconds=self.us)
        except OverflowError:
            text = f"{self.us} µs from 1970 is outside the years 1 to 9999; use .us instead"
            raise LocalError("bad-message", text) from None


Value: TypeAlias = bool | int | float | str | bytes | Timestamp


@dataclass(frozen=True, slots=True)
class Message:
    """What a publisher says, once. `regraft.proto` tells the meaning of each field."""

    topic: str
    body: bytes = b""
    attributes: Mapping[str, Value] = field(default_factory=dict, hash=False)
    id: int | None = None
    sender: str = ""  # "from" in the schema
    to: str = ""
    type: int = 0
    type_name: str = ""
    timestamp_us: int | None = None
    references: int | None = None
    workflow: bytes = b""
    sequence: int | None = None
    priority: int = PRIORITY_DEFAULT
    expiration_us: int | None = None
    delivery_mode: DeliveryMode = DeliveryMode.NON_PERSISTENT
    content_type: str = ""
    reply_to: str = ""
    correlation: str = ""
    context: Mapping[str, Value] = field(default_factory=dict, hash=False)
    override_rules: bytes = b""
    report_delivery_error: bool = False
    include_original: bool = False
    logging_method: int = 0
    compression: Compression = Compression.NONE
    deliver_at_us: int | None = None
    where: str = ""  # what a receiver's context must satisfy
    unknown: bytes = b""  # fields that this version does not know, as they stood

    def content(self, inflated_bytes_max: int = _INFLATED_BYTES_MAX) -> bytes:
        """The body as it was before compression; at most `inflated_bytes_max` of it."""
        if self.compression == Compression.NONE:
            return self.body
        return _inflate(self.body, inflated_bytes_max)

    def value(self) -> Any:
        """The body as an object of the class that its type is registered for: `message_type`."""
        return decode_value(self.type_name, self.content())

    def with_gzip(self) -> Message:
        """The same message with its body compressed."""
        if self.compression == Compression.GZIP:
            return self
        deflate = zlib.compressobj(wbits=_GZIP_WBITS)
        body = deflate.compress(self.body) + deflate.flush()
        return replace(self, body=body, compression=Compression.GZIP)


def _inflate(body: bytes, bytes_max: int) -> bytes:
    inflate = zlib.decompressobj(wbits=_GZIP_WBITS)
    try:
        # One byte more than allowed, so that "exactly the limit" and "beyond it" differ.
        content = inflate.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _refuse(f"the body is not gzip, though the message says so ({error})") from None
    if len(content) > bytes_max:
        text = f"the body inflates to more than {bytes_max} bytes; raise limit inflated_bytes"
        raise PeerError("limit-exceeded", text)
    if not inflate.eof:
        raise _refuse("the gzip body is cut off; publish it again, whole")
    if inflate.unused_data:
        raise _refuse("something follows the end of the gzip body; publish one gzip member only")
    return content


# ------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class EnvelopeField:
    """A field of the envelope: its number, its names here and in the schema, its kind."""

    number: int
    schema_name: str
    name: str
    scalar: Scalar
    absent: Any  # what its absence means, and therefore what is not written


@dataclass(frozen=True, slots=True)
class ValueField:
    """One of the values of which an attribute has exactly one."""

    number: int
    schema_name: str
    type: type[Any]
    scalar: Scalar


_TIMESTAMP = Scalar(
    "sfixed64",
    varint.I64,
    lambda value: varint.SFIXED64.pack(value.us),
    lambda data: Timestamp(varint.SFIXED64.unpack(data)),
)

SCALAR_FIELDS: tuple[EnvelopeField, ...] = (
    EnvelopeField(1, "id", "id", varint.FIXED64, None),
    EnvelopeField(2, "from", "sender", varint.STRING, ""),
    EnvelopeField(3, "to", "to", varint.STRING, ""),
    EnvelopeField(4, "type", "type", varint.UINT32, 0),
    EnvelopeField(5, "body", "body", varint.BYTES, b""),
    EnvelopeField(6, "timestamp", "timestamp_us", varint.SFIXED64, None),
    EnvelopeField(7, "references", "references", varint.FIXED64, None),
    EnvelopeField(8, "workflow", "workflow", varint.BYTES, b""),
    EnvelopeField(9, "topic", "topic", varint.STRING, ""),
    EnvelopeField(11, "sequence", "sequence", varint.UINT64, None),
    EnvelopeField(12, "priority", "priority", varint.UINT32, PRIORITY_DEFAULT),
    EnvelopeField(13, "expiration", "expiration_us", varint.SFIXED64, None),
    EnvelopeField(14, "delivery_mode", "delivery_mode", varint.enum_of(DeliveryMode), 0),
    EnvelopeField(15, "content_type", "content_type", varint.STRING, ""),
    EnvelopeField(16, "reply_to", "reply_to", varint.STRING, ""),
    EnvelopeField(17, "correlation", "correlation", varint.STRING, ""),
    EnvelopeField(18, "type_name", "type_name", varint.STRING, ""),
    EnvelopeField(20, "override_rules", "override_rules", varint.BYTES, b""),
    EnvelopeField(21, "report_delivery_error", "report_delivery_error", varint.BOOL, False),
    EnvelopeField(22, "include_original", "include_original", varint.BOOL, False),
    EnvelopeField(23, "logging_method", "logging_method", varint.UINT32, 0),
    EnvelopeField(24, "compression", "compression", varint.enum_of(Compression), 0),
    EnvelopeField(25, "deliver_at", "deliver_at_us", varint.SFIXED64, None),
    EnvelopeField(26, "where", "where", varint.STRING, ""),
)
MAPPING_FIELDS: dict[int, str] = {10: "attributes", 19: "context"}

NAME_NUMBER = 1  # of an attribute's name
VALUE_FIELDS: tuple[ValueField, ...] = (
    ValueField(2, "bool_value", bool, varint.BOOL),  # before int, of which bool is a kind
    ValueField(3, "int_value", int, varint.SINT64),
    ValueField(4, "float_value", float, varint.DOUBLE),
    ValueField(5, "string_value", str, varint.STRING),
    ValueField(6, "bytes_value", bytes, varint.BYTES),
    ValueField(7, "timestamp_value", Timestamp, _TIMESTAMP),
)

_BY_NUMBER = {row.number: row for row in SCALAR_FIELDS}
_VALUE_BY_NUMBER = {row.number: row for row in VALUE_FIELDS}


# ---------------------------------------------------------------------- encode


def encode_envelope(message: Message) -> bytes:
    """The envelope of a message: its fields by number, then the unknown ones."""
    parts: dict[int, bytes] = {}
    name = ""
    try:
        for row in SCALAR_FIELDS:
            name = row.name
            value = getattr(message, name)
            if value is None and row.absent is None:
                continue
            # Written first, so that a wrong type is refused even where it equals the zero value.
            written = row.scalar.write(row.number, value)
            if row.absent is None or value != row.absent:
                parts[row.number] = written
        for number, name in MAPPING_FIELDS.items():
            parts[number] = _encode_mapping(number, getattr(message, name))
        name = "unknown"
        _check_unknown(message.unknown)
        name = "message"
        _check_whole(message)
    except Malformed as reason:
        raise LocalError("bad-message", f"{name}: {reason}") from None
    return b"".join(parts[number] for number in sorted(parts)) + message.unknown


def _encode_mapping(number: int, mapping: Mapping[str, Value]) -> bytes:
    return b"".join(
        varint.BYTES.write(number, _encode_attribute(name, value))
        for name, value in mapping.items()
    )


def _encode_attribute(name: str, value: Value) -> bytes:
    for row in VALUE_FIELDS:
        if isinstance(value, row.type):
            try:
                written = row.scalar.write(row.number, value)
            except Malformed as reason:
                raise Malformed(f"attribute {name!r}: {reason}") from None
            return varint.STRING.write(NAME_NUMBER, name) + written
    raise Malformed(f"attribute {name!r} has a value of type {type(value).__name__}")


def _check_unknown(unknown: bytes) -> None:
    for raw in read_fields(unknown):
        if raw.number in _BY_NUMBER or raw.number in MAPPING_FIELDS:
            raise Malformed(f"field {raw.number} is known; set it by its name")


# ---------------------------------------------------------------------- decode


def decode_envelope(data: bytes) -> Message:
    """The message in an envelope; whatever is wrong with the bytes is a PeerError."""
    values: dict[str, Any] = {"topic": "", "attributes": {}, "context": {}}
    seen: set[int] = set()
    unknown = bytearray()
    try:
        for raw in read_fields(data):
            if raw.number in MAPPING_FIELDS:
                _take_attribute(values[MAPPING_FIELDS[raw.number]], raw)
            elif raw.number not in _BY_NUMBER:
                unknown += data[raw.start : raw.end]
            elif raw.number in seen:
                raise Malformed(f"field {_BY_NUMBER[raw.number].schema_name} stands there twice")
            else:
                seen.add(raw.number)
                row = _BY_NUMBER[raw.number]
                values[row.name] = _read(row.schema_name, row.scalar, raw)
        message = Message(**values, unknown=bytes(unknown))
        _check_whole(message)
    except Malformed as reason:
        raise _refuse(f"Envelope: {reason}") from None
    return message


def _take_attribute(mapping: dict[str, Value], raw: Raw) -> None:
    if raw.wire != LEN:
        raise Malformed(f"an attribute has wire type {raw.wire}, not {LEN}")
    assert isinstance(raw.value, bytes)
    name: str | None = None
    value: Value | None = None
    for inner in read_fields(raw.value):
        if inner.number == NAME_NUMBER:
            if name is not None:
                raise Malformed("an attribute has two names")
            name = _read("Attribute.name", varint.STRING, inner)
        elif inner.number in _VALUE_BY_NUMBER:
            if value is not None:
                raise Malformed("an attribute has two values")
            row = _VALUE_BY_NUMBER[inner.number]
            value = _read(f"Attribute.{row.schema_name}", row.scalar, inner)
    if not name:
        raise Malformed("an attribute has no name")
    if value is None:
        raise Malformed(f"attribute {name!r} has no value")
    if name in mapping:
        raise Malformed(f"attribute {name!r} stands there twice")
    mapping[name] = value


def _read(name: str, scalar: Scalar, raw: Raw) -> Any:
    try:
        return scalar.read(raw)
    except Malformed as reason:
        raise Malformed(f"field {name}: {reason}") from None


def _check_whole(message: Message) -> None:
    """What an envelope must be beyond the form of its fields, either way."""
    if not message.topic:
        raise Malformed("there is no topic")
    size = len(message.topic.encode())
    if size > TOPIC_BYTES_MAX:
        raise Malformed(f"the topic has {size} bytes; the limit is {TOPIC_BYTES_MAX}")
    if message.priority > PRIORITY_MAX:
        raise Malformed(f"priority {message.priority} is above {PRIORITY_MAX}")
    for noun in MAPPING_FIELDS.values():
        mapping: Mapping[str, Value] = getattr(message, noun)
        if len(mapping) > ATTRIBUTES_MAX:
            raise Malformed(f"{noun} has {len(mapping)} entries; the limit is {ATTRIBUTES_MAX}")
        for name in mapping:
            size = len(name.encode())
            if not name:
                raise Malformed(f"{noun}: a name is empty")
            if size > NAME_BYTES_MAX:
                raise Malformed(f"{noun}: a name has {size} bytes; the limit is {NAME_BYTES_MAX}")


def _refuse(text: str) -> PeerError:
    return PeerError("malformed-envelope", text)
