"""Stories of a node with a journal, by seed; and planted bugs, which the checkers must see.

REGRAFT_SIMULATION_SEEDS=1000 tells so many of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from regraft.errors import RegraftError
from regraft.journal import compaction, format, state
from regraft.journal.requests import PunchHole
from regraft.journal.state import State
from regraft.node import reading
from regraft.node.box import Box
from regraft.node.boxes import Boxes
from regraft.node.event import DiskFailed, Now, Persisted
from regraft.node.storage import Storage
from regraft.simulate.durable_story import DurableStory
from regraft.wire import native

SEEDS = range(int(os.environ.get("REGRAFT_SIMULATION_SEEDS", "60")))
PLANTED = range(25)  # stories in which a planted bug must show


def tell(seed: int, **more: Any) -> DurableStory:
    story = DurableStory(seed, **more)
    story.tell()
    return story


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    assert tell(seed).complaints == []


@pytest.mark.parametrize("seed", range(10))
def test_every_promise_is_kept_when_little_is_read_at_a_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that much is read ahead, and some of it in vain."""
    monkeypatch.setattr(reading, "READ_BYTES", 700 + 300 * seed)
    assert tell(seed).complaints == []


def test_the_same_seed_tells_the_same_story() -> None:
    first, second, other = tell(7), tell(7), tell(8)
    assert first.trace_hash == second.trace_hash
    assert first.trace_hash != other.trace_hash


def test_the_stories_are_eventful() -> None:
    happened: dict[str, int] = {}
    for story in map(tell, range(12)):
        for what, count in (story.events | story.ledger.counts).items():
            happened[what] = happened.get(what, 0) + count
    assert happened["confirmed"] > 1500
    assert happened["settled"] > 1500
    assert happened["redelivered"] > 300
    assert happened["known"] > 50
    for what in ("process death", "power cut", "failure", "disk full", "stop", "refused", "ended"):
        assert happened[what] > 1, what


def test_a_thrifty_journal_keeps_every_promise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives back every sector that it can, and that as soon as it can."""
    monkeypatch.setattr(compaction, "GAIN_BYTES", 512)
    monkeypatch.setattr(compaction, "PAGE_BYTES", 512)
    monkeypatch.setattr(compaction, "PASS_US", 50_000)
    given_back = 0
    overwritten = compaction.Compaction.overwritten

    def counted(self: compaction.Compaction) -> list[PunchHole]:
        nonlocal given_back
        holes = overwritten(self)
        given_back += len(holes)
        return holes

    monkeypatch.setattr(compaction.Compaction, "overwritten", counted)
    for seed in range(10):
        assert tell(seed, rests=0.1).complaints == []
    assert given_back > 0


# ---------------------------------------------------------------------------- planted bugs

Patch = Callable[[pytest.MonkeyPatch], None]


def forget_what_was_published(patch: pytest.MonkeyPatch) -> None:
    """De-duplication ends with the process."""
    calm = State.calm

    def forgetful(self: State) -> list[int]:
        for publisher in self.publishers.values():
            publisher.window, publisher._state = None, b""
        return calm(self)

    patch.setattr(State, "calm", forgetful)


def deliver_live_before_it_is_safe(patch: pytest.MonkeyPatch) -> None:
    """Publishers wait for the disk, live subscribers do not."""
    end, on_persisted = Storage.end, Storage.on_persisted
    early: list[tuple[int, tuple[int, int, int, bool]]] = []

    def hasty(self: Storage, now: Now) -> None:
        end(self, now)
        for first, offset, data in self.journal._batch:
            base = first + offset
            while (source := self.keeper.release(base + len(data), data, base)) is not None:
                self._outflow.deliver(self.keeper.take_dirty(), None, False, now)
                early.extend((source.key, one) for one in self.keeper.take_confirmed())

    def late(self: Storage, event: Persisted, now: Now) -> None:
        for key, confirmed in early:
            c = self._connections.get(key)
            if c is not None:
                self._outflow.send_all(c, [native.Confirmed(*confirmed)], now)
        early.clear()
        on_persisted(self, event, now)

    patch.setattr(Storage, "end", hasty)
    patch.setattr(Storage, "on_persisted", late)


def answer_before_it_is_safe(patch: pytest.MonkeyPatch) -> None:
    """SUBSCRIBED, UNSUBSCRIBED and SETTLED do not wait for the disk."""
    patch.setattr(
        Storage, "when_safe", lambda self, action, now, otherwise=None, **more: action(now)
    )


def take_a_failed_sync_for_done(patch: pytest.MonkeyPatch) -> None:
    """What the disk did not do counts as done."""

    def on_failed(self: Storage, event: DiskFailed, now: Now) -> None:
        if event.what in ("write", "sync", "create"):
            self.on_persisted(Persisted(), now)

    patch.setattr(Storage, "on_failed", on_failed)


def go_on_behind_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    """A mailbox is resumed where it was, whatever was settled."""
    line = Boxes._line

    def too_late(self: Boxes, box: Box, priority: int, sequence: int) -> Any:
        return line(self, box, priority, max(sequence, box.mailbox.delivered + 1))

    patch.setattr(Boxes, "_line", too_late)


def forget_what_was_in_hand(patch: pytest.MonkeyPatch) -> None:
    """After a crash nobody remembers that messages may have been delivered."""
    patch.setitem(state._CONTROLS, format.Reached, lambda *what: None)


def deliver_without_bounds(patch: pytest.MonkeyPatch) -> None:
    """How much a member may have unsettled is not looked at."""
    room = Boxes.room

    def boundless(self: Boxes, box: Box, member: Any) -> int:
        member.in_flight = 1 << 40
        return room(self, box, member)

    patch.setattr(Boxes, "room", boundless)


def forget_what_a_snapshot_does_not_know(patch: pytest.MonkeyPatch) -> None:
    """A segment that was closed when a snapshot was written is in no index of any stream."""
    patch.setattr(State, "unknown", lambda self, extents: {})


BUGS: dict[Patch, str] = {
    forget_what_was_published: "twice",
    deliver_live_before_it_is_safe: "delivered .* not safe yet",
    answer_before_it_is_safe: "",
    take_a_failed_sync_for_done: "after the disk had failed",
    go_on_behind_what_was_delivered: "lost",
    forget_what_was_in_hand: "does not say so",
    deliver_without_bounds: "unsettled, and wanted",
    forget_what_a_snapshot_does_not_know: "does not answer|still holds|behind",
}


def complaints(seed: int, **more: Any) -> list[str]:
    story = DurableStory(seed, **more)
    try:
        story.tell()
    except (AssertionError, LookupError, RegraftError, RuntimeError, ValueError) as error:
        return [*story.complaints, f"the node itself noticed: {error!r}"]
    return story.complaints


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    pattern = BUGS[bug]
    found = (complaint for seed in PLANTED for complaint in complaints(seed))
    assert any(re.search(pattern, complaint) for complaint in found)


def test_confirming_too_early_is_seen_at_once_and_by_what_is_lost() -> None:
    wanted = {"confirmed .* not safe yet", "lost .* which was confirmed"}
    for seed in PLANTED:
        found = complaints(seed, confirm_early=True)
        wanted -= {one for one in wanted if any(re.search(one, complaint) for complaint in found)}
        if not wanted:
            return
    assert not wanted
