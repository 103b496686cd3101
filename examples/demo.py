"""A stock ticker on a network of seven brokers, one of which is killed: `make demo`.

It needs nothing but Regraft: brokers are processes on this machine, on free ports, with data in a
folder that is removed again. `python examples/demo.py --fast` does not wait for readers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regraft
from regraft.model.selector import Selector

CITIES = ["berlin", "london", "madrid", "milan", "paris", "vienna", "zurich"]
STOCKS = {"ACME": 100.0, "BOLT": 40.0, "CORN": 12.0, "DUNE": 250.0}
TRADERS = {  # what each of them wants to hear of
    "anna": "symbol = 'ACME'",
    "ben": "price > 99 AND symbol <> 'DUNE'",
    "cleo": "change NOT BETWEEN -1 AND 1",
    "dan": "",
}
TICKS_A_SECOND = 200
START_S, REPAIR_S = 60.0, 20.0  # at most


# ----------------------------------------------------------------------------- the brokers


class Broker:
    """A process that is a node."""

    def __init__(self, name: str, port: int, join: str, folder: Path) -> None:
        self.name, self.address = name, f"127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", "regraft", "serve", "-p", str(port), "--name", name]
        command += ["--data", str(folder / name), *(["--join", join] if join else [])]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_")}
        environment["REGRAFT_MAX_DEGREE"] = "3"  # so that seven make a tree worth looking at
        with self.log.open("wb") as log:  # a session of its own: Ctrl-C is for the demo
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def topology(self) -> dict[str, Any]:
        """What it says of its place in the tree."""
        if self.process.poll() is not None:
            raise SystemExit(f"broker {self.name} ended:\n{self.log.read_text()[-2000:]}")
        try:
            async with await regraft.connect(self.address, reconnect=False) as client:
                return await client.inspect("topology", timeout=2)
        except regraft.RegraftError:
            return {}


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def end_all(brokers: list[Broker]) -> None:
    """None of them is left."""
    for broker in brokers:
        broker.process.terminate()
    deadline = time.monotonic() + 3
    for broker in brokers:
        try:
            broker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            broker.process.kill()
            broker.process.wait()


async def one_tree(brokers: list[Broker], within: float) -> dict[str, dict[str, Any]]:
    """Wait until they are one tree; what each of them says, by its id."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        answers = await asyncio.gather(*(broker.topology() for broker in brokers))
        found = {str(one["id"]): one for one in answers if one}
        links = [link for one in found.values() for link in one["links"] if link.get("node")]
        if (
            len(found) == len(brokers)
            and len({one["root"] for one in found.values()}) == 1
            and len(links) == 2 * (len(brokers) - 1)
            and all(str(link["node"]) in found for link in links)
            and not any(one.get("asking") for one in found.values())
        ):
            return found
        await asyncio.sleep(0.05)
    raise SystemExit(f"the brokers did not become one tree within {within:.0f} s")


# ----------------------------------------------------------------------------- the market


@dataclass
class Tick:
    """A price that was published."""

    attributes: dict[str, Any]
    at: float


@dataclass
class Trader:
    """A subscriber, and what it got."""

    name: str
    where: str
    broker: Broker
    client: regraft.Client
    got: list[int] = field(default_factory=list)

    def take(self, message: regraft.ReceivedMessage) -> None:
        """A price came."""
        self.got.append(int(message.attributes["number"]))

    def due(self, ticks: list[Tick]) -> set[int]:
        """The numbers of the ticks that it should have got."""
        if not self.where:
            return set(range(len(ticks)))
        selector = Selector.parse(self.where)
        messages = (regraft.Message("-", attributes=tick.attributes) for tick in ticks)
        return {number for number, message in enumerate(messages) if selector.matches(message)}


async def publish(ticker: regraft.Client, ticks: list[Tick]) -> None:
    """Prices that go up and down, until somebody stops it."""
    dice = random.Random(7)
    prices = dict(STOCKS)
    while True:
        symbol = dice.choice(list(prices))
        change = round(dice.gauss(0, 0.6), 2)
        prices[symbol] = round(max(1.0, prices[symbol] * (1 + change / 100)), 2)
        tick = {"number": len(ticks), "symbol": symbol, "price": prices[symbol], "change": change}
        ticks.append(Tick(tick, time.monotonic()))
        await ticker.publish(f"stocks/{symbol}", attributes=tick)
        await asyncio.sleep(1 / TICKS_A_SECOND)


