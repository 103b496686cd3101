"""Stories of traces, by seed; and planted bugs that these very seeds must find."""

from __future__ import annotations

import pytest

from regraft.simulate.__main__ import main
from regraft.simulate.checkers import Complaint
from regraft.simulate.trace_story import TraceStory, trace_plan
from regraft.wire.traces import TraceMode

SEEDS = range(200)
FEW = 8
AT_ONCE = 12  # seeds of one test, so that tests can be spread


def tell(seed: int, *bugs: str) -> list[Complaint]:
    return TraceStory(trace_plan(seed), frozenset(bugs)).tell()


def wrong(seeds: range) -> dict[int, list[Complaint]]:
    told = {seed: tell(seed) for seed in seeds}
    return {seed: found for seed, found in told.items() if found}


def test_nothing_is_wrong_with_a_few_stories() -> None:
    assert wrong(SEEDS[:FEW]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[FEW::AT_ONCE])
def test_nothing_is_wrong_with_the_stories(first: int) -> None:
    assert wrong(range(first, min(first + AT_ONCE, len(SEEDS)))) == {}


def test_a_planted_bug_is_seen() -> None:
    assert any(tell(seed, "blind-trace") for seed in SEEDS)


def test_the_stories_are_eventful() -> None:
    modes: dict[TraceMode, int] = {}
    reports = complete = incomplete = seen = 0
    for seed in SEEDS[:FEW]:
        story = TraceStory(trace_plan(seed))
        assert story.tell() == []
        for told in story.traces:
            modes[told.mode] = modes.get(told.mode, 0) + 1
            reports += len(told.reports)
            seen += len(told.seen)
            if told.ended is not None:
                complete += told.ended.complete
                incomplete += not told.ended.complete
    assert modes.keys() == set(TraceMode)
    assert reports > 100 and complete > 30 and incomplete > 3 and seen > 5


def test_the_same_seed_tells_the_same_story() -> None:
    one, other = (TraceStory(trace_plan(3)) for _ in range(2))
    assert one.tell() == other.tell() == []
    assert one.trace_hash == other.trace_hash


def test_the_command_tells_such_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", "1", "2"]) == 0
    assert "seed 2: traces" in capsys.readouterr().out
