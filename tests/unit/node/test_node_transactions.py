"""Checks transactions of a node: all of one counts, or nothing, and nobody sees it before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Client, KeepingWorld, World, publication
from queues import command, got, letter, make, member, options, publish, row, settle
from transacting import (
    COMMITTED,
    ROLLED_BACK,
    UNKNOWN,
    accept,
    answer,
    ask,
    commit,
    frames,
    letters,
    part,
    passing,
)

from regraft.node.storage import Retained
from regraft.wire import native
from regraft.wire.native import Decision, Outcome


def waiting(world: KeepingWorld, name: str) -> int:
    found: int = row(world, name)["waiting"]
    return found


def test_publications_and_settlements_count_together() -> None:
    world = KeepingWorld()
    make(world, "in", "in")
    make(world, "out", "out")
    publish(world, "a", "b", topic="in")
    client = world.reader("in", "in", options=options(), client_id="worker")
    assert got(client) == ["a", "b"]
    client.send(
        part(1, letters("A", "B", topic="out"), settle=accept(1, 2)), native.Decide(1, parts=1)
    )
    assert client.take() == []  # it is not safe yet
    reader = world.connect()
    reader.send(native.Subscribe(1, durable="out", existing=True))
    assert got(reader) == []
    world.persist()
    assert answer(client) == native.Decided(1, "", COMMITTED, messages=2)
    assert got(reader) == ["A", "B"]
    assert waiting(world, "in") == 0
    again = world.again()
    assert (waiting(again, "in"), waiting(again, "out")) == (0, 2)


def test_nothing_is_seen_before() -> None:
    world = KeepingWorld([Retained("s", "t")])
    make(world)
    live = world.subscriber("t")
    client = world.connect("me")
    client.send(part(1, letters("a"), passing=passing("p")))
    world.persist()
    assert client.take() == [] and live.take() == [] and waiting(world, "q") == 0
    client.send(native.Decide(1, parts=1))
    assert live.take() == []
    world.persist()
    assert got(live) == ["a", "p"]  # what is not persistent comes once the rest is safe
    assert answer(client).state == COMMITTED and waiting(world, "q") == 1


def test_rolled_back_by_the_client() -> None:
    world = KeepingWorld()
    make(world)
    publish(world, "x", topic="in")
    client = world.connect("me")
    client.send(part(1, letters("a"), passing=passing("p")))
    assert ask(world, client, Decision.ROLLBACK, 1) == native.Decided(1, "", ROLLED_BACK)
    assert waiting(world, "q") == 0
    refused = ask(world, client, Decision.ASK, 1)
    assert refused.state == ROLLED_BACK
    assert world.node.report("journal", 1)["transactions_rolled_back"] == 1


@pytest.mark.parametrize("polite", [False, True])
def test_rolled_back_when_the_client_leaves(polite: bool) -> None:
    world = KeepingWorld()
    make(world, "in", "in")
    make(world)
    publish(world, "x", topic="in")
    client = member(world, "in", "in", client_id="me")
    client.send(part(1, letters("a"), settle=accept(1)))
    if polite:
        client.send(native.Bye())
    else:
        client.leave()
    world.persist()
    assert waiting(world, "q") == 0
    assert got(member(world, "in", "in")) == ["x"]
    transactions = world.node._control.transactions
    assert transactions is not None and transactions._size == 0 and not transactions._clients


def test_rolled_back_when_the_node_dies_before_it_is_safe() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    client.send(part(1, letters("a")), native.Decide(1, parts=1))
    again = world.again(power=True)
    assert waiting(again, "q") == 0
    client = again.connect("me")
    assert ask(again, client, Decision.ASK, 1).state == ROLLED_BACK
    assert commit(again, client, part(1, letters("b"))).state == COMMITTED


def test_a_commit_is_done_once() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    assert commit(world, client, part(3, letters("a"))).messages == 1
    assert commit(world, client, part(3, letters("a"))).known
    assert ask(world, client, Decision.ASK, 3) == native.Decided(3, "", COMMITTED, known=True)
    assert ask(world, client, Decision.ROLLBACK, 3).state == COMMITTED  # too late
    client.leave()
    again = world.again()
    client = again.open()
    client.send(native.PREFACE, native.Hello(1, 1, client_id="me"))
    (welcome,) = client.take()
    assert welcome.serial == 3
    assert ask(again, client, Decision.COMMIT, 3).known
    assert ask(again, client, Decision.ASK, 2).state == ROLLED_BACK
    assert waiting(again, "q") == 1


def test_an_answer_waits_until_what_it_says_is_safe() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    client.send(part(1, letters("a")), native.Decide(1, parts=1))
    client.leave()
    client = world.connect("me")
    client.send(native.Decide(1, decision=Decision.ASK))
    assert client.take() == []
    world.persist()
    assert answer(client).state == COMMITTED


def test_it_is_forgotten_in_the_end() -> None:
    world = KeepingWorld()
    client = world.connect("me")
    assert commit(world, client, part(70_000, letters("a"))).state == COMMITTED
    found = ask(world, client, Decision.ASK, 1)
    assert (found.state, found.name) == (UNKNOWN, "sequence-too-old")


@pytest.mark.parametrize("restart", ["", "journal", "snapshot"])
def test_who_was_forgotten_is_not_told_that_it_was_rolled_back(restart: str) -> None:
    world = KeepingWorld(publisher_idle_s=10)
    client = world.connect("me")
    assert ask(world, client, Decision.ASK, 1).state == ROLLED_BACK  # nobody was forgotten yet
    assert commit(world, client, part(1, letters("a"))).state == COMMITTED
    client.leave()
    for _ in range(100):
        world.advance(1000)
        world.persist()
    if restart == "snapshot":
        assert world.journal.write_snapshot(world.now.wall_us)
        world.step()
        world.persist()
    if restart:
        world = world.again(publisher_idle_s=10)
    client = world.connect("me")
    assert ask(world, client, Decision.ASK, 1).state == UNKNOWN
    assert commit(world, client, part(2, letters("a"))).state == COMMITTED
    assert ask(world, client, Decision.ASK, 2).state == COMMITTED
    assert ask(world, client, Decision.ASK, 3).state == ROLLED_BACK


def test_it_outlives_a_snapshot() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    assert commit(world, client, part(5, letters("a"))).state == COMMITTED
    client.leave()
    world.persist()
    assert world.journal.write_snapshot(world.now.wall_us)
    world.step()
    world.persist()
    again = world.again()
    assert ask(again, again.connect("me"), Decision.ASK, 5).state == COMMITTED
    assert ask(again, again.connect("you"), Decision.ASK, 5).state == ROLLED_BACK


def test_several_topics_priorities_and_streams() -> None:
    world = KeepingWorld([Retained("s", "a"), Retained("t", "#")])
    make(world, "q", "b")
    live = world.subscriber("a", "b")
    client = world.connect("me")
    content = frames(
        letter("1", "a"), letter("2", "b", priority=9), letter("3", "a"), letter("4", "b")
    )
    assert commit(world, client, part(1, content)).messages == 4
    assert got(live) == ["1", "2", "3", "4"]
    assert got(member(world, "q", "b")) == ["2", "4"]
    replay = world.connect()
    replay.send(native.Subscribe(1, stream="t", from_sequence=1))
    assert got(replay) == ["1", "2", "3", "4"]


def test_parts_may_be_cut_anywhere() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    data = letters("first", "second", "third")
    pieces = [part(1, data[at : at + 7]) for at in range(0, len(data), 7)]
    assert commit(world, client, *pieces).messages == 3
    assert got(member(world)) == ["first", "second", "third"]


def test_transactions_of_a_session_side_by_side() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    client.send(part(1, letters("a")), part(2, letters("b")), part(1, letters("c")))
    client.send(native.Decide(2, parts=1))
    world.persist()
    assert answer(client).serial == 2
    client.send(native.Decide(1, parts=2))
    world.persist()
    assert answer(client) == native.Decided(1, "", COMMITTED, messages=2)
    assert got(member(world)) == ["b", "a", "c"]


def test_an_empty_one() -> None:
    world = KeepingWorld()
    client = world.connect("me")
    client.send(native.Decide(1))
    world.persist()
    assert answer(client) == native.Decided(1, "", COMMITTED)


# ------------------------------------------------------------------------ subscriptions


def wanted(name: str, pattern: str = "t", **more: Any) -> native.Subscribe:
    return native.Subscribe(0, pattern, durable=name, **more)


def test_durable_subscriptions_are_made_and_removed() -> None:
    world = KeepingWorld()
    make(world, "old", "t")
    publish(world, "x")
    client = world.connect("me")
    told = commit(
        world,
        client,
        part(
            1,
            letters("a"),
            subscribe=(wanted("new", options=options()), wanted("some", "t", selector="n > 5")),
            remove=("old",),
        ),
    )
    assert told.state == COMMITTED
    names = {one["name"]: one["owner"] for one in command(world, "queue-list")["queues"]}
    assert names == {"new": "me", "some": "me"}
    again = world.again()
    assert waiting(again, "new") == 1  # it was there when the message was published
    assert waiting(again, "some") == 0
    assert command(again, "queue-show", name="old") == {"error": "unknown-mailbox"}


def test_a_subscription_that_is_there_already() -> None:
    world = KeepingWorld()
    make(world, "q", "t")
    client = world.connect("me")
    same = part(1, subscribe=(wanted("q", options=options()),))
    assert commit(world, client, same).state == COMMITTED
    told = commit(world, client, part(2, letters("a"), subscribe=(wanted("q", "other"),)))
    assert (told.state, told.name) == (ROLLED_BACK, "mailbox-differs")
    assert waiting(world, "q") == 0


# --------------------------------------------------------------------------- refusals


def refused(world: KeepingWorld, client: Client, *parts: native.Transact) -> str:
    told = commit(world, client, *parts)
    assert told.state == ROLLED_BACK and told.text
    return told.name


DAMAGED = bytearray(letters("abc"))
DAMAGED[-1] ^= 1

BAD: list[tuple[str, dict[str, Any]]] = [
    ("bad-message", {"messages": b"abc"}),
    ("bad-message", {"messages": letters("a")[:-1]}),
    ("bad-message", {"messages": bytes(DAMAGED)}),
    ("bad-message", {"messages": passing("a")}),
    ("bad-message", {"passing": letters("a")}),
    ("bad-message", {"messages": native.encode(native.Heartbeat())}),
    ("bad-topic", {"messages": letters("a", topic="a/+/b")}),
    ("not-supported", {"messages": letters("a", sequence=1)}),
    ("not-supported", {"messages": letters("a", to="somebody")}),
    ("not-supported", {"passing": frames(publication("a", deliver_at_us=1 << 60))}),
    ("not-supported", {"settle": (native.Settle(1, (1, 1), outcome=Outcome.REJECT),)}),
    ("not-supported", {"settle": (native.Settle(1, (1, 1), outcome=Outcome.RELEASE),)}),
    ("not-supported", {"subscribe": (native.Subscribe(1, "t"),)}),
    ("not-supported", {"subscribe": (native.Subscribe(1, "t", durable="a", from_sequence=1),)}),
    ("bad-message", {"settle": (native.Settle(1, (1,)),)}),
    ("unknown-subscription", {"settle": accept(1, subscription=9)}),
    ("not-waiting", {"settle": accept(1, 7)}),
    ("bad-pattern", {"subscribe": (wanted("$own"),)}),
    ("bad-pattern", {"subscribe": (wanted("x", "a/#/b"),)}),
    ("bad-selector", {"subscribe": (wanted("x", selector="n >"),)}),
    ("bad-configuration", {"subscribe": (wanted("x", options=b"{"),)}),
    ("subscription-in-use", {"subscribe": (wanted("x"), wanted("x"))}),
    ("unknown-mailbox", {"remove": ("nobody",)}),
    ("mailbox-in-use", {"remove": ("in",)}),
]


@pytest.mark.parametrize(("name", "what"), BAD, ids=lambda one: str(one)[:50])
def test_what_is_refused(name: str, what: dict[str, Any]) -> None:
    world = KeepingWorld()
    make(world)
    make(world, "in", "in")
    publish(world, "x", topic="in")
    client = member(world, "in", "in", client_id="me")
    before = world.journal.recorder.position
    # A good part in front of it, and one behind it, are of no use.
    assert refused(world, client, part(1, letters("a")), part(1, **what), part(1)) == name
    assert world.journal.recorder.position == before
    assert waiting(world, "q") == 0 and waiting(world, "in") == 1
    assert not client.closed
    told = commit(world, client, part(2, letters("b"), settle=accept(1)))
    assert told.state == COMMITTED and waiting(world, "q") == 1


def test_what_a_session_no_longer_holds() -> None:
    world = KeepingWorld()
    make(world, "in", "in", lease_ms=1000)
    make(world)
    publish(world, "x", topic="in")
    client = world.reader("in", "in", existing=True, client_id="me")
    other = world.reader("in", "in", existing=True)
    assert got(client) == ["x"]
    client.send(part(1, letters("a"), settle=accept(1)))
    world.advance(1500)
    world.persist()
    assert got(other) == ["x"]
    client.send(native.Decide(1, parts=1))
    world.persist()
    assert answer(client).name == "not-waiting"
    settle(world, other, 1)
    assert (waiting(world, "in"), waiting(world, "q")) == (0, 0)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("transaction_bytes", 50), ("transactions_bytes_total", 50), ("transaction_messages", 2)],
)
def test_limits_of_one(limit: str, value: int) -> None:
    world = KeepingWorld(**{limit: value})
    make(world)
    client = world.connect("me")
    assert refused(world, client, part(1, letters("a", "b", "c"))) == "limit-exceeded"
    assert refused(world, client, part(2, letters("a")), part(2, letters("b", "c"))) == (
        "limit-exceeded"
    )
    assert commit(world, client, part(3, letters("a"))).state == COMMITTED
    assert waiting(world, "q") == 1
    transactions = world.node._control.transactions
    assert transactions is not None and transactions._size == 0


def test_settlements_count_as_messages() -> None:
    world = KeepingWorld(transaction_messages=3)
    client = world.connect("me")
    huge = native.Settle(1, (1, 1 << 60))
    assert refused(world, client, part(1, settle=(huge,))) == "limit-exceeded"


def test_too_many_at_the_same_time() -> None:
    world = KeepingWorld(transactions_per_session=2)
    make(world)
    client = world.connect("me")
    client.send(part(1, letters("a")), part(2, letters("b")))
    assert refused(world, client, part(3, letters("c"))) == "limit-exceeded"
    client.send(native.Decide(1, parts=1))
    world.persist()
    assert answer(client).state == COMMITTED
    assert commit(world, client, part(4, letters("d"))).state == COMMITTED


def test_one_that_takes_too_long() -> None:
    world = KeepingWorld(transaction_ms=5000)
    make(world)
    client = world.connect("me")
    client.send(part(1, letters("a")))
    world.advance(4000)
    client.send(part(2, letters("b")))
    world.advance(2000)
    client.send(native.Decide(1, parts=1))
    world.persist()
    told = answer(client)
    assert (told.state, told.name) == (ROLLED_BACK, "rolled-back") and "transaction_ms" in told.text
    client.send(native.Decide(2, parts=1))
    world.persist()
    assert answer(client).state == COMMITTED
    assert got(member(world)) == ["b"]


def test_parts_that_are_missing() -> None:
    world = KeepingWorld()
    client = world.connect("me")
    client.send(part(1, letters("a")), native.Decide(1, parts=2), native.Decide(9, parts=1))
    world.persist()
    told = [one for one in client.take() if isinstance(one, native.Decided)]
    assert [(one.state, one.name) for one in told] == [(ROLLED_BACK, "rolled-back")] * 2


def test_a_full_mailbox_refuses_all_of_it() -> None:
    world = KeepingWorld()
    make(world, "q", "t", quota_messages=1)
    make(world, "other", "u")
    publish(world, "x")
    publish(world, "y")
    assert row(world)["full"]
    client = world.connect("me")
    both = part(1, frames(letter("a", "u"), letter("b", "t")))
    assert refused(world, client, both) == "mailbox-full"
    assert waiting(world, "other") == 0
    assert commit(world, client, part(2, letters("a", topic="u"))).state == COMMITTED


def test_a_disk_that_failed() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    client.send(part(1, letters("a")), native.Decide(1, parts=1))
    world.fail()
    told = answer(client)
    assert (told.state, told.name) == (UNKNOWN, "journal-failed")
    client.send(part(2, letters("a")), native.Decide(2, parts=1))
    assert answer(client).name == "journal-failed"


def test_a_node_without_a_journal() -> None:
    world = World()
    client = world.connect("me")
    client.send(part(1, letters("a")), native.Decide(1, parts=1))
    (told,) = client.take()
    assert (told.state, told.name) == (ROLLED_BACK, "not-supported")


def test_who_may_not_publish() -> None:
    world = KeepingWorld()
    transactions = world.node._control.transactions
    assert transactions is not None

    def authorize(principal: str, action: str, topic: str) -> bool:
        return topic != "secret"

    transactions._inquiry._authorize = authorize
    client = world.connect("me")
    assert refused(world, client, part(1, letters("a", topic="secret"))) == "not-authorized"
    assert refused(world, client, part(2, subscribe=(wanted("x", "secret"),))) == "not-authorized"


def test_delayed_messages() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    due_us = world.now.wall_us + 5_000_000
    later = frames(letter("now"), letter("later", deliver_at_us=due_us))
    assert commit(world, client, part(1, later)).state == COMMITTED
    reader = member(world)
    assert got(reader) == ["now"]
    world.advance(6000)
    world.persist()
    assert got(reader) == ["later"]


def test_expired_messages_are_dropped() -> None:
    world = KeepingWorld()
    make(world)
    client = world.connect("me")
    old = letter("old", expiration_us=1)
    assert commit(world, client, part(1, frames(old, letter("new")))).state == COMMITTED
    assert got(member(world)) == ["new"]


SMALL = {
    "frame_bytes": 4096,
    "control_frame_bytes": 4096,
    "selector_bytes": 1024,
    "segment_bytes": 16_384,
}


def test_a_large_one_spans_segments() -> None:
    world = KeepingWorld(**SMALL)
    make(world)
    client = world.connect("me")
    bodies = [f"{n:04}" + "x" * 500 for n in range(100)]
    data = letters(*bodies)
    pieces = [part(1, data[at : at + 3000]) for at in range(0, len(data), 3000)]
    assert commit(world, client, *pieces).messages == 100
    assert len(world.journal.segments) > 3
    assert got(member(world, in_flight=200)) == bodies
    again = world.again(**SMALL)
    assert waiting(again, "q") == 100


def test_the_journal_says_how_many() -> None:
    world = KeepingWorld()
    client = world.connect("me")
    commit(world, client, part(1, letters("a")))
    client.send(part(2, letters("a")))
    asked = world.connect()
    asked.send(native.Inspect("journal"))
    (found,) = asked.take()
    counters = json.loads(found.json)
    assert counters["transactions_committed"] == 1 and counters["transactions_open"] == 1
    assert counters["transactions_in_doubt"] == 0
