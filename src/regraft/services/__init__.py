"""Services: typed messages, events and queries that survive the death of nodes.

from regraft.services import Peer, Service

async with Peer("node1:7447,node2:7447", type="WEBSITE") as site:
    found = await site.query("SEARCH_REQUEST", {"text": "ship"}, timeout=1.0, reply=list)
    await site.event("PAGE_VIEWED", {"page": "/ships"})
"""

from regraft.model.rules import Route
from regraft.services.context import Context, current
from regraft.services.peer import Peer
from regraft.services.service import HandlerError, Service
from regraft.services.trunk import Trunk

__all__ = ["Context", "HandlerError", "Peer", "Route", "Service", "Trunk", "current"]
