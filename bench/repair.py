"""How long a network of nodes is incomplete when one of them dies, seen from outside.

    python -m bench.repair [--quick] [--kills N] [--nodes N] [--beacon-ms MS] [--only killed,silent]

Fifteen nodes find their places in a tree by themselves. There is a subscriber at each. An inner
node dies, by SIGKILL or by SIGSTOP, while probes are published on all sides of it, one every two
milliseconds. Routes are complete from the first probe on after which every probe of every side
reaches all subscribers that are left. The node is started again, and when it is back in its place
the next one dies.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench import report
from bench.dialects import LostError, RegraftChannel, connect
from bench.network import Member, inspect, is_one_tree, joined
from bench.servers import Neighbours
from regraft.model.message import Message
from regraft.wire import native
from regraft.wire.native import Kind

NODES = 15
MAX_DEGREE = 4
BEACON_MS = 500
KILLS, KILLS_QUICK = 100, 10
KILLED_MS = 200.0  # routes complete after a broken socket, p99
SILENT_PERIODS = 3  # of beacons, after a silence

PERIOD_SECONDS = 0.002  # between two probes
BEFORE_SECONDS = 0.05  # of probes, before the death
FLIGHT_SECONDS = 0.1  # a probe that is not everywhere after so long is lost
STEADY_PROBES = 5  # complete ones of every side, behind the last that was lost
REPAIR_SECONDS = 20.0  # then it counts as never
JOIN_SECONDS = 30.0  # for a node that was started again
SETTLE_SECONDS = 0.5  # between a join and the next death: spare connections are opened meanwhile
READ_BYTES = 64 * 1024

TOPIC = "bench/probe"
PROBE = struct.Struct("<II")  # a mark that is found again, and the number
MARK = 0x5EED5EED
HEAD = struct.Struct("<IB")  # length and kind of a frame
FRAME_BYTES_MAX = 1024 * 1024

DEATHS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}

ELSEWHERE = (
    "as published, not measured here: Zenoh notices a silent neighbour after its lease of 10 s; "
    "NATS JetStream elects a leader after 4 to 9 s; Artemis checks its cluster every 30 s"
)


def probe_frame(number: int) -> bytes:
    return native.encode(Message(TOPIC, PROBE.pack(MARK, number)))


SAMPLE = probe_frame(0)
NUMBER_AT = SAMPLE.index(MARK.to_bytes(4, "little")) + 4  # in a frame; all are alike


# ------------------------------------------------------------------------------ probing


class Tap:
    """The connection to one node: it publishes probes and gets all of them."""

    def __init__(self, port: int) -> None:
        channel = RegraftChannel(connect(port), len(SAMPLE))
        hello = native.Hello(version_min=1, version_max=1, agent="bench", passive=True)
        channel.sock.sendall(native.PREFACE + native.encode(hello))
        while native.Welcome not in channel.seen:
            channel.read()
        channel.sock.sendall(native.encode(native.Subscribe(1, TOPIC, "", True)))
        while native.Subscribed not in channel.seen:
            channel.read()
        self.sock: socket.socket = channel.sock
        self.sock.setblocking(False)
        self.allowed = channel.granted.messages  # in all; bytes never run out before
        self.allowed_bytes = channel.granted.bytes
        self.sent = 0
        self._tail = b""

    def publish(self, number: int) -> bool:
        """One probe, unless the node wants none now."""
        if self.sent >= self.allowed or self.sent * len(SAMPLE) >= self.allowed_bytes:
            return False
        try:
            whole = self.sock.send(probe_frame(number)) == len(SAMPLE)
        except BlockingIOError:
            return False
        if not whole:
            raise LostError("half a probe was taken")
        self.sent += 1
        return True

    def numbers(self) -> Iterator[int]:
        """The probes that came."""
        try:
            data = self._tail + self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if data == self._tail:
            raise LostError("a node that lives ended a connection")
        at, size = 0, len(data)
        while size - at >= native.HEADER_BYTES:
            length, kind = HEAD.unpack_from(data, at)
            if size - at < length + 4:
                break
            if kind == Kind.MESSAGE:
                yield int.from_bytes(data[at + NUMBER_AT : at + NUMBER_AT + 4], "little")
            elif kind != Kind.TRANSFER:
                self._control(data, at)
            at += length + 4
        self._tail = data[at:]

    def _control(self, data: bytes, at: int) -> None:
        found = native.read_frame(data, at, FRAME_BYTES_MAX)
        assert found is not None
        frame = native.decode(found[0], found[2])
        if isinstance(frame, native.Credit):
            self.allowed, self.allowed_bytes = frame.messages, frame.bytes
        elif not isinstance(frame, native.Heartbeat):
            raise LostError(repr(frame)[:300])


@dataclass
class Probes:
    """What was published since a moment, and who got it."""

    sides: Sequence[int]  # whose taps publish, in turn
    everybody: int  # bits of the nodes that should get them
    first: int  # the number of the first
    at: list[float] = field(default_factory=list)
    got: list[int] = field(default_factory=list)  # bits of the nodes
    side: list[int] = field(default_factory=list)
    refused: int = 0  # by want of credit
    twice: int = 0

    def note(self, number: int, bit: int) -> None:
        index = number - self.first
        if index < 0:
            return  # from before
        if self.got[index] & bit:
            self.twice += 1
        self.got[index] |= bit

    def complete_since(self, moment: float, now: float) -> float | None:
        """Since when, after a moment, all probes of all sides are complete; None if they are not.

        What was published less than the time of a flight ago is left aside.
        """
        since = moment
        for side in self.sides:
            steady = 0
            start = 0.0
            for index in range(len(self.at) - 1, -1, -1):
                at = self.at[index]
                if at < moment:
                    break
                if self.side[index] != side or at > now - FLIGHT_SECONDS:
                    continue
                if self.got[index] & self.everybody != self.everybody:
                    break
                steady += 1
                start = at
            if steady < STEADY_PROBES:
                return None
            since = max(since, start)
        return since

    def gaps(self) -> str:
        """What became of the last probes of each side."""
        found = []
        for side in self.sides:
            last = [
                got
                for got, of, at in zip(self.got, self.side, self.at, strict=True)
                if of == side and at < self.at[-1] - FLIGHT_SECONDS
            ][-50:]
            lacking = {
                number: sum(1 for got in last if not got >> number & 1)
                for number in range(self.everybody.bit_length())
                if self.everybody >> number & 1
            }
            short = [f"{count} to node {number}" for number, count in lacking.items() if count]
            lost = f"{', '.join(short)} did not come" if short else "all came"
            found.append(f"of the last {len(last)} from node {side} {lost}")
        return "; ".join(found)

    def missing(self) -> list[int]:
        """For each probe, how many did not get it."""
        return [(self.everybody & ~got).bit_count() for got in self.got]


class Harness:
    """All taps, one loop."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.taps: dict[int, Tap] = {}
        self.poll = select.epoll()
        self.numbers: dict[int, int] = {}  # of the members, by fd
        self.next = 0
        self.probes = Probes((), 0, 0)
        for member in members:
            self.open(member.number)

    def open(self, number: int) -> None:
        tap = self.taps[number] = Tap(self.members[number].port)
        self.numbers[tap.sock.fileno()] = number
        self.poll.register(tap.sock.fileno(), select.EPOLLIN)

    def close(self, number: int) -> None:
        tap = self.taps.pop(number)
        self.poll.unregister(tap.sock.fileno())
        del self.numbers[tap.sock.fileno()]
        tap.sock.close()

    def begin(self, sides: Sequence[int]) -> Probes:
        """From now on probes of these sides; all who have a tap should get them."""
        everybody = sum(1 << number for number in self.taps)
        self.probes = Probes(sides, everybody, self.next)
        return self.probes

    def run(self, seconds: float, publish: bool = True) -> None:
        """Publish what is due and take what comes, for so long."""
        probes, taps, clock = self.probes, self.taps, time.monotonic
        start = clock()
        due = 0
        while (now := clock()) < start + seconds:
            if publish and now >= start + due * PERIOD_SECONDS:
                due = int((now - start) / PERIOD_SECONDS) + 1  # what was missed is not made up for
                side = probes.sides[self.next % len(probes.sides)]
                probes.at.append(clock())
                probes.got.append(0)
                probes.side.append(side)
                if not taps[side].publish(self.next):
                    probes.refused += 1
                self.next += 1
            wait = start + due * PERIOD_SECONDS - clock() if publish else 0.01
            for fd, _ in self.poll.poll(max(0.0, min(wait, start + seconds - clock()))):
                number = self.numbers[fd]
                for probe in taps[number].numbers():
                    probes.note(probe, 1 << number)

    def run_until_complete(self, moment: float, seconds: float) -> float | None:
        """Until routes are complete: since when they are, or None when time is up."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            self.run(0.02)
            if self.probes.complete_since(moment, now) is not None:
                self.run(FLIGHT_SECONDS, publish=False)  # those that are on their way belong to it
                since = self.probes.complete_since(moment, time.monotonic())
                if since is not None:
                    return since
        return None


# ------------------------------------------------------------------------------ dying


@dataclass(frozen=True)
class Death:
    """One death and what came of it; times in ms."""

    member: int
    was_root: bool
    degree: int
    repair_ms: float | None  # None: never, as far as was waited
    probes_lost: int  # that did not reach everybody
    deliveries_lost: int
    deliveries: int  # that were due while the network was incomplete
    refused: int
    twice: int
    joined_s: float  # from its new start until all reach it and it reaches all
    fault: str = ""


def places(members: list[Member]) -> list[dict[str, Any]]:
    """All topologies, once they are one tree and their links are told everything."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        found = [inspect(member.port, "topology") for member in members]
        synced = all(link["synced"] for each in found for link in each["routing"]["links"].values())
        if is_one_tree(found) and synced:
            return found
        if time.monotonic() > deadline:
            raise LostError(f"no single tree within {JOIN_SECONDS:.0f} s")
        time.sleep(0.05)


