"""What a node does with subscriptions and messages."""

import pytest
from harness import WALL_US, Delivered, World, publication

from regraft.model.message import DeliveryMode
from regraft.node.event import Received
from regraft.wire import native


def errors(news: list[object]) -> list[tuple[str, int, int, int]]:
    return [
        (error.name, error.subscription, error.ordinal, error.count)
        for error in news
        if isinstance(error, native.Error)
    ]


def test_a_message_is_delivered_byte_for_byte() -> None:
    world = World()
    subscriber = world.subscriber("t")
    message = publication("hello", attributes={"x": 1}, id=5, unknown=b"\xf8\x01\x07")
    world.connect().send(message)
    assert subscriber.take() == [Delivered((1,), native.encode(message))]


def test_several_subscriptions_are_one_delivery_with_all_ids() -> None:
    world = World()
    subscriber = world.subscriber("t", "#", "other", "t/#", "+")
    world.connect().send(publication(1))
    (delivered,) = subscriber.take()
    assert delivered.subscriptions == (1, 2, 4, 5)


def test_a_subscription_is_confirmed_before_its_first_delivery() -> None:
    world = World()
    client = world.connect()
    client.send(publication(0), native.Subscribe(4, "t"), publication(1), publication(2))
    news = [item for item in client.take() if not isinstance(item, native.Credit)]
    assert news[0] == native.Subscribed(4)
    assert client.bodies() == [b"1", b"2"]


def test_nothing_is_delivered_after_unsubscribed() -> None:
    world = World()
    client = world.subscriber("t", "t")
    client.send(publication(1), native.Unsubscribe(1), publication(2), native.Unsubscribe(2))
    client.send(publication(3))
    news = [item for item in client.take() if not isinstance(item, native.Credit)]
    assert [item.subscriptions for item in news if isinstance(item, Delivered)] == [(1, 2), (2,)]
    assert news.index(native.Unsubscribed(1)) < len(news) - 2
    assert news[-1] == native.Unsubscribed(2)
    assert client.bodies() == [b"1", b"2"]


def test_the_id_of_a_removed_subscription_is_free_again() -> None:
    client = World().subscriber("t")
    client.send(native.Unsubscribe(1), native.Subscribe(1, "u"), publication(1, "u"))
    assert client.bodies() == [b"1"]


def test_exact_subscriptions_do_not_take_what_is_below() -> None:
    client = World().connect()
    client.send(native.Subscribe(1, "a", "", True), publication(1, "a/b"), publication(2, "a"))
    assert client.bodies() == [b"2"]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (native.Subscribe(0, "t"), "bad-pattern"),
        (native.Subscribe(1, "t"), "subscription-in-use"),
        (native.Subscribe(2, "a+"), "bad-pattern"),
        (native.Subscribe(2, "#/a"), "bad-pattern"),
        (native.Unsubscribe(2), "unknown-subscription"),
    ],
)
def test_a_bad_request_is_refused_and_the_connection_survives(
    wanted: native.Subscribe | native.Unsubscribe, name: str
) -> None:
    world = World()
    client = world.subscriber("t")
    client.send(wanted)
    assert errors(client.take()) == [(name, wanted.id, 0, 0)]
    client.send(publication(1))
    assert client.bodies() == [b"1"]
    assert not client.closed


def test_subscriptions_of_a_session_and_of_the_node_are_limited() -> None:
    world = World(subscriptions_per_session=2, subscriptions=3)
    one = world.subscriber("a", "b")
    one.send(native.Subscribe(3, "c"))
    assert errors(one.take()) == [("limit-exceeded", 3, 0, 0)]
    two = world.subscriber("a")
    two.send(native.Subscribe(2, "b"))
    assert errors(two.take()) == [("limit-exceeded", 2, 0, 0)]
    one.leave()
    two.send(native.Subscribe(2, "b"))
    assert two.take() == [native.Subscribed(2)]


def test_refused_messages_are_reported_by_ordinal_and_count() -> None:
    world = World()
    subscriber = world.subscriber("#")
    client = world.connect()
    client.send(publication(1), publication(2, "a/+"), publication(3, "#"), publication(4))
    client.send(publication(5, "x", delivery_mode=DeliveryMode.PERSISTENT))
    client.send(native.frame(7, native.encode(publication(6, "x"))[12:], 1), publication(7, "+"))
    assert errors(client.take()) == [
        ("bad-topic", 0, 2, 2),
        ("not-supported", 0, 5, 1),
        ("not-supported", 0, 6, 1),
        ("bad-topic", 0, 7, 1),
    ]
    assert subscriber.bodies() == [b"1", b"4"]
    assert world.counters["refused"] == 5
    assert not client.closed


def test_refused_messages_are_reported_before_the_client_leaves() -> None:
    client = World().connect()
    client.send(publication(1, "+"), native.Bye())
    assert errors(client.take()) == [("bad-topic", 0, 1, 1)]
    assert client.closed


def test_refused_messages_are_reported_before_a_fatal_error() -> None:
    client = World().connect()
    client.send(publication(1, "+"), native.frame(7, b"\xff"))
    assert [error[0] for error in errors(client.take())] == ["bad-topic", "malformed-envelope"]


