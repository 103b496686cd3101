"""Which peers get messages of which type: the table of rules, and the file that it is written in.

    [peers.SEARCH]                      # who there is; what is said of it may be nothing
    [peers.CACHE]

    [types.SEARCH_REQUEST]              # ANY one of them answers it
    routes = [{ to = "SEARCH" }]

    [types.PICTURE_STORED]              # the first route names the service that answers
    routes = [
        { to = "DATABASE" },
        { to = "CACHE", whom = "all", missing = "ignore" },
    ]

Rules:

- The file is refused as a whole, with the line at fault, or taken as a whole.
- A route goes to `any` one of the peers of a type (the one with the least to do), or to `all`. If
  there is none, that is an `error` unless it is to be ignored; the sender is told (`report`), with
  or without the `original` message.
- Routes that a message carries itself are written in Protocol Buffers: `decode_routes`.
- Types and peers have names; numbers, for those who speak of them in numbers, are kept unique.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from regraft.errors import LocalError, PeerError
from regraft.model import varint
from regraft.model.varint import LEN, Malformed, read_fields

RULES_BYTES_MAX = 48 * 1024  # of a file: it must go into one control frame
ROUTES_MAX = 64  # of one type
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
BUS_NUMBERS = 100  # and above are free: those below are the bus's own

# Message types of the bus itself, by number: in the envelope's field `type`.
PING = 1
SEARCH = 3  # is there somebody for messages of this type?
DELIVERY_ERROR = 5
CANCEL = 6
HEALTH = 7
REQUEST_RECEIVED = 113
BACKEND_ERROR = 114

# Where they go: topics that only the bus uses.
TYPE_TOPIC = "$type/"  # + the name of a type
SEARCH_TOPIC = "$search/"  # likewise
PEER_TOPIC = "$peer/"  # + the id of a client, or of one of the peers that share its connection:
WITHIN = "~"  # between the two, in the id of such a peer
GROUP_TOPIC = "$group/"  # + the name of a peer type: subscribing there is being one
SHARE_TOPIC = "$share/"  # + a name + / + a pattern: a subscription that several share
MEMBER_TOPIC = "$member/"  # + a peer type + / + the id of a client: told to other nodes
REPLY_TOPIC = "$reply"


@dataclass(frozen=True, slots=True)
class Route:
    """Messages of a type go to peers of a type."""

    to: str
    all: bool = False
    missing_is_error: bool = True
    report: bool = True
    original: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole table. `text` is the file."""

    routes: dict[str, tuple[Route, ...]] = field(default_factory=dict)  # by message type
    peers: dict[str, int] = field(default_factory=dict)  # the numbers of peer types, or 0
    numbers: dict[str, int] = field(default_factory=dict)  # of message types, or 0
    text: str = ""

    def route_to(self, type: str, peer: str) -> Route | None:
        """The route of a type that leads to these peers."""
        return next((route for route in self.routes.get(type, ()) if route.to == peer), None)


NO_RULES = Rules()


# --------------------------------------------------------------------------------- the file


