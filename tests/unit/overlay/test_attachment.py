"""The rule of attachment, message by message; the test is everybody else."""

from __future__ import annotations

import pytest
from table import ME, Table, address, node

from regraft.errors import LocalError
from regraft.overlay.actions import Added, Dead, Dial, HangUp, Removed
from regraft.overlay.messages import NOBODY, Accept, Answer, Ask, Candidate, Leave, Reason, Status
from regraft.overlay.options import MS, Options
from regraft.overlay.place import link_id


def refusals(table: Table, key: int) -> list[Reason]:
    return [Reason(answer.reason) for answer in table.said(key, Answer)]


# ----------------------------------------------------------------- as a candidate


def test_a_root_with_nothing_outstanding_takes_whoever_asks() -> None:
    table = Table()
    key = table.connect(7)
    table.ask(key, 7, 3, replaces=b"lost link")
    assert table.said(key, Accept) == [Accept(3, node(ME), 0)]
    assert table.seen(Added) == [Added(key, node(7), b"lost link")]
    assert table.tree.children == [node(7)]


def test_a_child_passes_a_request_up_and_waits_for_the_answer() -> None:
    table = Table()
    up = table.attached(9, 8)
    key = table.connect(7)
    table.ask(key, 7)
    assert table.said(up, Ask) == [Ask(node(7), 1, 1, False, b"", address(7))]
    assert not table.said(key, Accept)
    table.get(up, Answer(node(7), 1, True, 0, 2, ()))
    assert table.said(key, Accept) == [Accept(1, node(8), 2)]


def test_a_request_of_a_child_is_passed_both_ways() -> None:
    table = Table()
    up, down = table.attached(9, 8), table.child_below(7)
    table.ask(down, 3, 4, hops=1)
    assert table.said(up, Ask)[-1].hops == 2
    answer = Answer(node(3), 4, True, 0, 3, ())
    table.get(up, answer)
    assert table.said(down, Answer) == [answer]
    table.get(up, answer)
    assert table.said(down, Answer) == [answer]  # once


def test_an_answer_counts_only_by_the_link_that_the_request_went_by() -> None:
    table = Table()
    table.attached(9, 8)
    key, stranger = table.connect(7), table.connect(6)
    table.ask(key, 7)
    table.get(stranger, Answer(node(7), 1, True, 0, 2, ()))
    assert not table.said(key, Accept)


def test_the_own_request_that_comes_back_is_refused() -> None:
    table = Table()
    down = table.child(7)
    other = asking(table, 60)
    ask = table.asked(other)
    table.get(down, ask._replace(hops=2))
    assert table.said(down, Answer) == [Answer(node(ME), ask.number, False, Reason.OWN_TREE, 2, ())]


def asking(table: Table, number: int) -> int:
    """The overlay is a root and asks somebody."""
    table.tree.attach(address(number), table.now_ns)
    table.look()
    key = table.connect(number, dialled=True)
    assert table.said(key, Ask)
    return key


def test_a_root_that_asks_refuses_smaller_ids() -> None:
    table = Table()
    other, key = asking(table, 60), table.connect(7)
    table.ask(key, 7)
    assert refusals(table, key) == [Reason.BUSY]
    assert table.tree.snapshot()["asking"]
    table.get(other, Accept(table.asked(other).number, node(60), 0))
    assert table.tree.parent == node(60)


def test_a_root_that_asks_grants_larger_ids_and_gives_its_own_request_up() -> None:
    table = Table()
    other, key = asking(table, 60), table.connect(70)
    table.ask(key, 70)
    assert table.said(key, Accept)
    assert table.said(other, Leave) == [Leave(Reason.CANCELLED, NOBODY)]
    table.get(other, Accept(table.asked(other).number, node(60), 0))
    assert table.tree.parent is None
    assert table.said(other, Leave)[-1].reason == Reason.LATE
    assert table.seen(HangUp)[-1].key == other


