"""Checks the laws of control messages: round trips, agreement with Google's, no surprises."""

import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import PeerError
from regraft.kernels.checksum import crc32c
from regraft.wire import native, peers, protobuf, traces
from regraft.wire.native import CLASSES, Kind, Outcome, StallPolicy, decode, frame, read_frame

LAW = settings(derandomize=True, deadline=None, max_examples=60)
CONTROL_KINDS = [kind for kind in Kind if kind != Kind.MESSAGE]
LIMIT = 65_536

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
    "fixed32": st.integers(0, 2**32 - 1),
    "fixed64": st.integers(0, 2**64 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "string": TEXT,
    "bytes": st.binary(max_size=12),
    "StallPolicy": st.sampled_from(StallPolicy),
    "Outcome": st.sampled_from(Outcome),
    "Decision": st.sampled_from(native.Decision),
    "TransactionState": st.sampled_from(native.TransactionState),
    "TraceMode": st.sampled_from(traces.TraceMode),
    "Step": st.sampled_from(peers.Step),
    "Settle": st.builds(native.Settle, st.integers(0, 2**32 - 1), st.just((1, 2))),
    "Subscribe": st.builds(native.Subscribe, st.integers(0, 2**32 - 1), TEXT, TEXT, st.booleans()),
    "Feature": st.builds(native.Feature, TEXT, st.booleans()),
    "Candidate": st.builds(
        peers.Candidate, st.binary(max_size=16), TEXT, st.integers(0, 2**32 - 1)
    ),
    "Known": st.builds(peers.Known, st.binary(max_size=16), st.integers(0, 2**64 - 1)),
    "Durable": st.builds(peers.Durable, st.integers(0, 2**64 - 1), TEXT, TEXT, st.booleans(), TEXT),
    "Wanted": st.builds(peers.Wanted, st.integers(0, 2**64 - 1), TEXT, st.booleans(), TEXT),
}

Google = Callable[[str], Any]


def messages(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any message of a class, by its table."""
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for name, row in protobuf.table(cls).values():
        one = BY_KIND[row.scalar.name]
        parts[name] = st.lists(one, max_size=4).map(tuple) if row.repeated else one
    return st.builds(cls, **parts)


def any_message() -> st.SearchStrategy[Any]:
    return st.sampled_from(CONTROL_KINDS).flatmap(lambda kind: messages(CLASSES[kind]))


def to_google(message: Any, google: Google) -> Any:
    """The same message as an object of Google's library; a BYE has none there."""
    theirs = google(type(message).__name__)()
    for field in fields(message):
        value = getattr(message, field.name)
        if is_dataclass(value):
            getattr(theirs, field.name).CopyFrom(to_google(value, google))
            continue
        if value is None:
            continue
        if not isinstance(value, tuple):
            setattr(theirs, field.name, value)
            continue
        plain = [to_google(item, google) if is_dataclass(item) else item for item in value]
        getattr(theirs, field.name).extend(plain)
    return theirs


@settings(LAW, max_examples=120)
@given(any_message())
def test_what_is_encoded_comes_back(message: Any) -> None:
    data = native.encode(message)
    found = read_frame(data, 0, LIMIT)
    assert found is not None
    kind, flags, payload, end = found
    assert (flags, end) == (0, len(data))
    assert decode(kind, payload) == message


@pytest.mark.parametrize("kind", [kind for kind in CONTROL_KINDS if kind != Kind.BYE])
def test_google_agrees_in_both_directions(google: Google, kind: Kind) -> None:
    cls = CLASSES[kind]

    @LAW
    @given(messages(cls))
    def agree(message: Any) -> None:
        theirs = to_google(message, google)
        ours = protobuf.encode(message)
        assert google(cls.__name__).FromString(ours) == theirs
        assert decode(kind, theirs.SerializeToString()) == message
        assert ours == theirs.SerializeToString(deterministic=True)

    agree()


# ------------------------------------------------------------------------ fuzz


def samples() -> list[tuple[Kind, bytes]]:
    features = (native.Feature("trace"), native.Feature("credit", True))
    rich: list[Any] = [
        native.Hello(1, 2, features, "me", "x/1", 5, True, 6, 7, 8, StallPolicy.DROP_OLDEST, 9, 10),
        native.Welcome(1, features, bytes(16), "n", 2, "me", 3, b"t", 4, 5, 6, 7, 8, -9),
        native.Subscribe(1, "a/#", "x > 1", True),
        native.Transfer(2, (1, 300, 70_000), "ann", b"o", 5, 1, b"t"),
        native.Goaway("stop", 100, ("a:1", "b:2")),
        native.Error(5, "x", "text", True, 1, 2, 3),
    ]
    return [(native.KINDS[type(message)], protobuf.encode(message)) for message in rich]


def damage(choice: random.Random, data: bytes) -> bytes:
    work = bytearray(data)
    for _ in range(choice.randint(1, 3)):
        at = choice.randrange(len(work) + 1)
        match choice.randrange(3):
            case 0:
                work[at : at + 1] = choice.randbytes(1)
            case 1:
                del work[at : at + choice.randint(1, 4)]
            case _:
                work[at:at] = work[at : at + choice.randint(1, 9)]
    return bytes(work)


def judge(kind: Kind, data: bytes, google: Google) -> bool:
    """Hold the law for a payload: a message or a PeerError, and Google's parser takes it too."""
    try:
        message = decode(kind, data)
    except PeerError as error:
        assert error.code.name == "malformed-envelope"
        return False
    assert type(message) is CLASSES[kind]
    if kind not in (Kind.BYE, Kind.MESSAGE):
        theirs = google(CLASSES[kind].__name__).FromString(data)
        theirs.DiscardUnknownFields()
        assert theirs == to_google(message, google)
    return True


def test_random_payloads_give_a_message_or_a_peer_error(google: Google) -> None:
    choice = random.Random(3)
    for _ in range(1_000):
        data = choice.randbytes(choice.randrange(24))
        for kind in Kind:
            judge(kind, data, google)


def test_damaged_payloads_give_a_message_or_a_peer_error(google: Google) -> None:
    choice = random.Random(4)
    known = samples()
    accepted = 0
    for _ in range(5_000):
        kind, data = choice.choice(known)
        accepted += judge(kind, damage(choice, data), google)
    assert 200 < accepted < 4_800


def test_damaged_streams_give_frames_or_a_peer_error() -> None:
    choice = random.Random(5)
    stream = b"".join(frame(kind, data) for kind, data in samples())
    codes: set[str] = set()
    for turn in range(3_000):
        data = damage(choice, stream) if turn % 2 else choice.randbytes(choice.randrange(60))
        at = 0
        try:
            while (found := read_frame(data, at, LIMIT)) is not None:
                assert found[3] == at + 12 + len(found[2])
                at = found[3]
        except PeerError as error:
            codes.add(error.code.name)
    assert "bad-checksum" in codes


def test_random_headers_with_a_fitting_check_give_a_frame_or_a_peer_error() -> None:
    choice = random.Random(6)
    codes: set[str] = set()
    for _ in range(5_000):
        length = choice.choice([choice.randrange(20), choice.randrange(2**32)])
        head = length.to_bytes(4, "little") + bytes([choice.randrange(20), choice.randrange(3)])
        check = (crc32c(head) & 0xFFFF).to_bytes(2, "little")
        try:
            read_frame(head + check + bytes(choice.randrange(40)), 0, LIMIT)
        except PeerError as error:
            codes.add(error.code.name)
    assert codes == {"malformed-frame", "frame-too-large", "bad-checksum"}
