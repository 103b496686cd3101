"""What a node may want done. The driver performs effects in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from regraft.journal.requests import Request


class Write(NamedTuple):
    """Write pieces, one behind the other.

    They are good until the next step: what cannot be written at once is copied by the driver.
    """

    connection: int
    pieces: Sequence[bytes | memoryview]
    report: bool = False  # say `Unsent` even if all was written at once


class Close(NamedTuple):
    """End a connection; with `flush` after what was written before, within a bounded time."""

    connection: int
    reason: str
    flush: bool = True


class Hold(NamedTuple):
    """Stop reading from a connection, or go on."""

    connection: int
    held: bool


class WakeAt(NamedTuple):
    """Give a `Tick` at this moment; it replaces the one asked for before."""

    ns: int


class Connect(NamedTuple):
    """Open a connection to another node, "host:port": `Connected` or `ConnectFailed` follows."""

    ticket: int
    address: str


class SendDatagram(NamedTuple):
    """Send a datagram, which may be lost."""

    address: str
    data: bytes


class HandOver(NamedTuple):
    """Let a process beside the node serve a connection to its end: much data, few decisions.

    For the node it is closed then.
    """

    connection: int
    job: bytes  # JSON: what it is to do


class CheckStaged(NamedTuple):
    """Are these files whole: names and sizes? `StagedRead` follows."""

    ticket: int
    files: tuple[tuple[str, int], ...]


class ReadStaged(NamedTuple):
    """Read up to `size` bytes of a staged file: `StagedRead` follows."""

    ticket: int
    name: str
    offset: int
    size: int


class RemoveStaged(NamedTuple):
    """Nobody needs these files any more."""

    names: tuple[str, ...]


class SweepStaged(NamedTuple):
    """Remove all staged files that were last written before this moment, except these."""

    before_us: int
    keep: tuple[str, ...]


class Note(NamedTuple):
    """Something for people to read."""

    level: str  # of the standard library's logging, lower case
    text: str


class Refuse(NamedTuple):
    """Accept no more connections."""


class Stopped(NamedTuple):
    """All is done: the driver may end."""


# What the journal wants done with its files is an effect, too.
Effect: TypeAlias = (
    Write
    | Close
    | Hold
    | WakeAt
    | Connect
    | SendDatagram
    | HandOver
    | CheckStaged
    | ReadStaged
    | RemoveStaged
    | SweepStaged
    | Note
    | Refuse
    | Stopped
    | Request
)
