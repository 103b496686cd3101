"""Leaving the tree without loss: what a node that goes, and its neighbours, do.

1. The node says LEAVING to its neighbours, and who inherits its place: its parent or, if it is the
   root, one of its children.
2. Each neighbour *freezes* the link: what it would send there is kept, and it says DRAINED behind
   its last message.
3. When all have said so, the node has passed everything on. It says LEFT behind its own last
   message, and closes.
4. For its neighbours the link is a *ghost* now: its filters stay, and what matches them is kept.
   The others ask the heir for a place. Such a new link is *muted* until it is complete: the ghost
   keeps what it would get. Then each of its ends gives it what the ghost kept and the other end
   wants, before anything newer. When all have come, or after a while, the ghost goes.

So no message is on its way to a node that is gone, and none is given to the same node twice. Where
somebody does not come, what the ghost kept is counted as dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from regraft.kernels.lane import Lane, Source
from regraft.node.connection import CLOSING, OPEN, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.outflow import Outflow
from regraft.wire import peers

Action: TypeAlias = Callable[[Now], None]
Gone: TypeAlias = Callable[[Connection, Now], None]


@dataclass(slots=True)
class Ghost:
    """A link to a node that leaves or left, and who is expected in its place."""

    c: Connection
    expected: set[bytes]
    at_ns: int  # when it goes at the latest
    mine: bool  # its neighbours come here
    closed: bool = False


class Departure:
    """Both parts: leaving, and being left."""

    def __init__(
        self,
        me: bytes,
        links: dict[int, Connection],
        lane: Lane,
        outflow: Outflow,
        effects: list[Effect],
        deadlines: Deadlines,
        leave_ms: int,
        gone: Gone,
    ) -> None:
        self._me = me
        self._links = links
        self._lane = lane
        self._outflow = outflow
        self._effects = effects
        self._deadlines = deadlines
        self._leave_ns = leave_ms * 1_000_000
        self._gone = gone  # told when a ghost goes
        self._undrained: set[int] | None = None  # links that may still send something, once we go
        self.ghosts: dict[int, Ghost] = {}
        self.waiting: dict[int, list[Ghost]] = {}  # by the new link in place of an old one
        self.handed_over = 0  # messages that went another way than they would have
        # What was routed by now and waits for the disk goes out before the action.
        self.when_safe: Callable[[Action, Now], None] = lambda action, now: action(now)

    # ---------------------------------------------------------------------- leaving

    @property
    def leaving(self) -> bool:
        """Whether this node is about to go."""
        return self._undrained is not None

    @property
    def ending(self) -> bool:
        """Whether a neighbour that leaves may still send something."""
        return any(not ghost.closed for ghost in self.ghosts.values())

    def begin(self, heir: peers.Candidate | None, now: Now) -> None:
        """Leave: tell all neighbours."""
        if self._undrained is not None:
            return
        self._undrained = {key for key in self._links if key not in self.ghosts}
        everybody = tuple(c.node for c in self._links.values())
        for key in self._undrained:
            c = self._links[key]
            frame = peers.Leaving(() if heir is None else (heir,), everybody)
            self._outflow.send(c, frame, now)
        self._deadlines.add(now.ns + self._leave_ns, "leave", 0)
        self._check(now)

    def drained(self, c: Connection, now: Now) -> None:
        """A neighbour sends nothing more."""
        if self._undrained is not None:
            self._undrained.discard(c.key)
            self._check(now)

    def time_is_up(self, now: Now) -> None:
        """Who has not drained by now is left behind."""
        if self._undrained:
            self._effects.append(
                Note("warning", f"{len(self._undrained)} neighbours did not drain in time")
            )
            self._undrained.clear()
            self._check(now)

    def _check(self, now: Now) -> None:
        if self._undrained is not None and not self._undrained:
            self.when_safe(self._leave, now)

    def _leave(self, now: Now) -> None:
        for c in list(self._links.values()):
            if c.state is OPEN and c.key not in self.ghosts:
                self._outflow.flush(c, now)
                self._outflow.send(c, peers.Left(), now)
                c.ending = "left"
                self._outflow.close(c, "this node left", now)

    # ------------------------------------------------------------------- being left

    def announced(self, c: Connection, message: peers.Leaving, now: Now) -> None:
        """A neighbour is about to go."""
        assert c.session is not None
        if c.key in self.ghosts:
            return
        c.session.delivery.frozen = True
        c.outlet.slow = True
        heir = message.heir[0].node if message.heir else b""
        if heir == self._me:
            expected = set(message.neighbours) - {self._me}
        else:
            expected = {heir} if heir else set()
        self.ghosts[c.key] = Ghost(c, expected, now.ns + 2 * self._leave_ns, heir == self._me)
        self._deadlines.add(now.ns + 2 * self._leave_ns, "ghost", c.key)
        self._outflow.send(c, peers.Drained(), now)

    def closed(self, c: Connection, now: Now) -> bool:
        """The connection of a ghost is gone; whether the ghost stays."""
        ghost = self.ghosts.get(c.key)
        if ghost is None:
            return False
        moved = c.key not in self._links  # meanwhile: what it kept went another way
        if moved or not ghost.expected or self.leaving:
            del self.ghosts[c.key]
            return False
        ghost.closed = True
        ghost.at_ns = now.ns + self._leave_ns
        self._deadlines.add(ghost.at_ns, "ghost", c.key)
        return True

    def tick(self, key: int, now: Now) -> None:
        """A ghost that nobody came for goes, and what it kept."""
        ghost = self.ghosts.get(key)
        if ghost is None or now.ns < ghost.at_ns:
            return
        ghost.expected.clear()
        if ghost.closed:
            self._end(ghost, now)
        else:  # it does not go, after all
            del self.ghosts[key]
            self._outflow.close(ghost.c, "it wanted to leave, and did not", now)

    def _end(self, ghost: Ghost, now: Now) -> None:
        self.ghosts.pop(ghost.c.key, None)
        self._gone(ghost.c, now)

    def forget(self, key: int, now: Now) -> None:
        """A link is no more; nothing comes from there, so nobody waits for that."""
        self.ghosts.pop(key, None)
        self.waiting.pop(key, None)
        if self._undrained is not None and key in self._undrained:
            self._undrained.discard(key)
            self._check(now)

    # -------------------------------------------------------------------- in its place

    def added(self, c: Connection) -> None:
        """A new link: does anybody wait for it?"""
        ghosts = [ghost for ghost in self.ghosts.values() if c.node in ghost.expected]
        if ghosts:
            self.waiting[c.key] = ghosts
            c.outlet.muted = True

    def complete(self, c: Connection, now: Now) -> None:
        """A new link is complete: it gets what was kept for it, before anything else."""
        if c.key in self.waiting:
            self.when_safe(partial(self._complete, c), now)

    def _complete(self, c: Connection, now: Now) -> None:
        ghosts = self.waiting.pop(c.key, [])
        c.outlet.muted = False
        if c.state is CLOSING:
            return
        for ghost in ghosts:
            if self.ghosts.get(ghost.c.key) is not ghost:
                continue
            self.hand_over(ghost.c, c, now)
            ghost.expected.discard(c.node)
            if not ghost.expected and ghost.closed:
                assert ghost.c.session is not None
                self._outflow.discard(ghost.c)  # all have what was theirs
                self._end(ghost, now)

    def hand_over(self, old: Connection, new: Connection, now: Now) -> None:
        """What one link kept goes to another, as far as that wants it."""
        assert old.session is not None
        lane = self._lane
        source = Source(old.key)
        source.outlet = old.outlet
        before = lane.forwarded
        lane.only = new.outlet
        for stream, first, data in old.session.delivery.backlog.peek():
            source.resume(stream, first)
            lane.run(source, memoryview(data), 0, now.wall_us)
        lane.only = None
        self.handed_over += lane.forwarded - before
        dirty = lane.take_dirty()
        if dirty:
            self._outflow.deliver(dirty, None, False, now)
