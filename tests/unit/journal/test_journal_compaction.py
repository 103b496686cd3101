"""Space given back inside of segments: only what nobody needs, and never the way to the rest."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from journal_world import World

from regraft.errors import DiskError
from regraft.journal import compaction, format
from regraft.journal import journal as journals
from regraft.journal.audit import audit
from regraft.journal.compaction import dead_stretches, punched_part
from regraft.journal.format import Extent
from regraft.journal.requests import Persist, PunchHole
from regraft.journal.retention import Retention

SEGMENT = 128 * 1024
MINUTE = 61_000_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gains are worth it, and snapshots come often."""
    monkeypatch.setattr(compaction, "GAIN_BYTES", 8192)
    monkeypatch.setattr(journals, "SNAPSHOT_FACTOR", 1)


class Pinned:
    """A mailbox settles all but some of its messages; another one everything."""

    def __init__(self, seed: int, segments: int = 8) -> None:
        self.random = random.Random(seed)
        self.world = World(lambda name: Retention(size=1), segment_bytes=SEGMENT)
        journal = self.world.journal
        self.slow = journal.make_mailbox("slow", "a", False, "", "c", 1)
        self.fast = journal.make_mailbox("fast", "a", False, "", "c", 1)
        self.stream = journal.make_stream("s", "a", False, 1)
        self.world.publish(self.slow)
        self.grow(segments)

    def grow(self, segments: int) -> None:
        journal = self.world.journal
        wanted = journal.segments.end + segments * SEGMENT
        while journal.segments.end < wanted:
            taken: list[Any] = [self.fast, self.stream]
            if self.random.random() < 0.02:
                taken.append(self.slow)
            self.world.publish(*taken, body=bytes(self.random.choice([50, 500, 1500])))
            journal.refresh(self.fast)
            journal.settle(self.fast.number, [(1, self.fast.next_sequence)], self.world.now)
            if self.random.random() < 0.3:
                self.world.flush()
        self.world.flush()

    def work(self, rounds: int = 60) -> None:
        """Let time pass."""
        for _ in range(rounds):
            self.world.now += MINUTE
            self.world.journal.tick(self.world.now)
            self.world.flush()

    def restart(self) -> None:
        self.world.start()
        state = self.world.journal.state
        self.slow, self.fast = state.mailboxes["slow"], state.mailboxes["fast"]
        self.stream = state.names["s"]

    def waiting(self) -> set[int]:
        """The messages that the slow mailbox needs."""
        self.world.journal.refresh(self.slow)
        settled = {n for a, b in self.slow.settled for n in range(a, b + 1)}
        return set(range(self.slow.floor, self.slow.next_sequence)) - settled

    def there(self) -> set[int]:
        """The messages of it that can be read."""
        return {
            sequence + i
            for record in self.world.records()
            for number, sequence in format.places(record.meta)
            if number == self.slow.number
            for i in range(record.messages)
        }

    def check(self) -> None:
        assert self.waiting() <= self.there()
        for found in audit(self.world.views()):
            assert not found.findings, found


@pytest.mark.parametrize("seed", range(5))
def test_what_is_needed_is_read_and_the_rest_takes_no_space(seed: int) -> None:
    pinned = Pinned(seed)
    world = pinned.world
    assert not world.removed
    pinned.work()
    assert world.holes
    freed = sum(hole.size for hole in world.holes)
    assert freed > 3 * SEGMENT, "most of six segments are dead"
    assert world.journal.snapshot_counters()["bytes_punched"] == freed
    pinned.check()
    before = pinned.waiting()
    pinned.restart()
    assert pinned.waiting() == before
    pinned.check()


