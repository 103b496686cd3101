"""Selectors as the rest of the bus uses them: parsed once, asked of messages.

Rules:

- A `Selector` is parsed from a text within the limits, or refused with
  `LocalError("bad-selector")`. Its text is canonical, and is accepted within the same limits.
- Selectors are equal when their canonical trees are.
- A message matches when the selector is true; false and unknown do not match.
- What the envelope cannot tell from absent is NULL: an empty correlation, reply-to or sender.
  `$type` is the name of the type if there is one, else its number. `$size` counts the bytes of the
  body as sent. `$redelivered` is false: redelivery is not a matter of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from regraft.errors import LocalError
from regraft.model.message import Message, Timestamp, Value
from regraft.model.selector import ast, bounds
from regraft.model.selector.ast import (
    Arithmetic,
    Condition,
    Distance,
    Literal,
    Name,
    NameKind,
    Negate,
    Node,
)
from regraft.model.selector.canonical import canonical
from regraft.model.selector.evaluate import Truth, Values, evaluate, value_of
from regraft.model.selector.literals import value_text
from regraft.model.selector.parse import SELECTOR_BYTES_MAX, parse
from regraft.model.selector.printer import text_of


def _moment(us: int | None) -> Timestamp | None:
    return None if us is None else Timestamp(us)


HEADERS: dict[str, Callable[[Message], Value | None]] = {
    "topic": lambda message: message.topic,
    "type": lambda message: message.type_name or message.type,
    "priority": lambda message: message.priority,
    "timestamp": lambda message: _moment(message.timestamp_us),
    "expiration": lambda message: _moment(message.expiration_us),
    "correlation": lambda message: message.correlation or None,
    "reply_to": lambda message: message.reply_to or None,
    "from": lambda message: message.sender or None,
    "size": lambda message: len(message.body),
    "delivery_mode": lambda message: message.delivery_mode.name,
    "redelivered": lambda message: False,
}


def values_of(message: Message) -> Values:
    """What the names of a selector mean for a message."""

    def value(name: Name) -> Value | None:
        match name.kind:
            case NameKind.ATTRIBUTE:
                return message.attributes.get(name.name)
            case NameKind.CONTEXT:
                return message.context.get(name.name)
            case NameKind.HEADER:
                return HEADERS[name.name](message)

    return value


@dataclass(frozen=True, slots=True)
class Selector:
    """A condition on messages."""

    ast: Condition  # canonical
    text: str = field(compare=False)  # of `ast`
    written: Condition = field(compare=False, repr=False)  # as it was before

    @classmethod
    def parse(cls, text: str, bytes_max: int = SELECTOR_BYTES_MAX) -> Selector:
        """The selector of a text."""
        written = parse(text, bytes_max)
        tree = canonical(written)
        bounds.check(tree)
        plain = text_of(tree)
        # A neighbour is told the canonical text, and has the same limit.
        size = len(plain.encode())
        if size > bytes_max:
            reason = f"the selector has {size} bytes in its canonical form"
            raise LocalError("bad-selector", f"{reason}; limit selector_bytes is {bytes_max}")
        return cls(tree, plain, written)

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> frozenset[Name]:
        """All that a message is asked for."""
        return ast.names(self.ast)

    def evaluate(self, message: Message) -> Truth:
        """True, false, or None for unknown."""
        return evaluate(self.ast, values_of(message))

    def matches(self, message: Message) -> bool:
        """Whether the selector is true for a message."""
        return self.evaluate(message) is True

    def explain(self, message: Message) -> list[str]:
        """Each part of the selector as it was written and what it is for a message, indented."""
        return list(_explained(self.written, values_of(message), 0))


def _explained(node: Node, values: Values, level: int) -> Iterator[str]:
    yield f"{'  ' * level}{text_of(node)}: {_result(node, values)}"
    for child in ast.children(node):
        if not isinstance(child, Literal):
            yield from _explained(child, values, level + 1)


def _result(node: Node, values: Values) -> str:
    if isinstance(node, Name | Arithmetic | Negate | Distance):
        value = value_of(node, values)
        return "NULL" if value is None else value_text(value)
    truth = evaluate(node, values)
    return "unknown" if truth is None else str(truth).lower()
