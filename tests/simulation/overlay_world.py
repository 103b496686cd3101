"""Overlays in a world of their own: no bytes, virtual time, one seed; and an independent checker.

Connections are two queues, each in order, with random delays; the introduction is the first thing
in each. A host may crash (its connections break), die or sleep in silence (they do not), be cut off
from others (what is on its way is held back until that is over), and come back in another life.

The checker looks only at whom each overlay regards as its parent and as its children.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from regraft.overlay.actions import Added, Cast, Dead, Dial, HangUp, Removed, Send
from regraft.overlay.lstree import LSTree
from regraft.overlay.options import MS, Options

S = 1000 * MS


class Wrong(AssertionError):
    """What the checker saw."""


@dataclass
class End:
    """One end of a connection."""

    host: Host
    life: int
    key: int
    dialled: str = ""
    arrivals: deque[Any] = field(default_factory=deque)  # on their way to this end
    last_ns: int = 0
    open: bool = True
    introduced: bool = False
    other: End | None = None
    child: bool = False  # this is the child's end
    replaced: bytes | None = None  # the rid that came with the link,
    lost: bytes | None = None  # and the link's own, when it was lost


class Host:
    """A machine that runs an overlay, or does not."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node = bytes([number]) * 16
        self.address = f"n{number}:1"
        self.life = 0
        self.tree: LSTree | None = None
        self.silent = False  # it runs no more, and nobody was told
        self.ends: dict[int, End] = {}
        self.links: dict[int, bytes] = {}  # as told to routing
        self.link_ends: dict[int, End] = {}
        self.next_key = 1
        self.wake_ns: int | None = None
        self.options = Options()
        self.checked: object = None
        self.links_changed = False

    @property
    def up(self) -> bool:
        return self.tree is not None and not self.silent


