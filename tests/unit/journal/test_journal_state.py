"""What records amount to: the same whether it was lived, recovered, or restored from a snapshot."""

from __future__ import annotations

import random
from typing import Any

import pytest
from journal_world import JOURNAL_ID, World, frame

from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal import journal as journals
from regraft.journal.format import Extent, Options, Record
from regraft.journal.state import State
from regraft.journal.streams import Mailbox, Mark, Stream


def picture(state: State, marks: bool = True) -> dict[str, Any]:
    """All that a state says, to be compared."""
    streams = {}
    for number, stream in state.streams.items():
        row = {
            "name": stream.name,
            "pattern": (stream.pattern, stream.exact),
            "next": stream.next_sequence,
            "size": stream.size,
            "indexed": stream.indexed,
        }
        if marks:
            row["marks"] = [mark._replace(size=0) for mark in stream.marks]
        if isinstance(stream, Mailbox):
            row |= {
                "selector": (stream.selector, stream.owner),
                "options": stream.options,
                "returned": stream.returned,
                "ranks": {k: (rank.low, rank.last) for k, rank in stream.ranks.items()},
                "floor": stream.floor,
                "settled": list(stream.settled),
                "delivered": (stream.delivered, stream.window),
            }
        streams[number] = row
    return {
        "id": state.journal_id,
        "numbers": (state.numbers, state.publisher_numbers),
        "streams": streams,
        "names": {name: stream.number for name, stream in state.names.items()},
        "mailboxes": {name: box.number for name, box in state.mailboxes.items()},
        "publishers": {n: (p.client_id, p.state()) for n, p in state.publishers.items()},
        "clients": {name: p.number for name, p in state.clients.items()},
        "holes": state.holes,
    }


class Life:
    """Random things happen to a journal."""

    def __init__(self, seed: int, **limits: int) -> None:
        self.random = random.Random(seed)
        self.world = World(**limits)
        self.sent: dict[str, int] = {}
        self.names = 0

    def happen(self, times: int) -> None:
        for _ in range(times):
            self.world.now += self.random.randrange(1000)
            self.random.choice([self.publish] * 6 + [self.settle] * 3 + [self.change])()
            if self.random.random() < 0.3:
                self.world.journal.flush(self.world.now)
                self.world.perform()
        self.world.flush()
        for stream in self.world.journal.state.streams.values():
            self.world.journal.refresh(stream)

    def publish(self) -> None:
        journal = self.world.journal
        streams = [s for s in journal.state.streams.values() if self.random.random() < 0.6]
        if not streams:
            return
        client = self.random.choice("xyz")
        publisher = journal.publisher(client, self.world.now)
        frames = b""
        count = self.random.randrange(1, 5)
        for _ in range(count):
            sequence = self.sent.get(client, 0) + self.random.choice([1, 1, 1, 1, 3])
            self.sent[client] = sequence
            publisher.thaw().accept(sequence)
            frames += frame(bytes(self.random.randrange(300)), sequence)
        slots = [stream.slot for stream in streams]
        journal.recorder.append_frames(frames, count, publisher.number, slots, self.world.now)
        if self.random.random() < 0.2:
            journal.release(publisher, self.world.now)

    def settle(self) -> None:
        journal = self.world.journal
        if journal.state.mailboxes:
            mailbox = self.random.choice(list(journal.state.mailboxes.values()))
            journal.refresh(mailbox)
            first = mailbox.floor + self.random.choice([0, 0, 1, 3])
            last = first + self.random.randrange(4)
            journal.settle(mailbox.number, [(first, last), (last + 3, last + 3)], self.world.now)

    def change(self) -> None:
        journal = self.world.journal
        boxes = list(journal.state.mailboxes.values())
        choice = self.random.random()
        self.names += 1
        if choice < 0.3:
            journal.make_stream(f"s{self.names}", "a/#", self.random.random() < 0.5, self.world.now)
        elif choice < 0.6:
            name = f"m{self.names}"
            journal.make_mailbox(
                name, "a", False, "x > 1", "client", self.world.now, Options(quota_messages=1000)
            )
        elif choice < 0.7 and journal.state.names:
            stream = self.random.choice(list(journal.state.names.values()))
            journal.remove_stream(stream.number, self.world.now)
        elif choice < 0.75 and boxes:
            journal.remove_mailbox(self.random.choice(boxes).number, self.world.now)
        elif boxes:
            mailbox = self.random.choice(boxes)
            if mailbox.window:
                delivered = mailbox.highest_settled + 2
                journal.detach(mailbox.number, delivered, self.world.now)
            else:
                journal.attach(mailbox.number, 10, self.world.now)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("every", [1, 1000])
