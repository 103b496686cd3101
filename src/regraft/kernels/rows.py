"""From the columns of a record batch, as Apache Arrow lays them out, to frames of messages.

A row becomes a persistent message. There is no Python object per row; what is written is, byte for
byte, what an `Outbox` would write, and a test holds the two together.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from typing import Any

from regraft.errors import LocalError

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.envelope import i64
    from regraft.kernels.frame import HEADER, MESSAGE, put_header, u32, writable
    from regraft.kernels.outbox import mix, put_u64, zigzag
    from regraft.kernels.outlet import copy, copy_bytes

    # What is in a column, by the tag that it has as the value of an attribute.
    BOOL = 0x10
    INT = 0x18
    FLOAT = 0x21
    STRING = 0x2A
    BYTES = 0x32
    TIME = 0x39

    ATTRIBUTES_MAX = 256
    NAME_BYTES_MAX = 255


def varint_size(value: int) -> int:
    """How many bytes a varint has."""
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


class Cells:
    """One column: which rows have a value, where texts begin, and the values.

    Row 0 is the one at `first`. Without `valid` all rows have a value.
    """

    def __init__(
        self, kind: int, first: int, valid: Any, offsets: Any, data: Any, name: bytes = b""
    ) -> None:
        self.kind = kind
        self.first = first
        self.kept = (valid, offsets, data)  # as long as there are pointers to them
        self.all_there = valid is None
        self.valid = pointer_to(b"" if valid is None else valid)
        self.offsets = pointer_to(b"" if offsets is None else offsets)
        self.data = pointer_to(b"" if data is None else data)
        self.name = name

    def there(self, row: int) -> bool:
        """Whether a row has a value."""
        row += self.first
        return self.all_there or bool(self.valid[row >> 3] >> (row & 7) & 1)

    def start(self, row: int) -> int:
        """Where the text of a row begins; that of the next is where it ends."""
        return u32(self.offsets, 4 * (self.first + row))

    def number(self, row: int) -> int:
        """The eight bytes of a row."""
        return i64(self.data, 8 * (self.first + row))

    def is_true(self, row: int) -> bool:
        """The bit of a row."""
        row += self.first
        return bool(self.data[row >> 3] >> (row & 7) & 1)

    def size(self, row: int) -> int:
        """How many bytes the value takes in an attribute."""
        if self.kind == STRING or self.kind == BYTES:
            length = self.start(row + 1) - self.start(row)
            return 1 + varint_size(length) + length
        if self.kind == INT:
            return 1 + varint_size(zigzag(self.number(row)))
        return 2 if self.kind == BOOL else 9


class Entries:
    """A column of maps: for each row some names, each with a value in one of several columns."""

    def __init__(self, maps: Cells, names: Cells, values: Cells, kinds: list[Cells]) -> None:
        self.maps = maps
        self.names = names
        self.values = values
        self.kinds = kinds


class Rows:
    """A buffer of frames. `seed` is where ids begin, `sequence` that of the message before."""

    def __init__(self, frame_bytes_max: int, seed: int, sequence: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.counter = seed
        self.sequence = sequence
        self.buffer = bytearray(1 << 16)
        self.used = 0
        self.at = 0

    def reserve(self, size: int) -> bool:
        """Make room for `size` bytes from `at` on."""
        if self.at + size > len(self.buffer):
            larger = bytearray(max(2 * len(self.buffer), self.at + size))
            larger[: self.at] = memoryview(self.buffer)[: self.at]
            self.buffer = larger
        return True

    def varint(self, value: int) -> None:
        """Write a varint; there is room."""
        p = writable(self.buffer)
        i = self.at
        while value > 0x7F:
            p[i] = value & 0x7F | 0x80
            value >>= 7
            i += 1
        p[i] = value
        self.at = i + 1

    def fixed(self, tag: int, value: int) -> None:
        """Write a field of eight bytes; there is room."""
        p = writable(self.buffer)
        p[self.at] = tag
        put_u64(p, self.at + 1, value)
        self.at += 9

    def text(self, tag: int, cells: Cells, row: int) -> bool:
        """Write a field of bytes."""
        start = cells.start(row)
        end = cells.start(row + 1)
        self.reserve(16 + end - start)
        self.varint(tag)
        self.varint(end - start)
        copy(writable(self.buffer), self.at, cells.data, start, end)
        self.at += end - start
        return True

    def value(self, cells: Cells, row: int) -> bool:
        """Write the value of an attribute."""
        if cells.kind == STRING or cells.kind == BYTES:
            return self.text(cells.kind, cells, row)
        self.reserve(16)
        if cells.kind == INT:
            self.varint(INT)
            self.varint(zigzag(cells.number(row)))
        elif cells.kind == BOOL:
            self.varint(BOOL)
            self.varint(1 if cells.is_true(row) else 0)
        else:
            self.fixed(cells.kind, cells.number(row))
        return True

    def attribute(self, cells: Cells, row: int) -> bool:
        """Write a value as an attribute of the column's name."""
        size = len(cells.name)
        self.reserve(32 + size)
        self.varint(0x52)
        self.varint(1 + varint_size(size) + size + cells.size(row))
        self.varint(0x0A)
        self.varint(size)
        copy_bytes(writable(self.buffer), self.at, cells.name)
        self.at += size
        return self.value(cells, row)

    def entries(self, entries: Entries, row: int) -> bool:
        """Write a map as attributes."""
        names = entries.names
        start = entries.maps.start(row)
        end = entries.maps.start(row + 1)
        if end - start > ATTRIBUTES_MAX:
            raise LocalError("bad-message", "a message has 256 attributes at most")
        for i in range(start, end):
            size = names.start(i + 1) - names.start(i)
            if not 0 < size <= NAME_BYTES_MAX:
                raise LocalError("bad-message", "the name of an attribute must have 1 to 255 bytes")
            for k in range(len(entries.kinds)):
                cells = entries.kinds[k]
                if entries.values.there(i) and cells.there(i):
                    self.reserve(32)
                    self.varint(0x52)
                    self.varint(1 + varint_size(size) + size + cells.size(i))
                    self.text(0x0A, names, i)
                    self.value(cells, i)
                    break
        return True

    def put(
        self,
        start: int,
        end: int,
        topic: bytes,
        topics: Cells | None,
        bodies: Cells | None,
        times: Cells | None,
        plain: list[Cells],
        entries: Entries | None,
    ) -> int:
        """Add rows from `start` on; where it stopped: before one without a topic, or at `end`."""
        row = start
        while row < end:
            begun = self.used
            self.at = begun + HEADER
            self.reserve(64)
            self.counter += 1
            self.fixed(0x09, mix(self.counter))
            if bodies is not None and bodies.there(row):
                self.text(0x2A, bodies, row)
            else:
                self.varint(0x2A)
                self.varint(0)
            self.reserve(48 + len(topic))
            if times is not None and times.there(row) and times.number(row):
                self.fixed(0x31, times.number(row))
            if topics is not None:
                if not topics.there(row) or topics.start(row) == topics.start(row + 1):
                    self.counter -= 1
                    break
                self.text(0x4A, topics, row)
            else:
                self.varint(0x4A)
                self.varint(len(topic))
                copy_bytes(writable(self.buffer), self.at, topic)
                self.at += len(topic)
            for k in range(len(plain)):
                cells = plain[k]
                if cells.there(row):
                    self.attribute(cells, row)
            if entries is not None and entries.maps.there(row):
                self.entries(entries, row)
            self.reserve(32)
            self.varint(0x58)
            self.varint(self.sequence + 1)
            self.varint(0x70)
            self.varint(1)
            self.finish(begun)
            row += 1
        return row

    def finish(self, begun: int) -> bool:
        """Put the header in front of a message."""
        size = self.at - begun
        if size > self.frame_bytes_max:
            raise LocalError(
                "bad-message",
                f"the message has {size} bytes, and the node takes {self.frame_bytes_max} at most "
                "(limit frame_bytes); send less at a time, or raise the limit",
            )
        put_header(writable(self.buffer), begun, MESSAGE, size - HEADER)
        self.used = self.at
        self.sequence += 1
        return True

    def take(self) -> bytes:
        """All that is in the buffer, which is empty afterwards."""
        data = bytes(memoryview(self.buffer)[: self.used])
        self.used = 0
        return data
