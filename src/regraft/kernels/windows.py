"""De-duplication: which of a publisher's sequences have been taken already.

A `Window` knows the last WINDOW sequences at and below the highest it has seen. A publisher that
counts without gaps costs two numbers: everything from `start` to `highest` is known. The first gap,
or the first message that comes late, makes it a ring of bits, 8 KiB; `state` notices when that is
not needed any more.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import HEADER, MESSAGE, cut, u32, writable
    from regraft.kernels.outlet import is_topic

    NEW = 0
    KNOWN = 1
    TOO_OLD = 2

    WINDOW = 65536
    RING_BYTES = 8192
    RECENT = 256

    def recent_place(p: Any, start: int, end: int) -> int:
        """Where in the table a sender is, by the end of its name: that is where names differ."""
        if end - start < 4:
            return 0
        return (u32(p, end - 4) * 0x9E3779B1 & 0xFFFFFFFF) >> 24


DENSE, SPARSE = b"\x01", b"\x02"  # how a state begins: two numbers; or the highest, and the ring


class Window:
    """The sequences of one publisher."""

    def __init__(self, state: bytes = b"") -> None:
        self.highest = -1  # -1: nothing was accepted yet
        self.start = 0
        self.sparse = False  # whether there is a ring
        self.ring = bytearray()
        if state:
            self.restore(state)

    def accept(self, sequence: int) -> int:
        """Take a sequence: NEW if it was not taken before, KNOWN, or TOO_OLD to be sure.

        Those of 2^62 and above are never taken.
        """
        return TOO_OLD if sequence >> 62 else self.take(sequence)

    def take(self, sequence: int) -> int:
        """The same for what fits into 62 bits."""
        if sequence > self.highest:
            if self.sparse:
                self.advance(sequence)
            elif self.highest < 0:
                self.start = sequence
            elif sequence - self.highest > 1:
                self.spread()
                self.advance(sequence)
            self.highest = sequence
            return NEW
        if self.highest - sequence >= WINDOW:
            return TOO_OLD
        if not self.sparse:
            if sequence >= self.start:
                return KNOWN
            self.spread()
        return self.mark(sequence)

    def forget(self, sequence: int) -> None:
        """Undo that a sequence was accepted. The highest stays where it is."""
        if sequence >> 62 == 0:
            self.clear(sequence)

    def clear(self, sequence: int) -> None:
        """The same for what fits into 62 bits."""
        if sequence > self.highest or self.highest - sequence >= WINDOW:
            return
        if not self.sparse:
            self.spread()
        ring = writable(self.ring)
        ring[sequence % WINDOW >> 3] &= ~(1 << (sequence & 7)) & 255

    def mark(self, sequence: int) -> int:
        """Set the bit of a sequence within the window: NEW or KNOWN."""
        ring = writable(self.ring)
        at = sequence % WINDOW >> 3
        bit = 1 << (sequence & 7)
        if ring[at] & bit:
            return KNOWN
        ring[at] |= bit
        return NEW

    def advance(self, sequence: int) -> None:
        """Forget what leaves the window when `sequence` becomes the highest, and set its bit."""
        ring = writable(self.ring)
        at = self.highest + 1
        if sequence - at >= WINDOW:
            at = sequence - WINDOW + 1
        while at < sequence:
            if at & 7 == 0 and sequence - at >= 8:
                ring[at % WINDOW >> 3] = 0
                at += 8
            else:
                ring[at % WINDOW >> 3] &= ~(1 << (at & 7)) & 255
                at += 1
        ring[sequence % WINDOW >> 3] |= 1 << (sequence & 7)

    def spread(self) -> None:
        """From two numbers to a ring."""
        self.sparse = True
        self.ring = bytearray(RING_BYTES)
        ring = writable(self.ring)
        at = max(self.start, self.highest - WINDOW + 1)
        while at <= self.highest:
            ring[at % WINDOW >> 3] |= 1 << (at & 7)
            at += 1

    def condense(self) -> bool:
        """From a ring to two numbers, if everything known stands in one row up to the highest."""
        ring = writable(self.ring)
        lowest = max(0, self.highest - WINDOW + 1)
        at = self.highest
        while at >= lowest and ring[at % WINDOW >> 3] >> (at & 7) & 1:
            at -= 1
        start = at + 1
        while at >= lowest:
            if ring[at % WINDOW >> 3] >> (at & 7) & 1:
                return False
            at -= 1
        if start > self.highest:
            return False  # the highest itself was forgotten
        self.start = start
        self.sparse = False
        self.ring = bytearray()
        return True

    def state(self) -> bytes:
        """All that it knows, for `Window(state)`."""
        if self.highest < 0:
            return b""
        highest = self.highest.to_bytes(8, "little")
        if not self.sparse or self.condense():
            return DENSE + highest + self.start.to_bytes(8, "little")
        return SPARSE + highest + bytes(self.ring)

    def restore(self, state: bytes) -> None:
        """Know what a state says. ValueError if it is none."""
        highest = int.from_bytes(state[1:9], "little")
        rest = state[9:]
        start = int.from_bytes(rest, "little")
        dense = state[:1] == DENSE and len(rest) == 8 and start <= highest
        sparse = state[:1] == SPARSE and len(rest) == RING_BYTES
        if highest >> 62 or not (dense or sparse):
            raise ValueError("this is not the state of a window")
        self.highest = highest
        self.sparse = sparse
        if dense:
            self.start = start
        else:
            self.ring = bytearray(rest)


class Copies:
    """Which messages of which senders have come already, when each comes by several ways.

    Senders that were silent for longest are forgotten first. Most copies are of few senders, and of
    those that were known already: a table of recent senders finds a window without an object for
    the name. What is in it is in `windows`, so that it changes nothing but the time.
    """

    def __init__(self, senders_max: int = 4096) -> None:
        self.senders_max = senders_max
        self.windows: dict[bytes, Window] = {}
        self.older: dict[bytes, Window] = {}
        self.clear_recent()

    def clear_recent(self) -> None:
        """Have the table empty: nobody has no name."""
        self.recent_senders: list[bytes] = [b""] * RECENT
        self.recent_windows: list[Window | None] = [None] * RECENT

    def is_new(self, sender: bytes, sequence: int) -> bool:
        """Whether it did not come before; what is too old to be sure did."""
        return self.is_new_at(pointer_to(sender), 0, len(sender), sequence)

    def is_new_at(self, p: Any, start: int, end: int, sequence: int) -> bool:
        """The same for the sender p[start:end]."""
        at = recent_place(p, start, end)
        sender: bytes = self.recent_senders[at]
        window: Window | None = self.recent_windows[at]
        if window is None or not is_topic(sender, p, start, end):
            sender = cut(p, start, end)
            window = self.window_of(sender)
            self.recent_senders[at] = sender
            self.recent_windows[at] = window
        return window.accept(sequence) == NEW

    def window_of(self, sender: bytes) -> Window:
        """The window of a sender, which is among those that spoke last from now on."""
        window = self.windows.get(sender)
        if window is None:
            window = self.older.get(sender)
            if window is None:
                window = Window()
            if len(self.windows) >= self.senders_max:
                self.older = self.windows
                self.windows = {}
                self.clear_recent()
            self.windows[sender] = window
        return window


def sequences(view: Any, start: int, end: int) -> list[int]:
    """The publisher's own sequence of each message in view[start:end]; -1 where it gave none.

    ValueError if these are not whole messages.
    """
    found = []
    scan = Scan()
    p = pointer_to(view)
    if start < 0 or end > len(view):
        raise ValueError(f"there is no {start}:{end} in {len(view)} bytes")
    while start < end:
        size = 0
        if end - start >= HEADER:
            size = u32(p, start) + 4
        if size < HEADER or size > end - start or p[start + 4] != MESSAGE:
            raise ValueError(f"no whole message frame at {start}")
        if scan.scan(p, start + HEADER, start + size):
            raise ValueError(f"a malformed envelope at {start + HEADER}")
        if scan.seen >> 11 & 1:
            found.append(scan.field_raw[11])
        else:
            found.append(-1)
        start += size
    return found
