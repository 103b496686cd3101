"""The matrix misses no conjunction that holds, and names few others, compiled and interpreted."""

import random
from math import inf, isnan, nan, nextafter
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import arrays, matrix

TWINS = kernels.load_interpreted()
BOTH = pytest.mark.parametrize(
    ("array", "module"),
    [(arrays, matrix), (TWINS["arrays"], TWINS["matrix"])],
    ids=["in use", "interpreted"],
)
ANY, BOOLEAN, NUMBER, STRING, BYTES, TIMESTAMP = range(6)
SLOTS = 4096

Term = tuple[int, float, float]


def holds(conjunction: list[Term], event: list[float]) -> bool:
    """What the matrix must not miss."""
    return all(
        dimension < 0
        or (isnan(event[dimension]) if isnan(low) else low <= event[dimension] <= high)
        for dimension, low, high in conjunction
    )


class Held:
    """A matrix, and what is in it."""

    def __init__(self, array: ModuleType, module: ModuleType) -> None:
        self.array = array
        self.terms = array.Reals()
        self.matrix = module.Matrix(self.terms)
        self.n = 0
        self.live: dict[int, tuple[int, list[Term]]] = {}  # by owner: the slot, the terms
        self.slots: set[int] = set()

    def reals(self, values: list[float]) -> Any:
        reals = self.array.Reals()
        for value in values:
            reals.push(value)
        return reals

    def learn(self, dimension: int, sort: int, sample: list[float]) -> None:
        self.matrix.learn(dimension, sort, self.reals(sample), len(sample))

    def add(self, owner: int, conjunction: list[Term]) -> int:
        for term in conjunction:
            for value in term:
                self.terms.push(value)
        slot: int = self.matrix.add(owner, self.n, len(conjunction))
        self.n += len(conjunction)
        assert slot not in self.slots
        self.slots.add(slot)
        self.live[owner] = slot, conjunction
        return slot

    def remove(self, owner: int) -> None:
        slot, _ = self.live.pop(owner)
        self.matrix.remove(slot)
        self.slots.remove(slot)

    def find(self, event: list[float]) -> list[int]:
        out = self.array.Ints()
        self.matrix.find(self.reals(event), out)
        found: list[int] = out.items()
        return found

    def check(self, event: list[float]) -> list[int]:
        """Candidates are there, each once, in order of slots, and none that holds is missing."""
        found = self.find(event)
        slots = [self.live[owner][0] for owner in found]
        assert slots == sorted(set(slots))
        true = {owner for owner, (_, terms) in self.live.items() if holds(terms, event)}
        assert true <= set(found)
        assert self.matrix.count == len(self.live)
        return found


EDGY = [-inf, -1e308, -1.0, -5e-324, -0.0, 0.0, 5e-324, 0.5, 1.0, 7.0, 1e18, 1e308, inf]


def a_value(choice: random.Random, sort: int) -> float:
    if sort == BOOLEAN:
        return float(choice.randrange(2))
    if sort in (STRING, BYTES):
        return float(choice.choice([-1, choice.randrange(4), choice.randrange(40)]))
    return choice.choice([choice.choice(EDGY), choice.random(), float(choice.randrange(-3, 4))])


def a_term(choice: random.Random, dimension: int, sort: int) -> Term:
    if choice.random() < 0.1:
        return dimension, nan, nan
    if choice.random() < 0.05:
        return -1, choice.random(), choice.random()
    low, high = a_value(choice, sort), a_value(choice, sort)
    if choice.random() < 0.2:
        high = low
    elif choice.random() < 0.3:
        low = -inf
    elif choice.random() < 0.3:
        high = choice.choice([inf, nextafter(high, -inf)])
    if low > high and choice.random() < 0.95:  # the rest can never hold
        low, high = high, low
    return dimension, low, high


SORTS = [ANY, BOOLEAN, NUMBER, STRING, BYTES, TIMESTAMP, NUMBER, NUMBER, NUMBER]


