"""`regraft tx`: transactions in doubt, and how they are decided by hand."""

from __future__ import annotations

import json
import sys
import time

import click

from regraft.client import connect
from regraft.commands.common import (
    counted,
    describe_time,
    json_option,
    run,
    show_rows,
    sure,
    url_option,
    yes_option,
)


@click.group()
def tx() -> None:
    """Look at transactions that wait to be decided, and decide them.

    A transaction of two phases that is prepared stays so, over crashes of its
    client and of the node, until somebody commits it or rolls it back. Mostly
    that is its coordinator, when it is started again. If it never will be,
    find out what the other side did, and do the same here.

    \b
    Which are in doubt, and since when?
        regraft tx list
    The database has committed its part:
        regraft tx commit order-7
    It has not, and will not:
        regraft tx rollback order-8
    """


@tx.command("list")
@json_option
@url_option
def list_command(as_data: bool, url: str | None) -> None:
    """List transactions that are prepared and not decided, the oldest first."""

    async def look() -> int:
        async with await connect(url) as client:
            found = await client.in_doubt()
        if as_data:
            click.echo(json.dumps({"transactions": found}))
            return 0
        rows = [
            {
                "gid": row["gid"],
                "client": row["client"],
                "since": describe_time(row["since_us"]),
                "age": f"{max(0, int(time.time() - row['since_us'] / 1_000_000))} s",
                **({"rolled back": describe_time(row["until_us"])} if row.get("until_us") else {}),
                "publishes": row["messages"],
                "settles": row["settles"],
                "makes": ", ".join(row["makes"]),
                "removes": ", ".join(row["removes"]),
            }
            for row in found
        ]
        show_rows(rows, False, "no transaction is in doubt")
        return 0

    sys.exit(run(look()))


@tx.command()
@click.argument("gid")
@json_option
@yes_option
@url_option
def commit(gid: str, as_data: bool, yes: bool, url: str | None) -> None:
    """Commit a transaction that was prepared under the name GID.

    If it was decided before, it says how: the exit code is 0 if it was
    committed, and 1 if it was rolled back.
    """
    sys.exit(run(_decide("tx-commit", gid, as_data, yes, url)))


@tx.command()
@click.argument("gid")
@json_option
@yes_option
@url_option
def rollback(gid: str, as_data: bool, yes: bool, url: str | None) -> None:
    """Roll back a transaction that was prepared under the name GID.

    What it would have published is gone, what it would have settled comes
    again. If it was decided before, it says how: the exit code is 0 if it was
    rolled back, and 1 if it was committed.
    """
    sys.exit(run(_decide("tx-rollback", gid, as_data, yes, url)))


async def _decide(what: str, gid: str, as_data: bool, yes: bool, url: str | None) -> int:
    verb = "Commit" if what == "tx-commit" else "Roll back"
    if not sure(f"{verb} transaction {gid}, whatever its coordinator decides?", yes):
        return 1
    async with await connect(url) as client:
        answer = await client.command(what, gid=gid)
    if as_data:
        click.echo(json.dumps(answer))
    else:
        state = answer["state"].replace("_", " ")
        when = "was, before" if answer["known"] else "is"
        click.echo(f"transaction {gid} {when}: {state}, {counted(answer['messages'], 'message')}")
    wanted = "committed" if what == "tx-commit" else "rolled_back"
    return 0 if answer["state"] == wanted else 1
