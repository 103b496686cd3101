"""Stories of publishers that advertise, by seed; and planted bugs that these seeds must find."""

from __future__ import annotations

from random import Random

import pytest

from regraft.routing.filters import Filter
from regraft.simulate.__main__ import main
from regraft.simulate.grove import Grove, Setting
from regraft.simulate.grove_story import GroveStory
from regraft.simulate.offer_story import OfferStory, offer_plan
from regraft.simulate.plan import RECONFIGURATIONS, Act, Plan
from tests.simulation.telling import Teller, add, several

SEEDS = range(80)
FEW = 10
GROVES = range(200)
SUSPECTS = {  # seeds that found it lately, which are tried first
    "overlap-as-cover": (26, 28),
    "offers-late": (26, 28),
    "unheeded": (18, 34),
    "quench-stays": (20, 22),
}


TELLER = Teller(OfferStory, offer_plan)


def test_nothing_is_wrong_with_a_few_stories() -> None:
    assert TELLER.wrong(SEEDS[:FEW]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", several(SEEDS[FEW:]))
def test_nothing_is_wrong_with_the_stories(seeds: range) -> None:
    assert TELLER.wrong(seeds) == {}


@pytest.mark.slow
@pytest.mark.parametrize("bug", SUSPECTS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    assert TELLER.sees(bug, (*SUSPECTS[bug], *SEEDS))


def test_the_stories_are_eventful() -> None:
    acts: dict[str, int] = {}
    silenced = owed = 0
    modes = set()
    for seed in SEEDS[:FEW]:
        story = OfferStory(offer_plan(seed))
        assert story.tell() == []
        modes.add((story.plan.mode, story.plan.advertisements))
        silenced += story.silenced
        owed += story.deliveries.counts["owed"]
        add(acts, story.counts)
    assert silenced > 10 and owed > 500
    assert {"offer", "unoffer", "subscribe", "unsubscribe", "start", "kill", "leave"} <= acts.keys()
    assert len(modes) == 4


def test_a_story_can_be_told_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["3", "--offers"]) == 0
    assert "offer" in capsys.readouterr().out


# ------------------------------------------------------------------------------ in groves


def grove_wrong(seeds: range) -> dict[str, str]:
    stories = [GroveStory(seed, advertisements=True) for seed in seeds]
    return {
        f"{story.seed}: {story.about}": found[0].text
        for story in stories
        if (found := story.tell())
    }


def test_tables_are_right_with_all_protocols() -> None:
    assert grove_wrong(GROVES[:40]) == {}


@pytest.mark.slow
def test_tables_are_right_with_all_protocols_and_more_seeds() -> None:
    assert grove_wrong(GROVES[40:]) == {}


@pytest.mark.parametrize("bug", ["overlap-as-cover", "offers-late"])
def test_a_planted_bug_is_seen_in_a_grove(bug: str) -> None:
    told = (GroveStory(seed, frozenset({bug}), advertisements=True) for seed in GROVES[:40])
    assert any(story.tell() for story in told)


def unknown_when_heeded(seed: int, *bugs: str) -> int:
    """Of those who want what is offered, how many are not known when that counts."""
    setting = Setting(covering=False, advertisements=True, bugs=frozenset(bugs))
    grove = Grove(seed, 30, setting)
    for site in grove.sites:
        grove.subscribe(site.number, Filter(f"t/{site.number}", True, ""))
    grove.run()
    publisher = grove.sites[grove.random.randrange(30)]
    unknown: list[int] = []

    def heeded() -> None:
        known = sum(
            bool(publisher.forwarding.holders(Filter(f"t/{n}", True, ""))) for n in range(30)
        )
        unknown.append(30 - known)

    grove.advertise(publisher.number, Filter("t", False, ""), heeded)
    grove.run()
    assert list(grove.complaints()) == []
    return unknown[0]


def test_an_offer_counts_when_all_who_want_it_are_known() -> None:
    assert [unknown_when_heeded(seed) for seed in range(5)] == [0] * 5
    assert all(unknown_when_heeded(seed, "unheeded") for seed in range(5))


class Movers(OfferStory):
    """Of several moves that are planned for one moment only the first that makes sense is told."""

    def _act(self, act: Act) -> None:
        if act.what == "move" and self.world.ns in self._moves.values():
            return
        super()._act(act)


def moving_plan(seed: int, protocol: str) -> Plan:
    """Everybody offers what it says, wants something, and talks; branches move meanwhile."""
    random = Random(f"moves {seed}")
    acts = [Act(10.0 * n, "start", (n, (0,) if n else ())) for n in range(8)]
    for guest in range(8):
        topic = random.choice(("a", "b/x", "c"))
        acts += [
            Act(2000, "arrive", (guest, guest)),
            Act(2050, "offer", (guest, topic, True, "")),
            Act(2100, "subscribe", (guest, 1, random.choice(("a", "b/x", "c", "#")), False, "")),
            Act(3500 + random.random() * 40, "publish", (guest, 200, 40, topic, 1, "red", 0)),
        ]
    moves = [
        Act(4000 + 2000 * n, "move", tuple(random.sample(range(8), 2)))
        for n in range(4)
        for _ in range(6)
    ]
    return Plan(
        *(seed, "liveness", 8, tuple(sorted((*acts, *moves), key=lambda act: act.ms)), 13_000),
        max_degree=3,
        reconfiguration=protocol,
        advertisements=True,
    )


def missed(story: OfferStory) -> list[tuple[str, str, int]]:
    """What somebody wanted and did not see."""
    seen = {(one.guest, one.publisher, one.number) for one in story.deliveries.sights}
    assert len(story.deliveries.sights) == len(seen)
    return [
        (one.guest, said.guest, said.number)
        for said in story.deliveries.publications.values()
        for one in story.deliveries.subscriptions
        if one.filter.takes(said.message) and (one.guest, said.guest, said.number) not in seen
    ]


@pytest.mark.parametrize("protocol", RECONFIGURATIONS)
def test_nobody_notices_that_a_node_between_others_leaves(protocol: str) -> None:
    """What is new in its place must not wait for what it would have heeded."""
    topics = {0: "a", 2: "b"}  # of the guests at both ends
    acts = (
        *(Act(10.0 * n, "start", (n, (n - 1,) if n else ())) for n in range(3)),
        *(Act(2000, "arrive", (n, n)) for n in topics),
        *(Act(2050, "offer", (n, topic, True, "")) for n, topic in topics.items()),
        *(Act(2100, "subscribe", (n, n + 1, "#", False, "")) for n in topics),
        *(Act(4500, "publish", (n, 300, 10, topics[n], 1, "red", 0)) for n in topics),
        Act(5000, "leave", (1,)),
    )
    plan = Plan(1, "liveness", 3, acts, 8000, reconfiguration=protocol, advertisements=True)
    story = OfferStory(plan)
    assert story.tell() == [] and story.counts["leave"] == 1
    assert missed(story) == [] and len(story.deliveries.sights) > 1000


@pytest.mark.parametrize("protocol", ["reconfiguration-path", "strawman"])
def test_nobody_notices_a_move(protocol: str) -> None:
    story = Movers(moving_plan(1, protocol))
    assert story.tell() == []
    moved = sum(broker.node.topology()["moves"]["moved"] for broker in story._brokers.values())
    assert story.counts["move"] >= 3 and moved == story.counts["move"]
    assert missed(story) == [] and len(story.deliveries.sights) > 2000
