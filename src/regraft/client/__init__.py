"""The public client: `async` first, with a blocking front of the same.

import regraft

async with await regraft.connect() as client:
    async with await client.subscribe("news/#") as news:
        await client.publish("news/eu", "hello")
        message = await news.next(timeout=1)
        print(message.topic, message.text())
"""

from regraft.client.blocking import (
    BlockingClient,
    BlockingDurable,
    BlockingQueue,
    BlockingSubscription,
    BlockingWork,
    connect_blocking,
)
from regraft.client.client import Client, connect
from regraft.client.durable import Durable, Replay
from regraft.client.options import Options, WhenStalled
from regraft.client.queue import Browse, Queue, QueueOptions, Work
from regraft.client.subscription import Subscription
from regraft.client.upkeep import Disconnection

__all__ = [
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
]
