"""What the benchmark of mailboxes knows of Regraft: a work queue with its client, and raw members.

A raw member reads frames and settles what came, with as little work as Python allows. It follows
every transfer header, and settles a run when all of it has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from bench.dialects import HEAD, LostError, RegraftChannel, connect
from bench.durable import BATCH, BODY_BYTES, Place, WrongError, make_bodies
from bench.journal_node import READ_BYTES, TASKS
from bench.peers import run
from bench.workers import LOOK_SECONDS, Pace, Seat, work_together
from regraft.wire import native
from regraft.wire.native import Kind

QUEUE = "bench"
TOPIC = "bench/queue"
RANGES_MAX = 1000  # in one settlement
PIPELINED = 200  # subscriptions that are asked for before an answer is waited for
TOKEN = 4711  # of the heartbeat that asks for an answer
QUIET_SECONDS = 30.0  # nothing comes for so long: nothing more will
BUFFER_BYTES = READ_BYTES + 64 * 1024  # what was read, behind what was left of the last time


# ------------------------------------------------------------------------- Python client


class RegraftQueue:
    """A shared queue, each message accepted by itself; the public client."""

    rest_seconds = 0.0

    def prepare(self, place: Place) -> None:
        import regraft

        async def main() -> None:
            async with await regraft.connect(f"127.0.0.1:{place.port}") as session:
                with contextlib.suppress(regraft.RegraftError):
                    await session.command("queue-remove", name=QUEUE, force=True)
                options = {"shared": True}
                await session.command("queue-create", name=QUEUE, topic=TOPIC, options=options)

        run(main())

    def left(self, place: Place) -> int:
        import regraft

        count = 0

        async def main() -> None:
            nonlocal count
            async with await regraft.connect(f"127.0.0.1:{place.port}") as session:
                count = await waiting(session)
                await session.command("queue-remove", name=QUEUE, force=True)

        run(main())
        return count

    def publish(self, place: Place, pace: Pace) -> None:
        """Batches, several at a time, each of which waits for its own confirmation."""
        import regraft

        async def main() -> None:
            bodies = make_bodies()
            sent = confirmed = 0

            async def work() -> None:
                nonlocal sent, confirmed
                while (count := pace.allowed(sent)) >= 0:
                    if not count:
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
                    sent += count
                    some = bodies if count == BATCH else bodies[:count]
                    count = await session.publish_many(TOPIC, some, persistent=True, confirm=True)
                    confirmed += count
                    pace.confirmed(confirmed)

            async with await regraft.connect(f"127.0.0.1:{place.port}") as session:
                await asyncio.gather(*(work() for _ in range(TASKS)))
            if confirmed != sent:
                raise WrongError(f"{confirmed} of {sent} messages were confirmed")

        run(main())

    fill = publish

    def work(self, place: Place, seat: Seat, members: int, ready: Callable[[], None]) -> None:
        import regraft

        async def member(session: Any) -> None:
            async for message in session.queue(QUEUE, in_flight=seat.in_flight):
                await message.accept()
                seat.note(message.body, BODY_BYTES)

        async def main() -> None:
            target = f"127.0.0.1:{place.port}"
            sessions = [await regraft.connect(target) for _ in range(members)]

            async def barrier() -> None:
                while await waiting(sessions[0]):
                    await asyncio.sleep(LOOK_SECONDS)

            ready()
            seat.wait_for_go()
            await work_together(seat, [member(each) for each in sessions], barrier)

        run(main())


async def waiting(session: Any) -> int:
    """What is not settled, also what members hold."""
    return int((await session.command("queue-show", name=QUEUE))["queue"]["waiting"])


# ------------------------------------------------------------------------- raw members


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def settlement(subscription: int, ranges: list[int]) -> bytes:
    """The frame that accepts these: pairs of a first and a last sequence."""
    packed = b"".join(map(varint, ranges))
    payload = b"\x08" + varint(subscription) + b"\x12" + varint(len(packed)) + packed
    return native.frame(Kind.SETTLE, payload)


class Member(RegraftChannel):
    """A connection that reads mailboxes and settles what it gets."""

    def __init__(self, port: int, size: int, settles: bool = True) -> None:
        super().__init__(connect(port), size)
        self.settles = settles
        self.subscribed = self.unsubscribed = 0  # answers
        self.heard = 0  # token of the last heartbeat that was answered
        self.open = (0, 0, 0)  # subscription, first sequence and count of the run that comes
        self.done: dict[int, list[int]] = {}  # ranges to be settled, by subscription
        self.taken: Callable[[int, int, int], None] = lambda subscription, first, count: None
        hello = native.Hello(1, 1, agent="bench", passive=True)
        self.sock.sendall(native.PREFACE + native.encode(hello))
        while native.Welcome not in self.seen:
            self.read()

    def take(self, view: memoryview) -> None:
        """Follow the headers; whoever sends a wrong one puts the next one out of place."""
        i, n = 0, len(view)
        head = HEAD.unpack_from
        size = self.delivered
        while i < n:
            if self.run:
                step = min(self.run, n - i)
                self.run -= step
                self.bytes += step
                i += step
                if not self.run:
                    self.finish_run()
                continue
            if n - i < native.HEADER_BYTES:
                break
            length, kind, _, _ = head(view, i)
            end = i + length + 4
            if end > n:
                break
            payload = i + native.HEADER_BYTES
            if kind == Kind.TRANSFER:
                self.open = transfer(view, payload, end)
                self.run = self.open[2] * size
            elif kind == Kind.CREDIT:
                self.credit = bytes(view[payload:end])
            else:
                self.take_control(native.decode(kind, bytes(view[payload:end])))
            i = end
        self.tail = bytes(view[i:n])

    def take_control(self, frame: Any) -> None:
        if isinstance(frame, native.Subscribed):
            self.subscribed += 1
        elif isinstance(frame, native.Unsubscribed):
            self.unsubscribed += 1
        elif isinstance(frame, native.Heartbeat):
            self.heard = frame.token
        else:
            super().take_control(frame)

    def finish_run(self) -> None:
        subscription, first, count = self.open
        self.taken(subscription, first, count)
        if not self.settles:
            return
        ranges = self.done.get(subscription)
        if ranges is None:
            self.done[subscription] = [first, first + count - 1]
        elif ranges[-1] == first - 1:
            ranges[-1] += count
        else:
            ranges += (first, first + count - 1)

    def settle(self) -> None:
        """Tell the node what has arrived."""
        if not self.done:
            return
        done, self.done = self.done, {}
        step = 2 * RANGES_MAX
        self.sock.sendall(
            b"".join(
                settlement(subscription, ranges[at : at + step])
                for subscription, ranges in done.items()
                for at in range(0, len(ranges), step)
            )
        )

    def subscribe(self, wishes: Iterable[native.Subscribe], away: bool = False) -> None:
        """Make mailboxes and wait until they stand; with `away`, leave them again."""
        asked = self.subscribed
        for wish in wishes:
            self.sock.sendall(native.encode(wish))
            if away:
                self.sock.sendall(native.encode(native.Unsubscribe(wish.id)))
            asked += 1
            while asked - self.subscribed > PIPELINED:
                self.read()
        while self.subscribed < asked or (away and self.unsubscribed < asked):
            self.read()


def transfer(view: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Subscription, first sequence and count; quick where it is as nodes write it."""
    if view[at] != 0x0D or view[at + 5] != 0x12 or end - at < 10:
        return slow_transfer(view[at:end])
    count = int.from_bytes(view[at + 1 : at + 5], "little")
    stop = at + 7 + view[at + 6]
    subscription, p = read_varint(view, at + 7)
    if p != stop or view[stop] != 0x28:
        return slow_transfer(view[at:end])
    first, p = read_varint(view, stop + 1)
    return subscription, first, count


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def slow_transfer(payload: memoryview) -> tuple[int, int, int]:
    said: native.Transfer = native.decode(Kind.TRANSFER, bytes(payload))
    if len(said.subscriptions) != 1:
        raise LostError(f"not the delivery of one mailbox: {said}")
    return said.subscriptions[0], said.first_sequence, said.count


