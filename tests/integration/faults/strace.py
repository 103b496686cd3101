"""Runs a process whose system calls fail, or kill it, at the Nth: with `strace -e inject`.

strace counts for each thread by itself: the Nth `fdatasync` is the Nth of some thread. The process
is our own child and strace watches from aside (-D), so signals and exit codes are those of the
process. Not with --seccomp-bpf, which is faster, but injects no signals; nor with signal=none,
which hides by what signal a process was killed.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "unlink", "ftruncate")
_LINE = re.compile(r"(\d+) +(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += +(-?\d+|\?)(?: (E[A-Z0-9]+))?(.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_END = re.compile(r"\+\+\+ (.*) \+\+\+")


class Inject(NamedTuple):
    """What happens to some calls of a name: `Inject("fdatasync", "error=EIO", "3")`.

    `action`: error=EIO, signal=KILL, retval=3 (the call is skipped), delay_enter=20000 (us).
    `when`: 3, 3+ (from the third on), 3..5, 2+2 (every second from the second on).
    """

    call: str
    action: str
    when: str = "1+"

    def __str__(self) -> str:
        when = "" if self.when == "1+" else f":when={self.when}"
        return f"inject={self.call}:{self.action}{when}"


class Call(NamedTuple):
    """A system call that was seen."""

    thread: int
    name: str
    arguments: str
    result: int | None  # None: it did not return
    error: str  # EIO, ...
    injected: bool


class Trace(NamedTuple):
    """All that was seen of a process."""

    calls: list[Call]
    end: str  # of its first thread: "exited with 0", "killed by SIGKILL"

    def count(self, name: str) -> int:
        """How often the thread that did it most often did it."""
        seen = [call.thread for call in self.calls if call.name == name]
        return max((seen.count(thread) for thread in set(seen)), default=0)

    @property
    def injected(self) -> list[Call]:
        """What did not happen by itself."""
        return [call for call in self.calls if call.injected]

    @property
    def ended(self) -> list[Call]:
        """What the end of the process cut off: the last call of a thread, whoever ended it."""
        return [call for call in self.calls if call.result is None]


class Traced:
    """A process that runs under strace."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def stdout(self) -> IO[str]:
        """What the process says."""
        assert self.process.stdout is not None
        return self.process.stdout

    def trace(self, timeout_s: float = 60) -> Trace:
        """Wait for the end of the process; what was seen of it."""
        self.process.wait(timeout_s)
        end = time.monotonic() + 5
        while True:
            trace = parse(self._log.read_text(errors="replace"), self.process.pid)
            if trace.end or time.monotonic() > end:  # strace is a little behind
                return trace
            time.sleep(0.005)


@contextlib.contextmanager
def traced(
    command: Sequence[str],
    *injections: Inject,
    calls: Sequence[str] = CALLS,
    only: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Traced]:
    """Start a process with injections; it is killed at the end if it still runs.

    `only` restricts tracing and injections to calls on one path, with an open file or by name.
    """
    with tempfile.TemporaryDirectory(prefix="regraft-strace-") as folder:
        log = Path(folder) / "log"
        log.touch()
        names = sorted({*calls, *(injection.call for injection in injections)})
        options = ["-D", "-f", "-s", "16", "-o", str(log)]
        options += ["-e", f"trace={','.join('?' + name for name in names)}"]
        for injection in injections:
            options += ["-e", str(injection)]
        if only is not None:
            options += ["-P", str(only)]
        options += ["-e", "quiet=attach,personality,thread-execve,superseded"]
        with subprocess.Popen(
            ["strace", *options, *command], stdout=subprocess.PIPE, text=True, env=env
        ) as process:
            try:
                yield Traced(process, log)
            finally:
                process.kill()


def run(
    command: Sequence[str],
    *injections: Inject,
    timeout_s: float = 60,
    calls: Sequence[str] = CALLS,
    only: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str, Trace]:
    """Run a process to its end: exit code (-9 if it was killed), what it said, what was seen."""
    with traced(command, *injections, calls=calls, only=only, env=env) as watched:
        said, _ = watched.process.communicate(timeout=timeout_s)
        trace = watched.trace(timeout_s)
        return watched.process.returncode, said, trace


def parse(text: str, process: int = 0) -> Trace:
    """Read what strace wrote; `process` is the one whose end counts, or the first seen."""
    calls: list[Call] = []
    begun: dict[int, str] = {}
    ends: dict[int, str] = {}
    for line in text.splitlines():
        if not (match := _LINE.fullmatch(line)):
            continue
        thread, rest = int(match[1]), match[2]
        process = process or thread
        if end := _END.fullmatch(rest):
            ends[thread] = end[1]
            if thread in begun:
                calls.append(_call(thread, f"{begun.pop(thread)}) = ?"))
        elif rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>").rstrip()
        elif resumed := _RESUMED.fullmatch(rest):
            calls.append(_call(thread, begun.pop(thread, f"{resumed[1]}(") + resumed[2]))
        elif _CALL.fullmatch(rest):
            calls.append(_call(thread, rest))
    calls += [_call(thread, f"{half}) = ?") for thread, half in begun.items()]
    return Trace(calls, ends.get(process, ""))


def _call(thread: int, text: str) -> Call:
    match = _CALL.fullmatch(text)
    if match is None:
        name, _, rest = text.partition("(")
        return Call(thread, name, rest, None, "", False)
    result = None if match[3] == "?" else int(match[3])
    return Call(thread, match[1], match[2], result, match[4] or "", match[5].endswith("(INJECTED)"))


@functools.cache
def missing() -> str:
    """Why no system call can be made to fail here; nothing if it can."""
    if not sys.platform.startswith("linux"):
        return "strace is for Linux"
    if not shutil.which("strace"):
        return "strace is not installed"
    script = "import os; os.sync()"
    try:
        code, _, trace = run(
            [sys.executable, "-c", script], Inject("sync", "signal=KILL"), calls=["sync"]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"strace cannot be used here ({error})"
    return "" if code == -9 and trace.end == "killed by SIGKILL" else "strace cannot inject here"
