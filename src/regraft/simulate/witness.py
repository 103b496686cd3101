"""Whoever looks on while a node with a journal works, and looks at what it holds in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from regraft.kernels.inbox import Inbox, ReceivedMessage
from regraft.simulate.ledger import Box, Ledger
from regraft.simulate.regular import Reading, Regular
from regraft.simulate.world import Broker
from regraft.wire import native

AUDIT_MS = 50  # between two looks
AUDIT_ROUNDS = 400
Said: TypeAlias = ReceivedMessage | native.Confirmed | native.Error


class Witness:
    """Reads what a node writes to clients, at the moment at which it does."""

    def __init__(self) -> None:
        self._inboxes: dict[int, Inbox] = {}  # by connection

    def read(self, key: int, data: bytes) -> Iterator[Said]:
        """Messages, confirmations and errors in what is written to a connection, in order."""
        inbox = self._inboxes.setdefault(key, Inbox(1 << 26, native.read_transfer))
        for kind, content, _ in inbox.feed(data):
            if isinstance(kind, tuple):
                yield from content
            elif kind in (native.Kind.CONFIRMED, native.Kind.ERROR):
                yield native.decode(kind, content)


def audit(
    auditor: Regular, broker: Broker, boxes: Sequence[tuple[str, str, int]], final: bool
) -> Reading:
    """See what every mailbox and the stream hold; settle it; at last nothing must be left.

    The auditor is connected to the broker. What comes back is its reading of the stream.
    """
    ledger = auditor.ledger
    readings = [auditor.attach(ledger.box(*named), 10_000) for named in boxes]
    replay = auditor.replay(sequence=1)
    rounds = 0
    while rounds < AUDIT_ROUNDS and (not rounds or _unread(auditor, readings)):
        ledger.world.advance(AUDIT_MS)
        rounds += 1
        for reading in readings:
            if not final and reading.held:
                _check_held(ledger, reading)
                auditor.settle(reading, list(reading.held), True)
    for reading in readings:
        box = reading.box
        assert box is not None
        if not reading.stands or reading.tokens:
            ledger.complain(f"{box.name} does not answer at the end")
        if final and (reading.waiting or reading.held):
            ledger.complain(f"{box.name} still holds {reading.waiting} at the end")
        if not final and (left := box.owed()):
            ledger.complain(f"{box.name} lost {sorted(left)[:5]}, which was not settled")
    unconfirmed = broker.node.report("journal", 1)["unconfirmed"]
    if unconfirmed:
        ledger.complain(f"{unconfirmed} confirmations wait at the end")
    auditor.go()
    return replay


def _unread(auditor: Regular, readings: list[Reading]) -> bool:
    """Whether something came since the last look."""
    before = auditor.looked
    auditor.looked = (auditor.taken, sum(len(one.tokens) for one in readings))
    return auditor.looked != before or auditor.looked[1] > 0


def _check_held(ledger: Ledger, reading: Reading) -> None:
    box: Box | None = reading.box
    assert box is not None
    if settled := box.settled & reading.held.keys():
        ledger.complain(f"{box.name} still has {sorted(settled)[:5]}, which was settled")
