"""The client against a real node in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from regraft import Disconnection, LocalError, RegraftError, Timestamp, WhenStalled, WorldError
from regraft.client.link import Asked, Link
from regraft.limits import Limits
from regraft.testing import Bus, virtual_time
from regraft.wire import native


@virtual_time
async def test_what_is_published_arrives_with_all_it_had() -> None:
    async with Bus() as bus:
        client = await bus.connect(client_id="me")
        everything = await client.subscribe("#")
        attributes = {
            "b": True, "i": -5, "f": 1.5, "s": "grüß", "y": b"\x00\xff", "t": Timestamp(77),
        }  # fmt: skip
        await client.publish(
            "a/b", b"body", attributes=attributes, priority=7, reply_to="answers", correlation="c-1"
        )
        message = await everything.next(timeout=1)
        assert (message.topic, message.body, message.attributes) == ("a/b", b"body", attributes)
        assert (message.priority, message.reply_to, message.correlation) == (7, "answers", "c-1")
        assert message.id and message.timestamp_us


@virtual_time
async def test_ids_and_timestamps_can_be_switched_off() -> None:
    async with Bus() as bus:
        client = await bus.connect(message_ids=False, timestamps=False)
        everything = await client.subscribe()
        await client.publish("a", b"")
        message = await everything.next(timeout=1)
        assert (message.id, message.timestamp_us) == (None, None)


@dataclass
class Trade:
    symbol: str
    price: float


@virtual_time
async def test_bodies_may_be_text_json_and_dataclasses() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        everything = await client.subscribe()
        for body in ("grüß", {"a": [1, None]}, Trade("ACME", 1.5), bytearray(b"x")):
            await client.publish("t", body)
        text, mapping, trade, raw = [await everything.next(timeout=1) for _ in range(4)]
        assert (text.text(), text.content_type) == ("grüß", "text/plain; charset=utf-8")
        assert (mapping.json(), mapping.content_type) == ({"a": [1, None]}, "application/json")
        assert trade.json(Trade) == Trade("ACME", 1.5)
        assert raw.body == b"x"
        with pytest.raises(LocalError, match="a body may be"):
            await client.publish("t", object())


@virtual_time
async def test_each_subscription_gets_what_matches_it_in_order() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        broad = await client.subscribe("a/#")
        narrow = await client.subscribe("a/b", exact=True)
        for n in range(100):
            await other.publish("a/b" if n % 2 else "a/c", str(n))
        await other.flush(timeout=5)
        await asyncio.sleep(1)
        assert [int((await broad.next(1)).text()) for _ in range(100)] == list(range(100))
        assert [int((await narrow.next(1)).text()) for _ in range(50)] == list(range(1, 100, 2))
        assert broad.pending() == narrow.pending() == 0


@virtual_time
async def test_batches_publish_many_and_async_for() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("n")
        assert await client.publish_many("n", (str(n).encode() for n in range(5000))) == 5000
        got: list[int] = []
        async for batch in subscription.batches():
            got += [int(message.body) for message in batch]
            if len(got) == 5000:
                break
        assert got == list(range(5000))
        await client.publish_many("n", [b"1", b"2", b"3"])
        seen = []
        async for message in subscription:
            seen.append(message.body)
            if len(seen) == 3:
                await subscription.unsubscribe()
        assert seen == [b"1", b"2", b"3"]


@virtual_time
async def test_callbacks_and_decorators() -> None:
    async with Bus() as bus:
        client = bus.client()
        seen: list[Any] = []

        @client.on("a")
        def plain(message: Any) -> None:
            seen.append(("plain", message.text()))

        @client.on("a")
        async def asynchronous(message: Any) -> None:
            await asyncio.sleep(1)
            seen.append(("async", message.text()))

        await client.open()
        await client.publish("a", "1")
        await asyncio.sleep(5)
        assert seen == [("plain", "1"), ("async", "1")]


@virtual_time
async def test_next_times_out_with_a_sentence() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("quiet")
        with pytest.raises(WorldError, match="no message for 'quiet' within 3 s"):
            await subscription.next(timeout=3)


@virtual_time
async def test_nothing_comes_after_unsubscribing() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        async with await client.subscribe("a") as subscription:
            await client.publish("a", b"1", confirm=True)
        await client.publish("a", b"2", confirm=True)
        await asyncio.sleep(1)
        assert [message.body async for message in subscription] == [b"1"]
        with pytest.raises(LocalError, match="has ended"):
            await subscription.next()


@virtual_time
async def test_a_confirmed_publication_says_why_it_was_refused() -> None:
    async with Bus(journal=False) as bus:
        client = await bus.connect()
        with pytest.raises(RegraftError, match="not published") as caught:
            await client.publish("a", b"", confirm=True, delivery_mode=1)
        assert caught.value.code.name == "not-supported"
        refused: list[tuple[str, int]] = []
        client.on_refused(lambda error, count: refused.append((error.code.name, count)))
        await client.publish("a", b"", delivery_mode=1)
        await client.publish("a", b"", confirm=True)
        assert refused == [("not-supported", 1)]


@virtual_time
async def test_mistakes_are_told_before_anything_is_sent() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        with pytest.raises(LocalError, match="only a pattern may"):
            await client.publish("a/+", b"")
        with pytest.raises(LocalError, match="the last level"):
            await client.subscribe("a/#/b")
        with pytest.raises(LocalError, match="there is no header 'colour'"):
            await client.publish("a", b"", colour="red")
        with pytest.raises(LocalError, match="node takes 1048576 at most"):
            await client.publish("a", bytes(2_000_000))
        with pytest.raises(LocalError, match="may be bool, int, float"):
            await client.publish("a", b"", attributes={"x": object()})  # type: ignore[dict-item]
        subscription = await client.subscribe("a")
        await client.publish("a", b"still works")
        assert (await subscription.next(1)).body == b"still works"


@virtual_time
async def test_after_a_crash_the_client_comes_back_with_its_subscriptions() -> None:
    async with Bus() as bus:
        client, publisher = await bus.connect(), await bus.connect()
        subscription = await client.subscribe("a")
        lost: list[Disconnection] = []
        back: list[bool] = []
        client.on_disconnect(lost.append)
        client.on_reconnect(lambda: back.append(True))
        for round in range(5):
            bus.kill()
            await asyncio.sleep(2)
            assert len(lost) == round + 1 and lost[-1].will_reconnect
            assert not client.is_connected
            bus.start()
            await asyncio.sleep(10)
            assert client.is_connected and len(back) == round + 1
            await publisher.publish("a", str(round), confirm=True, timeout=20)
            assert (await subscription.next(timeout=5)).text() == str(round)


@virtual_time
async def test_what_was_in_flight_when_the_node_died_is_reported() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        lost: list[Disconnection] = []
        client.on_disconnect(lost.append)
        await client.publish("a", b"1", confirm=True)
        waiting = asyncio.create_task(client.publish("a", b"2", confirm=True))
        await asyncio.sleep(0)
        bus.kill()
        with pytest.raises(WorldError, match="in flight"):
            await waiting
        assert lost[0].unconfirmed == 1


@virtual_time
async def test_publishing_waits_for_a_node_and_gives_up_in_time() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        bus.kill()
        await asyncio.sleep(1)
        with pytest.raises(WorldError, match="no connection within 2 s"):
            await client.publish("a", b"", timeout=2)
        bus.start()
        await client.publish("a", b"", timeout=30, confirm=True)


@virtual_time
async def test_a_stopping_node_is_left_at_once() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        await client.subscribe("a")
        bus.stop()
        await asyncio.sleep(0.5)
        assert not client.is_connected and client.is_open
        bus.start()
        await asyncio.sleep(10)
        assert client.is_connected


@virtual_time
async def test_what_is_published_behind_a_good_bye_goes_to_the_next_connection() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        everything = await other.subscribe("a")
        for publish in (client.publish, lambda topic, body: client.publish_many(topic, [body])):
            link = client._latest
            assert link is not None
            await client.publish("a", b"before")
            client._received(link, native.encode(native.Goaway("it is being stopped", 1000)))
            await asyncio.wait_for(publish("a", b"after"), 5)
            assert client._latest is not link
            assert [(await everything.next(5)).body for _ in range(2)] == [b"before", b"after"]


@virtual_time
async def test_requests_are_answered_in_their_order() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        refused = [client.command(f"no-{number}") for number in range(3)]
        answers = await asyncio.gather(
            refused[0], client.inspect("node"), refused[1], client.inspect("index"), refused[2],
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(answers[1], dict) and answers[1]["name"] == "in-memory"
        assert isinstance(answers[3], dict) and "filters" in answers[3]
        for answer in (answers[0], answers[2], answers[4]):
            assert isinstance(answer, LocalError) and answer.code.name == "not-supported"


@virtual_time
async def test_an_error_is_for_the_command_whose_token_it_has() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        link = client._latest
        assert link is not None
        slow = asyncio.create_task(client.command("slow"))
        quick = asyncio.create_task(client.command("quick"))
        looked = asyncio.create_task(client.inspect("node"))
        await asyncio.sleep(0)
        first = min(client._requests)
        for token, text in ((first + 1, "quick"), (0, "a look"), (first, "slow")):
            error = native.Error.of(LocalError("not-supported", text), token=token)
            client._received(link, native.encode(error))
        for task, text in ((slow, "slow"), (quick, "quick"), (looked, "a look")):
            with pytest.raises(LocalError, match=text):
                await task


class ClosingTransport:
    """As uvloop has it between a write that failed and the news that the connection is lost."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    def close(self) -> None:
        """There is nothing left to do."""


