"""Subscriptions that read a journal: durable ones, and replays.

A durable subscription is a mailbox on the node. Its messages come again until they are settled. By
default a message is settled when the application asks for the next one, or leaves without an error:
then it is done with it. With `manual`, the application settles each, or all up to one.

After a reconnection the node delivers again what is not settled. What the application has or had in
its hands is not handed to it a second time: what it settled is settled again, until the node has
said that it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple

from regraft.client.current import CURRENT
from regraft.client.link import Batch
from regraft.client.payload import milliseconds
from regraft.client.subscription import EndedError, Subscription
from regraft.errors import RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.selector import Selector
from regraft.wire import native
from regraft.wire.native import Outcome

RANGES_MAX = 1000  # in one frame
REASON_MAX = 1000  # characters

log = logging.getLogger("regraft.client")


class Replay(Subscription):
    """What a stream holds, from some place on, and then what is added to it."""

    def __init__(
        self,
        wanted: native.Subscribe,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription, bool], Awaitable[None]],
    ) -> None:
        super().__init__(wanted, taken, unsubscribe)
        self.position = 0  # sequence of the last message that has arrived

    def push(self, batch: Batch) -> None:
        """Messages have arrived."""
        self.position = max(self.position, batch.messages[-1].sequence)
        super().push(batch)

    @property
    def question(self) -> native.Subscribe:
        """The same again, from behind what has arrived."""
        if not self.position:
            return self.wanted
        return replace(self.wanted, from_sequence=self.position + 1, from_time=0)

    def forget_sequences(self) -> None:
        """It is another journal now: begin again."""
        self.position = 0


class Settlement(NamedTuple):
    """What becomes of a message, as the node is told."""

    outcome: Outcome = Outcome.ACCEPT
    delay_ms: int = 0
    undeliverable: bool = False
    uncounted: bool = False
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it ends the message's stay in the mailbox."""
        return self.outcome in (Outcome.ACCEPT, Outcome.REJECT)

    @classmethod
    def release(cls, delay: float = 0.0, count: bool = True, elsewhere: bool = False) -> Settlement:
        """It is to be delivered again."""
        return cls(Outcome.RELEASE, milliseconds("delay", delay), elsewhere, not count)

    @classmethod
    def reject(cls, reason: str = "") -> Settlement:
        """It is to become a dead letter."""
        return cls(Outcome.REJECT, reason=reason[:REASON_MAX])

    @classmethod
    def extend(cls, seconds: float = 0.0) -> Settlement:
        """It is still being worked on."""
        return cls(Outcome.EXTEND, milliseconds("seconds", seconds))


ACCEPTED = Settlement()
Ranges = list[tuple[int, int]]


def add_to(ranges: Ranges, sequence: int) -> None:
    """Add a sequence; one that follows the last makes it longer."""
    if ranges and ranges[-1][1] + 1 == sequence:
        ranges[-1] = (ranges[-1][0], sequence)
    else:
        ranges.append((sequence, sequence))


def joined(ranges: Ranges) -> Ranges:
    """The same in order, and those that touch in one."""
    if len(ranges) < 2:
        return ranges
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