def test_two_that_ask_each_other_by_one_connection() -> None:
    table = Table()
    key = asking(table, 60)
    number = table.asked(key).number
    table.ask(key, 60)
    assert table.tree.children == [node(60)]
    table.get(key, Answer(node(ME), number, False, Reason.BUSY, 0, ()))
    assert table.tree.children == [node(60)]
    assert table.tree.parent is None


def test_a_lost_parent_answers_what_was_passed_up() -> None:
    table = Table()
    up, key, down = table.attached(9, 8), table.connect(7), table.child_below(6)
    table.ask(key, 7)
    table.ask(down, 5, hops=1)
    table.close(up)
    assert refusals(table, key) == [Reason.LOST]
    assert refusals(table, down) == [Reason.LOST]
    table.get(key, Leave(Reason.CANCELLED, NOBODY))
    assert table.tree.snapshot()["passed"] == 0


def test_a_request_that_is_given_up_is_forgotten() -> None:
    table = Table()
    up, key = table.attached(9, 8), table.connect(7)
    table.ask(key, 7)
    table.get(key, Leave(Reason.CANCELLED, NOBODY))
    table.get(up, Answer(node(7), 1, True, 0, 2, ()))
    assert not table.said(key, Accept)


def test_a_request_that_nobody_answers_is_forgotten() -> None:
    table = Table()
    up, key = table.attached(9, 8), table.connect(7)
    table.ask(key, 7)
    for _ in range(10):
        table.after(450)
        table.tree.heard(up, table.now_ns)
    assert table.tree.parent == node(9)
    assert table.tree.snapshot()["passed"] == 0


def test_the_degree_is_bounded_unless_it_is_urgent() -> None:
    table = Table(max_degree=3)
    table.child(7)
    last = table.child(8)
    table.get(last, Status(node(ME), 1, 1, (), ()))
    key = table.connect(9)
    table.ask(key, 9)
    (answer,) = table.said(key, Answer)
    assert answer.reason == Reason.FULL
    assert [candidate.node for candidate in answer.candidates] == [node(7), node(8)]
    table.ask(key, 9, 2, urgent=True)
    assert table.said(key, Accept)
    assert table.tree.snapshot()["counters"]["urgent"] == 1


def test_a_place_that_was_taken_meanwhile_is_full() -> None:
    table = Table(max_degree=2)
    up, one, two = table.attached(9), table.connect(7), table.connect(6)
    table.ask(one, 7)
    table.ask(two, 6)
    table.get(up, Answer(node(7), 1, True, 0, 1, ()))
    table.get(up, Answer(node(6), 1, True, 0, 1, ()))
    assert table.said(one, Accept)
    assert refusals(table, two) == [Reason.FULL]


def test_a_request_may_not_climb_for_ever() -> None:
    table = Table(hops_max=4)
    table.attached(9)
    down = table.child_below(7)
    table.ask(down, 5, hops=4)
    assert refusals(table, down) == [Reason.TOO_FAR]


def test_a_request_that_makes_no_sense_is_refused() -> None:
    table = Table()
    up, key, down = table.attached(9), table.connect(7), table.child_below(6)
    table.ask(key, 5)  # not its own
    table.ask(up, 5)  # requests never come down
    table.ask(down, 6, 9)  # a child is no root
    assert refusals(table, key) == refusals(table, up) == refusals(table, down) == [Reason.UNKNOWN]


def test_a_child_that_asks_by_another_connection_has_lost_its_link() -> None:
    table = Table()
    old = table.child(7)
    new = table.connect(7)
    table.clear()
    table.ask(new, 7, 2)
    assert table.seen(Dead) == [Dead(old, link_id(node(7), node(ME), 1))]
    assert table.tree.children == [node(7)]
    kinds = [type(action) for action in table.actions if isinstance(action, Dead | Added)]
    assert kinds == [Dead, Added]


