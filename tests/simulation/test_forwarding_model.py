"""Subscription forwarding on random trees: links in order, everything else in any order, by seed.

There are no bytes here and no overlay: a tree of `Forwarding` objects, two queues for each link,
and a checker that knows the whole tree. It looks at the messages and at nothing inside.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import cache, partial
from random import Random

import pytest

from regraft.errors import LocalError
from regraft.model.selector import Selector
from regraft.model.selector.cover import form_covers
from regraft.routing.covering import Interest
from regraft.routing.forwarding import LOCAL, Filter, Forwarding
from regraft.routing.reconfiguration import DeferredTimed, Reconfigurator, Strawman

MS = 1_000_000
PATTERNS = ("", "a", "a/#", "a/b", "a/+", "+/b", "a/b/c", "b", "b/+/c", "b/a/c")


class Gap(AssertionError):
    """A subscriber who stayed where he was lost his way for a moment."""


class Wrong(AssertionError):
    """Though all is quiet, neighbours were told too much, or not enough."""


# --------------------------------------------------------------------- filters


def some_filter(random: Random) -> Filter:
    """One that often covers another of these, or says the same in other words."""
    k = random.randrange(4)
    selector = random.choice(
        (
            *("", "", f"p > {k}", f"p > {k} AND p > {k - 1}", f"p BETWEEN {k} AND {k + 2}"),
            *(f"p = {k}", "s = 'x'", "s IN ('x')", "s IN ('x', 'y')", f"s = 'x' AND p > {k}"),
            *("STARTS_WITH(s, 'x')", "p IS NOT NULL", f"p > {k} OR s = 'x'", "p > ("),
        )
    )
    return Filter(random.choice(PATTERNS), random.random() < 0.2, selector)


@cache
def covers(one: Filter, other: Filter) -> bool:
    """As the reference has it."""
    return form_covers(_interest(one).form, _interest(other).form)


@cache
def _interest(one: Filter) -> Interest:
    try:
        return Interest(one.pattern, one.exact, Selector.parse(one.selector or "TRUE"))
    except LocalError:
        return Interest(one.pattern, one.exact)


def is_canonical(told: list[Filter], wanted: set[Filter], covering: bool) -> bool:
    """Whether the one is what is left of the other, up to the words."""
    if not covering:
        return sorted(told) == sorted(wanted)
    if any(covers(a, b) for i, a in enumerate(told) for j, b in enumerate(told) if i != j):
        return False
    if not all(any(covers(a, b) for a in told) for b in wanted):
        return False
    return all(any(covers(a, b) and covers(b, a) for b in wanted) for a in told)


# ----------------------------------------------------------------------- links


class Hop:
    """One direction of a link: what is under way, and what has arrived."""

    def __init__(self, sender: int, receiver: int, rid: bytes) -> None:
        self.sender, self.receiver = sender, receiver
        self.rid = rid  # of the link that this one replaces
        self.keys = (0, 0)  # of the link, at both ends
        self.back: Hop = self
        self.alive = True
        self.joined = False  # the sender knows of the link
        self.noticed = False  # the sender knows that it is no more
        self.queue: deque[tuple[list[tuple[int, Filter]], list[int]]] = deque()
        self.used: set[int] = set()
        self.synced = 0
        self.table: dict[int, Filter] = {}
        self.sure: set[tuple[int, Filter]] = set()  # who is found by this way, and is to be


class Net:
    """Nodes in a tree."""

    def __init__(self, random: Random, nodes: list[Forwarding], covering: bool) -> None:
        self.random = random
        self.nodes = nodes
        self.covering = covering
        self.now = 0
        self.local: list[Counter[Filter]] = [Counter() for _ in nodes]
        self.pool = [some_filter(random) for _ in range(random.choice((4, 12, 30)))]
        self.hops: list[
            Hop
        ] = []  # two for each link, also of those that somebody still believes in
        self.last_key = 0
        self.lost: list[bytes] = []  # links without a replacement
        self.told = Counter[str]()
        for node in range(1, len(nodes)):
            self.link(random.randrange(node), node, b"")

    # ------------------------------------------------------------ what happens

    def link(self, a: int, b: int, rid: bytes) -> None:
        """There is a link; its ends have yet to know."""
        there, back = Hop(a, b, rid), Hop(b, a, rid)
        there.back, back.back = back, there
        there.keys = (self.last_key + 1, self.last_key + 2)
        back.keys = there.keys[::-1]
        self.last_key += 2
        self.hops += there, back

    def join(self, hop: Hop) -> None:
        """The sender gets to know of its link."""
        hop.joined = True
        self.nodes[hop.sender].added(hop.keys[0], hop.rid, self.now)

    def cut(self, hop: Hop) -> None:
        """A link breaks, and what was under way is lost."""
        for one in (hop, hop.back):
            one.alive = False
            one.queue.clear()
            one.sure.clear()
        rid = b"%d-%d" % tuple(sorted(hop.keys))
        self.lost.append(rid)
        for other in self.hops:
            side = self.side(other) if other.alive else set()
            other.sure = {(node, one) for node, one in other.sure if node in side}

    def graft(self) -> None:
        """A new link in place of a lost one, between any nodes of two parts."""
        a = self.random.randrange(len(self.nodes))
        others = sorted(set(range(len(self.nodes))) - self.part(a))
        self.lost.sort()
        rid = self.lost.pop(self.random.randrange(len(self.lost)))
        self.link(a, self.random.choice(others), rid)

    def notice(self, hop: Hop) -> None:
        """The sender gets to know that its link is no more."""
        hop.noticed = True
        rid = b"%d-%d" % tuple(sorted(hop.keys))
        planned = self.random.random() < 0.3
        self.nodes[hop.sender].lost(hop.keys[0], rid, planned, self.now)

    def hold(self, node: int) -> None:
        """A client subscribes."""
        one = self.random.choice(self.pool)
        self.local[node][one] += 1
        self.nodes[node].hold(LOCAL, one)

    def release(self, node: int) -> None:
        """A client unsubscribes."""
        one = self.random.choice(sorted(self.local[node]))
        self.local[node][one] -= 1
        self.local[node] += Counter()
        self.nodes[node].release(LOCAL, one)
        if one not in self.local[node]:
            for hop in self.hops:
                hop.sure.discard((node, one))

    def announce(self, node: int) -> None:
        """A node says what it has to say."""
        for key, adds, removes, synced in self.nodes[node].announce(self.now):
            hop = next(h for h in self.hops if h.keys[0] == key)
            numbers = {number for number, _ in adds}
            assert len(numbers) == len(adds) and not numbers & hop.used, "a number is used twice"
            hop.used |= numbers
            hop.synced += synced
            self.told["SUB"] += len(adds)
            self.told["UNSUB"] += len(removes)
            if hop.alive and (adds or removes):
                hop.queue.append((adds, removes))

    def deliver(self, hop: Hop) -> None:
        """One message arrives."""
        adds, removes = hop.queue.popleft()
        self.nodes[hop.receiver].received(hop.keys[1], adds, removes)
        hop.table.update(adds)
        for number in removes:
            del hop.table[number]
        self.check(hop)
        self.be_sure(hop)

    # ----------------------------------------------------------------- checks

    def part(self, start: int, without: Hop | None = None) -> set[int]:
        """The nodes that are connected with one."""
        found, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            for hop in self.hops:
                leads_on = hop.alive and hop.sender == node and hop is not without
                if leads_on and hop.receiver not in found:
                    found.add(hop.receiver)
                    waiting.append(hop.receiver)
        return found

    def side(self, hop: Hop) -> set[int]:
        """The nodes on the sender's side of a link."""
        return self.part(hop.sender, without=hop)

    def check(self, hop: Hop) -> None:
        """Who was found by this way is found."""
        arrived = set(hop.table.values())
        for node, one in sorted(hop.sure):
            if not any(covers(other, one) for other in arrived):
                raise Gap(f"{hop.receiver} no longer knows that {node} wants {one}")

    def be_sure(self, hop: Hop) -> None:
        """If the sender is done, what it knows for sure has come across, and has to stay."""
        next_ns = self.nodes[hop.sender].next_ns
        if hop.queue or not hop.joined or (next_ns is not None and next_ns <= self.now):
            return
        known = {(hop.sender, one) for one in self.local[hop.sender]}
        for before in self.hops:
            if before.alive and before.receiver == hop.sender and before is not hop.back:
                known |= before.sure
        arrived = set(hop.table.values())
        hop.sure |= {
            (node, one)
            for node, one in known
            if (node, one) not in hop.sure and any(covers(other, one) for other in arrived)
        }

    def check_quiet(self) -> None:
        """All have been told what they should, and nothing else."""
        for hop in self.hops:
            rows = self.nodes[hop.sender].rows()
            received, sent = rows[hop.keys[0]]
            assert sent == hop.table and received == hop.back.table
            assert hop.synced == 1
            wanted = {one for node in self.side(hop) for one in self.local[node]}
            if not is_canonical(list(sent.values()), wanted, self.covering):
                raise Wrong(f"{hop.sender} told {hop.receiver} {sent}, and not {wanted}")
        for number, node in enumerate(self.nodes):
            assert set(node.rows()) == {h.keys[0] for h in self.hops if h.sender == number}

    # ------------------------------------------------------------------- story

    def choices(self, churn: bool, quiet: bool) -> list[Callable[[], None]]:
        """What may happen next."""
        random, found = self.random, list[Callable[[], None]]()
        node = random.randrange(len(self.nodes))
        alive = [hop for hop in self.hops if hop.alive]
        if churn and not quiet:
            found.append(partial(self.hold, node))
            if self.local[node]:
                found.append(partial(self.release, node))
        if not quiet and alive and random.random() < 0.15:
            found.append(partial(self.cut, random.choice(alive)))
        if self.lost and (quiet or random.random() < 0.3):
            found.append(self.graft)
        for hop in self.hops:
            if hop.alive and not hop.joined and self.may_join(hop):
                found.append(partial(self.join, hop))
            if not hop.alive and hop.joined and not hop.noticed:
                found.append(partial(self.notice, hop))
        full = [hop for hop in alive if hop.queue and hop.back.joined]
        if full:
            found += [partial(self.deliver, random.choice(full))] * 3
        busy = [number for number, one in enumerate(self.nodes) if self.is_due(one)]
        if busy:
            found += [partial(self.announce, random.choice(busy))] * 3
        return found

    def may_join(self, hop: Hop) -> bool:
        """Of the lost link a node gets to know before it does of the one that replaces it."""
        return not any(
            other.sender == hop.sender
            and other.joined
            and not other.noticed
            and b"%d-%d" % tuple(sorted(other.keys)) == hop.rid
            for other in self.hops
        )

    def is_due(self, node: Forwarding) -> bool:
        """Whether a node has something to do."""
        return node.next_ns is not None and node.next_ns <= self.now

    def tidy(self) -> None:
        """Forget the links that nobody believes in any more."""
        self.hops = [
            hop
            for hop in self.hops
            if hop.alive
            or (hop.joined and not hop.noticed)
            or (hop.back.joined and not hop.back.noticed)
        ]

    def run(self, steps: int, churn: bool) -> None:
        """Let it happen, then let it come to rest, and look."""
        for _ in range(steps):
            self.random.choice(self.choices(churn, quiet=False) or [lambda: None])()
            self.tidy()
            for hop in self.hops:
                if hop.alive and not hop.queue:
                    self.be_sure(hop)
            if self.random.random() < 0.1:
                self.now += self.random.choice((1, 100, 1000)) * MS
        while True:
            while choices := self.choices(churn, quiet=True):
                self.random.choice(choices)()
                self.tidy()
            if not any(node.snapshot()["waiting"] for node in self.nodes):
                self.check_quiet()
            times = [node.next_ns for node in self.nodes if node.next_ns is not None]
            if not times:
                return
            self.now = max(min(times), self.now)


