"""Links in the router: forwarded bare, never back, found once, and no business of the index."""

import random
from typing import Any

import pytest

from regraft.kernels.lane import Source
from regraft.kernels.outlet import Outlet
from regraft.kernels.plan import plan_of
from regraft.limits import Limits
from regraft.model.message import Message
from regraft.node.router import Router
from regraft.wire import native

NOW_US = 1_000


class Bench:
    """A router with some outlets, and what they got."""

    def __init__(self, links: int, clients: int) -> None:
        self.router = Router(Limits(), lambda principal, action, topic: True)
        self.outlets: dict[int, Outlet] = {}
        self.sources: dict[int, Source] = {}
        for key in range(1, links + clients + 1):
            outlet = self.outlets[key] = Outlet(key)
            source = self.sources[key] = Source(key)
            if key <= links:
                self.router.admit_link(key, outlet, "node")
                source.outlet = outlet
            else:
                self.router.admit(key, outlet, "somebody")

    def subscribe(self, key: int, id: int, pattern: str, selector: str = "") -> None:
        plan = plan_of(selector) if selector else None
        self.router.subscribe(key, id, pattern, False, plan)

    def publish(self, key: int, *messages: Message) -> dict[int, bytes]:
        data = b"".join(map(native.encode, messages))
        end = self.router.lane.run(self.sources[key], memoryview(data), 0, NOW_US)
        assert end == len(data)
        self.router.lane.take_dirty()
        got = {k: b"".join(map(bytes, o.gather(True))) for k, o in self.outlets.items()}
        return {k: data for k, data in got.items() if data}


def kinds(data: bytes) -> list[str]:
    found, at = [], 0
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 20)
        assert frame is not None
        found.append(frame[0].name)
        at = frame[3]
    return found


def test_a_link_gets_the_frames_as_they_are() -> None:
    bench = Bench(1, 2)
    bench.subscribe(1, 7, "a")
    bench.subscribe(3, 9, "a")
    messages = [Message("a", b"one"), Message("a", b"two")]
    got = bench.publish(2, *messages)
    assert got[1] == b"".join(map(native.encode, messages))
    assert kinds(got[3]) == ["TRANSFER", "MESSAGE", "MESSAGE"]
    assert bench.router.lane.forwarded == 2
    assert bench.router.lane.deliveries == 2


def test_what_comes_from_a_link_does_not_go_back() -> None:
    bench = Bench(3, 0)
    for key in (1, 2, 3):
        bench.subscribe(key, 1, "a/#", "" if key == 1 else "n > 1")
    message = Message("a/b", attributes={"n": 2})
    assert set(bench.publish(1, message)) == {2, 3}
    assert set(bench.publish(2, message)) == {1, 3}
    assert set(bench.publish(3, message)) == {1, 2}


def test_a_client_gets_its_own_messages() -> None:
    bench = Bench(0, 1)
    bench.subscribe(1, 1, "a")
    assert set(bench.publish(1, Message("a"))) == {1}


def test_messages_found_by_different_filters_of_one_link_are_one_run() -> None:
    bench = Bench(1, 1)
    for id in range(1, 20):
        bench.subscribe(1, id, "a", f"n = {id}")
    messages = [Message("a", attributes={"n": n}) for n in range(1, 20)]
    got = bench.publish(2, *messages)
    assert got[1] == b"".join(map(native.encode, messages))


def test_a_filter_of_all_does_not_hide_another_where_topics_begin_with_a_dollar() -> None:
    bench = Bench(1, 1)
    bench.subscribe(1, 1, "#", "n > 1")  # which takes no topic that begins with a dollar
    bench.subscribe(1, 2, "$sys/#", "n > 1")
    assert set(bench.publish(2, Message("$sys/x", attributes={"n": 2}))) == {1}
    bench.router.unsubscribe(1, 2)
    assert bench.publish(2, Message("$sys/x", attributes={"n": 2})) == {}


def test_only_one_link_when_it_is_told_so() -> None:
    bench = Bench(2, 1)
    for key in (1, 2, 3):
        bench.subscribe(key, 1, "a")
    bench.router.lane.only = bench.outlets[2]
    assert set(bench.publish(3, Message("a"))) == {2}
    bench.router.lane.only = None
    assert set(bench.publish(3, Message("a"))) == {1, 2, 3}


def test_what_is_wanted_here_is_told_and_what_links_want_is_not() -> None:
    bench = Bench(1, 1)
    told: list[tuple[Any, ...]] = []
    bench.router.watch = lambda *change: told.append(change)
    bench.subscribe(1, 1, "a", "n > 1")
    bench.subscribe(2, 1, "a", "n > 1")
    bench.subscribe(2, 2, "b")
    assert told == [(True, "a", False, "n > 1"), (True, "b", False, "")]
    assert sorted(bench.router.wanted()) == [("a", False, "n > 1"), ("b", False, "")]
    assert bench.router.size == 2
    told.clear()
    bench.router.dismiss(1)
    bench.router.dismiss(2)
    assert sorted(told) == [(False, "a", False, "n > 1"), (False, "b", False, "")]


@pytest.mark.parametrize("seed", range(20))
def test_links_and_clients_get_what_they_want(seed: int) -> None:
    """Any mixture, against a list."""
    choice = random.Random(seed)
    bench = Bench(links=choice.choice((1, 3, 70)), clients=2)
    held: dict[tuple[int, int], tuple[str, int, int]] = {}
    for step in range(300):
        what = choice.random()
        key = choice.choice(list(bench.outlets))
        if what < 0.4:
            low, topic = choice.randrange(10), choice.choice("ab")
            high = low + choice.randrange(4)
            held[key, step + 1] = topic, low, high
            bench.subscribe(key, step + 1, topic, f"n BETWEEN {low} AND {high}")
        elif what < 0.6 and held:
            gone = choice.choice(list(held))
            del held[gone]
            bench.router.unsubscribe(*gone)
        else:
            topic, n = choice.choice("ab"), choice.randrange(12)
            got = bench.publish(key, Message(topic, attributes={"n": n}))
            wanted = {
                k for (k, _), (t, low, high) in held.items() if t == topic and low <= n <= high
            }
            if bench.sources[key].outlet is not None:
                wanted.discard(key)
            assert set(got) == wanted
