"""What the journal's benchmark knows of Regraft: how to publish to a node's journal, and read it.

The raw generator sends frames that were encoded before. Each has a sequence of its own, as those of
a real client have; all frames of a pool are of one size. A pool is sent once under one client id,
because a node takes a sequence that it knows for a repetition.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.dialects import BLOCK_BYTES, LostError, RegraftChannel, connect
from bench.durable import Place, Tally, make_bodies, timed
from bench.durable_servers import Started, started
from bench.peers import run
from bench.servers import REGRAFT, Server, free_ports
from regraft.kernels.envelope import fields_of
from regraft.model.message import DeliveryMode, Message, Value, encode_envelope
from regraft.wire import native

TOPIC = "bench/journal"
STREAM = "bench"
CONFIG = f'[[streams]]\nname = "{STREAM}"\ntopic = "bench/#"\n'
FIRST_SEQUENCE = 1 << 21  # from here on sequences have four bytes, up to 2 ** 28
RECORD_BYTES = 48 + 12  # of a record that are not messages: header, and one stream
READ_BYTES = 256 * 1024
COUNT, TAKERS, KNOWN = 2, 3, 4  # fields of CONFIRMED
TASKS = 16  # batches that one Python client has in flight
SINGLES = 4000  # messages, when it publishes one in a call


def node(folder: Path, config: str = CONFIG, source: Path | None = None) -> Started:
    """A node with this configuration; of another checkout, if one is given."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "regraft.toml"
    file.write_text(config)
    line = [sys.executable, "-m", "regraft", "serve", "-p", str(port), "-c", str(file)]
    env = {"PYTHONPATH": str(source / "src")} if source else {}
    return started(REGRAFT, [*line, "--data", str(folder / "data")], port, folder, env)


# ------------------------------------------------------------------------------- frames


@dataclass(frozen=True)
class Pool:
    """Encoded messages of one size, one behind the other, each with a sequence of its own."""

    data: bytes
    size: int
    count: int


def make_pool(count: int, variants: tuple[Mapping[str, Value], ...] = ({},)) -> Pool:
    """Persistent messages; bodies and attributes in turn."""
    messages = [
        Message(TOPIC, body, variants[number % len(variants)])
        for number, body in enumerate(make_bodies())
    ]
    return pool_of(count, messages)


