"""Questions and contexts in the shell, and the example, with a real node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DEADLINE_S = 60
ROOT = Path(__file__).parents[2]
KEEP = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in KEEP}


class Shell:
    """A node, and commands that talk to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        log = folder / "log"
        command = ["serve", "-p", "0", "--data", str(folder / "data")]
        with log.open("w") as output:
            self.start(*command, output=output)
        while not (found := re.search(r"listening on \S+:(\d+)", log.read_text())):
            assert self.processes[0].poll() is None, log.read_text()
            time.sleep(0.02)
        self.url = f"127.0.0.1:{found[1]}"

    def start(self, *arguments: str, output: object = subprocess.PIPE) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "regraft", *arguments],
            env=ENVIRONMENT | ({"REGRAFT_URL": self.url} if self.processes else {}),
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "regraft", *arguments],
            env=ENVIRONMENT | {"REGRAFT_URL": self.url},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr

    def subscriptions(self, count: int) -> None:
        """Wait until there are so many."""
        deadline = time.monotonic() + DEADLINE_S
        while json.loads(self.run("inspect", "subscriptions", "--json")[1])["total"] < count:
            assert time.monotonic() < deadline


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def test_ask_and_reply(shell: Shell) -> None:
    code, out, err = shell.run("ask", "rooms/load", "?")
    assert (code, out) == (0, "") and "0 replies of 0 repliers" in err and "complete" in err
    shell.start("sub", "rooms/load", "--reply", "all is well", "--context", "floor=1")
    shell.start("sub", "rooms/load", "--reply-with", "tr a-z A-Z", "--context", "floor=2")
    shell.start("sub", "rooms/load")  # it only listens
    shell.subscriptions(3)
    code, out, err = shell.run("ask", "rooms/load", "who?", "--json", "--timeout", "30")
    assert code == 0
    assert {json.loads(line)["body"] for line in out.splitlines()} == {"all is well", "WHO?"}
    assert "2 replies of 2 repliers" in err
    code, out, err = shell.run("ask", "rooms/load", "who?", "--where", "ctx.floor = 2", "-q")
    assert (code, "WHO?" in out, err) == (0, True, "")
    shell.start("sub", "rooms/load", "--reply-with", "exit 3")
    shell.subscriptions(4)
    code, out, err = shell.run("ask", "rooms/load", "who?", "--timeout", "30")
    assert code == 1 and "not complete" in err
    for wrong in (("--reply", "a", "--reply-with", "b"), ("--reply", "a", "--durable", "box")):
        assert shell.run("sub", "x", *wrong)[0] == 2
    code, _, err = shell.run("ask", "rooms/#")
    assert code == 2 and "regraft:" in err


def test_pub_for_some(shell: Shell) -> None:
    near = shell.start("sub", "offers", "-n", "1", "--context", "room=hall")
    far = shell.start("sub", "offers", "-n", "1", "--context", "room=attic")
    named = shell.start("sub", "offers", "-n", "1", "--where", "ctx.shop = 'bakery'")
    shell.subscriptions(3)
    assert shell.run("pub", "offers", "coffee", "--where", "ctx.room = 'hall'")[0] == 0
    assert "coffee" in near.communicate(timeout=DEADLINE_S)[0]
    assert shell.run("pub", "offers", "bread", "--context", "shop=bakery")[0] == 0
    assert "bread" in named.communicate(timeout=DEADLINE_S)[0]
    assert "bread" in far.communicate(timeout=DEADLINE_S)[0]
    code, _, err = shell.run("pub", "offers", "x", "--where", "ctx.room =")
    assert code == 2 and "regraft:" in err
    code, _, err = shell.run("pub", "offers", "x", "--where", "ctx.room = 'a'", "--persistent")
    assert code == 1 and "not published" in err


def test_the_example_runs(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "rooms.py")],
        env=ENVIRONMENT | {"REGRAFT_URL": shell.url},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "3 rooms, all of them: True; warm: attic, kitchen",
        "ground floor: hall, kitchen",
        "sensor-hall hears: tea is ready",
        "sensor-attic hears: tea is ready",
        "from the kitchen: the milk boils over",
    ]
