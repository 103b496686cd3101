"""Selectors on the data lane: evaluated on the bytes of an envelope that was just scanned.

A `Test` is one condition of a selector's tree, with other conditions or with operands below it
(`operands`). It is evaluated without decoding the message; only a regular expression costs objects,
and none if the string lacks a text that it must contain. The reference decides what is right:
`regraft.model.selector.evaluate`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regraft.kernels.operands import compile_operand
from regraft.model.selector import Condition, Selector
from regraft.model.selector import ast as tree
from regraft.model.selector.patterns import compile_regex, like_text_max
from regraft.model.selector.required import anchored_prefix, required_text

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import cut
    from regraft.kernels.operands import BOOL, FLOAT, INT, LITERAL, NOTHING, STRING, UNLIKE, Operand
    from regraft.kernels.patterns import Like, begins, find, fits_topic

    FALSE = 0
    TRUE = 1
    UNKNOWN = 2

    AND = 1
    OR = 2
    NOT = 3
    COMPARE = 4
    IN = 5
    IS_NULL = 6
    STARTS_WITH = 7
    CONSTANT = 8
    LIKE = 9
    REGEXP = 10
    TOPIC_FITS = 11

    EQUAL = 2
    UNEQUAL = 5


# The orders that a comparison is true for: 1 is less, 2 equal, 4 greater.
RELATIONS = {"=": 2, "<>": 5, "<": 1, "<=": 3, ">": 4, ">=": 6}
ANY_LENGTH = 0x7FFFFFFF
NONE: list[Any] = []


class Test:
    """One condition. Made by `compile_condition`."""

    def __init__(self, op: int) -> None:
        self.op = op
        self.relation = 0  # of a comparison; the truth of a constant
        self.terms: list[Test] = NONE
        self.items: list[Operand] = NONE  # of IN, in order
        self.text = b""  # what a string must begin with; the pattern of a topic
        self.piece = b""  # what it must contain
        self.text_max = 0  # longer strings are not searched
        self.search: Callable[[bytes], bool] | None = None
        if not cython.compiled:
            self.left: Operand
            self.right: Operand
            self.like: Like

    def evaluate(self, scan: Scan, p: Any, start: int, end: int) -> int:
        """False, true or unknown for the envelope p[start:end], which `scan` has just scanned."""
        op = self.op
        if op == COMPARE:
            return self.compare(scan, p)
        if op in (AND, OR):
            return self.connect(scan, p, start, end)
        if op == NOT:
            term = self.terms[0]
            value = term.evaluate(scan, p, start, end)
            return UNKNOWN if value == UNKNOWN else 1 - value
        if op == IN:
            return self.among(scan, p)
        if op == IS_NULL:
            return TRUE if self.left.value(scan, p) == NOTHING else FALSE
        if op == TOPIC_FITS:
            return TRUE if fits_topic(p, scan.topic_at, scan.topic_end, self.text) else FALSE
        if op == CONSTANT:
            return self.relation
        return self.examine_text(scan, p)

    def connect(self, scan: Scan, p: Any, start: int, end: int) -> int:
        """AND and OR: the first term that decides ends it."""
        decisive = FALSE if self.op == AND else TRUE
        result = 1 - decisive
        for k in range(len(self.terms)):
            term = self.terms[k]
            value = term.evaluate(scan, p, start, end)
            if value == decisive:
                return decisive
            if value == UNKNOWN:
                result = UNKNOWN
        return result

    def compare(self, scan: Scan, p: Any) -> int:
        """A comparison. Unlike types compare false, and booleans have no order."""
        left = self.left
        right = self.right
        kind = left.value(scan, p)
        if kind == NOTHING or (right.op != LITERAL and right.value(scan, p) == NOTHING):
            return UNKNOWN
        relation = self.relation
        if kind == BOOL and relation != EQUAL and relation != UNEQUAL:
            return FALSE
        order = left.order(right)
        return FALSE if order == UNLIKE else relation >> order + 1 & 1

    def among(self, scan: Scan, p: Any) -> int:
        """IN: the items stand in order, so that half of those left are passed over at a time."""
        left = self.left
        kind = left.value(scan, p)
        if kind == NOTHING:
            return UNKNOWN
        low = 0
        high = len(self.items)
        while low < high:
            middle = low + high >> 1
            item = self.items[middle]
            order = rank(kind) - rank(item.kind)
            if order == 0:
                order = left.order(item)
                if order == UNLIKE:
                    return FALSE  # NaN
                if order == 0:
                    return TRUE
            if order < 0:
                high = middle
            else:
                low = middle + 1
        return FALSE

    def examine_text(self, scan: Scan, p: Any) -> int:
        """STARTS_WITH, LIKE and REGEXP."""
        left = self.left
        kind = left.value(scan, p)
        if kind != STRING:
            return UNKNOWN if kind == NOTHING else FALSE
        if self.op == STARTS_WITH:
            return TRUE if begins(left.p, left.at, left.end, self.text) else FALSE
        if left.end - left.at > self.text_max:
            return UNKNOWN
        if self.op == LIKE:
            return TRUE if self.like.fits(left.p, left.at, left.end) else FALSE
        if not begins(left.p, left.at, left.end, self.text):
            return FALSE
        if find(left.p, left.at, left.end, self.piece) < 0:
            return FALSE
        assert self.search is not None
        return TRUE if self.search(cut(left.p, left.at, left.end)) else FALSE


if not cython.compiled:

    def rank(kind: int) -> int:
        """Kinds that compare have the same."""
        return INT if kind == FLOAT else kind


# ------------------------------------------------------------------------- compiling


def compile_selector(selector: Selector) -> Test:
    """What evaluates a selector on the lane."""
    return compile_condition(selector.ast)


def compile_condition(node: Condition) -> Test:
    """What evaluates a condition on the lane."""
    if isinstance(node, tree.And | tree.Or):
        test = Test(AND if isinstance(node, tree.And) else OR)
        test.terms = [compile_condition(term) for term in node.terms]
    elif isinstance(node, tree.Not):
        test = Test(NOT)
        test.terms = [compile_condition(node.term)]
    elif isinstance(node, tree.Comparison):
        test = _about(COMPARE, node.left)
        test.right = compile_operand(node.right)
        test.relation = RELATIONS[node.operator]
    elif isinstance(node, tree.Between):
        low = tree.Comparison(">=", node.operand, node.low)
        high = tree.Comparison("<=", node.operand, node.high)
        test = compile_condition(tree.And((low, high)))
    elif isinstance(node, tree.In):
        test = _about(IN, node.operand)
        test.items = [compile_operand(item) for item in sorted(node.items, key=_place)]
    elif isinstance(node, tree.IsNull):
        test = _about(IS_NULL, node.name)
    elif isinstance(node, tree.TopicMatch):
        test = Test(TOPIC_FITS)
        test.text = node.pattern.encode()
    elif isinstance(node, tree.Literal):
        test = Test(CONSTANT)
        test.relation = int(node.value is True)
    else:
        test = _about_text(node)
    return test


def _about(op: int, operand: tree.Operand) -> Test:
    test = Test(op)
    test.left = compile_operand(operand)
    return test


def _about_text(node: tree.StartsWith | tree.Like | tree.Regexp) -> Test:
    if isinstance(node, tree.StartsWith):
        test = _about(STARTS_WITH, node.operand)
        test.text = node.prefix.encode()
    elif isinstance(node, tree.Like):
        test = _about(LIKE, node.operand)
        test.like = Like(node.pattern, node.escape)
        bytes_max = like_text_max(node.pattern, node.escape)
        test.text_max = ANY_LENGTH if bytes_max is None else bytes_max
    else:
        test = _about(REGEXP, node.operand)
        regex = compile_regex(node.pattern)  # its own: thousands may be in use
        test.search = regex.search
        test.text_max = regex.text_max
        test.text = anchored_prefix(node.pattern).encode()
        test.piece = required_text(node.pattern).encode()
    return test


def _place(item: tree.Literal) -> tuple[int, Any]:
    """What the values of an IN are ordered by."""
    value = item.value
    if isinstance(value, bool):
        return 2, value
    if isinstance(value, int | float):
        return 3, value
    if isinstance(value, str):
        return 5, value.encode()
    if isinstance(value, bytes):
        return 6, value
    return 7, value


def examine_selector(test: Test, envelope: bytes) -> bool | None:
    """Evaluate on one whole envelope: for tests and for the curious."""
    scan = Scan()
    p = pointer_to(envelope)
    fault = scan.scan(p, 0, len(envelope))
    assert fault == 0, fault
    value = test.evaluate(scan, p, 0, len(envelope))
    return None if value == UNKNOWN else bool(value)
