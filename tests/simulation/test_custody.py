"""Persistent messages for mailboxes of other nodes: kept where they begin until they are there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from custody_world import LIMITS, Few, letter

from regraft.model.message import Message
from regraft.wire import native, peers


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def publish(few: Few, number: int, first: int, last: int, topic: str = "a/x") -> None:
    """Somebody publishes at a node, and hears that it is safe."""
    guest = few.guest(number, f"ann-{first}")
    for body in bodies(first, last):
        guest.publish(letter(topic, body))
    few.world.advance(500)
    confirmed = sum(one.count for one in guest.controls if isinstance(one, native.Confirmed))
    assert confirmed == last - first
    guest.pipe.close()


def with_mailbox(few: Few, number: int, name: str = "box", pattern: str = "a/#") -> None:
    reader = few.reader(number, "maker")
    reader.read(1, name, pattern)
    few.world.advance(500)
    reader.pipe.close()
    few.world.advance(100)


def read(few: Few, number: int, name: str = "box", pattern: str = "a/#") -> list[bytes]:
    """All that a mailbox has; it is settled."""
    reader = few.reader(number, f"reader-{few.world.ns}")
    reader.read(1, name, pattern)
    few.world.advance(1000)
    reader.settle(1)
    few.world.advance(200)
    reader.pipe.close()
    few.world.advance(100)
    return reader.bodies


def test_a_message_comes_to_a_mailbox_elsewhere_and_is_not_kept_any_longer() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    assert few.row(0, 2)["mailboxes"] == ["box"]
    publish(few, 0, 0, 20)
    few.world.advance(1000)
    assert few.row(0, 2)["waiting"] == 0 and few.row(0, 2)["confirmed"] == 20
    assert few.waiting(2, "box") == 20
    assert read(few, 2) == bodies(0, 20)
    assert few.custody(2)["repeated"] == 0


def test_a_node_that_is_away_gets_it_when_it_comes_back() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    few.kill(2)
    publish(few, 0, 0, 20)
    few.world.advance(5000)
    assert few.row(0, 2)["waiting"] == 20
    few.start(2, 12_000)
    assert few.row(0, 2)["waiting"] == 0
    assert read(few, 2) == bodies(0, 20)


def test_the_node_where_it_began_knows_after_a_restart_who_has_to_get_it() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    publish(few, 0, 0, 5)
    few.world.advance(1000)
    few.kill(2)
    publish(few, 0, 5, 10)
    few.kill(0, power=True)
    few.start(0)
    publish(few, 0, 10, 15)  # node 2 is away, and node 1 may not know of it
    few.kill(0)
    few.start(0)
    few.start(2, 12_000)
    assert few.row(0, 2)["waiting"] == 0
    assert read(few, 2) == bodies(0, 15)


@pytest.mark.parametrize("power", [False, True])
def test_nothing_comes_twice_if_confirmations_are_lost(power: bool) -> None:
    """Both ends die again and again, at moments that are not chosen with care."""
    few = Few(2)
    with_mailbox(few, 1)
    for round in range(6):
        guest = few.guest(0, f"ann-{round}")
        for body in bodies(round * 50, round * 50 + 50):
            guest.publish(letter("a/x", body + b"." * 200))
        few.world.advance(100)
        few.kill(1 - round % 2, power)
        few.world.advance(20 * round)
        if round % 3 == 0:
            few.kill(round % 2, power)
            few.start(round % 2, 100)
        few.start(1 - round % 2, 2500)
        guest.pipe.close()
    few.world.advance(20_000)
    assert few.row(0, 1)["waiting"] == 0
    found = [int(body.rstrip(b".")) for body in read(few, 1)]
    assert found == sorted(set(found)) and len(found) >= 150


def test_who_looks_for_a_mailbox_at_another_node_is_told_where_it_is() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    reader = few.reader(0)
    reader.read(1, "box", "", existing=True)
    reader.read(2, "nowhere", "", existing=True)
    few.world.advance(500)
    box, nowhere = [one for one in reader.controls if isinstance(one, native.Error)]
    assert box.name == nowhere.name == "unknown-mailbox"
    assert "node node-2 has one of that name" in box.text and "one of" not in nowhere.text


def test_a_node_without_a_disk_passes_on_what_it_hears() -> None:
    few = Few(3, diskless=(1,))
    with_mailbox(few, 2)
    publish(few, 0, 0, 10)
    few.world.advance(1000)
    assert read(few, 2) == bodies(0, 10)


def test_two_nodes_with_mailboxes_get_it_each_once() -> None:
    few = Few(4)
    with_mailbox(few, 1)
    with_mailbox(few, 2, "other", "a/x")
    with_mailbox(few, 2, "second", "#")
    with_mailbox(few, 0, "here", "a/#")
    publish(few, 0, 0, 10)
    publish(few, 3, 10, 20)
    few.world.advance(1000)
    for number, name, pattern in ((1, "box", "a/#"), (2, "other", "a/x"), (2, "second", "#")):
        assert sorted(read(few, number, name, pattern)) == sorted(bodies(0, 20))
    assert sorted(read(few, 0, "here")) == sorted(bodies(0, 20))


def test_a_mailbox_that_is_removed_gets_nothing_and_holds_nothing() -> None:
    few = Few(3)
    reader = few.reader(2)
    reader.read(1, "box", "a/#")
    reader.read(2, "tray", "b/#")
    few.world.advance(500)
    assert few.row(0, 2)["mailboxes"] == ["box", "tray"]
    reader.remove(1)
    few.world.advance(500)
    assert few.row(0, 2)["mailboxes"] == ["tray"]
    before = few.row(0, 2)["version"]
    few.kill(0)
    few.start(0)
    assert few.row(0, 2)["mailboxes"] == ["tray"] and few.row(0, 2)["version"] == before
    publish(few, 0, 0, 5)
    publish(few, 0, 5, 10, "b")
    few.world.advance(1000)
    assert few.row(0, 2)["confirmed"] == 5 and few.waiting(2, "tray") == 5


def test_a_removal_is_heard_of_by_who_was_away() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    few.kill(0)
    reader = few.reader(2)
    reader.read(1, "box", "a/#")
    few.world.advance(300)
    reader.remove(1)
    few.world.advance(300)
    few.start(0)
    assert few.row(0, 2)["mailboxes"] == []


def test_selectors_are_looked_at_where_it_begins() -> None:
    few = Few(2)
    reader = few.reader(1)
    reader.read(1, "box", "a/#", "n > 5")
    few.world.advance(500)
    guest = few.guest(0)
    for n in range(10):
        guest.publish(letter("a", b"%d" % n, attributes={"n": n}))
    few.world.advance(1000)
    assert few.row(0, 1)["confirmed"] == 4
    assert reader.bodies == bodies(6, 10)


def test_a_large_message_comes_in_parts() -> None:
    few = Few(2)
    with_mailbox(few, 1)
    guest = few.guest(0)
    sizes = (10, 8100, 7700, 1, 8100)
    for number, size in enumerate(sizes):
        guest.publish(letter("a", bytes([number]) * size))
    few.world.advance(2000)
    assert [len(body) for body in read(few, 1)] == list(sizes)


def test_priorities_are_kept() -> None:
    few = Few(2)
    with_mailbox(few, 1)
    guest = few.guest(0)
    for number in range(30):
        guest.publish(letter("a", b"%d" % number, priority=(4, 9, 0)[number % 3]))
    few.world.advance(1000)
    found = [int(body) for body in read(few, 1)]
    assert found == [n for rest in (1, 0, 2) for n in range(30) if n % 3 == rest]


def test_expired_messages_are_not_delivered_and_become_dead_letters_where_asked_for() -> None:
    few = Few(2)
    reader = few.reader(1)
    reader.read(1, "box", "a/#", options=b'{"dead_expired": true, "dead_letter": "dead/box"}')
    few.world.advance(500)
    reader.pipe.close()
    few.kill(1)
    guest = few.guest(0)
    soon = few.world.now().wall_us + 2_000_000
    guest.publish(letter("a", b"late", expiration_us=soon))
    guest.publish(letter("a", b"never late"))
    few.world.advance(500)
    few.start(1, 12_000)
    assert read(few, 1) == [b"never late"]
    assert few.waiting(1, "dead-letters") == 1


def test_delays_count_where_it_begins() -> None:
    few = Few(2)
    with_mailbox(few, 1)
    guest = few.guest(0)
    later = few.world.now().wall_us + 5_000_000
    guest.publish(letter("a", b"later", deliver_at_us=later))
    guest.publish(letter("a", b"now"))
    few.world.advance(2000)
    assert few.waiting(1, "box") == 1
    few.kill(0)
    few.start(0, 8000)
    assert read(few, 1) == [b"now", b"later"]


def test_dead_letters_come_to_a_mailbox_elsewhere() -> None:
    few = Few(3)
    with_mailbox(few, 2, "graveyard", "dead/#")
    reader = few.reader(1)
    reader.read(1, "box", "a/#", options=b'{"dead_letter": "dead/box"}')
    few.world.advance(500)
    publish(few, 0, 0, 3)
    few.world.advance(1000)
    reader.settle(1, native.Outcome.REJECT)
    few.world.advance(2000)
    assert few.waiting(2, "graveyard") == 3
    assert few.waiting(1, "box") == 0


def test_streams_elsewhere_get_everything_once() -> None:
    few = Few(3, retained=(1, 2))
    publish(few, 0, 0, 30)
    few.world.advance(1000)
    assert few.waiting(1, "all") == 30 and few.waiting(2, "all") == 30


# --------------------------------------------------------------------- away for too long


def test_messages_for_a_node_that_is_away_for_too_long_are_refused() -> None:
    few = Few(2, replace(LIMITS, home_bytes=20_000))
    with_mailbox(few, 1)
    few.kill(1)
    guest = few.guest(0)
    for number in range(60):
        guest.publish(letter("a", b"%d" % number + b"." * 1000))
        few.world.advance(100)
    refused = [one for one in guest.controls if isinstance(one, native.Error)]
    assert refused and {one.name for one in refused} == {"mailbox-full"}
    assert any("regraft custody forget" in note for note in few.notes)
    guest.publish(letter("b", b"somewhere else"))
    few.world.advance(500)
    assert isinstance(guest.controls[-1], native.Confirmed)
    kept = few.row(0, 1)["waiting"]
    assert 10 < kept < 40 and few.row(0, 1)["bytes"] >= 20_000
    few.start(1, 20_000)
    assert len(read(few, 1)) == kept
    guest.publish(letter("a", b"again"))
    few.world.advance(3000)
    assert read(few, 1) == [b"again"]


def test_the_older_ones_are_dropped_and_counted_where_that_is_the_policy() -> None:
    few = Few(2, replace(LIMITS, home_bytes=20_000), when_away="drop")
    with_mailbox(few, 1)
    few.kill(1)
    guest = few.guest(0)
    for number in range(100):
        guest.publish(letter("a", b"%d" % number + b"." * 1000))
        few.world.advance(100)
    assert not any(isinstance(one, native.Error) for one in guest.controls)
    few.start(1, 20_000)
    found = [int(body.rstrip(b".")) for body in read(few, 1)]
    dropped = few.row(0, 1)["dropped"]
    assert dropped > 40 and found == list(range(dropped, 100))


def test_messages_that_wait_for_too_long_are_refused_and_people_warned() -> None:
    few = Few(2, replace(LIMITS, home_s=10))
    with_mailbox(few, 1)
    few.kill(1)
    publish(few, 0, 0, 1)
    few.world.advance(15_000)
    guest = few.guest(0)
    guest.publish(letter("a", b"too late"))
    few.world.advance(500)
    assert any(isinstance(one, native.Error) for one in guest.controls)
    few.start(1, 20_000)
    assert read(few, 1) == [b"0"]
    guest.publish(letter("a", b"taken"))
    few.world.advance(3000)
    assert read(few, 1) == [b"taken"]


def test_a_node_that_never_comes_back_is_forgotten_everywhere() -> None:
    few = Few(3)
    with_mailbox(few, 2)
    few.kill(2)
    publish(few, 0, 0, 5)
    publish(few, 1, 5, 10)
    operator = few.reader(0, "operator")
    operator.command("custody-forget", home="node-2")
    few.world.advance(1000)
    assert [type(one).__name__ for one in operator.controls][-1] == "Done"
    for number in (0, 1):
        assert [row["node"] for row in few.custody(number)["rows"]].count("node-2") == 0
        few.kill(number)
        few.start(number)
        assert [row["node"] for row in few.custody(number)["rows"]].count("node-2") == 0
    few.start(2, 5000)  # it does come back
    publish(few, 0, 10, 15)
    few.world.advance(3000)
    assert read(few, 2) == bodies(10, 15)


def test_a_node_that_lives_is_not_forgotten_for_long() -> None:
    few = Few(2)
    with_mailbox(few, 1)
    publish(few, 0, 0, 5)
    few.world.advance(1000)
    operator = few.reader(0, "operator")
    operator.command("custody-forget", home="node-1")
    few.world.advance(2000)
    publish(few, 0, 5, 10)
    few.world.advance(2000)
    assert read(few, 1) == bodies(0, 10)
    few.kill(1)
    few.start(1, 5000)
    publish(few, 0, 10, 15)
    few.world.advance(3000)
    assert read(few, 1) == bodies(10, 15)


def test_what_a_full_mailbox_cannot_take_waits_where_it_began() -> None:
    few = Few(2)
    reader = few.reader(1)
    reader.read(1, "box", "a/#", options=b'{"quota_messages": 8}')
    few.world.advance(500)
    reader.pipe.close()
    publish(few, 0, 0, 100)
    publish(few, 0, 100, 110)
    few.world.advance(5000)
    found = read(few, 1)
    for _ in range(40):
        few.world.advance(9000)
        found += read(few, 1)
    assert found == bodies(0, 110)


def test_nobody_but_nodes_may_speak_to_nodes() -> None:
    few = Few(2)
    with_mailbox(few, 1)
    topic = few.nodes[1].node.custody_topic
    guest = few.guest(0)
    guest.publish(Message(topic, b"\x34nonsense"))
    few.world.advance(300)
    assert guest.controls[-1].name == "not-authorized"
    reader = few.reader(1, "spy")
    reader.pipe.send(native.encode(native.Subscribe(1, "$custody/#")))
    few.world.advance(300)
    assert reader.controls[-1].name == "not-authorized"


@pytest.mark.parametrize("seed", range(20))
def test_a_node_survives_whatever_other_nodes_say_about_messages(seed: int) -> None:
    random = Random(seed)
    few = Few(2)
    with_mailbox(few, 1)
    publish(few, 0, 0, 5)
    few.world.advance(500)
    custody = few.nodes[1].node._custody
    assert custody is not None
    ids = (few.custody(1)["rows"][0]["journal"], "00" * 16, "ff" * 16, "", "0102")
    numbers = (0, 1, 2, 5, 6, 7, 1 << 31, 1 << 62, (1 << 64) - 1)
    for _ in range(300):
        journal = bytes.fromhex(random.choice(ids))
        some = [random.choice(numbers) for _ in range(6)]
        frames = b"".join(native.encode(letter("a", b"forged")) for _ in range(random.randrange(3)))
        if random.random() < 0.5:
            frames = random.randbytes(random.randrange(40))
        said: peers.Carried | peers.Taken | peers.Move
        said = peers.Taken(journal, *some[:3], random.random() < 0.5)
        if random.random() < 0.7:
            more = {"mailbox": random.choice((0, some[0])), "marked": some[1]}
            said = peers.Carried(journal, *some[:4], frames, *some[4:], **more, backs=tuple(some))
        elif random.random() < 0.6:
            step, options = random.choice(list(peers.Step)), random.choice((b"", b"{}", b"?"))
            heir = bytes.fromhex(random.choice(ids))
            stream = some[0] if step else 1 << 31  # who asks for the mailbox gets it
            said = peers.Move(journal, "n", stream, some[1], step, some[2], options, heir=heir)
        body = bytes([native.KINDS[type(said)]]) + native.payload(said)
        if random.random() < 0.2:
            body = body[: random.randrange(len(body))]
        frame = native.encode(Message(few.nodes[1].node.custody_topic, body))
        custody._hear(frame, few.world.now())
        few.world.advance(1)
    guest = few.guest(1)
    guest.publish(letter("a", b"still here"))
    few.world.advance(500)
    assert b"still here" in read(few, 1)
