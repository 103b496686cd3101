"""Interests that go only where something is offered: one node, seen from outside; and overlap."""

from __future__ import annotations

from random import Random

import pytest

from regraft.errors import PeerError
from regraft.model.message import Message
from regraft.routing.advertisements import Advertising, Gate, overlap
from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL, Forwarding
from regraft.routing.messages import Heeded
from regraft.routing.reconfiguration import DeferredTimed
from regraft.simulate.checkers import Filter as Taking
from regraft.simulate.plan import COLORS, PATTERNS, SELECTORS, TOPICS

A, AX, B = Filter("a/#", False, ""), Filter("a/x", True, ""), Filter("b", False, "")
CHEAP, DEAR = Filter("a", False, "price < 10"), Filter("a", False, "price > 10")
OWN = Filter("$custody/j", True, "")


class Site:
    """A node with a link up (key 1) and one down (key 2)."""

    def __init__(self, covering: bool = True) -> None:
        self.interests = Forwarding(DeferredTimed(3000), covering)
        self.offers = Forwarding(DeferredTimed(3000), covering)
        self.advertising = Advertising(self.offers, self.interests)
        for key in (1, 2):
            self.link(key)

    def link(self, key: int) -> None:
        self.interests.added(key, b"", 0)
        self.advertising.added(key, 0)

    def lose(self, key: int) -> None:
        self.interests.lost(key, b"", False, 0)
        self.advertising.lost(key, b"", False, 0)

    def told(self) -> tuple[list[object], list[object], list[object]]:
        """What links are told of offers and interests until nothing more is said, and answers."""
        offers: list[object] = []
        interests: list[object] = []
        answers: list[object] = []
        for _ in range(20):
            offers += self.advertising.announce(0)
            interests += self.interests.announce(0)
            answers += self.interests.said()
        return offers, interests, answers

    def heard(self, key: int, *filters: Filter, first: int = 1, synced: bool = True) -> None:
        adds = [(first + n, filter) for n, filter in enumerate(filters)]
        self.advertising.heard(key, adds, [], synced)


def test_a_link_is_told_offers_first_and_interests_that_overlap_what_it_offers() -> None:
    site = Site()
    for filter in (A, B, CHEAP, OWN):
        site.interests.hold(LOCAL, filter)
    site.offers.hold(LOCAL, B)
    offers, interests, _ = site.told()
    assert offers == [(1, [(1, B)], [], True), (2, [(1, B)], [], True)]
    assert interests == [(1, [(1, OWN)], [], False), (2, [(1, OWN)], [], False)]
    site.heard(1, DEAR)
    offers, interests, answers = site.told()
    assert offers == [(2, [(2, DEAR)], [], False)]
    assert interests == [(1, [(2, A)], [], False)] and answers == []
    # The link down has heeded it: the link up knows all.
    site.advertising.heeded(2, 2)
    assert site.told() == ([], [(1, [], [], True)], [(1, Heeded(1))])


def test_interests_go_when_the_offer_does_and_come_with_another() -> None:
    site = Site(covering=False)
    site.heard(1, DEAR)
    site.heard(2)
    site.told()
    for filter in (CHEAP, AX, B):
        site.interests.hold(LOCAL, filter)
    assert site.told()[1] == [(1, [(1, AX)], [], False)]
    site.advertising.heard(1, [(2, CHEAP), (3, B)], [1])
    _, interests, _ = site.told()
    assert interests == [(1, [(2, CHEAP), (3, B)], [], False)]  # the first overlaps that, too
    site.advertising.heard(1, [], [2])
    assert site.told()[1] == [(1, [], [1, 2], False)]


def test_what_is_wanted_later_is_told_at_once() -> None:
    site = Site()
    site.heard(1, A)
    site.heard(2, B)
    site.told()
    site.advertising.heeded(1, 1)
    site.advertising.heeded(2, 1)
    site.told()
    site.interests.received(2, [(1, AX)], [])
    site.interests.received(1, [(1, AX)], [])
    assert site.told()[1] == [(1, [(1, AX)], [], False)]


def test_a_publisher_waits_for_all_links_and_for_none_that_is_lost() -> None:
    site = Site()
    site.heard(1)
    site.heard(2)
    site.told()
    site.offers.hold(LOCAL, A)
    site.advertising.wait(7)
    assert site.advertising.ready() == []
    site.told()
    site.advertising.heeded(1, 1)
    assert site.advertising.ready() == []
    site.lose(2)
    assert site.advertising.ready() == [7]
    # What another offer covers was heeded before.
    site.offers.hold(LOCAL, AX)
    site.advertising.wait(8)
    offers, _, _ = site.told()
    assert offers == [] and site.advertising.ready() == [8]
    assert site.advertising.waiting == 0


def test_many_frames_of_a_link_are_two_waits() -> None:
    site = Site()
    site.heard(2)
    for n in range(1, 50):
        site.heard(1, Filter(f"t/{n}", True, ""), first=n, synced=n == 49)
    assert site.advertising.waiting == 2  # and the other link waits for the first
    site.told()
    site.advertising.heeded(2, 1)
    site.told()
    site.advertising.heeded(2, 49)
    _, interests, answers = site.told()
    assert answers[-1] == (1, Heeded(49)) and site.advertising.waiting == 0
    assert (1, [], [], True) in interests


def test_nonsense_is_refused() -> None:
    site = Site()
    site.heard(1, A)
    with pytest.raises(PeerError, match="there already"):
        site.heard(1, B)
    with pytest.raises(PeerError, match="no interest 9"):
        site.advertising.heard(1, [], [9])
    with pytest.raises(PeerError, match="was not offered"):
        site.advertising.heeded(1, 5)


def test_a_new_link_begins_with_nothing() -> None:
    site = Site()
    site.interests.hold(LOCAL, A)
    site.heard(1, A)
    site.told()
    site.lose(1)
    site.link(3)
    offers, interests, _ = site.told()
    assert (3, [], [], True) in offers and interests == []
    site.heard(3, AX)
    assert site.told()[1] == [(3, [(1, A)], [], False)]


@pytest.mark.parametrize("seed", range(20))
def test_filters_overlap_whenever_a_message_satisfies_both(seed: int) -> None:
    random = Random(seed)
    filters = [
        Filter(random.choice((*PATTERNS, "#", "+", "a/+/#")), random.random() < 0.5, selector)
        for selector in (*SELECTORS, "n + 1 > 4", "NOT (n < 3)", "color <> 'red' OR n = 1")
    ]
    denied = 0
    messages = [
        Message(topic, attributes={"n": random.randrange(24), "color": random.choice(COLORS)})
        for topic in (*TOPICS, "$a") * 5
    ]
    for one in filters:
        gate = Gate()
        gate.add(one)
        for other in filters:
            both = any(Taking(*one[:3]).takes(m) and Taking(*other[:3]).takes(m) for m in messages)
            said = overlap(one, other)
            assert said or not both, (one, other)
            assert gate.passes(other) == said and overlap(other, one) == said
            denied += not said
        gate.remove(one)
        assert not gate.passes(one)
    assert denied > 20
