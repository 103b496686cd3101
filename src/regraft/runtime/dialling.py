"""Reaching other nodes: connections that this node opens, and datagrams.

Names are looked up by threads of the event loop; a connection that does not come about in time is a
failure like any other. A datagram whose address is not known yet is dropped while it is looked up:
that is what datagrams are for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

CONNECT_S = 3.0
DATAGRAM_BYTES = 2048
DATAGRAMS_MAX = 64  # before others get their turn
NAMES_MAX = 1024  # that are remembered
NAMES_S = 60.0  # and how long

log = logging.getLogger("regraft.node")

Sockaddr = tuple[Any, ...]


def split(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def shown(host: str, port: int) -> str:
    """An address as people write it, and as `split` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Dialling:
    """Opens connections; each ends with `done` or `failed`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[int, socket.socket, str], None],
        failed: Callable[[int, str], None],
    ) -> None:
        self._loop = loop
        self._done = done
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, ticket: int, address: str) -> None:
        """Begin to connect."""
        task = self._loop.create_task(self._connect(ticket, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, ticket: int, address: str) -> None:
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                host, port = split(address)
                found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, sockaddr = found[0]
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                await self._loop.sock_connect(sock, sockaddr)
        except (OSError, ValueError, OverflowError, UnicodeError, TimeoutError) as error:
            if sock is not None:
                sock.close()
            reason = str(error) or f"no answer within {CONNECT_S:g} s"
            self._failed(ticket, reason)
            return
        except asyncio.CancelledError:
            if sock is not None:
                sock.close()
            raise
        self._done(ticket, sock, address)

    def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()


class Datagrams:
    """The datagram socket of a node, at the address where it listens."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        arrived: Callable[[str, bytes], None],
    ) -> None:
        self._loop = loop
        self._arrived = arrived
        self._known: dict[str, tuple[float, Sockaddr | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        family, _, _, _, sockaddr = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        self._family = family
        self._sock = socket.socket(family, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        try:
            self._sock.bind(sockaddr)
        except OSError:
            self._sock.close()
            raise
        loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(DATAGRAMS_MAX):
            try:
                data, sender = self._sock.recvfrom(DATAGRAM_BYTES)
            except OSError:  # nothing there, or the echo of one that nobody took
                return
            self._arrived(shown(sender[0], sender[1]), data)

    def send(self, address: str, data: bytes) -> None:
        """Send it, if the address is known."""
        now = self._loop.time()
        since, sockaddr = self._known.get(address, (-NAMES_S, None))
        if now - since >= NAMES_S:
            self._look_up(address, now, sockaddr)
        if sockaddr is not None:
            try:
                self._sock.sendto(data, sockaddr)
            except OSError as error:
                log.debug("no datagram to %s: %s", address, error)

    def _look_up(self, address: str, now: float, sockaddr: Sockaddr | None) -> None:
        if len(self._known) >= NAMES_MAX:
            self._known.clear()
        self._known[address] = now, sockaddr  # not again meanwhile
        task = self._loop.create_task(self._resolve(address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(self, address: str) -> None:
        # A socket for both kinds of addresses reaches those of the old kind by a form of their own.
        mapped = socket.AI_V4MAPPED if self._family == socket.AF_INET6 else 0
        try:
            host, port = split(address)
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_DGRAM, family=self._family, flags=mapped
            )
        except (OSError, ValueError, OverflowError, UnicodeError) as error:
            log.debug("%s cannot be found: %s", address, error)
            return
        self._known[address] = self._loop.time(), found[0][4]

    def close(self) -> None:
        """Let it go."""
        for task in self._tasks:
            task.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
