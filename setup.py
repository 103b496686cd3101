"""Compiles the kernels where a C compiler is there; everything else is in pyproject.toml.

REGRAFT_NO_COMPILE=1        leave them interpreted.
REGRAFT_REQUIRE_COMPILED=1  fail instead of falling back to interpreted kernels.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from setuptools import Extension, setup

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

FOLDER = Path("src/regraft/kernels")  # setuptools wants paths relative to this file
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # C types come from the .pxd only
    "binding": True,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}


def asked(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def declarations(name: str) -> set[Path]:
    """The .pxd and .h files that a kernel is compiled against, followed from its own .pxd."""
    own = FOLDER / f"{name}.pxd"
    if not own.exists():
        return set()
    text = own.read_text()
    found = {own, *(FOLDER / header for header in re.findall(r'extern from "(\w+\.h)"', text))}
    for other in set(re.findall(r"regraft\.kernels\.(\w+) cimport", text)) - {name}:
        found |= declarations(other)
    return found


def outdated(source: Path, against: set[Path]) -> bool:
    """Cython looks at the .py only; a changed .pxd must also make it translate again."""
    translated = source.with_suffix(".c")
    if not translated.exists():
        return True
    made = translated.stat().st_mtime
    return any(path.stat().st_mtime >= made for path in against if path.suffix == ".pxd")


def extension(name: str, cythonize: Callable[..., list[Extension]]) -> Extension:
    source = FOLDER / f"{name}.py"
    against = declarations(name)
    wanted = Extension(
        f"regraft.kernels.{name}",
        [str(source)],
        depends=sorted(str(path) for path in against),
        extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0"],
    )
    (translated,) = cythonize(
        [wanted],
        include_path=["src"],
        compiler_directives=DIRECTIVES,
        force=outdated(source, against),
    )
    # cythonize() drops `optional` when it is given in the constructor
    translated.optional = not asked("REGRAFT_REQUIRE_COMPILED")
    return translated


def extensions() -> list[Extension]:
    required = asked("REGRAFT_REQUIRE_COMPILED")
    if asked("REGRAFT_NO_COMPILE"):
        if required:
            sys.exit("REGRAFT_NO_COMPILE and REGRAFT_REQUIRE_COMPILED contradict each other.")
        return []
    try:
        from Cython.Build import cythonize
    except ModuleNotFoundError:
        if required:
            sys.exit("REGRAFT_REQUIRE_COMPILED is set, but Cython is not installed.")
        return []
    there = [name for name in KERNELS if (FOLDER / f"{name}.py").exists()]
    return [extension(name, cythonize) for name in there]


# As many at a time as there are processors: each kernel takes a compiler several seconds.
setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count() or 1}})
