"""Local sockets: how programs reach a node of their own machine, beside its port.

What goes through a local socket takes a fraction of what TCP takes to the same machine, and whoever
waits for it is woken sooner. It has a name instead of a file, which Linux alone knows: it is there
exactly as long as its node runs, and in the same network namespace as the port it is named after.
"""

from __future__ import annotations

HERE = ("127.0.0.1", "localhost")  # as clients call this machine
BUFFER_BYTES = 1 << 20  # on their way, each way; TCP finds out by itself how much is good
EVERYWHERE = "0.0.0.0"  # where a node listens that is here, too


def local_name(host: str, port: int) -> str:
    """The name of the local socket of the node at an address; none if that may be elsewhere."""
    return f"\0regraft/127.0.0.1:{port}" if host in HERE else ""


def name_to_take(host: str, port: int) -> str:
    """The name that a node takes which listens there; none if nobody would look for it."""
    return local_name(HERE[0] if host == EVERYWHERE else host, port)
