"""`regraft rules`: which peers get messages of which type, and how to change that."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from regraft.client import connect
from regraft.client.address import resolve
from regraft.commands.common import counted, json_option, run, table, url_option
from regraft.errors import LocalError, RegraftError
from regraft.model.rules import Rules, describe_route, differences, parse_rules

file_argument = click.argument("file", type=click.Path(dir_okay=False))


@click.group()
def rules() -> None:
    """Check, show, load and compare the rules of services.

    \b
    Is this file right?
        regraft rules check rules.toml
    What would change, and then change it, at two nodes:
        regraft rules diff rules.toml -u a:7447,b:7447
        regraft rules load rules.toml -u a:7447,b:7447
    """


def read(file: str) -> Rules:
    """The rules in a file; `-` is the standard input."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError("bad-configuration", f"cannot read {file}: {error}") from None
    return parse_rules(text, "stdin" if file == "-" else file)


def summary(found: Rules) -> str:
    """How much a table says."""
    return f"{counted(len(found.routes), 'type')}, {counted(len(found.peers), 'peer type')}"


@rules.command()
@file_argument
def check(file: str) -> None:
    """Say whether FILE is right, and if not, which line is wrong.

    \b
    Examples:
        regraft rules check rules.toml
    """
    click.echo(f"{file}: fine: {summary(read(file))}")


@rules.command()
@json_option
@click.option("--file", "as_file", is_flag=True, help="The file as it was loaded.")
@url_option
def show(as_data: bool, as_file: bool, url: str | None) -> None:
    """Show the rules that a node has.

    \b
    Examples:
        regraft rules show
        regraft rules show --file > rules.toml
    """
    sys.exit(run(_show(as_data, as_file, url)))


async def _show(as_data: bool, as_file: bool, url: str | None) -> int:
    async with await connect(url, reconnect=False) as client:
        answer = await client.command("rules-show")
        found = parse_rules(answer["text"])
    rows = [
        {
            "type": name,
            "number": found.numbers[name] or "",
            "to": ", ".join(map(describe_route, of)),
        }
        for name, of in found.routes.items()
    ]
    if as_file:
        click.echo(found.text, nl=False)
    elif as_data:
        click.echo(json.dumps(rows))
    elif rows:
        for line in table(rows):
            click.echo(line)
    else:
        click.echo("no rules", err=True)
    return 0


@rules.command()
@file_argument
@url_option
def load(file: str, url: str | None) -> None:
    """Have nodes use the rules in FILE from now on.

    Each node takes them as a whole, between two messages, or says what is
    wrong and keeps those that it has. With several addresses in --url, every
    node of them gets the rules; the first that refuses ends it. A node that is
    started again reads its own file (regraft serve --rules).

    \b
    Examples:
        regraft rules load rules.toml
        regraft rules load rules.toml -u a:7447,b:7447
    """
    sys.exit(run(_load(file, read(file), url)))


async def _load(file: str, found: Rules, url: str | None) -> int:
    failed = 0
    for address in resolve(url):
        try:
            async with await connect(str(address), reconnect=False) as client:
                await client.command("rules-load", text=found.text, name=file)
                click.echo(f"{client.node_name} at {address}: {summary(found)}")
        except LocalError:
            raise
        except RegraftError as error:  # the others shall have them all the same
            click.echo(f"regraft: {address}: {error.text}", err=True)
            failed = 1
    return failed


@rules.command()
@file_argument
@url_option
def diff(file: str, url: str | None) -> None:
    """Say what would be different with the rules in FILE.

    The exit code is 0 if nothing would, 1 if something would.

    \b
    Examples:
        regraft rules diff rules.toml
    """
    sys.exit(run(_diff(read(file), url)))


async def _diff(found: Rules, url: str | None) -> int:
    different = 0
    addresses = resolve(url)
    for address in addresses:
        async with await connect(str(address), reconnect=False) as client:
            answer = await client.command("rules-show")
        lines = differences(parse_rules(answer["text"]), found)
        different = different or int(bool(lines))
        prefix = f"{address} " if len(addresses) > 1 else ""
        for line in lines:
            click.echo(prefix + click.style(line, fg="red" if line[0] == "-" else "green"))
    return different
