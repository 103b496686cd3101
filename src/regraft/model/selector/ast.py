"""The tree of a selector.

Rules:

- A node does not change, can be hashed, and equals another of the same shape and content.
- There are two sorts of nodes. An *operand* has a value or is NULL: `Literal`, `Name`,
  `Arithmetic`, `Negate`, `Distance`. A *condition* is true, false or unknown: all others, and the
  `Literal` of TRUE and FALSE.
- Literals are equal only when type and spelling of the value are: 1 is not 1.0, 0.0 is not -0.0.
- There is no NULL literal, no NaN and no infinity; integers have 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from regraft.errors import LocalError
from regraft.model.message import Value

INT_MIN = -(1 << 63)
INT_MAX = (1 << 63) - 1


class NameKind(Enum):
    """Where a name is looked up."""

    ATTRIBUTE = "attribute"
    HEADER = "header"  # written with $
    CONTEXT = "context"  # written with ctx.


@dataclass(frozen=True, slots=True)
class Name:
    """Something that a message has, or has not: then it is NULL."""

    kind: NameKind
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A value that the selector itself says."""

    value: Value

    def __post_init__(self) -> None:
        value = self.value
        if isinstance(value, float) and not math.isfinite(value):
            raise LocalError("bad-selector", f"{value} cannot be a literal; use a finite number")
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            text = f"{value} does not fit into 64 bits; use a float or a smaller number"
            raise LocalError("bad-selector", text)

    def _key(self) -> tuple[type[Value], str]:
        return type(self.value), repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, slots=True)
class Negate:
    """`-a`"""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`a + b`, with one of + - * /"""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Distance:
    """`DISTANCE(latitude, longitude, latitude, longitude)`: metres on the sphere."""

    points: tuple[Operand, Operand, Operand, Operand]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`a = b`, with one of = <> < <= > >="""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Between:
    """`a BETWEEN low AND high`"""

    operand: Operand
    low: Operand
    high: Operand


@dataclass(frozen=True, slots=True)
class In:
    """`a IN (1, 2)`"""

    operand: Operand
    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`a LIKE 'pattern' ESCAPE 'e'`"""

    operand: Operand
    pattern: str
    escape: str | None = None


@dataclass(frozen=True, slots=True)
class Regexp:
    """`a REGEXP 'pattern'`"""

    operand: Operand
    pattern: str


@dataclass(frozen=True, slots=True)
class StartsWith:
    """`STARTS_WITH(a, 'prefix')`"""

    operand: Operand
    prefix: str


@dataclass(frozen=True, slots=True)
class TopicMatch:
    """`TOPIC('a/+/#')`"""

    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`a IS NULL`"""

    name: Name


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT a`"""

    term: Condition


@dataclass(frozen=True, slots=True)
class And:
    """`a AND b AND ...`"""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """`a OR b OR ...`"""

    terms: tuple[Condition, ...]


Operand: TypeAlias = Literal | Name | Arithmetic | Negate | Distance
Condition: TypeAlias = (
    Literal
    | Comparison
    | Between
    | In
    | Like
    | Regexp
    | StartsWith
    | TopicMatch
    | IsNull
    | Not
    | And
    | Or
)
Node: TypeAlias = Operand | Condition

TRUE = Literal(True)
FALSE = Literal(False)
TOPIC = Name(NameKind.HEADER, "topic")

# What changing the sides of a comparison makes of its operator.
FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below one, in the order of the text."""
    match node:
        case Literal() | Name() | TopicMatch():  # most nodes are one of these
            return ()
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            return left, right
        case Negate(operand) | Like(operand) | Regexp(operand) | StartsWith(operand):
            return (operand,)
        case Between(operand, low, high):
            return operand, low, high
        case In(operand, items):
            return operand, *items
        case Distance(points):
            return points
        case IsNull(name):
            return (name,)
        case Not(term):
            return (term,)
        case And(terms) | Or(terms):
            return terms


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Each node of a tree with its depth, however deep it is; the root has depth 1."""
    waiting = [(node, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        for child in children(node):
            waiting.append((child, depth + 1))


def names(node: Node) -> frozenset[Name]:
    """All that a message is asked for."""
    found = set()
    for part, _ in walk(node):
        if isinstance(part, Name):
            found.add(part)
        elif isinstance(part, TopicMatch):
            found.add(TOPIC)
    return frozenset(found)
