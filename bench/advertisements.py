"""What it costs and saves that subscriptions go only where something overlapping is advertised.

A tree of nodes, none with more than 4 neighbours. There are 70 topics; each node subscribes to 2
of them. A share of the nodes publishes: each of these advertises one topic. What is counted are
control messages: a subscription, an advertisement, or the end of one, on one link is one, and so is
each HEEDED and each message of a reconfiguration; and the filters that nodes hold for their
neighbours, those of advertisements included. The routing is the node's own; links and time are
simulated. The same seed gives the same figures, whatever the machine.

    start         all nodes subscribe, and those who publish advertise
    change        somebody ends a subscription, and another one begins elsewhere
    publisher     somebody who publishes goes, and another one comes elsewhere
    repair        a link is lost and replaced, as an orphan does it

In between, publishers publish what they advertised; all of it must come to all who want it, and all
tables are compared with a calculation of their own.

    python -m bench.advertisements [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from bench import report
from regraft.routing.filters import Filter
from regraft.simulate.grove import MS, Grove, Record, Setting

DEGREE = 4
TOPICS = 70
SHARES = (0.01, 0.1, 1.0)  # of the nodes that publish
GAP_MS = 100  # until there is a new link
GOAL_SHARE = 0.01
GOAL_TABLES, GOAL_START, GOAL_CHANGE = 50, 30, 50  # per cent fewer
COLUMNS = (
    *("nodes", "publish", "routing by", "start", "a change", "a publisher", "a repair"),
    *("filters a node", "most"),
)


@dataclass
class Result:
    """Control messages of each event, and how large tables are."""

    start: int = 0
    change: list[int] = field(default_factory=list)
    publisher: list[int] = field(default_factory=list)
    repair: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    events: int = 0
    lost: int = 0


class Run:
    """One tree, with or without advertisements."""

    def __init__(self, nodes: int, share: float, advertisements: bool) -> None:
        self.on = advertisements
        setting = Setting("reconfiguration-path", True, advertisements=advertisements)
        self.grove = Grove(1, nodes, setting, DEGREE)
        self.random = Random(f"advertisements {nodes} {share}")
        self.topics = [Filter(f"p/{number}", True, "") for number in range(TOPICS)]
        self.result = Result()
        count = max(1, round(nodes * share))
        self.publishers = {
            number: self.random.choice(self.topics)
            for number in sorted(self.random.sample(range(nodes), count))
        }
        for site in self.grove.sites:
            for filter in self.random.sample(self.topics, 2):
                self.grove.subscribe(site.number, filter)
        for number, filter in self.publishers.items():
            self.advertise(number, filter)
        self.grove.run()
        self.result.start = self.grove.record.messages
        self.result.tables = [self.held(number) for number in range(nodes)]
        self.check()

    def advertise(self, number: int, filter: Filter) -> None:
        if self.on:
            self.grove.advertise(number, filter)

    def held(self, number: int) -> int:
        """How many filters a node holds for its neighbours."""
        site = self.grove.sites[number]
        tables = [site.forwarding]
        if site.advertising is not None:
            tables.append(site.advertising.offers)
        return sum(len(rows[0]) for table in tables for rows in table.rows().values())

    def counted(self) -> int:
        """Let everything happen; how many messages that took."""
        self.grove.record = Record()
        self.grove.run()
        return self.grove.record.messages

    def check(self) -> None:
        """Tables are right, and what publishers publish reaches all."""
        self.result.wrong += [found.text for found in self.grove.complaints()]
        self.grove.record = Record()
        for number, filter in self.publishers.items():
            self.grove.publish(number, frozenset((filter,)))
        self.grove.run()
        self.grove.account()
        self.result.events += self.grove.record.events
        self.result.lost += self.grove.record.lost + self.grove.record.repeated

    def change(self) -> None:
        random, sites = self.random, self.grove.sites
        site = random.choice([site for site in sites if site.local])
        self.grove.unsubscribe(site.number, random.choice(sorted(site.local)))
        self.grove.subscribe(random.choice(sites).number, random.choice(self.topics))
        self.result.change.append(self.counted())

    def replace_publisher(self) -> None:
        random = self.random
        gone = random.choice(sorted(self.publishers))
        filter = self.publishers.pop(gone)
        if self.on:
            self.grove.withdraw(gone, filter)
        others = [site.number for site in self.grove.sites if site.number not in self.publishers]
        come = random.choice(others)
        self.publishers[come] = random.choice(self.topics)
        self.advertise(come, self.publishers[come])
        self.result.publisher.append(self.counted())

    def repair(self) -> None:
        grove, random = self.grove, self.random
        way = random.choice(grove.links())
        a, b = way.source.number, way.target.number
        rid = grove.cut(way)
        grove.record = Record()
        grove.run(grove.now + GAP_MS * MS)
        there = [n for n in grove.side(b) if len(grove.sites[n].alive) < DEGREE]
        grove.replace(a, b, a, random.choice(there), rid, known=False)
        grove.run()
        self.result.repair.append(grove.record.messages)


def measure(nodes: int, share: float, on: bool, count: int) -> Result:
    run = Run(nodes, share, on)
    for _ in range(count):
        run.change()
        run.replace_publisher()
        run.repair()
    run.check()
    return run.result


def row(nodes: int, share: float, on: bool, found: Result) -> list[str]:
    means = [
        f"{statistics.fmean(some):.1f}" for some in (found.change, found.publisher, found.repair)
    ]
    how = "advertisements" if on else "subscriptions"
    tables = (f"{statistics.fmean(found.tables):.1f}", str(max(found.tables)))
    return [str(nodes), f"{share:.0%}", how, str(found.start), *means, *tables]


def fewer(off: float, on: float) -> float:
    return 100 * (1 - on / off)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.advertisements")
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    options = parser.parse_args(argv)
    sizes = (100,) if options.quick else (100, 400)
    count = 10 if options.quick else 30
    results = {
        (nodes, share, on): measure(nodes, share, on, count)
        for nodes in sizes
        for share in (SHARES if nodes == sizes[0] else (GOAL_SHARE,))
        for on in (False, True)
    }
    print(report.table(COLUMNS, [row(*case, found) for case, found in results.items()], words=3))
    goals = []
    for nodes in sizes:
        off, on = (results[nodes, GOAL_SHARE, on] for on in (False, True))
        mean = statistics.fmean
        who = f"{nodes} nodes, {GOAL_SHARE:.0%} publish"
        tables = fewer(mean(off.tables), mean(on.tables))
        change = fewer(mean(off.change), mean(on.change))
        goals += [
            report.at_least(f"{who}: fewer filters in tables", GOAL_TABLES, "%", tables),
            report.at_least(f"{who}: fewer messages at the start", GOAL_START, "%",
                            fewer(off.start, on.start)),
            report.at_least(f"{who}: fewer messages of a change", GOAL_CHANGE, "%", change),
        ]  # fmt: skip
    lost = sum(found.lost for found in results.values())
    events = sum(found.events for found in results.values())
    wrong = [text for found in results.values() for text in found.wrong]
    goals.append(report.at_most(f"of {events} deliveries, lost or repeated", 0, "", lost))
    goals.append(report.at_most("tables that are wrong", 0, "", len(wrong)))
    return report.finish("advertisements", goals, wrong[:5])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