@virtual_time
async def test_nothing_is_written_to_a_connection_that_is_about_to_be_lost() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        transport, client._transport = client._transport, ClosingTransport()
        await client.publish("a", b"x")
        client._send(native.Credit(1, 1))
        await asyncio.sleep(0)
        client._transport = transport
        everything = await client.subscribe("b")
        await client.publish("b", b"y")
        assert (await everything.next(1)).body == b"y"


@virtual_time
async def test_a_subscription_that_was_given_up_is_taken_back() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        with pytest.raises(WorldError, match="did not answer"):
            await client.subscribe("a", timeout=0)
        given_up = asyncio.create_task(client.subscribe("b"))
        await asyncio.sleep(0)
        given_up.cancel()
        kept = await client.subscribe("c")
        await asyncio.sleep(1)
        rows = (await client.inspect("subscriptions"))["rows"]
        assert [row["id"] for row in rows] == [kept.id]


@virtual_time
async def test_a_command_that_nobody_answers_does_not_take_the_answer_of_the_next() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        with pytest.raises(WorldError, match="did not answer"):
            await client.command("nothing", timeout=0)
        assert (await client.inspect("node"))["name"] == "in-memory"
        bus.kill()
        with pytest.raises(WorldError):
            await client.command("nothing", timeout=1)


