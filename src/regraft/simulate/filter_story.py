"""A story of many nodes, some of whose guests bring filters of their own.

The plan is that of any network story. Every second subscription has a filter besides: a *band* of
the attribute n. All nodes know bands, or some do, or none, or some by a class that makes mistakes;
what guests see must be the same. A guest looks at what it gets as a client does: what its filter
does not match it has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Message
from regraft.model.userfilter import FilterTable
from regraft.simulate.checkers import Complaint, canonical
from regraft.simulate.deliveries import Subscription, Visit
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import Act, Plan, make_plan
from regraft.wire import native

KNOWLEDGE = ("all", "some", "none", "failing")
HIGHEST = 11  # of the attribute n, as plans have it
BAND = "band"


@dataclass(frozen=True)
class Band:
    """Messages whose attribute n is within bounds."""

    low: int
    high: int

    def encode(self) -> bytes:
        """Two bytes."""
        return bytes((self.low, self.high))

    @classmethod
    def decode(cls, data: bytes) -> Band:
        """The opposite."""
        low, high = data
        return cls(low, high)

    def matches(self, message: Message) -> bool:
        """Whether n is there and within."""
        n = message.attributes.get("n")
        return isinstance(n, int) and self.low <= n <= self.high

    def covers(self, other: Band) -> bool:
        """Whether the other one lies within this one."""
        return self.low <= other.low and other.high <= self.high


class FailingBand(Band):
    """A class with mistakes: of some bands it can say nothing, and of some messages."""

    @classmethod
    def decode(cls, data: bytes) -> FailingBand:
        """It knows only some encodings."""
        if sum(data) % 4 == 0:
            raise ValueError("of a later version")
        low, high = data
        return cls(low, high)

    def matches(self, message: Message) -> bool:
        """It stumbles over every third message."""
        n = message.attributes.get("n")
        if isinstance(n, int) and n % 3 == 0:
            raise ArithmeticError(f"{n} cannot be")
        return super().matches(message)


def tables_of(knowledge: str, seed: int, index: int) -> FilterTable:
    """What a node knows."""
    random = Random(f"knows {seed} {index}")
    if knowledge == "none" or (knowledge != "all" and random.random() < 0.5):
        return FilterTable()
    return FilterTable({BAND: FailingBand if knowledge == "failing" else Band})


def filter_plan(seed: int) -> Plan:
    """The plan of a seed, with filters in every second subscription."""
    random = Random(f"filters {seed}")
    plan = make_plan(seed, nodes=random.choice((2, 3, 4, 5, 6, 8)), lasting_ms=3000)
    return plan.without([banded(random, act) for act in plan.acts])


def banded(random: Random, act: Act) -> Act:
    """A subscription that gets a filter besides, every second time."""
    if act.what != "subscribe" or random.random() < 0.5:
        return act
    low = random.choice((0, 0, 2, 4, 6))
    high = random.choice((low, low + 3, HIGHEST))
    guest, id, *wanted = act.args
    if random.random() < 0.6:
        wanted = ["#", False, ""]  # so that bands are all that tells many of them apart
    return Act(act.ms, "subscribe-band", (guest, id, *wanted, low, high))


@dataclass
class FilterStory(NetworkStory):
    """What happens as such a plan says."""

    knowledge: str = ""
    spared: int = 0  # deliveries that a guest had no use for, all the same
    _seen_by: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.knowledge = self.knowledge or KNOWLEDGE[self.plan.seed // 2 % len(KNOWLEDGE)]

    @property
    def about(self) -> str:
        """It in a line."""
        counts = {**self.deliveries.counts, "not spared": self.spared}
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        return f"filters that {self.knowledge} know of {self.plan.nodes}, {told}"

    def _start(self, index: int, seeds: Any) -> bool:
        if not super()._start(index, seeds):
            return False
        filters = self._brokers[index].node.filters
        filters.learn(tables_of(self.knowledge, self.plan.seed, index))
        return True

    def _subscribe_band(
        self,
        number: int,
        id: int,
        pattern: str,
        exact: bool,
        selector: str,
        low: int,
        high: int,
    ) -> bool:
        visit = self._visits.get(number)
        if visit is None or id in visit.subscriptions:
            return False
        data = Band(low, high).encode()
        wanted = canonical(pattern, exact, selector, BAND, data)
        subscription = Subscription(visit.guest.name, id, visit.node, wanted)
        visit.subscriptions[id] = subscription
        self.deliveries.subscriptions.append(subscription)
        visit.guest.asked[id] = (pattern, exact)
        frame = native.Subscribe(id, pattern, selector, exact, filter=BAND, filter_data=data)
        visit.guest.pipe.send(native.encode(frame))
        return True

    def _seen(self, visit: Visit, message: ReceivedMessage) -> None:
        """Of what a guest gets, it looks at what its filters match."""
        before = len(self.deliveries.sights)
        super()._seen(visit, message)
        if len(self.deliveries.sights) == before:
            return
        sight = self.deliveries.sights.pop()
        mine = visit.subscriptions
        wanted = {
            id for id in sight.ids if id not in mine or mine[id].filter.in_band(message.message)
        }
        self.spared += len(sight.ids) - len(wanted)
        if not wanted:
            return
        place = sight.guest, sight.publisher, sight.number
        first = self._seen_by.setdefault(place, before)
        if first == before:
            self.deliveries.sights.append(sight._replace(ids=frozenset(wanted)))
            return
        # One with a filter and one without: they may come one after the other.
        known = self.deliveries.sights[first]
        if known.ids & wanted:
            self.deliveries.sights.append(sight)
        else:
            self.deliveries.sights[first] = known._replace(ids=known.ids | wanted)

    def _unsettled(self) -> Any:
        """What is not as it should be; who does not know bands may say more than is needed."""
        for found in super()._unsettled():
            if self.knowledge == "all" or not _too_much(found):
                yield found


def _too_much(found: Complaint) -> bool:
    return found.kind == "table" and ("too much" in found.text or "equivalent" in found.text)
