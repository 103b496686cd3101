"""How the root of a fragment looks for a place in another tree.

A root goes round its candidates, one numbered request at a time:

    REST     nothing is outstanding; the next round has a time, or there is nobody to ask
    LOOKING  connections are being opened, or compared; nothing is outstanding
    ASKING   one request is outstanding, at one candidate

There are three kinds of rounds. An orphan *repairs*: it asks the first candidate whose connection
is open, then everybody else, without a timer on the way. A newcomer *joins*: it opens a few
connections and asks the closest. A root that has been all round *searches* now and then: a few
candidates, the seeds among them, so that trees that were parted find each other.

When everybody has been asked, those that were merely full are asked once more, urgently. Where
somebody was busy or lost its own parent, the round goes on a moment later with those, and later
each time; who did not answer is asked once more. Otherwise the root rests until the next search.
The first of these comes soon, in case that others just lost their way, too.

A root is busy while it asks: it refuses smaller ids. So that those are not kept out for long by one
that asks round its own tree, it pauses between two requests once it has refused somebody, and ends
a round after a few refusals from its own tree.

Nothing here decides about rings: that the request is outstanding while it is, and over when it is
over, is all that `lstree` needs.
"""

from __future__ import annotations

from enum import Enum

from regraft.overlay.candidates import Known
from regraft.overlay.messages import NOBODY, Answer, Ask, Leave, Reason
from regraft.overlay.options import MS
from regraft.overlay.place import OTHERS_MAX, Peer, Place

AT_ONCE = 3  # connections opened at the same time
SEARCHED = 4  # seeds, and again others, of one search
OWN_MAX = 4  # refusals from the own tree end a round
NUMBER_BITS = 32


class Stage(Enum):
    """How far a root's search is."""

    REST = "rest"
    LOOKING = "looking"
    ASKING = "asking"


class Round(Enum):
    """Why it looks."""

    REPAIR = "repair"
    JOIN = "join"
    SEARCH = "search"


class Then(Enum):
    """What a refusal means for the candidate that sent it."""

    OWN = "own"  # it is in the own tree: no use for a while
    AGAIN = "again"  # it may say something else in a moment
    URGENT = "urgent"  # it would if nobody else did
    NO = "no"


AFTER = {
    Reason.OWN_TREE: Then.OWN,
    Reason.BUSY: Then.AGAIN,
    Reason.FULL: Then.URGENT,
    Reason.HELD_DOWN: Then.URGENT,
    Reason.LEAVING: Then.NO,
    Reason.LOST: Then.AGAIN,
    Reason.TOO_FAR: Then.NO,
    Reason.UNKNOWN: Then.NO,
}


