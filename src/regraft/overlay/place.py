"""Where a node stands: the connections to others that it has, and its place in the tree.

A *peer* is another node at the end of one connection. The connection is a *spare* until it becomes
the link to the parent or to a child, once; the end of a link is the end of its connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING

from regraft.overlay.actions import Action, Dial, HangUp, Say, Send
from regraft.overlay.beacons import Numbers, Watch
from regraft.overlay.candidates import Around, Candidates
from regraft.overlay.messages import Candidate, Message, Status
from regraft.overlay.options import MS, Options

if TYPE_CHECKING:
    from random import Random

ANCESTORS_MAX = 8  # that a node tells its children of
OTHERS_MAX = 16  # children that it tells of
RID_BYTES = 16
_DIAL_ASKS = (
    2  # an address that is neither reached nor refused is dialled again after so many ask_ms
)


class Role(Enum):
    """What a connection is in the tree."""

    SPARE = "spare"
    PARENT = "parent"  # the other end is the parent
    CHILD = "child"


@dataclass(slots=True)
class Peer:
    """The other end of one connection."""

    key: int
    node: bytes
    incarnation: int
    names: tuple[str, ...]  # its address; and the one that was dialled, if that is another
    dialled: bool
    watch: Watch
    opened_ns: int
    role: Role = Role.SPARE
    rid: bytes = b""  # of the link
    number: int = 0  # of the request that made it one
    status: Status | None = None  # the last one heard
    told: object = None  # what it was told of the own place
    heir: Candidate | None = None  # set once it said that it leaves: whom to ask instead
    by_datagram: tuple[int, int] = (0, 0)  # the last number heard so, and when
    by_frame: tuple[int, int] = (0, 0)
    echoed_ns: int | None = None  # when a datagram last came back

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.names[0]

    @property
    def is_link(self) -> bool:
        """Whether the connection is part of the tree."""
        return self.role is not Role.SPARE


def link_id(child: bytes, parent: bytes, number: int) -> bytes:
    """The rid of a link: the same at both ends, and never that of another link."""
    return blake2b(child + parent + number.to_bytes(8, "big"), digest_size=RID_BYTES).digest()


class Place:
    """One node among the others. Its parts change it; the rules are theirs."""

    def __init__(
        self, me: bytes, incarnation: int, address: str, options: Options, random: Random
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.address = address
        self.options = options
        self.random = random
        self.peers: dict[int, Peer] = {}
        self.parent: Peer | None = None
        self.children: dict[int, Peer] = {}
        self.root = me
        self.hops = 0
        self.ancestors: tuple[Candidate, ...] = ()  # the parent first; an orphan's last ones
        self.siblings: tuple[Candidate, ...] = ()
        self.cache = Candidates(options)
        self.numbers = Numbers(me, incarnation)
        self.own_addresses = {address: None}
        self.dialling: dict[str, int] = {}  # since when
        self.actions: list[Action] = []
        self.counters: dict[str, int] = {}
        self._open: dict[str, dict[int, Peer]] = {}  # by every name

    # ------------------------------------------------------------------ actions

    def send(self, peer: Peer, message: Message) -> None:
        """Say something to a peer."""
        self.actions.append(Send(peer.key, message))

    def dial(self, address: str, now_ns: int) -> None:
        """Open a connection, unless one is being opened, and not for too long already."""
        since_ns = self.dialling.get(address)
        if since_ns is None or now_ns - since_ns > _DIAL_ASKS * self.options.ask_ms * MS:
            self.dialling[address] = now_ns
            self.count("dialled")
            self.actions.append(Dial(address))

    def hang_up(self, peer: Peer, reason: str) -> None:
        """End a connection."""
        self.forget(peer)
        self.actions.append(HangUp(peer.key, reason))

    def say(self, level: str, text: str) -> None:
        """Tell people."""
        self.actions.append(Say(level, text))

    def count(self, name: str) -> None:
        """Count something that happened."""
        self.counters[name] = self.counters.get(name, 0) + 1

    # -------------------------------------------------------------------- peers

    def enter(self, peer: Peer) -> None:
        """A connection is there."""
        self.peers[peer.key] = peer
        for name in peer.names:
            self._open.setdefault(name, {})[peer.key] = peer

    def forget(self, peer: Peer) -> None:
        """It is not any more."""
        del self.peers[peer.key]
        for name in peer.names:
            del self._open[name][peer.key]
            if not self._open[name]:
                del self._open[name]

    def of_node(self, node: bytes) -> list[Peer]:
        """All connections with one node."""
        return [peer for peer in self.peers.values() if peer.node == node]

    def spare_to(self, address: str) -> Peer | None:
        """A connection to an address that may become a link."""
        peers = self._open.get(address)
        if not peers or any(peer.is_link for peer in peers.values()):
            return None
        return next((peer for peer in peers.values() if peer.dialled), next(iter(peers.values())))

    def linked(self, address: str) -> bool:
        """Whether a neighbour has this address."""
        return any(peer.is_link for peer in self._open.get(address, {}).values())

    def links(self) -> list[Peer]:
        """The neighbours, the parent first."""
        return [*([self.parent] if self.parent else []), *self.children.values()]

    def neighbour(self, node: bytes) -> Peer | None:
        """The link with a node, if there is one."""
        return next((peer for peer in self.links() if peer.node == node), None)

    # -------------------------------------------------------------------- place

    @property
    def degree(self) -> int:
        """The number of neighbours."""
        return len(self.children) + (self.parent is not None)

    @property
    def full(self) -> bool:
        """No more children are taken: the last place is the parent's, even while there is none."""
        return len(self.children) >= self.options.max_degree - 1

    def as_candidate(self, peer: Peer) -> Candidate:
        """A neighbour, as others are told of it."""
        hops = self.hops + (1 if peer.role is Role.CHILD else -1)
        return Candidate(peer.node, peer.address, max(hops, 0))

    def around(self, better: list[str]) -> Around:
        """What the order of candidates depends on."""
        return Around(
            {candidate.address: above for above, candidate in enumerate(self.ancestors)},
            {candidate.address: candidate.node for candidate in self.siblings},
            {
                name: peer.dialled
                for name in self._open
                if (peer := self.spare_to(name)) is not None
            },
            better,
        )

    def status(self) -> Status:
        """What neighbours should know of this place."""
        children = [self.as_candidate(peer) for peer in self.children.values()]
        children.sort(key=lambda candidate: candidate.node)
        return Status(
            self.root,
            self.hops,
            self.degree,
            self.ancestors[:ANCESTORS_MAX] if self.parent else (),
            tuple(children[:OTHERS_MAX]),
        )

    def better(self) -> tuple[Candidate, ...]:
        """Whom somebody may ask instead: children, those first that have most room; the parent."""
        peers = sorted(
            self.children.values(),
            key=lambda peer: (peer.status.degree if peer.status else 1, peer.node),
        )
        room = [p for p in peers if not p.status or p.status.degree < self.options.max_degree]
        peers = room or peers
        if self.parent is not None:
            peers = [*peers[:OTHERS_MAX], self.parent]
        return tuple(self.as_candidate(peer) for peer in peers)
