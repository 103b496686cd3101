"""A real node in a process of its own, and clients that are bare sockets."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regraft.model.message import Message
from regraft.wire import native

PATIENCE_S = 20.0
MIB = 1024 * 1024


class Process:
    """`regraft serve` on a port that it chose, with its log in a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}
        command = [sys.executable, "-m", "regraft", "serve", "--data", str(folder / "data")]
        with self.log.open("wb") as output:
            self.popen = subprocess.Popen(
                [*command, *arguments], env=environ, stdout=subprocess.DEVNULL, stderr=output
            )

    def port(self) -> int:
        """Where it listens, once it does."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.popen.poll() is None:
            if found := re.search(r"listening on \S+:(\d+)", self.log.read_text()):
                return int(found[1])
            time.sleep(0.02)
        pytest.fail(f"the node does not listen: {self.log.read_text()}")

    def resident(self) -> int:
        """Its memory in bytes."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE_S)


class Bare:
    """A client that is only a socket."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.data = b""

    def send(self, *parts: bytes | native.Control | Message) -> None:
        self.sock.sendall(
            b"".join(part if isinstance(part, bytes) else native.encode(part) for part in parts)
        )

    def next(self) -> Any:
        """The next message; None at the end of the stream."""
        while (frame := native.read_frame(self.data, 0, 1 << 26)) is None:
            more = self.sock.recv(1 << 16)
            if not more:
                assert self.data == b"", "the stream ends in the middle of a frame"
                return None
            self.data += more
        kind, _, payload, end = frame
        self.data = self.data[end:]
        return native.decode(kind, payload)

    def wait_for(self, kind: type[Any]) -> Any:
        """The next message of this class; others are passed over."""
        while not isinstance(found := self.next(), kind):
            assert found is not None, f"the connection ended before a {kind.__name__}"
        return found

    def open(self, **hello: Any) -> native.Welcome:
        self.send(native.PREFACE, native.Hello(1, 1, **hello))
        welcome = self.next()
        assert isinstance(welcome, native.Welcome)
        return welcome


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: str) -> Process:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Process(folder, *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.end()


@pytest.fixture
def clients() -> Iterator[Callable[[int], Bare]]:
    opened: list[Bare] = []

    def connect(port: int) -> Bare:
        opened.append(Bare(port))
        return opened[-1]

    yield connect
    for client in opened:
        client.sock.close()


Connect = Callable[[int], Bare]


def test_messages_go_from_one_client_to_another(start: Start, clients: Connect) -> None:
    port = start("-p", "0").port()
    subscriber, publisher = clients(port), clients(port)
    assert subscriber.open(client_id="sub").client_id == "sub"
    subscriber.send(native.Subscribe(3, "news/#"))
    assert subscriber.next() == native.Subscribed(3)
    publisher.open()
    messages = [Message("news/eu", str(number).encode() * 50) for number in range(2_000)]
    publisher.send(*messages)
    got: list[Message] = []
    while len(got) < len(messages):
        transfer = subscriber.wait_for(native.Transfer)
        assert transfer.subscriptions == (3,)
        got += [subscriber.next() for _ in range(transfer.count)]
    assert got == messages


def test_garbage_gets_an_error_and_the_end(start: Start, clients: Connect) -> None:
    port = start("-p", "0").port()
    web = clients(port)
    web.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert web.next().name == "unknown-protocol"
    assert web.next() is None
    zeros = clients(port)
    zeros.open()
    zeros.send(bytes(1 << 20))  # more than is read before the end
    assert zeros.next().name == "bad-checksum"
    assert zeros.next() is None
    innocent = clients(port)
    innocent.open()
    innocent.send(native.Heartbeat(1))
    assert innocent.next() == native.Heartbeat(1, True)


def test_sigterm_sends_clients_away_and_ends_well(start: Start, clients: Connect) -> None:
    process = start("-p", "0")
    client = clients(process.port())
    client.open()
    process.popen.send_signal(signal.SIGTERM)
    assert "SIGTERM" in client.wait_for(native.Goaway).reason
    client.send(native.Bye())
    assert client.next() is None
    client.sock.close()
    assert process.popen.wait(PATIENCE_S) == 0
    assert "Traceback" not in process.log.read_text()


def test_a_client_that_does_not_go_is_let_go(start: Start, clients: Connect) -> None:
    process = start("-p", "0", "--limit", "drain_ms=200")
    client = clients(process.port())
    client.open()
    process.popen.send_signal(signal.SIGINT)
    assert client.wait_for(native.Error).name == "shutting-down"
    assert process.popen.wait(PATIENCE_S) == 0


def test_a_port_in_use_is_said_in_one_line(start: Start) -> None:
    port = start("-p", "0").port()
    second = start("-p", str(port))
    assert second.popen.wait(PATIENCE_S) == 1
    *_, last = second.log.read_text().splitlines()
    assert last.startswith("regraft: cannot listen on")
    assert "Choose another port with -p" in last
    assert "Traceback" not in second.log.read_text()


def blast(client: Bare, seconds: float) -> int:
    """Publish without a thought for credit; the bytes that the node took."""
    data = native.encode(Message("t", bytes(1_000))) * 200
    client.sock.settimeout(0.1)
    sent = 0
    until = time.monotonic() + seconds
    rest = memoryview(data)
    while time.monotonic() < until:
        try:
            taken = client.sock.send(rest)
        except TimeoutError:
            continue
        sent += taken
        rest = rest[taken:] or memoryview(data)
    return sent


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_subscriber_that_never_reads_does_not_fill_the_memory(
    start: Start, clients: Connect
) -> None:
    process = start("-p", "0", "--limit", "stall_ms=60000")
    port = process.port()
    dead = clients(port)
    dead.open(passive=True)
    dead.send(native.Subscribe(1, "t"))
    assert dead.next() == native.Subscribed(1)
    publishers = [clients(port) for _ in range(4)]
    for publisher in publishers:
        publisher.open(passive=True)
    before = process.resident()
    threads = [threading.Thread(target=blast, args=(client, 3.0)) for client in publishers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.resident() - before < 64 * MIB
    lively = clients(port)
    lively.open()
    lively.send(native.Subscribe(1, "u"), Message("u", b"x"))
    assert lively.wait_for(native.Transfer).count == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", [1, 2])
def test_a_stalled_subscriber_stops_nobody(start: Start, clients: Connect, policy: int) -> None:
    process = start("-p", "0", "--limit", "stall_ms=300")
    port = process.port()
    dead = clients(port)
    dead.open(passive=True, when_stalled=native.StallPolicy(policy))
    dead.send(native.Subscribe(1, "t"))
    assert dead.next() == native.Subscribed(1)
    publisher = clients(port)
    publisher.open(passive=True)
    before = process.resident()
    first, second = blast(publisher, 2.0), blast(publisher, 2.0)
    assert first > 16 * MIB and second > 16 * MIB
    assert process.resident() - before < 64 * MIB
    dead.wait_for(native.Dropped)
