"""What tests of mailboxes say often: publish, take, settle, command."""

from __future__ import annotations

import json
from typing import Any

from harness import Client, Delivered, KeepingWorld, publication

from regraft.model.message import DeliveryMode, Message
from regraft.wire import native, peers

Outcome = native.Outcome
ACCEPT, RELEASE, REJECT, EXTEND = Outcome.ACCEPT, Outcome.RELEASE, Outcome.REJECT, Outcome.EXTEND
SHARED = b'{"shared": true}'


def options(**more: Any) -> bytes:
    """Options of a mailbox that several share."""
    return json.dumps({"shared": True, **more}).encode()


def letter(body: Any, topic: str = "t", **more: Any) -> Message:
    """A persistent message."""
    return publication(body, topic, delivery_mode=DeliveryMode.PERSISTENT, **more)


def publish(world: KeepingWorld, *bodies: Any, topic: str = "t", **more: Any) -> list[Any]:
    """Publish, and have it persisted; what the publisher was told."""
    client = world.connect()
    client.send(*(letter(body, topic, **more) for body in bodies))
    world.persist()
    told = client.take()
    client.leave()
    return told


def member(world: KeepingWorld, name: str = "q", topic: str = "t", **more: Any) -> Client:
    """One more member of a mailbox that is shared."""
    client = world.reader(name, topic, **{"options": SHARED, **more})
    client._parse()
    assert isinstance(client.news[0], native.Subscribed), client.news
    return client


def got(client: Client) -> list[str]:
    """The bodies of what came since the last look."""
    return [one.text for one in deliveries(client)]


def counted(client: Client) -> list[tuple[str, int]]:
    """The same, and how often each was tried before."""
    return [(one.text, one.attempts) for one in deliveries(client)]


def deliveries(client: Client) -> list[Delivered]:
    return [one for one in client.take() if isinstance(one, Delivered)]


def message_of(one: Delivered) -> Message:
    found = native.decode(7, one.frame[12:])
    assert isinstance(found, Message)
    return found


def settle(
    world: KeepingWorld, client: Client, *sequences: int, token: int = 0, **more: Any
) -> None:
    """What becomes of single messages."""
    ranges = tuple(end for sequence in sequences for end in (sequence, sequence))
    client.send(native.Settle(1, ranges, token, **more))
    world.persist()


def command(world: KeepingWorld, what: str, **arguments: Any) -> dict[str, Any]:
    """The answer, or {"error": name}."""
    client = world.connect()
    client.send(peers.Command(1, what, json.dumps(arguments).encode()))
    world.persist()
    (answer,) = client.take()
    client.leave()
    world.persist()
    if isinstance(answer, native.Error):
        return {"error": answer.name}
    assert isinstance(answer, peers.Done)
    found: dict[str, Any] = json.loads(answer.json)
    return found


def row(world: KeepingWorld, name: str = "q") -> dict[str, Any]:
    """What the node says of a mailbox."""
    found: dict[str, Any] = command(world, "queue-show", name=name)["queue"]
    return found


def error(client: Client) -> str:
    """The name of the one error that came."""
    (found,) = [one for one in client.take() if isinstance(one, native.Error)]
    return found.name


def make(world: KeepingWorld, name: str = "q", topic: str = "t", **more: Any) -> None:
    """A mailbox that nobody reads yet."""
    answer = command(world, "queue-create", name=name, topic=topic, options={"shared": True} | more)
    assert "queue" in answer, answer


def forget_tail(world: KeepingWorld) -> None:
    """From now on, what was persisted so far has to be read from the disk."""
    tail = world.journal.tail
    del tail._blocks[:], tail._starts[:]
