"""Durable subscriptions and replays: what is delivered, marked, settled, skipped, and to whom."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest
from harness import WALL_US, Client, Delivered, KeepingWorld, publication

from regraft.journal import format
from regraft.journal.requests import Persist, Piece, ReadJournal
from regraft.kernels.records import FOUND, Walk
from regraft.model.message import DeliveryMode, Message
from regraft.node import boxes, reading
from regraft.node.event import JournalRead
from regraft.node.storage import Retained
from regraft.wire import native

ALL = [Retained("all", "#")]


def letter(number: int, topic: str = "t", **more: Any) -> Message:
    """A persistent message whose body is its sequence."""
    more["delivery_mode"] = DeliveryMode.PERSISTENT
    return publication(number, topic, sequence=number, **more)


def publish(world: KeepingWorld, *numbers: int, topic: str = "t", **more: Any) -> None:
    """Publish, and have it persisted."""
    client = world.connect("p")
    client.send(*(letter(number, topic, **more) for number in numbers))
    world.persist()
    client.leave()


def deliveries(client: Client) -> list[Delivered]:
    return [one for one in client.take() if isinstance(one, Delivered)]


def sequences(client: Client) -> list[int]:
    """The sequences of what came since the last look."""
    return [one.sequence for one in deliveries(client)]


def attempts(client: Client) -> list[tuple[int, int]]:
    """The same, and whether they may have come before."""
    return [(one.sequence, one.attempts) for one in deliveries(client)]


def settle(world: KeepingWorld, client: Client, *ranges: int, token: int = 0) -> None:
    client.send(native.Settle(1, ranges, token))
    world.persist()


def error(client: Client) -> tuple[str, int]:
    """The error that came, and the subscription that it is about."""
    (found,) = [one for one in client.take() if isinstance(one, native.Error)]
    return found.name, found.subscription


# ------------------------------------------------------------------------------ mailboxes


def test_a_mailbox_stands_once_that_is_safe() -> None:
    world = KeepingWorld()
    client = world.connect()
    client.send(native.Subscribe(1, "t", durable="box"))
    assert client.take() == []
    world.persist()
    assert client.take() == [native.Subscribed(1, 1, 0)]
    publish(world, 1, 2)
    assert attempts(client) == [(1, 0), (2, 0)]


def test_what_is_not_persistent_passes_by_and_only_once_it_stands() -> None:
    world = KeepingWorld()
    publisher = world.connect()
    client = world.connect()
    client.send(native.Subscribe(1, "t", durable="box"))
    publisher.send(publication("too early"))
    world.persist()
    publisher.send(publication("passes by"))
    subscribed, delivered = client.take()
    assert subscribed == native.Subscribed(1, 1, 0)
    assert (delivered.text, delivered.sequence) == ("passes by", 0)
    client.send(native.Unsubscribe(1))
    world.persist()
    publisher.send(publication("too late"))
    assert client.take() == [native.Unsubscribed(1)]


def test_messages_wait_for_a_reader_and_are_kept_until_settled() -> None:
    world = KeepingWorld()
    world.reader("box").leave()
    publish(world, 1, 2, 3)
    client = world.reader("box")
    subscribed, *rest = client.take()
    assert subscribed == native.Subscribed(1, 1, 3)
    assert [(one.sequence, one.attempts, one.text) for one in rest] == [
        (1, 0, "1"),
        (2, 0, "2"),
        (3, 0, "3"),
    ]
    settle(world, client, 2, 2, token=7)
    assert client.take() == [native.Settled(1, 7)]
    client.leave()
    world.persist()
    client = world.reader("box")
    subscribed, *rest = client.take()
    assert subscribed == native.Subscribed(1, 1, 2)
    assert [(one.sequence, one.attempts) for one in rest] == [(1, 1), (3, 1)]
    settle(world, client, 1, 3)
    client.leave()
    assert world.reader("box").take() == [native.Subscribed(1, 4, 0)]


@pytest.mark.parametrize("power", [False, True])
def test_what_was_in_hand_when_the_node_died_is_marked(power: bool) -> None:
    world = KeepingWorld()
    client = world.reader("box", in_flight=2)
    publish(world, 1, 2, 3)
    settle(world, client, 1, 1)
    client.send(native.Settle(1, (2, 2)))  # which is not persisted
    assert sequences(client) == [1, 2, 3]
    after = world.again(power)
    client = after.reader("box")
    subscribed, *rest = client.take()
    assert subscribed == native.Subscribed(1, 2, 2)
    assert [(one.sequence, one.attempts) for one in rest] == [(2, 1), (3, 1)]


@pytest.mark.parametrize("power", [False, True])
def test_what_was_delivered_before_a_crash_can_be_settled_before_it_comes_again(
    power: bool,
) -> None:
    world = KeepingWorld()
    client = world.reader("box")
    publish(world, *range(1, 7))
    assert sequences(client) == [1, 2, 3, 4, 5, 6]
    after = world.again(power)
    client = after.reader("box", in_flight=1)
    assert sequences(client) == [1]
    settle(after, client, 3, 5)  # none of them is in its hands yet
    assert sequences(client) == []
    client = after.again(power).reader("box")
    assert sequences(client) == [1, 2, 6]


@pytest.mark.parametrize("dies", [False, True])
def test_deliveries_do_not_run_away_from_settlements_that_are_not_safe(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash only so many are marked; more than that must not have been delivered."""
    monkeypatch.setattr(boxes, "AHEAD", 1000)
    world = KeepingWorld()
    client = world.reader("box", in_flight=1)
    publish(world, *range(1, 1101))
    got = sequences(client)
    while True:
        client.send(native.Settle(1, (got[-1], got[-1])))
        more = sequences(client)
        if not more:
            break
        got += more
    assert 1000 < len(got) < 1100
    if dies:
        again = attempts(world.again().reader("box"))
        assert [sequence for sequence, marked in again if marked] == got
    else:
        world.persist()
        assert len(sequences(client)) == 1  # they are safe now, and it goes on


