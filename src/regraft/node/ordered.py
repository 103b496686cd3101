"""Mailboxes with an order by key: messages with the same key go to the same member, in order.

Keys are put into buckets, and a bucket belongs to a member as long as that is there. What is for a
member that has no room is parked; when very much is, everybody waits.
"""

from __future__ import annotations

import heapq

from regraft.kernels.checksum import crc32c
from regraft.kernels.replay import keyed
from regraft.node.box import Box, Member, Parked
from regraft.node.boxes import NEVER, Boxes, priorities
from regraft.node.event import Now
from regraft.node.reading import Reading
from regraft.wire import native

BUCKETS = 4096
PARKED_MAX = 10_000
AT_ONCE = 256

Letter = tuple[int, bytes, bytes]  # sequence, frame, key


class Ordered:
    """Serves mailboxes that have keys."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    def serve(self, box: Box, now: Now) -> bool:
        """Deliver some messages; whether to go on."""
        boxes = self._boxes
        boxes.ripen(box, now)
        for member in box.active():
            if member.parked and boxes.room(box, member) > 0:
                verdict = self._serve_parked(box, member, now)
                if verdict is not None:
                    return verdict
        if sum(len(member.parked) for member in box.members.values()) >= PARKED_MAX:
            return False
        if boxes.choose(box) is None:
            return False
        for priority in priorities(box):
            if box.ready and -box.ready[0][0] == priority:
                return self._serve_returned(box, now)
            line = boxes.line_with_more(box, priority)
            if line is None:
                continue
            if not boxes.may_reach(box, line.next_sequence, now):
                return False
            found = boxes.readings.look(line, now)
            if found is not None:
                if not boxes.fill(box, line, found, AT_ONCE, boxes.limits.write_bytes, b"", now):
                    return False
                self._spread(box, line, line.reader.delivery_count, priority, now)
                return True
            if not line.idle:
                return False
        return False

    def _letters(self, box: Box, line: Reading) -> list[Letter]:
        reader = line.reader
        if not reader.messages:
            return []
        runs = list(reader.runs)
        data = b"".join(reader.out())
        frames = keyed(data, box.mailbox.options.order_by.encode())
        sequences = [first + k for first, count in runs for k in range(count)]
        return [
            (sequence, data[start:end], key)
            for sequence, (start, end, key) in zip(sequences, frames, strict=True)
        ]

    def _spread(self, box: Box, line: Reading, attempts: int, priority: int, now: Now) -> None:
        """Give messages to the members of their keys, or park them for these."""
        given: dict[Member, list[Letter]] = {}
        for letter in self._letters(box, line):
            member = self._member(box, letter[2])
            if letter[0] in member.barred:
                member = self._boxes.choose(box, letter[0]) or member
            mine = given.setdefault(member, [])
            if not member.parked and self._boxes.room(box, member) > len(mine):
                mine.append(letter)
            else:
                member.parked.append(Parked(letter[0], attempts, priority))
        for member, letters in given.items():
            if letters:
                self._hand_out(box, member, letters, attempts, priority, now)

    def _member(self, box: Box, key: bytes) -> Member:
        """To whom a key belongs: to the one with the fewest, if it belongs to nobody yet."""
        bucket = crc32c(key) % BUCKETS
        member = box.buckets.get(bucket)
        if member is None:
            taken = list(box.buckets.values())
            member = min(box.active(), key=taken.count)
            box.buckets[bucket] = member
        return member

    def _hand_out(
        self,
        box: Box,
        member: Member,
        letters: list[Letter],
        attempts: int,
        priority: int,
        now: Now,
    ) -> None:
        pieces: list[bytes | memoryview] = []
        run: list[Letter] = []
        for letter in [*letters, None]:
            if run and (letter is None or letter[0] != run[-1][0] + 1):
                first, last = run[0][0], run[-1][0]
                self._boxes.entrust(box, member, first, last, attempts, priority, now)
                header = native.Transfer(
                    len(run), (member.id,), first_sequence=first, delivery_count=attempts
                )
                pieces += [native.encode(header), *(frame for _, frame, _ in run)]
                run = []
            if letter is not None:
                run.append(letter)
        size = sum(len(frame) for _, frame, _ in letters)
        self._boxes.hand_out(member, pieces, len(letters), size, now)

    def _serve_returned(self, box: Box, now: Now) -> bool:
        boxes = self._boxes
        sequence = box.ready[0][1]
        if not box.mailbox.unsettled(sequence, sequence) or sequence in box.dying:
            heapq.heappop(box.ready)
            return True
        if boxes.choose(box, sequence) is None and any(sequence in m.barred for m in box.active()):
            boxes.put_off(box, now)
            return True
        side = boxes.side_of(box, sequence)
        if boxes.readings.look(side, now) is None:
            return False
        rank, _ = heapq.heappop(box.ready)
        attempts = box.mailbox.returned.get(sequence, NEVER).attempts
        return self._fetch(box, side, sequence, attempts, -rank, now)

    def _fetch(
        self, box: Box, side: Reading, sequence: int, attempts: int, priority: int, now: Now
    ) -> bool:
        """Read one message aside, and give it to whom it belongs."""
        boxes = self._boxes
        found = boxes.readings.look(side, now)
        if found is None:
            return False
        side.reader.skip = []
        side.reader.delivery_count = attempts
        most = boxes.limits.write_bytes
        if not boxes.readings.fill(side, found, sequence + 1, 1, most, b"", now):
            return False
        if side.next_sequence <= sequence:  # it stands further on
            return self._fetch(box, side, sequence, attempts, priority, now)
        self._spread(box, side, attempts, priority, now)
        return boxes.missed(box, side, priority, now)

    def _serve_parked(self, box: Box, member: Member, now: Now) -> bool | None:
        boxes = self._boxes
        one = member.parked[0]
        if not box.mailbox.unsettled(one.sequence, one.sequence) or one.sequence in box.dying:
            member.parked.pop(0)
            return True
        side = boxes.side_of(box, one.sequence)
        found = boxes.readings.look(side, now)
        if found is None:
            return False
        side.reader.skip = []
        most = boxes.limits.write_bytes
        if not boxes.readings.fill(side, found, one.sequence + 1, 1, most, b"", now):
            return False
        if side.next_sequence <= one.sequence:
            return True  # it stands further on
        member.parked.pop(0)
        letters = self._letters(box, side)
        if letters:
            self._hand_out(box, member, letters, one.attempts, one.priority, now)
        return boxes.missed(box, side, one.priority, now)
