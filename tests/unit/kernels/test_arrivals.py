"""Recording what another node keeps: for the streams of this node only, and counted with it."""

from __future__ import annotations

from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import arrivals as compiled_arrivals
from regraft.kernels import keeper as compiled_keeper
from regraft.kernels import lane as compiled_lane
from regraft.kernels import matching as compiled_matching
from regraft.kernels import outlet as compiled_outlet
from regraft.kernels import records as compiled_records
from regraft.kernels import takers as compiled_takers
from regraft.model.message import DeliveryMode, Message
from regraft.wire import native, peers

NOW_US = 1_700_000_000_000_000
COMPILED = {
    "arrivals": compiled_arrivals,
    "keeper": compiled_keeper,
    "lane": compiled_lane,
    "matching": compiled_matching,
    "outlet": compiled_outlet,
    "records": compiled_records,
    "takers": compiled_takers,
}


class Desk:
    """Streams 0 for a/#, 1 for b/#, 2 for all that is another node's, 3 where arrivals count."""

    def __init__(self, kind: str) -> None:
        modules = kernels.load_interpreted() if kind == "interpreted" else COMPILED
        self.recorder = modules["records"].Recorder(1 << 20)
        self.recorder.start_payload = b"{}"
        self.recorder.open(0, 0, 1, NOW_US)
        self.keeper = modules["keeper"].Keeper(self.recorder)
        index = modules["matching"].Index()
        takers = modules["takers"].Takers(index)
        for number, pattern in ((1, b"a/#"), (2, b"b/#"), (3, b"#"), (4, b"")):
            slot = self.recorder.add_stream(number, 1)
            if pattern:
                outlet = takers.admit(modules["outlet"].Outlet(-1 - slot, slot))
                takers.add(index.add(None, pattern, False), outlet, 1)
        self.outlet = modules["outlet"].Outlet(0)
        self.keeper.set_away(2, True)

        def resolve(source: Any, topic: bytes) -> Any:
            fixed, patterns, _ = index.of_topic(topic)
            return modules["takers"].Choice(takers, fixed, patterns, 9).route()

        self.lane = modules["lane"].Lane(1 << 20, 1 << 16, 9, resolve)
        self.lane.keeper = self.keeper
        self.source = modules["lane"].Source(1)
        self.arrivals = modules["arrivals"].Arrivals(self.lane, self.keeper, self.source, 3)
        self.to_one = modules["arrivals"].Arrivals(self.lane, self.keeper, self.source, 3, 1)

    def counts(self) -> list[int]:
        return [self.recorder.messages(slot) for slot in range(4)]


@pytest.fixture(params=["in use", "interpreted"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


def frames(*topics: str, **more: Any) -> bytes:
    return b"".join(
        native.encode(Message(topic, b"x", delivery_mode=DeliveryMode.PERSISTENT, **more))
        for topic in topics
    )


def test_each_goes_to_the_streams_that_want_it_and_all_are_counted(desk: Desk) -> None:
    data = frames("a", "a/x", "b", "c", "a")
    assert desk.arrivals.check(data) == 5
    assert desk.arrivals.take(data, 0, NOW_US) == 5
    assert desk.counts() == [3, 1, 0, 5]


def test_what_is_known_is_passed_over(desk: Desk) -> None:
    assert desk.arrivals.take(frames("a", "b", "a"), 2, NOW_US) == 1
    assert desk.counts() == [1, 0, 0, 1]


def test_what_has_expired_counts_too(desk: Desk) -> None:
    assert desk.arrivals.take(frames("a", expiration_us=NOW_US - 1), 0, NOW_US) == 1
    assert desk.counts() == [1, 0, 0, 1]


def test_it_stops_in_front_of_what_cannot_be_kept(desk: Desk) -> None:
    desk.keeper.set_full(1, True)
    data = frames("a", "a", "b", "a")
    assert desk.arrivals.take(data, 0, NOW_US) == 2
    assert desk.arrivals.take(data, 2, NOW_US) == 0
    desk.keeper.set_full(1, False)
    assert desk.arrivals.take(data, 2, NOW_US) == 2
    desk.keeper.refusal = 55
    assert desk.arrivals.take(data, 0, NOW_US) == 0
    assert desk.counts() == [3, 1, 0, 4]


def test_priorities_have_records_of_their_own(desk: Desk) -> None:
    data = frames("a") + frames("a", "a", priority=9) + frames("a")
    assert desk.arrivals.take(data, 0, NOW_US) == 4
    assert (0, 9, 2, 2) in desk.recorder.take_ranked()


@pytest.mark.parametrize("cut", [1, 5, 11, 13])
def test_what_is_no_whole_message_is_found_before_anything_is_kept(desk: Desk, cut: int) -> None:
    data = frames("a", "b")
    with pytest.raises(ValueError, match=r"whole|damaged|formed"):
        desk.arrivals.check(data[:-cut])
    spoiled = bytearray(data)
    spoiled[-1] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        desk.arrivals.check(bytes(spoiled))
    assert desk.counts() == [0, 0, 0, 0]


def test_a_link_brings_nothing_that_is_kept_where_it_began(desk: Desk) -> None:
    """The lowest bit of a stream's number says so."""
    for number, kept in ((2, 1), (3, 0)):
        source = type(desk.source)(9)
        source.outlet = type(desk.outlet)(9)
        origin = native.encode(peers.Origin(7, number, 1))
        before = desk.counts()[0]
        data = origin + frames("a")
        desk.lane.run(source, memoryview(data), 0, NOW_US)
        assert desk.counts()[0] - before == kept
    assert desk.counts()[2] == 0


def test_who_has_no_room_is_found_before_anything_is_recorded(desk: Desk) -> None:
    data = frames("a", "b", "c")
    forever = 1 << 62
    assert desk.arrivals.check(data) == 3
    assert desk.arrivals.full(data, True, forever) == -1
    desk.keeper.set_full(1, True)
    assert desk.arrivals.full(data, False, forever) == 1
    assert desk.arrivals.full(frames("a", "c"), False, forever) == -1
    desk.keeper.set_full(1, False)
    desk.keeper.set_full(2, True)  # it stands for another node
    assert desk.arrivals.full(data, False, forever) == -1
    assert desk.arrivals.full(data, True, forever) == 2
    later = frames("a", deliver_at_us=NOW_US + 1)
    assert desk.arrivals.full(later, True, NOW_US) == -1  # it is for nobody yet
    assert desk.arrivals.full(later, True, NOW_US + 1) == 2
    assert desk.counts() == [0, 0, 0, 0]


def test_what_is_for_one_stream_is_not_matched(desk: Desk) -> None:
    data = frames("a", "b", "c", "a")
    assert desk.to_one.take(data, 1, NOW_US) == 3
    assert desk.counts() == [0, 3, 0, 3]
    assert desk.to_one.full(data, False, NOW_US) == -1
    desk.keeper.set_full(0, True)  # another one
    assert desk.to_one.full(data, False, NOW_US) == -1
    desk.keeper.set_full(1, True)
    assert desk.to_one.full(data, False, NOW_US) == 1
    assert desk.to_one.take(data, 0, NOW_US) == 0


def test_who_takes_some_of_it_is_known_beforehand(desk: Desk) -> None:
    assert desk.arrivals.takers(frames("a", "a/x", "a")) == {0, 2}
    assert desk.arrivals.takers(frames("c", "b", "a")) == {0, 1, 2}
    assert desk.arrivals.takers(b"") == set()
    assert desk.to_one.takers(frames("a")) == {1, 3}
    assert desk.counts() == [0, 0, 0, 0]
