"""How fast messages become safe, and come back: the journal, beside other systems that keep them.

    python -m bench.journal [--quick] [--parts publish,one,read,cpu,recovery] [--only regraft]

Five parts: many persistent messages in flight, each confirmed after a sync; one at a time; a long
stream read back; what a journal costs messages that it does not keep; recovery of a large journal.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bench import journal_node as ours
from bench import load, report
from bench.capacity import quantity
from bench.dialects import BLOCK_BYTES, LostError, Work
from bench.durable import Place, Round, Way, apart, measure, measure_one
from bench.durable_peers import PEERS, disk_many, disk_one
from bench.durable_servers import STARTS, remark, scratch
from bench.report import Goal
from bench.servers import REGRAFT, RELAY, ROOT, AbsentError, Neighbours, Server

RAW, CLIENT, SINGLE = "regraft, raw", "regraft, client", "regraft, client, one a call"
DISK = "disk, same batches"
DISK_LARGE = "disk, 1 MiB"
SYNC = "write + fdatasync"
PARTS = ("publish", "one", "read", "cpu", "recovery")
CPU_WORK = Work("45 B, 1 to 1", 45, 1)
RELAY_WORK = Work("200 B, 1 to 1", 200, 1)
ALL, SOME = "price > 100 AND symbol <> 'NONE'", "price > 100 AND symbol = 'ACME'"
FAULT_TEXT_MAX = 200
UNSTEADY = 2.0  # times the shortest, before the disk is called unsteady
ONE_IN = 10  # messages that the second selector takes
KINDS = tuple({"price": 101.5, "symbol": "OTHR" if number else "ACME"} for number in range(ONE_IN))
MANY_HEAD = ("way", "synced", "confirmed/s", "range", "MB/s", "msg/confirmation",
             "µs cpu publisher", "server", "others", "raw is x", "client is x")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    rounds: int
    seconds: float
    warm: float
    pool: int  # messages that the raw generator has ready: more than it can send while warming up
    singles: int  # messages one at a time, in a round
    stream: int  # messages of the stream that is read back
    journal: float  # bytes of the journal that is recovered
    judged: bool  # whether recovery is


QUICK = Sizes(3, 0.7, 0.3, 3_000_000, 300, 1_000_000, 1e9, False)
FULL = Sizes(5, 2.0, 0.5, 6_000_000, 1000, 10_000_000, 10e9, True)


@dataclass
class Results:
    """All that was measured."""

    many: dict[str, list[Round]] = field(default_factory=dict)
    one: dict[str, list[float | None]] = field(default_factory=dict)  # µs
    read: dict[str, list[float | None]] = field(default_factory=dict)  # messages a second
    cpu: dict[str, list[float | None]] = field(default_factory=dict)  # µs a message
    recovery: dict[str, float] = field(default_factory=dict)  # seconds
    absent: dict[str, str] = field(default_factory=dict)  # ways, and why
    broken: set[tuple[str, str]] = field(default_factory=set)  # part and way, of Regraft
    faults: dict[str, list[int]] = field(default_factory=dict)  # texts, and in which rounds

    def rates(self, label: str) -> list[float | None]:
        return [None if one.fault else one.rate for one in self.many.get(label, [])]


class Bench:
    """The servers that run, and the ways that can be measured."""

    def __init__(self, sizes: Sizes, folder: Path, only: str, stack: ExitStack) -> None:
        self.sizes = sizes
        self.folder = folder
        self.only = only
        self.stack = stack
        self.results = Results()
        self.pool = ours.make_pool(sizes.singles)
        self.batch = BLOCK_BYTES // self.pool.size  # until the node has shown its own
        self.servers: dict[str, Server] = {}
        self.lacking: dict[str, str] = {}  # servers, and why they do not run

    def ways(self) -> list[Way]:
        """All of them, of which some may be absent."""
        pool = self.pool
        starts = [
            Way(RAW, REGRAFT, ours.raw_many(pool), ours.raw_one(pool)),
            Way(CLIENT, REGRAFT, ours.client_many(False), ours.client_one),
            Way(SINGLE, REGRAFT, ours.client_many(True)),
            self.disk(DISK, self.batch),
            self.disk(DISK_LARGE, (1 << 20) // pool.size),
        ]
        return [way for way in (*starts, *PEERS) if self.only in way.label]

    def disk(self, label: str, batch: int) -> Way:
        """The raw disk; it writes what the journal would for as many messages together."""
        frame = self.pool.data[: self.pool.size]
        head = ours.record_bytes(batch, len(frame)) - batch * len(frame)
        single = frame.rjust(ours.record_bytes(1, len(frame)), b"\0")
        return Way(label, "", disk_many(frame, head, batch), disk_one(single))

    def present(self) -> list[Way]:
        """Those whose servers run; starts them."""
        found = []
        for way in self.ways():
            reason = f"the module {way.module} is not installed"
            if not way.module or find_spec(way.module) is not None:
                reason = self.start(way.server)
            if not reason:
                found.append(way)
                continue
            self.results.absent[way.label] = reason
            if way.server == REGRAFT:
                self.results.broken |= {("publish", way.label), ("one", way.label)}
        return found

    def start(self, server: str) -> str:
        """Start a server, unless that was tried before; why it does not run, or nothing."""
        if server and server not in self.servers and server not in self.lacking:
            starts = {REGRAFT: ours.node, **STARTS}
            folder = self.folder / server.replace(", ", "-")
            try:
                self.servers[server] = self.stack.enter_context(starts[server](folder))
            except AbsentError as reason:
                self.lacking[server] = str(reason)
        return self.lacking.get(server, "")

    def place(self, way: Way) -> Place:
        return Place(self.folder, self.servers.get(way.server))

    # ------------------------------------------------------------------ the parts

    def publish(self) -> None:
        """Many in flight, round by round."""
        if self.only in RAW:
            self.pool = ours.make_pool(self.sizes.pool)
        order = self.present()
        if self.only in RELAY and (reason := self.start(RELAY)):
            self.results.absent[RELAY] = reason
        relay = self.servers.get(RELAY)
        for number in turns(self.sizes.rounds, "many in flight", [way.label for way in order]):
            for way in order:
                os.sync()  # what one left unwritten is not the next one's burden
                if way.label == DISK:
                    way = self.disk(DISK, self.batch)
                one = measure(way, self.place(way), self.sizes.warm, self.sizes.seconds)
                self.keep(way.label, number, one)
                if way.label == RAW and not one.fault:
                    self.batch = max(1, round(one.batch))
            if relay is not None:
                self.keep(RELAY, number, self.relayed(relay))
            order = order[1:] + order[:1]

    def relayed(self, server: Server) -> Round:
        window = load.Window(self.sizes.warm, self.sizes.seconds)
        one = load.measure(server, RELAY_WORK, window)
        ends = one.sender_cpu + one.receiver_cpu
        return Round(one.seconds, one.deliveries, 0, ends, one.server_cpu, one.other_cpu, one.fault)

    def keep(self, label: str, number: int, one: Round) -> None:
        self.results.many.setdefault(label, []).append(one)
        if one.fault:
            self.fail("publish", label, one.fault, number)

    def fail(self, part: str, label: str, text: str, number: int = 0) -> None:
        """Remember what went wrong in a round, and that goals were missed if it was Regraft."""
        text = f"{part}, {label}: {text if len(text) < FAULT_TEXT_MAX else text[:FAULT_TEXT_MAX]}"
        self.results.faults.setdefault(text, []).append(number)
        if label.startswith(REGRAFT):
            self.results.broken.add((part, label))

    def one_at_a_time(self) -> None:
        order = [way for way in self.present() if way.one is not None and way.label != DISK_LARGE]
        for number in turns(self.sizes.rounds, "one at a time", [way.label for way in order]):
            for way in order:
                label = SYNC if way.label == DISK else way.label
                found = measure_one(way, self.place(way), self.sizes.singles)
                if isinstance(found, str):
                    self.fail("one", label, found, number)
                self.results.one.setdefault(label, []).append(
                    None if isinstance(found, str) else found
                )
            order = order[1:] + order[:1]

    def read_and_recover(self, read: bool, recover: bool) -> None:
        """A journal of its own: filled, read, filled further, and recovered."""
        pool = ours.make_pool(500_000, KINDS)
        folder = self.folder / "long"
        try:
            with ours.node(folder) as server:
                say(f"a stream of {self.sizes.stream} messages")
                ours.fill(server.port, pool, self.sizes.stream)
                if read:
                    self.read(server, pool)
                if recover:
                    more = (1.02 * self.sizes.journal - ours.journal_bytes(folder)) / pool.size
                    say(f"{more:.0f} more, for a journal of {self.sizes.journal / 1e9:.0f} GB")
                    ours.fill(server.port, pool, max(0, int(more)))
                    ours.kill(server)
            if recover:
                self.recover(folder, pool)
        except (AbsentError, LostError, OSError) as error:
            for part in (["read"] * read) + (["recovery"] * recover):
                self.fail(part, REGRAFT, repr(error))

    def read(self, server: Server, pool: ours.Pool) -> None:
        stream = self.sizes.stream
        for number in turns(self.sizes.rounds, "read back", ["all", "selectors"]):
            for where, expected in (("", stream), (ALL, stream), (SOME, stream // ONE_IN)):

                def work(where: str = where, expected: int = expected) -> float:
                    return ours.read_back(server.port, pool.size, where, expected)

                took = apart(work)
                if not isinstance(took, float):
                    self.fail("read", REGRAFT, str(took), number)
                rate = stream / took if isinstance(took, float) else None
                self.results.read.setdefault(where, []).append(rate)

    def recover(self, folder: Path, pool: ours.Pool) -> None:
        """After a crash, and then after an orderly end; nothing of it in the kernel's memory."""
        size = ours.journal_bytes(folder)
        if size < self.sizes.journal:
            self.fail("recovery", REGRAFT, f"the journal has only {size / 1e9:.1f} GB")
        for what in ("after a crash", "after an orderly end"):
            say(f"recovery {what}")
            ours.forget(folder)
            welcome, work = ours.time_to_work(folder, pool)
            self.results.recovery[f"{what}: welcome"] = welcome
            self.results.recovery[f"{what}: first confirmation"] = work

    def processor(self, before: Path | None) -> None:
        """Processor time of a node for a message that no journal keeps."""
        kinds: dict[str, tuple[str, Path | None]] = {
            "without a journal": ("", None),
            "with one": (ours.CONFIG, None),
        }
        if before is not None:
            kinds["before"] = ("", before)
        window = load.Window(self.sizes.warm, self.sizes.seconds)
        try:
            servers = {
                label: self.stack.enter_context(
                    ours.node(self.folder / label.replace(" ", "-"), config, source)
                )
                for label, (config, source) in kinds.items()
            }
        except AbsentError as reason:
            return self.fail("cpu", REGRAFT, str(reason))
        order = list(servers)
        for number in turns(2 * self.sizes.rounds - 1, "not persistent", order):
            for label in order:
                one = load.measure(servers[label], CPU_WORK, window)
                if one.fault:
                    self.fail("cpu", REGRAFT, one.fault, number)
                used = None if one.fault else one.server_cpu / one.deliveries * 1e6
                self.results.cpu.setdefault(label, []).append(used)
            order = order[1:] + order[:1]


