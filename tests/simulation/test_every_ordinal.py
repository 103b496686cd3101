"""One small scene, and a fault at every write and every sync of it.

Whatever happens and whenever, the scene goes on after it: the node is started again, its clients
come back and retry. In the end nothing that was confirmed is lost, and nothing is there twice.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from regraft.limits import Limits
from regraft.simulate.durable_story import BOXES, DurableStory
from regraft.simulate.regular import Reading, Regular

LIMITS = Limits(
    segment_bytes=16_384,
    frame_bytes=4096,
    control_frame_bytes=4096,
    selector_bytes=1024,
    journal_tail_bytes=1,
)
NORTH, EAST, SOUTH, _ = BOXES


class Scene(DurableStory):
    """A publisher, a reader, three mailboxes, three segments."""

    def __init__(self, seed: int, power: bool, confirm_early: bool = False) -> None:
        super().__init__(seed, confirm_early=confirm_early)
        self.limits = LIMITS
        self.retention = {}
        self.power = power
        self.second: tuple[str, int] | None = None  # what halts the disk that is found then
        self.publisher = Regular("p", self.ledger)
        self.reader = Regular("r", self.ledger)
        self.regulars = [self.publisher, self.reader]

    def play(self) -> list[str]:
        """The scene; the complaints."""
        for _ in self.steps_of_it():
            self.world.advance(12)
            self.go_on()
        if not self.over:
            self.finish()
        return self.complaints

    def go_on(self) -> None:
        """Start what has ended; bring back who is away."""
        if self.ledger.broken:
            self.end(self.power)
        if self.broker.stopped:
            self.restart()
            if self.second is not None and not self.over:
                self.broker.on_halt = lambda: self.end(self.power)
                self.disk.halt(*self.second)
                self.second = None
        for regular in self.regulars:
            if not regular.here and not self.over:
                self.come(regular)
        self.world.advance(2)

    def start(self) -> None:
        self.begin()
        self.broker.on_halt = lambda: self.end(self.power)

    def publish(self, count: int, padding: int) -> None:
        for number in range(count):
            self.publisher.publish(("kept/a", "kept/b", "loose/a")[number % 3], number, padding)

    def reading(self, name: str) -> Reading | None:
        """What it reads of a mailbox, if it does."""
        for reading in self.reader.readings.values():
            if reading.box is not None and reading.box.name == name and not reading.ending:
                return reading if reading.stands else None
        return None

    def attach(self, box: tuple[str, str, int]) -> None:
        boxes = [one.box for one in self.reader.readings.values() if not one.ending]
        if self.ledger.current.get(box[0]) not in boxes:
            self.reader.attach(self.ledger.box(*box))

    def settle(self, name: str, every: int, confirmed: bool) -> None:
        reading = self.reading(name)
        if reading is not None and reading.held:
            self.reader.settle(reading, list(reading.held)[::every], confirmed)

    def leave(self, name: str, remove: bool) -> None:
        reading = self.reading(name)
        if reading is not None:
            self.reader.end(reading, remove)

    def steps_of_it(self) -> Iterator[None]:
        self.go_on()
        yield self.attach(NORTH)
        yield self.publish(4, 200)
        yield self.attach(EAST)
        yield self.settle("north", 1, True)
        yield self.publish(9, 1500)
        yield self.settle("north", 2, False)
        yield self.leave("north", False)
        yield self.publish(6, 1500)
        yield self.attach(NORTH)
        yield self.settle("east", 1, True)
        yield self.leave("east", True)
        yield self.publish(9, 1200)
        yield self.attach(SOUTH)
        yield self.settle("north", 1, True)
        yield self.publish(5, 50)
        yield self.settle("south", 2, True)
        self.world.advance(1100)  # a tick, and with it what the journal does by itself
        yield None


def rehearse() -> dict[str, int]:
    """How many writes and syncs the scene has."""
    scene = Scene(0, power=False)
    scene.start()
    disk = scene.disk
    for _ in scene.steps_of_it():
        scene.world.advance(12)
        scene.go_on()
    return dict(disk.counts)


COUNTS = rehearse()
ENDS = [
    (what, after, power)
    for what in ("write", "sync")
    for after in (False, True)
    for power in (False, True)
]


def ended(what: str, at: int, after: bool, power: bool, confirm_early: bool = False) -> list[str]:
    """The process dies, or the power fails, at or just after the Nth write or sync."""
    scene = Scene(at, power, confirm_early)
    scene.start()
    scene.disk.halt(what, at, after)
    return scene.play()


def failed(what: str, at: int, number: int, power: bool) -> list[str]:
    """The Nth write or sync fails."""
    scene = Scene(at, power)
    scene.start()
    scene.disk.fail(what, at, number)
    return scene.play()


def test_the_scene_is_large_enough() -> None:
    assert COUNTS["write"] > 20
    assert COUNTS["sync"] > 20
    assert COUNTS["create"] >= 3
    scene = Scene(0, power=False)
    scene.start()
    assert scene.play() == []
    assert scene.ledger.counts["confirmed"] == 33
    assert scene.ledger.counts["settled"] > 20


@pytest.mark.parametrize(("what", "after", "power"), ENDS)
def test_the_end_at_every_ordinal(what: str, after: bool, power: bool) -> None:
    found = {at: ended(what, at, after, power) for at in range(1, COUNTS[what] + 1)}
    assert {at: complaints for at, complaints in found.items() if complaints} == {}


@pytest.mark.parametrize("what", ["write", "sync", "create"])
@pytest.mark.parametrize(
    ("number", "power"), [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, False)]
)
def test_a_failure_at_every_ordinal(what: str, number: int, power: bool) -> None:
    found = {at: failed(what, at, number, power) for at in range(1, COUNTS[what] + 1)}
    assert {at: complaints for at, complaints in found.items() if complaints} == {}


def test_an_end_soon_after_the_end() -> None:
    """The node dies again while it has just begun to go on."""
    found = {}
    twice = 0
    for at in range(1, COUNTS["sync"] + 1):
        scene = Scene(at, power=at % 2 == 0)
        scene.start()
        scene.disk.halt("sync", at)
        scene.second = ("write", "sync")[at % 2], at % 3 + 1
        found[at] = scene.play()
        ends = scene.events["process death"] + scene.events["power cut"]
        twice += ends == 5  # three of them are part of the finish
    assert twice > 20
    assert {at: complaints for at, complaints in found.items() if complaints} == {}


def test_confirming_too_early_is_seen() -> None:
    assert any(
        "which was confirmed" in complaint
        for at in range(1, COUNTS["sync"] + 1)
        for complaint in ended("sync", at, after=False, power=True, confirm_early=True)
    )
