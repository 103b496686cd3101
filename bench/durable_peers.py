"""Other systems that keep messages, each published to in the fastest way that was tried.

Libraries are imported in the publishing process only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

from bench.dialects import Work, connect, nats_open
from bench.durable import (
    AHEAD,
    BATCH,
    BODY_BYTES,
    Place,
    Tally,
    Way,
    WrongError,
    make_bodies,
    timed,
)
from bench.durable_servers import NATS_DEFAULT, NATS_SYNCED, RABBITMQ, REDIS
from bench.peers import run

TOPIC = "bench/journal"
SUBJECT = "bench.journal"
READ_BYTES = 256 * 1024
FILE_BYTES = 256 * 1024 * 1024  # of the raw disk's file; then it begins again
ZEROS = bytes(1024 * 1024)

# ------------------------------------------------------------------------------ raw disk


def zeroed(path: Path, size: int) -> int:
    """A file that was filled with zeros, so that a sync has to write nothing but what changed."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if os.fstat(fd).st_size < size:
        for _ in range(0, size, len(ZEROS)):
            os.write(fd, ZEROS)
        os.fsync(fd)
    return fd


def disk_many(record: bytes, head: int, batch: int) -> Any:
    """Write and sync as many bytes as a journal has for `batch` messages, over and over."""
    block = bytes(head) + record * batch

    def many(place: Place, tally: Tally) -> None:
        fd = zeroed(place.folder / "disk", FILE_BYTES)
        at = written = 0
        while not tally.done:
            if at + len(block) > FILE_BYTES:
                at = 0
            if os.pwrite(fd, block, at) != len(block):
                raise WrongError("the disk took only a part")
            os.fdatasync(fd)
            at += len(block)
            written += batch
            tally.note(written)
        os.close(fd)

    return many


def disk_one(block: bytes) -> Any:
    """Write and sync one block behind the other."""

    def one(place: Place, count: int) -> list[int]:
        fd = zeroed(place.folder / "disk", FILE_BYTES)
        at = 0

        def call() -> None:
            nonlocal at
            os.pwrite(fd, block, at)
            os.fdatasync(fd)
            at += len(block)

        taken = timed(call, count)
        os.close(fd)
        return taken

    return one


# -------------------------------------------------------------------------------- SQLite

INSERT = "INSERT INTO messages (topic, body) VALUES (?, ?)"


def sqlite_open(place: Place) -> sqlite3.Connection:
    for left in place.folder.glob("messages.db*"):
        left.unlink()
    db = sqlite3.connect(place.folder / "messages.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE messages (sequence INTEGER PRIMARY KEY, topic TEXT, body BLOB)")
    return db


def sqlite_many(place: Place, tally: Tally) -> None:
    db = sqlite_open(place)
    rows = [(TOPIC, body) for body in make_bodies()]
    sent = 0
    while not tally.done:
        db.execute("BEGIN")
        db.executemany(INSERT, rows)
        db.execute("COMMIT")
        sent += len(rows)
        tally.note(sent)
    tally.check(sent, db.execute("SELECT count(*) FROM messages").fetchone()[0])
    db.close()


def sqlite_one(place: Place, count: int) -> list[int]:
    db = sqlite_open(place)
    row = (TOPIC, make_bodies(1)[0])
    taken = timed(lambda: db.execute(INSERT, row), count)
    db.close()
    return taken


# --------------------------------------------------------------------------------- Redis


