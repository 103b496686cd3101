"""Heartbeats, leaving, stopping, and what is kept of those who are gone."""

import random

import pytest
from harness import HEARTBEAT_MS, Client, World, publication

from regraft.wire import native


def named(client: Client, kind: type) -> list[object]:
    return [item for item in client.take() if isinstance(item, kind)]


def test_a_node_says_something_when_it_has_been_silent() -> None:
    world = World()
    client = world.connect(passive=True)
    world.advance(HEARTBEAT_MS - 1)
    assert client.take() == []
    world.advance(1)
    assert client.take() == [native.Heartbeat()]
    world.advance(5 * HEARTBEAT_MS)
    assert client.take() == [native.Heartbeat()] * 5


def test_a_node_that_speaks_sends_no_heartbeats() -> None:
    world = World()
    client = world.subscriber("t", passive=True)
    for number in range(20):
        world.advance(HEARTBEAT_MS // 2)
        client.send(publication(number))
    assert named(client, native.Heartbeat) == []


def test_a_silent_client_is_lost() -> None:
    world = World()
    client = world.connect()
    world.advance(3 * HEARTBEAT_MS - 1)
    assert not client.closed
    world.advance(1)
    assert client.take()[-1].name == "heartbeat-lost"
    assert client.closed
    world.check_empty()


def test_a_client_that_says_anything_is_not_lost() -> None:
    world = World()
    client = world.connect()
    for _ in range(10):
        world.advance(2 * HEARTBEAT_MS)
        client.send(native.Heartbeat())
    assert not client.closed


def test_a_passive_client_may_be_silent() -> None:
    world = World()
    client = world.connect(passive=True)
    world.advance(100 * HEARTBEAT_MS)
    assert not client.closed


def test_a_heartbeat_with_a_token_is_answered() -> None:
    client = World().connect()
    client.send(native.Heartbeat(7), native.Heartbeat(), native.Heartbeat(8, True))
    assert client.take() == [native.Heartbeat(7, True)]


def test_a_publisher_that_is_held_is_not_lost_by_its_silence() -> None:
    world = World(queue_messages=5, window_messages=5, stall_ms=10_000_000)
    subscriber = world.subscriber("t", passive=True)
    subscriber.clog()
    publisher = world.connect()
    publisher.send(*(publication(k) for k in range(40)))
    assert publisher.held
    world.advance(20 * HEARTBEAT_MS)
    assert not publisher.closed
    subscriber.start_reading()
    world.advance(3 * HEARTBEAT_MS)
    assert publisher.closed


def test_a_client_that_neither_reads_nor_speaks_is_lost() -> None:
    world = World(frame_bytes=70_000, write_bytes=1_000)
    client = world.connect()
    client.stop_reading()
    while not client.held:
        client.send(client.encoded(native.Heartbeat(1)) * 1_000)
    world.advance(4 * HEARTBEAT_MS)
    assert client.closed


def test_heartbeats_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    world = World()
    client = world.connect(passive=True)
    client.stop_reading()
    world.advance(100 * HEARTBEAT_MS)
    assert len(client.unsent) <= 2 * len(native.encode(native.Heartbeat()))


def test_deadlines_do_not_multiply() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=10, credit_bytes=1 << 40, passive=True)
    publisher = world.connect(passive=True)
    for number in range(500):
        publisher.send(publication(number))
        subscriber.send(native.Credit(number + 10, 1 << 40))
        subscriber.send(native.Heartbeat(number + 1))
        world.advance(1)
    assert len(subscriber.bodies()) == 500
    heap = world.node._deadlines._heap
    assert len(heap) <= 6, heap
    world.advance(20 * HEARTBEAT_MS)
    assert len(heap) <= 4


# ---------------------------------------------------------------------- leaving


def test_bye_is_answered_by_the_end_after_all_that_came_before() -> None:
    world = World()
    subscriber = world.subscriber("t")
    client = world.connect()
    client.send(publication(1), native.Bye(), publication(2))
    assert client.closed
    assert subscriber.bodies() == [b"1"]
    assert world.counters["failures"] == {}


def test_what_waits_is_sent_to_a_client_that_leaves_politely() -> None:
    world = World(write_bytes=100)
    subscriber = world.subscriber("t")
    subscriber.clog()
    world.connect().send(*(publication(number) for number in range(50)))
    assert world.counters["queued_bytes"] > 0
    subscriber.send(native.Bye())
    assert subscriber.bodies() == [str(number).encode() for number in range(50)]
    assert world.counters["dropped"] == {}
    world.check_sums()


def test_politeness_does_not_go_beyond_the_credit() -> None:
    world = World()
    subscriber = world.subscriber("t", credit_messages=2, credit_bytes=1 << 30)
    world.connect().send(*(publication(number) for number in range(5)))
    subscriber.send(native.Bye())
    assert len(subscriber.bodies()) == 2
    assert world.counters["dropped"] == {"left": 3}
    world.check_sums()


def test_a_fatal_error_of_the_client_is_its_last_word() -> None:
    world = World()
    client = world.connect()
    client.send(native.Error(3, "frame-too-large", "", False), native.Heartbeat(1))
    assert client.take() == [native.Heartbeat(1, True)]
    client.send(native.Error(3, "frame-too-large", "", True), native.Heartbeat(1))
    assert client.take() == []
    assert client.closed


def test_nothing_is_kept_of_those_who_are_gone() -> None:
    world = World(queue_messages=10)
    for seed in range(30):
        choice = random.Random(seed)
        clients = [world.subscriber("t", "u") for _ in range(3)]
        if choice.random() < 0.5:
            clients[0].clog()
        for client in clients:
            client.send(*(publication(k, choice.choice("tuv")) for k in range(20)))
        clients[1].send(native.Unsubscribe(1), native.Unsubscribe(2))
        clients[2].send(publication(1), b"\0" * 20)
        for client in clients:
            client.leave()
    world.check_empty()
    world.check_sums()
    world.advance(400_000)
    assert not world.node._deadlines._heap


