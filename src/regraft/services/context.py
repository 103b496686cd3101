"""What a request carries along: the task it belongs to, its deadline, and who asks.

A handler runs within the context of its request; what it asks of others belongs to the same
workflow and has no more time than is left.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import NamedTuple

from regraft.kernels.desk import Request


class Context(NamedTuple):
    """The context of a request. `deadline` is in seconds since 1970; 0: there is none."""

    workflow: bytes = b""
    deadline: float = 0.0
    caller: str = ""
    id: int = 0
    type: str = ""

    @property
    def remaining(self) -> float | None:
        """How many seconds are left; None if nobody waits."""
        return max(0.0, self.deadline - time.time()) if self.deadline else None


NOWHERE = Context()
REQUEST: ContextVar[Request | None] = ContextVar("regraft-request", default=None)


def current() -> Context:
    """The context of the request that is being handled; an empty one if none is."""
    request = REQUEST.get()
    if request is None:
        return NOWHERE
    if request.about is None:
        request.about = Context(
            request.workflow or request.id.to_bytes(8, "little"),
            request.until_us / 1e6,
            request.sender.decode(errors="replace"),
            request.id,
            request.type,
        )
    about: Context = request.about
    return about
