"""Checks that every example in the guide to selectors is true."""

import re
from pathlib import Path
from typing import Any

import pytest

from regraft.errors import LocalError
from regraft.limits import (
    KIB,
    PATTERN_TEXT_MAX,
    REGEX_PROGRAM_MAX,
    REGEX_STEPS_MAX,
    SELECTOR_COST_MAX,
    SELECTOR_DEPTH_MAX,
    SELECTOR_IN_MAX,
    SELECTOR_NODES_MAX,
    Limits,
)
from regraft.model.message import Message, Value
from regraft.model.selector import Literal, Name, NameKind, Selector, cost, parse
from regraft.model.selector.ast import Comparison
from regraft.model.selector.patterns import regex_size, regex_text_max
from regraft.model.selector.words import HEADERS, JMS_SYNONYMS

GUIDE = (Path(__file__).parents[3] / "docs" / "selectors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
FIELDS = {"topic": "topic", "priority": "priority"}
EXAMPLES = [
    (selector.strip(), *line.rsplit("->", 1))
    for kind, block in BLOCKS
    if kind == "selector"
    for selector, lines in [block.split("\n\n", 1)]
    for line in lines.strip().splitlines()
]
GROUPS = [block.splitlines() for kind, block in BLOCKS if kind == "same"]


def message_of(text: str) -> Message:
    """A message from `name = literal; name = literal`."""
    fields: dict[str, Any] = {"topic": "t"}
    attributes: dict[str, Value] = {}
    context: dict[str, Value] = {}
    for part in filter(str.strip, text.split(";")):
        setting = parse(part)
        assert isinstance(setting, Comparison) and setting.operator == "="
        name, literal = setting.left, setting.right
        assert isinstance(name, Name) and isinstance(literal, Literal)
        match name.kind:
            case NameKind.HEADER:
                fields[FIELDS[name.name]] = literal.value
            case NameKind.CONTEXT:
                context[name.name] = literal.value
            case NameKind.ATTRIBUTE:
                attributes[name.name] = literal.value
    return Message(**fields, attributes=attributes, context=context)


@pytest.mark.parametrize(("selector", "message", "result"), EXAMPLES)
def test_an_example(selector: str, message: str, result: str) -> None:
    result = result.strip()
    if result.startswith("refused: "):
        with pytest.raises(LocalError) as caught:
            Selector.parse(selector)
        assert result.removeprefix("refused: ") in caught.value.text
    else:
        truth = {"true": True, "false": False, "unknown": None}[result]
        assert Selector.parse(selector).evaluate(message_of(message)) is truth


@pytest.mark.parametrize("lines", GROUPS)
def test_a_group_of_the_same(lines: list[str]) -> None:
    assert {Selector.parse(line).text for line in lines} == {lines[0]}


def test_no_block_is_left_out() -> None:
    assert {kind for kind, _ in BLOCKS} == {"selector", "same"}
    assert len(EXAMPLES) > 60 and len(GROUPS) > 3
    assert GUIDE.count("```") == 2 * len(BLOCKS)


def test_the_table_has_all_headers() -> None:
    rows = re.findall(r"^\| `\$(\w+)` \| (?:`(\w+)`)? ?\|", GUIDE, re.MULTILINE)
    assert [row[0] for row in rows] == list(HEADERS)
    assert {jms: header for header, jms in rows if jms} == JMS_SYNONYMS


def test_the_limits_are_those_of_the_code() -> None:
    text = " ".join(GUIDE.split())
    assert f"({Limits().selector_bytes // KIB} KiB; " in text
    assert f"{SELECTOR_DEPTH_MAX} levels deep" in text
    assert f"{SELECTOR_NODES_MAX} parts" in text
    assert f"at most {SELECTOR_IN_MAX} values" in text
    assert f"at most {REGEX_PROGRAM_MAX} instructions" in text
    assert f"at most {SELECTOR_COST_MAX}, " in text
    assert f"of more than {PATTERN_TEXT_MAX // KIB} KiB of UTF-8" in text
    assert f"strings of at most {PATTERN_TEXT_MAX // KIB} KiB" in text
    assert cost(parse("a = 1")) == 3
    assert regex_size(r"\pL") // 100 == 12  # it grows a little with Unicode


def of_size(size: int) -> str:
    """An expression with so many instructions."""
    thousands, rest = divmod(size - 5, 1000)
    pattern = "[ab]{1000}" * thousands + f"[ab]{{{rest}}}z"
    assert regex_size(pattern) == size
    return pattern


def test_the_table_of_regular_expressions_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| up to (\d+) \| (\d+) KiB \|$", GUIDE, re.MULTILINE)
    found = {int(size): int(length) * KIB for size, length in rows}
    assert max(found.values()) == PATTERN_TEXT_MAX and max(found) == REGEX_PROGRAM_MAX
    for size, length in found.items():
        assert size * length <= REGEX_STEPS_MAX
        assert regex_text_max(of_size(size)) == length
        if size < REGEX_PROGRAM_MAX:
            assert regex_text_max(of_size(size + 1)) == length // 2