def test_an_early_settlement_ends_nothing_that_was_not_delivered() -> None:
    world = KeepingWorld()
    client = world.reader("box", in_flight=2)
    publish(world, 1, 2, 3, 4)
    assert sequences(client) == [1, 2]
    settle(world, client, 1, 1000)
    assert sequences(client) == [3, 4]
    client.leave()
    assert sequences(world.reader("box")) == [3, 4]


def test_the_window_of_a_mailbox_is_respected() -> None:
    world = KeepingWorld()
    client = world.reader("box", in_flight=10)
    publish(world, *range(1, 21))
    assert sequences(client) == list(range(1, 11))
    settle(world, client, 5, 10)
    assert sequences(client) == list(range(11, 17))
    client.leave()
    client = world.reader("box", in_flight=3)  # 5 to 10 are settled, and do not count for it
    assert sequences(client) == [1, 2, 3]
    settle(world, client, 1, 1, 3, 3)
    assert sequences(client) == [4, 11]
    settle(world, client, 2, 2, 2, 2, 1, 3)
    assert sequences(client) == [12]


def test_the_window_is_bounded_by_the_node() -> None:
    world = KeepingWorld(in_flight=2)
    client = world.reader("box", in_flight=1000)
    publish(world, 1, 2, 3)
    assert sequences(client) == [1, 2]


