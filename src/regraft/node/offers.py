"""What the clients of a node offer to publish, and whether anybody wants it.

Rules:

- Wanted is what overlaps anything in the match index, whoever it is for: subscriptions, groups,
  mailboxes and streams of this node, other nodes and their mailboxes.
- Of each offer one such interest is known, its *witness*. So an interest that comes is compared
  with offers that have none, and one that goes matters where it was the witness: then another is
  looked for, a little at a time, and until that is done nothing has changed.
- A publisher is told at once that it is wanted, and only after a while that it is not: an interest
  that is lost with a link is mostly back soon, by another one.
- Where the network routes by advertisements, offers are told to neighbours and count once they are
  heeded; then clients may publish only what they offer, or what their node offers for all of them
  (its *standing* offers). A node that keeps messages which it will publish itself, later, offers
  everything as long as it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from regraft.errors import LocalError, RegraftError
from regraft.kernels.plan import plan_of
from regraft.limits import Limits
from regraft.model.topics import check_pattern, matches
from regraft.node.connection import OPEN, Connection
from regraft.node.deadlines import Deadlines
from regraft.node.event import Now
from regraft.node.outflow import Outflow
from regraft.node.router import Authorize, Router
from regraft.routing.advertisements import Advertising, overlap
from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL
from regraft.wire import native, offers

COMPARED_AT_ONCE = 200  # interests, for all offers together, in one step
NOBODY = -1
EVERYTHING = Filter("#", False, "")


@dataclass(slots=True, eq=False)
class Offer:
    """What a client will publish."""

    key: int
    id: int
    filter: Filter
    serial: int
    heeded: bool = False  # all who want it are known
    counts: bool = False  # the client was told that it counts
    wanted: bool = True  # as the client was told
    witness: int = NOBODY  # an interest that overlaps it
    search: list[int] = field(default_factory=list)  # interests among which one is looked for
    searching: bool = True
    quiet_ns: int = 0  # when the client is told that nobody wants it


class Offers:
    """The offers of all clients."""

    def __init__(
        self,
        limits: Limits,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        deadlines: Deadlines,
        authorize: Authorize,
    ) -> None:
        self._limits = limits
        self._router = router
        self._outflow = outflow
        self._connections = connections
        self._deadlines = deadlines
        self._authorize = authorize
        self._advertising: Advertising | None = None
        self._standing: list[Filter] = []
        self._stir: Callable[[], None] = lambda: None
        self._blind = False
        self._quiet_ns = 0
        self._own = False  # the node offers everything
        self._offers: dict[int, dict[int, Offer]] = {}  # by connection and id
        self._by_serial: dict[int, Offer] = {}
        self._serial = 0
        self._live: Counter[int] = Counter()  # interests, while there are offers
        self._alone: dict[Offer, None] = {}  # without a witness
        self._witnesses: dict[int, dict[Offer, None]] = {}
        self._news: dict[Offer, None] = {}  # whose clients may have to be told something
        self.stirred = False  # there is something to do

    def join(
        self,
        advertising: Advertising | None,
        standing: tuple[str, ...],
        quiet_ms: int,
        stir: Callable[[], None],
        bugs: frozenset[str],
    ) -> None:
        """There is a network, which may route by advertisements."""
        self._quiet_ns = quiet_ms * 1_000_000
        self._blind = "quench-stays" in bugs
        if advertising is None:
            return
        self._advertising, self._stir = advertising, stir
        self._standing = [Filter(pattern, False, "") for pattern in standing]
        for filter in self._standing:
            advertising.offers.hold(LOCAL, filter)
        self._router.offered = self._may_publish

    @property
    def required(self) -> bool:
        """Whether what is published must be offered."""
        return self._advertising is not None

    # -------------------------------------------------------------------- frames

    def advertise(self, c: Connection, message: offers.Advertise, now: Now) -> None:
        """A client offers something: look who wants it, and tell it once that is known."""
        try:
            filter = self._check(c, message)
        except RegraftError as error:
            report = native.Error.of(error, subscription=message.id)
            self._outflow.send_in_place(c, report, now)
            return
        if not self._by_serial:
            self._live = Counter(self._router.interests())
            self._router.on_interest = self._interest
        self._serial += 1
        offer = Offer(c.key, message.id, filter, self._serial)
        self._offers.setdefault(c.key, {})[message.id] = offer
        self._by_serial[offer.serial] = offer
        self._look_for(offer)
        if self._advertising is None:
            offer.heeded = True
        else:
            self._advertising.offers.hold(LOCAL, filter)
            self._advertising.wait(offer.serial)
            self._stir()

    def _check(self, c: Connection, message: offers.Advertise) -> Filter:
        assert c.session is not None
        limits, mine = self._limits, self._offers.get(c.key, {})
        if message.id == 0:
            raise LocalError("bad-pattern", "an advertisement's id must be above 0")
        if message.id in mine:
            text = f"this session already has an advertisement {message.id}"
            raise LocalError("subscription-in-use", text)
        check_pattern(message.pattern)
        if message.pattern.startswith("$"):
            raise LocalError("bad-pattern", "topics that begin with $ need no advertisement")
        text = ""
        if message.selector:
            text = plan_of(message.selector, limits.selector_bytes).text or ""
        if len(mine) >= limits.offers_per_session:
            most = f"{limits.offers_per_session} advertisements at most (limit offers_per_session)"
            raise LocalError("limit-exceeded", f"a session has {most}")
        if len(self._by_serial) >= limits.offers:
            most = f"{limits.offers} advertisements at most (limit offers)"
            raise LocalError("limit-exceeded", f"this node has {most}")
        if not self._authorize(c.session.principal, "publish", message.pattern):
            text = f"{c.session.principal} may not publish to {message.pattern!r}"
            raise LocalError("not-authorized", text)
        return Filter(message.pattern, message.exact, text)

    def unadvertise(self, c: Connection, message: offers.Unadvertise, now: Now) -> None:
        """A client offers something no longer."""
        offer = self._offers.get(c.key, {}).get(message.id)
        if offer is None:
            text = f"this session has no advertisement {message.id}"
            error = LocalError("unknown-subscription", text)
            report = native.Error.of(error, subscription=message.id)
            self._outflow.send_in_place(c, report, now)
        else:
            self._forget(offer)

    def leave(self, key: int) -> None:
        """A client is gone, and its offers with it."""
        for offer in list(self._offers.get(key, {}).values()):
            self._forget(offer)

    def _forget(self, offer: Offer) -> None:
        mine = self._offers[offer.key]
        del mine[offer.id], self._by_serial[offer.serial]
        if not mine:
            del self._offers[offer.key]
        self._alone.pop(offer, None)
        self._news.pop(offer, None)
        self._drop_witness(offer)
        if self._advertising is not None:
            self._advertising.offers.release(LOCAL, offer.filter)
            self._router.regroup()  # what it may publish has changed
            self._stir()
        if not self._by_serial:
            self._live = Counter()
            self._router.on_interest = None

    # ------------------------------------------------------------------- routing

    def heeded(self, serials: list[int]) -> None:
        """All who want these are known."""
        for serial in serials:
            offer = self._by_serial.get(serial)
            if offer is not None:
                offer.heeded = True
                self._note(offer)
                self._router.regroup()

    def _may_publish(self, key: int, topic: str) -> bool:
        mine = self._offers.get(key, {}).values()
        return any(
            offer.heeded and matches(offer.filter.pattern, topic, offer.filter.exact)
            for offer in mine
        ) or any(matches(filter.pattern, topic, filter.exact) for filter in self._standing)

    def keep_own(self, needed: bool) -> None:
        """The node will publish something by itself, or will not: nobody knows yet what."""
        if self._advertising is not None and needed != self._own:
            self._own = needed
            forwarding = self._advertising.offers
            (forwarding.hold if needed else forwarding.release)(LOCAL, EVERYTHING)
            self._stir()

    # ----------------------------------------------------------------- witnesses

    def _interest(self, number: int, more: bool, link: bool) -> None:
        """Somebody wants something, or no more."""
        if more:
            self._live[number] += 1
            if self._live[number] == 1 and self._alone and not (self._blind and link):
                filter = Filter(*self._router.describe(number))
                for offer in [one for one in self._alone if overlap(one.filter, filter)]:
                    self._found(offer, number)
            return
        self._live[number] -= 1
        if self._live[number] <= 0:
            del self._live[number]
            for offer in self._witnesses.pop(number, ()):
                offer.witness = NOBODY
                self._look_for(offer)

    def _look_for(self, offer: Offer) -> None:
        offer.search, offer.searching = list(self._live), True
        self._alone[offer] = None
        self.stirred = True

    def _found(self, offer: Offer, number: int) -> None:
        self._alone.pop(offer, None)
        offer.witness, offer.search, offer.searching = number, [], False
        offer.quiet_ns = 0
        self._witnesses.setdefault(number, {})[offer] = None
        self._note(offer)

    def _note(self, offer: Offer) -> None:
        self._news[offer] = None
        self.stirred = True

    def _drop_witness(self, offer: Offer) -> None:
        found = self._witnesses.get(offer.witness)
        if found is not None:
            found.pop(offer, None)
            if not found:
                del self._witnesses[offer.witness]

    # ---------------------------------------------------------------------- work

    def work(self, now: Now) -> None:
        """Compare some, and tell clients what has changed."""
        self.stirred = False
        left = COMPARED_AT_ONCE
        for offer in [one for one in self._alone if one.searching]:
            left = self._compare(offer, left)
        if any(offer.searching for offer in self._alone):
            self.stirred = True
        news, self._news = self._news, {}
        for offer in news:
            self._tell(offer, now)

    def tick(self) -> None:
        """Some of those whom nobody wants may be told so by now."""
        for offer in self._alone:
            if offer.quiet_ns:
                self._note(offer)

    def _compare(self, offer: Offer, left: int) -> int:
        while offer.search and left > 0:
            number = offer.search.pop()
            left -= 1
            if number in self._live and overlap(
                offer.filter, Filter(*self._router.describe(number))
            ):
                self._found(offer, number)
                return left
        offer.searching = bool(offer.search)
        if not offer.searching:
            self._note(offer)
        return left

    def _tell(self, offer: Offer, now: Now) -> None:
        c = self._connections.get(offer.key)
        if c is None or c.state is not OPEN or not offer.heeded or offer.searching:
            return
        wanted = offer.witness != NOBODY
        if not offer.counts:
            offer.counts, offer.wanted = True, wanted
            self._outflow.send_in_place(c, offers.Advertised(offer.id, wanted), now)
        elif wanted and not offer.wanted:
            offer.wanted = True
            self._outflow.send_in_place(c, offers.Demand(offer.id, True), now)
        elif not wanted and offer.wanted:
            if not offer.quiet_ns:
                offer.quiet_ns = now.ns + self._quiet_ns
                self._deadlines.add(offer.quiet_ns, "offers", 0)
            if offer.quiet_ns <= now.ns:
                offer.wanted, offer.quiet_ns = False, 0
                self._outflow.send_in_place(c, offers.Demand(offer.id, False), now)

    def snapshot(self) -> dict[str, int]:
        """Sizes."""
        unwanted = sum(not offer.wanted for offer in self._by_serial.values())
        return {"offers": len(self._by_serial), "offers_unwanted": unwanted}
