"""What is going to happen in a network of brokers: a list of acts, made from a seed.

Acts are plain data and say all that chance decides, so that some can be left out and the others
stay the same. One that makes no sense when its time has come, as a crash of a node that does not
run, is passed over.

Two kinds of plans are kept apart. *Safety*: things go wrong to the end, and what must never happen
must not happen. *Liveness*: things go wrong, then all is well again, and in bounded time everything
must be as if nothing had been wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from regraft.model.message import Message

MODES = ("liveness", "safety")
TOPICS = ("a", "a/x", "a/y", "b", "b/x", "b/x/y", "c", "c/x")
PATTERNS = ("a", "a/#", "a/x", "b", "b/+", "b/x/y", "c", "+/x", "#", "c/x")
SELECTORS = (
    *("", "", "", "n > 5", "n > 5 AND n < 9", "n BETWEEN 2 AND 8", "n > 20", "color = 'red'"),
    *("color IN ('red', 'blue')", "color LIKE 'r%' AND n > 1", "color IS NOT NULL"),
)
COLORS = ("red", "blue", "green")
RETAINED = ("a/#", "b/#", "c/#", "#")
BOXES = (("shelf", "a/#", 0), ("tray", "b/#", 0), ("rack", "+/x", 0))  # mailboxes
ROAMING = (("roams-a", "a/#"), ("roams-all", "#"))  # that move from node to node
ROAMS_MAX = 12  # to one node, where each leaves two streams

RECONFIGURATIONS = (
    *("strawman", "deferred-timed", "deferred-notified"),
    *("informed-activation", "reconfiguration-path"),
)

STARTED_MS = 1500  # by then all nodes have been started
TROUBLE_MS = 4500  # from then on things go wrong


class Act(NamedTuple):
    """Something happens at a moment."""

    ms: float
    what: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.ms:9.1f} ms  {self.what} {' '.join(map(str, self.args))}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A network and what happens to it."""

    seed: int
    mode: str
    nodes: int
    acts: tuple[Act, ...]
    end_ms: float  # when all is well again, or the story ends
    loss: float = 0.0  # of datagrams
    spread_ms: float = 15.0
    jitter: float = 0.1
    max_degree: int = 8
    reconfiguration: str = "reconfiguration-path"
    deferral_ms: int = 3000
    covering: bool = True
    disks: tuple[tuple[int, str], ...] = ()  # nodes that have one, and what they retain there
    advertisements: bool = False  # the network routes by them
    custody: bool = False  # it is about persistent messages between nodes

    def without(self, acts: Sequence[Act]) -> Plan:
        """The same with these acts only."""
        return replace(self, acts=tuple(acts))

    def told(self) -> str:
        """For people."""
        about = f"{self.nodes} nodes, {self.mode}, {self.loss:.0%} of datagrams lost"
        more = f"degree {self.max_degree}, {self.reconfiguration} {self.deferral_ms} ms"
        if self.disks:
            more += f", disks {' '.join(f'{node}:{retained}' for node, retained in self.disks)}"
        lines = [f"seed {self.seed}: {about}, {more}", *map(str, self.acts)]
        return "\n".join([*lines, f"{self.end_ms:9.1f} ms  the end"])


