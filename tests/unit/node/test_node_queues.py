"""Mailboxes that several members share: who gets what, and what becomes of what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Client, KeepingWorld
from queues import (
    EXTEND,
    RELEASE,
    command,
    counted,
    deliveries,
    error,
    got,
    letter,
    make,
    member,
    options,
    publish,
    row,
    settle,
)

from regraft.node.box import Box, Member
from regraft.node.boxes import Boxes
from regraft.node.event import Now
from regraft.wire import native

BOTH = pytest.mark.parametrize("power", [False, True])


# -------------------------------------------------------------------------------- sharing


def test_each_message_goes_to_one_member() -> None:
    world = KeepingWorld()
    members = [member(world) for _ in range(3)]
    publish(world, *range(30))
    shares = [got(one) for one in members]
    assert sorted(map(int, (text for share in shares for text in share))) == list(range(30))
    assert [len(share) for share in shares] == [10, 10, 10]


def test_who_has_less_in_its_hands_gets_more() -> None:
    world = KeepingWorld()
    busy = member(world)
    publish(world, *range(8))
    assert len(got(busy)) == 8
    other = member(world)
    for number in range(8):
        publish(world, number)
    assert (len(got(busy)), len(got(other))) == (0, 8)
    publish(world, 8)
    publish(world, 9)
    assert (len(got(busy)), len(got(other))) == (1, 1)


def test_messages_of_a_member_that_dies_go_to_the_others_at_once() -> None:
    world = KeepingWorld()
    one, other = member(world), member(world)
    publish(world, *range(6))
    mine, others = got(one), got(other)
    one.leave()
    assert counted(other) == [(text, 1) for text in mine]
    settle(world, other, *range(1, 7))
    assert row(world)["waiting"] == 0
    assert len(mine) == len(others) == 3


def test_not_even_a_back_off_makes_the_messages_of_the_dead_wait() -> None:
    world = KeepingWorld()
    one = member(world, options=options(retry_ms=5000))
    publish(world, 1, 2)
    assert got(one) == ["1", "2"]
    other = member(world, options=options(retry_ms=5000))
    one.leave()
    assert counted(other) == [("1", 1), ("2", 1)]


def test_a_member_that_unsubscribes_leaves_its_messages_to_the_others() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1)
    other = member(world)
    one.send(native.Unsubscribe(1))
    world.persist()
    assert one.take()[-1] == native.Unsubscribed(1)
    assert counted(other) == [("1", 0)]


def test_leaving_politely_does_not_count() -> None:
    """What it gives back just before may even come to it again, before it is gone."""
    world = KeepingWorld()
    one = member(world, options=options(max_deliveries=1))
    publish(world, 1, 2)
    assert got(one) == ["1", "2"]
    release = native.Settle(1, (1, 1), outcome=RELEASE, uncounted=True)
    one.send(release, native.Unsubscribe(1))
    world.persist()
    other = member(world, options=options(max_deliveries=1))
    assert counted(other) == [("1", 0), ("2", 0)]
    other.leave()
    world.persist()
    assert (row(world)["waiting"], row(world)["dead"]) == (0, 2)


def test_a_member_that_is_taken_over_leaves_its_messages_to_itself() -> None:
    world = KeepingWorld()
    one = member(world, client_id="a")
    publish(world, 1)
    assert got(one) == ["1"]
    assert counted(member(world, client_id="a")) == [("1", 1)]


def test_several_subscriptions_of_one_connection_are_several_members() -> None:
    world = KeepingWorld()
    one = member(world, in_flight=1)
    one.send(native.Subscribe(2, "t", durable="q", in_flight=1))
    world.persist()
    publish(world, 1, 2, 3)
    assert sorted(found.subscriptions for found in deliveries(one)) == [(1,), (2,)]


@pytest.mark.parametrize("limit", [1, 3])
def test_nobody_has_more_in_its_hands_than_allowed(limit: int) -> None:
    world = KeepingWorld()
    make(world, in_flight=limit)
    one, other = member(world, existing=True), member(world, existing=True, in_flight=2)
    publish(world, *range(20))
    assert (len(got(one)), len(got(other))) == (limit, 2)
    settle(world, one, 1, 2, 3)
    settle(world, other, *range(1, 5))
    assert row(world)["held"] == limit + 2


def test_members_with_little_credit_do_not_hold_up_the_others() -> None:
    world = KeepingWorld()
    poor = member(world, credit_messages=1, credit_bytes=1 << 30)
    rich = member(world)
    publish(world, *range(10))
    assert (len(got(poor)), len(got(rich))) == (1, 9)
    publish(world, *range(10, 14))
    assert (got(poor), len(got(rich))) == ([], 4)
    poor.send(native.Credit(3, 1 << 30))
    publish(world, 14)
    assert got(poor) == ["14"]


def test_a_member_that_does_not_read_holds_up_nobody() -> None:
    world = KeepingWorld()
    slow, quick = member(world), member(world)
    slow.clog()
    publish(world, *range(10))
    assert len(got(quick)) == 10
    slow.start_reading()
    publish(world, 10)
    assert got(slow) == ["10"]


def test_a_mailbox_that_is_not_shared_has_one_reader() -> None:
    world = KeepingWorld()
    world.reader("q", "t")
    assert error(world.reader("q", "t")) == "mailbox-in-use"
    assert error(world.reader("q", "t", existing=True)) == "mailbox-in-use"


def test_many_mailboxes_of_one_connection_are_served_in_turns() -> None:
    world = KeepingWorld(write_bytes=500)
    client = world.connect()
    ids = range(1, 6)
    for id in ids:
        client.send(native.Subscribe(id, "t", durable=f"q{id}", options=options()))
    world.persist()
    client.clog()
    publish(world, *range(100))
    client.start_reading()
    order = [one.subscriptions[0] for one in deliveries(client)]
    assert sorted(order) == sorted([*ids] * 100)
    assert set(order[:200]) == set(ids)
    last = [max(k for k, id in enumerate(order) if id == one) for one in ids]
    assert min(last) > 300


def test_a_mailbox_with_nothing_to_give_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a connection that has room again costs goes by deliveries, not by mailboxes."""
    world = KeepingWorld(write_bytes=500)
    client = world.connect()
    for id in range(1, 201):
        client.send(native.Subscribe(id, f"t/{id % 2}", durable=f"q{id}", options=options()))
    world.persist()
    pulls = 0
    pull = Boxes.pull

    def counting(boxes: Boxes, box: Box, now: Now) -> None:
        nonlocal pulls
        pulls += 1
        pull(boxes, box, now)

    monkeypatch.setattr(Boxes, "pull", counting)
    for topic in ("t/0", "t/1"):
        client.clog()
        publish(world, *range(20), topic=topic)
        client.start_reading()
    count = len(deliveries(client))
    assert count == 2 * 100 * 20
    assert pulls < count


