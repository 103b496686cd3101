"""The bytes of a journal: what stands in records, at the end of a segment, and in JSON.

    record   header (48 bytes), meta, payload, zeros up to a multiple of 8

     0          4        8          16     24      28         32      36     40          44     45
     +----------+--------+----------+------+-------+----------+-------+------+-----------+------+--
     | checksum | length | position | time | epoch | unsynced | count | meta | publisher | kind | f.
     +----------+--------+----------+------+-------+----------+-------+------+-----------+------+--
      u32        u32      u64        i64    u32     u32        u32     u32    u32         u8     u8

    segment  START, records, INDEX, zeros, trailer (the last 64 bytes)

A TRANSACTION record begins a group: the records up to the position that it says count all together,
or none of them does. They are records as any others otherwise.

All numbers are little-endian. Records are written and walked by `kernels/records.py`; here is what
their payloads say. A decoder gives a value or a DiskError, whatever the bytes.

There is one version of the format, 1. A reader for every version that was ever published stays
here: a START record says which one its segment is written in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from regraft.errors import DiskError
from regraft.kernels.checksum import crc32c

FORMAT = 1
ALIGNMENT = 8
HEADER = struct.Struct("<IIQqIIIIIBBH")
HEADER_BYTES = HEADER.size
SECTOR_BYTES = 512  # what a disk writes whole or not at all
INDEX_EVERY = 4096  # bytes between two entries of a stream; part of the format, see `compaction`

START, MESSAGES, CONTROL, SETTLED, INDEX, SNAPSHOT, TRANSACTION, SKIP = range(1, 9)
KINDS = ("", "START", "MESSAGES", "CONTROL", "SETTLED", "INDEX", "SNAPSHOT", "TRANSACTION", "SKIP")
PRIORITY = 4  # of most messages
SETTLES = 1 << 31  # added to the number of a stream whose message is done with
HEADER_ONLY = 1  # a flag: the checksum covers the header alone, what follows means nothing

Range: TypeAlias = tuple[int, int]  # of sequences, both ends in it
Spot: TypeAlias = tuple[int, int]  # a stream, and the sequence that a message has in it
Bytes: TypeAlias = bytes | bytearray | memoryview


def damaged(text: str) -> DiskError:
    """What was found on the disk is not what was written there."""
    return DiskError("journal-damaged", text)


class Record(NamedTuple):
    """One record, as a walk found it."""

    kind: int
    position: int
    next: int  # the position where the next one begins
    time_us: int
    epoch: int
    messages: int
    publisher: int
    meta: memoryview
    payload: memoryview
    priority: int = PRIORITY


# ------------------------------------------------------------------------------- START


class Start(msgspec.Struct, frozen=True):
    """The payload of START."""

    format: int
    journal_id: str
    size: int  # of the segment
    snapshot: int  # the position of the newest complete snapshot, 0: none
    created: int  # wall clock µs when the journal was made


class _Version(msgspec.Struct):
    format: int


_READERS = {1: msgspec.json.Decoder(Start)}


def encode_start(start: Start) -> bytes:
    """The payload of a START record."""
    return msgspec.json.encode(start)


def decode_start(payload: Bytes) -> Start:
    """What a START record says, in whichever version."""
    try:
        version = msgspec.json.decode(payload, type=_Version).format
        if version not in _READERS:
            text = f"the journal has format {version}; this version reads up to {FORMAT}"
            raise DiskError("data-folder-version", text)
        return _READERS[version].decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(f"a START record cannot be read: {error}") from None


# ----------------------------------------------------------------------------- CONTROL


class StreamMade(msgspec.Struct, frozen=True, tag="stream-made"):
    """A topic is retained from here on."""

    number: int
    name: str
    pattern: str
    exact: bool


class StreamGone(msgspec.Struct, frozen=True, tag="stream-gone"):
    """Nobody may read it any more."""

    number: int


class Options(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a mailbox deals with its members and with messages that come back.

    docs/mailboxes.md says what each of them means. 0 is: as the node has it, or no limit.
    """

    shared: bool = False
    exclusive: bool = False
    order_by: str = ""
    in_flight: int = 0
    lease_ms: int = 0
    retry_ms: int = 0
    retry_max_ms: int = 60_000
    max_deliveries: int = 0
    dead_letter: str = ""
    dead_expired: bool = False
    quota_messages: int = 0
    quota_bytes: int = 0

    @property
    def many(self) -> bool:
        """Whether several may read it at once."""
        return self.shared or self.exclusive or bool(self.order_by)


