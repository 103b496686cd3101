"""Checks that docs/protocol.md says what the code does: its tables, its rules, its bytes."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import struct
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from regraft import limits
from regraft.client.client import INSPECTED
from regraft.errors import CODES, LocalError
from regraft.kernels.checksum import crc32c
from regraft.kernels.windows import Window
from regraft.limits import Limits
from regraft.model.identity import Identity
from regraft.model.message import (
    MAPPING_FIELDS,
    PRIORITY_DEFAULT,
    SCALAR_FIELDS,
    VALUE_FIELDS,
    Message,
    encode_envelope,
)
from regraft.model.topics import check_pattern, check_topic, matches
from regraft.node import control, network, node, operating
from regraft.node.connection import State
from regraft.node.effect import Close, Write
from regraft.node.event import Now, Opened, Received
from regraft.overlay.messages import Reason
from regraft.wire import bulk, native, protobuf

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "protocol.md").read_text(encoding="utf-8")
SCHEMA = (ROOT / "src" / "regraft" / "wire" / "regraft.proto").read_text(encoding="utf-8")
VECTORS = json.loads((DOCS / "vectors.json").read_text(encoding="utf-8"))

Row = dict[str, str]


# ------------------------------------------------------------- reading the page


def section(heading: str) -> str:
    """What stands under a heading, up to the next one of any depth."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", PAGE, re.M | re.S)
    assert found, heading
    return found[1]


def table(heading: str, first_column: str) -> list[Row]:
    """The rows of the table under a heading whose first column has this name."""
    for lines in re.findall(r"(?:^\|.*\n)+", section(heading), re.M):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
        if rows[0][0] == first_column:
            assert all(len(row) == len(rows[0]) for row in rows), (heading, lines)
            return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
    raise AssertionError(f"no table {first_column} under {heading}")


def code(text: str) -> str:
    """What stands in backticks."""
    found = re.fullmatch(r"`([^`]*)`", text)
    assert found, text
    return found[1]


def schema_fields(message: str) -> list[tuple[int, str, str]]:
    """Number, name and type of the fields of a message of the schema, those of a oneof too."""
    body = re.search(rf"^message {message} \{{\n(.*?)^\}}", SCHEMA, re.M | re.S)
    assert body, message
    rows = re.findall(r"^ +((?:optional |repeated )?\w+) (\w+) = (\d+);", body[1], re.M)
    return [(int(number), name, kind) for kind, name, number in rows]


def page_fields(heading: str) -> list[tuple[int, str, str]]:
    rows = table(heading, "No.")
    return [(int(row["No."]), code(row["Field"]), row["Type"]) for row in rows]


# ------------------------------------------------------------------------ tables


def test_kinds() -> None:
    rows = table("Kinds of frames", "Kind")
    assert [(int(row["Kind"]), row["Name"]) for row in rows] == [(k, k.name) for k in native.Kind]
    arrows = dict(re.findall(r"^    (\w+) = \d+  # (.+)$", inspect.getsource(native.Kind), re.M))
    senders = {
        "client -> node": "client",
        "node -> client": "node",
        "both": "both",
        "node -> node": "nodes",
    }
    allowed: dict[str, set[str]] = {"MESSAGE": {"OPEN"}, "ORIGIN": {"OPEN"}}  # which the lane takes
    for state, cls in control.HANDLERS:
        allowed.setdefault(native.KINDS[cls].name, set()).add(state.name)
    for cls in network.HANDLERS:
        allowed.setdefault(native.KINDS[cls].name, set()).add("OPEN")
    for cls in network.MESSAGES:
        allowed[native.KINDS[cls].name] = {"OPEN", "PEERED"}
    for row in rows:
        name = row["Name"]
        cls = native.CLASSES[native.Kind[name]]
        payload = "Envelope" if cls is Message else cls.__name__
        assert row["Payload"].split(",")[0] == f"`{payload}`"
        arrow = arrows.get(name, "node -> node").partition(",")[0]
        assert row["Sent by"] == senders[arrow]
        states = row["The node takes it in state"]
        assert states == (", ".join(sorted(allowed[name])) if name in allowed else "-")
    assert all(state.name in section("Kinds of frames") for state in State)


def test_fields_of_the_envelope() -> None:
    assert page_fields("The envelope") == schema_fields("Envelope")
    rows = {int(row["No."]): row for row in table("The envelope", "No.")}
    known = {row.number: row.schema_name for row in SCALAR_FIELDS} | MAPPING_FIELDS
    assert {number: code(row["Field"]) for number, row in rows.items()} == known
    assert rows[12]["Absent means"] == str(PRIORITY_DEFAULT)
    for row in SCALAR_FIELDS:  # where absent is not zero, the page says `optional`
        optional = row.absent is None or row.name == "priority"
        assert rows[row.number]["Type"].startswith("optional ") == optional


