"""Stories by seed, as their tests tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from regraft.simulate.checkers import Complaint
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import Plan

AT_ONCE = 10  # seeds of one test, so that tests can be spread


@dataclass(frozen=True)
class Teller:
    """Tells stories of one kind."""

    kind: type[NetworkStory]
    plan: Callable[[int], Plan]

    def tell(self, seed: int, *bugs: str) -> list[Complaint]:
        """What is wrong with one."""
        return self.kind(self.plan(seed), frozenset(bugs)).tell()

    def wrong(self, seeds: Iterable[int]) -> dict[int, list[Complaint]]:
        """What is wrong with those of several that are."""
        told = {seed: self.tell(seed) for seed in seeds}
        return {seed: found for seed, found in told.items() if found}

    def sees(self, bug: str, seeds: Iterable[int]) -> bool:
        """Whether one of these seeds finds a planted bug."""
        return any(self.tell(seed, bug) for seed in seeds)

    def hashes(self, seed: int) -> set[str]:
        """One story, told twice, in a word; nothing must be wrong with it."""
        stories = [self.kind(self.plan(seed)) for _ in range(2)]
        assert [story.tell() for story in stories] == [[], []]
        return {story.trace_hash for story in stories}


def several(seeds: range) -> list[range]:
    """A few seeds for each test."""
    return [seeds[at : at + AT_ONCE] for at in range(0, len(seeds), AT_ONCE)]


def add(totals: dict[str, int], counts: dict[str, int]) -> None:
    """Count some more."""
    for name, count in counts.items():
        totals[name] = totals.get(name, 0) + count
