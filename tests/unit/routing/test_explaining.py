"""What links were told of a filter, and why they were not."""

import pytest

from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL, Forwarding
from regraft.routing.reconfiguration import DeferredTimed, Strawman

S = 1_000_000_000


def f(pattern: str, selector: str = "") -> Filter:
    return Filter(pattern, False, selector)


def settle(one: Forwarding, now_ns: int = 0) -> None:
    one.announce(now_ns)
    while one.next_ns is not None and one.next_ns <= now_ns:
        one.announce(now_ns)


def with_links(*keys: int, covering: bool = True) -> Forwarding:
    one = Forwarding(Strawman(), covering)
    for key in keys:
        one.added(key, b"", 0)
    settle(one)
    return one


@pytest.mark.parametrize("covering", [True, False])
def test_told_pending_and_unknown(covering: bool) -> None:
    one = with_links(1, 2, covering=covering)
    assert one.explain(f("a")) == {1: ("not-held", None), 2: ("not-held", None)}
    one.hold(LOCAL, f("a"))
    assert one.explain(f("a")) == {1: ("pending", None), 2: ("pending", None)}
    settle(one)
    assert one.explain(f("a")) == {1: ("told", f("a")), 2: ("told", f("a"))}


def test_what_another_filter_covers() -> None:
    one = with_links(1)
    one.hold(LOCAL, f("a"))
    one.hold(LOCAL, f("a", "n > 5"))
    settle(one)
    assert one.explain(f("a", "n > 5")) == {1: ("covered", f("a"))}
    # Of a filter that nobody has, too: it would be.
    assert one.explain(f("a/b", "n > 7")) == {1: ("covered", f("a"))}
    before = one.snapshot()
    one.explain(f("b", "n > 7"))
    after = one.snapshot()
    del before["comparisons"], after["comparisons"]
    assert before == after


def test_what_only_the_neighbour_itself_wants() -> None:
    one = with_links(1, 2)
    one.received(1, [(1, f("a"))], [])
    settle(one)
    assert one.explain(f("a")) == {1: ("only-theirs", None), 2: ("told", f("a"))}


def test_what_a_reconfiguration_withholds_or_puts_off() -> None:
    one = with_links(1, 2)
    one.received(2, [(1, f("a"))], [])
    one.tag(1, [f("a")], b"r", None)
    settle(one)
    assert one.explain(f("a"))[1] == ("withheld", None)
    one.untag(1, b"r")
    settle(one)
    assert one.explain(f("a"))[1] == ("told", f("a"))
    one.added(3, b"", 0, dormant=True)
    settle(one)
    assert one.explain(f("a"))[3] == ("dormant", None)


def test_what_stays_told_after_a_loss() -> None:
    one = Forwarding(DeferredTimed(3000))
    for key in (1, 2):
        one.added(key, b"", 0)
    settle(one)
    one.received(2, [(1, f("a"))], [])
    settle(one)
    one.lost(2, b"rid", False, S)
    settle(one, S)
    assert one.explain(f("a")) == {1: ("kept-told", f("a"))}
    settle(one, 10 * S)
    assert one.explain(f("a")) == {1: ("not-held", None)}


def test_what_a_neighbour_has_not_offered() -> None:
    one = Forwarding(Strawman(), True)
    one.gated = True  # as in a network that routes by advertisements
    one.added(1, b"", 0)
    one.open_gate(1)
    one.complete_gate(1)
    one.hold(LOCAL, f("a"))
    settle(one)
    assert one.explain(f("a")) == {1: ("not-offered", None)}
    one.offered(1, [f("a/b")], [])
    settle(one)
    assert one.explain(f("a")) == {1: ("told", f("a"))}