def turns(rounds: int, what: str, labels: list[str]) -> Iterator[int]:
    """The numbers of the rounds; says so."""
    for number in range(1, rounds + 1):
        say(f"{what}, round {number}: {'; '.join(labels)}")
        yield number


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------ ratios


def floor(results: Results) -> list[float | None]:
    """The smaller of disk and relay, round by round."""
    pairs = zip(results.rates(DISK), results.rates(RELAY), strict=False)
    return [min(a, b) if a and b else None for a, b in pairs]


def best(results: Results, ways: list[Way]) -> list[float | None]:
    """The fastest of these, round by round; a failed round is not counted as slow."""
    columns = zip(*(results.rates(way.label) for way in ways), strict=False)
    return [max((each for each in column if each), default=None) for column in columns]


def times(above: list[float | None], beneath: list[float | None]) -> list[float]:
    length = min(len(above), len(beneath))
    return report.ratios(above[:length], beneath[:length])


def known(values: list[float | None]) -> list[float]:
    return [each for each in values if each is not None]


# ------------------------------------------------------------------------------- paper


def many_row(results: Results, label: str, synced: str) -> list[str]:
    good = [one for one in results.many[label] if not one.fault]
    if not good:
        return [label, synced, *["-"] * (len(MANY_HEAD) - 2)]
    rates = [one.rate for one in good]

    def cpu(who: str) -> str:
        return f"{report.median([getattr(one, who) / one.messages * 1e6 for one in good]):.2f}"

    others = report.median([one.other_cpu / one.seconds for one in good])
    together = report.median([one.batch for one in good]) or 0.0
    rate = report.median(rates) or 0.0
    against = [times(results.rates(own), results.rates(label)) for own in (RAW, CLIENT)]
    return [
        label,
        synced,
        amount(rate),
        f"{amount(min(rates))}..{amount(max(rates))}",
        f"{rate * RELAY_WORK.body / 1e6:.0f}",
        "" if label == RELAY else f"{together:.0f}",
        cpu("publisher_cpu"),
        cpu("server_cpu"),
        f"{others:.0%}",
        *("" if label in (RAW, CLIENT, SINGLE) else report.spread(each) for each in against),
    ]


