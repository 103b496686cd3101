"""Services: requests, notifications and events of many clients in few processes.

    python -m bench.services [--quick] [--rounds N] [--parts echo,load,notes,faults]
                             [--kills 0,5,9] [--plots FOLDER]

echo    C clients ask S services, 45 bytes there and back, each client one thing after the other;
        beside NATS (request/reply with a queue group, nats-py) and RabbitMQ (RPC with pika)
load    the same at a rate that all of them can serve: how long does an answer take?
notes   45 and 1024 bytes from C senders to each of S receivers
faults  C=12, D=10 nodes, S=100 receivers; K of the nodes are killed, 0.1 s apart, while plain
        messages or events are sent: how many arrive, and how long do senders take?

All clients of one kind are in one process, as are all services: this is about what a request costs,
on a machine with few processors. Each of them has a connection of its own, or they share one.
Regraft's peers reach a node on their own machine by its local socket, unless the row says TCP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import durable_servers, plot
from bench.report import at_least, at_most, below, finish, median, missed, ratios, spread, table
from bench.servers import (
    NATS,
    REGRAFT,
    ROOT,
    AbsentError,
    Neighbours,
    Server,
    cpu_seconds,
    free_ports,
    running,
    wait_until_ready,
)
from bench.service_workers import ONE, OWN, SHARED, TCP

RABBITMQ = durable_servers.RABBITMQ
LIBRARIES = (REGRAFT, NATS, RABBITMQ)
RULES = """
[peers.ECHO]
[peers.RECEIVER]
[types.ECHO_REQUEST]
routes = [{ to = "ECHO" }]
[types.NOTE]
routes = [{ to = "RECEIVER", whom = "all", missing = "ignore" }]
"""
BYTES = 45
PROCESSES = ("caller", "node", "service")
READY_S = 60.0
DONE_S = 600.0
SETTLE_S = 0.5  # for a thousand new connections: who began just now still has to do with that


Shape = tuple[int, int]  # services, clients
Found = dict[tuple[str, str, Shape], list[dict[str, Any]]]  # by library, way and shape


class Worker:
    """A process of `bench.service_workers`."""

    def __init__(self, **job: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.service_workers", json.dumps(job)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "REGRAFT_REQUIRE_COMPILED": "1"},
        )

    def hear(self) -> dict[str, Any]:
        """The next thing that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with exit code {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self) -> None:
        """Have it begin, or end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Let it close its connections; if it does not, end it."""
        self.tell()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def workers(*jobs: dict[str, Any]) -> Iterator[list[Worker]]:
    """Processes, in this order, each ready before the next is started."""
    made: list[Worker] = []
    try:
        for job in jobs:
            made.append(Worker(**job))
            made[-1].hear()
        yield made
    finally:
        for worker in reversed(made):
            worker.end()


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[Server]]:
    """Nodes with the rules of this benchmark that do not know each other."""
    with tempfile.TemporaryDirectory(prefix="regraft-services-") as folder:
        rules = Path(folder) / "rules.toml"
        rules.write_text(RULES)
        made: list[Server] = []
        processes = []
        try:
            for port in free_ports(count):
                line = [sys.executable, "-m", "regraft", "serve", "-p", str(port)]
                line += ["--data", str(Path(folder) / str(port)), "--rules", str(rules)]
                output = Path(folder) / f"{port}.log"
                with output.open("wb") as sink:
                    process = subprocess.Popen(line, cwd=ROOT, stdout=sink, stderr=sink)
                processes.append(process)
                made.append(Server(REGRAFT, port, process))
            for server in made:
                wait_until_ready(server, Path(folder) / f"{server.port}.log")
            yield made
        finally:
            for server in made:
                server.stop()


@contextlib.contextmanager
def serving(library: str, pids: dict[str, int]) -> Iterator[str]:
    """A server of a library: where clients connect. AbsentError if there is none."""
    if library == REGRAFT:
        with nodes(1) as (server,):
            pids[library] = server.pid
            yield f"127.0.0.1:{server.port}"
    elif library == NATS:
        with running(NATS) as server:
            pids[library] = server.pid
            yield f"nats://127.0.0.1:{server.port}"
    else:
        with (
            tempfile.TemporaryDirectory(prefix="regraft-rabbit-") as folder,
            durable_servers.STARTS[RABBITMQ](Path(folder)) as server,
        ):
            yield str(server.port)


# --------------------------------------------------------------------------------- echo


