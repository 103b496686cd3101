"""Recovery: the longest valid prefix, whatever was done to the end of the journal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
from journal_world import JOURNAL_ID, World

from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal import journal as journals
from regraft.journal.recovery import Recovered, examine, recover
from regraft.journal.walking import SegmentView
from regraft.kernels.records import FOUND, Walk

SEGMENT = 32 * 1024
LAST = 64 * 1024  # bytes that are damaged, one place after the other


# -------------------------------------------------- every byte of the last 64 KiB


@dataclass
class Spot:
    """A record of the undamaged journal."""

    start: int
    end: int  # without padding
    persisted: int  # what it knows to have been persisted
    kind: int


@dataclass
class Case:
    """A journal whose last batch was not acknowledged when the power failed, but is all there."""

    files: dict[int, bytes]
    spots: list[Spot]
    end: int
    persisted: int  # what was acknowledged
    sequences: dict[int, int]  # the message that comes next, by the position reached


@cache
def case() -> Case:
    """Records of some KiB in batches of some, a few segments of them behind a snapshot."""
    before, journals.SNAPSHOT_SEGMENTS = journals.SNAPSHOT_SEGMENTS, 1000
    try:
        world = World(segment_bytes=SEGMENT)
        box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
        while world.journal.recorder.position < 2 * SEGMENT:
            world.publish(box, body=bytes(6000))
        world.flush()
        assert world.journal.write_snapshot(1)
        world.flush()
        dice = random.Random(1)
        while world.journal.recorder.position < 2 * SEGMENT + LAST + 10_000:
            for _ in range(dice.randrange(1, 4)):
                world.publish(box, body=dice.randbytes(dice.randrange(6000)))
            if dice.random() < 0.3:
                world.journal.settle(box.number, [(box.floor, box.floor + 1)], world.now)
            world.flush()
        persisted = world.journal.persisted_position
        for _ in range(3):
            world.publish(box, body=dice.randbytes(700))
        world.flush()  # on the disk, but say that nobody was told
    finally:
        journals.SNAPSHOT_SEGMENTS = before
    files = {first: bytes(file) for first, file in world.files.items()}
    spots = list(walked(files))
    sequences = {}
    sequence = world.journal.refresh(box).next_sequence
    sequence -= sum(spot.kind == format.MESSAGES for spot in spots)
    for spot in spots:
        sequences[spot.start] = sequence
        if spot.kind == format.MESSAGES:
            sequence += 1
    sequences[world.journal.recorder.position] = sequence
    return Case(files, spots, world.journal.recorder.position, persisted, sequences)


def walked(files: dict[int, bytes]) -> Iterator[Spot]:
    walk = Walk()
    for first, file in sorted(files.items()):
        at = 0
        while walk.step(file, at, first, 0) == FOUND:
            persisted = walk.position - walk.unsynced
            yield Spot(walk.position, first + walk.end, persisted, walk.kind)
            at = walk.next
            if walk.kind == format.INDEX:
                break


def damaged(made: Case, first: int, offset: int, how: str, dice: random.Random) -> bytes:
    """The file with something wrong from `offset` on."""
    file = made.files[first]
    if how == "truncated":
        return file[:offset]
    if how == "bit":
        return file[:offset] + bytes([file[offset] ^ 1 << dice.randrange(8)]) + file[offset + 1 :]
    size = min(dice.choice([1, 30, 512, 3000]), len(file) - offset)
    if first + offset < made.persisted:  # if the last record is gone as well, nobody can know
        size = min(size, made.spots[-1].start - first - offset)
    wrong = bytes(size) if how == "zeros" else dice.randbytes(size)
    return file[:offset] + wrong + file[offset + size :]


def expected(case: Case, first: int, new: bytes) -> tuple[int, bool]:
    """Where the valid prefix ends, and whether what lies there was persisted for sure."""
    old = case.files[first]
    bad = None
    for spot in case.spots:
        start, end = spot.start - first, spot.end - first
        touched = 0 <= start < len(old) and new[start:end] != old[start:end]
        if bad is None and touched:
            bad = spot.start
        elif bad is not None and not touched and spot.persisted > bad:
            return bad, True
    if bad is None:  # a file that was cut may have held anything, unless the end can be seen
        return case.end, first == max(case.files) and first + len(new) < case.end + 48
    return bad, len(new) < len(old)


def check(case: Case, first: int, new: bytes) -> None:
    bad, lost = expected(case, first, new)
    views = [
        SegmentView(name, len(file), new if name == first else file)
        for name, file in case.files.items()
    ]
    found = examine(views, SEGMENT, JOURNAL_ID, 9)
    assert found.position == bad
    assert bool(found.damage) == lost, found.damage
    assert found.state.mailboxes["m"].next_sequence == case.sequences[bad]
    if not lost:
        assert bad >= case.persisted, "what was acknowledged is there"
        assert found.epoch == 2
    if bad < case.persisted:
        assert lost, "acknowledged data is gone, and it is said"


@pytest.mark.parametrize("how", ["truncated", "zeros", "random", "bit"])
def test_the_last_bytes_are_damaged_one_by_one(how: str) -> None:
    damage_each(made := case(), range(made.end - 4096, made.end + 64), [how], 2)


@pytest.mark.slow
@pytest.mark.parametrize("hows", [["truncated"], ["zeros", "random", "bit"]])
def test_every_byte_of_the_last_64_kib_is_damaged(hows: list[str]) -> None:
    damage_each(made := case(), range(made.end - LAST, made.end + 64), hows, 3)


def damage_each(made: Case, positions: range, hows: list[str], seed: int) -> None:
    dice = random.Random(seed)
    for position in positions:
        first = position // SEGMENT * SEGMENT
        check(made, first, damaged(made, first, position - first, dice.choice(hows), dice))


def test_damage_that_must_not_be_overlooked_is_an_error() -> None:
    made = case()
    spot = next(spot for spot in made.spots if spot.start > made.end - LAST // 2)
    first = spot.start // SEGMENT * SEGMENT
    at = spot.start - first + 50
    new = made.files[first][:at] + b"????" + made.files[first][at + 4 :]
    views = [SegmentView(f, SEGMENT, new if f == first else v) for f, v in made.files.items()]
    with pytest.raises(DiskError) as caught:
        recover(views, SEGMENT, JOURNAL_ID, 9)
    assert caught.value.code.name == "journal-damaged"
    assert str(spot.start) in caught.value.text
    assert "regraft journal repair" in caught.value.text


def test_any_sectors_of_the_last_write_are_lost() -> None:
    """What was not synced may be there in part: any 512 bytes of it."""
    made = case()
    dice = random.Random(4)
    first = made.persisted // SEGMENT * SEGMENT
    for _ in range(500):
        file = bytearray(made.files[first])
        kept = dice.random()
        for sector in range((made.persisted - first) // 512, len(file) // 512):
            start = max(sector * 512, made.persisted - first)
            if dice.random() > kept:
                file[start : (sector + 1) * 512] = bytes((sector + 1) * 512 - start)
        check(made, first, bytes(file))


# --------------------------------------------------------------------- leftovers


def told(found: Recovered) -> int:
    return found.state.mailboxes["m"].next_sequence - 1


def test_leftovers_of_an_older_epoch_are_never_taken_for_new() -> None:
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    for _ in range(10):
        world.publish(box, body=bytes(100))
    world.flush()
    positions = [world.publish(box, body=bytes(100)) for _ in range(10)]
    world.flush()
    # The first of the last batch is torn; the others are there, whole.
    torn = positions[0] - 100
    world.files[0][torn] ^= 1
    found = world.start()
    assert told(found) == 10
    assert found.epoch == 2
    assert "torn tail" in found.findings[0]
    assert "9 whole records" in found.findings[0]
    # What is written now is shorter, and ends where a leftover begins.
    box = world.journal.state.mailboxes["m"]
    world.publish(box, body=bytes(100))
    world.flush()
    assert world.journal.persisted_position == positions[0]
    found = world.start()
    assert told(found) == 11
    assert found.position == positions[0]
    assert found.epoch == 3
    # They are leftovers even where a newer record is damaged.
    world.files[0][torn] ^= 1
    found = world.start()
    assert told(found) == 10
    assert found.position < positions[0]


def test_a_torn_tail_of_the_newest_epoch_counts_for_the_next() -> None:
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    world.flush()
    for epoch in range(2, 6):
        end = world.journal.recorder.position
        box = world.journal.state.mailboxes["m"]
        world.publish(box, body=bytes(100))
        world.publish(box, body=bytes(100))
        world.flush()
        world.files[0][end] ^= 1  # of the two, only the second reached the disk
        found = world.start()
        assert (found.epoch, found.position, told(found)) == (epoch, end, 0)


def test_segments_behind_a_torn_end_are_to_be_removed() -> None:
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    world.flush()
    torn = world.journal.recorder.position
    while world.journal.recorder.position < 3 * world.limits.segment_bytes:
        world.publish(box, body=bytes(1000))
    world.flush()  # all in one batch, of which the beginning was lost
    world.files[0][torn : torn + 512] = bytes(512)
    found = world.examine()
    size = world.limits.segment_bytes
    assert found.leftovers == [size, 2 * size, 3 * size][: len(found.leftovers)]
    assert len(found.leftovers) >= 2
    assert (found.position, found.damage) == (torn, "")
    world.start()
    assert sorted(world.files)[0] == 0
    assert not set(found.leftovers) & set(world.files)


def test_a_prepared_segment_is_used_or_removed_if_its_size_is_another() -> None:
    world = World()
    world.journal.make_mailbox("m", "a", False, "", "c", 1)
    world.flush()
    size = world.limits.segment_bytes
    world.files[size] = bytearray(size)
    found = world.examine()
    assert (found.prepared, found.leftovers, found.findings) == ([size], [], [])
    world.files[size] = bytearray(random.Random(1).randbytes(size))  # one that was used before
    found = world.examine()
    assert (found.prepared, found.leftovers, found.findings) == ([size], [], [])
    world.files[size] = bytearray(2 * size)
    found = world.examine()
    assert (found.prepared, found.leftovers, found.findings) == ([], [size], [])


# ----------------------------------------------------------- beginnings and snapshots


def long_life(monkeypatch: pytest.MonkeyPatch, segments: int = 6) -> World:
    """A journal of several segments and snapshots, of which a mailbox keeps everything."""
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1)
    monkeypatch.setattr(journals, "SNAPSHOT_FACTOR", 1)
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    while len(world.journal.segments) < segments:
        world.publish(box, body=bytes(700))
        world.flush()
    assert world.journal.snapshots >= segments - 2
    return world


def snapshots(world: World) -> list[int]:
    return [record.position for record in world.records() if record.kind == format.SNAPSHOT]


def test_only_what_follows_the_newest_snapshot_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = long_life(monkeypatch)
    everything = len(world.records())
    found = world.examine()
    assert 0 < found.records < everything / 2
    for first in sorted(world.files)[:2]:  # nobody looks at these
        world.files[first][1000:2000] = bytes(1000)
    assert told(world.examine()) == told(found)
    assert not world.examine().findings


def test_a_pointer_to_a_snapshot_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    world = long_life(monkeypatch)
    before = world.examine()
    newest = before.snapshot
    # As if it had never been persisted: it is torn, and so are the pointers to it.
    pointers = {}
    for record in world.records():
        if record.kind == format.START:
            pointers[record.position] = format.decode_start(record.payload).snapshot
    last = max(pointers)
    assert 0 < pointers[last] <= newest
    rewrite_start(
        world, last, format.Start(1, JOURNAL_ID, world.limits.segment_bytes, newest + 8, 0)
    )
    found = world.examine()
    assert told(found) == told(before)
    assert not found.damage
    assert any("snapshot" in finding for finding in found.findings)


def test_without_any_snapshot_it_begins_with_the_first_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = long_life(monkeypatch)
    before = world.examine()
    for first in sorted(world.files):
        if any(record.position == first for record in world.records()):
            size = world.limits.segment_bytes
            rewrite_start(world, first, format.Start(1, JOURNAL_ID, size, 0, 0))
    found = world.examine()
    assert told(found) == told(before)
    assert found.records == len(world.records())
    assert (found.damage, found.findings) == ("", [])


def rewrite_start(world: World, first: int, start: format.Start) -> None:
    """Another START record, of the same length and at the same place."""
    (old,) = (record for record in world.records() if record.position == first)
    header = format.HEADER.unpack_from(world.files[first])
    payload = format.encode_start(start).ljust(len(old.payload))
    data = format.HEADER.pack(*header) + payload
    data = format.crc32c(data[4:]).to_bytes(4, "little") + data[4:]
    world.files[first][: len(data)] = data


def test_a_snapshot_without_its_beginning_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first segment that is left may begin in the middle of a snapshot."""
    world = long_life(monkeypatch)
    box = world.journal.state.mailboxes["m"]
    world.journal.settle(box.number, [(1, box.next_sequence - 40)], 1)
    for _ in range(200):
        world.publish(box, body=bytes(300))
        world.flush()
    assert world.removed
    before = world.examine()
    for first in sorted(world.files):
        rewrite_start(world, first, format.Start(1, JOURNAL_ID, world.limits.segment_bytes, 8, 0))
    found = world.examine()
    assert told(found) == told(before)
    assert not found.damage
    assert found.findings


