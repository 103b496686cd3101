"""Staying awake while one message is being made safe: waking up would take a third as long again.

Who publishes one message and waits for it to be safe has nothing else to do for as long as a disk
takes, often no more than 0.1 ms. A process that sleeps meanwhile lets its processor sleep, and the
node has to wake both. So for a moment the loop looks again and again whether the answer is there.

That is bounded, and given up where it does not pay: if the answer takes longer, it is not tried
again until the 32nd message; if others have work for every processor, not for a tenth of a second.
"""

from __future__ import annotations

import os
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable

LOOKED_NS = 300_000  # after so long it makes little difference
CROWDED_NS = 200_000  # giving way for so long: somebody else had work
CROWDED_FOR_NS = 100_000_000
TRIED_AGAIN = 32
GIVE_WAY: Callable[[], None] = getattr(os, "sched_yield", lambda: None)  # not everywhere


class Lookout:
    """Looks for the answer to one message."""

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        give_way: Callable[[], None] = GIVE_WAY,
    ) -> None:
        self._clock_ns = clock_ns
        self._give_way = give_way
        self._passed_over = 0  # messages for which it will not be tried
        self._crowded_until_ns = 0

    def begin(self, answer: Future[int], loop: AbstractEventLoop) -> None:
        """Somebody waits for nothing but this."""
        if self._passed_over:
            self._passed_over -= 1
            return
        now_ns = self._clock_ns()
        if now_ns >= self._crowded_until_ns:
            loop.call_soon(self._look, answer, now_ns + LOOKED_NS, loop)

    def _look(self, answer: Future[int], until_ns: int, loop: AbstractEventLoop) -> None:
        if answer.done():
            return
        now_ns = self._clock_ns()
        if now_ns >= until_ns:
            self._passed_over = TRIED_AGAIN - 1
            return
        self._give_way()  # to whoever has something to do: the node, perhaps
        if self._clock_ns() - now_ns >= CROWDED_NS:
            self._crowded_until_ns = now_ns + CROWDED_FOR_NS
            return
        loop.call_soon(self._look, answer, until_ns, loop)
