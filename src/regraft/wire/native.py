"""The native protocol: its frames, and the control messages in them.

A client sends the preface, then frames; a node sends frames only. All integers are little-endian.

     0         4      5       6       8          12
     +---------+------+-------+-------+----------+-------------- ... --+
     | length  | kind | flags | check | checksum | payload             |
     +---------+------+-------+-------+----------+-------------- ... --+
      u32       u8     u8      u16     u32        length - 8 bytes

    length    bytes that follow it: 8 more than the payload has
    kind      of the message in the payload, see `Kind`
    flags     bit 0: needs the control lane; all others are 0
    check     the low 16 bits of the CRC-32C of the first six bytes
    checksum  the CRC-32C of the payload
    payload   a message of regraft.proto

Rules:

- The classes here mirror the schema, one line per field; a test compares them with it.
- `read_frame` is the slow and obvious reference. It judges in this order: check (before the length
  is believed), length, limit, kind, flags, and, once the payload is there, its checksum.
- What the other end did wrong is a `PeerError`, never another exception.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from regraft.errors import (
    BY_NUMBER,
    CODES,
    DiskError,
    LocalError,
    PeerError,
    RegraftError,
    WorldError,
)
from regraft.kernels.checksum import crc32c
from regraft.kernels.envelope import fields_of
from regraft.model import varint
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.wire import offers, peers, protobuf, questions, traces
from regraft.wire.protobuf import (
    boolean,
    enumeration,
    fixed32,
    fixed64,
    octets,
    repeated,
    sfixed64,
    string,
    uint32,
    uint64,
)

PREFACE = b"REGRAFT\n"
VERSION = 1
HEADER_BYTES = 12
FLAG_CONTROL = 1  # needs the control lane

_LENGTH_BYTES = 4  # which `length` itself does not count
_ERROR_TEXT_MAX = 2_000  # characters: enough for a sentence, whatever it quotes
_HEAD = struct.Struct("<IBB")
_SUMS = struct.Struct("<HI")


class Kind(IntEnum):
    """What a frame is. The arrow says who may send it."""

    HELLO = 1  # client -> node
    WELCOME = 2  # node -> client
    SUBSCRIBE = 3  # client -> node
    SUBSCRIBED = 4  # node -> client
    UNSUBSCRIBE = 5  # client -> node
    UNSUBSCRIBED = 6  # node -> client
    MESSAGE = 7  # both
    TRANSFER = 8  # node -> client
    CREDIT = 9  # both
    HEARTBEAT = 10  # both
    DROPPED = 11  # node -> client
    GOAWAY = 12  # node -> client
    ERROR = 13  # both
    BYE = 14  # client -> node
    INSPECT = 15  # client -> node
    INSPECTED = 16  # node -> client
    CONFIRMED = 17  # node -> client
    SETTLE = 18  # client -> node
    SETTLED = 19  # node -> client
    PEER = 20  # node -> node, as all that follow
    ASK = 21
    ANSWER = 22
    ACCEPT = 23
    LEAVE = 24
    STATUS = 25
    BEACON = 26
    INTERESTS = 27
    LEAVING = 28
    DRAINED = 29
    LEFT = 30
    COMMAND = 31  # client -> node
    DONE = 32  # node -> client
    ORIGIN = 33  # node -> node
    QUESTION = 34  # client -> node, node -> node
    REPLY = 35  # both
    COUNTED = 36  # node -> client, node -> node
    ENDED = 37  # node -> client, node -> node
    CONTEXT = 38  # client -> node
    WITHDRAWN = 39  # client -> node, node -> node
    FLUSH = 40
    RESTORED = 41
    ACTIVATE = 42
    REROUTE = 43
    REROUTED = 44
    MOVING = 45
    READY = 46
    RELEASE = 47
    HOMES = 50
    HOME = 51
    CARRIED = 52
    TAKEN = 53
    MOVE = 54
    FINISHED = 60  # client -> node
    TRANSACT = 61  # client -> node
    DECIDE = 62  # client -> node
    DECIDED = 63  # node -> client
    TRACE = 70  # client -> node, node -> node
    OFFERS = 80  # node -> node
    HEEDED = 81  # node -> node
    ADVERTISE = 82  # client -> node
    ADVERTISED = 83  # node -> client
    UNADVERTISE = 84  # client -> node
    DEMAND = 85  # node -> client


class StallPolicy(IntEnum):
    """What happens to a subscriber that makes no progress."""

    DISCONNECT = 0
    DROP_OLDEST = 1
    DROP_NEWEST = 2


class Outcome(IntEnum):
    """What becomes of a message that was delivered from a mailbox."""

    ACCEPT = 0  # done with
    RELEASE = 1  # somebody is to get it again
    REJECT = 2  # nobody is: it becomes a dead letter
    EXTEND = 3  # still at work on it


class Decision(IntEnum):
    """What is to become of a transaction."""

    COMMIT = 0
    PREPARE = 1  # it can be committed from then on, whatever happens
    ROLLBACK = 2
    ASK = 3  # nothing: what became of it?


class TransactionState(IntEnum):
    """What became of a transaction."""

    UNKNOWN = 0  # it is not prepared, and nothing is known of its end
    COMMITTED = 1
    ROLLED_BACK = 2
    PREPARED = 3


# -------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that one end can do; if required, the other end must know it to go on."""

    name: str = string(1)
    required: bool = boolean(2)


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's first frame: who it is, and what it wants."""

    version_min: int = uint32(1)
    version_max: int = uint32(2)
    features: tuple[Feature, ...] = repeated(3, Feature)
    client_id: str = string(4)
    agent: str = string(5)
    heartbeat_ms: int = uint32(6)
    passive: bool = boolean(7)
    peer_type: int = uint32(8)
    queue_messages: int = uint32(9)
    queue_bytes: int = uint64(10)
    when_stalled: StallPolicy = enumeration(11, StallPolicy)  # noqa: RUF009, it declares a field
    credit_messages: int = uint64(12)
    credit_bytes: int = uint64(13)
    token: bytes = octets(14)