def test_a_member_with_room_is_found_among_many_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no room is not asked again for each message."""
    world = KeepingWorld()
    crowd = [member(world, in_flight=1) for _ in range(50)]
    publish(world, *range(50))
    assert all(len(got(one)) == 1 for one in crowd)
    looks = 0
    room = Boxes.room

    def counting(boxes: Boxes, box: Box, one: Member) -> int:
        nonlocal looks
        looks += 1
        return room(boxes, box, one)

    monkeypatch.setattr(Boxes, "room", counting)
    publish(world, *range(50, 100))
    for sequence, one in enumerate(crowd, 1):
        settle(world, one, sequence)
        assert len(got(one)) == 1
    assert looks < 10 * 50


def test_members_count_as_subscriptions() -> None:
    world = KeepingWorld(subscriptions_per_session=2)
    client = world.connect()
    for id in (1, 2, 3):
        client.send(native.Subscribe(id, "t", durable=f"q{id}", options=options()))
        world.persist()
    assert [type(one).__name__ for one in client.take()] == ["Subscribed", "Subscribed", "Error"]


# ---------------------------------------------------------------------------- what is made


def test_options_count_when_a_mailbox_is_made() -> None:
    world = KeepingWorld()
    member(world, options=options(lease_ms=5000)).leave()
    assert row(world)["options"] == {"shared": True, "lease_ms": 5000}
    assert error(world.reader("q", "t", options=options(lease_ms=1))) == "mailbox-differs"
    member(world, options=options(lease_ms=5000))
    member(world, options=b"")


@pytest.mark.parametrize(
    "given",
    [
        b"{",
        b"[]",
        b"7",
        b'"shared"',
        b"\xff",
        b'{"nothing": 1}',
        b'{"shared": 1}',
        b'{"lease_ms": -1}',
        b'{"lease_ms": "soon"}',
        b'{"lease_ms": 1e99}',
        b'{"in_flight": 18446744073709551616}',
        b'{"order_by": null}',
        b'{"dead_letter": "a/#"}',
        b'{"dead_letter": "\\u0000"}',
    ],
)
def test_options_that_cannot_be_are_refused(given: bytes) -> None:
    world = KeepingWorld()
    assert error(world.reader("q", "t", options=given)) == "bad-configuration"
    assert command(world, "queue-list") == {"queues": []}


def test_who_wants_an_existing_mailbox_does_not_make_one() -> None:
    world = KeepingWorld()
    for more in ({"existing": True}, {"browse": True}):
        assert error(world.reader("q", "t", **more)) == "unknown-mailbox"
    make(world, topic="a/b")
    member(world, topic="", existing=True, options=b"", selector="")
    member(world, topic="other", existing=True, selector="x = 1", options=b"{")


# --------------------------------------------------------------------------------- release


def test_what_is_released_comes_again() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2)
    got(one)
    settle(world, one, 1, outcome=RELEASE, token=5)
    assert [type(found).__name__ for found in one.take()] == ["Delivered", "Settled"]
    settle(world, one, 1, outcome=RELEASE)
    assert counted(one) == [("1", 2)]
    settle(world, one, 1, outcome=RELEASE, uncounted=True)
    assert counted(one) == [("1", 2)]


def test_what_is_released_with_a_delay_waits() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2)
    got(one)
    settle(world, one, 1, outcome=RELEASE, delay_ms=1000)
    assert row(world)["returned"] == 1
    world.advance(999)
    assert got(one) == []
    world.advance(2)
    assert counted(one) == [("1", 1)]
    assert row(world)["returned"] == 0


@pytest.mark.parametrize("outcome", [RELEASE, EXTEND])
def test_a_delay_without_end_is_only_very_long(outcome: Any) -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2)
    got(one)
    settle(world, one, 1, outcome=outcome, delay_ms=(1 << 64) - 1, token=1)
    assert one.take() == [native.Settled(1, 1)]
    assert row(world)["waiting"] == 2
    assert counted(member(world.again())) != []


def test_the_delay_doubles_each_time() -> None:
    world = KeepingWorld()
    one = member(world, options=options(retry_ms=100, retry_max_ms=350))
    publish(world, 1)
    assert counted(one) == [("1", 0)]
    for tried, wait in enumerate([100, 200, 350, 350], 1):
        settle(world, one, 1, outcome=RELEASE)
        world.advance(wait - 1)
        assert got(one) == []
        world.advance(2)
        assert counted(one) == [("1", tried)]
    settle(world, one, 1, outcome=RELEASE, uncounted=True)
    assert counted(one) == [("1", 4)]
    settle(world, one, 1, outcome=RELEASE, delay_ms=7)
    world.advance(8)
    assert counted(one) == [("1", 5)]


def test_the_longest_delay_is_never_shorter_than_the_first() -> None:
    world = KeepingWorld()
    one = member(world, options=options(retry_ms=500, retry_max_ms=10))
    publish(world, 1)
    got(one)
    settle(world, one, 1, outcome=RELEASE)
    world.advance(499)
    assert got(one) == []
    world.advance(2)
    assert counted(one) == [("1", 1)]


def test_who_cannot_deal_with_a_message_does_not_get_it_again() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2, 3)
    got(one)
    settle(world, one, 2, 3, outcome=RELEASE, undeliverable=True)
    settle(world, one, 1, outcome=RELEASE)
    assert counted(one) == [("1", 1)]
    other = member(world)
    world.advance(1100)
    assert sorted(counted(other)) == [("2", 1), ("3", 1)]
    assert got(one) == []


def test_messages_side_by_side_of_which_one_is_not_for_this_member() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2, 3)
    got(one)
    settle(world, one, 2, outcome=RELEASE, undeliverable=True, delay_ms=100)
    settle(world, one, 1, 3, outcome=RELEASE, delay_ms=100)
    world.advance(150)
    assert sorted(got(one)) == ["1", "3"]


def test_a_member_that_comes_back_may_get_what_it_could_not_deal_with() -> None:
    world = KeepingWorld()
    one = member(world, client_id="a")
    publish(world, 1)
    got(one)
    settle(world, one, 1, outcome=RELEASE, undeliverable=True)
    assert got(one) == []
    one.leave()
    again = member(world, client_id="a")
    world.advance(1100)
    assert counted(again) == [("1", 1)]


def test_what_nobody_can_deal_with_does_not_hold_up_the_rest() -> None:
    world = KeepingWorld()
    one = member(world, in_flight=1)
    publish(world, "bad", "good", "better")
    assert got(one) == ["bad"]
    settle(world, one, 1, outcome=RELEASE, undeliverable=True)
    assert got(one) == ["good"]
    settle(world, one, 2)
    assert got(one) == ["better"]


# ------------------------------------------------------------------------------- settling


def test_what_is_not_held_is_ignored_and_answered() -> None:
    world = KeepingWorld()
    one, other = member(world, in_flight=1), member(world, in_flight=1)
    publish(world, 1, 2, 3)
    assert got(one) + got(other) == ["1", "2"]
    for token, outcome in enumerate(native.Outcome, 1):
        settle(world, one, 2, 3, 99, outcome=outcome, token=token)
        assert one.take() == [native.Settled(1, token)]
    assert row(world)["waiting"] == 3
    settle(world, other, 2)
    assert got(other) == ["3"]


def test_a_late_acceptance_counts_while_nobody_else_has_it() -> None:
    world = KeepingWorld()
    one = member(world, options=options(lease_ms=100, retry_ms=1000))
    publish(world, 1, 2)
    got(one)
    world.advance(101)
    settle(world, one, 1, token=1)
    assert one.take() == [native.Settled(1, 1)]
    world.advance(1001)
    assert counted(one) == [("2", 1)]
    assert [row(world)[name] for name in ("waiting", "held", "returned")] == [1, 1, 0]


def test_a_late_acceptance_does_not_count_when_somebody_else_has_it() -> None:
    world = KeepingWorld()
    one = member(world, options=options(lease_ms=100), in_flight=1)
    publish(world, 1)
    got(one)
    other = member(world, options=b"")
    settle(world, one, 1, outcome=EXTEND, delay_ms=50)
    world.advance(51)
    late = one if got(one) else other
    early = other if late is one else one
    settle(world, early, 1, token=1)
    assert [found for found in early.take() if isinstance(found, native.Settled)]
    assert row(world)["held"] == row(world)["waiting"] == 1
    settle(world, late, 1)
    assert row(world)["waiting"] == 0


# ---------------------------------------------------------------------------------- leases


def test_a_message_held_for_too_long_goes_to_somebody_else() -> None:
    world = KeepingWorld()
    make(world, lease_ms=1000)
    one = member(world, existing=True)
    publish(world, 1, 2)
    assert got(one) == ["1", "2"]
    other = member(world, existing=True)
    world.advance(600)
    settle(world, one, 2, outcome=EXTEND, token=3)
    assert one.take() == [native.Settled(1, 3)]
    world.advance(500)
    assert counted(other) + counted(one) == [("1", 1)]
    world.advance(400)
    settle(world, one, 2, outcome=EXTEND, delay_ms=5000)
    world.advance(4900)
    held = command(world, "queue-show", name="q")["members"]
    assert sum(one["held"] for one in held) == 2
    settle(world, one, 2)
    assert row(world)["waiting"] == 1


def test_without_a_lease_a_member_may_take_its_time() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1)
    got(one)
    other = member(world)
    for client in (one, other):
        client.send(native.Heartbeat(1))
    world.advance(15_000)
    assert got(other) == []
    settle(world, one, 1, outcome=EXTEND)
    settle(world, one, 1)
    assert row(world)["waiting"] == 0


# ------------------------------------------------------------------------------ priorities


def test_the_highest_priority_is_first_among_what_waits() -> None:
    world = KeepingWorld()
    make(world)
    for priority in (4, 0, 9, 4, 7, 9, 1):
        publish(world, f"{priority}a", f"{priority}b", priority=priority)
    one = member(world, existing=True)
    order = "9a 9b 9a 9b 7a 7b 4a 4b 4a 4b 1a 1b 0a 0b"
    assert got(one) == order.split()


@BOTH
@pytest.mark.parametrize("dies", [False, True])
def test_what_comes_back_keeps_its_priority(dies: bool, power: bool) -> None:
    world = KeepingWorld()
    one = member(world, in_flight=2)
    publish(world, "high", priority=8)
    publish(world, "low", priority=2)
    publish(world, "higher", priority=9)
    assert got(one) == ["high", "low"]
    settle(world, one, 1, 2, outcome=RELEASE, delay_ms=10)
    assert got(one) == ["higher"]
    publish(world, "late", priority=8)
    one.leave()
    if dies:
        world = world.again(power)
    world.advance(20)
    assert [text for text, _ in counted(member(world))] == ["higher", "high", "late", "low"]


def test_a_message_of_high_priority_overtakes_thousands() -> None:
    world = KeepingWorld(segment_bytes=1 << 20)
    one = member(world, in_flight=1)
    publish(world, *range(3000))
    assert got(one) == ["0"]
    publish(world, "urgent", priority=9)
    settle(world, one, 1)
    assert got(one) == ["urgent"]
    settle(world, one, 3001)
    assert got(one) == ["1"]
    publish(world, "again", priority=9)
    settle(world, one, 2)
    assert got(one) == ["again"]


def test_priorities_after_going_back() -> None:
    """The line of a priority that was read to its end begins anew."""
    world = KeepingWorld()
    one = member(world)
    publish(world, *range(4), priority=9)
    assert len(got(one)) == 4
    publish(world, 4)
    settle(world, one, *range(1, 6))
    one.leave()
    assert command(world, "queue-seek", name="q", sequence=1) == {"next": 1}
    one = member(world, in_flight=2)
    assert counted(one) == [("0", 1), ("1", 1)]
    publish(world, 5, priority=9)
    settle(world, one, 1, 2)
    assert counted(one) == [("2", 1), ("3", 1)]
    settle(world, one, 3, 4)
    assert counted(one) == [("5", 0), ("4", 1)]


# ------------------------------------------------------------------------------- exclusive


def test_one_reads_and_the_others_stand_by() -> None:
    world = KeepingWorld()
    first, second, third = (member(world, options=b'{"exclusive": true}') for _ in range(3))
    publish(world, 1, 2)
    assert (got(first), got(second), got(third)) == (["1", "2"], [], [])
    active = [one["active"] for one in command(world, "queue-show", name="q")["members"]]
    assert active == [True, False, False]
    settle(world, first, 1)
    second.leave()
    assert got(third) == []
    first.leave()
    assert counted(third) == [("2", 1)]
    publish(world, 3)
    assert got(third) == ["3"]


# ----------------------------------------------------------------------------------- order

ORDER = b'{"order_by": "k"}'


def keyed(world: KeepingWorld, *keys: str, first: int = 0) -> None:
    client = world.connect()
    client.send(*(letter(f"{key}{n}", attributes={"k": key}) for n, key in enumerate(keys, first)))
    world.persist()
    client.leave()


def test_the_same_key_goes_to_the_same_member_in_order() -> None:
    world = KeepingWorld()
    members = [member(world, options=ORDER, in_flight=4) for _ in range(3)]
    keyed(world, *"abcdef" * 10)
    seen: dict[str, list[int]] = {key: [] for key in "abcdef"}
    owner: dict[str, Client] = {}
    for _ in range(60):
        for one in members:
            for found in deliveries(one):
                key, number = found.text[0], int(found.text[1:])
                assert owner.setdefault(key, one) is one
                seen[key].append(number)
                settle(world, one, found.sequence)
    assert seen == {key: list(range(n, 60, 6)) for n, key in enumerate("abcdef")}
    assert len({one.key for one in owner.values()}) == 3


@BOTH
@pytest.mark.parametrize("dies", [False, True])
def test_the_keys_of_a_member_that_dies_go_on_elsewhere(dies: bool, power: bool) -> None:
    world = KeepingWorld()
    one = member(world, options=ORDER, in_flight=2)
    keyed(world, *"aaaa")
    assert got(one) == ["a0", "a1"]
    settle(world, one, 1)
    assert got(one) == ["a2"]
    other = member(world, options=ORDER)
    keyed(world, *"ab", first=4)
    assert got(other) == ["b5"]
    if dies:
        world = world.again(power)
        other = member(world, options=ORDER)
        assert sorted(got(other)) == ["a1", "a2", "a3", "a4", "b5"]
    else:
        one.leave()
        assert counted(other) == [("a1", 1), ("a2", 1), ("a3", 0), ("a4", 0)]


def test_what_came_back_or_is_parked_expires_where_there_are_keys() -> None:
    world = KeepingWorld()
    one = member(world, options=ORDER, in_flight=1)
    client = world.connect()
    soon = world.now.wall_us + 50_000
    attributes = {"k": "a"}
    client.send(*(letter(n, attributes=attributes, expiration_us=soon) for n in range(3)))
    world.persist()
    assert got(one) == ["0"]
    other = member(world, options=ORDER, in_flight=5)  # has room, so that the others are parked
    keyed(world, "b")
    assert got(other) == ["b0"]
    settle(world, one, 1, outcome=RELEASE, delay_ms=100)
    world.advance(60)
    world.advance(60)
    settle(world, one, 2)
    assert row(world)["waiting"] == 1
    settle(world, other, 4)
    assert row(world)["waiting"] == 0


def test_what_is_parked_for_somebody_without_credit() -> None:
    world = KeepingWorld()
    poor = member(world, options=ORDER, credit_messages=1, credit_bytes=1 << 30)
    member(world, options=ORDER)
    keyed(world, *"aaa")
    assert got(poor) == ["a0"]
    poor.send(native.Credit(9, 1 << 30))
    assert got(poor) == ["a1", "a2"]


def test_undeliverable_where_there_are_keys() -> None:
    world = KeepingWorld()
    one = member(world, options=ORDER)
    keyed(world, "a")
    got(one)
    settle(world, one, 1, outcome=RELEASE, undeliverable=True)
    assert got(one) == []
    other = member(world, options=ORDER)
    world.advance(1100)
    assert counted(other) == [("a0", 1)]


def test_an_order_by_key_may_be_given_up() -> None:
    world = KeepingWorld()
    one = member(world, options=ORDER, in_flight=1)
    other = member(world, options=ORDER, in_flight=2)
    keyed(world, *"aaa")
    assert got(one) == ["a0"]
    answer = command(world, "queue-change", name="q", options={"order_by": "", "shared": True})
    assert answer["queue"]["options"] == {"shared": True}
    assert got(other) == ["a1", "a2"]
    settle(world, one, 1)
    settle(world, other, 2, 3)
    assert row(world)["waiting"] == 0


@BOTH
def test_after_a_crash_nobody_settles_what_another_member_has(power: bool) -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, *range(1, 5))
    assert got(one) == ["1", "2", "3", "4"]
    after = world.again(power)
    one, other = member(after, in_flight=1), member(after, in_flight=1)
    assert (got(one), got(other)) == (["1"], ["2"])
    settle(after, one, 1, 2, 3)  # 3 is in no hand, and 2 in that of the other
    assert got(one) == ["4"]
    other.leave()
    assert counted(one) == []
    settle(after, one, 4)
    assert counted(one) == [("2", 2)]