@virtual_time
async def test_a_closed_client_says_so() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("a")
        await client.close()
        await client.close()
        assert [message async for message in subscription] == []
        for call in (client.publish("a", b""), client.subscribe("a"), client.open()):
            with pytest.raises(LocalError, match="was closed"):
                await call


@virtual_time
async def test_close_sends_what_was_published() -> None:
    async with Bus() as bus:
        client, other = await bus.connect(), await bus.connect()
        subscription = await other.subscribe("a")
        await client.publish("a", b"last words")
        await client.close()
        assert (await subscription.next(1)).body == b"last words"


@virtual_time
async def test_the_same_client_id_takes_over_and_the_first_stays_away() -> None:
    async with Bus() as bus:
        first = await bus.connect(client_id="me")
        subscription = await first.subscribe("a")
        await bus.connect(client_id="me")
        with pytest.raises(WorldError, match="connected again"):
            await subscription.next(timeout=5)
        assert not first.is_open


@virtual_time
async def test_a_slow_reader_slows_the_publisher_down_and_loses_nothing() -> None:
    async with Bus(limits=Limits(queue_messages=50, window_messages=20)) as bus:
        reader = await bus.connect(queue_messages=10)
        publisher = await bus.connect()
        subscription = await reader.subscribe("a")

        async def publish() -> None:
            for n in range(1000):
                await publisher.publish("a", str(n))

        task = asyncio.create_task(publish())
        got = []
        for _ in range(1000):
            got.append(int((await subscription.next(timeout=10)).text()))
            await asyncio.sleep(0.01)
            if len(got) == 100:
                assert not task.done()
        assert got == list(range(1000))
        await task


