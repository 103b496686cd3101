"""How long an event takes to find the filters it satisfies among a million.

    python -m bench.matching [--quick] [--size N] [--only selective,dense] [--no-rivals]

Five workloads (`workloads.py`), each in a fresh process: its index grows stage by stage and is
measured on its way, its memory and its changes at the size of the goal. Then one whose events
drift, and beside all of them other ways to the same result (`rivals.py`).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import apart, drift, growing, plot, report, rivals
from bench.drift import Drift
from bench.growing import Grown, Order, Point
from bench.report import Goal
from bench.rivals import RIVALS, Contest, OneByOne, Outcome
from bench.servers import Neighbours
from bench.workloads import WORKLOADS, Drifting

FULL, QUICK = 1_000_000, 20_000
CHART = Path("build/matching-growth.svg")
WAIT_SECONDS = 900.0
STEADY = 2.0  # times the steady state, once a phase has had its events
DELAY_US = 1_000.0
SELECTIVE_PARSED_US = 40.0
SELECTIVE_BYTES = 400.0


@dataclass(frozen=True)
class Promise:
    """What was promised for one workload, of a full run."""

    event_us: float
    change_us: float
    size: int = FULL


PROMISES = {
    "selective": Promise(20, 5),
    "dense": Promise(3_000, 10),
    "sparse": Promise(100, 5),
    "strings": Promise(200, 50, FULL // 10),
    "topics": Promise(3, 3),
}


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    quick: bool
    size: int  # of the largest index

    @property
    def sizes(self) -> tuple[int, ...]:
        shares = (0.1, 0.3, 1.0) if self.quick else (0.01, 0.03, 0.1, 0.3, 1.0)
        return tuple(max(100, round(self.size * share / 100) * 100) for share in shares)

    @property
    def whole(self) -> bool:
        """Whether all goals can be judged."""
        return self.size >= FULL

    def goal_size(self, workload: str) -> int:
        """The size at which a workload is judged."""
        if self.quick:
            return self.sizes[-1]
        return self.sizes[2] if PROMISES[workload].size < FULL else self.sizes[-1]

    def order(self, workload: str) -> Order:
        size = self.goal_size(workload)
        if self.quick:
            return Order(workload, self.sizes, size, 1_000, 30.0, 0.1, 1.5, 0.05, 0.4)
        return Order(workload, self.sizes, size, 5_000, 300.0, 0.7, 20.0, 0.3, 4.0)

    def contest(self, grown: Grown) -> Contest:
        """The rivals meet the index at some of its sizes, as far as it came."""
        meetings = (0,) if self.quick else (0, 2, 4)
        stages = tuple(stage for stage in meetings if stage < len(grown.points))
        order = self.order(grown.workload)
        return Contest(
            grown.workload,
            self.sizes,
            stages,
            tuple(grown.points[stage].sample for stage in stages),
            2.4 if self.quick else 24.0,
            order.events,
        )

    @property
    def drift(self) -> tuple[int, int, int]:
        """Filters, phases, and events in each."""
        return (self.size, 4, 2_000) if self.quick else (self.size, 8, 10_000)


@dataclass
class Results:
    """All that was measured, and what went wrong."""

    scale: Scale
    grown: dict[str, Grown]
    drift: Drift | None
    outcomes: dict[str, list[Outcome]]
    notes: list[str]
    failed: set[str]

    def at_goal(self, workload: str) -> Point | None:
        grown = self.grown.get(workload)
        size = self.scale.goal_size(workload)
        return next((p for p in grown.points if p.size == size), None) if grown else None


# ------------------------------------------------------------------------------ goals


def growth(points: list[Point]) -> tuple[float, float, float] | None:
    """How much longer the largest takes than the smallest, how much it may, and the exponent."""
    if len(points) < 2:
        return None
    times = points[-1].us / points[0].us
    allowed = 1 + math.log2(points[-1].size / points[0].size)
    xs = [math.log(point.size) for point in points]
    ys = [math.log(point.us) for point in points]
    return times, allowed, statistics.linear_regression(xs, ys).slope


def unjudged(goal: Goal) -> Goal:
    """The same where the size is not the one that was promised for."""
    return Goal(goal.name, goal.goal, goal.measured, None)


def judge_workload(results: Results, name: str) -> list[Goal]:
    """Events, changes, memory and growth of one workload."""
    scale, promise = results.scale, PROMISES[name]
    grown, point = results.grown.get(name), results.at_goal(name)
    changes = grown.changes if grown else None
    label = f"{name}, {scale.goal_size(name):,} filters"
    event_us = point.us if point else None
    events = report.below(f"{label}: event", promise.event_us, "µs", event_us)
    goals = [events if scale.whole or WORKLOADS[name].constant else unjudged(events)]
    for what in ("insert", "remove"):
        measured = getattr(changes, f"{what}_us") if changes else None
        goals.append(report.below(f"{label}: {what}", promise.change_us, "µs", measured))
    if name == "selective":
        parsed = changes.parsed_us if changes else None
        goals.append(report.below(f"{label}: parse and insert", SELECTIVE_PARSED_US, "µs", parsed))
        memory = report.at_most(
            f"{label}: memory beyond the text",
            SELECTIVE_BYTES,
            "B",
            grown.bytes_each if grown else None,
        )
        goals.append(memory if scale.whole else unjudged(memory))
    if WORKLOADS[name].constant:
        goals.append(judge_growth(results, name))
    return [report.missed(goal) for goal in goals] if name in results.failed else goals


def judge_growth(results: Results, name: str) -> Goal:
    sizes = results.scale.sizes
    grown = results.grown.get(name)
    whole = grown is not None and len(grown.points) == len(sizes)
    told = growth(grown.points) if grown is not None and whole else None
    allowed = 1 + math.log2(sizes[-1] / sizes[0])
    label = f"{name}: {sizes[-1]:,} filters, times {sizes[0]:,}"
    goal = report.at_most(label, round(allowed, 2), "x", told and told[0])
    return goal if results.scale.whole else unjudged(goal)


def judge_drift(results: Results) -> list[Goal]:
    scale, found = results.scale, results.drift
    size, _, events = scale.drift
    worst = max(found.ends(events // drift.WINDOW)) / found.steady if found else None
    label = f"drifting, {size:,} filters"
    after = report.at_most(f"{label}: {events:,} events later", STEADY, "x steady", worst)
    delay = found.delay_us if found and found.chose else None
    goals = [
        after if scale.whole else unjudged(after),
        report.at_most(f"{label}: delay by choosing anew", DELAY_US, "µs", delay),
    ]
    return [report.missed(goal) for goal in goals] if Drifting.name in results.failed else goals


def judge(results: Results, names: list[str]) -> list[Goal]:
    goals = [goal for name in names for goal in judge_workload(results, name)]
    delays = [one.changes.delay.us for one in results.grown.values() if one.changes]
    worst = max(delays) if delays else None
    goals.append(report.at_most("delay of an event between changes", DELAY_US, "µs", worst))
    if results.drift or Drifting.name in results.failed:
        goals += judge_drift(results)
    agreed = [name for name in names if agrees(results.outcomes.get(name, []))]
    denied = [name for name in names if denies(results.outcomes.get(name, []))]
    met = False if denied else len(agreed) == len(names) or None
    said = f"all of {len(names)} workloads"
    goals.append(Goal("same filters as others find", said, float(len(agreed)), met))
    return goals


def agrees(outcomes: list[Outcome]) -> bool:
    """Somebody else found the same, and the plain evaluation did not find anything else."""
    return any(one.us is not None for one in outcomes) and not denies(outcomes)


def denies(outcomes: list[Outcome]) -> bool:
    return any(one.wrong and one.rival == OneByOne.name for one in outcomes)


# ------------------------------------------------------------------------------ paper


def us(value: float | None) -> str:
    """Three digits, of µs or whatever."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main_table(results: Results) -> str:
    head = ("workload", "filters", "matches", "µs/event", "range", "settled by", "insert µs",
            "remove µs", "parsed µs", "built: plan µs", "insert µs", "B beyond text", "text B",
            "delay µs", "unchanged", "once", "unchanged", "on the wall")  # fmt: skip
    rows = []
    for name, grown in results.grown.items():
        point, changes = results.at_goal(name), grown.changes
        if point is None or changes is None:
            continue
        rows.append([
            name,
            f"{point.size:,}",
            f"{point.matches:.1f}",
            us(point.us),
            f"{us(min(point.passes))}..{us(max(point.passes))}",
            f"{point.seen:,}",
            us(changes.insert_us),
            us(changes.remove_us),
            us(changes.parsed_us),
            us(grown.plan_us),
            us(grown.insert_us),
            us(grown.bytes_each),
            us(grown.text_each),
            us(changes.delay.us),
            us(changes.delay.peace_us),
            us(changes.delay.once_us),
            us(changes.delay.once_peace_us),
            us(changes.delay.wall_us),
        ])  # fmt: skip
    return report.table(head, rows, words=1)


