"""Credit in both directions, slow subscribers, and publishers that wait for them."""

import random

import pytest
from harness import Client, World, publication

from regraft.model.message import Message
from regraft.node.connection import Connection
from regraft.wire import native

BODY = bytes(100)
FRAME = len(native.encode(publication(BODY)))


def connection(world: World, client: Client) -> Connection:
    return world.node._connections[client.key]


def numbered(start: int, count: int, size: int = 100) -> list[Message]:
    return [publication(str(start + k).encode().ljust(size)) for k in range(count)]


def numbers(client: Client) -> list[int]:
    return [int(body) for body in client.bodies()]


# -------------------------------------------------------- credit of a subscriber


def within_credit(client: Client, messages: int, size: int) -> bool:
    """Whether every message so far began within the credit."""
    client.bodies()
    if not client.delivered:
        return True
    before = sum(len(item.frame) for item in client.delivered[:-1])
    return len(client.delivered) - 1 < messages and before < size


def test_credit_in_messages_is_respected_exactly() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=3, credit_bytes=1 << 40)
    world.connect().send(*numbered(0, 10))
    assert numbers(subscriber) == [0, 1, 2]
    subscriber.send(native.Credit(4, 1 << 40))
    assert numbers(subscriber) == [0, 1, 2, 3]
    subscriber.send(native.Credit(2, 0))
    assert len(numbers(subscriber)) == 4
    subscriber.send(native.Credit(2**64 - 1, 2**64 - 1))
    assert numbers(subscriber) == list(range(10))
    world.check_sums()


def test_credit_in_bytes_is_respected_exactly() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=1 << 40, credit_bytes=2 * FRAME)
    world.connect().send(*numbered(0, 10))
    assert numbers(subscriber) == [0, 1]
    subscriber.send(native.Credit(0, 2 * FRAME + 1))
    assert numbers(subscriber) == [0, 1, 2]
    subscriber.send(native.Credit(0, 3 * FRAME))
    assert numbers(subscriber) == [0, 1, 2]


def test_one_kind_of_credit_alone_delivers_nothing() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=10)
    world.connect().send(*numbered(0, 3))
    assert numbers(subscriber) == []
    subscriber.send(native.Credit(10, 1))
    assert numbers(subscriber) == [0]


def test_credit_holds_across_large_and_small_messages_and_batches() -> None:
    for seed in range(6):
        choice = random.Random(seed)
        world = World(queue_bytes=1 << 28, window_bytes=1 << 28, windows_bytes_total=1 << 30)
        messages, size = choice.choice([50, 40_000]), choice.choice([600_000, 2_000_000])
        subscriber = world.subscriber("t", credit_messages=messages, credit_bytes=size)
        publisher = world.connect()
        sent = 0
        for _ in range(6):
            batch = []
            for _ in range(choice.choice([1, 30])):
                length = choice.choice([100] * 9 + [3_000, 1_040_000])
                batch += numbered(sent, 1, length)
                sent += 1
            data = publisher.encoded(*batch)
            cut = choice.randrange(len(data))
            publisher.send(data[:cut])
            publisher.send(data[cut:])
            assert within_credit(subscriber, messages, size), seed
            messages += choice.choice([0, 20, 20_000])
            size += choice.choice([0, 1_000, 3_000_000])
            subscriber.send(native.Credit(messages, size))
            assert within_credit(subscriber, messages, size), seed
        subscriber.send(native.Credit(1 << 60, 1 << 60))
        assert numbers(subscriber) == list(range(sent)), seed


def test_control_frames_keep_their_place_and_need_no_credit() -> None:
    world = World()
    client = world.subscriber("t", credit_messages=1, credit_bytes=1 << 30)
    client.send(publication(1), publication(2), native.Heartbeat(5), publication(3))
    client.send(native.Subscribe(2, "u"))
    kinds = [type(item).__name__ for item in client.take()]
    assert kinds == ["Delivered"]
    client.send(native.Credit(9, 1 << 30))
    kinds = [type(item).__name__ for item in client.take()]
    assert kinds == ["Delivered", "Heartbeat", "Delivered", "Subscribed"]