def test_a_mailbox_has_a_selector_and_keeps_it() -> None:
    world = KeepingWorld()
    world.reader("box", "t", selector="n > 2").leave()
    client = world.connect("p")
    client.send(*(letter(n, attributes={"n": n}) for n in range(1, 5)))
    world.persist()
    assert [one.takers for one in client.take()] == [0, 1]
    after = world.again()
    again = after.connect("p")
    again.send(letter(5, attributes={"n": 0}), letter(6, attributes={"n": 9}))
    after.persist()
    reader = after.reader("box", "t", selector="n > 2")
    assert [(one.sequence, one.text) for one in deliveries(reader)] == [
        (1, "3"),
        (2, "4"),
        (3, "6"),
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        {"pattern": "u", "selector": "a = 1"},
        {"pattern": "t", "selector": ""},
        {"pattern": "t", "selector": "a = 2"},
        {"pattern": "t", "selector": "a = 1", "exact": True},
    ],
)
def test_a_mailbox_of_the_same_name_must_be_the_same(wanted: dict[str, Any]) -> None:
    world = KeepingWorld()
    world.reader("box", "t", selector="a = 1").leave()
    pattern = wanted.pop("pattern")
    assert error(world.reader("box", pattern, **wanted)) == ("mailbox-differs", 1)
    assert world.reader("box", "t", selector="a = 1").take() == [native.Subscribed(1, 1, 0)]


def test_a_mailbox_has_one_reader_at_a_time() -> None:
    world = KeepingWorld()
    first = world.reader("box", client_id="a")
    first.take()
    assert error(world.reader("box")) == ("mailbox-in-use", 1)
    again = world.reader("box", client_id="a")  # takes over the connection, and so the mailbox
    assert again.take() == [native.Subscribed(1, 1, 0)]
    again.send(native.Unsubscribe(1))
    world.persist()
    assert world.reader("box").take() == [native.Subscribed(1, 1, 0)]


@pytest.mark.parametrize("name", ["a\nb", "x" * 256])
def test_a_mailbox_has_a_name_that_can_be_read(name: str) -> None:
    assert error(KeepingWorld().reader(name)) == ("bad-pattern", 1)


def test_a_mailbox_does_not_replay() -> None:
    world = KeepingWorld(ALL)
    assert error(world.reader("box", from_sequence=1)) == ("not-supported", 1)


def test_nobody_settles_what_is_not_theirs() -> None:
    world = KeepingWorld(ALL)
    world.reader("box")
    other = world.subscriber("t")
    for subscription in (1, 2):
        other.send(native.Settle(subscription, (1, 1)))
        assert error(other) == ("unknown-subscription", subscription)


@pytest.mark.parametrize("ranges", [(1,), (2, 1), (1, 2, 3)])
def test_ranges_are_pairs(ranges: tuple[int, ...]) -> None:
    world = KeepingWorld()
    client = world.reader("box")
    client.take()
    client.send(native.Settle(1, ranges))
    assert error(client) == ("bad-message", 1)


def test_the_last_settlement_is_confirmed_before_the_good_bye() -> None:
    world = KeepingWorld()
    client = world.reader("box")
    publish(world, 1)
    client.take()
    client.send(native.Settle(1, (1, 1), token=3), native.Bye())
    world.persist()
    assert client.take() == [native.Settled(1, 3)]
    assert client.closed == "the client left"


def test_nothing_is_said_to_who_is_gone() -> None:
    world = KeepingWorld()
    client = world.reader("box")
    publish(world, 1)
    client.send(native.Settle(1, (1, 1), token=3))
    client.send(native.Subscribe(2, "#", durable="other"), native.Unsubscribe(1))
    client.leave()
    world.persist()
    assert world.reader("box").take() == [native.Subscribed(1, 2, 0)]


# ------------------------------------------------------------------------------- expired


def test_what_has_expired_is_skipped_and_settled() -> None:
    world = KeepingWorld()
    world.reader("box").leave()
    soon = world.now.wall_us + 1000
    publish(world, 1)
    publish(world, 2, 3, expiration_us=soon)
    publish(world, 4)
    world.advance(10)
    client = world.reader("box", in_flight=2)
    assert sequences(client) == [1, 4]
    settle(world, client, 1, 1, 4, 4)
    client.leave()
    assert world.reader("box").take() == [native.Subscribed(1, 5, 0)]
    assert world.again().reader("box").take() == [native.Subscribed(1, 5, 0)]


