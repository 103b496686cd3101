"""Branches that are moved as planned while everybody talks: nobody misses or repeats anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from regraft.simulate import disk
from regraft.simulate.checkers import Key
from regraft.simulate.disks import Disks
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import RECONFIGURATIONS, Act, Plan

MS = 1_000_000
NODES = 8
BEGIN_MS, EVERY_MS, GAP_MS = 4000, 2000, 40
NEW, NEWER = NODES, NODES + 1  # nodes that come later


def talking_plan(seed: int, moments: int, protocol: str, covering: bool = True) -> Plan:
    """Everybody wants some things and talks all the time."""
    random = Random(f"moves {seed}")
    acts = [Act(10.0 * n, "start", (n, (0,) if n else ())) for n in range(NODES)]
    end_ms = BEGIN_MS + EVERY_MS * moments
    for guest in range(NODES):
        acts.append(Act(2000, "arrive", (guest, guest)))
        for id in (1, 2):
            pattern = random.choice(("a", "b/x", "c", "#"))
            acts.append(Act(2100, "subscribe", (guest, id, pattern, False, "")))
        count = (end_ms - 3500) // GAP_MS
        what = (random.choice(("a", "b/x", "c")), 1, "red", random.choice((0, 2000)))
        acts.append(Act(3500 + random.random() * GAP_MS, "publish", (guest, count, GAP_MS, *what)))
    return Plan(
        *(seed, "liveness", NODES, tuple(acts), end_ms + 1000),
        spread_ms=random.choice((1.0, 10.0, 25.0)),
        jitter=random.choice((0.05, 1.0)),
        max_degree=3,
        reconfiguration=protocol,
        covering=covering,
    )


def with_acts(plan: Plan, *acts: Act) -> Plan:
    return replace(plan, acts=tuple(sorted((*plan.acts, *acts), key=lambda act: act.ms)))


def moving_plan(seed: int, moves: int, protocol: str, covering: bool = True) -> Plan:
    """One branch after the other moves."""
    random = Random(f"who moves {seed}")
    acts = [
        Act(BEGIN_MS + number * EVERY_MS, "move", tuple(random.sample(range(NODES), 2)))
        for number in range(moves)
        for _ in range(6)  # one of these makes sense, mostly
    ]
    return with_acts(talking_plan(seed, moves, protocol, covering), *acts)


class OneAtATime(NetworkStory):
    """Of several moves that are planned for one moment only the first that makes sense is told."""

    def _act(self, act: Act) -> None:
        if act.what == "move" and self.world.ns in self._moves.values():
            return
        super()._act(act)


def moved(story: NetworkStory) -> int:
    return sum(broker.node.topology()["moves"]["moved"] for broker in story._brokers.values())


def nobody_noticed(story: NetworkStory) -> None:
    """Whoever wanted something got it, once."""
    seen = Counter(
        (sight.guest, sight.publisher, sight.number) for sight in story.deliveries.sights
    )
    assert set(seen.values()) == {1}
    missed = [
        (one.guest, said.guest, said.number)
        for said in story.deliveries.publications.values()
        for one in story.deliveries.subscriptions
        if one.filter.takes(said.message) and (one.guest, said.guest, said.number) not in seen
    ]
    assert missed == []


@pytest.mark.parametrize("protocol", RECONFIGURATIONS)
def test_nobody_notices(protocol: str) -> None:
    story = OneAtATime(moving_plan(1, 4, protocol))
    assert story.tell() == []
    assert story.counts["move"] >= 3 and moved(story) == story.counts["move"]
    nobody_noticed(story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_nobody_notices_many(seed: int) -> None:
    story = OneAtATime(moving_plan(seed, 12, RECONFIGURATIONS[seed % 5], seed % 2 == 0))
    assert story.tell() == []
    assert story.counts["move"] >= 8 and moved(story) == story.counts["move"]
    nobody_noticed(story)


def persistent(plan: Plan) -> Plan:
    """The same, but all that is said must not be lost, and every node has a disk."""
    acts = tuple(a._replace(what="keep") if a.what == "publish" else a for a in plan.acts)
    disks = tuple((n, "#") for n in range(NODES))
    return replace(plan, acts=acts, disks=disks, end_ms=plan.end_ms + 2000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 8])
def test_nobody_notices_though_disks_are_slow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was routed before a move and is on the disk after it is neither late nor lost."""
    usual, finish = disk.SYNC_NS, Disks.finish

    def finish_quickly(disks: Disks) -> None:
        monkeypatch.setattr(disk, "SYNC_NS", usual)  # who looks at what is left has little time
        finish(disks)

    monkeypatch.setattr(disk, "SYNC_NS", (20 * MS, 90 * MS))
    monkeypatch.setattr(Disks, "finish", finish_quickly)
    story = OneAtATime(persistent(moving_plan(seed, 4, RECONFIGURATIONS[-1])))
    assert story.tell() == []
    assert story.counts["move"] >= 3 and moved(story) >= 3  # one may be told before another is over
    nobody_noticed(story)


