"""Checks LIKE and regular expressions: what they find, and that they take linear time."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import LocalError
from regraft.limits import PATTERN_TEXT_MAX
from regraft.model.selector import patterns
from regraft.model.selector.patterns import (
    Wild,
    compile_regex,
    is_longer,
    like,
    like_items,
    like_text,
    like_text_max,
    regex_found,
)

PIECES = {"%": "(?s:.*)", "_": "(?s:.)"}


@settings(max_examples=200, deadline=None)
@given(st.text("ab%_", max_size=8), st.text("ab\n", max_size=8))
def test_like_agrees_with_a_regular_expression(pattern: str, text: str) -> None:
    other = "".join(PIECES.get(char, char) for char in pattern)
    assert like(pattern, None, text) is (re.fullmatch(other, text) is not None)


@given(st.lists(st.sampled_from([*"ab%_\\!", Wild.ONE, Wild.MANY]), max_size=8).map(tuple))
def test_a_like_pattern_is_read_back(items: tuple[str | Wild, ...]) -> None:
    pattern, escape = like_text(items)
    assert like_items(pattern, escape) == items


def seconds(pattern: str, text: str) -> float:
    started = time.process_time()
    like(pattern, None, text)
    return time.process_time() - started


@pytest.mark.parametrize(
    "pattern",
    ["%a" * 2000 + "b", "%_a" * 1000 + "b", "%" + "a" * 4000 + "b%", "%_" + "a" * 4000 + "b%"],
)
def test_like_takes_linear_time(pattern: str) -> None:
    # A matcher that goes back would need ages for any of these.
    assert seconds(pattern, "a" * 100_000) < 5


@pytest.mark.parametrize(
    "pattern", ["(a+)+$b", "(a|aa)+$b", "(a|a?)+b", "(.*)*b", "(a?){500}a{500}b", "^(([a-z])+.)+b$"]
)
def test_a_search_takes_linear_time(pattern: str) -> None:
    started = time.process_time()
    assert not regex_found(pattern, "a" * 50_000)
    assert time.process_time() - started < 5


def test_the_engine_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    for pattern in ("(", "(?=x)", "[[:foo:]]", "x{9999}", "\\pL{1000}"):
        with pytest.raises(LocalError, match="regular expression"):
            patterns.regex_size(pattern)
    regex_found("(a|b)*a(a|b){300}z", "ab" * 10_000)
    assert capfd.readouterr() == ("", "")


def test_a_refused_pattern_is_not_repeated_at_length() -> None:
    with pytest.raises(LocalError) as caught:
        patterns.regex_size("(" + "x" * 5000)
    assert len(caught.value.text) < 300


def test_what_is_no_text_breaks_nothing() -> None:
    assert regex_found("^a", "a\ud800")
    assert not regex_found("b", "a\ud800")
    assert like("a_", None, "a\ud800")
    with pytest.raises(LocalError, match="UTF-8"):
        patterns.regex_size("\ud800")


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("b", ["b", "abc", "\nb"], ["", "a"]),
        ("^b", ["bc"], ["ab", "a\nb"]),
        ("(?m)^b$", ["a\nb\nc"], ["ab"]),
        ("b$", ["ab"], ["ba", "b\n"]),
        ("a|b$", ["ax", "xb"], ["bx"]),
        ("(?i)a|b", ["A", "xB"], ["c"]),
        ("", ["", "a"], []),
        (r"\Qa.b", ["xa.bx"], ["axb", "a."]),
        (r"\Qa(", ["a("], ["a"]),
        (r"a\Q", ["ba"], ["b"]),
        (r"^\C\C$", ["é"], ["e"]),
        ("^.$", ["é", "\U0001f600"], ["ab"]),
        ("a{2}", ["xaax"], ["axa"]),
        ("(?P<name>a)+", ["ba"], ["b"]),
    ],
)
def test_a_search_is_for_anywhere(pattern: str, found: list[str], not_found: list[str]) -> None:
    assert all(regex_found(pattern, text) for text in found)
    assert not any(regex_found(pattern, text) for text in not_found)


def test_a_search_through_the_public_face_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = patterns._compiled

    class Plain:
        def __init__(self, raw: bytes) -> None:
            self.match = compiled(raw).match
            self.programsize = compiled(raw).programsize

    monkeypatch.setattr(patterns, "_compiled", Plain)
    search = compile_regex("a+$").search
    assert search(b"ba") and not search(b"ab")


def test_the_longest_string_of_a_like_pattern() -> None:
    for pattern in ("%a", "_", "a%b", "a_%", "%_"):
        assert like_text_max(pattern, None) == PATTERN_TEXT_MAX
    for pattern in ("", "a", "a%", "a%%", "%"):
        assert like_text_max(pattern, None) is None
    assert like_text_max("a!%", "!") is None


def test_lengths_are_of_utf_8() -> None:
    assert not is_longer("\U0001f600" * 4, 16) and is_longer("\U0001f600" * 4 + "a", 16)
    assert not is_longer("a" * 16, 16) and is_longer("a" * 17, 16)
    assert not is_longer("\ud800" * 5, 15) and is_longer("\ud800" * 5, 14)
    assert not is_longer("a" * 100, None)
