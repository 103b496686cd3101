"""The disk in memory: what it keeps and loses, and that its faults come where they were planned."""

from __future__ import annotations

import errno
from random import Random

import pytest

from regraft.journal.requests import (
    Persist,
    Piece,
    PrepareSegment,
    PunchHole,
    ReadJournal,
    RemoveSegment,
)
from regraft.node.event import DiskFailed, Event, JournalRead, Persisted, SegmentReady
from regraft.simulate.disk import SECTOR, Disk
from regraft.simulate.world import World

SIZE = 16 * SECTOR


def make(seed: int = 1, capacity: int | None = None) -> Disk:
    return Disk(Random(seed), capacity)


def persist(first: int, offset: int, data: bytes) -> Persist:
    return Persist((Piece(first, offset, data),), SIZE)


def live(disk: Disk, first: int = 0) -> bytes:
    (read,) = disk.perform(ReadJournal(1, first, 0, SIZE))
    assert isinstance(read, JournalRead) and not read.error
    return read.data


def found(disk: Disk) -> dict[int, bytes]:
    return {first: view for first, _, view in disk.open_segments()}


def test_what_is_persisted_outlives_the_power() -> None:
    disk = make()
    assert disk.perform(persist(0, 0, b"a" * 1000)) == [Persisted()]
    assert disk.perform(persist(0, 1000, b"b" * 500)) == [Persisted()]
    assert disk.perform(persist(SIZE, 0, b"c")) == [Persisted()]
    assert disk.counts["write"] == disk.counts["sync"] == 3
    after = disk.power_off()
    assert after.open_segments()[0] == (0, SIZE, b"a" * 1000 + b"b" * 500 + bytes(SIZE - 1500))
    assert found(after)[SIZE][:2] == b"c\0"
    assert disk.halted and disk.perform(persist(0, 0, b"x")) == []


def test_a_power_loss_keeps_any_sectors_of_what_was_not_synced() -> None:
    outcomes = set()
    for seed in range(300):
        disk = make(seed)
        disk.perform(persist(0, 0, b"o" * SIZE))
        disk.halt("sync", 2)
        assert disk.perform(persist(0, 100, b"n" * 4 * SECTOR)) == []
        content = found(disk.power_off())[0]
        kept = ""
        for at in range(0, SIZE, SECTOR):
            sector = content[at : at + SECTOR]
            old = bytes(sector) == b"o" * SECTOR
            new = bytes(sector) == (b"o" * 100 + b"n" * 4 * SECTOR).ljust(SIZE, b"o")[at:][:SECTOR]
            assert old or new
            kept += "n" if new and not old else "o"
        assert kept[5:] == "o" * 11
        outcomes.add(kept[:5])
    assert {"ooooo", "nnnnn"} < outcomes
    assert len(outcomes) > 20
    assert any("on" in outcome for outcome in outcomes)  # a later sector without an earlier one


def test_a_crash_keeps_what_is_live_but_the_power_may_still_take_it() -> None:
    lost = 0
    for seed in range(40):
        disk = make(seed)
        disk.halt("sync", 1)
        disk.perform(persist(0, 0, b"x" * SECTOR))
        survivor = disk.crash()
        assert live(survivor)[:3] == b"xxx"
        lost += found(survivor.power_off())[0][:3] != b"xxx"
    assert 0 < lost < 40


def test_opening_makes_durable_what_is_seen() -> None:
    for seed in range(20):
        disk = make(seed)
        disk.halt("sync", 1)
        disk.perform(persist(0, 0, b"x" * SECTOR))
        survivor = disk.crash()
        assert found(survivor)[0][:3] == b"xxx"
        assert found(survivor.power_off())[0][:3] == b"xxx"


def test_a_failed_sync_gives_up_what_it_should_have_synced() -> None:
    seen = set()
    for seed in range(40):
        disk = make(seed)
        disk.fail("sync", 1)
        (failed,) = disk.perform(persist(0, 0, b"x" * SECTOR))
        assert failed == DiskFailed("sync", errno.EIO, f"cannot sync {0:016x}.seg: EIO")
        assert disk.perform(persist(0, SECTOR, b"y")) == [failed]  # nothing is written any more
        assert disk.counts["write"] == 1
        assert live(disk)[:3] == b"xxx"
        seen.add(found(disk.crash())[0][:3])
    assert seen == {b"xxx", b"\0\0\0"}  # the truth about the disk, not about the cache


def test_a_full_disk_is_not_the_end() -> None:
    disk = make(capacity=2 * SIZE)
    assert disk.perform(persist(0, 0, b"x")) == [Persisted()]
    assert disk.perform(PrepareSegment(SIZE, SIZE)) == [SegmentReady(SIZE)]
    (hint,) = disk.perform(PrepareSegment(2 * SIZE, SIZE))
    assert isinstance(hint, DiskFailed) and (hint.what, hint.errno) == ("prepare", errno.ENOSPC)
    (failed,) = disk.perform(persist(2 * SIZE, 0, b"z"))
    assert isinstance(failed, DiskFailed) and (failed.what, failed.errno) == (
        "create",
        errno.ENOSPC,
    )
    disk.perform(RemoveSegment(0))
    assert disk.perform(persist(2 * SIZE, 0, b"z")) == [Persisted()]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forever", [False, True])
