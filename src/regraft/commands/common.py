"""What the commands share: where to connect, how values are written, how to run to the end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from regraft.errors import LocalError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Timestamp, Value

F = TypeVar("F", bound=Callable[..., Any])


def url_option(function: F) -> F:
    """The option that says where the node is."""
    return click.option(
        "-u",
        "--url",
        metavar="TARGET",
        help="Where the node is: host:port, several with commas, or file:, env:, srv:, name:. "
        "Default: REGRAFT_URL, or 127.0.0.1:7447.",
    )(function)


def run(coroutine: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end; the exit code. Ctrl-C cancels it, and it cleans up."""
    return asyncio.run(coroutine)


def parse_settings(settings: tuple[str, ...]) -> dict[str, Value]:
    """`name=value` pairs: numbers and true/false as such, the rest, or what is quoted, as text."""
    attributes: dict[str, Value] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise LocalError("bad-message", f"--set {setting!r}: write it as name=value")
        attributes[name] = parse_value(text)
    return attributes


def parse_value(text: str) -> Value:
    """A value as one writes it in a shell."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def describe_value(value: Value) -> str:
    """A value as one would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return value.to_datetime().isoformat()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return str(value)


def as_text(message: ReceivedMessage) -> str:
    """One line for people: topic, body, attributes."""
    parts = [click.style(message.topic, fg="cyan")]
    content = message.content
    try:
        body = content.decode()
    except UnicodeDecodeError:
        body = f"<{len(content)} bytes>"
    parts.append("".join(c if c.isprintable() or c in "\t" else repr(c)[1:-1] for c in body))
    if message.attributes:
        pairs = [f"{name}={describe_value(value)}" for name, value in message.attributes.items()]
        parts.append(click.style(" ".join(pairs), dim=True))
    return "  ".join(parts)


def as_json(message: ReceivedMessage) -> dict[str, Any]:
    """All there is, for programs."""
    whole = message.message
    content = message.content
    out: dict[str, Any] = {"topic": message.topic}
    try:
        out["body"] = content.decode()
    except UnicodeDecodeError:
        out["body_base64"] = base64.b64encode(content).decode()
    if whole.attributes:
        out["attributes"] = {
            name: value if isinstance(value, bool | int | float | str) else describe_value(value)
            for name, value in whole.attributes.items()
        }
    for name in ("id", "timestamp_us", "sender", "content_type", "reply_to", "correlation"):
        value = getattr(whole, name)
        if value:
            out[name] = value
    if whole.priority != 4:
        out["priority"] = whole.priority
    return out
