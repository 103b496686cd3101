"""How publishing is measured where every message is confirmed: one process that publishes.

A *way* is one library, or one generator, and how it publishes. It tells a `Tally` whenever more
messages were confirmed, and stops when the tally says that it is enough. What is counted lies
between two confirmations; then the way waits for all that it sent, asks the server how much it
holds, and clears it away for the next round.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.servers import Server, cpu_seconds, machine_cpu_seconds

BODY_BYTES = 200
BATCH = 1000  # messages that go together, where a way has batches
AHEAD = 4000  # messages in flight, where a way sets it; more made none of them faster
CALL_SECONDS = 90.0  # for one measurement, all in all
SKIPPED = 0.1  # the first part of the messages that are sent one at a time, not counted
FORK = multiprocessing.get_context("fork")


class WrongError(Exception):
    """Something was confirmed that is not there, or sent and not confirmed."""


@dataclass(frozen=True)
class Place:
    """What a way publishes to: a server, or a folder of its own, or both."""

    folder: Path
    server: Server | None = None

    @property
    def port(self) -> int:
        assert self.server is not None
        return self.server.port


@dataclass(frozen=True)
class Round:
    """What one way did in one round."""

    seconds: float = 1.0
    messages: int = 0
    confirmations: int = 0  # in which these messages were confirmed
    publisher_cpu: float = 0.0
    server_cpu: float = 0.0
    other_cpu: float = 0.0  # of everything else on this machine
    fault: str = ""  # what makes the numbers worthless, if anything

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def batch(self) -> float:
        """Messages that were confirmed together, on average."""
        return self.messages / max(1, self.confirmations)


@dataclass(frozen=True)
class Mark:
    """The state of affairs at one instant."""

    at: float
    messages: int
    confirmations: int
    publisher: float  # processor time
    server: float
    machine: float


class Tally:
    """In the publishing process: what was confirmed, and whether that is enough."""

    def __init__(self, warm: float, seconds: float, server: Server | None) -> None:
        self.done = False
        self.confirmed = 0
        self._warm = warm
        self._seconds = seconds
        self._server = server
        self._due = 0.0
        self._confirmations = 0
        self._first: Mark | None = None
        self._last: Mark | None = None

    def note(self, confirmed: int, confirmations: int = 0) -> None:
        """So many have been confirmed, in all, and in so many answers if somebody knows it."""
        if confirmed == self.confirmed:
            return
        self.confirmed = confirmed
        self._confirmations = confirmations or self._confirmations + 1
        now = time.monotonic()
        if not self._due:
            self._due = now + self._warm
        elif now >= self._due and not self.done:
            if self._first is None:
                self._first = self._mark(now)
                self._due = now + self._seconds
            else:
                self.finish()

    def finish(self) -> None:
        """Enough, or there is no more to send."""
        if not self.done:
            self.done = True
            self._last = self._mark(time.monotonic())

    def _mark(self, now: float) -> Mark:
        server = self._server.cpu_seconds() if self._server else 0.0
        own = cpu_seconds(os.getpid())
        machine = machine_cpu_seconds()
        return Mark(now, self.confirmed, self._confirmations, own, server, machine)

    def check(self, sent: int, stored: int) -> None:
        """In the end: all was confirmed, and all is there."""
        if not sent == self.confirmed == stored:
            raise WrongError(f"{sent} sent, {self.confirmed} confirmed, {stored} stored")

    def round(self) -> Round:
        """What was counted."""
        if self._first is None or self._last is None or self._last.at <= self._first.at:
            return Round(fault="too little was confirmed to count it")
        first, last = self._first, self._last
        publisher, server = last.publisher - first.publisher, last.server - first.server
        return Round(
            last.at - first.at,
            last.messages - first.messages,
            last.confirmations - first.confirmations,
            publisher,
            server,
            max(0.0, last.machine - first.machine - publisher - server),
        )


Many = Callable[[Place, Tally], None]
One = Callable[[Place, int], list[int]]  # nanoseconds of each of so many


@dataclass(frozen=True)
class Way:
    """One way of publishing persistent messages."""

    label: str
    server: str  # its key in `durable_servers.STARTS`; "" without one
    many: Many
    one: One | None = None
    synced: bool = True  # confirmed means that it was synced
    module: str = ""  # what must be installed
    library: bool = False  # published with a Python client, not with frames encoded before


def make_bodies(count: int = BATCH) -> list[bytes]:
    """Bodies that do not compress, the same in every process."""
    chance = random.Random(1)
    return [chance.randbytes(BODY_BYTES) for _ in range(count)]


def timed(call: Callable[[], object], count: int) -> list[int]:
    """Nanoseconds of so many calls, one after the other."""
    clock = time.perf_counter_ns
    taken = []
    for _ in range(count):
        before = clock()
        call()
        taken.append(clock() - before)
    return taken


def median_us(nanoseconds: Sequence[int]) -> float:
    """The median, in µs, of all but the first part."""
    counted = sorted(nanoseconds[int(len(nanoseconds) * SKIPPED) :])
    return counted[len(counted) // 2] / 1e3


# ------------------------------------------------------------------- in a process of its own


def measure(way: Way, place: Place, warm: float, seconds: float) -> Round:
    """One way, one round, with many messages in flight."""
    tally = Tally(warm, seconds, place.server)

    def work() -> Round:
        way.many(place, tally)
        return tally.round()

    result = apart(work)
    return result if isinstance(result, Round) else Round(fault=str(result))


def measure_one(way: Way, place: Place, count: int) -> float | str:
    """One way, one round, one message at a time: the median in µs, or what went wrong."""
    assert way.one is not None
    one = way.one
    result = apart(lambda: median_us(one(place, count)))
    return result if isinstance(result, float) else str(result)


def apart(work: Callable[[], Any], seconds: float = CALL_SECONDS) -> Any:
    """What the work returned in a process of its own, or a text that says why it did not."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=_call, args=(work, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else f"no result in {seconds:.0f} s"
    except EOFError:
        return "the process ended without a word"
    finally:
        process.join(2)
        if process.is_alive():
            process.kill()
            process.join()


def _call(work: Callable[[], Any], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    gc.collect()
    gc.freeze()  # what was inherited is not looked through again and again
    try:
        pipe.send(work())
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send(f"{error!r} ({Path(last.filename).name}:{last.lineno})")
