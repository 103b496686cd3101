"""Random stories of many nodes, by seed; and planted bugs that these very seeds must find."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from regraft.simulate.__main__ import Networks, main, seeds_of
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.plan import Act, Plan, churn_plan, make_plan
from regraft.simulate.shrink import shrink
from tests.simulation.telling import Teller, add, several

SEEDS = range(400)
FEW = 12
SUSPECTS = {  # seeds that found it lately, which are tried first
    "no-guard": (5, 10),
    "stale-acceptance": (11, 17),
    "unsubscribe-first": (12, 14),
    "trusting": (96,),
    "confirm-early": (3, 4),
}


TELLER = Teller(NetworkStory, make_plan)


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
    plans = [make_plan(seed) for seed in SEEDS]
    assert {plan.mode for plan in plans} == {"safety", "liveness"}
    assert min(plan.nodes for plan in plans) == 3 and max(plan.nodes for plan in plans) == 20
    acts = {act.what for plan in plans for act in plan.acts}
    assert acts == {
        *("start", "arrive", "depart", "subscribe", "unsubscribe", "publish", "leave"),
        *("kill", "dark", "cut", "silence", "partition", "heal", "pause", "resume"),
        *("attach", "detach", "move", "keep", "box", "settle", "fail", "fill", "room", "halt"),
    }
    assert 150 < sum(bool(plan.disks) for plan in plans) < 250
    story = NetworkStory(make_plan(2))
    assert story.tell() == []
    assert story.deliveries.counts["owed"] > 100 and story.deliveries.counts["seen"] > 100


def test_the_same_seed_tells_the_same_story() -> None:
    """In other processes, too, whose sets have another order."""

    def told(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "regraft.simulate", "--network", "8", "9", "10"]
        return subprocess.check_output(command, env=environment, text=True)

    assert told("1") == told("2")


@pytest.mark.slow
def test_disks_are_eventful() -> None:
    happened: dict[str, int] = {}
    for seed in range(20):
        story = NetworkStory(make_plan(seed, nodes=5, disks=True))
        assert story.tell() == []
        add(happened, story.disks.counts | story.counts)
    assert happened["confirmed"] > 500
    for why in ("journal-failed", "disk-full", "not-supported"):
        assert happened[f"refused: {why}"] > 1, why
    for what in ("box", "settle", "fail", "fill", "room", "halt", "kill", "dark"):
        assert happened[what] > 1, what


def test_a_plan_can_be_without_disks() -> None:
    with_disks, without = make_plan(3, disks=True), make_plan(3, disks=False)
    assert with_disks.disks and not without.disks
    assert set(without.acts) < set(with_disks.acts)


@pytest.mark.slow
def test_many_nodes_that_come_and_go() -> None:
    story = NetworkStory(churn_plan(0, nodes=60, lasting_ms=8000))
    assert story.tell() == []
    assert story.counts["kill"] + story.counts["dark"] > 20


# ------------------------------------------------------------------------------ shrinking


def test_a_plan_is_shortened_to_what_matters() -> None:
    acts = tuple(Act(number, "publish", (number,)) for number in range(100))
    plan = Plan(0, "safety", 3, acts, 1000)

    def fails(other: Plan) -> bool:
        left = {act.args[0] for act in other.acts}
        return {17, 18, 80} <= left

    short, tries = shrink(plan, fails)
    assert [act.args[0] for act in short.acts] == [17, 18, 80]
    assert tries < 100
    few, tries = shrink(plan, fails, tries_max=3)
    assert tries == 3 and fails(few)


@pytest.mark.slow
def test_a_failure_is_shortened_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    networks = Networks(bugs=frozenset({"no-guard"}), quiet=True, tries_max=100)
    seed = next(seed for seed in (*SUSPECTS["no-guard"], *SEEDS) if TELLER.tell(seed, "no-guard"))
    assert networks.tell(seed)
    printed = capsys.readouterr().out
    assert f"seed {seed}:" in printed and "acts are enough" in printed
    enough, of = printed.split(" acts are enough")[0].rsplit("\n", 1)[-1].split(" of ")
    assert int(enough) < int(of) / 2


def test_the_command_says_what_it_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "3", "--mode", "safety", "--trace", "--seeds", "1..1"]) == 0
    printed = capsys.readouterr().out
    assert "start 0" in printed and "seed 1: 3 nodes, safety" in printed
    assert list(seeds_of(["3", "5..7"])) == [3, 5, 6, 7]


def test_several_at_a_time_say_what_one_by_one_would(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = ["--network", "--nodes", "3", "0..3"]
    assert main(seeds) == 0
    alone = capsys.readouterr().out
    assert main([*seeds, "--jobs", "2"]) == 0
    assert capsys.readouterr().out == alone and alone.count("seed ") == 4


def test_a_story_that_breaks_off_is_one_that_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(networks: Networks, seed: int) -> list[str]:
        return [] if seed % 50 else [str(1 // 0)]

    monkeypatch.setattr(Networks, "tell", broken)
    assert main(["--network", "--jobs", "1", "1..130"]) == 1
    printed = capsys.readouterr().out
    assert "ZeroDivisionError" in printed and "130 seeds, 2 stories failed" in printed
    assert "seeds that failed: 50 100" in printed


@pytest.mark.parametrize("words", [["x"], ["5..3"], ["0..9", "--jobs", "-1"]])
def test_what_is_no_seed_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "error: " in capsys.readouterr().err


def test_who_interrupts_it_hears_how_far_it_came() -> None:
    command = [sys.executable, "-u", "-m", "regraft.simulate", "--network", "--jobs", "2", "0..99"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None and it.stdout.readline().startswith("seed 0: ")
            it.send_signal(signal.SIGINT)
            out, err = it.communicate(timeout=60)
        finally:
            it.kill()
    assert it.returncode == 130 and "stories failed" in out
    assert "interrupted, " in err and "of 100 seeds were told" in err
