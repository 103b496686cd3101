"""What nodes know of each other's mailboxes: passed on by version, never lost, never come back."""

from __future__ import annotations

from random import Random

import pytest

from regraft.routing.filters import Filter
from regraft.routing.homes import REMOVED_MAX, TOLD_BYTES, Durable, Home, Homes, parts


def durable(number: int, selector: str = "") -> Durable:
    return Durable(number, f"box-{number}", Filter("a/#", False, selector))


class Site:
    """One node: what it knows, and how it is linked."""

    def __init__(self, number: int) -> None:
        self.journal = bytes([number]) * 16
        self.life = 1
        self.held: dict[int, Durable] = {}
        self.next = 1
        self.begin()

    def begin(self, before: dict[bytes, Home] | None = None) -> None:
        self.homes = Homes(100, 10_000)
        for home in (before or {}).values():
            if home.journal != self.journal:
                copy = Home(home.journal, home.node, home.name, home.version, gone=home.gone)
                copy.interests = dict(home.interests)
                self.homes.load(copy)
        self.homes.be(self.journal, self.journal, self.journal.hex(), self.life)
        for one in self.held.values():
            self.homes.hold(one)

    def restart(self) -> None:
        self.life += 1
        self.begin(self.homes.known)

    def known(self) -> dict[bytes, dict[int, Durable]]:
        homes = self.homes.known.values()
        return {home.journal: home.interests for home in homes if home.interests}


class Grove:
    """Sites in a tree that changes; what is on its way may be lost with its link."""

    def __init__(self, count: int, random: Random) -> None:
        self.random = random
        self.sites = [Site(number) for number in range(count)]
        self.links: dict[int, tuple[int, int]] = {}
        self.last = 0
        self.wires: dict[tuple[int, int], list[object]] = {}  # (link, to)

    def link(self, one: int, other: int) -> None:
        self.last += 1
        self.links[self.last] = one, other
        for here, there in ((one, other), (other, one)):
            self.wires[self.last, there] = [self.sites[here].homes.linked(self.last)]

    def cut(self, link: int) -> None:
        for site in self.links.pop(link):
            self.sites[site].homes.unlinked(link)
            del self.wires[link, site]

    def tell(self) -> None:
        for number, site in enumerate(self.sites):
            for link, update in site.homes.tell():
                if link in self.links:
                    one, other = self.links[link]
                    self.wires[link, other if number == one else one].append(update)

    def move(self) -> bool:
        """Something that is on its way arrives."""
        self.tell()
        full = [place for place, waiting in self.wires.items() if waiting]
        if not full:
            return False
        link, to = self.random.choice(full)
        said = self.wires[link, to].pop(0)
        homes = self.sites[to].homes
        if isinstance(said, list):
            homes.heard(link, said)
        else:
            homes.take(link, said)  # type: ignore[arg-type]
        return True

    def settle(self) -> None:
        while self.move():
            pass

    def tree(self) -> None:
        """Link all that are not linked."""
        groups = {number: {number} for number in range(len(self.sites))}
        for one, other in self.links.values():
            merged = groups[one] | groups[other]
            groups.update(dict.fromkeys(merged, merged))
        for number in range(1, len(self.sites)):
            if number not in groups[0]:
                self.link(self.random.choice(sorted(groups[0])), number)
                merged = groups[0] | groups[number]
                groups.update(dict.fromkeys(merged, merged))

    def truth(self) -> dict[bytes, dict[int, Durable]]:
        return {site.journal: site.held for site in self.sites if site.held}


@pytest.mark.parametrize("seed", range(60))
def test_everybody_knows_everything_in_the_end(seed: int) -> None:
    random = Random(seed)
    grove = Grove(random.randint(2, 8), random)
    grove.tree()
    for _ in range(200):
        site = random.choice(grove.sites)
        dice = random.random()
        if dice < 0.25:
            site.held[site.next] = durable(site.next)
            site.homes.hold(site.held[site.next])
            site.next += 1
        elif dice < 0.4 and site.held:
            number = random.choice(sorted(site.held))
            del site.held[number]
            site.homes.release(number)
        elif dice < 0.45:
            number = grove.sites.index(site)
            for link in [one for one, ends in grove.links.items() if number in ends]:
                grove.cut(link)
            site.restart()
        elif dice < 0.5 and grove.links:
            grove.cut(random.choice(sorted(grove.links)))
        elif dice < 0.6:
            grove.tree()
        else:
            grove.move()
    grove.tree()
    grove.settle()
    for site in grove.sites:
        assert site.known() == grove.truth()


def test_what_was_removed_does_not_come_back_by_somebody_who_did_not_hear() -> None:
    random = Random(0)
    grove = Grove(3, random)
    grove.link(0, 1)
    grove.link(1, 2)
    site = grove.sites[0]
    site.held[1] = durable(1)
    site.homes.hold(site.held[1])
    grove.settle()
    assert grove.sites[2].known() == grove.truth()
    grove.cut(2)
    del site.held[1]
    site.homes.release(1)
    grove.settle()
    grove.link(2, 0)
    grove.settle()
    assert [one.known() for one in grove.sites] == [{}, {}, {}]


def test_very_many_removals_are_told_as_a_whole() -> None:
    grove = Grove(2, Random(0))
    site = grove.sites[0]
    for number in range(1, REMOVED_MAX + 50):
        site.homes.hold(durable(number))
    grove.link(0, 1)
    grove.settle()
    grove.cut(1)
    for number in range(1, REMOVED_MAX + 49):
        site.homes.release(number)
    assert len(site.homes.known[site.journal].removed) == REMOVED_MAX
    grove.link(0, 1)
    grove.settle()
    assert list(grove.sites[1].known()[site.journal]) == [REMOVED_MAX + 49]


def test_a_home_that_is_forgotten_is_forgotten_by_all_until_it_comes_back() -> None:
    grove = Grove(3, Random(0))
    grove.link(0, 1)
    grove.link(1, 2)
    gone = grove.sites[2]
    gone.held[1] = durable(1)
    gone.homes.hold(gone.held[1])
    grove.settle()
    grove.cut(2)
    change = grove.sites[0].homes.forget(gone.journal)
    assert change.remove == [1] and change.home.gone
    grove.settle()
    assert gone.journal not in grove.sites[1].known()
    gone.restart()
    grove.link(0, 2)
    grove.settle()
    assert grove.sites[1].known() == grove.truth()


def test_limits_are_kept() -> None:
    homes = Homes(2, 3)
    homes.be(b"a" * 16, b"a", "a", 1)
    first = Home(b"b" * 16, b"b", "b", 5)
    for number in range(3):
        first.add(durable(number), 5)
    for update in parts(first, 0):
        assert homes.take(1, update) is not None
    more = Home(b"b" * 16, b"b", "b", 6)
    more.add(durable(9), 6)
    assert all(homes.take(1, update) is None for update in parts(more, 5))
    other = Home(b"c" * 16, b"c", "c", 1)
    assert all(homes.take(1, update) is None for update in parts(other, 0))
    assert homes.refused == 2 and homes.interests == 3


def test_parts_have_bounded_size() -> None:
    home = Home(b"a" * 16, b"a", "a", 7, floor=7)
    for number in range(1000):
        home.add(durable(number, "x = 1" * 40), 7)
    found = list(parts(home, 0))
    assert len(found) > 10 and found[0].first and found[-1].last and not found[0].last
    assert sum(len(one.add) for one in found) == 1000
    assert max(sum(len(d.filter.selector) for d in one.add) for one in found) < TOLD_BYTES
