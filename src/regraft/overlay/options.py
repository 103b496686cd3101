"""What may be set about an overlay. Every one of them is finite."""

from __future__ import annotations

from dataclasses import dataclass, fields

from regraft.errors import LocalError

MS = 1_000_000  # ns


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one node's overlay; durations in milliseconds."""

    seeds: tuple[str, ...] = ()  # addresses to join by; asked again by every search
    parent: str = ""  # a fixed parent's address: no other is looked for; its own: it stays root
    max_degree: int = 8  # neighbours, a place for the parent included
    beacon_ms: int = 500
    missed: int = 2  # this many beacons late or lost,
    expected: int = 3  # of the last so many: the neighbour is dead
    ask_ms: int = 1_000  # for an answer, and for a connection
    survey_ms: int = 150  # a newcomer compares round-trip times for this long
    search_ms: int = 5_000  # roots look for other trees
    retry_ms: int = 25  # at first, where somebody was merely busy; doubled up to search_ms
    spares: int = 2  # connections kept warm for a repair
    cache: int = 64  # other nodes remembered
    hops_max: int = 64  # that a request may climb
    hold_down_ms: int = 1_000  # after too many losses of one neighbour, doubled each time
    hold_down_ms_max: int = 30_000
    losses: int = 3  # are too many
    losses_ms: int = 30_000  # within this time
    leave_ms: int = 2_000  # after which a node that leaves is gone, drained or not

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("seeds", "parent"):
                continue
            least = 0 if field.name in ("spares", "survey_ms") else 1
            if type(value) is not int or value < least:
                raise _refuse(f"{field.name} must be a whole number from {least}, not {value!r}")
        if self.max_degree < 2:
            raise _refuse("max_degree must be 2 at least: a parent and a child")
        if self.missed > self.expected:
            raise _refuse("missed must not be above expected")
        if self.hold_down_ms > self.hold_down_ms_max:
            raise _refuse("hold_down_ms must not be above hold_down_ms_max")


def _refuse(text: str) -> LocalError:
    return LocalError("bad-configuration", f"overlay: {text}")
