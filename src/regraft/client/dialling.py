"""Reaching a node: by its local socket if it is on this machine, otherwise by TCP."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from regraft.client.address import Address
from regraft.client.reading import Wire
from regraft.wire.local import BUFFER_BYTES, local_name

Factory = Callable[[], Wire]
Connector = Callable[[Factory, Address], Awaitable[Any]]


async def dial(factory: Factory, address: Address) -> Any:
    """Connect in the way that is fastest."""
    sock = reach_locally(address)
    if sock is None:
        return await dial_tcp(factory, address)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(factory, sock=sock)
    return transport


async def dial_tcp(factory: Factory, address: Address) -> Any:
    """Connect by TCP, also to this machine."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(factory, address.host, address.port)
    return transport


def reach_locally(address: Address) -> socket.socket | None:
    """A connection to the local socket of a node, if it has one here."""
    name = local_name(address.host, address.port)
    if not name or sys.platform != "linux":
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        sock.setblocking(False)  # it is there at once, or it is not
        sock.connect(name)
    except OSError:
        sock.close()
        return None
    return sock
