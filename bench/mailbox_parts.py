"""The parts of the benchmark of mailboxes that are about one node, with raw members.

What they take from the node is compared with what was published: how many, from which sequence on,
in which order.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.dialects import LostError
from bench.durable import make_bodies
from bench.journal_node import fill, node, pool_of
from bench.mailbox_node import Crowd, Member
from bench.servers import Server
from bench.workers import Process, call
from regraft.model.message import PRIORITY_DEFAULT, Message
from regraft.wire import native

CONFIG = "[limits]\nmailbox_messages = 100_000_000\nmailboxes = 200_000\n"
TOPIC = "bench/waiting"
QUEUE = "waiting"
PRIORITIES = 10
LONG_SECONDS = 1800.0  # for one part, all in all
STEP = 7  # priorities go round in steps of this: neighbours differ
POOL = 500_000  # messages that are encoded before
REST_SECONDS = 1.0  # before memory is looked at
IN_FLIGHT = 10_000  # of a raw member: as many as a node allows
BESIDE = 1_000  # mailboxes that one connection reads
GROUP = 100  # mailboxes on one topic, where a message has many takers
AWAY = 10  # of so many mailboxes one is away


@dataclass(frozen=True)
class Memory:
    """What a process has in memory: its own, and pages of files that it has mapped."""

    own: int
    files: int


def memory(server: Server) -> Memory:
    """After a moment of rest."""
    time.sleep(REST_SECONDS)
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return Memory(1024 * (kib["RssAnon"] + kib["RssShmem"]), 1024 * kib["RssFile"])


# --------------------------------------------------------------------- very many waiting


@dataclass(frozen=True)
class Waiting:
    """Very many messages in one queue."""

    messages: int
    empty: Memory
    full: Memory
    first_ms: float  # from the wish to read to the first message
    drained_s: float  # from then on
    node_cpu: float  # meanwhile
    member_cpu: float

    @property
    def bytes_each(self) -> float:
        return (self.full.own - self.empty.own) / self.messages


def priority(number: int) -> int:
    """Of the message with this sequence."""
    return (number - 1) * STEP % PRIORITIES


def priority_messages() -> list[Message]:
    """In turn; the one whose priority needs no bytes has a longer body instead."""
    return [
        Message(
            TOPIC,
            body + (b"xx" if priority(number) == PRIORITY_DEFAULT else b""),
            priority=priority(number),
        )
        for number, body in enumerate(make_bodies(), 1)
    ]


def measure_waiting(folder: Path, messages: int) -> Waiting:
    """Fill a queue, look at the node, and drain it."""
    options = json.dumps({"shared": True}).encode()
    wish = native.Subscribe(1, TOPIC, durable=QUEUE, in_flight=IN_FLIGHT, options=options)
    with node(folder, CONFIG) as server:
        Member(server.port, 1).subscribe([wish], away=True)
        empty = memory(server)

        def work() -> None:
            fill(server.port, pool_of(min(messages, POOL), priority_messages()), messages)

        call(work, LONG_SECONDS)
        full = memory(server)
        first, took, used, own = call(lambda: drain(server, wish, messages), LONG_SECONDS)
        return Waiting(messages, empty, full, first, took, used, own)


def drain(server: Server, wish: native.Subscribe, messages: int) -> tuple[float, ...]:
    """Everything in the order of priority, within it in that of sequences, and nothing twice."""
    member = Member(server.port, pool_of(1, priority_messages()).size)
    crowd = Crowd([member])
    seen = bytearray(messages + 1)
    last = [0] * PRIORITIES  # the latest sequence that came, by priority
    lowest = PRIORITIES - 1  # priority that came so far

    def taken(_: int, first: int, count: int) -> None:
        nonlocal lowest
        for sequence in range(first, first + count):
            own = priority(sequence)
            if seen[sequence] or own > lowest or sequence < last[own]:
                raise LostError(f"sequence {sequence}, priority {own}, came out of order")
            seen[sequence], last[own], lowest = 1, sequence, own

    member.taken = taken
    cpu, own_cpu = server.cpu_seconds(), time.process_time()
    began = time.perf_counter()
    member.sock.sendall(native.encode(wish))
    while not member.messages:
        crowd.read()
    first = time.perf_counter()
    if not last[PRIORITIES - 1]:
        raise LostError("the first message is not of the highest priority")
    crowd.read_all(messages)
    crowd.wait_until_settled()
    took = time.perf_counter() - first
    used, own = server.cpu_seconds() - cpu, time.process_time() - own_cpu
    return (first - began) * 1e3, took, used, own


# ------------------------------------------------------------------- very many mailboxes


@dataclass(frozen=True)
class Population:
    """Very many mailboxes, of which some are away."""

    mailboxes: int
    takers: int  # mailboxes on one topic
    away: int
    made_s: float
    bytes_each: float
    messages: int
    seconds: float
    node_cpu: float

    @property
    def cpu_us(self) -> float:
        return self.node_cpu / self.messages * 1e6


def topic_of(number: int, takers: int) -> str:
    """The topic of a mailbox; all have one length."""
    return f"bench/box/{number // takers:08d}"


def is_away(number: int) -> bool:
    return number % AWAY == 0


def measure_population(folder: Path, mailboxes: int, takers: int, messages: int) -> Population:
    """Make them, look at the memory, publish to random ones, and see that all is settled."""
    with node(folder, CONFIG) as server:
        Member(server.port, 1)
        empty = memory(server)
        found = call(lambda: populate(server, empty, mailboxes, takers, messages), LONG_SECONDS)
        assert isinstance(found, Population)
        return found


def populate(
    server: Server, empty: Memory, mailboxes: int, takers: int, messages: int
) -> Population:
    def wish(number: int) -> native.Subscribe:
        topic = topic_of(number, takers)
        return native.Subscribe(1 + number, topic, durable=f"box-{number}", in_flight=IN_FLIGHT)

    chance = random.Random(1)
    chosen = [chance.randrange(mailboxes // takers) * takers for _ in range(messages)]
    bodies = make_bodies()
    pool = pool_of(
        messages,
        [Message(topic_of(n, takers), bodies[i % len(bodies)]) for i, n in enumerate(chosen)],
    )
    present = [number for number in range(mailboxes) if not is_away(number)]
    gone = [number for number in range(mailboxes) if is_away(number)]
    began = time.perf_counter()
    for at in range(0, len(gone), BESIDE):
        leaver = Member(server.port, pool.size)
        leaver.subscribe(map(wish, gone[at : at + BESIDE]), away=True)
        leaver.sock.close()
    members = []
    for at in range(0, len(present), BESIDE):
        members.append(Member(server.port, pool.size))
        members[-1].subscribe(map(wish, present[at : at + BESIDE]))
    made = time.perf_counter() - began
    bytes_each = (memory(server).own - empty.own) / mailboxes

    expected = sum(
        not is_away(number) for first in chosen for number in range(first, first + takers)
    )
    crowd = Crowd(members)
    cpu = server.cpu_seconds()
    began = time.perf_counter()
    publisher = Process(lambda _: fill(server.port, pool, messages))
    crowd.read_all(expected)
    crowd.wait_until_settled()
    publisher.answer(LONG_SECONDS)  # all is confirmed
    publisher.end()
    took = time.perf_counter() - began
    used = server.cpu_seconds() - cpu
    return Population(mailboxes, takers, len(gone), made, bytes_each, messages, took, used)


# ----------------------------------------------------------------- readers who come back


@dataclass(frozen=True)
class Return:
    """Readers of the same topic, who were away, and come back at once."""

    readers: int
    messages: int  # that wait for each of them
    seconds: float
    node_cpu: float
    readers_cpu: float

    @property
    def rate(self) -> float:
        return self.readers * self.messages / self.seconds


def measure_return(folder: Path, readers: int, messages: int) -> Return:
    with node(folder, CONFIG) as server:
        wishes = [
            native.Subscribe(1 + n, TOPIC, durable=f"reader-{n}", in_flight=IN_FLIGHT)
            for n in range(readers)
        ]
        call(lambda: Member(server.port, 1).subscribe(wishes, away=True))
        pool = pool_of(min(messages, POOL), [Message(TOPIC, body) for body in make_bodies()])
        call(lambda: fill(server.port, pool, messages), LONG_SECONDS)
        found = call(lambda: come_back(server, wishes, pool.size, messages), LONG_SECONDS)
        assert isinstance(found, Return)
        return found


def come_back(server: Server, wishes: list[native.Subscribe], size: int, messages: int) -> Return:
    """All at once; each gets everything, in order."""
    members = [Member(server.port, size) for _ in wishes]
    for member in members:
        member.taken = in_order()
    crowd = Crowd(members)
    cpu, own = server.cpu_seconds(), time.process_time()
    began = time.perf_counter()
    for member, wish in zip(members, wishes, strict=True):
        member.sock.sendall(native.encode(wish))
    crowd.read_all(len(members) * messages)
    crowd.wait_until_settled()
    took = time.perf_counter() - began
    if any(member.messages != messages for member in members):
        raise LostError("some readers got too little, and others too much")
    used = server.cpu_seconds() - cpu
    return Return(len(members), messages, took, used, time.process_time() - own)


def in_order() -> Callable[[int, int, int], None]:
    """Sees that each run begins where the last one ended."""
    due = 1

    def taken(_: int, first: int, count: int) -> None:
        nonlocal due
        if first != due:
            raise LostError(f"sequence {first} came instead of {due}")
        due += count

    return taken