def test_what_expires_in_hand_does_not_come_again() -> None:
    world = KeepingWorld()
    client = world.reader("box")
    publish(world, 1, expiration_us=world.now.wall_us + 1000)
    assert sequences(client) == [1]
    client.leave()
    world.advance(10)
    client = world.reader("box")
    assert sequences(client) == []
    client.leave()
    assert world.reader("box").take() == [native.Subscribed(1, 2, 0)]


# ------------------------------------------------------------------------------- removing


def test_a_mailbox_is_removed_for_good() -> None:
    world = KeepingWorld()
    client = world.reader("box")
    publish(world, 1, 2)
    client.take()
    client.send(native.Unsubscribe(1, remove=True))
    assert client.take() == []
    world.persist()
    assert client.take() == [native.Unsubscribed(1)]
    assert world.reader("box").take() == [native.Subscribed(1, 1, 0)]
    assert world.again(power=True).reader("box").take() == [native.Subscribed(1, 1, 0)]


def test_a_mailbox_is_removed_while_messages_for_it_are_on_their_way() -> None:
    world = KeepingWorld()
    client = world.reader("box", "t")
    other = world.reader("other", "#")
    client.take(), other.take()
    publisher = world.connect("p")
    publisher.send(letter(1), letter(2))
    client.send(native.Unsubscribe(1, remove=True))
    publisher.send(letter(3))
    client.send(native.Subscribe(2, "t", durable="new"))  # it gets the slot of the one before
    publisher.send(letter(4))
    world.persist()
    assert [(one.count, one.takers) for one in publisher.take()] == [(2, 2), (1, 1), (1, 2)]
    assert client.take()[:2] == [native.Unsubscribed(1), native.Subscribed(2, 1, 0)]
    assert sequences(other) == [1, 2, 3, 4]
    after = world.again()
    assert [(one.sequence, one.text) for one in deliveries(after.reader("new", "t"))] == [(1, "4")]


def test_a_full_mailbox_that_is_removed_refuses_no_more() -> None:
    world = KeepingWorld(mailbox_messages=4)
    client = world.reader("box", "t")
    for number in range(1, 5):
        publish(world, number)
    publisher = world.connect("p")
    publisher.send(letter(5))
    assert error(publisher) == ("mailbox-full", 0)
    client.send(native.Unsubscribe(1, remove=True), native.Subscribe(2, "t", durable="new"))
    world.persist()
    publisher.send(letter(5))
    world.persist()
    assert publisher.take() == [native.Confirmed(2, 1, 1)]


@pytest.mark.parametrize("remove", [False, True])
def test_a_subscription_that_ends_before_it_stands(remove: bool) -> None:
    world = KeepingWorld()
    world.reader("box").leave()
    publish(world, 1)
    client = world.connect()
    client.send(native.Subscribe(1, "#", durable="box"), native.Unsubscribe(1, remove))
    world.persist()
    assert client.take() == [native.Subscribed(1, 1, 1), native.Unsubscribed(1)]
    publish(world, 2)
    assert client.take() == []
    assert sequences(world.reader("box")) == ([] if remove else [1, 2])


# ------------------------------------------------------------------------ slow and broken


def test_a_reader_that_does_not_read_holds_up_nobody() -> None:
    world = KeepingWorld(write_bytes=2000, queue_messages=10)
    slow = world.reader("slow", "t")
    live = world.subscriber("t")
    slow.take()
    slow.clog()
    publisher = world.connect("p")
    for start in range(1, 1000, 50):
        publisher.send(*(letter(n) for n in range(start, start + 50)))
        world.persist()
    assert not publisher.held
    assert sum(one.count for one in publisher.take() if isinstance(one, native.Confirmed)) == 1000
    assert len(deliveries(live)) == 1000
    assert world.counters["queued_bytes"] == 0
    slow.start_reading()
    assert sequences(slow) == list(range(1, 1001))


