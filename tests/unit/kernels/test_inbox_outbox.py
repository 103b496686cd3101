"""What clients send and receive: against the reference codec, cut anywhere, and damaged."""

from __future__ import annotations

import contextlib
import sys
from random import Random
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.client.link import Link
from regraft.errors import LocalError, PeerError
from regraft.kernels import inbox as compiled_inbox
from regraft.kernels import outbox as compiled_outbox
from regraft.kernels.frame import transfer
from regraft.model.message import Message, Timestamp, Value, decode_envelope
from regraft.wire import native

GRANTED = 1 << 40


@pytest.fixture(scope="module", params=["as installed", "interpreted"])
def modules(request: pytest.FixtureRequest) -> dict[str, ModuleType]:
    if request.param == "interpreted":
        return kernels.load_interpreted()
    return {"inbox": compiled_inbox, "outbox": compiled_outbox}


def outbox(modules: dict[str, ModuleType], frame_bytes_max: int = 1 << 20) -> Any:
    made = modules["outbox"].Outbox(frame_bytes_max, 7)
    made.granted_messages = made.granted_bytes = GRANTED
    return made


def split(data: bytes) -> list[tuple[int, bytes]]:
    frames, at = [], 0
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 26)
        assert frame is not None
        frames.append((int(frame[0]), frame[2]))
        at = frame[3]
    return frames


def value(random: Random) -> Value:
    return random.choice(
        (
            random.randint(-(2**63), 2**63 - 1),
            random.randint(-200, 200),
            random.random() * 10 ** random.randint(-300, 300),
            random.random() < 0.5,
            "grüß" * random.randint(0, 60),
            random.randbytes(random.randint(0, 300)),
            Timestamp(random.randint(-(2**63), 2**63 - 1)),
        )
    )


def test_what_is_put_in_comes_out_as_the_reference_reads_it(modules: dict[str, ModuleType]) -> None:
    random = Random(11)
    box = outbox(modules)
    expected = []
    for ordinal in range(1, 400):
        attributes = {
            f"n{k}" + "x" * random.choice((0, 200)): value(random)
            for k in range(random.randint(0, 5))
        }
        body = random.randbytes(random.choice((0, 1, 127, 128, 20_000)))
        time_us = random.choice((0, 1, 2**62))
        with_id = random.random() < 0.5
        assert box.put(b"a/b", body, attributes, time_us, with_id, b"") == ordinal
        expected.append((body, attributes, time_us or None, with_id))
    ids = set()
    for (kind, payload), (body, attributes, time_us, with_id) in zip(
        split(box.take()), expected, strict=True
    ):
        message = decode_envelope(payload)
        assert kind == native.Kind.MESSAGE
        assert (message.topic, message.body) == ("a/b", body)
        assert (message.attributes, message.timestamp_us) == (attributes, time_us)
        assert (message.id is not None) == with_id
        ids.add(message.id)
    assert len(ids - {None}) == sum(with_id for *_, with_id in expected)


def test_what_cannot_be_sent_leaves_nothing_behind(modules: dict[str, ModuleType]) -> None:
    box = outbox(modules, frame_bytes_max=1000)
    box.put(b"t", b"first", None, 0, False, b"")
    for body, attributes in (
        (bytes(2000), None),
        (b"", {"x": object()}),
        (b"", {"x": 2**63}),
        (b"", {"": 1}),
        (b"", {"n" * 256: 1}),
        (b"", {f"n{k}": k for k in range(257)}),
    ):
        with pytest.raises(LocalError):
            box.put(b"t", body, attributes, 0, False, b"")
    assert box.put(b"t", b"second", None, 0, False, b"") == 2
    bodies = [decode_envelope(payload).body for _, payload in split(box.take())]
    assert bodies == [b"first", b"second"]


