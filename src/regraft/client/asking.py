"""Questions, replies and the context of a client: what `Client` can do with them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from regraft.client.durable import Durable, Replay
from regraft.client.payload import HEADERS, encode_body, milliseconds
from regraft.client.replies import Replies
from regraft.client.subscription import Subscription
from regraft.client.upkeep import Upkeep
from regraft.errors import BY_NUMBER, LocalError, PeerError, WorldError
from regraft.kernels.inbox import NOTHING, ReceivedMessage
from regraft.model.message import Message, Value, encode_envelope
from regraft.model.selector import Selector
from regraft.model.topics import check_topic
from regraft.model.varint import read_fields
from regraft.wire import native
from regraft.wire.questions import Context, Counted, Ended, Question, Reply, Withdrawn

CONTEXT = 19  # a field of the envelope
HEADER_BYTES = 64  # of a frame, and what stands around an envelope in it


class Asking(Upkeep):
    """Asks and replies, and has a context."""

    # --------------------------------------------------------------------- questions

    async def ask(
        self,
        topic: str,
        body: Any = b"",
        *,
        attributes: Mapping[str, Value] | None = None,
        timeout: float = 10.0,
        where: str = "",
        **headers: Any,
    ) -> Replies:
        """Ask everybody who is subscribed to this with `replies=True`, wherever they are.

        Replies come one by one, and it is known when all of them have: that, or `timeout` seconds,
        is the end. With `where`, only those are asked whose context satisfies a selector.

            async with await client.ask("rooms/temperature") as replies:
                async for reply in replies:
                    print(reply.text())
            print("all of them" if replies.complete else replies.reason)
        """
        if not timeout > 0:
            raise LocalError("bad-message", "a question needs a timeout above 0 seconds")
        lasts_ms = milliseconds("timeout", timeout)
        given = {"where": where, **headers} if where else headers
        self._check_question(topic, body, attributes, given)
        envelope = self._envelope(topic, body, attributes, given)
        await self._wait_for_link(timeout)
        assert self._loop is not None
        self._check_size(envelope)
        self._last_question += 1
        token = self._last_question
        replies = Replies(topic, token, self.options.queue_bytes, self._withdraw)
        self._questions[token] = replies
        replies.limit(timeout, self._loop)
        self._write(native.encode(Question(b"", token, lasts_ms, envelope)))
        return replies

    def _check_question(
        self,
        topic: str,
        body: Any,
        attributes: Mapping[str, Value] | None,
        given: Mapping[str, Any],
    ) -> None:
        """Refuse what may not be asked."""

    def _envelope(
        self,
        topic: str,
        body: Any,
        attributes: Mapping[str, Value] | None,
        headers: Mapping[str, Any],
    ) -> bytes:
        """A message that is not published as others are."""
        check_topic(topic)
        encoded, kind = encode_body(body)
        values: dict[str, Any] = {**kind}
        values |= {"sender": self.client_id, "id": random.getrandbits(63) or 1}
        for name, value in headers.items():
            if name not in HEADERS:
                known = ", ".join(sorted(HEADERS))
                raise LocalError("bad-message", f"there is no header {name!r}; there are {known}")
            values["id" if name == "message_id" else name] = value
        if values.get("where"):
            Selector.parse(values["where"])
        message = Message(
            topic=topic,
            body=encoded,
            attributes=dict(attributes or {}),
            context=self.context,
            **values,
        )
        return encode_envelope(message)

    def _check_size(self, envelope: bytes) -> None:
        most = self._link.outbox.frame_bytes_max if self._link is not None else 0
        if most and len(envelope) + HEADER_BYTES > most:
            text = f"it has {len(envelope)} bytes, and the node takes {most} at most"
            raise LocalError("bad-message", f"{text} (limit frame_bytes)")

    def _withdraw(self, replies: Replies) -> None:
        """Nobody waits for these any more."""
        if self._questions.pop(replies.token, None) is not None and self._link is not None:
            self._write(native.encode(Withdrawn(b"", replies.token)))

    def _answered_question(self, message: Reply | Counted | Ended) -> None:
        """The node says something about a question."""
        replies = self._questions.get(message.token)
        if replies is None:
            return  # it was withdrawn
        if isinstance(message, Reply):
            replies.push(message.envelope)
        elif isinstance(message, Counted):
            replies.counted(message.repliers)
        else:
            del self._questions[message.token]
            if message.code:
                code = BY_NUMBER.get(message.code)
                name = code.name if code is not None else "protocol-violation"
                kind = LocalError if code is not None else PeerError
                replies.end(message.reason, kind(name, message.reason))
            else:
                counts = message.repliers, message.replies
                replies.ended(*counts, message.complete, message.reason)

    # ----------------------------------------------------------------------- replies

    def _reply(
        self, message: ReceivedMessage, outcome: str, details: tuple[Any, ...]
    ) -> Awaitable[None]:
        """What a subscriber says to a question."""
        if message.question < 0:
            if outcome == "no-reply":
                return NOTHING
            raise LocalError("closed", "the last reply to this question was sent before")
        token = message.question
        if outcome == "no-reply":
            message.question = -1
            if self._link is not None:
                self._write(native.encode(Reply(b"", token, b"", True, details[0])))
            return NOTHING
        if self._link is None:
            raise WorldError("connection-lost", "the way back is gone: the reply cannot be sent")
        body, last, headers = details
        attributes = headers.pop("attributes", None)
        if message.id is not None:
            headers.setdefault("references", message.id)
        envelope = self._envelope(message.topic, body, attributes, headers)
        self._check_size(envelope)
        if last:
            message.question = -1
        self._write(native.encode(Reply(b"", token, envelope, last)))
        return NOTHING if self._writable else self._drained()

    async def _drained(self) -> None:
        """Wait until the connection takes more."""
        while self._link is not None and not self._writable:
            self._room.clear()
            await self._room.wait()

    def _handled(self, subscription: Subscription, message: ReceivedMessage, failed: bool) -> None:
        """A callback is done with a question: if it has not replied, it will not."""
        token = message.question
        left = self._handling.pop(token, None)
        if left is None:
            takers = map(self._subscriptions.get, message.subscriptions)
            left = {one.id for one in takers if one and one.called and one.wanted.replies}
        left.discard(subscription.id)
        if left:
            self._handling[token] = left
        else:
            message.no_reply(failed)

    # ----------------------------------------------------------------------- context

    @property
    def context(self) -> Mapping[str, Value]:
        """What this client says of itself."""
        return dict(self._context)

    async def set_context(
        self, context: Mapping[str, Value], *, timeout: float | None = 10.0
    ) -> None:
        """Have this context from now on, instead of the one before.

        What is published from now on carries it: subscribers ask for `ctx.NAME` in their selectors.
        Messages that are published with a `where` are for those whose context satisfies it; once
        this returns, the node goes by the new one.
        """
        given = dict(context)
        encoded = _encode_context(given)
        await self._wait_for_link(timeout)
        await self._request("", lambda token: Context(token, encoded), timeout)
        self._context, self._context_bytes = given, encoded

    async def _request(
        self, asks: str, question: Callable[[int], native.Control], timeout: float | None
    ) -> dict[str, Any]:
        """Send what is answered with JSON, in the order of asking, and wait for the answer."""
        await self._wait_for_link(timeout)
        assert self._loop is not None
        self._last_request += 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._requests[self._last_request] = asks, future
        self._write(native.encode(question(self._last_request)))
        try:
            async with asyncio.timeout(timeout):
                answer: dict[str, Any] = json.loads(await future)
        except TimeoutError:
            # Its answer may come yet, and must not be taken for that of the next one.
            raise WorldError("timed-out", f"the node did not answer in {timeout} s") from None
        return answer

    # ------------------------------------------------------------------ any subscription

    async def next(
        self, timeout: float | None = None, *, where: str | Selector | None = None
    ) -> ReceivedMessage:
        """The next message of any subscription that has no callback; of durable ones there is none.

        With `where`, the next one for which the selector is true. After `timeout` seconds without
        one, a `timed-out` error.
        """
        self._check_usable()
        assert self._loop is not None
        selector = Selector.parse(where) if isinstance(where, str) else where
        until = None if timeout is None else self._loop.time() + timeout
        while True:
            for subscription in list(self._subscriptions.values()):
                if not isinstance(subscription, Durable | Replay):
                    found = subscription.take(selector)
                    if found is not None:
                        return found
            if self._arrival is None:
                self._arrival = self._loop.create_future()
            left = None if until is None else max(0.0, until - self._loop.time())
            try:
                async with asyncio.timeout(left):
                    await asyncio.shield(self._arrival)
            except TimeoutError:
                raise WorldError("timed-out", f"no message within {timeout} s") from None
            self._check_usable()

    def pending(self, *, where: str | Selector | None = None) -> int:
        """How many messages have arrived and were not taken yet, of all subscriptions."""
        selector = Selector.parse(where) if isinstance(where, str) else where
        return sum(
            subscription.pending(where=selector) for subscription in self._subscriptions.values()
        )

    async def unsubscribe(self, pattern: str = "", *, where: str = "", exact: bool = False) -> int:
        """End all subscriptions that were made with just this filter; how many there were."""
        wanted = pattern, where, exact
        found = [
            one
            for one in self._subscriptions.values()
            if (one.pattern, one.where, one.exact) == wanted
        ]
        for subscription in found:
            await subscription.unsubscribe()
        return len(found)


def _encode_context(context: Mapping[str, Value]) -> bytes:
    """A context as it stands in an envelope; LocalError if it cannot be one."""
    encoded = encode_envelope(Message(topic="c", context=context))
    return b"".join(
        encoded[raw.start : raw.end] for raw in read_fields(encoded) if raw.number == CONTEXT
    )


def within(
    metres: float,
    latitude: float,
    longitude: float,
    *,
    names: tuple[str, str] = ("latitude", "longitude"),
) -> str:
    """A selector for `where`: receivers whose context has a place at most so far from here."""
    first, second = names
    here = f"{float(latitude)!r}, {float(longitude)!r}"
    return f"DISTANCE(ctx.{first}, ctx.{second}, {here}) <= {float(metres)!r}"
