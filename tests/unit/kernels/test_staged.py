"""Frames that are staged are looked at as the lane would look at them, and a little more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from regraft import kernels
from regraft.errors import LocalError
from regraft.kernels import staged
from regraft.model.message import DeliveryMode, Message
from regraft.model.topics import check_topic
from regraft.wire import native

MODULES = {"in use": staged, "interpreted": kernels.load_interpreted()["staged"]}


@pytest.fixture(params=list(MODULES))
def module(request: pytest.FixtureRequest) -> Any:
    return MODULES[request.param]


def letter(sequence: int | None, topic: str = "t", **more: Any) -> bytes:
    more.setdefault("delivery_mode", DeliveryMode.PERSISTENT)
    return native.encode(Message(topic, b"body", sequence=sequence, **more))


def inspection(module: SimpleNamespace, limit: int = 1000) -> Any:
    return module.Inspection(limit, check_topic)


def test_whole_messages_are_counted_and_the_rest_is_left(module: SimpleNamespace) -> None:
    found = inspection(module)
    data = letter(5) + letter(6, "a/b") + letter(8)
    for cut in range(len(data)):
        found = inspection(module)
        done = found.check(data[:cut])
        assert data[:done] in (b"", letter(5), letter(5) + letter(6, "a/b"))
        found.check(data[done:])
        assert (found.messages, found.sequence) == (3, 8)


def test_what_is_no_message_ends_it(module: SimpleNamespace) -> None:
    found = inspection(module)
    data = letter(1) + native.encode(native.Bye())
    assert found.check(data) == len(letter(1))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (letter(1, delivery_mode=DeliveryMode.NON_PERSISTENT), "must be persistent"),
        (letter(None), "must be persistent and have a sequence"),
        (letter(5) + letter(5), "sequence 5 follows 5"),
        (letter(5) + letter(4), "sequence 4 follows 5"),
        (letter(1 << 62), "follows"),
        (letter(1, to="somebody"), "must be persistent"),
        (letter(1)[:-1] + b"x", "damaged"),
        (b"\x00" * 20, "check of a frame's header"),
        (letter(1, attributes={"a": "x" * 2000}), "limit frame_bytes"),
    ],
)
def test_what_the_lane_would_not_take(module: SimpleNamespace, data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        inspection(module).check(data)


def test_topics_that_nobody_may_publish_to(module: SimpleNamespace) -> None:
    with pytest.raises(LocalError, match="only a pattern may"):
        inspection(module).check(letter(1, "a/#"))
