"""`regraft bench`: how fast is the node that I have, from here?"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass

import click

from regraft.client import Client, Subscription, connect
from regraft.commands.common import run, url_option


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured."""

    messages: int
    size: int
    seconds: float
    published_per_second: int
    delivered_per_second: int
    megabytes_per_second: float
    round_trip_us_p50: int
    round_trip_us_p99: int


@click.command()
@click.option(
    "-n",
    "--messages",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="How many messages to send.",
)
@click.option(
    "--size",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="How long each body is.",
)
@click.option(
    "--subscribers",
    type=click.IntRange(0, 1000),
    default=1,
    show_default=True,
    help="How many clients receive them.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@url_option
def bench(messages: int, size: int, subscribers: int, as_json: bool, url: str | None) -> None:
    """Measure a running node from this process: throughput, then round trips.

    The publisher and all subscribers share this one process and its core; a node can do
    several times as much. For comparisons with other systems see bench/README.md.
    """
    sys.exit(run(_bench(messages, size, subscribers, as_json, url)))


async def _bench(messages: int, size: int, subscribers: int, as_json: bool, url: str | None) -> int:
    topic = f"regraft-bench/{os.getpid()}"
    publisher = await connect(url)
    clients = [await connect(url) for _ in range(subscribers)]
    try:
        subscriptions = [await client.subscribe(topic, exact=True) for client in clients]
        seconds, delivered = await _throughput(publisher, subscriptions, topic, messages, size)
        trips = await _round_trips(publisher, topic + "/trip")
    finally:
        for client in (publisher, *clients):
            await client.close()
    result = Result(
        messages,
        size,
        round(seconds, 3),
        round(messages / seconds),
        round(delivered / seconds),
        round((messages + delivered) * size / seconds / 1e6, 1),
        trips[len(trips) // 2],
        trips[len(trips) * 99 // 100],
    )
    if as_json:
        click.echo(json.dumps(asdict(result)))
        return 0
    click.echo(f"{messages:,} messages of {size} bytes to {subscribers} in {seconds:.2f} s")
    click.echo(f"  published  {result.published_per_second:>12,} /s")
    click.echo(f"  delivered  {result.delivered_per_second:>12,} /s")
    click.echo(f"  bodies     {result.megabytes_per_second:>12,} MB/s, in and out")
    click.echo(
        f"  round trip {result.round_trip_us_p50:>12,} µs (p99 {result.round_trip_us_p99:,} µs)"
    )
    return 0


async def _throughput(
    publisher: Client, subscriptions: list[Subscription], topic: str, messages: int, size: int
) -> tuple[float, int]:
    async def receive(subscription: Subscription) -> int:
        left = messages
        async for batch in subscription.batches():
            left -= len(batch)
            if left <= 0:
                break
        return messages - left

    tasks = [asyncio.create_task(receive(subscription)) for subscription in subscriptions]
    begun = time.perf_counter()
    body = bytes(size)
    sent = 0
    with click.progressbar(
        length=messages, file=sys.stderr, label="publishing", hidden=not sys.stderr.isatty()
    ) as progress:
        while sent < messages:
            count = min(1000, messages - sent)
            await publisher.publish_many(topic, [body] * count)
            sent += count
            progress.update(count)
            await asyncio.sleep(0)
    await publisher.flush()
    delivered = sum(await asyncio.gather(*tasks))
    return time.perf_counter() - begun, delivered


async def _round_trips(client: Client, topic: str, count: int = 500) -> list[int]:
    subscription = await client.subscribe(topic, exact=True)
    trips = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        await client.publish(topic, b"")
        await subscription.next(timeout=10)
        trips.append((time.perf_counter_ns() - begun) // 1000)
    return sorted(trips)
