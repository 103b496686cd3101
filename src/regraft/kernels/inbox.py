"""What a client receives: bytes in, messages and control frames out.

A message object costs one copy of its envelope, so that keeping it keeps nothing else alive. Its
topic and body are found by the scan that checked it; everything else is decoded when it is asked
for, once, by the reference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any

import msgspec

from regraft.errors import LocalError, PeerError
from regraft.kernels.envelope import FAULTS
from regraft.model.message import Message, Value, decode_envelope
from regraft.model.messagetype import decode_value

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.checksum import crc32c_at, pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import HEADER, MESSAGE, TRANSFER, cut, u32, writable
    from regraft.kernels.outlet import is_topic
    from regraft.kernels.windows import Copies

    start_of = memoryview  # of bytes: a pointer when compiled
    start_of_any = memoryview

    def u64(p: Any, i: int) -> int:
        """The eight bytes at i as a number."""
        return int.from_bytes(p[i : i + 8], "little")

    def part(data: bytes, start: int, end: int) -> bytes:
        """A copy of data[start:end]."""
        return data[start:end]

    def untrack(message: Any) -> None:
        """Tell the garbage collector to look elsewhere; interpreted, it has its way."""


class Nothing:
    """Nothing to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


NOTHING = Nothing()
SCAN = Scan()  # of messages that are looked at once more


