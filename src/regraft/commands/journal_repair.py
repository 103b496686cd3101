"""Making a damaged journal usable again: what cannot be read is set aside, the rest goes on.

- Where acknowledged data is gone from the end, the journal is cut to its longest valid prefix; what
  stood behind it is set aside.
- A stretch that cannot be read in an older segment is set aside and becomes a SKIP record. If the
  INDEX or the trailer of the segment is gone, they are made again.
- What a mailbox waits for and is lost is settled, so that its reader goes on.
- Behind all that, a snapshot of what is known is written, and a segment is begun that points to it:
  what was set aside may have held the one from which a recovery would have begun.

Everything is copied to `quarantine` and synced before anything is changed. A repair that was
interrupted is begun again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from regraft.commands.common import counted, describe_time
from regraft.commands.journal_folder import (
    QUARANTINE,
    Gap,
    Lost,
    Scan,
    Survey,
    has_bytes,
    journal_of,
    survey,
)
from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal.format import Extent
from regraft.journal.journal import Journal
from regraft.journal.ranges import Ranges
from regraft.journal.recovery import Recovered
from regraft.journal.requests import Persist
from regraft.journal.streams import Mailbox
from regraft.journal.walking import Contents, SegmentView
from regraft.kernels.checksum import crc32c
from regraft.limits import Limits
from regraft.runtime.segments import SegmentFolder, segment_name, sync_folder, write_all


@dataclass
class Footing:
    """An INDEX and a trailer that have to be made again, at this offset."""

    first: int
    offset: int
    size: int  # of the segment
    extents: dict[int, Extent]
    time_us: int
    epoch: int


@dataclass
class Plan:
    """What a repair would do, and what is lost by it."""

    recovered: Recovered
    damage: str = ""  # why a node does not start
    cut: int | None = None  # the position from which on all is set aside
    anew: bool = False  # nothing can be used: all is set aside
    gaps: list[Gap] = field(default_factory=list)
    footings: list[Footing] = field(default_factory=list)
    settle: list[Lost] = field(default_factory=list)  # of mailboxes: what they must not wait for
    aside: dict[str, int] = field(default_factory=dict)  # whole segments, and messages in each
    empty: list[str] = field(default_factory=list)  # the same, but there is nothing in them
    losses: list[str] = field(default_factory=list)  # sentences

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.damage or self.gaps or self.footings)


# ------------------------------------------------------------------------------- planning


def plan_repair(found: Survey) -> Plan:
    """Look at all of a journal, and say what to do."""
    recovered = found.recovered
    plan = Plan(recovered, recovered.damage)
    if recovered.damage and not recovered.state.journal_id:
        plan.anew = True
        plan.aside = {segment_name(one.first): _messages(one) for one in found.segments}
        count = sum(plan.aside.values())
        plan.losses.append(
            "all of it, with its streams and mailboxes: no snapshot can be read, and the beginning "
            f"is gone. {counted(count, 'message')} can be read"
        )
        return plan
    begun = [first for first, _ in recovered.segments]
    inventory = Inventory(found)
    for segment in found.segments:
        if segment.first in begun and segment.first < recovered.position:
            inventory.look_at(segment, plan)
    if recovered.damage:
        _plan_cut(found, plan)
        _plan_beginning(found, min(begun, default=0), plan)
    plan.settle = inventory.lost_to_mailboxes()
    plan.losses = [*_told(found, inventory.lost_to_streams(), plan), *plan.losses]
    return plan


class Inventory:
    """What of streams and mailboxes is there, and what is not, before the journal's end."""

    def __init__(self, found: Survey) -> None:
        self._found = found
        self._scan = Scan()
        self._streams = found.recovered.state.streams
        # The next sequence of each retained topic; what a mailbox has.
        self._next = {s.number: s.first_sequence() for s in found.recovered.state.names.values()}
        self._held: dict[int, Ranges] = {}
        self._lost: list[Lost] = []

    def look_at(self, segment: SegmentView, plan: Plan) -> None:
        """Take in one segment; what cannot be read of it goes into the plan."""
        found, scan = self._found, self._scan
        scan.gaps = plan.gaps
        gaps = len(plan.gaps)
        contents = Contents()
        for record in scan.records(segment, found.recovered.position, found.is_closed(segment)):
            if record.kind == format.MESSAGES:
                places = format.places(record.meta)
                offset = record.position - segment.first
                contents.add(places, offset, record.messages, record.time_us)
                for stream, sequence in places:
                    self._note(stream, sequence, record.messages)
            elif record.kind == format.SKIP:
                self._next.clear()  # what was skipped counted, too
        if found.is_closed(segment):
            _look_at_end(segment, contents, scan, plan, gaps)

    def _note(self, number: int, sequence: int, messages: int) -> None:
        stream = self._streams.get(number)
        if isinstance(stream, Mailbox):
            self._held.setdefault(number, Ranges()).add(sequence, sequence + messages - 1)
        elif stream is not None:
            expected = self._next.get(number, sequence)
            if sequence > expected:
                self._lost.append(Lost(number, expected, sequence - 1))
            self._next[number] = sequence + messages

    def lost_to_streams(self) -> list[Lost]:
        """What retained topics had, and have no more; as far as holes let one know."""
        missing = [
            Lost(number, expected, self._streams[number].next_sequence - 1)
            for number, expected in self._next.items()
            if expected < self._streams[number].next_sequence
        ]
        return [*self._lost, *missing]

    def lost_to_mailboxes(self) -> list[Lost]:
        """What mailboxes wait for, and will never get."""
        return [
            Lost(mailbox.number, *span)
            for mailbox in self._found.recovered.state.boxes
            for first, last in mailbox.settled.gaps(mailbox.floor, mailbox.next_sequence - 1)
            for span in self._held.get(mailbox.number, Ranges()).gaps(first, last)
        ]


