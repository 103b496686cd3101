"""Replies to a question, as the application that asked sees them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from regraft.client.subscription import EndedError
from regraft.errors import LocalError, RegraftError, ReplyTimeout
from regraft.kernels.inbox import ReceivedMessage

GRACE_S = 0.5  # for the node to say what is missing, once the time is over


class AllReplies(list[ReceivedMessage]):
    """A list of replies; `complete` if these are all that there are, else the `reason` why not.

    `expected` is how many may have replied, as far as that is known.
    """

    def __init__(self, replies: list[ReceivedMessage], source: Replies) -> None:
        super().__init__(replies)
        self.complete = source.complete
        self.expected = source.expected
        self.reason = source.reason


class Replies:
    """What comes back to one question.

    Iterate over it, ask for the `next()`, or wait for `all()`. Leave its context, or `close()` it,
    when no more replies are wanted.
    """

    def __init__(
        self,
        topic: str,
        token: int,
        bytes_max: int,
        withdraw: Callable[[Replies], None],
    ) -> None:
        self.topic = topic
        self.token = token
        self.expected: int | None = None  # how many may reply: known once all were asked
        self.received = 0
        self.complete = False  # all have come, and nobody is missing
        self.reason = ""  # why it is over and not complete
        self.error: RegraftError | None = None  # the question was refused
        self._bytes_max = bytes_max
        self._size = 0
        self._withdraw = withdraw
        self._ready: deque[ReceivedMessage] = deque()
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ for the application

    @property
    def more(self) -> bool:
        """Whether there may be another reply: one that has come, or one that may come yet."""
        return bool(self._ready) or not self._over

    def pending(self) -> int:
        """How many replies have come and were not taken yet."""
        return len(self._ready)

    async def next(self, timeout: float | None = None) -> ReceivedMessage:
        """The next reply; `ReplyTimeout` after `timeout` seconds without one.

        If there are no more, an error of the code `closed`: see `more`, or iterate over it.
        """
        while not self._ready:
            if self.error is not None:
                raise self.error
            if self._over:
                raise EndedError()
            await self._news(timeout)
        message = self._ready.popleft()
        self._size -= len(message.envelope)
        return message

    async def all(self, timeout: float | None = None) -> AllReplies:
        """All replies that were not taken yet, once the last has come.

        After `timeout` seconds, those that have come until then; they are not `complete`.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        found: list[ReceivedMessage] = []
        while self.more:
            try:
                left = None if until is None else max(0.0, until - loop.time())
                found.append(await self.next(left))
            except EndedError:
                break
            except ReplyTimeout:
                late = AllReplies(found, self)
                late.reason = f"not all replies came within {timeout} s"
                return late
        if self.error is not None:
            raise self.error
        return AllReplies(found, self)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        try:
            while True:
                yield await self.next()
        except EndedError:
            return

    async def close(self) -> None:
        """Want no more of them."""
        if not self._over:
            self._withdraw(self)
            self.end("it was closed")

    async def __aenter__(self) -> Replies:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "complete" if self.complete else self.reason or "open"
        return f"<replies about {self.topic!r}: {self.received}, {state}>"

    # ------------------------------------------------------------------ for the client

    def limit(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that it ends, though the node may say nothing."""
        late = f"not all replied within {seconds} s"
        self._timer = loop.call_later(seconds + GRACE_S, self._late, late)

    def _late(self, reason: str) -> None:
        if not self._over:
            self._withdraw(self)
            self.end(reason)

    def push(self, envelope: bytes) -> None:
        """A reply has come."""
        if self._over:
            return
        if self._size + len(envelope) > self._bytes_max:  # counted by the node, and not here
            return
        self._size += len(envelope)
        self.received += 1
        self._ready.append(ReceivedMessage(envelope))
        self._wake()

    def counted(self, repliers: int) -> None:
        """It is known how many may reply."""
        self.expected = repliers

    def ended(self, repliers: int, replies: int, complete: bool, reason: str) -> None:
        """The node says that no more will come."""
        self.expected = repliers
        if complete and replies != self.received:
            missing = replies - self.received
            text = f"{missing} replies were dropped: take them faster, or raise queue_bytes"
            self.end(text)
        elif complete:
            self.complete = not self._over
            self.end("")
        else:
            self.end(reason or "not all replied")

    def end(self, reason: str, error: RegraftError | None = None) -> None:
        """No more will come."""
        if self._over:
            return
        self._over = True
        self.reason = reason
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self, timeout: float | None) -> None:
        """Wait until something happens."""
        if self._waiter is not None:
            raise LocalError("closed", "two tasks wait for the same replies; ask twice")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._waiter
        except TimeoutError:
            raise ReplyTimeout(f"no reply about {self.topic!r} within {timeout} s") from None
        finally:
            self._waiter = None
