"""The bitmap matrix: conjunctions of which no predicate is selective enough to index by.

A conjunction is a run of terms, three doubles each: a dimension, low and high. The term holds when
low <= x <= high, where x is what the event gives the dimension, NaN for nothing; low NaN asks for
nothing to be there. A negative dimension is a term of another sort, which is not looked at here.

Conjunctions stand in slots, 4096 of them in a block. A dimension is divided into cells; in a
block, it has a row of 4096 bits for every cell and one, the first, for "absent". A bit is cleared
where the conjunction in this slot can certainly not hold for an event in this cell. So the
candidates for an event are what is left of the used slots after an AND with one row of every
dimension: never too few, and too many by those with a bound in the very cell of the event. Who asks
verifies them.

The cell of a bound is found as the cell of a value is, and in order: x <= high puts the cell of x
at or below that of high. So no conjunction that holds is missed, whatever the edges are.
"""

from __future__ import annotations

from math import inf, isfinite, nan, nextafter

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Reals

    BITS = 12  # of a slot number, for the place in its block
    SLOTS = 4096
    EDGES = 32  # room for the edges of one dimension
    LAST = 9  # the row of a text that no conjunction knows
    # Rows cost 17 kB: a dimension has them in a block only while enough of its conjunctions use it.
    # Two bounds, so that one conjunction that comes and goes does not build them each time.
    USERS_MIN = 32
    USERS_KEPT = 8
    # A conjunction that goes leaves its cleared bits: they lie in some two hundred cache lines, far
    # apart. When a block has so many soiled slots, one pass through it sets the bits of all.
    SOILED_MAX = 64

    ANY = 0
    BOOLEAN = 1
    NUMBER = 2
    STRING = 3
    BYTES = 4
    TIMESTAMP = 5

    ONES = (1 << SLOTS) - 1

    def span(first: int, last: int) -> int:
        """Bits first to last; none when last < first."""
        return 0 if last < first else (1 << last + 1) - (1 << first)

    def whole(x: float) -> int:
        """Cut off what stands below the point; what no number of a text can be is made equal."""
        return int(min(x, 4503599627370496.0))

    def dimension_of(terms: Reals, k: int) -> int:
        """The dimension of term k."""
        return int(terms.a[3 * k])

    def take(block: Block) -> int:
        """The lowest slot that is clean, now used."""
        bit = block.clean & -block.clean
        block.used |= bit
        block.clean ^= bit
        return bit.bit_length() - 1

    def is_used(block: Block, slot: int) -> bool:
        """Whether a conjunction stands in this slot."""
        return bool(block.used >> slot & 1)

    def leave(block: Block, slot: int) -> None:
        """A slot is free, and soiled."""
        block.used &= ~(1 << slot)

    def rows_added(block: Block, height: int) -> bool:
        """Rows for one more dimension, all ones; False if there is no memory for them."""
        block.rows.append([ONES] * height)
        block.held += 1
        return True

    def rows_dropped(block: Block, place: int) -> None:
        """Rows less; the last ones take their place."""
        block.held -= 1
        block.rows[place] = block.rows[block.held]
        block.rows.pop()

    def bar(block: Block, place: int, slot: int, rows: int) -> None:
        """Clear the bit of a slot in some rows of a dimension."""
        of = block.rows[place]
        for k in range(len(of)):
            if rows >> k & 1:
                of[k] &= ~(1 << slot)

    def all_clean(block: Block) -> None:
        """All slots that are not used are clean."""
        block.clean = ONES & ~block.used

    def wash(block: Block, place: int, height: int) -> None:
        """Set the bits of all free slots in the rows of a dimension."""
        block.rows[place] = [row | ONES & ~block.used for row in block.rows[place]]

    def meet(block: Block, at: Ints, out: Ints) -> None:
        """Push the owners of all slots that no row of the event bars."""
        left = block.used
        for k in range(block.held):
            left &= block.rows[k][at.a[block.dimensions.a[k]]]
        while left:
            bit = left & -left
            out.push(block.owners.a[bit.bit_length() - 1])
            left ^= bit