class Durable(Subscription):
    """A mailbox, as the application sees it."""

    def __init__(
        self,
        wanted: native.Subscribe,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription, bool], Awaitable[None]],
        send: Callable[[native.Control], None],
        manual: bool,
    ) -> None:
        super().__init__(wanted, taken, unsubscribe)
        self.name = wanted.durable
        self.manual = manual
        self.called = False  # a callback takes the messages
        self.client: object = None  # whose it is
        self.waiting_at_start = 0
        self.stands = False  # at the node that we are connected to
        self._send = send
        self._handed: dict[int, ReceivedMessage] = {}  # with the application, and not settled
        self._failed: set[int] = set()  # those of them that a callback could not deal with
        self._to_send: dict[Settlement, Ranges] = {}
        self._last_how: Settlement | None = None  # what was noted last, and its ranges
        self._last: Ranges = []
        self._due = False
        # Settled for good, and not known to be safe; each is once its token comes back.
        self._unsafe: deque[tuple[int, Settlement, Ranges]] = deque()
        # What may come again after a reconnection: held (None), or settled so.
        self._expected: dict[int, Settlement | None] = {}
        self._token = 0  # the last that was sent,
        self._safe_token = 0  # and that came back
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # each with its token

    # ------------------------------------------------------------ for the application

    async def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message: see `Subscription.next`. Unless `manual`, the last one is settled."""
        self._ask()
        message = await super().next(timeout, where=where)
        self._hand([message])
        return message

    async def next_batch(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """All that has arrived. Unless `manual`, what was taken before is settled."""
        self._ask()
        messages = await super().next_batch(timeout)
        self._hand(messages)
        return messages

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        try:
            while True:
                yield self._next_ready() if self._ready else await self.next()
        except EndedError:
            return

    def _next_ready(self) -> ReceivedMessage:
        """The same as `next`, if there is one: a queue is read so, and every call counts."""
        if not self.manual:
            self._settle_handed()
        message = self._pop()
        sequence = message.sequence
        if sequence:
            self._handed.pop(sequence, None)  # it is the last now
            self._handed[sequence] = message
            unit = CURRENT.get()
            if unit is not None:
                unit.taken(self, sequence)
        return message

    def settle(self, *messages: ReceivedMessage) -> None:
        """These are done with: they do not come again."""
        for message in messages:
            self.settle_sequence(message.sequence)

    def settle_through(self, message: ReceivedMessage) -> None:
        """This one and all that were handed out before it are done with.

        If it was settled before, nothing else is.
        """
        if message.sequence not in self._handed:
            return
        for sequence in list(self._handed):  # in this order, which need not be that of sequences
            self.settle_sequence(sequence)
            if sequence == message.sequence:
                return

    async def accept(self, *messages: ReceivedMessage, confirm: bool = False) -> None:
        """These are done with: see `ReceivedMessage.accept`."""
        self.settle(*messages)
        if confirm:
            await self.settled()

    async def accept_through(self, message: ReceivedMessage, *, confirm: bool = False) -> None:
        """This one and all that were handed out before it are done with."""
        self.settle_through(message)
        if confirm:
            await self.settled()

    async def release(
        self,
        *messages: ReceivedMessage,
        delay: float = 0.0,
        count: bool = True,
        elsewhere: bool = False,
    ) -> None:
        """These are to be delivered again: see `ReceivedMessage.release`."""
        for message in messages:
            how = Settlement.release(delay, count, elsewhere)
            self.settle_sequence(message.sequence, how)

    async def reject(self, *messages: ReceivedMessage, reason: str = "") -> None:
        """These become dead letters: see `ReceivedMessage.reject`."""
        for message in messages:
            self.settle_sequence(message.sequence, Settlement.reject(reason))

    async def extend(self, *messages: ReceivedMessage, seconds: float = 0.0) -> None:
        """These are still being worked on: see `ReceivedMessage.extend`."""
        for message in messages:
            self.settle_sequence(message.sequence, Settlement.extend(seconds))

    async def settled(self, timeout: float | None = 10.0) -> None:
        """Wait until all that was settled is safe, so that it never comes again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._token + 1, future))
        self._flush()
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            text = f"the node did not confirm a settlement within {timeout} s"
            raise WorldError("timed-out", text) from None

    async def remove(self) -> None:
        """End the subscription for good, with all that waits in its mailbox."""
        await self._unsubscribe(self, True)

    async def unsubscribe(self) -> None:
        """Read no more for now: the mailbox stays, and so does what is not settled.

        Unless `manual`, what was taken is settled.
        """
        await self._depart(True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._depart(kind is None, kind is not None and issubclass(kind, Exception))

    async def _depart(self, done: bool, failed: bool = False) -> None:
        if not self._ended:
            self.leave(done, failed)
            self._drop_pending()  # it comes again to the next who reads the mailbox
            await self._unsubscribe(self, False)

    def leave(self, done: bool, failed: bool = False) -> None:
        """It ends. If the application is `done` with what it took, that is settled.

        A callback is not: it may be at work on one just now.
        """
        if done and not self.manual and not self.called:
            self._settle_handed()
        if self._to_send:
            self._flush()

    def unsettled(self) -> int:
        """How many messages the application has and did not settle."""
        return len(self._handed)

    # ------------------------------------------------------------------ for the client

    def settle_sequence(self, sequence: int, how: Settlement = ACCEPTED) -> None:
        """What becomes of one that the application has."""
        unit = CURRENT.get()
        if unit is not None and unit.takes(self.client):
            if sequence in self._handed:
                unit.settle(self, self._handed[sequence], how)
            return
        if how is ACCEPTED and not self._failed and not self._expected:  # as nearly always
            if self._handed.pop(sequence, None) is not None:
                self._note(sequence, how)
            return
        if sequence not in self._handed:
            return
        if how.outcome is not Outcome.EXTEND:
            del self._handed[sequence]
            self._failed.discard(sequence)
            if sequence in self._expected:
                if how.is_final:
                    self._expected[sequence] = how
                else:
                    del self._expected[sequence]
        self._note(sequence, how)

    def give_back(self, sequence: int) -> None:
        """The application has one no more and is not done with it: it comes again, as new."""
        if self._handed.pop(sequence, None) is None:
            return
        self._failed.discard(sequence)
        if sequence in self._expected:
            del self._expected[sequence]  # after a reconnection it comes by itself
        else:
            self._note(sequence, Settlement.release())

    def fail(self, message: ReceivedMessage) -> None:
        """A callback could not deal with it: it stays unsettled."""
        if message.sequence in self._handed:
            self._failed.add(message.sequence)

    def refused(self, error: RegraftError) -> None:
        """Some settlements were refused: what they were about comes again some day."""
        log.warning("mailbox %r: some messages stay unsettled: %s", self.name, error)
        self._expect_unsafe()
        self._fail_waiters(error)

    def end(self, error: RegraftError | None = None) -> None:
        """No more will come, and nothing is settled any more."""
        super().end(error)
        self._fail_waiters(error or EndedError())

    def stood(self, answer: native.Subscribed) -> None:
        """The node has the subscription."""
        self.stands = True
        self._flush()
        for sequence in [one for one in self._expected if one < answer.next_sequence]:
            del self._expected[sequence]  # nothing below comes any more

    def instead(self, error: RegraftError) -> native.Subscribe | None:
        """What to ask a node that refuses the question, if there is something else to ask."""
        return None

    def _note(self, sequence: int, how: Settlement) -> None:
        if how is not self._last_how:  # many in a row are settled in the same way
            self._last_how, self._last = how, self._to_send.setdefault(how, [])
        add_to(self._last, sequence)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Tell the node what is settled; ask whether that is safe, unless it is asked already."""
        self._due = False
        if not self.stands:
            return  # the node would not know what this is about
        token = 0
        waits = any(token > self._token for token, future in self._waiters if not future.done())
        if waits or (self._to_send and self._token == self._safe_token):
            self._token = token = self._token + 1
        frames: list[native.Settle] = []
        # Dead letters take longest: the last frame asks whether all before it is safe, too.
        for how in sorted(self._to_send, key=lambda how: how.outcome is Outcome.REJECT):
            ranges = joined(self._to_send[how])
            if how.is_final:
                self._unsafe.append((token or self._token + 1, how, ranges))
            frames += (
                native.Settle(self.id, numbers, 0, *how)
                for at in range(0, len(ranges), RANGES_MAX)
                if (numbers := tuple(n for pair in ranges[at : at + RANGES_MAX] for n in pair))
            )
        self._forget_noted()
        if token:
            last = frames.pop() if frames else native.Settle(self.id)
            frames.append(replace(last, token=token))
        for frame in frames:
            self._send(frame)

    def done(self, token: int) -> None:
        """The node has all that was settled up to this token."""
        self._safe_token = max(self._safe_token, token)
        while self._unsafe and self._unsafe[0][0] <= token:
            self._unsafe.popleft()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter[0] > token:
                self._waiters.append(waiter)
            elif not waiter[1].done():
                waiter[1].set_result(None)

    def reconnected(self) -> None:
        """What was not settled comes again; what was, and may not have arrived, is settled again.

        A release is not repeated: the lost connection was one.
        """
        self.stands = False
        self._drop_pending()
        self._expected |= dict.fromkeys(self._handed)
        for how, ranges in self._to_send.items():
            if how.is_final:
                self._unsafe.append((0, how, ranges))
        self._forget_noted()
        for sequence, how in self._expect_unsafe():
            self._note(sequence, how)
        self._safe_token = self._token
        text = "in flight: the connection was lost; it is settled when it comes again"
        self._fail_waiters(WorldError("connection-lost", text))

    def _expect_unsafe(self) -> list[tuple[int, Settlement]]:
        """Nobody knows whether the node has what is not safe: it may come again."""
        found = [
            (sequence, how)
            for _, how, ranges in self._unsafe
            for first, last in ranges
            for sequence in range(first, last + 1)
        ]
        self._unsafe.clear()
        self._expected |= dict(found)
        return found

    def forget_sequences(self) -> None:
        """It is another journal now, and another mailbox: all that comes is new."""
        self._handed.clear()
        self._failed.clear()
        self._expected.clear()
        self._unsafe.clear()
        self._forget_noted()

    def _forget_noted(self) -> None:
        self._to_send = {}
        self._last_how = None

    def _drop_pending(self) -> None:
        """Forget what has arrived and was not handed out."""
        for batch in self._batches:
            self._release(batch)
        self._batches.clear()
        self._ready.clear()
        self._left = 0

    def _fail_waiters(self, error: RegraftError) -> None:
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits gets it; nobody need
        self._waiters.clear()

    def push(self, batch: Batch) -> None:
        """Messages have arrived."""
        if self._expected:
            fresh = [message for message in batch.messages if self._is_new(message)]
            if len(fresh) < len(batch.messages):
                if not fresh:
                    self._release(batch)
                    return
                batch.messages[:] = fresh
        super().push(batch)

    def _is_new(self, message: ReceivedMessage) -> bool:
        """Whether the application has not seen it; if it settled it, the node missed that.

        What nobody was given before is new in any case: then somebody has removed the mailbox, and
        it was made again.
        """
        sequence = message.sequence
        if sequence not in self._expected:
            return True
        how = self._expected.pop(sequence)
        held = self._handed.get(sequence)
        same = message.redelivered if held is None else message.envelope == held.envelope
        if not same:
            self.forget_sequences()
        elif how is not None:
            self._note(sequence, how)
        return not same or (how is None and held is None)

    def _ask(self) -> None:
        """The application asks for more: with that it is done with what it has."""
        if not self.manual:
            self._settle_handed()

    def _hand(self, messages: Iterable[ReceivedMessage]) -> None:
        handed = self._handed
        unit = CURRENT.get()
        for message in messages:
            sequence = message.sequence
            if sequence in handed:
                del handed[sequence]  # it is the last now
            if sequence:
                handed[sequence] = message
                if unit is not None:
                    unit.taken(self, sequence)

    def _settle_handed(self) -> None:
        if self._failed or self._expected or CURRENT.get() is not None:
            for sequence in [one for one in self._handed if one not in self._failed]:
                self.settle_sequence(sequence)
            return
        handed, self._handed = self._handed, {}
        for sequence in handed:
            self._note(sequence, ACCEPTED)
