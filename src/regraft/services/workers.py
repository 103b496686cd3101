"""Workers: tasks that handle requests, one after the other, for one service or several.

Most handlers are at their end after their first step. So a request gets no task of its own: a
worker handles all that are ready in one turn, and only if one of them waits for something, another
worker goes on with the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque

from regraft.kernels.calls import Request

IDLERS_MAX = 16  # workers that stay when there is nothing to do


class Workers:
    """As many as there are handlers that wait, and one more."""

    def __init__(self) -> None:
        self.ready: deque[Request] = deque()  # may be handled now, and nobody does yet
        self._dispatching = False
        self._idlers: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, request: Request) -> None:
        """Have this handled in the next turn."""
        self.ready.append(request)
        if not self._dispatching:
            self._dispatching = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Have one worker take what is ready; if it has to wait for something, another one."""
        assert self._loop is not None
        if not self.ready:
            self._dispatching = False
            return
        while self._idlers:
            idler = self._idlers.pop()
            if not idler.done():
                idler.set_result(None)
                break
        else:
            self._tasks.add(task := self._loop.create_task(self._work()))
            task.add_done_callback(self._tasks.discard)
        self._loop.call_soon(self._dispatch)  # that is when the worker has made its step

    async def _work(self) -> None:
        """Handle what is ready, one after the other. A handler that is cancelled ends it, too."""
        assert self._loop is not None
        ready = self.ready
        while True:
            while ready:
                request = ready.popleft()
                service = request.service
                try:
                    waits = service.handle_at_once(request)
                    if waits is not None:
                        await service.handle_on(request, waits)
                finally:
                    service.handled(request)
            if len(self._idlers) >= IDLERS_MAX:
                return
            self._idlers.append(future := self._loop.create_future())
            await future

    def forget(self, service: object) -> list[Request]:
        """What is ready is not to be handled any more, if it is for this service."""
        mine = [request for request in self.ready if request.service is service]
        others = [request for request in self.ready if request.service is not service]
        self.ready.clear()
        self.ready.extend(others)
        return mine

    async def close(self) -> None:
        """End those that have nothing to do, and all others."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
