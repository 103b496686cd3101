"""Subscriptions and routes: who gets a message, under which ids; compiled and interpreted."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import lane, matching, outlet, plan, takers
from regraft.kernels.frame import count_messages
from regraft.model.message import Message
from regraft.wire import native

NAMES = ("lane", "matching", "outlet", "plan", "takers")
IN_USE: dict[str, ModuleType] = {
    "lane": lane, "matching": matching, "outlet": outlet, "plan": plan, "takers": takers,
}  # fmt: skip
TWINS = kernels.load_interpreted()


class Bench:
    """A lane that routes by an index, with two outlets."""

    def __init__(self, modules: dict[str, ModuleType], variants_max: int = 8) -> None:
        kernel = SimpleNamespace(**{name: modules[name] for name in NAMES})
        self.kernel = kernel
        self.index = kernel.matching.Index()
        self.takers = kernel.takers.Takers(self.index)
        self.outlets = [kernel.outlet.Outlet(key) for key in (1, 2)]
        self.numbers = [self.takers.admit(outlet) for outlet in self.outlets]
        self.lane = kernel.lane.Lane(1 << 20, 1 << 16, 8, self.resolve)
        self.source = kernel.lane.Source(1)
        self.variants_max = variants_max
        self.choice: Any = None

    def resolve(self, source: Any, topic: bytes) -> Any:
        fixed, patterns, search = self.index.of_topic(topic)
        choice = self.kernel.takers.Choice(self.takers, fixed, patterns, self.variants_max)
        if not search:
            return choice.route()
        self.choice = choice
        return self.kernel.outlet.Route([], choice=choice)

    def subscribe(self, who: int, id: int, selector: str = "", pattern: bytes = b"") -> int:
        planned = self.kernel.plan.plan_of(selector) if selector else None
        filter = self.index.add(planned, pattern, False)
        number: int = self.takers.add(filter, self.numbers[who], id)
        return number

    def unsubscribe(self, number: int) -> None:
        self.index.release(self.takers.remove(number))

    def publish(self, *messages: Message) -> list[list[tuple[tuple[int, ...], int]]]:
        """For each outlet, its runs: the ids, and how many messages."""
        stream = b"".join(map(native.encode, messages))
        assert self.lane.run(self.source, memoryview(bytearray(stream)), 0, 0) == len(stream)
        self.lane.take_dirty()
        return [runs(b"".join(map(bytes, outlet.gather(True)))) for outlet in self.outlets]


def runs(data: bytes) -> list[tuple[tuple[int, ...], int]]:
    found: list[tuple[tuple[int, ...], int]] = []
    at = left = 0
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 30)
        assert frame is not None
        kind, _, payload, at = frame
        if left:
            left -= 1
        else:
            transfer = native.decode(kind, payload)
            assert isinstance(transfer, native.Transfer)
            left = transfer.count
            found.append((transfer.subscriptions, transfer.count))
    assert left == 0
    return found


@pytest.fixture(params=["in use", "interpreted"])
def modules(request: pytest.FixtureRequest) -> dict[str, ModuleType]:
    return IN_USE if request.param == "in use" else TWINS


def numbered(*numbers: int) -> list[Message]:
    return [Message("t", attributes={"n": n}) for n in numbers]


def test_each_message_goes_to_those_whose_selectors_hold(modules: dict[str, ModuleType]) -> None:
    bench = Bench(modules)
    bench.subscribe(0, 1, "n > 1")
    bench.subscribe(1, 9, "n < 3")
    bench.subscribe(1, 300, pattern=b"t")
    first, second = bench.publish(*numbered(0, 1, 2, 2, 9, 0), Message("t"))
    assert first == [((1,), 3)]
    assert second == [((9, 300), 4), ((300,), 1), ((9, 300), 1), ((300,), 1)]
    assert (bench.lane.deliveries, bench.lane.untaken) == (10, 0)


def test_routes_of_the_same_takers_are_remembered_within_a_bound(
    modules: dict[str, ModuleType],
) -> None:
    bench = Bench(modules, variants_max=2)
    for k in range(4):
        bench.subscribe(0, k + 1, f"n = {k}")
    bench.publish(*numbered(0, 1, 2, 3, 0, 1, 2, 3))
    assert len(bench.choice.variants) <= 2


def test_what_changes_is_seen_by_the_next_message(modules: dict[str, ModuleType]) -> None:
    bench = Bench(modules)
    held = [bench.subscribe(0, k, "n = 1") for k in (1, 2, 3)]
    assert bench.publish(*numbered(1))[0] == [((1, 2, 3), 1)]
    bench.unsubscribe(held[1])
    assert bench.publish(*numbered(1))[0] == [((1, 3), 1)]
    bench.subscribe(1, 7, "n = 1")
    assert bench.publish(*numbered(1)) == [[((1, 3), 1)], [((7,), 1)]]
    bench.unsubscribe(held[0])
    bench.unsubscribe(held[2])
    assert bench.publish(*numbered(1)) == [[], [((7,), 1)]]
    assert bench.takers.count == 1


def test_a_topic_with_a_dollar_is_not_found_by_selector_alone(
    modules: dict[str, ModuleType],
) -> None:
    bench = Bench(modules)
    bench.subscribe(0, 1, "n = 1")
    bench.subscribe(1, 2, "n = 1", b"$sys")
    assert bench.publish(Message("$sys/a", attributes={"n": 1})) == [[], [((2,), 1)]]


def test_counting_frames_agrees() -> None:
    """The little parser above sees what the kernel counts."""
    stream = b"".join(map(native.encode, numbered(1, 2)))
    assert count_messages(stream) == (2, len(stream))


def test_who_has_a_filter_can_be_asked(modules: dict[str, ModuleType]) -> None:
    bench = Bench(modules)
    for who, id in ((0, 1), (1, 2), (0, 3)):
        bench.subscribe(who, id, "n = 1")
    (filter,) = bench.index.match(native.encode(numbered(1)[0])[native.HEADER_BYTES :])

    def having(most: int) -> tuple[set[tuple[int, int]], int]:
        found, left_out = bench.takers.having(filter, most)
        return {(outlet.key, id) for outlet, id in found}, left_out

    assert having(10) == ({(1, 1), (2, 2), (1, 3)}, 0)
    assert len(having(2)[0]) == 2 and having(2)[1] == 1
    bench.takers.link(bench.outlets[1])  # links are never left out
    assert having(0) == ({(2, 2)}, 2)
    bench.takers.silence(bench.numbers[0])  # it is gone, and its subscriptions are not removed yet
    assert having(10) == ({(2, 2)}, 0)
