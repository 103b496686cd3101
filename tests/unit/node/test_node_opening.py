"""How a connection opens, and how it does not."""

import pytest
from harness import Client, World, publication

from regraft.model.message import Message, encode_envelope
from regraft.wire import native

HELLO = native.Hello(1, 1)


def failure(client: Client) -> str:
    """The name of the error that was the last word to a client."""
    *_, error = client.take()
    assert isinstance(error, native.Error)
    assert error.fatal and client.closed
    return error.name


def test_a_client_is_welcomed_with_the_terms() -> None:
    world = World(window_messages=77, subscriptions_per_session=5)
    client = world.open()
    client.send(native.PREFACE, native.Hello(1, 3, client_id="me", heartbeat_ms=700))
    (welcome,) = client.take()
    assert (welcome.version, welcome.client_id, welcome.heartbeat_ms) == (1, "me", 700)
    assert (welcome.node_id, welcome.node_name) == (bytes(range(16)), "test")
    assert welcome.credit_messages == 77
    assert welcome.credit_bytes == world.limits.window_bytes_first
    assert welcome.subscriptions_max == 5
    assert welcome.time == world.now.wall_us
    assert len(welcome.token) == 16


def test_a_client_without_a_name_gets_one() -> None:
    world = World()
    names = set()
    for _ in range(3):
        client = world.open()
        client.send(native.PREFACE, HELLO)
        names.add(client.take()[0].client_id)
    assert len(names) == 3 and all(names)


@pytest.mark.parametrize(("wanted", "given"), [(0, 10_000), (1, 100), (10**9, 300_000)])
def test_heartbeats_are_within_the_limits(wanted: int, given: int) -> None:
    client = World().open()
    client.send(native.PREFACE, native.Hello(1, 1, heartbeat_ms=wanted))
    assert client.take()[0].heartbeat_ms == given


