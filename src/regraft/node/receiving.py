"""What begins at other nodes and this one has to keep, for its mailboxes and streams.

Rules:

- Of each journal elsewhere it is known, in this node's journal, how far its messages have come.
  That is written with the record that keeps them: a message counts as come exactly if it is kept.
- Messages are taken in order only. What is known is passed over; if something is missing, the other
  node is told, and begins anew.
- What is confirmed is persisted. If it cannot be kept now, it is not confirmed, and comes again.
- What counts together there counts together here: it is held in memory until the last of it has
  come, and kept as one group of records, or none of it is. It is not confirmed before. What all
  origins may have held here is bounded; who finds no room for a transaction tries again.
- What comes from a mailbox that has moved here is for one mailbox, with what is known of former
  deliveries. That is written down in one group with the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regraft.errors import PeerError
from regraft.journal import together
from regraft.journal.format import OriginHeard
from regraft.journal.journal import Journal
from regraft.journal.streams import Arrivals as Counted
from regraft.journal.streams import Mailbox
from regraft.kernels.arrivals import Arrivals
from regraft.kernels.keeper import Keeper
from regraft.kernels.lane import Lane, Source
from regraft.limits import Limits
from regraft.model.message import decode_envelope
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.wire import native, peers

FOREVER = 1 << 62
OWN = -1  # the key of no connection

# Planted bugs, for tests that must find them.
TAKEN_EARLY = "taken-early"  # confirm what is not persisted yet
SEQUENCES_LOST = "sequences-lost"  # forget what has come when the tree changes
SPLIT_CARRY = "split-carry"  # keep what counts together as it comes

HELD_NS = 5_000_000_000  # after which what is held makes room for others, if nothing more came

Answer = Callable[[bytes, peers.Taken, Now], bool]
Then = Callable[[Now], None]
Backs = list[tuple[int, int, int]]  # of messages that came back: which, attempts, not before
Run = tuple[int, int, int, int, int]  # first, last, attempts, not before, priority
Returned = Callable[[Mailbox, list[Run], int, Now], None]
WhenSafe = Callable[[Then, Now, Then | None], None]


class Some(NamedTuple):
    """Messages that have come, one behind the other."""

    frames: bytes
    messages: int
    gap: int  # sequences in front of them that are no more
    backs: Backs  # which of them were delivered before,
    marked: int  # or may have been: so many, from the first on


@dataclass(slots=True, eq=False)
class Origin:
    """What comes from one other journal."""

    journal: bytes
    counted: Counted
    arrivals: Arrivals
    safe: int  # persisted up to this sequence, as it is there
    part: bytearray = field(default_factory=bytearray)  # of a large message,
    part_of: int = 0  # which has this sequence
    full: bool = False  # it was said that something cannot be kept
    held: list[Some] = field(default_factory=list)  # what counts together with what is to come:
    held_count: int = 0  # messages,
    reserved: int = 0  # bytes, with what is to come,
    held_ns: int = 0  # and when the last of it came
    forgot: bool = False  # a planted bug


class Receiving:
    """All that comes from other journals."""

    def __init__(
        self,
        journal: Journal,
        lane: Lane,
        keeper: Keeper,
        effects: list[Effect],
        limits: Limits,
        when_safe: WhenSafe,
        answer: Answer,
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self._journal = journal
        self._lane = lane
        self._keeper = keeper
        self._effects = effects
        self._limits = limits
        self._when_safe = when_safe
        self._answer = answer
        self._own = bytes.fromhex(journal.state.journal_id)
        self.bugs = bugs
        self.all: dict[tuple[bytes, int], Origin] = {}  # by journal, and mailbox here or 0
        self.unexpected: Callable[[peers.Carried, Now], None] | None = None  # for no mailbox
        self.returned: Returned | None = None  # told of what was delivered before
        self.taken = 0  # messages,
        self.repeated = 0  # that had come before,
        self.missed = 0  # and that never will
        self._crowded = False
        for counted in journal.state.origins.values():
            self._have(counted)

    def _have(self, counted: Counted) -> Origin:
        target = self._target(counted)
        slot = target.slot if target is not None else -1
        arrivals = Arrivals(self._lane, self._keeper, Source(OWN), counted.slot, slot)
        safe = self._journal.recorder.next_sequence(counted.slot) + counted.shift - 1
        origin = Origin(bytes.fromhex(counted.journal), counted, arrivals, safe)
        self.all[origin.journal, counted.mailbox] = origin
        return origin

    def _target(self, counted: Counted) -> Mailbox | None:
        """The one mailbox that gets all of it, if it is so."""
        return self._journal.state.mailbox(counted.mailbox) if counted.mailbox else None

    def expect(self, journal: bytes, stream: int, first: int, mailbox: int, now: Now) -> Origin:
        """A mailbox of another node has moved here: what it hands over begins with this one."""
        number = self._journal.state.numbers
        heard = OriginHeard(number, journal.hex(), stream, first - 1, mailbox)
        self._journal.control(heard, now.wall_us)
        counted = self._journal.state.origins[f"{journal.hex()}/{mailbox}"]
        self._journal.give_slot(counted)
        return self._have(counted)

    def forget(self, mailbox: Mailbox) -> None:
        """It gets nothing more from there."""
        for key, origin in list(self.all.items()):
            if key[1] == mailbox.number:
                self._let_go(origin)
                del self.all[key]
                self._journal.free_slot(origin.counted)

    def linked(self) -> None:
        """The tree has changed."""
        if SEQUENCES_LOST in self.bugs:
            for origin in self.all.values():
                origin.forgot = True

    def carried(self, message: peers.Carried, now: Now) -> None:
        """Messages have come."""
        place = (message.stream >> 31, message.base >> 62, message.first >> 62, message.round >> 62)
        if (
            any(place)
            or message.joint >> 62
            or message.mailbox >> 31
            or message.marked >> 62
            or not message.stream
            or not message.first
            or len(message.journal) != 16
        ):
            raise PeerError("malformed-envelope", "messages of a journal that cannot be")
        origin = self.all.get((message.journal, message.mailbox))
        if message.mailbox and origin is None:
            if self.unexpected is not None:
                self.unexpected(message, now)
            return
        if origin is None or message.stream > origin.counted.stream:
            if message.base:  # the beginning was lost on the way
                missing = peers.Taken(self._own, message.stream, 0, message.round, True)
                self._answer(message.journal, missing, now)
                return
            origin = self._begin(message, now)
        if origin is None or message.stream < origin.counted.stream:
            return  # of another life
        expected = self._next(origin)
        if origin.forgot:
            self._let_go(origin)
            expected = message.first
            origin.forgot = False
        if message.base > expected:
            if not origin.full:  # or else it is too early to begin anew
                self._say(origin, message.round, True, now)
            return
        gap = message.first - expected
        if gap > 0 and message.mailbox and message.base and origin.held:
            expected = message.first  # some of what counts together was settled there
        elif gap > 0:  # what stood between is no more
            gap = 0
            self._let_go(origin)
            expected = self._next(origin)
            if not message.mailbox:  # or it was settled there
                self.missed += message.first - expected
            self._shift(origin, message.first - expected, now)
            expected = message.first
        frames = self._whole(origin, message) if message.total else message.frames
        if frames:
            skip = expected - message.first
            self._take(origin, frames, skip, max(gap, 0), message, now)

    def _next(self, origin: Origin) -> int:
        """The sequence, as it is there, of the next message that is not here."""
        return self._kept(origin) + sum(one.gap + one.messages for one in origin.held)

    def _kept(self, origin: Origin) -> int:
        """The same, of the next one that is not kept."""
        counted = origin.counted
        return self._journal.recorder.next_sequence(counted.slot) + counted.shift

    def _begin(self, message: peers.Carried, now: Now) -> Origin | None:
        """Somebody sends for the first time, or has begun anew after it had forgotten this node."""
        name = message.journal.hex()
        if self._journal.broken:
            return None
        known = self._journal.state.origins.get(name)
        if known is None and sum(not mailbox for _, mailbox in self.all) >= self._limits.homes:
            if not self._crowded:
                text = f"messages of more than {self._limits.homes} other nodes are not taken"
                self._effects.append(Note("error", f"{text} (limit homes)"))
            self._crowded = True
            return None
        if known is not None:
            self._journal.free_slot(known)
        number = self._journal.state.numbers
        heard = OriginHeard(number, name, message.stream, message.first - 1)
        self._journal.control(heard, now.wall_us)
        counted = self._journal.state.origins[name]
        self._journal.give_slot(counted)
        return self._have(counted)

    def _shift(self, origin: Origin, by: int, now: Now) -> None:
        counted = origin.counted
        shift = counted.shift + by
        about = (counted.number, counted.journal, counted.stream, shift, counted.mailbox)
        heard = OriginHeard(*about)
        self._journal.control(heard, now.wall_us)

    def _whole(self, origin: Origin, message: peers.Carried) -> bytes:
        """A message that came in parts, once the last of them is there."""
        most = self._limits.frame_bytes
        if message.offset == 0:
            origin.part, origin.part_of = bytearray(), message.first
        fits = message.first == origin.part_of and message.offset == len(origin.part)
        if not fits or message.total > most or len(origin.part) + len(message.frames) > most:
            origin.part_of = 0
            return b""
        origin.part += message.frames
        if len(origin.part) < message.total:
            return b""
        whole, origin.part = bytes(origin.part), bytearray()
        return whole

    def _take(
        self, origin: Origin, frames: bytes, skip: int, gap: int, message: peers.Carried, now: Now
    ) -> None:
        """Keep what is not known of these, or hold it until they can be kept."""
        try:
            count = origin.arrivals.check(frames)
        except ValueError as error:
            text = f"what came from journal {origin.journal.hex()[:8]} is not well formed: {error}"
            self._effects.append(Note("error", text))
            return
        self.repeated += min(skip, count)
        if skip >= count:
            self._say(origin, message.round, False, now)
            return
        joint = 0 if SPLIT_CARRY in self.bugs else message.joint
        last = message.first + count - 1
        for _ in range(skip):
            frames = frames[int.from_bytes(frames[:4], "little") + 4 :]
        marked = max(0, min(last, message.marked) - message.first + 1 - skip)
        some = Some(frames, count - skip, gap, _delivered(message, skip), marked)
        if not joint and not origin.held:
            self._keep(origin, some, message.round, now)
        elif self._hold(origin, some, message.joint_bytes, now):
            if last >= joint:
                self._keep_held(origin, message.round, now)
            else:
                self._say(origin, message.round, False, now)

    def _keep(
        self, origin: Origin, some: Some, round: int, now: Now, grouped: bool = False
    ) -> None:
        """Have messages recorded, and say so when they are safe; in order, as far as it goes."""
        target = self._target(origin.counted)
        if target is not None and (some.backs or some.marked) and not self._keeper.refusal:
            recorder = self._journal.recorder
            if not grouped:
                recorder.open_group(0, now.wall_us)
            taken = self._keep_delivered(origin, target, some, now)
            if not grouped:
                recorder.close_group(0)
        else:
            taken = origin.arrivals.take(some.frames, 0, now.wall_us)
        self.taken += taken
        self._is_full(origin, taken < some.messages)
        if taken == 0:
            return
        upto = self._kept(origin) - 1

        def safe(now: Now) -> None:
            if self.all.get((origin.journal, origin.counted.mailbox)) is origin:
                origin.safe = max(origin.safe, upto)
                self._say(origin, round, False, now)

        if TAKEN_EARLY in self.bugs:
            safe(now)
        else:
            self._when_safe(safe, now, None)

    def _keep_delivered(self, origin: Origin, target: Mailbox, some: Some, now: Now) -> int:
        """The same for what was delivered before, elsewhere; with that, or not at all."""
        first = self._journal.recorder.next_sequence(target.slot)
        taken = origin.arrivals.take(some.frames, 0, now.wall_us)
        envelopes = _envelopes(some.frames) if some.backs else []
        runs = [
            (first + place, first + place, n, due_us, decode_envelope(envelopes[place]).priority)
            for place, n, due_us in some.backs
            if place < taken
        ]
        reached = first + min(some.marked, taken) - 1
        if self.returned is not None and taken:
            self.returned(target, runs, reached if some.marked else 0, now)
        return taken

    def _is_full(self, origin: Origin, full: bool) -> None:
        if full and not origin.full and not self._journal.broken:
            text = "a mailbox here is full, or the disk: messages of other nodes have to wait"
            self._effects.append(Note("warning", text))
        origin.full = full

    # ---------------------------------------------------------------- what counts together

    def _hold(self, origin: Origin, some: Some, size: int, now: Now) -> bool:
        """Hold it until the rest has come; False if there is no room."""
        have = sum(len(one.frames) for one in origin.held) + len(some.frames)
        needed = max(origin.reserved, size, have)
        if needed > origin.reserved and not self._reserve(origin, needed, now):
            most = self._limits.transactions_bytes_total
            if needed > most and not origin.full:
                text = f"a transaction of another node has {needed} bytes, and is not taken: limit"
                self._effects.append(Note("error", f"{text} transactions_bytes_total is {most}"))
            self._let_go(origin)
            origin.full = True
            return False
        origin.held.append(some)
        origin.held_count += some.messages
        origin.held_ns = now.ns
        origin.full = False
        return True

    def _reserve(self, origin: Origin, size: int, now: Now) -> bool:
        """Have room for all of it, so that what has begun can be completed."""
        most = self._limits.transactions_bytes_total
        if size > most:
            return False
        others = [one for one in self.all.values() if one.reserved and one is not origin]
        if size + sum(one.reserved for one in others) > most:
            for one in others:
                if now.ns - one.held_ns >= HELD_NS:
                    self._let_go(one)
            if size + sum(one.reserved for one in others) > most:
                return False
        origin.reserved = size
        return True

    def _let_go(self, origin: Origin) -> None:
        """What is held comes again, from its beginning."""
        origin.held, origin.held_count, origin.reserved = [], 0, 0

    def _keep_held(self, origin: Origin, round: int, now: Now) -> None:
        """All of it is here: keep it as one, or not at all."""
        held, frames = origin.held, b"".join(some.frames for some in origin.held)
        self._let_go(origin)
        keeper, recorder = self._keeper, self._journal.recorder
        if keeper.refusal or origin.arrivals.full(frames, False, FOREVER) >= 0:
            self._is_full(origin, True)
            return
        begun = together.begin(self._journal, origin.arrivals.takers(frames))
        recorder.open_group(0, now.wall_us)
        if origin.counted.mailbox:
            for some in held:
                if some.gap:
                    self._shift(origin, some.gap, now)
                self._keep(origin, some, round, now, True)
        else:
            count = sum(some.messages for some in held)
            self._keep(origin, Some(frames, count, 0, [], 0), round, now, True)
        recorder.close_group(0)
        together.end(self._journal, begun)

    def confirm(self, origin: Origin, now: Now) -> None:
        """Say how far it has come."""
        self._say(origin, 0, False, now)

    def _say(self, origin: Origin, round: int, missing: bool, now: Now) -> None:
        stream = origin.counted.stream
        held = self._next(origin) - 1 if origin.held else 0
        said = peers.Taken(self._own, stream, max(origin.safe, 0), round, missing, held)
        self._answer(origin.journal, said, now)

    def rows(self) -> list[dict[str, Any]]:
        """For people."""
        return [
            {
                "journal": origin.journal.hex(),
                "mailbox": self._journal.state.mailbox(mailbox).name if mailbox else "",
                "came": self._next(origin) - 1,
                "persisted": origin.safe,
                "held": origin.held_count,
                "full": origin.full,
            }
            for (_, mailbox), origin in self.all.items()
        ]


def _delivered(message: peers.Carried, skip: int) -> Backs:
    """What is said of messages that were delivered before, but for the first ones."""
    told = zip(message.backs[::3], message.backs[1::3], message.backs[2::3], strict=False)
    return [
        (place - skip, attempts, due_us)
        for place, attempts, due_us in told
        if place >= skip and not (attempts >> 31 or due_us >> 62)
    ]


def _envelopes(frames: bytes) -> list[bytes]:
    """What is in each of these frames."""
    found, at = [], 0
    while at < len(frames):
        end = at + int.from_bytes(frames[at : at + 4], "little") + 4
        found.append(frames[at + native.HEADER_BYTES : end])
        at = end
    return found