def test_many_stop_at_credit_at_a_full_buffer_and_at_what_is_no_bytes(
    modules: dict[str, ModuleType],
) -> None:
    box = outbox(modules)
    bodies: list[Any] = [b"x"] * 10
    box.granted_messages = 4
    assert box.put_many(b"t", bodies, 0, None, 0, False, b"", 1 << 20) == 4
    assert not box.has_room
    box.granted_messages = GRANTED
    bodies[7] = "text"
    assert box.put_many(b"t", bodies, 4, None, 0, False, b"", 1 << 20) == 7
    assert box.put_many(b"t", bodies, 8, None, 0, False, b"", box.used + 1) == 9
    assert len(split(box.take())) == 8


def stream(random: Random) -> tuple[bytes, list[Any]]:
    """What a node may send, and what a client should make of it."""
    parts: list[bytes] = []
    expected: list[Any] = []
    for _ in range(random.randint(1, 12)):
        if random.random() < 0.3:
            control = native.Heartbeat(random.randint(1, 2**40), True)
            parts.append(native.encode(control))
            expected.append(control)
            continue
        ids = tuple(sorted(random.sample(range(1, 400), random.randint(1, 3))))
        messages = [
            Message(random.choice(("a", "b/c")), random.randbytes(random.choice((0, 5, 300))))
            for _ in range(random.randint(1, 5))
        ]
        header = native.encode(native.Transfer(len(messages), ids))
        parts.append(header + b"".join(map(native.encode, messages)))
        expected += [(ids, message.topic, message.body) for message in messages]
    return b"".join(parts), expected


def understood(items: list[tuple[Any, Any, int]]) -> list[Any]:
    found: list[Any] = []
    for key, content, _ in items:
        if isinstance(key, tuple):
            found += [(key, message.topic, message.body) for message in content]
            assert all(message.subscriptions == key for message in content)
        else:
            found.append(native.decode(key, content))
    return found


def opened(modules: dict[str, ModuleType]) -> Any:
    return modules["inbox"].Inbox(1 << 20, native.read_transfer)


def test_runs_from_a_journal_have_sequences(modules: dict[str, ModuleType]) -> None:
    random = Random(3)
    box = opened(modules)
    settled: list[tuple[tuple[int, ...], int, str]] = []
    box.settler = lambda message, how, *more: settled.append(
        (message.subscriptions, message.sequence, how)
    )
    for _ in range(300):
        ids = tuple(sorted(random.sample(range(1, 400), random.choice((1, 1, 2, 70)))))
        first = random.choice((0, 1, 127, 128, 1 << 20, 1 << 40, (1 << 62) - 9))
        attempts = random.choice((0, 0, 1, 127, 128))
        count = random.randint(1, 4)
        data = native.encode(
            native.Transfer(count, ids, first_sequence=first, delivery_count=attempts)
        ) + b"".join(native.encode(Message("t", b"%d" % k)) for k in range(count))
        ((key, messages, _),) = box.feed(data)
        assert key == ids
        assert [m.sequence for m in messages] == [first + k if first else 0 for k in range(count)]
        assert all(m.redelivered == (attempts > 0) for m in messages)
        settled.clear()
        messages[-1].settle()
        assert settled == ([(ids, first + count - 1, "accept")] if first else [])


def test_an_outbox_knows_which_sequences_are_safe(modules: dict[str, ModuleType]) -> None:
    random = Random(4)
    for _ in range(60):
        box = outbox(modules)
        box.sequence = 100
        persistent: dict[int, int] = {}  # ordinal -> sequence
        for ordinal in range(1, random.randint(2, 40)):
            box.persistent = random.random() < 0.7
            assert box.put(b"t", b"", None, 0, False, b"") == ordinal
            if box.persistent:
                persistent[ordinal] = box.sequence
        sent = [decode_envelope(payload) for _, payload in split(box.take())]
        assert [(m.sequence, int(m.delivery_mode)) for m in sent if m.sequence is not None] == [
            (sequence, 1) for sequence in persistent.values()
        ]
        assert all(not m.delivery_mode for m in sent if m.sequence is None)
        for ordinal, count in ((3, 2), (9, 1), (30, 15)):
            wanted = [
                persistent[k] for k in range(ordinal - count + 1, ordinal + 1) if k in persistent
            ]
            asked = box.sequences_of(ordinal - count + 1, count)
            assert [s + k for s, n in asked for k in range(n)] == wanted
            found = box.safe(ordinal, count)
            assert [s + k for s, n in found for k in range(n)] == wanted
            assert box.safe(ordinal, ordinal) == []  # they are forgotten
            persistent = {k: s for k, s in persistent.items() if k > ordinal}


