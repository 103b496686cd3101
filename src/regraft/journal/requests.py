"""What a journal wants done with its files. The driver performs requests in their order.

Persist         -> `Journal.persisted()` or `failed("persist", ...)`; one at a time
PrepareSegment  -> `Journal.prepared(first)` or `failed("prepare", ...)`
RemoveSegment   -> nothing; one that fails is tried again at the next start
ReadJournal     -> `Journal.arrived(ticket, data, error)`
PunchHole       -> nothing; what is not punched only takes space
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Piece(NamedTuple):
    """Bytes for one place of one segment."""

    first: int  # the position of the segment's first byte: its name
    offset: int  # in the segment's file
    data: bytes | memoryview


class Persist(NamedTuple):
    """Write all pieces and sync them, then say so: one group commit.

    A segment that has no file yet is made first, of the size given. Pieces are taken in order, and
    one is synced before the next is written: no segment begins before the one before it ends. So a
    crash leaves nothing in a segment that lies behind one with a torn end.
    """

    pieces: tuple[Piece, ...]
    size: int  # of a segment


class PrepareSegment(NamedTuple):
    """Make the file of a segment that will be needed soon: zeros, or a removed one renamed."""

    first: int
    size: int


class RemoveSegment(NamedTuple):
    """Nobody needs it any more."""

    first: int


class ReadJournal(NamedTuple):
    """Read up to `size` bytes of a segment; the end of the file ends it sooner."""

    ticket: int
    first: int
    offset: int
    size: int


class PunchHole(NamedTuple):
    """Give the space of these bytes back; they read as zeros from then on."""

    first: int
    offset: int
    size: int


Request: TypeAlias = Persist | PrepareSegment | RemoveSegment | ReadJournal | PunchHole
