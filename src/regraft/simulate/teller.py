"""A client that publishes transactions, each of several messages that must not be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regraft.model.message import Message
from regraft.simulate.guest import Guest
from regraft.simulate.ledger import Letter
from regraft.simulate.world import Broker
from regraft.wire import native
from regraft.wire.native import Decision, TransactionState

PART_BYTES = 4096  # of one TRANSACT frame


@dataclass(slots=True)
class Teller:
    """One connection of it. `on_decided` is told of letters, whether they count, and why not."""

    name: str
    broker: Broker
    on_decided: Callable[[Sequence[Letter], bool, str], None]
    numbers: int = 0  # letters so far
    guest: Guest = field(init=False)
    _open: dict[int, Sequence[Letter]] = field(default_factory=dict)  # by serial
    _serials: int = 0

    def __post_init__(self) -> None:
        hello = native.Hello(version_min=1, version_max=1, client_id=self.name, passive=True)
        self.guest = Guest(self.name, self.broker, hello, capacity=1 << 20)
        self.guest.on_control = self._told

    @property
    def here(self) -> bool:
        """Whether it has a connection still, on which it was welcomed."""
        return not self.guest.pipe.closed and self.guest.welcome is not None

    def commit(self, letters: Sequence[Letter], messages: Sequence[Message]) -> None:
        """Publish all of these, or none."""
        self._serials += 1
        self._open[self._serials] = letters
        frames = b"".join(map(native.encode, messages))
        parts = [frames[at : at + PART_BYTES] for at in range(0, len(frames), PART_BYTES)]
        for part in parts:
            self.guest.pipe.send(native.encode(native.Transact(self._serials, part)))
        decide = native.Decide(self._serials, "", Decision.COMMIT, len(parts))
        self.guest.pipe.send(native.encode(decide))

    def _told(self, message: Any) -> None:
        if isinstance(message, native.Decided):
            letters = self._open.pop(message.serial)
            committed = message.state is TransactionState.COMMITTED
            self.on_decided(letters, committed, message.name)
