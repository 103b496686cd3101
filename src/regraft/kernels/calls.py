"""What a peer has asked and was asked: calls by their ids, requests, and handlers that run at once.

An answer refers to a call by its id, and ends it here, without a look at the rest of the message.
Calls have no timers: whoever keeps them looks at the earliest time of all (`due`) once it is over.

A handler is a coroutine. Most are at their end after their first step, and then no task was needed
for them; one that waits is awaited by the task that made the step.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from contextvars import copy_context

    from regraft.kernels.inbox import ReceivedMessage
    from regraft.kernels.windows import Copies

    def enter(context: Any) -> None:
        """Interpreted, a context is entered by whoever steps."""

    def leave(context: Any) -> None:
        """And left there."""


NEVER = float("inf")


class Call:
    """A query that is not over."""

    def __init__(self, future: Any, by: Any) -> None:
        self.future = future  # of the phase
        self.by = by  # the way that it went
        self.phase = 1
        self.due = NEVER  # when its phase is over
        self.received = False  # somebody said that it has the request
        self.failure: Any = None
        self.failed_by = b""
        self.unasked: Any = None  # ways by which a search was not answered yet
        self.found: Any = None

    def done(self, result: Any) -> None:
        """The phase, or all of it, is over."""
        if not self.future.done():
            self.future.set_result(result)


class Calls:
    """Calls by their ids, and who answered the last ones of those that are over."""

    def __init__(self, remembered: int) -> None:
        self.waiting: dict[int, Call] = {}
        self.next_due = NEVER  # nobody is due before
        self.remembered = remembered
        self.newer: dict[int, bytes] = {}
        self.older: dict[int, bytes] = {}

    def take(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """End the calls that these messages answer; what is left is something else."""
        rest: list[ReceivedMessage] = []
        for k in range(len(messages)):
            message: ReceivedMessage = messages[k]
            if message.references != 0 and message.number == 0:
                id: Any = message.references
                found = self.waiting.get(id)
                if found is not None:
                    call: Call = found
                    self.answered(id, message.envelope[message.sender_at : message.sender_end])
                    call.done(message)
                    continue
            rest.append(message)
        return rest

    def answered(self, id: Any, sender: bytes) -> None:
        """Remember who answered: another one who does so has done the same again."""
        if len(self.newer) >= self.remembered:
            self.older = self.newer
            self.newer = {}
        self.newer[id] = sender

    def answered_by(self, id: int) -> bytes | None:
        """Who answered a call that is over, if that is not long ago."""
        sender = self.newer.get(id)
        return sender if sender is not None else self.older.get(id)

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
            sender = message.envelope[message.sender_at : message.sender_end]
            if not copies.is_new(sender, message.copy):
                continue
        rest.append(message)
    return rest


class Request:
    """A message that waits for its handler, or is being handled."""

    def __init__(
        self,
        service: Any,
        line: Any,
        link: Any,
        message: ReceivedMessage,
        head: Any,
        handler: Any,
        type: str,
        counted: bool,
        arrived: float,
    ) -> None:
        self.service = service
        self.line = line
        self.link = link  # of the line, over which it came: only there does it count as taken
        self.message = message
        self.head = head
        self.handler = handler
        self.type = type
        self.counted = counted  # the node counts it as in our hands
        self.arrived = arrived
        self.answered = False


class Stepping:
    """A coroutine in a context of its own; if it is not at its end at once, it can be awaited."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine
        self.context = copy_context()
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
        enter(self.context)
        try:
            if error is not None:
                self.waits_for = self.run(self.coroutine.throw, error)
            else:
                self.waits_for = self.run(self.coroutine.send, None)
        except StopIteration as end:
            self.over = True
            self.waits_for = None
            self.result = end.value
        finally:
            leave(self.context)

    def run(self, function: Any, argument: Any) -> Any:
        """Call it in the context, if nobody has entered that."""
        if cython.compiled:
            return function(argument)
        return self.context.run(function, argument)

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
