"""Selectors on the lane mean what the reference says: on the vectors, and on generated ones."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import lane
from regraft.kernels import selection as compiled
from regraft.kernels.frame import count_messages
from regraft.model.message import DeliveryMode, Message, Timestamp, Value, encode_envelope
from regraft.model.selector import Selector
from regraft.wire import native

FILE = Path(__file__).parents[2] / "vectors" / "selectors.json"
VECTORS = [v for v in json.loads(FILE.read_text())["vectors"] if "result" in v]
READ: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "string": str, "bytes": bytes.fromhex,
    "timestamp": Timestamp,
}  # fmt: skip
NUMBERS = (0, 1, -1, 5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.5, 5.0, 2.0**53, 1e300,
           -1e300, 9.3e18, -9.3e18)  # fmt: skip
OTHERS = ("", "a", "b", "ab", "grüß", "\U0001f600", True, False, Timestamp(0), Timestamp(5), b"a")


@pytest.fixture(scope="module", params=["as installed", "interpreted"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "interpreted":
        return kernels.load_interpreted()["selection"]
    return compiled


def mapping_of(typed: dict[str, dict[str, Any]]) -> dict[str, Value]:
    return {
        name: READ[kind](value)
        for name, described in typed.items()
        for kind, value in described.items()
    }


def message_of(described: dict[str, Any]) -> Message:
    fields = {"topic": "t", **described}
    for noun in ("attributes", "context"):
        fields[noun] = mapping_of(fields.get(noun, {}))
    if "body" in fields:
        fields["body"] = bytes.fromhex(fields["body"])
    if "delivery_mode" in fields:
        fields["delivery_mode"] = DeliveryMode[fields["delivery_mode"]]
    return Message(**fields)


def test_the_vectors(kernel: ModuleType) -> None:
    wrong = []
    for vector in VECTORS:
        message = message_of(vector["message"])
        test = kernel.compile_selector(Selector.parse(vector["selector"]))
        expected = {"true": True, "false": False, "unknown": None}[vector["result"]]
        if kernel.examine_selector(test, encode_envelope(message)) is not expected:
            wrong.append(vector)
    assert wrong == []


def literal(random: Random) -> str:
    value = random.choice(NUMBERS + OTHERS)
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, Timestamp):
        return f"TIMESTAMP '1970-01-01T00:00:00.{value.us:06}Z'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return repr(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"


def text(random: Random, depth: int = 0) -> str:
    name = random.choice(("a", "b", "ctx.a", "$topic", "$priority", "$size", "missing"))
    shape = random.randrange(9 if depth < 3 else 5)
    if shape <= 1:
        relation = random.choice(("=", "<>", "<", "<=", ">", ">="))
        return f"{name} {relation} {literal(random)}"
    if shape == 2:
        return f"{name} BETWEEN {literal(random)} AND {literal(random)}"
    if shape == 3:
        items = ", ".join(literal(random) for _ in range(random.randint(1, 4)))
        return f"{name} IN ({items})"
    if shape == 4:
        return random.choice((f"{name} IS NULL", f"STARTS_WITH({name}, 'a')", "TRUE", "a + 1 > b"))
    if shape == 5:
        return f"NOT ({text(random, depth + 1)})"
    joint = random.choice((" AND ", " OR "))
    terms = [f"({text(random, depth + 1)})" for _ in range(random.randint(2, 3))]
    return joint.join(terms)


def message(random: Random) -> Message:
    def some() -> dict[str, Value]:
        pool = (*NUMBERS, *OTHERS, float("nan"), float("inf"))
        return {name: random.choice(pool) for name in "ab" if random.random() < 0.7}

    return Message(
        random.choice(("a", "t", "a/b")),
        bytes(random.choice((0, 1, 5))),
        some(),
        priority=random.choice((0, 4, 5)),
        context=some(),
    )


def test_generated_selectors_and_messages(kernel: ModuleType) -> None:
    random = Random(20261115)
    fast = 0
    for _ in range(1500):
        selector = Selector.parse(text(random))
        test = kernel.compile_selector(selector)
        fast += test.op != 9
        for _ in range(4):
            one = message(random)
            expected = selector.evaluate(one)
            got = kernel.examine_selector(test, encode_envelope(one))
            assert got is expected, (selector.text, one)
    assert fast > 700  # most of them do not go through the reference


@pytest.mark.parametrize("form", ["as installed", "interpreted"])
def test_a_choice_finds_the_route_of_each_message(form: str) -> None:
    modules: dict[str, ModuleType] = {"selection": compiled, "lane": lane}
    if form == "interpreted":
        modules = kernels.load_interpreted()
    tests = [
        modules["selection"].compile_selector(Selector.parse(selector))
        for selector in ("n > 1", "n < 3")
    ]
    outlets = [modules["lane"].Outlet(key) for key in (1, 2)]
    built: list[list[int]] = []

    def build(true: list[int]) -> Any:
        built.append(true)
        return modules["lane"].Route([(outlets[index], b"\x12\x01\x01") for index in true])

    choice = modules["selection"].Choice(tests, 2, build)
    route = modules["lane"].Route([], choice=choice)
    router = modules["lane"].Lane(1 << 20, 1 << 16, 8, lambda source, topic: route)
    frames = [native.encode(Message("t", attributes={"n": n})) for n in (0, 1, 2, 2, 9, 0)]
    frames.append(native.encode(Message("t")))
    stream = b"".join(frames)
    assert router.run(modules["lane"].Source(1), memoryview(bytearray(stream)), 0, 0) == len(stream)
    got = [b"".join(map(bytes, outlet.gather(True))) for outlet in outlets]
    assert [count_messages(part)[0] for part in got] == [3, 5]
    assert got[0].endswith(frames[2] + frames[3] + frames[4])
    assert built == [[1], [0, 1], [0], [1], []]  # two are remembered at a time
    assert (router.deliveries, router.untaken) == (8, 1)
