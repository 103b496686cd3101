"""The segment that is written to.

Small pieces go through the kernel's cache, where those who read behind find them. Large ones go
past it: copying them into memory that the cache first has to find costs more than all else that the
sync thread does, and who is close behind reads from the journal's own memory.

    file     ... | block | block | block | block | ...       blocks of 4096 bytes
    data            #####################                     lies in memory as it does in the file,
    written       =====|===============|=====                 but whole blocks are written

A piece begins where the last one ended, seldom where a block does. The first block is written again
with what it held; behind the end of the last one nothing is yet, so it is filled up with zeros. A
write that goes past the cache needs a sync as any other; Linux does both in one call, after which
the thread has to wait for its turn in the interpreter once, not twice.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from pathlib import Path

from regraft.kernels.records import BLOCK, fits
from regraft.runtime.segments import write_all

DIRECT_BYTES_MIN = 128 * 1024
O_DIRECT = getattr(os, "O_DIRECT", 0)
AND_SYNC = getattr(os, "RWF_DSYNC", 0)
IMPOSSIBLE = {errno.EINVAL, errno.EOPNOTSUPP}
NOTHING = (-1, b"")

log = logging.getLogger("regraft.disk")


class SegmentFile:
    """One segment, open to be written."""

    possible = bool(O_DIRECT) and hasattr(os, "pwritev")  # to go past the cache; learnt once

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.fstat(self._file).st_size
        self._direct = -1
        self._blocks: mmap.mmap | None = None  # the first and the last one of a large piece
        self._last = NOTHING  # where the last block written past the cache is, and what it holds

    def write(self, data: bytes | memoryview, offset: int) -> bool:
        """Write all of it; whether it is safe already, or will be after a sync."""
        if len(data) >= DIRECT_BYTES_MIN and self._write_past_cache(data, offset):
            return bool(AND_SYNC)
        self._last = NOTHING  # the cache knows better now
        write_all(self._file, data, offset)
        return False

    def sync(self) -> None:
        """Make safe what was written."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)
        if self._direct >= 0:
            os.close(self._direct)

    def _write_past_cache(self, data: bytes | memoryview, offset: int) -> bool:
        """Whether it was written; if not, or not all of it, the cache is the way."""
        end = offset + len(data)
        whole = end % BLOCK == 0 or end - end % BLOCK + BLOCK <= self._size
        if not (SegmentFile.possible and whole and fits(data, offset)):
            return False
        parts, start = self._parts(memoryview(data), offset, end)
        try:
            if self._direct < 0:
                self._direct = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | O_DIRECT)
            done = os.pwritev(self._direct, parts, start, AND_SYNC)
        except OSError as error:
            if error.errno not in IMPOSSIBLE:
                raise
            SegmentFile.possible = False
            log.info("large pieces go through the kernel's cache: nothing else is possible here")
            return False
        self._last = end - end % BLOCK, bytes(data[len(data) - end % BLOCK :])
        return done == sum(map(len, parts))

    def _parts(self, data: memoryview, offset: int, end: int) -> tuple[list[memoryview], int]:
        """The blocks of a piece, and where they begin."""
        if self._blocks is None:
            self._blocks = mmap.mmap(-1, 2 * BLOCK)
        before, behind = offset % BLOCK, end % BLOCK
        cut = BLOCK - before if before else 0
        blocks = memoryview(self._blocks)
        parts = [data[cut : len(data) - behind]]
        if before:
            blocks[:before] = self._held(offset - before, before)
            blocks[before:BLOCK] = data[:cut]
            parts.insert(0, blocks[:BLOCK])
        if behind:
            blocks[BLOCK : BLOCK + behind] = data[len(data) - behind :]
            blocks[BLOCK + behind :] = bytes(BLOCK - behind)
            parts.append(blocks[BLOCK:])
        return parts, offset - before

    def _held(self, start: int, size: int) -> bytes:
        """What was written before at the beginning of a block."""
        if self._last[0] == start and len(self._last[1]) == size:
            return self._last[1]
        held = os.pread(self._file, size, start)
        if len(held) != size:
            raise OSError(errno.EIO, "the file is shorter than it was")
        return held
