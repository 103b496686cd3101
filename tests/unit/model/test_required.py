"""Checks the texts that a pattern requires: no string without them fits it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any

import pytest
import re2

from regraft.model.selector.patterns import like, regex_found, regex_size
from regraft.model.selector.required import (
    anchored_prefix,
    like_prefix,
    like_required,
    required_text,
)

# An expression, what it requires, what its strings begin with, and strings that it is found in.
ROWS: list[tuple[str, ...]] = [
    # literals and anchors
    ("", "", "", "", "x"),
    ("abc", "abc", "", "abc", "xabcx"),
    ("^abc", "abc", "abc", "abc", "abcd"),
    ("abc$", "abc", "", "abc", "xabc"),
    ("^abc$", "abc", "abc", "abc"),
    (r"\Aabc\z", "abc", "abc", "abc"),
    ("(?m)^abc", "abc", "", "abc", "x\nabc"),
    ("(?m:^)abc", "abc", "", "x\nabc"),
    ("(?m)(?-m)^abc", "abc", "abc", "abc"),
    ("(?m:x)^abc", "xabc", ""),
    (r"(?m)\Aabc", "abc", "abc", "abc"),
    ("(?m)abc$", "abc", "", "abc\nx"),
    ("^^abc", "abc", "abc", "abc"),
    (r"\b^abc", "abc", "abc", "abc"),
    (r"\babc\b", "abc", "", "x abc x"),
    (r"a\Bbc", "abc", "", "abc"),
    ("^", "", "", "", "x"),
    ("$", "", "", "", "x"),
    ("^$", "", "", ""),
    ("a^b", "ab", ""),
    ("a$b", "ab", ""),
    ("x|^abc", "", "", "x", "abc"),
    ("^abc|x", "", "", "yx", "abc"),
    ("^abc|^abd", "ab", "ab", "abc", "abd"),
    ("^(abc|abd)", "ab", "ab", "abc", "abd"),
    ("(^abc|^abd)e", "ab", "ab", "abce", "abde"),
    ("(^abc)", "abc", "abc", "abc"),
    ("((^)abc)", "abc", "abc", "abc"),
    ("(^abc)?d", "d", "", "d", "xd", "abcd"),
    ("(^abc)*d", "d", "", "xd"),
    ("(^abc)+d", "abcd", "abc", "abcd"),
    ("^*abc", "abc", "", "xabc"),
    ("^?abc", "abc", "", "xabc"),
    ("^+abc", "abc", "", "abc"),
    ("^{0}abc", "abc", "", "xabc"),
    ("x?^abc", "abc", "", "abc"),
    ("x*^abc", "abc", "", "abc"),
    ("()^abc", "abc", "abc", "abc"),
    ("(?:)^abc", "abc", "abc", "abc"),
    ("(?i)^abc", "", "", "ABC", "abcx"),
    ("^(?i)a(?-i)bc", "bc", "", "Abc"),
    ("^ab(?i)c", "ab", "ab", "abC"),
    # repetition
    ("a*", "", "", "", "b"),
    ("a+", "a", "", "a", "baa"),
    ("a?", "", "", "", "b"),
    ("ab*c", "a", "", "ac", "abbc"),
    ("ab+c", "ab", "", "abc", "abbc"),
    ("ab?c", "a", "", "ac", "abc"),
    ("abc*", "ab", "", "ab"),
    ("abc+", "abc", "", "abc", "abcc"),
    ("abc?def", "def", "", "abdef", "abcdef"),
    ("(abc)*", "", "", ""),
    ("(abc)+", "abc", "", "abcabc"),
    ("(abc)?", "", "", ""),
    ("(abc){2}", "abcabc", "", "abcabc"),
    ("x(abc){2}y", "xabcabcy", "", "xabcabcy"),
    ("x(abc){2,}y", "xabcabc", "", "xabcabcy", "xabcabcabcy"),
    ("x(abc){2,3}y", "xabcabc", "", "xabcabcabcy"),
    ("x(abc){1}y", "xabcy", "", "xabcy"),
    ("x(abc){0}y", "x", "", "xy"),
    ("x(abc){0,}y", "x", "", "xy", "xabcy"),
    ("x(abc){0,1}y", "x", "", "xy"),
    ("a{3}", "aaa", "", "aaa"),
    ("a{3}?", "aaa", "", "aaa"),
    ("a{3,5}?b", "aaab", "", "aaaaab"),
    ("a{20}", "a" * 16, "", "a" * 20),
    ("a{20}b", "a" * 16 + "b", "", "a" * 20 + "b"),
    ("^a{20}b", "a" * 16 + "b", "a" * 16, "a" * 20 + "b"),
    ("(a.b){2}", "ba", "", "axbaxb"),
    ("(a.b){3}c", "bc", "", "axbaxbaxbc"),
    ("(ab.){2}", "ab", "", "abxaby"),
    ("x(ab*){2}", "xa", "", "xaab"),
    ("a*?bc", "bc", "", "bc"),
    ("a+?bc", "abc", "", "aabc"),
    ("a??bc", "bc", "", "bc"),
    ("(?U)a+bc", "abc", "", "abc"),
    ("(?U)a*bc", "bc", "", "bc"),
    ("((a+)+)+b", "ab", "", "aab"),
    ("((a*)*)*b", "b", "", "b"),
    ("(a|b)*c", "c", "", "c"),
    ("(ab|ac)+d", "a", "", "abacd"),
    # what looks like a repetition and is none
    ("a{,5}b", "a{,5}b", "", "a{,5}b"),
    ("a{b}", "a{b}", "", "a{b}"),
    ("a{", "a{", "", "a{"),
    ("a{1", "a{1", "", "a{1"),
    ("a{ 1}", "a{ 1}", "", "a{ 1}"),
    ("x{-1}", "x{-1}", "", "x{-1}"),
    ("x{1,2,3}", "x{1,2,3}", "", "x{1,2,3}"),
    ("a{01}", "", "", "a{01}"),
    ("a{1,02}", "", "", "a{1,02}"),
    ("a{99999999999}", "", "", "a{99999999999}"),
    ("a}b", "a}b", "", "a}b"),
    ("a]b", "a]b", "", "a]b"),
    ("x{1}{", "x{", "", "x{"),
    # alternatives
    ("a|b", "", "", "a", "b"),
    ("abc|abd", "ab", "", "abc", "abd"),
    ("xbc|abc", "bc", "", "xbc", "abc"),
    ("abc|abc", "abc", "", "abc"),
    ("abc|", "", "", ""),
    ("|abc", "", "", ""),
    ("x(a|b)y", "x", "", "xay", "xby"),
    ("xyz(a|b)uvw", "xyz", "", "xyzauvw"),
    ("x(abc|abd)y", "xab", "", "xabcy", "xabdy"),
    ("x(abc|dbc)yz", "bcyz", "", "xabcyz", "xdbcyz"),
    ("x(|abc)y", "x", "", "xy", "xabcy"),
    ("x(abc||abd)y", "x", "", "xy"),
    ("(a|b|c)def", "def", "", "adef", "cdef"),
    ("(foo|foobar)baz", "foo", "", "foobaz", "foobarbaz"),
    ("foo(bar|baz)?qux", "foo", "", "fooqux", "foobarqux"),
    ("a|b|c|abc", "", "", "a"),
    ("(ab)|(cd)", "", "", "cd"),
    ("abc|a.*", "a", "", "ax"),
    ("(x+y|x)z", "x", "", "xxyz", "xz"),
    # classes
    (".", "", "", "x"),
    ("a.c", "a", "", "abc", "axc"),
    ("abc.def", "abc", "", "abcxdef"),
    ("ab.*cdef", "cdef", "", "abcdef", "abxcdef"),
    ("(?s)ab.cde", "cde", "", "ab\ncde"),
    ("[ab]cd", "cd", "", "acd"),
    ("[^ab]cd", "cd", "", "xcd"),
    ("[a]bc", "abc", "", "abc"),
    ("[.]bc", ".bc", "", ".bc"),
    (r"[\.]bc", ".bc", "", ".bc"),
    (r"[\]]bc", "]bc", "", "]bc"),
    (r"[\\]bc", "\\bc", "", "\\bc"),
    ("[]]bc", "]bc", "", "]bc"),
    ("[]a]bc", "bc", "", "]bc", "abc"),
    ("[^]a]bc", "bc", "", "xbc"),
    ("[^]]bc", "bc", "", "xbc"),
    ("[a-]bc", "bc", "", "-bc"),
    ("[-]bc", "-bc", "", "-bc"),
    ("[[]bc", "[bc", "", "[bc"),
    ("[[:alpha:]]bc", "bc", "", "xbc"),
    ("[^[:alpha:]]bc", "bc", "", "1bc"),
    ("[[:^alpha:]]bc", "bc", "", "1bc"),
    ("[[:alpha:][:digit:]x]bc", "bc", "", "1bc"),
    ("[[:alpha]bc", "bc", "", ":bc"),
    ("[[=a=]]bc", "]bc", "", "=]bc"),
    ("[(]bc", "(bc", "", "(bc"),
    ("[|]bc", "|bc", "", "|bc"),
    ("[a|b]cd", "cd", "", "|cd"),
    ("[a)]cd", "cd", "", ")cd"),
    (r"[\]a]cd", "cd", "", "]cd"),
    (r"[a\\]cd", "cd", "", "\\cd"),
    (r"[\d]cd", "cd", "", "1cd"),
    (r"[\x5d]cd", "cd", "", "]cd"),
    (r"[\x{5d}]cd", "cd", "", "]cd"),
    (r"[\pL]cd", "cd", "", "écd"),
    (r"[\p{Greek}]cd", "cd", "", "λcd"),
    (r"[\n]cd", "cd", "", "\ncd"),
    ("[é]cd", "écd", "", "écd"),
    ("[é-ü]cd", "cd", "", "écd"),
    ("[ ]cd", " cd", "", " cd"),
    ("[^ ]cd", "cd", "", "xcd"),
    ("[^^]cd", "cd", "", "xcd"),
    ("[a^]cd", "cd", "", "^cd"),
    ("[a]*cd", "cd", "", "cd"),
    (r"[\_]cd", "_cd", "", "_cd"),
    (r"\dcd", "cd", "", "1cd"),
    (r"\Dcd", "cd", "", "xcd"),
    (r"\wcd\W", "cd", "", "xcd "),
    (r"\scd\S", "cd", "", " cdx"),
    (r"\pLcd", "cd", "", "écd"),
    (r"\PLcd", "cd", "", "1cd"),
    (r"\pNx", "x", "", "1x"),
    (r"\p{Greek}cd", "cd", "", "λcd"),
    (r"\p{^Greek}cd", "cd", "", "xcd"),
    (r"\P{Greek}cd", "cd", "", "xcd"),
    (r"\Ccd", "cd", "", "écd"),
    # escapes
    (r"a\.b", "a.b", "", "a.b"),
    (r"a\*b", "a*b", "", "a*b"),
    (r"a\\b", "a\\b", "", "a\\b"),
    (r"a\(b\)", "a(b)", "", "a(b)"),
    (r"a\[b\]", "a[b]", "", "a[b]"),
    (r"a\{2\}", "a{2}", "", "a{2}"),
    (r"a\|b", "a|b", "", "a|b"),
    (r"a\^b\$", "a^b$", "", "a^b$"),
    (r"a\/b\-c\_d\ e", "a/b-c_d e", "", "a/b-c_d e"),
    (r"a\tb\n", "a\tb\n", "", "a\tb\n"),
    (r"\a\f\r\v", "\a\f\r\v", "", "\a\f\r\v"),
    (r"\x41b", "Ab", "", "Ab"),
    (r"\x{41}b", "Ab", "", "Ab"),
    (r"\x{e9}b", "éb", "", "éb"),
    (r"\x{1F600}b", "\U0001f600b", "", "\U0001f600b"),
    (r"\x{00000041}b", "", "", "Ab"),
    (r"\x{D800}b", "", ""),
    (r"\101b", "Ab", "", "Ab"),
    (r"\0123", "\n3", "", "\n3"),
    (r"\08", "\x008", "", "\x008"),
    (r"\12b", "\nb", "", "\nb"),
    (r"\400b", "\u0100b", "", "\u0100b"),
    (r"a\.*b", "a", "", "ab", "a..b"),
    (r"a\x41*b", "a", "", "ab"),
    (r"\Qa.b\E", "a.b", "", "a.b"),
    (r"\Qa.b", "a.b", "", "a.b"),
    (r"\Qa.b\Ec", "a.bc", "", "a.bc"),
    (r"\Qab\E*c", "a", "", "ac", "abbc"),
    (r"\Qab\E+c", "ab", "", "abbc"),
    (r"\Qab\E{2}c", "abbc", "", "abbc"),
    (r"ab\Q\E*c", "a", "", "ac", "abc"),
    (r"\Q|\E", "|", "", "|"),
    (r"\Qa\\E", "a\\", "", "a\\"),
    (r"\Qa\Eb\Qc\E", "abc", "", "abc"),
    (r"^\Q^\E", "^", "^", "^"),
    (r"(?i)\Qa1\E", "1", "", "A1"),
    ("\x00a", "\x00a", "", "\x00a"),
    ("a\nb", "a\nb", "", "a\nb"),
    # flags
    ("(?i)abc", "", "", "ABC"),
    ("(?i)abc123", "123", "", "ABC123"),
    ("(?i)k", "", "", "\u212a"),
    ("(?i)s", "", "", "\u017f"),
    ("(?i)é1", "1", "", "É1"),
    ("(?i)[.]x", ".", "", ".X"),
    ("(?i)[x].", "", "", "X."),
    (r"(?i)\x41-1", "-1", "", "a-1"),
    ("(?i:abc)def", "def", "", "ABCdef"),
    ("abc(?i:d)ef", "abc", "", "abcDef"),
    ("(?i)a(?-i)bc", "bc", "", "Abc"),
    ("(?i)a(?-i:bc)d", "bc", "", "AbcD"),
    ("a(?i)b|c", "", "", "aB", "C"),
    ("ab(?i)|abc", "", "", "ab", "ABC"),
    ("(a(?i)b)cd", "cd", "", "aBcd"),
    ("(?i-s)abc", "", "", "ABC"),
    ("(?i-i)abc", "abc", "", "abc"),
    ("(?s-i:a.)bc", "bc", "", "a\nbc"),
    ("(?ims)abc", "", "", "ABC"),
    ("(?)abc", "abc", "", "abc"),
    ("(?:abc)", "abc", "", "abc"),
    ("a(?i)*b", "", "", "B", "aaB"),
    ("(?i)(?:a|b)-(?-i:c)", "-c", "", "B-c"),
    # groups
    ("(abc)", "abc", "", "abc"),
    ("((a)(b))c", "abc", "", "abc"),
    ("(?P<name>abc)d", "abcd", "", "abcd"),
    ("(?<name>abc)d", "abcd", "", "abcd"),
    ("(?P<name>abc)?d", "d", "", "d"),
    ("()abc", "abc", "", "abc"),
    ("(a(b(c(d)?)?)?)?e", "e", "", "e", "abce"),
    ("(" * 51 + "abc" + ")" * 51, "", "", "abc"),
    ("(" * 50 + "abc" + ")" * 50, "abc", "", "abc"),
    # like those that people write
    (r"^[a-z.]+@example\.com$", "@example.com", "", "a.b@example.com"),
    (r"^https?://[^/]+/orders/\d+$", "/orders/", "http", "https://x.y/orders/17"),
    (r"^\d{4}-\d{2}-\d{2}T", "T", "", "2026-11-15T"),
    (r"(?i)\berror\b.*code=\d+", "=", "", "Error: CODE=5"),
    (r"^db[0-9]+\.", "db", "db", "db12."),
    (r"GET|PUT|POST", "T", "", "PUT"),
    (r"GET|HEAD|POST", "", "", "HEAD"),
    (r"^(GET|PUT) /api/v1/", "T /api/v1/", "", "PUT /api/v1/"),
    (r"timeout after [0-9]+ ?ms", "timeout after ", "", "timeout after 5ms"),
    (r"(warning|error): disk [a-z]+ full", ": disk ", "", "error: disk sda full"),
    ("größe|größer", "größe", "", "größer"),
]  # fmt: skip


@lru_cache(4)
def compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern.encode(), options)


def found(pattern: str, text: str) -> bool:
    return compiled(pattern).search(text.encode()) is not None


def holds(pattern: str, text: str) -> bool:
    """Whether the expression is found in a text; if it is, the text has what is required."""
    if not found(pattern, text):
        return False
    assert required_text(pattern) in text, (pattern, text)
    assert text.startswith(anchored_prefix(pattern)), (pattern, text)
    return True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row[0][:40]))
def test_what_is_required(row: tuple[str, ...]) -> None:
    pattern, required, prefix, *texts = row
    assert regex_size(pattern) > 0  # the engine takes it
    assert required_text(pattern) == required
    assert anchored_prefix(pattern) == prefix
    for text in texts:
        assert holds(pattern, text), text
        assert regex_found(pattern, text)


def changed(random: Random, text: str) -> str:
    """A text with a small accident."""
    at = random.randrange(len(text) + 1)
    other = random.choice(("", "a", "b", "x", "1", "\n", text[:1], text[-1:], text))
    changes: tuple[Callable[[], str], ...] = (
        lambda: text[:at] + text[at + 1 :],
        lambda: text[:at] + other + text[at:],
        lambda: text[:at] + other + text[at + len(other) :],
        lambda: text[:at] + text[at:].swapcase(),
        lambda: text[at:] + text[:at],
        lambda: text[:at],
        lambda: text[at:],
    )
    return random.choice(changes)()


def test_no_change_of_a_text_shows_otherwise() -> None:
    random = Random(1)
    still = 0
    for pattern, _, _, *texts in ROWS:
        for text in texts:
            for _ in range(30):
                other = text
                for _ in range(random.randint(1, 3)):
                    other = changed(random, other)
                still += holds(pattern, other)
    assert still > 2000


# ------------------------------------------------------------- made-up patterns

# A pattern with a function that makes texts which fit it, and where flags allow, others.
Made = tuple[str, Callable[[], str]]


class Maker:
    """Makes expressions, and texts that they are found in."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def leaf(self) -> Made:
        random = self.random
        word = "".join(random.choice("abAB1.") for _ in range(random.randint(1, 3)))
        quoted = word.replace(".", "\\.")
        char = word[0]
        code = f"\\x{{{ord(char):x}}}"
        leaves: list[Made] = [
            (quoted, lambda: word),
            (quoted, lambda: word),
            (quoted, lambda: word),
            (f"\\Q{word}\\E", lambda: word),
            (f"[{char}]", lambda: char),
            (code, lambda: char),
            (".", lambda: random.choice("ab1é")),
            ("[ab1]", lambda: random.choice("ab1")),
            ("[^ab]", lambda: random.choice("xé.]")),
            ("[]a]", lambda: random.choice("]a")),
            (r"\d", lambda: random.choice("01")),
            (r"\pL", lambda: random.choice("aBé")),
            ("", lambda: ""),
            (r"\b", lambda: ""),
            ("$", lambda: ""),
            ("a{,2}", lambda: "a{,2}"),
        ]
        return random.choice(leaves)

    def repeated(self, depth: int) -> Made:
        random = self.random
        pattern, make = self.made(depth - 1)
        least, most = random.choice(((0, 3), (1, 3), (0, 1), (2, 2), (2, 4), (0, 0), (3, 3)))
        spelled = {(0, 3): "*", (1, 3): "+", (0, 1): "?", (2, 2): "{2}"}
        mark = spelled.get((least, most), f"{{{least},{most}}}") + random.choice(("", "?"))
        times = lambda: random.randint(least, most)  # noqa: E731
        return f"(?:{pattern}){mark}", lambda: "".join(make() for _ in range(times()))

    def made(self, depth: int) -> Made:
        random = self.random
        shape = random.randrange(10) if depth else 0
        if shape <= 3:
            return self.leaf()
        if shape == 4:
            return self.repeated(depth)
        parts = [self.made(depth - 1) for _ in range(random.randint(2, 3))]
        if shape == 5:
            choice = "|".join(pattern for pattern, _ in parts)
            return f"({choice})", lambda: random.choice(parts)[1]()
        if shape == 6:
            pattern, make = parts[0]
            flag = random.choice(("(?i:{})", "(?-i:{})", "(?s:{})", "(?P<n>{})", "((?i){})"))
            swap = random.random() < 0.5 and "?i" in flag
            return flag.format(pattern), lambda: make().swapcase() if swap else make()
        joined = "".join(pattern for pattern, _ in parts)
        return f"(?:{joined})", lambda: "".join(make() for _, make in parts)

    def whole(self) -> Made:
        random = self.random
        pattern, make = self.made(4)
        start = random.choice(("", "", "^", "(?m)^", r"\A", "(^)", "^?", "(?i)"))
        around = random.choice(("", "", "x\n", "ab")) if start in ("", "^?", "(?m)^") else ""
        return start + pattern, lambda: around + make() + random.choice(("", "\nx", "b"))