@dataclass(frozen=True, slots=True)
class Welcome:
    """A node's first frame: who it is, and what it gives."""

    version: int = uint32(1)
    features: tuple[Feature, ...] = repeated(2, Feature)
    node_id: bytes = octets(3)
    node_name: str = string(4)
    incarnation: int = uint64(5)
    client_id: str = string(6)
    session_id: int = fixed64(7)
    token: bytes = octets(8)
    heartbeat_ms: int = uint32(9)
    credit_messages: int = uint64(10)
    credit_bytes: int = uint64(11)
    frame_bytes_max: int = uint32(12)
    subscriptions_max: int = uint32(13)
    time: int = sfixed64(14)
    journal: bytes = octets(15)
    sequence: int = uint64(16)
    serial: int = uint64(17)
    control_bytes_max: int = uint32(18)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A client wants what matches, under an id of its own."""

    id: int = uint32(1)
    pattern: str = string(2)
    selector: str = string(3)
    exact: bool = boolean(4)
    durable: str = string(5)
    in_flight: int = uint32(6)
    stream: str = string(7)
    from_sequence: int = uint64(8)
    from_time: int = sfixed64(9)
    paced: bool = boolean(10)
    until_sequence: int = uint64(11)
    until_time: int = sfixed64(12)
    options: bytes = octets(13)
    browse: bool = boolean(14)
    existing: bool = boolean(15)
    replies: bool = boolean(16)
    filter: str = string(17)
    filter_data: bytes = octets(18)
    move: bool = boolean(19)


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscription stands; its deliveries come after this."""

    id: int = uint32(1)
    next_sequence: int = uint64(2)
    waiting: int = uint64(3)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A client wants no more of a subscription; with `remove`, its mailbox goes, too."""

    id: int = uint32(1)
    remove: bool = boolean(2)


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The subscription is gone; no delivery of it comes after this."""

    id: int = uint32(1)


@dataclass(frozen=True, slots=True)
class Transfer:
    """What the node knows of the `count` MESSAGE frames that follow."""

    count: int = fixed32(1)
    subscriptions: tuple[int, ...] = repeated(2, varint.UINT32)
    principal: str = string(3)
    origin: bytes = octets(4)
    first_sequence: int = uint64(5)
    delivery_count: int = uint32(6)
    trace: bytes = octets(7)
    question: int = uint64(8)


@dataclass(frozen=True, slots=True)
class Credit:
    """How much may have been sent in all since the connection opened."""

    messages: int = uint64(1)
    bytes: int = uint64(2)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life; with a token it asks for an answer that carries the same one."""

    token: int = uint64(1)
    answer: bool = boolean(2)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was not delivered since the last such report, and why."""

    messages: int = uint64(1)
    bytes: int = uint64(2)
    reason: str = string(3)