def disagreements(members: list[Member]) -> str:
    """Links whose ends do not tell the same story: what one sent, the other has not."""
    found = {
        member.number: inspect(member.port, "topology") for member in members if member.is_running()
    }
    by_id = {each["id"]: number for number, each in found.items()}
    sent, received = {}, {}
    for number, each in found.items():
        for link in each["links"]:
            other = by_id.get(link["node"], -1)
            sent[number, other] = link["sent"]
            received[other, number] = link["received"]
    odd = [
        f"{here} sent {there} {sent.get((here, there))}, which has {received.get((here, there))}"
        for here, there in sorted(sent.keys() | received.keys())
        if sent.get((here, there)) != received.get((here, there))
    ]
    roots = [str(number) for number, each in found.items() if each["parent"] is None]
    return f"roots: {', '.join(roots)}; links: {'; '.join(odd) or 'all agree'}"


class Undertaker:
    """Chooses who dies, and sees to it."""

    def __init__(self, members: list[Member], seed: int) -> None:
        self.members = members
        self.harness = Harness(members)
        self.random = random.Random(seed)
        self.died = dict.fromkeys(range(len(members)), 0)  # when, last: the count of deaths
        self.deaths = 0

    def victim(self, found: list[dict[str, Any]]) -> int:
        """An inner node; of these the one that lives longest."""
        inner = [number for number, each in enumerate(found) if len(each["links"]) > 1]
        least = min(self.died[number] for number in inner)
        return self.random.choice([number for number in inner if self.died[number] == least])

    def death(self, how: str) -> Death:
        """Let one die, wait until the others have arranged themselves, and bring it back."""
        harness = self.harness
        found = places(self.members)
        harness.run(SETTLE_SECONDS, publish=False)
        victim = self.victim(found)
        self.deaths += 1
        self.died[victim] = self.deaths
        by_id = {each["id"]: number for number, each in enumerate(found)}
        sides = [by_id[link["node"]] for link in found[victim]["links"]]
        harness.close(victim)
        probes = harness.begin(sides)
        harness.run(BEFORE_SECONDS)
        gc.collect()
        moment = time.monotonic()
        self.members[victim].send_signal(DEATHS[how])
        since = harness.run_until_complete(moment, REPAIR_SECONDS)
        missing = probes.missing()
        during = sum(1 for at in probes.at if moment <= at < (since or probes.at[-1]))
        death = Death(
            victim,
            found[victim]["parent"] is None,
            len(sides),
            None if since is None else (since - moment) * 1e3,
            sum(1 for count in missing if count),
            sum(missing),
            during * probes.everybody.bit_count(),
            probes.refused,
            probes.twice,
            0.0,
            "" if since is not None else self.complaint(REPAIR_SECONDS),
        )
        return self.revive(death)

    def complaint(self, seconds: float) -> str:
        alive = [self.members[number] for number in self.harness.taps]
        return (
            f"routes were not complete within {seconds:.0f} s: {self.harness.probes.gaps()}; "
            f"{self.harness.probes.refused} probes were not sent by want of credit; "
            f"{disagreements(alive)}"
        )

    def revive(self, death: Death) -> Death:
        """Start it again and wait until it is back."""
        harness, member = self.harness, self.members[death.member]
        member.end()
        begin = time.monotonic()
        member.start()
        while not member.is_listening():
            if time.monotonic() > begin + JOIN_SECONDS:
                raise LostError(f"node {member.number} does not listen: {member.last_words()}")
            harness.run(0.02, publish=False)
        harness.open(member.number)
        other = next(number for number in harness.taps if number != member.number)
        probes = harness.begin([member.number, other])
        since = harness.run_until_complete(begin, JOIN_SECONDS)
        if since is None:
            raise LostError(
                f"node {member.number} did not come back: {self.complaint(JOIN_SECONDS)}"
            )
        twice = death.twice + probes.twice
        return replace(death, joined_s=since - begin, twice=twice)


