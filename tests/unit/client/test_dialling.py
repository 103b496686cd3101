"""How a client reaches a node of its own machine."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from typing import Any

import pytest

from regraft import Options
from regraft.client import Client
from regraft.client.address import Address
from regraft.client.dialling import reach_locally
from regraft.errors import WorldError
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.node.node import Node
from regraft.runtime.clock import Clock
from regraft.runtime.driver import Driver
from regraft.runtime.local import listen_locally
from regraft.wire.local import local_name, name_to_take

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has such names")


def test_a_local_socket_is_named_after_the_port_by_which_its_node_is_reached_here() -> None:
    name = local_name("127.0.0.1", 7447)
    assert name == local_name("localhost", 7447) == name_to_take("127.0.0.1", 7447)
    assert name == name_to_take("0.0.0.0", 7447)
    assert name != local_name("127.0.0.1", 7448)
    for elsewhere in ("10.0.0.7", "127.0.0.2", "::1", "::", "node.example"):
        assert not local_name(elsewhere, 7447) and not name_to_take(elsewhere, 7447)


async def met(host: str, **options: Any) -> tuple[str, int]:
    """A node and a client of it: who the node says that it is, and by what kind of socket."""
    node = Node(Identity(bytes(16), "n", 1), Limits(), 10_000, random.Random(1))
    driver = Driver(node, Clock(), asyncio.get_running_loop())
    _, port = driver.listen(host, 0)
    client = Client(f"localhost:{port}", Options(client_id="c", **options))
    await client.open()
    (c,) = node._connections.values()
    sock = client._transport.get_extra_info("socket")
    seen = c.peer, sock.family
    await client.close()
    driver.shut()
    return seen


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_client_uses_the_local_socket_unless_it_is_told_not_to(host: str) -> None:
    assert asyncio.run(met(host)) == (f"local:{os.getpid()}", socket.AF_UNIX)
    peer, family = asyncio.run(met(host, local=False))
    assert peer.startswith("127.0.0.1:") and family == socket.AF_INET


@linux
def test_where_there_is_none_a_client_uses_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.runtime.driver.listen_locally", lambda *_: None)
    assert asyncio.run(met("127.0.0.1"))[1] == socket.AF_INET


@linux
def test_it_is_gone_with_its_node_and_nobody_else_may_have_it_meanwhile() -> None:
    async def main() -> None:
        node = Node(Identity(bytes(16), "n", 1), Limits(), 10_000, random.Random(1))
        driver = Driver(node, Clock(), asyncio.get_running_loop())
        _, port = driver.listen("127.0.0.1", 0)
        here = Address("127.0.0.1", port)
        reached = reach_locally(here)
        assert reached is not None
        reached.close()
        with pytest.raises(OSError):
            listen_locally("127.0.0.1", port, 1)
        driver.shut()
        assert reach_locally(here) is None

        somebody = listen_locally("127.0.0.1", port, 1)
        assert somebody is not None
        with somebody, pytest.raises(WorldError, match="another node"):
            driver.listen("127.0.0.1", port)

    asyncio.run(main())
