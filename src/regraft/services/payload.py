"""Bodies of requests and answers as the types that handlers speak of.

Bytes and text are themselves; a class that Protocol Buffers has generated is written in its own
form; everything else (dict, list, dataclass, msgspec.Struct, numbers) is JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from regraft.client.payload import encode_body
from regraft.errors import LocalError, PeerError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.messagetype import has_encoding
from regraft.model.varint import STRING

PROTOBUF = "application/x-protobuf"
CONTENT_TYPE = 15  # the number of the field


def encode(body: Any) -> tuple[bytes, bytes]:
    """A body as bytes, and the envelope's field that says what it is; none for bytes."""
    if type(body) is bytes:
        return body, b""
    if hasattr(body, "SerializeToString"):
        data, kind = body.SerializeToString(), PROTOBUF
    else:
        data, headers = encode_body(body)
        kind = headers.get("content_type", "")
    return data, STRING.write(CONTENT_TYPE, kind) if kind else b""


def decode(message: ReceivedMessage, type: Any) -> Any:
    """The body of a message as a type; PeerError if it is none of it."""
    if type is ReceivedMessage or type is None:
        return message
    if type is bytes:
        return message.content
    try:
        if type is str:
            return message.content.decode()
        if hasattr(type, "FromString"):
            return type.FromString(message.content)
        if has_encoding(type):
            return type.decode(message.content)
        return msgspec.json.decode(message.content, type=type)
    except (ValueError, RecursionError) as error:  # of msgspec and UTF-8
        reason = error
    except Exception as error:  # a library that may not be installed has an error of its own
        if not hasattr(type, "FromString") and not has_encoding(type):
            raise
        reason = ValueError(str(error))
    name = getattr(type, "__name__", str(type))
    raise PeerError("bad-message", f"the body of {message!r} is no {name}: {reason}")


def wanted_type(handler: Callable[..., Any]) -> Any:
    """The type that a handler wants its request as: what its parameter is annotated with."""
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) != 1:
        name = getattr(handler, "__name__", repr(handler))
        raise LocalError("bad-configuration", f"the handler {name} must take one argument")
    try:
        hints = get_type_hints(handler)
    except NameError as error:
        raise LocalError("bad-configuration", f"the annotation of a handler: {error}") from None
    return hints.get(parameters[0].name, ReceivedMessage)
