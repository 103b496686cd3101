"""`regraft pub`: publish."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from regraft.client import connect
from regraft.commands.common import parse_settings, run, url_option
from regraft.errors import LocalError


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An attribute: a number, true, false, or text. May be repeated.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The body is in this file.",
)
@click.option("-l", "--lines", is_flag=True, help="Every line of the input is a message.")
@click.option("-n", "--count", type=click.IntRange(1), default=1, help="Publish it so many times.")
@click.option("--content-type", metavar="TYPE", help="Media type of the body.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9; 4 if not given.")
@click.option(
    "--ttl",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Not to be delivered after S seconds.",
)
@click.option("--reply-to", metavar="TOPIC", help="Where answers should go.")
@click.option("--correlation", metavar="ID", help="An id of your own, for answers.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Give up after S seconds.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
@url_option
def pub(
    topic: str,
    body: str | None,
    settings: tuple[str, ...],
    file: Path | None,
    lines: bool,
    count: int,
    timeout: float,
    quiet: bool,
    url: str | None,
    **headers: Any,
) -> None:
    """Publish BODY to TOPIC; without BODY, what comes on standard input.

    \b
    One message with two attributes:
        regraft pub news/eu 'hello' --set price=101.5 --set symbol=ACME
    A file, and every line of a program's output:
        regraft pub backups/db --file dump.sql
        tail -f app.log | regraft pub logs/app --lines

    It returns once the node has taken all of it.
    """
    bodies = _bodies(body, file, lines, count)
    attributes = parse_settings(settings)
    given = {name: value for name, value in headers.items() if value is not None}
    ttl = given.pop("ttl", None)

    async def publish() -> int:
        published = 0
        refused: list[str] = []
        async with await connect(url, connect_timeout=min(5.0, timeout)) as client:
            client.on_refused(lambda error, messages: refused.append(error.text))
            # Input may take its time: meanwhile what was read goes out, and heartbeats too.
            while (one := await asyncio.to_thread(next, bodies, None)) is not None:
                await client.publish(
                    topic, one, attributes=attributes, timeout=timeout, ttl=ttl, **given
                )
                published += 1
            await client.flush(timeout)
        if refused:
            click.echo(f"regraft: {refused[0]}", err=True)
            return 1
        if not quiet and sys.stderr.isatty():
            noun = "message" if published == 1 else "messages"
            click.echo(f"published {published} {noun} to {topic}", err=True)
        return 0

    sys.exit(run(publish()))


def _bodies(body: str | None, file: Path | None, lines: bool, count: int) -> Iterator[bytes]:
    if body is not None and file is not None:
        raise LocalError("bad-message", "give a body or --file, not both")
    if lines:
        source = sys.stdin.buffer if body is None and file is None else None
        if source is None:
            data = file.read_bytes() if file is not None else (body or "").encode()
            yield from data.splitlines()
        else:
            for line in source:
                yield line.rstrip(b"\r\n")
        return
    if file is not None:
        data = file.read_bytes()
    elif body is None or body == "-":
        data = sys.stdin.buffer.read()
    else:
        data = body.encode()
    for _ in range(count):
        yield data
