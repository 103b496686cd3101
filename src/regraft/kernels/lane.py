"""The data lane: batches of message frames in, batches of bytes for every taker out.

A `Source` is a connection that publishes, an `Outlet` a session that receives, a `Route` who takes
the messages of a topic. `Lane.run` walks the frames of one read: it checks each, looks its topic
up, and joins neighbouring messages with the same takers to a *run*. A run costs each taker one
transfer header and one copy, or none: a long one is handed on as a slice of the bytes that were
read. There is no Python object per message.

The lane stops at whatever is no message and says why in `stop`; the node does the rest and calls
again. What an outlet has gathered is fetched with `Outlet.gather` before the bytes
that were read are given back.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.checksum import crc32c_at, pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import (
        HEADER,
        MESSAGE,
        TRANSFER,
        cut,
        put_header,
        put_u32,
        u32,
        writable,
    )
    from regraft.kernels.selection import Choice

    STOP_END = 0
    STOP_CONTROL = 1
    STOP_FAULT = 2

    SLICE_BYTES = 2048

    def copy(target: Any, at: int, p: Any, start: int, end: int) -> None:
        """Copy p[start:end] to `at`."""
        target[at : at + end - start] = p[start:end]

    def copy_bytes(target: Any, at: int, data: bytes) -> None:
        """Copy all of data to `at`."""
        target[at : at + len(data)] = data

    def is_topic(topic: bytes, p: Any, start: int, end: int) -> bool:
        """Whether p[start:end] is this topic."""
        return bool(topic == p[start:end])

    def u64(p: Any, i: int) -> int:
        """The eight bytes at i as a number."""
        return int.from_bytes(p[i : i + 8], "little")


# Why a lane stopped.
END = 0  # what follows is no whole frame
CONTROL = 1  # a whole, checked frame that is no message: kind, flags, end
FAULT = 2  # the bytes are wrong: fault, and fault_detail (a size, or a fault of the envelope)

# What is wrong.
BAD_CHECK, BAD_CHECKSUM, TOO_SHORT, TOO_LARGE, BAD_ENVELOPE, BAD_FLAGS = 1, 2, 3, 4, 5, 6

NOT_SUPPORTED = 27  # as in regraft.errors: what the control lane would have to do


class Outlet:
    """What one session receives, gathered over one batch."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.slow = False  # set by the node: copy runs to `waiting` instead of gathering them
        self.dirty = False
        self.messages = 0
        self.size = 0
        self.waiting: list[tuple[bytes, int, bytes, int]] = []
        self.pieces: list[Any] = []
        self.scratch = bytearray()
        self.used = 0
        self.run_at = -1
        self.run_count = 0
        self.run_ids = b""

    def reserve(self, size: int) -> None:
        """Make room for `size` more bytes in the scratch buffer."""
        if self.used + size > len(self.scratch):
            # A new buffer, never a resize: the last gathering may still be looking at the old one.
            larger = bytearray(max(512, 2 * len(self.scratch), self.used + size))
            larger[: self.used] = memoryview(self.scratch)[: self.used]
            self.scratch = larger

    def open_run(self, ids: bytes) -> None:
        """Begin a transfer header for runs with these subscriptions."""
        self.reserve(HEADER + 5 + len(ids))
        target = writable(self.scratch)
        at = self.used + HEADER
        target[at] = 0x0D  # field 1, fixed32: the count, filled in when the run is closed
        copy_bytes(target, at + 5, ids)
        self.run_at = self.used
        self.run_ids = ids
        self.run_count = 0
        self.used = at + 5 + len(ids)

    def close_run(self) -> None:
        """Fill in the count and the checksums of the transfer header that is open, if one is."""
        if self.run_at < 0:
            return
        target = writable(self.scratch)
        put_u32(target, self.run_at + HEADER + 1, self.run_count)
        put_header(target, self.run_at, TRANSFER, 5 + len(self.run_ids))
        self.run_at = -1

    def append(
        self, view: Any, p: Any, start: int, end: int, ids: bytes, count: int, expiration: int
    ) -> None:
        """Take the run p[start:end] of `count` messages for the subscriptions `ids`."""
        size = end - start
        self.messages += count
        self.size += size
        if self.slow:
            self.waiting.append((ids, count, cut(p, start, end), expiration))
            return
        if self.run_at < 0 or self.run_ids is not ids:
            self.close_run()
            self.open_run(ids)
        self.run_count += count
        if size < SLICE_BYTES:
            self.reserve(size)
            copy(writable(self.scratch), self.used, p, start, end)
            self.used += size
        else:
            self.spill()
            self.pieces.append(view[start:end])

    def spill(self) -> None:
        """Move what is in the scratch buffer to the pieces."""
        self.close_run()
        if self.used:
            self.pieces.append(bytes(memoryview(self.scratch)[: self.used]))
            self.used = 0

    def gather(self, last: bool) -> list[Any]:
        """All that was gathered, in order; good until the bytes that were read are given back.

        With `last` nothing more is gathered before that, so that the scratch buffer itself will do.
        """
        self.close_run()
        pieces = self.pieces
        if self.used:
            scratch = memoryview(self.scratch)[: self.used]
            pieces.append(scratch if last else bytes(scratch))
        if len(self.scratch) > 16384 and len(self.scratch) > 8 * self.used:
            self.scratch = bytearray()
        self.pieces = []
        self.used = 0
        self.messages = 0
        self.size = 0
        self.dirty = False
        return pieces

    def clear(self) -> None:
        """Let go of the memory: nothing comes here any more, though old routes may know it."""
        self.pieces = []
        self.waiting = []
        self.scratch = bytearray()
        self.used = 0
        self.run_at = -1


