"""Mailboxes that are read: who gets which message, and when it comes again.

A mailbox has *members*. Each message goes to one of them, in the order of priority and then of
arrival; what comes back unsettled is delivered again, before others of its priority. Nothing that
waits is in memory: there is a *line* for each priority, a reading of the mailbox's stream that
takes only messages of that priority. In memory is what members have in their hands, and what came
back.

Rules:

- What was delivered may have to be marked as such after a crash. So nothing is delivered behind
  `bound` before the journal has it that deliveries may go so far.
- A box stays when its last member leaves: its lines go on where they were.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from regraft.journal.format import PRIORITY
from regraft.journal.journal import Journal
from regraft.journal.streams import Back, Mailbox, Stream
from regraft.kernels.replay import Reader
from regraft.limits import Limits
from regraft.node.box import Box, Member, Then, Told
from regraft.node.connection import CLOSING, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.event import Now
from regraft.node.hand import Held, Piece
from regraft.node.outflow import Outflow
from regraft.node.reading import Found, Reading, Readings

AHEAD = 10_000  # deliveries may go so far before the journal is told again
LOOKED_AT = 8192  # sequences of a line, at a time
FREE_MIN = 64  # entries of a heap, before those are thrown out that are out of date
SHARE_MAX = 256  # messages for one of several members, at a time
PRIORITIES = range(9, -1, -1)
COMMON = (PRIORITY,)
NEVER = Back(0, 0, PRIORITY)  # it did not come back
BARRED_US = 1_000_000  # what nobody wants is offered again, after a while

Run = tuple[int, int, int, int, int]  # first, last, attempts, due, priority: of what came back


@dataclass(slots=True)
class Boxes:
    """All mailboxes that are or were read since the node was started."""

    journal: Journal
    readings: Readings
    outflow: Outflow
    connections: dict[int, Connection]
    deadlines: Deadlines
    limits: Limits
    when_safe: Callable[[Then, Now, Then | None], None]
    give_up: Callable[[Box, str, Now], None]
    bury: Callable[[Box, int, Held, str, str, Now, Told | None], None]
    ordered: Callable[[Box, Now], bool] | None = None  # serves those with keys
    boxes: dict[int, Box] = field(default_factory=dict)  # by number
    blocked: dict[int, dict[Member, Box]] = field(default_factory=dict)  # wait for a connection
    handed: dict[int, int] = field(default_factory=dict)  # by connection: bytes in this step
    members: dict[int, dict[int, tuple[Box, Member]]] = field(default_factory=dict)
    last_ticket: int = 0

    # ------------------------------------------------------------------------ members

    def box(self, mailbox: Mailbox) -> Box:
        """The box of a mailbox; made when it is read for the first time."""
        box = self.boxes.get(mailbox.number)
        if box is None:
            self.journal.refresh(mailbox)
            box = Box(mailbox, mailbox.delivered, mailbox.delivered)
            self.boxes[mailbox.number] = box
            for one in self.journal.state.prepared.values():
                for number, first, last, *_ in one.what.accepted:
                    if number == mailbox.number:  # nobody gets it before that is decided
                        box.early.add(first, last)
                        box.dying.update(range(first, last + 1))
            for sequence, back in mailbox.returned.items():
                if sequence not in box.dying:
                    box.early.add(sequence, sequence)
                    self._push(box, sequence, back)
            self._line(box, PRIORITY, mailbox.floor)
        return box

    def join(self, box: Box, member: Member, now: Now) -> None:
        """One more member; it gets messages once it stands."""
        if not box.members:
            self._reach(box, box.lines[PRIORITY].next_sequence, now)
        box.members[member.key, member.id] = member
        self.members.setdefault(member.key, {})[member.id] = box, member

    def get(self, key: int, id: int) -> tuple[Box, Member] | None:
        """The member of a subscription, if there is one."""
        return self.members.get(key, {}).get(id)

    def leave(self, box: Box, member: Member, now: Now, counts: bool = True) -> None:
        """It is gone: what it had goes to the others, as one more attempt if that counts."""
        del box.members[member.key, member.id]
        mine = self.members[member.key]
        del mine[member.id]
        if not mine:
            del self.members[member.key]
            self.blocked.pop(member.key, None)
        elif member.key in self.blocked:
            self.blocked[member.key].pop(member, None)
        member.stands = False
        member.ticket = 0
        box.buckets = {key: one for key, one in box.buckets.items() if one is not member}
        self.give_back(box, member.hand.take_all(), now, counts=counts, back_off=False)
        self._unpark(box, member)
        if not box.members and not box.dying and not self.journal.broken:
            self.rest(box, now)
        self.pull(box, now)

    def rest(self, box: Box, now: Now) -> None:
        """Nobody has anything of it in its hands."""
        # What was delivered came back or is settled; what was so before a crash may not be.
        lines = [line.next_sequence for line in box.lines.values()]
        lines += [rank.low for key, rank in box.mailbox.ranks.items() if key not in box.lines]
        marked = box.marked if min(lines) <= box.marked else 0
        self.journal.detach(box.mailbox.number, marked, now.wall_us)
        box.bound, box.reaching = 0, None

    def _unpark(self, box: Box, member: Member) -> None:
        """Anybody may have what only this member was to get."""
        for sequence, attempts, priority in member.parked:
            if attempts:
                box.mailbox.returned.setdefault(sequence, Back(attempts, 0, priority))
            heapq.heappush(box.ready, (-priority, sequence))
        member.parked = []

    def changed(self, box: Box, now: Now) -> None:
        """Its options are others."""
        if not box.mailbox.options.order_by:
            for member in box.members.values():
                self._unpark(box, member)
            box.buckets = {}
        self.pull(box, now)

    def forget(self, box: Box) -> None:
        """The mailbox is gone."""
        for reading in [*box.lines.values(), *([box.side] if box.side is not None else [])]:
            self.readings.end(reading)
        del self.boxes[box.mailbox.number]

    def resume(self, key: int, now: Now) -> None:
        """A connection may have room again."""
        waiting = self.blocked.get(key)
        c = self.connections.get(key)
        if not waiting or c is None or c.state is CLOSING or c.session is None:
            return
        while waiting and self._takes_more(c):
            member = next(iter(waiting))
            box = waiting.pop(member)  # if it has more than it may give now, it is the last then
            self.offer(box, member)
            self.pull(box, now)

    def wake(self, touched: Iterable[tuple[Stream, int]], now: Now) -> None:
        """More of these was persisted."""
        for stream, _ in touched:
            box = self.boxes.get(stream.number)
            if box is not None and box.members:
                self.pull(box, now)

    # --------------------------------------------------------------------- deliveries

    def pull(self, box: Box, now: Now) -> None:
        """Deliver, as long as there is something, and somebody has room for it."""
        if box.pulling or not box.members:
            return
        box.pulling = True
        self.journal.refresh(box.mailbox)
        try:
            serve: Callable[[Box, Now], bool] = self._serve
            if box.mailbox.options.order_by and self.ordered is not None:
                serve = self.ordered
            while box.members and serve(box, now):
                pass
        finally:
            box.pulling = False
        for line in box.lines.values():
            self.readings.let_go(line)

    def _serve(self, box: Box, now: Now) -> bool:
        """Deliver some messages to the member that has least; whether to go on."""
        member = self.choose(box)
        if member is None:
            return False
        self.ripen(box, now)
        for priority in priorities(box):
            while box.ready and -box.ready[0][0] == priority:
                verdict = self._serve_returned(box, member, now)
                if verdict is not None:
                    return verdict
            line = self.line_with_more(box, priority)
            if line is None:
                continue
            if not self.may_reach(box, line.next_sequence, now):
                return False
            found = self.readings.look(line, now)
            if found is not None:
                return self._take(box, member, line, priority, found, now)
            if not line.idle:
                return False  # it will go on when the disk has answered
        return False

    def choose(self, box: Box, sequence: int = 0) -> Member | None:
        """The member with the fewest messages in its hands that can take one now."""
        if box.mailbox.options.exclusive:
            able = (m for m in box.active() if self.room(box, m) > 0 and sequence not in m.barred)
            return next(able, None)
        found: Member | None = None
        unwilling: list[Member] = []
        while box.free and found is None:
            count, ticket, member = box.free[0]
            if ticket != member.ticket:
                heapq.heappop(box.free)
            elif self.room(box, member) <= 0:  # it is offered again when it has some
                heapq.heappop(box.free)
                member.ticket = 0
            elif count < member.hand.count or sequence in member.barred:
                heapq.heappop(box.free)
                member.ticket = 0
                if sequence in member.barred:
                    unwilling.append(member)
                else:
                    self.offer(box, member)
            else:
                found = member
        for member in unwilling:
            self.offer(box, member)
        return found

    def offer(self, box: Box, member: Member) -> None:
        """A member may have room, or more than before."""
        held = member.hand.count
        if not member.stands or (member.ticket and member.offered <= held):
            return
        self.last_ticket += 1
        member.ticket, member.offered = self.last_ticket, held
        heapq.heappush(box.free, (held, member.ticket, member))
        if len(box.free) > FREE_MIN + 2 * len(box.members):
            box.free = [entry for entry in box.free if entry[1] == entry[2].ticket]
            heapq.heapify(box.free)

    def room(self, box: Box, member: Member) -> int:
        """How many messages a member can take now."""
        c = self.connections.get(member.key)
        if c is None or c.state is CLOSING or c.session is None:
            return 0
        if not self._takes_more(c):
            self.blocked.setdefault(member.key, {})[member] = box  # until `resume`
            return 0
        delivery = c.session.delivery
        credit = delivery.credit_messages - delivery.sent_messages
        return min(member.in_flight - member.hand.count, credit)

    def _takes_more(self, c: Connection) -> bool:
        """Whether more can be written to a connection now: it is idle, or was so in this step."""
        assert c.session is not None
        delivery = c.session.delivery
        if delivery.credit_messages <= delivery.sent_messages:
            return False
        if delivery.credit_bytes <= delivery.sent_bytes:
            return False
        if self.outflow.idle(c):
            return True
        handed = self.handed.get(c.key, 0)
        return 0 < handed < self.limits.write_bytes and not (c.unsent or delivery.backlog)

    def share(self, box: Box, member: Member) -> int:
        """How many it gets at once: if there are few for many, each gets some."""
        room = self.room(box, member)
        others = len(box.members)
        if others <= 1 or box.mailbox.options.exclusive:
            return room
        waiting = box.mailbox.waiting - box.held
        return max(1, min(room, SHARE_MAX, -(-waiting // others)))

    def line_with_more(self, box: Box, priority: int) -> Reading | None:
        """The line of a priority, if there may be something in it."""
        line = box.lines.get(priority)
        if priority == PRIORITY:
            assert line is not None
            return None if self.readings.rests(line) else line
        rank = box.mailbox.ranks.get(priority)
        if rank is None or rank.last < box.mailbox.floor:
            return None
        if line is None:
            line = self._line(box, priority, max(rank.low, box.mailbox.floor))
            rank.drained = False
        elif rank.fresh:
            line.next_sequence = rank.fresh
            line.lose()
        rank.fresh = 0
        if line.next_sequence > rank.last:
            rank.drained = True
            return None
        return line

    def _line(self, box: Box, priority: int, sequence: int) -> Reading:
        line = self._reading(box, sequence)
        line.reader.priority = priority
        box.lines[priority] = line
        return line

    def _reading(self, box: Box, sequence: int) -> Reading:
        reader = Reader([box.mailbox.number], None, None)
        return Reading(
            box.mailbox, reader, sequence, partial(self.pull, box), partial(self.give_up, box)
        )

    def may_reach(self, box: Box, sequence: int, now: Now) -> bool:
        """Whether a message may be delivered; if not, it may soon."""
        if sequence + AHEAD // 2 > box.bound:
            self._reach(box, sequence, now)
        return sequence <= box.bound

    def _reach(self, box: Box, sequence: int, now: Now) -> None:
        """Have it journalled that messages up to there, and some more, may be delivered."""
        if box.reaching or self.journal.broken:
            return
        box.reaching = mine = object()
        target = sequence + AHEAD
        self.journal.reach(box.mailbox.number, target, now.wall_us)

        def safe(now: Now) -> None:
            if box.reaching is mine:  # else all have left meanwhile, and it does not count
                box.reaching = None
                box.bound = max(box.bound, target)
                self.pull(box, now)

        self.when_safe(safe, now, None)

    def fill(
        self, box: Box, line: Reading, found: Found, messages: int, size: int, ids: bytes, now: Now
    ) -> bool:
        """Take messages from a line into its reader; whether to go on."""
        at = line.next_sequence = max(line.next_sequence, box.mailbox.floor)
        until = min(box.bound + 1, at + LOOKED_AT)
        reader = line.reader
        reader.delivery_count = 0
        if at <= box.marked:
            until = min(until, box.marked + 1)
            reader.delivery_count = 1
        reader.bits_from = at
        reader.bits = box.mailbox.settled.window(at, until - 1) if box.mailbox.settled else b""
        if box.early:
            reader.skip = list(box.early.within(at, until - 1))
        if not self.readings.fill(line, found, until, messages, size, ids, now):
            return False
        return self.missed(box, line, reader.priority, now)

    def _take(
        self, box: Box, member: Member, line: Reading, priority: int, found: Found, now: Now
    ) -> bool:
        """Give a member what stands in a line; whether to go on."""
        size = self.limits.write_bytes
        if not self.fill(box, line, found, self.share(box, member), size, member.ids, now):
            return False
        if line.reader.messages:
            self._hand_out(box, member, line, line.reader.delivery_count, priority, now)
        return True

    def _hand_out(
        self, box: Box, member: Member, line: Reading, attempts: int, priority: int, now: Now
    ) -> None:
        reader = line.reader
        for first, count in reader.runs:
            self.entrust(box, member, first, first + count - 1, attempts, priority, now)
        self.hand_out(member, reader.out(), reader.messages, reader.size, now)

    def hand_out(
        self,
        member: Member,
        pieces: list[bytes | memoryview],
        messages: int,
        size: int,
        now: Now,
    ) -> None:
        """Write to a member what it was given."""
        self.handed[member.key] = self.handed.get(member.key, 0) + size
        self.outflow.hand_out(self.connections[member.key], pieces, messages, size, now)

    def entrust(
        self,
        box: Box,
        member: Member,
        first: int,
        last: int,
        attempts: int,
        priority: int,
        now: Now,
    ) -> None:
        """A member has these from now on."""
        lease_ns = box.mailbox.options.lease_ms * 1_000_000
        if lease_ns:
            self.deadlines.add(now.ns + lease_ns, "lease", box.mailbox.number)
            lease_ns += now.ns
        member.hand.add(first, last, Held(attempts, priority, lease_ns))

    def missed(self, box: Box, line: Reading, priority: int, now: Now) -> bool:
        """What a line passed over is settled: it has expired, or it was never there."""
        reader, mailbox = line.reader, box.mailbox
        if not reader.lost and not reader.gone:
            return True
        lost = [gap for span in reader.lost for gap in mailbox.unsettled(*span)]
        if lost and not mailbox.sought:
            line.fail(f"messages {lost[0][0]} to {lost[0][1]} are not where they should be", now)
            return False
        box.expired += sum(last - first + 1 for first, last in reader.gone)
        if mailbox.options.dead_expired:
            held = Held(reader.delivery_count, priority, 0)
            for first, last in reader.gone:
                for sequence in range(first, last + 1):
                    self.condemn(box, sequence, held, "expired", "", now)
        else:
            lost += reader.gone
        if lost:
            self.journal.settle(mailbox.number, lost, now.wall_us)
        return True

    # ------------------------------------------------------------- what has come back

    def ripen(self, box: Box, now: Now) -> None:
        """What had to wait for its time and has waited is ready."""
        while box.later and box.later[0][0] <= now.wall_us:
            _, sequence = heapq.heappop(box.later)
            back = box.mailbox.returned.get(sequence)
            if back is not None:
                heapq.heappush(box.ready, (-back.priority, sequence))
        if box.later and box.later[0][0] != box.alarm_us:
            box.alarm_us = box.later[0][0]
            early_us = box.alarm_us - now.wall_us
            self.deadlines.add(now.ns + early_us * 1000, "lease", box.mailbox.number)

    def _push(self, box: Box, sequence: int, back: Back) -> None:
        if back.due_us:
            heapq.heappush(box.later, (back.due_us, sequence))
        else:
            heapq.heappush(box.ready, (-back.priority, sequence))

    def take_ready(self, box: Box, member: Member, most: int) -> tuple[int, int, int, int]:
        """Messages that are ready and stand side by side: first, last, attempts, priority."""
        rank, first = heapq.heappop(box.ready)
        back = box.mailbox.returned.get(first, NEVER)
        last = first
        while box.ready and last - first + 1 < most and box.ready[0] == (rank, last + 1):
            if box.mailbox.returned.get(last + 1, NEVER).attempts != back.attempts:
                break
            if last + 1 in member.barred:
                break
            last = heapq.heappop(box.ready)[1]
        return first, last, back.attempts, -rank

    def _serve_returned(self, box: Box, member: Member, now: Now) -> bool | None:
        """Deliver what came back, once more; whether to go on, or None if there was none."""
        sequence = box.ready[0][1]
        if not box.mailbox.unsettled(sequence, sequence) or sequence in box.dying:
            heapq.heappop(box.ready)
            return None
        if sequence in member.barred:
            chosen = self.choose(box, sequence)
            if chosen is None:
                self.put_off(box, now)
                return None
            member = chosen
        side = self.side_of(box, sequence)
        found = self.readings.look(side, now)
        if found is None:
            return False
        first, last, attempts, priority = self.take_ready(box, member, self.share(box, member))
        reader = side.reader
        reader.delivery_count = attempts
        reader.skip = list(box.mailbox.settled.within(first, last))
        most = self.limits.write_bytes
        going = self.readings.fill(side, found, last + 1, last - first + 1, most, member.ids, now)
        reached = side.next_sequence if going else first
        for again in range(reached, last + 1):
            heapq.heappush(box.ready, (-priority, again))
        if not going:
            return False
        if reader.messages:
            self._hand_out(box, member, side, attempts, priority, now)
        return self.missed(box, side, priority, now)

    def put_off(self, box: Box, now: Now) -> None:
        """Nobody who is here wants what is next: the others have their turn."""
        _, sequence = heapq.heappop(box.ready)
        heapq.heappush(box.later, (now.wall_us + BARRED_US, sequence))

    def side_of(self, box: Box, sequence: int) -> Reading:
        """The reading of what came back, at this message."""
        if box.side is None:
            box.side = self._reading(box, sequence)
            box.side.ahead_allowed = False
        box.side.jump(sequence)
        return box.side

    def give_back(
        self,
        box: Box,
        pieces: list[Piece],
        now: Now,
        delay_ms: int = 0,
        counts: bool = True,
        back_off: bool = True,
    ) -> None:
        """Messages left a hand unsettled: somebody gets them again, or they are dead."""
        options = box.mailbox.options
        runs: list[Run] = []
        for first, last, held in pieces:
            attempts = held.attempts + 1 if counts else held.attempts
            if counts and 0 < options.max_deliveries <= attempts:
                for sequence in range(first, last + 1):
                    told = held._replace(attempts=attempts)
                    self.condemn(box, sequence, told, "max-deliveries", "", now)
                continue
            wait_ms = delay_ms
            if not wait_ms and counts and back_off and options.retry_ms:
                doubled = options.retry_ms << min(attempts - 1, 30)
                wait_ms = min(doubled, max(options.retry_max_ms, options.retry_ms))
            due_us = now.wall_us + wait_ms * 1000 if wait_ms else 0
            runs.append((first, last, attempts, due_us, held.priority))
        if not runs:
            return
        if not self.journal.broken:
            self.journal.give_back(box.mailbox.number, runs, now.wall_us)
        for first, last, *about in runs:
            back = Back(*about)
            for sequence in range(first, last + 1):
                box.mailbox.returned[sequence] = back
                self._push(box, sequence, back)
        self.ripen(box, now)

    def came_back_elsewhere(
        self, mailbox: Mailbox, runs: list[Run], reached: int, now: Now
    ) -> None:
        """Of what was just recorded, some was delivered at the node that it comes from.

        These came back there; of others up to `reached` it is not known.
        """
        if runs:
            self.journal.give_back(mailbox.number, runs, now.wall_us)
        if reached:
            self.journal.reach(mailbox.number, reached, now.wall_us)
        box = self.boxes.get(mailbox.number)
        if box is None:
            return
        box.marked = max(box.marked, reached)
        for first, last, *about in runs:
            box.early.add(first, last)
            for sequence in range(first, last + 1):
                self._push(box, sequence, Back(*about))
        self.ripen(box, now)

    def overdue(self, number: int, now: Now) -> None:
        """Some leases of a mailbox may have ended, or it is time for something to come again."""
        box = self.boxes.get(number)
        if box is None:
            return
        box.alarm_us = 0
        for member in box.members.values():
            late = member.hand.overdue(now.ns)
            if late:
                self.give_back(box, late, now)
                self.offer(box, member)
        self.ripen(box, now)
        self.pull(box, now)

    # ------------------------------------------------------------------ dead letters

    def condemn(
        self,
        box: Box,
        sequence: int,
        held: Held,
        reason: str,
        text: str,
        now: Now,
        then: Told | None = None,
    ) -> None:
        """A message becomes a dead letter. Until that is done, nobody gets it."""
        box.dying.add(sequence)
        self.bury(box, sequence, held, reason, text, now, then)

    def buried(self, box: Box, sequence: int, now: Now) -> None:
        """It is settled, and there is a dead letter."""
        box.dying.discard(sequence)
        box.dead += 1

    def spared(self, box: Box, sequence: int, held: Held, now: Now) -> None:
        """There is no place for it among the dead: it comes again, later."""
        box.dying.discard(sequence)
        run = (sequence, sequence, held.attempts, now.wall_us + BARRED_US, held.priority)
        if not self.journal.broken:
            self.journal.give_back(box.mailbox.number, [run], now.wall_us)
            self._push(box, sequence, Back(*run[2:]))
            self.ripen(box, now)


def priorities(box: Box) -> Iterable[int]:
    """Of what may be in a box, the highest first."""
    return PRIORITIES if box.ready or box.mailbox.ranks else COMMON
