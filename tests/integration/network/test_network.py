"""Nodes that die, hang, and are restarted, under load."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import PIPE, STDOUT

from faults import need

from network import namespaces
from network.cluster import START_S, Cluster, Node, Topologies, inner_of, leaf_of, paths, root_of
from network.crowd import IN_FLIGHT_S, Crowd, Publisher, Span, Subscriber
from network.namespaces import Cable

NODES = 6
PORT = 7447  # of nodes that have a network of their own; the first is one above
HEAL_S = 20.0  # roots look for other trees every five seconds
REPAIR_S = 10.0  # until there is one tree again; usually it is a fraction of a second
STORY_S = 180.0  # a process may take long to start on a busy machine

Allowed = Callable[[Publisher, Subscriber], list[Span]]


def tell(cluster: Cluster, story: Callable[[Cluster, Crowd], Awaitable[None]]) -> None:
    """A cluster, a crowd, and what happens to them."""

    async def whole() -> None:
        async with asyncio.timeout(STORY_S):
            await cluster.all_there()
            await cluster.one_tree()
            async with Crowd(cluster) as crowd:
                crowd.begin()
                await asyncio.sleep(0.5)
                await story(cluster, crowd)

    with cluster:
        asyncio.run(whole())


def harmed(found: Topologies, failed: list[str], span: Span) -> Allowed:
    """Only those may lose something whose way leads through these nodes, and only then."""
    ways = paths(found)

    def allowed(publisher: Publisher, subscriber: Subscriber) -> list[Span]:
        return [span] if set(ways[publisher.name, subscriber.name]) & set(failed) else []

    return allowed


async def live_without(cluster: Cluster, crowd: Crowd, victim: str) -> None:
    """One is killed; the others are one tree soon, and it comes back."""
    before = await cluster.one_tree()
    rest = [name for name in cluster.names if name != victim]
    struck = time.monotonic()
    cluster[victim].kill()
    await cluster.one_tree(rest, REPAIR_S)
    healed = await crowd.flows(within=REPAIR_S)  # its clients found another node
    cluster[victim].start()
    await cluster.all_there()
    await cluster.one_tree(within=REPAIR_S)
    await asyncio.sleep(0.5)
    await crowd.finish()
    crowd.check(harmed(before, [victim], (struck - IN_FLIGHT_S, healed)))


def test_an_inner_node_is_killed(tmp_path: Path) -> None:
    async def story(cluster: Cluster, crowd: Crowd) -> None:
        await live_without(cluster, crowd, inner_of(await cluster.one_tree()))

    tell(Cluster.on_loopback(tmp_path, NODES), story)


def test_the_root_is_killed(tmp_path: Path) -> None:
    async def story(cluster: Cluster, crowd: Crowd) -> None:
        await live_without(cluster, crowd, root_of(await cluster.one_tree()))

    tell(Cluster.on_loopback(tmp_path, NODES), story)


def test_a_node_hangs_and_comes_to(tmp_path: Path) -> None:
    async def story(cluster: Cluster, crowd: Crowd) -> None:
        before = await cluster.one_tree()
        victim = inner_of(before)
        rest = [name for name in cluster.names if name != victim]
        struck = time.monotonic()
        cluster[victim].signal(signal.SIGSTOP)
        await cluster.one_tree(rest, REPAIR_S)
        await crowd.flows(rest, within=REPAIR_S)
        cluster[victim].signal(signal.SIGCONT)
        await cluster.one_tree(within=REPAIR_S)
        healed = await crowd.flows(within=REPAIR_S)
        await asyncio.sleep(0.5)
        await crowd.finish()
        crowd.check(harmed(before, [victim], (struck - IN_FLIGHT_S, healed)))

    tell(Cluster.on_loopback(tmp_path, NODES), story)


def test_all_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    """Who is at another node notices nothing: not even if all its messages went by that one."""

    async def story(cluster: Cluster, crowd: Crowd) -> None:
        for node in cluster.nodes:
            asked = time.monotonic()
            node.signal(signal.SIGTERM)
            assert await node.exit_code() == 0, cluster.logs()
            print(f"{node.name} ended after {time.monotonic() - asked:.2f} s")
            node.start()
            await cluster.all_there()
            await cluster.one_tree(within=REPAIR_S)
            await crowd.flows(within=REPAIR_S)
        await crowd.finish()
        crowd.check(lambda _, subscriber: subscriber.moves)

    tell(Cluster.on_loopback(tmp_path, NODES), story)


def test_a_node_is_moved_by_hand(tmp_path: Path) -> None:
    """`link add` and `link remove`: only those lose something whose way led over that link."""

    async def story(cluster: Cluster, crowd: Crowd) -> None:
        before = await cluster.one_tree()
        victim, target = leaf_of(before), root_of(before)
        neighbours = [before[victim]["parent"], before[target]["id"]]
        struck = time.monotonic()
        if neighbours[0] == neighbours[1]:  # it is there already
            await shell("link", "remove", target, "--url", cluster[victim].url)
        else:
            said = await shell("link", "add", cluster[target].address, "-u", cluster[victim].url)
            assert said == f"{victim} is below {target} ({cluster[target].address})\n"
        after = await cluster.one_tree(within=REPAIR_S)
        assert after[victim]["parent"] != neighbours[0]
        healed = await crowd.flows(within=REPAIR_S)
        await asyncio.sleep(0.5)
        await crowd.finish()
        crowd.check(harmed(before, [victim], (struck - IN_FLIGHT_S, healed)))

    tell(Cluster.on_loopback(tmp_path, 4), story)


async def shell(*arguments: str) -> str:
    """What the real command prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "regraft", *arguments, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), START_S)
    assert process.returncode == 0, output
    return output.decode()


def two_sides(folder: Path, wire: Cable) -> Cluster:
    """Half of the nodes on one side of a cable, half on the other."""
    nodes = []
    for number in range(1, NODES + 1):
        side = wire.left if number % 2 else wire.right
        join = [f"{wire.host(wire.left)}:{PORT + 1}", f"{wire.host(wire.right)}:{PORT + 2}"]
        nodes.append(
            Node(
                folder,
                f"n{number}",
                PORT + number,
                wire.host(side),
                arguments=["--join", ",".join(join)],
                prefix=wire.inside(side),
            )
        )
    return Cluster(nodes)


def test_the_network_is_cut_in_two_and_heals(tmp_path: Path) -> None:
    need(namespaces.missing())
    with namespaces.cable() as wire:

        async def story(cluster: Cluster, crowd: Crowd) -> None:
            before = await cluster.one_tree()
            left = [node.name for node in cluster.nodes if wire.host(wire.left) in node.address]
            right = [name for name in cluster.names if name not in left]
            struck = time.monotonic()
            wire.pull()
            for side in (left, right):
                await cluster.one_tree(side, REPAIR_S)
                await crowd.flows(side, within=REPAIR_S)
            await asyncio.sleep(1.0)
            wire.plug()
            await cluster.one_tree(within=HEAL_S)
            healed = await crowd.flows(within=REPAIR_S)
            await asyncio.sleep(0.5)
            await crowd.finish()
            crowd.check(crossed(before, left, (struck - IN_FLIGHT_S, healed)))

        tell(two_sides(tmp_path, wire), story)


def crossed(found: Topologies, left: list[str], span: Span) -> Allowed:
    """Only those may lose something whose way leads over the cable, and only then."""
    ways = paths(found)

    def allowed(publisher: Publisher, subscriber: Subscriber) -> list[Span]:
        way = ways[publisher.name, subscriber.name]
        return [span] if len({name in left for name in way}) > 1 else []

    return allowed
