"""Queues of a real node: members and nodes that are killed, and what becomes of the messages."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_reconnect import MortalNode, first_connection

from regraft import Client, LocalError, Queue, ReceivedMessage, RegraftError, WorldError, cli
from regraft import connect as connect_to

DRAINED_S = 30.0
LOAD = 400
MEMBERS = 4

# A member as a process of its own: it says what it got and, once the node has it, what it is done
# with. Lines are appended whole, so that their order in the file is that of what happened.
MEMBER = """
import asyncio, os, random, sys, regraft
target, name, log, seed = sys.argv[1:]
out = os.open(log, os.O_WRONLY | os.O_APPEND)
chance = random.Random(int(seed))

async def connected():
    while True:
        try:
            return await regraft.connect(target, reconnect_delay_max=0.1)
        except regraft.WorldError:  # the node is being started again
            await asyncio.sleep(0.05)

async def main():
    async with await connected() as client:
        async with client.queue(name, in_flight=10) as queue:
            os.write(out, b"ready\\n")
            async for message in queue:
                number = message.text()
                os.write(out, f"got {number}\\n".encode())
                await asyncio.sleep(chance.uniform(0, 0.005))
                try:
                    await queue.accept(message, confirm=True)
                    os.write(out, f"done {number}\\n".encode())
                except regraft.WorldError:  # the node was killed: nobody knows
                    os.write(out, f"lost {number}\\n".encode())

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalNode]:
    one = MortalNode(tmp_path_factory.mktemp("node"))
    try:
        asyncio.run(first_connection(one))
        yield one
    finally:
        one.end()


def connect(node: MortalNode, **more: Any) -> Coroutine[Any, Any, Client]:
    return connect_to(f"127.0.0.1:{node.port}", **{"reconnect_delay_max": 0.1, **more})


