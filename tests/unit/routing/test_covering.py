"""The index of interests and the reduction, against the comparison of all with all."""

from collections.abc import Iterator
from itertools import permutations
from random import Random

import pytest

from regraft.model.message import Message, Value
from regraft.model.selector import Selector
from regraft.model.selector.cover import form_covers
from regraft.model.topic_cover import Levels, levels_cover, levels_of
from regraft.model.topics import matches
from regraft.routing import covering, spans
from regraft.routing.covering import CoverIndex, Interest
from regraft.routing.pattern_set import PatternSet
from regraft.routing.reduction import Change, Reduction
from regraft.routing.spans import Spans

PATTERNS = ("", "a", "a/b", "a/+", "+/b", "a/b/c", "a/#", "+", "$a", "b/+/c", "a/+/c")


def interest(pattern: str, text: str = "", exact: bool = False) -> Interest:
    return Interest(pattern, exact, Selector.parse(text) if text else None)


def selector_text(random: Random) -> str:
    """A selector that is often covered by another of these, or covers it."""
    tests = (
        lambda: f"s = '{random.choice('xyz')}'",
        lambda: f"s IN ('x', '{random.choice('yz')}')",
        lambda: f"p > {random.randrange(4)}",
        lambda: f"p BETWEEN {random.randrange(3)} AND {random.randrange(2, 6)}",
        lambda: f"p = {random.randrange(4)}",
        lambda: f"STARTS_WITH(s, '{random.choice(('', 'x', 'xy'))}')",
        lambda: f"{random.choice('sp')} IS {random.choice(('NOT NULL', 'NULL'))}",
        lambda: f"s LIKE '%{random.choice('xy')}'",
        lambda: f"NOT (p > {random.randrange(4)})",
        lambda: random.choice(("p + 1 > q", "s REGEXP 'x'", "f = TRUE", "p <> 1")),
        lambda: random.choice(("$topic = 'a/b'", "TOPIC('+/b')", "$topic > 'a'", "TOPIC('$a/#')")),
    )
    terms = [random.choice(tests)() for _ in range(random.choice((1, 1, 2, 2, 3)))]
    if random.random() < 0.15:
        return " OR ".join(terms)
    return " AND ".join(terms)


def some_interest(random: Random) -> Interest:
    text = selector_text(random) if random.random() < 0.85 else ""
    return interest(random.choice(PATTERNS), text, random.random() < 0.3)


def stock(random: Random) -> Interest:
    """As interests often are: one of many symbols, and a range of prices."""
    low = random.randrange(100)
    text = f"symbol = 'S{random.randrange(200)}' AND price BETWEEN {low} AND {low + 20}"
    if random.random() < 0.1:
        text = text.split(" AND ")[0]
    return interest(random.choice(("q/#", "q/nyse", "q/+/eq", "")), text)


def is_covered(number: int, held: dict[int, Interest]) -> bool:
    """By another number; of equal ones the smallest is not."""
    mine = held[number].form
    return any(
        other != number
        and form_covers(its.form, mine)
        and (other < number or not form_covers(mine, its.form))
        for other, its in held.items()
    )


def churn(random: Random, steps: int, crowd: int) -> Iterator[tuple[str, int]]:
    """What to do with which number: it grows to a crowd, goes up and down, and to nothing."""
    held: list[int] = []
    free = list(range(3 * crowd))
    random.shuffle(free)
    for _ in range(steps):
        if held and (len(held) >= crowd or random.random() < 0.35):
            number = held.pop(random.randrange(len(held)))
            free.append(number)
            yield "remove", number
        else:
            number = free.pop(0)
            held.append(number)
            yield "add", number
    for number in held:
        yield "remove", number


def is_empty(index: CoverIndex) -> bool:
    kept = (index._groups, index._of_number, index._of_form, index._homes, index._posts)
    return not any((*kept, index._spans, list(index._patterns), len(index)))


# ------------------------------------------------------------------------ index