def test_of_two_requests_of_one_asker_the_newer_counts_whichever_comes_first() -> None:
    for first, second in ((1, 2), (2, 1)):
        table = Table()
        up = table.attached(9)
        keys = {number: table.connect(7) for number in (1, 2)}
        table.ask(keys[first], 7, first)
        table.ask(keys[second], 7, second)
        for number in (1, 2):
            table.get(up, Answer(node(7), number, True, 0, 1, ()))
        assert table.said(keys[2], Accept) and not table.said(keys[1], Accept)
        assert table.tree.children == [node(7)]


def test_a_late_request_of_a_child_does_not_end_its_link() -> None:
    table = Table()
    other = table.connect(7)
    link = table.connect(7)
    table.ask(link, 7, 5)
    table.ask(other, 7, 4)
    assert refusals(table, other) == [Reason.UNKNOWN]
    assert table.tree.children == [node(7)] and not table.seen(Dead)


def test_another_life_of_a_neighbour_ends_the_link_with_its_past() -> None:
    table = Table()
    old = table.child(7)
    table.clear()
    table.connect(7, life=2)
    assert [dead.key for dead in table.seen(Dead)] == [old]
    assert table.tree.children == []
    stale = table.connect(7, life=1)
    assert [hang.key for hang in table.seen(HangUp)] == [old, stale]


# -------------------------------------------------------------------- as an asker


def test_the_ends_of_a_link_name_it_alike() -> None:
    table = Table()
    key = asking(table, 60)
    number = table.asked(key).number
    table.get(key, Accept(number, node(60), 0))
    table.clear()
    table.close(key)
    assert table.seen(Dead) == [Dead(key, link_id(node(ME), node(60), number))]


def test_an_orphan_asks_at_once_and_names_the_lost_link() -> None:
    table = Table()
    up = table.attached(9, 8, 7)
    spare = table.connect(8, dialled=True)
    table.clear()
    table.close(up)
    (dead,) = table.seen(Dead)
    (ask,) = table.said(spare, Ask)
    assert (ask.asker, ask.replaces, ask.urgent) == (node(ME), dead.rid, False)
    table.get(spare, Accept(ask.number, node(7), 1))
    assert table.seen(Added) == [Added(spare, node(8), dead.rid)]
    assert table.tree.snapshot()["hops"] == 2


def test_an_acceptance_with_an_old_number_is_answered_with_leave() -> None:
    table = Table()
    key = asking(table, 60)
    table.get(key, Accept(table.asked(key).number - 1, node(60), 0))
    assert table.tree.parent is None
    assert table.said(key, Leave)[-1].reason == Reason.LATE


def test_an_acceptance_by_another_connection_is_answered_with_leave() -> None:
    table = Table()
    key, other = asking(table, 60), table.connect(61)
    table.get(other, Accept(table.asked(key).number, node(61), 0))
    assert table.tree.parent is None
    assert table.said(other, Leave)
    table.get(key, Accept(table.asked(key).number, node(60), 0))
    assert table.tree.parent == node(60)


def test_one_request_at_a_time_and_a_new_number_for_each() -> None:
    table = Table(seeds=(address(1), address(2)), survey_ms=0)
    assert [dial.address for dial in table.seen(Dial)] == [address(1), address(2)]
    one, two = table.connect(1, dialled=True), table.connect(2, dialled=True)
    assert len(table.said(one, Ask)) == 1 and not table.said(two, Ask)
    table.refuse(one, Reason.LEAVING)
    assert table.asked(two).number == table.asked(one).number + 1


def test_numbers_of_another_life_do_not_come_again() -> None:
    first = Table(seeds=(address(1),), survey_ms=0)
    number = first.asked(first.connect(1, dialled=True)).number
    assert number >> 32 == 1  # the incarnation


