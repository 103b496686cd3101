"""Persistent messages between two nodes with disks, one of which does not do as it should."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import DeliveryMode, Message
from regraft.node.network import Joining
from regraft.node.storage import Retained
from regraft.overlay.options import Options
from regraft.simulate.disk import Disk
from regraft.simulate.guest import Guest
from regraft.simulate.network import Network
from regraft.simulate.world import Broker, World

LIMITS = Limits(
    segment_bytes=65_536,
    frame_bytes=8192,
    control_frame_bytes=8192,
    selector_bytes=1024,
    journal_pending_bytes=10_000,
    home_window_bytes=30_000,
)
BODY = b"." * 1000


class Pair:
    """Ann publishes at one node, bob listens at the other, and both nodes retain everything."""

    def __init__(self) -> None:
        self.world = World(1)
        network = Network(self.world, 1)
        self.disks = [Disk(Random(f"disk {number}")) for number in range(2)]
        self.nodes = [self.start(network, number) for number in range(2)]
        self.world.advance(2000)
        self.ann, self.bob = Guest("ann", self.nodes[0]), Guest("bob", self.nodes[1])
        self.bob.subscribe(1, "#")
        self.world.advance(1000)

    def start(self, network: Network, number: int) -> Broker:
        name = f"node-{number}"
        identity = Identity(bytes([number]) * 16, name, 1)
        broker = self.world.broker(
            name, LIMITS, 10_000, self.disks[number], [Retained("all", "#")], identity=identity
        )
        network.add(broker, f"{name}:7447")
        seeds = () if number == 0 else ("node-0:7447",)
        broker.node.join(Joining(f"{name}:7447", Options(seeds=seeds)), self.world.now())
        broker.begin()
        return broker

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.ann.publish(Message("x", BODY, delivery_mode=DeliveryMode.PERSISTENT))
        self.world.advance(500)

    def journal(self, number: int) -> dict[str, Any]:
        return self.nodes[number].node.report("journal", 10)


def test_a_disk_that_fails_keeps_nothing_from_those_who_listen_there() -> None:
    pair = Pair()
    pair.disks[1].fail("sync", pair.disks[1].counts["sync"] + 1, errno.EIO)
    pair.publish(20)
    pair.publish(20)
    assert len(pair.bob.seen) == 40
    assert [row["waiting"] for row in pair.journal(0)["rows"]] == [40]
    (home,) = pair.nodes[0].node.report("custody", 10)["rows"]
    assert home["waiting"] == 40 and home["confirmed"] == 0  # until it is started again


def test_a_disk_that_does_not_answer_holds_up_nobody_and_memory_does_not_run_out() -> None:
    pair = Pair()
    held: list[Any] = []
    pair.disks[1].submit = lambda *what: held.append(what)  # type: ignore[method-assign]
    pair.publish(200)
    assert len(pair.bob.seen) == 200
    pair.world.advance(20_000)  # what is not confirmed is repeated, and not kept twice
    assert pair.journal(1)["position"] - pair.journal(1)["persisted"] < 60_000
    del pair.disks[1].submit
    for what in held:
        pair.disks[1].submit(*what)
    pair.world.advance(10_000)
    assert [row["waiting"] for row in pair.journal(1)["rows"]] == [200]
