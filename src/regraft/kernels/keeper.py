"""Persistent messages between the lane and the disk.

The lane gives each run of them to the `Keeper`, which has it recorded for the streams that take it.
There it waits until the node says up to where the journal is safe; only then is it handed to live
subscribers, and only then is its publisher told. What nobody keeps waits its turn, too, so that the
messages of a publisher keep their order.

What comes from another node waits for nothing: it was safe there before it came. If it was kept
there, that node sees to it that mailboxes elsewhere get it, by another way (`arrivals`). If it was
not, but is to be here, it is recorded for the streams of this node, if they can take it, and goes
its way whether they can or not. Streams that are *away* stand for other nodes and their mailboxes:
they get only what begins here.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from collections import deque
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints
    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.frame import cut
    from regraft.kernels.outlet import Outlet, Route
    from regraft.kernels.records import Recorder

    RECORD = 48  # bytes of a record's header,
    TAKER = 12  # and of each stream in its meta


class Kept:
    """A run that waits for the disk."""

    def __init__(self, source: Any, route: Route | None, ordinal: int, count: int) -> None:
        self.source = source
        self.route = route
        self.ordinal = ordinal  # of its last message
        self.count = count
        self.stream = b""  # where it came from, for other nodes,
        self.first = 0  # and its place there
        self.known = False
        self.until = 0  # the position that has to be safe
        self.at = 0  # where its frames begin: a position, or 0 in `data`
        self.size = 0
        self.expiration = 0
        self.data: bytes | None = None  # of a run that is in no record


class Keeper:
    """Runs of persistent messages that are not safe yet."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.run_bytes_max = recorder.segment_bytes // 4  # a record must fit into a segment
        self.refusal = 0  # an error code, while nothing is taken
        self.full = Ints()  # per slot: whether its mailbox takes no more
        self.full_count = 0
        self.away = Ints()  # per slot: whether it stands for another node
        self.away_count = 0
        self.settles = 0  # a stream: the next run that is recorded settles its message
        self.sequence_settled = 0  # with this sequence
        self.delayed: list[tuple[int, int, int, bytes, int]] = []  # due, sequence, id, topic, size
        self.waiting: deque[Kept] = deque()
        self.dirty: list[Outlet] = []
        self.confirmed: list[tuple[int, int, int, bool]] = []  # ordinal, count, takers, known
        self.kept = 0  # messages recorded,
        self.repeated = 0  # and published before
        self.deliveries = 0
        self.delivered = 0  # bytes
        self.forwarded = 0  # to other nodes
        self.untaken = 0

    def set_full(self, slot: int, full: bool) -> None:
        """A mailbox takes no more, or takes more again."""
        self.full.reserve(slot + 1)
        if self.full.n <= slot:
            self.full.n = slot + 1
        if self.full.a[slot] != full:
            self.full.a[slot] = full
            self.full_count += 1 if full else -1

    def set_away(self, slot: int, away: bool) -> None:
        """A slot stands for another node, or does no more."""
        self.away.reserve(slot + 1)
        if self.away.n <= slot:
            self.away.n = slot + 1
        if self.away.a[slot] != away:
            self.away.a[slot] = away
            self.away_count += 1 if away else -1

    def here(self, slots: Ints) -> Ints:
        """Those of the slots that stand for streams of this node."""
        if self.away_count == 0:
            return slots
        found = Ints()
        for k in range(slots.n):
            slot = slots.a[k]
            if slot >= self.away.n or not self.away.a[slot]:
                found.push(slot)
        return found

    def is_full(self, slots: Ints) -> bool:
        """Whether one of these mailboxes takes no more."""
        for k in range(slots.n):
            slot = slots.a[k]
            if slot < self.full.n and self.full.a[slot]:
                return True
        return False

    def keep(
        self,
        source: Any,
        route: Route,
        p: Any,
        start: int,
        end: int,
        count: int,
        ordinal: int,
        expiration: int,
        now_us: int,
        priority: int,
        stream: bytes,
        first: int,
    ) -> bool:
        """Take the run p[start:end] of `count` messages."""
        kept = Kept(source, route, ordinal, count)
        kept.stream = stream
        kept.first = first
        kept.size = end - start
        kept.expiration = expiration
        streams = route.slots.n
        if streams:
            settles = self.settles
            kept.until = self.recorder.append_run(
                p,
                start,
                end,
                count,
                source.publisher,
                route.slots,
                now_us,
                priority,
                settles,
                self.sequence_settled,
            )
            self.settles = 0
            head = RECORD + TAKER * (streams + (1 if settles > 0 else 0))
            kept.at = kept.until - ((head + kept.size + 7) & ~7) + head
            self.kept += count
        else:
            kept.until = self.last_until()
            kept.data = cut(p, start, end) if route.outlets else b""
            if not route.outlets:
                self.untaken += count
        self.waiting.append(kept)
        return True

    def record(
        self, route: Route, p: Any, start: int, end: int, count: int, now_us: int, priority: int
    ) -> bool:
        """Take a run from another node, where it is safe: nobody waits for it here.

        Whether the streams of this node have it; if not, nobody else need go without it.
        """
        slots = self.here(route.slots)
        if slots.n == 0:
            return True
        if self.refusal or (self.full_count and self.is_full(slots)):
            return False
        self.recorder.append_run(p, start, end, count, 0, slots, now_us, priority, 0, 0)
        self.kept += count
        return True

    def note(self, source: Any, ordinal: int, known: bool) -> bool:
        """A message goes nowhere. If it was published before, that has to be safe, too."""
        kept = Kept(source, None, ordinal, 1)
        kept.known = known
        if known:
            self.repeated += 1
            kept.until = self.recorder.position
        else:
            kept.until = self.last_until()
        self.waiting.append(kept)
        return True

    def last_until(self) -> int:
        """What the last of those who wait waits for."""
        if not self.waiting:
            return 0
        last: Kept = self.waiting[len(self.waiting) - 1]
        return last.until

    def release(self, safe: int, chunk: Any, base: int) -> Any:
        """Hand on the runs of one source that are safe; the source, or None if there is no more.

        `chunk` holds the bytes of the journal from position `base` on in which they stand. What
        outlets gathered and what is confirmed is fetched before the next call.
        """
        source = None
        view = memoryview(chunk)
        p = pointer_to(view)
        while self.waiting:
            kept: Kept = self.waiting[0]
            if kept.until > safe or (source is not None and kept.source is not source):
                break
            source = kept.source
            self.waiting.popleft()
            takers = 0
            if kept.route is not None:
                takers = len(kept.route.outlets) + kept.route.slots.n
                if kept.data is None:
                    self.hand_on(kept, view, p, kept.at - base)
                elif kept.data:
                    own = memoryview(kept.data)
                    self.hand_on(kept, own, pointer_to(own), 0)
            self.confirm(kept.ordinal, kept.count, takers, kept.known)
        return source

    def hand_on(self, kept: Kept, view: Any, p: Any, start: int) -> bool:
        """Give a run to its live takers."""
        route = kept.route
        if route is None:
            return False
        for k in range(len(route.outlets)):
            outlet: Outlet = route.outlets[k]
            if outlet.link:
                if outlet is kept.source.outlet or outlet.muted:
                    continue
                self.forwarded += kept.count
            else:
                self.deliveries += kept.count
                self.delivered += kept.size
            if not outlet.dirty:
                outlet.dirty = True
                self.dirty.append(outlet)
            outlet.append(
                view,
                p,
                start,
                start + kept.size,
                kept.stream if outlet.link else route.subscriptions[k],
                kept.count,
                kept.expiration,
                kept.first,
            )
        return True

    def confirm(self, ordinal: int, count: int, takers: int, known: bool) -> bool:
        """Note a confirmation; neighbours with the same takers are one."""
        if self.confirmed:
            last, before, same, was_known = self.confirmed[len(self.confirmed) - 1]
            if same == takers and was_known == known and last + count == ordinal:
                self.confirmed[len(self.confirmed) - 1] = (ordinal, before + count, takers, known)
                return True
        self.confirmed.append((ordinal, count, takers, known))
        return True

    def abandon(self) -> list[tuple[Any, int, int]]:
        """Nothing that waits will ever be safe: its source, first ordinal and count, each."""
        lost = []
        while self.waiting:
            kept: Kept = self.waiting.popleft()
            lost.append((kept.source, kept.ordinal - kept.count + 1, kept.count))
        return lost

    def take_dirty(self) -> list[Outlet]:
        """The outlets that got something since the last call."""
        dirty = self.dirty
        self.dirty = []
        return dirty

    def take_confirmed(self) -> list[tuple[int, int, int, bool]]:
        """What is safe since the last call: ordinal of the last, count, takers, known before."""
        confirmed = self.confirmed
        self.confirmed = []
        return confirmed
