"""Selectors on the data lane: evaluated on the bytes of an envelope that was just scanned.

A `Test` is one node of a selector's tree. What compares an attribute, the topic, the priority or
the size with literals is done here, without an object per message; a tree with anything else in it
(arithmetic, LIKE, REGEXP, DISTANCE, other headers) is evaluated as a whole by the reference. The
reference decides what is right: `regraft.model.selector.evaluate`; a test holds the two together.

A `Choice` stands behind a route with selectors: it evaluates each of them once per message, and
finds the route for those that are true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regraft.model.message import Message, Timestamp, decode_envelope
from regraft.model.selector import Selector
from regraft.model.selector import ast as tree

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.envelope import Scan
    from regraft.kernels.frame import cut

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
    WHOLE = 9

    ATTRIBUTE = 10
    CONTEXT = 19
    TOPIC = 1
    PRIORITY = 2
    SIZE = 3

    BOOL = 2
    INT = 3
    FLOAT = 4
    STRING = 5
    BYTES = 6
    TIMESTAMP = 7

    def as_double(raw: int) -> float:
        """Eight bytes, read as a double."""
        value: float = struct.unpack("<d", (raw & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"))[0]
        return value

    def as_signed(raw: int) -> int:
        """Undo zigzag."""
        return raw >> 1 ^ -(raw & 1)

    def order_ints(a: int, b: int) -> int:
        """-1, 0 or 1."""
        return (a > b) - (a < b)

    def order_int_float(a: int, b: float) -> int:
        """-1, 0 or 1, exactly; 2 if b is no number."""
        return 2 if b != b else (a > b) - (a < b)

    def order_floats(a: float, b: float) -> int:
        """-1, 0 or 1; 2 if one of them is no number."""
        return 2 if a != a or b != b else (a > b) - (a < b)

    def order_bytes(p: Any, start: int, end: int, text: bytes) -> int:
        """-1, 0 or 1: by bytes, which for UTF-8 is by code points."""
        value = bytes(p[start:end])
        return (value > text) - (value < text)

    def begins(p: Any, start: int, end: int, text: bytes) -> bool:
        """Whether p[start:end] begins so."""
        return bytes(p[start:end]).startswith(text)

    def same_name(p: Any, start: int, length: int, name: bytes) -> bool:
        """Whether the name at `start` is this one."""
        return length == len(name) and bytes(p[start : start + length]) == name


RELATIONS = {"=": 0, "<>": 1, "<": 2, "<=": 3, ">": 4, ">=": 5}
KINDS = {bool: 2, int: 3, float: 4, str: 5, bytes: 6, Timestamp: 7}
HEADERS = {"topic": 1, "priority": 2, "size": 3}


class Test:
    """One node of a selector's tree. Made by `compile_selector`."""

    def __init__(self, op: int) -> None:
        self.op = op
        self.terms: list[Test] = []
        self.where = 0
        self.name = b""
        self.relation = 0
        self.kind = 0
        self.number = 0
        self.real = 0.0
        self.text = b""
        self.selector: Selector | None = None
        self.found_kind = 0
        self.found_number = 0
        self.found_real = 0.0
        self.found_at = 0
        self.found_end = 0

    def evaluate(self, scan: Scan, p: Any, start: int, end: int) -> int:
        """False, true or unknown for the envelope p[start:end], which `scan` has just scanned."""
        op = self.op
        if op == COMPARE:
            if not self.find(scan, p):
                return UNKNOWN
            return self.holds(p)
        if op in (AND, OR):
            return self.connect(scan, p, start, end)
        if op == NOT:
            term = self.terms[0]
            value = term.evaluate(scan, p, start, end)
            return UNKNOWN if value == UNKNOWN else 1 - value
        if op == IS_NULL:
            return FALSE if self.find(scan, p) else TRUE
        if op == IN:
            return self.among(scan, p)
        if op == STARTS_WITH:
            if not self.find(scan, p):
                return UNKNOWN
            if self.found_kind != STRING:
                return FALSE
            return TRUE if begins(p, self.found_at, self.found_end, self.text) else FALSE
        if op == CONSTANT:
            return self.relation
        return self.whole(cut(p, start, end))

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

    def find(self, scan: Scan, p: Any) -> bool:
        """Look the name up; whether it is there."""
        where = self.where
        if where in (ATTRIBUTE, CONTEXT):
            for k in range(scan.names):
                if scan.name_field[k] == where and same_name(
                    p, scan.name_at[k], scan.name_length[k], self.name
                ):
                    self.take(scan, k)
                    return True
            return False
        if where == TOPIC:
            self.found_kind = STRING
            self.found_at = scan.topic_at
            self.found_end = scan.topic_end
        else:
            self.found_kind = INT
            self.found_number = scan.priority if where == PRIORITY else scan.body_end - scan.body_at
        return True

    def take(self, scan: Scan, k: int) -> None:
        """Take the value of the k-th attribute."""
        kind = scan.value_kind[k]
        raw = scan.value_raw[k]
        self.found_kind = kind
        if kind == FLOAT:
            self.found_real = as_double(raw)
        elif kind == INT:
            self.found_number = as_signed(raw)
        elif kind in (BOOL, TIMESTAMP):
            self.found_number = raw
        else:
            self.found_end = scan.value_end[k]
            self.found_at = self.found_end - raw

    def order(self, p: Any) -> int:
        """-1, 0 or 1: how what was found stands to the literal; 2 if they do not compare."""
        kind = self.found_kind
        if kind in (INT, FLOAT):
            if self.kind == INT:
                if kind == INT:
                    return order_ints(self.found_number, self.number)
                order = order_int_float(self.number, self.found_real)
                return 2 if order == 2 else -order
            if self.kind == FLOAT:
                if kind == INT:
                    return order_int_float(self.found_number, self.real)
                return order_floats(self.found_real, self.real)
            return 2
        if kind != self.kind:
            return 2
        if kind in (STRING, BYTES):
            return order_bytes(p, self.found_at, self.found_end, self.text)
        return order_ints(self.found_number, self.number)

    def holds(self, p: Any) -> int:
        """Whether the comparison holds for what was found. Unlike types compare false."""
        order = self.order(p)
        relation = self.relation
        if order == 2:
            return FALSE
        if relation == 0:
            return TRUE if order == 0 else FALSE
        if relation == 1:
            return TRUE if order != 0 else FALSE
        if self.kind == BOOL:
            return FALSE  # booleans have no order
        if relation == 2:
            return TRUE if order < 0 else FALSE
        if relation == 3:
            return TRUE if order <= 0 else FALSE
        if relation == 4:
            return TRUE if order > 0 else FALSE
        return TRUE if order >= 0 else FALSE

    def among(self, scan: Scan, p: Any) -> int:
        """IN: equal to one of the terms."""
        if not self.find(scan, p):
            return UNKNOWN
        for k in range(len(self.terms)):
            term = self.terms[k]
            term.found_kind = self.found_kind
            term.found_number = self.found_number
            term.found_real = self.found_real
            term.found_at = self.found_at
            term.found_end = self.found_end
            if term.holds(p) == TRUE:
                return TRUE
        return FALSE

    def whole(self, envelope: bytes) -> int:
        """Ask the reference."""
        assert self.selector is not None
        value = self.selector.evaluate(decoded(envelope))
        return UNKNOWN if value is None else int(value)