def command(*words: bytes) -> bytes:
    """A command as it is sent."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Redis:
    """A plain connection that counts lines of answers."""

    def __init__(self, place: Place) -> None:
        self.sock = connect(place.port)
        self.ask(b"DEL", b"bench")
        self.lines = 0
        self.whole = True  # what came so far ended with a line

    def read(self, flags: int = 0) -> None:
        try:
            data = self.sock.recv(READ_BYTES, flags)
        except BlockingIOError:
            return
        if not data or b"\n-" in data or (self.whole and data.startswith(b"-")):
            raise WrongError(f"redis: {data[:200]!r}")
        self.whole = data.endswith(b"\n")
        self.lines += data.count(b"\n")

    def ask(self, *words: bytes) -> bytes:
        self.sock.sendall(command(*words))
        return self.sock.recv(READ_BYTES)


def redis_raw(transaction: bool) -> Any:
    """Batches one behind the other; in a transaction a batch is answered as a whole."""
    block = b"".join(command(b"XADD", b"bench", b"*", b"b", body) for body in make_bodies())
    unit, lines = 1, 2  # so many messages are confirmed by so many lines
    if transaction:
        block = command(b"MULTI") + block + command(b"EXEC")
        unit, lines = BATCH, 1 + BATCH + 1 + 2 * BATCH

    def many(place: Place, tally: Tally) -> None:
        redis = Redis(place)
        sent = 0
        while not tally.done:
            redis.sock.sendall(block)
            sent += BATCH
            redis.read(socket.MSG_DONTWAIT)
            while sent - redis.lines // lines * unit > AHEAD:
                redis.read()
            tally.note(redis.lines // lines * unit)
        while redis.lines // lines * unit < sent:
            redis.read()
        tally.note(sent)
        tally.check(sent, int(redis.ask(b"XLEN", b"bench")[1:]))
        redis.ask(b"DEL", b"bench")

    return many


def redis_one(place: Place, count: int) -> list[int]:
    redis = Redis(place)
    body = make_bodies(1)[0]
    taken = timed(lambda: redis.ask(b"XADD", b"bench", b"*", b"b", body), count)
    redis.ask(b"DEL", b"bench")
    return taken


def redis_py(place: Place, tally: Tally) -> None:
    import redis

    client = redis.Redis(port=place.port)
    client.delete("bench")
    bodies = make_bodies()
    sent = 0
    while not tally.done:
        pipeline = client.pipeline(transaction=True)
        for body in bodies:
            pipeline.xadd("bench", {"b": body})
        sent += len(pipeline.execute())
        tally.note(sent)
    tally.check(sent, client.xlen("bench"))
    client.delete("bench")


def redis_py_one(place: Place, count: int) -> list[int]:
    import redis

    client = redis.Redis(port=place.port)
    body = make_bodies(1)[0]
    taken = timed(lambda: client.xadd("bench", {"b": body}), count)
    client.delete("bench")
    return taken


# ------------------------------------------------------------------------------ RabbitMQ


def rabbit_many(arguments: dict[str, str]) -> Any:
    """A durable queue; publisher confirms, many in flight."""

    def many(place: Place, tally: Tally) -> None:
        Rabbit(place, tally, arguments).run()

    return many


class Rabbit:
    """pika with callbacks: as long as not too many are in flight, another batch is published."""

    STEP = 250  # messages between two looks at what came

    def __init__(self, place: Place, tally: Tally, arguments: dict[str, str]) -> None:
        import pika

        self.tally = tally
        self.arguments = arguments
        self.bodies = make_bodies()
        self.sent = 0
        self.waiting: dict[int, None] = {}  # delivery tags, in their order
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self.failure: object = None
        self.connection: Any = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", place.port),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=lambda _, error: self.fail(error),
            on_close_callback=lambda *_: self.connection.ioloop.stop(),
        )

    def run(self) -> None:
        self.connection.ioloop.start()
        if self.failure is not None:
            raise WrongError(repr(self.failure))

    def fail(self, error: object) -> None:
        self.failure = error
        self.connection.ioloop.stop()

    def opened(self, channel: Any) -> None:
        self.channel = channel
        channel.add_on_close_callback(lambda _, reason: self.lost(reason))
        channel.confirm_delivery(self.answered)
        channel.queue_delete("bench")
        channel.queue_declare(
            "bench", durable=True, arguments=self.arguments, callback=lambda _: self.publish()
        )

    def lost(self, reason: Any) -> None:
        if self.connection.is_open:
            self.fail(reason)

    def publish(self) -> None:
        if self.tally.done:
            return
        if len(self.waiting) <= AHEAD - self.STEP:
            start = self.sent % BATCH
            for body in self.bodies[start : start + self.STEP]:
                self.channel.basic_publish("", "bench", body, self.persistent)
                self.sent += 1
                self.waiting[self.sent] = None
        self.connection.ioloop.add_callback_threadsafe(self.publish)

    def answered(self, frame: Any) -> None:
        """An ack, of one message or of all up to it."""
        method = frame.method
        if method.NAME != "Basic.Ack":
            return self.fail(method)
        if not method.multiple:
            self.waiting.pop(method.delivery_tag, None)
        while method.multiple and self.waiting and next(iter(self.waiting)) <= method.delivery_tag:
            del self.waiting[next(iter(self.waiting))]
        self.tally.note(self.sent - len(self.waiting))
        if self.tally.done and not self.waiting:
            self.channel.queue_declare("bench", passive=True, callback=self.finished)

    def finished(self, answer: Any) -> None:
        try:
            self.tally.check(self.sent, answer.method.message_count)
        except WrongError as error:
            self.failure = error
        self.channel.queue_delete("bench", callback=lambda _: self.connection.close())


def rabbit_one(arguments: dict[str, str]) -> Any:
    def one(place: Place, count: int) -> list[int]:
        import pika

        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.port))
        channel = connection.channel()
        channel.queue_declare("bench", durable=True, arguments=arguments)
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        body = make_bodies(1)[0]
        taken = timed(lambda: channel.basic_publish("", "bench", body, persistent), count)
        channel.queue_delete("bench")
        connection.close()
        return taken

    return one


# ----------------------------------------------------------------------------- JetStream


async def stream(place: Place) -> tuple[Any, Any]:
    """A connection, and JetStream with a stream on disk."""
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{place.port}")
    jetstream = client.jetstream(publish_async_max_pending=AHEAD)
    await jetstream.add_stream(name="bench", subjects=[SUBJECT], allow_atomic=True)
    await jetstream.purge_stream("bench")  # a round that failed left it as it was
    return client, jetstream


async def leave(client: Any, jetstream: Any) -> int:
    """Clear away the stream; how many messages were in it."""
    stored = (await jetstream.stream_info("bench")).state.messages
    await jetstream.delete_stream("bench")
    await client.close()
    return int(stored)


def atomic_batch(id: int, count: int = BATCH, subject: str = SUBJECT) -> bytes:
    """A batch that is stored as a whole; only its last message asks for an answer."""
    frames = []
    for number, body in enumerate(make_bodies(count), 1):
        last = number == count
        commit = "Nats-Batch-Commit: 1\r\n" if last else ""
        head = (
            f"NATS/1.0\r\nNats-Batch-Id: {id}\r\nNats-Batch-Sequence: {number}\r\n{commit}\r\n"
        ).encode()
        reply = " answers" if last else ""
        total = len(head) + len(body)
        frames.append(f"HPUB {subject}{reply} {len(head)} {total}\r\n".encode() + head + body)
    return b"\r\n".join([*frames, b""])


def nats_batches(place: Place, tally: Tally) -> None:
    """Without the library, which has no call for it."""

    async def main() -> None:
        client, jetstream = await stream(place)
        sock = nats_open(place.port, Work("", BODY_BYTES, 1), False).sock
        sock.sendall(b"SUB answers 1\r\n")
        blocks = [atomic_batch(id) for id in range(100, 100 + 2 * AHEAD // BATCH)]
        sent = confirmed = 0

        def read(ahead: int) -> int:
            """Wait until at most so many are in flight."""
            nonlocal confirmed
            said = b""
            while sent - confirmed > ahead:
                said += sock.recv(READ_BYTES)
                *whole, said = said.split(b"\r\n")
                confirmed += BATCH * sum(b'"count":%d' % BATCH in line for line in whole)
                if any(b"error" in line or line.startswith(b"-ERR") for line in whole):
                    raise WrongError(repr(whole[-1]))
            return confirmed

        while not tally.done:
            sock.sendall(blocks[sent // BATCH % len(blocks)])
            sent += BATCH
            tally.note(read(AHEAD))
        tally.note(read(0))
        tally.check(sent, await leave(client, jetstream))

    run(main())


def nats_many(place: Place, tally: Tally) -> None:
    async def main() -> None:
        client, jetstream = await stream(place)
        bodies = make_bodies()
        confirmed = 0

        def answered(future: asyncio.Future[Any]) -> None:
            nonlocal confirmed
            future.result()
            confirmed += 1
            tally.note(confirmed)

        sent = 0
        while not tally.done:
            future = await jetstream.publish_async(SUBJECT, bodies[sent % BATCH])
            future.add_done_callback(answered)
            sent += 1
            if not sent % 100:
                await asyncio.sleep(0)
        await jetstream.publish_async_completed()
        await asyncio.sleep(0)
        tally.check(sent, await leave(client, jetstream))

    run(main())


def nats_one(place: Place, count: int) -> list[int]:
    taken: list[int] = []

    async def main() -> None:
        client, jetstream = await stream(place)
        body = make_bodies(1)[0]
        clock = time.perf_counter_ns
        for _ in range(count):
            before = clock()
            await jetstream.publish(SUBJECT, body)
            taken.append(clock() - before)
        await leave(client, jetstream)

    run(main())
    return taken


QUORUM = {"x-queue-type": "quorum"}

PEERS = (
    Way("sqlite, batches", "", sqlite_many, sqlite_one),
    Way("redis, raw", REDIS, redis_raw(False), redis_one),
    Way("redis, raw, MULTI", REDIS, redis_raw(True)),
    Way("redis-py, MULTI", REDIS, redis_py, redis_py_one, module="redis", library=True),
    Way("rabbitmq, pika", RABBITMQ, rabbit_many({}), rabbit_one({}), module="pika", library=True),
    Way(
        "rabbitmq quorum, pika",
        RABBITMQ,
        rabbit_many(QUORUM),
        rabbit_one(QUORUM),
        module="pika",
        library=True,
    ),
    Way("jetstream synced, nats-py", NATS_SYNCED, nats_many, nats_one, module="nats", library=True),
    Way("jetstream synced, raw batches", NATS_SYNCED, nats_batches, module="nats"),
    Way("jetstream, nats-py", NATS_DEFAULT, nats_many, nats_one, synced=False, module="nats"),
)