# ------------------------------------------------------------------------- at once

TOGETHER_MS = (0, 1, 5, 30, 100)
SOON_MS = 1000  # well below the time for which a move is patient


def colliding_plan(seed: int, moments: int) -> Plan:
    """Several branches are told to move at nearly the same time, many of them across each other."""
    random = Random(f"collide {seed}")
    acts = []
    for number in range(moments):
        for _ in range(8):
            ms = BEGIN_MS + number * EVERY_MS + random.choice(TOGETHER_MS) * random.random()
            acts.append(Act(ms, "move", tuple(random.sample(range(NODES), 2))))
    plan = talking_plan(seed, moments, RECONFIGURATIONS[seed % 5], seed % 2 == 0)
    return with_acts(plan, *acts)


def collide(seed: int, moments: int) -> None:
    """Some move, the others hear at once that they cannot, and nobody notices either."""
    story = NetworkStory(colliding_plan(seed, moments))
    assert story.tell() == []
    nobody_noticed(story)
    counts: Counter[str] = Counter()
    for broker in story._brokers.values():
        found = broker.node.topology()["moves"]
        counts.update({what: found[what] for what in ("moved", "stayed", "late")})
    assert counts["moved"] and counts["stayed"] and not counts["late"]
    said = story.deliveries.publications
    late = max(one.ns - said[one.publisher, one.number].ns for one in story.deliveries.sights)
    assert late < SOON_MS * MS


def test_moves_that_collide() -> None:
    collide(0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4, 6, 14, 88, 99])
def test_many_moves_that_collide(seed: int) -> None:
    collide(seed, 4)


# --------------------------------------------------------------- made of several moves


class Directed(NetworkStory):
    """What is done depends on the tree that there is."""

    def direct(self, directions: dict[float, Callable[[Directed], list[Act]]]) -> None:
        self.directions = directions

    def _act(self, act: Act) -> None:
        if act.what != "direct":
            super()._act(act)
            return
        for one in self.directions[act.ms](self):
            before = self.counts.get(one.what, 0)
            super()._act(one)
            assert self.counts.get(one.what, 0) == before + 1, f"{one} makes no sense"

    def links(self) -> dict[int, int | None]:
        """The parent of each node."""
        return {
            _number(key): None if one.parent is None else _number(one.links[one.parent])
            for key, one in self.tree.standings.items()
        }

    def inner(self) -> tuple[int, int]:
        """A link between two old nodes, of which the lower one has somebody below it."""
        links = self.links()
        return next(
            (above, n)
            for n, above in links.items()
            if above is not None and max(n, above) < NODES and n in links.values()
        )


def _number(key: Key) -> int:
    return int(key[0].rpartition("-")[2])


def under(node: int, parent: int) -> Act:
    return Act(0, "move", (node, parent))


