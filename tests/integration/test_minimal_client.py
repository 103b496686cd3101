"""Checks that a client made from docs/protocol.md alone can talk to a real node."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "minimal_client.py"
TIMEOUT_S = 30

Client = Callable[..., "subprocess.Popen[str]"]
Done = tuple[int, str, str]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for(port: int, node: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and node.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    pytest.fail(f"the node does not listen: {log.read_text()}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real node; its port. Its heartbeat is short, so that the tests see some."""
    folder = tmp_path_factory.mktemp("node")
    port, log = free_port(), folder / "log"
    keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}
    command = [sys.executable, "-m", "regraft", "serve", "-p", str(port), "--data", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environ | {"REGRAFT_HEARTBEAT_MS": "200"}, stdout=output, stderr=output
        )
    try:
        wait_for(port, process, log)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def client(node: int) -> Iterator[Client]:
    """Starts the example; whatever is still running at the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", str(EXAMPLE), "127.0.0.1", str(node), *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def subscribed(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline().startswith("subscribed to ")


def test_it_uses_nothing_of_ours() -> None:
    tree = ast.parse(EXAMPLE.read_text())
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "." for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_what_is_published_is_printed(client: Client) -> None:
    subscriber = client("sub", "news/+/#", "3")
    subscribed(subscriber)
    for topic, body in (("news/eu", "one"), ("sports/eu", "no"), ("news/us/ny", "zwei, größer")):
        assert finish(client("pub", topic, body)) == (0, "", "")
    long = "x" * 20_000
    assert finish(client("pub", "news/eu", long)) == (0, "", "")
    assert finish(subscriber) == (0, f"news/eu one\nnews/us/ny zwei, größer\nnews/eu {long}\n", "")


def test_it_stays_connected_while_nothing_happens(client: Client) -> None:
    subscriber = client("sub", "quiet", "1")
    subscribed(subscriber)
    time.sleep(1.2)  # twice as long as a node waits for a sign of life here
    assert finish(client("pub", "quiet/place", "still here")) == (0, "", "")
    assert finish(subscriber) == (0, "quiet/place still here\n", "")


def test_a_refusal_is_seen(client: Client) -> None:
    code, out, err = finish(client("pub", "a/+", "x"))
    assert (code, out) == (1, "")
    assert err.startswith("minimal_client: ") and err.endswith("[bad-topic]\n")
    code, out, err = finish(client("sub", "a+", "1"))
    assert (code, out) == (1, "")
    assert err.endswith("[bad-pattern]\n")


def test_wrong_usage_shows_the_usage(client: Client) -> None:
    code, _, err = finish(client("shout"))
    assert code == 1
    assert "minimal_client.py 127.0.0.1 7447 pub" in err