def growth_table(results: Results) -> str:
    sizes = results.scale.sizes
    head = ("µs/event", *(f"{size:,}" for size in sizes), "times", "allowed", "exponent", "matches")
    rows = []
    for name, grown in results.grown.items():
        told = growth(grown.points)
        if told is None:
            continue
        times, allowed, exponent = told
        cells = [us(point.us) for point in grown.points]
        cells += ["-"] * (len(sizes) - len(cells))
        limit = f"{allowed:.2f}" if WORKLOADS[name].constant else "linear"
        matches = f"{grown.points[0].matches:.1f}..{grown.points[-1].matches:.1f}"
        rows.append([name, *cells, f"{times:.2f}", limit, f"{exponent:.2f}", matches])
    return report.table(head, rows, words=1)


def drift_table(found: Drift) -> str:
    longest = max(len(phase) for phase in found.phases)
    head = ("phase", *(str(window + 1) for window in range(longest)))
    rows = [
        [str(number), *(us(window) for window in phase), *[""] * (longest - len(phase))]
        for number, phase in enumerate(found.phases)
    ]
    return report.table(head, rows, words=1)


def rivals_table(results: Results) -> str:
    head = ("workload", "way", "filters", "µs/event", "index", "x index", "built in s", "remark")
    rows = []
    for name, outcomes in results.outcomes.items():
        index = {point.size: point.us for point in results.grown[name].points}
        for one in outcomes:
            if not one.size:
                continue
            ours = index[one.size]
            times = us(one.us / ours) if one.us else "-"
            built = f"{one.build_seconds:.2f}" if one.us else "-"
            size = f"{one.size:,}"
            rows.append([name, one.rival, size, us(one.us), us(ours), times, built, one.remark])
    return report.table(head, rows)