Maker = Callable[[], Reconfigurator]
PROTOCOLS: dict[str, Maker] = {
    "strawman": Strawman,
    "deferred-timed": DeferredTimed,
    "deferred by 0": lambda: DeferredTimed(0),
}


def story(
    seed: int,
    protocol: Maker,
    make: type[Forwarding] = Forwarding,
    bugs: Iterable[str] = (),
    covering: bool = True,
) -> Net:
    """One tree, several times stirred and left to rest."""
    random = Random(seed)
    work_max = random.choice((1, 2, 1000))
    nodes = [
        make(protocol(), covering, work_max, frozenset(bugs)) for _ in range(random.randint(2, 8))
    ]
    net = Net(random, nodes, covering)
    for _ in range(3):
        net.run(random.choice((30, 80, 160)), churn=random.random() < 0.8)
    return net


def caught(error: tuple[type[AssertionError], ...], seeds: int, tell: Callable[[int], Net]) -> int:
    """In how many stories the checker found such an error."""
    found = 0
    for seed in range(seeds):
        try:
            tell(seed)
        except error:
            found += 1
    return found


# ----------------------------------------------------------------------- tests


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_are_told_what_they_should_and_nobody_is_lost(protocol: str) -> None:
    for seed in range(40):
        story(seed, PROTOCOLS[protocol])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_covering_it_is_the_same(protocol: str) -> None:
    for seed in range(40):
        story(seed, PROTOCOLS[protocol], covering=False)


