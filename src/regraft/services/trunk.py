"""A trunk: connections that several peers of one process share.

    trunk = Trunk("node1:7447,node2:7447")
    search = Service("SEARCH", trunk)
    site = Peer(trunk)

A connection costs more than what goes over it: where many peers are in one process, what they send
in one round of the event loop is one write, and one read brings what is for several of them. Each
peer has its own address and is of its own type; nodes know it by an id that begins with the
trunk's. What counts by connection they have in common: credit, heartbeats, and what they have in
flight, of which each adds its share.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from regraft.client import Options
from regraft.client.address import resolve
from regraft.client.dialling import Connector, dial
from regraft.client.upkeep import log
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.desk import Switch, Taker
from regraft.kernels.inbox import ReceivedMessage
from regraft.kernels.windows import Copies
from regraft.model.rules import WITHIN
from regraft.services.line import GROUP_ID, NUMBERS, PEER_ID, Line, topics_of
from regraft.services.workers import Workers

if TYPE_CHECKING:
    from regraft.services.peer import Peer


def lines_to(
    nodes: str | Iterable[str] | None,
    owner: Peer | Trunk,
    options: Options,
    copies: Copies | None,
    connector: Connector,
) -> list[Line]:
    """A line to each node, in an order of its owner's: not all prefer the same node."""
    targets = [nodes] if nodes is None or isinstance(nodes, str) else list(nodes)
    addresses = [str(address) for target in targets for address in resolve(target)]
    first = zlib.crc32(options.client_id.encode()) % len(addresses)
    addresses = addresses[first:] + addresses[:first]
    return [
        Line(owner, address, options, copies, connector) for address in dict.fromkeys(addresses)
    ]


def options_of(id: str, options: dict[str, Any]) -> Options:
    """The options of a client with this id, which has to be one that can be an address."""
    if set(id) & set("/+#") or not id.isprintable():
        raise LocalError("bad-configuration", f"the id {id!r} must not hold '/', '+', '#'")
    options.setdefault("connect_timeout", 5.0)
    options.setdefault("spin_us", SPIN_US)
    try:
        return Options(client_id=id, **options)
    except TypeError as error:
        raise LocalError("bad-configuration", f"no such option: {error}") from None


async def connect_all(lines: list[Line], seconds: float) -> None:
    """Begin to connect; wait until all have tried."""
    for line in lines:
        await line.open()
    waits = [asyncio.ensure_future(line.tried.wait()) for line in lines]
    await asyncio.wait(waits, timeout=seconds)
    for wait in waits:
        wait.cancel()


class Trunk:
    """Connections to all nodes, for peers to share. The first peer that needs them opens them."""

    def __init__(
        self,
        nodes: str | Iterable[str] | None = None,
        *,
        id: str = "",
        connector: Connector = dial,
        **options: Any,
    ) -> None:
        """`nodes` are the addresses of all nodes to connect to; options are those of a client."""
        self.id = id or f"trunk-{random.getrandbits(64):016x}"
        self.options = options_of(self.id, options)
        self.lines = lines_to(nodes, self, self.options, None, connector)
        self.closed = False
        self._opening: asyncio.Future[None] | None = None
        self._peers: dict[int, Peer] = {}  # by the numbers of their subscriptions
        self._members: dict[Peer, None] = {}
        self.switch = Switch(self, time.monotonic, time.time)
        self._last = 0
        self.workers = Workers()

    # --------------------------------------------------------------------------- life

    async def open(self) -> Self:
        """Connect to all nodes; it is enough if one of them answers."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(
                connect_all(self.lines, self.options.connect_timeout)
            )
        await asyncio.shield(self._opening)
        if not any(line.is_up for line in self.lines):
            await self.close()
            where = ", ".join(line.address for line in self.lines)
            raise WorldError("unreachable", f"no node answers at {where}")
        return self

    async def close(self) -> None:
        """End all connections; the peers on them can do nothing any more."""
        if not self.closed:
            self.closed = True
            for peer in list(self._members):
                await peer.close()
            await self.workers.close()
            await asyncio.gather(*(line.close() for line in self.lines if line._keeper is not None))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -------------------------------------------------------------------------- peers

    def name(self, id: str) -> tuple[str, int]:
        """The id of one more peer, and what its subscriptions are counted from."""
        self._last += NUMBERS
        return f"{self.id}{WITHIN}{id}", self._last

    async def join(self, peer: Peer, first: int) -> None:
        """Have what is for a peer sent here, by all nodes that can be reached."""
        if self.closed:
            raise LocalError("closed", "this trunk was closed")
        await self.open()
        wanted = topics_of(peer.id, peer.type, first, True)
        for number in wanted:
            self._peers[number] = peer
        self.switch.takers.clear()
        self._members[peer] = None
        peer.taker.copies = Copies()  # one whatever way it came, to each of them
        seconds = self.options.connect_timeout
        joining = (line.join(wanted, seconds) for line in self.lines)
        for refusal in await asyncio.gather(*joining):
            if refusal is not None:
                self.leave(peer, first)
                raise refusal

    def leave(self, peer: Peer, first: int) -> None:
        """Nothing is for this peer any more."""
        for number in (first + PEER_ID, first + GROUP_ID):
            if self._peers.pop(number, None) is not None:
                for line in self.lines:
                    line.leave(number)
        self.switch.takers.clear()
        self._members.pop(peer, None)

    # ------------------------------------------------------------- what lines tell us

    def find_takers(self, numbers: tuple[int, ...]) -> tuple[Taker, ...]:
        """Who takes what comes for these subscriptions."""
        found = (self._peers.get(number & NUMBER_MASK) for number in numbers)
        takers = tuple(dict.fromkeys(peer.taker for peer in found if peer is not None))
        if len(self.switch.takers) < TAKERS_MAX:
            self.switch.takers[numbers] = takers
        return takers

    def stray(self, line: Line, messages: list[ReceivedMessage], numbers: tuple[int, ...]) -> None:
        """Messages have come for a peer that has left."""
        groups = sum(n <= NUMBER_MASK and n % NUMBERS == GROUP_ID for n in numbers)
        line.finished(groups * len(messages))

    def line_is_up(self, line: Line) -> None:
        for peer in list(self._members):
            peer.line_is_up(line)

    def line_is_down(self, line: Line, error: RegraftError) -> None:
        for peer in list(self._members):
            peer.line_is_down(line, error)

    def refused(self, error: RegraftError, number: int) -> None:
        """A node does not take one of the peers for what it is, any more."""
        peer = self._peers.get(number)
        log.warning("%s: %s", peer.id if peer is not None else self.id, error)

    def rank(self) -> None:
        for peer in list(self._members):
            peer.rank()


SPIN_US = 200  # of peers, if nobody says anything else: what an answer to many takes to come
NUMBER_MASK = (1 << 30) - 1  # nodes set bits above it, to say why a message was sent
TAKERS_MAX = 4096  # of whom is known which peers they are
