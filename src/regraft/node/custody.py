"""Persistent messages across the network: who keeps what, until who else does.

The node where a persistent message begins keeps it until every *home*, a node with a mailbox or a
stream for it, has confirmed that it persisted it. All nodes know all homes (`routing/homes`). This
node is an origin (`consigning`) and, if it has a journal, a home (`receiving`).

What origins and homes say to each other are messages to `$custody/` and the id of a journal, to
which its node subscribes: they find their way as any other, however the tree changes, and those
that get lost are repeated. Nodes on the way hold nothing.
"""

from __future__ import annotations

import json
from typing import Any

from regraft.errors import LocalError, PeerError, RegraftError
from regraft.journal.format import HomeTold, Interest, encode_control
from regraft.journal.streams import Mailbox, Stream
from regraft.kernels.lane import Source
from regraft.kernels.outlet import Outlet
from regraft.kernels.plan import Plan, plan_of
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.model.topics import check_pattern
from regraft.node.connection import Connection
from regraft.node.consigning import OWNER, REFUSE, Consigning
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.mailroom import OWN
from regraft.node.outflow import INWARD, Outflow
from regraft.node.receiving import Receiving
from regraft.node.relocating import Relocating
from regraft.node.router import CUSTODY, Router
from regraft.node.storage import Storage
from regraft.routing.filters import Filter
from regraft.routing.homes import Change, Durable, Home, Homes, Update
from regraft.wire import native, peers

TICK_NS = 200_000_000
COMMANDS = ("custody-forget", "custody-list")
BODIES = (native.Kind.CARRIED, native.Kind.TAKEN, native.Kind.MOVE)
NO_CONNECTION = -1
JOURNAL_BYTES = 16  # of its id
LOOKED_AT_MAX = 10_000  # mailboxes elsewhere, to find one by its name


