"""Screens in the data lane: asked about each message, once, and only for those who have them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import groups as groups_in_use
from regraft.kernels import lane as lane_in_use
from regraft.kernels import outlet as outlet_in_use
from regraft.model.message import Message, decode_envelope
from regraft.wire import native

TWINS = kernels.load_interpreted()
MODULES = [
    SimpleNamespace(**{**vars(outlet), **vars(groups), **vars(lane)})
    for outlet, groups, lane in (
        (outlet_in_use, groups_in_use, lane_in_use),
        (TWINS["outlet"], TWINS["groups"], TWINS["lane"]),
    )
]
both = pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])
IDS = b"\x12\x01"


class Bench:
    """A lane with one topic: outlet 0 takes all of it, the others have screens."""

    def __init__(self, module: Any, limits: list[int], links: tuple[int, ...] = ()) -> None:
        self.asked: list[tuple[int, bytes]] = []
        self.outlets = [module.Outlet(key) for key in range(len(limits) + 1)]
        for key in links:
            self.outlets[key].link = True
        self.route = module.Route([(self.outlets[0], IDS + b"\x01")])
        self.route.groups = []
        for key, limit in enumerate(limits, 1):
            group = module.Group(key, shared=True)
            group.add(self.outlets[key], b"" if key in links else IDS + bytes((key + 1,)))
            group.screen = lambda envelope, key=key, limit=limit: self.screen(key, limit, envelope)
            self.route.groups.append(group)
        self.lane = module.Lane(65_536, 1024, 3, lambda source, topic: self.route)
        self.source = module.Source(99)

    def screen(self, key: int, limit: int, envelope: bytes) -> bool:
        self.asked.append((key, envelope))
        return int(decode_envelope(envelope).attributes["n"]) >= limit  # type: ignore[arg-type]

    def send(self, *numbers: int) -> dict[int, bytes]:
        data = b"".join(native.encode(Message("t", b"%d" % n, {"n": n})) for n in numbers)
        assert self.lane.run(self.source, memoryview(data), 0, 1) == len(data)
        return {one.key: b"".join(one.gather(True)) for one in self.lane.take_dirty()}


def bodies(data: bytes) -> list[bytes]:
    found, at = [], 0
    while frame := native.read_frame(data, at, 1 << 30):
        kind, _, payload, at = frame
        if kind == native.Kind.MESSAGE:
            found.append(decode_envelope(payload).body)
    return found


@both
def test_each_gets_what_its_screen_lets_pass(module: Any) -> None:
    bench = Bench(module, [5, 3])
    got = bench.send(1, 4, 9, 2)
    assert {key: bodies(data) for key, data in got.items()} == {
        0: [b"1", b"4", b"9", b"2"],
        1: [b"9"],
        2: [b"4", b"9"],
    }
    assert [key for key, _ in bench.asked] == [1, 2] * 4
    first, second = bench.asked[0][1], bench.asked[1][1]
    assert first is second and first is not bench.asked[2][1]  # one object for one message


@both
def test_the_same_takers_make_one_run(module: Any) -> None:
    bench = Bench(module, [5])
    got = bench.send(6, 7, 8, 1, 9)
    transfers, at = [], 0
    while frame := native.read_frame(got[1], at, 1 << 30):
        kind, _, payload, at = frame
        if kind == native.Kind.TRANSFER:
            transfers.append(native.decode(kind, payload).count)
    assert sum(transfers) == 4 and len(transfers) == 1


@both
def test_a_neighbour_gets_it_once_and_not_back(module: Any) -> None:
    bench = Bench(module, [0, 0], links=(1, 2))
    bench.route.groups[1].outlets[0] = bench.outlets[1]  # two interests of one neighbour
    bench.source.outlet = bench.outlets[2]
    assert bodies(bench.send(1)[1]) == [b"1"]
    assert [key for key, _ in bench.asked] == [1]  # the second would change nothing
    bench.asked.clear()
    bench.source.outlet = bench.outlets[1]
    assert 1 not in bench.send(2)
    assert bench.asked == []  # it comes from there


@both
def test_who_is_gone_is_not_asked_about(module: Any) -> None:
    bench = Bench(module, [0])
    bench.outlets[1].gone = True
    assert set(bench.send(1)) == {0} and bench.asked == []
