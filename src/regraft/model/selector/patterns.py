"""LIKE patterns and regular expressions, compiled.

Rules:

- LIKE: `%` is any number of code points, `_` exactly one, line ends among them; the whole string
  must fit. Without ESCAPE nothing is special but these two. The escape is one code point and
  stands only before `%`, `_` or itself.
- A regular expression is of RE2's syntax, on code points, and is searched for anywhere.
- Both take time linear in the length of the string, whatever the pattern. As the pattern counts,
  too, there is a longest string for each: `like_text_max`, `regex_text_max`.
- What is compiled is kept in caches of fixed size. Who holds a `Regex` needs none.
- What cannot be compiled is a `LocalError("bad-selector")` that says why.

How long a search may take: the engine builds a machine while it reads, and where that gets too
large for its memory it follows all instructions at once, 10 to 15 ns for each and for each byte.
REGEX_STEPS_MAX bounds their product. The slowest found among 12000 random expressions and 45
families known to be bad, each as large as it may be, on 13 strings of the largest size (of one
letter, of random ones, of long code points), the best of three times, with google-re2 1.1.20251105
on one core of an AMD EPYC:

    instructions  string   time
             192  16 KiB  49 ms  [ab]*a[ab]{185}!
             384   8 KiB  52 ms  (?P<n>[ab]{374}a)(?P<m>[ab]*)$
             768   4 KiB  47 ms  [ab]{762}a[ab]*$
            1536   2 KiB  39 ms  (a?){510}a{510}z
            2000   1 KiB  30 ms  (?P<n>[ab]?){498}a[ab]*$

Less memory than 256 KiB makes ordinary expressions slow, more does not make bad ones faster. LIKE
takes 2.5 ms at its worst, for a pattern of 8 KiB and a string of 16 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]

from regraft.errors import LocalError
from regraft.limits import (
    PATTERN_TEXT_MAX,
    PATTERNS_CACHED,
    REGEX_MEMORY_BYTES,
    REGEX_PROGRAM_MAX,
    REGEX_STEPS_MAX,
)

_REASON_MAX = 100  # characters of what the engine says, which may repeat the whole pattern


class Wild(Enum):
    """A wildcard of LIKE."""

    ONE = "_"
    MANY = "%"


def like_items(pattern: str, escape: str | None) -> tuple[str | Wild, ...]:
    """The code points and wildcards of a LIKE pattern."""
    if escape is not None and len(escape) != 1:
        raise _refuse(f"the ESCAPE of LIKE must be one character, not {len(escape)}")
    items: list[str | Wild] = []
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            literal = next(chars, "")
            if literal not in ("%", "_", escape):
                what = f"before {literal!r}" if literal else "at the end"
                raise _refuse(f"the escape {escape!r} stands {what}, not before %, _ or itself")
            items.append(literal)
        else:
            items.append(Wild(char) if char in "%_" else char)
    return tuple(items)


def like_text(items: tuple[str | Wild, ...]) -> tuple[str, str | None]:
    """The pattern of such items, and its escape if it needs one."""
    escape = "\\" if {"%", "_"} & set(items) else None
    special = ("%", "_", escape)
    parts = []
    for item in items:
        if isinstance(item, Wild):
            parts.append(item.value)
        else:
            parts.append(f"\\{item}" if escape and item in special else item)
    return "".join(parts), escape


@dataclass(frozen=True, slots=True)
class _LikeProgram:
    """A machine whose states are bits: state i says "the first i items fit so far"."""

    chars: dict[str, int]  # for a code point, the states that it leads on from
    any_char: int  # the states that any code point leads on from
    stay: int  # the states before which there is a `%`
    goal: int


@lru_cache(PATTERNS_CACHED)
def _like_program(pattern: str, escape: str | None) -> _LikeProgram:
    chars: dict[str, int] = {}
    any_char = stay = 0
    state = 1
    for item in like_items(pattern, escape):
        if item is Wild.MANY:
            stay |= state
            continue
        if item is Wild.ONE:
            any_char |= state
        else:
            chars[item] = chars.get(item, 0) | state
        state <<= 1
    return _LikeProgram(chars, any_char, stay, state)


def like(pattern: str, escape: str | None, text: str) -> bool:
    """Whether the whole text fits a LIKE pattern."""
    program = _like_program(pattern, escape)
    states = 1
    for char in text:
        leads_on = states & (program.chars.get(char, 0) | program.any_char)
        states = leads_on << 1 | states & program.stay
        if not states:
            return False
    return bool(states & program.goal)


@lru_cache(PATTERNS_CACHED)
def like_text_max(pattern: str, escape: str | None) -> int | None:
    """The longest string, in bytes of UTF-8, that a LIKE pattern is tried on; None if any is.

    Any is where nothing is searched for: the pattern is a text, perhaps with `%` behind it.
    """
    items = list(like_items(pattern, escape))
    while items and items[-1] is Wild.MANY:
        items.pop()
    return PATTERN_TEXT_MAX if any(isinstance(item, Wild) for item in items) else None


# -------------------------------------------------------- regular expressions


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression, compiled. Who evaluates it often holds one of its own."""

    size: int  # instructions
    text_max: int  # bytes of UTF-8 that it is searched for in, at most
    search: Callable[[bytes], bool]  # whether it is found in a string, given as UTF-8


