"""What people do with a node among others: commands, and looking at its place in the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from regraft.errors import LocalError
from regraft.model.identity import Identity
from regraft.node.connection import Connection
from regraft.node.event import Now
from regraft.node.moving import Moving
from regraft.node.router import Router
from regraft.overlay.lstree import LSTree
from regraft.routing.filters import Filter
from regraft.routing.forwarding import Forwarding

WAY_MAX = 256  # nodes that a move may pass


class Operating:
    """The commands, and what is shown."""

    def __init__(
        self,
        identity: Identity,
        overlay: LSTree,
        forwarding: Forwarding,
        router: Router,
        links: dict[int, Connection],
        own: set[str],
        leave: Callable[[str], None],
        moving: Moving,
    ) -> None:
        self._identity = identity
        self._overlay = overlay
        self._forwarding = forwarding
        self._router = router
        self._links = links
        self._own = own  # addresses that lead to this node
        self._leave_for = leave
        self._moving = moving

    def command(self, what: str, data: bytes, now: Now) -> dict[str, Any]:
        """Do what somebody wants; what is to be said about it."""
        if what not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise LocalError("not-supported", f"there is no command {what!r}; there is {known}")
        try:
            arguments = json.loads(data or b"{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise LocalError("bad-message", f"{what} needs a JSON object")
        return COMMANDS[what](self, arguments, now)

    def _link_add(self, arguments: dict[str, Any], now: Now) -> dict[str, Any]:
        address = arguments.get("address")
        if not isinstance(address, str) or not address.rpartition(":")[2].isdigit():
            raise LocalError("bad-address", "link-add needs an address: host:port")
        if address in self._own:
            raise LocalError("bad-address", f"{address} is this node itself")
        self._overlay.attach(address, now.ns)
        return {"address": address}

    def _link_remove(self, arguments: dict[str, Any], now: Now) -> dict[str, Any]:
        wanted = arguments.get("node")
        if not isinstance(wanted, str) or not wanted:
            raise LocalError("bad-message", "link-remove needs a node: name, id or address")
        rows = _plain(self._overlay.snapshot())["links"]
        names = {c.node.hex(): c.session.client_id for c in self._links.values() if c.session}
        found = [
            row["node"]
            for row in rows
            if wanted in (row["address"], names.get(row["node"], "").removeprefix("node "))
            or row["node"].startswith(wanted.lower())
        ]
        if len(found) != 1:
            text = "is no neighbour of this node" if not found else "may be several neighbours"
            raise LocalError("not-a-neighbour", f"{wanted!r} {text}; regraft inspect topology")
        self._overlay.detach(bytes.fromhex(found[0]), now.ns)
        return {"node": found[0]}

    def _link_move(self, arguments: dict[str, Any], now: Now) -> dict[str, Any]:
        address, way = arguments.get("address"), arguments.get("way")
        if not isinstance(address, str) or not address.rpartition(":")[2].isdigit():
            raise LocalError("bad-address", "link-move needs an address: host:port")
        try:
            ids = tuple(bytes.fromhex(one) for one in way or ())
        except (TypeError, ValueError):
            ids = ()
        if not 2 <= len(ids) <= WAY_MAX or any(len(one) != 16 for one in ids):
            raise LocalError(
                "bad-message", f"link-move needs a way: 2 to {WAY_MAX} ids, from parent to parent"
            )
        self._moving.begin(address, ids, now)
        return {"address": address}

    def _leave(self, arguments: dict[str, Any], now: Now) -> dict[str, Any]:
        self._leave_for("somebody told it to leave")
        return {}

    # ------------------------------------------------------------------------ looking

    def topology(self) -> dict[str, Any]:
        """This node's place in the tree, to look at."""
        found = _plain(self._overlay.snapshot())
        routing = self._forwarding.snapshot()
        for link in found["links"]:
            c = self._links.get(link["connection"])
            told = routing["links"].get(link["connection"], {})
            link |= {"received": told.get("received", 0), "sent": told.get("sent", 0)}
            link["name"] = c.session.client_id.removeprefix("node ") if c and c.session else ""
        return {
            "id": self._identity.hex,
            "name": self._identity.name,
            "incarnation": self._identity.incarnation,
            **found,
            "routing": routing,
        }

    def interests(self) -> dict[str, Any]:
        """What is wanted here, what neighbours want, and what they were told."""
        links = {}
        for key, (received, sent) in self._forwarding.rows().items():
            if key in self._links:
                row = {"received": _rows(received.values()), "sent": _rows(sent.values())}
                links[self._links[key].node.hex()] = row
        return {"local": sorted(set(self._router.wanted())), "links": links}


def _rows(filters: Iterable[Filter]) -> list[tuple[Any, ...]]:
    """Filters in order, with what most of them do not have left out."""
    return sorted(tuple(one) if one.name else one[:3] for one in filters)


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """What the overlay says of itself, with ids as people write them."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, dict):
            return {("connection" if k == "key" else k): plain(v) for k, v in value.items()}
        return [plain(one) for one in value] if isinstance(value, list) else value

    result: dict[str, Any] = plain(found)
    return result


COMMANDS: dict[str, Callable[[Operating, dict[str, Any], Now], dict[str, Any]]] = {
    "link-add": Operating._link_add,
    "link-remove": Operating._link_remove,
    "link-move": Operating._link_move,
    "leave": Operating._leave,
}