def a_conjunction(choice: random.Random) -> list[Term]:
    dimensions = choice.choices(range(len(SORTS)), k=choice.randint(0, 4))
    return [a_term(choice, dimension, SORTS[dimension]) for dimension in dimensions]


def an_event(choice: random.Random) -> list[float]:
    return [nan if choice.random() < 0.2 else a_value(choice, sort) for sort in SORTS]


def learn_all(held: Held, choice: random.Random) -> None:
    samples: list[list[float]] = [
        [a_value(choice, NUMBER) for _ in range(200)],
        [],
        [5.0, -0.0, 0.0, nan, inf, -inf, 5.0, 5.0],
        [inf, -inf],
    ]
    numbers = iter(samples)
    for dimension, sort in enumerate(SORTS):
        assert not held.matrix.knows(dimension)
        sample = next(numbers) if sort == NUMBER else [choice.random() for _ in range(40)]
        held.learn(dimension, sort, sample)
        assert held.matrix.knows(dimension)


@BOTH
def test_none_that_holds_is_missed(array: ModuleType, module: ModuleType) -> None:
    choice = random.Random(1)
    held = Held(array, module)
    learn_all(held, choice)
    for owner in range(3000):
        held.add(owner, a_conjunction(choice))
        if owner % 50 == 0:
            held.check(an_event(choice))
    for dimension, sort in enumerate(SORTS):  # learning again changes the cells, not what is true
        if sort == NUMBER:
            held.learn(dimension, sort, [a_value(choice, sort) for _ in range(100)])
        held.check(an_event(choice))
    for owner in choice.sample(range(3000), 3000):
        held.remove(owner)
        if owner % 50 == 0:
            held.check(an_event(choice))
    assert held.find(an_event(choice)) == []


def test_both_forms_find_the_same() -> None:
    forms = [Held(arrays, matrix), Held(TWINS["arrays"], TWINS["matrix"])]
    for held in forms:
        learn_all(held, random.Random(2))
    choice = random.Random(3)
    for owner in range(6000):
        conjunction = a_conjunction(choice)
        assert len({held.add(owner, conjunction) for held in forms}) == 1
        if choice.random() < 0.4:
            gone = choice.choice(list(forms[0].live))
            for held in forms:
                held.remove(gone)
        if owner % 20 == 0:
            event = an_event(choice)
            assert forms[0].find(event) == forms[1].find(event)
            assert forms[0].matrix.size() == forms[1].matrix.size()


@BOTH
def test_churn_over_several_blocks(array: ModuleType, module: ModuleType) -> None:
    choice = random.Random(4)
    held = Held(array, module)
    for dimension in range(3):
        held.learn(dimension, NUMBER, [choice.random() for _ in range(100)])

    def add(owner: int) -> int:
        low = choice.random() * 0.7
        return held.add(owner, [(owner % 3, low, low + 0.3), ((owner + 1) % 3, 0.0, low)])

    def check() -> None:
        held.check([choice.choice([nan, choice.random()]) for _ in range(3)])

    slots = [add(owner) for owner in range(3 * SLOTS)]
    assert slots == list(range(3 * SLOTS))
    full = held.matrix.size()
    check()
    for owner in range(SLOTS, 2 * SLOTS):  # a block that is empty is freed, and used again
        held.remove(owner)
    check()
    assert held.matrix.size() < full * 0.7
    assert {add(owner) >> 12 for owner in range(SLOTS, 2 * SLOTS)} == {1}
    check()
    assert held.matrix.size() == full
    for owner in choice.sample(range(3 * SLOTS), 3000):
        held.remove(owner)
        if owner % 1000 == 0:
            check()
    slots = [add(owner) for owner in range(3 * SLOTS, 3 * SLOTS + 3000)]
    assert slots == sorted(slots) and slots[-1] < 3 * SLOTS  # the lowest block first
    check()
    for owner in list(held.live):
        held.remove(owner)
    assert held.matrix.count == 0
    assert held.matrix.size() < 2000
    assert add(0) == 0


