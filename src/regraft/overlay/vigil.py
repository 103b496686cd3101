"""Beacons to all who want them, and the end of those who give no sign.

Rules:

- Neighbours get a datagram each period; a frame, too, while datagrams do not come back.
- Datagrams name a node and not a connection. Where there are two connections with one node, one of
  which may have ended unseen at the other end, they are no sign for a link, and frames are sent.
- Spares that this node dialled get one every other period, so that the round-trip time is known and
  a dead one is hung up before it is needed. Their other end only answers.
- A tick that comes very late means that this process slept: everybody is forgiven. One that comes
  somewhat late means that it was busy: nobody is given up by it who was not before.
"""

from __future__ import annotations

from collections.abc import Iterator

from regraft.overlay.actions import Cast
from regraft.overlay.beacons import Verdict
from regraft.overlay.messages import Beacon
from regraft.overlay.options import MS
from regraft.overlay.place import Peer, Place

_ECHO_PERIODS = 4  # without an echo, datagrams are thought not to get through
_SPARE_PERIODS = 5  # a spare that was dialled is given up after
_GUEST_PERIODS = 40  # and one that the other end dialled
_BUSY = 8  # a tick that is late by this part of a period: there was much to do


class Vigil:
    """One node's watch over its peers."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._period = place.options.beacon_ms * MS
        self._beat_ns: int | None = None
        self.beats = 0

    @property
    def next_ns(self) -> int | None:
        """When to look again."""
        if self._beat_ns is None:
            return None
        return min([self._beat_ns, *(peer.watch.due_ns for peer in self._place.links())])

    def connected(self, peer: Peer, now_ns: int) -> None:
        """Measure a connection that was just opened."""
        if peer.dialled:
            self._frame(peer, now_ns)
        self.linked(now_ns)

    def linked(self, now_ns: int) -> None:
        """There is somebody to watch."""
        if self._beat_ns is None:
            self._beat_ns = now_ns + self._period

    def slept(self, now_ns: int) -> bool:
        """Whether the process slept; if so nobody else is blamed for it."""
        next_ns = self.next_ns
        if next_ns is None or now_ns - next_ns < self._period:
            return False
        for peer in self._place.peers.values():
            peer.watch.forgive(now_ns)
        return True

    def tick(self, now_ns: int) -> Iterator[tuple[Peer, str]]:
        """Send what is due; those that are given up, and why."""
        next_ns = self.next_ns
        busy = next_ns is not None and now_ns - next_ns > self._period // _BUSY
        for peer in self._place.links():
            verdict = peer.watch.check(now_ns, busy)
            if verdict is Verdict.LATE:
                self._place.count("late")
                self._frame(peer, now_ns)
            elif verdict is Verdict.DEAD:
                yield peer, "no sign of life"
        if self._beat_ns is not None and now_ns >= self._beat_ns:
            self._beat(now_ns)
            yield from self._silent(now_ns)

    def _beat(self, now_ns: int) -> None:
        place = self._place
        self.beats += 1
        self._beat_ns = now_ns + self._period if place.peers else None
        datagram = place.numbers.next(frame=False, now_ns=now_ns)
        for peer in list(place.peers.values()):
            if not peer.is_link and (not peer.dialled or self.beats % 2):
                continue
            beacon = place.numbers.beacon(datagram, peer.by_datagram, now_ns)
            place.actions.append(Cast(peer.address, beacon))
            echo_ns = peer.echoed_ns if peer.echoed_ns is not None else peer.opened_ns
            unheard = peer.echoed_ns is None or now_ns - echo_ns > _ECHO_PERIODS * self._period
            if unheard or (peer.is_link and self._ambiguous(peer)):
                self._frame(peer, now_ns)

    def _silent(self, now_ns: int) -> Iterator[tuple[Peer, str]]:
        for peer in list(self._place.peers.values()):
            if not peer.is_link:
                periods = _SPARE_PERIODS if peer.dialled else _GUEST_PERIODS
                if now_ns - peer.watch.sign_ns > periods * self._period:
                    yield peer, "no sign of life"

    def _ambiguous(self, peer: Peer) -> bool:
        return len(self._place.of_node(peer.node)) > 1

    def _frame(self, peer: Peer, now_ns: int) -> None:
        numbers = self._place.numbers
        number = numbers.next(frame=True, now_ns=now_ns)
        self._place.send(peer, numbers.beacon(number, peer.by_frame, now_ns))

    # -------------------------------------------------------- beacons of others

    def datagram(self, beacon: Beacon, now_ns: int) -> Peer | None:
        """One came as a datagram; the peer whose round-trip time it told, if it did."""
        place = self._place
        peers = [p for p in place.of_node(beacon.node) if p.incarnation == beacon.incarnation]
        if not peers:
            return None
        measured = self._measure(peers[0], beacon, now_ns)
        for peer in peers:
            if measured:
                peer.echoed_ns = now_ns
            if beacon.number > peer.by_datagram[0]:
                peer.by_datagram = (beacon.number, now_ns)
            if len(peers) == 1 or not peer.is_link:
                peer.watch.heard(now_ns)
        if beacon.number and not any(peer.is_link for peer in peers):
            answer = place.numbers.beacon(0, (beacon.number, now_ns), now_ns)
            place.actions.append(Cast(peers[0].address, answer))
        return peers[0] if measured else None

    def frame(self, peer: Peer, beacon: Beacon, now_ns: int) -> bool:
        """One came by a connection; whether it told a round-trip time."""
        peer.watch.heard(now_ns)
        if beacon.number > peer.by_frame[0]:
            peer.by_frame = (beacon.number, now_ns)
        if beacon.number:
            self._place.send(peer, self._place.numbers.beacon(0, (beacon.number, now_ns), now_ns))
        return self._measure(peer, beacon, now_ns)

    def _measure(self, peer: Peer, beacon: Beacon, now_ns: int) -> bool:
        took_us = self._place.numbers.round_trip_us(beacon, now_ns)
        if took_us is None:
            return False
        for name in peer.names:
            self._place.cache.measured(name, took_us)
        return True
