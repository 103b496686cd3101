"""The words that mean something in a selector, and the names that it may ask for.

Rules:

- Keywords are not case-sensitive, names are.
- Reserved words cannot be bare names. REGEXP, TIMESTAMP and the functions are words only where
  one is expected, so that attributes with these names need no quotes.
- JMS names of headers are synonyms for ours. `JMSX...` and `JMS_...` are properties in JMS, and
  attributes here; any other `JMS...` is refused, as it would silently be an attribute.
"""

from __future__ import annotations

from difflib import get_close_matches

from regraft.model.selector.ast import Name, NameKind

RESERVED = frozenset(
    {"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"}
)
FUNCTIONS = ("DISTANCE", "STARTS_WITH", "TOPIC")

HEADERS = (
    "topic",
    "type",
    "priority",
    "timestamp",
    "expiration",
    "correlation",
    "reply_to",
    "from",
    "size",
    "delivery_mode",
    "redelivered",
)

JMS_SYNONYMS = {
    "JMSCorrelationID": "correlation",
    "JMSDeliveryMode": "delivery_mode",
    "JMSExpiration": "expiration",
    "JMSPriority": "priority",
    "JMSRedelivered": "redelivered",
    "JMSReplyTo": "reply_to",
    "JMSTimestamp": "timestamp",
    "JMSType": "type",
}


def is_jms_header(word: str) -> bool:
    """Whether JMS keeps a bare word for headers."""
    return word.startswith("JMS") and not word.startswith(("JMSX", "JMS_"))


def bare_name(word: str) -> Name | None:
    """What a bare word asks for; None if it is a JMS header that is not known here."""
    if not is_jms_header(word):
        return Name(NameKind.ATTRIBUTE, word)
    header = JMS_SYNONYMS.get(word)
    return Name(NameKind.HEADER, header) if header else None


def nearest(word: str, known: tuple[str, ...]) -> str:
    """The known word that was probably meant, or all of them."""
    lowered = {one.lower(): one for one in known}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.7)
    return lowered[close[0]] if close else "one of " + ", ".join(known)
