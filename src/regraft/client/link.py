"""One connection to a node, without a socket: bytes in, events out; and the other way.

It knows the handshake, counts credit in both directions, and remembers which messages the node is
known to have dealt with. It does not know time, tasks, or other connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from regraft.errors import PeerError, RegraftError
from regraft.kernels.inbox import Inbox, ReceivedMessage
from regraft.kernels.outbox import Outbox
from regraft.wire import native, offers, peers, questions

CONFIRMED = int(native.Kind.CONFIRMED)
GRANT_MAX = 1 << 62  # more than anybody will send
FRAME_BYTES_FIRST = 1 << 20  # until WELCOME says what the node allows


class Batch:
    """Messages that arrived together; `waiting` subscriptions have not finished with them."""

    __slots__ = ("count", "link", "messages", "size", "waiting")

    def __init__(self, link: Link, messages: list[ReceivedMessage], size: int) -> None:
        self.link = link  # over which they came: only there do they count as taken
        self.messages = messages
        self.count = len(messages)  # as they came
        self.size = size
        self.waiting = 0


class Welcomed(NamedTuple):
    """The connection is open."""

    welcome: native.Welcome


class Arrived(NamedTuple):
    """Messages, and the subscriptions they are for."""

    subscriptions: tuple[int, ...]
    batch: Batch


class Settled(NamedTuple):
    """The node answered a SUBSCRIBE or UNSUBSCRIBE."""

    subscription: int
    error: RegraftError | None
    answer: native.Subscribed | None = None


class Unsettled(NamedTuple):
    """The node refused a SETTLE; the subscription goes on."""

    subscription: int
    error: RegraftError


class Safe(NamedTuple):
    """Persistent messages are safe: their sequences, as first and count, and takers of each."""

    sequences: list[tuple[int, int]]
    takers: int


class Done(NamedTuple):
    """A settlement is safe."""

    subscription: int
    token: int


class Confirmed(NamedTuple):
    """The node has dealt with every message up to this one."""

    ordinal: int


class Refused(NamedTuple):
    """The node did not take these messages."""

    ordinal: int
    messages: int
    error: RegraftError
    sequences: list[tuple[int, int]]  # of the persistent ones among them


class Asked(NamedTuple):
    """The node wants to know whether we are there: the answer."""

    answer: bytes


class Told(NamedTuple):
    """The node says what it holds."""

    what: str
    json: bytes


class Performed(NamedTuple):
    """The node has done what a command said."""

    token: int
    json: bytes


class Concluded(NamedTuple):
    """What became of a transaction."""

    decided: native.Decided


class Denied(NamedTuple):
    """The node does not do what a command said; or, without a token, does not say what it holds."""

    error: RegraftError
    token: int


class Replied(NamedTuple):
    """The node says something about a question: REPLY, COUNTED or ENDED."""

    message: Any


class Offered(NamedTuple):
    """The node says something about an advertisement: ADVERTISED or DEMAND."""

    message: Any


class Missed(NamedTuple):
    """The node dropped messages that were for us."""

    messages: int
    reason: str


class Leaving(NamedTuple):
    """The node asks us to go elsewhere."""

    reason: str
    alternatives: tuple[str, ...]


class Failed(NamedTuple):
    """The node ends the connection, and says why."""

    error: RegraftError


LinkEvent: TypeAlias = (
    Welcomed
    | Arrived
    | Settled
    | Unsettled
    | Safe
    | Done
    | Confirmed
    | Refused
    | Asked
    | Told
    | Performed
    | Concluded
    | Denied
    | Replied
    | Offered
    | Missed
    | Leaving
    | Failed
)


class Link:
    """The state of one connection."""

    def __init__(self, hello: native.Hello, seed: int) -> None:
        self._hello = hello
        self.inbox = Inbox(FRAME_BYTES_FIRST, native.read_transfer)
        self.outbox = Outbox(FRAME_BYTES_FIRST, seed)
        self.is_open = False
        self.is_over = False  # nothing more may be published here
        self.confirmed = 0  # of what was sent, known to be dealt with
        self._taken_messages = 0  # by the application
        self._taken_bytes = 0
        self._allowed_messages = hello.credit_messages
        self._allowed_bytes = hello.credit_bytes

    def open(self) -> bytes:
        """What to send first."""
        return native.PREFACE + native.encode(self._hello)

    # ---------------------------------------------------------------------- sending

    def barrier(self) -> bytes:
        """Ask to be told when all that was sent so far has been dealt with."""
        return native.encode(native.Heartbeat(token=self.outbox.sent_messages))

    def taken(self, batch: Batch) -> bytes:
        """The application is done with a batch; what to send for it, if anything."""
        self._taken_messages += batch.count
        self._taken_bytes += batch.size
        hello = self._hello
        messages = self._taken_messages + self.inbox.repeated + hello.credit_messages
        size = self._taken_bytes + self.inbox.repeated_size + hello.credit_bytes
        if (
            messages - self._allowed_messages < hello.credit_messages // 4
            and size - self._allowed_bytes < hello.credit_bytes // 4
        ):
            return b""
        self._allowed_messages = messages
        self._allowed_bytes = size
        return native.encode(native.Credit(messages, size))

    # -------------------------------------------------------------------- receiving

    def receive(self, data: bytes | memoryview) -> Iterator[LinkEvent]:
        """What happened, by these bytes. A `PeerError` means that the node talks nonsense."""
        for key, content, size in self.inbox.feed(data):
            if type(key) is tuple:
                yield Arrived(key, Batch(self, content, size))
            elif key == CONFIRMED:  # one for each message, where somebody waits for each
                ordinal, count, takers = native.read_confirmed(content)
                yield Safe(self.outbox.safe(ordinal, count), takers)
            else:
                message = native.decode(key, content)
                event = self.control(message)
                if event is not None:
                    yield event

    def control(self, message: Any) -> LinkEvent | None:
        """What a control frame means."""
        match message:
            case native.Welcome():
                self._welcomed(message)
                return Welcomed(message)
            case native.Subscribed():
                return Settled(message.id, None, message)
            case native.Unsubscribed():
                return Settled(message.id, None)
            case native.Confirmed(ordinal, count, takers):
                return Safe(self.outbox.safe(ordinal, count), takers)
            case native.Settled():
                return Done(message.subscription, message.token)
            case native.Credit():
                self._grant(message.messages, message.bytes)
            case native.Heartbeat(answer=True):
                self.confirmed = max(self.confirmed, message.token)
                return Confirmed(message.token)
            case native.Heartbeat(token=token):
                if token:
                    return Asked(native.encode(native.Heartbeat(token, True)))
            case native.Inspected():
                return Told(message.what, message.json)
            case peers.Done():
                return Performed(message.token, message.json)
            case native.Decided():
                return Concluded(message)
            case questions.Reply() | questions.Counted() | questions.Ended():
                return Replied(message)
            case offers.Advertised() | offers.Demand():
                return Offered(message)
            case native.Dropped():
                return Missed(message.messages, message.reason)
            case native.Goaway():
                return Leaving(message.reason, message.alternatives)
            case native.Error():
                return self._error(message)
            case _:
                raise PeerError("protocol-violation", f"the node sent a {type(message).__name__}")
        return None

    def _welcomed(self, welcome: native.Welcome) -> None:
        if self.is_open:
            raise PeerError("protocol-violation", "the node sent a second WELCOME")
        if welcome.version != native.VERSION:
            raise PeerError("unsupported-version", f"the node chose version {welcome.version}")
        for feature in welcome.features:
            if feature.required:
                text = f"the node requires {feature.name!r}, which this client does not have"
                raise PeerError("unsupported-feature", text)
        self.is_open = True
        self._grant(welcome.credit_messages, welcome.credit_bytes)
        if welcome.frame_bytes_max:
            self.outbox.frame_bytes_max = welcome.frame_bytes_max
            self.inbox.frame_bytes_max = max(FRAME_BYTES_FIRST, welcome.frame_bytes_max)

    def _grant(self, messages: int, size: int) -> None:
        outbox = self.outbox
        outbox.granted_messages = max(outbox.granted_messages, min(messages, GRANT_MAX))
        outbox.granted_bytes = max(outbox.granted_bytes, min(size, GRANT_MAX))

    def _error(self, message: native.Error) -> LinkEvent:
        error = message.exception()
        if message.fatal:
            return Failed(error)
        if message.settlement:
            return Unsettled(message.subscription, error)
        if message.subscription:
            return Settled(message.subscription, error)
        if not message.ordinal:
            return Denied(error, message.token)
        count = message.count or 1
        sequences = self.outbox.sequences_of(message.ordinal, count)
        return Refused(message.ordinal, count, error, sequences)
