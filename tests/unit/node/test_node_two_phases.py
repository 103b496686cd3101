"""Checks transactions of two phases: what is prepared waits for its coordinator, come what may."""

from __future__ import annotations

from typing import Any

import pytest
from harness import KeepingWorld
from queues import command, counted, got, make, member, options, publish, row
from transacting import (
    COMMITTED,
    PREPARED,
    ROLLED_BACK,
    UNKNOWN,
    accept,
    ask,
    commit,
    letters,
    part,
    passing,
    prepare,
)

from regraft.wire import native
from regraft.wire.native import Decision


def waiting(world: KeepingWorld, name: str) -> int:
    found: int = row(world, name)["waiting"]
    return found


def in_doubt(world: KeepingWorld) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command(world, "tx-list")["transactions"]
    return found


def a_world(**more: int) -> KeepingWorld:
    world = KeepingWorld(**more)
    make(world, "in", "in")
    make(world, "out", "out")
    publish(world, "a", "b", "c", topic="in")
    return world


def prepared(world: KeepingWorld, gid: str = "g1") -> native.Decided:
    """One that settles a and b, and publishes A and B, prepared by a client that dies then."""
    client = member(world, "in", "in", client_id="worker", in_flight=2)
    assert got(client) == ["a", "b"]
    content = letters("A", "B", topic="out")
    told = prepare(world, client, gid, part(1, content, settle=accept(1, 2)))
    client.leave()
    world.persist()
    return told


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("snapshot", [False, True])
def test_committed_by_another(restarts: int, snapshot: bool) -> None:
    world = a_world()
    assert prepared(world) == native.Decided(1, "g1", PREPARED)
    for _ in range(restarts):
        if snapshot:
            assert world.journal.write_snapshot(world.now.wall_us)
            world.step()
            world.persist()
        world = world.again(power=True)
    assert waiting(world, "out") == 0
    reader = member(world, "in", "in")
    assert got(reader) == ["c"]  # what the transaction settles is nobody else's
    (doubtful,) = in_doubt(world)
    assert doubtful["gid"] == "g1" and doubtful["client"] == "worker"
    assert (doubtful["messages"], doubtful["settles"]) == (2, 2)
    other = world.connect("another")
    told = ask(world, other, Decision.COMMIT, gid="g1")
    assert (told.state, told.messages) == (COMMITTED, 2)
    assert got(member(world, "out", "out")) == ["A", "B"]
    assert waiting(world, "in") == 1 and in_doubt(world) == []
    world = world.again(power=True)
    assert waiting(world, "in") == 1 and waiting(world, "out") == 2
    assert got(member(world, "in", "in")) == ["c"]
    told = ask(world, world.connect(), Decision.COMMIT, gid="g1")
    assert (told.state, told.known) == (COMMITTED, True)


@pytest.mark.parametrize("restart", [False, True])
def test_rolled_back_by_another(restart: bool) -> None:
    world = a_world()
    prepared(world)
    world = world.again() if restart else world
    reader = member(world, "in", "in")
    assert got(reader) == ["c"]
    assert ask(world, world.connect(), Decision.ROLLBACK, gid="g1").state == ROLLED_BACK
    assert counted(reader) == [("a", 1), ("b", 1)]  # it comes again, as something that was tried
    assert waiting(world, "out") == 0 and in_doubt(world) == []
    world = world.again()
    assert waiting(world, "in") == 3
    told = ask(world, world.connect(), Decision.COMMIT, gid="g1")
    assert (told.state, told.known) == (ROLLED_BACK, True)


def test_rolled_back_before_anybody_reads_after_a_restart() -> None:
    world = a_world()
    prepared(world)
    world = world.again()
    assert ask(world, world.connect(), Decision.ROLLBACK, gid="g1").state == ROLLED_BACK
    assert sorted(got(member(world, "in", "in"))) == ["a", "b", "c"]  # each of them once


def test_prepared_is_said_once_it_is_safe() -> None:
    world = a_world()
    client = world.connect("me")
    client.send(part(1, letters("A", topic="out")), native.Decide(1, "g", Decision.PREPARE, 1))
    assert client.take() == []
    world.persist()
    assert [one.state for one in client.take()] == [PREPARED]
    client.send(part(2, letters("A", topic="out")), native.Decide(2, "h", Decision.PREPARE, 1))
    lost = world.again(power=True)
    assert [one["gid"] for one in in_doubt(lost)] == ["g"]
    assert ask(lost, lost.connect("me"), Decision.ASK, gid="h").state == UNKNOWN


def test_asked_again() -> None:
    world = a_world()
    client = world.connect("me")
    assert prepare(world, client, "g", part(1, letters("A", topic="out"))).state == PREPARED
    assert prepare(world, client, "g").state == PREPARED  # the answer was lost
    assert ask(world, client, Decision.ASK, gid="g").state == PREPARED
    told = prepare(world, client, "g", part(2, letters("B", topic="out")))
    assert told.name == "bad-message" and told.state == PREPARED  # the one that was there before
    assert ask(world, client, Decision.COMMIT, gid="g").state == COMMITTED
    told = prepare(world, client, "g", part(3, letters("B", topic="out")))
    assert told.name == "bad-message" and told.state == ROLLED_BACK
    assert got(member(world, "out", "out")) == ["A"]