def echo(
    library: str, way: str, where: str, shape: Shape, each: int, rate: float = 0, node: int = 0
) -> dict[str, Any]:
    """One run: requests per second, the time of each, and the processor time in each process.

    `node` is the process of the server, if that is known.
    """
    services, clients = shape
    about = {"library": library, "nodes": where, "services": services, "clients": clients}
    about["way"] = way
    with workers(
        {"role": "echo-services", **about},
        {"role": "echo-clients", **about, "each": each, "bytes": BYTES, "rate": rate},
    ) as (serving, asking):
        pids = {"caller": asking.pid, "node": node, "service": serving.pid}
        before = {name: cpu_seconds(pid) for name, pid in pids.items() if pid}
        asking.tell()
        said = asking.hear()
        for name, seconds in before.items():
            said[name] = (cpu_seconds(pids[name]) - seconds) / said["requests"] * 1e6
    said["rate"] = said["requests"] / said["seconds"]
    return said


def ways_of(library: str, shape: Shape) -> tuple[str, ...]:
    """How connections can be used; one peer for all callers is what a web server has."""
    if library == RABBITMQ:
        return (OWN,)  # pika's connections are not for several threads
    if library == REGRAFT:
        return (OWN, SHARED, TCP, ONE) if shape[0] == 1 else (OWN, SHARED, TCP)
    return OWN, SHARED


