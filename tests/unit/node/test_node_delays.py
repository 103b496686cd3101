"""Messages that are not to be delivered before their time."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from harness import KeepingWorld
from queues import (
    command,
    counted,
    deliveries,
    forget_tail,
    got,
    letter,
    make,
    member,
    message_of,
    publish,
    row,
)

from regraft.model.message import DeliveryMode
from regraft.wire import native

BOTH = pytest.mark.parametrize("power", [False, True])
MS = 1000


def delay(world: KeepingWorld, ms: int, *bodies: Any, **more: Any) -> list[Any]:
    return publish(world, *bodies, deliver_at_us=world.now.wall_us + ms * MS, **more)


def listed(world: KeepingWorld) -> list[tuple[int, str]]:
    answer = command(world, "delayed-list")
    assert answer["count"] == len(answer["delayed"])
    return [(one["id"], one["topic"]) for one in answer["delayed"]]


def test_a_message_waits_for_its_time() -> None:
    world = KeepingWorld()
    one, live = member(world), world.subscriber("t")
    assert delay(world, 1000, "later", id=5, priority=7) == [native.Confirmed(1, 1, 1)]
    delay(world, 500, "sooner", id=6)
    assert listed(world) == [(6, "t"), (5, "t")]
    row_ = command(world, "delayed-list", rows=1)["delayed"][0]
    assert row_["deliver_at_us"] == world.now.wall_us + 500 * MS
    assert row_["size"] > len("sooner")
    world.advance(499)
    world.persist()
    assert got(one) == got(live) == []
    world.advance(2)
    world.persist()
    assert got(one) == got(live) == ["sooner"]
    world.advance(500)
    world.persist()
    (found,) = deliveries(one)
    assert (found.text, message_of(found).priority, found.attempts) == ("later", 7, 0)
    assert got(live) == ["later"]
    assert listed(world) == []


def test_takers_are_found_when_it_is_due() -> None:
    world = KeepingWorld()
    make(world, "gone")
    delay(world, 1000, "x")
    command(world, "queue-remove", name="gone")
    make(world, "new")
    world.advance(1001)
    world.persist()
    assert got(member(world, "new")) == ["x"]


def test_nobody_takes_it_when_it_is_due() -> None:
    world = KeepingWorld()
    delay(world, 1000, "x")
    world.advance(1001)
    world.persist()
    assert listed(world) == []
    assert listed(world.again()) == []


def test_what_is_due_already_does_not_wait() -> None:
    world = KeepingWorld()
    one = member(world)
    delay(world, 0, "now")
    delay(world, -5, "past")
    publish(world, "long past", deliver_at_us=1)
    assert got(one) == ["now", "past", "long past"]


@pytest.mark.parametrize("due", [1 << 62, (1 << 63) - 1])
def test_what_is_due_in_very_many_years(due: int) -> None:
    world = KeepingWorld()
    member(world)
    publish(world, "x", deliver_at_us=due, id=1)
    world = world.again()
    assert command(world, "delayed-list")["delayed"][0]["deliver_at_us"] == due
    assert command(world, "delayed-cancel", id=1) == {"cancelled": 1}


def test_only_what_is_persistent_can_wait() -> None:
    world = KeepingWorld()
    client = world.connect()
    later = letter("x", deliver_at_us=world.now.wall_us + 1000)

    passing = replace(later, delivery_mode=DeliveryMode.NON_PERSISTENT)
    client.send(later, passing)
    world.persist()
    refused, confirmed = client.take()
    assert (refused.name, refused.ordinal) == ("not-supported", 2)
    assert confirmed == native.Confirmed(1, 1, 1)


def test_a_publisher_that_repeats_itself_delays_once() -> None:
    world = KeepingWorld()
    one = member(world)
    due = world.now.wall_us + 1000
    for again in (False, True, True):
        client = world.connect("p")
        client.send(letter("x", sequence=1, deliver_at_us=due))
        world.persist()
        (told,) = client.take()
        assert told == native.Confirmed(1, 1, 0 if again else 1, again)
        client.leave()
        if again:
            world = world.again()
            one = member(world)
    world.advance(10)
    world.persist()
    assert got(one) == ["x"]
    client = world.connect("p")
    client.send(letter("x", sequence=1), letter("y", sequence=2))
    world.persist()
    assert got(one) == ["y"]


@BOTH
@pytest.mark.parametrize("due", [False, True])
def test_a_crash_neither_loses_nor_repeats_it(due: bool, power: bool) -> None:
    world = KeepingWorld()
    make(world)
    delay(world, 1000, "a", "b", id=3)
    delay(world, 2000, "c", priority=9)
    if due:
        world.advance(1001)
        world.persist()
    world = world.again(power)
    one = member(world)
    assert [text for text, _ in counted(one)] == (["a", "b"] if due else [])
    assert len(listed(world)) == (1 if due else 3)
    world.advance(1001)
    world.persist()
    assert got(one) == (["c"] if due else ["a", "b"])
    world.advance(1001)
    world.persist()
    assert got(one) == ([] if due else ["c"])
    assert listed(world) == []


@BOTH
def test_a_crash_while_it_is_being_published(power: bool) -> None:
    world = KeepingWorld()
    make(world)
    delay(world, 1000, "a")
    world.advance(1001)  # which is not persisted
    world = world.again(power)
    world.advance(10)
    world.persist()
    assert got(member(world)) == ["a"]
    assert row(world)["next"] == 2


def test_what_was_due_while_the_node_was_down() -> None:
    world = KeepingWorld()
    make(world)
    delay(world, 1000, "a")
    world.ns += 5_000_000_000
    world = world.again()
    world.advance(1)
    world.persist()
    assert got(member(world)) == ["a"]


def test_what_expires_while_it_waits_is_not_delivered_and_stops_nobody() -> None:
    world = KeepingWorld()
    one = member(world)
    now = world.now.wall_us
    client = world.connect()
    client.send(
        letter("a", deliver_at_us=now + 100 * MS, expiration_us=now + 50 * MS),
        letter("b", deliver_at_us=now + 200 * MS, expiration_us=now + 500 * MS),
    )
    world.persist()
    world.advance(150)
    world.advance(100)
    world.persist()
    assert got(one) == ["b"]
    assert command(world, "delayed-list") == {"delayed": [], "count": 0}


def test_what_expires_while_the_node_is_down() -> None:
    world = KeepingWorld()
    make(world)
    now = world.now.wall_us
    publish(world, "a", deliver_at_us=now + 100 * MS, expiration_us=now + 50 * MS)
    delay(world, 200, "b")
    world.ns += 70_000_000
    world = world.again()
    assert command(world, "delayed-list")["count"] == 1
    world.advance(200)
    world.persist()
    assert got(member(world)) == ["b"]
    assert command(world, "delayed-list")["count"] == 0


@BOTH
def test_a_message_is_cancelled(power: bool) -> None:
    world = KeepingWorld()
    one = member(world)
    delay(world, 1000, "a", id=7)
    delay(world, 1000, "b", id=8)
    delay(world, 2000, "c", id=7)
    delay(world, 1500, "d")
    assert command(world, "delayed-cancel", id=7) == {"cancelled": 2}
    assert command(world, "delayed-cancel", id=7) == {"error": "not-waiting"}
    assert listed(world) == [(8, "t"), (0, "t")]
    world = world.again(power)
    one = member(world)
    assert command(world, "delayed-cancel", id=7) == {"error": "not-waiting"}
    assert command(world, "delayed-cancel", id=0) == {"error": "not-waiting"}
    world.advance(3000)
    world.persist()
    assert got(one) == ["b", "d"]
    assert command(world, "delayed-cancel", id=8) == {"error": "not-waiting"}


@pytest.mark.parametrize("given", [{}, {"id": "x"}, {"id": -1}, {"id": True}, {"id": 1, "x": 1}])
def test_what_cannot_be_cancelled(given: dict[str, Any]) -> None:
    assert command(KeepingWorld(), "delayed-cancel", **given) == {"error": "bad-message"}


def test_a_place_that_is_full_is_tried_again() -> None:
    world = KeepingWorld()
    make(world, quota_messages=1)
    delay(world, 1000, "a")
    publish(world, "x")
    world.advance(1001)
    world.persist()
    assert len(listed(world)) == 1
    one = member(world, existing=True)
    assert got(one) == ["x"]
    one.send(native.Settle(1, (1, 1)))
    world.persist()
    world.advance(1001)
    world.persist()
    assert got(one) == ["a"]
    assert len([note for note in world.notes if "have to wait" in note.text]) == 1


def test_only_so_many_may_wait() -> None:
    world = KeepingWorld(delayed=2)
    delay(world, 1000, "a", "b")
    (refused,) = delay(world, 1000, "c")
    assert refused.name == "mailbox-full"
    world.advance(1001)
    world.persist()
    assert delay(world, 1000, "c") == [native.Confirmed(1, 1, 1)]


def test_no_room_for_one_more_mailbox() -> None:
    world = KeepingWorld(mailboxes=1)
    make(world)
    (refused,) = delay(world, 1000, "a")
    assert refused.name == "not-supported"
    command(world, "queue-remove", name="q")
    assert delay(world, 1000, "a") == [native.Confirmed(1, 1, 1)]


def test_one_that_cannot_be_read_does_not_stop_the_others() -> None:
    world = KeepingWorld()
    one = member(world)
    delay(world, 1000, "a")
    delay(world, 1500, "b")
    forget_tail(world)
    world.disk.fail("read", world.disk.counts["read"] + 1, errno.EIO)
    world.advance(1600)
    world.persist()
    assert got(one) == ["b"]
    for _ in range(12):
        world.advance(5000)
        one.send(native.Heartbeat(1))
    world.persist()
    assert got(one) == ["a"]


def test_very_many_are_due_at_once() -> None:
    world = KeepingWorld(segment_bytes=262_144)
    one = member(world)
    delay(world, 1000, *range(1000))
    world = world.again(segment_bytes=262_144)
    one = member(world)
    world.advance(1001)
    world.persist()
    assert got(one) == [str(n) for n in range(1000)]
