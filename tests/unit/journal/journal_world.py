"""A journal with a disk in memory that does what it is asked for, when it is told to."""

from __future__ import annotations

from typing import Any

from regraft.journal.format import Record
from regraft.journal.journal import Journal, keep_all
from regraft.journal.recovery import Recovered, examine, recover
from regraft.journal.requests import (
    Persist,
    PrepareSegment,
    PunchHole,
    ReadJournal,
    RemoveSegment,
    Request,
)
from regraft.journal.walking import SegmentView, records
from regraft.limits import Limits
from regraft.model.message import Message
from regraft.wire import native

SEGMENT = 16 * 1024
JOURNAL_ID = "0123456789abcdef0123456789abcdef"


def frame(body: bytes = b"", sequence: int | None = None, topic: str = "a/b") -> bytes:
    return native.encode(Message(topic, body, sequence=sequence))


class World:
    """The disk, and the journal on it."""

    def __init__(self, retention_of: Any = keep_all, **limits: int) -> None:
        limits = {"segment_bytes": SEGMENT, "frame_bytes": SEGMENT // 4, **limits}
        self.limits = Limits(
            **limits, control_frame_bytes=SEGMENT // 4, selector_bytes=SEGMENT // 8
        )
        self.retention_of = retention_of
        self.files: dict[int, bytearray] = {}
        self.removed: list[int] = []
        self.holes: list[PunchHole] = []
        self.persists = 0
        self.now = 1_000_000
        self.journal: Journal
        self.recovered: Recovered
        self.start()

    def start(self) -> Recovered:
        """Recover from what the disk holds, and go on; what was not persisted is gone."""
        self.recovered = recover(self.views(), self.limits.segment_bytes, JOURNAL_ID, self.now)
        for first in self.recovered.leftovers:
            del self.files[first]
        self.journal = Journal(self.recovered, self.limits, self.now, self.retention_of)
        return self.recovered

    def views(self) -> list[SegmentView]:
        return [SegmentView(first, len(file), bytes(file)) for first, file in self.files.items()]

    def examine(self) -> Recovered:
        return examine(self.views(), self.limits.segment_bytes, JOURNAL_ID, self.now)

    def records(self) -> list[Record]:
        """All that stands in the files."""
        return [
            record
            for first, file in sorted(self.files.items())
            for record in records(SegmentView(first, len(file), memoryview(bytes(file))))
        ]

    # ------------------------------------------------------------------------ doing

    def publish(self, *streams: Any, body: bytes = b"", count: int = 1, publisher: int = 0) -> int:
        """Append messages to streams; the position behind them."""
        slots = [stream.slot for stream in streams]
        self.now += 1
        return self.journal.recorder.append_frames(
            frame(body) * count, count, publisher, slots, self.now
        )

    def flush(self) -> None:
        """Persist all that there is."""
        while True:
            self.journal.flush(self.now)
            if not self.perform():
                return

    def perform(self, *kinds: type[Request]) -> int:
        """Do what is asked for, or only some kinds of it; how much that was."""
        done = 0
        while True:
            waiting = [r for r in self.journal.requests if not kinds or isinstance(r, kinds)]
            if not waiting:
                return done
            for request in waiting:
                self.journal.requests.remove(request)
                self.do(request)
                done += 1

    def do(self, request: Request) -> None:
        if isinstance(request, Persist):
            self.write(request)
            self.journal.persisted(self.now)
        elif isinstance(request, ReadJournal):
            data = self.files.get(request.first, b"")
            end = request.offset + request.size
            self.journal.arrived(request.ticket, bytes(data[request.offset : end]), "")
        elif isinstance(request, PrepareSegment):
            self.files.setdefault(request.first, bytearray(request.size))
            self.journal.prepared(request.first)
        elif isinstance(request, RemoveSegment):
            del self.files[request.first]
            self.removed.append(request.first)
        else:
            self.punch(request)

    def write(self, request: Persist) -> None:
        self.persists += 1
        for first, offset, data in request.pieces:
            if first not in self.files:
                self.files[first] = bytearray(request.size)
            self.files[first][offset : offset + len(data)] = data

    def punch(self, hole: PunchHole) -> None:
        self.holes.append(hole)
        self.files[hole.first][hole.offset : hole.offset + hole.size] = bytes(hole.size)

    def located(self, found: Any) -> Any:
        """The answer of `locate` and the like, after all that has to be read for it."""
        for _ in range(100):
            place = found()
            if place is not None:
                return place
            assert self.perform(ReadJournal), "it waits for nothing"
        raise AssertionError("no answer")
