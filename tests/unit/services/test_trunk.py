"""Peers that share connections: each for itself, whatever the others do."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from regraft.client.address import Address
from regraft.client.dialling import Factory
from regraft.errors import LocalError, RegraftError
from regraft.services import Peer, Service, Trunk
from regraft.testing import Bus, virtual_time

RULES = """
[peers.SEARCH]
[peers.OTHER]
[types.ASKED]
routes = [{ to = "SEARCH" }]
[types.FORWARDED]
routes = [{ to = "OTHER" }]
[types.TOLD]
routes = [{ to = "SEARCH", whom = "all" }]
"""


class Site:
    """Nodes that do not know each other, and trunks to all of them."""

    def __init__(self, nodes: int) -> None:
        self.buses = [Bus(seed, rules=RULES) for seed in range(nodes)]
        self.nodes = ",".join(f"node:{k + 1}" for k in range(nodes))
        self.trunks: list[Trunk] = []

    async def connector(self, factory: Factory, address: Address) -> Any:
        return await self.buses[address.port - 1].connector(factory, address)

    def trunk(self, **more: Any) -> Trunk:
        self.trunks.append(Trunk(self.nodes, connector=self.connector, **more))
        return self.trunks[-1]


@asynccontextmanager
async def site(nodes: int = 1) -> AsyncIterator[Site]:
    made = Site(nodes)
    for bus in made.buses:
        await bus.__aenter__()
    try:
        yield made
    finally:
        for trunk in made.trunks:
            await trunk.close()
        for bus in made.buses:
            await bus.__aexit__(None, None, None)


async def serving(trunk: Trunk, kind: str = "SEARCH", type: str = "ASKED") -> Service:
    """A service that says who it is."""
    service = Service(kind, trunk)

    @service.handle(type)
    async def answer(body: bytes) -> str:
        return service.id

    await service.open()
    return service


@virtual_time
async def test_services_on_one_connection_take_turns_and_callers_get_their_own_answers() -> None:
    async with site() as world:
        trunk = world.trunk()
        services = [await serving(trunk) for _ in range(3)]
        callers = world.trunk()
        peers = [await Peer(callers).open() for _ in range(4)]
        asked = [peer.query("ASKED", b"?", reply=str) for peer in peers for _ in range(3)]
        found = await asyncio.gather(*asked)
        assert {id: found.count(id) for id in found} == {one.id: 4 for one in services}
        assert all(peer.counts["answered"] == 3 for peer in peers)
        assert len(callers.lines) == 1


@virtual_time
async def test_each_peer_has_an_address_and_gets_an_event_once() -> None:
    async with site(3) as world:
        trunk = world.trunk()
        services = [await serving(trunk, type="TOLD") for _ in range(3)]
        peer = await Peer(world.trunk()).open()
        for k in range(5):
            assert await peer.event("TOLD", b"%d" % k) == 3
        await asyncio.sleep(0.1)
        assert [one.counts["handled"] for one in services] == [5, 5, 5]
        other = await serving(trunk, "OTHER", "FORWARDED")
        assert other.id.startswith(f"{trunk.id}~other-")
        said = await peer.query("FORWARDED", b"", to=other.id, reply=str)
        assert said == other.id
        assert (await peer.ask_health(services[1].id))["handled"] == 5


@virtual_time
async def test_one_that_leaves_takes_nothing_with_it() -> None:
    async with site() as world:
        trunk = world.trunk()
        first, second = [await serving(trunk) for _ in range(2)]
        peer = await Peer(trunk).open()
        assert await first.drain(1)
        await first.close()
        for _ in range(4):
            assert await peer.query("ASKED", b"?", reply=str) == second.id
        await second.close()
        with pytest.raises(RegraftError, match="undeliverable"):
            await peer.query("ASKED", b"?", timeout=1)


@virtual_time
async def test_what_a_service_had_in_its_hands_when_it_was_closed_is_counted_off() -> None:
    async with site() as world:
        trunk = world.trunk(in_flight=2)
        stuck = Service("SEARCH", trunk)

        @stuck.handle("ASKED")
        async def wait(body: bytes) -> None:
            await asyncio.sleep(1000)

        await stuck.open()
        peer = await Peer(world.trunk()).open()
        waiting = [asyncio.create_task(peer.query("ASKED", b"", timeout=1)) for _ in range(2)]
        await asyncio.sleep(0.01)
        await stuck.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        second = await serving(trunk)
        for _ in range(5):
            assert await peer.query("ASKED", b"?", timeout=1, reply=str) == second.id


@virtual_time
async def test_a_lost_connection_is_lost_for_all_and_comes_back_for_all() -> None:
    async with site(2) as world:
        trunk = world.trunk()
        services = [await serving(trunk) for _ in range(2)]
        peers = [await Peer(trunk).open() for _ in range(3)]
        for line in trunk.lines:
            line._transport.abort()
            found = [await peer.query("ASKED", b"?", reply=str, timeout=5) for peer in peers]
            assert set(found) <= {one.id for one in services}
            await asyncio.sleep(5)
        assert all(line.is_up for line in trunk.lines)
        assert [await peer.event("TOLD", b"") for peer in peers] == [2, 2, 2]


@virtual_time
async def test_what_is_wrong_with_a_peer_on_a_trunk_is_said() -> None:
    async with site() as world:
        trunk = world.trunk(id="web")
        with pytest.raises(LocalError, match="options are those of the trunk"):
            Peer(trunk, queue_messages=5)
        named = await Peer(trunk, id="a").open()
        assert named.id == "web~a"
        await trunk.close()
        with pytest.raises(LocalError, match="closed"):
            await Peer(trunk).open()
        with pytest.raises(LocalError, match="closed"):
            await named.query("ASKED", b"", timeout=1)


def test_handlers_have_contexts_of_their_own_and_tasks_that_can_be_cancelled() -> None:
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nobody's")

    async def story() -> None:
        async with site() as world:
            trunk = world.trunk()
            service = Service("SEARCH", trunk)

            @service.handle("ASKED")
            async def answer(body: bytes) -> str:
                before = mine.get()
                mine.set(body.decode())
                if body.startswith(b"w"):
                    await asyncio.sleep(0)
                    await asyncio.sleep(0.01)
                if body.startswith(b"t"):
                    try:
                        async with asyncio.timeout(0.01):
                            await asyncio.sleep(10)
                    except TimeoutError:
                        pass
                return f"{before} {mine.get()}"

            await service.open()
            peer = await Peer(trunk).open()
            bodies = ["a", "w1", "b", "w2", "t1", "c", "w3", "t2"]
            found = await asyncio.gather(*(peer.query("ASKED", body, reply=str) for body in bodies))
            assert found == [f"nobody's {body}" for body in bodies]
            assert await service.drain(1)

    asyncio.run(story())


def test_handlers_do_not_inherit_from_whoever_makes_them_run() -> None:
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nobody's")

    async def story() -> None:
        async with site() as world:
            trunk = world.trunk()
            service = Service("SEARCH", trunk)

            @service.handle("ASKED")
            async def answer(body: bytes) -> str:
                return mine.get()

            mine.set("somebody's")  # reading, and so handling, goes on in this context
            await service.open()
            peer = await Peer(trunk).open()
            assert await peer.query("ASKED", "a", reply=str) == "nobody's"

    asyncio.run(story())
