"""Predicates that are more than a range: each is held once, and evaluated at most once per event.

    PREFIX  a string begins with a text
    AMONG   a value is one of several
    TEST    anything else: a tree of `selection`, which must be true, or must be false

A predicate about a string may have a *piece*, a text that the string must begin with or contain:
then the index reaches it by that.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints, Longs, Reals, Texts
    from regraft.kernels.envelope import Scan
    from regraft.kernels.facts import ANY, BYTES, STRING, Facts
    from regraft.kernels.patterns import begins
    from regraft.kernels.pieces import Pieces
    from regraft.kernels.selection import Test

    PREFIX = 3
    AMONG = 4
    TEST = 5


class Predicates:
    """All predicates in use, by number."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.pieces = Pieces()
        self.keys = Texts()  # what tells one predicate from another
        self.kind = Ints()
        self.stamp = Longs()  # the event it was last evaluated for
        self.truth = Ints()
        self.dimension = Ints()  # it cannot hold unless this is there; 0: no such thing
        self.piece = Ints()  # or -1
        self.wanted = Ints()
        self.price = Ints()
        self.objects: list[Any] = []
        self.cost = 0  # of all of them, for one event
        self.evaluated = 0
        if not cython.compiled:
            self.p: Any = None
        self.start = 0
        self.end = 0
        self.scan = Scan()

    def hold(self, term: tuple[Any, ...]) -> int:
        """The number of the predicate of a term, held once more."""
        key = term[1]
        known = self.keys.number(key)
        number = self.keys.add(key)
        if known >= 0:
            return number
        n = number + 1
        self.kind.reserve(n)
        self.stamp.reserve(n)
        self.truth.reserve(n)
        self.dimension.reserve(n)
        self.piece.reserve(n)
        self.wanted.reserve(n)
        self.price.reserve(n)
        if len(self.objects) < n:
            self.objects.append(None)
        self.kind.a[number] = term[0]
        self.stamp.a[number] = -1
        self.piece.a[number] = -1
        self.dimension.a[number] = 0
        self.price.a[number] = 1
        self.fill(number, term)
        self.cost += self.price.a[number]
        return number

    def fill(self, number: int, term: tuple[Any, ...]) -> None:
        """What a new predicate consists of."""
        kind = term[0]
        if kind == TEST:
            _, _, test, wanted, price, where, name, sort, piece, at_start = term
            self.objects[number] = test
            self.wanted.a[number] = wanted
            self.price.a[number] = price
            if where:
                dimension = self.facts.dimension(where, name, sort)
                self.dimension.a[number] = dimension
                if piece and at_start:
                    self.piece.a[number] = self.pieces.hold_prefix(dimension, piece)
                elif piece:
                    self.piece.a[number] = self.pieces.hold_literal(dimension, piece)
            return
        where, name = term[2], term[3]
        if kind == PREFIX:
            dimension = self.facts.dimension(where, name, STRING)
            self.dimension.a[number] = dimension
            self.objects[number] = term[4]
            self.piece.a[number] = self.pieces.hold_prefix(dimension, term[4])
        else:
            self.fill_among(number, where, name, term[4])

    def fill_among(
        self, number: int, where: int, name: bytes, items: list[tuple[int, Any]]
    ) -> None:
        """Values by their class, each class in order."""
        self.dimension.a[number] = self.facts.dimension(where, name, ANY)
        parts: list[Any] = []
        for sort in sorted({sort for sort, _ in items}):
            dimension = self.facts.dimension(where, name, sort)
            found = [value for kind, value in items if kind == sort]
            if sort in (STRING, BYTES):
                found = [float(self.facts.hold_text(dimension, text)) for text in found]
            values = Reals()
            for value in sorted(found):
                values.push(value)
            parts += [dimension, values]
        self.objects[number] = parts

    def release(self, number: int) -> list[int]:
        """Hold a predicate once less; the dimensions that it gives back."""
        if not self.keys.release(number):
            return []
        self.cost -= self.price.a[number]
        if self.piece.a[number] >= 0:
            self.pieces.release(self.piece.a[number])
        given = [self.dimension.a[number]] if self.dimension.a[number] else []
        if self.kind.a[number] == AMONG:
            parts = self.objects[number]
            for k in range(0, len(parts), 2):
                dimension = parts[k]
                values = parts[k + 1]
                sort = self.facts.kind(dimension)
                if sort in (STRING, BYTES):
                    for i in range(values.n):
                        self.facts.release_text(dimension, int(values.a[i]))
                given.append(dimension)
        self.objects[number] = None
        return given

    def begin(self, scan: Scan, p: Any, start: int, end: int) -> None:
        """The event that is asked about from now on."""
        self.scan = scan
        self.p = p
        self.start = start
        self.end = end

    def holds(self, number: int) -> bool:
        """Whether a predicate holds for the event."""
        now = self.facts.now
        if self.stamp.a[number] != now:
            self.stamp.a[number] = now
            self.truth.a[number] = self.evaluate(number)
        return self.truth.a[number] != 0

    def evaluate(self, number: int) -> bool:
        """Find out."""
        self.evaluated += 1
        dimension = self.dimension.a[number]
        x = self.facts.x.a[dimension]
        if x != x:
            return False
        kind = self.kind.a[number]
        if kind == TEST:
            test: Test = self.objects[number]
            return test.evaluate(self.scan, self.p, self.start, self.end) == self.wanted.a[number]
        if kind == PREFIX:
            at = self.facts.at.a[dimension]
            return begins(self.p, at, self.facts.end.a[dimension], self.objects[number])
        return self.among(self.objects[number])

    def among(self, parts: list[Any]) -> bool:
        """Whether one of the dimensions has one of its values."""
        for k in range(0, len(parts), 2):
            dimension = parts[k]
            values: Reals = parts[k + 1]
            x = self.facts.x.a[dimension]
            low = 0
            high = values.n
            while low < high:
                middle = (low + high) // 2
                if values.a[middle] < x:
                    low = middle + 1
                else:
                    high = middle
            if low < values.n and values.a[low] == x:
                return True
        return False
