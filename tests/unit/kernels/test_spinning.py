"""When a node looks for more before it sleeps, and when it does not."""

from __future__ import annotations

from collections.abc import Callable

from regraft.kernels.spinning import CROWDED_NS, QUICK_YIELDS, TRIED_AGAIN, Spin


class World:
    """A loop and a clock: each look takes a microsecond, giving way as long as is said."""

    def __init__(self, spin_us: int = 10) -> None:
        self.ns = 0
        self.yields = 0
        self.takes_ns = 0
        self.soon: list[Callable[[], None]] = []
        self.spin = Spin(self.call_soon, spin_us, lambda: self.ns, self.give_way)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def give_way(self) -> None:
        self.yields += 1
        self.ns += self.takes_ns

    def read(self) -> None:
        self.spin.read()

    def turn(self) -> None:
        for callback in [self.soon.pop() for _ in range(len(self.soon))]:
            self.ns += 1000
            callback()

    def sleeps(self, turns: int = 100) -> int:
        """How many turns go by until the process sleeps."""
        for k in range(turns):
            if not self.soon:
                return k
            self.turn()
        return turns


def test_it_looks_for_a_moment_and_longer_if_something_comes() -> None:
    world = World()
    world.read()
    assert world.sleeps() == 10 and world.yields == 9
    world.spin.reads = TRIED_AGAIN - 1
    world.read()
    for _ in range(5):
        assert world.sleeps(8) == 8
        world.read()
    assert world.sleeps() > 8
    assert not world.spin.active


def test_where_nothing_came_the_chance_is_seldom_taken_again() -> None:
    world = World()
    world.read()
    world.sleeps()
    begun = []
    for _ in range(3 * TRIED_AGAIN):
        world.read()
        if world.soon:
            begun.append(world.spin.reads)
        world.sleeps()
    assert begun == [TRIED_AGAIN, 2 * TRIED_AGAIN, 3 * TRIED_AGAIN]


def crowded_for(world: World) -> int:
    """For how long nothing is looked for once giving way takes long, in ms."""
    world.takes_ns = CROWDED_NS
    world.read()
    assert world.sleeps() <= 2
    world.takes_ns = 0
    began = world.ns
    while True:
        world.ns += 500_000
        world.read()
        if world.soon:
            return round((world.ns - began) / 1e6)


def test_where_others_have_work_it_sleeps_at_once_for_a_while_and_longer_each_time() -> None:
    world = World(spin_us=1000)
    assert [crowded_for(world) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 64, 128, 128]
    yields = world.yields
    world.sleeps(1 + QUICK_YIELDS)  # nobody else has work any more
    assert world.yields >= yields + QUICK_YIELDS
    assert crowded_for(world) == 1


def test_a_quick_yield_is_no_sign_of_others() -> None:
    world = World(spin_us=1000)
    world.takes_ns = CROWDED_NS - 1000
    world.read()
    assert world.sleeps() == 6  # the whole millisecond


def test_it_can_be_switched_off() -> None:
    world = World(spin_us=0)
    world.read()
    assert world.sleeps() == 0 and world.spin.reads == 1
