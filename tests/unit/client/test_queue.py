"""Queues as a client sees them: attached when read, settled in any way, given back when left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_mailbox import FakeMailbox

from regraft import Client, LocalError, Queue, ReceivedMessage, RegraftError, WorldError
from regraft.client.queue import QueueOptions
from regraft.testing import virtual_time
from regraft.wire import native
from regraft.wire.native import Outcome

SOON = 0.001  # in virtual time


@asynccontextmanager
async def fake() -> AsyncIterator[tuple[FakeMailbox, Client]]:
    node = FakeMailbox()
    async with Client(None, connector=node.connect) as client:
        yield node, client


async def soon() -> None:
    """Let all happen that can."""
    await asyncio.sleep(SOON)


async def take(queue: Queue, count: int) -> list[ReceivedMessage]:
    return [await queue.next(5) for _ in range(count)]


async def nothing_comes(queue: Queue) -> None:
    with pytest.raises(WorldError, match="no message"):
        await queue.next(5)


def absent(wanted: native.Subscribe) -> list[Any]:
    """There is no such queue yet."""
    if wanted.existing:
        error = LocalError("unknown-mailbox", "there is none")
        return [native.Error.of(error, subscription=wanted.id)]
    return [native.Subscribed(wanted.id, 1, 0)]


# ------------------------------------------------------------------------------ attaching


@virtual_time
async def test_a_queue_is_attached_when_it_is_read() -> None:
    async with fake() as (node, client):
        queue = client.queue("orders")
        await soon()
        assert node.all(native.Subscribe) == []
        node.subscribe = lambda wanted: [
            native.Subscribed(wanted.id, 1, 2),
            node.delivery(1, "a", "b"),
        ]
        got = []
        async for message in queue:
            got.append(message.text())
            await message.accept()
            if len(got) == 2:
                break
        assert got == ["a", "b"]
        assert queue.waiting_at_start == 2
        (wanted,) = node.all(native.Subscribe)
        assert (wanted.durable, wanted.existing, wanted.pattern) == ("orders", True, "")


@virtual_time
async def test_a_queue_that_is_not_there_is_made() -> None:
    async with fake() as (node, client):
        node.subscribe = absent
        async with client.queue("orders", in_flight=7) as queue:
            first, second = node.all(native.Subscribe)
            assert (first.existing, first.options) == (True, b"")
            assert (second.existing, second.pattern) == (False, "orders")
            assert second.in_flight == 7
            assert json.loads(second.options) == {"shared": True}
            node.deliver(1, "a")
            assert (await queue.next(5)).text() == "a"


@virtual_time
async def test_what_a_queue_should_be_like_is_said_at_once() -> None:
    async with fake() as (node, client):
        queue = client.queue(
            "orders",
            "shop/orders/#",
            where="total > 7",
            lease=30,
            retry=0.5,
            retry_max=10,
            max_deliveries=5,
            dead_letter="dead/here",
        )
        await queue.open()
        await client.queue("one", exclusive=True).open()
        await client.queue("by", order_by="customer").open()
        await client.queue("single", shared=False, quota_bytes=7).open()
        orders, *others = node.all(native.Subscribe)
        assert (orders.pattern, orders.selector) == ("shop/orders/#", "total > 7")
        assert json.loads(orders.options) == {
            "shared": True,
            "lease_ms": 30_000,
            "retry_ms": 500,
            "retry_max_ms": 10_000,
            "max_deliveries": 5,
            "dead_letter": "dead/here",
        }
        assert [json.loads(one.options) for one in others] == [
            {"exclusive": True},
            {"order_by": "customer"},
            {"shared": False, "quota_bytes": 7},
        ]


@virtual_time
async def test_a_queue_that_must_be_there() -> None:
    async with fake() as (node, client):
        node.subscribe = absent
        queue = client.queue("orders", existing=True)
        for _ in range(2):  # it may be tried again
            with pytest.raises(LocalError) as caught:
                await queue.next(5)
            assert caught.value.code.name == "unknown-mailbox"
        node.subscribe = lambda wanted: [native.Subscribed(wanted.id)]
        node_delivers = asyncio.create_task(queue.next(5))
        await soon()
        node.deliver(1, "a")
        assert (await node_delivers).text() == "a"
        assert all(one.existing for one in node.all(native.Subscribe))


@virtual_time
async def test_two_tasks_attach_once() -> None:
    async with fake() as (node, client):
        queue = client.queue("orders")
        await asyncio.gather(queue.open(), queue.open())
        assert len(node.all(native.Subscribe)) == 1


@virtual_time
async def test_what_is_no_queue_or_no_option() -> None:
    async with fake() as (_, client):
        with pytest.raises(LocalError, match="needs a name"):
            client.queue("")
        bad: dict[str, Any] = {"leese": 3}
        with pytest.raises(LocalError, match="no option 'leese'; there are shared, exclusive"):
            client.queue("orders", **bad)
        with pytest.raises(LocalError, match="lease: -1"):
            client.queue("orders", lease=-1)
        with pytest.raises(LocalError, match="a/#/b"):
            client.queue("orders", "a/#/b")


# -------------------------------------------------------------------------------- settling


@virtual_time
async def test_settlements_of_a_round_share_frames() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, *map(str, range(1, 13)))
        messages = await take(queue, 12)
        assert queue.unsettled() == 12
        for n in (0, 1, 2, 5):
            await messages[n].accept()
        await messages[3].release()
        await messages[4].release(delay=1.5, elsewhere=True)
        await messages[6].release(count=False)
        await messages[7].reject("no such item")
        await messages[8].extend(20)
        await messages[9].extend()
        await messages[0].accept()  # a second time it means nothing
        await messages[0].reject("too late")
        assert node.all(native.Settle) == []  # nothing was waited for
        await soon()
        frames = [(one.ranges, one.outcome) for one in node.all(native.Settle)]
        assert frames == [
            ((1, 3, 6, 6), Outcome.ACCEPT),
            ((4, 4), Outcome.RELEASE),
            ((5, 5), Outcome.RELEASE),
            ((7, 7), Outcome.RELEASE),
            ((9, 9), Outcome.EXTEND),
            ((10, 10), Outcome.EXTEND),
            ((8, 8), Outcome.REJECT),
        ]
        _, plain, later, uncounted, extended, anew, rejected = node.all(native.Settle)
        assert (plain.delay_ms, plain.uncounted, plain.undeliverable) == (0, False, False)
        assert (later.delay_ms, later.uncounted, later.undeliverable) == (1500, False, True)
        assert (uncounted.delay_ms, uncounted.uncounted) == (0, True)
        assert rejected.reason == "no such item"
        assert (extended.delay_ms, anew.delay_ms) == (20_000, 0)
        assert rejected.token and not anew.token  # the last one asks whether all are safe
        assert queue.unsettled() == 4  # who is extended is still at work


@virtual_time
async def test_many_at_once_and_up_to_one() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b", "c", "d")
        node.deliver(5, "urgent")
        a, b, c, d = await take(queue, 4)
        await queue.accept(a, c)
        await soon()
        await queue.release(b, delay=2)
        await queue.reject(d, reason="why")
        await queue.extend(*await take(queue, 1), seconds=1)
        await soon()
        assert node.settled() == [
            ("ACCEPT", (1, 1, 3, 3)),
            ("RELEASE", (2, 2)),
            ("EXTEND", (5, 5)),
            ("REJECT", (4, 4)),
        ]


@virtual_time
async def test_through_means_what_was_handed_out_before() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.send(node.delivery(8, "urgent", "so is this"), node.delivery(3, "a", "b", "c"))
        urgent, _, a, b, c = await take(queue, 5)
        await queue.accept_through(a)
        await soon()
        assert node.settled() == [("ACCEPT", (3, 3, 8, 9))]
        await queue.accept_through(urgent)  # it is settled: nothing was handed out before it
        await queue.accept(c)
        await queue.accept_through(b, confirm=True)
        assert node.settled()[1:] == [("ACCEPT", (4, 5))]


@virtual_time
async def test_a_confirmation_is_waited_for() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b", "c")
        a, b, c = await take(queue, 3)
        node.settles = False
        waiting = [
            asyncio.ensure_future(a.accept(confirm=True)),
            asyncio.ensure_future(b.reject("no", confirm=True)),
            asyncio.ensure_future(queue.accept(c, confirm=True)),
        ]
        await asyncio.sleep(5)
        assert not any(one.done() for one in waiting)
        last = queue._token
        node.send(native.Settled(queue.id, last - 1))
        await soon()
        assert [one.done() for one in waiting] == [True, True, False]
        node.send(native.Settled(queue.id, last))
        await waiting[2]


@virtual_time
async def test_only_one_question_about_safety_is_under_way() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.settles = False
        node.deliver(1, *map(str, range(10)))
        for message in await take(queue, 10):
            await message.accept()
            await soon()
        tokens = [one.token for one in node.all(native.Settle)]
        assert tokens == [1] + [0] * 9
        assert len(queue._unsafe) == 10
        node.send(native.Settled(queue.id, 1))
        await soon()
        assert len(queue._unsafe) == 9
        node.settles = True
        await queue.settled()
        assert not queue._unsafe


@virtual_time
async def test_what_is_wrong_with_a_settlement_is_said_at_once() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a")
        (a,) = await take(queue, 1)
        with pytest.raises(LocalError, match="delay: -1"):
            await a.release(-1)
        with pytest.raises(LocalError, match="seconds: nan"):
            await a.extend(float("nan"))
        assert queue.unsettled() == 1
        await a.reject("x" * 5000)
        await soon()
        assert len(node.all(native.Settle)[-1].reason) == 1000


@virtual_time
async def test_what_is_not_out_of_a_mailbox_is_settled_by_nothing() -> None:
    async with fake() as (node, client):
        news = await client.subscribe("news")
        node.deliver(0, "now")
        message = await news.next(5)
        await message.accept()
        await message.accept(confirm=True)
        await message.release(5)
        await message.reject("no")
        await message.extend(5)
        await soon()
        assert node.all(native.Settle) == []


@virtual_time
async def test_auto_accepts_when_the_next_is_asked_for() -> None:
    async with fake() as (node, client):
        async with client.queue("orders", auto=True) as queue:
            node.deliver(1, "a", "b", "c")
            await queue.next(5)
            await soon()
            assert node.settled() == []
            await queue.next(5)
            await soon()
            assert node.settled() == [("ACCEPT", (1, 1))]
        assert node.settled()[1:] == [("ACCEPT", (2, 2)), ("RELEASE", (3, 3))]


@virtual_time
async def test_batches() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b", "c")
        async for batch in queue.batches():
            assert [message.text() for message in batch] == ["a", "b", "c"]
            await queue.accept(*batch, confirm=True)
            break
        assert node.settled() == [("ACCEPT", (1, 3))]


@virtual_time
async def test_a_lease_that_ended_is_the_node_s_business() -> None:
    """What comes again over the same connection was taken from us: it is handed out again."""
    async with fake() as (node, client):
        queue = await client.queue("orders", lease=5).open()
        node.deliver(1, "a")
        (first,) = await take(queue, 1)
        node.deliver(1, "a", count=1)
        (again,) = await take(queue, 1)
        assert (again.attempts, again.redelivered) == (1, True)
        await first.accept()
        await again.accept()
        await soon()
        assert node.settled() == [("ACCEPT", (1, 1))]


# ---------------------------------------------------------------------------- reconnection


@virtual_time
async def test_what_is_held_is_not_handed_out_twice() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b", "c")
        a, b = await take(queue, 2)  # and c has arrived
        node.cut()
        await asyncio.sleep(1)
        assert len(node.all(native.Subscribe)) == 2
        node.deliver(1, "a", "b", "c", "d", count=1)
        c, d = await take(queue, 2)
        assert [one.text() for one in (c, d)] == ["c", "d"]
        await nothing_comes(queue)
        await queue.accept(a, b, c, d, confirm=True)
        assert node.settled() == [("ACCEPT", (1, 4))]


@pytest.mark.parametrize("mark", [0, 1])
def test_a_node_that_forgot_that_it_delivered_it(mark: int) -> None:
    @virtual_time
    async def story() -> None:
        async with fake() as (node, client):
            queue = await client.queue("orders").open()
            node.deliver(1, "a")
            await take(queue, 1)
            node.cut()
            await asyncio.sleep(1)
            node.deliver(1, "a", count=mark)
            await nothing_comes(queue)

    story()


@virtual_time
async def test_what_the_node_may_not_have_heard_is_said_again() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b", "c", "d", "e", "f")
        a, b, c, d, e, _ = await take(queue, 6)
        await queue.accept(a, confirm=True)  # known to be safe
        node.settles = False
        await b.accept()
        await c.reject("broken")
        await d.release(delay=60)
        await soon()
        node.cut()
        await soon()
        await e.accept()  # while nobody is there
        node.got.clear()
        node.settles = True
        await asyncio.sleep(1)
        assert node.settled() == [("ACCEPT", (2, 2, 5, 5)), ("REJECT", (3, 3))]
        assert [one.reason for one in node.all(native.Settle)] == ["", "broken"]
        # Somebody else had b, and gave it back: then what was said of it did not count.
        node.got.clear()
        node.deliver(2, "b", "c", "d", "e", "f", count=1)
        (again,) = await take(queue, 1)
        assert again.text() == "d"  # a release is not repeated
        await nothing_comes(queue)
        assert node.settled() == [("ACCEPT", (2, 2, 5, 5)), ("REJECT", (3, 3))]
        assert queue.unsettled() == 2


@virtual_time
async def test_settlements_wait_until_the_subscription_stands() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b")
        a, b = await take(queue, 2)
        node.cut()
        await soon()
        node.subscribe = lambda wanted: []
        await a.accept()
        await asyncio.sleep(1)
        await b.accept()
        await soon()
        assert node.settled() == []
        node.send(native.Subscribed(queue.id, 1, 2))
        await soon()
        assert node.settled() == [("ACCEPT", (1, 2))]


@virtual_time
async def test_a_queue_that_was_made_again_has_other_messages() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.deliver(1, "a", "b", "c")
        _, accepted, _ = await take(queue, 3)
        node.settles = False
        await accepted.accept()
        await soon()
        node.cut()
        await asyncio.sleep(1)
        node.got.clear()
        node.deliver(1, "new 1", "new 2")
        assert [one.text() for one in await take(queue, 2)] == ["new 1", "new 2"]
        assert queue.unsettled() == 2


@virtual_time
async def test_a_queue_that_was_removed_under_us_is_not_made_again() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        gone = LocalError("unknown-mailbox", "it was removed")
        node.send(native.Error.of(gone, subscription=queue.id))
        with pytest.raises(LocalError, match="it was removed"):
            await queue.next(5)
        assert len(node.all(native.Subscribe)) == 1


@virtual_time
async def test_a_queue_that_is_gone_after_a_reconnection_is_made() -> None:
    async with fake() as (node, client):
        queue = await client.queue("orders").open()
        node.subscribe = absent
        node.cut()
        await asyncio.sleep(1)
        assert [one.existing for one in node.all(native.Subscribe)] == [True, True, False]
        node.deliver(1, "a")
        assert (await queue.next(5)).text() == "a"


# --------------------------------------------------------------------------------- leaving


@virtual_time
async def test_leaving_gives_back_what_is_held() -> None:
    async with fake() as (node, client):
        async with client.queue("orders") as queue:
            node.deliver(1, "a", "b", "c", "d")
            await (await take(queue, 2))[0].accept()
        last = node.all(native.Settle)[-1]
        assert node.settled() == [("ACCEPT", (1, 1)), ("RELEASE", (2, 4))]
        assert (last.uncounted, last.delay_ms) == (True, 0)
        assert isinstance(node.got[-1], native.Unsubscribe)
        assert not node.got[-1].remove
        with pytest.raises(RegraftError, match="has ended"):
            await queue.next(5)
        await queue.close()  # again it means nothing


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_leaving_by_an_error_counts_as_an_attempt(error: type[BaseException]) -> None:
    @virtual_time
    async def story() -> None:
        async with fake() as (node, client):
            with pytest.raises(error):
                async with client.queue("orders") as queue:
                    node.deliver(1, "a", "b", "c")
                    await queue.next(5)
                    raise error
            by_count = {one.uncounted: one.ranges for one in node.all(native.Settle)}
            counted = {False: (1, 1), True: (2, 3)}  # the others were never looked at
            assert by_count == (counted if error is ValueError else {True: (1, 3)})

    story()


@virtual_time
async def test_closing_the_client_gives_back_what_is_held() -> None:
    async with fake() as (node, client):
        queue = client.queue("orders")
        client.queue("never read")
        await queue.open()
        node.deliver(1, "a", "b")
        await queue.next(5)
    assert node.settled() == [("RELEASE", (1, 2))]
    assert [type(one) for one in node.got[-2:]] == [native.Unsubscribe, native.Bye]


@virtual_time
async def test_a_queue_that_was_never_read_is_left_without_a_word() -> None:
    async with fake() as (node, client):
        await client.queue("orders").close()
        assert len(node.got) == 1  # HELLO


def test_the_options_are_those_of_the_contract() -> None:
    assert set(QueueOptions.__annotations__) == {
        *("shared", "exclusive", "order_by", "lease", "retry", "retry_max", "max_deliveries"),
        *("dead_letter", "dead_expired", "quota_messages", "quota_bytes"),
    }