class Route:
    """Who takes the messages of a topic: outlets, each with its subscriptions, encoded.

    `refusal` is an error code for topics that may not be published to. Where takers have selectors
    there is a `choice`, which knows the route for each message.
    """

    def __init__(
        self,
        takers: list[tuple[Outlet, bytes]],
        refusal: int = 0,
        choice: Choice | None = None,
    ) -> None:
        self.outlets = [outlet for outlet, _ in takers]
        self.subscriptions = [ids for _, ids in takers]
        self.refusal = refusal
        self.choice = choice


class Source:
    """One connection that publishes: its counts, and the routes it has asked for."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.messages = 0  # MESSAGE frames taken since the connection opened,
        self.size = 0  # and their bytes
        self.generation = -1
        self.routes: dict[bytes, Route] = {}
        self.topic = b""
        self.route: Route | None = None
        self.refusals: list[tuple[int, int, int]] = []  # ordinal, count, code


class Lane:
    """Routes message frames. `resolve` is asked for topics a source has not used before."""

    def __init__(
        self,
        frame_bytes_max: int,
        control_bytes_max: int,
        topics_max: int,
        resolve: Callable[[Source, bytes], Route],
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.control_bytes_max = control_bytes_max
        self.topics_max = topics_max
        self.resolve = resolve
        self.generation = 0  # grows when routes change
        self.dirty: list[Outlet] = []
        self.scan = Scan()
        smallest = bytearray(HEADER)
        put_header(writable(smallest), 0, MESSAGE, 0)
        self.head = u64(pointer_to(smallest), 0)  # the first eight bytes of the last good header
        self.stop = 0
        self.fault = 0
        self.fault_detail = 0
        self.kind = 0
        self.flags = 0
        self.end = 0
        self.run_route: Route | None = None
        self.run_start = 0
        self.run_end = 0
        self.run_count = 0
        self.run_expiration = 0
        self.messages = 0
        self.size = 0
        self.deliveries = 0
        self.delivered = 0  # bytes
        self.expired = 0
        self.refused = 0
        self.untaken = 0

    def run(self, source: Source, view: Any, pos: int, now_us: int) -> int:
        """Route the messages that stand at `pos`; the position where it stopped."""
        n = len(view)
        p = pointer_to(view)
        if source.generation != self.generation:
            source.routes.clear()
            source.route = None
            source.generation = self.generation
        self.stop = STOP_END
        while n - pos >= 8:
            head = u64(p, pos)
            kind = MESSAGE
            flags = 0
            if head != self.head:
                if not self.check_head(p, pos, head):
                    break
                kind = self.kind
                flags = self.flags
            end = pos + 4 + u32(p, pos)
            if end > n:
                break
            if crc32c_at(p, pos + HEADER, end) != u32(p, pos + 8):
                self.wrong(BAD_CHECKSUM, 0)
                break
            if kind != MESSAGE:
                self.stop = STOP_CONTROL
                self.end = end
                break
            fault = self.scan.scan(p, pos + HEADER, end)
            if fault:
                self.wrong(BAD_ENVELOPE, fault)
                break
            source.messages += 1
            source.size += end - pos
            self.scan.special |= flags
            self.message(source, view, p, pos, end, now_us)
            pos = end
        self.emit(view, p)
        return pos

    def check_head(self, p: Any, pos: int, head: int) -> bool:
        """Check the first eight bytes of a frame; those of a plain message are remembered."""
        kind = head >> 32 & 0xFF
        flags = head >> 40 & 0xFF
        length = u32(p, pos)
        if crc32c_at(p, pos, pos + 6) & 0xFFFF != head >> 48:
            self.wrong(BAD_CHECK, 0)
            return False
        if length < 8:
            self.wrong(TOO_SHORT, 0)
            return False
        if length + 4 > (self.frame_bytes_max if kind == MESSAGE else self.control_bytes_max):
            self.wrong(TOO_LARGE, length + 4)
            return False
        if flags > 1:
            self.wrong(BAD_FLAGS, 0)
            return False
        self.kind = kind
        self.flags = flags
        if kind == MESSAGE and flags == 0:
            self.head = head
        return True

    def wrong(self, fault: int, detail: int) -> None:
        """Stop because the bytes are wrong."""
        self.stop = STOP_FAULT
        self.fault = fault
        self.fault_detail = detail

    def message(self, source: Source, view: Any, p: Any, pos: int, end: int, now_us: int) -> None:
        """Add one checked message to the run it belongs to."""
        scan = self.scan
        route = source.route
        if route is None or not is_topic(source.topic, p, scan.topic_at, scan.topic_end):
            topic = cut(p, scan.topic_at, scan.topic_end)
            route = source.routes.get(topic)
            if route is None:
                route = self.look_up(source, topic)
            source.topic = topic
            source.route = route
        if scan.expiration and scan.expiration <= now_us:
            self.expired += 1
            return
        if route.refusal or scan.special:
            self.refuse(source, route.refusal or NOT_SUPPORTED)
            return
        if route.choice is not None:
            route = route.choice.decide(scan, p, pos + HEADER, end)
        if route is not self.run_route or pos != self.run_end:
            self.emit(view, p)
            self.run_route = route
            self.run_start = pos
        self.run_end = end
        self.run_count += 1
        if scan.expiration and (self.run_expiration == 0 or scan.expiration < self.run_expiration):
            self.run_expiration = scan.expiration

    def look_up(self, source: Source, topic: bytes) -> Route:
        """Ask for a route, and remember it for this source."""
        route = self.resolve(source, topic)
        if len(source.routes) >= self.topics_max:
            source.routes.clear()
        source.routes[topic] = route
        return route

    def refuse(self, source: Source, code: int) -> None:
        """Note that the last message was not taken; neighbours with the same code are one note."""
        self.refused += 1
        refusals = source.refusals
        ordinal = source.messages
        count = 1
        if refusals:
            first, before, last = refusals[len(refusals) - 1]
            if last == code and first + before == ordinal:
                refusals.pop()
                ordinal = first
                count = before + 1
        refusals.append((ordinal, count, code))

    def emit(self, view: Any, p: Any) -> None:
        """Hand the run that is open to its takers."""
        route = self.run_route
        if route is None:
            return
        size = self.run_end - self.run_start
        takers = len(route.outlets)
        self.messages += self.run_count
        self.size += size
        self.deliveries += takers * self.run_count
        self.delivered += takers * size
        if takers == 0:
            self.untaken += self.run_count
        for k in range(takers):
            outlet = route.outlets[k]
            if not outlet.dirty:
                outlet.dirty = True
                self.dirty.append(outlet)
            ids = route.subscriptions[k]
            outlet.append(
                view, p, self.run_start, self.run_end, ids, self.run_count, self.run_expiration
            )
        self.run_route = None
        self.run_count = 0
        self.run_expiration = 0

    def take_dirty(self) -> list[Outlet]:
        """The outlets that got something since the last call."""
        dirty = self.dirty
        self.dirty = []
        return dirty
