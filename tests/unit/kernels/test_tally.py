"""Counting matches: the kernel against the reference, compiled and interpreted."""

from __future__ import annotations

import random
import struct
from collections import Counter
from types import ModuleType

import pytest

from regraft import kernels
from regraft.kernels import matching, plan, tally
from regraft.kernels.outbox import Outbox
from regraft.model.message import Message
from regraft.model.selector import Selector

TWINS = kernels.load_interpreted()
SELECTORS = [
    "price > 50",
    "price > 50 AND symbol = 'S1'",
    "symbol IN ('S1', 'S2') OR flag = TRUE",
    "TOPIC('ticks/+/a')",
    "note LIKE 'x%' AND price IS NOT NULL",
    "nothing = 1",
    "price BETWEEN 10 AND 20",
]


def messages(count: int) -> list[Message]:
    source = random.Random(5)
    return [
        Message(
            topic=f"ticks/{n % 3}/{'ab'[n % 2]}",
            attributes={
                "price": source.choice([source.uniform(0, 100), source.randrange(100)]),
                "symbol": f"S{source.randrange(4)}",
                **({"flag": True} if source.random() < 0.2 else {}),
                **({"note": "xyz"} if source.random() < 0.3 else {}),
            },
        )
        for n in range(count)
    ]


def frames(some: list[Message]) -> bytes:
    outbox = Outbox(1 << 20, 0)
    for one in some:
        outbox.put(one.topic.encode(), one.body, dict(one.attributes), 0, False, b"")
    return bytes(outbox.take())


@pytest.fixture(params=["in use", "interpreted"])
def modules(request: pytest.FixtureRequest) -> dict[str, ModuleType]:
    if request.param == "in use":
        return {"matching": matching, "plan": plan, "tally": tally}
    return TWINS


def test_counts_are_those_of_the_reference(modules: dict[str, ModuleType]) -> None:
    plan_of, Tally = modules["plan"].plan_of, modules["tally"].Tally
    some = messages(400)
    index = modules["matching"].Index()
    numbers = [index.add(plan_of(text)) for text in SELECTORS]
    numbers.append(index.add(None, b"ticks/1"))  # nothing but a topic
    numbers.append(index.add(plan_of("price < 5"), b"ticks/2"))
    tally = Tally(index, len(numbers), 4, 3)
    slots = [n * 4 // 400 for n in range(400)]
    half = frames(some[:200]), frames(some[200:])
    packed = struct.pack("400i", *slots)
    assert tally.run(half[0], packed[:800]) == 200
    assert tally.run(half[1], packed[800:]) == 200
    wanted: Counter[tuple[int, int]] = Counter()
    kept = []
    for row, one in enumerate(some):
        hits = [n for n, text in enumerate(SELECTORS) if Selector.parse(text).matches(one)]
        hits += [7] if one.topic.startswith("ticks/1/") else []
        hits += [8] if one.topic.startswith("ticks/2/") and one.attributes["price"] < 5 else []  # type: ignore[operator]
        wanted.update((slots[row], numbers[n]) for n in hits)
        if row % 3 == 0:
            kept += [(row // 3, numbers[n]) for n in hits]
    counts = struct.unpack(f"{4 * len(numbers)}i", tally.counted())
    got = {(k // len(numbers), k % len(numbers)): n for k, n in enumerate(counts) if n}
    assert got == dict(wanted)
    assert tally.matches == sum(wanted.values()) and tally.seen == 400
    rows, filters = (memoryview(part).cast("i").tolist() for part in tally.kept())
    assert sorted(zip(rows, filters, strict=True)) == sorted(kept)


def test_it_stops_where_slots_end(modules: dict[str, ModuleType]) -> None:
    index = modules["matching"].Index()
    index.add(modules["plan"].plan_of("price > 50"))
    tally = modules["tally"].Tally(index, 1, 1, 0)
    assert tally.run(frames(messages(10)), bytes(4 * 7)) == 7
    assert tally.run(b"", b"") == 0
    with pytest.raises(AssertionError):
        tally.run(frames(messages(1)), struct.pack("i", 1))  # no such slot
