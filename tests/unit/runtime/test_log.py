"""Log lines as people and machines read them, and what systemd is told."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from regraft.runtime import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("regraft")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("regraft.node", level, "", 0, message, (), None)
    made.created = 1794776400.1239
    return made


def test_a_line_of_text() -> None:
    line = log.TextFormatter().format(record("listening on 127.0.0.1:7447"))
    assert line == "2026-11-15T21:00:00.123Z INFO  regraft.node listening on 127.0.0.1:7447"


@pytest.mark.parametrize(
    ("level", "word"),
    [(10, "DEBUG"), (20, "INFO "), (30, "WARN "), (40, "ERROR"), (50, "FATAL"), (25, "Level 25")],
)
def test_levels_have_one_width(level: int, word: str) -> None:
    assert f"Z {word} regraft" in log.TextFormatter().format(record("x", level))


def test_a_message_cannot_forge_a_line_or_command_a_terminal() -> None:
    line = log.TextFormatter().format(record("a\nb\r\x1b[2J\x00\x9bc\u2028d\té"))
    assert line.endswith("a\\nb\\r\\x1b[2J\\x00\\x9bc\\u2028d\\té")
    assert len(line.splitlines()) == 1


def test_a_line_of_json() -> None:
    line = log.JsonFormatter().format(record("a\nb", logging.WARNING))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-15T21:00:00.123Z",
        "level": "warning",
        "logger": "regraft.node",
        "message": "a\nb",
    }


def test_tracebacks_follow_the_line_or_are_a_field_of_it() -> None:
    for form in ("text", "json"):
        stream = io.StringIO()
        log.configure("info", form, stream, {})
        try:
            raise ValueError("odd")
        except ValueError:
            logging.getLogger("regraft.node").exception("failed")
        written = stream.getvalue()
        if form == "json":
            assert json.loads(written)["traceback"].endswith("ValueError: odd")
        else:
            assert written.splitlines()[0].endswith("failed")
            assert written.splitlines()[-1] == "ValueError: odd"


def test_levels_of_the_node_and_of_others() -> None:
    stream = io.StringIO()
    log.configure("debug", "text", stream, {})
    logging.getLogger("regraft.node").debug("ours")
    logging.getLogger("asyncio").info("theirs")
    logging.getLogger("asyncio").warning("their warning")
    words = [line.split()[1:] for line in stream.getvalue().splitlines()]
    assert words == [["DEBUG", "regraft.node", "ours"], ["WARN", "asyncio", "their", "warning"]]


def test_the_last_configuration_counts() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure("debug", "text", first, {})
    log.configure("error", "text", second, {})
    logging.getLogger("regraft").info("no")
    logging.getLogger("regraft").error("yes")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("ERROR regraft yes\n")


def test_colour_only_on_a_terminal_and_only_for_the_level() -> None:
    for stream, environ, coloured in (
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),  # as no-color.org has it: empty does not count
        (Terminal(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {}, False),
    ):
        log.configure("info", "text", stream, environ)
        logging.getLogger("regraft").error("x")
        written = stream.getvalue()
        assert re.sub(r"\x1b\[[0-9;]*m", "", written).endswith("Z ERROR regraft x\n")
        assert ("\x1b[31mERROR\x1b[0m" in written) is coloured
        assert written.count("\x1b") == (2 if coloured else 0)


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text", environ={})
    logging.getLogger("regraft").info("x")
    assert capsys.readouterr().err.endswith("INFO  regraft x\n")


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if abstract else name)
        systemd.settimeout(5)
        environ = {"NOTIFY_SOCKET": "@" + name if abstract else name}
        log.notify_ready(environ)
        log.notify_stopping(environ)
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_without_systemd_nothing_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log.notify_ready({})
    assert caplog.text == ""
    log.notify_ready({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert "cannot tell systemd READY=1" in caplog.text