class Elsewhere(NamedTuple):
    """A mailbox of another node, by which one came here, or to which one has gone."""

    journal: str
    number: int  # there
    node: str  # its name, for people
    taken: bool = False  # it was heard that what goes there is taken


class MailboxMade(msgspec.Struct, frozen=True, tag="mailbox-made"):
    """A durable subscription; a quota of 0 is the node's default."""

    number: int
    name: str
    pattern: str
    selector: str
    exact: bool
    owner: str  # the client id that made it
    quota_messages: int = 0  # of those that were made before there were options
    quota_bytes: int = 0
    options: Options = Options()
    came: Elsewhere | None = None  # it takes nothing but what that one hands over


class MailboxChanged(msgspec.Struct, frozen=True, tag="mailbox-changed"):
    """It has another name, or other options."""

    number: int
    name: str
    options: Options


class MailboxMoved(msgspec.Struct, frozen=True, tag="mailbox-moved"):
    """From where it gets its messages from here on, if not as any other, and to where they go."""

    number: int
    came: Elsewhere | None
    home: Elsewhere | None


class MailboxGone(msgspec.Struct, frozen=True, tag="mailbox-gone"):
    """Its owner gave it up, with all that waited in it."""

    number: int


class PublisherMade(msgspec.Struct, frozen=True, tag="publisher-made"):
    """What it publishes is compared with what it published before."""

    number: int
    client_id: str


class PublisherGone(msgspec.Struct, frozen=True, tag="publisher-gone"):
    """What it published is forgotten; it would begin anew."""

    number: int


class Attached(msgspec.Struct, frozen=True, tag="attached"):
    """A client reads a mailbox, with at most `window` messages unsettled in its hands."""

    number: int
    window: int


class Detached(msgspec.Struct, frozen=True, tag="detached"):
    """Nobody reads it any more; up to `delivered`, messages may have been delivered before.

    Others that were delivered have come back, or are settled.
    """

    number: int
    delivered: int


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """Messages up to this sequence may be delivered: from here on, each may have been."""

    number: int
    sequence: int


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """Messages came back unsettled: first, last, attempts, not before (µs), priority."""

    number: int
    runs: list[tuple[int, int, int, int, int]]


class Sought(msgspec.Struct, frozen=True, tag="sought"):
    """A mailbox begins with this sequence again, whatever was settled from there on."""

    number: int
    sequence: int


class TopicMade(msgspec.Struct, frozen=True, tag="topic-made"):
    """An administered topic, or one that is changed."""

    name: str  # its logical name
    topic: str
    exact: bool = False
    retain: bool = False
    keep_s: int = 0
    keep_bytes: int = 0
    persistent: bool = False
    quota_messages: int = 0
    quota_bytes: int = 0
    holder: str = ""


class TopicGone(msgspec.Struct, frozen=True, tag="topic-gone"):
    """It is administered no more."""

    name: str


class HoleMade(msgspec.Struct, frozen=True, tag="hole-made"):
    """From here on a SKIP record may stand at `offset`, over `size` bytes that nobody needs."""

    first: int
    offset: int
    size: int


class Part(NamedTuple):
    """Staged messages of one publisher of a sink: a file beside the journal."""

    number: int
    attempt: str
    size: int  # bytes
    messages: int


class SinkCommitted(msgspec.Struct, frozen=True, tag="sink-committed"):
    """All messages of these parts are published from here on, come what may."""

    sink: str
    batch: int
    parts: list[Part]


class SinkApplied(msgspec.Struct, frozen=True, tag="sink-applied"):
    """They are: all of them were appended."""

    sink: str
    batch: int


class SinkGone(msgspec.Struct, frozen=True, tag="sink-gone"):
    """Its batches are forgotten; one of them would be published again."""

    sink: str


class Interest(NamedTuple):
    """What a mailbox or a stream of another node takes."""

    number: int  # of the stream, there; it is never used again
    name: str
    pattern: str
    exact: bool
    selector: str
    version: int  # of all that is known of that node, when this was new


class HomeTold(msgspec.Struct, frozen=True, tag="home-told"):
    """A node that keeps messages says for which mailboxes, or which of them are no more."""

    journal: str  # its own
    node: str
    name: str
    version: int
    gone: bool  # it will never come back
    add: list[Interest]
    remove: list[int]


