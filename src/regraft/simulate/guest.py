"""A client in a simulated world: speaks the real protocol, and remembers what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from regraft.kernels.inbox import Inbox, ReceivedMessage
from regraft.model.message import Message
from regraft.simulate.world import Broker, Pipe
from regraft.wire import native

UNLIMITED = 1 << 62


@dataclass(slots=True)
class Sighting:
    """A message as a guest received it, and the subscriptions it had confirmed by then."""

    message: ReceivedMessage
    confirmed: dict[int, tuple[str, bool]]


@dataclass(slots=True)
class Guest:
    """One simulated client and its connection. It obeys credit, unless told otherwise."""

    name: str
    broker: Broker
    hello: native.Hello = field(default_factory=lambda: native.Hello(version_min=1, version_max=1))
    obedient: bool = True
    capacity: int = 65_536
    pipe: Pipe = field(init=False)
    welcome: native.Welcome | None = None
    seen: list[Sighting] = field(default_factory=list)
    controls: list[Any] = field(default_factory=list)
    asked: dict[int, tuple[str, bool]] = field(default_factory=dict)
    confirmed: dict[int, tuple[str, bool]] = field(default_factory=dict)
    dropped: int = 0  # as the node reported
    refused: int = 0
    sent: int = 0
    on_sent: Callable[[int], None] | None = None  # how many were before
    on_seen: Callable[[ReceivedMessage], None] | None = None
    on_control: Callable[[Any], None] | None = None
    _sent_bytes: int = 0
    _granted: tuple[int, int] = (0, 0)
    _waiting: list[bytes] = field(default_factory=list)
    _inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        self._inbox = Inbox(1 << 26, native.read_transfer)
        self.pipe = self.broker.connect(self.capacity)
        self.pipe.on_data = self._received
        self.pipe.send(native.PREFACE + native.encode(self.hello))

    def subscribe(self, id: int, pattern: str, exact: bool = False, selector: str = "") -> None:
        """Ask for a subscription."""
        self.asked[id] = (pattern, exact)
        self.pipe.send(native.encode(native.Subscribe(id, pattern, selector, exact)))

    def unsubscribe(self, id: int) -> None:
        """Ask for its end."""
        self.pipe.send(native.encode(native.Unsubscribe(id)))

    def publish(self, message: Message) -> None:
        """Publish as soon as credit allows, in order."""
        self._waiting.append(native.encode(message))
        self._send_waiting()

    def allow(self, messages: int, size: int = UNLIMITED) -> None:
        """Give the node credit."""
        self.pipe.send(native.encode(native.Credit(messages, size)))

    @property
    def waiting(self) -> int:
        """Messages that wait for credit."""
        return len(self._waiting)

    def _send_waiting(self) -> None:
        while self._waiting:
            messages, size = self._granted
            if self.obedient and (self.sent >= messages or self._sent_bytes >= size):
                return
            if self.welcome is None:
                return
            frame = self._waiting.pop(0)
            self.pipe.send(frame)
            if self.on_sent is not None:
                self.on_sent(self.sent)
            self.sent += 1
            self._sent_bytes += len(frame)

    def _received(self, data: bytes) -> None:
        for key, content, _ in self._inbox.feed(data):
            if isinstance(key, tuple):
                for message in content:
                    if self.on_seen is not None:
                        self.on_seen(message)
                    else:
                        self.seen.append(Sighting(message, dict(self.confirmed)))
            else:
                self._control(native.decode(key, content))

    def _control(self, message: Any) -> None:
        self.controls.append(message)
        if self.on_control is not None:
            self.on_control(message)
        match message:
            case native.Welcome():
                self.welcome = message
                self._granted = (message.credit_messages, message.credit_bytes)
                self._send_waiting()
            case native.Credit():
                self._granted = (message.messages, message.bytes)
                self._send_waiting()
            case native.Subscribed():
                self.confirmed[message.id] = self.asked[message.id]
            case native.Unsubscribed():
                self.confirmed.pop(message.id)
            case native.Dropped():
                self.dropped += message.messages
            case native.Error(ordinal=ordinal) if ordinal:
                self.refused += message.count or 1
