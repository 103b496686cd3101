"""Branches of a running network are moved, one after the other, while everybody talks.

REGRAFT_MOVES=200 makes it so many.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random
from subprocess import PIPE, STDOUT
from sys import executable

from network.cluster import Cluster, Topologies, paths
from network.crowd import Crowd
from network.flood import Flooding
from network.test_network import NODES, STORY_S, tell
from regraft import Client, connect
from regraft.errors import RegraftError

MOVED_S = 15.0
MOVE_S = 6.0  # for one of many, on average


def possible(found: Topologies) -> list[tuple[str, str, str, list[str]]]:
    """Every move that can be made: who, from where, to where, and by whom."""
    ways = paths(found)
    ids = {topology["id"]: name for name, topology in found.items()}
    moves = []
    for mover, topology in found.items():
        parent = ids.get(topology["parent"])
        for target in found:
            if parent and target not in (mover, parent) and ways[mover, target][1] == parent:
                moves.append((mover, parent, target, ways[parent, target]))
    return moves


async def move(cluster: Cluster, random: Random) -> None:
    """One of them, at random."""
    found = await cluster.one_tree()
    mover, _, target, way = random.choice(possible(found))
    ids = [found[name]["id"] for name in way]
    async with await connect(cluster[mover].url, reconnect=False) as client:
        async with asyncio.timeout(MOVED_S):
            while not await moves(client, cluster[target].address, ids):
                await asyncio.sleep(0.05)  # the one before it is not quite over
        now = await client.inspect("topology")
    assert now["parent"] == found[target]["id"]


async def moves(client: Client, address: str, way: list[str]) -> bool:
    """Whether a node moved when it was told to."""
    before = (await client.inspect("topology"))["moves"]
    try:
        await client.command("link-move", address=address, way=way)
    except RegraftError as error:
        assert error.code.name == "not-in-the-network", error
        return False
    while (now := (await client.inspect("topology"))["moves"])["moved"] == before["moved"]:
        if now["stayed"] != before["stayed"]:
            print(f"it stays: {now['why']}")
            return False
        await asyncio.sleep(0.01)
    return True


def move_under_load(folder: Path, moves: int) -> None:
    """One move after the other, while everybody says as much as the others can take."""

    async def whole() -> None:
        random = Random(moves)
        async with asyncio.timeout(STORY_S + MOVE_S * moves):
            await cluster.all_there()
            await cluster.one_tree()
            async with Flooding(cluster) as flood:
                for number in range(moves):
                    began = time.monotonic()
                    await move(cluster, random)
                    print(f"move {number + 1} after {time.monotonic() - began:.2f} s")
                    flood.check()
                await flood.end()

    cluster = Cluster.on_loopback(folder, NODES)
    with cluster:
        asyncio.run(whole())


def test_nobody_notices_that_branches_move(tmp_path: Path) -> None:
    move_under_load(tmp_path, int(os.environ.get("REGRAFT_MOVES", "12")))


async def shell(cluster: Cluster, *words: str) -> tuple[int | None, str]:
    """`regraft link move`, and what it said."""
    url = cluster.nodes[0].url
    process = await asyncio.create_subprocess_exec(
        *(executable, "-m", "regraft", "link", "move", *words, "--url", url),
        stdout=PIPE,
        stderr=STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


def test_the_command(tmp_path: Path) -> None:
    """It says what it would do, does it, and refuses what makes no sense."""

    async def story(cluster: Cluster, crowd: Crowd) -> None:
        found = await cluster.one_tree()
        mover, parent, target, way = possible(found)[0]
        old, new = f"{parent}-{mover}", f"{mover}-{target}"
        code, said = await shell(cluster, old, new, "--dry-run")
        assert code == 0 and f"would move {mover} from below {parent} to below {target}" in said
        assert f"touched: {', '.join([mover, *way])}\n" in said
        assert (await cluster.one_tree())[mover]["parent"] == found[parent]["id"]
        code, said = await shell(cluster, old, new)
        assert (code, said) == (0, f"moved {mover} from below {parent} to below {target}\n")
        assert (await cluster.one_tree())[mover]["parent"] == found[target]["id"]
        code, said = await shell(cluster, old, new)
        assert code and "have no link" in said
        code, said = await shell(cluster, new, f"{parent}-{target}")
        assert code and "that is a ring" in said
        await turn_round(cluster)
        await crowd.finish()
        crowd.check(lambda publisher, subscriber: [])

    tell(Cluster.on_loopback(tmp_path, NODES), story)


def edges(found: Topologies) -> set[frozenset[str]]:
    ids = {topology["id"]: name for name, topology in found.items()}
    links = [(name, ids.get(topology["parent"])) for name, topology in found.items()]
    return {frozenset((one, other)) for one, other in links if other}


async def turn_round(cluster: Cluster) -> None:
    """The new link ends below the lower end of the old one: that branch gets another top."""
    found = await cluster.one_tree()
    ids = {topology["id"]: name for name, topology in found.items()}
    mover, parent, target, _ = next(one for one in possible(found) if found[one[0]]["children"])
    below = ids[found[mover]["children"][0]]
    code, said = await shell(cluster, f"{parent}-{mover}", f"{below}-{target}")
    assert code == 0, said
    assert said.splitlines() == [
        f"moved {below} from below {mover} to below {target}",
        f"moved {mover} from below {parent} to below {below}",
    ]
    after = edges(await cluster.one_tree())
    lost, made = frozenset((parent, mover)), frozenset((below, target))
    assert after == edges(found) - {lost} | {made}
