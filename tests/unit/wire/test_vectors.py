"""Checks that the published vectors are what the code says, and the code what they say."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from regraft.kernels.checksum import crc32c
from regraft.wire import native

DOCS = Path(__file__).parents[3] / "docs"


def load_maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_vectors", DOCS / "make_vectors.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()
PUBLISHED = json.loads((DOCS / "vectors.json").read_text(encoding="utf-8"))


def test_the_file_is_up_to_date() -> None:
    assert maker.text() == (DOCS / "vectors.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("vector", PUBLISHED["vectors"], ids=lambda vector: str(vector["name"]))
def test_a_vector_means_what_it_says(vector: dict[str, Any]) -> None:
    found = maker.read(bytes.fromhex(vector["hex"]))
    assert found == vector.get("decoded", vector.get("error"))
    assert (found is None) == vector.get("incomplete", False)


def test_the_vectors_have_each_kind_and_each_refusal() -> None:
    kinds = {frame["kind"] for v in PUBLISHED["vectors"] for frame in v.get("decoded", [])}
    assert kinds == {kind.name for kind in native.Kind}
    refusals = {v["error"] for v in PUBLISHED["vectors"] if "error" in v}
    assert refusals == {"bad-checksum", "malformed-frame", "frame-too-large", "malformed-envelope"}
    assert bytes.fromhex(PUBLISHED["preface"]) == native.PREFACE


def test_the_checksum_is_the_common_one() -> None:
    # The check value that every description of CRC-32C gives.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