def amount(value: float) -> str:
    return quantity(value) if value >= 10_000 else f"{value / 1e3:.1f} k"


def print_many(results: Results) -> None:
    synced = {way.label: "yes" if way.synced else "no" for way in PEERS}
    synced |= {RELAY: "-", DISK: "yes", DISK_LARGE: "yes"}
    labels = [RAW, CLIENT, SINGLE, DISK, DISK_LARGE, RELAY, *(way.label for way in PEERS)]
    rows = [
        many_row(results, label, synced.get(label, "yes"))
        for label in labels
        if label in results.many
    ]
    if rows:
        print(report.table(MANY_HEAD, rows))
        print()


def print_column(head: tuple[str, ...], values: dict[str, list[str]]) -> None:
    if values:
        print(report.table(head, [[label, *cells] for label, cells in values.items()], 1))
        print()


def print_rest(results: Results) -> None:
    one = {
        label: [
            report.spread(known(each), 0),
            report.spread(times(each, results.one.get(SYNC, []))),
        ]
        for label, each in results.one.items()
    }
    print_column(("one at a time", "p50 µs", "x one sync"), one)
    read = {
        where or "everything": [amount(report.median(known(each)) or 0.0), spread_of(known(each))]
        for where, each in results.read.items()
    }
    print_column(("read back", "msg/s of the stream", "range"), read)
    plain = results.cpu.get("without a journal", [])
    cpu = {
        label: [report.spread(known(each), 3), report.spread(times(each, plain), 3)]
        for label, each in results.cpu.items()
    }
    print_column(("not persistent", "µs cpu/msg", "x without"), cpu)
    recovery = {label: [f"{seconds:.2f}"] for label, seconds in results.recovery.items()}
    print_column(("recovery", "s"), recovery)


