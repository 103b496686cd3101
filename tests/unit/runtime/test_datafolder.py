"""The data folder: made once, held by one, and never made anew where it is damaged."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regraft.errors import DiskError, LocalError
from regraft.runtime.datafolder import DataFolder, replace_file

HOLDER = """
import sys, time
from pathlib import Path
from regraft.errors import DiskError
from regraft.runtime.datafolder import DataFolder
try:
    folder = DataFolder.open(Path(sys.argv[1]))
except DiskError as error:
    print(error.code.name, flush=True)
else:
    print("held", folder.identity.hex, folder.identity.incarnation, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_new_folder_has_everything_and_nothing_temporary(path: Path) -> None:
    with DataFolder.open(path / "deep" / "er", name="harbour") as folder:
        assert folder.path == path / "deep" / "er"
        assert folder.identity.name == "harbour"
        assert folder.identity.incarnation == 1
        assert (folder.path / "lock").read_text() == f"{os.getpid()}\n"
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        files = {file.name for file in folder.path.iterdir()}
        assert files == {"lock", "format", "identity.json", "incarnation"}
        assert (folder.path / "format").read_text() == "1\n"
        kept = json.loads((folder.path / "identity.json").read_text())
        assert kept["node_id"] == folder.identity.hex
        assert set(kept) == {"node_id", "created"}


def test_the_id_stays_and_the_incarnation_grows(path: Path) -> None:
    seen = []
    for _ in range(3):
        with DataFolder.open(path) as folder:
            seen.append((folder.identity.hex, folder.identity.incarnation))
    assert [number for _, number in seen] == [1, 2, 3]
    assert len({node for node, _ in seen}) == 1


def test_two_folders_are_two_nodes(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path / "a") as one, DataFolder.open(tmp_path / "b") as other:
        assert one.identity.node_id != other.identity.node_id


def test_an_empty_folder_that_is_there_already_is_used(path: Path) -> None:
    path.mkdir()
    (path / "lost+found").mkdir()
    with DataFolder.open(path) as folder:
        assert folder.identity.incarnation == 1


def test_the_same_process_cannot_open_it_twice(path: Path) -> None:
    with DataFolder.open(path), pytest.raises(DiskError) as caught:
        DataFolder.open(path)
    assert caught.value.code.name == "data-folder-locked"
    assert f"process {os.getpid()} uses the data folder {path}" in caught.value.text


def test_a_holder_that_has_not_yet_written_its_id(path: Path) -> None:
    with DataFolder.open(path):
        (path / "lock").write_text("")
        with pytest.raises(DiskError, match=r"^another process uses"):
            DataFolder.open(path)


def test_close_lets_others_in_and_may_be_repeated(path: Path) -> None:
    folder = DataFolder.open(path)
    folder.close()
    folder.close()
    assert (path / "lock").read_text() == ""
    DataFolder.open(path).close()


def test_of_processes_that_fight_for_a_folder_one_gets_it(path: Path) -> None:
    fighters = [start(path) for _ in range(4)]
    try:
        answers = [said(fighter) for fighter in fighters]
        assert sorted(answer[0] for answer in answers) == ["data-folder-locked"] * 3 + ["held"]
        (holder,) = (f for f, answer in zip(fighters, answers, strict=True) if answer[0] == "held")
        with pytest.raises(DiskError, match=f"process {holder.pid} uses"):
            DataFolder.open(path)
    finally:
        for fighter in fighters:
            kill(fighter)


def test_a_killed_process_leaves_the_folder_openable(path: Path) -> None:
    holder = start(path)
    _, node, incarnation = said(holder)
    kill(holder)
    with DataFolder.open(path) as folder:
        assert folder.identity.hex == node
        assert folder.identity.incarnation == int(incarnation) + 1


def test_a_process_killed_while_it_opens_leaves_it_openable(path: Path) -> None:
    for delay in range(5):
        starter = start(path)
        time.sleep(0.02 + 0.02 * delay)
        kill(starter)
        DataFolder.open(path).close()


class Crash(BaseException):
    """The power goes."""


@pytest.mark.parametrize("writes", range(5))
def test_a_first_start_interrupted_anywhere_is_finished_by_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    left = writes
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        if writes < 4:
            with pytest.raises(Crash):
                DataFolder.open(path)
        else:
            DataFolder.open(path).close()
    kept = path / "identity.json"
    node = json.loads(kept.read_text())["node_id"] if kept.exists() else None
    with DataFolder.open(path) as folder:
        assert node in (None, folder.identity.hex)
        assert folder.identity.incarnation == (2 if writes == 4 else 1)


def damage(path: Path) -> DiskError:
    before = {file: file.read_bytes() for file in path.iterdir() if file.name != "lock"}
    with pytest.raises(DiskError) as caught:
        DataFolder.open(path)
    after = {file: file.read_bytes() for file in path.iterdir() if file.name != "lock"}
    assert before == after, "a damaged folder must stay as it was found"
    return caught.value


IDENTITY = '{"node_id": "%s", "created": "2026-01-01T00:00:00+00:00"}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("identity.json", ""),
        ("identity.json", '{\n  "node_id": "00ff'),
        ("identity.json", "[]"),
        ("identity.json", "{}"),
        ("identity.json", IDENTITY % "00"),
        ("identity.json", IDENTITY % ("zz" * 16)),
        ("identity.json", '{"node_id": 7, "created": "2026-01-01T00:00:00+00:00"}'),
        ("identity.json", '{"node_id": "' + "00" * 16 + '", "created": "yesterday"}'),
        ("identity.json", "x" * 10_000),
        ("incarnation", ""),
        ("incarnation", "1"),
        ("incarnation", "\n"),
        ("incarnation", "-1\n"),
        ("incarnation", "9" * 30 + "\n"),
        ("incarnation", "é\n"),
        ("format", ""),
        ("format", "0\n"),
        ("format", "one\n"),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(path: Path, name: str, content: str) -> None:
    DataFolder.open(path).close()
    (path / name).write_text(content, "utf-8")
    error = damage(path)
    assert error.code.name == "data-folder-damaged"
    assert error.text.startswith(f"{path / name} cannot be used: ")
    assert "Restore the data folder from a copy" in error.text


@pytest.mark.parametrize("name", ["identity.json", "incarnation", "format"])
def test_a_missing_file_is_damage_too(path: Path, name: str) -> None:
    DataFolder.open(path).close()
    (path / name).unlink()
    error = damage(path)
    assert error.code.name == "data-folder-damaged"
    assert error.text.startswith(f"{path / name} cannot be used: it is missing")


def test_a_truncated_identity_is_noticed_at_every_length(path: Path) -> None:
    DataFolder.open(path).close()
    whole = (path / "identity.json").read_bytes()
    for length in range(len(whole.rstrip())):
        (path / "identity.json").write_bytes(whole[:length])
        assert damage(path).code.name == "data-folder-damaged"
    (path / "identity.json").write_bytes(whole)
    DataFolder.open(path).close()


def test_a_newer_format_is_refused(path: Path) -> None:
    DataFolder.open(path).close()
    (path / "format").write_text("2\n")
    error = damage(path)
    assert error.code.name == "data-folder-version"
    assert "has format 2" in error.text


def test_a_refused_folder_is_not_left_locked(path: Path) -> None:
    DataFolder.open(path).close()
    (path / "format").write_text("2\n")
    damage(path)
    (path / "format").write_text("1\n")
    DataFolder.open(path).close()


def test_a_path_that_is_a_file(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(LocalError, match="is not a folder; name another one with --data"):
        DataFolder.open(path)
    with pytest.raises(LocalError, match=f"cannot write {path / 'below'}: not a directory"):
        DataFolder.open(path / "below")
    assert path.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(path: Path) -> None:
    path.mkdir(mode=0o500)
    with pytest.raises(LocalError, match=f"cannot write {path / 'lock'}: permission denied"):
        DataFolder.open(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read(path: Path) -> None:
    DataFolder.open(path).close()
    (path / "identity.json").chmod(0o200)
    with pytest.raises(LocalError, match=r"cannot read .*identity.json: permission denied"):
        DataFolder.open(path)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EACCES, LocalError, "permission denied; let user"),
        (errno.EROFS, LocalError, "read-only file system; let user"),
        (errno.ENOSPC, DiskError, "no space left on device; see to the disk"),
        (errno.EIO, DiskError, "input/output error; see to the disk"),
    ],
)
def test_what_cannot_be_written_is_blamed_on_the_right_one(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
    words: str,
) -> None:
    path.mkdir()

    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(kind, match=words):
        DataFolder.open(path)


def test_a_failed_sync_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    replace_file(path / "file", b"old")

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(DiskError, match="cannot write"):
            replace_file(path / "file", b"new")
    assert (path / "file").read_bytes() == b"old"
