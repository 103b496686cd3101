"""Which topic patterns take all that another takes, and which take something in common.

Rules:

- A pattern is brought into one form first: its levels, of which `+` stands for any one, and whether
  it takes what is below, too. `a` taken with what is below it, and `a/#`, have the same form; so
  have the empty pattern, `#` and `+/#`, as every topic has a level.
- Both answers are exact for topics of any number of levels and any length. A topic that begins with
  `$` is not meant by a `+` or `#` in the first level.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from regraft.limits import PATTERNS_CACHED


class Levels(NamedTuple):
    """A topic pattern in its one form."""

    names: tuple[str, ...]  # at least one; '+' is any
    below: bool  # takes whatever follows these levels, and nothing

    @property
    def text(self) -> str:
        """A pattern of this form, to be taken exactly."""
        return "/".join((*self.names, "#") if self.below else self.names)


ALL = Levels(("+",), True)  # every topic but those of the bus itself
_EMPTY_AND_BELOW = Levels(("",), True)


@lru_cache(PATTERNS_CACHED)
def levels_of(pattern: str, exact: bool = False) -> Levels:
    """The form of a valid pattern."""
    names = tuple(pattern.split("/"))
    if pattern in ("", "#"):
        return ALL
    form = Levels(names[:-1], True) if names[-1] == "#" else Levels(names, not exact)
    # What has an empty level only would be the empty topic, which does not exist.
    return Levels(("", "+"), True) if form == _EMPTY_AND_BELOW else form


def levels_cover(a: Levels, b: Levels) -> bool:
    """Whether a takes every topic that b takes."""
    if a.below:
        if len(a.names) > len(b.names):
            return False
    elif b.below or len(a.names) != len(b.names):
        return False
    if a.names[0] == "+" and b.names[0].startswith("$"):
        return False
    # Those of b may be more; what a says nothing of, it takes.
    return all(mine in ("+", other) for mine, other in zip(a.names, b.names, strict=False))


def levels_overlap(a: Levels, b: Levels) -> bool:
    """Whether some topic is taken by both."""
    if len(a.names) > len(b.names):
        a, b = b, a
    if len(a.names) < len(b.names) and not a.below:
        return False
    first = {a.names[0], b.names[0]}
    if "+" in first and any(name.startswith("$") for name in first):
        return False
    pairs = zip(a.names, b.names, strict=False)
    return all(one == other or "+" in (one, other) for one, other in pairs)


def pattern_covers(a: str, b: str, a_exact: bool = False, b_exact: bool = False) -> bool:
    """Whether a subscription to a takes every topic that one to b takes."""
    return levels_cover(levels_of(a, a_exact), levels_of(b, b_exact))


def pattern_overlaps(a: str, b: str, a_exact: bool = False, b_exact: bool = False) -> bool:
    """Whether subscriptions to a and to b both take some topic."""
    return levels_overlap(levels_of(a, a_exact), levels_of(b, b_exact))
