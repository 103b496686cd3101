"""Links in the router: forwarded bare, never back, found once, and no business of the index."""

import random
from typing import Any

import pytest

from regraft.kernels import lane as lanes
from regraft.kernels.checksum import crc32c
from regraft.kernels.lane import Source
from regraft.kernels.outlet import Outlet
from regraft.kernels.plan import plan_of
from regraft.limits import Limits
from regraft.model.message import Message
from regraft.node.router import Router
from regraft.wire import native
from regraft.wire.peers import Origin

NOW_US = 1_000


class Bench:
    """A router with some outlets, and what they got."""

    def __init__(self, links: int, clients: int) -> None:
        self.router = Router(Limits(), lambda principal, action, topic: True)
        self.outlets: dict[int, Outlet] = {}
        self.sources: dict[int, Source] = {}
        self.at = 0, 0  # stream and ordinal of what link 1 gets next, if nothing is said of it
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


def frames(data: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 20)
        assert frame is not None
        found.append(native.decode(frame[0], frame[2]))
        at = frame[3]
    return found


def kinds(data: bytes) -> list[str]:
    return [native.KINDS[type(frame)].name for frame in frames(data)]


def test_a_link_gets_the_frames_as_they_are() -> None:
    bench = Bench(1, 2)
    bench.subscribe(1, 7, "a")
    bench.subscribe(3, 9, "a")
    messages = [Message("a", b"one"), Message("a", b"two")]
    got = bench.publish(2, *messages)
    assert kinds(got[1]) == ["ORIGIN", "MESSAGE", "MESSAGE"]
    assert got[1].endswith(b"".join(map(native.encode, messages)))
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
    assert kinds(got[1]) == ["ORIGIN"] + ["MESSAGE"] * len(messages)


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
    bench.router.watch(lambda *change: told.append(change))
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


def test_what_was_wanted_before_somebody_watched_is_told_by_and_by() -> None:
    bench = Bench(1, 2)
    bench.subscribe(1, 1, "of a link")
    for id in range(1, 6):
        bench.subscribe(2, id, f"t{id}")
    bench.subscribe(3, 1, "t1", "n > 1")
    told: list[tuple[Any, ...]] = []
    bench.router.watch(lambda *change: told.append(change))
    assert told == [] and bench.router.feed(2)
    assert told == [(True, "t1", False, ""), (True, "t2", False, "")]
    bench.router.unsubscribe(2, 1)  # it was told of,
    bench.router.unsubscribe(2, 4)  # and of this it was not
    bench.subscribe(3, 2, "t6")  # under a number that was used before
    assert told[2:] == [(False, "t1", False, ""), (True, "t6", False, "")]
    assert not bench.router.feed(100) and not bench.router.feed(100)
    assert sorted(told[4:]) == [
        (True, "t1", False, "n > 1"),
        (True, "t3", False, ""),
        (True, "t5", False, ""),
    ]


def test_a_link_that_is_muted_gets_nothing_yet() -> None:
    bench = Bench(2, 1)
    bench.subscribe(1, 1, "a")
    bench.subscribe(2, 1, "a")
    bench.outlets[1].muted = True
    assert set(bench.publish(3, Message("a"))) == {2}
    bench.outlets[1].muted = False
    assert set(bench.publish(3, Message("a"))) == {1, 2}


def said(number: int) -> bytes:
    return native.encode(Message("a", b"%d" % number))


def origin(stream: int, first: int, node: int = 77) -> bytes:
    return native.encode(Origin(node, stream, first))


def forwarded(bench: Bench, key: int, data: bytes) -> list[tuple[int, int, int]]:
    """What link 1 got of what came over another: stream, ordinal and number, each."""
    lane = bench.router.lane
    assert lane.run(bench.sources[key], memoryview(data), 0, NOW_US) == len(data)
    lane.take_dirty()
    got = b"".join(map(bytes, bench.outlets[1].gather(True)))
    found = []
    for frame in frames(got):
        if isinstance(frame, Origin):
            bench.at = frame.stream, frame.first
        else:
            found.append((*bench.at, int(frame.body)))
            bench.at = bench.at[0], bench.at[1] + 1
    return found


