"""Stories of questions and contexts, by seed; and planted bugs that these very seeds must find."""

from __future__ import annotations

import pytest

from regraft.simulate.__main__ import main
from regraft.simulate.answers import Answers, Inquiry
from regraft.simulate.floors import ANY
from regraft.simulate.reply_story import ReplyStory, reply_plan
from tests.simulation.telling import Teller, add, several

SEEDS = range(80)
FEW = 10
SUSPECTS = {  # seeds that found it lately, which are tried first
    "dead-is-done": (55, 57, 58),
    "late-is-done": (56, 57, 58),
    "stale-context": (0, 2, 4),
}


TELLER = Teller(ReplyStory, reply_plan)


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
    counts: dict[str, int] = {}
    acts: dict[str, int] = {}
    for seed in SEEDS[:FEW]:
        story = ReplyStory(reply_plan(seed))
        assert story.tell() == []
        add(counts, {**story.answers.counts, **story.deliveries.counts})
        add(acts, story.counts)
    assert counts["asked"] > 60 and counts["replies"] > 100 and counts["seen"] > 30
    assert counts["complete"] > 20 and counts["incomplete"] > 10
    assert {"come", "depart", "move-to", "ask", "notice", "start", "kill"} <= acts.keys()


def test_the_same_seed_tells_the_same_story() -> None:
    assert len(TELLER.hashes(3)) == 1


def test_the_command_tells_such_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replies", "1", "2"]) == 0
    assert "seed 2: questions" in capsys.readouterr().out


# ----------------------------------------------------------------------------- the judge


def kinds(answers: Answers, disturbed: list[tuple[int, int]] | None = None) -> set[str]:
    return {found.kind for found in answers.judge(100_000_000_000, disturbed or [])}


def inquiry(**more: object) -> tuple[Answers, Inquiry]:
    answers = Answers()
    one = Inquiry("q", "asker", 0, 1000, ANY, True)
    answers.ask(one)
    return answers, one


def test_the_judge_wants_all_to_be_done_before_it_is_complete() -> None:
    answers, _ = inquiry()
    answers.came("q", "a", 1)
    answers.ended("q", 1, 0, True, "", 2)
    assert kinds(answers) == {"not complete"}
    answers, _ = inquiry()
    answers.ended("q", 1, 0, True, "", 2)
    assert kinds(answers) == {"not complete"}  # a replier that nobody was


def test_the_judge_wants_all_replies_once_and_in_order() -> None:
    answers, _ = inquiry()
    asked = answers.came("q", "a", 1)
    asked.said, asked.done_ns = 2, 2
    answers.replied("q", "a", 1)
    answers.replied("q", "a", 0)
    answers.ended("q", 1, 1, True, "", 3)
    assert kinds(answers) == {"repeated"}
    answers, _ = inquiry()
    answers.replied("q", "a", 0)
    assert "invented" in kinds(answers)


def test_the_judge_wants_what_is_complete_to_be_called_so() -> None:
    answers, _ = inquiry()
    asked = answers.came("q", "a", 1)
    asked.done_ns = 2
    answers.ended("q", 1, 0, False, "no reason", 3)
    assert kinds(answers) == {"complete"}
    assert kinds(answers, [(0, 10)]) == set()
    answers, _ = inquiry()
    assert kinds(answers) == {"endless"}
    answers.gone["asker"] = 5
    assert kinds(answers) == set()


def test_the_judge_looks_at_contexts() -> None:
    answers = Answers()
    answers.ask(Inquiry("q", "asker", 0, 1000, 1))
    answers.gone["asker"] = 5
    answers.floors.moves("a", 1, 0).known_ns = 10
    answers.came("q", "a", 20)
    assert kinds(answers) == set()
    answers.floors.moves("b", 1, 0).known_ns = 10
    answers.floors.moves("b", 2, 30).known_ns = 40
    answers.came("q", "b", 1_000_000_000)
    assert kinds(answers) == {"context"}
