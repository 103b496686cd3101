"""Groups: of several members one takes each message, the one with the least in its hands.

A `Group` is what a peer type is to the lane. What a member has in its hands is counted with its
`Outlet`, whichever groups it belongs to: one more for each message that it is picked for, one less
for each answer that it sends.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.frame import cut
    from regraft.kernels.outlet import Outlet, Route

NOBODY, FULL, CLOSED = -1, -2, -3  # instead of a member


class Group:
    """Members, each with the encoded id of its subscription.

    Of a group that is not `any` all members take a message by subscriptions of their own: here it
    only matters whether there are some.

    A group with a `screen` is no group of several: its one member takes what a filter of somebody's
    own says, which is asked about each message.
    """

    def __init__(self, key: Any, any: bool = True, shared: bool = False) -> None:
        self.key = key  # what the node knows it by
        self.shared = (
            shared  # each node with members has one take it, also of other nodes' messages
        )
        self.any = any
        self.outlets: list[Outlet] = []
        self.ids: list[bytes] = []
        self.members: list[tuple[Outlet, bytes]] = []  # both, as routes are remembered by
        self.turn = 0  # who comes first among equals
        self.picked = 0
        self.unplaced = 0
        self.screen: Any = None  # asked with an envelope: whether the member takes it

    def add(self, outlet: Outlet, ids: bytes) -> None:
        """One more member."""
        self.outlets.append(outlet)
        self.ids.append(ids)
        self.members.append((outlet, ids))

    def remove(self, outlet: Outlet, ids: bytes) -> None:
        """One less."""
        for k in range(len(self.outlets)):
            if self.outlets[k] is outlet and self.ids[k] == ids:
                del self.outlets[k]
                del self.ids[k]
                del self.members[k]
                break

    def pick(self) -> int:
        """Choose a member for one message: its place, or NOBODY, or FULL."""
        n = len(self.outlets)
        if n == 0:
            return -1
        best = -2
        least = 0
        k = self.turn
        for _ in range(n):
            k += 1
            if k >= n:
                k = 0
            outlet: Outlet = self.outlets[k]
            load = outlet.in_flight
            if load < outlet.in_flight_max and (best < 0 or load < least):
                best = k
                least = load
                if load == 0:
                    break
        if best >= 0:
            self.turn = best
            self.picked += 1
            chosen: Outlet = self.outlets[best]
            chosen.in_flight += 1
        return best


class Screening:
    """Asks screens about one message after the other."""

    def __init__(self) -> None:
        self.envelope: Any = None  # the message, one object for all who are asked about it

    def ask(
        self, group: Group, source: Any, route: Route, members: list[Any], p: Any, at: int, end: int
    ) -> int:
        """The place of a group's member if the screen lets the message p[at:end] pass, or CLOSED.

        A neighbour that gets it anyway, or from which it comes, is not asked about.
        """
        outlet: Outlet = group.outlets[0]
        if outlet.gone or outlet is source:
            return -3
        if outlet.link:
            for k in range(len(route.outlets)):
                if route.outlets[k] is outlet:
                    return -3
            for k in range(len(members)):
                if members[k][0] is outlet:
                    return -3
        if self.envelope is None:
            self.envelope = cut(p, at, end)
        return 0 if group.screen(self.envelope) else -3
