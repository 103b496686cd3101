"""What was appended together: mailboxes know it, so that it goes to other nodes together, too."""

from __future__ import annotations

from collections.abc import Iterable

from regraft.journal.journal import Journal
from regraft.journal.streams import Mailbox

Begun = list[tuple[Mailbox, int, int]]  # and its next sequence and size, before


def begin(journal: Journal, slots: Iterable[int]) -> Begun:
    """Streams with these slots are about to get something that counts together."""
    found: Begun = []
    for stream in map(journal.by_slot, slots):
        if isinstance(stream, Mailbox):
            journal.refresh(stream)
            found.append((stream, stream.next_sequence, stream.size))
    return found


def end(journal: Journal, begun: Begun) -> None:
    """They have got it."""
    for mailbox, first, size in begun:
        if journal.by_slot(mailbox.slot) is mailbox:  # or it was removed at the same time
            journal.refresh(mailbox)
            if mailbox.next_sequence > first + 1:
                mailbox.join(first, mailbox.next_sequence - 1, size, mailbox.size)
