"""What neighbours say that they want: it waits, and is dealt with a little at a time.

A frame of a neighbour is short to read and may take long to follow: each filter goes into the match
index and to the forwarding. So frames wait here, in their order, and each step deals with some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from regraft.errors import LocalError, PeerError, RegraftError, WorldError
from regraft.kernels.plan import Plan, plan_of
from regraft.limits import Limits
from regraft.model.topics import check_pattern
from regraft.model.userfilter import UserFilters
from regraft.node.connection import OPEN, Connection
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.router import Router
from regraft.node.spoken import filter_of
from regraft.routing.filters import Filter
from regraft.routing.forwarding import Forwarding
from regraft.wire import offers, peers

InPlace: TypeAlias = (
    peers.Leaving
    | peers.Flush
    | peers.Restored
    | peers.Activate
    | peers.Reroute
    | peers.Rerouted
    | offers.Offers
    | offers.Heeded
)
TOLD_AT_ONCE = 100  # filters that are taken in one step


class Listening:
    """The frames of all links that are not dealt with yet."""

    def __init__(
        self,
        limits: Limits,
        links: dict[int, Connection],
        router: Router,
        forwarding: Forwarding,
        filters: UserFilters,
        effects: list[Effect],
        fail: Callable[[Connection, RegraftError, Now], None],
        complete: Callable[[Connection, Now], None],
        in_place: Callable[[Connection, InPlace, Now], None],
    ) -> None:
        self._limits = limits
        self._links = links
        self._router = router
        self._forwarding = forwarding
        self._filters = filters
        self._effects = effects
        self._fail = fail
        self._complete = complete  # told when a link has heard everything
        self._in_place = in_place  # told what stood behind interests, in its turn
        self._told: dict[int, deque[peers.Interests | InPlace]] = {}
        self._untold: dict[int, int] = {}  # how much that is

    def __bool__(self) -> bool:
        return bool(self._told)

    def interests(self, c: Connection, message: peers.Interests) -> None:
        """A neighbour wants something, or no more: it is dealt with at the end of the step."""
        waiting = self._untold.get(c.key, 0) + _weight(message)
        if len(self._router.held(c.key)) + waiting > self._limits.link_filters:
            raise WorldError(
                "limit-exceeded",
                f"a neighbour wants more than {self._limits.link_filters} filters "
                "(limit link_filters)",
            )
        self._untold[c.key] = waiting
        self._told.setdefault(c.key, deque()).append(message)

    def behind(self, c: Connection, message: InPlace, now: Now) -> None:
        """A neighbour is about to go, or speaks of a lost link: that has its place in the rest."""
        if self._told.get(c.key):
            lists = (getattr(message, name, ()) for name in ("given", "remove", "add"))
            weight = 1 + sum(map(len, lists))
            if self._untold[c.key] + weight > self._limits.link_filters:
                raise WorldError("limit-exceeded", "a neighbour says too much at once")
            self._untold[c.key] += 1
            self._told[c.key].append(message)
        else:
            self._in_place(c, message, now)

    def work(self, now: Now) -> None:
        """Deal with some of what neighbours said: messages must not wait for thousands."""
        room = TOLD_AT_ONCE
        for key in list(self._told):
            queue, c = self._told[key], self._links.get(key)
            if c is not None and c.state is not OPEN:
                c = None  # what it said last does not matter any more
            while queue and c is not None and room > 0:
                message = queue.popleft()
                if not isinstance(message, peers.Interests):
                    self._untold[key] -= 1
                    room -= 1
                    try:
                        self._in_place(c, message, now)
                    except RegraftError as error:
                        self._fail(c, error, now)
                        queue.clear()
                    continue
                if len(message.add) > room:
                    queue.appendleft(replace(message, add=message.add[room:]))
                    message = peers.Interests(message.add[:room])
                    self._untold[key] += 1  # they are two now
                room -= _weight(message)
                self._untold[key] -= _weight(message)
                try:
                    self._take_in(c, message)
                    if message.synced:
                        self._complete(c, now)
                except RegraftError as error:
                    self._fail(c, error, now)
                    queue.clear()
            if not queue or c is None:
                del self._told[key], self._untold[key]

    def _take_in(self, c: Connection, message: peers.Interests) -> None:
        held = self._router.held(c.key)
        for one in message.add:
            if one.number in held:
                raise PeerError("protocol-violation", f"number {one.number} is in use on this link")
            try:
                check_pattern(one.pattern)
            except LocalError as error:
                raise PeerError("protocol-violation", f"a neighbour wants {error.text}") from None
            self.enter(c.key, [(one.number, filter_of(one))])
        for number in message.remove:
            if number not in self._router.held(c.key):
                raise PeerError("protocol-violation", f"number {number} is not in use on this link")
            self._router.unsubscribe(c.key, number)
        adds = [(one.number, filter_of(one)) for one in message.add]
        self._forwarding.received(c.key, adds, list(message.remove))

    def enter(self, key: int, given: Iterable[tuple[int, Filter]]) -> None:
        """A neighbour wants these, though perhaps it did not say so."""
        for number, (pattern, exact, selector, name, data) in given:
            own = self._filters.of(name, data) if name else None
            plan = self._plan(selector)
            self._router.subscribe(key, number, pattern, exact, plan, own=own)

    def remove(self, key: int, numbers: Iterable[int]) -> None:
        """A neighbour does not want these any more; it did."""
        for number in numbers:
            if number in self._router.held(key):
                self._router.unsubscribe(key, number)

    def _plan(self, text: str) -> Plan | None:
        """What a neighbour's selector asks for; what this node cannot tell it takes as all."""
        if not text:
            return None
        try:
            plan = plan_of(text, self._limits.selector_bytes)
            self._router.check_cost(plan)
        except LocalError as error:
            self._effects.append(Note("warning", f"a neighbour's filter counts as all: {error}"))
            return None
        return plan


def _weight(message: peers.Interests) -> int:
    """What it costs to deal with it, and to keep it until then."""
    return len(message.add) + len(message.remove) + 1
