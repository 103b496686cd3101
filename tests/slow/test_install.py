"""Installs the package as a user would: with a C compiler, without one, and requiring one."""

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
NO_COMPILER = {"CC": "/bin/false"}
SAY = """
import regraft.kernels as k
from regraft.kernels.checksum import crc32c
assert crc32c(b'123456789') == 0xE3069283
k.require_compiled()
print(k.describe())
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """What is under version control, without anything compiled before."""
    copy = tmp_path / "sources"
    made = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=made)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An empty environment: neither Cython nor anything else is in it."""
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    return str(tmp_path / "venv" / scripts / "python")


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_")}
    return subprocess.run(
        command, cwd=cwd, env=inherited | variables, capture_output=True, text=True, check=False
    )


def install(python: str, sources: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(python, "-m", "pip", "install", "--no-deps", ".", cwd=sources, **variables)


def say(python: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(python, "-c", SAY, cwd=folder, **variables)


def has_compiler() -> bool:
    cc = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(cc) is not None and cc != "/bin/false"


@pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")
def test_with_a_compiler_it_is_compiled(python: str, sources: Path, tmp_path: Path) -> None:
    done = install(python, sources, REGRAFT_REQUIRE_COMPILED="1")
    assert done.returncode == 0, done.stdout + done.stderr
    said = say(python, tmp_path, REGRAFT_REQUIRE_COMPILED="1")
    assert said.stdout == "compiled\n", said.stderr


def test_without_a_compiler_it_works_and_says_so(
    python: str, sources: Path, tmp_path: Path
) -> None:
    done = install(python, sources, **NO_COMPILER)
    assert done.returncode == 0, done.stdout + done.stderr
    said = say(python, tmp_path)
    assert said.stdout == "interpreted\n", said.stderr
    refused = say(python, tmp_path, REGRAFT_REQUIRE_COMPILED="1")
    assert refused.returncode != 0
    assert "InterpretedKernelError" in refused.stderr


def test_without_a_compiler_that_is_required_it_fails(
    python: str, sources: Path, tmp_path: Path
) -> None:
    done = install(python, sources, REGRAFT_REQUIRE_COMPILED="1", **NO_COMPILER)
    assert done.returncode != 0
    assert "/bin/false" in done.stdout + done.stderr
    assert say(python, tmp_path).returncode != 0


def test_it_can_be_left_interpreted(python: str, sources: Path, tmp_path: Path) -> None:
    done = install(python, sources, REGRAFT_NO_COMPILE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert say(python, tmp_path).stdout == "interpreted\n"