@pytest.mark.parametrize("policy", [WhenStalled.DROP_OLDEST, WhenStalled.DROP_NEWEST])
def test_who_stops_taking_gets_what_its_policy_leaves(policy: WhenStalled) -> None:
    @virtual_time
    async def scene() -> None:
        async with Bus(limits=Limits(queue_messages=50)) as bus:
            reader = await bus.connect(queue_messages=10, when_stalled=policy)
            publisher = await bus.connect()
            subscription = await reader.subscribe("a")
            missed: list[int] = []
            reader.on_missed(lambda count, reason: missed.append(count))
            for n in range(500):
                await publisher.publish("a", str(n), timeout=60)
            await publisher.flush(timeout=60)
            await asyncio.sleep(30)
            got = [int((await subscription.next(timeout=5)).text())]
            while len(got) + sum(missed) < 500:
                got.append(int((await subscription.next(timeout=5)).text()))
            assert got == sorted(set(got)) and sum(missed) > 0
            assert (got[-1] == 499) == (policy == WhenStalled.DROP_OLDEST)

    scene()


@virtual_time
async def test_who_stops_taking_is_disconnected_with_a_sentence() -> None:
    async with Bus(limits=Limits(queue_messages=50)) as bus:
        reader = await bus.connect(queue_messages=10, reconnect=False)
        publisher = await bus.connect()
        subscription = await reader.subscribe("a")
        for n in range(200):
            await publisher.publish("a", str(n), timeout=60)
        await asyncio.sleep(30)
        with pytest.raises(WorldError, match="read faster, or ask for another policy"):
            while True:
                await subscription.next(timeout=5)


@virtual_time
async def test_a_silent_node_is_noticed() -> None:
    async with Bus() as bus:
        client = await bus.connect(heartbeat=1.0, reconnect=False)
        subscription = await client.subscribe("a")
        bus._node().stopped = True  # it does nothing any more, and nobody hangs up
        with pytest.raises(WorldError, match="nothing was heard"):
            await subscription.next(timeout=60)


def test_the_same_test_tells_the_same_story() -> None:
    @virtual_time
    async def scene() -> str:
        async with Bus(seed=3) as bus:
            client = await bus.connect(message_ids=False, timestamps=False)
            subscription = await client.subscribe("#")
            await client.publish_many("a", [bytes(n) for n in range(100)])
            for _ in range(100):
                await subscription.next(1)
            return bus.trace_hash

    assert scene() == scene()


@virtual_time
async def test_a_selector_decides_what_is_delivered() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        expensive = await client.subscribe("trades/#", where="price > 100 AND symbol = 'ACME'")
        like = await client.subscribe(where="symbol LIKE 'AC%' AND price * 2 < 100")
        everything = await client.subscribe("trades")
        for price, symbol in ((99, "ACME"), (101.5, "ACME"), (500, "OTHER"), (20, "ACID")):
            await client.publish(
                "trades/eu", str(price), attributes={"price": price, "symbol": symbol}
            )
        await client.publish("trades", "no attributes", confirm=True)
        await asyncio.sleep(1)
        assert [(await expensive.next(1)).text() for _ in range(expensive.pending())] == ["101.5"]
        assert [(await like.next(1)).text() for _ in range(like.pending())] == ["20"]
        assert everything.pending() == 5
        with pytest.raises(LocalError, match="at column 9"):
            await client.subscribe(where="price > ")


@virtual_time
async def test_next_may_wait_for_what_a_selector_allows() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("n")
        for n in range(5):
            await client.publish("n", str(n), attributes={"n": n})
        assert (await subscription.next(1, where="n = 3")).text() == "3"
        assert [(await subscription.next(1)).text() for _ in range(4)] == ["0", "1", "2", "4"]
        waiting = asyncio.create_task(subscription.next(10, where="n > 50"))
        await client.publish("n", "7", attributes={"n": 7})
        await asyncio.sleep(1)
        await client.publish("n", "70", attributes={"n": 70})
        assert (await waiting).text() == "70"
        assert (await subscription.next(1)).text() == "7"
        with pytest.raises(WorldError, match="no message"):
            await subscription.next(2, where="n = 1")


@virtual_time
async def test_many_are_not_confirmed_if_the_connection_was_lost_on_the_way() -> None:
    async with Bus() as bus:
        client = await bus.connect()

        def bodies() -> Iterator[bytes]:
            for n in range(3000):
                if n == 2000:
                    bus.kill()
                    bus.start()
                yield b"x" * 200

        with pytest.raises(WorldError, match="in flight"):
            await client.publish_many("a", bodies(), confirm=True, timeout=30)


