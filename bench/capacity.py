"""How many messages a second one node moves, beside NATS and beside a blind relay of bytes.

    python -m bench.capacity [--quick] [--rounds N] [--seconds S] [--only relay,nats,regraft]

The servers take turns, round by round, on the same machine with the same generator; ratios are
taken within a round, and what is shown is their median and range.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field

from bench import report
from bench.dialects import Work
from bench.load import Measurement, Window, measure
from bench.servers import NATS, REGRAFT, RELAY, Neighbours, Server, running_all

WORKS = (
    Work("45 B, 1 to 1", 45, 1),
    Work("45 B, 1 to 10", 45, 10),
    Work("45 B, 1 to 50", 45, 50),
    Work("1024 B, 1 to 1", 1024, 1),
    Work("1024 B, 1 to 10", 1024, 10),
    Work("1024 B, 1 to 50", 1024, 50),
    Work("45 B, full envelope", 45, 1, rich=True),
    Work("45 B, 100 topics", 45, 1, topics=100),
    Work("45 B, selector", 45, 1, where="price > 100 AND symbol = 'ACME'"),
)

GOALS = (  # work, times, whom
    ("45 B, 1 to 1", 2.5, NATS),
    ("45 B, 1 to 50", 6.0, NATS),
    ("1024 B, 1 to 1", 1.0, NATS),
    ("1024 B, 1 to 1", 0.6, RELAY),
    ("45 B, selector", 2.0, NATS),
)

HEAD = (
    "work",
    "server",
    "msg/s",
    "deliveries/s",
    "range",
    "MB/s",
    "µs cpu/msg",
    "ns cpu/delivery",
    "cpu server",
    "sender",
    "receiver",
    "others",
    "x NATS",
    "x relay",
)


@dataclass
class Results:
    """One work: for every server its rounds, in order."""

    work: Work
    rounds: dict[str, list[Measurement]] = field(default_factory=dict)

    def rates(self, server: str) -> list[float | None]:
        """Deliveries a second; None for a round that failed."""
        measured = self.rounds.get(server, [])
        return [None if one.fault else one.deliveries_per_second for one in measured]

    def times(self, server: str, other: str) -> list[float]:
        """How many times the other, round by round."""
        if server not in self.rounds or other not in self.rounds:
            return []
        return report.ratios(self.rates(server), self.rates(other))


def run_work(work: Work, servers: dict[str, Server], window: Window, rounds: int) -> Results:
    """All rounds of one work; each begins with another server."""
    results = Results(work, {name: [] for name in servers})
    order = list(servers)
    for _ in range(rounds):
        for name in order:
            results.rounds[name].append(measure(servers[name], work, window))
        order = order[1:] + order[:1]
    return results


def quantity(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"


def row(results: Results, server: str) -> list[str]:
    good = [one for one in results.rounds[server] if not one.fault]
    label = results.work.label
    if not good:
        return [label, server, *["-"] * (len(HEAD) - 2)]

    def middle(values: list[float]) -> float:
        return report.median(values) or 0.0

    rates = [one.deliveries_per_second for one in good]
    cpu = middle([one.server_cpu / max(1, one.deliveries) for one in good])

    def share(attribute: str) -> str:
        used = middle([getattr(one, attribute) / one.seconds for one in good])
        return f"{used:.0%}"

    return [
        label,
        server,
        quantity(middle([one.messages_per_second for one in good])),
        quantity(middle(rates)),
        f"{quantity(min(rates))}..{quantity(max(rates))}",
        f"{middle([one.bytes / one.seconds for one in good]) / 1e6:.0f}",
        f"{cpu * results.work.takers * 1e6:.3f}",
        f"{cpu * 1e9:.0f}",
        share("server_cpu"),
        share("sender_cpu"),
        share("receiver_cpu"),
        share("other_cpu"),
        "" if server == NATS else report.spread(results.times(server, NATS)),
        "" if server == RELAY else report.spread(results.times(server, RELAY)),
    ]


def judge(all_results: list[Results]) -> list[report.Goal]:
    goals = []
    for label, bound, other in GOALS:
        results = next(each for each in all_results if each.work.label == label)
        times = report.median(results.times(REGRAFT, other))
        goal = report.at_least(f"{label}, deliveries/s", bound, f"x {other}", times)
        if any(one.fault for one in results.rounds.get(REGRAFT, [])):
            goal = report.missed(goal)
        goals.append(goal)
    return goals


def faults(all_results: list[Results]) -> list[str]:
    return [
        f"{results.work.label}, {server}, round {number}: {one.fault}; left out"
        for results in all_results
        for server, rounds in results.rounds.items()
        for number, one in enumerate(rounds, 1)
        if one.fault
    ]


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.capacity", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="what has a goal, in under a minute")
    parser.add_argument("--rounds", type=int, help="default 5; quick 3")
    parser.add_argument("--seconds", type=float, help="of one count; default 2, quick 0.4")
    parser.add_argument("--only", default=f"{RELAY},{NATS},{REGRAFT}", help="servers")
    parser.add_argument("--work", default="", help="only works whose label contains this")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    seconds = options.seconds or (0.4 if options.quick else 2.0)
    window = Window(0.2 if options.quick else 0.5, seconds)
    promised = {label for label, _, _ in GOALS}
    all_results = []
    neighbours = Neighbours()
    with running_all(options.only.split(",")) as (servers, absent):
        for work in WORKS:
            left_out = options.quick and work.label not in promised
            if left_out or options.work not in work.label:
                all_results.append(Results(work))
                continue
            rounds = options.rounds or (3 if options.quick else 5)
            print(f"{work.label}: {rounds} x {', '.join(servers)}", file=sys.stderr, flush=True)
            all_results.append(run_work(work, servers, window, rounds))
    print(report.table(HEAD, [row(each, name) for each in all_results for name in each.rounds]))
    notes = [f"{name} is absent: {reason}" for name, reason in absent.items()]
    notes += faults(all_results) + neighbours.remark()
    return report.finish("capacity", judge(all_results), notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
