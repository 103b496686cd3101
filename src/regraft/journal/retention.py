"""What may be dropped, and who holds it: retention of streams, quotas of mailboxes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from regraft.journal.segments import Segments
from regraft.journal.streams import Arrivals, Mailbox, Stream

NOTHING = 1 << 62  # a position: nothing is held
MESSAGE_BYTES_MIN = 16  # no message takes less of the journal


class Retention(NamedTuple):
    """How long a public stream keeps messages. Whole segments go, so they may stay longer."""

    age_us: int = 0  # 0: whatever their age
    size: int = 0  # bytes; 0: however many


KEEP = Retention()


def held_from(stream: Stream, retention: Retention, now_us: int, segments: Segments) -> int:
    """The lowest position that a stream still needs."""
    if isinstance(stream, Mailbox):
        mark = stream.first_mark()
        if mark is not None:
            return mark.first + mark.offset
        return segments.open if stream.floor < stream.next_sequence else NOTHING
    if isinstance(stream, Arrivals):
        return NOTHING
    for mark in stream.marks:
        old = retention.age_us and mark.last_us < now_us - retention.age_us
        much = retention.size and stream.size - mark.size >= retention.size
        if not old and not much:
            return mark.first + mark.offset
    return segments.open


class Drops:
    """Decides which of the oldest segments nobody needs. It remembers who held the last one."""

    def __init__(self, segments: Segments, retention_of: Callable[[str], Retention]) -> None:
        self._segments = segments
        self._retention_of = retention_of
        self.holder: Stream | None = None  # that needs the oldest segment

    def needed_from(self, streams: Iterable[Stream], now_us: int) -> int:
        """The lowest position that anybody needs, or one in the oldest segment that is needed."""
        end = self._segments.oldest_end
        if self.holder is not None:
            held = self.held_by(self.holder, now_us)
            if held < end:
                return held
        lowest = self._segments.open
        self.holder = None
        for stream in streams:
            held = self.held_by(stream, now_us)
            if held < lowest:
                lowest, self.holder = held, stream
        return lowest

    def held_by(self, stream: Stream, now_us: int) -> int:
        """The lowest position that a stream needs."""
        public = not isinstance(stream, Mailbox)
        retention = self._retention_of(stream.name) if public else KEEP
        return held_from(stream, retention, now_us, self._segments)


class Quotas:
    """Which mailboxes are full. One becomes so only after enough was appended, and is looked at
    again when that much was: nobody counts per message.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.full: set[int] = set()
        self.changed: set[int] = set()  # became full, or not full; emptied by who looks at it
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._checks: list[tuple[int, int]] = []  # a heap: position, number

    def watch(self, mailbox: Mailbox, position: int) -> None:
        """Look at a mailbox, now that the journal has got to `position`."""
        messages_max = mailbox.options.quota_messages or self._messages_max
        bytes_max = mailbox.options.quota_bytes or self._bytes_max
        waiting = mailbox.waiting
        size = waiting * mailbox.average
        number = mailbox.number
        if waiting >= messages_max or size >= bytes_max:
            if number not in self.full:
                self.full.add(number)
                self.changed.add(number)
            return
        if number in self.full:
            # It fills again at once if it is let go at the first message that it settles.
            if waiting * 8 > messages_max * 7 or size * 8 > bytes_max * 7:
                return
            self.full.discard(number)
            self.changed.add(number)
        ahead = min((messages_max - waiting) * MESSAGE_BYTES_MIN, bytes_max - size)
        heapq.heappush(self._checks, (position + ahead, number))

    def due(self, position: int) -> list[int]:
        """The mailboxes to look at, now that the journal has got to `position`."""
        numbers = []
        while self._checks and self._checks[0][0] <= position:
            numbers.append(heapq.heappop(self._checks)[1])
        return numbers

    def forget(self, number: int) -> None:
        """A mailbox is gone."""
        self.full.discard(number)
        self.changed.discard(number)
