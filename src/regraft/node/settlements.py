"""What becomes of messages in members' hands: they say it, or somebody clears up."""

from __future__ import annotations

from regraft.errors import RegraftError
from regraft.journal.format import Range
from regraft.journal.journal import Journal
from regraft.journal.streams import Mailbox
from regraft.node.box import Box, Member, Told
from regraft.node.boxes import Boxes
from regraft.node.deadlines import Deadlines
from regraft.node.event import Now


class Settlements:
    """Accepts, releases, rejects and extends."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._journal: Journal = boxes.journal
        self._deadlines: Deadlines = boxes.deadlines

    def accept(self, box: Box, member: Member, ranges: list[Range], now: Now) -> None:
        """A member is done with messages.

        What it does not have counts, too, if it came back or may have been delivered before a
        crash, and nobody else has it now: so a client may repeat what it said of those.
        """
        done: list[Range] = []
        for first, last in ranges:
            at = first
            for low, high, _ in member.hand.take(first, last):
                done += self._in_no_hand(box, at, low - 1)
                done.append((low, high))
                at = high + 1
            done += self._in_no_hand(box, at, last)
        if done:
            self._journal.settle(box.mailbox.number, done, now.wall_us)

    def _in_no_hand(self, box: Box, first: int, last: int) -> list[Range]:
        """What of a range was delivered once and waits to be delivered again."""
        mailbox = box.mailbox
        if first > last or not (mailbox.returned or first <= box.marked):
            return []
        found = [
            (one, one)
            for one in sorted(mailbox.returned)
            if max(first, box.marked + 1) <= one <= last
        ]
        found += mailbox.unsettled(first, min(last, box.marked))
        members = box.members.values()
        taken = [piece[:2] for member in members for piece in member.hand.overlap(first, last)]
        waiting = (one.sequence for member in members for one in member.parked)
        taken += ((one, one) for one in (*box.dying, *waiting) if first <= one <= last)
        for low, high in taken:
            found = [
                rest
                for start, end in found
                for rest in ((start, min(end, low - 1)), (max(start, high + 1), end))
                if rest[0] <= rest[1]
            ]
        return found

    def release(
        self,
        box: Box,
        member: Member,
        ranges: list[Range],
        now: Now,
        delay_ms: int,
        counts: bool,
        barred: bool,
    ) -> None:
        """A member gives messages back."""
        pieces = [piece for span in ranges for piece in member.hand.take(*span)]
        if barred:
            for first, last, _ in pieces:
                member.barred.update(range(first, last + 1))
        self._boxes.give_back(box, pieces, now, delay_ms, counts)

    def reject(
        self, box: Box, member: Member, ranges: list[Range], text: str, now: Now, then: Told
    ) -> None:
        """Nobody is to get these any more; `then` is called when all of them are buried."""
        pieces = [piece for span in ranges for piece in member.hand.take(*span)]
        left = sum(last - first + 1 for first, last, _ in pieces)
        if not left:
            then(None, now)
            return
        failed: RegraftError | None = None

        def one_less(error: RegraftError | None, now: Now) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if not left:
                then(failed, now)

        for first, last, held in pieces:
            told = held._replace(attempts=held.attempts + 1)
            for sequence in range(first, last + 1):
                self._boxes.condemn(box, sequence, told, "rejected", text, now, one_less)

    def extend(
        self, box: Box, member: Member, ranges: list[Range], delay_ms: int, now: Now
    ) -> None:
        """A member needs more time."""
        lease_ms = delay_ms or box.mailbox.options.lease_ms
        if not lease_ms:
            return
        lease_ns = now.ns + lease_ms * 1_000_000
        for span in ranges:
            for first, last, held in member.hand.take(*span):
                member.hand.add(first, last, held._replace(lease_ns=lease_ns))
        self._deadlines.add(lease_ns, "lease", box.mailbox.number)

    def purge(self, box: Box, now: Now) -> int:
        """Settle all that nobody has in its hands; how many that were."""
        mailbox = self._journal.refresh(box.mailbox)
        assert isinstance(mailbox, Mailbox)
        kept = sorted(p[:2] for m in box.members.values() for p in m.hand)
        kept += [(one, one) for one in box.dying]
        ranges: list[Range] = []
        at = mailbox.floor
        for first, last in sorted(kept):
            if first > at:
                ranges.append((at, first - 1))
            at = max(at, last + 1)
        if at < mailbox.next_sequence:
            ranges.append((at, mailbox.next_sequence - 1))
        for member in box.members.values():
            member.parked = []
        return self._journal.settle(mailbox.number, ranges, now.wall_us)
