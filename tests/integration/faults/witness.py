"""A process that says on its output what it has acknowledged, one thing to the line."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

QUIET_S = 0.02


class Witness:
    """Such a process, and the lines that it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.known: list[str] = []  # at the last `note`
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def wait_for(self, count: int, timeout_s: float = 30) -> None:
        """Until it has said so many more lines."""
        enough = len(self.lines) + count
        end = time.monotonic() + timeout_s
        while len(self.lines) < enough:
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError(f"{len(self.lines)} lines, the last: {self.lines[-1:]}")
            time.sleep(0.002)

    def note(self) -> None:
        """Note what it has said before this moment. It has to be stopped, for lines still come."""
        seen = -1
        while seen != len(self.lines):
            seen = len(self.lines)
            time.sleep(QUIET_S)
        self.known = list(self.lines)

    def end(self) -> None:
        """Kill it, and hear it out."""
        self.process.kill()
        self._thread.join()


@contextlib.contextmanager
def witness(command: Sequence[str]) -> Iterator[Witness]:
    """Start such a process; it is killed at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        running = Witness(process)
        try:
            yield running
        finally:
            running.end()
