"""Mailboxes that move to another node: with what they have not delivered, once, in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from custody_world import LIMITS, Few, Reader, letter

from regraft.simulate.teller import Teller
from regraft.wire import native, peers


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def publish(few: Few, number: int, first: int, last: int, **more: Any) -> None:
    """Somebody publishes at a node, and hears that it is safe."""
    guest = few.guest(number, f"ann-{first}")
    for body in bodies(first, last):
        guest.publish(letter("a/x", body, **more))
    few.world.advance(500)
    confirmed = sum(one.count for one in guest.controls if isinstance(one, native.Confirmed))
    assert confirmed == last - first
    guest.pipe.close()


def attach(few: Few, number: int, **how: Any) -> Reader:
    """Somebody reads the mailbox at a node."""
    reader = few.reader(number, f"reader-{few.world.ns}")
    reader.read(1, "box", "a/#", **how)
    few.world.advance(1500)
    return reader


def leave(few: Few, reader: Reader) -> None:
    reader.pipe.close()
    few.world.advance(100)


def read(few: Few, number: int, **how: Any) -> list[bytes]:
    """All that the mailbox has, at a node; it is settled."""
    reader = attach(few, number, **how)
    reader.settle(1)
    few.world.advance(500)
    leave(few, reader)
    return reader.bodies


def with_mailbox(few: Few, number: int, **how: Any) -> None:
    leave(few, attach(few, number, **how))


def errors(reader: Reader) -> list[str]:
    return [one.name for one in reader.controls if isinstance(one, native.Error)]


def row(few: Few, number: int, name: str = "box") -> dict[str, Any]:
    """What a node says of a mailbox."""
    reader = few.reader(number, f"looker-{few.world.ns}")
    reader.command("queue-show", name=name)
    few.world.advance(300)
    done = [one for one in reader.controls if isinstance(one, peers.Done)]
    leave(few, reader)
    return dict(json.loads(done[0].json)["queue"]) if done else {}


def test_a_mailbox_comes_with_what_waits_and_gets_what_is_published_later() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    publish(few, 0, 0, 10)
    publish(few, 2, 10, 20)
    reader = attach(few, 1, move=True)
    assert reader.bodies == bodies(0, 20) and errors(reader) == []
    publish(few, 0, 20, 25)
    publish(few, 1, 25, 30)
    publish(few, 2, 30, 35)
    few.world.advance(1000)
    assert reader.bodies == bodies(0, 35)
    reader.settle(1)
    few.world.advance(1000)
    assert few.waiting(2, "box") == 0 and few.waiting(1, "box") == 0
    assert row(few, 1)["moved_from"] == "node-2" and row(few, 2)["moved_to"] == "node-1"
    assert few.custody(2)["moves"][0]["waiting"] == 0


def test_who_reads_it_is_told_where_it_is_and_what_it_held_comes_as_tried_before() -> None:
    few = Few(3)
    first = attach(few, 2)
    publish(few, 0, 0, 6)
    few.world.advance(500)
    assert first.bodies == bodies(0, 6)
    second = attach(few, 1, move=True)
    assert errors(first) == ["mailbox-moved"]
    assert [(bytes(one.body), one.attempts) for one in second.got] == [
        (body, 1) for body in bodies(0, 6)
    ]
    again = attach(few, 2)
    assert errors(again) == ["mailbox-moved"] and again.got == []
    leave(few, second)
    assert read(few, 1) == bodies(0, 6)
    assert read(few, 1) == []


def test_a_mailbox_that_is_for_something_else_stays_where_it_is() -> None:
    few = Few(2)
    reader = attach(few, 1)
    for wanted in (("a/x", {}), ("a/#", {"selector": "n > 1"}), ("a/#", {"exact": True})):
        other = few.reader(0, f"other-{few.world.ns}")
        other.read(1, "box", wanted[0], move=True, **wanted[1])
        few.world.advance(1500)
        assert errors(other) == ["mailbox-differs"]
        leave(few, other)
    assert errors(reader) == [] and row(few, 1)["moved_to"] == ""
    publish(few, 0, 0, 3)
    assert reader.bodies == bodies(0, 3)


def test_what_was_settled_out_of_order_does_not_come_and_the_rest_does_once() -> None:
    few = Few(2)
    reader = attach(few, 0)
    publish(few, 1, 0, 20)
    few.world.advance(500)
    odd = tuple(number for one in range(2, 21, 2) for number in (one, one))
    reader.pipe.send(native.encode(native.Settle(1, odd, 1)))
    few.world.advance(200)
    leave(few, reader)
    publish(few, 0, 20, 24)
    assert read(few, 1, move=True) == [*bodies(0, 20)[::2], *bodies(20, 24)]
    few.world.advance(2000)
    assert few.waiting(0, "box") == 0
    assert not few.custody(0)["moves"][0]["waiting"] and few.custody(1)["missed"] == 0


def test_priorities_delays_and_attempts_come_along() -> None:
    few = Few(2)
    reader = attach(few, 0)
    publish(few, 0, 0, 2)
    publish(few, 0, 2, 4, priority=9)
    few.world.advance(300)
    assert reader.bodies == bodies(0, 4)
    later = native.Settle(1, (2, 2), 1, outcome=native.Outcome.RELEASE, delay_ms=20_000)
    reader.pipe.send(native.encode(later))
    few.world.advance(300)
    leave(few, reader)
    publish(few, 0, 4, 5)
    moved = attach(few, 1, move=True)
    got = [(bytes(one.body), one.attempts) for one in moved.got]
    assert sorted(got) == [(b"0", 1), (b"2", 1), (b"3", 1), (b"4", 0)]
    few.world.advance(20_000)
    assert [(bytes(one.body), one.attempts) for one in moved.got[4:]] == [(b"1", 1)]


def test_it_moves_on_and_back_and_wherever_it_is_asked_for_it_is_found() -> None:
    few = Few(3)
    with_mailbox(few, 0)
    publish(few, 1, 0, 3)
    publish(few, 2, 3, 6)
    with_mailbox(few, 1, move=True)
    publish(few, 1, 6, 9)
    with_mailbox(few, 2, move=True)  # node 0 says that it is at node 1
    publish(few, 0, 9, 12)
    with_mailbox(few, 0, move=True)
    publish(few, 2, 12, 15)
    few.world.advance(3000)
    assert read(few, 0) == bodies(0, 15)
    publish(few, 1, 15, 18)
    few.world.advance(2000)
    assert read(few, 2, move=True) == bodies(15, 18)
    assert read(few, 2) == []


@pytest.mark.parametrize("power", [False, True])
def test_whoever_dies_meanwhile_nothing_is_lost_and_nothing_comes_twice(power: bool) -> None:
    few = Few(3)
    with_mailbox(few, 0)
    at, got, published = 0, [], 0
    for round in range(9):
        publish(few, 2, published, published + 30, attributes={"padding": "." * 200})
        published += 30
        to = 1 - at
        reader = few.reader(to, f"reader-{round}")
        reader.read(1, "box", "a/#", move=True)
        few.world.advance((0, 1, 3, 5, 8, 12, 20, 40, 80)[round])
        few.kill(round % 2, power)
        few.world.advance(200)
        few.start(round % 2, 4000)
        if round % 3 == 0:
            few.kill(2, power)
            few.start(2, 3000)
        reader.pipe.close()
        few.world.advance(100)
        got += read(few, to, move=True)
        at = to
    few.world.advance(10_000)
    got += read(few, at)
    assert sorted(map(int, got)) == list(range(published))


def at_every_moment(few: Few, act: Callable[[], None], dies: int, ms: float) -> None:
    act()
    few.world.advance(ms)
    few.kill(dies, power=True)
    few.world.advance(300)
    few.start(dies, 4000)


@pytest.mark.parametrize("dies", [0, 1])
@pytest.mark.parametrize("ms", [0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15])
def test_both_ends_go_on_where_they_were(dies: int, ms: float) -> None:
    few = Few(2)
    with_mailbox(few, 0)
    publish(few, 0, 0, 20)
    asker = few.reader(1, "admin")
    at_every_moment(few, lambda: asker.command("queue-move", name="box"), dies, ms)
    publish(few, 0, 20, 30)
    few.world.advance(9000)
    assert read(few, 1, move=True) == bodies(0, 30)


def test_a_removed_mailbox_is_removed_where_it_came_from() -> None:
    few = Few(2)
    with_mailbox(few, 0)
    reader = attach(few, 1, move=True)
    reader.remove(1)
    few.world.advance(2000)
    assert row(few, 0) == {} and row(few, 1) == {}
    leave(few, reader)
    publish(few, 0, 0, 1)
    with_mailbox(few, 1)
    assert read(few, 1) == []


def test_a_move_that_nobody_answers_can_be_called_off() -> None:
    few = Few(2)
    with_mailbox(few, 0)
    publish(few, 0, 0, 3)
    few.kill(0)
    few.world.advance(2000)
    reader = attach(few, 1, move=True)
    few.world.advance(9000)
    assert errors(reader) == ["timed-out"]
    reader.command("queue-remove", name="box")
    few.world.advance(500)
    assert row(few, 1) == {}
    few.start(0, 4000)
    assert read(few, 0) == bodies(0, 3)


def test_a_move_that_was_asked_for_happens_when_the_old_home_is_back() -> None:
    few = Few(2)
    with_mailbox(few, 0)
    publish(few, 0, 0, 3)
    few.kill(0)
    few.world.advance(2000)
    leave(few, attach(few, 1, move=True))
    few.kill(1)
    few.start(1)
    few.start(0, 12_000)
    assert read(few, 1) == bodies(0, 3)


def test_what_cannot_move_is_refused_by_name() -> None:
    few = Few(3, diskless=(2,))
    with_mailbox(few, 0)
    stranger = few.reader(1, "stranger")
    stranger.command("queue-move", name="nowhere")
    stranger.read(2, "nowhere", "", existing=True, move=True)
    few.world.advance(1000)
    assert errors(stranger) == ["unknown-mailbox", "unknown-mailbox"]
    with_mailbox(few, 1, move=True)
    old = few.reader(0, "old")
    for what, more in (
        ("queue-purge", {}),
        ("queue-remove", {}),
        ("queue-rename", {"to": "other"}),
        ("queue-seek", {"sequence": 1}),
        ("queue-change", {"options": {"in_flight": 3}}),
    ):
        old.command(what, name="box", **more)
    few.world.advance(500)
    assert errors(old) == ["mailbox-moved"] * 5


def test_a_name_that_several_nodes_have_needs_the_node() -> None:
    few = Few(3)
    with_mailbox(few, 0)
    with_mailbox(few, 1)
    publish(few, 0, 0, 3)
    few.world.advance(1000)
    asker = few.reader(2, "asker")
    asker.read(1, "box", "a/#", move=True)
    few.world.advance(500)
    assert errors(asker) == ["mailbox-differs"]
    asker.command("queue-move", name="box", **{"from": "node-1"})
    few.world.advance(1500)
    assert read(few, 2) == bodies(0, 3)
    assert read(few, 0) == bodies(0, 3)


def test_at_its_new_home_it_can_be_renamed_purged_and_sought() -> None:
    few = Few(2)
    with_mailbox(few, 0)
    publish(few, 0, 0, 5)
    with_mailbox(few, 1, move=True)
    admin = few.reader(1, "admin")
    admin.command("queue-purge", name="box")
    admin.command("queue-rename", name="box", to="crate")
    admin.command("queue-seek", name="crate", sequence=3)
    few.world.advance(500)
    assert errors(admin) == []
    publish(few, 0, 5, 7)
    few.world.advance(1000)
    reader = few.reader(1, "reader")
    reader.read(1, "crate", "", existing=True)
    few.world.advance(1000)
    assert reader.bodies == [*bodies(2, 5), *bodies(5, 7)]
    few.kill(1)
    few.start(1)
    assert row(few, 1, "crate")["waiting"] == 5 and row(few, 1) == {}


def test_if_the_new_home_is_gone_for_good_what_it_had_not_taken_is_at_the_old_one() -> None:
    few = Few(3)
    with_mailbox(few, 0)
    with_mailbox(few, 1, move=True)
    few.kill(1)
    few.world.advance(2000)
    publish(few, 2, 0, 5)
    few.world.advance(1000)
    admin = few.reader(0, "admin")
    admin.command("custody-forget", home="node-1")
    few.world.advance(1000)
    assert errors(admin) == []
    assert read(few, 0) == bodies(0, 5)


def test_if_the_old_home_is_gone_for_good_the_new_one_takes_messages_itself() -> None:
    few = Few(3)
    with_mailbox(few, 0)
    publish(few, 0, 0, 3)
    with_mailbox(few, 1, move=True)
    few.kill(0)
    few.world.advance(2000)
    admin = few.reader(1, "admin")
    admin.command("custody-forget", home="node-0")
    few.world.advance(1000)
    publish(few, 2, 3, 6)
    few.world.advance(1000)
    assert read(few, 1) == bodies(0, 6)
    few.kill(1)
    few.start(1)
    publish(few, 2, 6, 8)
    few.world.advance(1000)
    assert read(few, 1) == bodies(6, 8)


def transact(few: Few, number: int, first: int, last: int, size: int = 0) -> None:
    """Somebody publishes messages in a transaction, at a node."""
    decided: list[bool] = []
    teller = Teller(
        f"teller-{first}", few.nodes[number], lambda letters, done, why: decided.append(done)
    )
    few.world.advance(50)
    messages = [letter("a/x", body + b"." * size) for body in bodies(first, last)]
    teller.commit([], messages)
    few.world.advance(500)
    assert decided == [True]


@pytest.mark.parametrize("bug", ["", "split-carry"])
def test_a_transaction_comes_as_a_whole_whatever_was_settled_of_it(bug: str) -> None:
    few = Few(2, replace(LIMITS, home_window_bytes=8000), bugs=frozenset({bug}))
    reader = attach(few, 0)
    transact(few, 1, 0, 12, 2000)  # it takes several batches
    transact(few, 0, 12, 20, 2000)
    few.world.advance(1000)
    assert len(reader.got) == 20
    some = (2, 2, 5, 7, 12, 12, 20, 20)
    reader.pipe.send(native.encode(native.Settle(1, some, 1)))
    few.world.advance(300)
    leave(few, reader)
    left = [n for n in range(20) if n + 1 not in (2, 5, 6, 7, 12, 20)]
    few.kill(0)
    few.start(0)
    seen: list[int] = []

    def look(events: object, effects: object) -> None:
        rows = few.nodes[1].node.report("journal", 100)["rows"]
        seen.append(sum(row["waiting"] for row in rows if row["name"] == "box"))

    few.nodes[1].on_step = look
    moved = attach(few, 1, move=True)
    few.world.advance(2000)
    assert [int(body.rstrip(b".")) for body in moved.bodies] == left
    assert (set(seen) <= {0, 7, 14}) == (not bug)  # what was left of each, all at once
    moved.settle(1)
    few.world.advance(1000)
    assert few.waiting(0, "box") == 0 and few.waiting(1, "box") == 0


def test_what_a_prepared_transaction_settles_does_not_move_before_it_is_decided() -> None:
    few = Few(2)
    reader = attach(few, 0)
    publish(few, 1, 0, 3)
    few.world.advance(500)
    settle = native.Settle(1, (1, 1))
    reader.pipe.send(native.encode(native.Transact(1, settle=(settle,))))
    reader.pipe.send(native.encode(native.Decide(1, "bank", native.Decision.PREPARE, 1)))
    few.world.advance(300)
    asker = attach(few, 1, move=True)
    assert errors(asker) == ["in-doubt"] and row(few, 1) == {}
    decide = native.Decide(0, "bank", native.Decision.COMMIT)
    reader.pipe.send(native.encode(decide))
    few.world.advance(500)
    leave(few, reader)
    assert read(few, 1, move=True) == bodies(1, 3)


def test_members_of_a_queue_are_all_told_and_what_they_held_counts_once() -> None:
    few = Few(2)
    options = json.dumps({"shared": True, "max_deliveries": 2}).encode()
    one, other = attach(few, 0, options=options), attach(few, 0, options=options)
    publish(few, 1, 0, 10)
    few.world.advance(500)
    assert len(one.got) + len(other.got) == 10 and one.got and other.got
    third = attach(few, 1, move=True, existing=True)
    assert errors(one) == errors(other) == ["mailbox-moved"]
    assert sorted(third.bodies) == bodies(0, 10) and {one.attempts for one in third.got} == {1}
    assert row(few, 1)["options"]["max_deliveries"] == 2
    with_mailbox(few, 0, move=True, existing=True)  # for each it was the last attempt
    few.world.advance(2000)
    assert row(few, 1, "dead-letters")["waiting"] == 10
    assert read(few, 0, existing=True) == []


def test_a_full_mailbox_gets_the_rest_when_there_is_room() -> None:
    few = Few(2)
    options = json.dumps({"quota_messages": 10}).encode()
    with_mailbox(few, 0, options=options)
    publish(few, 1, 0, 10)
    few.world.advance(500)
    with_mailbox(few, 1, move=True)
    publish(few, 0, 10, 15)  # there is room at the old home
    few.world.advance(500)
    assert few.waiting(1, "box") + few.waiting(0, "box") == 15 and few.waiting(0, "box") > 0
    got = read(few, 1)
    few.world.advance(10_000)
    assert got + read(few, 1) == bodies(0, 15) and few.waiting(0, "box") == 0


@pytest.mark.parametrize("policy", ["refuse", "drop"])
def test_what_waits_for_a_new_home_that_is_away_is_bounded(policy: str) -> None:
    few = Few(2, replace(LIMITS, home_s=20), when_away=policy)
    with_mailbox(few, 0)
    with_mailbox(few, 1, move=True)
    few.kill(1)
    few.world.advance(2000)
    publish(few, 0, 0, 10)
    few.world.advance(15_000)
    assert any("has confirmed nothing for" in text for text in few.notes)
    few.world.advance(10_000)
    guest = few.guest(0, "late")
    guest.publish(letter("a/x", b"10"))
    few.world.advance(500)
    refused = [one.name for one in guest.controls if isinstance(one, native.Error)]
    assert refused == (["mailbox-full"] if policy == "refuse" else [])
    assert (few.waiting(0, "box") < 10) == (policy == "drop")
    few.start(1, 12_000)
    wanted = bodies(0, 10) if policy == "refuse" else [b"10"]
    assert read(few, 1)[-len(wanted) :] == wanted


def test_if_a_node_between_is_gone_for_good_what_it_had_not_taken_has_another_name() -> None:
    few = Few(3)
    with_mailbox(few, 0)
    with_mailbox(few, 1, move=True)
    with_mailbox(few, 0, move=True)
    few.kill(1)
    few.world.advance(2000)
    publish(few, 2, 0, 3)
    few.world.advance(1000)
    admin = few.reader(0, "admin")
    admin.command("custody-forget", home="node-1")
    few.world.advance(1000)
    admin.command("queue-list")
    few.world.advance(500)
    rows = json.loads([one for one in admin.controls if isinstance(one, peers.Done)][-1].json)
    waiting = {one["name"]: one["waiting"] for one in rows["queues"]}
    (other,) = waiting.keys() - {"box"}
    assert waiting == {"box": 0, other: 3} and other.startswith("box-")
    publish(few, 2, 3, 5)
    few.world.advance(1000)
    few.kill(0)
    few.start(0)
    assert read(few, 0) == bodies(3, 5) and row(few, 0, other)["waiting"] == 5
