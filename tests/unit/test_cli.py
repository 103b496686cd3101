"""The command: its exit codes, its one-line errors, and that it starts quickly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from regraft import __version__, cli
from regraft.config import Config
from regraft.errors import DiskError, WorldError

Regraft = Callable[..., Result]


@pytest.fixture
def regraft(monkeypatch: pytest.MonkeyPatch) -> Regraft:
    for variable in [name for name in os.environ if name.startswith("REGRAFT_")]:
        monkeypatch.delenv(variable)

    def call(*arguments: str, **environ: str) -> Result:
        return CliRunner(env=environ).invoke(cli.group, arguments, prog_name="regraft")

    return call


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Config], int]], None]:
    """Puts a function in the place of the node."""

    def by(run: Callable[[Config], int]) -> None:
        module = ModuleType("regraft.runtime.serve")
        vars(module)["run"] = run
        monkeypatch.setitem(sys.modules, "regraft.runtime.serve", module)

    return by


def process(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_")}
    command = [sys.executable, "-m", "regraft", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean | environ, timeout=30)


def test_version_of_the_real_command() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"regraft {__version__}\n", "")


def test_a_wrong_setting_of_the_real_command() -> None:
    done = process("serve", "-t", REGRAFT_PORT="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "regraft: REGRAFT_PORT: port must be a whole number from 0 to 65535, not 'x'\n"
    )


def test_the_start_imports_nothing_heavy() -> None:
    script = (
        "import sys, regraft.cli; "
        "print(*{'asyncio', 'uvloop', 'logging', 'regraft.config', 'regraft.kernels', "
        "'importlib.metadata'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_help_documents_commands_and_exit_codes(regraft: Regraft) -> None:
    result = regraft("--help")
    assert result.exit_code == 0
    for name in cli.COMMANDS:
        assert f"\n  {name} " in result.output
        assert regraft(name, "-h").exit_code == 0
    for code in (0, cli.FAILED, cli.MISUSED, cli.INTERRUPTED):
        assert f"\n      {code} " in result.output


@pytest.mark.parametrize("arguments", [["serv"], ["serve", "--prot", "1"], ["serve", "extra"]])
def test_wrong_usage_is_two(regraft: Regraft, arguments: list[str]) -> None:
    assert regraft(*arguments).exit_code == 2


def test_version_tells_what_it_runs_on(regraft: Regraft) -> None:
    facts = json.loads(regraft("version", "--json").stdout)
    assert set(facts) == {"version", "python", "kernels", "uvloop"}
    assert facts["version"] == __version__
    assert all(isinstance(fact, str) and fact for fact in facts.values())
    lines = regraft("version").stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[k, v] for k, v in facts.items()]


def test_a_good_configuration(regraft: Regraft) -> None:
    result = regraft("serve", "-t")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "configuration ok\n", "")


def test_a_test_shows_warnings_but_passes(regraft: Regraft) -> None:
    result = regraft("serve", "--test", "--host", "0.0.0.0")
    assert (result.exit_code, result.stdout) == (0, "configuration ok\n")
    assert result.stderr.startswith("regraft: warning: listening on 0.0.0.0")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--limit", "frame_byte=1"], "unknown limit frame_byte; did you mean frame_bytes?"),
        (["--limit", "frame_bytes"], "write NAME=VALUE"),
        (["--limit", "frame_bytes=1GiB"], "frame_bytes may be 67108864 at most"),
        (["--log-format", "xml"], "--log-format: log_format must be one of text, json"),
        (["-c", "/nowhere/regraft.toml"], "/nowhere/regraft.toml: cannot read this"),
        (["-p", "x"], "--port: port must be a whole number"),
    ],
)
def test_a_wrong_configuration_is_two_and_one_line(
    regraft: Regraft, arguments: list[str], sentence: str
) -> None:
    result = regraft("serve", "-t", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("regraft: ")
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr


def test_print_config_is_a_file_that_can_be_used(regraft: Regraft, tmp_path: Path) -> None:
    arguments = ["--name", "one", "-v", "--limit", "queue_bytes=64MiB", "--data", str(tmp_path)]
    result = regraft("serve", "--print-config", *arguments, REGRAFT_PORT="1")
    assert result.exit_code == 0
    document = tomllib.loads(result.stdout)
    assert document["port"] == 1
    assert document["log_level"] == "debug"
    assert document["limits"]["queue_bytes"] == 64 << 20
    assert 'log_level = "debug"  # --verbose\n' in result.stdout
    file = tmp_path / "regraft.toml"
    file.write_text(result.stdout)
    again = regraft("serve", "--print-config", "-t", "-c", str(file))
    assert tomllib.loads(again.stdout) == document
    assert again.stderr == "configuration ok\n"


def test_serve_hands_the_configuration_over(
    regraft: Regraft, served: Callable[[Callable[[Config], int]], None]
) -> None:
    seen: list[Config] = []

    def run(config: Config) -> int:
        seen.append(config)
        return 0

    served(run)
    assert regraft("serve", "-p", "0", "-v", "--limit", "stall_ms=7").exit_code == 0
    assert (seen[0].port, seen[0].log_level, seen[0].limits.stall_ms) == (0, "debug", 7)


@pytest.mark.parametrize("code", [0, 1, 130])
def test_the_node_chooses_the_exit_code(
    regraft: Regraft, served: Callable[[Callable[[Config], int]], None], code: int
) -> None:
    served(lambda _: code)
    assert regraft("serve").exit_code == code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DiskError("data-folder-locked", "process 7 uses it"), 1, "regraft: process 7 uses it\n"),
        (WorldError("unreachable", "nobody there"), 1, "regraft: nobody there\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_one_line_and_a_code(
    regraft: Regraft,
    served: Callable[[Callable[[Config], int]], None],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def run(_: Config) -> int:
        raise error

    served(run)
    result = regraft("serve")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", line)
