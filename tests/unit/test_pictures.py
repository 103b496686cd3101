"""The pictures in the docs are what the simulation gives."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pictures_are_true() -> None:
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, drawn in module.pictures().items():
        assert (DOCS / "reconfiguration" / name).read_text(encoding="utf-8") == drawn, name
        assert f"(reconfiguration/{name})" in (DOCS / "reconfiguration.md").read_text("utf-8")
