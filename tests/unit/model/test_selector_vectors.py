"""Checks that selectors are what the published vectors say."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regraft.errors import LocalError
from regraft.model.message import DeliveryMode, Message, Timestamp, Value
from regraft.model.selector import Selector, evaluate, parse, values_of

FILE = Path(__file__).parents[2] / "vectors" / "selectors.json"
PUBLISHED = json.loads(FILE.read_text(encoding="utf-8"))
VECTORS = PUBLISHED["vectors"]
RESULTS = {"true": True, "false": False, "unknown": None}
READ: dict[str, Callable[[Any], Value]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "string": str,
    "bytes": bytes.fromhex,
    "timestamp": Timestamp,
}


def mapping_of(typed: dict[str, dict[str, Any]]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, described in typed.items():
        ((kind, value),) = described.items()
        found[name] = READ[kind](value)
    return found


def message_of(described: dict[str, Any]) -> Message:
    fields = {"topic": "t", **described}
    for noun in ("attributes", "context"):
        fields[noun] = mapping_of(fields.get(noun, {}))
    if "body" in fields:
        fields["body"] = bytes.fromhex(fields["body"])
    if "delivery_mode" in fields:
        fields["delivery_mode"] = DeliveryMode[fields["delivery_mode"]]
    return Message(**fields)


@pytest.mark.parametrize("vector", [v for v in VECTORS if "result" in v], ids=lambda v: v["about"])
def test_a_result(vector: dict[str, Any]) -> None:
    message = message_of(vector["message"])
    expected = RESULTS[vector["result"]]
    selector = Selector.parse(vector["selector"])
    assert selector.evaluate(message) is expected
    assert selector.matches(message) is (expected is True)
    assert evaluate(parse(vector["selector"]), values_of(message)) is expected
    assert Selector.parse(selector.text) == selector


@pytest.mark.parametrize("vector", [v for v in VECTORS if "error" in v], ids=lambda v: v["error"])
def test_a_refusal(vector: dict[str, Any]) -> None:
    with pytest.raises(LocalError) as caught:
        Selector.parse(vector["selector"])
    assert caught.value.code.name == "bad-selector"
    assert vector["error"] in caught.value.text


@pytest.mark.parametrize("vector", PUBLISHED["canonical"], ids=lambda v: v["selector"])
def test_a_canonical_text(vector: dict[str, str]) -> None:
    selector = Selector.parse(vector["selector"])
    assert selector.text == vector["canonical"]
    again = Selector.parse(selector.text)
    assert again == selector and hash(again) == hash(selector) and again.text == selector.text


@pytest.mark.parametrize(("one", "other"), PUBLISHED["differ"])
def test_what_is_not_the_same(one: str, other: str) -> None:
    assert Selector.parse(one) != Selector.parse(other)
    assert Selector.parse(one).text != Selector.parse(other).text


def test_there_are_enough_of_each() -> None:
    assert len(VECTORS) >= 300
    assert all(len({"result", "error"} & vector.keys()) == 1 for vector in VECTORS)
    results = Counter(vector.get("result", "error") for vector in VECTORS)
    assert all(results[result] >= 50 for result in (*RESULTS, "error"))
    lines = [json.dumps(vector) for vector in VECTORS]
    assert len(lines) == len(set(lines))
