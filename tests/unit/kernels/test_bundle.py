"""Checks what is said of the messages of a transaction, compiled and interpreted."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import bundle as compiled
from regraft.model.message import DeliveryMode, Message
from regraft.wire import native

LIMIT = 4096
PERSISTENT = DeliveryMode.PERSISTENT


@pytest.fixture(scope="module", params=["in use", "interpreted"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return compiled if request.param == "in use" else kernels.load_interpreted()["bundle"]


def frames(*messages: Message) -> bytes:
    return b"".join(map(native.encode, messages))


def test_what_they_amount_to(module: ModuleType) -> None:
    found: Any = module.Bundle(LIMIT)
    kept = frames(
        Message("a", b"1", delivery_mode=PERSISTENT),
        Message("a", b"2", delivery_mode=PERSISTENT, sequence=7),
        Message("b", b"3", delivery_mode=PERSISTENT, deliver_at_us=1000),
        Message("a", b"4", delivery_mode=PERSISTENT, to="peer"),
    )
    assert found.check(memoryview(kept), True, 999) == 4
    assert found.topics == {b"a", b"b"}
    assert (found.messages, found.delayed, found.addressed, found.sequenced) == (4, 1, 1, 1)
    assert found.check(memoryview(frames(Message("c", b"5"))), False, 999) == 1
    assert found.messages == 5 and found.topics == {b"a", b"b", b"c"}
    assert found.check(memoryview(b""), True, 0) == 0


@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_or_not(module: ModuleType, persistent: bool) -> None:
    mode = DeliveryMode.NON_PERSISTENT if persistent else PERSISTENT
    data = frames(Message("a", b"", delivery_mode=mode))
    with pytest.raises(ValueError, match="persistent"):
        module.Bundle(LIMIT).check(memoryview(data), persistent, 0)


def test_too_large(module: ModuleType) -> None:
    data = frames(Message("a", bytes(LIMIT), delivery_mode=PERSISTENT))
    with pytest.raises(ValueError, match="frame_bytes"):
        module.Bundle(LIMIT).check(memoryview(data), True, 0)


def test_damaged_bytes_are_refused_or_are_messages(module: ModuleType) -> None:
    """Whatever the bytes: a number of messages, or a ValueError; the two kernels agree."""
    dice = random.Random(1)
    good = frames(*(Message("a/b", b"x" * n, delivery_mode=PERSISTENT) for n in range(5)))
    refused = 0
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(dice.randrange(1, 4)):
            how = dice.random()
            at = dice.randrange(len(data) + 1)
            if how < 0.4 and at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            elif how < 0.7:
                del data[at : at + dice.randrange(1, 30)]
            else:
                data[at:at] = dice.randbytes(dice.randrange(1, 30))
        try:
            assert module.Bundle(LIMIT).check(memoryview(bytes(data)), True, 0) >= 0
        except ValueError:
            refused += 1
    assert refused > 1400
