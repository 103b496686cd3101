"""Spans of an order, found by what they contain or what contains them.

Rules:

- A span is a low and a high end of one order, and stands there under a number; several numbers may
  have the same span.
- Spans stand in blocks by their low ends; a block also has its high ends in order. So what is found
  costs a step for each block, of which there are few, and one for each span that is found, not one
  for each span that is there.
- Blocks are made when somebody first searches, and then a part of them by every search: what does
  not stand in one yet is looked at one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeAlias

BLOCK_MAX = 512  # spans in a block; a full one becomes two
ORDERED_AT_ONCE = 2048  # spans that one search puts into blocks

_End: TypeAlias = tuple[Any, int]  # one end of a span, and its number


class _Block:
    __slots__ = ("highs", "lows")

    def __init__(self, lows: list[_End], highs: list[_End]) -> None:
        self.lows = lows
        self.highs = highs


class Spans:
    """Numbers under spans, each under one."""

    __slots__ = ("_blocks", "_first", "_searched", "_spans", "_unordered")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._first: list[_End] = []  # the lowest low end of each block
        self._spans: dict[int, tuple[Any, Any]] = {}
        self._searched = False
        self._unordered: dict[int, None] = {}  # those that stand in no block

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, number: int, low: Any, high: Any) -> None:
        """Put a number, which is not here yet, under a span."""
        self._spans[number] = (low, high)
        if self._searched:
            self._order(number, low, high)
        else:
            self._unordered[number] = None

    def _order(self, number: int, low: Any, high: Any) -> None:
        if not self._blocks:
            self._blocks.append(_Block([(low, number)], [(high, number)]))
            self._first.append((low, number))
            return
        place = self._place(low, number)
        block = self._blocks[place]
        insort(block.lows, (low, number))
        insort(block.highs, (high, number))
        self._first[place] = block.lows[0]
        if len(block.lows) > BLOCK_MAX:
            self._split(place)

    def remove(self, number: int) -> None:
        """Take a number away."""
        low, high = self._spans.pop(number)
        if number in self._unordered:
            del self._unordered[number]
            return
        place = self._place(low, number)
        block = self._blocks[place]
        del block.lows[bisect_left(block.lows, (low, number))]
        del block.highs[bisect_left(block.highs, (high, number))]
        if block.lows:
            self._first[place] = block.lows[0]
        else:
            del self._blocks[place], self._first[place]

    def containing(self, low: Any, high: Any) -> set[int]:
        """The numbers of spans that begin at `low` or before and end at `high` or after."""
        spans = self._spans
        found = {n for n in self._left() if spans[n][0] <= low and high <= spans[n][1]}
        last = bisect_right(self._first, (low, math.inf)) - 1
        for place in range(last + 1):
            block = self._blocks[place]
            ends = block.highs[bisect_left(block.highs, (high,)) :]
            if place == last:
                found.update(n for _, n in ends if self._spans[n][0] <= low)
            else:
                found.update(n for _, n in ends)
        return found

    def contained(self, low: Any, high: Any) -> set[int]:
        """The numbers of spans that begin at `low` or after and end at `high` or before."""
        found = set(self.contained_of(self._left(), low, high))
        first = max(bisect_left(self._first, (low,)) - 1, 0)
        for place in range(first, len(self._blocks)):
            block = self._blocks[place]
            if block.lows[0][0] > high:
                break
            ends = block.highs[: bisect_right(block.highs, (high, math.inf))]
            if place == first:
                found.update(n for _, n in ends if self._spans[n][0] >= low)
            else:
                found.update(n for _, n in ends)
        return found

    def contained_of(self, numbers: Iterable[int], low: Any, high: Any) -> list[int]:
        """Those of some numbers whose spans begin and end there; they need not be here."""
        spans = self._spans
        return [n for n in numbers if (its := spans.get(n)) and low <= its[0] and its[1] <= high]

    def _left(self) -> Iterable[int]:
        """Put some into blocks, as somebody searches; those that are left."""
        self._searched = True
        if self._unordered:
            for number in list(islice(self._unordered, ORDERED_AT_ONCE)):
                del self._unordered[number]
                self._order(number, *self._spans[number])
        return self._unordered

    def _place(self, low: Any, number: int) -> int:
        return max(bisect_right(self._first, (low, number)) - 1, 0)

    def _split(self, place: int) -> None:
        lows = self._blocks[place].lows
        half = len(lows) // 2
        for index, part in enumerate((lows[:half], lows[half:])):
            highs = sorted((self._spans[number][1], number) for _, number in part)
            block = _Block(part, highs)
            if index == 0:
                self._blocks[place] = block
            else:
                self._blocks.insert(place + 1, block)
                self._first.insert(place + 1, part[0])
