"""A set of topic patterns, in which those that cover a pattern, or are covered by it, are found.

`regraft.model.topic_cover.levels_cover` is the slow, obvious reference for two patterns; a test
holds the two together. A pattern is counted: it is there until it was removed as often as it was
added.
"""

from __future__ import annotations

from collections.abc import Iterator

from regraft.model.topic_cover import Levels

_KEPT_MAX = 1024  # answers that are kept


class _Node:
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.here: Levels | None = None  # the pattern that ends here, and takes this level only
        self.below: Levels | None = None  # the one that takes what is below, too


class PatternSet:
    """Patterns by their levels."""

    def __init__(self) -> None:
        self._root = _Node()
        self._counts: dict[Levels, int] = {}
        self._above: dict[Levels, tuple[Levels, ...]] = {}  # kept while the patterns are the same

    def __iter__(self) -> Iterator[Levels]:
        return iter(self._counts)

    def add(self, levels: Levels) -> None:
        """Count a pattern once more."""
        count = self._counts.get(levels, 0)
        self._counts[levels] = count + 1
        if count:
            return
        self._above.clear()
        node = self._root
        for name in levels.names:
            node = node.children.setdefault(name, _Node())
        if levels.below:
            node.below = levels
        else:
            node.here = levels

    def remove(self, levels: Levels) -> None:
        """Count it once less, and forget it if that was the last time."""
        self._counts[levels] -= 1
        if self._counts[levels]:
            return
        del self._counts[levels]
        self._above.clear()
        path = [self._root]
        for name in levels.names:
            path.append(path[-1].children[name])
        if levels.below:
            path[-1].below = None
        else:
            path[-1].here = None
        steps = list(zip(levels.names, path, path[1:], strict=False))
        for name, parent, child in reversed(steps):
            if child.children or child.here or child.below:
                break
            del parent.children[name]

    def covering(self, levels: Levels) -> tuple[Levels, ...]:
        """The patterns that take all that this one takes."""
        found = self._above.get(levels)
        if found is None:
            if len(self._above) >= _KEPT_MAX:
                self._above.clear()
            found = self._above[levels] = tuple(self._covering(levels))
        return found

    def _covering(self, levels: Levels) -> Iterator[Levels]:
        nodes = [self._root]
        for depth, name in enumerate(levels.names):
            steps = {name, "+"}
            if depth == 0 and name.startswith("$"):  # what begins with '$' is meant by name only
                steps = {name}
            nodes = [
                n.children[step] for n in nodes for step in sorted(steps) if step in n.children
            ]
            for node in nodes:
                if node.below:
                    yield node.below
        if not levels.below:
            for node in nodes:
                if node.here:
                    yield node.here

    def covered_by(self, levels: Levels) -> Iterator[Levels]:
        """The patterns of which this one takes all."""
        nodes = [self._root]
        for depth, name in enumerate(levels.names):
            if name == "+":
                nodes = [
                    child
                    for node in nodes
                    for step, child in node.children.items()
                    if depth or not step.startswith("$")
                ]
            else:
                nodes = [node.children[name] for node in nodes if name in node.children]
        if not levels.below:
            yield from (node.here for node in nodes if node.here)
            return
        while nodes:
            node = nodes.pop()
            yield from (found for found in (node.here, node.below) if found)
            nodes.extend(node.children.values())
