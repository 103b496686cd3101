"""A story of all that a network can do, at the same time, while things go wrong.

What goes wrong is that of `plan.py`. The same guests ask and reply, move from floor to floor, offer
what they publish and publish what is wanted, bring filters that only some nodes know, select by
the publisher's context and by the type of a message, publish for one floor only, and trace. What
each of the other stories wants holds here, too, and this besides:

- Who would get a message, asked when all is quiet, is who gets it when it is published then.
- What is not advertised, where that is needed, comes to nobody, by traces and in fact.
- A trace of a subscription says "not offered" only of neighbours behind whom nobody offers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from regraft.errors import CODES
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Message
from regraft.model.topics import matches
from regraft.simulate.checkers import behind, overlaps
from regraft.simulate.deliveries import Subscription, Visit
from regraft.simulate.filter_story import FilterStory, banded, tables_of
from regraft.simulate.floors import ANY, FLOORS, floor_of, where
from regraft.simulate.network import MS
from regraft.simulate.offer_story import OfferStory, offering
from regraft.simulate.plan import (
    COLORS,
    PATTERNS,
    SELECTORS,
    STARTED_MS,
    TOPICS,
    TROUBLE_MS,
    Act,
    Plan,
    make_plan,
)
from regraft.simulate.reply_story import QUIET_LASTS_MS, REPAIRED_MS, ReplyStory
from regraft.simulate.trace_story import (
    MISMATCHES,
    TOLD,
    Judgement,
    Receiver,
    Told,
    TraceStory,
    tracing,
)
from regraft.wire.traces import TraceMode

TYPE = "trade"
CONTEXTS = ("ctx.floor = 1", "ctx.floor > 0", f"$type = '{TYPE}'", f"$type <> '{TYPE}'")
MODEST = ("a", "b/#", "c/x")  # instead of everything
RETURNED = 4000  # the id of a subscription of those who came again
REPLYING = 5000  # the first id of subscriptions that reply
UNTOLD = ("not-offered", "not-held", "only-theirs", "covered")  # where nobody offers it
TRACERS = 3  # guests that trace all in the end
TRIES = 12  # to find something that a guest may say


def together_plan(seed: int) -> Plan:
    """The plan of a seed: 3 to 9 nodes, of which most stories route by advertisements."""
    random = Random(f"together {seed}")
    mode = "safety" if seed % 4 == 3 else "liveness"
    nodes = random.choice((3, 3, 4, 4, 5, 6, 7, 9))
    plan = make_plan(seed, mode, nodes, random.choice((1500, 3000)), 0.4, disks=False)
    modest = random.random() < 0.5
    acts = [*plan.acts, *_returning(random, plan)]
    acts = [_selecting(random, banded(random, act), modest) for act in acts]
    acts += offering(random, plan, random.choice((2, 4, 8)))
    acts += tracing(random, plan.end_ms, random.choice((3, 6)))
    acts += _conversing(random, plan, modest)
    acts.sort(key=lambda act: act.ms)
    return replace(plan, acts=tuple(acts), advertisements=random.random() < 0.8)


def _selecting(random: Random, act: Act, modest: bool) -> Act:
    """Some subscriptions ask for the publisher's context, or for a type; the modest not for all."""
    if act.what not in ("subscribe", "subscribe-band"):
        return act
    guest, id, pattern, exact, selector, *band = act.args
    if modest and pattern == "#":
        pattern = random.choice(MODEST)
    if random.random() < 0.35:
        more = random.choice(CONTEXTS)
        selector = f"({selector}) AND {more}" if selector else more
    return act._replace(args=(guest, id, pattern, exact, selector, *band))


def _returning(random: Random, plan: Plan) -> Iterator[Act]:
    """Guests whose node is gone come again, to another one; so that somebody is there at last."""
    guests = sorted({act.args[0] for act in plan.acts if act.what == "arrive"})
    for guest in guests[:6]:
        ms = random.uniform(plan.end_ms - 1000, plan.end_ms - 100)
        yield Act(ms, "arrive", (guest, random.randrange(plan.nodes)))
        wanted = random.choice(PATTERNS), False, random.choice(SELECTORS)
        yield Act(ms + 50, "subscribe", (guest, RETURNED, *wanted))
        yield Act(ms + 60, "move-to", (guest, random.randrange(FLOORS)))


