"""From the text of a selector to its tokens.

Rules:

- Every token knows where it stands. Columns count characters of the text, from 1.
- Space, tab, line feed, form feed and carriage return separate; there are no comments.
- A refusal is a `LocalError("bad-selector")`: the column, what was found, what was expected, and
  the text around it.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple, NoReturn

from regraft.errors import LocalError
from regraft.model.message import Value
from regraft.model.selector import literals
from regraft.model.selector.literals import NotALiteral

_BLANK = re.compile(r"[ \t\n\r\f]*")
_WORD = re.compile(r"[A-Za-z0-9_$]*")  # as far as it is ASCII
_NUMBER = re.compile(
    r"(?P<hex>0[xX][0-9a-fA-F]+)[lL]?"
    r"|(?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>[0-9]+)[lL]?"
)
_SYMBOL = re.compile(r"<>|!=|<=|>=|[=<>+\-*/(),]")
_AROUND = 20  # characters shown on either side of a mistake
_FOUND_MAX = 30


class Kind(Enum):
    """What a token is."""

    WORD = "a word"  # a bare name or a keyword
    QUOTED = "a quoted name"
    HEADER = "a header"
    CONTEXT = "a name of the context"
    STRING = "a string"
    BYTES = "bytes"
    NUMBER = "a number"
    SYMBOL = "a symbol"
    END = "the end"


class Token(NamedTuple):
    """One piece of the text, from `start` up to but not including `end`."""

    kind: Kind
    value: Value
    start: int
    end: int
    mark: str  # a symbol, or a word in capitals, as operators are called; else nothing


def refusal(text: str, start: int, found: str, expected: str) -> LocalError:
    """The error for what stands at `start`."""
    before, after = max(0, start - _AROUND), start + _AROUND
    near = ("…" if before else "") + text[before:after] + ("…" if after < len(text) else "")
    sentence = f"at column {start + 1}: found {found}, expected {expected}; near {_shown(near)}"
    return LocalError("bad-selector", sentence)


def piece(text: str, start: int, end: int) -> str:
    """What stands there, for a sentence."""
    if start == len(text):
        return "the end"
    return _shown(text[start:end] if end - start <= _FOUND_MAX else text[start:][:_FOUND_MAX] + "…")


def _shown(text: str) -> str:
    return f"`{text}`" if text.isprintable() else f"`{repr(text)[1:-1]}`"


def tokens(text: str) -> list[Token]:
    """All tokens of a text; the last one is the end."""
    return _Lexer(text).all()


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def all(self) -> list[Token]:
        found: list[Token] = []
        while True:
            self._skip(_BLANK)
            token = self._token()
            found.append(token)
            if token.kind is Kind.END:
                return found

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._text[at : at + 1]

    def _fail(self, start: int, expected: str) -> NoReturn:
        found = piece(self._text, start, max(self._at, start + 1))
        raise refusal(self._text, start, found, expected)

    def _take(self, kind: Kind, value: Value, start: int, mark: str = "") -> Token:
        return Token(kind, value, start, self._at, mark)

    def _token(self) -> Token:
        start, char = self._at, self._peek()
        if char == "":
            return self._take(Kind.END, "", start)
        if char == "'":
            return self._take(Kind.STRING, self._quoted("'"), start)
        if char == '"':
            return self._take(Kind.QUOTED, self._quoted_name(), start)
        if char in "xX" and self._peek(1) == "'":
            return self._bytes()
        if char == "$":
            self._at += 1
            return self._take(Kind.HEADER, self._word("the name of a header"), start)
        if _is_digit(char) or (char == "." and _is_digit(self._peek(1))):
            return self._number()
        if char.isidentifier():
            return self._name()
        if found := _SYMBOL.match(self._text, start):
            self._at = found.end()
            symbol = "<>" if found[0] == "!=" else found[0]
            return self._take(Kind.SYMBOL, symbol, start, symbol)
        self._fail(start, "a name, a value, an operator or a parenthesis")

    def _quoted(self, quote: str) -> str:
        """What stands between quotes, of which two are one."""
        start = self._at
        parts: list[str] = []
        self._at += 1
        while True:
            end = self._text.find(quote, self._at)
            if end < 0:
                self._at = len(self._text)
                self._fail(start, f"a closing {quote} somewhere after it")
            parts.append(self._text[self._at : end])
            self._at = end + 1
            if self._peek() != quote:
                return "".join(parts)
            parts.append(quote)
            self._at += 1

    def _quoted_name(self) -> str:
        start = self._at
        return self._quoted('"') or self._fail(start, "a name between the quotes")

    def _word(self, expected: str) -> str:
        start = self._at
        if not self._peek().isidentifier():
            self._fail(start, expected)
        self._skip(_WORD)
        while _is_word(self._peek()):
            self._at += 1
        return self._text[start : self._at]

    def _name(self) -> Token:
        start = self._at
        word = self._word("a name")
        if self._peek() != ".":
            # A dotless i is no I.
            return self._take(Kind.WORD, word, start, word.upper() if word.isascii() else word)
        self._at += 1
        if word != "ctx":
            self._fail(start, 'a name without a point; others stand in quotes, such as "a.b"')
        if self._peek() == '"':
            return self._take(Kind.CONTEXT, self._quoted_name(), start)
        return self._take(Kind.CONTEXT, self._word("a name after ctx."), start)

    def _bytes(self) -> Token:
        start = self._at
        self._at += 1
        try:
            return self._take(Kind.BYTES, literals.read_bytes(self._quoted("'")), start)
        except NotALiteral as expected:
            self._fail(start, str(expected))

    def _number(self) -> Token:
        start = self._at
        found = _NUMBER.match(self._text, start)
        assert found is not None
        self._at = found.end()
        if self._peek() == "." or _is_word(self._peek()):
            while self._peek() == "." or _is_word(self._peek()):
                self._at += 1
            self._fail(start, "a number")
        try:
            if found["float"]:
                return self._take(Kind.NUMBER, literals.read_float(found["float"]), start)
            return self._take(Kind.NUMBER, literals.read_int(found["hex"] or found["int"]), start)
        except NotALiteral as expected:
            self._fail(start, str(expected))


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9" and char != ""


def _is_word(char: str) -> bool:
    """Whether a character may stand inside a bare name, after its first."""
    return char != "" and (char == "$" or ("a" + char).isidentifier())
