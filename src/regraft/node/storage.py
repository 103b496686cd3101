"""What a node keeps: the journal's part in the life of a message.

The lane gives persistent messages to the keeper, which has them recorded. At the end of every step
the journal is asked to persist what has gathered; when the disk says that this is done, publishers
are told, live subscribers get theirs, and cursors read on. Nothing is confirmed in any other place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from regraft.errors import CODES, LocalError, RegraftError
from regraft.journal.journal import Journal
from regraft.journal.requests import Piece
from regraft.journal.streams import Publisher, Stream
from regraft.kernels.frame import confirmed as confirmation
from regraft.kernels.keeper import Keeper
from regraft.kernels.lane import Source
from regraft.kernels.windows import Window
from regraft.limits import Limits
from regraft.node.bulk import Bulk
from regraft.node.connection import CLOSING, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect, Note
from regraft.node.event import DiskFailed, JournalRead, Now, Persisted, SegmentReady
from regraft.node.mailroom import Mailroom
from regraft.node.outflow import DISK, Outflow
from regraft.node.press import Press
from regraft.node.reading import Readings
from regraft.node.router import Router
from regraft.wire import native

TICK_NS = 1_000_000_000
SMALL_BYTES = 4096  # a batch of so little is answered before all else that its end brings
STIRRED_AT_ONCE = 256  # streams whose readers are told in one step

Action = Callable[[Now], None]


class Retained(NamedTuple):
    """A topic that is a stream, as the configuration says."""

    name: str
    pattern: str
    exact: bool = False


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
        self.confirm_early = confirm_early  # a planted bug, for tests that must find it
        self._waiting: deque[tuple[int, Action, Action | None]] = deque()
        self._stirred: dict[Stream, int] = {}  # got more: from which position on
        self._publishers: dict[int, Publisher] = {}  # by connection
        self.unfinished = False  # a batch is persisted, and its publishers know; nobody else does
        self._refusal = ""
        self._crowded = False  # somebody was refused because too many publish
        self._now = Now(0, 0)
        self.readings = Readings(journal, effects)
        self.press = Press(journal, self.keeper, router.lane, limits.frame_bytes)
        self.mailroom = Mailroom(
            journal,
            self.readings,
            router,
            outflow,
            connections,
            effects,
            deadlines,
            limits,
            self.when_safe,
            self.press,
            lambda: self._now.wall_us,
        )
        self.bulk = Bulk(
            journal,
            router,
            outflow,
            connections,
            effects,
            limits,
            self.when_safe,
            lambda: self.pressed,
        )
        router.lane.keeper = self.keeper
        router.lane.introduce = self._introduce
        self.mailroom.open_all()

    @property
    def journal_id(self) -> bytes:
        """Whose positions and sequences these are."""
        return bytes.fromhex(self.journal.state.journal_id)

    def begin(self, now: Now) -> None:
        """A step begins."""
        self._now = now
        self.mailroom.boxes.handed.clear()
        if self.unfinished:
            self._finish(now)

    def end(self, now: Now) -> None:
        """A step ends: have persisted what it appended; hand on what need not wait."""
        if self.keeper.delayed:
            self.mailroom.delays.take(now)
        if self.journal.recorder.used:
            if self.unfinished:
                self._finish(now)
            self.journal.flush(now.wall_us)
        if self.confirm_early:
            self._release_pieces(self.journal.batch, now)
        self.hand_on(now)
        self.see_refusals()
        if self.journal.requests:
            self._effects += self.journal.requests
            self.journal.requests.clear()

    @property
    def has_work(self) -> bool:
        """Whether the end of a step has something to do, though nothing but messages came."""
        keeper = self.keeper
        return bool(
            self.journal.recorder.used
            or keeper.waiting
            or keeper.delayed
            or self.journal.requests
            or self.unfinished
            or self.confirm_early
        )

    @property
    def publishes_later(self) -> bool:
        """Whether something is kept here that the node will publish itself, when it is time."""
        return self.mailroom.delays.some or bool(self.journal.state.prepared)

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
        """The disk has what it was given: tell publishers, then do all else that follows.

        Who publishes one message at a time waits for nothing but that answer. So if there is
        little of it, the rest comes with the next step, which is due at once.
        """
        batch = self.journal.batch
        self._release_pieces(batch, now)
        self.unfinished = True
        if len(batch) > 1 or len(batch[0].data) > SMALL_BYTES or self.journal.recorder.used:
            self._finish(now)

    def _finish(self, now: Now) -> None:
        """The batch is persisted, and its publishers were told."""
        self.unfinished = False
        was_full = self.journal.disk_full
        self.journal.persisted(now.wall_us)
        self._note_room(was_full)
        safe = self.journal.persisted_position
        while self._waiting and self._waiting[0][0] <= safe:
            self._waiting.popleft()[1](now)
        for stream, position in self.journal.touched:
            self._stirred.setdefault(stream, position)
        self.stir(now)
        if self._pending_bytes <= self._limits.journal_pending_bytes // 2:
            self._outflow.release(DISK, now)

    @property
    def stirred(self) -> bool:
        """Whether there are streams whose readers do not know yet that there is more."""
        return self.unfinished or bool(self._stirred)

    def stir(self, now: Now) -> None:
        """Tell readers that there is more, of some streams: others must not wait for all of them.

        Whoever had read all goes on where the first of it stands.
        """
        for stream in list(islice(self._stirred, STIRRED_AT_ONCE)):
            touched = [(stream, self._stirred.pop(stream))]
            self.readings.wake(touched, now)
            self.mailroom.wake(touched, now)

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
                self._outflow.send_encoded(c, [confirmation(*one) for one in confirmed], now)

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
            self.see_refusals()
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
        self.see_refusals()
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
        if not self.readings.arrived(event, now):
            self.journal.arrived(event.ticket, event.data, event.error)
            self.readings.found(now)
            self.bulk.found(now)

    def tick(self, now: Now) -> None:
        """About once a second."""
        self._crowded = self._crowded and self.journal.crowded
        self.journal.tick(now.wall_us)
        self.bulk.tick(now)
        self._deadlines.add(now.ns + TICK_NS, "journal", 0)

    def see_refusals(self) -> None:
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
        self.mailroom.leave(c, now)

    def retain(self, streams: Iterable[Retained], now: Now) -> None:
        """Keep what is published to these topics, and to those that were retained before.

        What was kept is not thrown away because a line of the configuration is missing.
        """
        wanted = {stream.name: stream for stream in streams}
        for known in self.journal.state.names.values():
            still = wanted.get(known.name)
            if still is None and known.name not in self.journal.state.topics:
                text = f"stream {known.name} is not in the configuration; it is retained as before"
                self._effects.append(Note("warning", text))
            elif still is not None and (known.pattern, known.exact) != still[1:]:
                raise LocalError(
                    "bad-configuration",
                    f"stream {known.name!r} retains {known.pattern!r}, not {still.pattern!r}: "
                    "give the other topic a stream of another name",
                )
        for name, pattern, exact in wanted.values():
            if name not in self.journal.state.names:
                self.mailroom.route(self.journal.make_stream(name, pattern, exact, now.wall_us))

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
