"""A data folder with a journal of small segments, written as a node writes it."""

from __future__ import annotations

import os
from pathlib import Path

from regraft.journal.journal import Journal
from regraft.journal.recovery import Recovered, recover
from regraft.journal.requests import Persist, PrepareSegment, RemoveSegment
from regraft.journal.streams import Mailbox, Publisher, Stream
from regraft.journal.walking import SegmentView
from regraft.limits import KIB, Limits
from regraft.model.message import DeliveryMode, Message, Value
from regraft.runtime.datafolder import DataFolder
from regraft.runtime.segments import open_segments
from regraft.wire import native

SEGMENT = 16 * KIB
LIMITS = Limits(
    segment_bytes=SEGMENT,
    frame_bytes=4 * KIB,
    control_frame_bytes=4 * KIB,
    selector_bytes=2 * KIB,
)
BEGAN_US = 1_763_200_000_000_000  # 2025-11-15T09:46:40Z
SECOND_US = 1_000_000


class Folder:
    """What a node would have left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_us = BEGAN_US
        DataFolder.open(path).close()
        self.files = path / "journal"
        self.files.mkdir()
        self.journal = Journal(self.recover(), LIMITS, self.now_us)
        self.orders: Stream = self.journal.make_stream("orders", "orders/#", False, self.now_us)
        self.billing: Mailbox = self.journal.make_mailbox(
            "billing", "orders", False, "", "till", self.now_us
        )
        self.publisher: Publisher = self.journal.publisher("shop", self.now_us)
        self.sent = 0

    def recover(self) -> Recovered:
        """What a node would find. DiskError if it would not start."""
        with open_segments(self.files) as segments:
            views = [SegmentView(*segment) for segment in segments]
            return recover(views, SEGMENT, "0123456789abcdef" * 2, self.now_us)

    def go_on(self) -> Recovered:
        """Let a node go on with what is there."""
        recovered = self.recover()
        for first in recovered.leftovers:
            (self.files / f"{first:016x}.seg").unlink()
        self.journal = Journal(recovered, LIMITS, self.now_us)
        state = self.journal.state
        self.orders, self.billing = state.names["orders"], state.mailboxes["billing"]
        self.publisher = self.journal.publisher("shop", self.now_us)
        return recovered

    def publish(
        self, count: int = 1, size: int = 200, attributes: dict[str, Value] | None = None
    ) -> None:
        """Publish orders, one record each, and have them persisted."""
        for _ in range(count):
            self.sent += 1
            self.now_us += SECOND_US
            body = f"order {self.sent} ".ljust(size, ".").encode()
            message = Message(
                "orders/eu",
                body,
                attributes or {"n": self.sent},
                sequence=self.sent,
                delivery_mode=DeliveryMode.PERSISTENT,
            )
            slots = [self.orders.slot, self.billing.slot]
            number = self.publisher.number
            frame = native.encode(message)
            self.journal.recorder.append_frames(frame, 1, number, slots, self.now_us)
            assert self.publisher.window is not None
            self.publisher.window.accept(self.sent)
            self.flush()

    def settle(self, first: int, last: int) -> None:
        """The reader of the mailbox is done with these."""
        self.journal.settle(self.billing.number, [(first, last)], self.now_us)
        self.flush()

    def snapshot(self) -> None:
        """Write one, so that a recovery does not look at what is older."""
        assert self.journal.write_snapshot(self.now_us)
        self.flush()

    def flush(self) -> None:
        """Persist what was appended, and do what else is asked for."""
        self.journal.flush(self.now_us)
        while self.journal.requests:
            request = self.journal.requests.pop(0)
            if isinstance(request, Persist):
                for first, offset, data in request.pieces:
                    self._write(first, offset, data, request.size)
                self.journal.persisted(self.now_us)
            elif isinstance(request, PrepareSegment):
                self._write(request.first, 0, b"", request.size)
                self.journal.prepared(request.first)
            elif isinstance(request, RemoveSegment):
                (self.files / f"{request.first:016x}.seg").unlink()
            self.journal.flush(self.now_us)

    def _write(self, first: int, offset: int, data: bytes, size: int) -> None:
        path = self.segment(first)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as stream:
            os.pwrite(stream.fileno(), data, offset)

    # ----------------------------------------------------------------------- damage

    def segment(self, first: int) -> Path:
        return self.files / f"{first:016x}.seg"

    @property
    def segments(self) -> list[Path]:
        return sorted(self.files.glob("*.seg"))

    def damage(self, path: Path, offset: int, data: bytes = b"\xff" * 16) -> None:
        """Overwrite some bytes."""
        with path.open("r+b") as stream:
            os.pwrite(stream.fileno(), data, offset)

    def place_of(self, path: Path, text: str) -> int:
        """The offset of a message with this in its body."""
        found = path.read_bytes().find(text.encode())
        assert found >= 0, f"{text} is not in {path}"
        return found

    def holder_of(self, text: str) -> tuple[Path, int]:
        """The segment and offset of a message with this in its body."""
        for path in self.segments:
            found = path.read_bytes().find(text.encode())
            if found >= 0:
                return path, found
        raise AssertionError(f"{text} is nowhere")

    def contents(self) -> dict[str, bytes]:
        """All files of the journal, to see that nothing was changed."""
        return {
            str(path.relative_to(self.files)): path.read_bytes()
            for path in self.files.rglob("*")
            if path.is_file()
        }
