"""The load generator: one process that sends, one that receives for all subscribers.

Both do as little as they can, since they share the machine with the server: the sender writes
encoded blocks, the receiver reads into one buffer and counts. What is counted lies between two
instants of the receiver's clock, after a warm-up; then the sender stops and everything it sent
must still arrive.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from bench.dialects import DIALECTS, Channel, LostError, Work
from bench.servers import cpu_seconds, machine_cpu_seconds

BUFFER_BYTES = 256 * 1024
QUIET_SECONDS = 3.0  # nothing arrives for so long: nothing more will
FIRST_SECONDS = 10.0  # until the first delivery
CALL_SECONDS = 60.0  # for one measurement, all in all
PACE_SECONDS = 0.002  # between two blocks, where there is a rate

FORK = multiprocessing.get_context("fork")


class Loaded(Protocol):
    """What load is put on: a server, or several that belong together."""

    name: str  # of its dialect
    port: int  # where is published

    @property
    def taker_ports(self) -> tuple[int, ...]:
        """Where subscribers connect, in turn."""

    def cpu_seconds(self) -> float:
        """Of all its processes, since they started."""

    def wait_for_routes(self) -> None:
        """Return when what is published reaches all who subscribed by now."""


@dataclass(frozen=True)
class Window:
    """How long: before the count begins, and the count itself; and how fast."""

    warm_seconds: float
    seconds: float
    rate: int = 0  # messages a second; 0: as many as can be


@dataclass(frozen=True)
class Measurement:
    """What one server did in one window."""

    seconds: float
    deliveries: int
    bytes: int
    takers: int
    server_cpu: float
    sender_cpu: float
    receiver_cpu: float
    other_cpu: float  # of everything else on this machine
    fault: str = ""  # what makes the numbers worthless, if anything

    @property
    def deliveries_per_second(self) -> float:
        return self.deliveries / self.seconds

    @property
    def messages_per_second(self) -> float:
        return self.deliveries_per_second / self.takers


@dataclass(frozen=True)
class Mark:
    """The state of affairs at one instant."""

    at: float
    messages: int
    bytes: int
    server_cpu: float
    sender_cpu: float
    receiver_cpu: float
    machine_cpu: float


class Shared:
    """What the two processes tell each other while they run."""

    def __init__(self) -> None:
        self.stop = FORK.RawValue("b", 0)
        self.sender_pid = FORK.RawValue("l", 0)
        self.sent = FORK.RawValue("q", -1)  # messages, once the sender is done


def send(server: str, port: int, work: Work, rate: int, shared: Shared, pipe: Connection) -> None:
    """The sending process: blocks, as far as credit and rate go, until told to stop."""
    dialect = DIALECTS[server]
    block = dialect.block(work)
    view = memoryview(block.data)
    most = min(block.count, int(rate * PACE_SECONDS)) if rate else block.count
    sent = 0
    try:
        channel = dialect.open(port, work, False)
        shared.sender_pid.value = os.getpid()
        due = time.monotonic()
        while not shared.stop.value:
            count = channel.allowed(most, block.size)
            channel.sock.sendall(view[: count * block.size])
            sent += count
            if rate:
                due += count / rate
                time.sleep(max(0.0, due - time.monotonic()))
        shared.sent.value = sent
        pipe.send("")
        pipe.poll(CALL_SECONDS)  # the connection stays open until all has arrived
    except (OSError, LostError) as error:
        pipe.send(f"sender: {error!r}")


class Receiver:
    """The receiving process: all subscribers, one buffer."""

    def __init__(self, server: Loaded, work: Work, window: Window, shared: Shared) -> None:
        self.server = server
        self.window = window
        self.shared = shared
        open_channel = DIALECTS[server.name].open
        self.channels: dict[int, Channel] = {}
        for port in itertools.islice(itertools.cycle(server.taker_ports), work.takers):
            channel = open_channel(port, work, True)
            self.channels[channel.sock.fileno()] = channel
        self.poll = select.epoll()
        for fd in self.channels:
            self.poll.register(fd, select.EPOLLIN)
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.takers = work.takers
        server.wait_for_routes()

    def mark(self) -> Mark:
        channels = self.channels.values()
        return Mark(
            time.monotonic(),
            sum(channel.messages for channel in channels),
            sum(channel.bytes for channel in channels),
            self.server.cpu_seconds(),
            cpu_seconds(self.shared.sender_pid.value),
            cpu_seconds(os.getpid()),
            machine_cpu_seconds(),
        )

    def read_until(self, deadline: float, whole: bool = False) -> bool:
        """Read until then, or with `whole` until all that was sent is here; False if it is not."""
        channels, buffer, poll = self.channels, self.buffer, self.poll.poll
        clock = time.monotonic
        while (now := clock()) < deadline:
            if whole and self.is_whole():
                return True
            events = poll(min(0.1, deadline - now))
            for fd, _ in events:
                channel = channels[fd]
                start = len(channel.tail)
                if start:
                    buffer[:start] = channel.tail
                got = channel.sock.recv_into(buffer[start:])
                if not got:
                    raise LostError("the server cut a subscriber")
                channel.take(buffer[: start + got])
            if whole and events:
                deadline = now + QUIET_SECONDS
        return not whole

    def is_whole(self) -> bool:
        sent: int = self.shared.sent.value
        return sent >= 0 and all(channel.messages >= sent for channel in self.channels.values())

    def wait_for_first(self) -> None:
        deadline = time.monotonic() + FIRST_SECONDS
        while time.monotonic() < deadline:
            self.read_until(time.monotonic() + 0.01)
            if any(channel.messages for channel in self.channels.values()):
                return
        raise LostError(f"nothing was delivered within {FIRST_SECONDS:.0f} s")

    def run(self) -> Measurement:
        """Warm up, count, let the sender stop, and see that nothing is missing."""
        self.wait_for_first()
        self.read_until(time.monotonic() + self.window.warm_seconds)
        first = self.mark()
        self.read_until(first.at + self.window.seconds)
        last = self.mark()
        self.shared.stop.value = 1
        whole = self.read_until(time.monotonic() + QUIET_SECONDS, whole=True)
        ours = sum(
            getattr(last, who) - getattr(first, who)
            for who in ("server_cpu", "sender_cpu", "receiver_cpu")
        )
        return Measurement(
            seconds=last.at - first.at,
            deliveries=last.messages - first.messages,
            bytes=last.bytes - first.bytes,
            takers=self.takers,
            server_cpu=last.server_cpu - first.server_cpu,
            sender_cpu=last.sender_cpu - first.sender_cpu,
            receiver_cpu=last.receiver_cpu - first.receiver_cpu,
            other_cpu=max(0.0, last.machine_cpu - first.machine_cpu - ours),
            fault="" if whole and self.is_exact() else self.describe_loss(),
        )

    def is_exact(self) -> bool:
        return all(each.messages == self.shared.sent.value for each in self.channels.values())

    def describe_loss(self) -> str:
        counts = sorted(channel.messages for channel in self.channels.values())
        sent = self.shared.sent.value
        said = f"{sent} were sent" if sent >= 0 else "the sender never stopped"
        return f"{counts[0]} to {counts[-1]} arrived of which {said}"


def receive(server: Loaded, work: Work, window: Window, shared: Shared, pipe: Connection) -> None:
    """The receiving process; says `ready`, then what it measured, or what went wrong."""
    try:
        receiver = Receiver(server, work, window, shared)
        pipe.send("ready")
        pipe.send(receiver.run())
    except (OSError, LostError) as error:
        pipe.send(f"receiver: {error!r}")
    finally:
        shared.stop.value = 1


def failed(work: Work, fault: str) -> Measurement:
    return Measurement(1.0, 0, 0, work.takers, 0.0, 0.0, 0.0, 0.0, fault)


def answer(pipe: Connection) -> Any:
    """The next word of a process, or why there is none."""
    try:
        return pipe.recv() if pipe.poll(CALL_SECONDS) else "no answer in time"
    except EOFError:
        return "the process ended without a word"


def measure(server: Loaded, work: Work, window: Window) -> Measurement:
    """One server, one work, one window."""
    shared = Shared()
    here, there = FORK.Pipe()
    here_too, there_too = FORK.Pipe()
    receiver = FORK.Process(target=receive, args=(server, work, window, shared, there))
    told = (server.name, server.port, work, window.rate, shared, there_too)
    sender = FORK.Process(target=send, args=told)
    try:
        receiver.start()
        there.close()
        if (said := answer(here)) != "ready":
            return failed(work, said)
        sender.start()
        there_too.close()
        result = answer(here)
        if isinstance(result, Measurement):
            said = answer(here_too)
            here_too.send("done")
            return result if not said else failed(work, said)
        if here_too.poll(0.5) and (said := answer(here_too)):
            result = f"{result}; {said}"
        return failed(work, str(result))
    finally:
        shared.stop.value = 1
        for process in (sender, receiver):
            if process.pid is not None:
                process.join(2)
                if process.is_alive():
                    process.kill()
                    process.join()
