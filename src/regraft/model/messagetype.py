"""Messages that applications define: a class, a name, and how an object of it becomes a body.

The name travels as the message's `type_name`. Nobody makes code of it: who knows no class of that
name has the bytes, and can say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import msgspec

from regraft.errors import LocalError, PeerError

NAME_BYTES_MAX = 255
JSON = "application/json"

C = TypeVar("C", bound=type[Any])
_CLASSES: dict[str, type[Any]] = {}
_NAMES: dict[type[Any], str] = {}


def register_message(name: str, type: type[Any]) -> None:
    """Know messages of this class by a name from now on.

    It has `encode()`, which returns bytes, and a class method `decode(data)`; or it is a dataclass
    or a msgspec.Struct, and its objects are written as JSON.
    """
    if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        text = f"the name of a type of message has 1 to {NAME_BYTES_MAX} bytes"
        raise LocalError("bad-configuration", f"{name!r}: {text}")
    if not _encodes(type) and not is_dataclass(type) and not issubclass(type, msgspec.Struct):
        text = "has encode() and decode(), or is a dataclass or a msgspec.Struct"
        raise LocalError("bad-configuration", f"{type.__qualname__}: a type of message {text}")
    other = _CLASSES.get(name)
    if other is not None and _place(other) != _place(type):  # the same again: a reloaded file
        text = f"it is the name of {'.'.join(_place(other))} already"
        raise LocalError("bad-configuration", f"message type {name}: {text}")
    _CLASSES[name] = type
    _NAMES[type] = name


def message_type(name: str) -> Callable[[C], C]:
    """Decorate a class, to have it registered."""

    def decorate(type: C) -> C:
        register_message(name, type)
        return type

    return decorate


def encode_value(value: Any) -> tuple[bytes, dict[str, str]] | None:
    """The body and the headers of an object whose class is registered; None if it is not."""
    name = _NAMES.get(type(value))
    if name is None:
        return None
    if not _encodes(type(value)):
        try:
            data = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalError("bad-message", f"message type {name}: {error}") from None
        return data, {"content_type": JSON, "type_name": name}
    data = value.encode()
    if not isinstance(data, bytes):
        text = f"encode() returned {type(data).__name__}, not bytes"
        raise LocalError("bad-message", f"message type {name}: {text}")
    return data, {"type_name": name}


def decode_value(name: str, body: bytes) -> Any:
    """The object that a body stands for; LocalError if there is no class, PeerError if it is none.

    What `decode()` of a class of yours raises becomes the reason of a PeerError.
    """
    known = _CLASSES.get(name)
    if known is None:
        what = f"no class is registered for messages of type {name!r}" if name else ""
        raise LocalError("not-supported", what or "the message does not say its type (type_name)")
    try:
        return known.decode(body) if _encodes(known) else msgspec.json.decode(body, type=known)
    except Exception as error:
        text = f"a message of type {name} cannot be read: {type(error).__name__}: {error}"
        raise PeerError("malformed-envelope", text) from error


def has_encoding(type: Any) -> bool:
    """Whether it is a class that is registered and has an encoding of its own."""
    try:
        return type in _NAMES and _encodes(type)
    except TypeError:  # an annotation that cannot be looked up
        return False


def _encodes(type: type[Any]) -> bool:
    return callable(getattr(type, "encode", None)) and callable(getattr(type, "decode", None))


def _place(type: type[Any]) -> tuple[str, str]:
    return type.__module__, type.__qualname__
