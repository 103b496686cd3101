"""A disk in memory that fails as disks do.

Every file has two planes. What is written is *live* at once: whoever reads sees it, and it outlives
the process. It is *durable* once it is synced: only that outlives the power. Of what was not synced
a power loss keeps any 512-byte sectors, perhaps of a later write and not of an earlier one. Names
have two planes too, but change in order.

A sync that fails gives up what it should have synced: it stays live, is perhaps durable, and no
later sync makes it so. That is what kernels do.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from random import Random
from typing import Any, NamedTuple, TypeAlias

from regraft.journal.requests import (
    Persist,
    Piece,
    PrepareSegment,
    PunchHole,
    ReadJournal,
    RemoveSegment,
    Request,
)
from regraft.node.event import DiskFailed, Event, JournalRead, Persisted, SegmentReady

SECTOR = 512
SPARES_MAX = 2
FULL = (errno.ENOSPC, errno.EDQUOT)
STEP_NS = (20_000, 200_000)  # between two things that the disk does
SYNC_NS = (150_000, 3_000_000)  # long enough for more to come that the next sync has all at once

Steps: TypeAlias = Generator[int, None, list[Event]]
After: TypeAlias = Callable[[int, Callable[[], None]], None]


class Segment(NamedTuple):
    """A segment as recovery finds it."""

    first: int
    size: int
    view: bytes


class Fault(NamedTuple):
    """Something goes wrong at the Nth write, sync, create, remove or read."""

    what: str
    at: int  # counted from 1
    errno: int  # 0: it is the last thing that the disk ever does
    forever: bool = False
    after: bool = False  # it is done first


class Halt(Exception):
    """The disk does nothing any more."""


class File:
    """The planes of one file."""

    __slots__ = ("durable", "live", "pending")

    def __init__(self, content: bytes | bytearray) -> None:
        self.live = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[tuple[int, bytes]] = []  # not synced, in the order of writing

    def write(self, offset: int, data: bytes) -> None:
        """Change what is live."""
        lacking = offset + len(data) - len(self.live)
        if lacking > 0:
            self.live += bytes(lacking)
            self.durable += bytes(lacking)
        self.live[offset : offset + len(data)] = data
        self.pending.append((offset, data))

    def sync(self) -> None:
        """Make all that is pending durable."""
        for offset, data in self.pending:
            self.durable[offset : offset + len(data)] = data
        self.pending.clear()

    def lose(self, random: Random) -> None:
        """Make any sectors of what is pending durable, and forget the rest."""
        odds = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        image = bytearray(self.durable)
        for offset, data in self.pending:
            image[offset : offset + len(data)] = data
            for at in range(offset - offset % SECTOR, offset + len(data), SECTOR):
                if random.random() < odds:
                    self.durable[at : at + SECTOR] = image[at : at + SECTOR]
        self.pending.clear()

    def copy(self) -> File:
        """Another one like it."""
        other = File(b"")
        other.live[:] = self.live
        other.durable[:] = self.durable
        other.pending = list(self.pending)
        return other


class Disk:
    """The folder of a journal.

    `perform` does what is asked at once, `submit` in virtual time. `counts` says how many writes,
    syncs, ... there were, so that a test can go through all of them with `fail` and `halt`.
    """

    def __init__(self, random: Random, capacity: int | None = None) -> None:
        self.random = random
        self.capacity = capacity  # bytes of all files together
        self.counts = dict.fromkeys(("write", "sync", "create", "remove", "read"), 0)
        self.halted = False
        self.outstanding = False
        self._names: list[dict[str, File]] = [{}]  # durable, ..., live
        self._faults: list[Fault] = []
        self._failed: DiskFailed | None = None
        self._locked = False  # by whoever makes or drops a segment

    # ---------------------------------------------------------------------- requests

    def perform(self, request: Request) -> list[Event]:
        """Do it; what comes of it. Nothing ever comes from a disk that was halted."""
        if self._locked:
            raise RuntimeError("what was submitted before is still under way")
        steps = PERFORM[type(request)](self, request)
        while not self.halted:
            try:
                next(steps)
            except StopIteration as end:
                return list(end.value)
            except Halt:
                break
        return []

    def submit(self, request: Request, after: After, report: Callable[[Event], None]) -> None:
        """Do it in a while: `after(delay_ns, action)` passes the time, `report` takes events."""
        if type(request) is Persist:
            if self.outstanding:
                raise RuntimeError("the journal asks for a second sync before the first is done")
            self.outstanding = True
        steps = PERFORM[type(request)](self, request)

        def go_on() -> None:
            if self.halted:
                return
            try:
                after(next(steps), go_on)
            except Halt:
                return
            except StopIteration as end:
                for event in end.value:
                    report(event)

        after(self._delay(STEP_NS), go_on)

    def _delay(self, bounds: tuple[int, int]) -> int:
        return self.random.randint(*bounds)

    def _persist(self, request: Persist) -> Steps:
        failed = self._failed
        for piece in request.pieces:
            if failed is None:
                failed = yield from self._write_and_sync(piece, request.size)
        self.outstanding = False
        return [Persisted() if failed is None else failed]

    def _write_and_sync(self, piece: Piece, size: int) -> Generator[int, None, DiskFailed | None]:
        first, offset = piece.first, piece.offset
        data = bytes(piece.data)
        if offset + len(data) > size:
            raise ValueError("the journal writes past the end of a segment")
        number = yield from self._make(first, size)
        if number:
            return self._give_up("create", first, number)
        file = self._live[_name(first)]
        number = self._reach("write", lambda: self._write_some(file, offset, data))
        if number:
            self._write_some(file, offset, data)
            return self._give_up("write", first, number)
        file.write(offset, data)
        self._leave("write")
        yield self._delay(SYNC_NS)
        number = self._reach("sync")
        if number:
            file.lose(self.random)
            return self._give_up("sync", first, number)
        file.sync()
        self._leave("sync")
        yield self._delay(STEP_NS)
        return None

    def _write_some(self, file: File, offset: int, data: bytes) -> None:
        file.write(offset, data[: self.random.randint(0, len(data))])

    def _give_up(self, what: str, first: int, number: int) -> DiskFailed:
        failed = _failure(what, first, number)
        if number not in FULL:
            self._failed = failed
        return failed

    def _prepare(self, request: PrepareSegment) -> Steps:
        number = yield from self._make(request.first, request.size)
        if number:
            return [_failure("prepare", request.first, number)]
        return [SegmentReady(request.first)]

    def _make(self, first: int, size: int) -> Generator[int, None, int]:
        """Make a segment unless it is there; an errno."""
        yield from self._wait()
        name = _name(first)
        if name in self._live:
            return 0
        number = self._reach("create")
        if number:
            return number
        names = dict(self._live)
        file = None
        for spare in [name for name in names if name.endswith(".spare")]:
            if file is None:
                file = names.pop(spare)
                if len(file.live) != size:
                    file = None
        if file is None:
            used = sum(len(file.live) for file in names.values())
            if self.capacity is not None and used + size > self.capacity:
                return errno.ENOSPC
            file = File(bytes(size))
        names[name] = file
        yield from self._rename(names)
        self._leave("create")
        return 0

    def _wait(self) -> Generator[int, None, None]:
        while self._locked:
            yield STEP_NS[0]

    def _rename(self, names: dict[str, File]) -> Generator[int, None, None]:
        self._names.append(names)
        self._locked = True
        yield self._delay(STEP_NS)
        self._locked = False
        del self._names[:-1]

    def _remove(self, request: RemoveSegment) -> Steps:
        yield from self._wait()
        name = _name(request.first)
        if name not in self._live:
            return []
        number = self._reach("remove")
        if number:
            return [_failure("remove", request.first, number)]
        names = dict(self._live)
        file = names.pop(name)
        if sum(name.endswith(".spare") for name in names) < SPARES_MAX:
            names[f"{request.first:016x}.spare"] = file
        yield from self._rename(names)
        self._leave("remove")
        return []

    def _read(self, request: ReadJournal) -> Steps:
        number = self._reach("read")
        yield self._delay(STEP_NS)
        file = self._live.get(_name(request.first))
        if file is None:
            number = errno.ENOENT
        if file is None or number:
            text = _failure("read", request.first, number).text
            return [JournalRead(request.ticket, b"", text)]
        data = bytes(file.live[request.offset : request.offset + request.size])
        self._leave("read")
        return [JournalRead(request.ticket, data, "")]

    def _punch(self, request: PunchHole) -> Steps:
        yield from ()
        file = self._live.get(_name(request.first))
        if file is not None:
            file.write(request.offset, bytes(request.size))
        return []

    # ------------------------------------------------------------------------ faults

    def fail(self, what: str, at: int, number: int = errno.EIO, forever: bool = False) -> None:
        """Let the Nth write, sync, create, remove or read from the beginning fail, or all after."""
        self._faults.append(Fault(what, at, number, forever))

    def halt(self, what: str, at: int, after: bool = False) -> None:
        """Stop for good at the Nth write, ..., or just after it, before anybody hears of it.

        What a write has done by then is a part of it.
        """
        self._faults.append(Fault(what, at, 0, after=after))

    def mend(self) -> None:
        """Nothing fails from now on; but what failed stays failed."""
        self._faults.clear()

    def rot(self, first: int, offset: int, bit: int = 0) -> None:
        """Turn one bit over."""
        file = self._live[_name(first)]
        file.live[offset] ^= 1 << bit
        file.durable[offset] ^= 1 << bit

    def _reach(self, what: str, halting: Callable[[], None] | None = None) -> int:
        """Count it; the errno with which it fails."""
        self.counts[what] += 1
        for fault in self._due(what):
            if fault.errno:
                return fault.errno
            if not fault.after:
                if halting is not None:
                    halting()
                self.halted = True
                raise Halt
        return 0

    def _leave(self, what: str) -> None:
        if any(not fault.errno and fault.after for fault in self._due(what)):
            self.halted = True
            raise Halt

    def _due(self, what: str) -> list[Fault]:
        count = self.counts[what]
        return [
            fault
            for fault in self._faults
            if fault.what == what and (count == fault.at or (fault.forever and count > fault.at))
        ]

    # ----------------------------------------------------------------- what is left

    def power_off(self) -> Disk:
        """The power fails: the disk as it is found afterwards, healthy. This one is halted."""
        self.halted = True
        found = Disk(self.random, self.capacity)
        names = self.random.choice(self._names)
        found._names = [{name: file.copy() for name, file in names.items()}]
        for file in found._live.values():
            file.lose(self.random)
            file.live[:] = file.durable
        return found

    def crash(self) -> Disk:
        """The process ends, not the machine: what is live stays so. This one is halted."""
        self.halted = True
        found = Disk(self.random, self.capacity)
        copies = {id(file): file.copy() for names in self._names for file in names.values()}
        found._names = [
            {name: copies[id(file)] for name, file in names.items()} for names in self._names
        ]
        return found

    def open_segments(self, settle: bool = True) -> list[Segment]:
        """What recovery finds, in order. With `settle` it is synced first, and then read back."""
        if settle:
            del self._names[:-1]
            for file in self._live.values():
                file.sync()
                file.live[:] = file.durable
        return [
            Segment(int(name[:16], 16), len(file.live), bytes(file.live))
            for name, file in sorted(self._live.items())
            if name.endswith(".seg")
        ]

    def is_durable(self, content: bytes) -> bool:
        """Whether a segment would hold these bytes if the power failed now, whatever it spared."""
        return all(
            any(content in file.durable for name, file in names.items() if name.endswith(".seg"))
            for names in self._names
        )

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(len(file.live) for file in self._live.values())

    @property
    def _live(self) -> dict[str, File]:
        return self._names[-1]


def _name(first: int) -> str:
    return f"{first:016x}.seg"


def _failure(what: str, first: int, number: int) -> DiskFailed:
    reason = errno.errorcode.get(number, str(number))
    return DiskFailed(what, number, f"cannot {what} {_name(first)}: {reason}")


PERFORM: dict[type[Request], Callable[[Disk, Any], Steps]] = {
    Persist: Disk._persist,
    PrepareSegment: Disk._prepare,
    RemoveSegment: Disk._remove,
    ReadJournal: Disk._read,
    PunchHole: Disk._punch,
}
