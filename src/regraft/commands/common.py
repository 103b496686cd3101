"""What the commands share: where to connect, how values and times are written, how to run."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from regraft.errors import LocalError, RegraftError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Timestamp, Value

F = TypeVar("F", bound=Callable[..., Any])
SIZES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
COMPLETE_S = 1.0  # for a node to say what there is
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def url_option(function: F) -> F:
    """The option that says where the node is."""
    return click.option(
        "-u",
        "--url",
        metavar="TARGET",
        help="Where the node is: host:port, several with commas, or file:, env:, srv:, name:. "
        "Default: REGRAFT_URL, or 127.0.0.1:7447.",
    )(function)


def json_option(function: F) -> F:
    """The option of those who want to read the answer with a program."""
    return click.option("--json", "as_data", is_flag=True, help="The answer as JSON.")(function)


def yes_option(function: F) -> F:
    """The option of those who are sure."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


def sure(question: str, yes: bool) -> bool:
    """Ask, where somebody is there to answer."""
    if yes or not sys.stdin.isatty():
        return True
    if click.confirm(question, err=True):
        return True
    click.echo("nothing was changed", err=True)
    return False


def duration(text: str) -> float:
    """A time in seconds, or with a unit, as 90m; for options."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|[smhdw])?", text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no time: write 30, 1.5s, 90m, 2h or 7d")
    return float(found[1]) * SECONDS[found[2] or "s"]


def size(text: str) -> int:
    """A number of bytes, or with a unit, as 64MiB; for options."""
    found = re.fullmatch(r"(\d[\d_]{0,15})([KMG]iB)?", text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no size: write 1_000, 64KiB, 8MiB or 1GiB")
    return int(found[1]) * SIZES[found[2] or ""]


def complete_names(command: str, key: str) -> Callable[..., list[CompletionItem]]:
    """Names for the shell to complete; none if the node does not answer at once."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from regraft.client import connect

        async def look() -> dict[str, Any]:
            url = ctx.params.get("url")
            async with await connect(url, reconnect=False, connect_timeout=COMPLETE_S) as client:
                return await client.command(command, timeout=COMPLETE_S)

        try:
            rows = asyncio.run(look())[key]
        except (RegraftError, OSError):
            return []
        return [
            CompletionItem(row["name"], help=row["topic"])
            for row in rows
            if row["name"].startswith(incomplete)
        ]

    return complete


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


class Place(NamedTuple):
    """Where in a stream: a moment (µs since 1970 UTC), or a sequence; 0 is what was not given."""

    time_us: int = 0
    sequence: int = 0


def parse_place(text: str) -> Place:
    """`start`, `now`, `#SEQUENCE`, an age as in `-90m`, or a moment, local unless it says so."""
    if text == "start":
        return Place(sequence=1)
    if text == "now":
        return Place(time.time_ns() // 1000)
    if number := re.fullmatch(r"#(\d{1,18})", text):
        return Place(sequence=max(1, int(number[1])))
    if age := re.fullmatch(r"-(\d{1,9}(?:\.\d{1,6})?)([smhdw])", text):
        return Place(max(1, int((time.time() - float(age[1]) * SECONDS[age[2]]) * 1_000_000)))
    try:
        moment = datetime.fromisoformat(text)
        return Place(max(1, int(moment.timestamp() * 1_000_000)))
    except (ValueError, OverflowError, OSError):
        raise LocalError(
            "bad-message",
            f"{text!r} is no place: write start, now, #SEQUENCE, an age as -90m (s, m, h, d, w), "
            "or a moment as 2026-11-15T10:00",
        ) from None


def parse_moment(text: str) -> datetime:
    """A date or moment, local unless it says so."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        text = f"{text!r} is no moment: write it as 2026-11-15T10:00"
        raise LocalError("bad-message", text) from None


def describe_time(time_us: int) -> str:
    """A moment as the log writes it."""
    if not time_us:
        return ""
    moment = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(number: int, noun: str, more: str = "") -> str:
    """`1 message`, `2 messages`."""
    return f"{number:,} {noun if number == 1 else more or noun + 's'}"


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
    if message.redelivered:
        parts.append(click.style("(may have come before)", dim=True))
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
    if message.sequence:
        out["sequence"] = message.sequence
    if message.redelivered:
        out["redelivered"] = True
    return out


def show_message(message: ReceivedMessage, form: str) -> None:
    """Print a message: as `text`, `json`, only its `body`, or that `raw`."""
    out = sys.stdout
    if form == "text":
        click.echo(as_text(message))
    elif form == "json":
        out.write(json.dumps(as_json(message), ensure_ascii=False) + "\n")
    else:
        out.buffer.write(message.content + (b"\n" if form == "body" else b""))
    out.flush()


def form_options(function: F) -> F:
    """The options that say how messages are printed."""
    for name, text in (
        ("raw", "Only the bodies, with nothing between."),
        ("body", "Only the bodies, one per line."),
        ("json", "One JSON object per line."),
    ):
        function = click.option(f"--{name}", "form", flag_value=name, help=text)(function)
    return function


def show_rows(rows: list[dict[str, Any]], as_data: bool, none: str) -> None:
    """Print rows as a table, or as JSON."""
    if as_data:
        click.echo(json.dumps(rows, ensure_ascii=False))
    elif rows:
        for line in table(rows):
            click.echo(line)
    else:
        click.echo(none, err=True)


def show_row(row: dict[str, Any], as_data: bool) -> None:
    """Print the fields of one thing, or JSON."""
    if as_data:
        click.echo(json.dumps(row, ensure_ascii=False))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        click.echo(f"{name.ljust(width)}  {spelled(value)}".rstrip())


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as lines, with a line of names above them."""
    columns = list({name: None for row in rows for name in row})
    cells = [columns, *([spelled(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def spelled(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
