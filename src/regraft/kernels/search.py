"""One event's search through the tree: level by level, each in a few passes.

Nearly everything that an event meets is somewhere else in memory, and waiting for it is most of the
time that a search takes. So all nodes of a level are gone through together: first their buckets are
looked at, then all children that the event may lead to are asked for, and only then looked up. What
one pass needs the one before has sent for. What was reached is verified at the end.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, key_find
    from regraft.kernels.matrix import Matrix
    from regraft.kernels.tree import (
        BLOCK,
        BY,
        CELL,
        CELLS,
        EQUAL,
        FILLED,
        FIRST_PART,
        MATRIX,
        NEXT,
        NODE,
        PART,
        PART_OF,
        PARTS,
        PIECE,
        PRESENT,
        REVIEW_WORK,
        ROOT,
        ROOT_WAYS,
        TOPIC,
        VISITS,
        WAY,
        WAYS,
        WORK,
        Tree,
        bits_of,
        child_key,
        part_key,
    )

    TEXT_MAX = 16384
    LIST_MAX = 6  # of more partitions, those by what the event has are looked up
    LINKS = 0x7FFFFFFFFFFFFFFF

    def send_for_ints(a: Any, i: int) -> None:
        """Nothing to do ahead of time."""

    def send_for_key(table: Any, key: int) -> None:
        """Nor here."""

    send_for_reals = send_for_ints


class Search:
    """What an event leads to. `hits` are the conjunctions that hold."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.facts = self.tree.facts
        self.predicates = self.tree.predicates
        self.all = self.tree.all
        self.hits = Ints()
        self.candidates = Ints()
        # The nodes of a level, and what was asked for below them.
        self.level = Ints()
        self.asked_part = Ints()
        self.asked_key = Longs()
        # Pieces, per dimension.
        self.found = Ints()
        self.found_stamp = Longs()
        self.found_first = Ints()
        self.found_count = Ints()
        self.patterns = Ints()  # that match the topic, and that some conjunction has
        self.linked = False  # whether any filter is wanted by links only
        self.pruning = False  # whether that matters for this event
        self.links = Longs()  # per filter: bits of the links that want it; the sign: somebody here
        self.reached = 0  # bits of the links that the event goes to anyway
        self.looked = 0
        self.verified = 0

    def run(self) -> bool:
        """Gather the conjunctions that hold in `hits`."""
        self.hits.n = 0
        self.found.n = 0
        self.candidates.n = 0
        self.level.n = 0
        self.level.push(ROOT)
        self.look()
        if self.tree.node.a[ROOT * NODE + PARTS]:  # a small index has nothing below its root
            self.ask()
            self.arrive()
            while self.level.n:
                self.look()
                self.ask()
                self.arrive()
        return self.verify()

    # ---------------------------------------------------------------------- nodes

    def look(self) -> bool:
        """Look at what is in the nodes of this level."""
        tree = self.tree
        for k in range(self.level.n):
            node = self.level.a[k]
            at = node * NODE
            tree.node.a[at + VISITS] += 1
            n = tree.node.a[at + FILLED]
            if n:
                self.scan_bucket(tree.node.a[at + BLOCK], n)
                self.looked += n
                work = tree.node.a[at + WORK] + n
                if work >= REVIEW_WORK:
                    work = 0
                    tree.propose(node)
                tree.node.a[at + WORK] = work
            if tree.node.a[at + MATRIX]:
                matrix: Matrix = tree.matrices[tree.node.a[at + MATRIX] - 1]
                matrix.find(self.facts.x, self.candidates)
        return True

    def scan_bucket(self, block: int, n: int) -> bool:
        """Keep those of which the range to look at first holds."""
        x = self.facts.x.a
        entry = self.tree.entry.a
        bounds = self.tree.entry_range.a
        count = self.candidates.n
        self.candidates.reserve(count + n)
        found = self.candidates.a
        for i in range(block * 2, (block + n) * 2, 2):
            value = x[entry[i]]
            if bounds[i] <= value and value <= bounds[i + 1]:
                found[count] = entry[i + 1]
                count += 1
        self.candidates.n = count
        return True

    def verify(self) -> bool:
        """Keep the candidates that hold."""
        all = self.all
        found = self.candidates.a
        n = self.candidates.n
        self.verified += n
        if n > 1:
            for k in range(n):
                send_for_ints(all.records.a, found[k] * 4)
            for k in range(n):
                send_for_reals(all.terms.a, all.records.a[found[k] * 4])
        for k in range(n):
            number = found[k]
            if self.pruning:
                links = self.links.a[all.records.a[number * 4 + 2]]
                if links & ~self.reached and all.verify(number):
                    self.reached |= links & LINKS
                    self.hits.push(number)
            elif all.verify(number):
                self.hits.push(number)
        return True

    # ---------------------------------------------------------------------- ways down

    def ask(self) -> bool:
        """Ask for all children of this level that the event leads to."""
        tree = self.tree
        active = self.facts.active
        x = self.facts.x.a
        self.asked_part.n = 0
        for k in range(self.level.n):
            node = self.level.a[k]
            n = tree.node.a[node * NODE + PARTS]
            if n == 0:
                continue
            if n <= LIST_MAX:
                part = tree.node.a[node * NODE + FIRST_PART]
                while part >= 0:
                    dimension = tree.part.a[part * PART + BY]
                    value = x[dimension]
                    if value == value:
                        self.enter(part, tree.part.a[part * PART + WAY], dimension)
                    part = tree.part.a[part * PART + NEXT]
                continue
            if node != ROOT:
                for j in range(active.n):
                    self.send_for_parts(node, active.a[j])
            for j in range(active.n):
                self.enter_all(node, active.a[j])
            self.enter_all(node, 0)
        return True

    def send_for_parts(self, node: int, dimension: int) -> None:
        """`enter_all` will ask for these."""
        tree = self.tree
        if dimension < tree.ways.n:
            ways = tree.ways.a[dimension] & tree.node.a[node * NODE + WAYS]
            way = 0
            while ways:
                if ways & 1:
                    send_for_key(tree.part_table, part_key(node, dimension, way))
                ways >>= 1
                way += 1

    def enter_all(self, node: int, dimension: int) -> bool:
        """Ask for the children of a node that a dimension leads to."""
        tree = self.tree
        if node == ROOT:
            first = dimension * ROOT_WAYS
            if first < tree.root_parts.n:
                for way in range(ROOT_WAYS):
                    part = tree.root_parts.a[first + way] - 1
                    if part >= 0:
                        self.enter(part, way, dimension)
            return True
        if dimension >= tree.ways.n:
            return True
        ways = tree.ways.a[dimension] & tree.node.a[node * NODE + WAYS]
        way = 0
        while ways:
            if ways & 1:
                part = key_find(tree.part_table, part_key(node, dimension, way))
                if part >= 0:
                    self.enter(part, way, dimension)
            ways >>= 1
            way += 1
        return True

    def enter(self, part: int, way: int, dimension: int) -> bool:
        """Ask for the children of a partition that the event leads to."""
        tree = self.tree
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
            position = tree.grids.position(dimension, way - CELL, self.facts.x.a[dimension])
            cells = tree.part.a[part * PART + CELLS]
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
        """Ask for the child for a value."""
        n = self.asked_part.n
        self.asked_part.push(part)
        self.asked_key.reserve(n + 1)
        key = child_key(part, value)
        self.asked_key.a[n] = key
        send_for_key(self.tree.child_table, key)
        return True

    def arrive(self) -> bool:
        """The children that there are make up the next level."""
        tree = self.tree
        nodes = tree.node
        self.level.n = 0
        self.level.reserve(self.asked_part.n)
        level = self.level.a
        asked = self.asked_part.a
        n = 0
        for k in range(self.asked_part.n):
            node = key_find(tree.child_table, self.asked_key.a[k])
            if node >= 0:
                level[n] = node
                asked[n] = asked[k]
                n += 1
                send_for_ints(nodes.a, node * NODE)
                send_for_ints(nodes.a, node * NODE + WORK)
        for k in range(n):
            node = level[k]
            at = node * NODE
            # A key is of one partition and one value, but for collisions of partitions.
            if nodes.a[at + PART_OF] == asked[k]:
                level[self.level.n] = node
                self.level.n += 1
                if nodes.a[at + FILLED]:
                    send_for_ints(tree.entry.a, nodes.a[at + BLOCK] * 2)
                    send_for_reals(tree.entry_range.a, nodes.a[at + BLOCK] * 2)
                if nodes.a[at + PARTS]:
                    send_for_ints(tree.part.a, nodes.a[at + FIRST_PART] * PART)
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
