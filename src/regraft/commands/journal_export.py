"""Messages out of a journal: as JSON lines, or as a Parquet file.

The columns of the Parquet file are those that selectors on data frames ask for, and a few more.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from regraft.commands.common import Place, as_json, describe_time
from regraft.commands.journal_folder import Gap, Kept, Scan, Survey, messages_of
from regraft.errors import DiskError, LocalError, RegraftError
from regraft.journal import format
from regraft.journal.streams import Mailbox, Stream
from regraft.journal.walking import SegmentView
from regraft.model.message import Timestamp, Value
from regraft.model.selector import Selector

BATCH = 10_000  # rows that are written at a time
FOREVER = 1 << 62


class Wanted(NamedTuple):
    """Which messages: of one stream or of all, between two places, for which a selector is true."""

    stream: Stream | None
    start: Place
    stop: Place
    selector: Selector | None


def wanted_messages(survey: Survey, wanted: Wanted, gaps: list[Gap]) -> Iterator[Kept]:
    """The messages that are wanted, in their order; `gaps` tells what could not be read."""
    scan = Scan(gaps)
    for segment in survey.segments:
        if not _may_hold(segment, wanted):
            continue
        for record in scan.records(segment, survey.end, survey.is_closed(segment)):
            if record.kind != format.MESSAGES or not _in_time(record.time_us, wanted):
                continue
            for kept in messages_of(record):
                if _is_wanted(kept, wanted):
                    yield kept


def _in_time(time_us: int, wanted: Wanted) -> bool:
    return wanted.start.time_us <= time_us < (wanted.stop.time_us or FOREVER)


def _may_hold(segment: SegmentView, wanted: Wanted) -> bool:
    """Whether a segment has to be read, as far as its INDEX says."""
    trailer = segment.view[segment.size - format.TRAILER_BYTES : segment.size]
    index = format.decode_trailer(trailer)
    if not index:
        return True
    header = format.decode_header(segment.view[index - segment.first :], index)
    if header is None or header.kind != format.INDEX:
        return True
    start = index - segment.first + format.HEADER_BYTES
    try:
        extents = format.decode_index(segment.view[start : index - segment.first + header.length])
    except DiskError:
        return True
    found = [
        extent
        for extent in extents.values()
        if wanted.stream is None or extent.stream == wanted.stream.number
    ]
    stop_us = wanted.stop.time_us or FOREVER
    return any(e.last_us >= wanted.start.time_us and e.first_us < stop_us for e in found)


def _is_wanted(kept: Kept, wanted: Wanted) -> bool:
    stream = wanted.stream
    if stream is not None:
        sequence = dict(kept.places).get(stream.number)
        if sequence is None or sequence < wanted.start.sequence:
            return False
        if sequence >= (wanted.stop.sequence or FOREVER):
            return False
        if isinstance(stream, Mailbox) and (sequence < stream.floor or sequence in stream.settled):
            return False
    return wanted.selector is None or wanted.selector.matches(kept.message.message)


# ----------------------------------------------------------------------------- JSON lines


def json_row(kept: Kept, survey: Survey, stream: Stream | None) -> dict[str, Any]:
    """A message, and where it stands."""
    row: dict[str, Any] = {"position": kept.position, "time": describe_time(kept.time_us)}
    if stream is not None:
        row["sequence"] = dict(kept.places)[stream.number]
    else:
        row["sequences"] = {survey.name_of(number): sequence for number, sequence in kept.places}
    publisher = survey.recovered.state.publishers.get(kept.publisher)
    if publisher is not None:
        row["publisher"] = publisher.client_id
    try:
        return row | as_json(kept.message)
    except RegraftError as error:  # a compressed body that is none
        return row | {"topic": kept.message.topic, "body_error": error.text}


def write_json(kept: Iterator[Kept], survey: Survey, stream: Stream | None, out: IO[str]) -> int:
    """Write one JSON object to the line; how many."""
    count = 0
    for one in kept:
        out.write(json.dumps(json_row(one, survey, stream), ensure_ascii=False) + "\n")
        count += 1
    return count


# -------------------------------------------------------------------------------- Parquet


def write_parquet(kept: Iterator[Kept], survey: Survey, stream: Stream | None, path: Path) -> int:
    """Write a Parquet file; how many rows."""
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise LocalError(
            "not-supported",
            "--parquet needs pyarrow, which is not installed: pip install 'regraft[parquet]'",
        ) from None
    schema = _schema(arrow)
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := [parquet_row(one, survey, stream) for one in islice(kept, BATCH)]:
            writer.write_table(arrow.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


def _schema(arrow: Any) -> Any:
    whole, text = arrow.int64(), arrow.string()
    value = arrow.struct(
        [
            ("bool", arrow.bool_()),
            ("int", whole),
            ("float", arrow.float64()),
            ("string", text),
            ("bytes", arrow.binary()),
            ("timestamp_us", whole),
        ]
    )
    types = {
        int: whole,
        str: text,
        bytes: arrow.binary(),
        dict: arrow.map_(text, value),
    }
    return arrow.schema([(name, types[kind]) for name, (kind, _) in COLUMNS.items()])


def parquet_row(kept: Kept, survey: Survey, stream: Stream | None) -> dict[str, Any]:
    """A message as a row: what is not given is NULL."""
    sequence = None if stream is None else dict(kept.places)[stream.number]
    publisher = survey.recovered.state.publishers.get(kept.publisher)
    own = {
        "position": kept.position,
        "time_us": kept.time_us,
        "sequence": sequence,
        "publisher": publisher.client_id if publisher is not None else None,
    }
    return {name: own[name] if name in own else get(kept) for name, (_, get) in COLUMNS.items()}


def _content(kept: Kept) -> bytes:
    try:
        return kept.message.content
    except RegraftError:  # a compressed body that is none
        return kept.message.body


def _entries(mapping: Mapping[str, Value]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, _typed(value)) for name, value in mapping.items()]


def _typed(value: Value) -> dict[str, Any]:
    if isinstance(value, Timestamp):
        return {"timestamp_us": value.us}
    kinds = {bool: "bool", int: "int", float: "float", str: "string", bytes: "bytes"}
    return {kinds[type(value)]: value}


Column = tuple[type, Callable[[Kept], Any]]

COLUMNS: dict[str, Column] = {
    "position": (int, lambda _: None),
    "time_us": (int, lambda _: None),
    "sequence": (int, lambda _: None),
    "publisher": (str, lambda _: None),
    "topic": (str, lambda kept: kept.message.topic),
    "body": (bytes, _content),
    "content_type": (str, lambda kept: kept.message.content_type or None),
    "type": (int, lambda kept: kept.message.message.type),
    "type_name": (str, lambda kept: kept.message.message.type_name or None),
    "priority": (int, lambda kept: kept.message.priority),
    "timestamp_us": (int, lambda kept: kept.message.timestamp_us),
    "expiration_us": (int, lambda kept: kept.message.message.expiration_us),
    "correlation": (str, lambda kept: kept.message.correlation or None),
    "reply_to": (str, lambda kept: kept.message.reply_to or None),
    "sender": (str, lambda kept: kept.message.sender or None),
    "size": (int, lambda kept: len(kept.message.body)),
    "delivery_mode": (str, lambda kept: kept.message.message.delivery_mode.name),
    "attributes": (dict, lambda kept: _entries(kept.message.attributes)),
    "context": (dict, lambda kept: _entries(kept.message.message.context)),
}