@virtual_time
async def test_many_may_be_of_any_kind_and_keep_their_order() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("a")
        await client.publish_many("a", [b"1", "2", {"n": 3}, b"4"], confirm=True)
        got = [await subscription.next(1) for _ in range(4)]
        assert [message.body for message in got] == [b"1", b"2", b'{"n":3}', b"4"]
        assert [message.content_type for message in got] == [
            "", "text/plain; charset=utf-8", "application/json", "",
        ]  # fmt: skip


@virtual_time
async def test_credit_of_an_old_connection_is_not_given_to_a_new_one() -> None:
    async with Bus() as bus:
        reader = await bus.connect(queue_messages=100)
        publisher = await bus.connect()
        subscription = await reader.subscribe("a")
        await publisher.publish_many("a", [b"x"] * 100, confirm=True)
        await asyncio.sleep(1)
        bus.kill()
        bus.start()
        await asyncio.sleep(5)
        assert len(await subscription.next_batch()) == 100  # they came over the old one
        task = asyncio.create_task(publisher.publish_many("a", [b"y"] * 1000, timeout=60))
        await asyncio.sleep(2)
        assert subscription.pending() == 100
        task.cancel()


@virtual_time
async def test_a_callback_that_fails_gets_the_next_message_and_holds_nobody_up() -> None:
    async with Bus() as bus:
        client = await bus.connect(queue_messages=100)
        seen: list[str] = []

        def fails(message: Any) -> None:
            seen.append(message.text())
            raise ValueError(message.text())

        await client.subscribe("a", callback=fails)
        good = await client.subscribe("b")
        publisher = await bus.connect()
        await publisher.publish_many("a", [str(n) for n in range(500)], confirm=True)
        await publisher.publish("b", "hello", confirm=True)
        assert (await good.next(60)).text() == "hello"
        assert seen == [str(n) for n in range(500)]


@virtual_time
async def test_flush_waits_and_refusals_go_to_who_asked_for_them() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        refused: list[int] = []
        client.on_refused(lambda error, count: refused.append(count))
        await client.publish("a", b"", override_rules=b"nonsense")
        await client.flush(timeout=5)
        assert refused == [1]
        with pytest.raises(LocalError, match="inspect one of node"):
            await client.inspect("foo")
        assert (await client.inspect())["refused"] == 1


@virtual_time
async def test_what_has_expired_is_not_delivered() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("a")
        await client.publish_many("a", [b"old"], expiration_us=1)
        await client.publish_many("a", [b"new"], ttl=10**9, confirm=True)
        assert (await subscription.next(1)).body == b"new"
        assert (await client.inspect())["expired"] == 1


@virtual_time
async def test_mistakes_of_the_application_do_not_end_the_client() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        subscription = await client.subscribe("a")

        def fails(*_: Any) -> None:
            raise ValueError("a mistake of the application")

        for register in (
            client.on_disconnect,
            client.on_reconnect,
            client.on_refused,
            client.on_missed,
        ):
            register(fails)
        await client.publish("a", b"", override_rules=b"nonsense")
        await client.flush(timeout=5)
        bus.kill()
        bus.start()
        await asyncio.sleep(10)
        await client.publish("a", b"still here", confirm=True, timeout=5)
        assert (await subscription.next(5)).body == b"still here"


def test_a_node_that_asks_is_answered() -> None:
    link = Link(native.Hello(version_min=1, version_max=1), 1)
    (event,) = link.receive(native.encode(native.Heartbeat(77)))
    assert event == Asked(native.encode(native.Heartbeat(77, True)))
    assert list(link.receive(native.encode(native.Heartbeat()))) == []


@virtual_time
async def test_many_who_wait_for_a_confirmation_each_get_their_own() -> None:
    async with Bus() as bus:
        client = await bus.connect()
        told = await asyncio.gather(
            *(
                client.publish("a", b"", confirm=True, timeout=5, override_rules=rules)
                for rules in (b"" if n % 3 else b"nonsense" for n in range(20))
            ),
            return_exceptions=True,
        )
        assert [isinstance(answer, RegraftError) for answer in told] == [
            n % 3 == 0 for n in range(20)
        ]
        assert all(answer == 0 for n, answer in enumerate(told) if n % 3)
