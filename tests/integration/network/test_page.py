"""The examples of docs/network.md: three nodes, one of them killed, one that leaves."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from operator import gt
from pathlib import Path

import pytest

from network.cluster import PATIENCE_S, START_S, free_ports
from regraft import connect

PAGE = Path(__file__).parents[3] / "docs" / "network.md"
PORTS = (7447, 7448, 7449)  # of the page


def commands() -> list[tuple[str, str]]:
    """Each command of the page, and what it prints there."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                command, printed = found[-1]
                found[-1] = command, f"{printed}{line}\n"
    return found


class Terminal:
    """Runs the commands, with ports that are free."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.jobs: list[subprocess.Popen[bytes]] = []
        self._heard = folder / "subscriber"

    def _arguments(self, command: str) -> list[str]:
        if "--url" not in command and " -p " not in command:
            command = command.replace("regraft serve", f"regraft serve -p {PORTS[0]}")
        for port, own in self._ports.items():
            command = re.sub(rf"\b{port}\b", str(own), command)
        return [sys.executable, "-m", *shlex.split(command.removesuffix("&"))]

    def _environment(self) -> dict[str, str]:
        keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}
        return environ | {"PYTHONIOENCODING": "utf-8"}

    def run(self, command: str, expected: str) -> None:
        """Do what the page says, and see what it says."""
        if command.startswith("kill "):
            self.jobs[int(command.rpartition("%")[2]) - 1].kill()
        elif command.endswith("&"):
            self._start(command)
        elif command.startswith("regraft inspect topology"):
            wait_for(lambda: self._shape(self._output(command)) == self._shape(expected))
        elif command.startswith("regraft pub"):
            self._output(command)
            wait_for(lambda: self._heard.read_text() == expected)
        else:
            assert self._output(command) == expected

    def _start(self, command: str) -> None:
        output = self._heard if " sub " in command else self._folder / f"log-{len(self.jobs)}"
        before: list[int] = []
        if " sub " in command:  # nodes want something of each other, too
            wait_for(lambda: asyncio.run(self._known()) == asyncio.run(self._known(0.5)))
            before = asyncio.run(self._known())
        with output.open("wb") as out:
            process = subprocess.Popen(
                self._arguments(command),
                cwd=self._folder,
                env=self._environment(),
                stdout=out,
                stderr=out,
            )
        self.jobs.append(process)
        if " sub " in command:
            wait_for(lambda: all(map(gt, asyncio.run(self._known()), before)))
        else:
            wait_for(lambda: "listening on" in output.read_text())

    async def _known(self, pause: float = 0.0) -> list[int]:
        """How much each node knows to be wanted, by its own clients and by its neighbours."""
        await asyncio.sleep(pause)
        found = []
        for port in self._ports.values():
            async with await connect(f"127.0.0.1:{port}") as client:
                own = (await client.inspect("node"))["subscriptions"]
                links = (await client.inspect("topology"))["links"]
                found.append(own + sum(link["received"] for link in links))
        return found

    def _output(self, command: str) -> str:
        done = subprocess.run(
            self._arguments(command),
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.decode()

    def _shape(self, text: str) -> list[tuple[str, ...]]:
        """Without what is different each time: ids, ports, times; and who of two is the upper."""
        rows = []
        for line in text.splitlines():
            line = re.sub(r"\b[0-9a-f]{8}\b|127\.0\.0\.1:\d+|\d[\d.]* ms|[├└│─]", "", line)
            rows.append(tuple(line.split()))
        names = {"one", "two", "three"}
        if len(rows) - 2 < len(names):
            rows = [tuple(word for word in row if not word.isdigit() or "nodes" in row)
                    for row in rows]  # fmt: skip
        return sorted(rows)

    def end(self) -> None:
        for process in self.jobs:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.jobs:
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


def wait_for(condition: object) -> None:
    """Until it is so."""
    assert callable(condition)
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    listed = commands()
    assert len(listed) == 9
    terminal = Terminal(tmp_path)
    try:
        for command, expected in listed:
            try:
                terminal.run(command, expected)
            except AssertionError as error:
                pytest.fail(f"{command}: {error}")
    finally:
        terminal.end()
