"""The desk of a service: the same compiled and interpreted."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from regraft import kernels
from regraft.kernels import calls, desk, inbox, outbox, windows
from regraft.model.message import Message, decode_envelope, encode_envelope
from regraft.services.payload import decode, encode
from regraft.wire import native

IN_USE = {"calls": calls, "desk": desk, "inbox": inbox, "outbox": outbox, "windows": windows}
FORMS = [
    pytest.param(SimpleNamespace(**IN_USE), id="in use"),
    pytest.param(SimpleNamespace(**kernels.load_interpreted()), id="interpreted"),
]
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("request", default=None)
GROUP = (2,)


class Line:
    """What a desk and calls need of one."""

    def __init__(self, forms: Any, room: int = 1 << 30) -> None:
        self._outbox = forms.outbox.Outbox(1 << 20, 1)
        self._outbox.granted_messages = self._outbox.granted_bytes = room
        self._writable, self._flushing = True, False
        self.unanswered = self.told = self.flushes = 0
        self.controls: list[tuple[int, bytes]] = []

    def _flush_soon(self, box: Any) -> None:
        self._flushing = True
        self.flushes += 1

    def finished(self, count: int = 1) -> None:
        self.unanswered += count

    def tell_taken(self, taken: Any) -> None:
        self.told += taken.messages
        taken.forget()

    def controlled(self, kind: int, payload: bytes) -> None:
        self.controls.append((kind, payload))

    def sent(self) -> list[Message]:
        data = self._outbox.take()
        found = []
        while data:
            size = 4 + int.from_bytes(data[:4], "little")
            found.append(decode_envelope(data[native.HEADER_BYTES : size]))
            data = data[size:]
        return found


class Place:
    """A service with a desk, and everything around it."""

    def __init__(self, forms: Any, concurrency: int = 10, remembered: int = 4) -> None:
        self.forms = forms
        self.woken = self.idle = 0
        self.errors: list[Exception] = []
        self.elsewhere: list[bytes] = []
        self.left: list[Any] = []
        self.strays: list[Any] = []
        self.now = 100.0
        self.ready = forms.desk.Ready(self.wake)
        self.desk = forms.desk.Desk(self, self.ready, GROUP[0], concurrency, remembered, 1 << 20)
        made = self.desk
        made.sender, made.reply_topic, made.flush_bytes = b"\x12\x01s", b"$reply", 1 << 16
        made.variable, made.now = VARIABLE, lambda: self.now
        made.decode, made.encode, made.latencies = decode, encode, deque()
        self.calls = forms.calls.Calls(4)
        self.taker = forms.desk.Taker(self, self.calls, made)
        self.switch = forms.desk.Switch(self, lambda: self.now, lambda: self.now)
        self.taken = forms.desk.Taken(3, 1 << 20)
        self.line = Line(forms)

    def wake(self) -> None:
        self.woken += 1

    def one_less(self) -> None:
        self.idle += 1

    def failed(self, request: Any, error: Exception) -> None:
        self.errors.append(error)
        self.desk.answer(request, str(error).encode(), b"\x20\x72")

    def answer_elsewhere(self, request: Any, body: bytes, fields: bytes) -> None:
        self.elsewhere.append(body)

    def find_takers(self, numbers: Any) -> tuple[Any, ...]:
        return (self.taker,) if numbers == GROUP else ()

    def stray(self, line: Any, messages: Any, numbers: Any) -> None:
        self.strays.append((messages, numbers))

    def take(self, line: Any, messages: list[Any], numbers: Any) -> None:
        self.left += messages

    async def in_thread(self, function: Any, wanted: Any) -> Any:
        return function(wanted)

    def handle(self, function: Any, wants: Any = bytes, blocking: bool = False) -> Any:
        handler = self.forms.desk.Handler("ASKED", function, wants, blocking)
        self.desk.handlers["$type/ASKED"] = handler
        return handler

    def message(self, id: int, body: bytes = b"x", **more: Any) -> Any:
        fields = {"sender": "c", "reply_to": "$reply", **more}
        return self.forms.inbox.ReceivedMessage(
            encode_envelope(Message(topic="$type/ASKED", id=id, body=body, **fields))
        )

    def deliver(self, *messages: Any, numbers: Any = GROUP) -> bool:
        items = [(numbers, list(messages), 50 * len(messages))] if messages else []
        stirred: bool = self.switch.deliver(self.line, self.taken, items)
        return stirred


async def echo(body: bytes) -> bytes:
    return body + b"!"


@pytest.mark.parametrize("forms", FORMS)
def test_requests_are_handled_and_answered_in_one_go(forms: Any) -> None:
    place = Place(forms)
    handler = place.handle(echo)
    place.deliver(place.message(1, b"a"), place.message(2, b"b", workflow=b"w"))
    assert (place.woken, place.desk.active) == (1, 2)
    assert place.taken.messages == 0  # they are held
    assert sorted(place.desk.running) == [1, 2] and place.ready.left() == 2
    place.now = 101.5
    assert place.ready.work() is None
    answers = place.line.sent()
    assert [(m.references, m.body, m.to, m.sender, m.topic) for m in answers] == [
        (1, b"a!", "c", "s", "$reply"),
        (2, b"b!", "c", "s", "$reply"),
    ]
    assert place.line.flushes == 1 and place.line.unanswered == 0
    assert (place.desk.active, place.idle, place.desk.running) == (0, 0, {})
    assert (handler.handled, place.desk.handled, list(place.desk.latencies)) == (2, 2, [1.5, 1.5])
    assert place.taken.messages == 2
    place.deliver(place.message(3))
    assert place.woken == 2
    place.ready.work()
    assert place.line.told == 3 and place.taken.messages == 0  # now the node has to be told


@pytest.mark.parametrize("forms", FORMS)
def test_who_waits_for_the_last_request_is_told(forms: Any) -> None:
    place = Place(forms)
    place.handle(echo)
    place.deliver(place.message(1), place.message(2))
    place.desk.watched = True
    place.ready.work()
    assert (place.desk.active, place.idle) == (0, 1)


@pytest.mark.parametrize("forms", FORMS)
def test_it_is_known_whether_somebody_was_woken(forms: Any) -> None:
    place = Place(forms)
    place.handle(echo)
    assert not place.deliver()
    assert place.deliver(place.message(1))
    assert not place.deliver(place.message(1))  # it came before: this is left to the service
    assert not place.deliver(place.message(2), numbers=(99,))  # for nobody
    assert place.deliver(place.message(1), place.message(3))


@pytest.mark.parametrize("forms", FORMS)
def test_nothing_is_left_of_a_request_but_its_answer(forms: Any) -> None:
    place = Place(forms)

    async def looks(body: bytes) -> bytes:
        assert VARIABLE.get().id == int(body)
        return body

    place.handle(looks)
    gc.collect()
    gc.disable()
    try:
        for id in range(1, 50):
            place.deliver(place.message(id, str(id).encode()))
            place.ready.work()
        assert gc.collect() < 10  # not one for each
    finally:
        gc.enable()
    assert VARIABLE.get() is None
    assert place.desk.replied(49) == (b"49", b"") and place.desk.replied(1) is None


@pytest.mark.parametrize("forms", FORMS)
def test_what_is_unusual_is_left_to_the_service(forms: Any) -> None:
    place = Place(forms, concurrency=2)
    place.handle(echo)
    first = place.message(1)
    place.deliver(first)
    again = place.message(1)
    expired = place.message(2, expiration_us=99_000_000)
    searched = place.message(3, type=110)
    unknown = forms.inbox.ReceivedMessage(encode_envelope(Message(topic="$type/OTHER", id=4)))
    late = place.message(5, references=77)
    place.deliver(again, expired, searched, unknown, late)
    assert place.left == [again, expired, searched, unknown, late]
    place.ready.work()
    place.left.clear()
    place.deliver(again)
    assert place.left == [again] and place.desk.replied(1) == (b"x!", b"")  # it was answered
    place.left.clear()
    fine = [place.message(id) for id in (6, 7, 8)]
    place.deliver(*fine)
    assert place.left == fine[2:] and place.desk.active == 2  # these are enough
    place.deliver(first, numbers=(9,))
    assert place.strays == [([first], (9,))]
    place.switch.deliver(place.line, place.taken, [(17, b"payload", 0)])
    assert place.line.controls == [(17, b"payload")]


@pytest.mark.parametrize("forms", FORMS)
def test_failures_refusals_and_events(forms: Any) -> None:
    place = Place(forms)

    async def fails(body: bytes) -> bytes:
        raise ValueError("no")

    place.handle(fails)
    place.deliver(place.message(1))
    place.ready.work()
    (answer,) = place.line.sent()
    assert (answer.type, answer.body, len(place.errors)) == (114, b"no", 1)
    assert place.desk.replied(1) == (b"no", b"\x20\x72")
    place.handle(echo)
    place.deliver(place.message(2, reply_to=""))
    place.ready.work()
    assert place.line.sent() == [] and place.line.unanswered == 1
    place.line = Line(forms, room=0)
    place.deliver(place.message(3))
    place.ready.work()
    assert place.elsewhere == [b"x!"]

    async def ends(body: bytes) -> bytes:
        raise asyncio.CancelledError

    place.handle(ends)
    place.deliver(place.message(4), place.message(5))
    with pytest.raises(asyncio.CancelledError):
        place.ready.work()
    assert place.desk.active == place.ready.left() == 1
    assert [request.id for request in place.ready.forget(place.desk)] == [5]
    assert place.ready.left() == 0


@pytest.mark.parametrize("forms", FORMS)
def test_one_that_waits_is_awaited_and_others_go_on(forms: Any) -> None:
    place = Place(forms)

    async def waits(body: str) -> str:
        await asyncio.sleep(0)
        return body + str(VARIABLE.get().id)

    async def story() -> None:
        place.handle(waits, wants=str)
        place.deliver(place.message(1))
        place.handle(lambda body: body.decode() + "?", blocking=True)
        place.deliver(place.message(2))
        request = place.ready.work()
        assert request.id == 1 and place.ready.left() == 1
        assert place.ready.work() is None
        place.desk.succeed(request, await request)
        place.desk.end(request)

    asyncio.run(story())
    assert [(m.references, m.body) for m in place.line.sent()] == [(2, b"x?"), (1, b"x1")]
    assert place.desk.active == 0


@pytest.mark.parametrize("forms", FORMS)
def test_calls_are_sent_remembered_and_ended(forms: Any) -> None:
    place = Place(forms)
    loop = asyncio.new_event_loop()
    asked = place.calls
    due: list[float] = []
    asked.share, asked.flush_bytes, asked.wake_at = 0.5, 1 << 16, due.append
    asked.create_future, asked.now, asked.wall = loop.create_future, lambda: 10.0, lambda: 50.0
    asked.asking, asked.counter = b"\x12\x01c\x82\x01\x06$reply", (1 << 63) - 2
    first = asked.ask(place.line, b"$type/ASKED", b"body", b"", 4.0)
    assert first.sent and first.id == (1 << 63) - 1 and due == [12.0]
    (request,) = place.line.sent()
    assert (request.id, request.body, request.sender) == (first.id, b"body", "c")
    assert (request.expiration_us, request.reply_to) == (54_000_000, "$reply")
    assert asked.new_id() == 1
    second = asked.ask(Line(forms, room=0), b"$type/ASKED", b"", b"", 4.0)
    assert not second.sent and second.id == 2 and second.due == forms.calls.NEVER
    answer = place.message(9, references=first.id)
    place.deliver(answer)
    assert first.future.result() is answer and set(asked.waiting) == {2}
    assert (asked.asked, asked.ended, asked.answered_by(first.id)) == (2, 1, b"c")
    place.deliver(answer)
    assert place.left == [answer]
    loop.close()


@pytest.mark.parametrize("forms", FORMS)
def test_copies_are_taken_once_by_each_peer(forms: Any) -> None:
    place = Place(forms)
    place.handle(echo)
    place.taker.copies = forms.windows.Copies()
    event = place.message(1, sequence=5)
    place.deliver(event, event)
    assert place.ready.left() == 1 and place.left == []
