"""Counting, splitting and heading runs of frames, compiled and interpreted."""

import random
from types import ModuleType

import pytest

from regraft import kernels
from regraft.kernels import frame
from regraft.model.message import Message
from regraft.model.varint import write_varint
from regraft.wire import native

MODULES = [frame, kernels.load_interpreted()["frame"]]
both = pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])


def message(size: int) -> bytes:
    return native.encode(Message("t", b"x" * size))


def ids(*numbers: int) -> bytes:
    """Field 2 of a transfer header."""
    packed = b"".join(map(write_varint, numbers))
    return b"\x12" + write_varint(len(packed)) + packed


@both
def test_messages_are_counted_and_other_frames_passed_over(module: ModuleType) -> None:
    head = message(1) + native.encode(native.Heartbeat(7)) + message(200)
    for cut in range(len(message(3))):
        assert module.count_messages(head + message(3)[:cut]) == (2, len(head))
    assert module.count_messages(head + message(3)) == (3, len(head) + len(message(3)))
    assert module.count_messages(b"") == (0, 0)


@both
def test_a_view_in_the_middle_of_a_buffer_is_counted_alike(module: ModuleType) -> None:
    data = b"junk" + message(5) + message(6)
    assert module.count_messages(memoryview(data)[4:]) == (2, len(data) - 4)


@both
def test_take_stays_within_both_bounds(module: ModuleType) -> None:
    choice = random.Random(5)
    for _ in range(300):
        frames = [message(choice.choice([0, 3, 40, 400])) for _ in range(choice.randint(1, 8))]
        messages_max = choice.randrange(10)
        bytes_max = choice.choice([-5, 0, 1, 50, 100, 500, 1 << 62])
        count = size = 0
        while count < min(messages_max, len(frames)) and size < bytes_max:
            size += len(frames[count])
            count += 1
        assert module.take(b"".join(frames), messages_max, bytes_max) == (count, size)


@both
def test_a_message_may_begin_while_one_byte_is_left(module: ModuleType) -> None:
    run = message(500) * 2
    assert module.take(run, 5, 1) == (1, len(run) // 2)
    assert module.take(run, 5, len(run) // 2) == (1, len(run) // 2)
    assert module.take(run, 5, len(run) // 2 + 1) == (2, len(run))


@both
@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3), (2**32 - 1, 300), tuple(range(1, 3000))])
def test_a_transfer_header_is_a_frame_of_the_protocol(
    module: ModuleType, numbers: tuple[int, ...]
) -> None:
    data = module.transfer(ids(*numbers), 65_537)
    found = native.read_frame(data, 0, 1 << 20)
    assert found is not None
    kind, flags, payload, end = found
    assert (kind, flags, end) == (native.Kind.TRANSFER, 0, len(data))
    assert native.decode(kind, payload) == native.Transfer(65_537, numbers)


@both
def test_a_confirmation_is_a_frame_of_the_protocol(module: ModuleType) -> None:
    chance = random.Random(5)
    edges = [0, 1, 127, 128, (1 << 32) - 1, (1 << 63) - 1]
    for _ in range(500):
        ordinal, count, takers = (
            chance.choice([chance.choice(edges[:top]), chance.getrandbits(bits)])
            for top, bits in ((6, 63), (6, 30), (5, 32))
        )
        known = chance.random() < 0.5
        expected = native.encode(native.Confirmed(ordinal, count, takers, known))
        assert module.confirmed(ordinal, count, takers, known) == expected


def test_compiled_equals_interpreted() -> None:
    choice = random.Random(6)
    for _ in range(200):
        run = b"".join(message(choice.randrange(60)) for _ in range(choice.randrange(6)))
        cut = run[: choice.randrange(len(run) + 1)]
        bounds = choice.randrange(8), choice.randrange(300)
        assert len({module.count_messages(cut) for module in MODULES}) == 1
        assert len({module.take(run, *bounds) for module in MODULES}) == 1
        encoded = ids(*(choice.getrandbits(32) for _ in range(choice.randrange(1, 5))))
        assert len({module.transfer(encoded, bounds[1]) for module in MODULES}) == 1
