"""Whether what was confirmed at one node came to the mailboxes of the others, once and in order.

This checker knows nothing of the code that it checks, but for what a node says of itself to people:
of which mailboxes elsewhere it knows. What a client sends while its node knows of a mailbox that
wants it, and what is confirmed to the client, is *due* there, whatever dies meanwhile. It must have
come when all has been well for a while. That nothing comes twice, and that what one client says
keeps its order, is seen by the ledger of the node where the mailbox is.

A transaction comes as a whole. When somebody sees the first of it in a mailbox, the rest must be on
the disk there (the ledger looks); and in the end what a mailbox has of it is all or nothing, with
nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from regraft.simulate.checkers import Complaint
from regraft.simulate.ledger import Ledger, Letter, Line
from regraft.simulate.roaming import Roaming

STREAM = "all"


class Where(Protocol):
    """A node with a disk, as far as this checker has to know it."""

    ledger: Ledger

    @property
    def running(self) -> bool:
        """Whether it runs."""

    def custody(self) -> dict[str, Any]:
        """What it says of other nodes' mailboxes."""


@dataclass(slots=True)
class Custodies:
    """What is due where."""

    places: Mapping[str, Where]  # by the name of the node
    due: dict[Letter, set[tuple[str, str]]] = field(default_factory=dict)
    transactions: list[tuple[Letter, ...]] = field(default_factory=list)
    roaming: dict[str, Roaming] = field(default_factory=dict)  # mailboxes that move, by name
    final: bool = False  # all nodes with disks run, and nothing fails any more

    def sent(self, name: str, letter: Letter) -> None:
        """A client sends something to a node."""
        for box in self.roaming.values():
            if box.made and box.first == name:
                box.sent(letter)
        for row in self.places[name].custody()["rows"]:
            for mailbox in row["mailboxes"]:
                if mailbox in self.roaming:
                    self.roaming[mailbox].sent(letter)
                line = self._line(row["node"], mailbox)
                if line is not None and line.wants(letter):
                    self.due.setdefault(letter, set()).add((row["node"], mailbox))

    def is_due(self, name: str, line: Line, letter: Letter) -> bool:
        """Whether a line of a node has to get a letter, as far as that is sure."""
        place = self.places[name]
        if letter.mark in place.ledger.letters:  # it was sent to this very node
            return 0 <= line.stands_ns <= letter.sent_ns
        title = STREAM if line is place.ledger.stream else line.name
        return (name, title) in self.due.get(letter, ())

    def _line(self, name: str, mailbox: str) -> Line | None:
        place = self.places.get(name)
        if place is None:
            return None
        if mailbox == STREAM:
            return place.ledger.stream
        return place.ledger.current.get(mailbox)

    def unsettled(self) -> Iterator[Complaint]:
        """What still has to come."""
        if not self.final:
            return
        for name, place in self.places.items():
            if not place.running:
                continue
            said = place.custody()
            for row in [*said["rows"], *said.get("moves", ())]:
                if row.get("waiting"):
                    text = f"{row['waiting']} messages of {name} wait for {row['node']}"
                    yield Complaint("custody", text)
            if said.get("asked"):
                yield Complaint("custody", f"{said['asked']} mailboxes do not come to {name}")

    def judge(self) -> Iterator[Complaint]:
        """It is over, and everybody has looked at what is there."""
        if not self.final:
            return
        for letter, lines in self.due.items():
            for name, mailbox in sorted(lines) if letter.confirmed_ns >= 0 else ():
                line = self._line(name, mailbox)
                if line is not None and letter not in line.places:
                    text = f"{letter} was confirmed, and never came to {mailbox} of {name}"
                    yield Complaint("custody", text)
        for box in self.roaming.values():
            yield from box.judge()
        for place in self.places.values():
            for one in (place.ledger.stream, *place.ledger.current.values()):
                for letters in self.transactions:
                    yield from _whole(place.ledger, one, letters)


def _whole(ledger: Ledger, line: Line, letters: tuple[Letter, ...]) -> Iterator[Complaint]:
    """All of a transaction or nothing, and nothing in between."""
    wanted = ledger.mates_in(line, letters[0])
    found = sorted(line.places[letter] for letter in wanted if letter in line.places)
    if found and len(found) < len(wanted):
        text = f"{line.name} has {len(found)} of {len(wanted)} letters of a transaction"
        yield Complaint("atomicity", f"{text}: {letters[0]} and others")
    elif found and found[-1] - found[0] >= len(found):
        text = f"{line.name} has something between the letters of a transaction"
        yield Complaint("atomicity", f"{text}: {letters[0]} and others, at {found}")
