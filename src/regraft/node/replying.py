"""Questions and replies at a node: frames in, frames out. What is remembered is `routing.replies`.

A question is routed as a message is. To each link that wants it, it goes as a QUESTION frame,
behind what waits there; to clients as a message, and to those whose subscription says that it
replies with a token in the transfer header. What comes back is passed on to where the question came
from, in its own order, but before messages that wait for credit.

Control frames need no credit, so what may wait for one connection is bounded here: beyond
`reply_bytes` a question is not sent, or a reply not passed on, and the question is not complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from regraft.errors import BY_NUMBER, CODES, PeerError
from regraft.kernels.envelope import FAULTS, examine, read_varints
from regraft.kernels.outlet import Outlet, Route
from regraft.limits import Limits
from regraft.model.rules import TYPE_TOPIC
from regraft.model.varint import UINT64
from regraft.node.connection import OPEN, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.event import Now
from regraft.node.outflow import Outflow
from regraft.node.router import Router
from regraft.routing.replies import Pending, Replies
from regraft.wire import native
from regraft.wire.questions import Counted, Ended, Question, Reply, Withdrawn
from regraft.wire.traces import Trace

if TYPE_CHECKING:
    from random import Random  # seeded, or of the system: whoever makes a node decides

QUESTION_FIELD = 8  # of a transfer header
MARGIN = 32  # each node gives the next a little less time than it has: one part of so many
ID_BYTES = 16
_NONE: frozenset[int] = frozenset()
COUNTERS = ("questions", "replies", "replies_dropped", "replies_late", "questions_refused")


class Replying:
    """What a node does about questions."""

    def __init__(
        self,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        deadlines: Deadlines,
        limits: Limits,
        random: Random,
    ) -> None:
        self._router = router
        self._outflow = outflow
        self._connections = connections
        self._deadlines = deadlines
        self._limits = limits
        self._random = random
        self._number = 0
        self._repliers: dict[int, set[int]] = {}  # by connection: subscriptions that reply
        self._gone: list[int] = []
        self._wake_ns = 0
        self.pending = Replies()
        self.settled: Callable[[Now], bool] | None = None  # whether all neighbours are known
        self.trace: Callable[[Connection, Trace, Now], None]  # what is a matter of `tracing`
        self._counters = dict.fromkeys(COUNTERS, 0)
        router.on_dismiss = self._gone.append

    # ---------------------------------------------------------------- subscriptions

    def replies(self, key: int, subscription: int) -> None:
        """A subscription's deliveries may be replied to."""
        self._repliers.setdefault(key, set()).add(subscription)

    def unsubscribed(self, key: int, subscription: int) -> None:
        """A subscription is gone."""
        ids = self._repliers.get(key)
        if ids is not None:
            ids.discard(subscription)

    # -------------------------------------------------------------------- questions

    def question(self, c: Connection, message: Question, now: Now) -> None:
        """Somebody asks: a client of this node, or another node for it."""
        id = self.admit(c, message.id, now)
        if id is None:
            return
        code, text, route = self._route(c, message)
        if route is None:
            self.refuse(c, message.id, message.token, code, text, now)
            return
        self._counters["questions"] += 1
        self._ask(c, id, message, route, now)

    def admit(self, c: Connection, id: bytes, now: Now) -> bytes | None:
        """The id of what is asked; None if it was asked before, which is answered."""
        if not c.node:
            id = self._router.lane.mark[1:] + self._next().to_bytes(8, "little")
            self.pending.knows(id)
            return id
        if len(id) != ID_BYTES:
            raise PeerError("malformed-envelope", f"a question's id has {ID_BYTES} bytes")
        if self.pending.knows(id):  # it counts on the way that it came by first
            self._outflow.send(c, Ended(id, complete=True), now)
            return None
        return id

    def refuse(self, c: Connection, id: bytes, token: int, code: int, text: str, now: Now) -> None:
        """Say that something is not asked."""
        self._counters["questions_refused"] += 1
        ended = Ended(id, 0 if c.node else token, code=code, reason=text)
        self._outflow.send(c, ended, now)

    def _next(self) -> int:
        """A number for a question; what one node gave means nothing to another."""
        self._number = (self._number or self._random.getrandbits(64) >> 2) + 1
        return self._number

    def _route(self, c: Connection, message: Question) -> tuple[int, str, Route | None]:
        """Where a question goes; or an error's number, and a text."""
        limits = self._limits
        text = self.no_room(c, message.token)
        if text:
            return CODES["limit-exceeded"].number, text, None
        code, topic, route = self._router.lane.find_route(c.source, message.envelope)
        if code < 0:
            raise PeerError("malformed-envelope", f"an envelope is refused: {FAULTS[-code]}")
        if code or route is None:
            return code, f"not asked: {BY_NUMBER[code].meaning}", None
        if topic.startswith(TYPE_TOPIC.encode()):
            text = "messages of a type go to services: use query()"
            return CODES["not-supported"].number, text, None
        if self.pending.branches + len(route.outlets) > limits.question_branches:
            text = "too many repliers at the same time (limit question_branches at this node)"
            return CODES["limit-exceeded"].number, text, None
        return 0, "", route

    def no_room(self, c: Connection, token: int) -> str:
        """The limit that is against another question, or nothing."""
        limits = self._limits
        if len(self.pending) >= limits.questions:
            return f"this node has {limits.questions} questions to answer (limit questions)"
        if not c.node and self.pending.asked_by(c.key) >= limits.questions_per_session:
            return f"{limits.questions_per_session} are asked already (limit questions_per_session)"
        if not c.node and (not token or self.pending.find(c.key, token)):
            raise PeerError("protocol-violation", f"question {token} cannot be asked now")
        return ""

    def _ask(self, c: Connection, id: bytes, message: Question, route: Route, now: Now) -> None:
        pending, lasts_ms = self.begin(c, id, message.token, message.lasts_ms, now)
        links, clients = self._hand_on(c, pending, message.envelope, lasts_ms, route, now)
        self.asked(pending, links, clients, now)

    def begin(
        self, c: Connection, id: bytes, token: int, lasts_ms: int, now: Now
    ) -> tuple[Pending, int]:
        """Something is asked, by nobody else before; and for how long."""
        most = self._limits.question_ms
        lasts_ms = min(lasts_ms or most, most)
        ends_ns = now.ns + lasts_ms * 1_000_000
        pending = Pending(id, self._next(), c.key, 0 if c.node else token, ends_ns)
        if self.settled is not None and not self.settled(now):
            pending.spoil("the network is repairing itself: some may not have been asked")
        return pending, lasts_ms

    def asked(self, pending: Pending, links: list[int], clients: list[int], now: Now) -> None:
        """It went to all of these."""
        self.pending.open(pending, links, clients)
        if not links and not clients:
            self._finish(pending, now)
            return
        self._schedule(now)
        if not links:
            self._tell(pending, Counted(repliers=pending.repliers), now)

    def _hand_on(
        self,
        c: Connection,
        pending: Pending,
        envelope: bytes,
        lasts_ms: int,
        route: Route,
        now: Now,
    ) -> tuple[list[int], list[int]]:
        """Give a question to all who take it; the branches that it has by that."""
        links: list[int] = []
        clients: list[int] = []
        lane = self._router.lane
        frame = native.frame(native.Kind.MESSAGE, envelope)
        onward = b""
        mark = UINT64.write(QUESTION_FIELD, pending.number)
        for outlet, ids in zip(route.outlets, route.subscriptions, strict=True):
            if not outlet.link:
                if self._may_reply(outlet, ids):
                    clients.append(outlet.key)
                    ids += mark
                lane.give(outlet, frame, ids)
            elif outlet is not c.outlet and not outlet.muted:
                onward = onward or native.encode(
                    Question(pending.id, 0, onward_ms(lasts_ms), envelope)
                )
                if self.send(outlet.key, onward, now):
                    links.append(outlet.key)
                else:
                    pending.spoil("a neighbour could not be asked")
        dirty = lane.take_dirty()
        if dirty:
            self._outflow.deliver(dirty, c, False, now)
        return links, clients

    def _may_reply(self, outlet: Outlet, ids: bytes) -> bool:
        replying = self._repliers.get(outlet.key, _NONE)
        if not replying:
            return False
        # Field 2, packed: a tag, a length, and the ids.
        at = 2
        while ids[at - 1] > 0x7F:
            at += 1
        return not replying.isdisjoint(read_varints(ids[at:]) or ())

    def send(self, key: int, frame: bytes, now: Now, in_place: bool = True) -> bool:
        """Send a frame, behind messages that wait or before them, unless too much waits."""
        c = self._connections.get(key)
        if c is None or c.session is None or c.state is not OPEN or c.lost:
            return False
        waiting = c.unsent + c.session.delivery.backlog.control_size
        if waiting + len(frame) > self._limits.reply_bytes:
            return False
        if in_place:
            self._outflow.send_encoded_in_place(c, frame, now)
        else:
            self._outflow.send_encoded(c, [frame], now)
        return True

    # ---------------------------------------------------------------------- replies

    def heard(self, c: Connection, message: Any, now: Now) -> None:
        """A neighbour says something about a question."""
        if isinstance(message, Question):
            self.question(c, message, now)
            return
        if isinstance(message, Trace):
            self.trace(c, message, now)
            return
        pending = self.pending.by_id.get(message.id)
        if isinstance(message, Withdrawn):
            if pending is not None and pending.asker == c.key:
                self._abandon(pending, now)
        elif pending is None or c.key not in pending.branches:
            self._counters["replies_late"] += isinstance(message, Reply)
        elif isinstance(message, Reply):
            self._check(message.envelope)
            self._pass_on(pending, c.key, message.envelope, now)
        elif isinstance(message, Counted):
            if self.pending.count(pending, c.key, message.repliers):
                self._tell(pending, Counted(repliers=pending.repliers), now)
        else:
            assert isinstance(message, Ended)
            uncounted = bool(pending.uncounted)
            counts = message.repliers, message.replies, message.complete
            if self.pending.end(pending, c.key, *counts, message.reason):
                self._finish(pending, now)
            elif uncounted and not pending.uncounted:
                self._tell(pending, Counted(repliers=pending.repliers), now)

    def reply(self, c: Connection, message: Reply, now: Now) -> None:
        """A client of this node replies, or has no more to say."""
        if message.envelope:
            self._check(message.envelope)
        elif not message.last:
            raise PeerError("protocol-violation", "a reply without a message is the last one")
        pending = self.pending.by_number.get(message.token)
        if pending is None or c.key not in pending.branches:
            self._counters["replies_late"] += 1  # nobody waits any more
            return
        if message.envelope:
            self._pass_on(pending, c.key, message.envelope, now)
        if message.last:
            came = pending.branches[c.key]
            reason = "somebody could not reply" if message.failed else ""
            if self.pending.end(pending, c.key, 0, came, not message.failed, reason):
                self._finish(pending, now)

    def _check(self, envelope: bytes) -> None:
        fault = examine(envelope)[0]
        if fault:
            raise PeerError("malformed-envelope", f"a reply is refused: {FAULTS[fault]}")

    def _pass_on(self, pending: Pending, key: int, envelope: bytes, now: Now) -> None:
        pending.branches[key] += 1
        self.say(pending, envelope, now)

    def say(self, pending: Pending, envelope: bytes, now: Now) -> None:
        """A reply goes to who asked."""
        asker = self._connections.get(pending.asker)
        id = pending.id if asker is not None and asker.node else b""
        frame = native.encode(Reply(id, pending.token, envelope))
        if self.send(pending.asker, frame, now, in_place=False):
            pending.replies += 1
            self._counters["replies"] += 1
        else:
            self._counters["replies_dropped"] += 1
            pending.spoil("the asker takes replies too slowly (limit reply_bytes)")

    def withdraw(self, c: Connection, message: Withdrawn, now: Now) -> None:
        """A client does not wait any more."""
        pending = self.pending.find(c.key, message.token)
        if pending is not None:
            self._abandon(pending, now)

    # -------------------------------------------------------------------------- ends

    def _tell(self, pending: Pending, message: Counted | Ended, now: Now) -> None:
        """Say something to the asker, by the name that it knows the question by."""
        c = self._connections.get(pending.asker)
        if c is None or c.state is not OPEN or c.lost:
            return
        id = pending.id if c.node else b""
        if isinstance(message, Counted):
            message = Counted(id, pending.token, message.repliers)
        else:
            message = Ended(
                *(id, pending.token, pending.repliers, pending.replies),
                *(pending.complete, 0, pending.reason),
            )
        self._outflow.send(c, message, now)

    def _finish(self, pending: Pending, now: Now) -> None:
        self.pending.close(pending)
        self._tell(pending, Ended(), now)

    def _abandon(self, pending: Pending, now: Now) -> None:
        """Nobody waits for it: tell those who were asked."""
        branches = list(pending.branches)
        self.pending.close(pending)
        frame = native.encode(Withdrawn(pending.id))
        for key in branches:
            c = self._connections.get(key)
            if c is not None and c.node:
                self.send(key, frame, now)

    def due(self, now: Now) -> None:
        """A moment has come: the time of some questions is over."""
        for pending in self.pending.expire(now.ns):
            self._finish(pending, now)
        self._wake_ns = 0
        self._schedule(now)

    def _schedule(self, now: Now) -> None:
        at_ns = self.pending.next_ns
        if at_ns is not None and (self._wake_ns <= now.ns or at_ns < self._wake_ns):
            self._wake_ns = at_ns
            self._deadlines.add(at_ns, "question", 0)

    @property
    def stirred(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._gone)

    def work(self, now: Now) -> None:
        """Connections are gone: what that means for questions."""
        while self._gone:
            key = self._gone.pop()
            self._repliers.pop(key, None)
            over, orphaned, counted = self.pending.lose(key)
            for pending in over:
                self._finish(pending, now)
            for pending in counted:
                self._tell(pending, Counted(repliers=pending.repliers), now)
            for pending in orphaned:
                self._abandon(pending, now)

    def snapshot(self) -> dict[str, int]:
        """What it holds and has counted."""
        pending = self.pending
        open = {"questions_open": len(pending), "question_branches": pending.branches}
        return {**open, **self._counters}


def onward_ms(lasts_ms: int) -> int:
    """How long the next node has, so that it says what is missing before it is asked no more."""
    return max(1, lasts_ms - lasts_ms // MARGIN - 1)
