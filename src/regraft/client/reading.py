"""What a client reads from its connections: all of an event loop read into one buffer.

An event loop asks for room, reads, and says how much it was, in one go and for one connection at a
time; what was read is dealt with in that call, and nobody keeps a part of it. So there are no bytes
objects of some hundred KiB that are made for every read, whose memory the system takes back and
clears again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from regraft.client.link import Link
    from regraft.client.upkeep import Upkeep

READ_BYTES = 256 << 10  # at once, at most

VIEWS: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


def view_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    """The buffer of this loop, which runs in one thread at a time."""
    view = VIEWS.get(loop)
    if view is None:
        view = VIEWS[loop] = memoryview(bytearray(READ_BYTES))
    return view


class Wire(asyncio.BufferedProtocol):
    """Hands what happens to a socket to the client, with the link it belongs to."""

    def __init__(self, client: Upkeep, link: Link, view: memoryview) -> None:
        self._client = client
        self.link = link
        self._view = view

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._client._received(self.link, self._view[:nbytes])

    def data_received(self, data: bytes) -> None:
        """The same, from connections that are not sockets and have bytes already."""
        self._client._received(self.link, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client._lost(self.link, exc)

    def pause_writing(self) -> None:
        self._client._set_writable(self.link, False)

    def resume_writing(self) -> None:
        self._client._set_writable(self.link, True)
