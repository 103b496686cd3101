"""Batches of messages that are published whole, exactly once: the commit.

    1. The staged files of a batch are checked: they are there, and as long as was said.
    2. SinkCommitted is appended and persisted. From here on the batch is published, come what may.
    3. The files are read, and what is in them goes through the lane, as if it were received. Each
       part is a publisher, and its messages have ascending sequences.
    4. SinkApplied is appended and persisted; whoever asked is told, and the files go.

After a crash behind 2, 3 begins anew; what was appended before is recognised by its sequences.
A batch that is committed again is only answered. What cannot be taken now (a full disk, a full
mailbox) is tried again; what this node never takes is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from regraft.errors import CODES, DiskError, LocalError, RegraftError
from regraft.journal import format
from regraft.journal.format import Part
from regraft.journal.journal import Journal
from regraft.journal.streams import Publisher
from regraft.kernels import lane as lanes
from regraft.kernels.lane import Source
from regraft.kernels.outlet import Outlet
from regraft.limits import Limits
from regraft.node.effect import CheckStaged, Effect, Note, ReadStaged, RemoveStaged, SweepStaged
from regraft.node.event import Now, StagedRead
from regraft.node.router import Router
from regraft.wire import bulk

READ_BYTES = 256 * 1024  # of a staged file, at a time
SWEEP_S = 600
KNOWN = CODES["sequence-too-old"].number  # parts are appended in order: it was, before a crash
LATER = frozenset(
    CODES[name].number
    for name in ("limit-exceeded", "mailbox-full", "journal-failed", "disk-full", "journal-full")
)

Action: TypeAlias = Callable[[Now], None]
WhenSafe: TypeAlias = Callable[[Action, Now, Action | None], None]
Answer: TypeAlias = Callable[[bulk.Committed | RegraftError, Now], None]


@dataclass(slots=True)
class _Commit:
    """A batch on its way."""

    sink: str
    batch: int
    parts: list[Part]
    principal: str
    answers: list[Answer] = field(default_factory=list)
    at: int = 0  # the part at hand,
    offset: int = 0  # and how much of its file is done
    size: int = READ_BYTES  # to be read next
    key: int = 0  # of its source
    source: Source | None = None
    publisher: Publisher | None = None
    held_up: bool = False  # something was refused that may be taken later
    refused: int = 0
    applying: bool = False

    def name(self, part: Part) -> str:
        """The file of a part."""
        return bulk.staged_name(self.sink, self.batch, part.number, part.attempt)

    @property
    def names(self) -> tuple[str, ...]:
        """All files."""
        return tuple(self.name(part) for part in self.parts)


class Sinks:
    """All batches of a node that are being published."""

    def __init__(
        self,
        journal: Journal,
        router: Router,
        effects: list[Effect],
        limits: Limits,
        when_safe: WhenSafe,
        pressed: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._router = router
        self._effects = effects
        self._limits = limits
        self._when_safe = when_safe
        self._pressed = pressed
        self._commits: dict[str, _Commit] = {}  # by sink
        self._reading: dict[int, _Commit] = {}  # by ticket
        self._last_ticket = 0
        self._last_key = 0
        self._ticks = 0

    def begin(self, now: Now) -> None:
        """Go on with what was committed before the node was started."""
        for sink in list(self._journal.state.sinks.values()):
            if sink.parts:
                commit = _Commit(sink.name, sink.batch, sink.parts, "anonymous")
                self._commits[sink.name] = commit
                self._apply(commit, now)
        self._sweep(now)

    def commit(self, wanted: bulk.Parts, principal: str, answer: Answer, now: Now) -> None:
        """Publish a batch, unless it was."""
        parts = [Part(*part) for part in sorted(wanted.parts)]
        if len(parts) > bulk.PARTS_MAX or len({part.number for part in parts}) < len(parts):
            raise LocalError("bad-message", f"a batch has {bulk.PARTS_MAX} different parts at most")
        made = _Commit(wanted.sink, wanted.batch, parts, principal, [answer])
        files = tuple(zip(made.names, (part.size for part in parts), strict=True))
        bulk.staged_name(wanted.sink, wanted.batch, 0, "0")
        under_way = self._commits.get(wanted.sink)
        if under_way is not None:
            if under_way.batch != wanted.batch:
                text = f"batch {under_way.batch} of this sink is being committed; try again"
                raise LocalError("limit-exceeded", text)
            under_way.answers.append(answer)
            self._forget(made, under_way.parts)
            return
        known = self._journal.state.sinks.get(wanted.sink)
        if known is not None and wanted.batch == known.batch and known.parts:
            again = _Commit(known.name, known.batch, known.parts, principal, [answer])
            self._commits[wanted.sink] = again  # it was promised, and could not go on
            self._forget(made, known.parts)
            self._apply(again, now)
            return
        if known is not None and wanted.batch <= known.batch:
            self._forget(made, [])
            self._when_safe(lambda now: answer(bulk.Committed(0, True), now), now, None)
            return
        if self._journal.broken:
            raise LocalError("journal-failed", f"the journal failed: {self._journal.broken}")
        self._commits[wanted.sink] = made
        self._ask(made, CheckStaged(self._ticket(made), files))

    def abort(self, wanted: bulk.Parts) -> None:
        """Drop what was staged, unless it is committed."""
        parts = [Part(*part) for part in wanted.parts]
        under_way = self._commits.get(wanted.sink)
        known = self._journal.state.sinks.get(wanted.sink)
        kept = list(under_way.parts) if under_way is not None else []
        kept += known.parts if known is not None else []
        self._forget(_Commit(wanted.sink, wanted.batch, parts, ""), kept)

    def _forget(self, commit: _Commit, but: list[Part]) -> None:
        """Remove staged files that are of no use, except these."""
        kept = {commit.name(part) for part in but}
        names = tuple(name for name in commit.names if name not in kept)
        if names:
            self._effects.append(RemoveStaged(names))

    def tick(self, now: Now) -> None:
        """About once a second: try again what was held up."""
        for commit in list(self._commits.values()):
            if commit.held_up:
                commit.held_up = False
                self._read(commit)
        self._ticks += 1
        if self._ticks % SWEEP_S == 0:
            self._sweep(now)

    def _sweep(self, now: Now) -> None:
        keep = [name for commit in self._commits.values() for name in commit.names]
        before_us = now.wall_us - self._limits.staged_s * 1_000_000
        self._effects.append(SweepStaged(before_us, tuple(keep)))

    # --------------------------------------------------------------------------- applying

    def _ticket(self, commit: _Commit) -> int:
        self._last_ticket += 1
        self._reading[self._last_ticket] = commit
        return self._last_ticket

    def _ask(self, commit: _Commit, effect: CheckStaged | ReadStaged) -> None:
        self._effects.append(effect)

    def on_read(self, event: StagedRead, now: Now) -> None:
        """A file was read, or all of them were checked."""
        commit = self._reading.pop(event.ticket, None)
        if commit is None or self._commits.get(commit.sink) is not commit:
            return
        if event.error:
            self._fail(commit, event.error, now)
        elif not commit.applying:
            self._promise(commit, now)
        else:
            self._take(commit, event.data, now)

    def _promise(self, commit: _Commit, now: Now) -> None:
        """The files are whole: from here on the batch is published."""
        journal = self._journal
        made = format.SinkCommitted(commit.sink, commit.batch, commit.parts)
        if len(format.encode_control(made)) > journal.recorder.segment_bytes // 8:
            text = f"a batch of {len(made.parts)} parts does not fit into a record; use fewer"
            self._end(commit, LocalError("limit-exceeded", text), now)
            return
        sinks = journal.state.sinks
        if made.sink not in sinks:
            spare = max(0, len(sinks) - self._limits.sinks_remembered + 1)
            for sink in [one for one in sinks.values() if not one.parts][:spare]:
                journal.note(format.SinkGone(sink.name), now.wall_us)
        try:
            journal.note(made, now.wall_us)
        except RegraftError as error:
            self._end(commit, error, now)
            return
        self._when_safe(
            lambda now: self._apply(commit, now),
            now,
            lambda now: self._fail(commit, self._journal.broken, now),
        )

    def _apply(self, commit: _Commit, now: Now) -> None:
        """Begin to publish it."""
        commit.applying = True
        self._last_key -= 1
        commit.key = self._last_key
        self._router.admit(commit.key, Outlet(commit.key), commit.principal)
        self._next(commit, now)

    def _next(self, commit: _Commit, now: Now) -> None:
        """Go on with the part at hand, or the next one."""
        while commit.at < len(commit.parts) and commit.offset == commit.parts[commit.at].size:
            self._leave(commit, now)
            commit.at += 1
            commit.offset = 0
        if commit.at == len(commit.parts):
            self._finish(commit, now)
            return
        if commit.source is None:
            part = commit.parts[commit.at]
            try:
                publisher = self._journal.publisher(f"{commit.sink}:{part.number}", now.wall_us)
            except RegraftError:
                commit.held_up = True  # too many publish; somebody will leave
                return
            commit.publisher = publisher
            commit.source = Source(commit.key)
            commit.source.publisher = publisher.number
            commit.source.window = publisher.thaw()
        self._read(commit)

    def _read(self, commit: _Commit) -> None:
        part = commit.parts[commit.at]
        size = min(commit.size, part.size - commit.offset)
        ticket = self._ticket(commit)
        self._ask(commit, ReadStaged(ticket, commit.name(part), commit.offset, size))

    def _take(self, commit: _Commit, data: bytes, now: Now) -> None:
        """Publish what was read."""
        part = commit.parts[commit.at]
        source = commit.source
        if source is None:
            self._next(commit, now)
            return
        lane = self._router.lane
        done = lane.run(source, memoryview(data), 0, now.wall_us)
        whole = lane.stop == lanes.END and len(data) == min(commit.size, part.size - commit.offset)
        if not whole or (done == 0 and commit.offset + len(data) == part.size):
            self._fail(commit, f"{commit.name(part)} is damaged at {commit.offset + done}", now)
            return
        refusals, source.refusals = source.refusals, []
        if any(code in LATER for _, _, code in refusals):
            commit.held_up = True  # what was taken of it will be recognised
            return
        commit.refused += sum(count for _, count, code in refusals if code != KNOWN)
        commit.offset += done
        commit.size = READ_BYTES if done else 2 * commit.size
        if self._pressed():
            self._when_safe(
                lambda now: self._next(commit, now),
                now,
                lambda now: self._fail(commit, self._journal.broken, now),
            )
        else:
            self._next(commit, now)

    def _leave(self, commit: _Commit, now: Now) -> None:
        """A part is done."""
        if commit.publisher is not None:
            self._journal.release(commit.publisher, now.wall_us)
        commit.source = commit.publisher = None

    def _finish(self, commit: _Commit, now: Now) -> None:
        self._journal.note(format.SinkApplied(commit.sink, commit.batch), now.wall_us)
        self._router.dismiss(commit.key)
        messages = sum(part.messages for part in commit.parts)

        def safe(now: Now) -> None:
            self._effects.append(RemoveStaged(commit.names))
            self._end(commit, bulk.Committed(messages, False, commit.refused), now)

        self._when_safe(safe, now, lambda now: self._fail(commit, self._journal.broken, now))

    def _fail(self, commit: _Commit, text: str, now: Now) -> None:
        """It cannot go on. If it was promised, the next start of the node tries again."""
        if commit.applying:
            self._effects.append(
                Note("critical", f"batch {commit.batch} of sink {commit.sink} hangs: {text}")
            )
            self._leave(commit, now)
            self._router.dismiss(commit.key)
            self._end(commit, DiskError("journal-failed", text), now)
        else:
            self._end(commit, LocalError("bad-message", f"it cannot be committed: {text}"), now)

    def _end(self, commit: _Commit, result: bulk.Committed | RegraftError, now: Now) -> None:
        if self._commits.get(commit.sink) is commit:
            del self._commits[commit.sink]
        for answer in commit.answers:
            answer(result, now)
