"""Transactions across nodes: the mailboxes of another node get one as a whole, or not yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from custody_world import LIMITS, Few, letter

from regraft.model.message import Message
from regraft.node.receiving import SPLIT_CARRY
from regraft.simulate.guest import Guest
from regraft.wire import native
from regraft.wire.native import Decision, TransactionState

SMALL = replace(LIMITS, home_window_bytes=8000)  # so that it takes several turns
PART = 4096  # of what a TRANSACT frame carries


def commit(guest: Guest, serial: int, messages: Iterable[Message]) -> None:
    """Publish all of these in one transaction."""
    frames = b"".join(map(native.encode, messages))
    parts = [frames[at : at + PART] for at in range(0, len(frames), PART)]
    for part in parts:
        guest.pipe.send(native.encode(native.Transact(serial, part)))
    guest.pipe.send(native.encode(native.Decide(serial, "", Decision.COMMIT, len(parts))))


def decided(guest: Guest) -> list[native.Decided]:
    return [one for one in guest.controls if isinstance(one, native.Decided)]


def some(serial: int, count: int, size: int = 500, topics: int = 1) -> list[Message]:
    return [letter(f"a/{n % topics}", b"%d:%d:" % (serial, n) + b"." * size) for n in range(count)]


def label(body: bytes) -> tuple[int, int]:
    serial, n, _ = body.split(b":")
    return int(serial), int(n)


def with_mailbox(few: Few, number: int, name: str = "box", pattern: str = "a/#") -> None:
    reader = few.reader(number, "maker")
    reader.read(1, name, pattern)
    few.world.advance(500)
    reader.pipe.close()
    few.world.advance(100)


class Watch:
    """Looks after every step of a node at what it has persisted in a mailbox."""

    def __init__(self, few: Few, number: int, whole: int, name: str = "box") -> None:
        self.few, self.number, self.whole, self.name = few, number, whole, name
        self.halves: list[int] = []  # how many were there when it was not a multiple
        self.watch()

    def watch(self) -> None:
        broker = self.few.nodes[self.number]
        before = broker.on_step

        def look(events: object, effects: object) -> None:
            assert before is not None
            before(events, effects)  # type: ignore[arg-type]
            waiting = self.few.waiting(self.number, self.name)
            if waiting % self.whole:
                self.halves.append(waiting)

        broker.on_step = look


def kept(few: Few, number: int, name: str = "box", pattern: str = "a/#") -> list[tuple[int, int]]:
    reader = few.reader(number, f"reader-{few.world.ns}")
    reader.read(1, name, pattern)
    few.world.advance(3000)
    reader.settle(1)
    few.world.advance(500)
    reader.pipe.close()
    few.world.advance(100)
    return list(map(label, reader.bodies))


def test_a_transaction_of_many_batches_is_kept_as_one() -> None:
    few = Few(3, SMALL)
    with_mailbox(few, 2)
    watch = Watch(few, 2, 100)
    guest = few.guest(0)
    for serial in range(1, 4):
        commit(guest, serial, some(serial, 100))
    few.world.advance(3000)
    assert [one.state for one in decided(guest)] == [TransactionState.COMMITTED] * 3
    assert watch.halves == []
    assert kept(few, 2) == [(serial, n) for serial in range(1, 4) for n in range(100)]
    assert few.custody(2)["origins"][0]["held"] == 0
    assert few.row(0, 2)["waiting"] == 0


def test_the_planted_bug_is_seen() -> None:
    few = Few(2, SMALL, bugs=frozenset({SPLIT_CARRY}))
    with_mailbox(few, 1)
    watch = Watch(few, 1, 100)
    commit(few.guest(0), 1, some(1, 100))
    few.world.advance(3000)
    assert watch.halves


def test_it_is_larger_than_the_window_and_has_messages_in_parts() -> None:
    few = Few(2, SMALL)
    with_mailbox(few, 1)
    watch = Watch(few, 1, 30)
    guest = few.guest(0)
    commit(guest, 1, some(1, 30, 7900))
    few.world.advance(5000)
    assert decided(guest)[0].state is TransactionState.COMMITTED
    assert watch.halves == [] and few.custody(0)["begun_anew"] == 0
    assert kept(few, 1) == [(1, n) for n in range(30)]


def test_single_messages_between_transactions_keep_their_place() -> None:
    few = Few(2)
    with_mailbox(few, 1)
    guest = few.guest(0)
    for serial in range(1, 6):
        guest.publish(letter("a/x", b"%d:0:" % (serial * 10)))
        commit(guest, serial, some(serial, 20))
    few.world.advance(3000)
    expected = [
        pair
        for serial in range(1, 6)
        for pair in [(serial * 10, 0), *((serial, n) for n in range(20))]
    ]
    assert kept(few, 1) == expected


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("who", [0, 1])
def test_it_is_whole_after_crashes_of_either_end(who: int, power: bool) -> None:
    """One of the nodes dies a few ms later in each round, and comes back."""
    few = Few(2, SMALL)
    with_mailbox(few, 1)
    watch = Watch(few, 1, 40)
    committed = []
    for round in range(12):
        guest = few.guest(0, f"ann-{round}")
        commit(guest, 1, some(round, 40))
        few.world.advance(3 + 3 * round)
        few.kill(who, power)
        committed += [round for one in decided(guest) if one.state is TransactionState.COMMITTED]
        few.start(who, 2500)
        guest.pipe.close()
        if who == 1:
            watch.watch()
    few.world.advance(15_000)
    assert few.row(0, 1)["waiting"] == 0
    found = kept(few, 1)
    rounds = list(dict.fromkeys(serial for serial, _ in found))
    assert found == [(serial, n) for serial in rounds for n in range(40)]
    assert set(committed) <= set(rounds) and len(rounds) >= 6
    assert watch.halves == []


def test_what_waited_before_a_restart_of_its_node_is_whole_after_it() -> None:
    """Groups are found in records and in snapshots."""
    few = Few(2, SMALL)
    with_mailbox(few, 1)
    few.kill(1)
    guest = few.guest(0)
    for serial in range(1, 41):  # several segments, and snapshots
        commit(guest, serial, some(serial, 20, 700))
        few.world.advance(300)
        if serial % 10 == 0:
            few.kill(0, power=True)
            few.start(0)
            guest = few.guest(0, f"ann-{serial}")
    few.start(1, 0)
    watch = Watch(few, 1, 20)
    few.world.advance(30_000)
    assert watch.halves == []
    assert kept(few, 1) == [(serial, n) for serial in range(1, 41) for n in range(20)]


def test_a_full_mailbox_takes_all_or_nothing_of_it() -> None:
    """Nor does another one get its part meanwhile, though it has room and comes first."""
    few = Few(2)
    reader = few.reader(1)
    reader.read(1, "first", "a/0")
    reader.read(2, "tight", "a/1", options=b'{"quota_messages": 30}')
    few.world.advance(500)
    reader.pipe.close()
    few.world.advance(100)
    guest = few.guest(0)
    for serial in range(1, 9):
        commit(guest, serial, some(serial, 40, topics=2))
        few.world.advance(300)
    few.world.advance(4000)
    taken = few.waiting(1, "tight")
    assert 30 <= taken <= 80 and taken % 20 == 0 and few.waiting(1, "first") == taken
    before = few.custody(0)["begun_anew"]
    few.world.advance(20_000)
    assert few.custody(0)["begun_anew"] - before < 10  # it waits, and does not try all the time
    for _ in range(8):
        kept(few, 1, "tight", "a/1")
        few.world.advance(10_000)
        assert few.waiting(1, "first") % 20 == 0
    assert few.row(0, 1)["waiting"] == 0 and few.waiting(1, "tight") == 0
    assert kept(few, 1, "first", "a/0") == [(s, n) for s in range(1, 9) for n in range(0, 40, 2)]


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_power_cut_while_it_is_written_leaves_all_or_nothing(what: str) -> None:
    """The disk loses any of the sectors that were not synced. Each message is a record."""
    few = Few(2)
    with_mailbox(few, 1)
    with_mailbox(few, 1, "odd", "a/1")
    partly = 0
    for round in range(25):
        broker = few.nodes[1]
        assert broker.disk is not None
        disk = broker.disk
        broker.on_halt = lambda broker=broker: few.network.power_off(broker)  # type: ignore[misc]
        disk.halt(what, disk.counts[what] + 1)
        guest = few.guest(0, f"ann-{round}")
        commit(guest, 1, some(round, 40, topics=2))
        few.world.advance(400)
        assert broker.stopped
        few.disks[1] = broker.disk
        partly += 0 < sum(broker.disk.is_durable(b"%d:%d:..." % (round, n)) for n in range(40)) < 40
        guest.pipe.close()
        few.start(1, 0)
        assert few.waiting(1, "box") % 40 == 0 and few.waiting(1, "odd") % 20 == 0
        few.world.advance(4000)
    assert partly  # it was seen in the middle
    few.world.advance(10_000)
    assert kept(few, 1) == [(round, n) for round in range(25) for n in range(40)]


def test_origins_that_find_no_room_wait_for_others() -> None:
    few = Few(4, replace(LIMITS, transactions_bytes_total=60_000, home_window_bytes=8000))
    with_mailbox(few, 3)
    watch = Watch(few, 3, 80)
    for number in range(3):
        commit(few.guest(number, f"ann-{number}"), 1, some(number, 80))  # 40,000 bytes each
    few.world.advance(30_000)
    assert watch.halves == []
    assert sorted(kept(few, 3)) == [(number, n) for number in range(3) for n in range(80)]


def test_what_is_too_large_to_be_held_is_said_so() -> None:
    few = Few(2, SMALL)
    with_mailbox(few, 1)
    few.kill(1)
    few.limits = replace(SMALL, transactions_bytes_total=30_000)  # less than the other node has
    few.start(1)
    commit(few.guest(0), 1, some(1, 80))
    few.world.advance(10_000)
    said = [note for note in few.notes if "limit transactions_bytes_total is 30000" in note]
    assert len(said) == 1 and few.waiting(1, "box") == 0
    few.kill(1)
    few.limits = SMALL
    few.start(1, 15_000)
    assert kept(few, 1) == [(1, n) for n in range(80)]


def test_an_origin_that_dies_in_the_middle_does_not_keep_others_from_theirs() -> None:
    few = Few(3, replace(LIMITS, transactions_bytes_total=100_000, home_window_bytes=8000))
    with_mailbox(few, 2)
    commit(few.guest(0), 1, some(1, 160))
    while not any(row["held"] for row in few.custody(2)["origins"]):
        few.world.advance(1)
    few.kill(0)
    few.world.advance(1000)
    commit(few.guest(1), 1, some(2, 160))
    few.world.advance(20_000)
    assert kept(few, 2) == [(2, n) for n in range(160)]
    few.start(0, 15_000)
    assert kept(few, 2) == [(1, n) for n in range(160)]


def test_what_is_dropped_is_dropped_as_a_whole() -> None:
    few = Few(2, replace(LIMITS, home_bytes=60_000, home_window_bytes=8000), when_away="drop")
    with_mailbox(few, 1)
    few.kill(1)
    guest = few.guest(0)
    for serial in range(1, 21):
        commit(guest, serial, some(serial, 30))
        few.world.advance(500)
    few.start(1, 0)
    watch = Watch(few, 1, 30)
    few.world.advance(20_000)
    assert few.row(0, 1)["dropped"] > 0 and few.row(0, 1)["dropped"] % 30 == 0
    assert watch.halves == []
    rounds = 20 - few.row(0, 1)["dropped"] // 30
    assert kept(few, 1) == [(n, k) for n in range(21 - rounds, 21) for k in range(30)]


def test_a_transaction_for_a_node_that_is_away_for_too_long_is_refused() -> None:
    few = Few(2, replace(LIMITS, home_s=10))
    with_mailbox(few, 1)
    few.kill(1)
    guest = few.guest(0)
    commit(guest, 1, some(1, 2))
    few.world.advance(15_000)
    commit(guest, 2, some(2, 2))
    few.world.advance(500)
    states = [(one.state, one.name) for one in decided(guest)]
    assert states == [
        (TransactionState.COMMITTED, ""),
        (TransactionState.ROLLED_BACK, "mailbox-full"),
    ]
    few.start(1, 15_000)
    assert kept(few, 1) == [(1, 0), (1, 1)]


def test_what_was_prepared_is_committed_even_so() -> None:
    few = Few(2, replace(LIMITS, home_s=10))
    with_mailbox(few, 1)
    few.kill(1)
    guest = few.guest(0)
    commit(guest, 1, some(1, 2))
    frames = b"".join(map(native.encode, some(2, 2)))
    guest.pipe.send(native.encode(native.Transact(2, frames)))
    guest.pipe.send(native.encode(native.Decide(2, "two", Decision.PREPARE, 1)))
    few.world.advance(15_000)
    guest.pipe.send(native.encode(native.Decide(2, "two", Decision.COMMIT)))
    few.world.advance(500)
    assert decided(guest)[-1].state is TransactionState.COMMITTED
    few.start(1, 15_000)
    assert kept(few, 1) == [(1, 0), (1, 1), (2, 0), (2, 1)]
