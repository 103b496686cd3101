"""The client: one session with whichever of its nodes answers, kept up by itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from regraft import __version__
from regraft.client.address import Address, resolve
from regraft.client.link import (
    Arrived,
    Batch,
    Confirmed,
    Failed,
    Leaving,
    Link,
    LinkEvent,
    Missed,
    Refused,
    Settled,
    Welcomed,
)
from regraft.client.options import Options
from regraft.client.payload import encode_body, encode_headers
from regraft.client.subscription import EndedError, Subscription
from regraft.errors import LocalError, PeerError, RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Value
from regraft.model.topics import check_pattern, check_topic
from regraft.wire import native

FLUSH_BYTES = 65_536  # what is gathered before it is written without waiting for the loop
HEARTBEATS_MISSED_MAX = 3
TOPICS_CACHED = 4096

# After these a new attempt would end in the same way.
PERMANENT = {"unsupported-version", "unsupported-feature", "unknown-protocol", "taken-over"}

Callback = Callable[[ReceivedMessage], Awaitable[None] | None]
Connector = Callable[[Callable[[], asyncio.Protocol], Address], Awaitable[Any]]

log = logging.getLogger("regraft.client")


@dataclass(frozen=True, slots=True)
class Disconnection:
    """A connection was lost. `unconfirmed` messages may or may not have reached the node."""

    error: RegraftError
    unconfirmed: int
    will_reconnect: bool


async def connect(target: str | None = None, options: Options | None = None, **more: Any) -> Client:
    """Connect to a node and return the client.

    `target` is an address or several, or a logical name: see `regraft.client.address`. Without one,
    REGRAFT_URL says, or the node of this machine. Options may be given by name.
    """
    client = Client(target, options, **more)
    await client.open()
    return client


async def _dial(factory: Callable[[], asyncio.Protocol], address: Address) -> Any:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(factory, address.host, address.port)
    return transport


class _Wire(asyncio.Protocol):
    """Hands what happens to a socket to the client, with the link it belongs to."""

    def __init__(self, client: Client, link: Link) -> None:
        self._client = client
        self.link = link

    def data_received(self, data: bytes) -> None:
        self._client._received(self.link, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client._lost(self.link, exc)

    def pause_writing(self) -> None:
        self._client._writable = False

    def resume_writing(self) -> None:
        self._client._writable = True
        self._client._make_room()


class Client:
    """Publishes and subscribes. Make one with `connect()`, and close it, or use it as a context.

    It reconnects by itself, to the next address that answers, and subscribes again. Messages are
    delivered at most once: what was in flight when a connection broke is reported to
    `on_disconnect`, and to whoever awaits a confirmation.
    """

    def __init__(
        self,
        target: str | None = None,
        options: Options | None = None,
        *,
        connector: Connector = _dial,
        **more: Any,
    ) -> None:
        if options is not None and more:
            raise LocalError("bad-configuration", "give options or single settings, not both")
        try:
            self.options = options or Options(**more)
        except TypeError as error:
            raise LocalError("bad-configuration", f"no such option: {error}") from None
        self._target = target
        self._connector = connector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None  # open, or None
        self._transport: Any = None
        self._writable = True
        self._flushing = False
        self._room: asyncio.Event = asyncio.Event()
        self._ended: asyncio.Event = asyncio.Event()
        self._failure: RegraftError | None = None  # why it is closed
        self._closing = False
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[int, Subscription] = {}
        self._last_subscription = 0
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._confirmations: dict[int, asyncio.Future[None]] = {}
        self._barrier_due = False
        self._welcome: native.Welcome | None = None
        self._opening: asyncio.Future[None] | None = None
        self._break: asyncio.Future[RegraftError] | None = None
        self._heard = 0.0
        self._spoke = 0.0
        self._topics: dict[str, bytes] = {}
        self._on_disconnect: list[Callable[[Disconnection], None]] = []
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_refused: list[Callable[[RegraftError, int], None]] = []
        self._on_missed: list[Callable[[int, str], None]] = []
        self._wanted: list[tuple[str, str, bool, Callback]] = []

    # ------------------------------------------------------------------------- life

    async def open(self) -> None:
        """Find a node that answers. `connect()` does this."""
        self._check_usable()
        if self._keeper is not None:
            return
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.options.connect_timeout):
                await self._connect_somewhere()
        except TimeoutError:
            text = f"no node answered within {self.options.connect_timeout} s at {self._where()}"
            raise WorldError("unreachable", text) from None
        self._keeper = self._loop.create_task(self._keep(), name="regraft-client")
        for pattern, where, exact, callback in self._wanted:
            await self.subscribe(pattern, where=where, exact=exact, callback=callback)

    async def close(self) -> None:
        """Send what was published, say good-bye, and end. A closed client stays closed."""
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        if self._failure is None:
            self._failure = LocalError("closed", "this client was closed")
        for subscription in self._subscriptions.values():
            subscription.end()
        transport = self._transport
        if self._link is not None and transport is not None and self._break is not None:
            self._write(native.encode(native.Bye()))
            await asyncio.wait([self._break], timeout=2.0)  # the node hangs up when it is done
            transport.close()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._forget_link(self._failure)
        self._room.set()
        self._ended.set()

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether it is usable; it may be reconnecting."""
        return self._failure is None

    @property
    def is_connected(self) -> bool:
        """Whether a node is there now."""
        return self._link is not None

    @property
    def client_id(self) -> str:
        """The id by which nodes know this client."""
        return self._welcome.client_id if self._welcome is not None else self.options.client_id

    @property
    def node_name(self) -> str:
        """The name of the node it is, or was last, connected to."""
        return self._welcome.node_name if self._welcome is not None else ""

    def on_disconnect(self, callback: Callable[[Disconnection], None]) -> None:
        """Call this when a connection is lost."""
        self._on_disconnect.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call this when a node is there again and all subscriptions were sent to it."""
        self._on_reconnect.append(callback)

    def on_refused(self, callback: Callable[[RegraftError, int], None]) -> None:
        """Call this with the error and the number of messages that a node did not take."""
        self._on_refused.append(callback)

    def on_missed(self, callback: Callable[[int, str], None]) -> None:
        """Call this with the number of messages for us that a node dropped, and why."""
        self._on_missed.append(callback)

    # ------------------------------------------------------------------- publishing

    async def publish(
        self,
        topic: str,
        body: Any = b"",
        *,
        attributes: Mapping[str, Value] | None = None,
        confirm: bool = False,
        timeout: float | None = None,
        ttl: float | None = None,
        **headers: Any,
    ) -> None:
        """Publish one message: bytes, text, or anything JSON can hold.

        Returns once it is on its way; with `confirm`, once the node has dealt with it, or raises
        what the node says against it. `ttl` is in seconds. Headers by name: content_type,
        priority, reply_to, correlation, type, type_name, ... Waits, at most `timeout` seconds,
        while there is no connection or no credit.
        """
        link = self._link
        if link is None or not link.has_room or not self._writable:
            link = await self._wait_for_room(timeout)
        if type(body) is not bytes:
            body, content_type = encode_body(body)
            if content_type:
                headers.setdefault("content_type", content_type)
        if ttl is not None:
            headers["expiration_us"] = time.time_ns() // 1000 + int(ttl * 1_000_000)
        ordinal = self._put(
            link, topic, body, attributes, encode_headers(headers) if headers else b""
        )
        if confirm:
            await self._confirmation(ordinal, timeout)

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        attributes: Mapping[str, Value] | None = None,
        confirm: bool = False,
        timeout: float | None = None,
        **headers: Any,
    ) -> int:
        """Publish many messages to one topic, and return how many. The fastest way to do it."""
        rest = encode_headers(headers) if headers else b""
        count = ordinal = 0
        link = self._link
        for body in bodies:
            if link is not self._link or link is None or not link.has_room or not self._writable:
                link = await self._wait_for_room(timeout)
            if type(body) is not bytes:
                body, _ = encode_body(body)
            ordinal = self._put(link, topic, body, attributes, rest)
            count += 1
        if confirm and count:
            await self._confirmation(ordinal, timeout)
        return count

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the node has dealt with all that was published on this connection."""
        link = self._link if self._link is not None else await self._wait_for_room(timeout)
        if link.sent_messages > link.confirmed:
            await self._confirmation(link.sent_messages, timeout)

    def _put(
        self,
        link: Link,
        topic: str,
        body: bytes,
        attributes: Mapping[str, Value] | None,
        rest: bytes,
    ) -> int:
        encoded = self._topics.get(topic)
        if encoded is None:
            encoded = self._encode_topic(topic)
        options = self.options
        now_us = time.time_ns() // 1000 if options.timestamps else 0
        outbox = link.outbox
        size = outbox.put(encoded, body, attributes, now_us, options.message_ids, rest)
        if outbox.used >= FLUSH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            assert self._loop is not None
            self._loop.call_soon(self._flush)
        return link.counted(size)

    def _encode_topic(self, topic: str) -> bytes:
        check_topic(topic)
        if len(self._topics) >= TOPICS_CACHED:
            self._topics.clear()
        encoded = self._topics[topic] = topic.encode()
        return encoded

    def _flush(self) -> None:
        """Write what has been gathered."""
        self._flushing = False
        link = self._link
        if link is None:
            return
        if link.outbox.used:
            self._write(link.outbox.take())
        if self._barrier_due:
            self._barrier_due = False
            self._write(link.barrier())

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            assert self._loop is not None
            self._spoke = self._loop.time()
            link = self._link
            if link is not None and link.outbox.used:  # keep the order
                data = link.outbox.take() + data
            self._transport.write(data)

    async def _wait_for_room(self, timeout: float | None) -> Link:
        self._check_usable()
        if self._keeper is None:
            raise LocalError("closed", "this client is not open yet; await client.open()")
        try:
            async with asyncio.timeout(timeout):
                while self._link is None or not self._link.has_room or not self._writable:
                    self._room.clear()
                    self._flush()
                    await self._room.wait()
                    self._check_usable()
        except TimeoutError:
            if self._link is None:
                text = f"no connection within {timeout} s: {self._where()}"
            else:
                text = f"the node gave no credit within {timeout} s: a subscriber is slow"
            raise WorldError("timed-out", text) from None
        return self._link

    async def _confirmation(self, ordinal: int, timeout: float | None) -> None:
        assert self._loop is not None
        future = self._confirmations.get(ordinal)
        if future is None:
            future = self._confirmations[ordinal] = self._loop.create_future()
        self._barrier_due = True
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(future)
        except TimeoutError:
            raise WorldError("timed-out", f"no confirmation within {timeout} s") from None

    # ------------------------------------------------------------------ subscribing

    async def subscribe(
        self,
        pattern: str = "",
        *,
        where: str = "",
        exact: bool = False,
        callback: Callback | None = None,
        timeout: float | None = 10.0,
    ) -> Subscription:
        """Subscribe to a topic pattern, to what a selector allows, or to both.

        Returns once the node has confirmed it: nothing published from then on is missed. With a
        callback, it is called with every message, one after the other.
        """
        check_pattern(pattern)
        await self._wait_for_link(timeout)
        self._last_subscription += 1
        id = self._last_subscription
        subscription = Subscription(id, pattern, where, exact, self._taken, self._unsubscribe)
        self._subscriptions[id] = subscription
        try:
            await self._ask(id, native.Subscribe(id, pattern, where, exact), timeout)
        except BaseException:
            self._subscriptions.pop(id, None)
            raise
        if callback is not None:
            self._spawn(self._call(subscription, callback))
        return subscription

    def on(
        self, pattern: str = "", *, where: str = "", exact: bool = False
    ) -> Callable[[Callback], Callback]:
        """Decorate a function to have it called with every message that matches."""

        def decorate(callback: Callback) -> Callback:
            if self._keeper is None:
                self._wanted.append((pattern, where, exact, callback))
            else:
                self._spawn(self._subscribe_callback(pattern, where, exact, callback))
            return callback

        return decorate

    async def _subscribe_callback(
        self, pattern: str, where: str, exact: bool, callback: Callback
    ) -> None:
        await self.subscribe(pattern, where=where, exact=exact, callback=callback)

    async def unsubscribe_all(self) -> None:
        """End all subscriptions."""
        for subscription in list(self._subscriptions.values()):
            await subscription.unsubscribe()

    async def _unsubscribe(self, subscription: Subscription) -> None:
        id = subscription.id
        self._subscriptions.pop(id, None)
        try:
            if self._link is not None:
                await self._ask(id, native.Unsubscribe(id), 10.0)
        except WorldError:
            pass  # the connection is gone, and the subscription with it
        finally:
            subscription.end()

    async def _call(self, subscription: Subscription, callback: Callback) -> None:
        try:
            async for message in subscription:
                result = callback(message)
                if inspect.isawaitable(result):
                    await result
        except EndedError:
            pass

    def _spawn(self, coroutine: Any) -> None:
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a callback failed, and is called no more", exc_info=task.exception())

    async def _ask(self, id: int, question: native.Control, timeout: float | None) -> None:
        """Send what the node answers, and wait for the answer."""
        assert self._loop is not None
        future = self._answers[id] = self._loop.create_future()
        self._write(native.encode(question))
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise WorldError("timed-out", f"the node did not answer in {timeout} s") from None
        finally:
            self._answers.pop(id, None)

    def _taken(self, batch: Batch) -> None:
        """The application is done with some messages: the node may send more."""
        if self._link is not None:
            self._write(self._link.taken(batch))

    # ------------------------------------------------------------------- connection

    async def _wait_for_link(self, timeout: float | None) -> None:
        if self._link is None:
            await self._wait_for_room(timeout)

    async def _connect_somewhere(self) -> None:
        """Try the addresses in turn, until one of them is a node."""
        errors = []
        for address in resolve(self._target):
            try:
                await self._connect_to(address)
                return
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                errors.append(f"{address} ({reason})")
            except WorldError as error:
                errors.append(f"{address} ({error.text})")
        raise WorldError(
            "unreachable",
            f"no node answers at {', '.join(errors)}; start one with `regraft serve`",
        )

    async def _connect_to(self, address: Address) -> None:
        assert self._loop is not None
        options = self.options
        hello = native.Hello(
            version_min=native.VERSION,
            version_max=native.VERSION,
            client_id=self.client_id,
            agent=f"regraft-python/{__version__}",
            heartbeat_ms=int(options.heartbeat * 1000),
            when_stalled=options.when_stalled,
            credit_messages=options.queue_messages,
            credit_bytes=options.queue_bytes,
        )
        link = Link(hello, random.getrandbits(63))
        self._opening = self._loop.create_future()
        self._break = self._loop.create_future()
        self._writable = True
        transport = await self._connector(lambda: _Wire(self, link), address)
        try:
            transport.write(link.open())
            await self._opening
        except BaseException:
            transport.close()
            raise
        self._transport = transport
        self._link = link
        self._heard = self._spoke = self._loop.time()
        for subscription in self._subscriptions.values():
            question = native.Subscribe(
                subscription.id, subscription.pattern, subscription.where, subscription.exact
            )
            self._write(native.encode(question))
        self._make_room()

    async def _keep(self) -> None:
        """Keep a connection: heartbeats while there is one, attempts while there is none."""
        while True:
            assert self._break is not None
            error = await self._watch(self._break)
            unconfirmed = self._forget_link(error)
            again = self.options.reconnect and error.code.name not in PERMANENT
            if self._closing:
                again = False
            for callback in self._on_disconnect:
                callback(Disconnection(error, unconfirmed, again))
            if not again:
                self._fail(error)
                return
            log.info("connection lost, will reconnect: %s", error)
            if not await self._reconnect():
                return
            for reconnected in self._on_reconnect:
                reconnected()

    async def _watch(self, broken: asyncio.Future[RegraftError]) -> RegraftError:
        """Send and expect heartbeats until the connection breaks."""
        assert self._loop is not None and self._welcome is not None
        period = max(self._welcome.heartbeat_ms, 100) / 1000
        while True:
            await asyncio.wait([broken], timeout=period / 2)
            if broken.done():
                return broken.result()
            now = self._loop.time()
            if now - self._heard > HEARTBEATS_MISSED_MAX * period:
                text = f"nothing was heard from the node for {now - self._heard:.1f} s"
                if self._transport is not None:
                    self._transport.abort()
                return WorldError("heartbeat-lost", text)
            if now - self._spoke >= period / 2:
                self._write(native.encode(native.Heartbeat()))

    async def _reconnect(self) -> bool:
        """Try until a node answers; false if it never will."""
        delay = self.options.reconnect_delay
        while True:
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            try:
                async with asyncio.timeout(self.options.connect_timeout):
                    await self._connect_somewhere()
                return True
            except (RegraftError, TimeoutError) as error:
                if isinstance(error, RegraftError) and error.code.name in PERMANENT:
                    self._fail(error)
                    return False
                log.debug("not yet: %s", error)
            delay = min(2 * delay, self.options.reconnect_delay_max)

    def _forget_link(self, error: RegraftError) -> int:
        """The connection is gone; the number of messages whose fate is not known."""
        link, self._link = self._link, None
        self._transport = None
        unconfirmed = link.sent_messages - link.confirmed if link is not None else 0
        waiting = [*self._answers.values(), *self._confirmations.values()]
        self._confirmations.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(WorldError("connection-lost", f"in flight: {error.text}"))
                future.exception()  # whoever waits gets it; nobody need
        return unconfirmed

    def _fail(self, error: RegraftError) -> None:
        """It will not work again: tell everybody who waits."""
        if self._failure is None:
            self._failure = error
        for subscription in self._subscriptions.values():
            subscription.end(None if self._closing else error)
        self._room.set()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _where(self) -> str:
        return self._target or "the node of this machine (127.0.0.1:7447)"

    # -------------------------------------------------------------- what is received

    def _received(self, link: Link, data: bytes) -> None:
        assert self._loop is not None
        self._heard = self._loop.time()
        try:
            for event in link.receive(data):
                if type(event) is Arrived:
                    self._arrived(event)
                else:
                    self._handle(link, event)
        except PeerError as error:
            self._broken(error)
            if self._transport is not None:
                self._transport.abort()
            return
        if link.has_room:
            self._make_room()

    def _arrived(self, event: Arrived) -> None:
        batch = event.batch
        takers = [
            subscription
            for id in event.subscriptions
            if (subscription := self._subscriptions.get(id)) is not None
        ]
        batch.waiting = len(takers)
        for subscription in takers:
            subscription.push(batch)
        if not takers:
            self._taken(batch)

    def _handle(self, link: Link, event: LinkEvent) -> None:
        match event:
            case Welcomed(welcome):
                self._welcome = welcome
                if self._opening is not None and not self._opening.done():
                    self._opening.set_result(None)
            case Settled(id, error):
                self._settled(id, error)
            case Confirmed(ordinal):
                for key in [key for key in self._confirmations if key <= ordinal]:
                    _resolve(self._confirmations.pop(key), None)
            case Refused():
                self._refused(event)
            case Missed(messages, reason):
                log.warning("the node dropped %d messages for us: %s", messages, reason)
                for callback in self._on_missed:
                    callback(messages, reason)
            case Leaving(reason, _):
                self._broken(WorldError("shutting-down", f"the node says: {reason}"))
                self._write(native.encode(native.Bye()))
            case Failed(error):
                self._broken(error)

    def _settled(self, id: int, error: RegraftError | None) -> None:
        future = self._answers.get(id)
        if future is not None:
            _resolve(future, error)
        elif error is not None and id in self._subscriptions:
            self._subscriptions.pop(id).end(error)  # refused when it was repeated

    def _refused(self, event: Refused) -> None:
        told = False
        for ordinal in [
            key
            for key in self._confirmations
            if event.ordinal <= key < event.ordinal + event.messages
        ]:
            _resolve(self._confirmations.pop(ordinal), event.error)
            told = True
        for callback in self._on_refused:
            callback(event.error, event.messages)
        if not told and not self._on_refused:
            log.warning("%d messages were refused: %s", event.messages, event.error)

    def _lost(self, link: Link, exc: Exception | None) -> None:
        reason = f": {exc}" if exc is not None else ""
        self._broken(WorldError("connection-lost", f"the node closed the connection{reason}"))

    def _broken(self, error: RegraftError) -> None:
        """The first reason counts."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)
        if self._break is not None and not self._break.done():
            self._break.set_result(error)

    def _make_room(self) -> None:
        if not self._room.is_set():
            self._room.set()


def _resolve(future: asyncio.Future[None], error: RegraftError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
