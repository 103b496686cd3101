"""A trie of topic patterns: all that match a topic are found in one walk down its levels.

Patterns with one meaning have one number for as long as anybody holds them. Children by name stand
in one table for all nodes, under (node, number of the name), except one child of each node, which
stands in the node itself: most nodes have no other. The child by '+' stands in the node too.

With many patterns a walk is as fast as memory is. So a node is eight integers in a row, not one in
each of eight arrays, and what the next step reads is fetched before it is needed.

`regraft.routing.patterns.PatternTree` and `regraft.model.topics.matches` say what is right; a test
holds them together. Patterns and topics were checked before they come here.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import (
        Ints,
        Table,
        Texts,
        grow_ints,
        key_erase,
        key_find,
        key_store,
        pointer,
        text_find,
    )
    from regraft.kernels.frame import cut

    PLUS_SIGN = 43
    HASH_SIGN = 35
    DOLLAR = 36

    SHIFT = 3
    FIELDS = 8

    PLUS = 0
    MORE = 1
    HERE = 2
    BELOW = 3
    NAME = 4
    CHILD = 5
    PARENT = 6
    EDGE = 7

    def level_end(p: Any, start: int, end: int) -> int:
        """Where the level that begins at `start` ends."""
        at = cut(p, start, end).find(b"/")
        return end if at < 0 else start + at

    def edge_key(node: int, name: int) -> int:
        """A name below a node, as the key of a table."""
        return node << 32 | name

    def fetch_node(a: list[int], node: int) -> None:
        """Have the memory brought up that is read next; a list does without."""

    def fetch_edge(table: Table, key: int) -> None:
        """The same for a key."""


class Topics:
    """Patterns with numbers from 0 on; numbers are used again. Node 0 is the root."""

    def __init__(self) -> None:
        self.nodes = Ints()
        self.free_nodes = Ints()
        self.edges = Table()
        self.names = Texts()  # each held once by every node that it leads to
        self.places = Ints()  # of a number: node * 2, + 1 if the topic must end there; -1: free
        self.holders = Ints()
        self.free = Ints()
        self.visited = Ints()
        self.hits = Ints()
        self.make(0, -1)

    def add(self, pattern: bytes, exact: bool) -> int:
        """Hold a pattern once more; its number."""
        p = pointer(pattern)
        end = len(pattern)
        node = 0
        whole = exact and end > 0
        start = 0 if end > 0 else 1  # the empty pattern has no level, not one that is empty
        while start <= end:
            stop = level_end(p, start, end)
            if stop == end and stop - start == 1 and p[start] == HASH_SIGN:
                whole = False
                break
            node = self.below(node, p, start, stop)
            start = stop + 1
        field = node * FIELDS + (HERE if whole else BELOW)
        number = self.nodes.a[field]
        if number < 0:
            number = self.take(node * 2 + whole)
            self.nodes.a[field] = number
        self.holders.a[number] += 1
        return number

    def release(self, number: int) -> bool:
        """Hold a pattern once less; whether it is gone."""
        place = self.place(number)
        self.holders.a[number] -= 1
        if self.holders.a[number] > 0:
            return False
        self.free.push(number)
        self.places.a[number] = -1
        self.nodes.a[(place >> 1) * FIELDS + (HERE if place & 1 else BELOW)] = -1
        self.prune(place >> 1)
        return True

    def match(self, p: Any, start: int, end: int) -> int:
        """How many patterns match the topic p[start:end]; their numbers are in `hits`, each once.

        One path leads to each node, so none is visited twice. After n levels there are at most
        2^n nodes to go on from, by name and by '+' at each level, and never more than the trie has
        at that depth: only who really adds 2^n patterns that overlap makes a walk that long.
        """
        visited = self.visited
        grow_ints(visited, 1)
        visited.a[0] = 0
        visited.n = 1
        self.hits.n = 0
        wild = start == end or p[start] != DOLLAR  # what begins with '$' is matched by name only
        if wild and self.nodes.a[BELOW] >= 0:
            self.hits.push(self.nodes.a[BELOW])
        stop = level_end(p, start, end)
        name = text_find(self.names, p, start, stop)
        first = 0
        while first < visited.n:
            grow_ints(visited, 3 * visited.n - 2 * first)  # each has at most two children
            first = self.descend(first, name, wild)
            grow_ints(self.hits, self.hits.n + 2 * (visited.n - first))
            if stop == end:
                self.finish(first)
                break
            # The name is looked up while the children are on their way from memory.
            start = stop + 1
            stop = level_end(p, start, end)
            name = text_find(self.names, p, start, stop)
            wild = True
            self.keep(first, name)
        return self.hits.n

    def descend(self, first: int, name: int, wild: bool) -> int:
        """Add the children of the nodes visited last; where they begin."""
        a = self.nodes.a
        visited = self.visited.a
        end = self.visited.n
        n = end
        for k in range(first, end):
            node = visited[k]
            at = node * FIELDS
            if wild and a[at + PLUS] >= 0:
                visited[n] = a[at + PLUS]
                fetch_node(a, visited[n])
                n += 1
            child = -1
            if name >= 0:
                if a[at + NAME] == name:
                    child = a[at + CHILD]
                elif a[at + MORE] > 0:
                    child = key_find(self.edges, edge_key(node, name))
            if child >= 0:
                visited[n] = child
                fetch_node(a, child)
                n += 1
        self.visited.n = n
        return end

    def keep(self, first: int, name: int) -> None:
        """Note what takes everything below these nodes; keep those that have children."""
        a = self.nodes.a
        visited = self.visited.a
        hits = self.hits.a
        found = self.hits.n
        n = first
        for k in range(first, self.visited.n):
            node = visited[k]
            at = node * FIELDS
            if a[at + BELOW] >= 0:
                hits[found] = a[at + BELOW]
                found += 1
            if a[at + MORE] > 0:
                if name >= 0:
                    fetch_edge(self.edges, edge_key(node, name))
            elif a[at + PLUS] < 0 and a[at + NAME] < 0:
                continue
            visited[n] = node
            n += 1
        self.visited.n = n
        self.hits.n = found

    def finish(self, first: int) -> None:
        """Note the patterns that end at these nodes: the topic ends here too."""
        a = self.nodes.a
        visited = self.visited.a
        hits = self.hits.a
        found = self.hits.n
        for k in range(first, self.visited.n):
            at = visited[k] * FIELDS
            if a[at + BELOW] >= 0:
                hits[found] = a[at + BELOW]
                found += 1
            if a[at + HERE] >= 0:
                hits[found] = a[at + HERE]
                found += 1
        self.hits.n = found

    def find(self, topic: bytes) -> list[int]:
        """The numbers of the patterns that match, each once."""
        n = self.match(pointer(topic), 0, len(topic))
        return [self.hits.a[k] for k in range(n)]

    def pattern(self, number: int) -> tuple[bytes, bool]:
        """A pattern with this meaning, and whether it is exact."""
        place = self.place(number)
        node = place >> 1
        levels = []
        while node > 0:
            edge = self.nodes.a[node * FIELDS + EDGE]
            levels.append(b"+" if edge < 0 else self.names.texts[edge] or b"")
            node = self.nodes.a[node * FIELDS + PARENT]
        # without a '#' of its own, one empty level would be the pattern that takes everything
        if not place & 1 and levels and levels[0] in (b"", b"#"):
            levels.insert(0, b"#")
        return b"/".join(reversed(levels)), place & 1 > 0

    def count(self) -> int:
        """How many patterns are held."""
        return self.places.n - self.free.n

    def size(self) -> int:
        """About how many bytes all this takes."""
        fields = self.nodes.n + 3 * self.places.n + self.free_nodes.n
        names = 96 * self.names.count() + self.names.size  # an object and its place in a table
        return 4 * fields + 24 * self.edges.n + names

    def place(self, number: int) -> int:
        """Where a pattern ends."""
        if number < 0 or number >= self.places.n or self.places.a[number] < 0:
            raise KeyError(number)
        return self.places.a[number]

    def take(self, place: int) -> int:
        """A number for a new pattern."""
        if self.free.n > 0:
            self.free.n -= 1
            number = self.free.a[self.free.n]
            self.places.a[number] = place
        else:
            number = self.places.n
            self.places.push(place)
            self.holders.push(0)
        return number

    def below(self, node: int, p: Any, start: int, end: int) -> int:
        """The child of a node by the level p[start:end], which is made if need be."""
        at = node * FIELDS
        if end - start == 1 and p[start] == PLUS_SIGN:
            child = self.nodes.a[at + PLUS]
            if child < 0:
                child = self.make(node, -1)
                self.nodes.a[at + PLUS] = child
            return child
        name = text_find(self.names, p, start, end)
        if name >= 0:
            if self.nodes.a[at + NAME] == name:
                return self.nodes.a[at + CHILD]
            if self.nodes.a[at + MORE] > 0:
                child = key_find(self.edges, edge_key(node, name))
                if child >= 0:
                    return child
            self.names.holders.a[name] += 1
        else:
            name = self.names.add(cut(p, start, end))
        child = self.make(node, name)
        if self.nodes.a[at + NAME] < 0:
            self.nodes.a[at + NAME] = name
            self.nodes.a[at + CHILD] = child
        else:
            key_store(self.edges, edge_key(node, name), child)
            self.nodes.a[at + MORE] += 1
        return child

    def make(self, parent: int, edge: int) -> int:
        """A new node. Its parent does not know it yet."""
        if self.free_nodes.n > 0:
            self.free_nodes.n -= 1
            node = self.free_nodes.a[self.free_nodes.n]
        else:
            node = self.nodes.n >> SHIFT
            self.nodes.reserve(self.nodes.n + FIELDS)
            self.nodes.n += FIELDS
        a = self.nodes.a
        at = node * FIELDS
        a[at + PLUS] = -1
        a[at + MORE] = 0
        a[at + HERE] = -1
        a[at + BELOW] = -1
        a[at + NAME] = -1
        a[at + CHILD] = -1
        a[at + PARENT] = parent
        a[at + EDGE] = edge
        return node

    def prune(self, node: int) -> None:
        """Take nodes away from here upwards, as far as nobody needs them."""
        a = self.nodes.a
        at = node * FIELDS
        while (
            node > 0
            and a[at + HERE] < 0
            and a[at + BELOW] < 0
            and a[at + PLUS] < 0
            and a[at + NAME] < 0
            and a[at + MORE] == 0
        ):
            edge = a[at + EDGE]
            self.free_nodes.push(node)
            node = a[at + PARENT]
            at = node * FIELDS
            if edge < 0:
                a[at + PLUS] = -1
                continue
            if a[at + NAME] == edge:
                a[at + NAME] = -1
            else:
                key_erase(self.edges, edge_key(node, edge))
                a[at + MORE] -= 1
            self.names.release(edge)
