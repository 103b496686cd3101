"""The process beside a node: started when it is needed, and given connections to serve.

It reads the journal's segments and writes staged files, so that the node's own loop has nothing to
do with many bytes. A connection is passed on as a file descriptor. The process ends with the node,
because the socket between them does; if it ends before, the next connection starts another.

Staged files that were committed are read by a thread in the node: a little at a time.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from regraft.limits import Limits
from regraft.node.effect import CheckStaged, ReadStaged, RemoveStaged, SweepStaged
from regraft.node.event import Event, StagedRead
from regraft.runtime.segments import read_all

LENGTH_BYTES = 4  # in front of a job: how much of what follows the client gets first
JOB_BYTES_MAX = 256 * 1024

log = logging.getLogger("regraft.node")

Errand: TypeAlias = CheckStaged | ReadStaged | RemoveStaged | SweepStaged


class Aside:
    """A node's hold on the process beside it, and on the staged files."""

    def __init__(
        self, journal: Path, staged: Path, limits: Limits, report: Callable[[Event], None]
    ) -> None:
        self._journal = journal
        self._staged = staged
        self._limits = limits
        self._report = report
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errands: SimpleQueue[Errand | None] = SimpleQueue()
        staged.mkdir(mode=0o700, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="regraft-staged", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------- the process

    def hand_over(self, sock: socket.socket, job: bytes, unsent: bytes) -> None:
        """Have a connection served to its end. If that cannot be, it is closed."""
        message = len(unsent).to_bytes(LENGTH_BYTES, "little") + unsent + job
        try:
            if len(message) > JOB_BYTES_MAX:
                raise OSError("the job is too large")
            try:
                self._send(message, sock)
            except (BrokenPipeError, ConnectionError):
                self._end_process()
                self._send(message, sock)
        except OSError as error:
            log.error("a connection could not be handed over: %s", error)
        finally:
            sock.close()

    def _send(self, message: bytes, sock: socket.socket) -> None:
        if self._channel is None:
            self._start()
        assert self._channel is not None
        socket.send_fds(self._channel, [message], [sock.fileno()])

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * JOB_BYTES_MAX)
        arguments = [
            *(sys.executable, "-m", "regraft.runtime.bulk", str(theirs.fileno())),
            *(str(self._journal), str(self._staged), str(self._limits.bulk_connections)),
            str(self._limits.inflated_bytes),
        ]
        with theirs:
            self._process = subprocess.Popen(
                arguments, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._channel = ours
        log.info("tables are served by process %d", self._process.pid)

    def _end_process(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    # -------------------------------------------------------------------- the files

    def perform(self, errand: Errand) -> None:
        """See to it; what comes of it is reported."""
        self._errands.put(errand)

    def close(self) -> None:
        """End the process and the thread."""
        self._end_process()
        self._errands.put(None)
        self._thread.join(10.0)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                self._do(errand)
            except OSError as error:
                if isinstance(errand, CheckStaged | ReadStaged):
                    text = f"cannot read {error.filename}: {(error.strerror or '').lower()}"
                    self._report(StagedRead(errand.ticket, b"", text))
                else:
                    log.warning("staged files stay where they are: %s", error)

    def _do(self, errand: Errand) -> None:
        if isinstance(errand, CheckStaged):
            for name, size in errand.files:
                found = os.stat(self._staged / name).st_size
                if found != size:
                    text = f"{name} has {found} bytes, not {size}"
                    self._report(StagedRead(errand.ticket, b"", text))
                    return
            self._report(StagedRead(errand.ticket, b"", ""))
        elif isinstance(errand, ReadStaged):
            path = self._staged / errand.name
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = read_all(descriptor, errand.size, errand.offset)
            finally:
                os.close(descriptor)
            self._report(StagedRead(errand.ticket, data, ""))
        elif isinstance(errand, RemoveStaged):
            for name in errand.names:
                (self._staged / name).unlink(missing_ok=True)
        else:
            self._sweep(errand)

    def _sweep(self, errand: SweepStaged) -> None:
        keep = set(errand.keep)
        for path in self._staged.iterdir():
            old = path.stat().st_mtime_ns // 1000 < errand.before_us
            if old and path.name not in keep:
                log.warning("%s was never committed; it is removed", path.name)
                path.unlink(missing_ok=True)
