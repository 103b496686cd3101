"""Readers of streams against an obvious model: a list of records, each a list of messages."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import records, replay, selection
from regraft.kernels.checksum import crc32c
from regraft.model.message import Message, decode_envelope
from regraft.model.selector import Selector
from regraft.wire import native

TWINS = kernels.load_interpreted()
MODULES = {
    "in use": SimpleNamespace(records=records, replay=replay, selection=selection),
    "interpreted": SimpleNamespace(**TWINS),
}
SEGMENT = 1 << 16
FIRST = 5 * SEGMENT
NOW = 1_000
EVER = 2**62
FOUND, ZERO, SHORT, BAD, CLOSED = range(5)
IDS = b"\x12\x02\x03\x05"

Transfer = tuple[int, int, list[bytes]]  # first sequence, delivery count, frames


@pytest.fixture(params=list(MODULES))
def module(request: pytest.FixtureRequest) -> SimpleNamespace:
    return MODULES[request.param]


def parse(data: bytes) -> list[Transfer]:
    """What a reader gave out; every transfer header is followed by as many messages as it says."""
    found: list[Transfer] = []
    at = 0
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 30)
        assert frame is not None
        kind, flags, payload, at = frame
        assert flags == 0
        transfer = native.decode(kind, payload)
        assert isinstance(transfer, native.Transfer)
        assert transfer.subscriptions == (3, 5)
        assert transfer.count > 0
        frames = []
        for _ in range(transfer.count):
            frame = native.read_frame(data, at, 1 << 30)
            assert frame is not None
            assert frame[0] == native.Kind.MESSAGE
            frames.append(data[at : frame[3]])
            at = frame[3]
        found.append((transfer.first_sequence, transfer.delivery_count, frames))
    return found


def flat(transfers: list[Transfer]) -> list[tuple[int, bytes]]:
    """Every message with its sequence."""
    return [(first + k, data) for first, _, run in transfers for k, data in enumerate(run)]


@dataclass
class Story:
    """A segment, and what is in it: for each record its streams and its frames."""

    module: SimpleNamespace
    next: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 500, 3: 10**6})
    written: list[tuple[dict[int, int], list[bytes]]] = field(default_factory=list)
    view: bytes = b""

    def __post_init__(self) -> None:
        self.recorder = self.module.records.Recorder(SEGMENT)
        self.recorder.start_payload = b"{}"
        self.recorder.open(FIRST, FIRST, 1, 0)
        self.slots = {
            number: self.recorder.add_stream(number, sequence)
            for number, sequence in self.next.items()
        }

    def append(self, streams: list[int], *messages: Message, time_us: int = 5) -> None:
        frames = [native.encode(message) for message in messages]
        self.written.append(({stream: self.next[stream] for stream in streams}, frames))
        for stream in streams:
            self.next[stream] += len(frames)
        slots = [self.slots[stream] for stream in streams]
        self.recorder.append_frames(b"".join(frames), len(frames), 0, slots, time_us)

    def close(self) -> Story:
        self.view = b"".join(data for _, _, data in self.recorder.take())
        return self

    def of(self, stream: int) -> list[tuple[int, bytes]]:
        """All messages of a stream, with their sequences."""
        return [
            (streams[stream] + k, frame)
            for streams, frames in self.written
            if stream in streams
            for k, frame in enumerate(frames)
        ]


def a_message(choice: random.Random) -> Message:
    return Message(
        choice.choice(["a", "a/b", "c"]),
        choice.randbytes(choice.randrange(40)),
        {"n": choice.randrange(10)},
        expiration_us=choice.choice([None, None, None, NOW, NOW + 1]),
    )


def a_story(module: SimpleNamespace, seed: int, count: int = 40) -> Story:
    choice = random.Random(seed)
    story = Story(module)
    for k in range(count):
        if choice.random() < 0.2:
            story.recorder.append(3, choice.randbytes(30), 5)
        else:
            streams = choice.sample([1, 2, 3], choice.randint(0, 3))
            messages = [a_message(choice) for _ in range(choice.randint(1, 8))]
            story.append(streams, *messages, time_us=5 + k)
    return story.close()


def out(reader: Any) -> bytes:
    """What was filled in, as one."""
    return b"".join(reader.out())


def fill(reader: Any, story: Story, at: int = 0, start: int = 0, **other: Any) -> int:
    """A fill with everything that is not said; where it went on."""
    view = other.get("view", story.view)
    result: int = reader.fill(
        view,
        at,
        other.get("end", len(view)),
        FIRST,
        start,
        other.get("until", EVER),
        other.get("messages", EVER),
        other.get("size", EVER),
        IDS,
        other.get("now", NOW),
    )
    return result


def wanted(frame: bytes, n_min: int = 0, topics: tuple[str, ...] = ("a", "a/b", "c")) -> bool:
    message = decode_envelope(frame[12:])
    number = message.attributes["n"]
    assert isinstance(number, int)
    alive = message.expiration_us is None or message.expiration_us > NOW
    return alive and number >= n_min and message.topic in topics


def selector(module: SimpleNamespace, text: str) -> Any:
    return module.selection.compile_selector(Selector.parse(text))


def test_all_of_a_stream(module: SimpleNamespace) -> None:
    story = Story(module)
    for k in range(6):
        story.append([1], Message("t", bytes([k])), Message("t", b"x" * 200), time_us=50 + k)
        story.recorder.append(3, b"between", 1)
    story.append([2], Message("t"))
    story.close()
    reader = module.replay.Reader([1], None, None)
    assert fill(reader, story) == len(story.view)
    assert reader.status == FOUND
    assert (reader.messages, reader.next_sequence, reader.scanned) == (12, 12, 12)
    assert reader.size == sum(len(frame) for _, frame in story.of(1))
    assert reader.time_us == 55
    assert reader.runs == [(0, 12)]
    data = out(reader)
    assert (reader.messages, reader.runs) == (12, [(0, 12)])  # still there
    ((first, redelivered, frames),) = parse(data)  # one stretch of sequences, one header
    assert (first, redelivered) == (0, 0)
    assert frames == [frame for _, frame in story.of(1)]
    assert out(reader) == b""
    assert fill(reader, story, len(story.view), 12) == len(story.view)
    assert (reader.messages, reader.size, reader.runs, out(reader)) == (0, 0, [], b"")


@pytest.mark.parametrize("seed", range(12))
def test_like_the_model(module: SimpleNamespace, seed: int) -> None:
    """Any bounds, any start and end, with skips, a selector and topics; stopped and resumed."""
    choice = random.Random(seed)
    story = a_story(module, seed)
    topics = choice.choice([("a", "a/b", "c"), ("a",), ("a/b", "c")])
    n_min = choice.choice([0, 5, 9])
    everything = story.of(2)
    last = everything[-1][0]
    start = choice.randint(490, last)
    until = choice.choice([EVER, choice.randint(start, last + 5)])
    edges = sorted(choice.sample(range(490, last + 10), choice.choice([0, 2, 8])))
    skip = list(zip(edges[::2], edges[1::2], strict=True))
    test = selector(module, f"n >= {n_min}") if n_min else None
    asked: list[bytes] = []

    def verdict(topic: bytes) -> bool:
        asked.append(topic)
        return topic.decode() in topics

    reader = module.replay.Reader([2], test, verdict if len(topics) < 3 else None)
    reader.skip = skip
    got: list[tuple[int, bytes]] = []
    at, sequence = 0, start
    for _ in range(1_000):
        messages, size = choice.choice([1, 2, 7, 100]), choice.choice([1, 100, 1_000])
        following = fill(reader, story, at, sequence, until=until, messages=messages, size=size)
        transfers = parse(out(reader))
        taken = [data for _, data in flat(transfers)]
        assert [(first, len(run)) for first, _, run in transfers] == reader.runs
        assert len(taken) == reader.messages <= messages
        assert sum(map(len, taken)) == reader.size
        assert not taken or sum(map(len, taken[:-1])) < size
        got += flat(transfers)
        assert reader.status == FOUND
        done = following == len(story.view) or reader.next_sequence >= until
        if done or (following, reader.next_sequence) == (at, sequence):
            break
        assert (following, reader.next_sequence) > (at, sequence)
        at, sequence = following, reader.next_sequence
    assert got == [
        (number, frame)
        for number, frame in everything
        if start <= number < until
        and not any(low <= number <= high for low, high in skip)
        and wanted(frame, n_min, topics)
    ]
    assert len(asked) == len(set(asked))  # verdicts are remembered


@pytest.mark.parametrize("seed", range(6))
def test_several_streams(module: SimpleNamespace, seed: int) -> None:
    """Each message once, in the order of the journal, whoever else has it."""
    story = a_story(module, seed)
    for streams in ([1, 3], [3, 2], [3, 2, 1], [7, 1, 9]):
        for messages in (1, 3, EVER):
            reader = module.replay.Reader(streams, None, None)
            got: list[tuple[int, bytes]] = []
            at = done = 0
            while at < len(story.view):
                at = fill(reader, story, at, done, messages=messages)
                done = reader.next_sequence
                got += flat(parse(out(reader)))
            expected = [
                (min((s, n) for s, n in numbers.items() if s in streams)[1] + k, frame)
                for numbers, frames in story.written
                if set(streams) & set(numbers)
                for k, frame in enumerate(frames)
                if wanted(frame)
            ]
            assert got == expected
            assert done == 0


def test_sequences_of_two_streams_are_not_joined(module: SimpleNamespace) -> None:
    story = Story(module, next={1: 0, 2: 1})
    story.append([1], Message("t", b"a"))
    story.append([2], Message("t", b"b"))
    story.close()
    reader = module.replay.Reader([1, 2], None, None)
    fill(reader, story)
    assert reader.runs == [(0, 1), (1, 1)]


def test_an_end_in_the_middle_of_a_record(module: SimpleNamespace) -> None:
    story = Story(module, next={1: 100})
    story.append([1], *(Message("t", bytes([k])) for k in range(4)))
    story.close()
    reader = module.replay.Reader([1], None, None)
    assert fill(reader, story, start=5, until=50) == 56
    assert (reader.next_sequence, reader.lost, reader.messages) == (50, [(5, 49)], 0)
    assert fill(reader, story, start=5, until=102) == 56
    assert (reader.next_sequence, reader.lost, reader.messages) == (102, [(5, 99)], 2)
    assert fill(reader, story, 56, 102, until=104) == len(story.view)
    assert (reader.next_sequence, reader.runs) == (104, [(100, 2), (102, 2)])
    assert flat(parse(out(reader))) == story.of(1)


def test_what_is_expired_is_counted(module: SimpleNamespace) -> None:
    story = Story(module)
    moments = [None, NOW - 1, NOW, NOW + 1]
    story.append([1], *(Message("t", expiration_us=moment) for moment in moments))
    story.close()
    reader = module.replay.Reader([1], None, None)
    fill(reader, story)
    assert (reader.expired, reader.scanned, reader.runs) == (2, 4, [(0, 1), (3, 1)])
    fill(reader, story, now=NOW + 1)
    assert (reader.expired, reader.scanned) == (5, 8)
    assert reader.runs == [(0, 1), (3, 1), (0, 1)]  # two fills, one output
    assert [first for first, _, _ in parse(out(reader))] == [0, 3, 0]


def test_older_records_are_passed_over(module: SimpleNamespace) -> None:
    story = Story(module)
    for moment in (10, 20, 30):
        story.append([1, 2], Message("t", b"a"), Message("t", b"b"), time_us=moment)
    story.close()
    for since, first in ((0, 0), (20, 2), (21, 4), (31, 6)):
        reader = module.replay.Reader([1], None, None)
        reader.since_us = since
        assert fill(reader, story) == len(story.view)
        assert (reader.next_sequence, reader.messages) == (6, 6 - first)
        assert reader.runs == ([(first, 6 - first)] if first < 6 else [])
        several = module.replay.Reader([1, 2], None, None)
        several.since_us = since
        assert fill(several, story) == len(story.view)
        assert (several.next_sequence, out(several)) == (0, out(reader))


def test_it_ends_before_what_is_later(module: SimpleNamespace) -> None:
    story = Story(module)
    for moment in (10, 20, 30):
        story.append([1, 2], Message("t", b"a"), Message("t", b"b"), time_us=moment)
    story.close()
    for until, taken in ((0, 6), (10, 0), (11, 2), (20, 2), (21, 4), (30, 4), (31, 6)):
        for streams in ([1], [1, 2]):
            reader = module.replay.Reader(streams, None, None)
            reader.until_us = until
            at = fill(reader, story)
            assert reader.messages == taken
            assert (reader.status == module.replay.LATER) == (taken < 6)
            assert fill(reader, story, at) == at and reader.messages == taken


def test_redeliveries_are_marked(module: SimpleNamespace) -> None:
    story = Story(module, next={1: 2**40})
    story.append([1], Message("t", b"a"), Message("t", b"b"))
    story.close()
    reader = module.replay.Reader([1], None, None)
    for count in (0, 1, 127, 128, 2**32 - 1):
        reader.delivery_count = count
        fill(reader, story)
        assert [transfer[:2] for transfer in parse(out(reader))] == [(2**40, count)]


def test_topics_are_asked_for_once_and_forgotten_in_the_end(module: SimpleNamespace) -> None:
    asked: list[bytes] = []

    def verdict(topic: bytes) -> bool:
        asked.append(topic)
        return topic.endswith(b"0")

    reader = module.replay.Reader([1], None, verdict)
    names = [f"t{k}" for k in range(4_200)]
    for part in range(0, 4_200, 300):
        story = Story(module)
        story.append([1], *(Message(name) for name in names[part : part + 300]))
        fill(reader, story.close())
    assert asked == [name.encode() for name in names]
    assert reader.messages == 420
    story = Story(module)
    story.append([1], Message("t4199"), Message("t0"), Message("t4198"), Message("t0"))
    fill(reader, story.close())
    assert asked[4_200:] == [b"t0"]


def test_a_topic_that_raises(module: SimpleNamespace) -> None:
    def verdict(topic: bytes) -> bool:
        raise LookupError(topic)

    story = Story(module)
    story.append([1], Message("t"))
    story.close()
    reader = module.replay.Reader([1], None, verdict)
    with pytest.raises(LookupError):
        fill(reader, story)
    assert out(reader) == b""


def test_a_view_that_ends_anywhere(module: SimpleNamespace) -> None:
    """Where to go on is a record; if the first one is cut, how much of it there has to be."""
    story = a_story(module, 3, count=4)
    expected = [pair for pair in story.of(1) if wanted(pair[1])]
    reader = module.replay.Reader([1], None, None)
    for size in range(len(story.view)):
        reader.base = 0
        at = fill(reader, story, end=size)
        got = flat(parse(out(reader)))
        if at < 0:
            assert reader.status == SHORT
            assert size < -1 - at <= 50
            at = 0
        else:
            assert at <= (size + 7 & ~7)
            assert reader.status == (SHORT if at < size else FOUND)
        if at < size and at:
            need = -1 - fill(reader, story, at, end=size)
            assert size - at < need <= len(story.view) - at
            assert out(reader) == b""
        reader.base = at
        fill(reader, story, 0, reader.next_sequence, view=memoryview(story.view)[at:])
        assert got + flat(parse(out(reader))) == expected


def test_where_a_segment_ends(module: SimpleNamespace) -> None:
    story = Story(module)
    story.append([1], Message("t", bytes(30_000)))
    story.append([1], Message("t", bytes(30_000)))
    story.append([1], Message("t", bytes(30_000)))
    (first, _, data), (second, _, _) = story.recorder.take()
    assert (first, second) == (FIRST, FIRST + SEGMENT)
    (index,) = struct.unpack_from("<Q", data, SEGMENT - 56)
    reader = module.replay.Reader([1], None, None)
    at = fill(reader, story, view=data)
    assert (at, reader.status, reader.messages) == (index - FIRST, CLOSED, 2)
    assert fill(reader, story, at, view=data) == at
    assert fill(reader, story, view=bytes(data[:at]) + bytes(500)) == at
    assert reader.status == ZERO
    assert module.replay.CLOSED == CLOSED


def test_nothing_is_looked_at_without_credit(module: SimpleNamespace) -> None:
    story = a_story(module, 1)
    reader = module.replay.Reader([1], None, None)
    assert fill(reader, story, messages=0) == 0
    assert fill(reader, story, size=0) == 0
    assert (reader.scanned, out(reader)) == (0, b"")
    with pytest.raises(ValueError, match="no place"):
        fill(reader, story, -8)
    with pytest.raises(ValueError, match="one stream"):
        module.replay.Reader([], None, None)


def test_records_of_an_older_epoch_are_left_over(module: SimpleNamespace) -> None:
    story = Story(module)
    story.append([1], Message("t"))
    story.append([1], Message("t"))
    story.close()
    reader = module.replay.Reader([1], None, None)
    recorder = module.records.Recorder(SEGMENT)
    recorder.start_payload = b"{}"
    recorder.open(FIRST, FIRST, 2, 0)
    recorder.append(3, b"", 0)
    ((_, _, data),) = recorder.take()
    (length,) = struct.unpack_from("<I", story.view, 56 + 4)
    view = data[:56] + story.view[56:]
    assert length
    assert fill(reader, story, view=view) == 56
    assert reader.status == BAD


def forged(story: Story, change: Callable[[bytearray], None]) -> bytes:
    """The record behind START changed, with a checksum that is right."""
    work = bytearray(story.view)
    record = work[56:]
    change(record)
    (length,) = struct.unpack_from("<I", record, 4)
    struct.pack_into("<I", record, 0, crc32c(bytes(record[4:length])))
    return bytes(work[:56] + record)


def put(at: int, form: str, *values: int) -> Callable[[bytearray], None]:
    def change(record: bytearray) -> None:
        struct.pack_into(form, record, at, *values)

    return change


def one_byte_of_meta_more(record: bytearray) -> None:
    (length,) = struct.unpack_from("<I", record, 4)
    struct.pack_into("<I", record, 4, length + 1)
    struct.pack_into("<I", record, 36, 13)
    record[60:60] = b"\0"


NONSENSE = {
    "one byte more than whole streams": one_byte_of_meta_more,
    "one message more": put(32, "<I", 4),
    "one message less": put(32, "<I", 2),
    "no message": put(32, "<I", 0),
    "very many messages": put(32, "<I", 2**32 - 1),
    "no whole streams": put(36, "<I", 13),
    "all is streams": put(36, "<I", 36),
    "a sequence that is negative": put(52, "<q", -1),
    "a sequence that is too large": put(52, "<q", 2**62),
    "a frame too long": put(60, "<I", 2**32 - 1),
    "a frame a little too long": put(60, "<I", 1_000),
    "a frame too short": put(60, "<I", 0),
    "a frame without a header": put(60, "<I", 7),
    "a frame of another kind": put(64, "<B", 8),
    "an envelope that is none": put(72, "<Q", 0),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_good_checksum_does_not_make_sense_of_nonsense(
    module: SimpleNamespace, name: str
) -> None:
    story = Story(module)
    story.append([1], Message("t", b"abc"), Message("t", b"def"), Message("t", b"ghi"))
    story.append([1], Message("t", b"next"))
    story.close()
    reader = module.replay.Reader([1], None, None)
    assert fill(reader, story, view=forged(story, put(40, "<I", 5))) == len(story.view)
    assert (reader.status, len(flat(parse(out(reader))))) == (FOUND, 4)
    view = forged(story, NONSENSE[name])
    at = fill(reader, story, view=view)
    assert (at, reader.status) == (56, BAD)
    assert out(reader) == b""


def test_a_long_stretch_is_not_copied(module: SimpleNamespace) -> None:
    story = Story(module)
    story.append([1], Message("t", bytes(3000)), Message("t", bytes(3000)))
    story.append([1], Message("t", b"short"))
    story.close()
    view = memoryview(bytes(story.view))
    reader = module.replay.Reader([1], None, None)
    fill(reader, story, view=view)
    pieces = reader.out()
    assert [getattr(piece, "obj", None) is view.obj for piece in pieces] == [False, True, False]
    assert flat(parse(b"".join(pieces))) == story.of(1)
    assert reader.out() == []


def test_a_record_is_checked_again_only_if_the_bytes_are_others(module: SimpleNamespace) -> None:
    story = Story(module)
    story.append([1], *(Message("t", b"body") for _ in range(3)))
    story.close()
    reader = module.replay.Reader([1], None, None)
    at = fill(reader, story, messages=1)
    damaged = bytearray(story.view)
    damaged[at] ^= 1  # of the checksum
    assert fill(reader, story, at, reader.next_sequence, view=bytes(damaged), messages=1) == at
    assert reader.status == FOUND
    reader.distrust()
    fill(reader, story, at, reader.next_sequence, view=bytes(damaged), messages=1)
    assert reader.status == BAD


def test_where_the_records_end_that_are_whole(module: SimpleNamespace) -> None:
    story = Story(module)
    for _ in range(5):
        story.append([1], Message("t", b"body"))
    story.close()
    ends = [(0, 0)]  # without padding, and with it
    walk = module.records.Walk()
    while walk.step(story.view, ends[-1][1], FIRST, 0) == FOUND:
        ends.append((walk.end, walk.next))
    assert len(ends) == 7
    whole_until = module.replay.whole_until
    for size in range(len(story.view)):
        found = whole_until(story.view[:size], 0, FIRST)
        assert found == max(following for end, following in ends if end <= size)
        assert whole_until(story.view[:size], 0, FIRST + 8) == (-1 if size >= 48 else 0)
    assert whole_until(bytes(100), 0, 0) == -1
