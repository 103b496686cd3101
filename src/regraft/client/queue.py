"""Queues: mailboxes that several members share, and what looks at them without taking anything.

A queue is a durable subscription that is made when it is first read, and whose messages are settled
one by one: accepted, released, rejected. What a member holds when it leaves goes back at once.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, TypedDict

from regraft.client.durable import Durable, Settlement
from regraft.client.link import Batch
from regraft.client.payload import milliseconds
from regraft.client.subscription import EndedError, Subscription
from regraft.errors import LocalError, RegraftError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.selector import Selector
from regraft.wire import native

BACKOFF_MAX_S = 60.0

log = logging.getLogger("regraft.client")

Handler = Callable[[ReceivedMessage], Awaitable[None] | None]
Attach = Callable[[Subscription], Awaitable[None]]


class QueueOptions(TypedDict, total=False):
    """What a queue is like, from when it is made on. Times are in seconds."""

    shared: bool  # several members share it; the default
    exclusive: bool  # one of its members reads, the others stand by
    order_by: str  # an attribute: equal values go to the same member, in order
    lease: float  # how long a member may hold a message; 0: as long as it is connected
    retry: float  # before what was released comes again, doubled each time,
    retry_max: float  # up to this
    max_deliveries: int  # then it becomes a dead letter; 0: never
    dead_letter: str  # the topic for those; dead/NAME if not given
    dead_expired: bool  # what expires becomes one, too
    quota_messages: int  # how many may wait; then publishers are refused
    quota_bytes: int


_SECONDS = {"lease": "lease_ms", "retry": "retry_ms", "retry_max": "retry_max_ms"}


def mailbox_options(options: QueueOptions) -> dict[str, Any]:
    """Options as nodes are told them. What is not said there, nodes decide."""
    known = QueueOptions.__annotations__
    told: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            text = f"a queue has no option {name!r}; there are {', '.join(known)}"
            raise LocalError("bad-configuration", text)
        if name in _SECONDS:
            assert isinstance(value, float | int)
            told[_SECONDS[name]] = milliseconds(name, value)
        else:
            told[name] = value
    return told


def made_options(options: QueueOptions) -> dict[str, Any]:
    """The same for a queue that is to be made: shared, unless something else is said."""
    told = mailbox_options(options)
    if not told.keys() & {"shared", "exclusive", "order_by"}:
        told = {"shared": True, **told}
    return told


class Queue(Durable):
    """A queue, as one of its members sees it: messages to accept, release or reject.

    Iterate over it, over its `batches()`, or ask for the `next()`: with that it is attached, and
    made if need be. Leaving its context gives back what is held: at once and uncounted, unless it
    was an error that ended it; then the attempts count.
    """

    def __init__(
        self,
        wanted: native.Subscribe,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription, bool], Awaitable[None]],
        send: Callable[[native.Control], None],
        attach: Attach,
        auto: bool,
    ) -> None:
        super().__init__(wanted, taken, unsubscribe, send, not auto)
        self._attach = attach
        self._attaching = asyncio.Lock()
        self._attached = False

    @property
    def question(self) -> native.Subscribe:
        """What to ask a node for: a queue as it is, unless it was said how it should be."""
        if self.wanted.options:
            return self.wanted
        return replace(self.wanted, pattern="", selector="", exact=False, existing=True)

    def instead(self, error: RegraftError) -> native.Subscribe | None:
        """If there is no such queue yet, it is made; if it was removed under us, it is not."""
        if error.code.name != "unknown-mailbox" or self.stands or self.wanted.existing:
            return None
        return replace(self.wanted, options=json.dumps(made_options({})).encode())

    async def open(self) -> Queue:
        """Attach to the queue. Whatever reads it does this."""
        async with self._attaching:
            if not self._attached:
                await self._attach(self)
                self._attached = True
        return self

    async def __aenter__(self) -> Queue:
        return await self.open()

    async def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message; after `timeout` seconds without one, a `timed-out` error.

        With `where`, the next one for which the selector is true; the others stay in their order.
        """
        if not self._attached:
            await self.open()
        return await super().next(timeout, where=where)

    async def next_batch(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """All that has arrived, at least one message."""
        if not self._attached:
            await self.open()
        return await super().next_batch(timeout)

    async def close(self) -> None:
        """Read no more: what is held goes back at once, uncounted, to whoever asks next.

        With `auto`, what was taken is accepted.
        """
        await self._depart(True)

    async def _depart(self, done: bool, failed: bool = False) -> None:
        if self._attached:
            await super()._depart(done, failed)

    def leave(self, done: bool, failed: bool = False) -> None:
        """It ends: what is held goes back. If it ends by an error, these attempts count."""
        if done and not self.manual:
            self._settle_handed()
        for sequence in list(self._handed):
            self.settle_sequence(sequence, Settlement.release(count=failed))
        for message in self._ready:
            if message.sequence:
                self._note(message.sequence, Settlement.release(count=False))
        super().leave(done, failed)

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"


class Browse(Subscription):
    """What waits in a queue, in the order in which it came; nothing is taken.

    It ends with what was there when it began.
    """

    def __init__(
        self,
        wanted: native.Subscribe,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription, bool], Awaitable[None]],
        attach: Attach,
    ) -> None:
        super().__init__(wanted, taken, unsubscribe)
        self._attach = attach
        self._attached = False
        self._selector = Selector.parse(wanted.selector) if wanted.selector else None
        self._position = 0  # sequence of the last message that has arrived

    async def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message that waits; an error of code `closed` after the last one."""
        await self._open()
        return await super().next(timeout, where=where)

    async def next_batch(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """All that has arrived, at least one message."""
        await self._open()
        return await super().next_batch(timeout)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        try:
            while True:
                yield await self.next()
        except EndedError:
            return

    async def __aenter__(self) -> Browse:
        await self._open()
        return self

    async def _open(self) -> None:
        if not self._attached:
            self._attached = True
            await self._attach(self)

    async def unsubscribe(self) -> None:
        """Look no further."""
        if self._attached:
            await super().unsubscribe()

    def push(self, batch: Batch) -> None:
        """Messages have arrived; after a reconnection the first ones come again."""
        fresh = [
            message
            for message in batch.messages
            if message.sequence > self._position
            and (self._selector is None or self._selector.matches(message.message))
        ]
        self._position = max(self._position, batch.messages[-1].sequence)
        if not fresh:
            self._release(batch)
            return
        batch.messages[:] = fresh
        super().push(batch)


class Work:
    """A handler that is called with the messages of a queue, several at a time.

    Leave its context, or `stop()` it, to end it: it takes no more, what is being worked on is
    finished, the rest goes back. Closing the client ends it at once: what is being worked on is
    cancelled and goes back, too.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        concurrency: int,
        backoff: float,
        spawn: Callable[[Any], asyncio.Task[None]],
    ) -> None:
        if concurrency < 1:
            raise LocalError("bad-configuration", f"concurrency: {concurrency} is not 1 or more")
        milliseconds("backoff", backoff)
        self.queue = queue
        self.handled = 0  # returned from
        self.failed = 0  # raised from
        self._handler = handler
        self._backoff = backoff
        self._spawn = spawn
        self._free = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None

    async def start(self) -> Work:
        """Attach to the queue and begin."""
        await self.queue.open()
        self._taking = self._spawn(self._take())
        return self

    async def wait(self) -> None:
        """Wait until it ends: because it was stopped, or with the error that ended it."""
        assert self._taking is not None
        await asyncio.wait([self._taking])
        if not self._taking.cancelled():
            self._taking.result()

    async def stop(self, timeout: float | None = None) -> None:
        """Take no more, and wait until what is being worked on is finished.

        What is not finished after `timeout` seconds is cancelled, and goes back with the rest.
        """
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.queue.close()

    async def __aenter__(self) -> Work:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _take(self) -> None:
        try:
            while True:
                await self._free.acquire()  # first: what nobody works on is not held here
                message = await self.queue.next()
                task = self._spawn(self._handle(message))
                self._tasks.add(task)
                task.add_done_callback(self._done)
        except EndedError:
            return  # the client was closed

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()

    async def _handle(self, message: ReceivedMessage) -> None:
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
        except Exception:
            self.failed += 1
            log.exception("the handler for %r failed on %r", self.queue, message)
            delay = min(self._backoff * 2.0 ** min(message.attempts, 32), BACKOFF_MAX_S)
            await message.release(delay)
        else:
            self.handled += 1
            await message.accept()
