"""One tree for all texts that say the same in simple ways.

Rules:

- The canonical tree is true, false and unknown exactly when the tree is, for every message. Unlike
  types compare false and NULL unknown, so a comparison is never turned into the negation of its
  opposite.
- It is its own canonical tree, and is read back from its text.
- AND and OR are flat, without repetitions, in the order of their texts, without TRUE and FALSE.
  A literal stands on the right of a comparison, two other operands in the order of their texts;
  so do those of + and *.
- What has only literals is a literal, as far as one can say its value: not NULL, not infinite. A
  DISTANCE is left alone, as the last digit of a sine depends on who computes it.
- A whole number that is compared is an integer: 1.0 is 1. In arithmetic it is not.
- BETWEEN is two comparisons. IN has each value once, in order; one value is `=`. LIKE without
  wildcards is `=`, with `%` only at its end it is STARTS_WITH. TOPIC without wildcards is `=`.
- Two negations are none. Nothing else is done to NOT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from regraft.model.selector import patterns
from regraft.model.selector.ast import (
    FALSE,
    FLIPPED,
    INT_MAX,
    INT_MIN,
    TOPIC,
    TRUE,
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
    Negate,
    Not,
    Operand,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)
from regraft.model.selector.evaluate import evaluate, value_of
from regraft.model.selector.patterns import Wild
from regraft.model.selector.printer import text_of


def canonical(tree: Condition) -> Condition:
    """The tree that stands for all trees of the same meaning, in simple ways."""
    match tree:
        case Literal() | IsNull():
            return tree
        case And(terms):
            return _chain(And, terms, neutral=TRUE, decisive=FALSE)
        case Or(terms):
            return _chain(Or, terms, neutral=FALSE, decisive=TRUE)
        case Not(term):
            return _negation(canonical(term))
        case Comparison(operator, left, right):
            return _comparison(operator, _operand(left), _operand(right))
        case Between(operand, low, high):
            parts = (Comparison(">=", operand, low), Comparison("<=", operand, high))
            return canonical(And(parts))
        case In(operand, items):
            return _in(_operand(operand), items)
        case Like(operand, pattern, escape):
            return _like(_operand(operand), patterns.like_items(pattern, escape))
        case Regexp(operand, pattern):
            return _folded(Regexp(_operand(operand), pattern))
        case StartsWith(operand, prefix):
            return _folded(StartsWith(_operand(operand), prefix))
        case TopicMatch(pattern):
            if pattern.endswith("#") or "+" in pattern.split("/"):
                return tree
            return Comparison("=", TOPIC, Literal(pattern))


def _chain(
    kind: type[And] | type[Or], terms: Iterable[Condition], neutral: Literal, decisive: Literal
) -> Condition:
    found: dict[str, Condition] = {}
    for term in map(canonical, terms):
        flat = term.terms if isinstance(term, And | Or) and type(term) is kind else (term,)
        found.update((text_of(one), one) for one in flat)
    found.pop(text_of(neutral), None)
    if text_of(decisive) in found:
        return decisive
    if len(found) < 2:
        return found.popitem()[1] if found else neutral
    return kind(tuple(found[text] for text in sorted(found)))


def _negation(term: Condition) -> Condition:
    if isinstance(term, Not):
        return term.term
    return _folded(Not(term))


def _comparison(operator: str, left: Operand, right: Operand) -> Condition:
    left, right = _compared(left), _compared(right)
    if isinstance(left, Literal) == isinstance(right, Literal):
        flip = text_of(left) > text_of(right) and not isinstance(left, Literal)
    else:
        flip = isinstance(left, Literal)
    if flip:
        operator, left, right = FLIPPED[operator], right, left
    return _folded(Comparison(operator, left, right))


def _in(operand: Operand, items: Iterable[Literal]) -> Condition:
    kept = {text_of(item): item for item in map(_compared_literal, items)}
    if len(kept) == 1:
        return _comparison("=", operand, *kept.values())
    return _folded(In(_compared(operand), tuple(kept[text] for text in sorted(kept))))


def _like(operand: Operand, items: tuple[str | Wild, ...]) -> Condition:
    ordered = _wildcards_in_order(items)
    body = ordered[:-1] if ordered and ordered[-1] is Wild.MANY else ordered
    if not any(isinstance(item, Wild) for item in body):
        literal = "".join(item for item in body if isinstance(item, str))
        if len(body) == len(ordered):
            return _comparison("=", operand, Literal(literal))
        return _folded(StartsWith(operand, literal))
    return _folded(Like(operand, *patterns.like_text(ordered)))


def _wildcards_in_order(items: tuple[str | Wild, ...]) -> tuple[str | Wild, ...]:
    """Within each run of wildcards, all `_` first and then one `%` at most."""
    ordered: list[str | Wild] = []
    for item in items:
        if ordered and ordered[-1] is Wild.MANY:
            if item is Wild.MANY:
                continue
            if item is Wild.ONE:
                ordered.insert(len(ordered) - 1, item)
                continue
        ordered.append(item)
    return tuple(ordered)


def _operand(operand: Operand) -> Operand:
    match operand:
        case Literal() | Name():
            return operand
        case Negate(inner):
            return _folded_operand(Negate(_operand(inner)))
        case Distance((a, b, c, d)):
            return Distance((_place(a), _place(b), _place(c), _place(d)))
        case Arithmetic(operator, left, right):
            left, right = _operand(left), _operand(right)
            if operator in "+*" and text_of(left) > text_of(right):
                left, right = right, left
            return _folded_operand(Arithmetic(operator, left, right))


def _place(operand: Operand) -> Operand:
    return _compared(_operand(operand))


def _compared(operand: Operand) -> Operand:
    return _compared_literal(operand) if isinstance(operand, Literal) else operand


def _compared_literal(literal: Literal) -> Literal:
    value = literal.value
    if isinstance(value, float) and value.is_integer() and INT_MIN <= value <= INT_MAX:
        return Literal(int(value))
    return literal


def _nothing(_: Name) -> None:
    return None


def _folded(condition: Comparison | In | Like | Regexp | StartsWith | Not) -> Condition:
    """The truth of a condition on a literal, where it is one."""
    match condition:
        case Comparison(_, left, right):
            constant = isinstance(left, Literal) and isinstance(right, Literal)
        case Not(term):
            constant = isinstance(term, Literal)
        case In(operand) | Like(operand) | Regexp(operand) | StartsWith(operand):
            constant = isinstance(operand, Literal)
    truth = evaluate(condition, _nothing) if constant else None
    return condition if truth is None else Literal(truth)


def _folded_operand(operand: Arithmetic | Negate) -> Operand:
    match operand:
        case Negate(inner):
            constant = isinstance(inner, Literal)
        case Arithmetic(_, left, right):
            constant = isinstance(left, Literal) and isinstance(right, Literal)
    value = value_of(operand, _nothing) if constant else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return operand
    return Literal(value)
