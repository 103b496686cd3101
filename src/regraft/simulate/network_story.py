"""A story of many brokers and their guests, as a plan says, and the checkers that watch it.

The nodes are the real ones and so are the bytes between them. Checkers look on at every step; at
the end of a plan for liveness all is made well again, and in bounded time there must be one tree,
everybody must know what the others want, and a last round of messages must reach all whom it
concerns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from regraft.kernels.inbox import ReceivedMessage
from regraft.model.identity import Identity
from regraft.model.message import Message
from regraft.node.effect import Effect, SendDatagram, WakeAt
from regraft.node.event import Datagram, Event, Tick
from regraft.node.network import Joining
from regraft.overlay.options import Options
from regraft.simulate.checkers import (
    NEVER,
    Complaint,
    Filter,
    Key,
    Standing,
    Tree,
    canonical,
    filters,
    one_tree,
    symmetric,
    tables,
)
from regraft.simulate.deliveries import (
    CALM_NS,
    PATIENCE_NS,
    Deliveries,
    Publication,
    Sight,
    Subscription,
    Trouble,
    Visit,
)
from regraft.simulate.disks import DISK_ACTS, Disks
from regraft.simulate.guest import Guest
from regraft.simulate.network import MS, Conditions, End, Network
from regraft.simulate.plan import COLORS, TOPICS, Act, Plan, message_of
from regraft.simulate.world import Broker, World
from regraft.wire import native, peers

BOUND_MS = 25_000  # for everything to be well after all is well again
LOOK_MS = 250
COMPLAINTS_MAX = 20
AFTERMATH_NS = 15_000 * MS  # for which something that went wrong may break links
DISTURBED_NS = 4_000 * MS
DISTURBING = {
    *("start", "kill", "dark", "cut", "leave", "partition", "heal", "pause", "resume", "move"),
}
IDLE_EVENTS = {Datagram, Tick}
IDLE_EFFECTS = {SendDatagram, WakeAt}


@dataclass(slots=True)
class NetworkStory:
    """What happens as a plan says. `strict` forgives nothing."""

    plan: Plan
    bugs: frozenset[str] = frozenset()
    tell_people: Callable[[str], None] | None = None
    world: World = field(init=False)
    network: Network = field(init=False)
    tree: Tree = field(default_factory=Tree)
    deliveries: Deliveries = field(init=False)
    disks: Disks = field(init=False)
    complaints: list[Complaint] = field(default_factory=list)
    converged_ms: float = -1.0  # after the end of all trouble
    counts: dict[str, int] = field(default_factory=dict)  # acts that made sense
    _brokers: dict[int, Broker] = field(default_factory=dict)  # that run
    _keys: dict[Broker, Key] = field(default_factory=dict)
    _by_key: dict[Key, Broker] = field(default_factory=dict)
    _starts: dict[int, int] = field(default_factory=dict)
    _visits: dict[int, Visit] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)  # guests, and when
    _leaving: dict[Key, int] = field(default_factory=dict)  # nodes that were asked to, and when
    _moves: dict[Key, int] = field(default_factory=dict)  # nodes that were told to, and when
    _disturbed: list[int] = field(default_factory=list)  # when something happened to the tree
    _ended: set[int] = field(default_factory=set)  # wires that were cut
    _paused: dict[int, int] = field(default_factory=dict)  # nodes, and numbers of troubles
    _parted: int | None = None  # the number of the trouble
    _stood: dict[Key, Any] = field(default_factory=dict)
    _steps: dict[Key, int] = field(default_factory=dict)
    _said: dict[Key, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    _last: int = 0  # number that somebody was given

    def __post_init__(self) -> None:
        plan = self.plan
        self.world = World(plan.seed)
        conditions = Conditions(spread_ms=plan.spread_ms, jitter=plan.jitter, loss=plan.loss)
        self.network = Network(self.world, plan.seed, conditions)
        self.deliveries = Deliveries(self.tree, self._told)
        self.disks = Disks(self.world, plan, self.bugs, self._halted)

    # ------------------------------------------------------------------------ telling

    def tell(self) -> list[Complaint]:
        """Let it happen; what was wrong."""
        for act in self.plan.acts:
            if act.ms <= self.plan.end_ms:
                self.world.advance_to(max(int(act.ms * MS), self.world.ns))
                self.complaints += self.disks.complaints()
                if self.complaints:
                    break
                self._act(act)
        if not self.complaints:
            self.world.advance_to(max(int(self.plan.end_ms * MS), self.world.ns))
        if not self.complaints and self.plan.mode == "liveness":
            self._make_well()
            self._await_convergence()
            if not self.complaints:
                self._last_round()
        if not self.complaints:
            self._judge()
        return self.complaints

    def _judge(self) -> None:
        """It is over: what was wrong?"""
        end_ns = self.world.ns
        self._look_at_disks()
        judged = self.deliveries.judge(end_ns, self._gone, self._gentle())
        self.complaints += islice(judged, COMPLAINTS_MAX)
        self.complaints += islice(self._uncaused(), COMPLAINTS_MAX)

    def _complain(self, kind: str, text: str) -> None:
        self.complaints.append(Complaint(kind, text))

    @property
    def about(self) -> str:
        """It in a line."""
        return f"{self.plan.nodes} nodes, {self.plan.mode}"

    @property
    def trace_hash(self) -> str:
        """All of it in one word."""
        return self.world.trace_hash

    def _next(self) -> int:
        """A number that nobody had before: for what is asked, offered, traced."""
        self._last += 1
        return self._last

    def _line(self, text: str) -> None:
        if self.tell_people is not None:
            self.tell_people(f"{self.world.ns / MS:10.3f} ms  {text}")

    def _act(self, act: Act) -> None:
        if act.what in DISK_ACTS:
            done = DISK_ACTS[act.what](self.disks, *act.args)
        else:
            done = getattr(self, f"_{act.what.replace('-', '_')}")(*act.args)
        if done:
            self.counts[act.what] = self.counts.get(act.what, 0) + 1
            if act.what in DISTURBING:
                self._disturbed.append(self.world.ns)
            self._line(f"{act.what} {' '.join(map(str, act.args))}")

    # -------------------------------------------------------------------------- nodes

    def _start(self, index: int, seeds: Sequence[int]) -> bool:
        if index in self._brokers:
            return False
        plan = self.plan
        incarnation = self._starts[index] = self._starts.get(index, 0) + 1
        key = (_name(index), incarnation)
        node_id = Random(f"id {plan.seed} {index}").randbytes(16)
        random = Random(f"node {plan.seed} {index} {incarnation}")
        identity = Identity(node_id, key[0], incarnation)
        broker = self.disks.broker(key[0], identity=identity, random=random)
        if broker is None:
            return False
        self._brokers[index] = broker
        self._keys[broker] = key
        self._by_key[key] = broker
        self._steps[key] = 0
        self.network.add(broker, _address(index))
        broker.on_step = partial(self._stepped, broker, key)
        options = Options(
            seeds=tuple(map(_address, seeds)),
            max_degree=plan.max_degree,
            search_ms=2000,
            hold_down_ms=500,
            hold_down_ms_max=2000,
        )
        how = (plan.reconfiguration, plan.deferral_ms, plan.covering)
        joining = Joining(_address(index), options, *how, self.bugs, plan.advertisements)
        broker.node.join(joining, self.world.now())
        broker.begin()
        self._look(broker, key)
        return True

    def _stepped(
        self, broker: Broker, key: Key, events: Sequence[Event], effects: Sequence[Effect]
    ) -> None:
        """Look where a node stands after a step that may have changed it."""
        if broker.stopped:
            self._has_left(broker, key)
            return
        idle = all(type(event) in IDLE_EVENTS for event in events) and all(
            type(effect) in IDLE_EFFECTS for effect in effects
        )
        if idle:
            return
        self._steps[key] += 1
        standing = broker.node.standing()
        if self._stood.get(key) != standing:
            self._stood[key] = standing
            self._look(broker, key)

    def _look(self, broker: Broker, key: Key) -> None:
        if broker.stopped:
            return
        said = broker.node.topology()
        parent: int | None = None
        links: dict[int, Key] = {}
        for link in said["links"]:
            end = self.network.end(broker, link["connection"])
            if end is not None:
                links[end.wire] = self._keys[end.other.broker]
                if link["parent"]:
                    parent = end.wire
        standing = Standing(said["id"], parent, links, said["root"], said["hops"])
        old = self.tree.standings.get(key)
        if standing == old:
            return
        if self.tell_people is not None and (old is None or old.links != links):
            up = links[parent][0] if parent is not None else "no parent"
            down = " ".join(sorted(other[0] for wire, other in links.items() if wire != parent))
            self._line(f"  {key[0]}#{key[1]}: {up}; children: {down or 'none'}")
        self.complaints += self.tree.stand(key, standing, self.world.ns)

    def _told(self, here: Key, there: Key) -> set[Filter]:
        """What a node was told by a neighbour, as it says."""
        rows = self._interests(here)["links"].get(self.tree.standings[there].id, {})
        return filters(rows.get("received", ()))

    def _interests(self, key: Key) -> dict[str, Any]:
        known = self._said.get(key)
        if known is None or known[0] != self._steps[key]:
            known = self._said[key] = (self._steps[key], self._by_key[key].node.interests())
        return known[1]

    def _ends(self, index: int) -> None:
        """A node lives no more."""
        broker = self._brokers.pop(index)
        key = self._keys[broker]
        if index in self._paused:
            self._is_over(self._paused.pop(index))
        self.tree.fall(key, self.world.ns)
        self.disks.ends(key[0])
        for number in [n for n, visit in self._visits.items() if visit.node == key]:
            self._leaves(number)

    def _leave(self, index: int) -> bool:
        """A node is stopped as it should be, after its guests have gone."""
        broker = self._brokers.get(index)
        if broker is None or index in self._paused:
            return False
        key = self._keys[broker]
        for number in [n for n, visit in self._visits.items() if visit.node == key]:
            self._depart(number)
        self.disks.ends(key[0])
        self._leaving[key] = self.world.ns
        self.world.after(10 * MS, partial(broker.stop, "the plan says so"))
        return True

    def _has_left(self, broker: Broker, key: Key) -> None:
        for index in [i for i, running in self._brokers.items() if running is broker]:
            self._line(f"  {key[0]}#{key[1]} has left")
            self._ends(index)

    def _gentle(self) -> frozenset[int]:
        """The wires that nodes had when they left, or moved, while nothing else happened."""
        told, until = (*self._leaving.items(), *self._moves.items()), self.tree.until
        calm = [(key, ns) for key, ns in told if self._was_calm(ns)]
        had = ((wire, ns) for wire, ends in self.tree.ends.items() for k, ns in calm if k in ends)
        return frozenset(wire for wire, ns in had if until.get(wire, ns) >= ns)

    def _was_calm(self, ns: int) -> bool:
        near = [other for other in self._disturbed if abs(other - ns) < DISTURBED_NS]
        return len(near) == 1 and not any(
            trouble.since_ns < ns + DISTURBED_NS and trouble.until_ns > ns - DISTURBED_NS
            for trouble in self.deliveries.troubles
        )

    def _kill(self, index: int) -> bool:
        broker = self._brokers.get(index)
        if broker is None:
            return False
        broker.kill()
        self._ends(index)
        return True

    def _dark(self, index: int) -> bool:
        broker = self._brokers.get(index)
        if broker is None:
            return False
        self.network.power_off(broker)
        self._ends(index)
        return True

    def _halted(self, index: int, power: bool) -> None:
        """The disk of a node halts, and the node with it."""
        self._act(Act(self.world.ns / MS, "dark" if power else "kill", (index,)))

    # ------------------------------------------------------------------------- guests

    def _arrive(self, number: int, index: int) -> bool:
        broker = self._brokers.get(index)
        if broker is None or number in self._visits or self._keys[broker] in self._leaving:
            return False
        name = f"guest-{number}@{len(self._gone)}"
        visit = Visit(self._guest(broker, name), self._keys[broker])
        visit.guest.on_sent = partial(self._sent, visit)
        visit.guest.on_seen = partial(self._seen, visit)
        visit.guest.on_control = partial(self._answered, visit)
        self._visits[number] = visit
        self.disks.connected(visit.node[0], visit.guest.pipe.key)
        return True

    def _guest(self, broker: Broker, name: str) -> Guest:
        hello = native.Hello(version_min=1, version_max=1, client_id=name, passive=True)
        return Guest(name, broker, hello, capacity=1 << 20)

    def _depart(self, number: int) -> bool:
        if number not in self._visits:
            return False
        pipe = self._visits[number].guest.pipe
        self._leaves(number)
        pipe.close()
        return True

    def _leaves(self, number: int) -> None:
        visit = self._visits.pop(number)
        self._gone[visit.guest.name] = self.world.ns
        for subscription in visit.subscriptions.values():
            subscription.until_ns = min(subscription.until_ns, self.world.ns)

    def _subscribe(self, number: int, id: int, pattern: str, exact: bool, selector: str) -> bool:
        visit = self._visits.get(number)
        if visit is None or id in visit.subscriptions:
            return False
        wanted = canonical(pattern, exact, selector)
        subscription = Subscription(visit.guest.name, id, visit.node, wanted)
        visit.subscriptions[id] = subscription
        self.deliveries.subscriptions.append(subscription)
        visit.guest.subscribe(id, pattern, exact, selector)
        return True

    def _unsubscribe(self, number: int, id: int) -> bool:
        visit = self._visits.get(number)
        if visit is None or id not in visit.subscriptions:
            return False
        if visit.subscriptions[id].until_ns < NEVER:
            return False
        visit.subscriptions[id].until_ns = self.world.ns
        visit.guest.unsubscribe(id)
        return True

    def _answered(self, visit: Visit, message: Any) -> None:
        if isinstance(message, native.Subscribed):
            visit.subscriptions[message.id].since_ns = self.world.ns
        elif isinstance(message, native.Confirmed):
            for number in range(message.ordinal - message.count, message.ordinal):
                self._confirmed(visit, number, message)
        elif isinstance(message, native.Error):
            first = message.ordinal - 1
            kept = [self._publication(visit, first + n) for n in range(message.count)]
            if kept and all(said.kept for said in kept):
                for said in kept:
                    said.refused = message.name
                if self.disks.refused(visit.node[0], message.name):
                    return
            self._complain("refused", f"{visit.guest.name} was refused: {message.text}")

    def _confirmed(self, visit: Visit, number: int, message: native.Confirmed) -> None:
        said = self._publication(visit, number)
        letter = self.disks.letter_of(said.message)
        if letter is None or said.refused or said.confirmed_ns < NEVER:
            self._complain("confirmed", f"{visit.guest.name}'s message {number} is called safe")
            return
        said.confirmed_ns = self.world.ns
        self.disks.confirmed(visit.node[0], letter, message)

    def _publication(self, visit: Visit, number: int) -> Publication:
        return self.deliveries.publications[visit.guest.name, number]

    def _publish(self, number: int, count: int, gap: float, *what: Any) -> bool:
        return self._speak(number, count, gap, what, False)

    def _keep(self, number: int, count: int, gap: float, *what: Any) -> bool:
        return self._speak(number, count, gap, what, True)

    def _speak(self, number: int, count: int, gap: float, what: Sequence[Any], kept: bool) -> bool:
        visit = self._visits.get(number)
        if visit is None:
            return False
        for place in range(count):
            say = partial(self._say, visit, kept, *what)
            self.world.after(int(place * gap * MS), say)
        return True

    def _say(self, visit: Visit, kept: bool, topic: str, n: int, color: str, size: int) -> None:
        if visit.guest.name in self._gone or self.disks.over:
            return
        message = self._compose(visit, topic, n, color)
        if kept:
            letter = (replace(message, body=b"." * size), visit.guest.name, len(visit.said), n)
            visit.said.append(self.disks.letter(*letter))
            visit.guest.publish(visit.said[-1])
        else:
            self._utter(visit, message, size)

    def _utter(self, visit: Visit, message: Message, size: int = 0) -> None:
        """A guest publishes something, by which it is known who said it."""
        known = f"{visit.guest.name} {len(visit.said)} ".encode()
        visit.said.append(replace(message, body=known + b"." * size))
        visit.guest.publish(visit.said[-1])

    def _compose(self, visit: Visit, topic: str, n: int, color: str) -> Message:
        """What a guest says, but for the body."""
        return message_of(topic, n, color, b"")

    def _sent(self, visit: Visit, number: int) -> None:
        message = visit.said[number]
        letter = self.disks.letter_of(message)
        if letter is not None:
            self.disks.sent(visit.node[0], visit.guest.pipe.key, number + 1, letter)
        name, ns = visit.guest.name, self.world.ns
        said = Publication(name, number, visit.node, message, ns, letter is not None)
        self.deliveries.publish(said)

    def _seen(self, visit: Visit, message: ReceivedMessage) -> None:
        letter = self.disks.letter_of(message)
        if letter is not None:
            publisher, number = letter.publisher, letter.number
            if self.disks.seen(letter):
                return
        else:
            words = message.body.split(b" ", 2)
            publisher, number = words[0].decode(), int(words[1])
        ids = frozenset(message.subscriptions)
        sight = Sight(visit.guest.name, publisher, number, self.world.ns, ids)
        self.deliveries.sights.append(sight)

    # ------------------------------------------------------------------------ trouble

    def _trouble(self, names: Iterable[str], ms: float = 0, between: bool = False) -> int:
        """Something is wrong from now on, for so long or until it is over; its number."""
        troubles = self.deliveries.troubles
        until_ns = self.world.ns + int(ms * MS) if ms else NEVER
        troubles.append(Trouble(self.world.ns, until_ns, frozenset(names), between))
        return len(troubles) - 1

    def _is_over(self, number: int) -> None:
        troubles = self.deliveries.troubles
        troubles[number] = troubles[number]._replace(until_ns=self.world.ns)

    def _link(self, index: int, which: int) -> End | None:
        """One of the links of a node; the first is to its parent."""
        broker = self._brokers.get(index)
        if broker is None:
            return None
        standing = self.tree.standings[self._keys[broker]]
        wires = sorted(standing.links, key=lambda wire: (wire != standing.parent, wire))
        ends = {end.wire: end for end in self.network.ends[broker].values() if end.open}
        wires = [wire for wire in wires if wire in ends]
        return ends[wires[which % len(wires)]] if wires else None

    def _cut(self, index: int, which: int) -> bool:
        end = self._link(index, which)
        if end is None:
            return False
        self._ended.add(end.wire)
        self.network.break_wire(end)
        return True

    def _silence(self, index: int, which: int, one_sided: bool, ms: int) -> bool:
        end = self._link(index, which)
        if end is None:
            return False
        one, other = end.address, end.other.address
        names = {one.partition(":")[0], other.partition(":")[0]}
        ways = [(one, other)] if one_sided else [(one, other), (other, one)]
        for way in ways:
            self.network.silence(*way)
        self._trouble(names, ms)

        def over() -> None:
            for way in ways:
                self.network.hear(*way)

        self.world.after(ms * MS, over)
        return True

    def _partition(self, group: Sequence[int]) -> bool:
        self._heal()
        self._parted = self._trouble(map(_name, group), between=True)
        self.network.partition(map(_address, group))
        return True

    def _heal(self) -> bool:
        if self._parted is None:
            return False
        self._is_over(self._parted)
        self._parted = None
        self.network.partition()
        return True

    def _pause(self, index: int) -> bool:
        if index not in self._brokers or index in self._paused:
            return False
        self._paused[index] = self._trouble({_name(index)})
        self._brokers[index].pause()
        return True

    def _resume(self, index: int) -> bool:
        if index not in self._paused:
            return False
        self._is_over(self._paused.pop(index))
        self._brokers[index].resume()
        return True

    def _attach(self, index: int, other: int) -> bool:
        return index != other and self._command(index, "link-add", {"address": _address(other)})

    def _detach(self, index: int, which: int) -> bool:
        end = self._link(index, which)
        other = self.tree.standings.get(self._keys[end.other.broker]) if end is not None else None
        if other is None:  # it ended, and this node has not heard of it
            return False
        return self._command(index, "link-remove", {"node": other.id})

    def _move(self, index: int, other: int) -> bool:
        """An operator puts a node, with all below it, below another one that is not."""
        broker, target = self._brokers.get(index), self._brokers.get(other)
        if broker is None or target is None:
            return False
        standings = self.tree.standings
        mover, end = self._keys[broker], self._keys[target]
        parent = standings[mover].parent
        steps = [node for _, node in self.tree.paths(mover).get(end, ())]
        if parent is None or len(steps) < 2 or steps[0] != standings[mover].links[parent]:
            return False
        way = [standings[node].id for node in steps]
        self._moves[mover] = self.world.ns
        arguments = {"address": _address(other), "way": way}
        return self._command(index, "link-move", arguments, troubling=False)

    def _command(
        self, index: int, what: str, arguments: dict[str, Any], troubling: bool = True
    ) -> bool:
        """An operator says something to a node."""
        broker = self._brokers.get(index)
        if broker is None:
            return False
        operator = self._guest(broker, f"operator-{self.world.ns}")
        operator.pipe.send(native.encode(peers.Command(1, what, json.dumps(arguments).encode())))
        if troubling:
            self._trouble({_name(index)}, 3000)
        self.world.after(1000 * MS, operator.pipe.close)
        return True

    def _uncaused(self) -> Iterator[Complaint]:
        """Links that ended for no reason."""
        for wire, ns in self.tree.until.items():
            one, other = self.tree.ends[wire]
            if {one, other} & (self._leaving.keys() | self._moves.keys()):
                continue
            if wire in self._ended or not {one, other} <= self.tree.standings.keys():
                continue
            names = [one[0], other[0]]
            near = [t for t in self.deliveries.troubles if t.touches(names) and t.since_ns <= ns]
            if not any(t.until_ns + AFTERMATH_NS >= ns for t in near):
                text = f"the link of {one} and {other} ended at {ns // MS} ms, for no reason"
                yield Complaint("uncaused", text)

    # ------------------------------------------------------------------------ the end

    def _make_well(self) -> None:
        """No more trouble; but whoever is dead stays dead, except the one by whom others join."""
        self._line("all is well again")
        self._heal()
        self.network.heal()
        for index in list(self._paused):
            self._resume(index)
        self.network.conditions.loss = 0.0
        self.disks.make_well()
        others = [index for index in self._starts if index != 0]
        if 0 in self._starts and others:
            self._start(0, others[:3])
        leaving = {
            self._keys[b][0] for b in self._brokers.values() if self._keys[b] in self._leaving
        }
        for index in self.disks.unwell(leaving):
            self._kill(index)
            self._start(index, [other for other in self._starts if other != index][:3])
        now = self.world.ns
        troubles = self.deliveries.troubles
        troubles[:] = [t._replace(until_ns=min(t.until_ns, now)) for t in troubles]

    def _await_convergence(self) -> None:
        """Until all is settled, and has been for a while."""
        begin_ns = since_ns = self.world.ns
        version = -1
        while not self.complaints:
            found = next(self._unsettled(), None)
            if found is not None or version != self.tree.version:
                since_ns, version = self.world.ns, self.tree.version
            waited_ms = (self.world.ns - begin_ns) / MS
            if found is None and self.world.ns - since_ns > CALM_NS:
                self.converged_ms = (since_ns - begin_ns) / MS
                self._line(f"all is settled since {self.converged_ms:.0f} ms after that")
                return
            if waited_ms >= BOUND_MS:
                text = f"after {waited_ms:.0f} ms: {found.text if found else 'links still change'}"
                kind = found.kind if found else "restless"
                self.complaints += [Complaint(kind, text), *islice(self._unsettled(), 1, 6)]
                return
            self.world.advance(LOOK_MS if found is not None else CALM_NS / MS / 2 + 1)

    def _unsettled(self) -> Iterator[Complaint]:
        """What is not yet as it should be when nothing happens."""
        standings = self.tree.standings
        for broker in self._brokers.values():
            self._look(broker, self._keys[broker])
        if not standings:
            return
        found = [*symmetric(standings), *one_tree(standings)]
        yield from found
        if found:
            return
        wanted: dict[Key, set[Filter]] = {}
        for visit in self._visits.values():
            mine = wanted.setdefault(visit.node, set())
            mine.update(one.filter for one in visit.subscriptions.values() if one.until_ns == NEVER)
        for broker in self._brokers.values():
            key = self._keys[broker]
            wanted.setdefault(key, set()).update(self.disks.wanted(key[0]))
        yield from self._tables(wanted)
        yield from self.disks.custodies.unsettled()

    def _tables(self, wanted: dict[Key, set[Filter]]) -> Iterator[Complaint]:
        return tables(self.tree.standings, wanted, self._interests, self.plan.covering)

    def _last_round(self) -> None:
        """Everybody says something, and whoever wants it gets it."""
        random = Random(f"last round {self.plan.seed}")
        before = len(self.deliveries.publications)
        for visit in self._visits.values():
            for kept in (False, False, *self.disks.at(visit.node[0])):
                what = (random.choice(TOPICS), random.randrange(12), random.choice(COLORS))
                self._say(visit, kept, *what, 0)
        self.disks.wait(PATIENCE_NS / MS + 1)
        for said in islice(self.deliveries.publications.values(), before, None):
            for one in self.deliveries.subscriptions:
                wants = one.until_ns == NEVER and one.filter.takes(said.message)
                if not wants or one in said.owed or said.refused:
                    continue
                text = f"no way for what {said.guest} said to {one.guest}, though all is well"
                self._complain("unrouted", text)
        for said in self.deliveries.publications.values():
            answered = said.refused or said.confirmed_ns < NEVER
            if said.kept and not answered and said.guest not in self._gone:
                text = f"{said.guest} never heard what became of its message {said.number}"
                self._complain("unanswered", text)
        for found in self._unsettled():
            self._complain(found.kind, f"and then: {found.text}")

    def _look_at_disks(self) -> None:
        """It is over: what have the nodes kept?"""
        self.disks.collect()
        for broker in self._brokers.values() if self.plan.disks else ():
            broker.paused = False
            broker.power_off()
        self.disks.finish()
        self.complaints += self.disks.complaints()
        if not self.complaints:
            self.complaints += islice(self.disks.custodies.judge(), COMPLAINTS_MAX)


def _name(index: int) -> str:
    return f"node-{index}"


def _address(index: int) -> str:
    return f"node-{index}:7447"
