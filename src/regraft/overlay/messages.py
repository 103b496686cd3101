"""What the overlays of two nodes say to each other.

Each of these is a frame with the same fields in the same order. Node ids are 16 bytes, addresses
"host:port".
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Reason(IntEnum):
    """Why a request was refused, or why a link is over."""

    NONE = 0
    OWN_TREE = 1  # the request came back to the asker: both are in one tree
    BUSY = 2  # the root has a request of its own outstanding, and the larger id
    FULL = 3  # the candidate has as many neighbours as it takes
    HELD_DOWN = 4  # the link flapped, or somebody removed it by hand
    LEAVING = 5  # the node is about to go
    LOST = 6  # the candidate, or somebody above it, lost its parent meanwhile
    TOO_FAR = 7  # the root is further away than a request may travel
    UNKNOWN = 8  # the request makes no sense here
    CANCELLED = 9  # the asker does not wait for it any more
    LATE = 10  # the acceptance came too late
    MOVED = 11  # the child goes elsewhere, because it was told to


class Candidate(NamedTuple):
    """A node that may be asked for a place below it."""

    node: bytes  # b"" when only the address is known
    address: str
    hops: int  # from its root, as far as is known


NOBODY = Candidate(b"", "", 0)


class Ask(NamedTuple):
    """The root of a fragment asks for a place. It goes to the candidate, and up from there."""

    asker: bytes
    number: int  # never used twice by an asker, not even in another life
    hops: int  # links that it climbed so far
    urgent: bool  # nobody else is left: never mind the degree
    replaces: bytes  # the rid of the link whose loss caused it, b"" if none did
    address: str  # of the asker


class Answer(NamedTuple):
    """What became of a request: down the way it came, and as a refusal on to the asker."""

    asker: bytes
    number: int
    granted: bool
    reason: int
    distance: int  # links that the request had climbed where it was answered
    candidates: tuple[Candidate, ...]  # who may be better


class Accept(NamedTuple):
    """From the candidate: you are my child, and this connection is a link."""

    number: int
    root: bytes
    hops: int  # from the candidate to the root


class Leave(NamedTuple):
    """This link is over; where there is none, the sender's request is."""

    reason: int
    heir: Candidate  # whom the other end may ask instead; NOBODY if none


class Status(NamedTuple):
    """What a neighbour should know of its neighbour's place; when something of it changed."""

    root: bytes
    hops: int
    degree: int
    ancestors: tuple[Candidate, ...]  # of the sender: its parent first
    others: tuple[Candidate, ...]  # the sender's children


class Beacon(NamedTuple):
    """A sign of life: a datagram, or a frame where datagrams do not get through.

    A number that is not 0 wants an echo. Datagrams echo datagrams, frames echo frames.
    """

    node: bytes
    incarnation: int
    number: int
    echo: int  # the number last heard from the other end, 0 if none
    echo_us: int  # how long ago that was


Message: TypeAlias = Ask | Answer | Accept | Leave | Status | Beacon
