"""A node with filters that its clients bring."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from regraft.model.message import DeliveryMode, Message
from regraft.model.userfilter import FilterTable
from regraft.simulate.filter_story import BAND, Band, FailingBand
from regraft.wire import native
from tests.unit.node.harness import Client, KeepingWorld, World


def knowing(world: World, filter: type[Any] = Band) -> World:
    world.node.filters.learn(FilterTable({BAND: filter}))
    return world


def want(client: Client, id: int, low: int, high: int, pattern: str = "t", **more: Any) -> None:
    data = Band(low, high).encode()
    client.send(native.Subscribe(id, pattern, filter=BAND, filter_data=data, **more))
    assert client.take() == [native.Subscribed(id)]


def said(n: int, topic: str = "t", **more: Any) -> Message:
    return Message(topic, b"%d" % n, {"n": n}, **more)


def got(client: Client) -> list[tuple[tuple[int, ...], str]]:
    return [(one.subscriptions, one.text) for one in client.take()]


def test_a_node_that_knows_the_filter_spares_the_delivery() -> None:
    world = knowing(World())
    reader, sender = world.connect(), world.connect()
    want(reader, 1, 3, 5)
    sender.send(*(said(n) for n in range(8)))
    assert got(reader) == [((1,), text) for text in "345"]
    assert world.counters["deliveries"] == 3 and world.counters["untaken"] == 5
    (row,) = world.node.report("filters", 10)["rows"]
    assert (row["name"], row["evaluated"], row["matched"]) == (BAND, 8, 3)
    (row,) = world.node.report("subscriptions", 10)["rows"]
    assert row["filter"] == BAND


def test_a_node_that_does_not_lets_all_pass() -> None:
    world = World()
    reader, sender = world.connect(), world.connect()
    want(reader, 1, 3, 5, selector="n < 7")
    sender.send(*(said(n) for n in range(8)))
    assert got(reader) == [((1,), text) for text in "0123456"]
    assert world.node.report("filters", 10)["rows"] == []


def test_with_a_selector_both_have_a_say() -> None:
    world = knowing(World())
    reader, sender = world.connect(), world.connect()
    want(reader, 1, 3, 9, selector="n < 5")
    sender.send(*(said(n) for n in range(8)))
    assert got(reader) == [((1,), "3"), ((1,), "4")]
    (row,) = world.node.report("filters", 10)["rows"]
    assert row["evaluated"] == 5  # only where the selector holds


def test_subscriptions_of_one_session() -> None:
    world = knowing(World())
    reader, sender = world.connect(), world.connect()
    want(reader, 2, 0, 2)
    want(reader, 3, 2, 4)
    reader.send(native.Subscribe(1, "t"))
    assert reader.take() == [native.Subscribed(1)]
    sender.send(*(said(n) for n in range(4)))
    found = got(reader)
    for id, texts in ((1, "0123"), (2, "012"), (3, "23")):
        assert [text for ids, text in found if id in ids] == list(texts)
    reader.send(native.Unsubscribe(2))
    assert reader.take() == [native.Unsubscribed(2)]
    sender.send(said(2))
    assert sorted(ids for ids, _ in got(reader)) == [(1,), (3,)]
    world.check_sums()


def test_persistent_messages_pass_the_filter_too() -> None:
    world = KeepingWorld()
    knowing(world)
    reader, sender = world.connect(), world.connect()
    want(reader, 1, 3, 5)
    sender.send(*(said(n, delivery_mode=DeliveryMode.PERSISTENT) for n in range(8)))
    world.persist()
    assert got(reader) == [((1,), text) for text in "345"]


def test_everything_goes_with_the_session() -> None:
    world = knowing(World())
    random = Random(7)
    sender = world.connect()
    for _ in range(20):
        reader = world.connect()
        for id in range(1, random.choice((3, 150))):  # so many are removed by and by
            want(reader, id, random.randrange(5), 9, selector=random.choice(("", "n > 1")))
        sender.send(*(said(n) for n in range(4)))
        reader.leave()
        sender.send(said(9))
        world.advance(1)
    sender.leave()
    for _ in range(100):
        world.advance(10)
    world.check_empty()
    router = world.node._router
    assert not router._own and not router._screens and not world.node.filters._known


def test_a_filter_that_fails_lets_pass_and_people_are_told() -> None:
    world = knowing(World(), FailingBand)
    reader, sender = world.connect(), world.connect()
    want(reader, 1, 4, 5)
    sender.send(*(said(n) for n in (1, 3, 4)))
    assert got(reader) == [((1,), "3"), ((1,), "4")]
    assert any("3 cannot be" in note.text for note in world.notes)
    sender.send(*(said(n) for n in [3] * 10))
    assert any("asks it no more" in note.text for note in world.notes)
    reader.take()
    sender.send(said(1))
    assert got(reader) == [((1,), "1")]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"filter": BAND, "durable": "box"}, "not for a mailbox"),
        ({"filter": BAND, "from_sequence": 1}, "not for a replay"),
        ({"filter": BAND, "replies": True}, "not for who replies"),
        ({"filter": BAND, "pattern": "$share/g/t"}, "not for those who share"),
        ({"filter": "no spaces"}, "no name of a filter"),
        ({"filter_data": b"x"}, "without a name"),
        ({"filter": BAND, "filter_data": bytes(101)}, "limit filter_bytes is 100"),
    ],
)
def test_what_is_refused(more: dict[str, Any], text: str) -> None:
    world = knowing(World(filter_bytes=100))
    reader = world.connect()
    reader.send(native.Subscribe(1, **{"pattern": "t", **more}))
    (error,) = reader.take()
    assert isinstance(error, native.Error) and text in error.text and not error.fatal
    assert world.counters["subscriptions"] == 0