class ReceivedMessage:
    """A message as it was received. `subscriptions` are the ids of those that it matched.

    `sequence` is its place in the mailbox or the stream that it came from, or 0.
    """

    def __init__(self, envelope: bytes) -> None:
        scan = Scan()
        fault = scan.scan(pointer_to(envelope), 0, len(envelope))
        if fault:
            raise PeerError("malformed-envelope", f"an envelope is refused: {FAULTS[fault]}")
        self.envelope = envelope
        self.topic = envelope[scan.topic_at : scan.topic_end].decode()
        self.body_at = scan.body_at
        self.body_end = scan.body_end
        self.note(scan, pointer_to(envelope), 0)
        self.subscriptions: tuple[int, ...] = ()
        self.sequence = 0
        self.attempts = 0
        self.question = 0  # what replies refer to, if it is one
        self.settler: Any = None
        self.whole: Message | None = None

    def note(self, scan: Scan, p: Any, start: int) -> None:
        """Keep of a scan what answers are known by: this way nobody has to look again."""
        seen = scan.seen
        self.references = u64(p, scan.field_end[7] - 8) if seen >> 7 & 1 else 0
        self.number = scan.field_raw[4] if seen >> 4 & 1 else 0  # of its type
        self.sender_at = self.sender_end = 0
        if seen >> 2 & 1:
            self.sender_end = scan.field_end[2] - start
            self.sender_at = self.sender_end - scan.field_raw[2]
        self.packed = bool(seen >> 24 & 1)
        self.copy = 0  # of a message that goes several ways: its number among those of its sender
        if seen >> 11 & 1 and not scan.special & 1 and self.sender_end:
            self.copy = scan.field_raw[11]

    @property
    def repliable(self) -> bool:
        """Whether somebody waits for replies to it."""
        return self.question > 0

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before."""
        return self.attempts > 0

    def settle(self) -> None:
        """Say that it is done with: it is not delivered again.

        Only a durable subscription wants to know that; for others it does nothing.
        """
        self.accept()

    # What follows acts at once: only who asks to have it confirmed has something to wait for. A
    # message that is not out of a mailbox, or that was settled before, is left as it is.

    def accept(self, confirm: bool = False) -> Awaitable[None]:
        """Say that it is done with: it is not delivered again.

        Returns at once: the node is told with all else that is settled in this round of the event
        loop. If the node or this program dies just then, the message comes again. With `confirm`
        it waits until the node has it on disk.
        """
        if self.settler is None:
            return NOTHING
        answer: Awaitable[None] = self.settler(self, "accept", (), confirm)
        return answer

    def release(
        self, delay: float = 0.0, count: bool = True, elsewhere: bool = False
    ) -> Awaitable[None]:
        """Have it delivered again, to anybody, after `delay` seconds at the earliest.

        The attempt counts, and without a delay the mailbox's `retry` says when it comes again;
        with `count=False` it is as if it had not been delivered. `elsewhere`: not to this member.
        """
        if self.settler is None:
            return NOTHING
        answer: Awaitable[None] = self.settler(self, "release", (delay, count, elsewhere), False)
        return answer

    def reject(self, reason: str = "", confirm: bool = False) -> Awaitable[None]:
        """Nobody can deal with it: it becomes a dead letter, with this reason."""
        if self.settler is None:
            return NOTHING
        answer: Awaitable[None] = self.settler(self, "reject", (reason,), confirm)
        return answer

    def extend(self, seconds: float = 0.0) -> Awaitable[None]:
        """It is still being worked on: its lease is `seconds` from now on, or begins anew."""
        if self.settler is None:
            return NOTHING
        answer: Awaitable[None] = self.settler(self, "extend", (seconds,), False)
        return answer

    def reply(self, body: Any = b"", last: bool = True, **headers: Any) -> Awaitable[None]:
        """Send a reply to whoever asked, and nobody knows who that is.

        It is the last one, unless `last=False` says that more will come.
        """
        if self.settler is None or not self.question:
            raise LocalError(
                "not-waiting", "nobody waits for replies to it: subscribe with replies=True"
            )
        answer: Awaitable[None] = self.settler(self, "reply", (body, last, headers), False)
        return answer

    def no_reply(self, failed: bool = False) -> Awaitable[None]:
        """Say that no reply comes, or none after those that were sent.

        With `failed` there should have been one: what the asker has is not complete.
        """
        if self.settler is None or not self.question:
            return NOTHING
        answer: Awaitable[None] = self.settler(self, "no-reply", (failed,), False)
        return answer

    @property
    def body(self) -> bytes:
        """The body as it was sent, compressed if it was."""
        return part(self.envelope, self.body_at, self.body_end)

    @property
    def message(self) -> Message:
        """All of it, decoded."""
        if self.whole is None:
            self.whole = decode_envelope(self.envelope)
        return self.whole

    def head(self) -> tuple[int, bytes, int, int, bytes, int, int, bool]:
        """What services look at, in the order of their numbers; what is not there is 0, or empty.

        Id, sender, type, references, workflow, priority, expiration, whether it wants a reply.
        """
        data = self.envelope
        p = start_of(data)
        scan: Scan = SCAN
        scan.scan(p, 0, len(data))
        seen = scan.seen
        return (
            u64(p, scan.field_end[1] - 8) if seen >> 1 & 1 else 0,
            cut(p, scan.field_end[2] - scan.field_raw[2], scan.field_end[2])
            if seen >> 2 & 1
            else b"",
            scan.field_raw[4] if seen >> 4 & 1 else 0,
            u64(p, scan.field_end[7] - 8) if seen >> 7 & 1 else 0,
            cut(p, scan.field_end[8] - scan.field_raw[8], scan.field_end[8])
            if seen >> 8 & 1
            else b"",
            scan.priority,
            scan.expiration,
            seen >> 16 & 1 == 1,
        )

    @property
    def attributes(self) -> Mapping[str, Value]:
        """The typed properties."""
        return self.message.attributes

    @property
    def id(self) -> int | None:
        """The publisher's random id, if it gave one."""
        return self.message.id

    @property
    def sender(self) -> str:
        """The client id of the publisher, if it gave one."""
        return self.message.sender

    @property
    def timestamp_us(self) -> int | None:
        """When it was sent, µs since 1970 UTC, if the publisher said so."""
        return self.message.timestamp_us

    @property
    def content_type(self) -> str:
        """What the body is, if the publisher said so."""
        return self.message.content_type

    @property
    def priority(self) -> int:
        """0 to 9; 4 if the publisher said nothing."""
        return self.message.priority

    @property
    def reply_to(self) -> str:
        """The topic for answers, if there is one."""
        return self.message.reply_to

    @property
    def correlation(self) -> str:
        """The application's own correlation id, if there is one."""
        return self.message.correlation

    @property
    def content(self) -> bytes:
        """The body as it was before compression."""
        if self.packed:
            return self.message.content()
        return part(self.envelope, self.body_at, self.body_end)

    def text(self) -> str:
        """The body as text."""
        return self.content.decode()

    def json(self, type: Any = Any) -> Any:
        """The body as the JSON value that it holds, or as the type (dataclass, Struct) given."""
        try:
            return msgspec.json.decode(self.content, type=type)
        except msgspec.DecodeError as error:
            text = f"the body of a message to {self.topic!r} is not the JSON expected: {error}"
            raise PeerError("malformed-envelope", text) from None

    def value(self) -> Any:
        """The body as an object of the class that its type is registered for: `message_type`."""
        return decode_value(self.message.type_name, self.content)

    def __repr__(self) -> str:
        return f"<message to {self.topic!r}, {self.body_end - self.body_at} bytes>"


