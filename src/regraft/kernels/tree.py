"""The tree of places where conjunctions are found.

A node has a *bucket*: for each conjunction in it the range to look at first, so that most are
passed over without being touched. It may have *partitions*, each by one dimension in one way:

    EQUAL     children by value
    PIECE     children by a text that a string begins with or contains
    TOPIC     children by topic pattern
    PRESENT   one child: the dimension is there
    CELL      only below PRESENT: children by a cell that contains the whole range (`grids`)

A child is found by one look-up of partition and value (`search`). Nothing here decides whether a
conjunction holds; `conjunctions` does.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.arrays import Ints, Longs, Reals, Table, key_find
    from regraft.kernels.conjunctions import PATTERN, PREDICATE, Conjunctions, whole
    from regraft.kernels.facts import INFINITY, Facts
    from regraft.kernels.grids import Grids
    from regraft.kernels.matrix import Matrix
    from regraft.kernels.predicates import Predicates

    EQUAL = 0
    PIECE = 1
    TOPIC = 2
    PRESENT = 3
    CELL = 4

    # The record of a node:
    PART_OF = 0  # the partition that it is a child of
    FILLED = 1
    BLOCK = 2
    PARTS = 3
    FIRST_PART = 4
    MATRIX = 5  # number + 1, or 0
    WORK = 6
    VISITS = 7
    ROOM = 8  # exponent of two; -1: no block
    LIMIT = 9  # a bucket with more is split
    OPEN = 10  # whether conjunctions go on to children
    WAYS = 11  # bits of the ways in which it is divided
    VISITS_THEN = 12  # at the last review
    NODE = 13
    # The record of a partition:
    OWNER = 0
    BY = 1  # the dimension
    WAY = 2
    CHILDREN = 3
    CELLS = 4  # CELL: bits of the sizes in use
    NEXT = 5
    LAST = 6
    PART = 7

    ROOT = 0
    ROOT_WAYS = 4  # there are no cells below the root
    FLAT_MAX = 16  # a root with fewer plain conjunctions is not divided
    BUCKET_MAX = 256
    MATRIX_FROM = 1024
    MOVE = 8
    ROOT_SHARE = 0.15
    INNER_SHARE = 0.25
    REVIEW_WORK = 65536
    REVIEW_SHARE = 0.02
    REVIEWS_MAX = 1024

    def part_key(node: int, dimension: int, way: int) -> int:
        """What a partition is found by."""
        return node << 32 | dimension << 3 | way

    def child_key(part: int, value: int) -> int:
        """What a child is found by; two may have the same, hence the check."""
        return part << 64 | value & 0xFFFFFFFFFFFFFFFF

    def bits_of(x: float) -> int:
        """A double as an integer."""
        value: int = struct.unpack("<q", struct.pack("<d", x))[0]
        return value


class Tree:
    """Places of conjunctions. `root` is the number of the node where every search begins."""

    def __init__(self, facts: Facts, predicates: Predicates, all: Conjunctions) -> None:
        self.facts = facts
        self.predicates = predicates
        self.all = all
        # Buckets: blocks of 1, 2, 4, ... entries.
        self.entry = Ints()  # the dimension to look at first, the conjunction
        self.entry_range = Reals()  # low, high
        self.free_blocks = [Ints() for _ in range(32)]
        # Nodes: one record each, so that what is needed of one is in one place.
        self.node = Ints()
        self.value = Longs()
        self.then = Longs()  # the event before the last review
        self.free_nodes = Ints()
        self.nodes = 0
        self.matrices: list[Any] = []  # a Matrix each, or None
        # Partitions, likewise.
        self.part = Ints()
        self.free_parts = Ints()
        self.part_table = Table()
        self.child_table = Table()
        self.root_parts = Ints()  # [dimension and way] -> partition of the root + 1, or 0
        # Dimensions.
        self.ways = Ints()  # bits of the ways in which it divides any node but the root
        self.grids = Grids(facts)
        # Reviews.
        self.review = Ints()
        self.review_share = Reals()
        self.review_at = 0
        self.reviewed = 0
        self.moved = 0
        self.placed = 0  # how often a place was looked for: the work that changes are
        self.tending = False  # an event waits: buckets that get full are split after later ones
        self.full = Ints()
        # The way down that `way_of` found.
        self.way_kind = 0
        self.way_dimension = 0
        self.way_value = 0
        self.way_cells = 0
        self.make_node(-1, 0)
        self.node.a[ROOT * NODE + LIMIT] = FLAT_MAX

    # ---------------------------------------------------------------------- nodes and parts

    def make_node(self, part: int, value: int) -> int:
        """An empty node."""
        if self.free_nodes.n:
            self.free_nodes.n -= 1
            node = self.free_nodes.a[self.free_nodes.n]
        else:
            node = self.value.n
            self.node.reserve((node + 1) * NODE)
            self.value.push(0)
            self.then.push(0)
        at = node * NODE
        for k in range(at, at + NODE):
            self.node.a[k] = 0
        self.node.a[at + PART_OF] = part
        self.node.a[at + FIRST_PART] = -1
        self.node.a[at + ROOM] = -1
        self.node.a[at + LIMIT] = BUCKET_MAX
        self.value.a[node] = value
        self.then.a[node] = self.facts.now
        self.nodes += 1
        return node

    def make_part(self, node: int, dimension: int, way: int) -> int:
        """A partition of a node."""
        if self.free_parts.n:
            self.free_parts.n -= 1
            part = self.free_parts.a[self.free_parts.n]
        else:
            part = self.part.n // PART
            self.part.n += PART
            self.part.reserve(self.part.n)
        at = part * PART
        self.part.a[at + OWNER] = node
        self.part.a[at + BY] = dimension
        self.part.a[at + WAY] = way
        self.part.a[at + CHILDREN] = 0
        self.part.a[at + CELLS] = 0
        after = self.node.a[node * NODE + FIRST_PART]
        self.part.a[part * PART + NEXT] = after
        self.part.a[part * PART + LAST] = -1
        if after >= 0:
            self.part.a[after * PART + LAST] = part
        self.node.a[node * NODE + FIRST_PART] = part
        self.node.a[node * NODE + PARTS] += 1
        if node == ROOT:
            self.root_parts.a[dimension * ROOT_WAYS + way] = part + 1
            return part
        self.part_table.put(part_key(node, dimension, way), part)
        if self.ways.n <= dimension:
            self.ways.n = dimension + 1
            self.ways.reserve(self.ways.n)
        self.ways.a[dimension] |= 1 << way
        self.node.a[node * NODE + WAYS] |= 1 << way
        return part

    def prune(self, node: int) -> None:
        """Remove a node that holds nothing, and what that leaves empty above it."""
        while node != ROOT:
            if self.node.a[node * NODE + FILLED] or self.node.a[node * NODE + PARTS]:
                return
            number = self.node.a[node * NODE + MATRIX]
            if number:
                matrix: Matrix | None = self.matrices[number - 1]
                if matrix is not None and matrix.count:
                    return
                self.matrices[number - 1] = None
            part = self.node.a[node * NODE + PART_OF]
            self.child_table.drop(child_key(part, self.value.a[node]))
            if self.node.a[node * NODE + ROOM] >= 0:
                self.give_block(self.node.a[node * NODE + BLOCK], self.node.a[node * NODE + ROOM])
            self.node.a[node * NODE + PART_OF] = -2  # a review may still know it
            self.free_nodes.push(node)
            self.nodes -= 1
            self.part.a[part * PART + CHILDREN] -= 1
            if self.part.a[part * PART + CHILDREN]:
                return
            node = self.part.a[part * PART + OWNER]
            self.remove_part(node, part)

    def remove_part(self, node: int, part: int) -> None:
        """Remove a partition without children."""
        before = self.part.a[part * PART + LAST]
        after = self.part.a[part * PART + NEXT]
        if before >= 0:
            self.part.a[before * PART + NEXT] = after
        else:
            self.node.a[node * NODE + FIRST_PART] = after
        if after >= 0:
            self.part.a[after * PART + LAST] = before
        self.node.a[node * NODE + PARTS] -= 1
        dimension = self.part.a[part * PART + BY]
        way = self.part.a[part * PART + WAY]
        if node == ROOT:
            self.root_parts.a[dimension * ROOT_WAYS + way] = 0
        else:
            self.part_table.drop(part_key(node, dimension, way))
        self.free_parts.push(part)

    def part_for(self, node: int, dimension: int, way: int) -> int:
        """The partition of a node by a dimension in one way, or -1."""
        if node == ROOT:
            if self.root_parts.n <= dimension * ROOT_WAYS + way:
                self.root_parts.n = (dimension + 1) * ROOT_WAYS
                self.root_parts.reserve(self.root_parts.n)
            return self.root_parts.a[dimension * ROOT_WAYS + way] - 1
        return key_find(self.part_table, part_key(node, dimension, way))

    def child_to_be(self, node: int) -> int:
        """The child that the way last found leads to, made if need be; -1 if it cannot be."""
        part = self.part_for(node, self.way_dimension, self.way_kind)
        if part < 0:
            part = self.make_part(node, self.way_dimension, self.way_kind)
        self.part.a[part * PART + CELLS] |= self.way_cells
        key = child_key(part, self.way_value)
        child = key_find(self.child_table, key)
        if child < 0:
            child = self.make_node(part, self.way_value)
            self.child_table.put(key, child)
            self.part.a[part * PART + CHILDREN] += 1
        elif self.node.a[child * NODE + PART_OF] != part:
            return -1  # two keys in one place: this conjunction stays above
        return child

    # ---------------------------------------------------------------------- buckets

    def take_block(self, exponent: int) -> int:
        """Room for 2 ** exponent entries."""
        free = self.free_blocks[exponent]
        if free.n:
            free.n -= 1
            return free.a[free.n]
        block = self.entry.n // 2
        self.entry.n += 2 << exponent
        self.entry.reserve(self.entry.n)
        self.entry_range.reserve(self.entry.n)
        return block

    def give_block(self, block: int, exponent: int) -> None:
        """Room that is not needed any more."""
        free = self.free_blocks[exponent]
        free.push(block)

    def push(self, node: int, number: int) -> None:
        """Put a conjunction into the bucket of a node."""
        n = self.node.a[node * NODE + FILLED]
        exponent = self.node.a[node * NODE + ROOM]
        if exponent < 0 or n == 1 << exponent:
            block = self.take_block(exponent + 1)
            if exponent >= 0:
                old = self.node.a[node * NODE + BLOCK]
                for k in range(n):
                    self.copy_entry(block + k, old + k)
                self.give_block(old, exponent)
            self.node.a[node * NODE + BLOCK] = block
            self.node.a[node * NODE + ROOM] = exponent + 1
        all = self.all
        part = self.node.a[node * NODE + PART_OF]
        given = self.part.a[part * PART + BY] if part >= 0 else -1
        all.look_first(number, all.used.a[number], given)
        at = self.node.a[node * NODE + BLOCK] + n
        self.entry.a[at * 2] = all.quick_dimension
        self.entry.a[at * 2 + 1] = number
        self.entry_range.a[at * 2] = all.quick_low
        self.entry_range.a[at * 2 + 1] = all.quick_high
        all.records.a[number * 4 + 3] = at
        all.node.a[number] = node
        self.node.a[node * NODE + FILLED] = n + 1

    def copy_entry(self, target: int, source: int) -> None:
        """Move an entry; its conjunction knows."""
        self.entry.a[target * 2] = self.entry.a[source * 2]
        number = self.entry.a[source * 2 + 1]
        self.entry.a[target * 2 + 1] = number
        self.entry_range.a[target * 2] = self.entry_range.a[source * 2]
        self.entry_range.a[target * 2 + 1] = self.entry_range.a[source * 2 + 1]
        self.all.records.a[number * 4 + 3] = target

    def pull(self, node: int, at: int) -> None:
        """Take an entry out of the bucket of a node; the last one takes its place."""
        n = self.node.a[node * NODE + FILLED] - 1
        last = self.node.a[node * NODE + BLOCK] + n
        if at != last:
            self.copy_entry(at, last)
        self.node.a[node * NODE + FILLED] = n
        exponent = self.node.a[node * NODE + ROOM]
        if n == 0:
            self.give_block(self.node.a[node * NODE + BLOCK], exponent)
            self.node.a[node * NODE + ROOM] = -1
        elif exponent > 1 and n == 1 << exponent - 2:
            block = self.take_block(exponent - 1)
            old = self.node.a[node * NODE + BLOCK]
            for k in range(n):
                self.copy_entry(block + k, old + k)
            self.give_block(old, exponent)
            self.node.a[node * NODE + BLOCK] = block
            self.node.a[node * NODE + ROOM] = exponent - 1

    # ---------------------------------------------------------------------- put and take

    def place(self, number: int, node: int) -> None:
        """Find a place for a conjunction that was just weighed, from a node on."""
        all = self.all
        used = all.used.a[number]
        self.placed += 1
        while self.node.a[node * NODE + OPEN] or (node == ROOT and all.tested):
            share = all.choose(number, used)
            if share > (ROOT_SHARE if node == ROOT else INNER_SHARE):
                break
            chosen = self.own_range(number, used, node)
            done = self.way_of(all.records.a[number * 4] + chosen * 3, node)
            child = self.child_to_be(node)
            if child < 0:
                break
            if done:
                used |= self.bit(chosen)
            node = child
        all.used.a[number] = used
        if self.node.a[node * NODE + MATRIX]:
            self.put_in_matrix(node, number)
            for _ in range(MOVE):  # those that were there before follow, a few at a time
                if self.node.a[node * NODE + FILLED]:
                    at = self.node.a[node * NODE + BLOCK]
                    other = self.entry.a[at * 2 + 1]
                    self.pull(node, at)
                    self.put_in_matrix(node, other)
            return
        self.push(node, number)
        if self.node.a[node * NODE + FILLED] > self.node.a[node * NODE + LIMIT]:
            if self.tending:
                self.full.push(node)
            else:
                self.split(node)

    def own_range(self, number: int, used: int, node: int) -> int:
        """The term to go on by: the one chosen, or the range of the name that led to the node.

        Cells of that name are few and found at once. Other names may have been rarer when the
        conjunction came here or now, but each is one more partition, which every event has to ask
        for, with hardly anything in it.
        """
        all = self.all
        part = self.node.a[node * NODE + PART_OF]
        if part < 0 or self.part.a[part * PART + WAY] != PRESENT:
            return all.chosen
        dimension = self.part.a[part * PART + BY]
        first = all.records.a[number * 4]
        for k in range(all.records.a[number * 4 + 1] >> 1):
            if all.terms.a[first + k * 3] != dimension or used >> k & 1:
                continue
            if all.shares.a[k] <= INNER_SHARE * self.facts.presence(dimension):
                return k
        return all.chosen

    def bit(self, k: int) -> int:
        """A number with one bit."""
        one = 1
        return one << k

    def remove(self, number: int) -> None:
        """Take a conjunction out of its place."""
        all = self.all
        node = all.node.a[number]
        at = all.records.a[number * 4 + 3]
        if at >= 0:
            self.pull(node, at)
        else:
            matrix: Matrix = self.matrices[self.node.a[node * NODE + MATRIX] - 1]
            matrix.remove(-1 - at)
        all.node.a[number] = -1
        self.prune(node)

    def split(self, node: int) -> None:
        """A bucket got large: let its conjunctions go on to children, or to a matrix."""
        if not self.node.a[node * NODE + OPEN]:
            self.node.a[node * NODE + OPEN] = 1
            block = self.node.a[node * NODE + BLOCK]
            n = self.node.a[node * NODE + FILLED]
            exponent = self.node.a[node * NODE + ROOM]
            self.node.a[node * NODE + FILLED] = 0
            self.node.a[node * NODE + ROOM] = -1
            self.node.a[node * NODE + LIMIT] = 1 << 30
            for k in range(n):
                number = self.entry.a[(block + k) * 2 + 1]
                self.all.weigh(number)
                self.place(number, node)
            self.give_block(block, exponent)
        n = self.node.a[node * NODE + FILLED]
        if n >= MATRIX_FROM:
            if None in self.matrices:
                number = self.matrices.index(None)
            else:
                number = len(self.matrices)
                self.matrices.append(None)
            self.matrices[number] = Matrix(self.all.terms)
            self.node.a[node * NODE + MATRIX] = number + 1
        self.node.a[node * NODE + LIMIT] = n * 2 if n > BUCKET_MAX // 2 else BUCKET_MAX
        if self.node.a[node * NODE + LIMIT] > MATRIX_FROM:
            self.node.a[node * NODE + LIMIT] = MATRIX_FROM

    def put_in_matrix(self, node: int, number: int) -> None:
        """A conjunction goes to the matrix of its node."""
        all = self.all
        matrix: Matrix = self.matrices[self.node.a[node * NODE + MATRIX] - 1]
        first = all.records.a[number * 4]
        n = all.records.a[number * 4 + 1] >> 1
        for k in range(n):
            dimension = whole(all.terms.a[first + k * 3])
            if dimension >= 0 and not matrix.knows(dimension):
                bounds = self.facts.bounds[dimension]
                if bounds is None:
                    bounds = Reals()
                matrix.learn(dimension, self.facts.kind(dimension), bounds, bounds.n)
        slot = matrix.add(number, first // 3, n)
        all.records.a[number * 4 + 3] = -1 - slot
        all.node.a[number] = node

    # ---------------------------------------------------------------------- ways down

    def way_of(self, i: int, node: int) -> bool:
        """How the term that stands at i leads from a node to a child; False: not all the way."""
        terms = self.all.terms.a
        dimension = whole(terms[i])
        low = terms[i + 1]
        self.way_cells = 0
        self.way_value = 0
        if dimension == PATTERN:
            self.way_kind = TOPIC
            self.way_dimension = 0
            self.way_value = whole(low)
            return True
        if dimension == PREDICATE:
            number = whole(low)
            self.way_dimension = self.predicates.dimension.a[number]
            self.way_kind = PRESENT
            if self.predicates.piece.a[number] >= 0:
                self.way_kind = PIECE
                self.way_value = self.predicates.piece.a[number]
            return True
        self.way_dimension = dimension
        if low == terms[i + 2]:
            self.way_kind = EQUAL
            self.way_value = bits_of(low)
            return True
        self.way_kind = PRESENT
        if low == -INFINITY and terms[i + 2] == INFINITY:
            return True
        part = self.node.a[node * NODE + PART_OF]
        if part >= 0 and self.leads_by_presence(part, dimension):
            self.way_kind = CELL + self.grids.find(dimension, low, terms[i + 2], self.tending)
            self.way_value = self.grids.cell
            self.way_cells = self.grids.size_bit
            return True
        return False

    def leads_by_presence(self, part: int, dimension: int) -> bool:
        """Whether a partition is by a dimension being there."""
        at = part * PART
        return self.part.a[at + BY] == dimension and self.part.a[at + WAY] == PRESENT

    def forget(self, dimension: int) -> None:
        """Nobody speaks of a dimension any more, and its number may come to mean another."""
        for number in range(len(self.matrices)):
            matrix: Matrix | None = self.matrices[number]
            if matrix is not None:
                matrix.forget(dimension)
        self.ways.reserve(dimension + 1)
        self.ways.a[dimension] = 0
        self.grids.forget(dimension)

    # ---------------------------------------------------------------------- review

    def propose(self, node: int) -> None:
        """Much was looked at in a node: review it, if many events lead there."""
        visits = self.node.a[node * NODE + VISITS] - self.node.a[node * NODE + VISITS_THEN]
        events = self.facts.now - self.then.a[node]
        self.node.a[node * NODE + VISITS_THEN] = self.node.a[node * NODE + VISITS]
        self.then.a[node] = self.facts.now
        share = visits / (events + 1.0)
        if node != ROOT and share > REVIEW_SHARE and self.review.n < REVIEWS_MAX:
            self.review.push(node)
            self.review_share.push(share)

    def tend(self, budget: int) -> None:
        """Review some of what is in nodes where much is looked at.

        An event waits for it, so there is a bound: `budget` of them; or, where such moves have
        filled a bucket, what is in that one.
        """
        all = self.all
        self.tending = True
        while self.full.n and budget > 0:
            self.full.n -= 1
            node = self.full.a[self.full.n]
            if self.node.a[node * NODE + FILLED] > self.node.a[node * NODE + LIMIT]:
                self.split(node)
                budget = 0
        while self.review.n and budget > 0:
            node = self.review.a[self.review.n - 1]
            at = self.review_at
            if self.node.a[node * NODE + PART_OF] == -2 or at >= self.node.a[node * NODE + FILLED]:
                self.review.n -= 1
                self.review_share.n -= 1
                self.review_at = 0
                continue
            budget -= 1
            self.reviewed += 1
            number = self.entry.a[(self.node.a[node * NODE + BLOCK] + at) * 2 + 1]
            if self.better_elsewhere(number, self.review_share.a[self.review_share.n - 1]):
                self.remove(number)
                all.used.a[number] = 0
                all.weigh(number)
                self.place(number, ROOT)
                self.moved += 1
            else:
                self.review_at = at + 1
        self.tending = False

    def better_elsewhere(self, number: int, share: float) -> bool:
        """Whether far fewer events than this share would lead to a conjunction by another term."""
        all = self.all
        all.weigh(number)
        best = all.choose(number, 0)
        if best >= share * 0.5 or best > ROOT_SHARE or all.used.a[number] >> all.chosen & 1:
            return False
        # The way may have gone by that term already, though not all the way: by its being there.
        self.way_of(all.records.a[number * 4] + all.chosen * 3, ROOT)
        part = self.node.a[all.node.a[number] * NODE + PART_OF]
        return part < 0 or not self.leads_by_presence(part, self.way_dimension)
