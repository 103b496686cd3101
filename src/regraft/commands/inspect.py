"""`regraft inspect`: what does a running node hold?"""

from __future__ import annotations

import json
import sys

import click

from regraft.client import connect
from regraft.commands import topology
from regraft.commands.common import run, spelled, table, url_option


@click.command()
@click.argument(
    "what",
    type=click.Choice(
        [
            "node",
            "connections",
            "subscriptions",
            "index",
            "journal",
            "custody",
            "filters",
            "topology",
        ]
    ),
    default="node",
)
@click.option(
    "-n",
    "--rows",
    type=click.IntRange(1),
    default=1000,
    help="At most so many rows, or nodes of a topology.",
)
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@url_option
def inspect(what: str, rows: int, as_json: bool, url: str | None) -> None:
    """Show what a running node holds: its counters, connections, subscriptions, match index,
    journal, what other nodes still have to keep, the filters of applications that it knows, or
    the tree of nodes that it is part of.

    \b
    What has it done so far?
        regraft inspect
    Who is connected, and who is slow?
        regraft inspect connections
    Who wants what, for a program?
        regraft inspect subscriptions --json
    What does matching cost, and which predicates are hot?
        regraft inspect index --rows 20
    What is kept for whom, and who does not read? What do other nodes have to keep?
        regraft inspect journal
        regraft inspect custody
    Which filters of applications does it know, and do they work?
        regraft inspect filters
    Which nodes are there, and who is below whom?
        regraft inspect topology
    """
    sys.exit(
        run(_tree(rows, as_json, url) if what == "topology" else _inspect(what, rows, as_json, url))
    )


async def _inspect(what: str, rows: int, as_json: bool, url: str | None) -> int:
    async with await connect(url) as client:
        answer = await client.inspect(what, rows=rows)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return 0
    rows_found = answer.pop("rows", None)
    total, shown = answer.pop("total", 0), answer.pop("shown", 0)
    width = max(map(len, answer), default=0)
    for name, value in answer.items():
        click.echo(f"{name.ljust(width)}  {spelled(value)}")
    if rows_found is None:
        return 0
    if answer and rows_found:
        click.echo()
    for line in table(rows_found) if rows_found else [] if answer else [f"no {what}"]:
        click.echo(line)
    if shown < total:
        click.echo(f"{shown} of {total} shown", err=True)
    return 0


async def _tree(nodes_max: int, as_json: bool, url: str | None) -> int:
    tree = await topology.look_around(url, nodes_max)
    if as_json:
        click.echo(json.dumps(topology.as_data(tree), ensure_ascii=False))
        return 0
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    plain = not encoding.startswith("utf")
    for line in topology.draw(tree, topology.PLAIN_PICTURE if plain else topology.PICTURE):
        click.echo(line)
    click.echo(topology.summary(tree), err=True)
    return 0
