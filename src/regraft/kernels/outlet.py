"""Where messages go: outlets, and routes that lead to them.

An `Outlet` gathers what one session receives over one batch. A run of messages costs it one
transfer header and one copy, or none: a long one is kept as a slice of the bytes that were read.

To another node messages go with their origin in front: the stream, which is what one publisher says
over one connection, and the ordinal of the first. What follows without one goes on counting.

`p` is a pointer when compiled, a memoryview when interpreted.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.arrays import Ints
    from regraft.kernels.frame import HEADER, ORIGIN, TRANSFER, cut, put_header, put_u32, writable

    SLICE_BYTES = 2048
    STREAM_BYTES = 18

    def put_u64(p: Any, i: int, value: int) -> None:
        """Write a number as eight bytes at i."""
        p[i : i + 8] = value.to_bytes(8, "little")

    def copy(target: Any, at: int, p: Any, start: int, end: int) -> None:
        """Copy p[start:end] to `at`."""
        target[at : at + end - start] = p[start:end]

    def copy_bytes(target: Any, at: int, data: bytes) -> None:
        """Copy all of data to `at`."""
        target[at : at + len(data)] = data

    def is_topic(topic: bytes, p: Any, start: int, end: int) -> bool:
        """Whether p[start:end] is this topic."""
        return bool(topic == p[start:end])


class Outlet:
    """What one session receives, gathered over one batch."""

    def __init__(self, key: int, slot: int = -1) -> None:
        self.key = key
        self.slot = slot  # of the stream in the journal that it stands for, if it is none of those
        self.group: Any = None  # the group that it stands for, likewise
        self.in_flight = 0  # of a member of groups: requests that it was given and has not answered
        self.in_flight_max = 0  # with so many of them it gets no more; 0: none for it
        self.link = False  # to another node: messages go there with their origin instead of ids
        self.bit = 0  # of a link: its bit in the match index
        self.gone = False  # nothing leads here any more, though subscriptions of it are left
        self.muted = False  # of a link: nothing goes there yet, whoever asks for it
        self.slow = False  # set by the node: copy runs to `waiting` instead of gathering them
        self.dirty = False
        self.messages = 0
        self.size = 0
        self.waiting: list[tuple[bytes, int, bytes, int, int]] = []
        self.pieces: list[Any] = []
        self.scratch = bytearray()
        self.used = 0
        self.run_at = -1
        self.run_count = 0
        self.run_ids = b""
        self.run_next = 0  # to another node: the ordinal that comes next without a word

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

    def put_origin(self, stream: bytes, first: int) -> None:
        """Say which stream what follows belongs to."""
        self.reserve(HEADER + STREAM_BYTES + 9)
        target = writable(self.scratch)
        at = self.used + HEADER
        copy_bytes(target, at, stream)
        target[at + STREAM_BYTES] = 0x19  # field 3, fixed64
        put_u64(target, at + STREAM_BYTES + 1, first)
        put_header(target, self.used, ORIGIN, STREAM_BYTES + 9)
        self.used = at + STREAM_BYTES + 9
        self.run_ids = stream

    def append(
        self,
        view: Any,
        p: Any,
        start: int,
        end: int,
        ids: bytes,
        count: int,
        expiration: int,
        first: int,
    ) -> None:
        """Take the run p[start:end] of `count` messages for the subscriptions `ids`.

        To another node `ids` is their stream, and `first` the ordinal of the first.
        """
        size = end - start
        self.messages += count
        self.size += size
        if self.slow:
            self.waiting.append((ids, count, cut(p, start, end), expiration, first))
            self.run_ids = b""
            return
        if self.link:
            if self.run_next != first or self.run_ids != ids:
                self.put_origin(ids, first)
            self.run_next = first + count
        else:
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
    there is a `Choice`, which knows the route of each message. Persistent messages go by the route
    `kept`: to the journal's streams in `slots`, and to its outlets once they are safe.
    """

    def __init__(
        self,
        takers: list[tuple[Outlet, bytes]],
        refusal: int = 0,
        choice: Any = None,
    ) -> None:
        self.outlets = [outlet for outlet, _ in takers]
        self.subscriptions = [ids for _, ids in takers]
        self.refusal = refusal
        self.choice = choice
        self.slots = Ints()
        self.waits = False  # for the journal
        self.persists = False  # what is not persistent is taken for it
        self.kept: Route | None = None
        self.groups: list[Any] | None = None  # of each of these one member takes a message, too
        self.picks: dict[Any, Route] = {}  # the routes to all takers and to chosen members
        self.reports = False  # somebody should have taken it, and there is nobody

    def is_empty(self) -> bool:
        """Whether nobody takes what goes this way, as far as can be known."""
        if self.outlets or self.groups is not None or self.choice is not None:
            return False
        return self.slots.n == 0 and (self.kept is None or self.kept.slots.n == 0)

    def with_members(self, members: list[tuple[Outlet, bytes]]) -> Route:
        """The same with some more takers, that were chosen from its groups."""
        route = Route(members)
        route.outlets = self.outlets + route.outlets
        route.subscriptions = self.subscriptions + route.subscriptions
        route.slots = self.slots
        route.waits = self.waits
        route.persists = self.persists
        if self.kept is not None:
            route.kept = self.kept.with_members(members)
        return route

    def persisting(self) -> Route:
        """The same for a topic where everything is kept."""
        route = Route([], self.refusal, self.choice)
        route.outlets = self.outlets
        route.subscriptions = self.subscriptions
        route.slots = self.slots
        route.waits = self.waits
        route.kept = self.kept
        route.groups = self.groups
        route.persists = True
        return route