def make_plan(
    seed: int,
    mode: str = "",
    nodes: int = 0,
    lasting_ms: float = 0,
    pace: float = 1.0,
    disks: bool | None = None,
    custody: bool = False,
) -> Plan:
    """The plan of a seed: of 3 to 20 nodes and either mode, unless something else is said.

    `pace` is how much guests do, by the time that it all lasts. In every second story some nodes
    have disks, unless `disks` says whether. With `custody` it is all about these: most of what is
    said is persistent, and there are mailboxes for it elsewhere.
    """
    if custody:
        mode, disks, pace = mode or "liveness", True, pace / 5
    random = Random(f"plan {seed}")
    mode = mode or MODES[seed % 2]
    nodes = nodes or random.choice((3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10, 12, 14, 17, 20))
    lasting_ms = lasting_ms or random.choice((3000, 6000, 10_000))
    end_ms = TROUBLE_MS + lasting_ms
    acts = [
        *_starts(random, nodes),
        *_guests(random, nodes, end_ms, pace),
        *_exposures(random, nodes, end_ms),
        *_troubles(random, nodes, end_ms),
    ]
    if random.random() < 0.4:
        acts = [_knowing_all(act, nodes) for act in acts]
    chance = Random(f"disks {seed}")
    having: tuple[tuple[int, str], ...] = ()
    if chance.random() < 0.5 if disks is None else disks:
        count = min(nodes, chance.choice((2, 3, 4, 6) if custody else (1, 2, 2, 3, 6)))
        where = sorted(chance.sample(range(nodes), count))
        having = tuple((node, chance.choice(RETAINED)) for node in where)
        acts += _keeping(chance, nodes, where, end_ms, 4.0 if custody else 1.0)
        if custody:
            acts += _transacting(Random(f"transactions {seed}"), where, end_ms)
            acts += _few_a_node(_roaming(Random(f"roaming {seed}"), where, end_ms))
    acts.sort(key=lambda act: act.ms)
    return Plan(
        seed,
        mode,
        nodes,
        tuple(acts),
        end_ms,
        loss=random.choice((0.0, 0.0, 0.02, 0.1)),
        spread_ms=random.choice((1.0, 10.0, 25.0)),
        jitter=random.choice((0.05, 0.2, 1.0)),
        max_degree=random.choice((2, 3, 4, 8)),
        reconfiguration=random.choice(RECONFIGURATIONS),
        deferral_ms=random.choice((500, 3000)),
        covering=random.random() < 0.85,
        disks=having,
        custody=custody,
    )


def churn_plan(
    seed: int, nodes: int = 300, lasting_ms: float = 20_000, every_ms: float = 150
) -> Plan:
    """Very many nodes that come and go all the time, and a few guests."""
    random = Random(f"churn {seed}")
    end_ms = TROUBLE_MS + lasting_ms
    acts = [*_starts(random, nodes), *_guests(random, nodes, end_ms, 1.0)]
    ms = float(TROUBLE_MS)
    while ms < end_ms:
        ms += random.expovariate(1 / every_ms)
        node = random.randrange(nodes)
        acts.append(Act(ms, random.choice(("kill", "kill", "dark")), (node,)))
        acts.append(
            Act(ms + random.uniform(100, 4000), "start", (node, _seeds(random, nodes, node)))
        )
    acts.sort(key=lambda act: act.ms)
    return Plan(seed, "liveness", nodes, tuple(acts), end_ms + 4000, loss=0.01)


def _seeds(random: Random, nodes: int, node: int) -> tuple[int, ...]:
    """Whom a node joins by: the first node among others, which runs again when all is well."""
    some = {0, random.randrange(nodes), random.randrange(nodes)} - {node}
    return tuple(sorted(some)) or ((node + 1) % nodes,)


def _knowing_all(act: Act, nodes: int) -> Act:
    """The same, but a node that is started knows everybody."""
    if act.what != "start":
        return act
    node = act.args[0]
    return act._replace(args=(node, tuple(other for other in range(nodes) if other != node)))


def _starts(random: Random, nodes: int) -> Iterator[Act]:
    """Nodes come one by one, or all at once."""
    within = random.choice((1, 300, STARTED_MS))
    for node in range(nodes):
        ms = 0 if node == 0 else random.uniform(0, within)
        yield Act(ms, "start", (node, _seeds(random, nodes, node)))


# --------------------------------------------------------------------------------- guests


def _filter(random: Random) -> tuple[str, bool, str]:
    return random.choice(PATTERNS), random.random() < 0.2, random.choice(SELECTORS)


def message_of(topic: str, n: int, color: str, body: bytes) -> Message:
    """What guests say."""
    attributes: dict[str, Any] = {"n": n}
    if color:
        attributes["color"] = color
    return Message(topic, body, attributes)


