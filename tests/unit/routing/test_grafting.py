"""What neighbours say when one link takes the place of another: one node, seen from outside."""

from __future__ import annotations

import pytest

from regraft.errors import PeerError
from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL, Forwarding
from regraft.routing.grafting import FRESH_MS, Grafting
from regraft.routing.links import GIVEN
from regraft.routing.messages import Activate, Flush, Message, Reroute, Rerouted, Restored
from regraft.routing.reconfiguration import PROTOCOLS

MS = 1_000_000
RID = b"r" * 16
ME, UP, DOWN, NEW = (letter * 16 for letter in (b"m", b"u", b"d", b"n"))
P, Q = Filter("p", True, ""), Filter("q", True, "")


class Site:
    """A node with a link up (key 1) and one down (key 2)."""

    def __init__(self, protocol: str, delay_ms: int = 3000) -> None:
        made = PROTOCOLS[protocol](delay_ms)
        self.entered: list[tuple[int, int]] = []
        self.removed: list[tuple[int, int]] = []
        self.forwarding = Forwarding(made, covering=False)
        self.grafting = Grafting(
            *(ME, self.forwarding, made),
            lambda key, given: self.entered.extend((key, number) for number, _ in given),
            lambda key, numbers: self.removed.extend((key, number) for number in numbers),
        )
        self.grafting.added(1, UP, b"", 0)
        self.grafting.added(2, DOWN, b"", 0)
        self.forwarding.received(1, [(1, P)], [])
        self.told(0)

    def told(self, ms: int) -> tuple[dict[int, tuple[list[Filter], list[int]]], list[Message]]:
        """What links are told until there is nothing more to say, and what else is said."""
        told: dict[int, tuple[list[Filter], list[int]]] = {}
        said: list[Message] = []
        self.grafting.tick(ms * MS)
        while True:
            for key, add, remove, _ in self.forwarding.announce(ms * MS):
                adds, removes = told.setdefault(key, ([], []))
                adds += [filter for _, filter in add]
                removes += remove
            said += [message for _, message in self.forwarding.said()]
            if (next_ns := self.forwarding.next_ns) is None or next_ns > ms * MS:
                return {key: one for key, one in told.items() if any(one)}, said


def test_flush_ends_the_waiting_and_is_answered() -> None:
    site = Site("deferred-notified")
    site.grafting.lost(1, RID, False, 0)
    assert site.told(1) == ({}, [])  # it waits
    site.grafting.heard(2, Flush(RID, (), 0, True), 2 * MS)
    assert site.told(2) == ({2: ([], [1])}, [Restored(RID)])


def test_flush_that_comes_too_early_is_remembered() -> None:
    site = Site("deferred-notified")
    site.grafting.heard(2, Flush(RID, (), 0, False), 0)
    site.grafting.lost(1, RID, False, MS)
    assert site.told(1) == ({2: ([], [1])}, [])


def test_flush_goes_on_by_its_route_or_everywhere() -> None:
    site = Site("strawman")  # everybody passes on what others need
    site.grafting.heard(2, Flush(RID, (UP, NEW), 0, True), 0)
    assert site.told(0) == ({}, [Flush(RID, (NEW,), 0, True)])
    site.grafting.heard(1, Restored(RID), 0)
    other = b"o" * 16
    site.grafting.heard(2, Flush(other, (), 3, True), 0)
    assert site.told(0)[1] == [Flush(other, (), 2, True), Restored(RID)]
    site.grafting.heard(2, Flush(other, (), 3, True), 0)
    assert site.told(0)[1] == []  # it was here


def test_an_orphan_turns_to_its_new_parent() -> None:
    site = Site("reconfiguration-path")
    site.forwarding.hold(LOCAL, Q)
    site.told(0)
    site.grafting.lost(1, RID, False, 0)
    site.grafting.added(3, NEW, RID, 50 * MS, leading=True)
    told, said = site.told(50)
    assert told == {3: ([Q], [])}  # the link down has nothing to hear
    assert said == [Reroute(RID, ((GIVEN + 1, P),), (), (), ())]
    assert site.entered == [(3, GIVEN + 1)]


def test_too_late_it_is_an_ordinary_link() -> None:
    site = Site("reconfiguration-path", 100)
    site.grafting.lost(1, RID, False, 0)
    assert site.told(100) == ({2: ([], [1])}, [])
    site.grafting.added(3, NEW, RID, 101 * MS, leading=True)
    assert site.told(101) == ({}, []) and site.entered == []


def test_the_new_parent_says_only_what_is_missing() -> None:
    site = Site("reconfiguration-path")
    site.forwarding.hold(LOCAL, Q)
    site.told(0)
    site.grafting.added(3, NEW, RID, 0)
    assert site.told(1) == ({}, [])  # dormant
    wrong = Filter("w", True, "")
    site.grafting.heard(3, Reroute(RID, ((GIVEN + 1, P), (GIVEN + 2, wrong)), (), (), ()), MS)
    told, said = site.told(1)
    assert told == {3: ([Q], [GIVEN + 2])}  # P it knows, the other is not wanted
    assert said == [Flush(RID, (), 4, True)] * 2
    received, sent = site.forwarding.rows()[3]
    assert received == {} and sent == {GIVEN + 1: P, 1: Q}


def test_in_the_head_it_is_turned_and_answered() -> None:
    site = Site("reconfiguration-path")
    site.forwarding.received(2, [(7, Q)], [])
    site.told(0)
    site.grafting.heard(2, Reroute(RID, ((GIVEN + 5, P),), (7,), (ME, UP), (NEW,)), 0)
    told, said = site.told(0)
    # P was said to 2 before, so what 2 entered is not needed; Q is of no use to 1 any more.
    assert told == {}
    assert said == [
        Reroute(RID, ((GIVEN + 1, P),), (1,), (UP,), (NEW,)),
        Rerouted(RID, (GIVEN + 5,)),
    ]
    assert site.entered == [(1, GIVEN + 1)] and site.removed == [(2, 7)]


def test_a_dormant_link_does_not_sleep_for_ever() -> None:
    site = Site("informed-activation")
    site.grafting.added(3, NEW, RID, 0)
    assert site.told(FRESH_MS - 1) == ({}, [])
    assert site.told(FRESH_MS) == ({3: ([P], [])}, [Flush(RID, (), 4, False)])


def test_what_is_in_doubt_is_withheld_until_somebody_else_wants_it() -> None:
    site = Site("informed-activation")
    site.grafting.added(3, NEW, RID, 0)
    site.grafting.heard(3, Activate(RID, (P,), ()), 0)
    assert site.told(0) == ({}, [Flush(RID, (), 4, False)])
    site.forwarding.received(2, [(1, P)], [])
    assert site.told(1)[0] == {1: ([P], []), 3: ([P], [])}


def test_nonsense_is_refused() -> None:
    site = Site("reconfiguration-path")
    for number in (1, GIVEN):
        with pytest.raises(PeerError, match="cannot be given"):
            site.grafting.heard(2, Reroute(RID, ((number, P),), (), (), ()), 0)
    with pytest.raises(PeerError, match="no interest 9"):
        site.grafting.heard(2, Rerouted(RID, (9,)), 0)
    bad = Filter("a/#/b", True, "")
    with pytest.raises(PeerError, match=r"a/#/b"):
        site.grafting.heard(2, Reroute(RID, ((GIVEN + 1, bad),), (), (), ()), 0)