def compile_regex(pattern: str) -> Regex:
    """A regular expression within the limits; any other is refused."""
    try:
        raw = pattern.encode()
    except UnicodeEncodeError:
        raise _refuse("the regular expression cannot be written as UTF-8") from None
    size = int(_compiled(raw).programsize)
    if size > REGEX_PROGRAM_MAX:
        raise _too_large(f"{size} instructions")
    text_max = PATTERN_TEXT_MAX
    while text_max * size > REGEX_STEPS_MAX:
        text_max //= 2  # by powers of two, so that not every detail of the engine changes it
    return Regex(size, text_max, _searcher(raw))


def _compiled(raw: bytes) -> Any:
    options = re2.Options()
    options.log_errors = False  # the engine would write to stderr
    options.never_capture = True
    options.max_mem = REGEX_MEMORY_BYTES
    try:
        return re2.compile(raw, options)
    except re2.error as error:
        raise _regex_refusal(error) from None


def _searcher(raw: bytes) -> Callable[[bytes], bool]:
    """What looks for an expression that can be compiled.

    It is looked for at the start of the string, with anything before it: asked to find it anywhere,
    the engine also finds out where it begins, which may take more than twice the time.
    """
    try:
        compiled = _compiled(rb"\C*?(?:" + raw + b")")
    except LocalError:  # a quotation has no end, and takes the parenthesis in
        compiled = _compiled(rb"\C*?(?:" + raw + rb"\E)")
    try:
        # One level below the engine's public face, which builds an object for each match.
        match, start = compiled._regexp.Match, re2._re2.RE2.Anchor.ANCHOR_START
    except AttributeError:
        return lambda text: compiled.match(text) is not None
    return lambda text: bool(match(start, text, 0, len(text))[0][0] == 0)


_regex = lru_cache(PATTERNS_CACHED)(compile_regex)


def _regex_refusal(error: Exception) -> LocalError:
    reason = error.args[0] if error.args else ""
    if isinstance(reason, bytes):
        reason = reason.decode(errors="replace")
    reason = reason[:_REASON_MAX] if reason.isprintable() else repr(reason[:_REASON_MAX])
    if "too large" in reason:
        return _too_large(f"more than {REGEX_MEMORY_BYTES} bytes (REGEX_MEMORY_BYTES)")
    text = (
        f"the regular expression is not of RE2's syntax, which has neither look-around nor "
        f"back-references: {reason}"
    )
    return _refuse(text)


def _too_large(size: str) -> LocalError:
    text = f"the regular expression compiles to {size}; limit REGEX_PROGRAM_MAX is"
    return _refuse(f"{text} {REGEX_PROGRAM_MAX}")


def regex_size(pattern: str) -> int:
    """The instructions of a compiled regular expression; one that cannot be used is refused."""
    return _regex(pattern).size


def regex_text_max(pattern: str) -> int:
    """The longest string, in bytes of UTF-8, that a regular expression is searched for in."""
    return _regex(pattern).text_max


def regex_found(pattern: str, text: str) -> bool:
    """Whether a regular expression fits anywhere in a text."""
    # A message that was built here may hold what is not UTF-8; it must not break the evaluation.
    return _regex(pattern).search(text.encode(errors="surrogatepass"))


def is_longer(text: str, bytes_max: int | None) -> bool:
    """Whether a text has more bytes of UTF-8 than that."""
    if bytes_max is None or 4 * len(text) <= bytes_max:
        return False
    return len(text) > bytes_max or len(text.encode(errors="surrogatepass")) > bytes_max


def _refuse(text: str) -> LocalError:
    return LocalError("bad-selector", text)