class World:
    """Everything that happens, by seed."""

    def __init__(
        self,
        seed: int,
        count: int,
        bugs: frozenset[str] = frozenset(),
        delay_ms: tuple[float, float] = (0.1, 20.0),
        loss: float = 0.02,
        **options: Any,
    ) -> None:
        self.random = Random(seed)
        self.bugs = bugs
        self.now_ns = 0
        self.delay_ms = delay_ms
        self.loss = loss
        self.hosts = [Host(number) for number in range(1, count + 1)]
        self.by_node = {host.node: host for host in self.hosts}
        self.by_address = {host.address: host for host in self.hosts}
        self.parts: dict[int, int] = {}  # host: the part of the network that it is in
        self.events: list[tuple[int, int, Any]] = []
        self.sequence = 0
        self.counters: Counter[str] = Counter()
        self.steps = 0
        seeds = tuple(host.address for host in self.hosts[:2])
        for host in self.hosts:
            host.options = Options(**{"seeds": seeds, **options})

    # --------------------------------------------------------------------- time

    def at(self, ns: int, what: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (max(ns, self.now_ns), self.sequence, what))

    def delay(self) -> int:
        low, high = self.delay_ms
        return int((low + (high - low) * self.random.random() ** 3) * MS)

    def run(self, until_ns: int) -> None:
        while self.events and self.events[0][0] <= until_ns:
            self.now_ns, _, what = heapq.heappop(self.events)
            what()
        self.now_ns = until_ns

    # -------------------------------------------------------------------- hosts

    def start(self, host: Host) -> None:
        assert host.tree is None
        host.life += 1
        host.silent = False
        host.tree = LSTree(
            host.node,
            host.life,
            host.address,
            host.options,
            Random(self.random.random()),
            self.bugs,
        )
        host.tree.start(self.now_ns)
        self.after(host)

    def crash(self, host: Host, silent: bool = False) -> None:
        """The process ends; in silence nobody learns of it from its connections."""
        if silent:
            host.silent = True
            return
        host.tree = None
        host.links, host.link_ends = {}, {}
        host.wake_ns = None
        for end in list(host.ends.values()):
            self.close(end)

    def pause(self, host: Host) -> None:
        """The process sleeps; what comes meanwhile waits."""
        host.silent = True

    def resume(self, host: Host) -> None:
        """It wakes up, and knows nothing of it."""
        host.silent = False
        host.wake_ns = None
        if host.tree is not None:
            if host.tree.next_ns is not None and host.tree.next_ns <= self.now_ns:
                host.tree.tick(self.now_ns)
            self.after(host)

    def bury(self, host: Host) -> None:
        """What died in silence is gone for good: a restart would reset its connections."""
        host.silent = False
        self.crash(host)

    def cut(self, parts: dict[int, int]) -> None:
        """Part the network; connections across are reset some time later if it lasts."""
        self.parts = parts

    def apart(self, one: Host, other: Host) -> bool:
        return self.parts.get(one.number, 0) != self.parts.get(other.number, 0)

    # -------------------------------------------------------------- connections

    def dial(self, host: Host, address: str) -> None:
        life = host.life
        target = self.by_address.get(address)

        def answer() -> None:
            if host.tree is None or host.life != life or host.silent:
                return
            if target is None or target.tree is None:
                host.tree.unreachable(address, self.now_ns)
                self.after(host)
            elif target.silent or self.apart(host, target):
                return  # nobody answers; the overlay has to give up by itself
            else:
                self.connect(host, target, address)

        self.at(self.now_ns + self.delay(), answer)

    def connect(self, host: Host, target: Host, address: str) -> None:
        ends = []
        for owner, dialled in ((host, address), (target, "")):
            end = End(owner, owner.life, owner.next_key, dialled)
            owner.next_key += 1
            owner.ends[end.key] = end
            ends.append(end)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end in ends:
            self.push(end, "hello")

    def push(self, end: End, what: Any) -> None:
        """Something is on its way to an end, behind what was sent before."""
        end.last_ns = max(end.last_ns + 1, self.now_ns + self.delay())
        end.arrivals.append(what)
        self.at(end.last_ns, lambda: self.arrive(end))

    def arrive(self, end: End) -> None:
        host = end.host
        if not end.open or not end.arrivals:
            return
        other = end.other
        assert other is not None
        if host.silent or self.apart(host, other.host):
            self.at(self.now_ns + 50 * MS, lambda: self.arrive(end))
            return
        what = end.arrivals.popleft()
        if what == "bye":
            self.gone(end)
            return
        assert host.tree is not None
        if what == "hello":
            end.introduced = True
            host.tree.connected(
                end.key,
                other.host.node,
                other.life,
                other.host.address,
                bool(end.dialled),
                self.now_ns,
            )
        else:
            host.tree.receive(end.key, what, self.now_ns)
        self.after(host)

    def close(self, end: End) -> None:
        """This end closes: the other learns of it behind what was sent."""
        if end.open:
            end.open = False
            del end.host.ends[end.key]
            if end.other is not None and end.other.open:
                self.push(end.other, "bye")

    def gone(self, end: End) -> None:
        """An end learns that the connection is gone."""
        host = end.host
        end.open = False
        del host.ends[end.key]
        if host.tree is not None and not host.silent:
            if end.introduced:
                host.tree.disconnected(end.key, self.now_ns)
            elif end.dialled:
                host.tree.unreachable(end.dialled, self.now_ns)
            self.after(host)

    def break_link(self, end: End) -> None:
        """A connection breaks at both ends; what was on its way may be lost."""
        for side in (end, end.other):
            if side is not None and side.open:
                if self.random.random() < 0.5:
                    side.arrivals.clear()
                self.push(side, "bye")

    # ------------------------------------------------------------------ actions

    def after(self, host: Host) -> None:
        """Do what an overlay wants done, then look at all of them."""
        tree = host.tree
        assert tree is not None
        for action in tree.take():
            match action:
                case Send(key, message):
                    other = host.ends[key].other
                    self.counters[type(message).__name__] += 1
                    if other is not None and other.open:
                        self.push(other, message)
                case Cast(address, beacon):
                    self.cast(host, address, beacon)
                case Dial(address):
                    self.dial(host, address)
                case HangUp(key, _):
                    self.close(host.ends[key])
                case Added(key, node, rid):
                    self.added(host, host.ends[key], node, rid)
                case Removed(key):
                    self.removed(host, key, None)
                case Dead(key, rid):
                    self.removed(host, key, rid)
        self.steps += 1
        self.check(host)
        next_ns = tree.next_ns
        if next_ns is not None and (host.wake_ns is None or next_ns < host.wake_ns):
            host.wake_ns = next_ns
            life = host.life
            self.at(next_ns, lambda: self.wake(host, life, next_ns))

    def wake(self, host: Host, life: int, ns: int) -> None:
        if host.tree is None or host.life != life or host.wake_ns != ns or host.silent:
            return
        host.wake_ns = None
        if host.tree.next_ns is not None and host.tree.next_ns <= self.now_ns:
            host.tree.tick(self.now_ns)
        self.after(host)

    def cast(self, host: Host, address: str, beacon: Any) -> None:
        target = self.by_address.get(address)
        if target is None or self.random.random() < self.loss:
            return

        def arrive() -> None:
            if target.tree is not None and not target.silent and not self.apart(host, target):
                target.tree.beacon(host.address, beacon, self.now_ns)
                self.after(target)

        self.at(self.now_ns + self.delay(), arrive)

    def added(self, host: Host, end: End, node: bytes, rid: bytes) -> None:
        if end.key in host.links:
            raise Wrong(f"{host.number}: link {end.key} was added twice")
        if node in host.links.values() and not self.bugs:
            raise Wrong(f"{host.number}: two links with {node[0]}")
        host.links[end.key] = node
        host.link_ends[end.key] = end
        host.links_changed = True
        self.counters["added"] += 1
        end.replaced = rid
        end.child = host.tree is not None and host.tree.parent == node
        self.agree(end)

    def removed(self, host: Host, key: int, rid: bytes | None) -> None:
        del host.links[key]
        host.links_changed = True
        end = host.link_ends.pop(key)
        end.lost = rid
        self.agree(end)

    def agree(self, end: End) -> None:
        """Both ends of a link name it alike, and what it replaces.

        Unless each took the other as a child: acceptances of old requests that cross.
        """
        other = end.other
        assert other is not None
        if self.bugs or end.child == other.child:
            return
        for one, two in ((end.replaced, other.replaced), (end.lost, other.lost)):
            if one is not None and two is not None and one != two:
                raise Wrong(f"{end.host.number} and {other.host.number} name a link differently")

    # ------------------------------------------------------------------ checker

    def parent_of(self, host: Host) -> Host | None:
        if host.tree is None:
            return None
        parent = host.tree.parent
        return self.by_node[parent] if parent is not None else None

    def check(self, host: Host) -> None:
        """From a host that changed, the way up has no ring; and its degree is bounded.

        Only the host that just acted can have another parent than before.
        """
        tree = host.tree
        now = (host.life, tree.parent, tree.children) if tree is not None else None
        if now == host.checked and not host.links_changed:
            return
        host.checked, host.links_changed = now, False
        seen = {host.number}
        step = self.parent_of(host)
        while step is not None:
            if step.number in seen:
                raise Wrong(f"a ring through {sorted(seen)}")
            seen.add(step.number)
            step = self.parent_of(step)
        if tree is None:
            return
        degree = len(tree.children) + (tree.parent is not None)
        if degree > host.options.max_degree and not tree.snapshot()["counters"].get("urgent", 0):
            raise Wrong(f"{host.number} has {degree} neighbours")
        expected = sorted([*tree.children, *([tree.parent] if tree.parent else [])])
        if sorted(host.links.values()) != expected and not self.bugs:
            raise Wrong(f"{host.number}: routing knows other neighbours than the overlay")

    def roots(self) -> list[Host]:
        return [host for host in self.hosts if host.up and self.parent_of(host) is None]

    def asymmetries(self) -> list[str]:
        """Where one regards the other as a neighbour and the other does not."""
        found = []
        for host in self.hosts:
            if host.tree is None or host.silent:
                continue
            parent = self.parent_of(host)
            if parent is not None and (
                parent.tree is None or parent.silent or host.node not in parent.tree.children
            ):
                found.append(f"{host.number} believes in its parent {parent.number}")
            for node in host.tree.children:
                child = self.by_node[node]
                if not child.up or self.parent_of(child) is not host:
                    found.append(f"{host.number} believes in its child {child.number}")
        return found

    def untrue(self) -> list[str]:
        """Who is mistaken about the root, or how far it is."""
        found = []
        for host in self.hosts:
            if host.up:
                assert host.tree is not None
                step, hops = host, 0
                while (above := self.parent_of(step)) is not None:
                    step, hops = above, hops + 1
                said = host.tree.snapshot()
                if (said["root"], said["hops"]) != (step.node, hops):
                    found.append(f"{host.number}: {said['root'][0]} at {said['hops']}, not {hops}")
        return found

    @property
    def whole(self) -> bool:
        """One tree, and everybody knows it."""
        return len(self.roots()) <= 1 and not self.asymmetries() and not self.untrue()

    def converge(self, bound_s: float) -> float:
        """Run until there is one tree; the seconds that it took."""
        begun_ns = self.now_ns
        while not self.whole:
            if self.now_ns - begun_ns > bound_s * S:
                raise Wrong(
                    f"after {bound_s} s: roots {[host.number for host in self.roots()]}, "
                    f"{self.asymmetries()}, {self.untrue()[:3]}"
                )
            self.run(self.now_ns + 20 * MS)
        return (self.now_ns - begun_ns) / S