def test_a_journal_without_beginning_and_snapshot_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1000)
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    while len(world.journal.segments) < 3:
        world.publish(box, body=bytes(700))
        world.flush()
    del world.files[0]
    assert "its beginning is gone" in world.examine().damage


def test_a_segment_in_the_middle_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = long_life(monkeypatch)
    firsts = sorted(world.files)
    lost = world.files.pop(firsts[1])
    assert "mailbox m needs" in world.examine().damage
    world.files[firsts[1]] = lost
    # One that was being dropped, after one whose removal did not last: nobody needs either.
    box = world.journal.state.mailboxes["m"]
    world.journal.refresh(box)
    world.journal.settle(box.number, [(1, box.next_sequence)], 1)
    world.journal.flush(1)
    kept = {first: bytes(file) for first, file in world.files.items()}
    world.flush()
    world.journal.tick(world.now + 1)
    world.flush()
    assert world.removed[:2] == firsts[:2]
    world.files[firsts[0]] = bytearray(kept[firsts[0]])
    found = world.examine()
    assert (found.damage, found.leftovers) == ("", [firsts[0]])
    assert found.segments[0][0] > firsts[1]


def test_the_last_segment_is_missing_although_there_are_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1000)
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    while len(world.journal.segments) < 4:
        world.publish(box, body=bytes(700))
        world.flush()
    del world.files[sorted(world.files)[2]]
    assert "had been persisted" in world.examine().damage


