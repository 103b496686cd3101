"""What a node decides about one message, said in reasons: for `tracing`.

It looks at what the lane looks at, in the same order, and changes nothing: the match index says
which filters match, the takers who has them; then come contexts, groups, mailboxes, queues.

Bugs that tests plant: "blind-trace", filters with a selector are not seen; "homeless-trace", the
context of receivers is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from regraft.errors import LocalError
from regraft.journal.streams import Mailbox, Stream
from regraft.kernels.outlet import Outlet, Route
from regraft.kernels.takers import PASSING
from regraft.model.message import DeliveryMode, Message, encode_envelope
from regraft.model.rules import PEER_TOPIC, TYPE_TOPIC
from regraft.model.selector import Selector
from regraft.model.selector.culprits import culprits
from regraft.model.topic_mismatch import mismatch
from regraft.node.connection import Connection
from regraft.node.contexts import Contexts
from regraft.node.control import Control
from regraft.node.event import Now
from regraft.node.groups import TO_ALL, Groups
from regraft.node.router import Router
from regraft.routing.filters import Filter
from regraft.wire.traces import Trace

Row = dict[str, Any]

TAKERS_MAX = 1000  # besides links, that are looked at one by one
NAMED_MAX = 20  # members of a group, and mailboxes of another node


@dataclass(slots=True)
class Taken:
    """Who takes a message here."""

    links: dict[int, Filter] = field(default_factory=dict)  # by connection: what it wants it by
    screened: set[int] = field(default_factory=set)  # links of which a filter of its own says no
    rows: list[Row] = field(default_factory=list)
    left_out: int = 0  # others
    filters: frozenset[int] = frozenset()  # that match, as the index has them


@dataclass(slots=True)
class Deciding:
    """Looks into the rooms of a node."""

    router: Router
    groups: Groups
    contexts: Contexts
    control: Control
    connections: dict[int, Connection]
    bugs: frozenset[str] = frozenset()

    # ------------------------------------------------------------------ what stops it

    def is_expired(self, message: Message, now: Now) -> bool:
        """Whether it is too late for it."""
        return bool(message.expiration_us) and (message.expiration_us or 0) <= now.wall_us

    def is_kept(self, message: Message) -> bool:
        """Whether it is persistent, by its own word or by that of its topic."""
        if message.delivery_mode is DeliveryMode.PERSISTENT:
            return True
        return self.control.storage is not None and self.router.persists(message.topic)

    def stops(self, c: Connection, message: Message, now: Now) -> list[Row]:
        """What keeps a message from going anywhere."""
        found = [{"reason": name} for name in self._stops(c, message, now)]
        if message.where:
            try:
                Selector.parse(message.where)
            except LocalError as error:
                found.append({"reason": "bad-selector", "text": error.text})
        return found

    def _stops(self, c: Connection, message: Message, now: Now) -> Iterator[str]:
        if self.is_expired(message, now):
            yield "expired"
        if c.node:
            return  # the rest was decided where it was published
        refusal = self.router.refusal_of(c.key, message.topic)
        if refusal:
            yield refusal
        storage, kept = self.control.storage, message.delivery_mode is DeliveryMode.PERSISTENT
        delayed = (message.deliver_at_us or 0) > now.wall_us
        if message.where and (kept or message.deliver_at_us):
            yield "not-supported"
        elif (kept or delayed) and storage is None:
            yield "no-journal"
        elif kept and storage is not None and storage.keeper.refusal:
            yield "journal-failed"
        elif delayed:
            yield "delayed"

    # --------------------------------------------------------------------- who takes it

    def takers(
        self, c: Connection, envelope: bytes, message: Message, route: Route | None
    ) -> Taken:
        """Who takes it; if it is published really, those whom the lane has found."""
        if message.to:  # it goes to an address, whatever its topic is
            envelope = encode_envelope(replace(message, topic=PEER_TOPIC + message.to, to=""))
        found = Taken()
        if message.override_rules and not message.to:
            row = {"kind": "group", "gets": False, "reason": "not-supported"}
            found.rows.append(row | {"text": "the message carries rules of its own"})
            return found
        taking = self.router.taking(envelope, TAKERS_MAX)
        found.left_out, found.filters = taking.left_out, taking.filters
        for outlet, id, pattern, exact, selector in taking.takers:
            filter = Filter(pattern, exact, selector)
            if selector and "blind-trace" in self.bugs:
                continue
            if outlet.group is not None and outlet.group.screen is not None:
                passes, outlet = outlet.group.screen(envelope), outlet.group.outlets[0]
                if not passes and outlet.link:
                    found.screened.add(outlet.key)
                elif not passes:
                    other = self.connections.get(outlet.key)
                    row = self._client(other, outlet, id, message, filter)
                    found.rows.append(row | {"gets": False, "reason": "own-filter"})
                if not passes:
                    continue
            if outlet.link:
                found.links.setdefault(outlet.key, filter)
            elif outlet.group is not None:
                found.rows.append(self._group(c, outlet, message, filter))
            elif outlet.slot >= 0:
                stream = self._stream(c, outlet.slot, message, filter, route is not None)
                found.rows.extend(stream)
            elif outlet.key >= 0:
                other = self.connections.get(outlet.key)
                found.rows.append(self._client(other, outlet, id, message, filter))
        if route is not None:
            self._picked(route, found)
        if message.topic.startswith(TYPE_TOPIC) and not found.rows and not found.links:
            found.rows.append({"kind": "group", "gets": False, "reason": "no-rule"})
        return found

    def _picked(self, route: Route, found: Taken) -> None:
        """Of groups the lane has picked members: those who take it by nothing else."""
        known = {row.get("connection") for row in found.rows} | found.links.keys()
        for outlet in route.outlets:
            c = self.connections.get(outlet.key)
            if outlet.key not in known and not outlet.link and c is not None and c.session:
                row: Row = {"kind": "member", "connection": outlet.key, "gets": True}
                found.rows.append(row | {"client": c.session.client_id, "reason": "picked"})

    def _client(
        self, c: Connection | None, outlet: Outlet, id: int, message: Message, filter: Filter
    ) -> Row:
        """A subscription of a client."""
        row: Row = {"kind": "subscription", "connection": outlet.key, **described(filter)}
        row["subscription"] = id & ~(PASSING | TO_ALL)
        if c is None or c.session is None:
            return row | {"client": "", "gets": False, "reason": "stalled"}
        delivery = c.session.delivery
        row["client"] = c.session.client_id
        reason = "delivered"
        if id & PASSING:
            row["kind"] = "mailbox"
            reason = "by-mailbox" if self.is_kept(message) else "read-now"
        if message.where and not self._fits(outlet.key, message):
            reason = "context"
        elif delivery.stalled:
            reason = "stalled"
        elif delivery.backlog:
            reason = "waits"
            row["waiting"] = delivery.backlog.messages
        row["gets"] = reason in ("delivered", "read-now", "waits")
        return row | {"reason": reason}

    def _fits(self, key: int, message: Message) -> bool:
        if "homeless-trace" in self.bugs:
            return True
        try:
            return Selector.parse(message.where).matches(self.contexts.message_for(key, message))
        except LocalError:
            return False

    def _stream(
        self, c: Connection, slot: int, message: Message, filter: Filter, published: bool
    ) -> Iterator[Row]:
        """A mailbox or a stream of the journal; or a node that has mailboxes."""
        storage = self.control.storage
        stream = storage.journal.by_slot(slot) if storage is not None else None
        if stream is None or storage is None:
            return
        kept = self.is_kept(message)
        row: Row = {**described(filter), "gets": False}
        if stream.name.startswith("$"):
            if kept and not c.node:
                yield from self._homes(stream, filter)
            return
        row |= {"kind": "mailbox" if isinstance(stream, Mailbox) else "stream", "name": stream.name}
        if not kept:
            reason = "not-persistent"
        elif c.node and message.delivery_mode is DeliveryMode.PERSISTENT:
            reason = "kept-by-origin"
        elif published:
            reason = "not-by-trace"
        elif stream.number in storage.journal.quotas.full:
            reason = "mailbox-full"
        else:
            reason = "kept"
        if message.where:
            reason = "no-context"
        yield row | {"reason": reason, "gets": reason == "kept"}

    def _homes(self, stream: Stream, filter: Filter) -> Iterator[Row]:
        """The mailboxes of another node, which this one keeps it for."""
        custody = self.control.custody
        if custody is None or custody.consigning is None:
            return
        for one in custody.consigning.all.values():
            home = custody.homes.known.get(one.journal)
            if one.mailbox is not stream or home is None:
                continue
            named = (durable for durable in home.interests.values() if durable.filter == filter)
            for durable in islice(named, NAMED_MAX):
                row: Row = {"kind": "mailbox", "name": durable.name, "home": home.node.hex()}
                row |= {"home_name": home.name, **described(filter)}
                refused = custody.consigning.refuses(one)
                yield row | {"gets": not refused, "reason": "kept-elsewhere"}

    def _group(self, c: Connection, outlet: Outlet, message: Message, filter: Filter) -> Row:
        """A group of peers or of sharers, of which one gets it."""
        group = outlet.group
        name = group.key if isinstance(group.key, str) else group.key[0]
        members, elsewhere = self.groups.members_of(group.key)
        row: Row = {"kind": "group", "name": name, "shared": group.shared, **described(filter)}
        row |= {"members": members[:NAMED_MAX], "member_count": len(members)}
        free = any(one.in_flight < one.in_flight_max for one in group.outlets)
        if c.node and not group.shared:
            reason = "chosen"
        elif not group.any:
            reason = "delivered" if members else "sent-on" if elsewhere else "nobody"
        elif free:
            reason = "one-of"
        elif elsewhere:
            reason = "sent-on"
            row["elsewhere"] = elsewhere[:NAMED_MAX]
        else:
            reason = "group-full" if members else "nobody"
        gets = reason in ("one-of", "sent-on") and group.any
        return row | {"gets": gets, "reason": reason}

    # ------------------------------------------------------------------- why one does not

    def subject(
        self, asked: Trace, message: Message | None, taken: Taken | None, comes: bool
    ) -> Iterator[Row]:
        """The subscriptions that a trace is about, as far as they are here, and what becomes."""
        if asked.client:
            c = self.control.clients.get(asked.client)
            if c is not None:
                yield from self._of_client(c, asked, message, taken, comes)
        storage = self.control.storage
        if asked.durable and storage is not None:
            mailbox = storage.journal.state.mailboxes.get(asked.durable)
            if mailbox is not None and not mailbox.name.startswith("$"):
                yield self._of_mailbox(mailbox, message)

    def _of_client(
        self, c: Connection, asked: Trace, message: Message | None, taken: Taken | None, comes: bool
    ) -> Iterator[Row]:
        storage = self.control.storage
        reading = storage.mailroom.boxes.members.get(c.key, {}) if storage is not None else {}
        for id, box in ((id, box) for id, (box, _) in reading.items()):
            if asked.subscription in (0, id):
                row: Row = self._of_mailbox(box.mailbox, message) | {"subscription": id}
                if row.get("reason") == "not-persistent" and id in self.router.held(c.key):
                    row |= {"gets": comes, "reason": "read-now" if comes else "unreached"}
                yield row
        for id, name in self.groups.groups_of(c.key):
            if asked.subscription in (0, id):
                row = {"kind": "group", "subscription": id, "name": name}
                yield row | ({"gets": False, "reason": "member"} if message is not None else {})
        for id, number, written, own in self.router.filters_of(c.key):
            if id in reading or asked.subscription not in (0, id):
                continue
            filter = Filter(*written)
            row = {"kind": "subscription", "subscription": id, **described(filter)}
            row |= {"filter": own.name} if own is not None else {}
            if message is None:
                yield row
                continue
            row |= self._verdict(filter, message)
            if row["reason"] == "delivered" and taken is not None:
                found = self._client(c, c.outlet, id, message, filter)
                row |= {
                    name: found[name] for name in ("gets", "reason", "waiting") if name in found
                }
                if row["reason"] == "context":
                    row["culprits"] = self._where(c.key, message)
                elif own is not None and own.known and not own.passes(asked.envelope):
                    row |= {"gets": False, "reason": "own-filter"}
                elif number not in taken.filters:
                    row |= {"gets": False, "reason": "index"}
            if not comes and row["gets"]:
                row |= {"gets": False, "reason": "unreached"}
            yield row

    def _of_mailbox(self, mailbox: Mailbox, message: Message | None) -> Row:
        filter = Filter(mailbox.pattern, mailbox.exact, mailbox.selector)
        row: Row = {"kind": "mailbox", "name": mailbox.name, **described(filter)}
        if message is None:
            return row
        row |= self._verdict(filter, message)
        if row["reason"] == "delivered":
            storage = self.control.storage
            full = storage is not None and mailbox.number in storage.journal.quotas.full
            reason = "mailbox-full" if full else "kept"
            if message.where:
                reason = "no-context"
            elif not self.is_kept(message):
                reason = "not-persistent"
            row |= {"reason": reason, "gets": reason == "kept"}
        return row

    def _verdict(self, filter: Filter, message: Message) -> Row:
        """Whether a filter takes a message; if not, where it fails."""
        topic = PEER_TOPIC + message.to if message.to else message.topic
        text = mismatch(filter.pattern, topic, filter.exact)
        if text:
            return {"gets": False, "reason": "pattern", "text": text}
        if filter.selector:
            selector = Selector.parse(filter.selector)
            truth = selector.evaluate(message)
            if truth is not True:
                reason = "selector-unknown" if truth is None else "selector-false"
                return {"gets": False, "reason": reason, "culprits": culprits(selector, message)}
        return {"gets": True, "reason": "delivered"}

    def _where(self, key: int, message: Message) -> list[Row]:
        try:
            selector = Selector.parse(message.where)
        except LocalError:
            return []
        return culprits(selector, self.contexts.message_for(key, message))


def described(filter: Filter) -> Row:
    """A filter in a row."""
    return {"pattern": filter.pattern, "exact": filter.exact, "selector": filter.selector}