def story(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An `async` test that takes a node, with an end."""

    def test(node: MortalNode) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await function(node)

        asyncio.run(bounded())

    test.__name__ = function.__name__
    return test


async def publish(client: Client, topic: str, *texts: object, **more: Any) -> None:
    for text in texts:
        await client.publish(topic, str(text), persistent=True, **more)
    while True:
        try:
            await client.flush(10)
            return
        except WorldError as error:  # what is persistent is sent again over the next connection
            if error.code.name != "connection-lost":
                raise


async def texts(queue: Queue, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = await queue.next(10)
        await message.accept()
        found.append(message.text())
    return found


async def nothing_comes(queue: Queue, seconds: float = 0.2) -> None:
    with pytest.raises(WorldError) as caught:
        await queue.next(seconds)
    assert caught.value.code.name == "timed-out"


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


def abort(client: Client) -> None:
    """Its connection breaks, as if its process had been killed."""
    assert client._transport is not None
    client._transport.abort()


# ------------------------------------------------------------------------- killed members


class Crew:
    """Members in processes of their own."""

    def __init__(self, node: MortalNode, name: str, log: Path) -> None:
        self._command = [sys.executable, "-c", MEMBER, f"127.0.0.1:{node.port}", name, str(log)]
        self._started = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._started += 1
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_URL")}
        command = [*self._command, str(self._started)]
        self.running.append(subprocess.Popen(command, env=environ))

    def kill(self, which: int) -> None:
        member = self.running.pop(which)
        member.send_signal(signal.SIGKILL)
        member.wait()

    def end(self) -> None:
        while self.running:
            self.kill(0)


def test_members_and_the_node_are_killed_and_no_message_is(
    node: MortalNode, tmp_path: Path
) -> None:
    """Each is dealt with, none comes after it was accepted, and none is stuck."""
    log = tmp_path / "log"
    log.touch()
    crew = Crew(node, "load", log)
    chance = random.Random(5)

    async def tell() -> None:
        async with await connect(node) as client:
            await client.create_queue("load")
            for _ in range(MEMBERS):
                crew.start()
            await publish(client, "load", *range(LOAD // 2))
            await until(lambda: heard("ready", MEMBERS), 20)
            for kill in range(6):
                await until(lambda kill=kill: heard("got", 20 * (kill + 1)), 20)  # type: ignore[misc]
                crew.kill(chance.randrange(MEMBERS))
                crew.start()
                if kill == 3:
                    node.kill()
                    node.start()
                    await publish(client, "load", *range(LOAD // 2, LOAD))
            began = time.monotonic()
            await until(drained(client), DRAINED_S)
            print(f"drained in {time.monotonic() - began:.1f} s")

    async def heard(word: str, count: int) -> bool:
        return log.read_text().count(word) >= count

    def drained(client: Client) -> Callable[[], Coroutine[Any, Any, bool]]:
        async def look() -> bool:
            row = await client.show_queue("load")
            return bool(row["waiting"] == row["held"] == row["returned"] == 0)

        return look

    try:
        asyncio.run(tell())
    finally:
        crew.end()
    got: dict[str, int] = defaultdict(int)
    done: set[str] = set()
    lost: set[str] = set()
    for line in log.read_text().splitlines():
        word, _, number = line.partition(" ")
        if word == "got":
            assert number not in done, f"{number} came after it had been accepted"
            got[number] += 1
        elif word == "done":
            assert number not in done, f"{number} was accepted twice"
            done.add(number)
        elif word == "lost":
            lost.add(number)
    assert set(got) == {str(n) for n in range(LOAD)}
    # Who was killed may have accepted what it was at work on, and did not come to say so.
    assert LOAD - len(done | lost) <= 6
    assert sum(got.values()) - LOAD <= 6 + len(lost) + MEMBERS
    print(f"{sum(got.values()) - LOAD} came again, {len(lost)} with the node")


@story
async def test_an_application_keeps_what_it_holds_over_a_crash_of_the_node(
    node: MortalNode,
) -> None:
    async with await connect(node) as client:
        await publish(client, "crash", "before it was made")
        async with client.queue("crash", in_flight=4) as queue:
            await publish(client, "crash", *range(8))
            held = [await queue.next(10) for _ in range(3)]  # and one more has arrived
            node.kill()
            await held[0].accept()
            node.start()
            await held[1].accept()
            rest = [await queue.next(20) for _ in range(1)]
            await queue.accept(*rest)
            await queue.accept(held[2])
            rest += [await queue.next(10) for _ in range(4)]
            await queue.accept(*rest[1:], confirm=True)
            assert [m.text() for m in [*held, *rest]] == [str(n) for n in range(8)]
            await nothing_comes(queue)
            assert (await client.show_queue("crash"))["waiting"] == 0


# -------------------------------------------------------------------- sharing and ordering


@story
async def test_a_queue_is_shared(node: MortalNode) -> None:
    async with (
        await connect(node) as one,
        await connect(node, reconnect=False) as two,
        one.queue("shared", in_flight=5) as a,
    ):
        b = await two.queue("shared", in_flight=5).open()
        await publish(one, "shared", *range(10))
        mine = [await a.next(10) for _ in range(5)]
        others = [await b.next(10) for _ in range(5)]
        assert sorted(int(m.text()) for m in mine + others) == list(range(10))
        assert len((await one.show_queue("shared"))["member_rows"]) == 2
        await nothing_comes(a)
        await b.accept(*others[1:], confirm=True)
        abort(two)
        await a.accept(*mine)
        message = await a.next(10)
        assert (message.text(), message.attempts) == (others[0].text(), 1)
        await message.accept(confirm=True)
        assert (await one.show_queue("shared"))["waiting"] == 0


@story
async def test_leaving_does_not_count(node: MortalNode) -> None:
    """Not for what was looked at, and not for what was on its way: one attempt is allowed."""
    async with await connect(node) as client, await connect(node) as other:
        await client.create_queue("polite", max_deliveries=1)
        await publish(client, "polite", *range(20))
        for _ in range(3):
            async with client.queue("polite") as queue:
                assert (await queue.next(10)).text() == "0"
        await other.queue("polite").next(10)
        await other.close()
        async with client.queue("polite") as queue:
            messages = [await queue.next(10) for _ in range(20)]
            assert [m.text() for m in messages] == [str(n) for n in range(20)]
            assert {m.attempts for m in messages} == {0}
            await queue.accept(*messages, confirm=True)
        assert (await client.show_queue("polite"))["dead"] == 0


@story
async def test_of_an_exclusive_queue_one_reads_and_the_next_takes_over(node: MortalNode) -> None:
    async with await connect(node, reconnect=False) as one, await connect(node) as two:
        active = await one.queue("alone", exclusive=True, in_flight=3).open()
        standby = await two.queue("alone", exclusive=True).open()
        await publish(two, "alone", *range(6))
        held = [await active.next(10) for _ in range(3)]
        await nothing_comes(standby)
        await held[0].accept(confirm=True)
        rows = (await two.show_queue("alone"))["member_rows"]
        assert sorted(row["active"] for row in rows) == [False, True]
        abort(one)
        assert await texts(standby, 5) == ["1", "2", "3", "4", "5"]
        await standby.settled()


@story
async def test_messages_of_a_key_stay_in_order(node: MortalNode) -> None:
    """Whoever gets them, and though a member dies meanwhile."""
    keys, count = 8, 160
    worked: dict[Any, list[int]] = defaultdict(list)
    at_work: set[Any] = set()
    chance = random.Random(3)

    async def read(client: Client) -> None:
        async for message in client.queue("keys", in_flight=6):
            key, number = message.attributes["key"], int(message.text())
            assert key not in at_work, "two work on the same key"
            at_work.add(key)
            try:
                await asyncio.sleep(chance.uniform(0, 0.004))
            finally:
                at_work.discard(key)
            if worked[key][-1:] != [number]:  # else it comes again, from the member that died
                worked[key].append(number)
            await message.accept(confirm=True)

    def so_many(least: int) -> Callable[[], Coroutine[Any, Any, bool]]:
        async def look() -> bool:
            return sum(map(len, worked.values())) >= least

        return look

    clients = [await connect(node, reconnect=False) for _ in range(3)]
    publisher = await connect(node)
    await publisher.create_queue("keys", order_by="key")
    reading = [asyncio.create_task(read(client)) for client in clients]
    for number in range(count):
        attributes = {"key": f"customer {chance.randrange(keys)}"}
        await publisher.publish("keys", str(number), attributes=attributes, persistent=True)
        if number == count // 2:
            await until(so_many(20))
            reading[0].cancel()
            await asyncio.wait([reading[0]])
            abort(clients[0])
    await until(so_many(count), 20)
    assert sum(map(len, worked.values())) == count
    for numbers in worked.values():
        assert numbers == sorted(numbers)
    assert not any(task.done() for task in reading[1:])
    for client in [*clients, publisher]:
        await client.close()
    await asyncio.wait(reading)


@story
async def test_the_most_urgent_comes_first(node: MortalNode) -> None:
    async with await connect(node) as client:
        await client.create_queue("urgent")
        for number, priority in enumerate((4, 9, 0, 9, 5, 4)):
            await publish(client, "urgent", f"{priority}-{number}", priority=priority)
        async with client.queue("urgent", in_flight=2) as queue:
            assert await texts(queue, 6) == ["9-1", "9-3", "5-4", "4-0", "4-5", "0-2"]


# ------------------------------------------------------- attempts, leases, dead letters, time


@story
async def test_what_is_released_comes_again_when_its_time_has_come(node: MortalNode) -> None:
    async with await connect(node) as client:
        clock = asyncio.get_running_loop()
        async with client.queue("again", retry=0.2) as queue:
            await publish(client, "again", "a")
            times = []
            for attempt in range(3):
                message = await queue.next(10)
                assert message.attempts == attempt
                times.append(clock.time())
                await message.release()
            message = await queue.next(10)
            times.append(clock.time())
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert all(gap >= least for gap, least in zip(gaps, (0.2, 0.4, 0.8), strict=True)), gaps
            await message.release(count=False)
            message = await queue.next(10)
            assert message.attempts == 3
            await message.release(delay=0.5)
            began = clock.time()
            await (await queue.next(10)).accept()
            assert clock.time() - began >= 0.5


@story
async def test_a_lease_ends_unless_it_is_extended(node: MortalNode) -> None:
    async with await connect(node) as client, client.queue("leased", lease=0.4) as queue:
        clock = asyncio.get_running_loop()
        await publish(client, "leased", "a")
        held = await queue.next(10)
        for _ in range(4):
            await asyncio.sleep(0.2)
            await held.extend()
        assert queue.pending() == 0
        began = clock.time()
        again = await queue.next(10)
        assert 0.3 < clock.time() - began < 5
        assert (again.text(), again.attempts) == ("a", 1)
        await again.extend(60)
        await nothing_comes(queue, 0.8)
        await again.accept(confirm=True)
        assert (await client.show_queue("leased"))["waiting"] == 0


@story
async def test_dead_letters_say_why_and_live_again(node: MortalNode) -> None:
    async with await connect(node) as client:
        async with client.queue("mortal", "life/#", max_deliveries=2, dead_expired=True) as queue:
            await publish(client, "life/a", "rejected")
            await (await queue.next(10)).reject("no use")
            await publish(client, "life/b", "tried")
            for attempt in range(2):
                message = await queue.next(10)
                assert (message.text(), message.attempts) == ("tried", attempt)
                await message.release()
            await nothing_comes(queue)

        async def both() -> bool:
            where = "dead_mailbox = 'mortal'"
            return len([m async for m in client.dead_letters(where=where)]) == 2

        await until(both)
        letters = [m async for m in client.dead_letters(where="dead_mailbox = 'mortal'")]
        first, second = (dict(letter.attributes) for letter in letters)
        assert [letter.topic for letter in letters] == ["dead/mortal"] * 2
        assert (first["dead_reason"], first["dead_text"]) == ("rejected", "no use")
        assert (second["dead_reason"], second["dead_deliveries"]) == ("max-deliveries", 2)
        assert (first["dead_topic"], second["dead_topic"]) == ("life/a", "life/b")
        assert await client.retry_dead(letters[0]) == 1
        assert await client.retry_dead(letters[1].sequence) == 1
        async with client.queue("mortal") as queue:
            messages = [await queue.next(10) for _ in range(2)]
            assert [(m.topic, m.text()) for m in messages] == [
                ("life/a", "rejected"),
                ("life/b", "tried"),
            ]
            await messages[0].reject("again")
            await queue.accept(messages[1], confirm=True)
        async for letter in client.dead_letters(where="dead_text = 'again'"):
            history = json.loads(str(letter.attributes["dead_history"]))
            assert [(one["mailbox"], one["reason"]) for one in history] == [("mortal", "rejected")]
        await client.purge("dead-letters")


@story
async def test_delayed_messages_outlive_the_node_and_can_be_cancelled(node: MortalNode) -> None:
    async with await connect(node) as client, client.queue("later") as queue:
        clock = asyncio.get_running_loop()
        began = clock.time()
        await client.publish("later", "soon", delay=3, confirm=True)
        wrong = client.new_id()
        await client.publish("later", "never", delay=60, message_id=wrong, confirm=True)
        await client.publish("later", "now", persistent=True)
        assert await texts(queue, 1) == ["now"]
        rows = await client.delayed()
        assert [row["topic"] for row in rows] == ["later", "later"]
        assert rows[1]["id"] == wrong
        node.kill()
        node.start()
        await until_connected(client)
        assert await client.cancel(wrong) == 1
        with pytest.raises(LocalError) as caught:
            await client.cancel(wrong)
        assert caught.value.code.name == "not-waiting"
        assert await texts(queue, 1) == ["soon"]
        assert clock.time() - began >= 3
        assert await client.delayed() == []
        with pytest.raises(RegraftError) as refused:
            await client.publish(
                "later", "x", deliver_at_us=2 * 10**15, confirm=True
            )  # a header of its own, without persistence
        assert refused.value.code.name == "not-supported"


async def until_connected(client: Client) -> None:
    async def there() -> bool:
        try:
            await client.inspect("node", timeout=2)
        except WorldError:
            return False
        return True

    await until(there)


# ----------------------------------------------------------------------- as a whole, shell


@story
async def test_queues_as_a_whole(node: MortalNode) -> None:
    async with await connect(node) as client, await connect(node) as other:
        row = await client.create_queue("whole", "whole/#", lease=5, max_deliveries=3)
        assert (row["name"], row["topic"], row["waiting"]) == ("whole", "whole/#", 0)
        await client.create_queue("whole", "whole/#", lease=5, max_deliveries=3)
        with pytest.raises(LocalError) as caught:
            await client.create_queue("whole", "other/#")
        assert caught.value.code.name == "mailbox-differs"
        with pytest.raises(LocalError) as caught:
            await client.queue("whole", lease=7).open()
        assert caught.value.code.name == "mailbox-differs"
        with pytest.raises(LocalError) as caught:
            await client.queue("absent", existing=True).open()
        assert caught.value.code.name == "unknown-mailbox"
        await client.change_queue("whole", lease=7)
        await publish(client, "whole/x", *range(10))
        async with other.queue("whole", in_flight=2) as queue:
            held = [await queue.next(10) for _ in range(2)]
            assert [m.text() async for m in client.browse("whole")] == [str(n) for n in range(10)]
            assert await client.purge("whole") == 8
            with pytest.raises(LocalError) as caught:
                await client.remove_queue("whole")
            assert caught.value.code.name == "mailbox-in-use"
            await queue.accept(*held, confirm=True)
        assert await client.seek("whole", 9) == 9
        await client.rename_queue("whole", "part")
        assert "part" in [row["name"] for row in await client.queues()]
        async with other.queue("part") as queue:
            assert await texts(queue, 2) == ["8", "9"]
            await queue.settled()
            await client.remove_queue("part", force=True)
            with pytest.raises(LocalError) as caught:
                await queue.next(10)
            assert caught.value.code.name == "unknown-mailbox"


@story
async def test_work_is_shared_and_given_back(node: MortalNode) -> None:
    async with await connect(node) as client, await connect(node) as other:
        seen: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.text() == "13" and message.attempts < 2:
                raise ValueError("not yet")
            await asyncio.sleep(0.01)
            seen.append(message.text())

        await client.create_queue("work")
        await publish(client, "work", *range(40))
        works = [
            await one.work("work", handle, concurrency=4, backoff=0.05) for one in (client, other)
        ]

        async def all_seen() -> bool:
            return len(seen) == 40

        await until(all_seen)
        for work in works:
            await work.stop(5)
        assert sorted(seen, key=int) == [str(n) for n in range(40)]
        assert all(work.handled > 0 for work in works)
        assert sum(work.failed for work in works) == 2
        assert (await client.show_queue("work"))["waiting"] == 0


def test_the_shell(node: MortalNode) -> None:
    def regraft(*arguments: str, exit_code: int = 0, input: str | None = None) -> str:
        url = ["--url", f"127.0.0.1:{node.port}"]
        result = CliRunner().invoke(cli.group, [*arguments[:2], *url, *arguments[2:]], input=input)
        assert result.exit_code == exit_code, result.output
        return result.stdout if exit_code == 0 else result.stderr

    assert regraft("queue", "create", "shell", "--topic", "shell/x") == "shell takes shell/x\n"
    regraft("queue", "send", "shell", "--lines", input="a\nb\nc\n")
    regraft("queue", "send", "shell", "urgent", "--priority", "9")
    assert "shell shell/x 4 0 0 0 0 no" in " ".join(regraft("queue", "list").split())
    assert json.loads(regraft("queue", "show", "shell", "--json"))["waiting"] == 4
    assert regraft("queue", "browse", "shell", "--body") == "a\nb\nc\nurgent\n"
    assert regraft("queue", "get", "shell", "-n", "2", "--body") == "urgent\na\n"
    assert "max_deliveries" in regraft("queue", "change", "shell", "--max-deliveries", "2")
    assert regraft("queue", "rename", "shell", "shell2") == "shell is shell2 now\n"
    assert "no mailbox" in regraft("queue", "get", "shell", exit_code=2)
    assert regraft("queue", "get", "shell2", "--all", "--raw") == "bc"
    assert regraft("queue", "seek", "shell2", "#2") == "shell2 goes on with #2\n"
    assert regraft("queue", "purge", "shell2").startswith("dropped")
    assert regraft("queue", "remove", "shell2").startswith("removed shell2, with 0 messages")

    assert regraft("topic", "create", "prices", "market/x", "--retain", "--keep", "1h") == (
        "prices is market/x, retained\n"
    )
    assert json.loads(regraft("topic", "show", "prices", "--json"))["topic"] == "market/x"
    assert "prices" in regraft("topic", "list")
    regraft("topic", "remove", "prices")
    assert "prices" in regraft("topic", "show", "prices", exit_code=2)

    regraft("pub", "shell/later", "tea", "--delay", "1h")
    (row,) = json.loads(regraft("delayed", "list", "--json"))["delayed"]
    assert row["topic"] == "shell/later"
    assert "shell/later" in regraft("delayed", "list")
    regraft("delayed", "cancel", str(row["id"]))
    assert json.loads(regraft("delayed", "list", "--json"))["count"] == 0

    regraft("queue", "create", "mortal-shell")
    regraft("queue", "send", "mortal-shell", "x")

    async def reject() -> None:
        async with await connect(node) as client, client.queue("mortal-shell") as queue:
            await (await queue.next(10)).reject("by hand", confirm=True)

    asyncio.run(reject())
    where = ["-w", "dead_mailbox = 'mortal-shell'"]
    (letter,) = regraft("dlq", "list", *where, "--json").splitlines()
    sequence = str(json.loads(letter)["sequence"])
    assert "by hand" in regraft("dlq", "list", *where)
    assert "by hand" in regraft("dlq", "show", sequence)
    assert regraft("dlq", "retry", sequence) == "gave back 1 dead letter\n"
    assert regraft("queue", "get", "mortal-shell", "--body") == "x\n"
    regraft("dlq", "purge")
    assert regraft("dlq", "list") == ""
    regraft("queue", "remove", "mortal-shell")
