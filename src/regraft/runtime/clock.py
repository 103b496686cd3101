"""The two clocks: one that only runs, and one that people set.

Expiry is decided by the wall clock. If somebody sets it by an hour, messages must not expire in
masses, so a jump is followed slowly: by at most a twentieth of the time that passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from regraft.node.event import Now

JUMP_US = 500_000  # a smaller difference is drift, and followed at once
LOOK_EVERY_NS = 100_000_000


class Clock:
    """Tells the time of a step."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._looked_ns = monotonic_ns()
        self._offset_us = wall_ns() // 1000 - self._looked_ns // 1000

    def now(self) -> Now:
        """Both times."""
        ns = self._monotonic_ns()
        if ns - self._looked_ns >= LOOK_EVERY_NS:
            self._follow(ns)
        return Now(ns, ns // 1000 + self._offset_us)

    def _follow(self, ns: int) -> None:
        difference = self._wall_ns() // 1000 - (ns // 1000 + self._offset_us)
        if abs(difference) >= JUMP_US:
            most = (ns - self._looked_ns) // 20_000
            difference = max(-most, min(most, difference))
        self._offset_us += difference
        self._looked_ns = ns