def test_a_recovered_state_is_the_one_that_was_lived(
    monkeypatch: pytest.MonkeyPatch, seed: int, every: int
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_SEGMENTS", every)  # many snapshots, or none
    life = Life(seed)
    for _ in range(4):
        life.happen(100)
        lived = life.world.journal.state
        restored = State.restore(lived.snapshot(2000))
        assert picture(restored) == picture(lived)
        for mailbox in lived.mailboxes.values():  # nobody is attached after a crash
            mailbox.abandon()
        recovered = life.world.start()
        assert not recovered.findings
        assert picture(recovered.state) == picture(lived)
    assert (recovered.snapshot > 0) == (every == 1)
    assert len(life.world.records()) > 100


def test_snapshots_come_in_chunks() -> None:
    state = State("id", 7)
    for number in range(1, 200):
        made = format.MailboxMade(number, f"m{number}", "a", "", False, "c")
        state.apply_control(made, 0)
    chunks = state.snapshot(1000)
    assert len(chunks) > 20
    assert max(map(len, chunks)) <= 1000
    assert picture(State.restore(list(chunks))) == picture(state)
    assert len(state.snapshot()) == 1
    for wrong in (chunks[1:], chunks[:-1], chunks[:3] + chunks[4:], chunks[::-1]):
        with pytest.raises(DiskError):
            State.restore(list(wrong))


def test_many_ranges_and_marks_fit_into_chunks() -> None:
    state = State("id", 7)
    state.apply_control(format.MailboxMade(1, "m", "a", "", False, "c"), 0)
    state.apply_control(format.StreamMade(2, "s", "a", False), 0)
    mailbox = state.mailbox(1)
    mailbox.next_sequence = 30_000
    for sequence in range(3, 30_000, 3):
        mailbox.settle(sequence, sequence)
    state.streams[2].marks = [Mark(n, 0, n, n, n, n, n, n) for n in range(3000)]
    chunks = state.snapshot(64 * 1024)
    assert max(map(len, chunks)) <= 64 * 1024
    assert picture(State.restore(list(chunks))) == picture(state)


def record(kind: int, payload: bytes, meta: bytes = b"", messages: int = 0, by: int = 0) -> Record:
    return Record(kind, 0, 8, 1, 1, messages, by, memoryview(meta), memoryview(payload))


IMPOSSIBLE = [
    record(format.MESSAGES, b"", format.encode_places([(9, 1)]), 1),  # no such stream
    record(format.MESSAGES, b"", format.encode_places([(1, 2)]), 1),  # not the next sequence
    record(format.MESSAGES, b"", b"123", 1),
    record(format.MESSAGES, frame(), format.encode_places([(1, 1)]), 1, 5),  # no such publisher
    record(format.CONTROL, format.encode_control(format.StreamGone(9))),
    record(format.CONTROL, format.encode_control(format.Attached(1, 5))),  # no mailbox
    record(format.CONTROL, b"{}"),
    record(format.SETTLED, b"123"),
]


@pytest.mark.parametrize("wrong", IMPOSSIBLE)
def test_a_record_that_makes_no_sense_is_damage(wrong: Record) -> None:
    state = State(JOURNAL_ID)
    state.apply_control(format.StreamMade(1, "s", "a", False), 0)
    with pytest.raises(DiskError) as caught:
        state.apply(wrong)
    assert caught.value.code.name == "journal-damaged"


# ------------------------------------------------------------------------------- mailboxes


def mailbox(next_sequence: int) -> Mailbox:
    made = Mailbox(1, "m", "a", False, "", "c", Options())
    made.next_sequence = next_sequence
    return made


def test_settling_moves_the_floor_and_says_what_was_new() -> None:
    box = mailbox(21)
    assert box.waiting == 20
    assert box.settle(5, 6) == [(5, 6)]
    assert box.settle(9, 9) == [(9, 9)]
    assert (box.floor, box.waiting, box.highest_settled) == (1, 17, 9)
    assert box.settle(4, 9) == [(4, 4), (7, 8)]
    assert box.settle(5, 8) == []
    assert box.settle(1, 3) == [(1, 3)]
    assert (box.floor, box.waiting, list(box.settled)) == (10, 11, [])
    assert box.settle(1, 100) == [(10, 20)]
    assert (box.floor, box.waiting) == (21, 0)
    assert box.settle(21, 30) == []  # not sent yet


def test_what_may_have_been_in_hand_counts_as_delivered() -> None:
    box = mailbox(100)
    box.abandon()
    assert box.delivered == 0
    box.window = 10
    box.settle(1, 5)
    box.settle(8, 8)
    box.abandon()
    assert (box.delivered, box.window) == (18, 0)
    box.window = 1000
    box.abandon()
    assert box.delivered == 99


def test_many_marks_are_merged_and_none_is_lost() -> None:
    stream = Stream(1, "s", "a", False)
    stream.marks_max = 16  # type: ignore[misc]
    for number in range(100):
        stream.add_mark(
            Mark(number * 100, 8, number * 10 + 1, number * 10 + 10, 0, 0, 0, number * 100)
        )
        assert len(stream.marks) <= 16
        for sequence in range(1, number * 10 + 11):
            mark = stream.marks[stream.mark_at(sequence)]
            assert mark.sequence <= sequence <= mark.last
            assert mark.first <= (sequence - 1) // 10 * 100 <= mark.final
    stream.forget_before(5000)
    assert stream.marks[0].first == 5000
    assert stream.marks[0].last >= 510
    stream.forget_before(9900)
    (last,) = stream.marks
    assert (last.first, last.final, last.last) == (9900, 9900, 1000)
    stream.forget_before(10_000)
    assert not stream.marks
    assert stream.indexed == 1000


def test_an_index_of_streams_that_are_gone_is_no_matter() -> None:
    state = State(JOURNAL_ID)
    state.apply_index(0, {5: Extent(5, 1, 2, 0, 0, format.encode_entries([(8, 1)]))})
    assert not state.streams


def test_a_mailbox_that_moved_and_came_back() -> None:
    """The name is that of the newest; the older ones go on, and have it again when it is gone."""
    state = State("j", 1)
    there, back = format.Elsewhere("aa" * 16, 7, "north"), format.Elsewhere("aa" * 16, 9, "north")
    for control in (
        format.MailboxMade(1, "box", "a", "", False, "ann"),
        format.MailboxMoved(1, None, there),
        format.MailboxMade(2, "box", "a", "", False, "ann", came=back),
        format.OriginHeard(3, "aa" * 16, 9, 4, 2),
        format.OriginHeard(4, "aa" * 16, 5, 0),
    ):
        state.apply_control(control, 0)
    for one in (state, State.restore(state.snapshot())):
        assert one.mailboxes["box"].number == 2 and one.mailbox(1).home == there
        assert one.mailboxes["box"].came == back and len(one.boxes) == 2
        arrivals = one.origins[f"{'aa' * 16}/2"]
        assert (arrivals.number, arrivals.mailbox, arrivals.shift) == (3, 2, 4)
        assert one.origins["aa" * 16].number == 4
        one.apply_control(format.MailboxChanged(2, "crate", format.Options()), 0)
        assert (one.mailboxes["box"].number, one.mailboxes["crate"].number) == (1, 2)
        one.apply_control(format.MailboxChanged(2, "box", format.Options()), 0)
        one.apply_control(format.MailboxGone(2), 0)
        assert one.mailboxes["box"].number == 1 and list(one.origins) == ["aa" * 16]
        assert 3 not in one.streams


def test_a_mailbox_whose_old_home_is_gone_takes_messages_itself() -> None:
    state = State("j", 1)
    came = format.Elsewhere("aa" * 16, 9, "north")
    state.apply_control(format.MailboxMade(1, "box", "a", "", False, "ann", came=came), 0)
    state.apply_control(format.OriginHeard(2, "aa" * 16, 9, 4, 1), 0)
    state.apply_control(format.MailboxMoved(1, None, None), 0)
    assert state.mailboxes["box"].came is None and not state.origins and 2 not in state.streams
