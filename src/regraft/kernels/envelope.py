"""The scan of an envelope: is it well formed, and where are the few things a node looks at.

It is strict where leniency would let two readers see two different messages: a singular field
that stands twice, a group, a name that is not UTF-8 or stands twice, a number that overflows.
Unknown fields are passed over; they belong to somebody newer. The slow, obvious reference of the
same rules is `regraft.model.message`; a test holds the two together.

`p` is a pointer when compiled, a memoryview when interpreted. Errors are small numbers, because
the loop runs once for every message: `FAULTS` has the sentences.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

FAULTS = (
    "fine",
    "the bytes end in the middle of a field",
    "a number is longer than ten bytes or above its range",
    "a field has the number 0",
    "a group (wire type 3 or 4) or an unknown wire type",
    "a known field has the wrong wire type",
    "a singular field stands twice",
    "a string is not valid UTF-8",
    "an attribute has no name, or a name that is too long",
    "an attribute does not have exactly one value",
    "two attributes have the same name",
    "too many attributes",
    "no topic, or one that is too long",
    "a value outside what its field allows",
)

if not cython.compiled:
    from regraft.kernels.checksum import pointer_to
    from regraft.kernels.frame import HEADER, cut, u32

    TRUNCATED = 1
    OVERFLOW = 2
    FIELD_ZERO = 3
    GROUP = 4
    WRONG_WIRE_TYPE = 5
    TWICE = 6
    NOT_UTF8 = 7
    BAD_NAME = 8
    NOT_ONE_VALUE = 9
    SAME_NAME = 10
    TOO_MANY = 11
    NO_TOPIC = 12
    BAD_VALUE = 13

    NAMES_MAX = 512
    FIELDS = 27
    TEXTS = 0x407820C  # bits of the fields that are strings: 2, 3, 9, 15 to 18, 26
    REPEATED = 0x80400  # 10 and 19

    # Wire type of each field by its number; 9 where there is no such field.
    ENVELOPE_WIRE = bytes(
        (9, 1, 2, 2, 0, 2, 1, 1, 2, 2, 2, 0, 0, 1, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 1, 2)
    )
    ATTRIBUTE_WIRE = bytes((9, 2, 0, 0, 1, 2, 2, 1))

    # Bounds of what is a varint: type 4, priority 12, delivery mode 14, booleans 21 and 22,
    # logging method 23, compression 24; sequence 11 has all 64 bits.
    MAXIMA = {4: 0xFFFFFFFF, 12: 9, 14: 1, 21: 1, 22: 1, 23: 0xFFFFFFFF, 24: 1}

    def maximum(number: int) -> int:
        """The largest value of a field that is a varint."""
        return MAXIMA.get(number, 0xFFFFFFFFFFFFFFFF)

    def same(p: Any, a: int, b: int, length: int) -> bool:
        """Whether the bytes at a and at b are the same."""
        return bool(p[a : a + length] == p[b : b + length])

    def i64(p: Any, i: int) -> int:
        """The eight bytes at i as a signed number."""
        return int.from_bytes(p[i : i + 8], "little", signed=True)

    def all_ascii(p: Any, i: int) -> bool:
        """Whether the eight bytes at i are ASCII."""
        return bytes(p[i : i + 8]).isascii()


def is_utf8(p: Any, i: int, end: int) -> bool:
    """Whether p[i:end] is UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF."""
    while i < end:
        while end - i >= 8 and all_ascii(p, i):
            i += 8
        if i == end:
            break
        c = p[i]
        i += 1
        if c < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if c < 0xC2 or c > 0xF4:
            return False
        if c < 0xE0:
            more = 1
        elif c < 0xF0:
            more = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        else:
            more = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        if end - i < more:
            return False
        if p[i] < low or p[i] > high:
            return False
        i += 1
        while more > 1:
            if p[i] & 0xC0 != 0x80:
                return False
            i += 1
            more -= 1
    return True


class Scan:
    """Scans one envelope after another, and holds what the last one had."""

    def __init__(self) -> None:
        self.fault = 0
        self.value = 0
        self.names = 0
        if not cython.compiled:
            self.name_at = [0] * NAMES_MAX
            self.name_length = [0] * NAMES_MAX
            self.name_field = [0] * NAMES_MAX
            # One more than names, as a value may come before it is known that its name is too much.
            self.value_kind = [0] * (NAMES_MAX + 1)  # the number of the field that holds the value,
            self.value_raw = [0] * (NAMES_MAX + 1)  # its varint, or its length,
            self.value_end = [0] * (NAMES_MAX + 1)  # and where it ends
            # The same of the envelope's own fields, by number, for those with a bit in `seen`.
            self.field_raw = [0] * FIELDS
            self.field_end = [0] * FIELDS

    def varint(self, p: Any, i: int, end: int) -> int:
        """Read a varint at i into `value`; the position behind it, or -1 with `fault` set."""
        shift = 0
        value = 0
        while i < end:
            c = p[i]
            i += 1
            if shift == 63 and c > 1:
                self.fault = OVERFLOW
                return -1
            value |= (c & 0x7F) << shift
            if c < 0x80:
                self.value = value
                return i
            shift += 7
        self.fault = TRUNCATED
        return -1

    def short_varint(self, p: Any, i: int, end: int) -> int:
        """The same for tags and lengths: five bytes and 32 bits at most."""
        start = i
        i = self.varint(p, i, end)
        if i >= 0 and (i - start > 5 or self.value > 0xFFFFFFFF):
            self.fault = OVERFLOW
            return -1
        return i

    def skip(self, p: Any, i: int, end: int, wire: int) -> int:
        """Pass over the value of a field; its last `value` bytes are the content if wire is 2."""
        if wire == 2:
            if i < end and p[i] < 0x80:  # one byte of length, as nearly always
                self.value = p[i]
                i += 1
            else:
                i = self.short_varint(p, i, end)
                if i < 0:
                    return -1
            if self.value > end - i:
                self.fault = TRUNCATED
                return -1
            return i + self.value
        if wire == 0:
            return self.varint(p, i, end)
        if wire == 1:
            i += 8
        elif wire == 5:
            i += 4
        else:
            self.fault = GROUP
            return -1
        if i > end:
            self.fault = TRUNCATED
            return -1
        return i

    def tag(self, p: Any, i: int, end: int) -> int:
        """Read a tag into `value`, checked for what no field may have."""
        i = self.short_varint(p, i, end)
        if i >= 0 and self.value < 8:
            self.fault = FIELD_ZERO
            return -1
        return i

    def attribute(self, p: Any, i: int, end: int, field: int) -> bool:
        """Check one attribute, and that its name is new among those of `field`."""
        name_at = -1
        name_end = -1
        values = 0
        while i < end:
            tag = p[i]
            if 8 <= tag < 0x80:
                i += 1
            else:
                i = self.tag(p, i, end)
                if i < 0:
                    return False
                tag = self.value
            number = tag >> 3
            wire = tag & 7
            i = self.skip(p, i, end, wire)
            if i < 0:
                return False
            if number > 7:
                continue
            if wire != ATTRIBUTE_WIRE[number]:
                self.fault = WRONG_WIRE_TYPE
                return False
            if number == 1:
                if name_at >= 0:
                    self.fault = TWICE
                    return False
                name_end = i
                name_at = i - self.value
            else:
                values += 1
                self.value_kind[self.names] = number
                self.value_raw[self.names] = self.value
                self.value_end[self.names] = i
                if number == 2 and self.value > 1:
                    self.fault = BAD_VALUE
                    return False
                if number == 5 and not is_utf8(p, i - self.value, i):
                    self.fault = NOT_UTF8
                    return False
        if values != 1:
            self.fault = NOT_ONE_VALUE
            return False
        return self.name(p, name_at, name_end, field)

    def name(self, p: Any, at: int, end: int, field: int) -> bool:
        """Check a name, and remember it."""
        length = end - at
        if at < 0 or length == 0 or length > 255:
            self.fault = BAD_NAME
            return False
        if not is_utf8(p, at, end):
            self.fault = NOT_UTF8
            return False
        n = self.names
        alike = 0
        for k in range(n):
            if self.name_field[k] == field:
                alike += 1
                if self.name_length[k] == length and same(p, self.name_at[k], at, length):
                    self.fault = SAME_NAME
                    return False
        if alike == 256:
            self.fault = TOO_MANY
            return False
        if self.value_kind[n] == 4 or self.value_kind[n] == 7:
            self.value_raw[n] = i64(p, self.value_end[n] - 8)
        self.name_at[n] = at
        self.name_length[n] = length
        self.name_field[n] = field
        self.names = n + 1
        return True

    def scan(self, p: Any, i: int, end: int) -> int:
        """Scan the envelope p[i:end]: 0 if it is well formed, or the number of its fault."""
        self.fault = 0
        self.names = 0
        self.topic_at = self.topic_end = -1
        self.body_at = self.body_end = 0
        self.expiration = self.deliver_at = 0
        self.priority = 4
        self.special = 0  # persistence (1); an address or override rules (2); `where` (8)
        seen = 0  # bits of the fields that are there
        while i < end:
            tag = p[i]
            if 8 <= tag < 0x80:
                i += 1
            else:
                i = self.tag(p, i, end)
                if i < 0:
                    return self.fault
                tag = self.value
            number = tag >> 3
            wire = tag & 7
            at = i
            i = self.skip(p, i, end, wire)
            if i < 0:
                return self.fault
            if number > 26:
                continue
            if wire != ENVELOPE_WIRE[number]:
                return WRONG_WIRE_TYPE
            bit = 1 << number
            if seen & bit and not bit & REPEATED:
                return TWICE
            seen |= bit
            if wire == 2:
                at = i - self.value
                self.field_raw[number] = self.value
                self.field_end[number] = i
                if number == 5:
                    self.body_at = at
                    self.body_end = i
                elif bit & TEXTS:
                    if not is_utf8(p, at, i):
                        return NOT_UTF8
                    if number == 9:
                        self.topic_at = at
                        self.topic_end = i
                    elif at < i:
                        self.special |= 2 if number == 3 else 8 if number == 26 else 0
                elif bit & REPEATED:
                    if not self.attribute(p, at, i, number):
                        return self.fault
                elif number == 20 and at < i:
                    self.special |= 2
            elif wire == 0:
                if self.value > maximum(number):
                    return OVERFLOW if number == 4 or number == 23 else BAD_VALUE
                self.field_raw[number] = self.value
                if number == 14:
                    self.special |= self.value
                elif number == 12:
                    self.priority = self.value
            else:
                self.field_end[number] = i
                if number == 13:
                    self.expiration = i64(p, at)
                elif number == 25:
                    self.deliver_at = i64(p, at)
        self.seen = seen
        missing = self.topic_at == self.topic_end or self.topic_end - self.topic_at > 1024
        return NO_TOPIC if missing else 0


def examine(data: Any) -> tuple[int, bytes, bytes, int, int]:
    """Scan one whole envelope: fault, topic, body, expiration, what needs the control lane."""
    scan = Scan()
    fault = scan.scan(pointer_to(data), 0, len(data))
    if fault:
        return fault, b"", b"", 0, 0
    topic = bytes(data[scan.topic_at : scan.topic_end])
    body = bytes(data[scan.body_at : scan.body_end])
    return 0, topic, body, scan.expiration, scan.special


def fields_of(data: Any) -> list[tuple[int, int, Any]] | None:
    """Number, wire type and value of each field; None if these are no fields.

    A varint is a number, all others are their bytes. `model.varint.read_fields` says the same, and
    what is wrong.
    """
    scan = Scan()
    p = pointer_to(data)
    n = len(data)
    found: list[tuple[int, int, Any]] = []
    i = 0
    while i < n:
        i = scan.tag(p, i, n)
        if i < 0:
            return None
        number = scan.value >> 3
        wire = scan.value & 7
        start = i
        i = scan.skip(p, i, n, wire)
        if i < 0:
            return None
        if wire == 0:
            found.append((number, wire, scan.value))
        else:
            if wire == 2:
                start = i - scan.value
            found.append((number, wire, cut(p, start, i)))
    return found


def read_varints(data: Any) -> list[int] | None:
    """The numbers of a packed field; None if these are not varints, one behind the other."""
    scan = Scan()
    p = pointer_to(data)
    n = len(data)
    found = []
    i = 0
    while i < n:
        i = scan.varint(p, i, n)
        if i < 0:
            return None
        found.append(scan.value)
    return found


def unexpired(run: Any, now_us: int) -> tuple[bytes, int, int, int]:
    """A run of checked message frames without those that have expired.

    Returns the bytes, how many are left, how many expired, and when the next one does (0: never).
    """
    scan = Scan()
    p = pointer_to(run)
    n = len(run)
    kept = []
    left = 0
    expired = 0
    earliest = 0
    pos = 0
    while pos < n:
        end = pos + 4 + u32(p, pos)
        scan.scan(p, pos + HEADER, end)
        if scan.expiration and scan.expiration <= now_us:
            expired += 1
        else:
            left += 1
            kept.append(bytes(run[pos:end]))
            if scan.expiration and (earliest == 0 or scan.expiration < earliest):
                earliest = scan.expiration
        pos = end
    return b"".join(kept), left, expired, earliest
