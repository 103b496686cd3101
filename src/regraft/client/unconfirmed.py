"""Persistent messages that no node has confirmed yet: they are sent again until one does.

A node recognises what it has already by publisher and sequence, so that sending again is never
wrong. What was written to a connection is kept as it was written, in whole chunks; what of it has
to be sent again is found out only when that happens.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections import deque
from typing import NamedTuple

from regraft.client.lookout import Lookout
from regraft.errors import RegraftError
from regraft.model.message import DeliveryMode, decode_envelope
from regraft.wire import native


class Chunk(NamedTuple):
    """Frames that were written at once."""

    data: bytes
    last: int  # sequence of the last persistent message among them


class Waiter:
    """Somebody who waits until messages are safe."""

    __slots__ = ("first", "future", "last", "takers")

    def __init__(self, first: int, last: int, future: Future[int]) -> None:
        self.first = first
        self.last = last
        self.future = future
        self.takers = 0

    def refuse(self, error: RegraftError) -> None:
        """One of them is refused: there is nothing more to wait for."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # whoever waits gets it; nobody need


class Unconfirmed:
    """What was published and is not known to be safe, in the order of sequences."""

    def __init__(self) -> None:
        self.safe = 0  # all up to this sequence were confirmed or refused
        self.last = 0  # the last that was written
        self.size = 0  # bytes kept
        self._chunks: deque[Chunk] = deque()
        self._waiters: deque[Waiter] = deque()
        self._lookout = Lookout()
        self._refused: list[tuple[int, int, RegraftError]] = []  # first, last; above `safe`
        self._refused_last: tuple[int, int, RegraftError] | None = None  # of all, ever

    def __bool__(self) -> bool:
        return self.safe < self.last

    def begin(self, sequence: int) -> None:
        """Nothing was published yet, and sequences up to this one are used up."""
        if not self and sequence > self.last:
            self.safe = self.last = sequence

    def written(self, data: bytes, last: int) -> None:
        """This was written, with persistent messages up to a sequence in it."""
        self._chunks.append(Chunk(data, last))
        self.size += len(data)
        self.last = last

    def wait(self, first: int, last: int, loop: AbstractEventLoop) -> Future[int]:
        """Done once all from `first` to `last` are safe: how many took the last of them."""
        waiter = Waiter(first, last, loop.create_future())
        if self._refused_last is not None:
            for refused_first, refused_last, error in [self._refused_last, *self._refused]:
                if refused_first <= last and refused_last >= first:
                    waiter.refuse(error)
        alone = not self._waiters
        self._waiters.append(waiter)
        if last <= self.safe:
            self._settle()
        elif alone:
            self._lookout.begin(waiter.future, loop)
        return waiter.future

    def confirmed(self, first: int, count: int, takers: int) -> None:
        """A node has these, and all before them."""
        last = first + count - 1
        for waiter in self._waiters:
            if waiter.last < first:
                continue
            if waiter.last > last:
                break
            waiter.takers = takers
        self.safe = max(self.safe, last)
        self._settle()

    def refused(self, first: int, count: int, error: RegraftError) -> bool:
        """A node does not take these; whether somebody waits for one of them."""
        last = first + count - 1
        self._refused.append((first, last, error))
        if self._refused_last is None or last > self._refused_last[1]:
            self._refused_last = (first, last, error)
        told = False
        for waiter in self._waiters:
            if waiter.first <= last and waiter.last >= first:
                waiter.refuse(error)
                told = True
        self._settle()
        return told

    def _settle(self) -> None:
        """Forget what is dealt with, and tell who waited for it."""
        if len(self._refused) > 1:
            self._refused.sort(key=lambda refusal: refusal[0])
        while self._refused and self._refused[0][0] <= self.safe + 1:
            self.safe = max(self.safe, self._refused.pop(0)[1])
        while self._chunks and self._chunks[0].last <= self.safe:
            self.size -= len(self._chunks.popleft().data)
        while self._waiters and self._waiters[0].last <= self.safe:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_result(waiter.takers)

    def fail(self, error: RegraftError) -> None:
        """Nothing will be confirmed any more."""
        for waiter in self._waiters:
            waiter.refuse(error)
        self._waiters.clear()

    def again(self) -> list[tuple[bytes, int]]:
        """The frames that have to be sent again, with their sequences; they are forgotten here."""
        frames: list[tuple[bytes, int]] = []
        for data, _ in self._chunks:
            at = 0
            while at < len(data):
                end = at + 4 + int.from_bytes(data[at : at + 4], "little")
                if data[at + 4] == native.Kind.MESSAGE:
                    message = decode_envelope(data[at + native.HEADER_BYTES : end])
                    sequence = message.sequence or 0
                    if message.delivery_mode is DeliveryMode.PERSISTENT and self._wanted(sequence):
                        frames.append((data[at:end], sequence))
                at = end
        self._chunks.clear()
        self.size = 0
        return frames

    def _wanted(self, sequence: int) -> bool:
        return sequence > self.safe and not any(
            first <= sequence <= last for first, last, _ in self._refused
        )
