"""De-duplication against an obvious model: the set of all that was accepted."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from regraft import kernels
from regraft.kernels import windows as in_use
from regraft.model.message import Message
from regraft.wire import native

TWIN = kernels.load_interpreted()["windows"]
NEW, KNOWN, TOO_OLD = 0, 1, 2
WINDOW = 65536


@pytest.fixture(params=["in use", "interpreted"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return in_use if request.param == "in use" else TWIN


class Model:
    def __init__(self) -> None:
        self.known: set[int] = set()
        self.highest = -1

    def accept(self, sequence: int) -> int:
        if self.highest - sequence >= WINDOW:
            return TOO_OLD
        if sequence in self.known:
            return KNOWN
        self.known.add(sequence)
        self.highest = max(self.highest, sequence)
        return NEW

    def forget(self, sequence: int) -> None:
        if self.highest - sequence < WINDOW:
            self.known.discard(sequence)


def test_constants(module: ModuleType) -> None:
    assert (module.NEW, module.KNOWN, module.TOO_OLD) == (NEW, KNOWN, TOO_OLD)
    assert module.WINDOW == WINDOW


@pytest.mark.parametrize("seed", range(12))
def test_like_a_set(module: ModuleType, seed: int) -> None:
    choice = random.Random(seed)
    window, model = module.Window(), Model()
    sequence = choice.choice([0, 1, 70_000, 2**40])
    strides = choice.choice([[1], [1, 1, 1, 2], [1, 9, 4_000], [1, WINDOW - 1, WINDOW, WINDOW + 1]])
    for _ in range(700):
        what = choice.random()
        if what < 0.7:
            sequence += choice.choice(strides)
            asked = sequence
        elif what < 0.9:
            back = choice.choice([0, 1, 3, 100, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
            asked = max(0, sequence - back)
        else:
            asked = max(0, sequence - choice.randrange(10))
            window.forget(asked)
            model.forget(asked)
        assert window.accept(asked) == model.accept(asked)
        assert window.highest == model.highest
        sequence = max(sequence, model.highest)
        if choice.random() < 0.01:
            window = module.Window(window.state())
    lowest = max(0, sequence - WINDOW - 5)
    for asked in choice.sample(range(lowest, sequence + 1), min(2_000, sequence - lowest)):
        assert window.accept(asked) == model.accept(asked)


@pytest.mark.parametrize("gap", [2, 7, 8, 9, 63, 64, 65, 1_000, WINDOW - 1, WINDOW, WINDOW + 1])
def test_what_is_skipped_is_new_and_what_left_is_too_old(module: ModuleType, gap: int) -> None:
    for base in (0, 5, WINDOW - 3, 3 * WINDOW + 8):
        window = module.Window()
        window.accept(base + 1)  # make it a ring, full of bits
        window.accept(base + 3)
        for sequence in range(base, base + 100):
            window.accept(sequence)
        top = base + 99 + gap
        assert window.accept(top) == NEW
        for sequence in range(max(base + 100, top - WINDOW + 1), top):
            assert window.accept(sequence) == NEW
        for sequence in range(base, base + 100):
            assert window.accept(sequence) == (KNOWN if top - sequence < WINDOW else TOO_OLD)


def test_the_state_of_a_publisher_that_counts_is_small(module: ModuleType) -> None:
    window = module.Window()
    assert window.state() == b""
    assert module.Window(b"").highest == -1
    for sequence in range(100, 300):
        assert window.accept(sequence) == NEW
    assert len(window.state()) == 17
    assert window.accept(301) == NEW
    assert len(window.state()) == 9 + WINDOW // 8
    assert window.accept(300) == NEW  # the gap is filled
    assert len(window.state()) == 17
    again = module.Window(window.state())
    assert again.highest == 301
    assert [again.accept(sequence) for sequence in (99, 100, 301, 302)] == [NEW, KNOWN, KNOWN, NEW]


def test_a_gap_is_forgotten_once_it_left_the_window(module: ModuleType) -> None:
    window = module.Window()
    for sequence in (5, *range(7, WINDOW + 5)):
        assert window.accept(sequence) == NEW
    assert len(window.state()) > 17
    assert window.accept(WINDOW + 5) == NEW
    assert len(window.state()) == 17
    assert [window.accept(sequence) for sequence in (5, 6, 7)] == [TOO_OLD, NEW, KNOWN]


def test_an_append_that_failed_is_undone(module: ModuleType) -> None:
    window = module.Window()
    for sequence in (1, 2, 3):
        window.accept(sequence)
    window.forget(3)
    assert window.highest == 3
    window = module.Window(window.state())
    assert [window.accept(sequence) for sequence in (3, 3, 2, 4)] == [NEW, KNOWN, KNOWN, NEW]
    window.forget(9)  # never accepted: nothing happens
    window.forget(2**62)
    window.forget(2**64 - 1)
    window.accept(WINDOW + 50)
    window.forget(1)
    assert window.accept(1) == TOO_OLD
    assert window.accept(WINDOW + 50) == KNOWN
    module.Window().forget(0)
    window = module.Window()
    window.accept(5)
    window.forget(5)  # all that there was
    assert module.Window(window.state()).accept(5) == NEW


def test_the_largest_numbers(module: ModuleType) -> None:
    window = module.Window()
    for sequence in (2**62, 2**63 - 1, 2**63, 2**64 - 1):
        assert window.accept(sequence) == TOO_OLD
    assert window.highest == -1
    assert [window.accept(sequence) for sequence in (5, 7, 2**61, 7)] == [NEW, NEW, NEW, TOO_OLD]
    assert window.accept(2**62 - 1) == NEW
    assert window.accept(2**62 - 1) == KNOWN
    assert window.accept(2**62 - WINDOW) == NEW
    assert window.accept(2**62 - 1 - WINDOW) == TOO_OLD


def test_other_bytes_are_no_state(module: ModuleType) -> None:
    window = module.Window()
    window.accept(7)
    good = window.state()
    window.accept(9)
    sparse = window.state()
    largest = b"\xff" * 8
    wrong = [b"\x01", good[:-1], good + b"x", b"\x03" + good[1:], sparse[:-1], sparse + b"x"]
    wrong += [good[:9] + largest, b"\x01" + largest + bytes(8), b"\x02" + largest + sparse[9:]]
    for state in wrong:
        with pytest.raises(ValueError, match="not the state"):
            module.Window(state)


def test_sequences_of_publishers(module: ModuleType) -> None:
    numbers = [None, 0, 5, 2**63, 2**64 - 1, None]
    data = b"".join(native.encode(Message("t", b"x", sequence=number)) for number in numbers)
    assert module.sequences(b"ab" + data + b"c", 2, 2 + len(data)) == [
        -1 if number is None else number for number in numbers
    ]
    assert module.sequences(data, 7, 7) == []
    for start, end in ((0, len(data) - 1), (1, len(data)), (-1, 5), (0, len(data) + 1), (0, 11)):
        with pytest.raises(ValueError, match=r"."):
            module.sequences(data, start, end)
    with pytest.raises(ValueError, match="no whole message"):
        module.sequences(native.encode(native.Heartbeat()), 0, 12)
    with pytest.raises(ValueError, match="malformed"):
        module.sequences(native.frame(7, b""), 0, 12)


class Remembered:
    """Which copies are new, without a table of recent senders."""

    def __init__(self, senders_max: int) -> None:
        self.senders_max = senders_max
        self.newer: dict[bytes, set[int]] = {}
        self.older: dict[bytes, set[int]] = {}

    def is_new(self, sender: bytes, sequence: int) -> bool:
        if sender not in self.newer:
            known = self.older.get(sender, set())
            if len(self.newer) >= self.senders_max:
                self.older, self.newer = self.newer, {}
            self.newer[sender] = known
        new = sequence not in self.newer[sender]
        self.newer[sender].add(sequence)
        return new


@pytest.mark.parametrize("senders_max", [1, 3, 40])
def test_recent_senders_are_found_and_forgotten_as_all_others(
    module: ModuleType, senders_max: int
) -> None:
    choice = random.Random(senders_max)
    names = [b"", b"a", b"b", b"ab", b"abc", b"last", b"-last", b"\x00last"]
    names += [b"%d-same-end" % k for k in range(12)]  # all of these have one place in the table
    names += [b"peer-%016x" % choice.getrandbits(64) for _ in range(40)]
    copies, model = module.Copies(senders_max), Remembered(senders_max)
    some: list[bytes] = []
    asked: list[bool] = []
    for k in range(20_000):
        if k % 50 == 0:  # few speak for a while; others are silent, and may be forgotten
            some = choice.sample(names, choice.choice((1, 2, 5)))
        sender, sequence = choice.choice(some), choice.randrange(30)
        asked.append(model.is_new(sender, sequence))
        assert copies.is_new(sender, sequence) == asked[-1]
        assert copies.windows.keys() == model.newer.keys()
    assert 500 < sum(asked) < 19_000