def test_where_the_bytes_are_cut_does_not_matter(modules: dict[str, ModuleType]) -> None:
    random = Random(5)
    for _ in range(40):
        data, expected = stream(random)
        assert understood(opened(modules).feed(data)) == expected
        box, found, at = opened(modules), [], 0
        while at < len(data):
            size = random.choice((1, 3, 40, 500))
            found += understood(box.feed(data[at : at + size]))
            at += size
        assert found == expected


def test_what_was_read_into_a_buffer_is_not_needed_afterwards(
    modules: dict[str, ModuleType],
) -> None:
    random = Random(6)
    for _ in range(40):
        data, expected = stream(random)
        box, found, at = opened(modules), [], 0
        buffer = bytearray(random.choice((1, 7, 13, 100, 1000)) + 9)
        while at < len(data):
            part = data[at : at + random.randint(1, len(buffer) - 9)]
            start = random.randint(0, 9)
            buffer[start : start + len(part)] = part
            view = memoryview(buffer)[start : start + len(part)]
            found.append(box.feed(view))
            view.release()
            buffer[:] = random.randbytes(len(buffer))
            at += len(part)
        assert [item for items in found for item in understood(items)] == expected


def test_a_frame_may_be_larger_than_what_is_read_at_once(modules: dict[str, ModuleType]) -> None:
    message = Message("t", Random(1).randbytes(100_000))
    data = native.encode(native.Transfer(3, (5,))) + 3 * native.encode(message)
    box, found = opened(modules), []
    for at in range(0, len(data), 4096):
        found += understood(box.feed(memoryview(data)[at : at + 4096]))
    assert found == 3 * [((5,), "t", message.body)]


def test_a_run_whose_frame_was_cut_is_one_run(modules: dict[str, ModuleType]) -> None:
    head, message = native.encode(native.Transfer(9, (5,))), native.encode(Message("t", b"body"))
    for cut in range(1, len(message)):
        box = opened(modules)
        ((ids, first, size),) = box.feed(head + message + message[:cut])
        assert (ids, len(first), size) == ((5,), 1, len(message))
        ((ids, second, size),) = box.feed(message[cut:] + 2 * message)
        assert (ids, len(second), size) == ((5,), 3, 3 * len(message))
        assert (box.messages, box.size, box.left) == (4, 4 * len(message), 5)


def test_messages_live_as_long_as_whoever_got_them_says(modules: dict[str, ModuleType]) -> None:
    box = opened(modules)
    data = native.encode(native.Transfer(2, (5,))) + 2 * native.encode(Message("t"))
    ((_, first, _), (_, second, _)) = box.feed(2 * data)
    assert sys.getrefcount(first) == 2  # its name, and the argument
    assert sys.getrefcount(second) == 2


def test_what_came_before_an_error_does_not_come_behind_it(modules: dict[str, ModuleType]) -> None:
    box = opened(modules)
    head, message = native.encode(native.Transfer(9, (5,))), native.encode(Message("t", b"body"))
    with pytest.raises(PeerError):
        box.feed(head + message + message[:-1] + b"?")
    ((_, messages, size),) = box.feed(2 * message)
    assert (len(messages), size) == (2, 2 * len(message))


