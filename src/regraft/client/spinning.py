"""Clients that look for more before they sleep: all of an event loop do it together."""

from __future__ import annotations

import asyncio
import os
import time
from weakref import WeakKeyDictionary, proxy

from regraft.kernels.spinning import Spin

SPINS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Spin]] = WeakKeyDictionary()


def spin_of(loop: asyncio.AbstractEventLoop, spin_us: int) -> Spin | None:
    """Who is to be told of every read; None if nobody looks for more."""
    give_way = getattr(os, "sched_yield", None)
    if spin_us == 0 or give_way is None:
        return None
    spins = SPINS.setdefault(loop, {})
    if spin_us not in spins:
        here = proxy(loop)  # or no loop would ever be let go
        spins[spin_us] = Spin(
            lambda look: here.call_soon(look), spin_us, time.monotonic_ns, give_way
        )
    return spins[spin_us]