def measure_echo(
    libraries: dict[str, str],
    pids: dict[str, int],
    shapes: list[Shape],
    each: int,
    rounds: int,
) -> Found:
    """Rounds of all shapes, libraries in turn."""
    found: Found = {}
    for _ in range(rounds):
        for shape in shapes:
            for library, where in libraries.items():
                much = each if library != RABBITMQ else max(1, each // 5)
                for way in ways_of(library, shape):
                    run = echo(library, way, where, shape, much, 0, pids.get(library, 0))
                    found.setdefault((library, way, shape), []).append(run)
    return found


def processor_time(runs: list[dict[str, Any]], name: str) -> str:
    """What one request takes in a process."""
    times = [run[name] for run in runs if name in run]
    return f"{median(times):.1f}" if times else "-"


def show_echo(found: Found) -> None:
    rows = []
    for (library, way, (services, clients)), runs in found.items():
        rates = [run["rate"] for run in runs]
        rows.append(
            [
                library,
                f"S={services} C={clients}",
                way,
                spread(rates, 0),
                spread([run["p50_ms"] for run in runs]),
                spread([run["p99_ms"] for run in runs]),
                f"{1e6 / (median(rates) or 1):.0f}",
                *(processor_time(runs, name) for name in PROCESSES),
            ]
        )
    head = ["echo", "shape", "connections", "requests/s", "p50 ms", "p99 ms", "µs each"]
    head += [f"{name} µs" for name in PROCESSES]
    print(table(head, rows), end="\n\n")


def best_of(found: Found, library: str, shape: Shape, what: str, most: bool) -> list[float]:
    """The runs of the way that suits a library best."""
    ways = [
        [run[what] for run in runs]
        for (name, _, where), runs in found.items()
        if name == library and where == shape
    ]
    choose = max if most else min
    return choose(ways, key=lambda runs: median(runs) or 0.0) if ways else []


def worst_ratio(found: Found, shapes: list[Shape]) -> float:
    """How many times the requests per second of nats-py, where it is the least."""
    return min(
        median(ratios(*(best_of(found, lib, shape, "rate", True) for lib in (REGRAFT, NATS)))) or 0
        for shape in shapes
    )


def draw_echo(found: Found, folder: Path) -> None:
    """How time grows with clients, and what a request costs with many services and clients."""
    services = {"S=40": lambda s, c: s == 40, "S=1": lambda s, c: s == 1}
    services["S=C"] = lambda s, c: s == c
    for name, among in services.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for (library, way, (s, c)), runs in found.items():
            if among(s, c) and library != RABBITMQ:
                seconds = median([run["seconds"] for run in runs]) or 0.0
                lines.setdefault(f"{library} {way}", []).append((c, seconds))
        lines = {label: sorted(points) for label, points in lines.items() if len(points) > 1}
        if lines:
            file = folder / f"services-{name.replace('=', '')}.svg"
            plot.write(file, f"Echo, {name}", "clients", "seconds for all requests", lines)


# ------------------------------------------------------------------------- notifications


def notes(
    library: str, where: str, services: int, clients: int, each: int, size: int, event: bool = False
) -> dict[str, Any]:
    """One run: how long until every receiver has everything."""
    messages = clients * each
    about = {"library": library, "nodes": where, "messages": messages, "patience": DONE_S}
    halves = (services // 2, services - services // 2)
    jobs = [{"role": "receivers", **about, "services": half} for half in halves]
    sending = {"role": "senders", **about, "clients": clients, "each": each}
    with workers(*jobs, {**sending, "bytes": size, "event": event}) as (*taking, sender):
        sender.tell()
        said = sender.hear()
        ends = [worker.hear() for worker in taking]
    received = sum(end["received"] for end in ends)
    expected = sum(end["expected"] for end in ends)
    seconds = max(end["at"] for end in ends) - said["began"]
    return {
        "seconds": seconds,
        "sending": said["seconds"],
        "delivered": received / expected,
        "rate": received / seconds,
        "mib": received * size / seconds / (1 << 20),
    }


def show_notes(rows: list[tuple[str, str, list[dict[str, Any]]]]) -> None:
    lines = [
        [
            library,
            shape,
            spread([run["seconds"] for run in runs]),
            spread([run["rate"] / 1000 for run in runs], 0),
            spread([run["mib"] for run in runs], 0),
            f"{100 * min(run['delivered'] for run in runs):.1f}",
        ]
        for library, shape, runs in rows
    ]
    head = ["notes", "shape", "seconds", "k deliveries/s", "MiB/s", "% delivered"]
    print(table(head, lines), end="\n\n")


# ---------------------------------------------------------------------------------- faults


def faults(killed: int, count: int, services: int, clients: int, each: int, event: bool) -> Any:
    """One run in which `killed` of the nodes are killed, 0.1 s apart, from the first second on."""
    with nodes(count) as servers:
        where = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        messages = clients * each
        about = {"library": REGRAFT, "nodes": where, "messages": messages, "patience": 30.0}
        jobs = [{"role": "receivers", **about, "services": services // 2} for _ in range(2)]
        sending = {"role": "senders", **about, "clients": clients, "each": each}
        with workers(*jobs, {**sending, "bytes": BYTES, "event": event}) as (*taking, sender):
            time.sleep(SETTLE_S)
            sender.tell()
            began = time.monotonic()
            for k in range(killed):
                time.sleep(max(0.0, began + 0.2 + 0.1 * k - time.monotonic()))
                os.kill(servers[k].pid, signal.SIGKILL)
            said = sender.hear()
            ends = [worker.hear() for worker in taking]
    received = sum(end["received"] for end in ends)
    expected = sum(end["expected"] for end in ends)
    whole = max(end["at"] for end in ends) - said["began"]
    return {"sending": said["seconds"], "seconds": whole, "delivered": received / expected}


def show_faults(rows: list[tuple[int, str, list[dict[str, Any]]]]) -> None:
    lines = [
        [
            str(killed),
            kind,
            spread([run["sending"] for run in runs]),
            spread([run["seconds"] for run in runs]) if kind == "event" or not killed else "-",
            " ".join(f"{100 * run['delivered']:.1f}" for run in runs),
        ]
        for killed, kind, runs in rows
    ]
    print(table(["killed", "kind", "senders s", "all s", "% delivered"], lines), end="\n\n")


# ------------------------------------------------------------------------------------ main


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.services", description=(__doc__ or "")[:63])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--rounds", type=int, help="default 3, quick 1")
    parser.add_argument("--parts", default="echo,load,notes,faults")
    parser.add_argument("--plots", type=Path, help="draw charts of echo into this folder")
    parser.add_argument("--kills", default="", help="rows of the fault table, as in 0,1,9")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 3)
    parts = options.parts.split(",")
    neighbours = Neighbours()
    remarks: list[str] = []
    goals = []
    with contextlib.ExitStack() as stack:
        libraries: dict[str, str] = {}
        pids: dict[str, int] = {}
        for library in LIBRARIES:
            if library == RABBITMQ and options.quick:
                remarks.append("rabbitmq is left out of the quick run: it takes long to start")
                continue
            try:
                libraries[library] = stack.enter_context(serving(library, pids))
            except AbsentError as reason:
                remarks.append(f"{library}: {reason}")
        if "echo" in parts:
            goals += echo_part(libraries, pids, options.quick, rounds, options.plots)
        if "load" in parts:
            goals += load_part(libraries, options.quick, rounds)
        if "notes" in parts:
            notes_part(libraries, options.quick, rounds)
    if "faults" in parts:
        goals += faults_part(options.quick, rounds, options.kills)
    return finish("services", goals, [*remarks, *neighbours.remark()])


def echo_part(
    libraries: dict[str, str], pids: dict[str, int], quick: bool, rounds: int, plots: Path | None
) -> list[Any]:
    each = 1000 if quick else 5000
    shapes: list[Shape] = [(20, 20), (1, 20), (1, 40)]
    if not quick:
        shapes = [(10, 10), (40, 40), (1, 10), (1, 40), (40, 10), (40, 20), (40, 80)]
    found = measure_echo(libraries, pids, shapes, each, rounds)
    show_echo(found)
    if plots is not None:
        draw_echo(found, plots)
    worst = None
    if {REGRAFT, NATS} <= set(libraries):
        worst = worst_ratio(found, shapes)
        without = {key: runs for key, runs in found.items() if key[0] == NATS or key[1] == TCP}
        print(f"the worst shape over TCP: {worst_ratio(without, shapes):.2f} times nats-py\n")
    goals = [at_least("requests/s, best against best nats-py, worst shape", 5, "times", worst)]
    if not quick:
        for way in (OWN, SHARED):
            costs = {
                c: median([1 / r["rate"] for r in found[REGRAFT, way, (40, c)]]) for c in (20, 80)
            }
            growth = (costs[80] or 0) / (costs[20] or 1)
            text = f"time per request, S=40, C=80 against C=20, {way}"
            goals.append(at_most(text, 1.5, "times", growth))
    return goals


def load_part(libraries: dict[str, str], quick: bool, rounds: int) -> list[Any]:
    """The time of an answer, where all libraries have the same to do."""
    rate = 1500.0
    each = 50 if quick else 1000
    shape = (20, 20)
    found: Found = {}
    for _ in range(rounds):
        for library, where in libraries.items():
            if library != RABBITMQ:
                for way in (OWN, SHARED):
                    run = echo(library, way, where, shape, each, rate)
                    found.setdefault((library, way, shape), []).append(run)
    rows = [
        [name, way, spread([r["p50_ms"] for r in runs]), spread([r["p99_ms"] for r in runs])]
        for (name, way, _), runs in found.items()
    ]
    head = [f"at {rate:g} requests/s", "connections", "p50 ms", "p99 ms"]
    print(table(head, rows, 2), end="\n\n")
    both = None
    if {REGRAFT, NATS} <= set(libraries):
        both = median(ratios(*(best_of(found, n, shape, "p99_ms", False) for n in (REGRAFT, NATS))))
    return [below("p99 at the same load, best against best nats-py", 1, "times", both)]


def notes_part(libraries: dict[str, str], quick: bool, rounds: int) -> None:
    rows = []
    shapes = (
        [(50, 5, 45)] if quick else [(50, 10, 45), (50, 10, 1024), (70, 10, 45), (70, 10, 1024)]
    )
    for services, clients, size in shapes:
        each = 200 if quick else (1000 if size == 45 else 500)
        for library, where in libraries.items():
            if library != RABBITMQ:
                runs = [notes(library, where, services, clients, each, size) for _ in range(rounds)]
                rows.append((library, f"S={services} C={clients} {size} B", runs))
    show_notes(rows)


def faults_part(quick: bool, rounds: int, kills: str) -> list[Any]:
    count, services, clients, each = (4, 20, 4, 500) if quick else (10, 100, 12, 1000)
    wanted = [int(k) for k in kills.split(",") if k] or ([0, 3] if quick else list(range(10)))
    rows = []
    for killed in wanted:
        for kind in ("plain", "event"):
            if quick and killed and kind == "plain":
                continue  # what is lost would be waited for
            runs = [
                faults(killed, count, services, clients, each, kind == "event")
                for _ in range(rounds)
            ]
            rows.append((killed, kind, runs))
    show_faults(rows)
    delivered = min(run["delivered"] for _, kind, runs in rows for run in runs if kind == "event")
    goals = [at_least("events delivered, the worst row", 100, "%", 100 * delivered)]
    first = {kind: [r["seconds"] for r in runs] for killed, kind, runs in rows if killed == 0}
    ratio = median(ratios(first["event"], first["plain"])) if len(first) == 2 else None
    goal = at_most("events against plain messages, nobody killed", 3, "times the time", ratio)
    goals.append(goal if delivered == 1.0 else missed(goal))
    return goals


if __name__ == "__main__":
    sys.exit(main())
