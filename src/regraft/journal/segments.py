"""The segments of a journal, in order and without a gap, and the newest bytes in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regraft.journal import format
from regraft.journal.format import Start
from regraft.journal.requests import Piece

BLOCK_BYTES = 256 * 1024


class Segments:
    """Which segments there are. The last one is open: records are still added to it."""

    def __init__(self, segments: Iterable[tuple[int, int]]) -> None:
        self._firsts: list[int] = []
        self._sizes: list[int] = []
        self.size = 0  # bytes of all files
        for first, size in segments:
            self.add(first, size)

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._sizes, strict=True)

    def add(self, first: int, size: int) -> None:
        """A segment was begun behind the last one."""
        assert not self._firsts or self.end == first, "segments follow one another"
        self._firsts.append(first)
        self._sizes.append(size)
        self.size += size

    def drop(self) -> int:
        """Forget the oldest; its name."""
        self.size -= self._sizes.pop(0)
        return self._firsts.pop(0)

    @property
    def oldest(self) -> int:
        """The first position that is still there."""
        return self._firsts[0] if self._firsts else 0

    @property
    def oldest_end(self) -> int:
        """Where the oldest segment ends."""
        return self._firsts[0] + self._sizes[0] if self._firsts else 0

    @property
    def open(self) -> int:
        """The first position of the open segment."""
        return self._firsts[-1] if self._firsts else 0

    @property
    def end(self) -> int:
        """Where the open segment will end."""
        return self._firsts[-1] + self._sizes[-1] if self._firsts else 0

    def find(self, position: int) -> tuple[int, int] | None:
        """The segment that a position lies in: (first, size)."""
        at = bisect_right(self._firsts, position) - 1
        if at < 0 or position >= self._firsts[at] + self._sizes[at]:
            return None
        return self._firsts[at], self._sizes[at]

    def following(self, first: int) -> int | None:
        """The name of the segment behind this one."""
        at = bisect_right(self._firsts, first)
        return self._firsts[at] if at < len(self._firsts) else None


class Found(NamedTuple):
    """A stretch of persisted bytes of one segment, in memory."""

    first: int
    offset: int  # in the segment, of the first byte
    view: memoryview


class _Block:
    """Some of it. It is written to only behind what readers may look at."""

    __slots__ = ("data", "filled", "first", "offset")

    def __init__(
        self, first: int, offset: int, data: bytes | bytearray | memoryview, filled: int
    ) -> None:
        self.first = first
        self.offset = offset
        self.data = data
        self.filled = filled

    @property
    def end(self) -> int:
        return self.first + self.offset + self.filled


class Tail:
    """The newest persisted bytes, so that readers that keep up need no disk."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.size = 0
        self._blocks: list[_Block] = []
        self._starts: list[int] = []

    def add(self, piece: Piece) -> None:
        """These bytes were persisted, behind what came before."""
        first, offset, data = piece
        last = self._blocks[-1] if self._blocks else None
        if (
            last is None
            or not isinstance(last.data, bytearray)
            or last.end != first + offset
            or last.first != first
            or last.filled + len(data) > len(last.data)
        ):
            if len(data) < BLOCK_BYTES:
                last = _Block(first, offset, bytearray(BLOCK_BYTES), 0)
            else:
                last = _Block(first, offset, data, len(data))
            self._blocks.append(last)
            self._starts.append(first + offset)
            self.size += len(last.data)
            self._shrink()
        if isinstance(last.data, bytearray):
            last.data[last.filled : last.filled + len(data)] = data
            last.filled += len(data)

    def find(self, position: int) -> Found | None:
        """The bytes from the block that holds this position, up to where the block ends."""
        at = bisect_right(self._starts, position) - 1
        if at < 0 or position >= self._blocks[at].end:
            return None
        block = self._blocks[at]
        view = memoryview(block.data)[: block.filled]
        skip = position - block.first - block.offset
        return Found(block.first, block.offset + skip, view[skip:])

    def _shrink(self) -> None:
        gone = 0
        while self.size > self.size_max and gone < len(self._blocks) - 1:
            self.size -= len(self._blocks[gone].data)
            gone += 1
        del self._blocks[:gone], self._starts[:gone]


def start_of(piece: Piece) -> Start:
    """What the START in the first piece of a segment says."""
    header = format.decode_header(memoryview(piece.data), piece.first)
    assert header is not None, "a segment begins with a START"
    return format.decode_start(memoryview(piece.data)[format.HEADER_BYTES : header.length])
