"""The checkers of networks see what they are there for; none of this needs a node."""

from __future__ import annotations

from typing import Any

import pytest

from regraft.model.message import Message
from regraft.simulate.checkers import (
    NEVER,
    Complaint,
    Filter,
    Key,
    Standing,
    Tree,
    canonical,
    covers,
    maximal,
    one_tree,
    symmetric,
    tables,
)
from regraft.simulate.deliveries import Deliveries, Publication, Sight, Subscription, Trouble

S = 1_000_000_000
A, B, C, D = (("a", 1), ("b", 1), ("c", 1), ("d", 1))
ALL = canonical("x", False, "")
SOME = canonical("x", False, "n > 5")


def standings(*links: tuple[Key, Key], root: Key = A) -> dict[Key, Standing]:
    """A tree by its links, from parent to child; wires are counted from 1."""
    found: dict[Key, dict[int, Key]] = {}
    parents: dict[Key, int] = {}
    for wire, (parent, child) in enumerate(links, 1):
        found.setdefault(parent, {})[wire] = child
        found.setdefault(child, {})[wire] = parent
        parents[child] = wire
    hops = {root: 0}
    for parent, child in links:
        hops[child] = hops.get(parent, 0) + 1
    return {
        key: Standing(f"id-{key[0]}", parents.get(key), mine, f"id-{root[0]}", hops[key])
        for key, mine in found.items()
    }


def tree(*links: tuple[Key, Key]) -> Tree:
    made = Tree()
    for key, standing in standings(*links).items():
        assert list(made.stand(key, standing, 0)) == []
    return made


def kinds(found: Any) -> list[str]:
    return [complaint.kind for complaint in found]


# ------------------------------------------------------------------------------- the tree


def test_a_ring_is_seen_when_it_closes() -> None:
    made = tree((A, B), (B, C))
    found = list(made.stand(A, Standing("id-a", 9, {1: B, 9: C}), 1))
    assert found == [Complaint("cycle", "a ring of parents: a#1 > c#1 > b#1 > a#1")]


def test_one_that_was_started_again_is_another_one() -> None:
    made = tree((A, B), (B, C))
    made.fall(A, 1)
    again = ("a", 2)
    assert list(made.stand(again, Standing("id-a", 9, {9: C}), 2)) == []


def test_links_stand_while_both_ends_say_so() -> None:
    made = tree((A, B), (B, C))
    assert set(made.since) == {1, 2}
    assert made.paths(A) == {A: (), B: ((1, B),), C: ((1, B), (2, C))}
    list(made.stand(C, Standing("id-c", None, {}), 5))
    assert made.until == {2: 5}
    assert made.paths(A) == {A: (), B: ((1, B),)}


def test_neighbourhood_must_be_mutual() -> None:
    fine = standings((A, B), (B, C))
    assert list(symmetric(fine)) == []
    assert kinds(symmetric({**fine, C: fine[C]._replace(links={})})) == ["symmetry"]
    assert kinds(symmetric({A: fine[A], B: fine[B]})) == ["symmetry"]
    both = {**fine, B: fine[B]._replace(parent=2)}  # b and c are each other's parent
    assert kinds(symmetric(both)) == ["symmetry"] * 4


def test_there_must_be_one_tree_and_all_must_know_it() -> None:
    fine = standings((A, B), (B, C), (A, D))
    assert list(one_tree(fine)) == []
    assert kinds(one_tree({**fine, C: fine[C]._replace(parent=None)})) == ["tree"]
    assert "believes in another root" in str(list(one_tree({**fine, C: fine[C]._replace(root="")})))
    assert "2 hops" in str(list(one_tree({**fine, C: fine[C]._replace(hops=1)})))
    parted = {**standings((A, B)), C: Standing("id-c", 7, {7: D}), D: Standing("id-d", 7, {7: C})}
    assert kinds(one_tree(parted)) == ["tree", "tree"]


# ------------------------------------------------------------------------------ the tables


