"""What nodes say to each other: the frames of connections between them, and of beacons.

Rules:

- Both ends begin with PEER; a connection that begins with HELLO belongs to a client.
- A connection between nodes becomes a *link* of the tree with ACCEPT, once, and is never anything
  else afterwards. MESSAGE, INTERESTS and CREDIT belong to links only.
- BEACON also travels as a datagram: one whole frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from regraft.model import varint
from regraft.wire.protobuf import (
    boolean,
    enumeration,
    fixed64,
    message,
    octets,
    repeated,
    string,
    uint32,
    uint64,
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A node's first frame to another node: who it is, and what it gives."""

    version_min: int = uint32(1)
    version_max: int = uint32(2)
    node_id: bytes = octets(3)
    node_name: str = string(4)
    incarnation: int = uint64(5)
    address: str = string(6)
    credit_messages: int = uint64(7)
    credit_bytes: int = uint64(8)
    frame_bytes_max: int = uint32(9)
    advertisements: bool = boolean(10)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that somebody may ask for a place below it."""

    node: bytes = octets(1)
    address: str = string(2)
    hops: int = uint32(3)


@dataclass(frozen=True, slots=True)
class Ask:
    """The root of a fragment asks for a place in the tree; passed up to the root of that."""

    asker: bytes = octets(1)
    number: int = uint64(2)
    hops: int = uint32(3)
    urgent: bool = boolean(4)
    replaces: bytes = octets(5)
    address: str = string(6)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it, back the same way."""

    asker: bytes = octets(1)
    number: int = uint64(2)
    granted: bool = boolean(3)
    reason: int = uint32(4)
    distance: int = uint32(5)
    candidates: tuple[Candidate, ...] = repeated(6, Candidate)


@dataclass(frozen=True, slots=True)
class Accept:
    """You are my child from now on: this connection is a link."""

    number: int = uint64(1)
    root: bytes = octets(2)
    hops: int = uint32(3)


@dataclass(frozen=True, slots=True)
class Leave:
    """This link, or this request, is over."""

    reason: int = uint32(1)
    heir: Candidate | None = message(2, Candidate)  # noqa: RUF009, it declares a field


@dataclass(frozen=True, slots=True)
class Status:
    """What a neighbour should know of its neighbour's place."""

    root: bytes = octets(1)
    hops: int = uint32(2)
    degree: int = uint32(3)
    ancestors: tuple[Candidate, ...] = repeated(4, Candidate)
    others: tuple[Candidate, ...] = repeated(5, Candidate)


@dataclass(frozen=True, slots=True)
class Beacon:
    """A sign of life, with the echo of the last one heard."""

    node: bytes = octets(1)
    incarnation: int = uint64(2)
    number: int = uint64(3)
    echo: int = uint64(4)
    echo_us: int = uint64(5)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter that a neighbour wants, under a number of its own."""

    number: int = uint64(1)
    pattern: str = string(2)
    exact: bool = boolean(3)
    selector: str = string(4)
    filter: str = string(5)
    filter_data: bytes = octets(6)


@dataclass(frozen=True, slots=True)
class Interests:
    """What a neighbour wants from now on, and what no more."""

    add: tuple[Wanted, ...] = repeated(1, Wanted)
    remove: tuple[int, ...] = repeated(2, varint.UINT64)
    synced: bool = boolean(3)


@dataclass(frozen=True, slots=True)
class Leaving:
    """I am about to go: send me nothing more, and say when you do not."""

    heir: tuple[Candidate, ...] = repeated(1, Candidate)
    neighbours: tuple[bytes, ...] = repeated(2, varint.BYTES)


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing more comes on this link."""


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing more comes from me: I am gone, and everything was passed on."""


@dataclass(frozen=True, slots=True)
class Flush:
    """What waits because of a lost link waits no longer: the one in its place is complete."""

    rid: bytes = octets(1)
    route: tuple[bytes, ...] = repeated(2, varint.BYTES)
    hops: int = uint32(3)
    echo: bool = boolean(4)


@dataclass(frozen=True, slots=True)
class Restored:
    """The end of a lost link that FLUSH went to has unsubscribed, and all on the way."""

    rid: bytes = octets(1)


@dataclass(frozen=True, slots=True)
class Activate:
    """What need not be said on a new link before it is known that somebody wants it."""

    rid: bytes = octets(1)
    doubtful: tuple[Wanted, ...] = repeated(2, Wanted)
    route: tuple[bytes, ...] = repeated(3, varint.BYTES)


@dataclass(frozen=True, slots=True)
class Reroute:
    """What went by a lost link goes by you; I have entered it under these numbers."""

    rid: bytes = octets(1)
    given: tuple[Wanted, ...] = repeated(2, Wanted)
    remove: tuple[int, ...] = repeated(3, varint.UINT64)
    head: tuple[bytes, ...] = repeated(4, varint.BYTES)
    tail: tuple[bytes, ...] = repeated(5, varint.BYTES)


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Of what you entered in my name, this was not needed."""

    rid: bytes = octets(1)
    remove: tuple[int, ...] = repeated(2, varint.UINT64)


