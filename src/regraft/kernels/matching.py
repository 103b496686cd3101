"""The match index: which of very many filters an event satisfies.

A filter is a topic pattern and a selector in its normal form: an OR of *conjunctions*, each an AND
of *terms*. Every conjunction lives in one place, and is reached through the terms that few events
satisfy:

- The places form a tree (`tree`). A node has a bucket of conjunctions, and children that are
  reached when a term holds: a value is equal, lies in a cell, begins with or contains a text; a
  dimension is there; the topic matches. A conjunction goes down by its most selective term first; a
  bucket that gets large sends its conjunctions down by their next term.
- What no term makes rare stays in a bucket, and in a large one goes to a matrix of bits (`matrix`).
- What is reached (`search`) is verified, term by term (`conjunctions`). So every structure may err
  on the side of too much; none may err on the other side.

How selective a term is, is estimated from what events had lately (`facts`). A node where much was
looked at is reviewed, a few conjunctions after each event: those that would be reached better by
another term now are moved.

Equal filters are held once. Filters that have nothing but a topic pattern are found by `topics`
alone, and need no event.
"""

from __future__ import annotations

from typing import Any

from regraft.kernels.plan import Plan

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, Texts, pointer
    from regraft.kernels.conjunctions import Conjunctions, whole
    from regraft.kernels.envelope import Scan
    from regraft.kernels.facts import BYTES, CONTEXT, STRING, Facts
    from regraft.kernels.operands import as_double
    from regraft.kernels.predicates import Predicates
    from regraft.kernels.search import Search
    from regraft.kernels.topics import Topics
    from regraft.kernels.tree import (
        BY,
        EQUAL,
        FILLED,
        NODE,
        OWNER,
        PART,
        PART_OF,
        PARTS,
        PIECE,
        PRESENT,
        TOPIC,
        VISITS,
        WAY,
        Tree,
    )

    ANYWHERE = -1
    NO_TOPIC = -2
    TEND = 16
    EXPAND_MAX = 16
    EXPAND_SHARE = 0.05
    AMONG = 4
    HERE = -0x8000000000000000
    ROOT = 0
    DOLLAR = 36


HEADERS = ("", "$topic", "$priority", "$size", "$type", "$from", "$correlation", "$reply_to")