@pytest.mark.parametrize(("seed", "few"), [(1, 32), (2, 1)])
def test_the_index_finds_what_comparing_all_finds(
    seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covering, "FEW", few)
    monkeypatch.setattr(covering, "PATTERNS_MAX", 4 if few == 1 else 256)
    random = Random(seed)
    pool = [some_interest(random) for _ in range(120)]
    index, held = CoverIndex(), {}
    for what, number in churn(random, 400, 70):
        if what == "add":
            held[number] = random.choice(pool)
            index.add(number, held[number])
        else:
            index.remove(number)
            del held[number]
        for asked in (random.choice(pool), *([held[number]] if what == "add" else [])):
            above = {n for n, its in held.items() if form_covers(its.form, asked.form)}
            below = {n for n, its in held.items() if form_covers(asked.form, its.form)}
            assert index.covering(asked) == above, asked
            assert index.covered_by(asked) == below, asked
    assert is_empty(index)


def test_few_are_compared() -> None:
    random = Random(3)
    index = CoverIndex()
    interests = [stock(random) for _ in range(1000)]
    for number, one in enumerate(interests):
        index.add(number, one)
    assert index.comparisons < 12 * len(interests)  # all with all would be a million
    before = index.comparisons
    found = 0
    for number in range(0, 1000, 10):
        index.remove(number)
        found += len(index.covering(interests[number]) | index.covered_by(interests[number]))
    assert index.comparisons - before < 100 * 20
    assert found > 25


def test_many_on_one_value_are_told_apart_by_another() -> None:
    random = Random(4)
    index = CoverIndex()
    for number in range(400):
        low = random.random() * 1000
        text = f"symbol = 'A' AND price BETWEEN {low} AND {low + random.random()}"
        index.add(number, interest("q", text))
    before = index.comparisons
    asked = interest("q", "symbol = 'A' AND price BETWEEN 500.1 AND 500.2")
    assert len(index.covering(asked)) <= index.comparisons - before < 20
    asked = interest("q", "symbol = 'A' AND price BETWEEN 500 AND 510")
    before = index.comparisons
    found = index.covered_by(asked)
    assert 0 < len(found) <= index.comparisons - before < 20


def test_equal_interests_are_compared_once() -> None:
    index = CoverIndex()
    for number in range(300):
        pattern, exact = (("a/#", True), ("a", False), ("a/#", False))[number % 3]
        index.add(number, Interest(pattern, exact))
    index.add(300, interest("a/b"))
    assert index.comparisons < 10
    assert index.covering(interest("a/b")) == set(range(301))
    assert len({index.group_of(number) for number in range(300)}) == 1


def test_interests_that_are_equal_in_other_words_are_one_group() -> None:
    index = CoverIndex()
    texts = ("s LIKE 'a%b'", "STARTS_WITH(s, 'a') AND s LIKE '%b' AND s <> 'ab' OR s = 'ab'")
    for number, text in enumerate(texts):
        index.add(number, interest("", f"{text} OR s LIKE '%b' AND s LIKE 'a%b'"))
    index.add(2, interest("", "s LIKE 'a%b' AND STARTS_WITH(s, 'a')"))
    assert index.group_of(2) == index.group_of(0)
    index.remove(0)
    assert 2 in index.covering(interest("", "s = 'axb'"))


def test_what_takes_nothing_is_covered_by_all() -> None:
    index = CoverIndex()
    never = interest("a", "p > 1 AND p < 1")
    index.add(1, never)
    assert index.covering(never) == {1}
    index.add(2, interest("b"))
    index.add(3, interest("c", "p = 1 AND $topic = 'd'"))
    assert index.covering(never) == {1, 2, 3}
    assert index.covered_by(interest("b")) == {1, 2, 3}
    reduction = Reduction(index)
    changes = [reduction.add(number) for number in (3, 1, 2)]
    assert reduction.shown == {2}
    assert [change.shown for change in changes] == [{3}, {1}, {2}]
    assert [change.hidden for change in changes] == [set(), {3}, {1}]


# -------------------------------------------------------------------- reduction