def test_fields_of_attributes() -> None:
    assert page_fields("Attributes") == schema_fields("Attribute")
    shown = [(number, name) for number, name, _ in page_fields("Attributes")]
    assert shown == [(1, "name"), *((row.number, row.schema_name) for row in VALUE_FIELDS)]


def test_fields_of_control_messages() -> None:
    names = set(re.findall(r"^message (\w+)", SCHEMA, re.M)) - {"Envelope", "Attribute"}
    headings = PAGE.partition("\n## Control messages")[2].partition("\n## ")[0]
    assert Counter(re.findall(r"^### (\w+)", headings, re.M)) == Counter([*names, "Bye"])
    for name in names:
        if schema_fields(name):
            assert page_fields(name) == schema_fields(name)
        else:
            assert section(name).strip() == "No fields."
    assert not schema_has("Bye") and not protobuf.table(native.Bye)


def schema_has(message: str) -> bool:
    return f"message {message} " in SCHEMA


def test_errors() -> None:
    rows = [tuple(row.values()) for row in table("Errors", "Code")]
    assert rows == [
        (
            str(c.number),
            f"`{c.name}`",
            "yes" if c.fatal else "no",
            c.meaning,
            f"`{c.amqp}`",
            f"{c.mqtt:#04x}",
            str(c.http),
        )
        for c in CODES.values()
    ]


def test_errors_that_are_named_exist() -> None:
    named = set(re.findall(r"ERROR\s+`([a-z-]+)`", PAGE))
    for heading in ("Subscriptions", "Publishing"):
        named |= {code(row["ERROR"]) for row in table(heading, "ERROR")}
    named |= {code(row["Error"]) for row in table("Frames", "What is wrong")}
    assert len(named) > 15
    assert named <= CODES.keys()
    for row in table("Frames", "What is wrong"):
        assert CODES[code(row["Error"])].fatal
    for heading in ("Subscriptions", "Publishing"):
        assert not any(CODES[code(row["ERROR"])].fatal for row in table(heading, "ERROR"))


def test_limits() -> None:
    fixed = {row["What"]: int(row["At most"]) for row in table("Limits", "What")}
    assert fixed == {
        "Bytes of a topic or a pattern": limits.TOPIC_BYTES_MAX,
        "Levels of a topic or a pattern": limits.TOPIC_LEVELS_MAX,
        "Attributes of an envelope, and again entries of its context": limits.ATTRIBUTES_MAX,
        "Bytes of an attribute's name": limits.NAME_BYTES_MAX,
        "Bytes of a client id": limits.CLIENT_ID_BYTES_MAX,
        "Elements of a repeated field of a control message": protobuf.REPEATED_MAX,
        "Bytes of any frame, whatever is configured": limits.FRAME_BYTES_CEILING,
    }
    for row in table("Limits of a node", "Limit"):
        assert int(row["Default"]) == getattr(Limits(), code(row["Limit"]))


def test_numbers_in_sentences() -> None:
    plain = " ".join(PAGE.split())
    own = Limits()
    unread_max = (own.frame_bytes + 4 * own.write_bytes) // limits.MIB
    for sentence in (
        f"all other frames of up to {own.control_frame_bytes // limits.KIB} KiB",
        f"It has 1 to {limits.TOPIC_BYTES_MAX} bytes and at most {limits.TOPIC_LEVELS_MAX} levels",
        f"a string of at most {limits.CLIENT_ID_BYTES_MAX} bytes",
        f"1 to {limits.NAME_BYTES_MAX} bytes. Required.",
        f"; {own.inflated_bytes // limits.MIB} MiB is a sensible bound",
        f"of at most {native._ERROR_TEXT_MAX} characters",
        f"If about {unread_max} MiB wait",
        f"was away for {own.publisher_idle_s // 86_400} days (limit `publisher_idle_s`)",
        f"when {own.publishers_remembered:,} are remembered (limit `publishers_remembered`)",
    ):
        assert sentence in plain
    known = Window()
    assert known.accept(100_000) == known.accept(100_001 - 65_536) == 0
    assert known.accept(100_000 - 65_536) == 2
    assert "knows the last 65,536 sequences at and below the highest" in plain
    assert node.HEARTBEATS_MISSED_MAX == 3 and "for three intervals, no byte at all" in plain
    assert native.VERSION == 1 and PAGE.startswith("# The native protocol, version 1\n")