def test_who_was_full_is_asked_urgently_when_nobody_else_is_left() -> None:
    table = Table(seeds=(address(1), address(2)), survey_ms=0)
    one, two = table.connect(1, dialled=True), table.connect(2, dialled=True)
    table.refuse(one, Reason.FULL)
    assert not table.asked(two).urgent
    table.refuse(two, Reason.LEAVING)
    assert [ask.urgent for ask in table.said(one, Ask)] == [False, True]
    assert len(table.said(two, Ask)) == 1


def test_better_candidates_of_a_refusal_are_asked() -> None:
    table = Table(seeds=(address(1),), survey_ms=0)
    one = table.connect(1, dialled=True)
    table.refuse(one, Reason.FULL, Candidate(node(3), address(3), 1), NOBODY)
    assert table.seen(Dial)[-1].address == address(3)
    three = table.connect(3, dialled=True)
    assert table.said(three, Ask)


def test_who_was_busy_is_asked_again_in_a_moment() -> None:
    table = Table(seeds=(address(1),), survey_ms=0)
    one = table.connect(1, dialled=True)
    table.refuse(one, Reason.BUSY)
    assert table.tree.snapshot()["stage"] == "rest"
    table.after(60)
    assert len(table.said(one, Ask)) == 2


def test_no_answer_is_an_answer_after_a_while() -> None:
    table = Table(seeds=(address(1), address(2)), survey_ms=0)
    one, two = table.connect(1, dialled=True), table.connect(2, dialled=True)
    table.after(1000)
    assert table.said(one, Leave) == [Leave(Reason.CANCELLED, NOBODY)]
    assert table.said(two, Ask)


def test_a_newcomer_asks_the_closest() -> None:
    table = Table(seeds=(address(1), address(2)), survey_ms=150)
    one, two = table.connect(1, dialled=True), table.connect(2, dialled=True)
    assert not table.said(one, Ask) and not table.said(two, Ask)
    for key, ms in ((two, 5), (one, 20)):
        table.after(ms)
        table.echo(key)
    assert table.said(two, Ask) and not table.said(one, Ask)


def test_a_newcomer_does_not_wait_for_ever() -> None:
    table = Table(seeds=(address(1), address(2)), survey_ms=150)
    one = table.connect(1, dialled=True)
    table.after(149)
    assert not table.said(one, Ask)
    table.after(1)
    assert table.said(one, Ask)


def test_a_root_asks_for_other_trees_now_and_then() -> None:
    table = Table(seeds=(address(1),), survey_ms=0)
    table.tree.unreachable(address(1), table.now_ns)
    table.look()
    times: list[float] = []
    for _ in range(10):
        table.clear()
        begun_ns = table.now_ns
        while not table.seen(Dial):
            table.after(10)
        times.append((table.now_ns - begun_ns) / MS)
        table.tree.unreachable(address(1), table.now_ns)
        table.look()
    assert 125 <= times[0] <= 385
    assert all(2500 <= each <= 7510 for each in times[6:])


def test_a_node_that_knows_nobody_costs_nothing() -> None:
    assert Table().tree.next_ns is None


def test_a_node_does_not_join_itself() -> None:
    table = Table(seeds=("alias:1",), survey_ms=0)
    table.tree.connected(1, node(ME), 1, address(ME), True, table.now_ns, wanted="alias:1")
    table.tree.connected(2, node(ME), 1, address(ME), False, table.now_ns)
    table.look()
    assert [hang.key for hang in table.seen(HangUp)] == [1, 2]
    table.clear()
    table.after(60_000)
    assert not table.seen(Dial)


def test_a_seed_may_have_another_name_than_it_gives_itself() -> None:
    table = Table(seeds=("alias:1",), survey_ms=0)
    table.tree.connected(1, node(7), 1, address(7), True, table.now_ns, wanted="alias:1")
    table.look()
    (ask,) = table.said(1, Ask)
    table.refuse(1, Reason.LEAVING)
    assert len(table.seen(Dial)) == 1  # the same node is not asked by its other name
    assert ask.address == address(ME)


