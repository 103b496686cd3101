"""The processes of `bench.services`: many services or clients of one library in each.

    python -m bench.service_workers '{"role": "echo-services", "library": "regraft", ...}'

A worker says `ready` when all of its connections stand, begins when it reads a line, and says what
it has measured as one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

REGRAFT, NATS, RABBITMQ = "regraft", "nats", "rabbitmq"

# How connections are used: each peer has its own; all of a process share one; or there is one peer
# that all callers ask. For nats-py the last two are the same. A peer that is on the machine of its
# node uses a local socket, which nats-server has not; TCP is what sharing costs without that.
OWN, SHARED, ONE, TCP = "own", "shared", "one peer", "shared, TCP"
TIMEOUT_S = 60.0

Ask = Callable[[bytes], Awaitable[Any]]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def told() -> None:
    """Wait for a line: it is time to begin, or to end."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


# --------------------------------------------------------------------------------- echo


async def echo_services(job: dict[str, Any]) -> None:
    """Services, each with a connection of its own, or all on one."""
    closing = []
    where: Any = job["nodes"]
    client: Any = None
    if job["way"] != OWN and job["library"] == REGRAFT:
        from regraft.services import Trunk

        where = Trunk(job["nodes"], local=job["way"] != TCP)
    for _ in range(job["services"]):
        if job["library"] == REGRAFT:
            from regraft.services import Service

            service = Service("ECHO", where)

            @service.handle("ECHO_REQUEST")
            async def echo(body: bytes) -> bytes:
                return body

            await service.open()
            closing.append(service.close)
        else:
            import nats

            if client is None or job["way"] == OWN:
                client = await nats.connect(job["nodes"])

            async def answer(message: Any) -> None:
                await message.respond(message.data)

            await client.subscribe("echo", queue="ECHO", cb=answer)
            await client.flush()
            closing.append(client.close)
    say(ready=True)
    await told()
    await asyncio.gather(*(close() for close in closing))
    if where is not job["nodes"]:
        await where.close()


