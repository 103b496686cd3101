"""Writes `vectors.json`: frames, byte for byte, and what they mean or why they are refused.

    python docs/make_vectors.py

Rules:

- Whoever implements the protocol elsewhere can test against the file without running a node.
- A vector has a name, a description and `hex`, the bytes of one or more frames. A good one has
  `decoded`: per frame its kind, flags and the fields that are not absent, named as in the schema.
  A bad one has `error`: the name of the code with which it is refused. An unfinished one has
  `incomplete`: true. The limit `frame_bytes_max` holds for all.
- Bytes are written as hex, numbers as decimal numbers of up to 64 bits, attributes as lists of
  their name and one value.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from regraft.errors import LocalError, PeerError
from regraft.kernels.checksum import crc32c
from regraft.model.message import (
    MAPPING_FIELDS,
    SCALAR_FIELDS,
    VALUE_FIELDS,
    Compression,
    DeliveryMode,
    Message,
    Timestamp,
    Value,
    encode_envelope,
)
from regraft.model.varint import BYTES, STRING, UINT64
from regraft.wire import native, offers, peers, questions, traces
from regraft.wire.native import FLAG_CONTROL, PREFACE, Kind, encode, frame, read_frame

FRAME_BYTES_MAX = 4096
TARGET = Path(__file__).with_name("vectors.json")

MINIMAL = Message("a/b", b"hello")
ALL_FIELDS = Message(
    topic="plant/7/temperature",
    body=b'{"c":21.5}',
    attributes={
        "alarm": True,
        "quiet": False,
        "level": -7,
        "least": -(2**63),
        "celsius": 21.5,
        "unit": "°C",
        "raw": b"\x00\xff",
        "measured": Timestamp(1_700_000_000_000_000),
    },
    id=0x0123456789ABCDEF,
    sender="sensor-7",
    to="archive",
    type=1000,
    type_name="Reading",
    timestamp_us=1_700_000_000_000_001,
    references=0xFEDCBA9876543210,
    workflow=b"\x01\x02\x03",
    sequence=2**64 - 1,
    priority=0,
    expiration_us=1_700_000_060_000_000,
    delivery_mode=DeliveryMode.PERSISTENT,
    content_type="application/json",
    reply_to="answers/7",
    correlation="c-1",
    context={"room": "7b", "floor": 2},
    override_rules=b"\x0a",
    report_delivery_error=True,
    include_original=True,
    logging_method=3,
)
HELLO = native.Hello(
    version_min=1,
    version_max=1,
    features=(native.Feature("trace"), native.Feature("credit", required=True)),
    client_id="sensor-7",
    agent="example/1.0",
    heartbeat_ms=5000,
    queue_messages=1000,
    queue_bytes=1_000_000,
    when_stalled=native.StallPolicy.DROP_OLDEST,
    credit_messages=100,
    credit_bytes=65_536,
)
WELCOME = native.Welcome(
    version=1,
    features=(native.Feature("credit", required=True),),
    node_id=bytes(range(16)),
    node_name="north",
    incarnation=3,
    client_id="sensor-7",
    session_id=0x1122334455667788,
    token=b"token",
    heartbeat_ms=5000,
    credit_messages=65_536,
    credit_bytes=65_536,
    frame_bytes_max=1_048_576,
    subscriptions_max=10_000,
    time=1_700_000_000_000_000,
)
WELCOME_JOURNAL = replace(WELCOME, journal=bytes(range(16, 32)), sequence=41)
DURABLE = native.Subscribe(3, "orders/#", "total > 100", durable="billing", in_flight=100)
REPLAY = native.Subscribe(
    4, "orders/eu", exact=True, stream="orders", from_sequence=1000, paced=True
)
REPLAY_SINCE = native.Subscribe(5, stream="orders", from_time=1_700_000_000_000_000)
PERSISTENT = Message("a/b", b"hello", sequence=42, delivery_mode=DeliveryMode.PERSISTENT)


def gzip_stored(content: bytes) -> bytes:
    """A gzip member whose bytes depend on no compressor: one stored block."""
    header = bytes.fromhex("1f8b08000000000000ff")
    block = b"\x01" + struct.pack("<HH", len(content), len(content) ^ 0xFFFF) + content
    return header + block + struct.pack("<II", zlib.crc32(content), len(content))


def between_nodes() -> list[tuple[str, str, bytes]]:
    """What nodes say to each other, and commands."""
    one, two = bytes(range(16)), bytes(range(16, 32))
    near = peers.Candidate(two, "10.0.0.8:7447", 1)
    peer = peers.Peer(1, 1, one, "left", 3, "10.0.0.7:7447", 65_536, 65_536, 1_048_576)
    wanted = peers.Wanted(5, "plant/#", False, "celsius > 30")
    doubtful = peers.Wanted(0, "a/b", True, "")
    given = peers.Wanted(1 << 31 | 1, "a/b", True, "")
    reroute = peers.Reroute(b"r" * 16, (given,), (7,), (one,), (two,))
    asked = encode_envelope(Message("rooms", b"?"))
    context = encode_envelope(Message("c", context={"room": "hall"}))[3:]
    return [
        ("peer", "a node's first frame to another node", encode(peer)),
        ("ask", "may I be below you?", encode(peers.Ask(one, 7, 2, address="10.0.0.7:7447"))),
        ("answer", "no: full", encode(peers.Answer(one, 7, False, 3, 2, (near,)))),
        ("accept", "yes: a link from now on", encode(peers.Accept(7, two, 1))),
        ("leave", "the link is over, by hand", encode(peers.Leave(11, near))),
        ("status", "its place in the tree", encode(peers.Status(two, 1, 3, (near,), ()))),
        ("beacon", "a sign of life, and an echo", encode(peers.Beacon(one, 3, 99, 98, 1500))),
        ("interests", "one more, two less", encode(peers.Interests((wanted,), (2, 3), True))),
        ("leaving", "a node is about to go", encode(peers.Leaving((near,), (one, two)))),
        ("drained", "nothing more comes", encode(peers.Drained())),
        ("left", "it is gone", encode(peers.Left())),
        ("command", "for the shell", encode(peers.Command(1, "leave", b"{}"))),
        ("done", "its answer", encode(peers.Done(1, b"{}"))),
        ("flush", "a new link is complete", encode(peers.Flush(b"r" * 16, (one,), 0, True))),
        ("restored", "and the old end knows it", encode(peers.Restored(b"r" * 16))),
        ("activate", "what is in doubt", encode(peers.Activate(b"r" * 16, (doubtful,), (one,)))),
        ("reroute", "by another way", encode(reroute)),
        ("rerouted", "of which this was known", encode(peers.Rerouted(b"r" * 16, (1 << 31 | 1,)))),
        ("moving", "a branch goes elsewhere", encode(peers.Moving(b"r" * 16, one, (two,)))),
        ("ready", "it may come", encode(peers.Ready(b"r" * 16, True))),
        ("release", "it has come", encode(peers.Release(b"r" * 16))),
        (
            "homes",
            "how much is known of a node with mailboxes",
            encode(peers.Homes((peers.Known(b"j" * 16, 1 << 32 | 1),))),
        ),
        (
            "home",
            "what it keeps messages for",
            encode(
                peers.Home(
                    *(b"j" * 16, b"n" * 16, "athens", 1 << 32 | 2, 1 << 32 | 1),
                    add=(peers.Durable(3, "orders", "orders/#", False, "price > 100"),),
                    remove=(2,),
                    first=True,
                    last=True,
                )
            ),
        ),
        (
            "carried",
            "messages for mailboxes of another node, as it stands in the body of one to it",
            encode(peers.Carried(b"j" * 16, 2, 0, 1, 0, b"frames")),
        ),
        (
            "carried-to-one",
            "messages of a mailbox that has moved; the second was delivered once, and came back",
            encode(
                peers.Carried(
                    *(b"j" * 16, 2, 0, 7, 0, b"frames"), mailbox=5, marked=6, backs=(1, 1, 0)
                )
            ),
        ),
        ("taken", "they are kept there", encode(peers.Taken(b"k" * 16, 2, 1))),
        ("move-asked", "a node wants a mailbox", encode(peers.Move(b"k" * 16, "delphi", 2, 5))),
        (
            "move-given",
            "and gets it",
            encode(
                peers.Move(*(b"j" * 16, "athens", 2, 5, peers.Step.GIVEN), first=7, options=b"{}")
            ),
        ),
        ("origin", "where messages between nodes began", encode(peers.Origin(1, 2, 3))),
        ("question", "a client asks", encode(questions.Question(b"", 7, 5000, asked))),
        ("question-onward", "and a node", encode(questions.Question(one, 0, 4843, asked))),
        ("reply", "the last of a client", encode(questions.Reply(b"", 9, asked, True))),
        ("counted", "so many may reply", encode(questions.Counted(one, 0, 1000))),
        ("ended", "all have", encode(questions.Ended(b"", 7, 1000, 998, True))),
        ("withdrawn", "nobody waits", encode(questions.Withdrawn(b"", 7))),
        ("trace", "who would get it", encode(traces.Trace(b"", 11, 5000, asked))),
        (
            "trace-onward",
            "a node asks why, where the message would not have come",
            encode(
                traces.Trace(
                    *(one, 0, 4843, asked, traces.TraceMode.WHY, 1, True, "billing", "", 2)
                )
            ),
        ),
        (
            "trace-filter",
            "what neighbours were told of a filter",
            encode(
                traces.Trace(
                    *(b"", 12, 5000, b"", traces.TraceMode.FILTER, 0, False, "", "", 0),
                    *("a/b", True, "x > 1", True),
                )
            ),
        ),
        ("context", "room = hall", encode(questions.Context(3, context))),
        ("offers", "a neighbour has", encode(offers.Offers((wanted,), (2, 3), True))),
        ("heeded", "up to number 5", encode(offers.Heeded(5))),
        ("advertise", "a filter", encode(offers.Advertise(4, "plant/#", "celsius > 30", True))),
        ("advertised", "and wanted", encode(offers.Advertised(4, True))),
        ("unadvertise", "no longer", encode(offers.Unadvertise(4))),
        ("demand", "nobody wants it", encode(offers.Demand(4))),
        ("finished", "by a member of a group", encode(native.Finished(3))),
        (
            "transact",
            "messages, a settlement, a mailbox to be made and one to be removed",
            encode(
                native.Transact(
                    8,
                    encode(replace(MINIMAL, delivery_mode=DeliveryMode.PERSISTENT)),
                    encode(MINIMAL),
                    (native.Settle(1, (4, 6)),),
                    (native.Subscribe(0, "a", durable="box"),),
                    ("old",),
                )
            ),
        ),
        ("decide", "prepare it", encode(native.Decide(8, "g", native.Decision.PREPARE, 1))),
        (
            "decided",
            "it was rolled back",
            encode(
                native.Decided(
                    8, "g", native.TransactionState.ROLLED_BACK, 32, "mailbox-full", "full", 0, True
                )
            ),
        ),
    ]


def good_frames() -> list[tuple[str, str, bytes]]:
    """Name, description and bytes of what must be accepted."""
    exc = LocalError("bad-selector", "expected a value at position 9, found the end")
    both = (MINIMAL, Message("a/b", b"again"))
    gzip = Message("a/b", gzip_stored(b"hello"), compression=Compression.GZIP)
    unknown = UINT64.write(99, 7) + STRING.write(1000, "later")
    envelope = encode_envelope(MINIMAL)
    backwards = BYTES.write(5, b"hello") + UINT64.write(30, 1) + STRING.write(9, "a/b")
    one_by_one = bytes.fromhex("0d01000000") + UINT64.write(2, 7) + UINT64.write(2, 300)
    return [
        ("hello", "a client opens", encode(HELLO)),
        ("hello-least", "a client asks for nothing", encode(native.Hello(1, 1))),
        ("welcome", "the node answers", encode(WELCOME)),
        ("welcome-journal", "of a node that keeps a journal", encode(WELCOME_JOURNAL)),
        ("subscribe", "with a selector", encode(native.Subscribe(1, "a/+/#", "level > 3", True))),
        ("subscribe-all", "without a pattern: every topic", encode(native.Subscribe(2))),
        ("subscribe-durable", "a mailbox", encode(DURABLE)),
        ("subscribe-replay", "from a sequence, at the old pace", encode(REPLAY)),
        ("subscribe-replay-since", "from a moment", encode(REPLAY_SINCE)),
        ("subscribed", "the subscription stands", encode(native.Subscribed(1))),
        ("subscribed-durable", "7 wait, from 12 on", encode(native.Subscribed(3, 12, 7))),
        ("unsubscribe", "the client wants no more", encode(native.Unsubscribe(1))),
        ("unsubscribe-remove", "the mailbox goes, too", encode(native.Unsubscribe(3, True))),
        ("unsubscribed", "the subscription is gone", encode(native.Unsubscribed(1))),
        ("credit", "cumulative", encode(native.Credit(1000, 2**40))),
        ("heartbeat", "a sign of life, empty payload", encode(native.Heartbeat())),
        ("heartbeat-asks", "with a token", encode(native.Heartbeat(2**64 - 1))),
        ("heartbeat-answers", "the same token", encode(native.Heartbeat(2**64 - 1, True))),
        ("dropped", "with a reason", encode(native.Dropped(12, 3456, "queue-full"))),
        ("goaway", "with alternatives", encode(native.Goaway("stop", 10_000, ("b:7447", "c:1")))),
        ("error", "about subscription 3", encode(native.Error.of(exc, subscription=3))),
        ("bye", "no payload, so the checksum is 0", encode(native.Bye())),
        ("inspect", "a question about the node", encode(native.Inspect("connections", 10))),
        ("inspected", "its answer", encode(native.Inspected("connections", b'{"rows": []}'))),
        ("confirmed", "messages 8 to 10, each for two", encode(native.Confirmed(10, 3, 2))),
        ("confirmed-known", "published before", encode(native.Confirmed(11, 1, known=True))),
        ("settle", "5 to 9 and 12", encode(native.Settle(3, (5, 9, 12, 12), 77))),
        ("settled", "that is safe", encode(native.Settled(3, 77))),
        *between_nodes(),
        ("message-minimal", "a topic and a body", encode(MINIMAL)),
        ("message-persistent", "with the publisher's sequence", encode(PERSISTENT)),
        ("message-topic-only", "no body", encode(Message("t"))),
        ("message-all-fields", "priority 0 is written, as absent means 4", encode(ALL_FIELDS)),
        ("message-gzip", "the body inflates to 'hello'", encode(gzip)),
        ("message-unknown-fields", "kept", frame(Kind.MESSAGE, envelope + unknown)),
        ("message-any-order", "fields in another order", frame(Kind.MESSAGE, backwards)),
        ("message-control", "flag bit 0", frame(Kind.MESSAGE, envelope, FLAG_CONTROL)),
        (
            "transfer-and-messages",
            "a delivery: a transfer header and the two messages it announces",
            encode(native.Transfer(2, (1, 300))) + b"".join(map(encode, both)),
        ),
        ("transfer-not-packed", "repeated one by one", frame(Kind.TRANSFER, one_by_one)),
        (
            "transfer-all-fields",
            "redelivered from a journal",
            encode(native.Transfer(1, (1,), "ann", b"\x01" * 16, 99, 2, b"t")) + encode(MINIMAL),
        ),
    ]


def bad_frames() -> list[tuple[str, str, str, bytes]]:
    """Name, description, code and bytes of what must be refused, the reason in the frame."""
    good = encode(MINIMAL)
    damaged_header = good[:6] + bytes([good[6] ^ 1]) + good[7:]
    return [
        ("bad-check", "the header is damaged", "bad-checksum", damaged_header),
        ("bad-checksum", "the payload is damaged", "bad-checksum", good[:-1] + b"O"),
        ("bad-length", "7 has no room for the header", "malformed-frame", sums("070000000e00")),
        ("bad-limit", "one byte too many", "frame-too-large", sums("fd0f00000700")),
        ("bad-kind-0", "there is no kind 0", "malformed-frame", frame(0, b"")),
        ("bad-kind-99", "there is no kind 99", "malformed-frame", frame(99, b"")),
        ("bad-flags", "bit 1 has no use", "malformed-frame", frame(Kind.BYE, b"", 2)),
    ]


def sums(head: str) -> bytes:
    """A header with any first six bytes, a check that fits, and the checksum of no payload."""
    return bytes.fromhex(head) + struct.pack("<HI", crc32c(bytes.fromhex(head)) & 0xFFFF, 0)


# What no payload may hold: name, description, kind, payload.
BAD_PAYLOADS: list[tuple[str, str, Kind, str]] = [
    ("no-topic", "a body only", Kind.MESSAGE, "2a0161"),
    ("empty-topic", "a topic of no bytes", Kind.MESSAGE, "4a00"),
    ("long-topic", "1025 bytes", Kind.MESSAGE, "4a8108" + "61" * 1025),
    ("topic-not-utf8", "an overlong NUL", Kind.MESSAGE, "4a02c080"),
    ("topic-twice", "even if equal", Kind.MESSAGE, "4a01614a0161"),
    ("group", "wire type 3", Kind.MESSAGE, "4a0161cb01cc01"),
    ("wire-type-7", "does not exist", Kind.MESSAGE, "4a0161cf01"),
    ("wrong-wire-type", "a topic as a varint", Kind.MESSAGE, "4801"),
    ("field-0", "field number 0", Kind.MESSAGE, "4a01610001"),
    ("long-tag", "a tag of six bytes", Kind.MESSAGE, "ca808080800001" + "61"),
    ("cut-off-varint", "type", Kind.MESSAGE, "4a01612080"),
    ("cut-off-fixed", "id of 7 bytes", Kind.MESSAGE, "4a01610901020304050607"),
    ("cut-off-string", "topic of 2 bytes with 1", Kind.MESSAGE, "4a0261"),
    ("long-varint", "sequence of 11 bytes", Kind.MESSAGE, "4a016158" + "80" * 10 + "00"),
    ("varint-above-64-bits", "sequence", Kind.MESSAGE, "4a016158" + "ff" * 9 + "02"),
    ("uint32-above-32-bits", "type", Kind.MESSAGE, "4a0161208080808010"),
    ("bool-2", "report_delivery_error", Kind.MESSAGE, "4a0161a80102"),
    ("unknown-enum", "compression 2", Kind.MESSAGE, "4a0161c00102"),
    ("priority-10", "0 to 9 only", Kind.MESSAGE, "4a0161600a"),
    ("attribute-without-name", "only a value", Kind.MESSAGE, "4a016152021001"),
    ("attribute-empty-name", "a name of no bytes", Kind.MESSAGE, "4a016152040a001001"),
    ("attribute-without-value", "only a name", Kind.MESSAGE, "4a016152030a0161"),
    ("attribute-two-values", "bool and int", Kind.MESSAGE, "4a016152070a016110011802"),
    ("attribute-two-names", "even if equal", Kind.MESSAGE, "4a016152080a01610a01611001"),
    ("attribute-twice", "the same name", Kind.MESSAGE, "4a0161" + "52050a01611001" * 2),
    ("attribute-long-name", "256", Kind.MESSAGE, "4a0161528502" + "0a8002" + "61" * 256 + "1001"),
    ("hello-twice", "version_min", Kind.HELLO, "08010801"),
    ("hello-stall-policy", "3 does not exist", Kind.HELLO, "5803"),
    ("hello-feature", "a feature's name is not UTF-8", Kind.HELLO, "1a030a01ff"),
    ("subscribe-wire-type", "id as bytes", Kind.SUBSCRIBE, "0a0101"),
    ("transfer-packed", "a packed number is cut off", Kind.TRANSFER, "12020180"),
    ("settle-packed", "a packed number is cut off", Kind.SETTLE, "12020180"),
    ("subscribe-twice", "durable", Kind.SUBSCRIBE, "08012a01612a0161"),
    ("bye-group", "also in unknown fields", Kind.BYE, "0b0c"),
]


def build() -> dict[str, Any]:
    """The whole file as an object."""
    vectors: list[dict[str, Any]] = []
    for name, description, data in good_frames():
        vectors.append({"name": name, "description": description, "hex": data.hex()})
        vectors[-1]["decoded"] = read(data)
    cut = encode(MINIMAL)
    for name, size in (("cut-header", 11), ("cut-payload", len(cut) - 1)):
        description = f"the first {size} bytes of message-minimal"
        vectors.append({"name": name, "description": description, "hex": cut[:size].hex()})
        vectors[-1]["incomplete"] = True
    bad = bad_frames()
    for name, description, kind, payload in BAD_PAYLOADS:
        data = frame(kind, bytes.fromhex(payload))
        bad.append((f"bad-{name}", description, "malformed-envelope", data))
    for name, description, code, data in bad:
        vectors.append({"name": name, "description": description, "hex": data.hex()})
        vectors[-1]["error"] = code
    return {"preface": PREFACE.hex(), "frame_bytes_max": FRAME_BYTES_MAX, "vectors": vectors}


def read(data: bytes) -> list[dict[str, Any]] | str | None:
    """Read frames: what they mean, the name of the code that refuses them, or None if cut off."""
    frames: list[dict[str, Any]] = []
    at = 0
    try:
        while at < len(data):
            found = read_frame(data, at, FRAME_BYTES_MAX)
            if found is None:
                return None
            kind, flags, payload, at = found
            message = show(native.decode(kind, payload))
            frames.append({"kind": kind.name, "flags": flags, "message": message})
    except PeerError as error:
        return error.code.name
    return frames


def show(message: Any) -> dict[str, Any]:
    """The fields of a message that are not absent, by the names of the schema."""
    if not isinstance(message, Message):
        pairs = [(field.name, getattr(message, field.name)) for field in fields(message)]
        return {name: plain(value) for name, value in pairs if value or value is None}
    shown = {
        row.schema_name: plain(getattr(message, row.name))
        for row in SCALAR_FIELDS
        if getattr(message, row.name) != row.absent
    }
    for name in MAPPING_FIELDS.values():
        if mapping := getattr(message, name):
            shown[name] = attributes(mapping)
    if message.unknown:
        shown["unknown"] = message.unknown.hex()
    return shown


def attributes(mapping: Mapping[str, Value]) -> list[dict[str, Any]]:
    """The attributes of a mapping, each with the schema's name for its kind of value."""
    kinds = {row.type: row.schema_name for row in VALUE_FIELDS}
    return [{"name": name, kinds[type(v)]: plain(v)} for name, v in mapping.items()]


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, Timestamp):
        return value.us
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return show(value)
    return value


def text() -> str:
    """The file as it is written."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
