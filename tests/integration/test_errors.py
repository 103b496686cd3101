"""What somebody sees who does something wrong, with real processes and real sockets.

One sentence that helps, no traceback, and the right exit code: 1 if the world is to blame, 2 if
the call is.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regraft import LocalError, RegraftError, WorldError, connect, connect_blocking
from regraft.client import BlockingSubscription

DEADLINE_S = 30
STALL_MS = 400
FRAME_BYTES = 1 << 20

Done = tuple[int, str, str]


def environment() -> dict[str, str]:
    keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
    return {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}


def regraft(*arguments: str, stdin: bytes = b"") -> Done:
    """The real command, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "regraft", *arguments],
        input=stdin,
        capture_output=True,
        env=environment(),
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def sentence(done: Done, code: int) -> str:
    """The one line that it said, after the name of the command."""
    returned, out, err = done
    assert (returned, out) == (code, ""), err
    assert "Traceback" not in err
    assert err.startswith("regraft: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err.removeprefix("regraft: ").rstrip("\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real node that soon loses patience; its address."""
    folder = tmp_path_factory.mktemp("node")
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "regraft", "serve", "-p", str(port), "--data", str(folder)]
    command += ["--limit", f"stall_ms={STALL_MS}", "--limit", "queue_messages=1000"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait()


Manners = Callable[[socket.socket], None]


@contextmanager
def stranger(manners: Manners) -> Iterator[str]:
    """A server that is no node: what it does with a connection; its address."""
    open_ones: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                open_ones.append(connection)
                manners(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE_S)
            for connection in open_ones:
                connection.close()


def keep_silent(connection: socket.socket) -> None:
    pass


def hang_up(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def speak_http(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def speak_ssh(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-Something_1.0\r\n")


def speak_zeros(connection: socket.socket) -> None:
    connection.sendall(bytes(100))


# ------------------------------------------------------------------------- the address


@pytest.mark.parametrize("command", [("pub", "a", "x"), ("sub", "a")])
def test_nobody_listens(command: tuple[str, ...]) -> None:
    where = f"127.0.0.1:{free_port()}"
    said = sentence(regraft(*command, "-u", where), 1)
    assert said == (
        f"no node answers at {where} (Connection refused); start one with `regraft serve`"
    )


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("localhost:99999", "the port '99999' is not a number from 1 to 65535"),
        ("::1:7447", "an IPv6 address stands in brackets, as [::1]:7447"),
        ("two words", "'two words' is not an address"),
        ("", "it names no host"),
        ("file:/nowhere/nodes", "cannot read addresses from /nowhere/nodes"),
        ("env:NOWHERE", "the environment variable NOWHERE is not set"),
        ("name:nowhere", "set REGRAFT_NAME_NOWHERE"),
    ],
)
def test_an_address_that_is_none(target: str, part: str) -> None:
    assert part in sentence(regraft("pub", "a", "x", "-u", target), 2)


def test_a_scheme_of_somebody_else_is_not_taken_for_ipv6() -> None:
    said = sentence(regraft("pub", "a", "x", "-u", "http://127.0.0.1:7447"), 2)
    assert "is not an address" in said
    assert "IPv6" not in said


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_host_name_that_cannot_be(host: str) -> None:
    returned, _, err = regraft("pub", "a", "x", "-u", f"{host}:7447")
    said = sentence((returned, "", err), returned)
    assert returned in (1, 2)
    assert host in said


def test_a_host_that_is_not_known() -> None:
    said = sentence(regraft("pub", "a", "x", "-u", "[fe80::1%nowhere]:7447"), 1)
    assert said.startswith("no node answers at [fe80::1%nowhere]:7447 (")
    assert "Unknown error" not in said


# ------------------------------------------------------------------- somebody else's port


@pytest.mark.parametrize("manners", [speak_http, speak_ssh, speak_zeros])
@pytest.mark.parametrize("command", [("pub", "a", "x"), ("sub", "a")])
def test_a_port_that_speaks_something_else(manners: Manners, command: tuple[str, ...]) -> None:
    with stranger(manners) as where:
        said = sentence(regraft(*command, "-u", where), 1)
    assert where in said
    assert "not a Regraft node" in said


def test_a_port_that_hangs_up() -> None:
    with stranger(hang_up) as where:
        said = sentence(regraft("pub", "a", "x", "-u", where), 1)
    assert said.startswith(f"no node answers at {where} (the node closed the connection")


@pytest.mark.slow
def test_a_port_that_never_answers() -> None:
    with stranger(keep_silent) as where:
        assert sentence(regraft("sub", "a", "-u", where), 1) == (
            f"no node answers at {where} (no answer within 5.0 s); start one with `regraft serve`"
        )


def test_a_port_that_never_answers_a_program() -> None:
    with (
        stranger(keep_silent) as where,
        pytest.raises(WorldError, match=r"no answer within 0\.2 s") as caught,
    ):
        connect_blocking(where, connect_timeout=0.2)
    assert caught.value.code.name == "unreachable"


@pytest.mark.parametrize(
    "manners",
    [
        hang_up,
        speak_http,
        speak_zeros,
        keep_silent,
    ],
)
def test_the_next_address_is_tried(node: str, manners: Manners) -> None:
    with (
        stranger(manners) as where,
        connect_blocking(f"{where},{node}", connect_timeout=3.0) as client,
    ):
        client.publish("a", b"x", confirm=True, timeout=DEADLINE_S)


# ---------------------------------------------------------------------------- messages


def test_a_message_that_is_too_large(node: str, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(FRAME_BYTES))
    said = sentence(regraft("pub", "a", "--file", str(file), "-u", node), 2)
    assert f"and the node takes {FRAME_BYTES} at most (limit frame_bytes)" in said
    assert sentence(regraft("pub", "a", "-u", node, stdin=bytes(FRAME_BYTES)), 2) == said


def test_a_client_survives_a_message_that_is_too_large(node: str) -> None:
    with connect_blocking(node) as client, client.subscribe("size") as sizes:
        client.publish("size/small", b"before")
        with pytest.raises(LocalError, match="limit frame_bytes") as caught:
            client.publish("size/large", bytes(FRAME_BYTES))
        assert caught.value.code.name == "bad-message"
        client.publish("size/small", b"after", confirm=True, timeout=DEADLINE_S)
        assert [sizes.next(DEADLINE_S).body for _ in range(2)] == [b"before", b"after"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("pub", "a/+", "x"), "topic 'a/+' holds '+'"),
        (("pub", "", "x"), "the topic is empty"),
        (("sub", "a+"), "must stand alone in a level"),
        (("pub", "a", "x", "--set", "price"), "write it as name=value"),
        (("pub", "a", "x", "--set", f"n={2**64}"), "does not fit 64 bits"),
    ],
)
def test_what_cannot_be_published_or_subscribed_to(
    node: str, arguments: tuple[str, ...], part: str
) -> None:
    assert part in sentence(regraft(*arguments, "-u", node), 2)


def test_nothing_comes_in_time(node: str) -> None:
    done = regraft("sub", "quiet", "--timeout", "0.2", "-u", node)
    assert sentence(done, 1) == "no message for 'quiet' within 0.2 s"


# --------------------------------------------------------------------------- life and flow


def test_a_closed_client(node: str) -> None:
    client = connect_blocking(node)
    subscription: BlockingSubscription = client.subscribe("a")
    client.close()
    client.close()
    uses: tuple[Callable[[], object], ...] = (
        lambda: client.publish("a", b"x"),
        lambda: client.publish_many("a", [b"x"]),
        lambda: client.subscribe("a"),
        lambda: client.flush(),
        lambda: subscription.next(1),
    )
    for use in uses:
        with pytest.raises(LocalError) as caught:
            use()
        assert caught.value.code.name == "closed"
        assert caught.value.text == "this client was closed"


def test_a_slow_consumer_is_told_why_it_was_cut_off(node: str) -> None:
    async def story() -> list[RegraftError]:
        told: list[RegraftError] = []
        async with (
            await connect(node, queue_messages=100, reconnect=False) as slow,
            await connect(node) as other,
        ):
            slow.on_disconnect(lambda event: told.append(event.error))
            subscription = await slow.subscribe("flood")
            bodies = [b"%d" % number for number in range(5000)]
            await other.publish_many("flood", bodies, timeout=DEADLINE_S)
            await other.flush(DEADLINE_S)
            async with asyncio.timeout(DEADLINE_S):
                while not told:
                    await asyncio.sleep(0.02)
            taken = []
            try:
                while True:
                    taken.append((await subscription.next(DEADLINE_S)).body)
            except RegraftError as error:
                told.append(error)
            assert taken == bodies[: len(taken)] and len(taken) >= 100
            with pytest.raises(RegraftError, match="no progress"):
                await slow.publish("a", b"x", timeout=DEADLINE_S)
        return told[:2]

    first, second = asyncio.run(story())
    assert first is second
    assert first.code.name == "stalled"
    assert f"no progress for {STALL_MS} ms" in first.text


@pytest.mark.slow
def test_a_slow_command_says_that_it_missed_something(node: str, tmp_path: Path) -> None:
    """`regraft sub` into a pipe that nobody reads for a while."""
    command = [sys.executable, "-m", "regraft", "sub", "pipe", "--body", "-u", node]
    errors = tmp_path / "errors"
    with errors.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=output
        )
    assert process.stdout is not None
    with process.stdout, connect_blocking(node) as client:
        try:
            while not select.select([process.stdout], [], [], 0.1)[0]:  # not subscribed yet
                client.publish("pipe", b"hello")
            for _ in range(200):
                client.publish_many("pipe", [bytes(1000)] * 100, timeout=DEADLINE_S)
            client.flush(DEADLINE_S)
            time.sleep(3 * STALL_MS / 1000)
            deadline = time.monotonic() + 5
            while not errors.read_bytes() and time.monotonic() < deadline:
                if select.select([process.stdout], [], [], 0.1)[0]:
                    os.read(process.stdout.fileno(), 1 << 16)
        finally:
            process.kill()
            process.wait()
    line = errors.read_text()
    assert line.startswith("regraft: ") and "no progress" in line


def test_a_slow_subscriber_makes_a_publisher_wait_and_say_why(node: str) -> None:
    """Shortly before the node loses patience with the one, the other loses patience with it."""

    async def story() -> None:
        async with (
            await connect(node, queue_messages=1) as slow,
            await connect(node) as other,
        ):
            await slow.subscribe("crowd")
            with pytest.raises(WorldError, match="a subscriber is slow") as caught:
                while True:
                    await other.publish("crowd", bytes(1000), timeout=STALL_MS / 4000)
            assert caught.value.code.name == "timed-out"

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_a_node_that_talks_nonsense_later(node: str) -> None:
    """Bytes that are damaged on the way: a proxy that adds some of its own."""
    host, _, port = node.partition(":")

    def forward(connection: socket.socket) -> None:
        upstream = socket.create_connection((host, int(port)))
        hello = connection.recv(65536)
        upstream.sendall(hello)
        connection.sendall(upstream.recv(65536))
        connection.recv(65536)
        connection.sendall(b"\xff" * 64)
        upstream.close()

    with stranger(forward) as where, pytest.raises(WorldError, match="in flight: the node sends"):
        client = connect_blocking(where, reconnect=False)
        try:
            client.publish("a", b"x", confirm=True, timeout=DEADLINE_S)
        finally:
            client.close()
