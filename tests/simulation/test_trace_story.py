"""Stories of traces, by seed; and planted bugs that these very seeds must find."""

from __future__ import annotations

import pytest

from regraft.simulate.__main__ import main
from regraft.simulate.trace_story import TraceStory, trace_plan
from regraft.wire.traces import TraceMode
from tests.simulation.telling import Teller, several

SEEDS = range(80)
FEW = 8


TELLER = Teller(TraceStory, trace_plan)


def test_nothing_is_wrong_with_a_few_stories() -> None:
    assert TELLER.wrong(SEEDS[:FEW]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", several(SEEDS[FEW:]))
def test_nothing_is_wrong_with_the_stories(seeds: range) -> None:
    assert TELLER.wrong(seeds) == {}


def test_a_planted_bug_is_seen() -> None:
    assert TELLER.sees("blind-trace", SEEDS)


def test_the_stories_are_eventful() -> None:
    modes: dict[TraceMode, int] = {}
    reports = complete = incomplete = seen = 0
    for seed in SEEDS[:FEW]:
        story = TraceStory(trace_plan(seed))
        assert story.tell() == []
        for told in story.traces.values():
            modes[told.mode] = modes.get(told.mode, 0) + 1
            reports += len(told.reports)
            seen += len(told.seen)
            if told.ended is not None:
                complete += told.ended.complete
                incomplete += not told.ended.complete
    assert modes.keys() == set(TraceMode)
    assert reports > 100 and complete > 30 and incomplete > 3 and seen > 5


def test_the_same_seed_tells_the_same_story() -> None:
    assert len(TELLER.hashes(3)) == 1


def test_the_command_tells_such_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", "1", "2"]) == 0
    assert "seed 2: traces" in capsys.readouterr().out
