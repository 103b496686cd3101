"""What tests of transactions say often: begin, add to it, decide."""

from __future__ import annotations

from typing import Any

from harness import Client, KeepingWorld, publication
from queues import letter

from regraft.model.message import Message
from regraft.wire import native
from regraft.wire.native import Decision, TransactionState

COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
PREPARED, UNKNOWN = TransactionState.PREPARED, TransactionState.UNKNOWN


def frames(*messages: Message) -> bytes:
    """Messages as they stand in a TRANSACT."""
    return b"".join(native.encode(message) for message in messages)


def letters(*bodies: Any, topic: str = "t", **more: Any) -> bytes:
    """Persistent messages."""
    return frames(*(letter(body, topic, **more) for body in bodies))


def passing(*bodies: Any, topic: str = "t") -> bytes:
    """Messages that are not."""
    return frames(*(publication(body, topic) for body in bodies))


def accept(*sequences: int, subscription: int = 1) -> tuple[native.Settle, ...]:
    ranges = tuple(end for sequence in sequences for end in (sequence, sequence))
    return (native.Settle(subscription, ranges),)


def part(serial: int = 1, messages: bytes = b"", **more: Any) -> native.Transact:
    return native.Transact(serial, messages, **more)


def decide(
    client: Client, decision: Decision, serial: int = 0, gid: str = "", parts: int = 1
) -> None:
    client.send(native.Decide(serial, gid, decision, parts))


def commit(world: KeepingWorld, client: Client, *parts: native.Transact) -> native.Decided:
    """Do it, and have it persisted; the answer."""
    client.send(*parts, native.Decide(parts[0].serial, parts=len(parts)))
    world.persist()
    return answer(client)


def prepare(
    world: KeepingWorld, client: Client, gid: str, *parts: native.Transact
) -> native.Decided:
    serial = parts[0].serial if parts else 1
    client.send(*parts, native.Decide(serial, gid, Decision.PREPARE, len(parts)))
    world.persist()
    return answer(client)


def ask(
    world: KeepingWorld, client: Client, decision: Decision, serial: int = 0, gid: str = ""
) -> native.Decided:
    decide(client, decision, serial, gid, 0)
    world.persist()
    return answer(client)


def answer(client: Client) -> native.Decided:
    """The one answer that came; deliveries stay for others to see."""
    client._parse()
    found = [one for one in client.news if isinstance(one, native.Decided)]
    client.news = [one for one in client.news if not isinstance(one, native.Decided)]
    (only,) = found
    return only
