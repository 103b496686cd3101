"""Memory of a node's process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from regraft.runtime.serve import keep_memory

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        pieces = [bytes(256 * 1024) + b"x" for _ in range(16)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if %r:
    keep_memory()
faults()
print(faults())
"""


def pages_asked_for(kept: bool) -> int:
    """By a process that needs the same few megabytes again and again."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS % kept], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library, other habits")
def test_memory_that_was_freed_is_used_again() -> None:
    assert pages_asked_for(kept=False) > 1_000  # or there would be nothing to be done
    assert pages_asked_for(kept=True) < 100