def test_a_file_that_was_cut_behind_all_records_is_reported_and_no_more() -> None:
    world = World()
    world.journal.make_mailbox("m", "a", False, "", "c", 1)
    world.flush()
    del world.files[0][8000:]
    found = world.start()
    assert found.findings == ["segment 0000000000000000 is shorter than it was made"]
    world.publish(world.journal.state.mailboxes["m"], body=bytes(100))
    world.flush()
    assert told(world.start()) == 1


def test_the_trailer_of_a_closed_segment_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1000)
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    while len(world.journal.segments) < 3:
        world.publish(box, body=bytes(700))
        world.flush()
    before = told(world.examine())
    world.files[0][-64:] = bytes(64)
    found = world.examine()
    assert told(found) == before
    assert found.findings == ["segment 0000000000000000 has no valid trailer"]


@pytest.mark.parametrize("reached", ["nothing", "index", "all"])
def test_a_crash_while_a_segment_is_closed(reached: str) -> None:
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    while len(world.journal.segments) < 2:
        world.publish(box, body=bytes(700))
        world.flush()
    records = world.records()
    (index,) = (record for record in records if record.kind == format.INDEX)
    del world.files[world.limits.segment_bytes]
    if reached != "all":
        world.files[0][-64:] = bytes(64)
    if reached == "nothing":
        start = index.position
        world.files[0][start : index.next] = bytes(index.next - start)
    found = world.start()
    assert found.position == (world.limits.segment_bytes if reached == "all" else index.position)
    assert not found.findings
    before = told(found)
    assert before == sum(record.messages for record in records if record.position < index.next)
    # It goes on as if nothing had been.
    box = world.journal.state.mailboxes["m"]
    for _ in range(60):
        world.publish(box, body=bytes(700))
        world.flush()
    assert told(world.start()) == before + 60


