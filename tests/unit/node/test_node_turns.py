"""Nobody waits for thousands of control frames, or for the end of a session with thousands."""

from __future__ import annotations

import pytest
from harness import Client, KeepingWorld, World, publication

from regraft.kernels.outlet import Outlet
from regraft.kernels.plan import plan_of
from regraft.limits import Limits
from regraft.model.message import DeliveryMode
from regraft.node.event import Closed, Received, Tick
from regraft.node.node import CONTROL_AT_ONCE, WEIGHTS
from regraft.node.router import REMOVED_AT_ONCE, Router
from regraft.node.storage import STIRRED_AT_ONCE
from regraft.wire import native
from regraft.wire.native import Kind

A_TURN = CONTROL_AT_ONCE // WEIGHTS[Kind.SUBSCRIBE]  # subscriptions


def received(client: Client, *parts: object) -> Received:
    return Received(client.key, memoryview(client.encoded(*parts)))  # type: ignore[arg-type]


def wishes(count: int, first: int = 1) -> list[native.Subscribe]:
    return [native.Subscribe(k, "t", f"x = {k}") for k in range(first, first + count)]


def held(world: World, client: Client) -> int:
    return len(world.node._router.held(client.key))


# ------------------------------------------------------------------------------ turns


def test_a_step_takes_few_control_frames_of_a_session() -> None:
    world = World()
    many, few = world.connect(), world.connect()
    world.step_once(received(many, *wishes(10 * A_TURN)))
    assert held(world, many) == A_TURN
    assert many.held
    for turn in range(2, 11):
        world.step_once(received(few, native.Subscribe(turn, "u")))  # nobody else waits
        assert held(world, few) == turn - 1
        assert held(world, many) == (turn - 1) * A_TURN
        world.step_once(Tick())
        assert held(world, many) == turn * A_TURN
    assert not many.held
    assert many.take() == [native.Subscribed(k) for k in range(1, 10 * A_TURN + 1)]


