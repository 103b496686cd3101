"""The shell, the blocking client and a real node, with messages that must not be lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regraft import BlockingClient, LocalError, ReceivedMessage, connect_blocking

DEADLINE_S = 30


def environment() -> dict[str, str]:
    keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
    return {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}


class Node:
    """A node that can be killed and started again on the same folder and port."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "regraft", "serve", "-p", str(self.port)]
        command += ["--data", str(self.data), "--retain", "orders/#"]
        command += ["--limit", "segment_bytes=2MiB"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=environment(), stdout=output, stderr=output
            )
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(r"listening on \S+:(\d+)", self.log.read_text())):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        self.port = int(found[1])

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """A command to its end: exit code, stdout, stderr."""
        done = subprocess.run(
            [sys.executable, "-m", "regraft", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment() | {"REGRAFT_URL": self.url, "REGRAFT_DATA": str(self.data)},
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    started = Node(tmp_path)
    yield started
    if started.process.poll() is None:
        started.end(signal.SIGTERM)


@pytest.fixture
def client(node: Node) -> Iterator[BlockingClient]:
    with connect_blocking(node.url) as connected:
        yield connected


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


# ----------------------------------------------------------------------------- the shell


def test_orders_survive_a_killed_node(node: Node) -> None:
    code, _, err = node.run("sub", "orders", "--durable", "billing", "--timeout", "0.2")
    assert (code, err) == (1, "regraft: no message for 'orders' within 0.2 s\n")
    assert node.run("pub", "orders/eu", "one", "--persistent") == (0, "", "")
    code, _, err = node.run("pub", "orders/eu", "two", "--persistent", "-v")
    assert (code, err) == (0, "published 1 message to orders/eu, taken by 2\n")
    node.end()
    code, out, _ = node.run("journal", "verify")
    assert code == 0 and "1 stream, 1 mailbox" in out
    node.start()
    code, out, _ = node.run("sub", "orders", "--durable", "billing", "--count", "2", "--body")
    assert (code, out) == (0, "one\ntwo\n")
    code, _, err = node.run("sub", "orders", "--durable", "billing", "--timeout", "0.5")
    assert (code, err) == (1, "regraft: no message for 'orders' within 0.5 s\n")
    assert node.run("sub", "--from", "start", "--count", "2", "--body")[1] == "one\ntwo\n"
    assert node.run("sub", "--from", "#2", "--count", "1", "--body")[1] == "two\n"
    assert node.run("sub", "--from", "-1h", "--count", "2", "--body")[1] == "one\ntwo\n"
    for end, out in (("now", "one\ntwo\n"), ("#1", "one\n"), ("-1h", "")):
        code, found, err = node.run("sub", "--from", "start", "--until", end, "--body")
        assert (code, found, err) == (0, out, "")
    code, _, err = node.run("sub", "--durable", "billing", "--remove")
    assert (code, err) == (0, "removed billing, with 0 messages that waited in it\n")
    code, _, err = node.run("sub", "--durable", "billing", "--remove")
    assert (code, err) == (2, "regraft: there is no mailbox 'billing'; there are: none\n")


def test_lines_and_selectors(node: Node) -> None:
    node.run("sub", "orders", "--durable", "large", "--where", "n > 2", "--timeout", "0.1")
    for n in range(5):
        code, _, _ = node.run("pub", "orders", str(n), "--set", f"n={n}", "--persistent")
        assert code == 0
    many = "".join(f"{n}\n" for n in range(3000))
    code, _, err = node.run("pub", "orders", "--lines", "--persistent", "-v", stdin=many)
    assert (code, err) == (0, "published 3,000 messages to orders\n")
    large = ("sub", "orders", "--durable", "large", "--where", "n > 2")
    assert node.run(*large, "--count", "2", "--body")[1] == "3\n4\n"
    out = node.run("sub", "--from", "#3006", "--timeout", "0.5")[1]
    assert out == ""
    assert node.run("sub", "--from", "#3005", "--count", "1", "--body")[1] == "2999\n"
    code, _, err = node.run("sub", "--durable", "large", "--remove")
    assert code == 0, err


def test_refusals_are_one_line_and_exit_code_one(node: Node) -> None:
    node.end(signal.SIGTERM)
    config = node.data.parent / "small.toml"
    config.write_text("[limits]\nmailbox_messages = 3\nsegment_bytes = 2_097_152\n")
    command = [sys.executable, "-m", "regraft", "serve", "-p", str(node.port)]
    command += ["--data", str(node.data), "-c", str(config)]
    with node.log.open("wb") as output:
        node.process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output)
    wait_for(lambda: "listening" in node.log.read_text())
    node.run("sub", "orders", "--durable", "billing", "--timeout", "0.1")
    codes = [node.run("pub", "orders", str(n), "--persistent") for n in range(6)]
    refused = [(code, err) for code, _, err in codes if code]
    assert refused and all(code == 1 and "mailbox" in err for code, err in refused)
    assert all(err.startswith("regraft: ") and err.count("\n") == 1 for _, err in refused)
    code, out, _ = node.run("inspect", "journal")
    assert code == 0 and re.search(r"mailboxes_full +1", out)
    code, _, err = node.run("sub", "elsewhere", "--from", "start", "--count", "1")
    assert code == 2 and "no stream of this node retains" in err


def test_wrong_usage(node: Node) -> None:
    for arguments, sentence in (
        (["--durable", "a", "--from", "start"], "does not go with --from"),
        (["--remove"], "--remove needs --durable"),
        (["--pace"], "--until, --pace and --stream go with --from"),
        (["--until", "now"], "--until, --pace and --stream go with --from"),
        (["--from", "start", "--until", "then"], "'then' is no place"),
        (["--from", "never"], "'never' is no place"),
    ):
        code, out, err = node.run("sub", *arguments)
        assert (code, out) == (2, "") and sentence in err


def test_a_journal_while_its_node_runs(node: Node) -> None:
    for n in range(3):
        node.run("pub", "orders", str(n), "--persistent")
    for command in ("verify", "show"):
        code, out, _ = node.run("journal", command)
        assert code == 0 and f"process {node.process.pid} uses this folder" in out
    code, out, err = node.run("journal", "export")
    assert (code, out) == (1, "") and f"process {node.process.pid} uses the data folder" in err
    node.end(signal.SIGTERM)
    code, out, _ = node.run("journal", "export", "--stream", "orders/#")
    assert code == 0 and [json.loads(line)["body"] for line in out.splitlines()] == ["0", "1", "2"]


def test_a_node_that_does_not_start_does_so_after_a_repair(node: Node) -> None:
    node.run("sub", "orders", "--durable", "billing", "--timeout", "0.1")
    for n in range(5):
        node.run("pub", "orders", f"order-{n}", "--persistent")
    node.end()
    segment = node.data / "journal" / f"{0:016x}.seg"
    offset = segment.read_bytes().index(b"order-3")
    with segment.open("r+b") as stream:
        os.pwrite(stream.fileno(), b"?", offset)
    code, _, err = node.run("serve", "-p", "0")
    assert code == 1 and "had been persisted" in err and "regraft journal repair" in err
    assert node.run("journal", "verify")[0] == 1
    code, out, err = node.run("journal", "repair", stdin="n\n")
    assert code == 1 and "stream orders/#: 4 to 5 at least" in out and "nothing was changed" in err
    code, out, _ = node.run("journal", "export")
    assert code == 1 and len(out.splitlines()) == 4
    assert node.run("journal", "repair", "--yes")[0] == 0
    assert node.run("journal", "verify")[0] == 0
    node.start()
    code, out, _ = node.run("sub", "orders", "--durable", "billing", "--count", "3", "--body")
    assert (code, out) == (0, "order-0\norder-1\norder-2\n")
    assert node.run("pub", "orders", "after", "--persistent")[0] == 0
    assert node.run("sub", "--from", "#4", "--count", "1", "--body")[1] == "after\n"


def test_a_mailbox_reads_on_behind_a_hole_that_a_repair_made(node: Node) -> None:
    with connect_blocking(node.url) as client:
        client.subscribe_durably("billing", "orders").unsubscribe()
        bodies = [f"order-{n:05d}-".ljust(1000, ".").encode() for n in range(5000)]
        client.publish_many("orders", bodies, persistent=True, confirm=True)
    node.end(signal.SIGTERM)
    first = node.data / "journal" / f"{0:016x}.seg"
    with first.open("r+b") as stream:
        os.pwrite(stream.fileno(), b"\xff" * 20, first.read_bytes().index(b"order-00007-"))
    assert node.run("journal", "verify")[0] == 1
    code, out, err = node.run("journal", "repair", "--yes")
    assert code == 0, out + err
    lost = re.search(r"mailbox billing: (\d+)(?: to (\d+))? ", out)
    assert lost is not None
    gone = range(int(lost[1]), int(lost[2] or lost[1]) + 1)
    node.start()
    with connect_blocking(node.url) as client:
        billing = client.subscribe_durably("billing", "orders")
        got = [billing.next(DEADLINE_S).sequence for _ in range(5000 - len(gone))]
    assert got == [n for n in range(1, 5001) if n not in gone]


# ------------------------------------------------------------------- the blocking client


def test_the_blocking_client_keeps_and_settles(node: Node, client: BlockingClient) -> None:
    with client.subscribe_durably("billing", "orders", manual=True) as billing:
        assert (billing.name, billing.waiting_at_start) == ("billing", 0)
        for n in range(6):
            assert client.publish("orders", str(n), persistent=True, confirm=True) == 2
        messages = [billing.next(timeout=5) for _ in range(6)]
        assert billing.unsettled() == 6
        messages[0].settle()  # in this thread, not the client's
        billing.settle(messages[2])
        billing.settle_through(messages[1])
        billing.settled()
        assert billing.unsettled() == 3
        node.end()
        node.start()
        wait_for(lambda: client.is_connected)
        messages[3].settle()
        billing.settled(timeout=DEADLINE_S)
    with connect_blocking(node.url) as other:
        again = other.subscribe_durably("billing", "orders")
        assert again.waiting_at_start == 2
        assert [(m.text(), m.redelivered) for m in (again.next(5), again.next(5))] == [
            ("4", True),
            ("5", True),
        ]
        again.remove()
        assert other.inspect("journal")["mailboxes"] == 0
        replay = other.replay("orders", sequence=5)
        assert [replay.next(5).text(), replay.next(5).text()] == ["4", "5"]
        assert other.publish_many("orders", [b"x"] * 10, persistent=True, confirm=True) == 10


def test_a_message_cannot_be_settled_when_the_client_is_closed(node: Node) -> None:
    with connect_blocking(node.url) as client:
        billing = client.subscribe_durably("billing", "orders", manual=True)
        client.publish("orders", "", persistent=True)
        message = billing.next(5)
    with pytest.raises(LocalError, match="closed"):
        message.settle()


def test_leaving_a_blocking_client_with_an_error_settles_nothing(node: Node) -> None:
    def read(fail: bool) -> str:
        with connect_blocking(node.url) as client:
            for message in client.subscribe_durably("billing", "orders"):
                if fail:
                    raise ZeroDivisionError
                return message.text()
        return ""

    with connect_blocking(node.url) as client:
        client.subscribe_durably("billing", "orders")
        client.publish_many("orders", [b"1", b"2"], persistent=True, confirm=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            read(fail=True)
    assert [read(fail=False), read(fail=False)] == ["1", "2"]


def test_callbacks_of_a_blocking_client(node: Node, client: BlockingClient) -> None:
    seen: list[str] = []
    done = threading.Event()

    def work(message: ReceivedMessage) -> None:
        seen.append(message.text())
        if len(seen) == 3:
            done.set()

    client.subscribe_durably("billing", "orders", callback=work)
    client.publish_many("orders", [b"a", b"b", b"c"], persistent=True, confirm=True)
    assert done.wait(DEADLINE_S) and seen == ["a", "b", "c"]

    def waiting() -> int:
        rows = client.inspect("journal")["rows"]
        return int(next(row["waiting"] for row in rows if row["name"] == "billing"))

    wait_for(lambda: waiting() == 0)
