"""Whether guests saw what they should, and nothing else.

This checker knows nothing of the code that it checks: it looks at who published what and when, who
was subscribed to what, and at the links that stood between their nodes.

Rules:

- What a guest sees was published, and one of its subscriptions takes it.
- It sees nothing twice, and what one publisher says in the order in which it was said, whatever
  happens to links meanwhile. Persistent messages have an order of their own.
- A publication is *owed* to a subscription if, when it was made, there was a way between their
  nodes on which the subscription was established: every node of it had been told by the next one,
  and the way has not changed since.
- What is owed must come within `PATIENCE_NS`, or that long after something that happened to a node
  or link of the way; unless the way, the subscription or a guest ended before.
- A message for one floor is seen by nobody who cannot be there, and is owed to those who are there
  from before it is published until it must have come.
- A persistent message is owed if it was confirmed, and the time counts from then. One that was
  refused is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from regraft.model.message import Message
from regraft.simulate.checkers import NEVER, Complaint, Filter, Key, Tree, covers
from regraft.simulate.floors import ANY, Floors, floor_of
from regraft.simulate.guest import Guest

PATIENCE_NS = 2_000_000_000
CALM_NS = 1_500_000_000  # nothing happens for that long before something counts as established

Way: TypeAlias = tuple[tuple[int, Key], ...]  # wires, and the nodes behind them


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription of a guest."""

    guest: str
    id: int
    node: Key
    filter: Filter
    since_ns: int = NEVER  # when it was confirmed
    until_ns: int = NEVER  # when the guest wanted to end it, or ended


@dataclass(slots=True, eq=False)
class Visit:
    """A guest at a node."""

    guest: Guest
    node: Key
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    said: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Publication:
    """Something that a guest said."""

    guest: str
    number: int
    node: Key
    message: Message
    ns: int
    kept: bool = False  # it is persistent: it may take its time, and be refused
    ways: dict[Key, Way] = field(default_factory=dict)  # to the nodes of those who may want it
    owed: list[Subscription] = field(default_factory=list)
    confirmed_ns: int = NEVER  # if it is persistent
    refused: str = ""  # why

    @property
    def floor(self) -> int:
        """Where those are whom it is for."""
        return floor_of(self.message)


class Sight(NamedTuple):
    """Something that a guest saw."""

    guest: str
    publisher: str
    number: int
    ns: int
    ids: frozenset[int]


class Trouble(NamedTuple):
    """Something happens to nodes, or between the inside and the outside of a group of nodes."""

    since_ns: int
    until_ns: int
    names: frozenset[str]
    between: bool = False

    def touches(self, names: list[str]) -> bool:
        """Whether a way through these nodes is concerned."""
        inside = [name in self.names for name in names]
        return any(inside) and not (self.between and all(inside))


Told: TypeAlias = Callable[[Key, Key], set[Filter]]  # what a node was told by a neighbour


