"""Any bytes at all into a node. It never raises, and only the connection that sent them ends.

A few seconds with fixed seeds; REGRAFT_FUZZ_SECONDS=600 goes on with others for ten minutes.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import Message, encode_envelope
from regraft.model.rules import Route, encode_routes
from regraft.model.userfilter import FilterTable
from regraft.node.effect import Close, Write
from regraft.node.event import Closed, Event, Now, Opened, Received, Tick, Unsent
from regraft.node.node import Node
from regraft.simulate.filter_story import FailingBand
from regraft.wire import native, offers, peers, questions, traces

INNOCENT, WITNESS = 1, 2  # one publishes, the other receives
HELLO = native.PREFACE + native.encode(native.Hello(1, 1))
LIMITS = Limits(frame_bytes=20_000, control_frame_bytes=9_000, queue_bytes=50_000)

RULES = '[peers.A]\n[peers.B]\n[types.ASKED]\nroutes = [{ to = "A" }, { to = "B", whom = "all" }]\n'

SENTENCES = [
    native.encode(native.Hello(1, 1)),
    native.encode(native.Subscribe(1, "a")),
    native.encode(native.Subscribe(2, "+/b/#", "", True)),
    native.encode(native.Subscribe(3, "#", "x = 1")),
    native.encode(native.Subscribe(9, "a/#", "k = 1", filter="band", filter_data=b"\1\5")),
    native.encode(native.Subscribe(10, "a", filter="band", filter_data=b"nonsense")),
    native.encode(native.Subscribe(11, "#", filter="unknown", filter_data=bytes(2000))),
    native.encode(native.Subscribe(12, "#", filter_data=b"nameless")),
    native.encode(native.Subscribe(13, "#", filter="\0" * 300)),
    native.encode(native.Unsubscribe(9)),
    native.encode(native.Unsubscribe(1)),
    native.encode(native.Credit(3, 500)),
    native.encode(native.Credit(2**64 - 1, 2**64 - 1)),
    native.encode(native.Heartbeat(2**64 - 1)),
    native.encode(native.Error(3, "x", "y", False, 1, 2, 3)),
    native.encode(native.Transfer(3, (1, 2))),
    native.encode(native.Goaway("why", 5, ("a:1",))),
    native.encode(Message("a", b"x" * 30)),
    native.encode(Message("a/b", b"x" * 3_000, {"k": 1, "l": "é"})),
    native.encode(Message("a", b"x", to="you", expiration_us=5)),
    native.frame(7, encode_envelope(Message("a", b"z")), 1),
    native.encode(Message("+", b"bad")),
    native.encode(native.Subscribe(4, "$group/A")),
    native.encode(native.Subscribe(5, "$group/B")),
    native.encode(native.Subscribe(6, "$share/w/a/#", "x = 1")),
    native.encode(native.Subscribe(7, "$peer/me")),
    native.encode(native.Unsubscribe(4)),
    native.encode(native.Finished(2**64 - 1)),
    native.encode(
        native.Transact(
            7,
            b"messages",
            b"passing",
            (native.Settle(1, (1, 2, 5, 9)),),
            (native.Subscribe(0, "a/#", "x > 1", durable="d", options=b"{}"),),
            ("old", "older"),
        )
    ),
    native.encode(native.Decide(2**62, "gid", native.Decision.PREPARE, 3)),
    native.encode(native.Decided(8, "g", native.TransactionState.PREPARED, 25, "n", "t", 9, True)),
    native.encode(Message("$type/ASKED", b"x", id=7, sender="me", include_original=True)),
    native.encode(Message("$type/NONE", b"x", report_delivery_error=True)),
    native.encode(Message("$reply", b"x", to="me", references=7)),
    native.encode(Message("$type/ASKED", override_rules=encode_routes((Route("B", True),)))),
    native.encode(offers.Advertise(1, "a/#", "x > 1")),
    native.encode(offers.Advertise(2, "$own")),
    native.encode(offers.Advertise(0, "+", "x >", True)),
    native.encode(offers.Unadvertise(1)),
    native.encode(offers.Advertised(1, True)),
    native.encode(offers.Demand(2**64 - 1)),
    native.encode(offers.Offers((), (1, 2**63), True)),
    native.encode(offers.Heeded(2**64 - 1)),
    native.encode(native.Subscribe(8, "a", replies=True)),
    native.encode(questions.Question(b"", 1, 50, encode_envelope(Message("a", b"?")))),
    native.encode(questions.Question(b"x" * 16, 2, 2**32 - 1, encode_envelope(Message("a/b")))),
    native.encode(questions.Question(b"", 3, 0, encode_envelope(Message("+", where="x =")))),
    native.encode(questions.Question(b"", 4, 9, b"nonsense")),
    native.encode(traces.Trace(b"", 11, 50, encode_envelope(Message("a", b"?")))),
    native.encode(traces.Trace(b"", 12, 50, encode_envelope(Message("a/b")), traces.TraceMode(1))),
    native.encode(
        traces.Trace(
            *(b"x" * 16, 13, 0, encode_envelope(Message("a", where="x ="))),
            *(traces.TraceMode.WHY, 2**32 - 1, True, "me", "d", 1),
        )
    ),
    native.encode(
        traces.Trace(
            *(b"", 14, 9, b"nonsense", traces.TraceMode.FILTER, 0, False, "me", "", 0),
            *("a/#", True, "x >", True),
        )
    ),
    native.encode(questions.Reply(b"", 2**64 - 1, encode_envelope(Message("a")), True)),
    native.encode(questions.Reply(b"", 1, b"", True, True)),
    native.encode(questions.Counted(b"", 1, 2**64 - 1)),
    native.encode(questions.Ended(b"", 1, 1, 1, True)),
    native.encode(questions.Withdrawn(b"", 1)),
    native.encode(questions.Context(1, encode_envelope(Message("c", context={"x": 1}))[3:])),
    native.encode(questions.Context(2, b"\x9a\x01\x02\x0a\x00")),
    native.encode(Message("a", b"x", where="ctx.x = 1 AND k = 1")),
    native.encode(Message("a", b"x", where="ctx.x =")),
    native.encode(peers.Command(1, "rules-load", json.dumps({"text": RULES}).encode())),
]
OPENINGS = [
    HELLO,
    native.PREFACE + native.encode(native.Hello(1, 1, credit_messages=3, credit_bytes=900)),
    native.PREFACE + native.encode(native.Hello(1, 1, when_stalled=native.StallPolicy(1))),
    native.PREFACE + native.encode(native.Hello(1, 1, client_id="me", queue_messages=1)),
]


class Arena:
    """A node with two innocent clients, and a third that sends anything."""

    def __init__(self) -> None:
        identity = Identity(bytes(16), "fuzzed", 1)
        self.node = Node(identity, LIMITS, 10_000, random.Random(1))
        self.node.load_rules(RULES, "rules")
        self.node.filters.learn(FilterTable({"band": FailingBand}))
        self.ns = 0
        self.last = WITNESS
        self.written = bytearray()  # to the witness
        self.closed: set[int] = set()
        self.numbers = 0
        for key in (INNOCENT, WITNESS):
            self.step(Opened(key, "innocent"))
            self.receive(key, HELLO)
        self.receive(WITNESS, native.encode(native.Subscribe(1, "witness")))

    def step(self, *events: Event) -> None:
        following = list(events)
        while following:
            answers: list[Event] = []
            for effect in self.node.step(following, Now(self.ns, self.ns // 1000)):
                if isinstance(effect, Write):
                    data = b"".join(effect.pieces)
                    if effect.connection == WITNESS:
                        self.written += data
                    if effect.report:
                        answers.append(Unsent(effect.connection, 0))
                elif isinstance(effect, Close) and effect.connection not in self.closed:
                    self.closed.add(effect.connection)
                    answers.append(Closed(effect.connection, effect.reason))
            following = answers

    def receive(self, key: int, data: bytes) -> None:
        self.step(Received(key, memoryview(data)))

    def attack(self, data: bytes, choice: random.Random) -> None:
        """A connection that sends this, cut anywhere; afterwards all must be as before."""
        self.last += 1
        key = self.last
        self.step(Opened(key, "attacker"))
        at = 0
        while at < len(data) and key not in self.closed:
            size = choice.choice([1, 7, 30, len(data)])
            self.receive(key, data[at : at + size])
            if choice.random() < 0.1:
                self.ns += 1_000_000
                self.step(Tick())
            at += size
        self.step(Unsent(key, choice.randrange(2_000)))
        self.check_innocent()
        self.step(Closed(key, "over"))

    def check_innocent(self) -> None:
        self.numbers += 1
        self.written.clear()
        frame = native.encode(Message("witness", str(self.numbers).encode()))
        heartbeat = native.encode(native.Heartbeat())
        self.receive(INNOCENT, frame)
        self.receive(WITNESS, heartbeat)
        assert not self.closed & {INNOCENT, WITNESS}
        assert frame in self.written


def mutated(choice: random.Random, data: bytes) -> bytes:
    work = bytearray(data)
    for _ in range(choice.randint(1, 4)):
        at = choice.randrange(len(work) + 1)
        match choice.randrange(4):
            case 0:
                work[at : at + 1] = choice.randbytes(1)
            case 1:
                del work[at : at + choice.randint(1, 20)]
            case 2:
                work[at:at] = choice.choice([b"\0" * 12, b"\xff" * 12, choice.randbytes(9)])
            case _:
                work[at:at] = choice.choice(SENTENCES)
    return bytes(work)


def payloads_mutated(choice: random.Random) -> bytes:
    """Frames whose header and checksum are right, and whose payload is not."""
    frames = []
    for _ in range(choice.randint(1, 6)):
        sentence = choice.choice(SENTENCES)
        payload = sentence[12:]
        if choice.random() < 0.4:
            payload = mutated(choice, payload)[:8_000]
        kind = sentence[4] if choice.random() < 0.8 else choice.randrange(20)
        frames.append(native.frame(kind, payload, choice.choice([0, 0, 0, 1, 255])))
    return b"".join(frames)


def conversation(choice: random.Random) -> bytes:
    return b"".join(choice.choices(SENTENCES[1:], k=choice.randint(1, 12)))


STREAMS: dict[str, Callable[[random.Random], bytes]] = {
    "noise before the handshake": lambda choice: choice.randbytes(choice.randrange(60)),
    "noise behind the preface": lambda choice: native.PREFACE + choice.randbytes(40),
    "a damaged handshake": lambda choice: mutated(choice, choice.choice(OPENINGS)),
    "noise": lambda choice: choice.choice(OPENINGS) + choice.randbytes(choice.randrange(200)),
    "zeros": lambda choice: HELLO + bytes(choice.randrange(100)),
    "a damaged conversation": lambda choice: (
        choice.choice(OPENINGS) + mutated(choice, conversation(choice))
    ),
    "damaged payloads": lambda choice: choice.choice(OPENINGS) + payloads_mutated(choice),
    "a good conversation": lambda choice: choice.choice(OPENINGS) + conversation(choice),
}


def seeds(count: int) -> Iterator[int]:
    """Always the same ones, then others for as long as somebody wants to wait."""
    yield from range(count)
    until = time.monotonic() + float(os.environ.get("REGRAFT_FUZZ_SECONDS", "0")) / len(STREAMS)
    seed = time.time_ns()
    while time.monotonic() < until:
        yield seed
        seed += 1


@pytest.mark.parametrize("name", STREAMS)
def test_no_bytes_harm_the_node_or_the_innocent(name: str) -> None:
    for seed in seeds(12):
        choice = random.Random(seed)
        arena = Arena()  # a new one now and then, as the first frames of a node are special
        for _ in range(60):
            data = STREAMS[name](choice)
            try:
                arena.attack(data, choice)
            except Exception as error:
                pytest.fail(f"seed {seed}: {error!r} after {data.hex()}")
        counters = arena.node.snapshot()
        assert (counters["connections"], counters["queued_bytes"]) == (2, 0)
        assert counters["subscriptions"] == 1
