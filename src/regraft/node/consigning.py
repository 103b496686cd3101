"""What begins at this node and other nodes have to keep: it stays here until they do.

Each node with mailboxes elsewhere has a mailbox of its own in this node's journal, which takes what
any of its mailboxes does. It is read as any other, but sent there in batches, and settled by what
that node has confirmed. So a node that keeps up costs a reader of memory, one that is away costs
what waits for it on the disk, and nobody remembers single messages.

Rules:

- Only what is persisted is sent, in order, and never more than a window of it is unconfirmed.
- If nothing is confirmed for a while, or something is missing there, it begins anew behind what is
  confirmed. Each such beginning is a *round*, so that late complaints about an older one are known.
- What counts together, because it is of one transaction, is said to; that node keeps it when all
  of it has come, and says meanwhile how far that is, so that the window goes on.
- What that node is told first in a round follows whatever it has; then each batch follows the last.

A mailbox that has moved to another node (`relocating`) is sent there in the same way, to one
mailbox only: what is not settled of it, with what is known of former deliveries, and what it gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from regraft.journal.format import Elsewhere, Options
from regraft.journal.journal import Journal
from regraft.journal.streams import HOME, Mailbox
from regraft.kernels.frame import count_messages
from regraft.kernels.keeper import Keeper
from regraft.kernels.replay import Reader
from regraft.limits import KIB, Limits
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.reading import FOREVER, Reading, Readings
from regraft.wire import peers

OWNER = "$node"
BATCH_BYTES = 64 * KIB
BESIDE_BYTES = 512  # of a message, around the frames that it carries
RETRY_NS = 1_000_000_000
RETRY_NS_MAX = 8_000_000_000
SOON_NS = 250_000_000  # after a link has changed
SETTLED_LATE = 4096  # messages that are confirmed and not settled yet, at most
WARNED_SHARE = 2  # of a limit: from half of it on people are warned
SECOND = 1_000_000_000
REFUSE, DROP = "refuse", "drop"
LOOKED_AT = 8192  # sequences of a mailbox that has moved, at a time

SETTLED_EARLY = "settled-early"  # a planted bug: what is sent of a mailbox that moved is settled

Send = Callable[[bytes, peers.Carried, Now], bool]  # to a journal; whether there is a way


@dataclass(slots=True, eq=False)
class Consignment:
    """What one other node has to keep; or one mailbox of it."""

    journal: bytes  # its own
    name: str  # of the node
    mailbox: Mailbox
    reading: Reading
    confirmed: int  # up to this sequence
    base: int = 0  # there is nothing between this one and the next that is sent
    round: int = 0
    in_flight: int = 0  # bytes
    sent: deque[tuple[int, int]] = field(default_factory=deque)  # last sequence, bytes
    due_ns: int = 0  # to begin anew, if nothing is confirmed until then
    tries: int = 0  # since something was
    progress_ns: int = 0  # when something was, or nothing waited
    dropped: int = 0
    warned: bool = False
    barred: bool = False  # nothing more is taken for it
    pumping: bool = False
    target: int = 0  # the one mailbox there that gets all of it; 0: whoever takes it
    known: bool = True  # that node has said that it expects it

    @property
    def unsure(self) -> bool:
        """Whether something was sent and is not confirmed."""
        return self.reading.next_sequence > self.confirmed + 1


class Consigning:
    """All that other nodes have to keep."""

    def __init__(
        self,
        journal: Journal,
        readings: Readings,
        keeper: Keeper,
        effects: list[Effect],
        limits: Limits,
        policy: str,
        send: Send,
    ) -> None:
        self._journal = journal
        self._readings = readings
        self._keeper = keeper
        self._effects = effects
        self._limits = limits
        self._policy = policy
        self._send = send
        self._body_max = limits.frame_bytes - BESIDE_BYTES
        self._batch = min(BATCH_BYTES, self._body_max // 2)
        self.all: dict[int, Consignment] = {}  # by the number of their mailbox here
        self._homes: dict[bytes, Consignment] = {}  # those without a target
        self.on_known: Callable[[Consignment, Now], None] | None = None
        self.bugs: frozenset[str] = frozenset()
        self.repeated = 0  # rounds but the first
        self._looked_ns = 0

    # ---------------------------------------------------------------------------- homes

    def open(self, journal: bytes, name: str, now: Now) -> Consignment:
        """Another node has mailboxes from now on, or had already."""
        known = self._homes.get(journal)
        if known is not None:
            known.name = name or known.name
            return known
        title = HOME + journal.hex()
        mailbox = self._journal.state.mailboxes.get(title)
        options = Options(quota_bytes=self._limits.home_bytes)
        if self._policy == DROP:  # what is too much goes, and nobody is refused
            options = Options(quota_bytes=FOREVER, quota_messages=FOREVER)
        if mailbox is None:
            mailbox = self._journal.make_mailbox(
                title, title, True, "", OWNER, now.wall_us, options
            )
        elif mailbox.options != options:
            self._journal.change_mailbox(mailbox.number, title, options, now.wall_us)
        self._keeper.set_away(mailbox.slot, True)
        self._journal.away[mailbox.number] = mailbox
        made = self._homes[journal] = self._consign(journal, name, mailbox, now)
        return made

    def _consign(self, journal: bytes, name: str, mailbox: Mailbox, now: Now) -> Consignment:
        made = Consignment(journal, name, mailbox, self._reading(mailbox), mailbox.floor - 1)
        made.progress_ns = now.ns
        self.all[mailbox.number] = made
        return made

    def to(self, journal: bytes) -> Consignment | None:
        """What another node has to keep, if it has mailboxes."""
        return self._homes.get(journal)

    def close(self, journal: bytes, now: Now) -> int:
        """It will never come back: what waits for it goes; how many messages that were."""
        one = self._homes.pop(journal, None)
        if one is None:
            return 0
        del self.all[one.mailbox.number]
        self._readings.end(one.reading)
        self._journal.refresh(one.mailbox)
        waiting = one.mailbox.waiting
        self._keeper.set_full(one.mailbox.slot, False)
        self._keeper.set_away(one.mailbox.slot, False)
        self._journal.away.pop(one.mailbox.number, None)
        self._journal.remove_mailbox(one.mailbox.number, now.wall_us)
        return waiting

    def hand_over(self, mailbox: Mailbox, to: Elsewhere, now: Now) -> Consignment:
        """A mailbox has moved: what it has and what it gets goes there, once it is expected."""
        one = self._consign(bytes.fromhex(to.journal), to.node, mailbox, now)
        one.target, one.known = to.number, False
        self._journal.away[mailbox.number] = mailbox
        return one

    def take_back(self, number: int) -> None:
        """It stays here after all, or is no more."""
        one = self.all.pop(number, None)
        if one is not None:
            self._readings.end(one.reading)
            self._journal.away.pop(number, None)
            self._keeper.set_full(one.mailbox.slot, number in self._journal.quotas.full)

    def _reading(self, mailbox: Mailbox) -> Reading:
        def go_on(now: Now) -> None:
            self.pump(self.all.get(mailbox.number), now)

        def fail(text: str, now: Now) -> None:
            text = f"what waits for another node cannot be read, and is tried again: {text}"
            self._effects.append(Note("error", text))
            one = self.all.get(mailbox.number)
            if one is not None:
                one.tries += 1

        reader = Reader([mailbox.number], None, None)
        return Reading(mailbox, reader, mailbox.floor, go_on, fail)

    # -------------------------------------------------------------------------- sending

    def pump(self, one: Consignment | None, now: Now) -> None:
        """Send what there is, as far as the window goes."""
        if one is None or one.pumping or not one.known:
            return
        one.pumping = True  # what is in memory is found at once, and calls again
        try:
            while one.in_flight < self._limits.home_window_bytes and self._batch_to(one, now):
                pass
        finally:
            one.pumping = False

    def _batch_to(self, one: Consignment, now: Now) -> bool:
        """Send one batch; whether to go on."""
        reading = one.reading
        found = self._readings.look(reading, now)
        if found is None:
            return False
        timeless = Now(now.ns, 0)  # what has expired has to be counted there, too
        most, until = self._batch, FOREVER
        if one.target:
            at, until = reading.next_sequence, reading.next_sequence + LOOKED_AT
            reading.reader.skip = list(one.mailbox.settled.within(at, until - 1))
        if not self._readings.fill(reading, found, until, FOREVER, most, b"", timeless):
            return False
        reader = reading.reader
        if not reader.messages:
            return True
        runs = list(reader.runs)
        data = b"".join(reader.out())
        for first, frames in _runs(data, runs):
            for carried in self._packed(one, first, frames):
                if not self._send(one.journal, carried, now):
                    self._stop(one, now)
                    return False
        if one.due_ns <= now.ns:
            one.due_ns = now.ns + self._patience(one)
        if one.target and SETTLED_EARLY in self.bugs:
            one.confirmed = reading.next_sequence - 1
        return True

    def _packed(self, one: Consignment, first: int, frames: memoryview) -> Iterator[peers.Carried]:
        """Frames as they are sent: as many as fit into one message, or a part of a large one."""
        head = (bytes.fromhex(self._journal.state.journal_id), one.mailbox.number)
        while len(frames):
            joint, joint_bytes, most = 0, 0, FOREVER
            together = one.mailbox.joint(first) if one.mailbox.joints else None
            if together is not None and together.first > first:
                most = together.first - first
            elif together is not None:
                joint, joint_bytes = together.last, together.end - together.start
                most = joint - first + 1
                joint = one.mailbox.settled.gaps(first, joint)[-1][1]  # some may have been taken
            room = self._body_max // 2 if one.target else self._body_max  # there is more to say
            count, size = _fitting(frames, room, most)
            whole = size > 0
            if not whole:
                count, size = 1, int.from_bytes(frames[:4], "little") + 4
            for offset in range(0, size, self._body_max):
                part = bytes(frames[offset : min(size, offset + self._body_max)])
                place = (0, 0) if whole else (offset, size)
                carried = peers.Carried(
                    *head, one.base, first, one.round, part, *place, joint, joint_bytes
                )
                yield replace(carried, **_told(one, first, count)) if one.target else carried
            first += count
            one.base = first
            one.in_flight += size
            one.sent.append((first - 1, size))
            frames = frames[size:]

    def _stop(self, one: Consignment, now: Now) -> None:
        """There is no way at the moment."""
        self._begin_anew(one)
        one.due_ns = now.ns + self._patience(one)
        one.tries = min(one.tries + 1, 10)

    def _patience(self, one: Consignment) -> int:
        return min(RETRY_NS << min(one.tries, 3), RETRY_NS_MAX)

    def _begin_anew(self, one: Consignment) -> None:
        """Go back to what is not confirmed."""
        self._readings.end(one.reading)
        one.reading = self._reading(one.mailbox)
        one.reading.next_sequence = one.confirmed + 1
        one.base = 0
        one.round += 1
        one.in_flight = 0
        one.sent.clear()
        self.repeated += 1

    # ----------------------------------------------------------------------- confirmations

    def taken(self, message: peers.Taken, now: Now) -> None:
        """Another node has persisted messages, or misses some."""
        one = self.all.get(message.stream)
        if one is None or one.journal != message.journal:
            return  # of another life
        if not one.known:
            one.known, one.tries = True, 0
            if self.on_known is not None:
                self.on_known(one, now)
        last = self._journal.recorder.next_sequence(one.mailbox.slot) - 1
        upto = min(message.upto, last)
        if upto > one.confirmed:
            one.confirmed = upto
            one.tries = 0
            one.progress_ns = now.ns
            one.due_ns = now.ns + self._patience(one)
            self._came(one, upto)
            if one.reading.next_sequence <= upto:
                self._begin_anew(one)
        if message.round == one.round:
            if self._came(one, message.held):  # it is there, and waits for the rest
                one.due_ns = now.ns + self._patience(one)
            if message.missing and one.unsure:
                self._begin_anew(one)
        self.pump(one, now)

    def _came(self, one: Consignment, upto: int) -> bool:
        """It is on its way no more; whether that is new."""
        before = len(one.sent)
        while one.sent and one.sent[0][0] <= upto:
            one.in_flight -= one.sent.popleft()[1]
        return len(one.sent) < before

    def settle(self, now: Now, all: bool) -> None:
        """Write down what is confirmed; not for every confirmation, unless something else is."""
        for one in self.all.values():
            late = one.confirmed - one.mailbox.floor + 1
            if late > 0 and (all or late >= SETTLED_LATE) and not self._journal.broken:
                span = (one.mailbox.floor, one.confirmed)
                self._journal.settle(one.mailbox.number, [span], now.wall_us)
                one.confirmed = one.mailbox.floor - 1  # what had been settled before is passed over

    # ------------------------------------------------------------------------------ time

    def linked(self, now: Now) -> None:
        """The tree has changed: there may be a way now, or what was on its way is lost."""
        for one in self.all.values():
            one.tries = 0
            one.due_ns = min(one.due_ns, now.ns + SOON_NS)

    @property
    def busy(self) -> bool:
        """Whether something is not confirmed, or not written down; or was not, a moment ago."""
        next_sequence = self._journal.recorder.next_sequence
        return any(
            next_sequence(one.mailbox.slot) > one.mailbox.floor or one.barred or one.warned
            for one in self.all.values()
        )

    def tick(self, now: Now) -> None:
        """Repeat what is not confirmed in time; look at what waits for too long."""
        self.settle(now, True)
        for one in self.all.values():
            last = self._journal.recorder.next_sequence(one.mailbox.slot) - 1
            if one.confirmed >= last:
                one.progress_ns = now.ns
            elif now.ns >= one.due_ns:
                if one.unsure:
                    one.tries = min(one.tries + 1, 10)
                    self._begin_anew(one)
                one.due_ns = now.ns + self._patience(one)
                self.pump(one, now)
        if now.ns - self._looked_ns >= SECOND:
            self._looked_ns = now.ns
            self._look(now)

    # ---------------------------------------------------------------- those who are away

    def _look(self, now: Now) -> None:
        """See what waits for whom, and for how long."""
        sizes = {number: self._waits(one) for number, one in self.all.items()}
        total = sum(size for number, size in sizes.items() if not self.all[number].target)
        for number, one in self.all.items():
            size, limits = sizes[number], self._limits
            age = (now.ns - one.progress_ns) // SECOND
            crowded = total >= limits.homes_bytes or size >= limits.home_bytes
            close = age * WARNED_SHARE >= limits.home_s
            if one.target:  # its size is bounded by its own quotas
                crowded = False
            else:
                close = close or size * WARNED_SHARE >= limits.home_bytes
            over = size > 0 and (age >= limits.home_s or crowded)
            if size > 0 and close and not one.warned:
                self._warn(one, size, age)
            one.warned = one.warned and size > 0
            if over and self._policy == DROP:
                self._drop(one, now)
                over = False
            if over != one.barred:
                one.barred = over
                state = "are refused" if over else "are taken again"
                text = f"messages for the mailboxes of node {one.name} {state}"
                self._effects.append(Note("warning", text))
            self._keeper.set_full(one.mailbox.slot, self.refuses(one))

    def refuses(self, one: Consignment) -> bool:
        """Whether nothing more is taken for it: by a look at it, or by its quota at once."""
        full = one.mailbox.number in self._journal.quotas.full
        if self._policy == DROP:
            return full and one.target > 0  # it has a quota of its own
        return one.barred or full

    def _waits(self, one: Consignment) -> int:
        self._journal.refresh(one.mailbox)
        return one.mailbox.waiting * one.mailbox.average

    def _warn(self, one: Consignment, size: int, age: int) -> None:
        one.warned = True
        self._effects.append(
            Note(
                "warning",
                f"node {one.name} has confirmed nothing for {age} s, and {size} bytes wait for it; "
                f"limits home_bytes and home_s are {self._limits.home_bytes} and "
                f"{self._limits.home_s}, then messages for it are "
                f"{'dropped' if self._policy == DROP else 'refused'}. If it will never come back: "
                f"regraft custody forget {one.journal.hex()[:8]}",
            )
        )

    def _drop(self, one: Consignment, now: Now) -> None:
        """Let go of the older half of what waits."""
        mailbox = one.mailbox
        last = mailbox.floor + max(0, (mailbox.next_sequence - mailbox.floor) // 2)
        together = mailbox.joint(last)
        if together is not None and together.first <= last:
            last = together.last  # a transaction goes as a whole
        span = (mailbox.floor, min(last, mailbox.next_sequence - 1))
        count = self._journal.settle(mailbox.number, [span], now.wall_us)
        one.dropped += count
        one.confirmed = max(one.confirmed, mailbox.floor - 1)
        self._begin_anew(one)
        text = f"{count} messages for the mailboxes of node {one.name} were dropped"
        self._effects.append(Note("warning", f"{text}: it is away for too long"))

    def rows(self, now_ns: int) -> list[dict[str, Any]]:
        """For people."""
        found = []
        for one in self.all.values():
            size = self._waits(one)
            waiting = one.mailbox.next_sequence - 1 - one.confirmed
            waiting = min(waiting, one.mailbox.waiting)
            found.append(
                {
                    "node": one.name,
                    "journal": one.journal.hex(),
                    "mailbox": one.mailbox.name if one.target else "",
                    "waiting": waiting,
                    "bytes": size if waiting else 0,
                    "confirmed": one.confirmed,
                    "in_flight_bytes": one.in_flight,
                    "silent_s": (now_ns - one.progress_ns) // SECOND if waiting else 0,
                    "dropped": one.dropped,
                    "refused": self.refuses(one),
                }
            )
        return found


def _told(one: Consignment, first: int, count: int) -> dict[str, Any]:
    """What is said of messages that are for one mailbox: which, and how they were delivered."""
    returned, backs = one.mailbox.returned, []
    for place in range(count) if returned else ():
        back = returned.get(first + place)
        if back is not None:
            backs += [place, back.attempts, back.due_us]
    told = {"mailbox": one.target, "marked": one.mailbox.delivered}
    return {**told, "backs": tuple(backs)}


def _runs(data: bytes, runs: list[tuple[int, int]]) -> Iterator[tuple[int, memoryview]]:
    """What a reader put out: the first sequence and the frames of each run."""
    view = memoryview(data)
    for place, (first, count) in enumerate(runs):
        view = view[int.from_bytes(view[:4], "little") + 4 :]  # its transfer header
        end = len(view)
        if place < len(runs) - 1:
            end = 0
            for _ in range(count):
                end += int.from_bytes(view[end : end + 4], "little") + 4
        yield first, view[:end]
        view = view[end:]


def _fitting(frames: memoryview, room: int, most: int) -> tuple[int, int]:
    """How many whole frames fit, and their bytes; (0, 0) if not even the first one does."""
    count, size = count_messages(frames[:room])
    if count > most:
        count, size = most, 0
        for _ in range(most):
            size += int.from_bytes(frames[size : size + 4], "little") + 4
    return count, size
