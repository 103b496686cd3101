"""From the text of a selector to its tree: a parser by binding power.

Rules:

- From loose to tight: OR, AND, NOT, comparisons (with BETWEEN, IN, LIKE, IS, REGEXP), + and -,
  * and /, the sign. Comparisons do not chain.
- A name where a condition is expected means `name = TRUE`. A condition is never an operand.
- `NOT` before BETWEEN, IN, LIKE and REGEXP, and in IS NOT NULL, is the negation of the whole.
- Patterns of LIKE, REGEXP and TOPIC, the prefix of STARTS_WITH and the values of IN are literals;
  IS NULL is asked of a name. A plus is only the sign of a number.
- A text gives a tree or `LocalError("bad-selector")`, in time that its length bounds. Length,
  nesting and the values of IN are limited here; `bounds.check` looks at the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from regraft.errors import LocalError
from regraft.limits import NAME_BYTES_MAX, SELECTOR_DEPTH_MAX, SELECTOR_IN_MAX, Limits
from regraft.model import topics
from regraft.model.selector import bounds, literals, patterns, words
from regraft.model.selector.ast import (
    INT_MAX,
    TRUE,
    And,
    Arithmetic,
    Between,
    Comparison,
    Condition,
    Distance,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    NameKind,
    Negate,
    Node,
    Not,
    Operand,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)
from regraft.model.selector.lexer import Kind, Token, piece, refusal, tokens

SELECTOR_BYTES_MAX = Limits().selector_bytes

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN = range(1, 8)
_POWERS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), _COMPARE),
    **dict.fromkeys(("BETWEEN", "IN", "LIKE", "REGEXP", "IS", "NOT"), _COMPARE),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
}
_OPERANDS = (Literal, Name, Arithmetic, Negate, Distance)
_NEGATABLE = ("BETWEEN", "IN", "LIKE", "REGEXP")
# A level of the tree takes two of the text at most: NOT and a parenthesis, for example.
_NESTING_MAX = 2 * SELECTOR_DEPTH_MAX


def parse(text: str, bytes_max: int = SELECTOR_BYTES_MAX) -> Condition:
    """The tree of a selector, as it is written."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _refuse("the selector cannot be written as UTF-8") from None
    if size > bytes_max:
        raise _refuse(f"the selector has {size} bytes; limit selector_bytes is {bytes_max}")
    tree = _Parser(text).whole()
    bounds.check_depth(tree)
    return tree


