"""What the nodes of a network hold and say when many clients subscribe; a part of `hops`.

Filters are `symbol = x AND price BETWEEN a AND b`, narrow ones and wide ones, so that most are
covered by others. They are spread evenly over the nodes. What each link should have been told is
known beforehand: the filters on its one side, with covering those that no other covers.
"""

from __future__ import annotations

import itertools
import random
import select
import struct
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil

from bench import report
from bench.dialects import LostError, RegraftChannel, connect
from bench.network import Member, Network, links, planted
from bench.report import Goal
from bench.subscribing import A_SESSION, Session, greet, subscribe_all
from regraft.model.message import Message
from regraft.wire import native
from regraft.wire.native import Kind

FULL, QUICK = 100_000, 3_500
SEED = 1
PER_SYMBOL = 100  # filters
PRICE = 1_000
WIDEST = 300
PATTERN = "bench/#"
CHECK_TOPIC = "bench/check"
MARK_TOPIC = "mark"
CHECKS = 100  # events of which every delivery is looked at
MARK_SECONDS = 0.05  # between two rounds of marks
COMPLETE_SECONDS = 600.0
QUIET_SECONDS = 10.0  # nothing comes for so long: nothing more will
GRACE_SECONDS = 0.5  # for what should not come
SETTLE_SECONDS = 10.0

HEAD_OF_FRAME = struct.Struct("<IB")


class Range(NamedTuple):
    """A filter."""

    symbol: int
    low: int
    high: int

    def text(self) -> str:
        return f"symbol = 'S{self.symbol:05d}' AND price BETWEEN {self.low} AND {self.high}"


