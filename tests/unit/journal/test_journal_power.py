"""The journal on a disk that fails: at every write and every sync, and all at once.

What was acknowledged is there afterwards, whatever happened; and the journal goes on from there.
"""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest
from journal_world import JOURNAL_ID, frame

from regraft.journal import format
from regraft.journal import journal as journals
from regraft.journal.journal import Journal
from regraft.journal.recovery import recover
from regraft.journal.streams import Mailbox
from regraft.journal.walking import SegmentView, records
from regraft.limits import Limits
from regraft.node.event import DiskFailed, JournalRead, Persisted, SegmentReady
from regraft.simulate.disk import Disk

SEGMENT = 16 * 1024
LIMITS = Limits(
    segment_bytes=SEGMENT,
    frame_bytes=SEGMENT // 4,
    control_frame_bytes=SEGMENT // 4,
    selector_bytes=SEGMENT // 8,
)


class Life:
    """One life of a journal after the other, on the same disk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = Disk(self.random)
        self.now = 1_000_000
        self.bodies: dict[tuple[str, int], bytes] = {}  # (mailbox, sequence) -> what was published
        self.told: dict[str, tuple[int, set[int]]] = {}  # mailbox -> next sequence, settled
        self.promised: list[tuple[int, dict[str, tuple[int, set[int]]]]] = []
        self.failed = False
        self.open()

    def open(self) -> None:
        views = [SegmentView(*segment) for segment in self.disk.open_segments()]
        recovered = recover(views, SEGMENT, JOURNAL_ID, self.now)
        assert not recovered.leftovers
        self.journal = Journal(recovered, LIMITS, self.now)
        self.promised = []
        self.failed = False
        self.check(views)

    # ------------------------------------------------------------------- what happens

    def live(self, steps: int) -> None:
        journal = self.journal
        if not journal.state.mailboxes:
            for name in ("m", "n"):
                journal.make_mailbox(name, "a", False, "", "c", self.now)
        for _ in range(steps):
            if self.disk.halted:
                return
            self.now += 500_000
            box: Any = self.random.choice(list(journal.state.mailboxes.values()))
            if self.random.random() < 0.7:
                self.publish(box)
            else:
                first = box.floor + self.random.choice([0, 0, 0, 2])
                journal.settle(box.number, [(first, first + 3)], self.now)
            if self.random.random() < 0.1:
                journal.tick(self.now)
            self.promise()
            journal.flush(self.now)
            if self.random.random() < 0.8:
                self.perform()
        self.perform()

    def publish(self, box: Mailbox) -> None:
        sequence = self.journal.refresh(box).next_sequence
        body = self.random.randbytes(self.random.choice([10, 300, 1500]))
        self.bodies[box.name, sequence] = body
        self.journal.recorder.append_frames(frame(body), 1, 0, [box.slot], self.now)

    def promise(self) -> None:
        """Once all that was appended is persisted, somebody is told this."""
        seen = {}
        for box in self.journal.state.mailboxes.values():
            self.journal.refresh(box)
            settled = set(range(1, box.floor)) | {
                n for first, last in box.settled for n in range(first, last + 1)
            }
            seen[box.name] = box.next_sequence, settled
        self.promised.append((self.journal.recorder.position, seen))

    def perform(self) -> None:
        while self.journal.requests and not self.disk.halted:
            for event in self.disk.perform(self.journal.requests.pop(0)):
                if isinstance(event, Persisted):
                    self.journal.persisted(self.now)
                    self.tell()
                elif isinstance(event, DiskFailed):
                    self.failed = True
                    self.journal.failed(event.what, event.errno, event.text, self.now)
                elif isinstance(event, SegmentReady):
                    self.journal.prepared(event.first)
                elif isinstance(event, JournalRead):
                    self.journal.arrived(event.ticket, event.data, event.error)

    def tell(self) -> None:
        while self.promised and self.promised[0][0] <= self.journal.persisted_position:
            self.told = self.promised.pop(0)[1]

    # ------------------------------------------------------------------ what must hold

    def check(self, views: list[SegmentView]) -> None:
        state = self.journal.state
        there = {
            (number, sequence): bytes(record.payload)
            for view in views
            for record in records(SegmentView(view.first, view.size, memoryview(view.view)))
            for number, sequence in format.places(record.meta)
        }
        for name, (next_sequence, settled) in self.told.items():
            box = state.mailboxes[name]
            assert box.next_sequence >= next_sequence, "an acknowledged message is lost"
            gone = set(range(1, box.floor)) | {
                n for first, last in box.settled for n in range(first, last + 1)
            }
            assert settled <= gone, "a confirmed settlement is lost"
            for sequence in set(range(1, box.next_sequence)) - gone:
                body = self.bodies[name, sequence]
                assert there[box.number, sequence] == frame(body), "another message"
        self.told = {}

    def crash(self) -> None:
        """The power fails, or only the process."""
        self.disk = self.disk.power_off() if self.random.random() < 0.7 else self.disk.crash()
        self.open()


@pytest.fixture(autouse=True)
def snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_FACTOR", 1)


@pytest.mark.parametrize("seed", range(30))
def test_power_cuts(seed: int) -> None:
    life = Life(seed)
    for _ in range(6):
        life.live(life.random.randrange(120))
        life.crash()
    life.live(50)
    assert life.journal.recorder.epoch > 1


STRIDES = pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])


@STRIDES
@pytest.mark.parametrize("what", ["write", "sync", "create", "remove"])
def test_the_end_at_every_ordinal(what: str, stride: int) -> None:
    """The disk stops for good at the Nth write, sync, ..., or just after it."""
    trial = Life(1)
    trial.live(260)
    count = trial.disk.counts[what]
    assert count > 1
    for at in range(1, count + 1, stride):
        for after in (False, True):
            life = Life(1)
            life.disk.halt(what, at, after=after)
            life.live(260)
            assert life.disk.halted
            life.crash()
            life.live(40)
            life.crash()


@STRIDES
@pytest.mark.parametrize("what", ["write", "sync", "create"])
def test_a_failure_at_every_ordinal(what: str, stride: int) -> None:
    """Nothing is acknowledged from then on, and what was is there after a restart."""
    trial = Life(2)
    trial.live(260)
    count = trial.disk.counts[what]
    for at in range(1, count + 1, stride):
        life = Life(2)
        life.disk.fail(what, at, errno.EIO)
        life.live(260)
        assert life.failed
        if what != "create":  # it may have been a hint only
            assert life.journal.broken
        before = life.journal.persisted_position
        life.live(20)
        if life.journal.broken:
            assert life.journal.persisted_position == before
        life.crash()
        life.live(40)
        life.crash()


def test_a_full_disk_at_every_write() -> None:
    trial = Life(3)
    trial.live(200)
    for at in range(1, trial.disk.counts["write"], 5):
        life = Life(3)
        life.disk.fail("write", at, errno.ENOSPC)
        life.live(200)
        for _ in range(4):
            life.now += 2_000_000
            life.journal.tick(life.now)
            life.journal.flush(life.now)
            life.perform()
        assert not life.journal.broken
        assert life.journal.persisted_position == life.journal.recorder.position
        life.tell()
        assert not life.promised
        life.crash()


def test_a_small_disk_is_refused_in_time_and_recovers_by_itself() -> None:
    life = Life(4)
    life.disk.capacity = 6 * SEGMENT
    journal = life.journal
    box = journal.make_mailbox("m", "a", False, "", "c", life.now)
    for _ in range(3):
        published = 0
        while not journal.refusal([box.number]):
            life.publish(box)
            life.promise()
            journal.flush(life.now)
            life.perform()
            published += 1
        assert journal.refusal([]) == "disk-full"
        assert published > 20
        assert journal.persisted_position == journal.recorder.position, "all that was taken is safe"
        journal.refresh(box)
        journal.settle(box.number, [(1, box.next_sequence)], life.now)
        for _ in range(5):
            life.now += 1_000_000
            journal.tick(life.now)
            life.promise()
            journal.flush(life.now)
            life.perform()
        assert journal.refusal([]) == ""
        assert not journal.broken
    life.crash()