@dataclass(frozen=True, slots=True)
class Moving:
    """A node is about to go from one parent to another: all that it sent is ahead of this."""

    rid: bytes = octets(1)
    mover: bytes = octets(2)
    route: tuple[bytes, ...] = repeated(3, varint.BYTES)


@dataclass(frozen=True, slots=True)
class Ready:
    """The new parent expects it; or somebody on the way says why it does not go on from there.

    The second may come after the first: then a link of the way has ended.
    """

    rid: bytes = octets(1)
    ok: bool = boolean(2)
    why: str = string(3)


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing more comes from my old parent: send me what you kept."""

    rid: bytes = octets(1)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the messages that follow began: what one publisher sent over one connection."""

    node: int = fixed64(1)
    stream: int = fixed64(2)
    first: int = fixed64(3)


@dataclass(frozen=True, slots=True)
class Known:
    """How much is known of a node that keeps messages."""

    journal: bytes = octets(1)
    version: int = uint64(2)


@dataclass(frozen=True, slots=True)
class Homes:
    """Of which nodes that keep messages is known how much: what is newer is to be told."""

    known: tuple[Known, ...] = repeated(1, Known)


@dataclass(frozen=True, slots=True)
class Durable:
    """A mailbox or a stream, and what it takes."""

    number: int = uint64(1)
    name: str = string(2)
    pattern: str = string(3)
    exact: bool = boolean(4)
    selector: str = string(5)


@dataclass(frozen=True, slots=True)
class Home:
    """What a node keeps messages for, as it is passed on from node to node."""

    journal: bytes = octets(1)
    node: bytes = octets(2)
    name: str = string(3)
    version: int = uint64(4)
    since: int = uint64(5)
    add: tuple[Durable, ...] = repeated(6, Durable)
    remove: tuple[int, ...] = repeated(7, varint.UINT64)
    whole: bool = boolean(8)
    first: bool = boolean(9)
    last: bool = boolean(10)
    gone: bool = boolean(11)


@dataclass(frozen=True, slots=True)
class Carried:
    """Messages for the mailboxes of a node, from the journal of the one where they began."""

    journal: bytes = octets(1)
    stream: int = uint64(2)
    base: int = uint64(3)
    first: int = uint64(4)
    round: int = uint64(5)
    frames: bytes = octets(6)
    offset: int = uint64(7)
    total: int = uint64(8)
    joint: int = uint64(9)
    joint_bytes: int = uint64(10)
    mailbox: int = uint64(11)
    marked: int = uint64(12)
    backs: tuple[int, ...] = repeated(13, varint.UINT64)


@dataclass(frozen=True, slots=True)
class Taken:
    """They are persisted, up to there; or something is missing behind it."""

    journal: bytes = octets(1)
    stream: int = uint64(2)
    upto: int = uint64(3)
    round: int = uint64(4)
    missing: bool = boolean(5)
    held: int = uint64(6)


class Step(IntEnum):
    """How far a mailbox is that moves."""

    ASKED = 0  # I want to have it
    GIVEN = 1  # you have it: this is what it is, and from now on it is handed over
    REFUSED = 2  # you cannot have it
    GONE = 3  # I do not have it, or no more


@dataclass(frozen=True, slots=True)
class Move:
    """A mailbox goes from one node to another, or is to."""

    journal: bytes = octets(1)
    node: str = string(2)
    stream: int = uint64(3)
    mailbox: int = uint64(4)
    step: Step = enumeration(5, Step)  # noqa: RUF009, it declares a field
    first: int = uint64(6)
    options: bytes = octets(7)
    name: str = string(8)
    text: str = string(9)
    heir: bytes = octets(10)
    heir_mailbox: int = uint64(11)
    heir_node: str = string(12)


@dataclass(frozen=True, slots=True)
class Command:
    """Somebody wants something done by this node."""

    token: int = uint64(1)
    what: str = string(2)
    json: bytes = octets(3)


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""

    token: int = uint64(1)
    json: bytes = octets(2)
