"""Looking for more for a moment before the process sleeps, because waking it up takes longer.

On a machine where others have work for every processor, that does harm: who gives way there gets
its processor back after milliseconds, though something may come at once; who sleeps is woken when
it comes. How long giving way takes shows which of both it is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

CROWDED_NS = 200_000  # giving way for so long: somebody else had work
CROWDED_FOR_NS = 100_000_000  # for so long nothing is looked for then
TRIED_AGAIN = 32  # reads after one that nothing followed


class Spin:
    """For `spin_us` after a read it is looked for another one; 0: never."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spin_us: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        self.reads = 0  # counted by whoever reads
        self.active = spin_us == 0  # there is no need to begin
        self._loop = loop
        self._ns = spin_us * 1000
        self._clock_ns = clock_ns
        self._give_way = give_way
        self._seen = 0  # reads
        self._until_ns = 0
        self._fruitless = False
        self._crowded_until_ns = 0

    def begin(self) -> None:
        """Something was read: look for more.

        If nothing came the last time, the chance is not taken again until the next 32nd read.
        """
        if self._fruitless and self.reads % TRIED_AGAIN:
            return
        now_ns = self._clock_ns()
        if now_ns < self._crowded_until_ns:
            return
        self.active = True
        self._seen = self.reads
        self._until_ns = now_ns + self._ns
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        now_ns = self._clock_ns()
        if self.reads != self._seen:
            self._fruitless = False
            self._seen = self.reads
            self._until_ns = now_ns + self._ns
        elif now_ns >= self._until_ns:
            self.active = False
            self._fruitless = True
            return
        else:
            self._give_way()  # to whoever has something to do
            if self._clock_ns() - now_ns >= CROWDED_NS:
                self.active = False
                self._crowded_until_ns = now_ns + CROWDED_FOR_NS
                return
        self._loop.call_soon(self._look)
