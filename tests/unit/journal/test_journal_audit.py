"""Looking at all of a journal."""

from __future__ import annotations

import pytest
from journal_world import SEGMENT, World

from regraft.journal import format
from regraft.journal.audit import Audit, audit


@pytest.fixture
def world() -> World:
    world = World()
    box = world.journal.make_mailbox("m", "a", False, "", "c", 1)
    while len(world.journal.segments) < 4:
        world.publish(box, body=bytes(700), count=2)
        world.flush()
    world.journal.settle(box.number, [(2, 3)], world.now)
    world.flush()
    return world


def look(world: World) -> list[Audit]:
    return list(audit(world.views()))


def test_a_healthy_journal(world: World) -> None:
    found = look(world)
    assert [one.findings for one in found] == [[]] * len(found)
    assert [one.closed for one in found] == [True, True, True, False]
    records = world.records()
    assert sum(one.messages for one in found) == sum(record.messages for record in records)
    assert sum(sum(one.records.values()) for one in found) == len(records)
    assert found[0].records["MESSAGES"] > 5
    assert found[-1].records["SETTLED"] == 1
    assert found[-1].used == world.journal.recorder.position - 3 * SEGMENT
    assert (found[0].first_us, found[-1].last_us) == (1, world.now)


def test_damage_is_found_in_any_segment(world: World) -> None:
    world.files[SEGMENT][3000] ^= 1
    found = look(world)
    assert [bool(one.findings) for one in found] == [False, True, False, False]
    assert "it should be closed" in found[1].findings[0]


def test_a_segment_that_is_missing_or_cut(world: World) -> None:
    del world.files[SEGMENT]
    del world.files[0][-32:]
    found = look(world)
    assert found[0].findings == ["it is 32 bytes too short", "its trailer is not valid"]
    assert found[1].findings == [f"{SEGMENT} bytes before it are missing"]


def test_an_index_that_lies(world: World) -> None:
    (index,) = (
        record
        for record in world.records()
        if record.kind == format.INDEX and record.position < SEGMENT
    )
    file = world.files[0]
    at = index.position
    length = format.HEADER_BYTES + len(index.payload)
    file[at + 48 + 12] ^= 1  # the first sequence of the first stream
    file[at : at + 4] = format.crc32c(bytes(file[at + 4 : at + length])).to_bytes(4, "little")
    found = look(world)
    assert found[0].findings == ["its INDEX does not say what it holds"]


def test_sequences_that_do_not_follow(world: World) -> None:
    records = [record for record in world.records() if record.kind == format.MESSAGES]
    record = records[2]
    file = world.files[0]
    at = record.position
    length = format.HEADER_BYTES + len(record.meta) + len(record.payload)
    file[at + 48 + 4] += 1
    file[at : at + 4] = format.crc32c(bytes(file[at + 4 : at + length])).to_bytes(4, "little")
    findings = look(world)[0].findings
    assert f"offset {at} has message 6 of stream 1, where 5 should be" in findings


def test_what_makes_no_sense(world: World) -> None:
    record = next(record for record in world.records() if record.kind == format.CONTROL)
    file = world.files[0]
    at = record.position
    length = format.HEADER_BYTES + len(record.payload)
    file[at + 48] = ord("?")
    file[at : at + 4] = format.crc32c(bytes(file[at + 4 : at + length])).to_bytes(4, "little")
    assert "a CONTROL record cannot be read" in look(world)[0].findings[0]


def test_nothing() -> None:
    assert list(audit([])) == []
