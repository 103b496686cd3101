"""Regraft: a message bus whose tree of brokers re-grafts its branches when they break."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regraft.client import (
        AllReplies,
        BlockingClient,
        BlockingDurable,
        BlockingOffer,
        BlockingQueue,
        BlockingReplies,
        BlockingSubscription,
        BlockingTransaction,
        BlockingWork,
        Browse,
        Client,
        Disconnection,
        Durable,
        Offer,
        Options,
        Queue,
        QueueOptions,
        Replay,
        Replies,
        Subscription,
        Traced,
        Transaction,
        Travelled,
        WhenStalled,
        Why,
        Work,
        connect,
        connect_blocking,
        within,
    )
    from regraft.errors import (
        DiskError,
        LocalError,
        PeerError,
        RegraftError,
        ReplyTimeout,
        WorldError,
    )
    from regraft.kernels.inbox import ReceivedMessage
    from regraft.model.message import Message, Timestamp
    from regraft.model.messagetype import message_type, register_message
    from regraft.model.userfilter import MessageFilter, filter, register_filter

# Where the public names are. They are imported when first used, so that whoever needs only the
# version, or only the errors, waits for nothing else.
_HOMES = {
    "regraft.client": (
        "AllReplies",
        "BlockingClient",
        "BlockingDurable",
        "BlockingOffer",
        "BlockingQueue",
        "BlockingReplies",
        "BlockingSubscription",
        "BlockingTransaction",
        "BlockingTransaction",
        "BlockingWork",
        "Browse",
        "Client",
        "Disconnection",
        "Durable",
        "Offer",
        "Options",
        "Queue",
        "QueueOptions",
        "Replay",
        "Replies",
        "Subscription",
        "Traced",
        "Transaction",
        "Travelled",
        "WhenStalled",
        "Why",
        "Work",
        "connect",
        "connect_blocking",
        "within",
    ),
    "regraft.errors": (
        "DiskError",
        "LocalError",
        "PeerError",
        "RegraftError",
        "ReplyTimeout",
        "WorldError",
    ),
    "regraft.kernels.inbox": ("ReceivedMessage",),
    "regraft.model.message": ("Message", "Timestamp"),
    "regraft.model.messagetype": ("message_type", "register_message"),
    "regraft.model.userfilter": ("MessageFilter", "filter", "register_filter"),
}

__all__ = [
    "AllReplies",
    "BlockingClient",
    "BlockingDurable",
    "BlockingOffer",
    "BlockingQueue",
    "BlockingReplies",
    "BlockingSubscription",
    "BlockingTransaction",
    "BlockingWork",
    "Browse",
    "Client",
    "Disconnection",
    "DiskError",
    "Durable",
    "LocalError",
    "Message",
    "MessageFilter",
    "Offer",
    "Options",
    "PeerError",
    "Queue",
    "QueueOptions",
    "ReceivedMessage",
    "RegraftError",
    "Replay",
    "Replies",
    "ReplyTimeout",
    "Subscription",
    "Timestamp",
    "Traced",
    "Transaction",
    "Travelled",
    "WhenStalled",
    "Why",
    "Work",
    "WorldError",
    "connect",
    "connect_blocking",
    "filter",
    "message_type",
    "register_filter",
    "register_message",
    "within",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
