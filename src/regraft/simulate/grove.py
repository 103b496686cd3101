"""A tree in which links take the place of others: the routing of nodes, and nothing else of them.

There are no bytes, connections and overlays here, so that a thousand nodes are no trouble and any
link may replace any other. What routes is the real thing: each *site* has the `Forwarding` and the
`Grafting` of a node. A link has two *ways*, each of them in order; how long something takes, and
when an end notices what happened, is up to the seed.

Rules:

- The links are a tree, but for the time between the loss of one and its replacement. A link that
  was lost between A and B is replaced by one between somebody on A's side and somebody on B's.
- *Known* substitutions tell the ends of both links the path, as an overlay can that plans them.
  *Repairs* tell nobody: one end of the lost link has the new one and leads, as orphans do.
- A subscription or unsubscription of one filter is one message; so is everything that `Grafting`
  says, whatever it lists.
- Events are routed by the tables as they are when the event comes by.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from regraft.routing.advertisements import Advertising
from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL, WORK_MAX, Forwarding
from regraft.routing.grafting import NO_PATH, Grafting, Path
from regraft.routing.messages import Heeded, Message, Numbered
from regraft.routing.reconfiguration import PROTOCOLS, DeferredTimed
from regraft.simulate.checkers import Complaint, canonical, overlaps, same

MS = 1_000_000
FAR_NS = 20_000 * MS  # what is due later does not matter here


@dataclass(slots=True)
class Setting:
    """What a grove is like."""

    protocol: str = "reconfiguration-path"
    covering: bool = False
    delay_ms: int = 3000
    latency_ms: tuple[float, float] = (1.0, 5.0)
    notice_ms: float = 0.0  # until an end notices that a link is lost or there, at most
    work_max: int = WORK_MAX
    bugs: frozenset[str] = frozenset()
    advertisements: bool = False  # interests go only where something overlapping is offered


@dataclass(slots=True, eq=False)
class Way:
    """One direction of a link."""

    source: Site
    target: Site
    key: int  # of the link, at the source
    far_key: int
    rid: bytes  # of the link
    back: Way = field(init=False)
    alive: bool = True
    joined: bool = False  # the source knows of it
    left: bool = False  # and that it is no more
    queue: deque[tuple[int, Any]] = field(default_factory=deque)  # when it arrives, and what
    last_ns: int = 0


@dataclass(slots=True, eq=False)
class Site:
    """A node, as far as it routes."""

    number: int
    name: bytes
    forwarding: Forwarding
    grafting: Grafting
    ways: dict[int, Way] = field(default_factory=dict)  # by key, while it knows of them
    alive: dict[int, Way] = field(default_factory=dict)  # while they are there
    local: Counter[Filter] = field(default_factory=Counter)
    due_ns: int = -1
    advertising: Advertising | None = None
    offers: Counter[Filter] = field(default_factory=Counter)
    unheeded: dict[int, Callable[[], None]] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """What was said, by whom, and when last; since somebody began to count."""

    said: Counter[str] = field(default_factory=Counter)
    touched: set[int] = field(default_factory=set)
    on_link: Counter[tuple[int, int]] = field(default_factory=Counter)  # messages, from and to
    listed: int = 0  # filters in messages of protocols
    last_ns: int = 0
    events: int = 0  # deliveries that were due
    lost: int = 0
    repeated: int = 0

    @property
    def messages(self) -> int:
        """All of them."""
        return self.said.total()


class Grove:
    """Sites, the links between them, and what happens."""

    def __init__(self, seed: int, nodes: int, setting: Setting, degree: int = 4) -> None:
        self.random = Random(f"grove {seed}")
        self.setting = setting
        self.now = 0
        self.record = Record()
        self.tell: Callable[[str], None] | None = None
        self._last_key = 0
        self._last_event = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._owed: dict[tuple[int, int], int] = {}  # by event and site
        self.sites = [self.site(number) for number in range(nodes)]
        for site in self.sites[1:]:
            open_to = [one for one in self.sites[: site.number] if len(one.alive) < degree]
            self.link(self.random.choice(open_to).number, site.number)

    def site(self, number: int) -> Site:
        """A site that has no link yet; it has to be among `sites`."""
        setting = self.setting
        name = setting.protocol
        if name == "mixed":
            name = self.random.choice(sorted(PROTOCOLS))
        protocol = PROTOCOLS[name](setting.delay_ms)
        how = (setting.covering, setting.work_max, setting.bugs)
        forwarding = Forwarding(protocol, *how)
        id = Random(f"id {number}").randbytes(16)
        nothing: Callable[[int, Any], None] = lambda key, some: None  # noqa: E731
        grafting = Grafting(id, forwarding, protocol, nothing, nothing, setting.bugs)
        site = Site(number, id, forwarding, grafting)
        if setting.advertisements:
            offers = Forwarding(DeferredTimed(setting.delay_ms), *how)
            site.advertising = Advertising(offers, forwarding, setting.bugs)
            grafting.advertising = site.advertising
        return site

    # ------------------------------------------------------------------------- time

    def after(self, ns: int, what: Callable[[], None]) -> None:
        """Let something happen, in a while."""
        self._count += 1
        heappush(self._heap, (self.now + ns, self._count, what))

    def run(self, until_ns: int | None = None) -> None:
        """Let everything happen until then, or until nothing does any more."""
        while self._heap and (until_ns is None or self._heap[0][0] <= until_ns):
            ns, _, what = heappop(self._heap)
            self.now = max(self.now, ns)
            what()
        if until_ns is not None:
            self.now = max(self.now, until_ns)

    def _soon(self) -> int:
        return int(self.random.uniform(0, self.setting.notice_ms) * MS)

    def _wake(self, site: Site, ns: int) -> None:
        if site.due_ns < 0 or ns < site.due_ns:
            site.due_ns = ns
            self.after(ns - self.now, partial(self._work, site, ns))

    def _work(self, site: Site, ns: int) -> None:
        if site.due_ns != ns:
            return
        site.due_ns = -1
        site.grafting.tick(self.now)
        if site.advertising is not None:
            self._offer(site, site.advertising)
        for key, adds, removes, synced in site.forwarding.announce(self.now):
            if adds or removes:
                self._send(site.ways[key], (adds, removes), len(adds), len(removes))
            if synced:
                self._send(site.ways[key], None)
        for key, message in site.forwarding.said():
            self.record.said[type(message).__name__.lower()] += 1
            self.record.listed += sum(map(_listed, message))
            self._send(site.ways[key], message)
        self._look(site)

    def _offer(self, site: Site, advertising: Advertising) -> None:
        for key, adds, removes, synced in advertising.announce(self.now):
            self.record.said["offer"] += len(adds)
            self.record.said["withdraw"] += len(removes)
            self._send(site.ways[key], Offered(adds, removes, synced))
        for number in advertising.ready():
            site.unheeded.pop(number)()

    def _look(self, site: Site) -> None:
        times = [site.forwarding.next_ns, site.grafting.next_ns]
        if site.advertising is not None:
            times.append(site.advertising.next_ns)
        ns = min((time for time in times if time is not None), default=None)
        if ns is not None and ns <= self.now + FAR_NS:
            self._wake(site, max(ns, self.now))

    # ------------------------------------------------------------------------ wires

    def _send(self, way: Way, what: Any, adds: int = 0, removes: int = 0) -> None:
        if adds:
            self.record.said["subscribe"] += adds
        if removes:
            self.record.said["unsubscribe"] += removes
        if what is not None and type(what) is not Event:
            self.record.touched.add(way.source.number)
            self.record.on_link[way.source.number, way.target.number] += adds + removes or 1
            if self.tell is not None:
                self.tell(f"{self.now / MS:9.2f}  {way.source.number}>{way.target.number} {what}")
        if way.alive:
            delay = int(self.random.uniform(*self.setting.latency_ms) * MS)
            way.last_ns = max(self.now + delay, way.last_ns)
            way.queue.append((way.last_ns, what))
            self.after(way.last_ns - self.now, partial(self._arrive, way))

    def _arrive(self, way: Way) -> None:
        if not way.alive or not way.back.joined:
            return
        while way.queue and way.queue[0][0] <= self.now:
            _, what = way.queue.popleft()
            self._hear(way.target, way.far_key, what)

    def _hear(self, site: Site, key: int, what: Any) -> None:
        if type(what) is Event:
            self._route(site, key, what)
            return
        if what is None:
            site.grafting.complete(key, self.now)
        else:
            self.record.touched.add(site.number)
            self.record.last_ns = self.now
            if type(what) is tuple:
                site.forwarding.received(key, *what)
            elif type(what) is Offered and site.advertising is not None:
                site.advertising.heard(key, *what)
            elif type(what) is Heeded and site.advertising is not None:
                site.advertising.heeded(key, what.number)
            else:
                message: Message = what
                site.grafting.heard(key, message, self.now)
        self._wake(site, self.now)

    # ------------------------------------------------------------------------ links

    def link(
        self,
        one: int,
        other: int,
        rid: bytes = b"",
        path: Path = NO_PATH,
        leading: int = -1,
    ) -> None:
        """There is a link; its ends get to know it, each in a while."""
        a, b = self.sites[one], self.sites[other]
        self._last_key += 2
        name = b"link %d" % self._last_key
        there = Way(a, b, self._last_key, self._last_key + 1, name)
        there.back = Way(b, a, self._last_key + 1, self._last_key, name)
        there.back.back = there
        for way in (there, there.back):
            way.source.alive[way.key] = way
            join = partial(self._join, way, rid, path, way.source.number == leading)
            if rid:
                self.after(self._soon(), join)
            else:
                join()

    def _join(self, way: Way, rid: bytes, path: Path, leading: bool) -> None:
        if not way.alive:
            return
        waits = [other for other in way.source.ways.values() if other.rid == rid]
        if waits:  # of the lost link it gets to know first
            self.after(MS, partial(self._join, way, rid, path, leading))
            return
        way.joined = True
        site = way.source
        site.ways[way.key] = way
        site.grafting.added(way.key, way.target.name, rid, self.now, leading, path)
        self._wake(site, self.now)
        self._arrive(way.back)

    def cut(self, way: Way) -> bytes:
        """A link is lost, with all that is on its way; its rid."""
        for one in (way, way.back):
            one.alive = False
            one.queue.clear()
            one.source.alive.pop(one.key, None)
            self.after(self._soon(), partial(self._leave, one))
        return way.rid

    def _leave(self, way: Way) -> None:
        site = way.source
        if way.joined and not way.left:
            way.left = True
            del site.ways[way.key]
            site.grafting.lost(way.key, way.rid, False, self.now)
            self._wake(site, self.now)

    def links(self) -> list[Way]:
        """One way of each link that lives, from the smaller number to the larger."""
        ways = [way for site in self.sites for way in site.alive.values()]
        return [way for way in ways if way.source.number < way.target.number]

    def replace(self, a: int, b: int, c: int, d: int, rid: bytes, known: bool = True) -> Path:
        """A link between c and d takes the place of one between a and b that was lost."""
        head, tail = self.path(a, c), self.path(d, b)
        path = Path(
            tuple(self.sites[n].name for n in head), tuple(self.sites[n].name for n in tail)
        )
        self.link(c, d, rid, path if known else NO_PATH, leading=-1 if known else c)
        if known:
            for end in (a, b):
                self.after(self._soon(), partial(self._substitute, self.sites[end], rid, path))
        return path

    def _substitute(self, site: Site, rid: bytes, path: Path) -> None:
        if any(way.rid == rid for way in site.ways.values()):  # it has not noticed yet
            self.after(MS, partial(self._substitute, site, rid, path))
            return
        site.grafting.substituted(rid, path, self.now)
        self._wake(site, self.now)

    # ----------------------------------------------------------------------- looking

    def side(self, start: int) -> list[int]:
        """The sites that are connected with one."""
        return list(self._parents(start))

    def path(self, start: int, end: int) -> list[int]:
        """The sites from one to another."""
        parents = self._parents(end)
        found = [start]
        while found[-1] != end:
            found.append(parents[found[-1]])
        return found

    def _parents(self, start: int) -> dict[int, int]:
        parents = {start: start}
        todo = [start]
        for number in todo:
            for way in self.sites[number].alive.values():
                other = way.target.number
                if other not in parents:
                    parents[other] = number
                    todo.append(other)
        return parents

    # ------------------------------------------------------------------------ clients

    def subscribe(self, number: int, filter: Filter) -> None:
        """A client wants something."""
        site = self.sites[number]
        site.local[filter] += 1
        site.forwarding.hold(LOCAL, filter)
        self._wake(site, self.now)

    def unsubscribe(self, number: int, filter: Filter) -> None:
        """A client that wants something does not any more."""
        site = self.sites[number]
        site.local[filter] -= 1
        if not site.local[filter]:
            del site.local[filter]
        site.forwarding.release(LOCAL, filter)
        self._wake(site, self.now)

    def advertise(
        self, number: int, filter: Filter, heeded: Callable[[], None] = lambda: None
    ) -> None:
        """A client offers something; told when all who want it are known."""
        site = self.sites[number]
        assert site.advertising is not None
        site.offers[filter] += 1
        site.advertising.offers.hold(LOCAL, filter)
        self._count += 1
        site.unheeded[self._count] = heeded
        site.advertising.wait(self._count)
        self._wake(site, self.now)

    def withdraw(self, number: int, filter: Filter) -> None:
        """A client that offers something does not any more."""
        site = self.sites[number]
        assert site.advertising is not None
        site.offers[filter] -= 1
        if not site.offers[filter]:
            del site.offers[filter]
        site.advertising.offers.release(LOCAL, filter)
        self._wake(site, self.now)

    def publish(self, number: int, wanted_by: frozenset[Filter]) -> None:
        """An event for these filters; it should come to everybody who has one of them now."""
        self._last_event += 1
        event = Event(self._last_event, wanted_by)
        for site in self.sites:
            if site.number != number and not wanted_by.isdisjoint(site.local):
                self._owed[event.number, site.number] = 0
        self._route(self.sites[number], -1, event)

    def _route(self, site: Site, key: int, event: Event) -> None:
        if (event.number, site.number) in self._owed:
            self._owed[event.number, site.number] += 1
        wanting = {other for one in event.wanted_by for other in site.forwarding.holders(one)}
        for other in sorted(wanting - {key, LOCAL}):
            self._send(site.ways[other], event)

    def account(self) -> None:
        """Which events were lost, or came twice."""
        record = self.record
        record.events += len(self._owed)
        record.lost += sum(count == 0 for count in self._owed.values())
        record.repeated += sum(count > 1 for count in self._owed.values())
        self._owed.clear()

    # ----------------------------------------------------------------------- checking

    def complaints(self) -> Iterator[Complaint]:
        """What is wrong though nothing happens any more."""
        for site in self.sites:
            rows = site.forwarding.rows()
            if set(rows) != {way.key for way in site.alive.values()}:
                yield Complaint("links", f"{site.number} has other links than there are")
                continue
            for way in site.alive.values():
                received = rows[way.key][0]
                sent = way.target.forwarding.rows()[way.far_key][1]
                if received != sent:
                    text = f"{site.number} heard {received}, {way.target.number} said {sent}"
                    yield Complaint("table", text)
                wanted = self._behind(way, lambda site: site.local)
                if self.setting.advertisements:
                    yield from self._offers_right(way)
                    offered = self._behind(way.back, lambda site: site.offers)
                    wanted = {one for one in wanted if any(overlaps(one, a) for a in offered)}
                told = {canonical(*one[:3]) for one in received.values()}
                if len(set(received.values())) < len(received):
                    yield Complaint("table", f"{site.number} was told something twice")
                what = f"{site.number} was told by {way.target.number}"
                yield from same(what, told, wanted, self.setting.covering)

    def _offers_right(self, way: Way) -> Iterator[Complaint]:
        """What a site was told of offers is what there is behind the other, and nobody waits."""
        here, there = way.source.advertising, way.target.advertising
        assert here is not None and there is not None
        heard = here.offers.rows()[way.key][0]
        if heard != there.offers.rows()[way.far_key][1]:
            yield Complaint("offers", f"{way.source.number} heard other offers than were made")
        told = {canonical(*one) for one in heard.values()}
        offered = self._behind(way, lambda site: site.offers)
        what = f"{way.source.number} was offered by {way.target.number}"
        yield from same(what, told, offered, self.setting.covering)
        if here.waiting:
            yield Complaint("unheeded", f"{way.source.number} still waits for answers")

    def _behind(self, way: Way, of: Callable[[Site], Iterable[Filter]]) -> set[Any]:
        """Filters of all sites behind the end of a way."""
        found: set[Any] = set()
        todo, seen = [way.target.number], {way.source.number, way.target.number}
        for number in todo:
            found.update(canonical(*one[:3]) for one in of(self.sites[number]))
            for other in self.sites[number].alive.values():
                if other.target.number not in seen:
                    seen.add(other.target.number)
                    todo.append(other.target.number)
        return found


def _listed(part: Any) -> int:
    """How many filters, or numbers of them, a part of a message lists; nodes do not count."""
    return len(part) if type(part) is tuple and part and type(part[0]) is not bytes else 0


class Offered(NamedTuple):
    """What goes over a way about offers."""

    adds: list[Numbered]
    removes: list[int]
    synced: bool


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is published."""

    number: int
    wanted_by: frozenset[Filter]
