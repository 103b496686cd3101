"""The journal of a data folder, looked at from outside: its lock, its segments, its messages.

A folder that a node uses may be looked at, too: what is seen then is of a moment. What changes a
folder, or must see all of it, holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regraft.errors import DiskError, LocalError
from regraft.journal import format
from regraft.journal.format import Record
from regraft.journal.recovery import Recovered, examine
from regraft.journal.streams import Mailbox, Stream
from regraft.journal.walking import SegmentView, later_records, read_start
from regraft.kernels.inbox import ReceivedMessage
from regraft.kernels.records import FOUND, ZERO, Walk
from regraft.limits import Limits
from regraft.runtime.segments import open_segments
from regraft.wire import native

JOURNAL = "journal"
QUARANTINE = "quarantine"


# ----------------------------------------------------------------------------- the folder


def journal_of(data: Path) -> Path:
    """The folder of the journal; LocalError if this is no data folder."""
    if not (data / "format").exists() and not (data / JOURNAL).is_dir():
        raise LocalError(
            "bad-configuration",
            f"{data} is not the data folder of a node; name one with --data",
        )
    return data / JOURNAL


def holder(data: Path) -> str:
    """Who uses a data folder: `process 77`, or nobody."""
    try:
        lock = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        return f"process {text}" if text.isdigit() else "another process"
    except OSError:  # a file system without locks
        return ""
    finally:
        os.close(lock)
    return ""


@contextlib.contextmanager
def locked(data: Path, instead: str) -> Iterator[None]:
    """Keep nodes out of a data folder. If one is in it, DiskError; `instead` says what to do."""
    journal_of(data)
    try:
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot("lock", data, error) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{holder(data) or 'another process'} uses the data folder {data}; {instead}"
            raise DiskError("data-folder-locked", text) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _cannot(verb: str, path: Path, error: OSError) -> DiskError:
    reason = (error.strerror or str(error)).lower()
    return DiskError("data-folder-damaged", f"cannot {verb} {path}: {reason}")


# --------------------------------------------------------------------------- the segments


class Gap(NamedTuple):
    """A stretch of a segment in which no record can be read, though one should stand there."""

    first: int  # of the segment
    start: int  # offsets
    end: int
    time_us: int  # of the record before it, and so on
    epoch: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Lost(NamedTuple):
    """Messages of a stream that cannot be read any more."""

    stream: int
    first: int  # sequences
    last: int


@dataclass
class Survey:
    """What a recovery would find, beside the segments themselves."""

    segments: list[SegmentView]
    recovered: Recovered

    @property
    def end(self) -> int:
        """Where what counts ends: behind it there is nothing, or what was never acknowledged."""
        if self.recovered.damage:
            return max((one.first + one.size for one in self.segments), default=0)
        return self.recovered.position

    def is_closed(self, segment: SegmentView) -> bool:
        """Whether a recovery went on behind this segment."""
        return segment.first + segment.size <= self.recovered.position

    def name_of(self, number: int) -> str:
        """What a stream is called."""
        stream = self.recovered.state.streams.get(number)
        return stream.name if stream is not None else f"#{number}"

    def stream(self, name: str) -> Stream:
        """The retained topic of this name."""
        streams = self.recovered.state.names
        if name not in streams:
            raise _unknown("stream", name, streams)
        return streams[name]

    def mailbox(self, name: str) -> Mailbox:
        """The mailbox of this name."""
        mailboxes = self.recovered.state.mailboxes
        if name not in mailboxes:
            raise _unknown("mailbox", name, mailboxes)
        return mailboxes[name]


def _unknown(what: str, name: str, known: Iterable[str]) -> LocalError:
    listed = ", ".join(sorted(known)) or "none"
    return LocalError("unknown-stream", f"there is no {what} {name!r}; there are: {listed}")


@contextlib.contextmanager
def survey(data: Path) -> Iterator[Survey]:
    """Look at a journal as it is on the disk; nothing is changed."""
    now_us = time.time_ns() // 1000
    with open_segments(journal_of(data), settle=False) as found:
        views = [SegmentView(*segment) for segment in found]
        recovered = examine(views, Limits().segment_bytes, "", now_us)
        yield Survey([as_made(view) for view in views], recovered)


def as_made(segment: SegmentView) -> SegmentView:
    """The segment with the size that it was made with."""
    view = memoryview(segment.view)
    start = read_start(SegmentView(segment.first, segment.size, view))
    size = segment.size if start is None else start.size
    return SegmentView(segment.first, size, view[:size])


def names_of(data: Path) -> list[str]:
    """The files of the segments, by which one sees that a node has dropped some meanwhile."""
    return sorted(path.name for path in journal_of(data).glob("*.seg"))


@dataclass
class Scan:
    """Walks over all of a segment, also over what cannot be read."""

    gaps: list[Gap] = field(default_factory=list)
    time_us: int = 0
    epoch: int = 0

    def records(self, segment: SegmentView, until: int, closed: bool = False) -> Iterator[Record]:
        """The records that begin before the position `until`; what lies between is a gap.

        Where only zeros follow, that is the end; but not of a segment that was closed.
        """
        walk = Walk()
        end = min(until - segment.first, segment.size)
        at = 0
        while at < end:
            status = walk.step(segment.view, at, segment.first, self.epoch)
            if status == FOUND:
                self.time_us, self.epoch = walk.time_us, walk.epoch
                yield _record(walk, segment)
                at = walk.next
                if walk.kind == format.INDEX:
                    return
                continue
            later = next(later_records(segment, at, self.epoch), None)
            if later is None and status == ZERO and _ends(segment, at, closed):
                return
            stop = end if later is None else min(end, later.position - segment.first)
            self.gaps.append(Gap(segment.first, at, stop, self.time_us, self.epoch))
            at = stop


def _ends(segment: SegmentView, offset: int, closed: bool) -> bool:
    if closed:  # there was no room for an INDEX
        trailer = segment.view[segment.size - format.TRAILER_BYTES : segment.size]
        return format.decode_trailer(trailer) == 0
    return not has_bytes(segment, offset)


def has_bytes(segment: SegmentView, offset: int = 0) -> bool:
    """Whether anything but zeros stands in a segment, from an offset on."""
    view, step = segment.view, 65_536
    return any(any(view[at : at + step]) for at in range(offset, len(view), step))


def _record(walk: Walk, segment: SegmentView) -> Record:
    view, first = segment.view, segment.first
    meta, payload = view[walk.meta_at : walk.payload_at], view[walk.payload_at : walk.end]
    place = walk.position, first + walk.next
    about = walk.time_us, walk.epoch, walk.count, walk.publisher
    return Record(walk.kind, *place, *about, meta, payload, walk.priority)


# --------------------------------------------------------------------------- the messages


class Kept(NamedTuple):
    """A message as it stands in the journal."""

    position: int  # of its record
    time_us: int
    publisher: int
    places: list[tuple[int, int]]  # streams, and its sequence in each
    message: ReceivedMessage


def messages_of(record: Record) -> Iterator[Kept]:
    """The messages of a MESSAGES record."""
    places = format.places(record.meta)
    at = 0
    for number in range(record.messages):
        end = at + 4 + int.from_bytes(record.payload[at : at + 4], "little")
        message = ReceivedMessage(bytes(record.payload[at + native.HEADER_BYTES : end]))
        spots = [(stream, sequence + number) for stream, sequence in places]
        yield Kept(record.position, record.time_us, record.publisher, spots, message)
        at = end
