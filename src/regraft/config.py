"""The settings of one node, and where each of them came from.

- A setting is a field of `Config` or of `Limits`. Its type, default and range are read from the
  field, so a new setting is one new line here and one in docs/configuration.md.
- Flags win over the environment, the environment over the file, the file over the defaults.
- Inside this module a limit is called `limits.frame_bytes`; the file has a table `[limits]`, the
  environment `REGRAFT_LIMITS__FRAME_BYTES`, the command line `--limit frame_bytes=...`.
- Nothing is guessed: an unknown name or an impossible value is a LocalError whose sentence begins
  with the place to correct (file and line, variable, or flag).
- A file is typed and keeps its types. Variables and flags are text, so there a whole number may
  have underscores and a size a unit: 1_000, 64KiB, 8MiB, 1GiB.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from regraft.errors import LocalError
from regraft.limits import Limits
from regraft.model.topics import check_pattern

PREFIX = "REGRAFT_"
FILE_VARIABLE = "REGRAFT_CONFIG"
# Variables of the same prefix that are no settings of a node.
OTHER_VARIABLES = frozenset(
    {
        FILE_VARIABLE,
        "REGRAFT_KERNELS",
        "REGRAFT_REQUIRE_COMPILED",
        "REGRAFT_NO_COMPILE",
        "REGRAFT_URL",  # of clients
        "REGRAFT_NAMES",
        "REGRAFT_BUG",  # of tests: a mistake that they must notice,
        "REGRAFT_REQUIRE_FAULTS",  # and whether those that need a machine of their own must run
    }
)
OTHER_PREFIX = "REGRAFT_NAME_"  # of clients: logical names
TEXT_BYTES_MAX = 255  # of a name or a host, as in the domain name system
UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
NUMBER = re.compile(r"(-?[0-9]+(?:_[0-9]+)*) ?([a-z]*)", re.IGNORECASE)
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Stream:
    """A topic that is retained: `[[streams]]` in the file, `--retain` on the command line."""

    name: str
    topic: str
    exact: bool = False
    keep_s: int = 0  # messages may go when they are older; 0: whatever their age
    keep_bytes: int = 0  # and when there are more; 0: however many


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one node. Construction checks them."""

    name: str = "regraft"
    host: str = "127.0.0.1"
    port: int = field(default=7447, metadata={"range": (0, 65535)})  # 0: any that is free
    data: Path = Path("regraft-data")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    heartbeat_ms: int = 10_000  # what this node proposes
    # How long to look for more before the process sleeps; 0: not at all.
    spin_us: int = field(default=100, metadata={"range": (0, 10_000)})
    # Other nodes: whom to join, separated by commas; or the one to be below, come what may.
    join: str = field(default="", metadata={"range": (0, 4096)})
    parent: str = field(default="", metadata={"range": (0, TEXT_BYTES_MAX)})
    # host:port by which others reach this node; empty: as it listens.
    advertise: str = field(default="", metadata={"range": (0, TEXT_BYTES_MAX)})
    max_degree: int = field(default=8, metadata={"range": (2, 1000)})  # neighbours in the tree
    beacon_ms: int = field(default=500, metadata={"range": (10, 60_000)})
    reconfiguration: Literal[
        "reconfiguration-path",
        "informed-activation",
        "deferred-notified",
        "deferred-timed",
        "strawman",
    ] = "reconfiguration-path"
    # How long what a lost link causes may wait for a new one.
    deferral_ms: int = field(default=3000, metadata={"range": (0, 600_000)})
    covering: Literal["on", "off"] = "on"  # of what neighbours are told
    # Whether interests go only where something is offered; as at all nodes of the network. And what
    # this node offers for all its clients then: topic patterns, separated by commas.
    advertisements: Literal["on", "off"] = "off"
    offers: str = field(default="", metadata={"range": (0, 4096)})
    # What becomes of messages for mailboxes of a node that is away for too long.
    when_away: Literal["refuse", "drop"] = "refuse"
    # After which a prepared transaction is rolled back that nobody decides; 0: never.
    in_doubt_s: int = field(default=0, metadata={"range": (0, 315_360_000)})
    rules: str = field(default="", metadata={"range": (0, 4096)})  # the file; empty: none
    # Filters of applications that it knows: module or module:Class, separated by commas.
    filters: str = field(default="", metadata={"range": (0, 4096)})
    limits: Limits = field(default_factory=Limits)
    streams: tuple[Stream, ...] = ()  # retained topics
    # Where each value came from, by name; what is missing here is a default.
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            if setting.table:
                continue  # Limits has checked itself
            wrong = _fault(setting, getattr(self, name))
            if wrong:
                raise _refuse(wrong, [self.source.get(name, DEFAULT)])
        self._check_addresses()
        least, most = self.limits.heartbeat_ms_min, self.limits.heartbeat_ms_max
        if not least <= self.heartbeat_ms <= most:
            names = ("heartbeat_ms", "limits.heartbeat_ms_min", "limits.heartbeat_ms_max")
            raise _refuse(
                f"heartbeat_ms must be from {least} to {most}, "
                f"as the limits heartbeat_ms_min and heartbeat_ms_max say, not {self.heartbeat_ms}",
                [self.source.get(name, DEFAULT) for name in names],
            )

    def _check_addresses(self) -> None:
        for name in ("join", "parent", "advertise"):
            text: str = getattr(self, name)
            for address in addresses(text) if name == "join" else filter(None, (text,)):
                if not _is_address(address):
                    raise _refuse(
                        f"{name} must be host:port, as in 10.0.0.7:7447, not {_shown(address)}",
                        [self.source.get(name, DEFAULT)],
                    )
        for pattern in addresses(self.offers):
            try:
                check_pattern(pattern)
            except LocalError as error:
                raise _refuse(
                    f"offers: {error.text}", [self.source.get("offers", DEFAULT)]
                ) from None
        if self.join and self.parent:
            places = [self.source.get(name, DEFAULT) for name in ("join", "parent")]
            raise _refuse("join and parent exclude each other: a parent is the only one", places)


