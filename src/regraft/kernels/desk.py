"""The desk of a service: requests come in, are handled, and are answered.

What one read of a connection brought goes by a `Switch` to the peers that it is for. An answer ends
its call; a request that can be handled now becomes ready, and a worker makes the first step of its
handler, in a context of its own. Most handlers are at their end then, and their answer goes into
the outbox of the line that the request came by. All of that happens here. Whatever is unusual (a
request that came before, one whose time is over, too many at a time, an answer without room) is
left to the peer, which is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from contextvars import copy_context

    from regraft.kernels.calls import Calls, Stepping, advance, enter, leave
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import HEADER, cut
    from regraft.kernels.inbox import ReceivedMessage, part, start_of, u64
    from regraft.kernels.outbox import Outbox
    from regraft.kernels.windows import Copies

SCAN = Scan()  # of requests


class Handler:
    """What is called for messages of a type."""

    def __init__(self, type: str, function: Any, wants: Any, blocking: bool) -> None:
        self.type = type
        self.function = function
        self.wants = wants  # how it wants the body
        self.as_bytes = wants is bytes
        self.blocking = blocking  # no coroutine: it gets a thread
        self.handled = 0
        self.errors = 0


class Taken:
    """What was taken of a connection, and the node was not told of: messages, and their bytes."""

    def __init__(self, tell_messages: int, tell_size: int) -> None:
        self.messages = 0
        self.size = 0
        self.tell_messages = tell_messages  # with so many it has to be told
        self.tell_size = tell_size

    def due(self) -> bool:
        """Whether it is time to tell the node."""
        return self.messages >= self.tell_messages or self.size >= self.tell_size

    def add(self, messages: int, size: int) -> None:
        """More was taken."""
        self.messages += messages
        self.size += size

    def forget(self) -> None:
        """The node knows."""
        self.messages = 0
        self.size = 0


class Request(Stepping):
    """A message that waits for its handler, or is being handled; it can be awaited then."""

    def __init__(self) -> None:
        super().__init__(None)
        self.desk: Desk
        self.line: Any = None
        self.taken: Taken  # of the connection over which it came
        self.message: ReceivedMessage
        self.handler: Handler
        self.id: Any = 0
        self.sender = b""
        self.workflow = b""
        self.priority = 0
        self.until_us = 0  # 0: nobody waits
        self.wants_reply = False
        self.counted = False  # the node counts it as in our hands
        self.arrived = 0.0
        self.answered = False
        self.about: Any = None  # its context, once a handler has asked for it

    @property
    def type(self) -> str:
        """The type of the message."""
        return self.handler.type


class Ready:
    """Requests that may be handled now. `wake` is called when there are some, and nobody comes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.requests: list[Request] = []
        self.at = 0
        self.wake = wake
        self.called = False  # somebody will come

    def add(self, request: Request) -> None:
        """Have this handled, too."""
        self.requests.append(request)
        if not self.called:
            self.called = True
            self.wake()

    def left(self) -> int:
        """How many there are."""
        return len(self.requests) - self.at

    def work(self) -> Request | None:
        """Handle them, one after the other; the first that waits for something."""
        self.called = False
        while self.at < len(self.requests):
            request: Request = self.requests[self.at]
            self.at += 1
            if self.at == len(self.requests):
                self.requests.clear()
                self.at = 0
            desk: Desk = request.desk
            over = True
            try:
                over = desk.begin(request)
                if not over:
                    return request
            finally:
                if over:
                    desk.end(request)
        return None

    def forget(self, desk: Desk) -> list[Request]:
        """Those of this desk, which are not to be handled any more."""
        waiting = self.requests[self.at :]
        self.requests = [request for request in waiting if request.desk is not desk]
        self.at = 0
        return [request for request in waiting if request.desk is desk]