def test_a_stream_is_taken_only_forward_by_whatever_link() -> None:
    bench = Bench(3, 0)
    bench.subscribe(1, 1, "a")
    by_two = origin(5, 1) + said(1) + said(2) + origin(9, 1) + said(91) + origin(5, 3) + said(3)
    assert forwarded(bench, 2, by_two) == [(5, 1, 1), (5, 2, 2), (9, 1, 91), (5, 3, 3)]
    late = origin(5, 2) + said(2) + said(3) + said(4) + origin(9, 1) + said(91)
    assert forwarded(bench, 3, late) == [(5, 4, 4)]
    assert bench.router.lane.repeated == 3
    assert forwarded(bench, 2, origin(5, 4) + said(4) + said(5)) == [(5, 5, 5)]


def test_what_goes_on_needs_no_origin_and_what_is_left_out_does() -> None:
    bench = Bench(2, 0)
    bench.subscribe(1, 1, "a", "n <> 3")
    source = bench.sources[2]
    data = origin(4, 1) + b"".join(
        native.encode(Message("a", attributes={"n": n})) for n in range(1, 6)
    )
    lane = bench.router.lane
    lane.run(source, memoryview(data), 0, NOW_US)
    lane.take_dirty()
    got = frames(b"".join(map(bytes, bench.outlets[1].gather(True))))
    assert [frame.first if isinstance(frame, Origin) else "" for frame in got] == [
        1,
        "",
        "",
        4,
        "",
        "",
    ]
    more = native.encode(Message("a", attributes={"n": 9}))
    lane.run(source, memoryview(more), 0, NOW_US)
    lane.take_dirty()
    assert kinds(b"".join(map(bytes, bench.outlets[1].gather(True)))) == ["MESSAGE"]


def test_what_began_here_does_not_come_back() -> None:
    bench = Bench(2, 1)
    bench.router.lane.mark = b"\x09" + (77).to_bytes(8, "little")
    bench.subscribe(3, 1, "a")
    bench.subscribe(1, 1, "a")
    (first, _) = frames(bench.publish(3, Message("a"))[1])
    assert first.node == 77
    data = origin(first.stream, 2) + said(2)
    lane = bench.router.lane
    assert lane.run(bench.sources[2], memoryview(data), 0, NOW_US) == len(data)
    assert lane.take_dirty() == [] and lane.repeated == 1


@pytest.mark.parametrize("payload", [b"", b"\x09" * 27, b"\x09" + bytes(26), bytes(27)])
def test_an_origin_that_is_none_is_a_fault(payload: bytes) -> None:
    bench = Bench(1, 0)
    header = bytearray(12) + payload
    put_header(header, payload)
    lane = bench.router.lane
    assert lane.run(bench.sources[1], memoryview(bytes(header)), 0, NOW_US) == 0
    assert (lane.stop, lane.fault) == (lanes.FAULT, lanes.BAD_ORIGIN)


def put_header(frame: bytearray, payload: bytes) -> None:
    frame[:6] = (len(payload) + 8).to_bytes(4, "little") + bytes((native.Kind.ORIGIN, 0))
    frame[6:8] = (crc32c(bytes(frame[:6])) & 0xFFFF).to_bytes(2, "little")
    frame[8:12] = crc32c(payload).to_bytes(4, "little")


def test_of_very_many_streams_the_oldest_are_forgotten() -> None:
    bench = Bench(2, 0)
    bench.subscribe(1, 1, "a")
    lane = bench.router.lane
    for stream in range(1, 2 * lanes.STREAMS_MAX, 2):
        data = origin(stream, 1) + said(1)
        lane.run(bench.sources[2], memoryview(data), 0, NOW_US)
        if stream % 1001 == 0:
            bench.outlets[1].gather(True)
    bench.outlets[1].gather(True)
    assert len(lane.streams) + len(lane.older) <= 2 * lanes.STREAMS_MAX
    assert forwarded(bench, 2, data) == [], "the last is remembered"
