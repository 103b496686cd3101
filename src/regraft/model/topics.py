"""Topics, topic patterns, and which of them belong together.

Rules:

- A topic is levels separated by `/`. It is not empty, but its levels may be (`a//b` has three). It
  holds no NUL, no `+` and no `#`, and begins with `$` only where the bus itself speaks.
- A pattern may use `+` for one level and, as its last level only, `#` for the rest including none:
  `a/#` takes `a`. Both stand alone in their level. The empty pattern takes every topic.
- A pattern takes what is below it too, unless it is `exact`: `a/b` takes `a/b/c`.
- A topic that begins with `$` is taken only by a pattern that begins with `$`.
"""

from __future__ import annotations

from regraft.errors import LocalError
from regraft.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX


def check_topic(topic: str) -> None:
    """Refuse what cannot be published to."""
    if not topic:
        raise LocalError("bad-topic", "the topic is empty; name at least one level")
    _check_size("bad-topic", "topic", topic)
    for wildcard in "+#":
        if wildcard in topic:
            raise LocalError(
                "bad-topic",
                f"topic {topic!r} holds {wildcard!r}, which only a pattern may; leave it out",
            )


def check_pattern(pattern: str) -> None:
    """Refuse what cannot be subscribed to."""
    _check_size("bad-pattern", "pattern", pattern)
    levels = pattern.split("/")
    for index, level in enumerate(levels):
        if level not in ("+", "#") and ("+" in level or "#" in level):
            raise LocalError(
                "bad-pattern",
                f"pattern {pattern!r}: '+' and '#' must stand alone in a level, not in {level!r}",
            )
        if level == "#" and index < len(levels) - 1:
            raise LocalError("bad-pattern", f"pattern {pattern!r}: '#' must be the last level")


def _check_size(code: str, noun: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise LocalError(code, f"the {noun} {text!r} cannot be written as UTF-8") from None
    if size > TOPIC_BYTES_MAX:
        raise LocalError(code, f"the {noun} has {size} bytes; the limit is {TOPIC_BYTES_MAX}")
    levels = text.count("/") + 1
    if levels > TOPIC_LEVELS_MAX:
        raise LocalError(code, f"the {noun} has {levels} levels; the limit is {TOPIC_LEVELS_MAX}")
    if "\0" in text:
        raise LocalError(code, f"the {noun} {text!r} holds a NUL character; leave it out")


def matches(pattern: str, topic: str, exact: bool = False) -> bool:
    """Whether a subscription to `pattern` takes a message to `topic`; both are valid."""
    if topic.startswith("$") and not pattern.startswith("$"):
        return False
    if pattern == "":
        return True
    return _levels_match(pattern.split("/"), topic.split("/"), exact)


def _levels_match(pattern: list[str], topic: list[str], exact: bool) -> bool:
    if not pattern:
        return not topic or not exact
    if pattern[0] == "#":
        return True
    if not topic or pattern[0] not in ("+", topic[0]):
        return False
    return _levels_match(pattern[1:], topic[1:], exact)
