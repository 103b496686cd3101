"""The blocking front: the same client on a loop of its own, in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from regraft.client.administration import DEAD_LETTERS, Row
from regraft.client.blocking_replies import BlockingReplies
from regraft.client.client import Callback, Client
from regraft.client.current import CURRENT
from regraft.client.durable import Durable
from regraft.client.offers import BlockingOffer
from regraft.client.options import Options
from regraft.client.queue import Queue
from regraft.client.subscription import EndedError, Subscription
from regraft.client.traced import Traced, Travelled, Why
from regraft.client.transaction import TIMEOUT_S, Transaction, check_outcome
from regraft.client.upkeep import OUTCOMES, Disconnection
from regraft.errors import LocalError, RegraftError
from regraft.kernels.inbox import NOTHING, ReceivedMessage
from regraft.model.message import Value
from regraft.model.selector import Selector

Result = TypeVar("Result")


def connect_blocking(
    target: str | None = None, options: Options | None = None, **more: Any
) -> BlockingClient:
    """Connect to a node and return a client whose calls block: see `regraft.connect`."""
    return BlockingClient(target, options, **more)


class _AnyThread(Client):
    """The client inside, whose messages may be settled in any thread."""

    def _settle_message(
        self, message: ReceivedMessage, outcome: str, details: tuple[Any, ...], confirm: bool
    ) -> Awaitable[None]:
        settle = partial(super()._settle_message, message, outcome, details)
        unit = CURRENT.get()
        if unit is not None and unit.takes(self):
            check_outcome(OUTCOMES[outcome](*details).outcome)
        loop = self._loop
        assert loop is not None
        if asyncio._get_running_loop() is loop:
            return settle(confirm)
        if loop.is_closed():
            raise LocalError("closed", "this client was closed")
        if outcome in ("reply", "no-reply"):

            async def reply() -> None:
                await settle(False)

            asyncio.run_coroutine_threadsafe(reply(), loop).result()
            return NOTHING
        OUTCOMES[outcome](*details)  # what is wrong with it is said here
        if confirm:

            async def wait() -> None:
                await settle(True)

            asyncio.run_coroutine_threadsafe(wait(), loop).result()
        else:
            loop.call_soon_threadsafe(settle, False)
        return NOTHING


class BlockingClient:
    """A client for programs without asyncio. It may be used by several threads."""

    def __init__(
        self, target: str | None = None, options: Options | None = None, **more: Any
    ) -> None:
        self._client = _AnyThread(target, options, **more)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="regraft-client", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._client.open())
        except BaseException:
            self._stop()
            raise

    def publish(
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
        """Publish one message: see `Client.publish`."""
        return self._run(
            self._client.publish(
                topic,
                body,
                attributes=attributes,
                persistent=persistent,
                confirm=confirm,
                timeout=timeout,
                priority=priority,
                ttl=ttl,
                delay=delay,
                deliver_at=deliver_at,
                message_id=message_id,
                **headers,
            )
        )

    def publish_many(self, topic: str, bodies: Iterable[Any], **more: Any) -> int:
        """Publish many messages to one topic: see `Client.publish_many`."""
        return self._run(self._client.publish_many(topic, bodies, **more))

    def subscribe(self, pattern: str = "", **more: Any) -> BlockingSubscription:
        """Subscribe: see `Client.subscribe`."""
        return BlockingSubscription(self, self._run(self._client.subscribe(pattern, **more)))

    def subscribe_durably(self, name: str, pattern: str = "", **more: Any) -> BlockingDurable:
        """Subscribe under a name: see `Client.subscribe_durably`."""
        durable = self._run(self._client.subscribe_durably(name, pattern, **more))
        return BlockingDurable(self, durable)

    def replay(self, pattern: str = "", **more: Any) -> BlockingSubscription:
        """Read a retained topic again: see `Client.replay`."""
        return BlockingSubscription(self, self._run(self._client.replay(pattern, **more)))

    def queue(self, name: str, topic: str = "", **more: Any) -> BlockingQueue:
        """A queue that several members share: see `Client.queue`."""
        return BlockingQueue(self, self._call(partial(self._client.queue, name, topic, **more)))

    def work(
        self,
        name: str,
        handler: Callable[[ReceivedMessage], None],
        topic: str = "",
        *,
        concurrency: int = 1,
        **more: Any,
    ) -> BlockingWork:
        """Have a handler called with the messages of a queue, each in a thread of its own.

        See `Client.work`.
        """
        return BlockingWork(self, name, handler, topic, concurrency, more)

    def browse(self, name: str, **more: Any) -> BlockingSubscription:
        """Look at what waits in a queue: see `Client.browse`."""
        browse = self._call(partial(self._client.browse, name, **more))
        return BlockingSubscription(self, browse)

    def dead_letters(self, mailbox: str = DEAD_LETTERS, **more: Any) -> BlockingSubscription:
        """Look at dead letters: see `Client.dead_letters`."""
        return self.browse(mailbox, **more)

    def transaction(self, *, timeout: float | None = TIMEOUT_S) -> BlockingTransaction:
        """A unit of work, for this thread: see `Client.transaction`."""
        return BlockingTransaction(self, self._client.transaction(timeout=timeout))

    def in_doubt(self, **more: Any) -> list[Row]:
        """Transactions that wait to be decided: see `Client.in_doubt`."""
        return self._run(self._client.in_doubt(**more))

    def decide(self, gid: str, commit: bool, **more: Any) -> str:
        """Commit or roll back a transaction that was prepared: see `Client.decide`."""
        return self._run(self._client.decide(gid, commit, **more))

    def outcome(self, gid: str, **more: Any) -> str:
        """What became of a transaction that was prepared: see `Client.outcome`."""
        return self._run(self._client.outcome(gid, **more))

    def ask(self, topic: str, body: Any = b"", **more: Any) -> BlockingReplies:
        """Ask everybody who is subscribed to this with `replies=True`: see `Client.ask`."""
        return BlockingReplies(self._run, self._run(self._client.ask(topic, body, **more)))

    def who(self, topic: str, body: Any = b"", **more: Any) -> Traced:
        """Who would get this message: see `Client.who`."""
        return self._run(self._client.who(topic, body, **more))

    def trace(self, topic: str, body: Any = b"", **more: Any) -> Traced:
        """Publish this message, and follow it: see `Client.trace`."""
        return self._run(self._client.trace(topic, body, **more))

    def why(self, topic: str, body: Any = b"", **more: Any) -> Why:
        """Why a subscriber would get this message, or would not: see `Client.why`."""
        return self._run(self._client.why(topic, body, **more))

    def trace_subscription(self, **more: Any) -> list[Travelled]:
        """How subscriptions travelled: see `Client.trace_subscription`."""
        return self._run(self._client.trace_subscription(**more))

    def advertise(self, pattern: str, where: str = "", **more: Any) -> BlockingOffer:
        """Say what will be published, and learn whether it is wanted: see `Client.advertise`."""
        return BlockingOffer(self._run, self._run(self._client.advertise(pattern, where, **more)))

    def set_context(self, context: Mapping[str, Value], *, timeout: float | None = 10.0) -> None:
        """Have this context from now on: see `Client.set_context`."""
        self._run(self._client.set_context(context, timeout=timeout))

    @property
    def context(self) -> Mapping[str, Value]:
        """What this client says of itself."""
        return self._client.context

    def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message of any subscription: see `Client.next`."""
        return self._run(self._client.next(timeout, where=where))

    def pending(self, *, where: str | Selector | None = None) -> int:
        """How many messages have arrived and were not taken yet, of all subscriptions."""
        return self._call(partial(self._client.pending, where=where))

    def unsubscribe(self, pattern: str = "", **more: Any) -> int:
        """End all subscriptions that were made with this filter: see `Client.unsubscribe`."""
        return self._run(self._client.unsubscribe(pattern, **more))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the node has dealt with all that was published."""
        self._run(self._client.flush(timeout))

    def inspect(self, what: str = "node", **more: Any) -> dict[str, Any]:
        """What the node holds: see `Client.inspect`."""
        return self._run(self._client.inspect(what, **more))

    def command(self, what: str, **more: Any) -> dict[str, Any]:
        """Have the node do something: see `Client.command`."""
        return self._run(self._client.command(what, **more))

    def create_queue(self, name: str, topic: str = "", **more: Any) -> Row:
        """Make a queue: see `Client.create_queue`."""
        return self._run(self._client.create_queue(name, topic, **more))

    def queues(self) -> list[Row]:
        """All queues and durable subscriptions of the node."""
        return self._run(self._client.queues())

    def show_queue(self, name: str) -> Row:
        """One of them, with its members: see `Client.show_queue`."""
        return self._run(self._client.show_queue(name))

    def change_queue(self, name: str, **options: Any) -> Row:
        """Change some options of a queue."""
        return self._run(self._client.change_queue(name, **options))

    def purge(self, name: str) -> int:
        """Drop all that waits in a queue: see `Client.purge`."""
        return self._run(self._client.purge(name))

    def remove_queue(self, name: str, *, force: bool = False) -> None:
        """Remove a queue: see `Client.remove_queue`."""
        self._run(self._client.remove_queue(name, force=force))

    def move_queue(self, name: str, **more: Any) -> Row:
        """Have a queue come to this node: see `Client.move_queue`."""
        return self._run(self._client.move_queue(name, **more))

    def rename_queue(self, name: str, to: str) -> None:
        """Give a queue another name."""
        self._run(self._client.rename_queue(name, to))

    def seek(
        self, name: str, sequence: int | None = None, *, time: datetime | float | None = None
    ) -> int:
        """Have a queue go on elsewhere: see `Client.seek`."""
        return self._run(self._client.seek(name, sequence, time=time))

    def create_topic(self, name: str, topic: str = "", **more: Any) -> Row:
        """Administer a topic: see `Client.create_topic`."""
        return self._run(self._client.create_topic(name, topic, **more))

    def topics(self) -> list[Row]:
        """The topics that are administered at the node."""
        return self._run(self._client.topics())

    def show_topic(self, name: str) -> Row:
        """One of them, by its logical name."""
        return self._run(self._client.show_topic(name))

    def topic(self, name: str) -> str:
        """The topic that has a logical name."""
        return self._run(self._client.topic(name))

    def remove_topic(self, name: str) -> None:
        """Administer a topic no more."""
        self._run(self._client.remove_topic(name))

    def new_id(self) -> int:
        """A random id for a message, to be remembered."""
        return self._client.new_id()

    def delayed(self, rows: int = 100) -> list[Row]:
        """What was published and is to be delivered later."""
        return self._run(self._client.delayed(rows))

    def cancel(self, message_id: int) -> int:
        """Cancel a message that is to be delivered later: see `Client.cancel`."""
        return self._run(self._client.cancel(message_id))

    def retry_dead(self, *which: ReceivedMessage | int, **more: Any) -> int:
        """Give dead letters back: see `Client.retry_dead`."""
        return self._run(self._client.retry_dead(*which, **more))

    def unsubscribe_all(self) -> None:
        """End all subscriptions."""
        self._run(self._client.unsubscribe_all())

    def on(
        self, pattern: str = "", *, where: str = "", exact: bool = False, replies: bool = False
    ) -> Callable[[Callback], Callback]:
        """Decorate a function to have it called with every message, in the client's own thread."""

        def decorate(callback: Callback) -> Callback:
            how = {"where": where, "exact": exact, "replies": replies}
            self.subscribe(pattern, callback=callback, **how)
            return callback

        return decorate

    def on_disconnect(self, callback: Callable[[Disconnection], None]) -> None:
        """Call this, in the client's own thread, when a connection is lost."""
        self._client.on_disconnect(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call this, in the client's own thread, when a node is there again."""
        self._client.on_reconnect(callback)

    def on_refused(self, callback: Callable[[RegraftError, int], None]) -> None:
        """Call this, in the client's own thread, for messages that a node did not take."""
        self._client.on_refused(callback)

    def on_missed(self, callback: Callable[[int, str], None]) -> None:
        """Call this, in the client's own thread, for messages that a node dropped."""
        self._client.on_missed(callback)

    @property
    def is_open(self) -> bool:
        """Whether it is usable; it may be reconnecting."""
        return self._client.is_open

    @property
    def is_connected(self) -> bool:
        """Whether a node is there now."""
        return self._client.is_connected

    @property
    def node_name(self) -> str:
        """The name of the node it is, or was last, connected to."""
        return self._client.node_name

    @property
    def client_id(self) -> str:
        """The id by which nodes know this client."""
        return self._client.client_id

    def close(self) -> None:
        """Send what was published, say good-bye, and end: see `Client.close`."""
        self._close(False)

    def _close(self, done: bool, failed: bool = False) -> None:
        if self._loop.is_closed():
            return
        self._run(self._client._close(done, failed))
        self._stop()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(kind is None, kind is not None and issubclass(kind, Exception))

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if self._loop.is_closed():
            coroutine.close()
            raise LocalError("closed", "this client was closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LocalError("closed", "this client was closed") from None
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits for it any more
            raise

    def _call(self, function: Callable[[], Result]) -> Result:
        """Call a function where the client is."""

        async def call() -> Result:
            return function()

        return self._run(call())

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingSubscription:
    """Messages of one subscription, for programs without asyncio."""

    def __init__(self, client: BlockingClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message: see `Subscription.next`."""
        return self._client._run(self._subscription.next(timeout, where=where))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            try:
                yield self._client._run(self._subscription.next())
            except EndedError:
                return

    def batches(self) -> Iterator[list[ReceivedMessage]]:
        """Messages as they arrived together: the fastest way to take many."""
        while True:
            try:
                yield self._client._run(self._subscription.next_batch())
            except EndedError:
                return

    def next_batch(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """All that has arrived, at least one message."""
        return self._client._run(self._subscription.next_batch(timeout))

    def pending(self, *, where: str | Selector | None = None) -> int:
        """How many messages have arrived and were not taken yet; with `where`, that satisfy it."""
        return self._client._call(partial(self._subscription.pending, where=where))

    def unsubscribe(self) -> None:
        """End it."""
        self._client._run(self._subscription.unsubscribe())

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.unsubscribe()


class BlockingDurable(BlockingSubscription):
    """Messages of a durable subscription, for programs without asyncio: see `Durable`."""

    def __init__(self, client: BlockingClient, durable: Durable) -> None:
        super().__init__(client, durable)
        self._durable = durable

    @property
    def name(self) -> str:
        """The name of the mailbox."""
        return self._durable.name

    @property
    def waiting_at_start(self) -> int:
        """How many messages waited when it was subscribed to."""
        return self._durable.waiting_at_start

    def settle(self, *messages: ReceivedMessage) -> None:
        """These are done with: they do not come again."""
        self._client._call(partial(self._durable.settle, *messages))

    def settle_through(self, message: ReceivedMessage) -> None:
        """This one and all that were handed out before it are done with."""
        self._client._call(partial(self._durable.settle_through, message))

    def accept(self, *messages: ReceivedMessage, confirm: bool = False) -> None:
        """These are done with: see `ReceivedMessage.accept`."""
        self._client._run(self._durable.accept(*messages, confirm=confirm))

    def accept_through(self, message: ReceivedMessage, *, confirm: bool = False) -> None:
        """This one and all that were handed out before it are done with."""
        self._client._run(self._durable.accept_through(message, confirm=confirm))

    def release(self, *messages: ReceivedMessage, **how: Any) -> None:
        """These are to be delivered again: see `ReceivedMessage.release`."""
        self._client._run(self._durable.release(*messages, **how))

    def reject(self, *messages: ReceivedMessage, reason: str = "") -> None:
        """These become dead letters: see `ReceivedMessage.reject`."""
        self._client._run(self._durable.reject(*messages, reason=reason))

    def extend(self, *messages: ReceivedMessage, seconds: float = 0.0) -> None:
        """These are still being worked on: see `ReceivedMessage.extend`."""
        self._client._run(self._durable.extend(*messages, seconds=seconds))

    def settled(self, timeout: float | None = 10.0) -> None:
        """Wait until all that was settled is safe, so that it never comes again."""
        self._client._run(self._durable.settled(timeout))

    def unsettled(self) -> int:
        """How many messages the application has and did not settle."""
        return self._durable.unsettled()

    def remove(self) -> None:
        """End the subscription for good, with all that waits in its mailbox."""
        self._client._run(self._durable.remove())

    def __enter__(self) -> BlockingDurable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client._run(self._durable.__aexit__(kind, error, traceback))


class BlockingQueue(BlockingDurable):
    """A queue, for programs without asyncio: see `Queue`."""

    def __init__(self, client: BlockingClient, queue: Queue) -> None:
        super().__init__(client, queue)
        self._queue = queue

    def open(self) -> BlockingQueue:
        """Attach to the queue. Whatever reads it does this."""
        self._client._run(self._queue.open())
        return self

    def close(self) -> None:
        """Read no more: what is held goes back at once."""
        self._client._run(self._queue.close())

    def __enter__(self) -> BlockingQueue:
        return self.open()


class BlockingWork:
    """A handler that is called with the messages of a queue: see `Work`."""

    def __init__(
        self,
        client: BlockingClient,
        name: str,
        handler: Callable[[ReceivedMessage], None],
        topic: str,
        concurrency: int,
        more: dict[str, Any],
    ) -> None:
        self._client = client
        self._threads = concurrent.futures.ThreadPoolExecutor(
            max(1, concurrency), f"regraft-{name}"
        )

        async def call(message: ReceivedMessage) -> None:
            await client._loop.run_in_executor(self._threads, handler, message)

        inner = client._client
        self._work = client._run(inner.work(name, call, topic, concurrency=concurrency, **more))

    @property
    def handled(self) -> int:
        """How many messages the handler returned from."""
        return self._work.handled

    @property
    def failed(self) -> int:
        """How many messages the handler raised from."""
        return self._work.failed

    def wait(self) -> None:
        """Wait until it ends: because it was stopped, or with the error that ended it."""
        self._client._run(self._work.wait())

    def stop(self, timeout: float | None = None) -> None:
        """Take no more, and wait until what is being worked on is finished: see `Work.stop`.

        A thread that is still at work after `timeout` seconds goes on, and its message goes back.
        """
        self._client._run(self._work.stop(timeout))
        self._threads.shutdown(wait=False)

    def __enter__(self) -> BlockingWork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class BlockingTransaction:
    """A unit of work whose calls block: see `Transaction`. It is of the thread that entered it."""

    def __init__(self, client: BlockingClient, inner: Transaction) -> None:
        self._client = client
        self._inner = inner

    @property
    def serial(self) -> int:
        """Its number among those of this client."""
        return self._inner.serial

    def publish(self, topic: str, body: Any = b"", **more: Any) -> None:
        """Publish a message with the transaction: see `Transaction.publish`."""
        self._client._run(self._inner.publish(topic, body, **more))

    def publish_many(self, topic: str, bodies: Iterable[Any], **more: Any) -> int:
        """Publish many messages to one topic, and return how many."""
        return self._client._run(self._inner.publish_many(topic, bodies, **more))

    def create_queue(self, name: str, topic: str = "", **more: Any) -> None:
        """Have a queue made with the transaction."""
        self._client._run(self._inner.create_queue(name, topic, **more))

    def create_mailbox(self, name: str, pattern: str = "", **more: Any) -> None:
        """Have a durable subscription made with the transaction."""
        self._client._run(self._inner.create_mailbox(name, pattern, **more))

    def remove_queue(self, name: str) -> None:
        """Have a queue or durable subscription removed with the transaction."""
        self._client._run(self._inner.remove_queue(name))

    def prepare(self, gid: str) -> None:
        """The first of two phases: see `Transaction.prepare`."""
        self._client._run(self._inner.prepare(gid))

    def commit(self) -> int:
        """Have all of it count; how many messages it published."""
        return self._client._run(self._inner.commit())

    def rollback(self) -> None:
        """Have nothing of it count."""
        self._client._run(self._inner.rollback())

    def __enter__(self) -> BlockingTransaction:
        self._client._run(self._inner.begin())
        self._inner._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inner._leave()
        self._client._run(self._inner._end(error))
