"""The tree of nodes: one acyclic graph, at every instant, whatever happens at the same time.

Every node knows its parent, its children, its root and how far that is; all of this but the parent
may be out of date. So a rule that trusts it makes rings. With "join anybody that is closer to the
root": in the chain 0-1-2-3 (0 is the root) the link 0-1 breaks. 1 is the root of a fragment now and
asks 3, which has not heard of it, believes itself three links below 0, and accepts: 1-2-3-1.

The rule of attachment:

- Only the root of a fragment attaches, and it has one numbered request outstanding at a time.
- The candidate passes the request up its parent link, and so does everybody above it. Where it
  comes back to the asker both are in one tree: refused.
- A root with nothing outstanding grants. A root with a request of its own outstanding grants only a
  larger id, and gives its own up first; otherwise it refuses.
- The grant goes down the same way. The candidate takes the asker as a child and says so; the asker
  attaches only if it is still a root and the number is the one it waits for. Otherwise it answers
  Leave.

Why there is no ring: suppose that there is one, and look at any of its nodes, x, and its parent c.
The request of x climbed from c and did not come to x, but now the way up from c leads to x. So
somebody on the way that it climbed, and on the ring, has another parent now than when it passed
the request on, or was the root that granted it and has a parent now. To get that parent it made a
request of its own, and began it after it had handled the one of x: a root that grants has none
outstanding that may still succeed. So for each node of the ring there is another one in it whose
request began later, all around, which cannot be.

What that needs, and what is easily lost: a number is never used twice, not in another life of the
asker either; an acceptance counts only on the connection that the request went by; a root that
grants while it asks has really given its own request up. Everything else (hops, round-trip times,
who is a child, what the root is called) only ranks candidates. A parent may believe for a moment in
a child that is gone; a child is never wrong about whom it regards as its parent.

Bugs that tests plant: "no-guard", a root with a request outstanding grants anybody and goes on
asking; "stale-acceptance", an acceptance is taken though number or root-hood are old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regraft.errors import LocalError
from regraft.overlay.actions import Action, Added, Dead, HangUp, Removed
from regraft.overlay.beacons import Watch
from regraft.overlay.messages import (
    NOBODY,
    Accept,
    Answer,
    Ask,
    Beacon,
    Candidate,
    Leave,
    Message,
    Reason,
    Status,
)
from regraft.overlay.options import MS, Options
from regraft.overlay.place import ANCESTORS_MAX, OTHERS_MAX, Peer, Place, Role, link_id
from regraft.overlay.requests import Passed, Requests
from regraft.overlay.seeking import Round, Seeking
from regraft.overlay.spares import Spares
from regraft.overlay.vigil import Vigil

if TYPE_CHECKING:
    from random import Random

HOPS_CEILING = 1 << 16  # whatever a neighbour says
_PASSED_ASKS = 4  # a request that was passed up is forgotten after this many ask_ms


class LSTree:
    """One node's part in the tree. After each call, `take` what is to be done."""

    def __init__(
        self,
        me: bytes,
        incarnation: int,
        address: str,
        options: Options,
        random: Random,
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self._place = Place(me, incarnation, address, options, random)
        self._seeking = Seeking(self._place)
        self._vigil = Vigil(self._place)
        self._spares = Spares(self._place)
        self._requests = Requests()
        self._bugs = bugs
        self._running = False
        self._leaving = False
        self._leave_ns: int | None = None
        self._changed = False  # something that neighbours should know
        self._next_ns: int | None = None
        self._now_ns = 0
        self._beats = 0

    # ----------------------------------------------------------------- the world

    def start(self, now_ns: int) -> None:
        """Join by the seeds, or by the fixed parent."""
        self._running = True
        options = self._place.options
        for address in [*options.seeds, *([options.parent] if options.parent else [])]:
            if address != self._place.address:
                self._place.cache.seed(address)
        if len(self._place.cache):
            self._seeking.begin(Round.JOIN, now_ns)
        self._settle(now_ns)

    def connected(
        self,
        key: int,
        node: bytes,
        incarnation: int,
        address: str,
        dialled: bool,
        now_ns: int,
        wanted: str = "",
    ) -> None:
        """A connection with another node was introduced.

        `address` is where the other end says that it listens; `wanted` the address that was
        dialled, if that is another (a seed's name, say).
        """
        place = self._place
        names = (address, wanted) if wanted and wanted != address else (address,)
        for name in names:
            place.dialling.pop(name, None)
        if self._refuse_connection(key, node, incarnation, names, now_ns):
            self._settle(now_ns)
            return
        watch = Watch(place.options, now_ns)
        peer = Peer(key, node, incarnation, names, dialled, watch, now_ns)
        place.enter(peer)
        for name in names:
            place.cache.reached(name, node, now_ns)
        self._vigil.connected(peer, now_ns)
        if place.parent is None and not self._leaving:
            self._seeking.connected(peer, now_ns)
        self._settle(now_ns)

    def disconnected(self, key: int, now_ns: int) -> None:
        """A connection is gone, whoever ended it."""
        peer = self._place.peers.get(key)
        if peer is not None:
            self._place.forget(peer)
            if peer.dialled and not peer.is_link:
                self._place.cache.unreachable(peer.address, now_ns)  # it does not want us
            self._over(peer, self._leaving or peer.heir is not None, now_ns)
            self._settle(now_ns)

    def unreachable(self, address: str, now_ns: int) -> None:
        """A connection that was wanted cannot be had."""
        self._place.dialling.pop(address, None)
        self._place.cache.unreachable(address, now_ns)
        self._seeking.unreachable(address, now_ns)
        self._settle(now_ns)

    def receive(self, key: int, message: Message, now_ns: int) -> None:
        """A message came by a connection."""
        peer = self._place.peers.get(key)
        if peer is None:
            return  # it was hung up
        peer.watch.heard(now_ns)
        match message:
            case Ask():
                self._asked(peer, message, now_ns)
            case Answer():
                self._answered(peer, message, now_ns)
            case Accept():
                self._accepted(peer, message, now_ns)
            case Leave():
                self._left(peer, message, now_ns)
            case Status():
                self._told(peer, message, now_ns)
            case Beacon():
                if self._vigil.frame(peer, message, now_ns):
                    self._seeking.step(now_ns)
        self._settle(now_ns)

    def beacon(self, address: str, beacon: Beacon, now_ns: int) -> None:
        """A beacon came as a datagram. Its sender is who it says, wherever it came from."""
        if self._vigil.datagram(beacon, now_ns) is not None:
            self._seeking.step(now_ns)
        self._settle(now_ns)

    def heard(self, key: int, now_ns: int) -> None:
        """Bytes came by a connection: the other end lives."""
        peer = self._place.peers.get(key)
        if peer is not None:
            peer.watch.heard(now_ns)

    def tick(self, now_ns: int) -> None:
        """Some time has passed."""
        if not self._running:
            return
        if self._vigil.slept(now_ns):
            self._place.say("warning", "this node slept; no neighbour is blamed for it")
        for peer, why in list(self._vigil.tick(now_ns)):
            if peer.is_link:
                self._place.say("warning", f"neighbour {peer.address} is dead: {why}")
            self._end(peer, False, why, now_ns)
        self._requests.expire(now_ns)
        if self._leave_ns is not None and now_ns >= self._leave_ns:
            self.part(now_ns)
        if not self._leaving:
            self._seeking.tick(now_ns)
            if self._beats != self._vigil.beats:
                self._beats = self._vigil.beats
                for peer in list(self._spares.keep(now_ns)):
                    if not self._in_use(peer):
                        self._end(peer, True, "spare no longer wanted", now_ns)
        self._settle(now_ns)

    @property
    def next_ns(self) -> int | None:
        """When to call `tick` at the latest."""
        return self._next_ns

    def take(self) -> list[Action]:
        """What is to be done, in this order."""
        actions, self._place.actions = self._place.actions, []
        return actions

    # -------------------------------------------------------------------- people

    def attach(self, address: str, now_ns: int, replaces: bytes = b"") -> None:
        """Leave the parent, if there is one, and ask this node first for a place.

        What comes of it replaces a link of that rid.
        """
        place = self._place
        self._refuse_unless_running()
        if address in place.own_addresses:
            raise LocalError("bad-configuration", f"{address} is this node itself")
        if place.linked(address):
            raise LocalError("already-a-neighbour", f"{address} is a neighbour already")
        place.cache.note(Candidate(b"", address, 0), now_ns)
        place.cache.release(address)
        place.cache.own(address, None)
        if place.parent is not None:
            parent = place.parent
            place.send(parent, Leave(Reason.MOVED, NOBODY))
            self._end(parent, True, "moved elsewhere", now_ns, repair=False)
            self._seeking.replaces = replaces
        elif self._seeking.outstanding:
            self._seeking.cancel(now_ns)
        self._seeking.begin(Round.REPAIR, now_ns, [address], told=bool(replaces))
        self._settle(now_ns)

    def detach(self, node: bytes, now_ns: int) -> None:
        """End the link with a neighbour, and hold it down for a while."""
        self._refuse_unless_running()
        peer = self._place.neighbour(node)
        if peer is None:
            raise LocalError("not-a-neighbour", f"{node.hex()} is no neighbour")
        self._place.cache.bar(peer.address, now_ns)
        self._place.send(peer, Leave(Reason.HELD_DOWN, NOBODY))
        self._end(peer, True, "removed by hand", now_ns)
        self._settle(now_ns)

    def leave(self, now_ns: int) -> None:
        """Ask nobody and take nobody any more; `part` follows, after leave_ms by itself."""
        self._refuse_unless_running()
        if self._seeking.outstanding:
            self._seeking.cancel(now_ns)
        self._seeking.stop()
        self._leaving = True
        self._leave_ns = now_ns + self._place.options.leave_ms * MS
        self._settle(now_ns)

    def part(self, now_ns: int) -> None:
        """Say good-bye to all neighbours and be gone."""
        heir = self.successor()
        for peer in self._place.links():
            self._place.send(peer, Leave(Reason.LEAVING, heir))
        self._running, self._leaving, self._leave_ns = False, True, None
        for peer in list(self._place.peers.values()):
            self._end(peer, True, "leaving", now_ns)
        self._settle(now_ns)

    def successor(self) -> Candidate:
        """Whom the neighbours of this node should ask when it leaves: its heir, or NOBODY.

        The parent; of a root's children the one with the smallest id, which may grant all others
        even while it asks somebody itself.
        """
        place = self._place
        if place.parent is not None:
            return place.as_candidate(place.parent)
        children = sorted(place.children.values(), key=lambda peer: peer.node)
        return place.as_candidate(children[0]) if children else NOBODY

    def stay(self, delay_ms: int, now_ns: int) -> None:
        """Others are on their way to this node: it asks nobody meanwhile, if it is a root."""
        if self._place.parent is None and self._running and not self._leaving:
            if self._seeking.outstanding:
                self._seeking.cancel(now_ns)
            self._seeking.wait(now_ns, delay_ms)
            self._settle(now_ns)

    def heir(self, key: int, candidate: Candidate) -> None:
        """A neighbour is about to leave: when its link ends that is planned, and who is asked."""
        peer = self._place.peers.get(key)
        if peer is not None:
            peer.heir = candidate

    # ------------------------------------------------------------------ requests

    def _asked(self, peer: Peer, ask: Ask, now_ns: int) -> None:
        """A request: from the asker itself, or passed up by a child."""
        place = self._place
        direct = peer.role is Role.SPARE
        if direct and ask.asker == peer.node:
            self._forget_older(ask, now_ns)
        reason = self._unfit(peer, ask, direct, now_ns)
        if reason is None and place.parent is not None:
            up = place.parent
            until_ns = now_ns + _PASSED_ASKS * place.options.ask_ms * MS
            self._requests.add(Passed(ask, peer.key, direct, up.key, until_ns))
            place.count("passed")
            place.send(up, ask._replace(hops=ask.hops + 1))
            return
        if reason is None:
            reason = self._verdict(ask, now_ns)
        self._reply(peer, direct, ask, reason, ask.hops, (), now_ns)

    def _forget_older(self, ask: Ask, now_ns: int) -> None:
        """An asker is a root and has one request: what it had here before is over.

        It may have asked by another connection, so that older things come later.
        """
        old = self._place.neighbour(ask.asker)
        if old is not None and old.role is Role.CHILD and old.number < ask.number:
            self._end(old, False, "it asks by another connection", now_ns)
        self._requests.end_older(ask.asker, ask.number)

    def _unfit(self, peer: Peer, ask: Ask, direct: bool, now_ns: int) -> Reason | None:
        """Why a request is refused here, without asking those above; None if it is not."""
        if peer.role is Role.PARENT or direct != (ask.asker == peer.node):
            return Reason.UNKNOWN
        if ask.asker == self._place.me:
            return Reason.OWN_TREE
        if direct:
            child = self._place.neighbour(ask.asker)
            late = child is not None and child.role is Role.CHILD
            if late or self._requests.newest(ask.asker) > ask.number:
                return Reason.UNKNOWN  # it has asked again since
        if ask in self._requests or self._requests.full:
            return Reason.BUSY
        if ask.hops >= self._place.options.hops_max:
            return Reason.TOO_FAR
        return self._unwilling(peer, ask, now_ns) if direct else None

    def _unwilling(self, peer: Peer, ask: Ask, now_ns: int) -> Reason | None:
        """Why this node does not want the asker as its child; None if it does."""
        if self._leaving:
            return Reason.LEAVING
        if self._place.cache.is_held(peer.address, now_ns, ask.urgent):
            return Reason.HELD_DOWN
        if self._place.full and not ask.urgent:
            return Reason.FULL
        return None

    def _verdict(self, ask: Ask, now_ns: int) -> Reason | None:
        """What a root says to a request; None if it grants."""
        if self._seeking.firm:  # it is a root only until it is where it was told to go
            return Reason.BUSY
        if self._seeking.outstanding and "no-guard" not in self._bugs:
            # Whoever only searches gives way to one that repairs; nobody who asks his heir does.
            yields = ask.asker > self._place.me or (bool(ask.replaces) and self._seeking.idle)
            if not yields or self._seeking.by_heir:
                self._seeking.refused_busy()
                return Reason.BUSY
            self._seeking.cancel(now_ns)
        self._place.count("granted")
        return None

    def _reply(
        self,
        peer: Peer,
        direct: bool,
        ask: Ask,
        reason: Reason | None,
        distance: int,
        candidates: tuple[Candidate, ...],
        now_ns: int,
    ) -> None:
        """Pass on what became of a request, or take the asker as a child."""
        if direct and reason is None:
            reason = self._unwilling(peer, ask, now_ns)
            if reason is None:
                self._take(peer, ask, now_ns)
                return
        if direct:
            self._place.count(f"refuse-{(reason or Reason.NONE).name.lower().replace('_', '-')}")
            if reason in (Reason.FULL, Reason.HELD_DOWN, Reason.LEAVING, Reason.TOO_FAR):
                candidates = (*candidates, *self._place.better())
        self._place.send(
            peer,
            Answer(ask.asker, ask.number, reason is None, reason or 0, distance, candidates),
        )

    def _answered(self, peer: Peer, answer: Answer, now_ns: int) -> None:
        """An answer: to a request that was passed up, or to the own one."""
        passed = self._requests.answered(answer.asker, answer.number, peer.key)
        if passed is not None:
            down = self._place.peers.get(passed.down)
            if down is not None:
                known = answer.reason in Reason._value2member_map_
                refusal = Reason(answer.reason) if known else Reason.UNKNOWN
                reason = None if answer.granted else refusal
                self._reply(
                    down,
                    passed.direct,
                    passed.ask,
                    reason,
                    answer.distance,
                    answer.candidates,
                    now_ns,
                )
        elif answer.asker == self._place.me and not answer.granted:
            self._seeking.refused(peer, answer, now_ns)

    def _take(self, peer: Peer, ask: Ask, now_ns: int) -> None:
        """The asker is a child from now on."""
        place = self._place
        if place.full:
            place.count("urgent")
        peer.role = Role.CHILD
        peer.rid, peer.number = link_id(ask.asker, place.me, ask.number), ask.number
        peer.watch.forgive(now_ns)
        place.children[peer.key] = peer
        self._requests.end_down(peer.key)
        place.send(peer, Accept(ask.number, place.root, place.hops))
        place.actions.append(Added(peer.key, peer.node, ask.replaces))
        place.count("children")
        self._vigil.linked(now_ns)
        self._changed = True

    def _accepted(self, peer: Peer, accept: Accept, now_ns: int) -> None:
        """A candidate took this node as its child: if it still wants that."""
        place, seeking = self._place, self._seeking
        current = seeking.outstanding and (peer.key, accept.number) == (seeking.key, seeking.number)
        fits = current and place.parent is None and peer.role is Role.SPARE
        if not fits and not ("stale-acceptance" in self._bugs and peer.role is Role.SPARE):
            place.count("late-acceptances")
            place.send(peer, Leave(Reason.LATE, NOBODY))
            self._end(peer, True, "the acceptance came too late", now_ns)
            return
        peer.role = Role.PARENT
        peer.rid = link_id(place.me, peer.node, accept.number)
        peer.watch.forgive(now_ns)
        place.parent = peer
        place.root, place.hops = accept.root, min(accept.hops, HOPS_CEILING) + 1
        place.ancestors = (Candidate(peer.node, peer.address, accept.hops),)
        place.siblings = ()
        place.cache.own(peer.address, None)
        replaces, seeking.replaces = seeking.replaces, b""
        seeking.stop()
        place.actions.append(Added(peer.key, peer.node, replaces))
        place.count("attached")
        place.say("info", f"attached to {peer.address}, {place.hops} links below the root")
        self._vigil.linked(now_ns)
        self._changed = True

    # ---------------------------------------------------------------- neighbours

    def _left(self, peer: Peer, leave: Leave, now_ns: int) -> None:
        """The other end says that a link is over, or its request."""
        if not peer.is_link:
            self._requests.end_down(peer.key)
            return
        if leave.reason == Reason.LEAVING:
            peer.heir = leave.heir
        elif leave.reason == Reason.HELD_DOWN:
            self._place.cache.hold(peer.address, now_ns)
        self._end(peer, True, "the other end left", now_ns)

    def _end(self, peer: Peer, planned: bool, why: str, now_ns: int, repair: bool = True) -> None:
        """End a connection, and the link if it is one."""
        if peer.key in self._place.peers:
            self._place.hang_up(peer, why)
            self._over(peer, planned, now_ns, repair)

    def _over(self, peer: Peer, planned: bool, now_ns: int, repair: bool = True) -> None:
        """A connection is gone: what follows from it."""
        place = self._place
        self._requests.end_down(peer.key)
        self._seeking.closed(peer, now_ns)
        if not peer.is_link:
            return
        self._changed = True
        place.count("removed" if planned else "dead")
        place.actions.append(Removed(peer.key) if planned else Dead(peer.key, peer.rid))
        if peer.heir is not None:
            place.cache.forget(peer.address)
        elif not planned:
            place.cache.unreachable(peer.address, now_ns)
            if place.cache.lost(peer.address, now_ns):
                place.say("warning", f"{peer.address} was lost too often and is held down")
        if peer.role is Role.CHILD:
            del place.children[peer.key]
        elif place.parent is peer:
            self._orphaned(peer, planned, repair, now_ns)

    def _orphaned(self, parent: Peer, planned: bool, repair: bool, now_ns: int) -> None:
        """The parent is lost: this node is the root of a fragment, and looks for a place."""
        place = self._place
        place.parent = None
        place.root, place.hops = place.me, 0
        for passed in self._requests.end_up(parent.key):
            down = place.peers.get(passed.down)
            if down is not None:
                ask = passed.ask
                self._reply(down, passed.direct, ask, Reason.LOST, ask.hops, (), now_ns)
        self._seeking.replaces = b"" if planned else parent.rid
        if self._leaving or not repair:
            return
        heir = parent.heir or NOBODY
        if heir.node == place.me:
            self._seeking.wait(now_ns, place.options.ask_ms)  # the others come here
            return
        if heir.address:
            place.cache.note(heir, now_ns)
        named = [heir.address] if heir.address else []
        self._seeking.begin(Round.REPAIR, now_ns, named, heir=bool(named))

    def _told(self, peer: Peer, status: Status, now_ns: int) -> None:
        """A neighbour says what is new around it."""
        place = self._place
        if peer.role is Role.SPARE:
            return
        status = status._replace(
            hops=min(status.hops, HOPS_CEILING),
            ancestors=status.ancestors[:ANCESTORS_MAX],
            others=status.others[:OTHERS_MAX],
        )
        peer.status = status
        for candidate in (*status.ancestors, *status.others):
            if candidate.node != place.me and candidate.address:
                place.cache.note(candidate, now_ns)
        if peer.role is Role.CHILD:
            for candidate in status.others:
                place.cache.own(candidate.address, now_ns)
            return
        above = Candidate(peer.node, peer.address, status.hops)
        ancestors = (above, *status.ancestors)
        siblings = tuple(other for other in status.others if other.node != place.me)
        before = (place.root, place.hops, place.ancestors)
        place.root, place.hops, place.ancestors = status.root, status.hops + 1, ancestors
        place.siblings = siblings
        for candidate in (*ancestors, *siblings):
            place.cache.own(candidate.address, None)
        if before != (place.root, place.hops, place.ancestors):
            self._changed = True

    # ---------------------------------------------------------------------- parts

    def _refuse_connection(
        self, key: int, node: bytes, incarnation: int, names: tuple[str, ...], now_ns: int
    ) -> bool:
        """Whether a new connection is of no use; ends those that it makes old."""
        place = self._place
        why = ""
        if node == place.me:
            why = "this is the node itself"
            place.own_addresses.update(dict.fromkeys(names))
        elif self._leaving or not self._running:
            why = "leaving"
        for peer in place.of_node(node):
            if peer.incarnation < incarnation:
                self._end(peer, False, "the other end was started again", now_ns)
            elif peer.incarnation > incarnation:
                why = "an earlier life of this node"
        if why:
            place.actions.append(HangUp(key, why))
            for name in names:
                self._seeking.unreachable(name, now_ns)
        return bool(why)

    def _in_use(self, peer: Peer) -> bool:
        """Whether a request goes by this connection."""
        return self._requests.waits_at(peer.key) or (
            self._seeking.outstanding and self._seeking.key == peer.key
        )

    def _refuse_unless_running(self) -> None:
        if not self._running or self._leaving:
            raise LocalError("not-in-the-network", "this node is not running, or about to leave")

    def _settle(self, now_ns: int) -> None:
        """At the end of every call: tell the neighbours what changed, and when to look again."""
        place = self._place
        self._now_ns = now_ns
        if self._changed:
            self._changed = False
            status = place.status()
            for peer in place.links():
                # What the parent knows anyway is no news to it.
                told = status if peer.role is Role.CHILD else (status.degree, status.others)
                if peer.told != told:
                    peer.told = told
                    place.send(peer, status)
        times = [self._seeking.at_ns, self._vigil.next_ns, self._requests.next_ns, self._leave_ns]
        self._next_ns = min((at for at in times if at is not None), default=None)
        if not self._running:
            self._next_ns = None

    # ----------------------------------------------------------------- inspection

    @property
    def parent(self) -> bytes | None:
        """The node that this one regards as its parent."""
        return self._place.parent.node if self._place.parent else None

    @property
    def parent_rid(self) -> bytes:
        """The rid of the link to the parent."""
        return self._place.parent.rid if self._place.parent else b""

    @property
    def children(self) -> list[bytes]:
        """The nodes that this one regards as its children."""
        return [peer.node for peer in self._place.children.values()]

    def standing(self) -> tuple[int | None, tuple[int, ...]]:
        """The connections to the parent and to the children."""
        parent = self._place.parent
        return parent.key if parent is not None else None, tuple(self._place.children)

    def snapshot(self) -> dict[str, Any]:
        """How it stands, for people and tools."""
        place = self._place
        return {
            "parent": self.parent,
            "children": self.children,
            "root": place.root,
            "hops": place.hops,
            "degree": place.degree,
            "asking": self._seeking.outstanding,
            "stage": self._seeking.stage.value,
            "leaving": self._leaving,
            "spares": [peer.node for peer in place.peers.values() if not peer.is_link],
            "links": [
                {
                    "key": peer.key,
                    "node": peer.node,
                    "address": peer.address,
                    "parent": peer.role is Role.PARENT,
                    "rtt_us": known.rtt_us if (known := place.cache.get(peer.address)) else None,
                }
                for peer in place.links()
            ],
            "cache": len(place.cache),
            "held_down": sorted(place.cache.held(self._now_ns)),
            "passed": len(self._requests),
            "counters": dict(place.counters),
        }
