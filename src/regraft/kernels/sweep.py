"""Very many messages through the match index at once, from the columns of a record batch.

`search` takes one message down the tree, and what it meets is somewhere else in memory each time.
Here a whole batch goes down together: at each node there are the rows that lead to it, a range is
compared with all of them in one loop, and a level's rows are put in order of their nodes before
the next one. That takes a fraction of the time, and no frames are made.

It is for filters of which all terms are ranges, equal texts and lists of values, of attributes and
of the topic, and that have no topic pattern: `Index.add(plan)` with a plan for which `is_plain`
says so. The index does not learn from these messages what is usual, only where much is looked at: a
caller has a few of each batch counted by `Tally.run`, which teaches it, and tends it.
"""

from __future__ import annotations

from typing import Any

from regraft.kernels.tally import Tally

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.arrays import Ints, Longs, Reals, Table, key_find, key_store, text_is
    from regraft.kernels.conjunctions import PREDICATE, whole
    from regraft.kernels.facts import BOOL, BYTES, CLASSES, NAN, NUMBER, TIMESTAMP, TOPIC
    from regraft.kernels.facts import STRING as TEXT
    from regraft.kernels.frame import u32
    from regraft.kernels.grids import GRIDS
    from regraft.kernels.rows import BOOL as BITS
    from regraft.kernels.rows import BYTES as BLOBS
    from regraft.kernels.rows import FLOAT, INT, STRING, Cells, Entries
    from regraft.kernels.search import send_for_ints, send_for_reals
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
        PRESENT,
        REVIEW_WORK,
        ROOT,
        VISITS,
        WAY,
        WORK,
        bits_of,
        child_key,
    )

    CELLS_MAX = 1 << 20  # rows at a time times dimensions
    ROWS_MIN = 64
    USUAL_MAX = 256
    FOUND_MAX = 4096
    LISTED = 3  # a list is worth it for an eighth as many rows as there are cells

    def pointer(slots: bytes) -> Any:
        """What bytes are read through."""
        return slots

    def real_of(bits: int) -> float:
        """Eight bytes as a double."""
        value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
        return value

    def pair(filter: int, row: int) -> int:
        """A key."""
        return filter << 32 | row


