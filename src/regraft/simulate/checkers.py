"""Whether brokers stand in one tree, and whether each was told what the others want.

These checkers know nothing of the code that they check. They look at plain data: what nodes say of
themselves (`topology()`, `interests()`), which wires there are, and what guests have subscribed to.

Rules:

- A node is known by its name and incarnation; one that was started again is another one.
- At every instant: whoever follows parent links of nodes that live never comes back to where it
  was.
- Once all is quiet: what one node calls a link, the other one does, too, and one of them calls it
  the way to its parent; the links of all are one tree, and everybody knows its root and how far it
  is.
- Once all is quiet: over each link exactly that was announced which is wanted behind it, without
  what something else covers. Two sets are the same if each interest has an equivalent one in the
  other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from regraft.model.message import Message
from regraft.model.selector import Selector
from regraft.model.selector.ast import And, Condition, TopicMatch
from regraft.model.selector.cover import Form, form_covers, form_of, form_overlaps
from regraft.model.topic_cover import levels_of
from regraft.model.topics import matches

Key: TypeAlias = tuple[str, int]  # a node: its name and incarnation
NEVER = 1 << 62


class Complaint(NamedTuple):
    """Something that must not be."""

    kind: str  # one word, to tell complaints apart
    text: str


class Filter(NamedTuple):
    """An interest; `band` is a filter that a guest brought, as bounds of the attribute n."""

    pattern: str
    exact: bool
    selector: str
    band: tuple[int, ...] = ()

    def takes(self, message: Message) -> bool:
        """Whether a message is meant."""
        if not matches(self.pattern, message.topic, self.exact) or not self.in_band(message):
            return False
        return not self.selector or _parsed(self.selector).matches(message)

    def in_band(self, message: Message) -> bool:
        """Whether the guest's own filter, if there is one, matches a message."""
        n = message.attributes.get("n")
        return not self.band or (isinstance(n, int) and self.band[0] <= n <= self.band[1])


@lru_cache(4096)
def _parsed(selector: str) -> Selector:
    return Selector.parse(selector)


@lru_cache(4096)
def _form(filter: Filter) -> Form:
    condition: Condition = TopicMatch(levels_of(filter.pattern, filter.exact).text)
    if filter.selector:
        condition = And((condition, _parsed(filter.selector).ast))
    return form_of(condition)


@lru_cache(1 << 16)
def covers(a: Filter, b: Filter) -> bool:
    """Whether a takes all that b takes."""
    if a.band and (not b.band or b.band[0] < a.band[0] or a.band[1] < b.band[1]):
        return False
    return a == b or form_covers(_form(a), _form(b))


@lru_cache(1 << 16)
def overlaps(a: Filter, b: Filter) -> bool:
    """Whether something may be taken by both; topics of the nodes' own count as taken anyway."""
    return a.pattern.startswith("$") or form_overlaps(_form(a), _form(b))


# ------------------------------------------------------------------------------- the tree


class Standing(NamedTuple):
    """Where a node stands, as it says itself."""

    id: str
    parent: int | None  # the wire to it
    links: Mapping[int, Key]  # who is at the other end of each wire
    root: str = ""
    hops: int = 0


@dataclass(slots=True)
class Tree:
    """The standings of all nodes that live, and how long each link has stood."""

    standings: dict[Key, Standing] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)  # both ends have it, by wire
    until: dict[int, int] = field(default_factory=dict)  # one of them has it no more
    ends: dict[int, tuple[Key, Key]] = field(default_factory=dict)
    version: int = 0  # grows whenever paths may have changed
    attachments: int = 0

    def stand(self, key: Key, new: Standing, ns: int) -> Iterator[Complaint]:
        """A node says where it stands now."""
        old = self.standings.get(key)
        self.standings[key] = new
        if old is None or old.links != new.links:
            self._changed(key, old.links if old is not None else {}, new.links, ns)
        if new.parent is not None and (old is None or old.parent != new.parent):
            self.attachments += 1
            yield from self._cycle(key)

    def fall(self, key: Key, ns: int) -> None:
        """A node lives no more."""
        old = self.standings.pop(key, None)
        if old is not None:
            self._changed(key, old.links, {}, ns)

    def _changed(self, key: Key, old: Mapping[int, Key], new: Mapping[int, Key], ns: int) -> None:
        for wire, other in new.items():
            theirs = self.standings.get(other)
            if wire in old or theirs is None or theirs.links.get(wire) != key:
                continue
            if wire in (theirs.parent, self.standings[key].parent):
                self.since.setdefault(wire, ns)
                self.ends[wire] = (key, other)
                self.version += 1
        for wire in old:
            if wire not in new and wire in self.since:
                self.until.setdefault(wire, ns)
                self.version += 1

    def _cycle(self, key: Key) -> Iterator[Complaint]:
        seen = [key]
        step: Key | None = key
        while step is not None and (standing := self.standings.get(step)) is not None:
            step = standing.links.get(standing.parent) if standing.parent is not None else None
            if step in seen:
                names = " > ".join(f"{name}#{number}" for name, number in [*seen, step])
                yield Complaint("cycle", f"a ring of parents: {names}")
                return
            if step is not None:
                seen.append(step)

    def paths(self, start: Key) -> dict[Key, tuple[tuple[int, Key], ...]]:
        """The way from one node to each other one that it is linked with: wires and nodes."""
        found: dict[Key, tuple[tuple[int, Key], ...]] = {start: ()}
        todo = [start]
        for key in todo:
            standing = self.standings.get(key)
            for wire, other in standing.links.items() if standing is not None else ():
                if other not in found and wire in self.since and wire not in self.until:
                    found[other] = (*found[key], (wire, other))
                    todo.append(other)
        return found


