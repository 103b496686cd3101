"""What a node tells those who run it: lines on stderr, and its state to systemd.

- One record is one line, in UTC. Control characters of a message are escaped, because a message
  may carry what a peer sent; only a traceback takes lines of its own.
- Colour goes to the level alone, and only on a terminal without NO_COLOR.
- Other packages are heard from WARNING on, whatever level the node has.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import TextIO

LEVELS = {
    # number: (what is written, its colour on a terminal)
    logging.DEBUG: ("DEBUG", "2"),
    logging.INFO: ("INFO", "32"),
    logging.WARNING: ("WARN", "33"),
    logging.ERROR: ("ERROR", "31"),
    logging.CRITICAL: ("FATAL", "1;31"),
}
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_CONTROLS |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 0x2028: "\\u2028"}

_log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """`2026-11-15T21:00:00.123Z INFO  regraft.node listening on 127.0.0.1:7447`."""

    def __init__(self, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        word, colour = LEVELS.get(record.levelno, (record.levelname, ""))
        level = f"{word:<5}"
        if self._colour and colour:
            level = f"\x1b[{colour}m{level}\x1b[0m"
        message = record.getMessage().translate(_CONTROLS)
        line = f"{timestamp(record.created)} {level} {record.name} {message}"
        return line + "".join(f"\n{text}" for text in _traceback(self, record))


class JsonFormatter(logging.Formatter):
    """One JSON object to the line: time, level, logger, message and, if any, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        traceback = _traceback(self, record)
        if traceback:
            line["traceback"] = "\n".join(traceback)
        return json.dumps(line)


class _Lines(logging.StreamHandler[TextIO]):
    """A class of its own, so that a second `configure` finds the handler of the first."""


def configure(
    level: str,
    form: str,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Send the log to a stream (stderr) as text or json. The last call counts."""
    stream = sys.stderr if stream is None else stream
    handler = _Lines(stream)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(stream.isatty() and not environ.get("NO_COLOR")))
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if isinstance(known, _Lines)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("regraft").setLevel(number)


def timestamp(seconds: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    milliseconds = int(seconds * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03d}Z"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    lines = []
    if record.exc_info:
        lines += formatter.formatException(record.exc_info).splitlines()
    if record.stack_info:
        lines += formatter.formatStack(record.stack_info).splitlines()
    return lines


def notify_ready(environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd, if it started this process with Type=notify, that the node serves."""
    _notify(b"READY=1", environ)


def notify_stopping(environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd that the node is on its way out."""
    _notify(b"STOPPING=1", environ)


def _notify(state: bytes, environ: Mapping[str, str]) -> None:
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # the abstract namespace of Linux
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.send(state)
    except OSError as error:
        # A node that works must not stop because its supervisor does not listen.
        _log.warning("cannot tell systemd %s: %s", state.decode(), error)
