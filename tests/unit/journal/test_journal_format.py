"""The bytes of a journal: all that is written is read again, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal.format import (
    Attached,
    Detached,
    Extent,
    HoleMade,
    MailboxGone,
    MailboxMade,
    PublisherGone,
    PublisherMade,
    Start,
    StreamGone,
    StreamMade,
)
from regraft.kernels.records import BAD, FOUND, Walk

U32 = st.integers(0, 2**32 - 1)
U63 = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20)

CONTROLS = st.one_of(
    st.builds(StreamMade, U32, TEXT, TEXT, st.booleans()),
    st.builds(StreamGone, U32),
    st.builds(MailboxMade, U32, TEXT, TEXT, TEXT, st.booleans(), TEXT, U63, U63),
    st.builds(MailboxGone, U32),
    st.builds(PublisherMade, U32, TEXT),
    st.builds(PublisherGone, U32),
    st.builds(Attached, U32, U32),
    st.builds(Detached, U32, U63),
    st.builds(HoleMade, U63, U32, U32),
)


@given(CONTROLS)
def test_control_records(control: Any) -> None:
    assert format.decode_control(format.encode_control(control)) == control


@given(st.builds(Start, st.just(1), TEXT, U32, U63, U63))
def test_start_records(start: Start) -> None:
    assert format.decode_start(format.encode_start(start)) == start


def test_a_start_of_a_later_format_is_refused() -> None:
    payload = format.encode_start(Start(2, "", 1, 0, 0))
    with pytest.raises(DiskError, match="format 2") as caught:
        format.decode_start(payload)
    assert caught.value.code.name == "data-folder-version"


RANGES = st.lists(st.tuples(U63, U63).map(lambda pair: (min(pair), max(pair))), max_size=5)


@given(U32, RANGES)
def test_settled_records(stream: int, ranges: list[tuple[int, int]]) -> None:
    payload = format.encode_settled(stream, ranges)
    assert len(payload) == 8 + 16 * len(ranges)
    assert format.decode_settled(payload) == (stream, ranges)


PLACES = st.lists(st.tuples(st.integers(0, 2**31 - 1), U63), max_size=5)


@given(PLACES, PLACES)
def test_places_of_messages(places: list[tuple[int, int]], done: list[tuple[int, int]]) -> None:
    settled = [(number + format.SETTLES, sequence) for number, sequence in done]
    meta = format.encode_places([*places, *settled])
    assert len(meta) == 12 * (len(places) + len(settled))
    assert format.places(meta) == places
    assert format.split_places(meta) == (places, done)


ENTRIES = st.lists(st.tuples(U32, U63), min_size=1, max_size=5).map(sorted)


@st.composite
def extents(draw: st.DrawFn) -> list[Extent]:
    streams = draw(st.lists(U32, max_size=4, unique=True).map(sorted))
    found = []
    for stream in streams:
        first, last = sorted((draw(U63), draw(U63)))
        entries = format.encode_entries(draw(ENTRIES))
        found.append(Extent(stream, first, last, draw(U63), draw(U63), entries))
    return found


@given(extents())
def test_index_records(told: list[Extent]) -> None:
    read = format.decode_index(format.encode_index(told))
    assert list(read.values()) == told


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True).map(sorted), st.data())
def test_the_entry_before_a_sequence(firsts: list[int], data: st.DataObject) -> None:
    entries = format.encode_entries((8 * at, first) for at, first in enumerate(firsts))
    extent = Extent(1, firsts[0], 99, 0, 0, entries)
    sequence = data.draw(st.integers(firsts[0], 99))
    at = extent.before(sequence)
    assert extent.entry(at) == (8 * at, firsts[at])
    assert firsts[at] <= sequence
    assert at + 1 == len(firsts) or firsts[at + 1] > sequence
    assert list(extent.all()) == [extent.entry(k) for k in range(extent.spots)]


@given(st.integers(0, 2**63 - 1))
def test_trailers(position: int) -> None:
    trailer = format.encode_trailer(position)
    assert len(trailer) == 64
    assert format.decode_trailer(trailer) == position
    for at in range(20):
        damaged = bytearray(trailer)
        damaged[at] ^= 1
        assert format.decode_trailer(damaged) is None
    assert format.decode_trailer(trailer[:-1]) is None


DECODERS = [
    format.decode_start,
    format.decode_control,
    format.decode_settled,
    format.decode_index,
    format.places,
]


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=120))
def test_whatever_the_bytes_a_decoder_gives_a_value_or_a_disk_error(
    decode: Any, data: bytes
) -> None:
    try:
        decode(data)
    except DiskError as error:
        assert error.code.name in ("journal-damaged", "data-folder-version")


@given(st.data())
def test_a_damaged_index_is_a_value_or_a_disk_error(data: st.DataObject) -> None:
    payload = bytearray(format.encode_index(data.draw(extents())))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        format.decode_index(payload[: data.draw(st.integers(0, len(payload)))])
    except DiskError as error:
        assert error.code.name == "journal-damaged"


def test_a_skip_record_is_its_header_whatever_stands_behind_it() -> None:
    skip = format.encode_skip(4096 + 512, 1 << 20, 77, 5)
    assert len(skip) == 48
    walk = Walk()
    view = bytes(512) + skip + b"?" * 100
    assert walk.step(view, 512, 4096, 5) == FOUND
    assert (walk.kind, walk.next, walk.time_us, walk.epoch) == (format.SKIP, 512 + 2**20, 77, 5)
    assert walk.unsynced == 0
    assert walk.step(view, 512, 4096, 6) == BAD
    assert walk.step(view, 512, 8192, 5) == BAD
    header = format.decode_header(skip, 4096 + 512)
    assert header is not None
    assert (header.length, header.time_us, header.epoch) == (1 << 20, 77, 5)
    assert format.decode_header(skip, 4096) is None
    assert format.decode_header(skip[:47], 4096 + 512) is None