@dataclass(slots=True)
class Deliveries:
    """What was said and seen."""

    tree: Tree
    told: Told
    subscriptions: list[Subscription] = field(default_factory=list)
    publications: dict[tuple[str, int], Publication] = field(default_factory=dict)
    sights: list[Sight] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    floors: Floors = field(default_factory=Floors)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("seen", "owed"), 0))
    _established: dict[tuple[Subscription, Key], Way] = field(default_factory=dict)
    _ways: dict[Key, dict[Key, Way]] = field(default_factory=dict)
    _version: int = -1
    _ends: dict[int, int] = field(default_factory=dict)  # of wires, when, if that is an excuse

    # -------------------------------------------------------------------- as it happens

    def publish(self, publication: Publication) -> None:
        """Somebody says something, now."""
        self.publications[publication.guest, publication.number] = publication
        ways = self._ways_from(publication.node)
        for subscription in self.subscriptions:
            way = ways.get(subscription.node)
            if way is None or subscription.until_ns <= publication.ns:
                continue
            if not subscription.filter.takes(publication.message):
                continue
            publication.ways[subscription.node] = way
            if self._is_established(subscription, publication.node, way, publication.ns):
                publication.owed.append(subscription)
                self.counts["owed"] += 1

    def _ways_from(self, node: Key) -> dict[Key, Way]:
        if self._version != self.tree.version:
            self._version = self.tree.version
            self._ways.clear()
        if node not in self._ways:
            self._ways[node] = self.tree.paths(node)
        return self._ways[node]

    def _is_established(self, subscription: Subscription, node: Key, way: Way, ns: int) -> bool:
        place = (subscription, node)
        if self._established.get(place) == way:
            return True
        then = ns - CALM_NS
        if subscription.since_ns > then or any(self.tree.since[wire] > then for wire, _ in way):
            return False
        if self._touched(node, way, then, ns):
            return False
        here = node
        for _, there in way:
            if not any(covers(told, subscription.filter) for told in self.told(here, there)):
                return False
            here = there
        self._established[place] = way
        return True

    def _touched(self, node: Key, way: Way, since_ns: int, until_ns: int) -> bool:
        names = [node[0], *(key[0] for _, key in way)]
        return any(
            trouble.until_ns >= since_ns and trouble.since_ns <= until_ns and trouble.touches(names)
            for trouble in self.troubles
        )

    # ------------------------------------------------------------------------ at the end

    def judge(
        self, end_ns: int, gone: dict[str, int], gentle: frozenset[int] = frozenset()
    ) -> Iterator[Complaint]:
        """What is wrong; `gone` says when guests went away, `gentle` which wires ended as planned.

        Wires that end gently are no excuse: nobody must notice.
        """
        self._ends = {wire: ns for wire, ns in self.tree.until.items() if wire not in gentle}
        yield from self._what_was_seen()
        yield from self._what_was_owed(end_ns, gone)

    def _what_was_seen(self) -> Iterator[Complaint]:
        mine = {(one.guest, one.id): one for one in self.subscriptions}
        last: dict[tuple[str, str, bool], list[Sight]] = {}
        for sight in self.sights:
            self.counts["seen"] += 1
            said = self.publications.get((sight.publisher, sight.number))
            what = f"{sight.guest} saw {sight.publisher}'s message {sight.number}"
            if said is None:
                yield Complaint("invented", f"{what}, which was never said")
                continue
            taken = [mine.get((sight.guest, id)) for id in sight.ids]
            for one in taken:
                if one is None or not one.filter.takes(said.message):
                    text = f"{what} ({said.message.topic}, {dict(said.message.attributes)})"
                    yield Complaint("mismatch", f"{text} for {one.filter if one else 'nothing'}")
            if not taken:
                yield Complaint("mismatch", f"{what} for no subscription")
            floor = said.floor
            if floor != ANY and not self.floors.may_be_on(sight.guest, floor, sight.ns):
                yield Complaint("context", f"{what}, which is for another floor")
            if said.refused:
                yield Complaint("refused", f"{what}, which was refused: {said.refused}")
            before = last.setdefault((sight.guest, sight.publisher, said.kept), [])
            yield from self._order(what, sight, before)
            before.append(sight)

    def _order(self, what: str, sight: Sight, before: list[Sight]) -> Iterator[Complaint]:
        again = any(other.number == sight.number for other in before)
        newest = max((other.number for other in before), default=-1)
        if not again and newest < sight.number:
            return
        if again:
            yield Complaint("repeated", f"{what} again")
        else:
            yield Complaint("overtaken", f"{what} after message {newest}")

    def _patience(self, said: Publication, way: Way) -> int:
        """When it must have come: a while after it was said, or after what stopped it."""
        names = [said.node[0], *(key[0] for _, key in way)]
        said_ns = said.confirmed_ns if said.kept else said.ns
        soon = said_ns + PATIENCE_NS
        near = [t for t in self.troubles if t.until_ns >= said_ns - CALM_NS and t.touches(names)]
        for trouble in sorted(near):
            if trouble.since_ns <= soon:
                soon = max(soon, trouble.until_ns + CALM_NS + PATIENCE_NS)
        return soon

    def _what_was_owed(self, end_ns: int, gone: dict[str, int]) -> Iterator[Complaint]:
        seen: dict[tuple[str, str, int, int], int] = {}
        for sight in self.sights:
            for id in sight.ids:
                seen.setdefault((sight.guest, sight.publisher, sight.number, id), sight.ns)
        for said in self.publications.values():
            if said.kept and said.confirmed_ns == NEVER:
                continue
            for one in said.owed:
                at_ns = seen.get((one.guest, said.guest, said.number, one.id), NEVER)
                way = said.ways[one.node]
                soon = self._patience(said, way)
                if at_ns <= soon:
                    continue
                floor = said.floor
                if floor != ANY and not self.floors.stays_on(one.guest, floor, said.ns, soon):
                    continue
                ended = min(
                    one.until_ns,
                    gone.get(one.guest, NEVER),
                    NEVER if said.kept else gone.get(said.guest, NEVER),
                    *(self._ends.get(wire, NEVER) for wire, _ in way),
                )
                if soon > end_ns or ended <= soon:
                    continue
                how = "only after" if at_ns < NEVER else "never saw, not within"
                ms = (min(at_ns, soon) - said.ns) // 1_000_000
                yield Complaint(
                    "lost",
                    f"{one.guest} at {one.node} {how} {ms} ms what {said.guest} at {said.node} "
                    f"said as number {said.number} at {said.ns // 1_000_000} ms, "
                    f"through {[key for _, key in way]}",
                )
