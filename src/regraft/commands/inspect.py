"""`regraft inspect`: what does a running node hold?"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from regraft.client import connect
from regraft.commands.common import run, url_option


@click.command()
@click.argument(
    "what",
    type=click.Choice(["node", "connections", "subscriptions", "index"]),
    default="node",
)
@click.option("-n", "--rows", type=click.IntRange(1), default=1000, help="At most so many rows.")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@url_option
def inspect(what: str, rows: int, as_json: bool, url: str | None) -> None:
    """Show what a running node holds: its counters, connections, subscriptions or match index.

    \b
    What has it done so far?
        regraft inspect
    Who is connected, and who is slow?
        regraft inspect connections
    Who wants what, for a program?
        regraft inspect subscriptions --json
    What does matching cost, and which predicates are hot?
        regraft inspect index --rows 20
    """
    sys.exit(run(_inspect(what, rows, as_json, url)))


async def _inspect(what: str, rows: int, as_json: bool, url: str | None) -> int:
    async with await connect(url) as client:
        answer = await client.inspect(what, rows=rows)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return 0
    table = answer.pop("rows", None)
    total, shown = answer.pop("total", 0), answer.pop("shown", 0)
    width = max(map(len, answer), default=0)
    for name, value in answer.items():
        click.echo(f"{name.ljust(width)}  {_spelled(value)}")
    if table is None:
        return 0
    if answer and table:
        click.echo()
    for line in _table(table) if table else [] if answer else [f"no {what}"]:
        click.echo(line)
    if shown < total:
        click.echo(f"{shown} of {total} shown", err=True)
    return 0


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list({name: None for row in rows for name in row})
    cells = [columns, *([_spelled(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