def show(results: Results) -> None:
    """All tables, and the chart."""
    if results.grown:
        print(main_table(results))
        print()
        print("Growth, with as many matches at every size (dense: more). Allowed is 1 + log2 of")
        print("how many times as many: every doubling may add what the smallest size costs.")
        print(growth_table(results))
        lines = {
            name: [(float(point.size), point.us) for point in grown.points]
            for name, grown in results.grown.items()
        }
        title = "Time of an event as filters grow"
        plot.write(CHART, title, "filters in the index", "µs an event", lines)
        print(f"\nThe same as a chart: {CHART}")
    if results.drift:
        found = results.drift
        print(f"\nDrifting, {found.size:,} filters, {found.matches:.2f} matches: processor time of")
        print("an event in µs, mean of each 1,000 events; every phase has its own hot attribute.")
        print(drift_table(found))
        print(
            f"steady {us(found.steady)} (built under its phase), {us(found.settled)} (settled in "
            f"the last), typical {us(found.typical_us)}\nlongest event of {found.chose:,} after "
            f"which the index chose anew: {us(found.longest_us)}, on the wall "
            f"{us(found.longest_wall_us)} (places looked for after one: {found.placed:,} at most); "
            f"longest of all others: {us(found.longest_other_us)}, which the machine adds"
        )
    if any(results.outcomes.values()):
        print()
        print(rivals_table(results))
    for name, grown in results.grown.items():
        counters = ", ".join(f"{key} {value}" for key, value in grown.counters.items())
        print(f"\ncounters of {name}: {counters}")
    print()


