"""`regraft topic`: topics that are administered, by logical names."""

from __future__ import annotations

import sys
from typing import Any

import click

from regraft.client import connect
from regraft.commands.common import (
    complete_names,
    duration,
    json_option,
    run,
    show_row,
    show_rows,
    size,
    sure,
    url_option,
    yes_option,
)

name_argument = click.argument("name", shell_complete=complete_names("topic-list", "topics"))


@click.group()
def topic() -> None:
    """Administer topics: give them logical names, have them retained, set quotas.

    \b
    Keep a week of measurements, to be read again (regraft sub --from):
        regraft topic create measurements 'plant/+/measurements' \\
            --retain --keep 7d
    Programs that know the name find the topic:
        regraft topic show measurements

    Topics need not be administered to be used: publish to any.
    """


@topic.command()
@click.argument("name")
@click.argument("pattern", default="")
@click.option("--exact", is_flag=True, help="Not what is below the topic.")
@click.option("--retain", is_flag=True, help="Keep what is persistent, to be read again.")
@click.option("--keep", type=duration, default="0", metavar="TIME",
              help="Retained messages may go when they are older.")  # fmt: skip
@click.option("--keep-bytes", type=size, default="0", metavar="SIZE",
              help="And when there are more.")  # fmt: skip
@click.option("--persistent", is_flag=True, help="All that is published there is persistent.")
@click.option("--quota-messages", type=click.IntRange(0), default=0, metavar="N",
              help="As many may be retained; then publishers are refused.")  # fmt: skip
@click.option("--quota-bytes", type=size, default="0", metavar="SIZE",
              help="The same in bytes.")  # fmt: skip
@click.option("--holder", default="", metavar="NODE", help="The node that retains it.")
@json_option
@url_option
def create(name: str, pattern: str, as_data: bool, url: str | None, **how: Any) -> None:
    """Administer the topic PATTERN under the logical name NAME.

    Without PATTERN, the topic is NAME itself.

    \b
    Examples:
        regraft topic create orders
        regraft topic create prices 'market/+/prices' --retain --keep-bytes 1GiB
    """

    async def make() -> int:
        async with await connect(url) as client:
            row = await client.create_topic(name, pattern, **how)
        if as_data:
            show_row(row, True)
        else:
            retained = ", retained" if row["retain"] else ""
            click.echo(f"{name} is {row['topic']}{retained}")
        return 0

    sys.exit(run(make()))


@topic.command("list")
@json_option
@url_option
def list_command(as_data: bool, url: str | None) -> None:
    """List the topics that are administered."""

    async def look() -> int:
        async with await connect(url) as client:
            show_rows(await client.topics(), as_data, "no topics are administered")
        return 0

    sys.exit(run(look()))


@topic.command()
@name_argument
@json_option
@url_option
def show(name: str, as_data: bool, url: str | None) -> None:
    """Show the topic with the logical name NAME."""

    async def look() -> int:
        async with await connect(url) as client:
            show_row(await client.show_topic(name), as_data)
        return 0

    sys.exit(run(look()))


@topic.command()
@name_argument
@yes_option
@url_option
def remove(name: str, yes: bool, url: str | None) -> None:
    """Administer the topic NAME no more; what is retained of it goes."""

    async def end() -> int:
        async with await connect(url) as client:
            row = await client.show_topic(name)
            lost = ", with all that is retained of it" if row["retain"] else ""
            if not sure(f"Remove {name}{lost}?", yes):
                return 1
            await client.remove_topic(name)
        click.echo(f"removed {name}{lost}")
        return 0

    sys.exit(run(end()))
