"""A simulated broker with a disk: what it leaves when it ends, and what the next one finds."""

from __future__ import annotations

import pytest

from regraft.errors import DiskError, LocalError
from regraft.journal.requests import Persist, Piece, PrepareSegment
from regraft.limits import Limits
from regraft.node.storage import Retained
from regraft.simulate import Broker, Disk, World
from regraft.simulate.ledger import Ledger
from regraft.simulate.regular import Reading, Regular

LIMITS = Limits(
    segment_bytes=16_384, frame_bytes=4096, control_frame_bytes=4096, selector_bytes=1024
)
STREAMS = [Retained("all", "#")]


def start(world: World, disk: Disk | None) -> Broker:
    assert disk is not None
    return world.broker(limits=LIMITS, disk=disk, streams=STREAMS)


def visit(world: World, broker: Broker, name: str = "r", ledger: Ledger | None = None) -> Regular:
    regular = Regular(name, ledger or Ledger(world, "#"))
    regular.come(broker)
    return regular


def held(world: World, broker: Broker, ledger: Ledger) -> Reading:
    """What a replay of everything gets."""
    reading = visit(world, broker, "auditor", ledger).replay(sequence=1)
    world.advance(100)
    return reading


def publish(world: World, regular: Regular, count: int) -> None:
    for _ in range(count):
        regular.publish("t", 0, 0)
    world.advance(50)


@pytest.mark.parametrize("how", [Broker.kill, Broker.power_off, Broker.stop])
def test_what_was_confirmed_is_there_whatever_happened(how: object) -> None:
    world = World(3)
    broker = start(world, world.disk())
    regular = visit(world, broker)
    publish(world, regular, 20)
    assert not regular.unconfirmed
    regular.go()
    how(broker)  # type: ignore[operator]
    world.advance(20_000)
    assert broker.stopped and broker.disk is not None and not broker.disk.halted
    reading = held(world, start(world, broker.disk), regular.ledger)
    assert (reading.first, reading.last) == (1, 20)


def test_a_power_cut_may_take_what_was_not_confirmed_and_a_death_does_not() -> None:
    left: dict[str, list[int]] = {"death": [], "cut": []}
    for seed in range(12):
        for how in left:
            world = World(seed)
            broker = start(world, world.disk())
            regular = visit(world, broker)
            world.advance(20)
            for _ in range(30):
                regular.publish("t", 0, 200)
            while broker.disk is not None and broker.disk.counts["write"] < 3:
                world.advance(0.05)
            broker.kill() if how == "death" else broker.power_off()
            left[how].append(held(world, start(world, broker.disk), regular.ledger).last)
    pairs = list(zip(left["cut"], left["death"], strict=True))
    assert all(cut <= death for cut, death in pairs)
    assert 0 < sum(cut < death for cut, death in pairs) < 12


def test_a_disk_that_halts_ends_its_broker() -> None:
    world = World(1)
    disk = world.disk()
    broker = start(world, disk)
    regular = visit(world, broker)
    world.advance(20)
    disk.halt("sync", disk.counts["sync"] + 1)
    publish(world, regular, 1)
    assert broker.stopped and not regular.here
    assert broker.disk is not disk and broker.disk is not None and not broker.disk.halted
    assert regular.unconfirmed


def test_a_broker_on_a_damaged_disk_does_not_start() -> None:
    world = World(1)
    broker = start(world, world.disk())
    publish(world, visit(world, broker), 5)
    publish(world, visit(world, broker, "other"), 5)
    broker.kill()
    assert broker.disk is not None
    broker.disk.open_segments()
    broker.disk.rot(0, 400)
    with pytest.raises(DiskError, match="repair"):
        start(world, broker.disk)


def test_what_is_durable() -> None:
    disk = World(1).disk(capacity=100_000)
    assert not disk.is_durable(b"abc") and disk.used == 0
    disk.perform(PrepareSegment(0, 4096))
    disk.perform(Persist((Piece(0, 0, b"abcdef"),), 4096))
    assert disk.is_durable(b"bcd") and disk.used == 4096
    disk.halt("sync", 2)
    disk.perform(Persist((Piece(0, 6, b"ghi"),), 4096))
    assert not disk.is_durable(b"ghi")


def test_a_stream_that_is_missing_in_the_configuration_is_not_thrown_away() -> None:
    world = World(5)
    broker = start(world, world.disk())
    ledger = Ledger(world, "#")
    publish(world, visit(world, broker, ledger=ledger), 9)
    broker.kill()
    assert broker.disk is not None
    again = world.broker(limits=LIMITS, disk=broker.disk, streams=[])
    assert held(world, again, ledger).last == 9
    again.kill()
    assert again.disk is not None
    with pytest.raises(LocalError, match="another name"):
        world.broker(limits=LIMITS, disk=again.disk, streams=[Retained("all", "other/#")])
