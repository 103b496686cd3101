"""Filters and messages that applications define, in the client."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import regraft
from regraft.errors import LocalError, PeerError
from regraft.model import userfilter
from regraft.model.messagetype import decode_value
from regraft.testing import Bus, virtual_time


@regraft.filter("test-words")
class Words:
    """Messages whose body has one of some words."""

    def __init__(self, *words: str) -> None:
        self.words = sorted(words)

    def encode(self) -> bytes:
        return " ".join(self.words).encode()

    @classmethod
    def decode(cls, data: bytes) -> Words:
        return cls(*data.decode().split())

    def matches(self, message: regraft.Message) -> bool:
        found = message.body.decode().split()
        if "boom" in found:
            raise ValueError("boom")
        return any(word in found for word in self.words)

    def covers(self, other: Words) -> bool:
        return set(other.words) <= set(self.words)


class Alien(Words):
    """A subclass is another class."""

    def encode(self) -> Any:
        return "no bytes"


BODIES = ("a b", "c", "b", "d e", "e b", "f")


async def texts(subscription: regraft.Subscription, count: int) -> list[str]:
    return [(await subscription.next(5)).text() for _ in range(count)]


@pytest.mark.parametrize("known", [True, False])
@virtual_time
async def test_the_application_gets_the_same_wherever_it_is_known(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not known:
        monkeypatch.setattr("regraft.testing.REGISTERED", userfilter.FilterTable())
    async with Bus() as bus:
        client = await bus.connect()
        mine = await client.subscribe("news/#", filter=Words("b", "f"))
        both = await client.subscribe("news/#", where="n > 1", filter=Words("b"))
        whole = await client.subscribe("news/#")
        for n, body in enumerate(BODIES):
            await client.publish("news/eu", body, attributes={"n": n})
        assert await texts(mine, 4) == ["a b", "b", "e b", "f"]
        assert await texts(both, 2) == ["b", "e b"]
        assert await texts(whole, 6) == list(BODIES)
        assert mine.pending() == both.pending() == 0
        assert mine.passed_by == (0 if known else 2)
        bus.kill()
        bus.start()
        await asyncio.sleep(10)  # it connects again
        await client.publish("news/eu", "c", attributes={"n": 9})
        await client.publish("news/eu", "b c", attributes={"n": 9})
        assert await texts(mine, 1) == ["b c"]  # it was subscribed to again, as it was


@virtual_time
async def test_what_is_passed_by_gives_its_credit_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.testing.REGISTERED", userfilter.FilterTable())
    async with Bus() as bus:
        client = await bus.connect(queue_messages=10)
        sender = await bus.connect()
        mine = await client.subscribe("t", filter=Words("b"))
        for n in range(300):
            await sender.publish("t", "b" if n % 100 == 99 else "x", confirm=True)
        assert await texts(mine, 3) == ["b"] * 3
        assert mine.passed_by == 297 and not bus.snapshot()["dropped"]


@virtual_time
async def test_batches_and_callbacks() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        seen: list[str] = []
        await client.subscribe(
            "t", filter=Words("a"), callback=lambda message: seen.append(message.text())
        )
        batches = await client.subscribe("t", filter=Words("a", "b"))
        await client.publish_many("t", ["a", "b", "c", "a b"])
        await asyncio.sleep(1)
        assert [one.text() for one in await batches.next_batch(5)] == ["a", "b", "a b"]
        assert seen == ["a", "a b"]


@virtual_time
async def test_a_filter_that_fails_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with Bus() as bus:
        client = await bus.connect()
        mine = await client.subscribe("t", filter=Words("b"))
        with caplog.at_level(logging.ERROR):
            for body in ("boom", "x", "boom boom", "b"):
                await client.publish("t", body)
            assert await texts(mine, 3) == ["boom", "boom boom", "b"]
        assert mine.failed == 2
        assert len([one for one in caplog.records if "a filter failed" in one.message]) == 1


@virtual_time
async def test_what_is_refused() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        with pytest.raises(LocalError, match="no filter that is registered"):
            await client.subscribe("t", filter=Alien("b"))
        with pytest.raises(LocalError, match="not for who replies"):
            await client.subscribe("t", filter=Words("b"), replies=True)
        with pytest.raises(LocalError, match="not for those who share"):
            await client.subscribe("t", filter=Words("b"), group="g")
        with pytest.raises(LocalError, match="limit filter_bytes"):
            await client.subscribe("t", filter=Words("b" * 9000))
        regraft.register_filter("test-alien", Alien)
        with pytest.raises(LocalError, match="returned str, not bytes"):
            await client.subscribe("t", filter=Alien("b"))
        with pytest.raises(LocalError, match=r"is the name of .*Words already"):
            regraft.register_filter("test-words", Alien)


# ------------------------------------------------------------------------------ messages


@regraft.message_type("test-price")
class Price(msgspec.Struct):
    """A message as JSON."""

    symbol: str
    price: float


@regraft.message_type("test-point")
@dataclass
class Point:
    """A message with an encoding of its own."""

    x: int
    y: int

    def encode(self) -> bytes:
        return b"%d,%d" % (self.x, self.y)

    @classmethod
    def decode(cls, data: bytes) -> Point:
        x, y = data.split(b",")
        return cls(int(x), int(y))


@virtual_time
async def test_objects_are_published_and_come_back() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        prices = await client.subscribe("#", where="$type = 'test-price'")
        everything = await client.subscribe("#")
        await client.publish("a", Price("ACME", 101.5))
        await client.publish_many("b", [Point(1, 2), Price("BOLT", 3.0), Point(3, 4)])
        async with client.transaction():
            await client.publish("c", Point(5, 6))
        await client.publish("d", Point(7, 8), type_name="other", content_type="text/csv")
        assert [(await prices.next(5)).value() for _ in range(2)] == [
            Price("ACME", 101.5),
            Price("BOLT", 3.0),
        ]
        found = [await everything.next(5) for _ in range(6)]
        assert [one.value() for one in found[1:5]] == [
            Point(1, 2),
            Price("BOLT", 3.0),
            Point(3, 4),
            Point(5, 6),
        ]
        assert (
            found[0].content_type == "application/json"
            and found[0].json(Price) == found[0].message.value()
        )
        assert found[1].body == b"1,2" and found[1].content_type == ""
        assert found[5].message.type_name == "other"  # what is said by name counts
        with pytest.raises(LocalError, match="no class is registered for messages of type 'other'"):
            found[5].value()


def test_types_that_cannot_be() -> None:
    with pytest.raises(LocalError, match="does not say its type"):
        decode_value("", b"")
    with pytest.raises(PeerError, match="type test-point cannot be read: ValueError"):
        decode_value("test-point", b"1")
    with pytest.raises(PeerError, match="type test-price cannot be read"):
        decode_value("test-price", b"{}")
    with pytest.raises(LocalError, match=r"or is a dataclass or a msgspec\.Struct"):
        regraft.register_message("test-int", int)
    with pytest.raises(LocalError, match="has 1 to 255 bytes"):
        regraft.register_message("", Price)
    with pytest.raises(LocalError, match=r"is the name of .*Price already"):
        regraft.register_message("test-price", Point)
    regraft.register_message("test-price", Price)
