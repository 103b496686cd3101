"""Persistent messages that another node keeps until this one does: recording them.

They come in batches, in the order in which they were kept there. Each is matched as if it had been
published here, but it goes to streams of this node only: whoever is live has got it by another way,
and other nodes get it from where it began. All of them count in the stream of their origin, with
the very record that keeps them, so that one that comes again is known. What is handed over by a
mailbox that has moved here is for one mailbox, and is not matched.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints
    from regraft.kernels.checksum import crc32c_at, pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import HEADER, MESSAGE, cut, u32
    from regraft.kernels.keeper import Keeper
    from regraft.kernels.lane import Lane, Source
    from regraft.kernels.outlet import Route, is_topic
    from regraft.kernels.takers import Choice

WAYS_MAX = 4096  # sets of streams that are remembered


class Arrivals:
    """Records what comes from one other node."""

    def __init__(
        self, lane: Lane, keeper: Keeper, source: Source, slot: int, target: int = -1
    ) -> None:
        self.lane = lane
        self.keeper = keeper
        self.source = source
        self.slot = slot  # of the stream in which all of it counts
        self.scan = Scan()
        self.ways: dict[Route, Ints] = {}
        self.nowhere = Ints()
        self.nowhere.push(slot)
        self.generation = -1
        self.taken = 0
        self.fixed: Ints | None = None  # the same and the one that gets all of it
        if target >= 0:
            self.fixed = Ints()
            self.fixed.push(slot)
            self.fixed.push(target)

    def check(self, view: Any) -> int:
        """How many messages there are in `view`; ValueError unless it is nothing but these."""
        p = pointer_to(view)
        n = len(view)
        pos = 0
        count = 0
        while pos < n:
            size = 0
            if n - pos >= HEADER:
                size = u32(p, pos) + 4
            if size < HEADER or size > n - pos or p[pos + 4] != MESSAGE:
                raise ValueError(f"no whole message stands at {pos}")
            if crc32c_at(p, pos + HEADER, pos + size) != u32(p, pos + 8):
                raise ValueError(f"the message at {pos} is damaged")
            if self.scan.scan(p, pos + HEADER, pos + size):
                raise ValueError(f"the message at {pos} is not well formed")
            pos += size
            count += 1
        return count

    def full(self, view: Any, all: bool, until_us: int) -> int:
        """The slot of a stream that cannot take its part of `view`, which was checked; or -1.

        Of streams that stand for other nodes, too, if `all`. What is to be published later than
        `until_us` is for none of them yet.
        """
        p = pointer_to(view)
        n = len(view)
        pos = 0
        keeper = self.keeper
        if keeper.full_count == 0:
            return -1
        self.renew()
        while pos < n:
            end = pos + 4 + u32(p, pos)
            self.scan.scan(p, pos + HEADER, end)
            if self.fixed is not None:
                return self.fixed.a[1] if keeper.is_full(self.fixed) else -1
            if self.scan.deliver_at <= until_us:
                kept = self.kept(p, pos, end)
                if kept is not None:
                    slots = kept.slots if all else keeper.here(kept.slots)
                    for k in range(slots.n):
                        slot = slots.a[k]
                        if slot < keeper.full.n and keeper.full.a[slot]:
                            return slot
            pos = end
        return -1

    def takers(self, view: Any) -> set[int]:
        """The slots of the streams that take something of `view`, which was checked."""
        p = pointer_to(view)
        n = len(view)
        pos = 0
        found: set[int] = set()
        last: Route | None = None
        self.renew()
        while pos < n:
            end = pos + 4 + u32(p, pos)
            slots = self.fixed
            if slots is None:
                self.scan.scan(p, pos + HEADER, end)
                kept = self.kept(p, pos, end)
                if kept is not None and kept is not last:
                    last = kept
                    slots = kept.slots
            if slots is not None:
                for k in range(slots.n):
                    found.add(slots.a[k])
            pos = end
        return found

    def renew(self) -> None:
        """Somebody may have subscribed since."""
        if self.generation != self.lane.generation:
            self.generation = self.lane.generation
            self.ways.clear()
        if self.source.generation != self.lane.generation:
            self.source.generation = self.lane.generation
            self.source.routes.clear()
            self.source.route = None

    def take(self, view: Any, skip: int, now_us: int) -> int:
        """Record the messages in `view`, which was checked, but for the first; how many it took.

        It takes fewer than there are if one of them cannot be kept now.
        """
        p = pointer_to(view)
        n = len(view)
        pos = 0
        start = 0
        count = 0
        priority = 0
        slots: Ints | None = None
        self.taken = 0
        self.renew()
        while pos < n:
            end = pos + 4 + u32(p, pos)
            if skip > 0:
                skip -= 1
                pos = end
                continue
            self.scan.scan(p, pos + HEADER, end)
            way = self.way(p, pos, end)
            if (
                way is not slots
                or self.scan.priority != priority
                or pos - start >= self.keeper.run_bytes_max
            ):
                if slots is not None and not self.record(
                    p, start, pos, count, slots, now_us, priority
                ):
                    return self.taken
                slots = way
                priority = self.scan.priority
                start = pos
                count = 0
            count += 1
            pos = end
        if slots is not None:
            self.record(p, start, pos, count, slots, now_us, priority)
        return self.taken

    def kept(self, p: Any, pos: int, end: int) -> Route | None:
        """The route that the message just scanned has to streams; None: there is none."""
        source = self.source
        lane = self.lane
        scan = self.scan
        if scan.special & 2:
            topic = b""
            lane.scan.scan(p, pos + HEADER, end)
            route = lane.addressed(source, p)
        elif source.route is None or not is_topic(source.topic, p, scan.topic_at, scan.topic_end):
            topic = cut(p, scan.topic_at, scan.topic_end)
            found = source.routes.get(topic)
            route = lane.look_up(source, topic) if found is None else found
            source.topic = topic
            source.route = route
        else:
            route = source.route
        if route.choice is not None:
            choice: Choice = route.choice
            route = choice.decide(scan, p, pos + HEADER, end, 0)
        return route.kept

    def way(self, p: Any, pos: int, end: int) -> Ints:
        """The streams that get the message just scanned."""
        if self.fixed is not None:
            return self.fixed
        kept = self.kept(p, pos, end)
        if kept is None:
            return self.nowhere
        slots = self.ways.get(kept)
        if slots is None:
            here = self.keeper.here(kept.slots)
            slots = Ints()
            slots.push(self.slot)
            for k in range(here.n):
                slots.push(here.a[k])
            if len(self.ways) >= WAYS_MAX:
                self.ways.clear()
            self.ways[kept] = slots
        return slots

    def record(
        self, p: Any, start: int, end: int, count: int, slots: Ints, now_us: int, priority: int
    ) -> bool:
        """Have a run recorded; False if that cannot be."""
        keeper = self.keeper
        if keeper.refusal or (keeper.full_count and keeper.is_full(slots)):
            return False
        keeper.recorder.append_run(p, start, end, count, 0, slots, now_us, priority, 0, 0)
        keeper.kept += count
        self.taken += count
        return True
