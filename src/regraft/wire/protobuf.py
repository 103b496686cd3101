"""Protocol Buffers for control messages: a message is a dataclass, its fields are a table.

    @dataclass(frozen=True, slots=True)
    class Subscribe:
        id: int = uint32(1)
        pattern: str = string(2)

Rules:

- `encode` writes fields by number and leaves out those that are zero, as proto3 does. A value that
  a field cannot hold is a `LocalError("bad-message")`.
- `decode` gives a value or `PeerError("malformed-envelope")` with a sentence that names the message
  and the field, and nothing else. It is strict where most libraries are lenient: a singular field
  stands at most once, a bool is 0 or 1, an enumeration has no values but its own, a number is not
  cut to the width of its field.
- Unknown fields are checked for form and skipped: a control message ends at the next node.
- Repeated numbers are written packed and read packed or one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, TypeVar

from regraft.errors import LocalError, PeerError
from regraft.kernels.envelope import fields_of, read_varints
from regraft.model import varint
from regraft.model.varint import LEN, Malformed, Scalar, read_fields, write_varint

REPEATED_MAX = 100_000  # elements of one repeated field

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One field of a message: its number, and how its values are written."""

    number: int
    scalar: Scalar
    repeated: bool = False
    packed: bool = False
    nested: bool = False  # a single message: absent is None, and an empty one is not absent


def _singular(scalar: Scalar, zero: Any) -> Callable[[int], Any]:
    def declare(number: int) -> Any:
        return field(default=zero, metadata={"row": Row(number, scalar)})

    return declare


uint32 = _singular(varint.UINT32, 0)
uint64 = _singular(varint.UINT64, 0)
boolean = _singular(varint.BOOL, False)
sint64 = _singular(varint.SINT64, 0)
fixed32 = _singular(varint.FIXED32, 0)
fixed64 = _singular(varint.FIXED64, 0)
sfixed64 = _singular(varint.SFIXED64, 0)
double = _singular(varint.DOUBLE, 0.0)
string = _singular(varint.STRING, "")
octets = _singular(varint.BYTES, b"")


def enumeration(number: int, members: type[IntEnum]) -> Any:
    """A field that holds a member of `members`; absent, the one that is 0."""
    row = Row(number, varint.enum_of(members))
    return field(default=members(0), metadata={"row": row})


def message(number: int, cls: type[Any]) -> Any:
    """A field that holds another message; absent, None."""
    return field(default=None, metadata={"row": Row(number, _scalar_of(cls), nested=True)})


def repeated(number: int, of: Scalar | type[Any]) -> Any:
    """A field that holds a tuple of values of one kind, or of messages of one class."""
    scalar = of if isinstance(of, Scalar) else _scalar_of(of)
    row = Row(number, scalar, repeated=True, packed=scalar.wire != LEN)
    return field(default=(), metadata={"row": row})


def _scalar_of(cls: type[Any]) -> Scalar:
    """A message inside another is bytes whose meaning is `cls`."""

    def pack(value: Any) -> bytes:
        if type(value) is not cls:
            raise Malformed(f"a {cls.__name__} is needed, not {type(value).__name__}")
        inner = encode(value)
        return write_varint(len(inner)) + inner

    return Scalar(cls.__name__, LEN, pack, lambda data: decode(cls, data))


_TABLES: dict[type[Any], dict[int, tuple[str, Row]]] = {}
_ROWS: dict[type[Any], list[tuple[str, Row, Any]]] = {}


def table(cls: type[Any]) -> dict[int, tuple[str, Row]]:
    """The fields of a message class by number, in the order of their numbers."""
    if cls in _TABLES:
        return _TABLES[cls]
    rows = {item.metadata["row"].number: (item.name, item.metadata["row"]) for item in fields(cls)}
    assert len(rows) == len(fields(cls)), f"{cls.__name__} uses a field number twice"
    return _TABLES.setdefault(cls, dict(sorted(rows.items())))


def encode(value: Any) -> bytes:
    """The bytes of a message, by the table of its class."""
    cls = type(value)
    out = bytearray()
    for name, row, zero in _ROWS.get(cls) or _rows(cls):
        given = getattr(value, name)
        if given is zero:  # nearly all of them
            continue
        try:
            out += _encode_field(row, given)
        except Malformed as reason:
            raise LocalError("bad-message", f"{cls.__name__}.{name}: {reason}") from None
    return bytes(out)


def _rows(cls: type[Any]) -> list[tuple[str, Row, Any]]:
    """What is written, in order, and what is left out of it."""
    zeros = {item.name: item.default for item in fields(cls)}
    return _ROWS.setdefault(cls, [(name, row, zeros[name]) for name, row in table(cls).values()])


def _encode_field(row: Row, value: Any) -> bytes:
    if not row.repeated:
        if row.nested:
            return b"" if value is None else row.scalar.write(row.number, value)
        packed = row.scalar.pack(value)
        # Zero values, and only they, consist of zero bytes; -0.0 is none.
        return write_varint(row.number << 3 | row.scalar.wire) + packed if any(packed) else b""
    if not isinstance(value, tuple | list):
        raise Malformed(f"a tuple is needed, not {type(value).__name__}")
    if len(value) > REPEATED_MAX:
        raise Malformed(f"{len(value)} elements; the limit is {REPEATED_MAX}")
    if not row.packed:
        return b"".join(row.scalar.write(row.number, item) for item in value)
    inner = b"".join(map(row.scalar.pack, value))
    return varint.BYTES.write(row.number, inner) if inner else b""


def decode(cls: type[T], data: bytes) -> T:
    """Read a message of class `cls`; whatever is wrong with the bytes is a PeerError."""
    values: dict[str, Any] = {}
    rows = table(cls)
    name = ""
    try:
        found: Iterable[tuple[int, int, Any]] | None = fields_of(data)
        if found is None:  # this one says why
            found = (raw[:3] for raw in read_fields(data))
        for number, wire, value in found:
            if number in rows:
                name, row = rows[number]
                _take(values, name, row, wire, value)
                name = ""
    except Malformed as reason:
        where = f"{cls.__name__}.{name}" if name else cls.__name__
        raise PeerError("malformed-envelope", f"{where}: {reason}") from None
    return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


def _take(values: dict[str, Any], name: str, row: Row, wire: int, value: Any) -> None:
    if not row.repeated:
        if name in values:
            raise Malformed("the field stands there twice")
        values[name] = row.scalar.take(wire, value)
        return
    elements: list[Any] = values.setdefault(name, [])
    if row.scalar is varint.UINT64 and wire == LEN:  # very many, in settlements
        found = read_varints(value)
        if found is not None and len(elements) + len(found) <= REPEATED_MAX:
            elements += found
            return
    for element in _elements(row, wire, value):
        if len(elements) >= REPEATED_MAX:
            raise Malformed(f"more than {REPEATED_MAX} elements")
        elements.append(element)


def _elements(row: Row, wire: int, value: Any) -> Iterator[Any]:
    """The values of one occurrence of a repeated field: one, or a packed run of them."""
    if not row.packed or wire != LEN:
        yield row.scalar.take(wire, value)
        return
    at = 0
    while at < len(value):
        if row.scalar.wire == varint.VARINT:
            number, at = varint.read_varint(value, at)
            yield row.scalar.unpack(number)
            continue
        width = 8 if row.scalar.wire == varint.I64 else 4
        if width > len(value) - at:
            raise Malformed("a packed number is cut off")
        yield row.scalar.unpack(value[at : at + width])
        at += width