def test_a_client_may_grant_publish_and_ask_in_one_breath() -> None:
    world = World()
    client = world.subscriber("t", credit_messages=1, credit_bytes=1 << 30)
    for number in range(5):
        client.send(publication(number))
    client.send(native.Credit(2, 1 << 30), publication(5), native.Heartbeat(1), publication(6))
    client.send(native.Credit(100, 1 << 30))
    assert numbers(client) == list(range(7))


def test_what_expires_while_it_waits_is_not_delivered_but_counted() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=1, credit_bytes=1 << 30)
    moment = world.now.wall_us + 1_000_000
    publisher = world.connect()
    publisher.send(publication(0), publication(1, expiration_us=moment), publication(2))
    publisher.send(publication(3, expiration_us=moment + 1_000_000))
    world.advance(1_000)
    subscriber.send(native.Credit(2, 1 << 30))
    world.advance(1_000)
    subscriber.send(native.Credit(9, 1 << 30))
    assert numbers(subscriber) == [0, 2]
    assert world.counters["dropped"] == {"expired": 2}
    world.check_sums()


# ---------------------------------------------------------- credit of a publisher


def test_a_publisher_gets_more_credit_as_it_uses_it() -> None:
    world = World(window_messages=10)
    publisher = world.connect()
    publisher.send(*numbered(0, 4))
    assert publisher.take() == []
    publisher.send(publication(1))
    news = publisher.take()
    assert news[0].messages == 15 and news[0].bytes > 5 * FRAME
    publisher.send(*numbered(0, 4))
    assert publisher.take() == []
    publisher.send(publication(1))
    assert publisher.take()[0].messages == 20


def full_subscriber(world: World, **hello: object) -> Client:
    """A subscriber that has stopped reading."""
    subscriber = world.subscriber("t", **hello)
    subscriber.clog()
    return subscriber


def test_a_publisher_waits_for_a_full_subscriber_and_nothing_is_lost() -> None:
    world = World(queue_bytes=2_000, window_bytes=4_000, window_bytes_first=4_000, write_bytes=500)
    subscriber = full_subscriber(world)
    publisher = world.connect()
    granted = world.limits.window_bytes_first
    sent = used = 0
    for _ in range(200):
        if used >= granted:
            break
        publisher.send(*numbered(sent, 1))
        sent += 1
        used += FRAME
        granted = max([granted, *(credit.bytes for credit in publisher.take())])
    else:
        pytest.fail("the publisher was never stopped")
    assert publisher.held
    assert world.counters["queued_bytes"] <= 2_000 + 4_000 + FRAME
    world.advance(4_000)
    assert publisher.take() == []
    subscriber.start_reading()
    assert numbers(subscriber) == list(range(sent))
    assert not publisher.held
    assert publisher.take()[-1].bytes > granted
    world.check_sums()


def test_a_publisher_that_ignores_credit_is_held_until_there_is_room() -> None:
    world = World(queue_messages=10, window_messages=20)
    subscriber = full_subscriber(world)
    publisher = world.connect()
    publisher.send(*numbered(0, 500))
    assert publisher.held
    subscriber.start_reading()
    assert not publisher.held
    publisher.send(*numbered(500, 5))
    assert numbers(subscriber) == list(range(505))


def test_another_subscriber_is_not_held_up_by_a_full_one() -> None:
    world = World(queue_messages=10)
    full_subscriber(world)
    lively = world.subscriber("#")
    publisher = world.connect()
    publisher.send(*numbered(0, 30))
    other = world.connect()
    other.send(publication(77, "u"))
    assert numbers(lively) == [*range(30), 77]
    assert not connection(world, other).blocked_on


