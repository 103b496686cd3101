"""What may happen to a node."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Now(NamedTuple):
    """The time of a step: one clock for durations, one for what people write down."""

    ns: int  # monotonic
    wall_us: int  # since 1970 UTC


class Opened(NamedTuple):
    """Somebody connected. The driver chose the number, never used before."""

    connection: int
    peer: str  # for people


class Connected(NamedTuple):
    """A connection that the node wanted is there; it goes on as one that was opened."""

    connection: int
    ticket: int
    peer: str  # for people


class ConnectFailed(NamedTuple):
    """A connection that the node wanted cannot be had."""

    ticket: int
    reason: str


class Datagram(NamedTuple):
    """A datagram came from an address."""

    address: str
    data: bytes


class Received(NamedTuple):
    """Bytes arrived. They may change once the step is over."""

    connection: int
    data: memoryview


class Unsent(NamedTuple):
    """How much of what was to be written is still with the driver.

    Reported after every write that could not be finished at once or asked for it, and whenever the
    number has become smaller.
    """

    connection: int
    size: int


class Closed(NamedTuple):
    """A connection is gone, whoever ended it. Nothing of it follows."""

    connection: int
    reason: str


class Tick(NamedTuple):
    """The moment of a `WakeAt` has come."""


class Stop(NamedTuple):
    """Somebody wants the node to end: tell the clients, let them go, say when all is done."""

    reason: str


class Persisted(NamedTuple):
    """What was to be persisted is: written and synced."""


class DiskFailed(NamedTuple):
    """The disk did not do what it should: "write", "sync", "create", "prepare", ..."""

    what: str
    errno: int
    text: str  # for people


class SegmentReady(NamedTuple):
    """A segment of the journal that was to be prepared is there."""

    first: int


class JournalRead(NamedTuple):
    """What was read from the journal, or why it could not be."""

    ticket: int
    data: bytes
    error: str  # for people; empty if there is none


class StagedRead(NamedTuple):
    """What was read of a staged file, or why it could not be; empty if files were checked."""

    ticket: int
    data: bytes
    error: str  # for people; empty if there is none


Event: TypeAlias = (
    Opened
    | Received
    | Unsent
    | Closed
    | Tick
    | Stop
    | Persisted
    | DiskFailed
    | SegmentReady
    | JournalRead
    | StagedRead
    | Connected
    | ConnectFailed
    | Datagram
)