@pytest.mark.slow
@pytest.mark.parametrize("covering", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_stories(protocol: str, covering: bool) -> None:
    for seed in range(1000, 1400):
        story(seed, PROTOCOLS[protocol], covering=covering)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unsubscribing_first_is_caught(protocol: str) -> None:
    bug = "unsubscribe-first"
    assert caught((Gap,), 12, lambda seed: story(seed, PROTOCOLS[protocol], bugs=[bug])) >= 3


class UnsubscribesWhatWaited(Forwarding):
    """Takes what was held back for unsubscriptions, as the papers have it."""

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> None:
        """Note what is held back: what was told to others because of this link alone."""
        self.__dict__.setdefault("pending", {})[key] = [
            (link.key, group)
            for held in self._holders[key].filters
            if held.number and held.holders == (self._holders[key],)
            for link in self._links.values()
            if (group := self._index.group_of(held.number)) in link.told
        ]
        super().lost(key, rid, planned, now_ns)

    def _end(self, key: int) -> None:
        super()._end(key)
        for other, group in self.__dict__["pending"].pop(key):
            link = self._links.get(other)
            if link is not None and group in link.told:
                link.to_remove[group] = None


def test_treating_what_waited_as_unsubscriptions_is_wrong() -> None:
    def tell(seed: int) -> Net:
        return story(seed, DeferredTimed, make=UnsubscribesWhatWaited)

    assert caught((Gap, Wrong), 12, tell) >= 3


def test_waiting_saves_words() -> None:
    said = {
        protocol: sum(
            (story(seed, PROTOCOLS[protocol]).told for seed in range(25)), Counter[str]()
        ).total()
        for protocol in ("strawman", "deferred-timed")
    }
    assert said["deferred-timed"] < said["strawman"], said