def spread_of(values: list[float]) -> str:
    return f"{amount(min(values))}..{amount(max(values))}" if values else "-"


def unsteady(results: Results) -> list[str]:
    """A note if the disk, or who waits for it, was not the same from round to round."""
    syncs = known(results.one.get(SYNC, []))
    if not syncs or max(syncs) < UNSTEADY * min(syncs):
        return []
    return [
        f"one sync took from {min(syncs):.0f} to {max(syncs):.0f} µs: with this disk, or beside "
        "processes that keep the processors busy, what is compared with it says little"
    ]


# ------------------------------------------------------------------------------- goals


def judge(results: Results, parts: list[str], sizes: Sizes) -> list[Goal]:
    """The goals of these parts; what Regraft failed in, it has missed."""
    goals: list[tuple[str, str, Goal]] = [
        *(("publish", label, goal) for label, goal in judge_publishing(results)),
        *(("one", label, goal) for label, goal in judge_singles(results)),
        *(("read", REGRAFT, goal) for goal in judge_reading(results)),
        *(("cpu", REGRAFT, goal) for goal in judge_processor(results)),
        ("recovery", REGRAFT, judge_recovery(results, sizes)),
    ]
    return [
        report.missed(goal) if (part, label) in results.broken else goal
        for part, label, goal in goals
        if part in parts
    ]


