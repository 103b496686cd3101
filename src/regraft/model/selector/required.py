"""Texts that a string must contain, or begin with, to fit a pattern: an index reaches it by them.

Rules:

- What is said here is certain: a string without the text does not fit. Where that cannot be shown,
  or the syntax is not understood, the answer is the empty text, which every string contains.
- A regular expression is one that RE2 accepts. Its alternatives have in common what all begin or
  end with; what may be absent, classes, and letters where case does not count have nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from regraft.model.selector.patterns import Wild, like_items

_DEPTH_MAX = 50  # of groups; deeper ones are not looked at
_COPIES_MAX = 16  # of what is repeated; more say little more,
_COPIED_MAX = 256  # and of a longer text one does
_REPEAT = re.compile(r"\{(0|[1-9]\d{0,3})(,(0|[1-9]\d{0,3})?)?\}", re.ASCII)
_MAYBE_REPEAT = re.compile(r"\{\d+(,\d*)?\}", re.ASCII)
_FLAGS = re.compile(r"\?([imsU]*)(-[imsU]+)?([:)])")
_NAMED = re.compile(r"\?P?<\w+>")
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|([0-7]{1,3})")
_PROPERTY = re.compile(r"[pP](\{[^{}]*\}|[A-Za-z])")
_POSIX = re.compile(r"\[:[^\]]*?:\]")
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SOME_CHARACTER = frozenset("dDsSwWC")
_NO_CHARACTER = frozenset("bBAz")


class _NotUnderstoodError(Exception):
    """Syntax that nothing can be said about."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What every text that fits a part begins with, ends with, and contains."""

    prefix: str = ""
    suffix: str = ""
    inner: str = ""
    exact: bool = False  # it is the prefix, and nothing else
    at_start: bool = False  # it fits only at the start of the string


_ANYTHING = _Part()
_NOTHING = _Part(exact=True)
_START = _Part(exact=True, at_start=True)


def required_text(pattern: str) -> str:
    """The longest text known to be in every string that a regular expression is found in."""
    return _longest_of(_read(pattern))


def anchored_prefix(pattern: str) -> str:
    """A text that every string that a regular expression is found in begins with."""
    part = _read(pattern)
    return part.prefix if part.at_start else ""


def like_required(pattern: str, escape: str | None) -> str:
    """The longest text that every string contains that fits a LIKE pattern."""
    return _longest(*_like_pieces(pattern, escape))


def like_prefix(pattern: str, escape: str | None) -> str:
    """The text that every string begins with that fits a LIKE pattern."""
    return _like_pieces(pattern, escape)[0]


def _like_pieces(pattern: str, escape: str | None) -> list[str]:
    """What stands before, between and after the wildcards."""
    pieces: list[list[str]] = [[]]
    for item in like_items(pattern, escape):
        if isinstance(item, Wild):
            pieces.append([])
        else:
            pieces[-1].append(item)
    return ["".join(piece) for piece in pieces]


def _longest(*texts: str) -> str:
    return max(texts, key=len)


# ------------------------------------------------------------------ parts


def _longest_of(part: _Part) -> str:
    return _longest(part.prefix, part.suffix, part.inner)


def _literal(text: str) -> _Part:
    return _Part(text, text, text, exact=True)


def _sequence(parts: list[_Part]) -> _Part:
    """One part after another."""
    whole = _NOTHING
    for part in _joined(parts):
        whole = _Part(
            prefix=whole.prefix + part.prefix if whole.exact else whole.prefix,
            suffix=whole.suffix + part.suffix if part.exact else part.suffix,
            inner=_longest(whole.inner, part.inner, whole.suffix + part.prefix),
            exact=whole.exact and part.exact,
            at_start=whole.at_start or (whole == _NOTHING and part.at_start),
        )
    return whole


def _joined(parts: list[_Part]) -> Iterator[_Part]:
    """The same with neighbouring characters as one part: there may be thousands."""
    for plain, run in groupby(parts, lambda part: part.exact and not part.at_start):
        if plain:
            yield _literal("".join(part.prefix for part in run))
        else:
            yield from run


def _either(parts: list[_Part]) -> _Part:
    """One part or another."""
    if len(parts) == 1:
        return parts[0]
    prefix = _common([part.prefix for part in parts])
    suffix = _common([part.suffix[::-1] for part in parts])[::-1]
    at_start = all(part.at_start for part in parts)
    return _Part(prefix, suffix, _longest(prefix, suffix), at_start=at_start)


def _common(texts: list[str]) -> str:
    """What all of them begin with."""
    low, high = min(texts), max(texts)
    length = 0
    while length < len(low) and low[length] == high[length]:
        length += 1
    return low[:length]


def _repeated(part: _Part, least: int, most: int | None) -> _Part:
    """A part, so many times."""
    if least == 0:
        return _ANYTHING
    count = min(least, _COPIES_MAX) if len(_longest_of(part)) <= _COPIED_MAX else 1
    copies = _sequence([part] * count)
    exact = copies.exact and count == least == most
    return _Part(copies.prefix, copies.suffix, copies.inner, exact, copies.at_start)


# ---------------------------------------------------------------- reading


def _read(pattern: str) -> _Part:
    try:
        return _Reader(pattern).whole()
    except _NotUnderstoodError:
        return _ANYTHING