def test_covering() -> None:
    assert covers(ALL, SOME) and not covers(SOME, ALL)
    assert canonical("x/#", False, "") == canonical("x", False, "")
    assert maximal([SOME, ALL, canonical("y", True, "")]) == {ALL, canonical("y", True, "")}


def interests(told: dict[tuple[Key, Key], set[Filter]], local: dict[Key, set[Filter]]) -> Any:
    """What nodes say, by what one told another."""

    def of(key: Key) -> dict[str, Any]:
        links: dict[str, dict[str, list[Filter]]] = {}
        for (teller, hearer), what in told.items():
            if key == hearer:
                links.setdefault(f"id-{teller[0]}", {})["received"] = list(what)
            if key == teller:
                links.setdefault(f"id-{hearer[0]}", {})["sent"] = list(what)
        return {"local": list(local.get(key, set())), "links": links}

    return of


@pytest.mark.parametrize(
    ("told", "complaints"),
    [
        ({}, 0),
        ({(C, B): {SOME}, (B, A): set()}, 1),  # something is missing
        ({(C, B): {SOME}, (B, A): {ALL}}, 2),  # all is too much, and more than some
        ({(A, B): {SOME}}, 1),  # stale
        ({(C, B): {SOME, canonical("x", False, "n > 7")}}, 1),  # covered by the other
    ],
)
def test_tables_are_compared_with_what_is_wanted_behind_each_link(
    told: dict[tuple[Key, Key], set[Filter]], complaints: int
) -> None:
    right = {(A, B): set(), (B, A): {SOME}, (B, C): set(), (C, B): {SOME}}
    wanted = {C: {SOME}}
    said = interests({**right, **told}, wanted)
    found = list(tables(standings((A, B), (B, C)), wanted, said))
    assert (len(found) > 0) == (complaints > 0)
    assert {complaint.kind for complaint in found} <= {"table"}


def test_both_ends_must_say_the_same_and_know_their_guests() -> None:
    place = standings((A, B))
    said = interests({(A, B): set(), (B, A): {SOME}}, {B: {SOME}})

    def forgetful(key: Key) -> dict[str, Any]:
        return {"local": [], "links": {}} if key == A else said(key)

    assert list(tables(place, {B: {SOME}}, said)) == []
    assert kinds(tables(place, {B: {SOME}}, forgetful)) == ["table", "table"]
    assert kinds(tables(place, {B: {ALL}}, said))[0] == "table"
    assert list(tables(place, {B: {SOME}}, said, covering=False)) == []


# ------------------------------------------------------------------------------ deliveries


class Case:
    """A line of three nodes; ann speaks at the one end, bob listens at the other."""

    def __init__(self) -> None:
        self.tree = tree((A, B), (B, C))
        self.told = {(A, B): {ALL}, (B, C): {ALL}}
        self.all = Deliveries(self.tree, lambda here, there: self.told.get((here, there), set()))
        self.bob = Subscription("bob", 1, C, SOME, since_ns=1 * S)
        self.all.subscriptions.append(self.bob)
        self.said = 0

    def say(self, ns: int, n: int = 7, kept: bool = False) -> int:
        number = self.said
        self.said += 1
        self.all.publish(Publication("ann", number, A, Message("x", b"", {"n": n}), ns, kept))
        return number

    def keep(self, ns: int, confirmed_ns: int = NEVER, refused: str = "") -> int:
        number = self.say(ns, kept=True)
        said = self.all.publications["ann", number]
        said.confirmed_ns, said.refused = confirmed_ns, refused
        return number

    def see(self, number: int, ns: int, id: int = 1) -> None:
        self.all.sights.append(Sight("bob", "ann", number, ns, frozenset({id})))

    def kinds(
        self, gone: dict[str, int] | None = None, gentle: frozenset[int] = frozenset()
    ) -> Any:
        return kinds(self.all.judge(100 * S, gone or {}, gentle))


def test_all_is_well() -> None:
    case = Case()
    for ns in (10, 11, 12):
        case.see(case.say(ns * S), ns * S + 5)
    assert case.kinds() == []
    assert case.all.counts == {"seen": 3, "owed": 3}


