"""The client: one session with whichever of its nodes answers, kept up by itself."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Unpack

from regraft.client.administration import DEAD_LETTERS, Administration
from regraft.client.current import CURRENT
from regraft.client.durable import Durable, Replay
from regraft.client.filtered import Filtered
from regraft.client.offers import Offering
from regraft.client.options import Options
from regraft.client.payload import encode_body, encode_headers, special_headers
from regraft.client.queue import Browse, Handler, Queue, QueueOptions, Work, made_options
from regraft.client.subscription import Shared, Subscription
from regraft.client.tracing import Tracing
from regraft.client.transaction import Transacting, Transaction
from regraft.client.upkeep import log
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.kernels.outbox import Outbox
from regraft.model.message import Value
from regraft.model.topics import check_pattern, check_topic
from regraft.model.userfilter import MessageFilter, encoded
from regraft.wire import native, peers

FLUSH_BYTES = 65_536  # what is gathered before it is written without waiting for the loop
CHUNK_MESSAGES = 1024  # of many, at a time
TOPICS_CACHED = 4096
CLOSE_S = 5.0  # for the last confirmations, when it is closed
INSPECTED = (
    *("node", "connections", "subscriptions", "index", "journal", "custody", "topology"),
    *("services", "filters"),
)

Callback = Callable[[ReceivedMessage], Awaitable[None] | None]


async def connect(target: str | None = None, options: Options | None = None, **more: Any) -> Client:
    """Connect to a node and return the client.

    `target` is an address or several, or a logical name: see `regraft.client.address`. Without one,
    REGRAFT_URL says, or the node of this machine. Options may be given by name.
    """
    client = Client(target, options, **more)
    await client.open()
    return client


class Client(Transacting, Tracing, Offering, Administration):
    """Publishes and subscribes. Make one with `connect()`, and close it, or use it as a context.

    It reconnects by itself, to the next address that answers, and subscribes again. Messages are
    delivered at most once: what was in flight when a connection broke is reported to
    `on_disconnect`, and to whoever awaits a confirmation.
    """

    def __init__(self, target: str | None = None, options: Options | None = None, **more: Any):
        super().__init__(target, options, **more)
        self._topics: dict[str, bytes] = {}
        self._wanted: list[tuple[str, str, bool, bool, Callback]] = []

    # ------------------------------------------------------------------------- life

    async def open(self) -> None:
        """Find a node that answers. `connect()` does this."""
        self._check_usable()
        if self._keeper is not None:
            return
        self._loop = asyncio.get_running_loop()
        await self._connect_somewhere()
        self._keeper = self._loop.create_task(self._keep(), name="regraft-client")
        self._keeper.add_done_callback(self._kept)
        for wanted in self._wanted:
            await self._subscribe_callback(*wanted)

    async def close(self) -> None:
        """Send what was published, say good-bye, and end. A closed client stays closed.

        What was taken from durable subscriptions last, and is not settled, comes again some day;
        who leaves the client's context without an error is done with it.
        """
        await self._close(False)

    async def _close(self, done: bool, failed: bool = False) -> None:
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        if self._failure is None:
            self._failure = LocalError("closed", "this client was closed")
        for subscription in self._subscriptions.values():
            if isinstance(subscription, Durable):
                subscription.leave(done, failed)
            if isinstance(subscription, Queue):  # nor does what is on its way to us count
                self._send(native.Unsubscribe(subscription.id))
            subscription.end()
        await self._last_confirmations()
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
        while self._lingering:
            self._let_go()
        self._unconfirmed.fail(self._failure)
        self._room.set()
        self._ended.set()

    async def _last_confirmations(self) -> None:
        """Give the node a moment to confirm what is persistent."""
        self._flush()
        if not self._unconfirmed:
            return
        last = self._unconfirmed.last
        try:
            if self._link is None:
                raise WorldError("connection-lost", "there is no connection")
            await self._safety(last + 1, last, CLOSE_S)
        except RegraftError as error:
            log.warning("closed with persistent messages that may be lost: %s", error)

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(kind is None, kind is not None and issubclass(kind, Exception))

    # ------------------------------------------------------------------- publishing

    async def publish(
        self,
        topic: str,
        body: Any = b"",
        *,
        attributes: Mapping[str, Value] | None = None,
        persistent: bool = False,
        confirm: bool = False,
        timeout: float | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        message_id: int | None = None,
        **headers: Any,
    ) -> int:
        """Publish one message: bytes, text, anything JSON can hold, or what you have registered.

        Returns once it is on its way; with `confirm`, once the node has dealt with it, or raises
        what the node says against it. A `persistent` message is confirmed once it is safe on disk,
        with the number of mailboxes, streams and sessions that take it (otherwise 0 is returned);
        it is sent again after a reconnection until then, and stored once all the same.

        `priority` is 0 to 9, and 4 if it is not given. It is not delivered later than `ttl` seconds
        from now, nor earlier than `delay` seconds from now, or than `deliver_at`, a datetime or
        seconds since 1970; it is persistent then, and until that time `cancel(message_id)` takes
        it back. `message_id` is an id of your own, as `new_id()` makes them, instead of a random
        one.

        Headers by name: content_type, reply_to, correlation, type, type_name, ..., and `where`, a
        selector: it is for receivers whose context (`ctx.NAME`) satisfies it. Waits, at most
        `timeout` seconds, while there is no connection or no credit.
        """
        if not (priority is ttl is delay is deliver_at is message_id is None):
            headers |= special_headers(priority, ttl, delay, deliver_at, message_id)
            persistent = persistent or "deliver_at_us" in headers
        if self._transactions and (unit := self._unit(confirm)) is not None:
            await unit.publish(topic, body, attributes=attributes, persistent=persistent, **headers)
            return 0
        if self._promises:
            self._check_promise(topic, body, attributes, headers)
        outbox = self._outbox
        if (
            outbox is None
            or not outbox.has_room
            or not self._writable
            or (persistent and self._unconfirmed.size >= self.options.unconfirmed_bytes)
        ):
            outbox = (await self._wait_for_room(timeout)).outbox
        if type(body) is not bytes:
            body, kind = encode_body(body)
            headers = {**kind, **headers}
        options = self.options
        outbox.persistent = persistent
        ordinal = outbox.put(
            self._topics.get(topic) or self._encode_topic(topic),
            body,
            attributes,
            time.time_ns() // 1000 if options.timestamps else 0,
            options.message_ids and message_id is None,
            encode_headers(headers) + self._context_bytes if headers else self._context_bytes,
        )
        if confirm and persistent and not self._unconfirmed:
            self._flush()  # nothing is under way that others could join
        elif not self._flushing or outbox.used >= FLUSH_BYTES:
            self._flush_soon(outbox)
        if not confirm:
            return 0
        return await self._dealt_with(ordinal, outbox.sequence if persistent else 0, timeout)

    async def _dealt_with(self, ordinal: int, sequence: int, timeout: float | None) -> int:
        """The node has dealt with a message, a persistent one if it has a sequence."""
        if not sequence:
            await self._confirmation(ordinal, timeout)
            return 0
        if timeout is None and self._loop is not None:
            return await self._unconfirmed.wait(sequence, sequence, self._loop)
        return await self._safety(sequence, sequence, timeout)

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        attributes: Mapping[str, Value] | None = None,
        persistent: bool = False,
        confirm: bool = False,
        timeout: float | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        **headers: Any,
    ) -> int:
        """Publish many messages to one topic, and return how many. The fastest way to do it.

        With `confirm` it returns once the node has dealt with all of them; if the connection is
        lost on the way, it raises, and nobody knows of how many that is true. If they are
        `persistent`, it goes on after a reconnection, and returns once all are safe.
        """
        encoded = self._topics.get(topic) or self._encode_topic(topic)
        headers |= special_headers(priority, ttl, delay, deliver_at)
        persistent = persistent or "deliver_at_us" in headers
        if self._transactions and (unit := self._unit(confirm)) is not None:
            more = {"attributes": attributes, "persistent": persistent, **headers}
            return await unit.publish_many(topic, bodies, **more)
        rest = (encode_headers(headers) if headers else b"") + self._context_bytes
        options = self.options
        begun = link = self._link or await self._wait_for_room(timeout)
        first = 0
        count = 0
        waiting = iter(bodies)
        while chunk := list(islice(waiting, CHUNK_MESSAGES)):
            at = 0
            for body in chunk if self._promises else ():
                self._check_promise(topic, body, attributes, headers)
            while at < len(chunk):
                if link is not self._link or not self._has_room(link):
                    link = await self._wait_for_room(timeout)
                    if confirm and not persistent and link is not begun:
                        raise WorldError("connection-lost", "in flight: the connection was lost")
                now_us = time.time_ns() // 1000 if options.timestamps else 0
                ids = options.message_ids and "message_id" not in headers
                link.outbox.persistent = persistent
                first = first or link.outbox.sequence + 1
                body = chunk[at]
                if type(body) is bytes:
                    at = link.outbox.put_many(
                        encoded, chunk, at, attributes, now_us, ids, rest, FLUSH_BYTES
                    )
                else:
                    body, kind = encode_body(body)
                    more = {name: one for name, one in kind.items() if name not in headers}
                    own = rest + encode_headers(more) if more else rest
                    link.outbox.put(encoded, body, attributes, now_us, ids, own)
                    at += 1
                self._flush_soon(link.outbox)
            count += len(chunk)
        if confirm and count and persistent:
            await self._safety(first, link.outbox.sequence, timeout)
        elif confirm and count:
            await self._confirmation(link.outbox.sent_messages, timeout)
        return count

    def _unit(self, confirm: bool) -> Transaction | None:
        """The transaction of this client that the caller is in."""
        unit = CURRENT.get()
        if unit is None or not unit.takes(self):
            return None
        if confirm:
            text = "in a transaction nothing is confirmed but the commit"
            raise LocalError("not-supported", text)
        return unit

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the node has dealt with all that was published on this connection.

        Dealt with means taken or refused: what was refused is told to `on_refused`.
        """
        link = self._link if self._link is not None else await self._wait_for_room(timeout)
        if link.outbox.sent_messages > link.confirmed:
            await self._confirmation(link.outbox.sent_messages, timeout, self._barriers)
        last = self._unconfirmed.last
        if self._unconfirmed:
            await self._safety(last + 1, last, timeout)

    def _flush_soon(self, outbox: Outbox) -> None:
        """Something was put into the outbox: see to it that it is sent."""
        if outbox.used >= FLUSH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            assert self._loop is not None
            self._loop.call_soon(self._flush)

    def _encode_topic(self, topic: str) -> bytes:
        check_topic(topic)
        if len(self._topics) >= TOPICS_CACHED:
            self._topics.clear()
        encoded = self._topics[topic] = topic.encode()
        return encoded

    async def _safety(self, first: int, last: int, timeout: float | None) -> int:
        """Wait until persistent messages are safe; how many took the last of them."""
        assert self._loop is not None
        future = self._unconfirmed.wait(first, last, self._loop)
        if timeout is None:
            return await future
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            text = f"not confirmed within {timeout} s; it is sent again until it is"
            raise WorldError("timed-out", text) from None

    async def _confirmation(
        self,
        ordinal: int,
        timeout: float | None,
        waiting: dict[int, asyncio.Future[None]] | None = None,
    ) -> None:
        assert self._loop is not None
        waiting = self._confirmations if waiting is None else waiting
        future = waiting.get(ordinal)
        if future is None:
            future = waiting[ordinal] = self._loop.create_future()
        self._barrier_due = True
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(future)
        except TimeoutError:
            raise WorldError("timed-out", f"no confirmation within {timeout} s") from None

    @staticmethod
    def new_id() -> int:
        """A random id for a message, to be remembered."""
        return random.getrandbits(63) or 1

    async def inspect(
        self, what: str = "node", *, rows: int = 0, timeout: float | None = 10.0
    ) -> dict[str, Any]:
        """What the node holds.

        One of "node", "connections", "subscriptions", "index", "journal", "custody": what other
        nodes have to keep, "filters": those of applications that it knows, and "topology": its
        place among other nodes.
        """
        if what not in INSPECTED:
            raise LocalError("bad-message", f"{what!r}: inspect one of {', '.join(INSPECTED)}")
        return await self._request(what, lambda _: native.Inspect(what, rows), timeout)

    async def command(
        self, what: str, *, timeout: float | None = 10.0, **arguments: Any
    ) -> dict[str, Any]:
        """Have the node do something, and return what it says about it; or raise why not.

        "link-add" (address), "link-remove" (node) and "leave" change its place among other nodes:
        see `regraft link` and `regraft node`.
        """
        data = json.dumps(arguments).encode()
        return await self._request("", lambda token: peers.Command(token, what, data), timeout)

    async def _command(self, what: str, timeout: float | None) -> dict[str, Any]:
        return await self.command(what, timeout=timeout)

    # ------------------------------------------------------------------ subscribing

    async def subscribe(
        self,
        pattern: str = "",
        *,
        where: str = "",
        exact: bool = False,
        group: str = "",
        replies: bool = False,
        filter: MessageFilter | None = None,
        callback: Callback | None = None,
        timeout: float | None = 10.0,
    ) -> Subscription:
        """Subscribe to a topic pattern, to what a selector allows, or to both.

        Returns once the node has confirmed it: nothing published from then on is missed. With a
        callback, it is called with every message, one after the other. Those who subscribe to the
        same with the same `group` share it: each message goes to the one with the least to do.
        With `replies`, who asks (`ask()`) waits for what this subscriber says to it: each question
        is to be answered by `message.reply()` or `message.no_reply()`; a callback that returns has
        answered. A `filter` is an object of a class of your own (`regraft.filter`): of what topic
        and selector allow, it takes the messages that it matches.
        """
        pattern = f"$share/{group}/{pattern}" if group else pattern
        name, data = ("", b"") if filter is None else encoded(filter)
        own = {"filter": name, "filter_data": data}
        wanted = self._wanted_of(pattern, where, exact, replies=replies, **own)
        if wanted.pattern.startswith("$share/"):
            send = self._send
            subscription: Subscription = Shared(wanted, self._taken, self._unsubscribe, send)
        elif filter is not None:
            subscription = filtered = Filtered(wanted, self._taken, self._unsubscribe)
            filtered.filter = filter
        else:
            subscription = Subscription(wanted, self._taken, self._unsubscribe)
        await self._subscribe(subscription, callback, timeout)
        return subscription

    async def subscribe_durably(
        self,
        name: str,
        pattern: str = "",
        *,
        where: str = "",
        exact: bool = False,
        manual: bool = False,
        in_flight: int = 0,
        move: bool = False,
        callback: Callback | None = None,
        timeout: float | None = 10.0,
    ) -> Durable:
        """Subscribe under a name: persistent messages are kept for it while nobody reads.

        The node keeps a mailbox of this name until it is removed. A message comes again until it
        is settled: by asking for the next one, by leaving the context without an error or, with
        `manual`, by `message.settle()` only. At most `in_flight` of them are delivered and not
        settled. A callback settles what it returns from; what it failed on stays unsettled. With
        `move` the mailbox comes from the node that has it, with all that waits in it.
        """
        if not name:
            raise LocalError("bad-pattern", "a durable subscription needs a name")
        more = {"in_flight": in_flight, "move": move}
        wanted = self._wanted_of(pattern, where, exact, durable=name, **more)
        durable = Durable(wanted, self._taken, self._unsubscribe, self._send, manual)
        durable.called, durable.client = callback is not None, self
        answer = await self._subscribe(durable, callback, timeout)
        durable.waiting_at_start = answer.waiting if answer is not None else 0
        return durable

    async def replay(
        self,
        pattern: str = "",
        *,
        where: str = "",
        exact: bool = False,
        stream: str = "",
        since: float = 0.0,
        sequence: int = 0,
        until: float = 0.0,
        until_sequence: int = 0,
        paced: bool = False,
        callback: Callback | None = None,
        timeout: float | None = 10.0,
    ) -> Replay:
        """Read a retained topic again, and then what is added to it.

        It begins with what was persisted `since` then (seconds since 1970), or with a `sequence`,
        or with the oldest message that is there. It ends before what was persisted at `until` or
        later, or with `until_sequence`, whichever comes first; if that is still to come, it waits
        for it. With `paced`, messages come with the same time between them as when they were
        published.
        """
        since_us = int(since * 1_000_000)
        if until < 0 or until_sequence < 0:
            raise LocalError("bad-message", "a replay ends after 1970, and not before sequence 1")
        wanted = self._wanted_of(
            pattern,
            where,
            exact,
            stream=stream,
            from_sequence=max(sequence, 0 if since_us else 1),
            from_time=since_us,
            until_time=int(until * 1_000_000),
            until_sequence=until_sequence,
            paced=paced,
        )
        replay = Replay(wanted, self._taken, self._unsubscribe)
        await self._subscribe(replay, callback, timeout)
        return replay

    def queue(
        self,
        name: str,
        topic: str = "",
        *,
        where: str = "",
        exact: bool = False,
        auto: bool = False,
        in_flight: int = 0,
        existing: bool = False,
        move: bool = False,
        timeout: float | None = 10.0,
        **options: Unpack[QueueOptions],
    ) -> Queue:
        """A queue that several members share: each message goes to one of them.

        It is attached when it is first read. If nothing more than its name is said, it is read as
        it is; if there is none, one is made for the topic of the same name. With a `topic`
        pattern, a selector, or options (see `QueueOptions`), it is made so, and must be so if it
        is there: or `mailbox-differs`. With `existing` it is not made. With `move` it comes here
        from the node that has it.

        Each message is accepted, released or rejected by `message.accept()` and so on; with
        `auto` it is accepted when the next one is asked for. This member holds `in_flight`
        messages at most.
        """
        if not name:
            raise LocalError("bad-pattern", "a queue needs a name")
        more: dict[str, Any] = {"in_flight": in_flight, "existing": existing, "move": move}
        if (topic or where or exact or options) and not existing:
            more["options"] = json.dumps(made_options(options)).encode()
        wanted = self._wanted_of(topic or name, where, exact, durable=name, **more)
        attach = partial(self._attach, timeout)
        queue = Queue(wanted, self._taken, self._unsubscribe, self._send, attach, auto)
        queue.client = self
        return queue

    async def work(
        self,
        name: str,
        handler: Handler,
        topic: str = "",
        *,
        concurrency: int = 1,
        backoff: float = 1.0,
        in_flight: int = 0,
        **more: Any,
    ) -> Work:
        """Have a handler called with the messages of a queue, `concurrency` of them at a time.

        A message is accepted when the handler returns. When it raises, the message is released,
        and comes again after `backoff` seconds, twice that the next time, and so on, up to a
        minute; a `backoff` of 0 leaves it to the queue's `retry`. The handler may settle it
        otherwise, by `message.reject("why")` for example. `stop()` what is returned to end it.
        All else is said as to `queue()`.
        """
        # Twice as many as are worked on: the next ones are here in time, and others get theirs.
        queue = self.queue(name, topic, in_flight=in_flight or 2 * concurrency, **more)
        return await Work(queue, handler, concurrency, backoff, self._spawn).start()

    def browse(self, name: str, *, where: str = "", timeout: float | None = 10.0) -> Browse:
        """Look at what waits in a queue or mailbox, and take nothing.

        Iterate over it: messages come in the order of their sequences, also those that members
        hold, and end with what was there at the beginning.
        """
        wanted = self._wanted_of("", where, False, durable=name, browse=True)
        return Browse(wanted, self._taken, self._unsubscribe, partial(self._attach, timeout))

    def dead_letters(self, mailbox: str = DEAD_LETTERS, *, where: str = "") -> Browse:
        """Look at dead letters: their attributes `dead_reason`, `dead_mailbox`, ... say why."""
        return self.browse(mailbox, where=where)

    async def _attach(self, timeout: float | None, subscription: Subscription) -> None:
        answer = await self._subscribe(subscription, None, timeout)
        if isinstance(subscription, Durable):
            subscription.waiting_at_start = answer.waiting if answer is not None else 0

    def _wanted_of(self, pattern: str, where: str, exact: bool, **more: Any) -> native.Subscribe:
        check_pattern(pattern)
        self._last_subscription += 1
        return native.Subscribe(self._last_subscription, pattern, where, exact, **more)

    async def _subscribe(
        self, subscription: Subscription, callback: Callback | None, timeout: float | None
    ) -> native.Subscribed | None:
        await self._wait_for_link(timeout)
        if subscription.question.move and not self._has("moves"):
            raise LocalError("not-supported", "this node moves no mailboxes")
        self._subscriptions[subscription.id] = subscription
        try:
            await self._ask(subscription.id, subscription.question, timeout)
        except BaseException:
            self._subscriptions.pop(subscription.id, None)
            raise
        if callback is not None:
            subscription.called = True
            self._spawn(self._call(subscription, callback))
        return self._subscribed.pop(subscription.id, None)

    def on(
        self, pattern: str = "", *, where: str = "", exact: bool = False, replies: bool = False
    ) -> Callable[[Callback], Callback]:
        """Decorate a function to have it called with every message that matches."""

        def decorate(callback: Callback) -> Callback:
            if self._keeper is None:
                self._wanted.append((pattern, where, exact, replies, callback))
            else:
                self._spawn(self._subscribe_callback(pattern, where, exact, replies, callback))
            return callback

        return decorate

    async def _subscribe_callback(
        self, pattern: str, where: str, exact: bool, replies: bool, callback: Callback
    ) -> None:
        more: dict[str, Any] = {"where": where, "exact": exact, "replies": replies}
        await self.subscribe(pattern, callback=callback, **more)

    async def unsubscribe_all(self) -> None:
        """End all subscriptions."""
        for subscription in list(self._subscriptions.values()):
            await subscription.unsubscribe()

    def _send(self, message: native.Control) -> None:
        """Send it, if there is a connection."""
        if self._link is not None:
            self._write(native.encode(message))

    async def _unsubscribe(self, subscription: Subscription, remove: bool) -> None:
        id = subscription.id
        if remove:
            await self._wait_for_link(10.0)
        self._subscriptions.pop(id, None)
        try:
            if self._link is not None:
                await self._ask(id, native.Unsubscribe(id, remove), 10.0)
        except WorldError:
            if remove:
                raise  # it may be there still
            # else: the connection is gone, and the subscription with it
        finally:
            subscription.end()

    async def _call(self, subscription: Subscription, callback: Callback) -> None:
        async for message in subscription:
            failed = True
            try:
                result = callback(message)
                if inspect.isawaitable(result):
                    await result
                failed = False
            except Exception:
                # The next message may be better; and who stops taking holds everybody up.
                log.exception("the callback for %r failed on %r", subscription, message)
                if isinstance(subscription, Durable):
                    subscription.fail(message)
            finally:
                if message.question > 0 and subscription.wanted.replies:
                    self._handled(subscription, message, failed)

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a subscription with a callback ended", exc_info=task.exception())

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
