"""Forms from texts, against those from trees."""

from random import Random

import pytest

from regraft.errors import LocalError
from regraft.model.selector import Selector
from regraft.routing import forms
from regraft.routing.covering import Interest
from regraft.routing.forms import form_of_filter

PATTERNS = ("", "a", "a/b", "a/+", "+/b", "a/#", "$a", "$a/#", "/")
LITERALS = (
    *("1", "1.0", "1.5", "-2", "0", "2", "3e2", "9223372036854775807", "-9223372036854775808"),
    *("9007199254740993", "1e308", "-1e308", "TRUE", "FALSE", "'x'", "'xy'", "''", "'é'", "'1'"),
)
NAMES = ("p", "p", "s", '"or"', '"a b"', "ctx.room", "$priority", "$topic", "$size", "JMSType")


def condition(random: Random) -> str:
    name, literal, other = random.choice(NAMES), *random.choices(LITERALS, k=2)
    return random.choice(
        (
            *(f"{name} {sign} {literal}" for sign in ("=", "<>", "<", "<=", ">", ">=")),
            *(f"{literal} < {name}", f"{name} BETWEEN {literal} AND {other}", f"{name} IS NULL"),
            *(f"{name} IN ({literal}, {other})", f"{name} IS NOT NULL", f"{name} LIKE 'x%'"),
            *(f"STARTS_WITH({name}, 'x')", f"{name} LIKE '%x'", f"{name} + 1 > 2", "TOPIC('a/b')"),
            *(f"NOT ({name} > {literal})", f"({name} = {literal} OR s = 'x')", name),
        )
    )


def test_forms_from_texts_are_those_from_trees() -> None:
    random = Random(1)
    plain = 0
    for _ in range(4000):
        text = " AND ".join(condition(random) for _ in range(random.choice((1, 1, 2, 3))))
        pattern, exact = random.choice(PATTERNS), random.random() < 0.5
        try:
            selector = Selector.parse(text)
        except LocalError:
            assert form_of_filter(pattern, exact, text) == (Interest(pattern, exact).form, False)
            continue
        form, readable = form_of_filter(pattern, exact, text)
        expected = Interest(pattern, exact, selector).form
        assert readable and form == expected, text
        assert [list(one.sets) for one in form] == [list(one.sets) for one in expected]
        plain += forms.read_conjunction(text) is not None
    assert plain > 1000


def test_ordinary_filters_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "Selector", None)
    assert form_of_filter("a", False, "symbol = 'x' AND price BETWEEN 1 AND 2.5")[1]
    assert form_of_filter("a", False, "") == (Interest("a").form, True)
