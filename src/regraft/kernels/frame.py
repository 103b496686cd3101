"""Frames: where they begin and end, and the twelve bytes in front of each.

     0         4      5       6       8          12
     +---------+------+-------+-------+----------+--------------+
     | length  | kind | flags | check | checksum | payload      |
     +---------+------+-------+-------+----------+--------------+
      u32       u8     u8      u16     u32        length - 8 bytes

All numbers are little-endian. `length` counts what follows it. `check` is the low half of the
CRC-32C of the first six bytes, so that a stream out of step is noticed at once; `checksum` is the
CRC-32C of the payload.

The functions here trust their callers to pass positions inside the buffer. `p` is a pointer when
compiled, a memoryview when interpreted: both are indexed alike.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.checksum import crc32c_at, pointer_to

    HEADER = 12
    MESSAGE = 7
    TRANSFER = 8
    CONFIRMED = 17
    ORIGIN = 33
    QUESTION = 34
    REPLY = 35
    VARINT_MAX = 10

    def u32(p: Any, i: int) -> int:
        """The four bytes at i as a number."""
        return int.from_bytes(p[i : i + 4], "little")

    def cut(p: Any, start: int, end: int) -> bytes:
        """A copy of p[start:end]."""
        return bytes(p[start:end])

    def writable(buffer: bytearray) -> memoryview:
        """What a buffer is written through."""
        return memoryview(buffer)

    def put_u32(p: Any, i: int, value: int) -> None:
        """Write a number as four bytes at i."""
        p[i : i + 4] = value.to_bytes(4, "little")


def put_header(p: Any, i: int, kind: int, payload: int) -> None:
    """Write the header of a frame whose `payload` bytes already stand behind it."""
    put_u32(p, i, payload + 8)
    p[i + 4] = kind
    p[i + 5] = 0
    check = crc32c_at(p, i, i + 6)
    p[i + 6] = check & 255
    p[i + 7] = check >> 8 & 255
    put_u32(p, i + 8, crc32c_at(p, i + HEADER, i + HEADER + payload))


def put_varint(p: Any, at: int, value: int) -> int:
    """Write a varint; the place behind it."""
    while value > 127:
        p[at] = value & 127 | 128
        value >>= 7
        at += 1
    p[at] = value
    return at + 1


def put_number(p: Any, at: int, field: int, value: int) -> int:
    """Write a field that is a number, unless it is 0; the place behind it."""
    if value == 0:
        return at
    p[at] = field << 3
    return put_varint(p, at + 1, value)


def count_messages(view: Any) -> tuple[int, int]:
    """How many MESSAGE frames stand whole at the start of `view`, and where the rest begins.

    Other whole frames are passed over. Nothing is checked: for counting what was checked before.
    """
    n = len(view)
    p = pointer_to(view)
    pos = 0
    count = 0
    while n - pos >= HEADER:
        size = u32(p, pos) + 4
        if n - pos < size:
            break
        count += p[pos + 4] == MESSAGE
        pos += size
    return count, pos


def take(view: Any, messages_max: int, bytes_max: int) -> tuple[int, int]:
    """The longest head of a run of whole messages within both bounds: messages, bytes.

    As everywhere in the protocol, a message may begin while fewer bytes than the bound were taken.
    """
    n = len(view)
    p = pointer_to(view)
    pos = 0
    count = 0
    while pos < n and count < messages_max and pos < bytes_max:
        pos += u32(p, pos) + 4
        count += 1
    return count, pos


def transfer(ids: bytes, count: int) -> bytes:
    """The transfer header of a run: `count` messages for the encoded subscriptions `ids`."""
    size = HEADER + 5 + len(ids)
    header = bytearray(size)
    header[HEADER] = 0x0D  # field 1, fixed32
    header[HEADER + 1 : HEADER + 5] = count.to_bytes(4, "little")
    header[HEADER + 5 :] = ids
    put_header(writable(header), 0, TRANSFER, size - HEADER)
    return bytes(header)


def origin(stream: bytes, first: int) -> bytes:
    """What stands in front of a run between nodes: its stream, encoded, and its first ordinal."""
    header = bytearray(HEADER) + stream + b"\x19" + first.to_bytes(8, "little")
    put_header(writable(header), 0, ORIGIN, len(header) - HEADER)
    return bytes(header)


def confirmed(ordinal: int, count: int, takers: int, known: bool) -> bytes:
    """The frame that tells a publisher what is safe: one for each message, if it sends no more."""
    frame = bytearray(HEADER + 4 * (1 + VARINT_MAX))
    p = writable(frame)
    at = put_number(p, HEADER, 1, ordinal)
    at = put_number(p, at, 2, count)
    at = put_number(p, at, 3, takers)
    at = put_number(p, at, 4, known)
    put_header(p, 0, CONFIRMED, at - HEADER)
    return bytes(frame[:at])