def test_publishers_go_on_when_the_full_subscriber_is_gone() -> None:
    world = World(queue_messages=10)
    subscriber = full_subscriber(world)
    publishers = [world.connect() for _ in range(3)]
    for publisher in publishers:
        publisher.send(*numbered(0, 30))
        assert connection(world, publisher).blocked_on
    subscriber.leave()
    assert not any(connection(world, publisher).blocked_on for publisher in publishers)
    assert world.counters["queued_bytes"] == 0
    world.check_sums()


def test_a_publisher_that_leaves_while_it_waits_is_forgotten() -> None:
    world = World(queue_messages=10)
    subscriber = full_subscriber(world)
    publisher = world.connect()
    publisher.send(*numbered(0, 30))
    publisher.leave()
    subscriber.start_reading()
    assert numbers(subscriber) == list(range(30))
    subscriber.leave()
    world.check_empty()


def test_all_wait_when_the_memory_of_the_node_is_used_up_and_go_on_when_it_is_free() -> None:
    world = World(queue_bytes=10_000, queue_bytes_total=20_000, stall_ms=60_000)
    slow = [full_subscriber(world) for _ in range(4)]
    publisher = world.connect()
    publisher.send(*numbered(0, 60))
    assert world.counters["queued_bytes"] >= 20_000
    assert connection(world, publisher).blocked_on == {-1}
    for subscriber in slow[:3]:
        subscriber.leave()
    assert not connection(world, publisher).blocked_on
    slow[3].start_reading()
    assert numbers(slow[3]) == list(range(60))


def test_the_stalled_do_not_use_up_the_memory_of_the_others() -> None:
    world = World(queue_bytes=10_000, queue_bytes_total=20_000)
    policy = native.StallPolicy.DROP_NEWEST
    dead = [full_subscriber(world, when_stalled=policy, passive=True) for _ in range(4)]
    publisher = world.connect(passive=True)
    publisher.send(*numbered(0, 60))
    assert connection(world, publisher).blocked_on == {-1}
    world.advance(5_000)
    assert not connection(world, publisher).blocked_on
    for start in range(60, 2_000, 20):
        publisher.send(*numbered(start, 20))
        assert not connection(world, publisher).blocked_on
    assert world.counters["queued_bytes"] < 20_000
    world.check_sums()
    for subscriber in dead:
        subscriber.leave()
    world.check_sums()


# ---------------------------------------------------------------------- stalled


def test_a_stalled_subscriber_is_disconnected_by_default() -> None:
    world = World(queue_messages=10)
    subscriber = full_subscriber(world)
    publisher = world.connect()
    publisher.send(*numbered(0, 30))
    world.advance(4_999)
    assert not subscriber.closed
    world.advance(1)
    assert subscriber.take()[-1].name == "stalled"
    assert subscriber.closed
    assert not connection(world, publisher).blocked_on
    assert world.counters["queued_bytes"] == 0
    publisher.send(*numbered(30, 5))
    assert world.counters["untaken"] == 5
    assert world.counters["dropped"]["stalled"] > 0
    world.check_sums()


