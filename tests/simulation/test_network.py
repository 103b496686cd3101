"""The simulated network itself, with nodes that do nothing but what a test tells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from regraft.node.effect import Close, Connect, Effect, Hold, SendDatagram, WakeAt, Write
from regraft.node.event import (
    Closed,
    Connected,
    ConnectFailed,
    Datagram,
    Event,
    Now,
    Opened,
    Received,
    Tick,
    Unsent,
)
from regraft.simulate.network import Conditions, Network
from regraft.simulate.world import Broker, World


class Puppet:
    """A node that writes down what happens, and wants what it is told to want."""

    def __init__(self) -> None:
        self.happened: list[tuple[float, Event]] = []
        self.wants: list[Effect] = []
        self.text = bytearray()
        self.echo = False

    def step(self, events: Sequence[Event], now: Now) -> list[Effect]:
        for event in events:
            if isinstance(event, Received):
                self.text += event.data
                event = Received(event.connection, bytes(event.data))
                if self.echo:
                    self.wants.append(Write(event.connection, [event.data]))
            self.happened.append((now.ns / 1e6, event))
        wanted, self.wants = self.wants, []
        return wanted

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.happened if isinstance(event, kind)]

    def when(self, kind: type[Any]) -> float:
        return next(ms for ms, event in self.happened if isinstance(event, kind))


class Scene:
    """Some puppets, a network, and the strings."""

    def __init__(self, size: int = 2, seed: int = 1, **conditions: Any) -> None:
        self.world = World(seed)
        conditions = {"cuts": 0.0, "jitter": 0.0, **conditions}
        self.network = Network(self.world, seed, Conditions(**conditions))
        self.brokers: list[Broker] = []
        for index in range(size):
            self.start(index)
        for one in range(size):
            for other in range(one):
                self.network.set_delay(at(one), at(other), 10)

    def start(self, index: int) -> Broker:
        broker = Broker(self.world, Puppet())  # type: ignore[arg-type]
        self.network.add(broker, at(index))
        self.brokers[index : index + 1] = [broker]
        return broker

    def puppet(self, index: int) -> Puppet:
        return self.brokers[index].node  # type: ignore[return-value]

    def want(self, index: int, *effects: Effect) -> None:
        self.puppet(index).wants += effects
        self.brokers[index].step([Tick()])

    def connect(self, one: int = 0, other: int = 1) -> tuple[int, int]:
        """The key at either end."""
        self.want(one, Connect(5, at(other)))
        self.world.advance(200)
        near = self.puppet(one).all(Connected)[-1]
        assert (near.ticket, near.peer) == (5, at(other))
        return near.connection, self.puppet(other).all(Opened)[-1].connection


def at(index: int) -> str:
    return f"node-{index}:7447"


def test_a_connection_takes_a_round_trip_and_bytes_half_of_one() -> None:
    scene = Scene()
    key, far = scene.connect()
    assert scene.puppet(0).when(Connected) == 20
    assert scene.puppet(1).when(Opened) == 30
    scene.want(0, Write(key, [b"hello, ", b"there"]))
    scene.world.advance(9.9)
    assert not scene.puppet(1).text
    scene.world.advance(0.2)
    assert scene.puppet(1).all(Received) == [Received(far, b"hello, there")]
    scene.want(1, Write(far, [b"yes"]))
    scene.world.advance(11)
    assert scene.puppet(0).text == b"yes"


def test_bytes_stay_in_order_and_are_cut_anywhere() -> None:
    scene = Scene(cuts=0.5, jitter=3.0)
    key, _ = scene.connect()
    sent = bytearray()
    for number in range(200):
        piece = f"{number} ".encode()
        sent += piece
        scene.want(0, Write(key, [piece]))
        scene.world.advance(1)
    scene.world.advance(200)
    assert scene.puppet(1).text == sent
    assert any(
        event.data not in sent[::] or b" " not in event.data[-1:]
        for event in scene.puppet(1).all(Received)
    )


def test_delays_come_from_the_seed() -> None:
    def delays(seed: int) -> list[int]:
        network = Network(World(seed), seed)
        for index in range(4):
            network.add(Broker(network.world, Puppet()), at(index))  # type: ignore[arg-type]
        return [network.delay_ns(at(0), at(index)) for index in (1, 2, 3)]

    assert delays(1) == delays(1) != delays(2)
    assert all(200_000 <= delay <= 30_000_000 for delay in delays(1))


def test_what_the_other_end_does_not_read_stays_with_the_driver() -> None:
    scene = Scene(capacity=100)
    key, far = scene.connect()
    scene.want(1, Hold(far, True))
    scene.want(0, Write(key, [bytes(250)]))
    assert scene.puppet(0).all(Unsent) == [Unsent(key, 150)]
    scene.world.advance(1000)
    assert not scene.puppet(1).text
    scene.want(1, Hold(far, False))
    scene.world.advance(100)
    assert len(scene.puppet(1).text) == 250
    assert scene.puppet(0).all(Unsent)[-1] == Unsent(key, 0)


def test_a_closed_connection_ends_behind_what_was_written() -> None:
    scene = Scene(capacity=100)
    key, far = scene.connect()
    scene.want(0, Write(key, [bytes(250)]), Close(key, "enough"))
    scene.world.advance(200)
    assert len(scene.puppet(1).text) == 250
    assert scene.puppet(0).all(Closed) == [Closed(key, "enough")]
    assert scene.puppet(1).all(Closed) == [Closed(far, "closed by the peer")]
    scene.want(1, Write(far, [b"too late"]))
    scene.world.advance(200)
    assert not scene.puppet(0).text


def test_nobody_listens() -> None:
    scene = Scene()
    scene.brokers[1].kill()
    scene.want(0, Connect(1, at(1)), Connect(2, "nowhere:1"))
    scene.world.advance(100)
    assert scene.puppet(0).all(ConnectFailed) == [
        ConnectFailed(2, "unknown host"),
        ConnectFailed(1, "refused"),
    ]


def test_a_connection_through_a_partition_times_out_unless_it_heals() -> None:
    scene = Scene()
    scene.network.partition([at(0)], [at(1)])
    scene.want(0, Connect(1, at(1)))
    scene.world.advance(6000)
    assert scene.puppet(0).all(ConnectFailed) == [ConnectFailed(1, "timed out")]
    scene.want(0, Connect(2, at(1)))
    scene.world.advance(500)
    scene.network.heal()
    scene.world.advance(1000)
    assert [event.ticket for event in scene.puppet(0).all(Connected)] == [2]


def test_bytes_are_late_through_a_short_partition_and_none_is_missing() -> None:
    scene = Scene()
    key, far = scene.connect()
    scene.network.partition([at(0)])
    scene.want(0, Write(key, [b"one "]))
    scene.world.advance(1000)
    scene.want(0, Write(key, [b"two "]))
    scene.want(1, Write(far, [b"back"]))
    scene.world.advance(1000)
    assert not scene.puppet(1).text and not scene.puppet(1).all(Closed)
    scene.network.heal()
    scene.want(0, Write(key, [b"three"]))
    scene.world.advance(2500)
    assert scene.puppet(1).text == b"one two three"
    assert scene.puppet(0).text == b"back"


def test_a_connection_breaks_after_a_long_partition() -> None:
    scene = Scene(break_after_ms=3000)
    key, far = scene.connect()
    scene.network.partition([at(0)])
    scene.want(0, Write(key, [b"lost"]))
    scene.world.advance(4000)
    scene.network.heal()
    scene.want(0, Write(key, [b"never seen"]))
    scene.world.advance(500)
    assert scene.puppet(0).all(Closed) == [Closed(key, "broken")]
    assert scene.puppet(1).all(Closed) == [Closed(far, "broken")]
    assert not scene.puppet(1).text


def test_silence_may_be_one_sided() -> None:
    scene = Scene()
    key, far = scene.connect()
    scene.network.silence(at(0), at(1))
    scene.want(0, Write(key, [b"unheard"]), SendDatagram(at(1), b"unheard"))
    scene.want(1, Write(far, [b"heard"]), SendDatagram(at(0), b"heard"))
    scene.world.advance(100)
    assert scene.puppet(0).text == b"heard" and scene.puppet(0).all(Datagram)
    assert not scene.puppet(1).text and not scene.puppet(1).all(Datagram)
    scene.network.hear(at(0), at(1))
    scene.world.advance(1500)
    assert scene.puppet(1).text == b"unheard" and not scene.puppet(1).all(Datagram)


def test_a_wire_that_breaks_loses_what_is_on_its_way() -> None:
    scene = Scene()
    key, _ = scene.connect()
    scene.want(0, Write(key, [b"lost"]))
    end = scene.network.end(scene.brokers[0], key)
    assert end is not None
    scene.network.break_wire(end)
    scene.want(0, Write(key, [b"and this"]))
    scene.world.advance(100)
    assert not scene.puppet(1).text
    for index in (0, 1):
        assert [event.reason for event in scene.puppet(index).all(Closed)] == ["broken"]


def test_a_crash_breaks_the_connections_of_the_others() -> None:
    scene = Scene(3)
    key, _ = scene.connect(0, 1)
    scene.connect(2, 0)
    scene.brokers[1].kill()
    scene.world.advance(50)
    assert scene.puppet(0).all(Closed) == [Closed(key, "closed by the peer")]
    assert not scene.puppet(2).all(Closed)


def test_a_silent_death_is_seen_when_the_machine_is_back() -> None:
    scene = Scene()
    key, _ = scene.connect()
    scene.network.power_off(scene.brokers[1])
    scene.want(0, Write(key, [b"hello?"]), SendDatagram(at(1), b"hello?"), Connect(9, at(1)))
    scene.world.advance(4000)
    assert not scene.puppet(0).all(Closed) and not scene.puppet(0).all(ConnectFailed)
    scene.world.advance(2000)
    assert scene.puppet(0).all(ConnectFailed) == [ConnectFailed(9, "timed out")]
    scene.start(1)
    scene.world.advance(2000)
    assert len(scene.puppet(0).all(Closed)) == 1
    assert scene.puppet(1).happened == []
    scene.connect()


def test_a_paused_node_is_connected_to_and_learns_all_when_it_goes_on() -> None:
    scene = Scene()
    key, far = scene.connect()
    scene.want(1, WakeAt(scene.world.ns + 50_000_000))
    scene.brokers[1].pause()
    before = len(scene.puppet(1).happened)
    scene.want(0, Write(key, [b"hello"]), Connect(7, at(1)), SendDatagram(at(1), b"ping"))
    scene.world.advance(3000)
    assert len(scene.puppet(0).all(Connected)) == 2  # by its machine
    assert len(scene.puppet(1).happened) == before
    scene.brokers[1].resume()
    scene.world.advance(1)
    learned = [event for _, event in scene.puppet(1).happened[before:]]
    assert sorted(type(event).__name__ for event in learned) == [
        "Datagram",
        "Opened",
        "Received",
        "Tick",
    ]
    assert scene.puppet(1).text == b"hello"
    assert far in {event.connection for event in scene.puppet(1).all(Received)}


def test_datagrams_are_lost_as_often_as_the_conditions_say() -> None:
    scene = Scene(loss=0.25)
    for _ in range(1000):
        scene.want(0, SendDatagram(at(1), b"x"))
    scene.world.advance(100)
    assert 680 < len(scene.puppet(1).all(Datagram)) < 820
    assert scene.puppet(1).all(Datagram)[0] == Datagram(at(0), b"x")


def test_the_restarted_has_the_address_and_none_of_the_connections() -> None:
    scene = Scene()
    key, _ = scene.connect()
    scene.brokers[1].kill()
    scene.start(1)
    scene.want(0, Write(key, [b"for the old one"]))
    scene.world.advance(100)
    assert not scene.puppet(1).text
    assert len(scene.puppet(0).all(Closed)) == 1
    key, far = scene.connect()
    scene.want(0, Write(key, [b"for the new one"]))
    scene.world.advance(100)
    assert scene.puppet(1).all(Received) == [Received(far, b"for the new one")]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    def traced() -> str:
        scene = Scene(4, seed, cuts=0.3, jitter=0.5, loss=0.1)
        scene.puppet(1).echo = scene.puppet(2).echo = True
        keys = [scene.connect(0, other)[0] for other in (1, 2, 3)]
        for number in range(50):
            scene.want(0, Write(keys[number % 3], [bytes(number)]), SendDatagram(at(3), b"."))
            if number == 20:
                scene.network.partition([at(1), at(2)])
            if number == 40:
                scene.network.heal()
            scene.world.advance(3)
        scene.world.advance(5000)
        return scene.world.trace_hash

    assert traced() == traced()
