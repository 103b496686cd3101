"""Replies for programs without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any

from regraft.client.replies import AllReplies, Replies
from regraft.client.subscription import EndedError
from regraft.kernels.inbox import ReceivedMessage


class BlockingReplies:
    """What comes back to one question: see `Replies`."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], replies: Replies) -> None:
        self._run = run
        self._replies = replies

    @property
    def more(self) -> bool:
        """Whether there may be another reply."""
        return self._replies.more

    @property
    def complete(self) -> bool:
        """Whether all have come, and nobody is missing."""
        return self._replies.complete

    @property
    def expected(self) -> int | None:
        """How many may reply, once that is known."""
        return self._replies.expected

    @property
    def received(self) -> int:
        """How many have come."""
        return self._replies.received

    @property
    def reason(self) -> str:
        """Why it is over and not complete."""
        return self._replies.reason

    def pending(self) -> int:
        """How many replies have come and were not taken yet."""
        return self._replies.pending()

    def next(self, timeout: float | None = None) -> ReceivedMessage:
        """The next reply: see `Replies.next`."""
        message: ReceivedMessage = self._run(self._replies.next(timeout))
        return message

    def all(self, timeout: float | None = None) -> AllReplies:
        """All replies: see `Replies.all`."""
        found: AllReplies = self._run(self._replies.all(timeout))
        return found

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            try:
                yield self.next()
            except EndedError:
                return

    def close(self) -> None:
        """Want no more of them."""
        self._run(self._replies.close())

    def __enter__(self) -> BlockingReplies:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
