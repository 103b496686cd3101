"""Re-grafting: what neighbours say to each other when one link takes the place of another.

A link between A and B is lost, and there is a new one between C and D: A and C are in one part of
the tree, D and B in the other. The nodes from A to C are the *head*, those from D to B the *tail*:

    A -- h -- C === new === D -- t -- B           (A === lost === B)

In a repair A is C: the orphan gets a new parent, and nobody knows the tail, or whether B lives. The
five protocols, by what they do besides keeping `forwarding` up to date:

    strawman               nothing: what is lost is unsubscribed, what is new is subscribed
    deferred-timed         A and B wait for a fixed time before they unsubscribe
    deferred-notified      ... or until FLUSH comes across the new link, behind its subscriptions
    informed-activation    ... and ACTIVATE tells C and D what they would withdraw in a moment:
                           it is *tagged*, which is withheld until it is known to be wanted
    reconfiguration-path   REROUTE travels A-h-C-D, and turns each table it meets; D withholds what
                           only the tail wants until FLUSH went to B, and RESTORED came back

Rules:

- All of it only saves words. Whatever is lost, late or not understood, what neighbours are told
  follows from what is held, and everything that waits has a time after which it does not. So an
  interrupted reconfiguration ends as a plain one.
- What is said has its place: behind all that follows from what was heard before it.
- A new link is *dormant*, told nothing, until what it waits for has come: ACTIVATE, REROUTE, or
  that the other end has said everything without either. After a while it is like any other.
- REROUTE from d to n: d has entered what B wanted as if n had said so, under numbers of its own,
  and says which. n takes it for told, and answers with those numbers that were not needed
  (REROUTED). n does not want the opposite from d any more. An unsubscription has a number, and so
  concerns what n has said and nothing that was entered in its place, however they cross: the
  numbers are the ignore table of the papers, and need no answer to end.
- With covering the same holds: what is entered is reduced like all else, and what it covers is told
  or not as always. Only that nobody off the path has anything to do is promised without it alone.
- Where the tail is not known FLUSH goes to everybody within a few links: repairs are local.

Bugs that tests plant: "flush-cancels-only", FLUSH ends the timer but not the waiting;
"withheld-at-once", D withholds nothing; and in `forwarding` "ignore-table-off", an unsubscription
concerns what was entered, too, and "pdel-without-clients", REROUTE removes what clients still want.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from regraft.errors import LocalError, PeerError
from regraft.model.topics import check_pattern
from regraft.routing.advertisements import Advertising
from regraft.routing.filters import Filter, size_of
from regraft.routing.forwarding import Forwarding
from regraft.routing.messages import (
    Activate,
    Flush,
    Message,
    Numbered,
    Reroute,
    Rerouted,
    Restored,
)
from regraft.routing.reconfiguration import Reconfigurator

FLOOD_HOPS = 4  # of a FLUSH that does not know its way
FRESH_MS = 1000  # after which a dormant link is a plain one
DOUBT_MS = 300  # for which filters are withheld where nobody knows the tail
LISTED_MAX = 500  # filters in one message; with more it is done without
LISTED_BYTES = 32 * 1024
KEPT_MS = 3000  # for which something is remembered, at least
KEPT_MAX = 1000  # reconfigurations that are remembered
_MS = 1_000_000

T = TypeVar("T")


class Path(NamedTuple):
    """The way from one end of a lost link to the other, by the new one."""

    head: tuple[bytes, ...] = ()
    tail: tuple[bytes, ...] = ()


NO_PATH = Path()


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost link, and what was known of it."""

    key: int
    held: list[Filter]
    told: list[Filter]
    fresh_ns: int  # until when that may be used
    until_ns: int
    planned: bool


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new link that is not active yet."""

    rid: bytes
    path: Path
    by_other: bool  # what it waits for comes from its other end
    until_ns: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that came too early, and by which link; or where an answer goes."""

    key: int
    until_ns: int
    message: Any = None


def listed(filters: list[Filter]) -> bool:
    """Whether they fit into one message."""
    return len(filters) <= LISTED_MAX and sum(map(size_of, filters)) <= LISTED_BYTES


