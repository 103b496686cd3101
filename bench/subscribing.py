"""How fast a node takes subscriptions with selectors, and what its other clients feel of it.

    python -m bench.subscribing [--quick] [--size N] [--rate R]

A steady publisher takes its own messages back through the node, and every selector is asked about
each of them. Meanwhile many sessions subscribe, all together a million times; then the node is
left alone; then all sessions leave at once. The latency of the steady messages is told for each of
these phases. It counts from the moment at which a message was due.

At the end of the third phase some events are published that match, and every one must come to the
sessions whose filters it satisfies, under the ids of these, and to no others.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import select
import struct
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bench import report
from bench.dialects import LostError, RegraftChannel, connect
from bench.idle import SPARE_FILES, raise_file_limit
from bench.report import Goal
from bench.servers import REGRAFT, Neighbours, Server, running
from bench.workloads import ABOVE, AMONG, BETWEEN, EQUAL, Filter, Selective
from regraft.model.message import Message
from regraft.wire import native
from regraft.wire.native import Kind

FULL, QUICK = 1_000_000, 20_000
RATE = 2_000  # messages a second, of the steady publisher
A_SESSION = 10_000  # subscriptions, at most; that is the limit of a node with defaults
SESSIONS_MIN = 10
ACTIVE = 4  # sessions that subscribe at the same time
AHEAD = 250  # subscriptions that one of them asks for before the answers
PATTERN = "bench/#"
STEADY_TOPIC = "bench/steady"
CHECK_TOPIC = "bench/check"
CHECKS = 50  # events that match
READ_BYTES = 256 * 1024
FRAME_BYTES_MAX = 1024 * 1024
QUIET_SECONDS = 10.0  # nothing comes for so long: nothing more will
GRACE_SECONDS = 0.5  # for what should not come
LATE_SECONDS = 10.0  # for steady messages to come back in the end
ANSWER_SECONDS = 60.0  # for one answer to a subscription
SHARES = {"p50 µs": 0.50, "p99 µs": 0.99, "p99.9 µs": 0.999}

HEAD = struct.Struct("<IB")  # length and kind of a frame

FORK = multiprocessing.get_context("fork")


# ------------------------------------------------------------------------------ the steady one


class Steady(RegraftChannel):
    """A connection that publishes at a rate, and takes what it published."""

    def __init__(self, port: int) -> None:
        attributes = Selective((1,)).attributes(random.Random(1), "STEADY")
        message = Message(STEADY_TOPIC, b"x" * 45, attributes)
        self.frame = native.encode(message)
        super().__init__(connect(port), len(self.frame))
        greet(self)
        self.sock.sendall(native.encode(native.Subscribe(1, STEADY_TOPIC, "", True)))
        while native.Subscribed not in self.seen:
            self.read()

    def room(self) -> int:
        """How many messages may be sent now."""
        if self.credit:
            self.granted, self.credit = native.decode(Kind.CREDIT, self.credit), b""
        size = len(self.frame)
        by_bytes = (self.granted.bytes - self.sent * size + size - 1) // size
        return max(0, min(self.granted.messages - self.sent, by_bytes))

    def publish(self, rate: int, stop: Any) -> tuple[float, array[float], array[float]]:
        """Until told to stop: when it began, and for each message how late it left and came."""
        left: array[float] = array("d")
        came: array[float] = array("d")
        clock = time.monotonic
        start = clock()
        end = 0.0
        while not end or (self.messages < self.sent and clock() < end):
            now = clock()
            if stop.value and not end:
                end = now + LATE_SECONDS
            due = 0 if end else int((now - start) * rate) + 1
            count = min(due - self.sent, self.room())
            if count > 0:
                self.sock.sendall(self.frame * count)
                left.extend(now - start - (self.sent + i) / rate for i in range(count))
                self.sent += count
            wait = max(0.0, start + self.sent / rate - clock()) if self.room() else 0.05
            if select.select([self.sock], [], [], min(wait, 0.05))[0]:
                self.read()
                now = clock()
                came.extend(now - start - i / rate for i in range(len(came), self.messages))
        return start, left, came


def greet(channel: RegraftChannel) -> None:
    """The handshake."""
    hello = native.Hello(version_min=1, version_max=1, agent="bench", passive=True)
    channel.sock.sendall(native.PREFACE + native.encode(hello))
    while native.Welcome not in channel.seen:
        channel.read()


def run_steady(port: int, rate: int, stop: Any, pipe: Connection) -> None:
    """The process of the steady publisher."""
    try:
        steady = Steady(port)
        pipe.send("")
        start, left, came = steady.publish(rate, stop)
        pipe.send((start, left, came))
    except (OSError, LostError) as error:
        pipe.send(f"the steady publisher: {error!r}")


# ------------------------------------------------------------------------------ the many


@dataclass
class Session:
    """One connection, what it will ask for, and how far it is."""

    frames: bytes
    ends: array[int]  # where each frame ends
    channel: RegraftChannel | None = None
    sent: int = 0  # bytes
    answered: int = 0
    tail: bytes = b""
    got: list[tuple[int, int]] = field(default_factory=list)  # message, subscription

    def open(self, port: int) -> None:
        self.channel = RegraftChannel(connect(port), 1)
        greet(self.channel)
        self.tail = self.channel.tail
        self.sock.setblocking(False)

    @property
    def sock(self) -> Any:
        assert self.channel is not None
        return self.channel.sock

    @property
    def done(self) -> bool:
        return self.answered == len(self.ends)

    def ask(self) -> None:
        """Send as much as may be ahead of the answers."""
        last = min(len(self.ends), self.answered + AHEAD) - 1
        if self.sent < self.ends[last]:
            try:
                self.sent += self.sock.send(memoryview(self.frames)[self.sent : self.ends[last]])
            except BlockingIOError:
                return

    def take(self) -> None:
        """Count the answers that came."""
        data = self.tail + self.sock.recv(READ_BYTES)
        if data == self.tail:
            raise LostError("the node ended a session")
        at, size = 0, len(data)
        while size - at >= native.HEADER_BYTES:
            length, kind = HEAD.unpack_from(data, at)
            if size - at < length + 4:
                break
            if kind == Kind.SUBSCRIBED:
                self.answered += 1
            elif kind == Kind.ERROR:
                raise LostError(str(native.read_frame(data, at, FRAME_BYTES_MAX)))
            at += length + 4
        self.tail = data[at:]

    def take_messages(self) -> int:
        """Note which messages came, and for which subscriptions; how many notes."""
        before = len(self.got)
        try:
            data = self.tail + self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return 0
        at = 0
        runs: list[tuple[Any, ...]] = []
        whole = 0  # up to here all messages of a run are there
        while found := native.read_frame(data, at, FRAME_BYTES_MAX):
            kind, _, payload, at = found
            if kind == Kind.TRANSFER:
                runs = [native.read_transfer(payload)]
            elif kind == Kind.MESSAGE:
                count, subscriptions, *_ = runs.pop()
                number = native.decode(kind, payload).id
                self.got += [(number, subscription) for subscription in subscriptions]
                if count > 1:
                    runs = [(count - 1, subscriptions)]
            if not runs:
                whole = at
        if runs:  # rare: begin this run anew when the rest is there
            del self.got[before:]
            whole = 0
        self.tail = data[whole:]
        return len(self.got) - before


def subscribe_all(sessions: list[Session]) -> list[float]:
    """All subscriptions of all sessions, a few at a time; when each tenth was done."""
    total = sum(len(session.ends) for session in sessions)
    waiting = iter(sessions)
    active = {session.sock.fileno(): session for session in itertools.islice(waiting, ACTIVE)}
    done = 0
    marks = [time.monotonic()]
    while active:
        for session in active.values():
            session.ask()
        ready = select.select(list(active), [], [], ANSWER_SECONDS)[0]
        if not ready:
            raise LostError(f"no answer within {ANSWER_SECONDS:.0f} s, after {done}")
        for fd in ready:
            session = active[fd]
            before = session.answered
            session.take()
            done += session.answered - before
            if session.done:
                del active[fd]
                for another in itertools.islice(waiting, 1):
                    active[another.sock.fileno()] = another
        while len(marks) <= 10 * done // total:
            marks.append(time.monotonic())
    return marks


# ------------------------------------------------------------------------------ preparation


def holds(each: Filter, attributes: dict[str, Any]) -> bool:
    """Whether attributes satisfy a filter; all that it names are there."""
    for name, operator, value in each.terms:
        given = attributes[name]
        if (
            (operator == EQUAL and given != value)
            or (operator == BETWEEN and not value[0] <= given <= value[1])
            or (operator == ABOVE and not given > value)
            or (operator == AMONG and given not in value)
        ):
            return False
    return True


@dataclass
class Plan:
    """Who asks for what, which events are published in the end, and who must get them."""

    sessions: list[Session]
    checks: list[bytes]
    expected: dict[int, list[tuple[int, int]]]  # session: message, subscription
    text_bytes: int


def prepare(size: int) -> Plan:
    """Everything that can be made before the time counts."""
    workload = Selective((size,))
    rng = random.Random("checks")
    events = [workload.event(rng, 0).attributes for _ in range(CHECKS)]
    messages = [
        Message(CHECK_TOPIC, attributes=attributes, id=number)
        for number, attributes in enumerate(events)
    ]
    by_symbol: dict[Any, list[int]] = {}
    for number, attributes in enumerate(events):
        by_symbol.setdefault(attributes["symbol"], []).append(number)
    plan = Plan([], [native.encode(message) for message in messages], {}, 0)
    filters = workload.filters(0)
    count = max(SESSIONS_MIN, -(-size // A_SESSION))
    for which in range(count):
        frames = []
        share = size * (which + 1) // count - size * which // count
        expected = plan.expected[which] = []
        for number, each in enumerate(itertools.islice(filters, share), 1):
            text = each.text()
            plan.text_bytes += len(text)
            frames.append(native.encode(native.Subscribe(number, PATTERN, text)))
            symbol = each.terms[0][2]
            expected += [
                (event, number) for event in by_symbol.get(symbol, ()) if holds(each, events[event])
            ]
        ends = array("q", itertools.accumulate(map(len, frames)))
        plan.sessions.append(Session(b"".join(frames), ends))
    return plan


def check(plan: Plan, port: int) -> str:
    """Publish the events that match; what is wrong with what comes, if anything."""
    publisher = RegraftChannel(connect(port), 1)
    greet(publisher)
    for frame in plan.checks:
        publisher.sock.sendall(frame)
    wanted = sum(len(pairs) for pairs in plan.expected.values())
    got = 0
    quiet = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < quiet:
        came = sum(session.take_messages() for session in plan.sessions)
        got += came
        if came:
            quiet = time.monotonic() + (QUIET_SECONDS if got < wanted else GRACE_SECONDS)
        time.sleep(0.01)
    publisher.sock.close()
    for which, session in enumerate(plan.sessions):
        if sorted(session.got) != sorted(plan.expected[which]):
            return f"of {wanted} expected deliveries {got} came, and not the right ones"
    return ""


# ------------------------------------------------------------------------------ running


@dataclass
class Result:
    """What was measured."""

    size: int
    sessions: int
    marks: list[float]  # when each tenth was subscribed
    phases: dict[str, tuple[float, float]]
    rss_before: int
    rss_after: int
    rss_left: int
    text_bytes: int
    server_cpu: float  # while subscribing
    late: dict[str, list[float]] = field(default_factory=dict)  # by phase, s
    generator: dict[str, list[float]] = field(default_factory=dict)
    fault: str = ""

    @property
    def seconds(self) -> float:
        return self.marks[-1] - self.marks[0]


def watch(plan: Plan, server: Server, seconds: float) -> Result:
    """The phases, one after the other."""
    for session in plan.sessions:
        session.open(server.port)
    time.sleep(1.0)
    rss_before = server.rss_bytes()
    begin = time.monotonic()
    time.sleep(seconds)
    cpu = server.cpu_seconds()
    marks = subscribe_all(plan.sessions)
    assert server.is_running()
    cpu = server.cpu_seconds() - cpu
    time.sleep(1.0)  # what is left of the burst is neither while nor after
    settled = time.monotonic()
    time.sleep(seconds)
    after = time.monotonic()
    rss_after = server.rss_bytes()
    fault = check(plan, server.port)
    time.sleep(1.0)
    leaving = time.monotonic()
    for session in plan.sessions:
        session.sock.close()
    time.sleep(seconds)
    end = time.monotonic()
    return Result(
        sum(len(session.ends) for session in plan.sessions),
        len(plan.sessions),
        marks,
        {
            "before": (begin, marks[0]),
            "while": (marks[0], marks[-1]),
            "after": (settled, after),
            "leaving": (leaving, end),
        },
        rss_before,
        rss_after,
        server.rss_bytes(),
        plan.text_bytes,
        cpu,
        fault=fault,
    )


def in_phases(
    start: float, rate: int, values: array[float], phases: dict[str, tuple[float, float]]
) -> dict[str, list[float]]:
    """The values of the messages that were due in each phase."""
    found = {}
    for name, (begin, end) in phases.items():
        first, last = (max(0, int((at - start) * rate)) for at in (begin, end))
        found[name] = sorted(values[first:last])
    return found


def measure(size: int, rate: int, seconds: float) -> Result:
    """A node, the steady publisher beside it, and all the sessions."""
    plan = prepare(size)
    stop = FORK.RawValue("b", 0)
    with running(REGRAFT) as server:
        here, there = FORK.Pipe()
        steady = FORK.Process(target=run_steady, args=(server.port, rate, stop, there))
        steady.start()
        there.close()
        try:
            if said := here.recv():
                raise LostError(said)
            result = watch(plan, server, seconds)
            stop.value = 1
            told = here.recv() if here.poll(LATE_SECONDS + 5) else "the steady publisher is silent"
        except EOFError:
            told = "the steady publisher ended without a word"
        finally:
            stop.value = 1
            steady.join(LATE_SECONDS + 5)
            if steady.is_alive():
                steady.kill()
                steady.join()
    if isinstance(told, str):
        raise LostError(told)
    start, left, came = told
    if len(came) < len(left):
        missing = f"{len(left) - len(came)} of {len(left)} steady messages never came back"
        result.fault = "; ".join(filter(None, (result.fault, missing)))
    result.late = in_phases(start, rate, came, result.phases)
    result.generator = in_phases(start, rate, left, result.phases)
    return result


# ------------------------------------------------------------------------------ paper


def latency_rows(result: Result) -> Iterator[list[str]]:
    for name, values in result.late.items():
        begin, end = result.phases[name]
        row = [name, f"{end - begin:.1f}", f"{len(values):,}"]
        if not values:
            yield [*row, *["-"] * (len(SHARES) + 3)]
            continue
        row += [f"{report.percentile(values, share) * 1e6:,.0f}" for share in SHARES.values()]
        own = result.generator[name]
        row += [
            f"{values[-1] * 1e3:,.1f}",
            *(f"{report.percentile(own, share) * 1e6:,.0f}" for share in (0.5, 0.99)),
        ]
        yield row


def show(result: Result, rate: int) -> None:
    each = (result.rss_after - result.rss_before) / result.size
    text = result.text_bytes / result.size
    print(
        f"{result.size:,} subscriptions of {result.sessions} sessions in {result.seconds:.1f} s: "
        f"{result.size / result.seconds:,.0f} a second; the node used "
        f"{result.server_cpu / result.seconds:.0%} of a processor"
    )
    print(
        f"memory of the node: {result.rss_before / 1e6:.0f} MB before, "
        f"{result.rss_after / 1e6:.0f} MB after, {each:.0f} B a subscription "
        f"(its text has {text:.0f}); {result.rss_left / 1e6:.0f} MB when all had left"
    )
    tenths = [b - a for a, b in itertools.pairwise(result.marks)]
    rates = [result.size / 10 / tenth if tenth > 0 else 0.0 for tenth in tenths]
    print(f"subscriptions a second, by tenths: {', '.join(f'{each:,.0f}' for each in rates)}")
    print(f"\nlatency of {rate:,} messages a second:")
    head = ("phase", "s", "messages", *SHARES, "longest ms", "generator late p50", "p99")
    print(report.table(head, list(latency_rows(result)), words=1))


def told(result: Result | None) -> list[Goal]:
    """What was measured, with no bound yet."""

    def goal(name: str, unit: str, measured: float | None) -> Goal:
        return Goal(name, f"told only, {unit}", report.rounded(measured), None)

    rate = result.size / result.seconds if result else None
    each = (result.rss_after - result.rss_before) / result.size if result else None
    goals = [goal("subscriptions a second", "1/s", rate), goal("memory of one", "B", each)]
    for phase in ("before", "while", "after", "leaving"):
        for name, share in list(SHARES.items())[:2]:
            values = result.late.get(phase) if result else None
            measured = report.percentile(values, share) * 1e6 if values else None
            goals.append(goal(f"latency {phase}, {name.split()[0]}", "µs", measured))
    bad = result is None or result.fault
    met = 0.0 if bad else 1.0
    return [*goals, Goal("all that was due was delivered", "yes", met, not bad)]


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.subscribing", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--size", type=int, help="subscriptions; default 1,000,000, quick 20,000")
    parser.add_argument("--rate", type=int, default=RATE, help="steady messages a second")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    size = options.size or (QUICK if options.quick else FULL)
    raise_file_limit(size // A_SESSION + SPARE_FILES)
    neighbours = Neighbours()
    notes = []
    result = None
    try:
        result = measure(size, options.rate, 3.0 if options.quick else 10.0)
        show(result, options.rate)
        if result.fault:
            notes.append(result.fault)
    except (OSError, LostError) as error:
        notes.append(f"nothing was measured: {error}")
    return report.finish("subscribing", told(result), notes + neighbours.remark())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