class Desk:
    """Where the requests of one service are; `service` is who sees to all that is unusual."""

    def __init__(
        self, service: Any, ready: Ready, group: int, concurrency: int, remembered: int, size: int
    ) -> None:
        self.service = service
        self.ready = ready
        self.group: Any = group  # the number of the subscription that is counted
        self.concurrency = concurrency
        self.handlers: dict[str, Handler] = {}  # by topic
        self.running: dict[int, Request] = {}
        self.waiting = 0  # requests that wait for their turn, as the service says
        self.active = 0  # requests that are ready, or being handled
        self.watched = False  # somebody waits until there are none
        self.remembered = remembered  # answers to requests that may come again, at least;
        self.size_max = size  # and the bytes of those, at most
        self.replies: dict[int, Any] = {}  # the newer ones: bodies, or (body, fields)
        self.replies_older: dict[int, Any] = {}
        self.replies_size = 0  # of the newer ones
        self.sender = b""  # fields: who answers,
        self.reply_topic = b""  # and where to
        self.flush_bytes = 0  # in an outbox: it is not filled any further
        # Of this context each request gets a copy, whoever's context the worker happens to be in.
        self.base: Any = copy_context()
        self.variable: Any = None  # the context variable that holds the request
        self.now: Any = None
        self.decode: Any = None
        self.encode: Any = None
        self.latencies: Any = None  # a deque
        self.handled = 0

    # ------------------------------------------------------------------------ coming

    def make(
        self, line: Any, taken: Taken, message: ReceivedMessage, handler: Handler, counted: bool
    ) -> Request:
        """A request of a message."""
        data = message.envelope
        p = start_of(data)
        scan: Scan = SCAN
        scan.scan(p, 0, len(data))
        seen = scan.seen
        request: Request = Request.__new__(Request)
        request.coroutine = None
        request.context = None
        request.result = None
        request.waits_for = None
        request.told = False
        request.over = False
        request.desk = self
        request.line = line
        request.taken = taken
        request.message = message
        request.handler = handler
        request.id = u64(p, scan.field_end[1] - 8) if seen >> 1 & 1 else 0
        request.sender = part(data, message.sender_at, message.sender_end)
        request.workflow = b""
        if seen >> 8 & 1:
            request.workflow = cut(p, scan.field_end[8] - scan.field_raw[8], scan.field_end[8])
        request.priority = scan.priority
        request.until_us = scan.expiration
        request.wants_reply = seen >> 16 & 1 == 1
        request.counted = counted
        request.arrived = 0.0
        request.answered = False
        request.about = None
        return request

    def take(
        self, line: Any, taken: Taken, message: ReceivedMessage, numbers: Any, now: float, wall: int
    ) -> bool:
        """Have a request handled soon, if there is nothing unusual about it."""
        found = self.handlers.get(message.topic)
        if found is None or self.active >= self.concurrency:
            return False
        request = self.make(line, taken, message, found, self.group in numbers)
        id: Any = request.id
        if request.until_us and request.until_us <= wall:
            return False
        if id in self.running or id in self.replies or id in self.replies_older:
            return False
        self.hold(request, now)
        self.start(request)
        return True

    def hold(self, request: Request, now: float) -> None:
        """It does not count as taken before it is done with."""
        request.arrived = now
        request.taken.messages -= 1
        request.taken.size -= len(request.message.envelope) + HEADER

    def start(self, request: Request) -> None:
        """Have it handled."""
        self.running[request.id] = request
        self.active += 1
        self.ready.add(request)

    # ---------------------------------------------------------------------- handling

    def begin(self, request: Request) -> bool:
        """Make the first step of its handler; whether it was the last."""
        request.context = self.base.copy()
        if not cython.compiled:
            return bool(request.context.run(self.first_step, request))
        enter(request.context)
        try:
            return self.first_step(request)
        finally:
            leave(request.context)

    def first_step(self, request: Request) -> bool:
        """The same, within its context."""
        handler: Handler = request.handler
        message: ReceivedMessage = request.message
        self.variable.set(request)
        try:
            if handler.as_bytes and not message.packed:
                wanted: Any = part(message.envelope, message.body_at, message.body_end)
            else:
                wanted = self.decode(message, handler.wants)
            if handler.blocking:
                request.coroutine = self.service.in_thread(handler.function, wanted)
            else:
                request.coroutine = handler.function(wanted)
            advance(request)
            if not request.over:
                return False
            self.succeed(request, request.result)
        except Exception as error:
            self.service.failed(request, error)
        return True

    def succeed(self, request: Request, result: Any) -> None:
        """Its handler returned something."""
        handler: Handler = request.handler
        handler.handled += 1
        self.handled += 1
        if request.wants_reply:
            if type(result) is bytes:
                self.answer(request, result, b"")
            else:
                body, fields = self.encode(b"" if result is None else result)
                self.answer(request, body, fields)

    def answer(self, request: Request, body: bytes, fields: bytes) -> None:
        """Send the answer, and remember it for as long as the request might come again."""
        id: Any = request.id
        if id:
            if len(self.replies) >= self.remembered or self.replies_size > self.size_max // 2:
                self.replies_older = self.replies
                self.replies = {}
                self.replies_size = 0
            self.replies[id] = (body, fields) if fields else body
            self.replies_size += len(body)
        line = request.line
        outbox: Outbox = line._outbox
        if (
            outbox is None
            or not line._writable
            or outbox.sent_messages >= outbox.granted_messages
            or outbox.sent_bytes >= outbox.granted_bytes
        ):
            self.service.answer_elsewhere(request, body, fields)
        else:
            outbox.put_answer(self.reply_topic, body, id, request.sender, self.sender, fields)
            if not line._flushing or outbox.used >= self.flush_bytes:
                line._flush_soon(outbox)
        request.answered = True

    def replied(self, id: int) -> tuple[bytes, bytes] | None:
        """What a request was answered with, if that is known."""
        found: Any = self.replies.get(id)
        if found is None:
            found = self.replies_older.get(id)
        return (found, b"") if type(found) is bytes else found

    def end(self, request: Request) -> None:
        """It is done with."""
        request.context = None  # which holds the request itself
        request.coroutine = None
        self.running.pop(request.id, None)
        self.latencies.append(self.now() - request.arrived)
        self.release(request)
        self.active -= 1
        if self.waiting or (self.watched and self.active == 0):
            self.service.one_less()

    def release(self, request: Request) -> None:
        """It is out of our hands: the node may send more."""
        taken: Taken = request.taken
        if request.counted and not request.answered:
            request.line.finished()
        taken.messages += 1
        taken.size += len(request.message.envelope) + HEADER
        if taken.messages >= taken.tell_messages or taken.size >= taken.tell_size:
            request.line.tell_taken(taken)