class Sweep:
    """Counts in a `Tally` what its index matches."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.index = self.tally.index
        self.facts = self.index.facts
        self.tree = self.index.tree
        self.all = self.index.all
        self.predicates = self.index.predicates
        # Of each row: the place of its slot among the counts, and its number + 1 if it is kept.
        self.base = Longs()
        self.keep = Ints()
        self.n = 0
        self.x = Reals()  # [dimension * n + row]
        self.usual = Ints()  # the name that stood in each place the last time
        self.usual.reserve(USUAL_MAX)
        # Nodes and the rows that lead to them, of this level in order, and of the next.
        self.node = Ints()
        self.row = Ints()
        self.next_node = Ints()
        self.next_row = Ints()
        self.heads = Ints()
        # The children of partitions, and of one of them those of each position. There is one more
        # head than there are lists.
        self.parted = False
        self.part_heads = Ints()
        self.part_nodes = Ints()
        self.cell_heads = Ints()
        self.cell_nodes = Ints()
        self.low = Ints()
        self.high = Ints()
        # Values of the rows at a node, by dimension.
        self.visit = 0
        self.gathered = Longs()
        self.place = Ints()
        self.values = Reals()
        # The node at hand: where its rows begin and how many they are; conjunctions, each with the
        # end of its part of `found`, which are rows that may satisfy it.
        self.at = 0
        self.rows = 0
        self.found = Ints()
        self.owners = Ints()
        self.met = Ints()
        self.matched = Table()  # filters with several conjunctions, and rows

    def run(self, start: int, end: int, topics: Cells, entries: Entries, slots: bytes) -> int:
        """Count rows of columns; `slots` has four bytes for each. How many they were."""
        most = CELLS_MAX // self.facts.top
        most = most if most > ROWS_MIN else ROWS_MIN
        at = start
        while at < end:
            stop = at + most if at + most < end else end
            self.load(at, stop, topics, entries, pointer(slots))
            self.descend()
            at = stop
        return end - start

    # ---------------------------------------------------------------------- rows

    def load(self, start: int, end: int, topics: Cells, entries: Entries, slots: Any) -> bool:
        """Take in rows."""
        tally = self.tally
        n = end - start
        self.n = n
        self.facts.now += n
        self.base.reserve(n)
        self.keep.reserve(n)
        for k in range(n):
            slot = u32(slots, 4 * (start + k))
            assert slot < tally.slots, slot
            self.base.a[k] = slot * tally.filters
            kept = tally.every > 0 and tally.seen % tally.every == 0
            self.keep.a[k] = tally.seen // tally.every + 1 if kept else 0
            tally.seen += 1
        size = self.facts.top * n
        self.x.reserve(size)
        x = self.x.a
        for i in range(n):
            x[i] = 0.0
        for i in range(n, size):
            x[i] = NAN
        named = self.facts.by_header.a[TOPIC * CLASSES] - 1
        worded = self.facts.by_header.a[TOPIC * CLASSES + TEXT] - 1
        for k in range(n):
            if named >= 0:
                x[named * n + k] = 0.0
            if worded >= 0:
                x[worded * n + k] = self.text(worded, topics, start + k)
            if entries.maps.there(start + k):
                self.load_row(entries, start + k, k)
        return True

    def load_row(self, entries: Entries, row: int, k: int) -> bool:
        """The attributes of a row."""
        names = entries.names
        start = entries.maps.start(row)
        for i in range(start, entries.maps.start(row + 1)):
            at = names.start(i)
            end = names.start(i + 1)
            place = i - start if i - start < USUAL_MAX else USUAL_MAX - 1
            number = self.usual.a[place]
            if not text_is(self.facts.names, number, names.data, at, end):
                number = self.facts.names.get(names.data, at, end)
                self.usual.a[place] = number
            if number < 0 or not entries.values.there(i):
                continue
            slot = number * 2 * CLASSES
            for j in range(len(entries.kinds)):
                cells: Cells = entries.kinds[j]
                if cells.there(i):
                    self.load_value(cells, i, slot, k)
                    break
        return True

    def load_value(self, cells: Cells, i: int, slot: int, k: int) -> bool:
        """A value, for the dimensions of a name."""
        by_slot = self.facts.by_slot.a
        x = self.x.a
        dimension = by_slot[slot] - 1
        if dimension >= 0:
            x[dimension * self.n + k] = 0.0
        if cells.kind == INT or cells.kind == FLOAT:
            sort = NUMBER
        elif cells.kind == STRING:
            sort = TEXT
        elif cells.kind == BLOBS:
            sort = BYTES
        else:
            sort = BOOL if cells.kind == BITS else TIMESTAMP
        dimension = by_slot[slot + sort] - 1
        if dimension < 0:
            return True
        if sort in (TEXT, BYTES):
            value = self.text(dimension, cells, i)
        elif cells.kind == FLOAT:
            value = real_of(cells.number(i)) + 0.0  # no -0.0
        elif sort == BOOL:
            value = 1.0 if cells.is_true(i) else 0.0
        else:
            value = float(cells.number(i))
        x[dimension * self.n + k] = value
        return True

    def text(self, dimension: int, cells: Cells, i: int) -> float:
        """The number of a text among those that somebody compares with."""
        if self.facts.texts_held.a[dimension]:
            return float(self.facts.texts.get(cells.data, cells.start(i), cells.start(i + 1)))
        return -1.0

    # ---------------------------------------------------------------------- nodes

    def descend(self) -> bool:
        """Go down the tree with all rows, level by level."""
        self.matched = Table()
        self.parted = False  # the tree may be another one since
        self.node.reserve(self.n)
        self.row.reserve(self.n)
        for k in range(self.n):
            self.node.a[k] = ROOT
            self.row.a[k] = k
        self.node.n = self.n
        self.gathered.reserve(self.facts.top)
        self.place.reserve(self.facts.top)
        while self.node.n:
            self.next_node.n = 0
            at = 0
            while at < self.node.n:
                node = self.node.a[at]
                end = at + 1
                while end < self.node.n and self.node.a[end] == node:
                    end += 1
                self.look(node, at, end - at)
                self.ask(node, at, end - at)
                at = end
            self.arrange()
        return True

    def arrange(self) -> bool:
        """The next level becomes this one, in order of nodes."""
        n = self.next_node.n
        nodes = self.tree.value.n
        self.node.reserve(n)
        self.row.reserve(n)
        self.heads.reserve(nodes + 1)
        heads = self.heads.a
        for k in range(nodes + 1):
            heads[k] = 0
        for k in range(n):
            heads[self.next_node.a[k] + 1] += 1
        for k in range(nodes):
            heads[k + 1] += heads[k]
        for k in range(n):
            node = self.next_node.a[k]
            i = heads[node]
            heads[node] = i + 1
            self.node.a[i] = node
            self.row.a[i] = self.next_row.a[k]
        self.node.n = n
        return True

    def look(self, node: int, at: int, n: int) -> bool:
        """Compare what is in a node with the rows that lead to it."""
        tree = self.tree
        self.visit += 1
        self.at = at
        self.rows = n
        self.values.n = 0
        self.found.n = 0
        self.owners.n = 0
        first = tree.node.a[node * NODE + BLOCK] * 2
        filled = tree.node.a[node * NODE + FILLED]
        self.note(node, n, filled)
        bounds = tree.entry_range.a
        for i in range(first, first + filled * 2, 2):
            start = self.gather(tree.entry.a[i])
            values = self.values.a
            low = bounds[i]
            high = bounds[i + 1]
            count = self.found.n
            self.found.reserve(count + n)
            found = self.found.a
            for k in range(n):
                found[count] = k
                count += (low <= values[start + k]) & (values[start + k] <= high)  # no branches
            if count > self.found.n:
                self.found.n = count
                self.owners.push(tree.entry.a[i + 1])
                self.owners.push(count)
                send_for_ints(self.all.records.a, tree.entry.a[i + 1] * 4)
                if count > FOUND_MAX:
                    self.verify_all()
        if self.owners.n:
            self.verify_all()
        if tree.node.a[node * NODE + MATRIX]:
            matrix = tree.matrices[tree.node.a[node * NODE + MATRIX] - 1]
            for k in range(n):
                self.recall(self.row.a[at + k])
                self.met.n = 0
                matrix.find(self.facts.x, self.met)
                self.found.reserve(1)
                for i in range(self.met.n):
                    self.found.a[0] = k
                    self.verify(self.met.a[i], 0, 1)
            self.forget()
        return True

    def note(self, node: int, n: int, filled: int) -> bool:
        """So many rows were compared with what is in a node."""
        tree = self.tree
        tree.node.a[node * NODE + VISITS] += n
        work = tree.node.a[node * NODE + WORK] + n * filled
        if work >= REVIEW_WORK:
            work = 0
            tree.propose(node)
        tree.node.a[node * NODE + WORK] = work
        return True

    def verify_all(self) -> bool:
        """Count what was found at a node."""
        records = self.all.records.a
        for k in range(0, self.owners.n, 2):
            send_for_reals(self.all.terms.a, records[self.owners.a[k] * 4])
        start = 0
        for k in range(0, self.owners.n, 2):
            self.verify(self.owners.a[k], start, self.owners.a[k + 1])
            start = self.owners.a[k + 1]
        self.found.n = 0
        self.owners.n = 0
        return True

    def gather(self, dimension: int) -> int:
        """Where the values begin that the rows at a node have."""
        if self.gathered.a[dimension] == self.visit:
            return self.place.a[dimension]
        start = self.values.n
        self.values.reserve(start + self.rows)
        self.values.n = start + self.rows
        values = self.values.a
        x = self.x.a
        rows = self.row.a
        base = dimension * self.n
        for k in range(self.rows):
            values[start + k] = x[base + rows[self.at + k]]
        self.gathered.a[dimension] = self.visit
        self.place.a[dimension] = start
        return start

    # ---------------------------------------------------------------------- conjunctions

    def verify(self, number: int, start: int, end: int) -> bool:
        """Count the rows among these of `found` for which a conjunction holds."""
        records = self.all.records.a
        terms = self.all.terms.a
        found = self.found.a
        first = records[number * 4]
        for i in range(first, first + (records[number * 4 + 1] >> 1) * 3, 3):
            dimension = whole(terms[i])
            low = terms[i + 1]
            high = terms[i + 2]
            left = start
            if dimension >= 0:
                base = self.gather(dimension)
                values = self.values.a
                for k in range(start, end):
                    value = values[base + found[k]]
                    found[left] = found[k]
                    left += ((low <= value) & (value <= high)) | ((low != low) & (value != value))
            else:
                assert dimension == PREDICATE, dimension
                for k in range(start, end):
                    self.recall(self.row.a[self.at + found[k]])
                    if self.predicates.evaluate(whole(low)):
                        found[left] = found[k]
                        left += 1
                self.forget()
            end = left
            if end == start:
                return True
        return self.count(records[number * 4 + 2], start, end, records[number * 4 + 1] & 1 == 1)

    def count(self, filter: int, start: int, end: int, several: bool) -> bool:
        """A filter matched rows, of which it may have matched some before."""
        tally = self.tally
        counts = tally.counts.a
        for k in range(start, end):
            row = self.row.a[self.at + self.found.a[k]]
            if several:
                key = pair(filter, row)
                if key_find(self.matched, key) >= 0:
                    continue
                key_store(self.matched, key, 0)
            counts[self.base.a[row] + filter] += 1
            tally.matches += 1
            if self.keep.a[row]:
                tally.kept_rows.push(self.keep.a[row] - 1)
                tally.kept_filters.push(filter)
        return True

    def recall(self, row: int) -> None:
        """Let a row be the event at hand."""
        x = self.facts.x.a
        for dimension in range(1, self.facts.top):
            x[dimension] = self.x.a[dimension * self.n + row]

    def forget(self) -> None:
        """There is no event at hand."""
        x = self.facts.x.a
        for dimension in range(1, self.facts.top):
            x[dimension] = NAN

    # ---------------------------------------------------------------------- ways down

    def ask(self, node: int, at: int, n: int) -> bool:
        """The rows at a node go on to its children."""
        tree = self.tree
        part = tree.node.a[node * NODE + FIRST_PART]
        while part >= 0:
            dimension = tree.part.a[part * PART + BY]
            way = tree.part.a[part * PART + WAY]
            if way == EQUAL:
                self.by_value(part, dimension, at, n)
            elif way == PRESENT:
                self.by_presence(part, dimension, at, n)
            else:
                assert way >= CELL, way  # no pieces, no patterns
                self.by_cell(part, dimension, way - CELL, at, n)
            part = tree.part.a[part * PART + NEXT]
        return True

    def child(self, part: int, value: int) -> int:
        """The child of a partition for a value, or -1."""
        node = key_find(self.tree.child_table, child_key(part, value))
        if node >= 0 and self.tree.node.a[node * NODE + PART_OF] != part:
            return -1  # two keys in one place
        return node

    def by_value(self, part: int, dimension: int, at: int, n: int) -> bool:
        """To the child that a row's value has."""
        x = self.x.a
        base = dimension * self.n
        count = self.next_node.n
        self.next_node.reserve(count + n)
        self.next_row.reserve(count + n)
        for k in range(at, at + n):
            row = self.row.a[k]
            value = x[base + row]
            if value == value:
                node = self.child(part, bits_of(value))
                if node >= 0:
                    self.next_node.a[count] = node
                    self.next_row.a[count] = row
                    count += 1
        self.next_node.n = count
        return True

    def by_presence(self, part: int, dimension: int, at: int, n: int) -> bool:
        """To the only child, if there is a value."""
        node = self.child(part, 0)
        if node < 0:
            return True
        x = self.x.a
        base = dimension * self.n
        count = self.next_node.n
        self.next_node.reserve(count + n)
        self.next_row.reserve(count + n)
        for k in range(at, at + n):
            row = self.row.a[k]
            value = x[base + row]
            if value == value:
                self.next_node.a[count] = node
                self.next_row.a[count] = row
                count += 1
        self.next_node.n = count
        return True

    def by_cell(self, part: int, dimension: int, grid: int, at: int, n: int) -> bool:
        """To the children whose cells contain a row's value."""
        grids = self.tree.grids
        edges: Reals = grids.edges[grids.number.a[dimension * GRIDS + grid] - 1]
        listed = n >= edges.n >> LISTED
        if listed:
            self.list_cells(part, edges.n + 1)
        x = self.x.a
        base = dimension * self.n
        for k in range(at, at + n):
            row = self.row.a[k]
            value = x[base + row]
            if value != value:
                continue
            position = 0
            left = edges.n
            while left:  # no branches but this one
                half = (left + 1) >> 1
                position += half * (edges.a[position + half - 1] <= value)
                left -= half
            if listed:
                self.to_listed(position, row)
            else:
                self.to_cells(part, position, row)
        return True

    def to_cells(self, part: int, position: int, row: int) -> bool:
        """To the children whose cells contain a position: a look-up for each size that there is."""
        count = self.next_node.n
        self.next_node.reserve(count + 32)
        self.next_row.reserve(count + 32)
        cells = self.tree.part.a[part * PART + CELLS]
        code = 0
        while cells:
            if cells & 1:
                size = code >> 1
                half = (1 << size) >> 1 if code & 1 else 0
                node = self.child(part, position + half >> size << 5 | code)
                if node >= 0:
                    self.next_node.a[count] = node
                    self.next_row.a[count] = row
                    count += 1
            cells >>= 1
            code += 1
        self.next_node.n = count
        return True

    def to_listed(self, position: int, row: int) -> bool:
        """The same where they are listed."""
        start = self.cell_heads.a[position]
        end = self.cell_heads.a[position + 1]
        count = self.next_node.n
        self.next_node.reserve(count + end - start)
        self.next_row.reserve(count + end - start)
        for i in range(start, end):
            self.next_node.a[count] = self.cell_nodes.a[i]
            self.next_row.a[count] = row
            count += 1
        self.next_node.n = count
        return True

    def list_cells(self, part: int, positions: int) -> bool:
        """List the children of a partition for each position: most look-ups would find none."""
        if not self.parted:
            self.list_children()
        first = self.part_heads.a[part]
        last = self.part_heads.a[part + 1]
        self.low.reserve(last - first)
        self.high.reserve(last - first)
        self.cell_heads.reserve(positions + 1)
        heads = self.cell_heads.a
        for k in range(positions + 1):
            heads[k] = 0
        for i in range(last - first):
            value = self.tree.value.a[self.part_nodes.a[first + i]]
            size = (value & 31) >> 1
            low = (value >> 5 << size) - ((1 << size) >> 1 if value & 1 else 0)
            high = low + (1 << size)
            self.low.a[i] = low if low > 0 else 0
            self.high.a[i] = high if high < positions else positions
            for k in range(self.low.a[i], self.high.a[i]):
                heads[k] += 1
        for k in range(positions):
            heads[k + 1] += heads[k]
        self.cell_nodes.reserve(heads[positions])
        for i in range(last - first):  # from ends, as they are now, to beginnings
            for k in range(self.low.a[i], self.high.a[i]):
                heads[k] -= 1
                self.cell_nodes.a[heads[k]] = self.part_nodes.a[first + i]
        return True

    def list_children(self) -> bool:
        """List the children of each partition, likewise."""
        tree = self.tree
        parts = tree.part.n // PART
        self.part_heads.reserve(parts + 1)
        self.part_nodes.reserve(tree.value.n)
        heads = self.part_heads.a
        for k in range(parts + 1):
            heads[k] = 0
        for node in range(tree.value.n):
            if tree.node.a[node * NODE + PART_OF] >= 0:
                heads[tree.node.a[node * NODE + PART_OF]] += 1
        for k in range(parts):
            heads[k + 1] += heads[k]
        for node in range(tree.value.n):
            part = tree.node.a[node * NODE + PART_OF]
            if part >= 0:
                heads[part] -= 1
                self.part_nodes.a[heads[part]] = node
        self.parted = True
        return True
