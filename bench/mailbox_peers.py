"""Work queues of other systems, each used with its Python client in the fastest way that was tried.

Every member is a connection of its own, and settles each message with a command of its own.
Libraries are imported in the processes that use them only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.dialects import Work, nats_open
from bench.durable import AHEAD, BATCH, BODY_BYTES, Place, WrongError, make_bodies
from bench.durable_peers import QUORUM, READ_BYTES, atomic_batch
from bench.durable_servers import NATS_DEFAULT, NATS_SYNCED, RABBITMQ, REDIS
from bench.peers import run
from bench.workers import LOOK_SECONDS, Pace, Seat, Way, work_together

QUEUE = "bench"
GROUP = "workers"
WAIT_SECONDS = 0.2  # of one request for messages, where a library has to ask
FEW_AHEAD = 100  # as fast where each is synced by itself, and members get their turn
ACKS_PENDING = 100_000  # more than all members together have
GIVEN_BACK_SECONDS = 0.3  # for a server to take back what a lost connection held
COUNTED_SECONDS = 3.0  # and to count what is left


# ------------------------------------------------------------------------------ RabbitMQ


@dataclass(frozen=True)
class RabbitQueue:
    """pika with callbacks (`SelectConnection`), all connections of a process on one loop."""

    arguments: dict[str, str] = field(default_factory=dict)
    rest_seconds: float = 0.0  # a quorum queue gets acks later than they are heard

    def _blocking(self, place: Place) -> tuple[Any, Any]:
        import pika

        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.port))
        return connection, connection.channel()

    def prepare(self, place: Place) -> None:
        connection, channel = self._blocking(place)
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True, arguments=self.arguments)
        connection.close()

    def left(self, place: Place) -> int:
        """What lost connections held is given back, and a quorum queue counts a little later."""
        time.sleep(GIVEN_BACK_SECONDS)
        connection, channel = self._blocking(place)
        deadline = time.monotonic() + COUNTED_SECONDS
        while True:
            count = int(channel.queue_declare(QUEUE, passive=True).method.message_count)
            if not count or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        channel.queue_delete(QUEUE)
        connection.close()
        return count

    def publish(self, place: Place, pace: Pace) -> None:
        RabbitPublisher(place, pace).run()

    fill = publish

    def work(self, place: Place, seat: Seat, members: int, ready: Callable[[], None]) -> None:
        RabbitMembers(place, seat, members, ready).run()


class RabbitLoop:
    """Connections on one loop."""

    def __init__(self, place: Place) -> None:
        from pika.adapters.select_connection import IOLoop

        self.port = place.port
        self.loop: Any = IOLoop()
        self.failure: object = None

    def run(self) -> None:
        self.loop.start()
        if self.failure is not None:
            raise WrongError(repr(self.failure))

    def fail(self, error: object) -> None:
        self.failure = error
        self.loop.stop()

    def connect(self, opened: Callable[[Any], None]) -> None:
        """A connection with one channel."""
        import pika

        def open_channel(connection: Any) -> None:
            connection.channel(on_open_callback=named)

        def named(channel: Any) -> None:
            channel.add_on_close_callback(lambda _, reason: self.fail(reason))
            opened(channel)

        pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", self.port),
            on_open_callback=open_channel,
            on_open_error_callback=lambda _, error: self.fail(error),
            on_close_callback=lambda _, error: self.fail(error),
            custom_ioloop=self.loop,
        )


class RabbitPublisher(RabbitLoop):
    """Publisher confirms, many in flight."""

    STEP = 250  # messages between two looks at what came

    def __init__(self, place: Place, pace: Pace) -> None:
        import pika

        super().__init__(place)
        self.pace = pace
        self.bodies = make_bodies()
        self.sent = 0
        self.waiting: dict[int, None] = {}  # delivery tags, in their order
        self.over = False
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self.connect(self.opened)

    def opened(self, channel: Any) -> None:
        self.channel = channel
        channel.confirm_delivery(self.answered, callback=lambda _: self.publish())

    def publish(self) -> None:
        allowed = self.pace.allowed(self.sent)
        if allowed < 0:
            self.over = True
            if not self.waiting:
                self.loop.stop()
            return
        count = min(allowed, self.STEP, AHEAD - len(self.waiting))
        for _ in range(max(0, count)):
            body = self.bodies[self.sent % BATCH]
            self.channel.basic_publish("", QUEUE, body, self.persistent)
            self.sent += 1
            self.waiting[self.sent] = None
        if count > 0:
            self.loop.add_callback_threadsafe(self.publish)
        else:
            self.loop.call_later(LOOK_SECONDS, self.publish)

    def answered(self, frame: Any) -> None:
        """An ack, of one message or of all up to it."""
        method = frame.method
        if method.NAME != "Basic.Ack":
            return self.fail(method)
        if not method.multiple:
            self.waiting.pop(method.delivery_tag, None)
        while method.multiple and self.waiting and next(iter(self.waiting)) <= method.delivery_tag:
            del self.waiting[next(iter(self.waiting))]
        self.pace.confirmed(self.sent - len(self.waiting))
        if self.over and not self.waiting:
            self.loop.stop()


class RabbitMembers(RabbitLoop):
    """Consumers that acknowledge each delivery by itself."""

    def __init__(self, place: Place, seat: Seat, members: int, ready: Callable[[], None]) -> None:
        super().__init__(place)
        self.seat = seat
        self.members = members
        self.ready = ready
        self.channels: list[Any] = []
        self.heard = 0  # channels on which all was heard
        for _ in range(members):
            self.connect(self.opened)

    def opened(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=self.seat.in_flight)
        self.channels.append(channel)
        if len(self.channels) == self.members:
            self.ready()
            self.wait_for_go()

    def wait_for_go(self) -> None:
        if not self.seat.desk.go.value:
            self.loop.call_later(LOOK_SECONDS, self.wait_for_go)
            return
        for channel in self.channels:
            channel.basic_consume(QUEUE, self.take)
        self.look()

    def take(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        self.seat.note(body, BODY_BYTES)

    def look(self) -> None:
        if not self.seat.is_over:
            self.loop.call_later(LOOK_SECONDS, self.look)
            return
        for channel in self.channels:  # an answer here says that the acks before it were heard
            channel.queue_declare(QUEUE, passive=True, callback=self.answered)

    def answered(self, _: Any) -> None:
        self.heard += 1
        if self.heard == self.members:
            self.loop.stop()


# ----------------------------------------------------------------------------- JetStream


@dataclass(frozen=True)
class JetStreamQueue:
    """A stream with the retention of a work queue, on disk, and one pull consumer for all."""

    ahead: int = AHEAD  # messages in flight of a publisher
    rest_seconds: float = 0.0

    async def _open(self, place: Place) -> tuple[Any, Any]:
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{place.port}")
        return client, client.jetstream(publish_async_max_pending=self.ahead)

    def prepare(self, place: Place) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType
        from nats.js.errors import NotFoundError

        async def main() -> None:
            client, jetstream = await self._open(place)
            with contextlib.suppress(NotFoundError):
                await jetstream.delete_stream(QUEUE)
            await jetstream.add_stream(
                name=QUEUE,
                subjects=[QUEUE],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                allow_atomic=True,
            )
            consumer = ConsumerConfig(
                durable_name=GROUP,
                ack_policy=AckPolicy.EXPLICIT,
                max_ack_pending=ACKS_PENDING,
            )
            await jetstream.add_consumer(QUEUE, consumer)
            await client.close()

        run(main())

    def left(self, place: Place) -> int:
        count = 0

        async def main() -> None:
            nonlocal count
            client, jetstream = await self._open(place)
            count = (await jetstream.stream_info(QUEUE)).state.messages
            await jetstream.delete_stream(QUEUE)
            await client.close()

        run(main())
        return count

    def fill(self, place: Place, pace: Pace) -> None:
        """In atomic batches, which the library has no call for: they are synced as a whole."""
        sock = nats_open(place.port, Work("", BODY_BYTES, 1), False).sock
        sock.sendall(b"SUB answers 1\r\n")
        sent = confirmed = 0
        said = b""
        while (count := pace.allowed(sent)) > 0:
            sock.sendall(atomic_batch(sent, count, QUEUE))
            sent += count
            while confirmed < sent:
                said += sock.recv(READ_BYTES)
                *whole, said = said.split(b"\r\n")
                if any(b"error" in line or line.startswith(b"-ERR") for line in whole):
                    raise WrongError(repr(whole[-1]))
                if any(b'"count":%d' % count in line for line in whole):
                    confirmed = sent
            pace.confirmed(confirmed)

    def publish(self, place: Place, pace: Pace) -> None:
        async def main() -> None:
            client, jetstream = await self._open(place)
            bodies = make_bodies()
            sent = confirmed = 0

            def answered(future: asyncio.Future[Any]) -> None:
                nonlocal confirmed
                future.result()
                confirmed += 1
                pace.confirmed(confirmed)

            while (count := pace.allowed(sent)) >= 0:
                for _ in range(min(count, 100)):
                    future = await jetstream.publish_async(QUEUE, bodies[sent % BATCH])
                    future.add_done_callback(answered)
                    sent += 1
                await asyncio.sleep(0 if count else LOOK_SECONDS)
            await jetstream.publish_async_completed()
            await asyncio.sleep(0)
            await client.close()
            if confirmed != sent:
                raise WrongError(f"{confirmed} of {sent} messages were confirmed")

        run(main())

    def work(self, place: Place, seat: Seat, members: int, ready: Callable[[], None]) -> None:
        async def member(subscription: Any) -> None:
            while True:
                try:
                    messages = await subscription.fetch(seat.in_flight, timeout=WAIT_SECONDS)
                except TimeoutError:  # the library has one of its own, and this one, too
                    continue
                for message in messages:
                    await message.ack()
                    seat.note(message.data, BODY_BYTES)

        async def main() -> None:
            subscriptions = []
            for _ in range(members):
                client, jetstream = await self._open(place)
                subscriptions.append(await jetstream.pull_subscribe_bind(GROUP, QUEUE))

            async def barrier() -> None:
                await client.flush()
                while True:
                    info = await jetstream.consumer_info(QUEUE, GROUP)
                    if not info.num_pending and not info.num_ack_pending:
                        return
                    await asyncio.sleep(LOOK_SECONDS)

            ready()
            seat.wait_for_go()
            await work_together(seat, [member(each) for each in subscriptions], barrier)

        run(main())


# --------------------------------------------------------------------------------- Redis


class RedisQueue:
    """A stream with a consumer group; redis-py, with the parser that is compiled."""

    rest_seconds = 0.0

    def prepare(self, place: Place) -> None:
        import redis

        client = redis.Redis(port=place.port)
        client.delete(QUEUE)
        client.xgroup_create(QUEUE, GROUP, mkstream=True)

    def left(self, place: Place) -> int:
        import redis

        client = redis.Redis(port=place.port)
        (group,) = client.xinfo_groups(QUEUE)
        unread = client.xlen(QUEUE) - int(group["entries-read"] or 0)
        client.delete(QUEUE)
        return unread + int(group["pending"])

    def publish(self, place: Place, pace: Pace) -> None:
        """In transactions, which are synced as a whole."""
        import redis

        client = redis.Redis(port=place.port)
        bodies = make_bodies()
        sent = 0
        while (count := pace.allowed(sent)) >= 0:
            if not count:
                time.sleep(LOOK_SECONDS)
                continue
            pipeline = client.pipeline(transaction=True)
            for body in bodies[:count]:
                pipeline.xadd(QUEUE, {"b": body})
            sent += len(pipeline.execute())
            pace.confirmed(sent)

    fill = publish

    def work(self, place: Place, seat: Seat, members: int, ready: Callable[[], None]) -> None:
        """Members in turn: faster than tasks. Acknowledgements of one read go in one write."""
        import redis

        clients = [redis.Redis(port=place.port) for _ in range(members)]
        for client in clients:
            client.ping()
        ready()
        seat.wait_for_go()
        while not seat.is_over:
            before = seat.count
            for number, client in enumerate(clients):
                name = f"{os.getpid()}-{number}"
                for _, entries in client.xreadgroup(GROUP, name, {QUEUE: ">"}, seat.in_flight):
                    pipeline = client.pipeline(transaction=False)
                    for id, _ in entries:
                        pipeline.xack(QUEUE, GROUP, id)
                    pipeline.execute()
                    for _, fields in entries:
                        seat.note(fields[b"b"], BODY_BYTES)
            if seat.count == before:
                time.sleep(LOOK_SECONDS)


PEERS = (
    Way("rabbitmq quorum, pika", RABBITMQ, RabbitQueue(QUORUM, 1.0), 400, module="pika"),
    Way("rabbitmq classic, pika", RABBITMQ, RabbitQueue(), 30, module="pika"),
    Way("jetstream synced, nats-py", NATS_SYNCED, JetStreamQueue(FEW_AHEAD), 400, module="nats"),
    Way("jetstream, nats-py", NATS_DEFAULT, JetStreamQueue(), 100, synced=False, module="nats"),
    Way("redis, redis-py", REDIS, RedisQueue(), 100, module="hiredis"),
)
