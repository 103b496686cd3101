"""`regraft delayed`: messages that are to be delivered later."""

from __future__ import annotations

import json
import sys

import click

from regraft.client import connect
from regraft.commands.common import (
    counted,
    describe_time,
    json_option,
    run,
    show_rows,
    url_option,
)


@click.group()
def delayed() -> None:
    """Look at messages that are to be delivered later, or cancel them.

    \b
    Deliver it in ten minutes, and say which id it has:
        regraft pub reminders 'tea' --delay 10m -v
    What is to come?
        regraft delayed list
    No, it is not:
        regraft delayed cancel 4242
    """


@delayed.command("list")
@click.option("-n", "--rows", type=click.IntRange(1), default=100, show_default=True,
              help="At most so many rows.")  # fmt: skip
@json_option
@url_option
def list_command(rows: int, as_data: bool, url: str | None) -> None:
    """List messages that wait for their time, the next one first."""

    async def look() -> int:
        async with await connect(url) as client:
            answer = await client.command("delayed-list", rows=rows)
        if as_data:
            click.echo(json.dumps(answer))
            return 0
        found = [
            {
                "id": str(row["id"]),
                "topic": row["topic"],
                "deliver_at": describe_time(row["deliver_at_us"]),
                "size": row["size"],
            }
            for row in answer["delayed"]
        ]
        show_rows(found, False, "nothing waits for its time")
        if len(found) < answer["count"]:
            click.echo(f"{len(found)} of {answer['count']} shown", err=True)
        return 0

    sys.exit(run(look()))


@delayed.command()
@click.argument("ids", type=click.IntRange(0), nargs=-1, required=True, metavar="ID...")
@url_option
def cancel(ids: tuple[int, ...], url: str | None) -> None:
    """Cancel the messages with these ids, which wait for their time.

    If one does not wait any more, the exit code is 2, and those before it
    are cancelled.
    """

    async def take_back() -> int:
        async with await connect(url) as client:
            for one in ids:
                count = await client.cancel(one)
                click.echo(f"cancelled {counted(count, 'message')} with id {one}")
        return 0

    sys.exit(run(take_back()))
