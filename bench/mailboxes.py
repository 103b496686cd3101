"""Queues and durable subscriptions: work queues beside other systems, and very many of everything.

    python -m bench.mailboxes [--quick] [--parts queue,waiting,population,return] [--only regraft]

Four parts: members that share a durable queue and settle one by one; very many messages waiting
with mixed priorities; very many durable subscriptions, of which some are away; many readers who
come back at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import journal_node, report
from bench import mailbox_parts as parts
from bench.durable import Place, WrongError
from bench.durable_servers import STARTS, remark, scratch
from bench.idle import raise_file_limit
from bench.journal import amount, say, spread_of, times, untold
from bench.mailbox_node import RegraftQueue
from bench.mailbox_peers import PEERS
from bench.report import Goal
from bench.servers import REGRAFT, ROOT, AbsentError, Neighbours, Server
from bench.workers import PROCESSES, Settled, Way, drain, flow

OURS = Way("regraft, client", REGRAFT, RegraftQueue(), 400)
WAYS = (OURS, *PEERS)
PARTS = ("queue", "waiting", "population", "return")
FIRST_MESSAGES = 2_000  # of the first drain of a way, from which the others' length follows
MESSAGES_MIN, MESSAGES_MAX = 1_000, 400_000
BYTES_EACH = 100.0
RATIO = 3.0
FAULT_TEXT_MAX = 200
SPARE_FILES = 200
QUEUE_HEAD = ("way", "work", "synced", "settled/s", "range", "µs cpu members", "server",
              "publisher", "others", "regraft is x")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    rounds: int
    seconds: float  # of one drain, about, and of one flow
    drains: tuple[int, ...]  # members
    flows: tuple[int, ...]
    waiting: int
    mailboxes: int
    published: int  # to them, one taker each
    readers: int
    messages: int  # that wait for each reader
    judged: bool  # whether memory is


QUICK = Sizes(1, 0.5, (1, 10, 100), (10,), 200_000, 5_000, 20_000, 50, 20_000, False)
FULL = Sizes(
    3, 3.0, (1, 10, 100), (1, 10, 100), 10_000_000, 100_000, 200_000, 1_000, 1_000_000, True
)
WARM_SECONDS = 0.5
FLOW_SECONDS = 1.5  # at least: some settle in bursts


@dataclass
class Results:
    """All that was measured."""

    queue: dict[tuple[str, str], list[Settled]] = field(default_factory=dict)  # by work and way
    waiting: parts.Waiting | None = None
    population: list[parts.Population] = field(default_factory=list)
    readers: parts.Return | None = None
    absent: dict[str, str] = field(default_factory=dict)  # ways, and why
    broken: set[str] = field(default_factory=set)  # works and parts that Regraft failed in
    faults: dict[str, list[int]] = field(default_factory=dict)  # texts, and in which rounds

    def rates(self, work: str, label: str) -> list[float | None]:
        found = self.queue.get((work, label), [])
        return [None if one.fault else one.rate for one in found]

    def fail(self, work: str, label: str, text: str, number: int = 0) -> None:
        """Remember what went wrong, and that goals were missed if it was Regraft."""
        text = f"{work}, {label}: {text[:FAULT_TEXT_MAX]}"
        self.faults.setdefault(text, []).append(number)
        if label.startswith(REGRAFT):
            self.broken.add(work)


def drain_of(members: int) -> str:
    return f"drain, {members} members" if members > 1 else "drain, 1 member"


def flow_of(members: int) -> str:
    return f"flow, {members} members" if members > 1 else "flow, 1 member"


# --------------------------------------------------------------------------- work queues


class Queues:
    """The servers, of which one runs at a time, and how fast each was so far."""

    def __init__(self, sizes: Sizes, folder: Path, only: str, results: Results) -> None:
        self.sizes = sizes
        self.folder = folder
        self.ways = [way for way in WAYS if only in way.label]
        self.results = results
        self.rates: dict[tuple[str, int], float] = {}  # of drains, by way and members

    def run(self) -> None:
        with ExitStack() as stack:
            servers = self.start_all(stack)
            order = [way for way in self.ways if way.server in servers]
            for number in range(1, self.sizes.rounds + 1):
                for way in order:
                    if way.label not in self.results.absent:
                        say(f"work queues, round {number}: {way.label}")
                        self.measure(way, Place(self.folder, servers[way.server]), number)
                order = order[1:] + order[:1]

    def start_all(self, stack: ExitStack) -> dict[str, Server]:
        """Those that can be started; why the others cannot."""
        servers: dict[str, Server] = {}
        lacking: dict[str, str] = {}
        for way in self.ways:
            if way.module and find_spec(way.module) is None:
                self.results.absent[way.label] = f"the module {way.module} is not installed"
                continue
            if way.server not in servers and way.server not in lacking:
                try:
                    servers[way.server] = stack.enter_context(self.start(way.server))
                except AbsentError as reason:
                    lacking[way.server] = str(reason)
            if way.server in lacking:
                self.results.absent[way.label] = lacking[way.server]
        return servers

    def start(self, server: str) -> Any:
        folder = self.folder / server.replace(", ", "-")
        return journal_node.node(folder, "") if server == REGRAFT else STARTS[server](folder)

    def measure(self, way: Way, place: Place, number: int) -> None:
        for members in self.sizes.drains:
            one = drain(way, place, members, self.messages(way, place, members))
            if not one.fault:
                self.rates[way.label, members] = one.rate
            self.keep(drain_of(members), way, number, one)
        for members in self.sizes.flows:
            seconds = max(FLOW_SECONDS, self.sizes.seconds)
            one = flow(way, place, members, WARM_SECONDS, seconds)
            self.keep(flow_of(members), way, number, one)

    def messages(self, way: Way, place: Place, members: int) -> int:
        """As many as this way drains in the time; from a short drain if there was none before."""
        rate = self.rates.get((way.label, members))
        if rate is None:
            rate = drain(way, place, members, FIRST_MESSAGES).rate
        return int(min(MESSAGES_MAX, max(MESSAGES_MIN, rate * self.sizes.seconds)))

    def keep(self, work: str, way: Way, number: int, one: Settled) -> None:
        self.results.queue.setdefault((work, way.label), []).append(one)
        if one.fault:
            self.results.fail(work, way.label, one.fault, number)


def best(results: Results, work: str, ways: list[Way]) -> list[float | None]:
    """The fastest of these, round by round; a failed round is not counted as slow."""
    columns = zip(*(results.rates(work, way.label) for way in ways), strict=False)
    return [max((each for each in column if each), default=None) for column in columns]


# ----------------------------------------------------------------------------- the others


def measure_parts(sizes: Sizes, wanted: list[str], folder: Path, results: Results) -> None:
    """The parts about one node, each with a node of its own."""

    def part(name: str, work: Callable[[Path], None]) -> None:
        if name not in wanted:
            return
        say(name)
        try:
            with scratch(folder) as own:
                work(own)
        except (AbsentError, WrongError, OSError) as error:
            results.fail(name, REGRAFT, str(error))

    def waiting(own: Path) -> None:
        results.waiting = parts.measure_waiting(own, sizes.waiting)

    def population(own: Path) -> None:
        for takers, count in ((1, sizes.published), (parts.GROUP, sizes.published // 50)):
            for mailboxes in (max(sizes.mailboxes // 100, takers), sizes.mailboxes):
                place = own / f"{mailboxes}-{takers}"
                found = parts.measure_population(place, mailboxes, takers, count)
                results.population.append(found)

    def come_back(own: Path) -> None:
        results.readers = parts.measure_return(own, sizes.readers, sizes.messages)

    part("waiting", waiting)
    part("population", population)
    part("return", come_back)


# ------------------------------------------------------------------------------- paper


def queue_row(results: Results, work: str, way: Way) -> list[str]:
    good = [one for one in results.queue[work, way.label] if not one.fault]
    synced = "yes" if way.synced else "no"
    if not good:
        return [way.label, work, synced, *["-"] * (len(QUEUE_HEAD) - 3)]

    def cpu(who: str) -> str:
        used = report.median([getattr(one, who) / max(1, one.messages) * 1e6 for one in good])
        return f"{used:.1f}"

    rates = [one.rate for one in good]
    others = report.median([one.other_cpu / one.seconds for one in good])
    ratio = times(results.rates(work, OURS.label), results.rates(work, way.label))
    return [
        way.label,
        work,
        synced,
        amount(report.median(rates) or 0.0),
        spread_of(rates),
        cpu("members_cpu"),
        cpu("server_cpu"),
        cpu("publisher_cpu") if work.startswith("flow") else "",
        f"{others:.0%}",
        "" if way is OURS else report.spread(ratio),
    ]


def print_queues(results: Results, sizes: Sizes) -> None:
    works = [*map(drain_of, sizes.drains), *map(flow_of, sizes.flows)]
    rows = [
        queue_row(results, work, way)
        for work in works
        for way in WAYS
        if (work, way.label) in results.queue
    ]
    if rows:
        print(f"members in {PROCESSES} processes (1 member: in one); a publisher in another")
        print(report.table(QUEUE_HEAD, rows, 3))
        print()


def print_parts(results: Results) -> None:
    if (one := results.waiting) is not None:
        print_waiting(one)
    if results.population:
        print_population(results.population)
    if (back := results.readers) is not None:
        total = back.readers * back.messages
        show(
            {
                "readers": str(back.readers),
                "messages each": str(back.messages),
                "s until all have all": f"{back.seconds:.2f}",
                "deliveries/s": amount(back.rate),
                "ns cpu node": f"{back.node_cpu / total * 1e9:.0f}",
                "ns cpu readers": f"{back.readers_cpu / total * 1e9:.0f}",
            }
        )


def show(*rows: dict[str, str]) -> None:
    """A table of numbers; all rows have the same columns."""
    print(report.table(list(rows[0]), [list(row.values()) for row in rows], 0), end="\n\n")


def print_waiting(one: parts.Waiting) -> None:
    files = (one.full.files - one.empty.files) / one.messages
    show(
        {
            "waiting": amount(one.messages),
            "B own memory/msg": f"{one.bytes_each:.1f}",
            "B of files/msg": f"{files:.1f}",
            "MB empty": f"{one.empty.own / 1e6:.0f}",
            "MB full": f"{one.full.own / 1e6:.0f}",
            "first ms": f"{one.first_ms:.1f}",
            "drained/s": amount(one.messages / one.drained_s),
            "µs cpu node": f"{one.node_cpu / one.messages * 1e6:.2f}",
            "µs cpu member": f"{one.member_cpu / one.messages * 1e6:.2f}",
        }
    )


def print_population(found: list[parts.Population]) -> None:
    show(
        *(
            {
                "mailboxes": str(one.mailboxes),
                "away": str(one.away),
                "takers/msg": str(one.takers),
                "made/s": amount(one.mailboxes / one.made_s),
                "B each": f"{one.bytes_each:.0f}",
                "msg/s": amount(one.messages / one.seconds),
                "µs cpu/msg": f"{one.cpu_us:.1f}",
                "µs cpu/taker": f"{one.cpu_us / one.takers:.2f}",
            }
            for one in found
        )
    )


# ------------------------------------------------------------------------------- goals


def judge(results: Results, wanted: list[str], sizes: Sizes) -> list[Goal]:
    """The goals of these parts; what Regraft failed in, it has missed."""
    goals: list[tuple[str, Goal]] = []
    if "queue" in wanted:
        works = [*map(drain_of, sizes.drains), *map(flow_of, sizes.flows)]
        goals += [(work, beside(results, work)) for work in works]
    if "waiting" in wanted:
        each = results.waiting.bytes_each if results.waiting else None
        name = f"memory of one of {amount(sizes.waiting)} waiting"
        goal = report.below(name, BYTES_EACH, "B beyond an empty node", each)
        goals.append(("waiting", goal if sizes.judged else untold(goal)))
    return [report.missed(goal) if work in results.broken else goal for work, goal in goals]


def beside(results: Results, work: str) -> Goal:
    """Three times the best of the same guarantee; if one is absent, nobody knows it is met."""
    synced = [way for way in PEERS if way.synced]
    there = [way for way in synced if any(results.rates(work, way.label))]
    ratio = report.median(times(results.rates(work, OURS.label), best(results, work, there)))
    goal = report.at_least(work, RATIO, "x the best synced peer", ratio)
    return untold(goal) if goal.met and len(there) < len(synced) else goal


# -------------------------------------------------------------------------------- main


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.mailboxes", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three to four minutes")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them")
    parser.add_argument("--only", default="", help="ways whose label contains this")
    parser.add_argument("--rounds", type=int, help="of work queues; default 3, quick 1")
    parser.add_argument("--seconds", type=float, help="of one drain or flow; default 3, quick 0.5")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on a real disk")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    sizes = QUICK if options.quick else FULL
    changes = {"rounds": options.rounds, "seconds": options.seconds}
    sizes = Sizes(**{**vars(sizes), **{k: v for k, v in changes.items() if v}})
    wanted = options.parts.split(",")
    raise_file_limit(sizes.readers + SPARE_FILES)
    neighbours = Neighbours()
    results = Results()
    if "queue" in wanted:
        with scratch(options.folder) as folder:
            Queues(sizes, folder, options.only, results).run()
    measure_parts(sizes, wanted, options.folder, results)
    print_queues(results, sizes)
    print_parts(results)
    notes = [f"{label} is absent: {reason}" for label, reason in results.absent.items()]
    notes += [
        f"{text} (round {', '.join(map(str, numbers))}; left out)" if any(numbers) else text
        for text, numbers in results.faults.items()
    ]
    notes += remark(options.folder) + neighbours.remark()
    return report.finish("mailboxes", judge(results, wanted, sizes), notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
