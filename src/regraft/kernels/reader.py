"""Ordinary selectors, read in one go: simple conditions that are joined by AND.

Most selectors are such chains, and nodes read very many of them. `read_conjunction` gives what
`Selector.parse` would come to, without building a tree; it gives None for whatever else, and for
all that is refused, so that the parser is the only one to explain a mistake. A test holds the two
together. What it reads:

    name = 5                  with each of = <> != < <= > >=, or the literal on the left
    name                      that is, name = TRUE
    name BETWEEN 1 AND 2
    name IN ('a', 'b')
    name IS NULL              or IS NOT NULL
    name LIKE 'a%'            without wildcards elsewhere: it means STARTS_WITH, or =
    STARTS_WITH(name, 'a')
    TOPIC('a/b')              without wildcards: it means =

with parentheses around conditions and chains of them. A name is an attribute, one of the context,
or $topic, $priority or $size; a literal is a number, a string, TRUE or FALSE. What is rare is left
to the parser: bare names beyond ASCII, JMS names, hexadecimal and very long numbers.

The text is read as UTF-8, whose bytes are in the order of the code points.
"""

from __future__ import annotations

from typing import Any

from regraft.limits import (
    NAME_BYTES_MAX,
    SELECTOR_IN_MAX,
    TOPIC_BYTES_MAX,
    TOPIC_LEVELS_MAX,
    Limits,
)
from regraft.model.selector.ast import INT_MAX, INT_MIN
from regraft.model.selector.words import RESERVED, is_jms_header

try:
    import cython
except ModuleNotFoundError:  # Cython is needed to compile, not to run
    from regraft.kernels import _shadow as cython

if not cython.compiled:
    from regraft.kernels.frame import cut

    ATTRIBUTE = 10
    CONTEXT = 19
    TOPIC = 1
    PRIORITY = 2
    SIZE = 3

    EQUAL = 0
    UNEQUAL = 1
    BELOW = 2
    UP_TO = 3
    ABOVE = 4
    FROM = 5
    IN = 6
    IS_NULL = 7
    IS_NOT_NULL = 8
    STARTS_WITH = 9

    EXCLAMATION = 0x21
    DOUBLE_QUOTE = 0x22
    DOLLAR = 0x24
    PERCENT = 0x25
    QUOTE = 0x27
    OPEN = 0x28
    CLOSE = 0x29
    PLUS = 0x2B
    COMMA = 0x2C
    MINUS = 0x2D
    POINT = 0x2E
    ZERO = 0x30
    LESS = 0x3C
    EQUALS = 0x3D
    GREATER = 0x3E
    SMALL_E = 0x65
    SMALL_L = 0x6C

    NESTING_MAX = 16  # beyond it, let the parser say what is too deep
    TERMS_MAX = 256  # so many are within the limits of parts and of cost, whatever they are
    DIGITS_MAX = 30  # of a number; with two digits of an exponent it is never 0 or infinite
    INT_DIGITS = 18  # whatever they are, they fit into 64 bits

    def pointer(data: bytes) -> bytes:
        """What a text is read through: a zero byte stands behind it."""
        return data + b"\0"

    def string(p: bytes, start: int, end: int) -> str:
        """p[start:end] as text."""
        return p[start:end].decode()

    def glued(a: bytes, b: bytes, c: bytes) -> bytes:
        """Three texts in a row."""
        return a + b + c

    def is_blank(c: int) -> bool:
        """Whether a character separates."""
        return c in b" \t\n\r\f"

    def is_digit(c: int) -> bool:
        """Whether a character is a digit."""
        return 0x30 <= c <= 0x39

    def is_word(c: int) -> bool:
        """Whether a character stands in words. Beyond ASCII, all of them might."""
        return c >= 0x80 or chr(c).isalnum() or c in b"_$"


SELECTOR_BYTES_MAX = Limits().selector_bytes
KEYWORDS = frozenset(word.encode() for word in RESERVED)
HEADERS = {b"topic": TOPIC, b"priority": PRIORITY, b"size": SIZE}
RELATIONS = (b" = ", b" <> ", b" < ", b" <= ", b" > ", b" >= ")