@dataclass(frozen=True, slots=True)
class Goaway:
    """The connection is served only a little longer; go elsewhere."""

    reason: str = string(1)
    drain_ms: int = uint32(2)
    alternatives: tuple[str, ...] = repeated(3, varint.STRING)


@dataclass(frozen=True, slots=True)
class Error:
    """An error of the table in `regraft.errors`, and what it is about."""

    code: int = uint32(1)
    name: str = string(2)
    text: str = string(3)
    fatal: bool = boolean(4)
    subscription: int = uint32(5)
    ordinal: int = uint64(6)
    count: int = uint64(7)
    settlement: bool = boolean(8)
    token: int = uint64(9)

    @classmethod
    def of(
        cls,
        exc: RegraftError,
        *,
        subscription: int = 0,
        ordinal: int = 0,
        count: int = 0,
        settlement: bool = False,
        token: int = 0,
    ) -> Error:
        """What to send about an error; it can always be encoded, whatever its text quotes."""
        code = exc.code
        text = exc.text[:_ERROR_TEXT_MAX].encode(errors="replace").decode()
        about = subscription, ordinal, count, settlement, token
        return cls(code.number, code.name, text, code.fatal, *about)

    def exception(self) -> RegraftError:
        """What to raise for an error that was received."""
        code = BY_NUMBER.get(self.code)
        if code is None:
            text = f"{self.text} (error {self.code} {self.name!r}, unknown to this version)"
            return PeerError("protocol-violation", text)
        return _BLAME.get(code.name, PeerError)(code.name, self.text or code.meaning)


@dataclass(frozen=True, slots=True)
class Bye:
    """The client ends politely: send what waits, then close."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """What does the node hold?"""

    what: str = string(1)
    rows_max: int = uint32(2)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What it holds, as JSON: for people and tools."""

    what: str = string(1)
    json: bytes = octets(2)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Persistent messages are safe: `count` of them, up to the `ordinal`-th of the connection."""

    ordinal: int = uint64(1)
    count: int = uint64(2)
    takers: int = uint32(3)
    known: bool = boolean(4)


@dataclass(frozen=True, slots=True)
class Settle:
    """What becomes of messages of a mailbox; ranges are pairs, first and last sequence."""

    subscription: int = uint32(1)
    ranges: tuple[int, ...] = repeated(2, varint.UINT64)
    token: int = uint64(3)
    outcome: Outcome = enumeration(4, Outcome)  # noqa: RUF009, it declares a field
    delay_ms: int = uint64(5)
    undeliverable: bool = boolean(6)
    uncounted: bool = boolean(7)
    reason: str = string(8)


@dataclass(frozen=True, slots=True)
class Settled:
    """A settlement is safe: what it was about is not delivered again."""

    subscription: int = uint32(1)
    token: int = uint64(2)


@dataclass(frozen=True, slots=True)
class Finished:
    """A member of a group is done with so many messages that it does not answer."""

    count: int = uint64(1)


@dataclass(frozen=True, slots=True)
class Transact:
    """Some of what a transaction does; with the first of these it begins."""

    serial: int = uint64(1)
    messages: bytes = octets(2)
    passing: bytes = octets(3)
    settle: tuple[Settle, ...] = repeated(4, Settle)
    subscribe: tuple[Subscribe, ...] = repeated(5, Subscribe)
    remove: tuple[str, ...] = repeated(6, varint.STRING)


@dataclass(frozen=True, slots=True)
class Decide:
    """What is to become of a transaction: one of this session, or one that is prepared."""

    serial: int = uint64(1)
    gid: str = string(2)
    decision: Decision = enumeration(3, Decision)  # noqa: RUF009, it declares a field
    parts: int = uint32(4)


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of it, and why."""

    serial: int = uint64(1)
    gid: str = string(2)
    state: TransactionState = enumeration(3, TransactionState)  # noqa: RUF009
    code: int = uint32(4)
    name: str = string(5)
    text: str = string(6)
    messages: int = uint64(7)
    known: bool = boolean(8)

    def error(self) -> RegraftError | None:
        """Why it is not as it was asked for."""
        return Error(self.code, self.name, self.text).exception() if self.code else None