def divide(sort: int, sample: list[float]) -> list[float]:
    """Where the cells of a dimension meet, in order: an edge belongs to the cell above it.

    They are quantiles of the sample. A value that is more than one of them gets an edge below and
    one above, and so a cell of its own.
    """
    if sort == BOOLEAN:
        return [1.0]
    values = sorted([value for value in sample if isfinite(value)])
    edges: list[float] = []
    if sort not in (NUMBER, TIMESTAMP) or not values:
        return edges
    for k in range(1, EDGES):
        edge = values[k * len(values) // EDGES]
        if edges and edge <= edges[len(edges) - 1]:
            edge = nextafter(edge, inf)
        if not edges or edge > edges[len(edges) - 1]:
            edges.append(edge)
    return edges


class Block:
    """4096 slots, and rows for the dimensions that many of their conjunctions use."""

    def __init__(self) -> None:
        # by slot: whom the conjunction belongs to, where its terms begin, how many there are
        self.owners = Ints()
        self.firsts = Ints()
        self.lengths = Ints()
        # by dimension: how many terms there are, and 1 + the place of its rows or 0 for no rows
        self.users = Ints()
        self.places = Ints()
        # by place: the dimension
        self.dimensions = Ints()
        self.held = 0
        if not cython.compiled:
            self.used = 0
            self.clean = 0  # free, and not barred in any row
            self.rows: list[list[int]] = []
        all_clean(self)

    def __dealloc__(self) -> None:
        rows_freed(self)


class Matrix:
    """Which conjunctions may hold for an event. Their terms stay where they are while they live."""

    def __init__(self, terms: Reals) -> None:
        self.count = 0
        self.terms = terms
        self.blocks: list[Block | None] = []  # None: empty
        self.counts = Ints()  # by block: slots in use
        self.cleans = Ints()  # by block: slots that are clean
        self.lowest = 0  # all blocks below this one are full
        # by dimension: the sort, how many rows there are, the edges (the rest NaN), how many blocks
        # have rows of it, its place in `active`
        self.sorts = Ints()
        self.heights = Ints()
        self.edges = Reals()
        self.built = Ints()
        self.ranks = Ints()
        self.active = Ints()  # dimensions that have rows somewhere
        self.at = Ints()  # by dimension: the row of the event

    def knows(self, dimension: int) -> bool:
        """Whether this dimension was learnt."""
        return dimension < self.heights.n and self.heights.a[dimension] > 0

    def learn(self, dimension: int, sort: int, bounds: Reals, n: int) -> None:
        """How to divide a dimension, for numbers by the n sample bounds.

        May be called again, say when there are more bounds to sample: all rows are then rebuilt.
        """
        while self.heights.n <= dimension:
            self.edges.reserve(EDGES * (self.heights.n + 1))
            self.active.reserve(self.heights.n + 1)
            self.sorts.push(0)
            self.built.push(0)
            self.ranks.push(0)
            self.at.push(0)
            self.heights.push(0)
        for block in self.blocks:
            if block is not None and dimension < block.places.n and block.places.a[dimension]:
                self.demolish(block, dimension)
        edges = divide(sort, [bounds.a[k] for k in range(n)])
        for k in range(EDGES):
            self.edges.a[EDGES * dimension + k] = edges[k] if k < len(edges) else nan
        self.sorts.a[dimension] = sort
        self.heights.a[dimension] = LAST + 1 if sort in (STRING, BYTES) else len(edges) + 2
        for block in self.blocks:
            if (
                block is not None
                and dimension < block.users.n
                and block.users.a[dimension] >= USERS_MIN
            ):
                self.build(block, dimension)

    def forget(self, dimension: int) -> None:
        """A dimension that no conjunction here has any more may come to mean something else."""
        if dimension < self.heights.n:
            self.heights.a[dimension] = 0

    def add(self, owner: int, first: int, n: int) -> int:
        """Add a conjunction of n terms from term `first` on, dimensions learnt; its slot."""
        block = self.opened()
        self.make_room(block, first, n)
        at = self.lowest
        slot = take(block)
        block.owners.a[slot] = owner
        block.firsts.a[slot] = first
        block.lengths.a[slot] = n
        self.counts.a[at] += 1
        self.cleans.a[at] -= 1
        self.count += 1
        for k in range(first, first + n):
            d = dimension_of(self.terms, k)
            if d < 0:
                continue
            block.users.a[d] += 1
            place = block.places.a[d] - 1
            if place >= 0:
                bar(block, place, slot, self.barred(d, k))
            elif block.users.a[d] >= USERS_MIN:
                self.build(block, d)
        return (at << BITS) + slot

    def remove(self, slot: int) -> None:
        """Remove the conjunction in this slot; its terms must still be there."""
        at = slot >> BITS
        bit = slot & (SLOTS - 1)
        block = self.blocks[at]
        assert block is not None and is_used(block, bit)
        leave(block, bit)
        self.counts.a[at] -= 1
        self.count -= 1
        first = block.firsts.a[bit]
        for k in range(first, first + block.lengths.a[bit]):
            d = dimension_of(self.terms, k)
            if d < 0:
                continue
            block.users.a[d] -= 1
            if block.users.a[d] < USERS_KEPT and block.places.a[d]:
                self.demolish(block, d)
        if self.counts.a[at] == 0:
            self.blocks[at] = None  # no user is left, and so no row either
            while self.counts.n > 0 and self.counts.a[self.counts.n - 1] == 0:
                self.blocks.pop()
                self.counts.n -= 1
                self.cleans.n -= 1
        if at < self.lowest and not self.is_full(at):
            self.lowest = at

    def find(self, x: Reals, out: Ints) -> None:
        """Push the owners of all conjunctions that may hold for an event, in order of slots.

        `x` has room for all dimensions that were learnt.
        """
        for k in range(self.active.n):
            d = self.active.a[k]
            self.at.a[d] = self.row(d, x.a[d])
        for block in self.blocks:
            if block is not None:
                meet(block, self.at, out)

    def size(self) -> int:
        """About how many bytes the compiled matrix takes, without the terms."""
        total = self.heights.n * (8 * EDGES + 20)
        for block in self.blocks:
            if block is not None:
                total += 12 * block.owners.n + 8 * block.users.n + SLOTS // 8
                for k in range(block.held):
                    total += self.heights.a[block.dimensions.a[k]] * (SLOTS // 8)
        return total

    def opened(self) -> Block:
        """The lowest block that is not full, which `lowest` then is, with a clean slot."""
        while self.lowest < self.counts.n and self.is_full(self.lowest):
            self.lowest += 1
        if self.lowest >= self.counts.n:
            self.lowest = self.counts.n
            self.blocks.append(None)
            self.cleans.push(0)
            self.counts.push(0)
        block = self.blocks[self.lowest]
        if block is None:
            block = Block()
            self.blocks[self.lowest] = block
            self.cleans.a[self.lowest] = SLOTS
        elif self.cleans.a[self.lowest] == 0:
            self.clean_up(block)
            self.cleans.a[self.lowest] = SLOTS - self.counts.a[self.lowest]
        return block

    def is_full(self, at: int) -> bool:
        """Whether nothing is clean in a block, and too little soiled to clean it up."""
        return self.cleans.a[at] == 0 and self.counts.a[at] > SLOTS - SOILED_MAX

    def clean_up(self, block: Block) -> None:
        """Make all free slots of a block clean."""
        for place in range(block.held):
            wash(block, place, self.heights.a[block.dimensions.a[place]])
        all_clean(block)

    def make_room(self, block: Block, first: int, n: int) -> None:
        """For one more conjunction in a block: before anything changes, for memory may lack."""
        top = 0
        for k in range(first, first + n):
            d = dimension_of(self.terms, k)
            if d >= top:
                top = d + 1
        while block.users.n < top:
            block.dimensions.push(0)
            block.places.push(0)
            block.users.push(0)
        if block.owners.n <= SLOTS - self.cleans.a[self.lowest]:
            block.lengths.push(0)
            block.firsts.push(0)
            block.owners.push(0)

    def build(self, block: Block, dimension: int) -> None:
        """Give a dimension rows in a block. Without memory for them, it stays perhaps true."""
        if not rows_added(block, self.heights.a[dimension]):
            return
        place = block.held - 1
        block.dimensions.a[place] = dimension
        block.places.a[dimension] = place + 1
        if self.built.a[dimension] == 0:
            self.ranks.a[dimension] = self.active.n
            self.active.push(dimension)
        self.built.a[dimension] += 1
        for slot in range(block.owners.n):
            if not is_used(block, slot):
                continue
            first = block.firsts.a[slot]
            for k in range(first, first + block.lengths.a[slot]):
                if dimension_of(self.terms, k) == dimension:
                    bar(block, place, slot, self.barred(dimension, k))

    def demolish(self, block: Block, dimension: int) -> None:
        """Take the rows of a dimension from a block; the last ones move into their place."""
        place = block.places.a[dimension] - 1
        rows_dropped(block, place)
        moved = block.dimensions.a[block.held]
        block.dimensions.a[place] = moved
        block.places.a[moved] = place + 1
        block.places.a[dimension] = 0
        self.built.a[dimension] -= 1
        if self.built.a[dimension] == 0:
            self.active.n -= 1
            moved = self.active.a[self.active.n]
            self.active.a[self.ranks.a[dimension]] = moved
            self.ranks.a[moved] = self.ranks.a[dimension]

    def row(self, dimension: int, x: float) -> int:
        """The row of a value."""
        if x != x:
            return 0
        if self.sorts.a[dimension] in (STRING, BYTES):
            return LAST if x < 0 else 1 + (whole(x) & 7)
        edges = self.edges
        base = EDGES * dimension
        row = 1
        for k in range(base, base + EDGES):
            row += edges.a[k] <= x  # never for NaN, which fills what is not used
        return row

    def barred(self, dimension: int, term: int) -> int:
        """The rows in which a term of this dimension can not hold, as bits."""
        low = self.terms.a[3 * term + 1]
        high = self.terms.a[3 * term + 2]
        every = span(0, self.heights.a[dimension] - 1)
        if low != low:
            return every & ~span(0, 0)
        if not low <= high:
            return every
        if self.sorts.a[dimension] not in (STRING, BYTES):
            return every & ~span(self.row(dimension, low), self.row(dimension, high))
        held = span(LAST, LAST) if low < 0 else span(1, 0)
        if high >= 0:
            first = whole(low) if low > 0 else 0
            last = whole(high)
            for k in range(first, last + 1 if last - first < 8 else first + 8):
                held |= span(1 + (k & 7), 1 + (k & 7))
        return every & ~held


if not cython.compiled:

    def rows_freed(_: Block) -> None:
        """Lists free themselves."""
