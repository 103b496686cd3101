"""A node with a journal: what is confirmed and when, what is refused, what goes on all the same."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from harness import Client, Delivered, KeepingWorld, publication

from regraft.model.message import DeliveryMode, Message
from regraft.node.event import Tick
from regraft.node.storage import Retained
from regraft.wire import native

ALL = [Retained("all", "#")]


def letter(body: int | str, topic: str = "t", sequence: int | None = None, **more: Any) -> Message:
    """A persistent message; its body is its sequence, unless another is given."""
    if sequence is None and isinstance(body, int):
        sequence = body
    more["delivery_mode"] = DeliveryMode.PERSISTENT
    return publication(body, topic, sequence=sequence or None, **more)


def texts(client: Client) -> list[str]:
    """The bodies of what came since the last look."""
    return [one.text for one in client.take() if isinstance(one, Delivered)]


def confirmed(ordinal: int, count: int = 1, takers: int = 1, known: bool = False) -> Any:
    return native.Confirmed(ordinal, count, takers, known)


def refusals(client: Client) -> list[tuple[str, int, int]]:
    """Name, ordinal and count of the errors that came since the last look."""
    news = client.take()
    assert all(isinstance(one, native.Error | native.Credit) for one in news), news
    return [(one.name, one.ordinal, one.count) for one in news if isinstance(one, native.Error)]


# ------------------------------------------------------------------------- confirmations


def test_confirmations_come_once_it_is_persisted_and_in_order() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1), letter(2))
    client.send(letter(3))
    assert client.take() == []
    world.persist(1)  # what came first; the third is the next batch
    assert client.take() == [confirmed(2, 2)]
    world.persist(1)
    assert client.take() == [confirmed(3)]
    assert world.journal.persisted_position == world.journal.recorder.position


def test_who_publishes_one_message_is_answered_before_all_else_that_its_end_brings() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1))
    before = world.journal.persisted_position
    assert world.asked is not None
    asked, world.asked = world.asked, None
    world.step_once(*world.disk.perform(asked))
    assert client.take() == [confirmed(1)]
    assert world.journal.persisted_position == before
    assert world.wake_ns == world.ns  # the rest is due at once
    world.step_once(Tick())
    assert world.journal.persisted_position == world.journal.recorder.position > before


def test_what_waits_for_the_disk_goes_to_it_in_the_step_in_which_it_is_free() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1))
    client.send(letter(2))  # gathers behind the first
    asked, world.asked = world.asked, None
    assert asked is not None
    world.step_once(*world.disk.perform(asked))
    assert client.take() == [confirmed(1)]
    assert world.asked is not None


def test_everybody_who_takes_it_counts() -> None:
    world = KeepingWorld(ALL)
    box = world.reader("box", "t")
    other = world.reader("other", "u")
    live = world.subscriber("#")
    box.take(), other.take()
    client = world.connect("p")
    client.send(letter(1), letter(2, "u"), letter(3, "v"), letter(4, "v"))
    world.persist()
    assert client.take() == [confirmed(2, 2, 3), confirmed(4, 2, 2)]
    assert texts(live) == ["1", "2", "3", "4"]
    assert texts(box) == ["1"] and texts(other) == ["2"]


def test_what_nobody_takes_is_confirmed_without_a_write() -> None:
    world = KeepingWorld()
    client = world.connect("p")
    client.send(letter("no sequence"))
    assert client.take() == [confirmed(1, takers=0)]
    assert world.asked is None
    client.send(letter(1))
    assert client.take() == [confirmed(2, takers=0)]
    live = world.subscriber("t")
    client.send(letter(2))
    assert client.take() == [confirmed(3)] and texts(live) == ["2"]


def test_what_nobody_keeps_waits_its_turn() -> None:
    world = KeepingWorld([Retained("kept", "kept")])
    live = world.subscriber("#")
    client = world.connect("p")
    client.send(letter(1, "kept"), letter(2, "loose"), letter(3, "kept"))
    assert client.take() == [] and texts(live) == []
    world.persist()
    assert client.take() == [confirmed(1, takers=2), confirmed(2), confirmed(3, takers=2)]
    assert texts(live) == ["1", "2", "3"]


def test_a_live_subscriber_sees_it_only_once_it_is_safe() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("t")
    client = world.connect("p")
    client.send(letter(1))
    client.send(publication("not persistent"))
    assert texts(live) == ["not persistent"]
    world.persist()
    assert texts(live) == ["1"]


def test_messages_for_one_subscriber_by_both_ways_do_not_mix() -> None:
    """In one read: one goes out at once, the other at the end of the step."""
    world = KeepingWorld()
    live = world.subscriber("#")
    client = world.connect("p")
    client.send(publication("x" * 100), letter("y" * 100), publication("z" * 100))
    assert sorted(texts(live)) == ["x" * 100, "y" * 100, "z" * 100]


def test_duplicates_are_known_once_the_original_is_safe() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("t")
    client = world.connect("p")
    client.send(letter(1), letter(2))
    again = world.connect("p")  # it takes over, and retries
    again.send(letter(1), letter(2), letter(3))
    assert again.take() == []
    world.persist()
    assert again.take() == [
        confirmed(2, 2, takers=0, known=True),
        confirmed(3, takers=2),
    ]
    assert texts(live) == ["1", "2", "3"]
    assert world.node.report("journal", 9)["repeated"] == 2


@pytest.mark.parametrize("power", [False, True])
def test_duplicates_are_known_over_restarts(power: bool) -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1), letter(2))
    world.persist()
    after = world.again(power)
    client = after.connect("p")
    client.send(letter(2), letter(3))
    assert client.take() == [confirmed(1, takers=0, known=True)]
    after.persist()
    assert client.take() == [confirmed(2)]
    (row,) = after.node.report("journal", 9)["rows"]
    assert row["next"] == 4


def test_a_publisher_is_told_where_it_was() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(41))
    world.persist()
    again = world.open()
    again.send(native.PREFACE, native.Hello(1, 1, client_id="p"))
    (welcome,) = again.take()
    assert welcome.sequence == 41
    assert welcome.journal == bytes(16)


def test_a_sequence_that_is_too_old_is_refused() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(100_000), letter(1), letter(99_999))
    assert refusals(client) == [("sequence-too-old", 2, 1)]
    world.persist()
    assert client.take() == [confirmed(1), confirmed(3)]


def test_ordinals_count_what_is_not_confirmed_too() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    expired = letter(3, expiration_us=1)
    client.send(letter(1), publication("x"), letter(2), expired, letter("", "bad/+"), letter(4))
    assert refusals(client) == [("bad-topic", 5, 1)]
    world.persist()
    assert client.take() == [
        confirmed(1),
        confirmed(3),
        confirmed(4, takers=0),
        confirmed(6),
    ]


# ------------------------------------------------------------------------------ refusals


def test_a_full_mailbox_refuses_and_takes_again_after_settlements() -> None:
    world = KeepingWorld(mailbox_messages=8)
    box = world.reader("box", "t")
    box.take()
    client = world.connect("p")
    for number in range(1, 9):
        client.send(letter(number))
        world.persist()
    client.take()
    client.send(letter(9), letter(1), letter("", "elsewhere"))  # the second was taken before
    news = client.take()
    assert (news[0].name, news[0].ordinal) == ("mailbox-full", 9)
    assert news[1:] == [confirmed(10, takers=0, known=True), confirmed(11, takers=0)]
    box.send(native.Settle(1, (1, 4)))
    world.persist()
    client.send(letter(9))
    world.persist()
    assert client.take() == [confirmed(12)]
    assert [one.sequence for one in box.take() if isinstance(one, Delivered)] == list(range(1, 10))


def test_a_failed_journal_refuses_and_the_rest_goes_on() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("#")
    client = world.connect("p")
    client.send(letter(1))
    world.persist()
    assert client.take() == [confirmed(1, takers=2)]
    client.send(letter(2))
    world.fail()
    assert refusals(client) == [("journal-failed", 2, 1)]
    client.send(letter(3), publication("goes on"), letter(2))
    assert refusals(client) == [("journal-failed", 3, 1), ("journal-failed", 5, 1)]
    assert texts(live) == ["1", "goes on"]
    assert world.asked is None
    world.advance(5000)
    assert world.asked is None and client.take() == []
    assert any(note.level == "critical" for note in world.notes)
    after = world.again()
    assert after.journal.broken == ""


def test_what_was_on_its_way_to_a_disk_that_fails_is_never_confirmed() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1))
    client.send(letter(2))
    client.send(native.Bye())
    world.fail()
    assert refusals(client) == [("journal-failed", 1, 1), ("journal-failed", 2, 1)]
    assert client.closed == "the client left"
    assert world.node.report("journal", 1)["unconfirmed"] == 0


def test_a_failed_journal_says_no_to_whoever_wants_something_kept() -> None:
    world = KeepingWorld(ALL)
    box = world.reader("box", "t")
    other = world.connect("other")
    publisher = world.connect("p")
    publisher.send(letter(1))
    world.persist()
    box.take()
    box.send(native.Settle(1, (1, 1), token=5), native.Unsubscribe(1, remove=True))
    other.send(native.Subscribe(4, "u", durable="new"))
    world.fail()
    assert [(one.name, one.subscription) for one in other.take()] == [("journal-failed", 4)]
    assert [(one.name, one.subscription, one.settlement) for one in box.take()] == [
        ("journal-failed", 1, True),
        ("journal-failed", 1, False),
    ]
    other.send(native.Subscribe(5, "u", durable="new"), native.Subscribe(6, from_sequence=1))
    news = other.take()
    assert (news[0].name, news[0].subscription) == ("journal-failed", 5)
    assert news[1].id == 6 and news[2].text == "1"  # what is safe can be read
    assert [row["name"] for row in world.again().node.report("journal", 9)["rows"]] == [
        "all",
        "box",
    ]


def test_a_full_disk_refuses_until_there_is_room() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("t")
    client = world.connect("p")
    client.send(letter(1))
    world.fail(errno.ENOSPC, "create")
    client.send(letter(2), publication("goes on"))
    assert refusals(client) == [("disk-full", 2, 1)]
    assert texts(live) == ["goes on"]
    world.advance(2000)
    assert world.asked is not None  # the same again
    world.persist()
    assert client.take() == [confirmed(1, takers=2)] and texts(live) == ["1"]
    client.send(letter(2))
    world.persist()
    assert client.take() == [confirmed(4, takers=2)]
    levels = [note.level for note in world.notes if "room" in note.text]
    assert levels == ["error", "info"]


def test_what_is_known_is_not_refused_though_the_disk_is_full() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1))
    world.persist()
    client.send(letter(2))
    world.fail(errno.ENOSPC, "write")
    client.take()
    client.send(letter(1), letter(3))
    assert refusals(client) == [("disk-full", 4, 1)]
    world.advance(2000)
    world.persist()
    assert client.take() == [confirmed(2), confirmed(3, takers=0, known=True)]


# --------------------------------------------------------------------- leaving in order


def test_unsubscribed_comes_after_what_was_on_its_way() -> None:
    world = KeepingWorld(ALL)
    client = world.subscriber("t")
    client.send(letter(1), native.Unsubscribe(1), letter(2))
    assert client.take() == []
    world.persist()
    first, *rest = client.take()
    assert first.text == "1"
    assert rest == [confirmed(1, takers=2), confirmed(2), native.Unsubscribed(1)]


def test_unsubscribed_comes_after_what_nobody_keeps() -> None:
    world = KeepingWorld()
    client = world.subscriber("t")
    client.send(letter("1"), native.Unsubscribe(1))
    first, *rest = client.take()
    assert first.text == "1"
    assert rest == [confirmed(1), native.Unsubscribed(1)]


def test_bye_waits_for_the_last_confirmation() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1), letter(2), native.Bye())
    assert not client.closed
    world.persist()
    assert client.closed == "the client left"
    assert client.take() == [confirmed(2, 2)]


def test_bye_does_not_lose_the_confirmation_of_what_nobody_keeps() -> None:
    world = KeepingWorld()
    client = world.connect("p")
    client.send(letter("without a sequence"), native.Bye())
    assert client.closed == "the client left"
    assert client.take() == [confirmed(1, takers=0)]


def test_nothing_counts_after_bye() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("#")
    client = world.connect("p")
    client.send(
        letter(1),
        native.Bye(),
        letter(2),
        publication("late"),
        native.Subscribe(1, "#"),
        native.Subscribe(2, "#", durable="box"),
        native.Bye(),
    )
    client.send(letter(3), native.Subscribe(3, "#"))
    world.persist()
    assert client.take() == [confirmed(1, takers=2)] and client.closed
    assert texts(live) == ["1"]
    assert world.node.report("journal", 9)["mailboxes"] == 0


def test_a_client_that_left_may_come_again_before_all_is_safe() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1), native.Bye())
    again = world.connect("p")
    again.send(letter(1), letter(2))
    world.persist()
    assert client.take() == [confirmed(1)] and client.closed == "the client left"
    assert again.take() == [confirmed(1, takers=0, known=True), confirmed(2)]


def test_a_stop_lets_those_go_who_said_good_bye() -> None:
    world = KeepingWorld(ALL)
    client = world.connect("p")
    client.send(letter(1), native.Bye())
    world.stop()
    assert not client.closed
    world.persist()
    assert client.take() == [confirmed(1)] and client.closed
    assert world.stopped == 1


def test_a_publisher_that_is_gone_loses_nothing() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("t")
    client = world.connect("p")
    client.send(letter(1))
    client.leave()
    world.persist()
    assert texts(live) == ["1"]
    again = world.connect("p")
    again.send(letter(1))
    assert again.take() == [confirmed(1, takers=0, known=True)]


def test_a_subscriber_that_left_while_messages_were_on_their_way() -> None:
    world = KeepingWorld(ALL)
    live = world.subscriber("t")
    client = world.connect("p")
    client.send(letter(1))
    live.leave()
    world.persist()
    assert client.take() == [confirmed(1, takers=2)]
    assert world.counters["dropped"] == {"disconnected": 1}


# -------------------------------------------------------------------------- backpressure


def test_publishers_wait_while_much_is_on_its_way_to_the_disk() -> None:
    world = KeepingWorld(
        ALL, journal_pending_bytes=4000, window_bytes_first=5000, window_bytes=5000
    )
    client = world.connect("p")
    credit = 5000
    sent = number = 0
    while not client.held:  # it has credit for some, and is not read from when it has none
        number += 1
        assert number < 20
        message = native.encode(letter("x" * 900, sequence=number))
        assert sent < credit + len(message)
        sent += len(message)
        client.send(message)
        credit = max([credit, *(one.bytes for one in client.take())])
    assert world.node._storage is not None and world.node._storage.pressed
    world.persist()
    assert not client.held
    (granted,) = [one for one in client.take() if isinstance(one, native.Credit)]
    assert granted.bytes > credit


def test_who_has_nothing_recorded_does_not_wait_for_the_disk() -> None:
    world = KeepingWorld(ALL, journal_pending_bytes=1000, window_bytes_first=2000)
    live = world.subscriber("u")
    client, other = world.connect("p"), world.connect("o")
    for number in range(1, 5):
        client.send(letter("x" * 900, sequence=number))
    assert client.held
    for number in range(20):
        other.send(publication(f"{number} " + "x" * 900, "u"))
    assert len(texts(live)) == 20
    assert not other.held
    world.persist()
    assert not client.held


def test_a_full_disk_holds_up_nobody() -> None:
    world = KeepingWorld(ALL, journal_pending_bytes=1000, window_bytes_first=2000)
    live = world.subscriber("u")
    client, other = world.connect("p"), world.connect("o")
    client.send(*(letter("x" * 900, sequence=number) for number in range(1, 5)))
    world.fail(errno.ENOSPC, "create")
    for number in range(20):
        other.send(publication(f"{number} " + "x" * 900, "u"))
        client.send(letter("x" * 900, sequence=10 + number))
    assert len(texts(live)) == 20
    assert not client.held and not other.held


def test_who_is_one_publisher_too_many_is_refused_until_another_leaves() -> None:
    world = KeepingWorld(ALL, publishers_remembered=1)
    first, second = world.connect("first"), world.connect("second")
    first.send(letter(1))
    world.persist()
    assert confirmed(1) in first.take()
    noted = len(world.notes)
    second.send(letter(1), letter(2))
    second.send(letter(3))
    assert refusals(second) == [("limit-exceeded", 1, 2), ("limit-exceeded", 3, 1)]
    assert ["publishers_remembered" in note.text for note in world.notes[noted:]] == [True]
    assert world.counters["refused"] == 3
    first.leave()
    second.send(letter(1), letter(1))
    world.persist()
    assert [one for one in second.take() if isinstance(one, native.Confirmed)] == [
        confirmed(4),
        confirmed(5, takers=0, known=True),
    ]
