"""A batch through the index at once: the kernel against one message at a time, in both forms."""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'regraft[parquet]'")

from regraft import kernels  # noqa: E402
from regraft.kernels import matching, plan, rows, sweep, tally  # noqa: E402
from regraft.kernels.outbox import Outbox  # noqa: E402
from regraft.model.message import Message, Timestamp, Value  # noqa: E402
from regraft.model.selector import Selector  # noqa: E402

NAMES = ("sweep", "tally", "matching", "plan", "rows")
TWINS = kernels.load_interpreted()
IN_USE = dict(zip(NAMES, (sweep, tally, matching, plan, rows), strict=True))
KINDS = [pa.bool_(), pa.int64(), pa.float64(), pa.binary(), pa.binary(), pa.int64()]
FORMS = ["in use", "interpreted"]
ODD = [
    "price > 50",
    "price > 50 OR symbol = 'S1'",
    "symbol IN ('S1', 'S2', 'S3') AND price < 90",
    "n <= 30 AND price IS NOT NULL",
    "nothing IS NULL AND flag = TRUE",
    "blob = X'0102' OR at > TIMESTAMP '1970-01-01T00:00:00Z'",
    "$topic = 'ticks/1' AND price >= 0",
    "$topic IN ('ticks/1', 'ticks/2')",
    "symbol = 'S1' OR symbol = 'S2' OR price BETWEEN 20 AND 40",
    "price = -0.0 OR n = 7",
    "nothing = 1",
    "TRUE",
    "FALSE",
]


def selectors(source: random.Random, count: int, symbols: int) -> list[str]:
    found = list(ODD)
    while len(found) < count:
        low = source.uniform(0, 100)
        band = f"price BETWEEN {low!r} AND {low + source.uniform(0.1, 30)!r}"
        found.append(
            source.choice(
                [
                    f"symbol = 'S{source.randrange(symbols)}' AND {band} AND n >= "
                    f"{source.randrange(100)}",
                    f"region = 'R{source.randrange(3)}' AND {band}",
                    f"n < {source.randrange(100)} AND price > {low!r}",
                    f"{band} OR region = 'R{source.randrange(3)}' AND n = {source.randrange(100)}",
                    f"symbol IN ('S{source.randrange(symbols)}', 'S{source.randrange(symbols)}') "
                    f"AND n > {source.randrange(100)}",
                ]
            )
        )
    return found


def messages(source: random.Random, count: int, symbols: int) -> list[Message]:
    found = []
    for _ in range(count):
        maybe: dict[str, Value] = {
            "price": source.choice([source.uniform(0, 100), source.randrange(100), -0.0, "50"]),
            "symbol": f"S{source.randrange(symbols)}",
            "region": f"R{source.randrange(3)}",
            "n": source.choice([source.randrange(100), float("nan"), True]),
            "flag": True,
            "blob": source.choice([b"\x01\x02", b"\x01"]),
            "at": Timestamp(source.randrange(-5, 5)),
            "unknown": "x",
        }
        names = source.sample(list(maybe), source.randrange(len(maybe) + 1))
        some = {name: maybe[name] for name in names}
        found.append(Message(f"ticks/{source.randrange(3)}", attributes=some))
    return found


def kind_of(value: Value) -> int:
    return (bool, int, float, str, bytes, Timestamp).index(type(value))


def cells(modules: dict[str, Any], kind: int, values: list[Any], type: Any) -> Any:
    column = pa.array([None, *values], type).slice(1)  # does not begin at the first bit
    views = [None if one is None else memoryview(one).cast("B") for one in column.buffers()]
    offsets = views[1] if len(views) > 2 else None
    return modules["rows"].Cells(kind, column.offset, views[0], offsets, views[-1], b"")


