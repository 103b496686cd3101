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
from functools import partial
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
    acts = [*plan.acts]
    guests = sorted({act.args[0] for act in acts if act.what == "arrive"})
    for _ in range(random.choice((4, 12, 25))):
        moment = random.uniform(1600, plan.end_ms)
        guest = random.choice(guests)
        acts.append(Act(moment, "offer", (guest, *_something(random))))
        acts.append(Act(random.uniform(moment, plan.end_ms), "unoffer", (guest,)))
    acts.sort(key=lambda act: act.ms)
    return replace(plan, acts=tuple(acts), advertisements=random.random() < 0.75)


def _something(random: Random) -> tuple[str, bool, str]:
    return random.choice(PATTERNS), random.random() < 0.2, random.choice(SELECTORS)


@dataclass(slots=True, eq=False)
class Offering:
    """What a guest offers."""

    filter: Filter
    confirmed: bool = False
    wanted: bool = True
    last_ns: int = 0


@dataclass
class OfferStory(NetworkStory):
    """What happens as such a plan says."""

    offers: dict[str, dict[int, Offering]] = field(default_factory=dict)  # by guest and id
    silenced: int = 0
    _last: int = 0
    _ending: bool = False

    def _act(self, act: Act) -> None:
        how = GUEST_ACTS.get(act.what)
        if how is None:
            NetworkStory._act(self, act)
        elif how(self, *act.args):
            self.counts[act.what] = self.counts.get(act.what, 0) + 1
            self._line(f"{act.what} {' '.join(map(str, act.args))}")

    # ------------------------------------------------------------------------- guests

    def _arrive(self, number: int, index: int) -> bool:
        if not NetworkStory._arrive(self, number, index):
            return False
        visit = self._visits[number]
        visit.guest.on_control = partial(self._answered, visit)
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
        self._last += 1
        mine = self.offers[visit.guest.name]
        mine[self._last] = Offering(canonical(pattern, exact, selector))
        frame = Advertise(self._last, pattern, selector, exact)
        visit.guest.pipe.send(native.encode(frame))
        return self._last

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
        NetworkStory._leaves(self, number)

    def _answered(self, visit: Visit, message: Any) -> None:
        if not isinstance(message, Advertised | Demand):
            NetworkStory._answered(self, visit, message)
            return
        offering = self.offers.get(visit.guest.name, {}).get(message.id)
        if offering is None:
            return
        offering.wanted = message.wanted
        if isinstance(message, Advertised):
            offering.confirmed = True
            if self._ending:
                self._say_all_of(visit, offering)

    def _say(self, visit: Visit, kept: bool, topic: str, n: int, color: str, size: int) -> None:
        name = visit.guest.name
        message = message_of(topic, n, color, b"")
        fitting = [
            one
            for one in self.offers.get(name, {}).values()
            if one.confirmed and one.filter.takes(message)
        ]
        if fitting and (kept or any(one.wanted for one in fitting)):
            NetworkStory._say(self, visit, kept, topic, n, color, size)
        elif fitting:
            self._say_nothing(visit, message)

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
                    self.complaints.append(Complaint("unrouted", text))
        for found in self._unsettled():
            self.complaints.append(Complaint(found.kind, f"and then: {found.text}"))

    def _say_all_of(self, visit: Visit, offering: Offering) -> None:
        """Some messages of each kind that there is."""
        random = Random(f"{self.plan.seed} {visit.guest.name} {offering.filter}")
        for topic in TOPICS:
            for _ in range(3):
                n, color = random.randrange(24), random.choice(COLORS)
                if offering.filter.takes(message_of(topic, n, color, b"")):
                    self._say(visit, False, topic, n, color, 0)


GUEST_ACTS: dict[str, Any] = {
    "arrive": OfferStory._arrive,
    "offer": OfferStory._offer,
    "unoffer": OfferStory._unoffer,
}
