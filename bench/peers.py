"""Public clients of several libraries, each in the fastest way that was tried.

A way is two functions, one for the process that sends and one for the process that receives. The
sender takes blocks from a `Pace` until it is told to stop; the receiver asks for the body of every
message and shows one in a thousand to a `Tally`. Libraries are imported in these processes only.

None of them may lose a message, so each is told to wait instead, where it can be told. NATS cannot:
for it the pace keeps the sender at most AHEAD messages before the receiver.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from bench.servers import NATS, REGRAFT, ZENOH, ZMQ, Server

BLOCK = 1000  # messages that are sent between two looks at the pace, and between two notes
BODY_BYTES = 100
TOPIC = "bench/client"
PREFIX = TOPIC.encode() + b" "  # of a ZeroMQ message: there a topic is how a message begins
AHEAD = 65_536
MEET_SECONDS = 5.0  # for a sender to hear of the subscription, where it must


def make_bodies() -> list[bytes]:
    """A block of bodies, each of which tells its place in the block."""
    return [
        number.to_bytes(4, "big") + bytes((number + i) % 251 for i in range(BODY_BYTES - 4))
        for number in range(BLOCK)
    ]


class Pace(Protocol):
    """What the sending process looks at."""

    bodies: list[bytes]

    def blocks(self) -> Iterator[None]:
        """Once for every block to be sent, until it is enough."""

    def is_ahead(self) -> bool:
        """Whether more than AHEAD messages have not been seen by the receiver."""

    def wait_for_end(self) -> None:
        """All was sent; return when all of it has arrived, or nothing more will."""


class Tally(Protocol):
    """What the receiving process tells."""

    def ready(self) -> None:
        """The subscription is there."""

    def note(self, messages: int, body: bytes) -> None:
        """So many have arrived, and this is the body of the last of them."""


@dataclass(frozen=True)
class Way:
    """One way of using one library."""

    label: str
    server: str
    send: Callable[[Server, Pace], None]
    receive: Callable[[Server, Tally], None]


def run(main: Coroutine[Any, Any, None]) -> None:
    """On the faster loop, for all libraries that use asyncio."""
    import uvloop

    uvloop.run(main)


# ----------------------------------------------------------------------------- Regraft


def regraft_target(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def regraft_send_batches(server: Server, pace: Pace) -> None:
    async def main() -> None:
        import regraft

        async with await regraft.connect(regraft_target(server)) as client:
            for _ in pace.blocks():
                await client.publish_many(TOPIC, pace.bodies)
            await client.flush()
            await asyncio.to_thread(pace.wait_for_end)

    run(main())


def regraft_receive_batches(server: Server, tally: Tally) -> None:
    async def main() -> None:
        import regraft

        async with await regraft.connect(regraft_target(server)) as client:
            subscription = await client.subscribe(TOPIC)
            tally.ready()
            count = 0
            body = b""
            async for batch in subscription.batches():
                for message in batch:
                    body = message.body
                count += len(batch)
                tally.note(count, body)

    run(main())


def regraft_send(server: Server, pace: Pace) -> None:
    async def main() -> None:
        import regraft

        async with await regraft.connect(regraft_target(server)) as client:
            for _ in pace.blocks():
                for body in pace.bodies:
                    await client.publish(TOPIC, body)
            await client.flush()
            await asyncio.to_thread(pace.wait_for_end)

    run(main())


def regraft_receive(server: Server, tally: Tally) -> None:
    async def main() -> None:
        import regraft

        async with await regraft.connect(regraft_target(server)) as client:
            subscription = await client.subscribe(TOPIC)
            tally.ready()
            count = 0
            async for message in subscription:
                body = message.body
                count += 1
                if not count % BLOCK:
                    tally.note(count, body)

    run(main())


# -------------------------------------------------------------------------------- NATS


def nats_send(server: Server, pace: Pace) -> None:
    async def main() -> None:
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        for _ in pace.blocks():
            while pace.is_ahead():
                await asyncio.sleep(0.0005)
            for body in pace.bodies:
                await client.publish(TOPIC, body)
        await client.flush()
        await asyncio.to_thread(pace.wait_for_end)
        await client.close()

    run(main())


def nats_receive(server: Server, tally: Tally) -> None:
    async def main() -> None:
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        count = 0

        async def take(message: Any) -> None:
            nonlocal count
            body = message.data
            count += 1
            if not count % BLOCK:
                tally.note(count, body)

        await client.subscribe(TOPIC, cb=take)
        await client.flush()
        tally.ready()
        await asyncio.Event().wait()

    run(main())


# ------------------------------------------------------------------------------ ZeroMQ


def zmq_send(server: Server, pace: Pace) -> None:
    import zmq

    sock = zmq.Context().socket(zmq.XPUB)  # a PUB that also hears of subscriptions
    sock.set_hwm(AHEAD)
    sock.setsockopt(zmq.XPUB_NODROP, 1)
    sock.setsockopt(zmq.RCVTIMEO, int(MEET_SECONDS * 1000))
    sock.connect(f"tcp://127.0.0.1:{server.port}")
    sock.recv()  # before the subscription is here, what is sent goes nowhere
    bodies = [PREFIX + body for body in pace.bodies]
    for _ in pace.blocks():
        for body in bodies:
            sock.send(body)
    pace.wait_for_end()
    sock.close(linger=0)


def zmq_receive(server: Server, tally: Tally) -> None:
    import zmq

    sock = zmq.Context().socket(zmq.SUB)
    sock.set_hwm(AHEAD)
    sock.connect(f"tcp://127.0.0.1:{server.second_port}")
    sock.subscribe(PREFIX)
    tally.ready()
    count, skip = 0, len(PREFIX)
    while True:
        body = sock.recv()[skip:]
        count += 1
        if not count % BLOCK:
            tally.note(count, body)


# ------------------------------------------------------------------------------- Zenoh


def zenoh_session(server: Server) -> Any:
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{server.port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


def zenoh_send(server: Server, pace: Pace) -> None:
    import zenoh

    with zenoh_session(server) as session:
        publisher = session.declare_publisher(
            TOPIC, congestion_control=zenoh.CongestionControl.BLOCK
        )
        deadline = time.monotonic() + MEET_SECONDS
        while not publisher.matching_status.matching and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in pace.blocks():
            for body in pace.bodies:
                publisher.put(body)
        pace.wait_for_end()


def zenoh_receive(server: Server, tally: Tally) -> None:
    with zenoh_session(server) as session:
        count = 0

        def take(sample: Any) -> None:
            nonlocal count
            body = sample.payload.to_bytes()
            count += 1
            if not count % BLOCK:
                tally.note(count, body)

        with session.declare_subscriber(TOPIC, take):
            tally.ready()
            threading.Event().wait()


BATCHES, SINGLE = "regraft, batches", "regraft, one a call"
WAYS = (
    Way(BATCHES, REGRAFT, regraft_send_batches, regraft_receive_batches),
    Way(SINGLE, REGRAFT, regraft_send, regraft_receive),
    Way("nats-py", NATS, nats_send, nats_receive),
    Way("pyzmq, proxy", ZMQ, zmq_send, zmq_receive),
    Way("zenoh, router", ZENOH, zenoh_send, zenoh_receive),
)
