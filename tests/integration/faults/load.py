"""A node under load, and what it has promised: which messages it confirmed, which settlements."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import regraft
from regraft.errors import RegraftError
from regraft.journal.recovery import Recovered, examine
from regraft.journal.walking import SegmentView, records
from regraft.kernels.records import MESSAGES
from regraft.runtime.segments import open_segments
from regraft.wire import native

BATCH = 20
SEGMENT = 1 << 20
OURS = ("REGRAFT_REQUIRE_FAULTS", "REGRAFT_FAULT_")
LIMITS = ["--limit", f"segment_bytes={SEGMENT}", "--limit", "frame_bytes=65536"]


def command(data: Path, *more: str) -> list[str]:
    """How a node is started on a folder."""
    where = ["-p", "0", "--data", str(data)]
    return [sys.executable, "-m", "regraft", "serve", *where, *LIMITS, *more]


class Served:
    """A node in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def address(self, timeout_s: float = 30) -> str:
        """Where it listens, once it does."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            found = re.search(r"listening on (\S+:\d+)", self.log.read_text())
            if found:
                return found[1]
            if self.process.poll() is not None:
                raise AssertionError(f"the node ended: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)
        raise AssertionError(f"the node does not listen: {self.log.read_text()[-2000:]}")


@contextlib.contextmanager
def served(argv: list[str], log: Path, **variables: str) -> Iterator[Served]:
    """Run a node until the end of the context; it is killed then."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as said,
        subprocess.Popen(
            argv, stdout=said, stderr=said, text=True, env=_environment(variables)
        ) as process,
    ):
        try:
            yield Served(process, log)
        finally:
            process.kill()


def _environment(more: dict[str, str]) -> dict[str, str]:
    """Ours, without what is for tests: a node knows every variable of its name."""
    rest = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
    return {**rest, **more}


class Load:
    """Publishes numbers to `kept/a` in batches, in a thread, and reads some of them again.

    `confirmed` is the last number that the node has confirmed, `settled` the last sequence of the
    mailbox whose settlement it has. Both only grow.
    """

    def __init__(self, address: str, batches: int = 1 << 30) -> None:
        self.address = address
        self.confirmed = -1
        self.settled = 0
        self.refused: list[str] = []
        self.error: BaseException | None = None
        self._batches = batches
        self._stop = False
        self._go = threading.Event()
        self._go.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.error = error

    async def _work(self) -> None:
        client = await regraft.connect(self.address, reconnect=False, connect_timeout=30)
        box = await client.subscribe_durably("box", "kept/#", manual=True)
        reading = asyncio.create_task(self._read(box))
        number = 0
        for _ in range(self._batches):
            while not self._go.is_set() and not self._stop:
                await asyncio.sleep(0.002)
            if self._stop:
                break
            bodies = [b"%d" % (number + k) for k in range(BATCH)]
            try:
                await client.publish_many(
                    "kept/a", bodies, persistent=True, confirm=True, timeout=20
                )
            except RegraftError as error:
                self.refused.append(error.code.name)
                if error.code.fatal or len(self.refused) > 3:
                    break
                continue
            number += BATCH
            self.confirmed = number - 1
        reading.cancel()
        with contextlib.suppress(RegraftError, asyncio.CancelledError):
            await reading
        with contextlib.suppress(RegraftError):
            await asyncio.wait_for(client.close(), 5)

    async def _read(self, box: regraft.client.durable.Durable) -> None:
        """Settle everything but each seventh."""
        while True:
            batch = await box.next_batch()
            done = [message for message in batch if message.sequence % 7]
            box.settle(*done)
            await box.settled(20)
            if done:
                self.settled = done[-1].sequence

    def wait_for(self, more: int, timeout_s: float = 30) -> None:
        """Until so many more are confirmed."""
        enough = self.confirmed + more
        end = time.monotonic() + timeout_s
        while self.confirmed < enough:
            if self.error is not None or time.monotonic() > end or not self._thread.is_alive():
                raise AssertionError(
                    f"only {self.confirmed} of {enough}: {self.error!r}, refused: {self.refused}"
                )
            time.sleep(0.002)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Publish nothing meanwhile: what was written is looked at, which takes time for each."""
        self._go.clear()
        try:
            yield
        finally:
            self._go.set()

    def run_out(self, timeout_s: float = 60) -> None:
        """Until all batches are published, or the node does not take them."""
        self._thread.join(timeout_s)

    def end(self, timeout_s: float = 60) -> None:
        """Stop publishing."""
        self._stop = True
        self._thread.join(timeout_s)


def stored(data: Path) -> tuple[Recovered, list[int]]:
    """What the journal of a folder holds: its state, and the numbers in it, in order."""
    numbers: list[int] = []
    with open_segments(data / "journal", settle=False) as segments:
        views = [SegmentView(*segment) for segment in segments]
        recovered = examine(views, SEGMENT, "00" * 16, 0)
        for view in views:
            for record in records(view):
                if record.position < recovered.position and record.kind == MESSAGES:
                    numbers += _bodies(bytes(record.payload))
    return recovered, numbers


def _bodies(payload: bytes) -> list[int]:
    found, at = [], 0
    while at < len(payload):
        frame = native.read_frame(payload, at, 1 << 20)
        assert frame is not None, "half a message in a valid record"
        kind, _, envelope, at = frame
        found.append(int(native.decode(kind, envelope).body))
    return found


def losses(data: Path, confirmed: int, settled: int) -> list[str]:
    """What is wrong with what a folder holds, after these promises."""
    recovered, numbers = stored(data)
    wrong = []
    if recovered.damage:
        wrong.append(f"damaged: {recovered.damage}")
    if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
        wrong.append(f"not in order, or not once: {numbers[:3]}..{numbers[-3:]}")
    oldest = numbers[0] if numbers else 0
    missing = confirmed - (oldest + len(numbers) - 1)
    if missing > 0:
        wrong.append(f"{missing} confirmed messages are lost: {confirmed} was the last")
    box = recovered.state.mailboxes.get("box")
    if confirmed >= 0 and box is None:
        wrong.append("the mailbox is lost")
    if box is not None and settled:
        unsettled = [
            sequence
            for sequence in range(max(box.floor, settled - 200), settled + 1)
            if sequence % 7 and not _is_settled(box, sequence)
        ]
        if unsettled:
            wrong.append(f"confirmed settlements are lost: {unsettled[:5]}")
    return wrong


def _is_settled(box: object, sequence: int) -> bool:
    return any(first <= sequence <= last for first, last in box.settled)  # type: ignore[attr-defined]
