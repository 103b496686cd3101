"""Load for a small site: `python load.py [SECONDS] [AT A TIME] [NODES]`.

It asks what a web page asks, and says how many answers came, how fast, and what went wrong: kill
nodes and services meanwhile.
"""

import asyncio
import random
import sys
import time
from collections import Counter

from regraft.errors import RegraftError
from regraft.services import Peer

NODES = "127.0.0.1:7447,127.0.0.1:7448"


async def main(seconds: float, at_a_time: int, nodes: str) -> None:
    """Ask for so long."""
    took: list[float] = []
    failed: Counter[str] = Counter()
    source = random.Random(1)
    async with Peer(nodes, type="WEBSITE") as site:
        until = time.monotonic() + seconds

        async def visitor() -> None:
            while (began := time.monotonic()) < until:
                try:
                    text = source.choice(("s", "sh", "ship", "sto"))
                    await site.query("SEARCH_REQUEST", {"text": text}, timeout=2.0)
                    took.append(time.monotonic() - began)
                except RegraftError as error:
                    failed[error.code.name] += 1

        await asyncio.gather(*(visitor() for _ in range(at_a_time)))
        took.sort()
        if took:
            middle, worst = took[len(took) // 2], took[len(took) * 99 // 100]
            print(f"{len(took) / seconds:,.0f} pages/s; ", end="")
            print(f"p50 {1000 * middle:.1f} ms, p99 {1000 * worst:.1f} ms")
        print(f"{len(took)} answered, {site.counts['repeated']} of them asked twice")
        for name, count in failed.items():
            print(f"{count} failed: {name}")


if __name__ == "__main__":
    given = [*sys.argv[1:], *("10", "20", NODES)[len(sys.argv) - 1 :]]
    asyncio.run(main(float(given[0]), int(given[1]), given[2]))
