"""Commands about mailboxes and topics; looks into a mailbox."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import KeepingWorld, World
from queues import (
    RELEASE,
    command,
    counted,
    deliveries,
    error,
    forget_tail,
    got,
    letter,
    make,
    member,
    options,
    publish,
    row,
    settle,
)

from regraft.model.message import DeliveryMode
from regraft.wire import native, peers

BOTH = pytest.mark.parametrize("power", [False, True])
TIMES = 1_000_000


# --------------------------------------------------------------------------------- making


def test_a_queue_is_made_and_shown() -> None:
    world = KeepingWorld()
    given = {"name": "q", "topic": "a/#", "where": "x > 1", "options": {"shared": True}}
    made = command(world, "queue-create", **given)["queue"]
    assert (made["name"], made["topic"], made["where"]) == ("q", "a/#", "x > 1")
    for key in ("waiting", "held", "returned", "members", "dead", "oldest_us"):
        assert made[key] == 0, key
    assert (made["next"], made["floor"], made["full"], made["exact"]) == (1, 1, False, False)
    assert command(world, "queue-create", **given)["queue"] == made
    assert command(world, "queue-list") == {"queues": [made]}
    assert command(world, "queue-show", name="q") == {"queue": made, "members": []}
    one = member(world, topic="a/#", selector="x > 1", client_id="me", in_flight=3)
    publish(world, 1, topic="a/b", attributes={"x": 2})
    publish(world, 2, topic="a/b", attributes={"x": 0})
    assert got(one) == ["1"]
    shown = command(world, "queue-show", name="q")
    about = {"client": "me", "subscription": 1, "held": 1, "in_flight": 3, "active": True}
    assert shown["members"] == [about]
    assert (shown["queue"]["waiting"], shown["queue"]["next"]) == (1, 2)


def test_the_age_of_what_waits_is_shown() -> None:
    world = KeepingWorld()
    command(world, "queue-create", name="q", topic="t", options={"shared": True})
    times = []
    for number in range(1, 401):
        times.append(world.now.wall_us)
        publish(world, number)
        world.advance(1000)
    settled = 300
    one = member(world, in_flight=settled)
    assert len(got(one)) == settled
    one.send(native.Settle(1, (1, settled)))
    world.persist()
    one.leave()
    shown = command(world, "queue-show", name="q")["queue"]
    assert shown["waiting"] == 400 - settled
    assert times[200] < shown["oldest_us"] <= times[settled], "a few messages too early at most"
    command(world, "queue-purge", name="q")
    assert command(world, "queue-show", name="q")["queue"]["oldest_us"] == 0


@pytest.mark.parametrize(
    "other",
    [
        {"topic": "b"},
        {"where": "x > 2"},
        {"exact": True},
        {"options": {}},
        {"options": {"shared": True, "lease_ms": 1}},
        {"options": {"shared": True, "quota_messages": 7}},
    ],
)
def test_a_queue_of_the_same_name_must_be_the_same(other: dict[str, Any]) -> None:
    world = KeepingWorld()
    given = {"name": "q", "topic": "a", "where": "x > 1", "options": {"shared": True}}
    command(world, "queue-create", **given)
    assert command(world, "queue-create", **(given | other)) == {"error": "mailbox-differs"}


@pytest.mark.parametrize(
    ("what", "given", "name"),
    [
        ("queue-create", {}, "bad-message"),
        ("queue-create", {"name": 7}, "bad-message"),
        ("queue-create", {"name": ""}, "bad-message"),
        ("queue-create", {"name": "$mine"}, "bad-pattern"),
        ("queue-create", {"name": "x" * 256}, "bad-pattern"),
        ("queue-create", {"name": "a\nb"}, "bad-pattern"),
        ("queue-create", {"name": "n", "topic": "a/#/b"}, "bad-pattern"),
        ("queue-create", {"name": "n", "topic": 1}, "bad-message"),
        ("queue-create", {"name": "n", "where": "x >"}, "bad-selector"),
        ("queue-create", {"name": "n", "exact": "yes"}, "bad-message"),
        ("queue-create", {"name": "n", "options": []}, "bad-configuration"),
        ("queue-create", {"name": "n", "options": {"x": 1}}, "bad-configuration"),
        ("queue-create", {"name": "n", "nothing": 1}, "bad-message"),
        ("queue-list", {"x": 1}, "bad-message"),
        ("queue-show", {}, "bad-message"),
        ("queue-show", {"name": "no"}, "unknown-mailbox"),
        ("queue-show", {"name": "q", "x": 1}, "bad-message"),
        ("queue-change", {"name": "no", "options": {}}, "unknown-mailbox"),
        ("queue-change", {"name": "q", "options": [1]}, "bad-message"),
        ("queue-change", {"name": "q", "options": {"x": 1}}, "bad-configuration"),
        ("queue-change", {"name": "q", "options": {"lease_ms": -1}}, "bad-configuration"),
        ("queue-change", {"name": "$delayed", "options": {}}, "not-authorized"),
        ("queue-purge", {"name": "no"}, "unknown-mailbox"),
        ("queue-purge", {"name": "q", "x": 1}, "bad-message"),
        ("queue-purge", {"name": "$delayed"}, "not-authorized"),
        ("queue-remove", {"name": "no"}, "unknown-mailbox"),
        ("queue-remove", {"name": "q", "force": 1}, "bad-message"),
        ("queue-remove", {"name": "$delayed"}, "not-authorized"),
        ("queue-rename", {"name": "no", "to": "x"}, "unknown-mailbox"),
        ("queue-rename", {"name": "q"}, "bad-message"),
        ("queue-rename", {"name": "q", "to": "q"}, "mailbox-in-use"),
        ("queue-rename", {"name": "q", "to": "$q"}, "bad-pattern"),
        ("queue-rename", {"name": "$delayed", "to": "x"}, "not-authorized"),
        ("queue-seek", {"name": "no", "sequence": 1}, "unknown-mailbox"),
        ("queue-seek", {"name": "q"}, "bad-message"),
        ("queue-seek", {"name": "q", "sequence": 1, "time_us": 1}, "bad-message"),
        ("queue-seek", {"name": "q", "sequence": -1}, "bad-message"),
        ("queue-seek", {"name": "q", "sequence": 1.5}, "bad-message"),
        ("queue-seek", {"name": "$delayed", "sequence": 1}, "not-authorized"),
        ("delayed-list", {"rows": -1}, "bad-message"),
        ("delayed-list", {"x": -1}, "bad-message"),
        ("topic-create", {}, "bad-message"),
        ("topic-create", {"name": "$t"}, "bad-pattern"),
        ("topic-create", {"name": "t", "topic": "a/#/b"}, "bad-pattern"),
        ("topic-create", {"name": "t", "retain": 1}, "bad-message"),
        ("topic-create", {"name": "t", "keep_s": -1}, "bad-message"),
        ("topic-create", {"name": "t", "holder": "elsewhere"}, "not-supported"),
        ("topic-create", {"name": "t", "x": 1}, "bad-message"),
        ("topic-list", {"x": 1}, "bad-message"),
        ("topic-show", {"name": "no"}, "unknown-topic"),
        ("topic-remove", {"name": "no"}, "unknown-topic"),
        ("topic-remove", {"name": ""}, "bad-message"),
    ],
)
def test_bad_arguments_change_nothing(what: str, given: dict[str, Any], name: str) -> None:
    world = KeepingWorld()
    make(world)
    publish(world, 1, deliver_at_us=world.now.wall_us + TIMES)
    before = [command(world, one) for one in ("queue-list", "topic-list", "delayed-list")]
    assert command(world, what, **given) == {"error": name}
    after = [command(world, one) for one in ("queue-list", "topic-list", "delayed-list")]
    assert after == before


@pytest.mark.parametrize("data", [b"{", b"[]", b"7", b"\xff", b'"x"'])
def test_arguments_are_an_object(data: bytes) -> None:
    world = KeepingWorld()
    client = world.connect()
    client.send(peers.Command(1, "queue-create", data))
    world.persist()
    assert error(client) == "bad-message"


# ------------------------------------------------------------------- purge, remove, rename


@BOTH
def test_a_queue_is_purged_but_for_what_members_hold(power: bool) -> None:
    world = KeepingWorld()
    one = member(world, in_flight=2)
    publish(world, *range(5))
    publish(world, 5, 6, priority=9)
    settle(world, one, 1, outcome=RELEASE, delay_ms=100)
    held = {found.sequence for found in deliveries(one)} - {1}
    assert command(world, "queue-purge", name="q") == {"purged": 5}
    assert [row(world)[key] for key in ("waiting", "held", "returned")] == [2, 2, 0]
    world.advance(200)
    assert got(one) == []
    settle(world, one, *held)
    publish(world, "new")
    assert got(one) == ["new"]
    world = world.again(power)
    assert got(member(world)) == ["new"]
    assert command(world, "queue-purge", name="q") == {"purged": 0}


def test_a_queue_with_members_is_removed_by_force_only() -> None:
    world = KeepingWorld()
    one, look = member(world), world.connect()
    publish(world, 1)
    got(one)
    look.clog()
    look.send(native.Subscribe(1, "", durable="q", browse=True))
    assert command(world, "queue-remove", name="q") == {"error": "mailbox-in-use"}
    assert command(world, "queue-remove", name="q", force=True) == {}
    assert error(one) == "unknown-mailbox"
    look.start_reading()
    assert look.take()[-1] == native.Unsubscribed(1)
    one.send(native.Settle(1, (1, 1), 1))
    assert error(one) == "unknown-subscription"
    assert command(world, "queue-list") == {"queues": []}
    publish(world, 2)
    assert world.again(power=True).journal.state.mailboxes == {}


@BOTH
def test_a_queue_is_renamed(power: bool) -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1)
    assert got(one) == ["1"]
    assert command(world, "queue-rename", name="q", to="r") == {}
    publish(world, 2)
    assert got(one) == ["2"]
    settle(world, one, 1)
    assert command(world, "queue-show", name="q") == {"error": "unknown-mailbox"}
    world = world.again(power)
    assert row(world, "r")["waiting"] == 1
    make(world, "q")
    assert counted(member(world, "r")) == [("2", 1)]


# ----------------------------------------------------------------------------------- seek


def settled_queue(world: KeepingWorld) -> list[int]:
    """Ten messages, each a second after the other, all settled; and when they came."""
    one = member(world)
    times = []
    for number in range(1, 11):
        world.advance(1000)
        times.append(world.now.wall_us)
        publish(world, number)
        one.send(native.Heartbeat(1))
    settle(world, one, *range(1, 11))
    one.leave()
    world.persist()
    return times


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("sequence", [1, 4, 10])
def test_a_queue_goes_back(sequence: int, dies: bool) -> None:
    world = KeepingWorld()
    settled_queue(world)
    assert command(world, "queue-seek", name="q", sequence=sequence) == {"next": sequence}
    if dies:
        world = world.again(power=True)
    one = member(world)
    assert counted(one) == [(str(n), 1) for n in range(sequence, 11)]
    publish(world, 11)
    assert counted(one) == [("11", 0)]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_a_queue_goes_to_a_time(memory: bool, dies: bool) -> None:
    world = KeepingWorld()
    times = settled_queue(world)
    if dies:
        world = world.again()
    for n, us, first in [(1, 1, 1), (2, times[3], 4), (3, times[3] + 1, 5), (4, times[9], 10)]:
        if not memory:
            forget_tail(world)
        assert command(world, "queue-seek", name="q", time_us=us) == {"next": first}, n
    one = member(world)
    assert counted(one) == [("10", 1)]
    one.leave()
    assert command(world, "queue-seek", name="q", time_us=times[9] + 1) == {"next": 11}
    assert counted(member(world)) == []


def test_a_queue_goes_forward() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, *range(1, 11))
    settle(world, one, 8, outcome=RELEASE, delay_ms=500)
    assert command(world, "queue-seek", name="q", sequence=7) == {"error": "mailbox-in-use"}
    one.leave()
    world.persist()
    assert command(world, "queue-seek", name="q", sequence=7) == {"next": 7}
    one = member(world)
    assert sorted(counted(one)) == [("10", 1), ("7", 1), ("9", 1)]
    world.advance(600)
    assert counted(one) == [("8", 1)]
    one.leave()
    far = (1 << 64) - 1
    assert command(world, "queue-seek", name="q", sequence=far) == {"next": 11}
    assert got(member(world)) == []


def test_what_nobody_ever_got_is_not_marked_after_a_seek() -> None:
    world = KeepingWorld()
    member(world).leave()
    world.persist()
    publish(world, *range(1, 6))
    assert command(world, "queue-seek", name="q", sequence=3) == {"next": 3}
    assert counted(member(world)) == [("3", 0), ("4", 0), ("5", 0)]


def test_somebody_comes_while_a_time_is_looked_for() -> None:
    world = KeepingWorld()
    settled_queue(world)
    forget_tail(world)
    client = world.connect()
    seek = peers.Command(1, "queue-seek", json.dumps({"name": "q", "time_us": 1}).encode())
    client.send(seek, native.Subscribe(1, "t", durable="q"))
    world.persist()
    assert error(client) == "mailbox-in-use"
    assert row(world)["floor"] == 11


def test_a_queue_goes_back_to_what_is_still_there() -> None:
    world = KeepingWorld()
    one = member(world)
    for number in range(1, 101):
        publish(world, str(number).zfill(4000))
    settle(world, one, *range(1, 101))
    got(one)
    one.leave()
    for _ in range(3):  # so that there is time to clean up
        world.advance(5000)
        world.persist()
    answer = command(world, "queue-seek", name="q", sequence=1)
    assert 50 < answer["next"] < 101
    texts = [int(text) for text in got(member(world))]
    assert texts == list(range(answer["next"], 101))


# -------------------------------------------------------------------------------- options


@BOTH
def test_options_are_changed(power: bool) -> None:
    world = KeepingWorld()
    make(world, lease_ms=100)
    changed = command(world, "queue-change", name="q", options={"max_deliveries": 1})
    assert changed["queue"]["options"] == {"shared": True, "lease_ms": 100, "max_deliveries": 1}
    one = member(world, existing=True)
    publish(world, 1)
    got(one)
    settle(world, one, 1, outcome=RELEASE)
    assert (got(one), row(world)["dead"]) == ([], 1)
    world = world.again(power)
    assert row(world)["options"] == {"shared": True, "lease_ms": 100, "max_deliveries": 1}


def test_a_queue_with_several_members_stays_shared() -> None:
    world = KeepingWorld()
    one = member(world)
    member(world)
    change = {"name": "q", "options": {"shared": False}}
    assert command(world, "queue-change", **change) == {"error": "mailbox-in-use"}
    one.leave()
    assert command(world, "queue-change", **change)["queue"]["options"] == {}
    assert error(world.reader("q", "t")) == "mailbox-in-use"


def test_a_quota_is_changed() -> None:
    world = KeepingWorld()
    make(world, quota_messages=1)
    publish(world, 1)
    (refused,) = publish(world, 2)
    assert (refused.name, row(world)["full"]) == ("mailbox-full", True)
    command(world, "queue-change", name="q", options={"quota_messages": 2})
    assert publish(world, 2) == [native.Confirmed(1, 1, 1)]
    assert row(world)["waiting"] == 2


# --------------------------------------------------------------------------------- browse


def browse(world: KeepingWorld, **more: Any) -> tuple[list[str], bool]:
    """What one sees, and whether it ended by itself."""
    client = world.reader("q", "", browse=True, **more)
    news = client.take()
    seen = [one for one in news if not isinstance(one, native.Subscribed | native.Unsubscribed)]
    return [one.text for one in seen], news[-1] == native.Unsubscribed(1)


def test_a_look_takes_nothing_and_ends() -> None:
    world = KeepingWorld()
    make(world)
    assert browse(world) == ([], True)
    publish(world, 1, 2)
    publish(world, 3, priority=9)
    publish(world, 4, attributes={"a": 1}, expiration_us=world.now.wall_us + 500_000)
    assert browse(world) == (["1", "2", "3", "4"], True)
    assert browse(world, selector="a = 1") == (["4"], True)
    one = member(world, existing=True, in_flight=2)
    assert got(one) == ["3", "1"]
    settle(world, one, 3, 1)
    assert browse(world) == (["2", "4"], True)
    assert row(world)["held"] == 2
    world.advance(600)
    assert browse(world) == (["2"], True)
    settle(world, one, 2, 4)
    assert browse(world) == ([], True)
    assert browse(world.again()) == ([], True)


def test_a_look_does_not_see_what_comes_later() -> None:
    world = KeepingWorld(write_bytes=200)
    make(world)
    publish(world, *range(50))
    client = world.connect(credit_messages=10, credit_bytes=1 << 30)
    client.send(native.Subscribe(1, "", durable="q", browse=True))
    publish(world, *range(50, 60))
    command(world, "queue-purge", name="q")
    client.send(native.Credit(1000, 1 << 30))
    client.start_reading()
    *seen, last = client.take()[1:]
    assert [one.text for one in seen] == [str(n) for n in range(10)]  # the others were purged
    assert last == native.Unsubscribed(1)


# --------------------------------------------------------------------------------- topics


@BOTH
def test_a_topic_is_administered(power: bool) -> None:
    world = KeepingWorld()
    given = {"name": "orders", "topic": "shop/orders", "retain": True, "keep_bytes": 1 << 20}
    made = command(world, "topic-create", **given)["topic"]
    assert made == {
        "name": "orders",
        "topic": "shop/orders",
        "exact": False,
        "retain": True,
        "keep_s": 0,
        "keep_bytes": 1 << 20,
        "persistent": False,
        "quota_messages": 0,
        "quota_bytes": 0,
        "holder": "",
        "next": 1,
        "bytes": 0,
    }
    assert publish(world, 1, topic="shop/orders/x") == [native.Confirmed(1, 1, 1)]
    world = world.again(power)
    shown = command(world, "topic-show", name="orders")["topic"]
    assert (shown["next"], shown["keep_bytes"]) == (2, 1 << 20)
    assert command(world, "topic-list") == {"topics": [shown]}
    reader = world.connect()
    reader.send(native.Subscribe(1, stream="orders", from_sequence=1))
    world.persist()
    assert got(reader) == ["1"]
    assert command(world, "topic-remove", name="orders") == {}
    assert reader.take() == [native.Unsubscribed(1)]
    assert publish(world, 2, topic="shop/orders/x") == [native.Confirmed(1, 1, 0)]
    world = world.again(power)
    assert command(world, "topic-list") == {"topics": []}


def test_the_name_of_a_topic_is_its_topic_if_nothing_else_is_said() -> None:
    world = KeepingWorld()
    assert command(world, "topic-create", name="a/b")["topic"]["topic"] == "a/b"
    other = command(world, "topic-create", name="a/b", keep_s=5)["topic"]
    assert command(world, "topic-list") == {"topics": [other]}


def test_a_stream_keeps_its_topic() -> None:
    world = KeepingWorld()
    command(world, "topic-create", name="s", topic="a", retain=True)
    answer = command(world, "topic-create", name="s", topic="b", retain=True)
    assert answer == {"error": "mailbox-differs"}
    assert command(world, "topic-show", name="s")["topic"]["topic"] == "a"


def test_all_that_is_published_to_a_persistent_topic_is_kept() -> None:
    world = KeepingWorld()
    make(world, topic="t")
    passing = {"delivery_mode": DeliveryMode.NON_PERSISTENT}
    client = world.connect()
    plain = letter("early")
    client.send(type(plain)("t", b"early"))
    command(world, "topic-create", name="t", persistent=True)
    client.send(type(plain)("t/x", b"kept", **passing), type(plain)("u", b"other"))
    world.persist()
    assert got(member(world)) == ["kept"]
    world = world.again()
    client = world.connect()
    client.send(type(plain)("t", b"again"))
    world.persist()
    assert [text for text, _ in counted(member(world))] == ["kept", "again"]
    command(world, "topic-remove", name="t")
    client.send(type(plain)("t", b"late"))
    world.persist()
    assert row(world)["next"] == 3


def test_queues_have_the_quota_of_their_topic() -> None:
    world = KeepingWorld()
    command(world, "topic-create", name="t", quota_messages=2)
    make(world)
    make(world)  # again, the same
    make(world, "own", quota_messages=5)
    assert row(world)["options"]["quota_messages"] == 2
    assert row(world, "own")["options"]["quota_messages"] == 5
    publish(world, 1, 2)
    (refused,) = publish(world, 3)
    assert refused.name == "mailbox-full"
    assert error(world.reader("q", "t", options=options(quota_messages=3))) == "mailbox-differs"
    member(world, options=options(quota_messages=2))
    member(world)


def test_a_queue_that_a_subscriber_makes_has_the_quota_of_its_topic() -> None:
    world = KeepingWorld()
    command(world, "topic-create", name="t", quota_messages=2)
    member(world, topic="t/x").leave()
    assert row(world)["options"]["quota_messages"] == 2


def test_a_node_without_a_journal_has_nothing_to_administer() -> None:
    client = World().connect()
    client.send(peers.Command(1, "queue-list", b""))
    assert error(client) == "not-supported"


def test_an_error_says_which_command_it_is_about() -> None:
    world = KeepingWorld()
    client = world.connect()
    client.send(peers.Command(7, "queue-create", b'{"name": "q", "topic": "t"}'))
    client.send(peers.Command(8, "queue-show", b'{"name": "nothing"}'))
    (refused,) = (found for found in client.take() if isinstance(found, native.Error))
    assert (refused.name, refused.token) == ("unknown-mailbox", 8)
    world.persist()
    assert [found.token for found in client.take() if isinstance(found, peers.Done)] == [7]