@pytest.mark.parametrize("gid", ["", "a\nb", "x" * 201])
def test_names(gid: str) -> None:
    world = a_world()
    client = world.connect("me")
    told = prepare(world, client, gid, part(1, letters("A", topic="out")))
    assert (told.state, told.name) == (ROLLED_BACK, "bad-message")


def test_one_that_nobody_knows() -> None:
    world = a_world()
    client = world.connect("me")
    for decision in (Decision.COMMIT, Decision.ROLLBACK):
        told = ask(world, client, decision, gid="g")
        assert (told.state, told.name) == (UNKNOWN, "unknown-transaction")
    assert ask(world, client, Decision.ASK, gid="g").state == UNKNOWN


def test_by_hand() -> None:
    world = a_world()
    prepared(world, "one")
    assert command(world, "tx-commit", gid="one")["state"] == "committed"
    assert any("by hand" in note.text for note in world.notes)
    assert command(world, "tx-commit", gid="one")["known"]
    assert command(world, "tx-rollback", gid="two") == {"error": "unknown-transaction"}
    assert command(world, "tx-rollback") == {"error": "bad-message"}
    assert command(world, "tx-rollback", gid=5) == {"error": "bad-message"}
    assert waiting(world, "out") == 2


def test_limits() -> None:
    world = KeepingWorld(transactions_prepared=1, transactions_prepared_bytes=100)
    make(world, "out", "out")
    client = world.connect("me")
    told = prepare(world, client, "large", part(1, letters("x" * 100, topic="out")))
    assert told.name == "limit-exceeded" and "transactions_prepared_bytes" in told.text
    assert prepare(world, client, "one", part(2, letters("x", topic="out"))).state == PREPARED
    told = prepare(world, client, "two", part(3, letters("x", topic="out")))
    assert told.name == "limit-exceeded" and "transactions_prepared" in told.text
    ask(world, client, Decision.ROLLBACK, gid="one")
    assert prepare(world, client, "two", part(4, letters("x", topic="out"))).state == PREPARED


def test_what_does_not_fit_into_a_segment() -> None:
    world = KeepingWorld(segment_bytes=32_768)
    client = world.connect("me")
    data = letters(*("x" * 1000 for _ in range(28)))
    parts = [part(1, data[at : at + 10_000]) for at in range(0, len(data), 10_000)]
    told = prepare(world, client, "g", *parts)
    assert told.name == "limit-exceeded" and "segment_bytes" in told.text
    assert commit(world, client, *(part(2, one.messages) for one in parts)).state == COMMITTED


def test_who_may_decide() -> None:
    world = a_world()
    client = world.connect("me")
    prepare(world, client, "g", part(1, letters("A", topic="out")))
    transactions = world.node._control.transactions
    assert transactions is not None
    transactions._authorize = lambda principal, action, topic: action != "administer"
    told = ask(world, world.connect("you"), Decision.COMMIT, gid="g")
    assert (told.name, told.state) == ("not-authorized", PREPARED)
    assert ask(world, client, Decision.COMMIT, gid="g").state == COMMITTED


def test_a_full_mailbox_does_not_stop_what_was_promised() -> None:
    world = KeepingWorld()
    make(world, "out", "out", quota_messages=1)
    client = world.connect("me")
    prepare(world, client, "g", part(1, letters("A", "B", topic="out")))
    publish(world, "x", topic="out")
    publish(world, "y", topic="out")
    assert row(world, "out")["full"]
    assert ask(world, client, Decision.COMMIT, gid="g").state == COMMITTED
    assert row(world, "out")["full"]
    assert commit(world, client, part(2, letters("C", topic="out"))).name == "mailbox-full"


def test_a_mailbox_that_was_removed_meanwhile() -> None:
    world = a_world()
    prepared(world)
    command(world, "queue-delete", name="in")
    assert ask(world, world.connect(), Decision.COMMIT, gid="g1").state == COMMITTED
    assert waiting(world, "out") == 2
    assert world.again()


def test_what_is_purged_and_sought_meanwhile() -> None:
    world = a_world()
    prepared(world)
    command(world, "queue-purge", name="in")
    assert waiting(world, "in") == 2
    assert ask(world, world.connect(), Decision.ROLLBACK, gid="g1").state == ROLLED_BACK
    assert counted(member(world, "in", "in")) == [("a", 1), ("b", 1)]


