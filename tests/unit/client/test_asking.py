"""Questions, replies and contexts: clients and a real node in memory, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from regraft import LocalError, RegraftError, ReplyTimeout, WorldError, within
from regraft.limits import Limits
from regraft.testing import Bus, virtual_time


@virtual_time
async def test_everybody_is_asked_and_it_is_known_when_all_have_replied() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        for n in range(5):
            replier = await bus.connect(client_id=f"sensor-{n}")

            async def reply(message: Any, n: int = n) -> None:
                await asyncio.sleep(n)
                await message.reply({"n": n})

            await replier.subscribe("rooms/#", replies=True, callback=reply)
        async with await asker.ask("rooms/temperature", "how warm?", timeout=60) as replies:
            found = [reply async for reply in replies]
        assert [reply.json()["n"] for reply in found] == [0, 1, 2, 3, 4]
        assert [reply.sender for reply in found] == [f"sensor-{n}" for n in range(5)]
        assert (replies.complete, replies.expected, replies.received) == (True, 5, 5)
        assert not replies.more
        held = bus.snapshot()
        assert held["questions_open"] == held["question_branches"] == 0


@virtual_time
async def test_nobody_to_ask_is_an_empty_end_at_once() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        before = asyncio.get_running_loop().time()
        found = await (await asker.ask("nobody/home", timeout=600)).all()
        assert (list(found), found.complete, found.expected) == ([], True, 0)
        assert asyncio.get_running_loop().time() - before < 1


@virtual_time
async def test_who_only_listens_is_not_waited_for() -> None:
    async with Bus() as bus:
        asker, listener = await bus.connect(), await bus.connect()
        heard = await listener.subscribe("#")
        found = await (await asker.ask("rooms", "x", timeout=600)).all(timeout=5)
        assert (list(found), found.complete, found.expected) == ([], True, 0)
        message = await heard.next(timeout=1)
        assert (message.text(), message.repliable) == ("x", False)
        with pytest.raises(LocalError, match="replies=True"):
            await message.reply("y")
        await message.no_reply()


@virtual_time
async def test_several_replies_of_one_replier_and_none_of_another() -> None:
    async with Bus() as bus:
        asker, first, second = [await bus.connect() for _ in range(3)]
        one = await first.subscribe("q", replies=True)
        two = await second.subscribe("q", replies=True)
        replies = await asker.ask("q", timeout=60)
        message = await one.next(timeout=1)
        assert message.repliable
        await message.reply("a", last=False)
        await message.reply("b", last=False)
        await (await two.next(timeout=1)).no_reply()
        assert [(await replies.next(timeout=1)).text() for _ in range(2)] == ["a", "b"]
        assert replies.expected == 2
        assert replies.more
        with pytest.raises(ReplyTimeout, match="within 1 s"):
            await replies.next(timeout=1)
        await message.reply("c")
        with pytest.raises(LocalError, match="last reply"):
            await message.reply("d")
        assert (await replies.next(timeout=1)).text() == "c"
        assert not (await replies.all(timeout=1))
        assert replies.complete
        with pytest.raises(LocalError):
            await replies.next(timeout=1)


@virtual_time
async def test_who_says_nothing_makes_it_incomplete_in_the_end() -> None:
    async with Bus() as bus:
        asker, first, second = [await bus.connect() for _ in range(3)]
        one = await first.subscribe("q", replies=True)
        await second.subscribe("q", replies=True)
        replies = await asker.ask("q", timeout=2)
        await (await one.next(timeout=1)).reply("here")
        found = await replies.all()
        assert [reply.text() for reply in found] == ["here"]
        assert (found.complete, found.expected) == (False, 2)
        assert "in time" in found.reason


@virtual_time
async def test_all_with_a_timeout_has_what_has_come() -> None:
    async with Bus() as bus:
        asker, other = await bus.connect(), await bus.connect()
        one = await other.subscribe("q", replies=True)
        replies = await asker.ask("q", timeout=60)
        message = await one.next(timeout=1)
        await message.reply("first", last=False)
        found = await replies.all(timeout=2)
        assert ([reply.text() for reply in found], found.complete) == (["first"], False)
        await message.reply("second")
        found = await replies.all(timeout=2)
        assert ([reply.text() for reply in found], found.complete) == (["second"], True)


@virtual_time
async def test_a_replier_that_is_gone_makes_it_incomplete_at_once() -> None:
    async with Bus() as bus:
        asker, first, second = [await bus.connect() for _ in range(3)]
        one = await first.subscribe("q", replies=True)
        await second.subscribe("q", replies=True)
        replies = await asker.ask("q", timeout=600)
        await (await one.next(timeout=1)).reply("here")
        await second.close()
        found = await replies.all(timeout=5)
        assert (len(found), found.complete, found.expected) == (1, False, 2)
        assert "gone" in found.reason


@virtual_time
async def test_a_callback_that_fails_is_no_complete_end() -> None:
    async with Bus() as bus:
        asker, first, second = [await bus.connect() for _ in range(3)]

        def fails(message: Any) -> None:
            raise ValueError("planned")

        await first.subscribe("q", replies=True, callback=fails)
        found = await (await asker.ask("q", timeout=600)).all(timeout=5)
        assert (found.complete, found.expected) == (False, 1)
        await first.unsubscribe("q")
        await second.subscribe("q", replies=True, callback=lambda message: None)
        found = await (await asker.ask("q", timeout=600)).all(timeout=5)
        assert (list(found), found.complete, found.expected) == ([], True, 1)


@virtual_time
async def test_two_callbacks_of_one_client_both_may_reply() -> None:
    async with Bus() as bus:
        asker, other = await bus.connect(), await bus.connect()
        await other.subscribe("q/#", replies=True, callback=lambda message: None)

        async def late(message: Any) -> None:
            await asyncio.sleep(1)
            await message.reply("from the second")

        await other.subscribe("q/a", replies=True, callback=late)
        found = await (await asker.ask("q/a", timeout=60)).all(timeout=5)
        assert [reply.text() for reply in found] == ["from the second"]
        assert (found.complete, found.expected) == (True, 1)


@virtual_time
async def test_the_asker_may_stop_waiting() -> None:
    async with Bus() as bus:
        asker, other = await bus.connect(), await bus.connect()
        questions = await other.subscribe("q", replies=True)
        async with await asker.ask("q", timeout=600):
            message = await questions.next(timeout=1)
            assert bus.snapshot()["questions_open"] == 1
        await asyncio.sleep(1)
        assert bus.snapshot()["questions_open"] == 0
        await message.reply("too late")
        await asyncio.sleep(1)
        assert bus.snapshot()["replies_late"] == 1


@virtual_time
async def test_a_lost_connection_ends_it() -> None:
    async with Bus() as bus:
        asker = await bus.connect(reconnect_delay=0.1)
        await asker.subscribe("q", replies=True)
        replies = await asker.ask("q", timeout=600)
        bus.kill()
        found = await replies.all(timeout=5)
        assert (found.complete, "connection" in found.reason) == (False, True)
        bus.start()


@virtual_time
async def test_what_cannot_be_asked_is_refused_by_name() -> None:
    async with Bus(limits=Limits(questions_per_session=2)) as bus:
        asker = await bus.connect()
        keep = await asker.subscribe("q", replies=True)
        with pytest.raises(LocalError, match="bad-topic"):
            await asker.ask("a/#")
        for topic, headers, name in (
            ("$type/ASKED", {}, "not-supported"),
            ("q", {"delivery_mode": 1}, "not-supported"),
        ):
            with pytest.raises(LocalError) as failure:
                await (await asker.ask(topic, **headers)).all(timeout=5)
            assert failure.value.code.name == name
        with pytest.raises(LocalError, match="timeout"):
            await asker.ask("q", timeout=0)
        with pytest.raises(LocalError, match="bad-selector"):
            await asker.ask("q", where="ctx.x =")
        with pytest.raises(LocalError, match="limit frame_bytes"):
            await asker.ask("q", b"x" * (1 << 20))
        open = [await asker.ask("q", timeout=60) for _ in range(2)]
        with pytest.raises(LocalError, match="limit questions_per_session"):
            await (await asker.ask("q", timeout=60)).next()
        for _ in range(2):
            await (await keep.next(timeout=1)).reply("x")
        assert [(await replies.all(timeout=1)).complete for replies in open] == [True, True]
        with pytest.raises(RegraftError, match="not-supported"):
            wanted = asker._wanted_of("q", "", False, durable="box", replies=True)
            await asker._ask(wanted.id, wanted, 1)


@virtual_time
async def test_an_asker_that_takes_nothing_has_bounded_memory_and_hears_of_it() -> None:
    async with Bus() as bus:
        asker = await bus.connect(queue_bytes=50_000)
        replier = await bus.connect()
        questions = await replier.subscribe("q", replies=True)
        replies = await asker.ask("q", timeout=60)
        message = await questions.next(timeout=1)
        for _ in range(20):
            await message.reply(b"x" * 5000, last=False)
        await message.no_reply()
        await asyncio.sleep(1)
        assert replies.pending() < 20
        found = await replies.all(timeout=5)
        assert not found.complete
        assert "dropped" in found.reason


@virtual_time
async def test_a_large_question_and_large_replies_pass() -> None:
    async with Bus() as bus:
        asker, replier = await bus.connect(), await bus.connect()
        await replier.subscribe("q", replies=True, callback=lambda m: m.reply(m.body + b"!"))
        found = await (await asker.ask("q", b"x" * 500_000, timeout=60)).all(timeout=5)
        assert [len(reply.body) for reply in found] == [500_001]


@virtual_time
async def test_a_thousand_repliers() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        for n in range(1000):
            client = await bus.connect()
            await client.subscribe("q", replies=True, callback=lambda m, n=n: m.reply(str(n)))
        found = await (await asker.ask("q", timeout=60)).all(timeout=30)
        assert sorted(int(reply.text()) for reply in found) == list(range(1000))
        assert (found.complete, found.expected) == (True, 1000)


# ------------------------------------------------------------------------------ contexts


@virtual_time
async def test_a_subscription_asks_for_the_publishers_context() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        kitchen = await other.subscribe("#", where="ctx.room = 'kitchen'")
        await client.publish("t", "nowhere")
        await client.set_context({"room": "kitchen", "floor": 2})
        await client.publish("t", "there")
        assert await client.publish_many("t", [b"one", b"two"]) == 2
        await client.set_context({"room": "hall"})
        await client.publish("t", "gone")
        found = [await kitchen.next(timeout=1) for _ in range(3)]
        assert [message.text() for message in found] == ["there", "one", "two"]
        assert found[0].message.context == {"room": "kitchen", "floor": 2}
        assert kitchen.pending() == 0
        assert client.context == {"room": "hall"}


@virtual_time
async def test_a_message_is_for_receivers_whose_context_fits_and_changes_count_at_once() -> None:
    async with Bus() as bus:
        client, near, far, nobody = [await bus.connect() for _ in range(4)]
        boxes = [await one.subscribe("#") for one in (near, far, nobody)]
        await near.set_context({"latitude": 52.52, "longitude": 13.405})
        await far.set_context({"latitude": 48.14, "longitude": 11.58})
        here = within(500, 52.521, 13.406)
        await client.publish("t", "first", where=here, confirm=True)
        await near.set_context({"latitude": 48.14, "longitude": 11.58})
        await far.set_context({"latitude": 52.52, "longitude": 13.405})
        await client.publish("t", "second", where=here, confirm=True)
        await client.publish("t", "for all")
        await asyncio.sleep(1)
        found = [[(await box.next(1)).text() for _ in range(box.pending())] for box in boxes]
        assert found == [["first", "for all"], ["second", "for all"], ["for all"]]
        held = bus.snapshot()
        assert (held["contexts"], held["narrowed"], held["spared"]) == (2, 2, 4)


@virtual_time
async def test_where_may_compare_the_message_with_the_receiver() -> None:
    async with Bus() as bus:
        client, one, two = [await bus.connect() for _ in range(3)]
        boxes = [await each.subscribe("#", where="kind = 'news'") for each in (one, two)]
        await one.set_context({"team": "red"})
        await two.set_context({"team": "blue"})
        await client.set_context({"team": "green"})
        attributes = {"kind": "news", "team": "blue"}
        where = "ctx.team = team AND $priority = 4"
        await client.publish("t", "blue", attributes=attributes, where=where)
        await client.publish("t", "other", attributes={"kind": "x", "team": "red"}, where=where)
        await asyncio.sleep(1)
        assert [box.pending() for box in boxes] == [0, 1]
        message = await boxes[1].next(timeout=1)
        assert message.message.context == {"team": "green"}  # the publisher's, as it was sent


@virtual_time
async def test_only_those_are_asked_whose_context_fits() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        for n in range(4):
            client = await bus.connect()
            await client.set_context({"floor": n % 2})
            await client.subscribe("q", replies=True, callback=lambda m, n=n: m.reply(str(n)))
        found = await (await asker.ask("q", where="ctx.floor = 1", timeout=60)).all(timeout=5)
        assert sorted(reply.text() for reply in found) == ["1", "3"]
        assert (found.complete, found.expected) == (True, 2)


@virtual_time
async def test_a_context_outlives_a_connection() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect(reconnect_delay=0.05)
        box = await other.subscribe("#")
        await other.set_context({"room": "hall"})
        bus.kill()
        await asyncio.sleep(1)
        bus.start()
        await asyncio.sleep(20)
        await client.publish("t", "x", where="ctx.room = 'hall'", timeout=60)
        assert (await box.next(timeout=5)).text() == "x"


@virtual_time
async def test_what_cannot_be_a_context_or_a_constraint_is_refused() -> None:
    async with Bus(limits=Limits(context_bytes=100)) as bus:
        client = await bus.connect()
        await client.set_context({"a": 1})
        with pytest.raises(LocalError, match="limit context_bytes"):
            await client.set_context({"a": "x" * 200})
        with pytest.raises(LocalError):
            await client.set_context({"a": [1]})  # type: ignore[dict-item]
        assert client.context == {"a": 1}
        with pytest.raises(LocalError, match="bad-selector"):
            await client.publish("t", where="ctx.x = ")
        with pytest.raises(LocalError, match="not-supported"):
            await client.publish("t", where="ctx.a = 1", persistent=True, confirm=True)
        await client.set_context({})
        assert bus.snapshot()["contexts"] == 0


# ------------------------------------------------------------------------ any subscription


@virtual_time
async def test_next_and_pending_of_any_subscription_and_unsubscribing_by_filter() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        await client.subscribe("a")
        await client.subscribe("b", where="x > 1")
        await client.subscribe("b", where="x > 1")
        assert client.pending() == 0
        with pytest.raises(WorldError, match="timed-out"):
            await client.next(timeout=1)
        waiting = asyncio.create_task(client.next(timeout=10, where="x = 7"))
        await other.publish("a", "one", attributes={"x": 1})
        await other.publish("b", "seven", attributes={"x": 7})
        assert (await waiting).text() == "seven"
        await asyncio.sleep(1)
        assert (client.pending(), client.pending(where="x = 1")) == (2, 1)
        assert (await client.next(timeout=1, where="x = 1")).text() == "one"
        assert (await client.next(timeout=1)).text() == "seven"
        assert await client.unsubscribe("b", where="x > 1") == 2
        assert await client.unsubscribe("c") == 0
        await other.publish("b", "again", attributes={"x": 7})
        await asyncio.sleep(1)
        assert client.pending() == 0
        await client.close()
        assert not client.is_open
        with pytest.raises(LocalError):
            await client.next(timeout=1)
