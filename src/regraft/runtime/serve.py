"""`regraft serve`: one node in one process, until somebody stops it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from regraft import __version__, kernels
from regraft.config import Config, warnings
from regraft.node.node import Node
from regraft.runtime.clock import Clock
from regraft.runtime.datafolder import DataFolder
from regraft.runtime.driver import Driver
from regraft.runtime.log import configure, notify_ready, notify_stopping

log = logging.getLogger("regraft.node")


def run(config: Config) -> int:
    """Run a node; the exit code."""
    configure(config.log_level, config.log_format)
    kernels.require_compiled()
    for warning in warnings(config):
        log.warning("%s", warning)
    with DataFolder.open(config.data, config.name) as folder:
        node = Node(folder.identity, config.limits, config.heartbeat_ms, random.SystemRandom())
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            failed = runner.run(_serve(node, config))
    return 1 if failed else 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        log.warning("uvloop is not installed; the standard event loop is slower")
        return None
    return uvloop.new_event_loop


async def _serve(node: Node, config: Config) -> bool:
    loop = asyncio.get_running_loop()
    driver = Driver(node, Clock(), loop, config.spin_us)
    host, port = driver.listen(config.host, config.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, driver.stop, f"the node got {number.name}")
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: nothing to read again yet")
    _announce(node, host, port)
    gc.collect()
    gc.freeze()  # what exists now stays: never look at it again
    notify_ready()
    try:
        await driver.stopped.wait()
    finally:
        notify_stopping()
        driver.shut()
        log.info("stopped; %s", _summary(node))
    return driver.failed


def _announce(node: Node, host: str, port: int) -> None:
    log.info(
        "node %s (%s, start %d) runs %s kernels",
        node.identity.name,
        node.identity.hex[:8],
        node.identity.incarnation,
        kernels.describe(),
    )
    if not kernels.is_compiled():
        log.warning(
            "the kernels are not compiled: everything works, but many times slower; "
            "install a C compiler and reinstall"
        )
    log.info("listening on %s:%d", host, port)
    if "NOTIFY_SOCKET" not in os.environ:  # somebody looks at it
        command = _command()
        elsewhere = "" if port == 7447 else f" --url {host}:{port}"
        print(
            f"Regraft {__version__}: connect to {host}:{port}. Try, in two other terminals:\n"
            f"  {command} sub 'news/#'{elsewhere}\n"
            f"  {command} pub news/eu 'hello'{elsewhere}",
            flush=True,
        )


def _command() -> str:
    """How to call this program here."""
    if shutil.which("regraft"):
        return "regraft"
    script = Path(sys.executable).with_name("regraft")
    if not script.exists():
        return f"{sys.executable} -m regraft"
    return os.path.relpath(script)


def _summary(node: Node) -> str:
    counters = node.snapshot()
    return f"{counters['messages']} messages in, {counters['deliveries']} deliveries"
