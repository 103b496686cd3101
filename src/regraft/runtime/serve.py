"""`regraft serve`: one node in one process, until somebody stops it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import random
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from regraft import __version__, kernels
from regraft.config import Config, addresses, warnings
from regraft.errors import LocalError
from regraft.journal.journal import Journal
from regraft.journal.recovery import recover
from regraft.journal.retention import KEEP, Retention
from regraft.journal.walking import SegmentView
from regraft.node.network import Joining
from regraft.node.node import Node
from regraft.node.storage import Retained
from regraft.overlay.options import Options
from regraft.runtime.aside import Aside
from regraft.runtime.clock import Clock
from regraft.runtime.datafolder import DataFolder
from regraft.runtime.dialling import shown
from regraft.runtime.disk import Disk, Reports
from regraft.runtime.driver import Driver
from regraft.runtime.log import configure, notify_ready, notify_stopping
from regraft.runtime.plugins import load_filters
from regraft.runtime.segments import open_segments, remove_leftovers

log = logging.getLogger("regraft.node")

OLDEST_GENERATION = 2  # of the garbage collector
ENDING = (signal.SIGTERM, signal.SIGINT)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in malloc.h
FREE_BYTES = 32 << 20  # that are kept, to be used again,
APART_BYTES = 4 << 20  # of pieces that are no larger


def run(config: Config) -> int:
    """Run a node; the exit code."""
    configure(config.log_level, config.log_format)
    kernels.require_compiled()
    keep_memory()
    for warning in warnings(config):
        log.warning("%s", warning)
    with DataFolder.open(config.data, config.name) as folder:
        node = Node(folder.identity, config.limits, config.heartbeat_ms, random.SystemRandom())
        if config.rules:
            node.load_rules(read_rules(config.rules), config.rules)
        node.filters.learn(load_filters(addresses(config.filters)))
        node.filters.clock = time.thread_time_ns
        journal = open_journal(folder.path / "journal", config)
        # Between what Python does about them and what the node does, a signal could be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            failed = runner.run(_serve(node, journal, folder.path / "journal", config))
    return 1 if failed else 0


def read_rules(file: str) -> str:
    """The text of a file of rules."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LocalError(
            "bad-configuration", f"cannot read the rules in {file}: {reason}"
        ) from None


def open_journal(folder: Path, config: Config) -> Journal:
    """Recover what the journal in a folder says; a new one if there is none."""
    began = time.monotonic()
    now_us = time.time_ns() // 1000
    with open_segments(folder) as segments:
        views = [SegmentView(*segment) for segment in segments]
        recovered = recover(views, config.limits.segment_bytes, secrets.token_hex(16), now_us)
    remove_leftovers(folder, recovered.leftovers)
    for finding in recovered.findings:
        log.warning("journal: %s", finding)
    kept = {
        stream.name: Retention(stream.keep_s * 1_000_000, stream.keep_bytes)
        for stream in config.streams
    }
    journal = Journal(recovered, config.limits, now_us, lambda name: kept.get(name, KEEP))
    counters = journal.snapshot_counters()
    log.info(
        "journal: %d segments, %d mailboxes, %d streams, position %d, read in %.2f s",
        counters["segments"],
        counters["mailboxes"],
        counters["streams"],
        recovered.position,
        time.monotonic() - began,
    )
    return journal


def joining(config: Config, host: str, port: int) -> Joining:
    """How a node takes part in the network, as its configuration says."""
    bug = os.environ.get("REGRAFT_BUG", "")
    return Joining(
        address=config.advertise or shown(host, port),
        overlay=Options(
            seeds=tuple(addresses(config.join)),
            parent=config.parent,
            max_degree=config.max_degree,
            beacon_ms=config.beacon_ms,
        ),
        reconfiguration=config.reconfiguration,
        deferral_ms=config.deferral_ms,
        covering=config.covering == "on",
        bugs=frozenset({bug} if bug else ()),
        advertisements=config.advertisements == "on",
        standing=tuple(addresses(config.offers)),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        log.warning("uvloop is not installed; the standard event loop is slower")
        return None
    return uvloop.new_event_loop


async def _serve(node: Node, journal: Journal, folder: Path, config: Config) -> bool:
    loop = asyncio.get_running_loop()
    clock = Clock()
    driver = Driver(node, clock, loop, config.spin_us)
    reports = Reports(loop, driver.report)
    driver.disk = Disk(folder, reports)
    streams = [Retained(stream.name, stream.topic, stream.exact) for stream in config.streams]
    bug = os.environ.get("REGRAFT_BUG", "")  # tests must notice these
    early, split = bug == "confirm-early", bug == "split-commit"
    if early:
        log.critical("REGRAFT_BUG is set: messages are confirmed before they are safe")
    if split:
        log.critical("REGRAFT_BUG is set: transactions are written in two pieces")
    about = (early, config.when_away, split, config.in_doubt_s)
    node.keep(journal, streams, clock.now(), *about)
    driver.aside = Aside(folder, folder.with_name("staged"), config.limits, reports)
    node.hand_over(clock.now())
    host, port = driver.listen(config.host, config.port)
    driver.take_datagrams(host, port)
    node.join(joining(config, host, port), clock.now())
    driver.begin()
    for number in ENDING:
        loop.add_signal_handler(number, driver.stop, f"the node got {number.name}")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: nothing to read again yet")
    _announce(node, host, port)
    keep_collections_short()
    notify_ready()
    try:
        await driver.stopped.wait()
    finally:
        notify_stopping()
        driver.shut()
        driver.aside.close()
        driver.disk.close()
        reports.close()
        log.info("stopped; %s", _summary(node))
    return driver.failed


def keep_collections_short() -> None:
    """Look for garbage among what is new, and never again at what has survived that once.

    A collector that looks at everything stops a node with many subscriptions for seconds. What
    nodes keep for long has no rings, so that it needs no collector to go when its time comes.
    """

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == OLDEST_GENERATION:
            gc.freeze()

    gc.collect()
    gc.freeze()
    gc.set_threshold(1000, 5, 5)
    gc.callbacks.append(collected)


def keep_memory() -> None:
    """Have memory that was freed used again, and not given back to be asked for once more.

    What waits for those who do not keep up comes and goes in pieces of a quarter of a megabyte. To
    have the kernel take each back and find and clear pages for the next takes longer than to fill
    it. Other libraries than that of GNU have no such call, and other habits.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_TRIM_THRESHOLD, FREE_BYTES)
    mallopt(M_MMAP_THRESHOLD, APART_BYTES)


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