def pool_of(count: int, messages: Sequence[Message]) -> Pool:
    """These in turn, persistent; all must be of one size."""
    ends = [around_sequence(message) for message in messages]
    kind, frame = native.Kind.MESSAGE, native.frame
    data = bytearray()
    for first in range(0, count, len(ends)):
        data += b"".join(
            frame(kind, before + four(number) + after)
            for number, (before, after) in enumerate(ends[: count - first], first)
        )
    return Pool(bytes(data), len(data) // count, count)


def four(number: int) -> bytes:
    """The sequence of a message of a pool, as a varint of four bytes."""
    value = FIRST_SEQUENCE + number
    return bytes(
        (value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21 & 127)
    )


def around_sequence(message: Message) -> tuple[bytes, bytes]:
    """The envelope of a persistent message, before and after its sequence."""
    marked = replace(message, sequence=FIRST_SEQUENCE, delivery_mode=DeliveryMode.PERSISTENT)
    envelope = encode_envelope(marked)
    before, after = envelope.split(b"\x58" + four(0))
    return before + b"\x58", after


# ------------------------------------------------------------------------- raw generator


class Publisher(RegraftChannel):
    """A connection that publishes to the journal and follows what is confirmed."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(connect(port), 1)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.confirmed = self.confirmations = 0
        hello = native.Hello(1, 1, client_id=client_id, agent="bench", passive=True)
        self.sock.sendall(native.PREFACE + native.encode(hello))
        while native.Welcome not in self.seen:
            self.read()

    def take_payload(self, kind: int, payload: bytes) -> None:
        if kind == native.Kind.CONFIRMED:
            fields = {number: value for number, _, value in fields_of(payload) or ()}
            if KNOWN in fields or TAKERS not in fields:
                raise LostError(f"a message was not kept: {native.decode(kind, payload)}")
            self.confirmed += fields[COUNT]
            self.confirmations += 1
        else:
            super().take_payload(kind, payload)

    def read(self, flags: int = 0) -> None:
        """Wait for something, and take it; without a new buffer for each call."""
        size = self.sock.recv_into(self.buffer, 0, flags)
        if not size:
            raise LostError("the node ended the connection")
        data = self.buffer[:size]
        self.take(memoryview(self.tail + data) if self.tail else data)

    def look(self) -> None:
        """Take what has come, if anything has."""
        with contextlib.suppress(BlockingIOError):
            self.read(socket.MSG_DONTWAIT)


def client_id() -> str:
    return f"bench-{os.urandom(8).hex()}"


def raw_many(pool: Pool) -> Any:
    """As much as credit allows, until it is enough or the pool has been sent."""
    block = max(1, BLOCK_BYTES // pool.size)
    view = memoryview(pool.data)

    def many(place: Place, tally: Tally) -> None:
        publisher = Publisher(place.port, client_id())
        sent = 0
        while not tally.done and sent < pool.count:
            count = publisher.allowed(min(block, pool.count - sent), pool.size)
            publisher.sock.sendall(view[sent * pool.size : (sent + count) * pool.size])
            sent += count
            publisher.look()
            tally.note(publisher.confirmed, publisher.confirmations)
        while publisher.confirmed < sent:
            publisher.read()
            tally.note(publisher.confirmed, publisher.confirmations)
        tally.finish()
        tally.check(sent, publisher.confirmed)

    return many


def raw_one(pool: Pool) -> Any:
    """One message, its confirmation, the next."""

    def one(place: Place, count: int) -> list[int]:
        publisher = Publisher(place.port, client_id())
        sent = 0

        def call() -> None:
            nonlocal sent
            publisher.allowed(1, pool.size)
            publisher.sock.send(pool.data[sent * pool.size : (sent + 1) * pool.size])
            sent += 1
            while publisher.confirmed < sent:
                publisher.read()

        return timed(call, count)

    return one


# ------------------------------------------------------------------------ Python client


def client_many(single: bool) -> Any:
    """One client; several tasks, each of which waits for its own confirmation."""

    def many(place: Place, tally: Tally) -> None:
        async def main() -> None:
            import regraft

            bodies = make_bodies()
            sent = confirmed = 0

            async def work() -> None:
                nonlocal sent, confirmed
                while not tally.done:
                    if single:
                        body = bodies[sent % len(bodies)]
                        sent += 1
                        await client.publish(TOPIC, body, persistent=True, confirm=True)
                        confirmed += 1
                    else:
                        sent += len(bodies)
                        count = await client.publish_many(
                            TOPIC, bodies, persistent=True, confirm=True
                        )
                        confirmed += count
                    tally.note(confirmed)

            async with await regraft.connect(f"127.0.0.1:{place.port}") as client:
                await asyncio.gather(*(work() for _ in range(SINGLES if single else TASKS)))
            tally.check(sent, confirmed)

        run(main())

    return many


def client_one(place: Place, count: int) -> list[int]:
    taken: list[int] = []

    async def main() -> None:
        import regraft

        body = make_bodies(1)[0]
        clock = time.perf_counter_ns
        async with await regraft.connect(f"127.0.0.1:{place.port}") as client:
            for _ in range(count):
                before = clock()
                await client.publish(TOPIC, body, persistent=True, confirm=True)
                taken.append(clock() - before)

    run(main())
    return taken


# ------------------------------------------------------------------ reading and recovery


def fill(port: int, pool: Pool, messages: int) -> None:
    """So many messages, in as many pools as that takes."""
    view = memoryview(pool.data)
    block = max(1, BLOCK_BYTES // pool.size)
    while messages > 0:
        publisher = Publisher(port, client_id())
        share = min(messages, pool.count)
        sent = 0
        while sent < share:
            count = publisher.allowed(min(block, share - sent), pool.size)
            publisher.sock.sendall(view[sent * pool.size : (sent + count) * pool.size])
            sent += count
            publisher.look()
        while publisher.confirmed < sent:
            publisher.read()
        publisher.sock.close()
        messages -= share


def read_back(port: int, size: int, where: str, expected: int) -> float:
    """Seconds from the wish to read the stream from its beginning to the last message."""
    channel = RegraftChannel(connect(port), size)
    hello = native.Hello(1, 1, agent="bench", passive=True)
    channel.sock.sendall(native.PREFACE + native.encode(hello))
    while native.Welcome not in channel.seen:
        channel.read()
    buffer = memoryview(bytearray(READ_BYTES))
    wish = native.Subscribe(1, "bench/#", where, from_sequence=1)
    began = time.perf_counter()
    channel.sock.sendall(native.encode(wish))
    while channel.messages < expected:
        start = len(channel.tail)
        buffer[:start] = channel.tail
        got = channel.sock.recv_into(buffer[start:])
        if not got:
            raise LostError(f"the node ended the connection after {channel.messages} messages")
        channel.take(buffer[: start + got])
    took = time.perf_counter() - began
    channel.sock.close()
    if channel.messages != expected:
        raise LostError(f"{channel.messages} messages came instead of {expected}")
    return took


def journal_bytes(folder: Path) -> int:
    """What the segments hold room for."""
    return sum(each.stat().st_size for each in (folder / "data").rglob("*.seg"))


def forget(folder: Path) -> None:
    """Let the kernel drop what it remembers of these files, so that they are read from disk."""
    os.sync()
    for each in (folder / "data").rglob("*.seg"):
        with each.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def kill(server: Server) -> None:
    """End a node as a crash does."""
    os.kill(server.pid, signal.SIGKILL)


def time_to_work(folder: Path, pool: Pool) -> tuple[float, float]:
    """Seconds from the start of a node to its welcome, and to its first confirmation."""
    began = time.perf_counter()
    with node(folder) as server:
        publisher = Publisher(server.port, client_id())
        welcome = time.perf_counter() - began
        publisher.allowed(1, pool.size)
        publisher.sock.sendall(pool.data[: pool.size])
        while not publisher.confirmed:
            publisher.read()
        return welcome, time.perf_counter() - began


def record_bytes(count: int, size: int) -> int:
    """Bytes of a record with so many messages of this size."""
    return -(-(RECORD_BYTES + count * size) // 8) * 8
