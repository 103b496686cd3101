"""The node among other nodes: connections between them, links of the tree, what neighbours want.

The overlay decides who is a neighbour, the forwarding what neighbours are told; neither knows the
other, frames, or connections. This is where their wishes become frames and effects.

Rules:

- A connection between nodes is introduced by PEER in both directions, and then *peered*. The
  overlay may make it a link, once; when the link ends, the connection does.
- What a neighbour wants is a subscription of its connection: forwarding a message is delivering it.
- Nothing is kept for the network until there is a first link; then it is told what is wanted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from regraft.errors import PeerError, RegraftError, WorldError
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.userfilter import UserFilters
from regraft.node.connection import CLOSING, HELLO, OPEN, PEERED, Connection
from regraft.node.custody import Custody
from regraft.node.deadlines import Deadlines
from regraft.node.departure import Departure, Gone
from regraft.node.effect import Connect, Effect, Note, SendDatagram, Write
from regraft.node.event import Now
from regraft.node.listening import InPlace, Listening
from regraft.node.moving import Moving
from regraft.node.offers import Offers
from regraft.node.operating import Operating
from regraft.node.outflow import Outflow
from regraft.node.replying import Replying
from regraft.node.router import Router
from regraft.node.spoken import (
    GRAFTS,
    MESSAGES,
    announcements,
    from_frame,
    graft_frame,
    graft_message,
    to_frame,
)
from regraft.overlay import actions, messages
from regraft.overlay.lstree import LSTree
from regraft.overlay.options import Options
from regraft.routing.advertisements import Advertising
from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL, Forwarding
from regraft.routing.grafting import Grafting
from regraft.routing.reconfiguration import PROTOCOLS, DeferredTimed
from regraft.session.backlog import Backlog
from regraft.session.session import DROP_OLDEST, UNLIMITED, Delivery, Session
from regraft.session.window import Window
from regraft.wire import native, peers, questions, traces
from regraft.wire import offers as wire_offers

if TYPE_CHECKING:
    from random import Random  # seeded, or of the system: whoever makes a node decides

NODE = "node"  # the principal of other nodes
EARLY_MAX = 1000  # requests that wait for a node to be gone
FED_AT_ONCE = 1000  # filters that the forwarding is told of in one step
COUNTERS = (
    "bad_datagrams",
    "interests_frames_sent",
    "interests_bytes_sent",
    "interests_filters_sent",
    "offers_frames_sent",
    "offers_bytes_sent",
)
UNHEARD_NS = 5_000_000_000  # a neighbour that said so long not what it wants counts all the same
WILDCARDS = ("", "0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True)
class Joining:
    """How a node takes part in a network."""

    address: str  # host:port where others reach it
    overlay: Options = field(default_factory=Options)
    reconfiguration: str = "reconfiguration-path"
    deferral_ms: int = 3000
    covering: bool = True
    bugs: frozenset[str] = frozenset()  # planted, for tests that must find them
    advertisements: bool = False  # interests go only where something overlapping is offered
    standing: tuple[str, ...] = ()  # what this node offers for all its clients, then


class Network:
    """What a node does about other nodes."""

    advertising: Advertising | None = None  # where the network routes by advertisements

    def __init__(
        self,
        identity: Identity,
        joining: Joining,
        limits: Limits,
        random: Random,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        effects: list[Effect],
        deadlines: Deadlines,
        gone: Gone,
        stop: Callable[[str, Now], None],
        fail: Callable[[Connection, RegraftError, Now], None],
        replying: Replying,
        filters: UserFilters,
    ) -> None:
        self._stop = stop
        self._replying = replying
        self._deferral_ns = joining.deferral_ms * 1_000_000
        self._shaken_ns = 0  # until when something may be missing after a loss
        self._unheard: dict[int, int] = {}  # links that did not say what they want, and since when
        replying.settled = self._settled
        replying.pending.bugs = joining.bugs
        self._identity = identity
        self._limits = limits
        self._router = router
        self._outflow = outflow
        self._connections, self._effects, self._deadlines = connections, effects, deadlines
        self.address = joining.address
        me, started = identity.node_id, identity.incarnation
        router.lane.mark = b"\x09" + blake2b(me, digest_size=8, key=b"%d" % started).digest()
        router.lane.trusting = "trusting" in joining.bugs
        self.overlay = LSTree(me, started, self.address, joining.overlay, random, joining.bugs)
        protocol = PROTOCOLS[joining.reconfiguration](joining.deferral_ms)
        self.forwarding = Forwarding(protocol, joining.covering, bugs=joining.bugs)
        self.forwarding.user_filter = filters.of
        filters.bugs = joining.bugs
        self.links: dict[int, Connection] = {}
        self.custody: Custody | None = None
        self._gone = gone
        self._leave_ms = joining.overlay.leave_ms
        self.departure = Departure(
            *(me, self.links, router.lane, outflow, effects, deadlines),
            *(joining.overlay.leave_ms, self._ghost_gone),
        )
        self._tickets, self._last_ticket = dict[int, str](), 0
        self._dialled: dict[int, str] = {}  # connections that are not introduced yet
        self._own: set[str] = {joining.address}  # addresses that lead to this node
        self._wake_ns = 0
        self._stirred = False  # the forwarding may have something to say
        self._forwarding_ns: int | None = None
        self._watching = False
        listening = self._listening = Listening(
            *(limits, self.links, router, self.forwarding, filters, effects, fail),
            *(self._complete, self._in_place),
        )
        enter, remove = listening.enter, listening.remove
        self.grafting = Grafting(me, self.forwarding, protocol, enter, remove, joining.bugs)
        self.moving = Moving(
            *(me, self.links, router, outflow, self.overlay, self.grafting, listening),
            *(self.departure, effects, deadlines, joining.overlay.leave_ms, gone),
        )
        self._leaving_for = ""
        self._counters = dict.fromkeys(COUNTERS, 0)
        self.operating = Operating(
            *(identity, self.overlay, self.forwarding, router, self.links, self._own),
            *(self._leave_for, self.moving),
        )
        self._early: list[tuple[int, peers.Ask]] = []

    def offer(self, offers: Offers, joining: Joining) -> None:
        """What clients of this node offer; before the network is looked for."""
        self._offers = offers
        if joining.advertisements:
            offered = Forwarding(DeferredTimed(joining.deferral_ms), joining.covering)
            self.advertising = Advertising(offered, self.forwarding, joining.bugs)
            self.grafting.advertising = self.advertising
        how = (joining.standing, joining.deferral_ms, self.stir, joining.bugs)
        offers.join(self.advertising, *how)

    def start(self, now: Now) -> None:
        """Look for others."""
        self.overlay.start(now.ns)
        self.end(now)

    # ----------------------------------------------------------------- connections

    def dialled(self, c: Connection, ticket: int, now: Now) -> None:
        """A connection that was wanted is there: say who we are."""
        c.state = HELLO
        self._dialled[c.key] = self._tickets.pop(ticket)
        self._effects.append(Write(c.key, [native.PREFACE]))
        self._introduce_ourselves(c, now)

    def failed(self, ticket: int, reason: str, now: Now) -> None:
        """A connection that was wanted cannot be had."""
        address = self._tickets.pop(ticket)
        self._effects.append(Note("debug", f"cannot reach {address}: {reason}"))
        self.overlay.unreachable(address, now.ns)

    def _introduce_ourselves(self, c: Connection, now: Now) -> None:
        c.window = Window(self._limits.link_window_messages, self._limits.link_window_bytes)
        frame = peers.Peer(
            version_min=native.VERSION,
            version_max=native.VERSION,
            node_id=self._identity.node_id,
            node_name=self._identity.name,
            incarnation=self._identity.incarnation,
            address=_advertised(self.address),
            credit_messages=c.window.messages,
            credit_bytes=c.window.size,
            frame_bytes_max=self._limits.frame_bytes,
            advertisements=self.advertising is not None,
        )
        self._outflow.send(c, frame, now)

    def introduced(self, c: Connection, peer: peers.Peer, now: Now) -> None:
        """Another node says who it is."""
        if not peer.version_min <= native.VERSION <= peer.version_max:
            raise PeerError(
                "unsupported-version",
                f"this node speaks version {native.VERSION}, the other "
                f"{peer.version_min} to {peer.version_max}",
            )
        if not peer.node_id:
            raise PeerError("protocol-violation", "a node has an id")
        if peer.advertisements != (self.advertising is not None):
            here = "on" if self.advertising is not None else "off"
            text = (
                f"advertisements = {here} at this node, and not at {peer.node_name or 'the other'}"
            )
            raise PeerError("network-differs", f"{text}; all nodes of a network must agree")
        target = self._dialled.pop(c.key, None)
        if peer.node_id == self._identity.node_id:
            if target is not None:
                self._own.add(target)
                self.overlay.unreachable(target, now.ns)
            else:
                self._introduce_ourselves(c, now)
            self._outflow.close(c, "a node need not be connected to itself", now)
            return
        if target is None:
            self._introduce_ourselves(c, now)
        backlog = Backlog(self._limits.queue_messages, self._limits.queue_bytes, bare=True)
        delivery = Delivery(backlog, DROP_OLDEST)
        delivery.credit_messages = min(peer.credit_messages, UNLIMITED)
        delivery.credit_bytes = min(peer.credit_bytes, UNLIMITED)
        name = f"node {peer.node_name}" if peer.node_name else f"node {peer.node_id.hex()[:8]}"
        c.session = Session(c.key, 0, name, b"", NODE, delivery)
        c.node = peer.node_id
        c.state = PEERED
        address = _completed(peer.address, target or c.peer)
        dialled = target is not None
        self.overlay.connected(
            c.key, peer.node_id, peer.incarnation, address, dialled, now.ns, target or ""
        )

    def closed(self, c: Connection, now: Now) -> bool:
        """A connection is gone, whoever ended it; whether something of it stays for a while."""
        target = self._dialled.pop(c.key, None)
        if target is not None:
            self.overlay.unreachable(target, now.ns)
        elif c.node:
            self.overlay.disconnected(c.key, now.ns)
        self.moving.ended(c.key, now)
        stays = self.moving.closed(c, now) or self.departure.closed(c, now)
        if stays and self.advertising is not None and c.key in self.links:
            self.advertising.left(c.key)  # who comes in its place must not wait for it
            self._stirred = True
        if c.key in self.departure.ghosts and self.departure.ghosts[c.key].mine:
            self.overlay.stay(self._leave_ms, now.ns)
        return stays

    def _ghost_gone(self, c: Connection, now: Now) -> None:
        """What stayed of a connection goes, too."""
        self.links.pop(c.key, None)
        if self.custody is not None:
            self.custody.unlinked(c.key)
        self._unheard.pop(c.key, None)
        self.grafting.lost(c.key, b"", True, now.ns)
        self._stirred = True
        self._gone(c, now)

    def datagram(self, address: str, data: bytes, now: Now) -> None:
        """A datagram came: a beacon, or nonsense."""
        try:
            frame = native.read_frame(data, 0, self._limits.control_frame_bytes)
            if frame is None or frame[0] != native.Kind.BEACON or frame[3] != len(data):
                raise PeerError("malformed-frame", "a datagram is one beacon")
            beacon = from_frame(native.decode(frame[0], frame[2]))
        except RegraftError:
            self._counters["bad_datagrams"] += 1
            return
        self.overlay.beacon(address, beacon, now.ns)

    # ------------------------------------------------------------------------ frames

    def handle(self, c: Connection, message: Any, now: Now) -> None:
        """A frame of another node, after its introduction."""
        if type(message) is peers.Ask and self.departure.ending:
            # Those who ask for the place of a node that leaves come before all that it sent did.
            if len(self._early) < EARLY_MAX:  # who gets no answer asks again
                self._early.append((c.key, message))
        elif type(message) in MESSAGES:
            self.overlay.receive(c.key, from_frame(message), now.ns)
            self._perform(now)  # what stands behind ACCEPT belongs to a link already
        elif c.key in self.links and type(message) in HANDLERS:
            HANDLERS[type(message)](self, c, message, now)
        elif self.moving.keeps(c.key) and type(message) in HANDLERS:
            if type(message) in (
                native.Credit,
                native.Heartbeat,
                native.Error,
                peers.Left,
                *REPLIES,
            ):
                HANDLERS[type(message)](self, c, message, now)  # what is wanted matters no more
        elif type(message) in HANDLERS and c.state is PEERED:
            pass  # from before the other end heard that this is no link
        else:
            kind = native.KINDS[type(message)].name
            raise PeerError("protocol-violation", f"{kind} is not allowed between nodes here")

    def _interests(self, c: Connection, message: peers.Interests, now: Now) -> None:
        self._listening.interests(c, message)

    def _behind(self, c: Connection, message: InPlace, now: Now) -> None:
        self._listening.behind(c, message, now)

    def stir(self) -> None:
        """There is something to be announced."""
        self._stirred = True

    def _asked(self, c: Connection, message: Any, now: Now) -> None:
        self._replying.heard(c, message, now)

    def _settled(self, now: Now) -> bool:
        """Whether all that neighbours want is known, as far as can be told."""
        late = now.ns - UNHEARD_NS
        return now.ns >= self._shaken_ns and all(ns < late for ns in self._unheard.values())

    def _complete(self, c: Connection, now: Now) -> None:
        """A neighbour has said all that it wants."""
        self._unheard.pop(c.key, None)
        self.grafting.complete(c.key, now.ns)
        self.departure.complete(c, now)
        self.moving.complete(c, now)

    def _in_place(self, c: Connection, message: InPlace, now: Now) -> None:
        """What stood behind interests, after these."""
        if isinstance(message, peers.Leaving):
            self._is_left(c, message, now)
            return
        if isinstance(message, peers.Reroute):
            most = max((len(self._router.held(key)) for key in self.links), default=0)
            if most + len(message.given) > self._limits.link_filters:
                text = f"too many filters are rerouted (limit link_filters: {most} are there)"
                raise WorldError("limit-exceeded", text)
        if isinstance(message, wire_offers.Offers | wire_offers.Heeded):
            self._offered(c, message)
            return
        self._trace("heard", c, message)
        self.grafting.heard(c.key, graft_message(message), now.ns)
        if isinstance(message, peers.Flush):
            self.moving.flushed(message.rid, now)
        self._stirred = True

    def _offered(self, c: Connection, message: wire_offers.Offers | wire_offers.Heeded) -> None:
        """A neighbour offers something, or has heeded what it was offered."""
        advertising = self.advertising
        if advertising is None:
            raise PeerError("protocol-violation", "this network does not route by advertisements")
        if isinstance(message, wire_offers.Heeded):
            advertising.heeded(c.key, message.number)
        else:
            most = self._limits.link_offers
            if advertising.offered_by(c.key) + len(message.add) > most:
                text = f"a neighbour offers more than {most} filters (limit link_offers)"
                raise WorldError("limit-exceeded", text)
            adds = [
                (one.number, Filter(one.pattern, one.exact, one.selector)) for one in message.add
            ]
            advertising.heard(c.key, adds, message.remove, message.synced)
        self._stirred = True

    def _trace(self, what: str, c: Connection, message: Any) -> None:
        kind = native.KINDS[type(message)].name
        self._effects.append(Note("debug", f"{c.who}: {what} {kind} {message.rid.hex()[:8]}"))

    def _is_left(self, c: Connection, message: peers.Leaving, now: Now) -> None:
        self.departure.announced(c, message, now)
        heir = messages.Candidate(*astuple(message.heir[0])) if message.heir else messages.NOBODY
        self.overlay.heir(c.key, heir)

    def _drained(self, c: Connection, message: peers.Drained | peers.Left, now: Now) -> None:
        self.departure.drained(c, now)
        if isinstance(message, peers.Left):
            self.moving.left(c, now)

    def _moves(self, c: Connection, message: peers.Moving | peers.Ready, now: Now) -> None:
        self._trace("heard", c, message)
        self.moving.handle(c, message, now)

    def _release(self, c: Connection, message: peers.Release, now: Now) -> None:
        self.moving.release(c, message, now)

    def _homes(self, c: Connection, message: peers.Homes | peers.Home, now: Now) -> None:
        if self.custody is not None:
            self.custody.handle(c, message, now)

    def _credit(self, c: Connection, message: native.Credit, now: Now) -> None:
        self._outflow.credit(c, message, now)

    def _heartbeat(self, c: Connection, message: native.Heartbeat, now: Now) -> None:
        if message.token and not message.answer:
            self._outflow.send(c, native.Heartbeat(message.token, True), now)

    def _error(self, c: Connection, message: native.Error, now: Now) -> None:
        self._effects.append(Note("warning", f"{c.who} says: {message.name}: {message.text}"))
        if message.fatal:
            c.ending = "link-lost"
            self._outflow.close(c, message.text, now)

    # --------------------------------------------------------------------- performing

    def end(self, now: Now) -> None:
        """A step ends: do what overlay and forwarding want."""
        self._perform(now)
        if self._listening:
            self._listening.work(now)
            self._stirred = True
        if self._leaving_for:
            reason, self._leaving_for = self._leaving_for, ""
            self._stop(reason, now)
        if self.forwarding.feeding:
            self.forwarding.feeding = self._router.feed(FED_AT_ONCE)
            self._stirred = True
        if self._stirred or self.moving.stirred:
            self.moving.stirred = False
            self._announce(now)
        if self.moving:
            self.moving.work(now)
        self._schedule(now)

    def _announce(self, now: Now) -> None:
        """Tell the links what they have to know, as far as it is worked out."""
        self.grafting.tick(now.ns)
        if self.advertising is not None:
            self._announce_offers(self.advertising, now)
        for key, add, remove, synced in self.forwarding.announce(now.ns):
            c = self.links.get(key)
            if c is not None:
                frames = list(map(native.encode, announcements(add, remove, synced)))
                self._counters["interests_frames_sent"] += len(frames)
                self._counters["interests_bytes_sent"] += sum(map(len, frames))
                self._counters["interests_filters_sent"] += len(add) + len(remove)
                self._outflow.send_encoded(c, frames, now)
        for key, message in self.forwarding.said():
            frame = graft_frame(message)
            if type(frame) is wire_offers.Heeded:
                if key in self.links:
                    self._outflow.send(self.links[key], frame, now)
            elif type(frame) in (peers.Flush, peers.Restored):  # they say that messages are past
                self.moving.when_safe(partial(self._say_in_place, key, frame), now)
            elif key in self.links:
                self._trace("said", self.links[key], frame)
                self._outflow.send(self.links[key], frame, now)
        times = [self.forwarding.next_ns, self.grafting.next_ns]
        if self.advertising is not None:
            times.append(self.advertising.next_ns)
        self._forwarding_ns = min((ns for ns in times if ns is not None), default=None)
        self._stirred = self._forwarding_ns is not None and self._forwarding_ns <= now.ns

    def _announce_offers(self, advertising: Advertising, now: Now) -> None:
        """Tell the links what is offered; what is taken back, behind what was published by it."""
        for key, add, remove, synced in advertising.announce(now.ns):
            c = self.links.get(key)
            for some in announcements(add, remove, synced) if c is not None else ():
                frame = wire_offers.Offers(some.add, some.remove, some.synced)
                data = native.encode(frame)
                self._counters["offers_frames_sent"] += 1
                self._counters["offers_bytes_sent"] += len(data)
                assert c is not None
                if some.remove:
                    self._outflow.send_encoded_in_place(c, data, now)
                else:
                    self._outflow.send_encoded(c, [data], now)
        self._offers.heeded(advertising.ready())

    def _say_in_place(self, key: int, frame: peers.Flush | peers.Restored, now: Now) -> None:
        if key in self.links:
            self._trace("said", self.links[key], frame)
            self._outflow.send_in_place(self.links[key], frame, now)
        if isinstance(frame, peers.Flush):
            self.moving.passed(frame.rid)

    def _perform(self, now: Now) -> None:
        """Do what the overlay wants."""
        while self._early and not self.departure.ending:
            key, ask = self._early.pop(0)
            self.overlay.receive(key, from_frame(ask), now.ns)
        todo = self.overlay.take()
        while todo:
            for action in todo:
                PERFORM[type(action)](self, action, now)
            todo = self.overlay.take()

    def _schedule(self, now: Now) -> None:
        at_ns = self.overlay.next_ns
        if self._forwarding_ns is not None and (at_ns is None or self._forwarding_ns < at_ns):
            at_ns = self._forwarding_ns
        if self._listening or self.forwarding.feeding:
            at_ns = now.ns
        if at_ns is not None:
            at_ns = max(at_ns, now.ns)
            if self._wake_ns <= now.ns or at_ns < self._wake_ns:
                self._wake_ns = at_ns
                self._deadlines.add(at_ns, "network", 0)

    def tick(self, now: Now) -> None:
        """A moment has come."""
        if self._wake_ns > now.ns:
            return  # it was put off
        self._wake_ns = 0
        self.overlay.tick(now.ns)
        if self._forwarding_ns is not None and self._forwarding_ns <= now.ns:
            self._stirred = True

    def _send(self, action: actions.Send, now: Now) -> None:
        c = self._connections.get(action.key)
        if c is not None and c.state is not CLOSING:
            self._outflow.send(c, to_frame(action.message), now)

    def _cast(self, action: actions.Cast, now: Now) -> None:
        data = native.encode(to_frame(action.beacon))
        self._effects.append(SendDatagram(action.address, data))

    def _dial(self, action: actions.Dial, now: Now) -> None:
        if action.address in self._own:
            self.overlay.unreachable(action.address, now.ns)
            return
        self._last_ticket += 1
        self._tickets[self._last_ticket] = action.address
        self._effects.append(Connect(self._last_ticket, action.address))

    def _hang_up(self, action: actions.HangUp, now: Now) -> None:
        c = self._connections.get(action.key)
        if c is not None and c.state is not CLOSING and not self.moving.keeps(c.key):
            c.ending = "link-lost"
            self._outflow.close(c, action.reason, now)

    def _added(self, action: actions.Added, now: Now) -> None:
        c = self._connections[action.key]
        assert c.session is not None
        c.state = OPEN
        self._router.admit_link(c.key, c.outlet, NODE)
        c.source.outlet = c.outlet
        c.outlet.slow = self._outflow.near_credit(c.session.delivery)
        self.links[c.key] = c
        self._unheard[c.key] = now.ns
        self._watch()
        if self.custody is not None:
            self.custody.linked(c, now)
        self.departure.added(c)
        leading = self.overlay.standing()[0] == c.key
        path = self.moving.linked(c, action.rid, now)
        self.grafting.added(c.key, c.node, action.rid, now.ns, leading, path)
        self._stirred = True
        self._effects.append(Note("info", f"{c.who} is a neighbour"))

    def _watch(self) -> None:
        """From the first link on it matters what is wanted here."""
        if not self._watching:
            self._watching = True
            self._router.watch(self._wanted)
            self.forwarding.feeding = True

    def _wanted(self, more: bool, *wanted: Any) -> None:
        change = self.forwarding.hold if more else self.forwarding.release
        change(LOCAL, Filter(*wanted))
        self._stirred = True

    def _removed(self, action: actions.Removed, now: Now) -> None:
        if not self.moving.removed(action.key):
            self._ended(action.key, b"", True, now)

    def _dead(self, action: actions.Dead, now: Now) -> None:
        self._ended(action.key, action.rid, False, now)

    def _ended(self, key: int, rid: bytes, planned: bool, now: Now) -> None:
        """A link is no more."""
        c = self.links.get(key)
        if c is None:
            return
        if key in self.departure.ghosts and self.departure.ghosts[key].closed:
            return  # it stays for a while
        del self.links[key]
        if self.custody is not None:
            self.custody.unlinked(key)
        self._unheard.pop(key, None)
        if not planned:
            self._shaken_ns = now.ns + self._deferral_ns
        self.departure.forget(key, now)
        self.moving.ended(key, now)
        self._effects.append(Note("info", f"{c.who} is no neighbour any more"))
        self._router.dismiss(key)
        self.grafting.lost(key, rid, planned, now.ns)
        self._stirred = True
        c.ending = "left" if planned else "link-lost"
        if c.state is not CLOSING and key in self._connections:
            self._outflow.close(c, "the link is over", now)

    def _say(self, action: actions.Say, now: Now) -> None:
        self._effects.append(Note(action.level, action.text))

    # ---------------------------------------------------------------------- leaving

    def _leave_for(self, reason: str) -> None:
        self._leaving_for = reason  # once that is answered

    def leave(self, now: Now) -> None:
        """This node is about to end: hand over, and hang up."""
        heir = self.overlay.successor()
        self.departure.begin(peers.Candidate(*heir) if heir.node else None, now)
        self.overlay.leave(now.ns)

    def topology(self) -> dict[str, Any]:
        """This node's place in the tree, to look at."""
        found = self.operating.topology()
        handed_over = self.departure.handed_over
        found["routing"] |= {"grafting": dict(self.grafting.counts)}
        found["moves"] = {**self.moving.counts, "why": self.moving.stayed}
        return {**found, "address": self.address, "handed_over": handed_over, **self._counters}


