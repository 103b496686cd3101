"""Conjunctions: what a filter asks for, as terms in one array, and whether an event satisfies it.

    term     dimension, low, high      three doubles
             holds when low <= x[dimension] <= high; if low is NaN, when x[dimension] is none
             PREDICATE, number, -      a predicate of `predicates`
             PATTERN, number, -        a pattern of `topics` that matches the topic
    record   first term, terms * 2 + (whether its filter has others), filter, place

The place is known to `tree`. Terms of a live conjunction do not move.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, Reals
    from regraft.kernels.facts import BYTES, INFINITY, STRING, Facts
    from regraft.kernels.predicates import Predicates

    RANGE = 0
    TEXT = 1
    ON_TOPIC = 2
    PREDICATE = -1
    PATTERN = -2
    TERMS_MAX = 60
    PIECE_SHARE = 0.02

    def whole(x: float) -> int:
        """A double that holds an integer."""
        return int(x)


class Conjunctions:
    """All conjunctions, by number."""

    def __init__(self, facts: Facts, predicates: Predicates) -> None:
        self.facts = facts
        self.predicates = predicates
        self.terms = Reals()
        self.free_terms = [Ints() for _ in range(TERMS_MAX + 1)]
        self.records = Ints()
        self.node = Ints()
        self.used = Longs()  # bits of the terms that the way to its place went by
        self.next = Ints()  # the next conjunction of its filter
        self.free = Ints()
        self.count = 0
        self.top = 0
        self.pattern_stamp = Longs()  # the event whose topic it matched last
        self.pattern_share = Reals()
        self.gone = Ints()  # dimensions that nobody holds any more
        # The term that was chosen last, and the range to look at first.
        self.chosen = -1
        self.tested = False  # whether it has a predicate
        self.shares = Reals()  # of the terms of the conjunction that was weighed last
        self.quick_dimension = 0
        self.quick_low = 0.0
        self.quick_high = 0.0
        # Terms that are being gathered.
        self.draft = Reals()

    # ---------------------------------------------------------------------- make and drop

    def make(self, filter: int, wanted: list[Any], pattern: int, multiple: bool) -> int:
        """A conjunction of these terms (and a pattern, unless -1); -1 if it can never hold."""
        self.draft.n = 0
        possible = True
        for term in wanted:
            if not self.gather(term):
                possible = False
        if pattern >= 0:
            self.put(PATTERN, pattern, 0.0)
        n = self.draft.n // 3
        if not possible:
            for k in range(n):
                self.give_back(
                    self.draft.a[k * 3], self.draft.a[k * 3 + 1], self.draft.a[k * 3 + 2]
                )
            return -1
        first = self.take_terms(n)
        for k in range(n * 3):
            self.terms.a[first + k] = self.draft.a[k]
        return self.record(first, n * 2 + multiple, filter)

    def record(self, first: int, n: int, filter: int) -> int:
        """A number for it."""
        if self.free.n:
            self.free.n -= 1
            number = self.free.a[self.free.n]
        else:
            number = self.top
            self.top += 1
            self.records.reserve(self.top * 4)
            self.node.reserve(self.top)
            self.used.reserve(self.top)
            self.next.reserve(self.top)
        records = self.records.a
        records[number * 4] = first
        records[number * 4 + 1] = n
        records[number * 4 + 2] = filter
        self.used.a[number] = 0
        self.next.a[number] = -1
        self.node.a[number] = -1
        self.count += 1
        return number

    def take_terms(self, n: int) -> int:
        """Room for n terms."""
        free = self.free_terms[n]
        if free.n:
            free.n -= 1
            return free.a[free.n]
        first = self.terms.n
        self.terms.reserve(first + n * 3)
        self.terms.n = first + n * 3
        return first

    def gather(self, term: tuple[Any, ...]) -> bool:
        """Add a term to the draft; whether it can still hold."""
        kind = term[0]
        if kind == RANGE:
            _, where, name, sort, low, high = term
            dimension = self.facts.dimension(where, name, sort)
            self.facts.send_for(dimension)
            return self.narrow(dimension, low, high)
        if kind == TEXT:
            _, where, name, sort, text = term
            dimension = self.facts.dimension(where, name, sort)
            self.facts.send_for(dimension)
            number = float(self.facts.hold_text(dimension, text))
            self.put(dimension, number, number)
        else:
            self.put(PREDICATE, self.predicates.hold(term), 0.0)
        return True

    def narrow(self, dimension: int, low: float, high: float) -> bool:
        """Add a range, joined with the one that its dimension may have already."""
        draft = self.draft.a
        sort = self.facts.kind(dimension)
        if low == low and sort != STRING and sort != BYTES:
            for k in range(0, self.draft.n, 3):
                if draft[k] == dimension and draft[k + 1] == draft[k + 1]:
                    if draft[k + 1] < low:
                        draft[k + 1] = low
                    if draft[k + 2] > high:
                        draft[k + 2] = high
                    self.let_go(dimension)
                    return draft[k + 1] <= draft[k + 2]
        self.put(dimension, low, high)
        return low != low or low <= high

    def put(self, dimension: float, low: float, high: float) -> None:
        """One more term of the draft."""
        self.draft.push(dimension)
        self.draft.push(low)
        self.draft.push(high)

    def drop(self, number: int) -> None:
        """Forget a conjunction. What it alone asked about is in `gone` then."""
        first = self.records.a[number * 4]
        n = self.records.a[number * 4 + 1] >> 1
        terms = self.terms.a
        for k in range(n):
            i = first + k * 3
            self.give_back(terms[i], terms[i + 1], terms[i + 2])
        free = self.free_terms[n]
        free.push(first)
        self.free.push(number)
        self.count -= 1

    def give_back(self, dimension: float, low: float, high: float) -> None:
        """Let go of what a term holds."""
        number = whole(dimension)
        if number >= 0:
            sort = self.facts.kind(number)
            if low == high and sort in (STRING, BYTES):
                self.facts.release_text(number, whole(low))
            self.let_go(number)
        elif number == PREDICATE:
            for given in self.predicates.release(whole(low)):
                self.let_go(given)

    def let_go(self, dimension: int) -> None:
        """One term less speaks of a dimension."""
        if self.facts.release(dimension):
            self.gone.push(dimension)

    # ---------------------------------------------------------------------- ask

    def verify(self, number: int) -> bool:
        """Whether every term holds."""
        i = self.records.a[number * 4]
        end = i + (self.records.a[number * 4 + 1] >> 1) * 3
        x = self.facts.x.a
        terms = self.terms.a
        while i < end:
            dimension = whole(terms[i])
            low = terms[i + 1]
            if dimension >= 0:
                value = x[dimension]
                if not (low <= value and value <= terms[i + 2]) and (low == low or value == value):
                    return False
            elif dimension == PREDICATE:
                if not self.predicates.holds(whole(low)):
                    return False
            elif self.pattern_stamp.a[whole(low)] != self.facts.now:
                return False
            i += 3
        return True

    def share_of(self, i: int) -> float:
        """The estimated share of events that the index reaches by the term that stands at i."""
        dimension = whole(self.terms.a[i])
        low = self.terms.a[i + 1]
        if dimension >= 0:
            return self.facts.share(dimension, low, self.terms.a[i + 2])
        number = whole(low)
        if dimension == PATTERN:
            return self.pattern_share.a[number]
        dimension = self.predicates.dimension.a[number]
        if dimension == 0:
            return 1.0
        share = self.facts.presence(dimension)
        if self.predicates.piece.a[number] >= 0:
            share *= PIECE_SHARE
        return share

    def weigh(self, number: int) -> None:
        """Estimate the shares of all its terms, for `choose` and `look_first`."""
        first = self.records.a[number * 4]
        n = self.records.a[number * 4 + 1] >> 1
        self.shares.reserve(n)
        self.tested = False
        for k in range(n):
            self.shares.a[k] = self.share_of(first + k * 3)
            if self.terms.a[first + k * 3] == PREDICATE:
                self.tested = True

    def choose(self, number: int, used: int) -> float:
        """Choose the most selective term that is not used; its share, and `chosen`."""
        n = self.records.a[number * 4 + 1] >> 1
        best = 2.0
        self.chosen = -1
        for k in range(n):
            if used >> k & 1:
                continue
            share = self.shares.a[k]
            if share < best:
                best = share
                self.chosen = k
        return best

    def look_first(self, number: int, used: int, given: int) -> None:
        """Find the range that is best looked at first, when the terms in `used` are known.

        `given` is a dimension that is known to be there.
        """
        first = self.records.a[number * 4]
        n = self.records.a[number * 4 + 1] >> 1
        terms = self.terms.a
        best = 2.0
        self.quick_dimension = 0
        self.quick_low = -INFINITY
        self.quick_high = INFINITY
        for k in range(n):
            i = first + k * 3
            dimension = whole(terms[i])
            if dimension < 0:
                if dimension == PREDICATE and best > 1.0:
                    self.quick_dimension = self.predicates.dimension.a[whole(terms[i + 1])]
                continue
            low = terms[i + 1]
            if low != low or (used >> k & 1 and low == terms[i + 2]):
                continue
            share = self.shares.a[k]
            if dimension == given:
                share /= self.facts.presence(dimension)
            if share < best:
                best = share
                self.quick_dimension = dimension
                self.quick_low = low
                self.quick_high = terms[i + 2]
