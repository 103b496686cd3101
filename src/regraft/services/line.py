"""A line: the connection of a peer to one of its nodes.

It is a client that is bound to one address, tries again for as long as the peer lives, and hands
what it receives to the peer at once: no queue, no task, and no object per message but the message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from regraft.client import Client, Options
from regraft.client.address import Address
from regraft.client.client import FLUSH_BYTES
from regraft.client.dialling import Connector
from regraft.client.link import Batch, Link
from regraft.client.subscription import Subscription
from regraft.client.upkeep import PERMANENT, Disconnection, log
from regraft.errors import PeerError, RegraftError, WorldError
from regraft.kernels.desk import Taken
from regraft.kernels.windows import Copies
from regraft.model.rules import GROUP_TOPIC, PEER_TOPIC
from regraft.wire import native

if TYPE_CHECKING:
    from regraft.services.peer import Peer
    from regraft.services.trunk import Trunk

PEER_ID, GROUP_ID = 1, 2  # subscriptions of a peer: the own address, and the peer type
NUMBERS = 4  # for each of several peers on one line: so far apart are theirs
HALVED = 32  # messages, about, which are not dealt with all at once,
HALVED_BYTES = 32 << 10  # unless they are more than who waits for answers gets: events, most likely
SICK_S = 1.0  # for so long a line that did not do its work is not the first choice


class Line(Client):
    """One of the connections of a peer, or of several that share it."""

    def __init__(
        self,
        peer: Peer | Trunk,
        address: str,
        options: Options,
        copies: Copies | None,
        connector: Connector,
    ) -> None:
        super().__init__(address, options, connector=connector)
        self.address = address
        self.ready = asyncio.Event()  # the node has confirmed who we are
        self.tried = asyncio.Event()  # the first attempt is over
        self.sick_until = 0.0
        self.stuck = False  # somebody waited for room in vain, and there is none yet
        self._peer = peer
        self._copies = copies
        self._second_half = b""  # of what was read
        self._finished = 0  # messages that the node has to be told of
        self._repeated = 0  # of those that came twice, what was counted as taken
        self.taken = self._nothing_taken()
        self._confirmed: set[int] = set()
        self.on_disconnect(self._down)

    def want(self, id: int, pattern: str) -> None:
        """Subscribe to this whenever there is a connection."""
        wanted = native.Subscribe(id, pattern, exact=True)
        self._subscriptions[id] = Subscription(wanted, self._taken, self._unsubscribe)

    async def join(self, wanted: dict[int, str], seconds: float) -> RegraftError | None:
        """Subscribe to this now, if there is a connection, and whenever there is; a refusal."""
        for number, pattern in wanted.items():
            self.want(number, pattern)
            if self._link is not None:
                try:
                    await self._ask(number, self._subscriptions[number].question, seconds)
                except RegraftError as error:
                    if error.code.name not in ("connection-lost", "timed-out"):
                        return error
                    log.info("%s: %s", self.address, error)  # it is asked for again
        return None

    def leave(self, number: int) -> None:
        """Subscribe to this no more."""
        if self._subscriptions.pop(number, None) is not None and self._outbox is not None:
            self._write(native.encode(native.Unsubscribe(number)))

    async def open(self) -> None:
        """Begin to connect; `tried` is set when that worked, or did not."""
        self._loop = asyncio.get_running_loop()
        self._keeper = self._loop.create_task(self._keep_on(), name=f"regraft-line {self.address}")
        self._keeper.add_done_callback(self._kept)

    async def _keep_on(self) -> None:
        try:
            await self._connect_somewhere()
        except RegraftError as error:
            self.tried.set()
            if error.code.name in PERMANENT:
                self._fail(error)
                return
            log.info("%s: %s", self.address, error)
            if not await self._reconnect():
                return
        await self._keep()

    # --------------------------------------------------------------------- receiving

    async def _connect_to(self, address: Address) -> None:
        self._confirmed.clear()
        self._second_half = b""
        self.taken = self._nothing_taken()
        await super()._connect_to(address)
        assert self._link is not None
        self._link.inbox.copies = self._copies
        self._repeated = 0
        self._see_ready()

    def _settled(
        self, id: int, error: RegraftError | None, answer: native.Subscribed | None
    ) -> None:
        super()._settled(id, error, answer)
        if answer is not None:
            self._confirmed.add(id)
            self._see_ready()
        elif error is not None:
            self.tried.set()
            self._peer.refused(error, id)

    def _see_ready(self) -> None:
        """If the node has confirmed all that we want, messages can go this way."""
        if self._confirmed.issuperset(self._subscriptions):
            self.ready.set()
            self.tried.set()
            self._peer.line_is_up(self)

    def _received(self, link: Link, data: bytes | memoryview) -> None:
        """As every client, without an event for each run of messages.

        Much is dealt with in two halves: what those send who were woken by the first one is written
        before the second, and others work on it meanwhile.
        """
        if link is not self._latest:
            return
        assert self._loop is not None
        self._heard = self._loop.time()
        inbox = link.inbox
        if self._second_half:
            self._second_half += data
        elif (
            len(data) * inbox.messages < HALVED * inbox.size
            or not inbox.messages
            or len(data) > HALVED_BYTES
        ):
            self._take_in(link, data)
        else:
            half = len(data) // 2
            self._second_half = bytes(data[half:])
            self._take_in(link, data[:half])
            self._loop.call_soon(self._go_on, link)
        if self._spin is not None:
            self._spin.read()

    def _go_on(self, link: Link) -> None:
        """Deal with the second half of what came."""
        if link is self._latest and self._second_half:
            data, self._second_half = self._second_half, b""
            self._take_in(link, data)

    def _lost(self, link: Link, exc: Exception | None) -> None:
        self._go_on(link)
        super()._lost(link, exc)

    def _take_in(self, link: Link, data: bytes | memoryview) -> None:
        try:
            if self._peer.switch.deliver(self, self.taken, link.inbox.feed(data)):
                self._flush_behind()
        except PeerError as error:
            self._broken(error)
            if self._transport is not None:
                self._transport.abort()
            return
        if self.taken.due() or link.inbox.repeated - self._repeated >= 1024:
            self.tell_taken(self.taken)
        if (self.stuck or not self._room.is_set()) and self._has_room(link):
            self._make_room()

    def _flush_behind(self) -> None:
        """Have what those send who were woken just now written right behind their turn.

        If the first of them asked for it, another round of the loop would come between.
        """
        if not self._flushing and self._outbox is not None:
            self._flushing = True
            assert self._loop is not None
            self._loop.call_soon(self._flush)

    def controlled(self, kind: int, payload: bytes) -> None:
        """The node says something that is no message."""
        link = self._latest
        assert link is not None
        event = link.control(native.decode(kind, payload))
        if event is not None:
            self._handle(link, event)

    def _nothing_taken(self) -> Taken:
        """A connection begins."""
        options = self.options
        return Taken(max(1, options.queue_messages // 8), max(1, options.queue_bytes // 8))

    def tell_taken(self, taken: Taken) -> None:
        """Tell the node, now and then, how much it may send; unless that connection is over."""
        link = self._link
        if link is None or taken is not self.taken:
            return
        self._repeated = link.inbox.repeated
        batch = Batch(link, [], taken.size)
        batch.count = taken.messages
        taken.forget()
        self._write(link.taken(batch))

    # ----------------------------------------------------------------------- sending

    @property
    def is_up(self) -> bool:
        """Whether messages can go this way, or will be able to when there is credit."""
        return self._outbox is not None and self.ready.is_set()

    def put(self, topic: bytes, body: bytes, rest: bytes) -> bool:
        """Send a message, if there is room; what is sent in one round of the loop is one write."""
        outbox = self._outbox
        if outbox is None or not outbox.has_room or not self._writable:
            return False
        outbox.persistent = False
        outbox.put(topic, body, None, 0, False, rest)
        if not self._flushing or outbox.used >= FLUSH_BYTES:
            self._flush_soon(outbox)
        return True

    def answer(
        self, topic: bytes, body: bytes, id: int, to: bytes, sender: bytes, rest: bytes
    ) -> bool:
        """Send an answer, likewise."""
        outbox = self._outbox
        if outbox is None or not self._writable or not outbox.has_room:
            return False
        outbox.put_answer(topic, body, id, to, sender, rest)
        if not self._flushing or outbox.used >= FLUSH_BYTES:
            self._flush_soon(outbox)
        return True

    async def room(self, seconds: float) -> bool:
        """Wait until there is room, or no connection any more; whether there is room."""
        assert self._loop is not None
        until = self._loop.time() + seconds
        while self.is_up:
            assert self._link is not None
            if self._has_room(self._link):
                return True
            left = until - self._loop.time()
            if left <= 0:
                self.stuck = True
                self.blame()
                return False
            self._room.clear()
            self._flush()
            try:
                async with asyncio.timeout(left):
                    await self._room.wait()
            except TimeoutError:
                continue
        return False

    def _make_room(self) -> None:
        self.stuck = False
        super()._make_room()

    def finished(self, count: int = 1) -> None:
        """The node has to know that we are done with messages that are not answered."""
        self._finished += count
        if not self._flushing and self._outbox is not None:
            self._flushing = True
            assert self._loop is not None
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        link = self._link
        if self._finished and link is not None:
            count, self._finished = self._finished, 0
            self._flushing = False
            self._write(native.encode(native.Finished(count)))
        elif link is not None and not self._barrier_due:
            self._flushing = False  # as every client, who has nothing persistent here
            if link.outbox.used:
                self._transmit(link.outbox.take())
            return
        super()._flush()

    def blame(self) -> None:
        """It did not do what it should: others first, for a while."""
        assert self._loop is not None
        self.sick_until = self._loop.time() + SICK_S
        self._peer.rank()
        self._loop.call_later(SICK_S + 0.01, self._peer.rank)

    def _down(self, lost: Disconnection) -> None:
        self.ready.clear()
        self._finished = 0
        self._room.set()  # nobody waits for room where there is no connection
        self._peer.line_is_down(self, lost.error)

    async def leave_group(self, number: int, timeout: float) -> None:
        """Be no peer of its type any more; what was on its way has come when this returns."""
        if self._subscriptions.pop(number, None) is not None and self.is_up:
            try:
                await self._ask(number, native.Unsubscribe(number), timeout)
            except WorldError as error:
                log.info("%s: %s", self.address, error)


def topics_of(client: str, kind: str, first: int = 0, shared: bool = False) -> dict[int, str]:
    """What a line subscribes to for a peer, by numbers from `first` on."""
    wanted = {first + PEER_ID: PEER_TOPIC + client}
    if kind:
        wanted[first + GROUP_ID] = GROUP_TOPIC + kind + (f"/{client}" if shared else "")
    return wanted
