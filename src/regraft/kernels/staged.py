"""Looking at frames that are staged: messages to be published later, all of them or none.

What is wrong with them has to be found before they are promised. So each is checked as the lane
will check it, and it must be persistent, with a sequence above that of the one before.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

from regraft.kernels.envelope import FAULTS

if not cython.compiled:
    from regraft.kernels.checksum import crc32c_at, pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import HEADER, MESSAGE, cut, u32
    from regraft.kernels.outlet import is_topic

TOPICS_MAX = 4096  # that are remembered


class Inspection:
    """Checks the frames of one publisher, in their order. `topics` raises for a bad topic."""

    def __init__(self, frame_bytes_max: int, topics: Callable[[str], None]) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.topics = topics
        self.good: set[bytes] = set()
        self.topic = b""
        self.sequence = -1  # of the last message
        self.messages = 0
        self.scan = Scan()

    def check(self, view: Any) -> int:
        """Check the whole frames at the start of `view`; where what is no whole message begins.

        ValueError says what is wrong with one of them.
        """
        p = pointer_to(view)
        n = len(view)
        pos = 0
        while n - pos >= HEADER:
            if crc32c_at(p, pos, pos + 6) & 0xFFFF != p[pos + 6] | p[pos + 7] << 8:
                raise ValueError("the check of a frame's header is wrong")
            size = u32(p, pos) + 4
            if size < HEADER or size > self.frame_bytes_max:
                raise ValueError(f"a frame has {size} bytes; limit frame_bytes is another")
            if p[pos + 4] != MESSAGE or size > n - pos:
                break
            if p[pos + 5] or crc32c_at(p, pos + HEADER, pos + size) != u32(p, pos + 8):
                raise ValueError("the payload of a frame is damaged")
            self.look(p, pos, pos + size)
            pos += size
        return pos

    def look(self, p: Any, pos: int, end: int) -> bool:
        """Check one envelope."""
        scan = self.scan
        fault = scan.scan(p, pos + HEADER, end)
        if fault:
            raise ValueError(f"an envelope is not well formed: {FAULTS[fault]}")
        if scan.special != 1 or not scan.seen >> 11 & 1:
            raise ValueError("what is staged must be persistent and have a sequence")
        sequence = scan.field_raw[11]
        if sequence >> 62 or (self.sequence >= 0 and sequence <= self.sequence):
            raise ValueError(f"sequence {sequence} follows {self.sequence}")
        if not is_topic(self.topic, p, scan.topic_at, scan.topic_end):
            self.topic = cut(p, scan.topic_at, scan.topic_end)
            if self.topic not in self.good:
                self.topics(self.topic.decode())
                if len(self.good) >= TOPICS_MAX:
                    self.good.clear()
                self.good.add(self.topic)
        self.sequence = sequence
        self.messages += 1
        return True
