"""What a client publishes: messages in, frames out, one behind the other in one buffer.

The envelope is the one of `regraft.proto`; the reference of how it is written is
`regraft.model.message`, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regraft.errors import LocalError
from regraft.model.message import Timestamp

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.frame import HEADER, MESSAGE, cut, put_header, writable
    from regraft.kernels.outlet import copy_bytes

    def put_u64(p: Any, i: int, value: int) -> None:
        """Write eight bytes at i."""
        p[i : i + 8] = (value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")

    def put_double(p: Any, i: int, value: float) -> None:
        """Write a double at i."""
        p[i : i + 8] = struct.pack("<d", value)

    def mix(value: int) -> int:
        """Spread a counter over 64 bits, one to one (splitmix64)."""
        mask = 0xFFFFFFFFFFFFFFFF
        value = (value * 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    def zigzag(value: int) -> int:
        """A signed number as an unsigned one with small values for small amounts."""
        return (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF


INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class Outbox:
    """A buffer of message frames to be sent. `seed` is where its random ids begin."""

    def __init__(self, frame_bytes_max: int, seed: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.counter = seed
        self.buffer = bytearray(4096)
        self.used = 0
        self.at = 0
        self.persistent = False  # what is put in from now on
        self.sequence = 0  # of the last persistent message
        self.runs: list[tuple[int, int, int]] = []  # persistent ones: ordinal, sequence, count
        self.sent_messages = 0  # put in so far,
        self.sent_bytes = 0
        self.granted_messages = 0  # and allowed by the node
        self.granted_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether the node allows another message."""
        return self.sent_messages < self.granted_messages and self.sent_bytes < self.granted_bytes

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes from `at` on."""
        if self.at + size > len(self.buffer):
            larger = bytearray(max(2 * len(self.buffer), self.at + size))
            larger[: self.at] = memoryview(self.buffer)[: self.at]
            self.buffer = larger

    def varint(self, value: int) -> None:
        """Write a varint; there is room."""
        p = writable(self.buffer)
        i = self.at
        while value > 0x7F:
            p[i] = value & 0x7F | 0x80
            value >>= 7
            i += 1
        p[i] = value
        self.at = i + 1

    def field(self, tag: int, data: bytes) -> None:
        """Write a field of bytes."""
        self.reserve(12 + len(data))
        self.varint(tag)
        self.varint(len(data))
        copy_bytes(writable(self.buffer), self.at, data)
        self.at += len(data)

    def fixed(self, tag: int, value: int) -> None:
        """Write a field of eight bytes."""
        self.reserve(12)
        p = writable(self.buffer)
        p[self.at] = tag
        put_u64(p, self.at + 1, value)
        self.at += 9

    def value(self, name: str, value: Any) -> None:
        """Write the value of an attribute, as its type says."""
        kind = type(value)
        self.reserve(12)
        p = writable(self.buffer)
        if kind is str:
            self.field(0x2A, value.encode())
        elif kind is float:
            p[self.at] = 0x21
            put_double(p, self.at + 1, value)
            self.at += 9
        elif kind is bool:
            p[self.at] = 0x10
            p[self.at + 1] = 1 if value else 0
            self.at += 2
        elif kind is int:
            if not INT64_MIN <= value <= INT64_MAX:
                raise LocalError("bad-message", f"attribute {name!r} does not fit 64 bits")
            p[self.at] = 0x18
            self.at += 1
            self.varint(zigzag(value))
        elif kind is bytes:
            self.field(0x32, value)
        elif kind is Timestamp:
            if not INT64_MIN <= value.us <= INT64_MAX:
                raise LocalError("bad-message", f"attribute {name!r} does not fit 64 bits")
            self.fixed(0x39, value.us & 0xFFFFFFFFFFFFFFFF)
        else:
            raise LocalError(
                "bad-message",
                f"attribute {name!r} is a {kind.__name__}; it may be bool, int, float, str, bytes "
                "or Timestamp",
            )

    def attribute(self, name: str, value: Any) -> None:
        """Write an attribute: its length comes first, and is known last."""
        encoded = name.encode()
        if not 0 < len(encoded) <= 255:
            raise LocalError("bad-message", f"attribute name {name!r} must have 1 to 255 bytes")
        self.reserve(6)
        start = self.at
        self.at += 6  # a tag and five bytes of length
        self.field(0x0A, encoded)
        self.value(name, value)
        size = self.at - start - 6
        self.at = start
        self.varint(0x52)
        self.varint(size)
        shift = start + 6 - self.at
        if shift:
            p = writable(self.buffer)
            for i in range(self.at, self.at + size):
                p[i] = p[i + shift]
        self.at += size

    def put(
        self,
        topic: bytes,
        body: bytes,
        attributes: Mapping[str, Any] | None,
        timestamp_us: int,
        with_id: bool,
        rest: bytes,
    ) -> int:
        """Add a message; its ordinal. `rest` are further fields, encoded.

        A timestamp of 0 is left out. If it fails, nothing was added.
        """
        start = self.used
        self.at = start + HEADER
        self.reserve(64)
        if with_id:
            self.counter += 1
            self.fixed(0x09, mix(self.counter))
        self.field(0x2A, body)
        if timestamp_us:
            self.fixed(0x31, timestamp_us)
        self.field(0x4A, topic)
        if attributes:
            if len(attributes) > 256:
                raise LocalError("bad-message", "a message has 256 attributes at most")
            for name, value in attributes.items():
                self.attribute(name, value)
        if self.persistent:
            self.reserve(16)
            self.varint(0x58)
            self.varint(self.sequence + 1)
            self.varint(0x70)
            self.varint(1)
        self.raw(rest)
        self.finish(start)
        if self.persistent:
            self.sequence += 1
            self.note_run()
        return self.sent_messages

    def raw(self, data: bytes) -> None:
        """Write fields that are encoded already."""
        self.reserve(len(data))
        copy_bytes(writable(self.buffer), self.at, data)
        self.at += len(data)

    def finish(self, start: int) -> None:
        """The message that begins there is complete, unless it is too large."""
        size = self.at - start
        if size > self.frame_bytes_max:
            raise LocalError(
                "bad-message",
                f"the message has {size} bytes, and the node takes {self.frame_bytes_max} at most "
                "(limit frame_bytes); send less at a time, or raise the limit",
            )
        put_header(writable(self.buffer), start, MESSAGE, size - HEADER)
        self.used = self.at
        self.sent_messages += 1
        self.sent_bytes += size

    def put_request(
        self, topic: bytes, body: bytes, id: int, until_us: int, asking: bytes, rest: bytes
    ) -> None:
        """Add a request: `asking` says who asks, and where to answer."""
        start = self.used
        self.at = start + HEADER
        self.reserve(64)
        self.field(0x2A, body)
        self.field(0x4A, topic)
        self.fixed(0x09, id)
        self.fixed(0x69, until_us)
        self.raw(asking)
        self.raw(rest)
        self.finish(start)

    def put_answer(
        self, topic: bytes, body: bytes, references: int, to: bytes, sender: bytes, rest: bytes
    ) -> None:
        """Add an answer; `sender` and `rest` are fields, encoded."""
        start = self.used
        self.at = start + HEADER
        self.reserve(64)
        self.field(0x2A, body)
        self.field(0x4A, topic)
        self.fixed(0x39, references)
        self.field(0x1A, to)
        self.raw(sender)
        self.raw(rest)
        self.finish(start)

    def put_again(self, frame: bytes, sequence: int) -> None:
        """Add a persistent message as it was put in before, perhaps elsewhere."""
        self.at = self.used
        self.reserve(len(frame))
        copy_bytes(writable(self.buffer), self.at, frame)
        self.used += len(frame)
        self.sent_messages += 1
        self.sent_bytes += len(frame)
        self.sequence = sequence
        self.note_run()

    def note_run(self) -> bool:
        """The last message was persistent: its run has one more, or another begins."""
        if self.runs:
            ordinal, sequence, count = self.runs[len(self.runs) - 1]
            if ordinal + count == self.sent_messages and sequence + count == self.sequence:
                self.runs[len(self.runs) - 1] = (ordinal, sequence, count + 1)
                return True
        self.runs.append((self.sent_messages, self.sequence, 1))
        return True

    def safe(self, ordinal: int, count: int) -> list[tuple[int, int]]:
        """The node has `count` messages up to `ordinal`: sequences of those, first and how many.

        All persistent ones before them are dealt with, too, and forgotten here.
        """
        first = ordinal - count + 1
        found: list[tuple[int, int]] = []
        done = 0
        for at, sequence, n in self.runs:
            if at > ordinal:
                break
            low = max(at, first)
            high = min(at + n - 1, ordinal)
            if low <= high:
                found.append((sequence + low - at, high - low + 1))
            if at + n - 1 > ordinal:
                left = at + n - 1 - ordinal
                self.runs[done] = (ordinal + 1, sequence + n - left, left)
                break
            done += 1
        del self.runs[:done]
        return found

    def sequences_of(self, ordinal: int, count: int) -> list[tuple[int, int]]:
        """The sequences of the persistent ones among `count` messages from `ordinal` on."""
        found: list[tuple[int, int]] = []
        for at, sequence, n in self.runs:
            low = max(at, ordinal)
            high = min(at + n, ordinal + count)
            if low < high:
                found.append((sequence + low - at, high - low))
        return found

    def put_many(
        self,
        topic: bytes,
        bodies: list[Any],
        start: int,
        attributes: Mapping[str, Any] | None,
        timestamp_us: int,
        with_id: bool,
        rest: bytes,
        used_max: int,
    ) -> int:
        """Add messages from `start` on; where it stopped.

        It stops when there is no more credit, when the buffer is full enough, and before a body
        that is not bytes.
        """
        n = len(bodies)
        while start < n and self.used < used_max:
            body = bodies[start]
            if type(body) is not bytes:
                break
            if self.sent_messages >= self.granted_messages or self.sent_bytes >= self.granted_bytes:
                break
            self.put(topic, body, attributes, timestamp_us, with_id, rest)
            start += 1
        return start

    def take(self) -> bytes:
        """All that is in the buffer, which is empty afterwards."""
        data = cut(writable(self.buffer), 0, self.used)
        self.used = 0
        if len(self.buffer) > 1 << 20:
            self.buffer = bytearray(4096)
        return data
