"""A tree of topic patterns: all that match a topic are found in one walk down its levels.

`regraft.model.topics.matches` is the slow, obvious reference for one pattern; a test holds the two
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class _Level(Generic[Value]):
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Level[Value]] = {}
        self.here: dict[Value, None] = {}  # end here exactly
        self.below: dict[Value, None] = {}  # end here, or anywhere below


class PatternTree(Generic[Value]):
    """Values under patterns; a value stands under each pattern at most once."""

    def __init__(self) -> None:
        self._root: _Level[Value] = _Level()

    def add(self, pattern: str, exact: bool, value: Value) -> None:
        """Put a value under a pattern."""
        names, whole = _path(pattern, exact)
        level = self._root
        for name in names:
            level = level.children.setdefault(name, _Level())
        (level.here if whole else level.below)[value] = None

    def remove(self, pattern: str, exact: bool, value: Value) -> None:
        """Take it away again, and the levels that nobody needs any more."""
        names, whole = _path(pattern, exact)
        path = [self._root]
        for name in names:
            path.append(path[-1].children[name])
        del (path[-1].here if whole else path[-1].below)[value]
        for name, parent, child in reversed(list(zip(names, path, path[1:], strict=False))):
            if child.children or child.here or child.below:
                break
            del parent.children[name]

    def find(self, topic: str) -> Iterator[Value]:
        """The values under all patterns that match, each pattern's once."""
        names = topic.split("/")
        wild = not topic.startswith("$")  # what begins with '$' is matched by name only
        if wild:
            yield from self._root.below
        levels = [self._root]
        for depth, name in enumerate(names):
            steps = (name, "+") if wild or depth else (name,)
            levels = [
                level.children[step] for level in levels for step in steps if step in level.children
            ]
            for level in levels:
                yield from level.below
        for level in levels:
            yield from level.here


def _path(pattern: str, exact: bool) -> tuple[list[str], bool]:
    """The levels to walk, and whether the topic must end there."""
    if pattern == "":
        return [], False
    names = pattern.split("/")
    if names[-1] == "#":
        return names[:-1], False
    return names, exact
