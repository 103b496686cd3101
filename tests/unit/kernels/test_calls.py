"""Calls, requests and handlers that are stepped: the same compiled and interpreted."""

from __future__ import annotations

import asyncio
import contextvars
from types import ModuleType
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import calls, inbox, outbox, windows
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.wire import native

TWINS = kernels.load_interpreted()
FORMS = [
    pytest.param(calls, inbox, id="in use"),
    pytest.param(TWINS["calls"], TWINS["inbox"], id="interpreted"),
]
BOXES = [outbox, TWINS["outbox"]]


class Future:
    """What a call needs of one."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def done(self) -> bool:
        return bool(self.results)

    def set_result(self, result: Any) -> None:
        self.results.append(result)


def received(inbox: ModuleType, **fields: Any) -> Any:
    return inbox.ReceivedMessage(encode_envelope(Message(topic="$reply", **fields)))


@pytest.mark.parametrize(("calls", "inbox"), FORMS)
def test_an_answer_ends_its_call_and_everything_else_is_left(
    calls: ModuleType, inbox: ModuleType
) -> None:
    asked = calls.Calls(2)
    futures = {id: Future() for id in (7, 2**63 - 1)}
    for id, future in futures.items():
        asked.waiting[id] = calls.Call(future, "line")
    answer = received(inbox, references=7, sender="a", body=b"yes")
    others = [
        received(inbox, body=b"a request"),
        received(inbox, references=7, type=114, body=b"failed"),
        received(inbox, references=8, body=b"late"),
    ]
    again = received(inbox, references=7, sender="b")
    assert asked.take([others[0], answer, *others[1:], again]) == [*others, again]
    assert futures[7].results == [answer]
    assert futures[2**63 - 1].results == []
    assert asked.answered_by(7) == b"a" and set(asked.waiting) == {2**63 - 1}
    for id in range(100, 104):
        asked.answered(id, b"c")
    assert asked.answered_by(7) is None and asked.answered_by(101) is None
    assert asked.answered_by(103) == asked.answered_by(102) == b"c"
    assert asked.answered_by(2**64 - 1) is None and asked.answered_by(0) is None
    asked.answered(104, b"d")  # the oldest gives way, whoever it is
    assert [asked.answered_by(id) for id in (102, 103, 104)] == [None, b"c", b"d"]


@pytest.mark.parametrize(("calls", "inbox"), FORMS)
def test_only_what_is_due_ends(calls: ModuleType, inbox: ModuleType) -> None:
    asked = calls.Calls(10)
    for id in (1, 2, 3):
        asked.waiting[id] = calls.Call(Future(), "line")
        asked.waiting[id].due = float(id)
    assert asked.expire(0.5) == 1.0
    assert asked.expire(2.0) == 3.0 == asked.next_due
    assert [asked.waiting[id].future.results for id in (1, 2, 3)] == [[None], [None], []]
    assert asked.expire(3.5) == calls.NEVER


@pytest.mark.parametrize(("calls", "inbox"), FORMS)
def test_copies_are_taken_once(calls: ModuleType, inbox: ModuleType) -> None:
    module = windows if calls is globals()["calls"] else TWINS["windows"]
    seen = module.Copies()
    first = received(inbox, sender="a", sequence=5)
    plain = received(inbox, sender="a")
    other = received(inbox, sender="b", sequence=5)
    assert calls.first_copies([first, plain, first, other], seen) == [first, plain, other]
    assert calls.first_copies([first, plain, other], seen) == [plain]


@pytest.mark.parametrize(("calls", "inbox"), FORMS)
def test_contents_are_found_without_decoding_and_unpacked_where_they_are_packed(
    calls: ModuleType, inbox: ModuleType
) -> None:
    plain = received(inbox, body=b"body")
    assert plain.content == plain.body == b"body"
    packed = Message(topic="a", body=b"body" * 100).with_gzip()
    message = inbox.ReceivedMessage(encode_envelope(packed))
    assert len(message.body) < 100 and message.content == b"body" * 100


@pytest.mark.parametrize(("calls", "inbox"), FORMS)
def test_a_coroutine_is_stepped_in_a_context_of_its_own(
    calls: ModuleType, inbox: ModuleType
) -> None:
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=0)

    async def at_once() -> int:
        mine.set(1)
        return 5

    async def fails() -> None:
        raise KeyError("no")

    async def waits() -> int:
        mine.set(2)
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(asyncio.sleep(10), 0.001)
        except TimeoutError:
            return mine.get()
        return -1

    async def cancelled() -> None:
        await asyncio.sleep(10)

    async def story() -> None:
        steps = calls.Stepping(at_once())
        assert steps.begin() and steps.result == 5
        with pytest.raises(KeyError):
            calls.Stepping(fails()).begin()
        steps = calls.Stepping(waits())
        assert not steps.begin()
        assert await steps == 2
        steps = calls.Stepping(cancelled())
        assert not steps.begin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await steps
        assert mine.get() == 0

    asyncio.run(story())


@pytest.mark.parametrize("module", BOXES, ids=["in use", "interpreted"])
def test_requests_and_answers_are_messages(module: ModuleType) -> None:
    box = module.Outbox(200, 1)
    box.put_request(b"$type/A", b"body", 2**62, 17, b"\x12\x01a", b"")
    box.put_answer(b"$reply", b"", 9, b"caller", b"\x12\x01s", b"\x20\x72")
    with pytest.raises(Exception, match="frame_bytes"):
        box.put_request(b"$type/A", bytes(200), 1, 1, b"", b"")
    data = box.take()
    found = []
    at = 0
    while at < len(data):
        frame = native.read_frame(data, at, 1 << 20)
        assert frame is not None
        found.append(decode_envelope(bytes(frame[2])))
        at = frame[3]
    assert found == [
        Message(topic="$type/A", body=b"body", id=2**62, expiration_us=17, sender="a"),
        Message(topic="$reply", references=9, to="caller", sender="s", type=114),
    ]
    assert box.sent_messages == 2 and box.sent_bytes == len(data)