def _guests(random: Random, nodes: int, end_ms: float, pace: float) -> Iterator[Act]:
    count = max(3, min(nodes, 14))
    ids = 0
    lasting = (end_ms - STARTED_MS) / 1000 * pace
    for guest in range(count):
        comes = STARTED_MS + random.uniform(0, 1500)
        if guest > 3 and random.random() < 0.3:
            comes = random.uniform(STARTED_MS, end_ms - 1000)
        yield Act(comes, "arrive", (guest, random.randrange(nodes)))
        for _ in range(random.choice((0, 1, 1, 2, 4, 6))):
            ids += 1
            ms = random.uniform(comes, min(comes + 1000, end_ms))
            if random.random() < 0.3:
                ms = random.uniform(comes, end_ms)
            yield Act(ms, "subscribe", (guest, ids, *_filter(random)))
            if random.random() < 0.4:
                yield Act(random.uniform(ms, end_ms), "unsubscribe", (guest, ids))
        if random.random() < 0.7:
            for _ in range(int(lasting * random.choice((0.3, 0.7, 1.5)))):
                yield _publish(random, guest, random.uniform(comes, end_ms))
        if random.random() < 0.15:
            yield Act(random.uniform(comes, end_ms), "depart", (guest,))


def _exposures(random: Random, nodes: int, end_ms: float) -> Iterator[Act]:
    """Somebody wants all of something, and then only a part of it, while others speak of it.

    What covered the part goes away, and the part has to be announced instead; those who want it
    must not notice.
    """
    for number in range(100, 100 + random.choice((0, 1, 1, 2))):
        here, there = random.sample(range(nodes), 2)
        topic, n = random.choice(TOPICS[1:]), random.randrange(6, 9)
        whole = (random.choice(("#", topic[0])), False, "")
        part = (topic, random.random() < 0.3, random.choice(("", "n > 5", "n BETWEEN 2 AND 8")))
        comes = STARTED_MS + random.uniform(0, 500)
        yield Act(comes, "arrive", (number, here))
        yield Act(comes, "arrive", (number + 100, there))
        yield Act(comes + 100, "subscribe", (number, 10 * number, *whole))
        yield Act(comes + 200, "subscribe", (number, 10 * number + 1, *part))
        before = comes + 2500  # it is established by then
        yield Act(before, "publish", (number + 100, 1, 0, topic, n, "red", 0))
        ms = random.uniform(before + 100, end_ms - 500)
        yield Act(ms - 1, "publish", (number + 100, 50, 0.7, topic, n, "red", 0))
        yield Act(ms, "unsubscribe", (number, 10 * number))


def _publish(random: Random, guest: int, ms: float) -> Act:
    """A few messages, one every so many ms."""
    count = random.choice((1, 1, 2, 5))
    gap = random.choice((0, 0.3, 2, 20))
    what = (random.choice(TOPICS), random.randrange(12), random.choice((*COLORS, "")))
    return Act(ms, "publish", (guest, count, gap, *what, random.choice((0, 0, 30, 2000))))


# -------------------------------------------------------------------------------- trouble


def _troubles(random: Random, nodes: int, end_ms: float) -> Iterator[Act]:
    kinds = random.sample(sorted(TROUBLES), random.randint(1, len(TROUBLES)))
    for _ in range(random.choice((0, 1, 2, 3, 5, 8, 12))):
        kind = random.choice(kinds)
        ms = random.uniform(TROUBLE_MS, end_ms)
        yield from TROUBLES[kind](random, nodes, ms)


def _short(random: Random) -> float:
    return random.choice((random.uniform(50, 900), random.uniform(500, 4000)))


