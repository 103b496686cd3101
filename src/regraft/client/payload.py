"""Bodies and headers: from Python values to bytes of an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from regraft.errors import LocalError
from regraft.model.message import SCALAR_FIELDS
from regraft.model.topics import check_topic
from regraft.model.varint import Malformed

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

# What `publish` takes as a keyword; the others have parameters of their own.
_OWN = {"id", "body", "topic", "timestamp_us"}
HEADERS = {row.name: row for row in SCALAR_FIELDS if row.name not in _OWN}


def encode_body(body: Any) -> tuple[bytes, str]:
    """A body as bytes, and its content type where the value itself tells."""
    if isinstance(body, bytes):
        return body, ""
    if isinstance(body, str):
        return body.encode(), TEXT
    if isinstance(body, bytearray | memoryview):
        return bytes(body), ""
    try:
        return msgspec.json.encode(body), JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalError(
            "bad-message",
            f"a body may be bytes, str, or what JSON can hold (dict, list, dataclass, "
            f"msgspec.Struct, ...), not this {type(body).__name__}: {error}",
        ) from None


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
        if value != row.absent:
            parts.append(written)
    return b"".join(parts)
