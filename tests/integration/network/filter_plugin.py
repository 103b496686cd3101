"""A filter as an operator would install it: nodes are started with it, or without."""

from __future__ import annotations

import regraft


@regraft.filter("long-words")
class LongWords:
    """Messages whose body has words of so many letters."""

    def __init__(self, letters: int) -> None:
        self.letters = letters

    def encode(self) -> bytes:
        """Its number."""
        return b"%d" % self.letters

    @classmethod
    def decode(cls, data: bytes) -> LongWords:
        """The opposite."""
        return cls(int(data))

    def matches(self, message: regraft.Message) -> bool:
        """Whether one of the words is as long."""
        return any(len(word) >= self.letters for word in message.body.split())

    def covers(self, other: LongWords) -> bool:
        """Longer words are long words."""
        return self.letters <= other.letters
