"""Moving a branch of the tree as planned: the old link is drained before the new one takes over.

B, a child of A, is to be below C. A, h, ..., C are the *way*.

1. B keeps what it would send to A from now on, and says MOVING. MOVING goes along the way, behind
   all messages: when it is at C, all that came from B by A has passed everybody on the way.
2. C says READY, back to B. B asks C for a place, as any orphan does; A goes on to send to B.
3. B and C are neighbours. C keeps what it would send to B. What B kept goes to C once C has said
   what it wants; what still comes from A does not go to C. B turns to C (`routing/grafting.py`),
   and the FLUSH of that goes to A, in its place among the messages: what comes to A later for B
   comes to C, too. So A sends what it still has for B, then LEFT, and the old link is over.
4. B says RELEASE to C, and C sends what it has kept. Some of it came by A already, and is dropped
   as repeated.

So each message has one way, or two of which the second is not used before the first has ended.
Everything here has a time, after which it is done without the other: then something may be lost, as
when a link breaks, but nothing comes twice.

Moves that collide: a move *claims* the links of its way, and the old link for itself alone, from
MOVING until FLUSH. What needs a claimed link to itself, or a link that somebody has to itself, is
refused by the node that sees it, with READY and the reason: the one who wanted to move hears it
after a round trip at most, and what it kept goes where it always went. So no two moves wait for one
another. If a link of the way ends meanwhile, the node that sees that says so in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from regraft.errors import LocalError
from regraft.node.connection import CLOSING, OPEN, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.departure import Action, Departure, Gone
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.listening import Listening
from regraft.node.outflow import Outflow
from regraft.node.router import Router
from regraft.overlay.lstree import LSTree
from regraft.routing.grafting import NO_PATH, Grafting, Path
from regraft.wire import peers

CLAIMS_MAX = 1000  # moves of others that pass here
WHY_MAX = 200  # characters of somebody's reason
NOWHERE = -1  # the link that a move takes from the end of its way
ASKED, SEEKING, LINKED, COMPLETE = range(4)


@dataclass(slots=True)
class Going:
    """This node goes elsewhere."""

    old: Connection
    rid: bytes
    address: str
    way: tuple[bytes, ...]  # from the old parent to the new one
    at_ns: int
    stage: int = ASKED
    new: int = -1
    left: bool = False  # nothing more comes from the old parent
    closed: bool = False  # nor goes there; what is kept for the new one is still here


@dataclass(slots=True)
class Parting:
    """A child goes elsewhere."""

    c: Connection
    rid: bytes
    at_ns: int
    begun: bool = False  # it has said good-bye
    flushed: bool = False  # what comes from now on goes to its new place, too


@dataclass(slots=True)
class Claim:
    """Somebody's move passes here, or ends here: until then its links stay as they are."""

    back: int  # the link that it came by
    onward: int  # and the one by which it goes on
    mover: bytes
    alone: bool  # it came by the link that goes away: that one cannot be part of another way
    at_ns: int
    answered: bool = False  # the way was there; what counts from now on is FLUSH


