"""What a mailbox that several share still knows after its node died."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from harness import Client, KeepingWorld
from queues import (
    EXTEND,
    REJECT,
    RELEASE,
    command,
    counted,
    deliveries,
    got,
    make,
    member,
    options,
    publish,
    row,
    settle,
)

from regraft.wire import native

BOTH = pytest.mark.parametrize("power", [False, True])


# ------------------------------------------------------------------------------- attempts


@BOTH
def test_attempts_and_due_times_survive(power: bool) -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2, 3, 4)
    got(one)
    for _ in range(3):
        settle(world, one, 1, outcome=RELEASE)
    settle(world, one, 2, outcome=RELEASE, delay_ms=1000)
    settle(world, one, 3, outcome=RELEASE, delay_ms=3000, uncounted=True)
    world = world.again(power)
    assert row(world)["waiting"] == 4
    one = member(world)
    assert sorted(counted(one)) == [("1", 3), ("4", 1)]
    world.advance(1000)
    assert counted(one) == [("2", 1)]
    world.advance(1900)
    assert got(one) == []
    world.advance(200)
    assert counted(one) == [("3", 0)]


@BOTH
def test_the_back_off_goes_on_where_it_was(power: bool) -> None:
    world = KeepingWorld()
    one = member(world, options=options(retry_ms=100, max_deliveries=4))
    publish(world, 1)
    got(one)
    settle(world, one, 1, outcome=RELEASE)
    world.advance(101)
    settle(world, one, 1, outcome=RELEASE)
    world = world.again(power)
    one = member(world, options=b"")
    world.advance(250)
    assert counted(one) == [("1", 2)]
    settle(world, one, 1, outcome=RELEASE)
    world.advance(399)
    assert got(one) == []
    world.advance(2)
    assert counted(one) == [("1", 3)]
    settle(world, one, 1, outcome=RELEASE)
    assert (row(world)["waiting"], row(world, "dead-letters")["waiting"]) == (0, 1)


@BOTH
def test_only_what_may_have_been_delivered_is_marked(power: bool) -> None:
    world = KeepingWorld()
    one = member(world, in_flight=1)
    publish(world, 1, 2)
    assert got(one) == ["1"]
    world = world.again(power)
    publish(world, 3)
    assert [tried for text, tried in counted(member(world)) if text in "13"] == [1, 0]


@BOTH
def test_what_comes_after_two_crashes_is_not_marked(power: bool) -> None:
    world = KeepingWorld()
    member(world)
    world = world.again(power)
    publish(world, 1)
    world = world.again(power)
    assert counted(member(world)) == [("1", 0)]


@BOTH
def test_what_nobody_got_is_not_marked_when_all_have_left(power: bool) -> None:
    world = KeepingWorld()
    one = member(world, in_flight=1)
    publish(world, 1, 2, 3)
    assert got(one) == ["1"]
    one.leave()
    world.persist()
    publish(world, 4)
    world = world.again(power)
    assert counted(member(world)) == [("1", 1), ("2", 0), ("3", 0), ("4", 0)]


@BOTH
def test_marks_stay_until_a_message_is_delivered_again(power: bool) -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, "low", priority=1)
    publish(world, "common")
    assert len(got(one)) == 2
    world = world.again(power)
    one = member(world, in_flight=1)
    assert counted(one) == [("common", 1)]
    one.leave()
    world.persist()
    world = world.again(power)
    assert counted(member(world)) == [("common", 2), ("low", 1)]


@BOTH
def test_members_that_come_and_go_before_the_disk_knows(power: bool) -> None:
    """What is delivered is marked, however quickly somebody else comes."""
    world = KeepingWorld()
    make(world)
    publish(world, 1, 2)
    first, second = world.connect(), world.connect()
    first.send(native.Subscribe(1, "t", durable="q"))
    first.leave()
    second.send(native.Subscribe(1, "t", durable="q"))
    while not got(second):
        assert world.asked is not None
        world.persist(1)
    world = world.again(power)
    assert counted(member(world)) == [("1", 1), ("2", 1)]


# ----------------------------------------------------------------- between any two of these

Act = Callable[[KeepingWorld, Client], None]


def accept(world: KeepingWorld, one: Client) -> None:
    settle(world, one, 1)


def release(world: KeepingWorld, one: Client) -> None:
    settle(world, one, 2, outcome=RELEASE, delay_ms=10)


def reject(world: KeepingWorld, one: Client) -> None:
    settle(world, one, 3, outcome=REJECT)


def extend(world: KeepingWorld, one: Client) -> None:
    settle(world, one, 4, outcome=EXTEND, delay_ms=10)


def leave(world: KeepingWorld, one: Client) -> None:
    one.leave()
    world.persist()


def rename(world: KeepingWorld, one: Client) -> None:
    command(world, "queue-rename", name="q", to="r")
    command(world, "queue-rename", name="r", to="q")


def change(world: KeepingWorld, one: Client) -> None:
    command(world, "queue-change", name="q", options={"retry_ms": 1})


def delay(world: KeepingWorld, one: Client) -> None:
    publish(world, "late", deliver_at_us=world.now.wall_us + 5000)


ACTS: list[Act] = [accept, release, reject, extend, leave, rename, change, delay]


@pytest.mark.parametrize(
    ("first", "second", "unsaved"),
    [*product(ACTS, ACTS, [False]), *product(ACTS, [accept, release, reject, leave], [True])],
)
def test_nothing_is_lost_and_nothing_settled_comes_again(
    first: Act, second: Act, unsaved: bool
) -> None:
    """A crash after the first; after the second one that nothing of it survives, perhaps."""
    world = KeepingWorld()
    one = member(world)
    publish(world, *range(1, 6), priority=7)
    got(one)
    first(world, one)
    world = world.again()
    one = member(world, existing=True)
    world.advance(20)
    world.persist()
    left = {"1", "2", "3", "4", "5"} - {accept: {"1"}, reject: {"3"}}.get(first, set())
    left |= {"late"} if first is delay else set()
    assert {found.text for found in deliveries(one)} == left
    if unsaved:
        world.persist = lambda batches=0: None  # type: ignore[method-assign]
    second(world, one)
    world = world.again(power=True)
    if not unsaved:
        left -= {accept: {"1"}, reject: {"3"}}.get(second, set())
    one = member(world, existing=True)
    world.advance(20)
    world.persist()
    again = {found.text for found in deliveries(one)}
    assert again == left | ({"late"} if second is delay else set())
    waiting = command(world, "queue-list")["queues"]
    dead = sum(found["waiting"] for found in waiting if found["name"] == "dead-letters")
    assert dead == (first is reject) + (second is reject and first is not reject and not unsaved)
