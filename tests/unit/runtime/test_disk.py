"""The disk: what is reported is on it, what fails is reported once, and never tried in vain."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from regraft.errors import DiskError
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
from regraft.runtime import disk as disks
from regraft.runtime import segments as files
from regraft.runtime.disk import READERS_MAX, Disk, Reports
from regraft.runtime.segments import Segment, open_segments, segment_name

SIZE = 64 * 1024


def persist(first: int, offset: int, data: bytes) -> Persist:
    return Persist((Piece(first, offset, data),), SIZE)


class Desk:
    """A disk, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reported: SimpleQueue[Event] = SimpleQueue()
        self.disk = Disk(folder, self.reported.put)

    def ask(self, request: Request) -> Event:
        """Its one answer."""
        self.disk.perform(request)
        return self.reported.get(timeout=10)

    def settle(self) -> None:
        """Wait until all that was asked before is done."""
        for _ in range(2):  # reads overtake; what makes a segment does not
            assert self.ask(PrepareSegment(0xFFFF0000, SIZE)) == SegmentReady(0xFFFF0000)

    def silent(self) -> bool:
        try:
            self.reported.get_nowait()
        except Empty:
            return True
        return False

    def path(self, first: int) -> Path:
        return self.folder / segment_name(first)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast segments follow one another here, there is time to fill them with zeros."""
    monkeypatch.setattr(disks, "CALM_S", 0.0)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "data" / "journal")
    yield desk
    assert desk.disk.close()


def failing(number: int, calls: list[int], at: int = 1) -> Callable[[int], None]:
    """A sync that fails at one of its calls."""

    def sync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == at:
            raise OSError(number, os.strerror(number))

    return sync


# ------------------------------------------------------------------------- persisting


def test_what_is_persisted_is_in_the_file(desk: Desk) -> None:
    assert desk.ask(persist(0, 0, b"hello")) == Persisted()
    assert desk.ask(persist(0, 5, b" world")) == Persisted()
    assert desk.ask(persist(SIZE, 8, b"next")) == Persisted()
    assert desk.path(0).read_bytes() == b"hello world" + bytes(SIZE - 11)
    assert desk.path(SIZE).read_bytes()[:16] == bytes(8) + b"next" + bytes(4)
    assert desk.disk.persisted == 3 and desk.disk.persisted_bytes == 15
    assert desk.disk.sync_us > 0
    assert desk.silent()


def test_a_commit_over_two_segments_has_one_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Persist((Piece(0, SIZE - 1, b"x"), Piece(SIZE, 0, b"y")), SIZE)
    calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.ENOSPC, calls))
        failed = desk.ask(both)
        assert isinstance(failed, DiskFailed) and failed[:2] == ("sync", errno.ENOSPC)
        assert desk.names() == [segment_name(0)]  # the second is not begun before the first ends
    assert desk.ask(both) == Persisted() and desk.silent()
    assert desk.path(0).read_bytes()[-1:] + desk.path(SIZE).read_bytes()[:1] == b"xy"


def test_files_are_for_the_owner_only(desk: Desk) -> None:
    desk.ask(persist(0, 0, b"x"))
    assert stat.S_IMODE(desk.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(desk.path(0).stat().st_mode) == 0o600


def test_short_writes_are_completed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.ask(persist(0, 0, b"x"))
    whole = os.pwrite
    sizes: list[int] = []

    def short(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        sizes.append(len(data))
        return whole(descriptor, bytes(data[:7]), offset)

    monkeypatch.setattr(os, "pwrite", short)
    data = bytes(range(100))
    assert desk.ask(persist(0, 3, data)) == Persisted()
    assert desk.path(0).read_bytes()[3:103] == data
    assert sizes == list(range(100, 0, -7))


def test_a_write_that_takes_nothing_is_a_failure(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask(persist(0, 0, b"x"))
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    failed = desk.ask(persist(0, 1, b"yz"))
    assert isinstance(failed, DiskFailed) and failed[:2] == ("write", errno.EIO)


def test_after_a_failed_sync_nothing_is_written_or_synced(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask(persist(0, 0, b"x"))
    calls: list[int] = []
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO, calls))
    failed = desk.ask(persist(0, 1, b"y"))
    assert failed == DiskFailed(
        "sync", errno.EIO, f"cannot sync {desk.path(0)}: input/output error"
    )
    assert len(calls) == 1 and desk.silent()
    assert desk.ask(persist(0, 2, b"z")) == failed
    assert desk.ask(persist(SIZE, 0, b"z")) == failed
    assert desk.disk.persist_now(persist(0, 2, b"z")) == failed
    assert len(calls) == 1
    assert desk.path(0).read_bytes()[2] == 0 and not desk.path(SIZE).exists()
    assert desk.ask(ReadJournal(1, 0, 0, 1)) == JournalRead(1, b"x", "")  # reading goes on


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_full_disk_gets_the_same_bytes_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    desk.ask(persist(0, 0, b"x"))
    call = {"write": "pwrite", "sync": "fdatasync"}[what]
    with monkeypatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, call, full)
        for _ in range(2):
            failed = desk.ask(persist(0, 1, b"yyy"))
            assert isinstance(failed, DiskFailed) and failed[:2] == (what, errno.ENOSPC)
            assert failed.text.endswith("no space left on device")
    assert desk.ask(persist(0, 1, b"yyy")) == Persisted()
    assert desk.path(0).read_bytes()[:4] == b"xyyy"


def test_a_second_sync_before_the_first_is_done_is_a_mistake(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: gate.wait(10))
    desk.disk.perform(persist(0, 0, b"x"))
    with pytest.raises(RuntimeError, match="second sync"):
        desk.disk.perform(persist(0, 1, b"y"))
    assert desk.disk.persist_now(persist(0, 1, b"y")) is None
    gate.set()
    assert desk.reported.get(timeout=10) == Persisted()


def test_persisting_at_once_is_for_the_open_segment_only(desk: Desk) -> None:
    assert desk.disk.persist_now(persist(0, 0, b"x")) is None
    assert not desk.path(0).exists()
    desk.ask(persist(0, 0, b"x"))
    assert desk.disk.persist_now(persist(0, 1, b"y")) == Persisted()
    assert desk.disk.persist_now(persist(SIZE, 0, b"z")) is None
    assert desk.path(0).read_bytes()[:3] == b"xy\0"
    assert desk.silent()


def test_a_mistake_in_the_thread_is_an_answer_too(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    failed = desk.ask(persist(0, 0, "no bytes"))  # type: ignore[arg-type]
    assert isinstance(failed, DiskFailed) and failed.what == "mistake"
    assert "TypeError" in caplog.text
    assert desk.ask(persist(0, 0, b"x")) == failed


# ---------------------------------------------------------------------------- segments


def test_a_segment_is_made_whole_before_it_has_its_name(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    rename, fsync, folder = os.rename, os.fsync, files.sync_folder

    def tell_rename(source: Path, target: Path) -> None:
        story.append(f"rename {source.suffix} {source.stat().st_size} {target.suffix}")
        rename(source, target)

    def tell_sync(descriptor: int) -> None:
        mode = os.fstat(descriptor).st_mode
        story.append("fsync folder" if stat.S_ISDIR(mode) else "fsync file")
        fsync(descriptor)

    assert folder is files.sync_folder
    monkeypatch.setattr(os, "rename", tell_rename)
    monkeypatch.setattr(os, "fsync", tell_sync)
    assert desk.ask(PrepareSegment(0, SIZE)) == SegmentReady(0)
    assert story == ["fsync file", f"rename .tmp {SIZE} .seg", "fsync folder"]
    assert desk.path(0).read_bytes() == bytes(SIZE)
    assert desk.path(0).stat().st_blocks * 512 >= SIZE  # written, not reserved
    assert desk.ask(PrepareSegment(0, SIZE)) == SegmentReady(0)
    assert len(story) == 3


def test_sizes_that_are_no_multiple_of_anything_are_filled(desk: Desk) -> None:
    size = files.SYNC_EVERY + files.FILL_BYTES + 12345
    assert desk.ask(PrepareSegment(0, size)) == SegmentReady(0)
    assert desk.path(0).stat().st_size == size


def test_a_segment_that_cannot_be_made_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        hint = desk.ask(PrepareSegment(0, SIZE))
        assert isinstance(hint, DiskFailed) and hint[:2] == ("prepare", errno.ENOSPC)
        failed = desk.ask(persist(0, 0, b"x"))
        assert isinstance(failed, DiskFailed) and failed[:2] == ("create", errno.ENOSPC)
        assert desk.names() == []
    assert desk.ask(persist(0, 0, b"x")) == Persisted()


def test_a_disk_without_room_for_a_segment_is_not_filled_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask(persist(0, 0, b"x"))
    found = os.statvfs(desk.folder)
    little = [*found[:3], SIZE // found.f_frsize - 1, SIZE // found.f_frsize - 1, *found[5:]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: os.statvfs_result(little))
        patch.setattr(files, "_fill", None)  # nobody may call it
        failed = desk.ask(persist(SIZE, 0, b"x"))
        assert isinstance(failed, DiskFailed) and failed[:2] == ("create", errno.ENOSPC)
        assert desk.ask(persist(0, 1, b"y")) == Persisted()
    assert desk.ask(persist(SIZE, 0, b"x")) == Persisted()


def test_a_folder_whose_sync_failed_gets_no_more_segments(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sick(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", sick)
        hint = desk.ask(PrepareSegment(0, SIZE))
        assert isinstance(hint, DiskFailed) and hint[:2] == ("prepare", errno.EIO)
    assert desk.path(0).exists()  # but is its name durable?
    failed = desk.ask(persist(0, 0, b"x"))
    assert isinstance(failed, DiskFailed) and failed[:2] == ("create", errno.EIO)


def test_dropped_segments_are_used_again_without_zeros(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        desk.ask(persist(number * SIZE, 0, b"%d" % number * SIZE))
    for number in range(4):
        desk.disk.perform(RemoveSegment(number * SIZE))
    desk.disk.perform(RemoveSegment(77 * SIZE))  # is not there
    desk.disk.perform(ReadJournal(1, 0, 0, 1))
    desk.reported.get(timeout=10)
    while len(desk.names()) > 3:
        desk.ask(ReadJournal(1, 4 * SIZE, 0, 1))
    spares = [f"{number * SIZE:016x}.spare" for number in range(2)]
    assert desk.names() == sorted([*spares, segment_name(4 * SIZE)])
    inodes = {(desk.folder / spare).stat().st_ino for spare in spares}

    monkeypatch.setattr(files, "_fill", None)  # nobody may call it
    for number in (5, 6):
        assert desk.ask(PrepareSegment(number * SIZE, SIZE)) == SegmentReady(number * SIZE)
    assert {desk.path(number * SIZE).stat().st_ino for number in (5, 6)} == inodes
    assert desk.ask(persist(5 * SIZE, 0, b"new")) == Persisted()
    assert desk.path(5 * SIZE).read_bytes()[:4] in (b"new0", b"new1")


def test_spares_of_another_size_or_with_holes_are_not_used(tmp_path: Path) -> None:
    (tmp_path / f"{1:016x}.spare").write_bytes(b"x" * 100)
    with open(tmp_path / f"{2:016x}.spare", "wb") as stream:
        stream.truncate(SIZE)
    desk = Desk(tmp_path)
    assert desk.ask(PrepareSegment(0, SIZE)) == SegmentReady(0)
    assert desk.names() == [segment_name(0)]
    assert desk.path(0).read_bytes() == bytes(SIZE)
    assert desk.disk.close()


def test_what_a_crash_left_is_removed_and_spares_are_found(tmp_path: Path) -> None:
    (tmp_path / f"{SIZE:016x}.tmp").write_bytes(b"half")
    (tmp_path / "notes.tmp").write_bytes(b"mine")
    for number in range(4):
        (tmp_path / f"{number:016x}.spare").write_bytes(b"s" * SIZE)
    desk = Desk(tmp_path)
    assert desk.names() == [f"{0:016x}.spare", f"{1:016x}.spare", "notes.tmp"]
    assert desk.ask(persist(SIZE, 0, b"x")) == Persisted()
    assert desk.path(SIZE).read_bytes()[:2] == b"xs"
    assert desk.disk.close()


def test_the_segment_that_is_written_to_is_not_dropped(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ask(persist(0, 0, b"x"))
    failed = desk.ask(RemoveSegment(0))
    assert isinstance(failed, DiskFailed) and failed.what == "mistake"
    assert "drops the segment" in caplog.text and desk.path(0).exists()
    assert desk.ask(persist(0, 1, b"y")) == Persisted()


def test_segments_that_are_filled_fast_are_only_reserved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "CALM_S", 3600.0)
    desk.disk._made = -4000.0 + time.monotonic()
    filled: list[str] = []
    fill = files._fill

    def noted(path: Path, size: int) -> Iterator[None]:
        filled.append(path.name)
        return fill(path, size)

    monkeypatch.setattr(files, "_fill", noted)
    for number in range(3):
        assert desk.ask(persist(number * SIZE, 0, b"x")) == Persisted()
        assert desk.path(number * SIZE).read_bytes() == b"x" + bytes(SIZE - 1)
    assert len(filled) == 1, "the first one was made in peace, the others were not"


def test_reads_are_done_while_a_segment_is_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask(persist(0, 0, b"hello"))
    begun, gate = threading.Event(), threading.Event()

    def slow(path: Path, size: int) -> Iterator[None]:
        path.write_bytes(b"s" * size)
        begun.set()
        while not gate.is_set():
            yield

    monkeypatch.setattr(files, "_fill", slow)
    desk.disk.perform(PrepareSegment(SIZE, SIZE))
    assert begun.wait(10)
    assert desk.ask(ReadJournal(3, 0, 1, 3)) == JournalRead(3, b"ell", "")
    desk.disk.perform(persist(SIZE, 0, b"x"))  # waits until it is there
    gate.set()
    assert {desk.reported.get(timeout=10) for _ in range(2)} == {SegmentReady(SIZE), Persisted()}
    assert desk.path(SIZE).read_bytes()[:2] == b"xs"


def test_a_segment_in_the_making_is_given_up_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    begun = threading.Event()

    def endless(path: Path, size: int) -> Iterator[None]:
        path.write_bytes(b"")
        begun.set()
        while True:
            yield

    monkeypatch.setattr(files, "_fill", endless)
    desk.disk.perform(PrepareSegment(0, SIZE))
    assert begun.wait(10)
    assert desk.disk.close()
    assert desk.names() == [] and desk.silent()


# ------------------------------------------------------------------- reading and holes


def test_reading(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.ask(persist(0, 0, b"0123456789"))
    assert desk.ask(ReadJournal(1, 0, 2, 4)) == JournalRead(1, b"2345", "")
    assert desk.ask(ReadJournal(2, 0, SIZE - 2, 10)) == JournalRead(2, bytes(2), "")
    read = desk.ask(ReadJournal(3, SIZE, 0, 10))
    assert isinstance(read, JournalRead) and read[:2] == (3, b"")
    assert read.error == f"cannot read {desk.path(SIZE)}: no such file or directory"
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda d, size, at: whole(d, min(size, 3), at))
    assert desk.ask(ReadJournal(4, 0, 0, 10)) == JournalRead(4, b"0123456789", "")
    assert desk.ask(ReadJournal(5, 0, SIZE - 2, 10)) == JournalRead(5, bytes(2), "")


def test_many_segments_are_read_with_few_open_files(desk: Desk) -> None:
    for number in range(READERS_MAX + 4):
        desk.ask(PrepareSegment(number * SIZE, SIZE))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(READERS_MAX + 4):
        read = desk.ask(ReadJournal(number, number * SIZE, 0, 1))
        assert read == JournalRead(number, b"\0", "")
    assert len(os.listdir("/proc/self/fd")) == before + READERS_MAX


def test_holes_give_space_back_or_are_ignored(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ask(persist(0, 0, b"x" * SIZE))
    desk.disk.perform(PunchHole(0, 4096, SIZE - 8192))
    desk.settle()
    content = desk.path(0).read_bytes()
    if content[4096] == 0:  # the platform can
        assert content == b"x" * 4096 + bytes(SIZE - 8192) + b"x" * 4096
        assert desk.path(0).stat().st_blocks * 512 < SIZE
    monkeypatch.setattr(files, "_fallocate", None)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            desk.disk.perform(PunchHole(0, 0, 4096))
        desk.settle()
    assert desk.path(0).read_bytes()[:3] == b"xxx"
    assert caplog.text.count("not possible here") <= 1 and desk.silent()


def test_a_hole_in_what_is_not_there_is_a_failure(desk: Desk) -> None:
    failed = desk.ask(PunchHole(0, 0, 10))
    if isinstance(failed, DiskFailed):
        assert failed[:2] == ("punch", errno.ENOENT)


# ---------------------------------------------------------------------------- recovery


def test_segments_are_found_in_order_and_other_files_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [segment_name(first) for first in (0, SIZE, 0xABCDEF, 10 * SIZE)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(b"%d" % number * number)
    others = ["0.seg", "00000000000ABCDE.seg", "000000000000000g.seg", f"{9:016x}.seg~", "notes"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / f"{5:016x}.tmp").touch()
    (tmp_path / f"{6:016x}.spare").touch()
    (tmp_path / "quarantine").mkdir()
    with open_segments(tmp_path) as segments:
        seen = [(first, size, bytes(view)) for first, size, view in segments]
    assert seen == [
        (0, 0, b""),
        (SIZE, 1, b"1"),
        (10 * SIZE, 3, b"333"),
        (0xABCDEF, 2, b"22"),
    ]
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == len(others)
    assert all(any(str(tmp_path / name) in line for line in warned) for name in others)
    assert all((tmp_path / name).exists() for name in others)


def test_the_views_end_with_the_context(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(b"abc")
    with open_segments(tmp_path) as segments:
        (segment,) = segments
        assert isinstance(segment, Segment)
        with pytest.raises(TypeError):
            segment.view[0] = 1  # type: ignore[index]
        kept = memoryview(segment.view)
    assert bytes(kept) == b"abc"  # whoever still looks may do so
    kept.release()
    with open_segments(tmp_path) as segments:
        pass
    with pytest.raises(ValueError, match="closed"):
        segments[0].view[0]
    with open_segments(tmp_path / "nowhere") as segments:
        assert segments == []


def test_what_is_seen_at_the_start_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / segment_name(number)).write_bytes(b"x")
    story: list[str] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda d: story.append(os.readlink(f"/proc/self/fd/{d}")[-5:-4])
    )
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: story.append("drop"))
    with open_segments(tmp_path):
        assert story == ["0", "drop", "1", "drop", "2", "drop"]
    with open_segments(tmp_path, settle=False):
        assert len(story) == 6


def test_a_disk_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / segment_name(7)).write_bytes(b"x")
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO, []))
    with pytest.raises(DiskError, match=r"0007\.seg: input/output error"), open_segments(tmp_path):
        pass


# ----------------------------------------------------------------------------- reports


def test_what_waits_reaches_the_loop_in_one_go() -> None:
    async def main() -> list[list[Event]]:
        loop = asyncio.get_running_loop()
        steps: list[list[Event]] = []
        reports = Reports(loop, steps.append)

        def tell() -> None:
            for number in range(3):
                reports(SegmentReady(number))

        for _ in range(2):
            thread = threading.Thread(target=tell)
            thread.start()
            thread.join()  # the loop cannot have run meanwhile
            before = len(steps)
            while len(steps) == before:
                await asyncio.sleep(0)
        reports.close()
        return steps

    assert asyncio.run(main()) == [[SegmentReady(0), SegmentReady(1), SegmentReady(2)]] * 2


def test_nothing_is_lost_between_threads_and_loop() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []

        def take(events: list[Event]) -> None:
            seen.extend(event.first for event in events if isinstance(event, SegmentReady))

        reports = Reports(loop, take)

        def tell(start: int) -> None:
            for number in range(start, start + 500):
                reports(SegmentReady(number))

        threads = [threading.Thread(target=tell, args=(start,)) for start in (0, 500)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or len(seen) < 1000:
            await asyncio.sleep(0)
        reports.close()
        return seen

    seen = asyncio.run(asyncio.wait_for(main(), 30))
    assert sorted(seen) == list(range(1000))
    for start in (0, 500):
        part = [number for number in seen if start <= number < start + 500]
        assert part == sorted(part)


def test_after_the_end_nothing_is_reported() -> None:
    async def main() -> list[Event]:
        seen: list[Event] = []
        reports = Reports(asyncio.get_running_loop(), seen.extend)
        reports.close()
        reports(Persisted())
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(main()) == []


def test_without_eventfd_it_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd")

    async def main() -> list[Event]:
        done: asyncio.Queue[Event] = asyncio.Queue()

        def take(events: list[Event]) -> None:
            for event in events:
                done.put_nowait(event)

        reports = Reports(asyncio.get_running_loop(), take)
        disk = Disk(tmp_path, reports)
        disk.perform(persist(0, 0, b"x"))
        disk.perform(ReadJournal(1, SIZE, 0, 1))
        events = [await done.get() for _ in range(2)]
        assert disk.close()
        reports.close()
        return events

    events = asyncio.run(asyncio.wait_for(main(), 10))
    assert Persisted() in events


def test_closing_waits_for_the_sync_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    gate, begun = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        begun.set()
        gate.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow)
    desk.disk.perform(persist(0, 0, b"x"))
    assert begun.wait(10)
    monkeypatch.setattr(disks, "CLOSE_S", 0.01)
    assert not desk.disk.close()
    gate.set()
    monkeypatch.setattr(disks, "CLOSE_S", 10.0)
    assert desk.disk.close()
    assert desk.reported.get(timeout=10) == Persisted()
