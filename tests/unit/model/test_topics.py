"""Checks which topics and patterns are valid, and which belong together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import LocalError
from regraft.model.topics import check_pattern, check_topic, matches


@pytest.mark.parametrize(
    "topic", ["a", "a/b", "/", "a//b", "/a", "a/", "$bus/x", "é", "a b", "x" * 1024, "/" * 63]
)
def test_topics(topic: str) -> None:
    check_topic(topic)
    check_pattern(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("a/+", r"'\+'"),
        ("a+b", r"'\+'"),
        ("#", "'#'"),
        ("a#", "'#'"),
        ("x" * 1025, "1025 bytes; the limit is 1024"),
        ("é" * 513, "1026 bytes; the limit is 1024"),
        ("/" * 64, "65 levels; the limit is 64"),
        ("\ud800", "UTF-8"),
    ],
)
def test_no_topics(topic: str, reason: str) -> None:
    with pytest.raises(LocalError, match=reason) as caught:
        check_topic(topic)
    assert caught.value.code.name == "bad-topic"


@pytest.mark.parametrize("pattern", ["", "+", "#", "a/+", "+/b", "a/#", "+/+/#", "/+", "$bus/#"])
def test_patterns(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a+", "stand alone"),
        ("a/b#", "stand alone"),
        ("++", "stand alone"),
        ("+#", "stand alone"),
        ("#/a", "last level"),
        ("#/#", "last level"),
        ("#/", "last level"),
        ("a\0", "NUL"),
        ("x" * 1025, "1025 bytes"),
        ("+/" * 64, "65 levels"),
        ("\ud800", "UTF-8"),
    ],
)
def test_no_patterns(pattern: str, reason: str) -> None:
    with pytest.raises(LocalError, match=reason) as caught:
        check_pattern(pattern)
    assert caught.value.code.name == "bad-pattern"


# Pattern, topic, whether it is taken, whether it is taken exactly.
CASES = [
    ("a/b", "a/b", True, True),
    ("a/b", "a/b/c", True, False),
    ("a/b", "a/b/c/d", True, False),
    ("a/b", "a", False, False),
    ("a/b", "a/bc", False, False),
    ("a/b", "a/c", False, False),
    ("a", "a/", True, False),
    ("a/", "a", False, False),
    ("a/", "a/", True, True),
    ("+", "a", True, True),
    ("+", "a/b", True, False),
    ("+", "/a", True, False),
    ("a/+", "a", False, False),
    ("a/+", "a/", True, True),
    ("a/+/c", "a/b/c", True, True),
    ("a/+/c", "a/b/d", False, False),
    ("+/+", "/", True, True),
    ("#", "a/b/c", True, True),
    ("a/#", "a", True, True),
    ("a/#", "a/b", True, True),
    ("a/#", "a/b/c", True, True),
    ("a/#", "ab", False, False),
    ("a//b", "a//b", True, True),
    ("a//b", "a/b", False, False),
    ("a/+/b", "a//b", True, True),
    ("", "a/b", True, True),
    ("", "$bus", False, False),
    ("#", "$bus/a", False, False),
    ("+", "$bus", False, False),
    ("+/a", "$bus/a", False, False),
    ("$bus", "$bus/a", True, False),
    ("$bus/#", "$bus/a", True, True),
    ("$bus/+", "$bus/a", True, True),
    ("$bus", "bus", False, False),
    ("a/+", "a/$b", True, True),
]


@pytest.mark.parametrize(("pattern", "topic", "below", "exact"), CASES)
def test_matches(pattern: str, topic: str, below: bool, exact: bool) -> None:
    check_pattern(pattern)
    check_topic(topic)
    assert matches(pattern, topic) is below
    assert matches(pattern, topic, exact=True) is exact


LEVELS = st.sampled_from(["a", "b", "", "$a"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
PATTERNS = st.lists(LEVELS | st.just("+"), min_size=1, max_size=5).map("/".join).filter(bool)


@settings(derandomize=True)
@given(PATTERNS, TOPICS)
def test_below_is_exact_or_with_the_rest(pattern: str, topic: str) -> None:
    assert matches(pattern, topic) is matches(f"{pattern}/#", topic, exact=True)
    if matches(pattern, topic, exact=True):
        assert matches(pattern, topic)
        assert pattern.count("/") == topic.count("/")


@settings(derandomize=True)
@given(TOPICS)
def test_a_topic_takes_itself_and_every_topic_above_takes_it(topic: str) -> None:
    assert matches(topic, topic, exact=True)
    levels = topic.split("/")
    for count in range(1, len(levels)):
        above = "/".join(levels[:count])
        if above:  # a topic whose first level is empty has nothing above that can be named
            assert matches(above, topic)
