"""Runs the examples of the documentation, and checks that its pages agree with the code.

Conventions, for README.md, docs/index.md, docs/tutorial.md, some others and docs/howto/*.md:

- A `python` block that begins with `# name.py` is a file; all files of a page share a folder, and
  pytest runs those that are tests. One that calls `asyncio.run`, `run(main())` or
  `connect_blocking` is a program. All others of a page are one session of `python -m asyncio`.
- A `toml` block that begins with `# name.toml` is a file for the commands of its page.
- A `console` block is commands after `$ ` and what they print. `sub` and `serve` are left running
  until the block ends; a `sub` that is durable or replays ends by itself.
- The node that all of them use retains `measurements/#`.
- What a block prints stands in a `text` block, or one without a language, right behind it. `...`
  stands for anything. A block without one prints nothing.
- A block that cannot be run has `<!-- not run: reason -->` right before it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import regraft
import regraft.services
from regraft.errors import CODES

pytestmark = pytest.mark.slow  # it starts processes
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PATIENCE_S = 20
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "tutorial.md",
    DOCS / "mailboxes.md",
    DOCS / "replies.md",
    DOCS / "context.md",
    DOCS / "transactions.md",
    *sorted((DOCS / "howto").glob("*.md")),
]
LANGUAGES = {"python", "console", "toml", "ini", "text", ""}
FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")


# ------------------------------------------------------------------ reading the pages


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    expected: str | None  # what it prints, where the page says so
    reason: str  # why it is not run

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The name of the file that it is, if it is one."""
        found = re.match(r"# (\w+\.(?:py|toml))\n", self.text)
        return found[1] if found else ""

    @property
    def is_program(self) -> bool:
        return self.language == "python" and bool(
            re.search(r"^(asyncio\.)?run\(|connect_blocking\(", self.text, re.M)
        )


@functools.cache
def blocks_of(page: Path) -> list[Block]:
    """All blocks but those that only say what another prints."""
    text = page.read_text(encoding="utf-8")
    assert len(FENCE.findall(text)) * 2 == len(re.findall(r"^```", text, re.M)), page
    name = page.relative_to(ROOT).as_posix()
    blocks: list[Block] = []
    end = 0
    for found in FENCE.finditer(text):
        language, body = found.groups()
        between = text[end : found.start()]
        end = found.end()
        runs = blocks and blocks[-1].language == "python" and blocks[-1].expected is None
        if language in ("", "text") and runs and not between.strip():
            blocks[-1] = blocks[-1]._replace(expected=body)
            continue
        reason = NOT_RUN.search(between)
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(name, line, language, body, None, reason[1] if reason else ""))
    return blocks


def excuse(block: Block) -> str:
    """Why a block is not run; empty if it is."""
    if block.reason:
        return block.reason
    if block.language == "console" and re.match(r"\$ make ", block.text):
        return "make starts what the other examples start themselves"
    return ""


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = [block for block in BLOCKS if not excuse(block)]
PROGRAMS = [block for block in RUN if block.is_program and not block.file]
CONSOLES = [block for block in RUN if block.language == "console"]
PYTHON = [block for block in RUN if block.language == "python"]
SESSIONS = [block for block in PYTHON if not block.is_program and not block.file]
SESSION_PAGES = sorted({block.page for block in SESSIONS})
FILES = [block for block in RUN if block.file]
FILE_PAGES = sorted({block.page for block in FILES if block.language == "python"})


# --------------------------------------------------------------------------- the node


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def plain_environment() -> dict[str, str]:
    keep = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED")
    return {k: v for k, v in os.environ.items() if not k.startswith("REGRAFT_") or k in keep}