# ------------------------------------------------------------------------------ running


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_workload(results: Results, name: str, compare: bool) -> None:
    """The index, then the rivals at its sizes."""
    scale = results.scale
    begin = time.monotonic()
    try:
        grown: Grown = apart.run(growing.measure, scale.order(name), seconds=WAIT_SECONDS)
    except apart.FailedError as error:
        results.failed.add(name)
        results.notes.append(f"{name}: {error}")
        return
    say(f"{name}: {time.monotonic() - begin:.0f} s")
    results.grown[name] = grown
    if grown.stopped:
        results.notes.append(f"{name}: {grown.stopped}; not measured")
    outcomes = results.outcomes[name] = [] if compare else results.outcomes.get(name, [])
    for rival in RIVALS if compare else ():
        if name not in rival.workloads:
            continue
        begin = time.monotonic()
        contest = scale.contest(grown)
        try:
            some = apart.run(rivals.compare, rival.name, contest, seconds=6 * contest.seconds + 20)
        except apart.FailedError as error:
            results.notes.append(f"{name}, {rival.name}: {str(error).splitlines()[-1]}")
            continue
        say(f"{name}, {rival.name}: {time.monotonic() - begin:.0f} s")
        outcomes += some
        for one in some:
            if not one.size:
                results.notes.append(f"{name}, {rival.name} is {one.remark}")
            elif one.wrong:
                results.notes.append(f"{name}, {rival.name} at {one.size:,}: {one.remark}")


def run_drift(results: Results) -> None:
    begin = time.monotonic()
    try:
        results.drift = apart.run(drift.measure, *results.scale.drift, seconds=WAIT_SECONDS)
    except apart.FailedError as error:
        results.failed.add(Drifting.name)
        results.notes.append(f"{Drifting.name}: {error}")
    say(f"{Drifting.name}: {time.monotonic() - begin:.0f} s")


def arguments(argv: list[str]) -> argparse.Namespace:
    every = ",".join([*WORKLOADS, Drifting.name])
    parser = argparse.ArgumentParser(prog="bench.matching", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--size", type=int, help="filters; default 1,000,000, quick 20,000")
    parser.add_argument("--only", default=every, help="workloads")
    parser.add_argument("--no-rivals", action="store_true", help="the index alone")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    from regraft import kernels

    kernels.require_compiled()
    scale = Scale(options.quick, options.size or (QUICK if options.quick else FULL))
    chosen = options.only.split(",")
    names = [name for name in WORKLOADS if name in chosen]
    results = Results(scale, {}, None, {}, [], set())
    neighbours = Neighbours()
    for name in names:
        run_workload(results, name, not options.no_rivals)
    if Drifting.name in chosen:
        run_drift(results)
    show(results)
    notes = [
        f"µs/event: the least of {growing.PASSES} passes over the events, scan of the envelope and "
        "loop included, collector off, once the index has settled; changes: the least of "
        f"{growing.CHANGE_PASSES} passes over {growing.CHANGES:,} filters on top of the others",
        "delays: processor time of an event between changes, less what the same one usually "
        f"takes, at worst; what counts is in each of {growing.MIXES} rounds of the same events and "
        "changes; once: in any of them; unchanged: the same without changes, which is what the "
        "machine adds",
    ]
    if not scale.whole:
        notes.append("at this size dense events, memory, growth and drift are not judged")
    return report.finish(
        "matching", judge(results, names), notes + results.notes + neighbours.remark()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
