"""What a benchmark says: a table, the goals, and as its last line the same goals as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Goal:
    """One promise: met, missed, or (`None`) not to be told here."""

    name: str
    goal: str
    measured: float | None
    met: bool | None


def at_least(name: str, bound: float, unit: str, measured: float | None) -> Goal:
    """A goal that is met from `bound` upwards."""
    met = None if measured is None else measured >= bound
    return Goal(name, f">= {bound:g} {unit}", rounded(measured), met)


def at_most(name: str, bound: float, unit: str, measured: float | None) -> Goal:
    """A goal that is met up to `bound`."""
    met = None if measured is None else measured <= bound
    return Goal(name, f"<= {bound:g} {unit}", rounded(measured), met)


def below(name: str, bound: float, unit: str, measured: float | None) -> Goal:
    """A goal that is met below `bound`."""
    met = None if measured is None else measured < bound
    return Goal(name, f"< {bound:g} {unit}", rounded(measured), met)


def told(goal: Goal) -> Goal:
    """The same goal without a judgement: what was measured is too little for one."""
    return replace(goal, met=None)


def missed(goal: Goal) -> Goal:
    """The same goal where what was to be measured failed, whatever its good rounds say."""
    return replace(goal, met=False)


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


# ------------------------------------------------------------------------------ numbers


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def ratios(above: Sequence[float | None], beneath: Sequence[float | None]) -> list[float]:
    """Round by round; a round in which one of the two failed is left out."""
    return [a / b for a, b in zip(above, beneath, strict=True) if a and b]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and, where there are several rounds, the range."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered values does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# ------------------------------------------------------------------------------ paper


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2) -> str:
    """Columns as wide as they must be; the first `words` to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def finish(bench: str, goals: Sequence[Goal], notes: Sequence[str] = ()) -> int:
    """Print notes, goals and the JSON line; the exit code."""
    for note in notes:
        print(f"note: {note}")
    words = {True: "met", False: "MISSED", None: "not judged"}
    rows = [
        [
            goal.name,
            goal.goal,
            "-" if goal.measured is None else f"{goal.measured:g}",
            words[goal.met],
        ]
        for goal in goals
    ]
    print()
    print(table(["goal", "asked", "measured", ""], rows))
    print()
    print(json.dumps({"bench": bench, "goals": [asdict(goal) for goal in goals]}), flush=True)
    return 1 if any(goal.met is False for goal in goals) else 0
