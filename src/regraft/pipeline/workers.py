"""Spark's Python workers, in which sources and sinks run.

Spark uses a worker for one task after the other, and has it look for garbage after each: through
all that was ever imported, Spark's own modules, Arrow's, perhaps those of pandas. That takes some
20 ms, in which the next task waits, and a task could read 80,000 rows.
"""

from __future__ import annotations

import gc
import os
import sys

REUSED = "SPARK_REUSE_WORKER"  # a variable that Spark sets for its workers, and for nobody else

_modules = 0  # that garbage is not looked for in


def settle() -> None:
    """In a worker of Spark, have garbage looked for only in what is made from now on.

    That is done again only when more was imported, since what is garbage now stays.
    """
    global _modules
    if os.environ.get(REUSED) and len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()