def addresses(text: str) -> list[str]:
    """The addresses of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        return False
    return bool(host.strip("[]")) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


class Setting(NamedTuple):
    """What the fields say about one setting."""

    table: str  # "limits", or "" at the top
    key: str
    kind: Any  # str, int, Path or a Literal
    default: object
    range: tuple[int, int] | None

    @property
    def is_size(self) -> bool:
        return "bytes" in self.key.split("_")


class Given(NamedTuple):
    """A value as somebody gave it, and where."""

    value: object
    source: str


def _settings() -> dict[str, Setting]:
    found = {}
    for table, owner in (("", Config), ("limits", Limits)):
        hints = get_type_hints(owner)
        for entry in fields(owner):
            if owner is Config and entry.name in ("limits", "streams", "source"):
                continue
            span = entry.metadata.get("range")
            setting = Setting(table, entry.name, hints[entry.name], entry.default, span)
            found[f"{table}.{entry.name}" if table else entry.name] = setting
    return found


SETTINGS = _settings()


def load(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
    retain: Iterable[str] = (),
) -> Config:
    """The effective configuration. A flag that is None was not given.

    Flags are named as the settings are: "port", "limits.frame_bytes". Topics in `retain` are
    streams of the same name, beside those of the file.
    """
    if file is None and environ.get(FILE_VARIABLE):
        file = Path(environ[FILE_VARIABLE])
    given: dict[str, Given] = {}
    streams: list[Stream] = []
    if file is not None:
        given |= _from_file(file, streams)
    given |= _from_environment(environ)
    given |= _from_flags(flags)
    streams += [_retained(topic) for topic in retain]
    return _build(given, tuple(streams))


def describe(config: Config) -> str:
    """The configuration as a TOML file that says where each value came from."""
    lines = []
    table = ""
    for name, setting in SETTINGS.items():
        if setting.table != table:
            table = setting.table
            lines += ["", f"[{table}]"]
        value = getattr(config.limits if table else config, setting.key)
        lines.append(f"{setting.key} = {_toml(value)}  # {config.source.get(name, DEFAULT)}")
    for stream in config.streams:
        lines += ["", "[[streams]]"]
        for key in fields(stream):
            lines.append(f"{key.name} = {_toml(getattr(stream, key.name))}")
    return "\n".join(lines) + "\n"


def warnings(config: Config) -> list[str]:
    """What is allowed but should be known; the node logs it when it starts."""
    if _is_loopback(config.host):
        return []
    return [
        f"listening on {config.host}, which other machines may reach, and there is no "
        "authentication yet: whoever reaches the port can publish and subscribe. "
        "Use host 127.0.0.1, or let a firewall decide who may connect"
    ]


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address  # here, because only a node that starts needs it

    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name: where it leads is unknown, so rather warn


# The three places a value is given. Each checks the names, none the values.


def _from_file(file: Path, streams: list[Stream]) -> dict[str, Given]:
    text = _read(file)
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        line = re.search(r"\(at line (\d+), column \d+\)", str(error))
        reason = re.sub(r" \(at line.*\)$", "", str(error))
        place = f"{file}:{line[1]}" if line else f"{file}"
        raise _refuse(f"this is not TOML: {reason}", [place]) from None
    tables = {setting.table for setting in SETTINGS.values()} - {""}
    given = {}
    for key, value in document.items():
        if key == "streams":
            place = _place(file, text, "", key)
            streams += _streams(value, place)
        elif key in tables:
            if not isinstance(value, dict):
                place = _place(file, text, "", key)
                raise _refuse(f"{key} must be a table: [{key}]", [place])
            for inner, inner_value in value.items():
                place = _place(file, text, key, inner)
                given[f"{key}.{inner}"] = Given(inner_value, place)
        else:
            given[key] = Given(value, _place(file, text, "", key))
    for name, (_, place) in given.items():
        if name not in SETTINGS:
            known = [*SETTINGS, *tables, "streams"]
            raise _refuse(f"unknown setting {name}{_suggest(name, known)}", [place])
    return {
        name: Given(_path(value) if SETTINGS[name].kind is Path else value, place)
        for name, (value, place) in given.items()
    }


def _streams(value: object, place: str) -> list[Stream]:
    """The streams of a file: `[[streams]]`, each a table."""
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _refuse("streams must be tables: [[streams]]", [place])
    found = []
    for row in value:
        unknown = set(row) - {"name", "topic", "exact", "keep_s", "keep_bytes"}
        if unknown:
            name = min(unknown)
            hint = _suggest(name, ["name", "topic", "exact", "keep_s", "keep_bytes"])
            raise _refuse(f"unknown setting {name} of a stream{hint}", [place])
        if "topic" not in row:
            raise _refuse("a stream needs a topic", [place])
        given = {"name": row["topic"], **row}
        for key, kind in (("name", str), ("topic", str), ("exact", bool)):
            if key in given and type(given[key]) is not kind:
                raise _refuse(f"{key} of a stream cannot be {_shown(given[key])}", [place])
        for key in ("keep_s", "keep_bytes"):
            if key in given and (type(given[key]) is not int or given[key] < 0):
                text = f"{key} of a stream must be a whole number, not {_shown(given[key])}"
                raise _refuse(text, [place])
        found.append(_checked(Stream(**given), place))
    return found


def _retained(topic: str) -> Stream:
    return _checked(Stream(topic, topic), "--retain")


def _checked(stream: Stream, place: str) -> Stream:
    try:
        check_pattern(stream.topic)
    except LocalError as error:
        raise _refuse(error.text, [place]) from None
    if not stream.name.isprintable() or not 1 <= len(stream.name.encode()) <= TEXT_BYTES_MAX:
        raise _refuse(f"a stream cannot be called {_shown(stream.name)}", [place])
    return stream


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _refuse(f"cannot read this configuration file: {reason}", [str(file)]) from None
    except ValueError as error:  # not UTF-8, or a path with a NUL in it
        raise _refuse(f"cannot read this configuration file: {error}", [str(file)]) from None


def _place(file: Path, text: str, table: str, key: str) -> str:
    """`file:line` of a key, found by its look, since tomllib tells no lines; or only `file`."""
    bare = rf"[\"']?{re.escape(key)}[\"']?"
    plain = re.compile(rf"\s*{bare}\s*[=.]")
    dotted = re.compile(rf"\s*{table}\s*(\.\s*{bare}\s*=|=\s*\{{.*\b{re.escape(key)}\b)")
    header = re.compile(r"\s*\[+\s*[\"']?([^\"'\].\s]+)")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = header.match(line)
        if opened:
            current = opened[1]
        if (
            (current == table and plain.match(line))
            or (table and not current and dotted.match(line))
            or (opened and not table and current == key)
        ):
            return f"{file}:{number}"
    return str(file)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    names = {variable_of(name): name for name in SETTINGS}
    given = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable.startswith(OTHER_PREFIX):
            continue
        if variable not in names:
            known = [*names, *OTHER_VARIABLES]
            raise _refuse(f"unknown variable{_suggest(variable, known)}", [variable])
        if environ[variable]:  # an empty variable is one that was not set
            name = names[variable]
            given[name] = Given(_from_text(SETTINGS[name], environ[variable]), variable)
    return given


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.replace(".", "__").upper()


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    given = {}
    for name, value in flags.items():
        if name not in SETTINGS:
            table, _, key = name.rpartition(".")
            known = [s.key for s in SETTINGS.values() if s.table == table]
            what = "limit" if table else "setting"
            raise _refuse(f"unknown {what} {key}{_suggest(key, known)}", [flag_of(name)])
        if isinstance(value, str):
            value = _from_text(SETTINGS[name], value)
        if value is not None:
            given[name] = Given(value, flag_of(name))
    return given


def flag_of(name: str) -> str:
    """The flag of a setting on the command line."""
    if name.startswith("limits."):
        return f"--limit {name.removeprefix('limits.')}"
    if name == "log_level":
        return "--verbose"  # the only flag that changes it
    return "--" + name.replace("_", "-")


# From what was given to a Config.


def _build(given: Mapping[str, Given], streams: tuple[Stream, ...]) -> Config:
    names = [stream.name for stream in streams]
    for name in names:
        if names.count(name) > 1:
            raise _refuse(f"two streams are called {name!r}", [])
    source = {name: DEFAULT for name in SETTINGS} | {n: g.source for n, g in given.items()}
    top: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for name, (value, _) in given.items():
        setting = SETTINGS[name]
        (inner if setting.table else top)[setting.key] = value
    try:
        limits = Limits(**inner)
    except LocalError as error:
        # Limits knows no sources. Its sentence names the limits at fault; those are looked up.
        named = re.findall(r"\w+", error.text)
        raise _refuse(error.text, [source.get(f"limits.{n}", DEFAULT) for n in named]) from None
    return Config(**top, limits=limits, streams=streams, source=source)


def _from_text(setting: Setting, text: str) -> object:
    """The value that a text means; the text itself if none, to be refused by the checks."""
    if setting.kind is Path:
        return _path(text)
    if setting.kind is not int:
        return text
    number = NUMBER.fullmatch(text.strip())
    if not number or len(text) > 30:
        return text
    digits, unit = number[1], number[2].lower()
    if unit not in UNITS or (unit and not setting.is_size):
        return text
    return int(digits) * UNITS[unit]


def _path(value: object) -> object:
    try:
        return Path(value).expanduser() if value and isinstance(value, str) else value
    except RuntimeError:  # no such home
        return value


def _fault(setting: Setting, value: object) -> str | None:
    """What is wrong with a value, as a sentence, or None."""
    key, kind, span = setting.key, setting.kind, setting.range
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return None
        hint = _suggest(value, get_args(kind)) if isinstance(value, str) else ""
        return f"{key} must be one of {', '.join(get_args(kind))}, not {_shown(value)}{hint}"
    if kind is int:
        low, high = span or (1, 2**31 - 1)
        if type(value) is int and low <= value <= high:
            return None
        return f"{key} must be a whole number from {low} to {high}, not {_shown(value)}"
    if kind is Path:
        if isinstance(value, Path) and _is_utf8(str(value)) and "\0" not in str(value):
            return None
        return f"{key} must be the path of a folder, not {_shown(value)}"
    low, high = span or (1, TEXT_BYTES_MAX)
    if isinstance(value, str) and value.isprintable() and low <= len(value.encode()) <= high:
        return None
    return f"{key} must be printable text of {low} to {high} bytes, not {_shown(value)}"


def _is_utf8(text: str) -> bool:
    """Whether a text can be logged and printed; one from the environment may be other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """A value in an error: quoted if text, and never long."""
    shown = repr(str(value) if isinstance(value, Path) else value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _suggest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _refuse(text: str, sources: Iterable[str]) -> LocalError:
    """The error, its sentence headed by the places to correct."""
    places = list(dict.fromkeys(source for source in sources if source != DEFAULT))
    return LocalError("bad-configuration", f"{', '.join(places)}: {text}" if places else text)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    # JSON strings are TOML strings, but for DEL, which `isprintable` has kept out of names.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
