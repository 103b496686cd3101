"""What is known of a mailbox that is read: its members, and what is where.

A message is settled, or in one hand, or came back, or is parked for a member, or stands in a line
that has not reached it yet: one of these, never two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from regraft.errors import RegraftError
from regraft.journal.ranges import Ranges
from regraft.journal.streams import Mailbox
from regraft.node.event import Now
from regraft.node.hand import Hand, Tally
from regraft.node.reading import Reading

Then = Callable[[Now], None]
Told = Callable[[RegraftError | None, Now], None]  # why it was not done, if so


class Parked(NamedTuple):
    """A message that waits for one member."""

    sequence: int
    attempts: int
    priority: int


@dataclass(slots=True, eq=False)
class Member:
    """One who reads a mailbox."""

    key: int  # of its connection
    id: int  # of the subscription, there
    ids: bytes  # the same, as transfer headers have it
    client: str
    in_flight: int  # how many it may have in its hands
    hand: Hand
    stands: bool = False  # it was told so
    ticket: int = 0  # of its place among those who may have room; 0: it has none,
    offered: int = 0  # and with how many in its hand it stands there
    barred: set[int] = field(default_factory=set)  # what it does not want again
    burials: int = 0  # rejections under way, and what is to be said when they are done
    after: list[Then] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)  # what only it may get, and has no room for


@dataclass(slots=True, eq=False)
class Box:
    """A mailbox that is or was read."""

    mailbox: Mailbox
    marked: int  # what stands before or at it may have been delivered before a crash
    bound: int  # deliveries may go so far
    members: dict[tuple[int, int], Member] = field(default_factory=dict)
    free: list[tuple[int, int, Member]] = field(default_factory=list)  # a heap: held, ticket, who
    tally: Tally = field(default_factory=Tally)
    lines: dict[int, Reading] = field(default_factory=dict)  # by priority
    side: Reading | None = None  # for what came back
    ready: list[tuple[int, int]] = field(default_factory=list)  # a heap: -priority, sequence
    later: list[tuple[int, int]] = field(default_factory=list)  # a heap: due, sequence
    early: Ranges = field(default_factory=Ranges)  # came back before a crash: lines pass over it
    alarm_us: int = 0  # when something is to be looked at again
    # On its way to the dead letters, or kept for a transaction that is prepared:
    dying: set[int] = field(default_factory=set)
    buckets: dict[int, Member] = field(default_factory=dict)  # of keys: who gets them
    reaching: object = None  # that is on its way to the journal
    pulling: bool = False
    dead: int = 0
    expired: int = 0

    @property
    def held(self) -> int:
        """Messages in all hands."""
        return self.tally.count

    @property
    def returned(self) -> int:
        """Messages that came back and wait for their turn."""
        known = self.mailbox.returned
        return sum(1 for _, sequence in (*self.ready, *self.later) if sequence in known)

    def active(self) -> Iterable[Member]:
        """The members that get messages."""
        standing = [member for member in self.members.values() if member.stands]
        return standing[:1] if self.mailbox.options.exclusive else standing
