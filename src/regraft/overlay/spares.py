"""Connections kept warm for the day when the parent is lost.

Rules:

- The grandparent first: it lives when the parent dies, and is close. A child of the root has none;
  it keeps its sibling with the smallest id, below which all siblings meet when the root dies. Then
  others by round-trip time, none that is known to be below.
- Who dialled a spare decides about it; the other end keeps it for as long as it is not too many.
- A node with a fixed parent keeps none.
"""

from __future__ import annotations

from collections.abc import Iterator

from regraft.overlay.candidates import Known
from regraft.overlay.place import Peer, Place

GUESTS_MAX = 256  # spares that others dialled
_SETTLED_PERIODS = 3  # a spare is not hung up before


class Spares:
    """The spares of one node."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def wanted(self, now_ns: int) -> list[str]:
        """The addresses of the best spares."""
        place = self._place
        if place.parent is None or place.options.parent:
            return []
        named: list[str] = [candidate.address for candidate in place.ancestors[1:2]]
        if not named:
            siblings = [known for known in place.siblings if known.node != place.me]
            named += [min(siblings, key=lambda known: known.node).address] if siblings else []
        named = [name for name in named if self._possible(name, now_ns)]
        if len(named) < place.options.spares:
            order = [known for known in place.cache.all() if not known.is_own(now_ns)]
            order.sort(key=self._rank)
            for known in order:
                if known.address not in named and self._possible(known.address, now_ns):
                    named.append(known.address)
                    if len(named) >= place.options.spares:
                        break
        return named[: place.options.spares]

    def _rank(self, known: Known) -> tuple[bool, bool, int, int]:
        """Those that are there already stay; then by round-trip time and hops."""
        missing = self._place.spare_to(known.address) is None
        return missing, known.rtt_us is None, known.rtt_us or 0, known.hops

    def _possible(self, address: str, now_ns: int) -> bool:
        place = self._place
        known = place.cache.get(address)
        return (
            address not in place.own_addresses
            and not place.linked(address)
            and known is not None
            and known.node != place.me
            and not known.failed(now_ns)
            and known.held_ns <= now_ns
        )

    def keep(self, now_ns: int) -> Iterator[Peer]:
        """Open those that are missing; those that are too many."""
        place = self._place
        wanted = self.wanted(now_ns)
        for address in wanted:
            if place.spare_to(address) is None:
                place.dial(address, now_ns)
        settled_ns = now_ns - _SETTLED_PERIODS * place.options.beacon_ms * 1_000_000
        mine = [peer for peer in place.peers.values() if not peer.is_link and peer.dialled]
        loose = [peer for peer in mine if not any(name in wanted for name in peer.names)]
        if place.parent is None:
            loose = loose[place.options.spares :]
        yield from (peer for peer in loose if peer.opened_ns <= settled_ns)
        guests = [peer for peer in place.peers.values() if not (peer.is_link or peer.dialled)]
        yield from guests[: max(0, len(guests) - GUESTS_MAX)]
