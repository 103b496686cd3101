"""A publisher and a subscriber at every node, and an account of every message.

A message says who published it, over which of its connections, and its number. So everything can be
told apart: what came twice, what came out of order, and what never came.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from network.cluster import PATIENCE_S, Cluster
from regraft import Client, Disconnection, Options, RegraftError, connect
from regraft.client import Subscription

TOPIC = "crowd"
RATE = 50  # messages a second of each publisher
PAUSE_S = 1.0
IN_FLIGHT_S = 1.0  # what was published so long before a failure may still be under way then
KNOWN_S = 1.0  # after which all nodes know of a new subscription

Span = tuple[float, float]


class Receipt(NamedTuple):
    """A message that came."""

    life: int  # of its publisher: which connection
    number: int


class Member:
    """A client that goes elsewhere when its node ends, and when it did so."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.moves: list[Span] = []
        self._left = 0.0
        client.on_disconnect(self._disconnected)
        client.on_reconnect(self._reconnected)

    def _disconnected(self, event: Disconnection) -> None:
        self._left = time.monotonic()

    def _reconnected(self) -> None:
        self.moves.append((self._left - IN_FLIGHT_S, time.monotonic() + KNOWN_S))


class Publisher(Member):
    """Publishes 1, 2, 3, ... until it is told to stop."""

    def __init__(self, name: str, client: Client) -> None:
        super().__init__(name, client)
        self.times: list[float] = [0.0]  # when each was published; numbers begin with 1

    @property
    def life(self) -> int:
        """Which of its connections this is."""
        return len(self.moves)

    @property
    def last(self) -> int:
        """The last number."""
        return len(self.times) - 1

    async def publish(self) -> None:
        """One more."""
        self.times.append(time.monotonic())
        body = f"{self.name} {self.life} {self.last}"
        with suppress(RegraftError):  # it counts as published; what was lost is seen there
            await self.client.publish(f"{TOPIC}/{self.name}", body, timeout=PATIENCE_S)

    async def run(self) -> None:
        """Publish at its rate."""
        while True:
            await self.publish()
            await asyncio.sleep(1 / RATE)


class Subscriber(Member):
    """Takes everything, and remembers it by publisher."""

    def __init__(self, name: str, client: Client) -> None:
        super().__init__(name, client)
        self.got: dict[str, list[Receipt]] = defaultdict(list)
        self.last: dict[str, int] = defaultdict(int)
        self.missed = 0
        client.on_missed(self._missed)

    def _missed(self, messages: int, reason: str) -> None:
        self.missed += messages

    async def run(self, subscription: Subscription) -> None:
        """Take messages until it is over."""
        async for message in subscription:
            publisher, life, number = message.text().split()
            self.got[publisher].append(Receipt(int(life), int(number)))
            self.last[publisher] = max(self.last[publisher], int(number))

    def numbers(self, publisher: str) -> set[int]:
        """What came from one."""
        return {receipt.number for receipt in self.got[publisher]}