# ------------------------------------------------------------------------- people


def test_attach_leaves_the_parent_and_asks_the_new_one_first() -> None:
    table = Table()
    up = table.attached(9, 8)
    spare = table.connect(8, dialled=True)
    table.clear()
    table.tree.attach(address(20), table.now_ns)
    table.look()
    assert table.said(up, Leave) == [Leave(Reason.MOVED, NOBODY)]
    assert table.seen(Removed) == [Removed(up)]
    assert not table.seen(Dead)
    key = table.connect(20, dialled=True)
    assert table.said(key, Ask) and table.said(key, Ask)[0].replaces == b""
    assert not table.said(spare, Ask)


def test_who_moves_takes_nobody_until_it_is_there() -> None:
    """It is a root for a moment, but no tree of its own that others should join."""
    table = Table()
    table.attached(9, 8)
    table.tree.attach(address(20), table.now_ns, b"rid")
    table.look()
    early, late = table.connect(70), table.connect(71)
    table.ask(early, 70)  # it is still being dialled
    key = table.connect(20, dialled=True)
    assert table.asked(key).replaces == b"rid"
    table.ask(late, 71)
    assert refusals(table, early) == refusals(table, late) == [Reason.BUSY]
    assert not table.said(key, Leave)
    table.get(key, Accept(table.asked(key).number, node(8), 1))
    assert table.tree.parent == node(20)


def test_who_cannot_move_there_takes_others_again() -> None:
    table = Table()
    table.attached(9, 8)
    table.tree.attach(address(20), table.now_ns, b"rid")
    table.tree.unreachable(address(20), table.now_ns)
    key = table.connect(70)
    table.ask(key, 70)
    assert table.said(key, Accept)


def test_attach_falls_back_to_the_others() -> None:
    table = Table()
    table.attached(9, 8)
    spare = table.connect(8, dialled=True)
    table.tree.attach(address(20), table.now_ns)
    table.tree.unreachable(address(20), table.now_ns)
    table.look()
    assert table.said(spare, Ask)


def test_attach_refuses_what_cannot_be() -> None:
    table = Table()
    table.attached(9)
    with pytest.raises(LocalError, match="already-a-neighbour"):
        table.tree.attach(address(9), table.now_ns)
    with pytest.raises(LocalError, match="itself"):
        table.tree.attach(address(ME), table.now_ns)


def test_detach_sends_a_child_away_and_holds_it_down() -> None:
    table = Table()
    key = table.child(7)
    table.clear()
    table.tree.detach(node(7), table.now_ns)
    table.look()
    assert table.said(key, Leave) == [Leave(Reason.HELD_DOWN, NOBODY)]
    assert table.seen(Removed) == [Removed(key)]
    again = table.connect(7)
    table.ask(again, 7, 2)
    table.ask(again, 7, 3, urgent=True)
    assert refusals(table, again) == [Reason.HELD_DOWN] * 2
    with pytest.raises(LocalError, match="not-a-neighbour"):
        table.tree.detach(node(7), table.now_ns)
    table.after(1001)
    table.ask(again, 7, 4)
    assert table.said(again, Accept)


def test_a_child_that_is_sent_away_asks_others_first() -> None:
    table = Table()
    up = table.attached(9, 8)
    spare = table.connect(8, dialled=True)
    table.get(up, Leave(Reason.HELD_DOWN, NOBODY))
    assert table.seen(Removed) == [Removed(up)]
    assert table.said(spare, Ask)
    assert table.tree.snapshot()["held_down"] == [address(9)]


def test_a_node_that_leaves_takes_nobody_and_names_its_parent() -> None:
    table = Table(leave_ms=500)
    up, down = table.attached(9, 8), table.child_below(7)
    table.tree.leave(table.now_ns)
    key = table.connect(6)
    assert table.seen(HangUp)[-1].key == key
    table.after(500)
    heir = Candidate(node(9), address(9), 1)
    assert table.said(up, Leave) == table.said(down, Leave) == [Leave(Reason.LEAVING, heir)]
    assert table.tree.next_ns is None
    with pytest.raises(LocalError, match="not-in-the-network"):
        table.tree.leave(table.now_ns)


