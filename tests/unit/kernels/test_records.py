"""Records of the journal: what the recorder writes, a walk finds again, and nothing else."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import records as in_use
from regraft.kernels.checksum import crc32c
from regraft.model.message import Message
from regraft.wire import native

TWIN = kernels.load_interpreted()["records"]
HEAD = struct.Struct("<IIQqIIIIIBBH")
SEGMENT = 4096


@pytest.fixture(params=["in use", "interpreted"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return in_use if request.param == "in use" else TWIN


def frames(*bodies: bytes, **fields: Any) -> bytes:
    return b"".join(native.encode(Message("t", body, **fields)) for body in bodies)


def recorder(module: ModuleType, **fields: Any) -> Any:
    made = module.Recorder(fields.pop("segment_bytes", SEGMENT), fields.pop("index_every", 300))
    made.start_payload = b"{}"
    made.open(0, 0, fields.pop("epoch", 1), 0)
    return made


def taken(made: Any, segments: dict[int, bytearray]) -> None:
    """Put what a recorder has into its files; each piece begins where the last one ended."""
    for first, offset, data in made.take():
        segment = segments.setdefault(first, bytearray())
        assert len(segment) == offset
        segment += data


def walked(module: ModuleType, segment: bytes, first: int) -> Iterator[tuple[Any, int]]:
    """A walk, standing at each record of a segment, and where it is; behind them are zeros."""
    walk = module.Walk()
    at = epoch = 0
    while at < len(segment):
        assert walk.step(segment, at, first, epoch) == module.FOUND
        yield walk, at
        at, epoch = walk.next, walk.epoch
        if walk.kind == module.INDEX:
            break
    assert not any(segment[at : max(at, SEGMENT - 64)])


def streams_of(walk: Any, segment: bytes | bytearray) -> list[tuple[int, int]]:
    meta = bytes(segment[walk.meta_at : walk.payload_at])
    return [(stream, sequence) for stream, sequence in struct.iter_unpack("<IQ", meta)]


def read_index(payload: bytes) -> dict[int, tuple[Any, ...]]:
    """By stream: first and last sequence, first and last time, entries."""
    (n,) = struct.unpack_from("<I", payload)
    at = 4
    found: dict[int, tuple[Any, ...]] = {}
    for _ in range(n):
        stream, entries, *span = struct.unpack_from("<IIQQqq", payload, at)
        at += 40
        places = [struct.unpack_from("<IQ", payload, at + 12 * k) for k in range(entries)]
        at += 12 * entries
        found[stream] = (*span, places)
    assert at == len(payload)
    assert list(found) == sorted(found)
    return found


def expected_index(module: ModuleType, segment: bytes, first: int, every: int) -> dict[int, Any]:
    """The index of a segment, from its records."""
    found: dict[int, list[Any]] = {}
    for walk, at in walked(module, segment, first):
        if walk.kind != module.MESSAGES:
            continue
        for stream, sequence in streams_of(walk, segment):
            last = sequence + walk.count - 1
            row = found.setdefault(stream, [sequence, last, walk.time_us, walk.time_us, []])
            row[1], row[3] = last, walk.time_us
            if not row[4] or at - row[4][-1][0] >= every:
                row[4].append((at, sequence))
    return {stream: tuple(row) for stream, row in found.items()}


def do_random_things(made: Any, choice: random.Random, slots: list[int], steps: int) -> list[Any]:
    """Append; what was appended, with the positions that were returned."""
    done: list[Any] = []
    for _ in range(steps):
        now = choice.randrange(10**6)
        publisher = choice.randrange(5)
        if choice.random() < 0.3:
            payload = choice.randbytes(choice.randrange(200))
            kind = choice.choice([3, 4, 6])
            position = made.append(kind, payload, now, 7, publisher)
            done.append((kind, position, 7, publisher, [], payload))
        else:
            run = [choice.randbytes(choice.randrange(60)) for _ in range(choice.randint(1, 5))]
            data = frames(*run)
            some = choice.sample(slots, choice.randint(0, len(slots)))
            sequences = sorted((10 + slot, made.next_sequence(slot)) for slot in some)
            end = made.append_frames(data, len(run), publisher, some, now)
            size = 48 + 12 * len(some) + len(data) + 7 & ~7
            done.append((2, end - size, len(run), publisher, sequences, data))
    return done


def test_the_bytes_of_a_record(module: ModuleType) -> None:
    made = recorder(module, epoch=5)
    assert made.append(module.CONTROL, b"hello", 1_000, 2, 9) == 56
    made.synced = 56
    slots = [made.add_stream(4, 100), made.add_stream(3, 200)]
    data = frames(b"a", b"bc")
    end = made.append_frames(data, 2, 8, slots, 900)
    assert (made.position, made.used > 0, made.epoch) == (end, True, 5)
    ((first, offset, written),) = made.take()
    assert (first, offset, made.used) == (0, 0, 0)
    start = HEAD.pack(0, 50, 0, 1_000, 5, 0, 0, 0, 0, 1, 0, 0) + b"{}"
    control = HEAD.pack(0, 53, 56, 1_000, 5, 56, 2, 0, 9, 3, 0, 0) + b"hello"
    meta = struct.pack("<IQIQ", 3, 200, 4, 100)  # ascending by stream
    # Its time is not before that of the record before it.
    head = HEAD.pack(0, 72 + len(data), 112, 1_000, 5, 56, 2, 24, 8, 2, 0, 0)
    expected = b""
    for record in (start, control, head + meta + data):
        summed = struct.pack("<I", crc32c(record[4:])) + record[4:]
        expected += summed + bytes(-len(record) % 8)
    assert written == expected
    assert [made.next_sequence(slot) for slot in slots] == [102, 202]


@pytest.mark.parametrize("seed", range(6))
def test_all_that_was_recorded_is_found(module: ModuleType, seed: int) -> None:
    """Over many segments: every record, an index that says where they are, a trailer."""
    choice = random.Random(seed)
    made = recorder(module)
    slots = [made.add_stream(10 + k, 1000 * k) for k in range(5)]
    segments: dict[int, bytearray] = {}
    done: list[Any] = []
    for _ in range(40):
        done += do_random_things(made, choice, slots, 5)
        taken(made, segments)
        made.synced = made.position
    assert made.take() == []
    last = bytes(segments[made.first])
    assert read_index(made.contents()) == expected_index(module, last, made.first, 300)
    assert list(segments) == list(range(0, SEGMENT * len(segments), SEGMENT))
    assert len(segments) > 8
    found: list[Any] = []
    last_time = 0
    for first, segment in segments.items():
        kinds = []
        for walk, at in walked(module, bytes(segment), first):
            assert walk.position == first + at
            assert walk.time_us >= last_time
            last_time = walk.time_us
            kinds.append(walk.kind)
            payload = bytes(segment[walk.payload_at : walk.end])
            streams = streams_of(walk, segment)
            if walk.kind not in (module.START, module.INDEX):
                found.append(
                    (walk.kind, walk.position, walk.count, walk.publisher, streams, payload)
                )
        assert kinds[0] == module.START
        assert module.START not in kinds[1:]
        if len(segment) == SEGMENT:
            magic, index_at, check = struct.unpack_from("<8sQI", segment, SEGMENT - 64)
            assert (magic, check) == (b"RGRFTEND", crc32c(bytes(segment[-64:-48])))
            assert not any(segment[-44:])
            assert walk.position == index_at  # the last one that was found
            assert walk.kind == module.INDEX
            index = read_index(payload)
            assert index == expected_index(module, bytes(segment), first, 300)
        else:
            assert first == max(segments)
    assert found == done


@pytest.mark.parametrize("seed", range(3))
def test_a_recorder_goes_on_where_another_stopped(module: ModuleType, seed: int) -> None:
    """With what the segment holds told again, every byte is the same, wherever it stopped."""
    choice = random.Random(seed)
    whole = recorder(module)
    slots = [whole.add_stream(10 + k, 0) for k in range(3)]
    segments: dict[int, bytearray] = {}
    before = do_random_things(whole, choice, slots, 60)
    taken(whole, segments)
    for k in range(5, len(before), 9):
        _, position, *_ = before[k]
        first = position - position % SEGMENT
        again = module.Recorder(SEGMENT, 300)
        again.start_payload = b"{}"
        following = {10 + slot: 0 for slot in slots}
        for _, _, count, _, streams, _ in before[:k]:
            following |= {stream: sequence + count for stream, sequence in streams}
        kept = bytes(segments[first][: position - first])
        again.open(first, position, 1, 0)
        for walk, _ in walked(module, kept, first):
            again.open(first, position, 1, walk.time_us)
        for walk, at in walked(module, kept, first):
            for stream, sequence in streams_of(walk, kept) if walk.kind == 2 else ():
                again.reindex(stream, at, sequence, walk.count, walk.time_us)
        again.synced = 0
        for slot in slots:
            assert again.add_stream(10 + slot, following[10 + slot]) == slot
        times = {
            walk.position: walk.time_us
            for f, s in segments.items()
            for walk, _ in walked(module, bytes(s), f)
        }
        for kind, at, count, publisher, streams, payload in before[k:]:
            if kind == 2:
                some = [stream - 10 for stream, _ in streams]
                again.append_frames(payload, count, publisher, some, times[at])
            else:
                assert again.append(kind, payload, times[at], count, publisher) == at
        compared = {first: bytearray(kept)}
        taken(again, compared)
        assert compared == {f: s for f, s in segments.items() if f >= first}


def test_slots_are_used_again(module: ModuleType) -> None:
    made = recorder(module)
    one, two = made.add_stream(7, 5), made.add_stream(8, 0)
    made.append_frames(frames(b"x", b"y"), 2, 0, [one, two], 1)
    size = len(frames(b"x", b"y"))
    assert (made.messages(one), made.size(one), made.next_sequence(one)) == (2, size, 7)
    made.remove_stream(one)
    for method in (made.messages, made.size, made.next_sequence, made.remove_stream):
        with pytest.raises(ValueError, match="no stream has slot"):
            method(one)
    assert made.add_stream(9, 30) == one
    assert (made.messages(one), made.size(one), made.next_sequence(one)) == (0, 0, 30)
    assert made.messages(two) == 2
    made.remove_stream(one)
    assert made.add_stream(7, 7) == one  # the index knows it, and gets no second row
    made.append_frames(frames(b"x"), 1, 0, [one], 1)
    made.append(3, bytes(3_300), 1)
    segments: dict[int, bytearray] = {}
    made.append(3, bytes(600), 1)
    taken(made, segments)
    assert read_index(index_payload(module, segments[0]))[7][:2] == (5, 7)


def index_payload(module: ModuleType, segment: bytearray) -> bytes:
    at = struct.unpack_from("<Q", segment, SEGMENT - 56)[0]
    walk = module.Walk()
    assert walk.step(segment, at, 0, 0) == module.FOUND
    assert walk.kind == module.INDEX
    return bytes(segment[walk.payload_at : walk.end])


def test_what_cannot_be_recorded_changes_nothing(module: ModuleType) -> None:
    made = recorder(module)
    one, two = made.add_stream(7, 5), made.add_stream(8, 0)
    made.append(3, bytes(2_000), 1)
    before = (made.position, made.used, made.next_sequence(one))
    good = frames(b"x", b"y")
    wrong: list[tuple[Any, ...]] = [
        (good, 2, 0, [one, one], 1),
        (good, 2, 0, [two, one, two], 1),
        (good, 2, 0, [2], 1),
        (good, 2, 0, [-1], 1),
        (good, 1, 0, [one], 1),
        (good, 3, 0, [one], 1),
        (good, 0, 0, [one], 1),
        (b"", 0, 0, [one], 1),
        (good[:-1], 2, 0, [one], 1),
        (b"\1\0\0\0\7" + good, 3, 0, [one], 1),
        (native.encode(native.Heartbeat()), 1, 0, [one], 1),
        (frames(bytes(4_000)), 1, 0, [one], 1),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match=r"."):
            made.append_frames(*arguments)
    with pytest.raises(ValueError, match="too large"):
        made.append(3, bytes(4_000), 1)
    made.remove_stream(two)
    with pytest.raises(ValueError, match="no stream has slot"):
        made.append_frames(good, 2, 0, [one, two], 1)
    assert before == (made.position, made.used, made.next_sequence(one))
    for size in (0, 4_088, 4_097, 2**32):
        with pytest.raises(ValueError, match="a segment cannot have"):
            module.Recorder(size)
    for first, position in ((-8, 0), (8, 0), (0, 4), (4, 8), (0, SEGMENT + 8)):
        with pytest.raises(ValueError, match="is not in the segment"):
            made.open(first, position, 1, 0)
    for number, sequence in ((-1, 0), (2**32, 0), (1, -1), (1, 2**62)):
        with pytest.raises(ValueError, match="no stream"):
            made.add_stream(number, sequence)


def test_the_largest_record_has_a_segment_of_its_own(module: ModuleType) -> None:
    """The largest is found by trying; one byte more is refused, and each fits."""
    for streams in (0, 1, 3):
        made = recorder(module)
        slots = [made.add_stream(k, 0) for k in range(streams)]
        made.append(3, b"before", 1)
        end = 0
        for size in range(SEGMENT, 3_000, -1):
            try:
                end = made.append_frames(frames(bytes(size)), 1, 0, slots, 1)
                break
            except ValueError:
                pass
        assert end
        made.append_frames(frames(bytes(size)), 1, 0, slots, 1)
        segments: dict[int, bytearray] = {}
        taken(made, segments)
        assert list(segments) == [0, SEGMENT, 2 * SEGMENT]
        full = bytes(segments[SEGMENT])
        kinds = [walk.kind for walk, _ in walked(module, full, SEGMENT)]
        assert kinds == [module.START, module.MESSAGES, module.INDEX]
        assert end + 48 + 4 + 52 * streams + 64 + 8 > 2 * SEGMENT


def test_positions_and_distances_are_large_numbers(module: ModuleType) -> None:
    made = module.Recorder(1 << 31)
    first = 3 << 40
    made.open(first, first, 2**32 - 1, 10**15)
    slot = made.add_stream(2**32 - 1, 2**61)
    made.synced = first - 1_000
    made.append_frames(frames(b"x"), 1, 2**32 - 1, [slot], 1)
    made.synced = 5
    position = made.append(3, b"", 1)
    ((piece_first, offset, data),) = made.take()
    assert (piece_first, offset) == (first, 0)
    walk = module.Walk()
    assert walk.step(data, 0, first, 0) == module.FOUND
    assert (walk.kind, walk.epoch, walk.unsynced) == (module.START, 2**32 - 1, 1_000)
    assert walk.step(data, walk.next, first, 2**32 - 1) == module.FOUND
    assert (walk.publisher, walk.time_us) == (2**32 - 1, 10**15)
    assert streams_of(walk, data) == [(2**32 - 1, 2**61)]
    assert walk.step(data, walk.next, first, 0) == module.FOUND
    assert (walk.unsynced, walk.position) == (2**32 - 1, position)  # as much as it can say


@pytest.mark.parametrize("left", [0, 8, 56, 64, 72, 120, 128])
def test_a_segment_opened_behind_its_index_is_left(module: ModuleType, left: int) -> None:
    """There may be no room for another index, or for anything."""
    made = recorder(module)
    made.open(0, SEGMENT - left, 1, 0)
    assert made.append(3, b"next", 1) == SEGMENT + 56
    pieces = made.take()
    if left < 64:
        assert [first for first, _, _ in pieces] == [SEGMENT]
    else:
        (first, offset, data), _ = pieces
        assert (first, offset, len(data)) == (0, SEGMENT - left, left)
        magic, index = struct.unpack_from("<8sQ", data, left - 64)
        assert (magic, index) == (b"RGRFTEND", SEGMENT - left if left >= 120 else 0)


def test_padding_is_zeros_in_a_buffer_used_before(module: ModuleType) -> None:
    made = recorder(module)
    made.append(3, b"\xff" * 2_000, 1)
    made.take()
    for size in range(9):
        made.append(3, b"\xff" * size, 1)
    ((_, _, data),) = made.take()
    assert data.count(0xFF) == sum(range(9))
    walk = module.Walk()
    at = 0
    while at < len(data):
        assert walk.step(data, at, made.position - len(data), 0) == module.FOUND
        assert not any(data[walk.end : walk.next])
        at = walk.next


def one_record(module: ModuleType) -> bytes:
    """A record of messages, at position 512 of the segment at 0."""
    made = recorder(module)
    made.open(0, 512, 3, 0)
    slot = made.add_stream(1, 0)
    made.append_frames(frames(b"abc"), 1, 0, [slot], 1)
    ((_, _, data),) = made.take()
    return bytes(data)


def test_a_walk_tells_what_is_there(module: ModuleType) -> None:
    data = one_record(module)
    walk = module.Walk()
    walk.base = 512
    assert walk.step(data, 0, 0, 3) == module.FOUND
    length = walk.end
    assert (walk.meta_at, walk.payload_at, walk.next) == (48, 60, length + 7 & ~7)
    assert walk.step(data, 0, 0, 4) == module.BAD  # left over from another epoch
    for first in (-512, 8, 2**62):  # of another place
        assert walk.step(data, 0, first, 0) == module.BAD
    for size in range(length):
        assert walk.step(data[:size], 0, 0, 0) == module.SHORT
        assert walk.need == (48 if size < 48 else length)
    assert walk.step(data[:length], 0, 0, 0) == module.FOUND  # its padding is not missed
    assert walk.step(memoryview(b"12345678" + data)[8:], 0, 0, 0) == module.FOUND
    walk.base = 504
    assert walk.step(b"12345678" + data, 8, 0, 0) == module.FOUND
    assert walk.meta_at == 56
    assert walk.step(bytes(48), 0, 0, 0) == module.ZERO
    assert walk.step(bytes(47), 0, 0, 0) == module.SHORT
    assert walk.step(b"", 0, 0, 0) == module.SHORT
    assert walk.step(b"", 5, 0, 0) == module.SHORT
    for k in range(48):
        assert walk.step(bytes(k) + b"\1" + bytes(60 - k), 0, -504, 0) != module.ZERO
    with pytest.raises(ValueError, match="no place"):
        walk.step(data, -1, 0, 0)


def test_no_single_bit_may_change(module: ModuleType) -> None:
    data = one_record(module)
    walk = module.Walk()
    walk.base = 512
    assert walk.step(data, 0, 0, 0) == module.FOUND
    for bit in range(8 * walk.end):
        work = bytearray(data)
        work[bit >> 3] ^= 1 << (bit & 7)
        assert walk.step(work, 0, 0, 0) in (module.BAD, module.SHORT)


def test_a_record_whose_meta_is_longer_than_itself(module: ModuleType) -> None:
    for meta in (len(one_record(module)), 2**31, 2**32 - 1):
        work = bytearray(one_record(module))
        struct.pack_into("<I", work, 36, meta)
        (length,) = struct.unpack_from("<I", work, 4)
        struct.pack_into("<I", work, 0, crc32c(work[4:length]))
        walk = module.Walk()
        assert walk.step(work, 0, 512, 0) == module.BAD


def test_recent_records_are_found_and_gaps_are_seen(module: ModuleType) -> None:
    """Against a list of all records."""
    chance = random.Random(11)
    made = recorder(module, segment_bytes=1 << 20)
    slots = [made.add_stream(number, 1) for number in range(1, 4)]
    records: dict[int, list[tuple[int, int, int]]] = {slot: [] for slot in slots}
    next_sequences = dict.fromkeys(slots, 1)
    for _ in range(200):
        chosen = sorted(chance.sample(slots, chance.randrange(1, 4)))
        count = chance.randrange(1, 4)
        data = frames(b"x" * chance.randrange(300)) * count
        end = made.append_frames(data, count, 0, chosen, 0)
        size = 48 + 12 * len(chosen) + len(data)
        for slot in chosen:
            records[slot].append((next_sequences[slot], count, end - (size + 7 & ~7)))
            next_sequences[slot] += count
        for slot in slots:
            known = records[slot][-16:]
            for sequence in range(next_sequences[slot] + 2):
                at = [at for first, n, at in known if first <= sequence < first + n]
                assert made.recent(slot, sequence) == (at[0] if at else -1)
                far = [
                    first
                    for (_, _, before), (first, _, at) in pairwise(known)
                    if first > sequence and at - before > 500
                ]
                expected = far[0] if far else next_sequences[slot]
                assert made.far(slot, sequence, 500) == expected
