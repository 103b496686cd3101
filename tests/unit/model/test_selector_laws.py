"""Checks laws of selectors on made-up trees, messages and texts."""

import math
import time

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from regraft.errors import LocalError
from regraft.model.message import Message, Timestamp, Value
from regraft.model.selector import (
    Condition,
    Literal,
    Name,
    NameKind,
    Operand,
    Selector,
    canonical,
    evaluate,
    parse,
    text_of,
    values_of,
)
from regraft.model.selector.ast import (
    INT_MAX,
    INT_MIN,
    And,
    Arithmetic,
    Between,
    Comparison,
    Distance,
    In,
    IsNull,
    Like,
    Negate,
    Not,
    Or,
    Regexp,
    StartsWith,
    TopicMatch,
)
from regraft.model.selector.evaluate import negation
from regraft.model.selector.words import HEADERS

CENTURY_US = 3_155_760_000_000_000

# Few values and names, so that the same ones meet; and all the awkward ones.
integers = st.sampled_from([0, 1, 2, -1, -2, 90, 2**53, 2**53 + 1, INT_MAX, INT_MIN]) | st.integers(
    INT_MIN, INT_MAX
)
floats = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 2.0**53, 2.0**63, 1e300, 5e-324]) | st.floats(
    allow_nan=False, allow_infinity=False
)
strings = st.text("aAb%_\\'\"é€/#+😀 \n", max_size=5)
literals = st.one_of(
    st.booleans(),
    integers,
    floats,
    strings,
    st.binary(max_size=2),
    st.integers(-CENTURY_US, CENTURY_US).map(Timestamp),
)
anything = literals | st.sampled_from([math.nan, math.inf, -math.inf])
attribute_names = st.sampled_from(["a", "b", "c", "NOT", "a b", "ctx", "JMSType", "x", "topic"])
names = st.one_of(
    st.builds(Name, st.just(NameKind.ATTRIBUTE), attribute_names),
    st.builds(Name, st.just(NameKind.CONTEXT), st.sampled_from(["a", "AND", "é"])),
    st.builds(Name, st.just(NameKind.HEADER), st.sampled_from(HEADERS)),
)


def operands_on(inner: st.SearchStrategy[Operand]) -> st.SearchStrategy[Operand]:
    return st.one_of(
        st.builds(Negate, inner),
        st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner),
        st.builds(Distance, st.tuples(inner, inner, inner, inner)),
    )


operands: st.SearchStrategy[Operand] = st.recursive(
    names | st.builds(Literal, literals), operands_on, max_leaves=5
)


@st.composite
def likes(draw: st.DrawFn) -> Like:
    escape = draw(st.none() | st.sampled_from("\\%_a'"))
    pieces = ["a", "b", "%", "_", "é", "'"]
    if escape is not None:
        pieces = [piece for piece in pieces if piece != escape]
        pieces += [escape + "%", escape + "_", escape * 2]
    return Like(draw(operands), "".join(draw(st.lists(st.sampled_from(pieces)))), escape)


tests: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), operands, operands),
    st.builds(Between, operands, operands, operands),
    st.builds(In, operands, st.lists(st.builds(Literal, literals), min_size=1).map(tuple)),
    likes(),
    st.builds(Regexp, operands, st.sampled_from(["a", "^a+$", "[^a]", "(?i)A", "'"])),
    st.builds(StartsWith, operands, strings),
    st.builds(TopicMatch, st.sampled_from(["a", "a/b", "+/b", "a/#", "#", "$a/+"])),
    st.builds(IsNull, names),
    st.builds(Literal, st.booleans()),
)