def _look_at_end(
    segment: SegmentView, contents: Contents, scan: Scan, plan: Plan, gaps: int
) -> None:
    """See whether a closed segment has its INDEX and trailer; if not, make room for new ones."""
    trailer = segment.view[segment.size - format.TRAILER_BYTES : segment.size]
    told = format.decode_trailer(trailer)
    last = plan.gaps[-1] if len(plan.gaps) > gaps else None
    open_ended = last is not None and last.end == segment.size
    extents = contents.extents()
    if last is None or not open_ended:
        if told is None:  # only the trailer is gone
            plan.footings.append(Footing(segment.first, -1, segment.size, extents, 0, 0))
        return
    size = format.padded(format.HEADER_BYTES + len(format.encode_index(extents.values())))
    room = segment.size - format.TRAILER_BYTES - size
    offset = told - segment.first if told else room
    if offset > room or offset < last.start:
        offset = room
    if offset < last.start:
        return  # there is no room for it
    plan.gaps.pop()
    if offset - last.start < format.HEADER_BYTES:
        offset = last.start  # nothing but the INDEX stood there
    else:
        plan.gaps.append(last._replace(end=offset))
    plan.footings.append(
        Footing(segment.first, offset, segment.size, extents, scan.time_us, scan.epoch)
    )


def _plan_cut(found: Survey, plan: Plan) -> None:
    """What lies behind the longest valid prefix."""
    recovered = found.recovered
    position = recovered.position
    behind = [one for one in found.segments if one.first + one.size > position]
    scan = Scan()
    records = messages = settlements = 0
    highest: dict[int, int] = {}
    for segment in behind:
        for record in scan.records(segment, segment.first + segment.size):
            if record.position < position:
                continue
            records += 1
            messages += record.messages
            settlements += record.kind == format.SETTLED
            if record.kind == format.MESSAGES:
                for stream, sequence in format.places(record.meta):
                    highest[stream] = max(highest.get(stream, 0), sequence + record.messages - 1)
        if segment.first >= position and has_bytes(segment):
            plan.aside[segment_name(segment.first)] = _messages(segment)
        elif segment.first >= position:
            plan.empty.append(segment_name(segment.first))
    if not records and not plan.aside and not _is_broken_at(found, position):
        return  # nothing to cut: something older is missing
    plan.cut = position
    gone = sum(gap.size for gap in scan.gaps if gap.first + gap.end > position)
    plan.losses.append(
        f"from position {position} on: {counted(gone, 'byte')} that cannot be read, and behind "
        f"them {counted(records, 'record')} with {counted(messages, 'message')} that can; they are "
        "set aside together"
    )
    for number, last in sorted(highest.items()):
        known = recovered.state.streams.get(number)
        if known is not None and last >= known.next_sequence:
            first = known.next_sequence
            plan.losses.append(f"  {_what(found, number)}: {_span(first, last)} at least")
    if settlements:
        plan.losses.append(
            f"  {counted(settlements, 'settlement')}: what was settled there will come again"
        )


