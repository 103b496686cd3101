"""Dead letters and their way back; messages that wait for their time."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from harness import Client, KeepingWorld
from queues import (
    ACCEPT,
    EXTEND,
    REJECT,
    RELEASE,
    Outcome,
    command,
    counted,
    deliveries,
    error,
    forget_tail,
    got,
    make,
    member,
    message_of,
    options,
    publish,
    row,
    settle,
)

from regraft.model.message import Message, Timestamp
from regraft.wire import native, peers

BOTH = pytest.mark.parametrize("power", [False, True])


def dead(world: KeepingWorld, name: str = "dead-letters") -> list[Message]:
    """What lies there."""
    client = world.reader(name, "", browse=True)
    return [message_of(one) for one in deliveries(client)]


def names(world: KeepingWorld) -> list[str]:
    return [one["name"] for one in command(world, "queue-list")["queues"]]


# --------------------------------------------------------------------------- dead letters


def test_what_is_rejected_becomes_a_dead_letter() -> None:
    world = KeepingWorld()
    one = member(world)
    about = {"price": 3, "dead_reason": "forged"}
    told = publish(world, "x", attributes=about, priority=7, id=99, correlation="c")
    assert told == [native.Confirmed(1, 1, 1)]
    assert got(one) == ["x"]
    settle(world, one, 1, outcome=REJECT, reason="not mine", token=4)
    assert one.take() == [native.Settled(1, 4)]
    (found,) = dead(world)
    assert (found.topic, found.body, found.priority, found.id) == ("dead/q", b"x", 7, 99)
    assert found.correlation == "c"
    assert found.attributes == {
        "price": 3,
        "dead_reason": "rejected",
        "dead_text": "not mine",
        "dead_mailbox": "q",
        "dead_topic": "t",
        "dead_deliveries": 1,
        "dead_at": Timestamp(world.now.wall_us),
    }
    about_q = row(world)
    assert [about_q[key] for key in ("waiting", "held", "returned", "dead")] == [0, 0, 0, 1]
    assert row(world, "dead-letters")["waiting"] == 1


def test_several_are_rejected_at_once() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, *range(5))
    got(one)
    forget_tail(world)
    settle(world, one, 5, 1, 2, 77, outcome=REJECT, token=4)
    assert one.take() == [native.Settled(1, 4)]
    assert sorted(found.body for found in dead(world)) == [b"0", b"1", b"4"]
    assert row(world)["waiting"] == 2


def test_what_was_delivered_too_often_becomes_a_dead_letter() -> None:
    world = KeepingWorld()
    make(world, max_deliveries=3, lease_ms=100)
    one = member(world, existing=True)
    publish(world, "x")
    assert counted(one) == [("x", 0)]
    settle(world, one, 1, outcome=RELEASE)
    assert counted(one) == [("x", 1)]
    settle(world, one, 1, outcome=RELEASE, uncounted=True)
    assert counted(one) == [("x", 1)]
    world.advance(101)
    assert counted(one) == [("x", 2)]
    one.leave()
    world.persist()
    (found,) = dead(world)
    assert found.attributes["dead_reason"] == "max-deliveries"
    assert found.attributes["dead_deliveries"] == 3
    assert row(world)["waiting"] == 0


def test_what_expires_becomes_a_dead_letter_if_that_matters() -> None:
    world = KeepingWorld()
    make(world, dead_expired=True)
    make(world, "other")
    soon = world.now.wall_us + 1000
    publish(world, 1, 2, expiration_us=soon)
    publish(world, 3)
    world.advance(10)
    assert got(member(world, existing=True)) == ["3"]
    assert got(member(world, "other")) == ["3"]
    world.persist()
    found = dead(world)
    assert [(one.body, one.expiration_us) for one in found] == [(b"1", None), (b"2", None)]
    assert {one.attributes["dead_reason"] for one in found} == {"expired"}
    assert {one.attributes["dead_mailbox"] for one in found} == {"q"}
    assert (row(world)["waiting"], row(world)["expired"], row(world)["dead"]) == (1, 2, 2)


def test_what_expires_after_it_came_back_becomes_a_dead_letter() -> None:
    world = KeepingWorld()
    one = member(world, options=options(dead_expired=True))
    publish(world, 1, expiration_us=world.now.wall_us + 1000, priority=6)
    got(one)
    settle(world, one, 1, outcome=RELEASE, delay_ms=10)
    world.advance(11)
    world.persist()
    assert got(one) == []
    (found,) = dead(world)
    assert (found.attributes["dead_deliveries"], found.priority) == (1, 6)


@pytest.mark.parametrize("topic", ["graves/a", "dead/elsewhere"])
def test_a_dead_letter_topic_of_its_own(topic: str) -> None:
    world = KeepingWorld()
    one = member(world, options=options(dead_letter=topic))
    publish(world, 1)
    settle(world, one, 1, outcome=REJECT)
    place = "graves/a" if topic == "graves/a" else "dead-letters"
    assert names(world) == ["q", place]
    (found,) = dead(world, place)
    assert found.topic == topic


def test_no_mailbox_is_made_where_somebody_keeps_dead_letters() -> None:
    world = KeepingWorld()
    make(world, "mine", "dead/q")
    live = world.subscriber("dead/#")
    one = member(world)
    publish(world, 1)
    settle(world, one, 1, outcome=REJECT)
    assert names(world) == ["mine", "q"]
    assert len(dead(world, "mine")) == len(deliveries(live)) == 1


def test_who_takes_only_some_of_them_is_not_enough() -> None:
    world = KeepingWorld()
    command(world, "queue-create", name="some", topic="dead", where="dead_reason = 'expired'")
    one = member(world)
    publish(world, 1)
    settle(world, one, 1, outcome=REJECT)
    assert names(world) == ["some", "q", "dead-letters"]
    assert (row(world, "some")["waiting"], len(dead(world))) == (0, 1)


@pytest.mark.parametrize("pattern", ["#", ""])
def test_a_mailbox_that_takes_everything_is_no_place_for_its_own_dead(pattern: str) -> None:
    world = KeepingWorld()
    one = member(world, topic=pattern)
    publish(world, "x")
    got(one)
    settle(world, one, 1, outcome=REJECT)
    assert len(dead(world)) == 1
    assert got(one) == ["x"]  # the dead letter, as it takes everything
    settle(world, one, 2, outcome=REJECT)
    assert got(one) == []
    assert len(dead(world)) == 1
    assert row(world)["waiting"] == 0


def test_a_dead_letter_that_is_rejected_is_gone() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1)
    settle(world, one, 1, outcome=REJECT)
    other = world.reader("dead-letters", "", existing=True)
    settle(world, other, 1, outcome=REJECT, token=1)
    assert other.take()[-1] == native.Settled(1, 1)
    assert dead(world) == []
    assert names(world) == ["q", "dead-letters"]


def test_a_message_that_only_looks_like_a_dead_letter() -> None:
    world = KeepingWorld()
    one = member(world, "dead-letters", "dead")
    publish(world, "x", topic="dead/somebody")
    settle(world, one, 1, outcome=REJECT)
    assert got(one) == ["x", "x"]
    settle(world, one, 2, outcome=REJECT)
    assert row(world, "dead-letters")["waiting"] == 0


@pytest.mark.parametrize("lacking", range(0, 300, 50))
def test_a_message_as_large_as_may_be_dies_as_others_do(lacking: int) -> None:
    world = KeepingWorld()
    one = member(world)
    text = "x" * (16_384 - 60 - lacking)
    publish(world, text, topic="t/some/longer/topic/than/that/of/the/dead")
    assert got(one) == [text]
    settle(world, one, 1, outcome=REJECT, token=1, reason="too long")
    assert one.take() == [native.Settled(1, 1)]
    (found,) = dead(world)
    assert found.attributes["dead_reason"] == "rejected"
    assert (len(found.attributes) < 6) == (lacking < 150)


def test_a_message_with_many_attributes_dies_as_others_do() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, "x", attributes={f"a{n}": n for n in range(62)})
    settle(world, one, 1, outcome=REJECT, token=1)
    assert one.take()[-1] == native.Settled(1, 1)
    assert [found.body for found in dead(world)] == [b"x"]


def test_no_place_among_the_dead() -> None:
    """It comes again, and who rejected it is told."""
    world = KeepingWorld()
    make(world, "grave", "dead", quota_messages=1)
    one = member(world)
    publish(world, 1, 2)
    got(one)
    settle(world, one, 1, outcome=REJECT, token=1)
    assert one.take() == [native.Settled(1, 1)]
    publish(world, "full", topic="dead/other")
    settle(world, one, 2, outcome=REJECT, token=2)
    (report,) = one.take()
    assert isinstance(report, native.Error)
    assert (report.name, report.subscription) == ("mailbox-full", 1)
    assert report.settlement  # which goes on
    world.advance(1001)
    assert counted(one) == [("2", 1)]
    assert command(world, "queue-purge", name="grave") == {"purged": row(world)["dead"]}
    settle(world, one, 2, outcome=REJECT, token=3)
    assert one.take() == [native.Settled(1, 3)]


def test_who_does_not_ask_is_told_all_the_same_that_there_is_no_place() -> None:
    world = KeepingWorld()
    make(world, "grave", "dead", quota_messages=1)
    one = member(world)
    publish(world, 1)
    publish(world, "full", topic="dead/other")
    got(one)
    settle(world, one, 1, outcome=REJECT)
    assert error(one) == "mailbox-full"


@pytest.mark.parametrize("outcome", [ACCEPT, EXTEND, RELEASE])
def test_a_later_settlement_is_not_safe_before_those_who_were_rejected_are_buried(
    outcome: Outcome,
) -> None:
    """SETTLED speaks for all that was said before it."""
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2, 3)
    got(one)
    forget_tail(world)
    rejected = native.Settle(1, (1, 1, 2, 2), outcome=REJECT)
    one.send(rejected, native.Settle(1, (3, 3), 7, outcome=outcome, delay_ms=60_000))
    while native.Settled(1, 7) not in one.take():
        assert world.asked is not None
        world.persist(1)
    assert [found.body for found in dead(world.again(power=True))] == [b"1", b"2"]


def test_a_mailbox_that_is_removed_while_its_messages_die() -> None:
    """Others die all the same, afterwards."""
    world = KeepingWorld()
    one, other = member(world), member(world, "r")
    publish(world, "x")
    got(one), got(other)
    forget_tail(world)
    remove = peers.Command(1, "queue-remove", b'{"name": "q", "force": true}')
    one.send(native.Settle(1, (1, 1), outcome=REJECT), remove)
    world.persist()
    settle(world, other, 1, outcome=REJECT, token=1)
    assert other.take() == [native.Settled(1, 1)]
    assert [found.attributes["dead_mailbox"] for found in dead(world)] == ["r"]


def test_what_cannot_be_read_does_not_die_for_now() -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, "x", "y")
    got(one)
    forget_tail(world)
    world.disk.fail("read", world.disk.counts["read"] + 1, errno.EIO)
    settle(world, one, 1, 2, outcome=REJECT, token=1)
    (report,) = one.take()
    assert (report.name, len(dead(world))) == ("journal-failed", 1)
    world.advance(1001)
    assert counted(one) == [("x", 1)]
    settle(world, one, 1, outcome=REJECT, token=2)
    assert one.take() == [native.Settled(1, 2)]
    assert len(dead(world)) == 2


@BOTH
def test_the_dead_stay_dead(power: bool) -> None:
    world = KeepingWorld()
    one = member(world)
    publish(world, 1, 2, 3)
    got(one)
    settle(world, one, 2, outcome=REJECT, reason="no", token=1)
    world = world.again(power)
    assert counted(member(world)) == [("1", 1), ("3", 1)]
    (found,) = dead(world)
    assert found.attributes["dead_text"] == "no"


# ------------------------------------------------------------------------------ dlq-retry


def killed(world: KeepingWorld, *bodies: Any, name: str = "q", **more: Any) -> Client:
    """A mailbox whose messages were rejected."""
    one = member(world, name)
    publish(world, *bodies, **more)
    settle(world, one, *(found.sequence for found in deliveries(one)), outcome=REJECT)
    return one


def test_dead_letters_go_back_to_where_they_died() -> None:
    world = KeepingWorld()
    make(world, "other")
    one = killed(world, 1, 2, 3, attributes={"a": 1})
    world.advance(1)
    answer = command(world, "dlq-retry", mailbox="dead-letters", ranges=[[2, 3], [3, 3], [2, 9]])
    assert answer == {"retried": 2, "left": 0}
    again = [message_of(found) for found in deliveries(one)]
    assert [(found.topic, found.body) for found in again] == [("t", b"2"), ("t", b"3")]
    assert set(again[0].attributes) == {"a", "dead_history"}
    history = json.loads(str(again[0].attributes["dead_history"]))
    assert [(death["mailbox"], death["reason"]) for death in history] == [("q", "rejected")]
    assert (len(dead(world)), row(world, "other")["waiting"]) == (1, 3)
    settle(world, one, 4, outcome=REJECT)
    assert command(world, "dlq-retry", mailbox="dead-letters", all=True)["retried"] == 2
    history = [message_of(found).attributes["dead_history"] for found in deliveries(one)]
    assert sorted(len(json.loads(str(told))) for told in history) == [1, 2]


@BOTH
def test_what_was_sent_back_is_dead_no_more(power: bool) -> None:
    world = KeepingWorld()
    killed(world, 1, 2, priority=9).leave()
    command(world, "dlq-retry", mailbox="dead-letters", ranges=[[1, 1]])
    world = world.again(power)
    assert [found.body for found in dead(world)] == [b"2"]
    assert got(member(world)) == ["1"]


def test_dead_letters_go_to_another_mailbox_or_to_their_topic() -> None:
    world = KeepingWorld()
    make(world, "elsewhere", "nothing")
    killed(world, 1, 2).leave()
    answer = command(world, "dlq-retry", mailbox="dead-letters", ranges=[[1, 1]], to="elsewhere")
    assert answer == {"retried": 1, "left": 0}
    assert got(member(world, "elsewhere", "nothing")) == ["1"]
    command(world, "queue-remove", name="q")
    make(world, "new")
    assert command(world, "dlq-retry", mailbox="dead-letters", all=True)["retried"] == 1
    assert got(member(world, "new")) == ["2"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "bad-message"),
        ({"mailbox": "no", "all": True}, "unknown-mailbox"),
        ({"mailbox": "dead-letters"}, "bad-message"),
        ({"mailbox": "dead-letters", "ranges": [[1]]}, "bad-message"),
        ({"mailbox": "dead-letters", "ranges": [[1, -1]]}, "bad-message"),
        ({"mailbox": "dead-letters", "ranges": "1-2"}, "bad-message"),
        ({"mailbox": "dead-letters", "ranges": [[1, 2]], "to": "no"}, "unknown-mailbox"),
        ({"mailbox": "dead-letters", "all": 1}, "bad-message"),
        ({"mailbox": "dead-letters", "all": True, "more": 1}, "bad-message"),
        ({"mailbox": "$delayed", "all": True}, "not-authorized"),
        ({"mailbox": "dead-letters", "all": True, "to": "$delayed"}, "not-authorized"),
    ],
)
def test_what_cannot_be_sent_back(given: dict[str, Any], name: str) -> None:
    world = KeepingWorld()
    killed(world, 1, 2)
    publish(world, 1, deliver_at_us=world.now.wall_us + 1_000_000)
    assert command(world, "dlq-retry", **given) == {"error": name}
    assert len(dead(world)) == 2


def test_dead_letters_that_somebody_reads_are_not_sent_back() -> None:
    world = KeepingWorld()
    killed(world, 1)
    world.reader("dead-letters", "", existing=True)
    answer = command(world, "dlq-retry", mailbox="dead-letters", all=True)
    assert answer == {"error": "mailbox-in-use"}


def test_ranges_that_never_end() -> None:
    world = KeepingWorld()
    killed(world, 1)
    wide = [[0, (1 << 62) - 1]]
    assert command(world, "dlq-retry", mailbox="dead-letters", ranges=wide)["retried"] == 1
