"""A subscription as the application sees it: something to iterate over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType

from regraft.client.link import Batch
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.selector import Selector
from regraft.wire import native


class Subscription:
    """Messages of one subscription, in the order in which they came.

    It outlives connections: after a reconnection it goes on by itself. Iterate over it, over its
    `batches()`, or ask for the `next()`; leave its context, or `unsubscribe()`, to end it.
    """

    def __init__(
        self,
        wanted: native.Subscribe,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription, bool], Awaitable[None]],
    ) -> None:
        self.wanted = wanted
        self.id = wanted.id
        self.pattern = wanted.pattern
        self.where = wanted.selector
        self.exact = wanted.exact
        self._taken = taken
        self._unsubscribe = unsubscribe
        self._ready: deque[ReceivedMessage] = deque()
        self._batches: deque[Batch] = deque()  # what is ready came in these,
        self._left = 0  # and of the first of them so many are left
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: RegraftError | None = None
        self.called = False  # a callback takes what comes

    # ------------------------------------------------------------ for the application

    async def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message; after `timeout` seconds without one, a `timed-out` error.

        With `where`, the next one for which the selector is true; the others stay in their order.
        """
        if where is not None:
            return await self._next_where(timeout, where)
        while not self._ready:
            await self._arrival(timeout)
        return self._pop()

    async def _next_where(self, timeout: float | None, where: str | Selector) -> ReceivedMessage:
        selector = Selector.parse(where) if isinstance(where, str) else where
        clock = asyncio.get_running_loop()
        deadline = None if timeout is None else clock.time() + timeout
        looked_at = 0
        while True:
            for index in range(looked_at, len(self._ready)):
                message = self._ready[index]
                if selector.matches(message.message):
                    del self._ready[index]
                    self._spend(1)
                    return message
            looked_at = len(self._ready)
            await self._arrival(None if deadline is None else max(0.0, deadline - clock.time()))

    async def next_batch(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """All that has arrived, at least one message."""
        while not self._ready:
            await self._arrival(timeout)
        messages = list(self._ready)
        self._ready.clear()
        self._spend(len(messages))
        return messages

    def pending(self, *, where: str | Selector | None = None) -> int:
        """How many messages have arrived and were not taken yet; with `where`, that satisfy it."""
        if where is None:
            return len(self._ready)
        selector = Selector.parse(where) if isinstance(where, str) else where
        return sum(selector.matches(message.message) for message in self._ready)

    def take(self, where: Selector | None = None) -> ReceivedMessage | None:
        """The first message that has arrived, and satisfies `where`; None if there is none."""
        if self.called or not self._ready:
            return None
        if where is None:
            return self._pop()
        for index, message in enumerate(self._ready):
            if where.matches(message.message):
                del self._ready[index]
                self._spend(1)
                return message
        return None

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        ready = self._ready
        try:
            while True:
                while ready:
                    self._left -= 1
                    if self._left == 0:
                        self._finish_batch()
                    yield ready.popleft()
                await self._arrival(None)
        except EndedError:
            return

    async def batches(self) -> AsyncIterator[list[ReceivedMessage]]:
        """Messages as they arrived together: the fastest way to take many."""
        try:
            while True:
                yield await self.next_batch()
        except EndedError:
            return

    async def unsubscribe(self) -> None:
        """End it. What has arrived can still be taken; then iterating over it ends."""
        if not self._ended:
            await self._unsubscribe(self, False)

    @property
    def question(self) -> native.Subscribe:
        """What to ask a node for, now."""
        return self.wanted

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.unsubscribe()

    def __repr__(self) -> str:
        return f"<subscription {self.id} to {self.pattern!r}>"

    # ------------------------------------------------------------------ for the client

    def push(self, batch: Batch) -> None:
        """Messages have arrived."""
        if self._ended:
            self._release(batch)
            return
        if not self._batches:
            self._left = len(batch.messages)
        self._batches.append(batch)
        self._ready.extend(batch.messages)
        self._wake()

    def end(self, error: RegraftError | None = None) -> None:
        """No more will come."""
        self._ended = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _arrival(self, timeout: float | None) -> None:
        """Wait until more has arrived."""
        if self._ended:
            raise self._error or EndedError()
        if self._waiter is not None:
            raise LocalError("closed", "two tasks wait for the same subscription; make two of it")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._waiter
        except TimeoutError:
            text = f"no message for {self.pattern or '#'!r} within {timeout} s"
            raise WorldError("timed-out", text) from None
        finally:
            self._waiter = None

    def _pop(self) -> ReceivedMessage:
        self._left -= 1
        if self._left == 0:
            self._finish_batch()
        return self._ready.popleft()

    def _spend(self, count: int) -> None:
        """So many messages were taken: the batches they came in, as far as they are used up."""
        while count >= self._left and self._batches:
            count -= self._left
            self._finish_batch()
        self._left -= count

    def _finish_batch(self) -> None:
        batch = self._batches.popleft()
        self._left = len(self._batches[0].messages) if self._batches else 0
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        batch.waiting -= 1
        if batch.waiting == 0:
            self._taken(batch)


class Shared(Subscription):
    """One that its subscribers share: the node hears what was taken, and balances by it."""

    def __init__(
        self,
        wanted: native.Subscribe,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription, bool], Awaitable[None]],
        send: Callable[[native.Control], None],
    ) -> None:
        super().__init__(wanted, taken, unsubscribe)
        self._send = send

    def _release(self, batch: Batch) -> None:
        super()._release(batch)
        self._send(native.Finished(batch.count))


class EndedError(LocalError):
    """The subscription was ended, and everything that had arrived was taken."""

    def __init__(self) -> None:
        super().__init__("closed", "the subscription has ended")
