"""The nouns of a journal's state: streams, mailboxes, publishers, sinks, other nodes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple

from regraft.journal.format import Elsewhere, Interest, Options, Part, Range, damaged
from regraft.journal.ranges import Ranges
from regraft.kernels.windows import Window

HOME = "$home/"  # and the id of a journal: the mailbox that stands for another node
TX = "$tx/"  # and a client id: the publisher whose sequences are numbers of transactions
MARKS_MAX = 4096  # of a public stream: at 64 MiB each, 256 GiB before they become coarser
MAILBOX_MARKS_MAX = 64
JOINTS_MAX = 1024  # of a mailbox, before small ones become larger ones
JOINT_BYTES = 1 << 20  # up to which they do


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

    def size_through(self, sequence: int) -> int:
        """Bytes of its messages up to this one, about: others may stand behind it already."""
        return self.size - max(0, self.next_sequence - 1 - sequence) * self.average

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


class Joint(NamedTuple):
    """Messages of a stream that count together: those of one transaction, or of several."""

    first: int
    last: int
    start: int  # bytes of all messages of the stream before the first of them,
    end: int  # and up to the last


class Back(NamedTuple):
    """A message that was delivered and came back."""

    attempts: int
    due_us: int  # not to be delivered before
    priority: int


@dataclass(slots=True)
class Rank:
    """Where a mailbox has messages of one priority."""

    low: int  # none that is unsettled stands before it
    last: int
    drained: bool = False  # somebody who reads them has read all;
    fresh: int = 0  # the first that was appended since, 0: none


class Mailbox(Stream):
    """The private stream of a durable subscription, and what its clients have settled of it.

    `ranks` says, of each priority but the common one, where to look for its messages. `joints` are
    what is unsettled of transactions: should it go to another node, it goes as a whole.
    """

    marks_max = MAILBOX_MARKS_MAX

    def __init__(
        self,
        number: int,
        name: str,
        pattern: str,
        exact: bool,
        selector: str,
        owner: str,
        options: Options,
    ) -> None:
        super().__init__(number, name, pattern, exact)
        self.selector = selector
        self.owner = owner
        self.options = options
        self.floor = 1  # the first sequence that is not settled
        self.settled = Ranges()  # above the floor
        self.delivered = 0  # up to this sequence, any may have been handed out
        self.window = 0  # what a client that is attached may have unsettled; 0: none is attached
        self.returned: dict[int, Back] = {}  # by sequence
        self.ranks: dict[int, Rank] = {}  # by priority
        self.sought = False  # to where some of it may be gone
        self.joints: list[Joint] = []  # in order
        self.came: Elsewhere | None = None  # from there, and it gets what that one hands over
        self.home: Elsewhere | None = None  # it has moved there, and so does all that it gets

    @property
    def waiting(self) -> int:
        """Messages that are not settled."""
        return self.next_sequence - self.floor - self.settled.count

    @property
    def highest_settled(self) -> int:
        """No sequence above it is settled."""
        return max(self.floor - 1, self.settled.highest)

    def settle(self, first: int, last: int) -> list[Range]:
        """Settle a range; what of it was not settled before.

        What was not sent yet cannot be settled, and is left out.
        """
        first = max(first, self.floor)
        last = min(last, self.next_sequence - 1)
        if first > last:
            return []
        if self.returned:
            self._forget_returned(first, last)
        if first == self.floor:
            if not self.settled:
                self.floor = last + 1
                new = [(first, last)]
            else:
                new = self.settled.gaps(first, last)
                self.floor = self.settled.cut(last + 1)
            if self.joints:
                del self.joints[: bisect_left(self.joints, self.floor, key=lambda one: one.last)]
            return new
        return self.settled.add(first, last)

    def join(self, first: int, last: int, start: int, end: int) -> None:
        """These messages count together; `start` and `end` are bytes of the stream.

        If there are very many such, neighbours become one, with what stands between them: it is
        the same promise and more.
        """
        self.joints.append(Joint(first, last, start, end))
        if len(self.joints) < JOINTS_MAX or len(self.joints) % JOINTS_MAX:
            return
        joined: list[Joint] = []
        for one in self.joints:
            if joined and one.end - joined[-1].start <= JOINT_BYTES:
                joined[-1] = Joint(joined[-1].first, one.last, joined[-1].start, one.end)
            else:
                joined.append(one)
        self.joints = joined

    def joint(self, sequence: int) -> Joint | None:
        """What this message counts together with; or what comes behind it, if it does not."""
        at = bisect_left(self.joints, sequence, key=lambda one: one.last)
        return self.joints[at] if at < len(self.joints) else None

    def _forget_returned(self, first: int, last: int) -> None:
        if last - first < len(self.returned):
            for sequence in range(first, last + 1):
                self.returned.pop(sequence, None)
        else:
            for sequence in [one for one in self.returned if first <= one <= last]:
                del self.returned[sequence]

    def unsettled(self, first: int, last: int) -> list[Range]:
        """What of a range is there and not settled."""
        return self.settled.gaps(max(first, self.floor), min(last, self.next_sequence - 1))

    def give_back(self, first: int, last: int, back: Back) -> None:
        """These came back."""
        for low, high in self.unsettled(first, last):
            for sequence in range(low, high + 1):
                self.returned[sequence] = back

    def rank(self, priority: int, first: int, last: int) -> None:
        """Messages of another priority than the common one were appended."""
        known = self.ranks.get(priority)
        if known is None or known.last < self.floor:  # none is left
            self.ranks[priority] = Rank(first, last)
        else:
            known.last = last
            if known.drained:
                known.drained, known.fresh = False, first

    def seek(self, sequence: int) -> None:
        """Begin there again, with all that is still there."""
        if sequence >= self.floor:
            self.settle(self.floor, sequence - 1)
            return
        self.sought = True
        self.floor = max(sequence, 1)
        self.settled = Ranges()
        self.returned.clear()
        self.joints = []
        self.delivered = max(self.delivered, self.next_sequence - 1)
        for known in self.ranks.values():
            known.low = self.floor

    def abandon(self) -> bool:
        """After a crash: what a client may have had in its hands counts as delivered.

        What is still to come does not. Whether that has to be written down.
        """
        reached = self.delivered
        if self.window:
            reached = max(reached, self.highest_settled + self.window)
        changed = self.window > 0 or reached >= self.next_sequence
        self.delivered = min(reached, self.next_sequence - 1)
        self.window = 0
        return changed

    def first_mark(self) -> Mark | None:
        """The first closed segment that holds something unsettled."""
        at = bisect_left(self.marks, self.floor, key=lambda mark: mark.last)
        return self.marks[at] if at < len(self.marks) else None


class Arrivals(Stream):
    """How many messages came from a stream of another journal; nobody reads it.

    Each has a sequence here with the record in which it is kept, so that it is known to have come
    exactly if it was kept.
    """

    def __init__(
        self, number: int, journal: str, stream: int, shift: int, mailbox: int = 0
    ) -> None:
        self.key = f"{journal}/{mailbox}" if mailbox else journal
        super().__init__(number, f"$from/{self.key}", f"$from/{self.key}", True)
        self.journal = journal
        self.mailbox = mailbox  # all of it is for this one; 0: for whoever takes it
        self.stream = stream  # its number there
        self.shift = shift  # what a sequence there is more than here

    def add_mark(self, mark: Mark) -> None:
        """Where they are does not matter."""
        self.indexed = mark.last


class HomeState:
    """What is known of a node that keeps messages for mailboxes."""

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.node = ""
        self.name = ""
        self.version = 0
        self.gone = False
        self.interests: dict[int, Interest] = {}


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


@dataclass(slots=True)
class Sink:
    """One who publishes in batches: all of one or none. Its batches have ascending numbers."""

    name: str
    batch: int  # the last that was committed,
    last_us: int
    parts: list[Part]  # and what of it is not known to be published; empty if all of it is


def _merged(one: Mark, other: Mark) -> Mark:
    return one._replace(last=other.last, last_us=other.last_us, size=other.size, final=other.final)


def describe(stream: Stream, full: bool) -> dict[str, Any]:
    """A stream or mailbox, to look at."""
    row: dict[str, Any] = {
        "number": stream.number,
        "name": stream.name,
        "kind": "stream",
        "pattern": stream.pattern,
        "next_sequence": stream.next_sequence,
        "bytes": stream.size,
    }
    if isinstance(stream, Mailbox):
        row |= {
            "kind": "mailbox",
            "selector": stream.selector,
            "owner": stream.owner,
            "waiting": stream.waiting,
            "waiting_bytes": stream.waiting * stream.average,
            "floor": stream.floor,
            "settled_above_floor": stream.settled.count,
            "attached": stream.window > 0,
            "full": full,
            "moved_from": stream.came.node if stream.came is not None else "",
            "moved_to": stream.home.node if stream.home is not None else "",
        }
    return row