@pytest.mark.parametrize("seed", [5, 6])
def test_the_reduction_shows_what_nobody_covers(seed: int) -> None:
    random = Random(seed)
    pool = [some_interest(random) for _ in range(80)]
    index = CoverIndex()
    held: dict[int, Interest] = {}
    holders = {number: random.randrange(3) for number in range(200)}
    # For each holder, what all others hold.
    reductions = {holder: Reduction(index) for holder in range(3)}
    for what, number in churn(random, 150, 40):
        if what == "add":
            held[number] = random.choice(pool)
            index.add(number, held[number])
        for holder, reduction in reductions.items():
            if holder == holders[number]:
                continue
            shown = reduction.shown
            change = getattr(reduction, what)(number)
            assert reduction.shown == (shown | change.shown) - change.hidden
            assert not change.shown & shown and change.hidden <= shown
        if what == "remove":
            index.remove(number)
            del held[number]
        for holder, reduction in reductions.items():
            others = {n: its for n, its in held.items() if holders[n] != holder}
            assert reduction.shown == {n for n in others if not is_covered(n, others)}
    for reduction in reductions.values():
        assert not (reduction._members or reduction._parent or reduction._children)
        assert not reduction._stands


def test_no_message_gets_lost() -> None:
    random = Random(7)
    index = CoverIndex()
    reduction = Reduction(index)
    held = {number: some_interest(random) for number in range(150)}
    for number, one in held.items():
        index.add(number, one)
        reduction.add(number)
    for number in random.sample(sorted(held), 60):
        reduction.remove(number)
        index.remove(number)
        del held[number]
    assert len(reduction.shown) < len(held) / 2

    def takes(one: Interest, message: Message) -> bool:
        topic = matches(one.pattern, message.topic, one.exact)
        return topic and (one.selector is None or one.selector.matches(message))

    values: tuple[Value, ...] = (0, 1, 2.5, 3, "x", "xy", "y", True)
    for _ in range(300):
        attributes = {name: random.choice(values) for name in "spqf" if random.random() < 0.8}
        topic = random.choice(("a", "a/b", "a/b/c", "b", "b/a/c", "$a", "$a/b"))
        message = Message(topic, attributes=attributes)
        wanted = any(takes(one, message) for one in held.values())
        assert wanted is any(takes(held[number], message) for number in reduction.shown)


def test_the_smallest_number_stands_for_equal_ones() -> None:
    index = CoverIndex()
    reduction = Reduction(index)
    for number in (5, 7, 3):
        index.add(number, interest("a", "p > 1"))
    assert reduction.add(5) == Change(frozenset({5}), frozenset())
    assert reduction.add(7) == Change(frozenset(), frozenset())
    assert reduction.add(3) == Change(frozenset({3}), frozenset({5}))
    assert reduction.remove(7) == Change(frozenset(), frozenset())
    assert reduction.remove(3) == Change(frozenset({5}), frozenset({3}))
    assert reduction.remove(5) == Change(frozenset(), frozenset({5}))


def test_a_wide_interest_comes_and_goes() -> None:
    index = CoverIndex()
    reduction = Reduction(index)
    for number, text in enumerate(("p > 1", "p > 2", "p > 3", "s = 'x'")):
        index.add(number, interest("a", text))
        reduction.add(number)
    assert reduction.shown == {0, 3}
    index.add(9, interest(""))
    assert reduction.add(9) == Change(frozenset({9}), frozenset({0, 3}))
    before = index.comparisons
    assert reduction.remove(0) == Change(frozenset(), frozenset())
    assert reduction.remove(9) == Change(frozenset({1, 3}), frozenset({9}))
    assert index.comparisons - before < 16


def test_a_copy_goes_its_own_way() -> None:
    index = CoverIndex()
    reduction = Reduction(index)
    for number, text in enumerate(("p > 1", "p > 2", "p > 2", "s = 'x'")):
        index.add(number, interest("a", text))
        reduction.add(number)
    copy = reduction.copy()
    assert copy.shown == {0, 3} and set(copy.groups) == set(reduction.groups)
    copy.remove(0)
    assert 0 in reduction and 0 not in copy and 2 in copy
    assert (reduction.shown, copy.shown) == ({0, 3}, {1, 3})
    reduction.remove(1)
    assert 1 in copy
    assert copy.stands_for(index.group_of(2)) == 1
    assert reduction.stands_for(index.group_of(2)) is None
    assert sorted(index.members(index.group_of(1))) == [1, 2]


