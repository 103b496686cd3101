"""Performs a node's effects on real sockets, and feeds what the world did back as events.

Sockets are read and written directly, without streams or transports in between: one buffer is read
into for all connections, and a write goes to the kernel from where its bytes are. Only what the
kernel does not take at once is copied.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from regraft.errors import LocalError, WorldError
from regraft.journal.requests import (
    Persist,
    PrepareSegment,
    PunchHole,
    ReadJournal,
    RemoveSegment,
    Request,
)
from regraft.kernels.spinning import Spin
from regraft.node.effect import (
    CheckStaged,
    Close,
    Connect,
    Effect,
    HandOver,
    Hold,
    Note,
    ReadStaged,
    Refuse,
    RemoveStaged,
    SendDatagram,
    Stopped,
    SweepStaged,
    WakeAt,
    Write,
)
from regraft.node.event import (
    Closed,
    Connected,
    ConnectFailed,
    Datagram,
    Event,
    Now,
    Opened,
    Received,
    Stop,
    Tick,
    Unsent,
)
from regraft.node.node import Node
from regraft.runtime.aside import Aside, Errand
from regraft.runtime.clock import Clock
from regraft.runtime.dialling import Datagrams, Dialling
from regraft.runtime.disk import Disk
from regraft.runtime.local import listen_locally, who_dials
from regraft.wire.local import BUFFER_BYTES

READ_BYTES = 256 * 1024
PIECES_MAX = 512  # in one system call; the kernel takes 1024
ACCEPTS_MAX = 64  # before others get their turn
QUIET_READS = 2  # since the last sync: somebody publishes one message at a time,
QUIET_BYTES = 4096  # and not a large one;
QUIET_PEERS = 2  # of the last few reads all are from so few connections that nobody else waits
LAST_READS = 8
CALM_TURNS = 2  # of the loop, in which nothing was read, before what can wait is done;
LATE_TURNS = 8  # or so many turns in any case
LINGER_S = 2.0  # for a peer to read our last words

log = logging.getLogger("regraft.node")


class Peer:
    """One connected socket."""

    __slots__ = ("closing", "key", "reading", "sock", "unsent", "unsent_size")

    def __init__(self, key: int, sock: socket.socket) -> None:
        self.key = key
        self.sock = sock
        self.unsent: deque[bytes | memoryview] = deque()
        self.unsent_size = 0
        self.reading = False
        self.closing = ""  # the reason, once it is to be closed after what is unsent


class Driver:
    """The second half of a node: the one that touches the world."""

    def __init__(
        self, node: Node, clock: Clock, loop: asyncio.AbstractEventLoop, spin_us: int = 0
    ) -> None:
        self._node = node
        self._spin = Spin(loop.call_soon, spin_us, time.monotonic_ns, os.sched_yield)
        self._reads_then = -QUIET_READS - 1  # when something was last persisted
        self._readers: deque[int] = deque(maxlen=LAST_READS)  # keys
        self._clock = clock
        self._loop = loop
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._peers: dict[int, Peer] = {}
        self._last_key = 0
        self._listeners: list[socket.socket] = []
        self._lingering: set[socket.socket] = set()
        self._answered = False  # somebody, by this step, who publishes one message at a time
        self._timer: asyncio.Handle | None = None
        self._patience = 0  # turns of the loop that a tick may still wait
        self.disk: Disk | None = None  # of a node with a journal
        self.aside: Aside | None = None  # the same
        self._dialling = Dialling(loop, self._connected, self._connect_failed)
        self._datagrams: Datagrams | None = None
        self.stopped = asyncio.Event()
        self.failed = False

    # ------------------------------------------------------------------- listening

    def listen(self, host: str, port: int, backlog: int = 1024) -> tuple[str, int]:
        """Accept connections at this address; the one that it became."""
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise LocalError("bad-configuration", f"cannot listen on {host!r}: {error}") from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(backlog)
            listener.setblocking(False)
            bound_host, bound_port = listener.getsockname()[:2]
            local = listen_locally(bound_host, bound_port, backlog)
        except OSError as error:
            listener.close()
            advice = (
                "; is another node running? Choose another port with -p"
                if error.errno == errno.EADDRINUSE
                else ""
            )
            reason = error.strerror or str(error)
            raise WorldError(
                "unreachable", f"cannot listen on {host}:{port}: {reason}{advice}"
            ) from None
        for one in filter(None, (listener, local)):
            self._listeners.append(one)
            self._loop.add_reader(one.fileno(), self._accept, one)
        return bound_host, bound_port

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listener, error)
                return
            peer = self._take(sock)
            self._step([Opened(peer.key, who_dials(sock, address))])

    def _take(self, sock: socket.socket) -> Peer:
        """A connection is there."""
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._last_key += 1
        peer = Peer(self._last_key, sock)
        self._peers[peer.key] = peer
        self._read_from(peer, True)
        return peer

    def take_datagrams(self, host: str, port: int) -> None:
        """Exchange datagrams at this address."""
        try:
            self._datagrams = Datagrams(self._loop, host, port, self._datagram)
        except OSError as error:
            log.warning("no datagrams at %s:%d (%s): beacons go over links", host, port, error)

    def _datagram(self, address: str, data: bytes) -> None:
        self._step([Datagram(address, data)])

    def _connected(self, ticket: int, sock: socket.socket, address: str) -> None:
        peer = self._take(sock)
        self._step([Connected(peer.key, ticket, address)])

    def _connect_failed(self, ticket: int, reason: str) -> None:
        self._step([ConnectFailed(ticket, reason)])

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        """Out of file descriptors or memory: trying again at once would only spin."""
        log.error("cannot accept connections for a moment: %s", error)
        self._loop.remove_reader(listener.fileno())

        def resume() -> None:
            if listener in self._listeners:
                self._loop.add_reader(listener.fileno(), self._accept, listener)

        self._loop.call_later(0.5, resume)

    # --------------------------------------------------------------------- stepping

    def begin(self) -> None:
        """Do what the node wants done before anything has happened."""
        self._step([Tick()])

    def stop(self, reason: str) -> None:
        """Ask the node to end."""
        self._step([Stop(reason)])

    def report(self, events: Sequence[Event]) -> None:
        """Something happened elsewhere: on the disk."""
        self._step(events)

    def _step(self, events: Sequence[Event]) -> None:
        """Step the node and perform what it wants, until nothing more comes of it at once."""
        if self.failed:
            return
        try:
            self._perform(events)
        except Exception:
            # A mistake in the node: what it knows may be half changed. It must not go on.
            log.critical("the node made a mistake and is stopped", exc_info=True)
            self.failed = True
            self.stopped.set()

    def _perform(self, events: Sequence[Event]) -> None:
        now = self._clock.now()
        while events:
            answers: list[Event] = []
            for effect in self._node.step(events, now):
                if type(effect) is Write:  # by far the most frequent
                    self._write(effect, answers)
                else:
                    PERFORM[type(effect)](self, effect, answers)
            events = answers
        self._answered = False

    def _readable(self, peer: Peer) -> None:
        try:
            size = peer.sock.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(peer, error.strerror or str(error))
            return
        if size == 0:
            self._lost(peer, "closed by the other end")
            return
        self._readers.append(peer.key)
        self._step([Received(peer.key, self._buffer[:size])])
        self._spin.read()

    def _lost(self, peer: Peer, reason: str) -> None:
        self._forget(peer)
        peer.sock.close()
        self._step([Closed(peer.key, reason)])

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.key, None)
        self._loop.remove_reader(peer.sock.fileno())
        if peer.unsent:
            self._loop.remove_writer(peer.sock.fileno())

    # ------------------------------------------------------------------- performing

    def _write(self, effect: Write, answers: list[Event]) -> None:
        peer = self._peers.get(effect.connection)
        if peer is None or peer.closing:
            return
        pieces = effect.pieces
        if peer.unsent:
            self._keep(peer, pieces, 0)
            answers.append(Unsent(peer.key, peer.unsent_size))
            return
        if len(pieces) > PIECES_MAX:
            pieces = [b"".join(pieces)]
        try:
            sent = peer.sock.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._forget(peer)
            peer.sock.close()
            answers.append(Closed(peer.key, error.strerror or str(error)))
            return
        if sent < sum(map(len, pieces)):
            self._keep(peer, pieces, sent)
            self._loop.add_writer(peer.sock.fileno(), self._writable, peer)
            answers.append(Unsent(peer.key, peer.unsent_size))
        elif effect.report:
            answers.append(Unsent(peer.key, 0))

    def _keep(self, peer: Peer, pieces: Sequence[bytes | memoryview], sent: int) -> None:
        """Keep what the kernel did not take: a copy, unless its bytes cannot change anyway."""
        for piece in pieces:
            rest = memoryview(piece)[sent:]
            sent -= min(sent, len(piece))
            if len(rest):
                peer.unsent.append(rest if type(rest.obj) is bytes else bytes(rest))
                peer.unsent_size += len(rest)

    def _writable(self, peer: Peer) -> None:
        pieces = list(peer.unsent)[:PIECES_MAX]
        try:
            sent = peer.sock.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(peer, error.strerror or str(error))
            return
        peer.unsent_size -= sent
        while sent:
            head = peer.unsent[0]
            if sent < len(head):
                peer.unsent[0] = memoryview(head)[sent:]
                break
            sent -= len(head)
            peer.unsent.popleft()
        if not peer.unsent:
            self._loop.remove_writer(peer.sock.fileno())
            if peer.closing:
                self._finish(peer)
                self._step([Closed(peer.key, peer.closing)])
                return
        self._step([Unsent(peer.key, peer.unsent_size)])

    def _close(self, effect: Close, answers: list[Event]) -> None:
        peer = self._peers.get(effect.connection)
        if peer is None or peer.closing:
            return
        if peer.unsent and effect.flush:
            peer.closing = effect.reason
            self._read_from(peer, False)
            self._loop.call_later(LINGER_S, self._abandon, peer)
            return
        self._finish(peer)
        answers.append(Closed(peer.key, effect.reason))

    def _abandon(self, peer: Peer) -> None:
        if self._peers.get(peer.key) is peer:
            self._lost(peer, peer.closing)

    def _finish(self, peer: Peer) -> None:
        """Say that no more comes, and let the other end read to the end before it is cut off.

        A socket that is closed with unread bytes in it resets the connection, and the peer may
        never see the error that explains it.
        """
        self._forget(peer)
        sock = peer.sock
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        self._lingering.add(sock)
        self._loop.add_reader(sock.fileno(), self._linger, sock)
        self._loop.call_later(LINGER_S, self._end_linger, sock)

    def _linger(self, sock: socket.socket) -> None:
        try:
            if sock.recv_into(self._buffer) > 0:
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._end_linger(sock)

    def _end_linger(self, sock: socket.socket) -> None:
        if sock in self._lingering:
            self._lingering.discard(sock)
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _hold(self, effect: Hold, answers: list[Event]) -> None:
        peer = self._peers.get(effect.connection)
        if peer is not None and not peer.closing:
            self._read_from(peer, not effect.held)

    def _read_from(self, peer: Peer, reading: bool) -> None:
        if reading and not peer.reading:
            self._loop.add_reader(peer.sock.fileno(), self._readable, peer)
        elif peer.reading and not reading:
            self._loop.remove_reader(peer.sock.fileno())
        peer.reading = reading

    def _wake_at(self, effect: WakeAt, answers: list[Event]) -> None:
        # The loop counts in milliseconds, and the nearest may be too early: again and again.
        delay_ms = max(0, -((self._now().ns - effect.ns) // 1_000_000))
        patient = self._answered and delay_ms == 0
        if patient and self._patience:
            return  # it is on its way
        if self._timer is not None:
            self._timer.cancel()
        if patient:
            self._patience = LATE_TURNS
            self._timer = self._loop.call_soon(self._tick_when_calm, -1, 0)
        else:
            self._patience = 0
            self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick_when_calm(self, reads: int, calm: int) -> None:
        """Tick, unless who was just answered publishes again: that step does what this would.

        Where it shares a processor with the node, it would have to wait for this.
        """
        self._patience -= 1
        calm = calm + 1 if reads == self._spin.reads else 0
        if calm < CALM_TURNS and self._patience:
            self._timer = self._loop.call_soon(self._tick_when_calm, self._spin.reads, calm)
        else:
            self._tick()

    def _now(self) -> Now:
        return self._clock.now()

    def _tick(self) -> None:
        self._timer = None
        self._patience = 0
        self._step([Tick()])

    def _note(self, effect: Note, answers: list[Event]) -> None:
        log.log(logging.getLevelNamesMapping()[effect.level.upper()], "%s", effect.text)

    def _refuse(self, effect: Refuse, answers: list[Event]) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _persist(self, effect: Persist, answers: list[Event]) -> None:
        """Have it persisted: by the sync thread, or here if nobody else would have to wait.

        Waking that thread, and being woken by it, takes half as long again as a sync. While the
        node gets one message at a time, all that it would do meanwhile is wait.
        """
        assert self.disk is not None, "a node without a journal wants something written"
        quiet = (
            self._spin.reads - self._reads_then <= QUIET_READS
            and len(set(self._readers)) <= QUIET_PEERS
            and sum(len(piece.data) for piece in effect.pieces) <= QUIET_BYTES
        )
        self._reads_then = self._spin.reads
        if quiet:
            event = self.disk.persist_now(effect)
            if event is not None:
                self._answered = True
                answers.append(event)
                return
        self.disk.perform(effect)

    def _journal(self, effect: Request, answers: list[Event]) -> None:
        assert self.disk is not None, "a node without a journal wants something done"
        self.disk.perform(effect)

    def _connect(self, effect: Connect, answers: list[Event]) -> None:
        self._dialling.connect(effect.ticket, effect.address)

    def _send_datagram(self, effect: SendDatagram, answers: list[Event]) -> None:
        if self._datagrams is not None:
            self._datagrams.send(effect.address, effect.data)

    def _hand_over(self, effect: HandOver, answers: list[Event]) -> None:
        assert self.aside is not None, "there is nobody to hand connections to"
        peer = self._peers.get(effect.connection)
        if peer is None or peer.closing:
            return
        self._forget(peer)
        self.aside.hand_over(peer.sock, effect.job, b"".join(peer.unsent))
        answers.append(Closed(peer.key, "handed over"))

    def _staged(self, effect: Errand, answers: list[Event]) -> None:
        assert self.aside is not None, "nothing is staged here"
        self.aside.perform(effect)

    def _stopped(self, effect: Stopped, answers: list[Event]) -> None:
        self.stopped.set()

    def shut(self) -> None:
        """Close whatever is still open."""
        self._refuse(Refuse(), [])
        self._dialling.close()
        if self._datagrams is not None:
            self._datagrams.close()
        if self._timer is not None:
            self._timer.cancel()
        for peer in list(self._peers.values()):
            self._forget(peer)
            peer.sock.close()
        for sock in list(self._lingering):
            self._end_linger(sock)


Perform = Callable[[Driver, Any, list[Event]], None]

PERFORM: dict[type[Effect], Perform] = {
    Close: Driver._close,
    Hold: Driver._hold,
    WakeAt: Driver._wake_at,
    Note: Driver._note,
    Persist: Driver._persist,
    PrepareSegment: Driver._journal,
    RemoveSegment: Driver._journal,
    ReadJournal: Driver._journal,
    PunchHole: Driver._journal,
    Connect: Driver._connect,
    SendDatagram: Driver._send_datagram,
    HandOver: Driver._hand_over,
    CheckStaged: Driver._staged,
    ReadStaged: Driver._staged,
    RemoveStaged: Driver._staged,
    SweepStaged: Driver._staged,
    Refuse: Driver._refuse,
    Stopped: Driver._stopped,
}