class Crowd:
    """All of them. Use it as a context: publishers are at work as long as it lasts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.publishers: dict[str, Publisher] = {}
        self.subscribers: dict[str, Subscriber] = {}
        self._clients: list[Client] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []
        self._since = 0.0

    async def __aenter__(self) -> Crowd:
        for node in self._cluster.nodes:
            publisher, subscriber = await self._client(node.name), await self._client(node.name)
            self.publishers[node.name] = Publisher(node.name, publisher)
            self.subscribers[node.name] = Subscriber(node.name, subscriber)
            subscription = await subscriber.subscribe(f"{TOPIC}/#")
            self._spawn(self._tasks, self.subscribers[node.name].run(subscription))
        for one in self.publishers.values():
            self._spawn(self._working, one.run())
        await self.flows()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._working, *self._tasks]:
            task.cancel()
        await asyncio.gather(*self._working, *self._tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _client(self, name: str) -> Client:
        """At its node first; elsewhere if that is gone."""
        others = [node.url for node in self._cluster.nodes if node.name != name]
        target = ",".join([self._cluster[name].url, *others])
        options = Options(connect_timeout=2.0 * (1 + len(others)), reconnect_delay_max=0.2)
        client = await connect(target, options)
        self._clients.append(client)
        return client

    @staticmethod
    def _spawn(tasks: list[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.create_task(work))

    def begin(self) -> None:
        """From now on it counts."""
        self._since = time.monotonic()

    # ------------------------------------------------------------------------ waiting

    async def flows(self, among: Iterable[str] = (), within: float = PATIENCE_S) -> float:
        """Wait until what is published from now on reaches everybody; when that was."""
        names = list(among) or list(self.publishers)
        began = time.monotonic()
        goal = {name: self.publishers[name].last + 1 for name in names}
        while time.monotonic() - began < within:
            missing = [
                f"{publisher}->{subscriber}"
                for publisher in names
                for subscriber in names
                if self.subscribers[subscriber].last[publisher] < goal[publisher]
            ]
            if not missing:
                print(f"everything flows after {time.monotonic() - began:.2f} s")
                return time.monotonic()
            await asyncio.sleep(0.02)
        raise AssertionError(
            f"nothing flows {', '.join(missing)} after {within} s\n{self._cluster.logs()}"
        )

    async def finish(self) -> None:
        """Publish no more, and wait for what is on its way."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await asyncio.gather(*(one.client.flush(PATIENCE_S) for one in self.publishers.values()))
        await self.quiet()

    async def quiet(self) -> None:
        """Nothing comes any more, or the last of everybody is there."""
        deadline = time.monotonic() + PATIENCE_S
        still = 0.0
        before = -1
        while still < PAUSE_S and time.monotonic() < deadline:
            if all(
                subscriber.last[name] >= publisher.last
                for subscriber in self.subscribers.values()
                for name, publisher in self.publishers.items()
            ):
                return
            count = sum(len(got) for one in self.subscribers.values() for got in one.got.values())
            still = still + 0.05 if count == before else 0.0
            before = count
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------------------ checking

    def check(self, allowed: Callable[[Publisher, Subscriber], Sequence[Span]]) -> None:
        """Nothing twice, all in order, and nothing lost but what may be.

        `allowed` are the times in which messages of a publisher may be lost to a subscriber.
        """
        lost: dict[str, int] = {}
        complaints = []
        spared = 0
        for publisher in self.publishers.values():
            for subscriber in self.subscribers.values():
                pair = f"{publisher.name}->{subscriber.name}"
                complaints += _offences(publisher, subscriber, pair)
                spans = allowed(publisher, subscriber)
                spared += not spans
                gone = self._lost(publisher, subscriber)
                bad = [n for n in gone if not any(a <= publisher.times[n] <= b for a, b in spans)]
                if gone:
                    lost[pair] = len(gone)
                if bad:
                    complaints.append(f"{pair} lost {_shown(bad, publisher)}; allowed was {spans}")
        published = sum(one.last for one in self.publishers.values())
        print(f"{published} published, {spared} pairs unharmed, lost to others: {lost}")
        assert not complaints, "\n".join([*complaints, self._cluster.logs()])

    def _lost(self, publisher: Publisher, subscriber: Subscriber) -> list[int]:
        """What was published since it counts, and did not come."""
        got = subscriber.numbers(publisher.name)
        return [
            number
            for number in range(1, publisher.last + 1)
            if number not in got and publisher.times[number] >= self._since
        ]


def _offences(publisher: Publisher, subscriber: Subscriber, pair: str) -> list[str]:
    """What came twice, or out of order."""
    receipts = subscriber.got[publisher.name]
    found = []
    counts = Counter(receipt.number for receipt in receipts)
    twice = sorted(number for number, count in counts.items() if count > 1)
    if twice:
        found.append(f"{pair} got twice: {_shown(twice, publisher)}")
    lives: dict[int, int] = {}
    for receipt in receipts:  # of one connection in order, whatever another one sent meanwhile
        if receipt.number < lives.get(receipt.life, 0):
            found.append(f"{pair} got {receipt} behind {lives[receipt.life]}")
        lives[receipt.life] = receipt.number
    return found


def _shown(numbers: list[int], publisher: Publisher) -> str:
    first, last = publisher.times[numbers[0]], publisher.times[numbers[-1]]
    return f"{len(numbers)} from {numbers[0]} to {numbers[-1]} ({first:.2f} to {last:.2f})"
