"""A node under faults of the machine: what it confirmed is there afterwards.

REGRAFT_FAULT_CUTS=1000 makes as many power cuts; REGRAFT_FAULT_SAMPLES as many deaths and failures;
REGRAFT_FAULT_SEED chooses other moments for the cuts.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

import regraft
from faults import image, need, smallfs, strace
from faults.load import Load, command, losses, served
from faults.strace import Inject
from regraft.errors import RegraftError

CUTS = int(os.environ.get("REGRAFT_FAULT_CUTS", "30"))
SEED = int(os.environ.get("REGRAFT_FAULT_SEED", "7"))
SAMPLES = int(os.environ.get("REGRAFT_FAULT_SAMPLES", "15"))
CUTS_FOR_A_BUG = 300  # about one in twenty shows it, and the first one that does is the last


def cut(log: Path, cuts: int, in_memory: bool, **variables: str) -> list[list[str]]:
    """Cut the power of a node under load so many times; what is wrong each time."""
    found = []
    with (
        image.image(96, in_memory) as disk,
        served(command(disk.folder / "data"), log, **variables) as node,
    ):
        load = Load(node.address())
        load.wait_for(100)
        promised = [0, 0]

        def note() -> None:
            promised[:] = load.confirmed, load.settled

        pauses = random.Random(SEED)
        for _ in range(cuts):
            time.sleep(pauses.random() * 0.05)
            load.wait_for(20)
            with disk.cut(node.pid, then=note) as folder, load.held():
                found.append(losses(folder / "data", *promised))
            if variables and found[-1]:
                break
        load.end()
    return found


def test_power_cuts_take_nothing_that_was_confirmed(tmp_path: Path) -> None:
    need(image.missing())
    assert cut(tmp_path / "log", CUTS, in_memory=False) == [[]] * CUTS


def test_power_cuts_show_a_node_that_confirms_too_early(tmp_path: Path) -> None:
    need(image.missing())
    found = cut(tmp_path / "log", CUTS_FOR_A_BUG, in_memory=False, REGRAFT_BUG="confirm-early")
    assert any("confirmed messages are lost" in text for wrong in found for text in wrong), (
        f"{len(found)} power cuts did not show the planted bug"
    )


def test_a_node_starts_on_what_a_power_cut_left(tmp_path: Path) -> None:
    need(image.missing())
    with image.image(96) as disk, served(command(disk.folder / "data"), tmp_path / "log") as node:
        load = Load(node.address())
        for turn in range(3):
            load.wait_for(200)
            known = [0]
            with disk.cut(node.pid, then=partial(note, load, known)) as folder:
                again = served(command(folder / "data"), tmp_path / f"log{turn}")
                with again as second:
                    numbers = asyncio.run(drain(second.address()))
            # Each seventh was never settled; of the others some may come again.
            assert max(numbers) >= known[0]
            assert numbers == sorted(set(numbers))
            wanted = {n for n in range(known[0] + 1) if (n + 1) % 7 == 0}
            assert wanted <= set(numbers)
        load.end()


def note(load: Load, known: list[int]) -> None:
    """What is confirmed now."""
    known[0] = load.confirmed


async def drain(address: str) -> list[int]:
    """All that waits in the mailbox."""
    numbers: list[int] = []
    async with regraft.Client(address, connect_timeout=30) as client:
        box = await client.subscribe_durably("box", "kept/#", manual=True)
        while len(numbers) < box.waiting_at_start:
            batch = await box.next_batch(10)
            numbers += [int(message.body.rstrip(b".")) for message in batch]
    return numbers


@pytest.mark.parametrize("what", ["kill", "fail"])
def test_death_and_failure_at_many_syncs(what: str, tmp_path: Path) -> None:
    need(strace.missing())
    ordinals = random.Random(11).sample(range(2, 80), min(SAMPLES, 78))
    for ordinal in ordinals:
        data = tmp_path / f"data{ordinal}"
        log = tmp_path / f"log{ordinal}"
        if what == "kill":
            injection = Inject("fdatasync", "signal=KILL", str(ordinal))
        else:
            injection = Inject("fdatasync", "error=EIO", str(ordinal))
        argv = ["strace", "-D", "-f", "-q", "-o", "/dev/null", "-e", "trace=fdatasync"]
        argv += ["-e", str(injection), *command(data)]
        with served(argv, log) as node:
            load = Load(node.address(), batches=2000)
            load.run_out()
            if what == "kill":
                assert node.process.wait(10) == -signal.SIGKILL
        if what == "kill":
            assert load.confirmed < 2000 * 20 - 1
        else:
            assert load.refused and set(load.refused) <= {"journal-failed", "timed-out"}, (
                ordinal,
                load.refused,
                load.error,
            )
            assert "the journal failed" in log.read_text()
        assert losses(data, load.confirmed, load.settled) == [], ordinal
        with served(command(data), tmp_path / f"again{ordinal}") as node:
            numbers = asyncio.run(drain(node.address())) if load.confirmed >= 0 else []
        assert numbers == sorted(set(numbers))


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    need(smallfs.missing())
    with (
        smallfs.disk(24) as small,
        served(command(small.folder / "data"), tmp_path / "log") as node,
    ):
        asyncio.run(full_and_free(node.address(), small))
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(20) == 0
        with served(command(small.folder / "data"), tmp_path / "again") as second:
            numbers = asyncio.run(drain(second.address()))
        assert numbers[-1] == 1_000_000


async def full_and_free(address: str, small: smallfs.Small) -> None:
    """Fill the disk while publishing; afterwards make room."""
    async with regraft.Client(address, connect_timeout=30) as client:
        box = await client.subscribe_durably("box", "kept/#", manual=True)
        live = await client.subscribe("passing/#")
        await client.publish("kept/a", b"0", persistent=True, confirm=True, timeout=10)
        small.fill()
        refused = 0
        for number in range(1, 3000):
            try:
                await client.publish(
                    "kept/a", b"%d" % number + b"." * 8000, persistent=True, confirm=True, timeout=3
                )
            except RegraftError as error:
                assert error.code.name in ("disk-full", "timed-out"), error
                refused += 1
                if error.code.name == "disk-full":
                    break
        assert refused
        await client.publish("passing/a", b"goes on")
        assert (await live.next(5)).body == b"goes on"
        first = await box.next(5)
        assert first.body == b"0"
        small.free()
        for _ in range(100):
            try:
                await client.publish("kept/a", b"1000000", persistent=True, confirm=True, timeout=5)
                return
            except RegraftError as error:
                assert error.code.name == "disk-full", error
                await asyncio.sleep(0.1)
        raise AssertionError("there is room, but the node does not see it")
