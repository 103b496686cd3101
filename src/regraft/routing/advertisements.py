"""Advertisements: what publishers offer, so that interests go only where something is offered.

An advertisement is a filter that somebody's messages will satisfy. It is told to neighbours as an
interest is, by a `Forwarding` of its own. Where a network routes by advertisements, a neighbour is
told only of interests that *overlap* something it offers: each link has a `Gate`.

Rules:

- A new link is told offers at once, and interests once it has said what it offers.
- Topics that begin with `$` are those of the nodes themselves. They need no offer.
- Whether two filters overlap is "no" only where that is certain.
- What is offered is *heeded* when every interest in it has come. A node answers each frame of
  offers with HEEDED once it has passed them on, all whom it told have answered, and the interests
  that follow were told. So an answer at the publisher's node means that all subscribers are known
  there who were subscribed when it asked. A link that is lost has nothing to answer any more, nor
  has a neighbour that left, whose link stays until others are in its place.
- Of what a neighbour offers one set is waited for at a time, and what comes meanwhile is another.
- An answer concerns numbers: all that was offered up to one. So what was offered and heeded before
  is not asked for again, and an offer that another covers costs nobody anything.

Bugs that tests plant: "overlap-as-cover", an interest passes only if an offer covers it;
"offers-late", interests that were there before an offer are not told because of it; "unheeded",
nobody waits for answers; "brought-is-bound", an interest with a filter that an application brought
passes only if an offer covers all the rest of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from regraft.errors import PeerError
from regraft.model.selector.cover import Form, form_covers, form_overlaps
from regraft.model.topic_cover import levels_of, levels_overlap
from regraft.routing.filters import Filter
from regraft.routing.forms import form_of_filter
from regraft.routing.messages import Heeded, Mark, Numbered

if TYPE_CHECKING:
    from regraft.routing.forwarding import Announcement, Forwarding

_FORMS_CACHED = 16_384
WILD = "+"
HERE = -1  # in place of a link: a publisher of this node


@lru_cache(_FORMS_CACHED)
def _form(filter: Filter) -> Form:
    return form_of_filter(*filter[:3])[0]


def overlap(one: Filter, other: Filter) -> bool:
    """Whether some message may satisfy both; what is not certain counts as yes."""
    if not levels_overlap(levels_of(one.pattern, one.exact), levels_of(other.pattern, other.exact)):
        return False
    if not one.selector or not other.selector:
        return True
    return form_overlaps(_form(one), _form(other))


def is_own(filter: Filter) -> bool:
    """Whether a filter is about topics that nodes use themselves."""
    return filter.pattern.startswith("$")


class Gate:
    """What a neighbour offers: only interests that overlap it are told."""

    def __init__(self, bugs: frozenset[str] = frozenset()) -> None:
        self.open = False  # it has said all that it offers
        self.complete = False  # and whatever is wanted of that is known here
        self.step = 0  # at which that was so
        self._as_cover = "overlap-as-cover" in bugs
        self._brought = "brought-is-bound" in bugs
        self._offers: dict[str, Counter[Filter]] = {}  # by the first level of the topic

    def add(self, filter: Filter) -> None:
        """It offers this, once more if it does already."""
        first = levels_of(filter.pattern, filter.exact).names[0]
        self._offers.setdefault(first, Counter())[filter] += 1

    def remove(self, filter: Filter) -> None:
        """Once less."""
        first = levels_of(filter.pattern, filter.exact).names[0]
        some = self._offers[first]
        some[filter] -= 1
        if not some[filter]:
            del some[filter]
            if not some:
                del self._offers[first]

    def passes(self, filter: Filter) -> bool:
        """Whether an interest is told."""
        if is_own(filter):
            return True
        first = levels_of(filter.pattern, filter.exact).names[0]
        firsts = self._offers if first == WILD else (first, WILD)
        for name in firsts:
            for offer in self._offers.get(name, ()):
                if self._as_cover or (self._brought and filter.name):
                    if form_covers(_form(offer), _form(filter)):
                        return True
                elif overlap(filter, offer):
                    return True
        return False


@dataclass(slots=True)
class Waiter:
    """Somebody waits until all whom something was told have heeded it."""

    key: int  # a link, or HERE
    number: int  # up to which that link is answered; or what a publisher is known by
    first: bool = False  # the link has said everything with this
    pending: dict[int, int | None] = field(default_factory=dict)  # up to which number; if known


class Advertising:
    """Offers of everybody, told to neighbours, and the gates of the interests."""

    def __init__(
        self, offers: Forwarding, interests: Forwarding, bugs: frozenset[str] = frozenset()
    ) -> None:
        self.offers = offers
        self._interests = interests
        interests.gated = True
        self._unheeded = "unheeded" in bugs
        self._heeded: dict[int, int] = {}  # by link, up to which number
        self._left: set[int] = set()  # links that answer no more
        self._offered: dict[int, dict[int, Filter]] = {}  # by link, what it offers
        self._waiters: dict[int, Waiter] = {}
        self._last = 0
        self._next: dict[int, Waiter | None] = {}  # by link that is not answered yet, what is more
        self._ready: list[int] = []  # publishers whose offers are heeded

    # ---------------------------------------------------------------------- links

    def added(self, key: int, now_ns: int) -> None:
        """There is a link; the interests know of it already."""
        self.offers.added(key, b"", now_ns)
        self._heeded[key] = 0
        self._offered[key] = {}

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> None:
        """It is no more: nothing more is to be expected from there."""
        self.offers.lost(key, rid, planned, now_ns)
        self.left(key)
        self._left.discard(key)
        del self._heeded[key], self._offered[key]

    def left(self, key: int) -> None:
        """A neighbour answers no more, though its link may stay for a while."""
        self._left.add(key)
        self._next.pop(key, None)
        for id, waiter in list(self._waiters.items()):
            if waiter.key == key:
                del self._waiters[id]
            elif waiter.pending.pop(key, -1) != -1:
                self._look(id)

    def heard(
        self, key: int, adds: list[Numbered], removes: Iterable[int], synced: bool = False
    ) -> None:
        """A neighbour offers something, or no more; whether that is all it offers."""
        removes = list(removes)
        offered = self._offered[key]
        self.offers.received(key, adds, removes)
        offered.update(adds)
        gone = [offered.pop(number) for number in removes]
        self._interests.offered(key, [filter for _, filter in adds], gone)
        if synced:
            self._interests.open_gate(key)
        if adds or synced:
            waiter = Waiter(key, max((number for number, _ in adds), default=0), synced)
            if key not in self._next:
                self._next[key] = None
                self._wait(waiter)
            elif (more := self._next[key]) is not None:
                more.number, more.first = max(more.number, waiter.number), more.first or synced
            else:
                self._next[key] = waiter

    def offered_by(self, key: int) -> int:
        """How much a neighbour offers."""
        return len(self._offered[key])

    # -------------------------------------------------------------------- waiting

    def wait(self, number: int) -> None:
        """A publisher waits until what it offers is heeded; `ready` says that it is."""
        self._wait(Waiter(HERE, number))

    def _wait(self, waiter: Waiter) -> None:
        self._last += 1
        self._waiters[self._last] = waiter
        if not self._unheeded:
            for key in self._heeded:
                if key != waiter.key and key not in self._left:
                    waiter.pending[key] = None
                    self.offers.say(key, Mark(self._last))
        self._look(self._last)

    def heeded(self, key: int, number: int) -> None:
        """A neighbour has said all that is wanted of what it was offered, up to a number."""
        if number > self.offers.last_number(key):
            raise PeerError("protocol-violation", f"{number} was not offered, and is heeded")
        self._heeded[key] = max(number, self._heeded[key])
        for id, waiter in list(self._waiters.items()):
            until = waiter.pending.get(key)
            if until is not None and until <= number:
                del waiter.pending[key]
                self._look(id)

    def _look(self, id: int) -> None:
        waiter = self._waiters[id]
        if waiter.pending:
            return
        del self._waiters[id]
        if waiter.key not in self._heeded:
            self._ready.append(waiter.number)
            return
        if waiter.first:
            self._interests.complete_gate(waiter.key)
        if waiter.number:
            self._interests.say(waiter.key, Heeded(waiter.number))
        more = self._next.pop(waiter.key)
        if more is not None:
            self._next[waiter.key] = None
            self._wait(more)

    def ready(self) -> list[int]:
        """Whose offers are heeded since this was asked last."""
        ready, self._ready = self._ready, []
        return ready

    # ----------------------------------------------------------------------- work

    def announce(self, now_ns: int) -> list[Announcement]:
        """What neighbours have to be told of offers now."""
        found = self.offers.announce(now_ns)
        for key, message in self.offers.said():
            if type(message) is not Mark:
                continue
            waiter = self._waiters.get(message.id)
            if waiter is None or key not in waiter.pending:
                continue
            until = self.offers.last_number(key)
            if until <= self._heeded[key]:
                del waiter.pending[key]
                self._look(message.id)
            else:
                waiter.pending[key] = until
        return found

    @property
    def next_ns(self) -> int | None:
        """When `announce` has something to do, if nothing else happens."""
        return self.offers.next_ns

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)
