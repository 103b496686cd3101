"""A blind byte relay: what the event loop alone can carry.

Every byte of a publisher goes to every subscriber and nobody looks at it. A connection says what
it is with its first byte, `P` or `S`; a subscriber gets its `S` back once it takes part. While
one subscriber is full the publishers are not read, so that nothing piles up.

    python -m bench.relay PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

READ_BYTES = 256 * 1024  # at most, in one read
HIGH_BYTES = 1024 * 1024  # a subscriber with more than this unsent stops the publishers


class Hub:
    """All connections of the relay."""

    def __init__(self) -> None:
        self.publishers: set[asyncio.Transport] = set()
        self.subscribers: set[asyncio.Transport] = set()
        self.full: set[asyncio.Transport] = set()
        self.paused = False

    def balance(self) -> None:
        """Read the publishers exactly while no subscriber is full."""
        if self.paused == bool(self.full):
            return
        self.paused = bool(self.full)
        for publisher in self.publishers:
            if self.paused:
                publisher.pause_reading()
            else:
                publisher.resume_reading()


class Connection(asyncio.BufferedProtocol):
    """One connection, of either sort."""

    def __init__(self, hub: Hub, buffer: bytearray) -> None:
        self.hub = hub
        self.buffer = buffer  # shared by all: it is emptied within the call that filled it
        self.view = memoryview(buffer)
        self.publishes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one, but says not so
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.publishes:
            data = bytes(self.view[:nbytes])
            for subscriber in self.hub.subscribers:
                subscriber.write(data)
            return
        sort = bytes(self.view[:1])
        if sort == b"P":
            self.publishes = True
            self.hub.publishers.add(self.transport)
            if self.hub.paused:
                self.transport.pause_reading()
            if nbytes > 1:
                rest = bytes(self.view[1:nbytes])
                for subscriber in self.hub.subscribers:
                    subscriber.write(rest)
        elif sort == b"S":
            self.hub.subscribers.add(self.transport)
            self.transport.write(b"S")
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        self.hub.full.add(self.transport)
        self.hub.balance()

    def resume_writing(self) -> None:
        self.hub.full.discard(self.transport)
        self.hub.balance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.hub.publishers.discard(self.transport)
        self.hub.subscribers.discard(self.transport)
        self.hub.full.discard(self.transport)
        self.hub.balance()


async def serve(port: int) -> None:
    """Relay until the process is ended."""
    hub = Hub()
    buffer = bytearray(READ_BYTES)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(hub, buffer), "127.0.0.1", port)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
