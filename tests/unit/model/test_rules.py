"""The table of rules: what a file may say, and which line is at fault when it may not."""

import contextlib
import random

import pytest

from regraft.errors import LocalError, PeerError
from regraft.model.rules import (
    RULES_BYTES_MAX,
    Route,
    decode_routes,
    describe_route,
    differences,
    encode_routes,
    parse_rules,
)

GOOD = """\
# who there is
[peers.SEARCH]
number = 101
[peers.CACHE]

[types.ASKED]
routes = [{ to = "SEARCH" }]

[types.STORED]
number = 200
routes = [
    { to = "SEARCH", original = true },
    { to = "CACHE", whom = "all", missing = "ignore", report = false },
]
"""


def test_a_file_becomes_a_table() -> None:
    rules = parse_rules(GOOD)
    assert rules.routes == {
        "ASKED": (Route("SEARCH"),),
        "STORED": (Route("SEARCH", original=True), Route("CACHE", True, False, False)),
    }
    assert rules.peers == {"SEARCH": 101, "CACHE": 0}
    assert rules.numbers == {"ASKED": 0, "STORED": 200}
    assert rules.text == GOOD
    assert rules.route_to("STORED", "CACHE") == Route("CACHE", True, False, False)
    assert rules.route_to("STORED", "MAIL") is None


def test_nothing_is_a_table() -> None:
    assert parse_rules("").routes == {}


# What is changed in the good file, the line at fault, and what is said.
WRONG = [
    ('"CACHE", whom', '"CASHE", whom', 11, "no peer type 'CASHE'; there are: SEARCH, CACHE"),
    ("number = 200", "number = 20", 10, "100 or above, not 20"),
    ("number = 200", "number = true", 10, "100 or above, not True"),
    ("number = 200", "colour = 3", 10, "'colour' is unknown"),
    ('whom = "all"', 'whom = "some"', 11, "whom is 'any' or 'all', not 'some'"),
    ('missing = "ignore"', 'missing = "fine"', 11, "missing is 'error' or 'ignore'"),
    ("report = false", "report = 1", 11, "report is true or false"),
    ("original = true", "orginal = true", 11, "'orginal' is unknown"),
    ('routes = [{ to = "SEARCH" }]', "", 6, "types.ASKED needs routes"),
    ('routes = [{ to = "SEARCH" }]', 'routes = ["SEARCH"]', 7, "must be a table"),
    ("[peers.CACHE]", "[pears.CACHE]", 4, "'pears' is unknown"),
    ("[peers.CACHE]", '[peers."CA CHE"]', 4, "'CA CHE' is no name"),
    ("[peers.CACHE]", "[peers.CACHE]\nnumber = 101", 5, "has the number 101, as SEARCH has"),
    ('{ to = "CACHE", whom', '{ to = "SEARCH", whom', 11, "two routes to SEARCH"),
    ("number = 101", "number = = 1", 3, "this is not TOML"),
]


@pytest.mark.parametrize(("old", "new", "line", "text"), WRONG)
def test_the_line_at_fault_is_named(old: str, new: str, line: int, text: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(LocalError) as caught:
        parse_rules(GOOD.replace(old, new), "my.toml")
    assert caught.value.code.name == "bad-configuration"
    assert caught.value.text.startswith(f"my.toml:{line}: ")
    assert text in caught.value.text


def test_a_file_has_a_size() -> None:
    with pytest.raises(LocalError, match="bytes at most"):
        parse_rules("#" * (RULES_BYTES_MAX + 1))


def test_the_line_is_found_in_a_large_file() -> None:
    rows = [f'[types.T{k}]\nroutes = [{{ to = "A" }}]\n' for k in range(900)]
    rows[700] = rows[700].replace("to =", "tu =")
    with pytest.raises(LocalError, match=r"^rules:1403: types\.T700, route 1: 'tu' is unknown"):
        parse_rules("[peers.A]\n" + "".join(rows))


def test_differences_are_told() -> None:
    other = GOOD.replace("[peers.CACHE]", "[peers.CACHE]\n[peers.MAIL]").replace(
        '[{ to = "SEARCH" }]', '[{ to = "MAIL" }]'
    )
    assert differences(parse_rules(GOOD), parse_rules(GOOD + "\n# more")) == []
    assert differences(parse_rules(GOOD), parse_rules(other)) == [
        "- ASKED: any SEARCH",
        "+ peer MAIL",
        "+ ASKED: any MAIL",
    ]
    assert describe_route(Route("A", original=True)) == "any A reported with the original"
    assert describe_route(Route("A", all=True, missing_is_error=False)) == "all A missing is fine"


def test_routes_of_a_message_come_back() -> None:
    routes = (Route("A"), Route("B", True, False, False, True), Route("C", original=True))
    assert decode_routes(encode_routes(routes)) == routes


@pytest.mark.parametrize("data", [b"", b"\x08\x01", b"\x0a\x02\x0a\x00", b"\x0a\x05\x0a\x03a/b"])
def test_what_is_no_route_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError, match="override rules"):
        decode_routes(data)


def test_any_bytes_are_routes_or_an_error() -> None:
    source = random.Random(11)
    good = encode_routes((Route("SEARCH", True), Route("CACHE", original=True)))
    for _ in range(3000):
        data = bytearray(good[: source.randrange(len(good) + 1)])
        for _ in range(source.randrange(4)):
            data.insert(source.randrange(len(data) + 1), source.randrange(256))
        with contextlib.suppress(PeerError):
            assert decode_routes(bytes(data))


def test_any_text_is_a_table_or_an_error() -> None:
    source = random.Random(12)
    letters = '[]{}="#.,\n' + GOOD
    for _ in range(300):
        at = source.randrange(len(GOOD))
        text = GOOD[:at] + source.choice(letters) + GOOD[at + source.randrange(3) :]
        try:
            parse_rules(text)
        except LocalError as error:
            assert error.text.startswith("rules:")
