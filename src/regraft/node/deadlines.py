"""Moments at which something must be looked at again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Deadlines:
    """A heap of (moment, what, key). Entries are hints: whoever gets one looks at the facts."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str, int]] = []
        self.earlier = False  # the next moment has changed, and somebody must be told

    def add(self, at_ns: int, what: str, key: int) -> None:
        """Look at it then."""
        if not self._heap or at_ns < self._heap[0][0]:
            self.earlier = True
        heapq.heappush(self._heap, (at_ns, what, key))

    def due(self, now_ns: int) -> Iterator[tuple[str, int]]:
        """Those whose moment has come; more may be added meanwhile."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, what, key = heapq.heappop(self._heap)
            yield what, key

    @property
    def next_ns(self) -> int | None:
        """The next moment, if there is one."""
        return self._heap[0][0] if self._heap else None
