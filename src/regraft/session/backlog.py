"""What waits for one subscriber: runs of whole messages, in order, within bounds.

A run is bytes: message frames one behind the other, all for the same subscriptions. Neighbouring
runs for the same subscriptions are joined, so that a backlog costs objects by the 64 KiB and not by
the message. Control frames keep their place among the runs.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from regraft.kernels.envelope import unexpired
from regraft.kernels.frame import origin, take, transfer

JOIN_BYTES = 65_536
UNBOUNDED = 1 << 62


class Run:
    """Messages for the same subscriptions that wait together."""

    __slots__ = ("body", "count", "expiration", "first", "ids", "start")

    def __init__(self, ids: bytes, count: int, body: bytes, expiration: int, first: int) -> None:
        self.ids = ids  # for another node: the stream that they belong to,
        self.first = first  # and the ordinal of the first of them
        self.count = count
        self.body: bytes | bytearray = body
        self.start = 0  # what is in front of it has been taken
        self.expiration = expiration  # the earliest of them, µs; 0: none expires

    def view(self) -> memoryview:
        """The messages that are left."""
        return memoryview(self.body)[self.start :]


class Taken(NamedTuple):
    """What was taken out of a backlog, ready to be written."""

    pieces: list[bytes | memoryview]
    messages: int
    size: int  # of message frames only, as credit counts


class Backlog:
    """The queue of one subscriber."""

    def __init__(self, messages_max: int, bytes_max: int, bare: bool = False) -> None:
        self.bare = bare  # for another node: with their origin instead of transfer headers
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.size = 0
        self.control_size = 0  # bytes of control frames, which no bound above counts
        self.expired = 0
        self._queue: deque[Run | bytes] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def full(self) -> bool:
        """No more should come: those who publish to it must wait."""
        return self.messages >= self.messages_max or self.size >= self.bytes_max

    @property
    def low(self) -> bool:
        """So much was taken that those who wait may go on."""
        return self.messages <= self.messages_max // 2 and self.size <= self.bytes_max // 2

    def put(self, ids: bytes, count: int, body: bytes, expiration: int, first: int = 0) -> None:
        """Add a run at the end."""
        self.messages += count
        self.size += len(body)
        last = self._queue[-1] if self._queue else None
        # A run of which something was taken may still be looked at by a write: it must not grow.
        if (
            not isinstance(last, Run)
            or last.ids != ids
            or last.start
            or len(last.body) + len(body) > JOIN_BYTES
            or (self.bare and last.first + last.count != first)
        ):
            self._queue.append(Run(ids, count, body, expiration, first))
            return
        if isinstance(last.body, bytes):
            last.body = bytearray(last.body)
        last.body += body
        last.count += count
        if expiration and (not last.expiration or expiration < last.expiration):
            last.expiration = expiration

    def put_control(self, frame: bytes) -> None:
        """Add a control frame at the end."""
        self.control_size += len(frame)
        self._queue.append(frame)

    def take(
        self, messages_max: int, bytes_max: int, now_us: int, enough: int = UNBOUNDED
    ) -> Taken:
        """Take from the front what both bounds allow, without what has expired meanwhile.

        Once it is `enough` bytes nothing more is taken; only a run that is longer is cut for that.
        """
        pieces: list[bytes | memoryview] = []
        messages = size = following = 0
        ids = b""  # of the last run that was taken; the ordinal that follows it goes without saying
        while self._queue:
            head = self._queue[0]
            if isinstance(head, bytes):
                pieces.append(head)
                self.control_size -= len(head)
                self._queue.popleft()
                ids = b""
                continue
            if head.expiration and head.expiration <= now_us:
                self._expire(head, now_us)
            if head.count:
                if messages >= messages_max or size >= bytes_max or size >= enough:
                    break
                view = head.view()
                count, length = head.count, len(view)
                most = min(bytes_max - size, enough)
                if messages + count > messages_max or length > most:
                    count, length = take(view, messages_max - messages, most)
                if not self.bare:
                    pieces.append(transfer(head.ids, count))
                elif head.ids != ids or head.first != following:
                    pieces.append(origin(head.ids, head.first))
                ids, following = head.ids, head.first + count
                pieces.append(view[:length])
                messages += count
                size += length
                self._consume(head, count, length)
            if not head.count:
                self._queue.popleft()
        return Taken(pieces, messages, size)

    def peek(self) -> list[tuple[bytes, int, bytes]]:
        """All runs that wait, with their ids and first ordinals; they stay."""
        runs = [entry for entry in self._queue if isinstance(entry, Run)]
        return [(run.ids, run.first, bytes(run.view())) for run in runs]

    def drop_oldest(self) -> tuple[int, int]:
        """Drop from the front until no bound is exceeded: messages, bytes."""
        return self._drop(self.messages_max, self.bytes_max)

    def drop_newest(self) -> tuple[int, int]:
        """Drop what came when it was full already: messages, bytes."""
        messages = size = 0
        before, before_bytes = self.messages, self.size
        kept: deque[Run | bytes] = deque()
        for entry in self._queue:
            if isinstance(entry, Run):
                view = entry.view()
                count, length = take(view, self.messages_max - messages, self.bytes_max - size)
                messages += count
                size += length
                if not count:
                    continue
                if count < entry.count:
                    entry.body, entry.start, entry.count = bytes(view[:length]), 0, count
            kept.append(entry)
        self._queue, self.messages, self.size = kept, messages, size
        return before - messages, before_bytes - size

    def drop_all(self) -> tuple[int, int]:
        """Drop every message: messages, bytes."""
        return self._drop(0, 0)

    def _drop(self, messages_max: int, bytes_max: int) -> tuple[int, int]:
        dropped = dropped_bytes = 0
        kept: list[bytes] = []
        while self.messages > messages_max or self.size > bytes_max:
            head = self._queue[0]
            if isinstance(head, bytes):  # control frames are not dropped
                kept.append(head)
                self._queue.popleft()
                continue
            excess = self.messages - messages_max
            if excess <= 0:
                excess = head.count
            excess_bytes = max(self.size - bytes_max, 1)
            if self.messages > messages_max:
                excess_bytes = max(excess_bytes, len(head.body))
            count, length = take(head.view(), min(excess, head.count), excess_bytes)
            self._consume(head, count, length)
            dropped += count
            dropped_bytes += length
            if not head.count:
                self._queue.popleft()
        self._queue.extendleft(reversed(kept))
        return dropped, dropped_bytes

    def _consume(self, head: Run, count: int, length: int) -> None:
        head.count -= count
        head.first += count
        head.start += length
        self.messages -= count
        self.size -= length

    def _expire(self, head: Run, now_us: int) -> None:
        view = head.view()
        body, left, expired, earliest = unexpired(view, now_us)
        self.messages -= expired
        self.size -= len(view) - len(body)
        self.expired += expired
        head.first += expired  # those that are left count as the last ones: none is taken for older
        head.body, head.start, head.count, head.expiration = body, 0, left, earliest