def test_made_up_expressions() -> None:
    random = Random(2)
    maker = Maker(random)
    matched = said = anchored = 0
    for _ in range(600):
        pattern, make = maker.whole()
        try:
            compiled(pattern)
        except re2.error:  # two groups of one name
            continue
        said += bool(required_text(pattern))
        anchored += bool(anchored_prefix(pattern))
        for _ in range(4):
            text = make()
            matched += holds(pattern, text)
            matched += holds(pattern, changed(random, text))
    assert matched > 2000 and said > 200 and anchored > 40


def test_any_characters_at_all() -> None:
    random = Random(3)
    matched = 0
    for _ in range(4_000):
        pattern = "".join(random.choices("ab1()[]{}*+?|.^$\\,-:iPQEdx", k=random.randint(1, 12)))
        try:
            compiled(pattern)
        except re2.error:
            required_text(pattern)  # nothing worse than an answer
            continue
        for text in (pattern, "ab1", "", "a" * 12, changed(random, pattern)):
            there = holds(pattern, text)
            assert regex_found(pattern, text) is there, (pattern, text)
            matched += there
    assert matched > 2000


def test_a_long_expression_takes_no_time() -> None:
    assert required_text("ab" * 30_000) == "ab" * 30_000
    assert required_text("a.b" * 20_000) == "ba"
    assert required_text("(" * 30_000 + ")" * 30_000) == ""
    assert len(required_text("(" * 20 + "a" + "{9})" * 20)) < 5000  # which no engine takes