class Index:
    """Filters by number, and which of them an event satisfies."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.predicates = Predicates(self.facts)
        self.all = Conjunctions(self.facts, self.predicates)
        self.tree = Tree(self.facts, self.predicates, self.all)
        self.search = Search(self.tree)
        self.topics = Topics()
        # What tells filters apart, and numbers them: pattern = selector, or the pattern alone.
        self.keys = Texts()
        self.first = Ints()  # per filter: its first conjunction, or -1
        self.pattern = Ints()  # its pattern, ANYWHERE, or NO_TOPIC
        self.stamp = Longs()
        self.by_pattern = Ints()  # [pattern] -> the filter with nothing but it, + 1
        self.searched = Ints()  # [pattern] -> how many filters have it and a selector
        self.searched_anywhere = 0
        self.topic_changes = 0  # grows when `of_topic` may answer otherwise
        self.hits = Ints()  # the filters that the event satisfies
        self.scan = Scan()
        self.patterns = Ints()

    # ---------------------------------------------------------------------- add and release

    def add(self, plan: Plan | None, pattern: bytes | None = None, exact: bool = False) -> int:
        """Hold a filter: its number, the same for equal ones.

        Without a plan it has all messages of the pattern. Without a pattern it looks at no topic.
        """
        number = self.hold_pattern(plan, pattern, exact)
        if plan is None:
            key = b"%d" % number
        else:
            text: str = plan.text
            key = (b"=" if number == NO_TOPIC else b"*=") + text.encode()
            if number >= 0:
                key = b"%d" % number + key
        filter = self.keys.add(key)
        if self.keys.holders.a[filter] > 1:
            if number >= 0:
                self.topics.release(number)
            return filter
        self.make(filter, number)
        if plan is None:
            self.by_pattern.a[number] = filter + 1
            self.topic_changes += 1
            return filter
        self.count_searched(number, 1)
        conjunctions: list[Any] = plan.conjunctions
        several = len(conjunctions) > 1
        for wanted in conjunctions:
            self.add_conjunction(filter, wanted, number, several, True)
        return filter

    def hold_pattern(self, plan: Plan | None, pattern: bytes | None, exact: bool) -> int:
        """The number of a pattern, held once more; only a selector can do without one."""
        if pattern is None:
            assert plan is not None
            return NO_TOPIC
        if plan is not None and pattern in (b"", b"#"):
            return ANYWHERE
        number = self.topics.add(pattern, exact)
        self.by_pattern.reserve(number + 1)
        self.searched.reserve(number + 1)
        self.all.pattern_stamp.reserve(number + 1)
        self.all.pattern_share.reserve(number + 1)
        wild = b"+" in pattern or not exact or pattern.endswith(b"#")
        self.all.pattern_share.a[number] = 0.1 if wild else 0.02
        return number

    def make(self, filter: int, pattern: int) -> None:
        """A new filter."""
        self.first.reserve(filter + 1)
        self.pattern.reserve(filter + 1)
        self.stamp.reserve(filter + 1)
        self.search.links.reserve(filter + 1)
        self.first.a[filter] = -1
        self.pattern.a[filter] = pattern
        self.stamp.a[filter] = -1
        self.search.links.a[filter] = HERE

    def add_conjunction(
        self, filter: int, wanted: list[Any], pattern: int, several: bool, expand: bool
    ) -> None:
        """One way to satisfy a filter. With `expand`, one IN of it may become several of them."""
        number = self.all.make(filter, wanted, pattern, several)
        if number < 0:
            self.forget_gone()
            return
        self.all.weigh(number)
        if expand and self.all.choose(number, 0) > EXPAND_SHARE:
            for term in wanted:
                if term[0] == AMONG and len(term[4]) <= EXPAND_MAX:
                    # Only its values make it rare: one conjunction for each of them.
                    self.all.drop(number)
                    self.forget_gone()
                    _, _, where, name, items = term
                    others = [other for other in wanted if other is not term]
                    for sort, value in items:
                        if sort in (STRING, BYTES):
                            alone: Any = (1, where, name, sort, value)
                        else:
                            alone = (0, where, name, sort, value, value)
                        self.add_conjunction(filter, [*others, alone], pattern, True, False)
                    return
        self.all.next.a[number] = self.first.a[filter]
        self.first.a[filter] = number
        self.note_bounds(number)
        self.tree.place(number, ROOT)

    def note_bounds(self, number: int) -> None:
        """Remember the ranges that are asked for."""
        first = self.all.records.a[number * 4]
        n = self.all.records.a[number * 4 + 1] >> 1
        terms = self.all.terms.a
        for k in range(first, first + n * 3, 3):
            if terms[k] >= 0 and terms[k + 1] < terms[k + 2]:
                self.facts.note_bounds(whole(terms[k]), terms[k + 1], terms[k + 2])

    def release(self, filter: int) -> bool:
        """Hold a filter once less; whether it is gone."""
        if not self.keys.release(filter):
            return False
        number = self.first.a[filter]
        while number >= 0:
            after = self.all.next.a[number]
            self.tree.remove(number)
            self.all.drop(number)
            number = after
        self.forget_gone()
        pattern = self.pattern.a[filter]
        if pattern >= 0 and self.by_pattern.a[pattern] == filter + 1:
            self.by_pattern.a[pattern] = 0
            self.topic_changes += 1
        else:
            self.count_searched(pattern, -1)
        if pattern >= 0:
            self.topics.release(pattern)
        return True

    def count_searched(self, pattern: int, more: int) -> None:
        """One more or one less of the filters with selectors has a pattern."""
        if pattern >= 0:
            self.searched.a[pattern] += more
            count = self.searched.a[pattern]
        else:
            self.searched_anywhere += more
            count = self.searched_anywhere
        if count == 0 or (count == 1 and more == 1):
            self.topic_changes += 1

    def text(self, filter: int) -> str | None:
        """The selector of a filter, if it has one."""
        _, there, text = (self.keys.texts[filter] or b"").partition(b"=")
        return text.decode() if there else None

    def topic_of(self, filter: int) -> tuple[bytes, bool]:
        """The topic pattern of a filter, and whether it is without the topics below."""
        pattern = self.pattern.a[filter]
        return self.topics.pattern(pattern) if pattern >= 0 else (b"", False)

    @property
    def count(self) -> int:
        """How many filters there are."""
        return self.keys.count()

    def forget_gone(self) -> None:
        """Dimensions that nobody speaks of any more."""
        gone = self.all.gone
        while gone.n:
            gone.n -= 1
            self.tree.forget(gone.a[gone.n])

    def set_links(self, filter: int, links: int) -> None:
        """Who wants a filter: bits of links, and HERE if anybody on this node does."""
        self.search.links.a[filter] = links
        if links != HERE:
            self.search.linked = True

    # ---------------------------------------------------------------------- match

    def of_topic(self, topic: bytes) -> tuple[list[int], list[int], bool]:
        """What is known of a topic, good until filters change.

        The filters that ask for nothing else; the patterns that filters with selectors have; and
        whether there is anything to search for at all.
        """
        found = self.topics.find(topic)
        fixed = [self.by_pattern.a[k] - 1 for k in found if self.by_pattern.a[k]]
        patterns = [k for k in found if self.searched.a[k]]
        return fixed, patterns, bool(patterns or self.searched_anywhere)

    def find(self, scan: Scan, p: Any, start: int, end: int, patterns: Ints, reached: int) -> None:
        """Find the filters with selectors that a scanned event satisfies, in `hits`.

        `patterns` are those of its topic; `reached` has the bits of the links that need not be
        found any more.
        """
        search = self.search
        self.facts.load(scan, p)
        now = self.facts.now
        self.predicates.begin(scan, p, start, end)
        search.patterns = patterns
        for k in range(patterns.n):
            self.all.pattern_stamp.a[patterns.a[k]] = now
        search.reached = reached
        dollar = p[scan.topic_at] == DOLLAR
        search.pruning = search.linked and not dollar  # there a hit may not count in the end
        search.run()
        self.facts.clear()
        records = self.all.records.a
        self.hits.n = 0
        for k in range(search.hits.n):
            number = search.hits.a[k]
            filter = records[number * 4 + 2]
            if records[number * 4 + 1] & 1:
                if self.stamp.a[filter] == now:
                    continue
                self.stamp.a[filter] = now
            if dollar and self.pattern.a[filter] == ANYWHERE:
                continue  # what begins with '$' is matched by name only
            self.hits.push(filter)
        if self.tree.review.n or self.tree.full.n:
            self.tree.tend(TEND)

    def match(self, envelope: bytes) -> list[int]:
        """The filters that an envelope satisfies, in no particular order."""
        scan = self.scan
        p = pointer(envelope)
        end = len(envelope)
        fault = scan.scan(p, 0, end)
        assert fault == 0, fault
        n = self.topics.match(p, scan.topic_at, scan.topic_end)
        found = self.topics.hits
        fixed = []
        patterns = self.patterns
        patterns.n = 0
        for k in range(n):
            number = found.a[k]
            if self.by_pattern.a[number]:
                fixed.append(self.by_pattern.a[number] - 1)
            if self.searched.a[number]:
                patterns.push(number)
        if self.searched_anywhere or patterns.n:
            self.find(scan, p, 0, end, patterns, 0)
            for k in range(self.hits.n):
                fixed.append(self.hits.a[k])
        return fixed

    # ---------------------------------------------------------------------- look

    def snapshot(self) -> dict[str, int]:
        """Sizes and counters."""
        tree = self.tree
        matrices = [matrix for matrix in tree.matrices if matrix is not None]
        return {
            "filters": self.keys.count(),
            "conjunctions": self.all.count,
            "patterns": self.topics.count(),
            "predicates": self.predicates.keys.count(),
            "predicates_cost": self.predicates.cost,
            "dimensions": self.facts.count - 1,
            "nodes": tree.nodes,
            "matrices": len(matrices),
            "in_matrices": sum(matrix.count for matrix in matrices),
            "events": self.facts.now,
            "looked_at": self.search.looked,
            "verified": self.search.verified,
            "evaluated": self.predicates.evaluated,
            "reviewed": tree.reviewed,
            "moved": tree.moved,
            "placed": tree.placed,
        }

    def hottest(self, count: int) -> list[dict[str, Any]]:
        """The nodes that events lead to most, the busiest first."""
        tree = self.tree
        work = []
        for node in range(tree.value.n):
            at = node * NODE
            there = node == ROOT or tree.node.a[at + PART_OF] >= 0
            visits = tree.node.a[at + VISITS]
            filled = tree.node.a[at + FILLED]
            if there and visits and (node != ROOT or filled):
                work.append((visits * (filled + 1), node))
        work.sort(reverse=True)
        return [
            {
                "predicate": self.describe(node),
                "events": tree.node.a[node * NODE + VISITS],
                "conjunctions": tree.node.a[node * NODE + FILLED],
                "children": tree.node.a[node * NODE + PARTS],
            }
            for _, node in work[:count]
        ]

    def describe(self, node: int) -> str:
        """What leads to a node."""
        tree = self.tree
        if node == ROOT:
            return "(every event)"
        said = []
        while node != ROOT:
            part = tree.node.a[node * NODE + PART_OF]
            said.append(self.describe_step(part, tree.value.a[node]))
            node = tree.part.a[part * PART + OWNER]
        return " AND ".join(reversed(said))

    def describe_step(self, part: int, value: int) -> str:
        """What leads from a node to its child."""
        tree = self.tree
        way = tree.part.a[part * PART + WAY]
        if way == TOPIC:
            pattern, exact = self.topics.pattern(value)
            return f"TOPIC('{pattern.decode()}')" + ("" if exact else " and below")
        dimension = tree.part.a[part * PART + BY]
        where, raw = self.facts.name(dimension)
        name = raw.decode() if raw else HEADERS[where]
        if where == CONTEXT:
            name = f"ctx.{name}"
        if way == PRESENT:
            return f"{name} IS NOT NULL"
        if way == PIECE:
            return f"{name} LIKE '%{self.predicates.pieces.text(value).decode(errors='replace')}%'"
        if way == EQUAL:
            return f"{name} = {self.describe_value(dimension, value)}"
        size = (value & 31) >> 1
        return f"{name} in cell {value >> 5} of size {1 << size}"

    def describe_value(self, dimension: int, bits: int) -> str:
        """A value that children are found by."""
        x = as_double(bits)
        sort = self.facts.kind(dimension)
        if sort in (STRING, BYTES):
            return repr((self.facts.texts.texts[int(x)] or b"").decode(errors="replace"))
        return f"{x:g}"
