"""Looking for more for a moment before the process sleeps, because waking it up takes longer.

On a machine where others have work for every processor, that does harm: who gives way there gets
its processor back after milliseconds, though something may come at once; who sleeps is woken when
it comes. How long giving way takes shows which of both it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    CROWDED_NS = 200_000  # giving way for so long: somebody else had work
    CROWDED_FIRST_NS = 1_000_000  # for so long nothing is looked for then,
    CROWDED_FOR_NS = 128_000_000  # and twice as long each time that it is still so, up to this
    QUICK_YIELDS = 256  # in a row: the others are gone
    TRIED_AGAIN = 32  # reads after one that nothing followed


class Spin:
    """For `spin_us` after a read it is looked for another one; 0: never.

    `call_soon` is that of the event loop, which looks whenever it calls back; `give_way` lets
    others have the processor.
    """

    def __init__(
        self,
        call_soon: Callable[..., Any],
        spin_us: int,
        clock_ns: Callable[[], int],
        give_way: Callable[[], None],
    ) -> None:
        self.reads = 0
        self.active = spin_us == 0  # there is no need to begin
        self.call_soon: Any = call_soon
        self.ns = spin_us * 1000
        self.clock_ns: Any = clock_ns
        self.give_way: Any = give_way
        self.seen = 0  # reads
        self.until_ns = 0
        self.fruitless = False
        self.crowded_until_ns = 0
        self.crowded_for_ns = CROWDED_FIRST_NS
        self.quick = 0  # yields that took no time, in a row

    def read(self) -> None:
        """Something was read: look for more.

        If nothing came the last time, the chance is not taken again until the next 32nd read.
        """
        self.reads += 1
        if self.active or (self.fruitless and self.reads % TRIED_AGAIN):
            return
        now_ns: int = self.clock_ns()
        if now_ns < self.crowded_until_ns:
            return
        self.active = True
        self.seen = self.reads
        self.until_ns = now_ns + self.ns
        self.call_soon(self.look)

    def look(self) -> None:
        """Once more, or no more."""
        now_ns: int = self.clock_ns()
        if self.reads != self.seen:
            self.fruitless = False
            self.seen = self.reads
            self.until_ns = now_ns + self.ns
        elif now_ns >= self.until_ns:
            self.active = False
            self.fruitless = True
            return
        else:
            self.give_way()  # to whoever has something to do
            if self.clock_ns() - now_ns >= CROWDED_NS:
                self.active = False
                self.quick = 0
                self.crowded_until_ns = now_ns + self.crowded_for_ns
                self.crowded_for_ns = min(2 * self.crowded_for_ns, CROWDED_FOR_NS)
                return
            self.quick += 1
            if self.quick == QUICK_YIELDS:
                self.crowded_for_ns = CROWDED_FIRST_NS
        self.call_soon(self.look)
