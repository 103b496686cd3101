"""Transactions: publications, settlements and durable subscriptions that count together, or not.

1. TRANSACT frames gather what a transaction of a session does. Nothing of it counts; it is gone
   when the session ends, when it takes too long, or when it becomes too large.
2. DECIDE has all of it checked: what could be refused later is refused now, by name.
3. COMMIT appends a group of records (`Recorder.open_group`), in one go: mailboxes that are made,
   messages, by way of the lane as any others, settlements, mailboxes that are removed. What
   recovery finds of a group is all of it, or nothing. Once it is persisted, the session is told,
   and what is not persistent is delivered.
4. PREPARE appends one record with all of it instead. What it settles is kept from everybody until
   somebody decides, whatever ends meanwhile: the client, or the node.

A transaction has a serial number of its client. Those that were committed are remembered as the
sequences of a publisher are, so that a client which lost the answer can ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from regraft.errors import BY_NUMBER, LocalError, RegraftError, WorldError
from regraft.journal import format, together
from regraft.journal.format import Accepted, Range, TxPrepared
from regraft.journal.journal import BESIDE_BYTES
from regraft.journal.state import Prepared
from regraft.journal.streams import TX, Publisher
from regraft.kernels.lane import END, Source
from regraft.kernels.plan import plan_of
from regraft.limits import GID_BYTES_MAX, Limits
from regraft.node.box import Box, Member
from regraft.node.connection import CLOSING, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.hand import Held
from regraft.node.outflow import Outflow
from regraft.node.router import Authorize, Router
from regraft.node.storage import Storage
from regraft.node.undertaking import Inquiry, Undertaking
from regraft.wire import native
from regraft.wire.native import Decision, TransactionState

KEY = -(1 << 40)  # of no connection: the source of what transactions publish
SECOND_US = 1_000_000
NEW, KNOWN, TOO_OLD = 0, 1, 2  # as in kernels/windows.py
SERIAL_MAX = 1 << 62

COMMANDS = ("tx-list", "tx-commit", "tx-rollback")

Answer: TypeAlias = Callable[[native.Decided, Now], None]


class _Gid(msgspec.Struct, forbid_unknown_fields=True):
    gid: str


_GID = msgspec.json.Decoder(_Gid)


@dataclass(slots=True)
class Client:
    """The transactions of one connection."""

    open: dict[int, Undertaking] = field(default_factory=dict)  # by serial
    publisher: Publisher | None = None


class Transactions:
    """All transactions of a node. `in_two` is a bug: a commit is two groups of records."""

    def __init__(
        self,
        storage: Storage,
        router: Router,
        outflow: Outflow,
        deadlines: Deadlines,
        effects: list[Effect],
        limits: Limits,
        authorize: Authorize,
        in_two: bool = False,
        in_doubt_s: int = 0,
    ) -> None:
        self._storage = storage
        self._journal = storage.journal
        self._mailroom = storage.mailroom
        self._router = router
        self._outflow = outflow
        self._deadlines = deadlines
        self._effects = effects
        self._limits = limits
        self._authorize = authorize
        self._inquiry = Inquiry(storage, router, authorize, limits)
        self._in_two = in_two
        self._in_doubt_us = in_doubt_s * SECOND_US  # after which they are rolled back; 0: never
        self._warned: set[str] = set()  # those in doubt of which people were told
        self._watch_ns = 0  # when to look at them next; 0: there are none
        self._clients: dict[int, Client] = {}  # by connection
        self._source = Source(KEY)
        self._size = 0  # bytes of all that are open
        self.committed = 0
        self.rolled_back = 0

    # ------------------------------------------------------------------ what sessions say

    def transact(self, c: Connection, part: native.Transact, now: Now) -> None:
        """One more part of a transaction."""
        client = self._clients.setdefault(c.key, Client())
        one = client.open.get(part.serial)
        if one is None:
            if len(client.open) >= self._limits.transactions_per_session:
                return  # whoever decides it is told
            one = client.open[part.serial] = Undertaking(now.ns)
            due_ns = now.ns + self._limits.transaction_ms * 1_000_000
            self._deadlines.add(due_ns, "transaction", c.key)
        one.parts += 1
        if one.error is not None:
            return
        before = one.size
        try:
            one.add(part)
            self._size += one.size - before
            self._check_size(one)
        except RegraftError as error:
            one.error = error
            self._size -= one.drop()

    def _check_size(self, one: Undertaking) -> None:
        for name, value in (
            ("transaction_bytes", one.size),
            ("transactions_bytes_total", self._size),
            ("transaction_messages", one.operations),
        ):
            most = getattr(self._limits, name)
            if value > most:
                text = f"{value} is more than a transaction may have: limit {name} is {most}"
                raise LocalError("limit-exceeded", text)

    def overdue(self, key: int, now: Now) -> None:
        """Some transactions of a connection may have taken too long."""
        latest_ns = now.ns - self._limits.transaction_ms * 1_000_000
        client = self._clients.get(key)
        for one in client.open.values() if client is not None else ():
            if one.error is None and one.since_ns <= latest_ns:
                text = f"it took longer than {self._limits.transaction_ms} ms"
                one.error = WorldError("rolled-back", f"{text} (limit transaction_ms)")
                self._size -= one.drop()

    def leave(self, c: Connection, now: Now) -> None:
        """A connection is gone: so is what it had not decided."""
        client = self._clients.pop(c.key, None)
        if client is None:
            return
        for one in client.open.values():
            self._size -= one.drop()
            self.rolled_back += 1
        if client.publisher is not None:
            self._journal.release(client.publisher, now.wall_us)

    def welcome(self, client_id: str) -> dict[str, int]:
        """What a client is told that may want transactions: its highest serial that is known."""
        return {
            "serial": self._storage.last_sequence(TX + client_id),
            "control_bytes_max": self._limits.control_frame_bytes,
        }

    def decide(self, c: Connection, message: native.Decide, now: Now) -> None:
        """What is to become of a transaction; the session is told."""

        def answer(decided: native.Decided, now: Now) -> None:
            if c.state is not CLOSING:
                self._outflow.send(c, decided, now)

        try:
            if message.serial >= SERIAL_MAX:
                raise LocalError("bad-message", f"a serial is below {SERIAL_MAX}")
            if message.decision == Decision.PREPARE:
                self._prepare(c, message, answer, now)
            elif message.gid:
                self._check_right(c, message.gid)
                self._decide_prepared(message, answer, now)
            elif message.decision == Decision.COMMIT:
                self._commit(c, message, answer, now)
            else:
                self._give_up(c, message, answer, now)
        except RegraftError as error:
            answer(self._refusal(message, error), now)
        c.unsafe = self._journal.recorder.position

    def _refusal(self, message: native.Decide, error: RegraftError) -> native.Decided:
        known = message.gid in self._journal.state.prepared
        state = TransactionState.PREPARED if known else TransactionState.ROLLED_BACK
        by_name = message.gid and message.decision != Decision.PREPARE
        if error.code.name == "sequence-too-old" or (by_name and not known):
            state = TransactionState.UNKNOWN
        about = error.code.number, error.code.name, error.text
        return native.Decided(message.serial, message.gid, state, *about)

    # ----------------------------------------------------------------------- one phase

    def _commit(self, c: Connection, message: native.Decide, answer: Answer, now: Now) -> None:
        assert c.session is not None
        serial = message.serial
        if self._verdict(c.session.client_id, serial) == KNOWN:
            self._answer_known(serial, answer, now)
            return
        one = self._take(c, message)
        unit = self._inquiry.check(one, c, now)
        publisher = self._publisher(c, now)
        publisher.thaw().accept(serial)
        holders = self._take_from_hands(c, one)
        self._apply(unit, publisher.number, serial, now)
        self._serve(holders, now)
        decided = native.Decided(serial, "", TransactionState.COMMITTED, messages=unit.messages)
        self._tell(decided, unit.passing, answer, now)

    def _give_up(self, c: Connection, message: native.Decide, answer: Answer, now: Now) -> None:
        """Roll it back, or say what became of it; if that is nothing, nothing will."""
        assert c.session is not None
        serial = message.serial
        if self._verdict(c.session.client_id, serial) == KNOWN:
            self._answer_known(serial, answer, now)
            return
        client = self._clients.get(c.key)
        one = client.open.pop(serial, None) if client is not None else None
        if one is not None:
            self._size -= one.drop()
            self.rolled_back += 1
        state = TransactionState.ROLLED_BACK
        if one is None and message.decision == Decision.ASK and self._forgotten(c):
            state = TransactionState.UNKNOWN
        answer(native.Decided(serial, "", state), now)

    def _forgotten(self, c: Connection) -> bool:
        """Whether this client may have committed something that nobody remembers any more."""
        assert c.session is not None
        state = self._journal.state
        return state.forgotten > 0 and TX + c.session.client_id not in state.clients

    def _answer_known(self, serial: int, answer: Answer, now: Now) -> None:
        decided = native.Decided(serial, "", TransactionState.COMMITTED, known=True)
        self._tell(decided, b"", answer, now)

    def _verdict(self, client_id: str, serial: int) -> int:
        """Whether a transaction was committed before."""
        known = self._journal.state.clients.get(TX + client_id)
        if known is None:
            return NEW
        away = known.window is None
        window = known.thaw()
        verdict = NEW
        if serial <= window.highest:
            verdict = window.accept(serial)
            if verdict == NEW:
                window.forget(serial)
        if away:
            known.freeze()
        if verdict == TOO_OLD:
            text = f"nobody knows any more what became of transaction {serial}"
            raise LocalError("sequence-too-old", text)
        return verdict

    def _take(self, c: Connection, message: native.Decide) -> Undertaking:
        """What was gathered; it is open no more."""
        client = self._clients.get(c.key)
        one = client.open.pop(message.serial, None) if client is not None else None
        if one is None:
            if client is not None and message.parts:
                most = self._limits.transactions_per_session
                if len(client.open) >= most:
                    text = (
                        f"a session has {most} open transactions (limit transactions_per_session)"
                    )
                    raise LocalError("limit-exceeded", text)
            one = Undertaking(0)
        self._size -= one.size
        if one.error is not None:
            self.rolled_back += 1
            raise one.error
        if one.parts != message.parts:
            self.rolled_back += 1
            text = f"{message.parts} parts were sent, and {one.parts} are here"
            raise WorldError("rolled-back", text)
        return one

    def _publisher(self, c: Connection, now: Now) -> Publisher:
        assert c.session is not None
        client = self._clients.setdefault(c.key, Client())
        if client.publisher is None:
            name = TX + c.session.client_id
            client.publisher = self._journal.publisher(name, now.wall_us)
        return client.publisher

    # --------------------------------------------------------------------- applying it

    def _take_from_hands(self, c: Connection, one: Undertaking) -> list[tuple[Box, Member]]:
        """What it settles is in nobody's hands any more; who may get more."""
        holders = []
        for id, ranges in one.settle.items():
            found = self._mailroom.boxes.get(c.key, id)
            assert found is not None, "it was checked"
            for first, last in ranges:
                found[1].hand.take(first, last)
            holders.append(found)
        return holders

    def _serve(self, holders: list[tuple[Box, Member]], now: Now) -> None:
        for box, member in holders:
            self._mailroom.boxes.offer(box, member)
            self._mailroom.boxes.pull(box, now)

    def _apply(self, unit: TxPrepared, publisher: int, serial: int, now: Now) -> None:
        """Append all of it as one group of records."""
        journal, mailroom = self._journal, self._mailroom
        journal.recorder.open_group(publisher, now.wall_us)
        if self._in_two:
            journal.recorder.close_group(serial)
        if unit.gid:
            journal.note(format.TxDecided(unit.gid, True), now.wall_us)
        for made in unit.made:
            if made.name not in journal.state.mailboxes:
                plan = plan_of(made.selector) if made.selector else None
                about = made.name, made.pattern, made.exact, plan, unit.owner, made.options
                mailroom.make(*about, now)
        if unit.frames:
            begun = together.begin(journal, self._inquiry.takers(unit.frames))
            self._publish(unit.frames, now)
            together.end(journal, begun)  # if it goes to other nodes, then as a whole
        if self._in_two:
            journal.recorder.open_group(0, now.wall_us)
        for number, ranges in _by_number(unit.accepted).items():
            if number in journal.state.streams:
                journal.settle(number, ranges, now.wall_us)
        for name in unit.removed:
            mailbox = journal.state.mailboxes.get(name)
            if mailbox is not None:
                mailroom.remove(mailbox, now)
        journal.recorder.close_group(serial)
        self.committed += 1

    def _publish(self, frames: bytes, now: Now) -> None:
        """Give messages to the lane; all that it could have against them was checked."""
        lane = self._router.lane
        lane.run(self._source, memoryview(frames), 0, now.wall_us)
        assert lane.stop == END, "messages of a transaction were checked before"
        refusals, self._source.refusals = self._source.refusals, []
        if refusals:
            code = BY_NUMBER[refusals[0][2]]
            raise AssertionError(f"a message of a transaction was refused: {code.name}")

    def _tell(self, decided: native.Decided, passing: bytes, answer: Answer, now: Now) -> None:
        """Once it is persisted: deliver what is not persistent, and say so."""

        def safe(now: Now) -> None:
            if passing:
                lane = self._router.lane
                lane.run(self._source, memoryview(passing), 0, now.wall_us)
                self._source.refusals = []
                dirty = lane.take_dirty()
                if dirty:
                    self._outflow.deliver(dirty, None, False, now)
            answer(decided, now)

        def never(now: Now) -> None:
            error = LocalError("journal-failed", f"not known to be safe: {self._journal.broken}")
            about = error.code.number, error.code.name, error.text
            state = TransactionState.UNKNOWN
            answer(native.Decided(decided.serial, decided.gid, state, *about), now)

        if self._storage.confirm_early:
            safe(now)
        else:
            self._storage.when_safe(safe, now, never)

    # ---------------------------------------------------------------------- two phases

    def _prepare(self, c: Connection, message: native.Decide, answer: Answer, now: Now) -> None:
        """Have it kept until somebody decides."""
        assert c.session is not None
        gid, journal = message.gid, self._journal
        known = journal.state.prepared.get(gid)
        decided = native.Decided(message.serial, gid, TransactionState.PREPARED)
        client = self._clients.get(c.key)
        if (
            known is not None
            and known.what.owner == c.session.client_id
            and (client is None or message.serial not in client.open)
        ):
            self._tell(decided, b"", answer, now)
            return
        one = self._take(c, message)
        self._check_name(gid)
        unit = self._inquiry.check(one, c, now)
        prepared = TxPrepared(
            gid,
            c.session.client_id,
            unit.messages,
            unit.frames,
            unit.passing,
            unit.accepted,
            unit.made,
            unit.removed,
        )
        self._check_room(prepared)
        holders = self._take_from_hands(c, one)
        for accepted in unit.accepted:
            box = self._mailroom.boxes.boxes[accepted.number]
            box.dying.update(range(accepted.first, accepted.last + 1))
        journal.note(prepared, now.wall_us)
        self.watch(now)
        self._serve(holders, now)
        self._tell(decided, b"", answer, now)

    def _check_name(self, gid: str) -> None:
        state = self._journal.state
        if not gid or not gid.isprintable() or len(gid.encode()) > GID_BYTES_MAX:
            text = f"the name of a transaction is printable text of 1 to {GID_BYTES_MAX} bytes"
            raise LocalError("bad-message", text)
        if gid in state.prepared or gid in state.decided:
            raise LocalError("bad-message", f"there is or was a transaction {gid!r} already")

    def _check_room(self, prepared: TxPrepared) -> None:
        held = self._journal.state.prepared
        if len(held) >= self._limits.transactions_prepared:
            most = self._limits.transactions_prepared
            text = f"{most} transactions wait to be decided (limit transactions_prepared)"
            raise LocalError("limit-exceeded", text)
        size = _size(prepared) + sum(_size(one.what) for one in held.values())
        if size > self._limits.transactions_prepared_bytes:
            text = f"transactions that wait to be decided would have {size} bytes"
            raise LocalError("limit-exceeded", f"{text} (limit transactions_prepared_bytes)")
        room = self._journal.recorder.segment_bytes - 2 * BESIDE_BYTES
        if len(format.encode_control(prepared)) > room:
            text = f"what is prepared must fit into {room} bytes, as JSON (limit segment_bytes)"
            raise LocalError("limit-exceeded", text)

    def _check_right(self, c: Connection, gid: str) -> None:
        """Who has not prepared it must be allowed to administer."""
        assert c.session is not None
        known = self._journal.state.prepared.get(gid)
        mine = known is not None and known.what.owner == c.session.client_id
        principal = c.session.principal
        if not mine and not self._authorize(principal, "administer", "transactions"):
            raise LocalError("not-authorized", f"{principal} may not decide {gid!r}")

    def _decide_prepared(self, message: native.Decide, answer: Answer, now: Now) -> None:
        state, gid = self._journal.state, message.gid
        found = TransactionState.UNKNOWN
        known = state.prepared.get(gid)
        if known is not None and message.decision == Decision.ASK:
            found = TransactionState.PREPARED
        elif known is not None:
            self._finish(known, message, answer, now)
            return
        elif gid in state.decided:
            committed = state.decided[gid]
            found = TransactionState.COMMITTED if committed else TransactionState.ROLLED_BACK
        elif message.decision != Decision.ASK:
            raise LocalError("unknown-transaction", f"no transaction {gid!r} waits here")
        decided = native.Decided(message.serial, gid, found, known=known is None)
        self._tell(decided, b"", answer, now)

    def _finish(self, known: Prepared, message: native.Decide, answer: Answer, now: Now) -> None:
        """Somebody has decided."""
        self._mailroom.check_journal()
        commit = message.decision == Decision.COMMIT
        unit = known.what
        if commit:
            self._check_disk()
            with_room = self._make_room()
            self._free(unit)
            self._apply(unit, 0, 0, now)
            for slot in with_room:
                self._storage.keeper.set_full(slot, True)
            found = TransactionState.COMMITTED
        else:
            boxes = self._boxes(unit)  # made while they know what is kept from everybody
            self._journal.note(format.TxDecided(unit.gid, False), now.wall_us)
            self._free(unit)
            self._give_back(unit, boxes, now)
            self.rolled_back += 1
            found = TransactionState.ROLLED_BACK
        decided = native.Decided(message.serial, unit.gid, found, messages=unit.messages)
        self._tell(decided, unit.passing if commit else b"", answer, now)

    def _make_room(self) -> list[int]:
        """It was promised that it can be committed, whatever is full; the slots of what is."""
        journal, keeper = self._journal, self._storage.keeper
        found = []
        for number in (*journal.quotas.full, *journal.away):
            stream = journal.state.streams.get(number)
            before = keeper.full_count
            if stream is not None:
                keeper.set_full(stream.slot, False)
            if stream is not None and keeper.full_count < before:
                found.append(stream.slot)
        return found

    def _check_disk(self) -> None:
        refusal = self._storage.keeper.refusal
        if refusal:
            code = BY_NUMBER[refusal]
            raise LocalError(code.name, f"it cannot be committed now: {code.meaning}")

    def _free(self, unit: TxPrepared) -> None:
        """What it settles is not kept from anybody any more."""
        for one in unit.accepted:
            box = self._mailroom.boxes.boxes.get(one.number)
            if box is not None:
                box.dying.difference_update(range(one.first, one.last + 1))

    def _boxes(self, unit: TxPrepared) -> list[Box]:
        """The mailboxes of which it settles messages, as far as they are there still."""
        state = self._journal.state
        numbers = {one.number for one in unit.accepted if one.number in state.streams}
        return [self._mailroom.boxes.box(state.mailbox(number)) for number in sorted(numbers)]

    def _give_back(self, unit: TxPrepared, boxes: list[Box], now: Now) -> None:
        """It was rolled back: somebody else gets what it would have settled."""
        for box in boxes:
            pieces = [
                (low, high, Held(one.attempts, one.priority, 0))
                for one in unit.accepted
                if one.number == box.mailbox.number
                for low, high in box.mailbox.unsettled(one.first, one.last)
            ]
            self._mailroom.boxes.give_back(box, pieces, now)
            self._mailroom.boxes.pull(box, now)

    def watch(self, now: Now) -> None:
        """See which are in doubt for long: people are told, or it ends, if it is to."""
        if self._watch_ns > now.ns or self._journal.broken:
            return  # it is looked at in time
        self._watch_ns = 0
        warn_us = self._limits.transaction_doubt_s * SECOND_US
        prepared = self._journal.state.prepared
        self._warned &= prepared.keys()
        waits: list[int] = []
        for one in list(prepared.values()):
            age_us = max(0, now.wall_us - one.since_us)
            if self._in_doubt_us and age_us >= self._in_doubt_us:
                self._time_is_up(one, age_us, now)
                continue
            if age_us >= warn_us and one.what.gid not in self._warned:
                self._warned.add(one.what.gid)
                self._effects.append(Note("warning", _doubtful(one, age_us)))
            dues = [self._in_doubt_us] if self._in_doubt_us else []
            dues += [warn_us] if one.what.gid not in self._warned else []
            waits += [due - age_us for due in dues]
        if waits:
            self._watch_ns = now.ns + min(waits) * 1000
            self._deadlines.add(self._watch_ns, "doubt", 0)

    def _time_is_up(self, one: Prepared, age_us: int, now: Now) -> None:
        """Nobody has decided: roll it back, and remember that."""
        gid = one.what.gid
        try:
            self._finish(one, native.Decide(0, gid, Decision.ROLLBACK), lambda *told: None, now)
        except RegraftError as error:
            self._effects.append(Note("error", f"transaction {gid} stays in doubt: {error}"))
            return
        text = f"transaction {gid} was in doubt for {age_us // SECOND_US} s, and is rolled back"
        self._effects.append(Note("warning", f"{text} (in_doubt_s)"))

    # -------------------------------------------------------------------- by hand

    def command(self, what: str, data: bytes, now: Now, done: Callable[..., None]) -> None:
        """List transactions in doubt, or decide one; `done` is called with the answer."""
        if what == "tx-list":
            done({"transactions": self.rows()}, now)
            return
        try:
            gid = _GID.decode(data).gid
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"{what} takes gid, the name of a transaction: {error}"
            raise LocalError("bad-message", text) from None
        decision = Decision.COMMIT if what == "tx-commit" else Decision.ROLLBACK

        def answer(decided: native.Decided, now: Now) -> None:
            error = decided.error()
            told = {
                "gid": decided.gid,
                "state": decided.state.name.lower(),
                "messages": decided.messages,
                "known": decided.known,
            }
            done(told if error is None else error, now)

        if gid in self._journal.state.prepared:
            text = f"transaction {gid} was decided by hand: {decision.name.lower()}"
            self._effects.append(Note("warning", text))
        self._decide_prepared(native.Decide(gid=gid, decision=decision), answer, now)

    def rows(self) -> list[dict[str, Any]]:
        """Those in doubt, the oldest first."""
        return [
            {
                "gid": one.what.gid,
                "client": one.what.owner,
                "since_us": one.since_us,
                "messages": one.what.messages,
                "bytes": _size(one.what),
                "settles": sum(a.last - a.first + 1 for a in one.what.accepted),
                "makes": [made.name for made in one.what.made],
                "removes": one.what.removed,
                "until_us": one.since_us + self._in_doubt_us if self._in_doubt_us else 0,
            }
            for one in self._journal.state.prepared.values()
        ]

    def snapshot(self) -> dict[str, Any]:
        """Counters."""
        return {
            "transactions_open": sum(len(one.open) for one in self._clients.values()),
            "transactions_in_doubt": len(self._journal.state.prepared),
            "transactions_committed": self.committed,
            "transactions_rolled_back": self.rolled_back,
        }


def _by_number(accepted: list[Accepted]) -> dict[int, list[Range]]:
    found: dict[int, list[Range]] = {}
    for one in accepted:
        found.setdefault(one.number, []).append((one.first, one.last))
    return found


def _doubtful(one: Prepared, age_us: int) -> str:
    about = f"transaction {one.what.gid} of client {one.what.owner}"
    text = f"{about} is prepared since {age_us // SECOND_US} s, and nobody has decided"
    return f"{text}; see regraft tx list"


def _size(prepared: TxPrepared) -> int:
    return len(prepared.frames) + len(prepared.passing)
