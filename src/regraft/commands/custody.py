"""`regraft custody`: persistent messages that other nodes have to keep."""

from __future__ import annotations

import json
import sys

import click

from regraft.client import connect
from regraft.commands.common import json_option, run, show_rows, url_option


@click.group()
def custody() -> None:
    """Look at what other nodes still have to keep, or forget one of them.

    A node keeps a persistent message until every node that has a mailbox
    for it has confirmed that it keeps it, too.

    \b
    What waits here, and for whom?
        regraft custody list
    The disk of node athens is lost; nothing need wait for it:
        regraft custody forget athens
    """


@custody.command("list")
@json_option
@url_option
def list_command(as_data: bool, url: str | None) -> None:
    """List other nodes with mailboxes, and what waits here for them.

    A mailbox that has moved from here to another node has a row of its own,
    with its name.
    """

    async def look() -> int:
        async with await connect(url) as client:
            answer = await client.command("custody-list")
        rows = [
            {
                "node": row["node"],
                "journal": row["journal"][:8],
                "mailboxes": row.get("interests") or row.get("mailbox", 0),
                "waiting": row.get("waiting", 0),
                "bytes": row.get("bytes", 0),
                "silent_s": row.get("silent_s", 0),
                "dropped": row.get("dropped", 0),
                "refused": row.get("refused", False),
            }
            for row in [*answer["rows"], *answer.get("moves", ())]
        ]
        if as_data:
            click.echo(json.dumps(answer))
        else:
            show_rows(rows, False, "no other node has mailboxes")
        return 0

    sys.exit(run(look()))


@custody.command()
@click.argument("home", metavar="NODE")
@url_option
def forget(home: str, url: str | None) -> None:
    """Forget a node that will never come back, in the whole network.

    NODE is its name, or the beginning of its journal's id. What waits for
    it anywhere is dropped. If it comes back after all, it gets what is
    published from then on.
    """

    async def say() -> int:
        async with await connect(url) as client:
            answer = await client.command("custody-forget", home=home)
        click.echo(f"forgot node {answer['node']}, journal {answer['journal']}")
        return 0

    sys.exit(run(say()))
