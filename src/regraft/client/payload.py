"""Bodies and headers: from Python values to bytes of an envelope."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from regraft.errors import LocalError
from regraft.model.message import SCALAR_FIELDS, Timestamp
from regraft.model.messagetype import JSON, encode_value
from regraft.model.selector import Selector
from regraft.model.topics import check_topic
from regraft.model.varint import Malformed

TEXT = "text/plain; charset=utf-8"

# What `publish` takes as a keyword; the others have parameters of their own.
_OWN = {"id", "body", "topic", "timestamp_us"}
HEADERS = {row.name: row for row in SCALAR_FIELDS if row.name not in _OWN}
HEADERS["message_id"] = next(row for row in SCALAR_FIELDS if row.name == "id")


def special_headers(
    priority: int | None,
    ttl: float | None,
    delay: float | None,
    deliver_at: datetime | float | None,
    message_id: int | None = None,
) -> dict[str, Any]:
    """The headers that `publish` has parameters for, as the envelope has them."""
    now_us = time.time_ns() // 1000
    headers: dict[str, Any] = {"priority": priority, "message_id": message_id}
    if delay is not None and deliver_at is not None:
        raise LocalError("bad-message", "give delay or deliver_at, not both")
    if delay is not None:
        headers["deliver_at_us"] = now_us + 1000 * milliseconds("delay", delay)
    if deliver_at is not None:
        headers["deliver_at_us"] = microseconds(deliver_at)
    if ttl is not None:
        headers["expiration_us"] = now_us + int(ttl * 1_000_000)
        if headers.get("deliver_at_us", 0) >= headers["expiration_us"]:
            raise LocalError("bad-message", "it would expire (ttl) before it is delivered")
    return {name: value for name, value in headers.items() if value is not None}


def microseconds(moment: datetime | float) -> int:
    """A moment, given as a datetime with a time zone or as seconds since 1970."""
    if isinstance(moment, datetime):
        return Timestamp.from_datetime(moment).us
    if not 0 <= moment < 1e12:
        raise LocalError("bad-message", f"{moment} is not a number of seconds since 1970")
    return round(moment * 1_000_000)


def milliseconds(name: str, seconds: float) -> int:
    """A time as nodes are told it: what is not 0 does not become 0."""
    if not 0 <= seconds < 1e9:
        raise LocalError("bad-message", f"{name}: {seconds} is not a number of seconds from 0 on")
    return max(1, round(seconds * 1000)) if seconds else 0


def encode_body(body: Any) -> tuple[bytes, dict[str, str]]:
    """A body as bytes, and the headers that the value itself tells: its type, its content type."""
    if isinstance(body, bytes):
        return body, {}
    if isinstance(body, str):
        return body.encode(), {"content_type": TEXT}
    if isinstance(body, bytearray | memoryview):
        return bytes(body), {}
    found = encode_value(body)
    if found is not None:
        return found
    try:
        return msgspec.json.encode(body), {"content_type": JSON}
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalError(
            "bad-message",
            f"a body may be bytes, str, or what JSON can hold (dict, list, dataclass, "
            f"msgspec.Struct, ...), not this {type(body).__name__}: {error}",
        ) from None


@lru_cache(256)
def _check_selector(text: str) -> None:
    Selector.parse(text)


def encode_headers(headers: Mapping[str, Any]) -> bytes:
    """Header fields as they stand in an envelope."""
    parts = []
    for name, value in headers.items():
        row = HEADERS.get(name)
        if row is None:
            known = ", ".join(sorted(HEADERS))
            raise LocalError("bad-message", f"there is no header {name!r}; there are {known}")
        if value is None:
            continue
        try:
            written = row.scalar.write(row.number, value)
        except Malformed as reason:
            raise LocalError("bad-message", f"{name}: {reason}") from None
        if name == "priority" and not 0 <= value <= 9:
            raise LocalError("bad-message", f"priority: {value} is not 0 to 9")
        if name == "reply_to" and value:
            check_topic(value)
        if name == "where" and value:
            _check_selector(value)
        if value != row.absent:
            parts.append(written)
    return b"".join(parts)
