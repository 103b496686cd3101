"""The demo, played as `make demo` does it, and interrupted: nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"
PATIENCE_S = 120


def start(folder: Path) -> subprocess.Popen[str]:
    """The demo, with its own folder for what it makes."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-u", str(DEMO), "--fast"],
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_over(folder: Path) -> list[str]:
    """Files in the folder, and processes that have something to do with it."""
    found = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue  # it ended meanwhile
    return found


def test_a_broker_is_killed_and_the_subscribers_go_on(tmp_path: Path) -> None:
    demo = start(tmp_path)
    try:
        out, err = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert (demo.returncode, err) == (0, ""), out + err
    assert out.count("<- asked") == 2  # a tree before, a tree after
    before, after = re.split(r"\$ kill -9 \d+", out)
    victim = re.search(r"3\. (\w+) is killed", before)
    assert victim is not None
    assert re.search(rf"─ {victim[1]} ", before)
    assert not re.search(rf"─ {victim[1]} ", after)
    assert re.search(r"say that they are one tree, \d+ ms later", after)
    rows = re.findall(r"^   (\w+) +[\w, ]+? +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$", after, flags=re.M)
    assert [row[0] for row in rows] == ["anna", "ben", "cleo", "dan"]
    for _, due, delivered, lost, twice, disordered in rows:
        assert int(due) == int(delivered) + int(lost) > 0
        assert (twice, disordered) == ("0", "0")
    assert "The subscribers went on." in after
    assert left_over(tmp_path) == []


def test_it_can_be_interrupted(tmp_path: Path) -> None:
    demo = start(tmp_path)
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("2. "):  # seven brokers run
                break
        assert left_over(tmp_path)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == 130 and "Traceback" not in err, err
    assert "stopped; the brokers are gone" in out
    assert left_over(tmp_path) == []
