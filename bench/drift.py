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
from bench.growing import CHUNK, Builder, Match
from bench.workloads import Drifting

WINDOW = 1_000
LAST = 10  # windows of a settled phase that count


@dataclass
class Drift:
    """Windows of a thousand events, µs an event; the first and the last phase are longer."""

    size: int
    phases: list[list[float]] = field(default_factory=list)
    typical_us: float = 0.0  # of one event in the first phase, once settled
    longest_us: float = 0.0  # of one event, from the second phase on
    longest_wall_us: float = 0.0
    longest_steady_us: float = 0.0  # of one event in the first phase: what the machine adds
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
        """The last window of each later phase, by when it has to be as good as new."""
        return [phase[windows - 1] for phase in self.phases[1:]]

    @property
    def delay_us(self) -> float:
        return max(0.0, self.longest_us - self.typical_us)

    @property
    def delay_wall_us(self) -> float:
        return max(0.0, self.longest_wall_us - self.typical_us)


def windows_of(
    match: Match, envelopes: list[bytes], extra: float
) -> Iterator[tuple[float, float, float, float]]:
    """For each window: mean, median and longest processor time, and longest time on the wall."""
    for begin in range(0, len(envelopes), WINDOW):
        both = [timed(match, envelope) for envelope in envelopes[begin : begin + WINDOW]]
        worked = [one[1] - extra for one in both]
        longest = max(one[0] for one in both)
        yield statistics.fmean(worked), statistics.median(worked), max(worked), longest


def measure(size: int, phases: int, events: int) -> Drift:
    """Build under the first phase, settle, then move on every so many events."""
    workload = Drifting((size,))
    drift = Drift(size)
    builder = Builder(size)
    match = builder.index.match
    extra = overhead_us()
    first = [event.envelope for event in workload.phase(0, 2 * events)]
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
        found = list(windows_of(match, envelopes, extra))
        gc.enable()
        drift.phases.append([window[0] for window in found])
        if number == 0:
            drift.longest_steady_us = max(window[2] for window in found[-LAST:])
            drift.typical_us = statistics.median(window[1] for window in found[-LAST:])
            drift.matches = statistics.fmean(len(match(one)) for one in envelopes[:WINDOW])
        else:
            drift.longest_us = max(drift.longest_us, *(window[2] for window in found))
            drift.longest_wall_us = max(drift.longest_wall_us, *(window[3] for window in found))
    return drift
