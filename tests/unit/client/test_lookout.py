"""When a client stays awake for an answer, and when it does not."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, new_event_loop
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from regraft.client.lookout import (
    CROWDED_FOR_NS,
    CROWDED_NS,
    LOOKED_NS,
    TRIED_AGAIN,
    Lookout,
)
from regraft.client.unconfirmed import Unconfirmed

LOOK_NS = 10_000
LOOKS = LOOKED_NS // LOOK_NS


class World:
    """A loop and a clock: each turn takes a while, giving way as long as is said."""

    def __init__(self, real: AbstractEventLoop) -> None:
        self.ns = 0
        self.yields = 0
        self.takes_ns = 0
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.create_future: Callable[[], Future[int]] = real.create_future
        self.loop: Any = self
        self.lookout = Lookout(lambda: self.ns, self.give_way)

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def give_way(self) -> None:
        self.yields += 1
        self.ns += self.takes_ns

    def ask(self) -> Future[int]:
        answer = self.create_future()
        self.lookout.begin(answer, self.loop)
        return answer

    def sleeps(self, turns: int = 1000) -> int:
        """How many turns go by until the process sleeps."""
        for k in range(turns):
            if not self.soon:
                return k
            callback, arguments = self.soon.pop(0)
            self.ns += LOOK_NS
            callback(*arguments)
        return turns


@pytest.fixture
def world() -> Iterator[World]:
    real = new_event_loop()
    yield World(real)
    real.close()


def test_it_stays_awake_until_the_answer_is_there(world: World) -> None:
    for _ in range(5):
        answer = world.ask()
        assert world.sleeps(7) == 7 and world.yields == 7
        answer.set_result(1)
        assert world.sleeps() == 1
        world.yields = 0


def test_it_does_not_stay_awake_for_long(world: World) -> None:
    world.ask()
    assert world.sleeps() == LOOKS and world.yields == LOOKS - 1


def test_where_answers_take_long_it_is_seldom_tried_again(world: World) -> None:
    awake = []
    for number in range(3 * TRIED_AGAIN):
        world.ask()
        if world.sleeps():
            awake.append(number)
    assert awake == [0, TRIED_AGAIN, 2 * TRIED_AGAIN]


def test_where_others_have_work_it_sleeps_for_a_while(world: World) -> None:
    world.takes_ns = CROWDED_NS
    world.ask()
    assert world.sleeps() == 1
    world.takes_ns = 0
    until = LOOK_NS + CROWDED_FOR_NS  # it looked at the clock after one turn
    while world.ns < until:
        world.ask()
        assert world.sleeps() == 0
        world.ns += 1_000_000
    world.ask()
    assert world.sleeps() == LOOKS


def test_only_who_waits_alone_stays_awake(world: World) -> None:
    kept = Unconfirmed()
    kept._lookout = world.lookout
    kept.written(b"", 3)
    first, second = kept.wait(1, 1, world.loop), kept.wait(2, 2, world.loop)
    assert len(world.soon) == 1
    kept.confirmed(1, 2, 1)
    assert first.done() and second.done() and world.sleeps() == 1
    assert kept.wait(2, 2, world.loop).done() and not world.soon  # it is safe already
    kept.wait(3, 3, world.loop)
    assert len(world.soon) == 1
