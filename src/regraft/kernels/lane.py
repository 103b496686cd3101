"""The data lane: batches of message frames in, batches of bytes for every taker out.

A `Source` is a connection that publishes, an `Outlet` a session that receives, a `Route` who takes
the messages of a topic; where they have selectors, a `Choice` finds the route of each message.
`Lane.run` walks the frames of one read: it checks each, looks its topic up, and joins neighbouring
messages with the same takers to a *run*. A run costs each taker one transfer header and one copy,
or none: a long one is handed on as a slice of the bytes that were read. There is no Python object
per message.

What comes from another node says where it began: its *stream*, which is all that one publisher sent
over one connection, and its ordinal there. A node takes each stream only forward. So nothing comes
twice, and nothing old after something new, whatever ways it took while the tree changed.

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
        ORIGIN,
        QUESTION,
        REPLY,
        cut,
        put_header,
        u32,
        writable,
    )
    from regraft.kernels.groups import Group, Screening
    from regraft.kernels.keeper import Keeper
    from regraft.kernels.outlet import STREAM_BYTES, Outlet, Route, is_topic
    from regraft.kernels.takers import Choice
    from regraft.kernels.windows import Window

    STOP_END = 0
    STOP_CONTROL = 1
    STOP_FAULT = 2

    KEPT_AT = 10  # in a stream: its lowest bit says whether what it has is kept where it begins

    def u64(p: Any, i: int) -> int:
        """The eight bytes at i as a number."""
        return int.from_bytes(p[i : i + 8], "little")


# Why a lane stopped.
END = 0  # what follows is no whole frame
CONTROL = 1  # a whole, checked frame that is no message: kind, flags, end
FAULT = 2  # the bytes are wrong: fault, and fault_detail (a size, or a fault of the envelope)

# What is wrong.
BAD_CHECK, BAD_CHECKSUM, TOO_SHORT, TOO_LARGE, BAD_ENVELOPE, BAD_FLAGS = 1, 2, 3, 4, 5, 6
BAD_ORIGIN = 7

STREAMS_MAX = 100_000  # that are remembered; those that were silent for longest are forgotten
_NEVER = (1 << 63) - 1

# Why a message that should have gone somewhere did not.
NO_MEMBER, MEMBERS_FULL, NO_TAKER = 1, 2, 3

PICKS_MAX = 4096  # routes to chosen members that are remembered for one topic

PEER = b"$peer/"  # in front of a direct address: the topic that its owner has subscribed to
OVERRIDE = b"\0"  # in front of rules that a message carries: a key of routes that is no topic
RECEIVED_TYPE = 113  # "I have your request": not yet an answer
TYPES_OF_THE_BUS = 99  # and below

# As in regraft.errors:
LIMIT_EXCEEDED = 25
NOT_SUPPORTED = 27  # what the control lane would have to do
SEQUENCE_TOO_OLD = 28
MAILBOX_FULL = 32
JOURNAL_FAILED = 54


class Seen:
    """How far a stream is."""

    def __init__(self, last: int) -> None:
        self.last = last  # the ordinal of its newest message


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
        self.publisher = 0  # its number in the journal, once it published something persistent
        self.window: Window | None = None
        self.outlet: Outlet | None = None  # of a link: what comes from it does not go back
        self.member: Outlet | None = None  # of a member of groups: its answers count there
        self.again = False  # what it publishes was taken before: it is not judged once more
        self.foreign = False  # what comes has an origin elsewhere:
        self.stream = b""  # the stream, encoded,
        self.kept_stream = b""  # that of persistent messages, which keep an order of their own,
        self.ordinal = 0  # the ordinal of the next message,
        self.seen: Seen | None = None  # and how far the stream was already

    def resume(self, stream: bytes, first: int) -> None:
        """Messages that were taken before follow, to be handed on."""
        self.foreign = True
        self.stream = self.kept_stream = stream
        self.ordinal = first


class Lane:
    """Routes message frames. `resolve` is asked for topics a source has not used before."""

    def __init__(
        self,
        frame_bytes_max: int,
        control_bytes_max: int,
        topics_max: int,
        resolve: Callable[[Source, bytes], Route],
        introduce: Callable[[Source], None] | None = None,
        mark: int = 0,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.control_bytes_max = control_bytes_max
        self.topics_max = topics_max
        self.resolve = resolve
        self.introduce = introduce  # asked to give a source its publisher and window
        self.keeper: Keeper | None = None  # without one nothing persistent is taken
        self.generation = 0  # grows when routes change
        self.only: Outlet | None = None  # nobody else gets anything
        self.later: Route | None = None  # to where messages wait for their time,
        self.postpone: Callable[[], Route] | None = None  # asked when it is needed first
        # Asked who a message is for that says so: a route, or an error's number.
        self.constrain: Callable[[bytes, Route], Any] | None = None
        self.mark = b"\x09" + mark.to_bytes(8, "little")  # what the streams of this node begin with
        self.trusting = False  # a planted bug: streams are taken as they come
        self.last_stream = 0
        self.streams: dict[bytes, Seen] = {}
        self.older: dict[bytes, Seen] = {}
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
        self.run_ordinal = 0  # of its last message
        self.run_priority = 0
        self.run_first = 0  # where its stream is with the first
        self.messages = 0
        self.size = 0
        self.deliveries = 0
        self.delivered = 0  # bytes
        self.forwarded = 0  # to other nodes
        self.expired = 0
        self.refused = 0
        self.untaken = 0
        self.repeated = 0  # by other nodes: it was here before, or something newer was
        self.unplaced: list[tuple[int, Any, int, bytes]] = []  # source, group, why, frame
        self.screening = Screening()

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
                if kind == ORIGIN and source.outlet is not None:
                    self.emit(source, view, p, now_us)
                    if not self.begin_stream(source, p, pos + HEADER, end):
                        break
                    pos = end
                    continue
                self.stop = STOP_CONTROL
                self.end = end
                break
            fault = self.scan.scan(p, pos + HEADER, end)
            if fault:
                self.wrong(BAD_ENVELOPE, fault)
                break
            source.messages += 1
            source.size += end - pos
            self.scan.special |= flags << 2
            self.message(source, view, p, pos, end, now_us)
            pos = end
        self.emit(source, view, p, now_us)
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
        large = kind in (MESSAGE, QUESTION, REPLY)
        if length + 4 > (self.frame_bytes_max if large else self.control_bytes_max):
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

    def begin_stream(self, source: Source, p: Any, at: int, end: int) -> bool:
        """Another node says where what follows comes from."""
        ordinal = at + STREAM_BYTES
        size = STREAM_BYTES + 9
        plain = not self.flags and end - at == size and p[at] == 9 and p[at + 9] == 17
        if not plain or p[ordinal] != 25 or p[ordinal + 8] > 63:  # nobody counts up to 2^62
            self.wrong(BAD_ORIGIN, 0)
            return False
        source.ordinal = u64(p, ordinal + 1)
        if not source.foreign or not is_topic(source.stream, p, at, at + STREAM_BYTES):
            source.foreign = True
            source.stream = source.kept_stream = cut(p, at, at + STREAM_BYTES)
            source.seen = None if self.trusting else self.find_stream(source.stream)
        return True

    def find_stream(self, stream: bytes) -> Seen:
        """How far a stream is; the own ones need not come back at all."""
        seen = self.streams.get(stream)
        if seen is None:
            seen = self.older.get(stream)
            if seen is None:
                seen = Seen(_NEVER if stream.startswith(self.mark) else -1)
            if len(self.streams) >= STREAMS_MAX:
                self.older = self.streams
                self.streams = {}
            self.streams[stream] = seen
        return seen

    def name_stream(self, source: Source) -> None:
        """What a source sends begins here: two streams, as persistent messages take longer."""
        self.last_stream += 2
        source.stream = self.mark + b"\x11" + self.last_stream.to_bytes(8, "little")
        source.kept_stream = self.mark + b"\x11" + (self.last_stream + 1).to_bytes(8, "little")

    def message(self, source: Source, view: Any, p: Any, pos: int, end: int, now_us: int) -> None:
        """Add one checked message to the run it belongs to."""
        scan = self.scan
        ordinal = source.messages
        if source.foreign:
            ordinal = source.ordinal
            source.ordinal += 1
            seen = source.seen
            if seen is not None:
                if ordinal <= seen.last:
                    self.repeated += 1
                    return
                seen.last = ordinal
        route = source.route
        if scan.special & 2:
            route = self.addressed(source, p)
        elif route is None or not is_topic(source.topic, p, scan.topic_at, scan.topic_end):
            topic = cut(p, scan.topic_at, scan.topic_end)
            route = source.routes.get(topic)
            if route is None:
                route = self.look_up(source, topic)
            source.topic = topic
            source.route = route
        if scan.expiration and scan.expiration <= now_us:
            self.expired += 1
            if scan.special & 1:
                self.emit(source, view, p, now_us)
                self.note(source, False)
            return
        if route.refusal or scan.special > 3:
            if route.refusal or not self.constrained(
                source, route, view, p, pos, end, now_us, ordinal
            ):
                self.refuse(source, route.refusal or NOT_SUPPORTED)
            return
        if scan.deliver_at > now_us and source.outlet is None and not source.again:
            self.delay(source, view, p, pos, end, now_us)
            return
        persists = route.persists
        if route.choice is not None:
            choice: Choice = route.choice
            link = source.outlet
            route = choice.decide(scan, p, pos + HEADER, end, 0 if link is None else link.bit)
        if route.groups is not None:
            route = self.pick(source, route, p, pos, pos + HEADER, end)
        elif (route.reports or scan.seen >> 21 & 1) and self.only is None:
            self.see_takers(source, route, p, pos, end)
        if (
            (scan.special & 1 or (persists and self.keeper))
            and self.only is None
            and (source.outlet is None or self.keeper)
        ):
            route = self.persistent(source, route, view, p, now_us)
            if route is None:
                return
        if (
            route is not self.run_route
            or pos != self.run_end
            or (route.waits and scan.priority != self.run_priority)
        ):
            self.emit(source, view, p, now_us)
            self.run_route = route
            self.run_start = pos
            self.run_priority = scan.priority
            self.run_first = ordinal
        self.run_end = end
        self.run_ordinal = source.messages
        self.run_count += 1
        if scan.expiration and (self.run_expiration == 0 or scan.expiration < self.run_expiration):
            self.run_expiration = scan.expiration

    def addressed(self, source: Source, p: Any) -> Route:
        """The route of a message that says itself where it wants to go."""
        scan = self.scan
        size = scan.field_raw[3] if scan.seen >> 3 & 1 else 0
        if size:
            key = PEER + cut(p, scan.field_end[3] - size, scan.field_end[3])
            member = source.member
            if member is not None and scan.seen >> 7 & 1 and member.in_flight > 0:
                type = scan.field_raw[4] if scan.seen >> 4 & 1 else 0
                if type == 0 or (type > TYPES_OF_THE_BUS and type != RECEIVED_TYPE):
                    member.in_flight -= 1
        else:
            key = OVERRIDE + cut(p, scan.field_end[20] - scan.field_raw[20], scan.field_end[20])
        route = source.routes.get(key)
        return self.look_up(source, key) if route is None else route

    def pick(self, source: Source, route: Route, p: Any, pos: int, start: int, end: int) -> Route:
        """The route to all takers, to one member of each group, and by screens that let it pass."""
        key: Any = None
        members: list[Any] = []
        groups: list[Any] = route.groups or []
        self.screening.envelope = None
        for k in range(len(groups)):
            group: Group = groups[k]
            if group.screen is not None:
                place = self.screening.ask(group, source.outlet, route, members, p, start, end)
            elif self.only is not None or (source.outlet is not None and not group.shared):
                continue  # the node where it was published has chosen
            elif group.any:
                place = group.pick()
            else:
                place = 0 if len(group.outlets) else -1
            if place >= 0 and group.any:
                member = group.members[place]
                key = member if key is None else (key, member)
                members.append(member)
            elif place == -1 or place == -2:
                group.unplaced += 1
                why = NO_MEMBER if place == -1 else MEMBERS_FULL
                self.unplaced.append((source.key, group, why, cut(p, pos, end)))
        picked = route.picks.get(key)
        if picked is None:
            if len(route.picks) >= PICKS_MAX:
                route.picks.clear()
            picked = route.picks[key] = route.with_members(members)
        return picked

    def constrained(
        self,
        source: Source,
        route: Route,
        view: Any,
        p: Any,
        pos: int,
        end: int,
        now_us: int,
        ordinal: int,
    ) -> bool:
        """Route a message that is for some receivers only; false if that cannot be done.

        It is for whoever is there and fits now: it can be neither kept nor delayed.
        """
        scan = self.scan
        if scan.special & 4 or self.constrain is None:
            return False
        if source.outlet is None and (scan.special & 1 or scan.deliver_at):
            return False
        route = self.decided(source, route, p, pos, pos + HEADER, end)
        found = self.constrain(cut(p, pos + HEADER, end), route)
        if type(found) is int:
            self.refuse(source, found)
            return True
        self.emit(source, view, p, now_us)
        self.alone(source, found, pos, end, ordinal)
        self.run_expiration = scan.expiration
        self.emit(source, view, p, now_us)
        return True

    def alone(self, source: Source, route: Route, pos: int, end: int, ordinal: int) -> None:
        """The message just scanned is a run of its own."""
        self.run_route = route
        self.run_start = pos
        self.run_end = end
        self.run_count = 1
        self.run_ordinal = source.messages
        self.run_first = ordinal
        self.run_priority = self.scan.priority
        self.run_expiration = 0

    def decided(
        self, source: Source, route: Route, p: Any, pos: int, start: int, end: int
    ) -> Route:
        """The route of the message just scanned, once selectors and groups have had their say."""
        if route.choice is not None:
            choice: Choice = route.choice
            link = source.outlet
            route = choice.decide(self.scan, p, start, end, 0 if link is None else link.bit)
        if route.groups is not None:
            route = self.pick(source, route, p, pos, start, end)
        return route

    def find_route(self, source: Source, view: Any) -> tuple[int, bytes, Route | None]:
        """Where a question goes: an error's number, or a fault, below 0; its topic; the route."""
        n = len(view)
        p = pointer_to(view)
        if source.generation != self.generation:
            source.routes.clear()
            source.route = None
            source.generation = self.generation
        scan = self.scan
        fault = scan.scan(p, 0, n)
        if fault:
            return -fault, b"", None
        topic = cut(p, scan.topic_at, scan.topic_end)
        if scan.special & 2:
            route = self.addressed(source, p)
        else:
            route = source.routes.get(topic) or self.look_up(source, topic)
        if route.refusal or scan.special & 1 or scan.deliver_at:
            return route.refusal or NOT_SUPPORTED, topic, None
        unplaced = len(self.unplaced)
        constrained = scan.special & 8
        route = self.decided(source, route, p, 0, 0, n)
        del self.unplaced[unplaced:]
        if constrained and self.constrain is not None:
            found = self.constrain(cut(p, 0, n), route)
            if type(found) is int:
                return found, topic, None
            route = found
        return 0, topic, route

    def give(self, outlet: Outlet, frame: bytes, ids: bytes) -> None:
        """Give one message to one taker, with a transfer header that ends in `ids`."""
        if not outlet.dirty:
            outlet.dirty = True
            self.dirty.append(outlet)
        n = len(frame)
        outlet.append(memoryview(frame), pointer_to(frame), 0, n, ids, 1, 0, 0)
        self.deliveries += 1
        self.delivered += n

    def see_takers(self, source: Source, route: Route, p: Any, pos: int, end: int) -> bool:
        """Somebody wants to know if nobody takes it."""
        asked = route.reports or self.scan.field_raw[21]
        if asked and route.is_empty():
            self.unplaced.append((source.key, None, NO_TAKER, cut(p, pos, end)))
            return False
        return True

    def delay(self, source: Source, view: Any, p: Any, pos: int, end: int, now_us: int) -> None:
        """Put a message that is not to be delivered yet where it waits for its time."""
        scan = self.scan
        keeper = self.keeper
        later = self.later
        if keeper is None or self.postpone is None or not scan.special & 1:
            self.refuse(source, NOT_SUPPORTED)
            return
        self.emit(source, view, p, now_us)
        if later is None:
            later = self.postpone()
        route = self.persistent(source, later, view, p, now_us)
        if route is None:
            return
        self.alone(source, route, pos, end, source.messages)
        id = u64(p, scan.field_end[1] - 8) if scan.seen >> 1 & 1 else 0
        due = scan.deliver_at
        topic = cut(p, scan.topic_at, scan.topic_end)
        self.emit(source, view, p, now_us)
        sequence = keeper.recorder.next_sequence(route.slots.a[0]) - 1
        keeper.delayed.append((due, sequence, id, topic, end - pos))

    def persistent(
        self, source: Source, route: Route, view: Any, p: Any, now_us: int
    ) -> Route | None:
        """Where a persistent message goes; none if it is refused or was published before."""
        keeper = self.keeper
        kept = route.kept
        if keeper is None or kept is None:
            self.refuse(source, NOT_SUPPORTED)
            return None
        if source.outlet is not None:  # it was safe before it came, and nothing here may stop it
            if self.run_end - self.run_start >= keeper.run_bytes_max:
                self.emit(source, view, p, now_us)
            return kept
        refusal = keeper.refusal
        if refusal and refusal == JOURNAL_FAILED:  # nothing is known for sure any more
            self.refuse(source, refusal)
            return None
        if refusal == 0 and keeper.full_count and keeper.is_full(kept.slots):
            refusal = MAILBOX_FULL
        scan = self.scan
        if scan.seen >> 11 & 1 and not source.again:
            if source.window is None and self.introduce is not None:
                self.introduce(source)
                if source.window is None and refusal == 0:  # a repetition would not be noticed
                    refusal = LIMIT_EXCEEDED
            if source.window is not None:
                verdict = source.window.accept(scan.field_raw[11])
                if verdict == 2:
                    self.refuse(source, SEQUENCE_TOO_OLD)
                    return None
                if verdict == 1:  # it was taken, whatever is the case now
                    self.emit(source, view, p, now_us)
                    self.note(source, True)
                    return None
                if refusal:
                    source.window.forget(scan.field_raw[11])
        if refusal:
            self.refuse(source, refusal)
            return None
        if self.run_end - self.run_start >= keeper.run_bytes_max:
            self.emit(source, view, p, now_us)
        return kept

    def note(self, source: Source, known: bool) -> None:
        """The last message is persistent and goes nowhere: it is confirmed in its turn."""
        keeper = self.keeper
        if keeper is not None:
            keeper.note(source, source.messages, known)

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

    def hold(self, source: Source, route: Route, p: Any, now_us: int) -> bool:
        """Have a run kept; whether it waits for that. What other nodes send does not."""
        keeper = self.keeper
        if keeper is None:
            return False
        start = self.run_start
        end = self.run_end
        count = self.run_count
        if source.outlet is not None:
            if source.stream[KEPT_AT] & 1:  # the node where it began keeps it for all mailboxes
                return False
            if not keeper.record(route, p, start, end, count, now_us, self.run_priority):
                self.refused += count
            return False
        keeper.keep(
            source,
            route,
            p,
            start,
            end,
            count,
            self.run_ordinal,
            self.run_expiration,
            now_us,
            self.run_priority,
            source.kept_stream,
            self.run_first,
        )
        return True

    def emit(self, source: Source, view: Any, p: Any, now_us: int) -> None:
        """Hand the run that is open to its takers."""
        route = self.run_route
        if route is None:
            return
        size = self.run_end - self.run_start
        if not source.stream:
            self.name_stream(source)
        self.messages += self.run_count
        self.size += size
        if route.waits and self.hold(source, route, p, now_us):
            self.run_route = None
            self.run_count = 0
            self.run_expiration = 0
            return
        takers = len(route.outlets)
        if takers == 0 and route.slots.n == 0:
            self.untaken += self.run_count
        for k in range(takers):
            outlet = route.outlets[k]
            if outlet.link:
                if outlet is source.outlet or outlet.muted:
                    continue
                if self.only is not None and outlet is not self.only:
                    continue
                self.forwarded += self.run_count
            elif self.only is not None:
                continue
            else:
                self.deliveries += self.run_count
                self.delivered += size
            if not outlet.dirty:
                outlet.dirty = True
                self.dirty.append(outlet)
            outlet.append(
                view,
                p,
                self.run_start,
                self.run_end,
                source.stream if outlet.link else route.subscriptions[k],
                self.run_count,
                self.run_expiration,
                self.run_first,
            )
        self.run_route = None
        self.run_count = 0
        self.run_expiration = 0

    def take_unplaced(self) -> list[tuple[int, Any, int, bytes]]:
        """What nobody took since the last call, and somebody should have."""
        unplaced = self.unplaced
        self.unplaced = []
        return unplaced

    def take_dirty(self) -> list[Outlet]:
        """The outlets that got something since the last call."""
        dirty = self.dirty
        self.dirty = []
        return dirty
