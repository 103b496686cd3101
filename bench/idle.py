"""What a node costs while nothing happens: its memory alone, and for each open connection.

    python -m bench.idle [--quick] [--connections N]

Memory is what is resident of the process; buffers of the kernel are not in it. Every connection
has finished its handshake and subscribed to nothing.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass

from bench import report
from bench.dialects import DIALECTS, Channel, LostError, Work
from bench.servers import NATS, REGRAFT, AbsentError, Neighbours, running

WORK = Work("idle", 45, 1)
SETTLE_SECONDS = 1.0
SPARE_FILES = 200
IDLE_MB = 60.0
CONNECTION_KB = 20.0
HEAD = ("server", "idle MB", "KB a connection", "MB with all", "connections", "opened in s",
        "cpu idle")  # fmt: skip


@dataclass(frozen=True)
class Idle:
    """One server in one round."""

    idle_bytes: int
    full_bytes: int
    connections: int
    opened_seconds: float
    cpu_share: float  # of one processor, with all connections open and silent

    @property
    def connection_bytes(self) -> float:
        return (self.full_bytes - self.idle_bytes) / self.connections


def raise_file_limit(files: int) -> int:
    """Allow so many open files here and in the servers started from here; how many it became."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, files)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def measure(name: str, connections: int) -> Idle:
    """A new server: its memory before and after the connections are open."""
    with running(name) as server:
        time.sleep(SETTLE_SECONDS)
        idle = server.rss_bytes()
        channels: list[Channel] = []
        try:
            begin = time.monotonic()
            for _ in range(connections):
                channels.append(DIALECTS[name].open(server.port, WORK, False))
            opened = time.monotonic() - begin
            time.sleep(SETTLE_SECONDS)
            before, at = server.cpu_seconds(), time.monotonic()
            time.sleep(SETTLE_SECONDS)
            share = (server.cpu_seconds() - before) / (time.monotonic() - at)
            return Idle(idle, server.rss_bytes(), connections, opened, share)
        finally:
            for channel in channels:
                channel.sock.close()


def row(name: str, rounds: list[Idle]) -> list[str]:
    return [
        name,
        report.spread([one.idle_bytes / 1e6 for one in rounds], 1),
        report.spread([one.connection_bytes / 1e3 for one in rounds], 1),
        report.spread([one.full_bytes / 1e6 for one in rounds], 0),
        str(rounds[0].connections) if rounds else "-",
        report.spread([one.opened_seconds for one in rounds], 1),
        f"{report.median([one.cpu_share for one in rounds]) or 0:.1%}",
    ]


def judge(results: dict[str, list[Idle]], failed: set[str]) -> list[report.Goal]:
    rounds = results.get(REGRAFT, [])
    idle = report.median([one.idle_bytes / 1e6 for one in rounds])
    each = report.median([one.connection_bytes / 1e3 for one in rounds])
    goals = [
        report.below("memory of an idle node", IDLE_MB, "MB", idle),
        report.below("memory of a connection", CONNECTION_KB, "KB", each),
    ]
    if REGRAFT in failed:
        goals = [report.missed(goal) for goal in goals]
    return goals


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.idle", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--only", default=f"{NATS},{REGRAFT}", help="servers")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    files = raise_file_limit(options.connections + SPARE_FILES)
    connections = min(options.connections, files - SPARE_FILES)
    neighbours = Neighbours()
    notes = []
    if connections < options.connections:
        notes.append(f"only {connections} connections: this system allows {files} open files")
    results: dict[str, list[Idle]] = {}
    failed: set[str] = set()
    for number in range(1, 2 if options.quick else 4):
        for name in options.only.split(","):
            try:
                one = measure(name, connections)
                results.setdefault(name, []).append(one)
            except AbsentError as reason:
                if number == 1:
                    notes.append(f"{name} is absent: {reason}")
            except (OSError, LostError) as error:
                failed.add(name)
                notes.append(f"{name}, round {number}: {error!r}; left out")
    rows = [row(name, rounds) for name, rounds in results.items()]
    print(report.table(HEAD, rows, words=1))
    return report.finish("idle", judge(results, failed), notes + neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