def _conversing(random: Random, plan: Plan, modest: bool) -> Iterator[Act]:
    """Guests that reply, ask and move."""
    guests = sorted({act.args[0] for act in plan.acts if act.what == "arrive"})
    for place, guest in enumerate(guests):
        if place % 3 != 2:
            ms = random.uniform(STARTED_MS + 1000, plan.end_ms)
            pattern = random.choice(MODEST if modest else PATTERNS)
            wanted = pattern, False, random.choice(SELECTORS)
            yield Act(min(ms, random.uniform(3000, 5000)), "listen", (guest, REPLYING, *wanted))
        for _ in range(random.choice((1, 2, 3))):
            ms = random.uniform(2500, plan.end_ms)
            yield Act(ms, "move-to", (guest, random.randrange(FLOORS)))
    for _ in range(random.choice((10, 20, 30))):
        ms = random.uniform(TROUBLE_MS - 500, plan.end_ms)
        floor = random.choice((ANY, ANY, *range(FLOORS)))
        about = (random.choice(TOPICS), random.randrange(12), floor)
        yield Act(ms, "ask", (random.choice(guests), *about, random.choice((300, 1500, 4000))))


@dataclass
class TogetherStory(TraceStory, ReplyStory, OfferStory, FilterStory):
    """What happens as such a plan says."""

    given: dict[tuple[str, int], set[Receiver]] = field(default_factory=dict)  # by guest and number

    @property
    def about(self) -> str:
        """It in a line."""
        happened = ", ".join(f"{count} {what}" for what, count in self.happened().items())
        by = "offers" if self.plan.advertisements else "interests"
        return f"{self.plan.nodes} nodes, by {by}, {self.plan.mode}, {happened}"

    def happened(self) -> dict[str, int]:
        """How much of everything there was."""
        changes = sorted((*self.tree.since.values(), *self.tree.until.values()))
        well_ns = int(self.plan.end_ms * MS)
        asked = self.answers.inquiries.values()
        return {
            **self.deliveries.counts,
            **self.answers.counts,
            "asked under a re-graft": sum(
                any(one.ns <= ns <= max(one.ns, one.ended_ns) for ns in changes) for one in asked
            ),
            "contexts changed": self.counts.get("move-to", 0),
            "for one floor": sum(one.floor != ANY for one in self.deliveries.publications.values()),
            "quenched or woken": self.changes,
            "not published": self.silenced,
            "filtered": self.filtered(),
            "not spared": self.spared,
            "traced under churn": sum(told.ns < well_ns for told in self.traces.values()),
            "reports": sum(len(told.reports) for told in self.traces.values()),
        }

    def filtered(self) -> int:
        """What only a guest's own filter keeps from it."""
        banded = [one for one in self.deliveries.subscriptions if one.filter.band]
        return sum(
            one.filter._replace(band=()).takes(said.message)
            and not one.filter.in_band(said.message)
            and said.ns >= one.since_ns
            for said in self.deliveries.publications.values()
            for one in banded
        )

    # ------------------------------------------------------------------------- guests

    def _compose(self, visit: Visit, topic: str, n: int, color: str) -> Message:
        """Some messages have a type, and some are for one floor."""
        message = super()._compose(visit, topic, n, color)
        random = Random(f"{self.plan.seed} {visit.guest.name} {len(visit.said)} {topic} {n}")
        floor = random.choice((ANY, ANY, ANY, *range(FLOORS)))
        return replace(message, type_name=random.choice(("", TYPE)), where=where(floor))

    def _ask(self, number: int, topic: str, n: int, floor: int, lasts_ms: int) -> bool:
        """About that topic, or another of which it may speak."""
        visit = self._visits.get(number)
        if visit is None:
            return False
        at = TOPICS.index(topic)
        for other in (*TOPICS[at:], *TOPICS[:at]):
            if self._may_say(visit, self._compose(visit, other, n, "")):
                return super()._ask(number, other, n, floor, lasts_ms)
        return False

    def _may_say(self, visit: Visit, message: Message) -> bool:
        return not self.plan.advertisements or bool(self._fitting(visit, message))

    def _seen(self, visit: Visit, message: ReceivedMessage) -> None:
        publisher, _, rest = message.body.partition(b" ")
        place = publisher.decode(), int(rest.partition(b" ")[0])
        mine = {(visit.guest.name, id) for id in message.subscriptions}
        self.given.setdefault(place, set()).update(mine)
        super()._seen(visit, message)

    # ----------------------------------------------------------------- what traces say

    def _takes(self, one: Subscription, message: Message) -> tuple[bool, bool]:
        """A filter that a guest brought counts at nodes that know it, perhaps on the way."""
        floor, floors = floor_of(message), self.deliveries.floors
        if floor != ANY and not floors.may_be_on(one.guest, floor, self.world.ns):
            return False, False
        takes, rest = one.filter.takes(message), one.filter._replace(band=()).takes(message)
        certain = self.knowledge in ("all", "some") and self._knows(one)
        return takes, takes if certain else rest

    def _knows(self, one: Subscription) -> bool:
        """Whether the node of a subscription knows filters of guests."""
        index = int(one.node[0].removeprefix("node-"))
        return bool(tables_of(self.knowledge, self.plan.seed, index).classes)

    def _reasons(self, one: Subscription, message: Message) -> tuple[str, ...]:
        floor = floor_of(message)
        if floor not in (ANY, self.deliveries.floors.on(one.guest)):
            return (*MISMATCHES, "context")
        if one.filter.in_band(message):
            return MISMATCHES
        return (*MISMATCHES, "own-filter" if self._knows(one) else "", "unreached")

    def _tellings(self, node: str, other: str, one: Subscription) -> tuple[str, ...]:
        offered = self._offered()
        if offered is None:
            return TOLD
        standings = self.tree.standings
        keys = {standing.id: key for key, standing in standings.items()}
        there = behind(standings, keys[node], keys[other])
        offers = (offer for key in there for offer in offered.get(key, ()))
        return TOLD if any(overlaps(one.filter, offer) for offer in offers) else UNTOLD

    # ------------------------------------------------------------------------ the end

    def _last_round(self) -> None:
        """All is well: everybody asks, traces, and publishes what it has traced."""
        self._move_about()
        self.world.advance(REPAIRED_MS)
        random = Random(f"last round {self.plan.seed}")
        judgements: list[Judgement] = []
        for place, visit in enumerate(self._visits.values()):
            message = self._sayable(random, visit)
            if message is None:
                judgements += self._trace_forbidden(visit)
                continue
            if place < TRACERS:
                judgements += self._trace_all(random, visit, message)
            who = self._send_trace(visit, TraceMode.WHO, message)
            said = visit.guest.name, len(visit.said)
            judgements.append(partial(self._judge_given, who, said))
            self._utter(visit, message)
            self._put_quietly(visit, message, floor_of(message))
        self.world.advance(QUIET_LASTS_MS + 1000)
        for judge in judgements:
            judge()
        if not self.complaints:
            self._offer_anew()

    def _sayable(self, random: Random, visit: Visit) -> Message | None:
        """Something that a guest may say, if it finds anything."""
        for _ in range(TRIES):
            what = (random.choice(TOPICS), random.randrange(12), random.choice(COLORS))
            message = self._compose(visit, *what)
            if self._may_say(visit, message):
                return message
        return None

    def _judge_given(self, who: Told, place: tuple[str, int]) -> None:
        """Who would get a message is who got it."""
        if self.knowledge != "failing" and self.given.get(place, set()) != who.receivers:
            odd = sorted(self.given.get(place, set()) ^ who.receivers)
            self._complain("wrong receivers", f"{place} was not given as WHO had said: {odd}")

    def _trace_forbidden(self, visit: Visit) -> Iterator[Judgement]:
        """Trace something that a guest must not publish, as it has not offered it."""
        mine = self.offers[visit.guest.name].values()
        topics = [
            topic
            for topic in TOPICS
            if not any(matches(one.filter.pattern, topic, one.filter.exact) for one in mine)
        ]
        for topic in topics[:1]:
            message = self._compose(visit, topic, 0, COLORS[0])
            for mode in (TraceMode.WHO, TraceMode.PUBLISH):
                yield partial(self._judge_forbidden, self._send_trace(visit, mode, message))

    def _judge_forbidden(self, told: Told) -> None:
        """It says so, and gets nowhere."""
        stops = [row["reason"] for report in told.reports for row in report["stopped"]]
        refused = told.ended is not None and told.ended.code == CODES["not-advertised"].number
        named = refused if told.mode == TraceMode.PUBLISH else stops == ["not-advertised"]
        if not named or told.seen or told.receivers:
            text = f"{told.mode.name} of what {told.asker} does not offer: {stops} {told.seen}"
            self._complain("forbidden", text)