def test_features_and_policies() -> None:
    assert [code(row["Feature"]) for row in table("Opening", "Feature")] == [
        *control.FEATURES,
        control.JOURNAL,
        control.TRANSACTIONS,
        control.MOVES,
        control.ADVERTISEMENTS,
    ]
    rows = table("Queues and stalled subscribers", "No.")
    assert [(int(r["No."]), r["Policy"]) for r in rows] == [(p, p.name) for p in native.StallPolicy]


def test_reasons_and_commands() -> None:
    rows = table("Between nodes", "Reason")
    assert [(int(row["Reason"]), row["Name"]) for row in rows] == [(r, r.name) for r in Reason]
    commands = [code(row["Command"]) for row in table("Looking at a node", "Command")]
    assert commands == [*operating.COMMANDS, *bulk.COMMANDS]
    for what in INSPECTED:
        assert f"`{what}`" in section("Looking at a node") and f"`{what}`" in section("Inspect")


def test_the_checksum() -> None:
    values = {row["Parameter"]: row["Value"] for row in table("CRC-32C", "Parameter")}
    assert values["Width"] == "32" and values["Input and output reflected"] == "yes"
    numbers = {name: int(code(v), 16) for name, v in values.items() if v.startswith("`0x")}
    reflected = numbers["Polynomial, reflected"]
    assert f"{numbers['Polynomial']:032b}" == f"{reflected:032b}"[::-1]

    def crc(data: bytes) -> int:  # as the page tells it
        value = numbers["Initial value"]
        for byte in data:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (reflected if value & 1 else 0)
        return value ^ numbers["Final exclusive or"]

    for data, name in (
        (b"123456789", "Check: of the nine bytes `123456789`"),
        (bytes(32), "Of 32 bytes `00`"),
        (b"", "Of no bytes"),
    ):
        assert crc(data) == crc32c(data) == numbers[name]


def test_patterns() -> None:
    for row in table("Patterns", "Pattern"):
        pattern = code(row["Pattern"])
        check_pattern(pattern)
        for exact in {"no": [False], "yes": [True], "any": [False, True]}[row["`exact`"]]:
            for topics, taken in ((row["Takes"], True), (row["Does not take"], False)):
                for topic in topics.split(", "):
                    check_topic(code(topic))
                    assert matches(pattern, code(topic), exact) == taken, (pattern, topic, exact)
    refused = re.search(r"`([^`]+)` is refused,\s+and\s+so\s+is\s+`([^`]+)`", section("Patterns"))
    assert refused
    for pattern in refused.groups():
        with pytest.raises(LocalError):
            check_pattern(pattern)


# ------------------------------------------------------------------ the vectors


def reencoded(data: bytes) -> bytes:
    out, at = b"", 0
    while at < len(data):
        frame = native.read_frame(data, at, VECTORS["frame_bytes_max"])
        assert frame is not None
        kind, flags, payload, at = frame
        message = native.decode(kind, payload)
        plain = encode_envelope(message) if kind == native.Kind.MESSAGE else None
        out += native.frame(kind, protobuf.encode(message) if plain is None else plain, flags)
    return out


def test_the_vectors_are_as_described() -> None:
    assert {code(row["Key"]) for row in table("Test vectors", "Key")} == VECTORS.keys()
    assert f"all vectors: {VECTORS['frame_bytes_max']}." in section("Test vectors")
    good = {v["name"]: bytes.fromhex(v["hex"]) for v in VECTORS["vectors"] if "decoded" in v}
    differ = {name for name, data in good.items() if reencoded(data) != data}
    named = re.search(r"nobody need write such frames: (.*?)\.", section("Test vectors"), re.S)
    assert named and set(re.findall(r"`([\w-]+)`", named[1])) == differ


# ------------------------------------------------------------- the conversation

CONVERSATION = PAGE.partition("\n## A whole conversation in bytes\n")[2].partition("\n## ")[0]
Line = tuple[bytes, str]


def hex_blocks() -> list[tuple[str, list[Line]]]:
    """Per block: the heading above it, and its lines as bytes and what they are said to be."""
    blocks = []
    for part in CONVERSATION.split("\n### ")[1:]:
        (text,) = re.findall(r"^```hex\n(.*?)^```", part, re.M | re.S)
        lines = []
        for line in filter(None, text.splitlines()):
            found = re.fullmatch(r"((?:[0-9a-f]{2} ?)+?)(?:  +(.*))?", line)
            assert found, line
            lines.append((bytes.fromhex(found[1]), found[2] or ""))
        blocks.append((part.partition("\n")[0], lines))
    return blocks


BLOCKS = hex_blocks()


