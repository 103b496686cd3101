"""Stories of filters that guests bring, by seed; and planted bugs that these seeds must find."""

from __future__ import annotations

from itertools import combinations

import pytest

from regraft.simulate.__main__ import main
from regraft.simulate.filter_story import KNOWLEDGE, FilterStory, filter_plan
from tests.simulation.telling import Teller, add, several

SEEDS = range(80)
FEW = 12
SUSPECTS = {  # seeds that found it lately, which are tried first
    "unknown-filter-drops": (2, 4, 12),
    "covers-reversed": (8, 16, 26),
    "failed-filter-drops": (15, 31, 46),
}


TELLER = Teller(FilterStory, filter_plan)


def test_a_few_stories_are_eventful_and_nothing_is_wrong() -> None:
    counts: dict[str, int] = {}
    spared: dict[str, int] = {}
    for seed in SEEDS[:FEW]:
        story = FilterStory(filter_plan(seed))
        assert story.tell() == [], seed
        add(counts, {**story.counts, **story.deliveries.counts})
        spared[story.knowledge] = spared.get(story.knowledge, 0) + story.spared
    assert counts["subscribe-band"] > 50 and counts["owed"] > 1000
    assert {"start", "kill", "leave", "keep", "unsubscribe"} <= counts.keys()
    assert spared["all"] == 0  # everything was filtered before it came
    assert spared["none"] > 50 and spared["some"] > 0 and spared["failing"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", several(SEEDS[FEW:]))
def test_nothing_is_wrong_with_the_stories(seeds: range) -> None:
    assert TELLER.wrong(seeds) == {}


@pytest.mark.parametrize("bug", SUSPECTS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    assert TELLER.sees(bug, (*SUSPECTS[bug], *SEEDS))


def test_guests_see_the_same_whoever_knows_the_filters() -> None:
    """Without troubles it is the very same that each of them sees, in the same order of each."""
    for seed in (0, 6):
        plan = filter_plan(seed)
        quiet = ("start", "arrive", "subscribe", "subscribe-band", "publish")
        calm = [act for act in plan.acts if act.what in quiet]
        said: list[object] = []
        for knowledge in KNOWLEDGE:
            story = FilterStory(plan.without(calm), knowledge=knowledge)
            assert story.tell() == []
            owed = {
                (said.guest, said.number, one.guest, one.id)
                for said in story.deliveries.publications.values()
                for one in said.owed
            }
            seen = {
                (sight.publisher, sight.number, sight.guest, id)
                for sight in story.deliveries.sights
                for id in sight.ids
            }
            assert owed and owed <= seen
            said.append(seen)
        assert all(one == other for one, other in combinations(said, 2)), seed


def test_the_same_seed_tells_the_same_story() -> None:
    assert len(TELLER.hashes(3)) == 1


def test_the_command_tells_such_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--filters", "1", "2"]) == 0
    assert "seed 2: filters that some know" in capsys.readouterr().out
