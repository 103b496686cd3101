"""What a publisher may send ahead: cumulative counters that only grow.

A publisher may begin a message while it has sent fewer messages and fewer bytes than were granted,
so that one message may always be longer than what is left.
"""

from __future__ import annotations


class Window:
    """The credit of one publisher. Once it has sent `due_*`, it should be given more."""

    __slots__ = ("due_messages", "due_size", "messages", "size")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages  # granted so far
        self.size = size
        self.due_messages = messages // 2
        self.due_size = size // 2

    def exhausted(self, messages: int, size: int) -> bool:
        """Whether somebody who has sent this much must wait."""
        return messages >= self.messages or size >= self.size

    def extend(self, messages: int, size: int, ahead_messages: int, ahead_size: int) -> bool:
        """Grant a whole window again once half of the last one is used; whether it did."""
        if messages < self.due_messages and size < self.due_size:
            return False
        self.messages = max(self.messages, messages + ahead_messages)
        self.size = max(self.size, size + ahead_size)
        self.due_messages = self.messages - ahead_messages // 2
        self.due_size = self.size - ahead_size // 2
        return True