def cast(brokers: list[Broker], found: dict[str, dict[str, Any]]) -> tuple[Broker, list[Broker]]:
    """Who is killed, and where the ticker and the traders are.

    It is one between others: the ticker is right below it, so that all that it publishes for the
    rest has to go through the one that dies. One trader is at that one itself.
    """
    below: dict[str, list[str]] = {one["name"]: [] for one in found.values()}
    for one in found.values():
        if one["parent"]:
            below[found[one["parent"]]["name"]].append(one["name"])

    def branch(name: str) -> set[str]:
        return {name}.union(*(branch(other) for other in below[name]))

    root = next(one["name"] for one in found.values() if not one["parent"])
    inner = [name for name in sorted(below) if below[name] and name != root]
    victim = max(inner, key=lambda name: (len(below) - len(branch(name)) >= 2, len(below[name])))
    ticker, *near = sorted(below[victim], key=lambda name: len(branch(name)))
    rest = sorted(set(below) - branch(victim), key=lambda name: (len(below[name]), name))
    far = [*rest, root, root][:2]
    names = [ticker, *far, victim, *(near or [ticker])[:1]]
    by_name = {broker.name: broker for broker in brokers}
    return by_name[victim], [by_name[name] for name in names]


# ------------------------------------------------------------------------------- the show


class Stage:
    """Says what happens, at a pace that can be followed."""

    def __init__(self, fast: bool) -> None:
        self.fast = fast
        self.colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.scenes = 0

    async def scene(self, title: str) -> None:
        """The next part begins."""
        self.scenes += 1
        line = f"{self.scenes}. {title}"
        print(f"\n\033[1m{line}\033[0m" if self.colours else f"\n{line}", flush=True)
        await asyncio.sleep(0 if self.fast else 1.5)

    async def show_tree(self, broker: Broker) -> None:
        """What `regraft inspect topology` says."""
        print(f"   $ regraft inspect topology -u {broker.address}", flush=True)
        command = [sys.executable, "-m", "regraft", "inspect", "topology", "-u", broker.address]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        printed, _ = await process.communicate()
        for line in printed.decode().splitlines():
            print("   " + line)
        await asyncio.sleep(0 if self.fast else 3)

    async def watch(self, seconds: float, ticks: list[Tick], traders: list[Trader]) -> None:
        """Counters, while prices come and go."""
        for _ in range(2 if self.fast else round(seconds)):
            await asyncio.sleep(0.5 if self.fast else 1)
            got = "   ".join(f"{one.name} {len(one.got):>5}" for one in traders)
            print(f"   published {len(ticks):>5}   got: {got}", flush=True)


async def play(stage: Stage, brokers: list[Broker], start: Callable[[], None]) -> int:
    """The whole of it; the exit code."""
    print("Regraft: a stock ticker on seven brokers, one of which will be killed.")
    if not stage.fast:
        print("It takes half a minute; Ctrl-C ends it.")
    await stage.scene("Seven brokers start on this machine, and find each other")
    start()
    found = await one_tree(brokers, START_S)
    await stage.show_tree(next(one for one in brokers if not found_parent(found, one)))
    victim, (at, *places) = cast(brokers, found)
    everywhere = [broker.address for broker in brokers]

    await stage.scene(f"A ticker publishes at {at.name}; traders listen elsewhere")
    clients: list[regraft.Client] = []
    try:
        return await trade(stage, brokers, victim, at, places, everywhere, clients)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def found_parent(found: dict[str, dict[str, Any]], broker: Broker) -> str | None:
    """The broker above one."""
    return next(one["parent"] for one in found.values() if one["name"] == broker.name)