def _plan_beginning(found: Survey, oldest: int, plan: Plan) -> None:
    """What lies before a gap between segments is of no use to anybody."""
    before = [one for one in found.segments if one.first < oldest]
    plan.aside |= {segment_name(one.first): _messages(one) for one in before}
    if before or _before(found.recovered):
        plan.losses.append(f"all before position {oldest}: segments are missing there")


def _messages(segment: SegmentView) -> int:
    records = Scan().records(segment, segment.first + segment.size)
    return sum(record.messages for record in records)


def _is_broken_at(found: Survey, position: int) -> bool:
    for one in found.segments:
        if one.first <= position < one.first + one.size:
            return len(one.view) < one.size or any(one.view[position - one.first :][:48])
    return False


def _before(recovered: Recovered) -> list[Lost]:
    """What mailboxes wait for and stood in segments that are not there."""
    return [
        Lost(mailbox.number, mailbox.floor, mailbox.first_sequence() - 1)
        for mailbox in recovered.state.boxes
        if mailbox.floor < mailbox.first_sequence()
    ]


def _told(found: Survey, lost: list[Lost], plan: Plan) -> Iterator[str]:
    for gap in plan.gaps:
        when = describe_time(gap.time_us) or "at the beginning"
        yield (
            f"{counted(gap.size, 'byte')} of segment {segment_name(gap.first)} from offset "
            f"{gap.start} on, written about {when}, cannot be read"
        )
    for footing in plan.footings:
        yield f"the index of segment {segment_name(footing.first)}: it is made again"
    for number, first, last in lost:
        number_of = counted(last - first + 1, "message")
        yield f"  {_what(found, number)}: {_span(first, last)} ({number_of})"
    for number, first, last in plan.settle:
        number_of = counted(last - first + 1, "message")
        yield f"  {_what(found, number)}: {_span(first, last)} ({number_of}, waiting in it)"


def _span(first: int, last: int) -> str:
    return f"{first} to {last}" if last > first else str(first)


def _what(found: Survey, number: int) -> str:
    stream = found.recovered.state.streams.get(number)
    kind = "mailbox" if isinstance(stream, Mailbox) else "stream"
    return f"{kind} {found.name_of(number)}"


# ------------------------------------------------------------------------------ performing


def repair(data: Path, plan: Plan) -> Path:
    """Do it; the folder in which everything was set aside."""
    journal = journal_of(data)
    aside = _quarantine(journal)
    _copy_all(data, plan, aside)
    for name in [*plan.aside, *plan.empty]:
        os.rename(journal / name, aside / name)
    sync_folder(aside)
    sync_folder(journal)
    if plan.cut is not None:
        _cut(journal, plan.cut)
    for footing in plan.footings:
        _make_footing(journal, footing)
    if not plan.anew:
        _go_on(journal, plan)
    for gap in plan.gaps:
        skip = format.encode_skip(gap.first + gap.start, gap.size, gap.time_us, gap.epoch)
        _overwrite(journal / segment_name(gap.first), gap.start, skip)
    with survey(data) as found:
        if found.recovered.damage:
            raise DiskError("journal-damaged", f"it is damaged still: {found.recovered.damage}")
    return aside


def _copy_all(data: Path, plan: Plan, aside: Path) -> None:
    """Copy what will be overwritten."""
    with survey(data) as found:
        views = {one.first: one for one in found.segments}
        for gap in plan.gaps:
            _copy(aside, views[gap.first], gap.start, gap.end)
        for footing in plan.footings:
            start = max(0, footing.offset)
            start = start or footing.size - format.TRAILER_BYTES
            _copy(aside, views[footing.first], start, footing.size)
        for view in views.values():
            if plan.cut is not None and view.first < plan.cut < view.first + view.size:
                _copy(aside, view, plan.cut - view.first, view.size)
    _write(aside / "README.txt", "\n".join([plan.damage, *plan.losses, ""]).encode())
    sync_folder(aside)


def _quarantine(journal: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1000):
        folder = journal / QUARANTINE / (stamp if not number else f"{stamp}-{number}")
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            continue
        sync_folder(folder.parent)
        sync_folder(journal)
        return folder
    raise DiskError("data-folder-damaged", f"{journal / QUARANTINE} is full of repairs")


