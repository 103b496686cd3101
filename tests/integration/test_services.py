"""Services on real processes: nodes and services are killed, rules change under load."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regraft.errors import RegraftError
from regraft.services import Peer, Service

ROOT = Path(__file__).parents[2]
RULES = """
[peers.ECHO]
[peers.TAKER]
[peers.OTHER]
[types.ASKED]
routes = [{ to = "ECHO" }]
[types.TOLD]
routes = [{ to = "TAKER", whom = "all" }]
"""


class Nodes:
    """Node processes."""

    def __init__(self, folder: Path, count: int, rules: str = RULES, join: bool = False) -> None:
        self.folder = folder
        self.join = join  # or they do not know each other
        self.rules = folder / "rules.toml"
        self.rules.write_text(rules)
        with contextlib.ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(count)]
            for probe in probes:
                probe.bind(("127.0.0.1", 0))
            self.ports = [int(probe.getsockname()[1]) for probe in probes]
        self.processes = [self.start(port) for port in self.ports]
        for port in self.ports:
            self.wait(port)

    @property
    def target(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self, port: int) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "regraft", "serve", "-p", str(port)]
        line += ["--data", str(self.folder / str(port)), "--rules", str(self.rules)]
        if self.join and port != self.ports[0]:
            line += ["--join", f"127.0.0.1:{self.ports[0]}"]
        with (self.folder / f"{port}.log").open("ab") as log:
            return subprocess.Popen(line, stdout=log, stderr=log)

    def wait(self, port: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            time.sleep(0.05)
        raise TimeoutError((self.folder / f"{port}.log").read_text())

    def kill(self, k: int) -> None:
        self.processes[k].kill()
        self.processes[k].wait()

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def ten(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, 10)
    yield nodes
    nodes.end()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, 2)
    yield nodes
    nodes.end()


class Taker(Peer):
    """Counts how often each message came."""

    def __init__(self, target: str) -> None:
        super().__init__(target, type="TAKER", heartbeat=20.0, connect_timeout=60.0)
        self.got: dict[bytes, int] = {}

    def take_request(self, line: Any, message: Any, head: Any, ids: Any) -> None:
        self.got[message.body] = self.got.get(message.body, 0) + 1


async def echo(body: bytes) -> bytes:
    return body


async def kill_some(nodes: Nodes, count: int) -> None:
    for k in range(count):
        await asyncio.sleep(0.1)
        nodes.kill(k)


# C, S and T are smaller than in the seed's test, which `bench.services` has; K and D are the same.
CLIENTS, RECEIVERS, EACH = 4, 8, 300


@pytest.mark.parametrize("killed", [0, 5, 9])
def test_events_arrive_whatever_nodes_are_killed(ten: Nodes, killed: int) -> None:
    async def story() -> None:
        takers = [Taker(ten.target) for _ in range(RECEIVERS)]
        senders = [Peer(ten.target, heartbeat=20.0, connect_timeout=60.0) for _ in range(CLIENTS)]
        peers = [*takers, *senders]
        await asyncio.gather(*(peer.open() for peer in peers))
        assert all(line.is_up for peer in peers for line in peer.lines)

        async def send(sender: Peer) -> None:
            for k in range(EACH):
                await sender.event("TOLD", f"{sender.id} {k}".encode())
                await asyncio.sleep(0.003)

        killing = asyncio.create_task(kill_some(ten, killed))
        await asyncio.gather(*map(send, senders))
        await killing
        expected = {f"{sender.id} {k}".encode(): 1 for sender in senders for k in range(EACH)}
        until = time.monotonic() + 60
        while any(taker.got != expected for taker in takers) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        for taker in takers:
            assert taker.got == expected
        await asyncio.gather(*(peer.close() for peer in peers))

    asyncio.run(story())


def test_a_node_that_hangs_holds_nobody_up(two: Nodes) -> None:
    async def story() -> None:
        taker, service, client = Taker(two.target), Service("ECHO", two.target), Peer(two.target)
        service.handle("ASKED")(echo)
        peers: list[Peer] = [taker, service, client]
        await asyncio.gather(*(peer.open() for peer in peers))
        hangs = next(k for k, port in enumerate(two.ports) if str(port) in client.lines[0].address)
        two.processes[hangs].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        for k in range(3000):
            await client.event("TOLD", b"%d" % k)
        assert await client.query("ASKED", b"x", timeout=10.0, reply=bytes) == b"x"
        while len(taker.got) < 3000 and time.monotonic() < began + 30:
            await asyncio.sleep(0.05)
        assert taker.got == {b"%d" % k: 1 for k in range(3000)}
        two.processes[hangs].kill()
        await asyncio.gather(*(peer.close() for peer in peers))

    asyncio.run(story())


@pytest.mark.parametrize("killed", [0, 5, 9])
def test_queries_are_answered_whatever_nodes_are_killed(ten: Nodes, killed: int) -> None:
    async def story() -> None:
        services = [Service("ECHO", ten.target, heartbeat=20.0, connect_timeout=60.0)
                    for _ in range(4)]  # fmt: skip
        handled: list[list[bytes]] = [[] for _ in services]
        for k, service in enumerate(services):
            service.handle("ASKED")(noting(handled[k]))
        clients = [Peer(ten.target, heartbeat=20.0, connect_timeout=60.0) for _ in range(4)]
        peers = [*services, *clients]
        await asyncio.gather(*(peer.open() for peer in peers))
        deadline = 20.0
        slowest = 0.0

        async def ask(client: Peer) -> None:
            nonlocal slowest
            for k in range(200):
                body = f"{client.id} {k}".encode()
                began = time.monotonic()
                assert await client.query("ASKED", body, timeout=deadline, reply=bytes) == body
                slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(0.003)

        killing = asyncio.create_task(kill_some(ten, killed))
        await asyncio.gather(*map(ask, clients))
        await killing
        assert slowest < deadline
        for bodies in handled:  # no instance has handled one of them twice,
            assert len(bodies) == len(set(bodies))
        repeats = sum(map(len, handled)) - 800  # and those of two instances are counted
        assert 0 <= repeats <= sum(client.counts["repeated"] for client in clients)
        await asyncio.gather(*(peer.close() for peer in peers))

    asyncio.run(story())


def noting(seen: list[bytes]) -> Any:
    async def handler(body: bytes) -> bytes:
        seen.append(body)
        return body

    return handler


def test_rules_change_under_load_and_nothing_is_lost(two: Nodes) -> None:
    """Each of two services handles all that the rules of the moment say, and nobody asks twice."""

    async def story() -> None:
        first, second = Service("ECHO", two.target), Service("OTHER", two.target)
        for service in (first, second):
            service.handle("ASKED")(echo)
        client = Peer(two.target)
        peers: list[Peer] = [first, second, client]
        await asyncio.gather(*(peer.open() for peer in peers))
        over = False

        async def ask() -> int:
            count = 0
            while not over:
                assert await client.query("ASKED", b"x", timeout=20.0, reply=bytes) == b"x"
                count += 1
            return count

        asking = [asyncio.create_task(ask()) for _ in range(16)]
        other = RULES.replace('{ to = "ECHO" }', '{ to = "OTHER" }')
        for turn in range(20):
            await asyncio.sleep(0.05)
            for line in client.lines:
                await line.command("rules-load", text=RULES if turn % 2 else other)
        over = True
        total = sum(await asyncio.gather(*asking))
        assert first.counts["handled"] + second.counts["handled"] == total > 100
        assert first.counts["handled"] and second.counts["handled"]
        assert client.counts["searches"] == 0
        await asyncio.gather(*(peer.close() for peer in peers))

    asyncio.run(story())


def test_in_a_network_one_member_anywhere_gets_it(tmp_path: Path) -> None:
    async def story(nodes: Nodes) -> None:
        west, east = (f"127.0.0.1:{port}" for port in nodes.ports)
        services = [Service("ECHO", east) for _ in range(2)]
        for service in services:
            service.handle("ASKED")(echo)
        taker = Taker(east)
        client = Peer(west)
        peers: list[Peer] = [*services, taker, client]
        await asyncio.gather(*(peer.open() for peer in peers))
        until = time.monotonic() + 30
        while True:  # until the nodes know of each other
            report = await client.lines[0].inspect("services")
            if report["total"] == 3:
                break
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        for k in range(40):
            assert await client.query("ASKED", b"%d" % k, reply=bytes, timeout=20.0) == b"%d" % k
        assert [service.counts["handled"] for service in services] == [20, 20]
        await client.event("TOLD", b"once")
        while not taker.got:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        assert taker.got == {b"once": 1}
        near = Service("ECHO", west)
        near.handle("ASKED")(echo)
        async with near:
            for _ in range(10):
                await client.query("ASKED", b"x", timeout=20.0)
        assert near.counts["handled"] == 10  # who is here comes first
        await asyncio.gather(*(service.drain() for service in services))
        await asyncio.sleep(0.5)
        with pytest.raises(RegraftError) as error:
            await client.query("ASKED", b"x", timeout=20.0)
        assert error.value.code.name == "undeliverable"
        await asyncio.gather(*(peer.close() for peer in peers))

    nodes = Nodes(tmp_path, 2, join=True)
    try:
        asyncio.run(story(nodes))
    finally:
        nodes.end()


HANGS = """
import asyncio, sys
from regraft.services import Service
service = Service("ECHO", sys.argv[1])
@service.handle("ASKED")
async def hold(body: bytes) -> bytes:
    print("held", flush=True)
    await asyncio.sleep(1000)
    return body
