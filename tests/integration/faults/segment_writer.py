"""Uses the disk of a node as its journal does: `segment_writer.py FOLDER whole|nameless`.

Records of 512 bytes, each full of its number, fill small segments one after the other. The next
segment is prepared in time, the fifth last one dropped. A number that was persisted is a line of
the output. `nameless` never syncs the folder: a mistake that a power cut has to show.
"""

import sys
from pathlib import Path
from queue import SimpleQueue

from regraft.journal.requests import Persist, Piece, PrepareSegment, RemoveSegment
from regraft.node.event import DiskFailed, Event, Persisted
from regraft.runtime import segments
from regraft.runtime.disk import Disk

RECORD = 512
SEGMENT = 32 * RECORD
KEPT = 4  # segments
BATCH = 3  # records, so that some batches lie in two segments


def record(number: int) -> bytes:
    """What stands in the journal for a number."""
    return number.to_bytes(8, "big") * (RECORD // 8)


def pieces(start: int) -> tuple[Piece, ...]:
    """A batch, cut where a segment ends."""
    parts: dict[int, list[int]] = {}
    for number in range(start, start + BATCH):
        parts.setdefault(number * RECORD // SEGMENT * SEGMENT, []).append(number)
    return tuple(
        Piece(first, numbers[0] * RECORD - first, b"".join(map(record, numbers)))
        for first, numbers in parts.items()
    )


def main() -> None:
    """Write until killed."""
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    reported: SimpleQueue[Event] = SimpleQueue()
    disk = Disk(folder, reported.put)
    if mode == "nameless":
        segments.sync_folder = lambda path: None
    number = 0
    while True:
        batch = pieces(number)
        for piece in batch:
            if piece.offset == 24 * RECORD:
                disk.perform(PrepareSegment(piece.first + SEGMENT, SEGMENT))
            if piece.offset == 0:
                disk.perform(RemoveSegment(piece.first - (KEPT + 1) * SEGMENT))
        disk.perform(Persist(batch, SEGMENT))
        while not isinstance(event := reported.get(), Persisted):
            if isinstance(event, DiskFailed):
                print("failed", event.what, event.errno, flush=True)
                disk.close()
                sys.exit(1)
        number += BATCH
        print(number - 1, flush=True)


if __name__ == "__main__":
    main()
