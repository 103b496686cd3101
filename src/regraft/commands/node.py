"""`regraft node`: what concerns a running node as a whole."""

from __future__ import annotations

import asyncio
import sys

import click

from regraft.client import Disconnection, connect
from regraft.commands.common import run, url_option
from regraft.errors import WorldError


@click.group()
def node() -> None:
    """Have a running node leave its network.

    \b
    Stop the node of this machine so that nobody else notices:
        regraft node leave
    """


@node.command()
@click.option("--timeout", type=float, default=30.0, metavar="SECONDS", show_default=True,
              help="How long to wait for it to go; 0: not at all.")  # fmt: skip
@url_option
def leave(timeout: float, url: str | None) -> None:
    """Have the node at --url hand over to its neighbours, and end.

    Its neighbours are connected with each other in its place, and what was on
    its way through it arrives: nothing is lost, nothing comes twice. Then its
    clients are asked to go elsewhere, and the process ends with exit code 0,
    as it does after SIGTERM.

    \b
    Examples:
        regraft node leave
        regraft node leave --url 10.0.0.9:7447
    """
    sys.exit(run(_leave(timeout, url)))


async def _leave(timeout: float, url: str | None) -> int:
    async with await connect(url, reconnect=False) as client:
        ended: asyncio.Future[Disconnection] = asyncio.get_running_loop().create_future()
        client.on_disconnect(ended.set_result)
        try:
            await client.command("leave")
        except WorldError:
            # It may say good-bye before it says that it does what it was told.
            if not ended.done() or ended.result().error.code.name != "shutting-down":
                raise
        if not timeout:
            click.echo(f"{client.node_name} leaves")
            return 0
        await asyncio.wait([ended], timeout=timeout)
        if not ended.done():
            text = f"{client.node_name} is still there after {timeout:g} s; see its log"
            raise WorldError("timed-out", text)
        click.echo(f"{client.node_name} has left")
    return 0
