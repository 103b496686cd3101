"""What people and tests see of a node: what it holds, and what it has done."""

from __future__ import annotations

from itertools import islice
from typing import Any

from regraft.model.identity import Identity
from regraft.model.userfilter import UserFilters
from regraft.node.connection import Connection
from regraft.node.contexts import Contexts
from regraft.node.control import Control
from regraft.node.groups import Groups
from regraft.node.offers import Offers
from regraft.node.outflow import Outflow
from regraft.node.replying import Replying
from regraft.node.router import Router


class Looking:
    """Looks into the rooms of a node, and changes nothing."""

    def __init__(
        self,
        identity: Identity,
        connections: dict[int, Connection],
        router: Router,
        outflow: Outflow,
        groups: Groups,
        replying: Replying,
        contexts: Contexts,
        filters: UserFilters,
        control: Control,
        offers: Offers,
    ) -> None:
        self._offers = offers
        self._identity = identity
        self._connections = connections
        self._router = router
        self._outflow = outflow
        self._groups = groups
        self._replying = replying
        self._contexts = contexts
        self._filters = filters
        self._control = control
        self.opened = 0  # connections
        self.failures: dict[str, int] = {}  # of connections, by the name of the error

    def report(self, what: str, rows_max: int) -> dict[str, Any]:
        """What `regraft inspect` shows: "node", "connections", "subscriptions" or "index"."""
        rows: list[dict[str, Any]] = []
        total = 0
        if what == "connections":
            total = len(self._connections)
            rows = [_row(c) for c in islice(self._connections.values(), rows_max)]
        elif what == "subscriptions":
            total = self._router.size
            rows = list(islice(self._router.rows(), rows_max))
        elif what == "filters":
            rows = list(self._filters.rows())
            total, rows = len(rows), rows[:rows_max]
        elif what == "index":
            return self._router.describe_index(rows_max)
        elif what == "topology":
            network = self._control.network
            return network.topology() if network is not None else {}
        elif what == "services":
            return self._groups.report(rows_max)
        elif what == "custody" and self._control.custody is not None:
            return self._control.custody.report(rows_max)
        elif what == "journal" and self._control.storage is not None:
            found = self._control.storage.mailroom.rows()
            shown = found[:rows_max]
            counters = self._control.storage.snapshot()
            if self._control.transactions is not None:
                counters |= self._control.transactions.snapshot()
            return {**counters, "rows": shown, "total": len(found), "shown": len(shown)}
        elif what == "node":
            identity = self._identity
            return {
                "id": identity.hex,
                "name": identity.name,
                "incarnation": identity.incarnation,
                **self.snapshot(),
            }
        return {"rows": rows, "total": total, "shown": len(rows)}

    def snapshot(self) -> dict[str, Any]:
        """What the node holds and has done, for people and for tests."""
        lane = self._router.lane
        kept = self._control.storage.keeper if self._control.storage is not None else None
        return {
            "connections": len(self._connections),
            "connections_opened": self.opened,
            "sessions": len(self._control.clients),
            "subscriptions": self._router.size,
            "messages": lane.messages,
            "bytes": lane.size,
            "deliveries": lane.deliveries + (kept.deliveries if kept else 0),
            "delivered_bytes": lane.delivered + (kept.delivered if kept else 0),
            "forwarded": lane.forwarded + (kept.forwarded if kept else 0),
            "repeated": lane.repeated,
            "untaken": lane.untaken + (kept.untaken if kept else 0),
            "refused": lane.refused,
            "expired": lane.expired,
            "dropped": dict(self._outflow.dropped),
            "failures": dict(self.failures),
            "queued_bytes": self._outflow.queued,
            **self._groups.snapshot(),
            **self._replying.snapshot(),
            **self._contexts.snapshot(),
            **self._offers.snapshot(),
        }


def _row(c: Connection) -> dict[str, Any]:
    row: dict[str, Any] = {
        "connection": c.key,
        "peer": c.peer,
        "state": c.state.name.lower(),
        "published": c.source.messages,
        "held": c.held,
        "unsent_bytes": c.unsent,
    }
    if c.session is not None:
        delivery = c.session.delivery
        row |= {
            "client": c.session.client_id,
            "delivered": delivery.sent_messages,
            "queued": delivery.backlog.messages,
            "dropped": delivery.dropped_total,
            "stalled": delivery.stalled,
        }
    return row
