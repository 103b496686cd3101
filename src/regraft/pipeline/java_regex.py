r"""LIKE, TOPIC and regular expressions as patterns of java.util.regex, which is what Spark has.

Rules:

- A pattern that is given here finds exactly what the reference finds, in every string.
- It does so in time linear in the length of the string and without deep recursion, although Java's
  engine tries one way after the other. Where that cannot be promised there is no pattern, but None.
- Nothing depends on what the two engines call a word, a space, a line or a letter: what is written
  is `\A`, `\z`, sets of code points, their repetitions, alternatives and look-around.

A search only asks whether there is a match. So what a pattern begins or ends with need not be
repeated more often than it must: `[0-9]+-[0-9]+` is found wherever `[0-9]-[0-9]` is. With that
done, a repetition without end is allowed once, and only behind `^`: elsewhere Java could try it
from every place to every other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import inf, prod
from string import ascii_letters, punctuation
from typing import TypeAlias

from regraft.limits import PATTERNS_CACHED
from regraft.model.selector.patterns import Wild

PIECES_MAX = 200  # of one pattern: each costs Java a call within the call for the one before
WAYS_MAX = 500  # that Java may try at one place of the string


def _quoted(text: str) -> str:
    # Before anything but a letter or a digit, a backslash is allowed and makes it literal.
    return re.sub(r"[\x00-\x7f]", lambda one: one[0] if one[0].isalnum() else f"\\{one[0]}", text)


# ----------------------------------------------------------------- TOPIC and LIKE


def topic_regex(pattern: str) -> str:
    """What finds the topics that a pattern takes, exactly."""
    levels = pattern.split("/")
    open_end = levels[-1] == "#"
    if open_end:
        levels.pop()
    start = r"\A" if pattern.startswith("$") else r"\A(?!\$)"
    if not levels:
        return start
    parts = ("[^/]*+" if level == "+" else _quoted(level) for level in levels)
    return start + "/".join(parts) + (r"(?:/|\z)" if open_end else r"\z")


def like_regex(items: Iterable[str | Wild]) -> str | None:
    """What finds the strings that a LIKE pattern fits."""
    segments: list[list[str | Wild]] = [[]]
    for item in items:
        if item is Wild.MANY:
            segments.append([])
        else:
            segments[-1].append(item)
    pieces = len(segments)
    texts = []
    for segment in segments:
        text = ""
        for wild, run in groupby(segment, lambda item: item is Wild.ONE):
            members = list(run)
            text += f".{{{len(members)}}}" if wild else _quoted("".join(map(str, members)))
            pieces += 1
        texts.append(text)
    if pieces > PIECES_MAX:
        return None
    first, *others = texts
    if not others:
        return rf"(?s)\A{first}\z"
    # A segment has one length, so the first place where it fits is as good as any later one. The
    # atomic groups say so to Java, which would try them all.
    middle = "".join(f"(?>.*?{text})" for text in others[:-1])
    last = rf".*{others[-1]}\z" if others[-1] else ""
    return rf"(?s)\A{first}{middle}{last}"


# ------------------------------------------------------------- regular expressions


@dataclass(frozen=True, slots=True)
class _Atom:
    """A set of code points, and how often one of it stands there."""

    text: str
    low: int = 1
    high: float = 1  # may be infinite


@dataclass(frozen=True, slots=True)
class _Place:
    """Where nothing stands, but something must be the case."""

    text: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """One of several sequences."""

    branches: tuple[_Sequence, ...]


_Part: TypeAlias = _Atom | _Place | _Choice
_Sequence: TypeAlias = tuple[_Part, ...]
_Ranges: TypeAlias = list[tuple[int, int]]

_START = _Place(r"\A")
_END = _Place(r"\z")
_WORD = "[0-9A-Za-z_]"
_WORD_EDGE = _Place(f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))")

_SETS: dict[str, _Ranges] = {
    "d": [(0x30, 0x39)],
    "s": [(0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
_ESCAPED = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED |= {mark: mark for mark in punctuation if mark != "_"}
# Letters outside ASCII that RE2 takes for an ASCII letter where case is ignored.
_FOLDED = {"k": 0x212A, "s": 0x017F}
_REPEAT = re.compile(r"([*+?]|\{([0-9]{1,4})(,([0-9]{1,4})?)?\})\??")


class _Untranslatable(Exception):
    """The pattern uses what is not known to mean the same to both engines."""


@lru_cache(PATTERNS_CACHED)
def search_regex(pattern: str) -> str | None:
    """What finds the strings in which RE2 finds a pattern, which is valid."""
    reader = _Reader(pattern)
    try:
        choice = reader.whole()
    except _Untranslatable:
        return None
    branches = [_shortened(_shortened(branch, 0), -1) for branch in choice.branches]
    if sum(map(_pieces, branches)) > PIECES_MAX or sum(map(_ways, branches)) > WAYS_MAX:
        return None
    if any(_endless(branch) > _is_anchored(branch) for branch in branches):
        return None
    return "|".join(map(_text, branches))


class _Reader:
    """Reads what both engines have in common, and gives up at anything else."""

    def __init__(self, pattern: str) -> None:
        flags = re.match(r"\(\?([is]+)\)", pattern)
        self._ignore_case = flags is not None and "i" in flags[1]
        self._dot_is_all = flags is not None and "s" in flags[1]
        self._pattern = pattern
        self._at = flags.end() if flags else 0

    def whole(self) -> _Choice:
        choice = self._choice(0)
        if self._at < len(self._pattern):
            raise _Untranslatable
        return choice

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _choice(self, depth: int) -> _Choice:
        if depth > PIECES_MAX:
            raise _Untranslatable
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return _Choice(tuple(branches))

    def _sequence(self, depth: int) -> _Sequence:
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._part(depth)))
        return tuple(parts)

    def _part(self, depth: int) -> _Part:
        char = self._next()
        match char:
            case "(":
                if not self._take("?:") and self._peek() == "?":
                    raise _Untranslatable
                inner = self._choice(depth + 1)
                if not self._take(")"):
                    raise _Untranslatable
                return inner
            case "^":
                return _START
            case "$":
                return _END
            case ".":
                return _Atom(r"[\x{0}-\x{10FFFF}]" if self._dot_is_all else r"[^\n]")
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{" | "}" | "]":
                raise _Untranslatable
        return self._literal(char)

    def _repeated(self, part: _Part) -> _Part:
        found = _REPEAT.match(self._pattern, self._at)
        if found is None:
            return part
        self._at = found.end()
        if self._peek() in tuple("*+?{"):
            raise _Untranslatable
        mark, count, comma, limit = found.groups()
        if isinstance(part, _Choice) and mark == "?":
            return _Choice((*part.branches, ()))
        if not isinstance(part, _Atom):
            raise _Untranslatable
        if count is None:
            low, high = {"*": (0, inf), "+": (1, inf), "?": (0, 1)}[mark]
            return replace(part, low=low, high=high)
        low = int(count)
        return replace(part, low=low, high=int(limit) if limit else inf if comma else low)

    def _escape(self) -> _Part:
        char = self._next()
        match char:
            case "A":
                return _START
            case "z":
                return _END
            case "b":
                return _WORD_EDGE
            case "d" | "s" | "w":
                return self._set(_SETS[char])
            case "D" | "S" | "W":
                return self._set(_SETS[char.lower()], negated=True)
        if char not in _ESCAPED:
            raise _Untranslatable
        return self._literal(_ESCAPED[char])

    def _literal(self, char: str) -> _Atom:
        if self._ignore_case:
            return self._set([(ord(char), ord(char))])
        return _Atom(_quoted(char))

    def _class(self) -> _Atom:
        negated = self._take("^")
        ranges: _Ranges = []
        first = True
        while first or self._peek() != "]":
            if self._take("\\"):
                char = self._next()
                if char in _SETS:
                    ranges += _SETS[char]
                    first = False
                    continue
                self._at -= 2
            low = self._member(first)
            high = low
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._member(False)
            ranges.append((low, high))
            first = False
        self._at += 1
        return self._set(ranges, negated)

    def _member(self, first: bool) -> int:
        """A code point of a class."""
        char = self._next()
        if char == "\\":
            char = self._next()
            if char not in _ESCAPED:
                raise _Untranslatable
            return ord(_ESCAPED[char])
        # A minus in the middle is an error or a matter of taste; a bracket may begin a name.
        if char in ("", "[", "]") or (char == "-" and not (first or self._peek() == "]")):
            raise _Untranslatable
        return ord(char)

    def _set(self, ranges: _Ranges, negated: bool = False) -> _Atom:
        if self._ignore_case:
            ranges = ranges + _other_cases(ranges)
        inside = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in ranges)
        return _Atom(f"[{'^' if negated else ''}{inside}]")


def _other_cases(ranges: _Ranges) -> _Ranges:
    """What RE2 takes for the same where case is ignored; known for ASCII only."""
    if any(high > 0x7F for _, high in ranges):
        raise _Untranslatable
    letters = [c for c in ascii_letters if any(low <= ord(c) <= high for low, high in ranges)]
    others = [ord(letter.swapcase()) for letter in letters]
    others += [_FOLDED[letter.lower()] for letter in letters if letter.lower() in _FOLDED]
    return [(other, other) for other in others]


def _shortened(sequence: _Sequence, end: int) -> _Sequence:
    """Without what may stand at one end, 0 or -1, and need not."""
    parts = list(sequence)
    while parts:
        part = parts[end]
        if isinstance(part, _Atom) and part.low == 0:
            parts.pop(end)
            continue
        if isinstance(part, _Atom):
            parts[end] = replace(part, high=part.low)
        elif isinstance(part, _Choice):
            parts[end] = _Choice(tuple(_shortened(branch, end) for branch in part.branches))
        break
    return tuple(parts)


def _pieces(sequence: _Sequence) -> int:
    inner = (part.branches for part in sequence if isinstance(part, _Choice))
    return 1 + len(sequence) + sum(_pieces(branch) for branches in inner for branch in branches)


def _ways(sequence: _Sequence) -> float:
    """How many ways there are to go through a sequence, but for those without end."""
    ways = []
    for part in sequence:
        if isinstance(part, _Choice):
            ways.append(sum(map(_ways, part.branches)))
        elif isinstance(part, _Atom) and part.high != inf:
            ways.append(part.high - part.low + 1)
    return prod(ways)


def _endless(sequence: _Sequence) -> int:
    """How many repetitions without end there are."""
    count = 0
    for part in sequence:
        if isinstance(part, _Choice):
            count += sum(map(_endless, part.branches))
        else:
            count += isinstance(part, _Atom) and part.high == inf
    return count


def _is_anchored(sequence: _Sequence) -> bool:
    first = sequence[0] if sequence else None
    if isinstance(first, _Choice):
        return all(map(_is_anchored, first.branches))
    return first is _START


def _text(sequence: _Sequence) -> str:
    parts = []
    for part in sequence:
        match part:
            case _Choice(branches):
                parts.append(f"(?:{'|'.join(map(_text, branches))})")
            case _Place(text):
                parts.append(text)
            case _Atom(text, low, high):
                times = "" if low == high == 1 else f"{{{low},{'' if high == inf else high}}}"
                parts.append(text + times)
    return "".join(parts)