class Moving:
    """A node's part in moves: its own, those of its children, and those of others."""

    def __init__(
        self,
        me: bytes,
        links: dict[int, Connection],
        router: Router,
        outflow: Outflow,
        overlay: LSTree,
        grafting: Grafting,
        listening: Listening,
        departure: Departure,
        effects: list[Effect],
        deadlines: Deadlines,
        leave_ms: int,
        gone: Gone,
    ) -> None:
        self._me = me
        self._links = links
        self._router = router
        self._outflow = outflow
        self._overlay = overlay
        self._grafting = grafting
        self._listening = listening
        self._departure = departure
        self._effects = effects
        self._deadlines = deadlines
        self._wait_ns = leave_ms * 1_000_000
        self._gone = gone  # told when what stayed of a connection goes
        self._going: Going | None = None
        self._begun = b""  # the rid of the link that this node was told to leave
        self._partings: dict[int, Parting] = {}
        self._claims: dict[bytes, Claim] = {}  # by rid
        self._held: dict[int, tuple[bytes, int]] = {}  # who came, and is sent nothing until when
        self.stirred = False  # there is something to be announced
        # What was routed by now and waits for the disk goes out before the action.
        self.when_safe: Callable[[Action, Now], None] = lambda action, now: action(now)
        self.counts = {"moved": 0, "stayed": 0, "late": 0}
        self.stayed = ""  # why it did, the last time

    def __bool__(self) -> bool:
        return bool(self._partings)

    def keeps(self, key: int) -> bool:
        """Whether a connection is the rest of a link that moves: it does not end with that."""
        going = self._going
        return key in self._partings or (
            going is not None and going.stage > ASKED and going.old.key == key
        )

    def removed(self, key: int) -> bool:
        """A link is over for the tree; whether its connection is kept."""
        if key in self._partings:
            self._partings[key].begun = True
        return self.keeps(key)

    # ---------------------------------------------------------------------- going

    def begin(self, address: str, way: tuple[bytes, ...], now: Now) -> None:
        """Go from the parent to another node, which is at an address and at the end of the way."""
        parent = self._overlay.standing()[0]
        old = self._links.get(parent) if parent is not None else None
        if old is None or len(way) < 2 or old.node != way[0] or old.state is not OPEN:
            raise LocalError("not-a-neighbour", "the way does not begin at this node's parent")
        if self._going or self._partings or self._departure.leaving or self._departure.ghosts:
            raise LocalError("not-in-the-network", "this node or a neighbour is moving or leaving")
        self._expire(now)
        why = self._occupied(old, True)
        if why:
            raise LocalError("not-in-the-network", f"{why}; try again in a moment")
        assert old.session is not None
        rid = self._begun = self._overlay.parent_rid
        self._freeze(old)
        self._outflow.send(old, peers.Moving(rid, self._me, way[1:]), now)
        self._going = Going(old, rid, address, way, self._until(now))

    def _is_ready(self, going: Going, ready: peers.Ready, now: Now) -> None:
        """The way is there: ask for the new place."""
        if not ready.ok:
            self._stay(going, ready.why[:WHY_MAX] or "a node on the way said no", now)
            return
        going.stage = SEEKING
        going.at_ns = self._until(now, 3)
        try:
            self._overlay.attach(going.address, now.ns, going.rid)
        except LocalError as error:
            going.stage = ASKED
            self._stay(going, error.text, now)

    def _stay(self, going: Going, why: str, now: Now) -> None:
        self._going = None
        self._thaw(going.old, now)
        self.counts["stayed"] += 1
        self.stayed = why
        self._effects.append(Note("warning", f"this node stays where it is: {why}"))

    def linked(self, c: Connection, rid: bytes, now: Now) -> Path:
        """There is a link, which may be the one that was meant; the path to what it replaces."""
        going = self._going
        if going is not None and going.stage == SEEKING and rid == going.rid:
            going.stage, going.new = LINKED, c.key
            c.outlet.muted = True  # the old link keeps what it would get
            self._links.pop(going.old.key, None)
            self._lose(going.old, rid, now)
            if c.node == going.way[-1]:
                return Path((self._me,), going.way[::-1])
            self._outflow.send(going.old, peers.Left(), now)  # no FLUSH will find its way there
            return NO_PATH
        if rid and rid == self._begun:  # the old link ended meanwhile: there is nothing to wait for
            self._outflow.send(c, peers.Release(rid), now)
        claim = self._claims.get(rid)
        if claim is not None and claim.onward == NOWHERE and claim.mover == c.node:
            self._freeze(c)
            self._held[c.key] = (rid, self._until(now, 3))
        return NO_PATH

    def complete(self, c: Connection, now: Now) -> None:
        """A new link has said what it wants: if it is the one, it gets what was kept."""
        going = self._going
        if going is not None and going.stage == LINKED and going.new == c.key:
            self.when_safe(lambda now: self._complete(going, c, now), now)

    def _complete(self, going: Going, c: Connection, now: Now) -> None:
        if self._going is not going or going.stage != LINKED or self._links.get(c.key) is not c:
            return
        going.stage = COMPLETE
        c.outlet.muted = False
        # Not before: until now the old link kept what it was not given itself.
        going.old.source.outlet = c.outlet
        self._departure.hand_over(going.old, c, now)
        self._outflow.discard(going.old)
        self._unroute(going.old)
        self._arrive(going, now)

    def left(self, c: Connection, now: Now) -> None:
        """Nothing more comes by an old link; or who goes says that it came elsewhere."""
        parting = self._partings.get(c.key)
        if parting is not None:
            self.flushed(parting.rid, now)
            return
        going = self._going
        if going is not None and going.stage > ASKED and c is going.old and not going.left:
            going.left = True
            self._arrive(going, now)

    def _arrive(self, going: Going, now: Now) -> None:
        if not going.left or going.stage < LINKED:
            return
        self._release(going, now)
        if going.stage == COMPLETE:
            self._going = None
            self.counts["moved"] += 1
            self._effects.append(Note("info", "this node has moved"))
            self._finish(going, now)

    def _release(self, going: Going, now: Now) -> None:
        """The new parent may send what it has."""
        new = self._links.get(going.new)
        if new is not None and new.state is OPEN:
            self._outflow.send(new, peers.Release(going.rid), now)

    # -------------------------------------------------------------------- others

    def handle(self, c: Connection, message: peers.Moving | peers.Ready, now: Now) -> None:
        """Somebody moves."""
        if isinstance(message, peers.Moving):
            self._moves(c, message, now)
            return
        going = self._going
        if going is not None and going.rid == message.rid:
            if going.old is c and going.stage == ASKED:
                self._is_ready(going, message, now)
            return
        claim = self._claims.get(message.rid)
        if claim is not None and claim.onward == c.key:
            self._answer(message.rid, claim, message, now)

    def _answer(self, rid: bytes, claim: Claim, ready: peers.Ready, now: Now) -> None:
        """Say to the one behind that the way is there, or that it is not, or not any more."""
        broken = claim.answered  # it was there
        claim.answered = ready.ok
        if not ready.ok:
            del self._claims[rid]
        back = self._links.get(claim.back)
        if back is None or back.state is not OPEN:
            return
        if claim.alone and broken:
            self.flushed(rid, now)  # nobody will say that all has come
            return
        self._outflow.send(back, ready, now)
        if claim.alone and ready.ok:
            self._partings[back.key] = Parting(back, rid, self._until(now, 3))

    def _moves(self, c: Connection, message: peers.Moving, now: Now) -> None:
        """Pass it on, behind all messages; at the end of the way, expect the one who moves."""
        self._expire(now)
        alone = c.node == message.mover
        following = message.route[:1]
        there = [one for one in self._links.values() if one.node in following]
        why = self._refusal(c, message, there, alone)
        if why:
            self._outflow.send(c, peers.Ready(message.rid, False, why), now)
            return
        onward = there[0].key if there else NOWHERE
        claim = Claim(c.key, onward, message.mover, alone, self._until(now, 3))
        self._claims[message.rid] = claim
        if there:
            rest = peers.Moving(message.rid, message.mover, message.route[1:])
            self._outflow.send_in_place(there[0], rest, now)
        else:
            self._answer(message.rid, claim, peers.Ready(message.rid, True), now)

    def _refusal(
        self, c: Connection, message: peers.Moving, there: list[Connection], alone: bool
    ) -> str:
        """Why somebody's move cannot pass here."""
        if self._departure.leaving:
            return "a node on the way is leaving"
        if len(self._claims) >= CLAIMS_MAX:
            return "too many moves pass a node on the way"
        if message.rid in self._claims:
            return "this move is under way already"
        if message.route and (not there or there[0].state is not OPEN or there[0] is c):
            return "a node on the way is no neighbour of the next"
        if not message.route and self._going is not None:
            return "the new parent is moving itself"
        return self._occupied(c, alone) or (self._occupied(there[0], False) if there else "")

    def _occupied(self, c: Connection, alone: bool) -> str:
        """Why a link cannot be part of a way, or go away itself."""
        assert c.session is not None
        going = self._going
        if (going is not None and c is going.old) or c.key in self._partings:
            return "a link on the way is moving itself"
        if c.key in self._departure.ghosts:
            return "a node on the way is leaving"
        if c.session.delivery.frozen or c.outlet.muted:
            return "a link on the way is too new"
        for claim in self._claims.values():
            if c.key in (claim.back, claim.onward) and (
                alone or (claim.alone and c.key == claim.back)
            ):
                return "another move needs the same link"
        return ""

    def _expire(self, now: Now) -> None:
        for rid in [rid for rid, claim in self._claims.items() if claim.at_ns <= now.ns]:
            del self._claims[rid]

    def ended(self, key: int, now: Now) -> None:
        """A link is no more, and so no way leads over it."""
        for rid, claim in list(self._claims.items()):
            if claim.onward == key:
                why = "a link on the way ended meanwhile"
                self._answer(rid, claim, peers.Ready(rid, False, why), now)
            elif claim.back == key and rid in self._claims:
                del self._claims[rid]

    def release(self, c: Connection, message: peers.Release, now: Now) -> None:
        """Who came here has heard all from where it was."""
        if self._held.get(c.key, (b"", 0))[0] == message.rid:
            del self._held[c.key]
            self._claims.pop(message.rid, None)
            self._thaw(c, now)

    def flushed(self, rid: bytes, now: Now) -> None:
        """What comes here for a child that goes elsewhere comes there, too."""
        claim = self._claims.get(rid)
        if claim is not None and claim.alone and claim.onward != NOWHERE:
            del self._claims[rid]
        for parting in [one for one in self._partings.values() if one.rid == rid]:
            if not parting.flushed and self._links.pop(parting.c.key, None) is not None:
                self._unroute(parting.c)
                self._lose(parting.c, rid, now)
                self.when_safe(partial(self._all_sent, parting), now)

    def passed(self, rid: bytes) -> None:
        """FLUSH has gone on from here: the way is not needed any more."""
        claim = self._claims.get(rid)
        if claim is not None and claim.onward != NOWHERE:
            del self._claims[rid]

    def _all_sent(self, parting: Parting, now: Now) -> None:
        parting.flushed = True

    def work(self, now: Now) -> None:
        """Who has got all that was meant for it may go."""
        for parting in list(self._partings.values()):
            assert parting.c.session is not None
            if parting.flushed and not parting.c.session.delivery.backlog:
                del self._partings[parting.c.key]
                self._outflow.send(parting.c, peers.Left(), now)
                self._close(parting.c, now)

    # ---------------------------------------------------------------------- ends

    def closed(self, c: Connection, now: Now) -> bool:
        """A connection is gone; whether something of it stays for a while."""
        self._held.pop(c.key, None)
        going = self._going
        if going is not None and going.old is c:
            if going.stage == LINKED:
                going.closed = True
                self.left(c, now)
                return True
            self._going = None
            if going.stage == SEEKING:  # what it kept is lost, as with any link
                self._end(c, going.rid, now)
            elif going.stage == COMPLETE:
                self._release(going, now)
                self._router.dismiss(c.key)
        parting = self._partings.pop(c.key, None)
        if parting is not None:
            self._end(c, parting.rid, now)
        return False

    def _end(self, c: Connection, rid: bytes, now: Now) -> None:
        """A link that moved is over before its time."""
        if self._links.pop(c.key, None) is not None:
            self._lose(c, rid, now)
        self._router.dismiss(c.key)

    def tick(self, now: Now) -> None:
        """What took too long is done without the other."""
        self._expire(now)
        going = self._going
        if going is not None and going.at_ns <= now.ns:
            self.counts["late"] += 1
            if going.stage == ASKED:
                self._stay(going, "there was no answer from the other end of the way", now)
            else:
                self._late(going, now)
        for parting in [one for one in self._partings.values() if one.at_ns <= now.ns]:
            if not parting.begun:  # it stays, after all
                del self._partings[parting.c.key]
            elif not parting.flushed and parting.c.key in self._links:
                self.flushed(parting.rid, now)
                parting.at_ns = self._until(now)
            else:
                del self._partings[parting.c.key]
                self._close(parting.c, now)
        for key in [key for key, (_, at_ns) in self._held.items() if at_ns <= now.ns]:
            del self._held[key]
            if key in self._links:
                self._thaw(self._links[key], now)

    def _late(self, going: Going, now: Now) -> None:
        """Be content with what there is."""
        self._going = None
        new = self._links.get(going.new)
        if new is not None:
            new.outlet.muted = False
            self._release(going, now)
        if self._links.pop(going.old.key, None) is not None:
            self._lose(going.old, going.rid, now)
        self._finish(going, now)

    def _lose(self, c: Connection, rid: bytes, now: Now) -> None:
        self._grafting.lost(c.key, rid, True, now.ns)
        self.stirred = True

    def _until(self, now: Now, times: int = 1) -> int:
        at_ns = now.ns + times * self._wait_ns
        self._deadlines.add(at_ns, "move", 0)
        return at_ns

    def _freeze(self, c: Connection) -> None:
        assert c.session is not None
        c.session.delivery.frozen = True
        c.outlet.slow = True

    def _thaw(self, c: Connection, now: Now) -> None:
        assert c.session is not None
        c.session.delivery.frozen = False
        self._outflow.pump(c, now)

    def _unroute(self, c: Connection) -> None:
        """Nothing more is sent to a neighbour than what waits."""
        self._listening.remove(c.key, list(self._router.held(c.key)))

    def _finish(self, going: Going, now: Now) -> None:
        """Nothing is left of the old link."""
        if going.closed:
            self._router.dismiss(going.old.key)
            self._gone(going.old, now)
        else:
            self._close(going.old, now)

    def _close(self, c: Connection, now: Now) -> None:
        self._router.dismiss(c.key)
        c.ending = "left"
        if c.state is not CLOSING:
            self._outflow.close(c, "the link has moved", now)
