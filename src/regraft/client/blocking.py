"""The blocking front: the same client on a loop of its own, in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from regraft.client.client import Callback, Client
from regraft.client.durable import Durable
from regraft.client.options import Options
from regraft.client.subscription import EndedError, Subscription
from regraft.client.upkeep import Disconnection
from regraft.errors import LocalError, RegraftError
from regraft.kernels.inbox import ReceivedMessage
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

    def _settle_message(self, subscriptions: tuple[int, ...], sequence: int) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(super()._settle_message, subscriptions, sequence)
        except RuntimeError:  # the loop is closed
            raise LocalError("closed", "this client was closed") from None


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
        ttl: float | None = None,
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
                ttl=ttl,
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

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the node has dealt with all that was published."""
        self._run(self._client.flush(timeout))

    def inspect(self, what: str = "node", **more: Any) -> dict[str, Any]:
        """What the node holds: see `Client.inspect`."""
        return self._run(self._client.inspect(what, **more))

    def command(self, what: str, **more: Any) -> dict[str, Any]:
        """Have the node do something: see `Client.command`."""
        return self._run(self._client.command(what, **more))

    def unsubscribe_all(self) -> None:
        """End all subscriptions."""
        self._run(self._client.unsubscribe_all())

    def on(
        self, pattern: str = "", *, where: str = "", exact: bool = False
    ) -> Callable[[Callback], Callback]:
        """Decorate a function to have it called with every message, in the client's own thread."""

        def decorate(callback: Callback) -> Callback:
            self.subscribe(pattern, where=where, exact=exact, callback=callback)
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

    def _close(self, done: bool) -> None:
        if self._loop.is_closed():
            return
        self._run(self._client._close(done))
        self._stop()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(kind is None)

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

    def pending(self) -> int:
        """How many messages have arrived and were not taken yet."""
        return self._subscription.pending()

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

        async def settle() -> None:
            self._durable.settle(*messages)

        self._client._run(settle())

    def settle_through(self, message: ReceivedMessage) -> None:
        """This one and all that were handed out before it are done with."""

        async def settle() -> None:
            self._durable.settle_through(message)

        self._client._run(settle())

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
