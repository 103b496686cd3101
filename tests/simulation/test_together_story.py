"""Stories of all that a network can do at once, by seed; and planted bugs that these must find."""

from __future__ import annotations

import pytest

from regraft.simulate.__main__ import main
from regraft.simulate.filter_story import KNOWLEDGE, FilterStory, filter_plan
from regraft.simulate.offer_story import OfferStory, offer_plan
from regraft.simulate.plan import Act, Plan
from regraft.simulate.reply_story import ReplyStory, reply_plan
from regraft.simulate.together_story import TogetherStory, together_plan
from regraft.simulate.trace_story import TraceStory, trace_plan
from regraft.wire.traces import TraceMode
from tests.simulation.telling import Teller, add, several

SEEDS = range(200)
FEW = 6
SUSPECTS = {  # seeds that found it lately, which are tried first
    "dead-is-done": (11, 13),
    "late-is-done": (3, 6),
    "stale-context": (1, 2),
    "overlap-as-cover": (0, 1),
    "offers-late": (0, 1),
    "unheeded": (1, 6),
    "quench-stays": (1, 6),
    "unknown-filter-drops": (2, 4),
    "covers-reversed": (0, 1),
    "failed-filter-drops": (6, 38),
    "blind-trace": (1, 2),
}
ONLY_TOGETHER = {  # which no other story finds
    "brought-is-bound": (0, 2),  # filters that guests bring, and offers
    "homeless-trace": (0, 2),  # traces, and contexts
}
TELLER = Teller(TogetherStory, together_plan)
OTHERS = (
    *(Teller(ReplyStory, reply_plan), Teller(OfferStory, offer_plan)),
    *(Teller(FilterStory, filter_plan), Teller(TraceStory, trace_plan)),
)


def eventful(seeds: range) -> dict[str, int]:
    """Nothing is wrong with these; how much of everything there was."""
    totals: dict[str, int] = {}
    for seed in seeds:
        story = TogetherStory(together_plan(seed))
        assert story.tell() == [], seed
        add(totals, story.happened())
    return totals


def test_a_few_stories_are_eventful_and_nothing_is_wrong() -> None:
    totals = eventful(SEEDS[:FEW])
    assert totals["owed"] > 100 and totals["complete"] > 10 and totals["reports"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("seeds", several(SEEDS[FEW:]))
def test_everything_happens_and_nothing_is_wrong(seeds: range) -> None:
    totals = eventful(seeds)
    assert min(totals.values()) >= 0
    for what in (
        *("owed", "seen", "complete", "incomplete", "replies", "asked under a re-graft"),
        *("contexts changed", "for one floor", "quenched or woken", "filtered"),
        *("traced under churn", "reports"),
    ):
        assert totals[what] > 0, what


def test_the_plans_are_of_all_kinds() -> None:
    plans = [together_plan(seed) for seed in SEEDS]
    assert {plan.nodes for plan in plans} == {3, 4, 5, 6, 7, 9}
    assert sum(plan.advertisements for plan in plans) > len(SEEDS) // 2
    assert not all(plan.advertisements for plan in plans)
    assert {plan.mode for plan in plans} == {"liveness", "safety"}
    assert {TogetherStory(plan).knowledge for plan in plans[:20]} == set(KNOWLEDGE)
    acts = {act.what for plan in plans for act in plan.acts}
    assert acts == {
        *("start", "kill", "dark", "leave", "cut", "silence", "partition", "heal", "pause"),
        *("resume", "attach", "detach", "move", "arrive", "depart", "subscribe", "unsubscribe"),
        *("publish", "subscribe-band", "offer", "unoffer", "listen", "ask", "move-to", "trace"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("bug", SUSPECTS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    assert TELLER.sees(bug, (*SUSPECTS[bug], *SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("bug", ONLY_TOGETHER)
def test_some_bugs_are_seen_only_here(bug: str) -> None:
    assert TELLER.sees(bug, (*ONLY_TOGETHER[bug], *SEEDS))
    assert not any(other.sees(bug, SEEDS[:20]) for other in OTHERS)


def test_a_trace_says_that_a_guests_filter_keeps_it_from_a_neighbour() -> None:
    acts = (
        *(Act(10.0 * n, "start", (n, (0,) if n else ())) for n in range(2)),
        *(Act(2000, "arrive", (n, n)) for n in range(2)),
        Act(2100, "subscribe-band", (1, 1, "#", False, "", 0, 2)),
        *(Act(3500, "trace", (0, int(TraceMode.WHO), n)) for n in (1, 7)),
    )
    story = TogetherStory(Plan(1, "liveness", 2, acts, 5000), knowledge="all")
    assert story.tell() == []
    first, second = (told.reports for told in list(story.traces.values())[:2])
    assert first[0]["links"][0]["reason"] == "forwarded" and len(first) == 2
    assert second[0]["links"][0]["reason"] == "own-filter" and len(second) == 1


def test_the_same_seed_tells_the_same_story() -> None:
    assert len(TELLER.hashes(4)) == 1


def test_the_command_tells_such_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--together", "1", "2"]) == 0
    assert "by offers, liveness" in capsys.readouterr().out
