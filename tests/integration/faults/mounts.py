"""Mounts that end with the test: also after a failure, and those of runs that were killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "regraft-fault-"
MEMORY = Path("/dev/shm")
_OWNED = re.compile(rf"{PREFIX}(\d+)-")


def lacking(*tools: str) -> str:
    """Why nothing can be mounted here, as far as can be seen without trying."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root can mount file systems"
    absent = [tool for tool in tools if not find(tool)]
    return f"{', '.join(absent)} is not installed" if absent else ""


def find(tool: str) -> str:
    """The path of a program of the system, or nothing."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return shutil.which(tool, path=path) or ""


def call(tool: str, *arguments: str) -> None:
    """Run a program of the system; it has to succeed."""
    done = subprocess.run([find(tool), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise OSError(f"{tool} {arguments[-1]}: {said.splitlines()[0]}")


@contextlib.contextmanager
def workplace(memory_bytes: int = 0) -> Iterator[Path]:
    """A folder of our own; in memory if there is room for so much, twice."""
    sweep()
    base = None
    if memory_bytes and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * memory_bytes:
        base = MEMORY
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def mounted(source: str, folder: Path, kind: str, options: str) -> Iterator[Path]:
    """Mount it, for a while."""
    folder.mkdir(exist_ok=True)
    call("mount", "-t", kind, "-o", options, source, str(folder))
    try:
        yield folder
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount, also if somebody still has a file open there."""
    for _ in range(20):
        try:
            call("umount", str(folder))
            return
        except OSError:
            time.sleep(0.05)
    call("umount", "-l", str(folder))


def sweep() -> None:
    """Clean up after processes that had no time to do so."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        folder = line.split()[1]
        if _abandoned(folder):
            with contextlib.suppress(OSError):
                unmount(Path(folder))
    for base in {MEMORY, Path(tempfile.gettempdir())}:
        for path in base.glob(f"{PREFIX}*"):
            if _abandoned(str(path)):
                shutil.rmtree(path, ignore_errors=True)


def _abandoned(path: str) -> bool:
    owner = _OWNED.search(path)
    return owner is not None and not Path(f"/proc/{owner[1]}").exists()
