"""Groups and copies: the same compiled and interpreted, and what they promise."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import groups, outlet, windows

TWINS = kernels.load_interpreted()
FORMS = [
    pytest.param(groups, outlet, windows, id="in use"),
    pytest.param(TWINS["groups"], TWINS["outlet"], TWINS["windows"], id="interpreted"),
]


def member(module: ModuleType, most: int = 100) -> Any:
    made = module.Outlet(1)
    made.in_flight_max = most
    return made


@pytest.mark.parametrize(("groups", "outlet", "windows"), FORMS)
def test_the_least_busy_is_picked_and_equals_in_turn(
    groups: ModuleType, outlet: ModuleType, windows: ModuleType
) -> None:
    group = groups.Group("g")
    assert group.pick() == groups.NOBODY
    members = [member(outlet) for _ in range(3)]
    for one in members:
        group.add(one, b"\x12\x01\x02")
    assert sorted(group.pick() for _ in range(3)) == [0, 1, 2]
    members[1].in_flight = 0
    assert group.pick() == 1
    assert sorted(group.pick() for _ in range(3)) == [0, 1, 2]
    assert [one.in_flight for one in members] == [2, 2, 2]
    assert group.picked == 7


@pytest.mark.parametrize(("groups", "outlet", "windows"), FORMS)
def test_the_full_are_passed_over(
    groups: ModuleType, outlet: ModuleType, windows: ModuleType
) -> None:
    group = groups.Group("g")
    members = [member(outlet, most) for most in (1, 0, 2)]
    for k, one in enumerate(members):
        group.add(one, bytes((k,)))
    assert sorted(group.pick() for _ in range(3)) == [0, 2, 2]
    assert group.pick() == groups.FULL
    group.remove(members[2], b"\x02")
    assert group.pick() == groups.FULL
    group.remove(members[0], b"\x09")  # not under this id
    members[0].in_flight = 0
    assert group.pick() == 0


@pytest.mark.parametrize(("groups", "outlet", "windows"), FORMS)
def test_a_copy_is_new_once(groups: ModuleType, outlet: ModuleType, windows: ModuleType) -> None:
    copies = windows.Copies()
    source = random.Random(5)
    seen: set[tuple[bytes, int]] = set()
    for _ in range(20_000):
        sender = source.choice((b"a", b"b", b"c"))
        sequence = 1_000_000 + source.randrange(4000)
        assert copies.is_new(sender, sequence) == ((sender, sequence) not in seen)
        seen.add((sender, sequence))


@pytest.mark.parametrize(("groups", "outlet", "windows"), FORMS)
def test_senders_that_are_silent_are_forgotten_and_those_that_speak_are_not(
    groups: ModuleType, outlet: ModuleType, windows: ModuleType
) -> None:
    copies = windows.Copies(4)
    for k in range(100):
        assert copies.is_new(b"%d" % k, 7)
        assert copies.is_new(b"speaks", k)
        assert not copies.is_new(b"speaks", k)
        assert len(copies.windows) <= 4
    assert not copies.is_new(b"speaks", 98)
    assert copies.is_new(b"1", 7)
