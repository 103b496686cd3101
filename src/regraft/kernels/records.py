"""Records of the journal: building them in memory, and finding them again.

     0          4        8          16     24      28         32      36     40          44     45
     +----------+--------+----------+------+-------+----------+-------+------+-----------+------+---
     | checksum | length | position | time | epoch | unsynced | count | meta | publisher | kind | 0
     +----------+--------+----------+------+-------+----------+-------+------+-----------+------+---
      u32        u32      u64        i64    u32     u32        u32     u32    u32         u8     0

Then `meta` bytes of meta, then the payload, then zeros up to a multiple of 8. `checksum` is the
CRC-32C of all that follows it, `length` is without padding. A record holds its own position, so
that bytes of another time or place never pass for it. In a record of messages meta says for each
stream (u32) the sequence (u64) of the first message; the payload is frames as they came.

A segment begins with a START record. What still has to fit into it is its INDEX, then zeros, and a
trailer of 64 bytes that says where the INDEX is (0: there is none). Behind an INDEX nothing is to
be looked for: a trailer is no record.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, Table
    from regraft.kernels.checksum import crc32c_at, pointer_to
    from regraft.kernels.envelope import i64
    from regraft.kernels.frame import HEADER, MESSAGE, put_u32, u32, writable
    from regraft.kernels.outlet import copy, copy_bytes

    # Kinds of records.
    START = 1
    MESSAGES = 2
    CONTROL = 3
    SETTLED = 4
    INDEX = 5
    SNAPSHOT = 6
    TRANSACTION = 7
    SKIP = 8  # what it covers means nothing any more: the checksum is of its header alone

    # What a walk finds.
    FOUND = 0
    ZERO = 1
    SHORT = 2
    BAD = 3

    RECORD = 48
    RECENT = 16  # records of each stream that are remembered
    TAKER = 12  # a stream of a record
    ROW = 40  # a stream of an index,
    ENTRY = 12  # and one of its records
    TRAILER = 64
    GROUP = 16  # what a TRANSACTION record says: where it ends, and a number
    PRIORITY = 4  # of most messages; the others have theirs in the flags of their record
    U32_MAX = 0xFFFFFFFF
    SETTLES = 1 << 31  # marks what stands behind the streams of a record: done with by it

    def put_i64(p: Any, i: int, value: int) -> None:
        """Write a number as eight bytes at i."""
        p[i : i + 8] = value.to_bytes(8, "little", signed=True)

    def padded(size: int) -> int:
        """The next multiple of 8."""
        return (size + 7) & ~7

    def room_for(rooms: list[bytearray], size: int) -> bytearray:
        """Memory for so many bytes, not cleared when compiled; some that nobody looks at any more,
        if there is: memory that is new to a process is slow.
        """
        return bytearray(size)

    def laid(room: bytearray, at: int, offset: int) -> int:
        """The first place from `at` on that lies in a block of memory as `offset` in a file."""
        return at

    def address_of(view: Any) -> int:
        """Where it lies in memory: nobody can tell."""
        return -1


MAGIC = b"RGRFTEND"
SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 1 << 31
BLOCK = 4096  # of a disk and of memory
GIVEN_MIN = 64 << 10  # bytes; less is copied
BUFFER_KEPT = 1 << 20  # a larger one is let go when little of it was used


def fits(view: Any, offset: int) -> bool:
    """Whether these bytes lie in memory as they do in a file at `offset`, block by block."""
    address = address_of(view)
    return address >= 0 and (address - offset) % BLOCK == 0


def whole_frames(p: Any, at: int, end: int, count: int) -> bool:
    """Whether p[at:end] is exactly `count` MESSAGE frames, by their lengths and kinds."""
    while count > 0:
        if end - at < HEADER or p[at + 4] != MESSAGE:
            return False
        size = u32(p, at) + 4
        if size < HEADER or size > end - at:
            return False
        at += size
        count -= 1
    return at == end


class Index:
    """Which streams the segment being written holds, and where: sparse, for its INDEX record."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.table = Table()  # the row of a stream
        self.stream = Longs()  # of each row, and so on
        self.first = Longs()
        self.last = Longs()
        self.first_time = Longs()
        self.last_time = Longs()
        self.last_offset = Longs()  # of its last entry
        self.entries = Longs()  # how many it has
        self.entry_row = Longs()  # of each entry, in the order of the segment
        self.entry_offset = Longs()
        self.entry_first = Longs()
        self.size = 4  # bytes of the payload

    def growth(self, row: int, offset: int) -> int:
        """By how much a record at `offset` makes the index larger; row -1 is a new stream."""
        if row < 0:
            return ROW + ENTRY
        return ENTRY if offset - self.last_offset.a[row] >= self.every else 0

    def add(self, row: int, stream: int, offset: int, first: int, count: int, time_us: int) -> int:
        """A record of a stream stands at `offset`; the row of the stream, which is new if -1."""
        if row < 0:
            row = self.stream.n
            self.table.put(stream, row)
            self.stream.push(stream)
            self.first.push(first)
            self.last.push(first)
            self.first_time.push(time_us)
            self.last_time.push(time_us)
            self.last_offset.push(offset)
            self.entries.push(0)
            self.size += ROW
            self.enter(row, offset, first)
        elif offset - self.last_offset.a[row] >= self.every:
            self.enter(row, offset, first)
        self.last.a[row] = first + count - 1
        self.last_time.a[row] = time_us
        return row

    def enter(self, row: int, offset: int, first: int) -> None:
        """One more entry."""
        self.entry_row.push(row)
        self.entry_offset.push(offset)
        self.entry_first.push(first)
        self.entries.a[row] += 1
        self.last_offset.a[row] = offset
        self.size += ENTRY

    def payload(self) -> bytes:
        """The payload of the INDEX record, ascending by stream."""
        rows = self.stream.n
        data = bytearray(self.size)
        p = writable(data)
        put_u32(p, 0, rows)
        at = 4
        places = [0] * rows  # where the next entry of a row goes
        for stream, row in sorted([(self.stream.a[k], k) for k in range(rows)]):
            put_u32(p, at, stream)
            put_u32(p, at + 4, self.entries.a[row])
            put_i64(p, at + 8, self.first.a[row])
            put_i64(p, at + 16, self.last.a[row])
            put_i64(p, at + 24, self.first_time.a[row])
            put_i64(p, at + 32, self.last_time.a[row])
            places[row] = at + ROW
            at += ROW + ENTRY * self.entries.a[row]
        for k in range(self.entry_row.n):
            at = places[self.entry_row.a[k]]
            put_u32(p, at, self.entry_offset.a[k])
            put_i64(p, at + 4, self.entry_first.a[k])
            places[self.entry_row.a[k]] = at + ENTRY
        return bytes(data)


