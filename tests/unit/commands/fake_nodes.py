"""Nodes that only answer INSPECT and COMMAND, in a thread: what they say is up to the test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from regraft.errors import RegraftError
from regraft.wire import native, peers

FRAME_MAX = 1 << 20


class FakeNode:
    """One of them. `obey` does what a command says, or raises why not."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.id = f"{number:02x}" * 16
        self.address = ""
        self.parent: FakeNode | None = None
        self.children: list[FakeNode] = []
        self.hops = 0
        self.clients = 0
        self.silent = False
        self.says: dict[str, Any] | None = None  # instead of its topology
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.obey: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda what, arguments: {}
        self.answers_else: Callable[[Any], list[Any]] = lambda message: []  # to all else
        self.goes_after: str = ""  # the command after which it hangs up
        self.says_bye: list[native.Control] = []  # instead of an answer to it
        self._links: dict[tuple[str, bool], int] = {}  # their connections
        self.server: asyncio.Server | None = None

    def topology(self) -> dict[str, Any]:
        if self.says is not None:
            return self.says
        above = [self.parent] if self.parent is not None else []
        return {
            "id": self.id,
            "name": self.name,
            "incarnation": 1,
            "address": self.address,
            "root": self.top().id,
            "parent": self.parent.id if self.parent is not None else None,
            "children": [child.id for child in self.children],
            "hops": self.hops,
            "asking": False,
            "links": [self._link(one, True) for one in above]
            + [self._link(one, False) for one in self.children],
        }

    def top(self) -> FakeNode:
        return self if self.parent is None else self.parent.top()

    def _link(self, other: FakeNode, parent: bool) -> dict[str, Any]:
        key = self._links.setdefault((other.id, parent), len(self._links) + 1)
        return {
            "connection": key,
            "node": other.id,
            "address": other.address,
            "parent": parent,
            "rtt_us": 250,
        }

    # ------------------------------------------------------------------------ inside

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(native.PREFACE))
        while True:
            head = await reader.readexactly(4)
            data = head + await reader.readexactly(int.from_bytes(head, "little"))
            frame = native.read_frame(data, 0, FRAME_MAX)
            assert frame is not None
            message = native.decode(frame[0], frame[2])
            if self.silent:
                continue
            if isinstance(message, native.Bye):
                return
            for answer in self._answers(message):
                writer.write(native.encode(answer))
            await writer.drain()
            if isinstance(message, peers.Command) and message.what == self.goes_after:
                return

    def _answers(self, message: Any) -> list[Any]:
        match message:
            case native.Hello():
                return [
                    native.Welcome(
                        version=native.VERSION,
                        node_id=bytes.fromhex(self.id),
                        node_name=self.name,
                        client_id="c",
                        heartbeat_ms=10_000,
                        credit_messages=1000,
                        credit_bytes=1 << 20,
                    )
                ]
            case native.Inspect(what="topology"):
                return [native.Inspected("topology", json.dumps(self.topology()).encode())]
            case native.Inspect(what=what):
                counters = {"id": self.id, "sessions": self.clients + 1}
                return [native.Inspected(what, json.dumps(counters).encode())]
            case peers.Command():
                arguments = json.loads(message.json)
                self.commands.append((message.what, arguments))
                if message.what == self.goes_after and self.says_bye:
                    return self.says_bye
                try:
                    answer = self.obey(message.what, arguments)
                except RegraftError as error:
                    return [native.Error.of(error, token=message.token)]
                return [peers.Done(message.token, json.dumps(answer).encode())]
        return self.answers_else(message)


class FakeNodes:
    """Some of them, on ports of their own. Use it as a context."""

    def __init__(self, *names: str) -> None:
        self.nodes = [FakeNode(name, number) for number, name in enumerate(names, 1)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FakeNodes:
        self._thread.start()
        for node in self.nodes:
            asyncio.run_coroutine_threadsafe(self._start(node), self._loop).result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __getitem__(self, name: str) -> FakeNode:
        return next(node for node in self.nodes if node.name == name)

    def kill(self, name: str) -> None:
        """Nobody listens at its address any more."""
        server = self[name].server
        assert server is not None
        self._loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(10)

    def place(self, child: str, parent: str) -> None:
        """One is below another."""
        below, above = self[child], self[parent]
        below.parent, below.hops = above, above.hops + 1
        above.children.append(below)

    @staticmethod
    async def _start(node: FakeNode) -> None:
        node.server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
        node.address = f"127.0.0.1:{node.server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        for node in self.nodes:
            assert node.server is not None
            node.server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