def _changed(flags: frozenset[str], found: re.Match[str]) -> frozenset[str]:
    return (flags | set(found[1])) - set(found[2] or "")


class _Reader:
    """Reads a regular expression from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0

    def whole(self) -> _Part:
        part = self.alternatives(frozenset())
        if self.at < len(self.pattern):
            raise _NotUnderstoodError
        return part

    def alternatives(self, flags: frozenset[str]) -> _Part:
        """All up to the end of a group. A change of flags holds to that end, across `|`."""
        choices: list[_Part] = []
        parts: list[_Part] = []
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            if self.take("|"):
                choices.append(_sequence(parts))
                parts = []
            elif self.take("("):
                changed = self.flags(flags)
                if changed is None:
                    parts.append(self.group(flags))
                else:
                    flags = changed
            elif not self.repetition(parts):
                parts.extend(self.one(flags))
        choices.append(_sequence(parts))
        return _either(choices)

    def take(self, text: str) -> bool:
        """Go past a text, if it is next."""
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Go past what fits, if something does."""
        found = expression.match(self.pattern, self.at)
        self.at = found.end() if found else self.at
        return found

    def next(self) -> str:
        """Go past one character."""
        if self.at >= len(self.pattern):
            raise _NotUnderstoodError
        self.at += 1
        return self.pattern[self.at - 1]

    def flags(self, flags: frozenset[str]) -> frozenset[str] | None:
        """The flags after `(?i)`; None, and nothing is read, if it is not such a thing."""
        found = _FLAGS.match(self.pattern, self.at)
        if found is None or found[3] != ")":
            return None
        self.at = found.end()
        return _changed(flags, found)

    def group(self, flags: frozenset[str]) -> _Part:
        """What is in parentheses, the first of which was read."""
        if self.depth == _DEPTH_MAX:
            raise _NotUnderstoodError
        if found := self.match(_FLAGS):
            flags = _changed(flags, found)
        elif not self.match(_NAMED) and self.take("?"):
            raise _NotUnderstoodError
        self.depth += 1
        part = self.alternatives(flags)
        self.depth -= 1
        if not self.take(")"):
            raise _NotUnderstoodError
        return part

    def repetition(self, parts: list[_Part]) -> bool:
        """Repeat the last part, if that comes next."""
        bounds: tuple[int, int | None]
        if self.take("*"):
            bounds = 0, None
        elif self.take("+"):
            bounds = 1, None
        elif self.take("?"):
            bounds = 0, 1
        elif found := self.match(_REPEAT):
            least = int(found[1])
            bounds = least, int(found[3]) if found[3] else None if found[2] else least
        else:
            return False
        self.take("?")  # lazy: the same texts fit
        if not parts or self.pattern.startswith(("*", "+", "?"), self.at):
            raise _NotUnderstoodError
        parts.append(_repeated(parts.pop(), *bounds))
        return True

    def one(self, flags: frozenset[str]) -> list[_Part]:
        """One character or assertion; what is quoted may be any number."""
        char = self.next()
        if char == "\\":
            return self.escaped(flags)
        if char == "[":
            return [self.bracketed(flags)]
        if char == ".":
            return [_ANYTHING]
        if char == "^":
            return [_NOTHING if "m" in flags else _START]
        if char == "$":
            return [_NOTHING]
        if char == "{" and _MAYBE_REPEAT.match(self.pattern, self.at - 1):
            raise _NotUnderstoodError  # too large a number, or one with zeros in front
        return [self.character(char, flags)]

    def character(self, char: str, flags: frozenset[str]) -> _Part:
        """A character that means itself; without case, only if it surely has none."""
        if "\ud800" <= char <= "\udfff":
            raise _NotUnderstoodError
        if "i" in flags and (char.isalpha() or not char.isascii()):
            return _ANYTHING
        return _literal(char)

    def escaped(self, flags: frozenset[str]) -> list[_Part]:
        """What stands behind a backslash."""
        if self.take("Q"):
            text, _, _ = self.pattern[self.at :].partition("\\E")
            self.at += len(text)
            self.take("\\E")
            return [self.character(char, flags) for char in text]
        if self.match(_PROPERTY):
            return [_ANYTHING]
        if found := self.match(_CODE):
            code = int(found[3], 8) if found[3] else int(found[1] or found[2], 16)
            if code > 0x10FFFF:
                raise _NotUnderstoodError
            return [self.character(chr(code), flags)]
        char = self.next()
        if char in _SOME_CHARACTER:
            return [_ANYTHING]
        if char in _NO_CHARACTER:
            return [_START if char == "A" else _NOTHING]
        return [self.character(self.meant(char), flags)]

    def meant(self, char: str) -> str:
        """The character that an escaped one means."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum() or not char.isascii():
            raise _NotUnderstoodError
        return char

    def bracketed(self, flags: frozenset[str]) -> _Part:
        """A class of characters. One that has a single character is that character."""
        start = self.at
        self.take("^")
        self.take("]")
        while not self.take("]"):
            if not self.match(_POSIX) and self.next() == "\\":
                self.next()
        inside = self.pattern[start : self.at - 1]
        if len(inside) == 1 and inside not in "^\\":
            return self.character(inside, flags)
        if len(inside) == 2 and inside[0] == "\\" and not inside[1].isalnum():
            return self.character(self.meant(inside[1]), flags)
        return _ANYTHING
