"""Requests of others on their way up: who waits for which answer.

A request is known by its asker and its number. It came by one connection (*down*), from the asker
itself (*direct*) or from a child, and went on by the parent link (*up*). The answer comes by the
same parent link or never: when that link is lost, all that went by it is answered at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from regraft.overlay.messages import Ask

REQUESTS_MAX = 1024


class Passed(NamedTuple):
    """A request that was passed up."""

    ask: Ask
    down: int
    direct: bool
    up: int
    until_ns: int


class Requests:
    """Those that wait for an answer from above."""

    def __init__(self) -> None:
        self._passed: dict[tuple[bytes, int], Passed] = {}

    def __len__(self) -> int:
        return len(self._passed)

    def __contains__(self, ask: Ask) -> bool:
        return (ask.asker, ask.number) in self._passed

    @property
    def full(self) -> bool:
        """No more are taken."""
        return len(self._passed) >= REQUESTS_MAX

    @property
    def next_ns(self) -> int | None:
        """When the oldest is given up: they are in this order."""
        return next((passed.until_ns for passed in self._passed.values()), None)

    def add(self, passed: Passed) -> None:
        """One was passed up."""
        self._passed[passed.ask.asker, passed.ask.number] = passed

    def answered(self, asker: bytes, number: int, up: int) -> Passed | None:
        """An answer came by a link: who waits for it, if anybody still does."""
        passed = self._passed.get((asker, number))
        if passed is None or passed.up != up:
            return None
        del self._passed[asker, number]
        return passed

    def end_up(self, up: int) -> Iterator[Passed]:
        """The link is lost that these went by."""
        for passed in [passed for passed in self._passed.values() if passed.up == up]:
            del self._passed[passed.ask.asker, passed.ask.number]
            yield passed

    def end_down(self, down: int) -> None:
        """Nobody waits at this connection any more."""
        for passed in [passed for passed in self._passed.values() if passed.down == down]:
            del self._passed[passed.ask.asker, passed.ask.number]

    def waits_at(self, down: int) -> bool:
        """Somebody does."""
        return any(passed.down == down for passed in self._passed.values())

    def newest(self, asker: bytes) -> int:
        """The number of the newest request that this asker made here itself, 0 if none waits."""
        mine = (p.ask.number for p in self._passed.values() if p.direct and p.ask.asker == asker)
        return max(mine, default=0)

    def end_older(self, asker: bytes, number: int) -> None:
        """The asker has given up all that it asked here before this number."""
        for passed in list(self._passed.values()):
            ask = passed.ask
            if passed.direct and ask.asker == asker and ask.number < number:
                del self._passed[asker, ask.number]

    def expire(self, now_ns: int) -> None:
        """Give up those that are too old."""
        for passed in list(self._passed.values()):
            if passed.until_ns > now_ns:
                break
            del self._passed[passed.ask.asker, passed.ask.number]
