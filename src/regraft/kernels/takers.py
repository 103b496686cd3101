"""Who takes what the index finds: the subscriptions of each filter, and the routes they make.

A `Choice` stands behind a topic for which selectors have to be looked at: it asks the index about
each message, and finds the route for those that hold. The same answers have the same route, so that
the lane can join neighbouring messages to one run.
"""

from __future__ import annotations

from typing import Any

from regraft.model.varint import write_varint

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs
    from regraft.kernels.envelope import Scan
    from regraft.kernels.matching import HERE, Index
    from regraft.kernels.outlet import Outlet, Route

    def same(a: Ints, b: Ints) -> bool:
        """Whether two arrays are equal."""
        return a.n == b.n and a.a[: a.n] == b.a[: b.n]

    def as_bytes(a: Ints) -> bytes:
        """An array as bytes."""
        return b"".join(value.to_bytes(4, "little") for value in a.a[: a.n])


LINK_BITS = 62  # links that have a bit of their own
NO_IDS = b""  # of a link: what the other node does with it is its own business
ENCODED_MAX = 65536  # lists of subscriptions that are kept encoded
PASSING = 1 << 32  # in an id: takes messages that are not persistent only


class Takers:
    """Subscriptions: which outlet has which filter, under which id."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.outlets: list[Any] = []  # an Outlet each, or None
        self.free_outlets: list[int] = []
        self.first = Ints()  # per filter: its first subscription + 1, or 0
        self.records = Ints()  # per subscription: filter, outlet, the one after, the one before
        self.ids = Longs()
        self.free = Ints()
        self.count = 0
        self.generation = 0  # grows when anything changes
        self.stamp = Longs()  # per outlet: the last round in which it was met
        self.place = Ints()  # and its place in that
        self.round = 0
        self.encoded: dict[Any, bytes] = {}
        self.routes: dict[Any, Route] = {}  # by their takers, so that equal ones are one
        self.routes_generation = -1

    def admit(self, outlet: Outlet) -> int:
        """A number for an outlet."""
        if self.free_outlets:
            number = self.free_outlets.pop()
            self.outlets[number] = outlet
        else:
            number = len(self.outlets)
            self.outlets.append(outlet)
            self.stamp.push(0)
            self.place.push(0)
        return number

    def link(self, outlet: Outlet) -> bool:
        """An outlet leads to another node; the first 62 of those have a bit of their own.

        The others share one that is never set: they are found like anybody here.
        """
        outlet.link = True
        used = 0
        for other in self.outlets:
            if other is not None and other.link:
                used |= other.bit
        one = 1
        for _ in range(LINK_BITS):
            if not used & one:
                outlet.bit = one
                break
            one <<= 1
        return True

    def links_of(self, filter: int) -> int:
        """Who wants a filter, as the index wants to know it."""
        bits = 0
        number = self.first.a[filter] - 1
        while number >= 0:
            outlet: Outlet = self.outlets[self.records.a[number * 4 + 1]]
            if not outlet.gone:
                if outlet.bit == 0:
                    return HERE
                bits |= outlet.bit
            number = self.records.a[number * 4 + 2]
        return bits

    def bits_of(self, filter: int) -> int:
        """The bits of the links that want a filter, whoever else does."""
        bits = 0
        number = self.first.a[filter] - 1
        while number >= 0:
            outlet: Outlet = self.outlets[self.records.a[number * 4 + 1]]
            bits |= outlet.bit
            number = self.records.a[number * 4 + 2]
        return bits

    def silence(self, number: int) -> None:
        """An outlet takes nothing any more; its number and its bit stay its own until `dismiss`."""
        outlet: Outlet = self.outlets[number]
        outlet.gone = True
        self.generation += 1

    def dismiss(self, number: int) -> None:
        """An outlet that has no subscriptions any more is gone."""
        self.outlets[number] = None
        self.free_outlets.append(number)

    def add(self, filter: int, outlet: int, id: int) -> int:
        """An outlet has a filter, under an id; the number of this subscription."""
        if self.free.n:
            self.free.n -= 1
            number = self.free.a[self.free.n]
        else:
            number = self.ids.n
            self.ids.push(0)
            self.records.reserve((number + 1) * 4)
        self.first.reserve(filter + 1)
        after = self.first.a[filter] - 1
        self.ids.a[number] = id
        records = self.records.a
        records[number * 4] = filter
        records[number * 4 + 1] = outlet
        records[number * 4 + 2] = after
        records[number * 4 + 3] = -1
        if after >= 0:
            records[after * 4 + 3] = number
        self.first.a[filter] = number + 1
        self.count += 1
        self.generation += 1
        return number

    def remove(self, number: int) -> int:
        """A subscription ends; its filter."""
        records = self.records.a
        filter = records[number * 4]
        after = records[number * 4 + 2]
        before = records[number * 4 + 3]
        if before >= 0:
            records[before * 4 + 2] = after
        else:
            self.first.a[filter] = after + 1
        if after >= 0:
            records[after * 4 + 3] = before
        self.free.push(number)
        self.count -= 1
        self.generation += 1
        return filter

    def filter_of(self, number: int) -> int:
        """The filter of a subscription."""
        return self.records.a[number * 4]

    def having(self, filter: int, most: int) -> tuple[list[tuple[Outlet, int]], int]:
        """Who has a filter, under which id: all links and so many others; how many are left out."""
        found: list[tuple[Outlet, int]] = []
        left_out = 0
        number = self.first.a[filter] - 1
        while number >= 0:
            outlet: Outlet = self.outlets[self.records.a[number * 4 + 1]]
            if not outlet.gone:
                if outlet.link or len(found) < most:
                    found.append((outlet, self.ids.a[number]))
                else:
                    left_out += 1
            number = self.records.a[number * 4 + 2]
        return found, left_out

    def route(self, fixed: Ints, hits: Ints) -> Route:
        """The route to all who have one of these filters."""
        self.round += 1
        outlets: list[Outlet] = []
        ids: list[list[int]] = []
        self.collect(fixed, outlets, ids)
        self.collect(hits, outlets, ids)
        passing: list[tuple[Outlet, bytes]] = []
        kept: list[tuple[Outlet, bytes]] = []
        slots: list[int] = []
        groups: list[Any] = []
        for k in range(len(ids)):
            outlet = outlets[k]
            if outlet.group is not None:
                groups.append(outlet.group)
                continue
            if outlet.slot >= 0:
                slots.append(outlet.slot)
                continue
            if outlet.link:
                passing.append((outlet, NO_IDS))
                kept.append((outlet, NO_IDS))
                continue
            live = [id for id in ids[k] if id < PASSING]
            encoded = self.encode([id & 0xFFFFFFFF for id in ids[k]])
            passing.append((outlet, encoded))
            if len(live) == len(ids[k]):
                kept.append((outlet, encoded))
            elif live:
                kept.append((outlet, self.encode(live)))
        return self.once(passing, kept, slots, groups)

    def once(
        self,
        passing: list[tuple[Outlet, bytes]],
        kept: list[tuple[Outlet, bytes]],
        slots: list[int],
        groups: list[Any],
    ) -> Route:
        """The route to these takers, one object for the same ones: the lane compares by it."""
        if self.routes_generation != self.generation or len(self.routes) >= ENCODED_MAX:
            self.routes_generation = self.generation
            self.routes.clear()
        key = (tuple(passing), tuple(kept), tuple(slots), tuple(groups))
        route = self.routes.get(key)
        if route is None:
            route = self.routes[key] = Route(passing)
            route.kept = self.kept(kept, slots)
            if groups:
                route.groups = groups
        return route

    def kept(self, takers: list[tuple[Outlet, bytes]], slots: list[int]) -> Route:
        """The route for messages that are persistent."""
        route = Route(takers)
        route.waits = True
        slots.sort()
        for slot in slots:
            route.slots.push(slot)
        return route

    def collect(self, filters: Ints, outlets: list[Outlet], ids: list[list[int]]) -> None:
        """The ids of these filters' subscriptions, by outlet."""
        records = self.records.a
        for k in range(filters.n):
            number = self.first.a[filters.a[k]] - 1
            while number >= 0:
                outlet = records[number * 4 + 1]
                if self.stamp.a[outlet] != self.round:
                    self.stamp.a[outlet] = self.round
                    self.place.a[outlet] = -1
                    taker: Outlet = self.outlets[outlet]
                    if not taker.gone:
                        self.place.a[outlet] = len(ids)
                        outlets.append(taker)
                        ids.append([])
                if self.place.a[outlet] >= 0:
                    ids[self.place.a[outlet]].append(self.ids.a[number])
                number = records[number * 4 + 2]

    def encode(self, ids: list[int]) -> bytes:
        """Field 2 of a transfer header, one object for the same ids: the lane compares by it."""
        if len(ids) > 1:
            ids.sort()
        key = tuple(ids)
        encoded = self.encoded.get(key)
        if encoded is None:
            if len(self.encoded) >= ENCODED_MAX:
                self.encoded.clear()
            packed = b"".join(map(write_varint, ids))
            encoded = self.encoded[key] = b"\x12" + write_varint(len(packed)) + packed
        return encoded


