"""Sets of sequences as ranges, against plain sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from regraft.journal.ranges import Ranges

PLACE = st.one_of(st.integers(1, 40), st.integers(4070, 4120))  # around the end of a page
LENGTH = st.one_of(st.integers(0, 8), st.integers(4000, 9000))
PAIR = st.tuples(PLACE, LENGTH).map(lambda pair: (pair[0], sum(pair)))


def members(pairs: list[tuple[int, int]]) -> set[int]:
    return {n for first, last in pairs for n in range(first, last + 1)}


def check(ranges: Ranges, model: set[int]) -> None:
    pairs = list(ranges)
    assert members(pairs) == model
    assert ranges.count == len(model)
    assert ranges.highest == max(model, default=0)
    for (_, last), (first, _) in pairwise(pairs):
        assert last + 1 < first, "neighbours are one range"


@given(st.lists(PAIR, max_size=12))
def test_what_is_added_is_there_and_what_was_new_is_said(pairs: list[tuple[int, int]]) -> None:
    ranges = Ranges()
    model: set[int] = set()
    for first, last in pairs:
        added = members([(first, last)])
        assert members(ranges.add(first, last)) == added - model
        model |= added
        check(ranges, model)
    assert all((n in ranges) == (n in model) for n in range(60))
    assert Ranges(ranges) == ranges
    kept = Ranges()
    for page, bits in ranges.bits():
        kept.add_bits(page, bits)
    assert kept == ranges and (kept.count, kept.highest) == (ranges.count, ranges.highest)


@given(st.lists(PAIR, max_size=12), st.integers(1, 50))
def test_cutting(pairs: list[tuple[int, int]], floor: int) -> None:
    ranges = Ranges(pairs)
    model = members(pairs)
    reached = floor
    while reached in model:
        reached += 1
    assert ranges.cut(floor) == reached
    check(ranges, {n for n in model if n > reached})


@given(st.lists(PAIR, max_size=12), PAIR)
def test_gaps(pairs: list[tuple[int, int]], span: tuple[int, int]) -> None:
    gaps = Ranges(pairs).gaps(*span)
    assert members(gaps) == members([span]) - members(pairs)


@given(st.lists(PAIR, max_size=8), PAIR)
def test_removing(pairs: list[tuple[int, int]], span: tuple[int, int]) -> None:
    ranges = Ranges(pairs)
    ranges.remove(*span)
    check(ranges, members(pairs) - members([span]))
    assert members(list(ranges.within(*span))) == set()