def test_the_heir_is_asked_first() -> None:
    table = Table()
    up = table.attached(9, 8)
    spare = table.connect(8, dialled=True)
    table.tree.heir(up, Candidate(node(20), address(20), 1))
    table.clear()
    table.close(up)
    assert table.seen(Removed) == [Removed(up)]
    assert table.seen(Dial) == [Dial(address(20))]
    assert not table.said(spare, Ask)
    table.tree.unreachable(address(20), table.now_ns)
    table.look()
    assert table.said(spare, Ask)


def test_the_heir_is_asked_again_while_it_is_busy() -> None:
    table = Table()
    up = table.attached(9, 8)
    heir, spare = table.connect(20, dialled=True), table.connect(8, dialled=True)
    table.tree.heir(up, Candidate(node(20), address(20), 1))
    table.close(up)
    for _ in range(3):
        table.refuse(heir, Reason.BUSY)
        table.after(200)
        assert not table.said(spare, Ask)
    table.get(heir, Accept(table.asked(heir).number, node(20), 0))
    assert table.tree.parent == node(20)


def test_an_heir_that_is_busy_for_long_is_given_up() -> None:
    table = Table()
    up = table.attached(9, 8)
    heir, spare = table.connect(20, dialled=True), table.connect(8, dialled=True)
    table.tree.heir(up, Candidate(node(20), address(20), 1))
    table.close(up)
    while not table.said(spare, Ask):
        table.refuse(heir, Reason.BUSY)
        table.after(200)
    assert len(table.said(heir, Ask)) > 3


def test_a_search_does_not_go_on_for_one_who_never_answers() -> None:
    table = Table()
    dead = table.connect(7)  # it had opened the connection, so it is given up late
    while not table.said(dead, Ask):
        table.after(100)
    other = table.connect(8)
    table.after(5_000)
    assert table.said(other, Ask)


def test_the_heir_itself_waits_for_the_others() -> None:
    table = Table()
    up = table.attached(9)
    spare = table.connect(7, dialled=True)
    table.get(up, Leave(Reason.LEAVING, Candidate(node(ME), address(ME), 1)))
    assert not table.said(spare, Ask)
    key = table.connect(6)
    table.ask(key, 6)
    assert table.said(key, Accept)


def test_flapping_is_held_down() -> None:
    table = Table()
    for number in range(3):
        key = table.connect(7)
        table.ask(key, 7, number)
        table.close(key)
    assert table.tree.snapshot()["held_down"] == [address(7)]
    key = table.connect(7)
    table.ask(key, 7, 9)
    assert refusals(table, key) == [Reason.HELD_DOWN]
    table.ask(key, 7, 10, urgent=True)
    assert table.said(key, Accept)


# --------------------------------------------------------------------------- bugs


def test_the_bug_no_guard_grants_anybody() -> None:
    table = Table(frozenset(["no-guard"]))
    other, key = asking(table, 60), table.connect(7)
    table.ask(key, 7)
    assert table.said(key, Accept)
    table.get(other, Accept(table.asked(other).number, node(60), 0))
    assert table.tree.parent == node(60)


def test_the_bug_stale_acceptance_takes_anything() -> None:
    table = Table(frozenset(["stale-acceptance"]))
    key = asking(table, 60)
    table.get(key, Accept(table.asked(key).number - 1, node(60), 0))
    assert table.tree.parent == node(60)


@pytest.mark.parametrize(
    "options",
    [{"max_degree": 1}, {"missed": 4}, {"beacon_ms": 0}, {"ask_ms": 1.5}, {"hold_down_ms": 40_000}],
)
def test_options_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(LocalError, match="overlay"):
        Options(**options)
