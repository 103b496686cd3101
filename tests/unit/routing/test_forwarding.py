"""What neighbours are told, step by step."""

import gc
import weakref

import pytest

from regraft.errors import PeerError
from regraft.limits import Limits
from regraft.routing.forwarding import LOCAL, Announcement, Filter, Forwarding
from regraft.routing.reconfiguration import DeferredTimed, Strawman

S = 1_000_000_000


def f(pattern: str, selector: str = "", exact: bool = False) -> Filter:
    return Filter(pattern, exact, selector)


def all_said(one: Forwarding, now_ns: int = 0) -> list[Announcement]:
    """All that is said until there is nothing left to do."""
    said = one.announce(now_ns)
    while one.next_ns is not None and one.next_ns <= now_ns:
        said += one.announce(now_ns)
    return said


def with_links(*keys: int, **options: bool) -> Forwarding:
    one = Forwarding(Strawman(), **options)
    for key in keys:
        one.added(key, b"", 0)
    assert all_said(one) == [(key, [], [], True) for key in keys]
    return one


def test_without_links_filters_are_only_counted() -> None:
    one = Forwarding(Strawman())
    for _ in range(2):
        one.hold(LOCAL, f("a"))
    assert one.announce(0) == [] and one.next_ns is None
    assert one.snapshot()["indexed"] == 0 and one.local() == [f("a")]
    one.release(LOCAL, f("a"))
    assert one.local() == [f("a")]
    one.release(LOCAL, f("a"))
    assert one.local() == [] and one.snapshot()["filters"] == 0


def test_a_new_link_is_told_everything_and_then_that_this_was_all() -> None:
    one = Forwarding(Strawman())
    for text in ("p > 2", "p > 1", "s = 'x'"):
        one.hold(LOCAL, f("a", text))
    one.added(7, b"", 5)
    assert one.next_ns == 5
    assert all_said(one, 5) == [(7, [(1, f("a", "p > 1")), (2, f("a", "s = 'x'"))], [], True)]
    assert one.next_ns is None


def test_nobody_is_told_what_he_said_himself() -> None:
    one = with_links(1, 2)
    one.received(1, [(1, f("a"))], [])
    assert all_said(one) == [(2, [(1, f("a"))], [], False)]
    one.received(2, [(9, f("a"))], [])
    assert all_said(one) == [(1, [(1, f("a"))], [], False)]
    one.received(1, [], [1])
    assert all_said(one) == [(2, [], [1], False)]


def test_what_a_filter_covered_is_told_in_its_place() -> None:
    one = with_links(1)
    one.hold(LOCAL, f("a"))
    all_said(one)
    one.hold(LOCAL, f("a/b"))
    assert all_said(one) == []
    one.release(LOCAL, f("a"))
    assert all_said(one) == [(1, [(2, f("a/b"))], [1], False)]


def test_without_covering_each_is_told() -> None:
    one = with_links(1, covering=False)
    one.hold(LOCAL, f("a"))
    one.hold(LOCAL, f("a/b"))
    assert all_said(one) == [(1, [(1, f("a")), (2, f("a/b"))], [], False)]
    one.release(LOCAL, f("a"))
    assert all_said(one) == [(1, [], [1], False)]


def test_other_words_for_the_same_are_not_worth_a_word() -> None:
    one = with_links(1)
    one.hold(LOCAL, f("a", "p > 1"))
    all_said(one)
    one.hold(LOCAL, f("a/#", "p > 1 AND p > 0"))
    one.release(LOCAL, f("a", "p > 1"))
    assert all_said(one) == []
    assert one.rows()[1][1] == {1: f("a", "p > 1")}
    # Even if the new words come last, as long as nothing was said in between.
    one.release(LOCAL, f("a/#", "p > 1 AND p > 0"))
    one.hold(LOCAL, f("a", "p > 1 AND p > -1"))
    assert all_said(one) == []
    one.release(LOCAL, f("a", "p > 1 AND p > -1"))
    assert all_said(one) == [(1, [], [1], False)]


def test_what_comes_and_goes_at_once_is_not_mentioned() -> None:
    one = with_links(1)
    one.hold(LOCAL, f("a"))
    one.release(LOCAL, f("a"))
    assert all_said(one) == [] and one.snapshot()["filters"] == 0


def test_numbers_are_not_used_again() -> None:
    one = with_links(1)
    for number in range(1, 5):
        one.hold(LOCAL, f("a"))
        assert all_said(one) == [(1, [(number, f("a"))], [], False)]
        one.release(LOCAL, f("a"))
        assert all_said(one) == [(1, [], [number], False)]


def test_a_selector_that_cannot_be_read_takes_all_of_its_pattern() -> None:
    one = with_links(1)
    one.hold(LOCAL, f("a", "p > 1"))
    all_said(one)
    one.hold(LOCAL, f("a", "p >> 1"))
    assert all_said(one) == [(1, [(2, f("a", "p >> 1"))], [1], False)]
    assert one.snapshot()["unreadable"] == 1


