"""The local socket of a node: for programs of its own machine."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

from regraft.runtime.dialling import shown
from regraft.wire.local import name_to_take

PEER = struct.Struct("3i")  # what the kernel knows of the other end: process, user, group


def listen_locally(host: str, port: int, backlog: int) -> socket.socket | None:
    """The local socket of a node that listens there, if it has one.

    If its name is taken that is an error, as with a port: clients would reach somebody else.
    """
    name = name_to_take(host, port)
    if not name or sys.platform != "linux":
        return None
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def who_dials(sock: socket.socket, address: Any) -> str:
    """Whose connection it is: an address, or of this machine the process, as in "local:4711"."""
    if sock.family != socket.AF_UNIX:
        return shown(address[0], address[1])
    try:
        known = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    except OSError:  # it is gone already
        return "local"
    return f"local:{PEER.unpack(known)[0]}"
