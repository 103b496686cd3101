"""Transactions: what is published and accepted in one counts all together, or not at all.

The node is told what a transaction does while it goes on, and keeps it to itself until it is told
to commit. If the answer to that is lost, the client asks over the next connection what became of
it; the node knows by the serial number that the transaction has.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from regraft.client.current import CURRENT
from regraft.client.durable import Durable, Settlement, add_to, joined
from regraft.client.payload import encode_body, encode_headers, special_headers
from regraft.client.queue import QueueOptions, made_options
from regraft.client.upkeep import Upkeep, log
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.kernels.outbox import Outbox
from regraft.model.message import Value
from regraft.model.topics import check_pattern, check_topic
from regraft.wire import native
from regraft.wire.native import Decision, Outcome, TransactionState

if TYPE_CHECKING:
    from regraft.client.link import Link

PART_BYTES = 65_536  # of what is published, in one frame
BESIDE_BYTES = 256  # of a frame
PERSISTENT = b"\x70\x01"  # the delivery mode, in an envelope
TIMEOUT_S = 30.0


class Transaction:
    """A unit of work. Make one with `client.transaction()`, and use it as a context.

    What is published by its client in the context, and what is accepted of the client's durable
    subscriptions and queues, counts when the context is left, all of it or nothing. If it is left
    by an error, nothing does: messages that were taken or accepted in it come again.
    """

    def __init__(self, client: Transacting, timeout: float | None = TIMEOUT_S) -> None:
        self._client = client
        self._timeout = timeout
        self._link: Link | None = None
        self._journal = b""
        self._token: Token[Transaction | None] | None = None
        self._kept: Outbox | None = None  # persistent messages,
        self._passing: Outbox | None = None  # and others
        self._parts = 0
        self._taken: dict[Durable, list[int]] = {}  # what the application got in it
        self._accepted: dict[Durable, dict[int, ReceivedMessage]] = {}
        self._made: list[native.Subscribe] = []
        self._removed: list[str] = []
        self._topics: dict[str, bytes] = {}  # as they are sent
        self.serial = 0
        self.gid = ""  # the name that it was prepared under
        self.is_over = False  # it was committed, or rolled back, or left to others

    # -------------------------------------------------------------------------- life

    async def begin(self) -> Transaction:
        """Begin. Entering its context does this."""
        client = self._client
        await client._wait_for_link(self._timeout)
        link = client._link
        assert link is not None and client._welcome is not None
        self._link, self._journal = link, client._journal
        client._serial += 1
        self.serial = client._serial
        most = link.outbox.frame_bytes_max
        self._kept = Outbox(most, random.getrandbits(63))
        self._passing = Outbox(most, random.getrandbits(63))
        return self

    async def __aenter__(self) -> Transaction:
        await self.begin()
        self._enter()
        return self

    def _enter(self) -> None:
        outer = CURRENT.get()
        if outer is not None and not outer.is_over:
            text = "a transaction within another: it has one client, on one node"
            raise LocalError("not-supported", text)
        self._token = CURRENT.set(self)
        self._client._transactions += 1

    def _leave(self) -> None:
        if self._token is not None:
            CURRENT.reset(self._token)
            self._token = None
            self._client._transactions -= 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._give_back()
        if self.is_over:
            return
        if error is None:
            await self.commit()
        elif self.gid:
            log.warning("transaction %r is left in doubt: decide it", self.gid)
            self.is_over = True
        else:
            self._forget()

    async def commit(self) -> int:
        """Have all of it count; how many messages it published. Leaving its context does this.

        Raises why it was rolled back; or, with the code `in-doubt`, that nobody knows.
        """
        self._check_open()
        if self.gid:
            decided = await self._decide_prepared(Decision.COMMIT)
        else:
            try:
                self._send_rest()
                decided = await self._decide(Decision.COMMIT)
            except RegraftError as error:
                self._failed(error)
                raise
        if decided.state is not TransactionState.COMMITTED:
            reason = self._reason(decided)
            self._failed(reason)
            raise reason
        self.is_over = True
        return decided.messages

    async def rollback(self) -> None:
        """Have nothing of it count: what it accepted comes again."""
        self._check_open()
        if self.gid:
            decided = await self._decide_prepared(Decision.ROLLBACK)
            self.is_over = True
            if decided.state is not TransactionState.ROLLED_BACK:
                raise self._reason(decided)
        else:
            self._forget()

    async def prepare(self, gid: str) -> None:
        """The first of two phases: from now on it can be committed, whatever happens.

        It waits under this name, over crashes of this client and of the node, until it is committed
        or rolled back: here, by another client's `decide`, or by `regraft tx`. If the context is
        left by an error then, it is left in doubt.
        """
        self._check_open()
        if self.gid or not gid:
            raise LocalError("bad-message", "a transaction is prepared once, and under a name")
        self.gid = gid
        try:
            self._send_rest()
            decided = await self._decide(Decision.PREPARE)
        except RegraftError as error:
            if error.code.name != "in-doubt":
                self.gid = ""
                self._failed(error)
            raise
        if decided.state is not TransactionState.PREPARED or decided.code:
            self.gid = ""
            reason = self._reason(decided)
            self._failed(reason)
            raise reason

    # ----------------------------------------------------------------- what it does

    async def publish(
        self,
        topic: str,
        body: Any = b"",
        *,
        attributes: Mapping[str, Value] | None = None,
        persistent: bool = True,
        priority: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        message_id: int | None = None,
        **headers: Any,
    ) -> None:
        """Publish a message with the transaction: see `Client.publish`.

        It is persistent, unless it is said otherwise; then it is delivered once the transaction is
        safe, to those who are there.
        """
        self._check_open()
        if self.gid:
            raise LocalError("not-supported", "the transaction is prepared: nothing is added to it")
        if not (priority is ttl is delay is deliver_at is message_id is None):
            headers |= special_headers(priority, ttl, delay, deliver_at, message_id)
        persistent = persistent or headers.get("deliver_at_us") is not None
        if self._client._promises:
            self._client._check_promise(topic, body, attributes, headers)
        if type(body) is not bytes:
            body, kind = encode_body(body)
            headers = {**kind, **headers}
        encoded = self._topics.get(topic)
        if encoded is None:
            check_topic(topic)
            encoded = self._topics[topic] = topic.encode()
        options = self._client.options
        outbox = self._kept if persistent else self._passing
        assert outbox is not None, "it was begun"
        rest = (encode_headers(headers) if headers else b"") + self._client._context_bytes
        outbox.put(
            encoded,
            body,
            attributes,
            time.time_ns() // 1000 if options.timestamps else 0,
            options.message_ids and message_id is None,
            rest + PERSISTENT if persistent else rest,
        )
        if outbox.used >= PART_BYTES:
            self._send_messages()
            while not self._client._writable and self._client._link is self._link:
                self._client._room.clear()
                await self._client._room.wait()

    async def publish_many(self, topic: str, bodies: Iterable[Any], **more: Any) -> int:
        """Publish many messages to one topic, and return how many."""
        count = 0
        for body in bodies:
            await self.publish(topic, body, **more)
            count += 1
        return count

    async def create_queue(
        self,
        name: str,
        topic: str = "",
        *,
        where: str = "",
        exact: bool = False,
        **options: Unpack[QueueOptions],
    ) -> None:
        """Have a queue made with the transaction; it gets what the transaction publishes."""
        told = json.dumps(made_options(options)).encode()
        self._make(name, topic or name, where, exact, told)

    async def create_mailbox(
        self, name: str, pattern: str = "", *, where: str = "", exact: bool = False
    ) -> None:
        """Have a durable subscription made with the transaction, to be read after it."""
        self._make(name, pattern, where, exact, b"")

    async def remove_queue(self, name: str) -> None:
        """Have a queue or durable subscription removed with the transaction; nobody may read it."""
        self._check_open()
        self._removed.append(name)

    def _make(self, name: str, pattern: str, where: str, exact: bool, options: bytes) -> None:
        self._check_open()
        check_pattern(pattern)
        if not name:
            raise LocalError("bad-pattern", "a durable subscription needs a name")
        wanted = native.Subscribe(0, pattern, where, exact, durable=name, options=options)
        self._made.append(wanted)

    def takes(self, client: object) -> bool:
        """Whether what this client does belongs to it."""
        return client is self._client and not self.is_over

    def taken(self, durable: Durable, sequence: int) -> None:
        """A message of a mailbox is in the application's hands; it need not come to accept it."""
        if self.takes(durable.client):
            self._taken.setdefault(durable, []).append(sequence)

    def settle(self, durable: Durable, message: ReceivedMessage, how: Settlement) -> None:
        """A message of a mailbox is to be accepted."""
        check_outcome(how.outcome)
        if self.gid:
            raise LocalError("not-supported", "the transaction is prepared: nothing is added to it")
        if self._client._link is not self._link:
            raise self._lost()
        del durable._handed[message.sequence]
        self._accepted.setdefault(durable, {})[message.sequence] = message

    # --------------------------------------------------------------------- sending it

    def _check_open(self) -> None:
        if self.is_over:
            raise LocalError("closed", "this transaction is over")
        if self._kept is None:
            raise LocalError("closed", "this transaction has not begun; use it as a context")

    def _lost(self) -> WorldError:
        return WorldError("rolled-back", "rolled back: the connection was lost before the commit")

    def _send(self, part: native.Transact) -> None:
        if self._client._link is not self._link:
            raise self._lost()
        self._parts += 1
        self._client._write(native.encode(part))

    def _chunk(self) -> int:
        welcome = self._client._welcome
        most = welcome.control_bytes_max if welcome is not None else 0
        return min(PART_BYTES, most or PART_BYTES) - BESIDE_BYTES

    def _send_messages(self) -> None:
        chunk = self._chunk()
        assert self._kept is not None and self._passing is not None
        kept, passing = self._kept.take(), self._passing.take()
        for at in range(0, len(kept), chunk):
            self._send(native.Transact(self.serial, kept[at : at + chunk]))
        for at in range(0, len(passing), chunk):
            self._send(native.Transact(self.serial, passing=passing[at : at + chunk]))

    def _send_rest(self) -> None:
        self._send_messages()
        many = self._chunk() // 24  # a range has two numbers
        for durable, messages in self._accepted.items():
            ranges: list[tuple[int, int]] = []
            for sequence in sorted(messages):
                add_to(ranges, sequence)
            ranges = joined(ranges)
            for at in range(0, len(ranges), many):
                numbers = tuple(n for pair in ranges[at : at + many] for n in pair)
                settle = native.Settle(durable.id, numbers)
                self._send(native.Transact(self.serial, settle=(settle,)))
        for wanted in self._made:
            self._send(native.Transact(self.serial, subscribe=(wanted,)))
        for name in self._removed:
            self._send(native.Transact(self.serial, remove=(name,)))

    # --------------------------------------------------------------------- deciding it

    async def _decide(self, decision: Decision) -> native.Decided:
        """Say what is to become of it; if the answer is lost, find out."""
        question = native.Decide(self.serial, self.gid, decision, self._parts)
        try:
            return await self._client._decide(question, self._timeout)
        except WorldError as error:
            if error.code.name != "connection-lost":
                raise _in_doubt(error) from None
        gid = self.gid if decision is Decision.PREPARE else ""
        return await self._find_out(native.Decide(0 if gid else self.serial, gid, Decision.ASK))

    async def _decide_prepared(self, decision: Decision) -> native.Decided:
        return await self._find_out(native.Decide(0, self.gid, decision))

    async def _find_out(self, question: native.Decide) -> native.Decided:
        """Ask over any connection, until there is an answer: it does no harm to ask twice."""
        client = self._client
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    await client._wait_for_link(None)
                    if client._journal != self._journal or client._welcome is None:
                        text = f"{client.node_name!r} is another node, and does not know"
                        raise WorldError("in-doubt", text)
                    try:
                        return await client._decide(question, None)
                    except WorldError as error:
                        if error.code.name != "connection-lost":
                            raise
        except TimeoutError:
            raise _in_doubt(f"no answer within {self._timeout} s") from None
        except LocalError as error:
            raise _in_doubt(error) from None

    def _reason(self, decided: native.Decided) -> RegraftError:
        """Why it did not become what it should."""
        error = decided.error()
        if error is not None:
            return error
        if decided.state is TransactionState.COMMITTED:
            return LocalError("unknown-transaction", f"{self.gid!r} was committed by somebody")
        if decided.state is TransactionState.ROLLED_BACK:
            return (
                self._lost()
                if not self.gid
                else WorldError("rolled-back", f"{self.gid!r} was rolled back by somebody")
            )
        return _in_doubt("the node does not know it")

    def _failed(self, error: RegraftError) -> None:
        """It was rolled back, or nobody knows."""
        if error.code.name in ("in-doubt", "sequence-too-old", "journal-failed"):
            self.is_over = not self.gid
        elif not self.gid:
            self._forget(False)

    def _give_back(self) -> None:
        """What was taken in it and not accepted comes again: nobody will accept it any more."""
        for durable, sequences in self._taken.items():
            for sequence in sequences:
                durable.give_back(sequence)
        self._taken.clear()

    def _forget(self, tell: bool = True) -> None:
        """Nothing of it counts: what it took and accepted comes again."""
        self.is_over = True
        self._give_back()
        client = self._client
        if client._link is not self._link:
            return  # that the connection was lost says it all
        if tell and self._parts:
            question = native.Decide(self.serial, "", Decision.ROLLBACK)
            client._write(native.encode(question))
        token = CURRENT.set(None)
        for durable, messages in self._accepted.items():
            for sequence, message in messages.items():
                durable._handed[sequence] = message
                durable.settle_sequence(sequence, Settlement.release())
        CURRENT.reset(token)


