"""Nodes that reach each other by other addresses than 127.0.0.1 and their own port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from network.cluster import PATIENCE_S, Cluster, Node, free_ports
from regraft import connect

STORY_S = 120.0


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no [::1]")


def tell(cluster: Cluster, story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(STORY_S):
            await cluster.all_there()
            await cluster.one_tree()
            await story()

    with cluster:
        asyncio.run(whole())


async def goes_through(source: Node, target: Node) -> None:
    """What is published at one node comes to a subscriber of another."""
    async with await connect(target.url) as taker, await connect(source.url) as giver:
        subscription = await taker.subscribe("a/#")
        async with asyncio.timeout(PATIENCE_S):
            while True:  # until the other node knows
                await giver.publish("a/b", b"x")
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        assert (await anext(aiter(subscription))).body == b"x"
                        return


async def all_ways(nodes: list[Node]) -> None:
    for source in nodes:
        for target in nodes:
            if source is not target:
                await goes_through(source, target)


@ipv6
@pytest.mark.parametrize("host", ["[::1]", "[::]"])
def test_nodes_with_addresses_of_ipv6(tmp_path: Path, host: str) -> None:
    """Three of them; the one by whom the others joined goes, and they find each other."""
    ports = free_ports(3)
    join = ["--join", f"[::1]:{ports[0]}"]
    listen = [] if host == "[::1]" else ["--host", "::"]
    nodes = [
        Node(tmp_path, f"n{number}", port, "::1", reach="", arguments=[*join, *listen])
        for number, port in enumerate(ports, 1)
    ]
    for node, port in zip(nodes, ports, strict=True):
        node.address = node.url = f"[::1]:{port}"
    cluster = Cluster(nodes)

    async def story() -> None:
        await all_ways(nodes)
        found = await cluster.one_tree()
        addresses = {link["address"] for each in found.values() for link in each["links"]}
        assert addresses <= {node.address for node in nodes}
        async with asyncio.timeout(PATIENCE_S):
            while any(
                link["rtt_us"] is None
                for each in (await cluster.one_tree()).values()
                for link in each["links"]
            ):
                await asyncio.sleep(0.1)
        nodes[0].kill()
        await cluster.one_tree(["n2", "n3"])
        await all_ways(nodes[1:])

    tell(cluster, story)


@contextmanager
def forwarded(port: int, to: int) -> Iterator[list[socket.socket]]:
    """Connections to a port go to another one, as through a router; datagrams do not."""
    listener = socket.create_server(("127.0.0.1", port))
    seen: list[socket.socket] = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                here, _ = listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", to))
                except OSError:
                    here.close()
                    continue
                seen.extend((here, there))
                for pair in ((here, there), (there, here)):
                    Thread(target=pump, args=pair, daemon=True).start()

    Thread(target=accept, daemon=True).start()
    try:
        yield seen
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for end in seen:
            end.close()


def test_a_node_that_is_reached_by_another_port_than_its_own(tmp_path: Path) -> None:
    """The root stands behind a router: others know it by what it says, and come back to it."""
    inner, outer, second, third = free_ports(4)
    nodes = [
        Node(tmp_path, "n1", inner, arguments=["--advertise", f"127.0.0.1:{outer}"]),
        Node(tmp_path, "n2", second, arguments=["--join", f"127.0.0.1:{outer}"]),
        Node(tmp_path, "n3", third, arguments=["--join", f"127.0.0.1:{second}"]),
    ]
    cluster = Cluster(nodes)

    async def story() -> None:
        await all_ways(nodes)
        assert seen, "nobody came by the forwarded port"
        found = await cluster.one_tree()
        known = {
            link["address"]
            for name, each in found.items()
            for link in each["links"]
            if link["name"] == "n1" and name != "n1"
        }
        assert known == {f"127.0.0.1:{outer}"}
        nodes[1].kill()  # n3 knows n1 by what n2 told it
        await cluster.one_tree(["n1", "n3"])
        await all_ways([nodes[0], nodes[2]])

    with forwarded(outer, inner) as seen:
        tell(cluster, story)
