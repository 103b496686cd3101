"""File systems that get full, and one that promises more than it has."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from faults import image, mounts

FILLER = "filler"
CHUNK = 64 * 1024


class Small:
    """A mounted file system of a size that can be used up."""

    def __init__(self, folder: Path, filling: Path) -> None:
        self.folder = folder
        self._filler = filling / FILLER

    def fill(self, leave: int = 0) -> int:
        """Use up all space but so many bytes; how much that was."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        size = CHUNK
        try:
            while size:
                try:
                    os.write(descriptor, bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
            used = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, max(0, used - leave))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return max(0, used - leave)

    def free(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def memory(size_kib: int) -> Iterator[Small]:
    """A tmpfs: quick, and ENOSPC is exact; but its syncs mean nothing."""
    with (
        mounts.workplace() as place,
        mounts.mounted("tmpfs", place / "small", "tmpfs", f"size={size_kib}k") as folder,
    ):
        yield Small(folder, folder)


@contextlib.contextmanager
def disk(size_mib: int) -> Iterator[Small]:
    """An ext4 file system of this size."""
    with image.image(size_mib) as whole:
        yield Small(whole.folder, whole.folder)


@contextlib.contextmanager
def thin(size_mib: int, real_mib: int) -> Iterator[Small]:
    """An ext4 file system that lies on less space than it believes to have.

    Once `fill` has used that up, writes succeed and their syncs fail: so it can be seen what a
    kernel really does then.
    """
    with (
        mounts.workplace() as place,
        mounts.mounted("tmpfs", place / "below", "tmpfs", f"size={real_mib}m") as below,
    ):
        file = below / "disk.img"
        image.make(file, size_mib)
        options = f"loop,{image.OPTIONS},errors=continue"
        with mounts.mounted(str(file), place / "disk", "ext4", options) as folder:
            small = Small(folder, below)
            try:
                yield small
            finally:
                small.free()


@functools.cache
def missing() -> str:
    """Why there are no small file systems here; nothing if there are."""
    reason = mounts.lacking("mount", "umount")
    if not reason:
        try:
            with memory(64):
                pass
        except OSError as error:
            reason = f"no file system can be mounted here ({error})"
    return reason
