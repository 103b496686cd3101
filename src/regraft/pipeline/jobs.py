"""What the jobs of `regraft pipeline` have in common: progress, time left, and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Say = Callable[[str], object]


def silent(line: str) -> None:
    """Say nothing."""


@dataclass
class Progress:
    """How far a job is. `total` may grow while it runs; 0 is not known."""

    name: str
    total: int = 0
    noun: str = "messages"
    say: Say = silent
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return max(time.monotonic() - self.began, 1e-9)

    @property
    def speed(self) -> float:
        """How many a second."""
        return self.done / self.seconds

    def left(self) -> float | None:
        """Seconds that are left, if it goes on as before; None if nobody can tell."""
        if not self.total or not self.done:
            return None
        return max(0, self.total - self.done) / self.speed

    def step(self, count: int, remark: str = "") -> None:
        """So many more are done."""
        self.done += count
        text = f"{self.name}: {self.done:,}"
        if self.total:
            share = 100 * self.done // max(self.total, 1)
            text += f" of {self.total:,} {self.noun} ({share} %)"
        else:
            text += f" {self.noun}"
        text += f", {self.speed:,.0f}/s"
        left = self.left()
        if left is not None and self.done < self.total:
            text += f", {spell_seconds(left)} left"
        self.say(text + (f"; {remark}" if remark else ""))


def spell_seconds(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def spell_bytes(size: float) -> str:
    """`12.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
