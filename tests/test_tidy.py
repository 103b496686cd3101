"""Checks properties of the code itself: size, names, docstrings, and which room imports which."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import regraft
from regraft import kernels

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
BANNED_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "impl"}

# Imports point one way. A room may import from itself and from the rooms named here.
GROUND = {"errors", "limits"}
BELOW_TRADES = GROUND | {"model", "kernels"}
TRADES = {"wire", "session", "routing", "overlay", "journal", "replication"}
BELOW_NODE = BELOW_TRADES | TRADES
BELOW_WORLD = BELOW_NODE | {"node"}
BELOW_TOP = BELOW_WORLD | {"client", "runtime", "simulate"}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"client", "errors", "kernels", "model"},
    "errors": set(),
    "limits": {"errors"},
    "config": GROUND | {"model"},
    "model": GROUND,
    "kernels": GROUND | {"model"},
    **{trade: BELOW_TRADES for trade in TRADES},
    "node": BELOW_NODE,
    "client": BELOW_TRADES | {"wire"},
    "services": BELOW_TRADES | {"wire", "client"},
    "runtime": BELOW_WORLD | {"config"},
    "simulate": BELOW_WORLD | {"config"},
    "console": BELOW_TOP,
    "pipeline": BELOW_TOP,
    "testing": BELOW_TOP,
    "commands": BELOW_TOP | {"pipeline", "services"},
    "cli": BELOW_TOP | {"commands", "config", "console", "pipeline", "services"},
    "__main__": {"cli"},
}

# What leads out of the process or makes a run unrepeatable; only some rooms have such doors.
DOORS = {
    *("asyncio", "logging", "os", "random", "selectors", "socket"),
    *("ssl", "threading", "time", "uvloop"),
}
OPEN_ROOMS = {
    "runtime",
    "client",
    "services",
    "cli",
    "commands",
    "testing",
    "console",
    "pipeline",
    "config",
    "__init__",
    "__main__",
}
OPEN_FILES = {("kernels", "__init__.py"), ("simulate", "__main__.py")}
OPEN_DOORS = {"simulate": {"random"}}  # seeded


def imports(tree: ast.Module, package: list[str]) -> Iterator[tuple[str, int]]:
    """Every imported module and its line, relative ones made absolute, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = [*base, *(node.module.split(".") if node.module else [])]
            if parts == ["regraft"]:
                for alias in node.names:
                    yield f"regraft.{alias.name}", node.lineno
            else:
                yield ".".join(parts), node.lineno


def lines_for_types(tree: ast.Module) -> set[int]:
    """The lines that stand under `if TYPE_CHECKING:`."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                lines.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return lines


def size_complaints(path: Path) -> Iterator[str]:
    """Too long, without a docstring, or with a name that says nothing."""
    text = path.read_text()
    tree = ast.parse(text)
    if text.count("\n") > FILE_LINES_MAX:
        yield f"{path}: more than {FILE_LINES_MAX} lines"
    if not ast.get_docstring(tree):
        yield f"{path}: no docstring says what this module is for"
    for word in re.split(r"[_/]", f"{path.parent.name}/{path.stem}"):
        if word in BANNED_NAMES:
            yield f"{path}: the name {word} says nothing"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has more than {FUNCTION_LINES_MAX} lines"


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a path or dotted name below the package."""
    return parts[0].removesuffix(".py") if parts else "__init__"


def import_complaints(package: Path, path: Path) -> Iterator[str]:
    """Imports that point the wrong way, or through a door that the room has not."""
    parts = path.relative_to(package).parts
    room = room_of(parts)
    if room not in MAY_IMPORT:
        yield f"{path}: {room} is not among the rooms"
        return
    tree = ast.parse(path.read_text())
    typing_only = lines_for_types(tree)
    closed = DOORS - OPEN_DOORS.get(room, set())
    if room in OPEN_ROOMS or parts in OPEN_FILES:
        closed = set()
    for name, line in imports(tree, ["regraft", *parts[:-1]]):
        top, *rest = name.split(".")
        if top == "regraft":
            other = room_of(tuple(rest))
            if not (other == room or other.startswith("__") or other in MAY_IMPORT[room]):
                yield f"{path}:{line}: {room} must not import {name}"
        elif top in closed and not (top == "random" and line in typing_only):
            yield f"{path}:{line}: {room} is a pure room and has no door {name}"


