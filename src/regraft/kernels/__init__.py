"""The hot loops, each one Python source that runs interpreted or compiled.

REGRAFT_KERNELS=interpreted   use the sources in this process even where compiled ones exist.
REGRAFT_REQUIRE_COMPILED=1    `require_compiled()` refuses to go on with an interpreted kernel.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

KERNELS = (
    "checksum",
    "frame",
    "arrays",
    "envelope",
    "operands",
    "patterns",
    "selection",
    "topics",
    "pieces",
    "matrix",
    "reader",
    "facts",
    "grids",
    "predicates",
    "conjunctions",
    "tree",
    "search",
    "matching",
    "tally",
    "outlet",
    "groups",
    "takers",
    "records",
    "replay",
    "columns",
    "staged",
    "bundle",
    "windows",
    "keeper",
    "lane",
    "arrivals",
    "inbox",
    "outbox",
    "calls",
    "desk",
    "spinning",
    "rows",
    "sweep",
)

COMPANIONS = ("plan",)  # never compiled, but made for the kernels in use

FOLDER = Path(__file__).parent


class InterpretedKernelError(RuntimeError):
    """Compiled kernels were required, and at least one is not."""


class SourceFinder(MetaPathFinder):
    """Finds the source of a kernel, so that the compiled module beside it is passed over."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, leaf = fullname.rpartition(".")
        source = FOLDER / f"{leaf}.py"
        if package != __name__ or leaf not in KERNELS + COMPANIONS or not source.exists():
            return None
        return spec_from_file_location(fullname, source)


def _origins() -> dict[str, str]:
    """For every kernel, the file it was loaded from or would be."""
    origins = {}
    for leaf in KERNELS:
        name = f"{__name__}.{leaf}"
        module = sys.modules.get(name)
        spec = find_spec(name) if module is None else module.__spec__
        if spec is not None and spec.origin is not None:
            origins[leaf] = spec.origin
    return origins


def _interpreted() -> list[str]:
    endings = tuple(EXTENSION_SUFFIXES)
    return [leaf for leaf, origin in _origins().items() if not origin.endswith(endings)]


def is_compiled() -> bool:
    """Whether all kernels are compiled."""
    return not _interpreted()


def describe() -> str:
    """What this process runs: "compiled", "interpreted", or "mixed: ..." with the slow ones."""
    interpreted = _interpreted()
    if not interpreted:
        return "compiled"
    if len(interpreted) == len(_origins()):
        return "interpreted"
    return f"mixed: {', '.join(interpreted)} interpreted, the others compiled"


def require_compiled() -> None:
    """Refuse to go on with interpreted kernels where REGRAFT_REQUIRE_COMPILED=1 forbids them."""
    if os.environ.get("REGRAFT_REQUIRE_COMPILED", "") in ("", "0") or is_compiled():
        return
    raise InterpretedKernelError(
        f"REGRAFT_REQUIRE_COMPILED is set, but the kernels are {describe()}. Install a C compiler "
        "and reinstall Regraft with REGRAFT_REQUIRE_COMPILED=1 to see why compiling fails; "
        "and unset REGRAFT_KERNELS."
    )


def load_interpreted() -> dict[str, ModuleType]:
    """Interpreted twins of all kernels by name, beside those in use, which stay as they are.

    Kernels import one another by absolute name, so for a moment the twins take their place.
    """
    package = sys.modules[__name__]
    leaves = [leaf for leaf in KERNELS + COMPANIONS if (FOLDER / f"{leaf}.py").exists()]
    names = {leaf: f"{__name__}.{leaf}" for leaf in leaves}
    modules = {name: sys.modules.pop(name) for name in names.values() if name in sys.modules}
    attributes = {leaf: vars(package)[leaf] for leaf in names if leaf in vars(package)}
    finder = SourceFinder()
    sys.meta_path.insert(0, finder)
    try:
        return {leaf: importlib.import_module(name) for leaf, name in names.items()}
    finally:
        sys.meta_path.remove(finder)
        for leaf, name in names.items():
            sys.modules.pop(name, None)
            vars(package).pop(leaf, None)
        sys.modules.update(modules)
        vars(package).update(attributes)


def _choose() -> None:
    wanted = os.environ.get("REGRAFT_KERNELS", "")
    if wanted == "interpreted":
        sys.meta_path.insert(0, SourceFinder())
    elif wanted not in ("", "compiled"):
        raise ValueError(f"REGRAFT_KERNELS is {wanted!r}: say interpreted, or leave it unset.")


_choose()
