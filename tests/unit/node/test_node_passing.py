"""A step in which messages only pass through ends at once: it could have changed nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Client, KeepingWorld, World, publication

from regraft.model.message import DeliveryMode
from regraft.node.event import Received, Tick, Unsent
from regraft.node.node import Node
from regraft.wire import native


class Ends:
    """Counts the ends of steps at which everything is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        end: Callable[..., None] = Node._end

        def counting(*arguments: object) -> None:
            self.count += 1
            end(*arguments)

        monkeypatch.setattr(Node, "_end", counting)

    def of(self, world: World, *events: object) -> int:
        before = self.count
        world.step_once(*events)  # type: ignore[arg-type]
        return self.count - before


def said(client: Client, *parts: object) -> Received:
    return Received(client.key, memoryview(client.encoded(*parts)))  # type: ignore[arg-type]


def test_messages_that_pass_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = KeepingWorld()
    taker, publisher = world.subscriber("t"), world.connect()
    ends = Ends(monkeypatch)
    assert ends.of(world, said(publisher, publication("1"))) == 0
    both = said(publisher, publication("2"), publication("3"))
    assert ends.of(world, Received(both.connection, both.data[:-5])) == 0  # and half a one
    assert ends.of(world, Received(both.connection, both.data[-5:])) == 0
    assert taker.bodies() == [b"1", b"2", b"3"]
    assert ends.of(world, Unsent(taker.key, 0)) == 0


def test_whatever_else_happens_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world = KeepingWorld()
    publisher = world.connect()
    ends = Ends(monkeypatch)
    assert ends.of(world, Tick()) == 1
    assert ends.of(world, said(publisher, native.Subscribe(1, "t"))) == 1
    assert ends.of(world, said(publisher, publication("1"), native.Unsubscribe(1))) == 1
    assert ends.of(world, said(publisher, publication("1")), Tick()) == 1
    assert ends.of(world, said(publisher, native.Credit(1 << 20, 1 << 30))) == 1  # of a client
    assert ends.of(world, Received(publisher.key, memoryview(b"nonsense" * 3))) > 0
    assert publisher.closed


def test_what_is_kept_is_written_at_the_end_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    world = KeepingWorld()
    world.reader("printer")
    publisher = world.connect()
    ends = Ends(monkeypatch)
    message = publication("kept", delivery_mode=DeliveryMode.PERSISTENT)
    assert ends.of(world, said(publisher, message)) == 1
    assert ends.of(world, said(publisher, publication("passes"))) == 1  # something is on its way
    world.persist()
    assert ends.of(world, said(publisher, publication("passes, too"))) == 0


def test_a_mailbox_goes_on_when_its_reader_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    world = KeepingWorld(write_bytes=1000)
    reader, publisher = world.reader("printer"), world.connect()
    reader.stop_reading()
    for number in range(50):
        publisher.send(publication("x" * 200 + str(number), delivery_mode=DeliveryMode.PERSISTENT))
    world.persist()
    ends = Ends(monkeypatch)
    reader.start_reading()
    assert ends.count > 0
    assert [int(body[200:]) for body in reader.bodies()] == list(range(50))
