"""The cache of other nodes, its orders, hold-down; and the spares."""

from __future__ import annotations

from random import Random

import pytest
from table import ME, Table, address, node

from regraft.overlay.actions import Dial, HangUp
from regraft.overlay.candidates import Around, Candidates
from regraft.overlay.messages import Ask, Candidate, Reason, Status
from regraft.overlay.options import MS, Options


def cache(*numbers: int, **options: int) -> Candidates:
    known = Candidates(Options(**options))
    for number in numbers:
        known.note(Candidate(node(number), address(number), number), number)
    return known


def around(
    ancestors: tuple[int, ...] = (),
    siblings: tuple[int, ...] = (),
    spares: tuple[int, ...] = (),
    guests: tuple[int, ...] = (),
    better: tuple[int, ...] = (),
) -> Around:
    return Around(
        {address(number): above for above, number in enumerate(ancestors)},
        {address(number): node(number) for number in siblings},
        {address(number): number in spares for number in (*spares, *guests)},
        [address(number) for number in better],
    )


def order(known: Candidates, place: Around, now_ns: int = 1000) -> list[int]:
    return [each.node[0] for each in known.for_repair(place, now_ns)]


def test_open_spares_then_ancestors_siblings_others() -> None:
    known = cache(1, 2, 3, 4, 5, 6, 7, 8, 9)
    known.measured(address(8), 100)
    known.measured(address(9), 50)
    place = around(ancestors=(9, 5), siblings=(3, 2), spares=(5, 7), better=(6,))
    assert order(known, place) == [5, 7, 6, 9, 2, 3, 8, 1, 4]


def test_an_open_ancestor_comes_before_other_open_ones() -> None:
    known = cache(1, 2, 3)
    assert order(known, around(ancestors=(3,), spares=(1, 3), guests=(2,))) == [3, 1, 2]


def test_failed_own_and_held_ones_come_last() -> None:
    known = cache(1, 2, 3, 4)
    known.unreachable(address(1), 1000)
    known.own(address(2), 1000)
    known.hold(address(3), 1000)
    assert order(known, around()) == [4, 1, 2, 3]
    assert order(known, around(), 70_000 * MS) == [1, 2, 3, 4]


def test_a_search_asks_seeds_and_a_choice_of_others() -> None:
    known = cache(*range(1, 30))
    known.seed(address(1))
    known.seed("elsewhere:1")
    for number in range(2, 26):
        known.own(address(number), number * MS)
    found = known.for_search(4, Random(1), lambda address: False)
    assert sorted(found[:2]) == sorted(["elsewhere:1", address(1)])
    assert sorted(found[2:]) == sorted(address(number) for number in range(26, 30))


@pytest.mark.parametrize("seed", range(20))
def test_every_seed_has_its_turn_in_a_search(seed: int) -> None:
    known, random = cache(), Random(seed)
    for number in range(1, 14):
        known.seed(address(number))
    found: set[str] = set()
    for moment in range(1, 4):
        asked = known.for_search(4, random, address(1).__eq__)
        for name in asked:
            known.own(name, moment * MS)
        found.update(asked)
    assert found == {address(number) for number in range(2, 14)}


def test_the_cache_is_bounded_and_keeps_seeds() -> None:
    known = cache(cache=4)
    known.seed(address(100))
    for number in range(1, 10):
        known.note(Candidate(node(number), address(number), 0), number)
        known.unreachable(address(3), number)
    assert len(known) == 4
    assert known.get(address(100)) is not None
    assert known.get(address(9)) is not None
    assert known.get(address(3)) is None


def test_three_losses_in_half_a_minute_are_too_many() -> None:
    known = cache()
    assert [known.lost(address(1), at * MS) for at in (0, 1, 40_000)] == [False] * 3
    assert not known.lost(address(1), 41_000 * MS)
    assert known.lost(address(1), 42_000 * MS)
    assert known.is_held(address(1), 42_999 * MS)
    assert not known.is_held(address(1), 43_000 * MS)
    assert known.lost(address(1), 44_000 * MS)  # twice as long
    assert known.held(45_999 * MS) == [address(1)]
    for at in range(45, 60):
        known.lost(address(1), at * 1000 * MS)
    assert known.is_held(address(1), 88_000 * MS)
    assert not known.is_held(address(1), 89_001 * MS)
    known.release(address(1))
    assert not known.held(0)


# ----------------------------------------------------------------------- spares


def dialled(table: Table) -> list[str]:
    return [dial.address for dial in table.seen(Dial)]


def test_the_grandparent_is_a_spare_and_somebody_else() -> None:
    table = Table()
    up = table.attached(9, 8, 7)
    table.tell(up, 9, 8, 7, others=(ME, 5))
    table.after(500)
    assert dialled(table)[0] == address(8)
    assert len(dialled(table)) == 2


def test_children_of_the_root_keep_the_sibling_with_the_smallest_id() -> None:
    table = Table(spares=1)
    up = table.attached(9)
    table.tell(up, 9, others=(ME, 30, 5, 40))
    table.after(500)
    assert dialled(table) == [address(5)]


def test_who_is_below_is_no_spare() -> None:
    table = Table()
    up, down = table.attached(9), table.child_below(30)
    table.get(down, Status(node(9), 2, 2, (), (Candidate(node(31), address(31), 3),)))
    table.after(500)
    table.tree.heard(up, table.now_ns)
    assert dialled(table) == []


def test_a_spare_that_is_not_wanted_any_more_is_hung_up() -> None:
    table = Table(spares=1)
    up = table.attached(9, 8)
    table.after(500)
    old = table.connect(8, dialled=True)
    table.tell(up, 9, 7)
    for _ in range(8):
        table.after(250)
        for key in (up, old):
            table.tree.heard(key, table.now_ns)
    assert dialled(table)[:2] == [address(8), address(7)]
    assert [hang.key for hang in table.seen(HangUp)] == [old]


def test_a_spare_that_somebody_else_dialled_is_kept() -> None:
    table = Table()
    guest = table.connect(7)
    table.after(3000)
    assert table.tree.snapshot()["spares"] == [node(7)]
    table.close(guest)
    assert table.tree.snapshot()["spares"] == []


def test_a_fixed_parent_has_no_spares_beside_it() -> None:
    table = Table(parent=address(9))
    key = table.connect(9, dialled=True)
    table.after(150)
    ask = table.asked(key)
    table.refuse(key, Reason.FULL, Candidate(node(3), address(3), 1))
    assert [again.urgent for again in table.said(key, Ask)] == [False, True]
    assert ask.address == address(ME)
    table.after(400)
    assert dialled(table) == [address(9)]