def test_the_nth_write_fails_once_or_for_good(number: int, forever: bool) -> None:
    disk = make()
    disk.fail("write", 2, number, forever)
    results = [disk.perform(persist(0, 0, b"x"))[0] for _ in range(4)]
    failures = [isinstance(result, DiskFailed) for result in results]
    assert failures == [False, True, *[forever or number == errno.EIO] * 2]
    assert all(result.what == "write" for result in results if isinstance(result, DiskFailed))


def test_after_a_halt_nothing_is_reported() -> None:
    for what in ("write", "sync"):
        for after in (False, True):
            disk = make()
            disk.halt(what, 2, after)
            assert disk.perform(persist(0, 0, b"x")) == [Persisted()]
            assert disk.perform(persist(0, 1, b"y")) == []
            assert disk.halted
            if (what, after) == ("sync", True):
                assert found(disk.power_off())[0][:2] == b"xy"


def test_a_dropped_segment_becomes_another_one_with_what_stood_in_it() -> None:
    disk = make()
    for number in range(4):
        disk.perform(persist(number * SIZE, 0, b"%d" % number * SIZE))
    for number in range(3):
        assert disk.perform(RemoveSegment(number * SIZE)) == []
    assert disk.perform(RemoveSegment(99 * SIZE)) == []
    assert list(found(disk)) == [3 * SIZE]
    for number in (4, 5, 6):
        assert disk.perform(PrepareSegment(number * SIZE, SIZE)) == [SegmentReady(number * SIZE)]
    contents = found(disk.power_off())
    assert sorted(contents[number * SIZE][:1] for number in (4, 5, 6)) == [b"\0", b"0", b"1"]


def test_reads_fail_by_plan_and_for_what_is_not_there() -> None:
    disk = make()
    disk.perform(persist(0, 0, b"hello"))
    assert disk.perform(ReadJournal(7, 0, 1, 3)) == [JournalRead(7, b"ell", "")]
    (read,) = disk.perform(ReadJournal(8, SIZE, 0, 3))
    assert isinstance(read, JournalRead) and read[:2] == (8, b"") and "ENOENT" in read.error
    disk.fail("read", 3)
    (read,) = disk.perform(ReadJournal(9, 0, 0, 3))
    assert isinstance(read, JournalRead) and "EIO" in read.error


def test_a_commit_over_two_segments_is_synced_piece_by_piece() -> None:
    both = Persist((Piece(0, SIZE - 1, b"x"), Piece(SIZE, 0, b"y")), SIZE)
    for seed in range(30):
        disk = make(seed)
        disk.halt("write", 2)
        assert disk.perform(both) == []
        assert found(disk.power_off())[0][-1:] == b"x"
    disk = make()
    assert disk.perform(both) == [Persisted()]
    assert disk.counts["write"] == disk.counts["sync"] == disk.counts["create"] == 2
    disk = make()
    disk.fail("sync", 1)
    (failed,) = disk.perform(both)
    assert isinstance(failed, DiskFailed) and disk.counts["write"] == 1


def test_bits_rot_and_holes_are_zeros() -> None:
    disk = make()
    disk.perform(persist(0, 0, b"aaaa"))
    disk.rot(0, 1, bit=1)
    assert live(disk)[:4] == b"acaa"
    assert found(disk.power_off())[0][:4] == b"acaa"
    again = make()
    again.perform(persist(0, 0, b"aaaa"))
    again.perform(PunchHole(0, 1, 2))
    assert live(again)[:4] == b"a\0\0a"


def test_in_a_world_it_takes_time_and_one_sync_at_a_time() -> None:
    world = World(3)
    disk = Disk(world.random)
    events: list[Event] = []
    disk.submit(persist(0, 0, b"x"), world.after, events.append)
    disk.submit(PrepareSegment(SIZE, SIZE), world.after, events.append)
    with pytest.raises(RuntimeError, match="second sync"):
        disk.submit(persist(0, 1, b"y"), world.after, events.append)
    assert not events
    world.advance(20)
    assert sorted(type(event).__name__ for event in events) == ["Persisted", "SegmentReady"]
    disk.submit(persist(0, 1, b"y"), world.after, events.append)
    world.advance(0.05)
    disk.power_off()
    world.advance(20)
    assert len(events) == 2


def test_a_name_is_durable_before_anything_in_the_file_is_reported() -> None:
    for seed in range(60):
        world = World(seed)
        disk = Disk(world.random)
        events: list[Event] = []
        disk.submit(PrepareSegment(0, SIZE), world.after, lambda event: None)
        disk.submit(persist(0, 0, b"x"), world.after, events.append)
        while not events:
            world.advance(0.01)
        assert found(disk.power_off())[0][:1] == b"x"


def test_a_segment_in_the_making_is_there_or_not_after_a_power_loss() -> None:
    there = set()
    for seed in range(20):
        world = World(seed)
        disk = Disk(world.random)
        disk.submit(PrepareSegment(0, SIZE), world.after, lambda event: None)
        while world.next_ns is not None and len(disk._names) < 2:
            world.advance_to(world.next_ns)
        there.add(tuple(found(disk.power_off())))
    assert there == {(), (0,)}


def test_the_journal_may_not_write_past_a_segment() -> None:
    with pytest.raises(ValueError, match="past the end"):
        make().perform(persist(0, SIZE - 1, b"xy"))