def test_holes_grow_as_more_is_settled() -> None:
    pinned = Pinned(7)
    world = pinned.world
    pinned.work()
    for _ in range(6):
        waiting = sorted(pinned.waiting())
        some = pinned.random.sample(waiting[1:], len(waiting) // 4)
        world.journal.settle(pinned.slow.number, [(n, n) for n in some], world.now)
        pinned.work(30)
        pinned.check()
        if pinned.random.random() < 0.5:
            pinned.restart()
            pinned.work(30)
            pinned.check()
    freed = world.journal.snapshot_counters()["bytes_punched"]
    assert freed > 3 * SEGMENT
    holes = world.journal.state.holes
    for first, stretches in holes.items():
        assert stretches == sorted(stretches)
        for (start, size), (following, _) in pairwise(stretches):
            assert start + size <= following
        assert first in world.files
    # When it lets go, all goes.
    world.journal.settle(pinned.slow.number, [(1, 10_000)], world.now)
    pinned.grow(2)
    pinned.work(5)
    assert not set(holes) & set(world.removed)
    assert len(world.files) <= 3
    assert world.journal.snapshot_counters()["bytes_punched"] == 0


@pytest.mark.parametrize("stage", ["nothing", "announced", "overwritten", "punched"])
def test_a_crash_at_any_step(stage: str) -> None:
    pinned = Pinned(3)
    world = pinned.world
    for _ in range(200):
        world.now += MINUTE
        world.journal.tick(world.now)
        world.journal.flush(world.now)
        batch = [r for r in world.journal.requests if isinstance(r, Persist)]
        over = any(len(piece.data) == 48 for request in batch for piece in request.pieces)
        if over and stage == "announced":
            break  # what is to be overwritten was announced, and no more
        if world.journal.state.holes and stage == "nothing":
            break  # not even that is on the disk
        world.perform(Persist)
        if any(isinstance(r, PunchHole) for r in world.journal.requests):
            if stage == "punched":
                world.perform()
            if stage in ("overwritten", "punched"):
                break
        world.perform()
    else:
        raise AssertionError("it did not come to that")
    world.journal.requests.clear()
    pinned.restart()
    pinned.check()
    pinned.work()
    pinned.check()
    assert world.journal.snapshot_counters()["bytes_punched"] > 2 * SEGMENT


def test_a_reader_inside_of_a_hole_goes_on_behind_it() -> None:
    pinned = Pinned(4)
    pinned.work()
    journal = pinned.world.journal
    first, holes = next(iter(journal.state.holes.items()))
    offset, size = holes[0]
    start, end = first + offset, first + offset + size
    assert journal.forward(start) == start, "there is the SKIP record"
    assert journal.forward(start + 8) == end
    assert journal.forward(end - 8) == end
    assert journal.forward(end) == end
    # What is located is never inside of one.
    for sequence in range(1, 2000, 50):
        place = pinned.world.located(lambda s=sequence: journal.locate(pinned.stream.number, s))
        position = place.first + place.offset
        assert journal.forward(position) == position


def test_compacted_space_does_not_count_as_used() -> None:
    pinned = Pinned(5)
    world = pinned.world
    used = world.journal.recorder.position
    world.limits = World(segment_bytes=SEGMENT, journal_bytes=used + SEGMENT // 2).limits
    pinned.restart()
    assert world.journal.refusal([]) == "journal-full"
    pinned.work()
    assert world.journal.refusal([]) == ""


def test_a_skip_lies_within_one_sector_and_the_hole_behind_it() -> None:
    pinned = Pinned(6)
    pinned.work()
    for first, holes in pinned.world.journal.state.holes.items():
        for offset, size in holes:
            assert offset % 512 + 48 <= 512
            start, length = punched_part(offset, size)
            assert offset + 48 <= start
            assert start + length <= offset + size
            assert start % 4096 == length % 4096 == 0
            header = format.decode_header(pinned.world.files[first][offset:], first + offset)
            assert header is not None
            assert (header.kind, header.length) == (format.SKIP, size)


@pytest.mark.parametrize("seed", range(200))
def test_dead_stretches_against_the_records_themselves(seed: int) -> None:
    """Whatever is needed stands outside of them, as entries are made."""
    dice = random.Random(seed)
    offset = 160
    records: list[tuple[int, int]] = []  # offset, stream
    extents: dict[int, list[tuple[int, int]]] = {}
    needed: set[tuple[int, int]] = set()
    counts: dict[int, int] = {}
    for _ in range(60):
        stream = dice.choice([1, 1, 1, 2])
        sequence = counts[stream] = counts.get(stream, 0) + 1
        entries = extents.setdefault(stream, [])
        if not entries or offset - entries[-1][0] >= 4096:
            entries.append((offset, sequence))
        if dice.random() < 0.1:
            needed.add((stream, sequence))
        records.append((offset, stream))
        offset += dice.choice([64, 512, 2048, 6000])
    end = offset
    made = [
        Extent(stream, 1, counts[stream], 0, 0, format.encode_entries(entries))
        for stream, entries in extents.items()
    ]

    def wanted(extent: Extent) -> list[int]:
        return [extent.before(n) for stream, n in needed if stream == extent.stream]

    stretches = dead_stretches(made, end, wanted)
    starts = {at for at, _ in records} | {end}
    place = dict.fromkeys(counts, 0)
    for at, stream in records:
        place[stream] += 1
        if (stream, place[stream]) in needed:
            assert not any(start <= at < stop for start, stop in stretches)
    for start, stop in stretches:
        assert start in starts
        assert stop in starts
        assert start < stop


def test_damage_at_the_place_of_a_skip_is_found() -> None:
    pinned = Pinned(8)
    pinned.work()
    first, holes = next(iter(pinned.world.journal.state.holes.items()))
    pinned.world.files[first][holes[0][0] + 20] ^= 1
    findings = [text for found in audit(pinned.world.views()) for text in found.findings]
    assert any("should be closed" in text for text in findings)
    try:
        pinned.world.start()
    except DiskError as error:
        assert error.code.name == "journal-damaged"