def symmetric(standings: Mapping[Key, Standing]) -> Iterator[Complaint]:
    """Both ends of a link agree that it is one, and who is the parent."""
    for key, standing in standings.items():
        for wire, other in standing.links.items():
            theirs = standings.get(other)
            if theirs is None:
                yield Complaint("symmetry", f"{key} has a link to {other}, who is gone")
            elif theirs.links.get(wire) != key:
                yield Complaint(
                    "symmetry", f"{key} has {other} as a neighbour, but not the reverse"
                )
            elif (standing.parent == wire) == (theirs.parent == wire):
                yield Complaint("symmetry", f"{key} and {other} do not agree who is the parent")


def one_tree(standings: Mapping[Key, Standing]) -> Iterator[Complaint]:
    """All are in one tree, and know it."""
    roots = [key for key, standing in standings.items() if standing.parent is None]
    if len(roots) != 1:
        yield Complaint("tree", f"there are {len(roots)} roots: {sorted(roots)}")
        return
    depth = {roots[0]: 0}
    todo = [roots[0]]
    for key in todo:
        for wire, other in standings[key].links.items():
            if wire == standings[key].parent:
                continue
            if other in depth:
                yield Complaint("tree", f"{other} can be reached in two ways")
            elif other in standings:
                depth[other] = depth[key] + 1
                todo.append(other)
    for key, standing in standings.items():
        if key not in depth:
            yield Complaint("tree", f"{key} cannot be reached from the root {roots[0]}")
        elif standing.root != standings[roots[0]].id:
            yield Complaint("tree", f"{key} believes in another root than {roots[0]}")
        elif standing.hops != depth[key]:
            text = f"{key} is {depth[key]} hops from the root, and believes in {standing.hops}"
            yield Complaint("tree", text)


# ------------------------------------------------------------------------------ the tables


def filters(rows: Iterable[Any]) -> set[Filter]:
    """Interests as nodes tell them."""
    return {canonical(*row) for row in rows}


@lru_cache(1 << 14)
def canonical(
    pattern: str, exact: bool, selector: str, name: str = "", data: bytes = b""
) -> Filter:
    """An interest in its one form."""
    text = selector and _parsed(selector).text
    return Filter(levels_of(pattern, exact).text, True, text, tuple(data))


def maximal(wanted: Iterable[Filter]) -> set[Filter]:
    """What is left without those that others cover; one of those that are equivalent."""
    left: list[Filter] = []
    for one in sorted(set(wanted)):
        if not any(covers(other, one) for other in left):
            left = [other for other in left if not covers(one, other)]
            left.append(one)
    return set(left)


def tables(
    standings: Mapping[Key, Standing],
    wanted: Mapping[Key, set[Filter]],  # by guests at each node
    interests: Callable[[Key], Mapping[str, Any]],
    covering: bool = True,
    offered: Mapping[Key, set[Filter]] | None = None,  # by guests at each node, if that counts
) -> Iterator[Complaint]:
    """Over each link goes what is wanted behind it, of what is offered on its other side.

    The links must be one tree.
    """
    said = {key: interests(key) for key in standings}
    for key, standing in standings.items():
        local = filters(said[key]["local"])
        if local != wanted.get(key, set()):
            text = f"{key} believes that its guests want {_both(local, wanted.get(key, set()))}"
            yield Complaint("table", text)
        for other in standing.links.values():
            theirs = filters(said[key]["links"].get(standings[other].id, {}).get("received", ()))
            told = filters(said[other]["links"].get(standing.id, {}).get("sent", ()))
            if theirs != told:
                text = f"{key} was told by {other}, as either of them says, {_both(theirs, told)}"
                yield Complaint("table", text)
            there = behind(standings, key, other)
            whole = set().union(*(wanted.get(node, set()) for node in there))
            if offered is not None:
                here = behind(standings, other, key)
                near = set().union(*(offered.get(node, set()) for node in here))
                own = {one for one in whole if one.pattern.startswith("$")}
                whole = own | {one for one in whole if any(overlaps(one, a) for a in near)}
            yield from same(f"{key} was told by {other}", theirs, whole, covering)


def same(what: str, told: set[Filter], wanted: set[Filter], covering: bool) -> Iterator[Complaint]:
    """Whether somebody was told what is wanted, and nothing else."""
    if not covering:
        if told != wanted:
            yield Complaint("table", f"{what} {_both(told, wanted)}")
        return
    least = maximal(wanted)
    missing = {one for one in least if not any(covers(a, one) for a in told)}
    stale = {one for one in told if not any(covers(one, b) and covers(b, one) for b in least)}
    if missing:
        yield Complaint("table", f"{what} nothing of {_shown(missing)}")
    if stale:
        yield Complaint("table", f"{what} {_shown(stale)}, which is too much")
    if len(told) > len(least) and not stale:
        yield Complaint("table", f"{what} things that are equivalent: {_shown(told)}")


def behind(standings: Mapping[Key, Standing], here: Key, there: Key) -> list[Key]:
    """All nodes that are reached from one by a neighbour of it."""
    found, seen = [there], {here, there}
    for key in found:
        for other in standings[key].links.values():
            if other not in seen and other in standings:
                seen.add(other)
                found.append(other)
    return found


def _both(mine: set[Filter], theirs: set[Filter]) -> str:
    return f"{_shown(mine - theirs)} and should {_shown(theirs - mine)}"


def _shown(some: Iterable[Filter]) -> str:
    shown = [
        f"{one.pattern!r}{'!' if one.exact else ''} {one.selector} {one.band or ''}".rstrip()
        for one in sorted(some)
    ]
    return "{" + ", ".join(shown[:6]) + (", ..." if len(shown) > 6 else "") + "}"
