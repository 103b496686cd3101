"""The match index: sharing, links, moving, what it tells. Exactness is a matter of tests/fuzz."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import matching, plan
from regraft.model.message import Message, encode_envelope

TWINS = kernels.load_interpreted()
HERE = -(2**63)


class Both:
    """An index and the function that makes plans for it."""

    def __init__(self, matching_module: ModuleType, plan_module: ModuleType) -> None:
        self.index = matching_module.Index()
        self.plan_of = plan_module.plan_of

    def add(self, text: str, **where: Any) -> int:
        number: int = self.index.add(self.plan_of(text), **where)
        return number

    def match(self, topic: str = "t", **attributes: Any) -> list[int]:
        event = encode_envelope(Message(topic, attributes=attributes))
        return sorted(self.index.match(event))


@pytest.fixture(params=["in use", "interpreted"])
def both(request: pytest.FixtureRequest) -> Both:
    if request.param == "in use":
        return Both(matching, plan)
    return Both(TWINS["matching"], TWINS["plan"])


def test_equal_selectors_are_held_once(both: Both) -> None:
    number = both.add("a = 1 AND b > 2")
    assert both.add("b>2   AND a = 1.0") == number
    assert both.index.snapshot()["conjunctions"] == 1
    assert not both.index.release(number)
    assert both.match(a=1, b=3) == [number]
    assert both.index.release(number)
    assert both.match(a=1, b=3) == []


def test_a_name_that_was_unknown_may_be_asked_for_later(both: Both) -> None:
    both.add("color IS NOT NULL")
    assert len(both.match(n=8, color="red")) == 1
    both.add("n > 5")
    assert len(both.match(n=8, color="red")) == 2


def test_equal_predicates_are_evaluated_once_per_event(both: Both) -> None:
    for k in range(50):
        both.add(f"s REGEXP 'x+y' AND a = {k}")
        both.add(f"s REGEXP 'x+y' AND b = {k}")
    assert both.index.snapshot()["predicates"] == 1
    for k in range(20):
        assert len(both.match(s="an xxy", a=k, b=k)) == 2
    assert both.index.snapshot()["evaluated"] == 20


def test_a_link_is_reached_by_its_first_hit(both: Both) -> None:
    """In an inner node it is enough to know that a link wants the event."""
    first, second = both.add("a = 1 AND b = 1"), both.add("a = 1 AND c = 1")
    here = both.add("a = 1")
    both.index.set_links(first, 0b01)
    both.index.set_links(second, 0b01)
    both.index.set_links(here, HERE | 0b01)
    found = both.match(a=1, b=1, c=1)
    assert here in found  # somebody on this node wants to know
    assert len(found) <= 2
    both.index.set_links(second, 0b11)
    found = both.match(a=1, c=1)
    assert set(found) == {here, second}  # the second link was not reached by anything else


def test_many_links_cost_no_verification_once_reached(both: Both) -> None:
    for k in range(200):
        both.index.set_links(both.add(f"a < {k + 10}"), 1)
    assert len(both.match(a=1)) == 1


def test_selectors_that_explode_are_evaluated_directly(both: Both) -> None:
    text = " AND ".join(f"(a{k} = 1 OR b{k} = 1)" for k in range(12))
    number = both.add(f"c = 5 AND {text}")
    assert both.index.snapshot()["conjunctions"] <= 16
    event = {f"{'ab'[k % 2]}{k}": 1 for k in range(12)}
    assert both.match(c=5, **event) == [number]
    assert both.match(c=4, **event) == []
    assert both.match(c=5, **{**event, "a0": 2}) == []


def test_lists_of_frequent_values_do_not_multiply(both: Both) -> None:
    known = [both.add(f"{name} = 99") for name in "abc"]  # so that values are observed
    for k in range(1024):  # all values are frequent: one does not make the others rare
        both.match(a=k // 8 % 16, b=k // 8 % 16, c=k // 8 % 16)
    values = ", ".join(map(str, range(16)))
    number = both.add(" AND ".join(f"{name} IN ({values})" for name in "abc"))
    assert both.index.snapshot()["conjunctions"] <= len(known) + 16
    assert both.match(a=1, b=2, c=3) == [number]


def test_what_can_never_hold_takes_no_place(both: Both) -> None:
    for text in ("a > 5 AND a < 3", "FALSE", "a = 1 AND a = 2", "a > TRUE"):
        both.add(text)
    assert both.index.snapshot()["conjunctions"] == 0
    assert both.match(a=4) == []


def test_a_hot_value_moves_what_was_reached_by_it(both: Both) -> None:
    """What was the rarest term when it came is the most frequent later."""
    for k in range(64):  # `a` is rare at first, `b` is not
        both.match(a=f"v{k}", b=f"w{k % 2}")
    numbers = [both.add(f"a = 'hot' AND b = 'w{k}'") for k in range(100)]
    before = both.index.snapshot()["moved"]
    for k in range(1500):
        both.match(a="hot", b=f"x{k}")
    assert both.index.snapshot()["moved"] > before
    assert both.match(a="hot", b="w7") == [numbers[7]]


def test_an_event_waits_for_a_bounded_number_of_moves(both: Both) -> None:
    """Thousands move, and fill buckets that have to be split, several at about the same time."""
    hot, rare = 9, 8
    filters = {}
    for k in range(250 * hot):
        terms = f"a = 'hot{k % hot}' AND b = 'rare{k // hot % rare}' AND d = {k}"
        filters[k] = both.add(terms)
    most = dict.fromkeys(("reviewed", "moved", "placed"), 0)
    for k in range(2700):
        before = both.index.snapshot()
        both.match(a=f"hot{k % hot}", b=f"x{k}", d=-1000 - k)
        after = both.index.snapshot()
        most = {name: max(most[name], after[name] - before[name]) for name in most}
    assert after["moved"] > rare * 257  # all of these buckets were filled
    assert most["reviewed"] == most["moved"] == 16
    assert 200 < most["placed"] <= 300  # one of them was split after one event
    for k in range(0, 250 * hot, 97):
        event = {"a": f"hot{k % hot}", "b": f"rare{k // hot % rare}", "d": k}
        assert both.match(**event) == [filters[k]]


def test_what_a_name_leads_to_is_not_moved_to_the_same_place(both: Both) -> None:
    names = [f"q{k}" for k in range(30)]
    for name in names:
        both.add(f"{name} BETWEEN -2 AND -1")
    for k in range(1000):
        both.match(**{names[k * 7 % 30]: k})  # each name is seen to be rare
    for k in range(6000):  # so it is what leads to these, while they are few
        both.add(f"{names[k % 30]} BETWEEN {k} AND {k + 1}")
    for k in range(11_000):
        both.match(**{names[k % 30]: 7000 + k % 5})
    counts = both.index.snapshot()
    assert counts["reviewed"] > 0
    assert counts["moved"] < 100


def test_it_tells_what_it_holds(both: Both) -> None:
    both.add("symbol = 'ACME' AND price > 5")
    both.add("name LIKE '%needle%'")
    both.add("n BETWEEN 1 AND 2", pattern=b"a/+", exact=True)
    for k in range(20):  # a few plain ones would be looked at for every event
        both.add(f"symbol = 'S{k}'")
    for _ in range(3):
        both.match(symbol="ACME", price=7, name="a needle")
    counts = both.index.snapshot()
    assert (counts["filters"], counts["events"], counts["patterns"]) == (23, 3, 1)
    hottest = {row["predicate"]: row for row in both.index.hottest(10)}
    assert hottest["symbol = 'ACME'"]["events"] == 3
    assert "name LIKE '%needle%'" in hottest
    assert both.index.hottest(1) != []


def test_ranges_are_found_in_their_cells(both: Both) -> None:
    numbers = {both.add(f"p BETWEEN {k} AND {k + 3}"): k for k in range(600)}
    for x in range(0, 606, 5):
        assert both.match(p=x) == sorted(n for n, k in numbers.items() if k <= x <= k + 3)
