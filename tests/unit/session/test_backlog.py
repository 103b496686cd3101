"""What waits for one subscriber, against a plain list of messages."""

import random
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from regraft.kernels.frame import origin
from regraft.model.message import Message
from regraft.model.varint import write_varint
from regraft.session.backlog import JOIN_BYTES, Backlog, Taken
from regraft.wire import native

FOREVER = 1 << 62


def ids(*numbers: int) -> bytes:
    packed = b"".join(map(write_varint, numbers))
    return b"\x12" + write_varint(len(packed)) + packed


def message(number: int, size: int = 10, expiration: int | None = None) -> bytes:
    body = number.to_bytes(4, "little") + bytes(size)
    return native.encode(Message("t", body, expiration_us=expiration))


def control(number: int) -> bytes:
    return native.encode(native.Subscribed(number))


Item = tuple[tuple[int, ...], bytes]  # subscriptions (none: a control frame), and a frame


def parse(taken: Taken) -> list[Item]:
    """What was taken, frame by frame."""
    data = b"".join(taken.pieces)
    found: list[Item] = []
    at = expect = size = 0
    subscriptions: tuple[int, ...] = ()
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 30)
        assert frame is not None
        kind, _, payload, end = frame
        if expect:
            assert kind == native.Kind.MESSAGE
            found.append((subscriptions, data[at:end]))
            expect -= 1
            size += end - at
        elif kind == native.Kind.TRANSFER:
            transfer = native.decode(kind, payload)
            expect, subscriptions = transfer.count, transfer.subscriptions
            assert expect > 0
        else:
            found.append(((), data[at:end]))
        at = end
    assert expect == 0
    assert taken.size == size
    assert taken.messages == sum(bool(item[0]) for item in found)
    return found


def put(backlog: Backlog, number: int, subscription: int = 1, size: int = 10) -> bytes:
    frame = message(number, size)
    backlog.put(ids(subscription), 1, frame, 0)
    return frame


def test_what_is_put_is_taken_in_order() -> None:
    backlog = Backlog(100, 10_000)
    frames = [put(backlog, number) for number in range(5)]
    assert (backlog.messages, backlog.size) == (5, sum(map(len, frames)))
    assert parse(backlog.take(FOREVER, FOREVER, 0)) == [((1,), frame) for frame in frames]
    assert not backlog
    assert (backlog.messages, backlog.size) == (0, 0)


def test_neighbours_for_the_same_subscriptions_share_a_transfer_header() -> None:
    backlog = Backlog(100, 10_000)
    for number, subscription in enumerate([1, 1, 2, 2, 2, 1]):
        put(backlog, number, subscription)
    pieces = backlog.take(FOREVER, FOREVER, 0).pieces
    assert [bytes(piece[:5])[4] for piece in pieces] == [8, 7] * 3


def test_a_run_is_split_at_messages() -> None:
    backlog = Backlog(100, 10_000)
    frames = [message(number) for number in range(10)]
    backlog.put(ids(1), 10, b"".join(frames), 0)
    size = len(frames[0])
    assert parse(backlog.take(3, FOREVER, 0)) == [((1,), frame) for frame in frames[:3]]
    assert parse(backlog.take(FOREVER, size + 1, 0)) == [((1,), frame) for frame in frames[3:5]]
    assert parse(backlog.take(FOREVER, size, 0)) == [((1,), frames[5])]
    assert (backlog.messages, backlog.size) == (4, 4 * size)


def test_a_write_that_is_large_enough_cuts_no_run_but_a_longer_one() -> None:
    backlog = Backlog(100, 1 << 20)
    frames = [message(number, 10_000) for number in range(14)]
    size = len(frames[0])
    for first in (0, 4, 8):
        backlog.put(ids(first), 4, b"".join(frames[first : first + 4]), 0)
    backlog.put(ids(12), 2, b"".join(frames[12:]), 0)
    taken = backlog.take(FOREVER, FOREVER, 0, 5 * size)
    assert (taken.messages, taken.size) == (8, 8 * size)  # two runs, though one was not enough
    taken = backlog.take(FOREVER, FOREVER, 0, 3 * size)
    assert (taken.messages, taken.size) == (3, 3 * size)  # of the third
    taken = backlog.take(FOREVER, 2 * size, 0, 3 * size)
    assert (taken.messages, taken.size) == (2, 2 * size)  # but credit is credit
    assert backlog.take(FOREVER, FOREVER, 0, 3 * size).messages == 1
    assert not backlog


