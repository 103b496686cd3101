"""A tiny writer with a group commit, to test the faults with: `writer.py FILE late|early COUNT`.

Numbers are lines of the file; what is acknowledged is a line of the output: `late`, once it is
synced, or `early`, as soon as it is taken. The latter is the mistake that a power cut has to show.
It needs nothing but Python.
"""

import os
import sys
import threading
import time

PAUSE_S = 0.0002
GATHER_S = 0.003  # so that something is always taken and not yet synced


class Writer:
    """Writes and syncs all that has come since the last time."""

    def __init__(self, path: str, early: bool) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        os.fsync(self.file)
        os.fsync(folder)
        os.close(folder)
        self.early = early
        self.end = False
        self.waiting: list[int] = []

    def take(self, number: int) -> None:
        """One more line."""
        if self.early:
            print(number, flush=True)
        self.waiting.append(number)

    def work(self) -> None:
        """The thread that syncs."""
        offset = 0
        while not self.end or self.waiting:
            time.sleep(GATHER_S)
            batch, self.waiting = self.waiting, []
            if not batch:
                continue
            data = "".join(f"{number}\n" for number in batch).encode()
            try:
                while data:
                    done = os.pwrite(self.file, data, offset)
                    offset += done
                    data = data[done:]
                os.fdatasync(self.file)
            except OSError as error:
                print(f"failed {error.errno}", flush=True)
                os._exit(1)
            if not self.early:
                print("".join(f"{number}\n" for number in batch), end="", flush=True)


def main() -> None:
    """Write numbers, fast."""
    path, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    writer = Writer(path, mode == "early")
    thread = threading.Thread(target=writer.work)
    thread.start()
    for number in range(count):
        writer.take(number)
        time.sleep(PAUSE_S)
    writer.end = True
    thread.join()


if __name__ == "__main__":
    main()
