"""`regraft ask`: ask everybody who is subscribed, and print what they reply."""

from __future__ import annotations

import sys
import time

import click

from regraft.client import connect
from regraft.commands.common import (
    counted,
    form_options,
    parse_settings,
    run,
    show_message,
    url_option,
)


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="An attribute: a number, true, false, or text. May be repeated.")  # fmt: skip
@click.option("-w", "--where", default="", metavar="SELECTOR",
              help="Only those whose context satisfies it.")  # fmt: skip
@click.option("-t", "--timeout", type=click.FloatRange(min=0, min_open=True), default=5.0,
              show_default=True, metavar="S", help="How long to wait for replies.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print replies only, not how many there were.")
@form_options
@url_option
def ask(
    topic: str,
    body: str | None,
    settings: tuple[str, ...],
    where: str,
    timeout: float,
    quiet: bool,
    form: str | None,
    url: str | None,
) -> None:
    """Ask everybody who is subscribed to TOPIC and replies, and print the replies.

    BODY is sent as it is; as -, it is read from stdin. Replies are printed as
    they come; it ends when all have come. The exit code is 0 if these are all,
    and 1 if somebody did not reply in time, or is gone.

    \b
    Examples:
        regraft ask rooms/temperature
        regraft ask rooms 'who is there?' --where "ctx.floor = 2" --json
        regraft sub rooms --reply 'here'         (in another terminal)
    """
    data = sys.stdin.buffer.read() if body == "-" else (body or "").encode()
    sys.exit(run(_ask(topic, data, settings, where, timeout, quiet, form or "text", url)))


async def _ask(
    topic: str,
    data: bytes,
    settings: tuple[str, ...],
    where: str,
    timeout: float,
    quiet: bool,
    form: str,
    url: str | None,
) -> int:
    async with await connect(url, connect_timeout=min(5.0, timeout)) as client:
        began = time.monotonic()
        attributes = parse_settings(settings)
        if client.must_advertise:
            await client.advertise(topic, exact=True, timeout=timeout)
        async with await client.ask(
            topic, data, attributes=attributes, where=where, timeout=timeout
        ) as replies:
            async for reply in replies:
                show_message(reply, form)
        if not quiet:
            took = f"{1000 * (time.monotonic() - began):.1f} ms"
            came = counted(replies.received, "reply", "replies")
            expected = (
                "" if replies.expected is None else f" of {counted(replies.expected, 'replier')}"
            )
            end = "complete" if replies.complete else f"not complete: {replies.reason}"
            click.echo(f"{came}{expected} in {took}, {end}", err=True)
    return 0 if replies.complete else 1
