"""The faults themselves, on a tiny writer: they strike, are seen, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults import image, mounts, need, smallfs, strace
from faults.strace import Inject
from faults.witness import witness

WRITER = str(Path(__file__).parent / "writer.py")


def command(path: Path, mode: str, count: int) -> list[str]:
    return [sys.executable, WRITER, str(path), mode, str(count)]


def lost_in_cuts(mode: str, cuts: int) -> list[int]:
    """How many acknowledged lines each power cut took."""
    lost = []
    with (
        image.image(32) as disk,
        witness(command(disk.folder / "lines", mode, 1_000_000)) as writer,
    ):
        for _ in range(cuts):
            writer.wait_for(50)
            with disk.cut(writer.pid, then=writer.note) as folder:
                found = (folder / "lines").read_text().split("\n")
            assert len(writer.known) >= 50
            lost.append(len(set(writer.known) - set(found[:-1])))
    return lost


def traces_of_us() -> list[str]:
    """Mounts and files that this process made and did not remove."""
    mine = f"{mounts.PREFIX}{os.getpid()}-"
    lines = Path("/proc/self/mounts").read_text().splitlines()
    left = [line for line in lines if mine in line]
    for base in (Path("/dev/shm"), Path("/tmp")):
        left += [str(path) for path in base.glob(f"{mine}*")]
    devices = Path("/sys/block").glob("loop*/loop/backing_file")
    with contextlib.suppress(OSError):
        left += [name for device in devices if mine in (name := device.read_text())]
    return left


def test_what_cannot_be_done_here_is_skipped_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REGRAFT_REQUIRE_FAULTS", raising=False)
    need("", "")
    with pytest.raises(pytest.skip.Exception, match="no root; no strace"):
        need("no root", "", "no strace")
    monkeypatch.setenv("REGRAFT_REQUIRE_FAULTS", "1")
    need("")
    with pytest.raises(pytest.fail.Exception, match="but no root"):
        need("no root")


# --------------------------------------------------------------------------- power cuts


def test_a_power_cut_takes_nothing_that_was_synced() -> None:
    need(image.missing())
    assert lost_in_cuts("late", 4) == [0] * 4
    assert traces_of_us() == []


def test_a_power_cut_shows_what_was_acknowledged_too_early() -> None:
    need(image.missing())
    lost = lost_in_cuts("early", 4)
    assert sum(lost) > 0, "a power cut hides what it should show"


def test_unsynced_bytes_and_names_are_gone() -> None:
    need(image.missing())
    with image.image(16) as disk:
        synced, unsynced = disk.folder / "synced", disk.folder / "unsynced"
        with open(synced, "wb") as stream:
            stream.write(b"kept")
            stream.flush()
            os.fsync(stream.fileno())
        with open(synced, "r+b") as stream:
            stream.write(b"gone")
        unsynced.write_bytes(b"gone")
        with disk.cut() as folder:
            assert (folder / "synced").read_bytes() == b"kept"
            assert not (folder / "unsynced").exists()
            (folder / "synced").unlink()  # a copy, and nothing but a copy
        assert synced.read_bytes() == b"gone"


def test_images_are_cleaned_up_after_failures() -> None:
    need(image.missing())
    with pytest.raises(ZeroDivisionError), image.image(8) as disk:
        held = os.open(disk.folder / "open", os.O_CREAT | os.O_RDWR)
        with disk.cut():
            raise ZeroDivisionError
    os.close(held)
    assert [line for line in traces_of_us() if not line.startswith("/sys")] == []


def test_what_a_killed_run_left_is_swept() -> None:
    need(image.missing())
    script = (
        "import os, signal\nfrom faults import image\n"
        "with image.image(8) as disk:\n"
        "    print(disk.folder, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    folder = Path(done.stdout.strip())
    assert done.returncode == -signal.SIGKILL and folder.is_mount()
    mounts.sweep()
    assert not folder.parent.exists()


# ------------------------------------------------------------------------------- strace


def numbers(said: str) -> list[int]:
    return [int(line) for line in said.splitlines() if line.isdigit()]


def test_a_call_fails_at_its_turn(tmp_path: Path) -> None:
    need(strace.missing())
    path = tmp_path / "lines"
    code, said, trace = strace.run(
        command(path, "late", 300), Inject("fdatasync", "error=EIO", "3")
    )
    assert code == 1 and f"failed {errno.EIO}" in said
    struck = [(call.name, call.result, call.error) for call in trace.injected]
    assert struck == [("fdatasync", -1, "EIO")], trace
    assert trace.count("fdatasync") == 3 and trace.count("pwrite64") == 3
    assert trace.end == "exited with 1"
    third = [int(line) for line in path.read_text().splitlines()][len(numbers(said)) :]
    assert third  # was written, was not synced, was not acknowledged


def test_a_full_disk_at_one_write_to_one_file(tmp_path: Path) -> None:
    need(strace.missing())
    path = tmp_path / "lines"
    path.touch()
    code, said, trace = strace.run(
        command(path, "late", 300), Inject("pwrite64", "error=ENOSPC", "2"), only=path
    )
    assert code == 1 and f"failed {errno.ENOSPC}" in said
    assert [call.error for call in trace.injected] == ["ENOSPC"]
    assert {call.name for call in trace.calls} <= {"pwrite64", "fdatasync", "fsync"}


def test_a_short_write_is_seen_by_the_writer(tmp_path: Path) -> None:
    need(strace.missing())
    code, said, trace = strace.run(
        command(tmp_path / "lines", "late", 50), Inject("pwrite64", "retval=1", "1")
    )
    assert code == 0 and numbers(said) == list(range(50))
    assert [(call.name, call.result) for call in trace.injected] == [("pwrite64", 1)]


@pytest.mark.parametrize("name", ["pwrite64", "fdatasync"])
def test_a_process_dies_at_a_call(tmp_path: Path, name: str) -> None:
    need(strace.missing())
    path = tmp_path / "lines"
    code, said, trace = strace.run(command(path, "late", 300), Inject(name, "signal=KILL", "3"))
    assert code == -signal.SIGKILL and trace.end == "killed by SIGKILL"
    assert trace.count(name) == 3
    assert name in {call.name for call in trace.ended}
    kept = [int(line) for line in path.read_text().splitlines()]
    assert kept[: len(numbers(said))] == numbers(said)


def test_ordinals_can_be_counted_first(tmp_path: Path) -> None:
    need(strace.missing())
    code, said, trace = strace.run(command(tmp_path / "lines", "late", 20))
    assert code == 0 and numbers(said) == list(range(20)) and trace.injected == []
    assert 1 <= trace.count("fdatasync") <= 20
    assert trace.count("fdatasync") == trace.count("pwrite64")
    assert trace.end == "exited with 0"


def test_a_traced_process_takes_signals_and_ends_with_its_context(tmp_path: Path) -> None:
    need(strace.missing())
    with strace.traced(command(tmp_path / "lines", "late", 1_000_000)) as watched:
        assert watched.stdout.readline() == "0\n"
        watched.process.send_signal(signal.SIGTERM)
        assert watched.trace().end == "killed by SIGTERM"
    with strace.traced(command(tmp_path / "lines", "late", 1_000_000)) as watched:
        assert watched.stdout.readline() == "0\n"
    assert watched.process.returncode == -signal.SIGKILL


def test_lines_of_threads_that_cross_are_put_together() -> None:
    trace = strace.parse(
        '7 pwrite64(3, "a\\n"..., 4, 0 <unfinished ...>\n'
        "8 fdatasync(4)                      = 0\n"
        "7 <... pwrite64 resumed>)           = 4\n"
        "8 fdatasync(4 <unfinished ...>\n"
        '7 rename("a", "b") = -1 ENOENT (No such file or directory)\n'
        "7 fsync(5) = -1 EIO (Input/output error) (INJECTED)\n"
        "8 <... fdatasync resumed>)          = ?\n"
        "7 +++ exited with 1 +++\n"
        "8 +++ killed by SIGKILL +++\n"
    )
    assert [(call.thread, call.name, call.result, call.error) for call in trace.calls] == [
        (8, "fdatasync", 0, ""),
        (7, "pwrite64", 4, ""),
        (7, "rename", -1, "ENOENT"),
        (7, "fsync", -1, "EIO"),
        (8, "fdatasync", None, ""),
    ]
    assert [call.name for call in trace.injected] == ["fsync"]
    assert [call.name for call in trace.ended] == ["fdatasync"]
    assert trace.end == "exited with 1" and trace.count("fdatasync") == 2


# -------------------------------------------------------------------------- full disks


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_small_file_system_gets_full_and_has_room_again(kind: str) -> None:
    need(smallfs.missing(), image.missing() if kind == "disk" else "")
    with smallfs.memory(1024) if kind == "memory" else smallfs.disk(8) as small:
        path = small.folder / "lines"
        assert small.fill() > 512 * 1024
        done = subprocess.run(
            command(path, "late", 100), stdout=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == 1 and f"failed {errno.ENOSPC}" in done.stdout
        small.free()
        done = subprocess.run(
            command(path, "late", 100), stdout=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == 0
        small.fill(leave=256 * 1024)
        (small.folder / "more").write_bytes(bytes(128 * 1024))
    assert traces_of_us() == []
