"""How long a message takes from a client through a node and back, beside NATS.

    python -m bench.latency [--quick] [--rounds N]

One client, one connection that publishes and subscribes. Two modes: one message at a time (the
next leaves when the last has come back), and a steady rate, where the time counts from the moment
at which a message was *due*, so that a server that stops for a while is charged for all that
should have been sent meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import socket
import sys
import time
from dataclasses import dataclass, field

from bench import report
from bench.dialects import DIALECTS, Channel, LostError, Work
from bench.servers import NATS, REGRAFT, Neighbours, Server, running_all

WORK = Work("45 B", 45, 1)
RATE = 50_000  # messages a second, in the steady mode
SKIPPED = 0.1  # the first part of every round, not counted
BUFFER_BYTES = 64 * 1024
SHARES = {"p50": 0.50, "p99": 0.99, "p99.9": 0.999}
BOUND = 1.2  # times NATS, at most
LATE_SECONDS = 10.0  # for what was sent to come back
ONE = "one at a time"
STEADY = f"{RATE} msg/s"
HEAD = ("mode", "server", "p50 µs", "p99 µs", "p99.9 µs", "x NATS p50", "p99", "p99.9",
        "msg/s", "generator late p50", "p99")  # fmt: skip


@dataclass
class Round:
    """Latencies of one server in one round, in µs."""

    at: dict[str, float] = field(default_factory=dict)  # by percentile
    rate: float = 0.0  # messages a second, as sent
    late: dict[str, float] = field(default_factory=dict)  # of the generator itself
    fault: str = ""


def summarise(nanoseconds: list[int]) -> dict[str, float]:
    """The percentiles, in µs, of all but the first part."""
    counted = sorted(nanoseconds[int(len(nanoseconds) * SKIPPED) :])
    return {name: report.percentile(counted, share) / 1e3 for name, share in SHARES.items()}


class Client:
    """A connection that publishes, and takes what it published."""

    def __init__(self, server: Server) -> None:
        dialect = DIALECTS[server.name]
        self.block = dialect.block(WORK)
        self.channel: Channel = dialect.open(server.port, WORK, True)
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.read_at = 0  # when the last read returned: what follows is the client's own work

    def read(self, flags: int = 0) -> None:
        """Take what came; waits for it unless the flags say otherwise."""
        channel = self.channel
        start = len(channel.tail)
        if start:
            self.buffer[:start] = channel.tail
        got = channel.sock.recv_into(self.buffer[start:], 0, flags)
        self.read_at = time.perf_counter_ns()
        if not got:
            raise LostError("the server ended the connection")
        channel.take(self.buffer[: start + got])

    def one_at_a_time(self, count: int) -> Round:
        """Send one, wait for it, send the next."""
        channel, clock = self.channel, time.perf_counter_ns
        message = self.block.data[: self.block.size]
        send = channel.sock.send
        taken = []
        begin = clock()
        for number in range(1, count + 1):
            channel.allowed(1, len(message))
            before = clock()
            send(message)
            while channel.messages < number:
                self.read()
            taken.append(self.read_at - before)
        return Round(summarise(taken), count * 1e9 / (clock() - begin))

    def steady(self, seconds: float) -> Round:
        """Send whatever is due, look whether something came, without a pause."""
        channel, clock, size = self.channel, time.perf_counter_ns, self.block.size
        view = memoryview(self.block.data)
        total = int(RATE * seconds)
        sent = got = 0
        sendings: list[tuple[int, int]] = []  # messages sent in all, when
        arrivals: list[tuple[int, int]] = []  # messages arrived in all, when
        start = clock()
        end = start + int((seconds + LATE_SECONDS) * 1e9)
        while got < total:
            now = clock()
            if now > end:
                raise LostError(f"{got} of {sent} messages came back in time")
            due = min(total, (now - start) * RATE // 10**9 + 1)
            if due > sent:
                count = channel.allowed(min(due - sent, self.block.count), size)
                channel.sock.sendall(view[: count * size])
                sent += count
                sendings.append((sent, now))
            try:
                self.read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if channel.messages > got:
                got = channel.messages
                arrivals.append((got, self.read_at))
        rate = total * 1e9 / max(1, sendings[-1][1] - start)
        late = summarise(since_due(sendings, start))
        return Round(summarise(since_due(arrivals, start)), rate, late)


def since_due(steps: list[tuple[int, int]], start: int) -> list[int]:
    """For every message the time from when it was due to the step that included it."""
    waits = []
    number = 0
    for reached, at in steps:
        for each in range(number, reached):
            waits.append(at - start - each * 10**9 // RATE)
        number = reached
    return waits


def measure(server: Server, mode: str, count: int, seconds: float) -> Round:
    """One server, one mode, one round, on a new connection."""
    gc.collect()
    gc.disable()
    try:
        client = Client(server)
        with client.channel.sock:
            return client.one_at_a_time(count) if mode == ONE else client.steady(seconds)
    except (OSError, LostError) as error:
        return Round(fault=repr(error))
    finally:
        gc.enable()


Results = dict[tuple[str, str], list[Round]]  # by mode and server


def values(rounds: list[Round], name: str) -> list[float | None]:
    return [None if one.fault else one.at[name] for one in rounds]


def middle(results: Results, mode: str, server: str, name: str) -> float | None:
    """The median over the rounds of one percentile."""
    return report.median([each for each in values(results.get((mode, server), []), name) if each])


def times(results: Results, mode: str, name: str) -> float | None:
    """How many times NATS: the one median by the other."""
    ours, theirs = (middle(results, mode, server, name) for server in (REGRAFT, NATS))
    return None if ours is None or theirs is None else ours / theirs


def times_with_range(results: Results, mode: str, name: str) -> str:
    """The same, with the lowest and the highest ratio of a single round."""
    ratio = times(results, mode, name)
    if ratio is None:
        return "-"
    ours, theirs = (values(results[mode, server], name) for server in (REGRAFT, NATS))
    rounds = report.ratios(ours, theirs)
    return f"{ratio:.2f} ({min(rounds):.2f}..{max(rounds):.2f})" if rounds else f"{ratio:.2f}"


def row(results: Results, mode: str, server: str) -> list[str]:
    good = [one for one in results[mode, server] if not one.fault]
    if not good:
        return [mode, server, *["-"] * (len(HEAD) - 2)]
    cells = [report.spread([one.at[name] for one in good], 0) for name in SHARES]
    if server == REGRAFT:
        cells += [times_with_range(results, mode, name) for name in SHARES]
    else:
        cells += [""] * len(SHARES)
    cells.append(f"{report.median([one.rate for one in good]) or 0:.0f}")
    for name in ("p50", "p99"):
        late = [one.late[name] for one in good if one.late]
        cells.append(report.spread(late, 0) if late else "")
    return [mode, server, *cells]


def judge(results: Results) -> list[report.Goal]:
    goals = []
    for mode in (ONE, STEADY):
        for name in ("p50", "p99"):
            ratio = times(results, mode, name)
            goal = report.at_most(f"{mode}, {name}", BOUND, "x nats", ratio)
            if any(one.fault for one in results.get((mode, REGRAFT), [])):
                goal = report.missed(goal)
            goals.append(goal)
    return goals


def remarks(results: Results) -> list[str]:
    """Rounds that failed, and rounds in which the generator was the slow one."""
    notes = []
    for (mode, server), rounds in results.items():
        for number, one in enumerate(rounds, 1):
            if one.fault:
                notes.append(f"{mode}, {server}, round {number}: {one.fault}; left out")
            elif mode == STEADY and one.rate < 0.99 * RATE:
                slow = f"the generator sent only {one.rate:.0f} msg/s"
                notes.append(f"{mode}, {server}, round {number}: {slow}")
    return notes


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.latency", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--rounds", type=int, help="default 9, quick 5")
    parser.add_argument("--only", default=f"{NATS},{REGRAFT}", help="servers")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    count, seconds = (4_000, 1.0) if options.quick else (20_000, 3.0)
    results: Results = {}
    neighbours = Neighbours()
    with running_all(options.only.split(",")) as (servers, absent):
        order = list(servers)
        for _ in range(options.rounds or (5 if options.quick else 9)):
            for mode in (ONE, STEADY):
                for name in order:
                    one = measure(servers[name], mode, count, seconds)
                    results.setdefault((mode, name), []).append(one)
            order.reverse()
    rows = [row(results, mode, name) for mode in (ONE, STEADY) for name in sorted(servers)]
    print(report.table(HEAD, rows))
    notes = [f"{name} is absent: {reason}" for name, reason in absent.items()]
    notes += remarks(results) + neighbours.remark()
    return report.finish("latency", judge(results), notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