asyncio.run(service.run())
"""


def test_what_a_killed_service_held_is_answered_by_another(two: Nodes) -> None:
    async def story() -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", HANGS, two.target], stdout=subprocess.PIPE, text=True
        )
        client = Peer(two.target)
        await client.open()
        try:
            while not (await client.lines[0].inspect("services"))["picked"].get("ECHO"):
                with contextlib.suppress(RegraftError):  # until it is there
                    await client.query("ASKED", b"first", timeout=0.5)
            asking = [
                asyncio.create_task(client.query("ASKED", b"%d" % k, timeout=20.0, reply=bytes))
                for k in range(50)
            ]
            await asyncio.sleep(0.5)
            service = Service("ECHO", two.target)
            service.handle("ASKED")(echo)
            await service.open()
            process.send_signal(signal.SIGKILL)
            assert sorted(await asyncio.gather(*asking)) == sorted(b"%d" % k for k in range(50))
            assert client.counts["repeated"] >= 50
            await service.close()
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        await client.close()

    asyncio.run(story())


# --------------------------------------------------------------------- the shell, the site


def shell(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "regraft", *arguments]
    return subprocess.run(line, capture_output=True, text=True, input=stdin, timeout=60)


def test_a_site_by_its_shell(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "small_site"
    nodes = Nodes(tmp_path, 2, (folder / "rules.toml").read_text())
    started = []
    try:
        for kind in ("predict", "search", "mail"):
            line = [sys.executable, str(folder / "services.py"), kind, nodes.target]
            started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        url = ("-u", nodes.target)
        until = time.monotonic() + 60
        while shell("services", *url, "--json").stdout.count('"well"') < 3:
            assert time.monotonic() < until
        found = shell("call", "SEARCH_REQUEST", '{"text": "ship"}', *url)
        assert found.stdout == '["ships of the line","shipping goods"]', found.stderr
        wrong = shell("call", "SEARCH_REQUEST", '{"text": ""}', *url, "-t", "1")
        assert wrong.returncode == 1 and "say what to search for" in wrong.stderr
        nodes.kill(0)
        order = '{"page": "shell scripts", "address": "me"}'
        assert shell("call", "MAIL_REQUEST", order, *url, "--once").returncode == 0
        assert "sent by 1 of 2" in shell("call", "ORDERED", order, *url, "--event").stderr
        found = shell("call", "SEARCH_REQUEST", '{"text": "sh"}', *url)
        assert found.stdout.startswith('["shell scripts"')
        load = subprocess.run(
            [sys.executable, str(folder / "load.py"), "2", "5", nodes.target],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        answered = re.search(r"(\d+) answered", load.stdout)
        assert answered and int(answered[1]) > 0 and "failed" not in load.stdout, load.stderr
        for process in started:
            process.send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=30)[0] for process in started]
        assert [process.returncode for process in started] == [0, 0, 0]
        assert said[2] == "to me: thank you for buying 'shell scripts'\n"
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        nodes.end()


def test_rules_by_the_shell(two: Nodes, tmp_path: Path) -> None:
    url = ("-u", two.target)
    file = tmp_path / "new.toml"
    file.write_text(RULES + '[types.MORE]\nroutes = [{ to = "OTHER" }]\n')
    assert "fine: 3 types, 3 peer types" in shell("rules", "check", str(file)).stdout
    assert shell("rules", "diff", str(two.rules), *url).returncode == 0
    different = shell("rules", "diff", str(file), *url)
    assert different.returncode == 1 and different.stdout.count("+ MORE: any OTHER") == 2
    assert shell("rules", "load", str(file), *url).returncode == 0
    assert "MORE" in shell("rules", "show", *url).stdout
    file.write_text(RULES + "[types.WORSE]\nrotes = 1\n")
    for command in ("check", "load", "diff"):
        wrong = shell("rules", command, str(file), *(url if command != "check" else ()))
        assert wrong.returncode == 2 and f"{file}:10: " in wrong.stderr
    assert "MORE" in shell("rules", "show", *url).stdout
    with (tmp_path / "bad.log").open("wb") as log:
        line = [sys.executable, "-m", "regraft", "serve", "-p", "0", "--rules", str(file)]
        line += ["--data", str(tmp_path / "bad")]
        assert subprocess.run(line, stdout=log, stderr=log, timeout=60).returncode == 2
    assert f"{file}:10: " in (tmp_path / "bad.log").read_text()