def finish(process: subprocess.Popen[Any], number: int = signal.SIGTERM) -> int:
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The one node that all examples talk to; its address."""
    folder = tmp_path_factory.mktemp("node")
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "regraft", "serve", "-p", str(port)]
    command += ["--retain", "measurements/#"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--data", str(folder / "data")],
            env=plain_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(lambda: "listening on" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield f"127.0.0.1:{port}"
    finally:
        assert finish(process) == 0


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


@pytest.fixture
def environment(node: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as a user's: REGRAFT_URL says where the node is, and nothing runs for ever."""
    for name in [name for name in os.environ if name.startswith("REGRAFT_NAME")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REGRAFT_URL", node)

    def late(number: int, frame: Any) -> None:
        raise AssertionError("the example takes too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    os.environ.pop("REGRAFT_NAMES", None)


# ----------------------------------------------------------------------------- Python


class Place:
    """A module to run blocks in, as the shell has one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = types.ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", self.module)

    def run(self, block: Block, runner: asyncio.Runner | None = None) -> None:
        """Run a block, and compare what it prints."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if runner is not None else 0
        source = "\n" * block.line + block.text  # so that tracebacks name the right line
        code = compile(source, str(ROOT / block.page), "exec", flags=flags, dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = types.FunctionType(code, self.module.__dict__)()
            if inspect.iscoroutine(result):
                assert runner is not None
                runner.run(result)
        compare(printed.getvalue(), block.expected or "", block.place)


def compare(got: str, expected: str, place: str) -> None:
    pattern = ".*".join(re.escape(part) for part in expected.rstrip().split("..."))
    if not re.fullmatch(pattern, got.rstrip(), re.S):
        pytest.fail(f"{place} prints\n{got}\nand the page says\n{expected}", pytrace=False)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.place)
def test_a_program(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    Place(monkeypatch).run(block)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("page", SESSION_PAGES)
def test_a_session(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    with asyncio.Runner() as runner:
        try:
            for block in SESSIONS:
                if block.page == page:
                    place.run(block, runner)
        finally:
            for value in vars(place.module).values():
                if isinstance(value, regraft.Client):
                    runner.run(value.close())


@pytest.mark.parametrize("page", FILE_PAGES)
def test_files_with_tests(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        env=plain_environment() | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = re.search(r"^(\d+) passed in", done.stdout, re.M)
    tests = [
        n
        for block in FILES
        if block.page == page
        for n in re.findall(r"def (test_\w+)", block.text)
    ]
    assert outcome and int(outcome[1]) >= len(tests) > 0, done.stdout


def write_files(page: str, folder: Path) -> None:
    for block in FILES:
        if block.page == page:
            (folder / block.file).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("hello.py", "hello/world: HELLO\n"),
        ("blocking.py", "1000 numbers, 499500 in all\n"),
        ("workers.py", "odd-3 9\neven-4 16\neven questions: 1\n"),
    ],
)
def test_small_examples(node: str, name: str, printed: str) -> None:
    assert (ROOT / "examples" / name).read_text().count("\n") < 40
    run_example(node, name, printed)


def test_alerts(node: str) -> None:
    storm, rain = "STORM closes harbour, ships wait", "Get home, IT'S RAINING cats and dogs"
    printed = "anna: Python and Spark: a love story | A spark of hope for start-ups\n"
    printed += f"ben: Shipping is cheaper than ever | {storm}\n"
    printed += f"cleo: {storm} | {rain}\neditor: {storm} | {rain}\n"
    run_example(node, "alerts.py", printed)


def run_example(node: str, name: str, printed: str) -> None:
    path = ROOT / "examples" / name
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env=plain_environment() | {"REGRAFT_URL": node},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


# ---------------------------------------------------------------------------- console


class Shell:
    """Runs commands as a terminal would: what they print on stdout and stderr together."""

    def __init__(self, node: str, folder: Path) -> None:
        self.node = node
        self.folder = folder
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        regraft_command = bin_folder / "regraft"
        regraft_command.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m regraft "$@"\n'
        )
        regraft_command.chmod(0o755)
        self.path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"

    def start(self, command: str, output: Path) -> subprocess.Popen[bytes]:
        variables = plain_environment()
        variables |= {"PATH": self.path, "NO_COLOR": "1", "REGRAFT_URL": self.node}
        if command.startswith("regraft serve") and self.stays(command):
            command += f" -p {free_port()}"
        script = f"exec {command}" if self.stays(command) else command
        with output.open("wb") as out:
            return subprocess.Popen(
                ["sh", "-c", script],
                cwd=self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @staticmethod
    def stays(command: str) -> bool:
        """Whether a command is left running while those after it run."""
        if re.search(r"[;|]", re.sub(r"'[^']*'|\"[^\"]*\"", "", command)):
            return False
        ending = {"-t", "--test", "--print-config", "--timeout", "--durable", "--from"}
        options = ending & set(shlex.split(command))
        return command.startswith(("regraft sub ", "regraft serve")) and not options

    def subscriptions(self) -> int:
        async def count() -> int:
            async with await regraft.connect(self.node) as client:
                return int((await client.inspect("node"))["subscriptions"])

        return asyncio.run(count())


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Each command, and what the page says it prints."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip().removeprefix(".venv/bin/"), ""))
        else:
            command, printed = found[-1]
            found[-1] = command, printed + line
    return found


def comparable(text: str, command: str) -> str:
    """What a command prints, without what is different each time."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\b(client-)?[0-9a-f]{8,}\b", "ID", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST", text)
    text = text.replace(" --url HOST", "").replace("interpreted", "compiled")
    if command.startswith(("regraft inspect", "regraft bench")):
        text = re.sub(r"\d[\d,.]*", "0", text)
        text = re.sub(r" +", " ", text)
    kept = [line for line in text.splitlines() if "the kernels are not compiled" not in line]
    return "\n".join(line.rstrip() for line in kept).rstrip()


def has_printed(command: str, expected: str, output: Path) -> bool:
    """Whether as many lines are there as the page says."""
    got = comparable(output.read_text(), command).splitlines()
    return len(got) >= len(comparable(expected, command).splitlines())


@pytest.mark.parametrize("block", CONSOLES, ids=lambda block: block.place)
def test_commands(block: Block, node: str, tmp_path: Path) -> None:
    write_files(block.page, tmp_path)
    shell = Shell(node, tmp_path)
    running: list[tuple[str, str, Path, subprocess.Popen[bytes]]] = []

    def check(command: str, expected: str, output: Path) -> None:
        got = comparable(output.read_text(), command)
        wanted = comparable(expected, command)
        if shell.stays(command) and "--count" not in command:  # it says good-bye when it is ended
            got = "\n".join(got.splitlines()[: len(wanted.splitlines())])
        compare(got, wanted, f"{block.place}: {command}")

    try:
        for index, (command, expected) in enumerate(commands_of(block)):
            output = tmp_path / f"output-{index}"
            before = shell.subscriptions() if command.startswith("regraft sub") else 0
            process = shell.start(command, output)
            running.append((command, expected, output, process))
            if not shell.stays(command):
                assert process.wait(PATIENCE_S) == 0, f"{command}: {output.read_text()}"
                check(command, expected, output)
            elif command.startswith("regraft sub"):
                wait_for(lambda before=before: shell.subscriptions() > before)
        for command, expected, output, process in running:
            if shell.stays(command):
                wait_for(functools.partial(has_printed, command, expected, output))
                if "--count" in command:
                    assert process.wait(PATIENCE_S) == 0
                else:
                    assert finish(process, signal.SIGINT) in (0, 130)
                check(command, expected, output)
    finally:
        for *_, process in running:
            process.kill()
            process.wait()


# ------------------------------------------------------------------- nothing is left out


def test_every_block_is_run_or_says_why_not() -> None:
    excused = [block for block in BLOCKS if excuse(block)]
    run = [*PROGRAMS, *SESSIONS, *CONSOLES, *FILES]
    for block in excused:
        print(f"not run: {block.place}: {excuse(block)}")
    print(f"{len(run)} blocks are run, {len(excused)} are not")
    assert {block.language for block in BLOCKS} <= LANGUAGES
    left = {block.place for block in BLOCKS} - {block.place for block in [*run, *excused]}
    assert not left, f"neither run nor excused: {left}"
    assert len(excused) <= 10  # five of them need Java
    for block in CONSOLES:
        for command, _ in commands_of(block):
            assert "regraft " in command, block.place


# --------------------------------------------------------- pages that agree with the code


def table(page: Path, first_column: str) -> list[dict[str, str]]:
    for lines in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.M):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
        if rows[0][0] == first_column:
            return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
    raise AssertionError(f"{page} has no table {first_column}")


def test_the_table_of_errors() -> None:
    rows = table(DOCS / "howto" / "errors.md", "Code")
    assert [tuple(row.values())[:4] for row in rows] == [
        (str(c.number), f"`{c.name}`", "yes" if c.fatal else "no", c.meaning)
        for c in CODES.values()
    ]
    assert all(row["What to do"].endswith(".") for row in rows)


def test_the_table_of_classes_of_errors() -> None:
    rows = table(DOCS / "howto" / "errors.md", "Class")
    classes = {cls.__name__ for cls in regraft.RegraftError.__subclasses__()}
    assert {row["Class"].strip("`") for row in rows} == classes


def test_the_options() -> None:
    rows = table(DOCS / "reference.md", "Option")
    options = {field.name: field.default for field in dataclasses.fields(regraft.Options)}
    assert {row["Option"].strip("`"): row["Default"].strip("`") for row in rows} == {
        name: value.name if isinstance(value, regraft.WhenStalled) else repr(value)
        for name, value in options.items()
    }


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:::: |\*\*`)regraft\.([\w.]+)", text, re.M))
    public = {*regraft.__all__, "testing.Bus", "testing.virtual_time", "testing.run"}
    assert named == public | {f"services.{name}" for name in regraft.services.__all__}


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_cli", DOCS / "make_cli.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == module.text(), (
        "write it again: .venv/bin/python docs/make_cli.py"
    )


# -------------------------------------------------------------------------- links and nav


def anchors(page: Path) -> set[str]:
    plain = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", plain, re.M)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in words}


@pytest.mark.parametrize(
    "page",
    [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(page: Path) -> None:
    plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in re.findall(r"\]\(([^)\s]+)\)", plain):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file() and target.is_relative_to(ROOT), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r": (\S+\.md)$", navigation, re.M)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted([*pages, "architecture.md", "contributing.md"])
