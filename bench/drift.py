"""What becomes of an index when the events change: the hot attribute moves on, phase by phase.

Runs in a process of its own. Times are processor time, so that the work of others on the machine
does not look like the index choosing anew; the time on the wall stands beside the longest ones.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

from bench.apart import overhead_us, timed
from bench.growing import CHUNK, Builder
from bench.workloads import Drifting

WINDOW = 1_000
LAST = 10  # windows of a settled phase that count
ENDS = 3  # windows at the end of the others


@dataclass
class Drift:
    """Windows of a thousand events, µs an event; the first and the last phase are longer."""

    size: int
    phases: list[list[float]] = field(default_factory=list)
    typical_us: float = 0.0  # of one event in the first phase, once settled
    longest_us: float = 0.0  # of one event after which the index chose anew
    longest_wall_us: float = 0.0
    longest_other_us: float = 0.0  # of any other event: what the machine adds
    chose: int = 0  # events after which it chose anew
    placed: int = 0  # places looked for after one event, at most
    matches: float = 0.0

    @property
    def steady(self) -> float:
        """An index that was built under the phase it is in."""
        return statistics.median(self.phases[0][-LAST:])

    @property
    def settled(self) -> float:
        """An index that has been in its last phase for long."""
        return statistics.median(self.phases[-1][-LAST:])

    def ends(self, windows: int) -> list[float]:
        """The end of each later phase, by when it has to be as good as new: its last windows.

        Their median, as that of the steady state: a window may have had the machine's bad moment.
        """
        some = [phase[max(0, windows - ENDS) : windows] for phase in self.phases[1:]]
        return list(map(statistics.median, some))

    @property
    def delay_us(self) -> float:
        return max(0.0, self.longest_us - self.typical_us)

    def note(self, took: list[tuple[float, float, int, int]]) -> None:
        """Of some events: on the wall, of a processor, how many were reviewed, and placed."""
        chose = [one for one in took if one[2] or one[3]]
        others = [one[1] for one in took if not (one[2] or one[3])]
        self.chose += len(chose)
        self.placed = max(self.placed, *(one[3] for one in took))
        self.longest_us = max([self.longest_us, *(one[1] for one in chose)])
        self.longest_wall_us = max([self.longest_wall_us, *(one[0] for one in chose)])
        self.longest_other_us = max([self.longest_other_us, *others])


def windows_of(
    builder: Builder, envelopes: list[bytes], extra: float
) -> Iterator[list[tuple[float, float, int, int]]]:
    """For each window what `Drift.note` wants to know of its events."""
    match, tree = builder.index.match, builder.index.tree
    for begin in range(0, len(envelopes), WINDOW):
        took = []
        for envelope in envelopes[begin : begin + WINDOW]:
            reviewed, placed = tree.reviewed, tree.placed
            wall, worked = timed(match, envelope)
            took.append((wall, worked - extra, tree.reviewed - reviewed, tree.placed - placed))
        yield took


def measure(size: int, phases: int, events: int) -> Drift:
    """Build under the first phase, settle, then move on every so many events."""
    workload = Drifting((size,))
    drift = Drift(size)
    builder = Builder(size)
    match = builder.index.match
    extra = overhead_us()
    # Of the same kind as the first phase, but others: every phase is measured with events that the
    # index has not met, or the first one would be found where they were left in the caches.
    before = workload.phase(len(workload.NAMES), 2 * events)
    first = [event.envelope for event in before]
    turn = cycle(first)

    def see() -> None:
        for _ in range(-(-len(first) * CHUNK // size)):
            match(next(turn))

    builder.put(workload.filters(0), see)
    for number in range(phases):
        longer = 2 if number == 0 else 3 if number == phases - 1 else 1
        seen = workload.phase(number, longer * events)
        envelopes = [event.envelope for event in seen]
        gc.collect()
        gc.disable()
        found = list(windows_of(builder, envelopes, extra))
        gc.enable()
        worked = [[one[1] for one in window] for window in found]
        drift.phases.append(list(map(statistics.fmean, worked)))
        if number == 0:
            drift.typical_us = statistics.median(map(statistics.median, worked[-LAST:]))
            drift.matches = statistics.fmean(len(match(one)) for one in envelopes[:WINDOW])
        for window in found:
            drift.note(window)
    return drift
