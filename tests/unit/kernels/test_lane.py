"""The data lane against an obvious model: a list of messages, and who takes which topic."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import lane as in_use
from regraft.kernels import outlet as outlet_in_use
from regraft.kernels.checksum import crc32c
from regraft.model.message import DeliveryMode, Message, decode_envelope, encode_envelope
from regraft.model.varint import write_varint
from regraft.wire import native

TWINS = kernels.load_interpreted()
MODULES = [
    SimpleNamespace(**{**vars(one), **vars(other)})
    for one, other in ((outlet_in_use, in_use), (TWINS["outlet"], TWINS["lane"]))
]
compiled = MODULES[0]
both = pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])

NOW_US = 1_000
FRAME_MAX = 65_536
CONTROL_MAX = 1_024
NOT_SUPPORTED, NOT_AUTHORIZED = 27, 26

Delivered = tuple[tuple[int, ...], bytes]  # subscriptions, and the frame of one message


def ids(*numbers: int) -> bytes:
    packed = b"".join(map(write_varint, numbers))
    return b"\x12" + write_varint(len(packed)) + packed


def parse(data: bytes) -> list[Delivered]:
    """What an outlet got; every transfer header is followed by as many messages as it says."""
    found: list[Delivered] = []
    at = expect = 0
    subscriptions: tuple[int, ...] = ()
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 30)
        assert frame is not None, "the output ends in the middle of a frame"
        kind, flags, payload, end = frame
        assert flags == 0
        if expect:
            assert kind == native.Kind.MESSAGE
            found.append((subscriptions, data[at:end]))
            expect -= 1
        else:
            transfer = native.decode(kind, payload)
            assert isinstance(transfer, native.Transfer)
            assert transfer.count > 0
            expect, subscriptions = transfer.count, transfer.subscriptions
        at = end
    assert expect == 0, "messages are missing"
    return found


@dataclass
class Plan:
    """Who takes what: for each topic, the takers and their subscriptions."""

    takers: dict[bytes, list[tuple[int, bytes]]]
    refusals: dict[bytes, int] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    outlets: int = 0


class Bench:
    """A lane of one of the modules, set up by a plan."""

    def __init__(self, module: SimpleNamespace, plan: Plan) -> None:
        self.module = module
        self.outlets = [module.Outlet(key) for key in range(plan.outlets)]
        for key in plan.slow:
            self.outlets[key].slow = True
        self.plan = plan
        self.resolved: list[bytes] = []
        self.routes: dict[Any, Any] = {}
        self.lane = module.Lane(FRAME_MAX, CONTROL_MAX, 3, self.resolve)
        self.source = module.Source(99)
        self.got = [b""] * plan.outlets
        self.waiting: list[list[Any]] = [[] for _ in range(plan.outlets)]

    def resolve(self, source: Any, topic: bytes) -> Any:
        """Topics with the same takers share a route, as in a node."""
        self.resolved.append(topic)
        takers = self.plan.takers.get(topic, [])
        refusal = self.plan.refusals.get(topic, 0)
        key = (tuple(takers), refusal)
        if key not in self.routes:
            pairs = [(self.outlets[number], encoded) for number, encoded in takers]
            self.routes[key] = self.module.Route(pairs, refusal)
        return self.routes[key]

    def run(self, view: Any, pos: int = 0, last: bool = True) -> int:
        end = self.lane.run(self.source, view, pos, NOW_US)
        self.fetch(last)
        return int(end)

    def fetch(self, last: bool) -> None:
        for outlet in self.lane.take_dirty():
            if outlet.slow:
                self.waiting[outlet.key] += outlet.waiting
                outlet.waiting = []
                assert outlet.gather(last) == []
            else:
                before = outlet.messages
                pieces = outlet.gather(last)
                joined = b"".join(pieces)
                assert len(parse(joined)) == before
                self.got[outlet.key] += joined

    def delivered(self, key: int) -> list[Delivered]:
        if key not in self.plan.slow:
            return parse(self.got[key])
        found: list[Delivered] = []
        for encoded, count, body, expiration, _ in self.waiting[key]:
            transfer = native.decode(8, encoded)
            run = split(body)
            assert len(run) == count
            moments = [decode_envelope(frame[12:]).expiration_us for frame in run]
            assert expiration == min(filter(None, moments), default=0)
            found += [(transfer.subscriptions, frame) for frame in run]
        return found

    def outcome(self) -> Any:
        """All that can be seen, to compare two modules."""
        lane, source = self.lane, self.source
        return (
            self.got,
            self.waiting,
            source.refusals,
            (source.messages, source.size),
            (lane.messages, lane.size, lane.deliveries, lane.delivered),
            (lane.expired, lane.refused, lane.untaken),
            self.resolved,
        )


def split(run: bytes) -> list[bytes]:
    frames = []
    at = 0
    while at < len(run):
        end = at + 4 + int.from_bytes(run[at : at + 4], "little")
        frames.append(run[at:end])
        at = end
    return frames


# ------------------------------------------------------------------- generated

ADDRESS = b"$peer/somebody"  # where messages go that say `to`, whatever their topic
TOPICS = [b"a", b"a/b", b"b", b"none", b"forbidden", "é/ü".encode(), b"x" * 300, ADDRESS]


def a_plan(choice: random.Random) -> Plan:
    outlets = choice.randint(1, 5)
    sets = [ids(1), ids(2), ids(1, 7), ids(3, 300, 2**32 - 1)]
    takers = {
        topic: [(key, choice.choice(sets)) for key in range(outlets) if choice.random() < 0.6]
        for topic in TOPICS
        if topic not in (b"none", b"forbidden")
    }
    slow = {key for key in range(outlets) if choice.random() < 0.3}
    return Plan(takers, {b"forbidden": NOT_AUTHORIZED}, slow, outlets)


def a_frame(choice: random.Random, topic: bytes) -> bytes:
    size = choice.choice([0, 1, 20, 20, 20, 300, 2_030, 5_000])
    kinds: list[dict[str, Any]] = [
        {},
        {},
        {},
        {"expiration_us": choice.choice([5, NOW_US, 0, -3])},
        {"expiration_us": choice.choice([NOW_US + 1, NOW_US + 50])},
        {"delivery_mode": DeliveryMode.PERSISTENT},
        {"to": "somebody"},
    ]
    message = Message(topic.decode(), choice.randbytes(size), **choice.choice(kinds))
    flags = int(choice.random() < 0.05)
    return native.frame(native.Kind.MESSAGE, encode_envelope(message), flags)


def a_stream(choice: random.Random) -> list[bytes]:
    frames: list[bytes] = []
    while len(frames) < choice.randint(5, 60):
        topic = choice.choice(TOPICS)
        for _ in range(choice.choice([1, 1, 2, 6])):  # topics alternate, or come in runs
            frames.append(a_frame(choice, topic))
    return frames


@dataclass
class Model:
    """The slow and obvious lane."""

    plan: Plan
    delivered: dict[int, list[Delivered]] = field(default_factory=dict)
    refusals: list[tuple[int, int]] = field(default_factory=list)  # ordinal, code
    taken: int = 0
    expired: int = 0
    untaken: int = 0

    def take(self, frames: list[bytes]) -> None:
        for ordinal, frame in enumerate(frames, 1):
            message = decode_envelope(frame[12:])
            topic = ADDRESS if message.to else message.topic.encode()
            special = message.delivery_mode or frame[5]
            if message.expiration_us and message.expiration_us <= NOW_US:
                self.expired += 1
            elif topic in self.plan.refusals:
                self.refusals.append((ordinal, self.plan.refusals[topic]))
            elif special:
                self.refusals.append((ordinal, NOT_SUPPORTED))
            else:
                self.taken += 1
                takers = self.plan.takers.get(topic, [])
                self.untaken += not takers
                for key, encoded in takers:
                    transfer = native.decode(8, encoded)
                    self.delivered.setdefault(key, []).append((transfer.subscriptions, frame))


def feed(bench: Bench, stream: bytes, choice: random.Random) -> None:
    """Give a stream to a lane in reads that are cut anywhere, as a node would."""
    rest = b""
    at = 0
    while at < len(stream):
        size = choice.choice([1, 11, 13, 100, 3_000, 100_000])
        view = memoryview(bytearray(rest + stream[at : at + size]))
        at += size
        end = bench.run(view, 0, choice.random() < 0.5)
        assert bench.lane.stop == compiled.END
        rest = bytes(view[end:])
        view[:] = bytes(len(view))  # the bytes that were read are given back
    assert rest == b""


def test_every_taker_gets_exactly_its_messages_in_order() -> None:
    for seed in range(500):
        choice = random.Random(seed)
        plan, frames = a_plan(choice), a_stream(choice)
        bench = Bench(compiled, plan)
        feed(bench, b"".join(frames), choice)
        model = Model(plan)
        model.take(frames)
        for key in range(plan.outlets):
            assert bench.delivered(key) == model.delivered.get(key, []), (seed, key)
        lane = bench.lane
        assert (lane.messages, lane.expired, lane.refused, lane.untaken) == (
            model.taken,
            model.expired,
            len(model.refusals),
            model.untaken,
        )
        assert lane.deliveries == sum(map(len, model.delivered.values()))
        assert bench.source.messages == len(frames)
        assert bench.source.size == sum(map(len, frames))
        noted = [
            (ordinal + k, code)
            for ordinal, count, code in bench.source.refusals
            for k in range(count)
        ]
        assert noted == model.refusals


def test_compiled_equals_interpreted_byte_for_byte() -> None:
    for seed in range(150):
        outcomes = []
        for module in MODULES:
            choice = random.Random(seed)
            plan, frames = a_plan(choice), a_stream(choice)
            bench = Bench(module, plan)
            feed(bench, b"".join(frames), choice)
            outcomes.append(bench.outcome())
        assert outcomes[0] == outcomes[1], seed


# ---------------------------------------------------------------------- by hand


def message(topic: str = "a", body: bytes = b"x", **more: Any) -> bytes:
    return native.encode(Message(topic, body, **more))


def one_taker(module: SimpleNamespace, slow: bool = False) -> Bench:
    plan = Plan({b"a": [(0, ids(1))], b"b": [(0, ids(1))], b"c": [(0, ids(2))]}, outlets=1)
    plan.slow = {0} if slow else set()
    return Bench(module, plan)


def kinds(data: bytes) -> list[int]:
    return [frame[4] for frame in split(data)]


@both
def test_neighbours_with_the_same_takers_share_a_transfer_header(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    bench.run(message("a") + message("b") + message("a") + message("c") + message("a"))
    assert kinds(bench.got[0]) == [8, 7, 7, 7, 8, 7, 8, 7]


@both
def test_a_long_run_is_handed_on_without_a_copy(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    data = bytearray(message("a") * 200)
    assert bench.lane.run(bench.source, memoryview(data), 0, 0) == len(data)
    (outlet,) = bench.lane.take_dirty()
    header, run = outlet.gather(True)
    assert kinds(bytes(header)) == [8]
    assert run.obj is data


@both
def test_what_was_gathered_before_the_last_time_does_not_change(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    first = message("a", b"first")
    bench.lane.run(bench.source, first, 0, 0)
    (outlet,) = bench.lane.take_dirty()
    pieces = outlet.gather(False)
    bench.lane.run(bench.source, message("a", b"other"), 0, 0)
    assert parse(b"".join(pieces)) == [((1,), first)]


@both
def test_slow_outlets_get_copies_that_outlive_the_read(module: SimpleNamespace) -> None:
    bench = one_taker(module, slow=True)
    data = bytearray(message("a", b"x" * 3_000) + message("a"))
    bench.run(memoryview(data))
    kept = bytes(data)
    data[:] = bytes(len(data))
    assert bench.waiting[0] == [(ids(1), 2, kept, 0, 1)]


@both
def test_refusals_of_neighbours_are_one_note(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    bench.plan.refusals[b"no"] = NOT_AUTHORIZED
    frames = ["no", "no", "a", "no"]
    kept = message("a", delivery_mode=DeliveryMode.PERSISTENT)  # where there is no journal
    bench.run(b"".join(map(message, frames)) + kept + message("no"))
    assert bench.source.refusals == [
        (1, 2, NOT_AUTHORIZED),
        (4, 1, NOT_AUTHORIZED),
        (5, 1, NOT_SUPPORTED),
        (6, 1, NOT_AUTHORIZED),
    ]
    assert [frame for _, frame in bench.delivered(0)] == [message("a")]


@both
def test_routes_are_asked_for_once_until_they_change(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    bench.run(message("a") * 3 + message("b") + message("a"))
    bench.run(message("b"))
    assert bench.resolved == [b"a", b"b"]
    bench.lane.generation += 1
    bench.run(message("b"))
    assert bench.resolved == [b"a", b"b", b"b"]


@both
def test_a_source_remembers_a_bounded_number_of_topics(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    bench.run(b"".join(message(topic) for topic in "abcdabcd"))
    assert len(bench.resolved) > 4
    assert len(bench.delivered(0)) == 6


@both
def test_the_lane_stops_at_a_control_frame_with_what_it_is(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    control = native.frame(10, b"\x08\x05", 1)
    stream = message("a") + control + message("a")
    at = bench.run(stream)
    lane = bench.lane
    assert (at, lane.stop) == (len(message("a")), compiled.CONTROL)
    assert (lane.kind, lane.flags, lane.end) == (10, 1, at + len(control))
    assert len(bench.delivered(0)) == 1
    assert bench.run(stream, lane.end) == len(stream)
    assert lane.stop == compiled.END
    assert len(bench.delivered(0)) == 2


def broken(change: Callable[[bytearray], None]) -> bytes:
    data = bytearray(message("a"))
    change(data)
    return bytes(data)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 1

    return change


def headed(length: int, kind: int, flags: int = 0) -> bytes:
    """A header with a right check, and nothing behind it."""
    head = length.to_bytes(4, "little") + bytes((kind, flags))
    check = crc32c(head) & 0xFFFF
    return head + check.to_bytes(2, "little") + bytes(4)


FAULTS = {
    "check": (broken(flip(6)), compiled.BAD_CHECK, 0),
    "length": (broken(flip(0)), compiled.BAD_CHECK, 0),
    "zeros": (bytes(64), compiled.BAD_CHECK, 0),
    "checksum": (broken(flip(8)), compiled.BAD_CHECKSUM, 0),
    "payload": (broken(flip(14)), compiled.BAD_CHECKSUM, 0),
    "too short": (headed(7, 7), compiled.TOO_SHORT, 0),
    "no length": (headed(0, 7), compiled.TOO_SHORT, 0),
    "message too large": (headed(FRAME_MAX - 3, 7), compiled.TOO_LARGE, FRAME_MAX + 1),
    "largest number": (headed(2**32 - 1, 7), compiled.TOO_LARGE, 2**32 + 3),
    "control too large": (headed(CONTROL_MAX - 3, 3), compiled.TOO_LARGE, CONTROL_MAX + 1),
    "envelope": (native.frame(7, b"\x4a\x01"), compiled.BAD_ENVELOPE, 1),
    "empty envelope": (native.frame(7, b""), compiled.BAD_ENVELOPE, 12),
    "flags": (native.frame(7, encode_envelope(Message("a")), 2), compiled.BAD_FLAGS, 0),
    "flags of a control frame": (native.frame(10, b"", 0x80), compiled.BAD_FLAGS, 0),
}


@both
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("before", [0, 2])
def test_a_fault_stops_the_lane_where_it_stands(
    module: SimpleNamespace, name: str, before: int
) -> None:
    bad, fault, detail = FAULTS[name]
    bench = one_taker(module)
    good = message("a") * before
    assert bench.run(good + bad + message("a")) == len(good)
    lane = bench.lane
    assert (lane.stop, lane.fault, lane.fault_detail) == (compiled.FAULT, fault, detail)
    assert bench.delivered(0) == [((1,), message("a"))] * before
    assert bench.source.messages == before


@both
def test_a_bad_header_is_noticed_before_its_payload_is_there(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    assert bench.run(headed(FRAME_MAX - 3, 7)) == 0
    assert bench.lane.fault == compiled.TOO_LARGE
    assert bench.run(headed(FRAME_MAX - 4, 7)) == 0
    assert bench.lane.stop == compiled.END


@both
def test_every_cut_of_a_frame_is_waited_for(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    data = message("a") * 2
    for size in range(len(data)):
        taken = bench.run(memoryview(data)[:size])
        assert taken == (len(data) // 2 if size >= len(data) // 2 else 0)
        assert bench.lane.stop == compiled.END


@both
def test_a_cleared_outlet_has_nothing_left(module: SimpleNamespace) -> None:
    bench = one_taker(module)
    bench.lane.run(bench.source, message("a") + message("a", b"x" * 5_000), 0, 0)
    (outlet,) = bench.lane.take_dirty()
    outlet.clear()
    assert outlet.gather(True) == []