class _Memo:
    """The last envelope that was decoded: several selectors may ask about it."""

    envelope = b""
    message = Message("none")


def decoded(envelope: bytes) -> Message:
    """A message, decoded once for all who ask in a row."""
    if envelope != _Memo.envelope:
        _Memo.message = decode_envelope(envelope)
        _Memo.envelope = envelope
    return _Memo.message


# ------------------------------------------------------------------------- compiling


class _NotHereError(Exception):
    """Something that only the reference evaluates."""


def compile_selector(selector: Selector) -> Test:
    """What evaluates a selector on the lane."""
    try:
        return _compile(selector.ast)
    except _NotHereError:
        test = Test(9)
        test.selector = selector
        return test


def _compile(node: Any) -> Test:
    if isinstance(node, tree.And | tree.Or):
        test = Test(1 if isinstance(node, tree.And) else 2)
        test.terms = [_compile(term) for term in node.terms]
    elif isinstance(node, tree.Not):
        test = Test(3)
        test.terms = [_compile(node.term)]
    elif isinstance(node, tree.Comparison):
        test = _named(4, node.left)
        _literal(test, node.right)
        test.relation = RELATIONS[node.operator]
    elif isinstance(node, tree.Between):
        test = Test(1)
        for operator, bound in ((">=", node.low), ("<=", node.high)):
            test.terms.append(_compile(tree.Comparison(operator, node.operand, bound)))
    elif isinstance(node, tree.In):
        test = _named(5, node.operand)
        for item in node.items:
            term = Test(4)
            _literal(term, item)
            test.terms.append(term)
    elif isinstance(node, tree.IsNull):
        test = _named(6, node.name)
    elif isinstance(node, tree.StartsWith):
        test = _named(7, node.operand)
        test.text = node.prefix.encode()
    elif isinstance(node, tree.Literal) and isinstance(node.value, bool):
        test = Test(8)
        test.relation = int(node.value)
    else:
        raise _NotHereError
    return test


