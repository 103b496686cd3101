"""Regraft: a message bus whose tree of brokers re-grafts its branches when they break."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regraft.client import (
        BlockingClient,
        BlockingDurable,
        BlockingQueue,
        BlockingSubscription,
        BlockingWork,
        Browse,
        Client,
        Disconnection,
        Durable,
        Options,
        Queue,
        QueueOptions,
        Replay,
        Subscription,
        WhenStalled,
        Work,
        connect,
        connect_blocking,
    )
    from regraft.errors import DiskError, LocalError, PeerError, RegraftError, WorldError
    from regraft.kernels.inbox import ReceivedMessage
    from regraft.model.message import Message, Timestamp

# Where the public names are. They are imported when first used, so that whoever needs only the
# version, or only the errors, waits for nothing else.
_HOMES = {
    "regraft.client": (
        "BlockingClient",
        "BlockingDurable",
        "BlockingQueue",
        "BlockingSubscription",
        "BlockingWork",
        "Browse",
        "Client",
        "Disconnection",
        "Durable",
        "Options",
        "Queue",
        "QueueOptions",
        "Replay",
        "Subscription",
        "WhenStalled",
        "Work",
        "connect",
        "connect_blocking",
    ),
    "regraft.errors": ("DiskError", "LocalError", "PeerError", "RegraftError", "WorldError"),
    "regraft.kernels.inbox": ("ReceivedMessage",),
    "regraft.model.message": ("Message", "Timestamp"),
}

__all__ = [
    "BlockingClient",
    "BlockingDurable",
    "BlockingQueue",
    "BlockingSubscription",
    "BlockingWork",
    "Browse",
    "Client",
    "Disconnection",
    "DiskError",
    "Durable",
    "LocalError",
    "Message",
    "Options",
    "PeerError",
    "Queue",
    "QueueOptions",
    "ReceivedMessage",
    "RegraftError",
    "Replay",
    "Subscription",
    "Timestamp",
    "WhenStalled",
    "Work",
    "WorldError",
    "connect",
    "connect_blocking",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
