"""Performs what the journal wants on real files, in two threads.

- The *sync thread* writes and syncs, one request at a time: while it waits for the disk, the node
  collects what the next request will hold. That is the group commit.
- The *file thread* reads, and makes and drops segments. Reads go first: what takes long is done in
  steps between them.
- A sync that failed is never tried again as if nothing had happened: the kernel may have thrown the
  bytes away and call the next sync a success. After a failure nothing is written any more. Only a
  full disk is different, and only because the journal sends the same bytes again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from regraft.journal.requests import (
    Persist,
    PrepareSegment,
    PunchHole,
    ReadJournal,
    RemoveSegment,
    Request,
)
from regraft.node.event import DiskFailed, Event, JournalRead, Persisted, SegmentReady
from regraft.runtime.segments import SegmentFolder, punch_hole, read_all
from regraft.runtime.writing import SegmentFile

READERS_MAX = 16  # files that are kept open to be read
CALM_S = 1.0  # since the last segment was made; if less, they are filled fast
CLOSE_S = 10.0  # for a sync that is under way
FULL = {errno.ENOSPC, errno.EDQUOT}
PERSISTING = ("create", "write", "sync", "mistake")  # what of `DiskFailed` that answers a `Persist`

log = logging.getLogger("regraft.disk")

Chore: TypeAlias = Generator[None, None, None]


class Bell:
    """Wakes one thread that waits for it. An eventfd is the fastest way, where there is one."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC) if hasattr(os, "eventfd") else -1
        self._semaphore = threading.Semaphore(0)

    def ring(self) -> None:
        """Wake it, or let it not fall asleep the next time."""
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)
        else:
            self._semaphore.release()

    def wait(self) -> None:
        """Sleep until it rings."""
        if self._descriptor >= 0:
            os.eventfd_read(self._descriptor)
        else:
            self._semaphore.acquire()

    def close(self) -> None:
        """Nobody rings or waits any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Reports:
    """Takes events in any thread, and gives them to the loop: those that wait, in one go."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, step: Callable[[list[Event]], None]
    ) -> None:
        self._loop = loop
        self._step = step
        self._waiting: deque[Event] = deque()
        self._woken = False
        self._descriptor = -1
        if hasattr(os, "eventfd"):  # the loop's own way to be woken takes longer
            self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            loop.add_reader(self._descriptor, self._awake)

    def __call__(self, event: Event) -> None:
        """Tell the loop."""
        self._waiting.append(event)
        if self._woken:
            return
        self._woken = True
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)
        else:
            self._loop.call_soon_threadsafe(self._deliver)

    def _awake(self) -> None:
        os.eventfd_read(self._descriptor)
        self._deliver()

    def _deliver(self) -> None:
        self._woken = False  # first: what comes from now on wakes the loop again
        events = []
        while self._waiting:
            events.append(self._waiting.popleft())
        if events:
            self._step(events)

    def close(self) -> None:
        """Tell the loop nothing more; the disk was closed before."""
        self._woken = True
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class Disk:
    """The journal's folder, and the two threads that work in it."""

    def __init__(self, folder: Path, report: Callable[[Event], None]) -> None:
        self._segments = SegmentFolder(folder)
        self._report = report
        self._first = -1  # of the segment that is written to
        self._file: SegmentFile | None = None
        self._failed: DiskFailed | None = None
        self._outstanding = False
        self._made = -CALM_S  # when a segment was made last
        self._closing = False
        self._wanted = False  # the sync thread waits for a segment
        self._readers: OrderedDict[int, int] = OrderedDict()
        self._holes = True
        self.persisted = 0  # requests
        self.persisted_bytes = 0
        self.sync_us = 0.0  # what a request takes, lately
        self._order: Persist | None = None
        self._bell = Bell()
        self._errands: SimpleQueue[Request | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._keep_syncing, name="regraft-sync", daemon=True),
            threading.Thread(target=self._run_errands, name="regraft-files", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ for the loop

    def perform(self, request: Request) -> None:
        """See to it; what comes of it is reported."""
        if type(request) is Persist:
            if self._outstanding:
                raise RuntimeError("the journal asks for a second sync before the first is done")
            self._outstanding = True
            self._order = request
            self._bell.ring()
        else:
            self._errands.put(request)

    def persist_now(self, request: Persist) -> Persisted | DiskFailed | None:
        """Persist while the caller waits, without the sync thread: for one message at a time.

        None if that would take long: nothing was done then, and `perform` is the way.
        """
        if self._outstanding or any(piece.first != self._first for piece in request.pieces):
            return None
        return self._persist(request)

    def close(self) -> bool:
        """End both threads, after the sync that is under way; whether they ended in time."""
        if not self._closing:
            self._closing = True
            self._bell.ring()
            self._errands.put(None)
        end = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # --------------------------------------------------------------- the sync thread

    def _keep_syncing(self) -> None:
        while True:
            self._bell.wait()
            request, self._order = self._order, None
            if request is None:
                if self._closing:
                    break
                continue
            try:
                event = self._persist(request)
            except Exception:
                log.critical("the sync thread made a mistake", exc_info=True)
                event = self._failed = DiskFailed(
                    "mistake", 0, "the sync thread made a mistake; the log says which"
                )
            self._outstanding = False
            self._report(event)
        self._bell.close()
        if self._file is not None:
            self._file.close()

    def _persist(self, request: Persist) -> Persisted | DiskFailed:
        if self._failed is not None:
            return self._failed
        began = time.perf_counter_ns()
        for first, offset, data in request.pieces:
            # Each is synced before the next is written: no segment begins before the last one ends.
            what = "create"
            try:
                file = self._file
                if file is None or first != self._first:
                    file = self._turn_to(first, request.size)
                what = "write"
                if not file.write(data, offset):
                    what = "sync"
                    file.sync()
            except OSError as error:
                return self._give_up(what, first, error)
            self.persisted_bytes += len(data)
        self.persisted += 1
        self.sync_us += ((time.perf_counter_ns() - began) / 1000 - self.sync_us) / 8
        return Persisted()

    def _turn_to(self, first: int, size: int) -> SegmentFile:
        """Open the segment, made first if need be."""
        self._wanted = True
        try:
            with self._segments.lock:
                for _ in self._segments.making(first, size, self._is_calm(first)):
                    pass
        finally:
            self._wanted = False
        file = SegmentFile(self._segments.path_of(first))
        if self._file is not None:
            self._file.close()
        self._first, self._file = first, file
        return file

    def _is_calm(self, first: int) -> bool:
        """Whether there is time to fill the next segment with zeros; asked when one is made."""
        if self._segments.path_of(first).exists():
            return True
        before, self._made = self._made, time.monotonic()
        return self._made - before >= CALM_S

    def _give_up(self, what: str, first: int, error: OSError) -> DiskFailed:
        failed = self._failure(what, first, error)
        if error.errno not in FULL:
            self._failed = failed
        return failed

    def _failure(self, what: str, first: int, error: OSError) -> DiskFailed:
        reason = (error.strerror or str(error)).lower()
        path = self._segments.path_of(first)
        return DiskFailed(what, error.errno or 0, f"cannot {what} {path}: {reason}")

    # --------------------------------------------------------------- the file thread

    def _run_errands(self) -> None:
        chores: deque[Chore] = deque()
        while True:
            try:
                request = self._errands.get(block=not chores)
            except Empty:
                self._go_on(chores)
                continue
            if request is None:
                break
            if isinstance(request, ReadJournal):
                self._report(self._read(request))
            else:
                chores.append(CHORES[type(request)](self, request))
        for chore in chores:
            chore.close()
        for descriptor in self._readers.values():
            os.close(descriptor)

    def _go_on(self, chores: deque[Chore]) -> None:
        try:
            next(chores[0])
        except StopIteration:
            chores.popleft()
        except Exception:
            log.critical("the file thread made a mistake", exc_info=True)
            chores.popleft()
            self._report(DiskFailed("mistake", 0, "the file thread made a mistake"))

    def _read(self, request: ReadJournal) -> JournalRead:
        try:
            data = read_all(self._reader(request.first), request.size, request.offset)
            return JournalRead(request.ticket, data, "")
        except OSError as error:
            failed = self._failure("read", request.first, error)
            return JournalRead(request.ticket, b"", failed.text)
        except Exception:
            log.critical("the file thread made a mistake", exc_info=True)
            return JournalRead(request.ticket, b"", "the file thread made a mistake")

    def _reader(self, first: int) -> int:
        descriptor = self._readers.get(first)
        if descriptor is None:
            descriptor = os.open(self._segments.path_of(first), os.O_RDONLY | os.O_CLOEXEC)
            self._readers[first] = descriptor
            if len(self._readers) > READERS_MAX:
                os.close(self._readers.popitem(last=False)[1])
        else:
            self._readers.move_to_end(first)
        return descriptor

    def _prepare(self, request: PrepareSegment) -> Chore:
        try:
            with self._segments.lock:
                zeros = self._is_calm(request.first)
                for _ in self._segments.making(request.first, request.size, zeros):
                    if not self._wanted:  # else the sync thread waits: no reads in between
                        yield
        except OSError as error:
            self._report(self._failure("prepare", request.first, error))
        else:
            self._report(SegmentReady(request.first))

    def _remove(self, request: RemoveSegment) -> Chore:
        yield from ()
        if request.first == self._first:
            raise RuntimeError("the journal drops the segment that it writes to")
        descriptor = self._readers.pop(request.first, None)
        if descriptor is not None:
            os.close(descriptor)
        try:
            with self._segments.lock:
                self._segments.remove(request.first)
        except OSError as error:
            self._report(self._failure("remove", request.first, error))

    def _punch(self, request: PunchHole) -> Chore:
        yield from ()
        if not self._holes:
            return
        path = self._segments.path_of(request.first)
        try:
            self._holes = punch_hole(path, request.offset, request.size)
        except OSError as error:
            self._report(self._failure("punch", request.first, error))
        if not self._holes:
            log.info("no space is given back inside of segments: not possible here")


CHORES: dict[type[Request], Callable[[Disk, Any], Chore]] = {
    PrepareSegment: Disk._prepare,
    RemoveSegment: Disk._remove,
    PunchHole: Disk._punch,
}
