"""How values are written in a selector.

Rules:

- What is printed is read back as the same value of the same type; each value has one spelling that
  is printed.
- Integers: decimal or 0x, with or without Java's L. No leading zeros: Java would take them for
  octal, people would not. Floats: a point or an exponent; neither infinite nor rounded to zero.
- Timestamps: `TIMESTAMP '2026-11-15T21:00:00Z'`, always with a zone, with at most six digits after
  the second. Bytes: `X'00ff'`.
"""

from __future__ import annotations

import re
from datetime import datetime

from regraft.errors import LocalError
from regraft.model.message import Timestamp, Value

_INT_DIGITS_MAX = 19
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


class NotALiteral(ValueError):
    """What was expected instead."""


def read_int(digits: str) -> int:
    """A whole number without sign; 2^63 passes, as it may have one."""
    if digits[:2] in ("0x", "0X"):
        significant, base = digits[2:].lstrip("0") or "0", 16
    else:
        significant, base = digits, 10
        if len(digits) > 1 and digits[0] == "0":
            raise NotALiteral("a number without leading zeros")
    if len(significant) > _INT_DIGITS_MAX or int(significant, base) > 1 << 63:
        raise NotALiteral("an integer of 64 bits; write a larger one as a float, such as 1e30")
    return int(significant, base)


def read_float(digits: str) -> float:
    """A number with a point or an exponent, without sign."""
    value = float(digits)
    if value == float("inf"):
        raise NotALiteral("a number below 1.8e308")
    mantissa = re.split("[eE]", digits)[0]
    if value == 0.0 and mantissa.strip("0.") != "":
        raise NotALiteral("0 or a number above 4.9e-324")
    return value


def read_timestamp(text: str) -> Timestamp:
    """A moment, to the microsecond."""
    if not _MOMENT.fullmatch(text):
        raise NotALiteral("a moment with its zone, such as '2026-11-15T21:00:00Z'")
    try:
        moment = Timestamp.from_datetime(datetime.fromisoformat(text))
    except ValueError as reason:
        raise NotALiteral(f"a moment that exists ({reason})") from None
    try:
        moment.to_datetime()
    except LocalError:
        raise NotALiteral("a moment of the years 1 to 9999 in UTC") from None
    return moment


def read_bytes(text: str) -> bytes:
    """Bytes from pairs of hexadecimal digits."""
    if len(text) % 2 or not re.fullmatch("[0-9a-fA-F]*", text):
        raise NotALiteral("pairs of hexadecimal digits, such as X'00ff'")
    return bytes.fromhex(text)


def string_text(value: str) -> str:
    """A string in quotes."""
    return "'" + value.replace("'", "''") + "'"


def value_text(value: Value) -> str:
    """How a value is printed. NaN and infinities have names here, which cannot be read back."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(int(value))
        case float():
            return repr(float(value))
        case str():
            return string_text(value)
        case bytes():
            return f"X'{value.hex()}'"
        case Timestamp():
            return f"TIMESTAMP '{_moment_text(value)}'"


def _moment_text(moment: Timestamp) -> str:
    try:
        text = moment.to_datetime().replace(tzinfo=None).isoformat()
    except LocalError:
        return f"1970-01-01T00:00:00Z{moment.us:+}us"  # for people; no literal is so far off
    return (text.rstrip("0") if "." in text else text) + "Z"
