"""What somebody wants, as it is written."""

from __future__ import annotations

from typing import NamedTuple


class Filter(NamedTuple):
    """What somebody wants, as it is written: a topic pattern, and a selector or nothing.

    `name` and `data` are those of a filter that an application brought, if there is one.
    """

    pattern: str
    exact: bool
    selector: str
    name: str = ""
    data: bytes = b""


def size_of(filter: Filter) -> int:
    """About how many bytes a filter has in a frame, or more."""
    text = filter.pattern + filter.selector + filter.name
    return 16 + (len(text) if text.isascii() else 4 * len(text)) + len(filter.data)
