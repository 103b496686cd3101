"""Reading tables and publishing in batches: what is said about it, as JSON in COMMAND and DONE.

    streams   which streams there are, and how far they go
    read      the messages of a stream as a table: the connection is handed over, DONE comes, then
              Arrow messages up to `arrow.END`, then DONE again with `Scanned`, or ERROR
    stage     messages of one part of a batch: handed over, DONE comes, the client sends MESSAGE
              frames and then COMMAND "staged"; DONE says how many are safe
    commit    publish all parts of a batch, once, however often it is asked for
    abort     drop what was staged

A column is a field of the envelope, called as in `HEADERS`, or else an attribute of that name.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from regraft.errors import LocalError
from regraft.kernels import columns

Request = TypeVar("Request", bound=msgspec.Struct)

COMMANDS = ("streams", "read", "stage", "commit", "abort")
STAGED = "staged"  # the last word of one who stages
COLUMNS_MAX = 1000
PARTS_MAX = 10_000
SINK = re.compile(r"[A-Za-z0-9_-]{1,64}")
ATTEMPT = re.compile(r"[A-Za-z0-9]{1,32}")


class Header(NamedTuple):
    """A column that every message has."""

    type: str  # as Spark calls it
    source: int  # for the kernel
    layout: int


HEADERS: dict[str, Header] = {
    "stream": Header("string", columns.STREAM, columns.TEXT),
    "partition": Header("int", columns.PARTITION, columns.NARROW),
    "sequence": Header("bigint", columns.SEQUENCE, columns.WIDE),
    "timestamp": Header("timestamp", columns.TIME, columns.WIDE),
    "topic": Header("string", 9, columns.TEXT),
    "body": Header("binary", columns.CONTENT, columns.TEXT),
    "attributes": Header("map", 10, columns.MAP),
    "context": Header("map", 19, columns.MAP),
    "id": Header("bigint", 1, columns.WIDE),
    "sender": Header("string", 2, columns.TEXT),
    "to": Header("string", 3, columns.TEXT),
    "type": Header("bigint", 4, columns.WIDE),
    "type_name": Header("string", 18, columns.TEXT),
    "timestamp_us": Header("bigint", 6, columns.WIDE),
    "references": Header("bigint", 7, columns.WIDE),
    "workflow": Header("binary", 8, columns.TEXT),
    "publisher_sequence": Header("bigint", 11, columns.WIDE),
    "priority": Header("int", 12, columns.NARROW),
    "expiration_us": Header("bigint", 13, columns.WIDE),
    "delivery_mode": Header("string", columns.MODE, columns.TEXT),
    "content_type": Header("string", 15, columns.TEXT),
    "reply_to": Header("string", 16, columns.TEXT),
    "correlation": Header("string", 17, columns.TEXT),
    "report_delivery_error": Header("boolean", 21, columns.BITS),
    "include_original": Header("boolean", 22, columns.BITS),
    "logging_method": Header("bigint", 23, columns.WIDE),
    "compression": Header("int", 24, columns.NARROW),
    "deliver_at_us": Header("bigint", 25, columns.WIDE),
    "size": Header("bigint", columns.SIZE, columns.WIDE),
}

# What an attribute may be asked for as: layout, and the number of the field with such a value.
ATTRIBUTES = {
    "boolean": (columns.BITS, 2),
    "bigint": (columns.WIDE, 3),
    "double": (columns.WIDE, 4),
    "string": (columns.TEXT, 5),
    "binary": (columns.TEXT, 6),
    "timestamp": (columns.WIDE, 7),
}


def specs(wanted: list[tuple[str, str]]) -> list[tuple[int, int, bytes, int]]:
    """Columns, by name and type, as the kernel wants them."""
    if not 0 < len(wanted) <= COLUMNS_MAX:
        raise LocalError("limit-exceeded", f"a table has 1 to {COLUMNS_MAX} columns")
    found = []
    for name, kind in wanted:
        header = HEADERS.get(name)
        if header is not None:
            if kind != header.type:
                text = f"column {name!r} is a {header.type}, not a {kind}"
                raise LocalError("bad-message", text)
            found.append((header.source, header.layout, b"", 0))
        elif kind in ATTRIBUTES:
            layout, value = ATTRIBUTES[kind]
            found.append((columns.ATTRIBUTE, layout, name.encode(), value))
        else:
            known = ", ".join(ATTRIBUTES)
            raise LocalError(
                "bad-message",
                f"column {name!r} is no header, and an attribute cannot be read as {kind}: {known}",
            )
    return found


# ------------------------------------------------------------------------------ requests


class Streams(msgspec.Struct):
    """What is there?"""


class StreamRow(msgspec.Struct):
    """One stream: `first` is the oldest message that is kept, `next` one that is not there yet."""

    name: str
    pattern: str
    first: int
    next: int


class StreamRows(msgspec.Struct):
    """All streams of a node; sequences are those of this journal."""

    journal: str
    streams: list[StreamRow]


class Read(msgspec.Struct):
    """Messages from sequence `start` on and below `end`, or from a moment on, that match."""

    journal: str
    stream: str
    columns: list[tuple[str, str]]
    start: int = 1
    end: int = 0
    since_us: int = 0
    selector: str = ""
    rows: int = 0  # at most, if not 0


class Scanned(msgspec.Struct):
    """How far a read came: all below `next` was looked at, `scanned` messages in all."""

    next: int
    scanned: int
    rows: int


class Stage(msgspec.Struct):
    """Messages of one part of a batch follow. An attempt has a name of its own."""

    sink: str
    batch: int
    part: int
    attempt: str


class Parts(msgspec.Struct):
    """Publish these parts, or drop them: number, attempt, bytes, messages."""

    sink: str
    batch: int
    parts: list[tuple[int, str, int, int]]
    journal: str = ""


class Committed(msgspec.Struct):
    """A batch is published, now or before."""

    messages: int
    known: bool
    refused: int = 0  # what this node does not take, whoever publishes it


class Staged(msgspec.Struct):
    """What is safe, and will be published when the batch is committed."""

    messages: int
    size: int


# What a process beside the node is to do; it gets the connection with it.


class ReadJob(msgspec.Struct, tag="read"):
    """Read a stream from a position of the journal on, as far as it is persisted."""

    token: int
    request: Read
    number: int
    position: int
    persisted: int


class StageJob(msgspec.Struct, tag="stage"):
    """Write frames to a file."""

    token: int
    name: str
    frame_bytes: int
    folder_bytes: int


Job = ReadJob | StageJob


def decode(payload: bytes, kind: type[Request]) -> Request:
    """A request; whatever is wrong with it is a LocalError."""
    try:
        return msgspec.json.decode(payload or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LocalError("bad-message", f"the JSON of a command is wrong: {error}") from None


def encode(value: Any) -> bytes:
    """A request or an answer, or a job."""
    return msgspec.json.encode(value)


def decode_job(payload: bytes) -> Job:
    """What to do with a connection."""
    job: Job = msgspec.json.decode(payload, type=Job)
    return job


def staged_name(sink: str, batch: int, part: int, attempt: str) -> str:
    """The name of a staged file. What is in it cannot lead out of its folder."""
    if not SINK.fullmatch(sink) or not ATTEMPT.fullmatch(attempt):
        raise LocalError(
            "bad-message", "a sink's name has 1 to 64 letters, digits, - or _, an attempt's 32"
        )
    if not 0 <= batch < 1 << 30 or not 0 <= part < 1 << 31:
        raise LocalError("bad-message", f"batch {batch} or part {part} is out of range")
    return f"{sink}.{batch}.{part}.{attempt}.frames"
