"""Control frames: what each of them does. The table at the end is the list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from regraft.errors import LocalError, PeerError, RegraftError, WorldError
from regraft.kernels.plan import Plan, plan_of
from regraft.limits import CLIENT_ID_BYTES_MAX, Limits
from regraft.model.identity import Identity
from regraft.model.rules import GROUP_TOPIC, SHARE_TOPIC
from regraft.model.topics import check_pattern
from regraft.model.userfilter import UserFilters
from regraft.node import administration
from regraft.node.connection import CLOSING, HELLO, LEAVING, OPEN, Connection, State
from regraft.node.contexts import Contexts
from regraft.node.custody import COMMANDS as CUSTODY_COMMANDS
from regraft.node.custody import Custody
from regraft.node.deadlines import Deadlines
from regraft.node.event import Now
from regraft.node.groups import COMMANDS as RULES_COMMANDS
from regraft.node.groups import Groups
from regraft.node.network import Network
from regraft.node.offers import Offers
from regraft.node.outflow import Outflow
from regraft.node.replying import Replying
from regraft.node.router import Authorize, Router
from regraft.node.storage import Storage
from regraft.node.transactions import COMMANDS as TX_COMMANDS
from regraft.node.transactions import Transactions
from regraft.session.backlog import Backlog
from regraft.session.session import UNLIMITED, Delivery, Session
from regraft.wire import bulk, native, offers, peers, questions, traces

if TYPE_CHECKING:
    from random import Random  # seeded, or of the system: whoever makes a node decides

FEATURES = (
    "topics",
    "selectors",
    "credit",
    "stall-policies",
    "groups",
    "replies",
    "contexts",
    "filters",
    "traces",
    "offers",
)
JOURNAL = "journal"  # and those that need one: persistent messages, durable subscriptions, replay,
TRANSACTIONS = "transactions"
MOVES = "moves"
ADVERTISEMENTS = "advertisements"  # what is published must be offered
ANONYMOUS = "anonymous"
INSPECT_ROWS = 1000  # of a list in one answer

Report = Callable[[str, int], dict[str, Any]]  # (what, rows at most)


class Control:
    """Handles the control frames of all connections."""

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        heartbeat_ms: int,
        random: Random,
        router: Router,
        outflow: Outflow,
        deadlines: Deadlines,
        authorize: Authorize,
        report: Report,
        groups: Groups,
        replying: Replying,
        contexts: Contexts,
        filters: UserFilters,
        offers: Offers,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._heartbeat_ms = heartbeat_ms
        self._random = random
        self._router = router
        self._outflow = outflow
        self._deadlines = deadlines
        self._authorize = authorize
        self._report = report
        self._groups = groups
        self._replying = replying
        self._contexts = contexts
        self._offers = offers
        self._filters = filters
        self.clients: dict[str, Connection] = {}
        self.storage: Storage | None = None
        self.administration: administration.Administration | None = None
        self.transactions: Transactions | None = None
        self.network: Network | None = None
        self.custody: Custody | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """What this node can do."""
        features = FEATURES if self.storage is None else (*FEATURES, JOURNAL, TRANSACTIONS, MOVES)
        return (*features, ADVERTISEMENTS) if self._offers.required else features

    def handle(self, c: Connection, kind: int, flags: int, payload: bytes, now: Now) -> None:
        """Do what a frame says; a `RegraftError` that is fatal ends the connection."""
        if flags:
            raise PeerError("malformed-frame", f"flags {flags:#04x} on a frame that has none")
        message = native.decode(kind, payload)
        if c.node and self.network is not None:
            self.network.handle(c, message, now)
            return
        handler = HANDLERS.get((c.state, type(message)))
        if handler is None:
            raise PeerError(
                "protocol-violation",
                f"{native.Kind(kind).name} is not allowed here"
                + ("; begin with HELLO" if c.state is HELLO else ""),
            )
        handler(self, c, message, now)

    # --------------------------------------------------------------------- opening

    def hello(self, c: Connection, hello: native.Hello, now: Now) -> None:
        """Who is it: agree on the terms, and make a session."""
        if not hello.version_min <= native.VERSION <= hello.version_max:
            raise PeerError(
                "unsupported-version",
                f"this node speaks version {native.VERSION}, the client "
                f"{hello.version_min} to {hello.version_max}",
            )
        for feature in hello.features:
            if feature.required and feature.name not in self.features:
                known = ", ".join(self.features)
                raise PeerError(
                    "unsupported-feature",
                    f"the client requires {feature.name!r}; this node has {known}",
                )
        client_id = hello.client_id or f"client-{self._random.getrandbits(64):016x}"
        if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise PeerError(
                "protocol-violation", f"a client id has {CLIENT_ID_BYTES_MAX} bytes at most"
            )
        self._take_over(client_id, now)
        c.session = self._session(c, client_id, hello)
        c.state = OPEN
        c.passive = hello.passive
        self.clients[client_id] = c
        self._router.admit(c.key, c.outlet, c.session.principal)
        c.outlet.slow = self._outflow.near_credit(c.session.delivery)
        heartbeat_ms = min(
            max(hello.heartbeat_ms or self._heartbeat_ms, self._limits.heartbeat_ms_min),
            self._limits.heartbeat_ms_max,
        )
        c.heartbeat_ns = heartbeat_ms * 1_000_000
        self._deadlines.add(now.ns + c.heartbeat_ns, "heartbeat", c.key)
        self._outflow.send(c, self._welcome(c, c.session, heartbeat_ms, now), now)

    def _session(self, c: Connection, client_id: str, hello: native.Hello) -> Session:
        limits = self._limits
        backlog = Backlog(
            min(hello.queue_messages or limits.queue_messages, limits.queue_messages),
            min(hello.queue_bytes or limits.queue_bytes, limits.queue_bytes),
        )
        delivery = Delivery(backlog, hello.when_stalled)
        if hello.credit_messages or hello.credit_bytes:
            delivery.credit_messages = min(hello.credit_messages, UNLIMITED)
            delivery.credit_bytes = min(hello.credit_bytes, UNLIMITED)
        token = self._random.getrandbits(128).to_bytes(16, "little")
        session_id = self._random.getrandbits(64)
        return Session(c.key, session_id, client_id, token, ANONYMOUS, delivery)

    def _welcome(
        self, c: Connection, session: Session, heartbeat_ms: int, now: Now
    ) -> native.Welcome:
        return native.Welcome(
            version=native.VERSION,
            features=tuple(native.Feature(name) for name in self.features),
            node_id=self._identity.node_id,
            node_name=self._identity.name,
            incarnation=self._identity.incarnation,
            client_id=session.client_id,
            session_id=session.session_id,
            token=session.token,
            heartbeat_ms=heartbeat_ms,
            credit_messages=c.window.messages,
            credit_bytes=c.window.size,
            frame_bytes_max=self._limits.frame_bytes,
            subscriptions_max=self._limits.subscriptions_per_session,
            time=now.wall_us,
            journal=self.storage.journal_id if self.storage is not None else b"",
            sequence=(
                self.storage.last_sequence(session.client_id) if self.storage is not None else 0
            ),
            **(self.transactions.welcome(session.client_id) if self.transactions else {}),
        )

    def _take_over(self, client_id: str, now: Now) -> None:
        """A client that connects again ends its older connection."""
        old = self.clients.get(client_id)
        if old is None:
            return
        error = WorldError("taken-over", f"client id {client_id!r} connected again")
        old.ending = error.code.name
        self._outflow.send(old, native.Error.of(error), now)
        self.leave(old, now)
        self._outflow.close(old, "taken over", now)

    def leave(self, c: Connection, now: Now) -> None:
        """Nothing is routed to or from this connection any more."""
        if c.session is None:
            return
        if self.transactions is not None:
            self.transactions.leave(c, now)
        if self.storage is not None:
            self.storage.leave(c, now)
        self._groups.leave_all(c.key)
        self._contexts.forget(c.key)
        self._offers.leave(c.key)
        if self.clients.get(c.session.client_id) is c:
            del self.clients[c.session.client_id]
        self._router.dismiss(c.key)

    # --------------------------------------------------------------- subscriptions

    def subscribe(self, c: Connection, message: native.Subscribe, now: Now) -> None:
        """Confirm it, then route to it; or say why not."""
        try:
            self._check_subscription(c, message)
            self._groups.check(c, message.pattern)
            if message.filter or message.filter_data:
                self._check_filter(message)
            plan = self._plan(message.selector)
            if message.durable or message.from_sequence or message.from_time:
                if message.replies:
                    text = (
                        "who replies has to be there: a durable subscription cannot, nor a replay"
                    )
                    raise LocalError("not-supported", text)
                self._subscribe_to_journal(c, message, plan, now)
                return
        except RegraftError as error:
            report = native.Error.of(error, subscription=message.id)
            self._outflow.send_in_place(c, report, now)
            return
        self._outflow.send_in_place(c, native.Subscribed(message.id), now)
        if message.replies:
            self._replying.replies(c.key, message.id)
        if self._groups.join(c, message, plan):
            return
        own = self._filters.of(message.filter, message.filter_data)
        self._router.subscribe(c.key, message.id, message.pattern, message.exact, plan, own=own)

    def _check_filter(self, message: native.Subscribe) -> None:
        self._filters.check(message.filter, message.filter_data)
        for wrong, what in (
            (message.durable, "a mailbox, whose node may not know it"),
            (message.from_sequence or message.from_time, "a replay"),
            (message.replies, "who replies: nobody could tell whose reply to wait for"),
            (
                message.pattern.startswith((SHARE_TOPIC, GROUP_TOPIC)),
                "those who share a subscription",
            ),
        ):
            if wrong:
                text = f"a filter of your own is not for {what}; filter in the program"
                raise LocalError("not-supported", text)

    def _subscribe_to_journal(
        self, c: Connection, message: native.Subscribe, plan: Plan | None, now: Now
    ) -> None:
        if self.storage is None:
            raise LocalError("not-supported", "this node keeps no journal")
        if message.durable and (message.from_sequence or message.from_time):
            raise LocalError(
                "not-supported", "a durable subscription goes on where it was; it does not replay"
            )
        if message.durable and (message.until_sequence or message.until_time):
            raise LocalError("not-supported", "a durable subscription has no end")
        mailroom = self.storage.mailroom
        if message.browse:
            mailroom.open_look(c, message, now)
        elif message.durable:
            mailroom.open_mailbox(c, message, plan, now)
        else:
            mailroom.open_replay(c, message, now)

    def _plan(self, text: str) -> Plan | None:
        if not text:
            return None
        plan = plan_of(text, self._limits.selector_bytes)
        self._router.check_cost(plan)
        return plan

    def _check_subscription(self, c: Connection, message: native.Subscribe) -> None:
        assert c.session is not None
        held = self._router.held(c.key)
        if message.id == 0:
            raise LocalError("bad-pattern", "a subscription's id must be above 0")
        if (message.id in held or self._groups.has(c.key, message.id)) or (
            self.storage is not None and self.storage.mailroom.reads(c.key, message.id)
        ):
            raise LocalError(
                "subscription-in-use", f"this session already has a subscription {message.id}"
            )
        check_pattern(message.pattern)
        limits = self._limits
        reading = self.storage.mailroom.reading(c.key) if self.storage is not None else ()
        if len({*held, *reading}) >= limits.subscriptions_per_session:
            raise LocalError(
                "limit-exceeded",
                f"a session has {limits.subscriptions_per_session} subscriptions at most "
                "(limit subscriptions_per_session)",
            )
        if self._router.size >= limits.subscriptions:
            raise LocalError(
                "limit-exceeded",
                f"this node has {limits.subscriptions} subscriptions at most (limit subscriptions)",
            )
        if not self._authorize(c.session.principal, "subscribe", message.pattern):
            raise LocalError(
                "not-authorized",
                f"{c.session.principal} may not subscribe to {message.pattern!r}",
            )

    def unsubscribe(self, c: Connection, message: native.Unsubscribe, now: Now) -> None:
        """Route to it no more, then confirm, once what was on its way has come."""
        storage = self.storage
        try:
            reads = storage is not None and storage.mailroom.close(
                c, message.id, now, message.remove
            )
            held = message.id in self._router.held(c.key)
            if self._groups.has(c.key, message.id):
                self._groups.leave(c.key, message.id)
                reads = True
            if not held and not reads:
                raise LocalError(
                    "unknown-subscription", f"this session has no subscription {message.id}"
                )
        except RegraftError as error:
            report = native.Error.of(error, subscription=message.id)
            self._outflow.send_in_place(c, report, now)
            return
        self._replying.unsubscribed(c.key, message.id)
        if held:
            self._router.unsubscribe(c.key, message.id)

        def ended(now: Now) -> None:
            if c.state is OPEN:
                self._outflow.send_in_place(c, native.Unsubscribed(message.id), now)

        def still_there(now: Now) -> None:
            if c.state is OPEN:
                error = LocalError("journal-failed", "the mailbox could not be removed for good")
                report = native.Error.of(error, subscription=message.id)
                self._outflow.send_in_place(c, report, now)

        if storage is None:
            ended(now)
        else:
            storage.when_safe(ended, now, still_there if reads and message.remove else ended)

    def advertise(self, c: Connection, message: offers.Advertise, now: Now) -> None:
        """A client says what it will publish."""
        self._offers.advertise(c, message, now)

    def unadvertise(self, c: Connection, message: offers.Unadvertise, now: Now) -> None:
        """And will not."""
        self._offers.unadvertise(c, message, now)

    def settle(self, c: Connection, message: native.Settle, now: Now) -> None:
        """A client is done with messages of a mailbox."""
        try:
            if self.storage is None:
                raise LocalError("not-supported", "this node keeps no journal")
            self.storage.mailroom.settle(c, message, now)
        except RegraftError as error:
            report = native.Error.of(error, subscription=message.subscription, settlement=True)
            self._outflow.send_in_place(c, report, now)

    def transact(self, c: Connection, message: native.Transact, now: Now) -> None:
        """Something that a client wants done together with other things."""
        if self.transactions is not None:  # else it is told when it decides
            self.transactions.transact(c, message, now)

    def decide(self, c: Connection, message: native.Decide, now: Now) -> None:
        """All of it, or nothing."""
        if self.transactions is not None:
            self.transactions.decide(c, message, now)
            return
        error = LocalError("not-supported", "this node keeps no journal")
        about = error.code.number, error.code.name, error.text
        state = native.TransactionState.ROLLED_BACK
        self._outflow.send(c, native.Decided(message.serial, message.gid, state, *about), now)

    def finished(self, c: Connection, message: native.Finished, now: Now) -> None:
        """A member of a group has less in its hands."""
        self._groups.finished(c, message.count)

    def question(self, c: Connection, message: questions.Question, now: Now) -> None:
        """A client asks everybody who takes a message."""
        self._replying.question(c, message, now)

    def trace(self, c: Connection, message: traces.Trace, now: Now) -> None:
        """A client asks what becomes of a message, or of a subscription."""
        self._replying.trace(c, message, now)

    def reply(self, c: Connection, message: questions.Reply, now: Now) -> None:
        """A client replies."""
        self._replying.reply(c, message, now)

    def withdraw(self, c: Connection, message: questions.Withdrawn, now: Now) -> None:
        """A client waits for replies no more."""
        self._replying.withdraw(c, message, now)

    def context(self, c: Connection, message: questions.Context, now: Now) -> None:
        """A client has another context."""
        try:
            self._contexts.set(c.key, message.attributes)
        except RegraftError as error:
            self._outflow.send_in_place(c, native.Error.of(error, token=message.token), now)
            return
        self._outflow.send_in_place(c, peers.Done(message.token, b"{}"), now)

    # ------------------------------------------------------------------ other nodes

    def peer(self, c: Connection, message: peers.Peer, now: Now) -> None:
        """It is another node."""
        if self.network is None:
            raise PeerError("protocol-violation", "this node takes part in no network")
        self.network.introduced(c, message, now)

    def command(self, c: Connection, message: peers.Command, now: Now) -> None:
        """Somebody wants something done by this node."""
        assert c.session is not None

        def done(answer: dict[str, Any] | RegraftError, now: Now) -> None:
            if c.state is not OPEN:
                return
            if isinstance(answer, RegraftError):
                report = native.Error.of(answer, token=message.token)
                self._outflow.send_in_place(c, report, now)
            else:
                data = json.dumps(answer).encode()
                self._outflow.send_in_place(c, peers.Done(message.token, data), now)

        try:
            if message.what in bulk.COMMANDS:
                if self.storage is None:
                    raise LocalError("not-supported", "this node keeps no journal")
                self.storage.bulk.command(c, message, now, self._authorize)
                return
            if not self._authorize(c.session.principal, "administer", message.what):
                raise LocalError(
                    "not-authorized", f"{c.session.principal} may not administer this node"
                )
            if message.what in administration.COMMANDS:
                if self.administration is None:
                    raise LocalError("not-supported", "this node keeps no journal")
                self.administration.command(message.what, message.json, now, done)
                return
            if message.what in TX_COMMANDS:
                if self.transactions is None:
                    raise LocalError("not-supported", "this node keeps no journal")
                self.transactions.command(message.what, message.json, now, done)
                return
            if message.what in RULES_COMMANDS:
                done(self._groups.command(message.what, message.json), now)
                return
            if message.what in CUSTODY_COMMANDS and self.custody is not None:
                done(self.custody.command(message.what, message.json, now), now)
                return
            if self.network is None:
                raise LocalError("not-supported", "this node takes part in no network")
            answer = self.network.operating.command(message.what, message.json, now)
        except RegraftError as error:
            done(error, now)
            return
        done(answer, now)

    # ------------------------------------------------------------------------ life

    def inspect(self, c: Connection, message: native.Inspect, now: Now) -> None:
        """Say what the node holds."""
        assert c.session is not None
        if not self._authorize(c.session.principal, "inspect", message.what):
            error = LocalError("not-authorized", f"{c.session.principal} may not inspect this node")
            self._outflow.send_in_place(c, native.Error.of(error), now)
            return
        rows = min(message.rows_max or INSPECT_ROWS, INSPECT_ROWS)
        answer = json.dumps(self._report(message.what, rows)).encode()
        self._outflow.send_in_place(c, native.Inspected(message.what, answer), now)

    def credit(self, c: Connection, message: native.Credit, now: Now) -> None:
        """A subscriber allows more."""
        self._outflow.credit(c, message, now)
        if self.storage is not None:
            self.storage.mailroom.resume(c.key, now)

    def heartbeat(self, c: Connection, message: native.Heartbeat, now: Now) -> None:
        """A sign of life; one with a token is answered in its place."""
        if message.token and not message.answer:
            self._outflow.send_in_place(c, native.Heartbeat(message.token, True), now)

    def error(self, c: Connection, message: native.Error, now: Now) -> None:
        """The client says what it does not like; a fatal one is its last word."""
        if message.fatal:
            self.bye(c, native.Bye(), now)

    def bye(self, c: Connection, message: native.Bye, now: Now) -> None:
        """All that the client sent has been dealt with: send what waits, and close."""
        c.ending = "left"
        self.leave(c, now)
        c.state = LEAVING
        storage = self.storage

        def finish(now: Now) -> None:
            if c.state is not CLOSING:
                self._outflow.flush(c, now)
                self._outflow.close(c, "the client left", now)

        if storage is None:
            finish(now)
        elif c.unsafe > storage.journal.persisted_position:
            storage.when_safe(finish, now, finish)  # its last messages are on their way
        else:
            storage.hand_on(now)
            finish(now)


Handler = Callable[[Control, Connection, Any, Now], None]

HANDLERS: dict[tuple[State, type[Any]], Handler] = {
    (HELLO, native.Hello): Control.hello,
    (OPEN, native.Subscribe): Control.subscribe,
    (OPEN, native.Unsubscribe): Control.unsubscribe,
    (OPEN, native.Credit): Control.credit,
    (OPEN, native.Heartbeat): Control.heartbeat,
    (OPEN, native.Error): Control.error,
    (OPEN, native.Settle): Control.settle,
    (OPEN, native.Finished): Control.finished,
    (OPEN, native.Transact): Control.transact,
    (OPEN, native.Decide): Control.decide,
    (OPEN, questions.Question): Control.question,
    (OPEN, traces.Trace): Control.trace,
    (OPEN, questions.Reply): Control.reply,
    (OPEN, questions.Withdrawn): Control.withdraw,
    (OPEN, questions.Context): Control.context,
    (OPEN, offers.Advertise): Control.advertise,
    (OPEN, offers.Unadvertise): Control.unadvertise,
    (OPEN, native.Inspect): Control.inspect,
    (OPEN, native.Bye): Control.bye,
    (HELLO, native.Bye): Control.bye,
    (HELLO, peers.Peer): Control.peer,
    (OPEN, peers.Command): Control.command,
}
