"""What a hop costs: processor time per message and link, in a line and in a tree of seven nodes.

    python -m bench.hops [--quick] [--rounds N] [--seconds S] [--work TEXT] [--no-tables] [--size N]

Measured against one delivery by a single node, with the same messages in the same run; a cluster of
as many NATS servers beside it. Then what the nodes of the tree hold and say to each other when many
clients subscribe, with covering and without (`interests.py`).

A hop is what the network uses more than one node that does the same work alone, divided by the
number of links that a message crosses. At full speed it is judged beside a delivery by that node.

Each round starts all processes anew: how their memory happens to lie in the caches makes a tenth of
difference, for as long as they run.

Where there is a rate, nodes sleep between messages, and what they find in the caches of the
processors when they wake depends on who ran meanwhile: seven nodes on few processors displace each
other, as they would not on machines of their own. So a delivery is measured once more, by a node
beside the network that carries the same rate in the same seconds, and a hop is judged beside that
one. How it compares with a node that has the machine to itself is told, too.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bench import interests, report
from bench.dialects import LostError, Work
from bench.load import FORK, Measurement, Window, failed, measure
from bench.network import Network, nats_cluster, planted
from bench.servers import NATS, AbsentError, Neighbours

LINE = (None, 0, 1, 2, 3, 4, 5)
TREE = (None, 0, 0, 1, 1, 2, 2)
LEAVES = 4
BOUND = 1.3  # deliveries of a single node
BESIDE_SECONDS = 1.0  # that the other network is busy for longer
RATE = 20_000  # messages a second, where it is not as many as can be
WHERE = "price > 100 AND symbol = 'ACME'"

SINGLE, LINE_OF, TREE_OF, CLUSTER = "one node", "line of 7", "tree of 7", "nats, cluster of 7"
NATS_SINGLE = "nats, one server"
BESIDE = {LINE_OF: "one node, beside the line", TREE_OF: "one node, beside the tree"}
# Links that a message crosses: by network and the number of takers.
CROSSED = {(LINE_OF, 1): 6, (TREE_OF, LEAVES): 6, (CLUSTER, 1): 1, (CLUSTER, LEAVES): LEAVES}
ORDER = [
    *((SINGLE, 1), (LINE_OF, 1), (BESIDE[LINE_OF], 1)),
    *((SINGLE, LEAVES), (TREE_OF, LEAVES), (BESIDE[TREE_OF], 1)),
    *((NATS_SINGLE, 1), (CLUSTER, 1), (NATS_SINGLE, LEAVES), (CLUSTER, LEAVES)),
]  # of the rows
ALONE = {LINE_OF: SINGLE, TREE_OF: SINGLE, CLUSTER: NATS_SINGLE}

WORKS = (
    Work("45 B, topic", 45, 1),
    Work("200 B, topic", 200, 1),
    Work("45 B, selector", 45, 1, where=WHERE),
    Work("200 B, selector", 200, 1, where=WHERE),
)
HEAD = ("messages", "network", "takers", "links", "msg/s", "µs cpu/msg, all", "µs cpu/hop",
        "x delivery", "others")  # fmt: skip


@dataclass
class Results:
    """One work at one rate: for every network and number of takers its rounds, in order."""

    work: Work
    rate: int
    rounds: dict[tuple[str, int], list[Measurement]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.work.label}, {f'{self.rate} msg/s' if self.rate else 'most'}"

    def costs(self, network: str, takers: int) -> list[float | None]:
        """Processor seconds a message, of all nodes; None for a round that failed."""
        measured = self.rounds.get((network, takers), [])
        return [
            None if one.fault or not one.deliveries else one.server_cpu / one.deliveries * takers
            for one in measured
        ]

    def hops(self, network: str, takers: int, beside: str = "") -> list[float | None]:
        """Processor seconds that each link added to what one node alone needs, or one `beside`."""
        alone = self.costs(ALONE[network], takers)
        if beside:  # company costs it something, too
            company = zip(self.costs(beside, 1), self.costs(ALONE[network], 1), strict=True)
            more = [None if one is None or two is None else one - two for one, two in company]
            alone = [
                None if one is None or two is None else one + two
                for one, two in zip(alone, more, strict=True)
            ]
        links = CROSSED[network, takers]
        return [
            None if all_of_them is None or one is None else (all_of_them - one) / links
            for all_of_them, one in zip(self.costs(network, takers), alone, strict=True)
        ]

    def times(self, network: str, takers: int, beside: str = "") -> list[float]:
        """A hop in deliveries of a single node to one taker, round by round."""
        if (network, takers) not in self.rounds:
            return []
        delivery = self.costs(beside or ALONE[network], 1)
        return report.ratios(self.hops(network, takers, beside), delivery)


# ------------------------------------------------------------------------------ measuring


@contextlib.contextmanager
def networks() -> Iterator[tuple[dict[str, Network], dict[str, str]]]:
    """All of them at once: those that run, and why the others do not."""
    with contextlib.ExitStack() as stack:
        found = {
            SINGLE: stack.enter_context(planted(SINGLE, (None,))),
            LINE_OF: stack.enter_context(planted(LINE_OF, LINE)),
            TREE_OF: stack.enter_context(planted(TREE_OF, TREE)),
        }
        absent = {}
        try:
            found[NATS_SINGLE] = stack.enter_context(nats_cluster(NATS_SINGLE, 1))
            found[CLUSTER] = stack.enter_context(nats_cluster(CLUSTER, len(TREE)))
        except AbsentError as reason:
            absent[NATS] = str(reason)
        yield found, absent


def cases(found: dict[str, Network], work: Work) -> list[tuple[str, int]]:
    """Who is measured with how many takers; NATS has no selectors."""
    wanted = [(SINGLE, 1), (LINE_OF, 1), (SINGLE, LEAVES), (TREE_OF, LEAVES)]
    if not work.where:
        wanted += [(NATS_SINGLE, 1), (CLUSTER, 1), (NATS_SINGLE, LEAVES), (CLUSTER, LEAVES)]
    return [case for case in wanted if case[0] in found]


def measure_one(network: Network, work: Work, window: Window) -> Measurement:
    try:
        network.wait_for_silence()
        return measure(network, work, window)
    except (OSError, LostError) as error:
        return failed(work, repr(error))


def measure_both(
    network: Network, node: Network, work: Work, takers: int, window: Window
) -> tuple[Measurement, Measurement]:
    """A network, and one node that has the same to do for one taker, in the midst of it."""
    longer = replace(window, seconds=window.warm_seconds + window.seconds + BESIDE_SECONDS)
    ours, theirs = FORK.Pipe(duplex=False)

    def tell() -> None:
        theirs.send(measure_one(network, replace(work, takers=takers), longer))

    other = FORK.Process(target=tell)
    other.start()
    theirs.close()
    try:
        time.sleep(BESIDE_SECONDS / 2)
        beside = measure_one(node, work, window)
        return ours.recv(), beside
    finally:
        other.join()
        ours.close()


def run_round(results: Results, found: dict[str, Network], window: Window, number: int) -> None:
    """One work at one rate, once with everybody; each round begins with another network."""
    order = cases(found, results.work)
    number %= len(order)
    for case in order[number:] + order[:number]:
        name, takers = case
        if window.rate and name in BESIDE:
            both = measure_both(found[name], found[SINGLE], results.work, takers, window)
            measured = {case: both[0], (BESIDE[name], 1): both[1]}
        else:
            measured = {
                case: measure_one(found[name], replace(results.work, takers=takers), window)
            }
        for each, one in measured.items():
            results.rounds.setdefault(each, []).append(one)


def run(
    works: list[Work], rates: tuple[int, ...], rounds: int, warm_seconds: float, seconds: float
) -> tuple[list[Results], list[str]]:
    """All rounds, each with processes that were started for it; and who is absent."""
    all_results = [Results(work, rate) for work in works for rate in rates]
    notes: list[str] = []
    for number in range(rounds):
        with networks() as (found, absent):
            notes = [f"{name} is absent: {reason}" for name, reason in absent.items()]
            seen = f"round {number + 1} of {rounds}: {', '.join(found)}"
            print(f"{seen}; {len(all_results)} works", file=sys.stderr, flush=True)
            for results in all_results:
                run_round(results, found, Window(warm_seconds, seconds, results.rate), number)
    for results in all_results:
        results.rounds = {case: results.rounds[case] for case in ORDER if case in results.rounds}
    return all_results, notes


# ------------------------------------------------------------------------------ paper


def row(results: Results, network: str, takers: int) -> list[str]:
    rounds = [one for one in results.rounds[network, takers] if not one.fault]
    links = CROSSED.get((network, takers), 0)
    head = [results.label, network, str(takers), str(links)]
    if not rounds:
        return [*head, *["-"] * (len(HEAD) - len(head))]
    costs = [cost * 1e6 for cost in results.costs(network, takers) if cost is not None]
    rate = report.median([one.messages_per_second for one in rounds]) or 0.0
    others = report.median([one.other_cpu / one.seconds for one in rounds]) or 0.0
    hops = ["", ""]
    if links:
        per_hop = [cost * 1e6 for cost in results.hops(network, takers) if cost is not None]
        hops = [report.spread(per_hop), report.spread(results.times(network, takers))]
    return [*head, f"{rate / 1e3:.0f} k", report.spread(costs), *hops, f"{others:.0%}"]


def judge(all_results: list[Results]) -> list[report.Goal]:
    goals = []
    for results in all_results:
        for network, takers in ((LINE_OF, 1), (TREE_OF, LEAVES)):
            name = f"{results.label}: a hop in the {network}"
            beside = BESIDE[network]
            cases = [(network, takers), (SINGLE, takers), (SINGLE, 1), (beside, 1)]
            fault = any(one.fault for case in cases for one in results.rounds.get(case, []))
            for node in (beside, "") if results.rate else ("",):
                times = report.median(results.times(network, takers, node))
                what = f"x delivery, {node or SINGLE}" if results.rate else "x delivery"
                goal = report.at_most(name, BOUND, what, times)
                if not node and results.rate:
                    goal = report.told(goal)
                elif fault:
                    goal = report.missed(goal)
                goals.append(goal)
    return goals


def faults(all_results: list[Results]) -> list[str]:
    return [
        f"{results.label}, {network} to {takers}, round {number}: {one.fault}; left out"
        for results in all_results
        for (network, takers), rounds in results.rounds.items()
        for number, one in enumerate(rounds, 1)
        if one.fault
    ]


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.hops", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--rounds", type=int, help="default 9, quick 2")
    parser.add_argument("--seconds", type=float, help="of one count; default 1, quick 0.5")
    parser.add_argument("--work", default="", help="only works whose label contains this")
    parser.add_argument("--no-tables", action="store_true", help="hops only")
    parser.add_argument("--no-hops", action="store_true", help="tables only")
    size = f"default {interests.FULL}, quick {interests.QUICK}"
    parser.add_argument("--size", type=int, help=f"subscriptions; {size}")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the nodes go, too
    neighbours = Neighbours()
    seconds = options.seconds or (0.5 if options.quick else 1.0)
    rounds = options.rounds or (2 if options.quick else 9)
    rates = (0,) if options.quick else (0, RATE)
    all_results: list[Results] = []
    notes: list[str] = []
    works = [] if options.no_hops else [work for work in WORKS if options.work in work.label]
    if options.quick:
        works = [work for work in works if work in (WORKS[0], WORKS[3])]
    if works:
        warm_seconds = 0.2 if options.quick else 0.5
        all_results, notes = run(works, rates, rounds, warm_seconds, seconds)
        table = [row(each, *case) for each in all_results for case in each.rounds]
        print(report.table(HEAD, table))
    goals = judge(all_results)
    if not options.no_tables:
        size = options.size or (interests.QUICK if options.quick else interests.FULL)
        more_goals, more_notes = interests.run(size, TREE)
        goals += more_goals
        notes += more_notes
    return report.finish("hops", goals, notes + faults(all_results) + neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
