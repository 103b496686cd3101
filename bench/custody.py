"""What persistent messages cost on their way to a mailbox at another node, by hop.

    python -m bench.custody [--messages N] [--size BYTES] [--rounds N]

Nodes stand in a line. At the first one messages are published, at another there is a mailbox for
them, or a live subscriber; what is measured is the processor time of all nodes until the last one
is kept there and confirmed back, or delivered. A hop is what each of the three links between the
second and the fifth node adds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

from bench import report
from bench.network import Network, planted
from regraft import connect

LINE = (None, 0, 1, 2, 3)
NEAR, FAR = 1, 4
SETTLE_S = 60.0


async def kept(network: Network, home: int, count: int, size: int) -> float:
    """Processor seconds of a persistent message with a mailbox at this node."""
    members = network.members
    name = f"box-{home}-{time.monotonic_ns()}"
    topic = f"kept/{name}"
    async with (
        await connect(members[0].address) as publisher,
        await connect(members[home].address) as reader,
    ):
        durable = await reader.subscribe_durably(name, topic)
        await durable.unsubscribe()
        await asyncio.sleep(1.0)  # everybody knows of it
        before = network.cpu_seconds()
        await publisher.publish_many(topic, [b"." * size] * count, persistent=True, confirm=True)
        deadline = time.monotonic() + SETTLE_S
        while True:
            rows = (await publisher.inspect("custody"))["rows"]
            if not any(row.get("waiting") for row in rows):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{rows}")
            await asyncio.sleep(0.02)
        spent = network.cpu_seconds() - before
        await reader.remove_queue(name)
    return spent / count


async def live(network: Network, home: int, count: int, size: int) -> float:
    """The same of one that is not persistent, with a live subscriber there."""
    members = network.members
    topic = f"live/{time.monotonic_ns()}"
    async with (
        await connect(members[0].address) as publisher,
        await connect(members[home].address) as reader,
    ):
        subscription = await reader.subscribe(topic)
        await asyncio.sleep(1.0)
        before = network.cpu_seconds()
        await publisher.publish_many(topic, [b"." * size] * count, confirm=True)
        seen = 0
        while seen < count:
            seen += len(await subscription.next_batch(SETTLE_S))
        return (network.cpu_seconds() - before) / count


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.custody", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    found: dict[tuple[str, int], list[float]] = {}
    with planted("line of 5", LINE) as network:
        for _ in range(options.rounds):
            for home in (NEAR, FAR):
                for label, measure in (("persistent", kept), ("not persistent", live)):
                    cost = asyncio.run(measure(network, home, options.messages, options.size))
                    found.setdefault((label, home), []).append(cost * 1e6)
    rows = []
    for label in ("persistent", "not persistent"):
        near = statistics.median(found[label, NEAR])
        far = statistics.median(found[label, FAR])
        rows.append([label, f"{near:.2f}", f"{far:.2f}", f"{(far - near) / (FAR - NEAR):.2f}"])
    head = ("messages", "µs cpu/msg, 1 link", "µs cpu/msg, 4 links", "µs cpu/hop")
    print(report.table(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
