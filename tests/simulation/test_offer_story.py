"""Stories of publishers that advertise, by seed; and planted bugs that these seeds must find."""

from __future__ import annotations

from random import Random

import pytest

from regraft.routing.filters import Filter
from regraft.simulate.__main__ import main
from regraft.simulate.checkers import Complaint
from regraft.simulate.grove import Grove, Setting
from regraft.simulate.grove_story import GroveStory
from regraft.simulate.offer_story import OfferStory, offer_plan
from regraft.simulate.plan import Act, Plan

SEEDS = range(200)
FEW = 10
AT_ONCE = 10  # seeds of one test, so that tests can be spread
GROVES = range(200)
SUSPECTS = {  # seeds that found it lately, which are tried first
    "overlap-as-cover": (26, 28),
    "offers-late": (26, 28),
    "unheeded": (18, 34),
    "quench-stays": (20, 22),
}


def tell(seed: int, *bugs: str) -> list[Complaint]:
    return OfferStory(offer_plan(seed), frozenset(bugs)).tell()


def wrong(seeds: range) -> dict[int, list[Complaint]]:
    told = {seed: tell(seed) for seed in seeds}
    return {seed: found for seed, found in told.items() if found}


def test_nothing_is_wrong_with_a_few_stories() -> None:
    assert wrong(SEEDS[:FEW]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[FEW::AT_ONCE])
def test_nothing_is_wrong_with_the_stories(first: int) -> None:
    assert wrong(range(first, min(first + AT_ONCE, len(SEEDS)))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("bug", SUSPECTS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    assert any(tell(seed, bug) for seed in (*SUSPECTS[bug], *SEEDS))


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
        for name, count in story.counts.items():
            acts[name] = acts.get(name, 0) + count
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


@pytest.mark.parametrize("protocol", ["reconfiguration-path", "strawman"])
def test_nobody_notices_a_move(protocol: str) -> None:
    story = Movers(moving_plan(1, protocol))
    assert story.tell() == []
    moved = sum(broker.node.topology()["moves"]["moved"] for broker in story._brokers.values())
    assert story.counts["move"] >= 3 and moved == story.counts["move"]
    seen = {(one.guest, one.publisher, one.number) for one in story.deliveries.sights}
    missed = [
        (one.guest, said.guest, said.number)
        for said in story.deliveries.publications.values()
        for one in story.deliveries.subscriptions
        if one.filter.takes(said.message) and (one.guest, said.guest, said.number) not in seen
    ]
    assert missed == [] and len(story.deliveries.sights) == len(seen) > 2000