def test_who_is_not_authorized_is_told_so() -> None:
    asked = []

    def authorize(principal: str, action: str, topic: str) -> bool:
        asked.append((principal, action, topic))
        return not topic.startswith("secret")

    world = World(authorize)
    client = world.subscriber("t")
    client.send(native.Subscribe(2, "secret/#"), publication(1, "secret/x"), publication(2))
    client.send(publication(3, "secret/x"))
    assert errors(client.take()) == [
        ("not-authorized", 2, 0, 0),
        ("not-authorized", 0, 1, 1),
        ("not-authorized", 0, 3, 1),
    ]
    assert client.bodies() == [b"2"]
    assert asked.count(("anonymous", "publish", "secret/x")) == 1
    assert not client.closed


MALFORMED = {
    "bad-checksum": native.encode(publication(1))[:-1] + b"\0",
    "malformed-frame": native.frame(7, b"", 4),
    "frame-too-large": native.frame(7, bytes(70_000)),
    "malformed-envelope": native.frame(7, b"\x4a\xff"),
    "protocol-violation": native.encode(native.Subscribed(1)),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("bytewise", [False, True])
def test_malformed_bytes_end_only_that_connection(name: str, bytewise: bool) -> None:
    world = World(frame_bytes=65_536)
    innocent = world.subscriber("#")
    client = world.subscriber("#")
    data = client.encoded(publication("before"), MALFORMED[name], publication("after"))
    if bytewise and name != "frame-too-large":
        for at in range(len(data)):
            client.send(data[at : at + 1])
    else:
        client.send(data)
    error = client.take()[-1]
    assert (error.name, error.fatal, bool(client.closed)) == (name, True, True)
    world.connect().send(publication("later"))
    assert innocent.bodies() == [b"before", b"later"]
    world.check_sums()


def test_a_control_frame_has_a_limit_of_its_own() -> None:
    world = World(frame_bytes=100_000, control_frame_bytes=9_000)
    client = world.subscriber("t")
    client.send(publication(bytes(50_000)))
    assert len(client.bodies()) == 1
    client.send(native.Subscribe(2, "x" * 9_000))
    assert client.take()[-1].name == "frame-too-large"


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    world = World(frame_bytes=100_000)
    overhead = len(native.encode(publication(bytes(99_000)))) - 99_000
    client = world.subscriber("t")
    client.send(publication(bytes(100_000 - overhead)))
    assert len(client.bodies()) == 1
    client.send(publication(bytes(100_001 - overhead)))
    assert client.take()[-1].name == "frame-too-large"


def test_expired_messages_are_not_delivered() -> None:
    world = World()
    subscriber = world.subscriber("t")
    now_us = world.now.wall_us
    moments = [now_us, now_us + 1, -1, None, WALL_US - 5, 0]
    world.connect().send(
        *(publication(k, expiration_us=moment) for k, moment in enumerate(moments))
    )
    assert subscriber.bodies() == [b"1", b"3", b"5"]
    assert world.counters["expired"] == 3


def test_messages_that_nobody_wants_are_counted() -> None:
    world = World()
    world.connect().send(publication(1), publication(2))
    assert world.counters["untaken"] == 2


def test_two_publishers_keep_their_order_each() -> None:
    world = World()
    subscribers = [world.subscriber("t"), world.subscriber("#", "t")]
    publishers = [world.connect(), world.connect()]
    for number in range(0, 300, 3):
        for name, publisher in enumerate(publishers):
            publisher.send(*(publication(f"{name} {number + k}") for k in range(3)))
    for subscriber in subscribers:
        bodies = [body.split() for body in subscriber.bodies()]
        for wanted in (b"0", b"1"):
            numbers = [int(number) for who, number in bodies if who == wanted]
            assert numbers == list(range(300))


def test_a_batch_larger_than_one_chunk_is_taken_in_whole() -> None:
    world = World()
    subscriber = world.subscriber("t")
    other = world.subscriber("t/2")
    parts = [publication(bytes(2_000), f"t/{k % 3}") for k in range(600)]
    world.connect().send(*parts)
    frames = [item.frame for item in subscriber.take()]
    assert frames == [native.encode(part) for part in parts]
    assert len(other.bodies()) == 200


def test_events_of_one_step_do_not_disturb_one_another() -> None:
    world = World()
    subscribers = [world.subscriber("t"), world.subscriber("#")]
    publishers = [world.connect() for _ in range(3)]
    expected = []
    events = []
    for number, publisher in enumerate(publishers):
        parts = [publication(f"{number}-{k}" * 20) for k in range(4)]
        expected += [part.body for part in parts]
        events.append(Received(publisher.key, memoryview(publisher.encoded(*parts))))
    world.step(*events)
    for subscriber in subscribers:
        assert subscriber.bodies() == expected


def test_what_is_remembered_of_routes_is_bounded() -> None:
    world = World(topics_cached=8)
    for index in range(6):
        world.subscriber(*(f"{number}" for number in range(64) if number >> index & 1))
    publisher = world.connect()
    for number in range(64):
        publisher.send(publication(number, f"{number}"))
    router = world.node._router
    assert max(len(router._routes), len(router._shared)) <= 8


def test_an_idle_publisher_does_not_keep_the_buffers_of_those_who_left() -> None:
    world = World()
    publisher, subscriber = world.connect(), world.subscriber("t/a")
    outlet = world.node._router._outlets[subscriber.key]
    publisher.send(*(publication(bytes(900), f"t/{topic}") for topic in "ab" * 50))
    subscriber.leave()
    assert outlet.gather(True) == []
    publisher.send(publication(1, "t/a"))
    assert world.counters["untaken"] == 51