REFUSED: dict[str, list[bytes | native.Control]] = {
    "unsupported-version": [native.PREFACE, native.Hello(2, 9)],
    "unsupported-feature": [native.PREFACE, native.Hello(1, 1, (native.Feature("x", True),))],
    "unknown-protocol": [b"GET / HTTP/1.1\r\n\r\n"],
    "protocol-violation": [native.PREFACE, native.Heartbeat()],
    "bad-checksum": [native.PREFACE, bytes(12)],
    "malformed-frame": [native.PREFACE, native.frame(99, b"")],
    "malformed-envelope": [native.PREFACE, native.frame(native.Kind.HELLO, b"\x08")],
    "frame-too-large": [native.PREFACE, native.frame(native.Kind.HELLO, bytes(70_000))],
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("bytewise", [False, True])
def test_a_bad_beginning_ends_with_its_reason(name: str, bytewise: bool) -> None:
    world = World()
    innocent = world.subscriber("t")
    client = world.open()
    data = client.encoded(*REFUSED[name])
    if bytewise:
        for at in range(min(len(data), 200)):
            client.send(data[at : at + 1])
    client.send(data)
    assert failure(client) == name
    assert world.counters["failures"] == {name: 1}
    world.connect().send(publication(1))
    assert innocent.bodies() == [b"1"]


@pytest.mark.parametrize(
    "beginning", [b"\x16\x03\x01", b"SSH-2.0", b"\0", b"REGRAFT\r", b"PRI * HTTP"]
)
def test_what_is_no_protocol_of_this_node_is_told_so(beginning: bytes) -> None:
    client = World().open()
    client.send(beginning)
    assert failure(client) == "unknown-protocol"


def test_a_message_before_hello_is_refused() -> None:
    client = World().open()
    client.send(native.PREFACE, publication(1), HELLO)
    assert failure(client) == "protocol-violation"


def test_hello_comes_once() -> None:
    client = World().connect()
    client.send(HELLO)
    assert failure(client) == "protocol-violation"


def test_a_client_id_has_a_bounded_length() -> None:
    client = World().open()
    client.send(native.PREFACE, native.Hello(1, 1, client_id="x" * 129))
    assert failure(client) == "protocol-violation"


def test_optional_features_that_are_unknown_do_no_harm() -> None:
    client = World().open()
    client.send(
        native.PREFACE, native.Hello(1, 1, (native.Feature("x"), native.Feature("topics", True)))
    )
    assert isinstance(client.take()[0], native.Welcome)


@pytest.mark.parametrize("beginning", [b"", b"REGR", native.PREFACE, native.PREFACE + b"\x20\0"])
def test_who_is_too_slow_to_open_is_let_go(beginning: bytes) -> None:
    world = World(handshake_ms=1_000)
    client = world.open()
    client.send(beginning)
    world.advance(999)
    assert not client.closed
    world.advance(1)
    assert failure(client) == "too-slow-to-open"
    world.check_empty()


def test_an_open_connection_is_not_too_slow() -> None:
    world = World(handshake_ms=1_000)
    client = world.connect(passive=True)
    world.advance(5_000)
    assert not client.closed


def test_nothing_counts_after_the_end() -> None:
    world = World()
    subscriber = world.subscriber("t")
    client = world.connect()
    client.send(publication(1), native.Heartbeat(1), b"\0" * 12, publication(2))
    assert failure(client) == "bad-checksum"
    assert subscriber.bodies() == [b"1"]


def test_connections_are_limited_and_counted_again_when_one_goes() -> None:
    world = World(connections=2)
    first, second = world.connect(), world.connect()
    third = world.open()
    assert failure(third) == "too-many-connections"
    second.leave()
    world.connect()
    assert not first.closed


def test_a_client_that_connects_again_ends_its_older_connection() -> None:
    world = World()
    old = world.connect("me")
    old.send(native.Subscribe(1, "t"))
    old.take()
    new = world.connect("me")
    assert failure(old) == "taken-over"
    new.send(native.Subscribe(1, "t"))
    world.connect().send(publication(1))
    assert (old.bodies(), new.bodies()) == ([], [b"1"])
    assert world.counters["sessions"] == 2
    third = world.connect("me")
    new.leave()
    third.send(native.Heartbeat(5))
    assert third.take() == [native.Heartbeat(5, True)]


def test_a_client_that_was_taken_over_frees_its_publishers() -> None:
    world = World(queue_bytes=1_000, stall_ms=60_000)
    old = world.subscriber("t", name="me", credit_messages=1, credit_bytes=1)
    publisher = world.connect()
    publisher.send(*(publication(bytes(400)) for _ in range(5)))
    assert world.node._connections[publisher.key].blocked_on
    world.connect("me")
    assert failure(old) == "taken-over"
    assert not world.node._connections[publisher.key].blocked_on
    assert world.counters["dropped"] == {"taken-over": 4}
    world.check_sums()


# ---------------------------------------------------------------- cuts of the stream


def conversation() -> bytes:
    """Everything that a good client may say, with short and long frames."""
    parts: list[bytes | native.Control | Message] = [
        native.PREFACE,
        native.Hello(1, 1, client_id="long"),
    ]
    parts += [native.Subscribe(1, "t"), native.Subscribe(2, "t/#"), native.Heartbeat(1)]
    parts += [publication(number) for number in range(3)]
    parts += [publication(bytes(300), "t/u"), publication(7, "bad/+"), publication(8, "other")]
    parts += [native.Unsubscribe(2), native.Unsubscribe(9), native.Credit(10**6, 10**9)]
    parts += [publication(9), native.frame(7, encode_envelope(Message("t", b"flag")), 1)]
    parts += [native.Heartbeat(2), publication(b"last", "t")]
    return Client.encoded(*parts)


def story(world: World, client: Client) -> list[object]:
    """What the client got, without what depends on how the bytes were cut."""
    kept: list[object] = []
    refused: list[tuple[int, str]] = []  # told behind the deliveries of the same read
    for news in client.take():
        if isinstance(news, native.Error) and news.ordinal:
            refused += [(news.ordinal + k, news.name) for k in range(news.count)]
        elif not isinstance(news, native.Credit):
            kept.append(news)
    return [kept, refused, world.counters, client.closed]


def told(cuts: list[int]) -> list[object]:
    data = conversation()
    world = World()
    client = world.open()
    at = 0
    for cut in [*cuts, len(data)]:
        client.send(data[at:cut])
        at = cut
    return story(world, client)


def test_where_the_bytes_are_cut_does_not_matter() -> None:
    data = conversation()
    whole = told([])
    assert whole[1] == [(5, "bad-topic"), (8, "not-supported")]
    for cut in range(1, len(data)):
        assert told([cut]) == whole, cut
    assert told(list(range(1, len(data)))) == whole


def test_two_cuts_close_to_one_another_do_not_matter() -> None:
    data = conversation()
    whole = told([])
    for cut in range(1, len(data) - 13, 3):
        for width in (1, 7, 12):
            assert told([cut, cut + width]) == whole, (cut, width)
