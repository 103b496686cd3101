"""`regraft link`: change the place of a running node in the tree, by hand."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from regraft.client import connect
from regraft.client.address import parse_address
from regraft.client.client import Client
from regraft.commands.common import run, url_option
from regraft.commands.link_move import move
from regraft.commands.topology import links_of
from regraft.errors import LocalError, RegraftError, WorldError

LOOK_S = 0.05  # between looks at what became of it
NAME_S = 1.0  # for a neighbour to say its name
PREFIX_MIN = 4  # characters of an id that are enough to be meant as one


@click.group()
def link() -> None:
    """Change the place of a node in the tree, by hand.

    \b
    Put the node of this machine below another one:
        regraft link add 10.0.0.7:7447
    End its link to a neighbour; each side then finds another place:
        regraft link remove harbour
    Let one link take the place of another, and nothing get lost:
        regraft link move harbour-crane1 yard-crane1

    Nodes find and keep a place by themselves: see regraft serve --join.
    """


link.add_command(move)


@link.command()
@click.argument("address")
@click.option("--timeout", type=float, default=10.0, metavar="SECONDS", show_default=True,
              help="How long to wait until it is done; 0: not at all.")  # fmt: skip
@url_option
def add(address: str, timeout: float, url: str | None) -> None:
    """Attach the node at --url below the node at ADDRESS.

    It leaves the parent that it has, with all that is below it. If the node at
    ADDRESS refuses, or does not answer, it looks for a place elsewhere, and
    the exit code is 1.

    \b
    Put the node of this machine below 10.0.0.7:
        regraft link add 10.0.0.7:7447
    The same for another node:
        regraft link add 10.0.0.7:7447 --url 10.0.0.9:7447
    """
    sys.exit(run(_add(str(parse_address(address)), timeout, url)))


async def _add(address: str, timeout: float, url: str | None) -> int:
    async with await connect(url, reconnect=False) as client:
        before = _parent(await client.inspect("topology"))
        await client.command("link-add", address=address)
        if not timeout:
            click.echo(f"{client.node_name} asks {address} for a place")
            return 0
        parent = await _changed(client, before, timeout)
        if parent is None:
            raise WorldError(
                "timed-out",
                f"{client.node_name} found no place below {address} within {timeout:g} s; "
                "see `regraft inspect topology`, and its log for the reason",
            )
        who = await _described(parent)
        if not await _is_at(address, parent):
            raise WorldError(
                "unreachable",
                f"{address} did not take {client.node_name}, or did not answer; "
                f"it is below {who} now",
            )
        click.echo(f"{client.node_name} is below {who}")
    return 0


async def _is_at(address: str, neighbour: dict[str, Any]) -> bool:
    """Whether a neighbour is the node at an address, which may be another one of its own."""
    if neighbour["address"] == address:
        return True
    try:
        async with await connect(address, reconnect=False, connect_timeout=NAME_S) as client:
            found = await client.inspect("node", timeout=NAME_S)
    except RegraftError:
        return False
    return bool(found.get("id") == neighbour["node"])


async def _changed(
    client: Client, before: dict[str, Any] | None, timeout: float
) -> dict[str, Any] | None:
    """The link to a new parent, once there is one."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                parent = _parent(await client.inspect("topology"))
                if parent and (not before or parent["connection"] != before["connection"]):
                    return parent
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return None


def _parent(topology: dict[str, Any]) -> dict[str, Any] | None:
    if "id" not in topology:
        raise LocalError("not-supported", "this node takes part in no network of nodes")
    return next((one for one in links_of(topology) if one.get("parent")), None)


async def _described(neighbour: dict[str, Any]) -> str:
    name = await _name(neighbour)
    return f"{name} ({neighbour['address']})" if name else str(neighbour["address"])


async def _name(neighbour: dict[str, Any]) -> str:
    """What a neighbour is called, if it answers."""
    if neighbour.get("name"):
        return str(neighbour["name"])
    try:
        address = str(neighbour["address"])
        async with await connect(address, reconnect=False, connect_timeout=NAME_S) as client:
            return client.node_name
    except RegraftError:
        return ""


# ------------------------------------------------------------------------------ remove


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The neighbours, for the shell; none if the node does not answer at once."""

    async def look() -> list[CompletionItem]:
        url = ctx.params.get("url")
        async with await connect(url, reconnect=False, connect_timeout=NAME_S) as client:
            links = links_of(await client.inspect("topology", timeout=NAME_S))
        names = await asyncio.gather(*map(_name, links))
        return [
            CompletionItem(name or one["node"][:8], help=one["address"])
            for name, one in zip(names, links, strict=True)
            if (name or one["node"]).startswith(incomplete)
        ]

    try:
        return asyncio.run(look())
    except (RegraftError, OSError):
        return []


@link.command()
@click.argument("node", shell_complete=_complete)
@url_option
def remove(node: str, url: str | None) -> None:
    """End the link between the node at --url and its neighbour NODE.

    NODE is the neighbour's name, the beginning of its id, or its address. The
    lower one of the two looks for another place; for a while it is not taken
    back here.

    \b
    Examples:
        regraft link remove harbour
        regraft link remove 5625da5a
        regraft link remove 10.0.0.7:7447 --url 10.0.0.9:7447
    """
    sys.exit(run(_remove(node, url)))


async def _remove(text: str, url: str | None) -> int:
    async with await connect(url, reconnect=False) as client:
        topology = await client.inspect("topology")
        _parent(topology)  # or it says what is wrong
        neighbour, name = await _find(text, links_of(topology), client.node_name)
        await client.command("link-remove", node=neighbour["node"])
        who = f"{name} ({neighbour['address']})" if name else str(neighbour["address"])
        click.echo(f"{client.node_name} ended its link to {who}")
    return 0


async def _find(text: str, links: list[dict[str, Any]], me: str) -> tuple[dict[str, Any], str]:
    """The neighbour that is meant, and its name."""
    if not links:
        raise LocalError("bad-message", f"{me} has no neighbours")
    names = await asyncio.gather(*map(_name, links))
    both = list(zip(links, names, strict=True))
    meant = [pair for pair in both if text in (pair[0]["address"], pair[0]["node"])]
    meant = meant or [pair for pair in both if pair[1] == text]
    if not meant and len(text) >= PREFIX_MIN:
        meant = [pair for pair in both if pair[0]["node"].startswith(text.lower())]
    if len(meant) == 1:
        return meant[0]
    shown = ", ".join(
        f"{name or '?'} {one['node'][:8]} {one['address']}" for one, name in meant or both
    )
    if meant:
        raise LocalError("bad-message", f"{text!r} may be several neighbours of {me}: {shown}")
    raise LocalError("bad-message", f"{text!r} is no neighbour of {me}; it has {shown}")
