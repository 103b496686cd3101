"""What is read in one go is what the parser comes to, compiled and interpreted."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.errors import LocalError
from regraft.kernels import reader
from regraft.limits import SELECTOR_COST_MAX
from regraft.model.selector import Literal, Name, NameKind, Selector, cost
from regraft.model.selector.ast import And, Comparison, In, IsNull, Not, StartsWith

MODULES = [reader, kernels.load_interpreted()["reader"]]
both = pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])

RELATIONS = {"=": 0, "<>": 1, "<": 2, "<=": 3, ">": 4, ">=": 5}
HEADERS = {"topic": 1, "priority": 2, "size": 3}

ORDINARY = [
    "symbol = 'SYM1' AND price BETWEEN 1.5 AND 9.25 AND volume > 10 AND region IN ('eu','us')",
    "a = 1",
    "  a=1\t\r\n\f",
    "a<>-1 and b != +2 And c<3 aND d<=4 AND e>5 AND f>=6",
    "a = 'it''s' AND b = '' AND c = 'grüß \U0001f600'",
    "a = TRUE AND b <> false AND c > true",
    'a AND b AND "c" AND ctx.d AND $size',
    "5 < a AND 1.5 >= b AND 'x' = c AND -2 <> d AND 7 <= e AND 8 > f",
    "(a = 1) AND ((b = 2 AND c = 3) AND (d))",
    "((a = 1 AND b = 2))",
    "a = 1.0 AND b = -0.0 AND c = 1e5 AND d = .5 AND e = 5. AND f = 1.50 AND g = 1E-5",
    "a = 10L AND b = 0l AND c = - 5 AND d = + 5 AND e = 007.5 AND f = 9.223372036854775808e18",
    "a = 9223372036854775807 AND b = -9223372036854775808 AND c = 1700000000000000000",
    "a = 123456789.123456789 AND b = 0.1 AND c = 1e22 AND d = 1e-7 AND e = 0.30000000000000004",
    "a = 1 AND a = 1 AND a = 1.0 AND 1 = a",
    "a = 1 AND a = 2 AND a > 5 AND a < 3 AND a IS NULL AND a IS NOT NULL",
    "a IN (1)",
    "a IN (1, 1.0, 01.0, +1)",
    "a IN('b','a','B','é','z','','it''s')AND b IN(3,-2,10,1.5,TRUE,'1')",
    "a BETWEEN 1 AND 2 AND b between 'x'and'y'AND\"c\"BETWEEN-1 AND+2",
    "STARTS_WITH(a, 'x') AND starts_with (\"b c\",'') AND Starts_With(ctx.d, 'it''s é')",
    "a LIKE 'abc%' AND b LIKE 'abc' AND c LIKE '' AND d LIKE '%' AND e LIKE 'it''s%%%'",
    "TOPIC('a/b') AND topic = 1 AND starts_with = 2 AND distance = 3",
    "$topic = 'a/b' AND $priority >= 4 AND $size < 1000 AND $topic LIKE 'a/%'",
    "ctx.user = 'x' AND ctx.\"a b\" = 1 AND ctx = 1 AND ctx.ctx = 2 AND ctx.AND = 3",
    '"a" = 1 AND "a b" = 2 AND "AND" = 3 AND "a""b" = 4 AND "grüß" = 5 AND "1a" = 6',
    '"JMSFoo" = 1 AND "JMSXFoo" = 2 AND ctx.JMSFoo = 3 AND ctx."JMSBar" = 4 AND JMSXGroupID = 5',
    "a$b = 1 AND _c = 2 AND ctx.a$b = 3 AND timestamp = 4 AND regexp = 5 AND x = 6 AND X='7'",
    "order_id = 'a AND b' AND note = '(' AND \"IN\" IN ('IN')",
    'a IS NULL AND "b"IS NOT NULL AND $topic is null AND ctx.c Is Not Null',
]

LEFT_TO_THE_PARSER = [
    "a = 1 OR b = 2", "NOT a = 1", "a NOT IN (1, 2)", "a NOT LIKE 'x%'", "a NOT BETWEEN 1 AND 2",
    "a = b", "a + 1 = 2", "a = 1 + 1", "-a = 1", "a = --1", "TRUE", "1 = 1", "a = 1 AND TRUE",
    "(a) = 1", "TRUE = a", "a BETWEEN b AND 2", "a BETWEEN (1) AND 2", "1 BETWEEN a AND b",
    "a LIKE 'a%b'", "a LIKE '_'", "a LIKE 'a!%' ESCAPE '!'", "a REGEXP 'x'", "TOPIC('a/+')",
    "TOPIC('#')", "DISTANCE(a, b, 1, 2) < 5", "a = X'00'", "a = x'00'", "a = 0x10",
    "a = TIMESTAMP '2026-11-15T21:00:00Z'", "$type = 'x'", "$timestamp IS NULL", "JMSPriority = 4",
    "grüß = 1", "a = 1e100", "a = 1.0000000000000000000000000000001",
    "a = 1 -- b", "a = truE_", "\u0131n = 1",
    "STARTS_WITH(a + 1, 'x')", "(a = 1 OR b = 2) AND c = 3",
]  # fmt: skip

REFUSED = [
    "", " ", "(", ")", "()", "a =", "= 1", "a = 1 AND", "AND a = 1", "a = 1 b = 2", "a == 1",
    "a = 1 = 2", "a =< 1", "a < = 1", "a = 1)", "(a = 1", "a = 1) AND (b = 2", "a = 'x", 'a" = 1',
    '"" = 1', "a = 007", "a = 00", "a = 0L1", "a = 5AND b = 1", "a = 1.5f", "a = 1_000", "a = 1e",
    "a = 1e+", "a = .", "a = 1.2.3", "a = 1e400", "a = 1E-400", "a = 9223372036854775808",
    "a = -9223372036854775809", "a = +9223372036854775808", "a = 99999999999999999999",
    "a = 0.0000000000000000000000000000001e-300", "a IN ()", "a IN (1,)", "a IN (b)",
    "a IN ((1))", "a IN 1", "a IN (1", "a IN (- - 1)", "a BETWEEN 1", "a BETWEEN 1 AND",
    "a BETWEEN.5 AND 1", "a = 1 AND.5 < b", "a IS", "a IS NOT", "a IS TRUE", "1 IS NULL",
    "a LIKE 5", "a LIKE 'x' 'y'", "STARTS_WITH(a)", "STARTS_WITH(a, 5)", "STARTS_WITH('a', a)",
    "STARTS_WITH(a, 'x'", "STARTS_WITH(a, 'x') = TRUE", '"STARTS_WITH"(a, \'x\')', "TOPIC()",
    "TOPIC('')", "TOPIC(a)", "TOPIC('a#')", "TOPIC('a\0b')", f"TOPIC('{'a/' * 64}b')",
    f"TOPIC('{'a' * 1025}')", "ctx.TOPIC('a')", "foo('a')", "a.b = 1", "ctx.5 = 1", "ctx. a = 1",
    "ctx .a = 1", "$ topic = 1", "$topics = 1", "$ctx.a = 1", "AND = 1", "NULL = 1", "a = NULL",
    "JMSFoo = 1", "a = 1\v", "a\xa0= 1", "a = 1\0", "\0", "a = '\ud800'", "a = 1;",
    "a = 1 /* b */", "a STARTS\x7fWITH 'x'", "STARTS\x7fWITH(a, 'x')", "a = TRUE.5", "a ! = 1",
    "a !", "a <", "a >", "a !1", "a = 'x'y", "a \u0131n (1)",
    f"{'a' * 256} = 1", f"\"{'é' * 128}\" = 1", f"a IN ({', '.join(map(str, range(1001)))})",
    " AND ".join(f"a{k} = 1" for k in range(400)), f"a = '{'x' * 8192}'", "(" * 200 + "a",
]  # fmt: skip

PIECES = [
    "a", "b", "x", "price", '"a"', '"a b"', '"é"', '"', "ctx", "ctx.", "ctx.a", "$topic", "$size",
    "$type", "$", "JMSType", "TOPIC", "STARTS_WITH", "é", "timestamp", "TIMESTAMP", "regexp",
    "=", "<>", "!=", "<", "<=", ">", ">=", "!", "+", "-", "*", "/", "(", ")", ",", ".", "'", "%",
    "AND", "and", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "LIKE", "ESCAPE", "TRUE", "false",
    "1", "5", "0", "1.0", "1.5", ".5", "5.", "1e5", "1E-400", "1e400", "007", "10L", "1.5f", "0x1f",
    "1_000", "9223372036854775807", "9223372036854775808", "0.0", "1e99", "1e-99", "1e+3",
    "'x'", "''", "'it''s'", "'x%'", "'a/b'", "'é\U0001f600'", "X'00'", "'1'",
    " ", "\t", "\n", "\r", "\f", "\v", "\xa0", "\0", "\u0131", "#",
]  # fmt: skip


def described(text: str, bytes_max: int = 8192) -> tuple[str, list[Any]] | None:
    """What the parser says, as the kernel would say it: the slow and obvious way."""
    try:
        selector = Selector.parse(text, bytes_max)
    except LocalError:
        return None
    nodes = selector.ast.terms if isinstance(selector.ast, And) else (selector.ast,)
    return selector.text, [term_of(node) for node in nodes]


def term_of(node: Any) -> Any:
    match node:
        case Comparison(operator, Name() as name, Literal(value)):
            return *place(name), RELATIONS[operator], value
        case In(Name() as name, items):
            return *place(name), 6, tuple(item.value for item in items)
        case IsNull(name):
            return *place(name), 7, None
        case Not(IsNull(name)):
            return *place(name), 8, None
        case StartsWith(Name() as name, prefix):
            return *place(name), 9, prefix.encode()
    return "something else"


def place(name: Name) -> tuple[int, bytes]:
    where = {NameKind.ATTRIBUTE: 10, NameKind.CONTEXT: 19, NameKind.HEADER: 0}[name.kind]
    return where or HEADERS.get(name.name, -1), name.name.encode()


def compare(text: str) -> bool:
    """Both forms give the same, and what the parser says if they give anything; whether they do."""
    results = [module.read_conjunction(text) for module in MODULES]
    # By their texts: 1, 1.0 and TRUE are not the same here, nor are 0.0 and -0.0.
    assert repr(results[0]) == repr(results[1]), text
    if results[0] is None:
        return False
    assert repr(results[0]) == repr(described(text)), text
    return True


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_conjunctions_are_read(text: str) -> None:
    assert compare(text)
    again = Selector.parse(text).text
    assert compare(again)
    assert reader.read_conjunction(again) == reader.read_conjunction(text)


@pytest.mark.parametrize("text", LEFT_TO_THE_PARSER)
def test_the_rest_is_left_to_the_parser(text: str) -> None:
    assert described(text) is not None
    assert not compare(text)


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_parser_refuses_is_not_read(text: str) -> None:
    assert described(text) is None
    assert not compare(text)


@both
def test_what_a_result_is(module: ModuleType) -> None:
    text = "$size > 2.0 AND b in ('y', 'x') AND starts_with(ctx.c, 'é') AND a is not null"
    assert module.read_conjunction(text) == (
        "$size > 2 AND STARTS_WITH(ctx.c, 'é') AND a IS NOT NULL AND b IN ('x', 'y')",
        [
            (3, b"size", 4, 2),
            (19, b"c", 9, "é".encode()),
            (10, b"a", 8, None),
            (10, b"b", 6, ("x", "y")),
        ],
    )


@both
def test_the_limits_are_those_of_the_parser(module: ModuleType) -> None:
    # Its canonical form is longer than the text: spaces, and BETWEEN says the name twice.
    for text in ("a=1", "name BETWEEN 1 AND 2", "a='é'"):
        for bytes_max in range(30):
            wanted = described(text, bytes_max)
            assert repr(module.read_conjunction(text, bytes_max)) == repr(wanted)
    assert module.read_conjunction(f"a IN ({', '.join(map(str, range(1000)))})") is not None
    assert module.read_conjunction(" AND ".join(f"a{k} = 1" for k in range(256))) is not None
    assert module.read_conjunction(f"{'a' * 255} = 1") is not None
    assert module.read_conjunction("(" * 16 + "a" + ")" * 16) is not None
    assert module.read_conjunction("(" * 17 + "a" + ")" * 17) is None


def test_the_largest_that_is_read_is_within_the_limits() -> None:
    values = ", ".join(map(str, range(1000)))
    for term in (f"a{{}} IN ({values})", "a{} IS NOT NULL", "STARTS_WITH(a{}, '')", "a{} = 1"):
        tree = Selector.parse(term.format("")).ast
        assert 1 + 256 * cost(tree) <= SELECTOR_COST_MAX
        text = " AND ".join(term.format(k).replace(values, "1, 2") for k in range(256))
        assert reader.read_conjunction(text) == described(text)
        assert reader.read_conjunction(text + " AND b = 1") is None


def space(random: Random, needed: bool = True) -> str:
    return random.choice((" ", " ", " ", "  ", "\t", "\n ", "\r\f")) if needed else ""


def cased(random: Random, word: str) -> str:
    return random.choice((word, word, word.lower(), word.capitalize()))


def literal(random: Random) -> str:
    shape = random.randrange(8)
    if shape < 2:
        return random.choice(
            ("TRUE", "false", "'x'", "''", "'it''s'", "'é\U0001f600'", "'a AND b'")
        )
    if shape == 2:
        return (
            "'"
            + "".join(random.choices("ab%_'é \0", k=random.randrange(4))).replace("'", "''")
            + "'"
        )
    sign = random.choice(("", "", "", "-", "+", "- ", "-\t"))
    if shape == 3:
        return sign + random.choice(("0.0", "5.", ".5", "007", "1.0", "1e5", "10L", "1e400", "0"))
    if shape == 4:
        return sign + str(random.choice((2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**18, 10**19 - 1)))
    if shape == 5:
        return sign + str(random.randrange(100))
    number = random.choice((random.random(), random.random() * 10 ** random.randint(-20, 25)))
    return sign + random.choice((repr(number), f"{number:.2f}", f"{number:.17e}", f"{number:.3E}"))


def name(random: Random) -> str:
    return random.choice(
        ("a", "b", "c", "price", "_x1", "a$b", '"a"', '"a b"', '"q""q"', '"not"', '"é"', "ctx.a",
         'ctx."b"', "ctx.in", "ctx", "$topic", "$priority", "$size", "$type", "x", "topic", "é",
         "JMSXa", '"JMSa"', "JMSPriority", "like", "escape_", "regexp", "timestamp")
    )  # fmt: skip


def condition(random: Random) -> str:
    s, shape = space(random), random.randrange(12)
    subject = name(random)
    if shape < 5:
        gap = space(random, random.random() < 0.5)
        operator = random.choice(("=", "<>", "!=", "<", "<=", ">", ">=", "="))
        if shape == 0:
            return f"{literal(random)}{gap}{operator}{gap}{subject}"
        return f"{subject}{gap}{operator}{gap}{literal(random)}"
    if shape == 5:
        words = cased(random, "BETWEEN"), literal(random), cased(random, "AND"), literal(random)
        return f"{subject}{s}{s.join(words)}"
    if shape < 8:
        items = f"{s},".join(literal(random) for _ in range(random.randint(1, 5)))
        return f"{subject}{s}{cased(random, 'IN')}({items})"
    if shape == 8:
        return f"{subject}{s}{cased(random, 'IS')}{s}{random.choice(('', 'NOT '))}NULL"
    if shape == 9:
        return f"{cased(random, 'STARTS_WITH')}({s}{subject}{s},{literal(random)})"
    if shape == 10:
        return f"{subject}{s}LIKE{s}{literal(random)}"
    return random.choice((subject, f"TOPIC({literal(random)})", f"NOT {subject}", "TRUE", "a = b"))


def chain(random: Random) -> str:
    terms = [condition(random) for _ in range(random.randint(1, 5))]
    if random.random() < 0.3:
        terms += random.choices(terms, k=2)
    terms = [f"({term})" if random.random() < 0.1 else term for term in terms]
    text = f"{space(random)}{cased(random, 'AND')}{space(random)}".join(terms)
    return f"({text})" if random.random() < 0.1 else text


def test_generated_conjunctions() -> None:
    random = Random(20261115)
    read = sum(compare(chain(random)) for _ in range(2500))
    assert read > 500


def test_conjunctions_with_mistakes() -> None:
    random = Random(20261116)
    for _ in range(3000):
        text = chain(random)
        at = random.randrange(len(text))
        shape = random.randrange(4)
        if shape == 0:
            text = text[:at]
        elif shape == 1:
            text = text[:at] + text[at + random.randint(1, 3) :]
        else:
            text = text[:at] + random.choice(PIECES) + text[at + shape - 2 :]
        compare(text)


def test_pieces_in_any_order() -> None:
    random = Random(20261117)
    for _ in range(3000):
        pieces = random.choices(PIECES, k=random.randint(1, 7))
        compare(random.choice(("", " ")).join(pieces))
    for first in PIECES:
        for last in PIECES:
            compare(f"{first}a = 1{last}")
            compare(f"a{first}{last}")