def tree_complaints(package: Path) -> list[str]:
    """All that is wrong with the modules of a package."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        found += size_complaints(path)
        found += import_complaints(package, path)
    return found


def kernel_complaints(setup: Path, folder: Path, listed: tuple[str, ...]) -> list[str]:
    """Where setup.py, the package and the folder disagree about what the kernels are."""
    in_setup: tuple[str, ...] = ()
    for node in ast.parse(setup.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNELS":
            in_setup = ast.literal_eval(node.value)
    there = {path.stem for path in folder.glob("*.py") if path.with_suffix(".pxd").exists()}
    found = []
    if set(in_setup) != set(listed):
        found.append(f"setup.py lists {sorted(in_setup)}, the package {sorted(listed)}")
    if set(listed) != there:
        found.append(f"the package lists {sorted(listed)}, the folder has {sorted(there)}")
    return found


def test_the_package_is_tidy() -> None:
    assert not tree_complaints(ROOT / "src" / "regraft")


def test_tests_and_benchmarks_are_of_bearable_size() -> None:
    paths = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    assert not [complaint for path in sorted(paths) for complaint in size_complaints(path)]


def test_the_lists_of_kernels_agree() -> None:
    folder = ROOT / "src" / "regraft" / "kernels"
    assert not kernel_complaints(ROOT / "setup.py", folder, kernels.KERNELS)


def test_the_changelog_knows_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert regraft.__version__ in headings


# The checks themselves: a tree with one offence gives one complaint.

OFFENCES = [
    ("model/a.py", '"""D."""\n' + "#\n" * FILE_LINES_MAX, "more than 700 lines"),
    ("model/a.py", '"""D."""\ndef f():\n' + "    x = 1\n" * 70, "f has more than 70 lines"),
    (
        "model/a.py",
        '"""D."""\nclass A:\n    async def f(self):\n' + "        1\n" * 70,
        "f has more",
    ),
    ("model/a.py", "x = 1\n", "no docstring"),
    ("model/text_utils.py", '"""D."""\n', "the name utils says nothing"),
    ("model/helpers/a.py", '"""D."""\n', "the name helpers says nothing"),
    ("wire/a.py", '"""D."""\nimport regraft.session.b\n', "wire must not import regraft.session.b"),
    ("wire/a.py", '"""D."""\nfrom regraft.node import b\n', "wire must not import regraft.node"),
    (
        "wire/a.py",
        '"""D."""\nfrom regraft import journal\n',
        "wire must not import regraft.journal",
    ),
    ("wire/a.py", '"""D."""\nfrom ..overlay import b\n', "wire must not import regraft.overlay"),
    ("wire/a.py", '"""D."""\nfrom .. import overlay\n', "wire must not import regraft.overlay"),
    ("kernels/a.py", '"""D."""\ndef f():\n    import regraft.wire\n', "kernels must not import"),
    (
        "model/a.py",
        '"""D."""\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import regraft.node\n',
        "model must not import regraft.node",
    ),
    ("client/a.py", '"""D."""\nimport regraft.runtime\n', "client must not import"),
    ("node/a.py", '"""D."""\nimport regraft.config\n', "node must not import regraft.config"),
    ("limits.py", '"""D."""\nimport regraft.model\n', "limits must not import regraft.model"),
    ("attic/a.py", '"""D."""\n', "attic is not among the rooms"),
    (
        "journal/a.py",
        '"""D."""\nimport os.path\n',
        "journal is a pure room and has no door os.path",
    ),
    ("node/a.py", '"""D."""\nfrom time import monotonic\n', "node is a pure room"),
    ("overlay/a.py", '"""D."""\nimport random\n', "overlay is a pure room"),
    ("simulate/a.py", '"""D."""\nimport asyncio\n', "simulate is a pure room"),
]

FINE = [
    ("wire/a.py", '"""D."""\nfrom regraft.kernels import frame\nfrom . import b\n'),
    ("runtime/a.py", '"""D."""\nimport asyncio\nfrom regraft import __version__, config\n'),
    ("kernels/__init__.py", '"""D."""\nimport os\n'),
    ("simulate/a.py", '"""D."""\nimport random\n'),
    (
        "overlay/a.py",
        '"""D."""\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random\n',
    ),
    ("model/a.py", '"""D."""\ndef f():\n' + "    x = 1\n" * 69),
]


def planted(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return folder


@pytest.mark.parametrize(("name", "text", "complaint"), OFFENCES)
def test_an_offence_is_found(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    found = tree_complaints(planted(tmp_path / "regraft", name, text))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(("name", "text"), FINE)
def test_what_is_allowed_is_not_complained_about(tmp_path: Path, name: str, text: str) -> None:
    assert not tree_complaints(planted(tmp_path / "regraft", name, text))


def test_disagreeing_lists_of_kernels_are_found(tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text('KERNELS = ("a", "b")\n')
    for name in ("a.py", "a.pxd", "b.py", "b.pxd", "plain.py"):
        (tmp_path / name).touch()
    assert not kernel_complaints(setup, tmp_path, ("a", "b"))
    assert len(kernel_complaints(setup, tmp_path, ("a",))) == 2
    (tmp_path / "c.py").touch()
    (tmp_path / "c.pxd").touch()
    (complaint,) = kernel_complaints(setup, tmp_path, ("a", "b"))
    assert "the folder has ['a', 'b', 'c']" in complaint
