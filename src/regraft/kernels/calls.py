"""What a peer has asked: calls by their ids, from the request that goes out to the answer.

An answer refers to a call by its id, and ends it here, without a look at the rest of the message.
Calls have no timers: whoever keeps them looks at the earliest time of all (`due`) once it is over.

A *line* is what requests go out by: the outbox of a connection (`_outbox`, if there is one), and
whether that may be used now (`_writable`, `_flushing`, `_flush_soon`).
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from contextvars import copy_context

    from regraft.kernels.arrays import Longs
    from regraft.kernels.inbox import ReceivedMessage, start_of
    from regraft.kernels.outbox import Outbox
    from regraft.kernels.outlet import is_topic
    from regraft.kernels.windows import Copies

    def enter(context: Any) -> None:
        """Interpreted, a context is entered by whoever steps."""

    def leave(context: Any) -> None:
        """And left there."""

    def advance(steps: Any) -> None:
        """Run a coroutine until it waits for something, or ends."""
        try:
            steps.waits_for = steps.coroutine.send(None)
        except StopIteration as end:
            steps.over = True
            steps.waits_for = None
            steps.result = end.value


NEVER = float("inf")


class Call:
    """A query that is not over."""

    def __init__(self, future: Any, by: Any, id: int = 0) -> None:
        self.id = id
        self.future = future  # of the phase
        self.by = by  # the way that it went
        self.phase = 1
        self.sent = True
        self.until = NEVER  # when its time is over,
        self.until_us = 0  # as services know it,
        self.due = NEVER  # and when its phase is
        self.received = False  # somebody said that it has the request
        self.failure: Any = None
        self.failed_by = b""
        self.unasked: Any = None  # ways by which a search was not answered yet
        self.found: Any = None

    def done(self, result: Any) -> None:
        """The phase, or all of it, is over."""
        if not self.future.done():
            self.future.set_result(result)


def new_call(future: Any, by: Any, id: Any) -> Call:
    """The same as `Call(...)`, which takes as long as all the rest of asking."""
    call: Call = Call.__new__(Call)
    call.id = id
    call.future = future
    call.by = by
    call.phase = 1
    call.sent = True
    call.until = NEVER
    call.until_us = 0
    call.due = NEVER
    call.received = False
    call.failure = None
    call.failed_by = b""
    call.unasked = None
    call.found = None
    return call


class Calls:
    """Calls by their ids, and who answered the last ones of those that are over."""

    def __init__(self, remembered: int) -> None:
        self.waiting: dict[int, Call] = {}
        self.next_due = NEVER  # nobody is due before
        self.remembered = remembered
        self.over = Longs()  # ids of the last ones, in turn; a place is used again,
        self.answerers: list[bytes] = []  # and who answered them
        self.turn = 0  # whose place is next
        self.counter = 0  # the last id; they follow one another, which suits those who keep them
        self.last_sender = b""
        self.asking = b""  # fields: who asks, and where to answer
        self.share = 1.0  # of its time is over when the first phase of a call ends
        self.flush_bytes = 0  # in an outbox: it is not filled any further
        self.create_future: Any = None
        self.now: Any = None  # seconds, as calls are due by; and since 1970
        self.wall: Any = None
        self.wake_at: Any = None  # called with the time when the next call is due
        self.asked = 0
        self.ended = 0  # with an answer

    def ask(self, line: Any, topic: bytes, body: bytes, rest: bytes, seconds: float) -> Call:
        """Send a request by a line, if there is room: `sent`; and remember it."""
        self.counter = self.counter + 1 & 0x7FFFFFFFFFFFFFFF or 1
        id: Any = self.counter
        now: float = self.now()
        wall: float = self.wall()
        call: Call = new_call(self.create_future(), line, id)
        call.until = now + seconds
        call.until_us = int((wall + seconds) * 1e6)
        self.asked += 1
        call.sent = self.put(line, topic, body, call, rest)
        self.waiting[id] = call
        if call.sent:
            call.due = call.until - seconds * (1.0 - self.share)
            if call.due < self.next_due:
                self.wake_at(call.due)
        return call

    def put(self, line: Any, topic: bytes, body: bytes, call: Call, rest: bytes) -> bool:
        """Send the request of a call, if there is room."""
        outbox: Outbox = line._outbox
        if outbox is None or not line._writable:
            return False
        if (
            outbox.sent_messages >= outbox.granted_messages
            or outbox.sent_bytes >= outbox.granted_bytes
        ):
            return False
        outbox.put_request(topic, body, call.id, call.until_us, self.asking, rest)
        if not line._flushing or outbox.used >= self.flush_bytes:
            line._flush_soon(outbox)
        return True

    def new_id(self) -> int:
        """For what is no call."""
        self.counter = self.counter + 1 & 0x7FFFFFFFFFFFFFFF or 1
        return self.counter

    def end(self, message: ReceivedMessage) -> bool:
        """End the call that this message answers, if there is one."""
        id: Any = message.references
        found = self.waiting.get(id)
        if found is None:
            return False
        call: Call = found
        del self.waiting[id]
        if not is_topic(
            self.last_sender, start_of(message.envelope), message.sender_at, message.sender_end
        ):
            self.last_sender = message.envelope[message.sender_at : message.sender_end]
        self.answered(id, self.last_sender)
        self.ended += 1
        call.done(message)
        return True

    def take(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """End the calls that these messages answer; what is left is something else."""
        rest: list[ReceivedMessage] = []
        for k in range(len(messages)):
            message: ReceivedMessage = messages[k]
            if message.references == 0 or message.number != 0 or not self.end(message):
                rest.append(message)
        return rest

    def answered(self, id: Any, sender: bytes) -> None:
        """Remember who answered: another one who does so has done the same again."""
        if len(self.answerers) < self.remembered:
            self.over.push(id)
            self.answerers.append(sender)
            return
        self.over.a[self.turn] = id
        self.answerers[self.turn] = sender
        self.turn += 1
        if self.turn == self.remembered:
            self.turn = 0

    def answered_by(self, id: int) -> bytes | None:
        """Who answered a call that is over, if that is not long ago."""
        if 0 <= id < 1 << 63:
            wanted = id
            for k in range(len(self.answerers)):
                if self.over.a[k] == wanted:
                    return self.answerers[k]
        return None

    def expire(self, now: float) -> float:
        """End the phases whose time is over; when the next one is."""
        least = NEVER
        for one in list(self.waiting.values()):
            call: Call = one
            if call.due <= now:
                call.due = NEVER
                call.done(None)
            elif call.due < least:
                least = call.due
        self.next_due = least
        return least


def first_copies(messages: list[ReceivedMessage], copies: Copies) -> list[ReceivedMessage]:
    """Those of the messages that did not come before by another way."""
    rest: list[ReceivedMessage] = []
    for k in range(len(messages)):
        message: ReceivedMessage = messages[k]
        if message.copy:
            p = start_of(message.envelope)
            if not copies.is_new_at(p, message.sender_at, message.sender_end, message.copy):
                continue
        rest.append(message)
    return rest


class Stepping:
    """A coroutine in a context of its own; if it is not at its end at once, it can be awaited.

    Most handlers are at their end after their first step, and then no task was needed for them; one
    that waits is awaited by the task that made the step.
    """

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine
        self.context: Any = copy_context()
        self.result: Any = None
        self.waits_for: Any = None
        self.told = True  # what it waits for
        self.over = False

    def begin(self) -> bool:
        """Make the first step; whether it was the last, and there is a `result`."""
        self.step(None)
        return self.over

    def step(self, error: Any) -> None:
        """Run it until it waits for something, or ends. What it raises is raised here."""
        self.told = False
        if not cython.compiled:
            self.context.run(self.move, error)
            return
        enter(self.context)
        try:
            self.move(error)
        finally:
            leave(self.context)

    def move(self, error: Any) -> None:
        """The same, within its context."""
        if error is None:
            advance(self)
            return
        try:
            self.waits_for = self.coroutine.throw(error)
        except StopIteration as end:
            self.over = True
            self.waits_for = None
            self.result = end.value

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.told:
            self.step(None)
        return self.next_wait()

    def next_wait(self) -> Any:
        """What it waits for, once."""
        if self.over:
            raise StopIteration(self.result)
        self.told = True
        waits_for = self.waits_for
        self.waits_for = None
        return waits_for

    def throw(self, kind: Any, error: Any = None, traceback: Any = None) -> Any:
        """What it waits for ends in an error, or it is cancelled."""
        given = error if error is not None else kind
        self.step(given() if isinstance(given, type) else given)
        return self.next_wait()

    def close(self) -> None:
        """Nobody waits for it any more."""
        self.coroutine.close()
