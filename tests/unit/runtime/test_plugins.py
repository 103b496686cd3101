"""Filters that a node is started with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from regraft.errors import LocalError
from regraft.runtime.plugins import load_filters

CLASS = """
import regraft

@regraft.filter("{name}")
class Odd:
    def encode(self): return b""
    @classmethod
    def decode(cls, data): return cls()
    def matches(self, message): return len(message.body) % 2 == 1

class Other:
    pass
"""


class Entry:
    """An entry point of an installed package."""

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self.found = found

    def load(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Even:
    """A filter that does not name itself."""

    def encode(self) -> bytes:
        return b""

    @classmethod
    def decode(cls, data: bytes) -> Even:
        return cls()

    def matches(self, message: Any) -> bool:
        return True


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_modules_and_classes_are_loaded(modules: Path) -> None:
    (modules / "plug_one.py").write_text(CLASS.format(name="plug-one"))
    (modules / "plug_two.py").write_text(CLASS.format(name="plug-two"))
    table = load_filters(["plug_one", "plug_two:Odd"], [])
    assert {"plug-one", "plug-two"} <= table.classes.keys()


def test_entry_points_are_loaded_and_a_broken_one_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Entry("plug-broken", ImportError("no such module"))
    with caplog.at_level(logging.ERROR):
        table = load_filters([], [broken, Entry("plug-even", Even), Entry("plug-int", int)])
    assert table.classes["plug-even"] is Even
    assert [one.getMessage().split(" cannot")[0] for one in caplog.records] == [
        "filter plug-broken of an installed package",
        "filter plug-int of an installed package",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plug_absent", "plug_absent cannot be had: ModuleNotFoundError"),
        ("plug_bad:Nothing", "cannot be had: AttributeError"),
        ("plug_bad:Other", "plug_bad:Other is not registered"),
        ("plug_raises", "cannot be had: ZeroDivisionError"),
        ("json", "module json registers no filter"),
    ],
)
def test_what_is_named_and_cannot_be_had_is_an_error(modules: Path, name: str, text: str) -> None:
    (modules / "plug_bad.py").write_text(CLASS.format(name="plug-bad"))
    (modules / "plug_raises.py").write_text("1 / 0\n")
    with pytest.raises(LocalError, match=text):
        load_filters([name], [])