@BOTH
def test_few_soiled_slots_wait(array: ModuleType, module: ModuleType) -> None:
    held = Held(array, module)
    held.learn(0, BOOLEAN, [])
    for owner in range(SLOTS):
        held.add(owner, [(0, 1.0, 1.0)])
    for owner in range(63):
        held.remove(owner)
    assert held.add(SLOTS, [(0, 0.0, 0.0)]) == SLOTS
    held.remove(63)
    assert held.add(SLOTS + 1, [(0, 0.0, 0.0)]) == 0
    assert held.check([0.0]) == [SLOTS + 1, SLOTS]
    assert held.check([1.0]) == [*range(64, SLOTS), SLOTS]  # too few in its block to have rows


@BOTH
def test_false_candidates_are_few(array: ModuleType, module: ModuleType) -> None:
    choice = random.Random(5)
    held = Held(array, module)
    for dimension in range(12):
        sample = [choice.random() * 0.6 + more for _ in range(500) for more in (0.0, 0.4)]
        held.learn(dimension, NUMBER, sample)
    for owner in range(SLOTS):
        lows = [(d, choice.random() * 0.6) for d in choice.sample(range(12), 6)]
        held.add(owner, [(d, low, low + 0.4) for d, low in lows])
    candidates = true = 0
    for _ in range(15):
        event = [choice.random() for _ in range(12)]
        candidates += len(held.check(event))
        true += sum(holds(terms, event) for _, terms in held.live.values())
    assert 200 < true <= candidates < 2 * true
    assert held.matrix.size() < 150 * SLOTS


@BOTH
def test_cells_that_are_exact(array: ModuleType, module: ModuleType) -> None:
    held = Held(array, module)
    held.learn(0, NUMBER, [5.0])
    held.learn(1, BOOLEAN, [])
    held.learn(2, STRING, [])
    held.learn(3, ANY, [])
    kinds: list[list[Term]] = [
        [(0, -inf, nextafter(5.0, -inf))],
        [(0, 5.0, 5.0)],
        [(0, nextafter(5.0, inf), inf)],
        [(0, nan, 0.0)],
        [(1, 0.0, 0.0)],
        [(1, 1.0, 1.0), (1, 0.0, 1.0)],
        [(2, 3.0, 3.0)],
        [(2, -1.0, -1.0)],
        [(2, -inf, inf)],
        [(2, 6.0, 9.0)],
        [(3, nan, 0.0)],
        [(3, -inf, inf)],
        [(0, 6.0, 4.0)],
        [(0, -inf, inf), (0, nan, nan)],
    ]
    for owner in range(40 * len(kinds)):
        held.add(owner, kinds[owner % len(kinds)])
    for x in (-inf, 4.0, 5.0, 6.0, inf, nan):
        for y in (0.0, 1.0, nan):
            for z in (-1.0, 2.0, 3.0, 6.0, 7.0, nan):
                for any_at_all in (nan, 1.0):
                    event = [x, y, z, any_at_all]
                    found = held.check(event)
                    assert {owner % len(kinds) for owner in found} == {
                        k for k, terms in enumerate(kinds) if holds(terms, event)
                    }


@BOTH
def test_rows_only_for_what_many_use(array: ModuleType, module: ModuleType) -> None:
    held = Held(array, module)
    held.learn(0, BOOLEAN, [])
    bare = held.matrix.size()
    for owner in range(31):
        held.add(owner, [(0, 1.0, 1.0)])
    assert len(held.check([0.0])) == 31  # nothing is known of them
    without = held.matrix.size()
    held.add(31, [(0, 1.0, 1.0)])
    assert held.check([0.0]) == []
    assert held.matrix.size() > without
    for owner in range(24):
        held.remove(owner)
    assert held.check([0.0]) == []
    held.remove(24)
    assert len(held.check([0.0])) == 7
    for owner in range(25, 32):
        held.remove(owner)
    assert held.matrix.size() == bare
