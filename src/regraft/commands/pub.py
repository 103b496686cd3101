"""`regraft pub`: publish."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from regraft.client import Client, connect
from regraft.commands.common import (
    counted,
    duration,
    parse_moment,
    parse_settings,
    run,
    url_option,
)
from regraft.errors import LocalError, RegraftError, WorldError

F = TypeVar("F", bound=Callable[..., Any])


def message_options(function: F) -> F:
    """A message in the shell: what is in it, and how it is published."""
    above_0 = click.FloatRange(min=0, min_open=True)
    for option in reversed(
        (
            click.argument("body", required=False),
            click.option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE",
                         help="An attribute: a number, true, false, or text. May be repeated."),
            click.option("-f", "--file",
                         type=click.Path(exists=True, dir_okay=False, path_type=Path),
                         help="The body is in this file."),
            click.option("-l", "--lines", is_flag=True,
                         help="Every line of the input is a message."),
            click.option("-n", "--count", type=click.IntRange(1), default=1,
                         help="Publish it so many times."),
            click.option("--content-type", metavar="TYPE", help="Media type of the body."),
            click.option("--priority", type=click.IntRange(0, 9), help="0 to 9; 4 if not given."),
            click.option("--ttl", type=above_0, metavar="S",
                         help="Not to be delivered after S seconds."),
            click.option("--delay", type=duration, metavar="TIME",
                         help="Not to be delivered before this time has passed, as 10m; it is "
                         "persistent then."),
            click.option("--at", metavar="MOMENT",
                         help="Not to be delivered before, as 2026-11-15T10:00; the same."),
            click.option("--reply-to", metavar="TOPIC", help="Where answers should go."),
            click.option("--correlation", metavar="ID", help="An id of your own, for answers."),
            click.option("-w", "--where", metavar="SELECTOR",
                         help="Only for receivers whose context (ctx.NAME) satisfies it."),
            click.option("--context", "context", multiple=True, metavar="NAME=VALUE",
                         help="Something of the publisher's context. May be repeated."),
            click.option("--timeout", type=above_0, default=10.0, show_default=True, metavar="S",
                         help="Give up after S seconds."),
            click.option("-q", "--quiet", is_flag=True, help="Say nothing."),
            click.option("-v", "--verbose", is_flag=True,
                         help="Say how many take it, if it is persistent, and which id it has."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


@click.command()
@click.argument("topic")
@message_options
@click.option(
    "--persistent", is_flag=True, help="It must not be lost: wait until it is safe on disk."
)
@click.option(
    "--if-wanted", is_flag=True, help="Only if somebody wants something of that topic now."
)
@url_option
def pub(topic: str, url: str | None, persistent: bool, if_wanted: bool, **how: Any) -> None:
    """Publish BODY to TOPIC; without BODY, what comes on standard input.

    \b
    One message with two attributes:
        regraft pub news/eu 'hello' --set price=101.5 --set symbol=ACME
    A file, and every line of a program's output:
        regraft pub backups/db --file dump.sql
        tail -f app.log | regraft pub logs/app --lines
    An order that must not be lost:
        regraft pub orders/eu '{"item": 7}' --persistent
    For those only who are near, and said so (regraft sub --context):
        regraft pub offers 'coffee' --where "ctx.room = 'hall'"
    In ten minutes, unless it is cancelled (regraft delayed):
        regraft pub reminders 'tea' --delay 10m -v

    Where the network routes by advertisements, the topic is advertised first.
    It returns once the node has taken all of it; with --persistent, once all
    of it is on disk for everybody who subscribed durably. If the node refuses
    some of it, the exit code is 1.
    """

    async def topic_of(_: Client) -> str:
        return topic

    sys.exit(run(send_messages(topic_of, url, persistent, if_wanted=if_wanted, **how)))


async def send_messages(
    topic_of: Callable[[Client], Awaitable[str]],
    url: str | None,
    persistent: bool,
    body: str | None,
    settings: tuple[str, ...],
    file: Path | None,
    lines: bool,
    count: int,
    at: str | None,
    timeout: float,
    quiet: bool,
    verbose: bool,
    context: tuple[str, ...] = (),
    if_wanted: bool = False,
    **headers: Any,
) -> int:
    """Publish what a shell says, and wait until the node has it; the exit code."""
    bodies = _bodies(body, file, lines, count)
    options = {"attributes": parse_settings(settings), **headers}
    if at is not None:
        options["deliver_at"] = parse_moment(at)
    later = at is not None or headers["delay"] is not None
    options = {name: value for name, value in options.items() if value is not None}
    persistent = options["persistent"] = persistent or later
    refused: list[str] = []
    async with await connect(url, connect_timeout=min(5.0, timeout)) as client:
        client.on_refused(lambda error, messages: refused.append(error.text))
        topic = await topic_of(client)
        if context:
            await client.set_context(parse_settings(context))
        if if_wanted or client.must_advertise:
            offer = await client.advertise(topic, exact=True, timeout=timeout)
            if if_wanted and not offer.wanted:
                click.echo(f"regraft: nobody wants {topic}: not published", err=True)
                return 1
        if later and count == 1 and not lines:
            options["message_id"] = client.new_id()
        try:
            published, takers = await _publish(
                client, topic, bodies, timeout, confirm=persistent and not lines, **options
            )
        except RegraftError as error:
            if not refused and persistent and error.code.name == "timed-out":
                refused.append(f"{error.text.partition(';')[0]}: it may be stored, or not")
            elif not refused:
                raise
    if refused:
        click.echo(f"regraft: {refused[0]}", err=True)
        return 1
    if verbose or (not quiet and sys.stderr.isatty()):
        report = _report(topic, published, takers if verbose and not later else None)
        if "message_id" in options:
            report += f", to be delivered later, id {options['message_id']}"
        click.echo(report, err=True)
    return 0


async def _publish(
    client: Client, topic: str, bodies: Iterator[bytes], timeout: float, confirm: bool, **more: Any
) -> tuple[int, int | None]:
    """Publish all of it, and wait until the node has it; how many, and takers if that is known.

    With `confirm` the last one is confirmed, which asks to know whether there is another one.
    """
    published = 0
    takers: int | None = None
    # Input may take its time: meanwhile what was read goes out, and heartbeats too.
    body = await asyncio.to_thread(next, bodies, None)
    while body is not None:
        following = await asyncio.to_thread(next, bodies, None) if confirm else None
        last = confirm and following is None
        takers = await client.publish(topic, body, timeout=timeout, confirm=last, **more)
        published += 1
        body = following if confirm else await asyncio.to_thread(next, bodies, None)
    while True:
        try:
            await client.flush(timeout)
            return published, takers if confirm else None
        except WorldError as error:
            # What is persistent is sent again over the next connection.
            if error.code.name != "connection-lost" or not more["persistent"]:
                raise


def _report(topic: str, published: int, takers: int | None) -> str:
    text = f"published {counted(published, 'message')} to {topic}"
    if takers is None:
        return text
    each = "" if published == 1 else ", the last one"
    return f"{text}{each}, taken by {takers}" if takers else f"{text}{each}, taken by nobody"


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
