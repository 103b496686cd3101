"""`regraft sub`: print what is published."""

from __future__ import annotations

import json
import sys

import click

from regraft.client import Subscription, connect
from regraft.commands.common import as_json, as_text, run, url_option
from regraft.errors import WorldError
from regraft.kernels.inbox import ReceivedMessage


@click.command()
@click.argument("pattern", default="#")
@click.option("-w", "--where", default="", metavar="SELECTOR", help="Only what a selector allows.")
@click.option("-n", "--count", type=click.IntRange(1), help="End after this many messages.")
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Fail after S s without a message.",
)
@click.option("--exact", is_flag=True, help="Not what is below the topic.")
@click.option("--json", "form", flag_value="json", help="One JSON object per line.")
@click.option("--body", "form", flag_value="body", help="Only the bodies, one per line.")
@click.option("--raw", "form", flag_value="raw", help="Only the bodies, with nothing between.")
@url_option
def sub(
    pattern: str,
    where: str,
    count: int | None,
    timeout: float | None,
    exact: bool,
    form: str | None,
    url: str | None,
) -> None:
    """Print what is published to the topics that match PATTERN.

    \b
    Everything below news, until Ctrl-C:
        regraft sub 'news/#'
    The first message, as JSON, or an error after five seconds:
        regraft sub news/eu --count 1 --timeout 5 --json
    In every city, one level deep:
        regraft sub 'weather/+'

    '+' stands for one level of a topic, '#' for the rest. A topic without
    wildcards includes what is below it, unless --exact is given.
    """
    sys.exit(run(_sub(pattern, where, count, timeout, exact, form or "text", url)))


async def _sub(
    pattern: str,
    where: str,
    count: int | None,
    timeout: float | None,
    exact: bool,
    form: str,
    url: str | None,
) -> int:
    async with await connect(url) as client:
        subscription = await client.subscribe(pattern, where=where, exact=exact)
        if sys.stderr.isatty():
            click.echo(f"subscribed to {pattern!r} at {client.node_name}; Ctrl-C ends it", err=True)
        client.on_missed(
            lambda messages, reason: click.echo(
                f"regraft: {messages} messages were dropped: {reason}", err=True
            )
        )
        client.on_disconnect(
            lambda loss: click.echo(f"regraft: disconnected: {loss.error.text}", err=True)
        )
        client.on_reconnect(lambda: click.echo("regraft: connected again", err=True))
        return await _print(subscription, count, timeout, form)


async def _print(
    subscription: Subscription, count: int | None, timeout: float | None, form: str
) -> int:
    left = count if count is not None else -1
    while left != 0:
        try:
            message = await subscription.next(timeout)
        except WorldError as error:
            if error.code.name != "timed-out":
                raise
            click.echo(f"regraft: {error.text}", err=True)
            return 1
        _show(message, form)
        left -= 1
    return 0


def _show(message: ReceivedMessage, form: str) -> None:
    out = sys.stdout
    if form == "text":
        click.echo(as_text(message))
    elif form == "json":
        out.write(json.dumps(as_json(message), ensure_ascii=False) + "\n")
    else:
        out.buffer.write(message.content + (b"\n" if form == "body" else b""))
    out.flush()
