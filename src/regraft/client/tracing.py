"""Traces: what becomes of a message, and why, asked of all nodes that it concerns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regraft.client.asking import Asking
from regraft.client.payload import milliseconds, special_headers
from regraft.client.replies import AllReplies, Replies
from regraft.client.traced import Traced, Travelled, Why
from regraft.errors import LocalError
from regraft.limits import KIB
from regraft.model.message import DeliveryMode, Value, decode_envelope, encode_envelope
from regraft.wire import native
from regraft.wire.traces import Trace, TraceMode

FEATURE = "traces"
FRAME_BYTES_MAX = 64 * KIB  # of a TRACE frame, unless the node says otherwise
LASTS_S = 5.0


class Tracing(Asking):
    """Traces messages and subscriptions."""

    def _has(self, name: str) -> bool:
        """Whether the node has a feature."""
        features = self._welcome.features if self._welcome is not None else ()
        return any(feature.name == name for feature in features)

    async def who(
        self,
        topic: str,
        body: Any = b"",
        *,
        attributes: Mapping[str, Value] | None = None,
        persistent: bool = False,
        timeout: float = LASTS_S,
        **headers: Any,
    ) -> Traced:
        """Who would get this message, at all nodes; it is not published.

        Headers are those of `publish`. What comes back has a report of each node that the message
        would come to, with all that it decides; `receivers` are those who get it.

            found = await client.who("orders/eu", attributes={"price": 12})
            print([row["client"] for row in found.receivers])
        """
        envelope = self._as_published(topic, body, attributes, persistent, headers)
        return Traced(*await self._reports(Trace(envelope=envelope, mode=TraceMode.WHO), timeout))

    async def trace(
        self,
        topic: str,
        body: Any = b"",
        *,
        attributes: Mapping[str, Value] | None = None,
        persistent: bool = False,
        timeout: float = LASTS_S,
        **headers: Any,
    ) -> Traced:
        """Publish this message, and follow it: the same reports as from `who`.

        Each node decides and reports in one go. A persistent message is published and confirmed,
        and what is reported is decided right behind it.
        """
        if persistent or "delay" in headers or "deliver_at" in headers:
            more = dict(headers)
            await self.publish(  # type: ignore[attr-defined]
                topic,
                body,
                attributes=attributes,
                persistent=True,
                confirm=True,
                timeout=timeout,
                **more,
            )
            return await self.who(
                topic, body, attributes=attributes, persistent=True, timeout=timeout, **headers
            )
        envelope = self._as_published(topic, body, attributes, False, headers)
        asked = Trace(envelope=envelope, mode=TraceMode.PUBLISH)
        return Traced(*await self._reports(asked, timeout))

    async def why(
        self,
        topic: str,
        body: Any = b"",
        *,
        client: str = "",
        durable: str = "",
        subscription: int = 0,
        attributes: Mapping[str, Value] | None = None,
        persistent: bool = False,
        timeout: float = LASTS_S,
        **headers: Any,
    ) -> Why:
        """Why a subscriber would get this message, or would not; it is not published.

        The subscriber is a client, by its id, or a mailbox, by its name, wherever in the network;
        this client if neither is given. With `subscription`, one of the client's only.

            found = await client.why("orders/eu", client="billing", attributes={"price": 12})
            print(found.gets, *found.reasons(), sep="\\n")
        """
        client = client or ("" if durable else self.client_id)
        envelope = self._as_published(topic, body, attributes, persistent, headers)
        asked = Trace(envelope=envelope, mode=TraceMode.WHY)
        asked = replace(asked, client=client, durable=durable, subscription=subscription)
        subscriber = f"mailbox {durable}" if durable else f"client {client}"
        found = Why(*await self._reports(asked, timeout), subscriber=subscriber)
        lost = next((row for row in found.subject if row["reason"] == "unreached"), None)
        if lost is not None and "pattern" in lost and "filter" not in lost:
            found.travelled = await self._travelled(lost, lost["node"], timeout)
        return found

    async def trace_subscription(
        self,
        *,
        client: str = "",
        durable: str = "",
        subscription: int = 0,
        timeout: float = LASTS_S,
    ) -> list[Travelled]:
        """How the subscriptions of a client, or a mailbox, travelled: what nodes told neighbours.

        It is found wherever it is; this client is meant if nothing is given.
        """
        client = client or ("" if durable else self.client_id)
        asked = Trace(mode=TraceMode.FILTER, client=client, durable=durable)
        found = Traced(*await self._reports(replace(asked, subscription=subscription), timeout))
        travels = []
        for report in found.reports:
            for row in report["subject"]:
                if row["kind"] == "subscription" and "filter" not in row:
                    travels.append(await self._travelled(row, report["node"], timeout))
                else:
                    reports = found.reports, found.complete, found.reason
                    travels.append(Travelled(*reports, home=report["node"], row=row))
        if not travels and not found.complete:
            travels.append(Travelled([], False, found.reason or "not all nodes answered"))
        return travels

    async def _travelled(self, row: Mapping[str, Any], home: str, timeout: float) -> Travelled:
        asked = Trace(
            mode=TraceMode.FILTER,
            pattern=row["pattern"],
            exact=row["exact"],
            selector=row["selector"],
            filtered=True,
        )
        return Travelled(*await self._reports(asked, timeout), home=home, row=dict(row))

    def _as_published(
        self,
        topic: str,
        body: Any,
        attributes: Mapping[str, Value] | None,
        persistent: bool,
        headers: dict[str, Any],
    ) -> bytes:
        """The envelope that `publish` would make."""
        special = {
            name: headers.pop(name, None)
            for name in ("priority", "ttl", "delay", "deliver_at", "message_id")
        }
        given = {"sender": "", **headers, **special_headers(**special)}
        if persistent or "deliver_at_us" in given:
            given["delivery_mode"] = DeliveryMode.PERSISTENT
        envelope = self._envelope(topic, body, attributes, given)
        if self.options.timestamps:
            message = replace(decode_envelope(envelope), timestamp_us=time.time_ns() // 1000)
            envelope = encode_envelope(message)
        return envelope

    async def _reports(
        self, asked: Trace, timeout: float
    ) -> tuple[list[dict[str, Any]], bool, str]:
        """What nodes say, whether these are all, and why not."""
        if not timeout > 0:
            raise LocalError("bad-message", "a trace needs a timeout above 0 seconds")
        await self._wait_for_link(timeout)
        assert self._loop is not None and self._welcome is not None
        if not self._has(FEATURE):
            raise LocalError("not-supported", "this node is too old to trace anything")
        self._last_question += 1
        token = self._last_question
        frame = native.encode(
            replace(asked, token=token, lasts_ms=milliseconds("timeout", timeout))
        )
        most = self._welcome.control_bytes_max or FRAME_BYTES_MAX
        if len(frame) + native.HEADER_BYTES > most:
            text = f"a traced message has {most} bytes at most (limit control_frame_bytes)"
            raise LocalError("bad-message", text)
        replies = Replies("a trace", token, self.options.queue_bytes, self._withdraw)
        self._questions[token] = replies
        replies.limit(timeout, self._loop)
        self._write(frame)
        async with replies:
            found: AllReplies = await replies.all()
        return [reply.json() for reply in found], found.complete, found.reason