def _crash(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    node = random.randrange(nodes)
    yield Act(ms, random.choice(("kill", "kill", "dark")), (node,))
    if random.random() < 0.7:
        again = ms + random.choice((1, 50, 3000)) * random.random()
        yield Act(again, "start", (node, _seeds(random, nodes, node)))


def _several(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    """Neighbouring trouble: several at nearly the same time."""
    for _ in range(random.randint(2, 4)):
        yield from _crash(random, nodes, ms + random.choice((0.0, 5.0, 200.0)) * random.random())


def _cut(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    for _ in range(random.choice((1, 1, 2, 4))):
        when = ms + random.choice((0.0, 2.0, 50.0)) * random.random()
        yield Act(when, "cut", (random.randrange(nodes), random.randrange(8)))


def _silence(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    one_sided = random.random() < 0.5
    where = (random.randrange(nodes), random.randrange(8))
    yield Act(ms, "silence", (*where, one_sided, round(_short(random))))


def _partition(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    group = tuple(sorted(random.sample(range(nodes), random.randint(1, max(1, nodes // 2)))))
    yield Act(ms, "partition", (group,))
    yield Act(ms + random.choice((1, 2, 3)) * _short(random), "heal", ())


def _pause(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    node = random.randrange(nodes)
    yield Act(ms, "pause", (node,))
    yield Act(ms + _short(random), "resume", (node,))


def _move(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    """An operator changes the tree by hand."""
    node = random.randrange(nodes)
    what = random.choice(("attach", "detach", "move", "move"))
    if what == "detach":
        yield Act(ms, what, (node, random.randrange(8)))
        return
    yield Act(ms, what, (node, random.randrange(nodes)))
    if what == "move":  # while others talk; and again, as not every one makes sense
        for guest in range(3):
            topic = (random.choice(TOPICS), random.randrange(6, 9), "red", 0)
            yield Act(ms - 10, "publish", (guest, 40, 1.5, *topic))
        for _ in range(2):
            yield Act(ms + 1, what, (random.randrange(nodes), random.randrange(nodes)))


def _leave(random: Random, nodes: int, ms: float) -> Iterator[Act]:
    """A node is stopped as it should be, while others talk."""
    node = random.randrange(nodes)
    yield Act(ms, "leave", (node,))
    for guest in range(3):
        what = (random.choice(TOPICS), random.randrange(6, 9), "red", 0)
        yield Act(ms - 10, "publish", (guest, 40, 1.5, *what))
    if random.random() < 0.7:
        again = ms + random.uniform(3000, 6000)
        yield Act(again, "start", (node, _seeds(random, nodes, node)))


TROUBLES = {
    "leave": _leave,
    "crash": _crash,
    "several": _several,
    "cut": _cut,
    "silence": _silence,
    "partition": _partition,
    "pause": _pause,
    "move": _move,
}


# ---------------------------------------------------------------------------------- disks


def _keeping(
    random: Random, nodes: int, where: Sequence[int], end_ms: float, pace: float
) -> Iterator[Act]:
    """Somebody publishes what must not be lost at each node with a disk, and the disks fail."""
    comes = STARTED_MS + random.uniform(0, 500)
    lasting = (end_ms - comes) / 1000
    yield Act(comes, "arrive", (390, random.randrange(nodes)))
    yield Act(comes, "subscribe", (390, 3900, random.choice(RETAINED), False, ""))
    for place, node in enumerate(where):
        yield from _coming(random, 300 + place, node, comes, end_ms)
        for _ in range(int(lasting * random.choice((0.3, 0.7, 1.5)) * pace)):
            ms = random.uniform(comes, end_ms)
            act = _publish(random, 300 + place, ms)
            yield act if random.random() < 0.2 else act._replace(what="keep")
        if random.random() < 0.6 * pace:
            yield from _reading(random, place, node, comes, end_ms)
    for _ in range(random.choice((0, 1, 3))):  # perhaps where there is no disk
        ms = random.uniform(comes, end_ms)
        yield _publish(random, random.randrange(nodes), ms)._replace(what="keep")
    for _ in range(random.choice((0, 1, 2, 4, 6))):
        place = random.randrange(len(where))
        ms = random.uniform(TROUBLE_MS, end_ms)
        burst = _publish(random, 300 + place, ms - 5)
        yield burst._replace(what="keep", args=(300 + place, 20, 1.5, *burst.args[3:]))
        yield from random.choice(FAULTS)(random, nodes, where[place], ms)


def _transacting(random: Random, where: Sequence[int], end_ms: float) -> Iterator[Act]:
    """Transactions of several messages, most of them about one thing; some are large."""
    for _ in range(int((end_ms - STARTED_MS) / 1000 * random.choice((0.5, 1, 3)))):
        count, size = random.choice((2, 3, 6, 20)), random.choice((0, 100, 1500))
        some = TOPICS if random.random() < 0.3 else random.sample(TOPICS, 2)
        topics = tuple(random.choice(some) for _ in range(count))
        ms = random.uniform(STARTED_MS + 500, end_ms)
        yield Act(ms, "transact", (random.choice(where), topics, size))


def _roaming(random: Random, where: Sequence[int], end_ms: float) -> Iterator[Act]:
    """Readers that go from node to node, and have their mailboxes come along."""
    for which in range(random.choice((0, 1, 1, 2))):
        ms = STARTED_MS + random.uniform(0, 500)
        node = random.choice(where)
        pause = random.choice((200, 700, 2000))
        while ms < end_ms:
            yield Act(ms, "roam", (which, node, random.random() < 0.5))
            for _ in range(random.choice((0, 1, 3))):
                ms += random.uniform(1, pause)
                yield Act(ms, "roam-settle", (which, random.random()))
            ms += random.uniform(1, pause)
            node = random.choice(where)


def _few_a_node(acts: Iterable[Act]) -> Iterator[Act]:
    """Each move leaves something at a node, and journals as small as here take few mailboxes."""
    came: Counter[int] = Counter()
    for act in acts:
        if act.what == "roam":
            came[act.args[1]] += 1
            if came[act.args[1]] > ROAMS_MAX:
                continue
        yield act


def _coming(random: Random, guest: int, node: int, comes: float, end_ms: float) -> Iterator[Act]:
    """A guest that comes again, should its node have been started again."""
    while comes < end_ms:
        yield Act(comes, "arrive", (guest, node))
        comes += random.uniform(500, 2500)


def _reading(random: Random, number: int, node: int, ms: float, end_ms: float) -> Iterator[Act]:
    """A regular that comes again to read its mailbox."""
    which = random.randrange(len(BOXES))
    while ms < end_ms:
        yield Act(ms, "box", (node, number, which))
        yield Act(ms + random.uniform(10, 900), "settle", (node, number, random.random()))
        ms += random.uniform(500, 2500)


def _failing(random: Random, nodes: int, node: int, ms: float) -> Iterator[Act]:
    """Something fails for good; perhaps somebody notices, and starts the node again."""
    what = random.choice(("sync", "sync", "write", "create"))
    yield Act(ms, "fail", (node, what, random.randint(1, 4)))
    if random.random() < 0.6:
        ms += random.uniform(50, 2500)
        yield Act(ms, random.choice(("kill", "dark")), (node,))
        yield Act(ms + _short(random), "start", (node, _seeds(random, nodes, node)))


def _filling(random: Random, nodes: int, node: int, ms: float) -> Iterator[Act]:
    yield Act(ms, "fill", (node,))
    yield Act(ms + random.choice((5, 300, 3000)), "room", (node,))


def _halting(random: Random, nodes: int, node: int, ms: float) -> Iterator[Act]:
    """A node dies in the middle of a write or sync, or just behind it."""
    what, soon = random.choice(("write", "sync")), random.randint(1, 4)
    power, after = random.random() < 0.5, random.random() < 0.5
    yield Act(ms, "halt", (node, what, soon, after, power))
    yield Act(ms + 100 + _short(random), "start", (node, _seeds(random, nodes, node)))


def _restarting(random: Random, nodes: int, node: int, ms: float) -> Iterator[Act]:
    yield Act(ms, random.choice(("kill", "dark")), (node,))
    yield Act(ms + _short(random), "start", (node, _seeds(random, nodes, node)))


FAULTS = (_failing, _filling, _halting, _restarting)
