"""What clients read: into one buffer, whatever the sizes of frames and reads are."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from regraft import Options
from regraft.client import Client, reading
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.node.node import Node
from regraft.runtime.clock import Clock
from regraft.runtime.driver import Driver

Run = Callable[[Any], Any]
RUNS: list[Run] = [asyncio.run, uvloop.run]


async def exchange(local: bool) -> None:
    """Two clients of one loop, each gets the same messages of many sizes."""
    node = Node(Identity(bytes(16), "n", 1), Limits(), 10_000, random.Random(1))
    driver = Driver(node, Clock(), asyncio.get_running_loop())
    _, port = driver.listen("127.0.0.1", 0)
    source = random.Random(2)
    sizes = (0, 1, 40, 900, 986, 5_000, 70_000, 600_000)
    bodies = [source.randbytes(source.choice(sizes[:-2])) for _ in range(300)]
    bodies += [source.randbytes(size) for size in sizes]
    source.shuffle(bodies)
    async with (
        Client(f"127.0.0.1:{port}", Options(local=local)) as one,
        Client(f"127.0.0.1:{port}", Options(local=local)) as other,
    ):
        assert reading.view_of(asyncio.get_running_loop()).nbytes == reading.READ_BYTES
        subscriptions = [await client.subscribe("t") for client in (one, other)]
        publishing = asyncio.create_task(publish(one, bodies))
        for subscription in subscriptions:
            assert [(await subscription.next(30)).body for _ in bodies] == bodies
        await publishing
    driver.shut()


async def publish(client: Client, bodies: list[bytes]) -> None:
    for body in bodies:
        await client.publish("t", body)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("size", [61, 1000, reading.READ_BYTES])
def test_what_is_sent_is_what_is_read(
    run: Run, local: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_BYTES", size)
    run(exchange(local))


def test_all_clients_of_a_loop_read_into_one_buffer_and_the_loop_can_go() -> None:
    views = []

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        views.append(reading.view_of(loop))
        assert reading.view_of(loop) is views[-1]
        return weakref.ref(loop)

    gone = [asyncio.run(main()), uvloop.run(main())]
    assert views[0] is not views[1]
    gc.collect()
    assert [loop() for loop in gone] == [None, None]


def test_reads_make_no_bytes_of_their_own() -> None:
    heard: list[Any] = []

    class Hearing:
        def _received(self, link: Any, data: bytes | memoryview) -> None:
            assert isinstance(data, memoryview) and data.obj is view.obj
            heard.append(bytes(data))

        def _lost(self, link: Any, exc: Exception | None) -> None:
            heard.append(None)

    view = memoryview(bytearray(100))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hearing: Any = Hearing()
        link: Any = None

        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(250))
            writer.close()

        async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await loop.create_connection(
                lambda: reading.Wire(hearing, link, view), "127.0.0.1", port
            )
            async with asyncio.timeout(5):
                while not heard or heard[-1] is not None:
                    await asyncio.sleep(0.001)

    for run in RUNS:
        heard.clear()
        run(main())
        assert b"".join(heard[:-1]) == bytes(250)
