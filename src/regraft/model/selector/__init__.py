"""Selectors, the one language of interest: parse, canonical form, evaluation.

This is the slow and obvious reference. An index, a compiled evaluation, the covering test and the
compiler for Spark must agree with it; `tests/vectors/selectors.json` is the referee of them all.
`docs/selectors.md` teaches the language.

    from regraft.model.selector import Selector

    selector = Selector.parse("price > 100 AND TOPIC('orders/#')")
    selector.matches(message)
"""

from regraft.model.selector.ast import Condition, Literal, Name, NameKind, Node, Operand
from regraft.model.selector.bounds import cost
from regraft.model.selector.canonical import canonical
from regraft.model.selector.cover import covers, overlaps
from regraft.model.selector.evaluate import Truth, Values, evaluate, value_of
from regraft.model.selector.message import Selector, values_of
from regraft.model.selector.parse import parse
from regraft.model.selector.printer import text_of

__all__ = [
    "Condition",
    "Literal",
    "Name",
    "NameKind",
    "Node",
    "Operand",
    "Selector",
    "Truth",
    "Values",
    "canonical",
    "cost",
    "covers",
    "evaluate",
    "overlaps",
    "parse",
    "text_of",
    "value_of",
    "values_of",
]