# ------------------------------------------------------------------------ LIKE


@pytest.mark.parametrize(
    ("pattern", "escape", "required", "prefix"),
    [
        ("", None, "", ""),
        ("abc", None, "abc", "abc"),
        ("abc%", None, "abc", "abc"),
        ("%abc", None, "abc", ""),
        ("ab%cde_f", None, "cde", "ab"),
        ("_ab%", None, "ab", ""),
        ("%_%", None, "", ""),
        ("a!%b%", "!", "a%b", "a%b"),
        ("a!!b_", "!", "a!b", "a!b"),
        ("%%ab%_", "%", "%ab_", "%ab_"),
        ("grüß%", None, "grüß", "grüß"),
    ],
)
def test_what_like_requires(pattern: str, escape: str | None, required: str, prefix: str) -> None:
    assert like_required(pattern, escape) == required
    assert like_prefix(pattern, escape) == prefix


def test_like_requires_what_it_says() -> None:
    random = Random(4)
    fitting = 0
    for _ in range(5000):
        pattern = "".join(random.choices("ab%_é", k=random.randrange(7)))
        text = "".join(random.choices("abé", k=random.randrange(7)))
        if like(pattern, None, text):
            fitting += 1
            assert like_required(pattern, None) in text
            assert text.startswith(like_prefix(pattern, None))
    assert fitting > 300