class Taker:
    """A peer, as a switch knows it."""

    def __init__(
        self, peer: Any, calls: Calls, desk: Desk | None, copies: Copies | None = None
    ) -> None:
        self.peer = peer
        self.calls = calls
        self.desk = desk
        self.copies = copies  # on a line of several peers: a copy is one, whatever way it came

    def take(
        self,
        line: Any,
        taken: Taken,
        messages: list[ReceivedMessage],
        numbers: Any,
        now: float,
        wall: int,
    ) -> list[ReceivedMessage]:
        """Take answers and requests; what is left is something else."""
        rest: list[ReceivedMessage] = []
        desk = self.desk
        copies = self.copies
        for k in range(len(messages)):
            message: ReceivedMessage = messages[k]
            if message.copy and copies is not None:
                p = start_of(message.envelope)
                if not copies.is_new_at(p, message.sender_at, message.sender_end, message.copy):
                    continue
            if message.number == 0:
                if message.references:
                    if self.calls.end(message):
                        continue
                elif desk is not None and desk.take(line, taken, message, numbers, now, wall):
                    continue
            rest.append(message)
        return rest


class Switch:
    """Hands what has come to those that it is for; `owner` knows who that is."""

    def __init__(self, owner: Any, now: Any, wall: Any) -> None:
        self.owner = owner
        self.now = now
        self.wall = wall
        self.takers: dict[Any, tuple[Taker, ...]] = {}  # by the numbers of subscriptions

    def deliver(self, line: Any, taken: Taken, items: list[tuple[Any, Any, int]]) -> bool:
        """What an inbox has found in one read; whether somebody was woken by it."""
        stirred = False
        now: float = self.now()
        wall: int = int(self.wall() * 1e6)
        for numbers, content, size in items:
            if type(numbers) is not tuple:
                line.controlled(numbers, content)
                continue
            taken.messages += len(content)
            taken.size += size
            found = self.takers.get(numbers)
            if found is None:
                found = self.owner.find_takers(numbers)
            if not found:
                self.owner.stray(line, content, numbers)
            for one in found:
                taker: Taker = one
                rest = taker.take(line, taken, content, numbers, now, wall)
                if len(rest) < len(content):
                    stirred = True
                if rest:
                    taker.peer.take(line, rest, numbers)
        return stirred