def test_a_frame_that_cannot_be_is_refused_wherever_its_header_was_cut(
    modules: dict[str, ModuleType],
) -> None:
    for data, code in ((bytes(12), "malformed-frame"), (b"\xff" * 12, "frame-too-large")):
        for cut in range(1, 12):
            box = opened(modules)
            assert box.feed(data[:cut]) == []
            with pytest.raises(PeerError) as caught:
                box.feed(data[cut:])
            assert caught.value.code.name == code


def test_what_is_no_view_of_bytes_is_not_read(modules: dict[str, ModuleType]) -> None:
    with pytest.raises(TypeError):
        opened(modules).feed("text")
    if modules["inbox"] is compiled_inbox and kernels.is_compiled():
        data = memoryview(bytes(64))
        for view in (data[::2], data.cast("I"), data[::-1]):
            with pytest.raises(TypeError):
                opened(modules).feed(view)


def test_damaged_bytes_are_refused_and_nothing_else_happens(
    modules: dict[str, ModuleType],
) -> None:
    random = Random(9)
    refused = 0
    for _ in range(600):
        data = bytearray(stream(random)[0])
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(data))
            damage = random.random()
            if damage < 0.6:
                data[at] ^= 1 << random.randrange(8)
            elif damage < 0.8:
                del data[at : at + random.randint(1, 20)]
            else:
                data[at:at] = random.randbytes(random.randint(1, 20))
            if not data:
                break
        try:
            understood(opened(modules).feed(bytes(data)))
        except PeerError:
            refused += 1
    assert refused > 400


def test_a_node_that_sends_anything_gets_a_peer_error_or_an_answer() -> None:
    random = Random(3)
    for _ in range(600):
        link = Link(native.Hello(version_min=1, version_max=1, credit_messages=9), 1)
        data = random.randbytes(random.randint(0, 60))
        if random.random() < 0.7:  # whole frames with any content
            kind = random.randint(0, 20)
            data = native.frame(kind, data)
        with contextlib.suppress(PeerError):
            list(link.receive(data))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (native.encode(Message("t")), "protocol-violation"),
        (transfer(b"\x12\x01\x01", 2) + native.encode(native.Heartbeat()), "protocol-violation"),
        (native.encode(native.Transfer(0, (1,))), "protocol-violation"),
        (b"\x00" * 12, "malformed-frame"),
        (b"\xff" * 12, "frame-too-large"),
    ],
)
def test_what_a_node_must_not_send(modules: dict[str, ModuleType], data: bytes, code: str) -> None:
    with pytest.raises(PeerError) as caught:
        opened(modules).feed(data)
    assert caught.value.code.name == code


def test_a_header_that_is_cut_off_is_not_taken_for_one_that_is_known(
    modules: dict[str, ModuleType],
) -> None:
    inbox = opened(modules)
    message = native.encode(Message(topic="a"))
    for _ in range(2):  # the second time its subscriptions, none, are known
        inbox.feed(native.encode(native.Transfer(1, ())) + message)
    with pytest.raises(PeerError):
        inbox.feed(native.frame(int(native.Kind.TRANSFER), b"\x0d\x01") + message)


def test_headers_like_the_last_one_are_known_and_others_are_not_taken_for_it(
    modules: dict[str, ModuleType],
) -> None:
    inbox = opened(modules)
    message = native.encode(Message(topic="a"))
    for ids in ((), (1,), (1,), (2, 300), (1,), (), (2, 300), (2, 300)):
        data = native.encode(native.Transfer(2, ids)) + 2 * message
        assert understood(inbox.feed(data)) == 2 * [(ids, "a", b"")]
    for header in (b"\x0d\x00\x00\x00\x00", b"\x0d\x01\x00\x00\x00\x00"):
        with pytest.raises(PeerError):  # no message; a field that cannot be
            opened(modules).feed(native.frame(int(native.Kind.TRANSFER), header) + message)