class Inbox:
    """Takes what a node sends, cut anywhere.

    `transfer` decodes the payload of a TRANSFER frame: count, subscriptions, sequence, attempts,
    question.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        transfer: Callable[[bytes], tuple[int, tuple[int, ...], int, int, int]],
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.transfer = transfer
        self.known: dict[bytes, tuple[int, ...]] = {}  # subscriptions by their encoding
        self.ids = b""  # the encoding that came last
        self.ids_subscriptions: tuple[int, ...] = ()  # what it stands for
        self.tail = bytearray()  # of what came: the beginning of a frame
        self.run: list[ReceivedMessage] = []  # that is being read,
        self.run_from = 0  # and `size` before it
        self.scan = Scan()
        self.topic = b""
        self.topic_text = ""
        self.settler: Any = None  # given to messages that have a sequence
        self.sequence = 0  # of the next message of the run, or 0
        self.attempts = 0
        self.question = 0  # that the run is
        self.left = 0  # messages of the run that are still to come
        self.subscriptions: tuple[int, ...] = ()
        self.messages = 0
        self.size = 0
        self.copies: Copies | None = None  # what comes by several ways is taken once
        self.repeated = 0  # what had come before: messages,
        self.repeated_size = 0  # and their bytes

    def feed(self, data: bytes | memoryview) -> list[tuple[Any, Any, int]]:
        """What is complete: runs as (subscriptions, [messages], bytes), else (kind, payload, 0).

        Nothing of `data` is kept: it may be a part of a buffer that is read into again.
        """
        items: list[tuple[Any, Any, int]] = []
        if self.run:
            self.run = []  # of what an error came behind
        self.run_from = self.size
        n = len(data)
        p = start_of_any(data)
        pos = 0
        if self.tail:
            # Only the frame that was cut is put together, instead of all that came.
            pos = self.complete(p, n)
            if pos < 0:
                return items
            tail = self.tail
            self.tail = bytearray()
            self.walk(writable(tail), 0, len(tail), items)
        pos = self.walk(p, pos, n, items)
        if self.run:
            items.append((self.subscriptions, self.run, self.size - self.run_from))
            self.run = []  # they live as long as whoever gets them says
        if pos < n:
            self.tail += cut(p, pos, n)
        return items

    def complete(self, p: Any, n: int) -> int:
        """Add to the tail what is missing of its frame; where that ends, -1 if it is not here."""
        tail = self.tail
        at = 0
        if len(tail) < HEADER:
            at = min(HEADER - len(tail), n)
            tail += cut(p, 0, at)
            if len(tail) < HEADER:
                return -1
        size = u32(writable(tail), 0)
        size += 4  # which may be more than 32 bits
        self.check_size(size)
        end = at + size - len(tail)
        tail += cut(p, at, min(end, n))
        return end if end <= n else -1

    def walk(self, p: Any, pos: int, n: int, items: list[tuple[Any, Any, int]]) -> int:
        """Take the whole frames in p[pos:n]; where the rest begins."""
        run = self.run
        while n - pos >= HEADER:
            end = pos + 4 + u32(p, pos)
            if end > n or end - pos < HEADER:
                self.check_size(end - pos)
                break
            if crc32c_at(p, pos + HEADER, end) != u32(p, pos + 8):
                raise PeerError("bad-checksum", "a frame from the node is damaged")
            kind = p[pos + 4]
            if kind == MESSAGE:
                message = self.message(p, pos, end)
                if message is not None:
                    run.append(message)
            else:
                if self.left:
                    raise PeerError("protocol-violation", "a run of messages was interrupted")
                if run:
                    items.append((self.subscriptions, run, self.size - self.run_from))
                    self.run = run = []
                    self.run_from = self.size
                if kind == TRANSFER:
                    self.open_run(p, pos + HEADER, end)
                else:
                    items.append((kind, cut(p, pos + HEADER, end), 0))
            pos = end
        return pos

    def check_size(self, size: int) -> None:
        """Refuse a frame that cannot be, before more of it is kept."""
        if size < HEADER:
            raise PeerError("malformed-frame", "a frame from the node is shorter than its header")
        if size > self.frame_bytes_max:
            raise PeerError("frame-too-large", f"the node sends a frame of {size} bytes")

    def open_run(self, p: Any, at: int, end: int) -> None:
        """A transfer header: how many messages follow, and for which subscriptions."""
        self.sequence = 0
        self.attempts = 0
        self.question = 0
        if end - at < 5 or p[at] != 0x0D:
            self.open_other(cut(p, at, end))
            return
        if not is_topic(self.ids, p, at + 5, end):
            ids = cut(p, at + 5, end)
            found = self.known.get(ids)
            if found is None:
                self.open_other(cut(p, at, end))
                return
            self.ids = ids
            self.ids_subscriptions = found
        self.left = u32(p, at + 1)
        self.subscriptions = self.ids_subscriptions
        if self.left == 0:
            raise PeerError("protocol-violation", "a transfer header announces no message")

    def open_other(self, payload: bytes) -> None:
        """One that has a sequence, or was not seen before."""
        if self.open_sequenced(payload):
            return
        self.left, subscriptions, self.sequence, self.attempts, self.question = self.transfer(
            payload
        )
        if payload[:1] == b"\x0d" and not self.question:
            if len(self.known) >= 4096:
                self.known.clear()
            if self.sequence == 0:
                self.known[payload[5:]] = subscriptions
            elif len(payload) > 7 and payload[5] == 0x12:
                self.known[payload[5 : 7 + payload[6]]] = subscriptions
        if self.left == 0:
            raise PeerError("protocol-violation", "a transfer header announces no message")
        self.subscriptions = subscriptions

    def open_sequenced(self, payload: bytes) -> bool:
        """The header of a run that has a sequence, in the form in which nodes write it.

        Each is another one, so that what is known of whole headers does not help.
        """
        n = len(payload)
        if n < 10 or payload[0] != 0x0D or payload[5] != 0x12 or payload[6] > 0x7F:
            return False
        at = 7 + payload[6]
        if at >= n or payload[at] != 0x28:
            return False
        subscriptions = self.known.get(payload[5:at])
        if subscriptions is None:
            return False
        at += 1
        value = 0
        shift = 0
        while at < n and shift < 63:
            septet = payload[at] & 0x7F
            value |= septet << shift
            shift += 7
            at += 1
            if payload[at - 1] <= 0x7F:
                break
        attempts = 0
        if at + 2 == n and payload[at] == 0x30 and payload[at + 1] <= 0x7F:
            attempts = payload[at + 1]
            at += 2
        count = u32(start_of(payload), 1)
        if at != n or count == 0:
            return False
        self.left = count
        self.subscriptions = subscriptions
        self.sequence = value
        self.attempts = attempts
        return True

    def message(self, p: Any, pos: int, end: int) -> ReceivedMessage | None:
        """Make an object of a message frame, unless it came before."""
        if self.left == 0:
            raise PeerError("protocol-violation", "a message came without a transfer header")
        scan = self.scan
        fault = scan.scan(p, pos + HEADER, end)
        if fault:
            raise PeerError("malformed-envelope", f"an envelope is refused: {FAULTS[fault]}")
        copies = self.copies
        if (
            copies is not None
            and scan.seen >> 11 & 1
            and not scan.special & 1
            and scan.seen >> 2 & 1
        ):
            at = scan.field_end[2] - scan.field_raw[2]
            if not copies.is_new_at(p, at, scan.field_end[2], scan.field_raw[11]):
                self.left -= 1
                self.repeated += 1
                self.repeated_size += end - pos
                return None
        if not is_topic(self.topic, p, scan.topic_at, scan.topic_end):
            self.topic = cut(p, scan.topic_at, scan.topic_end)
            self.topic_text = self.topic.decode()
        start = pos + HEADER
        message: ReceivedMessage = ReceivedMessage.__new__(ReceivedMessage)
        message.envelope = cut(p, start, end)
        message.topic = self.topic_text
        message.body_at = scan.body_at - start
        message.body_end = scan.body_end - start
        message.note(scan, p, start)
        message.subscriptions = self.subscriptions
        message.sequence = self.sequence
        message.attempts = self.attempts
        message.settler = None
        if self.sequence:
            message.settler = self.settler
            self.sequence += 1
        message.question = self.question
        if self.question:
            message.settler = self.settler
        message.whole = None
        if message.settler is None:
            untrack(message)  # it can be in no cycle, and there are millions of them
        self.left -= 1
        self.messages += 1
        self.size += end - pos
        return message
