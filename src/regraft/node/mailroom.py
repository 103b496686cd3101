"""Subscriptions of the journal: mailboxes, looks into them, and replays of streams.

Here is what a client may ask for and what it is told; `boxes` decides who gets which message,
`cursors` reads streams again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from regraft.errors import DiskError, LocalError, RegraftError
from regraft.journal.format import Options, Range
from regraft.journal.journal import Journal
from regraft.journal.streams import HOME, Mailbox, Stream
from regraft.kernels.plan import Plan, plan_of
from regraft.kernels.replay import Reader
from regraft.kernels.selection import compile_selector
from regraft.limits import Limits
from regraft.model.selector import Selector
from regraft.model.topic_cover import pattern_overlaps
from regraft.model.topics import check_topic, matches
from regraft.model.varint import write_varint
from regraft.node.box import Box, Member, Then, Told
from regraft.node.boxes import Boxes
from regraft.node.connection import CLOSING, OPEN, Connection
from regraft.node.cursors import Cursor, Cursors
from regraft.node.deadlines import Deadlines
from regraft.node.delays import NAME as DELAYED
from regraft.node.delays import Delays
from regraft.node.effect import Effect, Note
from regraft.node.event import Now
from regraft.node.graves import Graves
from regraft.node.hand import Hand
from regraft.node.ordered import Ordered
from regraft.node.outflow import Outflow
from regraft.node.press import Press
from regraft.node.reading import FOREVER, Reading, Readings
from regraft.node.router import Router
from regraft.node.settlements import Settlements
from regraft.routing.filters import Filter
from regraft.wire import native

NAME_BYTES_MAX = 255
OWN = "$"  # begins the names of the node's own mailboxes
FROM = "$from/"  # what came from other nodes; HOME: what they have to get
_OPTIONS = msgspec.json.Decoder(Options)
Relocate = Callable[[Connection, native.Subscribe, Plan | None, Mailbox | None, Now], bool]


class Mailroom:
    """All subscriptions of a node's journal."""

    def __init__(
        self,
        journal: Journal,
        readings: Readings,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        effects: list[Effect],
        deadlines: Deadlines,
        limits: Limits,
        when_safe: Callable[[Then, Now, Then | None], None],
        press: Press,
        wall_us: Callable[[], int],
    ) -> None:
        self.journal = journal
        self._router = router
        self._outflow = outflow
        self._connections = connections
        self._effects = effects
        self._limits = limits
        self.when_safe = when_safe
        self.graves = Graves(journal, readings, press, effects, when_safe, self.route)
        keeper = press.keeper
        self.delays = Delays(
            journal,
            keeper,
            router.lane,
            readings,
            press,
            deadlines,
            effects,
            limits,
            wall_us,
        )
        self.boxes = Boxes(
            journal,
            readings,
            outflow,
            connections,
            deadlines,
            limits,
            when_safe,
            self._give_up,
            self.graves.bury,
        )
        self.boxes.ordered = Ordered(self.boxes).serve
        self.settlements = Settlements(self.boxes)
        self.graves.boxes = self.boxes
        self.cursors = Cursors(readings, outflow, connections, deadlines, limits, self._finish)
        self._keeper = keeper
        self._boxes_first: set[int] = set()  # connections
        self.on_stream: Callable[[Stream, bool], None] | None = None  # told: one more, one less
        self.elsewhere: Callable[[str], list[str]] = lambda name: []  # nodes that have one, too
        # Who sees to it that mailboxes move from node to node, and subscriptions that wait for it:
        self.relocate: Relocate | None = None
        self.move: Callable[[str, str, Told, Now], None] | None = None
        self.on_removal: Callable[[Mailbox, LocalError, Now], None] | None = None
        self.waiting: dict[tuple[int, int], object] = {}  # by connection and id

    def open_all(self) -> None:
        """Have what is for the streams of the journal recorded for them."""
        for stream in self.journal.state.streams.values():
            if stream.name == DELAYED and isinstance(stream, Mailbox):
                self.delays.open(stream)
            elif not stream.name.startswith(OWN) and _takes(stream):  # others: see custody
                self.route(stream)

    def route(self, stream: Stream, plan: Plan | None = None) -> None:
        """Have what is for a stream recorded for it."""
        if plan is None and isinstance(stream, Mailbox) and stream.selector:
            plan = plan_of(stream.selector)
        self._router.keep(stream.slot, stream.pattern, stream.exact, plan)
        if self.on_stream is not None:
            self.on_stream(stream, True)

    def wake(self, touched: Iterable[tuple[Stream, int]], now: Now) -> None:
        """More of these was persisted."""
        self.boxes.wake(touched, now)

    def waits(self, key: int) -> bool:
        """Whether something waits for room on a connection."""
        return bool(self.boxes.blocked.get(key)) or bool(self.cursors.held.get(key))

    def resume(self, key: int, now: Now) -> None:
        """A connection may have room again."""
        if key in self._boxes_first:  # they take turns
            self._boxes_first.discard(key)
            self.boxes.resume(key, now)
            self.cursors.resume(key, now)
        else:
            self.cursors.resume(key, now)
            if self.cursors.count(key):
                self._boxes_first.add(key)
            self.boxes.resume(key, now)

    def reads(self, key: int, id: int) -> bool:
        """Whether a subscription is one of these."""
        known = self.boxes.get(key, id) is not None or self.cursors.get(key, id) is not None
        return known or (key, id) in self.waiting

    def reading(self, key: int) -> list[int]:
        """The ids of those of a connection."""
        waiting = [id for other, id in self.waiting if other == key]
        return [*self.boxes.members.get(key, {}), *self.cursors.held.get(key, {}), *waiting]

    def leave(self, c: Connection, now: Now) -> None:
        """A connection is gone."""
        for id in self.reading(c.key):
            self.close(c, id, now, polite=False)
        self._boxes_first.discard(c.key)

    # ------------------------------------------------------------------------ mailboxes

    def open_mailbox(
        self, c: Connection, wanted: native.Subscribe, plan: Plan | None, now: Now
    ) -> None:
        """Subscribe durably: make the mailbox if need be, and read it."""
        assert c.session is not None
        self.check_journal()
        text = plan.text if plan is not None else ""
        mailbox = self.journal.state.mailboxes.get(wanted.durable)
        if self.relocate is not None and self.relocate(c, wanted, plan, mailbox, now):
            return
        if mailbox is not None:
            check_here(mailbox)
        if mailbox is None:
            if wanted.existing:
                raise self._unknown(wanted.durable)
            options = read_options(wanted.options)
            pattern, exact, client = wanted.pattern, wanted.exact, c.session.client_id
            mailbox = self.make(wanted.durable, pattern, exact, plan, client, options, now)
        elif not wanted.existing:
            options = read_options(wanted.options) if wanted.options else mailbox.options
            check_same(mailbox, wanted.pattern, wanted.exact, text, options)
        if mailbox.name.startswith(OWN):
            raise LocalError("not-authorized", f"mailbox {mailbox.name} is the node's own")
        box = self.boxes.box(mailbox)
        if box.members and not mailbox.options.many:
            raise LocalError("mailbox-in-use", f"another session reads mailbox {mailbox.name!r}")
        most = wanted.in_flight or mailbox.options.in_flight or self._limits.in_flight
        member = Member(
            c.key,
            wanted.id,
            ids_of(wanted.id),
            c.session.client_id,
            min(most, self._limits.in_flight),
            Hand(box.tally),
        )
        self.boxes.join(box, member, now)
        self.journal.refresh(mailbox)
        answer = native.Subscribed(wanted.id, mailbox.floor, mailbox.waiting)

        def stands(now: Now) -> None:
            if c.state is not OPEN:
                return
            self._outflow.send_in_place(c, answer, now)
            if self.boxes.get(c.key, wanted.id) != (box, member):  # it was ended meanwhile
                return
            member.stands = True
            self.boxes.offer(box, member)
            if not mailbox.options.many:
                pattern, exact = mailbox.pattern, mailbox.exact
                self._router.subscribe(c.key, wanted.id, pattern, exact, plan, passing=True)
            self.boxes.pull(box, now)

        def fails(now: Now) -> None:
            self._end_member(box, member, self.journal.broken, now)

        self.when_safe(stands, now, fails)

    def make(
        self,
        name: str,
        pattern: str,
        exact: bool,
        plan: Plan | None,
        owner: str,
        options: Options,
        now: Now,
    ) -> Mailbox:
        """Make a mailbox, and have it get its messages."""
        check_name(name)
        options = self._with_quota(pattern, exact, options)
        text = plan.text if plan is not None else ""
        mailbox = self.journal.make_mailbox(name, pattern, exact, text, owner, now.wall_us, options)
        self.route(mailbox, plan)
        return mailbox

    def _with_quota(self, pattern: str, exact: bool, options: Options) -> Options:
        """Mailboxes of an administered topic have its quota, unless they have one of their own."""
        for topic in self.journal.state.topics.values():
            if (topic.quota_messages or topic.quota_bytes) and pattern_overlaps(
                topic.topic, pattern, topic.exact, exact
            ):
                return _with_quotas(options, topic.quota_messages, topic.quota_bytes)
        return options

    def remove(self, mailbox: Mailbox, now: Now, why: LocalError | None = None) -> None:
        """End a mailbox for good."""
        error = why or LocalError("unknown-mailbox", f"mailbox {mailbox.name!r} was removed")
        box = self.boxes.boxes.get(mailbox.number)
        if box is not None:
            self.end_members(box, error, now)
            self.boxes.forget(box)
        if self.on_removal is not None:
            self.on_removal(mailbox, error, now)
        for cursor in self._looking_into(mailbox):
            self._finish(cursor, now)
        self._released(mailbox)
        self._keeper.set_full(mailbox.slot, False)
        self.journal.remove_mailbox(mailbox.number, now.wall_us)

    def end_members(self, box: Box, error: LocalError, now: Now) -> None:
        """Nobody reads it any more; none of them gets what others gave back."""
        box.pulling = True
        for member in list(box.members.values()):
            self._end_member(box, member, error, now)
        box.pulling = False

    def _released(self, stream: Stream) -> None:
        if _takes(stream):
            self._router.release(stream.slot)
        if self.on_stream is not None:
            self.on_stream(stream, False)

    def _looking_into(self, stream: Stream) -> list[Cursor]:
        return [
            cursor
            for held in self.cursors.held.values()
            for cursor in held.values()
            if cursor.reading.stream is stream
        ]

    def _give_up(self, box: Box, text: str, now: Now) -> None:
        """A mailbox cannot be read on: say so to all members."""
        self._effects.append(Note("error", f"mailbox {box.mailbox.name} cannot be read: {text}"))
        for member in list(box.members.values()):
            self._end_member(box, member, text, now)

    def _end_member(self, box: Box, member: Member, why: str | LocalError, now: Now) -> None:
        error = DiskError("journal-failed", why) if isinstance(why, str) else why
        c = self._connections.get(member.key)
        if (member.key, member.id) in box.members:
            self.boxes.leave(box, member, now)
        if c is not None:
            if member.id in self._router.held(c.key):
                self._router.unsubscribe(c.key, member.id)
            if c.state is OPEN:
                report = native.Error.of(error, subscription=member.id)
                self._outflow.send_in_place(c, report, now)

    def close(
        self, c: Connection, id: int, now: Now, remove: bool = False, polite: bool = True
    ) -> bool:
        """End a subscription that reads the journal; whether there was one.

        Who leaves a shared mailbox by its own will has not tried what it gives back.
        """
        if self.waiting.pop((c.key, id), None) is not None:
            return True  # its mailbox comes all the same
        found = self.boxes.get(c.key, id)
        if found is None:
            return self.cursors.remove(c.key, id) is not None
        box, member = found
        if remove:
            self.check_journal()
            if len(box.members) > 1:
                raise LocalError("mailbox-in-use", f"others read mailbox {box.mailbox.name!r}, too")
        counts = not (polite and box.mailbox.options.many)
        self.boxes.leave(box, member, now, counts)
        if remove:
            self.remove(box.mailbox, now)
        return True

    # ------------------------------------------------------------------------- streams

    def end_stream(self, stream: Stream, now: Now) -> None:
        """Retain a topic no more, with all that was."""
        for cursor in self._looking_into(stream):
            self._finish(cursor, now)
        self._released(stream)
        self.journal.remove_stream(stream.number, now.wall_us)

    def open_replay(self, c: Connection, wanted: native.Subscribe, now: Now) -> None:
        """Read a stream again, from some place on."""
        stream = self._stream_for(wanted)
        self.journal.refresh(stream)
        sequence = max(wanted.from_sequence, stream.first_sequence())
        topics = None
        pattern, exact = wanted.pattern, wanted.exact
        if pattern not in ("", "#") and (pattern, exact) != (stream.pattern, stream.exact):

            def topics(topic: bytes) -> bool:
                return matches(pattern, topic.decode(), exact)

        cursor = self._cursor(c, wanted, stream, topics, sequence)
        cursor.paced = wanted.paced
        cursor.reading.ahead_allowed = not wanted.paced
        cursor.reading.from_us = cursor.reading.reader.since_us = wanted.from_time
        cursor.until_us = cursor.reading.reader.until_us = wanted.until_time
        if wanted.until_sequence:
            cursor.until = min(wanted.until_sequence + 1, FOREVER)
        self._open(c, cursor, max(0, stream.next_sequence - sequence), now)

    def open_look(self, c: Connection, wanted: native.Subscribe, now: Now) -> None:
        """Look at what waits in a mailbox."""
        mailbox = self.mailbox(wanted.durable)
        cursor = self._cursor(c, wanted, mailbox, None, mailbox.floor)
        self.journal.refresh(mailbox)
        cursor.until = mailbox.next_sequence
        self._open(c, cursor, mailbox.waiting, now)

    def _stream_for(self, wanted: native.Subscribe) -> Stream:
        names = self.journal.state.names
        if wanted.stream:
            stream = names.get(wanted.stream)
            if stream is None:
                known = ", ".join(sorted(names)) or "it has none"
                raise LocalError(
                    "unknown-stream", f"this node has no stream {wanted.stream!r}: {known}"
                )
            return stream
        fitting = [
            stream
            for stream in names.values()
            if pattern_overlaps(stream.pattern, wanted.pattern, stream.exact, wanted.exact)
        ]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise LocalError(
                "unknown-stream",
                f"no stream of this node retains {wanted.pattern or '#'!r}; "
                "[[streams]] in its configuration says which topics are retained",
            )
        listed = ", ".join(stream.name for stream in fitting)
        raise LocalError(
            "unknown-stream", f"several streams hold {wanted.pattern!r}: name one of {listed}"
        )

    def _cursor(
        self,
        c: Connection,
        wanted: native.Subscribe,
        stream: Stream,
        topics: Callable[[bytes], bool] | None,
        sequence: int,
    ) -> Cursor:
        test = None
        if wanted.selector:
            test = compile_selector(Selector.parse(wanted.selector, self._limits.selector_bytes))
        reader = Reader([stream.number], test, topics)

        def go_on(now: Now) -> None:
            self.cursors.pull(cursor, now)

        def fail(text: str, now: Now) -> None:
            self._fail(cursor, text, now)

        reading = Reading(stream, reader, sequence, go_on, fail)
        cursor = Cursor(c.key, wanted.id, ids_of(wanted.id), reading)
        return cursor

    def _open(self, c: Connection, cursor: Cursor, waiting: int, now: Now) -> None:
        """Say that a subscription stands, once what it may see is safe; then it reads."""
        sequence = cursor.reading.next_sequence

        def stands(now: Now) -> None:
            if c.state is not OPEN:
                return
            self._outflow.send_in_place(c, native.Subscribed(cursor.id, sequence, waiting), now)
            if self.cursors.get(c.key, cursor.id) is cursor:  # or it was ended meanwhile
                cursor.stands = True
                self.cursors.pull(cursor, now)

        self.cursors.add(cursor)
        self.when_safe(stands, now, stands)

    def _fail(self, cursor: Cursor, text: str, now: Now) -> None:
        """A subscription cannot go on: say so, and end it."""
        self._effects.append(Note("error", f"a subscription of the journal ends: {text}"))
        self.cursors.remove(cursor.key, cursor.id)
        c = self._connections.get(cursor.key)
        if c is not None and c.state is OPEN:
            error = native.Error.of(DiskError("journal-failed", text), subscription=cursor.id)
            self._outflow.send_in_place(c, error, now)

    def _finish(self, cursor: Cursor, now: Now) -> None:
        """A cursor has reached its end."""
        self.cursors.remove(cursor.key, cursor.id)
        c = self._connections.get(cursor.key)
        if c is not None and c.state is OPEN:
            self._outflow.send_in_place(c, native.Unsubscribed(cursor.id), now)

    # --------------------------------------------------------------------- settlements

    def settle(self, c: Connection, message: native.Settle, now: Now) -> None:
        """What becomes of messages of a mailbox."""
        found = self.boxes.get(c.key, message.subscription)
        if found is None:
            raise LocalError(
                "unknown-subscription",
                f"this session has no durable subscription {message.subscription}",
            )
        ranges = pairs(message.ranges)
        box, member = found
        if self.journal.broken:  # nothing is settled, but who is done with some may have others
            for span in ranges:
                member.hand.take(*span)
            self.boxes.offer(box, member)
            self.boxes.pull(box, now)
            self.check_journal()

        def answer(now: Now) -> None:
            if c.state is not CLOSING:
                self._outflow.send(c, native.Settled(message.subscription, message.token), now)

        def never(now: Now) -> None:
            if c.state is not CLOSING:
                self._outflow.send(c, self._unsettled(message), now)

        def settled(now: Now) -> None:
            if message.token and member.burials:  # it speaks for what was said before it, too
                member.after.append(settled)
            elif message.token:
                c.unsafe = self.journal.recorder.position
                self.when_safe(answer, now, never)

        def buried(error: RegraftError | None, now: Now) -> None:
            member.burials -= 1
            if error is None:
                settled(now)
            elif c.state is OPEN:  # it will come again
                about = message.subscription
                report = native.Error.of(error, subscription=about, settlement=True)
                self._outflow.send_in_place(c, report, now)
            if not member.burials:
                waiting, member.after = member.after, []
                for then in waiting:
                    then(now)

        outcome = message.outcome
        if outcome == native.Outcome.REJECT:
            member.burials += 1
            self.settlements.reject(box, member, ranges, message.reason, now, buried)
        elif outcome == native.Outcome.EXTEND:
            self.settlements.extend(box, member, ranges, message.delay_ms, now)
            settled(now)
        elif outcome == native.Outcome.RELEASE:
            counts, barred = not message.uncounted, message.undeliverable
            self.settlements.release(box, member, ranges, now, message.delay_ms, counts, barred)
            settled(now)
        else:
            self.settlements.accept(box, member, ranges, now)
            settled(now)
        self.boxes.offer(box, member)
        self.boxes.pull(box, now)

    def _unsettled(self, message: native.Settle) -> native.Error:
        """Nobody knows whether it counts: the journal failed while it was on its way."""
        error = LocalError("journal-failed", f"not known to be safe: {self.journal.broken}")
        return native.Error.of(error, subscription=message.subscription, settlement=True)

    # ------------------------------------------------------------------------- questions

    def check_journal(self) -> None:
        """Nothing can be changed in a journal that failed."""
        if self.journal.broken:
            raise LocalError("journal-failed", f"the journal failed: {self.journal.broken}")

    def mailbox(self, name: str) -> Mailbox:
        """The mailbox of this name; LocalError if there is none."""
        mailbox = self.journal.state.mailboxes.get(name)
        if mailbox is None:
            raise self._unknown(name)
        self.journal.refresh(mailbox)
        return mailbox

    def _unknown(self, name: str) -> LocalError:
        text = f"this node has no mailbox {name!r}"
        others = self.elsewhere(name)
        if others:
            text += (
                f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} one of that name"
            )
        return LocalError("unknown-mailbox", text)

    def rows(self) -> list[dict[str, Any]]:
        """Mailboxes and streams, to look at."""
        found: list[dict[str, Any]] = []
        for stream in self.journal.state.streams.values():
            if stream.name.startswith((HOME, FROM)):
                continue
            self.journal.refresh(stream)
            row: dict[str, Any] = {
                "kind": "mailbox" if isinstance(stream, Mailbox) else "stream",
                "name": stream.name,
                "pattern": stream.pattern or "#",
                "next": stream.next_sequence,
            }
            if isinstance(stream, Mailbox):
                box = self.boxes.boxes.get(stream.number)
                row |= {
                    "where": stream.selector,
                    "waiting": stream.waiting,
                    "attached": box is not None and bool(box.members),
                }
            else:
                row |= {"waiting": stream.next_sequence - stream.first_sequence()}
            found.append(row)
        return found