def test_no_credit_takes_nothing_but_control_frames_in_front() -> None:
    backlog = Backlog(100, 10_000)
    backlog.put_control(control(1))
    put(backlog, 1)
    backlog.put_control(control(2))
    for bounds in ((0, FOREVER), (FOREVER, 0), (-5, -5)):
        assert parse(backlog.take(*bounds, 0)) in ([((), control(1))], [])
    assert backlog.messages == 1
    assert backlog.control_size == len(control(2))


def test_what_was_taken_may_still_be_looked_at_when_more_is_put() -> None:
    backlog = Backlog(100, 10_000)
    frames = [put(backlog, number) for number in range(4)]
    taken = backlog.take(2, FOREVER, 0)  # holds a view of the run, of which two are left
    frames.append(put(backlog, 4))
    assert parse(taken) == [((1,), frame) for frame in frames[:2]]
    assert parse(backlog.take(FOREVER, FOREVER, 0)) == [((1,), frame) for frame in frames[2:]]


def test_a_full_backlog_is_low_only_when_half_of_it_is_gone() -> None:
    backlog = Backlog(4, 10_000)
    for number in range(4):
        assert not backlog.full
        put(backlog, number)
    assert backlog.full and not backlog.low
    backlog.take(1, FOREVER, 0)
    assert not backlog.full and not backlog.low
    backlog.take(1, FOREVER, 0)
    assert backlog.low


def test_control_frames_keep_their_place_when_the_oldest_are_dropped() -> None:
    backlog = Backlog(2, 10_000)
    put(backlog, 1)
    backlog.put_control(control(1))
    put(backlog, 2)
    backlog.put_control(control(2))
    frames = [put(backlog, 3), put(backlog, 4)]
    backlog.put_control(control(3))
    dropped, dropped_bytes = backlog.drop_oldest()
    assert (dropped, dropped_bytes) == (2, 2 * len(frames[0]))
    assert parse(backlog.take(FOREVER, FOREVER, 0)) == [
        ((), control(1)),
        ((), control(2)),
        ((1,), frames[0]),
        ((1,), frames[1]),
        ((), control(3)),
    ]


def test_dropping_all_leaves_control_frames() -> None:
    backlog = Backlog(5, 10_000)
    put(backlog, 1)
    backlog.put_control(control(1))
    put(backlog, 2)
    assert backlog.drop_all()[0] == 2
    assert (backlog.messages, backlog.size) == (0, 0)
    assert parse(backlog.take(0, 0, 0)) == [((), control(1))]


def test_the_expired_are_left_out_and_counted_each_at_its_time() -> None:
    backlog = Backlog(100, 10_000)
    frames = [message(number, 10, moment) for number, moment in enumerate([50, None, 200, 100])]
    backlog.put(ids(1), 2, frames[0] + frames[1], 50)
    backlog.put(ids(1), 2, frames[2] + frames[3], 100)
    assert parse(backlog.take(0, FOREVER, 60)) == []
    assert (backlog.messages, backlog.expired) == (3, 1)
    assert parse(backlog.take(0, FOREVER, 100)) == []
    assert (backlog.messages, backlog.expired) == (2, 2)
    assert parse(backlog.take(FOREVER, FOREVER, 250)) == [((1,), frames[1])]
    assert (backlog.messages, backlog.size, backlog.expired) == (0, 0, 3)


def test_a_run_that_expired_does_not_hold_up_what_is_behind_it() -> None:
    backlog = Backlog(100, 10_000)
    backlog.put(ids(1), 1, message(1, 10, 50), 50)
    backlog.put_control(control(1))
    assert parse(backlog.take(0, 0, 60)) == [((), control(1))]
    assert not backlog


