"""Checks that a torn write leaves all of a transaction or nothing, wherever it is torn."""

from __future__ import annotations

import random

import pytest
from harness import KeepingWorld
from queues import got, make, member, options, publish
from transacting import accept, letters, part

from regraft.errors import DiskError
from regraft.journal.recovery import SegmentView, recover
from regraft.journal.requests import Piece
from regraft.journal.state import State
from regraft.wire import native
from regraft.wire.native import Decision

SMALL = {
    "frame_bytes": 4096,
    "control_frame_bytes": 4096,
    "selector_bytes": 1024,
    "segment_bytes": 16_384,
}
STEP = 61  # bytes between two places
Files = dict[int, bytearray]
Seen = tuple[int, int, int, int, bool, bool, bool]


def asked(two_phases: bool, in_two: bool = False) -> tuple[Files, tuple[Piece, ...]]:
    """What is on the disk, and the one batch that is to be written: a commit, over two segments."""
    world = KeepingWorld(**SMALL)
    transactions = world.node._control.transactions
    assert transactions is not None
    transactions._in_two = in_two
    make(world, "in", "in")
    make(world, "out", "out")
    make(world, "other", "other")
    make(world, "old", "old")
    publish(world, "a", "b", "c", topic="in")
    client = member(world, "in", "in", client_id="me")
    assert got(client) == ["a", "b", "c"]
    while world.journal.recorder.position % 16_384 < 11_500:
        publish(world, "x" * 500, topic="other")
    data = letters(*("y" * 300 for _ in range(15)), topic="out") + letters("z", topic="other")
    wanted = native.Subscribe(0, "out", durable="new", options=options())
    first = part(1, data[:3000], settle=accept(1, 3), subscribe=(wanted,), remove=("old",))
    rest = [part(1, data[at : at + 3000]) for at in range(3000, len(data), 3000)]
    if two_phases:
        decide = native.Decide(1, "g", Decision.PREPARE, 1 + len(rest))
        client.send(first, *rest, decide)
        world.persist()
        client.send(native.Decide(gid="g"))
    else:
        client.send(first, *rest, native.Decide(1, parts=1 + len(rest)))
    files = {first: bytearray(data) for first, _, data in world.disk.open_segments()}
    assert world.asked is not None
    return files, world.asked.pieces


def look(state: State) -> Seen:
    """Each part of what the transaction does, by itself."""
    boxes = state.mailboxes
    serials = state.clients.get("$tx/me")
    return (
        boxes["out"].next_sequence,
        boxes["other"].next_sequence,
        boxes["in"].waiting,
        boxes["new"].next_sequence if "new" in boxes else 0,
        "old" in boxes,
        serials is not None and bool(serials.state()),
        state.decided.get("g", False),
    )


def outcomes(files: Files, pieces: tuple[Piece, ...], seed: int) -> dict[Seen, int]:
    """What recovery finds when the write is torn: after each place, or in any sectors."""
    dice = random.Random(seed)
    total = sum(len(piece.data) for piece in pieces)
    found: dict[Seen, int] = {}
    for at in [*range(0, total, STEP), total, *([-1] * 60)]:
        written = {first: bytearray(data) for first, data in files.items()}
        passed = 0
        for first, offset, data in pieces:
            file = written.setdefault(first, bytearray(16_384))
            if at >= 0:
                size = max(0, min(len(data), at - passed))
                file[offset : offset + size] = data[:size]
            else:
                for start in range(0, len(data), 512):
                    sector = data[start : start + 512]
                    if dice.random() < 0.9:
                        file[offset + start : offset + start + len(sector)] = sector
            passed += len(data)
        views = [SegmentView(first, len(file), bytes(file)) for first, file in written.items()]
        recovered = recover(views, 16_384, "00" * 16, 1)
        seen = look(recovered.state)
        found[seen] = found.get(seen, 0) + 1
    return found


@pytest.mark.parametrize("two_phases", [False, True])
def test_all_or_nothing_wherever_it_is_torn(two_phases: bool) -> None:
    files, pieces = asked(two_phases)
    assert len(pieces) == 2  # the commit is larger than what is left of a segment
    found = outcomes(files, pieces, 1)
    assert len(found) == 2 and min(found.values()) >= 1, found
    nothing, everything = sorted(found)
    assert nothing[0] == 1 and everything[0] == 16
    assert (nothing[2], everything[2]) == (3, 1)
    assert everything[3] == 16 and not everything[4] and nothing[4]
    assert everything[6] == two_phases and everything[5] == (not two_phases)


def test_the_planted_bug_is_found() -> None:
    """A commit that is two groups of records: some places leave half of it."""
    found = outcomes(*asked(False, in_two=True), 1)
    assert len(found) > 2, found


def test_damage_inside_of_what_was_confirmed_is_damage() -> None:
    """What is missing of a transaction that others followed is not taken for a torn end."""
    world = KeepingWorld(**SMALL)
    make(world, "out", "out")
    client = world.connect("me")
    client.send(part(1, letters("a", "b", topic="out")), native.Decide(1, parts=1))
    position = world.journal.recorder.position
    world.persist()
    publish(world, "c", topic="out")
    files = {first: bytearray(data) for first, _, data in world.disk.open_segments()}
    files[0][position - 20] ^= 1
    views = [SegmentView(first, len(file), bytes(file)) for first, file in files.items()]
    with pytest.raises(DiskError, match="had been persisted"):
        recover(views, 16_384, "00" * 16, 1)