def test_credit_is_respected() -> None:
    world = KeepingWorld()
    client = world.reader("box", credit_messages=2, credit_bytes=1 << 30)
    publish(world, 1, 2, 3, 4, 5)
    assert sequences(client) == [1, 2]
    client.send(native.Credit(4, 1 << 30))
    assert sequences(client) == [3, 4]
    client.send(native.Credit(100, 1 << 30))
    assert sequences(client) == [5]


def test_several_readers_of_one_connection_have_their_turns() -> None:
    world = KeepingWorld(ALL, write_bytes=500)
    client = world.connect()
    client.send(native.Subscribe(2, "t", durable="box"))
    world.persist()
    client.clog()
    publish(world, *range(1, 201))
    client.send(native.Subscribe(1, stream="all", from_sequence=1))
    client.start_reading()
    order = [one.subscriptions[0] for one in deliveries(client)]
    assert sorted(order) == [1] * 200 + [2] * 200
    assert set(order[:40]) == {1, 2}


def test_a_mailbox_that_is_empty_reads_nothing() -> None:
    world = KeepingWorld([Retained("kept", "t")], journal_tail_bytes=1)
    world.reader("box", "u").leave()
    publish(world, *range(1, 100))
    world = world.again()
    box = world.reader("box", "u")
    publish(world, *range(100, 200))
    assert world.disk.counts["read"] == 0
    publish(world, 200, topic="u")
    assert sequences(box) == [1]
    assert world.disk.counts["read"] == 0


def test_a_reader_reads_on_where_the_disk_was_not_written_yet() -> None:
    """What was read from the disk once does not stand for what is written there later."""
    world = KeepingWorld(ALL, journal_tail_bytes=1, write_bytes=1000, segment_bytes=262_144)
    publish(world, *range(1, 51))
    world = world.again(journal_tail_bytes=1, write_bytes=1000, segment_bytes=262_144)
    client = world.connect()
    client.stop_reading(2000)
    client.send(native.Subscribe(1, stream="all", from_sequence=1))
    for start in range(51, 3000, 50):
        publish(world, *range(start, start + 50))
    client.start_reading()
    assert sequences(client) == list(range(1, 3001))


def test_a_subscription_that_cannot_be_read_ends_with_an_error() -> None:
    world = KeepingWorld(ALL)
    publish(world, 1, 2)
    world = world.again()
    world.disk.fail("read", world.disk.counts["read"] + 1, errno.EIO)
    client = world.connect()
    client.send(native.Subscribe(1, stream="all", from_sequence=1))
    assert error(client) == ("journal-failed", 1)
    client.send(native.Subscribe(1, stream="all", from_sequence=1))
    assert sequences(client) == [1, 2]


def test_a_damaged_record_ends_the_reading_of_it() -> None:
    world = KeepingWorld(ALL)
    world.reader("box").leave()
    publish(world, 1, 2)
    place = world.journal.locate(1, 1)
    assert place is not None
    world = world.again()
    world.disk.rot(place.first, place.offset + 60)
    client = world.reader("box")
    assert error(client) == ("journal-failed", 1)
    world.persist()
    assert error(world.reader("box")) == ("journal-failed", 1)  # and nobody is in the way


def test_what_was_settled_may_be_gone_from_the_disk() -> None:
    """It lies between what may have been delivered before and what was not."""
    world = KeepingWorld()
    client = world.reader("box", in_flight=3)
    for number in range(1, 6):
        publish(world, number)
    assert sequences(client) == [1, 2, 3]
    settle(world, client, 2, 3)
    assert sequences(client) == [4, 5]
    settle(world, client, 4, 5)
    client.leave()
    publish(world, 6)
    records = found_records(world)
    skip = format.encode_skip(records[2], records[6] - records[2], world.now.wall_us, 1)
    piece = Piece(0, records[2], skip)
    world.disk.perform(Persist((piece,), world.limits.segment_bytes))
    tail = world.journal.tail
    del tail._blocks[:], tail._starts[:]  # so that it is read from the disk
    assert attempts(world.reader("box")) == [(1, 1), (6, 0)]


