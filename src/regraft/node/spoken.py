"""What overlay and routing say to other nodes, as frames, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from regraft.overlay import messages
from regraft.routing import messages as words
from regraft.routing.filters import Filter
from regraft.wire import offers, peers

ANNOUNCED_BYTES = 16_384  # of filters in one frame

FRAMES: dict[type[Any], type[Any]] = {
    messages.Ask: peers.Ask,
    messages.Answer: peers.Answer,
    messages.Accept: peers.Accept,
    messages.Leave: peers.Leave,
    messages.Status: peers.Status,
    messages.Beacon: peers.Beacon,
}
MESSAGES = {frame: message for message, frame in FRAMES.items()}
GRAFTS = (peers.Flush, peers.Restored, peers.Activate, peers.Reroute, peers.Rerouted)


def to_frame(message: Any) -> Any:
    """What the overlay says, as it is sent."""
    values = []
    for value in message:
        if isinstance(value, messages.Candidate):
            value = peers.Candidate(*value)
        elif type(value) is tuple:
            value = tuple(peers.Candidate(*one) for one in value)
        values.append(value)
    return FRAMES[type(message)](*values)


def from_frame(frame: Any) -> Any:
    """What came, as the overlay reads it."""
    values = []
    for value in (getattr(frame, name) for name in frame.__dataclass_fields__):
        if value is None:
            value = messages.NOBODY
        elif isinstance(value, peers.Candidate):
            value = messages.Candidate(*astuple(value))
        elif type(value) is tuple:
            value = tuple(messages.Candidate(*astuple(one)) for one in value)
        values.append(value)
    return MESSAGES[type(frame)](*values)


def graft_frame(message: words.Message) -> Any:
    """What a reconfiguration says, as it is sent."""
    match message:
        case words.Activate(rid, doubtful, route):
            return peers.Activate(rid, tuple(peers.Wanted(0, *one) for one in doubtful), route)
        case words.Reroute(rid, given, remove, head, tail):
            entered = tuple(peers.Wanted(number, *one) for number, one in given)
            return peers.Reroute(rid, entered, remove, head, tail)
        case words.Flush():
            return peers.Flush(*message)
        case words.Restored():
            return peers.Restored(*message)
        case words.Heeded(number):
            return offers.Heeded(number)
        case words.Rerouted():
            return peers.Rerouted(*message)
        case words.Mark():
            raise AssertionError("it is never sent")


def graft_message(frame: Any) -> words.Message:
    """What came, as `routing` reads it."""
    match frame:
        case peers.Activate():
            doubtful = tuple(map(filter_of, frame.doubtful))
            return words.Activate(frame.rid, doubtful, frame.route)
        case peers.Reroute():
            given = tuple((one.number, filter_of(one)) for one in frame.given)
            return words.Reroute(frame.rid, given, frame.remove, frame.head, frame.tail)
        case peers.Flush():
            return words.Flush(frame.rid, frame.route, frame.hops, frame.echo)
        case peers.Restored():
            return words.Restored(frame.rid)
        case _:
            return words.Rerouted(frame.rid, frame.remove)


def filter_of(wanted: peers.Wanted) -> Filter:
    """What a neighbour wants, as `routing` reads it."""
    filter, data = wanted.filter, wanted.filter_data
    return Filter(wanted.pattern, wanted.exact, wanted.selector, filter, data if filter else b"")


def announcements(
    add: list[tuple[int, Filter]], remove: Iterable[int], synced: bool
) -> list[peers.Interests]:
    """Frames of bounded size; what is added comes before what is removed."""
    frames = []
    batch: list[peers.Wanted] = []
    size = 0
    for number, wanted in add:
        batch.append(peers.Wanted(number, *wanted))
        size += len(wanted.pattern) + len(wanted.selector) + len(wanted.data) + 16
        if size >= ANNOUNCED_BYTES:
            frames.append(peers.Interests(tuple(batch)))
            batch, size = [], 0
    numbers = list(remove)
    room = ANNOUNCED_BYTES // 8
    while len(numbers) > room:
        frames.append(peers.Interests(tuple(batch), tuple(numbers[:room])))
        batch, numbers = [], numbers[room:]
    if batch or numbers or synced:
        frames.append(peers.Interests(tuple(batch), tuple(numbers), synced))
    return frames