def _refuse(text: str) -> LocalError:
    return LocalError("bad-selector", text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._index = 0
        self._token = self._tokens[0]
        self._nesting = 0

    # ------------------------------------------------------------- tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._index + 1]  # nobody takes the end

    def _advance(self) -> Token:
        token = self._token
        self._index += 1
        self._token = self._tokens[self._index]
        return token

    def _expect(self, mark: str, expected: str = "") -> None:
        if self._token.mark != mark:
            self._fail(self._token, expected or mark)
        self._advance()

    def _fail(self, token: Token, expected: str, found: str = "") -> NoReturn:
        found = found or piece(self._text, token.start, token.end)
        raise refusal(self._text, token.start, found, expected)

    # -------------------------------------------------------- expressions

    def whole(self) -> Condition:
        tree = self._condition(0)
        if self._token.kind is not Kind.END:
            self._fail(self._token, "an operator or the end")
        return tree

    def _condition(self, binding: int) -> Condition:
        start = self._token
        return self._as_condition(self._expression(binding), start)

    def _operand(self, binding: int) -> Operand:
        start = self._token
        node = self._expression(binding)
        if not isinstance(node, _OPERANDS):
            self._fail(start, "a value", "a condition")
        return node

    def _as_condition(self, node: Node, start: Token) -> Condition:
        if isinstance(node, Name):
            return Comparison("=", node, TRUE)
        if isinstance(node, Literal) and not isinstance(node.value, bool):
            self._fail(start, "a condition", "a value")
        if isinstance(node, Arithmetic | Negate | Distance):
            self._fail(start, "a condition", "a value")
        return node

    def _expression(self, binding: int) -> Node:
        """What stands here, up to an operator that binds no tighter than `binding`."""
        self._nesting += 1
        if self._nesting > _NESTING_MAX:
            raise bounds.too_deep()
        start = self._token
        left = self._first()
        while (power := _POWERS.get(self._token.mark, 0)) > binding:
            left = self._continued(left, start, power)
        self._nesting -= 1
        return left

    def _continued(self, left: Node, start: Token, power: int) -> Node:
        """What an operator makes of what stands before it."""
        mark = self._token.mark
        if mark in ("AND", "OR"):
            return self._chain(mark, self._as_condition(left, start), power)
        if not isinstance(left, _OPERANDS):
            self._fail(self._token, "AND, OR or the end after a condition")
        operand: Operand = left
        self._advance()
        if mark == "IS":
            return self._is_null(operand, start)
        if mark == "NOT":
            mark = self._token.mark
            if mark not in _NEGATABLE:
                self._fail(self._token, "BETWEEN, IN, LIKE or REGEXP after NOT")
            self._advance()
            return Not(self._test(mark, operand))
        if mark in _NEGATABLE:
            return self._test(mark, operand)
        if power == _COMPARE:
            return Comparison(mark, operand, self._operand(power))
        return Arithmetic(mark, operand, self._operand(power))

    def _chain(self, mark: str, first: Condition, power: int) -> Condition:
        terms = [first]
        while self._token.mark == mark:
            self._advance()
            terms.append(self._condition(power))
        return And(tuple(terms)) if mark == "AND" else Or(tuple(terms))

    def _is_null(self, operand: Operand, start: Token) -> Condition:
        negated = self._token.mark == "NOT"
        if negated:
            self._advance()
        self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
        if not isinstance(operand, Name):
            self._fail(start, "a name before IS NULL", "a value")
        return Not(IsNull(operand)) if negated else IsNull(operand)

    def _test(self, mark: str, operand: Operand) -> Condition:
        """BETWEEN, IN, LIKE or REGEXP, after the word itself."""
        if mark == "BETWEEN":
            low = self._operand(_COMPARE)
            self._expect("AND", "AND between the two limits of BETWEEN")
            return Between(operand, low, self._operand(_COMPARE))
        if mark == "IN":
            return self._in(operand)
        if mark == "LIKE":
            return self._like(operand)
        token, pattern = self._string("a regular expression in quotes")
        self._checked(token, lambda: patterns.regex_size(pattern))
        return Regexp(operand, pattern)

    def _in(self, operand: Operand) -> Condition:
        self._expect("(", "( and the values of IN")
        items: list[Literal] = []
        while True:
            if len(items) == SELECTOR_IN_MAX:
                text = f"IN has more than {SELECTOR_IN_MAX} values, limit SELECTOR_IN_MAX"
                raise _refuse(f"at column {self._token.start + 1}: {text}")
            items.append(self._literal())
            if self._token.mark != ",":
                break
            self._advance()
        self._expect(")", ", or ) after a value of IN")
        return In(operand, tuple(items))

    def _literal(self) -> Literal:
        start = self._token
        if start.kind is Kind.WORD and self._token.mark not in ("TRUE", "FALSE", "TIMESTAMP"):
            self._fail(start, "a value: a number, a string, TRUE, FALSE, TIMESTAMP '…' or X'…'")
        if start.kind in (Kind.SYMBOL, Kind.END) and self._token.mark not in ("+", "-"):
            self._fail(start, "a value")
        node = self._first()
        if not isinstance(node, Literal):
            self._fail(start, "a value, not a name or an expression")
        return node

    def _like(self, operand: Operand) -> Condition:
        token, pattern = self._string("a pattern in quotes")
        escape = None
        if self._token.mark == "ESCAPE":
            self._advance()
            token, escape = self._string("the escape character in quotes")
        self._checked(token, lambda: patterns.like_items(pattern, escape))
        return Like(operand, pattern, escape)

    def _string(self, expected: str) -> tuple[Token, str]:
        if self._token.kind is not Kind.STRING:
            self._fail(self._token, expected)
        token = self._advance()
        return token, str(token.value)

    def _checked(self, token: Token, check: Callable[[], object]) -> None:
        """Say where a pattern stands that is refused."""
        try:
            check()
        except LocalError as error:
            raise _refuse(f"at column {token.start + 1}: {error.text}") from None

    # --------------------------------------------------------- beginnings

    def _first(self) -> Node:
        """What an expression may begin with."""
        token = self._token
        match token.kind:
            case Kind.WORD:
                return self._word()
            case Kind.NUMBER:
                return self._number("")
            case Kind.STRING | Kind.BYTES:
                self._advance()
                return Literal(token.value)
            case Kind.HEADER:
                return self._header()
            case Kind.QUOTED:
                return self._name(Name(NameKind.ATTRIBUTE, str(token.value)))
            case Kind.CONTEXT:
                return self._name(Name(NameKind.CONTEXT, str(token.value)))
            case Kind.SYMBOL | Kind.END:
                return self._symbol()

    def _symbol(self) -> Node:
        mark, start = self._token.mark, self._token
        if mark == "(":
            self._advance()
            node = self._expression(0)
            self._expect(")", ") or an operator")
            return node
        if mark not in ("+", "-"):
            self._fail(start, "a value or a condition")
        self._advance()
        if self._token.kind is Kind.NUMBER:
            return self._number(mark)
        if mark == "+":
            self._fail(self._token, "a number after the sign +")
        return Negate(self._operand(_SIGN))

    def _number(self, sign: str) -> Literal:
        token = self._advance()
        value = token.value
        assert isinstance(value, int | float)
        value = -value if sign == "-" else value
        if isinstance(value, int) and value > INT_MAX:
            self._fail(token, f"an integer of 64 bits, {INT_MAX} at most")
        return Literal(value)

    def _header(self) -> Name:
        token = self._token
        header = str(token.value)
        if header not in words.HEADERS:
            known = tuple(f"${one}" for one in words.HEADERS)
            self._fail(token, words.nearest(f"${header}", known))
        return self._name(Name(NameKind.HEADER, header))

    def _name(self, name: Name) -> Name:
        token = self._advance()
        if len(name.name.encode()) > NAME_BYTES_MAX:
            self._fail(token, f"a name of at most {NAME_BYTES_MAX} bytes, limit NAME_BYTES_MAX")
        return name

    def _word(self) -> Node:
        token, mark = self._token, self._token.mark
        if mark == "NOT":
            self._advance()
            return Not(self._condition(_NOT))
        if mark in ("TRUE", "FALSE"):
            self._advance()
            return Literal(mark == "TRUE")
        if mark == "NULL":
            self._fail(token, "a value; NULL is asked for with IS NULL")
        if mark in words.RESERVED:
            self._fail(token, "a value or a condition")
        if mark == "TIMESTAMP" and self._next.kind is Kind.STRING:
            return self._timestamp()
        if self._text[self._next.start : self._next.end] == "(":
            return self._function(mark)
        name = words.bare_name(str(token.value))
        if name is None:
            expected = words.nearest(str(token.value), tuple(words.JMS_SYNONYMS))
            self._fail(token, f"{expected}; put an attribute of this name into quotes")
        return self._name(name)

    def _timestamp(self) -> Literal:
        self._advance()
        token, text = self._string("a moment in quotes")
        try:
            return Literal(literals.read_timestamp(text))
        except literals.NotALiteral as expected:
            self._fail(token, str(expected))

    def _function(self, mark: str) -> Node:
        name = self._advance()
        if mark not in words.FUNCTIONS:
            self._fail(name, f"{words.nearest(mark, words.FUNCTIONS)}, or an operator before (")
        self._advance()
        node: Node
        if mark == "TOPIC":
            node = self._topic()
        elif mark == "STARTS_WITH":
            operand = self._operand(_COMPARE)
            self._expect(",", ", and the prefix")
            node = StartsWith(operand, self._string("the prefix in quotes")[1])
        else:
            node = Distance((self._point(), self._point(), self._point(), self._operand(_COMPARE)))
        self._expect(")", f") at the end of {mark}")
        return node

    def _point(self) -> Operand:
        operand = self._operand(_COMPARE)
        self._expect(",", ", as DISTANCE takes latitude, longitude, latitude, longitude")
        return operand

    def _topic(self) -> TopicMatch:
        token, pattern = self._string("a topic pattern in quotes")
        if not pattern:
            self._fail(token, "a topic pattern; '#' takes every topic")
        self._checked(token, lambda: topics.check_pattern(pattern))
        return TopicMatch(pattern)
