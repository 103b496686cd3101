"""The tree of overlays under all kinds of trouble, by seed; and a checker that is known to see."""

from __future__ import annotations

import pytest
from overlay_story import Story
from overlay_world import MS, Host, S, World, Wrong

from regraft.overlay.seeking import Stage


def crowd(seed: int, bugs: frozenset[str] = frozenset()) -> Story:
    """Few nodes, slow messages, links that break all at once: requests cross all the time."""
    return Story(seed, bugs, count=4 + seed % 3, troubles=100, pace_ms=60, crowded=True)


@pytest.mark.parametrize("seed", range(40))
def test_there_is_never_a_ring_and_in_the_end_one_tree(seed: int) -> None:
    Story(seed).tell()


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_there_is_no_ring_where_all_ask_all(seed: int) -> None:
    world = crowd(seed).tell()
    assert world.counters["added"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_more_stories(block: int) -> None:
    for seed in range(2000 + 20 * block, 2020 + 20 * block):
        Story(seed).tell()
        crowd(seed).tell()


@pytest.mark.parametrize("bug", ["no-guard", "stale-acceptance"])
def test_a_planted_bug_makes_rings_that_are_seen(bug: str) -> None:
    with pytest.raises(Wrong, match="a ring through"):
        for seed in range(200):
            crowd(seed, frozenset([bug])).tell()


def test_the_same_seed_tells_the_same_story() -> None:
    first, second, other = (Story(seed).tell() for seed in (7, 7, 8))
    assert (first.counters, first.now_ns) == (second.counters, second.now_ns)
    assert first.counters != other.counters


def test_the_stories_are_eventful() -> None:
    """What can happen to a request does happen in these stories."""
    missing = {
        *("attached", "dead", "removed", "cancelled", "late-acceptances", "unanswered", "urgent"),
        *("refused-own-tree", "refused-busy", "refused-full", "refused-lost"),
    }
    for seed in range(40):
        for story in (Story(seed), crowd(seed)):
            for host in story.tell().hosts:
                if host.tree is not None:
                    missing -= set(host.tree.snapshot()["counters"])
        if not missing:
            break
    assert not missing


# ------------------------------------------------------------------------ times

HOP = 5  # ms, for every message


def even(count: int, **options: object) -> World:
    """A world in which every message takes the same time, all nodes started one by one."""
    world = World(1, count, delay_ms=(HOP, HOP), loss=0.0, **options)
    for host in world.hosts:
        world.start(host)
        world.run(world.now_ns + 1 * S)
    world.converge(10)
    world.run(world.now_ns + 5 * S)
    return world


def orphans(world: World, host: Host) -> list[Host]:
    return [other for other in world.hosts if world.parent_of(other) is host]


def until_attached(world: World, hosts: list[Host], bound_ms: int) -> float:
    """The milliseconds until all of them have a parent that is up."""
    begun_ns = world.now_ns
    while any((above := world.parent_of(host)) is None or not above.up for host in hosts):
        assert world.now_ns - begun_ns <= bound_ms * MS
        world.run(world.now_ns + MS)
    return (world.now_ns - begun_ns) / MS


def test_an_orphan_is_attached_after_one_round_trip_and_the_climb() -> None:
    world = even(16, max_degree=3)
    inner = next(
        host
        for host in world.hosts
        if orphans(world, host) and (above := world.parent_of(host)) and world.parent_of(above)
    )
    orphaned = orphans(world, inner)
    grandparent = world.parent_of(inner)
    assert grandparent is not None and grandparent.tree is not None
    climb = grandparent.tree.snapshot()["hops"]
    world.crash(inner)
    took = until_attached(world, orphaned[:1], 1000)
    notice, round_trip = HOP, 2 * HOP
    assert took <= notice + round_trip + 2 * climb * HOP + 2
    assert not any(host.tree and host.tree.snapshot()["stage"] != "rest" for host in orphaned[:1])


def test_the_children_of_a_dead_root_meet_within_a_few_round_trips() -> None:
    world = even(8)
    (root,) = world.roots()
    orphaned = orphans(world, root)
    assert len(orphaned) > 3
    world.crash(root)
    world.run(world.now_ns + 100 * MS)
    assert len(world.roots()) == 1


def test_a_silent_death_is_noticed_by_beacons() -> None:
    world = even(8)
    inner = next(host for host in world.hosts if world.parent_of(host) and not orphans(world, host))
    above = world.parent_of(inner)
    assert above is not None and above.tree is not None
    world.crash(inner, silent=True)
    world.run(world.now_ns + int(2.25 * 500 + 100) * MS)
    assert inner.node not in above.tree.children


def test_parted_trees_find_each_other_again() -> None:
    world = even(12)
    world.cut({host.number: host.number % 2 for host in world.hosts})
    world.run(world.now_ns + 30 * S)
    assert len(world.roots()) == 2
    world.cut({})
    assert world.converge(20) < 15


def test_a_process_that_slept_for_a_moment_changes_nothing() -> None:
    world = even(4)
    (root,) = world.roots()
    before = world.counters["added"]
    world.pause(root)
    world.run(world.now_ns + 550 * MS)
    world.resume(root)
    assert len(orphans(world, root)) == 3
    world.run(world.now_ns + 10 * S)
    assert world.counters["added"] == before


def test_a_node_that_leaves_gives_its_children_to_its_parent() -> None:
    world = even(12, max_degree=4)
    inner = next(host for host in world.hosts if orphans(world, host) and world.parent_of(host))
    heir, left = world.parent_of(inner), orphans(world, inner)
    assert inner.tree is not None and heir is not None and heir.tree is not None
    inner.tree.leave(world.now_ns)
    inner.tree.part(world.now_ns)
    world.after(inner)
    assert until_attached(world, left, 1000) < 200
    assert not any(
        host.tree and host.tree.snapshot()["counters"].get("dead") for host in (heir, *left)
    )
    assert len(orphans(world, heir)) >= 2  # room for one more than before


def test_a_root_that_leaves_gives_them_to_one_of_them() -> None:
    world = even(6)
    (root,) = world.roots()
    assert root.tree is not None
    heir = world.by_node[root.tree.successor().node]
    root.tree.leave(world.now_ns)
    root.tree.part(world.now_ns)
    world.after(root)
    world.run(world.now_ns + 100 * MS)
    world.crash(root)
    assert world.roots() == [heir]
    assert heir.tree is not None and heir.tree.snapshot()["stage"] == Stage.REST.value


def test_a_fixed_parent_is_asked_again_and_nobody_else() -> None:
    world = World(3, 4, delay_ms=(HOP, HOP), loss=0.0, seeds=())
    for host, above in zip(world.hosts, [world.hosts[0], *world.hosts], strict=False):
        host.options = type(host.options)(parent=above.address)
    for host in world.hosts:
        world.start(host)
    world.converge(10)
    assert [world.parent_of(host) for host in world.hosts] == [None, *world.hosts[:-1]]
    world.crash(world.hosts[1])
    world.run(world.now_ns + 20 * S)
    assert [host.number for host in world.roots()] == [1, 3]
    world.start(world.hosts[1])
    assert world.converge(10) < 6
    assert [world.parent_of(host) for host in world.hosts] == [None, *world.hosts[:-1]]
