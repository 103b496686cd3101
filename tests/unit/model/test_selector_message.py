"""Checks selectors as the rest of the bus uses them: on messages, and explained."""

import pytest

from regraft.model.message import Compression, DeliveryMode, Message, Timestamp, Value
from regraft.model.selector import Name, NameKind, Selector, values_of
from regraft.model.selector.message import HEADERS
from regraft.model.selector.words import HEADERS as HEADER_NAMES
from regraft.model.selector.words import JMS_SYNONYMS

FULL = Message(
    "orders/eu",
    body=b"abc",
    attributes={"price": 150, "region": "EU"},
    context={"user": "u"},
    sender="shop",
    type=7,
    type_name="order",
    timestamp_us=5,
    expiration_us=6,
    priority=9,
    delivery_mode=DeliveryMode.PERSISTENT,
    reply_to="replies",
    correlation="c",
)
EXPECTED: dict[str, tuple[Value | None, Value | None]] = {
    "topic": ("orders/eu", "t"),
    "type": ("order", 0),
    "priority": (9, 4),
    "timestamp": (Timestamp(5), None),
    "expiration": (Timestamp(6), None),
    "correlation": ("c", None),
    "reply_to": ("replies", None),
    "from": ("shop", None),
    "size": (3, 0),
    "delivery_mode": ("PERSISTENT", "NON_PERSISTENT"),
    "redelivered": (False, False),
}


@pytest.mark.parametrize("header", HEADER_NAMES)
def test_a_header(header: str) -> None:
    name = Name(NameKind.HEADER, header)
    assert (values_of(FULL)(name), values_of(Message("t"))(name)) == EXPECTED[header]


def test_all_headers_are_known() -> None:
    assert tuple(HEADERS) == HEADER_NAMES
    assert set(JMS_SYNONYMS.values()) <= set(HEADER_NAMES)


def test_the_size_is_that_of_the_body_as_sent() -> None:
    small = Message("t", body=b"x" * 1000).with_gzip()
    assert small.compression is Compression.GZIP
    assert Selector.parse("$size < 100").matches(small)


def test_names() -> None:
    selector = Selector.parse("a > 1 AND ctx.b = a + c AND TOPIC('x/#') AND JMSType IS NULL")
    assert selector.names == {
        Name(NameKind.ATTRIBUTE, "a"),
        Name(NameKind.CONTEXT, "b"),
        Name(NameKind.ATTRIBUTE, "c"),
        Name(NameKind.HEADER, "topic"),
        Name(NameKind.HEADER, "type"),
    }


def test_equality_is_that_of_the_canonical_tree() -> None:
    one, other = Selector.parse("a = 1 AND b = 2"), Selector.parse("2.0 = b and a=0x1")
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert one != Selector.parse("a = 1")
    assert str(other) == other.text == "a = 1 AND b = 2"


def test_only_true_matches() -> None:
    selector = Selector.parse("a = 1")
    for attributes, truth in (({"a": 1}, True), ({"a": 2}, False), ({}, None)):
        message = Message("t", attributes=attributes)
        assert selector.evaluate(message) is truth
        assert selector.matches(message) is (truth is True)


def test_an_explanation() -> None:
    text = (
        "price BETWEEN 100 AND 2 * 100 AND (region in ('US', 'EU') OR weight / 0 < 1) "
        "AND NOT TOPIC('test/#') AND ctx.since IS NULL"
    )
    assert Selector.parse(text).explain(FULL) == [
        "price BETWEEN 100 AND 2 * 100 AND (region IN ('US', 'EU') OR weight / 0 < 1) "
        "AND NOT TOPIC('test/#') AND ctx.since IS NULL: true",
        "  price BETWEEN 100 AND 2 * 100: true",
        "    price: 150",
        "    2 * 100: 200",
        "  region IN ('US', 'EU') OR weight / 0 < 1: true",
        "    region IN ('US', 'EU'): true",
        "      region: 'EU'",
        "    weight / 0 < 1: unknown",
        "      weight / 0: NULL",
        "        weight: NULL",
        "  NOT TOPIC('test/#'): true",
        "    TOPIC('test/#'): false",
        "  ctx.since IS NULL: true",
        "    ctx.since: NULL",
    ]


def test_an_explanation_shows_what_no_literal_can() -> None:
    values: dict[str, Value] = {"a": float("nan"), "b": float("-inf"), "c": Timestamp(2**62)}
    lines = Selector.parse("a = 1 OR b = c").explain(Message("t", attributes=values))
    assert lines == [
        "a = 1 OR b = c: false",
        "  a = 1: false",
        "    a: nan",
        "  b = c: false",
        "    b: -inf",
        "    c: TIMESTAMP '1970-01-01T00:00:00Z+4611686018427387904us'",
    ]


def test_an_integer_that_no_envelope_holds_breaks_nothing() -> None:
    message = Message("t", attributes={"a": 10**400})
    assert Selector.parse("a > 1").matches(message)
    assert Selector.parse("a + 1.5 > 1").evaluate(message) is None
    assert Selector.parse("-a < 1").evaluate(message) is None
