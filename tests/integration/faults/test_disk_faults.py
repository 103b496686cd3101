"""The disk of a node under faults of the machine: names, spares, syncs that fail."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from faults import image, need, smallfs, strace
from faults.segment_writer import KEPT, RECORD, SMALL, Layout, layout_of, record
from faults.strace import Inject
from faults.witness import witness
from regraft import kernels
from regraft.journal.requests import Persist, Piece
from regraft.node.event import DiskFailed, Event, Persisted
from regraft.runtime.disk import Disk
from regraft.runtime.segments import open_segments, segment_name
from regraft.runtime.writing import SegmentFile

WRITER = str(Path(__file__).parent / "segment_writer.py")
PAST_CACHE = "pwritev2"  # the call of large pieces


def mode_with(call: str) -> str:
    """How to have a call made; where nothing goes past the cache there is no such call."""
    if call != PAST_CACHE:
        return "whole"
    possible = kernels.is_compiled() and SegmentFile.possible
    need("" if possible else "large pieces do not go past the cache here")
    return "large"


def lost(folder: Path, last: int, layout: Layout = SMALL) -> int:
    """How many of the records up to the last one that was acknowledged are not there."""
    with open_segments(folder) as segments:
        found = {segment.first: bytes(segment.view) for segment in segments}
    per_segment = layout.segment // RECORD
    oldest = max(0, last // per_segment - KEPT + 1)  # nobody dropped it
    missing = 0
    for number in range(oldest * per_segment, last + 1):
        first = number * RECORD // layout.segment * layout.segment
        at = number * RECORD - first
        missing += found.get(first, b"")[at : at + RECORD] != record(number)
    return missing


def lost_in_cuts(mode: str, cuts: int) -> Iterator[int]:
    with image.image(16) as disk:
        command = [sys.executable, WRITER, str(disk.folder / "journal"), mode]
        with witness(command) as writer:
            for _ in range(cuts):
                writer.wait_for(40)
                with disk.cut(writer.pid, then=writer.note) as folder:
                    last = int(writer.known[-1])
                    yield lost(folder / "journal", last, layout_of(mode))


@pytest.mark.parametrize("mode", ["whole", "large", "reserved"])
def test_power_cuts_take_nothing_of_what_was_persisted(mode: str) -> None:
    need(image.missing())
    assert list(lost_in_cuts(mode, 12)) == [0] * 12


@pytest.mark.parametrize("mistake", ["nameless", "hasty"])
def test_power_cuts_show_what_was_not_synced(mistake: str) -> None:
    need(image.missing())
    if mistake == "hasty":
        mode_with(PAST_CACHE)
    assert any(lost_in_cuts(mistake, 60)), "a power cut hides what it should show"


@pytest.mark.parametrize("ordinal", [1, 12, 30])
@pytest.mark.parametrize("name", ["fdatasync", "pwrite64", "rename", "fsync", PAST_CACHE])
def test_a_process_that_dies_anywhere_has_what_it_acknowledged(
    tmp_path: Path, name: str, ordinal: int
) -> None:
    need(strace.missing())
    folder = tmp_path / "journal"
    mode = mode_with(name)
    code, said, trace = strace.run(
        [sys.executable, WRITER, str(folder), mode], Inject(name, "signal=KILL", str(ordinal))
    )
    assert code == -signal.SIGKILL and trace.end == "killed by SIGKILL"
    numbers = [int(line) for line in said.split()]
    assert not numbers or lost(folder, numbers[-1], layout_of(mode)) == 0


@pytest.mark.parametrize("ordinal", [1, 12])
@pytest.mark.parametrize(
    ("name", "what", "error"),
    [
        ("fdatasync", "sync", "EIO"),
        ("pwrite64", "write", "EIO"),
        ("pwrite64", "write", "ENOSPC"),
        (PAST_CACHE, "write", "EIO"),
        (PAST_CACHE, "write", "ENOSPC"),
    ],
)
def test_a_call_that_fails_anywhere_is_reported_and_nothing_acknowledged_after_it(
    tmp_path: Path, name: str, what: str, error: str, ordinal: int
) -> None:
    need(strace.missing())
    folder = tmp_path / "journal"
    mode = mode_with(name)
    code, said, trace = strace.run(
        [sys.executable, WRITER, str(folder), mode], Inject(name, f"error={error}", str(ordinal))
    )
    *numbers, failed = said.splitlines()
    number = getattr(errno, error)
    # A segment is made with such calls as well, by one thread or the other.
    assert failed in [f"failed {kind} {number}" for kind in (what, "create", "prepare")]
    assert code == 1 and error in {call.error for call in trace.injected}
    assert not numbers or lost(folder, int(numbers[-1]), layout_of(mode)) == 0


def test_a_disk_without_room_for_what_it_took_fails_at_the_sync() -> None:
    """What the disk and the start of a node are built for, seen on a real kernel."""
    need(smallfs.missing(), image.missing())
    size = 1024 * 1024
    reported: SimpleQueue[Event] = SimpleQueue()
    with smallfs.thin(64, 16) as small:
        folder = small.folder / "journal"
        folder.mkdir()
        path = folder / segment_name(0)
        with open(path, "wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)
            os.fsync(stream.fileno())
        disk = Disk(folder, reported.put)
        request = Persist((Piece(0, 0, b"never" * 100_000),), size)
        small.fill()
        disk.perform(request)
        failed = reported.get(timeout=10)
        assert isinstance(failed, DiskFailed) and failed.what == "sync"
        with open(path, "r+b") as stream:
            assert stream.read(5) == b"never"  # the cache believes in it,
            os.fdatasync(stream.fileno())  # and a second sync finds nothing wrong;
        small.free()
        with open_segments(folder) as segments:
            assert bytes(segments[0].view)[:5] != b"never"  # the disk knows better
        if failed.errno == errno.ENOSPC:  # the same bytes, once more
            disk.perform(request)
            assert reported.get(timeout=10) == Persisted()
            with open_segments(folder) as segments:
                assert bytes(segments[0].view)[:500_000] == b"never" * 100_000
        assert disk.close()