def _copy(aside: Path, segment: SegmentView, start: int, end: int) -> None:
    name = f"{segment.first:016x}-from-{start}.bytes"
    _write(aside / name, bytes(segment.view[start:end]))


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _cut(journal: Path, position: int) -> None:
    """Let zeros follow the position, up to the end of its segment."""
    with survey(journal.parent) as found:
        holders = [
            (one.first, one.size)
            for one in found.segments
            if one.first < position < one.first + one.size
        ]
    for first, size in holders:
        path = journal / segment_name(first)
        for offset in range(position - first, size, 1 << 20):
            _overwrite(path, offset, bytes(min(1 << 20, size - offset)))


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        write_all(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_footing(journal: Path, footing: Footing) -> None:
    path = journal / segment_name(footing.first)
    if footing.offset < 0:
        index = _index_position(path, footing)
    else:
        index = footing.first + footing.offset
        payload = format.encode_index(footing.extents.values())
        record = _record(format.INDEX, index, payload, footing.time_us, footing.epoch)
        rest = footing.size - format.TRAILER_BYTES - footing.offset - len(record)
        _overwrite(path, footing.offset, record + bytes(rest))
    trailer = format.encode_trailer(index)
    _overwrite(path, footing.size - format.TRAILER_BYTES, trailer)


def _record(kind: int, position: int, payload: bytes, time_us: int, epoch: int) -> bytes:
    """A whole record; all before it is persisted."""
    length = format.HEADER_BYTES + len(payload)
    rest = (length, position, time_us, epoch, 0, 0, 0, 0, kind, 0, 0)
    checksum = crc32c(format.HEADER.pack(0, *rest)[4:] + payload)
    return (format.HEADER.pack(checksum, *rest) + payload).ljust(format.padded(length), b"\0")


def _index_position(path: Path, footing: Footing) -> int:
    with survey(path.parent.parent) as found:
        for segment in found.segments:
            if segment.first == footing.first:
                records = Scan().records(segment, segment.first + segment.size)
                return next((r.position for r in records if r.kind == format.INDEX), 0)
    return 0


def _go_on(journal: Path, plan: Plan) -> None:
    """Write down what became of the journal, behind all that there is."""
    now_us = max(time.time_ns() // 1000, plan.recovered.time_us)
    folder = SegmentFolder(journal)
    writer = Journal(plan.recovered, Limits(), now_us)
    for gap in plan.gaps:
        made = format.HoleMade(gap.first, gap.start, gap.size)
        writer.recorder.append(format.CONTROL, format.encode_control(made), now_us)
        writer.state.apply_control(made, now_us)
    for number, first, last in plan.settle:
        writer.settle(number, [(first, last)], now_us)
    _persist(writer, folder, now_us)
    writer.write_snapshot(now_us)
    _persist(writer, folder, now_us)
    _begin_segment(writer, folder)


def _persist(writer: Journal, folder: SegmentFolder, now_us: int) -> None:
    """Write what was appended. Whatever else is asked for can wait for the next node."""
    writer.flush(now_us)
    while writer.requests:
        request = writer.requests.pop(0)
        if isinstance(request, Persist):
            for first, offset, piece in request.pieces:
                _make(folder, first, request.size)
                _overwrite(folder.path_of(first), offset, bytes(piece))
            writer.persisted(now_us)


def _make(folder: SegmentFolder, first: int, size: int) -> None:
    for _ in folder.making(first, size):
        pass


def _begin_segment(writer: Journal, folder: SegmentFolder) -> None:
    """Close the segment, and begin the next one: its START points to the newest snapshot."""
    recorder = writer.recorder
    first, size = recorder.first, recorder.segment_bytes
    about = recorder.time_us, recorder.epoch
    offset = recorder.position - first
    index = _record(format.INDEX, recorder.position, recorder.contents(), *about)
    trailer = format.encode_trailer(recorder.position)
    zeros = bytes(size - offset - len(index) - len(trailer))
    _overwrite(folder.path_of(first), offset, index + zeros + trailer)
    _make(folder, first + size, size)
    start = _record(format.START, first + size, recorder.start_payload, *about)
    _overwrite(folder.path_of(first + size), 0, start)
