"""What it costs the rest of a tree when one link takes the place of another, by five protocols.

The setting of the papers: 100 nodes in a tree, none with more than 4 neighbours, 70 patterns, 2 of
them for each node that subscribes: all nodes (high density) or every fifth (low). A link is lost;
100 ms later another is there, between any two nodes that make a tree of it again. What is counted
are control messages: a subscription or unsubscription of one filter on one link is one, and so is
each message of a protocol; how many filters those list is told, too. The routing is the node's own;
the links, and time, are simulated: 1 to 5 ms for each link. Every protocol gets the same losses and
the same new links, by seed, and now and then every table is compared with a calculation of its own.

    isolated      one substitution at a time; the ends of both links know the path
    repair        as an orphan does it: nobody knows the path, or whether the other end lives
    overlapping   a substitution every 30 ms, the path known

    python -m bench.reconfiguration [--quick] [--plots FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench import plot, report
from regraft.routing.filters import Filter
from regraft.routing.reconfiguration import PROTOCOLS
from regraft.simulate.grove import MS, Grove, Record, Setting

DEGREE = 4
PATTERNS = 70
GAP_MS = 100  # until there is a new link
EVERY_MS = 30  # where they overlap
AT_ONCE = 20  # substitutions that overlap
WATCHED_MS = 1000  # in which events are published
HIGH, LOW = 1.0, 0.2
CHECKED_EVERY = 10
VISITS_MAX = 10_000  # of events at nodes, about, for each substitution
GOAL_MEAN, GOAL_BEST = 50, 76  # per cent less than Strawman


@dataclass(frozen=True)
class Case:
    """What is measured."""

    how: str
    nodes: int
    density: float
    covering: bool = False

    @property
    def name(self) -> str:
        covering = ", covering" if self.covering else ""
        density = "high" if self.density == HIGH else "low"
        return f"{self.how}, {self.nodes} nodes, {density}{covering}"


@dataclass
class Result:
    """What came of it: one value for each substitution, or for each round of several."""

    messages: list[float] = field(default_factory=list)
    touched: list[float] = field(default_factory=list)
    listed: list[float] = field(default_factory=list)
    complete_ms: list[float] = field(default_factory=list)
    events: int = 0
    lost: int = 0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.messages)

    def take(self, record: Record, since_ns: int, nodes: int, count: int = 1) -> None:
        self.messages.append(record.messages / count)
        self.touched.append(len(record.touched) / nodes)
        self.listed.append(record.listed / count)
        self.complete_ms.append(max(0, record.last_ns - since_ns) / MS)
        self.events += record.events
        self.lost += record.lost


def patterns(covering: bool) -> list[Filter]:
    """Distinct ones; or of ten one that covers the nine others."""
    if not covering:
        return [Filter(f"p/{number}", True, "") for number in range(PATTERNS)]
    wide = [Filter(f"g{number}", False, "") for number in range(PATTERNS // 10)]
    narrow = [Filter(f"g{number}/{k}", True, "") for number in range(len(wide)) for k in range(9)]
    return wide + narrow


def planted(case: Case, protocol: str) -> Grove:
    """A tree whose nodes know all that they have to."""
    grove = Grove(1, case.nodes, Setting(protocol, case.covering), DEGREE)
    random = Random("subscribers")
    some = patterns(case.covering)
    for site in grove.sites:
        if random.random() < case.density:
            for filter in random.sample(some, 2):
                grove.subscribe(site.number, filter)
    grove.run()
    return grove


def speak(grove: Grove, random: Random, some: list[Filter]) -> None:
    """Nodes publish something, at any moment of the time that is watched."""
    count = min(len(grove.sites), max(10, VISITS_MAX // len(grove.sites)))
    for site in random.sample(grove.sites, count):
        wanted = frozenset(random.sample(some, random.randint(1, 3)))
        at_ns = random.randrange(WATCHED_MS * MS)
        grove.after(at_ns, lambda n=site.number, w=wanted: grove.publish(n, w))  # type: ignore[misc]


def lose(grove: Grove, random: Random) -> tuple[int, int, bytes]:
    """A link between two nodes is lost; which, and its rid."""
    way = random.choice([way for way in grove.links() if way.joined and way.back.joined])
    ends = [way.source.number, way.target.number]
    random.shuffle(ends)
    return ends[0], ends[1], grove.cut(way)


def mend(grove: Grove, random: Random, a: int, b: int, rid: bytes, known: bool) -> None:
    """Another one takes its place."""
    here, there = (
        [n for n in grove.side(end) if len(grove.sites[n].alive) < DEGREE] for end in (a, b)
    )
    c = random.choice(here)
    grove.replace(a, b, c if known else a, random.choice(there), rid, known)


def isolated(case: Case, protocol: str, count: int) -> Result:
    grove, result = planted(case, protocol), Result()
    random, voices = Random("losses"), Random("events")
    for number in range(count):
        grove.record = Record()
        if not case.covering:  # the tables of a grove know filters, and not what they cover
            speak(grove, voices, patterns(False))
        a, b, rid = lose(grove, random)
        grove.run(grove.now + GAP_MS * MS)
        since_ns = grove.now
        mend(grove, random, a, b, rid, case.how == "isolated")
        grove.run()
        grove.account()
        result.take(grove.record, since_ns, case.nodes)
        if number % CHECKED_EVERY == 0 or number == count - 1:
            check(grove)
    return result


def overlapping(case: Case, protocol: str, count: int) -> Result:
    grove, result = planted(case, protocol), Result()
    random, voices = Random("losses"), Random("events")
    for _ in range(max(1, count // AT_ONCE)):
        grove.record = Record()
        if not case.covering:
            speak(grove, voices, patterns(False))
        begin_ns = grove.now
        for number in range(AT_ONCE):
            grove.run(begin_ns + number * EVERY_MS * MS)
            a, b, rid = lose(grove, random)
            again = (grove, random, a, b, rid, True)
            grove.after(GAP_MS * MS, lambda again=again: mend(*again))  # type: ignore[misc]
        since_ns = begin_ns + (AT_ONCE * EVERY_MS + GAP_MS) * MS
        grove.run()
        grove.account()
        result.take(grove.record, since_ns, case.nodes, AT_ONCE)
        check(grove)
    return result


def check(grove: Grove) -> None:
    """A protocol that leaves wrong tables is not measured."""
    wrong = next(grove.complaints(), None)
    if wrong is not None:
        raise SystemExit(f"{grove.setting.protocol}: {wrong.text}")


# ------------------------------------------------------------------------------ paper

COLUMNS = ("case", "protocol", "messages", "less than Strawman", "best", "worst",
           "filters listed", "nodes touched", "events lost", "complete after p50 ms",
           "longest ms")  # fmt: skip


def less(result: Result, base: Result) -> list[float]:
    """By how much, of each substitution in per cent."""
    pairs = zip(result.messages, base.messages, strict=True)
    return [100 * (1 - mine / theirs) for mine, theirs in pairs if theirs]


def row(case: Case, protocol: str, result: Result, base: Result) -> list[str]:
    each = less(result, base)
    times = sorted(result.complete_ms)
    return [
        case.name,
        protocol,
        f"{result.mean:.1f}",
        f"{100 * (1 - result.mean / base.mean):.1f} %",
        f"{max(each):.1f} %",
        f"{min(each):.1f} %",
        f"{statistics.fmean(result.listed):.1f}",
        f"{statistics.fmean(result.touched):.1%}",
        f"{result.lost / result.events:.2%}" if result.events else "-",
        f"{report.percentile(times, 0.5):.0f}",
        f"{times[-1]:.0f}",
    ]


def measure(case: Case, count: int) -> dict[str, Result]:
    play = overlapping if case.how == "overlapping" else isolated
    found = {}
    for protocol in PROTOCOLS:
        begin = time.perf_counter()
        found[protocol] = play(case, protocol, count)
        took = time.perf_counter() - begin
        print(f"{case.name}: {protocol} in {took:.1f} s", file=sys.stderr, flush=True)
    return found


def judge(results: dict[Case, dict[str, Result]]) -> list[report.Goal]:
    """Of the best protocol, on the papers' setting: on average, and where it is best."""
    judged = {
        case: found
        for case, found in results.items()
        if case.how == "isolated" and case.nodes == 100 and not case.covering
    }
    gains = {
        protocol: [
            100 * (1 - found[protocol].mean / found["strawman"].mean) for found in judged.values()
        ]
        for protocol in PROTOCOLS
    }
    best = max(gains, key=lambda protocol: statistics.fmean(gains[protocol]))
    mean = statistics.fmean(gains[best])
    most = max(gains[best])
    return [
        report.at_least(f"{best}: fewer messages, mean", GOAL_MEAN, "%", mean),
        report.at_least(f"{best}: fewer messages, best setting", GOAL_BEST, "%", most),
    ]


