"""A node that does as the test says, in memory: what a client sends it is there to be looked at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from regraft.client.dialling import Factory
from regraft.client.reading import Wire
from regraft.errors import RegraftError
from regraft.model.message import Message
from regraft.wire import native, peers

FRAME_MAX = 1 << 20


class FakeMailbox:
    """Accepts connections, one at a time, and answers; `subscribe` and `obey` may be replaced."""

    def __init__(self) -> None:
        self.got: list[Any] = []  # control messages and publications, as they came
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.subscribe: Callable[[native.Subscribe], list[Any]] = lambda wanted: [
            native.Subscribed(wanted.id)
        ]
        self.obey: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda what, arguments: {}
        self.settles = True  # whether SETTLED is answered
        self.here = True  # whether somebody listens
        self.published = 0
        self.id = 0  # of the last subscription
        self._wire: _Wire | None = None

    async def connect(self, factory: Factory, address: Any) -> Any:
        if not self.here:
            raise ConnectionRefusedError(111, "Connection refused")
        self.published = 0
        self._wire = _Wire(self, factory())
        return self._wire

    # ------------------------------------------------------------------------ for tests

    def all(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.got if isinstance(message, kind)]

    def settled(self) -> list[tuple[str, tuple[int, ...]]]:
        """Outcomes and ranges of all settlements that are about something."""
        return [(one.outcome.name, one.ranges) for one in self.all(native.Settle) if one.ranges]

    def send(self, *messages: Any) -> None:
        """All of them in one read."""
        assert self._wire is not None
        self._wire.deliver(b"".join(map(self._encode, messages)))

    def delivery(self, first: int, *texts: str, count: int = 0, id: int = 0) -> bytes:
        """A run of messages of the last subscription."""
        head = native.Transfer(len(texts), (id or self.id,), "", b"", first, count)
        frames = [native.encode(Message("orders", text.encode())) for text in texts]
        return native.encode(head) + b"".join(frames)

    def deliver(self, first: int, *texts: str, count: int = 0, id: int = 0) -> None:
        self.send(self.delivery(first, *texts, count=count, id=id))

    def cut(self) -> None:
        """The connection breaks."""
        wire, self._wire = self._wire, None
        assert wire is not None
        wire.close()

    @staticmethod
    def _encode(message: Any) -> bytes:
        return message if isinstance(message, bytes) else native.encode(message)

    # --------------------------------------------------------------------------- inside

    def receive(self, message: Any, wire: _Wire) -> None:
        if not isinstance(message, native.Heartbeat | native.Credit):
            self.got.append(message)
        if isinstance(message, native.Bye):
            wire.close()
            return
        answers = self._answers(message)
        if answers:
            wire.deliver(b"".join(map(self._encode, answers)))

    def _answers(self, message: Any) -> list[Any]:
        match message:
            case native.Hello():
                return [
                    native.Welcome(
                        version=native.VERSION,
                        node_name="fake",
                        client_id="c",
                        heartbeat_ms=10_000,
                        credit_messages=1000,
                        credit_bytes=1 << 20,
                        journal=b"j" * 16,
                    )
                ]
            case native.Subscribe():
                self.id = message.id
                return self.subscribe(message)
            case native.Unsubscribe():
                return [native.Unsubscribed(message.id)]
            case native.Settle(token=token) if token and self.settles:
                return [native.Settled(message.subscription, token)]
            case native.Heartbeat(token=token) if token and not message.answer:
                return [native.Heartbeat(token, True)]
            case Message():
                self.published += 1
                if message.delivery_mode:
                    return [native.Confirmed(self.published, 1, 1)]
            case peers.Command():
                arguments = json.loads(message.json)
                self.commands.append((message.what, arguments))
                try:
                    answer = self.obey(message.what, arguments)
                except RegraftError as error:
                    return [native.Error.of(error, token=message.token)]
                return [peers.Done(message.token, json.dumps(answer).encode())]
        return []


class _Wire(asyncio.Transport):
    """A connection in memory."""

    def __init__(self, node: FakeMailbox, protocol: Wire) -> None:
        super().__init__()
        self._node = node
        self._protocol = protocol
        self._data = b""
        self._gone = False
        self._opened = False
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._data += bytes(data)
        if not self._opened and len(self._data) >= len(native.PREFACE):
            self._opened = True
            self._data = self._data[len(native.PREFACE) :]
        while not self._gone:
            frame = native.read_frame(self._data, 0, FRAME_MAX)
            if frame is None:
                return
            kind, _, payload, end = frame
            self._data = self._data[end:]
            self._node.receive(native.decode(kind, payload), self)

    def deliver(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if not self._gone:
            self._protocol.data_received(data)

    def close(self) -> None:
        if not self._gone:
            self._gone = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._gone
