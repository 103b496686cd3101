"""Contexts of guests: on which floor each of them is, by its own word.

A message or a question may be for one floor only: for receivers with that context. A context counts
for certain from when the guest's node has answered until the guest says another one; before and
after that, for as long as words are on their way, either may count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regraft.model.message import Message

MS = 1_000_000
AT_ONCE_NS = 300 * MS  # from a client to its node and back, at most
ANY = -1
FLOORS = 3
_WHERE = "ctx.floor = "


def where(floor: int) -> str:
    """The selector of a message for one floor."""
    return f"{_WHERE}{floor}" if floor != ANY else ""


def floor_of(message: Message) -> int:
    """The floor that a message is for."""
    return int(message.where.removeprefix(_WHERE)) if message.where else ANY


@dataclass(slots=True)
class Floor:
    """A context of a guest: from when it was said, and since when it is known to be in force."""

    floor: int
    said_ns: int
    known_ns: int = -1


@dataclass(slots=True)
class Floors:
    """Where guests were."""

    said: dict[str, list[Floor]] = field(default_factory=dict)

    def moves(self, guest: str, floor: int, ns: int) -> Floor:
        """A guest says that its context is another one."""
        said = Floor(floor, ns)
        self.said.setdefault(guest, []).append(said)
        return said

    def on(self, guest: str) -> int:
        """The floor that a guest said last."""
        floors = self.said.get(guest)
        return floors[-1].floor if floors else ANY

    def may_be_on(self, guest: str, floor: int, ns: int) -> bool:
        """Whether this may have been a guest's context, as its node saw it, just before."""
        floors = self.said.get(guest, [])
        for place, one in enumerate(floors):
            after = floors[place + 1] if place + 1 < len(floors) else None
            over = after is not None and 0 <= after.known_ns < ns - AT_ONCE_NS
            if one.floor == floor and one.said_ns <= ns and not over:
                return True
        return False

    def stays_on(self, guest: str, floor: int, since_ns: int, until_ns: int) -> bool:
        """Whether this was a guest's context, for certain, all the time between two moments."""
        before = [one for one in self.said.get(guest, ()) if one.said_ns <= until_ns]
        if not before or before[-1].floor != floor:
            return False
        return 0 <= before[-1].known_ns <= since_ns