def cases(quick: bool) -> list[tuple[Case, int]]:
    """What is measured, and how many substitutions."""
    count = 20 if quick else 60
    found = [
        (Case(how, 100, density), count)
        for how in ("isolated", "repair", "overlapping")
        for density in (HIGH, LOW)
    ]
    found += [(Case("isolated", 100, density, True), count) for density in (HIGH, LOW)]
    if not quick:
        found += [(Case("isolated", 1000, density), 20) for density in (HIGH, LOW)]
        found += [(Case("repair", 1000, HIGH), 20), (Case("overlapping", 1000, HIGH), 20)]
    return found


def draw(folder: Path) -> None:
    """Messages by the number of nodes, and by how many of them subscribe."""
    sizes: dict[str, list[tuple[float, float]]] = {name: [] for name in PROTOCOLS}
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in PROTOCOLS}
    for nodes in (30, 100, 300, 1000):
        for protocol in PROTOCOLS:
            mean = isolated(Case("isolated", nodes, HIGH), protocol, 15).mean
            sizes[protocol].append((nodes, mean))
    for share in (0.05, 0.1, 0.2, 0.5, 1.0):
        for protocol in PROTOCOLS:
            mean = isolated(Case("isolated", 100, share), protocol, 30).mean
            shares[protocol].append((100 * share, mean))
    up = "control messages per substitution, mean"
    plot.write(folder / "nodes.svg", "All nodes subscribe", "nodes", up, sizes)
    across = "per cent of the nodes subscribe"
    plot.write(folder / "density.svg", "100 nodes", across, up, shares)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.reconfiguration")
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    parser.add_argument("--plots", type=Path, help="draw charts into this folder")
    options = parser.parse_args(argv)
    results = {case: measure(case, count) for case, count in cases(options.quick)}
    rows = [
        row(case, protocol, result, found["strawman"])
        for case, found in results.items()
        for protocol, result in found.items()
    ]
    print(report.table(COLUMNS, rows))
    if options.plots:
        draw(options.plots)
    notes = [
        "events lost include those for which there was no way until the new link was there",
        "a protocol that waits for a time is complete when that time is over",
    ]
    return report.finish("reconfiguration", judge(results), notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
