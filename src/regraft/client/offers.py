"""Advertisements of a client: what it will publish, and whether anybody wants that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any

from regraft.client.asking import Asking
from regraft.client.link import Link, LinkEvent, Offered
from regraft.client.upkeep import log
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.model.message import Value, decode_envelope
from regraft.model.selector import Selector
from regraft.model.topics import check_pattern, matches
from regraft.wire import native
from regraft.wire.offers import Advertise, Advertised, Unadvertise

REQUIRED = "advertisements"  # a feature of nodes where what is published must be offered
Wish = Callable[[bool], None]


class Offer:
    """What a client will publish. Make one with `client.advertise()`, and close it, or use it
    as a context."""

    def __init__(self, question: Advertise, close: Callable[[Offer], None]) -> None:
        self.question = question
        self._close = close
        self._wanted = True
        self._changed = asyncio.Event()
        self._callbacks: list[Wish] = []
        self._error: RegraftError | None = None
        self.is_open = True
        self.selector = Selector.parse(question.selector) if question.selector else None

    @property
    def wanted(self) -> bool:
        """Whether somebody wants something of it; if that is not known, yes."""
        return self._wanted

    async def wait_wanted(self, wanted: bool = True, timeout: float | None = None) -> None:
        """Wait until somebody wants something of it, or until nobody does."""
        try:
            async with asyncio.timeout(timeout):
                while self._wanted is not wanted:
                    self._check()
                    await self._changed.wait()
                self._check()
        except TimeoutError:
            who = "nobody wants" if wanted else "somebody wants"
            text = f"{who} {self.question.pattern!r} within {timeout} s"
            raise WorldError("timed-out", text) from None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if not self.is_open:
            raise LocalError("closed", "this advertisement was closed")

    async def changes(self) -> AsyncIterator[bool]:
        """Whether it is wanted: now, and whenever that changes, until it is closed."""
        while True:
            last = self._wanted
            yield last
            while self._wanted is last:
                if not self.is_open:
                    if self._error is not None:
                        raise self._error
                    return
                await self._changed.wait()

    def on_change(self, callback: Wish) -> Wish:
        """Call this with true or false whenever it becomes wanted, or is not any more."""
        self._callbacks.append(callback)
        return callback

    def demand(self, wanted: bool) -> None:
        """The node says whether it is wanted."""
        if wanted is self._wanted:
            return
        self._wanted = wanted
        self._wake()
        for callback in self._callbacks:
            try:
                callback(wanted)
            except Exception:  # the next one may be better
                log.exception("the callback %r failed", callback)

    def end(self, error: RegraftError | None = None) -> None:
        """It does not count any more."""
        self._error = self._error or error
        self.is_open = False
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def close(self) -> None:
        """Publish nothing of it any more."""
        if self.is_open:
            self._close(self)

    async def __aenter__(self) -> Offer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Offering(Asking):
    """Advertises."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._offers: dict[int, Offer] = {}
        self._promises = False  # the network relies on it, and some have selectors

    @property
    def must_advertise(self) -> bool:
        """Whether the network routes by advertisements: only what is offered may be published."""
        features = self._welcome.features if self._welcome is not None else ()
        return any(feature.name == REQUIRED for feature in features)

    async def advertise(
        self,
        pattern: str,
        where: str = "",
        *,
        exact: bool = False,
        timeout: float | None = 10.0,
    ) -> Offer:
        """Say what will be published: to which topics, and perhaps what selector it satisfies.

        Returns once the node knows who wants something of it; from then on `offer.wanted` says
        whether anybody does. It holds until it is closed, over reconnections, too.

            async with await client.advertise("stocks/#", "price > 0") as offer:
                await offer.wait_wanted()
                await client.publish("stocks/acme", attributes={"price": 101.5})
        """
        check_pattern(pattern)
        await self._wait_for_link(timeout)
        self._last_subscription += 1  # one count for both: errors name either
        offer = Offer(Advertise(self._last_subscription, pattern, where, exact), self._unadvertise)
        self._offers[offer.question.id] = offer
        try:
            await self._ask_offer(offer, timeout)
        except BaseException:
            self._unadvertise(offer)
            raise
        self._promise()
        return offer

    async def _ask_offer(self, offer: Offer, timeout: float | None) -> None:
        assert self._loop is not None
        id = offer.question.id
        future = self._answers[id] = self._loop.create_future()
        self._write(native.encode(offer.question))
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            text = f"not all who may want {offer.question.pattern!r} are known within {timeout} s"
            raise WorldError("timed-out", text) from None
        finally:
            self._answers.pop(id, None)

    def _unadvertise(self, offer: Offer) -> None:
        id = offer.question.id
        if self._offers.pop(id, None) is not None and self._link is not None:
            self._write(native.encode(Unadvertise(id)))
        offer.end()
        self._promise()

    def _handle(self, link: Link, event: LinkEvent) -> None:
        if not isinstance(event, Offered):
            super()._handle(link, event)
            return
        message = event.message
        offer = self._offers.get(message.id)
        if offer is not None:
            offer.demand(message.wanted)
            future = self._answers.get(message.id)
            if isinstance(message, Advertised) and future is not None and not future.done():
                future.set_result(None)

    async def _restore(self, transport: Any) -> None:
        """A new connection: offer the same again, before anything is published."""
        assert self._loop is not None
        waiting = {}
        for id, offer in list(self._offers.items()):
            if id not in self._answers:
                waiting[offer] = self._answers[id] = self._loop.create_future()
            if not transport.is_closing():  # else it is lost, of which we hear soon
                transport.write(native.encode(offer.question))
        if not self.must_advertise:  # nothing depends on it: what is wanted will be heard of
            for offer, future in waiting.items():
                del self._answers[offer.question.id]
                future.cancel()
            return
        for offer, future in waiting.items():
            try:
                await future
            except RegraftError as error:
                del self._offers[offer.question.id]
                offer.end(error)
            finally:
                self._answers.pop(offer.question.id, None)
        self._promise()

    def _fail(self, error: RegraftError) -> None:
        super()._fail(error)
        for offer in self._offers.values():
            offer.end(None if self._closing else error)

    # ------------------------------------------------------------------- promises

    def _promise(self) -> None:
        some = any(offer.selector is not None for offer in self._offers.values())
        self._promises = some and self.must_advertise

    def _check_question(
        self,
        topic: str,
        body: Any,
        attributes: Mapping[str, Value] | None,
        given: Mapping[str, Any],
    ) -> None:
        if self._promises:
            self._check_promise(topic, body, attributes, given)

    def _check_promise(
        self,
        topic: str,
        body: Any,
        attributes: Mapping[str, Value] | None,
        headers: Mapping[str, Any],
    ) -> None:
        """Refuse what is not as it was offered: who wants it may not be known."""
        message = None
        for offer in self._offers.values():
            if matches(offer.question.pattern, topic, offer.question.exact):
                if offer.selector is None:
                    return
                if message is None:
                    message = decode_envelope(self._envelope(topic, body, attributes, headers))
                if offer.selector.matches(message):
                    return
        if message is not None:
            text = f"the message to {topic!r} is not as advertised: no selector of this client's"
            raise LocalError("not-advertised", f"{text} advertisements allows it")


class BlockingOffer:
    """What a client will publish: see `Offer`."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], offer: Offer) -> None:
        self._run = run
        self._offer = offer

    @property
    def wanted(self) -> bool:
        """Whether somebody wants something of it."""
        return self._offer.wanted

    def wait_wanted(self, wanted: bool = True, timeout: float | None = None) -> None:
        """Wait until somebody wants something of it, or nobody does."""
        self._run(self._offer.wait_wanted(wanted, timeout))

    def changes(self) -> Iterator[bool]:
        """Whether it is wanted: now, and whenever that changes."""
        found = self._offer.changes()

        async def following() -> bool | None:
            with contextlib.suppress(StopAsyncIteration):
                return await anext(found)
            return None

        while (wanted := self._run(following())) is not None:
            yield wanted

    def on_change(self, callback: Wish) -> Wish:
        """Call this, in the client's thread, whenever that changes."""
        return self._offer.on_change(callback)

    def close(self) -> None:
        """Publish nothing of it any more."""
        self._run(self._offer.close())

    def __enter__(self) -> BlockingOffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