class OriginHeard(msgspec.Struct, frozen=True, tag="origin-heard"):
    """Messages come from another journal, by a stream of it; they are counted in one of this.

    A message has the sequence that it has here, and `shift` more. All of them are for one mailbox,
    if that is not 0.
    """

    number: int
    journal: str
    stream: int
    shift: int
    mailbox: int = 0


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A durable subscription that a transaction makes."""

    name: str
    pattern: str
    selector: str = ""
    exact: bool = False
    options: Options = Options()


class Accepted(NamedTuple):
    """Messages that a transaction settles: of which stream, and how they had been delivered."""

    number: int
    first: int
    last: int
    attempts: int
    priority: int


class TxPrepared(msgspec.Struct, frozen=True, omit_defaults=True, tag="tx-prepared"):
    """A transaction that waits for its coordinator: nothing of it counts yet, nor is it lost."""

    gid: str  # the name that its coordinator gave it
    owner: str  # the client id that prepared it
    messages: int = 0
    frames: bytes = b""  # persistent messages,
    passing: bytes = b""  # and others
    accepted: list[Accepted] = []
    made: list[Wanted] = []
    removed: list[str] = []


class TxDecided(msgspec.Struct, frozen=True, tag="tx-decided"):
    """It was committed, with the group that this record stands in; or it was rolled back."""

    gid: str
    committed: bool


Control: TypeAlias = (
    StreamMade
    | StreamGone
    | MailboxMade
    | MailboxGone
    | PublisherMade
    | PublisherGone
    | MailboxChanged
    | MailboxMoved
    | Attached
    | Detached
    | Reached
    | Returned
    | Sought
    | TopicMade
    | TopicGone
    | HoleMade
    | SinkCommitted
    | SinkApplied
    | SinkGone
    | HomeTold
    | OriginHeard
    | TxPrepared
    | TxDecided
)

_CONTROL = msgspec.json.Decoder(Control)


def encode_control(control: Control) -> bytes:
    """The payload of a CONTROL record."""
    return msgspec.json.encode(control)


def decode_control(payload: Bytes) -> Control:
    """What a CONTROL record says."""
    try:
        control: Control = _CONTROL.decode(payload)
        return control
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(f"a CONTROL record cannot be read: {error}") from None


# ---------------------------------------------------------------------------- MESSAGES

_PLACE = struct.Struct("<IQ")
_unpack_places: Callable[[Bytes], Iterator[Spot]] = _PLACE.iter_unpack


def encode_places(places: Iterable[Spot]) -> bytes:
    """The meta of a MESSAGES record: (stream, first sequence), ascending."""
    return b"".join(_PLACE.pack(*place) for place in places)


def places(meta: Bytes) -> list[Spot]:
    """The streams of a MESSAGES record, each with the sequence of the first message."""
    return split_places(meta)[0]


def split_places(meta: Bytes) -> tuple[list[Spot], list[Spot]]:
    """The same, and the messages of other streams that are settled by the record."""
    try:
        found = list(_unpack_places(meta))
    except struct.error:
        raise damaged("a MESSAGES record has a list of streams that does not end") from None
    if not found or found[-1][0] < SETTLES:
        return found, []
    return (
        [spot for spot in found if spot[0] < SETTLES],
        [(number - SETTLES, sequence) for number, sequence in found if number >= SETTLES],
    )


# ----------------------------------------------------------------------------- SETTLED

_SETTLED = struct.Struct("<II")
_RANGE = struct.Struct("<QQ")


def encode_settled(stream: int, ranges: list[Range]) -> bytes:
    """The payload of a SETTLED record."""
    head = _SETTLED.pack(stream, len(ranges))
    return head + b"".join(_RANGE.pack(*range) for range in ranges)


def decode_settled(payload: Bytes) -> tuple[int, list[Range]]:
    """The stream, and the ranges of sequences that were settled."""
    if len(payload) < _SETTLED.size:
        raise damaged("a SETTLED record is too short")
    stream, count = _SETTLED.unpack_from(payload)
    if len(payload) != _SETTLED.size + count * _RANGE.size:
        raise damaged("a SETTLED record does not have the length that it says")
    ranges: list[Range] = list(_RANGE.iter_unpack(memoryview(payload)[_SETTLED.size :]))
    if any(first > last for first, last in ranges):
        raise damaged("a SETTLED record has a range that ends before it begins")
    return stream, ranges


# ------------------------------------------------------------------------- TRANSACTION

_GROUP = struct.Struct("<qq")


def decode_group(payload: Bytes) -> tuple[int, int]:
    """Where the records end that count together with this one, and the number of its publisher."""
    if len(payload) != _GROUP.size:
        raise damaged("a TRANSACTION record does not have the length that it should")
    end, serial = _GROUP.unpack(payload)
    return end, serial


# ------------------------------------------------------------------- INDEX and trailer

_COUNT = struct.Struct("<I")
_EXTENT = struct.Struct("<IIQQqq")
_ENTRY = struct.Struct("<IQ")
_TRAILER = struct.Struct("<8sQI")
MAGIC = b"RGRFTEND"
TRAILER_BYTES = 64


class Extent(NamedTuple):
    """What one segment holds of one stream."""

    stream: int
    first: int  # sequence
    last: int  # sequence, in it
    first_us: int
    last_us: int
    entries: Bytes  # sparse: (u32 offset, u64 first sequence)

    @property
    def spots(self) -> int:
        """How many entries there are."""
        return len(self.entries) // _ENTRY.size

    def entry(self, at: int) -> tuple[int, int]:
        """The entry with this number: offset of a record, the first sequence in it."""
        offset, sequence = _ENTRY.unpack_from(self.entries, at * _ENTRY.size)
        return offset, sequence

    def all(self) -> Iterator[tuple[int, int]]:
        """The entries in their order."""
        return _ENTRY.iter_unpack(self.entries)

    def before(self, sequence: int) -> int:
        """The number of the last entry that begins at this sequence or below; 0 at least."""
        low, high = 0, self.spots
        while high - low > 1:
            middle = (low + high) // 2
            if self.entry(middle)[1] <= sequence:
                low = middle
            else:
                high = middle
        return low


def encode_index(extents: Iterable[Extent]) -> bytes:
    """The payload of an INDEX record, the slow and obvious way."""
    parts = [b""]
    for one in extents:
        parts.append(
            _EXTENT.pack(one.stream, one.spots, one.first, one.last, one.first_us, one.last_us)
        )
        parts.append(bytes(one.entries))
    parts[0] = _COUNT.pack(len(parts) // 2)
    return b"".join(parts)


def encode_entries(entries: Iterable[tuple[int, int]]) -> bytes:
    """The entries of an extent: (offset, first sequence)."""
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def decode_index(payload: Bytes) -> dict[int, Extent]:
    """What an INDEX record says of each stream. Entries are views of the payload."""
    view = memoryview(payload)
    if len(view) < _COUNT.size:
        raise damaged("an INDEX record is too short")
    (count,) = _COUNT.unpack_from(view)
    at = _COUNT.size
    found: dict[int, Extent] = {}
    for _ in range(count):
        if at + _EXTENT.size > len(view):
            raise damaged("an INDEX record ends too early")
        stream, entries, first, last, first_us, last_us = _EXTENT.unpack_from(view, at)
        at += _EXTENT.size
        end = at + entries * _ENTRY.size
        if end > len(view) or not entries or first > last:
            raise damaged("an INDEX record has an impossible entry")
        found[stream] = Extent(stream, first, last, first_us, last_us, view[at:end])
        at = end
    if at != len(view):
        raise damaged("an INDEX record has more bytes than it says")
    return found


def encode_trailer(position: int) -> bytes:
    """The last bytes of a closed segment, whose INDEX record is at `position`."""
    head = MAGIC + position.to_bytes(8, "little")
    return (head + crc32c(head).to_bytes(4, "little")).ljust(TRAILER_BYTES, b"\0")


def decode_trailer(data: Bytes) -> int | None:
    """The position of the INDEX record; None if these bytes are no trailer."""
    if len(data) != TRAILER_BYTES:
        return None
    magic, position, checksum = _TRAILER.unpack_from(data)
    if magic != MAGIC or checksum != crc32c(memoryview(data)[:16]):
        return None
    return int(position)


# --------------------------------------------------------------------- single headers


class Header(NamedTuple):
    """What stands in front of a record; nothing of it is checked but the position."""

    length: int
    time_us: int
    epoch: int
    kind: int


def decode_header(data: Bytes, position: int) -> Header | None:
    """The header of a record that should begin at `position`; None if none does."""
    if len(data) < HEADER_BYTES:
        return None
    _, length, own, time_us, epoch, _, _, _, _, kind, _, _ = HEADER.unpack_from(data)
    if own != position or length < HEADER_BYTES:
        return None
    return Header(length, time_us, epoch, kind)


def encode_skip(position: int, size: int, time_us: int, epoch: int) -> bytes:
    """The header of a SKIP record over `size` bytes. It is all that is written of it.

    Time and epoch are those of the record that began here, so that the order of both is kept.
    What is skipped was persisted long ago, so nothing in front of it is unsynced.
    """
    rest = (size, position, time_us, epoch, 0, 0, 0, 0, SKIP, HEADER_ONLY, 0)
    data = HEADER.pack(0, *rest)
    return HEADER.pack(crc32c(memoryview(data)[4:]), *rest)


def padded(length: int) -> int:
    """The space that a record of this length takes."""
    return -(-length // ALIGNMENT) * ALIGNMENT