def test_infinity_is_a_number_too() -> None:
    index = CoverIndex()
    for number, text in enumerate(("p > 1", "p > 1 AND p <= 1.7976931348623157e308", "p < 3")):
        index.add(number, interest("a", text))
    assert index.covering(interest("a", "p > 2")) == {0}
    assert index.covering(interest("a", "p > 2 AND p < 3")) == {0, 1, 2}
    assert index.covering(interest("a/b", "p > 2 AND p < 1.7976931348623157e308")) == {0, 1}


def test_of_very_many_only_some_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "COMPARED_MAX", 10)
    index = CoverIndex()
    reduction = Reduction(index)
    for number in range(60):
        before = index.comparisons
        index.add(number, interest("a", f"p > {number * 7 % 60}"))
        reduction.add(number)
        assert index.comparisons - before <= 20
    held = {number: interest("a", f"p > {number * 7 % 60}") for number in range(60)}
    shown = reduction.shown
    assert len(shown) < 60  # more than need be, perhaps, but all that is wanted
    for one in held.values():
        assert any(form_covers(held[number].form, one.form) for number in shown)
    for number in range(60):
        reduction.remove(number)
        index.remove(number)
        del held[number]
        for one in held.values():
            assert any(form_covers(held[other].form, one.form) for other in reduction.shown)
    assert is_empty(index)


class Ring(CoverIndex):
    """An index that sees that each of three covers the next, and nothing else."""

    def group_of(self, number: int) -> int:
        return number

    def above(self, group: int) -> frozenset[int]:
        return frozenset({(group + 2) % 3})

    def below(self, group: int) -> frozenset[int]:
        return frozenset({(group + 1) % 3})


def test_in_a_ring_one_is_shown() -> None:
    for order in permutations(range(3)):
        for leaving in permutations(range(3)):
            reduction = Reduction(Ring())
            for number in order:
                reduction.add(number)
                assert reduction.shown
            for number in leaving[:2]:
                reduction.remove(number)
                assert reduction.shown


# ------------------------------------------------------------------------ parts


def test_patterns_that_cover_and_are_covered() -> None:
    random = Random(8)
    names = ("a", "b", "+", "", "$a")
    patterns = PatternSet()
    there: list[Levels] = []

    def some_levels() -> str:
        levels = [random.choice(names) for _ in range(random.randint(1, 4))]
        return "/".join((*levels, "#") if random.random() < 0.3 else levels)

    for _ in range(250):
        if there and random.random() < 0.4:
            patterns.remove(there.pop(random.randrange(len(there))))
        else:
            there.append(levels_of(some_levels(), random.random() < 0.5))
            patterns.add(there[-1])
        asked = levels_of(some_levels(), random.random() < 0.5)
        above, below = list(patterns.covering(asked)), list(patterns.covered_by(asked))
        assert len(above) == len(set(above)) and len(below) == len(set(below))
        assert set(above) == {one for one in there if levels_cover(one, asked)}
        assert set(below) == {one for one in there if levels_cover(asked, one)}
    for one in there:
        patterns.remove(one)
    assert not list(patterns) and not patterns._root.children


@pytest.mark.parametrize("unordered", [0, 200])
def test_spans_that_contain_and_are_contained(
    unordered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where many came before anybody searched, and are put in order bit by bit."""
    monkeypatch.setattr(spans, "BLOCK_MAX", 8)
    monkeypatch.setattr(spans, "ORDERED_AT_ONCE", 3)
    random = Random(9)
    found = Spans()
    there: dict[int, tuple[float, float]] = {}
    for step in range(1000):
        if there and (random.random() < 0.45 or step > 700):
            number = random.choice(list(there))
            found.remove(number)
            del there[number]
        elif step <= 700:
            low = random.randrange(30) / random.choice((1, 2))
            there[step] = (low, low + random.randrange(20))
            found.add(step, *there[step])
        if step < unordered:
            continue
        low, high = sorted((random.randrange(40), random.randrange(40)))
        assert found.containing(low, high) == {
            number for number, (a, b) in there.items() if a <= low and high <= b
        }
        assert found.contained(low, high) == {
            number for number, (a, b) in there.items() if low <= a and b <= high
        }
        some = range(max(step - 50, 0), step + 1)
        assert set(found.contained_of(some, low, high)) == found.contained(low, high) & set(some)
    assert len(found) == len(there)