def test_subscriptions_and_passing_messages() -> None:
    world = a_world()
    live = world.subscriber("p")
    client = world.connect("me")
    wanted = native.Subscribe(0, "out", durable="new", options=options())
    told = prepare(
        world,
        client,
        "g",
        part(1, letters("A", topic="out"), subscribe=(wanted,), remove=("in",),
             passing=passing("P", topic="p")),
    )  # fmt: skip
    assert told.state == PREPARED and live.take() == []
    (doubtful,) = in_doubt(world)
    assert (doubtful["makes"], doubtful["removes"]) == (["new"], ["in"])
    ask(world, client, Decision.COMMIT, gid="g")
    assert got(live) == ["P"]
    assert waiting(world, "new") == 1
    assert command(world, "queue-show", name="in") == {"error": "unknown-mailbox"}


def test_a_disk_that_is_full_leaves_it_prepared() -> None:
    world = a_world()
    client = world.connect("me")
    prepare(world, client, "g", part(1, letters("A", topic="out")))
    other = world.connect()
    other.send(part(1, letters("x")), native.Decide(1, parts=1))
    world.fail(28, "write")
    told = ask_now(client, "g")
    assert (told.state, told.name) == (PREPARED, "disk-full")


def ask_now(client: Any, gid: str) -> native.Decided:
    client.take()
    client.send(native.Decide(gid=gid))
    (told,) = client.take()
    assert isinstance(told, native.Decided)
    return told


def test_messages_that_came_back_before() -> None:
    world = a_world()
    first = member(world, "in", "in")
    assert got(first) == ["a", "b", "c"]
    first.leave()
    world.persist()
    prepared_again = member(world, "in", "in", client_id="worker")
    assert counted(prepared_again) == [("a", 1), ("b", 1), ("c", 1)]
    told = prepare(world, prepared_again, "g", part(1, settle=accept(1, 3)))
    assert told.state == PREPARED
    world = world.again(power=True)
    reader = member(world, "in", "in")
    assert counted(reader) == [("b", 1)]
    ask(world, world.connect(), Decision.ROLLBACK, gid="g")
    assert counted(reader) == [("a", 2), ("c", 2)]


def test_decided_ones_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.journal.state.DECIDED_MAX", 2)
    world = a_world()
    client = world.connect("me")
    for n in range(1, 5):
        prepare(world, client, f"g{n}", part(n, letters("A", topic="out")))
        ask(world, client, Decision.COMMIT, gid=f"g{n}")
    assert list(world.journal.state.decided) == ["g3", "g4"]
    assert ask(world, client, Decision.ASK, gid="g1").state == UNKNOWN


# ---------------------------------------------------------------- those that nobody decides


def warnings(world: KeepingWorld) -> list[str]:
    return [note.text for note in world.notes if note.level == "warning"]


def pass_time(world: KeepingWorld, seconds: int) -> None:
    for _ in range(seconds):
        world.advance(1000)
        world.persist()


def test_people_are_told_of_one_that_is_in_doubt_for_long() -> None:
    world = a_world(transaction_doubt_s=60)
    prepared(world)
    pass_time(world, 59)
    assert warnings(world) == []
    pass_time(world, 2)
    (text,) = warnings(world)
    assert "g1" in text and "worker" in text and "regraft tx list" in text
    pass_time(world, 200)
    assert len(warnings(world)) == 1 and len(in_doubt(world)) == 1
    world = world.again(transaction_doubt_s=60)
    pass_time(world, 1)
    assert len(warnings(world)) == 1  # whoever started it should know
    assert in_doubt(world)[0]["until_us"] == 0


@pytest.mark.parametrize("restart", [False, True])
def test_it_ends_where_it_has_a_time(restart: bool) -> None:
    world = a_world(in_doubt_s=100)
    prepared(world)
    (doubtful,) = in_doubt(world)
    assert doubtful["until_us"] == doubtful["since_us"] + 100_000_000
    pass_time(world, 60)
    prepared_too = world.connect("late")
    assert prepare(world, prepared_too, "g2", part(1, letters("C", topic="out"))).state == PREPARED
    if restart:
        world = world.again(power=True)
    pass_time(world, 50)
    assert [one["gid"] for one in in_doubt(world)] == ["g2"]
    assert any("g1" in text and "rolled back" in text for text in warnings(world))
    assert got(member(world, "in", "in", in_flight=3)) == ["a", "b", "c"]
    pass_time(world, 60)
    assert in_doubt(world) == []
    world = world.again(power=True)
    other = world.connect("coordinator")
    for decision in (Decision.ASK, Decision.COMMIT):
        assert ask(world, other, decision, gid="g1").state == ROLLED_BACK
    assert waiting(world, "out") == 0


def test_one_that_is_decided_in_time_is_left_alone() -> None:
    world = a_world(in_doubt_s=100, transaction_doubt_s=60)
    prepared(world)
    pass_time(world, 50)
    assert ask(world, world.connect("other"), Decision.COMMIT, gid="g1").state == COMMITTED
    pass_time(world, 200)
    assert warnings(world) == [] and waiting(world, "out") == 2
