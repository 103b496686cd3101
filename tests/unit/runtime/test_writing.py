"""The segment that is written to: large pieces go past the cache, and the file is the same."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from regraft import kernels
from regraft.kernels.records import BLOCK, Recorder, fits
from regraft.model.message import Message
from regraft.runtime.writing import DIRECT_BYTES_MIN, SegmentFile
from regraft.wire import native

SIZE = 4 * 1024 * 1024
LARGE = DIRECT_BYTES_MIN

pytestmark = pytest.mark.skipif(
    not (kernels.is_compiled() and SegmentFile.possible), reason="all goes through the cache here"
)


def placed(data: bytes, offset: int) -> memoryview:
    """Bytes that lie in memory as they do in the file."""
    room = memoryview(mmap.mmap(-1, len(data) + BLOCK))[offset % BLOCK :][: len(data)]
    room[:] = data
    return room.toreadonly()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(b"\xff" * SIZE)  # what a spare holds
    return path


@pytest.fixture
def file(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentFile]:
    monkeypatch.setattr(SegmentFile, "possible", True)
    file = SegmentFile(path)
    yield file
    file.close()


class Calls(list[tuple[int, int]]):
    """What went past the cache: offset and size."""

    def __init__(self, patch: pytest.MonkeyPatch, error: int = 0, short: int = 0) -> None:
        super().__init__()
        self.error, self.short = error, short
        self._call = os.pwritev
        patch.setattr(os, "pwritev", self._write)

    def _write(self, descriptor: int, parts: Sequence[memoryview], offset: int, flags: int) -> int:
        self.append((offset, sum(map(len, parts))))
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self._call(descriptor, parts[:1] if self.short else parts, offset, flags)


def test_the_file_holds_what_was_written_whichever_way_it_went(
    file: SegmentFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    chance = random.Random(7)
    sizes = [
        LARGE,
        LARGE + 8,
        40,
        4096,
        LARGE * 2,
        LARGE + 3000,
        8,
        8,
        BLOCK * 40,
        LARGE,
        3 * LARGE,
    ]
    written, large = b"", 0
    for size in (*sizes, *(8 * chance.randrange(1, 40_000) for _ in range(8))):
        data = chance.randbytes(size)
        if not file.write(placed(data, len(written)), len(written)):
            file.sync()
        written += data
        large += size >= LARGE
        held = path.read_bytes()
        assert held[: len(written)] == written
        assert len(held) == SIZE and held[len(written) + BLOCK :] == b"\xff" * len(
            held[len(written) + BLOCK :]
        )
    assert len(calls) == large > 6
    assert not any(offset % BLOCK or size % BLOCK for offset, size in calls)


def test_what_lies_elsewhere_in_memory_goes_through_the_cache(
    file: SegmentFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    data = random.Random(8).randbytes(LARGE)
    file.write(placed(data, 8), 16)
    assert not calls and path.read_bytes()[16 : 16 + LARGE] == data


def test_nothing_is_written_behind_the_end_of_the_file(
    file: SegmentFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(path, SIZE - 8)
    other = SegmentFile(path)
    calls = Calls(monkeypatch)
    data = random.Random(9).randbytes(LARGE)
    at = SIZE - 8 - LARGE
    other.write(placed(data, at), at)
    other.close()
    assert not calls and path.stat().st_size == SIZE - 8
    assert path.read_bytes()[at:] == data


def test_what_was_written_in_part_is_completed(
    file: SegmentFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, short=1)
    data = random.Random(10).randbytes(LARGE + 100)
    file.write(b"before", 0)
    file.write(placed(data, 6), 6)
    assert len(calls) == 1 and path.read_bytes()[: 6 + len(data)] == b"before" + data


def test_where_it_is_not_possible_that_is_said_once(
    file: SegmentFile,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = Calls(monkeypatch, error=errno.EINVAL)
    data = random.Random(11).randbytes(LARGE)
    with caplog.at_level(logging.INFO, "regraft.disk"):
        file.write(placed(data, 0), 0)
        file.write(placed(data, LARGE), LARGE)
    assert len(calls) == 1 and len(caplog.records) == 1
    assert path.read_bytes()[: 2 * LARGE] == data + data


def test_any_other_error_is_told(file: SegmentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    Calls(monkeypatch, error=errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        file.write(placed(bytes(LARGE), 0), 0)


def test_what_a_recorder_gives_fits_and_stays_while_somebody_looks() -> None:
    recorder = Recorder(64 * 1024 * 1024)
    recorder.start_payload = b"{}"
    recorder.open(0, 0, 1, 0)
    slot = recorder.add_stream(1, 1)
    kept = []
    for number in range(40):
        one = native.encode(Message("t", b"%5d" % number * 4000))
        for _ in range(10):
            recorder.append_frames(one, 1, 0, [slot], 0)
        ((_, offset, data),) = recorder.take()
        assert len(data) > LARGE and fits(data, offset)
        assert bytes(data).count(b"%5d" % number * 4000) == 10
        if number % 3:
            kept.append((number, data))  # the others' memory is used again
    for number, data in kept:
        assert bytes(data).count(b"%5d" % number * 4000) == 10
