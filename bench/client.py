"""How many messages a second go from one public client to another, beside other libraries.

    python -m bench.client [--quick] [--rounds N] [--seconds S] [--only regraft]

One process publishes, one subscribes, a server stands between them; 100-byte messages, and the
subscriber asks for the body of every one. The libraries take turns, round by round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection

from bench import report
from bench.peers import AHEAD, BATCHES, BLOCK, SINGLE, WAYS, Way, make_bodies
from bench.servers import (
    AbsentError,
    Neighbours,
    Server,
    cpu_seconds,
    machine_cpu_seconds,
    running,
)

MODULES = {"regraft": "regraft", "nats": "nats", "zmq": "zmq", "zenoh": "zenoh"}
QUIET_SECONDS = 3.0  # nothing arrives for so long: nothing more will
FIRST_SECONDS = 10.0  # until the first thousand
ENOUGH_SECONDS = 30.0  # for what was sent to arrive, all in all
HEAD = ("way", "msg/s", "range", "µs cpu/msg", "cpu sender", "server", "receiver", "others",
        "x nats-py", "x pyzmq", "x zenoh")  # fmt: skip
NATS_PY, PYZMQ, ZENOH_PY = "nats-py", "pyzmq, proxy", "zenoh, router"
RATES = ((BATCHES, 1_000_000), (SINGLE, 500_000))  # messages a second, at least
TIMES = ((NATS_PY, 5.0), (PYZMQ, 2.0), (ZENOH_PY, 2.0))  # the batches, times these

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Mark:
    """The state of affairs at one instant."""

    at: float
    messages: int
    sender: float  # processor time
    server: float
    receiver: float
    machine: float


@dataclass(frozen=True)
class Round:
    """What one way did in one window."""

    seconds: float = 1.0
    messages: int = 0
    sender: float = 0.0  # processor time
    server: float = 0.0
    receiver: float = 0.0
    others: float = 0.0  # of everything else on this machine
    fault: str = ""  # what makes the numbers worthless, if anything

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Shared:
    """What the processes of one round tell each other."""

    def __init__(self) -> None:
        self.stop = FORK.RawValue("b", 0)
        self.end = FORK.Event()
        self.sender_pid = FORK.RawValue("l", 0)
        self.sent = FORK.RawValue("q", -1)  # messages, once the sender is done
        self.received = FORK.RawValue("q", 0)


class Pace:
    """In the sending process: whether to go on."""

    def __init__(self, shared: Shared) -> None:
        self.bodies = make_bodies()
        self._shared = shared
        self._sent = 0

    def blocks(self) -> Iterator[None]:
        while not self._shared.stop.value:
            yield
            self._sent += BLOCK
        self._shared.sent.value = self._sent

    def is_ahead(self) -> bool:
        return self._sent - int(self._shared.received.value) > AHEAD

    def wait_for_end(self) -> None:
        self._shared.end.wait(ENOUGH_SECONDS)


class Tally:
    """In the receiving process: counts, checks, and takes the time."""

    def __init__(
        self, shared: Shared, server: Server, warm: float, seconds: float, pipe: Connection
    ) -> None:
        self._shared = shared
        self._server = server
        self._warm = warm
        self._seconds = seconds
        self._pipe = pipe
        self._bodies = make_bodies()
        self._due = 0.0
        self._first: Mark | None = None
        self._done = False

    def ready(self) -> None:
        self._pipe.send("ready")

    def note(self, messages: int, body: bytes) -> None:
        self._shared.received.value = messages
        if body != self._bodies[(messages - 1) % BLOCK]:
            self._finish(Round(fault=f"message {messages} is not the one that was sent as such"))
        now = time.monotonic()
        if not self._due:
            self._due = now + self._warm
        elif now >= self._due and not self._done:
            self._mark(now, messages)

    def _mark(self, now: float, messages: int) -> None:
        mark = Mark(
            now,
            messages,
            cpu_seconds(self._shared.sender_pid.value),
            self._server.cpu_seconds(),
            cpu_seconds(os.getpid()),
            machine_cpu_seconds(),
        )
        first = self._first
        if first is None:
            self._first = mark
            self._due = now + self._seconds
            return
        used = {
            who: getattr(mark, who) - getattr(first, who)
            for who in ("sender", "server", "receiver")
        }
        others = max(0.0, mark.machine - first.machine - sum(used.values()))
        self._finish(Round(now - first.at, messages - first.messages, **used, others=others))

    def _finish(self, result: Round) -> None:
        if not self._done:
            self._done = True
            self._shared.stop.value = 1
            self._pipe.send(result)


def send(way: Way, server: Server, shared: Shared, pipe: Connection) -> None:
    """The sending process."""
    shared.sender_pid.value = os.getpid()
    try:
        way.send(server, Pace(shared))
        pipe.send("")
    except Exception as error:
        pipe.send(f"sender: {error!r}")


def receive(way: Way, server: Server, tally: Tally, pipe: Connection) -> None:
    """The receiving process. It does not end by itself."""
    try:
        way.receive(server, tally)
        pipe.send("the receiver ended before its time")
    except Exception as error:
        pipe.send(f"receiver: {error!r}")


def wait_until_whole(shared: Shared) -> str:
    """Wait for what was sent; what is wrong with it, if anything."""
    deadline = time.monotonic() + ENOUGH_SECONDS
    seen, changed = -1, time.monotonic()
    while time.monotonic() < min(deadline, changed + QUIET_SECONDS):
        received, sent = shared.received.value, shared.sent.value
        if 0 <= sent <= received:
            break
        if received != seen:
            seen, changed = received, time.monotonic()
        time.sleep(0.005)
    received, sent = shared.received.value, shared.sent.value
    if sent < 0:
        return "the sender never stopped"
    if received != sent:
        return f"of {sent} messages {received} arrived (counted in thousands)"
    return ""


def answer(pipe: Connection, seconds: float) -> Round | str:
    """The next word of a process, or why there is none."""
    try:
        said: Round | str = pipe.recv() if pipe.poll(seconds) else "no answer in time"
    except EOFError:
        return "the process ended without a word"
    return said


def measure(way: Way, server: Server, warm: float, seconds: float) -> Round:
    """One way, one round: a process that receives, one that sends."""
    shared = Shared()
    here, there = FORK.Pipe()
    here_too, there_too = FORK.Pipe()
    tally = Tally(shared, server, warm, seconds, there)
    receiver = FORK.Process(target=receive, args=(way, server, tally, there))
    sender = FORK.Process(target=send, args=(way, server, shared, there_too))
    try:
        receiver.start()
        if (said := answer(here, FIRST_SECONDS)) != "ready":
            return Round(fault=str(said))
        sender.start()
        result = answer(here, FIRST_SECONDS + warm + seconds)
        shared.stop.value = 1
        if isinstance(result, str):
            told = here_too.recv() if here_too.poll(0.5) else ""
            return Round(fault="; ".join(filter(None, (result, told))))
        if not result.fault and (fault := wait_until_whole(shared)):
            return Round(fault=fault)
        return result
    finally:
        shared.stop.value = 1
        shared.end.set()
        if sender.pid is not None:
            sender.join(3)
        for process in (sender, receiver):
            if process.pid is not None:
                process.kill()
                process.join()


# ------------------------------------------------------------------------------- report


Results = dict[str, list[Round]]  # by label


def rates(results: Results, label: str) -> list[float | None]:
    return [None if one.fault else one.rate for one in results.get(label, [])]


def times(results: Results, label: str, other: str) -> list[float]:
    """How many times the other, round by round."""
    if label not in results or other not in results:
        return []
    return report.ratios(rates(results, label), rates(results, other))


def quantity(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"


def row(results: Results, label: str) -> list[str]:
    good = [one for one in results[label] if not one.fault]
    if not good:
        return [label, *["-"] * (len(HEAD) - 1)]

    def share(who: str) -> str:
        return f"{report.median([getattr(one, who) / one.seconds for one in good]) or 0:.0%}"

    each = [one.rate for one in good]
    cpu = [(one.sender + one.server + one.receiver) / one.messages * 1e6 for one in good]
    ours = label in (BATCHES, SINGLE)
    return [
        label,
        quantity(report.median(each) or 0.0),
        f"{quantity(min(each))}..{quantity(max(each))}",
        f"{report.median(cpu) or 0:.2f}",
        share("sender"),
        share("server"),
        share("receiver"),
        share("others"),
        *(report.spread(times(results, label, other)) if ours else "" for other, _ in TIMES),
    ]


def judge(results: Results) -> list[report.Goal]:
    """Rates, and the fastest way of ours against the fastest way of each of the others."""

    def goal(label: str, name: str, bound: float, unit: str, measured: float | None) -> report.Goal:
        told = report.at_least(name, bound, unit, measured)
        return report.missed(told) if any(one.fault for one in results.get(label, [])) else told

    goals = []
    for label, rate in RATES:
        middle = report.median([each for each in rates(results, label) if each])
        goals.append(goal(label, label, rate, "msg/s", middle))
    for other, bound in TIMES:
        middle = report.median(times(results, BATCHES, other))
        goals.append(goal(BATCHES, BATCHES, bound, f"x {other}", middle))
    return goals


def start_servers(stack: ExitStack, ways: list[Way]) -> tuple[dict[str, Server], list[str]]:
    """A server for each way that can be had, and a note for each that cannot."""
    servers: dict[str, Server] = {}
    notes = []
    for way in ways:
        if way.server in servers:
            continue
        try:
            if find_spec(MODULES[way.server]) is None:
                raise AbsentError(f"the module {MODULES[way.server]} is not installed")
            servers[way.server] = stack.enter_context(running(way.server))
        except AbsentError as reason:
            notes.append(f"{way.label} is absent: {reason}")
    return servers, notes


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.client", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--rounds", type=int, help="default 5, quick 3")
    parser.add_argument("--seconds", type=float, help="of one count; default 3, quick 1")
    parser.add_argument("--only", default="", help="ways whose label contains this")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    warm, seconds = (0.3, 1.0) if options.quick else (0.5, 3.0)
    seconds = options.seconds or seconds
    ways = [way for way in WAYS if options.only in way.label]
    results: Results = {}
    neighbours = Neighbours()
    with ExitStack() as stack:
        servers, notes = start_servers(stack, ways)
        order = [way for way in ways if way.server in servers]
        for number in range(1, 1 + (options.rounds or (3 if options.quick else 5))):
            print(f"round {number}: {', '.join(w.label for w in order)}", file=sys.stderr)
            for way in order:
                one = measure(way, servers[way.server], warm, seconds)
                results.setdefault(way.label, []).append(one)
                if one.fault:
                    notes.append(f"{way.label}, round {number}: {one.fault}; left out")
            order = order[1:] + order[:1]
    print(report.table(HEAD, [row(results, way.label) for way in WAYS if way.label in results], 1))
    return report.finish("client", judge(results), notes + neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
