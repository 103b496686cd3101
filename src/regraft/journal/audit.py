"""Looking at all of a journal: `regraft journal verify`.

Recovery reads what follows the newest snapshot; this reads everything, and says what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal.format import KINDS, Record, Spot
from regraft.journal.walking import Contents, SegmentView, read_start, records


@dataclass
class Audit:
    """What one segment holds."""

    first: int
    size: int
    records: dict[str, int] = field(default_factory=dict)  # by kind
    messages: int = 0
    used: int = 0  # bytes up to the end of the last record
    skipped: int = 0  # bytes of them that nobody needs any more
    epoch: int = 0
    first_us: int = 0
    last_us: int = 0
    closed: bool = False
    findings: list[str] = field(default_factory=list)


def audit(segments: Sequence[SegmentView]) -> Iterator[Audit]:
    """Look at every segment, in order. The last one may end anywhere; see `recovery.examine`."""
    expected: dict[int, int] = {}  # the next sequence of each stream
    before: Audit | None = None
    chain = sorted(segments, key=lambda one: one.first)
    begun = [read_start(_whole(one)) is not None for one in chain]
    for at, one in enumerate(chain):
        missing = 0 if before is None else one.first - before.first - before.size
        if missing:
            expected.clear()
        found = _look(_whole(one), before.epoch if before else 0, expected)
        if missing:
            found.findings.append(f"{missing} bytes before it are missing")
        if not found.closed and any(begun[at + 1 :]):
            found.findings.append(f"it should be closed, but ends at offset {found.used}")
            expected.clear()
        yield found
        before = found


def _whole(segment: SegmentView) -> SegmentView:
    """The segment as long as it was made."""
    view = memoryview(segment.view)
    start = read_start(SegmentView(segment.first, segment.size, view))
    size = segment.size if start is None else start.size
    return SegmentView(segment.first, size, view[:size])


def _look(segment: SegmentView, epoch: int, expected: dict[int, int]) -> Audit:
    found = Audit(segment.first, segment.size, epoch=epoch)
    if len(segment.view) < segment.size:
        found.findings.append(f"it is {segment.size - len(segment.view)} bytes too short")
    contents = Contents()
    try:
        for record in records(segment, epoch):
            _count(found, record)
            if record.kind == format.MESSAGES:
                places = format.places(record.meta)
                offset = record.position - segment.first
                contents.add(places, offset, record.messages, record.time_us)
                _check_sequences(found, offset, places, record.messages, expected)
            elif record.kind == format.SKIP:
                found.skipped += record.next - record.position
                expected.clear()  # what was skipped counted, too
            elif record.kind == format.INDEX:
                _check_index(found, record, segment, contents)
            else:
                _decode(record)
    except DiskError as error:
        found.findings.append(error.text)
    return found


def _count(found: Audit, record: Record) -> None:
    kind = KINDS[record.kind] if record.kind < len(KINDS) else str(record.kind)
    found.records[kind] = found.records.get(kind, 0) + 1
    found.messages += record.messages
    found.used = record.next - found.first
    found.epoch = record.epoch
    found.first_us = found.first_us or record.time_us
    found.last_us = record.time_us


def _check_sequences(
    found: Audit, offset: int, places: list[Spot], messages: int, expected: dict[int, int]
) -> None:
    for stream, sequence in places:
        if expected.get(stream, sequence) != sequence:
            found.findings.append(
                f"offset {offset} has message {sequence} of stream {stream}, where "
                f"{expected[stream]} should be"
            )
        expected[stream] = sequence + messages


def _check_index(found: Audit, record: Record, segment: SegmentView, contents: Contents) -> None:
    found.closed = True
    trailer = segment.view[segment.size - format.TRAILER_BYTES : segment.size]
    if format.decode_trailer(trailer) != record.position:
        found.findings.append("its trailer is not valid")
    told = format.decode_index(record.payload)
    if not found.skipped and told != contents.extents():
        found.findings.append("its INDEX does not say what it holds")


def _decode(record: Record) -> None:
    """DiskError if what it says cannot be understood."""
    if record.kind == format.START:
        format.decode_start(record.payload)
    elif record.kind == format.CONTROL:
        format.decode_control(record.payload)
    elif record.kind == format.SETTLED:
        format.decode_settled(record.payload)
    elif record.kind == format.TRANSACTION:
        format.decode_group(record.payload)