class Builder:
    """Puts nodes between others, and takes them away again: one step at each moment."""

    def __init__(self, chain: list[int]) -> None:
        self.chain = chain
        self.above = self.below = -1

    def attach(self, place: int) -> Callable[[Directed], list[Act]]:
        """A new node becomes the leaf that the next one, or the branch, is put below."""

        def act(story: Directed) -> list[Act]:
            if place == 0:
                self.above, self.below = story.inner()
            parent = self.chain[place - 1] if place else self.above
            there = story.links()[self.chain[place]] == parent
            return [] if there else [under(self.chain[place], parent)]

        return act

    def substitute(self, story: Directed) -> list[Act]:
        """The last link of the chain takes the place of the old link."""
        return [under(self.below, self.chain[-1])]

    def inserted(self, story: Directed) -> list[Act]:
        links = story.links()
        path = [self.above, *self.chain, self.below]
        assert [links[n] for n in path[1:]] == path[:-1]
        return []

    def bypass(self, story: Directed) -> list[Act]:
        """The first link that there was takes the place of the last one of the chain."""
        return [under(self.below, self.above)]

    def leave(self, story: Directed) -> list[Act]:
        assert self.chain[-1] not in story.links().values()
        return [Act(0, "leave", (self.chain[-1],))]

    def gone(self, story: Directed) -> list[Act]:
        links = story.links()
        assert self.chain[-1] not in links and links[self.below] == self.above
        return []


@pytest.mark.parametrize(
    ("chain", "protocol"), [([NEW], "reconfiguration-path"), ([NEW, NEWER], "deferred-notified")]
)
def test_inner_nodes_are_inserted_and_removed(chain: list[int], protocol: str) -> None:
    """A node, or a chain of two, is put into a link; then its last one is taken out again."""
    builder = Builder(chain)
    steps: list[Callable[[Directed], list[Act]]] = [
        *(builder.attach(place) for place in range(len(chain))),
        *(builder.substitute, builder.inserted, builder.bypass, builder.leave, builder.gone),
    ]
    directions = {BEGIN_MS + 1.0 + EVERY_MS * (1 + n): step for n, step in enumerate(steps)}
    starts = [Act(BEGIN_MS + 10 * n, "start", (n, (0,))) for n in chain]
    directed = [Act(ms, "direct", ()) for ms in directions]
    plan = talking_plan(3, len(steps) + 1, protocol)
    story = Directed(with_acts(plan, *starts, *directed))
    story.direct(directions)
    assert story.tell() == []
    assert story.counts["move"] >= 2 and story.counts["leave"] == 1
    nobody_noticed(story)


# ------------------------------------------------------------------------ interrupted


def interrupted(who: str, after_ms: float, protocol: str) -> tuple[bool, NetworkStory]:
    """A move, and a moment later one who takes part in it dies; whether it was done before."""
    at_ms = BEGIN_MS + 1.0
    victims: dict[str, int] = {}

    def begin(story: Directed) -> list[Act]:
        links = story.links()
        for mover, parent in links.items():
            for target in links:
                steps = story.tree.paths(_key(story, mover)).get(_key(story, target), ())
                way = [_number(node) for _, node in steps]
                if len(way) >= 3 and way[0] == parent and mover in links.values():
                    victims.update(mover=mover, source=way[0], way=way[1], target=target)
                    return [under(mover, target)]
        raise AssertionError("nobody can move")

    def strike(story: Directed) -> list[Act]:
        done.append(moved(story) > 0)
        return [Act(0, "kill", (victims[who],))]

    done: list[bool] = []
    directions = {at_ms: begin, at_ms + after_ms: strike}
    plan = talking_plan(5, 1, protocol)
    story = Directed(with_acts(plan, *(Act(ms, "direct", ()) for ms in directions)))
    story.direct(directions)
    story.tell()
    return done[0], story


def _key(story: NetworkStory, number: int) -> Key:
    return next(key for key in story.tree.standings if _number(key) == number)


def interrupt(who: str, moments: tuple[int, ...]) -> None:
    """Tables are right again, nothing comes twice, and nothing else is lost."""
    finished = []
    for number, after_ms in enumerate(moments):
        protocol = RECONFIGURATIONS[-1 - number % 5]
        done, story = interrupted(who, after_ms, protocol)
        assert story.complaints == [], (who, after_ms, protocol)
        finished.append(done)
    assert finished.count(False) >= 2 and finished[-1]


TAKING_PART = ("mover", "source", "way", "target")


@pytest.mark.parametrize("who", TAKING_PART)
def test_a_move_that_is_interrupted(who: str) -> None:
    interrupt(who, (60, 15, 300))


@pytest.mark.slow
@pytest.mark.parametrize("who", TAKING_PART)
def test_a_move_that_is_interrupted_at_any_moment(who: str) -> None:
    interrupt(who, (1, 5, 10, 20, 40, 50, 70, 80, 120, 200, 400))
