"""The public client: `async` first, with a blocking front of the same.

import regraft

async with await regraft.connect() as client:
    async with await client.subscribe("news/#") as news:
        await client.publish("news/eu", "hello")
        message = await news.next(timeout=1)
        print(message.topic, message.text())
"""

from regraft.client.asking import within
from regraft.client.blocking import (
    BlockingClient,
    BlockingDurable,
    BlockingQueue,
    BlockingSubscription,
    BlockingTransaction,
    BlockingWork,
    connect_blocking,
)
from regraft.client.blocking_replies import BlockingReplies
from regraft.client.client import Client, connect
from regraft.client.durable import Durable, Replay
from regraft.client.offers import BlockingOffer, Offer
from regraft.client.options import Options, WhenStalled
from regraft.client.queue import Browse, Queue, QueueOptions, Work
from regraft.client.replies import AllReplies, Replies
from regraft.client.subscription import Subscription
from regraft.client.traced import Traced, Travelled, Why
from regraft.client.transaction import Transaction
from regraft.client.upkeep import Disconnection

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
]
