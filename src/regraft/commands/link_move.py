"""`regraft link move`: one link takes the place of another, and nobody misses anything."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace

import click

from regraft.client import connect
from regraft.client.client import Client
from regraft.commands.common import run, url_option
from regraft.commands.topology import Seen, Tree, links_of, look_around
from regraft.errors import LocalError, RegraftError, WorldError

LOOK_S = 0.05  # between looks at what became of it
TRIES = 10  # while other moves are in the way
AGAIN_S = 0.2  # between them
BUSY = "not-in-the-network"  # it, or a node on its way, takes part in something else
NODES_MAX = 1000  # that are looked at
PREFIX_MIN = 4  # characters of an id that are enough to be meant as one


@dataclass(frozen=True, slots=True)
class Step:
    """Who goes where, with all that is below it, and by whom that is arranged."""

    mover: Seen
    way: list[Seen]  # from its parent to its next one

    @property
    def text(self) -> str:
        """For people."""
        return f"{_name(self.mover)} from below {_name(self.way[0])} to below {_name(self.way[-1])}"

    @property
    def back(self) -> Step:
        """The same, undone."""
        return Step(self.mover, self.way[::-1])


@dataclass(frozen=True, slots=True)
class Move:
    """What has to be done for one link to take the place of another.

    If the new link ends at the lower end of the old one, that is one step. Otherwise the branch has
    to be turned round: first the end of the new link goes to its place, then who was above it goes
    below it, and so on, and the lower end of the old link is the last one. In between there is
    always one tree.
    """

    upper: Seen  # of the old link
    lower: Seen
    below: int  # nodes that go with it
    steps: list[Step]

    @property
    def touched(self) -> list[Seen]:
        """Who has something to do with it, each once."""
        seen = {one.id: one for step in self.steps for one in (step.mover, *step.way)}
        return list(seen.values())


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--dry-run", is_flag=True, help="Only say who will be touched.")
@click.option("--timeout", type=float, default=20.0, metavar="SECONDS", show_default=True,
              help="How long to wait until it is done.")  # fmt: skip
@url_option
def move(old: str, new: str, dry_run: bool, timeout: float, url: str | None) -> None:
    """Replace the link OLD of the tree by the link NEW, in one go.

    A link is written as its two ends: their names, addresses, or the beginnings
    of their ids, with a hyphen between them. What is below OLD goes with it, so
    one end of NEW has to be there, and the other one elsewhere. The old link is
    drained before the new one takes over, so nothing that anybody publishes is
    lost or comes twice. If the new link does not end where the old one ended,
    the branch is turned round, link by link, each in the same way; what cannot
    be completed is undone.

    \b
    Who would notice?
        regraft link move harbour-crane1 yard-crane1 --dry-run
    Do it:
        regraft link move harbour-crane1 yard-crane1
    """
    sys.exit(run(_move(old, new, dry_run, timeout, url)))


async def _move(old: str, new: str, dry_run: bool, timeout: float, url: str | None) -> int:
    plan = planned(await look_around(url, NODES_MAX), old, new)
    if dry_run:
        links = [one for one in links_of(plan.lower.topology) if one["node"] == plan.upper.id]
        count = sum(int(one.get("received", 0)) + int(one.get("sent", 0)) for one in links)
        for step in plan.steps:
            click.echo(f"would move {step.text}")
        click.echo(f"with {plan.below} nodes below {_name(plan.lower)}")
        click.echo(f"touched: {', '.join(map(_name, plan.touched))}")
        click.echo(f"{count} interests go over the old link, in both directions")
        return 0
    done: list[Step] = []
    for step in plan.steps:
        try:
            await _take(step, timeout)
        except RegraftError:
            await _undo(done, timeout)
            raise
        done.append(step)
        click.echo(f"moved {step.text}")
    return 0


async def _take(step: Step, timeout: float) -> None:
    """One step, and wait until it is done; again, if other moves were in the way."""
    for _ in range(TRIES - 1):
        try:
            return await _try(step, timeout)
        except RegraftError as error:
            if error.code.name != BUSY:
                raise
        await asyncio.sleep(AGAIN_S)
    await _try(step, timeout)


async def _try(step: Step, timeout: float) -> None:
    mover, target = step.mover, step.way[-1]
    async with await connect(mover.address, reconnect=False) as client:
        before = await _outcome(client)
        way = [seen.id for seen in step.way]
        await client.command("link-move", address=target.address, way=way)
        try:
            async with asyncio.timeout(timeout):
                while (now := await _outcome(client))[:2] == before[:2]:
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise WorldError(
                "timed-out",
                f"{_name(mover)} has not moved within {timeout:g} s; see `regraft inspect "
                "topology`, and its log for the reason",
            ) from None
        if now[0] == before[0]:
            raise WorldError(BUSY, f"{_name(mover)} stays where it is: {now[2]}")
        parent = (await client.inspect("topology")).get("parent")
        if parent != target.id:
            raise WorldError("unreachable", f"{_name(target)} did not take {_name(mover)}")


async def _undo(done: list[Step], timeout: float) -> None:
    """Back to where it began, the last step first."""
    for step in reversed(done):
        try:
            await _take(step.back, timeout)
        except RegraftError as error:
            click.echo(f"could not move {step.back.text}: {error.text}", err=True)
            return
        click.echo(f"moved {step.back.text}, as it was")


async def _outcome(client: Client) -> tuple[int, int, str]:
    """How often a node has moved, how often it did not though it was told to, and why."""
    found = (await client.inspect("topology")).get("moves", {})
    return int(found.get("moved", 0)), int(found.get("stayed", 0)), str(found.get("why", ""))


def planned(tree: Tree, old: str, new: str) -> Move:
    """What the two links mean in a tree."""
    lower, upper = _ends(tree, old)
    if lower.parent != upper.id:
        lower, upper = upper, lower
    if lower.parent != upper.id:
        raise LocalError("not-a-neighbour", f"{_name(upper)} and {_name(lower)} have no link")
    ends = _ends(tree, new)
    if lower in ends and upper in ends:
        raise LocalError("bad-message", f"{new} is the link that there is")
    inside = [seen for seen in ends if seen is lower or lower in _above(tree.nodes, seen)]
    if len(inside) != 1:
        where = "above" if not inside else "below"
        raise LocalError(
            "bad-message",
            f"both ends of {new} are {where} {old}: that is a ring, and cuts off what is below",
        )
    target = ends[0] if ends[1] is inside[0] else ends[1]
    steps = _steps(tree, inside[0], lower, target)
    move = Move(
        upper, lower, sum(lower in _above(tree.nodes, o) for o in tree.nodes.values()), steps
    )
    silent = [seen for seen in move.touched if seen.unreachable]
    if silent:
        raise WorldError("unreachable", f"{_name(silent[0])} does not answer")
    return move


def _steps(tree: Tree, first: Seen, last: Seen, target: Seen) -> list[Step]:
    """From one node up to another, each goes below the one before it."""
    nodes = {id: replace(seen) for id, seen in tree.nodes.items()}  # as they will be
    steps = []
    movers = [first, *_above(tree.nodes, first)]
    for mover in movers[: movers.index(last) + 1]:
        way = [tree.nodes[seen.id] for seen in _way(nodes, mover, target)]
        steps.append(Step(mover, way))
        nodes[mover.id].parent = target.id
        target = mover
    return steps


def _way(nodes: dict[str, Seen], mover: Seen, target: Seen) -> list[Seen]:
    """The nodes from its parent to another that is not below the one who moves."""
    up = _above(nodes, nodes[mover.id])
    down = [nodes[target.id], *_above(nodes, nodes[target.id])]
    common = [seen for seen in up if seen in down]
    if not common:
        raise LocalError("bad-message", f"{_name(target)} is in another tree")
    return [*up[: up.index(common[0])], *reversed(down[: down.index(common[0]) + 1])]


def _above(nodes: dict[str, Seen], seen: Seen) -> list[Seen]:
    """Its parent, and so on; a tree that changes may look like a ring."""
    found: list[Seen] = []
    above = nodes.get(seen.parent or "")
    while above is not None and above not in found:
        found.append(above)
        above = nodes.get(above.parent or "")
    return found


def _ends(tree: Tree, text: str) -> tuple[Seen, Seen]:
    """The two nodes of a link; names may have hyphens, too."""
    found = []
    for place in [place for place, letter in enumerate(text) if letter == "-"]:
        one, other = _meant(tree, text[:place]), _meant(tree, text[place + 1 :])
        found += [(a, b) for a in one for b in other if a is not b]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(_name(seen) for seen in tree.nodes.values())[:20])
    why = "may mean several links" if found else "is no pair of nodes: ONE-OTHER"
    raise LocalError("bad-message", f"{text!r} {why}; there are {names}")


def _meant(tree: Tree, text: str) -> list[Seen]:
    nodes = list(tree.nodes.values())
    meant = [seen for seen in nodes if text and text in (seen.name, seen.address, seen.id)]
    if not meant and len(text) >= PREFIX_MIN:
        meant = [seen for seen in nodes if seen.id.startswith(text.lower())]
    return meant


def _name(seen: Seen) -> str:
    return seen.name or seen.id[:8]
