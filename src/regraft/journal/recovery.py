"""From the bytes of the segments to a state: the longest valid prefix, and what was found.

1. Candidates for a beginning are the snapshots that START records point to, the newest first. If
   none of them can be used, it begins with the first segment.
2. The walk begins with the START of the segment that holds the snapshot; what stands between is
   only looked at. It ends at the first place that holds no valid record.
3. Behind that place it looks for records that are valid all the same. If one of them says that the
   place had been persisted when it was written, the journal is *damaged*: acknowledged data was
   there. Otherwise they are leftovers of writes that nobody was told of, a *torn tail*, and will be
   overwritten. The new epoch is above theirs, so that they are never taken for new.

A file that is shorter than it was made is damage as well, unless what was written ends before: no
power cut does that, and nobody knows what stood there. Damage in segments before the snapshot is
found when they are read, or by `audit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regraft.journal.format import damaged
from regraft.journal.state import State
from regraft.journal.streams import Mailbox
from regraft.journal.walking import Entry, SegmentView, Walker, later_records, read_start
from regraft.kernels.records import FOUND, ZERO


@dataclass
class Recovered:
    """A journal, ready to go on at `position` in the segment that begins at `first`.

    Before anything is written, `leftovers` must be removed for good: they hold bytes that a later
    recovery could take for the journal's newest.
    """

    state: State
    segments: list[tuple[int, int]]  # (first, size) of those begun, without a gap
    first: int
    position: int
    epoch: int  # of the records to come
    time_us: int  # of the last record
    segment_bytes: int  # how large segments are, from the one at `first` on
    entries: list[Entry]  # of the segment at `first`
    findings: list[str]  # sentences for people
    damage: str = ""  # why it must not go on by itself
    leftovers: list[int] = field(default_factory=list)  # segments to remove
    prepared: list[int] = field(default_factory=list)  # segments that are there, and empty
    abandoned: list[int] = field(default_factory=list)  # mailboxes that were attached
    snapshot: int = 0  # the position of the newest complete one, 0: none
    snapshot_bytes: int = 0
    pointed: int = 0  # the position of the one that it began with, 0: with the first segment
    records: int = 0  # that were walked over
    messages: int = 0


def recover(
    segments: Sequence[SegmentView], segment_bytes: int, journal_id: str, now_us: int
) -> Recovered:
    """Recover a journal; DiskError "journal-damaged" if it must not go on.

    Where nothing was written yet, a journal with this id begins. `segment_bytes` counts from the
    next segment on.
    """
    recovered = examine(segments, segment_bytes, journal_id, now_us)
    if recovered.damage:
        raise damaged(
            f"{recovered.damage}. Nothing was changed; `regraft journal verify` says more, "
            "`regraft journal repair` sets aside what cannot be read and goes on without it"
        )
    return recovered


def examine(
    segments: Sequence[SegmentView], segment_bytes: int, journal_id: str, now_us: int
) -> Recovered:
    """The same, but damage is only reported, beside the longest valid prefix."""
    chain, snapshots = _chain(segments)
    findings: list[str] = []
    if not chain:
        return Recovered(State(journal_id, now_us), [], 0, 0, 1, 0, segment_bytes, [], findings)
    walker = _walk(chain, snapshots, findings, State(journal_id, now_us))
    findings += walker.findings
    end = _end(chain, walker, findings)
    recovered = Recovered(
        walker.state or State(journal_id, now_us),
        [(one.first, one.size) for one in chain[: walker.segment + 1]],
        chain[walker.segment].first,
        walker.position,
        max(walker.epoch, end.epoch) + 1,
        walker.time_us,
        chain[walker.segment].size,
        list(walker.contents.entries()),
        findings,
        end.damage,
        end.leftovers,
        end.prepared,
        snapshot=walker.snapshot,
        snapshot_bytes=walker.snapshot_bytes,
        records=walker.records,
        messages=walker.messages,
    )
    if walker.state is None and not recovered.damage:
        recovered.damage = (
            "the journal has no snapshot that could be read, and its beginning is gone"
        )
    _settle_end(recovered, segment_bytes, {one.first: one.size for one in chain})
    _settle_beginning(recovered)
    recovered.abandoned = recovered.state.calm()
    recovered.pointed = walker.anchor
    return recovered


def _chain(segments: Sequence[SegmentView]) -> tuple[list[SegmentView], list[int | None]]:
    """The segments in order, as long as they were made; the snapshot that each points to."""
    chain: list[SegmentView] = []
    snapshots: list[int | None] = []
    for one in sorted(segments, key=lambda one: one.first):
        segment = SegmentView(one.first, one.size, memoryview(one.view))
        start = read_start(segment)
        if start is not None:
            segment = SegmentView(one.first, start.size, segment.view[: start.size])
        chain.append(segment)
        snapshots.append(None if start is None else start.snapshot)
    return chain, snapshots


def _walk(
    chain: list[SegmentView], snapshots: list[int | None], findings: list[str], empty: State
) -> Walker:
    """Walk from the newest snapshot that is pointed to; from the first segment if none can be used.

    A pointer may have outlived its snapshot, when a newer one stands in the segment of the pointer.
    """
    for anchor in sorted({at for at in snapshots if at}, reverse=True):
        holders = [k for k, one in enumerate(chain) if one.first <= anchor < one.first + one.size]
        if holders:
            walker = Walker(chain, None, anchor)
            walker.run(holders[0])
            if walker.state is not None:
                return walker
        findings.append(f"the snapshot at position {anchor} cannot be used")
    for k in reversed(range(len(chain))):
        if k and sum(chain[k - 1][:2]) == chain[k].first:
            continue  # it is not the first of a row without a gap
        if chain[k].first == 0:
            start = read_start(chain[0])
            if start is not None:
                empty = State(start.journal_id, start.created)
            walker = Walker(chain, empty)
        else:
            walker = Walker(chain, None)  # there may be a snapshot on the way
        walker.run(k)
        if walker.state is not None:
            break
    return walker


class _End(NamedTuple):
    """What lies behind the last valid record."""

    epoch: int
    damage: str
    leftovers: list[int]
    prepared: list[int]


def _end(chain: list[SegmentView], walker: Walker, findings: list[str]) -> _End:
    """Look at what follows the place where the walk ended."""
    position, epoch = walker.position, walker.epoch
    proof = rest = 0
    leftovers: list[int] = []
    prepared: list[int] = []
    for k in range(walker.segment, len(chain)):
        offset = walker.offset if k == walker.segment else 0
        found = 0
        for later in later_records(chain[k], offset, walker.epoch):
            if later.position == position and not walker.fault:
                continue
            found += 1
            epoch = max(epoch, later.epoch)
            if later.persisted > position:
                proof = proof or later.position
        rest += found
        if k > walker.segment:
            (leftovers if found else prepared).append(chain[k].first)
    damage = _damage(chain, walker, proof)
    here = chain[walker.segment]
    if len(here.view) < here.size:
        findings.append(f"segment {here.first:016x} is shorter than it was made")
    torn = walker.offset and walker.status not in (FOUND, ZERO)
    if not damage and (rest or torn):
        findings.append(
            f"a torn tail: what was being written at position {position} when the node ended was "
            f"never acknowledged and will be overwritten ({rest} whole records behind it)"
        )
    return _End(epoch, damage, leftovers, prepared)


def _damage(chain: list[SegmentView], walker: Walker, proof: int) -> str:
    """Why the journal must not go on, if it must not."""
    here = chain[walker.segment]
    where = f"at position {walker.position} (segment {here.first:016x}, offset {walker.offset})"
    if walker.fault:
        return f"the record {where} makes no sense: {walker.fault}"
    if proof:
        return (
            f"what stood {where} cannot be read any more, and the record at position {proof} "
            "says that it had been persisted"
        )
    cut = [one for one in chain[walker.segment :] if len(one.view) < one.size]
    if cut and (cut[0] is not here or walker.status not in (FOUND, ZERO)):
        missing = cut[0].size - len(cut[0].view)
        return f"segment {cut[0].first:016x} is {missing} bytes shorter than it was made"
    return ""


def _settle_end(recovered: Recovered, segment_bytes: int, sizes: dict[int, int]) -> None:
    """If the last segment is closed, or was never begun, go on with one that is not begun yet."""
    first, size = recovered.segments[-1]
    if recovered.position == first + size:
        recovered.first = recovered.position
    elif recovered.position == first:
        recovered.segments.pop()
        recovered.prepared.insert(0, first)
    if recovered.position in (first, first + size):
        recovered.segment_bytes = segment_bytes
        recovered.entries = []
    for prepared in recovered.prepared[:]:
        if sizes[prepared] != recovered.segment_bytes:
            recovered.prepared.remove(prepared)
            recovered.leftovers.append(prepared)


def _settle_beginning(recovered: Recovered) -> None:
    """Leave out segments before a gap; nobody may need them, as they were being dropped."""
    segments = recovered.segments
    start = len(segments) - 1
    while start > 0 and sum(segments[start - 1]) == segments[start][0]:
        start -= 1
    if start > 0:
        recovered.leftovers = [first for first, _ in segments[:start]] + recovered.leftovers
        recovered.segments = segments[start:]
    oldest = recovered.segments[0][0] if recovered.segments else recovered.first
    for stream in recovered.state.streams.values():
        needed = stream.first_mark() if isinstance(stream, Mailbox) else None
        if needed is not None and needed.first < oldest and not recovered.damage:
            recovered.damage = (
                f"a segment before {oldest:016x} that mailbox {stream.name} needs is missing"
            )
        stream.forget_before(oldest)
    holes = recovered.state.holes
    recovered.state.holes = {first: holes[first] for first in holes if first >= oldest}


__all__ = ["Entry", "Recovered", "SegmentView", "examine", "recover"]
