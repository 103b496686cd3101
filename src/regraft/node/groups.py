"""Groups: peers of a type, the rules that send them messages, and what finds nobody.

A peer type is a *group*. A client is one of them while it has a subscription to `$group/NAME`; what
rules send to that type comes under the id of this subscription. Several peers may share one
connection: their addresses begin with that of the client, and they say `$group/NAME/ADDRESS`.

A rule is a subscription that is made for the group: to `$type/NAME`, which is where messages of a
type are published. If it is for ANY, the group itself has it, and the lane picks a member; if it is
for ALL, each member has it. To be found, members also have `$search/NAME`, for types that they are
the first to answer.

Other nodes know members by their interest in `$member/TYPE/CLIENT`. A message for ANY that finds no
member here is sent on to one there, as if its sender had said `to`: so one node chooses, once.

`$share/NAME/PATTERN` is a subscription that its subscribers share, without any rule.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from regraft.errors import LocalError, PeerError, RegraftError
from regraft.kernels.envelope import fields_of
from regraft.kernels.groups import Group
from regraft.kernels.lane import MEMBERS_FULL, NO_TAKER, Source
from regraft.kernels.outlet import Outlet, Route
from regraft.kernels.plan import Plan
from regraft.limits import Limits
from regraft.model import rules as model
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.model.rules import (
    DELIVERY_ERROR,
    GROUP_TOPIC,
    MEMBER_TOPIC,
    NAME,
    NO_RULES,
    PEER_TOPIC,
    REPLY_TOPIC,
    SEARCH_TOPIC,
    SHARE_TOPIC,
    TYPE_TOPIC,
    WITHIN,
    Rules,
    decode_routes,
    parse_rules,
)
from regraft.model.topics import check_pattern
from regraft.model.varint import STRING, write_varint
from regraft.node.connection import Connection
from regraft.node.event import Now
from regraft.node.outflow import Outflow
from regraft.node.router import CUSTODY, Router
from regraft.wire import native

COMMANDS = ("rules-load", "rules-show")
TO_ALL = 1 << 30  # in the id of a member's subscription: it came by a rule for all, or to find it
IN_FLIGHT = 1024  # messages that a member may have in its hands, unless it says otherwise
OWN = -3  # the key of no connection: what this room publishes
WHY = {MEMBERS_FULL: "all are busy: their queues are full", NO_TAKER: "nobody takes it"}
NOBODY = "there is none"
TO = 3  # the number of the envelope's field
REFUSED = Route([], refusal=PeerError("bad-message", "").code.number)


@dataclass(slots=True)
class Member:
    """A client that is a peer of a type, or shares a subscription."""

    name: Any  # of its kind
    key: int
    id: int
    client: str
    outlet: Outlet
    ids: bytes  # its id, encoded as deliveries need it
    numbers: list[int] = field(default_factory=list)  # what rules made for it
    told: int = -1  # what other nodes know it by
    most: int = 0  # what its connection may have in its hands because of it


class Kind:
    """The peers of one type, or those who share one subscription."""

    def __init__(self, name: Any, shared: bool = False) -> None:
        self.name = name
        self.members: dict[tuple[int, int], Member] = {}
        self.any = Group(name, True, shared)
        self.all = Group(name, False)
        self.any_outlet = self.all_outlet = self.number = -1
        self.elsewhere: dict[str, int] = {}  # clients of other nodes, and by how many ways
        self.turn = 0

    def outlet(self, group: Group) -> Outlet:
        """What stands for the group among the takers."""
        outlet = Outlet(OWN)
        outlet.group = group
        return outlet


class Groups:
    """Knows who is there, and what the rules say about it."""

    def __init__(
        self,
        router: Router,
        outflow: Outflow,
        connections: dict[int, Connection],
        limits: Limits,
    ) -> None:
        self._router = router
        self._outflow = outflow
        self._connections = connections
        self._limits = limits
        self._source = Source(OWN)
        self._source.again = True
        self._kinds: dict[Any, Kind] = {}
        self._by_key: dict[int, dict[int, Member]] = {}
        self._entered: list[int] = []  # what rules made for groups
        self.rules = NO_RULES
        self.undelivered: dict[str, int] = {}  # messages, by why
        self.sent_on = 0  # to members elsewhere
        router.on_member = self._member_elsewhere
        router.override = self._override

    # ------------------------------------------------------------------------- members

    def has(self, key: int, id: int) -> bool:
        """Whether somebody is a member of something under this id."""
        return id in self._by_key.get(key, ())

    def check(self, c: Connection, pattern: str) -> None:
        """Refuse what cannot be subscribed to: only who is meant by an address may have it."""
        assert c.session is not None
        if pattern.startswith(CUSTODY):
            raise LocalError("not-authorized", f"{pattern!r} is for nodes only")
        if pattern.startswith(PEER_TOPIC):
            self._check_address(c, pattern[len(PEER_TOPIC) :])
        if pattern.startswith(GROUP_TOPIC):
            name, _, peer = pattern[len(GROUP_TOPIC) :].partition("/")
            self._check_name(name)
            self._check_address(c, peer or c.session.client_id)
            if set(peer or c.session.client_id) & set("/+#"):
                text = f"the id {peer or c.session.client_id!r} holds '/', '+' or '#'"
                raise LocalError("bad-pattern", f"{text}: as a peer it could not be addressed")
        if pattern.startswith(SHARE_TOPIC):
            name, slash, rest = pattern[len(SHARE_TOPIC) :].partition("/")
            self._check_name(name)
            if not slash:
                raise LocalError("bad-pattern", "share a pattern: $share/NAME/PATTERN")
            check_pattern(rest)

    def _check_address(self, c: Connection, peer: str) -> None:
        """A client has its own address, and all that begin with it and a tilde."""
        assert c.session is not None
        if peer != c.session.client_id and not peer.startswith(c.session.client_id + WITHIN):
            raise LocalError(
                "not-authorized", f"{peer!r} is the address of another client than you are"
            )

    def _check_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            text = f"{name!r:.80} is no name of a group: letters, digits, _, . and -, up to 64"
            raise LocalError("bad-pattern", text)

    def join(self, c: Connection, message: native.Subscribe, plan: Plan | None) -> bool:
        """Make a client a member, if that is what it asks for."""
        assert c.session is not None
        pattern = message.pattern
        shared = pattern.startswith(SHARE_TOPIC)
        if not shared and not pattern.startswith(GROUP_TOPIC):
            return False
        name: Any
        name, _, peer = pattern[len(GROUP_TOPIC) :].partition("/")
        if shared:
            name, peer = (pattern, message.exact, message.selector), ""
        kind = self._kind(name, shared)
        ids = _encoded(message.id)
        client = peer or c.session.client_id
        member = Member(name, c.key, message.id, client, c.outlet, ids)
        if shared and not kind.members:
            rest = pattern[len(SHARE_TOPIC) :].partition("/")[2]
            kind.number = self._router.enter(kind.any_outlet, 1, rest, message.exact, plan)
        others = self._by_key.setdefault(c.key, {})
        if not others:
            c.outlet.in_flight = c.outlet.in_flight_max = 0
            c.source.member = c.outlet
        if all(other.client != client for other in others.values()):
            most = c.session.delivery.backlog.messages_max
            member.most = most if most < self._limits.queue_messages else IN_FLIGHT
            c.outlet.in_flight_max += member.most
        kind.members[c.key, message.id] = member
        others[message.id] = member
        kind.any.add(c.outlet, ids)
        kind.all.add(c.outlet, ids)
        if not shared:
            number = self._router.number_of(c.key)
            topic = f"{MEMBER_TOPIC}{name}/{member.client}"
            member.told = self._router.enter(number, message.id, topic, True, None)
            self._apply(member)
        self._router.regroup()
        return True

    def leave(self, key: int, id: int) -> None:
        """Somebody is a member no more."""
        member = self._by_key[key].pop(id)
        heir = next((m for m in self._by_key[key].values() if m.client == member.client), None)
        if heir is None:
            member.outlet.in_flight_max -= member.most
        else:
            heir.most += member.most
        if not self._by_key[key]:
            del self._by_key[key]
        kind = self._kinds[member.name]
        del kind.members[key, id]
        kind.any.remove(member.outlet, member.ids)
        kind.all.remove(member.outlet, member.ids)
        for number in member.numbers:
            self._router.withdraw(number)
        if member.told >= 0:
            self._router.withdraw(member.told)
        if kind.number >= 0 and not kind.members:
            self._router.withdraw(kind.number)
            kind.number = -1
        self._forget(kind)
        self._router.regroup()

    def leave_all(self, key: int) -> None:
        """Somebody is gone."""
        for id in list(self._by_key.get(key, ())):
            self.leave(key, id)

    def members_of(self, name: Any) -> tuple[list[str], list[str]]:
        """The clients that are members of a group: here, and elsewhere."""
        kind = self._kinds.get(name)
        if kind is None:
            return [], []
        here = sorted({member.client for member in kind.members.values()})
        return here, [client for client in kind.elsewhere if client not in here]

    def groups_of(self, key: int) -> list[tuple[int, str]]:
        """The subscriptions by which a connection is a member, and of which groups."""
        found = self._by_key.get(key, {}).items()
        return [(id, m.name if isinstance(m.name, str) else m.name[0]) for id, m in found]

    def finished(self, c: Connection, count: int) -> None:
        """A member is done with messages that it does not answer."""
        c.outlet.in_flight = max(0, c.outlet.in_flight - count)

    def _kind(self, name: Any, shared: bool = False) -> Kind:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = Kind(name, shared)
            kind.any_outlet = self._router.admit_group(kind.outlet(kind.any))
            kind.all_outlet = self._router.admit_group(kind.outlet(kind.all))
        return kind

    def _forget(self, kind: Kind) -> None:
        """What nobody is and no rule speaks of need not be known."""
        if not (kind.members or kind.elsewhere or kind.name in self.rules.peers):
            del self._kinds[kind.name]
            self._router.dismiss_group(kind.any_outlet)
            self._router.dismiss_group(kind.all_outlet)

    def _member_elsewhere(self, more: bool, pattern: str) -> None:
        """A neighbour says that there is a member somewhere, or that it is gone."""
        name, _, client = pattern[len(MEMBER_TOPIC) :].partition("/")
        kind = self._kind(name)
        ways = kind.elsewhere.get(client, 0) + (1 if more else -1)
        if ways > 0:
            kind.elsewhere[client] = ways
        else:
            kind.elsewhere.pop(client, None)
        self._forget(kind)

    # --------------------------------------------------------------------------- rules

    def load(self, text: str, name: str = "rules") -> Rules:
        """Have another table from now on; LocalError if it is none, and the old one stays."""
        rules = parse_rules(text, name)
        for number in self._entered:
            self._router.withdraw(number)
        self._entered.clear()
        for kind in self._kinds.values():
            for member in kind.members.values():
                for number in member.numbers:
                    self._router.withdraw(number)
                member.numbers.clear()
        self.rules = rules
        for type, routes in rules.routes.items():
            for route in routes:
                kind = self._kind(route.to)
                outlet = kind.all_outlet if route.all else kind.any_outlet
                if not route.all or route.missing_is_error:
                    topic = TYPE_TOPIC + type
                    self._entered.append(self._router.enter(outlet, 1, topic, True, None, False))
        for kind in list(self._kinds.values()):
            for member in kind.members.values():
                self._apply(member)
            self._forget(kind)
        self._router.regroup()
        return rules

    def _apply(self, member: Member) -> None:
        """Make the subscriptions that rules ask for, for one member."""
        if member.told < 0:  # it shares a subscription: no rule speaks of that
            return
        name = member.name
        number = self._router.number_of(member.key)
        for type, routes in self.rules.routes.items():
            for place, route in enumerate(routes):
                if route.to != name:
                    continue
                topics = [TYPE_TOPIC + type] if route.all else []
                if place == 0:
                    topics.append(SEARCH_TOPIC + type)
                for topic in topics:
                    entered = self._router.enter(number, member.id | TO_ALL, topic, True, None)
                    member.numbers.append(entered)

    def _override(self, data: bytes) -> Route:
        """The route of messages that carry their own rules."""
        try:
            routes = decode_routes(data)
        except RegraftError:
            return REFUSED
        takers: dict[int, tuple[Outlet, bytes]] = {}
        groups = []
        for one in routes:
            kind = self._kinds.get(one.to) or Kind(one.to)
            if not one.all:
                groups.append(kind.any)
                continue
            if one.missing_is_error and not kind.members:
                groups.append(kind.all)
            for member in kind.members.values():
                takers[member.key] = member.outlet, _encoded(member.id | TO_ALL)
        route = Route(list(takers.values()))
        route.kept = Route(list(takers.values()))
        route.kept.waits = True
        route.groups = groups or None
        return route

    # ------------------------------------------------------------------ what finds nobody

    def place(self, now: Now) -> None:
        """See to messages that nobody took who should have."""
        lane = self._router.lane
        while found := lane.take_unplaced():
            for key, group, why, frame in found:
                message = decode_envelope(frame[native.HEADER_BYTES :])
                name = group.key if group is not None else None
                if group is None or not self._send_on(group, message, frame, now):
                    self._undelivered(key, name, why, message, frame, now)
            dirty = lane.take_dirty()
            if dirty:
                self._outflow.deliver(dirty, None, False, now)

    def _send_on(self, group: Group, message: Message, frame: bytes, now: Now) -> bool:
        """Have a member at another node get it, in turn; whether there is one."""
        kind = self._kinds.get(group.key)
        if kind is None:
            return False
        clients = [client for client in kind.elsewhere if self._router.leads(PEER_TOPIC + client)]
        if not clients:
            return False
        if not group.any:
            return True  # all of them get it by subscriptions of their own
        kind.turn += 1
        client = clients[kind.turn % len(clients)]
        envelope = frame[native.HEADER_BYTES :]
        if any(number == TO for number, _, _ in fields_of(envelope) or ()):  # an empty one
            envelope = encode_envelope(replace(message, to=client))
        else:
            envelope += STRING.write(TO, client)
        addressed = native.frame(native.Kind.MESSAGE, envelope)
        if len(addressed) > self._limits.frame_bytes:
            return False
        self._publish(addressed, now)
        self.sent_on += 1
        return True

    def _undelivered(
        self, key: int, name: Any, why: int, message: Message, frame: bytes, now: Now
    ) -> None:
        type = message.topic.removeprefix(TYPE_TOPIC)
        route: model.Route | None = None
        if name is not None and message.override_rules:
            routes = decode_routes(message.override_rules)
            route = next((one for one in routes if one.to == name), None)
        elif name is not None:
            route = self.rules.route_to(type, name)
        peer = name if isinstance(name, str) else ""
        reason = WHY.get(why, NOBODY)
        if route is not None and not route.missing_is_error and why != MEMBERS_FULL:
            return
        if message.topic.startswith(TYPE_TOPIC) and name is None and not message.to:
            reason = f"there is no rule for {type}"
        self._count("full" if why == MEMBERS_FULL else "nobody" if peer else "no-taker")
        asked = message.report_delivery_error or (route.report if route is not None else not peer)
        c = self._connections.get(key)
        sender = message.sender
        if not sender and c is not None and c.session is not None and not c.node:
            sender = c.session.client_id
        if not asked or not sender or message.type == DELIVERY_ERROR:
            return
        original = message.include_original or (route is not None and route.original)
        report = Message(
            topic=REPLY_TOPIC,
            to=sender,
            type=DELIVERY_ERROR,
            references=message.id,
            workflow=message.workflow,
            attributes={"reason": reason, "type": type, "peer": peer},
            body=frame[native.HEADER_BYTES :] if original else b"",
        )
        if len(report.body) + 2048 > self._limits.frame_bytes:
            report = replace(report, body=b"")
        self._publish(native.frame(native.Kind.MESSAGE, encode_envelope(report)), now)

    def _count(self, reason: str) -> None:
        self.undelivered[reason] = self.undelivered.get(reason, 0) + 1

    def _publish(self, frame: bytes, now: Now) -> None:
        self._router.lane.run(self._source, memoryview(frame), 0, now.wall_us)
        self._source.refusals = []

    # ---------------------------------------------------------------------------- people

    def command(self, what: str, data: bytes) -> dict[str, Any]:
        """`regraft rules`: load a table, or show it."""
        if what == "rules-load":
            text, name = _arguments(data)
            self.load(text, name)
        rules = self.rules
        return {"text": rules.text, "types": len(rules.routes), "peers": len(rules.peers)}

    def report(self, rows_max: int) -> dict[str, Any]:
        """Who is there: `regraft services`."""
        rows = []
        for kind in self._kinds.values():
            name = kind.name if isinstance(kind.name, str) else kind.name[0]
            for member in kind.members.values():
                rows.append(
                    {
                        "peer": name,
                        "client": member.client,
                        "here": True,
                        "in_flight": member.outlet.in_flight,
                        "in_flight_max": member.outlet.in_flight_max,
                    }
                )
            here = {member.client for member in kind.members.values()}
            for client in kind.elsewhere:
                if client not in here:
                    rows.append({"peer": name, "client": client, "here": False})
        return {
            "rows": rows[:rows_max],
            "total": len(rows),
            "shown": min(len(rows), rows_max),
            "types": len(self.rules.routes),
            "picked": {
                kind.name: kind.any.picked
                for kind in self._kinds.values()
                if isinstance(kind.name, str)
            },
            **self.snapshot(),
        }

    def snapshot(self) -> dict[str, Any]:
        """What it has counted."""
        return {"undelivered": dict(self.undelivered), "sent_on": self.sent_on}


def _encoded(id: int) -> bytes:
    """The id of a subscription, as the header of a run has it."""
    packed = write_varint(id)
    return b"\x12" + write_varint(len(packed)) + packed


def _arguments(data: bytes) -> tuple[str, str]:
    try:
        given = json.loads(data)
        text, name = given["text"], given.get("name", "rules")
        if not isinstance(text, str) or not isinstance(name, str):
            raise TypeError("text and name are strings")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LocalError("bad-message", f"rules-load needs a text: {error}") from None
    return text, name[:255]
