"""Other nodes that a node knows of, and in which order it would ask them for a place.

Rules:

- Addresses are the keys: of a seed nothing else is known at first.
- An orphan asks, in this order: connections that are open (ancestors before others), ancestors,
  siblings, others by round-trip time, then hops. Those last that failed a moment ago, that are in
  its own tree as far as is known, or that are held down.
- Siblings come with the smallest id first: when a root dies, its children ask each other at the
  same time, and a root that asks grants only larger ids. So all meet below the smallest.
- A root that looks for other trees asks a few, of the seeds and of the others; those that failed or
  were in its own tree when it last asked come last, the longest ago first.
- A neighbour lost too often is *held down* for a while, twice as long each time; one that was
  removed by hand, too. The one may come back if nothing else is left, the other may not.
- The cache is bounded: who failed most often, or was heard of the longest ago, makes room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from regraft.overlay.beacons import smoothed
from regraft.overlay.messages import Candidate
from regraft.overlay.options import MS, Options

if TYPE_CHECKING:
    from random import Random

FAILED_NS = 10_000 * MS  # so long a failure counts,
OWN_NS = 60_000 * MS  # and so long the knowledge that somebody is in the own tree
_FAR = 1 << 62


@dataclass(slots=True)
class Known:
    """What is known of one other node."""

    address: str
    node: bytes = b""
    hops: int = 0
    seed: bool = False
    rtt_us: int | None = None
    seen_ns: int = 0
    failures: int = 0
    failed_ns: int | None = None
    own_ns: int | None = None
    lost_ns: list[int] = field(default_factory=list)
    hold_ms: int = 0
    held_ns: int = 0  # held down until then;
    barred_ns: int = 0  # because somebody removed it by hand, so not even an urgent request helps

    def is_own(self, now_ns: int) -> bool:
        """It was in the own tree, and not long ago."""
        return self.own_ns is not None and now_ns - self.own_ns < OWN_NS

    def failed(self, now_ns: int) -> bool:
        """It was out of reach, and not long ago."""
        return self.failed_ns is not None and now_ns - self.failed_ns < FAILED_NS


class Around(NamedTuple):
    """What a node has around it, by address."""

    ancestors: dict[str, int]  # how many links above
    siblings: dict[str, bytes]  # their ids
    open: dict[str, bool]  # connections that could become a link; whether this node dialled
    better: list[str]  # whom refusals named


class Candidates:
    """The cache of other nodes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._known: dict[str, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Known]:
        """Everybody that is known."""
        return list(self._known.values())

    def get(self, address: str) -> Known | None:
        """What is known of an address."""
        return self._known.get(address)

    def seed(self, address: str) -> None:
        """Somebody to join by; never forgotten."""
        self._known.setdefault(address, Known(address)).seed = True

    def note(self, candidate: Candidate, now_ns: int) -> Known:
        """Somebody was heard of."""
        known = self._entry(candidate.address, now_ns)
        if candidate.node:
            known.node, known.hops = candidate.node, candidate.hops
        return known

    def _entry(self, address: str, now_ns: int) -> Known:
        known = self._known.get(address)
        if known is None:
            known = self._known[address] = Known(address)
            known.seen_ns = now_ns
            self._make_room()
        known.seen_ns = now_ns
        return known

    def reached(self, address: str, node: bytes, now_ns: int) -> None:
        """There is a connection to it."""
        known = self._entry(address, now_ns)
        known.node = node
        known.failures, known.failed_ns = 0, None

    def unreachable(self, address: str, now_ns: int) -> None:
        """It could not be reached, or did not answer."""
        known = self._known.get(address)
        if known is not None:
            known.failures += 1
            known.failed_ns = now_ns

    def forget(self, address: str) -> None:
        """Nobody is there any more."""
        known = self._known.get(address)
        if known is not None and not known.seed:
            del self._known[address]

    def own(self, address: str, now_ns: int | None) -> None:
        """It is in the own tree, or certainly not."""
        known = self._known.get(address)
        if known is not None:
            known.own_ns = now_ns

    def measured(self, address: str, sample_us: int) -> int | None:
        """A round trip took this long; the average."""
        known = self._known.get(address)
        if known is None:
            return None
        known.rtt_us = smoothed(known.rtt_us, sample_us)
        return known.rtt_us

    # ---------------------------------------------------------------- hold-down

    def lost(self, address: str, now_ns: int) -> bool:
        """A link with it was lost; whether that happened too often."""
        known = self._entry(address, now_ns)
        window_ns = self._options.losses_ms * MS
        known.lost_ns = [at for at in known.lost_ns if now_ns - at < window_ns] + [now_ns]
        if len(known.lost_ns) < self._options.losses:
            known.hold_ms = 0
            return False
        del known.lost_ns[: -self._options.losses]
        self.hold(address, now_ns)
        return True

    def hold(self, address: str, now_ns: int) -> None:
        """Hold it down, twice as long as the last time."""
        known = self._entry(address, now_ns)
        options = self._options
        known.hold_ms = min(max(2 * known.hold_ms, options.hold_down_ms), options.hold_down_ms_max)
        known.held_ns = now_ns + known.hold_ms * MS

    def bar(self, address: str, now_ns: int) -> None:
        """Hold it down, because somebody said so."""
        self.hold(address, now_ns)
        known = self._known[address]
        known.barred_ns = known.held_ns

    def release(self, address: str) -> None:
        """Do not hold it down any more."""
        known = self._known.get(address)
        if known is not None:
            known.lost_ns, known.hold_ms, known.held_ns, known.barred_ns = [], 0, 0, 0

    def held(self, now_ns: int) -> list[str]:
        """Who is held down now."""
        return [known.address for known in self._known.values() if known.held_ns > now_ns]

    def is_held(self, address: str, now_ns: int, urgent: bool = False) -> bool:
        """Whether one is; and if it is urgent, whether by hand."""
        known = self._known.get(address)
        return known is not None and (known.barred_ns if urgent else known.held_ns) > now_ns

    # ------------------------------------------------------------------- orders

    def for_repair(self, around: Around, now_ns: int) -> list[Known]:
        """Everybody, in the order in which an orphan or a newcomer asks."""

        def rank(known: Known) -> tuple[bool, bool, bool, int, int, bytes, int, int, str]:
            tier, place, node = _tier(known, around)
            return (
                known.held_ns > now_ns,
                known.is_own(now_ns),
                known.failed(now_ns),
                tier,
                place,
                node,
                _FAR if known.rtt_us is None else known.rtt_us,
                known.hops,
                known.address,
            )

        return sorted(self._known.values(), key=rank)

    def for_search(self, count: int, random: Random, linked: Callable[[str], bool]) -> list[str]:
        """A few, in the order in which a root that looks for other trees asks.

        Those first that were not tried for long, whatever came of it: everybody has his turn.
        """
        known = [known for known in self._known.values() if not linked(known.address)]
        random.shuffle(known)
        known.sort(key=lambda one: max(one.own_ns or 0, one.failed_ns or 0))
        seeds = [one.address for one in known if one.seed]
        others = [one.address for one in known if not one.seed]
        return [*seeds[:count], *others[:count]]

    def _make_room(self) -> None:
        """Forget one if there are too many."""
        if len(self._known) <= self._options.cache:
            return
        loose = [known for known in self._known.values() if not known.seed]
        worst = max(loose[:-1], key=lambda known: (known.failures, -known.seen_ns), default=None)
        if worst is not None:
            del self._known[worst.address]


def _tier(known: Known, around: Around) -> tuple[int, int, bytes]:
    """How soon it is asked: the kind, the place within the kind, an id to order by."""
    address = known.address
    is_open = address in around.open
    above = around.ancestors.get(address)
    if is_open and above is not None:
        return 0, above, b""
    if around.open.get(address):  # chosen as a spare, so it is probably not below
        return 1, 0, around.siblings.get(address, b"")
    if address in around.better:
        return 2, around.better.index(address), b""
    if above is not None:
        return 3, above, b""
    if address in around.siblings:
        return 4, 0, around.siblings[address]
    return 5, 0 if is_open else 1, b""
