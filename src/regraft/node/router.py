"""From a topic to a route: the match index, the subscriptions and the lane, brought together.

A route is worked out once per topic and remembered until subscriptions to topics change. Topics
with the same takers share one route, so that the lane can join their messages to one run. Where
subscriptions have selectors, the route has a choice that asks the index about each message; such
subscriptions come and go without a route being worked out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from regraft.errors import BY_NUMBER, CODES, LocalError
from regraft.kernels.groups import Group
from regraft.kernels.lane import OVERRIDE, Lane, Source
from regraft.kernels.matching import Index
from regraft.kernels.outlet import Outlet, Route
from regraft.kernels.plan import Plan
from regraft.kernels.takers import NO_IDS, PASSING, Choice, Takers
from regraft.limits import Limits
from regraft.model.rules import MEMBER_TOPIC, TYPE_TOPIC
from regraft.model.topic_cover import pattern_overlaps
from regraft.model.topics import check_topic, matches
from regraft.model.userfilter import UserFilter
from regraft.model.varint import write_varint

Authorize = Callable[[str, str, str], bool]  # (principal, action, topic) -> yes or no
# (more or less, pattern, exact, selector), and name and encoding of a filter of somebody's own
Watch = Callable[..., None]
_NONE: dict[int, int] = {}
NODE = "$node"  # the principal of what the node itself publishes
PEERS = (NODE, "node")  # and of other nodes
CUSTODY = "$custody/"  # + the id of a journal: what nodes say to each other about messages
REMOVED_AT_ONCE = 100  # subscriptions of those who are gone, in one step


class Taking(NamedTuple):
    """Who takes a message."""

    takers: list[tuple[Outlet, int, str, bool, str]]  # with the id, and the filter as it is written
    left_out: int
    filters: frozenset[int]  # that match, as the index has them


class Leaving(NamedTuple):
    """What is left of somebody who is gone: nothing leads there, but the index holds it."""

    outlet: int  # as takers know it
    subscriptions: list[int]  # likewise
    link: bool


class Router:
    """Knows who takes what, and keeps the lane's view of it up to date."""

    def __init__(self, limits: Limits, authorize: Authorize) -> None:
        self.lane = Lane(
            limits.frame_bytes,
            limits.control_frame_bytes,
            limits.topics_cached_per_session,
            self._resolve,
        )
        self.index = Index()
        self._takers = Takers(self.index)
        self._authorize = authorize
        self._limits = limits
        self._outlets: dict[int, Outlet] = {}
        self._numbers: dict[int, int] = {}  # of the outlets, as takers know them
        self._principals: dict[int, str] = {}
        self._held: dict[int, dict[int, int]] = {}  # key -> id -> subscription, as takers know it
        # Of subscriptions with a filter of somebody's own, as takers know them: what that is, and
        # if it is known here, the outlet that asks it.
        self._own: dict[int, UserFilter] = {}
        self._screens: dict[int, int] = {}
        self._kept: dict[int, tuple[int, int]] = {}  # by slot: outlet, subscription
        self._told_kept: set[int] = set()  # those of them that neighbours are told of, by slot
        self._away: dict[int, tuple[int, dict[int, int]]] = {}  # by slot: outlet, subscriptions
        self._routes: dict[bytes, Route] = {}
        self._shared: dict[tuple[tuple[int, ...], tuple[int, ...], bool], Route] = {}
        self._topics_seen = 0
        self._links: dict[int, int] = {}  # connections to other nodes, and their filters
        self._linked = False  # there was one once: the index has to know who wants what
        self._leaving: deque[Leaving] = deque()
        self._left_over = 0  # subscriptions of those
        self._watch: Watch | None = None  # told what is wanted here, and what no more
        self._unwatched: dict[int, None] = {}  # what it was not told of yet, as takers know it
        self._entered: dict[int, bool] = {}  # subscriptions that rules made; whether it is told
        self._persistent: list[tuple[str, bool]] = []  # topics where everything is kept
        self._nobody = Route([])  # for messages of a type that has no rule
        self._nobody.reports = True
        # Told of everything that is wanted, by its number in the index: one more or one less, and
        # whether it is another node that wants it.
        self.on_interest: Callable[[int, bool, bool], None] | None = None
        self.offered: Callable[[int, str], bool] | None = None  # whether a client may publish this
        self.on_member: Callable[[bool, str], None] | None = None  # elsewhere: one more, one less
        self.override: Callable[[bytes], Route] | None = None  # asked about rules in a message
        self.on_dismiss: Callable[[int], None] | None = None  # told of connections that are gone
        self._refused = {
            name: Route([], refusal=CODES[name].number)
            for name in ("bad-topic", "not-authorized", "not-supported", "not-advertised")
        }

    @property
    def size(self) -> int:
        """How many subscriptions of sessions there are."""
        kept = len(self._kept) + self._left_over + len(self._entered)
        kept += sum(len(numbers) for _, numbers in self._away.values())
        return self._takers.count - kept - sum(self._links.values())

    @property
    def leaving(self) -> bool:
        """Whether `sweep` has something to do."""
        return bool(self._leaving)

    def held(self, key: int) -> dict[int, int]:
        """The subscriptions of a connection, by their ids."""
        return self._held.get(key, _NONE)

    def admit(self, key: int, outlet: Outlet, principal: str) -> None:
        """Somebody may publish and receive from now on."""
        self._outlets[key] = outlet
        self._numbers[key] = self._takers.admit(outlet)
        self._principals[key] = principal

    def admit_link(self, key: int, outlet: Outlet, principal: str) -> None:
        """Another node may forward messages, and receive them."""
        self.admit(key, outlet, principal)
        self._takers.link(outlet)
        self._links[key] = 0
        self._linked = True

    def dismiss(self, key: int) -> None:
        """It is gone: nothing is routed to it or from it any more.

        Many subscriptions stay in the index for a while, so that nobody waits for their removal.
        """
        if len(self.held(key)) <= REMOVED_AT_ONCE:
            for id in list(self.held(key)):
                self.unsubscribe(key, id)
        held = list(self._held.pop(key, _NONE).values())
        outlet = self._outlets.pop(key, None)
        if outlet is not None:
            number = self._numbers.pop(key)
            outlet.clear()
            if held:
                self._takers.silence(number)
                self._leaving.append(Leaving(number, held, key in self._links))
                self._left_over += len(held)
                self._changed(True)
            else:
                self._takers.dismiss(number)
        self._principals.pop(key, None)
        self._links.pop(key, None)
        if self.on_dismiss is not None:
            self.on_dismiss(key)

    def sweep(self, budget: int = REMOVED_AT_ONCE) -> None:
        """Remove some of what is left of those who are gone."""
        while self._leaving and budget > 0:
            one = self._leaving[0]
            for _ in range(min(budget, len(one.subscriptions))):
                self._let_go(one.subscriptions.pop(), one.link)
                self._left_over -= 1
                budget -= 1
            if not one.subscriptions:
                self._takers.dismiss(one.outlet)
                self._leaving.popleft()
        self._changed(False)  # no route led there, but numbers of filters may be used again

    def check_cost(self, plan: Plan) -> None:
        """Refuse what would make one message cost too much, with all that is there already."""
        total = self.index.predicates.cost + plan.cost
        if total > self._limits.predicates_cost:
            raise LocalError(
                "limit-exceeded",
                f"the predicates of this node would cost {total} for one message; limit "
                f"predicates_cost is {self._limits.predicates_cost}; regular expressions are what "
                "costs most",
            )

    def subscribe(
        self,
        key: int,
        subscription: int,
        pattern: str,
        exact: bool,
        plan: Plan | None,
        passing: bool = False,
        own: UserFilter | None = None,
    ) -> None:
        """Route what matches to it; with `passing` only what is not persistent.

        A filter of its `own` is asked about each message, if it is known here.
        """
        if self._left_over and self._takers.count >= self._limits.subscriptions:
            self.sweep(2)  # whatever comes and goes, there are no more than the limit allows
        filter = self.index.add(plan, pattern.encode(), exact)
        held = self._held.setdefault(key, {})
        id = subscription | PASSING if passing else subscription
        outlet = self._numbers[key]
        if own is not None and own.known:
            outlet = self._takers.admit(_screen(self._outlets[key], subscription, own))
        number = held[subscription] = self._takers.add(filter, outlet, id)
        if own is not None:
            self._own[number] = own
            if own.known:
                self._screens[number] = outlet
        if self.on_interest is not None:
            self.on_interest(filter, True, key in self._links)
        if self._linked:
            self.index.set_links(filter, self._takers.links_of(filter))
        if key in self._links:
            self._links[key] += 1
            if self.on_member is not None and pattern.startswith(MEMBER_TOPIC):
                self.on_member(True, pattern)
        elif self._watch is not None:
            self._watch(True, *self._describe(number))
        self._changed(plan is None)

    def admit_group(self, outlet: Outlet) -> int:
        """A group takes messages from now on, as an outlet that stands for it; its number."""
        return self._takers.admit(outlet)

    def dismiss_group(self, number: int) -> None:
        """A group that nothing leads to any more is gone."""
        self._takers.dismiss(number)

    def number_of(self, key: int) -> int:
        """The number of somebody's outlet."""
        return self._numbers[key]

    def enter(
        self, outlet: int, id: int, pattern: str, exact: bool, plan: Plan | None, told: bool = True
    ) -> int:
        """A subscription that nobody has asked for: a rule did. Whether other nodes are told."""
        filter = self.index.add(plan, pattern.encode(), exact)
        number = self._takers.add(filter, outlet, id)
        self._entered[number] = told
        if self.on_interest is not None:
            self.on_interest(filter, True, False)
        if self._linked:
            self.index.set_links(filter, self._takers.links_of(filter))
        if told and self._watch is not None:
            self._watch(True, *self._describe(number))
        self._changed(plan is None)
        return number

    def withdraw(self, number: int) -> None:
        """It is no more."""
        told = self._entered.pop(number)
        self._changed(self._let_go(number, not told))

    def leads(self, topic: str) -> bool:
        """Whether somebody may take messages to this topic."""
        return not self._work_out(topic.encode()).is_empty()

    def regroup(self) -> None:
        """Members have come or gone."""
        self._changed(True)

    def keep(self, slot: int, pattern: str, exact: bool, plan: Plan | None) -> None:
        """Route what matches, if it is persistent, to a stream of the journal.

        Neighbours are not told: other nodes see to it that it gets what is kept there. What is
        kept here only, by the topic that it is published to, has to find its way, though.
        """
        outlet = self._takers.admit(Outlet(-1 - slot, slot))
        filter = self.index.add(plan, pattern.encode(), exact)
        self._kept[slot] = outlet, self._takers.add(filter, outlet, 1)
        if self.on_interest is not None:
            self.on_interest(filter, True, False)
        if self._linked:
            self.index.set_links(filter, self._takers.links_of(filter))
        self._tell_kept(slot)
        self._changed(True)

    def _tell_kept(self, slot: int) -> None:
        """Tell neighbours of a stream, or no more, as the topics are where everything is kept."""
        number = self._kept[slot][1]
        pattern, exact = self._describe(number)[:2]
        told = any(pattern_overlaps(one, pattern, all, exact) for one, all in self._persistent)
        if told != (slot in self._told_kept):
            (self._told_kept.add if told else self._told_kept.discard)(slot)
            if number in self._unwatched:
                del self._unwatched[number]
            elif self._watch is not None:
                self._watch(told, *self._describe(number))

    def release(self, slot: int) -> None:
        """The stream is gone."""
        outlet, number = self._kept.pop(slot)
        told = slot in self._told_kept
        self._told_kept.discard(slot)
        self._let_go(number, not told)
        self._takers.dismiss(outlet)
        self._changed(True)

    def keep_known(self, slot: int) -> None:
        """A stream stands for another node, which has mailboxes."""
        if slot not in self._away:
            self._away[slot] = self._takers.admit(Outlet(-1 - slot, slot)), {}

    def keep_more(
        self, slot: int, number: int, pattern: str, exact: bool, plan: Plan | None
    ) -> None:
        """One of them takes this."""
        self.keep_less(slot, number)
        outlet, numbers = self._away[slot]
        filter = self.index.add(plan, pattern.encode(), exact)
        numbers[number] = self._takers.add(filter, outlet, 1)
        if self.on_interest is not None:
            self.on_interest(filter, True, False)
        if self._linked:
            self.index.set_links(filter, self._takers.links_of(filter))
        self._changed(True)

    def keep_less(self, slot: int, number: int) -> None:
        """One of them is no more."""
        taken = self._away[slot][1].pop(number, None)
        if taken is not None:
            self._let_go(taken, True)
            self._changed(True)

    def release_away(self, slot: int) -> None:
        """Nothing is kept for that node any more."""
        for number in list(self._away[slot][1]):
            self.keep_less(slot, number)
        self._takers.dismiss(self._away.pop(slot)[0])
        self._changed(True)

    def unsubscribe(self, key: int, subscription: int) -> None:
        """Route it no more."""
        held = self._held[key]
        number = held.pop(subscription)
        if not held:
            del self._held[key]
        if key in self._links:
            self._links[key] -= 1
        self._changed(self._let_go(number, key in self._links))

    def _let_go(self, number: int, link: bool) -> bool:
        """A subscription, as takers know it, is no more; whether it had nothing but a topic."""
        described = self._describe(number)
        filter = self._takers.remove(number)
        self._own.pop(number, None)
        if number in self._screens:
            self._takers.dismiss(self._screens.pop(number))
        if self.on_interest is not None:
            self.on_interest(filter, False, link)
        only_topic = self.index.text(filter) is None
        if link and self.on_member is not None:
            pattern = self.index.topic_of(filter)[0].decode()
            if pattern.startswith(MEMBER_TOPIC):
                self.on_member(False, pattern)
        if number in self._unwatched:
            del self._unwatched[number]
        elif self._watch is not None and not link:
            self._watch(False, *described)
        if self._linked:
            self.index.set_links(filter, self._takers.links_of(filter))
        self.index.release(filter)
        return only_topic

    def interests(self) -> Iterator[int]:
        """Everything that is wanted, by whomever, by its number in the index, as often as it is."""
        for held in self._held.values():
            yield from map(self._takers.filter_of, held.values())
        for _, number in self._kept.values():
            yield self._takers.filter_of(number)
        for _, numbers in self._away.values():
            yield from map(self._takers.filter_of, numbers.values())
        yield from map(self._takers.filter_of, self._entered)
        for one in self._leaving:
            yield from map(self._takers.filter_of, one.subscriptions)

    def describe(self, filter: int) -> tuple[str, bool, str]:
        """What is wanted under a number: a pattern, whether exactly that, a selector."""
        pattern, exact = self.index.topic_of(filter)
        return pattern.decode(), exact, self.index.text(filter) or ""

    def refuses(self, key: int, topic: str) -> bool:
        """Whether a client may not publish to a topic because it did not say that it will."""
        if self.offered is None or topic.startswith("$") or key in self._links:
            return False
        return key in self._principals and not self.offered(key, topic)

    def _describe(self, number: int) -> tuple[Any, ...]:
        """What a subscription, as takers know it, asks for: three things, or five."""
        filter = self._takers.filter_of(number)
        pattern, exact = self.index.topic_of(filter)
        own = self._own.get(number)
        rest = () if own is None else (own.name, own.data)
        return pattern.decode(), exact, self.index.text(filter) or "", *rest

    def watch(self, watch: Watch) -> None:
        """Tell somebody what is wanted here from now on, and by and by what was before (`feed`)."""
        self._watch = watch
        for key, held in self._held.items():
            if key not in self._links:
                self._unwatched.update(dict.fromkeys(held.values()))
        for one in self._leaving:  # what is removed before it is told is never told
            if not one.link:
                self._unwatched.update(dict.fromkeys(one.subscriptions))
        told = [self._kept[slot][1] for slot in self._told_kept]
        self._unwatched.update(dict.fromkeys(told))
        self._unwatched.update(dict.fromkeys(n for n, told in self._entered.items() if told))

    def feed(self, most: int) -> bool:
        """Tell some of what was wanted before somebody watched; whether there is more."""
        assert self._watch is not None
        for number in list(islice(self._unwatched, most)):
            del self._unwatched[number]
            self._watch(True, *self._describe(number))
        return bool(self._unwatched)

    def wanted(self) -> Iterator[tuple[Any, ...]]:
        """What is wanted here, as often as it is."""
        for key, held in self._held.items():
            if key not in self._links:
                for number in held.values():
                    yield self._describe(number)
        for slot in self._told_kept:
            yield self._describe(self._kept[slot][1])
        for number, told in self._entered.items():
            if told:
                yield self._describe(number)
        for one in self._leaving:  # neighbours hear of it when it is removed
            if not one.link:
                for number in one.subscriptions:
                    yield self._describe(number)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All subscriptions, to look at."""
        for key, held in self._held.items():
            if key in self._links:
                continue
            for id, number in held.items():
                pattern, exact, text, *own = self._describe(number)
                row = {"connection": key, "id": id, "pattern": pattern, "exact": exact}
                yield row | {"selector": text} | ({"filter": own[0]} if own else {})

    def taking(self, envelope: bytes, most: int) -> Taking:
        """Who takes a message, under which id, by which filter: all links, and so many others."""
        found: list[tuple[Outlet, int, str, bool, str]] = []
        left_out = 0
        filters = self.index.match(envelope)
        for filter in filters:
            some, more = self._takers.having(filter, max(0, most - len(found)))
            left_out += more
            pattern, exact = self.index.topic_of(filter)
            description = pattern.decode(), exact, self.index.text(filter) or ""
            found += [(outlet, id, *description) for outlet, id in some]
        return Taking(found, left_out, frozenset(filters))

    def filters_of(
        self, key: int
    ) -> Iterator[tuple[int, int, tuple[str, bool, str], UserFilter | None]]:
        """What a connection wants: ids, filters as the index has them, as they are written, own."""
        for id, number in self.held(key).items():
            pattern, exact, text, *_ = self._describe(number)
            own = self._own.get(number)
            yield id, self._takers.filter_of(number), (pattern, exact, text), own

    def refusal_of(self, key: int, topic: str) -> str:
        """Why somebody may not publish to a topic; nothing if he may."""
        route = self._resolve(Source(key), topic.encode())
        return BY_NUMBER[route.refusal].name if route.refusal else ""

    def persists(self, topic: str) -> bool:
        """Whether what is published there is kept, whatever it says."""
        return any(matches(pattern, topic, exact) for pattern, exact in self._persistent)

    def describe_index(self, rows_max: int) -> dict[str, Any]:
        """The match index, to look at: its sizes, what an event costs, and what is hot."""
        counts = self.index.snapshot()
        events = counts["events"]
        per_event = {
            f"{name}_per_event": round(counts[name] / events, 2) if events else 0.0
            for name in ("looked_at", "verified", "evaluated")
        }
        rows = self.index.hottest(rows_max)
        total = counts["nodes"] - 1 if len(rows) == rows_max else len(rows)
        return {**counts, **per_event, "rows": rows, "total": total, "shown": len(rows)}

    def _changed(self, topics: bool) -> None:
        """Forget the routes that were worked out, if any of them may be another one now."""
        if topics or self._topics_seen != self.index.topic_changes:
            self._topics_seen = self.index.topic_changes
            self.lane.generation += 1
            self._forget_routes()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._shared.clear()

    def _resolve(self, source: Source, topic: bytes) -> Route:
        """The lane asks for a topic that this source has not used since the last change."""
        if topic.startswith(OVERRIDE):
            if self.override is None:
                return self._refused["not-supported"]
            return self.override(topic[len(OVERRIDE) :])
        text = topic.decode()
        try:
            check_topic(text)
        except LocalError:
            return self._refused["bad-topic"]
        principal = self._principals.get(source.key, NODE)
        if text.startswith(CUSTODY) and principal not in PEERS:
            return self._refused["not-authorized"]
        if not self._authorize(principal, "publish", text):
            return self._refused["not-authorized"]
        if self.offered is not None and self.refuses(source.key, text):
            return self._refused["not-advertised"]
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= self._limits.topics_cached:
                self._forget_routes()
            route = self._work_out(topic)
            if any(matches(pattern, text, exact) for pattern, exact in self._persistent):
                route = route.persisting()
            if text.startswith(TYPE_TOPIC) and route.is_empty():
                route = self._nobody
            self._routes[topic] = route
        return route

    def set_persistent(self, patterns: list[tuple[str, bool]]) -> None:
        """What is published to these topics is kept, whatever its publisher says."""
        if patterns != self._persistent:
            self._persistent = patterns
            for slot in self._kept:
                self._tell_kept(slot)
            self._changed(True)

    def _work_out(self, topic: bytes) -> Route:
        fixed, patterns, search = self.index.of_topic(topic)
        key = tuple(fixed), tuple(patterns), search
        route = self._shared.get(key)
        if route is None:
            choice = Choice(self._takers, fixed, patterns, self._limits.variants_cached)
            route = Route([], choice=choice) if search else choice.route()
            self._shared[key] = route
        return route


def _screen(outlet: Outlet, subscription: int, own: UserFilter) -> Outlet:
    """What stands for a subscription with a filter that is asked about each message."""
    packed = write_varint(subscription)
    ids = NO_IDS if outlet.link else b"\x12" + write_varint(len(packed)) + packed
    group = Group(outlet.key, shared=True)
    group.add(outlet, ids)
    group.screen = own.passes
    found = Outlet(outlet.key)
    found.group = group
    return found