def _named(op: int, node: Any) -> Test:
    if not isinstance(node, tree.Name):
        raise _NotHereError
    test = Test(op)
    test.name = node.name.encode()
    if node.kind is tree.NameKind.ATTRIBUTE:
        test.where = 10
    elif node.kind is tree.NameKind.CONTEXT:
        test.where = 19
    elif node.name in HEADERS:
        test.where = HEADERS[node.name]
    else:
        raise _NotHereError
    return test


def _literal(test: Test, node: Any) -> None:
    if not isinstance(node, tree.Literal):
        raise _NotHereError
    value = node.value
    test.kind = KINDS[type(value)]
    if isinstance(value, float):
        test.real = value
    elif isinstance(value, Timestamp):
        test.number = value.us
    elif isinstance(value, int):
        test.number = int(value)
    else:
        test.text = value.encode() if isinstance(value, str) else value


def examine_selector(test: Test, envelope: bytes) -> bool | None:
    """Evaluate on one whole envelope: for tests and for the curious."""
    scan = Scan()
    p = pointer_to(envelope)
    fault = scan.scan(p, 0, len(envelope))
    assert fault == 0, fault
    value = test.evaluate(scan, p, 0, len(envelope))
    return None if value == UNKNOWN else bool(value)


class Choice:
    """The selectors behind a route. `build` makes the route for those that are true, by index."""

    def __init__(
        self, tests: list[Test], variants_max: int, build: Callable[[list[int]], Any]
    ) -> None:
        self.tests = tests
        self.variants_max = variants_max
        self.build = build
        self.variants: dict[Any, Any] = {}
        self.truths = bytearray(len(tests))
        self.last = 0
        self.last_route: Any = None

    def decide(self, scan: Scan, p: Any, start: int, end: int) -> Any:
        """The route for a message."""
        n = len(self.tests)
        if n > 62:
            return self.decide_many(scan, p, start, end)
        truths = 0
        bit = 1
        for k in range(n):
            test = self.tests[k]
            if test.evaluate(scan, p, start, end) == TRUE:
                truths |= bit
            bit <<= 1
        if truths != self.last or self.last_route is None:
            self.last = truths
            self.last_route = self.variant(truths, [k for k in range(n) if truths >> k & 1])
        return self.last_route

    def decide_many(self, scan: Scan, p: Any, start: int, end: int) -> Any:
        """The same for more selectors than a number has bits."""
        for k in range(len(self.tests)):
            test = self.tests[k]
            self.truths[k] = 1 if test.evaluate(scan, p, start, end) == TRUE else 0
        key = bytes(self.truths)
        return self.variant(key, [k for k, truth in enumerate(key) if truth])

    def variant(self, key: Any, true: list[int]) -> Any:
        """The route for those that are true, made once."""
        route = self.variants.get(key)
        if route is None:
            if len(self.variants) >= self.variants_max:
                self.variants.clear()
            route = self.variants[key] = self.build(true)
        return route
