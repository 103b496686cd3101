"""The upkeep of a client: a connection to one of its nodes, and what comes in over it.

`Client` adds what an application calls. Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regraft import __version__
from regraft.client.address import Address, resolve
from regraft.client.dialling import Connector, dial, dial_tcp
from regraft.client.durable import ACCEPTED, Durable, Replay, Settlement
from regraft.client.link import (
    Arrived,
    Asked,
    Batch,
    Concluded,
    Confirmed,
    Denied,
    Done,
    Failed,
    Leaving,
    Link,
    LinkEvent,
    Missed,
    Performed,
    Refused,
    Replied,
    Safe,
    Settled,
    Told,
    Unsettled,
    Welcomed,
)
from regraft.client.options import Options
from regraft.client.reading import Wire, view_of
from regraft.client.replies import Replies
from regraft.client.spinning import spin_of
from regraft.client.subscription import Subscription
from regraft.client.unconfirmed import Unconfirmed
from regraft.errors import LocalError, PeerError, RegraftError, WorldError
from regraft.kernels.inbox import NOTHING, ReceivedMessage
from regraft.kernels.outbox import Outbox
from regraft.kernels.spinning import Spin
from regraft.model.message import Value
from regraft.wire import native
from regraft.wire.questions import Context

HEARTBEATS_MISSED_MAX = 3
LINGER_S = 2.0  # for a node that is being stopped to deal with what it was sent last

# After these a new attempt would end in the same way.
PERMANENT = {"unsupported-version", "unsupported-feature", "unknown-protocol", "taken-over"}

OUTCOMES: dict[str, Callable[..., Settlement]] = {
    "accept": lambda: ACCEPTED,
    "release": Settlement.release,
    "reject": Settlement.reject,
    "extend": Settlement.extend,
}

log = logging.getLogger("regraft.client")


@dataclass(frozen=True, slots=True)
class Disconnection:
    """A connection was lost. `unconfirmed` messages may or may not have reached the node."""

    error: RegraftError
    unconfirmed: int
    will_reconnect: bool


class Upkeep:
    """The state of a client, and what keeps it connected."""

    def __init__(
        self,
        target: str | None = None,
        options: Options | None = None,
        *,
        connector: Connector = dial,
        **more: Any,
    ) -> None:
        if options is not None and more:
            raise LocalError("bad-configuration", "give options or single settings, not both")
        try:
            self.options = options or Options(**more)
        except TypeError as error:
            raise LocalError("bad-configuration", f"no such option: {error}") from None
        self._target = target
        self._connector = dial_tcp if connector is dial and not self.options.local else connector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None  # open, or None
        self._outbox: Outbox | None = None  # of the link
        self._latest: Link | None = None  # open or being opened; older ones have no say any more
        self._transport: Any = None
        self._lingering: list[Any] = []  # transports of connections that said good-bye
        self._writable = True
        self._spin: Spin | None = None
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
        self._barriers: dict[int, asyncio.Future[None]] = {}
        # Commands by token, questions by what they ask: answered in the order of asking.
        self._requests: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._last_request = 0
        self._decisions: dict[tuple[int, str], asyncio.Future[native.Decided]] = {}
        self._transactions = 0  # contexts of such that are open
        self._serial = 0  # of the last transaction
        self._barrier_due = False
        self._unconfirmed = Unconfirmed()
        self._questions: dict[int, Replies] = {}
        self._last_question = 0
        self._handling: dict[int, set[int]] = {}  # questions: subscriptions whose callbacks have it
        self._context: dict[str, Value] = {}
        self._context_bytes = b""  # encoded, as envelopes have it
        self._arrival: asyncio.Future[None] | None = None  # somebody waits for any message
        self._subscribed: dict[int, native.Subscribed] = {}
        self._welcome: native.Welcome | None = None
        self._journal = b""  # of the node that sequences were last heard of from
        self._opening: asyncio.Future[None] | None = None
        self._break: asyncio.Future[RegraftError] | None = None
        self._heard = 0.0
        self._spoke = 0.0
        self._on_disconnect: list[Callable[[Disconnection], None]] = []
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_refused: list[Callable[[RegraftError, int], None]] = []
        self._on_missed: list[Callable[[int, str], None]] = []

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

    # ---------------------------------------------------------------------- writing

    def _flush(self) -> None:
        """Write what has been gathered."""
        self._flushing = False
        link = self._link
        if link is None:
            return
        if link.outbox.used:
            self._transmit(self._gathered(link))
        if self._barrier_due:
            self._barrier_due = False
            self._write(link.barrier())

    def _write(self, data: bytes) -> None:
        """Write this behind what has been gathered."""
        link = self._link
        if self._transport is not None and data:
            if link is not None and link.outbox.used:
                data = self._gathered(link) + data
            self._transmit(data)

    def _gathered(self, link: Link) -> bytes:
        """What is in the outbox, which is empty afterwards; what is persistent is kept."""
        data = link.outbox.take()
        if link.outbox.sequence > self._unconfirmed.last:
            self._unconfirmed.written(data, link.outbox.sequence)
        return data

    def _transmit(self, data: bytes) -> None:
        # One that is closing is lost, of which we hear soon; uvloop takes nothing more then.
        if self._transport is not None and not self._transport.is_closing():
            assert self._loop is not None
            self._spoke = self._loop.time()
            self._transport.write(data)

    async def _wait_for_room(self, timeout: float | None) -> Link:
        self._check_usable()
        if self._keeper is None:
            raise LocalError("closed", "this client is not open yet; await client.open()")
        try:
            async with asyncio.timeout(timeout):
                while self._link is None or not self._has_room(self._link):
                    self._room.clear()
                    self._flush()
                    await self._room.wait()
                    self._check_usable()
        except TimeoutError:
            if self._link is None:
                text = f"no connection within {timeout} s: {self._where()}"
            elif self._unconfirmed.size >= self.options.unconfirmed_bytes:
                text = f"the node confirmed too little within {timeout} s (unconfirmed_bytes)"
            else:
                text = f"the node gave no credit within {timeout} s: a subscriber is slow"
            raise WorldError("timed-out", text) from None
        return self._link

    def _has_room(self, link: Link) -> bool:
        """Whether a message may be put into the outbox now."""
        return (
            not link.is_over
            and link.outbox.has_room
            and self._writable
            and self._unconfirmed.size < self.options.unconfirmed_bytes
        )

    def _taken(self, batch: Batch) -> None:
        """The application is done with some messages: the node may send more."""
        if self._link is not None and batch.link is self._link:
            self._write(self._link.taken(batch))

    # ------------------------------------------------------------------- connection

    async def _wait_for_link(self, timeout: float | None) -> None:
        if self._link is None:
            await self._wait_for_room(timeout)

    async def _connect_somewhere(self) -> None:
        """Try the addresses in turn, until one of them is a node."""
        addresses = await self._addresses()
        errors = []
        patience = self.options.connect_timeout / len(addresses)
        for address in addresses:
            try:
                async with asyncio.timeout(patience):
                    await self._connect_to(address)
                return
            except TimeoutError:
                errors.append(f"{address} (no answer within {patience:.1f} s)")
            except socket.gaierror as error:
                errors.append(f"{address} ({error.strerror})")
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                errors.append(f"{address} ({reason})")
            except PeerError as error:
                if error.code.name in PERMANENT:
                    raise
                errors.append(f"{address} (not a Regraft node: {error.text})")
            except WorldError as error:
                errors.append(f"{address} ({error.text})")
        raise WorldError(
            "unreachable",
            f"no node answers at {', '.join(errors)}; start one with `regraft serve`",
        )

    async def _addresses(self) -> list[Address]:
        if self._target is not None and self._target.startswith(("srv:", "name:")):
            return await asyncio.to_thread(resolve, self._target)  # DNS may take its time
        return resolve(self._target)

    async def _connect_to(self, address: Address) -> None:
        assert self._loop is not None
        options = self.options
        hello = native.Hello(
            version_min=native.VERSION,
            version_max=native.VERSION,
            client_id=self.client_id,
            agent=f"regraft-python/{__version__}",
            heartbeat_ms=int(options.heartbeat * 1000),
            passive=options.passive,
            queue_messages=options.in_flight,
            when_stalled=options.when_stalled,
            credit_messages=options.queue_messages,
            credit_bytes=options.queue_bytes,
        )
        link = self._latest = Link(hello, random.getrandbits(63))
        self._opening = self._loop.create_future()
        self._break = self._loop.create_future()
        self._writable = True
        self._spin = spin_of(self._loop, options.spin_us)
        view = view_of(self._loop)
        transport = await self._connector(lambda: Wire(self, link, view), address)
        try:
            transport.write(link.open())
            await self._opening
            await self._restore(transport)
        except BaseException:
            transport.close()
            raise
        self._transport = transport
        self._link, self._outbox = link, link.outbox
        link.inbox.settler = self._settle_message
        self._heard = self._spoke = self._loop.time()
        self._meet_journal()
        if self._context_bytes:
            self._write(native.encode(Context(0, self._context_bytes)))
        for subscription in self._subscriptions.values():
            if isinstance(subscription, Durable):
                subscription.reconnected()
            self._write(native.encode(subscription.question))
        self._publish_again(link)
        self._make_room()

    async def _restore(self, transport: Any) -> None:
        """Say over a new connection what comes before anything is published."""

    def _meet_journal(self) -> None:
        """In another journal, sequences that were heard of before mean nothing."""
        journal = self._welcome.journal if self._welcome is not None else b""
        if self._welcome is not None:
            self._serial = max(self._serial, self._welcome.serial)
        if self._journal and journal != self._journal:
            for subscription in self._subscriptions.values():
                if isinstance(subscription, Durable | Replay):
                    subscription.forget_sequences()
        self._journal = journal

    def _publish_again(self, link: Link) -> None:
        """Send again what no node has confirmed; one that has it already will say so."""
        unconfirmed = self._unconfirmed
        if self._welcome is not None:
            unconfirmed.begin(self._welcome.sequence)
        for frame, sequence in unconfirmed.again():
            link.outbox.put_again(frame, sequence)
        link.outbox.sequence = unconfirmed.last
        if link.outbox.used:
            data = link.outbox.take()
            unconfirmed.written(data, unconfirmed.last)
            self._transmit(data)

    def _settle_message(
        self, message: ReceivedMessage, outcome: str, details: tuple[Any, ...], confirm: bool
    ) -> Awaitable[None]:
        """What an application says of a message; what is returned need be awaited to `confirm`."""
        if outcome in ("reply", "no-reply"):
            return self._reply(message, outcome, details)
        how = ACCEPTED if outcome == "accept" else OUTCOMES[outcome](*details)
        waits: Awaitable[None] = NOTHING
        for id in message.subscriptions:
            subscription = self._subscriptions.get(id)
            if isinstance(subscription, Durable):
                subscription.settle_sequence(message.sequence, how)
                if confirm:
                    waits = subscription.settled()
        return waits

    def _reply(
        self, message: ReceivedMessage, outcome: str, details: tuple[Any, ...]
    ) -> Awaitable[None]:
        raise NotImplementedError

    def _answered_question(self, message: Any) -> None:
        raise NotImplementedError

    async def _keep(self) -> None:
        """Keep a connection: heartbeats while there is one, attempts while there is none."""
        while True:
            assert self._break is not None
            error = await self._watch(self._break)
            unconfirmed = self._forget_link(error)
            if self._closing:
                return
            again = self.options.reconnect and error.code.name not in PERMANENT
            _tell(self._on_disconnect, Disconnection(error, unconfirmed, again))
            if not again:
                self._fail(error)
                return
            log.info("connection lost, will reconnect: %s", error)
            if not await self._reconnect():
                return
            _tell(self._on_reconnect)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Nobody keeps the connection any more. If that is a mistake, nobody shall wait for it."""
        if not keeper.cancelled() and (mistake := keeper.exception()) is not None:
            log.error("the client made a mistake and is closed", exc_info=mistake)
            self._fail(LocalError("closed", f"the client made a mistake: {mistake!r}"))

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
                await self._connect_somewhere()
                return True
            except RegraftError as error:
                if error.code.name in PERMANENT:
                    self._fail(error)
                    return False
                log.debug("not yet: %s", error)
            delay = min(2 * delay, self.options.reconnect_delay_max)

    def _forget_link(self, error: RegraftError) -> int:
        """The connection is gone; the number of messages whose fate is not known."""
        link, self._link, self._outbox = self._link, None, None
        if link is not None and link.outbox.used:
            self._gathered(link)  # what was not even written has to be sent again, too
        transport, self._transport = self._transport, None
        if transport is not None and link is not None and link.is_over and self._loop is not None:
            # The node hangs up when it has dealt with all; who does so first may lose the last.
            self._lingering.append(transport)
            self._loop.call_later(LINGER_S, self._let_go)
        elif transport is not None:
            transport.close()  # after what was written, if it still can be
        unconfirmed = link.outbox.sent_messages - link.confirmed if link is not None else 0
        waiting: list[asyncio.Future[Any]] = [
            *self._answers.values(),
            *self._confirmations.values(),
            *self._barriers.values(),
            *(future for _, future in self._requests.values()),
            *self._decisions.values(),
        ]
        self._confirmations.clear()
        self._barriers.clear()
        self._requests.clear()
        self._decisions.clear()
        self._handling.clear()
        questions, self._questions = self._questions, {}
        for replies in questions.values():
            replies.end(f"the connection was lost: {error.text}")
        for future in waiting:
            if not future.done():
                future.set_exception(WorldError("connection-lost", f"in flight: {error.text}"))
                future.exception()  # whoever waits gets it; nobody need
        return unconfirmed

    def _let_go(self) -> None:
        """The oldest connection that said good-bye has had its time."""
        if self._lingering:
            self._lingering.pop(0).close()

    def _fail(self, error: RegraftError) -> None:
        """It will not work again: tell everybody who waits."""
        if self._failure is None:
            self._failure = error
        for subscription in self._subscriptions.values():
            subscription.end(None if self._closing else error)
        self._unconfirmed.fail(error)
        self._room.set()
        if self._arrival is not None:
            _resolve(self._arrival, None)
            self._arrival = None

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _where(self) -> str:
        return self._target or "the node of this machine (127.0.0.1:7447)"

    # -------------------------------------------------------------- what is received

    def _received(self, link: Link, data: bytes | memoryview) -> None:
        if link is not self._latest:
            return
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
        if self._has_room(link):
            self._make_room()
        if self._spin is not None:
            self._spin.read()

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
        if self._arrival is not None:
            _resolve(self._arrival, None)
            self._arrival = None

    def _handle(self, link: Link, event: LinkEvent) -> None:
        match event:
            case Welcomed(welcome):
                self._welcome = welcome
                if self._opening is not None and not self._opening.done():
                    self._opening.set_result(None)
            case Safe(sequences, takers):
                for first, count in sequences:
                    self._unconfirmed.confirmed(first, count, takers)
            case Done(id, token):
                durable = self._subscriptions.get(id)
                if isinstance(durable, Durable):
                    durable.done(token)
            case Settled(id, error, answer):
                self._settled(id, error, answer)
            case Unsettled(id, error):
                durable = self._subscriptions.get(id)
                if isinstance(durable, Durable):
                    durable.refused(error)
            case Confirmed(ordinal):
                for waiting in (self._confirmations, self._barriers):
                    for key in [key for key in waiting if key <= ordinal]:
                        _resolve(waiting.pop(key), None)
            case Refused():
                self._refused(event)
            case Asked(answer):
                self._write(answer)
            case Told(what, answer):
                asked = [key for key, (asks, _) in self._requests.items() if asks == what]
                self._answered(asked[:1], answer)
            case Performed(token, answer):
                self._answered([token], answer)
            case Concluded(decided):
                waiting_for = self._decisions.pop((decided.serial, decided.gid), None)
                if waiting_for is not None:
                    _resolve(waiting_for, decided)
            case Denied(error, token):
                self._denied(error, token)
            case Replied(message):
                self._answered_question(message)
            case Missed(messages, reason):
                log.warning("the node dropped %d messages for us: %s", messages, reason)
                _tell(self._on_missed, messages, reason)
            case Leaving(reason, _):
                self._broken(WorldError("shutting-down", f"the node says: {reason}"))
                self._write(native.encode(native.Bye()))
                link.is_over = True  # what is published behind BYE would be lost
                self._outbox = None
            case Failed(error):
                self._broken(error)

    def _settled(
        self, id: int, error: RegraftError | None, answer: native.Subscribed | None
    ) -> None:
        future = self._answers.get(id)
        subscription = self._subscriptions.get(id)
        if answer is not None and subscription is None:  # given up before it was confirmed
            self._write(native.encode(native.Unsubscribe(id)))
            return
        if isinstance(subscription, Durable):
            if answer is not None:
                subscription.stood(answer)
            other = subscription.instead(error) if error is not None else None
            if other is not None:
                self._write(native.encode(other))
                return
        if future is not None and not future.done():
            if answer is not None:
                self._subscribed[id] = answer
            _resolve(future, error)
        elif subscription is not None and answer is None:
            # Nobody asked: it is at its end, was refused when it was repeated, or cannot go on.
            self._subscriptions.pop(id).end(error)

    def _answered(self, requests: list[int], answer: bytes | RegraftError) -> None:
        for key in requests:
            _, future = self._requests.pop(key, ("", None))
            if future is not None:
                _resolve(future, answer)

    def _denied(self, error: RegraftError, token: int) -> None:
        """Without a token it is about the oldest question, as these are answered in their order."""
        asked = [token] if token else [key for key, (asks, _) in self._requests.items() if asks]
        if not asked:
            log.warning("the node says: %s", error)
        self._answered(asked[:1], error)

    def _refused(self, event: Refused) -> None:
        told = False
        for ordinal in [
            key
            for key in self._confirmations
            if event.ordinal <= key < event.ordinal + event.messages
        ]:
            _resolve(self._confirmations.pop(ordinal), event.error)
            told = True
        for first, count in event.sequences:
            told = self._unconfirmed.refused(first, count, event.error) or told
        _tell(self._on_refused, event.error, event.messages)
        if not told and not self._on_refused:
            log.warning("%d messages were refused: %s", event.messages, event.error)

    def _lost(self, link: Link, exc: Exception | None) -> None:
        if link is not self._latest:
            return
        reason = f": {exc}" if exc is not None else ""
        self._broken(WorldError("connection-lost", f"the node closed the connection{reason}"))

    def _broken(self, error: RegraftError) -> None:
        """The first reason counts."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)
        if self._break is not None and not self._break.done():
            self._break.set_result(error)

    def _set_writable(self, link: Link, writable: bool) -> None:
        if link is self._latest:
            self._writable = writable
            if writable:
                self._make_room()

    def _make_room(self) -> None:
        if not self._room.is_set():
            self._room.set()


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    """Give an error or a result to whoever waits."""
    if future.done():
        return
    if isinstance(result, RegraftError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _tell(callbacks: Sequence[Callable[..., None]], *news: Any) -> None:
    """Call what the application gave us; its mistakes must not end the connection."""
    for callback in callbacks:
        try:
            callback(*news)
        except Exception:
            log.exception("the callback %r failed", callback)