def say_times(seconds: float, took: list[float]) -> None:
    took.sort()
    count = len(took)
    say(
        seconds=seconds,
        requests=count,
        p50_ms=1000 * took[count // 2],
        p99_ms=1000 * took[min(count - 1, count * 99 // 100)],
        cpu=time.process_time(),
    )


async def askers(job: dict[str, Any]) -> tuple[list[Ask], list[Any]]:
    """Clients, as the way says: how to ask, and to close."""
    asking: list[Ask] = []
    closing: list[Any] = []
    shares = job["way"] in (SHARED, TCP) and job["library"] == REGRAFT
    where: Any = job["nodes"]
    if shares:
        from regraft.services import Trunk

        where = Trunk(job["nodes"], local=job["way"] != TCP)
    for _ in range(job["clients"] if job["way"] == OWN or shares else 1):
        if job["library"] == REGRAFT:
            from regraft.services import Peer

            peer = await Peer(where).open()

            async def ask(body: bytes, peer: Any = peer) -> Any:
                return (await peer.query("ECHO_REQUEST", body, timeout=TIMEOUT_S)).body

            asking.append(ask)
            closing.append(peer.close)
        else:
            import nats

            client = await nats.connect(job["nodes"])

            async def ask_nats(body: bytes, client: Any = client) -> Any:
                return (await client.request("echo", body, timeout=TIMEOUT_S)).data

            asking.append(ask_nats)
            closing.append(client.close)
    if shares:
        closing.append(where.close)
    return [asking[k % len(asking)] for k in range(job["clients"])], closing


async def echo_clients(job: dict[str, Any]) -> None:
    """Each client asks one thing after the other; or all together at a rate."""
    asking, closing = await askers(job)
    body = b"x" * job["bytes"]
    for ask in asking:
        assert await ask(body) == body
    say(ready=True)
    await told()
    gc.collect()
    gc.freeze()
    took: list[float] = []
    clock = time.perf_counter

    async def in_turn(ask: Ask) -> None:
        for _ in range(job["each"]):
            began = clock()
            answer = await ask(body)
            took.append(clock() - began)
            assert answer == body

    async def once(ask: Ask, due: float) -> None:
        answer = await ask(body)
        took.append(clock() - due)  # from when it should have been asked: waiting counts
        assert answer == body

    async def at_rate(rate: float, total: int) -> None:
        tasks = []
        first = clock() + 0.01
        for k in range(total):
            due = first + k / rate
            while (wait := due - clock()) > 0:
                await asyncio.sleep(wait if wait > 0.002 else 0)
            tasks.append(asyncio.ensure_future(once(asking[k % len(asking)], due)))
        await asyncio.gather(*tasks)

    began = clock()
    if job.get("rate"):
        await at_rate(job["rate"], job["each"] * len(asking))
    else:
        await asyncio.gather(*map(in_turn, asking))
    say_times(clock() - began, took)
    await asyncio.gather(*(close() for close in closing))


# ------------------------------------------------------------------------- notifications


async def receivers(job: dict[str, Any]) -> None:
    """Each receiver is done when it has all; the process when all of its receivers are."""
    expected = job["messages"]
    closing = []
    counts = [0] * job["services"]
    waiting = set(range(job["services"]))
    done = asyncio.Event()

    def note(k: int) -> None:
        counts[k] += 1
        if counts[k] == expected:
            waiting.discard(k)
            if not waiting:
                done.set()

    for k in range(job["services"]):
        if job["library"] == REGRAFT:
            from regraft.services import Peer

            class Receiver(Peer):
                place = k

                def take_request(self, *news: Any) -> None:
                    note(self.place)

            peer = await Receiver(job["nodes"], type="RECEIVER").open()
            closing.append(peer.close)
        else:
            import nats

            client = await nats.connect(job["nodes"], pending_size=1 << 27)

            async def taken(message: Any, k: int = k) -> None:
                note(k)

            await client.subscribe(
                "note", cb=taken, pending_msgs_limit=1 << 22, pending_bytes_limit=1 << 30
            )
            await client.flush()
            closing.append(client.close)
    say(ready=True)
    try:
        async with asyncio.timeout(job["patience"]):
            await done.wait()
    except TimeoutError:
        pass
    say(received=sum(counts), expected=expected * len(counts), at=time.time())
    await told()
    await asyncio.gather(*(close() for close in closing), return_exceptions=True)


async def senders(job: dict[str, Any]) -> None:
    """Each sends its messages one after the other: plain, or as events."""
    body = b"x" * job["bytes"]
    sending = []
    closing = []
    for _ in range(job["clients"]):
        if job["library"] == REGRAFT:
            from regraft.services import Peer

            peer = await Peer(job["nodes"]).open()
            how: Any = peer.event if job.get("event") else peer.send

            async def send(how: Any = how, peer: Any = peer) -> None:
                for _ in range(job["each"]):
                    try:
                        await how("NOTE", body)
                    except Exception as error:  # a plain message that a dead node took is lost
                        if job.get("event"):
                            raise
                        print(error, file=sys.stderr)

            sending.append(send)
            closing.append(peer.close)
        else:
            import nats

            client = await nats.connect(job["nodes"])

            async def send_nats(client: Any = client) -> None:
                for k in range(job["each"]):
                    await client.publish("note", body)
                    if k % 100 == 99:
                        await client.flush()  # or the server drops receivers that are behind
                await client.flush()

            sending.append(send_nats)
            closing.append(client.close)
    say(ready=True)
    await told()
    began = time.time()
    await asyncio.gather(*(send() for send in sending))
    say(began=began, seconds=time.time() - began)
    await told()
    await asyncio.gather(*(close() for close in closing), return_exceptions=True)


# ------------------------------------------------------------------------------ RabbitMQ


def rabbit_services(job: dict[str, Any]) -> None:
    """RPC as pika's tutorial has it: a queue that services share, a reply queue for each client."""
    import pika

    def serve(ready: threading.Barrier) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=int(job["nodes"])))
        channel = connection.channel()
        channel.queue_declare("echo")
        channel.basic_qos(prefetch_count=1)

        def answer(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            about = pika.BasicProperties(correlation_id=properties.correlation_id)
            channel.basic_publish("", properties.reply_to, body, about)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume("echo", answer)
        ready.wait()
        channel.start_consuming()

    ready = threading.Barrier(job["services"] + 1)
    for _ in range(job["services"]):
        threading.Thread(target=serve, args=(ready,), daemon=True).start()
    ready.wait()
    say(ready=True)
    sys.stdin.readline()


def rabbit_clients(job: dict[str, Any]) -> None:
    import pika

    body = b"x" * job["bytes"]
    took: list[float] = []
    ready = threading.Barrier(job["clients"] + 1)

    def ask() -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=int(job["nodes"])))
        channel = connection.channel()
        answers: list[bytes] = []
        channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda *news: answers.append(news[3]), auto_ack=True
        )
        about = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
        ready.wait()
        ready.wait()
        for _ in range(job["each"]):
            began = time.perf_counter()
            channel.basic_publish("", "echo", body, about)
            while not answers:
                connection.process_data_events(TIMEOUT_S)
            assert answers.pop() == body
            took.append(time.perf_counter() - began)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(job["clients"])]
    for thread in threads:
        thread.start()
    ready.wait()
    say(ready=True)
    sys.stdin.readline()
    began = time.perf_counter()
    ready.wait()
    for thread in threads:
        thread.join()
    say_times(time.perf_counter() - began, took)


ROLES = {
    "echo-services": echo_services,
    "echo-clients": echo_clients,
    "receivers": receivers,
    "senders": senders,
}

if __name__ == "__main__":
    import uvloop

    told_job = json.loads(sys.argv[1])
    if told_job["library"] == RABBITMQ:
        rabbit = {"echo-services": rabbit_services, "echo-clients": rabbit_clients}
        rabbit[told_job["role"]](told_job)
    else:
        uvloop.run(ROLES[told_job["role"]](told_job))