class Reader:
    """A text, read from left to right.

    Its methods say whether they have found what they look for, and stand behind it then. Those for
    one sign, keyword or operator stay where they are if it is not there; when any other has found
    nothing, the text is not read on.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.p = pointer(data)
        self.at = 0
        self.end = len(data)
        self.found: dict[bytes, tuple[int, bytes, int, Any]] = {}  # by their canonical texts
        # The last name: where it is looked up, what it is, its canonical text.
        self.where = 0
        self.name = b""
        self.name_text = b""
        self.plain = False  # its characters need no quotes
        self.bare = False  # it has none, and is an attribute
        # The last literal.
        self.value: Any = None
        self.value_text = b""
        # What stood between the last quotes, as it was written.
        self.inner = 0
        self.inner_end = 0
        self.doubled = False

    def add(self, relation: int) -> None:
        """A comparison of the last name with the last literal."""
        text = glued(self.name_text, RELATIONS[relation], self.value_text)
        self.found[text] = (self.where, self.name, relation, self.value)

    # ------------------------------------------------------------------- characters

    def peek(self) -> int:
        """Go to what is no blank: its first byte, 0 at the end."""
        while is_blank(self.p[self.at]):
            self.at += 1
        return self.p[self.at]

    def sign(self, c: int) -> bool:
        """One character of punctuation."""
        if self.peek() != c:
            return False
        self.at += 1
        return True

    def keyword(self, word: bytes) -> bool:
        """A word of the language, in capitals or not."""
        self.peek()
        at = self.at
        n = len(word)
        w = pointer(word)
        for k in range(n):
            if self.p[at + k] & 0xDF != w[k]:  # what only letters have for their capital
                return False
        at += n
        if is_word(self.p[at]) or self.p[at] == POINT:
            return False
        self.at = at
        return True

    def word(self) -> bool:
        """A bare name, which is then the last one."""
        at = self.at
        if is_digit(self.p[at]) or self.p[at] == DOLLAR:
            return False
        while is_word(self.p[at]):
            if self.p[at] >= 0x80:
                return False
            at += 1
        if at == self.at:
            return False
        self.name = cut(self.p, self.at, at)
        self.plain = self.is_plain(self.at, at)
        self.at = at
        return True

    def is_plain(self, start: int, end: int) -> bool:
        """Whether this is printed bare, as a name."""
        if is_digit(self.p[start]):
            return False
        for k in range(start, end):
            if not is_word(self.p[k]) or self.p[k] == DOLLAR or self.p[k] >= 0x80:
                return False
        return True

    def quoted(self, quote: int) -> bool:
        """Something between quotes, of which two are one."""
        if self.peek() != quote:
            return False
        at = self.inner = self.at + 1
        self.doubled = False
        while at < self.end:
            if self.p[at] == quote:
                if self.p[at + 1] != quote:
                    self.inner_end = at
                    self.at = at + 1
                    return True
                self.doubled = True
                at += 1
            at += 1
        return False

    # ------------------------------------------------------------- names and literals

    def read_name(self) -> bool:
        """A name."""
        c = self.peek()
        self.bare = False
        if c == DOUBLE_QUOTE:
            return self.read_quoted_name() and self.keep_name(ATTRIBUTE)
        if c == DOLLAR:
            self.at += 1
            if not self.word():
                return False
            self.where = HEADERS.get(self.name, 0)
            self.name_text = b"$" + self.name
            return self.where != 0
        if not self.word():
            return False
        if self.p[self.at] != POINT:
            self.bare = True
            return self.keep_name(ATTRIBUTE)
        if self.name != b"ctx":
            return False
        self.at += 1
        if self.p[self.at] == DOUBLE_QUOTE:
            return self.read_quoted_name() and self.keep_name(CONTEXT)
        return self.word() and self.keep_name(CONTEXT)

    def read_quoted_name(self) -> bool:
        """What stands between the quotes of a name."""
        if not self.quoted(DOUBLE_QUOTE) or self.inner == self.inner_end:
            return False
        self.name = cut(self.p, self.inner, self.inner_end)
        self.plain = self.is_plain(self.inner, self.inner_end)
        if self.doubled:
            self.name = self.name.replace(b'""', b'"')
        return True

    def keep_name(self, where: int) -> bool:
        """The last name is looked up there; it has quotes only where they are needed."""
        self.where = where
        taken = is_reserved(self.name) or (where == ATTRIBUTE and is_jms(self.name))
        if taken and self.bare:
            return False
        self.name_text = self.name
        if taken or not self.plain:
            self.name_text = glued(b'"', self.name.replace(b'"', b'""'), b'"')
        if where == CONTEXT:
            self.name_text = b"ctx." + self.name_text
        return len(self.name) <= NAME_BYTES_MAX

    def read_string(self) -> bool:
        """A string."""
        if not self.quoted(QUOTE):
            return False
        self.keep_string(self.inner_end)
        return True

    def keep_string(self, end: int) -> None:
        """What stood between the last quotes, up to `end`, is the last literal."""
        self.value = string(self.p, self.inner, end)
        self.value_text = cut(self.p, self.inner - 1, end) + b"'"
        if self.doubled:
            self.value = self.value.replace("''", "'")

    def read_literal(self) -> bool:
        """A literal, as it is compared: 1.0 is 1."""
        c = self.peek()
        if c == QUOTE:
            return self.read_string()
        if is_digit(c) or c in (PLUS, MINUS, POINT):
            return self.read_number()
        if self.keyword(b"TRUE"):
            self.value = True
            self.value_text = b"TRUE"
            return True
        self.value = False
        self.value_text = b"FALSE"
        return self.keyword(b"FALSE")

    def read_number(self) -> bool:
        """A number with its sign."""
        negative = self.p[self.at] == MINUS
        if negative or self.p[self.at] == PLUS:
            self.at += 1
            self.peek()
        start = self.at
        at = self.skip_digits(start)
        digits = at - start
        whole = self.p[at] != POINT
        if not whole:
            at = self.skip_digits(at + 1)
            digits = at - start - 1
        if digits == 0 or digits > DIGITS_MAX:
            return False
        if self.p[at] | 0x20 == SMALL_E:
            whole = False
            at += 1
            if self.p[at] in (PLUS, MINUS):
                at += 1
            digits = self.skip_digits(at) - at
            if digits == 0 or digits > 2:
                return False
            at += digits
        end = at
        if whole and self.p[at] | 0x20 == SMALL_L:
            at += 1
        if is_word(self.p[at]) or self.p[at] == POINT:
            return False
        self.at = at
        if whole:
            return self.keep_int(negative, start, end)
        self.keep_float(negative, start, end)
        return True

    def skip_digits(self, at: int) -> int:
        """Where the digits end that begin here."""
        while is_digit(self.p[at]):
            at += 1
        return at

    def keep_int(self, negative: bool, start: int, end: int) -> bool:
        """A whole number of 64 bits is the last literal; leading zeros are refused."""
        if self.p[start] == ZERO and end > start + 1:
            return False
        self.value_text = cut(self.p, start, end)
        self.value = int(self.value_text)
        if negative and self.value:
            self.value = -self.value
            self.value_text = b"-" + self.value_text
        return end - start <= INT_DIGITS or INT_MIN <= self.value <= INT_MAX

    def keep_float(self, negative: bool, start: int, end: int) -> None:
        """A number with a point or an exponent is the last literal."""
        value = float(cut(self.p, start, end))
        if negative:
            value = -value
        self.value = value
        if value.is_integer() and INT_MIN <= value <= INT_MAX:
            self.value = int(value)
        self.value_text = repr(self.value).encode()

    # -------------------------------------------------------------------- conditions

    def whole(self) -> bool:
        """The whole text."""
        depth = 0
        while True:
            while self.sign(OPEN):
                depth += 1
                if depth > NESTING_MAX:
                    return False
            if not self.condition():
                return False
            while self.sign(CLOSE):
                depth -= 1
                if depth < 0:
                    return False
            if self.at == self.end:
                return depth == 0
            if not self.keyword(b"AND"):
                return False

    def condition(self) -> bool:
        """One condition."""
        c = self.peek()
        if c == QUOTE or is_digit(c) or c in (PLUS, MINUS, POINT):
            return self.turned()
        if not self.read_name():
            return False
        if self.bare and self.peek() == OPEN:
            return self.function()
        relation = self.operator()
        if relation >= 0:
            if not self.read_literal():
                return False
            self.add(relation)
            return True
        if self.keyword(b"BETWEEN"):
            return self.between()
        if self.keyword(b"IN"):
            return self.among()
        if self.keyword(b"IS"):
            return self.null()
        if self.keyword(b"LIKE"):
            return self.like()
        self.value = True
        self.value_text = b"TRUE"
        self.add(EQUAL)
        return True

    def operator(self) -> int:
        """A comparison: its number, or -1."""
        c = self.peek()
        if c == EQUALS:
            self.at += 1
            return EQUAL
        if c not in (LESS, GREATER, EXCLAMATION):
            return -1
        second = self.p[self.at + 1]
        if second == EQUALS:
            self.at += 2
            return UNEQUAL if c == EXCLAMATION else UP_TO if c == LESS else FROM
        if c == LESS and second == GREATER:
            self.at += 2
            return UNEQUAL
        if c == EXCLAMATION:
            return -1
        self.at += 1
        return BELOW if c == LESS else ABOVE

    def turned(self) -> bool:
        """A comparison with the literal on the left."""
        if not self.read_literal():
            return False
        relation = self.operator()
        if relation < 0 or not self.read_name():
            return False
        # Below and above change their places: 2 and 4, 3 and 5.
        self.add(relation ^ 6 if relation >= BELOW else relation)
        return True

    def between(self) -> bool:
        """The bounds of BETWEEN, which is two comparisons."""
        if not self.read_literal():
            return False
        self.add(FROM)
        if not self.keyword(b"AND") or not self.read_literal():
            return False
        self.add(UP_TO)
        return True

    def among(self) -> bool:
        """The values of IN: each of them once, in the order of their texts."""
        if not self.sign(OPEN):
            return False
        values = {}
        count = 0
        while True:
            if count == SELECTOR_IN_MAX or not self.read_literal():
                return False
            values[self.value_text] = self.value
            count += 1
            if not self.sign(COMMA):
                break
        if not self.sign(CLOSE):
            return False
        if len(values) == 1:
            self.add(EQUAL)
            return True
        texts = sorted(values)
        text = glued(self.name_text, b" IN (", b", ".join(texts)) + b")"
        items = tuple([values[one] for one in texts])
        self.found[text] = (self.where, self.name, IN, items)
        return True

    def null(self) -> bool:
        """The rest of IS NULL and IS NOT NULL."""
        negated = self.keyword(b"NOT")
        if not self.keyword(b"NULL"):
            return False
        if negated:
            text = self.name_text + b" IS NOT NULL"
            self.found[text] = (self.where, self.name, IS_NOT_NULL, None)
        else:
            text = self.name_text + b" IS NULL"
            self.found[text] = (self.where, self.name, IS_NULL, None)
        return True

    def like(self) -> bool:
        """The pattern of LIKE, if it asks for a whole string or for its beginning."""
        if not self.quoted(QUOTE):
            return False
        end = self.inner_end
        while end > self.inner and self.p[end - 1] == PERCENT:
            end -= 1
        self.keep_string(end)
        if b"%" in self.value_text or b"_" in self.value_text:
            return False
        if end < self.inner_end:
            self.starts_with()
        else:
            self.add(EQUAL)
        return True

    def starts_with(self) -> None:
        """The last name begins with the last literal."""
        text = glued(self.name_text, b", ", self.value_text)
        text = glued(b"STARTS_WITH(", text, b")")
        self.found[text] = (self.where, self.name, STARTS_WITH, self.value.encode())

    def function(self) -> bool:
        """STARTS_WITH or TOPIC, from the parenthesis on."""
        self.at += 1
        name = self.name.upper()
        if name == b"STARTS_WITH":
            if not (self.read_name() and self.sign(COMMA) and self.read_string()):
                return False
            self.starts_with()
            return self.sign(CLOSE)
        if name != b"TOPIC" or not self.read_string():
            return False
        topic = self.value_text
        if (
            len(topic) == 2
            or len(topic) > TOPIC_BYTES_MAX
            or topic.count(b"/") >= TOPIC_LEVELS_MAX
            or b"+" in topic
            or b"#" in topic
            or b"\0" in topic
        ):
            return False
        self.where = TOPIC
        self.name = b"topic"
        self.name_text = b"$topic"
        self.add(EQUAL)
        return self.sign(CLOSE)


def is_reserved(name: bytes) -> bool:
    """Whether a word cannot be a bare name."""
    return len(name) <= 7 and name.upper() in KEYWORDS


def is_jms(name: bytes) -> bool:
    """Whether JMS keeps a word for headers."""
    return name.startswith(b"JMS") and is_jms_header(name.decode())


def read_conjunction(
    text: str, bytes_max: int = SELECTOR_BYTES_MAX
) -> tuple[str, list[tuple[int, bytes, int, Any]]] | None:
    """The canonical text of a selector, and its conditions in the same order; None to parse it.

    A condition is where a name is looked up, the name, the relation and the value. The numbers are
    those above: of IN the value is all values, of IS NULL and IS NOT NULL it is None, and of
    STARTS_WITH it is bytes.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    if len(data) > bytes_max:
        return None
    reader = Reader(data)
    if not reader.whole() or len(reader.found) > TERMS_MAX:
        return None
    texts = sorted(reader.found)
    plain = b" AND ".join(texts)
    if len(plain) > bytes_max:
        return None
    return plain.decode(), [reader.found[one] for one in texts]
