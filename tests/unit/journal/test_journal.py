"""The journal at work: group commit, failures, what is refused, kept, dropped and forgotten."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from journal_world import SEGMENT, World, frame

from regraft.errors import LocalError
from regraft.journal import format
from regraft.journal import journal as journals
from regraft.journal.format import Options
from regraft.journal.requests import Persist, PrepareSegment, RemoveSegment
from regraft.journal.retention import Retention
from regraft.limits import SEGMENT_BYTES_MIN

SECOND = 1_000_000


def mailbox(world: World, name: str = "m", **quota: int) -> Any:
    return world.journal.make_mailbox(name, "a", False, "", "client", world.now, Options(**quota))


def persists(world: World) -> list[Persist]:
    return [request for request in world.journal.requests if isinstance(request, Persist)]


def grow(world: World, *streams: Any, segments: int = 1, body: int = 1000) -> None:
    """Publish until so many more segments were begun."""
    wanted = world.journal.segments.end + segments * SEGMENT
    while world.journal.segments.end < wanted:
        world.publish(*streams, body=bytes(body))
        world.flush()


# ------------------------------------------------------------------------ group commit


def test_one_batch_is_under_way_and_the_rest_waits_for_the_next() -> None:
    world = World()
    box = mailbox(world)
    journal = world.journal
    journal.flush(1)
    (first,) = persists(world)
    one = world.publish(box)
    journal.flush(1)
    two = world.publish(box)
    journal.flush(1)
    assert persists(world) == [first], "the first is not done yet"
    assert journal.persisted_position == 0
    world.perform(Persist)
    # The two messages went out together, and nothing waits any more.
    assert world.persists == 2
    assert one < two == journal.persisted_position == journal.recorder.position
    journal.flush(1)
    assert not persists(world)
    counters = journal.snapshot_counters()
    assert counters["batches"] == 2
    assert counters["written_bytes"] == two


def test_what_was_persisted_is_told_and_read_from_memory() -> None:
    world = World()
    box = mailbox(world)
    world.flush()
    before = world.journal.persisted_position
    end = world.publish(box, body=b"x" * 100)
    world.journal.flush(1)
    assert world.journal.tail.find(before) is None
    request = persists(world)[0]
    world.write(request)
    world.journal.requests.clear()
    assert world.journal.persisted(1) == request.pieces
    found = world.journal.tail.find(before)
    assert found is not None
    assert (found.first, found.offset, len(found.view)) == (0, before, end - before)
    assert frame(b"x" * 100) in bytes(found.view)


def test_the_tail_is_bounded_and_has_the_newest() -> None:
    world = World(journal_tail_bytes=600_000)
    box = mailbox(world)
    grow(world, box, segments=100)
    tail = world.journal.tail
    assert tail.size <= 600_000 + 256 * 1024
    assert tail.find(0) is None
    position = world.journal.persisted_position - 1
    found = tail.find(position)
    assert found is not None
    file = world.files[found.first]
    assert file[found.offset : found.offset + len(found.view)] == found.view
    assert tail.find(position + 1) is None


def test_the_next_segment_is_prepared_in_time() -> None:
    world = World()
    box = mailbox(world)
    while world.journal.recorder.position < SEGMENT * 3 // 4:
        assert not [r for r in world.journal.requests if isinstance(r, PrepareSegment)]
        world.publish(box, body=bytes(500))
        world.journal.flush(1)
        world.perform(Persist)
    world.publish(box)
    world.journal.flush(1)
    world.perform(Persist)
    assert world.journal.requests == [PrepareSegment(SEGMENT, SEGMENT)]
    world.journal.requests.clear()
    world.journal.failed("prepare", errno.EIO, "oh", world.now)
    assert world.journal.refusal(()) == ""
    world.journal.failed("prepare", errno.ENOSPC, "no space", world.now)
    assert world.journal.refusal(()) == "disk-full", "the rest is for settlements"
    world.publish(box)
    world.journal.flush(world.now)
    world.perform(Persist)
    assert not world.journal.requests  # not yet again
    world.now += 2 * SECOND
    world.publish(box)
    world.journal.flush(world.now)
    world.perform(Persist)
    assert world.journal.requests == [PrepareSegment(SEGMENT, SEGMENT)]
    world.perform()
    assert world.journal.refusal(()) == ""


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize("what", ["write", "sync", "create", "mistake"])
def test_a_failed_batch_is_final(what: str) -> None:
    world = World()
    box = mailbox(world)
    world.flush()
    safe = world.journal.persisted_position
    world.publish(box)
    world.journal.flush(1)
    world.journal.requests.clear()
    world.journal.failed(what, errno.EIO, "cannot sync: input/output error", 1)
    assert world.journal.broken == "cannot sync: input/output error"
    assert world.journal.refusal(()) == "journal-failed"
    for _ in range(3):
        world.publish(box)
        world.journal.flush(1)
        world.now += 10 * SECOND
        world.journal.tick(world.now)
    assert not persists(world)
    assert world.journal.persisted_position == safe


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_tried_again(number: int) -> None:
    world = World()
    box = mailbox(world)
    world.flush()
    world.publish(box)
    world.journal.flush(world.now)
    (request,) = persists(world)
    world.journal.requests.clear()
    world.journal.failed("write", number, "no space left", world.now)
    assert not world.journal.broken
    assert world.journal.refusal(()) == "disk-full"
    world.journal.settle(box.number, [(1, 1)], world.now)  # settlements go on
    world.journal.flush(world.now)
    world.journal.tick(world.now + SECOND // 2)
    assert not persists(world)
    for _ in range(3):
        world.now += SECOND
        world.journal.tick(world.now)
        assert persists(world) == [request], "the same bytes"
        world.journal.requests.clear()
        world.journal.failed("write", number, "no space left", world.now)
    world.now += SECOND
    world.journal.tick(world.now)
    world.perform()
    assert world.journal.refusal(()) == ""
    assert world.journal.persisted_position == world.journal.recorder.position
    assert world.start().state.mailboxes["m"].floor == 2


def test_what_fails_beside_it_is_no_failure_of_the_journal() -> None:
    world = World()
    for what in ("prepare", "remove", "punch", "read"):
        world.journal.failed(what, errno.EIO, "oh", 1)
    assert not world.journal.broken


# -------------------------------------------------------------------- drops and snapshots


def test_a_segment_goes_when_all_in_it_is_settled_and_a_snapshot_follows() -> None:
    world = World()
    box, other = mailbox(world), mailbox(world, "other")
    grow(world, box, other, segments=3)
    journal = world.journal
    assert not world.removed
    journal.settle(box.number, [(1, 1000)], world.now)
    grow(world, box, segments=2)
    assert not world.removed, "the other mailbox needs it"
    assert journal.snapshot_counters()["held_by"] == "other"
    journal.settle(other.number, [(1, 1000)], world.now)
    grow(world, box, segments=2)
    assert world.removed
    assert world.removed == sorted(world.removed)
    assert world.journal.segments.oldest == min(world.files)
    # All that was not settled is there.
    waiting = journal.refresh(box).waiting  # type: ignore[attr-defined]
    assert world.start().state.mailboxes["m"].waiting == waiting
    sequences = [
        sequence
        for record in world.records()
        for number, sequence in format.places(record.meta)
        if number == box.number
    ]
    assert set(range(box.floor, box.next_sequence)) <= set(sequences)


def test_a_settlement_counts_for_drops_once_it_is_persisted() -> None:
    world = World()
    box = mailbox(world)
    grow(world, box, segments=3)
    journal = world.journal
    journal.settle(box.number, [(1, 10_000)], world.now)
    journal.tick(world.now)
    assert not [r for r in journal.requests if isinstance(r, RemoveSegment)]
    journal.flush(world.now)
    (request,) = persists(world)
    assert not [r for r in journal.requests if isinstance(r, RemoveSegment)]
    journal.requests.clear()
    world.write(request)
    journal.persisted(world.now)
    assert [r for r in journal.requests if isinstance(r, RemoveSegment)]


def test_nothing_is_dropped_without_a_snapshot_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1000)
    world = World()
    box = mailbox(world)
    grow(world, box, segments=3)
    world.journal.settle(box.number, [(1, 10_000)], world.now)
    grow(world, box, segments=3)
    assert not world.removed
    world.flush()
    assert world.journal.write_snapshot(world.now)
    assert not world.removed
    world.flush()
    assert world.removed == [0, SEGMENT]


def test_snapshots_are_not_written_too_often() -> None:
    world = World()
    for number in range(40):
        mailbox(world, f"m{number}")
    box = world.journal.state.mailboxes["m0"]
    grow(world, box, segments=20)
    size = sum(
        record.next - record.position
        for record in world.records()
        if record.kind == format.SNAPSHOT
    )
    assert 0 < size < world.journal.recorder.position / 8


def test_a_removed_mailbox_holds_nothing() -> None:
    world = World()
    box, other = mailbox(world), mailbox(world, "other")
    grow(world, box, other, segments=3)
    world.journal.settle(box.number, [(1, 1000)], world.now)
    world.journal.remove_mailbox(other.number, world.now)
    grow(world, box, segments=2)
    assert world.removed
    assert "other" not in world.start().state.mailboxes


# ------------------------------------------------------------------------- retention


def kept(**retention: int) -> Any:
    return lambda name: Retention(**retention)


def test_a_stream_keeps_all_unless_told_otherwise() -> None:
    world = World()
    stream = world.journal.make_stream("s", "a/b", False, 1)
    grow(world, stream, segments=6)
    assert not world.removed


def test_a_stream_keeps_so_many_bytes_though_they_came_at_once() -> None:
    """One batch closes many segments: each of them counts for what it holds."""
    world = World(kept(size=3 * SEGMENT))
    stream = world.journal.make_stream("s", "a/b", False, 1)
    for _ in range(20 * SEGMENT // 1000):
        world.publish(stream, body=bytes(1000))
    for _ in range(4):
        world.flush()
        world.now += 1_000_000
        world.journal.tick(world.now)
    assert 3 <= len(world.journal.segments) <= 6


def test_a_stream_keeps_so_many_bytes() -> None:
    world = World(kept(size=3 * SEGMENT))
    stream = world.journal.make_stream("s", "a/b", False, 1)
    grow(world, stream, segments=12)
    assert 4 <= len(world.files) <= 6
    assert world.removed
    world.journal.refresh(stream)
    left = stream.first_sequence()
    assert (stream.next_sequence - left) * 1000 >= 3 * SEGMENT * 0.9
    first = min(
        sequence for record in world.records() for _, sequence in format.places(record.meta)
    )
    assert left == first


def test_a_stream_keeps_messages_of_an_age() -> None:
    world = World(kept(age_us=100 * SECOND))
    stream = world.journal.make_stream("s", "a/b", False, 1)
    grow(world, stream, segments=4)
    world.now += 99 * SECOND
    grow(world, stream, segments=2)
    assert not world.removed
    world.now += 2 * SECOND
    world.journal.tick(world.now)
    world.flush()
    assert len(world.removed) == 3
    world.now += 100 * SECOND
    grow(world, stream)
    world.journal.tick(world.now)
    world.flush()
    assert len(world.removed) >= 5
    assert world.start().state.names["s"].next_sequence == stream.next_sequence


def test_a_mailbox_holds_what_a_stream_would_let_go() -> None:
    world = World(kept(size=1))
    stream = world.journal.make_stream("s", "a/b", False, 1)
    box = mailbox(world)
    grow(world, stream, box, segments=6)
    assert not world.removed
    world.journal.settle(box.number, [(1, 10_000)], world.now)
    grow(world, stream, segments=2)
    assert len(world.removed) >= 6


def test_a_stream_is_known_again_and_made_anew_when_it_changed() -> None:
    world = World(streams=2)
    one = world.journal.make_stream("s", "a/b", False, 1)
    assert world.journal.make_stream("s", "a/b", False, 1) is one
    other = world.journal.make_stream("s", "a/c", False, 1)
    assert other.number != one.number
    world.journal.make_stream("t", "a/c", False, 1)
    with pytest.raises(LocalError, match="limit streams"):
        world.journal.make_stream("u", "a/c", False, 1)
    world.flush()
    state = world.start().state
    assert {name: stream.pattern for name, stream in state.names.items()} == {
        "s": "a/c",
        "t": "a/c",
    }
    world.journal.remove_stream(state.names["t"].number, 1)
    world.flush()
    assert list(world.start().state.names) == ["s"]


# ---------------------------------------------------------------------------- quotas


def test_a_mailbox_is_full_by_messages_until_enough_was_settled() -> None:
    world = World()
    box = mailbox(world, quota_messages=100)
    free = mailbox(world, "free")
    for _ in range(99):
        world.publish(box, free)
        world.flush()
    journal = world.journal
    assert journal.refusal([box.number]) == ""
    world.publish(box, free)
    world.flush()
    assert journal.quotas.changed == {box.number}
    assert journal.refusal([box.number, free.number]) == "mailbox-full"
    assert journal.refusal([free.number]) == ""
    assert journal.refusal([]) == ""
    journal.settle(box.number, [(1, 5)], world.now)
    assert journal.refusal([box.number]) == "mailbox-full", "it would be full again at once"
    journal.settle(box.number, [(20, 40)], world.now)
    assert journal.refusal([box.number]) == ""
    for _ in range(26):
        world.publish(box, free)
        world.flush()
    assert journal.refusal([box.number]) == "mailbox-full"
    world.start()
    assert world.journal.refusal([box.number]) == "mailbox-full"
    world.journal.remove_mailbox(box.number, world.now)
    assert world.journal.refusal([box.number]) == ""


def test_a_mailbox_is_full_by_bytes_about() -> None:
    world = World()
    box = mailbox(world, quota_bytes=50_000)
    count = 0
    while not world.journal.refusal([box.number]):
        world.publish(box, body=bytes(1000))
        world.flush()
        count += 1
    assert 45 <= count <= 55
    world.journal.settle(box.number, [(1, 20)], world.now)
    assert not world.journal.refusal([box.number])


def test_default_quotas_are_limits_and_large_batches_are_noticed() -> None:
    world = World(mailbox_messages=1000)
    box = mailbox(world)
    for _ in range(10):
        world.publish(box, count=150)
        world.flush()
    assert world.journal.refusal([box.number]) == "mailbox-full"
    rows = list(world.journal.rows())
    assert rows[0]["waiting"] == 1500
    assert rows[0]["full"]


def test_a_full_journal_refuses_and_goes_on_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", 1000)  # it must come without
    world = World(journal_bytes=8 * SEGMENT)
    box = mailbox(world)
    while not world.journal.refusal([]):
        world.publish(box, body=bytes(1000))
        world.flush()
    assert world.journal.refusal([]) == "journal-full"
    assert 6 <= len(world.files) <= 8
    world.journal.settle(box.number, [(1, 50)], world.now)
    world.flush()
    world.journal.tick(world.now)
    world.flush()
    assert world.removed, "a snapshot was written, although it was not time for one"
    assert world.journal.refusal([]) == ""


# ------------------------------------------------------------------------- mailboxes


def test_settlements_survive() -> None:
    world = World()
    box = mailbox(world)
    for _ in range(20):
        world.publish(box)
    world.flush()
    assert world.journal.settle(box.number, [(1, 3), (7, 8), (8, 10)], world.now) == 7
    assert world.journal.settle(box.number, [(1, 3)], world.now) == 0
    assert world.journal.settle(box.number, [(15, 99)], world.now) == 6
    world.flush()
    found = world.start().state.mailboxes["m"]
    assert (found.floor, list(found.settled), found.waiting) == (4, [(7, 10), (15, 20)], 7)


def test_names_and_numbers_of_mailboxes() -> None:
    world = World(mailboxes=2)
    one = mailbox(world, "one")
    with pytest.raises(LocalError, match="already"):
        mailbox(world, "one")
    mailbox(world, "two")
    with pytest.raises(LocalError, match="limit mailboxes"):
        mailbox(world, "three")
    world.journal.remove_mailbox(one.number, 1)
    three = mailbox(world, "three")
    assert three.number == 3
    world.flush()
    assert set(world.start().state.mailboxes) == {"two", "three"}


def test_a_client_that_was_attached_in_a_crash() -> None:
    world = World()
    box = mailbox(world)
    for _ in range(50):
        world.publish(box)
    world.journal.attach(box.number, 20, world.now)
    world.journal.settle(box.number, [(1, 5)], world.now)
    world.flush()
    assert world.start().state.mailboxes["m"].delivered == 25
    world.flush()
    box = world.journal.state.mailboxes["m"]
    world.journal.settle(box.number, [(6, 20)], world.now)
    world.flush()
    assert world.start().state.mailboxes["m"].delivered == 25, "it was told once"
    world.journal.attach(box.number, 20, world.now)
    world.journal.detach(box.number, 31, world.now)
    world.flush()
    assert world.start().state.mailboxes["m"].delivered == 31


# ------------------------------------------------------------------------ publishers


def test_what_a_publisher_sent_is_known_after_a_restart() -> None:
    world = World()
    box = mailbox(world)
    publisher = world.journal.publisher("p", world.now)
    frames = frame(b"", 1) + frame(b"", 2) + frame(b"", 5)
    world.journal.recorder.append_frames(frames, 3, publisher.number, [box.slot], world.now)
    world.flush()
    world.start()
    again = world.journal.publisher("p", world.now)
    assert again.number == publisher.number
    assert [again.thaw().accept(n) for n in (1, 2, 3, 5, 6)] == [1, 1, 0, 1, 0]
    world.journal.release(again, world.now)
    assert again.window is None
    assert world.journal.publisher("p", world.now).thaw().accept(6) == 1


def test_the_longest_idle_publisher_is_forgotten_first() -> None:
    world = World(publishers_remembered=3)
    journal = world.journal
    for name in "abc":
        journal.publisher(name, world.now)
    with pytest.raises(LocalError, match="limit publishers_remembered"):
        journal.publisher("d", world.now)
    for name in "bca":
        world.now += 1
        journal.release(journal.state.clients[name], world.now)
    journal.publisher("c", world.now)
    journal.publisher("d", world.now)
    assert set(journal.state.clients) == {"a", "c", "d"}
    world.flush()
    world.start()
    assert set(world.journal.state.clients) == {"a", "c", "d"}
    world.journal.publisher("e", world.now)
    assert set(world.journal.state.clients) == {"c", "d", "e"}


def test_idle_publishers_are_forgotten_after_some_days() -> None:
    world = World(publisher_idle_s=100)
    journal = world.journal
    for name in "abc":
        publisher = journal.publisher(name, world.now)
        if name != "c":
            journal.release(publisher, world.now)
        world.now += 50 * SECOND
    journal.tick(world.now)
    assert set(journal.state.clients) == {"b", "c"}
    world.now += 1000 * SECOND
    journal.tick(world.now)
    assert set(journal.state.clients) == {"c"}, "it is here"


# -------------------------------------------------------------------------- counters


def test_counters_and_rows() -> None:
    world = World()
    stream = world.journal.make_stream("s", "a/b", True, 1)
    box = mailbox(world)
    for _ in range(5):
        world.publish(stream, box, body=bytes(100))
    world.flush()
    counters = world.journal.snapshot_counters()
    assert counters["segments"] == 1
    assert counters["bytes"] == SEGMENT
    assert counters["position"] == counters["persisted"] == world.journal.recorder.position
    assert (counters["streams"], counters["mailboxes"], counters["publishers"]) == (1, 1, 0)
    rows = {row["name"]: row for row in world.journal.rows()}
    assert rows["s"]["next_sequence"] == 6
    assert (rows["m"]["waiting"], rows["m"]["attached"]) == (5, False)
    assert rows["m"]["waiting_bytes"] == rows["m"]["bytes"]


def test_segments_keep_their_size_until_the_next_one() -> None:
    world = World()
    box = mailbox(world)
    grow(world, box)
    world.limits = World(segment_bytes=2 * SEGMENT).limits
    world.start()
    box = world.journal.state.mailboxes["m"]
    assert world.journal.recorder.segment_bytes == SEGMENT
    grow(world, box)
    assert {len(file) for file in world.files.values()} == {SEGMENT}
    # Only where the last one is closed, or nothing was begun, can another size begin.
    other = World(segment_bytes=2 * SEGMENT)
    assert other.journal.recorder.segment_bytes == 2 * SEGMENT


# ---------------------------------------------------------------------- small segments


def test_the_smallest_segments_hold_the_largest_rows() -> None:
    """A snapshot of publishers with rings, many ranges and many marks fits, and comes back."""
    assert SEGMENT == SEGMENT_BYTES_MIN
    world = World(publishers_remembered=9)
    journal = world.journal
    box = mailbox(world)
    for number in range(3):
        window = journal.publisher("\1" * 127 + str(number), world.now).thaw()
        for sequence in range(2**61, 2**61 + 70_000, 3):
            window.accept(sequence)
    for _ in range(1500):
        world.publish(box)
    world.flush()
    journal.settle(box.number, [(n, n) for n in range(2, 1500, 2)], world.now)
    world.flush()
    grow(world, box, segments=200, body=3000)
    assert journal.write_snapshot(world.now)
    world.flush()
    settled, marks = list(box.settled), [mark._replace(size=0) for mark in box.marks]
    windows = {one.client_id: one.state() for one in journal.state.publishers.values()}
    assert all(len(state) > 8192 for state in windows.values())
    world.start()
    found = world.journal.state
    assert list(found.mailboxes["m"].settled) == settled
    found_marks = found.mailboxes["m"].marks
    assert [mark._replace(size=0) for mark in found_marks] == marks  # sizes are estimates
    assert {one.client_id: one.state() for one in found.publishers.values()} == windows


def test_a_mailbox_that_no_segment_could_hold_is_refused() -> None:
    world = World()
    long = "\1" * (SEGMENT // 6)  # in JSON six times as long
    with pytest.raises(LocalError, match="limit segment_bytes"):
        world.journal.make_mailbox("m", "a", False, long, "client", world.now)
    assert not world.journal.state.mailboxes
    world.journal.make_mailbox("m", "a", False, long[: SEGMENT // 8], "client", world.now)
    assert world.journal.write_snapshot(world.now) is False
    world.flush()
    assert world.journal.write_snapshot(world.now)


def test_not_more_streams_than_a_record_can_name() -> None:
    world = World()
    boxes = []
    with pytest.raises(LocalError, match="limit segment_bytes"):
        for number in range(SEGMENT):
            boxes.append(mailbox(world, f"m{number}"))
    world.publish(*boxes, body=bytes(SEGMENT // 2))
    world.flush()