def conditions_on(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    many = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(st.builds(Not, inner), st.builds(And, many), st.builds(Or, many))


conditions: st.SearchStrategy[Condition] = st.recursive(tests, conditions_on, max_leaves=8)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    optional = st.none() | st.integers(0, CENTURY_US)
    return Message(
        topic=draw(st.sampled_from(["a", "a/b", "b", "$a/b"])),
        body=draw(st.binary(max_size=2)),
        attributes=draw(st.dictionaries(attribute_names, anything)),
        context=draw(st.dictionaries(st.sampled_from(["a", "AND", "é"]), anything)),
        priority=draw(st.integers(0, 9)),
        type=draw(st.integers(0, 2)),
        type_name=draw(st.sampled_from(["", "a"])),
        correlation=draw(st.sampled_from(["", "a"])),
        timestamp_us=draw(optional),
        expiration_us=draw(optional),
    )


@settings(max_examples=60, deadline=None)
@given(conditions, messages())
def test_the_canonical_tree_means_the_same(tree: Condition, message: Message) -> None:
    values = values_of(message)
    assert evaluate(canonical(tree), values) is evaluate(tree, values)


@settings(max_examples=60, deadline=None)
@given(conditions)
def test_the_canonical_tree_is_its_own_and_is_read_back(tree: Condition) -> None:
    plain = canonical(tree)
    assert canonical(plain) == plain
    assert parse(text_of(plain), 1 << 20) == plain
    assert canonical(parse(text_of(tree), 1 << 20)) == plain


@settings(deadline=None)
@given(conditions, messages())
def test_what_is_printed_means_the_same(tree: Condition, message: Message) -> None:
    values = values_of(message)
    assert evaluate(parse(text_of(tree), 1 << 20), values) is evaluate(tree, values)


@settings(max_examples=50, deadline=None)
@given(st.lists(conditions, min_size=2, max_size=4), st.data())
def test_order_and_repetition_do_not_matter(terms: list[Condition], data: st.DataObject) -> None:
    mixed = data.draw(st.permutations(terms + terms[:1]))
    for kind in (And, Or):
        assert canonical(kind(tuple(mixed))) == canonical(kind(tuple(terms)))
        nested = kind((kind(tuple(terms[:1] * 2)), *terms[1:]))
        assert canonical(nested) == canonical(kind(tuple(terms)))


@settings(deadline=None)
@given(conditions, conditions, messages())
def test_de_morgan(left: Condition, right: Condition, message: Message) -> None:
    values = values_of(message)
    both = evaluate(Not(And((left, right))), values)
    assert both is evaluate(Or((Not(left), Not(right))), values)
    assert both is negation(evaluate(And((right, left)), values))


@settings(deadline=None)
@given(operands, operands, messages())
def test_at_most_one_of_less_equal_and_greater(
    left: Operand, right: Operand, message: Message
) -> None:
    values = values_of(message)
    found = [evaluate(Comparison(symbol, left, right), values) for symbol in ("<", "=", ">")]
    assert found.count(True) <= 1
    assert None not in found or found == [None, None, None]


# ----------------------------------------------------------------------- texts

VOCABULARY = (
    "a b $topic $priority $x ctx.a ctx. JMSType \"q\" 'a' '%' '' 'it''s' ' \" 1 2.5 0x1 1e9 01 "
    "9223372036854775808 X'00' TIMESTAMP '2026-11-15T21:00:00Z' TRUE FALSE NULL NOT AND OR IN IS "
    "BETWEEN LIKE ESCAPE REGEXP STARTS_WITH DISTANCE TOPIC ( ) , + - * / = <> != < <= > >= . ! é"
)
WORDS = VOCABULARY.split()
soup = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


def parsed(text: str) -> Selector | None:
    """A selector, or the one refusal that there is."""
    started = time.monotonic()
    try:
        selector = Selector.parse(text)
    except LocalError as error:
        assert error.code.name == "bad-selector"
        assert error.text.isprintable() and len(error.text) < 2000
        selector = None
    assert time.monotonic() - started < 5
    return selector


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | soup)
@example("\ud800 = 1")
@example("a = '\ud800'")
@example("a REGEXP '\ud800'")
@example("1" * 5000 + " = a")
@example("a = 1e" + "9" * 5000)
@example("a = 0." + "0" * 5000 + "1")
@example('"' * 8000)
@example("'" * 8001)
def test_any_text_gives_a_selector_or_a_refusal(text: str) -> None:
    selector = parsed(text)
    if selector is not None:
        selector.evaluate(Message("a"))
        assert Selector.parse(selector.text) == selector
        assert selector.explain(Message("a"))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30) | st.text("()[]{}*+?|.^$\\pLd1,a:<>P=!&~-", max_size=30))
def test_any_regular_expression_is_found_or_refused(pattern: str) -> None:
    assume("\ud800" not in pattern)
    selector = parsed("a REGEXP '" + pattern.replace("'", "''") + "'")
    if selector is not None:
        assert selector.evaluate(Message("t", attributes={"a": pattern})) in (True, False)


@settings(deadline=None)
@given(conditions, st.data())
def test_a_damaged_text_gives_a_selector_or_a_refusal(tree: Condition, data: st.DataObject) -> None:
    text = text_of(tree)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 5))
    parsed(text[:at] + data.draw(st.sampled_from(WORDS)) + text[at + cut :])


@given(st.builds(Literal, literals), st.builds(Literal, literals))
def test_literals_are_equal_only_if_they_are_the_same(one: Literal, other: Literal) -> None:
    same = type(one.value) is type(other.value) and repr(one.value) == repr(other.value)
    assert (one == other) is same
    assert not same or hash(one) == hash(other)


@given(literals)
def test_a_literal_is_read_back(value: Value) -> None:
    tree = parse(f"a <> {text_of(Literal(value))}")
    assert isinstance(tree, Comparison) and tree.right == Literal(value)
