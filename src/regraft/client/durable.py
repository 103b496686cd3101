"""Subscriptions that read a journal: durable ones, and replays.

A durable subscription is a mailbox on the node. Its messages come again until they are settled. By
default a message is settled when the application asks for the next one, or leaves without an error:
then it is done with it. With `manual`, the application settles each, or all up to one.

After a reconnection the node delivers again what is not settled. What the application has or had in
its hands is not handed to it a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from types import TracebackType

from regraft.client.link import Batch
from regraft.client.subscription import EndedError, Subscription
from regraft.errors import RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.selector import Selector
from regraft.wire import native

RANGES_MAX = 1000  # in one frame

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
        self.waiting_at_start = 0
        self._send = send
        self._handed: dict[int, None] = {}  # with the application, and not settled
        self._failed: set[int] = set()  # those of them that a callback could not deal with
        self._highest = 0  # of all that were handed out
        self._passed_over: set[int] = set()  # below that, and never handed out
        self._settled: list[tuple[int, int]] = []  # to be sent
        self._due = False
        self._again = False  # connected again: some may come a second time
        self._token = 0
        self._waiters: dict[int, asyncio.Future[None]] = {}

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
                yield await self.next()
        except EndedError:
            return

    def settle(self, *messages: ReceivedMessage) -> None:
        """These are done with: they do not come again."""
        for message in messages:
            self.settle_sequence(message.sequence)

    def settle_through(self, message: ReceivedMessage) -> None:
        """This one and all that were handed out before it are done with."""
        for sequence in [one for one in self._handed if one <= message.sequence]:
            self.settle_sequence(sequence)

    async def settled(self, timeout: float | None = 10.0) -> None:
        """Wait until all that was settled is safe, so that it never comes again."""
        self._token += 1
        future = self._waiters[self._token] = asyncio.get_running_loop().create_future()
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
        await self._depart(kind is None)

    async def _depart(self, done: bool) -> None:
        if not self._ended:
            self.leave(done)
            self._drop_pending()  # it comes again to the next who reads the mailbox
            await self._unsubscribe(self, False)

    def leave(self, done: bool) -> None:
        """It ends. If the application is `done` with what it took, that is settled.

        A callback is not: it may be at work on one just now.
        """
        if done and not self.manual and not self.called:
            self._settle_handed()
        if self._settled:
            self._flush()

    def unsettled(self) -> int:
        """How many messages the application has and did not settle."""
        return len(self._handed)

    # ------------------------------------------------------------------ for the client

    def settle_sequence(self, sequence: int) -> None:
        """One is done with."""
        if self._handed.pop(sequence, 0) == 0:
            return
        self._failed.discard(sequence)
        self._note(sequence)

    def fail(self, message: ReceivedMessage) -> None:
        """A callback could not deal with it: it stays unsettled."""
        if message.sequence in self._handed:
            self._failed.add(message.sequence)

    def refused(self, error: RegraftError) -> None:
        """Some settlements were refused: what they were about comes again some day."""
        log.warning("mailbox %r: some messages stay unsettled: %s", self.name, error)
        self._fail_waiters(error)

    def end(self, error: RegraftError | None = None) -> None:
        """No more will come, and nothing is settled any more."""
        super().end(error)
        self._fail_waiters(error or EndedError())

    def _note(self, sequence: int) -> None:
        last = self._settled[-1] if self._settled else None
        if last is not None and last[1] + 1 == sequence:
            self._settled[-1] = (last[0], sequence)
        else:
            self._settled.append((sequence, sequence))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Tell the node what is settled."""
        self._due = False
        settled, self._settled = self._settled, []
        waits = any(not future.done() for future in self._waiters.values())
        token = self._token if waits else 0
        while settled or token:
            some, settled = settled[:RANGES_MAX], settled[RANGES_MAX:]
            numbers = tuple(number for pair in some for number in pair)
            self._send(native.Settle(self.id, numbers, 0 if settled else token))
            if not settled:
                return

    def done(self, token: int) -> None:
        """The node has all that was settled up to this token."""
        for one in [one for one in self._waiters if one <= token]:
            future = self._waiters.pop(one)
            if not future.done():
                future.set_result(None)

    def reconnected(self) -> None:
        """What was not settled comes again."""
        self._again = True
        self._drop_pending()
        self._settled.clear()  # what the node does not know comes again, and is settled then
        text = "in flight: the connection was lost; it is settled when it comes again"
        self._fail_waiters(WorldError("connection-lost", text))

    def forget_sequences(self) -> None:
        """It is another journal now, and another mailbox: all that comes is new."""
        self._drop_pending()
        self._handed.clear()
        self._failed.clear()
        self._passed_over.clear()
        self._highest = 0

    def _drop_pending(self) -> None:
        """Forget what has arrived and was not handed out."""
        self._passed_over.update(one.sequence for one in self._ready if one.sequence)
        for batch in self._batches:
            self._release(batch)
        self._batches.clear()
        self._ready.clear()
        self._left = 0

    def _fail_waiters(self, error: RegraftError) -> None:
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits gets it; nobody need
        self._waiters.clear()

    def push(self, batch: Batch) -> None:
        """Messages have arrived."""
        if self._again:
            fresh = [message for message in batch.messages if self._is_new(message)]
            if len(fresh) < len(batch.messages):
                if not fresh:
                    self._release(batch)
                    return
                batch.messages[:] = fresh
        super().push(batch)

    def _is_new(self, message: ReceivedMessage) -> bool:
        """Whether the application has not seen it; if it settled it, the node missed that."""
        if not message.sequence or message.sequence > self._highest:
            return True
        if not message.redelivered:
            # Nobody was ever given it: somebody has removed the mailbox, and it was made again.
            self.forget_sequences()
            return True
        if message.sequence in self._passed_over:
            return True
        if message.sequence not in self._handed:
            self._note(message.sequence)
        return False

    def _ask(self) -> None:
        """The application asks for more: with that it is done with what it has."""
        if not self.manual:
            self._settle_handed()

    def _hand(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            if message.sequence:
                self._handed[message.sequence] = None
                self._passed_over.discard(message.sequence)
                self._highest = max(self._highest, message.sequence)

    def _settle_handed(self) -> None:
        for sequence in [one for one in self._handed if one not in self._failed]:
            self.settle_sequence(sequence)
