"""Traces at a node: what it decides about a message or a filter, and where that goes on.

A trace is a question that nodes answer (`replying`): each reports, and passes it on to neighbours.
With WHO and PUBLISH these are the neighbours that the message goes to, with WHY and FILTER all of
them. It stands behind what waits for a neighbour, as a message would.

WHO publishes nothing: it asks the match index as the lane does, and says what it finds, by which
filter. PUBLISH takes the route from the lane itself and hands the message out by it; so what is
reported is what happens, in the same step. Nothing of this is on the way of other messages.

Reports are JSON, for people and tools. Rows beyond `trace_bytes` are left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from regraft.errors import BY_NUMBER, CODES, LocalError, PeerError
from regraft.kernels.envelope import FAULTS, examine
from regraft.kernels.outlet import Route
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.model.rules import TYPE_TOPIC
from regraft.model.topics import check_pattern
from regraft.node.connection import OPEN, Connection
from regraft.node.control import Control
from regraft.node.deciding import Deciding, Row, Taken, described
from regraft.node.event import Now
from regraft.node.outflow import Outflow
from regraft.node.replying import Replying, onward_ms
from regraft.node.router import Authorize, Router
from regraft.routing.filters import Filter
from regraft.wire import native
from regraft.wire.traces import Trace, TraceMode

HOPS_MAX = 255
EVERYWHERE = (TraceMode.WHY, TraceMode.FILTER)
REPORT_TOPIC = "$trace"
CHANGING = ("link-muted", "link-frozen")
LINKS_MAX = 1000  # neighbours in one report
LIMIT_EXCEEDED = CODES["limit-exceeded"].number
NOT_SUPPORTED = CODES["not-supported"].number
NOT_AUTHORIZED = CODES["not-authorized"].number


class Tracing:
    """What a node does about traces."""

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        authorize: Authorize,
        router: Router,
        outflow: Outflow,
        replying: Replying,
        control: Control,
        deciding: Deciding,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._authorize = authorize
        self._router = router
        self._outflow = outflow
        self._replying = replying
        self._control = control
        self.deciding = deciding
        self.count = 0
        replying.trace = self.trace

    def trace(self, c: Connection, asked: Trace, now: Now) -> None:
        """Somebody asks: a client of this node, or another node for it."""
        id = self._replying.admit(c, asked.id, now)
        if id is None:
            return
        message = self._read(asked)
        route: Route | None = None
        code, text = self._refusal(c, asked)
        if not code and asked.mode == TraceMode.PUBLISH and message is not None:
            code, text, route = self._route(c, asked, message, now)
        if code:
            self._replying.refuse(c, asked.id, asked.token, code, text, now)
            return
        self.count += 1
        pending, lasts_ms = self._replying.begin(c, id, asked.token, asked.lasts_ms, now)
        pending.repliers = 1  # this node
        report, onward = self._report(c, asked, message, route, now)
        self._replying.say(pending, self._encoded(report), now)
        if route is not None:
            self._hand_out(c, asked.envelope, route, now)
        links = []
        for key, reached in onward.items():
            passed = replace(
                asked,
                id=id,
                token=0,
                lasts_ms=onward_ms(lasts_ms),
                hops=asked.hops + 1,
                unreached=not reached,
            )
            if self._may_ask(key) and self._replying.send(key, native.encode(passed), now):
                links.append(key)
            else:
                pending.spoil("a neighbour could not be asked")
        if any(row["reason"] in CHANGING for row in report.get("links", ())):
            pending.spoil("a link is being changed, and what is behind it was not asked")
        self._replying.asked(pending, links, [], now)

    def _may_ask(self, key: int) -> bool:
        """Whether something that is sent to a neighbour now gets there."""
        network = self._control.network
        c = network.links.get(key) if network is not None else None
        return c is not None and c.session is not None and not c.session.delivery.frozen

    def _read(self, asked: Trace) -> Message | None:
        if asked.mode == TraceMode.FILTER:
            return None
        fault = examine(asked.envelope)[0]
        if fault:
            raise PeerError("malformed-envelope", f"an envelope is refused: {FAULTS[fault]}")
        return decode_envelope(asked.envelope)

    def _refusal(self, c: Connection, asked: Trace) -> tuple[int, str]:
        text = self._replying.no_room(c, asked.token)
        if text:
            return LIMIT_EXCEEDED, text
        if asked.filtered:
            try:
                check_pattern(asked.pattern)
            except LocalError as error:
                return error.code.number, error.text
        if c.node:
            return 0, ""
        assert c.session is not None
        if not self._authorize(c.session.principal, "inspect", "trace"):
            return NOT_AUTHORIZED, f"{c.session.principal} may not trace"
        return 0, ""

    def _route(
        self, c: Connection, asked: Trace, message: Message, now: Now
    ) -> tuple[int, str, Route | None]:
        """Where a message that is published really goes, as the lane says."""
        if message.topic.startswith(TYPE_TOPIC) or message.override_rules:
            return NOT_SUPPORTED, "messages of a type cannot be published so: ask who() of it", None
        if not c.node and self.deciding.is_kept(message):
            return NOT_SUPPORTED, "what is kept cannot be published so: publish it, and who()", None
        if self.deciding.is_expired(message, now):
            return 0, "", None
        code, _, route = self._router.lane.find_route(c.source, asked.envelope)
        if code:
            return code, f"not published: {BY_NUMBER[code].meaning}", None
        return 0, "", route

    def _hand_out(self, c: Connection, envelope: bytes, route: Route, now: Now) -> None:
        """Give a message to all who take it here; neighbours get the trace."""
        lane = self._router.lane
        frame = native.frame(native.Kind.MESSAGE, envelope)
        for outlet, ids in zip(route.outlets, route.subscriptions, strict=True):
            if not outlet.link:
                lane.give(outlet, frame, ids)
        dirty = lane.take_dirty()
        if dirty:
            self._outflow.deliver(dirty, c, False, now)

    # ------------------------------------------------------------------------- reports

    def _report(
        self, c: Connection, asked: Trace, message: Message | None, route: Route | None, now: Now
    ) -> tuple[dict[str, Any], dict[int, bool]]:
        """What this node has to say; and which neighbours are asked, and get the message."""
        report: dict[str, Any] = {
            "node": self._identity.hex,
            "name": self._identity.name,
            "hops": asked.hops,
            "from": c.node.hex(),
            "at_us": now.wall_us,
            "notes": self._notes(now),
        }
        room = Room(min(self._limits.trace_bytes, self._limits.frame_bytes // 2))
        links = self._links(c)
        onward: dict[int, bool] = {}
        far = asked.hops >= HOPS_MAX
        if message is not None:
            stops = self.deciding.stops(c, message, now)
            reached = not asked.unreached
            report |= {"reached": reached, "stopped": stops}
            taken = self.deciding.takers(c, asked.envelope, message, route)
            wanted = self._link_rows(c, links, taken, bool(stops))
            report["links"] = room.fit(wanted)
            onward = {
                key: reached and row["goes"]
                for (key, _), row in zip(links, wanted, strict=True)
                if row["reason"] != "came-from"
            }
            if asked.mode == TraceMode.WHY:
                rows = self.deciding.subject(asked, message, taken, reached and not stops)
                report["subject"] = room.fit(rows)
                homes = (row for row in taken.rows if "home" in row)
                report["takers"] = room.fit(homes)  # mailboxes elsewhere that it is kept for
            elif not stops:
                report["takers"] = room.fit(taken.rows)
                room.left_out += taken.left_out
        else:
            rows = self.deciding.subject(asked, None, None, False)
            report["subject"] = room.fit(rows)
            report["told"] = room.fit(self._told(asked, links))
            onward = {key: False for key, other in links if other is not c}
        if asked.mode not in EVERYWHERE:
            onward = {key: True for key, goes in onward.items() if goes}
        if far and onward:
            report["notes"].append("too-far")
            onward = {}
        report["asked"] = [other.node.hex() for key, other in links if key in onward]
        report["left_out"] = room.left_out
        return report, onward

    def _links(self, c: Connection) -> list[tuple[int, Connection]]:
        network = self._control.network
        if network is None:
            return []
        return [(key, one) for key, one in network.links.items() if one.state is OPEN][:LINKS_MAX]

    def _notes(self, now: Now) -> list[str]:
        """What is to be known of this node."""
        network = self._control.network
        if network is None:
            return []
        settled = self._replying.settled
        notes = ["repairing"] if settled is not None and not settled(now) else []
        return [*notes, *(["leaving"] if network.departure.leaving else [])]

    def _link_rows(
        self,
        c: Connection,
        links: list[tuple[int, Connection]],
        taken: Taken,
        stopped: bool,
    ) -> list[Row]:
        """What goes to which neighbour, and why."""
        rows = []
        for key, other in links:
            assert other.session is not None
            delivery = other.session.delivery
            filter, outlet = taken.links.get(key), other.outlet
            reason = "forwarded"
            if other is c:
                reason = "came-from"
            elif stopped:
                reason = "stopped"
            elif filter is None:
                reason = "own-filter" if key in taken.screened else "no-interest"
            elif outlet.muted:
                reason = "link-muted"
            elif delivery.frozen:
                reason = "link-frozen"
            elif delivery.stalled:
                reason = "link-stalled"
            elif delivery.backlog:
                reason = "link-waits"
            row: Row = {**_neighbour(other), "reason": reason}
            row["goes"] = reason in ("forwarded", "link-waits")
            if filter is not None and other is not c:
                row["filter"] = described(filter)
            if delivery.backlog:
                row["waiting"] = delivery.backlog.messages
            rows.append(row)
        return rows

    def _told(self, asked: Trace, links: list[tuple[int, Connection]]) -> Iterator[Row]:
        """What neighbours were told of a filter."""
        network = self._control.network
        if network is None or not asked.filtered:
            return
        pattern, exact = asked.pattern, asked.exact
        if pattern == "#" or pattern.endswith("/#"):  # as the index writes it
            pattern, exact = pattern[:-2], False
        filter = Filter(pattern, exact, asked.selector)
        found = network.forwarding.explain(filter)
        for key, other in links:
            reason, told = found.get(key, ("pending", None))
            row: Row = {**_neighbour(other), "reason": reason}
            if told is not None:
                row["filter"] = described(told)
            yield row

    def _encoded(self, report: dict[str, Any]) -> bytes:
        body = json.dumps(report).encode()
        content = "application/json"
        return encode_envelope(Message(REPORT_TOPIC, body, content_type=content))


def _neighbour(other: Connection) -> Row:
    assert other.session is not None
    return {"node": other.node.hex(), "name": other.session.client_id.removeprefix("node ")}


class Room:
    """What may stand in a report, in bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.left_out = 0  # rows

    def fit(self, rows: Iterable[Row]) -> list[Row]:
        """As many rows as there is room for."""
        found: list[Row] = []
        for row in rows:
            size = 0 if self.left_out else len(json.dumps(row)) + 2
            if self.left_out or size > self._left:
                self.left_out += 1
            else:
                self._left -= size
                found.append(row)
        return found