# -------------------------------------------------------------------------- the rest


def test_nothing_is_a_new_journal() -> None:
    found = recover([], SEGMENT, JOURNAL_ID, 7)
    assert (found.position, found.epoch, found.segments, found.findings) == (0, 1, [], [])
    assert (found.state.journal_id, found.state.created_us) == (JOURNAL_ID, 7)
    empty = recover([SegmentView(0, SEGMENT, bytes(SEGMENT))], SEGMENT, JOURNAL_ID, 7)
    assert (empty.position, empty.epoch, empty.prepared) == (0, 1, [0])
    assert empty.state.journal_id == JOURNAL_ID


def test_a_segment_of_another_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1000)
    one, other = World(), World()
    for world in (one, other):
        box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
        while len(world.journal.segments) < 3:
            world.publish(box, body=bytes(700))
            world.flush()
    stranger = format.Start(1, "f" * 32, one.limits.segment_bytes, 0, 0)
    rewrite_start(other, one.limits.segment_bytes, stranger)
    one.files[one.limits.segment_bytes] = other.files[one.limits.segment_bytes]
    assert "of another journal" in one.examine().damage


def test_a_newer_format_is_not_touched() -> None:
    world = World()
    world.journal.make_mailbox("m", "a", False, "", "c", 1)
    world.flush()
    rewrite_start(world, 0, format.Start(2, JOURNAL_ID, world.limits.segment_bytes, 0, 0))
    with pytest.raises(DiskError) as caught:
        world.examine()
    assert caught.value.code.name == "data-folder-version"


def test_recovering_again_gives_the_same() -> None:
    made = case()
    views = [SegmentView(first, SEGMENT, file) for first, file in made.files.items()]
    one, other = (examine(views, SEGMENT, JOURNAL_ID, 9) for _ in range(2))
    assert one.position == other.position == made.end
    assert one.entries == other.entries
    assert one.state.snapshot() == other.state.snapshot()


def test_positions_are_dense() -> None:
    """The test's own idea of what is in the journal: records follow one another."""
    made = case()
    for one, other in pairwise(made.spots):
        if one.kind != format.INDEX:
            assert format.padded(one.end) == other.start
    assert sum(spot.kind == format.SNAPSHOT for spot in made.spots) == 1
    assert len({spot.persisted for spot in made.spots}) > 8
    assert made.spots[-1].persisted == made.persisted < made.end