class Grafting:
    """One node's part in all reconfigurations."""

    def __init__(
        self,
        me: bytes,
        forwarding: Forwarding,
        protocol: Reconfigurator,
        enter: Callable[[int, Iterable[Numbered]], None],
        remove: Callable[[int, Iterable[int]], None],
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self._me = me
        self._forwarding = forwarding
        self._protocol = protocol
        self._enter = enter  # told what a neighbour wants that did not say so
        self._remove = remove  # and does not any more
        self._bugs = bugs
        self.advertising: Advertising | None = None  # told of the same links
        self._keys: dict[bytes, int] = {}  # neighbours
        self._nodes: dict[int, bytes] = {}
        self._losses: dict[bytes, Loss] = {}
        self._fresh: dict[int, Fresh] = {}
        self._tags: dict[tuple[int, bytes], int] = {}  # until when
        self._parked: dict[bytes, Kept] = {}  # REROUTE whose next link is not there yet
        self._informed: dict[bytes, Kept] = {}  # ACTIVATE whose link is not there yet
        self._flushed: dict[bytes, Kept] = {}  # FLUSH before the loss was noticed
        self._back: dict[bytes, Kept] = {}  # where RESTORED goes
        self.counts = dict.fromkeys(("flush", "restored", "activate", "reroute", "rerouted"), 0)

    @property
    def _delay_ns(self) -> int:
        return self._protocol.delay_ms * _MS

    @property
    def _kept_ns(self) -> int:
        """How long something of others is remembered, whatever this node itself does."""
        return max(self._delay_ns, KEPT_MS * _MS)

    @property
    def _plain(self) -> bool:
        """Whether there is nothing to be said."""
        protocol = self._protocol
        return protocol.delay_ms <= 0 or not (protocol.notifies or protocol.reroutes)

    # ---------------------------------------------------------------------- links

    def added(
        self,
        key: int,
        node: bytes,
        rid: bytes,
        now_ns: int,
        leading: bool = False,
        path: Path = NO_PATH,
    ) -> None:
        """There is a link; with a rid in place of a lost one, `leading` if this end sought it."""
        self._added(key, node, rid, now_ns, leading, path)
        if self.advertising is not None:
            self.advertising.added(key, now_ns)

    def _added(
        self, key: int, node: bytes, rid: bytes, now_ns: int, leading: bool, path: Path
    ) -> None:
        self._keys[node] = key
        self._nodes[key] = node
        forwarding, protocol = self._forwarding, self._protocol
        leads = path.head == (self._me,) if path.head else leading
        loss = self._losses.get(rid)
        planned = leads and loss is not None and loss.planned  # that goes by the path, always
        if planned or (rid and not self._plain and protocol.reroutes and leads):
            forwarding.added(key, rid, now_ns)
            self._lead(key, rid, path, now_ns)
        elif not rid or self._plain:
            forwarding.added(key, rid, now_ns)
        elif protocol.informs and not path.head and leads:
            forwarding.added(key, rid, now_ns)
            if loss is not None and now_ns < loss.fresh_ns and listed(loss.told):
                forwarding.say(key, Activate(rid, tuple(loss.told), ()))
            self._say_flush(key, rid, path)
        elif protocol.reroutes or protocol.informs:
            forwarding.added(key, rid, now_ns, dormant=True)
            far_end = bool(path.tail) and path.tail[0] == self._me
            by_other = not path.head or (protocol.reroutes and far_end)
            wait_ns = min(FRESH_MS * _MS, self._delay_ns)
            self._fresh[key] = Fresh(rid, path, by_other, now_ns + wait_ns)
            self._recall(key, rid, now_ns)
        else:
            forwarding.added(key, rid, now_ns)
            self._say_flush(key, rid, path)

    def _recall(self, key: int, rid: bytes, now_ns: int) -> None:
        """What this link waits for may have come before it."""
        parked = self._parked.get(rid)
        if parked is not None and len(parked.message.head) == 1:
            del self._parked[rid]
            self._heard_reroute(parked.key, parked.message, now_ns)
        informed = self._informed.pop(rid, None)
        if informed is not None and key in self._fresh:
            via = informed.key if informed.key in self._nodes else None
            self._inform(key, rid, informed.message, via, now_ns)

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> None:
        """A link is no more."""
        self._forget(key)
        forwarding, protocol = self._forwarding, self._protocol
        flushed = self._flushed.pop(rid, None) if rid else None
        if rid and flushed is None:
            held = forwarding.held_by(key) if protocol.reroutes or planned else []
            told = forwarding.told_to(key) if protocol.informs else []
            delay_ns = self._kept_ns if planned else self._delay_ns
            fresh_ns = now_ns + delay_ns
            loss = Loss(key, held, told, fresh_ns, fresh_ns + delay_ns, planned)
            _keep(self._losses, rid, loss, now_ns)
        forwarding.lost(key, rid, planned, now_ns, may_wait=flushed is None)
        if self.advertising is not None:
            self.advertising.lost(key, rid, planned, now_ns)
        if flushed is not None and flushed.message.echo:
            self._say(flushed.key, Restored(rid))

    def substituted(self, rid: bytes, path: Path, now_ns: int) -> None:
        """It is known what takes the place of a link that was lost here."""
        loss = self._losses.get(rid)
        if loss is None or self._plain:
            return
        if self._protocol.informs:
            self._say_activate(rid, loss, path, now_ns)
        elif self._protocol.reroutes and path.head[0] == self._me and len(path.head) > 1:
            onward = self._keys.get(path.head[1])
            usable = now_ns < loss.fresh_ns and listed(loss.held)
            if onward is not None and onward not in self._fresh and usable:
                self._turn(onward, rid, Reroute(rid, (), (), path.head[1:], path.tail))

    def _forget(self, key: int) -> None:
        """A link is no more: what was under way by it is not."""
        node = self._nodes.pop(key)
        if self._keys.get(node) == key:
            del self._keys[node]
        self._fresh.pop(key, None)
        for tagged in [tagged for tagged in self._tags if tagged[0] == key]:
            del self._tags[tagged]
        for rid in [rid for rid, parked in self._parked.items() if parked.key == key]:
            del self._parked[rid]

    def complete(self, key: int, now_ns: int) -> None:
        """A neighbour has said all that it wants: a link that waits for more waits in vain."""
        fresh = self._fresh.get(key)
        if fresh is not None and fresh.by_other:
            self._open(key)

    def _open(self, key: int) -> None:
        """A dormant link is active."""
        fresh = self._fresh.pop(key)
        self._forwarding.activate(key)
        if self._protocol.notifies:
            self._say_flush(key, fresh.rid, fresh.path)

    # --------------------------------------------------------------------- saying

    def _say(self, key: int | None, message: Message) -> None:
        if key is not None and key in self._nodes:
            self.counts[type(message).__name__.lower()] += 1
            self._forwarding.say(key, message)

    def _say_flush(self, key: int, rid: bytes, path: Path, echo: bool = False) -> None:
        """Across a new link: what comes by it is complete."""
        route: tuple[bytes, ...] = ()
        if path.tail and path.head[-1] == self._me:
            route = path.tail[1:]
        elif path.tail:
            route = path.head[-2::-1]
        self._say(key, Flush(rid, route, 0 if path.tail else FLOOD_HOPS, echo))

    def _say_activate(self, rid: bytes, loss: Loss, path: Path, now_ns: int) -> None:
        """Tell the end of the new link in this part what it should not say."""
        way = path.head if path.head[0] == self._me else path.tail[::-1]
        if len(way) > 1:
            doubtful = self._forwarding.only_by(loss.key)
            some = tuple(doubtful) if listed(doubtful) else ()
            self._say(self._keys.get(way[1]), Activate(rid, some, way[2:]))
        else:  # this is the end; what is lost here is not told to new links anyway
            self._heard_activate(-1, Activate(rid, (), ()), now_ns)

    # -------------------------------------------------------------------- hearing

    def heard(self, key: int, message: Message, now_ns: int) -> None:
        """A neighbour said something, behind what it said before."""
        match message:
            case Flush():
                self._heard_flush(key, message, now_ns)
            case Restored():
                self._heard_restored(message)
            case Activate():
                self._heard_activate(key, message, now_ns)
            case Reroute():
                _check(message.given)
                self._heard_reroute(key, message, now_ns)
            case Rerouted():
                self._take_back(key, message.remove)

    def _heard_flush(self, key: int, flush: Flush, now_ns: int) -> None:
        loss = self._losses.pop(flush.rid, None)
        if loss is not None:
            if "flush-cancels-only" in self._bugs:
                self._protocol.end(loss.key)
            else:
                self._forwarding.stop_waiting(loss.key)
            if flush.echo:
                self._say(key, Restored(flush.rid))
            return
        kept = Kept(key, now_ns + self._kept_ns, flush)
        if flush.echo:
            _keep(self._back, flush.rid, kept, now_ns)
        if flush.route:
            rest = flush._replace(route=flush.route[1:])
            self._say(self._keys.get(flush.route[0]), rest)
        elif flush.rid not in self._flushed:
            _keep(self._flushed, flush.rid, kept, now_ns)
            if flush.hops > 1:
                for other in [other for other in self._nodes if other != key]:
                    self._say(other, flush._replace(hops=min(flush.hops, FLOOD_HOPS) - 1))

    def _heard_restored(self, restored: Restored) -> None:
        rid = restored.rid
        mine = [key for key, by in self._tags if by == rid]
        for key in mine:
            del self._tags[key, rid]
            self._forwarding.untag(key, rid)
        back = self._back.pop(rid, None)
        if back is not None and not mine:
            self._say(back.key, restored)

    def _heard_activate(self, key: int, activate: Activate, now_ns: int) -> None:
        rid = activate.rid
        if activate.route:
            rest = activate._replace(route=activate.route[1:])
            self._say(self._keys.get(activate.route[0]), rest)
            return
        own = self._fresh.get(key)
        if own is not None and own.rid == rid:
            self._inform(key, rid, activate.doubtful, None, now_ns)
            return
        new = next((new for new, fresh in self._fresh.items() if fresh.rid == rid), None)
        if new is not None:
            self._inform(new, rid, activate.doubtful, key, now_ns)
        else:
            kept = Kept(key, now_ns + self._kept_ns, activate.doubtful)
            _keep(self._informed, rid, kept, now_ns)

    def _inform(
        self, key: int, rid: bytes, doubtful: Iterable[Filter], via: int | None, now_ns: int
    ) -> None:
        """A new link may be told everything but what is in doubt."""
        known = bool(self._fresh[key].path.tail)
        self._withhold(key, rid, doubtful, via, known, now_ns)
        self._open(key)

    def _withhold(
        self,
        key: int,
        rid: bytes,
        filters: Iterable[Filter],
        via: int | None,
        known: bool,
        now_ns: int,
    ) -> None:
        if "withheld-at-once" not in self._bugs:
            self._forwarding.tag(key, filters, rid, via)
            wait_ns = self._kept_ns if known else DOUBT_MS * _MS
            self._tags[key, rid] = now_ns + wait_ns

    # ------------------------------------------------------------------- the path

    def _lead(self, key: int, rid: bytes, path: Path, now_ns: int) -> None:
        """This end has lost the old link and has the new one: it turns to that."""
        loss = self._losses.get(rid)
        if loss is not None and now_ns < loss.fresh_ns and listed(loss.held):
            self._turn(key, rid, Reroute(rid, (), (), (), path.tail))

    def _turn(self, onward: int, rid: bytes, message: Reroute) -> None:
        """What went by the lost link goes by another, at least a part of the way."""
        loss = self._losses.pop(rid)
        given = self._entered(onward, loss.held)
        self._forwarding.stop_waiting(loss.key)
        self._say(onward, message._replace(given=given))

    def _heard_reroute(self, key: int, message: Reroute, now_ns: int) -> None:
        rid, path = message.rid, Path(message.head, message.tail)
        if not message.head:
            self._far_end(key, message, now_ns)
            return
        onward = self._keys.get((*message.head[1:], *message.tail)[0]) if _leads_on(path) else None
        room = rid not in self._parked and len(self._parked) < KEPT_MAX
        if onward is None and len(message.head) == 1 and room:
            until_ns = now_ns + FRESH_MS * _MS
            self._parked[rid] = Kept(key, until_ns, message)
            return
        self._pass_on(key, message, onward)

    def _pass_on(self, key: int, message: Reroute, onward: int | None) -> None:
        """Turn from the one to the other, or just believe the one if there is no other."""
        given: tuple[Numbered, ...] = ()
        if onward == key:
            onward = None
        if onward is not None:
            given = self._entered(onward, [filter for _, filter in message.given])
        self._take_back(key, message.remove)
        self._forwarding.give(key, message.given, message.rid)
        if onward is not None:
            rest = message._replace(given=given, remove=(), head=message.head[1:])
            self._say(onward, rest)
            if onward in self._fresh:
                self._open(onward)

    def _far_end(self, key: int, message: Reroute, now_ns: int) -> None:
        """The other end of a new link has turned to it."""
        rid, tail = message.rid, message.tail
        forwarding = self._forwarding
        loss = self._losses.pop(rid, None)
        if loss is not None:
            forwarding.stop_waiting(loss.key)  # this is the end of the tail, too
        self._take_back(key, message.remove)
        forwarding.give(key, message.given, b"")
        if loss is not None:
            pass
        elif len(tail) > 1 or not tail:
            onward = self._keys.get(tail[1]) if tail else None
            given = {filter for _, filter in message.given}
            if onward is not None:
                some = [one for one in forwarding.held_by(onward) if one not in given]
                self._withhold(key, rid, some, onward, True, now_ns)
                self._say(onward, Flush(rid, tail[2:], 0, True))
            elif not tail:
                some = [one for one in forwarding.held_by(key) if one not in given]
                self._withhold(key, rid, some, None, False, now_ns)
                for other in [other for other in self._nodes if other != key]:
                    self._say(other, Flush(rid, (), FLOOD_HOPS, True))
        elif tail == (self._me,):
            flush = Flush(rid, (), 0, False)  # the loss is not noticed yet
            _keep(self._flushed, rid, Kept(key, now_ns + self._kept_ns, flush), now_ns)
        if key in self._fresh:
            self._open(key)

    def _entered(self, key: int, filters: list[Filter]) -> tuple[Numbered, ...]:
        """A neighbour wants these, though it did not say so."""
        given = tuple(self._forwarding.assume(key, filters))
        self._enter(key, given)
        return given

    def _take_back(self, key: int, numbers: tuple[int, ...]) -> None:
        self._forwarding.received(key, (), numbers)
        self._remove(key, numbers)

    # ----------------------------------------------------------------------- time

    def tick(self, now_ns: int) -> None:
        """It is so late: what waited too long does not any more."""
        for key in [key for key, fresh in self._fresh.items() if fresh.until_ns <= now_ns]:
            self._open(key)
        for key, rid in [tagged for tagged, ns in self._tags.items() if ns <= now_ns]:
            del self._tags[key, rid]
            self._forwarding.untag(key, rid)
        for rid in [rid for rid, kept in self._parked.items() if kept.until_ns <= now_ns]:
            parked = self._parked.pop(rid)
            self._pass_on(parked.key, parked.message, None)

    @property
    def next_ns(self) -> int | None:
        """When to call `tick` at the latest."""
        times = [fresh.until_ns for fresh in self._fresh.values()]
        times += self._tags.values()
        times += [parked.until_ns for parked in self._parked.values()]
        return min(times, default=None)


def _keep(among: dict[bytes, T], rid: bytes, kept: T, now_ns: int) -> None:
    """Remember something, and forget what is too old, or too much."""
    for old in [old for old, one in among.items() if one.until_ns <= now_ns]:  # type: ignore[attr-defined]
        del among[old]
    if len(among) >= KEPT_MAX:
        del among[next(iter(among))]
    among[rid] = kept


def _leads_on(path: Path) -> bool:
    """Whether the way goes on from the first of the head."""
    return len(path.head) > 1 or bool(path.tail)


def _check(given: Iterable[Numbered]) -> None:
    for _, filter in given:
        try:
            check_pattern(filter.pattern)
        except LocalError as error:
            raise PeerError("protocol-violation", error.text) from None