def read_options(data: bytes) -> Options:
    """Options of a mailbox as a client gives them."""
    if not data:
        return Options()
    try:
        options = _OPTIONS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LocalError("bad-configuration", f"options of a mailbox: {error}") from None
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if isinstance(value, int) and not 0 <= value < FOREVER:
            raise LocalError("bad-configuration", f"option {name} cannot be {value}")
    if options.dead_letter:
        try:
            check_topic(options.dead_letter)
        except LocalError as error:
            raise LocalError("bad-configuration", f"option dead_letter: {error}") from None
    return options


def check_filter(name: str, known: Filter, wanted: Filter) -> None:
    """What a mailbox takes has to be what somebody takes it for."""
    if known != wanted:
        which = f" where {known.selector}" if known.selector else ""
        raise LocalError(
            "mailbox-differs",
            f"mailbox {name!r} is for {known.pattern!r}{which}; "
            "remove it first, or take another name",
        )


def check_same(mailbox: Mailbox, pattern: str, exact: bool, text: str, options: Options) -> None:
    """A mailbox that is there has to be what somebody takes it for."""
    there = Filter(mailbox.pattern, mailbox.exact, mailbox.selector)
    check_filter(mailbox.name, there, Filter(pattern, exact, text))
    known = mailbox.options  # without quotas of its own it may have those of its topic
    if _with_quotas(options, known.quota_messages, known.quota_bytes) != known:
        raise LocalError("mailbox-differs", f"mailbox {mailbox.name!r} has other options")


