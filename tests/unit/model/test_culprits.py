"""Which parts of a selector are to blame, and where a topic leaves a pattern."""

from __future__ import annotations

import pytest

from regraft.model.message import Message
from regraft.model.selector import Selector
from regraft.model.selector.culprits import CULPRITS_MAX, culprits
from regraft.model.topic_mismatch import mismatch
from regraft.model.topics import matches


@pytest.mark.parametrize(
    ("text", "attributes", "parts"),
    [
        ("a = 1", {"a": 1}, []),
        ("a = 1", {"a": 2}, ["a = 1"]),
        ("a = 1 AND b = 2 AND c = 3", {"a": 1, "b": 9}, ["b = 2", "c = 3"]),
        ("a = 1 OR b = 2", {"b": 3}, ["a = 1", "b = 2"]),
        ("a = 1 AND (b = 2 OR c = 3)", {"a": 1}, ["b = 2", "c = 3"]),
        ("a = 1 AND (b = 2 OR c = 3)", {"a": 2, "c": 3}, ["a = 1"]),
        ("NOT (a = 1 AND b = 2)", {"a": 1, "b": 2}, ["NOT (a = 1 AND b = 2)"]),
    ],
)
def test_the_parts_to_blame(text: str, attributes: dict[str, int], parts: list[str]) -> None:
    selector = Selector.parse(text)
    message = Message("t", attributes=attributes)
    found = culprits(selector, message)
    assert [one["part"] for one in found] == parts
    assert (not found) == selector.matches(message)


def test_values_are_said_with_their_types() -> None:
    message = Message("a/b", b"xyz", {"n": "7", "long": "x" * 500}, context={"floor": 2})
    text = "n > 5 AND missing = 1 AND $size > 9 AND ctx.floor = 1 AND long = 'y'"
    values = {}
    for one in culprits(Selector.parse(text), message):
        values |= one["values"]
    assert values["n"] == "'7' (string)"
    assert values["missing"] == "missing (attribute)"
    assert values["$size"] == "3 (number)"
    assert values["ctx.floor"] == "2 (number)"
    assert len(values["long"]) < 250


def test_there_are_not_too_many() -> None:
    text = " AND ".join(f"a{n} = 1" for n in range(CULPRITS_MAX + 20))
    assert len(culprits(Selector.parse(text), Message("t"))) == CULPRITS_MAX


def test_a_mismatch_is_said_exactly_where_there_is_one() -> None:
    levels = ("a", "b", "+", "#", "")
    patterns = ["", *levels, *(f"{x}/{y}" for x in ("a", "+", "") for y in levels), "$s/a"]
    topics = ["a", "b", "a/b", "a/b/c", "/a", "a/", "$s/a", "$s"]
    for pattern in patterns:
        for topic in topics:
            for exact in (False, True):
                text = mismatch(pattern, topic, exact)
                assert (not text) == matches(pattern, topic, exact), (pattern, topic, exact)
