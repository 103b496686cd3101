"""A connection to a node for tables and batches: blocking, one request at a time.

Spark calls sources and sinks from plain threads, and each of their connections is handed over by
the node for one read or one part of a batch. So this is no client that reconnects: what fails is
told, and Spark tries again.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa

from regraft import __version__
from regraft.client.address import resolve
from regraft.errors import DiskError, LocalError, RegraftError, WorldError
from regraft.wire import bulk, native, peers

CONNECT_S = 10.0
SILENCE_S = 60.0
COMMIT_S = 600.0  # a large batch is published, or much is read in vain, while one waits
FRAME_BYTES_MAX = 64 << 20

Answer = TypeVar("Answer")


class Link:
    """An open connection."""

    def __init__(self, target: str | None, timeout: float = SILENCE_S) -> None:
        self._sock = _connect(target)
        self._sock.settimeout(timeout)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = cast(io.BufferedReader, self._sock.makefile("rb", 1 << 20))
        self._token = 0
        try:
            hello = native.Hello(1, 1, agent=f"regraft-pipeline/{__version__}", passive=True)
            self._sock.sendall(native.PREFACE + native.encode(hello))
            self.welcome: native.Welcome = self._expect(native.Welcome)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._sock.close()

    @property
    def journal(self) -> str:
        """The id of the node's journal."""
        return self.welcome.journal.hex()

    # ------------------------------------------------------------------------------ frames

    def _frame(self) -> Any:
        try:
            header = self._file.read(native.HEADER_BYTES)
            if len(header) < native.HEADER_BYTES:
                raise WorldError("connection-lost", "the node ended the connection")
            rest = self._file.read(int.from_bytes(header[:4], "little") + 4 - len(header))
            frame = native.read_frame(header + rest, 0, FRAME_BYTES_MAX)
        except TimeoutError:
            raise WorldError("timed-out", "the node does not answer") from None
        except OSError as error:
            raise WorldError("connection-lost", f"the node is gone: {error}") from None
        if frame is None:
            raise WorldError("connection-lost", "the node ended the connection")
        return native.decode(frame[0], frame[2])

    def _expect(self, kind: type[Answer]) -> Answer:
        """The next frame of this kind; signs of life are passed over, and errors raised."""
        while True:
            message = self._frame()
            if isinstance(message, kind):
                return message
            if isinstance(message, native.Error):
                raise message.exception()
            if not isinstance(message, native.Heartbeat | native.Credit):
                name = type(message).__name__
                raise WorldError("connection-lost", f"the node says {name}, which was not expected")

    def _command(self, what: str, request: Any, kind: type[Answer]) -> Answer:
        self._token += 1
        command = peers.Command(self._token, what, bulk.encode(request))
        try:
            self._sock.sendall(native.encode(command))
        except OSError as error:
            raise WorldError("connection-lost", f"the node is gone: {error}") from None
        done = self._expect(peers.Done)
        return msgspec.json.decode(done.json, type=kind)

    # ---------------------------------------------------------------------------- requests

    def streams(self) -> bulk.StreamRows:
        """The streams of the node, and how far they go."""
        return self._command("streams", bulk.Streams(), bulk.StreamRows)

    def read(self, request: bulk.Read, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read a table; `scanned` says how far, once it is read. The link is of no use then."""
        self._command("read", request, dict)
        self._sock.settimeout(COMMIT_S)
        try:
            while True:
                message = pa.ipc.read_message(self._file)
                yield pa.ipc.read_record_batch(message, schema)
        except EOFError:  # `arrow.END`, or the connection is gone; the next frame tells
            pass
        except TimeoutError:
            raise WorldError("timed-out", "the node sends no more") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise WorldError("connection-lost", f"the node is gone: {error}") from None
        done = self._expect(peers.Done)
        self.scanned = msgspec.json.decode(done.json, type=bulk.Scanned)

    def stage(self, request: bulk.Stage) -> None:
        """Begin to stage the messages of one part."""
        self._command("stage", request, dict)

    def send(self, frames: bytes) -> None:
        """Stage some."""
        try:
            self._sock.sendall(frames)
        except OSError as error:
            self._tell_why(error)

    def staged(self) -> bulk.Staged:
        """All of them were sent: how many are safe. The link is of no use then."""
        self._sock.settimeout(COMMIT_S)
        return self._command(bulk.STAGED, {}, bulk.Staged)

    def _tell_why(self, error: OSError) -> None:
        """The node has ended the connection; perhaps it said why."""
        try:
            self._expect(peers.Done)
        except RegraftError as told:
            raise told from error
        raise WorldError("connection-lost", f"the node is gone: {error}") from error

    def commit(self, request: bulk.Parts) -> bulk.Committed:
        """Publish a batch, once."""
        self._sock.settimeout(COMMIT_S)
        return self._command("commit", request, bulk.Committed)

    def abort(self, request: bulk.Parts) -> None:
        """Drop what was staged."""
        self._command("abort", request, bulk.Committed)


def _connect(target: str | None) -> socket.socket:
    failures = []
    for address in resolve(target):
        try:
            return socket.create_connection(address, timeout=CONNECT_S)
        except OSError as error:
            failures.append(f"{address}: {(error.strerror or str(error)).lower()}")
    raise WorldError(
        "unreachable",
        f"no node answers ({'; '.join(failures)}); start one with `regraft serve`, or say where it "
        "is with option url",
    )


def is_lost(error: RegraftError) -> bool:
    """Whether data is not there any more, as opposed to a node that does not answer."""
    return isinstance(error, LocalError | DiskError) and error.code.name == "position-expired"
