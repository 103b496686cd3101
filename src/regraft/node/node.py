"""The node: `step(events, now) -> effects`. The table in it is the list of what may happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from regraft.errors import BY_NUMBER, PeerError, RegraftError, WorldError
from regraft.journal.journal import Journal
from regraft.kernels import lane as lanes
from regraft.kernels.lane import Source
from regraft.kernels.outlet import Outlet
from regraft.limits import CHUNK_BYTES, Limits
from regraft.model.identity import Identity
from regraft.model.userfilter import UserFilters
from regraft.node.administration import Administration
from regraft.node.connection import CLOSING, HELLO, LEAVING, OPEN, PEERED, PREFACE, Connection
from regraft.node.consigning import REFUSE
from regraft.node.contexts import Contexts
from regraft.node.control import Control
from regraft.node.custody import Custody
from regraft.node.deadlines import Deadlines
from regraft.node.deciding import Deciding
from regraft.node.effect import Effect, Note, Refuse, Stopped, WakeAt
from regraft.node.event import (
    Closed,
    Connected,
    ConnectFailed,
    Datagram,
    DiskFailed,
    Event,
    JournalRead,
    Now,
    Opened,
    Persisted,
    Received,
    SegmentReady,
    StagedRead,
    Stop,
    Tick,
    Unsent,
)
from regraft.node.faults import fault_of
from regraft.node.groups import Groups
from regraft.node.looking import Looking
from regraft.node.network import Joining, Network
from regraft.node.offers import Offers
from regraft.node.outflow import DISK, Outflow
from regraft.node.replying import Replying
from regraft.node.router import Authorize, Router
from regraft.node.storage import Retained, Storage
from regraft.node.tracing import Tracing
from regraft.node.transactions import Transactions
from regraft.session.window import Window
from regraft.wire import native, table
from regraft.wire.native import Kind

if TYPE_CHECKING:
    from random import Random  # seeded, or of the system: whoever makes a node decides

HEARTBEATS_MISSED_MAX = 3
CONTROL_AT_ONCE = 64  # what the control frames of one session may weigh in one step
WEIGHTS: dict[int, int] = dict.fromkeys(
    (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.INSPECT, Kind.COMMAND), 4
)
UNLIMITED = 1 << 62


def allow(principal: str, action: str, topic: str) -> bool:
    """Yes to everything, until there are users."""
    return True


def _refusal(ordinal: int, count: int, number: int) -> native.Error:
    code = BY_NUMBER[number]
    error = PeerError(code.name, f"not published: {code.meaning}")
    return native.Error.of(error, ordinal=ordinal, count=count)


class Node:
    """One broker, without a world around it."""

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        heartbeat_ms: int,
        random: Random,
        authorize: Authorize = allow,
    ) -> None:
        self.identity = identity
        self._limits = limits
        self._authorize = authorize
        self._connections: dict[int, Connection] = {}
        self._effects: list[Effect] = []
        self._deadlines = Deadlines()
        self._stopping = False
        self._departing = False
        self._waiting: dict[int, Connection] = {}  # with more control frames than go into one step
        self._room = 0  # for control frames, in this turn
        self._awake = False  # a moment to go on with that is set
        self._passing = False  # in this step there were only messages, which change nothing here
        self._kept = 0  # messages that were recorded, when somebody was last looked at
        self._storage: Storage | None = None
        self._network: Network | None = None
        self._custody: Custody | None = None
        self._random = random
        self._router = Router(limits, authorize)
        self._outflow = Outflow(self._connections, self._effects, self._deadlines, limits)
        self._groups = Groups(self._router, self._outflow, self._connections, limits)
        self._contexts = Contexts(limits)
        self._router.lane.constrain = self._contexts.narrow
        self.filters = UserFilters(limits, lambda text: self._effects.append(Note("warning", text)))
        self._replying = Replying(
            *(self._router, self._outflow, self._connections, self._deadlines, limits, random)
        )
        self._offers = Offers(
            *(limits, self._router, self._outflow, self._connections, self._deadlines),
            authorize,
        )
        self._control = Control(
            identity,
            limits,
            heartbeat_ms,
            random,
            self._router,
            self._outflow,
            self._deadlines,
            authorize,
            self.report,
            self._groups,
            self._replying,
            self._contexts,
            self.filters,
            self._offers,
        )
        self._looking = Looking(
            *(identity, self._connections, self._router, self._outflow, self._groups),
            *(self._replying, self._contexts, self.filters, self._control, self._offers),
        )

        self._tracing = Tracing(
            *(identity, limits, authorize, self._router, self._outflow, self._replying),
            self._control,
            Deciding(
                *(self._router, self._groups, self._contexts, self._control, self._connections)
            ),
        )

    def load_rules(self, text: str, name: str) -> None:
        """Send messages of a type where these rules say; LocalError if they are wrong."""
        self._groups.load(text, name)

    def keep(
        self,
        journal: Journal,
        streams: Sequence[Retained],
        now: Now,
        confirm_early: bool = False,
        when_away: str = REFUSE,
        split_commits: bool = False,
        in_doubt_s: int = 0,
    ) -> None:
        """Have a journal from now on, that retains these streams.

        `confirm_early` and `split_commits` are bugs.
        """
        self._storage = self._control.storage = Storage(
            journal,
            self._router,
            self._outflow,
            self._connections,
            self._effects,
            self._deadlines,
            self._limits,
            confirm_early,
        )
        self._storage.retain(streams, now)
        self._storage.mailroom.delays.begin(now)
        self._control.administration = Administration(
            self._storage.mailroom, self._router, self._limits, self.identity.name
        )
        self._custody = self._new_custody(now, when_away)
        self._control.transactions = Transactions(
            self._storage,
            self._router,
            self._outflow,
            self._deadlines,
            self._effects,
            self._limits,
            self._authorize,
            split_commits,
            in_doubt_s,
        )
        self._control.transactions.watch(now)
        self._storage.tick(now)

    def _new_custody(self, now: Now, when_away: str = REFUSE) -> Custody:
        made = Custody(
            *(self.identity, self._storage, self._router, self._outflow, self._effects),
            *(self._deadlines, self._limits, now, when_away),
        )
        self._control.custody = made
        return made

    def hand_over(self, now: Now) -> None:
        """There is a process beside the node from now on, to which connections may be given."""
        if self._storage is not None:
            self._storage.bulk.begin(now)

    def join(self, joining: Joining, now: Now) -> None:
        """Take part in a network of nodes from now on."""
        self._network = self._control.network = Network(
            self.identity,
            joining,
            self._limits,
            self._random,
            self._router,
            self._outflow,
            self._connections,
            self._effects,
            self._deadlines,
            self._gone,
            lambda reason, now: self._on_stop(Stop(reason), now),
            self._fail,
            self._replying,
            self.filters,
        )
        self._network.offer(self._offers, joining)
        self._network.moving.when_safe = self._network.departure.when_safe = self._when_safe
        if self._custody is None:
            self._custody = self._new_custody(now)
        self._network.custody = self._custody
        self._custody.join(self._network.links, joining.bugs)
        self._contexts.bugs = self._tracing.deciding.bugs = joining.bugs
        self._network.start(now)

    def _when_safe(self, action: Callable[[Now], None], now: Now) -> None:
        if self._storage is None:
            action(now)
        else:
            self._storage.when_safe(action, now, action)

    def step(self, events: Sequence[Event], now: Now) -> list[Effect]:
        """Take in what happened, in order; what should be done comes back, in order."""
        storage = self._storage
        if storage is not None:
            storage.begin(now)
        self._passing = len(events) > 0
        for event in events:
            if type(event) is Received:  # by far the most frequent
                self._received(event, event is events[-1], now)
            else:
                self._passing = self._passing and type(event) is Unsent
                HANDLERS[type(event)](self, event, now)
        if not self._passing or self._kept_something(storage):
            if storage is None or not storage.unfinished or len(events) > 1:
                self._end(storage, now)
            self._go_on(storage, now)
        return self._leave()

    def _kept_something(self, storage: Storage | None) -> bool:
        """Whether messages that came are still to be dealt with, now that they went their ways."""
        if self._router.lane.unplaced or self._outflow.inward or self._replying.stirred:
            return True
        if self._network is not None and self._network.moving:
            return True
        return storage is not None and storage.has_work

    def _end(self, storage: Storage | None, now: Now) -> None:
        """A step ends: do what may concern more than one event."""
        if self._router.lane.unplaced:
            self._groups.place(now)
        if self._custody is not None:
            self._custody.end(now)
        if self._replying.stirred:
            self._replying.work(now)
        if storage is not None:
            storage.end(now)
        if storage is not None and self._offers.required:
            self._offers.keep_own(storage.publishes_later)
        if self._network is not None:
            self._network.end(now)
        if self._offers.stirred:
            self._offers.work(now)

    def _go_on(self, storage: Storage | None, now: Now) -> None:
        """Have another step soon, if there is more to do."""
        busy = self._waiting or self._router.leaving or (storage is not None and storage.stirred)
        busy = busy or self._offers.stirred
        if busy and not self._awake:
            self._awake = True
            self._deadlines.add(now.ns, "work", 0)

    def _leave(self) -> list[Effect]:
        """What should be done."""
        if self._deadlines.earlier:
            self._deadlines.earlier = False
            next_ns = self._deadlines.next_ns
            if next_ns is not None:
                self._effects.append(WakeAt(next_ns))
        effects = self._effects[:]
        self._effects.clear()
        return effects

    # ----------------------------------------------------------------- connections

    def _on_opened(self, event: Opened, now: Now) -> None:
        self._open(event.connection, event.peer, now)

    def _on_connected(self, event: Connected, now: Now) -> None:
        c = self._open(event.connection, event.peer, now)
        if c.state is not CLOSING and self._network is not None:
            self._network.dialled(c, event.ticket, now)

    def _on_connect_failed(self, event: ConnectFailed, now: Now) -> None:
        if self._network is not None:
            self._network.failed(event.ticket, event.reason, now)

    def _on_datagram(self, event: Datagram, now: Now) -> None:
        if self._network is not None:
            self._network.datagram(event.address, event.data, now)

    def _open(self, key: int, peer: str, now: Now) -> Connection:
        window = Window(self._limits.window_messages, self._limits.window_bytes_first)
        c = Connection(key, peer, Source(key), Outlet(key), window, now.ns, now.ns, now.ns)
        self._connections[key] = c
        self._looking.opened += 1
        if len(self._connections) > self._limits.connections:
            limit = f"{self._limits.connections} connections (limit connections)"
            self._fail(c, WorldError("too-many-connections", f"this node takes {limit}"), now)
        elif self._stopping:
            self._fail(c, WorldError("shutting-down", "this node is being stopped"), now)
        else:
            self._deadlines.add(now.ns + self._limits.handshake_ms * 1_000_000, "handshake", key)
        return c

    def _on_closed(self, event: Closed, now: Now) -> None:
        c = self._connections.get(event.connection)
        if c is None:
            return
        self._effects.append(Note("debug", f"{c.who} is gone: {event.reason}"))
        if c.untaken and c.state is OPEN:
            c.lost = event.reason  # what it said last counts
        elif self._network is None or not self._network.closed(c, now):
            self._gone(c, now)

    def _gone(self, c: Connection, now: Now) -> None:
        """Nothing of a connection is left."""
        self._connections.pop(c.key, None)
        self._waiting.pop(c.key, None)
        self._control.leave(c, now)
        self._outflow.forget(c, now)
        c.state = CLOSING
        if self._stopping:
            self._see_departure(now)
            if not self._connections:
                self._effects.append(Stopped())

    def _on_unsent(self, event: Unsent, now: Now) -> None:
        c = self._connections.get(event.connection)
        if c is not None:
            self._outflow.unsent(c, event.size, now)
            storage = self._storage
            if event.size == 0 and storage is not None and storage.mailroom.waits(c.key):
                self._passing = False
                storage.mailroom.resume(c.key, now)

    def _on_persisted(self, event: Persisted, now: Now) -> None:
        if self._storage is not None:
            self._storage.on_persisted(event, now)

    def _on_disk_failed(self, event: DiskFailed, now: Now) -> None:
        if self._storage is not None:
            self._storage.on_failed(event, now)

    def _on_segment_ready(self, event: SegmentReady, now: Now) -> None:
        if self._storage is not None:
            self._storage.on_ready(event, now)

    def _on_journal_read(self, event: JournalRead, now: Now) -> None:
        if self._storage is not None:
            self._storage.on_read(event, now)

    def _on_staged_read(self, event: StagedRead, now: Now) -> None:
        if self._storage is not None:
            self._storage.bulk.on_read(event, now)

    def _fail(self, c: Connection, error: RegraftError, now: Now) -> None:
        """End a connection with the reason."""
        self._passing = False
        name = error.code.name
        self._looking.failures[name] = self._looking.failures.get(name, 0) + 1
        self._effects.append(Note("info", f"{c.who}: {error}"))
        c.ending = name
        self._outflow.send(c, native.Error.of(error), now)
        self._control.leave(c, now)
        self._outflow.close(c, error.text, now)

    # ----------------------------------------------------------------------- input

    def _received(self, event: Received, last: bool, now: Now) -> None:
        c = self._connections.get(event.connection)
        if c is None or c.state is CLOSING or c.state is LEAVING:
            return
        c.heard_ns = now.ns
        if c.node and self._network is not None:
            self._network.overlay.heard(c.key, now.ns)
        if c.untaken:
            c.untaken += event.data  # behind what it said before
        else:
            self._take_turn(c, event.data, last, now)

    def _take_turn(self, c: Connection, data: memoryview, last: bool, now: Now) -> None:
        """Deal with bytes of a connection, until its control frames have taken their share."""
        self._room = UNLIMITED if c.node else CONTROL_AT_ONCE
        published = c.source.messages
        failure: RegraftError | None = None
        try:
            while len(data):
                rest = self._take_in(c, data[:CHUNK_BYTES], now)
                data = data[CHUNK_BYTES:]
                if self._room <= 0 and (len(rest) or len(data)) and c.state is OPEN:
                    c.untaken = bytes(rest) + data
                    self._waiting[c.key] = c
                    data = data[len(data) :]
                self._settle(c, last and not len(data), now)
        except RegraftError as error:
            failure = error
            self._settle(c, last, now)
        if published == 0 and c.source.messages:
            self._outflow.publishers += 1
        if failure is not None:
            self._fail(c, failure, now)
        elif c.source.messages >= c.window.due_messages or c.source.size >= c.window.due_size:
            self._outflow.grant(c, now)
        elif c.outlet.slow or c.unsent or c.blocked_on or c.untaken or c.held:
            self._outflow.update_hold(c)

    def _work_off(self, now: Now) -> None:
        """Some of what waits: messages of others must not wait for thousands of frames."""
        self._awake = False
        if self._router.leaving:
            self._router.sweep()
        if self._storage is not None and self._storage.stirred:
            self._storage.stir(now)
        for c in self._waiting.values():  # the one that waits for longest
            del self._waiting[c.key]
            data, c.untaken = memoryview(c.untaken), b""
            if c.state is OPEN:
                c.heard_ns = now.ns
                self._take_turn(c, data, False, now)
            if c.lost and not c.untaken:
                self._gone(c, now)
            return

    def _take_in(self, c: Connection, data: memoryview, now: Now) -> memoryview:
        """Bytes of a connection, cut anywhere: whole frames are dealt with, a part is kept.

        What is left over is for another turn.
        """
        if c.state is PREFACE:
            data = self._preface(c, data)
        if c.pending and len(data):
            data = self._complete(c, data, now)
        if len(data):
            data = data[self._frames(c, data, now) :]
            if len(data) and self._room > 0 and c.state is not CLOSING:
                c.pending = bytearray(data)
        return data

    def _preface(self, c: Connection, data: memoryview) -> memoryview:
        """Find out which protocol it is; what follows the preface is left."""
        had = len(c.pending)
        c.pending += data[: table.PREFACE_BYTES_MAX]
        name = table.detect(bytes(c.pending))
        if name is None:
            return data[len(data) :]
        c.state = HELLO
        c.pending = bytearray()
        return data[len(table.PROTOCOLS[name]) - had :]

    def _complete(self, c: Connection, data: memoryview, now: Now) -> memoryview:
        """Complete the frame that is pending with the least copying; what follows is left."""
        pending = c.pending
        if len(pending) < native.HEADER_BYTES:
            missing = native.HEADER_BYTES - len(pending)
            pending += data[:missing]
            data = data[missing:]
            if len(pending) < native.HEADER_BYTES:
                return data
        size = int.from_bytes(pending[:4], "little") + 4
        if size != native.HEADER_BYTES:  # is its header fine, before more is kept of it?
            self._frames(c, memoryview(bytes(pending[: native.HEADER_BYTES])), now)
        missing = size - len(pending)
        if len(data) >= missing:
            c.pending = bytearray()
            pending += data[:missing]
            self._frames(c, memoryview(pending), now)
        else:
            pending += data
        return data[missing:]

    def _frames(self, c: Connection, view: memoryview, now: Now) -> int:
        """Deal with the whole frames at the start of `view`; where the rest begins."""
        lane = self._router.lane
        pos = kind = 0
        while self._room > 0 and c.state is not CLOSING and c.state is not LEAVING:
            if c.state is HELLO or c.state is PEERED:
                frame = native.read_frame(view, pos, self._limits.control_frame_bytes)
                if frame is None:
                    break
                kind, flags, payload, pos = frame
            else:
                pos = lane.run(c.source, view, pos, now.wall_us)
                if lane.stop == lanes.END:
                    break
                if lane.stop == lanes.FAULT:
                    raise fault_of(lane)
                self._settle(c, False, now)
                kind, flags = lane.kind, lane.flags
                payload = bytes(view[pos + native.HEADER_BYTES : lane.end])
                pos = lane.end
            self._room -= WEIGHTS.get(kind, 1)
            self._passing = self._passing and kind == Kind.CREDIT and bool(c.node)
            self._control.handle(c, kind, flags, payload, now)
        return pos

    def _settle(self, c: Connection, last: bool, now: Now) -> None:
        """Pass on what the lane has gathered from a connection, and tell it what was refused."""
        storage = self._storage
        kept = storage is not None and bool(storage.keeper.waiting)
        dirty = self._router.lane.take_dirty()
        if dirty:  # some of what is kept may be handed on, to the same outlets, before this ends
            answers = self._outflow.inward or (c.node and storage is not None)  # so may answers
            self._outflow.deliver(dirty, c, last and not kept and not answers, now)
        if storage is not None and kept:
            c.unsafe = storage.journal.recorder.position
        if storage is not None and storage.keeper.kept != self._kept:
            self._kept = storage.keeper.kept
            if storage.pressed:  # who has nothing recorded need not wait for the disk
                self._outflow.block(c, DISK)
        if c.source.refusals:
            if c.node:  # nobody there could do anything about it; they are counted
                c.source.refusals.clear()
                return
            refusals, c.source.refusals = c.source.refusals, []
            self._outflow.send_all(c, [_refusal(*refused) for refused in refusals], now)

    # ------------------------------------------------------------------------ time

    def _on_tick(self, event: Tick, now: Now) -> None:
        self._deadlines.earlier = True
        for what, key in self._deadlines.due(now.ns):
            if what == "work":
                self._work_off(now)
            elif what == "drain":
                self._drained(now)
            elif what == "journal" and self._storage is not None:
                self._storage.tick(now)
            elif what == "lease" and self._storage is not None:
                self._storage.mailroom.boxes.overdue(key, now)
            elif what == "delayed" and self._storage is not None:
                self._storage.mailroom.delays.due(now)
            elif what == "custody" and self._custody is not None:
                self._custody.tick(now)
            elif what == "transaction" and self._control.transactions is not None:
                self._control.transactions.overdue(key, now)
            elif what == "doubt" and self._control.transactions is not None:
                self._control.transactions.watch(now)
            elif what == "network" and self._network is not None:
                self._network.tick(now)
            elif what == "depart":
                self._see_departure(now, late=True)
            elif what == "leave" and self._network is not None:
                self._network.departure.time_is_up(now)
            elif what == "move" and self._network is not None:
                self._network.moving.tick(now)
            elif what == "offers":
                self._offers.tick()
            elif what == "question":
                self._replying.due(now)
            elif what == "ghost" and self._network is not None:
                self._network.departure.tick(key, now)
            c = self._connections.get(key)
            if c is None or c.state is CLOSING:
                continue
            if what == "handshake" and c.state in (PREFACE, HELLO):
                self._fail(c, WorldError("too-slow-to-open", "no HELLO came in time"), now)
            elif what == "heartbeat":
                self._heartbeat(c, now)
            elif what == "pace" and self._storage is not None:
                self._storage.mailroom.cursors.resume(key, now)
            elif what == "stall":
                failure = self._outflow.stall(c, now)
                if failure is not None:
                    self._fail(c, failure, now)

    def _heartbeat(self, c: Connection, now: Now) -> None:
        """Say something if nothing was said for a while; end what is silent for too long."""
        silence_max = HEARTBEATS_MISSED_MAX * c.heartbeat_ns
        if c.held and (c.blocked_on or c.untaken):  # it could not be heard: no fault of its own
            c.heard_ns = now.ns
        if not c.passive and now.ns - c.heard_ns >= silence_max:
            text = f"nothing was heard for {silence_max // 1_000_000} ms"
            self._fail(c, WorldError("heartbeat-lost", text), now)
            return
        next_ns = c.spoke_ns + c.heartbeat_ns
        if next_ns <= now.ns:
            next_ns = now.ns + c.heartbeat_ns
            if not c.unsent:  # what is on its way is sign enough
                self._outflow.send(c, native.Heartbeat(), now)
        self._deadlines.add(next_ns, "heartbeat", c.key)

    def _on_stop(self, event: Stop, now: Now) -> None:
        """Tell everybody to go elsewhere; a second request ends it at once."""
        if self._stopping:
            self._drained(now)
            return
        self._stopping = True
        self._effects.append(Refuse())
        if not self._connections:
            self._effects.append(Stopped())
            return
        drain_ms = self._limits.drain_ms
        self._deadlines.add(now.ns + drain_ms * 1_000_000, "drain", 0)
        # What clients sent before they read this must still find its way: the tree is left last.
        self._deadlines.add(now.ns + drain_ms * 500_000, "depart", 0)
        for c in self._connections.values():
            if c.state is OPEN:
                if not c.node:
                    self._outflow.send(c, native.Goaway(event.reason, drain_ms), now)
            elif c.state is not CLOSING and c.state is not LEAVING:
                self._outflow.close(c, "shutting down", now)
        self._see_departure(now)

    def _see_departure(self, now: Now, late: bool = False) -> None:
        """Leave the tree once the clients are gone, or have had their time."""
        if self._network is None or self._departing:
            return
        if late or all(c.node for c in self._connections.values()):
            self._departing = True
            self._network.leave(now)

    def _drained(self, now: Now) -> None:
        """The time to leave is over."""
        error = WorldError("shutting-down", "this node is being stopped")
        for c in list(self._connections.values()):
            if c.state is not CLOSING:
                self._fail(c, error, now)
        self._effects.append(Stopped())

    # -------------------------------------------------------------------- counters

    def report(self, what: str, rows_max: int) -> dict[str, Any]:
        """What `regraft inspect` shows: "node", "connections", "subscriptions" or "index"."""
        return self._looking.report(what, rows_max)

    def topology(self) -> dict[str, Any]:
        """The node's place in the network."""
        return self._network.topology() if self._network is not None else {}

    def standing(self) -> tuple[int | None, tuple[int, ...]]:
        """The connections to the parent and to the children: the least that a checker needs."""
        return self._network.overlay.standing() if self._network is not None else (None, ())

    @property
    def custody_topic(self) -> str:
        """Where other nodes reach this one about messages that are kept; "" without a journal."""
        return self._custody.topic if self._custody is not None else ""

    def interests(self) -> dict[str, Any]:
        """What is wanted here, what neighbours want, and what they were told."""
        return self._network.operating.interests() if self._network is not None else {}

    def snapshot(self) -> dict[str, Any]:
        """What the node holds and has done, for people and for tests."""
        return self._looking.snapshot()


HANDLERS: dict[type[Any], Callable[[Node, Any, Now], None]] = {
    Opened: Node._on_opened,
    Closed: Node._on_closed,
    Connected: Node._on_connected,
    ConnectFailed: Node._on_connect_failed,
    Datagram: Node._on_datagram,
    Unsent: Node._on_unsent,
    Persisted: Node._on_persisted,
    DiskFailed: Node._on_disk_failed,
    SegmentReady: Node._on_segment_ready,
    JournalRead: Node._on_journal_read,
    StagedRead: Node._on_staged_read,
    Tick: Node._on_tick,
    Stop: Node._on_stop,
}
