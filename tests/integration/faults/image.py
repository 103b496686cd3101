"""A power cut: a file system in a file, whose backing file is copied while it is in use.

What was synced has reached the backing file, what was not is in the kernel's cache and not in the
copy. The file system writes its own journal only every 300 s, so that nothing is there by luck.

The processes that write are stopped while the copy is made: the copy takes longer than a sync, and
would otherwise hold what was synced meanwhile. A sync that is under way when its process is stopped
is completed; what its process holds in memory is not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults import mounts

OPTIONS = "commit=300,noatime"
MIB = 1024 * 1024


class Image:
    """A mounted file system that can be cut off."""

    def __init__(self, place: Path, file: Path, folder: Path) -> None:
        self.folder = folder
        self._place = place
        self._file = file
        self._cuts = 0

    @contextlib.contextmanager
    def cut(self, *processes: int, then: Callable[[], object] = lambda: None) -> Iterator[Path]:
        """Cut the power: the file system as it is found when it comes back.

        `processes` are stopped for that moment, `then` is called while they are, and they go on.
        """
        self._cuts += 1
        copy = self._place / f"cut{self._cuts}.img"
        try:
            with stopped(*processes):
                then()
                mounts.call("cp", "--sparse=always", str(self._file), str(copy))
            folder = self._place / f"cut{self._cuts}"
            with mounts.mounted(str(copy), folder, "ext4", f"loop,{OPTIONS}"):
                yield folder
        finally:
            copy.unlink(missing_ok=True)


@contextlib.contextmanager
def image(size_mib: int = 64, in_memory: bool = True) -> Iterator[Image]:
    """Make a file system and mount it; nothing is left of it afterwards.

    In memory a sync takes microseconds, on the disk below as long as syncs take there.
    """
    with mounts.workplace(2 * size_mib * MIB if in_memory else 0) as place:
        file = place / "disk.img"
        make(file, size_mib)
        with mounts.mounted(str(file), place / "disk", "ext4", f"loop,{OPTIONS}") as folder:
            yield Image(place, file, folder)


def make(file: Path, size_mib: int) -> None:
    """An empty ext4 file system in a file that takes only the space it uses."""
    file.touch(mode=0o600)
    os.truncate(file, size_mib * MIB)
    eager = "lazy_itable_init=0,lazy_journal_init=0"  # no writing in the background
    mounts.call("mkfs.ext4", "-q", "-F", "-m", "0", "-E", eager, str(file))


@contextlib.contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Stop processes, all of their threads, and let them go on."""
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        for process in processes:
            _await_stop(process)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def _await_stop(process: int) -> None:
    """Until no thread runs any more: one that waits for the disk stops when it has its answer."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        states = set()
        for task in Path(f"/proc/{process}/task").iterdir():
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        if states <= {"T", "t", "Z"}:
            return
        time.sleep(0.001)
    raise TimeoutError(f"process {process} does not stop")


@functools.cache
def missing() -> str:
    """Why there are no power cuts here; nothing if there are."""
    reason = mounts.lacking("mkfs.ext4", "mount", "umount", "cp")
    if not reason:
        try:
            with image(8) as disk, disk.cut():
                pass
        except OSError as error:
            reason = f"no image can be mounted here ({error})"
    return reason