async def trade(
    stage: Stage,
    brokers: list[Broker],
    victim: Broker,
    at: Broker,
    places: list[Broker],
    everywhere: list[str],
    clients: list[regraft.Client],
) -> int:
    """Prices flow, a broker dies, prices flow."""
    traders = []
    for (name, where), broker in zip(TRADERS.items(), places, strict=True):
        # Each knows all brokers, and begins with its own.
        others = [address for address in everywhere if address != broker.address]
        client = await regraft.connect(",".join([broker.address, *others]), client_id=name)
        clients.append(client)
        trader = Trader(name, where, broker, client)
        await client.subscribe("stocks/#", where=where, callback=trader.take)
        traders.append(trader)
        print(f"   {name:<5} at {broker.name:<7} wants {where or 'everything'}")
    await asyncio.sleep(0.5)  # all brokers have heard of it
    ticker = await regraft.connect(at.address)
    clients.append(ticker)
    ticks: list[Tick] = []
    publishing = asyncio.create_task(publish(ticker, ticks))
    await stage.watch(4, ticks, traders)

    await stage.scene(f"{victim.name} is killed, through which the ticker reaches the others")
    print(f"   $ kill -9 {victim.process.pid}", flush=True)
    victim.process.kill()
    killed_at, killed_tick = time.monotonic(), len(ticks)
    victim.process.wait()
    alive = [broker for broker in brokers if broker is not victim]
    await one_tree(alive, REPAIR_S)
    took = time.monotonic() - killed_at
    print(f"   The other six say that they are one tree, {1000 * took:.0f} ms later.", flush=True)
    await stage.watch(4, ticks, traders)
    await stage.show_tree(at)

    await stage.scene("The market closes: what was delivered")
    await asyncio.sleep(0.5 if stage.fast else 1)
    publishing.cancel()
    await asyncio.wait([publishing])
    await ticker.flush(timeout=10)
    await asyncio.sleep(1)  # what is under way arrives
    return account(ticks, traders, victim, killed_at, killed_tick)


def account(
    ticks: list[Tick], traders: list[Trader], victim: Broker, killed_at: float, killed_tick: int
) -> int:
    """Count, and say how it went."""
    columns = "   {:<6} {:<21} {:>6} {:>9} {:>6} {:>6} {:>12}"
    print(columns.format("trader", "at", "due", "delivered", "lost", "twice", "out of order"))
    wrong = ""
    lost_all: set[int] = set()
    for one in traders:
        due, got = one.due(ticks), Counter(one.got)
        lost = due - set(got)
        lost_all |= lost
        twice = sum(count - 1 for count in got.values())
        disordered = sum(a > b for a, b in zip(one.got, one.got[1:], strict=False))
        place = one.broker.name
        if one.broker is victim:
            place += f", then {one.client.node_name}"
        row = (one.name, place, len(due), len(one.got), len(lost), twice, disordered)
        print(columns.format(*row))
        if twice or disordered or set(got) - due:
            wrong = f"{one.name} got something twice, out of order, or for somebody else"
        elif not any(number >= killed_tick for number in got):
            wrong = f"{one.name} got nothing after {victim.name} was killed"
    early = [number for number in lost_all if number < killed_tick - TICKS_A_SECOND // 10]
    if early:
        wrong = f"{len(early)} prices were lost before {victim.name} was killed"
    last = max((ticks[number].at - killed_at for number in lost_all), default=0.0)
    print(f"\n   {len(ticks)} prices published; {len(lost_all)} of them did not reach everybody,")
    print(f"   the last of these published {max(0.0, 1000 * last):.0f} ms after the kill.")
    print("   What must not be lost either is published with persistent=True: docs/durability.md")
    if wrong:
        print(f"\nThis should not be: {wrong}.", flush=True)
        return 1
    print("\nThe subscribers went on. The demo is over, and nothing of it is left.", flush=True)
    return 0


async def main(fast: bool) -> int:
    """Play, and clean up whatever happens."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    brokers: list[Broker] = []
    with tempfile.TemporaryDirectory(prefix="regraft-demo-") as folder:

        def start() -> None:
            ports = free_ports(len(CITIES))
            join = ",".join(f"127.0.0.1:{port}" for port in ports[:2])
            for name, port in zip(CITIES, ports, strict=True):
                brokers.append(Broker(name, port, join, Path(folder)))

        try:
            return await play(Stage(fast), brokers, start)
        finally:
            end_all(brokers)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--fast", action="store_true", help="do not wait for readers")
    try:
        sys.exit(asyncio.run(main(arguments.parse_args().fast)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nstopped; the brokers are gone", flush=True)
        sys.exit(130)