class Choice:
    """What is behind a topic: filters that need no look, and patterns of those that do."""

    def __init__(
        self, takers: Takers, fixed: list[int], patterns: list[int], variants_max: int
    ) -> None:
        self.takers = takers
        self.index = takers.index
        self.fixed = Ints()
        for filter in fixed:
            self.fixed.push(filter)
        self.patterns = Ints()
        for pattern in patterns:
            self.patterns.push(pattern)
        self.variants_max = variants_max
        self.variants: dict[bytes, Route] = {}
        self.reached = 0  # bits of the links that need no look
        self.generation = -1
        self.last = Ints()
        self.last_route: Route | None = None

    def route(self) -> Route:
        """The route if no message need be looked at."""
        return self.takers.route(self.fixed, self.last)

    def decide(self, scan: Scan, p: Any, start: int, end: int, reached: int) -> Route:
        """The route of a message; links in `reached` need not be found."""
        if self.generation != self.takers.generation:
            self.refresh()
        self.index.find(scan, p, start, end, self.patterns, reached | self.reached)
        if self.last_route is not None and same(self.index.hits, self.last):
            return self.last_route
        return self.look_up(self.index.hits)

    def refresh(self) -> bool:
        """Somebody came or went: nothing that was made is good any more."""
        self.generation = self.takers.generation
        self.variants.clear()
        self.last_route = None
        self.reached = 0
        for k in range(self.fixed.n):
            self.reached |= self.takers.bits_of(self.fixed.a[k])
        return True

    def look_up(self, hits: Ints) -> Route:
        """The route for what was found, made once."""
        key = as_bytes(hits)
        route = self.variants.get(key)
        if route is None:
            if len(self.variants) >= self.variants_max:
                self.variants.clear()
            route = self.variants[key] = self.takers.route(self.fixed, hits)
        self.last.n = 0
        for k in range(hits.n):
            self.last.push(hits.a[k])
        self.last_route = route
        return route