def watch(members: list[Member], hows: Sequence[str], kills: int) -> dict[str, list[Death]]:
    """All deaths, of one kind after the other; what was measured before a failure stays."""
    deaths: dict[str, list[Death]] = {how: [] for how in hows}
    undertaker = Undertaker(members, 1)
    gc.disable()
    try:
        for how in hows:
            for number in range(kills):
                death = undertaker.death(how)
                deaths[how].append(death)
                told = "never" if death.repair_ms is None else f"{death.repair_ms:.0f} ms"
                print(
                    f"{how} {number + 1}/{kills}: node {death.member}"
                    f"{', the root' if death.was_root else ''}, {death.degree} neighbours: {told}, "
                    f"{death.probes_lost} probes lost, back after {death.joined_s:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
    except (OSError, LostError) as error:
        deaths[how].append(Death(-1, False, 0, None, 0, 0, 0, 0, 0, 0.0, repr(error)))
    finally:
        gc.enable()
    return deaths


# ------------------------------------------------------------------------------ paper

COLUMNS = ("death", "of", "deaths", "p50 ms", "p99 ms", "longest ms", "probes lost p50", "most",
           "deliveries lost meanwhile", "back after p50 s", "longest s")  # fmt: skip


def row(how: str, of: str, deaths: list[Death]) -> list[str]:
    times = sorted(each.repair_ms for each in deaths if each.repair_ms is not None)
    if not times:
        return [how, of, str(len(deaths)), *["-"] * (len(COLUMNS) - 3)]
    lost = sorted(each.probes_lost for each in deaths)
    back = sorted(each.joined_s for each in deaths)
    share = sum(each.deliveries_lost for each in deaths) / max(
        1, sum(each.deliveries for each in deaths)
    )
    return [
        how,
        of,
        str(len(deaths)),
        *(f"{report.percentile(times, part):.0f}" for part in (0.5, 0.99)),
        f"{times[-1]:.0f}",
        f"{report.percentile(lost, 0.5):.0f}",
        f"{lost[-1]:.0f}",
        f"{share:.0%}",
        f"{report.percentile(back, 0.5):.2f}",
        f"{back[-1]:.2f}",
    ]


def rows(all_deaths: dict[str, list[Death]]) -> Iterator[list[str]]:
    for how, deaths in all_deaths.items():
        known = [each for each in deaths if each.member >= 0]
        yield row(how, "inner nodes", known)
        yield row(how, "  roots", [each for each in known if each.was_root])
        yield row(how, "  others", [each for each in known if not each.was_root])


def judge(
    all_deaths: dict[str, list[Death]], hows: Sequence[str], beacon_ms: int
) -> list[report.Goal]:
    """A death that was asked for and not repaired, or not even measured, misses the goal."""
    goals = []
    bounds = {"killed": KILLED_MS, "silent": float(SILENT_PERIODS * beacon_ms)}
    for how, bound in bounds.items():
        deaths = all_deaths.get(how, [])
        times = sorted(each.repair_ms for each in deaths if each.repair_ms is not None)
        p99 = report.percentile(times, 0.99) if times else None
        goal = report.below(f"{how}: routes complete, p99", bound, "ms", p99)
        failed = how in hows and (not deaths or any(each.fault for each in deaths))
        goals.append(report.missed(goal) if failed else goal)
    return goals


def remarks(all_deaths: dict[str, list[Death]]) -> list[str]:
    notes = []
    for how, deaths in all_deaths.items():
        for number, each in enumerate(deaths, 1):
            if each.fault:
                notes.append(f"{how}, death {number}: {each.fault}")
        for what, count in (
            ("probes came twice", sum(each.twice for each in deaths)),
            ("probes were not sent by want of credit", sum(each.refused for each in deaths)),
        ):
            if count:
                notes.append(f"{how}: {count} {what}")
    return notes


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.repair", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--kills", type=int, help=f"default {KILLS}, quick {KILLS_QUICK}")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--beacon-ms", type=int, default=BEACON_MS)
    parser.add_argument("--only", default=",".join(DEATHS), help="ways to die")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the nodes go, too
    neighbours = Neighbours()
    settings = {
        "REGRAFT_MAX_DEGREE": str(MAX_DEGREE),
        "REGRAFT_BEACON_MS": str(options.beacon_ms),
    }
    hows = options.only.split(",")
    kills = options.kills or (KILLS_QUICK if options.quick else KILLS)
    deaths: dict[str, list[Death]] = {}
    notes = []
    with contextlib.ExitStack() as stack:
        try:
            begin = time.monotonic()
            members = stack.enter_context(joined(options.nodes, settings))
            print(f"one tree after {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
            deaths = watch(members, hows, kills)
        except LostError as error:
            notes.append(f"nothing was measured: {error}")
    print(f"{options.nodes} nodes, at most {MAX_DEGREE} neighbours each, a beacon every "
          f"{options.beacon_ms} ms, a probe every {PERIOD_SECONDS * 1e3:g} ms:")  # fmt: skip
    print(report.table(COLUMNS, list(rows(deaths))))
    notes += [ELSEWHERE, *remarks(deaths), *neighbours.remark()]
    return report.finish("repair", judge(deaths, hows, options.beacon_ms), notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
