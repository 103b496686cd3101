"""The operands of selectors: what a name means for an envelope, and what is calculated from it.

An `Operand` is a literal, a name, or a calculation with operands below it. Asked for its value it
keeps it in its own fields until it is asked again, so that there is no object per message:

    kind    of value: the number of the field that holds such values in an attribute; 0 for NULL
    number  of an integer, a boolean, a timestamp
    real    of a float
    p, at, end  where the text of a string or of bytes stands

The reference decides what is right: `regraft.model.selector.evaluate`.
"""

from __future__ import annotations

from typing import Any

from regraft.model.message import Timestamp, Value
from regraft.model.selector import ast as tree
from regraft.model.selector.evaluate import EARTH_RADIUS_M

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    import struct

    from regraft.kernels.envelope import Scan, i64
    from regraft.model.selector.evaluate import distance

    NOTHING = 0
    BOOL = 2
    INT = 3
    FLOAT = 4
    STRING = 5
    BYTES = 6
    TIMESTAMP = 7

    # Names are numbered by the fields of the envelope that hold them.
    LITERAL = 0
    SENDER = 2
    TYPE = 4
    SIZE = 5
    SENT = 6
    TOPIC = 9
    ATTRIBUTE = 10
    PRIORITY = 12
    EXPIRATION = 13
    DELIVERY_MODE = 14
    REPLY_TO = 16
    CORRELATION = 17
    TYPE_NAME = 18
    CONTEXT = 19
    NEGATE = 30
    ADD = 31
    SUBTRACT = 32
    MULTIPLY = 33
    DIVIDE = 34
    DISTANCE = 35

    UNLIKE = 2  # neither less nor equal nor greater

    def as_double(raw: int) -> float:
        """Eight bytes, read as a double."""
        value: float = struct.unpack("<d", (raw & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"))[0]
        return value

    def as_signed(raw: int) -> int:
        """Undo zigzag."""
        return raw >> 1 ^ -(raw & 1)

    def pointer(text: bytes) -> Any:
        """What bytes are read through."""
        return text

    def order_ints(a: int, b: int) -> int:
        """-1, 0 or 1."""
        return (a > b) - (a < b)

    def order_floats(a: float, b: float) -> int:
        """-1, 0 or 1; 2 if one of them is no number."""
        return UNLIKE if a != a or b != b else (a > b) - (a < b)

    order_int_float = order_floats  # exactly: Python does not round the integer

    def order_bytes(p: Any, at: int, end: int, q: Any, start: int, stop: int) -> int:
        """-1, 0 or 1: by bytes, which for UTF-8 is by code points."""
        a, b = bytes(p[at:end]), bytes(q[start:stop])
        return (a > b) - (a < b)

    def same_name(p: Any, start: int, length: int, name: bytes) -> bool:
        """Whether the name at `start` is this one."""
        return length == len(name) and bytes(p[start : start + length]) == name

    def fits(number: int) -> bool:
        """Whether a number has 64 bits."""
        return tree.INT_MIN <= number <= tree.INT_MAX

    def sum_fits(a: int, b: int) -> bool:
        """Whether a + b has 64 bits."""
        return fits(a + b)

    def difference_fits(a: int, b: int) -> bool:
        """Whether a - b has 64 bits."""
        return fits(a - b)

    def product_fits(a: int, b: int) -> bool:
        """Whether a * b has 64 bits."""
        return fits(a * b)

    def is_smallest(a: int) -> bool:
        """Whether there is no -a."""
        return a == tree.INT_MIN

    def quotient(a: int, b: int) -> int:
        """a / b towards zero."""
        whole = abs(a) // abs(b)
        return whole if (a < 0) == (b < 0) else -whole

    def metres(a: float, b: float, c: float, d: float, radius: float) -> float:
        """The distance of two points, each of latitude and longitude."""
        value = distance(a, b, c, d)
        assert value is not None
        return value


KINDS = {bool: 2, int: 3, float: 4, str: 5, bytes: 6, Timestamp: 7}
HEADERS = {
    "topic": 9, "type": 18, "priority": 12, "timestamp": 6, "expiration": 13, "correlation": 17,
    "reply_to": 16, "from": 2, "size": 5, "delivery_mode": 14,
}  # fmt: skip
SYMBOLS = {"+": 31, "-": 32, "*": 33, "/": 34}
MODES = b"NON_PERSISTENT"  # and from the fifth byte on, the other one
RADIUS = EARTH_RADIUS_M


class Operand:
    """One operand. Made by `compile_operand`."""

    def __init__(self, op: int) -> None:
        self.op = op
        self.kind = 0
        self.text = b""
        self.number = 0
        self.real = 0.0
        self.at = 0
        self.end = 0
        if not cython.compiled:
            self.left: Operand  # of a calculation,
            self.right: Operand
            self.points: list[Operand]  # and of a distance
            self.degrees = [0.0] * 4
            self.p: Any = b""

    def value(self, scan: Scan, p: Any) -> int:
        """Work out the value for the envelope that `scan` has just scanned; its kind."""
        op = self.op
        if op == LITERAL:
            return self.kind
        if op in (ATTRIBUTE, CONTEXT):
            return self.find(scan, p)
        if op < NEGATE:
            return self.header(scan, p)
        if op == NEGATE:
            return self.negative(scan, p)
        if op == DISTANCE:
            return self.distance(scan, p)
        return self.calculate(scan, p)

    def show(self) -> None:
        """The value is the text that it holds itself."""
        self.p = pointer(self.text)
        self.at = 0
        self.end = len(self.text)

    def find(self, scan: Scan, p: Any) -> int:
        """The value of an attribute, or of one of the context."""
        where = self.op
        for k in range(scan.names):
            if scan.name_field[k] == where and same_name(
                p, scan.name_at[k], scan.name_length[k], self.text
            ):
                return self.take(scan, p, k)
        self.kind = NOTHING
        return NOTHING

    def take(self, scan: Scan, p: Any, k: int) -> int:
        """The value of the k-th attribute."""
        kind = scan.value_kind[k]
        raw = scan.value_raw[k]
        self.kind = kind
        if kind == FLOAT:
            self.real = as_double(raw)
        elif kind == INT:
            self.number = as_signed(raw)
        elif kind in (BOOL, TIMESTAMP):
            self.number = raw
        else:
            self.p = p
            self.end = scan.value_end[k]
            self.at = self.end - raw
        return kind

    def header(self, scan: Scan, p: Any) -> int:
        """The value of a header field."""
        op = self.op
        if op in (TOPIC, SENDER, REPLY_TO, CORRELATION):
            return self.text_field(scan, p, op)
        if op in (SENT, EXPIRATION):
            return self.moment(scan, p, op)
        if op == DELIVERY_MODE:
            self.show()
            if scan.seen >> DELIVERY_MODE & 1 and scan.field_raw[DELIVERY_MODE]:
                self.at = 4
            self.kind = STRING
            return STRING
        if op == TYPE_NAME and self.text_field(scan, p, op):
            return STRING
        self.kind = INT
        if op == PRIORITY:
            self.number = scan.priority
        elif op == SIZE:
            self.number = scan.body_end - scan.body_at
        elif scan.seen >> TYPE & 1:
            self.number = scan.field_raw[TYPE]
        else:
            self.number = 0
        return INT

    def text_field(self, scan: Scan, p: Any, number: int) -> int:
        """The text of a field of the envelope; an empty one is NULL."""
        self.kind = NOTHING
        if scan.seen >> number & 1 and scan.field_raw[number]:
            self.kind = STRING
            self.p = p
            self.end = scan.field_end[number]
            self.at = self.end - scan.field_raw[number]
        return self.kind

    def moment(self, scan: Scan, p: Any, number: int) -> int:
        """The moment in a field of the envelope."""
        self.kind = NOTHING
        if scan.seen >> number & 1:
            self.kind = TIMESTAMP
            self.number = i64(p, scan.field_end[number] - 8)
        return self.kind

    def negative(self, scan: Scan, p: Any) -> int:
        """The minus sign."""
        inner = self.left
        self.kind = inner.value(scan, p)
        if self.kind == FLOAT:
            self.real = -inner.real
        elif self.kind == INT and not is_smallest(inner.number):
            self.number = -inner.number
        else:
            self.kind = NOTHING
        return self.kind

    def calculate(self, scan: Scan, p: Any) -> int:
        """Sum, difference, product or quotient."""
        left = self.left
        right = self.right
        left.value(scan, p)
        right.value(scan, p)
        if left.kind == INT:
            if right.kind == INT:
                self.kind = self.integers(left.number, right.number)
                return self.kind
            left.real = left.number
        if right.kind == INT:
            right.real = right.number
        self.kind = NOTHING
        if (left.kind == INT or left.kind == FLOAT) and (right.kind == INT or right.kind == FLOAT):
            self.kind = self.reals(left.real, right.real)
        return self.kind

    def integers(self, a: int, b: int) -> int:
        """Calculate with integers; NULL if the result has more than 64 bits."""
        op = self.op
        if op == ADD and sum_fits(a, b):
            self.number = a + b
        elif op == SUBTRACT and difference_fits(a, b):
            self.number = a - b
        elif op == MULTIPLY and product_fits(a, b):
            self.number = a * b
        elif op == DIVIDE and b != 0 and not (b == -1 and is_smallest(a)):
            self.number = quotient(a, b)
        else:
            return NOTHING
        return INT

    def reals(self, a: float, b: float) -> int:
        """Calculate with floats."""
        op = self.op
        if op == ADD:
            self.real = a + b
        elif op == SUBTRACT:
            self.real = a - b
        elif op == MULTIPLY:
            self.real = a * b
        elif b == 0.0:
            return NOTHING
        else:
            self.real = a / b
        return FLOAT

    def distance(self, scan: Scan, p: Any) -> int:
        """Metres between two points in degrees; NULL where they are none."""
        self.kind = NOTHING
        for k in range(4):
            point = self.points[k]
            point.value(scan, p)
            if point.kind == FLOAT:
                x = point.real
            elif point.kind == INT:
                x = point.number
            else:
                return NOTHING
            if not (-180.0 <= x <= 180.0) or (k % 2 == 0 and not (-90.0 <= x <= 90.0)):
                return NOTHING
            self.degrees[k] = x
        self.real = metres(
            self.degrees[0], self.degrees[1], self.degrees[2], self.degrees[3], RADIUS
        )
        self.kind = FLOAT
        return FLOAT

    def order(self, other: Operand) -> int:
        """-1, 0 or 1: how two values stand to each other; 2 if they do not compare."""
        kind = self.kind
        if kind == INT:
            if other.kind == INT:
                return order_ints(self.number, other.number)
            return order_int_float(self.number, other.real) if other.kind == FLOAT else UNLIKE
        if kind == FLOAT:
            if other.kind == FLOAT:
                return order_floats(self.real, other.real)
            if other.kind != INT:
                return UNLIKE
            order = order_int_float(other.number, self.real)
            return order if order == UNLIKE else -order
        if kind != other.kind:
            return UNLIKE
        if kind in (STRING, BYTES):
            return order_bytes(self.p, self.at, self.end, other.p, other.at, other.end)
        return order_ints(self.number, other.number)


def compile_operand(node: tree.Operand) -> Operand:
    """What works out the value of an operand on the lane."""
    if isinstance(node, tree.Literal):
        return literal(node.value)
    if isinstance(node, tree.Name):
        return named(node)
    if isinstance(node, tree.Negate):
        made = Operand(NEGATE)
        made.left = compile_operand(node.operand)
        return made
    if isinstance(node, tree.Arithmetic):
        made = Operand(SYMBOLS[node.operator])
        made.left = compile_operand(node.left)
        made.right = compile_operand(node.right)
        return made
    made = Operand(DISTANCE)
    made.points = [compile_operand(point) for point in node.points]
    return made


def literal(value: Value) -> Operand:
    """The operand of a value."""
    made = Operand(LITERAL)
    made.kind = KINDS[type(value)]
    if isinstance(value, float):
        made.real = value
    elif isinstance(value, Timestamp):
        made.number = value.us
    elif isinstance(value, int):
        made.number = int(value)
    else:
        made.text = value.encode() if isinstance(value, str) else value
        made.show()
    return made


def named(name: tree.Name) -> Operand:
    """The operand of a name."""
    if name.kind is not tree.NameKind.HEADER:
        made = Operand(ATTRIBUTE if name.kind is tree.NameKind.ATTRIBUTE else CONTEXT)
        made.text = name.name.encode()
        return made
    if name.name == "redelivered":
        return literal(False)  # redelivery is not a matter of the message
    made = Operand(HEADERS[name.name])
    made.text = MODES if name.name == "delivery_mode" else b""
    return made
