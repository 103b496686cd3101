"""The keeper between the lane and the disk: order, confirmations, and what is handed on."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import keeper as compiled_keeper
from regraft.kernels import lane as compiled_lane
from regraft.kernels import outlet as compiled_outlet
from regraft.kernels import records as compiled_records
from regraft.kernels import takers as compiled_takers
from regraft.kernels import windows as compiled_windows
from regraft.kernels.matching import Index
from regraft.model.message import DeliveryMode, Message
from regraft.wire import native

NOW_US = 1_700_000_000_000_000


def modules_of(kind: str) -> dict[str, ModuleType]:
    if kind == "interpreted":
        return kernels.load_interpreted()
    return {
        "keeper": compiled_keeper,
        "lane": compiled_lane,
        "outlet": compiled_outlet,
        "records": compiled_records,
        "takers": compiled_takers,
        "windows": compiled_windows,
    }


class Desk:
    """A lane with a keeper, one live subscriber to `live/#` and one stream of `kept/#`."""

    def __init__(self, kind: str) -> None:
        modules = modules_of(kind)
        self.recorder = modules["records"].Recorder(1 << 20)
        self.recorder.start_payload = b"{}"
        self.recorder.open(0, 0, 1, NOW_US)
        self.keeper = modules["keeper"].Keeper(self.recorder)
        self.window = modules["windows"].Window()
        index = modules["matching"].Index() if kind == "interpreted" else Index()
        takers = modules["takers"].Takers(index)
        self.live = modules["outlet"].Outlet(7)
        slot = self.recorder.add_stream(1, 1)
        self.slot = slot
        stream = modules["outlet"].Outlet(-1, slot)
        live, kept = takers.admit(self.live), takers.admit(stream)
        for pattern, outlet in ((b"live/#", live), (b"kept/#", kept), (b"both/#", live)):
            takers.add(index.add(None, pattern, False), outlet, 1)
        takers.add(index.add(None, b"both/#", False), kept, 1)

        def resolve(source: Any, topic: bytes) -> Any:
            fixed, patterns, _ = index.of_topic(topic)
            return modules["takers"].Choice(takers, fixed, patterns, 9).route()

        def introduce(source: Any) -> None:
            source.publisher, source.window = 5, self.window

        self.lane = modules["lane"].Lane(1 << 20, 1 << 16, 9, resolve, introduce)
        self.lane.keeper = self.keeper
        self.source = modules["lane"].Source(1)
        self.chunks: list[tuple[int, bytes]] = []

    def publish(
        self, topic: str, body: bytes = b"", *, sequence: int | None = None, **more: Any
    ) -> None:
        message = Message(
            topic, body, sequence=sequence, delivery_mode=DeliveryMode.PERSISTENT, **more
        )
        self.feed(native.encode(message))

    def feed(self, data: bytes) -> None:
        assert self.lane.run(self.source, memoryview(data), 0, NOW_US) == len(data)

    def write(self) -> int:
        """The disk has it all: the position up to where."""
        self.chunks += [(first + offset, data) for first, offset, data in self.recorder.take()]
        return int(self.recorder.position)

    def release(self, safe: int) -> list[tuple[int, int, int, bool]]:
        confirmed = []
        for base, data in self.chunks or [(0, b"")]:
            while self.keeper.release(safe, data, base) is not None:
                confirmed += self.keeper.take_confirmed()
        return confirmed

    def delivered(self) -> list[bytes]:
        for outlet in self.keeper.take_dirty():
            assert outlet is self.live
        data = b"".join(self.live.gather(False))
        at, bodies = 0, []
        while at < len(data):
            frame = native.read_frame(data, at, 1 << 20)
            assert frame is not None
            kind, _, payload, at = frame
            if kind == native.Kind.MESSAGE:
                bodies.append(native.decode(kind, payload).body)
        return bodies


@pytest.fixture(params=["in use", "interpreted"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


def test_nothing_is_handed_on_before_it_is_safe(desk: Desk) -> None:
    desk.publish("both/a", b"1")
    desk.publish("live/a", b"2")
    assert desk.release(0) == []
    assert desk.delivered() == []
    safe = desk.write()
    assert desk.release(safe - 8) == []
    assert desk.release(safe) == [(1, 1, 2, False), (2, 1, 1, False)]
    assert desk.delivered() == [b"1", b"2"]


def test_what_nobody_keeps_does_not_wait(desk: Desk) -> None:
    desk.publish("live/a", b"1")
    desk.publish("nobody", b"2")
    assert desk.release(0) == [(1, 1, 1, False), (2, 1, 0, False)]
    assert desk.delivered() == [b"1"]
    assert desk.recorder.used == 0


def test_neighbours_are_confirmed_together(desk: Desk) -> None:
    desk.feed(
        b"".join(
            native.encode(Message("kept/a", delivery_mode=DeliveryMode.PERSISTENT))
            for _ in range(5)
        )
    )
    desk.publish("kept/b")
    assert desk.release(desk.write()) == [(6, 6, 1, False)]


def test_a_refusal_between_two_messages_does_not_shift_ordinals(desk: Desk) -> None:
    persistent = native.encode(Message("kept/a", delivery_mode=DeliveryMode.PERSISTENT))
    refused = native.frame(native.Kind.MESSAGE, persistent[12:], native.FLAG_CONTROL)
    desk.feed(persistent + refused + persistent + persistent)
    assert desk.release(desk.write()) == [(1, 1, 1, False), (4, 2, 1, False)]
    assert desk.source.refusals == [(2, 1, 27)]


def test_what_was_published_before_is_confirmed_once_that_is_safe(desk: Desk) -> None:
    desk.publish("kept/a", sequence=1)
    desk.publish("kept/a", sequence=2)
    desk.publish("kept/a", sequence=1)
    assert desk.release(0) == []
    assert desk.recorder.next_sequence(desk.slot) == 3
    assert desk.release(desk.write()) == [(2, 2, 1, False), (3, 1, 0, True)]
    assert desk.keeper.repeated == 1


def test_a_sequence_that_is_too_old_is_refused(desk: Desk) -> None:
    desk.publish("kept/a", sequence=1 << 20)
    desk.publish("kept/a", sequence=3)
    assert desk.source.refusals == [(2, 1, 28)]


def test_what_has_expired_is_confirmed_in_its_turn(desk: Desk) -> None:
    desk.publish("kept/a")
    desk.publish("kept/a", expiration_us=NOW_US - 1)
    assert desk.release(0) == []
    assert desk.release(desk.write()) == [(1, 1, 1, False), (2, 1, 0, False)]


def test_a_full_mailbox_refuses_what_it_would_take_and_nothing_else(desk: Desk) -> None:
    desk.keeper.set_full(desk.slot, True)
    desk.publish("kept/a", sequence=1)
    desk.publish("live/a", b"1")
    assert desk.source.refusals == [(1, 1, 32)]
    assert desk.release(0) == [(2, 1, 1, False)]
    desk.keeper.set_full(desk.slot, False)
    desk.publish("kept/a", sequence=1)  # it was not taken: this is no repetition
    assert desk.release(desk.write()) == [(3, 1, 1, False)]


def test_while_the_journal_takes_nothing_all_that_is_persistent_is_refused(desk: Desk) -> None:
    desk.keeper.refusal = 55
    desk.publish("kept/a")
    desk.publish("live/a")
    desk.feed(native.encode(Message("live/a", b"passing")))
    assert desk.source.refusals == [(1, 2, 55)]
    assert [outlet is desk.live for outlet in desk.lane.take_dirty()] == [True]


def test_what_comes_from_another_node_waits_for_nothing(desk: Desk) -> None:
    """It was safe there before it came."""
    desk.source.outlet = type(desk.live)(8)
    desk.publish("both/a", b"1")
    desk.publish("live/a", b"2")
    assert desk.lane.take_dirty() == [desk.live]
    assert desk.delivered() == [b"1", b"2"]
    assert (desk.keeper.kept, len(desk.keeper.waiting)) == (1, 0)
    desk.publish("kept/a")
    assert (desk.keeper.kept, desk.lane.untaken, desk.lane.refused) == (2, 0, 0)
    assert desk.release(desk.write()) == []


@pytest.mark.parametrize("refusal", [54, 55, 0], ids=["failed", "full disk", "full mailbox"])
def test_what_cannot_be_kept_goes_on_from_node_to_node(desk: Desk, refusal: int) -> None:
    desk.source.outlet = type(desk.live)(8)
    desk.keeper.refusal = refusal
    desk.keeper.set_full(desk.slot, not refusal)
    desk.publish("both/a", b"1")
    desk.publish("live/a", b"2")
    assert desk.lane.take_dirty() == [desk.live]
    assert desk.delivered() == [b"1", b"2"]
    assert desk.recorder.used == 0
    assert (desk.lane.refused, desk.source.refusals) == (1, [])


def test_messages_that_are_not_persistent_may_overtake(desk: Desk) -> None:
    desk.publish("both/a", b"persistent")
    desk.feed(native.encode(Message("both/a", b"passing")))
    desk.lane.take_dirty()
    assert desk.delivered() == [b"passing"]
    desk.release(desk.write())
    assert desk.delivered() == [b"persistent"]


def test_a_publisher_that_cannot_be_remembered_is_refused(desk: Desk) -> None:
    """What it sends again would be stored twice, and nobody would notice."""
    desk.lane.introduce = lambda source: None
    desk.publish("kept/a", sequence=1)
    desk.publish("live/a", sequence=2)
    desk.publish("kept/a")  # without a sequence nothing was promised
    assert desk.source.refusals == [(1, 2, 25)]
    assert desk.release(desk.write()) == [(3, 1, 1, False)]
