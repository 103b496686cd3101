"""Processes that are nodes of one network, and how to see that they are one tree."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regraft import RegraftError, connect

PATIENCE_S = 20.0
START_S = 40.0  # for a process to be there, on a machine that has much else to do
BEACON_MS = 250
SETTINGS = {
    "REGRAFT_BEACON_MS": str(BEACON_MS),
    "REGRAFT_MAX_DEGREE": "3",  # two children at most, so that a few nodes make a deep tree
    "REGRAFT_LIMITS__DRAIN_MS": "3000",
}
ALARMING = ("Traceback", "made a mistake")

Topologies = dict[str, dict[str, Any]]  # by the name of the node


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, for TCP and UDP."""
    probes = []
    try:
        for _ in range(count):
            probes.append(socket.create_server(("127.0.0.1", 0)))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Node:
    """One process, perhaps several after each other, with one data folder and one address."""

    def __init__(
        self,
        folder: Path,
        name: str,
        port: int,
        host: str = "127.0.0.1",
        *,
        arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
        reach: str = "",
    ) -> None:
        self.name = name
        self.address = f"{host}:{port}"  # for other nodes
        self.url = f"{reach or host}:{port}"  # for the test
        self.log = folder / f"{name}.log"
        self.log.touch()
        listen = ["--host", "0.0.0.0", "--advertise", self.address] if reach else ["--host", host]
        self._command = [*prefix, sys.executable, "-m", "regraft", "serve", "-p", str(port)]
        self._command += [*listen, "--name", name, "--data", str(folder / name), *arguments]
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; again, if it has ended."""
        keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                self._command, env=environ | SETTINGS, stdout=subprocess.DEVNULL, stderr=output
            )

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.popen is not None
        self.popen.send_signal(number)

    def kill(self) -> None:
        """It is gone at once."""
        self.signal(signal.SIGKILL)
        assert self.popen is not None
        self.popen.wait(PATIENCE_S)

    async def exit_code(self) -> int:
        """Wait for it to end."""
        assert self.popen is not None
        async with asyncio.timeout(PATIENCE_S):
            while self.popen.poll() is None:
                await asyncio.sleep(0.01)
        return int(self.popen.returncode)

    async def topology(self) -> dict[str, Any]:
        """What it says of its place."""
        client = await connect(self.url, reconnect=False, connect_timeout=1.0)
        async with client:
            return await client.inspect("topology", timeout=1.0)


class Cluster:
    """Some nodes that join by the first two of them. Use it as a context."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)

    @classmethod
    def on_loopback(cls, folder: Path, count: int) -> Cluster:
        """All on this machine, without a network."""
        ports = free_ports(count)
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports[:2])
        join = ["--join", seeds]
        return cls(
            Node(folder, f"n{number}", port, arguments=join) for number, port in enumerate(ports, 1)
        )

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [node.name for node in self.nodes]

    def __enter__(self) -> Cluster:
        for node in self.nodes:
            node.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """They end, and none of them has anything to complain about."""
        running = [node for node in self.nodes if node.runs]
        for node in running:
            with suppress(ProcessLookupError):
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        for node in running:
            assert node.popen is not None
            with suppress(subprocess.TimeoutExpired):
                node.popen.wait(max(0.1, deadline - time.monotonic()))
            node.popen.kill()
            node.popen.wait()
        if kind is not None:
            return
        codes = {node.name: node.popen.returncode for node in running if node.popen}
        texts = {node.name: node.log.read_text() for node in self.nodes}
        for name, text in texts.items():
            assert not any(word in text for word in ALARMING), f"{name}: {text[-3000:]}"
        assert not any(codes.values()), f"{codes}\n{self.logs()}"

    def logs(self, lines: int = 25) -> str:
        """The end of all logs, for a failure to be understood."""
        parts = []
        for node in self.nodes:
            tail = "\n".join(node.log.read_text().splitlines()[-lines:])
            parts.append(f"--- {node.name} at {node.address}\n{tail}")
        return "\n".join(parts)

    async def topologies(self, names: Iterable[str]) -> Topologies:
        """What each of these says of its place, as far as they answer."""

        async def ask(name: str) -> tuple[str, dict[str, Any] | None]:
            try:
                return name, await self[name].topology()
            except RegraftError:
                return name, None

        answers = await asyncio.gather(*map(ask, names))
        return {name: topology for name, topology in answers if topology is not None}

    async def all_there(self) -> None:
        """Wait until all of them answer."""
        async with asyncio.timeout(START_S):
            while len(await self.topologies(self.names)) < len(self.nodes):
                self._check(self.names)
                await asyncio.sleep(0.1)

    def _check(self, names: Iterable[str]) -> None:
        if ended := [name for name in names if not self[name].runs]:
            raise AssertionError(f"{', '.join(ended)} ended\n{self.logs()}")

    async def one_tree(self, names: Iterable[str] = (), within: float = PATIENCE_S) -> Topologies:
        """Wait until these, or all, are one tree, and no others are part of it."""
        wanted = list(names) or self.names
        why = ""
        began = time.monotonic()
        while time.monotonic() - began < within:
            found = await self.topologies(wanted)
            why = obstacle(found, wanted)
            self._check(wanted)
            if not why:
                print(f"one tree of {len(wanted)} after {time.monotonic() - began:.2f} s")
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"no tree of {wanted} within {within} s: {why}\n{self.logs()}")


def obstacle(found: Topologies, wanted: list[str]) -> str:
    """Why these are not one tree; empty if they are."""
    silent = [name for name in wanted if name not in found]
    if silent:
        return f"{', '.join(silent)} did not answer"
    ids = {topology["id"]: name for name, topology in found.items()}
    roots = [name for name, topology in found.items() if topology["parent"] is None]
    if len(roots) != 1:
        return f"there are {len(roots)} roots: {', '.join(roots)}"
    for name, topology in found.items():
        if topology["asking"]:
            return f"{name} asks somebody"
        if topology["root"] != found[roots[0]]["id"]:
            return f"{name} believes in another root"
        neighbours = [*topology["children"], *filter(None, [topology["parent"]])]
        for other in neighbours:
            if other not in ids:
                return f"{name} has a neighbour that is not among them"
        if topology["parent"] and topology["id"] not in found[ids[topology["parent"]]]["children"]:
            return f"{name} is no child of its parent"
        for child in topology["children"]:
            if found[ids[child]]["parent"] != topology["id"]:
                return f"{name} is not the parent of its child {ids[child]}"
    return ""


def paths(found: Topologies) -> dict[tuple[str, str], list[str]]:
    """The nodes on the way from each node to each, both ends included."""
    ids = {topology["id"]: name for name, topology in found.items()}
    up: dict[str, list[str]] = {}
    for name in found:
        way = [name]
        while parent := found[way[-1]]["parent"]:
            way.append(ids[parent])
        up[name] = way
    ways = {}
    for one in found:
        for two in found:
            shared = next(name for name in up[one] if name in up[two])
            down = up[two][: up[two].index(shared)]
            ways[one, two] = [*up[one][: up[one].index(shared) + 1], *reversed(down)]
    return ways


def root_of(found: Topologies) -> str:
    """The root."""
    return next(name for name, topology in found.items() if topology["parent"] is None)


def inner_of(found: Topologies) -> str:
    """A node with a parent and children."""
    return next(
        name for name, topology in found.items() if topology["parent"] and topology["children"]
    )


def leaf_of(found: Topologies) -> str:
    """A node with a parent and no children."""
    return next(
        name for name, topology in found.items() if topology["parent"] and not topology["children"]
    )
