"""Which parts of a selector keep it from being true, and what they were compared with.

Rules:

- Of an AND the culprits are those of its terms that are not true; of an OR, those of all its terms;
  all else is its own culprit. So what is named is as small as it can be, and enough.
- A value is said with its type where that is what makes a comparison false.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regraft.model.message import Message, Value
from regraft.model.selector.ast import And, Condition, NameKind, Or, names
from regraft.model.selector.evaluate import Values, evaluate, type_of
from regraft.model.selector.literals import value_text
from regraft.model.selector.message import Selector, values_of
from regraft.model.selector.printer import text_of

CULPRITS_MAX = 50  # that are named


def culprits(selector: Selector, message: Message) -> list[dict[str, Any]]:
    """Each with its `part`, its `result`, and the `values` of the names in it."""
    values = values_of(message)
    if evaluate(selector.written, values) is True:
        return []
    found: list[dict[str, Any]] = []
    for part in _culprits(selector.written, values):
        if len(found) >= CULPRITS_MAX:
            break
        truth = evaluate(part, values)
        found.append(
            {
                "part": text_of(part),
                "result": "unknown" if truth is None else str(truth).lower(),
                "values": {
                    text_of(name): describe(values(name), name.kind)
                    for name in sorted(names(part), key=text_of)
                },
            }
        )
    return found


def _culprits(part: Condition, values: Values) -> Iterator[Condition]:
    if isinstance(part, And | Or):
        for term in part.terms:
            if evaluate(term, values) is not True:
                yield from _culprits(term, values)
    else:
        yield part


def describe(value: Value | None, kind: NameKind = NameKind.ATTRIBUTE) -> str:
    """A value and its type, or that there is none."""
    if value is None:
        return f"missing ({kind.value})"
    text = value_text(value)
    return f"{text if len(text) <= 200 else text[:200] + '...'} ({type_of(value).value})"
