"""`regraft journal` on folders that are whole, damaged in every way, or in use."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from folder import SEGMENT, Folder

from regraft import cli
from regraft.errors import DiskError
from regraft.runtime.datafolder import DataFolder

Regraft = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data")


@pytest.fixture
def regraft(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Regraft:
    for variable in [name for name in os.environ if name.startswith("REGRAFT_")]:
        monkeypatch.delenv(variable)

    def call(*arguments: str, **more: Any) -> Result:
        command = ["journal", *arguments, "--data", str(folder.path)]
        return CliRunner().invoke(cli.group, command, prog_name="regraft", **more)

    return call


def exported(regraft: Regraft, *arguments: str, code: int = 0) -> list[int]:
    """The numbers of the orders that an export has."""
    result = regraft("export", *arguments)
    assert result.exit_code == code, result.output
    return [
        int(re.match(r"order (\d+)", json.loads(line)["body"])[1])  # type: ignore[index]
        for line in result.stdout.splitlines()
    ]


def verified(regraft: Regraft) -> dict[str, Any]:
    result = regraft("verify", "--json")
    answer: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (1 if answer["damaged"] else 0)
    return answer


# ------------------------------------------------------------------------- whole folders


def test_a_whole_journal(folder: Folder, regraft: Regraft) -> None:
    folder.publish(100)
    answer = verified(regraft)
    assert (answer["damaged"], answer["damage"], answer["notes"]) == (False, [], [])
    assert answer["position"] == folder.journal.persisted_position
    assert sum(row["messages"] for row in answer["segments"]) == 100
    states = [row["state"] for row in answer["segments"]]
    assert states[0] == "closed" and states.count("open") == 1
    result = regraft("verify")
    assert result.exit_code == 0
    assert "the journal is whole up to position" in result.output
    assert "1 stream, 1 mailbox" in result.output


def test_an_empty_folder_is_whole(folder: Folder, regraft: Regraft) -> None:
    assert not verified(regraft)["damaged"]
    assert regraft("show").exit_code == 0
    assert exported(regraft) == []
    assert regraft("repair").output == "there is nothing to repair\n"


def test_what_is_no_data_folder_is_said(tmp_path: Path) -> None:
    for command in ("verify", "show", "export", "repair"):
        result = CliRunner().invoke(cli.group, ["journal", command, "--data", str(tmp_path / "no")])
        assert result.exit_code == 2
        assert "is not the data folder of a node" in result.output
        assert not (tmp_path / "no").exists()


def test_show(folder: Folder, regraft: Regraft) -> None:
    folder.publish(50)
    folder.settle(1, 20)
    folder.settle(30, 30)
    answer = json.loads(regraft("show", "--json").stdout)
    (stream,), (mailbox,), (publisher,) = (
        answer[name] for name in ("streams", "mailboxes", "publishers")
    )
    assert (stream["stream"], stream["topic"], stream["messages"]) == ("orders", "orders/#", 50)
    assert (mailbox["mailbox"], mailbox["waiting"], mailbox["first"]) == ("billing", 29, 21)
    assert (publisher["client"], publisher["sequence"]) == ("shop", 50)
    assert answer["segments"][0]["state"] == "closed"
    text = regraft("show").output
    assert re.search(r"billing +orders +no +29 ", text) and "publishers: 1" in text
    assert regraft("show", "--rows", "1").exit_code == 0


def test_show_records(folder: Folder, regraft: Regraft) -> None:
    folder.publish(3)
    folder.settle(1, 2)
    lines = regraft("show", "--records", "--json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    kinds = [row["kind"] for row in rows]
    assert kinds[0] == "START" and kinds.count("MESSAGES") == 3 and kinds[-1] == "SETTLED"
    assert rows[-1]["about"] == "billing: 1 to 2"
    assert rows[-2]["about"] == "1 message of shop orders=3 billing=3"
    result = regraft("show", "--records", "--rows", "2")
    assert result.stdout.count("\n") == 2
    assert "there are more" in result.stderr


# ------------------------------------------------------------------------------- export


def test_export_of_all_has_everything(folder: Folder, regraft: Regraft) -> None:
    folder.publish(60)
    assert exported(regraft) == list(range(1, 61))
    row = json.loads(regraft("export").stdout.splitlines()[9])
    assert row["sequences"] == {"orders": 10, "billing": 10}
    assert (row["publisher"], row["topic"], row["attributes"]) == ("shop", "orders/eu", {"n": 10})
    assert row["time"] == "2025-11-15T09:46:50.000Z" and row["position"] > 0


def test_export_of_a_part(folder: Folder, regraft: Regraft, tmp_path: Path) -> None:
    folder.publish(150)
    folder.settle(1, 140)
    folder.settle(145, 146)
    orders = ("--stream", "orders")
    assert exported(regraft, *orders, "--from", "#148") == [148, 149, 150]
    assert exported(regraft, *orders, "--from", "#5", "--to", "#8") == [5, 6, 7]
    assert exported(regraft, "--where", "n > 70 AND n <= 72") == [71, 72]
    since, until = "2025-11-15T09:48:20Z", "2025-11-15T09:48:22.500Z"
    assert exported(regraft, "--from", since, "--to", until) == [100, 101, 102]
    assert exported(regraft, "--mailbox", "billing") == [*range(141, 145), *range(147, 151)]
    row = json.loads(regraft("export", *orders, "--from", "#7").stdout.splitlines()[0])
    assert row["sequence"] == 7 and "sequences" not in row
    target = tmp_path / "out.jsonl"
    result = regraft("export", *orders, "--output", str(target))
    assert (result.stdout, result.stderr) == ("", f"150 messages written to {target}\n")
    assert len(target.read_text().splitlines()) == 150


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stream", "news"], "there is no stream 'news'; there are: orders"),
        (["--mailbox", "archive"], "there is no mailbox 'archive'; there are: billing"),
        (["--stream", "orders", "--mailbox", "billing"], "not both"),
        (["--from", "#7"], "a sequence is one of a --stream or a --mailbox"),
        (["--from", "tomorrow"], "'tomorrow' is no place"),
        (["--where", "n >"], "at column"),
        (["--output", "a", "--parquet", "b"], "not both"),
    ],
)
def test_an_export_that_cannot_be(
    folder: Folder, regraft: Regraft, arguments: list[str], sentence: str
) -> None:
    folder.publish(1)
    result = regraft("export", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr


def test_an_export_to_where_nothing_can_be_written(folder: Folder, regraft: Regraft) -> None:
    folder.publish(1)
    result = regraft("export", "--output", "/nowhere/at/all")
    assert result.exit_code == 1
    assert result.stderr == ("regraft: cannot write /nowhere/at/all: no such file or directory\n")


def test_parquet_without_pyarrow(
    folder: Folder, regraft: Regraft, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = regraft("export", "--parquet", str(tmp_path / "orders.parquet"))
    assert result.exit_code == 2
    assert "pip install 'regraft[parquet]'" in result.stderr


def test_parquet(folder: Folder, regraft: Regraft, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.publish(20)
    folder.publish(1, attributes={"b": True, "f": 1.5, "s": "grün", "y": b"\x00\xff"})
    target = tmp_path / "orders.parquet"
    result = regraft("export", "--stream", "orders", "--from", "#3", "--parquet", str(target))
    assert (result.exit_code, result.stderr) == (0, f"19 messages written to {target}\n")
    rows = parquet.read_table(target).to_pylist()
    assert [row["sequence"] for row in rows] == list(range(3, 22))
    assert rows[0]["body"].startswith(b"order 3 ") and rows[0]["publisher"] == "shop"
    assert rows[0]["type_name"] is None and rows[0]["delivery_mode"] == "PERSISTENT"
    values = {
        name: next(value for value in struct.values() if value is not None)
        for name, struct in rows[-1]["attributes"]
    }
    assert values == {"b": True, "f": 1.5, "s": "grün", "y": b"\x00\xff"}


# ------------------------------------------------------------------------------ in use


def test_a_folder_that_a_node_uses(folder: Folder, regraft: Regraft) -> None:
    folder.publish(3)
    with DataFolder.open(folder.path):
        answer = verified(regraft)
        assert not answer["damaged"]
        assert answer["notes"] == [
            f"process {os.getpid()} uses this folder: all of this is of a moment"
        ]
        assert "of a moment" in regraft("show").output
        for command, what in (("export", "regraft sub --from start"), ("repair", "stop it first")):
            result = regraft(command)
            assert (result.exit_code, result.stdout) == (1, "")
            assert f"process {os.getpid()} uses the data folder" in result.stderr
            assert what in result.stderr
    assert exported(regraft) == [1, 2, 3]
    DataFolder.open(folder.path).close()  # the lock was given back


# ----------------------------------------------------------------------------- damage


def test_a_torn_tail_is_no_damage(folder: Folder, regraft: Regraft) -> None:
    folder.publish(10)
    last = [path for path in folder.segments if b"order" in path.read_bytes()][-1]
    end = folder.journal.persisted_position - int(last.stem, 16)
    folder.damage(last, end, b"\x01" * 100)
    answer = verified(regraft)
    assert not answer["damaged"] and "torn tail" in answer["notes"][0]
    assert exported(regraft) == list(range(1, 11))
    assert "nothing to repair" in regraft("repair").output


def test_damage_at_the_end_is_cut_off(folder: Folder, regraft: Regraft) -> None:
    folder.publish(100)
    folder.settle(1, 5)
    path, offset = folder.holder_of("order 90 ")
    folder.damage(path, offset)
    folder.publish(1)
    with pytest.raises(DiskError):
        folder.recover()
    answer = verified(regraft)
    assert answer["damaged"] and "had been persisted" in answer["damage"][-1]
    assert exported(regraft, code=1) == [*range(1, 90), *range(91, 102)]

    before = folder.contents()
    said_no = regraft("repair", input="n\n")
    assert said_no.exit_code == 1 and "nothing was changed" in said_no.stderr
    assert folder.contents() == before

    result = regraft("repair", "--yes")
    assert result.exit_code == 0, result.output
    assert "with 11 messages that can" in result.stdout
    assert "stream orders: 90 to 101 at least" in result.stdout
    assert "mailbox billing: 90 to 101 at least" in result.stdout
    assert "1 settlement:" in result.stdout
    assert not verified(regraft)["damaged"]
    assert exported(regraft) == list(range(1, 90))
    assert folder.go_on().damage == ""
    assert folder.billing.waiting == 89  # what was settled comes again
    assert b"order 95 " in b"".join(folder.contents().values())  # it was set aside
    (note,) = folder.files.glob("quarantine/*/README.txt")
    assert "stream orders: 90 to 101" in note.read_text()
    folder.sent = 89
    folder.publish(5)
    assert exported(regraft) == list(range(1, 95))
    assert "nothing to repair" in regraft("repair").output


def test_damage_before_a_snapshot_costs_only_what_is_damaged(
    folder: Folder, regraft: Regraft
) -> None:
    folder.publish(200)
    folder.snapshot()
    folder.publish(20)
    folder.settle(1, 30)
    for text in ("order 10 ", "order 31 ", "order 32 ", "order 60 "):
        folder.damage(*folder.holder_of(text))
    assert folder.recover().damage == ""  # a node would start, and find it when it reads
    answer = verified(regraft)
    assert answer["damaged"]
    lacking = [n for n in range(1, 221) if n not in (10, 31, 32, 60)]
    assert exported(regraft, code=1) == lacking

    result = regraft("repair", input="y\n")
    assert result.exit_code == 0, result.output
    assert "stream orders: 31 to 32 (2 messages)" in result.stdout
    assert "mailbox billing: 31 to 32 (2 messages, waiting in it)" in result.stdout
    assert "mailbox billing: 10" not in result.stdout  # it was settled
    assert not verified(regraft)["damaged"], verified(regraft)
    assert exported(regraft) == lacking
    folder.go_on()
    assert folder.billing.waiting == 220 - 30 - 3
    assert exported(regraft, "--mailbox", "billing") == [n for n in lacking if n > 30]


@pytest.mark.parametrize("what", ["index", "trailer", "both", "records too"])
def test_an_index_is_made_again(folder: Folder, regraft: Regraft, what: str) -> None:
    folder.publish(150)
    folder.snapshot()
    folder.publish(10)
    first = folder.segments[0]
    content = first.read_bytes()
    trailer = SEGMENT - 64
    index = int.from_bytes(content[trailer + 8 : trailer + 16], "little")
    if what in ("index", "both", "records too"):
        folder.damage(first, index + 20)
    if what in ("trailer", "both", "records too"):
        folder.damage(first, trailer + 2)
    gone = []
    if what == "records too":
        last = max(int(n) for n in re.findall(rb"order (\d+) ", content))
        gone = [last - 1, last]
        for number in gone:
            folder.damage(first, folder.place_of(first, f"order {number} "))
    assert verified(regraft)["damaged"]
    result = regraft("repair", "--yes")
    assert result.exit_code == 0, result.output
    assert f"the index of segment {first.name}: it is made again" in result.stdout
    answer = verified(regraft)
    assert not answer["damaged"], answer
    assert exported(regraft) == [n for n in range(1, 161) if n not in gone]
    if what != "records too":
        assert "messages" not in result.stdout
    folder.go_on()
    assert folder.billing.waiting == 160 - len(gone)


def test_a_segment_that_is_missing(folder: Folder, regraft: Regraft) -> None:
    folder.publish(150)
    folder.snapshot()
    folder.publish(10)
    content = folder.segments[0].read_bytes()
    last = max(int(n) for n in re.findall(rb"order (\d+) ", content))
    folder.segments[0].unlink()
    with pytest.raises(DiskError, match="mailbox billing needs is missing"):
        folder.recover()
    result = regraft("repair", "--yes")
    assert result.exit_code == 0, result.output
    assert f"mailbox billing: 1 to {last} ({last} messages, waiting in it)" in result.stdout
    assert not verified(regraft)["damaged"]
    folder.go_on()
    assert folder.billing.waiting == 160 - last
    assert exported(regraft) == list(range(last + 1, 161))


def test_a_segment_in_the_middle_that_is_missing(folder: Folder, regraft: Regraft) -> None:
    folder.publish(200)
    middle = folder.segments[1]
    last = max(int(n) for n in re.findall(rb"order (\d+) ", middle.read_bytes()))
    middle.unlink()
    with pytest.raises(DiskError):
        folder.recover()
    result = regraft("repair", "--yes")
    assert result.exit_code == 0, result.output
    assert f"all before position {2 * SEGMENT}: segments are missing there" in result.stdout
    assert f"mailbox billing: 1 to {last} ({last} messages, waiting in it)" in result.stdout
    assert f"segment {0:016x}.seg is set aside as a whole" in result.stdout
    assert not verified(regraft)["damaged"]
    assert exported(regraft) == list(range(last + 1, 201))
    folder.go_on()
    assert folder.billing.waiting == 200 - last


def test_a_file_that_was_cut_short(folder: Folder, regraft: Regraft) -> None:
    folder.publish(95)
    path, offset = folder.holder_of("order 95 ")
    os.truncate(path, offset)
    with pytest.raises(DiskError, match="shorter than it was made"):
        folder.recover()
    assert verified(regraft)["damaged"]
    assert regraft("repair", "--yes").exit_code == 0
    assert not verified(regraft)["damaged"]
    assert exported(regraft) == list(range(1, 95))
    assert path.stat().st_size == SEGMENT
    folder.go_on()
    folder.sent = 94
    folder.publish(30)
    assert exported(regraft) == list(range(1, 125))


def test_where_nothing_can_be_used_all_is_set_aside(folder: Folder, regraft: Regraft) -> None:
    folder.publish(100)
    for path in folder.segments:
        folder.damage(path, 0)
    result = regraft("repair", input="y\n")
    assert result.exit_code == 0, result.output
    assert "all of it, with its streams and mailboxes" in result.stdout
    assert "100 messages can be read" in result.stdout
    assert folder.segments == []
    assert folder.recover().position == 0
    assert len(list(folder.files.glob("quarantine/*/*.seg"))) >= 2


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_damaged_a_repair_leaves_what_can_be_used(
    folder: Folder, regraft: Regraft, seed: int
) -> None:
    random = Random(seed)
    folder.publish(random.randint(20, 120), size=random.choice((20, 200, 900)))
    if random.random() < 0.6:
        folder.snapshot()
    folder.settle(1, random.randint(1, folder.sent))
    folder.publish(random.randint(1, 60))
    sent = folder.sent
    for _ in range(random.randint(1, 4)):
        path = random.choice(folder.segments)
        size = random.choice((1, 8, 100, 3000))
        offset = random.randrange(path.stat().st_size)
        junk = random.choice((random.randbytes(size), bytes(size), b"\xff" * size))
        folder.damage(path, offset, junk[: path.stat().st_size - offset])
    was_damaged = verified(regraft)["damaged"]
    readable = exported_anyhow(regraft)
    result = regraft("repair", "--yes")
    assert result.exit_code == 0, result.output
    if was_damaged:
        assert "nothing to repair" not in result.output
    answer = verified(regraft)
    assert not answer["damaged"], (answer, result.output)
    left = exported(regraft)
    assert set(left) <= set(readable) <= set(range(1, sent + 1))
    assert left == sorted(left)
    recovered = folder.recover()
    if "billing" in recovered.state.mailboxes:
        folder.go_on()
        waiting = exported(regraft, "--mailbox", "billing")
        assert folder.billing.waiting == len(waiting)
        folder.publish(3)
        assert len(exported(regraft)) == len(left) + 3
        assert not verified(regraft)["damaged"]


def exported_anyhow(regraft: Regraft) -> list[int]:
    result = regraft("export")
    assert result.exit_code in (0, 1), result.output
    return [
        int(re.match(r"order (\d+)", json.loads(line)["body"])[1])  # type: ignore[index]
        for line in result.stdout.splitlines()
    ]
