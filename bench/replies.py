"""Asking a thousand: how long until the last reply has come, and until that is known.

    python -m bench.replies [--quick] [--rounds N] [--repliers N] [--nodes N]

A tree of 15 nodes, repliers spread over all of them, one client at a leaf that asks. Beside it a
cluster of as many NATS servers, and scatter and gather with nats-py: publish with an inbox for
replies, and take what comes. There nobody says when it was the last one; whoever does not know how
many there are has to wait for silence, here for 300 ms, as its own shell command does.

Repliers are clients in two processes beside the asker, for both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench import report
from bench.dialects import LostError
from bench.network import nats_cluster, planted
from bench.servers import ROOT, AbsentError, Neighbours

TREE = (None, *((n - 1) // 2 for n in range(1, 64)))  # a binary tree
NODES, REPLIERS, ROUNDS, ROUNDS_QUICK = 15, 1000, 15, 5
WORKERS = 2
SILENCE_S = 0.3  # without another reply, for those who have to guess
PATIENCE_S = 60.0
TOPIC = "who"
COMPLETE_MS = 10.0  # from the last reply to the word that it was the last
HEAD = ("who asks", "repliers", "first reply, ms", "last reply, ms", "known, ms", "short", "others")


class Round(NamedTuple):
    """One question: seconds from asking."""

    first: float
    last: float
    known: float  # that it was the last
    replies: int


# -------------------------------------------------------------------------------- repliers


async def _reply_at_nodes(ports: Sequence[int], count: int) -> None:
    from regraft import Client, ReceivedMessage, connect

    async def answer(message: ReceivedMessage) -> None:
        await message.reply(b"here")

    clients: list[Client] = []
    for number in range(count):
        client = await connect(f"127.0.0.1:{ports[number % len(ports)]}")
        await client.subscribe(TOPIC, replies=True, callback=answer)
        clients.append(client)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _reply_at_nats(ports: Sequence[int], count: int) -> None:
    import nats

    clients: list[Any] = []
    for number in range(count):
        client = await nats.connect(f"nats://127.0.0.1:{ports[number % len(ports)]}")

        async def answer(message: Any) -> None:
            await message.respond(b"here")

        await client.subscribe(TOPIC, cb=answer)
        await client.flush()
        clients.append(client)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def repliers(kind: str, ports: Sequence[int], count: int) -> Iterator[None]:
    """Processes that reply, until the block ends."""
    shares = [count // WORKERS + (n < count % WORKERS) for n in range(WORKERS)]
    started: list[subprocess.Popen[str]] = []
    try:
        for number, share in enumerate(shares):
            mine = [*ports[number:], *ports[:number]]
            line = [sys.executable, "-m", "bench.replies", "--reply", kind, "--repliers"]
            line += [str(share), "--ports", ",".join(map(str, mine))]
            pipe = subprocess.PIPE
            started.append(subprocess.Popen(line, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise LostError("the repliers did not begin")
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


# ----------------------------------------------------------------------------------- asking


async def ask_nodes(port: int, count: int, rounds: int) -> list[Round]:
    """Ask the network of nodes; it says itself when all have replied."""
    from regraft import connect

    found = []
    async with await connect(f"127.0.0.1:{port}") as client:
        deadline = time.monotonic() + PATIENCE_S
        while len(await (await client.ask(TOPIC, timeout=10)).all()) < count:
            if time.monotonic() > deadline:
                raise LostError("not all repliers are known")
        for _ in range(rounds):
            began = time.perf_counter()
            first = last = 0.0
            async with await client.ask(TOPIC, timeout=PATIENCE_S) as replies:
                async for _ in replies:
                    last = time.perf_counter()
                    first = first or last
            known = time.perf_counter()
            if not replies.complete:
                raise LostError(f"not complete: {replies.reason}")
            found.append(Round(first - began, last - began, known - began, replies.received))
            await asyncio.sleep(0.05)
    return found


async def ask_nats(port: int, count: int, rounds: int) -> list[Round]:
    """Scatter and gather: nobody says when all have replied."""
    import nats

    found = []
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    for number in range(rounds + 2):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await client.flush()
        began = time.perf_counter()
        first = last = 0.0
        replies = 0
        await client.publish(TOPIC, b"", reply=inbox)
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError, nats.errors.TimeoutError):
            while True:
                await subscription.next_msg(timeout=SILENCE_S)
                last = time.perf_counter()
                first = first or last
                replies += 1
        known = time.perf_counter()
        await subscription.unsubscribe()
        if number >= 2:  # the first ones find connections that are not warm
            found.append(Round(first - began, last - began, known - began, replies))
    await client.close()
    return found


# ------------------------------------------------------------------------------------- main


def measure(kind: str, nodes: int, count: int, rounds: int) -> list[Round]:
    """All rounds with one kind of network."""
    if kind == "regraft":
        with planted("tree", TREE[:nodes]) as network:
            ports = [member.port for member in network.members]
            with repliers(kind, ports, count):
                return asyncio.run(ask_nodes(ports[-1], count, rounds))
    with nats_cluster("cluster", nodes) as network:
        ports = [member.port for member in network.members]
        with repliers(kind, ports, count):
            time.sleep(1.0)  # servers tell each other of subscriptions, and nobody says when
            return asyncio.run(ask_nats(ports[-1], count, rounds))


def row(label: str, count: int, found: Sequence[Round], others: str) -> list[str]:
    def ms(values: Sequence[float]) -> str:
        return report.spread([1000 * value for value in values], 1)

    short = sum(one.replies < count for one in found)
    return [
        label,
        str(count),
        ms([one.first for one in found]),
        ms([one.last for one in found]),
        ms([one.known for one in found]),
        f"{short} of {len(found)}",
        others,
    ]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replies", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--repliers", type=int, default=REPLIERS)
    parser.add_argument("--reply", default="", help=argparse.SUPPRESS)
    parser.add_argument("--ports", default="", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    if options.reply:
        work = _reply_at_nodes if options.reply == "regraft" else _reply_at_nats
        asyncio.run(work([int(port) for port in options.ports.split(",")], options.repliers))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the nodes go, too
    rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    neighbours = Neighbours()
    found: dict[str, list[Round]] = {}
    notes = []
    for kind in ("regraft", "nats"):
        try:
            found[kind] = measure(kind, options.nodes, options.repliers, rounds)
        except (LostError, AbsentError, ModuleNotFoundError) as error:
            notes.append(f"{kind}: nothing was measured: {error}")
    labels = {
        "regraft": f"regraft, {options.nodes} nodes",
        "nats": f"nats-py, {options.nodes} servers",
    }
    rows = [row(labels[kind], options.repliers, each, "") for kind, each in found.items()]
    print(report.table(HEAD[:-1], [one[:-1] for one in rows], 1))
    notes.append(f"nats-py knows that it was the last by {SILENCE_S * 1000:.0f} ms of silence")
    own, other = found.get("regraft", []), found.get("nats", [])
    gap = report.median([1000 * (one.known - one.last) for one in own])
    ratio = report.median([a.known / b.known for a, b in zip(own, other, strict=False)])
    goals = [
        report.at_most("from the last reply to complete", COMPLETE_MS, "ms", gap),
        report.at_most("until it is known, beside nats-py", 1.0, "x", ratio),
    ]
    return report.finish("replies", goals, [*notes, *neighbours.remark()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
