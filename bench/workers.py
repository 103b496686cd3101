"""How a work queue is measured: members in few processes, which settle messages one by one.

A *system* is one library and one kind of queue. Its members settle every message with a call of its
own. Two ways to measure: *drain*, where all messages are safe in the queue before the first member
comes, and the time ends when the server has got the last settlement; and *flow*, where one process
publishes and waits for confirmations meanwhile, never far ahead of what is settled, and the count
lies between two instants. In the end all that was published must be settled, once, and the server
must hold nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from bench.durable import BATCH, FORK, Place, WrongError, apart
from bench.servers import cpu_seconds, machine_cpu_seconds

PROCESSES = 2  # that the members are spread over
FLOW_AHEAD = 50_000  # published and not settled: more than all members together have in flight
LOOK_SECONDS = 0.001  # between two looks at what the other processes did
READY_SECONDS = 30.0  # for all members to be connected
CALL_SECONDS = 120.0  # for one measurement, all in all


class Desk:
    """What the processes of one measurement tell each other."""

    def __init__(self, expected: int = -1) -> None:
        self.go = FORK.RawValue("b", 0)
        self.stop = FORK.RawValue("b", 0)  # publish no more
        self.expected = FORK.RawValue("q", expected)  # messages to be settled, once that is known
        self.published = FORK.RawValue("q", 0)  # and confirmed
        self.counts = FORK.RawArray("q", PROCESSES)  # settled, by process

    @property
    def settled(self) -> int:
        return sum(self.counts)


class Seat:
    """One process's place at the desk."""

    def __init__(self, desk: Desk, number: int, in_flight: int) -> None:
        self.desk = desk
        self.in_flight = in_flight  # messages that one member may have and not have settled
        self._counts = desk.counts
        self._number = number

    def note(self, body: bytes | memoryview, size: int) -> None:
        """One message was settled."""
        if len(body) != size:
            raise WrongError(f"a message of {len(body)} bytes came back")
        self._counts[self._number] += 1

    @property
    def count(self) -> int:
        """What was settled here."""
        return int(self._counts[self._number])

    @property
    def is_over(self) -> bool:
        """Whether all has been settled, by whomever."""
        expected: int = self.desk.expected.value
        return bool(0 <= expected <= sum(self._counts))

    def wait_for_go(self) -> None:
        while not self.desk.go.value:
            time.sleep(LOOK_SECONDS)


class Pace:
    """How much the publishing process may send."""

    def __init__(self, desk: Desk, limit: int = 0) -> None:
        self.desk = desk
        self.limit = limit  # messages in all; 0: until told to stop

    def allowed(self, sent: int) -> int:
        """How many may be sent now, up to a batch; -1: no more ever."""
        if self.limit:
            return min(BATCH, self.limit - sent) or -1
        if self.desk.stop.value:
            return -1
        return max(0, min(BATCH, FLOW_AHEAD - (sent - self.desk.settled)))

    def confirmed(self, count: int) -> None:
        """So many have been confirmed, in all."""
        self.desk.published.value = count


class System(Protocol):
    """A kind of queue, and the library that it is used with; each call in a process of its own."""

    rest_seconds: float  # that connections stay open when all is over, for the server to finish

    def prepare(self, place: Place) -> None:
        """An empty queue."""

    def fill(self, place: Place, pace: Pace) -> None:
        """Publish as many as the pace allows, in any way, until all are confirmed."""

    def publish(self, place: Place, pace: Pace) -> None:
        """The same with the library."""

    def work(self, place: Place, seat: Seat, members: int, ready: Callable[[], None]) -> None:
        """So many members, connected before `ready`; return when the server knows all is over."""

    def left(self, place: Place) -> int:
        """How many are not settled, if that can be told; then the queue goes away."""


@dataclass(frozen=True)
class Way:
    """A system under its name."""

    label: str
    server: str
    system: System
    in_flight: int  # of each member: what was best with ten of them
    synced: bool = True  # confirmed means that it was synced
    module: str = ""  # what must be installed


@dataclass(frozen=True)
class Settled:
    """What one way did in one round."""

    seconds: float = 1.0
    messages: int = 0
    server_cpu: float = 0.0
    members_cpu: float = 0.0
    publisher_cpu: float = 0.0
    other_cpu: float = 0.0  # of everything else on this machine
    fault: str = ""  # what makes the numbers worthless, if anything

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


# ------------------------------------------------------------------------------ asyncio


async def work_together(
    seat: Seat,
    workers: list[Coroutine[Any, Any, None]],
    barrier: Callable[[], Awaitable[None]],
) -> None:
    """Let members work until all is settled, and the server has heard of it."""
    tasks = [asyncio.ensure_future(each) for each in workers]
    while not seat.is_over:
        await asyncio.sleep(LOOK_SECONDS)
        for task in tasks:
            if task.done():
                task.result()  # raises what it ended with
                raise WrongError("a member left before all was settled")
    await barrier()
    for task in tasks:
        task.cancel()


# --------------------------------------------------------------------------- processes


