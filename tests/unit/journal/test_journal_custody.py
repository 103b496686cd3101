"""What a journal knows of other nodes: the same after a restart, and after a snapshot."""

from __future__ import annotations

from journal_world import World

from regraft.journal.format import HomeTold, Interest, OriginHeard
from regraft.journal.streams import Arrivals

HERE, THERE = "aa" * 16, "bb" * 16


def interest(number: int, version: int) -> Interest:
    return Interest(number, f"box-{number}", "a/#", False, "n > 5", version)


def told(version: int, add: list[Interest], remove: list[int], gone: bool = False) -> HomeTold:
    return HomeTold(HERE, "cc" * 16, "athens", version, gone, add, remove)


def persist(world: World) -> None:
    world.flush()


def homes(world: World) -> dict[str, tuple[int, bool, list[int]]]:
    state = world.journal.state
    return {
        home.journal: (home.version, home.gone, sorted(home.interests))
        for home in state.homes.values()
    }


def test_other_nodes_are_known_after_a_restart_and_a_snapshot() -> None:
    world = World()
    world.journal.control(told(3, [interest(1, 3), interest(2, 3)], []), world.now)
    world.journal.control(told(4, [interest(5, 4)], [1, 77]), world.now)
    persist(world)
    expected = {HERE: (4, False, [2, 5])}
    assert homes(world) == expected
    world.start()
    assert homes(world) == expected
    assert world.journal.write_snapshot(world.now)
    persist(world)
    world.start()
    assert homes(world) == expected
    assert world.journal.state.homes[HERE].interests[5] == interest(5, 4)
    world.journal.control(told(9, [], [2, 5], gone=True), world.now)
    persist(world)
    world.start()
    assert homes(world) == {HERE: (9, True, [])}


def heard(world: World, number: int, stream: int, shift: int) -> Arrivals:
    known = world.journal.state.origins.get(THERE)
    if known is not None and known.number != number:
        world.journal.free_slot(known)
    world.journal.control(OriginHeard(number, THERE, stream, shift), world.now)
    arrivals = world.journal.state.origins[THERE]
    if arrivals is not known:
        world.journal.give_slot(arrivals)
    return arrivals


def came(world: World) -> int:
    arrivals = world.journal.state.origins[THERE]
    world.journal.refresh(arrivals)
    return arrivals.next_sequence + arrivals.shift - 1


def test_what_came_is_what_is_kept() -> None:
    world = World()
    box = world.journal.make_mailbox("box", "a/#", False, "", "ann", world.now)
    arrivals = heard(world, world.journal.state.numbers, 7, 40)
    for _ in range(5):
        world.publish(box, arrivals, count=3)
    persist(world)
    world.publish(box, arrivals, count=3)  # which is lost
    assert came(world) == 58
    world.start()
    assert came(world) == 55
    assert world.journal.state.mailboxes["box"].next_sequence == 16
    heard(world, world.journal.state.origins[THERE].number, 7, 100)
    persist(world)
    assert world.journal.write_snapshot(world.now)
    persist(world)
    world.start()
    assert came(world) == 115
    again = heard(world, world.journal.state.numbers, 9, 0)
    persist(world)
    world.start()
    assert came(world) == 0 and world.journal.state.origins[THERE].stream == again.stream == 9


def test_what_came_holds_no_segment() -> None:
    world = World()
    box = world.journal.make_mailbox("box", "a/#", False, "", "ann", world.now)
    arrivals = heard(world, world.journal.state.numbers, 7, 0)
    for _ in range(60):
        world.publish(box, arrivals, body=b"." * 1000)
        persist(world)
    assert len(world.files) >= 4
    world.journal.settle(box.number, [(1, 60)], world.now)
    for _ in range(40):
        world.publish(arrivals, body=b"." * 1000)
        world.journal.tick(world.now)
        persist(world)
    assert len(world.removed) >= 3
    world.start()
    assert came(world) == 100
