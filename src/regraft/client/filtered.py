"""A subscription with a filter of the application's own, which is asked here in any case.

Nodes that know the filter spare the delivery; others send what its topic and its selector allow. So
what the application gets is the same wherever the filter is known.
"""

from __future__ import annotations

from typing import Any

from regraft.client.link import Batch
from regraft.client.subscription import Subscription
from regraft.client.upkeep import log
from regraft.kernels.inbox import ReceivedMessage


class Part(Batch):
    """What is left of a batch."""

    __slots__ = ("whole",)

    def __init__(self, whole: Batch, messages: list[ReceivedMessage]) -> None:
        super().__init__(whole.link, messages, whole.size)
        self.whole = whole


class Filtered(Subscription):
    """Messages that a filter matches."""

    filter: Any = None
    passed_by = 0  # messages that came and that the filter does not match
    failed = 0  # messages on which it failed, which the application gets

    def push(self, batch: Batch) -> None:
        """Messages have arrived: some of them are wanted."""
        wanted = [message for message in batch.messages if self._wants(message)]
        if len(wanted) == len(batch.messages):
            super().push(batch)
        elif wanted:
            super().push(Part(batch, wanted))
        else:
            self._release(batch)

    def _wants(self, message: ReceivedMessage) -> bool:
        try:
            if self.filter.matches(message.message):
                return True
        except Exception:
            self.failed += 1
            if self.failed == 1:
                log.exception("a filter failed on %r, which is delivered; %r", message, self)
            return True
        self.passed_by += 1
        return False

    def _release(self, batch: Batch) -> None:
        super()._release(batch.whole if isinstance(batch, Part) else batch)