def block_bytes(lines: list[Line]) -> bytes:
    return b"".join(data for data, _ in lines)


def load_maker() -> Any:
    spec = importlib.util.spec_from_file_location("vectors_of_docs", DOCS / "make_vectors.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(lines: list[Line]) -> list[tuple[str, str]]:
    """All that the notes claim: `name = value`."""
    return [pair for _, note in lines for pair in re.findall(r"(\w+) = (0x\w+|[^,:]+)", note)]


def true(data: bytes) -> list[tuple[str, Any]]:
    """The same, of the frames themselves."""
    show = load_maker().show
    claims: list[tuple[str, Any]] = []
    at = 0
    while at < len(data):
        names = ("length", "kind", "flags", "check", "checksum")
        claims += zip(names, struct.unpack_from("<IBBHI", data, at), strict=True)
        frame = native.read_frame(data, at, Limits().frame_bytes)
        assert frame is not None
        kind, _, payload, at = frame
        message = native.decode(kind, payload)
        for name, shown in show(message).items():
            if name == "features":
                claims += [("name", feature["name"]) for feature in shown]
            else:
                value = getattr(message, name, shown)
                claims.append((name, [*value] if isinstance(value, tuple) else value))
    return claims


def test_the_conversation_has_all_that_it_should() -> None:
    kinds = [note for _, lines in BLOCKS for _, note in lines if note.startswith("kind")]
    names = [note.rpartition(", ")[2] for note in kinds]
    opening = ["HELLO", "WELCOME", "SUBSCRIBE", "SUBSCRIBED"]
    assert names == [*opening, "MESSAGE", "TRANSFER", "MESSAGE", "BYE"]
    for note in kinds:
        found = re.fullmatch(r"kind = (\d+), (\w+)", note)
        assert found and native.Kind[found[2]] == int(found[1])


@pytest.mark.parametrize(("heading", "lines"), BLOCKS, ids=[heading for heading, _ in BLOCKS])
def test_the_bytes_mean_what_the_page_says(heading: str, lines: list[Line]) -> None:
    data = block_bytes(lines)
    if heading == "The client opens":
        assert lines[0][0] == native.PREFACE
        data = data[len(native.PREFACE) :]
    claims, truth = said(lines), true(data)
    assert [name for name, _ in claims] == [name for name, _ in truth]
    for (name, claim), (_, value) in zip(claims, truth, strict=True):
        sized = re.fullmatch(r"(\d+) bytes", claim)
        if sized:
            assert len(value) == int(sized[1]), name
        else:
            assert ast.literal_eval(claim) == value, name


def test_each_line_holds_the_field_it_names() -> None:
    for heading, lines in BLOCKS:
        for data, note in lines:
            if field := re.match(r" *field (\d+), ", note):
                assert data[0] >> 3 == int(field[1]), (heading, note)
            if nested := re.search(r"a Feature of (\d+) bytes", note):
                assert data[1] == int(nested[1]), (heading, note)
            if length := re.search(r"length = (\d+): 8 and a payload of (\d+)", note):
                assert int(length[1]) == 8 + int(length[2]), (heading, note)


class Fixed(Random):
    """The numbers that were drawn in the page's conversation."""

    def getrandbits(self, k: int, /) -> int:
        token = int.from_bytes(bytes(range(0xA0, 0xB0)), "little")
        return {64: 0x1122334455667788, 128: token}[k]


def test_a_node_answers_as_the_page_says() -> None:
    now = Now(0, 1_700_000_000_000_000)
    identity = Identity(bytes(range(16)), "north", 1)
    north = node.Node(identity, Limits(), 10_000, Fixed())
    north.step([Opened(1, "the reader of the page")], now)
    sent, closed = b"", False
    for heading, lines in BLOCKS:
        if heading.startswith("The node"):
            assert sent == block_bytes(lines), f"{heading}; now it is {sent.hex(' ')}"
            continue
        effects = north.step([Received(1, memoryview(block_bytes(lines)))], now)
        pieces = [piece for e in effects if isinstance(e, Write) for piece in e.pieces]
        sent = b"".join(pieces)
        closed = any(isinstance(effect, Close) for effect in effects)
    assert closed and not sent


# ------------------------------------------------------------------------- links


def test_links_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert len(anchors) == len(headings)
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert len(links) > 20
    for link in links:
        path, _, anchor = link.partition("#")
        assert not path or (DOCS / path).is_file(), link
        assert not anchor or anchor in anchors, link
    contents = re.findall(r"^- \[(.+?)\]\(#", PAGE.partition("\n## ")[0], re.M)
    assert contents == re.findall(r"^## (.+)$", PAGE, re.M)