def found_records(world: KeepingWorld) -> dict[int, int]:
    """Where the messages of the first mailbox begin, by sequence."""
    (segment,) = world.disk.open_segments()
    walk, at, found = Walk(), 0, {}
    while walk.step(segment.view, at, 0, 0) == FOUND:
        if walk.kind == format.MESSAGES:
            (spot,) = format.places(segment.view[walk.meta_at : walk.payload_at])
            found[spot[1]] = at
        at = walk.next
    return found


def test_bytes_that_nobody_asked_for_do_no_harm() -> None:
    world = KeepingWorld(ALL)
    world.step(JournalRead(-99, b"x", ""), JournalRead(99, b"", "no"))


# -------------------------------------------------------------------------------- replays


def replay(world: KeepingWorld, **wanted: Any) -> Client:
    client = world.connect()
    client.send(native.Subscribe(1, **wanted))
    world.persist()
    return client


def test_a_replay_begins_where_it_is_told_and_goes_on() -> None:
    world = KeepingWorld(ALL)
    publish(world, *range(1, 11))
    client = replay(world, stream="all", from_sequence=8)
    assert client.take()[0] == native.Subscribed(1, 8, 3)
    publish(world, 11)
    assert sequences(client) == [11]
    assert sequences(replay(world, stream="all", from_sequence=1)) == list(range(1, 12))
    late = replay(world, stream="all", from_sequence=13)
    publish(world, 12, 13)
    assert sequences(late) == [13]


def test_a_replay_from_a_time() -> None:
    world = KeepingWorld(ALL)
    times = []
    for number in range(1, 6):
        world.advance(1000)
        times.append(world.now.wall_us)
        publish(world, number)
    assert sequences(replay(world, stream="all", from_time=times[2])) == [3, 4, 5]
    assert sequences(replay(world, stream="all", from_time=times[2] + 1)) == [4, 5]
    assert sequences(replay(world, stream="all", from_time=WALL_US)) == [1, 2, 3, 4, 5]
    world = world.again()
    assert sequences(replay(world, stream="all", from_time=times[3])) == [4, 5]


def test_a_replay_with_a_selector_and_a_pattern() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    topics = ["a/x", "b/x", "a/y"]
    client.send(*(letter(n, topics[n % 3], attributes={"n": n}) for n in range(1, 10)))
    world.persist()
    found = replay(world, stream="all", pattern="a/#", selector="n > 3", from_sequence=1)
    assert [one.text for one in deliveries(found)] == ["5", "6", "8", "9"]


def test_a_paced_replay_takes_as_long_as_it_took() -> None:
    world = KeepingWorld(ALL)
    for number in range(1, 5):
        publish(world, number)
        publish(world, 100 + number, topic="u")
        world.advance(1000)
    client = replay(world, stream="all", from_sequence=1, paced=True, pattern="t")
    got: Sequence[int] = [int(one.text) for one in deliveries(client)]
    for number in range(2, 5):
        assert got == [number - 1]
        world.advance(500)
        assert deliveries(client) == []
        world.advance(501)
        got = [int(one.text) for one in deliveries(client)]
    assert got == [4]


def test_a_stream_is_found_by_its_topics() -> None:
    world = KeepingWorld([Retained("a", "a/#"), Retained("b", "b/#")])
    publish(world, 1, 2, topic="b/x")
    assert sequences(replay(world, pattern="b/x", from_sequence=1)) == [1, 2]
    assert error(replay(world, pattern="c", from_sequence=1)) == ("unknown-stream", 1)
    assert error(replay(world, pattern="#", from_sequence=1)) == ("unknown-stream", 1)
    assert error(replay(world, stream="c", from_sequence=1)) == ("unknown-stream", 1)


