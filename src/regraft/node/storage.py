"""What a node keeps: the journal's part in the life of a message.

The lane gives persistent messages to the keeper, which has them recorded. At the end of every step
the journal is asked to persist what has gathered; when the disk says that this is done, publishers
are told, live subscribers get theirs, and cursors read on. Nothing is confirmed in any other place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from regraft.errors import CODES, DiskError, LocalError, RegraftError
from regraft.journal.journal import Journal
from regraft.journal.requests import Piece
from regraft.journal.streams import Mailbox, Publisher, Stream
from regraft.kernels.keeper import Keeper
from regraft.kernels.lane import Source
from regraft.kernels.plan import Plan, plan_of
from regraft.kernels.replay import Reader
from regraft.kernels.selection import compile_selector
from regraft.kernels.windows import Window
from regraft.limits import Limits
from regraft.model.selector import Selector
from regraft.model.topic_cover import pattern_overlaps
from regraft.model.topics import matches
from regraft.model.varint import write_varint
from regraft.node.connection import CLOSING, OPEN, Connection
from regraft.node.cursors import FOREVER, Cursor, Cursors
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect, Note
from regraft.node.event import DiskFailed, JournalRead, Now, Persisted, SegmentReady
from regraft.node.outflow import DISK, Outflow
from regraft.node.router import Router
from regraft.wire import native

TICK_NS = 1_000_000_000
AHEAD = 1000  # what a mailbox may hand out, and its window again, before settlements are safe

Action = Callable[[Now], None]


class Retained(NamedTuple):
    """A topic that is a stream, as the configuration says."""

    name: str
    pattern: str
    exact: bool = False


NAME_BYTES_MAX = 255


class Storage:
    """The journal of a node, and everything that waits for it."""

    def __init__(
        self,
        journal: Journal,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        effects: list[Effect],
        deadlines: Deadlines,
        limits: Limits,
        confirm_early: bool = False,
    ) -> None:
        self.journal = journal
        self.keeper = Keeper(journal.recorder)
        self._router = router
        self._outflow = outflow
        self._connections = connections
        self._effects = effects
        self._deadlines = deadlines
        self._limits = limits
        self._confirm_early = confirm_early  # a planted bug, for tests that must find it
        self._waiting: deque[tuple[int, Action, Action | None]] = deque()
        self._publishers: dict[int, Publisher] = {}  # by connection
        self._attached: dict[str, int] = {}  # mailboxes by name: the connection
        self._refusal = ""
        self._crowded = False  # somebody was refused because too many publish
        self._now = Now(0, 0)
        self.cursors = Cursors(
            journal,
            outflow,
            connections,
            effects,
            deadlines,
            limits,
            self._settle,
            self._give_up,
            self._finish,
        )
        router.lane.keeper = self.keeper
        router.lane.introduce = self._introduce
        for stream in journal.state.streams.values():
            self._route(stream)

    @property
    def journal_id(self) -> bytes:
        """Whose positions and sequences these are."""
        return bytes.fromhex(self.journal.state.journal_id)

    def begin(self, now: Now) -> None:
        """A step begins."""
        self._now = now

    def end(self, now: Now) -> None:
        """A step ends: have persisted what it appended; hand on what need not wait."""
        if self.journal.recorder.used:
            self.journal.flush(now.wall_us)
        if self._confirm_early:
            self._release_pieces(self.journal.batch, now)
        self.hand_on(now)
        self._see_refusals()
        if self.journal.requests:
            self._effects += self.journal.requests
            self.journal.requests.clear()

    @property
    def pressed(self) -> bool:
        """Whether so much waits for the disk that publishers must wait.

        While nothing more is taken for it, nobody need.
        """
        return not self._refusal and self._pending_bytes > self._limits.journal_pending_bytes

    @property
    def _pending_bytes(self) -> int:
        """What is on its way to the disk."""
        return self.journal.recorder.position - self.journal.persisted_position

    # ------------------------------------------------------------------------ the disk

    def on_persisted(self, event: Persisted, now: Now) -> None:
        """The disk has what it was given."""
        was_full = self.journal.disk_full
        self._release_pieces(self.journal.persisted(now.wall_us), now)
        self._note_room(was_full)
        safe = self.journal.persisted_position
        while self._waiting and self._waiting[0][0] <= safe:
            self._waiting.popleft()[1](now)
        self.cursors.wake(now)
        if self._pending_bytes <= self._limits.journal_pending_bytes // 2:
            self._outflow.release(DISK, now)

    def hand_on(self, now: Now) -> None:
        """Hand on what need not wait for the disk."""
        if self.keeper.waiting:
            self._release(self.journal.persisted_position, b"", 0, now)

    def _release_pieces(self, pieces: Iterable[Piece], now: Now) -> None:
        """These bytes are safe, and with them the runs that stand in them."""
        for first, offset, data in pieces:
            base = first + offset
            self._release(base + len(data), data, base, now)

    def _release(self, safe: int, data: bytes | memoryview, base: int, now: Now) -> None:
        """Hand on what is safe, one publisher after the other, and tell them."""
        keeper = self.keeper
        while (source := keeper.release(safe, data, base)) is not None:
            c = self._connections.get(source.key)
            dirty = keeper.take_dirty()
            if dirty:
                self._outflow.deliver(dirty, c, False, now)
            confirmed = keeper.take_confirmed()
            if c is not None and c.state is not CLOSING and not c.node:
                answers = [native.Confirmed(*one) for one in confirmed]
                self._outflow.send_all(c, answers, now)

    def when_safe(self, action: Action, now: Now, otherwise: Action | None = None) -> None:
        """Do it once all that was appended is persisted; `otherwise` if it never will be.

        What was published before goes out before it.
        """
        position = self.journal.recorder.position
        if position <= self.journal.persisted_position:
            self.hand_on(now)
            action(now)
        elif not self.journal.broken:
            self._waiting.append((position, action, otherwise))
        elif otherwise is not None:
            otherwise(now)

    def on_failed(self, event: DiskFailed, now: Now) -> None:
        """The disk did not do it."""
        what = event.what if event.what in ("prepare", "remove", "punch", "read") else "persist"
        was_full = self.journal.disk_full
        self.journal.failed(what, event.errno, event.text, now.wall_us)
        if self.journal.broken:
            self._effects.append(
                Note(
                    "critical",
                    f"the journal failed: {event.text}. Nothing persistent is taken or confirmed "
                    "any more; what is confirmed is safe. Mend the disk, then start the node again",
                )
            )
            self._refuse_all(now)
        elif self.journal.disk_full and not was_full:
            self._effects.append(
                Note("error", f"{event.text}; persistent messages are refused until there is room")
            )
            self._see_refusals()
            self._outflow.release(DISK, now)
        elif what != "persist":
            self._effects.append(Note("warning", event.text))

    def _refuse_all(self, now: Now) -> None:
        """Nothing that waits will ever be confirmed: say so."""
        error = LocalError("journal-failed", f"not known to be safe: {self.journal.broken}")
        for source, ordinal, count in self.keeper.abandon():
            c = self._connections.get(source.key)
            if c is not None and c.state is not CLOSING and not c.node:
                report = native.Error.of(error, ordinal=ordinal, count=count)
                self._outflow.send(c, report, now)
        self._see_refusals()
        waiting, self._waiting = self._waiting, deque()
        for _, _, otherwise in waiting:
            if otherwise is not None:
                otherwise(now)
        self._outflow.release(DISK, now)

    def on_ready(self, event: SegmentReady, now: Now) -> None:
        """The next segment is there."""
        was_full = self.journal.disk_full
        self.journal.prepared(event.first)
        self._note_room(was_full)

    def _note_room(self, was_full: bool) -> None:
        if was_full and not self.journal.disk_full:
            self._effects.append(Note("info", "there is room on the disk again"))

    def on_read(self, event: JournalRead, now: Now) -> None:
        """Bytes of the journal."""
        if not self.cursors.arrived(event, now):
            self.journal.arrived(event.ticket, event.data, event.error)
            self.cursors.found(now)

    def tick(self, now: Now) -> None:
        """About once a second."""
        self._crowded = self._crowded and self.journal.crowded
        self.journal.tick(now.wall_us)
        self._deadlines.add(now.ns + TICK_NS, "journal", 0)

    def _see_refusals(self) -> None:
        """Tell the keeper what is refused now."""
        name = self.journal.refusal(())
        if name != self._refusal:
            self._refusal = name
            self.keeper.refusal = CODES[name].number if name else 0
        quotas = self.journal.quotas
        while quotas.changed:
            number = quotas.changed.pop()
            stream = self.journal.state.streams.get(number)
            if stream is None:
                continue
            full = number in quotas.full
            self.keeper.set_full(stream.slot, full)
            state = "is full: what it would take is refused" if full else "takes messages again"
            self._effects.append(Note("warning", f"mailbox {stream.name} {state}"))

    # ---------------------------------------------------------------------- publishers

    def _introduce(self, source: Source) -> None:
        """Somebody publishes with sequences for the first time on its connection.

        If it gets no window, what it publishes is refused: a repetition would not be noticed.
        """
        c = self._connections[source.key]
        assert c.session is not None
        try:
            publisher = self.journal.publisher(c.session.client_id, self._now.wall_us)
        except RegraftError as error:
            if not self._crowded:  # not for every message
                text = "what it publishes is refused, and what others do beyond that"
                self._effects.append(Note("warning", f"{c.who}: {error}; {text}"))
            self._crowded = True
            return
        self._publishers[source.key] = publisher
        source.publisher = publisher.number
        source.window = publisher.thaw()

    def last_sequence(self, client_id: str) -> int:
        """The highest sequence that a publisher is known to have used."""
        publisher = self.journal.state.clients.get(client_id)
        return max(0, Window(publisher.state()).highest) if publisher is not None else 0

    def leave(self, c: Connection, now: Now) -> None:
        """A connection is gone."""
        publisher = self._publishers.pop(c.key, None)
        if publisher is not None:
            self.journal.release(publisher, now.wall_us)
        for id in list(self.cursors.held.get(c.key, {})):
            self.close(c, id, now)

    # ------------------------------------------------------------------- subscriptions

    def open_mailbox(
        self, c: Connection, wanted: native.Subscribe, plan: Plan | None, now: Now
    ) -> None:
        """Subscribe durably: make the mailbox if need be, and read it."""
        assert c.session is not None
        name = wanted.durable
        _check_name(name)
        self._check_journal()
        mailbox = self.journal.state.mailboxes.get(name)
        text = plan.text if plan is not None else ""
        if mailbox is not None:
            if (mailbox.pattern, mailbox.exact) != (wanted.pattern, wanted.exact) or (
                mailbox.selector != text
            ):
                raise LocalError(
                    "mailbox-differs",
                    f"mailbox {name!r} is for {mailbox.pattern!r} where "
                    f"{mailbox.selector or 'anything'!r}; remove it first, or take another name",
                )
            if name in self._attached:
                raise LocalError("mailbox-in-use", f"another session reads mailbox {name!r}")
        else:
            mailbox = self.journal.make_mailbox(
                name, wanted.pattern, wanted.exact, text, c.session.client_id, now.wall_us
            )
            self._route(mailbox, plan)
        self._attached[name] = c.key
        cursor = self._cursor(c, wanted.id, mailbox, None, None, mailbox.floor)
        cursor.in_flight = min(wanted.in_flight or self._limits.in_flight, self._limits.in_flight)
        cursor.window = 2 * cursor.in_flight + AHEAD
        cursor.bound = mailbox.highest_settled + cursor.window
        self.journal.attach(mailbox.number, cursor.window, now.wall_us)
        self.journal.refresh(mailbox)

        def route(now: Now) -> None:
            pattern, exact = wanted.pattern, wanted.exact
            self._router.subscribe(c.key, wanted.id, pattern, exact, plan, passing=True)

        self._open(c, cursor, mailbox.floor, mailbox.waiting, now, route)

    def open_replay(self, c: Connection, wanted: native.Subscribe, now: Now) -> None:
        """Read a stream again, from some place on."""
        stream = self._stream_for(wanted)
        self.journal.refresh(stream)
        sequence = max(wanted.from_sequence, stream.first_sequence())
        test = None
        if wanted.selector:
            test = compile_selector(Selector.parse(wanted.selector, self._limits.selector_bytes))
        topics = None
        pattern, exact = wanted.pattern, wanted.exact
        if pattern not in ("", "#") and (pattern, exact) != (stream.pattern, stream.exact):

            def topics(topic: bytes) -> bool:
                return matches(pattern, topic.decode(), exact)

        cursor = self._cursor(c, wanted.id, stream, test, topics, sequence)
        cursor.paced = wanted.paced
        cursor.from_us = cursor.reader.since_us = wanted.from_time
        cursor.until_us = cursor.reader.until_us = wanted.until_time
        if wanted.until_sequence:
            cursor.until = min(wanted.until_sequence + 1, FOREVER)
        self._open(c, cursor, sequence, max(0, stream.next_sequence - sequence), now)

    def _stream_for(self, wanted: native.Subscribe) -> Stream:
        names = self.journal.state.names
        if wanted.stream:
            stream = names.get(wanted.stream)
            if stream is None:
                known = ", ".join(sorted(names)) or "it has none"
                raise LocalError(
                    "unknown-stream", f"this node has no stream {wanted.stream!r}: {known}"
                )
            return stream
        fitting = [
            stream
            for stream in names.values()
            if pattern_overlaps(stream.pattern, wanted.pattern, stream.exact, wanted.exact)
        ]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise LocalError(
                "unknown-stream",
                f"no stream of this node retains {wanted.pattern or '#'!r}; "
                "[[streams]] in its configuration says which topics are retained",
            )
        listed = ", ".join(stream.name for stream in fitting)
        raise LocalError(
            "unknown-stream", f"several streams hold {wanted.pattern!r}: name one of {listed}"
        )

    def _cursor(
        self,
        c: Connection,
        id: int,
        stream: Stream,
        test: Any,
        topics: Callable[[bytes], bool] | None,
        sequence: int,
    ) -> Cursor:
        packed = write_varint(id)
        ids = b"\x12" + write_varint(len(packed)) + packed
        reader = Reader([stream.number], test, topics)
        return Cursor(c.key, id, ids, stream, reader, sequence)

    def _open(
        self,
        c: Connection,
        cursor: Cursor,
        sequence: int,
        waiting: int,
        now: Now,
        then: Action | None = None,
    ) -> None:
        """Say that a subscription stands, once that is safe; then it reads."""

        def stands(now: Now) -> None:
            if c.state is not OPEN:
                return
            answer = native.Subscribed(cursor.id, sequence, waiting)
            self._outflow.send_in_place(c, answer, now)
            if self.cursors.get(c.key, cursor.id) is cursor:  # or it was ended meanwhile
                cursor.stands = True
                if then is not None:
                    then(now)
                self.cursors.pull(cursor, now)

        def fails(now: Now) -> None:
            self._give_up(cursor, self.journal.broken, now)

        self.cursors.add(cursor)
        self.when_safe(stands, now, stands if cursor.mailbox is None else fails)

    def _give_up(self, cursor: Cursor, text: str, now: Now) -> None:
        """A subscription cannot go on: say so, and end it."""
        self._effects.append(Note("error", f"a subscription of the journal ends: {text}"))
        c = self._connections.get(cursor.key)
        if c is not None and self.close(c, cursor.id, now):
            if cursor.id in self._router.held(c.key):
                self._router.unsubscribe(c.key, cursor.id)
            if c.state is OPEN:
                error = native.Error.of(DiskError("journal-failed", text), subscription=cursor.id)
                self._outflow.send_in_place(c, error, now)

    def _finish(self, cursor: Cursor, now: Now) -> None:
        """A replay has come to its end: it is over."""
        c = self._connections[cursor.key]
        self.close(c, cursor.id, now)
        if c.state is OPEN:
            self._outflow.send_in_place(c, native.Unsubscribed(cursor.id), now)

    def close(self, c: Connection, id: int, now: Now, remove: bool = False) -> bool:
        """End a subscription that reads the journal; whether there was one."""
        cursor = self.cursors.get(c.key, id)
        if cursor is None:
            return False
        mailbox = cursor.mailbox
        if remove and mailbox is not None:
            self._check_journal()
        self.cursors.remove(c.key, id)
        if mailbox is None:
            return True
        self._attached.pop(mailbox.name, None)
        if remove:
            self._router.release(mailbox.slot)
            self.keeper.set_full(mailbox.slot, False)
            self.journal.remove_mailbox(mailbox.number, now.wall_us)
        else:
            self.journal.detach(mailbox.number, mailbox.delivered, now.wall_us)
        return True

    def _route(self, stream: Stream, plan: Plan | None = None) -> None:
        """Have what is for a stream recorded for it."""
        if plan is None and isinstance(stream, Mailbox) and stream.selector:
            plan = plan_of(stream.selector)
        self._router.keep(stream.slot, stream.pattern, stream.exact, plan)

    def retain(self, streams: Iterable[Retained], now: Now) -> None:
        """Keep what is published to these topics, and to those that were retained before.

        What was kept is not thrown away because a line of the configuration is missing.
        """
        wanted = {stream.name: stream for stream in streams}
        for known in self.journal.state.names.values():
            still = wanted.get(known.name)
            if still is None:
                text = f"stream {known.name} is not in the configuration; it is retained as before"
                self._effects.append(Note("warning", text))
            elif (known.pattern, known.exact) != (still.pattern, still.exact):
                raise LocalError(
                    "bad-configuration",
                    f"stream {known.name!r} retains {known.pattern!r}, not {still.pattern!r}: "
                    "give the other topic a stream of another name",
                )
        for name, pattern, exact in wanted.values():
            if name not in self.journal.state.names:
                self._route(self.journal.make_stream(name, pattern, exact, now.wall_us))

    # --------------------------------------------------------------------- settlements

    def settle(self, c: Connection, message: native.Settle, now: Now) -> None:
        """A client is done with messages of a mailbox."""
        cursor = self.cursors.get(c.key, message.subscription)
        if cursor is None or cursor.mailbox is None:
            raise LocalError(
                "unknown-subscription",
                f"this session has no durable subscription {message.subscription}",
            )
        numbers = message.ranges
        if len(numbers) % 2 or any(
            first > last for first, last in zip(numbers[::2], numbers[1::2], strict=True)
        ):
            raise LocalError("bad-message", "ranges are pairs: first and last sequence")
        highest = cursor.next_sequence - 1
        ranges = [
            (first, min(last, highest))
            for first, last in zip(numbers[::2], numbers[1::2], strict=True)
            if first <= highest
        ]
        if self.journal.broken:
            self._let_go(cursor, cursor.mailbox, ranges, now)
            self._check_journal()
        settled, complete = self._settle(cursor, cursor.mailbox, ranges, now)
        cursor.held -= settled
        if message.token and complete:
            report = native.Settled(message.subscription, message.token)

            def answer(now: Now) -> None:
                if c.state is not CLOSING:
                    self._outflow.send(c, report, now)

            def never(now: Now) -> None:
                if c.state is not CLOSING:
                    self._outflow.send(c, self._unsettled(message), now)

            c.unsafe = self.journal.recorder.position
            self.when_safe(answer, now, never)
        self.cursors.pull(cursor, now)
        if not complete:
            raise LocalError(
                "limit-exceeded",
                f"a mailbox has {self._limits.mailbox_ranges} stretches of settled messages at "
                "most (limit mailbox_ranges); some of these stay unsettled",
            )

    def _unsettled(self, message: native.Settle) -> native.Error:
        """Nobody knows whether it counts: the journal failed while it was on its way."""
        error = LocalError("journal-failed", f"not known to be safe: {self.journal.broken}")
        return native.Error.of(error, subscription=message.subscription, settlement=True)

    def _let_go(
        self, cursor: Cursor, mailbox: Mailbox, ranges: list[tuple[int, int]], now: Now
    ) -> None:
        """Nothing is settled any more, but who is done with messages may have others."""
        for first, last in ranges:
            for start, end in mailbox.settled.gaps(max(first, mailbox.floor), last):
                cursor.held = max(0, cursor.held - (end - start + 1))
        self.cursors.pull(cursor, now)

    def _settle(
        self, cursor: Cursor, mailbox: Mailbox, ranges: list[tuple[int, int]], now: Now
    ) -> tuple[int, bool]:
        """Settle messages; how many were not settled before, and whether all of them are now.

        After a crash it is the journal that says how far a mailbox may have been delivered. So
        deliveries go only so far ahead of what is known to be settled for good.
        """
        self.journal.refresh(mailbox)
        waiting, highest = mailbox.waiting, mailbox.highest_settled
        complete = self.journal.settle(mailbox.number, ranges, now.wall_us)
        if mailbox.highest_settled > highest:
            bound = mailbox.highest_settled + cursor.window

            def safe(now: Now) -> None:
                held_up = cursor.next_sequence > cursor.bound
                cursor.bound = bound
                if held_up and self.cursors.get(cursor.key, cursor.id) is cursor:
                    self.cursors.pull(cursor, now)

            self.when_safe(safe, now)
        return waiting - mailbox.waiting, complete

    def _check_journal(self) -> None:
        if self.journal.broken:
            raise LocalError("journal-failed", f"the journal failed: {self.journal.broken}")

    # ------------------------------------------------------------------------ counters

    def snapshot(self) -> dict[str, Any]:
        """Counters."""
        keeper = self.keeper
        return {
            **self.journal.snapshot_counters(),
            "kept": keeper.kept,
            "repeated": keeper.repeated,
            "unconfirmed": len(keeper.waiting),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Mailboxes and streams, to look at."""
        found: list[dict[str, Any]] = []
        for stream in self.journal.state.streams.values():
            self.journal.refresh(stream)
            row: dict[str, Any] = {
                "kind": "mailbox" if isinstance(stream, Mailbox) else "stream",
                "name": stream.name,
                "pattern": stream.pattern or "#",
                "next": stream.next_sequence,
            }
            if isinstance(stream, Mailbox):
                row |= {
                    "where": stream.selector,
                    "waiting": stream.waiting,
                    "attached": stream.name in self._attached,
                }
            else:
                row |= {"waiting": stream.next_sequence - stream.first_sequence()}
            found.append(row)
        return found


def _check_name(name: str) -> None:
    if not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise LocalError(
            "bad-pattern", f"a mailbox's name is printable text of 1 to {NAME_BYTES_MAX} bytes"
        )
