"""What the lane found wrong with bytes, as an error that a peer is told."""

from __future__ import annotations

from regraft.errors import PeerError
from regraft.kernels import lane as lanes
from regraft.kernels.envelope import FAULTS
from regraft.kernels.lane import Lane

ERRORS = {
    lanes.BAD_CHECK: ("bad-checksum", "the check of a frame's header is wrong"),
    lanes.BAD_CHECKSUM: ("bad-checksum", "the payload of a frame is damaged"),
    lanes.TOO_SHORT: ("malformed-frame", "a frame is shorter than its header"),
    lanes.BAD_FLAGS: ("malformed-frame", "a frame has flags that do not exist"),
    lanes.TOO_LARGE: ("frame-too-large", "a frame is larger than this node takes"),
    lanes.BAD_ORIGIN: ("malformed-frame", "an ORIGIN frame is not well formed"),
    lanes.BAD_ENVELOPE: ("malformed-envelope", "an envelope is not well formed"),
}


def fault_of(lane: Lane) -> PeerError:
    """The error for what a lane stopped at."""
    name, text = ERRORS[lane.fault]
    if lane.fault == lanes.BAD_ENVELOPE:
        text = f"{text}: {FAULTS[lane.fault_detail]}"
    elif lane.fault == lanes.TOO_LARGE:
        text = f"{text}: {lane.fault_detail} bytes"
    return PeerError(name, text)
