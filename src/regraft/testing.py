"""Real nodes in an application's own tests: in memory, without sockets, in virtual time.

    from regraft.testing import Bus, virtual_time

    @virtual_time
    async def test_the_greeting():
        async with Bus() as bus:
            client = await bus.connect()
            greetings = await client.subscribe("greetings/#")
            await my_application(await bus.connect())
            assert (await greetings.next(timeout=60)).text() == "hello"

The node is the real one and so are the bytes; `virtual_time` makes the test's clock jump whenever
everybody waits, so that a minute costs nothing. Without it the same bus runs in real time.

Its journal is on a disk in memory, so that persistent messages, durable subscriptions and replays
work as they do elsewhere. `kill()` ends the node and leaves the disk as it is, `power_off()` loses
what was not synced, `start()` goes on with what is left.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from regraft.client import Client, Options
from regraft.client.address import Address
from regraft.client.dialling import Factory
from regraft.client.reading import Wire
from regraft.errors import WorldError
from regraft.limits import MIB, Limits
from regraft.model.userfilter import REGISTERED
from regraft.node.storage import Retained
from regraft.simulate.disk import Disk
from regraft.simulate.world import Broker, Pipe, World

__all__ = ["Bus", "run", "virtual_time"]

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class Bus:
    """One node in memory, and clients connected to it.

    `streams` are the topics that it retains: a pattern for each name. Without a journal nothing
    is persistent. `rules` are those of services, as in a file. It knows the filters that are
    registered (`regraft.filter`) when it starts.
    """

    def __init__(
        self,
        seed: int = 0,
        limits: Limits | None = None,
        heartbeat_ms: int = 10_000,
        streams: Mapping[str, str] | None = None,
        journal: bool = True,
        rules: str = "",
    ) -> None:
        self._world = World(seed)
        self._limits = limits
        self._heartbeat_ms = heartbeat_ms
        self._journal = journal
        self._rules = rules
        self._retained = [Retained(*named) for named in (streams or {}).items()]
        self._broker: Broker | None = None
        self._clients: list[Client] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Bus:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.close()
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------ for the test

    async def connect(self, options: Options | None = None, **more: Any) -> Client:
        """A client that is connected to the node; closed with the bus at the latest."""
        client = self.client(options, **more)
        await client.open()
        return client

    def client(self, options: Options | None = None, **more: Any) -> Client:
        """A client that is not connected yet, to decorate callbacks with first."""
        client = Client(None, options, connector=self._connect, **more)
        self._clients.append(client)
        return client

    def start(self) -> None:
        """Start the node; again, after it has ended. It knows what its disk holds."""
        if self._broker is not None and not self._broker.stopped:
            return
        disk = self._broker.disk if self._broker is not None else None
        if self._broker is None and self._journal:
            disk = self._world.disk()
        limits = self._limits or Limits()
        # A disk in memory need not make files of 64 MiB.
        segment_bytes = min(limits.segment_bytes, max(2 * limits.frame_bytes, 4 * MIB))
        self._broker = self._world.broker(
            "in-memory",
            replace(limits, segment_bytes=segment_bytes),
            self._heartbeat_ms,
            disk,
            self._retained,
        )
        self._broker.node.filters.learn(REGISTERED)
        if self._rules:
            self._broker.node.load_rules(self._rules, "rules")
        self._poke()

    def kill(self) -> None:
        """End the node at once: connections break, nobody is told. Its disk stays as it is."""
        self._node().kill()
        self._poke()

    def power_off(self) -> None:
        """The same, and of what was not synced yet the disk keeps only some, by the seed."""
        self._node().power_off()
        self._poke()

    def stop(self) -> None:
        """Ask the node to end, as SIGTERM does."""
        self._node().stop()
        self._poke()

    def snapshot(self) -> dict[str, Any]:
        """What the node holds and has done."""
        return self._node().node.snapshot()

    @property
    def disk(self) -> Disk:
        """The node's disk, or what is left of it: see its `fail`, `mend` and `capacity`."""
        disk = self._node().disk
        assert disk is not None
        return disk

    @property
    def trace_hash(self) -> str:
        """The story of all bytes so far, in one word: the same test, the same word."""
        return self._world.trace_hash

    # --------------------------------------------------------------------- inside

    def _node(self) -> Broker:
        assert self._broker is not None, "use the bus as a context: async with Bus() as bus"
        return self._broker

    async def connector(self, factory: Factory, address: Address) -> Any:
        """What a `Peer` or `Service` needs to connect to this node: `connector=bus.connector`."""
        return await self._connect(factory, address)

    async def _connect(self, factory: Factory, address: Address) -> Any:
        broker = self._node()
        if broker.stopped or not broker.accepting:
            raise ConnectionRefusedError(111, "Connection refused")
        self._catch_up()
        transport = _Transport(self, broker.connect(), factory())
        self._poke()
        return transport

    def _catch_up(self) -> None:
        """Let the world happen up to now."""
        assert self._loop is not None
        # A microsecond more than the loop's clock says, whose rounding must not stop the world.
        ns = int((self._loop.time() - self._began) * 1e9) + 1000
        self._world.advance_to(max(ns, self._world.ns))

    def _poke(self) -> None:
        """Something may happen in the world: be there when it does."""
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ns = self._world.next_ns
        if next_ns is not None:
            self._timer = self._loop.call_at(self._began + next_ns / 1e9, self._pump)

    def _pump(self) -> None:
        self._catch_up()
        self._poke()


class _Transport(asyncio.Transport):
    """A connection in memory, as asyncio has them."""

    def __init__(self, bus: Bus, pipe: Pipe, protocol: Wire) -> None:
        super().__init__()
        self._bus = bus
        self._pipe = pipe
        self._protocol = protocol
        self._gone = False
        pipe.on_data = self._data
        pipe.on_close = self._closed
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._bus._catch_up()
        self._pipe.send(bytes(data))
        self._bus._poke()

    def close(self) -> None:
        self._bus._catch_up()
        self._pipe.close()
        self._bus._poke()

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._gone

    def _data(self, data: bytes) -> None:
        if not self._gone:
            self._protocol.data_received(data)

    def _closed(self, reason: str) -> None:
        if not self._gone:
            self._gone = True
            self._protocol.connection_lost(None)


# ------------------------------------------------------------------------ virtual time


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for time to pass: it makes it pass."""

    jumped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # only another thread, or nobody, will wake us
            ready = super().select(5.0)
            if not ready:
                raise WorldError("timed-out", "everybody waits, and nothing will ever happen")
            return ready
        self.jumped += timeout
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jumped


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coroutine)


def virtual_time(
    test: Callable[Parameters, Awaitable[Result]],
) -> Callable[Parameters, Result]:
    """Make an `async` test an ordinary one that runs in virtual time."""

    @functools.wraps(test)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        async def main() -> Result:
            return await test(*args, **kwargs)

        return run(main())

    return wrapped