def test_long_backlogs_cost_few_objects() -> None:
    backlog = Backlog(1 << 20, 1 << 30)
    for number in range(20_000):
        put(backlog, number)
    assert len(backlog._queue) < 20
    assert len(parse(backlog.take(FOREVER, FOREVER, 0))) == 20_000


def test_a_large_run_is_not_copied() -> None:
    backlog = Backlog(1 << 20, 1 << 30)
    frames = [put(backlog, 1), message(2, JOIN_BYTES), message(3)]
    for frame in frames[1:]:
        backlog.put(ids(1), 1, frame, 0)
    taken = backlog.take(FOREVER, FOREVER, 0)
    assert any(isinstance(one, memoryview) and one.obj is frames[1] for one in taken.pieces)
    assert parse(taken) == [((1,), frame) for frame in frames]


# -------------------------------------------------------------------- the model


@dataclass
class Waiting:
    """One message or control frame of the model."""

    ids: tuple[int, ...]
    frame: bytes
    expiration: int = 0


class BacklogMachine(RuleBasedStateMachine):
    """Any sequence of operations does what it does to a list.

    What was taken is looked at only later, as a driver does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(12, 700)
        self.model: list[Waiting] = []
        self.now = 0
        self.number = 0
        self.expired = 0
        self.written: list[tuple[Taken, list[Item]]] = []

    @property
    def messages(self) -> list[Waiting]:
        return [item for item in self.model if item.ids]

    def exceeded(self) -> bool:
        size = sum(len(item.frame) for item in self.messages)
        return len(self.messages) > 12 or size > 700

    @rule(
        subscription=st.integers(1, 2),
        sizes=st.lists(st.sampled_from([0, 5, 60, 300]), min_size=1, max_size=6),
        lifetimes=st.lists(st.sampled_from([None, None, None, 1, 5]), min_size=6, max_size=6),
    )
    def put(self, subscription: int, sizes: list[int], lifetimes: list[int | None]) -> None:
        run: list[Waiting] = []
        for size, life in zip(sizes, lifetimes, strict=False):
            self.number += 1
            moment = None if life is None else self.now + life
            frame = message(self.number, size, moment)
            run.append(Waiting((subscription,), frame, moment or 0))
        earliest = min((item.expiration for item in run if item.expiration), default=0)
        body = b"".join(item.frame for item in run)
        self.backlog.put(ids(subscription), len(run), body, earliest)
        self.model += run

    @rule()
    def put_control(self) -> None:
        self.number += 1
        self.backlog.put_control(control(self.number))
        self.model.append(Waiting((), control(self.number)))

    @rule(passed=st.integers(0, 4))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(
        messages_max=st.sampled_from([-1, 0, 1, 2, 5, FOREVER]),
        bytes_max=st.sampled_from([-1, 0, 1, 100, 400, FOREVER]),
    )
    def take(self, messages_max: int, bytes_max: int) -> None:
        found: list[Item] = []
        messages = size = 0
        taken = self.backlog.take(messages_max, bytes_max, self.now)
        while self.model:
            head = self.model[0]
            if head.ids and head.expiration and head.expiration <= self.now:
                self.expired += 1
            elif head.ids:
                if messages >= messages_max or size >= bytes_max:
                    break
                messages += 1
                size += len(head.frame)
                found.append((head.ids, head.frame))
            else:
                found.append(((), head.frame))
            self.model.pop(0)
        self.expire_ahead()
        self.written.append((taken, found))

    def expire_ahead(self) -> None:
        """A run is looked through as a whole, so some may expire before their turn."""
        gone = self.backlog.expired - self.expired
        for item in [item for item in self.messages if 0 < item.expiration <= self.now][:gone]:
            self.model.remove(item)
        self.expired += gone

    @rule()
    def drop_oldest(self) -> None:
        dropped = dropped_bytes = 0
        while self.exceeded():
            item = self.messages[0]
            self.model.remove(item)
            dropped += 1
            dropped_bytes += len(item.frame)
        assert self.backlog.drop_oldest() == (dropped, dropped_bytes)

    @rule()
    def drop_newest(self) -> None:
        kept = size = 0
        for item in self.messages:
            if kept >= 12 or size >= 700:
                break
            kept += 1
            size += len(item.frame)
        dropped = self.messages[kept:]
        self.model = [item for item in self.model if item not in dropped]
        found = self.backlog.drop_newest()
        assert found == (len(dropped), sum(len(item.frame) for item in dropped))

    @rule()
    def look_at_what_was_taken(self) -> None:
        for taken, found in self.written:
            assert parse(taken) == found
        self.written.clear()

    @invariant()
    def counts_are_right(self) -> None:
        assert self.backlog.messages == len(self.messages)
        assert self.backlog.size == sum(len(item.frame) for item in self.messages)
        assert self.backlog.control_size == sum(
            len(item.frame) for item in self.model if not item.ids
        )
        assert bool(self.backlog) == bool(self.model)

    def teardown(self) -> None:
        self.look_at_what_was_taken()


BacklogMachine.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=100, stateful_step_count=30
)
TestBacklog = BacklogMachine.TestCase


def test_dropping_keeps_the_newest_within_both_bounds() -> None:
    choice = random.Random(9)
    for _ in range(300):
        backlog = Backlog(choice.randint(1, 10), choice.randint(20, 600))
        frames = []
        for number in range(choice.randint(1, 20)):
            frames.append(put(backlog, number, choice.randint(1, 2), choice.choice([0, 50, 200])))
        backlog.drop_oldest()
        kept = len(frames)
        while kept > backlog.messages_max or sum(map(len, frames)) > backlog.bytes_max:
            frames.pop(0)
            kept -= 1
        assert [frame for _, frame in parse(backlog.take(FOREVER, FOREVER, 0))] == frames


def test_for_another_node_runs_keep_their_place_in_their_stream() -> None:
    backlog = Backlog(100, 1 << 20, bare=True)
    frames = [message(number, 10) for number in range(8)]
    stream, other = b"s" * 18, b"o" * 18
    backlog.put(stream, 2, frames[0] + frames[1], 0, 5)
    backlog.put(stream, 1, frames[2], 0, 7)  # goes on,
    backlog.put(stream, 1, frames[3], 0, 9)  # does not,
    backlog.put(other, 1, frames[4], 0, 10)  # and is another's
    assert [(ids, first) for ids, first, _ in backlog.peek()] == [
        (stream, 5),
        (stream, 9),
        (other, 10),
    ]
    taken = backlog.take(1, 1 << 20, 0)
    assert taken.pieces == [origin(stream, 5), frames[0]]
    assert taken.size == len(frames[0])
    backlog.messages_max = 3
    assert backlog.drop_oldest() == (1, len(frames[1]))
    taken = backlog.take(9, 1 << 20, 0)
    assert taken.pieces == [
        origin(stream, 7),
        frames[2],
        origin(stream, 9),
        frames[3],
        origin(other, 10),
        frames[4],
    ]


def test_for_another_node_a_run_that_goes_on_needs_no_origin() -> None:
    backlog = Backlog(100, 1 << 20, bare=True)
    stream, large = b"s" * 18, message(2, JOIN_BYTES)
    backlog.put(stream, 1, message(1), 0, 5)
    backlog.put(stream, 1, large, 0, 6)  # goes on, and is too large to be joined
    backlog.put_control(control(1))
    backlog.put(stream, 1, message(3), 0, 7)
    backlog.put(stream, 1, large, 0, 9)
    assert backlog.take(9, 1 << 20, 0).pieces == [
        *(origin(stream, 5), message(1), large),
        *(control(1), origin(stream, 7), message(3)),  # who knows what is said in between
        *(origin(stream, 9), large),
    ]


def test_for_another_node_what_is_left_counts_as_the_last_of_its_run() -> None:
    backlog = Backlog(100, 1 << 20, bare=True)
    frames = [message(1, 10), message(2, 10, 50), message(3, 10)]
    backlog.put(b"s" * 18, 3, b"".join(frames), 50, 5)
    taken = backlog.take(9, 1 << 20, 60)
    assert b"".join(taken.pieces) == origin(b"s" * 18, 6) + frames[0] + frames[2]
