"""How a client behaves, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.errors import LocalError
from regraft.wire.native import StallPolicy

WhenStalled = StallPolicy


@dataclass(frozen=True, slots=True)
class Options:
    """What a client asks of its nodes and of itself. Times are in seconds."""

    client_id: str = ""  # empty: the node makes one; the same id again takes over
    connect_timeout: float = 5.0  # to find a node that answers
    heartbeat: float = 0.0  # 0: as the node proposes
    reconnect: bool = True
    reconnect_delay: float = 0.05  # doubled after each failure,
    reconnect_delay_max: float = 5.0  # up to this
    queue_messages: int = 131_072  # received and not yet taken by the application,
    queue_bytes: int = 8 * 1024 * 1024  # all subscriptions together
    unconfirmed_bytes: int = 16 * 1024 * 1024  # persistent, published and not known to be safe
    when_stalled: StallPolicy = StallPolicy.DISCONNECT
    message_ids: bool = True  # give every message a random id
    timestamps: bool = True  # and the time it was sent
    passive: bool = False  # the node is not to expect heartbeats
    local: bool = True  # use the local socket of a node that is on this machine
    spin_us: int = 0  # after a read: look for more, before the process sleeps
    in_flight: int = 0  # as a member of groups: messages in its hands; 0: as the node says

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "reconnect_delay", "reconnect_delay_max"):
            if not getattr(self, name) > 0:
                raise LocalError("bad-configuration", f"{name} must be above 0")
        for name in ("queue_messages", "queue_bytes", "unconfirmed_bytes"):
            if getattr(self, name) < 1:
                raise LocalError("bad-configuration", f"{name} must be 1 or more")
        if not 0 <= self.spin_us <= 10_000:
            raise LocalError("bad-configuration", "spin_us must be from 0 to 10000")
        if self.heartbeat < 0:
            raise LocalError("bad-configuration", "heartbeat must not be negative")