# Whom a receiver of an error blames; all others are disputes about the protocol: PeerError.
_BLAME: dict[str, type[RegraftError]] = {
    name: blame
    for blame, low, high in (
        (WorldError, 8, 13),
        (LocalError, 20, 39),
        (WorldError, 40, 49),
        (DiskError, 50, 59),
        (LocalError, 60, 69),
    )
    for name, code in CODES.items()
    if low <= code.number <= high
}

CLASSES: dict[Kind, type[Any]] = {
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.SUBSCRIBE: Subscribe,
    Kind.SUBSCRIBED: Subscribed,
    Kind.UNSUBSCRIBE: Unsubscribe,
    Kind.UNSUBSCRIBED: Unsubscribed,
    Kind.MESSAGE: Message,
    Kind.TRANSFER: Transfer,
    Kind.CREDIT: Credit,
    Kind.HEARTBEAT: Heartbeat,
    Kind.DROPPED: Dropped,
    Kind.GOAWAY: Goaway,
    Kind.ERROR: Error,
    Kind.BYE: Bye,
    Kind.INSPECT: Inspect,
    Kind.INSPECTED: Inspected,
    Kind.CONFIRMED: Confirmed,
    Kind.SETTLE: Settle,
    Kind.SETTLED: Settled,
    Kind.PEER: peers.Peer,
    Kind.ASK: peers.Ask,
    Kind.ANSWER: peers.Answer,
    Kind.ACCEPT: peers.Accept,
    Kind.LEAVE: peers.Leave,
    Kind.STATUS: peers.Status,
    Kind.BEACON: peers.Beacon,
    Kind.INTERESTS: peers.Interests,
    Kind.LEAVING: peers.Leaving,
    Kind.DRAINED: peers.Drained,
    Kind.LEFT: peers.Left,
    Kind.COMMAND: peers.Command,
    Kind.DONE: peers.Done,
    Kind.ORIGIN: peers.Origin,
    Kind.QUESTION: questions.Question,
    Kind.REPLY: questions.Reply,
    Kind.COUNTED: questions.Counted,
    Kind.ENDED: questions.Ended,
    Kind.CONTEXT: questions.Context,
    Kind.WITHDRAWN: questions.Withdrawn,
    Kind.FLUSH: peers.Flush,
    Kind.RESTORED: peers.Restored,
    Kind.ACTIVATE: peers.Activate,
    Kind.REROUTE: peers.Reroute,
    Kind.REROUTED: peers.Rerouted,
    Kind.MOVING: peers.Moving,
    Kind.READY: peers.Ready,
    Kind.RELEASE: peers.Release,
    Kind.HOMES: peers.Homes,
    Kind.HOME: peers.Home,
    Kind.CARRIED: peers.Carried,
    Kind.TAKEN: peers.Taken,
    Kind.MOVE: peers.Move,
    Kind.FINISHED: Finished,
    Kind.TRANSACT: Transact,
    Kind.DECIDE: Decide,
    Kind.DECIDED: Decided,
    Kind.TRACE: traces.Trace,
    Kind.OFFERS: offers.Offers,
    Kind.HEEDED: offers.Heeded,
    Kind.ADVERTISE: offers.Advertise,
    Kind.ADVERTISED: offers.Advertised,
    Kind.UNADVERTISE: offers.Unadvertise,
    Kind.DEMAND: offers.Demand,
}
KINDS: dict[type[Any], Kind] = {cls: kind for kind, cls in CLASSES.items()}

Control: TypeAlias = (
    Hello
    | Welcome
    | Subscribe
    | Subscribed
    | Unsubscribe
    | Unsubscribed
    | Transfer
    | Credit
    | Heartbeat
    | Dropped
    | Goaway
    | Error
    | Bye
    | Inspect
    | Inspected
    | Confirmed
    | Settle
    | Settled
    | peers.Peer
    | peers.Ask
    | peers.Answer
    | peers.Accept
    | peers.Leave
    | peers.Status
    | peers.Beacon
    | peers.Interests
    | peers.Leaving
    | peers.Drained
    | peers.Left
    | peers.Command
    | peers.Done
    | peers.Origin
    | questions.Question
    | questions.Reply
    | questions.Counted
    | questions.Ended
    | questions.Context
    | questions.Withdrawn
    | peers.Flush
    | peers.Restored
    | peers.Activate
    | peers.Reroute
    | peers.Rerouted
    | peers.Moving
    | peers.Ready
    | peers.Release
    | peers.Homes
    | peers.Home
    | peers.Carried
    | peers.Taken
    | peers.Move
    | Finished
    | Transact
    | Decide
    | Decided
    | traces.Trace
    | offers.Offers
    | offers.Heeded
    | offers.Advertise
    | offers.Advertised
    | offers.Unadvertise
    | offers.Demand
)


