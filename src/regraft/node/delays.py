"""Messages that are not to be delivered yet.

They wait in a mailbox of their own that nobody reads. When its time has come, a message is
published as if that had just happened: who takes it is found out then. It leaves the mailbox with
the very record that it is published with, so that a crash repeats nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

from regraft.errors import LocalError
from regraft.journal.format import Options
from regraft.journal.journal import Journal
from regraft.journal.streams import Mailbox
from regraft.kernels.arrays import Ints
from regraft.kernels.keeper import Keeper
from regraft.kernels.lane import Lane
from regraft.kernels.outlet import Route
from regraft.kernels.replay import Reader, keyed
from regraft.limits import Limits
from regraft.model.message import decode_envelope
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.press import Press
from regraft.node.reading import FOREVER, Reading, Readings
from regraft.wire.native import HEADER_BYTES

NAME = "$delayed"
OWNER = "$node"
AT_ONCE = 256  # published in one step
AGAIN_US = 1_000_000  # after it was refused,
FAILED_US = 60_000_000  # or could not be read


class Delayed(NamedTuple):
    """One that waits."""

    due_us: int
    sequence: int
    id: int
    topic: bytes
    size: int


class Delays:
    """All delayed messages of a node."""

    def __init__(
        self,
        journal: Journal,
        keeper: Keeper,
        lane: Lane,
        readings: Readings,
        press: Press,
        deadlines: Deadlines,
        effects: list[Effect],
        limits: Limits,
        wall_us: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._keeper = keeper
        self._lane = lane
        self._readings = readings
        self._press = press
        self._deadlines = deadlines
        self._effects = effects
        self._limits = limits
        self._wall_us = wall_us
        self._mailbox: Mailbox | None = None
        self._heap: list[Delayed] = []
        self._reading: Reading | None = None  # of the next one that is due
        self._loading: Reading | None = None  # of what was there when the node was started
        self._loaded_until = 0
        self._complained = False
        lane.postpone = self._postpone

    @property
    def count(self) -> int:
        """How many wait."""
        mailbox = self._fresh()
        return mailbox.waiting if mailbox is not None else 0

    @property
    def some(self) -> bool:
        """Whether any wait."""
        return bool(self._heap) or self._loading is not None

    def _fresh(self) -> Mailbox | None:
        """The mailbox, with all that was appended."""
        if self._mailbox is not None:
            self._journal.refresh(self._mailbox)
        return self._mailbox

    def open(self, mailbox: Mailbox) -> None:
        """There were some before the node was started."""
        self._have(mailbox)
        self._loaded_until = mailbox.next_sequence
        if mailbox.waiting:
            self._loading = self._reading_at(mailbox.floor, self._load)

    def begin(self, now: Now) -> None:
        """Look for those that were there before."""
        if self._loading is not None:
            self._load(now)

    def _have(self, mailbox: Mailbox) -> Route:
        self._mailbox = mailbox
        route = Route([])
        slots = Ints()
        slots.push(mailbox.slot)
        route.slots = slots
        route.waits = True
        route.kept = route
        self._lane.later = route
        return route

    def _postpone(self) -> Route:
        """The lane has the first message that is to wait."""
        options = Options(quota_messages=self._limits.delayed)
        try:
            made = self._journal.make_mailbox(NAME, "", True, "", OWNER, self._wall_us(), options)
        except LocalError as error:
            self._effects.append(Note("warning", f"no message can be delayed: {error}"))
            return Route([])  # which leads nowhere: it is refused
        return self._have(made)

    def take(self, now: Now) -> None:
        """The lane has put some where they wait."""
        for one in self._keeper.delayed:
            heapq.heappush(self._heap, Delayed(*one))
        self._keeper.delayed = []
        self._wait(now)

    def _wait(self, now: Now) -> None:
        if self._heap:
            early_us = max(self._heap[0].due_us - now.wall_us, 0)
            self._deadlines.add(now.ns + early_us * 1000, "delayed", 0)

    def _reading_at(self, sequence: int, go_on: Callable[[Now], None]) -> Reading:
        assert self._mailbox is not None
        reader = Reader([self._mailbox.number], None, None)
        return Reading(self._mailbox, reader, sequence, go_on, self._fail)

    def _fail(self, text: str, now: Now) -> None:
        """Try again, later; the others are not to wait for it."""
        self._effects.append(Note("error", f"delayed messages cannot be read: {text}"))
        if self._heap and self._loading is None:
            failed = self._heap[0]
            heapq.heapreplace(self._heap, failed._replace(due_us=now.wall_us + FAILED_US))
            self._wait(now)
        self._deadlines.add(now.ns + FAILED_US * 1000, "delayed", 0)

    # ---------------------------------------------------------------------- when it is time

    def due(self, now: Now) -> None:
        """Publish those whose time has come, some at a time."""
        mailbox = self._fresh()
        if self._loading is not None:
            self._load(now)
        for _ in range(AT_ONCE):
            if mailbox is None or not self._heap or self._heap[0].due_us > now.wall_us:
                break
            one = self._heap[0]
            if not mailbox.unsettled(one.sequence, one.sequence):  # cancelled
                heapq.heappop(self._heap)
                continue
            frame = self._frame(one.sequence, now)
            if frame is None:
                if mailbox.unsettled(one.sequence, one.sequence):
                    return  # it comes, and `due` again with it
                continue
            heapq.heappop(self._heap)
            try:
                self._press.publish(frame, mailbox.number, one.sequence, now.wall_us)
            except LocalError as error:
                heapq.heappush(self._heap, one._replace(due_us=now.wall_us + AGAIN_US))
                if not self._complained:
                    text = f"delayed messages have to wait: {error}; tried again every second"
                    self._effects.append(Note("warning", text))
                self._complained = True
                break
            self._complained = False
        self._wait(now)

    def _frame(self, sequence: int, now: Now) -> bytes | None:
        """The message, if it is in memory; else it is asked for."""
        if self._reading is None:
            self._reading = self._reading_at(sequence, self.due)
            self._reading.ahead_allowed = False
        reading = self._reading
        reading.jump(sequence)
        found = self._readings.look(reading, now)
        if found is None:
            return None
        if not self._readings.fill(reading, found, sequence + 1, 1, FOREVER, b"", now):
            return None
        reader = reading.reader
        if not reader.messages:
            self._see_gone(reader, now)
            return self._frame(sequence, now) if reading.next_sequence <= sequence else None
        data = b"".join(reader.out())
        start, end, _ = keyed(data, b"")[0]
        return data[start:end]

    def _see_gone(self, reader: Reader, now: Now) -> None:
        """Settle what expired while it waited."""
        assert self._mailbox is not None
        if reader.gone or reader.lost:
            gone = [*reader.gone, *reader.lost]
            self._journal.settle(self._mailbox.number, gone, now.wall_us)

    # ------------------------------------------------------------------- after a restart

    def _load(self, now: Now) -> None:
        """Find out when those are due that were there before."""
        reading = self._loading
        while reading is not None and reading.next_sequence < self._loaded_until:
            assert self._mailbox is not None
            found = self._readings.look(reading, now)
            if found is None:
                return
            at, until = reading.next_sequence, self._loaded_until
            reading.reader.skip = list(self._mailbox.settled.within(at, until - 1))
            if not self._readings.fill(reading, found, until, AT_ONCE, FOREVER, b"", now):
                return
            self._see_gone(reading.reader, now)
            self._note_loaded(reading, now)
        if reading is not None:
            self._readings.end(reading)
            self._loading = None
        self._wait(now)

    def _note_loaded(self, reading: Reading, now: Now) -> None:
        reader = reading.reader
        if not reader.messages:
            return
        runs = list(reader.runs)
        data = b"".join(reader.out())
        frames = iter(keyed(data, b""))
        for first, count in runs:
            for sequence in range(first, first + count):
                start, end, _ = next(frames)
                message = decode_envelope(data[start + HEADER_BYTES : end])
                due_us = message.deliver_at_us or 0
                about = message.id or 0, message.topic.encode(), end - start
                heapq.heappush(self._heap, Delayed(due_us, sequence, *about))

    # ------------------------------------------------------------------------- commands

    def cancel(self, id: int, now: Now) -> int:
        """Have messages with this id never delivered; how many there were."""
        mailbox = self._fresh()
        waiting = [
            (one.sequence, one.sequence)
            for one in self._heap
            if mailbox is not None
            and 0 < id == one.id
            and mailbox.unsettled(one.sequence, one.sequence)
        ]
        if not waiting or mailbox is None:
            raise LocalError("not-waiting", f"no message with id {id} waits for its time")
        return self._journal.settle(mailbox.number, waiting, now.wall_us)

    def rows(self, most: int) -> list[dict[str, Any]]:
        """The next of them, to look at."""
        mailbox = self._fresh()
        if mailbox is None:
            return []
        waiting = [one for one in self._heap if mailbox.unsettled(one.sequence, one.sequence)]
        return [
            {
                "id": one.id,
                "sequence": one.sequence,
                "topic": one.topic.decode(),
                "deliver_at_us": one.due_us,
                "size": one.size,
            }
            for one in heapq.nsmallest(most, waiting)
        ]