def _advertised(address: str) -> str:
    """An address for others; a host that means "any here" is left for them to fill in."""
    host, _, port = address.rpartition(":")
    return f":{port}" if host in WILDCARDS else address


def _completed(address: str, seen: str) -> str:
    """An address with its host, as it was seen if it does not say."""
    if not address.startswith(":"):
        return address
    return seen.rpartition(":")[0] + address


REPLIES = (questions.Reply, questions.Counted, questions.Ended)
HANDLERS: dict[type[Any], Any] = {
    **dict.fromkeys((questions.Question, questions.Withdrawn, *REPLIES), Network._asked),
    traces.Trace: Network._asked,
    peers.Interests: Network._interests,
    native.Credit: Network._credit,
    native.Heartbeat: Network._heartbeat,
    native.Error: Network._error,
    peers.Leaving: Network._behind,
    **dict.fromkeys(GRAFTS, Network._behind),
    wire_offers.Offers: Network._behind,
    wire_offers.Heeded: Network._behind,
    peers.Drained: Network._drained,
    peers.Left: Network._drained,  # and its connection ends now
    peers.Moving: Network._moves,
    peers.Ready: Network._moves,
    peers.Release: Network._release,
    peers.Homes: Network._homes,
    peers.Home: Network._homes,
}
PERFORM: dict[type[Any], Any] = {
    actions.Send: Network._send,
    actions.Cast: Network._cast,
    actions.Dial: Network._dial,
    actions.HangUp: Network._hang_up,
    actions.Added: Network._added,
    actions.Removed: Network._removed,
    actions.Dead: Network._dead,
    actions.Say: Network._say,
}
