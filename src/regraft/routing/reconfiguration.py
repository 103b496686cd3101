"""What a lost link causes, and when: the protocols of reconfiguration.

Rules:

- A protocol decides how long that waits which the loss of a link causes; what a new link needs is
  never held back. `Forwarding` asks it, and holds back.
- A loss is known by the key of the link that was lost, which is never used twice, and by its rid,
  the name that both ends of it derive for the reconfiguration. A planned removal may have none.
- Waiting ends when the protocol says so, and for all losses at once when no link is left: a leaf
  that was cut off has nobody whom it could spare anything.
- When waiting ends nothing is unsubscribed as such. What was held back is forgotten, and what
  neighbours must be told follows from what is held then: of what came back by another way nothing.
- Changed times apply from the next loss on.

A class says which of the five protocols it is by what it does besides waiting; what that means is
in `grafting`. Every node handles the messages of all five, whichever it uses itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

DELAY_MS = 3000
_MS = 1_000_000


class Reconfigurator(Protocol):
    """How long what a lost link causes waits."""

    name: ClassVar[str]
    notifies: ClassVar[bool]  # FLUSH ends the waiting as soon as the new link is told everything
    informs: ClassVar[bool]  # ACTIVATE says what the new link need not be told
    reroutes: ClassVar[bool]  # REROUTE turns the way along a path, instead of waiting
    delay_ms: int  # for which something may wait; 0: as Strawman

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> bool:
        """A link is gone; whether what that causes waits."""

    def added(self, key: int, rid: bytes, now_ns: int) -> None:
        """There is a link; with a rid, in place of the lost one of that name."""

    def ended(self, now_ns: int) -> list[int]:
        """The keys of the losses whose waiting is over; each is said once."""

    def end(self, key: int) -> None:
        """A loss waits no more, if it did."""

    def forget(self) -> None:
        """Nothing waits any more."""

    @property
    def next_ns(self) -> int | None:
        """When `ended` has something to say, if nothing else happens."""


class Strawman:
    """Nothing waits: what a lost link causes is sent at once, and again when a new one is there."""

    delay_ms = 0

    name: ClassVar[str] = "strawman"
    notifies: ClassVar[bool] = False
    informs: ClassVar[bool] = False
    reroutes: ClassVar[bool] = False

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> bool:
        """It does not wait."""
        return False

    def added(self, key: int, rid: bytes, now_ns: int) -> None:
        """Makes no difference."""

    def ended(self, now_ns: int) -> list[int]:
        """Nothing ever does."""
        return []

    def end(self, key: int) -> None:
        """It did not."""

    def forget(self) -> None:
        """There is nothing."""

    @property
    def next_ns(self) -> int | None:
        """Never."""
        return None


class DeferredTimed:
    """Unsubscriptions wait for a fixed time, in which what was lost mostly comes back elsewhere."""

    name: ClassVar[str] = "deferred-timed"
    notifies: ClassVar[bool] = False
    informs: ClassVar[bool] = False
    reroutes: ClassVar[bool] = False

    def __init__(self, delay_ms: int = DELAY_MS) -> None:
        self.delay_ms = delay_ms  # 0: as Strawman
        self._until: dict[int, int] = {}  # by the key of the lost link

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> bool:
        """It waits, whether a new link is to be expected or not."""
        if self.delay_ms <= 0:
            return False
        self._until[key] = now_ns + self.delay_ms * _MS
        return True

    def added(self, key: int, rid: bytes, now_ns: int) -> None:
        """Makes no difference: only time ends the waiting."""

    def ended(self, now_ns: int) -> list[int]:
        """Those whose time has come."""
        over = [key for key, until in self._until.items() if until <= now_ns]
        for key in over:
            del self._until[key]
        return over

    def end(self, key: int) -> None:
        """Its timer does not run any more."""
        self._until.pop(key, None)

    def forget(self) -> None:
        """No timer runs any more."""
        self._until.clear()

    @property
    def next_ns(self) -> int | None:
        """The first of the times."""
        return min(self._until.values(), default=None)


class DeferredNotified(DeferredTimed):
    """Unsubscriptions wait until the new link was told everything; the time is the fall-back."""

    name: ClassVar[str] = "deferred-notified"
    notifies: ClassVar[bool] = True


class InformedActivation(DeferredNotified):
    """The same; and a new link is not told what is about to be unsubscribed."""

    name: ClassVar[str] = "informed-activation"
    informs: ClassVar[bool] = True


class ReconfigurationPath(DeferredTimed):
    """Only the nodes between the lost link and the new one change anything."""

    name: ClassVar[str] = "reconfiguration-path"
    reroutes: ClassVar[bool] = True


PROTOCOLS: dict[str, Callable[[int], Reconfigurator]] = {
    Strawman.name: lambda delay_ms: Strawman(),
    DeferredTimed.name: DeferredTimed,
    DeferredNotified.name: DeferredNotified,
    InformedActivation.name: InformedActivation,
    ReconfigurationPath.name: ReconfigurationPath,
}
