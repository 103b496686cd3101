"""A peer: one identity on several nodes, that sends messages, events and queries.

Each message goes by one of its lines, an event by all of them, and a query has three phases, all
within the caller's time:

    1  the request goes by one node; a good answer ends it, now or whenever it comes
    2  every node is asked who could answer it (SEARCH)
    3  the request goes again, with the same id, to the first peer that said so, the same way

What was asked is remembered by its id in `_calls`; answers refer to it.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from regraft.client.client import FLUSH_BYTES
from regraft.client.dialling import Connector, dial
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.calls import NEVER, Call, Calls
from regraft.kernels.desk import Request, Switch, Taker
from regraft.kernels.inbox import ReceivedMessage
from regraft.kernels.windows import Copies
from regraft.model.rules import (
    BACKEND_ERROR,
    CANCEL,
    DELIVERY_ERROR,
    HEALTH,
    NAME,
    PEER_TOPIC,
    PING,
    REPLY_TOPIC,
    REQUEST_RECEIVED,
    SEARCH,
    SEARCH_TOPIC,
    TYPE_TOPIC,
    Route,
    encode_routes,
)
from regraft.model.varint import write_varint
from regraft.services import context
from regraft.services.line import GROUP_ID, Line, topics_of
from regraft.services.payload import decode, encode
from regraft.services.trunk import TAKERS_MAX, Trunk, connect_all, lines_to, options_of

TIMEOUT_S = 5.0  # of a query, if nobody says anything else
FIRST, SECOND = 0.5, 0.67  # of the time is over when phase 1 ends, and when phase 2 does
RECEIVED = 0.75  # instead of FIRST, once somebody said that it has the request
TIMER_S = 0.001  # timers of the loop may be early by this
PATIENCE_S = 1.0  # for a node that gives no credit; it is passed over then, until it does
ANSWERED_REMEMBERED = 4096  # calls that are over: who answered, to see that two did
REPLY = REPLY_TOPIC.encode()

# Fields of envelopes, encoded: tag and value
_FIXED = struct.Struct("<BQ")
_ID, _REFERENCES = 0x09, 0x39
_WANTS_REPLY = b"\x82\x01" + write_varint(len(REPLY)) + REPLY
_REPORT = b"\xa8\x01\x01"
_SEARCH, _CANCEL, _PING, _HEALTH = (b"\x20" + bytes((n,)) for n in (SEARCH, CANCEL, PING, HEALTH))


Asking = tuple[bytes, bytes, bytes]  # a request: topic, body, further fields


def text_field(tag: bytes, value: bytes) -> bytes:
    """A field of bytes or text."""
    return tag + write_varint(len(value)) + value


class Peer:
    """A client of services. Open it with `async with`, or `await peer.open()`."""

    def __init__(
        self,
        nodes: str | Iterable[str] | Trunk | None = None,
        *,
        type: str = "",
        id: str = "",
        copies: int = 0,
        connector: Connector = dial,
        **options: Any,
    ) -> None:
        """`nodes` are the addresses of all nodes to connect to; `type` is what this peer is.

        Instead of addresses it may be a trunk, whose connections are shared: `id` is what the
        peer's id ends with then. Events go by `copies` nodes, or by all. Options are those of a
        client.
        """
        if type and not NAME.fullmatch(type):
            raise LocalError("bad-configuration", f"{type!r} is no peer type")
        self.type = type
        if copies < 0:
            raise LocalError("bad-configuration", "copies must not be negative")
        self.id = id or f"{(type or 'peer').lower()}-{random.getrandbits(64):016x}"
        self._trunk = nodes if isinstance(nodes, Trunk) else None
        self._first = 0  # what the numbers of our subscriptions are counted from
        if isinstance(nodes, Trunk):
            if options or connector is not dial:
                raise LocalError("bad-configuration", "options are those of the trunk")
            self.id, self._first = nodes.name(self.id)
            self.options = options_of(self.id, {})
            self.lines = nodes.lines
        else:
            self.options = options_of(self.id, options)
            seen = Copies()  # a copy is one whatever way it came
            self.lines = lines_to(nodes, self, self.options, seen, connector)
        self._group = self._first + GROUP_ID
        self._copies = copies
        self._best: Line | None = None  # the line that is well, of several the first
        self._asked = Calls(ANSWERED_REMEMBERED)
        self._calls = self._asked.waiting
        self.taker = Taker(self, self._asked, None)
        self.switch = Switch(self, time.monotonic, time.time)  # of lines of our own
        self._timer: asyncio.TimerHandle | None = None  # of the call that is due first
        self._searches: dict[int, Call] = {}
        self._topics: dict[str, bytes] = {}
        self._sender = text_field(b"\x12", self.id.encode())
        self._asked.asking = self._sender + _WANTS_REPLY
        self._asked.counter = random.getrandbits(63)
        self._sequence = time.time_ns() // 1000  # goes on after a restart
        self._refusal: RegraftError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = asyncio.Event()  # there is a line
        self.closed = False
        self.undeliverable: list[Any] = []  # callbacks: what was sent and found nobody
        self._counts = dict.fromkeys(
            ("failed", "searches", "repeated", "late", "answered_twice", "events", "sent",
             "undeliverable"), 0
        )  # fmt: skip

    @property
    def counts(self) -> dict[str, int]:
        """How often what happened."""
        return {"queries": self._asked.asked, "answered": self._asked.ended, **self._counts}

    # --------------------------------------------------------------------------- life

    async def open(self) -> Self:
        """Connect to all nodes; it is enough if one of them answers."""
        if self._loop is not None:
            return self
        self._loop = asyncio.get_running_loop()
        asked = self._asked
        asked.share, asked.flush_bytes, asked.wake_at = FIRST, FLUSH_BYTES, self._wake_at
        asked.create_future, asked.now, asked.wall = (
            self._loop.create_future,
            self._loop.time,
            time.time,
        )
        if self._trunk is not None:
            await self._trunk.join(self, self._first)
            self.rank()
            return self
        for line in self.lines:
            for number, pattern in topics_of(self.id, self.type).items():
                line.want(number, pattern)
        await connect_all(self.lines, self.options.connect_timeout)
        if self._refusal is not None or not any(line.is_up for line in self.lines):
            await self.close()
            where = ", ".join(line.address for line in self.lines)
            raise self._refusal or WorldError("unreachable", f"no node answers at {where}")
        return self

    async def close(self) -> None:
        """End all connections; calls that wait for an answer fail."""
        self.closed = True
        self._best = None
        self._up.set()
        error = LocalError("closed", "this peer was closed")
        for call in list(self._calls.values()):
            call.done(error)
        if self._timer is not None:
            self._timer.cancel()
        if self._trunk is not None:
            self._trunk.leave(self, self._first)
        else:
            await asyncio.gather(*(line.close() for line in self.lines if line._keeper is not None))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def line_is_up(self, line: Line) -> None:
        """A node has confirmed who we are."""
        self._up.set()
        self.rank()

    def line_is_down(self, line: Line, error: RegraftError) -> None:
        """A connection is lost: what went that way has to be tried another way."""
        if not any(other.is_up for other in self.lines):
            self._up.clear()
        self.rank()
        for call in list(self._calls.values()):
            if call.phase == 2:
                self._no_answer(call, line)
            elif call.by is line and not call.received:
                call.done(WorldError("connection-lost", error.text))

    def refused(self, error: RegraftError, number: int) -> None:
        """A node does not take us for what we are."""
        self._refusal = error

    def rank(self) -> None:
        """Which line is the first choice now?"""
        assert self._loop is not None
        now = self._loop.time()
        well = (line for line in self.lines if line.is_up and line.sick_until <= now)
        self._best = None if self.closed else next(well, None)

    async def choose(self, seconds: float) -> Line:
        """A line to send by: always the same one, while it is well."""
        assert self._loop is not None, "open the peer first"
        until = self._loop.time() + seconds
        while True:
            now = self._loop.time()
            if self.closed:
                raise LocalError("closed", "this peer was closed")
            self.rank()
            if self._best is not None:
                return self._best
            up = [line for line in self.lines if line.is_up]
            if up:
                return min(up, key=lambda line: line.sick_until)
            try:
                self._up.clear()
                async with asyncio.timeout(until - now):
                    await self._up.wait()
            except TimeoutError:
                raise WorldError("timed-out", "no node can be reached") from None

    # ------------------------------------------------------------------------ sending

    def _topic(self, type: str) -> bytes:
        if not NAME.fullmatch(type):
            raise LocalError("bad-message", f"{type!r:.80} is no message type")
        topic = self._topics[type] = (TYPE_TOPIC + type).encode()
        return topic

    def _fields(
        self, to: str, rules: tuple[Route, ...] | None, report: bool, own: bool = True
    ) -> bytes:
        rest = b""
        if own:
            rest = self._sender
            workflow = context.current().workflow
            if workflow:
                rest += text_field(b"\x42", workflow)
        if to:
            rest += text_field(b"\x1a", to.encode())
        if rules:
            rest += text_field(b"\xa2\x01", encode_routes(rules))
        return rest + _REPORT if report else rest

    async def send(
        self,
        type: str,
        body: Any = b"",
        *,
        to: str = "",
        rules: tuple[Route, ...] | None = None,
        report: bool = False,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Send one message by one node; nobody answers it. If the node dies, it may be lost.

        `to` is the id of a peer that gets it, and nobody else; `rules` are the message's own. What
        finds nobody is told to `on_undeliverable`, if the rule says so or `report` does.
        """
        line = await self.choose(timeout)
        topic = self._topics.get(type) or self._topic(type)
        data, kind = encode(body)
        rest = _FIXED.pack(_ID, self._asked.new_id()) + self._fields(to, rules, report) + kind
        assert self._loop is not None
        until = self._loop.time() + timeout
        while not line.put(topic, data, rest):
            left = until - self._loop.time()
            if left <= 0:
                raise WorldError("timed-out", "no node takes more messages")
            await line.room(min(left, PATIENCE_S))
            line = await self.choose(left)
        self._counts["sent"] += 1

    async def event(self, type: str, body: Any = b"", *, copies: int = 0) -> int:
        """Send a message by all connected nodes, or by `copies` of them; by how many it went.

        It arrives as long as one of them lives, and once. A node that takes nothing for a second is
        passed over until it does.
        """
        assert self._loop is not None, "open the peer first"
        topic = self._topics.get(type) or self._topic(type)
        data, kind = encode(body)
        self._sequence += 1
        rest = (
            _FIXED.pack(_ID, self._asked.new_id())
            + self._fields("", None, False)
            + b"\x58"
            + write_varint(self._sequence)
            + kind
        )
        wanted = copies or self._copies or len(self.lines)
        went = 0
        while True:
            full = []
            for line in self.lines:
                if went < wanted and line.is_up:
                    if line.put(topic, data, rest):
                        went += 1
                    elif not line.stuck:
                        full.append(line)
            for line in full:  # in turn: while we wait for one, the others get room, too
                while went < wanted and line.is_up and await line.room(PATIENCE_S):
                    if line.put(topic, data, rest):
                        went += 1
                        break
            if went:
                self._counts["events"] += 1
                return went
            await self.choose(TIMEOUT_S)

    # ------------------------------------------------------------------------ queries

    async def query(
        self,
        type: str,
        body: Any = b"",
        *,
        timeout: float | None = None,
        reply: Any = None,
        idempotent: bool = True,
        to: str = "",
        rules: tuple[Route, ...] | None = None,
    ) -> Any:
        """Ask a service, and return its answer: a message, or what `reply` says it is.

        It fails with `undeliverable`, `backend-error` or `timed-out`. A request may be handled by
        two instances, if the first did not answer in time; one that is not `idempotent` is only
        sent again if it was not delivered.
        """
        data, rest = body, b""
        if body.__class__ is not bytes:
            data, rest = encode(body)
        seconds = TIMEOUT_S if timeout is None else timeout
        line = self._best or await self.choose(seconds)
        if context.REQUEST.get() is not None:
            seconds, workflow = self._within(seconds)
            rest += workflow
        if to or rules:
            rest += self._fields(to, rules, bool(to), False)
        topic = self._topics.get(type) or self._topic(type)
        call = self._asked.ask(line, topic, data, rest, seconds)
        try:
            if call.sent:
                answer = await call.future
            else:
                answer = await self._wait_and_put(call, (topic, data, rest), seconds)
            if answer.__class__ is not ReceivedMessage:
                request = topic, data, rest
                again = None if to else idempotent
                answer = await self._otherwise(call, answer, type, request, seconds, again)
        except BaseException:
            self._counts["failed"] += 1
            self._calls.pop(call.id, None)
            if not self.closed:
                self._cancel(type, call.id)
            raise
        return answer if reply is None else decode(answer, reply)

    def _within(self, seconds: float) -> tuple[float, bytes]:
        """What is asked within a request has no more time than is left, and its workflow."""
        given = context.current()
        if given.deadline:
            seconds = min(seconds, given.remaining or 0.0)
        return seconds, text_field(b"\x42", given.workflow)

    def _wake_at(self, due: float) -> None:
        """A call is due then, before all others."""
        assert self._loop is not None
        self._asked.next_due = due
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        """The time of a call is over, or would have been."""
        assert self._loop is not None
        self._timer = None
        due = self._asked.expire(self._loop.time() + TIMER_S)
        if due != NEVER:
            self._timer = self._loop.call_at(due, self._expire)

    async def _phase(self, call: Call, until: float) -> Any:
        """Wait for the end of a phase; None when its time is over."""
        call.due = until
        if until < self._asked.next_due:
            self._wake_at(until)
        return await call.future

    async def _wait_and_put(self, call: Call, request: Asking, seconds: float) -> Any:
        """Phase 1 where the node gives no credit at first."""
        assert self._loop is not None
        end = call.until - seconds * (1 - FIRST)
        while not self._put(call, request):
            if not await call.by.room(max(0.0, end - self._loop.time())):
                return WorldError("timed-out", "the node takes no more messages")
        return await self._phase(call, end)

    def _put(self, call: Call, request: Asking, more: bytes = b"") -> bool:
        """Send the request of a call, if there is room, by the line that it has."""
        topic, data, rest = request
        return self._asked.put(call.by, topic, data, call, rest + more)

    async def _otherwise(
        self,
        call: Call,
        result: RegraftError | None,
        type: str,
        request: Asking,
        seconds: float,
        idempotent: bool | None,
    ) -> ReceivedMessage:
        """Phase 1 brought no answer: what now? `idempotent` is None if only one peer will do."""
        assert self._loop is not None
        if result is None and call.received:  # somebody works on it: give it some more time
            call.future = self._loop.create_future()
            result = await self._phase(call, call.until - seconds * (1 - RECEIVED))
            if isinstance(result, ReceivedMessage):
                return result
        if result is None:
            call.by.blame()
            result = WorldError("timed-out", f"nobody answered within {seconds:g} s")
        if idempotent is None or not (idempotent or result.code.name == "undeliverable"):
            raise result
        call.failure = result
        while True:  # and again if the node of phase 3 dies, too, while there is time
            try:
                return await self._search_and_repeat(call, type, request, seconds)
            except WorldError as error:
                lost = error.code.name == "connection-lost" and call.phase == 3
                if not (lost and idempotent) or self._loop.time() >= call.until:
                    raise
                call.failure, call.found = error, None

    async def _search_and_repeat(
        self, call: Call, type: str, request: Asking, seconds: float
    ) -> ReceivedMessage:
        """Phases 2 and 3."""
        assert self._loop is not None and call.failure is not None
        until = call.until
        call.phase = 2
        call.future = self._loop.create_future()
        search = self._asked.new_id()
        self._searches[search] = call
        self._counts["searches"] += 1
        fields = _FIXED.pack(_ID, search) + self._sender + _SEARCH + _REPORT
        where = (SEARCH_TOPIC + type).encode()
        call.unasked = {line for line in self.lines if line.put(where, b"", fields)}
        try:
            if not call.unasked:
                raise call.failure
            left = max(until - seconds * (1 - SECOND), (self._loop.time() + until) / 2)
            result = await self._phase(call, left)
        finally:
            del self._searches[search]
        if isinstance(result, ReceivedMessage):
            return result  # of phase 1, late
        if isinstance(result, RegraftError) or call.found is None:
            raise result if isinstance(result, RegraftError) else call.failure
        call.phase = 3
        call.future = self._loop.create_future()
        call.by, sender = call.found
        self._counts["repeated"] += 1
        if not self._put(call, request, text_field(b"\x1a", sender) + _REPORT):
            raise WorldError("timed-out", "the node takes no more messages")
        result = await self._phase(call, until)
        if isinstance(result, ReceivedMessage):
            return result
        if isinstance(result, RegraftError):
            raise result
        raise WorldError("timed-out", f"nobody answered within {seconds:g} s")

    def _cancel(self, type: str, id: int) -> None:
        """Nobody waits any more: whoever has the request need not handle it."""
        where = (SEARCH_TOPIC + type).encode()
        fields = _FIXED.pack(_REFERENCES, id) + self._sender + _CANCEL
        for line in self.lines:
            line.put(where, b"", fields)

    async def ask_health(self, peer: str, timeout: float = 1.0) -> dict[str, Any]:
        """What an instance says of itself."""
        line = await self.choose(timeout)
        assert self._loop is not None
        id = self._asked.new_id()
        call = self._calls[id] = Call(self._loop.create_future(), line, id)
        rest = _FIXED.pack(_ID, id) + self._sender + _HEALTH + _REPORT
        try:
            line.put((PEER_TOPIC + peer).encode(), b"", rest + text_field(b"\x1a", peer.encode()))
            result = await self._phase(call, self._loop.time() + timeout)
        finally:
            self._calls.pop(id, None)
        if isinstance(result, ReceivedMessage):
            health: dict[str, Any] = result.json()
            return health
        raise result or WorldError("timed-out", f"{peer} did not answer within {timeout:g} s")

    # ----------------------------------------------------------------------- receiving

    def find_takers(self, numbers: tuple[int, ...]) -> tuple[Taker, ...]:
        """Who takes what comes for these subscriptions: on lines of our own, we do."""
        takers = (self.taker,)
        if len(self.switch.takers) < TAKERS_MAX:
            self.switch.takers[numbers] = takers
        return takers

    def take(
        self, line: Line, messages: list[ReceivedMessage], subscriptions: tuple[int, ...]
    ) -> None:
        """Messages have come that are neither answers nor what a service handles at once."""
        for message in messages:
            head = message.head()
            if head[3]:
                self._take_answer(line, message, head)
            else:
                self.take_request(line, message, head, subscriptions)

    def take_request(
        self,
        line: Line,
        message: ReceivedMessage,
        head: tuple[int, bytes, int, int, bytes, int, int, bool],
        subscriptions: tuple[int, ...],
    ) -> None:
        """Somebody asks us: a peer that is no service only says that it is there."""
        if head[2] in (SEARCH, PING):
            self.reply(line, head, b"", _PING)
        elif self._group in subscriptions:
            line.finished()

    def reply(self, line: Line, asked: Any, body: bytes, fields: bytes = b"") -> bool:
        """Answer a message by the line that it came by or, if that is gone, by another.

        `asked` is a request, or the head of a message.
        """
        id, sender = (asked.id, asked.sender) if isinstance(asked, Request) else asked[:2]
        if line.answer(REPLY, body, id, sender, self._sender, fields):
            return True
        return any(
            other.answer(REPLY, body, id, sender, self._sender, fields)
            for other in self.lines
            if other is not line
        )

    def _take_answer(self, line: Line, message: ReceivedMessage, head: Any) -> None:
        id, type = head[3], head[2]
        if type == PING or id in self._searches:
            self._take_search(line, id, type, head[1])
            return
        call = self._calls.get(id)
        if call is None:
            self._take_late(id, type, head[1], message)
            return
        if type == REQUEST_RECEIVED:
            call.received = True
        elif type == DELIVERY_ERROR:
            if call.phase != 2:
                said = message.attributes
                kind, peer, why = (str(said.get(name, "")) for name in ("type", "peer", "reason"))
                call.done(WorldError("undeliverable", f"{kind} for {peer or 'anybody'}: {why}"))
        elif type == BACKEND_ERROR:
            call.failed_by = head[1]
            if call.phase != 2:
                call.done(WorldError("backend-error", message.text()))
        else:
            self._asked.end(message)

    def _take_late(self, id: int, type: int, sender: bytes, message: ReceivedMessage) -> None:
        """An answer to what is over: if another instance answered it, two have done it."""
        if type == DELIVERY_ERROR:
            self._counts["undeliverable"] += 1
            for callback in self.undeliverable:
                callback(message)
            return
        first = self._asked.answered_by(id)
        if type != REQUEST_RECEIVED:
            self._counts["late"] += 1
        if first is not None and type not in (REQUEST_RECEIVED, BACKEND_ERROR) and first != sender:
            self._counts["answered_twice"] += 1

    def _take_search(self, line: Line, id: int, type: int, sender: bytes) -> None:
        call = self._searches.get(id)
        if call is None or call.phase != 2:
            return
        if type == DELIVERY_ERROR:
            self._no_answer(call, line)
        elif sender != call.failed_by:
            call.found = line, sender
            call.done(None)

    def _no_answer(self, call: Call, line: Line) -> None:
        """There is nobody at this node; if that is so at all of them, nobody need wait."""
        call.unasked.discard(line)
        if not call.unasked and call.found is None:
            failure = call.failure
            if failure is None or failure.code.name != "backend-error":
                failure = WorldError("undeliverable", "no node knows anybody who could answer")
            call.done(failure)

    def on_undeliverable(self, callback: Any) -> None:
        """Call this with the report of every message that was sent and found nobody."""
        self.undeliverable.append(callback)
