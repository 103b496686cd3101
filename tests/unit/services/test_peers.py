"""Peers and services on real nodes in memory, in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from regraft import ReceivedMessage
from regraft.client.address import Address
from regraft.client.dialling import Factory
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.services import HandlerError, Peer, Route, Service, current
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
    """Several nodes that do not know each other, and peers on all of them."""

    def __init__(self, nodes: int, rules: str = RULES) -> None:
        self.buses = [Bus(seed, rules=rules) for seed in range(nodes)]
        self.nodes = ",".join(f"node:{k + 1}" for k in range(nodes))
        self.peers: list[Peer] = []

    async def connector(self, factory: Factory, address: Address) -> Any:
        return await self.buses[address.port - 1].connector(factory, address)

    async def peer(self, **more: Any) -> Peer:
        peer = Peer(self.nodes, connector=self.connector, **more)
        self.peers.append(peer)
        return await peer.open()

    def service(self, type: str = "SEARCH", **more: Any) -> Service:
        service = Service(type, self.nodes, connector=self.connector, **more)
        self.peers.append(service)
        return service


@asynccontextmanager
async def site(nodes: int = 1, rules: str = RULES) -> AsyncIterator[Site]:
    made = Site(nodes, rules)
    for bus in made.buses:
        await bus.__aenter__()
    try:
        yield made
    finally:
        for peer in made.peers:
            await peer.close()
        for bus in made.buses:
            await bus.__aexit__(None, None, None)


def code(error: pytest.ExceptionInfo[RegraftError]) -> str:
    return error.value.code.name


@dataclass
class Question:
    text: str


class Found(msgspec.Struct):
    places: list[str]


@virtual_time
async def test_a_query_is_answered_with_the_types_that_were_meant() -> None:
    async with site() as world:
        service = world.service()

        @service.handle("ASKED")
        async def search(question: Question) -> Found:
            return Found([question.text, current().caller])

        await service.open()
        peer = await world.peer(id="web-1")
        found = await peer.query("ASKED", Question("ship"), reply=Found)
        assert found == Found(["ship", "web-1"])
        message = await peer.query("ASKED", {"text": "sea"})
        assert isinstance(message, ReceivedMessage)
        assert message.json() == {"places": ["sea", "web-1"]}
        assert message.content_type == "application/json"
        with pytest.raises(RegraftError) as error:
            await peer.query("ASKED", {"word": "sea"}, timeout=1)
        assert code(error) == "backend-error" and "no Question" in str(error.value)


@virtual_time
async def test_what_an_answer_or_a_request_leads_to_is_written_in_the_same_turn() -> None:
    async with site() as here:
        service = here.service()

        @service.handle("ASKED")
        async def search(body: bytes) -> bytes:
            return body

        await service.open()
        peer = await here.peer()
        asked_for: list[str] = []  # what had nobody to be written by
        for who in (service, peer):
            line = who.lines[0]

            def flush_soon(outbox: Any, who: Any = who, line: Any = line) -> None:
                asked_for.append(who.type)
                type(line)._flush_soon(line, outbox)

            line._flush_soon = flush_soon  # type: ignore[method-assign]
        for k in range(3):
            assert (await peer.query("ASKED", b"%d" % k)).body == b"%d" % k
        assert asked_for == [""]  # the first question, which nothing came before


@virtual_time
async def test_a_blocking_handler_runs_in_a_thread_with_its_context() -> None:
    async with site() as world:
        service = world.service()

        @service.handle("ASKED")
        def search(body: bytes) -> str:
            return f"{body.decode()} {current().type} {current().remaining is not None}"

        await service.open()
        peer = await world.peer()
        assert await peer.query("ASKED", b"x", reply=str) == "x ASKED True"


@virtual_time
async def test_what_a_handler_raises_is_told_safely() -> None:
    async with site() as world:
        service = world.service()

        @service.handle("ASKED")
        async def search(body: str) -> None:
            if body == "mine":
                raise HandlerError("not today")
            raise ValueError("secret\n" + "x" * 10_000)

        await service.open()
        peer = await world.peer()
        with pytest.raises(WorldError) as error:
            await peer.query("ASKED", "any", timeout=1)
        assert code(error) == "backend-error"
        assert error.value.text.startswith("ValueError: secret xxx")
        assert len(error.value.text) < 600
        with pytest.raises(WorldError, match=r"^not today"):
            await peer.query("ASKED", "mine", timeout=1)
        assert service.counts["errors"] == 2


@virtual_time
async def test_another_instance_answers_if_one_fails() -> None:
    async with site(2) as world:
        for function in (fine, broken):
            await serve(world.service(), function).open()
        peer = await world.peer()
        for _ in range(4):
            assert await peer.query("ASKED", b"", reply=str, timeout=1) == "fine"
        assert peer.counts["repeated"] == peer.counts["searches"] > 0


async def fine(body: bytes) -> str:
    return "fine"


async def broken(body: bytes) -> str:
    raise ValueError("broken")


async def hang(body: bytes) -> str:
    await asyncio.sleep(1000)
    return "late"


def serve(service: Service, function: Any, type: str = "ASKED") -> Service:
    service.handle(type)(function)
    return service


@virtual_time
async def test_if_one_hangs_another_answers_in_time() -> None:
    async with site() as world:
        await serve(world.service(), hang).open()
        await serve(world.service(), fine).open()
        peer = await world.peer()
        loop = asyncio.get_running_loop()
        began = loop.time()
        answers = [await peer.query("ASKED", b"", reply=str, timeout=2) for _ in range(3)]
        assert answers == ["fine"] * 3
        assert loop.time() - began < 2.5
        assert peer.counts["repeated"] >= 1


@virtual_time
async def test_a_query_that_must_not_repeat_fails_instead() -> None:
    async with site() as world:
        await serve(world.service(), hang).open()
        peer = await world.peer()
        with pytest.raises(WorldError) as error:
            await peer.query("ASKED", b"", timeout=1, idempotent=False)
        assert code(error) == "timed-out" and peer.counts["searches"] == 0


@virtual_time
async def test_nobody_is_known_at_once_and_not_after_the_timeout() -> None:
    async with site(3) as world:
        peer = await world.peer()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(WorldError) as error:
            await peer.query("ASKED", b"", timeout=60)
        assert code(error) == "undeliverable"
        assert loop.time() - began < 1


@virtual_time
async def test_a_node_that_dies_is_not_noticed_by_callers() -> None:
    async with site(3) as world:
        for _ in range(2):
            await serve(world.service(), fine).open()
        peer = await world.peer()

        async def kill() -> None:
            await asyncio.sleep(0.05)
            world.buses[int(peer.lines[0].address[-1]) - 1].kill()

        killing = asyncio.create_task(kill())
        for _ in range(20):
            assert await peer.query("ASKED", b"", reply=str, timeout=2) == "fine"
            await asyncio.sleep(0.01)
        await killing
        assert sum(line.is_up for line in peer.lines) == 2
        for bus in world.buses:
            bus.start()
        await asyncio.sleep(10)
        assert all(line.is_up for line in peer.lines)


@virtual_time
async def test_it_is_searched_again_if_the_node_of_the_third_phase_dies_too() -> None:
    async with site(3) as world:
        service = serve(world.service(), fine)
        await service.open()
        peer = await world.peer()
        dead = []

        def kill(line: Any) -> None:
            dead.append(line)
            world.buses[int(line.address[-1]) - 1].kill()

        put = peer._put

        def put_and_kill(call: Any, request: Any, more: bytes = b"") -> bool:
            went = put(call, request, more)
            if len(dead) == 1:
                assert call.phase == 3 and went
                kill(call.by)  # before anything is written
            return went

        peer._put = put_and_kill  # type: ignore[method-assign]
        asking = asyncio.create_task(peer.query("ASKED", b"", reply=str, timeout=10))
        await asyncio.sleep(0)
        kill(peer.lines[0])
        assert await asking == "fine"
        assert len(set(dead)) == 2
        assert peer.counts["searches"] == peer.counts["repeated"] == 2
        assert service.counts["handled"] == 1 and peer.counts["answered_twice"] == 0


@virtual_time
async def test_a_request_on_its_way_when_the_node_dies_is_answered() -> None:
    async with site(2) as world:
        service = world.service()

        async def slow(body: bytes) -> str:
            await asyncio.sleep(0.2)
            return "done"

        await serve(service, slow).open()
        peer = await world.peer()
        asking = asyncio.create_task(peer.query("ASKED", b"", reply=str, timeout=5))
        await asyncio.sleep(0.1)
        world.buses[int(peer.lines[0].address[-1]) - 1].kill()
        assert await asking == "done"
        assert service.counts["handled"] == 1  # once, though it was asked for twice


@virtual_time
async def test_an_event_comes_once_by_whatever_way() -> None:
    async with site(3) as world:
        seen: list[tuple[int, bytes]] = []
        for k in range(2):
            await serve(world.service(), noting(seen, k), "TOLD").open()
        peer = await world.peer()
        assert await peer.event("TOLD", b"a") == 3
        assert await peer.event("TOLD", b"b", copies=2) == 2
        world.buses[0].kill()
        await asyncio.sleep(0.1)
        assert await peer.event("TOLD", b"c") == 2
        await asyncio.sleep(1)
        assert sorted(seen) == [(k, body) for k in range(2) for body in (b"a", b"b", b"c")]


def noting(seen: list[tuple[int, bytes]], k: int) -> Any:
    async def told(body: bytes) -> None:
        seen.append((k, body))

    return told


@virtual_time
async def test_a_request_that_expired_is_not_handled() -> None:
    async with site() as world:
        service = world.service(concurrency=1)
        handled = []

        async def slow(body: bytes) -> str:
            handled.append(body)
            await asyncio.sleep(0.1)
            return "done"

        await serve(service, slow).open()
        peer = await world.peer()
        first = asyncio.create_task(peer.query("ASKED", b"1", timeout=5))
        await asyncio.sleep(0.01)
        message = asyncio.create_task(peer.query("ASKED", b"2", timeout=5, idempotent=False))
        await asyncio.sleep(0.01)
        (_, _, request) = service._queue[0]
        request.until_us = time.time_ns() // 1000 - 1  # its time is over
        await first
        with pytest.raises(WorldError):
            await message
        assert handled == [b"1"] and service.counts["expired"] == 1


@virtual_time
async def test_who_gives_up_cancels_what_waits() -> None:
    async with site(2) as world:
        service = world.service(concurrency=1)
        handled = []

        async def slow(body: bytes) -> str:
            handled.append(body)
            await asyncio.sleep(1)
            return "done"

        await serve(service, slow).open()
        peer = await world.peer()
        first = asyncio.create_task(peer.query("ASKED", b"1", timeout=5))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(peer.query("ASKED", b"2", timeout=5))
        await asyncio.sleep(0.1)
        second.cancel()
        await first
        await asyncio.sleep(3)
        assert handled == [b"1"] and service.counts["cancelled"] == 1


@virtual_time
async def test_priorities_decide_what_waits() -> None:
    async with site() as world:
        service = world.service(concurrency=1)
        handled: list[bytes] = []

        async def slow(body: bytes) -> None:
            handled.append(body)
            await asyncio.sleep(0.1)

        await serve(service, slow, "TOLD").open()
        client = await world.buses[0].connect()
        for body, priority in ((b"first", 4), (b"low", 1), (b"high", 9), (b"mid", 4)):
            await client.publish("$type/TOLD", body, priority=priority)
        await asyncio.sleep(2)
        assert handled == [b"first", b"high", b"mid", b"low"]


@virtual_time
async def test_somebody_who_works_on_it_may_say_so() -> None:
    async with site() as world:
        service = world.service()

        async def slow(body: bytes) -> str:
            service.received()
            await asyncio.sleep(0.7)
            return "done"

        await serve(service, slow).open()
        await serve(world.service(), slow).open()
        peer = await world.peer()
        for _ in range(2):
            assert await peer.query("ASKED", b"", reply=str, timeout=1) == "done"


@virtual_time
async def test_what_a_handler_asks_belongs_to_the_same_task() -> None:
    async with site() as world:
        outer, inner = world.service(), world.service("OTHER")
        contexts = []

        async def deep(body: bytes) -> str:
            contexts.append(current())
            return "deep"

        async def shallow(body: bytes) -> Any:
            contexts.append(current())
            return await outer.query("FORWARDED", body, reply=str, timeout=60)

        await serve(outer, shallow).open()
        await serve(inner, deep, "FORWARDED").open()
        peer = await world.peer(id="web")
        assert await peer.query("ASKED", b"", reply=str, timeout=2) == "deep"
        first, second = contexts
        assert first.workflow and first.workflow == second.workflow
        assert first.caller == "web" and second.caller == outer.id
        assert second.deadline <= first.deadline + 0.001


@virtual_time
async def test_a_service_that_drains_finishes_what_it_has() -> None:
    async with site(2) as world:
        service, other = world.service(), world.service()

        async def slow(body: bytes) -> str:
            await asyncio.sleep(0.3)
            return "old"

        await serve(service, slow).open()
        peer = await world.peer()
        asking = [asyncio.create_task(peer.query("ASKED", b"", reply=str)) for _ in range(5)]
        await asyncio.sleep(0.1)
        await serve(other, fine).open()
        assert await service.drain(5)
        assert await asyncio.gather(*asking) == ["old"] * 5
        assert await peer.query("ASKED", b"", reply=str) == "fine"
        assert service.health()["draining"]


@virtual_time
async def test_health_can_be_asked_for() -> None:
    async with site(2) as world:
        service = serve(world.service(), fine)
        await service.open()
        peer = await world.peer()
        await peer.query("ASKED", b"")
        health = await peer.ask_health(service.id)
        assert health["handled"] == 1 and health["nodes"] == 2 and health["types"]["ASKED"]
        with pytest.raises(WorldError) as error:
            await peer.ask_health("nobody")
        assert code(error) == "undeliverable"


@virtual_time
async def test_messages_may_have_an_address_or_rules_of_their_own() -> None:
    async with site() as world:
        services = [serve(world.service(), fine) for _ in range(3)]
        for service in services:
            await service.open()
        peer = await world.peer()
        for _ in range(3):
            await peer.query("ASKED", b"", to=services[1].id)
        assert services[1].counts["handled"] == 3
        other = serve(world.service("OTHER"), fine)
        await other.open()
        await peer.query("ASKED", b"", rules=(Route("OTHER"),))
        assert other.counts["handled"] == 1
        found: list[Any] = []
        peer.on_undeliverable(found.append)
        await peer.send("ASKED", b"", to="nobody", report=True)
        await asyncio.sleep(1)
        assert found[0].attributes["reason"] == "nobody takes it"


@virtual_time
async def test_rules_change_under_load_and_nothing_is_lost() -> None:
    async with site() as world:
        old, new = serve(world.service(), fine), serve(world.service("OTHER"), fine)
        await old.open()
        await new.open()
        peer = await world.peer()
        client = await world.buses[0].connect()

        async def load() -> None:
            for _ in range(200):
                assert await peer.query("ASKED", b"", reply=str, timeout=5) == "fine"

        loads = [asyncio.create_task(load()) for _ in range(5)]
        other = RULES.replace(
            '[types.ASKED]\nroutes = [{ to = "SEARCH" }]',
            '[types.ASKED]\nroutes = [{ to = "OTHER" }]',
        )
        for turn in range(40):
            await asyncio.sleep(0.01)
            await client.command("rules-load", text=RULES if turn % 2 else other)
        await asyncio.gather(*loads)
        assert old.counts["handled"] + new.counts["handled"] == 1000
        assert old.counts["handled"] and new.counts["handled"]
        assert peer.counts["repeated"] == peer.counts["searches"] == 0


@virtual_time
async def test_an_unreachable_site_is_an_error_and_so_is_nonsense() -> None:
    async with site(2) as world:
        for bus in world.buses:
            bus.kill()
        with pytest.raises(WorldError) as error:
            await world.peer()
        assert code(error) == "unreachable"
        for wrong in ({"type": "a b"}, {"id": "a/b"}, {"copies": -1}):
            with pytest.raises(LocalError):
                Peer("node:1", **wrong)  # type: ignore[arg-type]
        with pytest.raises(LocalError):
            Service("", "node:1")
        service = world.service()
        with pytest.raises(LocalError, match="one argument"):
            service.handle("ASKED")(lambda: None)
        serve(service, fine)
        with pytest.raises(LocalError, match="already"):
            serve(service, fine)


@virtual_time
async def test_a_passive_peer_is_not_asked_for_heartbeats() -> None:
    async with site() as world:
        peer = await world.peer(passive=True, heartbeat=1.0)
        connections = world.buses[0]._node().node._connections.values()
        assert [c.passive for c in connections] == [True]
        assert peer.lines[0].is_up


@virtual_time
async def test_subscribers_of_a_group_share_and_are_told_apart_by_what_they_took() -> None:
    async with Bus() as bus:
        clients = [await bus.connect() for _ in range(3)]
        subscriptions = [await c.subscribe("orders/#", group="workers") for c in clients[:2]]
        for _ in range(3):
            await clients[2].publish_many("orders/eu", [b"x"] * 600)
            await asyncio.sleep(1)
            taken = [len(await one.next_batch(1)) for one in subscriptions]
            assert taken == [300, 300]
            await asyncio.sleep(1)
        # One that takes nothing gets no more than it may have in its hands.
        for _ in range(4):
            await clients[2].publish_many("orders/eu", [b"x"] * 500)
            await asyncio.sleep(1)
            await subscriptions[0].next_batch(1)
        assert subscriptions[1].pending() <= 1024
        assert bus.snapshot()["undelivered"] == {}
