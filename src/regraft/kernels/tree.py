"""The tree of places where conjunctions are found.

A node has a *bucket*: for each conjunction in it the range to look at first, so that most are
passed over without being touched. It may have *partitions*, each by one dimension in one way:

    EQUAL     children by value
    PIECE     children by a text that a string begins with or contains
    TOPIC     children by topic pattern
    PRESENT   one child: the dimension is there
    CELL      only below PRESENT: children by a cell that contains the whole range (`grids`)

A child is found by one look-up of partition and value. Nothing here decides whether a conjunction
holds; `conjunctions` does.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.arrays import Ints, Longs, Reals, Table
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

    ROOT = 0
    FLAT_MAX = 16  # a root with fewer plain conjunctions is not divided
    BUCKET_MAX = 256
    MATRIX_FROM = 1024
    MOVE = 8
    ROOT_SHARE = 0.15
    INNER_SHARE = 0.25
    REVIEW_WORK = 65536
    REVIEW_SHARE = 0.02
    REVIEWS_MAX = 1024
    TEXT_MAX = 16384
    LINKS = 0x7FFFFFFFFFFFFFFF

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

    def prefetch_ints(a: Any, i: int) -> None:
        """Nothing to do ahead of time."""

    prefetch_reals = prefetch_ints


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
        # Nodes.
        self.block = Ints()
        self.filled = Ints()
        self.room = Ints()  # exponent of two; -1: no block
        self.limit = Ints()  # a bucket with more is split
        self.part_of = Ints()  # the partition that it is a child of
        self.value = Longs()
        self.first_part = Ints()
        self.parts = Ints()
        self.open = Ints()  # whether conjunctions go on to children
        self.matrix = Ints()  # number + 1, or 0
        self.node_ways = Ints()  # bits of the ways in which it is divided
        self.work = Ints()
        self.visits = Ints()
        self.visits_then = Ints()  # at the last review,
        self.then = Longs()  # which was after this event
        self.free_nodes = Ints()
        self.nodes = 0
        self.matrices: list[Any] = []  # a Matrix each, or None
        # Partitions.
        self.owner = Ints()
        self.by = Ints()  # the dimension
        self.way = Ints()
        self.children = Ints()
        self.cells = Ints()  # CELL: bits of the sizes in use
        self.next_part = Ints()
        self.last_part = Ints()
        self.free_parts = Ints()
        self.part_table = Table()
        self.child_table = Table()
        # Dimensions.
        self.ways = Ints()  # bits of the ways in which it divides any node
        self.grids = Grids(facts)
        # A search.
        self.candidates = Ints()
        self.hits = Ints()  # conjunctions that hold
        self.found = Ints()  # pieces
        self.found_stamp = Longs()  # per dimension
        self.found_first = Ints()
        self.found_count = Ints()
        self.patterns = Ints()  # that match the topic, and that some conjunction has
        self.linked = False  # whether any filter is wanted by links only
        self.links = Longs()  # per filter: bits of the links that want it; the sign: somebody here
        self.reached = 0  # bits of the links that the event goes to anyway
        self.looked = 0
        self.verified = 0
        self.review = Ints()
        self.review_share = Reals()
        self.review_at = 0
        self.reviewed = 0
        self.moved = 0
        # The way down that `way_of` found.
        self.way_kind = 0
        self.way_dimension = 0
        self.way_value = 0
        self.way_cells = 0
        self.make_node(-1, 0)
        self.limit.a[ROOT] = FLAT_MAX

    # ---------------------------------------------------------------------- nodes and parts

    def make_node(self, part: int, value: int) -> int:
        """An empty node."""
        if self.free_nodes.n:
            self.free_nodes.n -= 1
            node = self.free_nodes.a[self.free_nodes.n]
        else:
            node = self.block.n
            self.block.push(0)
            self.filled.push(0)
            self.room.push(-1)
            self.limit.push(0)
            self.part_of.push(0)
            self.value.push(0)
            self.first_part.push(-1)
            self.parts.push(0)
            self.open.push(0)
            self.matrix.push(0)
            self.node_ways.push(0)
            self.work.push(0)
            self.visits.push(0)
            self.visits_then.push(0)
            self.then.push(0)
        self.filled.a[node] = 0
        self.room.a[node] = -1
        self.limit.a[node] = BUCKET_MAX
        self.part_of.a[node] = part
        self.value.a[node] = value
        self.first_part.a[node] = -1
        self.parts.a[node] = 0
        self.open.a[node] = 0
        self.matrix.a[node] = 0
        self.node_ways.a[node] = 0
        self.work.a[node] = 0
        self.visits.a[node] = 0
        self.visits_then.a[node] = 0
        self.then.a[node] = self.facts.now
        self.nodes += 1
        return node

    def make_part(self, node: int, dimension: int, way: int) -> int:
        """A partition of a node."""
        if self.free_parts.n:
            self.free_parts.n -= 1
            part = self.free_parts.a[self.free_parts.n]
        else:
            part = self.owner.n
            self.owner.push(0)
            self.by.push(0)
            self.way.push(0)
            self.children.push(0)
            self.cells.push(0)
            self.next_part.push(-1)
            self.last_part.push(-1)
        self.owner.a[part] = node
        self.by.a[part] = dimension
        self.way.a[part] = way
        self.children.a[part] = 0
        self.cells.a[part] = 0
        after = self.first_part.a[node]
        self.next_part.a[part] = after
        self.last_part.a[part] = -1
        if after >= 0:
            self.last_part.a[after] = part
        self.first_part.a[node] = part
        self.parts.a[node] += 1
        self.part_table.put(part_key(node, dimension, way), part)
        self.ways.reserve(dimension + 1)
        if self.ways.n <= dimension:
            self.ways.n = dimension + 1
        self.ways.a[dimension] |= 1 << way
        self.node_ways.a[node] |= 1 << way
        return part

    def prune(self, node: int) -> None:
        """Remove a node that holds nothing, and what that leaves empty above it."""
        while node != ROOT and not self.filled.a[node] and not self.parts.a[node]:
            number = self.matrix.a[node]
            if number:
                matrix: Matrix | None = self.matrices[number - 1]
                if matrix is not None and matrix.count:
                    return
                self.matrices[number - 1] = None
            part = self.part_of.a[node]
            self.child_table.drop(child_key(part, self.value.a[node]))
            if self.room.a[node] >= 0:
                self.give_block(self.block.a[node], self.room.a[node])
            self.part_of.a[node] = -2  # a review may still know it
            self.free_nodes.push(node)
            self.nodes -= 1
            self.children.a[part] -= 1
            if self.children.a[part]:
                return
            node = self.owner.a[part]
            self.remove_part(node, part)

    def remove_part(self, node: int, part: int) -> None:
        """Remove a partition without children."""
        before = self.last_part.a[part]
        after = self.next_part.a[part]
        if before >= 0:
            self.next_part.a[before] = after
        else:
            self.first_part.a[node] = after
        if after >= 0:
            self.last_part.a[after] = before
        self.parts.a[node] -= 1
        self.part_table.drop(part_key(node, self.by.a[part], self.way.a[part]))
        self.free_parts.push(part)

    def child(self, part: int, value: int) -> int:
        """The child of a partition for a value, or -1."""
        node = self.child_table.get(child_key(part, value))
        if node >= 0 and (self.part_of.a[node] != part or self.value.a[node] != value):
            return -1
        return node

    def child_to_be(self, node: int) -> int:
        """The child that the way last found leads to, made if need be; -1 if it cannot be."""
        part = self.part_table.get(part_key(node, self.way_dimension, self.way_kind))
        if part < 0:
            part = self.make_part(node, self.way_dimension, self.way_kind)
        self.cells.a[part] |= self.way_cells
        key = child_key(part, self.way_value)
        child = self.child_table.get(key)
        if child < 0:
            child = self.make_node(part, self.way_value)
            self.child_table.put(key, child)
            self.children.a[part] += 1
        elif self.part_of.a[child] != part or self.value.a[child] != self.way_value:
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
        n = self.filled.a[node]
        exponent = self.room.a[node]
        if exponent < 0 or n == 1 << exponent:
            block = self.take_block(exponent + 1)
            if exponent >= 0:
                old = self.block.a[node]
                for k in range(n):
                    self.copy_entry(block + k, old + k)
                self.give_block(old, exponent)
            self.block.a[node] = block
            self.room.a[node] = exponent + 1
        all = self.all
        part = self.part_of.a[node]
        all.look_first(number, all.used.a[number], self.by.a[part] if part >= 0 else -1)
        at = self.block.a[node] + n
        self.entry.a[at * 2] = all.quick_dimension
        self.entry.a[at * 2 + 1] = number
        self.entry_range.a[at * 2] = all.quick_low
        self.entry_range.a[at * 2 + 1] = all.quick_high
        all.records.a[number * 4 + 3] = at
        all.node.a[number] = node
        self.filled.a[node] = n + 1

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
        n = self.filled.a[node] - 1
        last = self.block.a[node] + n
        if at != last:
            self.copy_entry(at, last)
        self.filled.a[node] = n
        exponent = self.room.a[node]
        if n == 0:
            self.give_block(self.block.a[node], exponent)
            self.room.a[node] = -1
        elif exponent > 1 and n == 1 << exponent - 2:
            block = self.take_block(exponent - 1)
            old = self.block.a[node]
            for k in range(n):
                self.copy_entry(block + k, old + k)
            self.give_block(old, exponent)
            self.block.a[node] = block
            self.room.a[node] = exponent - 1

    # ---------------------------------------------------------------------- put and take

    def place(self, number: int, node: int) -> None:
        """Find a place for a conjunction that was just weighed, from a node on."""
        all = self.all
        used = all.used.a[number]
        while self.open.a[node] or (node == ROOT and all.tested):
            share = all.choose(number, used)
            if share > (ROOT_SHARE if node == ROOT else INNER_SHARE):
                break
            chosen = all.chosen
            done = self.way_of(all.records.a[number * 4] + chosen * 3, node)
            child = self.child_to_be(node)
            if child < 0:
                break
            if done:
                used |= self.bit(chosen)
            node = child
        all.used.a[number] = used
        if self.matrix.a[node]:
            self.put_in_matrix(node, number)
            for _ in range(MOVE):  # those that were there before follow, a few at a time
                if self.filled.a[node]:
                    at = self.block.a[node]
                    other = self.entry.a[at * 2 + 1]
                    self.pull(node, at)
                    self.put_in_matrix(node, other)
            return
        self.push(node, number)
        if self.filled.a[node] > self.limit.a[node]:
            self.split(node)

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
            matrix: Matrix = self.matrices[self.matrix.a[node] - 1]
            matrix.remove(-1 - at)
        all.node.a[number] = -1
        self.prune(node)

    def split(self, node: int) -> None:
        """A bucket got large: let its conjunctions go on to children, or to a matrix."""
        if not self.open.a[node]:
            self.open.a[node] = 1
            block = self.block.a[node]
            n = self.filled.a[node]
            exponent = self.room.a[node]
            self.filled.a[node] = 0
            self.room.a[node] = -1
            self.limit.a[node] = 1 << 30
            for k in range(n):
                number = self.entry.a[(block + k) * 2 + 1]
                self.all.weigh(number)
                self.place(number, node)
            self.give_block(block, exponent)
        n = self.filled.a[node]
        if n >= MATRIX_FROM:
            if None in self.matrices:
                number = self.matrices.index(None)
            else:
                number = len(self.matrices)
                self.matrices.append(None)
            self.matrices[number] = Matrix(self.all.terms)
            self.matrix.a[node] = number + 1
        self.limit.a[node] = n * 2 if n > BUCKET_MAX // 2 else BUCKET_MAX
        if self.limit.a[node] > MATRIX_FROM:
            self.limit.a[node] = MATRIX_FROM

    def put_in_matrix(self, node: int, number: int) -> None:
        """A conjunction goes to the matrix of its node."""
        all = self.all
        matrix: Matrix = self.matrices[self.matrix.a[node] - 1]
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
        part = self.part_of.a[node]
        if part >= 0 and self.by.a[part] == dimension and self.way.a[part] == PRESENT:
            self.way_kind = CELL + self.grids.find(dimension, low, terms[i + 2])
            self.way_value = self.grids.cell
            self.way_cells = self.grids.size_bit
            return True
        return False

    def forget(self, dimension: int) -> None:
        """Nobody speaks of a dimension any more, and its number may come to mean another."""
        for number in range(len(self.matrices)):
            matrix: Matrix | None = self.matrices[number]
            if matrix is not None:
                matrix.forget(dimension)
        self.ways.reserve(dimension + 1)
        self.ways.a[dimension] = 0
        self.grids.forget(dimension)

    # ---------------------------------------------------------------------- search

    def search(self, node: int) -> bool:
        """Gather the conjunctions that hold, from a node on, in `hits`."""
        n = self.filled.a[node]
        self.visits.a[node] += 1
        if n:
            self.scan_bucket(self.block.a[node], n)
            self.looked += n
            work = self.work.a[node] + n
            if work >= REVIEW_WORK:
                work = 0
                self.propose(node)
            self.work.a[node] = work
        if self.matrix.a[node]:
            matrix: Matrix = self.matrices[self.matrix.a[node] - 1]
            self.candidates.n = 0
            matrix.find(self.facts.x, self.candidates)
            self.verify()
        n = self.parts.a[node]
        if n == 0:
            return True
        active = self.facts.active
        if n <= active.n + 4:
            x = self.facts.x.a
            part = self.first_part.a[node]
            while part >= 0:
                value = x[self.by.a[part]]
                if value == value:
                    self.enter(part)
                part = self.next_part.a[part]
            return True
        for k in range(active.n):
            self.enter_all(node, active.a[k])
        self.enter_all(node, 0)
        return True

    def enter_all(self, node: int, dimension: int) -> bool:
        """Go on to the children of a node that a dimension leads to."""
        if dimension >= self.ways.n:
            return True
        ways = self.ways.a[dimension] & self.node_ways.a[node]
        way = 0
        while ways:
            if ways & 1:
                part = self.part_table.get(part_key(node, dimension, way))
                if part >= 0:
                    self.enter(part)
            ways >>= 1
            way += 1
        return True

    def scan_bucket(self, block: int, n: int) -> bool:
        """Look at the first range of each entry, and verify those where it holds."""
        x = self.facts.x.a
        entry = self.entry.a
        bounds = self.entry_range.a
        candidates = self.candidates
        candidates.reserve(n)
        found = candidates.a
        count = 0
        for i in range(block * 2, (block + n) * 2, 2):
            value = x[entry[i]]
            if bounds[i] <= value and value <= bounds[i + 1]:
                found[count] = entry[i + 1]
                count += 1
        candidates.n = count
        self.verify()
        return True

    def verify(self) -> bool:
        """Keep the candidates that hold."""
        all = self.all
        found = self.candidates.a
        n = self.candidates.n
        self.verified += n
        # Most of them are far apart in memory: ask for all before looking at the first.
        for k in range(n):
            prefetch_ints(all.records.a, found[k] * 4)
        for k in range(n):
            prefetch_reals(all.terms.a, all.records.a[found[k] * 4])
        for k in range(n):
            number = found[k]
            if self.linked:
                links = self.links.a[all.records.a[number * 4 + 2]]
                if links & ~self.reached and all.verify(number):
                    self.reached |= links & LINKS
                    self.hits.push(number)
            elif all.verify(number):
                self.hits.push(number)
        return True

    def enter(self, part: int) -> bool:
        """Go on to the children of a partition that the event leads to."""
        way = self.way.a[part]
        dimension = self.by.a[part]
        if way == TOPIC:
            for k in range(self.patterns.n):
                self.follow(part, self.patterns.a[k])
        elif way == EQUAL:
            self.follow(part, bits_of(self.facts.x.a[dimension]))
        elif way == PRESENT:
            self.follow(part, 0)
        elif way == PIECE:
            self.find_pieces(dimension)
            first = self.found_first.a[dimension]
            for k in range(first, first + self.found_count.a[dimension]):
                self.follow(part, self.found.a[k])
        else:
            position = self.grids.position(dimension, way - CELL, self.facts.x.a[dimension])
            cells = self.cells.a[part]
            code = 0
            while cells:
                if cells & 1:
                    size = code >> 1
                    half = (1 << size) >> 1 if code & 1 else 0
                    self.follow(part, position + half >> size << 5 | code)
                cells >>= 1
                code += 1
        return True

    def follow(self, part: int, value: int) -> bool:
        """Search the child for a value, if there is one."""
        node = self.child(part, value)
        if node >= 0:
            self.search(node)
        return True

    def find_pieces(self, dimension: int) -> None:
        """Find the pieces of a string, once per event."""
        self.found_stamp.reserve(dimension + 1)
        if self.found_stamp.a[dimension] == self.facts.now:
            return
        self.found_first.reserve(dimension + 1)
        self.found_count.reserve(dimension + 1)
        at = self.facts.at.a[dimension]
        end = self.facts.end.a[dimension]
        if end - at > TEXT_MAX:
            end = at + TEXT_MAX  # no piece is that long, and no pattern looks at more
        first = self.found.n
        self.predicates.pieces.find(dimension, self.predicates.p, at, end, self.found)
        self.found_stamp.a[dimension] = self.facts.now
        self.found_first.a[dimension] = first
        self.found_count.a[dimension] = self.found.n - first

    # ---------------------------------------------------------------------- review

    def propose(self, node: int) -> None:
        """Much was looked at in a node: review it, if many events lead there."""
        visits = self.visits.a[node] - self.visits_then.a[node]
        events = self.facts.now - self.then.a[node]
        self.visits_then.a[node] = self.visits.a[node]
        self.then.a[node] = self.facts.now
        share = visits / (events + 1.0)
        if node != ROOT and share > REVIEW_SHARE and self.review.n < REVIEWS_MAX:
            self.review.push(node)
            self.review_share.push(share)

    def tend(self, budget: int) -> None:
        """Review some of what is in nodes where much is looked at."""
        all = self.all
        while self.review.n and budget > 0:
            node = self.review.a[self.review.n - 1]
            at = self.review_at
            if self.part_of.a[node] == -2 or at >= self.filled.a[node]:
                self.review.n -= 1
                self.review_share.n -= 1
                self.review_at = 0
                continue
            budget -= 1
            self.reviewed += 1
            number = self.entry.a[(self.block.a[node] + at) * 2 + 1]
            if self.better_elsewhere(number, self.review_share.a[self.review_share.n - 1]):
                self.remove(number)
                all.used.a[number] = 0
                all.weigh(number)
                self.place(number, ROOT)
                self.moved += 1
            else:
                self.review_at = at + 1

    def better_elsewhere(self, number: int, share: float) -> bool:
        """Whether far fewer events than this share would lead to a conjunction by another term."""
        all = self.all
        all.weigh(number)
        best = all.choose(number, 0)
        if best >= share * 0.5 or best > ROOT_SHARE or all.used.a[number] >> all.chosen & 1:
            return False
        # The way may have gone by that term already, though not all the way: by its being there.
        self.way_of(all.records.a[number * 4] + all.chosen * 3, ROOT)
        part = self.part_of.a[all.node.a[number]]
        return part < 0 or self.by.a[part] != self.way_dimension or self.way.a[part] != PRESENT
