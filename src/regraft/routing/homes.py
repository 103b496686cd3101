"""Which nodes keep messages for mailboxes, and for which: known to everybody, by version.

A *home* is a journal with mailboxes or streams. It numbers all changes of what it keeps messages
for, and only it does. Every node passes on to its neighbours what they do not know yet. So the node
where a persistent message begins knows all homes that must have it, however the tree looks.

Rules:

- A home's versions grow, also over restarts: the upper half of a version is which life of its node
  it is from. All that a home had said before is replaced by what it says first in a new life.
- What is *removed* is remembered by its version, as long as there are not too many of those;
  whoever knows less than the oldest of them is told everything.
- A home that is *gone* was declared so by people. It is only heard of again if it comes back.
- Neighbours say first how much they know; then each is told what is newer, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from regraft.routing.filters import Filter, size_of

REMOVED_MAX = 1000  # that are remembered, of one home
TOLD_BYTES = 16_384  # in one frame, about
LIFE = 32  # bits of a version below the number of a life


class Durable(NamedTuple):
    """A mailbox or a stream, and what it takes."""

    number: int
    name: str
    filter: Filter


class Update(NamedTuple):
    """What somebody has to be told of a home; or a part of it."""

    journal: bytes
    node: bytes
    name: str
    version: int
    since: int
    add: tuple[Durable, ...] = ()
    remove: tuple[int, ...] = ()
    whole: bool = False
    first: bool = True
    last: bool = True
    gone: bool = False


class Change(NamedTuple):
    """What is different now."""

    home: Home
    add: list[Durable]
    remove: list[int]


@dataclass(slots=True, eq=False)
class Home:
    """What is known of a home."""

    journal: bytes
    node: bytes = b""
    name: str = ""
    version: int = 0
    floor: int = 0  # what was removed up to this version is forgotten
    gone: bool = False
    interests: dict[int, Durable] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)  # the version of each of them
    removed: dict[int, int] = field(default_factory=dict)  # and of what is no more

    def add(self, durable: Durable, version: int) -> None:
        """It keeps messages for one more."""
        self.interests[durable.number] = durable
        self.since[durable.number] = version

    def remove(self, number: int, version: int) -> bool:
        """One of them is no more; whether it was there."""
        self.removed[number] = version
        self.since.pop(number, None)
        while len(self.removed) > REMOVED_MAX:
            oldest = next(iter(self.removed))
            self.floor = max(self.floor, self.removed.pop(oldest))
        return self.interests.pop(number, None) is not None

    def begin(self, version: int) -> None:
        """All of it is new."""
        self.version = self.floor = version
        self.removed.clear()
        self.since = dict.fromkeys(self.interests, version)


class Homes:
    """All homes that are known here, and what neighbours know of them."""

    def __init__(self, homes_max: int, interests_max: int) -> None:
        self.known: dict[bytes, Home] = {}
        self.mine: Home | None = None
        self.interests = 0
        self.refused = 0  # updates beyond the limits
        self._homes_max = homes_max
        self._interests_max = interests_max
        self._told: dict[int, dict[bytes, int]] = {}  # by link: what it knows, if it said so
        self._named: dict[tuple[int, bytes], set[int]] = {}  # of what is told in several parts
        self._stirred: dict[bytes, None] = {}  # homes of which there is something to tell

    # ------------------------------------------------------------------------- this node

    def be(self, journal: bytes, node: bytes, name: str, life: int) -> Home:
        """This node is a home, in one of its lives."""
        home = self.mine = Home(journal, node, name)
        home.begin(life << LIFE | 1)
        self.known[journal] = home
        self._stirred[journal] = None
        return home

    def load(self, home: Home) -> None:
        """What was known before this node was started."""
        home.floor = home.version
        home.since = dict.fromkeys(home.interests, home.version)
        self.known[home.journal] = home
        self.interests += len(home.interests)

    def hold(self, durable: Durable) -> None:
        """This node keeps messages for one more."""
        assert self.mine is not None
        self.mine.version += 1
        self.mine.add(durable, self.mine.version)
        self._stirred[self.mine.journal] = None

    def release(self, number: int) -> None:
        """And for one less."""
        if self.mine is not None and number in self.mine.interests:
            self.mine.version += 1
            self.mine.remove(number, self.mine.version)
            self._stirred[self.mine.journal] = None

    def forget(self, journal: bytes) -> Change:
        """A home will never come back: everybody is to know."""
        home = self.known[journal]
        removed = list(home.interests)
        self.interests -= len(removed)
        home.interests.clear()
        home.gone = True
        home.begin(home.version | (1 << LIFE) - 1)
        self._stirred[journal] = None
        return Change(home, [], removed)

    # ------------------------------------------------------------------------ neighbours

    def linked(self, link: int) -> list[tuple[bytes, int]]:
        """There is a new link: what is known here, to be said there first."""
        return [(home.journal, home.version) for home in self.known.values() if home.version]

    def unlinked(self, link: int) -> None:
        """A link is no more."""
        self._told.pop(link, None)
        for key in [key for key in self._named if key[0] == link]:
            del self._named[key]

    def heard(self, link: int, known: Iterable[tuple[bytes, int]]) -> None:
        """A neighbour says what it knows; from now on it is told what is newer."""
        self._told[link] = dict(known)
        self._stirred.update(dict.fromkeys(self.known))
        mine = self.mine
        if mine is not None:
            self._outdo(mine, self._told[link].get(mine.journal, 0))

    def _outdo(self, mine: Home, version: int) -> None:
        """Somebody knows more of this node than it has said: it says all again."""
        if version > mine.version:
            mine.begin(version + 1)
            self._stirred[mine.journal] = None

    def take(self, link: int, update: Update) -> Change | None:
        """A neighbour tells something; what of it is new. None: nothing is."""
        told = self._told.setdefault(link, {})
        if update.last:
            told[update.journal] = max(told.get(update.journal, 0), update.version)
        if self.mine is not None and update.journal == self.mine.journal:
            self._outdo(self.mine, update.version)
            return None
        home = self.known.get(update.journal)
        have = home.version if home is not None else 0
        if update.version <= have:
            return None
        if not update.whole and update.since > have:
            return None  # it does not follow what is known; whoever has all of it will tell
        added = len(update.add)
        if home is None and len(self.known) >= self._homes_max:
            self.refused += 1
            return None
        if self.interests + added > self._interests_max:
            self.refused += 1
            return None
        if home is None:
            home = self.known[update.journal] = Home(update.journal)
        return self._apply(link, home, update)

    def _apply(self, link: int, home: Home, update: Update) -> Change:
        home.node, home.name = update.node, update.name
        before = len(home.interests)
        add = [one for one in update.add if home.interests.get(one.number) != one]
        for one in update.add:
            home.add(one, update.version)
        remove = [number for number in update.remove if home.remove(number, update.version)]
        if update.whole:
            key = (link, update.journal)
            named = set() if update.first else self._named.get(key, set())
            named.update(one.number for one in update.add)
            if update.last:
                self._named.pop(key, None)
                unnamed = [number for number in home.interests if number not in named]
                remove += [n for n in unnamed if home.remove(n, update.version)]
            else:
                self._named[key] = named
        if update.last:
            home.version, home.gone = update.version, update.gone
            if update.whole:
                home.floor = update.version
                home.removed.clear()
            self._stirred[home.journal] = None
        self.interests += len(home.interests) - before
        return Change(home, add, remove)

    @property
    def stirred(self) -> bool:
        """Whether neighbours may have to be told something."""
        return bool(self._stirred)

    def tell(self) -> Iterator[tuple[int, Update]]:
        """What neighbours have to be told now, each once."""
        stirred, self._stirred = self._stirred, {}
        for journal in stirred:
            home = self.known.get(journal)
            for link, told in self._told.items() if home is not None else ():
                assert home is not None
                since = told.get(journal, 0)
                if since < home.version:
                    told[journal] = home.version
                    for update in parts(home, since):
                        yield link, update


def parts(home: Home, since: int) -> Iterator[Update]:
    """What somebody who knows a home up to a version has to be told, in parts of bounded size."""
    whole = since < home.floor
    chosen = [n for n in home.interests if whole or home.since[n] > since]
    remove = [] if whole else [n for n, version in home.removed.items() if version > since]
    groups: list[list[Durable]] = [[]]
    room = TOLD_BYTES - 10 * len(remove)
    for number in chosen:
        one = home.interests[number]
        size = 32 + size_of(one.filter) + 4 * len(one.name)
        if size > room and groups[-1]:
            groups.append([])
            room = TOLD_BYTES
        groups[-1].append(one)
        room -= size
    head = (home.journal, home.node, home.name, home.version, since)
    last = len(groups) - 1
    for place, group in enumerate(groups):
        removed = () if place else tuple(remove)
        ends = (place == 0, place == last)
        yield Update(*head, tuple(group), removed, whole, *ends, home.gone)
