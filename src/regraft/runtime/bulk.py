"""The process beside a node: `python -m regraft.runtime.bulk`, started by `runtime/aside.py`.

Each connection that it is given is served by a thread, to its end: a table is read from segments
of the journal and sent as Arrow messages, or frames are received and written to a staged file.
Segments are never changed where they are persisted, and every record is checked; so nothing has to
be agreed upon with the node, which may drop a segment meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from regraft.errors import DiskError, LocalError, PeerError, RegraftError
from regraft.kernels.columns import Table
from regraft.kernels.records import BAD, FOUND, SHORT, ZERO
from regraft.kernels.replay import CLOSED
from regraft.kernels.selection import compile_selector
from regraft.kernels.staged import Inspection
from regraft.model.message import Compression, Message
from regraft.model.selector import Selector
from regraft.model.topics import check_topic
from regraft.runtime.aside import JOB_BYTES_MAX, LENGTH_BYTES
from regraft.runtime.segments import segment_name, sync_folder
from regraft.wire import arrow, bulk, native, peers

# Whoever else wants this processor waits while the system copies: for us, and where Spark is on the
# same machine for its workers, which hand on a whole batch at once. So these are small.
READ_BYTES = 64 << 10  # of a segment, at a time
SEND_BYTES = 64 << 10
ROWS_MAX = 4096  # of a record batch,
BATCH_BYTES = 8 << 20  # and the bytes of its messages
PIECES_MAX = 512  # in one system call
RECEIVE_BYTES = 256 << 10
SILENCE_S = 600.0  # after which one who neither takes nor sends is given up: a slow query may pause
NICENESS = 10  # the node goes first

log = logging.getLogger("regraft.bulk")


def main(arguments: list[str]) -> None:
    """Serve connections until the node is gone."""
    descriptor, journal, staged, connections, inflated = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node says when to end
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    channel = socket.socket(fileno=int(descriptor))
    busy = threading.BoundedSemaphore(int(connections))
    served = Served(Path(journal), Path(staged), int(inflated))
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, JOB_BYTES_MAX, 1)
        if not message or not descriptors:
            os._exit(0)  # whoever is still being served has lost the node
        sock = socket.socket(fileno=descriptors[0])
        sock.setblocking(True)
        sock.settimeout(SILENCE_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        end = LENGTH_BYTES + int.from_bytes(message[:LENGTH_BYTES], "little")
        unsent, job = message[LENGTH_BYTES:end], bulk.decode_job(message[end:])
        if not busy.acquire(blocking=False):
            text = f"{connections} read or stage already (limit bulk_connections)"
            served.refuse(sock, unsent, LocalError("limit-exceeded", text))
            continue

        def serve(sock: socket.socket = sock, unsent: bytes = unsent, job: bulk.Job = job) -> None:
            try:
                served.serve(sock, unsent, job)
            finally:
                busy.release()

        threading.Thread(target=serve, daemon=True).start()


class Served:
    """What connections are served with: two folders."""

    def __init__(self, journal: Path, staged: Path, inflated_max: int) -> None:
        self._journal = journal
        self._staged = staged
        self._inflated_max = inflated_max

    def serve(self, sock: socket.socket, unsent: bytes, job: bulk.Job) -> None:
        """Do one job; whatever goes wrong is told to the client, if it still listens."""
        with sock:
            try:
                if unsent:
                    sock.sendall(unsent)
                if isinstance(job, bulk.ReadJob):
                    self._read(sock, job)
                else:
                    self._stage(sock, job)
            except RegraftError as error:
                with contextlib.suppress(OSError):
                    sock.sendall(native.encode(native.Error.of(error)))
            except OSError as error:
                log.debug("a client is gone: %s", error)

    def refuse(self, sock: socket.socket, unsent: bytes, error: RegraftError) -> None:
        """Do nothing for a client, and say why."""
        with sock, contextlib.suppress(OSError):
            sock.sendall(unsent + native.encode(native.Error.of(error)))

    # ---------------------------------------------------------------------------- reading

    def _read(self, sock: socket.socket, job: bulk.ReadJob) -> None:
        request = job.request
        table = Table(
            job.number,
            bulk.specs(request.columns),
            request.stream.encode(),
            compile_selector(Selector.parse(request.selector)) if request.selector else None,
            min(request.rows or ROWS_MAX, ROWS_MAX),
            BATCH_BYTES,
            self._inflate,
        )
        table.next_sequence, table.since_us = request.start, request.since_us
        sock.sendall(native.encode(peers.Done(job.token, b"{}")))
        rows = 0
        try:
            for _ in self._fill(table, job):
                rows += table.rows
                send_pieces(sock, arrow.record_batch(*table.take()))
                if request.rows and rows >= request.rows:
                    break
        finally:
            sock.sendall(arrow.END)
        scanned = bulk.Scanned(table.next_sequence, table.scanned, rows)
        sock.sendall(native.encode(peers.Done(job.token, bulk.encode(scanned))))

    def _fill(self, table: Table, job: bulk.ReadJob) -> Iterator[None]:
        """Fill the table, and stop each time a batch is full, and when all is read."""
        position, until = job.position, job.request.end
        buffer = bytearray(READ_BYTES)
        while position < job.persisted and table.next_sequence < until:
            first, size, descriptor = self._open(position)
            try:
                segment_end = min(first + size, job.persisted)
                while position < segment_end and table.next_sequence < until:
                    view = memoryview(buffer)[: segment_end - position]
                    got = os.preadv(descriptor, [view], position - first)
                    table.base = position - first
                    os.sched_yield()  # or the node may wait for us until the clock ticks
                    at = 0
                    while at >= 0 and at < got and table.next_sequence < until:
                        at = table.fill(view, at, got, first, until)
                        if table.status != FOUND or at < 0:
                            break
                        if at < got and table.next_sequence < until:
                            yield
                    if at < 0:  # a record that is longer than the buffer
                        if position - 1 - at > segment_end or -1 - at <= got:
                            raise _damaged(position)
                        buffer = bytearray(-1 - at)
                        continue
                    position += at
                    if table.status in (CLOSED, ZERO):
                        if segment_end < first + size:
                            break
                        position = first + size
                    elif table.status == BAD or (table.status == SHORT and at == 0):
                        raise _damaged(position)
                if table.status in (CLOSED, ZERO) and position < first + size:
                    break  # the end of what is persisted
            finally:
                os.close(descriptor)
        if table.rows:
            yield

    def _open(self, position: int) -> tuple[int, int, int]:
        """The segment in which a position lies: its first, its size, and the open file."""
        firsts = [int(path.stem, 16) for path in self._journal.glob("*.seg")]
        first = max((first for first in firsts if first <= position), default=-1)
        try:
            descriptor = os.open(self._journal / segment_name(first), os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise _gone(position) from None
        size = os.fstat(descriptor).st_size
        if position >= first + size:
            os.close(descriptor)
            raise _gone(position)
        return first, size, descriptor

    def _inflate(self, body: bytes) -> bytes | None:
        """A gzip body as it was; None, which is NULL, if it is none or too large."""
        try:
            message = Message("t", body, compression=Compression.GZIP)
            return message.content(self._inflated_max)
        except (PeerError, zlib.error):
            return None

    # ---------------------------------------------------------------------------- staging

    def _stage(self, sock: socket.socket, job: bulk.StageJob) -> None:
        used = sum(path.stat().st_size for path in self._staged.iterdir())
        path = self._staged / job.name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise LocalError("bad-message", f"{job.name} is staged already") from None
        whole = False
        try:
            sock.sendall(native.encode(peers.Done(job.token, b"{}")))
            room = job.folder_bytes - used
            answer = _receive(sock, descriptor, job, room)
            os.fsync(descriptor)
            sync_folder(self._staged)
            whole = True
            sock.sendall(native.encode(peers.Done(job.token, bulk.encode(answer))))
        except OSError as error:
            if error.errno is not None and not isinstance(error, ConnectionError | TimeoutError):
                text = f"cannot write {job.name}: {(error.strerror or '').lower()}"
                raise DiskError("disk-full", text) from error
            raise
        finally:
            os.close(descriptor)
            if not whole:
                path.unlink(missing_ok=True)


def _receive(sock: socket.socket, descriptor: int, job: bulk.StageJob, room: int) -> bulk.Staged:
    """Write what comes to a file, until the client says that it was all."""
    inspection = Inspection(job.frame_bytes, check_topic)
    buffer = bytearray(2 * RECEIVE_BYTES + job.frame_bytes)
    view = memoryview(buffer)
    held = size = 0
    while True:
        os.sched_yield()
        got = sock.recv_into(view[held : held + RECEIVE_BYTES])
        if not got:
            raise ConnectionError("it ended in the middle")
        held += got
        try:
            done = inspection.check(view[:held])
        except ValueError as error:
            raise PeerError("bad-message", f"message {inspection.messages + 1}: {error}") from None
        if size + done > room:
            raise LocalError("limit-exceeded", "too much is staged (limit staged_bytes)")
        at = 0
        while at < done:
            at += os.write(descriptor, view[at:done])
        size += done
        rest = bytes(view[done:held])
        frame = native.read_frame(rest, 0, job.frame_bytes)
        if frame is not None:
            kind, _, payload, _ = frame
            message = native.decode(kind, payload)
            if not isinstance(message, peers.Command) or message.what != bulk.STAGED:
                raise PeerError("protocol-violation", f"{kind.name} is not allowed here")
            return bulk.Staged(inspection.messages, size)
        view[: len(rest)] = rest
        held = len(rest)


def send_pieces(sock: socket.socket, pieces: list[bytes | memoryview]) -> None:
    """Send them all, many in one call."""
    for at in range(0, len(pieces), PIECES_MAX):
        some = [piece for piece in pieces[at : at + PIECES_MAX] if len(piece)]
        total = sum(map(len, some))
        sent = sock.sendmsg(some)
        while sent < total:
            while sent >= len(some[0]):
                sent -= len(some[0])
                total -= len(some[0])
                del some[0]
            some[0] = memoryview(some[0])[sent:]
            total -= sent
            sent = sock.sendmsg(some)


def _gone(position: int) -> LocalError:
    text = f"position {position} of the journal is gone: its retention was shorter than this read"
    return LocalError("position-expired", text)


def _damaged(position: int) -> DiskError:
    text = f"the record at position {position} is damaged, or was dropped while it was read"
    return DiskError("journal-failed", text)


if __name__ == "__main__":
    main(sys.argv[1:])
