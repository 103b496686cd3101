"""Run a function in a process of its own, one that has done nothing before."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psutil

SPAWN = multiprocessing.get_context("spawn")


class FailedError(Exception):
    """The process gave no result; the text says why."""


def run(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """What the function returned there; after so many seconds the process is ended."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_call, args=(there, function, arguments), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(seconds):
            raise FailedError(f"no result within {seconds:.0f} s")
        good, result = here.recv()
    except EOFError:
        process.join()
        raise FailedError(f"the process ended with code {process.exitcode}") from None
    finally:
        if process.is_alive():
            process.join(2)
        if process.is_alive():
            process.kill()
        process.join()
    if not good:
        raise FailedError(result)
    return result


def _call(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((True, function(*arguments)))
    except Exception:
        pipe.send((False, traceback.format_exc(limit=-3).strip()))


def rss_bytes() -> int:
    """Memory of this process that is resident now, without what only waits to be collected."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def overhead_us(turns: int = 20_000) -> float:
    """Processor time that `timed` adds to what it measures."""
    took = sorted(timed(lambda _: None, None)[1] for _ in range(turns))
    return took[turns // 2]


def timed(function: Callable[[Any], object], argument: Any) -> tuple[float, float]:
    """One call: time that passed, and time that a processor worked on it, in µs.

    The second leaves out what other processes took from this one.
    """
    worked, began = time.thread_time_ns(), time.perf_counter_ns()
    function(argument)
    ended = time.perf_counter_ns()
    return (ended - began) / 1e3, (time.thread_time_ns() - worked) / 1e3
