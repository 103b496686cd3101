"""Much data, few decisions: tables read from the journal, and batches of messages published whole.

The node decides what may be read and from which position on; then it hands the connection over to
a process beside it, which reads the segments and does all of the work. In the same way messages
are staged: they are written to a file beside the journal, and nobody sees them. `node/sinks.py`
publishes them when their batch is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from regraft.errors import LocalError, RegraftError
from regraft.journal.journal import Journal
from regraft.journal.streams import Stream
from regraft.limits import Limits
from regraft.model.selector import Selector
from regraft.node.connection import OPEN, Connection
from regraft.node.effect import Effect, HandOver
from regraft.node.event import Now, StagedRead
from regraft.node.outflow import Outflow
from regraft.node.router import Authorize, Router
from regraft.node.sinks import Sinks, WhenSafe
from regraft.wire import bulk, native, peers


class _Reading(NamedTuple):
    """A read whose place in the journal is not known yet."""

    c: Connection
    token: int
    stream: Stream
    request: bulk.Read


class Bulk:
    """Answers what is said about tables and batches."""

    def __init__(
        self,
        journal: Journal,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        effects: list[Effect],
        limits: Limits,
        when_safe: WhenSafe,
        pressed: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._outflow = outflow
        self._connections = connections
        self._effects = effects
        self._limits = limits
        self._when_safe = when_safe
        self._lost: list[_Reading] = []
        self._begun = False
        self.sinks = Sinks(journal, router, effects, limits, when_safe, pressed)

    def begin(self, now: Now) -> None:
        """There is somebody to hand connections to. Go on with what was committed before."""
        self._begun = True
        self.sinks.begin(now)

    def tick(self, now: Now) -> None:
        """About once a second."""
        if self._begun:
            self.sinks.tick(now)

    def on_read(self, event: StagedRead, now: Now) -> None:
        """Bytes of a staged file."""
        self.sinks.on_read(event, now)

    def command(
        self, c: Connection, command: peers.Command, now: Now, authorize: Authorize
    ) -> None:
        """Do what is asked for; the answer may come later."""
        if not self._begun:
            raise LocalError("not-supported", "this node serves no tables")
        assert c.session is not None
        payload, token = command.json, command.token
        if command.what == "streams":
            bulk.decode(payload, bulk.Streams)
            self._streams(c, token, now)
        elif command.what == "read":
            self._read(c, token, bulk.decode(payload, bulk.Read), now, authorize)
        elif command.what == "stage":
            stage = bulk.decode(payload, bulk.Stage)
            name = bulk.staged_name(stage.sink, stage.batch, stage.part, stage.attempt)
            limits = self._limits
            job = bulk.StageJob(token, name, limits.frame_bytes, limits.staged_bytes)
            self._effects.append(HandOver(c.key, bulk.encode(job)))
        else:
            parts = bulk.decode(payload, bulk.Parts)
            self._check_journal(parts.journal)

            def answer(result: bulk.Committed | RegraftError, now: Now) -> None:
                self._answer(c, token, result, now)

            if command.what == "commit":
                self.sinks.commit(parts, c.session.principal, answer, now)
            else:
                self.sinks.abort(parts)
                answer(bulk.Committed(0, False), now)

    def _answer(
        self,
        c: Connection,
        token: int,
        result: bulk.Committed | bulk.StreamRows | RegraftError,
        now: Now,
    ) -> None:
        if self._connections.get(c.key) is not c or c.state is not OPEN:
            return
        if isinstance(result, RegraftError):
            self._outflow.send_in_place(c, native.Error.of(result, token=token), now)
        else:
            self._outflow.send_in_place(c, peers.Done(token, bulk.encode(result)), now)

    def _check_journal(self, journal: str) -> None:
        own = self._journal.state.journal_id
        if journal and journal != own:
            raise LocalError(
                "other-journal",
                f"these are positions of journal {journal}, and this node has {own}: it is another "
                "node, or its data folder was replaced",
            )

    # ---------------------------------------------------------------------------- reading

    def _streams(self, c: Connection, token: int, now: Now) -> None:
        """Say how far the streams go, once all of that is safe."""
        rows = []
        for stream in self._journal.state.names.values():
            self._journal.refresh(stream)
            first = stream.first_sequence()
            rows.append(bulk.StreamRow(stream.name, stream.pattern, first, stream.next_sequence))
        answer = bulk.StreamRows(self._journal.state.journal_id, rows)

        def failed(now: Now) -> None:
            text = f"the journal failed: {self._journal.broken}"
            self._answer(c, token, LocalError("journal-failed", text), now)

        self._when_safe(lambda now: self._answer(c, token, answer, now), now, failed)

    def _read(
        self, c: Connection, token: int, request: bulk.Read, now: Now, authorize: Authorize
    ) -> None:
        assert c.session is not None
        self._check_journal(request.journal)
        names = self._journal.state.names
        stream = names.get(request.stream)
        if stream is None:
            known = ", ".join(sorted(names)) or "it has none"
            raise LocalError(
                "unknown-stream", f"this node has no stream {request.stream!r}: {known}"
            )
        if not authorize(c.session.principal, "subscribe", stream.pattern):
            raise LocalError(
                "not-authorized", f"{c.session.principal} may not read {request.stream!r}"
            )
        first = stream.first_sequence()
        if not request.since_us and request.start < first:
            raise LocalError(
                "position-expired",
                f"stream {request.stream!r} is kept from sequence {first} on; {request.start} is "
                "gone: its retention is shorter than it took to read it",
            )
        bulk.specs(request.columns)
        if request.selector:
            Selector.parse(request.selector, self._limits.selector_bytes)
        self._locate(_Reading(c, token, stream, request), now)

    def found(self, now: Now) -> None:
        """The journal knows more: try again to locate what was not found."""
        lost, self._lost = self._lost, []
        for reading in lost:
            if reading.c.state is OPEN:
                self._locate(reading, now)

    def _locate(self, reading: _Reading, now: Now) -> None:
        c, token, stream, request = reading
        if request.since_us:
            place = self._journal.locate_time(stream.number, request.since_us)
        else:
            place = self._journal.locate(stream.number, request.start)
        if place is None:
            self._lost.append(reading)
            return
        position = place.first + place.offset
        persisted = self._journal.persisted_position
        job = bulk.ReadJob(token, request, stream.number, position, persisted)
        self._effects.append(HandOver(c.key, bulk.encode(job)))
