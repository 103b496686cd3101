"""Signs of life, and how far away a neighbour is.

Rules:

- A neighbour is late 1.25 beacon periods after its last sign of life, and again after each further
  period without one. So many of the last few expectations missed, and it is dead.
- Any bytes on a connection are a sign. When a neighbour is late it is asked over the connection
  itself, where nothing gets lost: if there is a sign before the next is due, datagrams were lost or
  slow and not the neighbour, and the miss does not count.
- A process that slept does not blame others: `forgive`. One that was merely busy may have signs
  before it that it has not read: it waits a period more before it takes somebody for dead, once.
- A number is sent by one way only: even ones as datagrams, odd ones as frames. So an echo says
  which way works, and when the number was sent.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from regraft.overlay.messages import Beacon
from regraft.overlay.options import MS, Options

_REMEMBERED = 32  # numbers whose echo still tells a round-trip time


class Verdict(Enum):
    """What is to be thought of a neighbour whose sign was due."""

    ALIVE = "alive"
    LATE = "late"
    DEAD = "dead"


class Watch:
    """Whether the other end of one connection lives."""

    __slots__ = ("_excused", "_late", "_misses", "_needed", "_period", "due_ns", "sign_ns")

    def __init__(self, options: Options, now_ns: int) -> None:
        self._period = options.beacon_ms * MS
        self._needed = options.missed
        self._misses: deque[bool] = deque(maxlen=options.expected)
        self._late = False
        self.forgive(now_ns)

    def forgive(self, now_ns: int) -> None:
        """Begin anew: as if there had been a sign right now."""
        self.sign_ns = now_ns
        self.due_ns = now_ns + self._period * 5 // 4
        self._misses.clear()
        self._late = False
        self._excused = False

    def heard(self, now_ns: int) -> None:
        """There was a sign of life."""
        self.sign_ns = now_ns
        if self._late:
            self._late = self._excused = False
            self._misses[-1] = False

    def check(self, now_ns: int, busy: bool = False) -> Verdict:
        """A sign was due by now: did it come? With `busy` it may have, and was not read yet."""
        if now_ns < self.due_ns:
            return Verdict.ALIVE
        due_ns = self.sign_ns + self._period * 5 // 4
        if due_ns > now_ns:
            self.due_ns = due_ns
            self._misses.append(False)
            return Verdict.ALIVE
        self._misses.append(True)
        self._late = True
        self.due_ns = now_ns + self._period
        if sum(self._misses) < self._needed:
            return Verdict.LATE
        if busy and not self._excused:
            self._excused = True
            return Verdict.LATE
        return Verdict.DEAD


class Numbers:
    """The numbers of one node's beacons, and when each was sent."""

    def __init__(self, me: bytes, incarnation: int) -> None:
        self._me = me
        self._incarnation = incarnation
        self._last = 0
        self._sent: dict[int, int] = {}

    def next(self, *, frame: bool, now_ns: int) -> int:
        """A number to send now: even for datagrams, odd for frames."""
        self._last += 2
        number = self._last + frame
        self._sent[number] = now_ns
        if len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return number

    def beacon(self, number: int, heard: tuple[int, int], now_ns: int) -> Beacon:
        """A beacon with an echo of what was heard: a number, and when."""
        echo, at_ns = heard
        ago_us = (now_ns - at_ns) // 1000 if echo else 0
        return Beacon(self._me, self._incarnation, number, echo, ago_us)

    def round_trip_us(self, beacon: Beacon, now_ns: int) -> int | None:
        """How long the way there and back took, if the echo is of something sent lately."""
        sent_ns = self._sent.get(beacon.echo)
        if sent_ns is None:
            return None
        took_us = (now_ns - sent_ns) // 1000 - beacon.echo_us
        return took_us if took_us >= 0 else None


def smoothed(before_us: int | None, sample_us: int) -> int:
    """An average that follows slowly."""
    return sample_us if before_us is None else (7 * before_us + sample_us) // 8
