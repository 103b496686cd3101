"""`regraft advertise`: see whether anybody wants what would be published."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import click

from regraft.client import connect
from regraft.commands.common import run, url_option


@click.command()
@click.argument("pattern")
@click.option("-w", "--where", default="", metavar="SELECTOR", help="What it will satisfy.")
@click.option("--exact", is_flag=True, help="Without the topics below.")
@click.option("--once", is_flag=True, help="Say how it is now, and end: exit code 1 if unwanted.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=10.0, metavar="S",
              show_default=True, help="Give up after S seconds without an answer.")  # fmt: skip
@url_option
def advertise(
    pattern: str, where: str, exact: bool, once: bool, timeout: float, url: str | None
) -> None:
    """Advertise PATTERN, and print whether somebody wants it whenever that changes.

    \b
    Is anybody interested in cheap stocks?
        regraft advertise 'stocks/#' --where 'price < 10' --once
    Start a program when somebody is, and stop it when nobody is:
        regraft advertise 'sensors/hall' | while read state; do ...; done

    Prints "wanted" or "unwanted", a line each time. It does not publish
    anything: that is up to clients, which advertise for themselves.
    """
    sys.exit(run(_watch(pattern, where, exact, once, timeout, url)))


async def _watch(
    pattern: str, where: str, exact: bool, once: bool, timeout: float, url: str | None
) -> int:
    async with await connect(url, connect_timeout=min(5.0, timeout)) as client:
        offer = await client.advertise(pattern, where, exact=exact, timeout=timeout)
        with contextlib.suppress(asyncio.CancelledError):
            async for wanted in offer.changes():
                click.echo("wanted" if wanted else "unwanted")
                if once:
                    return 0 if wanted else 1
    return 0