def judge_publishing(results: Results) -> Iterator[tuple[str, Goal]]:
    raw, client = results.rates(RAW), results.rates(CLIENT)
    ratio = report.median(times(raw, floor(results)))
    yield RAW, report.at_least("raw generator", 0.5, "x the smaller of disk and relay", ratio)
    rate = report.median(known(client))
    yield CLIENT, report.at_least("Python client (aim 300000)", 200_000, "confirmed/s", rate)
    synced = [way for way in PEERS if way.synced]
    yield RAW, beside(results, "raw generator", raw, synced, "peer")
    libraries = [way for way in synced if way.library]
    yield CLIENT, beside(results, "Python client", client, libraries, "Python client")


def beside(
    results: Results, name: str, own: list[float | None], ways: list[Way], what: str
) -> Goal:
    """Three times the best of these; while one of them is absent, nobody knows that it is met."""
    there = [way for way in ways if way.label in results.many]
    ratio = report.median(times(own, best(results, there)))
    goal = report.at_least(name, 3, f"x the best synced {what}", ratio)
    return untold(goal) if goal.met and len(there) < len(ways) else goal


def judge_singles(results: Results) -> Iterator[tuple[str, Goal]]:
    for label, name in ((RAW, "raw"), (CLIENT, "Python client")):
        ratio = report.median(times(results.one.get(label, []), results.one.get(SYNC, [])))
        yield label, report.at_most(f"one at a time, {name}", 2.5, "x one sync", ratio)


def judge_reading(results: Results) -> Iterator[Goal]:
    """With selectors the slower one counts."""
    rates = {where: report.median(known(each)) for where, each in results.read.items()}
    whole = rates.pop("", None)
    yield report.at_least("read back", 2, "M msg/s", whole and whole / 1e6)
    slower = min((rate for rate in rates.values() if rate), default=None)
    yield report.at_least("read back with a selector", 1, "M msg/s", slower and slower / 1e6)


def judge_processor(results: Results) -> Iterator[Goal]:
    name = "not persistent, cpu/msg"
    plain = results.cpu.get("without a journal", [])
    ratio = report.median(times(results.cpu.get("with one", []), plain))
    yield report.at_most(name, 1.05, "x without a journal", ratio)
    if "before" in results.cpu:
        ratio = report.median(times(plain, results.cpu["before"]))
        yield report.at_most(name, 1.05, "x before", ratio)


def judge_recovery(results: Results, sizes: Sizes) -> Goal:
    worst = max(results.recovery.values(), default=None)
    goal = report.below(f"recovery of {sizes.journal / 1e9:g} GB", 5, "s", worst)
    return goal if sizes.judged else untold(goal)


def untold(goal: Goal) -> Goal:
    return Goal(goal.name, goal.goal, goal.measured, None)


# -------------------------------------------------------------------------------- main


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.journal", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about two minutes")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them")
    parser.add_argument("--only", default="", help="ways whose label contains this")
    parser.add_argument("--rounds", type=int, help="default 5, quick 3")
    parser.add_argument("--seconds", type=float, help="of one count; default 2, quick 0.7")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on a real disk")
    parser.add_argument("--before", type=Path, help="a checkout to compare processor time with")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    sizes = QUICK if options.quick else FULL
    changes = {"rounds": options.rounds, "seconds": options.seconds}
    sizes = Sizes(**{**vars(sizes), **{k: v for k, v in changes.items() if v}})
    parts = options.parts.split(",")
    neighbours = Neighbours()
    with scratch(options.folder) as folder:
        with ExitStack() as stack:
            bench = Bench(sizes, folder, options.only, stack)
            if "publish" in parts:
                bench.publish()
            if "one" in parts:
                bench.one_at_a_time()
        with ExitStack() as stack:
            bench.stack = stack
            bench.servers = {}
            if "cpu" in parts:
                bench.processor(options.before)
        if {"read", "recovery"} & set(parts):
            bench.read_and_recover("read" in parts, "recovery" in parts)
    results = bench.results
    print_many(results)
    print_rest(results)
    notes = [f"{label} is absent: {reason}" for label, reason in results.absent.items()]
    notes += [
        f"{text} (round {', '.join(map(str, numbers))}; left out)" if any(numbers) else text
        for text, numbers in results.faults.items()
    ]
    notes += unsteady(results) + remark(options.folder) + neighbours.remark()
    return report.finish("journal", judge(results, parts, sizes), notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