def test_a_first_read_with_a_message_and_garbage_is_counted_once() -> None:
    world = World()
    for _ in range(3):
        client = world.open()
        client.send(native.PREFACE, native.Hello(1, 1), publication(1), b"\0" * 12)
        assert client.closed
    assert world.node._outflow.publishers == 0


# --------------------------------------------------------------------- stopping


def test_a_node_without_clients_stops_at_once() -> None:
    world = World()
    world.stop()
    assert world.refusing and world.stopped


def test_clients_are_told_to_go_and_served_until_they_do() -> None:
    world = World(drain_ms=5_000)
    subscriber, publisher = world.subscriber("t"), world.connect()
    opening = world.open()
    world.stop()
    assert opening.closed
    assert subscriber.take() == [native.Goaway("the test is over", 5_000)]
    publisher.send(publication(1), native.Bye())
    assert subscriber.bodies() == [b"1"]
    assert world.stopped == 0
    subscriber.leave()
    assert world.stopped > 0


def test_who_does_not_go_is_let_go() -> None:
    world = World(drain_ms=5_000)
    client = world.connect(passive=True)
    world.stop()
    world.advance(4_999)
    assert not client.closed and not world.stopped
    world.advance(1)
    assert client.take()[-1].name == "shutting-down"
    assert world.stopped


def test_a_second_request_ends_it_at_once() -> None:
    world = World()
    client = world.connect()
    world.stop()
    world.stop()
    assert client.closed and world.stopped


def test_who_connects_while_the_node_stops_is_sent_away() -> None:
    world = World()
    world.connect()
    world.stop()
    late = world.open()
    assert late.take()[-1].name == "shutting-down"
    assert late.closed


# ------------------------------------------------------------- anything at all


class Story:
    """Clients that do anything, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.world = World(
            queue_messages=30,
            queue_bytes=5_000,
            queue_bytes_total=12_000,
            window_bytes=3_000,
            window_bytes_first=2_000,
            write_bytes=400,
            stall_ms=5_000,
        )
        self.clients: list[Client] = []
        self.sent: dict[int, int] = {}
        self.credit: dict[int, int] = {}

    def join(self) -> None:
        hello: dict[str, object] = {"passive": True}
        hello["when_stalled"] = native.StallPolicy(self.choice.randrange(3))
        if self.choice.random() < 0.5:
            hello |= {"credit_messages": 5, "credit_bytes": 1_000}
        client = self.world.subscriber(self.choice.choice(["t", "t/+", "#", "u"]), **hello)
        self.clients.append(client)
        self.sent[client.key] = 0
        self.credit[client.key] = 5

    def publish(self, client: Client) -> None:
        parts: list[bytes] = []
        for _ in range(self.choice.randint(1, 12)):
            number = self.sent[client.key]
            self.sent[client.key] += 1
            body = f"{client.key} {number} ".encode() + bytes(self.choice.choice([0, 9, 500]))
            topic = self.choice.choice(["t", "t/a", "u", "none"])
            parts.append(native.encode(publication(body, topic)))
            if self.choice.random() < 0.1:
                parts.append(native.encode(native.Heartbeat(number + 1)))
        if not client.held:
            client.send(*parts)
        else:
            self.sent[client.key] = number + 1

    def grant(self, client: Client) -> None:
        self.credit[client.key] += self.choice.randint(1, 20)
        messages = self.credit[client.key]
        client.send(native.Credit(messages, messages * 200), native.Heartbeat(1))

    def act(self) -> None:
        client = self.choice.choice(self.clients)
        match self.choice.randrange(10):
            case 0 if len(self.clients) < 8:
                self.join()
            case 1:
                client.stop_reading(self.choice.choice([0, 100, 1_000]))
            case 2:
                client.start_reading()
            case 3:
                client.read(self.choice.choice([10, 300, 3_000]))
            case 4 | 5:
                if not client.held:
                    self.grant(client)
            case 6:
                self.world.advance(self.choice.choice([10, 1_000, 6_000]))
            case _:
                self.publish(client)
        self.clients = [client for client in self.clients if not client.closed] or self.clients
        if all(client.closed for client in self.clients):
            self.clients.clear()
            self.join()

    def settle(self) -> None:
        """Everybody reads and allows everything: nobody may be left waiting."""
        for _ in range(4):
            for client in self.clients:
                if not client.closed:
                    client.start_reading()
            for client in self.clients:
                if not client.closed and not client.held:
                    client.send(native.Credit(1 << 40, 1 << 40))
            self.world.advance(5_001)

    def check(self) -> None:
        self.world.check_sums()
        assert self.world.counters["queued_bytes"] == 0
        for client in self.clients:
            if client.closed:
                continue
            assert not client.held
            assert not self.world.node._connections[client.key].blocked_on
            last: dict[bytes, int] = {}
            for body in client.bodies():
                who, number = body.split()[:2]
                assert last.get(who, -1) < int(number), "order of one publisher"
                last[who] = int(number)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_clients_do_all_is_accounted_for_and_nobody_waits_for_ever(seed: int) -> None:
    story = Story(seed)
    story.join()
    story.join()
    for _ in range(120):
        story.act()
    story.world.check_sums()
    story.settle()
    story.check()
    for client in story.world.clients.values():
        if not client.closed:
            client.leave()
    story.world.check_empty()
    story.world.check_sums()
