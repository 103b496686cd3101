"""Faults of real machines for real processes: power cuts, failing system calls, full disks.

    image    a file system in a file, copied while somebody writes to it: a power cut
    strace   system calls of a process that fail, or kill it, at the Nth
    smallfs  file systems that get full, or that promise more than they have

Each has a function `missing` that says why it cannot be done here. A test begins with
`need(image.missing())` and is skipped with that line, unless REGRAFT_REQUIRE_FAULTS=1.
"""

from __future__ import annotations

import os

import pytest


def need(*reasons: str) -> None:
    """Go on only if none of these is a reason not to."""
    reason = "; ".join(reason for reason in reasons if reason)
    if not reason:
        return
    if os.environ.get("REGRAFT_REQUIRE_FAULTS") == "1":
        pytest.fail(f"REGRAFT_REQUIRE_FAULTS=1, but {reason}")
    pytest.skip(reason)
