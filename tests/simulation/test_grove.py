"""Links that take the place of others, by seed, with all protocols; and bugs that must be found."""

from __future__ import annotations

from random import Random

import pytest

from regraft.routing.filters import Filter
from regraft.routing.reconfiguration import PROTOCOLS
from regraft.simulate.grove import MS, Grove, Record, Setting
from regraft.simulate.grove_story import MODES, GroveStory

SEEDS = range(400)
AT_ONCE = 50
BUGS = ("ignore-table-off", "flush-cancels-only", "withheld-at-once", "pdel-without-clients")


def wrong(seeds: range) -> dict[str, str]:
    stories = [GroveStory(seed) for seed in seeds]
    return {
        f"{story.seed}: {story.about}": found[0].text
        for story in stories
        if (found := story.tell())
    }


def test_routes_are_right_after_all() -> None:
    assert wrong(SEEDS[:AT_ONCE]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[AT_ONCE::AT_ONCE])
def test_routes_are_right_after_all_that(first: int) -> None:
    assert wrong(range(first, first + AT_ONCE)) == {}


def test_the_stories_have_everything() -> None:
    stories = [GroveStory(seed) for seed in SEEDS]
    told = {
        (story.mode, story.grove.setting.protocol, story.grove.setting.covering)
        for story in stories
    }
    assert told == {
        (mode, protocol, covering)
        for mode in MODES
        for protocol in (*PROTOCOLS, "mixed")
        for covering in (False, True)
    }


def finds(bug: str, seed: int) -> bool:
    try:
        return bool(GroveStory(seed, frozenset({bug})).tell())
    except (AssertionError, KeyError):  # what a bug has made of a table may make no sense at all
        return True


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert any(finds(bug, seed) for seed in SEEDS)


def test_the_same_seed_tells_the_same_story() -> None:
    said = []
    for _ in range(2):
        story = GroveStory(3)
        story.tell()
        said.append((story.grove.record.said, story.grove.now))
    assert said[0] == said[1]


# ------------------------------------------------------- where the papers' wording fails


def substitutions(protocol: str, bugs: tuple[str, ...] = (), runs: int = 20) -> list[Record]:
    """Isolated ones, with the path known, in trees of 40 nodes of which a half wants something."""
    found = []
    for seed in range(runs):
        random = Random(seed)
        grove = Grove(seed, 40, Setting(protocol, bugs=frozenset(bugs)))
        for site in grove.sites[::2]:
            grove.subscribe(site.number, Filter(f"p/{random.randrange(20)}", True, ""))
        grove.run()
        way = random.choice(grove.links())
        rid = grove.cut(way)
        a, b = way.source.number, way.target.number
        grove.record = Record()
        path = grove.replace(a, b, random.choice(grove.side(a)), random.choice(grove.side(b)), rid)
        grove.run(grove.now + 2000 * MS)  # before any timer
        on_path = {
            grove.sites.index(one) for one in grove.sites if one.name in {*path[0], *path[1]}
        }
        grove.record.touched -= on_path
        grove.run()
        assert ("flush-cancels-only" in bugs) or not list(grove.complaints())
        found.append(grove.record)
    return found


def test_only_the_path_is_touched_because_something_is_withheld() -> None:
    """Without it most substitutions concern others, too, and many more words are needed."""
    right = substitutions("reconfiguration-path")
    wrong = substitutions("reconfiguration-path", ("withheld-at-once",))
    assert not any(record.touched for record in right)
    assert sum(bool(record.touched) for record in wrong) >= 5
    assert sum(r.messages for r in wrong) > 1.2 * sum(r.messages for r in right)


def test_fewer_words_from_protocol_to_protocol() -> None:
    words = {name: sum(one.messages for one in substitutions(name)) for name in PROTOCOLS}
    assert words["reconfiguration-path"] < words["informed-activation"]
    assert words["informed-activation"] < words["deferred-notified"]
    assert words["deferred-timed"] < words["strawman"]
    assert words["reconfiguration-path"] < 0.5 * words["strawman"], words


def crossing(bugs: tuple[str, ...]) -> list[str]:
    """Two heads that cross: the same filter is turned along one link in both directions.

    The tree is 2-0-1-3, with 4 at 2 and 5 at 3. The links 0-4 and 1-5 are lost at once. 4 is to be
    reached by 1, so that 0 turns to 1; 5 by 0, so that 1 turns to 0.
    """
    grove = Grove(0, 1, Setting("reconfiguration-path", bugs=frozenset(bugs)))
    grove.sites += [grove.site(number) for number in range(1, 6)]
    for one, other in ((0, 1), (0, 2), (1, 3), (0, 4), (1, 5)):
        grove.link(one, other)
    same = Filter("p", True, "")
    for number in (4, 5):
        grove.subscribe(number, same)
    grove.run()
    lost = {way.target.number: way for way in grove.links() if way.target.number in (4, 5)}
    first, second = grove.cut(lost[4]), grove.cut(lost[5])
    grove.replace(0, 4, 1, 4, first)
    grove.replace(1, 5, 0, 5, second)
    grove.run()
    return [found.text for found in grove.complaints()]


def test_heads_that_cross_need_the_ignore_table() -> None:
    assert crossing(()) == []
    assert crossing(("ignore-table-off",)) != []


def test_flush_must_end_the_waiting() -> None:
    """If it merely cancels the timer, what waited is told for ever."""

    def told_for_nothing(bugs: tuple[str, ...]) -> int:
        grove = Grove(0, 1, Setting("deferred-notified", bugs=frozenset(bugs)))
        grove.sites += [grove.site(number) for number in range(1, 4)]
        for one, other in ((0, 1), (1, 2), (2, 3)):
            grove.link(one, other)
        grove.subscribe(3, Filter("p", True, ""))
        grove.run()
        (way,) = [way for way in grove.links() if way.target.number == 3]
        rid = grove.cut(way)
        grove.replace(2, 3, 0, 3, rid)
        grove.run()
        return len(list(grove.complaints()))

    assert told_for_nothing(()) == 0
    assert told_for_nothing(("flush-cancels-only",)) > 0