class Recorder:
    """Builds the records of one journal, and says where in which segment they belong.

    Streams have slots, numbers from 0 on that are used again. `position` is where what comes next
    begins, a START perhaps; `synced` is set by the journal: up to where all is known persisted.
    """

    def __init__(self, segment_bytes: int, index_every: int = 4096) -> None:
        if segment_bytes % 8 or not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"a segment cannot have {segment_bytes} bytes")
        self.segment_bytes = segment_bytes
        self.index_every = index_every
        self.start_payload = b""
        self.first = 0
        self.position = 0
        self.synced = 0
        self.epoch = 0
        self.time_us = 0  # of the last record
        self.buffer = bytearray()
        self.rooms: list[bytearray] = []  # buffers, of which some were taken: see `room_for`
        self.used = 0
        self.group = -1  # where the TRANSACTION record of an open group is in the buffer
        self.pieces: list[
            list[int]
        ] = []  # segment, offset, from and (but the last) to in the buffer
        self.piece_first = -1  # the segment of the last piece
        self.nothing = Ints()
        self.index = Index(index_every)
        self.numbers = Longs()  # of the stream in each slot, -1 where there is none, and so on
        self.next = Longs()
        self.counts = Longs()
        self.sizes = Longs()
        self.rows = Ints()  # in the index, -1 if it is not known
        self.touched = Ints()  # slots that got something since `take_touched`, each once,
        self.touched_at = Longs()  # and where the first of that begins
        self.fresh = Ints()  # of each slot: whether it is among them
        self.records = Longs()  # of each slot: how many it got; of the last RECENT of them
        self.recent_at = Longs()  # the position,
        self.recent_from = Longs()  # and the sequence of the first message
        self.ranked: list[tuple[int, int, int, int]] = []  # slot, priority, first sequence, count
        self.free: list[int] = []

    def open(self, first: int, position: int, epoch: int, time_us: int) -> None:
        """Go on at `position` in the segment that begins at `first`, with nothing waiting.

        What stands before it is taken for persisted; `synced` may be set lower. Records that the
        segment holds already have to be told again with `reindex`.
        """
        if not 0 <= first <= position <= first + self.segment_bytes or (first | position) % 8:
            raise ValueError(f"position {position} is not in the segment at {first}")
        self.first = first
        self.position = position
        self.synced = position
        self.epoch = epoch
        self.time_us = time_us
        self.used = 0
        self.pieces = []
        self.piece_first = -1
        self.forget_index()

    def reindex(self, stream: int, offset: int, first_seq: int, count: int, time_us: int) -> None:
        """The segment holds a record of `count` messages of a stream at `offset`."""
        row = self.index.table.get(stream)
        self.index.add(row, stream, offset, first_seq, count, time_us)

    def contents(self) -> bytes:
        """What the segment at hand holds so far, as its INDEX would say it."""
        return self.index.payload()

    def forget_index(self) -> None:
        """Begin a new index."""
        self.index = Index(self.index_every)
        for slot in range(self.rows.n):
            self.rows.a[slot] = -1

    # ------------------------------------------------------------------------- streams

    def add_stream(self, number: int, next_sequence: int) -> int:
        """Have a slot for a stream whose next message gets this sequence."""
        if not 0 <= number <= U32_MAX or next_sequence >> 62:
            raise ValueError(f"no stream {number} at {next_sequence}")
        if self.free:
            slot: int = self.free.pop()
        else:
            slot = self.numbers.n
            self.numbers.push(0)
            self.next.push(0)
            self.counts.push(0)
            self.sizes.push(0)
            self.rows.push(0)
            self.fresh.push(0)
            self.records.push(0)
            for _ in range(RECENT):
                self.recent_at.push(0)
                self.recent_from.push(0)
        self.records.a[slot] = 0
        self.numbers.a[slot] = number
        self.next.a[slot] = next_sequence
        self.counts.a[slot] = 0
        self.sizes.a[slot] = 0
        self.rows.a[slot] = -1
        return slot

    def remove_stream(self, slot: int) -> None:
        """Give a slot back."""
        self.check(slot)
        self.numbers.a[slot] = -1
        self.free.append(slot)

    def next_sequence(self, slot: int) -> int:
        """The sequence of the next message of a stream."""
        self.check(slot)
        return self.next.a[slot]

    def recent(self, slot: int, sequence: int) -> int:
        """Where the record with this message begins, if it is one of the stream's last; or -1."""
        self.check(slot)
        if sequence >= self.next.a[slot]:
            return -1
        for n in range(self.records.a[slot] - 1, max(0, self.records.a[slot] - RECENT) - 1, -1):
            k = slot * RECENT + n % RECENT
            if self.recent_from.a[k] <= sequence:
                return self.recent_at.a[k]
        return -1

    def far(self, slot: int, sequence: int, size: int) -> int:
        """The first message behind this one with more than `size` bytes in front of its record.

        That is, since the stream's record before it began. As far as that is known; else the
        sequence that the next message gets.
        """
        self.check(slot)
        before = -1
        for n in range(max(0, self.records.a[slot] - RECENT), self.records.a[slot]):
            k = slot * RECENT + n % RECENT
            at = self.recent_at.a[k]
            if self.recent_from.a[k] > sequence and before >= 0 and at - before > size:
                return self.recent_from.a[k]
            before = at
        return self.next.a[slot]

    def messages(self, slot: int) -> int:
        """How many messages were appended to a stream since it has its slot."""
        self.check(slot)
        return self.counts.a[slot]

    def size(self, slot: int) -> int:
        """How many bytes of frames were appended to a stream since it has its slot."""
        self.check(slot)
        return self.sizes.a[slot]

    def check(self, slot: int) -> bool:
        """ValueError if no stream has this slot."""
        if slot < 0 or slot >= self.numbers.n or self.numbers.a[slot] < 0:
            raise ValueError(f"no stream has slot {slot}")
        return True

    def ascending(self, slots: Ints) -> Ints:
        """The slots by number of stream; nearly always they are so already."""
        last = -1
        for k in range(slots.n):
            self.check(slots.a[k])
            number = self.numbers.a[slots.a[k]]
            if number <= last:
                return self.sort(slots)
            last = number
        return slots

    def sort(self, slots: Ints) -> Ints:
        """The same slots, put into order."""
        last = -1
        arranged = Ints()
        for k in range(slots.n):
            self.check(slots.a[k])
        for number, slot in sorted(
            [(self.numbers.a[slots.a[k]], slots.a[k]) for k in range(slots.n)]
        ):
            if number == last:
                raise ValueError(f"stream {number} would get the same messages twice")
            last = number
            arranged.push(slot)
        return arranged

    # ------------------------------------------------------------------------- appending

    def append(
        self, kind: int, payload: bytes, now_us: int, count: int = 0, publisher: int = 0
    ) -> int:
        """Add a record that belongs to no stream; its position."""
        self.make_room(RECORD + len(payload), self.nothing, now_us)
        self.write(kind, payload, now_us, count, publisher)
        return self.position - padded(RECORD + len(payload))

    def open_group(self, publisher: int, now_us: int) -> int:
        """Records from here on count all together, or none; the position where that begins."""
        position = self.append(TRANSACTION, bytes(GROUP), now_us, 0, publisher)
        self.group = self.used - padded(RECORD + GROUP)
        return position

    def close_group(self, serial: int) -> int:
        """The group ends here, and has this number of its publisher; the position behind it."""
        at = self.group
        if at < 0:
            raise ValueError("no group is open")
        target = writable(self.buffer)
        put_i64(target, at + RECORD, self.position)
        put_i64(target, at + RECORD + 8, serial)
        put_u32(target, at, crc32c_at(target, at + 4, at + RECORD + GROUP))
        self.group = -1
        return self.position

    def append_run(
        self,
        p: Any,
        start: int,
        end: int,
        count: int,
        publisher: int,
        slots: Ints,
        now_us: int,
        priority: int,
        settles: int,
        sequence_settled: int,
    ) -> int:
        """Add the `count` message frames p[start:end], for all these slots; the position after it.

        All have the same priority. With the same record a message of the stream `settles` is done
        with, if that is above 0. ValueError, with nothing changed: it does not fit into a segment.
        """
        order = self.ascending(slots)
        meta = TAKER * order.n + (TAKER if settles > 0 else 0)
        size = RECORD + meta + end - start
        self.make_room(size, order, now_us)
        offset = self.position - self.first
        kind = MESSAGES | (priority ^ PRIORITY) << 12
        at = self.begin(kind, size, count, meta, publisher, now_us)
        target = writable(self.buffer)
        place = at + RECORD
        for k in range(order.n):
            slot = order.a[k]
            number = self.numbers.a[slot]
            sequence = self.next.a[slot]
            put_u32(target, place, number)
            put_i64(target, place + 4, sequence)
            place += TAKER
            row = self.rows.a[slot]
            self.rows.a[slot] = self.index.add(row, number, offset, sequence, count, self.time_us)
            self.next.a[slot] = sequence + count
            self.counts.a[slot] += count
            self.sizes.a[slot] += end - start
            if self.fresh.a[slot] == 0:
                self.fresh.a[slot] = 1
                self.touched.push(slot)
                self.touched_at.push(self.first + offset)
            newest = slot * RECENT + self.records.a[slot] % RECENT
            self.recent_at.a[newest] = self.first + offset
            self.recent_from.a[newest] = sequence
            self.records.a[slot] += 1
            if priority != PRIORITY:
                self.ranked.append((slot, priority, sequence, count))
        if settles > 0:
            put_u32(target, place, settles | SETTLES)
            put_i64(target, place + 4, sequence_settled)
            place += TAKER
        copy(target, place, p, start, end)
        put_u32(target, at, crc32c_at(target, at + 4, at + size))
        return self.position

    def append_frames(
        self,
        view: Any,
        count: int,
        publisher: int,
        slots: list[int],
        now_us: int,
        priority: int = 4,
        settles: int = 0,
        sequence_settled: int = 0,
    ) -> int:
        """The same for all of `view`, which is looked at before."""
        p = pointer_to(view)
        if count < 1 or not whole_frames(p, 0, len(view), count):
            raise ValueError(f"these are not {count} whole message frames")
        given = Ints()
        for slot in slots:
            given.push(slot)
        return self.append_run(
            p, 0, len(view), count, publisher, given, now_us, priority, settles, sequence_settled
        )

    @property
    def ranks_waiting(self) -> bool:
        """Whether `take_ranked` has something."""
        return len(self.ranked) > 0

    def take_ranked(self) -> list[tuple[int, int, int, int]]:
        """What has another priority since the last call: slot, priority, first sequence, count."""
        ranked = self.ranked
        self.ranked = []
        return ranked

    def take_touched(self) -> list[tuple[int, int]]:
        """The slots that got messages since the last call, and the position of the first."""
        taken = []
        for k in range(self.touched.n):
            taken.append((self.touched.a[k], self.touched_at.a[k]))
            self.fresh.a[self.touched.a[k]] = 0
        self.touched.n = 0
        self.touched_at.n = 0
        return taken

    def make_room(self, size: int, slots: Ints, now_us: int) -> bool:
        """Go on to the next segment if a record of `size` bytes does not fit into this one."""
        least = RECORD + 4 + slots.n * (ROW + ENTRY)  # the index, if there is nothing else in it
        start = padded(RECORD + len(self.start_payload))
        if start + padded(size) + padded(least) + TRAILER > self.segment_bytes:
            raise ValueError(f"a record of {size} bytes is too large for a segment")
        if self.position > self.first:
            index = RECORD + self.index.size
            offset = self.position - self.first
            for k in range(slots.n):
                slot = slots.a[k]
                if self.rows.a[slot] < 0:
                    self.rows.a[slot] = self.index.table.get(self.numbers.a[slot])
                index += self.index.growth(self.rows.a[slot], offset)
            if offset + padded(size) + padded(index) + TRAILER <= self.segment_bytes:
                return True
            self.close_segment()
        self.write(START, self.start_payload, now_us, 0, 0)
        return True

    def write(self, kind: int, payload: bytes, now_us: int, count: int, publisher: int) -> bool:
        """Add a record without meta where there is room for it."""
        size = RECORD + len(payload)
        at = self.begin(kind, size, count, 0, publisher, now_us)
        target = writable(self.buffer)
        copy_bytes(target, at + RECORD, payload)
        put_u32(target, at, crc32c_at(target, at + 4, at + size))
        return True

    def begin(
        self, kind: int, size: int, count: int, meta: int, publisher: int, now_us: int
    ) -> int:
        """Write the header of a record, but for its checksum; where it is in the buffer."""
        if now_us > self.time_us:
            self.time_us = now_us
        unsynced = self.position - self.synced
        if unsynced > U32_MAX:
            unsynced = U32_MAX
        elif unsynced < 0:
            unsynced = 0
        at = self.reserve(padded(size))
        target = writable(self.buffer)
        put_i64(target, self.used - 8, 0)  # the padding; the record ends in these bytes
        put_u32(target, at + 4, size)
        put_i64(target, at + 8, self.position)
        put_i64(target, at + 16, self.time_us)
        put_u32(target, at + 24, self.epoch)
        put_u32(target, at + 28, unsynced)
        put_u32(target, at + 32, count)
        put_u32(target, at + 36, meta)
        put_u32(target, at + 40, publisher)
        put_u32(target, at + 44, kind)
        self.position += padded(size)
        return at

    def reserve(self, size: int) -> int:
        """Take `size` more bytes of the buffer, for what comes next in this segment."""
        begins = self.piece_first != self.first
        most = self.used + size + (BLOCK if begins else 0)
        if most > len(self.buffer):
            self.grow(most)
        if begins:
            offset = self.position - self.first
            if self.pieces:
                self.pieces[len(self.pieces) - 1][3] = self.used
            self.used = laid(self.buffer, self.used, offset)
            self.pieces.append([self.first, offset, self.used, 0])
            self.piece_first = self.first
        self.used += size
        return self.used - size

    def grow(self, most: int) -> bool:
        """Have a buffer for so many bytes; what is in it keeps its place in a block."""
        larger = room_for(self.rooms, max(2 * len(self.buffer), most + BLOCK))
        if self.pieces:
            start = self.pieces[0][2]
            by = laid(larger, 0, self.pieces[0][1]) - start
            larger[start + by : self.used + by] = memoryview(self.buffer)[start : self.used]
            self.pieces = [[*piece[:2], piece[2] + by, piece[3] + by] for piece in self.pieces]
            self.used += by
            if self.group >= 0:
                self.group += by
        self.buffer = larger
        return True

    def close_segment(self) -> bool:
        """Write what ends a segment, as far as there is room, and go on to the next.

        There always is, but in a segment that was opened behind its INDEX, or reindexed otherwise.
        """
        end = self.first + self.segment_bytes
        index = 0
        if self.position + padded(RECORD + self.index.size) + TRAILER <= end:
            index = self.position
            self.write(INDEX, self.index.payload(), 0, 0, 0)
        if self.position + TRAILER <= end:
            at = self.reserve(end - self.position)
            self.buffer[at : self.used] = bytes(self.used - at)
            at = self.used - TRAILER
            target = writable(self.buffer)
            copy_bytes(target, at, MAGIC)
            put_i64(target, at + 8, index)
            put_u32(target, at + 16, crc32c_at(target, at, at + 16))
        self.first = end
        self.position = end
        self.forget_index()
        return True

    def take(self) -> list[tuple[int, int, bytes | memoryview]]:
        """What was added since the last call, for each segment: its first, offset, bytes.

        If it is much, the buffer itself is given away: each piece lies in it as in its file.
        """
        taken: list[tuple[int, int, bytes | memoryview]] = []
        view = memoryview(self.buffer).toreadonly()
        given = self.used >= GIVEN_MIN
        if self.pieces:
            self.pieces[len(self.pieces) - 1][3] = self.used
        for first, offset, start, end in self.pieces:
            data = view[start:end]
            taken.append((first, offset, data if given else bytes(data)))
        if given:
            self.buffer = room_for(self.rooms, self.used + self.used // 4)
        elif len(self.buffer) > BUFFER_KEPT:
            self.buffer = bytearray()
        self.used = 0
        self.pieces = []
        self.piece_first = -1
        return taken


class Walk:
    """Finds records. What it found last is in its attributes, places as indexes of the view."""

    def __init__(self) -> None:
        self.base = 0  # the offset in the segment's file of the view's first byte
        self.need = 0  # bytes that the record at hand needs, if the view was too short
        self.trusted = -1  # a position: the record there is not checked once more
        self.sure = False  # nor is any: these bytes never left the memory of this process
        self.kind = 0
        self.priority = 0  # of messages
        self.count = 0
        self.publisher = 0
        self.time_us = 0
        self.epoch = 0
        self.position = 0
        self.unsynced = 0
        self.meta_at = 0
        self.payload_at = 0
        self.end = 0  # without padding
        self.next = 0  # where the next one would be

    def step(self, view: Any, at: int, first: int, epoch_min: int) -> int:
        """Look for a record at view[at:], in the segment that begins at `first`.

        FOUND; ZERO: nothing was written there; SHORT: the view ends too soon; BAD: anything else.
        """
        if at < 0:
            raise ValueError(f"there is no place {at}")
        return self.look(pointer_to(view), len(view), at, first + self.base + at, epoch_min)

    def look(self, p: Any, n: int, at: int, position: int, epoch_min: int) -> int:
        """Look for a record with this position at p[at:n]."""
        if n - at < RECORD:
            self.need = RECORD
            return SHORT
        length = u32(p, at + 4)
        meta = u32(p, at + 36)
        epoch = u32(p, at + 24)
        if length < RECORD:
            for k in range(0, RECORD, 8):
                if i64(p, at + k) != 0:
                    return BAD
            return ZERO
        if i64(p, at + 8) != position or meta > length - RECORD or epoch < epoch_min:
            return BAD
        checked = length
        if p[at + 44] == SKIP:
            checked = RECORD  # the rest may be a hole, and need not be in the view
        elif length > n - at:
            self.need = length
            return SHORT
        known = self.sure or position == self.trusted
        if not known and crc32c_at(p, at + 4, at + checked) != u32(p, at):
            return BAD
        self.kind = p[at + 44]
        self.priority = p[at + 45] >> 4 ^ PRIORITY
        self.count = u32(p, at + 32)
        self.publisher = u32(p, at + 40)
        self.time_us = i64(p, at + 16)
        self.epoch = epoch
        self.position = position
        self.unsynced = u32(p, at + 28)
        self.meta_at = at + RECORD
        self.payload_at = at + RECORD + meta
        self.end = at + length
        self.next = at + padded(length)
        return FOUND