def filters(size: int) -> list[Range]:
    """Widths of all magnitudes: a wide one covers many."""
    rng = random.Random(SEED)
    symbols = max(1, size // PER_SYMBOL)
    found = []
    for _ in range(size):
        width = int(WIDEST ** rng.random())
        low = rng.randrange(PRICE - width)
        found.append(Range(rng.randrange(symbols), low, low + width))
    return found


def uncovered(ranges: Sequence[Range]) -> int:
    """How many are left if those that another covers are left out, and equal ones are one."""
    count = 0
    symbol, highest = -1, -1
    for each in sorted(set(ranges), key=lambda r: (r.symbol, r.low, -r.high)):
        if each.symbol != symbol:
            symbol, highest = each.symbol, -1
        if each.high > highest:
            highest = each.high
            count += 1
    return count


# ------------------------------------------------------------------------------ what should be


def below(parents: Sequence[int | None], node: int) -> set[int]:
    """A node and all beneath it."""
    found = {node}
    for each, parent in enumerate(parents):  # parents come before their children
        if parent in found:
            found.add(each)
    return found


def expected(
    parents: Sequence[int | None], spread: list[list[Range]], covering: bool
) -> dict[tuple[int, int], int]:
    """For each link and direction, from and to, how many filters should have been told.

    Each node has one of its own, by which others send it what its mailboxes get.
    """
    told = {}
    for child, parent in enumerate(parents):
        if parent is None:
            continue
        under = below(parents, child)
        for here, there, side in (
            (child, parent, under),
            (parent, child, set(range(len(parents))) - under),
        ):
            ranges = [each for node in side for each in spread[node]]
            clients = uncovered(ranges) if covering else len(set(ranges))
            told[here, there] = len(side) + clients
    return told


# ------------------------------------------------------------------------------ subscribing


def sessions_of(ranges: Sequence[Range]) -> Iterator[tuple[Session, list[Range]]]:
    """As few as a node allows, each with its share."""
    for start in range(0, len(ranges), A_SESSION):
        share = list(ranges[start : start + A_SESSION])
        frames = [
            native.encode(native.Subscribe(number, PATTERN, each.text()))
            for number, each in enumerate(share, 1)
        ]
        ends = array("q", itertools.accumulate(map(len, frames)))
        yield Session(b"".join(frames), ends), share


class Marker:
    """A connection that publishes marks to all nodes, and takes those that are for its own."""

    def __init__(self, member: Member) -> None:
        self.number = member.number
        channel = RegraftChannel(connect(member.port), 1)
        greet(channel)
        wish = native.Subscribe(1, f"{MARK_TOPIC}/{member.number}", "", True)
        channel.sock.sendall(native.encode(wish))
        while native.Subscribed not in channel.seen:
            channel.read()
        self.sock = channel.sock
        self.sock.setblocking(False)
        self.came: set[int] = set()  # from which nodes
        self._tail = b""

    def fileno(self) -> int:
        return int(self.sock.fileno())

    def publish(self, missing: set[int]) -> None:
        """One mark to each of these nodes; the few that there are stay below any credit."""
        body = bytes([self.number])
        data = b"".join(native.encode(Message(f"{MARK_TOPIC}/{to}", body)) for to in missing)
        self.sock.sendall(data)

    def take(self) -> None:
        data = self._tail + self.sock.recv(64 * 1024)
        if data == self._tail:
            raise LostError("a node ended a connection")
        at, size = 0, len(data)
        while size - at >= native.HEADER_BYTES:
            length, kind = HEAD_OF_FRAME.unpack_from(data, at)
            if size - at < length + 4:
                break
            if kind == Kind.MESSAGE:
                payload = data[at + native.HEADER_BYTES : at + length + 4]
                self.came.add(native.decode(kind, payload).body[0])
            at += length + 4
        self._tail = data[at:]


def wait_until_complete(members: Sequence[Member]) -> None:
    """Return when what was subscribed by now is known everywhere.

    Nodes pass interests on in their order. So the last thing that a client of each node subscribes
    to is a mark of its own, and when marks come through from everywhere, all else does.
    """
    markers = [Marker(member) for member in members]
    everybody = {member.number for member in members}
    deadline = time.monotonic() + COMPLETE_SECONDS
    while True:
        missing = {marker.number: everybody - marker.came for marker in markers}
        if not any(missing.values()):
            break
        if time.monotonic() > deadline:
            pairs = sum(map(len, missing.values()))
            raise LostError(f"{pairs} ways are not there after {COMPLETE_SECONDS:.0f} s")
        for marker in markers:
            marker.publish({to for to, lacking in missing.items() if marker.number in lacking})
        until = time.monotonic() + MARK_SECONDS
        while (left := until - time.monotonic()) > 0:
            for marker in select.select(markers, [], [], left)[0]:
                marker.take()
    for marker in markers:
        marker.sock.close()


# ------------------------------------------------------------------------------ measuring


@dataclass
class Outcome:
    """What one network did."""

    covering: bool
    size: int
    seconds_subscribed: float  # until the last subscription was confirmed
    seconds_complete: float  # until it was known everywhere
    held: list[int]  # by node: filters that its neighbours want
    told: int  # filters that nodes told each other, in the end
    asked: int  # the same, as it should be
    differing: list[str]  # links that were told more or fewer
    frames: int | None
    size_bytes: int | None
    said: int | None  # filters said and taken back, in all
    cpu: float
    rss: list[int]
    lost: int  # ends of links that were given up meanwhile
    fault: str = ""


def counters(network: Network, name: str) -> int | None:
    """The sum of a counter over all nodes; None if they do not have it."""
    values = [each.get(name, each["counters"].get(name)) for each in network.topologies()]
    return None if None in values else sum(values)


def told_over_links(topologies: Sequence[dict[str, Any]]) -> dict[tuple[int, int], int]:
    """For each link and direction, from and to, how many filters were told."""
    numbers = {each["id"]: number for number, each in enumerate(topologies)}
    return {
        (number, numbers[link["node"]]): link["sent"]
        for number, each in enumerate(topologies)
        for link in links(each)
    }


def differences(told: dict[tuple[int, int], int], wanted: dict[tuple[int, int], int]) -> list[str]:
    return [
        f"node {link[0]} told node {link[1]} {told.get(link)} filters instead of {count}"
        for link, count in wanted.items()
        if told.get(link) != count
    ]


def settled(network: Network, wanted: dict[tuple[int, int], int]) -> list[dict[str, Any]]:
    """The topologies when the marks have been taken back, or some time later."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        topologies = network.topologies()
        if told_over_links(topologies) == wanted or time.monotonic() > deadline:
            return topologies
        time.sleep(0.1)


def watch(size: int, parents: Sequence[int | None], covering: bool) -> Outcome:
    """A network, all subscriptions, and what became of them."""
    ranges = filters(size)
    spread = [ranges[node :: len(parents)] for node in range(len(parents))]
    settings = {"REGRAFT_COVERING": "on" if covering else "off"}
    with planted("tree", parents, settings) as network:
        holders: list[tuple[Session, list[Range], int]] = []
        for member in network.members:
            for session, share in sessions_of(spread[member.number]):
                session.open(member.port)
                holders.append((session, share, member.number))
        holders.sort(key=lambda holder: -len(holder[1]))  # one of each node first
        names = ("interests_frames_sent", "interests_bytes_sent", "interests_filters_sent")
        before = [counters(network, name) for name in names]
        cpu = network.cpu_seconds()
        begin = time.monotonic()
        subscribe_all([session for session, _, _ in holders])
        subscribed = time.monotonic()
        wait_until_complete(network.members)
        complete = time.monotonic()
        cpu = network.cpu_seconds() - cpu
        after = [counters(network, name) for name in names]
        frames, size_bytes, said = (
            None if a is None or b is None else b - a for a, b in zip(before, after, strict=True)
        )
        fault = check(network, holders)
        wanted = expected(parents, spread, covering)
        topologies = settled(network, wanted)
        told = told_over_links(topologies)
        return Outcome(
            covering,
            size,
            subscribed - begin,
            complete - begin,
            [sum(link["received"] for link in links(each)) for each in topologies],
            sum(told.values()),
            sum(wanted.values()),
            differences(told, wanted),
            frames,
            size_bytes,
            said,
            cpu,
            [psutil.Process(member.pid).memory_info().rss for member in network.members],
            sum(each["counters"].get("dead", 0) for each in topologies),
            fault,
        )


def check(network: Network, holders: list[tuple[Session, list[Range], int]]) -> str:
    """Publish events at all nodes; what is wrong with what comes, if anything."""
    rng = random.Random("checks")
    symbols = 1 + max(each.symbol for _, share, _ in holders for each in share)
    events = [(rng.randrange(symbols), rng.randrange(PRICE)) for _ in range(CHECKS)]
    by_symbol: dict[int, list[tuple[int, int]]] = {}
    for number, (symbol, price) in enumerate(events):
        by_symbol.setdefault(symbol, []).append((number, price))
    due: list[list[tuple[int, int]]] = [
        [
            (number, subscription)
            for subscription, each in enumerate(share, 1)
            for number, price in by_symbol.get(each.symbol, ())
            if each.low <= price <= each.high
        ]
        for _, share, _ in holders
    ]
    for number, (symbol, price) in enumerate(events):
        attributes: dict[str, Any] = {"symbol": f"S{symbol:05d}", "price": price}
        message = Message(CHECK_TOPIC, b"x" * 45, attributes, id=number)
        publisher = RegraftChannel(connect(network.members[number % len(network.members)].port), 1)
        greet(publisher)
        publisher.sock.sendall(native.encode(message) + native.encode(native.Bye()))
        while publisher.sock.recv(1024):
            pass
        publisher.sock.close()
    wanted, got = sum(map(len, due)), 0
    quiet = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < quiet:
        came = sum(session.take_messages() for session, _, _ in holders)
        got += came
        if came:
            quiet = time.monotonic() + (QUIET_SECONDS if got < wanted else GRACE_SECONDS)
        time.sleep(0.01)
    for (session, _, _), pairs in zip(holders, due, strict=True):
        if sorted(session.got) != sorted(pairs):
            return f"of {wanted} expected deliveries {got} came, and not the right ones"
    return ""


# ------------------------------------------------------------------------------ paper

HEAD = ("covering", "subscriptions", "filters of neighbours, a node", "most", "told over links",
        "as it should be", "said in all", "INTERESTS frames", "MB", "s confirmed", "s complete",
        "cpu s", "MB a node")  # fmt: skip


def row(outcome: Outcome) -> list[str]:
    def shown(value: float | None, form: str = ",.0f") -> str:
        return "-" if value is None else format(value, form)

    nodes = len(outcome.held)
    size = None if outcome.size_bytes is None else outcome.size_bytes / 1e6
    return [
        "on" if outcome.covering else "off",
        f"{outcome.size:,}",
        f"{sum(outcome.held) / nodes:,.0f}",
        f"{max(outcome.held):,}",
        f"{outcome.told:,}",
        f"{outcome.asked:,}",
        shown(outcome.said),
        shown(outcome.frames),
        shown(size, ".2f"),
        f"{outcome.seconds_subscribed:.1f}",
        f"{outcome.seconds_complete:.1f}",
        f"{outcome.cpu:.1f}",
        f"{sum(outcome.rss) / nodes / 1e6:.0f}",
    ]


def judge(outcomes: list[Outcome]) -> list[Goal]:
    def only_told(name: str, unit: str, measured: float | None) -> Goal:
        return Goal(name, f"told only, {unit}", report.rounded(measured), None)

    goals = []
    for outcome in outcomes:
        which = f"covering {'on' if outcome.covering else 'off'}"
        held = sum(outcome.held) / len(outcome.held)
        goals += [
            only_told(f"{which}: filters of neighbours, a node", "filters", held),
            only_told(f"{which}: routes complete after", "s", outcome.seconds_complete),
        ]
    good = len(outcomes) == 2 and not any(each.fault for each in outcomes)
    exact = len(outcomes) == 2 and not any(each.differing for each in outcomes)
    return [
        *goals,
        Goal("all that was due was delivered", "yes", float(good), good),
        Goal("every link was told exactly what it should", "yes", float(exact), exact),
    ]


def run(size: int, parents: Sequence[int | None]) -> tuple[list[Goal], list[str]]:
    """Both ways, the table, the goals and the notes."""
    outcomes, notes = [], []
    for covering in (True, False):
        which = f"covering {'on' if covering else 'off'}"
        print(f"{size} subscriptions, {which}", file=sys.stderr, flush=True)
        try:
            outcome = watch(size, parents, covering)
        except (OSError, LostError) as error:
            notes.append(f"{which}: {error!r}")
            continue
        outcomes.append(outcome)
        if outcome.fault:
            notes.append(f"{which}: {outcome.fault}")
        notes += [f"{which}: {text}" for text in outcome.differing]
        if outcome.lost:
            lost = f"{outcome.lost} ends of links were given up meanwhile, and all was told again"
            notes.append(f"{which}: {lost}")
    print()
    print(report.table(HEAD, [row(outcome) for outcome in outcomes], words=1))
    return judge(outcomes), notes
