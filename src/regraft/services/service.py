"""A service: a peer that answers messages of some types.

    service = Service("SEARCH", "node1:7447,node2:7447")

    @service.handle("SEARCH_REQUEST")
    async def search(request: SearchRequest) -> SearchResult:
        ...

    await service.run()

A request that has expired, or was cancelled, is dropped before its handler sees it. One that comes
again (a caller repeats with the same id) is not handled twice: it gets the same answer, or is told
that it is being worked on. What waits for its turn is taken by priority, then in order.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import inspect
import logging
import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from regraft.client.client import FLUSH_BYTES
from regraft.errors import LocalError, RegraftError
from regraft.kernels.desk import Desk, Handler, Request
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.rules import (
    BACKEND_ERROR,
    CANCEL,
    HEALTH,
    PING,
    REQUEST_RECEIVED,
    SEARCH,
    TYPE_TOPIC,
)
from regraft.model.varint import write_varint
from regraft.services import context
from regraft.services.line import Line
from regraft.services.payload import decode, encode, wanted_type
from regraft.services.peer import REPLY, Peer
from regraft.services.trunk import Trunk
from regraft.services.workers import Workers

CONCURRENCY = 256  # handlers at a time
THREADS = 8  # for those that block
REPLIES_REMEMBERED = 4096  # to requests that may come again, at least,
REPLIES_BYTES = 16 * 1024 * 1024  # all together, at most
CANCELLED_REMEMBERED = 4096
ERROR_TEXT_MAX = 500  # of what a handler raised, that a caller gets to see
LATENCIES = 1024  # the last ones, for the health of a service

PING_FIELD, RECEIVED_FIELD, BACKEND_FIELD = (
    b"\x20" + write_varint(number) for number in (PING, REQUEST_RECEIVED, BACKEND_ERROR)
)
Head = tuple[int, bytes, int, int, bytes, int, int, bool]
F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("regraft.services")


class HandlerError(Exception):
    """Raise it in a handler to tell the caller what is wrong, in words of your own."""


class Service(Peer):
    """A peer of a type, with handlers."""

    def __init__(
        self,
        type: str,
        nodes: str | Iterable[str] | Trunk | None = None,
        *,
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
        **more: Any,
    ) -> None:
        if not type:
            raise LocalError("bad-configuration", "a service needs a peer type")
        if concurrency < 1 or threads < 1:
            raise LocalError("bad-configuration", "concurrency and threads must be 1 or more")
        super().__init__(nodes, type=type, **more)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"{type}-handler")
        self._queue: list[tuple[int, int, Request]] = []  # a heap: priority, order
        self._queued: set[int] = set()
        self._order = 0
        self._cancelled: OrderedDict[int, None] = OrderedDict()
        self._workers = self._trunk.workers if self._trunk is not None else Workers()
        self._tasks: set[asyncio.Task[Any]] = set()  # handlers that wait, answers without room
        self._idle = asyncio.Event()  # for `drain`: there are no requests any more
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._stopping = asyncio.Event()
        self.draining = False
        for name in ("errors", "expired", "cancelled", "again"):
            self._counts[name] = 0
        desk = self._desk = self.taker.desk = Desk(
            self, self._workers.ready, self._group, concurrency, REPLIES_REMEMBERED, REPLIES_BYTES
        )
        desk.sender, desk.reply_topic, desk.flush_bytes = self._sender, REPLY, FLUSH_BYTES
        desk.variable, desk.now, desk.latencies = context.REQUEST, time.monotonic, self._latencies
        desk.decode, desk.encode = decode, encode

    @property
    def counts(self) -> dict[str, int]:
        """How often what happened."""
        return {**super().counts, "handled": self._desk.handled}

    def handle(self, type: str) -> Callable[[F], F]:
        """Have a function called with messages of a type; what it returns is the answer.

        An `async` function runs in the event loop, any other one in a thread. What its parameter is
        annotated with says how it wants the body: as bytes, str, a dataclass, a msgspec.Struct, a
        class of Protocol Buffers, or as the whole message (`regraft.ReceivedMessage`).
        """
        self._topic(type)

        def decorate(function: F) -> F:
            handlers = self._desk.handlers
            if TYPE_TOPIC + type in handlers:
                raise LocalError("bad-configuration", f"{type} has a handler already")
            blocking = not inspect.iscoroutinefunction(function)
            wants = wanted_type(function)
            handlers[TYPE_TOPIC + type] = Handler(type, function, wants, blocking)
            return function

        return decorate

    # ---------------------------------------------------------------------------- life

    async def run(self, drain: float = 10.0) -> None:
        """Serve until SIGTERM or SIGINT, or until `stop()`; then finish what was begun."""
        await self.open()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._stopping.wait()
            await self.drain(drain)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.close()

    def stop(self) -> None:
        """Have `run()` come to its end."""
        self._stopping.set()

    async def drain(self, timeout: float = 10.0) -> bool:
        """Take no more requests, and finish those that are there; whether all were finished."""
        self.draining = True
        await asyncio.gather(*(line.leave_group(self._group, timeout / 2) for line in self.lines))
        self._desk.watched = True
        self._idle.clear()
        if self._desk.active == 0:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%s: %d requests were not finished", self.id, self._desk.active)
            return False
        return True

    async def close(self) -> None:
        """End at once: what is being handled is cancelled."""
        self.draining = True
        ready = self._workers.ready.forget(self._desk)
        self._desk.active -= len(ready)
        for request in [*ready, *(request for _, _, request in self._queue)]:
            self._desk.release(request)
        self._queue.clear()
        self._desk.waiting = 0
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._trunk is None:
            await self._workers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await super().close()

    def health(self) -> dict[str, Any]:
        """How it is: what it has done, what it has to do, how long that takes."""
        times = sorted(self._latencies)
        return {
            "peer": self.type,
            "id": self.id,
            "draining": self.draining,
            "nodes": sum(line.is_up for line in self.lines),
            "running": self._desk.active,
            "waiting": len(self._queue),
            "p50_ms": round(1000 * times[len(times) // 2], 3) if times else 0.0,
            "p99_ms": round(1000 * times[len(times) * 99 // 100], 3) if times else 0.0,
            "handled": self._desk.handled,
            **{name: self._counts[name] for name in ("errors", "expired", "again")},
            "types": {
                handler.type: {"handled": handler.handled, "errors": handler.errors}
                for handler in self._desk.handlers.values()
            },
        }

    # ------------------------------------------------------------------------- requests

    def take_request(
        self,
        line: Line,
        message: ReceivedMessage,
        head: Head,
        subscriptions: tuple[int, ...],
    ) -> None:
        """Somebody asks us."""
        number = head[2]
        if number in (SEARCH, PING):
            if not self.draining:
                self.reply(line, head, b"", PING_FIELD)
            return
        if number == HEALTH:
            self.reply(line, head, *encode(self.health()))
            return
        counted = self._group in subscriptions
        desk = self._desk
        handler = desk.handlers.get(message.topic)
        if handler is None:
            type = message.topic[len(TYPE_TOPIC) :]
            self._fail(line, head, f"{self.type} does not handle {type}", counted)
            return
        id = head[0]
        if id and self._seen_before(line, head, counted):
            return
        request = desk.make(line, line.taken, message, handler, counted)
        desk.hold(request, time.monotonic())
        if desk.active < desk.concurrency:
            self._start(request)
            return
        self._order += 1
        self._queued.add(id)
        heapq.heappush(self._queue, (-request.priority, self._order, request))
        desk.waiting = len(self._queue)

    def take(
        self, line: Line, messages: list[ReceivedMessage], subscriptions: tuple[int, ...]
    ) -> None:
        """Something unusual has come; cancellations overtake requests that wait."""
        for message in messages:
            if message.number == CANCEL and message.references:
                self._cancel_request(message.references)
                continue
            head = message.head()
            if head[3]:
                self._take_answer(line, message, head)
            else:
                self.take_request(line, message, head, subscriptions)

    def _seen_before(self, line: Line, head: Head, counted: bool) -> bool:
        """Whether we have, or had, this very request; it is answered then."""
        id = head[0]
        stored = self._desk.replied(id)
        if stored is not None:
            self._counts["again"] += 1
            self.reply(line, head, *stored)
        elif id in self._desk.running or id in self._queued:
            self._counts["again"] += 1
            self.reply(line, head, b"", RECEIVED_FIELD)
            if counted:
                line.finished()
        else:
            return False
        return True

    def _cancel_request(self, id: int) -> None:
        if id in self._queued:
            self._cancelled[id] = None
            if len(self._cancelled) > CANCELLED_REMEMBERED:
                self._cancelled.popitem(last=False)

    def _start(self, request: Request) -> None:
        """Have a request handled, unless nobody waits for it any more."""
        id = request.id
        until = request.until_us
        if (until and until <= time.time() * 1e6) or id in self._cancelled:
            cancelled = id in self._cancelled
            self._cancelled.pop(id, None)
            self._counts["cancelled" if cancelled else "expired"] += 1
            self._desk.release(request)
        else:
            self._desk.start(request)

    # What follows is called by the desk.

    async def in_thread(self, function: Callable[[Any], Any], wanted: Any) -> Any:
        """Have a handler that blocks run elsewhere."""
        assert self._loop is not None
        call = functools.partial(contextvars.copy_context().run, function, wanted)
        return await self._loop.run_in_executor(self._threads, call)

    async def handle_on(self, request: Request) -> None:
        """The other steps of a handler, in the task of a worker."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self._desk.succeed(request, await request)
        except Exception as error:
            self.failed(request, error)
        finally:
            self._tasks.discard(task)
            self._desk.end(request)

    def failed(self, request: Request, error: Exception) -> None:
        """A handler raised this."""
        request.handler.errors += 1
        self._counts["errors"] += 1
        if not isinstance(error, HandlerError):
            log.warning("%s failed on %s", self.id, request.type, exc_info=error)
        if request.wants_reply:
            self._desk.answer(request, describe(error).encode(), BACKEND_FIELD)

    def one_less(self) -> None:
        """Of those that are being handled: who waits for its turn may have it."""
        desk = self._desk
        while self._queue and desk.active < desk.concurrency:
            _, _, waiting = heapq.heappop(self._queue)
            self._queued.discard(waiting.id)
            self._start(waiting)
        desk.waiting = len(self._queue)
        if desk.active == 0:
            self._idle.set()

    def answer_elsewhere(self, request: Request, body: bytes, fields: bytes) -> None:
        """There is no room for an answer where its request came from."""
        if not self.reply(request.line, request, body, fields):
            self._desk.active += 1  # this one is in our hands for longer than its handler
            task = asyncio.ensure_future(self._answer_later(request, body, fields))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer_later(self, request: Request, body: bytes, fields: bytes) -> None:
        """There is no room for an answer now: when there is, unless nobody waits any more."""
        until = request.until_us / 1e6
        try:
            while time.time() < until:
                try:
                    line = await self.choose(until - time.time())
                except RegraftError:
                    return
                await line.room(until - time.time())
                if self.reply(line, request, body, fields):
                    return
            if request.counted:
                request.line.finished()
        finally:
            self._desk.active -= 1
            self.one_less()

    def _fail(self, line: Line, head: Head, text: str, counted: bool) -> None:
        self._counts["errors"] += 1
        if head[7]:
            self.reply(line, head, text.encode(), BACKEND_FIELD)
        elif counted:
            line.finished()

    def received(self) -> None:
        """In a handler: tell the caller at once that its request is being worked on."""
        request = context.REQUEST.get()
        if request is not None and request.desk is self._desk and request.wants_reply:
            self.reply(request.line, request, b"", RECEIVED_FIELD)


def describe(error: BaseException) -> str:
    """What a caller is told of an error: its kind and its text, never a traceback."""
    text = str(error)[:ERROR_TEXT_MAX]
    text = "".join(c if c.isprintable() else " " for c in text)
    if isinstance(error, HandlerError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
