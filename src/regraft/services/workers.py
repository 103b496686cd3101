"""Workers: tasks that handle requests, one after the other, for one service or several.

Most handlers are at their end after their first step. So a request gets no task of its own: a
worker handles all that are ready in one turn, and only if one of them waits for something, another
worker goes on with the rest.
"""

from __future__ import annotations

import asyncio

from regraft.kernels.desk import Ready

IDLERS_MAX = 16  # workers that stay when there is nothing to do


class Workers:
    """As many as there are handlers that wait, and one more."""

    def __init__(self) -> None:
        self.ready = Ready(self._wake)
        self._idlers: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def _wake(self) -> None:
        """Have a worker come in the next turn."""
        while self._idlers:
            idler = self._idlers.pop()
            if not idler.done():
                idler.set_result(None)
                return
        self._tasks.add(task := asyncio.get_running_loop().create_task(self._work()))
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Handle what is ready, one after the other. A handler that is cancelled ends it, too."""
        loop = asyncio.get_running_loop()
        ready = self.ready
        while True:
            try:
                request = ready.work()
            finally:
                if ready.left():
                    self._wake()  # while this one waits, or if it has come to its end
            if request is not None:
                await request.desk.service.handle_on(request)
            elif len(self._idlers) >= IDLERS_MAX:
                return
            else:
                self._idlers.append(future := loop.create_future())
                await future

    async def close(self) -> None:
        """End those that have nothing to do, and all others."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
