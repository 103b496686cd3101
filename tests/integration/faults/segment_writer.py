"""Uses the disk of a node as its journal does: `segment_writer.py FOLDER MODE`.

Records of 512 bytes, each full of its number, fill small segments one after the other. The next
segment is prepared in time, the fifth last one dropped. A number that was persisted is a line of
the output. Mode `whole` is that; `large` writes so much at a time that it goes past the kernel's
cache, `reserved` does that in segments that were never written to before. `nameless` never
syncs the folder, `hasty` is `reserved` without syncs: mistakes that a power cut has to show.
"""

import mmap
import os
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from regraft.journal.requests import Persist, Piece, PrepareSegment, RemoveSegment
from regraft.node.event import DiskFailed, Event, Persisted
from regraft.runtime import segments
from regraft.runtime.disk import Disk

RECORD = 512
BLOCK = 4096
KEPT = 4  # segments


class Layout(NamedTuple):
    """How much is written at a time."""

    segment: int  # bytes
    batch: int  # records, so that some batches lie in two segments, and few begin with a block


SMALL = Layout(32 * RECORD, 3)
LARGE = Layout(2048 * RECORD, 301)


def layout_of(mode: str) -> Layout:
    """What a mode writes."""
    return LARGE if mode in ("large", "reserved", "hasty") else SMALL


def record(number: int) -> bytes:
    """What stands in the journal for a number."""
    return number.to_bytes(8, "big") * (RECORD // 8)


def pieces(start: int, layout: Layout) -> tuple[Piece, ...]:
    """A batch, cut where a segment ends."""
    parts: dict[int, list[int]] = {}
    for number in range(start, start + layout.batch):
        parts.setdefault(number * RECORD // layout.segment * layout.segment, []).append(number)
    return tuple(
        piece(first, numbers[0] * RECORD - first, b"".join(map(record, numbers)))
        for first, numbers in parts.items()
    )


def piece(first: int, offset: int, data: bytes) -> Piece:
    """It lies in memory as it does in the file, as what a recorder gives does."""
    room = memoryview(mmap.mmap(-1, len(data) + BLOCK))[offset % BLOCK :][: len(data)]
    room[:] = data
    return Piece(first, offset, room.toreadonly())


def main() -> None:
    """Write until killed."""
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    reported: SimpleQueue[Event] = SimpleQueue()
    disk = Disk(folder, reported.put)
    if mode == "nameless":
        segments.sync_folder = lambda path: None
    if mode == "hasty":
        pwritev = os.pwritev
        os.pwritev = lambda file, parts, offset, flags: pwritev(file, parts, offset)
    new = mode in ("reserved", "hasty")
    if new:
        disk._is_calm = lambda first: False
    layout = layout_of(mode)
    size = layout.segment
    number = 0
    while True:
        batch = pieces(number, layout)
        for first, offset, data in batch:
            if offset <= size * 3 // 4 < offset + len(data):
                disk.perform(PrepareSegment(first + size, size))
            gone = first - (KEPT + 1) * size
            if offset == 0 and new:  # no segment is used again
                (folder / segments.segment_name(gone)).unlink(missing_ok=True)
            elif offset == 0:
                disk.perform(RemoveSegment(gone))
        disk.perform(Persist(batch, size))
        while not isinstance(event := reported.get(), Persisted):
            if isinstance(event, DiskFailed):
                print("failed", event.what, event.errno, flush=True)
                disk.close()
                sys.exit(1)
        number += layout.batch
        print(number - 1, flush=True)


if __name__ == "__main__":
    main()
