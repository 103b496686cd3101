"""A node in a process of its own that retains streams, can be killed, and comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import regraft
from regraft.pipeline.link import Link

PATIENCE_S = 60.0
STREAMS = {"orders": "orders/#", "copies": "copies/#", "ticks": "ticks/#"}


class Served:
    """`regraft serve` with streams; it has the same port in all of its lives."""

    def __init__(self, folder: Path, keep_bytes: int = 0, **limits: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        lines = [f'[[streams]]\nname = "{name}"\ntopic = "{topic}"\nkeep_bytes = {keep_bytes}\n'
                 for name, topic in STREAMS.items()]  # fmt: skip
        lines += ["[limits]\n", *(f"{name} = {value}\n" for name, value in limits.items())]
        self.config = folder / "regraft.toml"
        self.config.write_text("\n".join(lines))
        self.data = folder / "data"
        self.popen: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}
        command = [sys.executable, "-m", "regraft", "serve", "-c", str(self.config)]
        command += ["-p", str(self.port), "--data", str(self.data)]
        with (self.folder / "log").open("ab") as output:
            self.popen = subprocess.Popen(
                command, env=environ, stdout=subprocess.DEVNULL, stderr=output
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with Link(self.url):
                    return
            except regraft.RegraftError:
                assert self.popen.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the node does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """End it without a word."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(PATIENCE_S)

    def restart(self) -> None:
        self.kill()
        self.start()

    def publish(self, messages: Iterable[tuple[str, Any, dict[str, Any]]], **headers: Any) -> None:
        """Publish topics, bodies and attributes, and wait until they are safe."""
        with regraft.connect_blocking(self.url) as client:
            last: tuple[str, Any, dict[str, Any]] | None = None
            for one in messages:
                if last is not None:
                    client.publish(last[0], last[1], attributes=last[2], persistent=True, **headers)
                last = one
            assert last is not None
            client.publish(
                last[0], last[1], attributes=last[2], persistent=True, confirm=True, **headers
            )

    def next(self, stream: str) -> int:
        """The sequence of the next message of a stream."""
        with Link(self.url) as link:
            return next(row.next for row in link.streams().streams if row.name == stream)

    def wait_until_nothing_is_staged(self) -> None:
        """Files go a moment after the answer."""
        deadline = time.monotonic() + PATIENCE_S
        while files := list((self.data / "staged").iterdir()):
            assert time.monotonic() < deadline, files
            time.sleep(0.01)


def orders(start: int, count: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """Messages that can be told apart: `n` counts them."""
    return [
        (
            f"orders/{('eu', 'us', 'asia')[n % 3]}",
            b"%d" % n,
            {"n": n, "price": (n * 7919 % 1000) / 4, "symbol": f"S{n % 11}"},
        )
        for n in range(start, start + count)
    ]
