"""Where a replay ends, and what goes on when nothing can be settled any more."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Client, Delivered, KeepingWorld, publication

from regraft.model.message import DeliveryMode, Message
from regraft.node import cursors, reading
from regraft.node.storage import Retained
from regraft.wire import native

ALL = [Retained("all", "#")]


def letter(number: int) -> Message:
    """A persistent message whose body is its sequence."""
    return publication(number, "t", sequence=number, delivery_mode=DeliveryMode.PERSISTENT)


def publish(world: KeepingWorld, *numbers: int) -> None:
    """Publish, and have it persisted."""
    client = world.connect("p")
    client.send(*map(letter, numbers))
    world.persist()
    client.leave()


def replay(world: KeepingWorld, **wanted: Any) -> Client:
    client = world.connect()
    client.send(native.Subscribe(1, **wanted))
    world.persist()
    return client


def numbers(client: Client) -> list[int]:
    """The sequences of what came since the last look."""
    return [one.sequence for one in client.take() if isinstance(one, Delivered)]


def error(client: Client) -> tuple[str, int]:
    """The error that came, and the subscription that it is about."""
    (found,) = [one for one in client.take() if isinstance(one, native.Error)]
    return found.name, found.subscription


OVER = native.Unsubscribed(1)


def came(client: Client) -> list[Any]:
    """The sequences of what came since the last look; other frames as they are."""
    return [one.sequence if isinstance(one, Delivered) else one for one in client.take()]


@pytest.mark.parametrize("chunk", [64, 1000, 100_000])
def test_a_replay_ends_with_a_sequence(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BYTES", chunk)
    world = KeepingWorld(ALL, journal_tail_bytes=1)
    publish(world, *range(1, 6))  # one record,
    publish(world, *range(6, 11))  # and another

    def read(last: int, first: int = 1, **more: Any) -> list[Any]:
        client = replay(world, stream="all", from_sequence=first, until_sequence=last, **more)
        return came(client)[1:]

    for last in range(1, 11):
        assert read(last) == [*range(1, last + 1), OVER]
    assert read(3, 4) == [OVER]
    assert read(10, selector="FALSE") == [OVER]  # no message shows how far it is
    assert read(2**64 - 1, 9) == [9, 10]


def test_a_replay_waits_for_the_sequence_that_it_ends_with() -> None:
    world = KeepingWorld(ALL)
    publish(world, *range(1, 11))
    client = replay(world, stream="all", from_sequence=9, until_sequence=12)
    assert came(client)[1:] == [9, 10]
    publish(world, 11)
    assert came(client) == [11]
    publish(world, 12, 13)
    assert came(client) == [12, OVER]
    client.send(native.Subscribe(1, stream="all", from_sequence=13))  # the id is free again
    assert came(client)[1:] == [13]


def test_a_replay_ends_before_a_time() -> None:
    world = KeepingWorld(ALL)
    times = []
    for number in range(1, 6):
        world.advance(1000)
        times.append(world.now.wall_us)
        publish(world, number)

    def read(until: int, **more: Any) -> list[Any]:
        wanted: dict[str, Any] = {"from_sequence": 1} | more
        return came(replay(world, stream="all", until_time=until, **wanted))[1:]

    assert read(world.now.wall_us) == [1, 2, 3, 4, OVER]  # the last one is of now
    world.advance(1)
    for number, time_us in enumerate(times, 1):
        assert read(time_us) == [*range(1, number), OVER]
        assert read(time_us + 1) == [*range(1, number + 1), OVER]
    assert read(1) == [OVER]
    assert read(times[3], from_sequence=0, from_time=times[1]) == [2, 3, OVER]
    assert read(times[3], until_sequence=2) == [1, 2, OVER]
    assert read(times[3], selector="FALSE") == [OVER]
    assert read(world.now.wall_us) == [1, 2, 3, 4, 5, OVER]


def test_a_replay_waits_for_the_time_at_which_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "LOOK_NS", 3_000_000_000)
    world = KeepingWorld(ALL)
    publish(world, 1)
    until = world.now.wall_us + 20_000_000
    client = replay(world, stream="all", from_sequence=1, until_time=until)
    assert came(client)[1:] == [1]
    world.advance(10_000)
    publish(world, 2)
    assert 2 in came(client)
    world.advance(9_999)
    assert OVER not in came(client)
    world.advance(1)
    assert came(client)[-1] == OVER
    client = replay(world, stream="all", from_sequence=1, until_time=until + 1_000_000)
    client.take()
    world.advance(2_000)
    publish(world, 3)
    assert came(client) == [OVER]  # and not what came later


def test_what_is_on_its_way_to_the_disk_belongs_to_its_time() -> None:
    world = KeepingWorld(ALL)
    publisher, client = world.connect("p"), world.connect()
    publisher.send(letter(1))
    world.advance(10)
    client.send(native.Subscribe(1, stream="all", from_sequence=1, until_time=world.now.wall_us))
    assert OVER not in came(client)
    world.persist()
    assert came(client)[-2:] == [1, OVER]


def test_a_mailbox_has_no_end() -> None:
    world = KeepingWorld()
    client = world.connect()
    for end in ({"until_time": 1}, {"until_sequence": 1}):
        client.send(native.Subscribe(1, "t", durable="box", **end))
        assert error(client) == ("not-supported", 1)


def test_a_failed_journal_settles_nothing_and_goes_on_delivering() -> None:
    world = KeepingWorld()
    client = world.connect()
    client.send(native.Subscribe(1, "t", durable="box", in_flight=2))
    world.persist()
    publish(world, *range(1, 7))
    assert numbers(client) == [1, 2]
    client.send(native.Settle(1, (1, 1), 7))
    world.fail()
    refused, *rest = [one for one in client.take() if not isinstance(one, Delivered)]
    assert (refused.name, refused.subscription, refused.settlement) == ("journal-failed", 1, True)
    assert rest == []
    got: list[int] = []
    for first, last in ((2, 2), (3, 4), (5, 6)):
        client.send(native.Settle(1, (first, last), 8))
        news = client.take()
        (refused,) = [one for one in news if isinstance(one, native.Error)]
        assert (refused.name, refused.settlement) == ("journal-failed", True)
        got += [one.sequence for one in news if isinstance(one, Delivered)]
    assert got == [3, 4, 5, 6][-len(got) :] and len(got) >= 3  # 3 came with the first settlement
    world = world.again()
    again = world.reader("box", "t")
    world.persist()
    assert numbers(again)[-1] == 6
