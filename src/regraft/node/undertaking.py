"""What a transaction is about to do, and all that could be said against it.

Once a transaction counts, nothing of it may be refused any more. So everything is checked before:
its messages as the lane will check them, whether mailboxes have room, whether what it settles is in
the hands of its session. What a transaction cannot have is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from regraft.errors import BY_NUMBER, LocalError, RegraftError
from regraft.journal.format import Accepted, Range, TxPrepared, Wanted
from regraft.journal.streams import HOME
from regraft.kernels.arrivals import Arrivals
from regraft.kernels.bundle import Bundle
from regraft.kernels.lane import Source
from regraft.kernels.plan import plan_of
from regraft.limits import Limits
from regraft.model.topics import check_pattern, check_topic
from regraft.node.connection import Connection
from regraft.node.delays import NAME as DELAYED
from regraft.node.event import Now
from regraft.node.mailroom import OWN, check_here, check_name, check_same, pairs, read_options
from regraft.node.router import Authorize, Router
from regraft.node.storage import Storage
from regraft.wire import native
from regraft.wire.native import Outcome

NOBODY = -(1 << 40)  # of no connection


@dataclass(slots=True)
class Undertaking:
    """What was said of a transaction that is open."""

    since_ns: int
    frames: bytearray = field(default_factory=bytearray)  # persistent messages,
    passing: bytearray = field(default_factory=bytearray)  # and others
    settle: dict[int, list[Range]] = field(default_factory=dict)  # by subscription
    made: list[native.Subscribe] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    parts: int = 0
    operations: int = 0  # without messages, which are not counted yet
    error: RegraftError | None = None  # why it will be rolled back

    @property
    def size(self) -> int:
        """Bytes of what it publishes."""
        return len(self.frames) + len(self.passing)

    def add(self, part: native.Transact) -> None:
        """One more part; LocalError if it has what no transaction can have."""
        for settle in part.settle:
            if settle.outcome != Outcome.ACCEPT:
                name = Outcome(settle.outcome).name.lower()
                text = f"a transaction accepts messages; {name} them outside of it"
                raise LocalError("not-supported", text)
            ranges = pairs(settle.ranges)
            self.settle.setdefault(settle.subscription, []).extend(ranges)
            self.operations += sum(last - first + 1 for first, last in ranges)
        for wanted in part.subscribe:
            if not wanted.durable:
                text = "a transaction makes durable subscriptions; others are live, or they are not"
                raise LocalError("not-supported", text)
            if wanted.from_sequence or wanted.from_time or wanted.browse or wanted.existing:
                text = "a transaction makes mailboxes; it reads none, and replays nothing"
                raise LocalError("not-supported", text)
        self.made += part.subscribe
        self.removed += part.remove
        self.operations += len(part.subscribe) + len(part.remove)
        self.frames += part.messages
        self.passing += part.passing

    def drop(self) -> int:
        """It will not be committed: forget what it has; how many bytes that were."""
        size = self.size
        self.frames, self.passing = bytearray(), bytearray()
        self.settle, self.made, self.removed = {}, [], []
        return size


class Inquiry:
    """Looks at undertakings of sessions."""

    def __init__(
        self, storage: Storage, router: Router, authorize: Authorize, limits: Limits
    ) -> None:
        self._storage = storage
        self._journal = storage.journal
        self._mailroom = storage.mailroom
        self._router = router
        self._authorize = authorize
        self._limits = limits
        self._way = Arrivals(router.lane, storage.keeper, Source(NOBODY), 0)

    def check(self, one: Undertaking, c: Connection, now: Now) -> TxPrepared:
        """All that it will do, if there is nothing against it; LocalError says what there is."""
        assert c.session is not None
        self._mailroom.check_journal()
        self._storage.see_refusals()
        refusal = self._storage.keeper.refusal
        if refusal and (one.size or one.made):
            code = BY_NUMBER[refusal]
            raise LocalError(code.name, f"not committed: {code.meaning}")
        messages = self._check_messages(one, c, c.session.principal, now)
        accepted = [part for id, ranges in one.settle.items() for part in self._held(c, id, ranges)]
        made = self._check_made(one.made, c.session.principal)
        for name in one.removed:
            self._check_removed(name)
        frames, passing = bytes(one.frames), bytes(one.passing)
        owner = c.session.client_id
        return TxPrepared("", owner, messages, frames, passing, accepted, made, one.removed)

    # ------------------------------------------------------------------------ messages

    def _check_messages(self, one: Undertaking, c: Connection, principal: str, now: Now) -> int:
        bundle = Bundle(self._limits.frame_bytes)
        try:
            bundle.check(memoryview(one.passing), False, now.wall_us)
            delayed = bundle.delayed
            bundle.check(memoryview(one.frames), True, now.wall_us)
        except ValueError as error:
            raise LocalError("bad-message", f"in a transaction: {error}") from None
        count = bundle.messages + one.operations
        if count > self._limits.transaction_messages:
            text = f"{count} messages and settlements are more than a transaction may have"
            most = self._limits.transaction_messages
            raise LocalError("limit-exceeded", f"{text}: limit transaction_messages is {most}")
        if delayed:
            raise LocalError("not-supported", "what is to be delivered later must be persistent")
        if bundle.addressed:
            text = "a message to one peer, or with rules of its own, is in no transaction"
            raise LocalError("not-supported", text)
        if bundle.sequenced:
            text = "messages of a transaction have no sequence: the transaction has a serial"
            raise LocalError("not-supported", text)
        for topic in bundle.topics:
            text = topic.decode()
            check_topic(text)
            if not self._authorize(principal, "publish", text):
                raise LocalError("not-authorized", f"{principal} may not publish to {text!r}")
            if self._router.refuses(c.key, text):
                raise LocalError("not-advertised", f"{text!r} was not advertised by this client")
        if bundle.delayed and DELAYED not in self._journal.state.mailboxes:
            if self._router.lane.postpone is not None:
                self._router.lane.postpone()
            if DELAYED not in self._journal.state.mailboxes:
                raise LocalError("limit-exceeded", "this node cannot keep delayed messages")
        if self._storage.keeper.full_count:
            self._check_room(one, bundle.delayed, now)
        return bundle.messages

    def _check_room(self, one: Undertaking, delayed: int, now: Now) -> None:
        """Some mailboxes are full, here or elsewhere: would they get something?"""
        names = {stream.slot: stream.name for stream in self._journal.state.streams.values()}
        late = self._journal.state.mailboxes.get(DELAYED)
        if delayed and late is not None and late.number in self._journal.quotas.full:
            raise LocalError("mailbox-full", "too many messages wait for their time")
        slot = self._way.full(memoryview(one.frames), True, now.wall_us)
        if slot >= 0:
            name = names.get(slot, "")
            if name.startswith(HOME):
                text = "too much waits for another node with mailboxes; see regraft custody list"
                raise LocalError("mailbox-full", text)
            raise LocalError("mailbox-full", f"mailbox {name} is full")

    def takers(self, frames: bytes) -> set[int]:
        """The slots of the streams that take some of these messages."""
        return self._way.takers(memoryview(frames))

    # --------------------------------------------------------------------- settlements

    def _held(self, c: Connection, id: int, ranges: list[Range]) -> Iterator[Accepted]:
        """What is to be settled, as it was delivered; all of it must be in the session's hands."""
        found = self._mailroom.boxes.get(c.key, id)
        if found is None:
            text = f"this session has no durable subscription {id}"
            raise LocalError("unknown-subscription", text)
        box, member = found
        number = box.mailbox.number
        at = 0  # up to there it was looked at: some may be named twice
        for first, last in sorted(ranges):
            first = max(first, at)
            if first > last:
                continue
            expected = first
            for low, high, held in member.hand.overlap(first, last):
                if low != expected:
                    break
                yield Accepted(number, low, high, held.attempts, held.priority)
                expected = high + 1
            if expected <= last:
                text = f"message {expected} of {box.mailbox.name} is not with this session any more"
                raise LocalError("not-waiting", f"{text}; somebody else may get it")
            at = last + 1

    # ------------------------------------------------------------------- subscriptions

    def _check_made(self, wanted: list[native.Subscribe], principal: str) -> list[Wanted]:
        made: list[Wanted] = []
        for one in wanted:
            check_name(one.durable)
            check_pattern(one.pattern)
            if not self._authorize(principal, "subscribe", one.pattern):
                text = f"{principal} may not subscribe to {one.pattern!r}"
                raise LocalError("not-authorized", text)
            plan = plan_of(one.selector, self._limits.selector_bytes) if one.selector else None
            if plan is not None:
                self._router.check_cost(plan)
            text = plan.text if plan is not None else ""
            options = read_options(one.options)
            known = self._journal.state.mailboxes.get(one.durable)
            if known is not None:
                check_same(known, one.pattern, one.exact, text, options)
                continue
            if any(other.name == one.durable for other in made):
                raise LocalError("subscription-in-use", f"mailbox {one.durable} is made twice")
            about = one.pattern, one.exact, text
            self._journal.check_mailbox(one.durable, *about, "", options, len(made))
            made.append(Wanted(one.durable, one.pattern, text, one.exact, options))
        return made

    def _check_removed(self, name: str) -> None:
        mailbox = self._mailroom.mailbox(name)
        if name.startswith(OWN):
            raise LocalError("not-authorized", f"mailbox {name} is the node's own")
        check_here(mailbox)
        box = self._mailroom.boxes.boxes.get(mailbox.number)
        if box is not None and box.members:
            raise LocalError("mailbox-in-use", f"somebody reads mailbox {name!r}")
