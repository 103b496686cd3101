"""What an overlay wants done, in order. The node takes them after each call."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from regraft.overlay.messages import Beacon, Message


class Send(NamedTuple):
    """Send a message over a connection, behind what was sent before."""

    key: int
    message: Message


class Cast(NamedTuple):
    """Send a beacon as a datagram, which may be lost."""

    address: str
    beacon: Beacon


class Dial(NamedTuple):
    """Open a connection: `connected` or `unreachable` follows."""

    address: str


class HangUp(NamedTuple):
    """End a connection, behind what was sent before. The overlay has forgotten it already."""

    key: int
    reason: str


class Added(NamedTuple):
    """The connection is a link from now on."""

    key: int
    node: bytes
    rid: bytes  # of the lost link that it replaces, b"" if none


class Removed(NamedTuple):
    """The link is over, as planned."""

    key: int


class Dead(NamedTuple):
    """The link is over, and nobody wanted it."""

    key: int
    rid: bytes  # the same at both ends


class Say(NamedTuple):
    """Something for people to read."""

    level: str  # of the standard library's logging, lower case
    text: str


Action: TypeAlias = Send | Cast | Dial | HangUp | Added | Removed | Dead | Say
