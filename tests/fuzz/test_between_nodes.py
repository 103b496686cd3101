"""Frames between nodes that mean well, mean ill, or mean nothing: a node survives them all.

Whatever another node sends, `step` raises nothing; a connection that does not obey ends, and a
client beside it is served as before.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import Message, encode_envelope
from regraft.model.userfilter import FilterTable
from regraft.node.effect import Close, Connect, Effect, Write
from regraft.node.event import (
    Closed,
    Connected,
    ConnectFailed,
    Datagram,
    Event,
    Now,
    Opened,
    Received,
    Tick,
)
from regraft.node.network import Joining
from regraft.node.node import Node
from regraft.overlay.options import Options
from regraft.simulate.filter_story import FailingBand
from regraft.wire import native, offers, peers, questions, traces

ME, OTHER, THIRD = (bytes([n]) * 16 for n in (7, 1, 9))
IDS = (ME, OTHER, THIRD, b"", b"short")
ASKED = encode_envelope(Message("a/b", b"?"))
PATTERNS = ("#", "a/b", "+/x", "a/#", "", "a/#/b", "/" * 80, "\0")
FORGED_FILTER = ("no such name/\0" * 20, bytes(9_000))
SELECTORS = ("", "n > 5", "n >", "s LIKE 'a%'", "1 = 1", "x" * 200, "s REGEXP '(a+)+b'")


class Alone:
    """A node in a network of which only forged connections exist."""

    def __init__(self, seed: int, limits: Limits | None = None, offering: bool = False) -> None:
        self.random = Random(seed)
        self.node = Node(Identity(ME, "me", 2), limits or Limits(), 10_000, Random(seed))
        self.ns = 0
        self.written: dict[int, bytearray] = {}
        self.closed: set[int] = set()
        self.tickets: list[int] = []
        self.last_key = 0
        options = Options(seeds=("other:1", "third:1"))
        self.node.filters.learn(FilterTable({"band": FailingBand}))
        joining = Joining("me:1", options, advertisements=offering, standing=("mine",))
        self.node.join(joining, self.now())

    def now(self) -> Now:
        return Now(self.ns, 1_700_000_000_000_000 + self.ns // 1000)

    def step(self, *events: Event) -> None:
        answers: list[Event] = []
        for effect in self.node.step(events, self.now()):
            self.perform(effect, answers)
        if answers:
            self.step(*answers)

    def perform(self, effect: Effect, answers: list[Event]) -> None:
        if isinstance(effect, Write) and effect.connection not in self.closed:
            self.written[effect.connection] += b"".join(effect.pieces)
        elif isinstance(effect, Close) and effect.connection not in self.closed:
            self.closed.add(effect.connection)
            answers.append(Closed(effect.connection, effect.reason))
        elif isinstance(effect, Connect):
            self.tickets.append(effect.ticket)

    def open(self) -> int:
        self.last_key += 1
        self.written[self.last_key] = bytearray()
        if self.tickets and self.random.random() < 0.5:
            self.step(Connected(self.last_key, self.tickets.pop(), "other:1"))
        else:
            self.step(Opened(self.last_key, "other:1"))
            self.send(self.last_key, native.PREFACE)
        return self.last_key

    def send(self, key: int, data: bytes) -> None:
        if key not in self.closed:
            self.step(Received(key, memoryview(bytes(data))))

    def pass_time(self, ms: int) -> None:
        self.ns += ms * 1_000_000
        self.step(Tick())
        for ticket in self.tickets:
            if self.random.random() < 0.5:
                self.step(ConnectFailed(ticket, "nobody there"))
                self.tickets.remove(ticket)
                break


def candidate(random: Random) -> peers.Candidate:
    address = random.choice(("other:1", "me:1", "third:1", "nonsense", "", ":7"))
    return peers.Candidate(random.choice(IDS), address, random.choice((0, 1, 2**32 - 1)))


def candidates(random: Random) -> tuple[peers.Candidate, ...]:
    return tuple(candidate(random) for _ in range(random.choice((0, 1, 3, 40))))


def number(random: Random) -> int:
    return random.choice((0, 1, 2, (2 << 32) + 1, (2 << 32) + 2, 2**64 - 1))


def wanted(random: Random) -> peers.Wanted:
    exact = random.random() < 0.3
    own = random.choice((("", b""), ("", b"x"), ("band", b"\1\5"), ("band", b"odd"), FORGED_FILTER))
    return peers.Wanted(
        random.randrange(6), random.choice(PATTERNS), exact, random.choice(SELECTORS), *own
    )


def home(random: Random) -> peers.Home:
    some = random.choice
    add = tuple(
        peers.Durable(number(random), "x", some(PATTERNS), False, some(SELECTORS))
        for _ in range(some((0, 1, 3)))
    )
    flags = tuple(some((True, False)) for _ in range(4))
    head = (some(IDS), some(IDS), "x", number(random), number(random))
    return peers.Home(*head, add, tuple(range(some((0, 2)))), *flags)


def forged(random: Random) -> Any:
    """A well-formed frame, with anything in it."""
    some = random.choice
    return some(
        (
            lambda: peers.Peer(some((0, 1)), some((1, 2)), some(IDS), "x", some((1, 2, 3)), ":5"),
            lambda: peers.Ask(
                some(IDS), number(random), some((0, 70)), some((True, False)), b"rid", "other:1"
            ),
            lambda: peers.Answer(
                some(IDS), number(random), some((True, False)), some((0, 3, 99)), 1, ()
            ),
            lambda: peers.Answer(ME, number(random), False, 3, 1, candidates(random)),
            lambda: peers.Accept(number(random), some(IDS), some((0, 2**32 - 1))),
            lambda: peers.Leave(some((0, 4, 5, 99)), some((None, candidate(random)))),
            lambda: peers.Status(some(IDS), 1, 3, candidates(random), candidates(random)),
            lambda: peers.Beacon(some(IDS), some((1, 2)), number(random), 1, some((0, 2**63))),
            lambda: peers.Interests(
                tuple(wanted(random) for _ in range(some((0, 1, 5)))),
                tuple(range(some((0, 0, 3)))),
                some((True, False)),
            ),
            lambda: offers.Offers(
                tuple(wanted(random) for _ in range(some((0, 1, 5)))),
                tuple(range(some((0, 0, 3)))),
                some((True, False)),
            ),
            lambda: offers.Heeded(number(random)),
            lambda: offers.Advertise(1, "a"),
            lambda: peers.Leaving(candidates(random)[:2], tuple(some(IDS) for _ in range(3))),
            lambda: peers.Drained(),
            lambda: peers.Left(),
            lambda: peers.Command(1, some(("link-add", "x")), b"{}"),
            lambda: peers.Done(1, b""),
            lambda: peers.Origin(some((1, 2**64 - 1)), some((1, 2)), number(random)),
            lambda: peers.Homes(tuple(peers.Known(some(IDS), number(random)) for _ in range(2))),
            lambda: home(random),
            lambda: peers.Carried(some(IDS), 1, 0, 1, 0, b"x", 0, 0, number(random)),
            lambda: peers.Taken(some(IDS), 1, number(random), held=number(random)),
            lambda: peers.Move(some(IDS), "n", number(random), 1, some(list(peers.Step))),
            lambda: native.Credit(number(random), number(random)),
            lambda: native.Heartbeat(number(random)),
            lambda: native.Hello(1, 1),
            lambda: native.Subscribe(1, "a"),
            lambda: Message("a/b", b"x", {"n": 7}),
            lambda: Message("$sys/x", b""),
            lambda: Message("a/b", b"x", where=some(("ctx.x = 1", "ctx.x ="))),
            lambda: questions.Question(some((*IDS, ME)), 1, some((0, 5, 2**32 - 1)), ASKED),
            lambda: questions.Question(some(IDS), 1, 5, some((b"", b"nonsense"))),
            lambda: traces.Trace(
                *(some((*IDS, ME)), 1, some((0, 5, 2**32 - 1)), some((ASKED, b"", b"x"))),
                *(some(list(traces.TraceMode)), some((0, 255, 2**32 - 1)), some((True, False))),
                *("mine", some(("", "d")), 0, some(("", "a/#", "+x")), False),
                *(some(("", "x > 1", "x >")), True),
            ),
            lambda: questions.Reply(some(IDS), 1, some((ASKED, b"", b"x")), some((True, False))),
            lambda: questions.Counted(some(IDS), 1, number(random)),
            lambda: questions.Ended(some(IDS), 1, number(random), number(random), True),
            lambda: questions.Withdrawn(some(IDS), 1),
            lambda: questions.Context(1, b""),
        )
    )()


def spoil(random: Random, data: bytes) -> bytes:
    """Bytes that are no frame any more, sometimes."""
    if random.random() < 0.9:
        return data
    spoiled = bytearray(data)
    spoiled[random.randrange(len(spoiled))] ^= 1 << random.randrange(8)
    return bytes(spoiled[: random.randrange(1, len(spoiled) + 1)])


@pytest.mark.parametrize("seed", range(60))
def test_whatever_other_nodes_say_the_node_lives_on(seed: int) -> None:
    world = Alone(seed, offering=seed % 2 == 1)
    random = world.random
    world.last_key += 1
    honest = world.last_key
    world.written[honest] = bytearray()
    world.step(Opened(honest, "client:1"))
    hello = native.Hello(version_min=1, version_max=1, passive=True)
    world.send(honest, native.PREFACE + native.encode(hello))
    world.send(honest, native.encode(native.Subscribe(1, "mine/#")))
    for _ in range(12):
        key = world.open()
        if random.random() < 0.9:
            node = random.choice((OTHER, THIRD))
            life = random.choice((1, 2))
            peer = peers.Peer(1, 1, node, "other", life, "other:1", 100, 1 << 20, 0, seed % 2 == 1)
            world.send(key, native.encode(peer))
        for _ in range(random.randrange(25)):
            frames = b"".join(
                native.encode(forged(random)) for _ in range(random.choice((1, 1, 2, 4)))
            )
            world.send(key, spoil(random, frames))
            if random.random() < 0.2:
                world.step(Datagram("other:1", spoil(random, native.encode(forged(random)))))
            if random.random() < 0.2:
                world.pass_time(random.choice((1, 100, 700, 3000)))
        if key not in world.closed and random.random() < 0.5:
            world.closed.add(key)
            world.step(Closed(key, "gone"))
    assert honest not in world.closed
    before = len(world.written[honest])
    world.send(honest, native.encode(Message("mine/x", b"still here")))
    assert b"still here" in world.written[honest][before:]


def test_some_of_it_makes_links() -> None:
    """The stories above would prove little if nobody ever got through."""
    made = 0
    for seed in range(20):
        world = Alone(seed)
        key = world.open()
        world.send(key, native.encode(peers.Peer(1, 1, OTHER, "o", 1, "other:1", 9, 1 << 20)))
        ask = peers.Ask(OTHER, 1, 0, False, b"", "other:1")
        world.send(key, native.encode(ask) + native.encode(peers.Interests((), (), True)))
        made += bool(world.node.topology()["links"])
    assert made > 10


def test_a_neighbour_that_talks_without_end_is_cut_off() -> None:
    """Frames that wait for their turn cost memory, though nothing is in them."""
    world = Alone(3, Limits(link_filters=500))
    key = world.open()
    world.send(key, native.encode(peers.Peer(1, 1, OTHER, "o", 1, "other:1", 9, 1 << 20)))
    world.send(key, native.encode(peers.Ask(OTHER, 1, 0, False, b"", "other:1")))
    assert world.node.topology()["links"]
    world.send(key, native.encode(peers.Interests((), (), False)) * 400)
    assert key not in world.closed
    for _ in range(10):
        world.pass_time(1)
    world.send(key, native.encode(peers.Interests((), (), False)) * 400)
    assert key not in world.closed
    world.send(key, native.encode(peers.Interests((), (), False)) * 400)
    assert key in world.closed
    assert b"limit-exceeded" in world.written[key]


def test_whoever_comes_in_the_place_of_a_node_that_left_is_cut_off_as_well() -> None:
    """What it wants counts as it comes: nothing is put by until it has said everything."""
    world = Alone(3, Limits(link_filters=500))
    left = world.open()
    me = bytes.fromhex(world.node.topology()["id"])
    world.send(left, native.encode(peers.Peer(1, 1, OTHER, "o", 1, "other:1", 9, 1 << 20)))
    world.send(left, native.encode(peers.Ask(OTHER, 1, 0, False, b"", "other:1")))
    third = bytes(reversed(OTHER))
    heir = peers.Candidate(me, "me:1", 0)
    world.send(left, native.encode(peers.Leaving((heir,), (me, third))))
    world.send(left, native.encode(peers.Left()))
    world.step(Closed(left, "closed by the other end"))
    key = world.open()
    world.send(key, native.encode(peers.Peer(1, 1, third, "t", 1, "third:1", 9, 1 << 20)))
    world.send(key, native.encode(peers.Ask(third, 1, 0, False, b"", "third:1")))
    assert [link["connection"] for link in world.node.topology()["links"]] == [key]
    for number in range(0, 500, 100):
        some = tuple(peers.Wanted(number + n, f"t{number + n}", False, "") for n in range(100))
        assert key not in world.closed
        world.send(key, native.encode(peers.Interests(some, (), False)))
        world.pass_time(1)
        world.pass_time(1)
    assert world.node.topology()["routing"]["filters"] >= 400
    world.send(key, native.encode(peers.Interests((peers.Wanted(999, "u", False, ""),), (), False)))
    assert key in world.closed
    assert b"limit-exceeded" in world.written[key]
