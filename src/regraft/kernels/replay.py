"""Reading streams back: from the bytes of a segment to the bytes that a subscriber gets.

A `Reader` walks the records, takes the messages of its streams that are wanted, and copies whole
stretches of them behind transfer headers, as they go over the wire. There is no Python object per
message, and a long stretch is not copied at all, but handed on as a slice of what was read.

Bytes are believed as far as the checksum of their record goes, and no further: what does not fit
together inside a record makes it BAD. Of envelopes, which the lane has checked before they were
recorded, only as much is looked at as is asked for.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Longs
    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.envelope import Scan, i64
    from regraft.kernels.frame import (
        HEADER,
        MESSAGE,
        TRANSFER,
        VARINT_MAX,
        cut,
        put_header,
        put_u32,
        put_varint,
        u32,
        writable,
    )
    from regraft.kernels.outlet import copy, copy_bytes, is_topic
    from regraft.kernels.records import (
        BAD,
        FOUND,
        INDEX,
        MESSAGES,
        RECORD,
        SHORT,
        TAKER,
        Walk,
        padded,
        whole_frames,
    )
    from regraft.kernels.selection import TRUE, Test

    CLOSED = 4  # beside what a walk finds: the INDEX, the last record of its segment
    PART = 5  # the bounds were reached inside the record
    LATER = 6  # the record is of `until_us` or later, and so is all that follows

    NO = 0
    YES = 1
    MALFORMED = 2

    SLICE_BYTES = 4096  # a stretch of this size is not copied
    EXPIRATION = 0x69  # the tag of the envelope's field 13, eight bytes


SCAN = Scan()  # large, and of use only within a fill: all readers have the same
VERDICTS_MAX = 4096  # topics that are remembered
OUTPUT_KEPT = 1 << 20  # a larger buffer is let go when it was handed out


def whole_until(view: Any, at: int, position: int) -> int:
    """Where the record begins that does not end in `view`, from the one at `at` on.

    It goes by lengths and positions alone. -1: there is no such place, or it is not known.
    """
    p = pointer_to(view)
    n = len(view)
    while at >= 0 and n - at >= RECORD:
        length = u32(p, at + 4)
        if length < RECORD or i64(p, at + 8) != position or p[at + 44] == INDEX:
            return -1
        if length > n - at:
            break
        at += padded(length)
        position += padded(length)
    return at


def keyed(data: Any, name: bytes) -> list[tuple[int, int, bytes]]:
    """The messages in frames that a reader put out: start, end, and what the attribute `name` is.

    It is the value's field and bytes, so that 1 and "1" differ; b"" where there is none.
    """
    found = []
    scan = Scan()
    p = pointer_to(data)
    n = len(data)
    pos = 0
    while n - pos >= HEADER:
        end = pos + 4 + u32(p, pos)
        if p[pos + 4] == MESSAGE:
            key = b""
            if scan.scan(p, pos + HEADER, end) == 0:
                for k in range(scan.names):
                    at = scan.name_at[k]
                    if scan.name_field[k] == 10 and cut(p, at, at + scan.name_length[k]) == name:
                        kind = scan.value_kind[k]
                        key = b"%d:%d" % (kind, scan.value_raw[k])
                        if kind == 5 or kind == 6:
                            last = scan.value_end[k]
                            key = b"%d:" % kind + cut(p, last - scan.value_raw[k], last)
            found.append((pos, end, key))
        pos = end
    return found


class Reader:
    """What a subscriber of some streams gets.

    With one stream, `next_sequence` is what it says. With several, each of which counts on its
    own, it is how many messages of the record at hand are done with; `until_sequence` and `skip`
    are not looked at, and a message has the sequence of the stream with the lowest number.

    If `topics` raises, so does `fill`; the reader is of no use from then on.
    """

    def __init__(
        self, streams: list[int], test: Test | None, topics: Callable[[bytes], bool] | None
    ) -> None:
        if not streams:
            raise ValueError("a reader reads one stream at least")
        self.streams = Longs()
        for stream in sorted(set(streams)):
            self.streams.push(stream)
        self.test = test
        self.topics = topics
        self.verdicts: dict[bytes, bool] = {}
        self.topic = b""  # the last one,
        self.verdict = False  # and whether it is wanted
        self.base = 0  # the offset in the segment's file of the view's first byte
        self.since_us = 0  # records that are older are passed over
        self.priority = -1  # those of another priority, too, unless it is -1
        self.until_us = 0  # above 0: it ends before the first record that is not older
        self.delivery_count = 0  # above 0: what goes out is marked so
        self.skip: list[tuple[int, int]] = []  # first and last of what is settled, in order
        self.bits = b""  # the same, a bit for each sequence
        self.bits_from = 0  # from this one on
        self.skip_next = 0
        self.skip_first = self.skip_last = -1
        self.walk = Walk()
        self.scan = SCAN
        self.status = 0  # why the last fill went no further: as a walk, or CLOSED
        self.next_sequence = 0
        self.until = 0
        self.time_us = 0  # of the last record looked at
        self.scanned = 0  # messages, all in all
        self.expired = 0
        self.messages = 0  # in the output; all three stay until the fill after `out`
        self.size = 0  # bytes of their frames
        self.runs: list[tuple[int, int]] = []  # first sequence and count of each transfer
        self.lost: list[tuple[int, int]] = []  # first and last of what the last fill did not find,
        self.gone: list[tuple[int, int]] = []  # and of what had expired
        self.messages_left = 0
        self.bytes_left = 0
        self.ids = b""
        self.view: Any = None  # what is being read
        self.slices: list[tuple[int, Any]] = []  # what goes where between the output's own bytes
        self.output = bytearray()
        self.used = 0
        self.fresh = False  # nothing was added since `out`
        self.run_at = -1
        self.run_size = 0  # of the payload of its transfer header
        self.run_stream = 0
        self.run_first = 0
        self.run_count = 0

    def fill(
        self,
        view: Any,
        at: int,
        end: int,
        first: int,
        next_sequence: int,
        until_sequence: int,
        messages_max: int,
        bytes_max: int,
        ids: bytes,
        now_us: int,
    ) -> int:
        """Read the records in view[at:end], of the segment that begins at `first`.

        Takes messages from `next_sequence` on, up to but not with `until_sequence`, for the
        encoded subscriptions `ids`; one may begin while fewer messages and bytes than the bounds
        were taken. Returns where to go on: at a record, perhaps one of which some is done, with
        `next_sequence`. If the first record does not end in the view, it is -1 - the bytes it has.
        """
        if at < 0:
            raise ValueError(f"there is no place {at}")
        p = pointer_to(view)
        n = min(end, len(view))
        self.begin(next_sequence, until_sequence, messages_max, bytes_max, ids)
        self.view = view
        walk = self.walk
        begun = at
        epoch = 0
        while at < n and self.messages_left > 0 and self.bytes_left > 0:
            if self.streams.n == 1 and self.next_sequence >= until_sequence:
                break  # what follows is others'
            status = walk.look(p, n, at, first + self.base + at, epoch)
            if status == FOUND:
                epoch = walk.epoch
                self.time_us = walk.time_us
                if self.until_us and walk.time_us >= self.until_us:
                    status = LATER
                elif walk.kind == MESSAGES:
                    status = self.read(p, now_us)
                elif walk.kind == INDEX:
                    status = CLOSED
            if status != FOUND:
                self.status = FOUND if status == PART else status
                if status == PART:
                    walk.trusted = walk.position
                break
            at = walk.next
        self.view = None
        self.close_run()
        if self.status == SHORT and at == begun:
            return -1 - walk.need
        return at

    def distrust(self, sure: bool = False) -> None:
        """The next fill has other bytes than the last one; `sure`: which need not be checked."""
        self.walk.trusted = -1
        self.walk.sure = sure

    def begin(
        self, next_sequence: int, until: int, messages_max: int, bytes_max: int, ids: bytes
    ) -> None:
        """Be ready for a fill."""
        if self.fresh:
            self.fresh = False
            self.messages = 0
            self.size = 0
            self.runs = []
        self.close_run()
        self.lost = []
        self.gone = []
        self.status = FOUND
        self.next_sequence = next_sequence
        self.until = until
        self.messages_left = messages_max
        self.bytes_left = bytes_max
        self.ids = ids
        self.skip_first = self.skip_last = -1
        self.skip_next = len(self.skip)
        if self.streams.n == 1 and self.skip:
            self.skip_next = max(0, bisect_left(self.skip, (next_sequence,)) - 1)

    def read(self, p: Any, now_us: int) -> int:
        """Take what is wanted of the messages of the record just found: FOUND, PART or BAD."""
        walk = self.walk
        meta = walk.payload_at - walk.meta_at
        if meta % TAKER:
            return BAD
        taker = self.find(p, walk.meta_at, meta // TAKER)
        if taker < 0:
            return FOUND
        stream = u32(p, taker)
        sequence = i64(p, taker + 4)
        if sequence >> 62:
            return BAD
        if self.streams.n == 1 and sequence > self.next_sequence:
            missing = min(sequence, self.until)
            self.lost.append((self.next_sequence, missing - 1))
            self.next_sequence = missing
            if sequence >= self.until:
                return PART
        if walk.time_us < self.since_us or (self.priority >= 0 and walk.priority != self.priority):
            if self.streams.n == 1 and sequence + walk.count > self.next_sequence:
                self.next_sequence = sequence + walk.count
            return FOUND
        if walk.position != walk.trusted and not whole_frames(
            p, walk.payload_at, walk.end, walk.count
        ):
            return BAD
        count = walk.count
        done = self.next_sequence
        if self.streams.n == 1:
            if sequence + count <= done:
                return FOUND
            done -= sequence
            count = min(count, self.until - sequence)
        pos = walk.payload_at
        start = pos  # of a stretch of wanted messages,
        number = 0  # and how many there are
        status = FOUND if count == walk.count else PART
        i = 0
        while i < count:
            end = pos + 4 + u32(p, pos)
            if i >= done:
                if self.messages_left <= 0 or self.bytes_left <= 0:
                    status = PART
                    break
                answer = self.wants(p, pos, end, sequence + i, now_us)
                if answer == YES:
                    if number == 0:
                        start = pos
                    number += 1
                    self.messages_left -= 1
                    self.bytes_left -= end - pos
                else:
                    if number:
                        self.hand_on(p, start, pos, stream, sequence + i - number, number)
                        number = 0
                    if answer == MALFORMED:
                        status = BAD
                        break
            pos = end
            i += 1
        if number:
            self.hand_on(p, start, pos, stream, sequence + i - number, number)
        if self.streams.n == 1:
            if i > 0 and sequence + i > self.next_sequence:
                self.next_sequence = sequence + i
        else:
            self.next_sequence = 0 if status == FOUND else i
        return status

    def find(self, p: Any, at: int, takers: int) -> int:
        """Where the first of the reader's streams stands in a record's meta, or -1."""
        for k in range(self.streams.n):
            stream = self.streams.a[k]
            low = 0
            high = takers
            while low < high:
                middle = low + high >> 1
                if u32(p, at + middle * TAKER) < stream:
                    low = middle + 1
                else:
                    high = middle
            if low < takers and u32(p, at + low * TAKER) == stream:
                return at + low * TAKER
        return -1

    def wants(self, p: Any, pos: int, end: int, sequence: int, now_us: int) -> int:
        """Whether the message frame p[pos:end] is to be handed out."""
        if sequence > self.skip_last and self.skip_next < len(self.skip):
            self.next_skip(sequence)
        if self.skip_first <= sequence <= self.skip_last:
            return NO
        k = sequence - self.bits_from
        if k >= 0 and k >> 3 < len(self.bits) and self.bits[k >> 3] >> (k & 7) & 1:
            return NO
        scan = self.scan
        self.scanned += 1
        if self.test is None and self.topics is None:
            if not self.skim(p, pos + HEADER, end):
                return MALFORMED
        elif scan.scan(p, pos + HEADER, end):
            return MALFORMED
        if scan.expiration and scan.expiration <= now_us:
            self.expired += 1
            self.miss(sequence)
            return NO
        if self.topics is not None:
            if not is_topic(self.topic, p, scan.topic_at, scan.topic_end):
                self.judge(cut(p, scan.topic_at, scan.topic_end))
            if not self.verdict:
                return NO
        if self.test is not None and self.test.evaluate(scan, p, pos + HEADER, end) != TRUE:
            return NO
        return YES

    def miss(self, sequence: int) -> bool:
        """A message had expired."""
        first = sequence
        if self.gone and self.gone[len(self.gone) - 1][1] == sequence - 1:
            first = self.gone.pop()[0]
        self.gone.append((first, sequence))
        return True

    def skim(self, p: Any, i: int, end: int) -> bool:
        """Find the expiration of the envelope p[i:end], and nothing else; whether it has an end."""
        scan = self.scan
        scan.expiration = 0
        while i < end:
            tag = p[i]
            if 8 <= tag < 0x80:
                i += 1
            else:
                i = scan.tag(p, i, end)
                if i < 0:
                    return False
                tag = scan.value
            if tag & 7 == 2 and i < end and p[i] < 0x80:  # by far the most frequent
                i += 1 + p[i]
                continue
            i = scan.skip(p, i, end, tag & 7)
            if i < 0:
                return False
            if tag == EXPIRATION:
                scan.expiration = i64(p, i - 8)
        return i == end

    def next_skip(self, sequence: int) -> None:
        """Go on to the range that ends at `sequence` or later, if there is one."""
        while sequence > self.skip_last and self.skip_next < len(self.skip):
            self.skip_first, self.skip_last = self.skip[self.skip_next]
            self.skip_next += 1

    def judge(self, topic: bytes) -> None:
        """Whether a topic is wanted, asked once."""
        verdict = self.verdicts.get(topic)
        if verdict is None:
            assert self.topics is not None
            verdict = bool(self.topics(topic))
            if len(self.verdicts) >= VERDICTS_MAX:
                self.verdicts.clear()
            self.verdicts[topic] = verdict
        self.topic = topic
        self.verdict = verdict

    # ------------------------------------------------------------------------- output

    def hand_on(self, p: Any, start: int, end: int, stream: int, sequence: int, count: int) -> bool:
        """Put the frames p[start:end] into the output, behind a transfer header."""
        if (
            self.run_at < 0
            or self.run_stream != stream
            or self.run_first + self.run_count != sequence
        ):
            self.close_run()
            self.open_run(stream, sequence)
        self.run_count += count
        self.messages += count
        self.size += end - start
        if end - start >= SLICE_BYTES:
            self.slices.append((self.used, self.view[start:end]))
        else:
            at = self.reserve(end - start)
            copy(writable(self.output), at, p, start, end)
        return True

    def open_run(self, stream: int, sequence: int) -> bool:
        """Begin a transfer header."""
        at = self.reserve(HEADER + 7 + len(self.ids) + 2 * VARINT_MAX)
        self.run_at = at
        self.run_stream = stream
        self.run_first = sequence
        self.run_count = 0
        target = writable(self.output)
        at += HEADER
        target[at] = 0x0D  # field 1, fixed32: the count, filled in when the run is closed
        copy_bytes(target, at + 5, self.ids)
        at += 5 + len(self.ids)
        target[at] = 0x28  # field 5: the first sequence
        at = put_varint(target, at + 1, sequence)
        if self.delivery_count > 0:
            target[at] = 0x30  # field 6
            at = put_varint(target, at + 1, self.delivery_count)
        self.used = at
        self.run_size = at - self.run_at - HEADER
        return True

    def close_run(self) -> bool:
        """Fill in the count and the checksums of the transfer header that is open, if one is."""
        if self.run_at < 0:
            return False
        target = writable(self.output)
        put_u32(target, self.run_at + HEADER + 1, self.run_count)
        put_header(target, self.run_at, TRANSFER, self.run_size)
        self.runs.append((self.run_first, self.run_count))
        self.run_at = -1
        return True

    def reserve(self, size: int) -> int:
        """Take `size` more bytes of the output; where they are."""
        at = self.used
        if at + size > len(self.output):
            larger = bytearray(max(4096, 2 * len(self.output), at + size))
            larger[:at] = memoryview(self.output)[:at]
            self.output = larger
        self.used = at + size
        return at

    def out(self) -> list[Any]:
        """All that was filled in since the last call, in pieces; some are slices of what was read.

        They are good as long as that is.
        """
        self.close_run()
        data = memoryview(bytes(memoryview(self.output)[: self.used]))
        pieces = []
        done = 0
        for at, view in self.slices:
            if at > done:
                pieces.append(data[done:at])
                done = at
            pieces.append(view)
        if self.used > done:
            pieces.append(data[done : self.used])
        self.slices = []
        if len(self.output) > OUTPUT_KEPT:
            self.output = bytearray()
        self.used = 0
        self.fresh = True
        return pieces