def test_something_is_lost_or_late() -> None:
    case = Case()
    case.say(10 * S)
    case.see(case.say(20 * S), 23 * S)
    assert case.kinds() == ["lost", "lost"]


def test_what_is_not_owed_need_not_come() -> None:
    case = Case()
    case.say(2 * S)  # it was subscribed to a moment ago
    case.say(10 * S, n=1)  # it is not meant
    case.told[B, C] = set()
    case.say(10 * S)  # a node on the way was not told
    assert case.kinds() == []
    case.told[B, C] = {ALL}
    case.say(11 * S)
    case.told[B, C] = set()
    case.say(12 * S)  # it was told before, and must not forget
    assert case.kinds() == ["lost", "lost"]


def test_excuses() -> None:
    case = Case()
    case.say(10 * S)
    list(case.tree.stand(C, Standing("id-c", None, {}), 11 * S))
    assert case.kinds() == []
    assert case.kinds(gentle=frozenset({2})) == ["lost"]  # but it ended as planned
    case = Case()
    case.say(10 * S)
    assert case.kinds({"bob": 11 * S}) == []
    case.bob.until_ns = 11 * S
    assert case.kinds() == []


def test_trouble_is_an_excuse_for_as_long_as_it_lasts() -> None:
    case = Case()
    number = case.say(10 * S)
    case.all.troubles.append(Trouble(10 * S, 14 * S, frozenset("b")))
    case.see(number, 15 * S)
    assert case.kinds() == []
    case.all.sights.clear()
    assert case.kinds() == ["lost"]
    case.all.troubles[0] = Trouble(10 * S, 14 * S, frozenset("d"))
    assert case.kinds() == ["lost"]
    assert Trouble(0, 1, frozenset("ab"), True).touches(["b", "c"])
    assert not Trouble(0, 1, frozenset("abc"), True).touches(["b", "c"])


def test_repetitions_wrong_orders_and_inventions() -> None:
    case = Case()
    one, two = case.say(10 * S), case.say(11 * S)
    case.see(two, 11 * S)
    case.see(one, 11 * S)
    case.see(one, 12 * S)
    case.see(99, 12 * S)
    assert case.kinds() == ["overtaken", "repeated", "invented"]


def test_a_repetition_is_not_forgiven_when_the_way_was_lost() -> None:
    case = Case()
    one = case.say(10 * S)
    case.see(one, 10 * S)
    case.see(one, 12 * S)
    list(case.tree.stand(C, Standing("id-c", None, {}), 11 * S))
    assert case.kinds() == ["repeated"]


def test_what_nobody_asked_for() -> None:
    case = Case()
    case.see(case.say(10 * S, n=1), 10 * S)
    case.see(case.say(11 * S), 11 * S, id=2)
    assert case.kinds() == ["mismatch", "mismatch", "lost"]


def test_persistent_messages_are_owed_once_they_are_confirmed() -> None:
    case = Case()
    case.keep(10 * S)
    case.see(case.keep(11 * S, 14 * S), 15 * S)
    assert case.kinds() == []
    case.keep(12 * S, 14 * S)
    assert case.kinds() == ["lost"]
    assert case.kinds({"ann": 15 * S}) == ["lost"]  # its publisher need not stay


def test_nobody_sees_what_was_refused() -> None:
    case = Case()
    case.see(case.keep(10 * S, refused="disk-full"), 11 * S)
    case.see(case.keep(11 * S, refused="journal-failed"), 11 * S)
    assert case.kinds() == ["refused", "refused"]


def test_persistent_messages_have_an_order_of_their_own() -> None:
    case = Case()
    kept, loose, newer = case.keep(10 * S, 11 * S), case.say(10 * S), case.keep(11 * S, 12 * S)
    case.see(loose, 10 * S)
    case.see(kept, 11 * S)
    case.see(newer, 12 * S)
    assert case.kinds() == []
    case.see(kept, 13 * S)
    assert case.kinds() == ["repeated"]
