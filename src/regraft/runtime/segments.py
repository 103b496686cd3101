"""The files of a journal: their names, how they are made, kept for later, and looked at.

    0000000004000000.seg    holds the positions from 0x4000000 on
    0000000004000000.spare  was dropped; becomes another segment by a rename
    0000000004000000.tmp    is being made; what a crash leaves of it is removed at the next start
    quarantine/             what a repair set aside

- A segment is made under a temporary name, filled with zeros, synced and renamed, and the folder is
  synced: there is never half of one. Written zeros, not reserved space, because a sync of bytes
  that were written before need not touch the file's own blocks: it takes half as long. Where
  segments are filled faster than zeros are worth it, space is only reserved: many messages share a
  sync then, and every byte is written once instead of twice.
- A spare has its blocks already. What stands in it is of other positions, and passes for nothing.
- Errors are those of the operating system; who calls gives them names.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import mmap
import os
import re
import stat
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from regraft.errors import DiskError

SPARES_MAX = 2
FILL_BYTES = 1024 * 1024  # zeros, in one write
SYNC_EVERY = 4 * 1024 * 1024  # while zeros are written, so that others' syncs need not wait long
PUNCH_KEEPING_SIZE = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_ZEROS = bytes(FILL_BYTES)
_NAME = re.compile(r"([0-9a-f]{16})\.(seg|spare|tmp)")
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTSUP}

log = logging.getLogger("regraft.disk")


class Segment(NamedTuple):
    """A segment as it is found."""

    first: int
    size: int
    view: mmap.mmap | bytes  # bytes only if it is empty


def segment_name(first: int) -> str:
    """The name of the file that holds the positions from here on."""
    return f"{first:016x}.seg"


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it, however little the kernel takes at a time."""
    done = os.pwrite(descriptor, data, offset)
    if done == len(data):
        return
    rest = memoryview(data)
    while len(rest) > done:
        if done <= 0:
            raise OSError(errno.EIO, "nothing was written")
        offset += done
        rest = rest[done:]
        done = os.pwrite(descriptor, rest, offset)


def read_all(descriptor: int, size: int, offset: int) -> bytes:
    """Read so much, or to the end of the file."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def sync_folder(path: Path) -> None:
    """Make names durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(path: Path, firsts: list[int]) -> None:
    """Remove segments for good that recovery did not accept.

    They must not become spares: under the same name, their records would be valid again.
    """
    for first in firsts:
        (path / segment_name(first)).unlink(missing_ok=True)
    if firsts:
        sync_folder(path)


class SegmentFolder:
    """Makes and drops the segments of one folder.

    Two threads use it: whoever makes or drops holds `lock`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._spares: list[Path] = []
        self._unsure: OSError | None = None  # why it is not known which names are durable
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True)
            sync_folder(path.parent)
        for found in sorted(path.iterdir()):
            if name := _NAME.fullmatch(found.name):
                if name[2] == "tmp" or (name[2] == "spare" and len(self._spares) == SPARES_MAX):
                    found.unlink()
                elif name[2] == "spare":
                    self._spares.append(found)
        sync_folder(path)

    def path_of(self, first: int) -> Path:
        """Where a segment is or would be."""
        return self.path / segment_name(first)

    def making(self, first: int, size: int, zeros: bool = True) -> Generator[None, None, None]:
        """Make a segment unless it is there, in steps; without `zeros` space is only reserved."""
        if self._unsure is not None:
            raise self._unsure
        target = self.path_of(first)
        if target.exists():
            return
        source = self._spare(size)
        if source is None:
            _require_room(self.path, size)
            source = target.with_suffix(".tmp")
            try:
                yield from _fill(source, size) if zeros else _reserve(source, size)
            except BaseException:
                with contextlib.suppress(OSError):
                    source.unlink()
                raise
        os.rename(source, target)
        self._sync_names()

    def remove(self, first: int) -> None:
        """Drop a segment, or keep its file as a spare."""
        path = self.path_of(first)
        try:
            found = path.stat()
        except FileNotFoundError:
            return
        if len(self._spares) < SPARES_MAX and _whole(found):
            spare = path.with_suffix(".spare")
            os.rename(path, spare)
            self._spares.append(spare)
        else:
            path.unlink()
        self._sync_names()

    def _spare(self, size: int) -> Path | None:
        while self._spares:
            spare = self._spares.pop()
            with contextlib.suppress(FileNotFoundError):
                found = spare.stat()
                if found.st_size == size and _whole(found):
                    return spare
                spare.unlink()
        return None

    def _sync_names(self) -> None:
        try:
            sync_folder(self.path)
        except OSError as error:
            # A second sync could succeed and yet mean nothing: see `Disk`.
            self._unsure = error
            raise


def _require_room(folder: Path, size: int) -> None:
    """Do not fill up a disk with zeros only to find that they do not fit."""
    found = os.statvfs(folder)
    if found.f_blocks and found.f_bavail * found.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reserve(path: Path, size: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(path: Path, size: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for offset in range(0, size, FILL_BYTES):
            write_all(descriptor, _ZEROS[: size - offset], offset)
            if (offset + FILL_BYTES) % SYNC_EVERY == 0:
                os.fdatasync(descriptor)
            yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole(found: os.stat_result) -> bool:
    """Without holes: all of its blocks are there."""
    return stat.S_ISREG(found.st_mode) and found.st_blocks * 512 >= found.st_size


# ------------------------------------------------------------------------------ holes


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        call = getattr(library, "fallocate64", None) or library.fallocate
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call


_fallocate = _find_fallocate()


def punch_hole(path: Path, offset: int, size: int) -> bool:
    """Give the space of these bytes back; whether this platform can."""
    if _fallocate is None:
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _fallocate(descriptor, PUNCH_KEEPING_SIZE, offset, size) == 0:
            return True
        number = ctypes.get_errno()
    finally:
        os.close(descriptor)
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(path))


# --------------------------------------------------------------------------- recovery


@contextlib.contextmanager
def open_segments(path: Path, settle: bool = True) -> Iterator[list[Segment]]:
    """The segments of a folder, in order, to be read; good until the context ends.

    With `settle` what is seen is what the disk holds. A process that was killed may have left bytes
    in the kernel's cache that no sync has reached, or that a failed sync gave up: a later power cut
    would take them back. So segments are synced, and the cache's idea of them is dropped.
    """
    segments: list[Segment] = []
    try:
        for first, name in _segment_names(path):
            segments.append(_map(path / name, first, settle))
        if settle and segments:
            sync_folder(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DiskError(
            "data-folder-damaged",
            f"cannot read {error.filename or path}: {reason}; see to the disk and start again",
        ) from error
    try:
        yield segments
    finally:
        for segment in segments:
            if isinstance(segment.view, mmap.mmap):
                with contextlib.suppress(BufferError):  # somebody still looks: it ends with them
                    segment.view.close()


def _segment_names(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    if not path.exists():
        return found
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        name = _NAME.fullmatch(entry.name)
        if name and name[2] == "seg" and entry.is_file(follow_symlinks=False):
            found.append((int(name[1], 16), entry.name))
        elif not name and entry.name != "quarantine":
            log.warning("%s is not of the journal; it is left alone", entry.path)
    return found


def _map(path: Path, first: int, settle: bool) -> Segment:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if settle:
            os.fdatasync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.fstat(descriptor).st_size
        if size == 0:
            return Segment(first, 0, b"")
        return Segment(first, size, mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
