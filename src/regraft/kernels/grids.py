"""How the tree divides a dimension into cells, so that ranges can be found by a value.

A dimension is divided at quantiles of the bounds that it was compared with: first into few cells,
and again, finer, when there are many more ranges. What was placed by an older grid stays there.

Cells are of all sizes that are powers of two, and each size stands twice, the second time shifted
by a half. So every range fits into a cell of at most about four times its size, and has one place.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Reals
    from regraft.kernels.facts import Facts

    GRIDS = 3  # of 16, 256 and 4096 cells
    SIZES = 16


class Grids:
    """The grids of all dimensions."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.number = Ints()  # [dimension * GRIDS + k] -> number + 1, or 0
        self.edges: list[Any] = []  # a Reals each, or None
        self.free = Ints()
        # What `find` found:
        self.cell = 0  # the cell, its size and whether it is shifted
        self.size_bit = 0

    def find(self, dimension: int, low: float, high: float, hurry: bool) -> int:
        """The finest grid of a dimension, and in `cell` the smallest cell around a range.

        In a `hurry` no finer one is made.
        """
        self.divide(dimension, hurry)
        k = GRIDS - 1
        while self.number.a[dimension * GRIDS + k] == 0:
            k -= 1
        first = self.position(dimension, k, low)
        last = self.position(dimension, k, high)
        for size in range(SIZES):
            half = (1 << size) >> 1
            if first >> size == last >> size:
                self.cell = first >> size << 5 | size * 2
                break
            if size and first + half >> size == last + half >> size:
                self.cell = first + half >> size << 5 | size * 2 | 1
                break
        self.size_bit = 1 << (self.cell & 31)
        return k

    def position(self, dimension: int, k: int, x: float) -> int:
        """How many edges of a grid are not above x."""
        grid = self.edges[self.number.a[dimension * GRIDS + k] - 1]
        a = grid.a
        low = 0
        high = grid.n
        while low < high:
            middle = (low + high) >> 1
            if a[middle] <= x:
                low = middle + 1
            else:
                high = middle
        return low

    def divide(self, dimension: int, hurry: bool) -> None:
        """Divide a dimension, or divide it finer, once there are enough ranges to do it by."""
        self.number.reserve((dimension + 1) * GRIDS)
        for k in range(GRIDS):
            if self.number.a[dimension * GRIDS + k]:
                continue
            cells = 16 << 4 * k
            if k == 0 or (not hurry and self.facts.bounds_count.a[dimension] >= cells * 8):
                self.make(dimension, k, cells)
            return

    def make(self, dimension: int, k: int, cells: int) -> None:
        """Divide a dimension at quantiles of the bounds that were asked for lately."""
        bounds = self.facts.bounds[dimension]
        assert bounds is not None
        step = bounds.n // (cells * 8) + 1  # a few for every cell will do
        ordered = sorted([bounds.a[j] for j in range(0, bounds.n, step)])
        grid = Reals()
        for j in range(1, cells):
            edge = ordered[j * len(ordered) // cells]
            if grid.n == 0 or grid.a[grid.n - 1] < edge:
                grid.push(edge)
        if self.free.n:
            self.free.n -= 1
            number = self.free.a[self.free.n]
            self.edges[number] = grid
        else:
            number = len(self.edges)
            self.edges.append(grid)
        self.number.a[dimension * GRIDS + k] = number + 1

    def forget(self, dimension: int) -> None:
        """Nobody speaks of a dimension any more."""
        self.number.reserve((dimension + 1) * GRIDS)
        for k in range(GRIDS):
            number = self.number.a[dimension * GRIDS + k]
            if number:
                self.edges[number - 1] = None
                self.free.push(number - 1)
                self.number.a[dimension * GRIDS + k] = 0
