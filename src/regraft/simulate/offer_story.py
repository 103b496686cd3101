"""A story of publishers that say what they will publish, in a network where things go wrong.

What goes wrong is that of `plan.py`. Every guest advertises something, now and then something else,
and publishes only what it offers; what nobody wants, as its node told it, it does not publish. Most
networks route by advertisements.

Rules:

- Nothing that is wanted is silenced: what a guest did not say, because nobody wants it, is owed to
  all to whom it would have been owed.
- Once all is quiet, over each link goes what is wanted behind it of what is offered on its other
  side, and each guest knows whether somebody wants what it offers.
- An advertisement that counts may be used: what is said then comes to everybody who wants it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import Any

from regraft.model.message import Message
from regraft.simulate.checkers import (
    NEVER,
    Complaint,
    Filter,
    Key,
    canonical,
    overlaps,
    tables,
)
from regraft.simulate.deliveries import PATIENCE_NS, Publication, Visit
from regraft.simulate.network import MS
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import (
    COLORS,
    PATTERNS,
    SELECTORS,
    TOPICS,
    Act,
    Plan,
    make_plan,
    message_of,
)
from regraft.wire import native
from regraft.wire.offers import Advertise, Advertised, Demand, Unadvertise

SILENT = "!"  # behind the name of a guest: what it did not say


def offer_plan(seed: int) -> Plan:
    """The plan of a seed: as others, and guests that change what they offer."""
    random = Random(f"offers {seed}")
    nodes = random.choice((2, 3, 4, 5, 6, 7, 9))
    lasting_ms = random.choice((3000, 5000))
    plan = make_plan(seed, nodes=nodes, lasting_ms=lasting_ms, disks=random.random() < 0.25)
    acts = [*plan.acts, *offering(random, plan, random.choice((4, 12, 25)))]
    acts.sort(key=lambda act: act.ms)
    return replace(plan, acts=tuple(acts), advertisements=random.random() < 0.75)


def offering(random: Random, plan: Plan, count: int) -> Iterator[Act]:
    """Guests offer something else, and no longer, so often."""
    guests = sorted({act.args[0] for act in plan.acts if act.what == "arrive"})
    for _ in range(count):
        moment = random.uniform(1600, plan.end_ms)
        guest = random.choice(guests)
        yield Act(moment, "offer", (guest, *_something(random)))
        yield Act(random.uniform(moment, plan.end_ms), "unoffer", (guest,))


def _something(random: Random) -> tuple[str, bool, str]:
    return random.choice(PATTERNS), random.random() < 0.2, random.choice(SELECTORS)


@dataclass(slots=True, eq=False)
class Offering:
    """What a guest offers."""

    filter: Filter
    confirmed: bool = False
    wanted: bool = True


@dataclass
class OfferStory(NetworkStory):
    """What happens as such a plan says."""

    offers: dict[str, dict[int, Offering]] = field(default_factory=dict)  # by guest and id
    silenced: int = 0
    changes: int = 0  # that guests were told of: wanted, or no more
    _ending: bool = False

    @property
    def about(self) -> str:
        """It in a line."""
        by = "routed by offers" if self.plan.advertisements else "told of demand"
        acts = f"{self.counts.get('offer', 0)} offers, {self.silenced} messages not published"
        return f"{self.plan.nodes} nodes, {by}, {self.plan.mode}, {acts}"

    # ------------------------------------------------------------------------- guests

    def _arrive(self, number: int, index: int) -> bool:
        if not super()._arrive(number, index):
            return False
        visit = self._visits[number]
        random = Random(f"{self.plan.seed} {visit.guest.name} offers")
        self.offers[visit.guest.name] = {}
        for _ in range(random.choice((1, 1, 2, 3))):
            self._advertise(visit, *_something(random))
        return True

    def _offer(self, number: int, pattern: str, exact: bool, selector: str) -> bool:
        visit = self._visits.get(number)
        if visit is not None:
            self._advertise(visit, pattern, exact, selector)
        return visit is not None

    def _advertise(self, visit: Visit, pattern: str, exact: bool, selector: str) -> int:
        id = self._next()
        self.offers[visit.guest.name][id] = Offering(canonical(pattern, exact, selector))
        visit.guest.pipe.send(native.encode(Advertise(id, pattern, selector, exact)))
        return id

    def _unoffer(self, number: int) -> bool:
        visit = self._visits.get(number)
        mine = self.offers[visit.guest.name] if visit is not None else {}
        if visit is None or not mine:
            return False
        id = next(iter(mine))
        del mine[id]
        visit.guest.pipe.send(native.encode(Unadvertise(id)))
        return True

    def _leaves(self, number: int) -> None:
        self.offers.pop(self._visits[number].guest.name)
        super()._leaves(number)

    def _answered(self, visit: Visit, message: Any) -> None:
        if not isinstance(message, Advertised | Demand):
            super()._answered(visit, message)
            return
        offering = self.offers.get(visit.guest.name, {}).get(message.id)
        if offering is None:
            return
        offering.wanted = message.wanted
        self.changes += isinstance(message, Demand)
        if isinstance(message, Advertised):
            offering.confirmed = True
            if self._ending:
                self._say_all_of(visit, offering)

    def _say(self, visit: Visit, kept: bool, topic: str, n: int, color: str, size: int) -> None:
        message = self._compose(visit, topic, n, color)
        fitting = self._fitting(visit, message)
        if fitting and (kept or any(one.wanted for one in fitting)):
            super()._say(visit, kept, topic, n, color, size)
        elif fitting:
            self._say_nothing(visit, message)

    def _fitting(self, visit: Visit, message: Message) -> list[Offering]:
        """What a guest offers that allows a message."""
        mine = self.offers.get(visit.guest.name, {}).values()
        return [one for one in mine if one.confirmed and one.filter.takes(message)]

    def _say_nothing(self, visit: Visit, message: Message) -> None:
        """Nobody wants it, as the node says."""
        self.silenced += 1
        name = visit.guest.name + SILENT
        said = Publication(name, self.silenced, visit.node, message, self.world.ns)
        self.deliveries.publish(said)

    # ------------------------------------------------------------------------ the end

    def _offered(self) -> dict[Key, set[Filter]] | None:
        if not self.plan.advertisements:
            return None
        found: dict[Key, set[Filter]] = {}
        for visit in self._visits.values():
            mine = self.offers[visit.guest.name].values()
            found.setdefault(visit.node, set()).update(one.filter for one in mine)
        return found

    def _tables(self, wanted: dict[Key, set[Filter]]) -> Iterator[Complaint]:
        how = (self._interests, self.plan.covering, self._offered())
        yield from tables(self.tree.standings, wanted, *how)
        everything = {one for some in wanted.values() for one in some if one.pattern[:1] != "$"}
        for visit in self._visits.values():
            for one in self.offers[visit.guest.name].values():
                what = f"{visit.guest.name} at {visit.node} offers {one.filter}"
                if not one.confirmed:
                    yield Complaint("unheeded", f"{what}, and that does not count")
                    continue
                truth = any(overlaps(want, one.filter) for want in everything)
                if one.wanted != truth and (truth or not self.plan.disks):
                    text = f"{what}, which is {'' if truth else 'not '}wanted"
                    yield Complaint("demand", f"{text}; it was told otherwise")

    def _last_round(self) -> None:
        """All is well."""
        self._offer_anew()

    def _offer_anew(self) -> None:
        """Everybody offers something else, and says it as soon as that counts."""
        random = Random(f"last round {self.plan.seed}")
        self._ending = True
        before = len(self.deliveries.publications)
        for number, visit in self._visits.items():
            while self._unoffer(number):
                pass
            self._advertise(visit, *_something(random))
        self.world.advance(PATIENCE_NS / MS + 1)
        self.world.advance(PATIENCE_NS / MS + 1)
        for said in islice(self.deliveries.publications.values(), before, None):
            for one in self.deliveries.subscriptions:
                wants = one.until_ns == NEVER and one.filter.takes(said.message)
                if wants and (one not in said.owed or said.guest.endswith(SILENT)):
                    text = f"no way for what {said.guest} said to {one.guest}, though all is well"
                    self._complain("unrouted", text)
        for found in self._unsettled():
            self._complain(found.kind, f"and then: {found.text}")

    def _say_all_of(self, visit: Visit, offering: Offering) -> None:
        """Some messages of each kind that there is."""
        random = Random(f"{self.plan.seed} {visit.guest.name} {offering.filter}")
        for topic in TOPICS:
            for _ in range(3):
                n, color = random.randrange(24), random.choice(COLORS)
                if offering.filter.takes(message_of(topic, n, color, b"")):
                    self._say(visit, False, topic, n, color, 0)
