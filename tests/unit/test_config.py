"""Settings: the order of the four places, every kind of mistake, and the page that lists them."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from regraft import config
from regraft.config import SETTINGS, Config, describe, load, variable_of, warnings
from regraft.errors import LocalError
from regraft.limits import Limits

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(text: str) -> Path:
        file = tmp_path / "regraft.toml"
        file.write_text(text, "utf-8")
        return file

    return to


def refusal(
    flags: dict[str, object] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
) -> str:
    with pytest.raises(LocalError) as caught:
        load(flags or {}, environ or {}, file)
    assert caught.value.code.name == "bad-configuration"
    return caught.value.text


def test_without_anything_the_defaults_hold() -> None:
    loaded = load({}, {}, None)
    assert loaded == Config()
    assert (loaded.host, loaded.port, loaded.data) == ("127.0.0.1", 7447, Path("regraft-data"))
    assert set(loaded.source.values()) == {"default"}
    assert set(loaded.source) == set(SETTINGS)


def test_flags_win_over_environment_over_file_over_defaults(write: Write) -> None:
    file = write("name = 'file'\nport = 1\nhost = '::1'\n[limits]\nframe_bytes = 2097152\n")
    environ = {"REGRAFT_NAME": "environment", "REGRAFT_PORT": "2", "PATH": "/bin"}
    loaded = load({"name": "flag", "host": None}, environ, file)
    assert (loaded.name, loaded.port, loaded.host) == ("flag", 2, "::1")
    assert loaded.limits.frame_bytes == 2 << 20
    assert loaded.limits.connections == Limits().connections
    assert loaded.source["name"] == "--name"
    assert loaded.source["port"] == "REGRAFT_PORT"
    assert loaded.source["host"] == f"{file}:3"
    assert loaded.source["limits.frame_bytes"] == f"{file}:5"
    assert loaded.source["limits.connections"] == "default"


def test_the_file_may_be_named_by_a_variable_and_a_flag_wins(write: Write, tmp_path: Path) -> None:
    file = write("port = 1")
    assert load({}, {"REGRAFT_CONFIG": str(file)}, None).port == 1
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert load({}, {"REGRAFT_CONFIG": str(file)}, other).port == 2
    assert load({}, {"REGRAFT_CONFIG": ""}, None).port == 7447


def test_switches_that_are_no_settings_are_let_alone() -> None:
    others = ("REGRAFT_KERNELS", "REGRAFT_REQUIRE_COMPILED", "REGRAFT_NO_COMPILE")
    assert load({}, dict.fromkeys(others, "1"), None) == Config()


def test_an_empty_variable_is_one_that_was_not_set() -> None:
    assert load({}, {"REGRAFT_PORT": ""}, None).source["port"] == "default"


@pytest.mark.parametrize(
    ("text", "number"),
    [("8MiB", 8 << 20), ("64KiB", 64 << 10), ("1_000_000", 10**6), ("1 gib", 1 << 30), ("70", 70)],
)
def test_text_may_give_a_size_a_unit(text: str, number: int) -> None:
    assert load({"limits.inflated_bytes": text}, {}, None).limits.inflated_bytes == number
    environ = {"REGRAFT_LIMITS__INFLATED_BYTES": text}
    assert load({}, environ, None).limits.inflated_bytes == number


@pytest.mark.parametrize("text", ["8MB", "8M", "0x10", "1.5MiB", "-1", "1__0", "٣", "9" * 99, "x"])
def test_other_texts_are_no_size(text: str) -> None:
    sentence = refusal({"limits.inflated_bytes": text})
    assert sentence.startswith("--limit inflated_bytes: limit inflated_bytes must be")


def test_what_is_not_a_size_has_no_unit() -> None:
    assert "not '1KiB'" in refusal({}, {"REGRAFT_PORT": "1KiB"})
    assert "REGRAFT_LIMITS__STALL_MS: " in refusal({}, {"REGRAFT_LIMITS__STALL_MS": "1KiB"})


def test_a_file_keeps_its_types(write: Write) -> None:
    file = write("[limits]\nframe_bytes = '8MiB'\n")
    assert refusal(file=file).startswith(f"{file}:2: limit frame_bytes must be a whole number")


def test_unknown_names_are_refused_where_they_stand_with_the_nearest(write: Write) -> None:
    file = write("# a comment\nprot = 1\n")
    assert refusal(file=file) == f"{file}:2: unknown setting prot; did you mean port?"
    file = write("port = 1\n\n[limits]\nframe_byte = 1\n")
    assert refusal(file=file) == (
        f"{file}:4: unknown setting limits.frame_byte; did you mean limits.frame_bytes?"
    )
    file = write("port = 1\n[limit]\nframe_bytes = 1\n")
    assert refusal(file=file) == f"{file}:2: unknown setting limit; did you mean limits?"
    assert refusal({}, {"REGRAFT_PROT": "1"}) == (
        "REGRAFT_PROT: unknown variable; did you mean REGRAFT_PORT?"
    )
    assert "did you mean REGRAFT_CONFIG?" in refusal({}, {"REGRAFT_CONFG": "x"})
    assert refusal({"limits.qeue_bytes": "1"}) == (
        "--limit qeue_bytes: unknown limit qeue_bytes; did you mean queue_bytes?"
    )
    assert refusal({}, {"REGRAFT_ZZZZZZZZZ": "1"}) == "REGRAFT_ZZZZZZZZZ: unknown variable"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("port = 65536", "port must be a whole number from 0 to 65535, not 65536"),
        ("port = -1", "port must be a whole number from 0 to 65535, not -1"),
        ("port = true", "port must be a whole number from 0 to 65535, not True"),
        ("port = 1.0", "port must be a whole number from 0 to 65535, not 1.0"),
        ("port = [1]", "port must be a whole number from 0 to 65535, not [1]"),
        ("name = ''", "name must be printable text of 1 to 255 bytes, not ''"),
        ("host = 1", "host must be printable text of 1 to 255 bytes, not 1"),
        ("data = ''", "data must be the path of a folder, not ''"),
        ("data = 3", "data must be the path of a folder, not 3"),
        (
            "log_level = 'debgu'",
            "log_level must be one of debug, info, warning, error, not 'debgu'; "
            "did you mean debug?",
        ),
        ("log_format = 1", "log_format must be one of text, json, not 1"),
        ("limits = 1", "limits must be a table: [limits]"),
        ("limits.stall_ms = 0", "limit stall_ms must be a whole number above 0, not 0"),
        (
            "limits = { stall_ms = true }",
            "limit stall_ms must be a whole number above 0, not True",
        ),
        ("port = ", "this is not TOML: Invalid value"),
    ],
)
def test_impossible_values_are_refused_where_they_stand(
    write: Write, line: str, sentence: str
) -> None:
    file = write(f"\n{line}\n")
    assert refusal(file=file) == f"{file}:2: {sentence}"


def test_text_that_is_not_printable_is_refused() -> None:
    assert refusal({"name": "a\nb"}).startswith("--name: name must be printable")
    assert refusal({"name": "ü" * 128}).startswith("--name: name must be printable")
    assert refusal({}, {"REGRAFT_DATA": "\udcff"}).startswith("REGRAFT_DATA: data must be")
    assert refusal({"data": "a\0b"}).startswith("--data: data must be")


def test_relations_between_settings_name_every_place(write: Write) -> None:
    file = write("[limits]\nframe_bytes = 1000\n")
    assert refusal(file=file) == (
        f"{file}:2: limit control_frame_bytes must not be above limit frame_bytes"
    )
    flags: dict[str, object] = {"limits.control_frame_bytes": "2000"}
    assert refusal(flags, file=file).startswith(f"--limit control_frame_bytes, {file}:2: limit")
    assert refusal({}, {"REGRAFT_HEARTBEAT_MS": "50"}) == (
        "REGRAFT_HEARTBEAT_MS: heartbeat_ms must be from 100 to 300000, "
        "as the limits heartbeat_ms_min and heartbeat_ms_max say, not 50"
    )
    assert refusal({"limits.heartbeat_ms_min": "20000"}).startswith("--limit heartbeat_ms_min: ")


def test_a_config_made_by_hand_is_checked_too() -> None:
    with pytest.raises(LocalError, match=r"^port must be"):
        Config(port=70_000)
    assert dataclasses.replace(Config(), port=0).port == 0


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    sentence = f"{missing}: cannot read this configuration file: no such file or directory"
    assert refusal(file=missing) == sentence
    assert refusal({}, {"REGRAFT_CONFIG": str(missing)}) == sentence
    assert "is a directory" in refusal(file=tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"name = '\xe9'")
    assert refusal(file=latin).startswith(f"{latin}: cannot read this configuration file: 'utf-8'")


def test_lines_are_found_however_the_key_is_written(write: Write) -> None:
    file = write("'port' = 1\nlimits.frame_bytes = 70_000\n")
    loaded = load({}, {}, file)
    assert loaded.source["port"] == f"{file}:1"
    assert loaded.source["limits.frame_bytes"] == f"{file}:2"
    file = write("name = 'x'\n[ limits ] # bounds\n  'stall_ms' = 9\n")
    assert load({}, {}, file).source["limits.stall_ms"] == f"{file}:3"


def test_a_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load({"data": "~/bus"}, {}, None).data == Path("/home/somebody/bus")


def test_described_and_loaded_again_it_is_the_same(write: Write) -> None:
    flags: dict[str, object] = {
        "name": 'a "quoted" \\ name é',
        "data": "folder\nwith\x7fodd \\ name",
        "port": 0,
        "limits.queue_bytes": "64MiB",
    }
    loaded = load(flags, {"REGRAFT_LOG_FORMAT": "json"}, None)
    text = describe(loaded)
    assert load({}, {}, write(text)) == loaded
    assert "port = 0  # --port\n" in text
    assert 'log_format = "json"  # REGRAFT_LOG_FORMAT\n' in text
    assert "queue_bytes = 67_108_864  # --limit queue_bytes\n" in text
    assert 'host = "127.0.0.1"  # default\n' in text


def test_a_described_default_lists_every_setting() -> None:
    document = tomllib.loads(describe(Config()))
    limits = document.pop("limits")
    assert [*document, *(f"limits.{name}" for name in limits)] == list(SETTINGS)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_loopback_needs_no_warning(host: str) -> None:
    assert warnings(Config(host=host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "harbour.example"])
def test_an_open_address_is_warned_of(host: str) -> None:
    (warning,) = warnings(Config(host=host))
    assert host in warning and "no authentication" in warning


def rows(heading: str) -> dict[str, list[str]]:
    """The table under a heading of the page: the first cell without marks, and all cells."""
    section = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0].strip("`"): row for row in cells}


def test_the_page_lists_every_setting_with_its_default() -> None:
    settings, limits = rows("Settings"), rows("Limits")
    assert [*settings, *(f"limits.{name}" for name in limits)] == list(SETTINGS)
    for name, setting in SETTINGS.items():
        row = limits[setting.key] if setting.table else settings[setting.key]
        default = "" if row[1] == "none" else row[1].strip("`")
        written = load({name: default}, {}, None)
        value = getattr(written.limits if setting.table else written, setting.key)
        assert value == setting.default, f"the page has another default for {name}"
        assert len(row[-1]) > 10, f"the page does not say what {name} means"


def test_the_page_names_the_flags_and_variables_there_are() -> None:
    for name, row in rows("Settings").items():
        flags = re.findall(r"--[a-z-]+", row[2])
        assert flags in ([], [config.flag_of(name)])
    text = PAGE.read_text("utf-8")
    known = {variable_of(name) for name in SETTINGS} | config.OTHER_VARIABLES
    named = set(re.findall(r"REGRAFT_[A-Z_]+[A-Z]\b", text))
    assert named <= known
    assert named >= config.OTHER_VARIABLES


@pytest.mark.parametrize("size", [4096, 8192, 16_376])
def test_segments_that_a_snapshot_would_not_fit_into_are_refused(size: int) -> None:
    small = {"frame_bytes": 2048, "control_frame_bytes": 2048, "selector_bytes": 1024}
    with pytest.raises(LocalError, match="from 16 KiB to 1 GiB"):
        Limits(segment_bytes=size, **small)
    Limits(segment_bytes=16_384, **small)