def encode(message: Control | Message) -> bytes:
    """The whole frame of a message."""
    payload = encode_envelope(message) if isinstance(message, Message) else protobuf.encode(message)
    return frame(KINDS[type(message)], payload)


def payload(message: Control) -> bytes:
    """What stands in the frame of a control message, without its header."""
    return protobuf.encode(message)


def decode(kind: int, payload: bytes) -> Any:
    """The message in a payload: an instance of `CLASSES[kind]`."""
    if kind == Kind.MESSAGE:
        return decode_envelope(payload)
    if kind not in CLASSES:
        raise _unknown_kind(kind)
    return protobuf.decode(CLASSES[Kind(kind)], payload)


def read_confirmed(payload: bytes) -> tuple[int, int, int]:
    """What a publisher wants to know of a CONFIRMED, which it may wait for with every message:
    the ordinal of the last, how many, and takers of each.
    """
    match fields_of(payload):
        case [(1, 0, ordinal), (2, 0, count), (3, 0, takers)] if takers <= varint.UINT32_MAX:
            return ordinal, count, takers
    message: Confirmed = decode(Kind.CONFIRMED, payload)  # or what is wrong with it
    return message.ordinal, message.count, message.takers


def read_transfer(payload: bytes) -> tuple[int, tuple[int, ...], int, int, int]:
    """What a receiver of a run wants to know: how many, for whom, sequence, attempts, question."""
    transfer: Transfer = decode(Kind.TRANSFER, payload)
    place = transfer.first_sequence, transfer.delivery_count, transfer.question
    return transfer.count, transfer.subscriptions, *place


# ---------------------------------------------------------------------- frames


def frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    """A payload with its header in front."""
    head = _HEAD.pack(HEADER_BYTES - _LENGTH_BYTES + len(payload), kind, flags)
    return head + _SUMS.pack(crc32c(head) & 0xFFFF, crc32c(payload)) + payload


def read_frame(
    data: bytes | memoryview, start: int, frame_bytes_max: int
) -> tuple[Kind, int, bytes, int] | None:
    """The frame at `start`: kind, flags, payload, and where it ends; None if it is not all there.

    `frame_bytes_max` bounds the whole frame, its header included.
    """
    header = bytes(data[start : start + HEADER_BYTES])
    if len(header) < HEADER_BYTES:
        return None
    length, kind, flags = _HEAD.unpack_from(header)
    check, checksum = _SUMS.unpack_from(header, _HEAD.size)
    if crc32c(header[: _HEAD.size]) & 0xFFFF != check:
        raise PeerError(
            "bad-checksum", "the check of a frame's header does not fit; the stream is out of step"
        )
    _judge_header(length, kind, flags, frame_bytes_max)
    end = start + _LENGTH_BYTES + length
    if len(data) < end:
        return None
    payload = bytes(data[start + HEADER_BYTES : end])
    if crc32c(payload) != checksum:
        raise PeerError("bad-checksum", f"the payload of a {Kind(kind).name} frame is damaged")
    return Kind(kind), flags, payload, end


def _judge_header(length: int, kind: int, flags: int, frame_bytes_max: int) -> None:
    if length < HEADER_BYTES - _LENGTH_BYTES:
        raise PeerError("malformed-frame", f"a frame of length {length} has no room for its header")
    if length + _LENGTH_BYTES > frame_bytes_max:
        text = f"a frame has {length + _LENGTH_BYTES} bytes; the limit is {frame_bytes_max}"
        raise PeerError("frame-too-large", text)
    if kind not in CLASSES:
        raise _unknown_kind(kind)
    if flags & ~FLAG_CONTROL:
        raise PeerError("malformed-frame", f"a frame has flags {flags:#04x}; only bit 0 has a use")


def _unknown_kind(kind: int) -> PeerError:
    return PeerError("malformed-frame", f"frame kind {kind} does not exist in version {VERSION}")
