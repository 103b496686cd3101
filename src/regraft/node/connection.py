"""What a node knows of one connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from regraft.kernels.lane import Source
from regraft.kernels.outlet import Outlet
from regraft.session.session import Session
from regraft.session.window import Window


class State(Enum):
    """How far a connection is. It only moves down this list."""

    PREFACE = auto()  # which protocol?
    HELLO = auto()  # who is it?
    PEERED = auto()  # another node, and not a neighbour in the tree
    OPEN = auto()
    LEAVING = auto()  # it said good-bye, and gets the answers to what it sent before
    CLOSING = auto()  # nothing it sends counts any more


# By these names, because looking a member up in its Enum costs more than comparing it.
PREFACE, HELLO, PEERED, OPEN, LEAVING, CLOSING = State


@dataclass(slots=True)
class Connection:
    """One byte stream and, once it is open, the session it serves."""

    key: int
    peer: str
    source: Source
    outlet: Outlet
    window: Window
    opened_ns: int
    heard_ns: int
    spoke_ns: int
    state: State = PREFACE
    pending: bytearray = field(default_factory=bytearray)  # the beginning of a frame
    session: Session | None = None
    heartbeat_ns: int = 0
    passive: bool = False
    unsent: int = 0  # what the driver has not written yet
    held: bool = False  # the driver was told not to read
    ending: str = "disconnected"  # why what waits for it is dropped when it is gone
    blocked_on: set[int] | None = None  # full subscribers that its messages went to
    node: bytes = b""  # the id of the node at the other end, if it is one
    untaken: bytes = b""  # what came and waits for its turn; nothing more is read meanwhile
    lost: str = ""  # why it is over, once that is dealt with
    unsafe: int = 0  # the position in the journal behind its last persistent message

    @property
    def who(self) -> str:
        """A name for people."""
        if self.session is None:
            return self.peer
        return f"{self.session.client_id} ({self.peer})"