def test_a_leaf_does_not_compare_what_it_is_told() -> None:
    one = with_links(1)
    one.received(1, [(number, f("a", f"p > {number}")) for number in range(50)], [])
    assert all_said(one) == []
    assert one.snapshot()["indexed"] == 0
    one.added(2, b"", 0)  # no leaf any more
    assert all_said(one)[-1][3] and one.rows()[2][1] == {1: f("a", "p > 0")}
    assert one.snapshot()["indexed"] == 50
    one.lost(2, b"", False, 0)
    assert all_said(one) == [] and one.snapshot()["indexed"] == 50  # for a while
    assert all_said(one, 100 * S) == [] and one.snapshot()["indexed"] == 0
    one.added(3, b"", 100 * S)
    assert all_said(one, 100 * S)[-1][3] and one.rows()[3][1] == {1: f("a", "p > 0")}


def test_a_link_that_comes_back_does_not_make_it_compare_again() -> None:
    one = with_links(1)
    for number in range(50):
        one.hold(LOCAL, f("a", f"p > {number}"))
    all_said(one)
    before = one.snapshot()["comparisons"]
    one.lost(1, b"r", False, 0)
    assert all_said(one) == []
    one.hold(LOCAL, f("b"))
    one.release(LOCAL, f("a", "p > 0"))
    one.added(2, b"r", 0)
    ((key, adds, removes, synced),) = all_said(one)
    assert (key, removes, synced) == (2, [], True)
    assert {told for _, told in adds} == {f("a", "p > 1"), f("b")}
    assert one.snapshot()["comparisons"] - before < 5


@pytest.mark.parametrize("covering", [True, False])
def test_work_is_spread(covering: bool) -> None:
    one = Forwarding(Strawman(), covering, work_max=4)
    for number in range(1000):
        one.hold(LOCAL, f("a", f"p = {number}"))
    one.added(1, b"", 0)
    most = 0
    calls = 0
    last: list[Announcement] = []
    while one.next_ns is not None:
        last = one.announce(0)
        most = max(most, *[len(adds) for _, adds, _, _ in last], 0)
        calls += 1
    assert calls >= 1000 // 200 and most <= 200
    assert last[-1][3] and len(one.rows()[1][1]) == 1000


def test_what_is_said_at_once_fits_into_a_frame() -> None:
    one = Forwarding(Strawman(), work_max=1000)
    for number in range(100):
        one.hold(LOCAL, f(f"{number}/{'é' * 400}", f"s = '{'é' * 3000}'"))
    one.added(1, b"", 0)
    said = all_said(one)
    assert [synced for *_, synced in said] == [False] * (len(said) - 1) + [True]
    for _, adds, _, _ in said:
        texts = "".join([told.pattern + told.selector for _, told in adds])
        assert len(texts.encode()) < Limits().control_frame_bytes - 4096
    assert sum(len(adds) for _, adds, _, _ in said) == 100


def test_of_lost_links_nothing_is_left_without_waiting() -> None:
    one = with_links(1, 2)
    one.received(1, [(1, f("a")), (2, f("b"))], [])
    one.hold(LOCAL, f("b"))
    all_said(one)
    one.lost(1, b"r", False, 0)
    assert all_said(one) == [(2, [], [1], False)]
    assert list(one.rows()) == [2]


def test_a_link_that_comes_right_after_a_loss_is_not_told_what_is_gone() -> None:
    one = with_links(1, 2)
    one.received(1, [(1, f("a")), (2, f("a/b"))], [])
    one.hold(LOCAL, f("a/b/c"))
    all_said(one)
    one.lost(1, b"r", False, 0)
    one.added(3, b"r", 0)
    said = all_said(one)
    assert (3, [(1, f("a/b/c"))], [], True) in said
    assert (2, [(2, f("a/b/c"))], [1], False) in said


def test_what_a_loss_causes_waits() -> None:
    one = Forwarding(DeferredTimed(3000))
    for key in (1, 2):
        one.added(key, b"", 0)
    one.received(1, [(1, f("a")), (2, f("b"))], [])
    one.hold(LOCAL, f("a/b"))
    all_said(one)
    one.lost(1, b"r", False, 1 * S)
    assert all_said(one, 1 * S) == [] and one.next_ns == 4 * S
    # A new link is told what is really held, and what came back stays told.
    one.added(3, b"r", 2 * S)
    assert all_said(one, 2 * S) == [(3, [(1, f("a/b"))], [], True)]
    one.received(3, [(1, f("b"))], [])
    assert all_said(one, 2 * S) == []
    assert all_said(one, 4 * S) == [(2, [(3, f("a/b"))], [1], False)]
    assert one.rows()[2][1] == {2: f("b"), 3: f("a/b")}
    assert one.next_ns is None or one.next_ns > 60 * S