def _with_quotas(options: Options, messages: int, size: int) -> Options:
    """The same, with these quotas where it has none."""
    return msgspec.structs.replace(
        options,
        quota_messages=options.quota_messages or messages,
        quota_bytes=options.quota_bytes or size,
    )


def check_here(mailbox: Mailbox) -> None:
    """Nothing is done with a mailbox where it is not any more."""
    if mailbox.home is not None:
        text = f"mailbox {mailbox.name!r} has moved to node {mailbox.home.node}"
        raise LocalError("mailbox-moved", f"{text}: go there, or have it moved here")


def _takes(stream: Stream) -> bool:
    """Whether it takes what is published; or only what another mailbox hands over."""
    return not isinstance(stream, Mailbox) or stream.came is None


def check_name(name: str) -> None:
    """A name of a mailbox that may be made."""
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise LocalError(
            "bad-pattern", f"a mailbox's name is printable text of 1 to {NAME_BYTES_MAX} bytes"
        )
    if name.startswith(OWN):
        raise LocalError("bad-pattern", f"names that begin with {OWN} are the node's own")


def ids_of(id: int) -> bytes:
    """The id of a subscription, as transfer headers have it."""
    packed = write_varint(id)
    return b"\x12" + write_varint(len(packed)) + packed


def pairs(numbers: tuple[int, ...]) -> list[Range]:
    """Ranges as a client gives them."""
    if len(numbers) % 2 or any(
        first > last for first, last in zip(numbers[::2], numbers[1::2], strict=True)
    ):
        raise LocalError("bad-message", "ranges are pairs: first and last sequence")
    return list(zip(numbers[::2], numbers[1::2], strict=True))
