"""Handlers of a queue's messages, browsing, commands; and the same without asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_mailbox import FakeMailbox

from regraft import BlockingClient, Client, LocalError, ReceivedMessage
from regraft.model.message import DeliveryMode, Message
from regraft.testing import virtual_time
from regraft.wire import native


@asynccontextmanager
async def fake() -> AsyncIterator[tuple[FakeMailbox, Client]]:
    node = FakeMailbox()
    async with Client(None, connector=node.connect) as client:
        yield node, client


# --------------------------------------------------------------------------------- working


@virtual_time
async def test_a_handler_is_called_with_so_many_at_a_time() -> None:
    async with fake() as (node, client):
        at_work = most = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(1)
            at_work -= 1

        async with await client.work("orders", handle, concurrency=3) as work:
            assert node.all(native.Subscribe)[-1].in_flight == 6
            node.deliver(1, *map(str, range(9)))
            await asyncio.sleep(2.5)
            assert (most, work.handled) == (3, 6)
        # What was being worked on when it was stopped was finished.
        assert work.handled == 9
        accepted = [one.ranges for one in node.all(native.Settle)]
        assert accepted == [(1, 3), (4, 6), (7, 9)]


@virtual_time
async def test_stopping_gives_back_what_nobody_works_on() -> None:
    async with fake() as (node, client):

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(3 if message.text() == "slow" else 1)

        work = await client.work("orders", handle, concurrency=2)
        node.deliver(1, "a", "slow", "c", "d", "e")
        await asyncio.sleep(0.5)
        stopping = asyncio.create_task(work.stop(timeout=1))
        await asyncio.sleep(0.9)
        assert not stopping.done()
        await stopping
        assert work.handled == 1
        assert node.settled() == [("ACCEPT", (1, 1)), ("RELEASE", (2, 5))]
        assert node.all(native.Settle)[-1].uncounted
        await work.wait()


@virtual_time
async def test_what_a_handler_fails_on_comes_again_later(caplog: pytest.LogCaptureFixture) -> None:
    async with fake() as (node, client):

        def handle(message: ReceivedMessage) -> None:
            if message.text() == "bad":
                message.reject("it is bad")
            elif message.text() != "good":
                raise ValueError("it cannot be done")

        async with await client.work("orders", handle, backoff=0.5) as work:
            for count in (0, 1, 2, 100):
                node.deliver(1 + count, "trouble", count=count)
            node.deliver(200, "bad", "good")
            await asyncio.sleep(1)
            assert (work.handled, work.failed) == (2, 4)
        delays = {
            one.ranges: one.delay_ms
            for one in node.all(native.Settle)
            if one.outcome.name != "ACCEPT"
        }
        assert delays == {
            (1, 1): 500,
            (2, 2): 1000,
            (3, 3): 2000,
            (101, 101): 60_000,
            (200, 200): 0,
        }
        assert ("ACCEPT", (201, 201)) in node.settled()
        assert "failed on" in caplog.text
        async with await client.work("orders", handle, backoff=0):
            node.deliver(300, "trouble", count=3)
            await asyncio.sleep(1)
        assert node.all(native.Settle)[-1].delay_ms == 0  # the queue says when


@virtual_time
async def test_closing_the_client_ends_the_work_at_once() -> None:
    ended: list[str] = []
    async with fake() as (node, client):

        async def handle(message: ReceivedMessage) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ended.append(message.text())
                raise

        work = await client.work("orders", handle, concurrency=2)
        node.deliver(1, "a", "b", "c")
        await asyncio.sleep(1)
    assert sorted(ended) == ["a", "b"]
    assert node.settled() == [("RELEASE", (1, 3))]
    await work.wait()


@virtual_time
async def test_work_ends_with_the_error_that_ended_its_queue() -> None:
    async with fake() as (node, client):
        work = await client.work("orders", lambda message: None)
        gone = LocalError("unknown-mailbox", "it was removed")
        node.send(native.Error.of(gone, subscription=node.id))
        with pytest.raises(LocalError, match="it was removed"):
            await work.wait()
        with pytest.raises(LocalError, match="concurrency: 0"):
            await client.work("orders", lambda message: None, concurrency=0)
        with pytest.raises(LocalError, match="backoff: -1"):
            await client.work("orders", lambda message: None, backoff=-1)


# -------------------------------------------------------------------------------- browsing


@virtual_time
async def test_browsing_ends_with_what_was_there() -> None:
    async with fake() as (node, client):
        node.subscribe = lambda wanted: [
            native.Subscribed(wanted.id, 1, 3),
            node.delivery(1, "a", "b"),
            node.delivery(5, "c", count=2),
            native.Unsubscribed(wanted.id),
        ]
        seen = [(m.sequence, m.text()) async for m in client.browse("orders")]
        assert seen == [(1, "a"), (2, "b"), (5, "c")]
        assert [m.text() async for m in client.dead_letters()] == ["a", "b", "c"]
        first, second = node.all(native.Subscribe)
        assert (first.durable, first.browse, first.pattern) == ("orders", True, "")
        assert second.durable == "dead-letters"
        node.subscribe = lambda wanted: [
            native.Subscribed(wanted.id),
            native.Unsubscribed(wanted.id),
        ]
        async with client.browse("orders") as empty:
            assert [message async for message in empty] == []
        assert node.all(native.Settle) == node.all(native.Unsubscribe) == []


@virtual_time
async def test_browsing_with_a_selector_and_over_a_reconnection() -> None:
    async with fake() as (node, client):
        waiting = client.browse("orders", where="$topic = 'orders'")
        node.subscribe = lambda wanted: [native.Subscribed(wanted.id), node.delivery(1, "a", "b")]
        assert (await waiting.next(5)).text() == "a"
        assert node.all(native.Subscribe)[-1].selector == "$topic = 'orders'"
        node.subscribe = lambda wanted: [
            native.Subscribed(wanted.id),
            node.delivery(1, "a", "b", "c"),
            native.Unsubscribed(wanted.id),
        ]
        node.cut()
        await asyncio.sleep(1)
        assert [m.text() async for m in waiting] == ["b", "c"]
        nothing = client.browse("orders", where="price > 7")
        assert [m async for m in nothing] == []
        with pytest.raises(LocalError):
            client.browse("orders", where="price >")


@virtual_time
async def test_who_has_seen_enough_says_so() -> None:
    async with fake() as (node, client):
        node.subscribe = lambda wanted: [native.Subscribed(wanted.id), node.delivery(1, "a", "b")]
        async with client.browse("orders") as waiting:
            async for _ in waiting:
                break
        assert isinstance(node.got[-1], native.Unsubscribe)


# ------------------------------------------------------------------------------ publishing


@virtual_time
async def test_headers_that_publish_has_parameters_for() -> None:
    async with fake() as (node, client):
        before = time.time_ns() // 1000
        moment = datetime(2030, 1, 2, tzinfo=UTC)
        await client.publish("orders", "a", priority=9, ttl=60, delay=1.5, message_id=77)
        await client.publish("orders", "b", deliver_at=moment)
        await client.publish("orders", "c", deliver_at=moment.timestamp(), priority=0)
        await client.publish_many("orders", [b"d", "e"], delay=5, priority=1)
        await client.publish("orders", "f", ttl=1)
        await client.flush(5)
        a, b, c, d, e, f = node.all(Message)
        assert (a.priority, a.id, a.delivery_mode) == (9, 77, DeliveryMode.PERSISTENT)
        assert 1_500_000 <= a.deliver_at_us - before < 3_000_000
        assert 60_000_000 <= a.expiration_us - before < 62_000_000
        assert b.deliver_at_us == c.deliver_at_us == int(moment.timestamp() * 1e6)
        assert (b.priority, c.priority) == (4, 0)
        assert b.id != c.id and b.id and c.id
        assert d.deliver_at_us == e.deliver_at_us and d.priority == e.priority == 1
        assert e.delivery_mode is DeliveryMode.PERSISTENT
        assert (f.deliver_at_us, f.delivery_mode) == (None, DeliveryMode.NON_PERSISTENT)


@virtual_time
async def test_headers_that_cannot_be() -> None:
    async with fake() as (node, client):
        soon = datetime.now(UTC) + timedelta(seconds=5)
        for bad, says in (
            ({"delay": 1, "deliver_at": soon}, "not both"),
            ({"delay": -1}, "delay: -1"),
            ({"delay": 60, "ttl": 50}, "expire"),
            ({"deliver_at": datetime(2030, 1, 1)}, "no time zone"),
            ({"deliver_at": -5.0}, "since 1970"),
            ({"priority": 10}, "priority"),
            ({"message_id": -1}, "message_id"),
            ({"id": 7}, "no header 'id'"),
        ):
            with pytest.raises(LocalError, match=says):
                await client.publish("orders", "a", **bad)
        assert node.all(Message) == []
        assert 0 < client.new_id() < 2**63 and client.new_id() != client.new_id()


@virtual_time
async def test_ids_and_timestamps_can_be_switched_off() -> None:
    node = FakeMailbox()
    async with Client(None, connector=node.connect, message_ids=False, timestamps=False) as client:
        await client.publish("orders", "a", reply_to="answers", correlation="7")
        await client.publish("orders", "b", message_id=5)
        await client.flush(5)
    a, b = node.all(Message)
    assert (a.id, a.timestamp_us, a.reply_to, a.correlation) == (None, None, "answers", "7")
    assert (b.id, b.timestamp_us) == (5, None)


# -------------------------------------------------------------------------------- commands

ROW = {"name": "orders", "topic": "orders"}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
COMMANDS: list[tuple[Callable[[Any], Any], str, dict[str, Any], dict[str, Any], Any]] = [
    (
        lambda c: c.create_queue("orders", "a/#", where="b > 1", lease=2, in_flight=5),
        "queue-create",
        {"name": "orders", "topic": "a/#", "where": "b > 1", "exact": False,
         "options": {"shared": True, "lease_ms": 2000, "in_flight": 5}},
        {"queue": ROW},
        ROW,
    ),
    (
        lambda c: c.create_queue("orders", exclusive=True, exact=True),
        "queue-create",
        {"name": "orders", "topic": "orders", "where": "", "exact": True,
         "options": {"exclusive": True}},
        {"queue": ROW},
        ROW,
    ),
    (lambda c: c.queues(), "queue-list", {}, {"queues": [ROW]}, [ROW]),
    (
        lambda c: c.show_queue("orders"),
        "queue-show",
        {"name": "orders"},
        {"queue": ROW, "members": [{"client": "c"}]},
        {**ROW, "member_rows": [{"client": "c"}]},
    ),
    (
        lambda c: c.change_queue("orders", retry=0.5, in_flight=0),
        "queue-change",
        {"name": "orders", "options": {"retry_ms": 500, "in_flight": 0}},
        {"queue": ROW},
        ROW,
    ),
    (lambda c: c.purge("orders"), "queue-purge", {"name": "orders"}, {"purged": 7}, 7),
    (
        lambda c: c.remove_queue("orders", force=True),
        "queue-remove",
        {"name": "orders", "force": True},
        {},
        None,
    ),
    (
        lambda c: c.rename_queue("orders", "old"),
        "queue-rename",
        {"name": "orders", "to": "old"},
        {},
        None,
    ),
    (
        lambda c: c.move_queue("orders", source="north"),
        "queue-move",
        {"name": "orders", "from": "north"},
        {"queue": ROW},
        ROW,
    ),
    (lambda c: c.seek("o", 5), "queue-seek", {"name": "o", "sequence": 5}, {"next": 6}, 6),
    (
        lambda c: c.seek("o", time=MOMENT),
        "queue-seek",
        {"name": "o", "time_us": int(MOMENT.timestamp() * 1e6)},
        {"next": 6},
        6,
    ),
    (
        lambda c: c.create_topic("prices", "market/#", retain=True, keep=60.5),
        "topic-create",
        {"name": "prices", "topic": "market/#", "exact": False, "retain": True, "keep_s": 61,
         "keep_bytes": 0, "persistent": False, "quota_messages": 0, "quota_bytes": 0,
         "holder": ""},
        {"topic": ROW},
        ROW,
    ),
    (lambda c: c.topics(), "topic-list", {}, {"topics": [ROW]}, [ROW]),
    (lambda c: c.show_topic("o"), "topic-show", {"name": "o"}, {"topic": ROW}, ROW),
    (lambda c: c.topic("o"), "topic-show", {"name": "o"}, {"topic": ROW}, "orders"),
    (lambda c: c.remove_topic("o"), "topic-remove", {"name": "o"}, {}, None),
    (lambda c: c.delayed(5), "delayed-list", {"rows": 5}, {"delayed": [ROW], "count": 9}, [ROW]),
    (lambda c: c.cancel(77), "delayed-cancel", {"id": 77}, {"cancelled": 1}, 1),
    (
        lambda c: c.retry_dead(3, 1, 2, 9, to="x"),
        "dlq-retry",
        {"mailbox": "dead-letters", "to": "x", "ranges": [[1, 3], [9, 9]]},
        {"retried": 4, "left": 5},
        4,
    ),
]  # fmt: skip


@pytest.mark.parametrize("call", COMMANDS, ids=lambda call: call[1])
def test_commands(call: tuple[Any, str, dict[str, Any], dict[str, Any], Any]) -> None:
    function, what, arguments, answer, result = call

    @virtual_time
    async def story() -> None:
        async with fake() as (node, client):
            node.obey = lambda *_: answer
            assert await function(client) == result
            assert node.commands == [(what, arguments)]

            def refuse(*_: Any) -> dict[str, Any]:
                raise LocalError("not-waiting", "no")

            node.obey = refuse
            with pytest.raises(LocalError, match="no"):
                await function(client)

    story()
    with blocking() as (node, client):
        node.obey = lambda *_: answer
        assert function(client) == result
        assert node.commands == [(what, arguments)]


@virtual_time
async def test_all_dead_letters_are_retried_bit_by_bit() -> None:
    async with fake() as (node, client):
        left = [7, 3, 0]
        node.obey = lambda *_: {"retried": 4, "left": left.pop(0)}
        seen: list[tuple[int, int]] = []
        retried = await client.retry_dead(
            everything=True, mailbox="dead", progress=lambda *n: seen.append(n)
        )
        assert (retried, seen) == (12, [(4, 7), (8, 3), (12, 0)])
        assert node.commands[0] == ("dlq-retry", {"mailbox": "dead", "to": "", "all": True})
        node.obey = lambda *_: {"retried": 0, "left": 2}  # it does not come to an end
        assert await client.retry_dead(everything=True) == 0
        for bad in ((), (1,)):
            with pytest.raises(LocalError, match="which dead letters"):
                await client.retry_dead(*bad, everything=bool(bad))
        with pytest.raises(LocalError, match="where to"):
            await client.seek("orders")


# -------------------------------------------------------------------------- without asyncio


@contextmanager
def blocking() -> Iterator[tuple[FakeMailbox, BlockingClient]]:
    node = FakeMailbox()
    with BlockingClient(None, connector=node.connect) as client:
        yield node, client


def call(client: BlockingClient, function: Callable[..., None], *args: Any, **more: Any) -> None:
    """Have the node do something, in the thread where it is."""

    async def there() -> None:
        function(*args, **more)

    asyncio.run_coroutine_threadsafe(there(), client._loop).result(10)


def test_a_queue_without_asyncio() -> None:
    with blocking() as (node, client):
        with client.queue("orders", lease=5) as queue:
            call(client, node.deliver, 1, *"abcdefgh")
            a, b, c, d, e, f, g = [queue.next(10) for _ in range(7)]
            a.accept(confirm=True)
            assert node.settled() == [("ACCEPT", (1, 1))]
            b.release(2)
            with pytest.raises(LocalError, match="delay: -2"):
                c.release(-2)
            queue.release(c)
            queue.reject(d, reason="why")
            queue.extend(e)
            queue.accept_through(f, confirm=True)
            assert queue.unsettled() == 1 and queue.name == "orders"
            assert sorted(node.settled()) == [
                ("ACCEPT", (1, 1)),
                ("ACCEPT", (5, 6)),
                ("EXTEND", (5, 5)),
                ("REJECT", (4, 4)),
                ("RELEASE", (2, 2)),
                ("RELEASE", (3, 3)),
            ]
            g.settle()
        assert node.settled()[-2:] == [("ACCEPT", (7, 7)), ("RELEASE", (8, 8))]
        lazy = client.queue("other")
        call(client, lambda: setattr(node, "subscribe", lambda wanted: [
            native.Subscribed(wanted.id), node.delivery(1, "z")]))  # fmt: skip
        assert next(iter(lazy)).text() == "z"
        lazy.accept()
        lazy.close()
    with pytest.raises(LocalError, match="closed"):
        a.accept()


def test_work_and_browsing_without_asyncio() -> None:
    with blocking() as (node, client):
        both = threading.Barrier(2)
        threads: set[str] = set()

        def handle(message: ReceivedMessage) -> None:
            both.wait(10)  # two are at work at the same time
            threads.add(threading.current_thread().name)
            if message.text() == "bad":
                message.reject("it is bad")

        with client.work("orders", handle, concurrency=2) as work:
            call(client, node.deliver, 1, "a", "bad", "c", "d")
            deadline = time.monotonic() + 10
            while work.handled < 4:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            assert work.failed == 0
        assert len(threads) == 2
        settled = node.settled()
        assert ("REJECT", (2, 2)) in settled
        assert {name for name, _ in settled} == {"ACCEPT", "REJECT"}

        def browsed(wanted: native.Subscribe) -> list[Any]:
            there = [native.Subscribed(wanted.id), node.delivery(1, "x", "y")]
            return [*there, native.Unsubscribed(wanted.id)]

        node.subscribe = browsed
        assert [message.text() for message in client.browse("orders")] == ["x", "y"]
        assert [message.text() for message in client.dead_letters()] == ["x", "y"]
        client.publish("orders", "a", delay=5, message_id=7, priority=3)
        client.flush(5)
        assert node.all(Message)[-1].id == 7
        assert client.new_id()