def columns(modules: dict[str, Any], some: list[Message]) -> tuple[Any, Any]:
    """Topics and attributes, as Arrow would have them; a message without attributes has NULL."""
    kinds = (rows.BOOL, rows.INT, rows.FLOAT, rows.STRING, rows.BYTES, rows.TIME)
    names: list[str] = []
    values: list[list[Any]] = [[] for _ in kinds]
    starts = [0]
    for one in some:
        for name, value in one.attributes.items():
            names.append(name)
            raw = value.us if isinstance(value, Timestamp) else value
            raw = raw.encode() if isinstance(raw, str) else raw
            for k, column in enumerate(values):
                column.append(raw if k == kind_of(value) else None)
        starts.append(len(names))
    bits = bytearray(len(some) // 8 + 1)
    for n, one in enumerate(some):
        bits[n // 8] |= bool(one.attributes) << n % 8
    Cells = modules["rows"].Cells
    entries = modules["rows"].Entries(
        Cells(rows.STRING, 0, bytes(bits), struct.pack(f"{len(starts)}i", *starts), None),
        cells(modules, rows.STRING, [name.encode() for name in names], pa.binary()),
        Cells(rows.BOOL, 0, None, None, None),
        [cells(modules, kind, values[k], KINDS[k]) for k, kind in enumerate(kinds)],
    )
    topics = [one.topic.encode() for one in some]
    return cells(modules, rows.STRING, topics, pa.binary()), entries


def frames(some: list[Message]) -> bytes:
    outbox = Outbox(1 << 20, 0)
    for one in some:
        outbox.put(one.topic.encode(), one.body, dict(one.attributes), 0, False, b"")
    return bytes(outbox.take())


def counted(tally: Any) -> tuple[bytes, list[tuple[int, int]], int, int]:
    kept = (memoryview(part).cast("i").tolist() for part in tally.kept())
    return tally.counted(), sorted(zip(*kept, strict=True)), tally.seen, tally.matches


def both(
    modules: dict[str, Any], texts: list[str], some: list[Message], learnt: int
) -> tuple[Any, Any, Any]:
    """Counts of one message at a time, and of a batch after some that were learnt from."""
    slots = struct.pack(f"{len(some)}i", *(n * 3 // len(some) for n in range(len(some))))
    found = []
    index: Any = None
    for part in (len(some), learnt):
        index = modules["matching"].Index()
        numbers = [index.add(modules["plan"].plan_of(text)) for text in texts]
        tally = modules["tally"].Tally(index, max(numbers) + 1, 3, 7)
        assert tally.run(frames(some[:part]), slots[: 4 * part]) == part
        if part < len(some):
            sweep = modules["sweep"].Sweep(tally)
            half = (part + len(some)) // 2
            both = columns(modules, some)
            assert sweep.run(part, half, *both, slots) == half - part
            assert sweep.run(half, len(some), *both, slots) == len(some) - half
        found.append(counted(tally))
    return found[0], found[1], index


@pytest.fixture(params=FORMS)
def modules(request: pytest.FixtureRequest) -> dict[str, ModuleType]:
    return IN_USE if request.param == "in use" else TWINS


def test_all_of_these_are_plain() -> None:
    texts = selectors(random.Random(1), 300, 5)
    assert all(plan.is_plain(plan.plan_of(text)) for text in texts)
    others = ("a LIKE 'x%'", "a + 1 > 2", "$priority > 3", "ctx.a = 1", "TOPIC('a/#')", "a <> 1")
    assert not any(plan.is_plain(plan.plan_of(text)) for text in others)


@pytest.mark.parametrize("learnt", [0, 60])
def test_counts_are_those_of_the_reference(modules: dict[str, Any], learnt: int) -> None:
    source = random.Random(2)
    texts = selectors(source, 60, 4)
    some = messages(source, 300, 4)
    one_by_one, at_once, index = both(modules, texts, some, learnt)
    assert at_once == one_by_one
    parsed = [Selector.parse(text) for text in texts]
    wanted = [sum(bool(one.matches(message)) for message in some) for one in parsed]
    counts = struct.unpack(f"{len(at_once[0]) // 4}i", at_once[0])
    numbers = [index.add(modules["plan"].plan_of(text)) for text in texts]
    filters = max(numbers) + 1
    assert [sum(counts[number::filters]) for number in numbers] == wanted
    assert sum(wanted) > 1000


@pytest.mark.parametrize("symbols", [1, 200])
def test_with_a_deep_tree_and_a_matrix(symbols: int) -> None:
    source = random.Random(3)
    texts = selectors(source, 6000, symbols)
    one_by_one, at_once, index = both(IN_USE, texts, messages(source, 3000, symbols), 500)
    assert at_once == one_by_one
    assert index.snapshot()["nodes"] > 100 and index.snapshot()["matrices"]


def test_a_deep_tree_interpreted() -> None:
    source = random.Random(4)
    texts = selectors(source, 700, 20)
    one_by_one, at_once, _ = both(TWINS, texts, messages(source, 120, 20), 20)
    assert at_once == one_by_one


def test_wide_messages_take_several_rounds() -> None:
    source = random.Random(5)
    texts = [f"a{n} > {source.randrange(100)}" for n in range(9000)]
    some = [
        Message("t", attributes={f"a{source.randrange(9000)}": source.randrange(100)})
        for _ in range(400)
    ]
    one_by_one, at_once, _ = both(IN_USE, texts, some, 20)
    assert at_once == one_by_one and at_once[3] > 100


def test_no_such_slot(modules: dict[str, Any]) -> None:
    index = modules["matching"].Index()
    index.add(modules["plan"].plan_of("price > 50"))
    sweep = modules["sweep"].Sweep(modules["tally"].Tally(index, 1, 1, 0))
    some = messages(random.Random(6), 2, 2)
    with pytest.raises(AssertionError):
        sweep.run(0, 2, *columns(modules, some), struct.pack("2i", 0, 1))