class Process:
    """A forked process that says `ready`, and in the end when it was done."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        self._here, there = FORK.Pipe()
        self._process = FORK.Process(target=_run, args=(work, there))
        self._process.start()
        there.close()

    @property
    def cpu(self) -> float:
        assert self._process.pid is not None
        return cpu_seconds(self._process.pid)

    def answer(self, seconds: float) -> Any:
        """Its next word; WrongError if there is none, or if it failed."""
        try:
            said = self._here.recv() if self._here.poll(seconds) else "no answer in time"
        except EOFError:
            said = "a process ended without a word"
        if isinstance(said, str) and said != "ready":
            raise WrongError(said)
        return said

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._here.send("enough")
        self._here.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(work: Callable[[Callable[[], None]], None], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    gc.collect()
    gc.freeze()
    try:
        work(lambda: pipe.send("ready"))
        pipe.send(time.monotonic())
        pipe.poll(READY_SECONDS)  # its processor time is looked at, meanwhile
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send(f"{error!r} ({Path(last.filename).name}:{last.lineno})"[:300])
    os._exit(0)  # no library is waited for


class Crew:
    """The processes with the members."""

    def __init__(self, way: Way, place: Place, members: int, desk: Desk) -> None:
        count = min(PROCESSES, members)
        self.processes: list[Process] = []
        for number in range(count):
            share = members // count + (number < members % count)
            seat = Seat(desk, number, way.in_flight)

            def work(ready: Callable[[], None], seat: Seat = seat, share: int = share) -> None:
                way.system.work(place, seat, share, ready)

            self.processes.append(Process(work))

    def wait_until_ready(self) -> None:
        for each in self.processes:
            each.answer(READY_SECONDS)

    def done_at(self) -> float:
        """When the last of them was done."""
        return max(float(each.answer(CALL_SECONDS)) for each in self.processes)

    def end(self) -> None:
        for each in self.processes:
            each.end()


@dataclass(frozen=True)
class Mark:
    """The state of affairs at one instant."""

    at: float
    messages: int
    server: float  # processor time
    members: float
    publisher: float
    machine: float


def mark(place: Place, desk: Desk, crew: Crew, publisher: Process | None = None) -> Mark:
    return Mark(
        time.monotonic(),
        desk.settled,
        place.server.cpu_seconds() if place.server else 0.0,
        sum(each.cpu for each in crew.processes),
        publisher.cpu if publisher else 0.0,
        machine_cpu_seconds(),
    )


def between(first: Mark, last: Mark, at: float = 0.0) -> Settled:
    """What was done between two marks, of which the second may be a little late."""
    server, members = last.server - first.server, last.members - first.members
    publisher = last.publisher - first.publisher
    others = last.machine - first.machine - server - members - publisher
    return Settled(
        (at or last.at) - first.at,
        last.messages - first.messages,
        server,
        members,
        publisher,
        max(0.0, others),
    )


def call(work: Callable[[], Any], seconds: float = CALL_SECONDS) -> Any:
    """In a process of its own; WrongError if it failed."""
    result = apart(lambda: ("ok", work()), seconds)
    if not isinstance(result, tuple):
        raise WrongError(str(result))
    return result[1]


# ------------------------------------------------------------------------ measurements


def drain(way: Way, place: Place, members: int, messages: int) -> Settled:
    """So many wait; members come and settle them."""
    desk = Desk(messages)
    crew = None
    try:
        call(lambda: way.system.prepare(place))
        call(lambda: way.system.fill(place, Pace(desk, messages)))
        if desk.published.value != messages:
            raise WrongError(f"{desk.published.value} of {messages} messages were confirmed")
        os.sync()  # what the filling left unwritten is not the members' burden
        crew = Crew(way, place, members, desk)
        crew.wait_until_ready()
        first = mark(place, desk, crew)
        desk.go.value = 1
        done = crew.done_at()
        result = between(first, mark(place, desk, crew), done)
        finish(way, place, desk, crew)
        return result
    except WrongError as error:
        return Settled(fault=str(error))
    finally:
        if crew is not None:
            crew.end()


def flow(way: Way, place: Place, members: int, warm: float, seconds: float) -> Settled:
    """One publishes and waits for confirmations while members settle."""
    desk = Desk()
    crew = publisher = None
    try:
        call(lambda: way.system.prepare(place))
        crew = Crew(way, place, members, desk)
        crew.wait_until_ready()
        desk.go.value = 1
        publisher = Process(lambda _: way.system.publish(place, Pace(desk)))
        began = time.monotonic()
        while desk.settled < 2 * members and time.monotonic() < began + READY_SECONDS:
            time.sleep(LOOK_SECONDS)
        time.sleep(warm)
        first = mark(place, desk, crew, publisher)
        time.sleep(seconds)
        last = mark(place, desk, crew, publisher)
        desk.stop.value = 1
        publisher.answer(CALL_SECONDS)
        desk.expected.value = desk.published.value
        crew.done_at()
        finish(way, place, desk, crew)
        return between(first, last)
    except WrongError as error:
        return Settled(fault=str(error))
    finally:
        desk.stop.value = 1
        for each in (crew, publisher):
            if each is not None:
                each.end()


def finish(way: Way, place: Place, desk: Desk, crew: Crew) -> None:
    """All that was published was settled, once, and the server knows it."""
    time.sleep(way.system.rest_seconds)
    crew.end()  # what a member has and did not settle is given back
    settled, published = desk.settled, desk.published.value
    left = call(lambda: way.system.left(place))
    if left or settled != published:
        raise WrongError(f"{published} published, {settled} settled, {left} left")
