"""Filters of applications at a node: what they may do, and what happens when they go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from regraft.errors import LocalError
from regraft.limits import Limits
from regraft.model.message import Message, encode_envelope
from regraft.model.selector.cover import conjunct_covers
from regraft.model.userfilter import FilterTable, UserFilters
from regraft.routing.forms import form_of_filter, with_user_filter

LIMITS = Limits(filter_bytes=8, filters_per_message=3, filter_failures=3)


class AtLeast:
    """Messages with a large n; what `n` itself says decides how it goes wrong."""

    def __init__(self, least: int) -> None:
        self.least = least

    def encode(self) -> bytes:
        return b"%d" % self.least

    @classmethod
    def decode(cls, data: bytes) -> AtLeast:
        return cls(int(data))

    def matches(self, message: Message) -> Any:
        n = message.attributes["n"]
        if n == "bad":
            raise RuntimeError("a bad message")
        return "yes" if n == "odd" else n >= self.least

    def covers(self, other: AtLeast) -> bool:
        if other.least == 13:
            raise RuntimeError("bad luck")
        return self.least <= other.least


class Plain:
    """One without `covers`."""

    encode = AtLeast.encode
    matches = AtLeast.matches

    @classmethod
    def decode(cls, data: bytes) -> Plain:
        return cls()


def node(**limits: int) -> tuple[UserFilters, list[str]]:
    notes: list[str] = []
    made = UserFilters(Limits(**{"filter_bytes": 8, "filter_failures": 3, **limits}), notes.append)
    made.learn(FilterTable({"at-least": AtLeast, "plain": Plain}))
    return made, notes


def envelope(n: Any) -> bytes:
    return encode_envelope(Message("t", attributes={"n": n}))


def row(filters: UserFilters) -> dict[str, Any]:
    return next(filters.rows())


def test_a_filter_is_asked_and_equal_ones_are_one() -> None:
    filters, _ = node()
    five = filters.of("at-least", b"5")
    assert five is not None and five is filters.of("at-least", b"5") and five.known
    assert [five.passes(envelope(n)) for n in (4, 5, 6)] == [False, True, True]
    same = envelope(9)
    assert five.passes(same) and five.passes(same)
    assert (row(filters)["evaluated"], row(filters)["matched"]) == (4, 3)  # once for one message
    assert filters.of("", b"") is None


def test_what_is_not_known_has_nothing_to_ask() -> None:
    filters, notes = node()
    for name, data in (("unknown", b"5"), ("at-least", b"five"), ("at-least", b"1" * 9)):
        one = filters.of(name, data)
        assert one is not None and not one.known
    assert row(filters)["unreadable"] == 1  # what is too large was not even tried
    (note,) = notes
    assert "at-least cannot be read here and lets everything pass: ValueError" in note


def test_what_fails_passes_and_in_the_end_it_is_asked_no_more() -> None:
    filters, notes = node()
    five = filters.of("at-least", b"5")
    assert five is not None
    assert five.passes(envelope("bad")) and five.passes(envelope("odd"))
    assert not five.passes(envelope(1))  # it works again: the count begins anew
    assert row(filters)["failed"] == 2 and not row(filters)["asked_no_more"]
    assert len(notes) == 1 and "RuntimeError: a bad message" in notes[0]
    for _ in range(3):
        assert five.passes(envelope("bad"))
    assert row(filters)["asked_no_more"] and "3 times in a row" in notes[-1]
    assert five.passes(envelope(1))
    assert (row(filters)["evaluated"], row(filters)["skipped"]) == (1, 1)


def test_who_takes_too_long_is_asked_no_more_either() -> None:
    filters, notes = node(filter_us=100)
    time_ns = iter(range(0, 10**9, 100_001))
    filters.clock = lambda: next(time_ns)
    five = filters.of("at-least", b"5")
    assert five is not None
    assert [five.passes(envelope(1)) for _ in range(3)] == [False] * 3  # what it said counts
    assert row(filters)["slow"] == 3 and five.passes(envelope(1))
    assert "longer than filter_us, 100 µs" in notes[0]
    filters, _ = node(filter_us=100)
    time_ns = iter(range(0, 10**9, 100_000))
    filters.clock = lambda: next(time_ns)
    five = filters.of("at-least", b"5")
    assert five is not None and not any(five.passes(envelope(1)) for _ in range(9))
    assert row(filters)["slow"] == 0


def test_so_many_are_asked_about_one_message() -> None:
    filters, _ = node(filters_per_message=3)
    some = [filters.of("at-least", b"%d" % n) for n in range(5, 10)]
    for one in (envelope(1), envelope(2)):
        assert [filter.passes(one) for filter in some if filter] == [False] * 3 + [True] * 2
    assert (row(filters)["evaluated"], row(filters)["skipped"]) == (6, 4)


def test_what_clients_bring_is_checked() -> None:
    filters, _ = node()
    filters.check("at-least", b"5")
    filters.check("unknown-here", b"")
    for name, data, text in (
        ("", b"x", "without a name"),
        ("no spaces", b"", "no name of a filter"),
        ("a/b", b"", "no name of a filter"),
        ("at-least", bytes(9), "limit filter_bytes is 8"),
    ):
        with pytest.raises(LocalError, match=text):
            filters.check(name, data)


# ------------------------------------------------------------------------------- covering


def covers(filters: UserFilters, one: tuple[str, str, bytes], other: tuple[str, str, bytes]) -> Any:
    def form(selector: str, name: str, data: bytes) -> Any:
        found = form_of_filter("t/#", False, selector)[0]
        return with_user_filter(found, filters.of(name, data)) if name else found

    (a,), (b,) = form(*one), form(*other)
    return conjunct_covers(a, b)


def test_covering() -> None:
    filters, notes = node()
    plain = ("", "", b"")
    two, five = ("", "at-least", b"2"), ("", "at-least", b"5")
    assert covers(filters, plain, five) and not covers(filters, five, plain)
    assert covers(filters, two, five) and not covers(filters, five, two)
    assert covers(filters, five, five)
    narrow = ("x > 1", "at-least", b"5")
    assert covers(filters, two, narrow) and not covers(filters, narrow, two)
    assert not covers(filters, ("x > 1", "at-least", b"2"), five)  # the selector counts, too
    assert not covers(filters, ("", "plain", b"2"), five)
    assert not covers(filters, ("", "plain", b"2"), ("", "plain", b"5"))  # it does not say
    assert covers(filters, ("", "plain", b"2"), ("x > 1", "plain", b"2"))
    unknown = ("", "unknown", b"2"), ("", "unknown", b"5")
    assert covers(filters, unknown[0], unknown[0]) and not covers(filters, *unknown)
    assert covers(filters, plain, unknown[0]) and not covers(filters, unknown[0], plain)
    assert not covers(filters, two, ("", "at-least", b"x"))  # one of them cannot be read
    assert not covers(filters, two, ("", "at-least", b"13"))  # it raises
    assert row(filters)["failed"] == 1 and "bad luck" in notes[-1]


# ------------------------------------------------------------------------------ registering


def test_a_class_is_registered_under_one_name() -> None:
    table = FilterTable()
    table.add("at-least", AtLeast)
    table.add("at-least", AtLeast)
    assert table.name_of(AtLeast(1)) == "at-least"
    for name, filter, text in (
        ("at-least", Plain, "is the name of .*AtLeast already"),
        ("a b", Plain, "the name of a filter"),
        ("", Plain, "the name of a filter"),
        ("x" * 101, Plain, "100 at most"),
        ("object", object, "has no encode and no decode and no matches"),
        ("no-class", AtLeast(1), "is no class"),
    ):
        with pytest.raises(LocalError, match=text):
            table.add(name, filter)  # type: ignore[arg-type]
    with pytest.raises(LocalError, match=r'put @regraft.filter\("a-name"\)'):
        table.name_of(Plain())
