"""Counted replies: what a node remembers of questions that went through it.

A *question* came from one neighbour, the asker, and went to others, its *branches*: links, and
clients of this node that may reply. Replies go back to the asker. A branch is over when it says so;
it says how many replies it sent, and whether those were all.

Rules:

- A question is complete if every branch said that it is, and sent as many replies as came. All else
  is not complete: a branch that was lost, that took too long, that could not be asked, or whose
  replies were not all passed on. So nothing that goes wrong can look like an end.
- A question that comes once more by another way has no branches here: those it has are counted on
  the way that it came by first.
- What is remembered is bounded by the number of questions and of branches; each has an end in time.
  Ids of questions that are over are remembered for a while, up to `KNOWN_MAX` of them.

Bugs that tests plant: "dead-is-done", a branch that was lost counts as one that is done;
"late-is-done", the same of one that took too long.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

KNOWN_MAX = 100_000  # and again as many that are older


@dataclass(slots=True)
class Pending:
    """A question that is not over."""

    id: bytes
    number: int  # what it is called at this node
    asker: int  # a connection
    token: int  # what the asker calls it, if that is a client
    ends_ns: int
    branches: dict[int, int] = field(default_factory=dict)  # that are open; replies that came
    uncounted: set[int] = field(default_factory=set)  # that did not say how many may reply
    repliers: int = 0
    replies: int = 0  # that were passed on
    complete: bool = True
    reason: str = ""

    def spoil(self, reason: str) -> None:
        """It cannot be complete any more; the first reason is told."""
        self.complete = False
        self.reason = self.reason or reason


class Replies:
    """All questions of a node that are not over."""

    def __init__(self, bugs: frozenset[str] = frozenset()) -> None:
        self.bugs = bugs
        self.by_id: dict[bytes, Pending] = {}
        self.by_number: dict[int, Pending] = {}
        self.branches = 0  # of all of them
        self._of: dict[int, set[int]] = {}  # by connection: those it asks or is to answer
        self._asked: dict[int, int] = {}  # by connection: how many it asks
        self._tokens: dict[tuple[int, int], Pending] = {}  # by connection and token
        self._ends: list[tuple[int, int]] = []  # a heap of moments and numbers; some are over
        self._known: dict[bytes, None] = {}
        self._older: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def knows(self, id: bytes) -> bool:
        """Whether a question was here before; it was from now on."""
        known = id in self._known or id in self._older
        if len(self._known) >= KNOWN_MAX:
            self._older, self._known = self._known, {}
        self._known[id] = None
        return known

    def asked_by(self, key: int) -> int:
        """How many questions of a connection are not over."""
        return self._asked.get(key, 0)

    def find(self, asker: int, token: int) -> Pending | None:
        """The question that an asker calls so."""
        return self._tokens.get((asker, token))

    def open(self, pending: Pending, links: Iterable[int], clients: Iterable[int]) -> None:
        """Remember a question, and the branches that it went to."""
        for key in links:
            pending.branches[key] = 0
            pending.uncounted.add(key)
        for key in clients:
            pending.branches[key] = 0
            pending.repliers += 1
        self.by_id[pending.id] = self.by_number[pending.number] = pending
        if pending.token:
            self._tokens[pending.asker, pending.token] = pending
        self.branches += len(pending.branches)
        self._asked[pending.asker] = self._asked.get(pending.asker, 0) + 1
        if len(self._ends) > 2 * len(self.by_id) + 64:
            self._ends = [(one.ends_ns, one.number) for one in self.by_id.values()]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, (pending.ends_ns, pending.number))
        for key in (pending.asker, *pending.branches):
            self._of.setdefault(key, set()).add(pending.number)

    def close(self, pending: Pending) -> None:
        """A question is over."""
        del self.by_id[pending.id], self.by_number[pending.number]
        self._tokens.pop((pending.asker, pending.token), None)
        self._asked[pending.asker] -= 1
        if not self._asked[pending.asker]:
            del self._asked[pending.asker]
        for key in list(pending.branches):
            self._leave(pending, key)
        self._drop(pending.asker, pending.number)

    def _leave(self, pending: Pending, key: int) -> None:
        del pending.branches[key]
        self.branches -= 1
        if key != pending.asker:
            self._drop(key, pending.number)

    def _drop(self, key: int, number: int) -> None:
        numbers = self._of.get(key)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._of[key]

    # ------------------------------------------------------------- what branches say

    def count(self, pending: Pending, key: int, repliers: int) -> bool:
        """A branch says how many may reply; whether it was the last to say so."""
        if key not in pending.uncounted:
            return False
        pending.uncounted.discard(key)
        pending.repliers += repliers
        return not pending.uncounted

    def end(
        self,
        pending: Pending,
        key: int,
        repliers: int,
        replies: int,
        complete: bool,
        reason: str,
    ) -> bool:
        """A branch is over, by its own word; whether the question is."""
        came = pending.branches[key]
        if key in pending.uncounted:
            pending.uncounted.discard(key)
            pending.repliers += repliers
        if not complete:
            pending.spoil(reason or "a branch is not complete")
        elif replies != came:
            pending.spoil("replies were lost on the way")
        self._leave(pending, key)
        return not pending.branches

    def lose(self, key: int) -> tuple[list[Pending], list[Pending], list[Pending]]:
        """A connection is gone: the questions that are over by that, those that nobody asks now,
        and those of which the other branches are counted.
        """
        over: list[Pending] = []
        orphaned: list[Pending] = []
        counted: list[Pending] = []
        for number in sorted(self._of.get(key, ())):
            pending = self.by_number[number]
            if pending.asker == key:
                orphaned.append(pending)
                continue
            if "dead-is-done" not in self.bugs:
                pending.spoil("somebody who was to reply is gone")
            was_last = pending.uncounted == {key}
            pending.uncounted.discard(key)
            self._leave(pending, key)
            if not pending.branches:
                over.append(pending)
            elif was_last:
                counted.append(pending)
        return over, orphaned, counted

    @property
    def next_ns(self) -> int | None:
        """When to call `expire` at the latest."""
        return self._ends[0][0] if self._ends else None

    def expire(self, now_ns: int) -> list[Pending]:
        """It is so late: the questions whose time is over, whoever has not replied."""
        over: list[Pending] = []
        while self._ends and self._ends[0][0] <= now_ns:
            pending = self.by_number.get(heapq.heappop(self._ends)[1])
            if pending is not None:
                late = len(pending.branches)
                if "late-is-done" not in self.bugs:
                    pending.spoil(f"not all replied in time: {late} to go at one node")
                over.append(pending)
        return over