def test_a_replay_over_many_segments_after_a_restart() -> None:
    world = KeepingWorld(ALL, segment_bytes=32_768, journal_tail_bytes=1)
    for start in range(1, 2000, 100):
        publish(world, *range(start, start + 100), correlation="x" * 60)
    assert world.node.report("journal", 1)["segments"] > 3
    assert sequences(replay(world, stream="all", from_sequence=1)) == list(range(1, 2001))
    world = world.again(segment_bytes=32_768, journal_tail_bytes=1)
    assert sequences(replay(world, stream="all", from_sequence=700)) == list(range(700, 2001))


def test_replays_count_as_subscriptions() -> None:
    world = KeepingWorld(ALL, subscriptions_per_session=3)
    client = world.connect()
    client.send(*(native.Subscribe(n, stream="all", from_sequence=1) for n in range(1, 4)))
    world.persist()
    assert len(client.take()) == 3
    client.send(native.Subscribe(4, stream="all", from_sequence=1))
    assert error(client) == ("limit-exceeded", 4)


def test_a_node_forgets_who_is_gone() -> None:
    world = KeepingWorld(ALL)
    box, client, publisher = world.reader("box"), world.connect(), world.connect("p")
    client.send(native.Subscribe(1, stream="all", from_sequence=1))
    publisher.send(letter(1))
    publisher.send(letter(2))
    for one in (box, client, publisher):
        one.leave()
    world.persist()
    world.check_empty()


def test_streams_that_the_configuration_forgot_are_still_there() -> None:
    world = KeepingWorld([Retained("a", "a/#"), Retained("b", "b/#")])
    publish(world, 1, topic="a/x")
    publish(world, 2, topic="b/x")
    world.streams = [Retained("b", "b/#")]
    world = world.again()
    assert sequences(replay(world, stream="a", from_sequence=1)) == [1]
    assert sequences(replay(world, stream="b", from_sequence=1)) == [1]


# --------------------------------------------------------------------------- reading ahead


def much(world: KeepingWorld, monkeypatch: pytest.MonkeyPatch, chunk: int) -> KeepingWorld:
    """A node with a thousand messages on its disk, of which it reads `chunk` bytes at a time."""
    monkeypatch.setattr(reading, "READ_BYTES", chunk)
    for start in range(1, 1001, 10):
        publish(world, *range(start, start + 10))
    return world.again(journal_tail_bytes=1, segment_bytes=131_072, write_bytes=1000)


@pytest.mark.parametrize("chunk", [200, 1500, 5000, 20_000])
@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_what_is_read_ahead_is_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, chunk: int, failing: int
) -> None:
    """One read that fails ends the subscription, unless it was only ahead of its time."""
    world = KeepingWorld(ALL, journal_tail_bytes=1, segment_bytes=131_072)
    world = much(world, monkeypatch, chunk)
    storage = world.node._storage
    assert storage is not None
    asked = []
    perform = world.perform

    def watch(effect: Any, answers: Any) -> None:
        if isinstance(effect, ReadJournal) and effect.ticket < 0:
            cursor = storage.readings.reading[effect.ticket]
            asked.append(cursor.ahead_ticket == effect.ticket)
            if len(asked) == failing:
                world.disk.fail("read", world.disk.counts["read"] + 1, errno.EIO)
        perform(effect, answers)

    monkeypatch.setattr(world, "perform", watch)
    client = replay(world, stream="all", from_sequence=1)
    if 0 < failing <= len(asked) and not asked[failing - 1]:
        got = [one for one in client.take() if isinstance(one, native.Error)]
        assert [one.name for one in got] == ["journal-failed"]
    else:
        assert sequences(client) == list(range(1, 1001))
        assert any(asked) == (chunk > 1000)  # or no record ends in what was read
    client.leave()
    assert not storage.readings.reading
