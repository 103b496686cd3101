"""Looking at the messages of a transaction before it is decided.

What is wrong with them has to be found before any of them counts. So each is checked as the lane
will check it; which topics they have is gathered, so that somebody can say whether all are allowed.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

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


class Bundle:
    """What some frames amount to."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.topic = b""
        self.topics: set[bytes] = set()
        self.messages = 0
        self.delayed = 0  # of them, to be delivered later
        self.addressed = 0  # to one peer, or by rules of their own
        self.sequenced = 0  # with a sequence of their publisher
        self.scan = Scan()

    def check(self, view: Any, persistent: bool, now_us: int) -> int:
        """Look at frames, which are all whole messages, and persistent or not as is said.

        How many there are; ValueError says what is wrong with one of them.
        """
        p = pointer_to(view)
        n = len(view)
        pos = 0
        before = self.messages
        while pos < n:
            if n - pos < HEADER:
                raise ValueError("the last message is not complete")
            if crc32c_at(p, pos, pos + 6) & 0xFFFF != p[pos + 6] | p[pos + 7] << 8:
                raise ValueError("the check of a frame's header is wrong")
            size = u32(p, pos) + 4
            if size < HEADER or size > self.frame_bytes_max:
                raise ValueError(f"a frame has {size} bytes; limit frame_bytes is another")
            if p[pos + 4] != MESSAGE or p[pos + 5]:
                raise ValueError("a frame is no message")
            if size > n - pos:
                raise ValueError("the last message is not complete")
            if crc32c_at(p, pos + HEADER, pos + size) != u32(p, pos + 8):
                raise ValueError("the payload of a frame is damaged")
            self.look(p, pos, pos + size, persistent, now_us)
            pos += size
        return self.messages - before

    def look(self, p: Any, pos: int, end: int, persistent: bool, now_us: int) -> bool:
        """Check one envelope."""
        scan = self.scan
        fault = scan.scan(p, pos + HEADER, end)
        if fault:
            raise ValueError(f"an envelope is not well formed: {FAULTS[fault]}")
        if (scan.special & 1 != 0) != persistent:
            raise ValueError("a message is persistent and should not be, or the other way round")
        self.messages += 1
        if scan.special & 2:
            self.addressed += 1
        if scan.seen >> 11 & 1:
            self.sequenced += 1
        if scan.deliver_at > now_us:
            self.delayed += 1
        if not is_topic(self.topic, p, scan.topic_at, scan.topic_end):
            self.topic = cut(p, scan.topic_at, scan.topic_end)
            self.topics.add(self.topic)
        return True
