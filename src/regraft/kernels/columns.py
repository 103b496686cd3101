"""From the bytes of a segment to the columns of a table, as Apache Arrow lays them out.

A `Table` walks the records as a replay does, takes the messages of one stream that are wanted, and
appends their values to columns. There is no Python object per message. What it gives out are the
buffers of one record batch; `wire/arrow.py` puts the message around them.

    fixed     validity bits, 8 or 4 bytes per row       text     validity bits, offsets, bytes
    bits      validity bits, bits                       map      validity bits, offsets, entries

The entries of a map are a struct of name and value, and a value is a struct with a column for each
type, of which exactly one is not NULL.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.envelope import Scan, i64
    from regraft.kernels.frame import HEADER, cut, put_u32, u32, writable
    from regraft.kernels.outlet import copy, copy_bytes, is_topic
    from regraft.kernels.records import (
        BAD,
        FOUND,
        INDEX,
        MESSAGES,
        SHORT,
        TAKER,
        Walk,
        put_i64,
        whole_frames,
    )
    from regraft.kernels.replay import CLOSED
    from regraft.kernels.selection import TRUE, Test

    # How a column is laid out.
    WIDE = 8  # eight bytes
    NARROW = 4
    BITS = 1
    TEXT = 0
    MAP = 16

    # Where its values come from: a field of the envelope by its number, or
    STREAM = 100
    PARTITION = 101
    SEQUENCE = 102
    TIME = 103
    SIZE = 104
    MODE = 105
    ATTRIBUTE = 106
    CONTENT = 107

    PART = 5  # the table is full inside the record

    def put_real(p: Any, at: int, value: int) -> None:
        """Write an int as a double."""
        p[at : at + 8] = struct.pack("<d", float(value))

    def unzigzag(raw: int) -> int:
        """A signed number from an unsigned one with small values for small amounts."""
        return (raw >> 1) ^ -(raw & 1)

    def signed(raw: int) -> int:
        """The same 64 bits with a sign."""
        return raw - (1 << 64) if raw >= 1 << 63 else raw


MODES = (b"NON_PERSISTENT", b"PERSISTENT")
OFFSET_MAX = 1 << 30  # bytes of one column: far below what its offsets can say


class Column:
    """One column of a record batch that is being filled."""

    def __init__(
        self, source: int, layout: int, name: bytes = b"", value: int = 0, rows: int = 64
    ) -> None:
        self.source = source
        self.layout = layout
        self.name = name  # of an attribute
        self.value = value  # the kind of value that it must have, as fields of an Attribute count
        self.rows_room = rows
        self.entries: Entries | None = None
        if layout == MAP:
            self.entries = Entries()
        self.clear()

    def clear(self) -> None:
        """Begin a batch. Buffers that were handed out are not touched again."""
        self.n = 0
        self.nulls = 0
        self.used = 0  # bytes of a text
        self.valid = bytearray((self.rows_room >> 3) + 16)
        self.offsets = bytearray()
        if self.layout == TEXT or self.layout == MAP:
            self.offsets = bytearray(4 * self.rows_room + 16)
        self.data = bytearray()
        if self.layout == BITS:
            self.data = bytearray((self.rows_room >> 3) + 16)
        elif self.layout == TEXT:
            self.data = bytearray(4096)
        elif self.layout != MAP:
            self.data = bytearray(self.layout * self.rows_room + 16)
        if self.entries is not None:
            self.entries.clear()

    def grow(self) -> bool:
        """Make room for twice as many rows."""
        self.rows_room *= 2
        self.valid += bytearray(len(self.valid))
        self.offsets += bytearray(len(self.offsets))
        if self.layout != TEXT:
            self.data += bytearray(len(self.data))
        return True

    def next_row(self, there: bool) -> int:
        """One more row; its number."""
        row = self.n
        if row + 1 >= self.rows_room:
            self.grow()
        if there:
            p = writable(self.valid)
            p[row >> 3] |= 1 << (row & 7)
        else:
            self.nulls += 1
        self.n = row + 1
        return row

    def put_null(self) -> bool:
        """One more row without a value."""
        row = self.next_row(False)
        if self.layout == TEXT or self.layout == MAP:
            put_u32(writable(self.offsets), 4 * row + 4, self.used)
        return True

    def put_number(self, value: int) -> bool:
        """One more row: a number, or a bit."""
        row = self.next_row(True)
        if self.layout == WIDE:
            put_i64(writable(self.data), 8 * row, value)
        elif self.layout == NARROW:
            put_u32(writable(self.data), 4 * row, value)
        elif value:
            p = writable(self.data)
            p[row >> 3] |= 1 << (row & 7)
        return True

    def put_text(self, p: Any, start: int, end: int) -> bool:
        """One more row: bytes."""
        row = self.next_row(True)
        self.reserve(end - start)
        copy(writable(self.data), self.used, p, start, end)
        self.used += end - start
        put_u32(writable(self.offsets), 4 * row + 4, self.used)
        return True

    def put_bytes(self, text: bytes) -> bool:
        """The same for an object."""
        row = self.next_row(True)
        self.reserve(len(text))
        copy_bytes(writable(self.data), self.used, text)
        self.used += len(text)
        put_u32(writable(self.offsets), 4 * row + 4, self.used)
        return True

    def reserve(self, size: int) -> bool:
        """Have room for `size` more bytes."""
        need = self.used + size + 8
        if need > len(self.data):
            if need > OFFSET_MAX:
                raise ValueError("a column of one batch would have more than 1 GiB")
            larger = bytearray(max(2 * len(self.data), need))
            larger[: self.used] = memoryview(self.data)[: self.used]
            self.data = larger
        return True

    def put_value(self, scan: Scan, p: Any, k: int) -> bool:
        """One more row: the value of the k-th attribute, if it is of the right kind."""
        kind = scan.value_kind[k]
        raw = scan.value_raw[k]
        if kind != self.value:
            if kind == 3 and self.value == 4:  # an int where a float is asked for
                row = self.next_row(True)
                put_real(writable(self.data), 8 * row, unzigzag(raw))
                return True
            return self.put_null()
        if kind == 5 or kind == 6:
            return self.put_text(p, scan.value_end[k] - raw, scan.value_end[k])
        if kind == 3:
            return self.put_number(unzigzag(raw))
        return self.put_number(signed(raw))

    def describe(self, nodes: list[tuple[int, int]], buffers: list[Any]) -> None:
        """Add the column as a record batch has it: (rows, NULLs), and its buffers."""
        nodes.append((self.n, self.nulls))
        n = self.n
        bits = (n + 7) >> 3
        buffers.append(memoryview(self.valid)[: bits if self.nulls else 0])
        if self.layout == TEXT or self.layout == MAP:
            buffers.append(memoryview(self.offsets)[: 4 * n + 4])
        if self.layout == TEXT:
            buffers.append(memoryview(self.data)[: self.used])
        elif self.layout == BITS:
            buffers.append(memoryview(self.data)[:bits])
        elif self.layout != MAP:
            buffers.append(memoryview(self.data)[: n * self.layout])
        if self.entries is not None:
            self.entries.describe(nodes, buffers)


class Entries:
    """What stands in the maps of a column: names, and a column of values for each type."""

    def __init__(self) -> None:
        self.names = Column(0, TEXT)
        self.bools = Column(0, BITS, b"", 2)
        self.ints = Column(0, WIDE, b"", 3)
        self.floats = Column(0, WIDE, b"", 4)
        self.strings = Column(0, TEXT, b"", 5)
        self.bytes = Column(0, TEXT, b"", 6)
        self.times = Column(0, WIDE, b"", 7)

    def clear(self) -> None:
        """Begin a batch."""
        self.names.clear()
        self.bools.clear()
        self.ints.clear()
        self.floats.clear()
        self.strings.clear()
        self.bytes.clear()
        self.times.clear()

    def put(self, scan: Scan, p: Any, k: int) -> bool:
        """One more entry: the k-th attribute."""
        kind = scan.value_kind[k]
        self.names.put_text(p, scan.name_at[k], scan.name_at[k] + scan.name_length[k])
        if kind == 2:
            self.bools.put_value(scan, p, k)
        else:
            self.bools.put_null()
        if kind == 3:
            self.ints.put_value(scan, p, k)
        else:
            self.ints.put_null()
        if kind == 4:
            self.floats.put_value(scan, p, k)
        else:
            self.floats.put_null()
        if kind == 5:
            self.strings.put_value(scan, p, k)
        else:
            self.strings.put_null()
        if kind == 6:
            self.bytes.put_value(scan, p, k)
        else:
            self.bytes.put_null()
        if kind == 7:
            self.times.put_value(scan, p, k)
        else:
            self.times.put_null()
        return True

    def describe(self, nodes: list[tuple[int, int]], buffers: list[Any]) -> None:
        """The struct of the entries, the names, the struct of the values, and their columns."""
        n = self.names.n
        nodes.append((n, 0))
        buffers.append(b"")
        self.names.describe(nodes, buffers)
        nodes.append((n, 0))
        buffers.append(b"")
        self.bools.describe(nodes, buffers)
        self.ints.describe(nodes, buffers)
        self.floats.describe(nodes, buffers)
        self.strings.describe(nodes, buffers)
        self.bytes.describe(nodes, buffers)
        self.times.describe(nodes, buffers)


class Table:
    """The rows of one stream that are wanted, batch by batch.

    `specs` says of each column: source, layout, name, kind of value. `inflate` is asked for bodies
    that are compressed; None is NULL.
    """

    def __init__(
        self,
        number: int,
        specs: list[tuple[int, int, bytes, int]],
        stream: bytes,
        test: Test | None,
        rows_max: int,
        bytes_max: int,
        inflate: Callable[[bytes], bytes | None],
    ) -> None:
        self.number = number
        self.stream = stream
        self.test = test
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.inflate = inflate
        self.columns: list[Column] = []
        for source, layout, name, value in specs:
            self.columns.append(Column(source, layout, name, value, rows_max + 64))
        self.walk = Walk()
        self.scan = Scan()
        self.base = 0  # the offset in the segment's file of the view's first byte
        self.since_us = 0  # records that are older are passed over
        self.status = 0
        self.next_sequence = 0  # the first that was not looked at
        self.scanned = 0  # sequences that were looked at, all in all
        self.rows = 0  # in this batch,
        self.size = 0  # and the bytes of their frames

    def fill(self, view: Any, at: int, end: int, first: int, until: int) -> int:
        """Take in what stands in view[at:end], of the segment that begins at `first`.

        It stops when the batch is full, the sequence `until` is reached, or there is no whole
        record; `status` says so, as that of a reader. The place of the record to go on with, or,
        if the first one does not end in the view, -1 - the bytes that it has.
        """
        if at < 0:
            raise ValueError(f"there is no place {at}")
        p = pointer_to(view)
        n = min(end, len(view))
        begun = at
        epoch = 0
        walk = self.walk
        self.status = FOUND
        while at < n and self.next_sequence < until:
            status = walk.look(p, n, at, first + self.base + at, epoch)
            if status == FOUND:
                epoch = walk.epoch
                if walk.kind == MESSAGES:
                    status = self.read(p, until)
                elif walk.kind == INDEX:
                    status = CLOSED
            if status != FOUND:
                self.status = FOUND if status == PART else status
                break
            at = walk.next
        if self.status == SHORT and at == begun:
            return -1 - walk.need
        return at

    def read(self, p: Any, until: int) -> int:
        """Take the messages of the record just found: FOUND, PART or BAD."""
        walk = self.walk
        meta = walk.payload_at - walk.meta_at
        if meta % TAKER:
            return BAD
        sequence = self.find(p, walk.meta_at, meta // TAKER)
        if sequence < 0 or sequence + walk.count <= self.next_sequence:
            return FOUND
        if walk.time_us < self.since_us:
            self.next_sequence = sequence + walk.count
            return FOUND
        if not whole_frames(p, walk.payload_at, walk.end, walk.count):
            return BAD
        if sequence > self.next_sequence:  # what lay between is gone; `scanned` shows it
            self.next_sequence = sequence
        scan = self.scan
        test = self.test
        pos = walk.payload_at
        for _ in range(walk.count):
            end = pos + 4 + u32(p, pos)
            if sequence >= self.next_sequence:
                if sequence >= until:
                    break
                if self.rows >= self.rows_max or self.size >= self.bytes_max:
                    return PART
                if scan.scan(p, pos + HEADER, end):
                    return BAD
                self.scanned += 1
                self.next_sequence = sequence + 1
                if test is None or test.evaluate(scan, p, pos + HEADER, end) == TRUE:
                    self.put(p, sequence)
                    self.size += end - pos
            sequence += 1
            pos = end
        return FOUND

    def find(self, p: Any, at: int, takers: int) -> int:
        """The sequence of the record's first message in the stream, or -1."""
        low = 0
        high = takers
        while low < high:
            middle = low + high >> 1
            if u32(p, at + middle * TAKER) < self.number:
                low = middle + 1
            else:
                high = middle
        at += low * TAKER
        if low < takers and u32(p, at) == self.number:
            return i64(p, at + 4)
        return -1

    def put(self, p: Any, sequence: int) -> bool:
        """One more row: the message just scanned."""
        scan = self.scan
        for k in range(len(self.columns)):
            column: Column = self.columns[k]
            source = column.source
            if source == SEQUENCE:
                column.put_number(sequence)
            elif source == 9:
                column.put_text(p, scan.topic_at, scan.topic_end)
            elif source == ATTRIBUTE:
                self.put_attribute(column, p)
            elif source == CONTENT:
                self.put_body(column, p)
            elif column.entries is not None:
                self.put_map(column, p)
            elif source == TIME:
                column.put_number(self.walk.time_us)
            elif source == STREAM:
                column.put_bytes(self.stream)
            elif source == PARTITION:
                column.put_number(0)
            else:
                self.put_field(column, p)
        self.rows += 1
        return True

    def put_attribute(self, column: Column, p: Any) -> bool:
        """The value of an attribute, found by its name."""
        scan = self.scan
        name = column.name
        length = len(name)
        for k in range(scan.names):
            if scan.name_field[k] != 10 or scan.name_length[k] != length:
                continue
            if is_topic(name, p, scan.name_at[k], scan.name_at[k] + length):
                return column.put_value(scan, p, k)
        return column.put_null()

    def put_map(self, column: Column, p: Any) -> bool:
        """All attributes, or all of the context."""
        scan = self.scan
        entries = column.entries
        if entries is None:
            return False
        row = column.next_row(True)
        for k in range(scan.names):
            if scan.name_field[k] == column.source:
                entries.put(scan, p, k)
        column.used = entries.names.n
        put_u32(writable(column.offsets), 4 * row + 4, column.used)
        return True

    def put_body(self, column: Column, p: Any) -> bool:
        """The body as it was before it was compressed."""
        scan = self.scan
        if scan.seen >> 24 & 1 and scan.field_raw[24] == 1:
            content = self.inflate(cut(p, scan.body_at, scan.body_end))
            return column.put_null() if content is None else column.put_bytes(content)
        return column.put_text(p, scan.body_at, scan.body_end)

    def put_field(self, column: Column, p: Any) -> bool:
        """A field of the envelope. What a selector takes for NULL is NULL."""
        scan = self.scan
        source = column.source
        if source == SIZE:
            return column.put_number(scan.body_end - scan.body_at)
        if source == MODE:
            return column.put_bytes(MODES[scan.special & 1])
        if source == 12:
            return column.put_number(scan.priority)
        there = scan.seen >> source & 1
        if column.layout == TEXT:
            if not there or scan.field_raw[source] == 0:
                return column.put_null()
            end = scan.field_end[source]
            return column.put_text(p, end - scan.field_raw[source], end)
        if source == 1 or source == 6 or source == 7 or source == 13 or source == 25:  # eight bytes
            if not there:
                return column.put_null()
            return column.put_number(i64(p, scan.field_end[source] - 8))
        if source == 11:
            return column.put_number(signed(scan.field_raw[11])) if there else column.put_null()
        return column.put_number(scan.field_raw[source] if there else 0)

    def take(self) -> tuple[int, list[tuple[int, int]], list[Any]]:
        """The batch: its rows; rows and NULLs of each column and what is in it; the buffers."""
        nodes: list[tuple[int, int]] = []
        buffers: list[Any] = []
        for k in range(len(self.columns)):
            column: Column = self.columns[k]
            column.describe(nodes, buffers)
        rows = self.rows
        for k in range(len(self.columns)):
            column = self.columns[k]
            column.clear()
        self.rows = 0
        self.size = 0
        return rows, nodes, buffers
