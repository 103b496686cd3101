"""Where a topic leaves a pattern, in words."""

from __future__ import annotations

from regraft.model.topics import matches


def mismatch(pattern: str, topic: str, exact: bool = False) -> str:
    """Why a subscription to `pattern` does not take `topic`; nothing if it does."""
    if matches(pattern, topic, exact):
        return ""
    if topic.startswith("$") and not pattern.startswith("$"):
        return f"topics that begin with $ are taken only by patterns that do; {pattern!r} does not"
    wanted, levels = pattern.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if place >= len(levels):
            return f"the topic ends before level {place + 1} of the pattern, {level!r}"
        if level not in ("+", "#", levels[place]):
            return f"level {place + 1} is {levels[place]!r}, and the pattern has {level!r}"
    rest = "/".join(levels[len(wanted) :])
    return f"the pattern is exact, and the topic goes on with {rest!r}"
