"""As much as goes through: publishers at all nodes that never pause, and an account of everything.

At every node one client publishes what is not persistent and another what is; one takes all of it,
and at two nodes a mailbox takes what is persistent. Numbers of a publisher must come as 1, 2, 3 and
so on to each of them: what is lost, comes twice or overtakes is seen at once. A publisher goes on
when everybody has heard all but its last few messages, so nobody is asked for more than it can
take, and all are busy all the time. They are a process of their own: what the test does besides
should not have to wait for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from network.cluster import PATIENCE_S, Cluster
from regraft import Client, connect
from regraft.client import Subscription

TOPIC = "flood"
WINDOW = 200  # messages of a publisher that not everybody has heard
BURST = 50  # that are published in one go
BODY = "." * 100
COMPLAINTS_MAX = 20


class Voice:
    """Publishes 1, 2, 3, ..., as fast as they are heard."""

    def __init__(self, name: str, client: Client, persistent: bool) -> None:
        self.name = name
        self.said = 0
        self.heard = asyncio.Event()
        self.persistent = persistent
        self._client = client

    async def run(self, flood: Flood) -> None:
        """Until it is told to stop, which it does between two bursts."""
        while not flood.over:
            if self.said - flood.heard(self) > WINDOW - BURST:
                self.heard.clear()
                await self.heard.wait()
                continue
            numbers = range(self.said + 1, self.said + 1 + BURST)
            self.said += BURST
            bodies = [f"{self.name} {number} {BODY}".encode() for number in numbers]
            await self._client.publish_many(TOPIC, bodies, persistent=self.persistent)


class Ear:
    """Hears everything, and remembers the last number of each voice."""

    def __init__(self, name: str, persistent_only: bool = False) -> None:
        self.name = name
        self.persistent_only = persistent_only
        self.last: dict[str, int] = {}
        self.count = 0

    async def run(self, flood: Flood, subscription: Subscription) -> None:
        """Until it is over."""
        async for message in subscription:
            voice, number, _ = message.text().split(" ", 2)
            last = self.last.get(voice, 0)
            if int(number) != last + 1 and len(flood.complaints) < COMPLAINTS_MAX:
                flood.complaints.append(f"{self.name} heard {voice} {number} behind {last}")
            self.last[voice] = int(number)
            self.count += 1
            if int(number) % BURST == 0:
                flood.voices[voice].heard.set()


class Flood:
    """All of them. Use it as a context: it flows as long as that lasts, or until it is ended."""

    def __init__(self, urls: dict[str, str]) -> None:
        self._urls = urls
        self.voices: dict[str, Voice] = {}
        self.ears: list[Ear] = []
        self.complaints: list[str] = []
        self.over = False
        self._clients: list[Client] = []
        self._listening: list[asyncio.Task[None]] = []
        self._speaking: list[asyncio.Task[None]] = []
        self._began = 0.0

    async def __aenter__(self) -> Flood:
        for name, url in self._urls.items():
            ear, client = Ear(name), await self._client(url)
            self._listen(ear.run(self, await client.subscribe(TOPIC)))
            self.ears.append(ear)
        for name, url in list(self._urls.items())[::3]:
            ear, client = Ear(f"box at {name}", True), await self._client(url)
            self._listen(ear.run(self, await client.subscribe_durably("box", TOPIC)))
            self.ears.append(ear)
        await asyncio.sleep(1.0)  # until everybody knows of them
        for name, url in self._urls.items():
            for voice, persistent in ((name, False), (f"{name}p", True)):
                self.voices[voice] = Voice(voice, await self._client(url), persistent)
        self._began = time.monotonic()
        for voice in self.voices.values():
            self._speaking.append(asyncio.create_task(voice.run(self)))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._speaking, *self._listening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients), return_exceptions=True)

    async def _client(self, url: str) -> Client:
        client = await connect(url)
        self._clients.append(client)
        return client

    def _listen(self, work: Coroutine[Any, Any, None]) -> None:
        self._listening.append(asyncio.create_task(work))

    def heard(self, voice: Voice) -> int:
        """What everybody who should has heard."""
        ears = [ear for ear in self.ears if voice.persistent or not ear.persistent_only]
        return min(ear.last.get(voice.name, 0) for ear in ears)

    def failures(self) -> list[str]:
        """What was wrong so far."""
        tasks = [task for task in (*self._speaking, *self._listening) if task.done()]
        failed = [repr(task.exception()) for task in tasks if task.exception() is not None]
        return self.complaints + failed

    async def end(self) -> str:
        """Stop, and wait until all that was said has been heard, by everybody and once."""
        self.over = True
        took = time.monotonic() - self._began
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for voice in self.voices.values():
                voice.heard.set()
            if all(task.done() for task in self._speaking) and not self._missing():
                break
            await asyncio.sleep(0.05)
        self.complaints += self._missing()
        said = sum(voice.said for voice in self.voices.values())
        kept = sum(voice.said for voice in self.voices.values() if voice.persistent)
        heard = sum(ear.count for ear in self.ears)
        rate = said / took
        return f"{said} published in {took:.1f} s ({rate:.0f}/s), {kept} persistent; {heard} heard"

    def _missing(self) -> list[str]:
        return [
            f"{ear.name} has heard {ear.last.get(voice.name, 0)} of {voice.said} of {voice.name}"
            for voice in self.voices.values()
            for ear in self.ears
            if voice.persistent or not ear.persistent_only
            if ear.last.get(voice.name, 0) != voice.said
        ]


async def _flow(urls: dict[str, str], pipe: Connection) -> None:
    async with Flood(urls) as flood:
        pipe.send("it flows")
        while not pipe.poll():
            await asyncio.sleep(0.1)
            if flood.failures():
                break
        pipe.send((await flood.end(), flood.failures()))


def _main(urls: dict[str, str], pipe: Connection) -> None:
    asyncio.run(_flow(urls, pipe))


class Flooding:
    """The process of a flood. Use it as a context."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pipe, far = get_context("spawn").Pipe()
        urls = {node.name: node.url for node in cluster.nodes}
        self._process = get_context("spawn").Process(target=_main, args=(urls, far), daemon=True)

    async def __aenter__(self) -> Flooding:
        self._process.start()
        await self._word()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    async def _word(self) -> Any:
        """What it says next."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while not self._pipe.poll():
                assert self._process.is_alive(), "it has ended"
                await asyncio.sleep(0.05)
        return self._pipe.recv()

    def check(self) -> None:
        """It says something only if it fails."""
        if self._pipe.poll():
            raise AssertionError(f"{self._pipe.recv()}\n{self._cluster.logs()}")

    async def end(self) -> None:
        """Stop; all has been heard."""
        self._pipe.send("end")
        told, failures = await self._word()
        print(told)
        assert not failures, "\n".join([*failures, self._cluster.logs()])
