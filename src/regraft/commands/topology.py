"""The tree of nodes as it is now: asked of one node, followed to its neighbours, and drawn.

Rules:

- Nobody knows the whole tree. The node that was asked names its neighbours, those theirs, and so
  on, up to a number of nodes; each has its own time to answer.
- Who does not answer is shown all the same, with the reason, where its neighbours say that it is.
- While the tree changes, nodes contradict each other. What a node says of itself counts more than
  what others say of it, and nothing is drawn twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from regraft.client import connect
from regraft.client.client import Client
from regraft.errors import LocalError, RegraftError

NODES_AT_ONCE = 16
ANSWER_S = 2.0  # for each of the two: to connect, and to answer
WILDCARDS = ("", "0.0.0.0", "::", "[::]")

PICTURE = ("├─ ", "└─ ", "│  ", "   ")
PLAIN_PICTURE = ("|- ", "`- ", "|  ", "   ")


@dataclass(slots=True)
class Seen:
    """What is known of one node."""

    id: str
    name: str = ""
    address: str = ""
    parent: str | None = None
    root: str = ""
    hops: int | None = None
    rtt_us: int | None = None  # to its parent
    clients: int | None = None
    asked: bool = False
    asking: bool = False  # it looks for a place in another tree
    unreachable: str = ""  # why it did not answer
    topology: dict[str, Any] = field(default_factory=dict)  # all that it said


@dataclass(slots=True)
class Tree:
    """The nodes that were found."""

    nodes: dict[str, Seen]
    left_out: int  # known, and not asked

    def roots(self) -> list[Seen]:
        """Those with nobody above them, as far as is known."""
        return [seen for seen in self.nodes.values() if seen.parent not in self.nodes]

    def walk(self) -> Iterator[tuple[Seen, int, tuple[bool, ...]]]:
        """Each node once, parents first: with its depth, and whether it and those above are last.

        Where parents form a circle, which a tree that changes may look like for a moment, it
        begins somewhere.
        """
        below: dict[str, list[Seen]] = {}
        for seen in self.nodes.values():
            if seen.parent in self.nodes:
                below.setdefault(seen.parent or "", []).append(seen)
        for children in below.values():
            children.sort(key=lambda seen: (seen.name, seen.id))
        drawn: set[str] = set()
        for start in [*self.roots(), *self.nodes.values()]:
            stack: list[tuple[Seen, tuple[bool, ...]]] = [(start, ())]
            while stack:
                seen, lasts = stack.pop()
                if seen.id in drawn:
                    continue
                drawn.add(seen.id)
                yield seen, len(lasts), lasts
                children = [child for child in below.get(seen.id, []) if child.id not in drawn]
                for index, child in reversed(list(enumerate(children))):
                    stack.append((child, (*lasts, index == len(children) - 1)))


async def look_around(url: str | None, nodes_max: int) -> Tree:
    """Ask the node at a target, its neighbours, theirs, and so on."""
    async with await connect(url, reconnect=False) as client:
        topology, clients = await _answers(client, None)
    if "id" not in topology:
        raise LocalError("not-supported", "this node takes part in no network of nodes")
    first = _seen(topology, clients, "")
    first.asked = True
    known = {first.id: first}
    waiting = _neighbours(first)
    at_once = asyncio.Semaphore(NODES_AT_ONCE)
    while waiting:
        wave = {id: address for id, address in waiting.items() if id not in known}
        wave = dict(list(wave.items())[: max(0, nodes_max - len(known))])
        if not wave:
            break
        found = await asyncio.gather(*(_ask(*who, at_once) for who in wave.items()))
        known |= {seen.id: seen for seen in found}
        for seen in found:
            waiting |= _neighbours(seen)
    _complete(known)
    return Tree(known, sum(id not in known for id in waiting))


async def _answers(client: Client, timeout: float | None) -> tuple[dict[str, Any], int]:
    """Its place, and how many clients it has besides this one."""
    patience = timeout or 10.0
    topology, node = await asyncio.gather(
        client.inspect("topology", timeout=patience), client.inspect("node", timeout=patience)
    )
    return topology, max(0, int(node.get("sessions", 1)) - 1)


async def _ask(id: str, address: str, at_once: asyncio.Semaphore) -> Seen:
    async with at_once:
        try:
            client = await connect(address, reconnect=False, connect_timeout=ANSWER_S)
            async with client:
                topology, clients = await _answers(client, ANSWER_S)
        except RegraftError as error:
            return Seen(id, address=address, unreachable=_reason(error))
    if topology.get("id") != id:
        other = str(topology.get("name", "")) or "another node"
        return Seen(id, address=address, unreachable=f"{other} answers there")
    return _seen(topology, clients, address)


def _reason(error: RegraftError) -> str:
    """The part of a sentence that is not said yet."""
    text = error.text.partition("; start one")[0]
    if "(" in text and text.endswith(")"):
        text = text.partition("(")[2][:-1]
    return text


def _seen(topology: dict[str, Any], clients: int, address: str) -> Seen:
    own = str(topology.get("address", ""))
    if own.rpartition(":")[0] in WILDCARDS:
        own = address or own
    return Seen(
        id=str(topology["id"]),
        name=str(topology.get("name", "")),
        address=own,
        parent=topology.get("parent"),
        root=str(topology.get("root", "")),
        hops=topology.get("hops"),
        clients=clients,
        asking=bool(topology.get("asking")),
        topology=topology,
    )


def links_of(topology: dict[str, Any]) -> list[dict[str, Any]]:
    """The neighbours that a node names."""
    return [link for link in topology.get("links", ()) if link.get("node")]


def _neighbours(seen: Seen) -> dict[str, str]:
    return {str(link["node"]): str(link["address"]) for link in links_of(seen.topology)}


def _complete(known: dict[str, Seen]) -> None:
    """What others say of nodes that do not say it themselves, and round-trip times."""
    for seen in known.values():
        for link in links_of(seen.topology):
            other = known.get(str(link["node"]))
            if other is None:
                continue
            rtt_us = link.get("rtt_us")
            if link.get("parent"):
                seen.rtt_us = rtt_us or seen.rtt_us
                if other.unreachable and other.hops is None and seen.hops:
                    other.hops = seen.hops - 1
            else:
                if other.unreachable and other.parent is None:
                    other.parent = seen.id
                    other.hops = None if seen.hops is None else seen.hops + 1
                if other.parent == seen.id:
                    other.rtt_us = other.rtt_us or rtt_us


# ---------------------------------------------------------------------------- showing


def draw(tree: Tree, picture: Iterable[str] = PICTURE) -> list[str]:
    """The tree as lines, with a line of names above it."""
    branch, last, through, empty = picture
    rows = [("node", "id", "address", "hops", "rtt", "clients", "")]
    for seen, depth, lasts in tree.walk():
        lead = "".join(empty if ended else through for ended in lasts[:-1])
        lead += (last if lasts[-1] else branch) if depth else ""
        rows.append(
            (
                lead + (seen.name or "?"),
                seen.id[:8],
                seen.address,
                "" if seen.hops is None else str(seen.hops),
                "" if seen.rtt_us is None else _milliseconds(seen.rtt_us),
                "" if seen.clients is None else str(seen.clients),
                _remark(seen),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _milliseconds(us: int) -> str:
    return f"{us / 1000:.2f} ms" if us < 10_000 else f"{us / 1000:.0f} ms"


def _remark(seen: Seen) -> str:
    if seen.unreachable:
        return f"unreachable: {seen.unreachable}"
    remarks = ["<- asked"] if seen.asked else []
    if seen.asking:
        remarks.append("looks for a place")
    return ", ".join(remarks)


def summary(tree: Tree) -> str:
    """What there is, in one line."""
    nodes = tree.nodes.values()
    parts = [f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"]
    if unreachable := sum(bool(seen.unreachable) for seen in nodes):
        parts.append(f"{unreachable} of them unreachable from here")
    if (roots := len(tree.roots())) > 1:
        parts.append(f"{roots} trees: it is changing, or a node between them did not answer")
    if tree.left_out:
        parts.append(f"{tree.left_out} more not asked (--rows)")
    return ", ".join(parts)


def as_data(tree: Tree) -> dict[str, Any]:
    """The same for programs: parents before those below them."""
    asked = next(seen.id for seen in tree.nodes.values() if seen.asked)
    nodes = [asdict(seen) for seen, _, _ in tree.walk()]
    return {
        "asked": asked,
        "trees": max(1, len(tree.roots())),
        "left_out": tree.left_out,
        "nodes": nodes,
    }
