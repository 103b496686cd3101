"""A snapshot of a journal's state: its rows, as JSON, in chunks of bounded size."""

from __future__ import annotations

import msgspec

from regraft.journal import format
from regraft.journal.format import Bytes, Elsewhere, Interest, Options, Range, damaged
from regraft.journal.streams import Joint, Mailbox, Mark, Stream

PAGES_PER_ROW = 64
PAGE_BYTES_MAX = 720  # a number, and 512 bytes as text
RETURNED_PER_ROW = 1000
RETURNED_BYTES_MAX = 60
MARKS_PER_ROW = 500
MARK_BYTES_MAX = 170  # eight numbers
JOINTS_PER_ROW = 500
JOINT_BYTES_MAX = 90  # four numbers
DECIDED_PER_ROW = 50


class Head(msgspec.Struct, tag="head"):
    journal_id: str
    created_us: int
    numbers: int
    publisher_numbers: int
    forgotten: int = 0


class StreamRow(msgspec.Struct, tag="stream"):
    number: int
    name: str
    pattern: str
    exact: bool
    next_sequence: int
    size: int
    indexed: int


class MailboxRow(msgspec.Struct, tag="mailbox"):
    number: int
    name: str
    pattern: str
    exact: bool
    selector: str
    owner: str
    next_sequence: int
    size: int
    indexed: int
    floor: int
    delivered: int
    window: int
    options: Options = Options()
    sought: bool = False
    ranks: list[tuple[int, int, int]] = []
    quota_messages: int = 0  # of those that were made before there were options
    quota_bytes: int = 0
    came: Elsewhere | None = None
    home: Elsewhere | None = None


class SettledRow(msgspec.Struct, tag="settled"):
    number: int
    ranges: list[Range] = []  # as it was written before there were pages
    pages: list[tuple[int, bytes]] = []


class ReturnedRow(msgspec.Struct, tag="returned"):
    number: int
    returned: list[tuple[int, int, int, int]]


class TopicRow(msgspec.Struct, tag="topic"):
    topic: format.TopicMade


class MarksRow(msgspec.Struct, tag="marks"):
    number: int
    marks: list[Mark]


class JointsRow(msgspec.Struct, tag="joints"):
    number: int
    joints: list[Joint]


class PublisherRow(msgspec.Struct, tag="publisher"):
    number: int
    client_id: str
    last_us: int
    window: bytes


class HolesRow(msgspec.Struct, tag="holes"):
    first: int
    holes: list[tuple[int, int]]


class SinkRow(msgspec.Struct, tag="sink"):
    name: str
    batch: int
    last_us: int
    parts: list[format.Part]


class OriginRow(msgspec.Struct, tag="origin"):
    number: int
    journal: str
    stream: int
    shift: int
    next_sequence: int
    size: int
    indexed: int
    mailbox: int = 0


class HomeRow(msgspec.Struct, tag="home"):
    journal: str
    node: str
    name: str
    version: int
    gone: bool


class InterestRow(msgspec.Struct, tag="interest"):
    journal: str
    interest: Interest


class PreparedRow(msgspec.Struct, tag="prepared"):
    what: format.TxPrepared
    since_us: int


class DecidedRow(msgspec.Struct, tag="decided"):
    decided: list[tuple[str, bool]]


Row = (
    Head
    | StreamRow
    | MailboxRow
    | SettledRow
    | ReturnedRow
    | MarksRow
    | JointsRow
    | PublisherRow
    | HolesRow
    | TopicRow
    | SinkRow
    | OriginRow
    | HomeRow
    | InterestRow
    | PreparedRow
    | DecidedRow
)


class Chunk(msgspec.Struct):
    part: int
    parts: int
    rows: list[Row]


_CHUNK = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: Bytes) -> tuple[int, int, list[Row]]:
    """A SNAPSHOT record: which part of how many, and what it says."""
    try:
        chunk = _CHUNK.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(f"a SNAPSHOT record cannot be read: {error}") from None
    return chunk.part, chunk.parts, chunk.rows


def mailbox_rows(box: Mailbox, chunk_bytes: int) -> list[Row]:
    rows: list[Row] = [
        MailboxRow(
            box.number,
            box.name,
            box.pattern,
            box.exact,
            box.selector,
            box.owner,
            box.next_sequence,
            box.size,
            box.indexed,
            box.floor,
            box.delivered,
            box.window,
            box.options,
            box.sought,
            [(priority, rank.low, rank.last) for priority, rank in box.ranks.items()],
            came=box.came,
            home=box.home,
        )
    ]
    pages = list(box.settled.bits())
    many = max(1, min(PAGES_PER_ROW, chunk_bytes // PAGE_BYTES_MAX))
    for at in range(0, len(pages), many):
        rows.append(SettledRow(box.number, pages=pages[at : at + many]))
    returned = [(sequence, *rest) for sequence, rest in box.returned.items()]
    many = max(1, min(RETURNED_PER_ROW, chunk_bytes // RETURNED_BYTES_MAX))
    for at in range(0, len(returned), many):
        rows.append(ReturnedRow(box.number, returned[at : at + many]))
    many = max(1, min(JOINTS_PER_ROW, chunk_bytes // JOINT_BYTES_MAX))
    for at in range(0, len(box.joints), many):
        rows.append(JointsRow(box.number, box.joints[at : at + many]))
    return rows


def mark_rows(stream: Stream, chunk_bytes: int) -> list[Row]:
    marks = stream.marks
    many = max(1, min(MARKS_PER_ROW, chunk_bytes // MARK_BYTES_MAX))
    return [MarksRow(stream.number, marks[at : at + many]) for at in range(0, len(marks), many)]


def pack(rows: list[Row], chunk_bytes: int) -> list[bytes]:
    """Rows as chunks of bounded size; a row that is larger has a chunk of its own."""
    encode = msgspec.json.encode
    groups: list[list[bytes]] = []
    room = 0
    for row in map(encode, rows):
        if len(row) + 1 > room or not groups:
            groups.append([])
            room = chunk_bytes - 64
        groups[-1].append(row)
        room -= len(row) + 1
    return [
        b'{"part":%d,"parts":%d,"rows":[%b]}' % (part, len(groups), b",".join(group))
        for part, group in enumerate(groups)
    ]
