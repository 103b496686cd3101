"""Where to begin reading: by sequence and by time, wherever it is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from journal_world import SEGMENT, World

from regraft.journal import format, streams
from regraft.journal.requests import ReadJournal
from regraft.kernels.records import FOUND, Walk


class Story:
    """A journal with streams of different density, and what it holds, the slow way."""

    def __init__(self, seed: int, records: int, **limits: int) -> None:
        self.world = World(**limits)
        self.random = random.Random(seed)
        self.dense = self.world.journal.make_stream("dense", "a", False, 1)
        self.rare = self.world.journal.make_stream("rare", "b", False, 1)
        self.box = self.world.journal.make_mailbox("m", "a", False, "", "c", 1)
        for _ in range(records):
            self.world.now += self.random.choice([0, 1, 1, 50])
            taken: list[Any] = [self.dense]
            if self.random.random() < 0.02:
                taken.append(self.rare)
            if self.random.random() < 0.3:
                taken.append(self.box)
            body = bytes(self.random.choice([10, 100, 2000]))
            self.world.publish(*taken, body=body, count=self.random.choice([1, 1, 4]))
            if self.random.random() < 0.5:
                self.world.flush()
        self.world.flush()

    def held(self, stream: Any) -> list[tuple[int, int, int, int]]:
        """(position, first sequence, last sequence, time) of each record of a stream."""
        return [
            (record.position, sequence, sequence + record.messages - 1, record.time_us)
            for record in self.world.records()
            for number, sequence in format.places(record.meta)
            if number == stream.number
        ]

    def check_sequence(self, stream: Any, sequence: int, near: bool = True) -> None:
        journal = self.world.journal
        place = self.world.located(lambda: journal.locate(stream.number, sequence))
        start = place.first + place.offset
        records = self.held(stream)
        wanted = [position for position, _, last, _ in records if last >= sequence]
        if not wanted:
            wanted = [journal.recorder.position]
        assert start <= wanted[0], "nothing is passed over"
        if near:
            between = [position for position, *_ in records if start <= position < wanted[0]]
            assert all(position < start + 4096 for position in between), "and not much is too early"
        self.check_place(start)

    def check_time(self, stream: Any, time_us: int) -> None:
        journal = self.world.journal
        place = self.world.located(lambda: journal.locate_time(stream.number, time_us))
        start = place.first + place.offset
        records = self.held(stream)
        wanted = [position for position, *_, at in records if at >= time_us]
        if not wanted:
            wanted = [journal.recorder.position]
        assert start <= wanted[0], "nothing is passed over"
        assert not [position for position, *_ in records if start <= position < wanted[0]]
        self.check_place(start)

    def check_place(self, position: int) -> None:
        """A record begins there, or the end is there."""
        first = position // SEGMENT * SEGMENT
        file = bytes(self.world.files[first])
        found = Walk().step(file, position - first, first, 0) == FOUND
        assert found or position == self.world.journal.recorder.position


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("restarted", [False, True])
def test_a_sequence_is_found(seed: int, restarted: bool) -> None:
    story = Story(seed, 400)
    if restarted:
        story.world.start()
    assert len(story.world.files) > 5
    for stream in (story.dense, story.rare, story.box):
        last = story.held(stream)[-1][2]
        for sequence in [1, 2, last, last + 1, *story.random.choices(range(1, last), k=60)]:
            story.check_sequence(stream, sequence)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("restarted", [False, True])
def test_a_time_is_found(seed: int, restarted: bool) -> None:
    story = Story(seed, 400)
    if restarted:
        story.world.start()
    for stream in (story.dense, story.rare, story.box):
        times = [at for *_, at in story.held(stream)]
        some = story.random.sample(times, min(len(times), 40))
        for time_us in [0, *times[:2], *times[-2:], times[-1] + 1, *some, *(t + 1 for t in some)]:
            story.check_time(stream, time_us)


def test_what_is_known_needs_no_disk_and_what_is_not_is_asked_for_once() -> None:
    story = Story(1, 300)
    world = story.world
    for sequence in (5, 50, 150):
        assert world.journal.locate(story.dense.number, sequence) is not None
    world.start()
    world.perform()
    for _ in range(3):
        assert world.journal.locate(story.dense.number, 50) is None
    assert len(world.journal.requests) == 1
    assert world.perform(ReadJournal) == 2  # the trailer, then the INDEX
    for sequence in (49, 50):
        assert world.journal.locate(story.dense.number, sequence) is not None
    assert not world.journal.requests


def test_the_cache_is_bounded() -> None:
    story = Story(2, 600, index_cache_bytes=500)
    world = story.world
    world.start()
    world.flush()
    for sequence in range(1, story.held(story.dense)[-1][2], 40):
        story.check_sequence(story.dense, sequence)
        assert world.journal.snapshot_counters()["index_bytes_cached"] <= 500 + 300


@pytest.mark.parametrize("what", ["trailer", "index", "gone"])
def test_an_index_that_cannot_be_read_makes_it_slower_only(what: str) -> None:
    story = Story(3, 300)
    world = story.world
    world.start()
    for first, file in world.files.items():
        if what == "trailer":
            file[-64:] = bytes(64)
        for record in world.records():
            if (
                what == "index"
                and record.kind == format.INDEX
                and first < record.position < first + SEGMENT
            ):
                file[record.position - first + 20] ^= 1
    files = dict(world.files)
    if what == "gone":
        for first in sorted(world.files)[:-1]:
            world.files[first] = bytearray()
    places = {}
    for sequence in (1, 20, 100):
        places[sequence] = world.located(
            lambda sequence=sequence: world.journal.locate(story.dense.number, sequence)
        )
    time_us = story.held(story.dense)[-1][3] // 2
    assert world.located(lambda: world.journal.locate_time(story.dense.number, time_us))
    world.files = files
    for sequence, place in places.items():
        wanted = [at for at, _, last, _ in story.held(story.dense) if last >= sequence]
        assert place.first + place.offset <= wanted[0]
    assert world.journal.snapshot_counters()["indexes_unreadable"] > 0


def test_merged_marks_still_lead_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.Stream, "marks_max", 3)
    monkeypatch.setattr(streams.Mailbox, "marks_max", 2)
    story = Story(4, 500)
    story.world.start()
    for stream in (story.dense, story.rare, story.box):
        found = story.world.journal.state.streams[stream.number]
        assert len(found.marks) <= 3
        last = story.held(stream)[-1][2]
        for sequence in [1, last, *story.random.choices(range(1, last), k=40)]:
            story.check_sequence(stream, sequence)
        times = [at for *_, at in story.held(stream)]
        for time_us in story.random.choices(times, k=20):
            story.check_time(stream, time_us)


def test_what_was_dropped_begins_with_what_is_left() -> None:
    story = Story(5, 300)
    world = story.world
    world.journal.remove_stream(story.dense.number, 1)
    world.journal.remove_stream(story.rare.number, 1)
    world.journal.settle(story.box.number, [(1, 60)], world.now)
    while not world.removed:
        world.publish(story.box, body=bytes(1000))
        world.flush()
    for sequence in (1, 59, 61, 62, 80):
        story.check_sequence(story.box, sequence, near=False)
    assert world.journal.forward(0) == world.journal.segments.oldest == min(world.files)
    assert world.journal.forward(world.journal.persisted_position) == (
        world.journal.persisted_position
    )


def test_an_empty_stream_is_read_from_the_end() -> None:
    world = World()
    stream = world.journal.make_stream("s", "a", False, 1)
    place = world.journal.locate(stream.number, 1)
    assert place is not None
    assert place.offset == 0
    world.flush()
    assert world.journal.locate(stream.number, 1) is not None
    assert world.journal.locate_time(stream.number, 5) is not None


def test_reads_of_others_are_not_the_journals() -> None:
    world = World()
    ticket = world.journal.read(0, 10, 20)
    assert world.journal.requests == [ReadJournal(ticket, 0, 10, 20)]
    assert not world.journal.arrived(ticket, b"", "")
    assert not world.journal.arrived(99, b"", "")