def check_outcome(outcome: Outcome) -> None:
    """In a transaction messages are accepted, and nothing else."""
    if outcome is not Outcome.ACCEPT:
        text = f"a transaction accepts messages; {outcome.name.lower()} them outside of it"
        raise LocalError("not-supported", text)


def _in_doubt(why: object) -> WorldError:
    return WorldError("in-doubt", f"nobody knows how the transaction ended: {why}")


class Transacting(Upkeep):
    """The part of a client that has to do with transactions."""

    _promises: bool  # of `Offering`
    _check_promise: Callable[..., None]

    def transaction(self, *, timeout: float | None = TIMEOUT_S) -> Transaction:
        """A unit of work: use it as a context.

        What this client publishes in the context, and what is accepted of its queues and durable
        subscriptions, counts when the context is left: all of it or, if an error ends it, nothing.
        `timeout` is how long to wait for the answer to the commit, also over reconnections.
        """
        return Transaction(self, timeout)

    async def in_doubt(self, *, timeout: float | None = 10.0) -> list[dict[str, Any]]:
        """The transactions that are prepared at the node and wait to be decided."""
        answer = await self._command("tx-list", timeout)
        found: list[dict[str, Any]] = answer["transactions"]
        return found

    async def decide(self, gid: str, commit: bool, *, timeout: float | None = TIMEOUT_S) -> str:
        """Commit or roll back a transaction that somebody prepared under this name.

        Returns "committed" or "rolled_back": what became of it, also if it was decided before.
        """
        decision = Decision.COMMIT if commit else Decision.ROLLBACK
        decided = await self._decide(native.Decide(0, gid, decision), timeout)
        error = decided.error()
        if error is not None:
            raise error
        return decided.state.name.lower()

    async def outcome(self, gid: str, *, timeout: float | None = TIMEOUT_S) -> str:
        """What became of a transaction that was prepared: "prepared", "committed", "rolled_back".

        Or "unknown": it never was, or its end was forgotten.
        """
        decided = await self._decide(native.Decide(0, gid, Decision.ASK), timeout)
        return decided.state.name.lower()

    async def _decide(self, question: native.Decide, timeout: float | None) -> native.Decided:
        """Have the node decide a transaction, or say what became of it."""
        await self._wait_for_link(timeout)
        assert self._loop is not None
        future: asyncio.Future[native.Decided] = self._loop.create_future()
        self._decisions[question.serial, question.gid] = future
        self._write(native.encode(question))
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise WorldError("timed-out", f"the node did not answer in {timeout} s") from None

    async def _command(self, what: str, timeout: float | None) -> dict[str, Any]:
        raise NotImplementedError
