"""The nouns of a journal's state: streams, mailboxes, publishers."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from regraft.journal.format import Range, damaged
from regraft.journal.ranges import Ranges
from regraft.kernels.windows import Window

MARKS_MAX = 4096  # of a public stream: at 64 MiB each, 256 GiB before they become coarser
MAILBOX_MARKS_MAX = 64


class Mark(NamedTuple):
    """Where a closed segment holds messages of a stream; or several segments, when merged."""

    first: int  # of the segment
    offset: int  # of the first record with a message of the stream
    sequence: int
    last: int  # sequence
    time_us: int
    last_us: int
    size: int  # bytes of the stream's messages up to the end of the segment, about
    final: int  # the first of the last segment that it stands for


class Stream:
    """A numbered, dense sequence of messages, beginning with 1. A public one is a retained topic.

    `next_sequence` and `size` are those of the state; while the node runs, the recorder is ahead of
    them, and the journal brings them up to date when it looks at them.
    """

    marks_max = MARKS_MAX

    def __init__(self, number: int, name: str, pattern: str, exact: bool) -> None:
        self.number = number
        self.name = name
        self.pattern = pattern
        self.exact = exact
        self.next_sequence = 1
        self.size = 0  # bytes of all its messages, ever
        self.indexed = 0  # the last sequence that lies in a closed segment
        self.marks: list[Mark] = []  # closed segments that hold something of it, in order
        self.slot = -1  # in the recorder, while a node runs
        self.counted = 0  # bytes that the recorder had counted when `size` was brought up to date

    @property
    def average(self) -> int:
        """Bytes of a message, about."""
        return self.size // max(self.next_sequence - 1, 1)

    def add_mark(self, mark: Mark) -> None:
        """One more segment that holds some of it; neighbours are merged when there are many."""
        self.indexed = mark.last
        self.marks.append(mark)
        if len(self.marks) > self.marks_max:
            pairs = zip(self.marks[::2], self.marks[1::2], strict=False)
            odd = self.marks[-1:] if len(self.marks) % 2 else []
            self.marks = [_merged(*pair) for pair in pairs] + odd

    def mark_at(self, sequence: int) -> int:
        """The number of the mark that may hold a sequence; -1 if it is before all of them."""
        return bisect_right(self.marks, sequence, key=lambda mark: mark.sequence) - 1

    def forget_before(self, position: int) -> None:
        """Segments that begin before this position are gone."""
        gone = 0
        for mark in self.marks:
            if mark.final >= position:
                break
            gone += 1
        del self.marks[:gone]
        if self.marks and self.marks[0].first < position:
            self.marks[0] = self.marks[0]._replace(first=position, offset=0)

    def first_sequence(self) -> int:
        """The first message that is still there, or the next one."""
        return self.marks[0].sequence if self.marks else self.indexed + 1


class Mailbox(Stream):
    """The private stream of a durable subscription, and what its client has settled of it."""

    marks_max = MAILBOX_MARKS_MAX

    def __init__(
        self,
        number: int,
        name: str,
        pattern: str,
        exact: bool,
        selector: str,
        owner: str,
        quota_messages: int,
        quota_bytes: int,
    ) -> None:
        super().__init__(number, name, pattern, exact)
        self.selector = selector
        self.owner = owner
        self.quota_messages = quota_messages
        self.quota_bytes = quota_bytes
        self.floor = 1  # the first sequence that is not settled
        self.settled = Ranges()  # above the floor
        self.delivered = 0  # the highest sequence that was ever handed out
        self.window = 0  # what a client that is attached may have unsettled; 0: none is attached

    @property
    def waiting(self) -> int:
        """Messages that are not settled."""
        return self.next_sequence - self.floor - self.settled.count

    @property
    def highest_settled(self) -> int:
        """No sequence above it is settled."""
        return max(self.floor - 1, self.settled.highest)

    def settle(self, first: int, last: int, ranges_max: int = 0) -> list[Range] | None:
        """Settle a range; what of it was not settled before. None: there would be too many ranges.

        What was not sent yet cannot be settled, and is left out.
        """
        first = max(first, self.floor)
        last = min(last, self.next_sequence - 1)
        if first > last:
            return []
        if first == self.floor:
            new = self.settled.gaps(first, last)
            self.floor = self.settled.cut(last + 1)
            self._trim()
            return new
        if ranges_max and len(self.settled) >= ranges_max and not self.settled.touches(first, last):
            return None
        return self.settled.add(first, last)

    def abandon(self) -> bool:
        """After a crash: what a client may have had in its hands counts as delivered.

        Whether one was attached.
        """
        if not self.window:
            return False
        reached = max(self.delivered, self.highest_settled + self.window)
        self.delivered = min(reached, self.next_sequence - 1)
        self.window = 0
        return True

    def add_mark(self, mark: Mark) -> None:
        """One more segment that holds some of it."""
        super().add_mark(mark)
        self._trim()

    def _trim(self) -> None:
        gone = 0
        for mark in self.marks:
            if mark.last >= self.floor:
                break
            gone += 1
        del self.marks[:gone]


class Publisher:
    """One who numbers what it publishes. While it is away, its window is only bytes."""

    def __init__(self, number: int, client_id: str, last_us: int, state: bytes = b"") -> None:
        self.number = number
        self.client_id = client_id
        self.last_us = last_us  # when it was last heard of
        self.window: Window | None = None
        self._state = state

    def thaw(self) -> Window:
        """The window, to be used."""
        if self.window is None:
            try:
                self.window = Window(self._state)
            except ValueError as error:
                raise damaged(f"what publisher {self.client_id} sent is lost: {error}") from None
        return self.window

    def freeze(self) -> None:
        """Nobody uses it for now."""
        self._state = self.state()
        self.window = None

    def state(self) -> bytes:
        """The window, to be kept."""
        return self._state if self.window is None else self.window.state()


def _merged(one: Mark, other: Mark) -> Mark:
    return one._replace(last=other.last, last_us=other.last_us, size=other.size, final=other.final)
