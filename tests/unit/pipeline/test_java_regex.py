"""Checks patterns for Java without Java: Python's engine reads what is written, but for two names.

`tests/integration/test_spark_column.py` has Java read them.
"""

import re
from collections.abc import Callable
from random import Random

import pytest

from regraft.errors import LocalError
from regraft.model import topics
from regraft.model.selector.patterns import like, like_items, regex_found, regex_size
from regraft.pipeline.java_regex import PIECES_MAX, like_regex, search_regex, topic_regex

TEXTS = (
    *("", "a", "b", "ab", "ba", "a\n", "\n", "a\nb", "aab", "xaxbx", "é", "aé", "k", "K", "\u212a"),
    *(
        "s\u017f",
        "\U0001f600",
        "a\U0001f600b",
        "a b",
        "12-34",
        "x_1",
        "_",
        "-",
        "\\",
        "a\\z",
        "a.b",
    ),
    *("a%b", "\x0b", "\r\n", "\u2028", "\0", "[a]", "aaaa", "abab", "B-1"),
)


def finder(java: str) -> Callable[[str], bool]:
    """What Java would do with a pattern."""

    def python(escape: re.Match[str]) -> str:
        if escape[0] == r"\z":
            return r"\Z"
        return f"\\U{int(escape[1], 16):08x}" if escape[1] else escape[0]

    compiled = re.compile(re.sub(r"\\(?:x\{([0-9A-F]+)\}|.)", python, java, flags=re.S))
    return lambda text: compiled.search(text) is not None


# ------------------------------------------------------------------ regular expressions

TRANSLATED = [
    *("", "a", "error|fail", "^a", "a$", "^a.b$", "(?s)a.b", "(?i)k", "(?i)[^k]", "(?is)^.S$"),
    *("^ORD-[0-9]+$", r"\d{3}-\d{4}", r"[0-9]+-[0-9]+", r"\bab\b", r"^\w+$", r"\D\s\S", "[^a]"),
    *("^(GET|POST) /api/", "(a|b)c?", "(ab)?c", "x*", "a*?b+?", "[-a]", "[a-]", r"[\]\\]", "a{0}b"),
    *(".*ab.*", "^.*ab$", r"\.\*\+", r"\A\z", "é|[à-ü]", "\U0001f600+", "[^\U0001f600]b", "^a|b*c"),
]
NOT_TRANSLATED = [
    *("a.*b", "(a+)+$", "(a|b)*", "^a*b*$", r"\pL", "[[:alpha:]]", "(?i)é", "(?m)^a", r"\B"),
    *(r"\x41", "(?P<n>a)", r"\Qa\E", "a(?i)b", "[]a]", r"[\D]", "x{2}{3}", "a}", "(a){2}", r"\C"),
    *("[a-b-c]", "a[bc]{0,600}d", "(a|b)" * 10 + "c", "a" * (PIECES_MAX + 1), "^*"),
]


@pytest.mark.parametrize("pattern", TRANSLATED)
def test_it_finds_what_re2_finds(pattern: str) -> None:
    java = search_regex(pattern)
    assert java is not None
    found = finder(java)
    assert [text for text in TEXTS if found(text)] == [
        text for text in TEXTS if regex_found(pattern, text)
    ]


@pytest.mark.parametrize("pattern", NOT_TRANSLATED)
def test_what_is_not_certain_is_not_translated(pattern: str) -> None:
    assert search_regex(pattern) is None


ATOMS = ["a", "b", "k", "S", "1", "_", " ", ".", r"\.", r"\d", r"\W", r"\s", "[a-c]", "[^a-c]", "é",
         "[ks]", r"[\w-]", "[^é]", "\U0001f600", r"\n", "-", r"\pL", "[[:digit:]]"]  # fmt: skip
TIMES = ["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "+?", "{0}"]


def pattern(random: Random, depth: int = 0) -> str:
    branches = []
    for _ in range(random.choice((1, 1, 1, 2))):
        branch = ""
        for _ in range(random.randint(0, 4)):
            shape = random.randrange(10)
            if shape == 0 and depth < 2:
                branch += f"({pattern(random, depth + 1)}){random.choice(('', '', '?', '+'))}"
            elif shape == 1:
                branch += random.choice(("^", "$", r"\b", r"\A", r"\z"))
            else:
                branch += random.choice(ATOMS) + random.choice(TIMES)
        branches.append(branch)
    return "|".join(branches)


def test_generated_patterns() -> None:
    random = Random(20261116)
    alphabet = "aabbkKsS1_- \n\ré\u212a\u017f\U0001f600.\x0bzZ"
    texts = ["".join(random.choices(alphabet, k=random.randint(0, 6))) for _ in range(60)]
    translated = 0
    for _ in range(1500):
        one = random.choice(("", "", "(?i)", "(?s)")) + pattern(random)
        try:
            regex_size(one)
        except LocalError:
            continue
        java = search_regex(one)
        if java is not None:
            translated += 1
            found = finder(java)
            for text in texts:
                assert found(text) is regex_found(one, text), (one, java, text)
    assert translated > 300


# ---------------------------------------------------------------------- LIKE and TOPIC


def test_like() -> None:
    random = Random(7)
    pieces = ["a", "b", "%", "%", "_", "é", "\U0001f600", "\n", "\\", ".", "x", "!%", "!_", "!!"]
    for _ in range(1000):
        one = "".join(random.choices(pieces, k=random.randint(0, 7)))
        java = like_regex(like_items(one, "!"))
        assert java is not None
        found = finder(java)
        for text in TEXTS:
            assert found(text) is like(one, "!", text), (one, java, text)


def test_a_like_of_many_pieces() -> None:
    for one in ("a_" * 50, "a%" * 50, "_" * 5000, "a" * 5000):
        java = like_regex(like_items(one, None))
        assert java is not None and finder(java)("a" * 100) is like(one, None, "a" * 100)
    assert like_regex(like_items("a_" * PIECES_MAX, None)) is None
    assert like_regex(like_items("a%" * PIECES_MAX, None)) is None


def test_topics() -> None:
    levels = ["a", "b", "", "é", "a.b", "$a", "a b"]
    random = Random(8)
    names = ["/".join(random.choices(levels, k=random.randint(1, 4))) for _ in range(100)]
    for _ in range(400):
        one = "/".join(random.choices([*levels, "+", "+"], k=random.randint(1, 3)))
        one = random.choice((one, one, f"{one}/#", "#")) or "#"
        found = finder(topic_regex(one))
        for name in [*names, "a\n", "\n", "a/\nb"]:
            assert found(name) is topics.matches(one, name, exact=True), (one, name)
