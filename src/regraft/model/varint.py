"""The primitives of Protocol Buffers: tags, varints, fixed-width numbers, lengths.

Rules:

- A field that cannot be read or written raises `Malformed` with the reason only. Who calls knows
  the message and the field, and turns it into the error that blames the right end.
- Reading is strict. A varint has at most ten bytes and fits 64 bits; a tag or a length has at most
  five bytes and fits 32 bits; field number 0 and wire types 3, 4, 6 and 7 (groups, and what does
  not exist) are refused; nothing may reach beyond the end.
- Longer spellings of a small number (80 00 for 0) are allowed, as in every other implementation.
- Writing is canonical: the shortest varint.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

VARINT, I64, LEN, I32 = 0, 1, 2, 5  # the wire types that are allowed

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Malformed(ValueError):
    """The bytes or the value cannot be a field of this kind; the text says why."""


_SHORT = [bytes([value]) for value in range(0x80)]


def write_varint(value: int) -> bytes:
    """Encode a number from 0 to 2**64-1 in as few bytes as it needs."""
    if 0 <= value < 0x80:  # most of them
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, start: int, bits: int = 64) -> tuple[int, int]:
    """Read a varint of at most `bits` bits at `start`: its value, and where it ends."""
    if start < len(data) and data[start] < 0x80:  # most of them
        return data[start], start + 1
    value = 0
    for count in range((bits + 6) // 7):
        if start + count >= len(data):
            raise Malformed("a varint is cut off")
        byte = data[start + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >> bits:
                raise Malformed(f"a varint does not fit {bits} bits")
            return value, start + count + 1
    raise Malformed(f"a varint does not fit {bits} bits")


class Raw(NamedTuple):
    """One field as it stands in the bytes, not yet given a meaning."""

    number: int
    wire: int
    value: int | bytes  # a number for VARINT, the bytes themselves for all others
    start: int  # of the tag
    end: int


def read_fields(data: bytes) -> Iterator[Raw]:
    """Walk over the fields of a message, in the order of its bytes."""
    at = 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at, 32)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise Malformed("field number 0 does not exist")
        try:
            value, at = _read_value(data, at, wire)
        except Malformed as reason:
            raise Malformed(f"field {number}: {reason}") from None
        yield Raw(number, wire, value, start, at)


def _read_value(data: bytes, at: int, wire: int) -> tuple[int | bytes, int]:
    if wire == VARINT:
        return read_varint(data, at)
    if wire == LEN:
        length, at = read_varint(data, at, 32)
    elif wire in (I64, I32):
        length = 8 if wire == I64 else 4
    else:
        raise Malformed(f"wire type {wire} is not allowed")
    if length > len(data) - at:
        raise Malformed("the value is cut off")
    return data[at : at + length], at + length


@dataclass(frozen=True, slots=True)
class Scalar:
    """How values of one kind are written and read.

    `pack` gives what follows the tag; `unpack` takes the `value` of a `Raw`.
    """

    name: str
    wire: int
    pack: Callable[[Any], bytes]
    unpack: Callable[[Any], Any]

    def write(self, number: int, value: Any) -> bytes:
        """The whole field: tag and value."""
        return write_varint(number << 3 | self.wire) + self.pack(value)

    def read(self, raw: Raw) -> Any:
        """The value of a field that is said to be of this kind."""
        return self.take(raw.wire, raw.value)

    def take(self, wire: int, value: int | bytes) -> Any:
        """The same of a field in parts."""
        if wire != self.wire:
            raise Malformed(f"wire type {wire} where {self.name} has {self.wire}")
        return self.unpack(value)


def _whole(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"a whole number is needed, not {type(value).__name__}")
    if not low <= value <= high:
        raise Malformed(f"{value} is not between {low} and {high}")
    return int(value)


def _unsigned(name: str, high: int) -> Scalar:
    def unpack(value: int) -> int:
        return value if value <= high else _whole(value, 0, high)

    return Scalar(name, VARINT, lambda value: write_varint(_whole(value, 0, high)), unpack)


def _fixed(name: str, layout: str, low: int, high: int) -> Scalar:
    form = struct.Struct(layout)
    return Scalar(
        name,
        I64 if form.size == 8 else I32,
        lambda value: form.pack(_whole(value, low, high)),
        lambda value: form.unpack(value)[0],
    )


def _pack_bool(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise Malformed(f"True or False is needed, not {type(value).__name__}")
    return b"\x01" if value else b"\x00"


def _unpack_bool(value: int) -> bool:
    if value > 1:
        raise Malformed(f"a bool is 0 or 1, not {value}")
    return value == 1


def _pack_signed(value: Any) -> bytes:
    number = _whole(value, INT64_MIN, INT64_MAX)
    return write_varint(number << 1 if number >= 0 else (-number << 1) - 1)  # zigzag


def _unpack_signed(value: int) -> int:
    return -((value + 1) >> 1) if value & 1 else value >> 1


def _pack_double(value: Any) -> bytes:
    if not isinstance(value, float):
        raise Malformed(f"a float is needed, not {type(value).__name__}")
    return struct.pack("<d", value)


def _unpack_double(value: bytes) -> float:
    number: float = struct.unpack("<d", value)[0]
    return number


def _pack_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed(f"bytes are needed, not {type(value).__name__}")
    return write_varint(len(value)) + value


def _unpack_bytes(value: bytes) -> bytes:
    return value


def _pack_string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Malformed(f"a string is needed, not {type(value).__name__}")
    try:
        return _pack_bytes(value.encode())
    except UnicodeEncodeError:
        raise Malformed("the string cannot be written as UTF-8") from None


def _unpack_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Malformed("the string is not UTF-8") from None


def enum_of(members: type[IntEnum]) -> Scalar:
    """A kind whose values are the members of an enumeration, and no others."""

    def member(value: Any) -> IntEnum:
        try:
            return members(value)
        except ValueError:
            raise Malformed(f"{value!r} is no {members.__name__}") from None

    return Scalar(members.__name__, VARINT, lambda value: write_varint(member(value)), member)


UINT32 = _unsigned("uint32", UINT32_MAX)
UINT64 = _unsigned("uint64", UINT64_MAX)
BOOL = Scalar("bool", VARINT, _pack_bool, _unpack_bool)
SINT64 = Scalar("sint64", VARINT, _pack_signed, _unpack_signed)
FIXED32 = _fixed("fixed32", "<I", 0, UINT32_MAX)
FIXED64 = _fixed("fixed64", "<Q", 0, UINT64_MAX)
SFIXED64 = _fixed("sfixed64", "<q", INT64_MIN, INT64_MAX)
DOUBLE = Scalar("double", I64, _pack_double, _unpack_double)
STRING = Scalar("string", LEN, _pack_string, _unpack_string)
BYTES = Scalar("bytes", LEN, _pack_bytes, _unpack_bytes)