@pytest.mark.parametrize("policy", [1, 2])
def test_a_stalled_subscriber_loses_by_its_policy_and_is_told(policy: int) -> None:
    world = World(queue_messages=10)
    subscriber = full_subscriber(world, when_stalled=native.StallPolicy(policy), passive=True)
    publisher = world.connect(passive=True)
    for start in range(0, 20, 5):
        publisher.send(*numbered(start, 5))
    assert connection(world, publisher).blocked_on
    world.advance(5_000)
    assert not connection(world, publisher).blocked_on
    for start in range(20, 40, 5):
        publisher.send(*numbered(start, 5))
    assert not connection(world, publisher).blocked_on
    assert not publisher.held
    subscriber.start_reading()
    got = numbers(subscriber)
    assert got == (list(range(30, 40)) if policy == 1 else list(range(10)))
    lost = 40 - len(got)
    (report,) = [item for item in subscriber.take() if isinstance(item, native.Dropped)]
    assert (report.messages, report.bytes) == (lost, lost * FRAME)
    assert world.counters["dropped"] == {"stalled": lost}
    world.check_sums()
    publisher.send(*numbered(40, 2))
    assert numbers(subscriber)[-2:] == [40, 41]


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_a_subscriber_may_stall_again_and_still_holds_up_nobody(policy: int) -> None:
    world = World(queue_messages=10, write_bytes=300)
    subscriber = full_subscriber(world, when_stalled=native.StallPolicy(policy), passive=True)
    publisher = world.connect(passive=True)
    sent = 0
    for _ in range(5):
        for _ in range(4):
            publisher.send(*numbered(sent, 5))
            sent += 5
        world.advance(5_001)
        assert not connection(world, publisher).blocked_on
        assert subscriber.closed or policy != 0
        if subscriber.closed:
            break
        for _ in range(3):  # some of it, so that it recovers but is not empty
            subscriber.read(600)
    world.check_sums()


def test_a_subscriber_that_makes_progress_is_not_stalled() -> None:
    world = World(queue_messages=1_000, write_bytes=300)
    subscriber = full_subscriber(world, passive=True)
    world.connect(passive=True).send(*numbered(0, 50))
    for _ in range(40):
        world.advance(4_000)
        subscriber.read(10)
        assert not subscriber.closed
    world.advance(5_000)
    assert subscriber.closed


def test_a_subscriber_without_credit_is_stalled_too() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=1, credit_bytes=1 << 30, passive=True)
    world.connect(passive=True).send(*numbered(0, 5))
    world.advance(4_000)
    subscriber.send(native.Credit(2, 1 << 30))
    world.advance(4_000)
    assert not subscriber.closed
    world.advance(1_000)
    assert subscriber.closed


def test_a_subscriber_that_never_reads_does_not_grow_the_node() -> None:
    window = 20_000
    world = World(
        queue_bytes=50_000, window_bytes=window, window_bytes_first=window, stall_ms=3_600_000
    )
    subscriber = full_subscriber(world, passive=True)
    publishers = [world.connect(passive=True) for _ in range(4)]
    granted = dict.fromkeys(publishers, window)
    used = dict.fromkeys(publishers, 0)
    for _ in range(400):
        for publisher in publishers:
            if used[publisher] < granted[publisher]:
                publisher.send(*numbered(0, 5))
                used[publisher] += 5 * FRAME
                for item in publisher.take():
                    granted[publisher] = max(granted[publisher], item.bytes)
        assert world.counters["queued_bytes"] <= 50_000 + 4 * (window + 5 * FRAME)
    assert all(used[publisher] >= granted[publisher] for publisher in publishers)
    assert len(subscriber.unsent) <= world.limits.write_bytes + 100
    assert all(publisher.held for publisher in publishers)


def test_a_client_that_does_not_read_its_replies_is_not_heard() -> None:
    world = World(frame_bytes=70_000, write_bytes=1_000)
    client = world.connect()
    client.stop_reading()
    question = client.encoded(native.Heartbeat(1)) * 1_000
    for _ in range(100):
        if client.held:
            break
        client.send(question)
    assert client.held
    assert len(client.unsent) < 70_000 + 4_000 + 2 * len(question)
    client.start_reading()
    assert not client.held


def test_replies_that_wait_for_credit_are_bounded_too() -> None:
    world = World(frame_bytes=70_000, write_bytes=1_000)
    policy = native.StallPolicy.DROP_OLDEST
    client = world.subscriber("t", credit_messages=1, credit_bytes=1, when_stalled=policy)
    client.send(publication(1), publication(2))
    question = client.encoded(native.Heartbeat(1)) * 1_000
    for _ in range(100):
        if client.held:
            break
        client.send(question)
    assert client.held
