"""A subscription as the application sees it: something to iterate over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType

from regraft.client.link import Batch
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage


class Subscription:
    """Messages of one subscription, in the order in which they came.

    It outlives connections: after a reconnection it goes on by itself. Iterate over it, over its
    `batches()`, or ask for the `next()`; leave its context, or `unsubscribe()`, to end it.
    """

    def __init__(
        self,
        id: int,
        pattern: str,
        where: str,
        exact: bool,
        taken: Callable[[Batch], None],
        unsubscribe: Callable[[Subscription], Awaitable[None]],
    ) -> None:
        self.id = id
        self.pattern = pattern
        self.where = where
        self.exact = exact
        self._taken = taken
        self._unsubscribe = unsubscribe
        self._batches: deque[Batch] = deque()
        self._current: list[ReceivedMessage] = []  # of the first batch, reversed
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: RegraftError | None = None

    # ------------------------------------------------------------ for the application

    async def next(self, timeout: float | None = None) -> ReceivedMessage:
        """The next message; after `timeout` seconds without one, a `timed-out` error."""
        while not self._current:
            await self._arrival(timeout)
        return self._pop()

    def pending(self) -> int:
        """How many messages have arrived and were not taken yet."""
        batches = iter(self._batches)
        if self._current:
            next(batches)  # of which the current ones are what is left
        return len(self._current) + sum(len(batch.messages) for batch in batches)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        try:
            while True:
                while self._current:
                    yield self._pop()
                await self._arrival(None)
        except EndedError:
            return

    async def next_batch(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """The messages that arrived together next, at least one."""
        while not self._current:
            await self._arrival(timeout)
        messages = self._current[::-1]
        self._current = []
        self._finish_batch()
        return messages

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
            await self._unsubscribe(self)

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
        self._batches.append(batch)
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
        """Make the next batch the current one, or wait until there is one."""
        if self._batches:
            self._current = self._batches[0].messages[::-1]
            return
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
        message = self._current.pop()
        if not self._current:
            self._finish_batch()
        return message

    def _finish_batch(self) -> None:
        self._release(self._batches.popleft())

    def _release(self, batch: Batch) -> None:
        batch.waiting -= 1
        if batch.waiting == 0:
            self._taken(batch)


class EndedError(LocalError):
    """The subscription was ended, and everything that had arrived was taken."""

    def __init__(self) -> None:
        super().__init__("closed", "the subscription has ended")