def test_sessions_take_turns() -> None:
    world = World()
    clients = [world.connect() for _ in range(3)]
    world.step_once(*(received(client, *wishes(4 * A_TURN)) for client in clients))
    seen = []
    for _ in range(9):
        world.step_once(Tick())
        seen.append([held(world, client) // A_TURN for client in clients])
    assert seen[:4] == [[2, 1, 1], [2, 2, 1], [2, 2, 2], [3, 2, 2]]
    assert seen[-1] == [4, 4, 4]


def test_frames_and_messages_keep_their_order() -> None:
    """Cut anywhere: what is behind a control frame waits with it."""
    world = World()
    client = world.connect()
    parts: list[object] = []
    for k in range(1, 3 * A_TURN):
        parts += [publication(f"before {k}", f"t{k}"), native.Subscribe(k, f"t{k}")]
        parts += [publication(k, f"t{k}")]
    data = bytes(received(client, *parts).data)
    for at in range(0, len(data), 1000):
        world.step_once(Received(client.key, memoryview(data[at : at + 1000])))
    world.step(Tick())
    assert client.bodies() == [str(k).encode() for k in range(1, 3 * A_TURN)]
    news = [one for one in client.take() if isinstance(one, native.Subscribed)]
    assert [one.id for one in news] == list(range(1, 3 * A_TURN))


def test_cheap_frames_weigh_less() -> None:
    world = World()
    client = world.connect()
    world.step_once(received(client, *(native.Heartbeat(k + 1) for k in range(CONTROL_AT_ONCE))))
    assert not client.held
    assert len(client.take()) == CONTROL_AT_ONCE


def test_what_was_said_before_the_end_counts() -> None:
    world = World()
    taker, client = world.subscriber("t"), world.connect("somebody")
    world.step_once(received(client, *wishes(3 * A_TURN), publication("last")))
    client.closed = "left"
    world.step_once(Closed(client.key, "left"))
    assert world.counters["sessions"] == 2
    world.step(Tick())
    assert taker.bodies() == [b"last"]
    assert world.counters["sessions"] == 1
    assert world.counters["subscriptions"] == 1
    taker.leave()
    world.check_sums()
    world.check_empty()


def test_a_lost_session_can_be_taken_over() -> None:
    world = World()
    client = world.connect("somebody")
    world.step_once(received(client, *wishes(3 * A_TURN)))
    client.closed = "left"
    world.step_once(Closed(client.key, "left"))
    again = world.connect("somebody")
    world.step(Tick())
    assert world.counters["connections"] == world.counters["sessions"] == 1
    assert world.counters["subscriptions"] == 0
    again.leave()
    world.check_empty()


def test_a_mistake_in_a_later_turn_ends_the_connection() -> None:
    world = World()
    client = world.connect()
    client.send(*wishes(3 * A_TURN), native.Welcome())
    assert client.closed
    assert client.take()[-1].name == "protocol-violation"
    world.check_empty()


def test_a_good_bye_waits_for_its_turn() -> None:
    world = World()
    taker, client = world.subscriber("t"), world.connect()
    client.send(*wishes(3 * A_TURN), publication("last"), native.Bye())
    assert client.closed
    assert taker.bodies() == [b"last"]
    assert len([one for one in client.take() if isinstance(one, native.Subscribed)]) == 3 * A_TURN


# ------------------------------------------------------------------------------ the end of many

MANY = 5 * REMOVED_AT_ONCE


def test_the_end_of_many_subscriptions_takes_several_steps() -> None:
    world = World()
    many, other = world.connect("many"), world.connect()
    many.send(*wishes(MANY))
    many.closed = "left"
    world.step_once(Closed(many.key, "left"))
    assert world.counters["subscriptions"] == 0
    assert world.node.report("subscriptions", 10)["rows"] == []
    assert world.node._router.index.count == MANY
    deliveries = world.counters["deliveries"]
    other.send(publication("nobody", attributes={"x": 1}))  # and the rest goes on
    assert world.counters["deliveries"] == deliveries
    assert world.node._router.index.count == 0
    other.leave()
    world.check_empty()


@pytest.mark.parametrize("selector", ["", "x > 0"])
def test_nothing_is_delivered_meanwhile(selector: str) -> None:
    world = World()
    many, other, publisher = world.connect("many"), world.connect(), world.connect()
    several = [native.Subscribe(k, "t", selector) for k in range(1, MANY + 1)]
    for client in (many, other):
        client.send(*several)
    publisher.send(publication(1, attributes={"x": 1}))
    many.closed = "left"
    world.step_once(Closed(many.key, "left"))
    counts = []
    for k in range(2, 8):
        world.step_once(received(publisher, publication(k, attributes={"x": 1})))
        counts.append(world.node._router._left_over)
        world.step_once(Tick())
    assert counts == [MANY, 4 * MANY // 5, 3 * MANY // 5, 2 * MANY // 5, MANY // 5, 0]
    assert other.bodies() == [str(k).encode() for k in range(1, 8)]
    assert len(other.delivered[-1].subscriptions) == MANY
    assert many.bodies() == [b"1"]
    world.check_sums()


def test_a_session_that_comes_again_has_its_ids_to_itself() -> None:
    world = World()
    many, publisher = world.connect("many"), world.connect()
    many.send(*wishes(MANY))
    many.closed = "left"
    world.step_once(Closed(many.key, "left"))
    again = world.connect("many")
    again.send(native.Subscribe(7, "t", "x = 8"), native.Subscribe(8, "t", "x = 7"))
    publisher.send(publication("one", attributes={"x": 7}))
    assert again.bodies() == [b"one"]
    assert again.delivered[0].subscriptions == (8,)
    assert world.counters["subscriptions"] == 2


def test_what_is_left_over_counts_for_the_limit_only_when_it_must() -> None:
    world = World(subscriptions=MANY, subscriptions_per_session=MANY)
    many = world.connect("many")
    many.send(*wishes(MANY))
    many.closed = "left"
    world.step_once(Closed(many.key, "left"))
    router = world.node._router
    again = world.connect("many")
    world.step_once(received(again, *wishes(A_TURN, first=10_000)))
    assert [type(one) for one in again.take()] == [native.Subscribed] * A_TURN
    assert router._takers.count <= MANY


def test_a_durable_subscription_is_free_at_once() -> None:
    world = KeepingWorld()
    many, publisher = world.connect("many"), world.connect("publisher")
    many.send(*wishes(MANY), native.Subscribe(MANY + 1, "t", durable="box"))
    world.persist()
    many.closed = "left"
    world.step_once(Closed(many.key, "left"))
    publisher.send(publication("kept", delivery_mode=DeliveryMode.PERSISTENT))
    world.persist()
    again = world.connect("many")
    again.send(native.Subscribe(1, "t", durable="box"))
    world.persist()
    assert again.bodies() == [b"kept"]


# ------------------------------------------------------------------------------ links


def test_a_bit_of_a_link_is_not_used_again_too_early() -> None:
    """A new link with the bit of an old one would seem to be reached by what that one wanted."""
    router = Router(Limits(), lambda *_: True)
    old, new = Outlet(1), Outlet(2)
    router.admit_link(1, old, "node")
    for k in range(MANY):
        router.subscribe(1, k + 1, "t", False, plan_of(f"x = {k}"))
    router.dismiss(1)
    router.admit_link(2, new, "node")
    assert old.bit != new.bit
    while router.leaving:
        router.sweep()
    third = Outlet(3)
    router.admit_link(3, third, "node")
    assert third.bit == old.bit
    assert router.index.count == 0


def test_neighbours_hear_of_it_when_it_is_removed() -> None:
    router = Router(Limits(), lambda *_: True)
    told: list[tuple[bool, str]] = []
    router.admit(1, Outlet(1), "somebody")
    for k in range(MANY):
        router.subscribe(1, k + 1, f"t{k}", False, None)
    wanted = sorted(router.wanted())
    router.watch(lambda more, pattern, *_: told.append((more, pattern)))
    while router.feed(1000):
        pass
    told.clear()
    router.dismiss(1)
    assert told == []
    assert sorted(router.wanted()) == wanted
    router.sweep(REMOVED_AT_ONCE)
    assert len(told) == REMOVED_AT_ONCE
    while router.leaving:
        router.sweep()
    assert sorted(told) == sorted((False, pattern) for pattern, _, _ in wanted)
    assert router.size == 0


def test_what_was_left_over_before_somebody_watched_is_told_and_taken_back_or_neither() -> None:
    world = World()
    router = world.node._router
    outlet = Outlet(1)
    router.admit(1, outlet, "somebody")
    for id in range(3 * REMOVED_AT_ONCE):
        router.subscribe(1, id, f"t{id}", True, None)
    router.dismiss(1)
    held: dict[str, int] = {}

    def told(more: bool, pattern: str, *_: object) -> None:
        held[pattern] = held.get(pattern, 0) + (1 if more else -1)
        assert held[pattern] in (0, 1)

    router.watch(told)
    router.feed(50)
    router.sweep(REMOVED_AT_ONCE)
    while router.feed(50) or router.leaving:
        router.sweep(REMOVED_AT_ONCE)
    assert held and set(held.values()) == {0}


# ---------------------------------------------------------------- one message for many mailboxes


def test_many_mailboxes_are_served_in_several_steps() -> None:
    world = KeepingWorld(segment_bytes=1 << 20)
    publisher, readers = world.connect("p"), [world.connect(f"r{k}") for k in range(6)]
    count = 2 * STIRRED_AT_ONCE + 4
    for k in range(count):
        reader = readers[k % 6]
        reader.send(native.Subscribe(1 + k, "t", durable=f"box-{k}", in_flight=5))
        world.persist()

    def delivered() -> int:
        return sum(len(reader.bodies()) for reader in readers)

    publisher.send(publication(1, delivery_mode=DeliveryMode.PERSISTENT, sequence=1))
    assert world.asked is not None
    asked, world.asked = world.asked, None
    world.step_once(*world.disk.perform(asked))
    seen = [delivered()]
    for _ in range(2):
        world.step_once(Tick())
        seen.append(delivered())
    assert seen == [STIRRED_AT_ONCE, 2 * STIRRED_AT_ONCE, count]
