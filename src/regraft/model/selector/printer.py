"""From the tree of a selector to its text.

Rules:

- The text is read back as a tree of the same meaning, and for a canonical tree as the same tree.
- There is one space around operators, keywords are in capitals, parentheses stand only where they
  change something. Names are bare if they are plain ASCII and no keyword, else in quotes.
"""

from __future__ import annotations

import re

from regraft.model.selector import words
from regraft.model.selector.ast import (
    And,
    Arithmetic,
    Between,
    Comparison,
    Condition,
    Distance,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    NameKind,
    Negate,
    Node,
    Not,
    Operand,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)
from regraft.model.selector.literals import string_text, value_text

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def text_of(node: Node) -> str:
    """A node as text that can be parsed."""
    match node:
        case Literal() | Name() | Arithmetic() | Negate() | Distance():
            return _operand(node)
        case And(terms):
            return " AND ".join(_term(term, (And, Or)) for term in terms)
        case Or(terms):
            return " OR ".join(_term(term, (Or,)) for term in terms)
        case Not(term):
            return _negation(term)
        case Comparison(operator, left, right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case StartsWith(operand, prefix):
            return f"STARTS_WITH({_operand(operand)}, {string_text(prefix)})"
        case TopicMatch(pattern):
            return f"TOPIC({string_text(pattern)})"
        case IsNull(name):
            return f"{_name(name)} IS NULL"
        case Between() | In() | Like() | Regexp():
            return _test(node, "")


def _term(term: Condition, loose: tuple[type[Condition], ...]) -> str:
    # A chain within a chain of its own kind keeps its parentheses, so that the tree stays.
    text = text_of(term)
    return f"({text})" if isinstance(term, loose) else text


def _negation(term: Condition) -> str:
    match term:
        case IsNull(name):
            return f"{_name(name)} IS NOT NULL"
        case Between() | In() | Like() | Regexp():
            return _test(term, "NOT ")
        case And() | Or() | Comparison():
            return f"NOT ({text_of(term)})"
        case _:
            return f"NOT {text_of(term)}"


def _test(node: Between | In | Like | Regexp, negated: str) -> str:
    operand = _operand(node.operand)
    match node:
        case Between(_, low, high):
            return f"{operand} {negated}BETWEEN {_operand(low)} AND {_operand(high)}"
        case In(_, items):
            return f"{operand} {negated}IN ({', '.join(_operand(item) for item in items)})"
        case Like(_, pattern, escape):
            suffix = "" if escape is None else f" ESCAPE {string_text(escape)}"
            return f"{operand} {negated}LIKE {string_text(pattern)}{suffix}"
        case Regexp(_, pattern):
            return f"{operand} {negated}REGEXP {string_text(pattern)}"


def _operand(node: Operand) -> str:
    match node:
        case Literal(value):
            return value_text(value)
        case Name():
            return _name(node)
        case Distance(points):
            return f"DISTANCE({', '.join(_operand(point) for point in points)})"
        case Negate(operand):
            text = _operand(operand)
            # A sign before a number would become part of it.
            enclosed = isinstance(operand, Arithmetic | Literal | Negate)
            return f"-({text})" if enclosed else f"-{text}"
        case Arithmetic(operator, left, right):
            before, after = _operand(left), _operand(right)
            if isinstance(left, Arithmetic) and _is_sum(left) and operator in "*/":
                before = f"({before})"
            if isinstance(right, Arithmetic) and not (_is_product(right) and operator in "+-"):
                after = f"({after})"
            return f"{before} {operator} {after}"


def _is_sum(node: Arithmetic) -> bool:
    return node.operator in "+-"


def _is_product(node: Arithmetic) -> bool:
    return node.operator in "*/"


def _name(name: Name) -> str:
    if name.kind is NameKind.HEADER:
        return f"${name.name}"
    plain = _BARE.fullmatch(name.name) and name.name.upper() not in words.RESERVED
    if name.kind is NameKind.CONTEXT:
        return f"ctx.{name.name}" if plain else f"ctx.{_quoted(name.name)}"
    return name.name if plain and not words.is_jms_header(name.name) else _quoted(name.name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