def parse_rules(text: str, name: str = "rules") -> Rules:
    """The table in a file; LocalError with the line at fault, as in `rules:7: ...`."""
    if len(text.encode(errors="replace")) > RULES_BYTES_MAX:
        raise _refuse(f"{name}: a table of rules has {RULES_BYTES_MAX} bytes at most")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number may have too many digits for Python
        found = re.search(r"\(at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise _refuse(f"{name}:{line}: this is not TOML: {reason}") from None
    rules, faults = _table(document, text)
    if faults:
        raise _refuse(f"{name}:{_line_of(text, faults[0])}: {faults[0]}")
    return rules


def _line_of(text: str, fault: str) -> int:
    """The line at fault: where the first statement begins with which the same is wrong.

    tomllib tells no lines. But the statements in front of any other are a file, too, and have the
    fault or not.
    """
    lines = text.splitlines()
    good, bad = 0, len(lines)  # so many lines are without the fault; so many have it
    while True:
        middle = (good + bad) // 2
        for end in (*range(max(middle, good + 1), bad), *range(middle - 1, good, -1)):
            part = "\n".join(lines[:end])
            try:
                document = tomllib.loads(part)
            except ValueError:  # in the middle of a statement
                continue
            if fault in _table(document, part)[1]:
                bad = end
            else:
                good = end
            break
        else:
            break
    while good + 1 < bad and not lines[good].split("#")[0].strip():
        good += 1
    return good + 1


def _table(document: dict[str, Any], text: str) -> tuple[Rules, list[str]]:
    """The table, and all that is wrong with it."""
    faults = [
        f"{key!r} is unknown: there are tables [peers.NAME] and [types.NAME]"
        for key in document
        if key not in ("peers", "types")
    ]
    peers: dict[str, int] = {}
    routes: dict[str, tuple[Route, ...]] = {}
    numbers: dict[str, int] = {}
    for table, found in (("peers", peers), ("types", numbers)):
        rows = document.get(table, {})
        if not isinstance(rows, dict):
            faults.append(f"{table} must be tables: [{table}.NAME]")
            continue
        seen: dict[int, str] = {}
        for name, row in rows.items():
            try:
                _check_row(table, name, row)
                found[name] = number = _number(table, name, row)
                if number and number in seen:
                    other = seen[number]
                    raise Malformed(f"{table}.{name} has the number {number}, as {other} has")
                seen[number] = name
                if table == "types":
                    routes[name] = _routes(name, row.get("routes"), peers)
            except Malformed as reason:
                faults.append(str(reason))
    return Rules(routes, peers, numbers, text), faults


def _check_row(table: str, name: str, row: Any) -> None:
    allowed = ("number",) if table == "peers" else ("number", "routes")
    if not NAME.fullmatch(name):
        raise Malformed(f"{table}: {name!r} is no name: letters, digits, _, . and -, up to 64")
    if not isinstance(row, dict):
        raise Malformed(f"{table}.{name} must be a table: [{table}.{name}]")
    for key in row:
        if key not in allowed:
            raise Malformed(f"{table}.{name}: {key!r} is unknown; there is {', '.join(allowed)}")


def _number(table: str, name: str, row: dict[str, Any]) -> int:
    number = row.get("number", 0)
    if type(number) is not int or not (number == 0 or BUS_NUMBERS <= number < 1 << 32):
        raise Malformed(f"{table}.{name}: a number is {BUS_NUMBERS} or above, not {number!r:.40}")
    return number


def _routes(name: str, rows: Any, peers: dict[str, int]) -> tuple[Route, ...]:
    where = f"types.{name}"
    if not isinstance(rows, list) or not rows:
        raise Malformed(f'{where} needs routes, as in routes = [{{ to = "SEARCH" }}]')
    if len(rows) > ROUTES_MAX:
        raise Malformed(f"{where} has {len(rows)} routes; the limit is {ROUTES_MAX}")
    routes = tuple(_route(f"{where}, route {k}", row, peers) for k, row in enumerate(rows, 1))
    seen = set()
    for route in routes:
        if route.to in seen:
            raise Malformed(f"{where} has two routes to {route.to}")
        seen.add(route.to)
    return routes


def _route(where: str, row: Any, peers: dict[str, int]) -> Route:
    if not isinstance(row, dict):
        raise Malformed(f'{where} must be a table, as in {{ to = "SEARCH" }}')
    choices = {"whom": ("any", "all"), "missing": ("error", "ignore")}
    for key, value in row.items():
        if key in choices and value not in choices[key]:
            named = " or ".join(map(repr, choices[key]))
            raise Malformed(f"{where}: {key} is {named}, not {value!r:.40}")
        if key in ("report", "original") and type(value) is not bool:
            raise Malformed(f"{where}: {key} is true or false, not {value!r:.40}")
        if key not in ("to", "whom", "missing", "report", "original"):
            known = "to, whom, missing, report, original"
            raise Malformed(f"{where}: {key!r} is unknown; there are {known}")
    to = row.get("to")
    if not isinstance(to, str) or to not in peers:
        known = ", ".join(peers) or "none"
        raise Malformed(f"{where}: there is no peer type {to!r:.80}; there are: {known:.300}")
    return Route(
        to,
        row.get("whom") == "all",
        row.get("missing") != "ignore",
        row.get("report", True),
        row.get("original", False),
    )


def differences(old: Rules, new: Rules) -> list[str]:
    """What is different, one line each: `+` is there now, `-` is not any more."""
    found = []
    for sign, here, there in (("-", old, new), ("+", new, old)):
        for name, number in here.peers.items():
            if there.peers.get(name) != number:
                found.append(f"{sign} peer {name}{f' ({number})' if number else ''}")
        for name, routes in here.routes.items():
            if there.routes.get(name) != routes or there.numbers[name] != here.numbers[name]:
                found.append(f"{sign} {name}: {', '.join(map(describe_route, routes))}")
    return found


def describe_route(route: Route) -> str:
    """A route in a few words."""
    words = [f"{'all' if route.all else 'any'} {route.to}"]
    if not route.missing_is_error:
        words.append("missing is fine")
    elif not route.report:
        words.append("not reported")
    elif route.original:
        words.append("reported with the original")
    return " ".join(words)


# ---------------------------------------------------- routes that a message carries with it

_FLAGS = {2: "all", 3: "ignore_missing", 4: "no_report", 5: "original"}


def encode_routes(routes: tuple[Route, ...]) -> bytes:
    """Routes as they stand in the field `override_rules` of an envelope."""
    parts = []
    for route in routes:
        flags = (route.all, not route.missing_is_error, not route.report, route.original)
        inner = varint.STRING.write(1, route.to)
        for number, flag in zip(_FLAGS, flags, strict=True):
            if flag:
                inner += varint.BOOL.write(number, True)
        parts.append(varint.BYTES.write(1, inner))
    return b"".join(parts)


def decode_routes(data: bytes) -> tuple[Route, ...]:
    """The routes in these bytes; PeerError if there are none."""
    found = []
    try:
        for raw in read_fields(data):
            if raw.number != 1:
                continue
            if raw.wire != LEN or not isinstance(raw.value, bytes):
                raise Malformed("a route is not a message")
            found.append(_decode_route(raw.value))
            if len(found) > ROUTES_MAX:
                raise Malformed(f"more than {ROUTES_MAX} routes")
        if not found:
            raise Malformed("there is no route")
    except Malformed as reason:
        raise PeerError("bad-message", f"override rules: {reason}") from None
    return tuple(found)


def _decode_route(data: bytes) -> Route:
    to = ""
    flags = dict.fromkeys(_FLAGS.values(), False)
    for raw in read_fields(data):
        if raw.number == 1:
            to = varint.STRING.read(raw)
        elif raw.number in _FLAGS:
            flags[_FLAGS[raw.number]] = varint.BOOL.read(raw)
    if not NAME.fullmatch(to):
        raise Malformed(f"{to!r:.80} is no peer type")
    return Route(
        to, flags["all"], not flags["ignore_missing"], not flags["no_report"], flags["original"]
    )


def _refuse(text: str) -> LocalError:
    return LocalError("bad-configuration", text)