def test_what_waits_is_not_told_anew() -> None:
    one = Forwarding(DeferredTimed(3000))
    for key in (1, 2):
        one.added(key, b"", 0)
    one.received(1, [(1, f("a/b"))], [])
    all_said(one)
    one.lost(1, b"r", False, 0)
    one.hold(LOCAL, f("a"))
    assert all_said(one) == [(2, [(2, f("a"))], [1], False)]
    one.release(LOCAL, f("a"))
    assert all_said(one) == [(2, [], [2], False)]


def test_a_node_without_links_does_not_wait() -> None:
    one = Forwarding(DeferredTimed(3000))
    one.added(1, b"", 0)
    one.received(1, [(1, f("a"))], [])
    all_said(one)
    one.lost(1, b"r", False, 0)
    assert all_said(one) == [] and one.next_ns is None
    assert one.snapshot()["waiting"] == 0 and one.snapshot()["filters"] == 0


def test_several_losses_wait_each_for_itself() -> None:
    one = Forwarding(DeferredTimed(3000))
    for key in (1, 2, 3):
        one.added(key, b"", 0)
    for key in (1, 2):
        one.received(key, [(1, f("a")), (2, f(str(key)))], [])
    all_said(one)
    one.lost(1, b"r", False, 0)
    one.lost(2, b"s", True, 1 * S)
    assert all_said(one, 1 * S) == []
    assert all_said(one, 3 * S) == [(3, [], [2], False)]
    assert all_said(one, 4 * S) == [(3, [], [1, 3], False)]
    assert one.snapshot()["filters"] == 0


def test_what_the_protocol_does_not_allow() -> None:
    one = with_links(1)
    one.received(1, [(1, f("a"))], [])
    for adds, removes in (([(1, f("b"))], []), ([], [7]), ([(2, f("a/#/b"))], [])):
        with pytest.raises(PeerError):
            one.received(1, adds, removes)


def test_the_planted_bug_unsubscribes_first() -> None:
    one = Forwarding(Strawman(), bugs=frozenset({"unsubscribe-first"}))
    one.added(1, b"", 0)
    one.hold(LOCAL, f("a"))
    one.hold(LOCAL, f("a/b"))
    all_said(one)
    one.release(LOCAL, f("a"))
    assert all_said(one) == [(1, [], [1], False), (1, [(2, f("a/b"))], [], False)]


def test_what_a_lost_link_held_falls_a_little_at_a_time() -> None:
    one = with_links(1, 2)
    count = 4000
    one.received(1, [(n, f(f"t{n}")) for n in range(count)], [])
    all_said(one)
    one.lost(1, b"", False, 0)
    assert one.snapshot()["to_compare"] == count and one.snapshot()["indexed"] == count
    removed = 0
    while one.next_ns == 0:
        before = one.snapshot()["indexed"]
        removed += sum(len(remove) for _, _, remove, _ in one.announce(0))
        assert before - one.snapshot()["indexed"] <= 400
    assert removed == count and one.snapshot()["filters"] == 0


def test_what_comes_back_while_it_falls_stays() -> None:
    one = with_links(1, 2)
    one.received(1, [(n, f(f"t{n}")) for n in range(2000)], [])
    all_said(one)
    one.lost(1, b"", False, 0)
    one.announce(0)
    one.hold(LOCAL, f("t7"))
    one.hold(LOCAL, f("t1999"))
    one.release(LOCAL, f("t1999"))
    all_said(one)
    assert list(one.rows()[2][1].values()) == [f("t7")]
    assert one.local() == [f("t7")] and one.snapshot()["filters"] == 1


def test_a_link_is_not_synced_while_it_is_not_known_what_is_wanted_here() -> None:
    one = Forwarding(Strawman())
    one.feeding = True
    one.added(7, b"", 0)
    one.hold(LOCAL, f("a"))
    assert one.announce(0) == [(7, [(1, f("a"))], [], False)]
    one.hold(LOCAL, f("b"))
    assert one.announce(0) == [(7, [(2, f("b"))], [], False)]
    one.feeding = False
    assert one.announce(0) == [(7, [], [], True)]


@pytest.mark.parametrize("covering", [True, False])
def test_nothing_of_a_lost_link_needs_a_garbage_collector(covering: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        one = Forwarding(DeferredTimed(1000), covering)
        one.added(1, b"", 0)
        one.added(2, b"", 0)
        for key in (1, 2):
            one.received(key, [(n, f("t", f"p > {n}")) for n in range(50)], [])
        all_said(one)
        traces = [weakref.ref(one._links[1]), weakref.ref(one._links[1].reduction)]
        one.lost(1, b"", False, 0)
        all_said(one, 0)
        all_said(one, 2 * S)
        assert [trace() for trace in traces] == [None, None]
        assert gc.collect() == 0
    finally:
        gc.enable()