class Seeking:
    """The search of one node, whenever it is a root."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.stage = Stage.REST
        self.round = Round.JOIN
        self.at_ns: int | None = None  # when something is due
        # Numbers of another life must not come again: an answer to one may still be on its way.
        self.number = (place.incarnation & (1 << NUMBER_BITS) - 1) << NUMBER_BITS
        self.key = -1  # the connection that the request went by
        self.replaces = b""  # the rid of the link that was lost
        self._first: list[str] = []
        self._heir = False
        self._told = False
        self._told_ns = 0  # until then nobody but `_first`, if that node only says "not now"
        self._better: list[str] = []
        self._sample: list[str] = []  # of a search
        self._tried: dict[str, None] = {}
        self._full: dict[str, None] = {}
        self._again: dict[str, None] = {}
        self._silent: dict[str, None] = {}  # did not answer in this round
        self._waiting: dict[str, int] = {}  # being dialled; until when that is waited for
        self._urgent = False  # those that were full are asked again
        self._own = 0  # refusals from the own tree
        self._refused_busy = False  # somebody, while the request was outstanding
        self._paused = False  # the round goes on after a rest
        self._survey_ns = 0  # until then round-trip times are compared
        self._patience_ns = 0  # until then only the best are asked
        self._backoff_ms = 0
        self._search_ms = 0  # until the next search: short at first, then longer

    @property
    def outstanding(self) -> bool:
        """Whether there is a request that may still be granted."""
        return self.stage is Stage.ASKING

    @property
    def idle(self) -> bool:
        """Whether it looks for other trees only because it is time to."""
        return self.round is Round.SEARCH

    @property
    def by_heir(self) -> bool:
        """Whether the request went to the heir that its parent named when it left."""
        peer = self._place.peers.get(self.key)
        return self._heir and peer is not None and any(name in self._first for name in peer.names)

    @property
    def firm(self) -> bool:
        """Whether it goes where people want it, and that node has not said anything yet."""
        if self.stage is Stage.LOOKING:
            return self._told and any(name not in self._tried for name in self._first)
        peer = self._place.peers.get(self.key)
        return self._told and peer is not None and any(name in self._first for name in peer.names)

    @property
    def _anybody(self) -> bool:
        """Whether there is anybody to ask, ever."""
        fixed = self._place.options.parent
        return fixed != self._place.address and bool(len(self._place.cache))

    # --------------------------------------------------------------------- life

    def begin(
        self,
        round: Round,
        now_ns: int,
        first: list[str] | None = None,
        heir: bool = False,
        told: bool = False,
    ) -> None:
        """Look for a place, from the beginning: at `first` before others.

        That may be an heir, or where people told it to go.
        """
        self._heir = heir
        self._told = told
        self._told_ns = now_ns + self._place.options.ask_ms * MS if told or heir else 0
        self.stage = Stage.LOOKING
        self.round = round
        self._first = first or []
        self._better = []
        self._sample = []
        self._tried, self._full, self._again, self._waiting = {}, {}, {}, {}
        self._silent = {}
        self._urgent = self._paused = False
        self._own = 0
        self._survey_ns = 0
        place = self._place
        if round is not Round.SEARCH:
            self._search_ms = 0
        else:
            self._sample = place.cache.for_search(SEARCHED, place.random, place.linked)
        self._patience_ns = now_ns + place.options.survey_ms * MS if round is Round.REPAIR else 0
        self._begin_survey(now_ns)
        self.step(now_ns)

    def stop(self) -> None:
        """There is a parent now, or nobody to look for one."""
        self.stage = Stage.REST
        self.at_ns = None
        self.key = -1
        self._waiting, self._again = {}, {}
        self._paused = self._refused_busy = False
        self._backoff_ms = 0

    def wait(self, now_ns: int, delay_ms: int) -> None:
        """Rest, and search after a while."""
        self.stop()
        self.at_ns = now_ns + self._jitter(delay_ms)

    def stirred(self, now_ns: int) -> None:
        """Somebody new is known to a root that had nobody to ask."""
        if self.stage is Stage.REST and self.at_ns is None and self._anybody:
            self.at_ns = now_ns + self._jitter(self._place.options.search_ms)

    def tick(self, now_ns: int) -> None:
        """The time may have come for something."""
        if self.at_ns is None or now_ns < self.at_ns:
            return
        if self.stage is Stage.REST:
            if self._again or self._paused:
                self._resume(now_ns)
            else:
                self.begin(Round.SEARCH, now_ns)
        elif self.stage is Stage.ASKING:
            self._unanswered(now_ns)
        else:
            for address, until_ns in list(self._waiting.items()):
                if until_ns <= now_ns:
                    del self._waiting[address]
                    self._failed((address,), now_ns)
            self.step(now_ns)

    # ------------------------------------------------------------- what happens

    def refused_busy(self) -> None:
        """Somebody was refused because of the request: there will be a pause after it."""
        self._refused_busy = True

    def _unanswered(self, now_ns: int) -> None:
        """The candidate, or its root, says nothing. A round does not go on for it alone.

        It may be dead, and a connection that it had opened is only given up after a while.
        """
        self._place.count("unanswered")
        names = self._place.peers[self.key].names
        again = self.round is not Round.SEARCH and names[0] not in self._silent
        self._silent.update(dict.fromkeys(names))
        self._failed(names, now_ns)
        self._give_up(again)
        self.step(now_ns)

    def cancel(self, now_ns: int) -> None:
        """Give up the request, because another was granted; go on in a moment."""
        self._place.count("cancelled")
        self._give_up()
        self._rest(now_ns)

    def refused(self, peer: Peer, answer: Answer, now_ns: int) -> None:
        """The candidate said no; it may know better ones."""
        if not self.outstanding or (peer.key, answer.number) != (self.key, self.number):
            return
        self.stage = Stage.LOOKING
        self.key = -1
        cache = self._place.cache
        reason = Reason(answer.reason) if answer.reason in AFTER else Reason.UNKNOWN
        self._place.count(f"refused-{reason.name.lower().replace('_', '-')}")
        then = AFTER[reason]
        if then is Then.OWN:
            cache.own(peer.address, now_ns)
            self._own += 1
        elif then is Then.AGAIN:
            self._again.update(dict.fromkeys(peer.names))
        elif then is Then.URGENT:
            self._full.update(dict.fromkeys(peer.names))
        named = [
            candidate
            for candidate in answer.candidates[: OTHERS_MAX + 1]
            if candidate.node != self._place.me and candidate.address
        ]
        for candidate in named:
            cache.note(candidate, now_ns)
        # The last to be named come first: downwards, to where there is room.
        better = [candidate.address for candidate in named]
        self._better = list(dict.fromkeys([*better, *self._better]))
        if named:
            self._begin_survey(now_ns)
        if self._own >= OWN_MAX:
            self._paused = self.round is not Round.SEARCH  # there are others, not tried yet
            self._rest(now_ns)
        elif self._refused_busy:
            self._paused = True
            self._rest(now_ns)
        elif then is Then.AGAIN and now_ns < self._told_ns and peer.address in self._first:
            self._rest(now_ns)
        else:
            self.step(now_ns)

    def connected(self, peer: Peer, now_ns: int) -> None:
        """A connection is there."""
        for name in peer.names:
            self._waiting.pop(name, None)
        self.stirred(now_ns)
        self.step(now_ns)

    def closed(self, peer: Peer, now_ns: int) -> None:
        """A connection is gone; if the request went by it, so is that."""
        if self.outstanding and peer.key == self.key:
            self.stage = Stage.LOOKING
            self.key = -1
            self._failed(peer.names, now_ns)
            self.step(now_ns)

    def unreachable(self, address: str, now_ns: int) -> None:
        """A connection could not be opened."""
        if self._waiting.pop(address, None) is not None:
            self._spent((address,))
            self.step(now_ns)

    # ---------------------------------------------------------------- the round

    def step(self, now_ns: int) -> None:
        """Ask somebody, open connections, or rest."""
        if self.stage is not Stage.LOOKING:
            return
        place = self._place
        order = self._order(now_ns)
        searching = self.round is Round.SEARCH
        if now_ns < self._patience_ns or searching:
            # Open connections of an orphan mostly lead to its own subtree, those of a root that
            # searches to its own tree: the best ones first, though they have to be dialled.
            order = order[:AT_ONCE]
        ready = [peer for known in order if (peer := place.spare_to(known.address))]
        if now_ns < self._survey_ns and self._survey(order, ready, now_ns):
            return
        if searching or not ready:
            self._dial(order, now_ns)
        if ready and not (searching and self._waiting):
            self._ask(self._choose(ready), now_ns)
            return
        if self._waiting:
            self.at_ns = min(self._waiting.values())
            if now_ns < self._patience_ns:
                self.at_ns = min(self.at_ns, self._patience_ns)
            return
        self._exhausted(now_ns)

    def _order(self, now_ns: int) -> list[Known]:
        """Whom to ask, the best first; nobody twice."""
        place, cache = self._place, self._place.cache
        if place.options.parent:
            named = [*self._first, place.options.parent]
        elif self.round is Round.SEARCH:
            named = [*self._first, *self._sample, *self._better]
        else:
            named = []
        if named:
            order = [known for name in dict.fromkeys(named) if (known := cache.get(name))]
        elif self.round is Round.SEARCH:
            order = []
        else:
            order = cache.for_repair(place.around(self._better), now_ns)
        order = [known for known in order if self._worth(known)]
        named_first = [known for known in order if known.address in self._first]
        return named_first or order  # nobody else while one of those may answer

    def _worth(self, known: Known) -> bool:
        place = self._place
        return (
            known.address not in self._tried
            and known.address not in place.own_addresses
            and known.node != place.me
            and not place.linked(known.address)
        )

    def _begin_survey(self, now_ns: int) -> None:
        """A newcomer that has a choice compares for a while."""
        options = self._place.options
        if self.round is Round.JOIN and not options.parent:
            self._survey_ns = now_ns + options.survey_ms * MS

    def _survey(self, order: list[Known], ready: list[Peer], now_ns: int) -> bool:
        """Whether it is worth while to wait for round-trip times; opens connections for it."""
        cache = self._place.cache
        self._dial(order[:AT_ONCE], now_ns)
        unmeasured = any(
            (known := cache.get(peer.address)) is not None and known.rtt_us is None
            for peer in ready[:AT_ONCE]
        )
        if not self._waiting and not unmeasured:
            return False
        self.at_ns = min([self._survey_ns, *self._waiting.values()])
        return True

    def _choose(self, ready: list[Peer]) -> Peer:
        """The one to ask: a newcomer takes the closest, an orphan the first."""
        if self.round is not Round.JOIN:
            return ready[0]
        cache = self._place.cache

        def distance(peer: Peer) -> int:
            known = cache.get(peer.address)
            return known.rtt_us if known and known.rtt_us is not None else 1 << 62

        return min(ready[:AT_ONCE], key=distance)

    def _dial(self, order: list[Known], now_ns: int) -> None:
        """Open connections to the first of those that have none, a few at a time."""
        for known in order:
            if len(self._waiting) >= AT_ONCE:
                break
            address = known.address
            if address not in self._waiting and self._place.spare_to(address) is None:
                self._waiting[address] = now_ns + self._place.options.ask_ms * MS
                self._place.dial(address, now_ns)

    def _ask(self, peer: Peer, now_ns: int) -> None:
        """Send a request."""
        place = self._place
        self.number += 1
        self.key = peer.key
        self.stage = Stage.ASKING
        self.at_ns = now_ns + place.options.ask_ms * MS
        self._tried.update(dict.fromkeys(peer.names))
        # Whom it was told to ask, by people or by a parent that leaves, has to take it.
        urgent = any(name in self._full or name in self._first for name in peer.names)
        place.count("asked")
        place.send(peer, Ask(place.me, self.number, 0, urgent, self.replaces, place.address))

    def _give_up(self, again: bool = True) -> None:
        """The request is over, and the candidate may know."""
        peer = self._place.peers[self.key]
        if again:
            self._again.update(dict.fromkeys(peer.names))
        self._place.send(peer, Leave(Reason.CANCELLED, NOBODY))
        self.stage = Stage.LOOKING
        self.key = -1

    def _failed(self, names: tuple[str, ...], now_ns: int) -> None:
        """Nobody answers there."""
        for name in names:
            self._place.cache.unreachable(name, now_ns)
        self._spent(names)

    def _spent(self, names: tuple[str, ...]) -> None:
        """Not these again in this round; but there is no other than a fixed parent."""
        self._tried.update(dict.fromkeys(names))
        if self._place.options.parent in names:
            self._again[self._place.options.parent] = None

    def _exhausted(self, now_ns: int) -> None:
        """Everybody was asked."""
        if self._full and not self._urgent:
            self._urgent = True
            for name in self._full:
                self._tried.pop(name, None)
            self.step(now_ns)
            return
        self._rest(now_ns)

    def _rest(self, now_ns: int) -> None:
        """Stay root for a moment, or until the next search."""
        options = self._place.options
        self.stage = Stage.REST
        self.key = -1
        self._waiting = {}
        self._refused_busy = False
        if self._again or self._paused:
            self._backoff_ms = min(max(2 * self._backoff_ms, options.retry_ms), options.ask_ms)
            self.at_ns = now_ns + self._jitter(self._backoff_ms)
        else:
            self._backoff_ms = 0
            least_ms = max(options.ask_ms // 4, 1)
            self._search_ms = min(max(2 * self._search_ms, least_ms), options.search_ms)
            self.at_ns = now_ns + self._jitter(self._search_ms) if self._anybody else None

    def _resume(self, now_ns: int) -> None:
        """Ask those again that may say something else now, and whoever is left."""
        for name in self._again:
            self._tried.pop(name, None)
        self._again = {}
        self._paused = False
        self._own = 0
        self.stage = Stage.LOOKING
        self.step(now_ns)

    def _jitter(self, delay_ms: int) -> int:
        """About that long, so that not all do the same at the same time."""
        return int(delay_ms * MS * (0.5 + self._place.random.random()))