class Crowd:
    """Members that are read by one process, into one buffer."""

    def __init__(self, members: list[Member]) -> None:
        self.members = {member.sock.fileno(): member for member in members}
        self.poll = select.epoll()
        for fd in self.members:
            self.poll.register(fd, select.EPOLLIN)
        self.buffer = memoryview(bytearray(BUFFER_BYTES))

    def read(self, seconds: float = 0.1) -> bool:
        """Take and settle what there is; whether there was anything."""
        events = self.poll.poll(seconds)
        for fd, _ in events:
            member = self.members[fd]
            start = len(member.tail)
            self.buffer[:start] = member.tail
            got = member.sock.recv_into(self.buffer[start : start + READ_BYTES])
            if not got:
                raise LostError("the node ended a connection")
            member.take(self.buffer[: start + got])
            member.settle()
        return bool(events)

    def read_all(self, expected: int) -> None:
        """Until all of them together have got so many."""
        quiet = time.monotonic() + QUIET_SECONDS
        while (came := sum(member.messages for member in self.members.values())) < expected:
            for _ in range(100):
                if not self.read():
                    break
                quiet = time.monotonic() + QUIET_SECONDS
            if time.monotonic() > quiet:
                raise LostError(f"only {came} of {expected} messages came")
        if came != expected:
            raise LostError(f"{came} messages came instead of {expected}")

    def wait_until_settled(self) -> None:
        """Return when the node has heard of all that was settled: it answers in order."""
        question = native.encode(native.Heartbeat(TOKEN))
        for member in self.members.values():
            member.sock.sendall(question)
        while any(member.heard != TOKEN for member in self.members.values()):
            if not self.read(QUIET_SECONDS):
                raise LostError("the node does not answer")