class Custody:
    """A node's part in keeping what must not be lost."""

    def __init__(
        self,
        identity: Identity,
        storage: Storage | None,
        router: Router,
        outflow: Outflow,
        effects: list[Effect],
        deadlines: Deadlines,
        limits: Limits,
        now: Now,
        policy: str = REFUSE,
    ) -> None:
        self._identity = identity
        self._storage = storage
        self._router = router
        self._outflow = outflow
        self._effects = effects
        self._deadlines = deadlines
        self._limits = limits
        self._source = Source(NO_CONNECTION)
        self._links: dict[int, Connection] = {}
        self._waiting = False  # a moment is set
        self._complained = False
        self._now_ns = now.ns
        self.malformed = 0
        self.homes = Homes(limits.homes, limits.home_interests)
        self.consigning: Consigning | None = None
        self.receiving: Receiving | None = None
        self.relocating: Relocating | None = None
        if storage is not None:
            self._open(storage, policy, now)

    def _open(self, storage: Storage, policy: str, now: Now) -> None:
        journal, keeper = storage.journal, storage.keeper
        self.consigning = Consigning(
            *(journal, storage.readings, keeper, self._effects, self._limits, policy, self._send),
        )
        self.receiving = Receiving(
            *(journal, self._router.lane, keeper, self._effects, self._limits),
            *(storage.when_safe, self._send),
        )
        for state in journal.state.homes.values():
            home = Home(bytes.fromhex(state.journal), bytes.fromhex(state.node), state.name)
            home.version, home.gone = state.version, state.gone
            for number, one in state.interests.items():
                filter = Filter(one.pattern, one.exact, one.selector)
                home.interests[number] = Durable(number, one.name, filter)
            self.homes.load(home)
            if not home.gone:
                self._change(Change(home, list(home.interests.values()), []), now)
        me = self._identity
        self.homes.be(storage.journal_id, me.node_id, me.name, me.incarnation)
        for stream in journal.state.streams.values():
            self._held(stream, True)
        storage.mailroom.on_stream = self._held
        storage.mailroom.elsewhere = self._elsewhere
        self.relocating = Relocating(
            *(me.name, storage.mailroom, self.consigning, self.receiving, self.homes),
            *(self._outflow, self._effects, self._send, now),
        )

    def _held(self, stream: Stream, more: bool) -> None:
        """This node keeps messages for one more stream, or for one less."""
        if not more:
            self.homes.release(stream.number)
        elif not stream.name.startswith(OWN) and getattr(stream, "owner", "") != OWNER:
            if isinstance(stream, Mailbox) and stream.came is not None:
                return  # it gets what another one hands over
            selector = stream.selector if isinstance(stream, Mailbox) else ""
            filter = Filter(stream.pattern, stream.exact, selector)
            self.homes.hold(Durable(stream.number, stream.name, filter))

    def _elsewhere(self, name: str) -> list[str]:
        """Nodes that have a mailbox of this name; some of them, if there is much to look at."""
        found = []
        room = LOOKED_AT_MAX
        for home in self.homes.known.values():
            room -= len(home.interests)
            if home is self.homes.mine or room < 0:
                continue
            if any(one.name == name for one in home.interests.values()):
                found.append(f"node {home.name}")
        return found[:3]

    @property
    def topic(self) -> str:
        """Where others reach this node; "" if it has no journal."""
        if self._storage is None:
            return ""
        return CUSTODY + self._storage.journal.state.journal_id

    def join(self, links: dict[int, Connection], bugs: frozenset[str]) -> None:
        """The node takes part in a network: be reached there."""
        self._links = links
        if self._storage is not None and self.receiving is not None:
            assert self.consigning is not None and self.relocating is not None
            self.receiving.bugs = self.consigning.bugs = self.relocating.bugs = bugs
            outlet = self._router.admit_group(Outlet(INWARD))
            self._router.enter(outlet, 1, self.topic, True, None)

    # ---------------------------------------------------------------------- neighbours

    def linked(self, c: Connection, now: Now) -> None:
        """There is a new link."""
        known = [peers.Known(*one) for one in self.homes.linked(c.key)]
        self._outflow.send(c, peers.Homes(tuple(known)), now)
        if self.consigning is not None and self.receiving is not None:
            self.consigning.linked(now)
            self.receiving.linked()
        if self.relocating is not None:
            self.relocating.linked()

    def unlinked(self, key: int) -> None:
        """A link is no more."""
        self.homes.unlinked(key)

    def handle(self, c: Connection, message: peers.Homes | peers.Home, now: Now) -> None:
        """A neighbour speaks of homes."""
        if isinstance(message, peers.Homes):
            for one in message.known:
                _check(one.journal, one.version)
            self.homes.heard(c.key, [(one.journal, one.version) for one in message.known])
            return
        refused = self.homes.refused
        change = self.homes.take(c.key, _update(message))
        if self.homes.refused > refused and not self._complained:
            self._complained = True
            text = "there are more nodes with mailboxes, or mailboxes, than limits homes and"
            self._effects.append(Note("error", f"{text} home_interests allow: some get nothing"))
        if change is not None:
            self._write_down(change, now)
            self._change(change, now)

    def _change(self, change: Change, now: Now) -> None:
        """Keep messages for another node's mailboxes, and no more for some."""
        home, consigning = change.home, self.consigning
        if consigning is None:
            return
        if home.gone:
            if self.relocating is not None:
                self.relocating.forgotten(home.journal, now)
            known = consigning.to(home.journal)
            if known is not None:
                self._router.release_away(known.mailbox.slot)
                lost = consigning.close(home.journal, now)
                text = f"node {home.name} will never come back"
                self._effects.append(Note("warning", f"{text}; {lost} messages for it are dropped"))
            return
        if not change.add and consigning.to(home.journal) is None:
            return
        try:
            one = consigning.open(home.journal, home.name, now)
        except LocalError as error:
            text = f"nothing can be kept for the mailboxes of node {home.name}: {error}"
            self._effects.append(Note("error", text))
            return
        slot = one.mailbox.slot
        self._router.keep_known(slot)
        for durable in change.add:
            pattern, exact, selector, *_ = durable.filter
            self._router.keep_more(slot, durable.number, pattern, exact, self._plan(selector))
        for number in change.remove:
            self._router.keep_less(slot, number)

    def _plan(self, text: str) -> Plan | None:
        """What a selector asks for; what this node cannot tell it takes as all."""
        if not text:
            return None
        try:
            plan = plan_of(text, self._limits.selector_bytes)
            self._router.check_cost(plan)
        except LocalError as error:
            self._effects.append(Note("warning", f"a mailbox elsewhere counts as all: {error}"))
            return None
        return plan

    def _write_down(self, change: Change, now: Now) -> None:
        """Know it after a restart, too."""
        if self._storage is None or self._storage.journal.broken:
            return
        journal, home = self._storage.journal, change.home
        about = (home.journal.hex(), home.node.hex(), home.name, home.version, home.gone)
        most = journal.recorder.segment_bytes // 8
        remove = change.remove
        left = [Interest(one.number, one.name, *one.filter[:3], home.version) for one in change.add]
        while True:
            group: list[Interest] = []
            room = most
            while left and (room > 0 or not group):
                one = left.pop()
                told = HomeTold(*about, [one], [])
                if len(encode_control(told)) > journal.recorder.segment_bytes // 4:
                    one = one._replace(selector="", name="")  # it takes as much, and more
                room -= len(encode_control(told))
                group.append(one)
            journal.control(HomeTold(*about, group, remove[:1000]), now.wall_us)
            remove = remove[1000:]
            if not left and not remove:
                return

    # -------------------------------------------------------------------------- steps

    def end(self, now: Now) -> None:
        """A step ends: take what came, say what is to be said."""
        self._now_ns = now.ns
        if self._outflow.inward:
            inward, self._outflow.inward = self._outflow.inward, []
            for data in inward:
                self._hear(data, now)
        if self.homes.stirred:
            for key, update in self.homes.tell():
                c = self._links.get(key)
                if c is not None:
                    self._outflow.send(c, _home(update), now)
        consigning = self.consigning
        if consigning is None or self._storage is None:
            return
        journal = self._storage.journal
        consigning.settle(now, bool(journal.recorder.used))
        moves = self.relocating is not None and self.relocating.busy
        if not self._waiting and (moves or (consigning.all and consigning.busy)):
            self._waiting = True
            self._deadlines.add(now.ns + TICK_NS, "custody", 0)

    def tick(self, now: Now) -> None:
        """A moment has come."""
        self._waiting = False
        if self.consigning is not None:
            self.consigning.tick(now)
        if self.relocating is not None:
            self.relocating.tick(now)

    def _hear(self, data: bytes, now: Now) -> None:
        """Another origin or home says something."""
        view = memoryview(data)
        while len(view):
            size = int.from_bytes(view[:4], "little") + 4
            if view[4] == native.Kind.MESSAGE:
                try:
                    self._understand(decode_envelope(bytes(view[native.HEADER_BYTES : size])), now)
                except RegraftError as error:
                    self.malformed += 1
                    self._effects.append(Note("warning", f"another node says nonsense: {error}"))
            view = view[size:]

    def _understand(self, message: Message, now: Now) -> None:
        body = bytes(message.body)
        if self.consigning is None or self.receiving is None or body[:1] not in _BODIES:
            self.malformed += 1
            return
        said = native.decode(body[0], body[1:])
        if isinstance(said, peers.Carried):
            self.receiving.carried(said, now)
        elif isinstance(said, peers.Move):
            assert self.relocating is not None
            self.relocating.hear(said, now)
        else:
            self.consigning.taken(said, now)

    def _send(
        self, journal: bytes, message: peers.Carried | peers.Taken | peers.Move, now: Now
    ) -> bool:
        """Say something to an origin or a home; whether there is a way."""
        topic = CUSTODY + journal.hex()
        if not self._links or not self._router.leads(topic):
            return False
        body = bytes([native.KINDS[type(message)]]) + native.payload(message)
        frame = native.frame(native.Kind.MESSAGE, encode_envelope(Message(topic, body)))
        lane = self._router.lane
        lane.run(self._source, memoryview(frame), 0, now.wall_us)
        self._source.refusals = []
        dirty = lane.take_dirty()
        if dirty:
            self._outflow.deliver(dirty, None, False, now)
        return True

    # -------------------------------------------------------------------------- people

    def command(self, what: str, data: bytes, now: Now) -> dict[str, Any]:
        """`regraft custody`."""
        if what == "custody-list":
            return self.report()
        try:
            wanted = json.loads(data)["home"]
        except (ValueError, KeyError, TypeError):
            wanted = ""
        if not isinstance(wanted, str) or not wanted:
            raise LocalError("bad-message", "custody-forget needs a home: a name or an id")
        mine = self.homes.mine
        found = [
            home
            for home in self.homes.known.values()
            if home is not mine
            and not home.gone
            and (home.name == wanted or home.journal.hex().startswith(wanted.lower()))
        ]
        if len(found) != 1:
            text = "is no node with mailboxes" if not found else "may be several nodes"
            raise LocalError("unknown-mailbox", f"{wanted!r} {text}; see regraft custody list")
        change = self.homes.forget(found[0].journal)
        self._write_down(change, now)
        self._change(change, now)
        return {"journal": found[0].journal.hex(), "node": found[0].name}

    def report(self, rows_max: int = 1000) -> dict[str, Any]:
        """What is kept for other nodes, and what came from them."""
        waiting = self.consigning.rows(self._now_ns) if self.consigning is not None else []
        by_journal = {row["journal"]: row for row in waiting if not row["mailbox"]}
        rows = []
        for home in self.homes.known.values():
            if home is self.homes.mine or home.gone:
                continue
            row: dict[str, Any] = {"node": home.name, "journal": home.journal.hex()}
            row["mailboxes"] = sorted(one.name for one in home.interests.values())[:10]
            row["interests"] = len(home.interests)
            row["version"] = home.version
            rows.append(row | by_journal.get(row["journal"], {}))
        found: dict[str, Any] = {"rows": rows[:rows_max], "total": len(rows)}
        found["shown"] = len(found["rows"])
        found["asked"] = self.relocating.asked if self.relocating is not None else 0
        found["moves"] = [row for row in waiting if row["mailbox"]][:rows_max]
        if self.receiving is not None and self.consigning is not None:
            found["origins"] = self.receiving.rows()[:rows_max]
            found["taken"] = self.receiving.taken
            found["repeated"] = self.receiving.repeated
            found["missed"] = self.receiving.missed
            found["begun_anew"] = self.consigning.repeated
        return found


def _check(journal: bytes, version: int) -> None:
    if len(journal) != JOURNAL_BYTES or version >> 62:
        raise PeerError("protocol-violation", "no journal has such an id, or such a version")


_BODIES = {bytes([kind]) for kind in BODIES}


def _update(message: peers.Home) -> Update:
    """What a neighbour says, checked: nobody subscribes to what is no pattern."""
    add = []
    _check(message.journal, message.version)
    for one in message.add:
        try:
            check_pattern(one.pattern)
        except LocalError as error:
            raise PeerError("protocol-violation", f"a mailbox elsewhere: {error.text}") from None
        add.append(Durable(one.number, one.name, Filter(one.pattern, one.exact, one.selector)))
    head = (message.journal, message.node, message.name, message.version, message.since)
    ends = (message.whole, message.first, message.last, message.gone)
    return Update(*head, tuple(add), message.remove, *ends)


def _home(update: Update) -> peers.Home:
    add = tuple(peers.Durable(one.number, one.name, *one.filter[:3]) for one in update.add)
    head = (update.journal, update.node, update.name, update.version, update.since)
    return peers.Home(*head, add, update.remove, *update[7:])
